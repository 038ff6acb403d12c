"""The family ``hybrid``: what a given layout of a transformer over tensor, context, pipeline, data and expert costs.

Costs stand in :mod:`planner.families.hybrid_cost`, rules in :mod:`planner.families.hybrid_rules`, the search in
:mod:`planner.families.hybrid_search`; see docs/hybrid.md.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.families.hybrid_configuration import NAME, PINS, HybridConfiguration, layouts_of
from planner.families.hybrid_cost import SOFTWARE, HybridCost, cost_of_machines
from planner.families.hybrid_given import configuration_of
from planner.families.hybrid_launch import launch_words, options
from planner.models.layouts import Layouts
from planner.models.transformer_operators import flop_per_sample
from planner.models.transformer_time import PARTS
from planner.plan import Prediction
from planner.problem import Problem
from planner.timeline import Timeline
from planner.units import Dimension, format_human

__all__ = [
    "DECISIONS",
    "NAME",
    "NOT_MODELLED",
    "HybridConfiguration",
    "configuration_of",
    "explain",
    "predict",
    "timeline",
]

NOT_MODELLED = (
    "convergence and accuracy: batch and layout do not change what is learned, but for rounding",
    "stragglers, failures, checkpoints, and devices of different kinds in one layout",
    "experts that get unlike numbers of tokens",
    "slower kernels where memory is nearly full, and memory that lies in pieces",
    "host memory, where the optimiser's state lies there",
)
DECISIONS = frozenset((*PINS, "schedule", "zero_bubble", "num_microbatches", "num_devices", "num_machines", "device"))
_EXCHANGES = ("tensor", "expert", "context", "pipeline", "data")
_MOST_STAGES = 8  # whose room is printed one by one


def predict(problem: Problem, configuration: HybridConfiguration) -> Prediction:
    """Return what a layout costs: seconds by part, and bytes of the fullest stage.

    Parts are those of :mod:`planner.models.transformer_time`, as far as nothing hides them, and waiting for input.
    """
    cost = cost_of_machines(problem, configuration.machines, configuration.global_batch_size)
    layout = layout_of(configuration)
    found = cost.parts(layout)
    stall_s = float(cost.stalls_s(layout, found["total"])[0])
    parts = {name: float(found[name][0]) for name in PARTS} | {"input_stall": stall_s}
    iteration_s = sum(parts.values())
    samples, epochs = problem.training.dataset_samples, problem.training.epochs
    epoch_s = None if samples is None else iteration_s * samples / configuration.global_batch_size
    alone = cost.parts(replace(layout, overlaps_data=np.array([False]), overlaps_tensor=np.array([False])))
    exchange = {name: float(alone[name][0]) for name in _EXCHANGES}
    memory = {name: float(array[0]) for name, array in cost.memory(layout).items()}
    return Prediction(
        iteration_time_s=iteration_s,
        epoch_time_s=epoch_s,
        training_time_s=None if epoch_s is None or epochs is None else epoch_s * epochs,
        breakdown_s=parts,
        communication_s=exchange,
        scaling_factor=parts["compute"] / iteration_s,
        communication_to_computation=sum(exchange.values()) / parts["compute"],
        memory_bytes={**memory, "limit": cost.memory_limit_bytes},
        relative_error=_band(cost),
        details=_details(cost, configuration, layout, parts, iteration_s),
    )


def layout_of(configuration: HybridConfiguration) -> Layouts:
    """Return a configuration as an array of one layout."""
    return layouts_of(
        {name: np.array([code]) for name, code in configuration.codes().items()}, configuration.global_batch_size
    )


def _band(cost: HybridCost) -> dict[str, Any] | None:
    """Return the error of the family of measurements nearest to the question, where there is one."""
    bands = cost.problem.transformer_rates.get("bands", {})
    name = _NEAREST.get(cost.group.device.name, "")
    band = bands.get(name, {})
    if band.get("coverage") is None:
        return None
    return {**{key: band[key] for key in ("low", "high", "coverage")}, "from": name, "conditions": _CONDITIONS[name]}


_NEAREST = {  # the family of measurements of a device
    "a100-sxm4-80gb": "vtrain-multi",
    "h100-sxm": "llm-foundry",
    "b200-sxm": "simumax-b200",
}
_CONDITIONS = {
    "vtrain-multi": "GPT of 3.6 to 175 billion parameters on 64 to 512 A100s, Megatron-LM",
    "llm-foundry": "MPT of 0.1 to 70 billion parameters on 8 to 512 H100s, fully sharded data parallelism",
    "simumax-b200": "the networks of SimuMax on B200s, Megatron-Core",
}


def _details(
    cost: HybridCost,
    configuration: HybridConfiguration,
    layout: Layouts,
    parts: dict[str, float],
    iteration_s: float,
) -> dict[str, Any]:
    """Return the family's own figures."""
    devices, batch = configuration.num_devices, configuration.global_batch_size
    stages, limit = cost.stage_memory(layout)["total"], cost.memory_limit_bytes
    tokens = batch * cost.transformer.sequence_length
    flop = batch * flop_per_sample(cost.transformer).total_flop
    return {
        "batch_per_device": -(-batch // devices),
        "global_batch_size": batch,
        "num_devices": devices,
        "num_machines": -(-devices // cost.group.devices_per_machine),
        "num_microbatches": configuration.num_microbatches,
        "staleness": 0,
        "software": SOFTWARE,
        "bubble": parts["bubble"] / (iteration_s - parts["bubble"]),
        "tokens_per_s": tokens / iteration_s,
        "flop_utilisation": flop / iteration_s / devices / cost.rates.peak_flop_per_s,
        "is_calibrated": cost.is_calibrated,
        "stages": [
            {"memory_bytes": float(held), "room_bytes": limit - float(held) if limit < float("inf") else None}
            for held in stages
        ],
        "options": list(options(cost.transformer, configuration)),
    }


# -- in words --------------------------------------------------------------------------------------------------------


def explain(problem: Problem, configuration: HybridConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds, how much room every stage has, and how the layout is launched."""
    cost = cost_of_machines(problem, configuration.machines, configuration.global_batch_size)
    parts, total = prediction.breakdown_s, prediction.iteration_time_s
    shares = {
        "computation": parts["compute"] + parts["optimizer"],
        "computing again": parts["recompute"],
        "tensor-parallel exchange": parts["tensor"],
        "exchange between experts": parts["expert"],
        "context-parallel exchange": parts["context"],
        "launching kernels": parts["launch"],
        "the pipeline's bubble": parts["bubble"],
        "transfers between stages": parts["pipeline"],
        "exchange between replicas": parts["data"],
        "input": parts["input_stall"],
    }
    listed = sorted(shares, key=lambda name: -shares[name])
    rest = [f"{name} {shares[name] / total:.0%}" for name in listed[1:] if shares[name] >= 0.005 * total]
    lines = [f"{listed[0]} binds: {shares[listed[0]] / total:.0%} of an iteration" + "; ".join(["", *rest])]
    details = prediction.details
    lines.append(
        f"{details['tokens_per_s']:,.0f} tokens/s; {details['flop_utilisation']:.0%} of the devices' peak goes into "
        f"the network's own FLOP"
    )
    lines += _memory_lines(prediction)
    lines += launch_words(cost.transformer, configuration)
    if not details["is_calibrated"]:
        lines.append(
            f"{cost.group.device.name} is uncalibrated for transformers: the efficiencies are those of another device"
        )
    return tuple(lines)


def _memory_lines(prediction: Prediction) -> list[str]:
    """Return the room of every stage, or that it does not fit."""
    rows, limit = prediction.details["stages"], prediction.memory_bytes["limit"]
    if limit == float("inf"):
        return []
    rooms = [row["room_bytes"] for row in rows]
    least = min(range(len(rows)), key=lambda index: float(rooms[index]))
    if rooms[least] < 0:
        missing, held = (format_human(one, Dimension.DATA, 4) for one in (-rooms[least], limit - rooms[least]))
        return [f"it does not fit: a device of stage {least + 1} would hold {held}, {missing} more than it may"]
    words = [format_human(room, Dimension.DATA) for room in rooms]
    if len(words) > _MOST_STAGES:
        return [f"room on a device: {words[least]} on stage {least + 1} of {len(words)}, {words[-1]} on the last"]
    return [f"room on a device, stage by stage: {', '.join(words)}"]


def timeline(problem: Problem, configuration: HybridConfiguration) -> Timeline | None:
    """Return None: closed forms have no schedule to draw."""
    del problem, configuration
    return None
