"""Parameter servers: machines, placement and shares, and the pushes replayed as queues at the links."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from planner.checks import Finding
from planner.cluster import MachineGroup
from planner.plan import Prediction
from planner.problem import Problem
from planner.units import Dimension, parse
from tests.referee.second_physics.facts import Facts, groups_of, holds
from tests.referee.second_physics.network import Gradient, data_parallel_bytes, gradients_of, pass_s, stall_s, total

__all__ = ["facts_of", "queue_end_s"]

_MOST_STEPS = 200_000
_Arrivals = list[tuple[float, float, float]]  # from, to, bytes: a worker's link brings them at a constant rate


def facts_of(problem: Problem, block: Mapping[str, Any], found: Prediction) -> Facts:
    """Return what a plan with parameter servers uses, by its block alone."""
    groups, workers, shares = groups_of(problem), block["workers"], block["batch_shares"]
    num_servers, serving = block["num_parameter_servers"], block["servers"]
    machines = dict(workers)
    at_home = machines.get(serving, 0) if block["co_located"] else 0
    machines[serving] = machines.get(serving, 0) + max(0, num_servers - at_home)
    known = [name for name in workers if name in groups]
    devices = {name: workers[name] * groups[name].devices_per_machine for name in known}
    kinds = list(dict.fromkeys(groups[name].device.name for name in known))
    synchronisation = block.get("synchronisation", "bsp")
    sent = gradients_of(problem) if known else []
    findings = [*_shares(problem, block, devices), *_placement(block, sent)]
    is_sound = known == list(workers) and serving in groups and all(one.is_ok for one in findings)
    return Facts(
        family="parameter_server",
        machines=machines,
        devices=devices,
        memory_bytes={name: data_parallel_bytes(problem, shares[name]) for name in known if name in shares},
        decisions={
            "num_parameter_servers": num_servers,
            "servers": serving,
            "co_located": block["co_located"],
            "synchronisation": synchronisation,
            "batch_shares": "equal" if len(set(shares.values())) == 1 else "unequal",
            "device": kinds[0] if len(kinds) == 1 else kinds,
            "num_machines": sum(machines.values()),
            "num_devices": sum(devices.values()),
        },
        global_batch_size=_batch(problem, block, devices),
        staleness=_staleness(block, synchronisation),
        iteration_s=_iteration_s(problem, block, found) if is_sound and synchronisation == "bsp" else None,
        findings=tuple(findings),
    )


def _batch(problem: Problem, block: Mapping[str, Any], devices: Mapping[str, int]) -> int:
    """Return the samples of an iteration: as stated, as fixed, or all shares together."""
    stated = block.get("global_batch_size") or problem.training.global_batch_size
    return int(stated or sum(devices[name] * block["batch_shares"].get(name, 0) for name in devices))


def _staleness(block: Mapping[str, Any], synchronisation: str) -> float:
    """Return by how many iterations a gradient may lag."""
    if synchronisation == "asp":
        return float("inf")
    return float(block.get("max_staleness") or (block.get("local_steps") or 1) - 1)


def _shares(problem: Problem, block: Mapping[str, Any], devices: Mapping[str, int]) -> Iterator[Finding]:
    """Yield whether the shares make the batch, no device being left without a sample."""
    batch, shares = _batch(problem, block, devices), block["batch_shares"]
    most = sum(devices[name] * shares.get(name, 0) for name in devices)
    yield holds(
        "shares",
        set(shares) == set(block["workers"]) and most >= batch >= sum(devices.values()),
        f"{batch} samples on {sum(devices.values())} devices, which may take up to {most}",
        f"the shares make at most {most} samples on {sum(devices.values())} devices; the batch is {batch}",
    )


def _placement(block: Mapping[str, Any], sent: Sequence[Gradient]) -> Iterator[Finding]:
    """Yield whether every gradient lies on one of the servers."""
    placement, num_servers = block["placement"], block["num_parameter_servers"]
    if isinstance(placement, str):
        yield holds(
            "placement", placement in ("round_robin", "largest_first", "sliced"), placement, f"no {placement!r}"
        )
        return
    names = [one.name for one in sent]
    faults = [f"{name} is on no server" for name in names if name not in placement]
    faults += [f"{name} is no gradient" for name in placement if name not in names]
    faults += [f"{name} is on server {index}" for name, index in placement.items() if not 0 <= index < num_servers]
    yield holds("placement", not faults, f"all {len(names)} gradients, each on one server", "; ".join(faults[:4]))


# -- a second opinion on the time ----------------------------------------------------------------------------------


def _iteration_s(problem: Problem, block: Mapping[str, Any], found: Prediction) -> float | None:
    """Return a lockstep iteration: pushes as queues, then pulls, the update, and waiting for input.

    Latency, queueing at the switch and stragglers are closed forms, and taken as predicted; the first two are 0 where
    nothing is sent. None where there are too many machines and tensors for slow loops.
    """
    groups, workers = groups_of(problem), block["workers"]
    compression = block.get("compression")
    kept = 1.0 - compression["removed"] if compression else 1.0
    compress_s = parse(compression["time"], Dimension.TIME) / kept**2 if compression else 0.0
    servers = block["num_parameter_servers"]
    kinds = len(workers) + (servers if block["co_located"] else 0)
    if kinds * servers * len(gradients_of(problem)) > _MOST_STEPS:
        return None
    placed = _placed(problem, block)
    ready = {name: _ready_s(problem, groups[name], block["batch_shares"][name]) for name in workers}
    rates = {name: _rate(problem, groups[name]) for name in dict.fromkeys((*workers, block["servers"]))}
    arrivals: list[_Arrivals] = [[] for _ in range(servers)]
    finished_s, pull_s = [0.0], 0.0
    loads = [0.0] * servers
    alike = Counter(_machines(block))
    for (name, home), count in alike.items():
        free_s, pulled = 0.0, 0.0
        for ready_s, row in zip(ready[name], placed, strict=True):
            far = total(size for server, size in enumerate(row) if server != home)
            pulled += far
            start_s = max(free_s, ready_s)
            free_s = start_s + far * kept / rates[name]
            for server, size in enumerate(row):
                if server != home and size > 0:
                    arrivals[server].append((start_s, free_s, count * size * kept))
                    loads[server] += count * size
        finished_s += ready[name]
        pull_s = max(pull_s, pulled / rates[name])
    finished_s += [queue_end_s(one, rates[block["servers"]]) for one in arrivals]
    pull_s = max(pull_s, *(load / rates[block["servers"]] for load in loads))
    for name in workers:
        profile = problem.profiles[groups[name].device.name]
        share = block["batch_shares"][name]
        finished_s.append(pass_s(profile, "forward", share) + pass_s(profile, "backward", share))
    are_sent = servers > 1 or any(home is None for _, home in alike)
    others = ("latency", "queueing", "stragglers") if are_sent else ("stragglers",)
    updates_s = [problem.profiles[groups[name].device.name].update_s for name in workers]
    busy_s = max(finished_s) + compress_s + pull_s + max(updates_s)
    if are_sent or any(groups[name].devices_per_machine > 1 for name in workers):
        busy_s += problem.calibration.overhead_s
    busy_s += total(found.breakdown_s.get(one, 0.0) for one in others)
    devices = {name: count * groups[name].devices_per_machine for name, count in workers.items()}
    samples = sum(devices[name] * block["batch_shares"][name] for name in workers)
    waits_s = [
        stall_s(
            problem,
            groups[name],
            busy_s=busy_s,
            num_machines=sum(workers.values()),
            devices_per_machine=groups[name].devices_per_machine,
            batch_per_device=block["batch_shares"][name],
            whole_batch=min(samples, _batch(problem, block, devices)),
        )
        for name in workers
    ]
    return busy_s + max(waits_s)


def _machines(block: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    """Yield every machine that works: its group, and the server that stands on it."""
    for name, count in block["workers"].items():
        serves = block["co_located"] and name == block["servers"]
        for index in range(count):
            yield name, index if serves and index < block["num_parameter_servers"] else None


def _rate(problem: Problem, group: MachineGroup) -> float:
    """Return the bytes a second of a machine's network cards together."""
    edges = problem.cluster.graph.edges(group.name, data=True)
    if not edges:  # the only machine there is, which sends nothing
        return 1.0
    slowest = min(float(data["link"].bandwidth_bytes_per_s) for _, _, data in edges)
    return problem.calibration.links.network_bytes_per_s(slowest * group.num_nics, group)


