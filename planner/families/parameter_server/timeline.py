"""A configuration of parameter servers in lockstep as a timeline: workers, their links, and the servers' links.

A worker pushes its tensors one after the other, as they get ready; a server's link is busy while anything waits at it
or comes in. What follows the last push stands behind it in the order of training: waiting for stragglers, starting an
exchange, latency, pulls, the update, and waiting for input. Compressing goes before the backward pass, so that all
pushes are later by as much.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from planner.cluster import MachineGroup
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.timeline_drawing import Drawing, draw_input, draw_pass, layers_of_gradients, peak_memory
from planner.fifo import fifo_end_s
from planner.timeline import Timeline

__all__ = ["timeline"]

_SAME = 1e-9  # of rounding


class _Push(NamedTuple):
    """A tensor on its way from so many workers: when it is sent, its span, and each one's bytes for each server."""

    start_s: float
    end_s: float
    span: int | None
    size_bytes: list[float]
    number: int


def timeline(cost: ParameterServerCost) -> Timeline:
    """Return what each kind of worker and every server do in one iteration."""
    drawing, prediction = Drawing(), cost.predict()
    parts, iteration_s = prediction.breakdown_s, prediction.iteration_time_s
    workers = _workers(drawing, cost)
    servers = [f"server {index}" for index in range(cost.configuration.num_parameter_servers)]
    for server in servers:
        drawing.process(server, [f"{server}: receive", f"{server}: send"])
    pushes = [_draw_worker(drawing, cost, index, name) for index, name in enumerate(workers)]
    pushed_s = sum(parts[name] for name in ("forward", "backward", "exposed_push", "compression"))
    received = [
        _draw_server(drawing, cost, index, f"{name}: receive", [one for row in pushes for one in row])
        for index, name in enumerate(servers)
    ]
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
    _draw_pulls(drawing, cost, workers, servers, received, pulled_s, parts["pull"])
    busy_s = iteration_s - parts["input_stall"]
    inputs = dict(zip((group.name for group in cost.groups), cost.inputs(), strict=True))
    for (group, _, _), name in zip(cost.entries, workers, strict=True):
        draw_input(drawing, name, inputs[group.name], cost.strategy, busy_s, iteration_s)
    held = peak_memory(prediction.memory_bytes)
    drawing.counter(workers[0], "memory of the fullest worker's device (bytes)", [(0.0, held)])
    return drawing.finished()


def _workers(drawing: Drawing, cost: ParameterServerCost) -> list[str]:
    """Announce the kinds of workers; return the names of their processes."""
    names = []
    for group, count, home in cost.entries:
        where = "" if home is None else f" beside server {home}"
        name = f"{group.name}: each of {count} workers" if count > 1 else f"{group.name}: the worker{where}"
        rows = [f"{name}: {row}" for row in ("disk", "decode", "PCIe", "compute", "push", "pull")]
        member = (f"{group.name}: worker ", where)
        drawing.process(name, rows, count=count, member=member, kind=f"{group.name}, {home is None}")
        names.append(name)
    return names


def _draw_worker(drawing: Drawing, cost: ParameterServerCost, index: int, name: str) -> list[_Push]:
    """Draw a worker's passes and its pushes."""
    group, count, home = cost.entries[index]
    sources = _draw_passes(drawing, cost, group, f"{name}: compute")
    compression = cost.configuration.compression
    delay_s = 0.0 if compression is None else float(compression.time_s)
    ready, placed = cost.ready_s(group), cost.pushed_bytes
    order = np.argsort(ready, kind="stable")
    remote = placed.sum(axis=1) - (0.0 if home is None else placed[:, home])
    ends = fifo_end_s(ready[order], np.maximum(remote[order], 0.0) / cost.links.worker_bytes_per_s[index])
    starts = np.maximum(ready[order], np.append(0.0, ends[:-1]))
    names, layer_of = cost.gradients(group).names, layers_of_gradients(cost.problem.dnn)
    found = []
    for tensor, start, end in zip(order.tolist(), starts.tolist(), ends.tolist(), strict=True):
        start_s, end_s = start + delay_s, end + delay_s
        size = float(remote[tensor])
        span = drawing.add(f"{name}: push", f"push {names[tensor]}", start_s, end_s, "push", bytes=size)
        drawing.flow(sources.get(layer_of[names[tensor]]), span, "gradient")
        sizes = placed[tensor].copy()
        if home is not None:
            sizes[home] = 0.0
        found.append(_Push(start_s, end_s, span, sizes.tolist(), count))
    return found


