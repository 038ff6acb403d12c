"""Pipelines: that stages are the layers in order and fit, and the schedule replayed task by task."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from planner.checks import Finding
from planner.plan import Prediction
from planner.problem import Problem
from tests.referee.second_physics.facts import Facts, groups_of, holds
from tests.referee.second_physics.network import layers_bytes, pass_s, stall_s, total

__all__ = ["facts_of", "makespan_s", "orders_of"]

_Task = tuple[str, int, int]  # forward or backward, stage, micro-batch
_MOST_TASKS = 400_000  # forwards and backwards that are replayed, a second or two
_ROUNDS_IN_FLIGHT = 4
_ROUNDING = 1e-9


def facts_of(problem: Problem, block: Mapping[str, Any], found: Prediction) -> Facts:
    """Return what a pipeline uses, by its block alone; ``found`` only give seconds of transfers and exchanges."""
    groups, stages = groups_of(problem), block["stages"]
    chunks = block["chunks_per_device"]
    line = stages[: len(stages) // chunks]
    devices: dict[str, int] = {}
    for stage in line:
        devices[stage["machines"]] = devices.get(stage["machines"], 0) + stage["replicas"]
    findings = [*_layers(problem, stages), *_chunks(block)]
    is_sound = all(one.is_ok for one in findings) and set(devices) <= set(groups)
    kinds = list(dict.fromkeys(groups[name].device.name for name in devices if name in groups))
    is_long = _is_long(block)
    if is_sound and is_long:
        findings.append(_work(problem, block, found))
    machines = {
        name: ceil(count / groups[name].devices_per_machine) for name, count in devices.items() if name in groups
    }
    return Facts(
        family="pipeline",
        machines=machines,
        devices=devices,
        memory_bytes=_memory_bytes(problem, block) if is_sound else {},
        decisions={
            "num_stages": len(line),
            "num_microbatches": block["num_microbatches"],
            "schedule": block["schedule"],
            "num_devices": sum(devices.values()),
            "num_machines": sum(machines.values()),
            "device": kinds[0] if len(kinds) == 1 else kinds,
        },
        global_batch_size=block["global_batch_size"],
        iteration_s=_iteration_s(problem, block, found.details) if is_sound and not is_long else None,
        findings=tuple(findings),
    )


def _layers(problem: Problem, stages: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield whether every layer is in exactly one stage, and every edge leads to the same or a later one."""
    names = [layer.name for layer in problem.dnn.layers]
    stage_of: dict[str, int] = {}
    faults = []
    for index, stage in enumerate(stages):
        if stage["first"] not in names or stage["last"] not in names:
            faults.append(f"stage {index} names a layer that there is not")
            continue
        run = names[names.index(stage["first"]) : names.index(stage["last"]) + 1]
        faults += [f"stage {index} is empty"] * (not run)
        for name in run:
            if name in stage_of:
                faults.append(f"{name} is in stages {stage_of[name]} and {index}")
            stage_of[name] = index
    faults += [f"{name} is in no stage" for name in names if name not in stage_of]
    yield holds("layers", not faults, f"all {len(names)}, each in one stage", "; ".join(faults[:4]))
    if not faults:
        back = [f"{one} -> {other}" for one, other in problem.dnn.graph.edges if stage_of[one] > stage_of[other]]
        yield holds("edges", not back, "none leads to an earlier stage", f"to an earlier stage: {', '.join(back[:4])}")


