"""The family ``parameter_server``: what a given configuration costs.

A worker is a machine: its devices add up their gradients over the links inside, in ready order, and the machine pushes
the sums; tensors lie on several servers. The links are those of :mod:`planner.models.servers`: every server and
every worker has its own, full duplex, and a worker needs none to the server on its own machine. Workers run in lockstep
(BSP): pulls come after the last push, and stragglers enter as noise on the workers' times; other synchronisations are
simulated, see :mod:`planner.models.asynchronous`. The search stands in
:mod:`planner.families.parameter_server.search`.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from planner.channel import fifo_end_s
from planner.cluster import Cluster, MachineGroup
from planner.errors import Fault, SpecError
from planner.families.parameter_server import cost as parameter_server_words
from planner.families.parameter_server.cost import NAME, ParameterServerConfiguration, ParameterServerCost
from planner.families.parsing import check_inner_links, compression_of, wrong
from planner.families.timeline_drawing import Drawing, draw_input, draw_pass, layers_of_gradients, peak_memory
from planner.models.asynchronous import Log
from planner.models.data_parallel import gradients_of
from planner.plan import Prediction
from planner.problem import Problem
from planner.sections import Bars, Cell, FamilyView, Placement, Role, Table, replicas_on
from planner.timeline import Timeline, repeated
from planner.used_machines import UsedMachines
from planner.words import few, many, short, size_words, thinned

__all__ = [
    "FITTED",
    "NAME",
    "NOT_MODELLED",
    "WORDS",
    "ParameterServerConfiguration",
    "configuration_of",
    "explain",
    "left_out",
    "machines",
    "predict",
    "timeline",
    "view",
]


# --- A configuration of parameter servers that a user gives, checked against the cluster


def parse_configuration(problem: Problem, given: Mapping[str, Any]) -> ParameterServerConfiguration:
    """Return the configuration that a spec's block means.

    Raises
    ------
    SpecError
        Where it names machines that there are not, more of them than there are, or no batch that can be shared.
    """
    check_inner_links(problem, NAME)
    if problem.variant != "corrected":
        text = "the printed forms of the parameter-server papers are asked in their cases."
        raise SpecError.of([Fault(field="variant", value=problem.variant, problem=text, mend="Leave it out.")])
    groups = {group.name: group for group in problem.cluster.machine_groups}
    servers = given["servers"] or list(groups)[-1]
    _known("servers", servers, groups)
    num_servers, co_located = given["num_parameter_servers"], given["co_located"]
    workers = given["workers"] or _other_machines(groups, servers, 0 if co_located else num_servers)
    for name in workers:
        _known("workers", name, groups)
    _check_machines(groups, workers, servers, num_servers, co_located=co_located)
    shares = _shares(problem, groups, workers, given)
    _check_synchronisation(given)
    return ParameterServerConfiguration(
        num_parameter_servers=num_servers,
        workers=workers,
        servers=servers,
        co_located=co_located,
        placement=_placement(
            problem, groups[next(iter(workers))], given["placement"] or default_placement(problem), num_servers
        ),
        batch_shares=shares,
        global_batch_size=given["global_batch_size"],
        compression=compression_of(given["compression"]),
        synchronisation=given["synchronisation"],
        staleness=given["max_staleness"] or max(0, (given["local_steps"] or 1) - 1),
    )


def default_placement(problem: Problem) -> str:
    """Return how a program places tensors where nobody says: whole ones in turn, or slices of all if it cuts them."""
    return "sliced" if problem.calibration.split_tensors else "round_robin"


def _check_synchronisation(given: Mapping[str, Any]) -> None:
    """Refuse bounds of another kind of synchronisation."""
    kind = given["synchronisation"]
    for key, owner in (("max_staleness", "ssp"), ("local_steps", "local_sgd")):
        if given[key] is not None and kind != owner:
            raise wrong(NAME, key, given[key], f"synchronisation is {kind}; {key} belongs to {owner}.")


def _other_machines(groups: Mapping[str, MachineGroup], servers: str, num_servers: int) -> dict[str, int]:
    """Return all machines that are not needed as servers; dedicated CPUs beside GPUs do not work."""
    counts = {name: group.count - (num_servers if name == servers else 0) for name, group in groups.items()}
    working = may_work(groups)
    return {name: count for name, count in counts.items() if count > 0 and name in working}


def may_work(groups: Mapping[str, MachineGroup], device: str | None = None) -> tuple[str, ...]:
    """Return the groups that may work: those with the pinned device, and no CPUs beside accelerators."""
    names = [name for name, group in groups.items() if device in (None, group.device.name)]
    has_accelerator = any(groups[name].device.kind != "cpu" for name in names)
    return tuple(name for name in names if not (has_accelerator and groups[name].device.kind == "cpu"))


def _check_machines(
    groups: Mapping[str, MachineGroup], workers: Mapping[str, int], servers: str, num_servers: int, *, co_located: bool
) -> None:
    """Refuse more machines than there are."""
    if not workers:
        raise wrong(NAME, "workers", "", f"no machine is left to work beside {num_servers} servers.")
    for name, group in groups.items():
        working, serving = workers.get(name, 0), num_servers if name == servers else 0
        used = max(working, serving) if co_located else working + serving
        if used > group.count:
            text = f"{working} workers and {serving} servers need {used} machines of {name!r}, which has {group.count}."
            raise wrong(NAME, "workers", working, text)


def _shares(
    problem: Problem, groups: Mapping[str, MachineGroup], workers: Mapping[str, int], given: Mapping[str, Any]
) -> dict[str, int]:
    """Return the samples of one device of each group: as given, or the batch in equal parts."""
    if given["batch_shares"] is not None:
        shares = dict(given["batch_shares"])
        if set(shares) != set(workers):
            raise wrong(
                NAME, "batch_shares", shares, f"shares are needed for {', '.join(workers)}, and for nothing else."
            )
        _check_shares(problem, groups, workers, shares, given["global_batch_size"])
        return shares
    training = problem.training
    if training.batch_per_device is not None and given["global_batch_size"] is None:
        return dict.fromkeys(workers, training.batch_per_device)
    batch = given["global_batch_size"] or training.global_batch_size or training.max_global_batch_size or 0
    devices = sum(count * groups[name].devices_per_machine for name, count in workers.items())
    if batch < devices:
        raise wrong(
            NAME, "batch_shares", batch, f"a batch of {batch} leaves some of {devices} devices without a sample."
        )
    is_fixed = (given["global_batch_size"] or training.global_batch_size) is not None
    return dict.fromkeys(workers, ceil(batch / devices) if is_fixed else batch // devices)


def _check_shares(
    problem: Problem,
    groups: Mapping[str, MachineGroup],
    workers: Mapping[str, int],
    shares: Mapping[str, int],
    batch: int | None,
) -> None:
    """Refuse shares that do not make the batch, also where some devices have one sample less than the others."""
    devices = {name: count * groups[name].devices_per_machine for name, count in workers.items()}
    total = sum(devices[name] * shares[name] for name in workers)
    least = sum(devices[name] * max(1, shares[name] - 1) for name in workers)
    training = problem.training
    wanted, most = training.global_batch_size or batch, training.max_global_batch_size
    if batch is not None and batch > (training.global_batch_size or most or batch):
        raise wrong(NAME, "global_batch_size", batch, f"dnn asks for {training.global_batch_size or most}.")
    if (wanted is not None and not least <= wanted <= total) or (wanted is None and most is not None and total > most):
        raise wrong(NAME, "batch_shares", total, f"the shares make a batch of {total}; dnn asks for {wanted or most}.")


def _placement(
    problem: Problem, group: MachineGroup, given: str | Mapping[str, int], num_servers: int
) -> str | Mapping[str, int]:
    """Return a placement, checked: every gradient on one of the servers."""
    if isinstance(given, str):
        return given
    names = gradients_of(
        problem.dnn, problem.profiles[group.device.name], gradient_bytes=1, unit=problem.calibration.fusion_unit
    ).names
    if missing := [name for name in names if name not in given]:
        raise wrong(NAME, "placement", missing[0], f"{missing[0]!r} is on no server.")
    if unknown := [name for name in given if name not in names]:
        raise wrong(NAME, "placement", unknown[0], f"{unknown[0]!r} is no gradient of this network.")
    if beyond := {name: index for name, index in given.items() if not 0 <= index < num_servers}:
        name, index = next(iter(beyond.items()))
        raise wrong(NAME, "placement", index, f"{name!r} is on server {index}; there are {num_servers}, from 0 on.")
    return dict(given)


def _known(key: str, name: str, groups: Mapping[str, MachineGroup]) -> None:
    """Refuse the name of machines that there are not."""
    if name not in groups:
        raise wrong(NAME, key, name, f"there are no machines {name!r}; there are {', '.join(groups)}.")


# --- Which machines a plan of the family ``parameter_server`` takes


def machines(problem: Problem, configuration: ParameterServerConfiguration) -> Iterator[UsedMachines]:
    """Yield workers by group, all devices of a machine; then the servers."""
    groups = {group.name: group for group in problem.cluster.machine_groups}
    for name, number in configuration.workers.items():
        yield UsedMachines.training(groups[name], number, groups[name].devices_per_machine)
    servers, number = groups[configuration.servers], configuration.num_parameter_servers
    yield UsedMachines.serving(servers, number, is_shared=configuration.co_located)


# --- A configuration of parameter servers in lockstep as a timeline: workers, their links, and the servers' links
# A worker pushes its tensors one after the other, as they get ready; a server's link is busy while anything waits at it
# or comes in. What follows the last push stands behind it in the order of training: waiting for stragglers, starting an
# exchange, latency, pulls, the update, and waiting for input. Compressing goes before the backward pass, so that all
# pushes are later by as much.

_SAME = 1e-9  # of rounding


class Push(NamedTuple):
    """A tensor on its way from so many workers: when it is sent, its span, and each one's bytes for each server."""

    start_s: float
    end_s: float
    span: int | None
    size_bytes: list[float]
    number: int


