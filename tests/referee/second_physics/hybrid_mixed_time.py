"""Seconds of layouts on unlike machines, counted again: the schedule replayed, kernels at the peak, exchange."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.checks import SAME, Finding, agree, agreement
from planner.cluster import Device, MachineGroup
from planner.plan import Prediction
from planner.problem import Problem
from planner.transformer import LayerKind, Transformer
from tests.referee.second_physics.facts import groups_of, holds
from tests.referee.second_physics.hybrid_layer import layer_of
from tests.referee.second_physics.hybrid_memory import counted as counted_block
from tests.referee.second_physics.hybrid_memory import in_order, kinds_of
from tests.referee.second_physics.hybrid_program import state_bytes
from tests.referee.second_physics.hybrid_time import flop_per_token, layers_flop

__all__ = ["Rows", "devices_of", "replay_s", "time_findings"]


_MOST_TASKS = 400_000
_BEHIND = ("data", "optimizer", "input_stall")
_MASTER_BYTES = 4  # of a parameter, which is read and written like the optimiser's state
Rows = Sequence[Mapping[str, Any]]


def devices_of(problem: Problem, block: Mapping[str, Any]) -> dict[str, int]:
    """Return the devices of each group; of equal machines one group after the other is filled."""
    each = block["tensor"] * block["context"]
    found: dict[str, int] = {}
    unnamed = 0
    if block.get("replicas"):
        for one in block["replicas"]:
            found[one["machines"]] = found.get(one["machines"], 0) + each * block["pipeline"] * one["data"]
        return found
    for stage in block["stages"]:
        name, count = stage.get("machines"), each * block["data"]
        if name is None:
            unnamed += count
        else:
            found[name] = found.get(name, 0) + count
    groups = groups_of(problem)
    for name, group in groups.items():
        taken = min(unnamed, group.count * group.devices_per_machine)
        unnamed -= taken
        if taken:
            found[name] = found.get(name, 0) + taken
    if unnamed:  # more than there are: the checker of limits says so
        found[next(iter(groups))] = found.get(next(iter(groups)), 0) + unnamed
    return found


def replay_s(view: Mapping[str, Any], rows: Rows) -> float:
    """Return the seconds from the first forward to the end of the last backward of one class of replicas.

    Each stage does its tasks in the order of 1F1B, each as soon as what it reads has come, and computes nothing while
    it sends.
    """
    number, stages = view["num_microbatches"], len(rows)
    plain = {**view, "data": 1, "microbatch": 1, "global_batch_size": number}
    orders = [list(in_order(plain, stage)) for stage in range(stages)]
    at, clock = [0] * stages, [0.0] * stages
    ended: dict[tuple[str, int, int], float] = {}
    is_moving = True
    while is_moving:
        is_moving = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                name, _, batch = order[at[stage]]
                if name == "F":
                    ready = 0.0 if stage == 0 else ended.get(("F", stage - 1, batch))
                    took = rows[stage]["forward_s"] + rows[stage]["sent_forward_s"]
                else:
                    other = ("F", stage, batch) if stage == stages - 1 else ("B", stage + 1, batch)
                    ready, took = ended.get(other), rows[stage]["backward_s"] + rows[stage]["sent_backward_s"]
                if ready is None:
                    break
                clock[stage] = max(clock[stage], ready) + took
                ended[name, stage, batch] = clock[stage]
                at[stage] += 1
                is_moving = True
    return max(clock) if all(done == len(order) for done, order in zip(at, orders, strict=True)) else float("inf")


def time_findings(
    problem: Problem,
    network: Transformer,
    block: Mapping[str, Any],
    views: Sequence[tuple[Mapping[str, Any], list[MachineGroup]]],
    found: Prediction,
) -> Iterator[Finding]:
    """Yield whether the step follows from its stages, and whether these are no quicker than can be."""
    parts, stated = found.breakdown_s, list(found.details.get("stages", []))
    yield agreement("seconds by part", [("sum of all parts", found.iteration_time_s, sum(parts.values()))])
    size = block["pipeline"]
    classes = [stated[start : start + size] for start in range(0, len(stated), size)]
    tasks = sum(2 * view["num_microbatches"] * size for view, _ in views)
    if len(classes) == len(views) and tasks <= _MOST_TASKS:
        replayed = max(replay_s(view, rows) for (view, _), rows in zip(views, classes, strict=True))
        scheduled = found.iteration_time_s - sum(parts[name] for name in _BEHIND)
        text = f"replayed in plain loops the schedule takes {replayed:.9g} s"
        yield holds("replay", agree(scheduled, replayed), text, f"{text}, and its parts make {scheduled:.9g} s")
    tail = max((row["exchange_s"] + row["optimizer_s"] for row in stated), default=0.0)
    yield agreement("behind the schedule", [("data and optimizer", parts["data"] + parts["optimizer"], tail)])
    dtype = problem.training.dtype
    for (view, groups), rows in zip(views, classes, strict=False):
        yield from _no_quicker(network, counted_block(problem, view), rows, [group.device for group in groups], dtype)
    yield _exchanged(network, block, [group for _, groups in views for group in groups], stated)
    yield from _figures(problem, network, block, found)


def _peak(device: Device, dtype: str) -> float:
    """Return a device's FLOP/s of a data type."""
    return device.peak_flop_per_s.get(dtype) or max(device.peak_flop_per_s.values(), default=1.0)


