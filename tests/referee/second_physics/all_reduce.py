"""All-reduce plans: what they use, and the first-come-first-served channel replayed in plain loops (eq. 8)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from planner.checks import SAME, Finding
from planner.cost import Wait
from planner.plan import Prediction
from planner.problem import Problem
from planner.units import Dimension, parse
from tests.referee.second_physics.collectives import all_reduce_s
from tests.referee.second_physics.facts import Facts, groups_of, holds
from tests.referee.second_physics.network import Gradient, data_parallel_bytes, gradients_of, pass_s, stall_s, total

__all__ = ["facts_of", "replay_s"]

_Parts = Mapping[str, Mapping[str, int]]


def facts_of(problem: Problem, block: Mapping[str, Any], found: Prediction) -> Facts:
    """Return what an all-reduce plan uses, by its block alone; ``found`` only give seconds of mixed transfers."""
    groups, parts = groups_of(problem), _parts(problem, block)
    devices = {name: part["machines"] * part["devices_per_machine"] for name, part in parts.items()}
    batch = int(block["global_batch_size"])
    held = {name: ceil(part["batch_per_device"] / part["steps"]) for name, part in parts.items()}
    known = [name for name in parts if name in groups]
    sent = [_gradients_as_cut(problem, block) for name in known]
    return Facts(
        family="all_reduce",
        machines={name: part["machines"] for name, part in parts.items()},
        devices=devices,
        memory_bytes={name: data_parallel_bytes(problem, held[name]) for name in known},
        decisions=_decisions(problem, block, parts),
        global_batch_size=batch,
        iteration_s=_iteration_s(problem, block, parts, found.details) if known == list(parts) and sent else None,
        findings=(*_shares(batch, parts, devices), *_numbers(block, parts, devices), *_tensors(block, sent)),
    )


def _gradients_as_cut(problem: Problem, block: Mapping[str, Any]) -> list[Gradient]:
    """Return the gradients in ready order, of layers or of tensors: those of a framework's buckets are tensors."""
    carried = {name for group in block["fusion_groups"] for name in group["tensors"]}
    tensors = {tensor.name for layer in problem.dnn.layers for tensor in layer.tensors}
    layers = {layer.name for layer in problem.dnn.layers}
    if carried <= tensors and not carried <= layers:
        problem = replace(problem, calibration=replace(problem.calibration, fusion_unit="tensor"))
    return gradients_of(problem)