def synchronous_timeline(cost: ParameterServerCost) -> Timeline:
    """Return what each kind of worker and every server do in one iteration."""
    drawing, prediction = Drawing(), cost.predict()
    parts, iteration_s = prediction.breakdown_s, prediction.iteration_time_s
    workers = _timeline_workers(drawing, cost)
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


def _timeline_workers(drawing: Drawing, cost: ParameterServerCost) -> list[str]:
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


def _draw_worker(drawing: Drawing, cost: ParameterServerCost, index: int, name: str) -> list[Push]:
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
        found.append(Push(start_s, end_s, span, sizes.tolist(), count))
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


def _draw_server(drawing: Drawing, cost: ParameterServerCost, server: int, row: str, pushes: list[Push]) -> int | None:
    """Draw when a server's link is busy, with arrows from what it receives; return the last span."""
    mine = [one for one in pushes if one.size_bytes[server] > 0]
    if not mine:
        return None
    rate = cost.links.server_bytes_per_s[server]
    busy = list(busy_spans(mine, server, rate))
    spans = [
        drawing.add(row, "receive and add up", start_s, end_s, "receive", bytes=size) for start_s, end_s, size in busy
    ]
    ends = np.array([end_s for _, end_s, _ in busy])
    for one in mine:
        index = int(np.searchsorted(ends, (one.start_s + one.end_s) / 2, side="left"))
        drawing.flow(one.span, spans[min(index, len(spans) - 1)], "push", is_stream=True)
    return next((span for span in reversed(spans) if span is not None), None)


