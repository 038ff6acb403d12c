"""Hybrid layouts with unlike stages or unlike replicas: what they use, and bytes and seconds counted a second time.

Whole numbers: layers, replicas, micro-batches and devices add up, in plain loops. Bytes: those of
:mod:`second_physics.hybrid_memory`, stage by stage, with the layers that are listed. Seconds: from what the plan says
that each stage computes and sends for a micro-batch the step is replayed task by task, class by class; these seconds
are held against multiply-adds at the peak of the stage's own device, and its weights at its memory's bandwidth; and
gradients of a stage against the bytes that must leave a machine of the kind with the narrowest links. Nothing is taken
from the cost model.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.checks import SAME, Finding, agree
from planner.cluster import MachineGroup
from planner.constraints import memory_limit_bytes
from planner.decisions import decided_by
from planner.plan import Prediction
from planner.problem import Problem
from planner.transformer import Transformer
from tests.referee.second_physics.facts import Facts, groups_of, holds
from tests.referee.second_physics.hybrid_memory import counted as counted_block
from tests.referee.second_physics.hybrid_memory import reserve_of, rows_of
from tests.referee.second_physics.hybrid_mixed_time import Rows, devices_of, time_findings
from tests.referee.second_physics.hybrid_program import program_finding

__all__ = ["facts_of", "is_mixed"]

_TERMS = ("weights", "gradients", "optimizer", "activations", "temporary", "reserve")


def is_mixed(block: Mapping[str, Any]) -> bool:
    """Whether a block lists stages in plain 1F1B, or replicas; other listed stages stand on one kind of machines."""
    is_plain = (block["schedule"], block["interleave"], block["offload_optimizer"]) == ("1f1b", 1, False)
    return bool(block.get("stages")) and is_plain


def facts_of(problem: Problem, block: Mapping[str, Any], found: Prediction) -> Facts:
    """Return what a layout uses, by its block alone; the bytes of a device are the most that either count says."""
    network = problem.dnn.transformer
    assert network is not None, "a block that can be predicted has a transformer"
    groups = groups_of(problem)
    devices = devices_of(problem, block)
    machines = {name: -(-count // groups[name].devices_per_machine) for name, count in devices.items()}
    kinds = list(dict.fromkeys(groups[name].device.name for name in devices))
    findings = list(_division(network, block))
    held: dict[str, float] = {}
    if all(one.is_ok for one in findings):
        views = list(_views(problem, block))
        findings += _memory(problem, network, views, found, held)
        findings += time_findings(problem, network, block, views, found)
    findings.append(program_finding(problem, found))
    stated = found.details.get("stages", [])
    for name in devices:
        own = [row["memory_bytes"] for row in stated if row["machines"] in (name, None)]
        held[name] = max([held.get(name, 0.0), *own])
    return Facts(
        family="hybrid",
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


def _decisions(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the block says about each key of ``fix``."""
    numbers = {one["num_microbatches"] for one in block.get("replicas") or ()}
    even = block["global_batch_size"] // (block["data"] * block["microbatch"])
    number = even if not numbers else numbers.pop() if len(numbers) == 1 else sorted(numbers)
    return {**decided_by("hybrid", block), "num_microbatches": number}


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
    is_spread = number % expert == 0 and all(
        tensor * one["data"] * context % (expert * block["expert_tensor"]) == 0 for one in rows
    )
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
            counted.append({**row, "reserve": reserve, "limit": memory_limit_bytes(problem, group)})
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
            if (abs(one - other) > SAME * other + 1 if is_whole else one < other * (1 - SAME) - 1)
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