def _chunks(block: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the schedule exists for these numbers, and chunks stand on the devices of their first."""
    stages, chunks, m = block["stages"], block["chunks_per_device"], block["num_microbatches"]
    num_devices = len(stages) // chunks
    is_interleaved = block["schedule"] == "interleaved"
    faults = []
    if len(stages) % chunks:
        faults.append(f"{len(stages)} stages are no multiple of {chunks} chunks")
    if chunks > 1 and not is_interleaved:
        faults.append(f"{block['schedule']} has one stage a device")
    if is_interleaved and num_devices and m % num_devices:
        faults.append(f"{m} micro-batches are no multiple of {num_devices} devices in line")
    if not 1 <= m <= block["global_batch_size"]:
        faults.append(f"{block['global_batch_size']} samples cannot be split into {m} micro-batches")
    smallest = block["global_batch_size"] // m
    faults += [f"stage {k} has replicas without a sample" for k, one in enumerate(stages) if one["replicas"] > smallest]
    for index, stage in enumerate(stages[num_devices:], num_devices):
        first = stages[index % num_devices]
        if (stage["machines"], stage["replicas"]) != (first["machines"], first["replicas"]):
            faults.append(f"stage {index} is not on the devices of stage {index % num_devices}")
    yield holds("schedule", not faults, f"{block['schedule']} of {m} micro-batches", "; ".join(faults[:4]))


def _samples(block: Mapping[str, Any], stage: Mapping[str, Any]) -> int:
    """Return the samples of a micro-batch on the replica of a stage that has most of them."""
    samples: int = ceil(ceil(block["global_batch_size"] / block["num_microbatches"]) / stage["replicas"])
    return samples


def _runs(problem: Problem, block: Mapping[str, Any]) -> list[range]:
    """Return the positions of every stage's layers."""
    names = [layer.name for layer in problem.dnn.layers]
    return [range(names.index(one["first"]), names.index(one["last"]) + 1) for one in block["stages"]]


# -- the schedule, task by task ------------------------------------------------------------------------------------


def orders_of(schedule: str, num_devices: int, num_microbatches: int, chunks: int) -> list[list[_Task]]:
    """Return every device's tasks in order: GPipe, 1F1B with a flush, or interleaved (arXiv:2104.04473, figure 4)."""
    orders = []
    for device in range(num_devices):
        forwards: list[_Task] = []
        backwards: list[_Task] = []
        for first in range(0, num_microbatches, num_devices if schedule == "interleaved" else num_microbatches):
            together = range(
                first, min(first + (num_devices if schedule == "interleaved" else num_microbatches), num_microbatches)
            )
            for chunk in range(chunks):
                forwards += [("forward", chunk * num_devices + device, j) for j in together]
                backwards += [("backward", (chunks - 1 - chunk) * num_devices + device, j) for j in together]
        ahead = {
            "gpipe": len(forwards),
            "1f1b": num_devices - device - 1,
            "interleaved": 2 * (num_devices - device - 1) + (chunks - 1) * num_devices,
        }[schedule]
        ahead = min(ahead, len(forwards))
        tasks = forwards[:ahead]
        for number, backward in enumerate(backwards):
            tasks += forwards[number + ahead : number + ahead + 1]
            tasks.append(backward)
        orders.append(tasks)
    return orders


def makespan_s(
    orders: Sequence[Sequence[_Task]],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    transfer_s: Sequence[float],
    after_s: Sequence[float],
) -> float:
    """Return when the last device has updated its weights.

    Sweeps over all devices until no task is left, each device working off its order: a task starts when the one before
    it has ended and its input is there; every boundary and direction is one channel, first come first served.
    ``after_s``: what a device still does when its last backward is done.
    """
    num_devices, last = len(orders), len(forward_s) - 1
    seconds = {"forward": forward_s, "backward": backward_s}
    ended: dict[_Task, float] = {}
    arrived: dict[_Task, float] = {}
    free_s = [0.0] * num_devices
    channel_s: dict[tuple[str, int], float] = {}
    position = [0] * num_devices
    while any(done < len(order) for done, order in zip(position, orders, strict=True)):
        before = list(position)
        for device, order in enumerate(orders):
            while position[device] < len(order):
                task = order[position[device]]
                kind, stage, j = task
                if kind == "forward":
                    input_s = 0.0 if stage == 0 else arrived.get(task)
                else:
                    input_s = ended.get(("forward", last, j)) if stage == last else arrived.get(task)
                if input_s is None:
                    break
                ended[task] = free_s[device] = max(free_s[device], input_s) + seconds[kind][stage]
                position[device] += 1
                target = stage + 1 if kind == "forward" else stage - 1
                if 0 <= target <= last:
                    key = (kind, device)
                    channel_s[key] = max(channel_s.get(key, 0.0), ended[task]) + transfer_s[min(stage, target)]
                    arrived[kind, target, j] = channel_s[key]
        assert position != before, "the schedule waits for itself"
    return max(free + after for free, after in zip(free_s, after_s, strict=True))


def _seconds(problem: Problem, block: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return what a micro-batch takes in every stage, forward and backward."""
    groups, forward_s, backward_s = groups_of(problem), [], []
    for stage, run in zip(block["stages"], _runs(problem, block), strict=True):
        profile = problem.profiles[groups[stage["machines"]].device.name]
        samples = _samples(block, stage)
        forward_s.append(pass_s(profile, "forward", samples, run))
        backward_s.append(pass_s(profile, "backward", samples, run))
    return forward_s, backward_s


def _is_long(block: Mapping[str, Any]) -> bool:
    """Whether a replay would take too long."""
    return 2 * len(block["stages"]) * int(block["num_microbatches"]) > _MOST_TASKS


def _work(problem: Problem, block: Mapping[str, Any], found: Prediction) -> Finding:
    """Return whether the iteration is long enough for each device's own work: what is known without a replay."""
    m, num_devices = block["num_microbatches"], len(block["stages"]) // block["chunks_per_device"]
    stage_s = [f + b for f, b in zip(*_seconds(problem, block), strict=True)]
    least_s = max(m * total(stage_s[device::num_devices]) for device in range(num_devices))
    return holds(
        "schedule time",
        found.iteration_time_s >= least_s * (1 - _ROUNDING),
        f"{2 * m * len(stage_s):,} tasks are too many to replay; no less than a device's work of {least_s:.9g} s",
        f"a device works {least_s:.12g} s, and the iteration is predicted to take {found.iteration_time_s:.12g} s",
    )


def _iteration_s(problem: Problem, block: Mapping[str, Any], details: Mapping[str, Any]) -> float | None:
    """Return the iteration: the replayed schedule, exchanges and updates, and waiting for input."""
    groups, stages, rows = groups_of(problem), block["stages"], details.get("stages", [])
    if len(rows) != len(stages):
        return None
    num_devices = len(stages) // block["chunks_per_device"]
    forward_s, backward_s = _seconds(problem, block)
    transfer_s = [row["transfer_s"] for row in rows]
    after_s = [
        total(row["gradients_s"] + row["update_s"] for row in rows[device::num_devices])
        for device in range(num_devices)
    ]
    orders = orders_of(block["schedule"], num_devices, block["num_microbatches"], block["chunks_per_device"])
    busy_s = makespan_s(orders, forward_s, backward_s, transfer_s, after_s)
    first = stages[0]
    group, replicas = groups[first["machines"]], first["replicas"]
    return busy_s + stall_s(
        problem,
        group,
        busy_s=busy_s,
        num_machines=ceil(replicas / group.devices_per_machine),
        devices_per_machine=min(replicas, group.devices_per_machine),
        batch_per_device=ceil(block["global_batch_size"] / replicas),
        whole_batch=block["global_batch_size"],
    )


# -- memory --------------------------------------------------------------------------------------------------------


def _memory_bytes(problem: Problem, block: Mapping[str, Any]) -> dict[str, float]:
    """Return the bytes on the fullest device of each group, counted along each device's order of tasks.

    Weights, gradients and the optimiser's state of its layers; for every micro-batch between forward and backward the
    layers' outputs and the stage's input; one error in and one out. GPipe holds all micro-batches; the other orders
    hold their most long before so many rounds of as many micro-batches as there are devices are through.
    """
    stages, runs = block["stages"], _runs(problem, block)
    num_devices = len(stages) // block["chunks_per_device"]
    number_bytes = 2 if problem.training.dtype in ("fp16", "bf16") else 4
    m, is_gpipe = block["num_microbatches"], block["schedule"] == "gpipe"
    enough = 1 if is_gpipe else min(m, _ROUNDS_IN_FLIGHT * num_devices)
    orders = orders_of(block["schedule"], num_devices, enough, block["chunks_per_device"])
    fullest: dict[str, float] = {}
    for device, order in enumerate(orders):
        fixed, held = problem.calibration.memory_reserve_bytes, {}
        for index in range(device, len(stages), num_devices):
            run, samples = runs[index], _samples(block, stages[index])
            own, per_sample = layers_bytes(problem, [problem.dnn.layers[at] for at in run])
            received = _crossing(problem, run.start) * number_bytes
            sent = _crossing(problem, run.stop) * number_bytes
            fixed += own + (received + sent) * samples
            held[index] = (per_sample + received) * samples * (m if is_gpipe else 1)
        now, most = 0.0, 0.0
        for kind, stage, _ in order:
            now += held[stage] if kind == "forward" else -held[stage]
            most = max(most, now)
        name = stages[device]["machines"]
        fullest[name] = max(fullest.get(name, 0.0), fixed + most)
    return fullest


def _crossing(problem: Problem, position: int) -> int:
    """Return the elements of one sample that cross the cut in front of a layer: each producer's once."""
    layers = problem.dnn.layers
    behind = {layer.name for layer in layers[position:]}
    return sum(
        layer.num_output_elements
        for layer in layers[:position]
        if any(reader in behind for reader in problem.dnn.graph.successors(layer.name))
    )
