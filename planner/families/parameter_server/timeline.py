"""A configuration of parameter servers as a timeline: workers, their links, and the servers' links.

In lockstep a worker pushes its tensors one after the other, as they get ready; a server's link is busy while anything
waits at it or comes in. What follows the last push stands behind it in the order of training: waiting for stragglers,
starting an exchange, latency, pulls, the update, and waiting for input. Compressing goes before the backward pass, so
that all pushes are later by as much.

Where sums are sent on their own it is one iteration of the exchange that the prediction rests on, every message on its
connection. Asynchronous training is a stretch of the simulation that the prediction rests on, as long as the iterations
asked for, near the end of the simulated training, where the start is forgotten. What is under way at either edge is cut
there. The prediction's parts are means over the whole simulation, so that no single stretch has exactly those.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from planner.channel import fifo_end_s
from planner.families.parameter_server.configuration import ParameterServerConfiguration
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.timeline_drawing import Drawing, draw_input, draw_pass, layers_of_gradients, peak_memory
from planner.models.exchange_run import Cycle
from planner.problem import Problem
from planner.timeline import Timeline, repeated

_SAME = 1e-9  # of rounding
_KEYED_NOTE = (
    "sums on their own: a stretch of the simulated exchange, from the first worker's forward pass on, cut at its edges"
)
_NOTE = (
    "workers without a barrier: this is a stretch of the simulated training, cut at its edges; the parts of the "
    "prediction are means over all of it"
)


def timeline(problem: Problem, configuration: ParameterServerConfiguration, *, num_iterations: int = 1) -> Timeline:
    """Return what workers and servers do in some iterations; without a barrier, a stretch of the simulation."""
    cost = ParameterServerCost(problem, configuration)
    if configuration.synchronisation != "bsp":
        return _asynchronous(cost, num_iterations)
    if cost.is_keyed:
        return repeated(_keyed(cost), num_iterations, cost.predict().iteration_time_s)
    return repeated(_synchronous(cost), num_iterations, cost.predict().iteration_time_s)


# -- in lockstep: each kind of worker and every server in one iteration -----------------------------------------------


class Push(NamedTuple):
    """A tensor on its way from so many workers: when it is sent, its span, and each one's bytes for each server."""

    start_s: float
    end_s: float
    span: int | None
    size_bytes: list[float]
    number: int


def _synchronous(cost: ParameterServerCost) -> Timeline:
    """Return what each kind of worker and every server do in one iteration."""
    drawing, prediction = Drawing(), cost.predict()
    parts, iteration_s = prediction.breakdown_s, prediction.iteration_time_s
    workers = []
    for group, count, home in cost.entries:
        where = "" if home is None else f" beside server {home}"
        name = f"{group.name}: each of {count} workers" if count > 1 else f"{group.name}: the worker{where}"
        rows = [f"{name}: {row}" for row in ("disk", "decode", "PCIe", "compute", "push", "pull")]
        member = (f"{group.name}: worker ", where)
        drawing.process(name, rows, count=count, member=member, kind=f"{group.name}, {home is None}")
        workers.append(name)
    servers = [f"server {index}" for index in range(cost.configuration.num_parameter_servers)]
    for server in servers:
        drawing.process(server, [f"{server}: receive", f"{server}: send"])
    pushes = [push for index, name in enumerate(workers) for push in _draw_worker(drawing, cost, index, name)]
    pushed_s = sum(parts[name] for name in ("forward", "backward", "exposed_push", "compression"))
    received = [_draw_server(drawing, cost, index, f"{name}: receive", pushes) for index, name in enumerate(servers)]
    half_s = (parts["latency"] + parts["queueing"]) / 2
    pulled_s = pushed_s + parts["stragglers"] + parts["overhead"] + half_s + half_s
    behind = [
        ("wait for stragglers", parts["stragglers"], "wait"),
        ("start of the exchange", parts["overhead"], "overhead"),
        ("latency of the push", half_s, "latency"),
        ("latency of the pull", half_s, "latency"),
        ("wait for the pull", parts["pull"], "wait"),
        ("update", parts["update"], "update"),
        ("wait for input", iteration_s - pulled_s - parts["pull"] - parts["update"], "wait"),
    ]
    for name in workers:
        drawing.chain(f"{name}: compute", pushed_s, behind)
    # Pulls all begin together and go on at a constant rate, with arrows from what servers received.
    held, end_s = cost.held_bytes, pulled_s + parts["pull"]
    sent = [
        drawing.add(f"{name}: send", "send parameters", pulled_s, end_s, "pull", bytes=size) if size > 0 else None
        for name, size in zip(servers, (held * cost.links.senders).tolist(), strict=True)
    ]
    for source, target in zip(received, sent, strict=True):
        drawing.flow(source, target, "parameters")
    inputs = dict(zip((group.name for group in cost.groups), cost.inputs(), strict=True))
    for (_, _, home), name in zip(cost.entries, workers, strict=True):
        size = float(held.sum() - (0.0 if home is None else held[home]))
        if size <= 0:
            continue
        span = drawing.add(f"{name}: pull", "pull parameters", pulled_s, end_s, "pull", bytes=size)
        for index, source in enumerate(sent):
            if held[index] > 0 and index != home:
                drawing.flow(source, span, "pull", is_stream=True)
    for (group, _, _), name in zip(cost.entries, workers, strict=True):
        draw_input(drawing, name, inputs[group.name], cost.strategy, iteration_s - parts["input_stall"], iteration_s)
    _draw_memory(drawing, workers[0], prediction.memory_bytes)
    return drawing.finished()


