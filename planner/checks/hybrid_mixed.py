"""Hybrid layouts with unlike stages or unlike replicas: what they use, and bytes and seconds counted a second time.

Whole numbers: layers, replicas, micro-batches and devices add up, in plain loops. Bytes: those of
:mod:`planner.checks.hybrid_memory`, stage by stage, with the layers that are listed. Seconds: from what the plan says
that each stage computes and sends for a micro-batch the step is replayed task by task, class by class; these seconds
are held against multiply-adds at the peak of the stage's own device, and its weights at its memory's bandwidth; and
gradients of a stage against the bytes that must leave a machine of the kind with the narrowest links. Nothing is taken
from the cost model.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.checks.facts import Facts, groups_of, holds
from planner.checks.hybrid_layer import layer_of
from planner.checks.hybrid_memory import counted as counted_block
from planner.checks.hybrid_memory import in_order, reserve_of, rows_of
from planner.checks.hybrid_program import program_finding
from planner.checks.hybrid_time import flop_per_token, forward_again
from planner.checks.report import SAME, Finding, agree, agreement
from planner.cluster import Device, MachineGroup
from planner.plan import Prediction
from planner.problem import Problem
from planner.transformer import Transformer

__all__ = ["facts_of", "is_mixed", "replay_s"]

_TERMS = ("weights", "gradients", "optimizer", "activations", "temporary", "reserve")
_SMALL = 1e-3  # by which bytes may stay below a count that leaves something out of a head
_MOST_TASKS = 400_000
_BEHIND = ("data", "optimizer", "input_stall")
_STATE_BYTES = 24  # of a parameter: master copy and two moments, read and written

Rows = Sequence[Mapping[str, Any]]


def is_mixed(block: Mapping[str, Any]) -> bool:
    """Whether a block lists stages."""
    return bool(block.get("stages"))


def facts_of(problem: Problem, block: Mapping[str, Any], found: Prediction) -> Facts:
    """Return what a layout uses, by its block alone; the bytes of a device are the most that either count says."""
    network = problem.dnn.transformer
    assert network is not None, "a block that can be predicted has a transformer"
    groups = groups_of(problem)
    devices = _devices(problem, block)
    machines = {name: -(-count // groups[name].devices_per_machine) for name, count in devices.items()}
    kinds = list(dict.fromkeys(groups[name].device.name for name in devices))
    findings = list(_division(network, block))
    held: dict[str, float] = {}
    if all(one.is_ok for one in findings):
        views = list(_views(problem, block))
        findings += _memory(problem, network, views, found, held)
        findings += _time(problem, network, block, views, found)
    findings.append(program_finding(problem, found))
    stated = found.details.get("stages", [])
    for name in devices:
        own = [row["memory_bytes"] for row in stated if row["machines"] in (name, None)]
        held[name] = max([held.get(name, 0.0), *own])
    return Facts(
        machines=machines,
        devices=devices,
        memory_bytes=held,
        decisions={
            **_decisions(block),
            "device": kinds[0] if len(kinds) == 1 else kinds,
            "num_devices": sum(devices.values()),
            "num_machines": sum(machines.values()),
        },
        global_batch_size=block["global_batch_size"],
        findings=tuple(findings),
    )


def _devices(problem: Problem, block: Mapping[str, Any]) -> dict[str, int]:
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


def _decisions(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the block says about each key of ``fix``."""
    numbers = {one["num_microbatches"] for one in block.get("replicas") or ()}
    even = block["global_batch_size"] // (block["data"] * block["microbatch"])
    return {
        "tensor_parallel_size": block["tensor"],
        "context_parallel_size": block["context"],
        "pipeline_parallel_size": block["pipeline"],
        "num_stages": block["pipeline"],
        "data_parallel_size": block["data"],
        "expert_parallel_size": block["expert"],
        "chunks_per_device": block["interleave"],
        "microbatch_size": block["microbatch"],
        "num_microbatches": even if not numbers else numbers.pop() if len(numbers) == 1 else sorted(numbers),
        "zero_stage": block["zero"],
        "recompute": block["recompute"],
        "schedule": block["schedule"],
        "zero_bubble": False,
        "sequence_parallel": block["sequence_parallel"],
        "overlap_data": block["overlap_data"],
        "overlap_tensor": block["overlap_tensor"],
        "offload_optimizer": block["offload_optimizer"],
        "rank_order": block["order"],
    }