def _draw_passes(drawing: Drawing, cost: ParameterServerCost, group: MachineGroup, row: str) -> dict[str, int]:
    """Draw forward and backward of a device of a worker; return the backward spans by layer."""
    share, profile = cost.configuration.batch_shares[group.name], cost.profile(group)
    names = [layer.name for layer in cost.problem.dnn.layers]
    compression = cost.configuration.compression
    layers = list(zip(names, (profile.forward_s * share).tolist(), strict=True))
    now_s, _ = draw_pass(drawing, row, 0.0, layers, direction="forward")
    if compression is not None:
        now_s = drawing.chain(row, now_s, [("compress gradients", float(compression.time_s), "compression")])
    layers = list(zip(names, (profile.backward_s * share).tolist(), strict=True))[::-1]
    return draw_pass(drawing, row, now_s, layers, direction="backward")[1]


# -- servers -----------------------------------------------------------------------------------------------------------


def _draw_server(drawing: Drawing, cost: ParameterServerCost, server: int, row: str, pushes: list[_Push]) -> int | None:
    """Draw when a server's link is busy, with arrows from what it receives; return the last span."""
    mine = [one for one in pushes if one.size_bytes[server] > 0]
    if not mine:
        return None
    rate = cost.links.server_bytes_per_s[server]
    busy = list(_busy(mine, server, rate))
    spans = [
        drawing.add(row, "receive and add up", start_s, end_s, "receive", bytes=size) for start_s, end_s, size in busy
    ]
    ends = np.array([end_s for _, end_s, _ in busy])
    for one in mine:
        index = int(np.searchsorted(ends, (one.start_s + one.end_s) / 2, side="left"))
        drawing.flow(one.span, spans[min(index, len(spans) - 1)], "push", is_stream=True)
    return next((span for span in reversed(spans) if span is not None), None)


def _busy(pushes: list[_Push], server: int, rate: float) -> Iterator[tuple[float, float, float]]:
    """Yield when a link is busy, first come first served: start, end, and the bytes that came meanwhile."""
    changes: dict[float, list[float]] = {}  # by time: more bytes a second, and bytes at once
    for one in pushes:
        size = one.size_bytes[server] * one.number
        if one.end_s > one.start_s:
            pace = size / (one.end_s - one.start_s)
            changes.setdefault(one.start_s, [0.0, 0.0])[0] += pace
            changes.setdefault(one.end_s, [0.0, 0.0])[0] -= pace
        else:
            changes.setdefault(one.start_s, [0.0, 0.0])[1] += size
    times = sorted(changes)
    total = sum(one.size_bytes[server] * one.number for one in pushes)
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
            came += pace * (until_s - now_s) if is_coming else 0.0
            waiting = 0.0 if left_s <= until_s - now_s else waiting + (pace - rate) * (until_s - now_s)
            waiting = 0.0 if waiting <= _SAME * total else waiting


def _draw_pulls(
    drawing: Drawing,
    cost: ParameterServerCost,
    workers: list[str],
    servers: list[str],
    received: list[int | None],
    start_s: float,
    seconds: float,
) -> None:
    """Draw the pulls, which all begin together and go on at a constant rate, and arrows from what servers received."""
    held = cost.held_bytes
    sends = held * cost.links.senders
    sent = [
        drawing.add(f"{name}: send", "send parameters", start_s, start_s + seconds, "pull", bytes=float(size))
        if size > 0
        else None
        for name, size in zip(servers, sends.tolist(), strict=True)
    ]
    for source, target in zip(received, sent, strict=True):
        drawing.flow(source, target, "parameters")
    for (_, _, home), name in zip(cost.entries, workers, strict=True):
        size = float(held.sum() - (0.0 if home is None else held[home]))
        if size <= 0:
            continue
        span = drawing.add(f"{name}: pull", "pull parameters", start_s, start_s + seconds, "pull", bytes=size)
        for index, source in enumerate(sent):
            if held[index] > 0 and index != home:
                drawing.flow(source, span, "pull", is_stream=True)
