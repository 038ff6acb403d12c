"""Layouts whose stages turn at the last device, and DualPipe: what follows from the block alone, counted again.

Device d holds the chunks d and ``2 p - 1 - d`` of a V; under DualPipe the stages d and ``p - 1 - d``, each for half of
the micro-batches. Counted are the weights and the least and most activations of every device, and that the step is no
less than what its busiest device computes and sends. Orders themselves are held against a programme in
``tests/referee/test_schedules.py``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.checks import SAME, Finding, agree, agreement, holds
from planner.plan import Prediction
from planner.problem import Problem
from planner.transformer import Transformer
from tests.referee.second_physics.hybrid_layer import layer_of
from tests.referee.second_physics.hybrid_memory import counted, ends_of, kinds_of
from tests.referee.second_physics.hybrid_program import program_of

__all__ = ["folded_cuts", "folded_findings", "is_folded"]

_DEVICE = ("compute", "recompute", "tensor", "expert", "context", "launch")
_BEHIND = ("data", "optimizer", "input_stall")
# Chunks that a device of p holds at its fullest moment, at least and at most: the papers' figures.
_HELD = {
    "zb_v": lambda p: (2 * p, 2 * p),
    "v_half": lambda p: (p - 1, p + 3),
    "v_min": lambda p: (2 * p / 3 - 1, 2 * p / 3 + 3),
    "dualpipe": lambda p: (p + 1, p + 1),
    "dualpipe_v": lambda p: (2 * p + 1, 2 * p + 1),
}


def is_folded(block: Mapping[str, Any]) -> bool:
    """Return whether the first device has both ends of the network."""
    return block["schedule"] in _HELD


def folded_cuts(network: Transformer, block: Mapping[str, Any]) -> list[int]:
    """Return the layers of every chunk: as listed, else evenly, the first device less than others, then the last ones.

    Of an odd number the chunk on the way back has more.
    """
    if block.get("stages"):
        return [one["layers"] for one in block["stages"]]
    size = block["pipeline"] // 2 if block["schedule"] == "dualpipe" else block["pipeline"]
    held = [0] * size
    for number in range(network.num_layers):
        held[[*range(1, size), 0][number % size]] += 1
    return [one // 2 for one in held] + [one - one // 2 for one in reversed(held)]


def folded_findings(
    problem: Problem, network: Transformer, block: Mapping[str, Any], found: Prediction
) -> Iterator[Finding]:
    """Yield whether devices, their weights, activations and seconds are what the block says."""
    stages, p, is_dual = found.details.get("stages", []), block["pipeline"], block["schedule"] == "dualpipe"
    whole = counted(problem, block)
    if len(stages) != p or any(len(row[f"{way}_s"]) != 2 for row in stages for way in ("forward", "backward")):
        yield Finding(name="seconds by stage", is_ok=False, text="they are not stated for every device and chunk")
        return
    cuts = folded_cuts(network, block)
    is_cut = sum(cuts) == network.num_layers and len(cuts) == p * (1 if is_dual else 2)
    yield holds("layers", is_cut, f"{network.num_layers} layers", f"{cuts} are not {network.num_layers} layers")
    number = block["global_batch_size"] // (block["data"] * block["microbatch"])
    each, transfer_s = number / 2 if is_dual else number, found.details["transfer_s"]
    busy_s = []
    for device, row in enumerate(stages):
        # Both ends send once less each; so does the turn of a V, where nothing leaves the device.
        is_end = device in (0, p - 1)
        sends = 4 - 2 * (is_end and p > 1)
        busy_s.append(sum(row["forward_s"]) + sum(row["backward_s"]) + sends * transfer_s)
    parts = found.breakdown_s
    stated_s = sum(parts[name] for name in _DEVICE) + parts["pipeline"]
    yield agreement("computing and sending", [("of the busiest device", stated_s, each * max(busy_s))])
    yield agreement("seconds by part", [("sum of all parts", found.iteration_time_s, sum(parts.values()))])
    step_s = found.iteration_time_s - sum(parts[name] for name in _BEHIND)
    yield holds(
        "step", step_s >= each * max(busy_s) * (1 - SAME), f"{step_s:.6g} s", f"{step_s:.9g} s, and a device works more"
    )
    kinds, layers = kinds_of(network, cuts), {kind: layer_of(network, whole, kind) for kind in {*network.layer_kinds}}
    first, last = ends_of(network, {**whole, "pipeline": 1})  # on one device a tied embedding is there once
    ranks = block["data"] * block["context"] * (2 if is_dual else 1)
    least, most = _HELD[block["schedule"]](p)
    for device, row in enumerate(stages):
        own = [kinds[device], kinds[-1 - device]]
        held = [layers[kind] for chunk in own for kind in chunk]
        ends = first + last if device in ((0, p - 1) if is_dual else (0,)) else 0.0
        shared, routed = sum(one.shared for one in held) + ends, sum(one.routed for one in held)
        if block["zero"] >= 3:
            shared, routed = shared / ranks, routed * block["expert"] * block["expert_tensor"] / block["tensor"] / ranks
        weights = program_of(whole).weight * (shared + routed)
        stated = row["terms_bytes"]["weights"]
        yield holds(
            f"weights {device}", agree(stated, weights), f"{stated:.6g}", f"{stated:.9g}, counted {weights:.9g}"
        )
        kept = [sum(layers[kind].kept for kind in chunk) for chunk in own]
        activations = row["terms_bytes"]["activations"]
        is_enough = activations >= min(least, 2 * each) * min(kept) * (1 - SAME)
        is_within = bool(ends) or activations <= most * max(kept) * (1 + SAME)
        text = f"{activations:.6g} bytes of chunks of {kept}"
        yield holds(f"activations {device}", is_enough and is_within, text, f"{text}: {least} to {most} are held")