# -- whole numbers -----------------------------------------------------------------------------------------------------


def _division(network: Transformer, block: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether layers, replicas, micro-batches, heads and experts add up as the layout says."""
    tensor, context, batch = block["tensor"], block["context"], block["global_batch_size"]
    layers = [one["layers"] for one in block["stages"]]
    is_cut = sum(layers) == network.num_layers and len(layers) == block["pipeline"] and min(layers) >= 1
    text = f"{sum(layers)} layers on {len(layers)} stages"
    yield holds("layers", is_cut, text, f"{text}, of {network.num_layers} on {block['pipeline']}")
    plain = (block["schedule"], block["interleave"], block["offload_optimizer"]) == ("1f1b", 1, False)
    yield holds(
        "schedule", plain and block["zero"] <= 1, "plain 1F1B", "unlike stages go with plain 1F1B and ZeRO 0, 1"
    )
    rows = block.get("replicas") or [
        {"data": block["data"], "num_microbatches": batch // block["data"] // block["microbatch"]}
    ]
    samples = sum(one["data"] * one["num_microbatches"] for one in rows) * block["microbatch"]
    is_dealt = samples == batch and sum(one["data"] for one in rows) == block["data"]
    text = f"{samples} samples on {sum(one['data'] for one in rows)} replicas"
    yield holds("micro-batches", is_dealt, text, f"{text}, of {batch} on {block['data']}")
    heads, keys = network.num_heads, network.num_kv_heads
    is_even = heads % tensor == 0 and (keys % tensor == 0 or tensor % keys == 0)
    yield holds("heads", is_even, f"{heads} over {tensor}", f"{heads} and {keys} heads do not divide over {tensor}")
    length = network.sequence_length
    is_split = length % context == 0 and (not block["sequence_parallel"] or length // context % tensor == 0)
    yield holds("sequence", is_split, f"{length} over {context}", f"{length} tokens do not divide over {context}")
    number, expert = 1 if network.experts is None else network.experts.num_experts, block["expert"]
    is_spread = number % expert == 0 and all(one["data"] * context % expert == 0 for one in rows)
    yield holds("experts", is_spread, f"{number} over {expert}", f"{number} experts do not spread over {expert} ranks")


# -- views: each class of replicas as a block of its own ---------------------------------------------------------------


def _views(problem: Problem, block: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], list[MachineGroup]]]:
    """Yield each class of replicas: a block with its micro-batches, and the machines of its stages."""
    groups = groups_of(problem)
    first = next(iter(groups.values()))
    for one in block.get("replicas") or ():
        yield _with_number(block, one["num_microbatches"]), [groups[one["machines"]]] * block["pipeline"]
    if not block.get("replicas"):
        number = block["global_batch_size"] // (block["data"] * block["microbatch"])
        names = [stage.get("machines") for stage in block["stages"]]
        yield _with_number(block, number), [first if name is None else groups[name] for name in names]


def _with_number(block: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return a block in which every replica does so many micro-batches."""
    batch = number * block["data"] * block["microbatch"]
    return {**block, "num_microbatches": number, "global_batch_size": batch}


def _limit(problem: Problem, group: MachineGroup) -> float:
    """Return what a device may hold."""
    limit = problem.limits.memory_per_device_bytes
    return min(group.device.memory_bytes, float("inf") if limit is None else limit)


def _memory(
    problem: Problem,
    network: Transformer,
    views: Sequence[tuple[Mapping[str, Any], list[MachineGroup]]],
    found: Prediction,
    held: dict[str, float],
) -> Iterator[Finding]:
    """Yield whether every term of every stage is what is counted, and is within what its device may hold.

    ``held`` takes in the bytes on the fullest device of each group, as they are counted here.
    """
    stated: Rows = found.details.get("stages", [])
    reserve = reserve_of(problem, [group.device for _, groups in views for group in groups])  # the same for all
    counted = []
    for view, groups in views:
        for row, group in zip(rows_of(network, counted_block(problem, view)), groups, strict=True):
            counted.append({**row, "reserve": reserve, "limit": _limit(problem, group)})
            held[group.name] = max(held.get(group.name, 0.0), sum(counted[-1][name] for name in _TERMS))
    if len(stated) != len(counted):
        yield Finding(name="memory stages", is_ok=False, text=f"{len(stated)} are stated, and there are {len(counted)}")
        return
    is_whole = network.head == "language" and network.image is None and not network.has_pooler
    is_whole = is_whole and not network.has_embedding_norm
    for term in _TERMS:
        pairs = [(row["terms_bytes"][term], other[term]) for row, other in zip(stated, counted, strict=True)]
        wrong = [
            (one, other)
            for one, other in pairs
            if (abs(one - other) > SAME * other + 1 if is_whole else one < other * (1 - _SMALL) - 1)
        ]
        text = f"{wrong[0][0]:.9g} bytes are stated, and {wrong[0][1]:.9g} counted" if wrong else ""
        yield holds(f"memory {term}", not wrong, "as counted on every stage", text)
    rooms = [agree(row["limit_bytes"], other["limit"]) for row, other in zip(stated, counted, strict=True)]
    sums = [agree(row["memory_bytes"], sum(row["terms_bytes"].values())) for row in stated]
    yield holds("memory by stage", all(sums), "terms sum up on every stage", "the terms of a stage do not sum up")
    yield holds("limits by stage", all(rooms), "those of each device", "a stage's limit is not that of its device")
    fullest = max(stated, key=lambda row: (row["memory_bytes"] / row["limit_bytes"], row["memory_bytes"]))
    is_it = agree(fullest["memory_bytes"], found.memory_bytes["total"])
    is_it = is_it and agree(fullest["limit_bytes"], found.memory_bytes["limit"])
    yield holds(
        "memory of the fullest device", is_it, "of the stage with least room", "not of the stage with least room"
    )


# -- seconds -----------------------------------------------------------------------------------------------------------


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


def _time(
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

    Layers of different sorts count by their mean, as the cost model deals them out; logits count on the last stage.
    """
    kinds, count = network.layer_kinds, network.num_layers
    words = network.vocabulary_size if network.head == "language" else 0
    logits = 2 * network.hidden_size * words
    tokens = view["microbatch"] * network.sequence_length / view["context"] / view["tensor"]
    both = (flop_per_token(network) - 3 * logits) * tokens / count
    again = 1.0 + forward_again(network, view) / 3
    read = 2.0 * sum(layer_of(network, view, kind).read * kinds.count(kind) for kind in dict.fromkeys(kinds)) / count
    wrong = []
    for stage, (row, device) in enumerate(zip(rows, devices, strict=True)):
        took = row["forward_s"] + row["backward_s"]
        flop = row["layers"] * both * again + (3 * logits * tokens if stage == len(rows) - 1 else 0.0)
        least = max(flop / _peak(device, dtype), 3 * row["layers"] * read / device.memory_bandwidth_bytes_per_s)
        state = _STATE_BYTES * _state_share(network, view) * row["layers"] / device.memory_bandwidth_bytes_per_s
        if took < least * (1 - SAME) or row["optimizer_s"] < state * (1 - SAME):
            wrong.append(stage + 1)
    yield holds(
        "work by stage", not wrong, "no less than FLOP and bytes of each device", f"stages {wrong} are too quick"
    )


def _state_share(network: Transformer, view: Mapping[str, Any]) -> float:
    """Return the parameters of a layer of which a device keeps the optimiser's state, the mean of all sorts."""
    kinds = network.layer_kinds
    plain = {**view, "tensor": 1, "expert": 1}
    whole = sum(layer_of(network, plain, kind).read * kinds.count(kind) for kind in dict.fromkeys(kinds))
    ranks = view["data"] * view["context"] if view["zero"] else view["expert"]
    return float(whole / network.num_layers / view["tensor"] / ranks)


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
        shared = layer_of(network, block, "dense").shared * row["layers"] * 2.0
        least = 2 * (ranks - 1) / ranks * shared / rate if group.inside is not None else 0.0
        hidden = (row["forward_s"] + row["backward_s"]) if block["overlap_data"] else 0.0
        if row["exchange_s"] + hidden < least * (1 - SAME):
            wrong.append(stage + 1)
    return holds("gradients", not wrong, "no quicker than a machine's link", f"those of stages {wrong} are too quick")


def _figures(problem: Problem, network: Transformer, block: Mapping[str, Any], found: Prediction) -> Iterator[Finding]:
    """Yield whether what the plan says beside its parts follows from them."""
    details, whole_s, batch = found.details, found.iteration_time_s, block["global_batch_size"]
    devices, groups = _devices(problem, block), groups_of(problem)
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