def _no_quicker(
    network: Transformer, view: Mapping[str, Any], rows: Rows, devices: Sequence[Device], dtype: str
) -> Iterator[Finding]:
    """Yield whether every stage takes as long as its FLOP at its device's peak, and its weights at the bandwidth.

    Logits count on the last stage.
    """
    words = network.vocabulary_size if network.head == "language" else 0
    logits = 2 * network.hidden_size * words
    tokens = view["microbatch"] * network.sequence_length / view["context"] / view["tensor"]
    wrong, held = [], kinds_of(network, [row["layers"] for row in rows])
    for stage, (row, device, own) in enumerate(zip(rows, devices, held, strict=True)):
        took = row["forward_s"] + row["backward_s"]
        once, again = layers_flop(network, view, own)
        flop = tokens * (3 * once + again + (3 * logits if stage == len(rows) - 1 else 0.0))
        read = 2.0 * sum(layer_of(network, view, kind).read for kind in own)
        least = max(flop / _peak(device, dtype), 3 * read / device.memory_bandwidth_bytes_per_s)
        moved = 2 * (_MASTER_BYTES + state_bytes(view))
        state = moved * _state_share(network, view, own) / device.memory_bandwidth_bytes_per_s
        if took < least * (1 - SAME) or row["optimizer_s"] < state * (1 - SAME):
            wrong.append(stage + 1)
    yield holds(
        "work by stage", not wrong, "no less than FLOP and bytes of each device", f"stages {wrong} are too quick"
    )


def _state_share(network: Transformer, view: Mapping[str, Any], kinds: Sequence[LayerKind]) -> float:
    """Return the parameters of some layers of which a device keeps the optimiser's state."""
    plain = {**view, "tensor": 1, "expert": 1, "expert_tensor": 1}
    whole = sum(layer_of(network, plain, kind).read for kind in kinds)
    ranks = view["data"] * view["context"] if view["zero"] else view["expert"]
    return float(whole / view["tensor"] / ranks)


def _exchanged(network: Transformer, block: Mapping[str, Any], groups: Sequence[MachineGroup], stated: Rows) -> Finding:
    """Return whether gradients that no pass of a micro-batch could hide take as long as they must.

    A rank sends no less than the gradients of its layers, once and back, less a share of its own; inside a machine that
    is no quicker than its link. What one micro-batch computes may hide that much and no more.
    """
    ranks = block["data"] * block["context"]
    if ranks == 1 or network.experts is not None:
        return Finding(name="gradients", is_ok=True, text="none that all ranks exchange, or not looked at")
    wrong = []
    for stage, row in enumerate(stated):
        group = groups[stage]
        rate = max(group.inside.bandwidth_bytes_per_s if group.inside is not None else 0.0, 1.0)
        shared = min(layer_of(network, block, kind).shared for kind in network.kind_counts) * row["layers"] * 2.0
        least = 2 * (ranks - 1) / ranks * shared / rate if group.inside is not None else 0.0
        hidden = (row["forward_s"] + row["backward_s"]) if block["overlap_data"] else 0.0
        if row["exchange_s"] + hidden < least * (1 - SAME):
            wrong.append(stage + 1)
    return holds("gradients", not wrong, "no quicker than a machine's link", f"those of stages {wrong} are too quick")


def _figures(problem: Problem, network: Transformer, block: Mapping[str, Any], found: Prediction) -> Iterator[Finding]:
    """Yield whether what the plan says beside its parts follows from them."""
    details, whole_s, batch = found.details, found.iteration_time_s, block["global_batch_size"]
    devices, groups = devices_of(problem, block), groups_of(problem)
    bubble_s = found.breakdown_s["bubble"]
    peak = sum(count * _peak(groups[name].device, problem.training.dtype) for name, count in devices.items())
    rows = [
        ("num_devices", details["num_devices"], sum(devices.values())),
        ("global_batch_size", details["global_batch_size"], batch),
        ("tokens_per_s", details["tokens_per_s"], batch * network.sequence_length / whole_s),
        ("bubble", details["bubble"], bubble_s / (whole_s - bubble_s)),
    ]
    yield agreement("figures", rows)
    share = flop_per_token(network) * batch * network.sequence_length / whole_s / peak
    stated = details["flop_utilisation"]
    is_plain = network.head == "language" and network.image is None and not network.has_pooler
    is_ok = agree(stated, share) if is_plain else stated >= share * (1 - SAME)
    text = f"{share:.6g} of the devices' peak by the closed formula"
    yield holds("FLOP of the step", is_ok, text, f"{text}, and {stated:.9g} is stated")