def _parts(problem: Problem, block: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return, by group, its machines, devices of each, largest share of a device, and micro-batches."""
    if block.get("groups"):
        return {
            name: {
                "machines": row["machines"],
                "devices_per_machine": row["devices_per_machine"],
                "batch_per_device": row["batch_per_device"],
                "steps": row.get("gradient_accumulation_steps") or 1,
            }
            for name, row in block["groups"].items()
        }
    chosen = block.get("machines") or _of_one_type(problem)
    left, parts = block["num_machines"], {}
    groups = groups_of(problem)
    share = ceil(block["global_batch_size"] / block["num_devices"])
    steps = block["gradient_accumulation_steps"]
    # Equal machines are interchangeable: those of the first groups are taken, the last group holds what is too many.
    for position, name in enumerate(chosen):
        there_are = groups[name].count if name in groups else left
        used = left if position == len(chosen) - 1 else min(left, there_are)
        if used:
            row = {"machines": used, "devices_per_machine": block["devices_per_machine"]}
            parts[name] = {**row, "batch_per_device": share, "steps": steps}
        left -= used
    return parts


def _of_one_type(problem: Problem) -> list[str]:
    """Return the groups of the pinned device, or those that are no CPUs beside accelerators."""
    groups, pinned = problem.cluster.machine_groups, problem.fixed.get("device")
    if pinned is not None:
        return [group.name for group in groups if group.device.name == pinned]
    accelerators = [group.name for group in groups if group.device.kind != "cpu"]
    return accelerators or [group.name for group in groups]


def _decisions(problem: Problem, block: Mapping[str, Any], parts: _Parts) -> dict[str, Any]:
    """Return what the plan says about each key of ``fix``."""
    groups = groups_of(problem)
    kinds = list(dict.fromkeys(groups[name].device.name for name in parts if name in groups))
    used = list(dict.fromkeys(one["algorithm"] for one in block["fusion_groups"]))
    shares = {part["batch_per_device"] for part in parts.values()}
    each = list(dict.fromkeys(part["devices_per_machine"] for part in parts.values()))
    wanted = problem.fixed.get("algorithm")
    return {
        "num_devices": block["num_devices"],
        "num_machines": block["num_machines"],
        "devices_per_machine": each[0] if len(each) == 1 else each,
        "gradient_accumulation_steps": max((part["steps"] for part in parts.values()), default=0),
        "device": kinds[0] if len(kinds) == 1 else kinds,
        # One device sends nothing, and a measured curve knows no algorithm.
        "algorithm": wanted if used in ([], ["measured"]) else used[0] if len(used) == 1 else used,
        "batch_shares": "equal" if len(shares) == 1 else "unequal",
    }


# -- findings of this family ---------------------------------------------------------------------------------------


def _shares(batch: int, parts: _Parts, devices: Mapping[str, int]) -> Iterator[Finding]:
    """Yield whether the shares make the batch, no device being left without a sample."""
    most = sum(devices[name] * part["batch_per_device"] for name, part in parts.items())
    yield holds(
        "shares",
        most >= batch >= sum(devices.values()),
        f"{batch} samples on {sum(devices.values())} devices, which may take up to {most}",
        f"the shares make at most {most} samples on {sum(devices.values())} devices; the batch is {batch}",
    )
    for name, part in parts.items():
        yield holds(
            f"micro-batches {name}",
            1 <= part["steps"] <= part["batch_per_device"],
            f"{part['batch_per_device']} samples in {part['steps']}",
            f"{part['batch_per_device']} samples cannot be split into {part['steps']}",
        )


def _numbers(block: Mapping[str, Any], parts: _Parts, devices: Mapping[str, int]) -> Iterator[Finding]:
    machines = sum(part["machines"] for part in parts.values())
    yield holds(
        "devices in all",
        block["num_devices"] == sum(devices.values()) and block["num_machines"] == machines,
        f"{block['num_devices']} on {block['num_machines']} machines",
        f"{block['num_devices']} devices on {block['num_machines']} machines are stated, and the groups have "
        f"{sum(devices.values())} on {machines}",
    )


def _tensors(block: Mapping[str, Any], sent: Sequence[Sequence[Gradient]]) -> Iterator[Finding]:
    """Yield whether the fusion groups carry every gradient once, in ready order, and as many bytes as they say."""
    if block["num_devices"] == 1 or not sent:
        return
    expected = [one.name for one in sent[0]]
    carried = [name for group in block["fusion_groups"] for name in group["tensors"]]
    faults = [f"{name} is missing" for name in expected if name not in carried]
    faults += [f"{name} is no gradient" for name in dict.fromkeys(carried) if name not in expected]
    faults += [f"{name} stands twice" for name in dict.fromkeys(carried) if carried.count(name) > 1]
    if not faults and carried != expected:
        faults = ["they are not in ready order"]
    yield holds("gradients", not faults, f"all {len(expected)}, each once", "; ".join(faults[:4]))
    size = {one.name: one.size_bytes for one in sent[0]}
    for index, group in enumerate(block["fusion_groups"]):
        bytes_in_all = total(size.get(name, 0.0) for name in group["tensors"])
        if abs(bytes_in_all - group["size_bytes"]) > SAME * max(bytes_in_all, 1.0):
            text = f"{group['size_bytes']:.12g} bytes are stated, and its gradients have {bytes_in_all:.12g}"
            yield Finding(name=f"fusion_groups.{index}", is_ok=False, text=text)


# -- a second opinion on the time ----------------------------------------------------------------------------------


def _iteration_s(problem: Problem, block: Mapping[str, Any], parts: _Parts, details: Mapping[str, Any]) -> float | None:
    """Return the iteration: computation, compression, the channel's queue, the update, and waiting for input.

    Everything counts from the iteration's start. A device starts its last backward pass when its other micro-batches
    are done; a gradient is ready when the last device has it. Each kind of device updates once it has computed and all
    is sent: the kind that computes longest need not be the one that updates longest.
    """
    groups = groups_of(problem)
    compression = block.get("compression")
    kept = 1.0 - compression["removed"] if compression else 1.0
    compress_s = parse(compression["time"], Dimension.TIME) / kept**2 if compression else 0.0
    overlaps = problem.calibration.strategy in ("mxnet", "caffe_mpi")
    update_s, busy_s = 0.0, 0.0
    ready_s: list[float] = []
    gradients = _gradients_as_cut(problem, block)
    for name, part in parts.items():
        profile = problem.profiles[groups[name].device.name]
        sizes = [(part["batch_per_device"] + one) // part["steps"] for one in range(part["steps"])]  # the largest last
        end_s = compress_s + total(pass_s(profile, way, one) for one in sizes for way in ("forward", "backward"))
        own_s = [end_s - pass_s(profile, "backward", sizes[-1], range(one.layer)) for one in gradients]
        own_s = own_s if overlaps else [end_s] * len(own_s)
        ready_s = [max(pair) for pair in zip(ready_s, own_s, strict=True)] if ready_s else own_s
        update_s = max(update_s, profile.update_s)
        busy_s = max(busy_s, end_s + profile.update_s)
    if block["num_devices"] > 1 and block["fusion_groups"]:
        seconds = _transfers_s(problem, block, parts, details, kept)
        if seconds is None or sum(len(group["tensors"]) for group in block["fusion_groups"]) != len(ready_s):
            return None
        finish_s = replay_s(problem, [len(g["tensors"]) for g in block["fusion_groups"]], ready_s, seconds)
        busy_s = max(busy_s, finish_s + update_s)
    read = sum(part["machines"] * part["devices_per_machine"] * part["batch_per_device"] for part in parts.values())
    waits_s = [
        stall_s(
            problem,
            groups[name],
            busy_s=busy_s,
            num_machines=block["num_machines"],
            devices_per_machine=part["devices_per_machine"],
            batch_per_device=part["batch_per_device"],
            whole_batch=min(read, block["global_batch_size"]),
        )
        for name, part in parts.items()
    ]
    return busy_s + max(waits_s)


def replay_s(problem: Problem, num_tensors: Sequence[int], ready_s: Sequence[float], seconds: Sequence[float]) -> float:
    """Return when the last group has been sent over one channel, first come first served.

    ``num_tensors`` of each group, ready times of all gradients, and seconds of each group's transfer.
    """
    wait, timeout_s = problem.calibration.wait, problem.calibration.timeout_s
    free_s, position = float("-inf"), 0
    for count, transfer_s in zip(num_tensors, seconds, strict=True):
        position += count
        full_s = ready_s[position - 1]
        waited_s = min(timeout_s, ready_s[position] - full_s) if position < len(ready_s) else 0.0
        if wait is Wait.NONE:
            start_s = max(free_s, full_s)
        elif wait is Wait.EXACT:
            start_s = max(free_s, full_s + waited_s)
        else:
            start_s = max(free_s, full_s) + waited_s
        free_s = start_s + transfer_s
    return free_s


def _transfers_s(
    problem: Problem, block: Mapping[str, Any], parts: _Parts, details: Mapping[str, Any], kept: float
) -> list[float] | None:
    """Return the seconds of every group's transfer: by the closed forms; of unequal devices, the cost model's."""
    groups = block["fusion_groups"]
    if block.get("groups") or "measured" in [group["algorithm"] for group in groups]:
        rows = details.get("schedule", [])
        return [row["end_s"] - row["start_s"] for row in rows] if len(rows) == len(groups) else None
    return [
        all_reduce_s(
            problem,
            group["algorithm"],
            group["size_bytes"] * kept,
            machines=block.get("machines") or list(parts),
            num_machines=block["num_machines"],
            devices_per_machine=block["devices_per_machine"],
        )
        for group in groups
    ]