def busy_spans(pushes: list[Push], server: int, rate: float) -> Iterator[tuple[float, float, float]]:
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
            came += pace * (until_s - now_s)
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


# --- Parameter servers without a barrier as a timeline: a stretch of the simulation that the prediction rests on
# It is as long as the iterations asked for, and lies near the end of the simulated training, where the start is
# forgotten. What is under way at either edge is cut there. The prediction's parts are means over the whole simulation,
# so that no single stretch has exactly those.

_NOTE = (
    "workers without a barrier: this is a stretch of the simulated training, cut at its edges; the parts of the "
    "prediction are means over all of it"
)


def asynchronous_timeline(cost: ParameterServerCost, num_iterations: int) -> Timeline:
    """Return what every worker does in so many iterations, and when its updates are applied."""
    prediction, log, drawing = cost.predict(), list[tuple[int, str, float, float]](), Drawing()
    cost.steady(log)
    length_s = num_iterations * prediction.iteration_time_s
    start_s = _start_s(log, length_s)
    names = _asynchronous_timeline_workers(drawing, cost)
    drawing.process("servers", ["servers: updates applied"])
    before: dict[int, int | None] = {}
    for worker, what, begin_s, end_s in sorted(log, key=lambda row: (row[2], row[0], row[3])):
        first_s, last_s = max(begin_s - start_s, 0.0), min(end_s - start_s, length_s)
        if last_s <= first_s:
            continue
        row = f"{names[worker]}: {'compute' if what in ('compute', 'wait') else what}"
        more = {"is_cut": True} if (begin_s < start_s or end_s - start_s > length_s) else {}
        span = drawing.add(row, _words(cost, what), first_s, last_s, what, **more)
        if what == "push" and end_s - start_s <= length_s:
            drawing.flow(span, _applied(drawing, names[worker], last_s), "push")
        if what in ("compute", "push"):
            drawing.flow(before.get(worker), span, "parameters" if what == "compute" else "gradient")
        before[worker] = span if what in ("pull", "compute") else None
    _check_ends(drawing, length_s)
    drawing.notes.append(_NOTE)
    held = peak_memory(prediction.memory_bytes)
    drawing.counter(names[0], "memory of the fullest worker's device (bytes)", [(0.0, held)])
    return drawing.finished()