def _draw_memory(drawing: Drawing, worker: str, memory_bytes: Mapping[str, float]) -> None:
    """Draw the memory of the fullest worker's device."""
    held = peak_memory(memory_bytes)
    drawing.counter(worker, "memory of the fullest worker's device (bytes)", [(0.0, held)])


def _draw_worker(drawing: Drawing, cost: ParameterServerCost, index: int, name: str) -> list[Push]:
    """Draw the passes of a device of a worker, and the worker's pushes."""
    group, count, home = cost.entries[index]
    share, profile = cost.configuration.batch_shares[group.name], cost.profile(group)
    row, layers = f"{name}: compute", [layer.name for layer in cost.problem.dnn.layers]
    forward = list(zip(layers, profile.forward(share).tolist(), strict=True))
    now_s, _ = draw_pass(drawing, row, 0.0, forward, direction="forward")
    if cost.configuration.compression is not None:
        now_s = drawing.chain(row, now_s, [("compress gradients", cost.compression_s, "compression")])
    backward = list(zip(layers, profile.backward(share).tolist(), strict=True))[::-1]
    _, sources = draw_pass(drawing, row, now_s, backward, direction="backward")
    ready, placed = cost.ready_s(group), cost.pushed_bytes.copy()
    if home is not None:
        placed[:, home] = 0.0
    remote = placed.sum(axis=1)
    order = np.argsort(ready, kind="stable")
    ends = fifo_end_s(ready[order], remote[order] / cost.links.worker_bytes_per_s[index])
    starts = np.maximum(ready[order], np.append(0.0, ends[:-1]))
    names, layer_of = cost.gradients(group).names, layers_of_gradients(cost.problem.dnn)
    pushes = []
    for tensor, start, end in zip(order.tolist(), starts.tolist(), ends.tolist(), strict=True):
        start_s, end_s = start + cost.compression_s, end + cost.compression_s
        size = float(remote[tensor])
        span = drawing.add(f"{name}: push", f"push {names[tensor]}", start_s, end_s, "push", bytes=size)
        drawing.flow(sources.get(layer_of[names[tensor]]), span, "gradient")
        pushes.append(Push(start_s, end_s, span, placed[tensor].tolist(), count))
    return pushes


def _draw_server(drawing: Drawing, cost: ParameterServerCost, server: int, row: str, pushes: list[Push]) -> int | None:
    """Draw when a server's link is busy, with arrows from what it receives; return the last span."""
    mine = [push for push in pushes if push.size_bytes[server] > 0]
    if not mine:
        return None
    busy = list(busy_spans(mine, server, cost.links.server_bytes_per_s[server]))
    spans = [
        drawing.add(row, "receive and add up", start_s, end_s, "receive", bytes=size) for start_s, end_s, size in busy
    ]
    ends = np.array([end_s for _, end_s, _ in busy])
    for push in mine:
        index = int(np.searchsorted(ends, (push.start_s + push.end_s) / 2, side="left"))
        drawing.flow(push.span, spans[min(index, len(spans) - 1)], "push", is_stream=True)
    return next((span for span in reversed(spans) if span is not None), None)