def _ready_s(problem: Problem, group: MachineGroup, share: int) -> list[float]:
    """Return when a machine has each gradient: computed, and added up over the links inside, one after the other."""
    profile = problem.profiles[group.device.name]
    forward_s, backward_s = pass_s(profile, "forward", share), pass_s(profile, "backward", share)
    layers = len(problem.dnn.layers)
    overlaps = problem.calibration.strategy in ("mxnet", "caffe_mpi")
    number, inside = group.devices_per_machine, group.inside
    found, free_s = [], 0.0
    for one in gradients_of(problem):
        since_s = pass_s(profile, "backward", share, range(one.layer, layers)) if overlaps else backward_s
        ready_s = forward_s + since_s
        adding_s = 0.0
        if inside is not None and number > 1:
            rate = inside.bandwidth_bytes_per_s * problem.calibration.links.share_inside(group)
            adding_s = 2 * (number - 1) * inside.latency_s + 2 * (number - 1) / number * one.size_bytes / rate
            if (peak := group.device.peak_flop_per_s.get("fp32")) and problem.calibration.aggregation:
                width = 2 if problem.training.dtype in ("fp16", "bf16") else 4
                adding_s += (number - 1) / number * one.size_bytes / (peak * width)
            ready_s = max(ready_s, free_s)
        free_s = ready_s + adding_s
        found.append(free_s)
    return found