def _asynchronous_timeline_workers(drawing: Drawing, cost: ParameterServerCost) -> list[str]:
    """Announce every worker; return the names of their processes, in the simulation's order."""
    names, numbers = [], dict[str, int]()
    for group, count, home in cost.entries:
        for _ in range(count):
            numbers[group.name] = number = numbers.get(group.name, 0) + 1
            where = "" if home is None else f" beside server {home}"
            name = f"{group.name}: worker {number}{where}"
            rows = [f"{name}: {row}" for row in ("compute", "push", "pull")]
            drawing.process(name, rows, member=(name, ""), kind=f"{group.name}, {home is None}")
            names.append(name)
    return names


def _words(cost: ParameterServerCost, what: str) -> str:
    """Return what a worker does, in words."""
    if what == "compute" and cost.configuration.synchronisation == "local_sgd":
        return f"{cost.configuration.staleness + 1} local iterations"
    return {"compute": "forward, backward and update", "wait": "wait for other workers"}.get(what, what)


def _applied(drawing: Drawing, worker: str, at_s: float) -> int:
    """Draw that an update is applied, which takes no time in the model."""
    return drawing.mark("servers: updates applied", f"update of {worker}", at_s, "apply")


def _start_s(log: Log, length_s: float) -> float:
    """Return where a stretch begins: with an iteration of the first worker, as late as all workers are known."""
    ends: dict[int, float] = {}
    for worker, _, _, end_s in log:
        ends[worker] = max(ends.get(worker, 0.0), end_s)
    latest_s = max(min(ends.values()) - length_s, 0.0)
    starts = [begin_s for worker, what, begin_s, _ in log if worker == 0 and what == "compute" and begin_s <= latest_s]
    return max(starts, default=latest_s)


def _check_ends(drawing: Drawing, length_s: float) -> None:
    """Say so where the simulation was too short for the stretch."""
    last_s = max((span.end_s for span in drawing.spans), default=0.0)
    if last_s < length_s:
        drawing.notes.append(f"the simulation ends {length_s - last_s:g} s before the stretch that was asked for")


NOT_MODELLED = (
    "convergence and accuracy: a larger batch, or stale gradients, may need more epochs",
    "the servers' own work, and headers and congestion on the links",
    "the memory of the servers' hosts: parameters and the optimiser's state, once over all servers",
    "handing parameters out again inside a machine of several devices",
    "failures and restarts",
)
FITTED = ("utilisation", "bandwidth_efficiency", "overhead")


def predict(problem: Problem, configuration: ParameterServerConfiguration) -> Prediction:
    """Return what a configuration costs."""
    return ParameterServerCost(problem, configuration).predict()


def timeline(problem: Problem, configuration: ParameterServerConfiguration, *, num_iterations: int = 1) -> Timeline:
    """Return what workers and servers do in some iterations; without a barrier, a stretch of the simulation."""
    cost = ParameterServerCost(problem, configuration)
    if configuration.synchronisation != "bsp":
        return asynchronous_timeline(cost, num_iterations)
    return repeated(synchronous_timeline(cost), num_iterations, cost.predict().iteration_time_s)