def busy_spans(pushes: list[Push], server: int, rate: float) -> Iterator[tuple[float, float, float]]:
    """Yield when a link is busy, first come first served: start, end, and the bytes that came meanwhile."""
    changes: dict[float, list[float]] = {}  # by time: more bytes a second, and bytes at once
    for push in pushes:
        size = push.size_bytes[server] * push.number
        if push.end_s > push.start_s:
            pace = size / (push.end_s - push.start_s)
            changes.setdefault(push.start_s, [0.0, 0.0])[0] += pace
            changes.setdefault(push.end_s, [0.0, 0.0])[0] -= pace
        else:
            changes.setdefault(push.start_s, [0.0, 0.0])[1] += size
    times = sorted(changes)
    total = sum(push.size_bytes[server] * push.number for push in pushes)
    begun_s, came, pace, waiting, most = None, 0.0, 0.0, 0.0, 0.0
    for index, now_s in enumerate(times):
        more, at_once = changes[now_s]
        most = max(most, pace)
        pace, waiting, came = pace + more, waiting + at_once, came + at_once
        is_coming = pace > _SAME * most
        if begun_s is None and (is_coming or waiting > 0):
            begun_s = now_s
        until_s = times[index + 1] if index + 1 < len(times) else float("inf")
        left_s = waiting / (rate - pace) if pace < rate else float("inf")
        if begun_s is not None and not is_coming and now_s + waiting / rate <= until_s:
            yield begun_s, now_s + waiting / rate, came
            begun_s, came, waiting = None, 0.0, 0.0
        elif until_s < float("inf"):
            came += pace * (until_s - now_s)
            waiting = 0.0 if left_s <= until_s - now_s else waiting + (pace - rate) * (until_s - now_s)
            waiting = 0.0 if waiting <= _SAME * total else waiting


# -- sums that are sent on their own: a stretch of the exchange that the prediction rests on --------------------------


def _keyed(cost: ParameterServerCost) -> Timeline:
    """Return what each kind of worker computes, and every message on its connection, in one steady iteration.

    From the beginning of the first kind's forward pass; what is under way then, or goes on behind it, is cut there.
    """
    drawing, prediction, run, exchange = Drawing(), cost.predict(), cost.run, cost.keyed
    kinds, _, _ = cost.kinds
    number = min(map(len, run.backward_begins_s)) - 2
    start_s, length_s = run.forward_begins_s[0][number], run.iteration_s
    names = []
    for index, (group, count, home) in enumerate(kinds):
        where = "" if home is None else f" beside server {home}"
        several = f"{group.name}: each of {count} workers" if count > 1 else f"{group.name}: worker {index}"
        name = f"{several}{where}"
        links = [
            f"{name}: {way} server {server}"
            for way in ("push to", "pull from")
            for server in range(len(exchange.servers))
        ]
        rows = [f"{name}: {row}" for row in ("disk", "decode", "PCIe", "compute")]
        drawing.process(name, [*rows, *links], count=count, member=(name, ""), kind=f"{group.name}, {home is None}")
        names.append(name)

    def add(row: str, what: str, begin_s: float, end_s: float, kind: str) -> int | None:
        """Add what of a span lies in the stretch."""
        first_s, last_s = max(begin_s - start_s, 0.0), min(end_s - start_s, length_s)
        is_cut = begin_s < start_s - _SAME * length_s or end_s > start_s + length_s * (1 + _SAME)
        return drawing.add(row, what, first_s, last_s, kind, is_cut=is_cut or None)

    passes: dict[tuple[int, int], int | None] = {}
    for index, (name, worker) in enumerate(zip(names, exchange.workers, strict=True)):
        row = f"{name}: compute"
        free_s = 0.0
        for iteration, (forward_s, backward_s) in enumerate(
            zip(run.forward_begins_s[index], run.backward_begins_s[index], strict=False)
        ):
            if iteration:
                add(row, "wait for sums", free_s, forward_s - exchange.pause_s, "wait")
                add(row, "update and start", forward_s - exchange.pause_s, forward_s, "update")
            add(row, "forward", forward_s, backward_s, "forward")
            free_s = backward_s + worker.backward_s
            passes[index, iteration] = add(row, "backward", backward_s, free_s, "backward")
    tensors = cost.gradients(cost.groups[0]).names
    pieces = len(exchange.key_layer) > len(tensors)
    sums: dict[tuple[int, int | None, int], int | None] = {}
    for one in run.transfers:
        name, part = names[one.worker], (one.iteration, one.key, one.server)
        key = "" if one.key is None else f"key {one.key}" if pieces else tensors[one.key]
        if one.is_pull:
            row = f"{name}: pull from server {one.server}"
            span = add(row, f"pull {key}", one.start_s, one.end_s, "pull")
            drawing.flow(sums.get(part), span, "sum")
        else:
            row = f"{name}: push to server {one.server}"
            span = add(row, f"push {key}" if key else "ask for sums", one.start_s, one.end_s, "push")
            drawing.flow(passes.get((one.worker, one.iteration)), span, "gradient", is_stream=True)
            sums[part] = span
    parts = prediction.breakdown_s
    behind = [
        ("wait for stragglers", parts["stragglers"], "wait"),
        ("wait for input", parts["input_stall"], "wait"),
    ]
    inputs = dict(zip((group.name for group in cost.groups), cost.inputs(), strict=True))
    iteration_s = prediction.iteration_time_s
    for (group, _, _), name in zip(kinds, names, strict=True):
        drawing.chain(f"{name}: compute", length_s, behind)
        draw_input(drawing, name, inputs[group.name], cost.strategy, iteration_s - parts["input_stall"], iteration_s)
    _draw_memory(drawing, names[0], prediction.memory_bytes)
    drawing.notes.append(_KEYED_NOTE)
    return drawing.finished()