def _placed(problem: Problem, block: Mapping[str, Any]) -> list[list[float]]:
    """Return the bytes of each gradient on each server; servers are equal."""
    servers, sent, placement = block["num_parameter_servers"], gradients_of(problem), block["placement"]
    rows = [[0.0] * servers for _ in sent]
    if placement == "sliced":
        return [[one.size_bytes / servers] * servers for one in sent]
    loads = [0.0] * servers
    order = sorted(range(len(sent)), key=lambda index: -sent[index].size_bytes)  # equal ones stay in their order
    for index in order if placement == "largest_first" else range(len(sent)):
        if placement == "round_robin":
            server = index % servers
        elif placement == "largest_first":
            server = min(range(servers), key=lambda one: loads[one])
        else:
            server = placement[sent[index].name]
        loads[server] += sent[index].size_bytes
        rows[index][server] = sent[index].size_bytes
    return rows


def queue_end_s(arrivals: _Arrivals, bytes_per_s: float) -> float:
    """Return when a server's link has passed on all that arrives; it works whenever something waits.

    Sweeps from one change of the arriving rate to the next and keeps the bytes that wait.

    >>> queue_end_s([(0.0, 1.0, 4.0), (5.0, 5.0, 2.0)], 2.0)
    6.0
    """
    if not arrivals:
        return 0.0
    moments = sorted({moment for start_s, stop_s, _ in arrivals for moment in (start_s, stop_s)})
    waiting = 0.0
    for now_s, until_s in pairwise(moments):
        waiting += total(size for start_s, stop_s, size in arrivals if start_s == stop_s == now_s)
        arriving = total(
            size * (until_s - now_s) / (stop_s - start_s)
            for start_s, stop_s, size in arrivals
            if start_s <= now_s and until_s <= stop_s
        )
        waiting = max(0.0, waiting + arriving - bytes_per_s * (until_s - now_s))
    waiting += total(size for start_s, stop_s, size in arrivals if start_s == stop_s == moments[-1])
    return moments[-1] + waiting / bytes_per_s