def explain(problem: Problem, configuration: ParameterServerConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds: computation, the servers' links, a worker's link, stragglers or input."""
    return parameter_server_words.explain(problem, configuration, prediction)


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> ParameterServerConfiguration:
    """Return the configuration that a spec's block means."""
    return parse_configuration(problem, given)


def left_out(
    problem: Problem, given: Mapping[str, Any], configuration: ParameterServerConfiguration
) -> tuple[str, ...]:
    """Return how tensors are placed on several servers."""
    if given["placement"] is not None or configuration.num_parameter_servers == 1:
        return ()
    return (f"placement: {configuration.placement}, as the program has it; plan looks for the best one",)


# --- What a configuration shows: workers and servers on their machines, and what each server holds

_MOST_SERVERS = 40  # each a row of the plot


WORDS = "data parallelism with parameter servers"  # how it trains


def view(cluster: Cluster, block: Mapping[str, Any], prediction: Prediction) -> FamilyView:
    """Return what a configuration's document and its prediction show."""
    stored: Sequence[float] = prediction.details.get("server_bytes") or ()
    placement = block["placement"]
    held: dict[int, list[str]] = {}
    for tensor, server in placement.items() if isinstance(placement, Mapping) else ():
        held.setdefault(int(server), []).append(str(tensor))
    return FamilyView(
        placement=lambda: _places(cluster, block, stored, held),
        blocks=lambda: _servers(stored, held, placement) if stored else (),
    )


def _places(
    cluster: Cluster, block: Mapping[str, Any], stored: Sequence[float], held: Mapping[int, Sequence[str]]
) -> Placement:
    """Return workers on the first machines of their groups, and servers on the first of theirs, or behind them."""
    counts: Mapping[str, int] = block["workers"]
    groups = {group.name: group for group in cluster.machine_groups}
    shares = block.get("batch_shares", {})
    machines = {
        name: (count, groups[name].devices_per_machine, f"worker, {shares.get(name, '?')} samples a device")
        for name, count in counts.items()
    }
    workers = replicas_on(cluster, machines, Role(label="R", words="a worker's replica of the whole network", colour=0))
    first = 0 if block["co_located"] else counts.get(block["servers"], 0)
    servers = {}
    for index in range(block["num_parameter_servers"]):
        parts = [size_words(stored[index])] if index < len(stored) else []
        parts += [many(len(held.get(index, ())), "tensor")] if isinstance(block["placement"], Mapping) else []
        words = f"server {index}{': ' if parts else ''}{', '.join(parts)}"
        servers[first + index] = [Cell(label=f"PS {index}", words=words, colour=1)]
    role = Role(label="PS", words="a parameter server; it holds its share of the parameters", colour=1)
    return Placement(
        devices=workers.devices,
        roles=(*workers.roles, role),
        servers={block["servers"]: servers},
        per_machine=workers.per_machine,
    )


def _servers(stored: Sequence[float], held: Mapping[int, Sequence[str]], placement: object) -> list[Bars | Table]:
    """Return what each parameter server holds: its tensors, or the rule of the placement."""
    shown = thinned(list(enumerate(stored)), _MOST_SERVERS)
    rule = f"by the rule {placement}" if isinstance(placement, str) else "none"
    chart = Bars(
        caption="Parameters by server",
        alt=f"Bars of the parameters on {many(len(shown), 'server')}, from {size_words(min(stored))} to "
        f"{size_words(max(stored))}.",
        rows=[(f"server {index}", value, size_words(value)) for index, value in shown],
        title="parameters",
        unit="B",
        note=few(len(stored), len(shown), "servers", "--json has all of them"),
    )
    table = Table(
        caption="Parameter servers and their tensors",
        columns=("server", "parameters", "tensors", "which"),
        rows=[
            (
                f"server {index}",
                size_words(value),
                str(len(held[index])) if index in held else "",
                short(", ".join(held[index]), 300) if index in held else rule,
            )
            for index, value in shown
        ],
        numbers=(1, 2),
    )
    return [chart, table]