# -- without a barrier -------------------------------------------------------------------------------------------------


def _asynchronous(cost: ParameterServerCost, num_iterations: int) -> Timeline:
    """Return what every worker does in so many iterations, and when its updates are applied."""
    prediction, cycles, drawing = cost.predict(), cost.pace.cycles, Drawing()
    length_s = num_iterations * prediction.iteration_time_s
    start_s = _start_s(cycles, length_s)
    names, numbers = [], dict[str, int]()
    for group, count, home in cost.entries:
        for _ in range(count):
            numbers[group.name] = number = numbers.get(group.name, 0) + 1
            where = "" if home is None else f" beside server {home}"
            name = f"{group.name}: worker {number}{where}"
            rows = [f"{name}: {row}" for row in ("compute", "push", "pull")]
            drawing.process(name, rows, member=(name, ""), kind=f"{group.name}, {home is None}")
            names.append(name)
    drawing.process("servers", ["servers: updates applied"])
    words = {"compute": "forward, backward and update", "wait": "wait for other workers"}
    if cost.configuration.synchronisation == "local_sgd":
        words["compute"] = f"{cost.configuration.staleness + 1} local iterations"
    before: dict[int, int | None] = {}
    stretches: list[tuple[float, int, float, str]] = []
    for one in cycles:
        times_s = (one.let_go_s, one.begins_s, one.computed_s, one.pushed_s, one.ends_s)
        whats = ("pull", "compute", "push", "wait")
        stretches += zip(times_s, repeat(one.worker), times_s[1:], whats, strict=False)
    for begin_s, worker, end_s, what in sorted(stretches):
        first_s, last_s = max(begin_s - start_s, 0.0), min(end_s - start_s, length_s)
        if last_s <= first_s:
            continue
        row = f"{names[worker]}: {'compute' if what in ('compute', 'wait') else what}"
        more = {"is_cut": True} if (begin_s < start_s or end_s - start_s > length_s) else {}
        span = drawing.add(row, words.get(what, what), first_s, last_s, what, **more)
        if what == "push" and end_s - start_s <= length_s:  # applying an update takes no time in the model
            applied = drawing.mark("servers: updates applied", f"update of {names[worker]}", last_s, "apply")
            drawing.flow(span, applied, "push")
        if what in ("compute", "push"):
            drawing.flow(before.get(worker), span, "parameters" if what == "compute" else "gradient")
        before[worker] = span if what in ("pull", "compute") else None
    last_s = max((span.end_s for span in drawing.spans), default=0.0)
    if last_s < length_s:
        drawing.notes.append(f"the simulation ends {length_s - last_s:g} s before the stretch that was asked for")
    drawing.notes.append(_NOTE)
    _draw_memory(drawing, names[0], prediction.memory_bytes)
    return drawing.finished()


def _start_s(cycles: Sequence[Cycle], length_s: float) -> float:
    """Return where a stretch begins: with an iteration of the first worker, as late as all workers are told of."""
    ends_s = {one.worker: one.ends_s for one in cycles}
    latest_s = max(min(ends_s.values()) - length_s, 0.0)
    starts_s = [one.begins_s for one in cycles if one.worker == 0 and one.begins_s <= latest_s]
    return max(starts_s, default=latest_s)
