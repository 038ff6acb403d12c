"""The family ``hybrid``: what a given layout of a transformer over tensor, context, pipeline, data and expert costs.

Costs stand in :mod:`planner.families.hybrid.cost`, rules in :mod:`planner.families.hybrid.rules`, the search in
:mod:`planner.families.hybrid.search`; see docs/hybrid.md.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from planner.families.hybrid import given as hybrid_given
from planner.families.hybrid import mixed as hybrid_mixed
from planner.families.hybrid import mixed_given as hybrid_mixed_given
from planner.families.hybrid import mixed_timeline as hybrid_mixed_timeline
from planner.families.hybrid import timeline as hybrid_timeline
from planner.families.hybrid.configuration import NAME, PINS, HybridConfiguration, layouts_of
from planner.families.hybrid.cost import HybridCost, cost_of_machines
from planner.families.hybrid.defaults import left_out_words
from planner.families.hybrid.launch import launch_lines, launch_words, options
from planner.families.hybrid.launch_network import not_expressed
from planner.families.hybrid.machines import machines
from planner.families.hybrid.mixed_configuration import MixedConfiguration
from planner.families.hybrid.ranges import error_band, outside_words
from planner.models.layouts import Layouts
from planner.models.transformer_memory import TERMS
from planner.models.transformer_operators import flop_per_sample
from planner.models.transformer_time import PARTS, stage_times
from planner.plan import Prediction
from planner.problem import Problem
from planner.timeline import Timeline, repeated
from planner.units import Dimension, format_human

__all__ = [
    "DECISIONS",
    "FITTED",
    "NAME",
    "NOT_MODELLED",
    "TAKES_EXCLUSIONS",
    "HybridConfiguration",
    "configuration_of",
    "explain",
    "left_out",
    "machines",
    "predict",
    "timeline",
]

NOT_MODELLED = (
    "convergence and accuracy: batch and layout do not change what is learned, but for rounding",
    "stragglers, failures and checkpoints",
    "experts that get unlike numbers of tokens, beyond calibration.expert_imbalance",
    "slower kernels where memory is nearly full, and memory that lies in pieces",
    "host memory, where the optimiser's state lies there",
)
DECISIONS = frozenset((*PINS, "schedule", "zero_bubble", "num_microbatches", "num_devices", "num_machines", "device"))
FITTED = ("inside_efficiency", "bandwidth_efficiency")
TAKES_EXCLUSIONS = True
_EXCHANGES = ("tensor", "expert", "context", "pipeline", "data")
_MOST_STAGES = 8  # whose room is printed one by one


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> HybridConfiguration:
    """Return the configuration that a spec's block means; raise SpecError where it means none."""
    if hybrid_mixed_given.is_mixed(given):
        return hybrid_mixed_given.configuration_of(problem, given)
    even = {name: value for name, value in given.items() if name not in ("stages", "replicas")}
    return hybrid_given.configuration_of(problem, even)


def left_out(problem: Problem, given: Mapping[str, Any], configuration: HybridConfiguration) -> tuple[str, ...]:
    """Return what the layout has by default: ``overlap_data: on, as megatron-core has it``."""
    return tuple(left_out_words(problem, given, configuration.to_document()))


def predict(problem: Problem, configuration: HybridConfiguration) -> Prediction:
    """Return what a layout costs: seconds by part, and bytes of the fullest stage.

    Parts are those of :mod:`planner.models.transformer_time`, as far as nothing hides them, and waiting for input.
    """
    if isinstance(configuration, MixedConfiguration):
        return hybrid_mixed.predict(problem, configuration)
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
        relative_error=error_band(cost, configuration),
        details=_details(cost, configuration, layout, parts, iteration_s),
    )


def layout_of(configuration: HybridConfiguration) -> Layouts:
    """Return a configuration as an array of one layout."""
    return layouts_of(
        {name: np.array([code]) for name, code in configuration.codes().items()}, configuration.global_batch_size
    )


def _details(
    cost: HybridCost,
    configuration: HybridConfiguration,
    layout: Layouts,
    parts: dict[str, float],
    iteration_s: float,
) -> dict[str, Any]:
    """Return the family's own figures."""
    devices, batch = configuration.num_devices, configuration.global_batch_size
    held, limit = cost.stage_memory(layout), cost.memory_limit_bytes
    seconds, transfer_s = _stage_seconds(cost, layout)
    tokens = batch * cost.transformer.sequence_length
    flop = batch * flop_per_sample(cost.transformer).total_flop
    return {
        "batch_per_device": -(-batch // devices),
        "global_batch_size": batch,
        "num_devices": devices,
        "num_machines": -(-devices // cost.group.devices_per_machine),
        "num_microbatches": configuration.num_microbatches,
        "staleness": 0,
        "software": cost.program,
        "bubble": parts["bubble"] / (iteration_s - parts["bubble"]),
        "tokens_per_s": tokens / iteration_s,
        "flop_utilisation": flop / iteration_s / devices / cost.rates.peak_flop_per_s,
        "is_calibrated": cost.is_calibrated,
        "expert_imbalance": cost.expert_imbalance,
        "transfer_s": transfer_s,
        "stages": [
            {
                "memory_bytes": float(total),
                "room_bytes": limit - float(total) if limit < float("inf") else None,
                "terms_bytes": {name: float(held[name][index]) for name in TERMS},
                **seconds[index],
            }
            for index, total in enumerate(held["total"])
        ],
        "options": list(options(cost.transformer, configuration, cost.program)),
        "launch": list(launch_lines(cost.transformer, configuration, **_launch(cost)))
        if not not_expressed(cost.transformer)
        else [],
    }


def _launch(cost: HybridCost) -> dict[str, Any]:
    """Return what a launcher is told beside network and layout."""
    return {
        "program": cost.program,
        "dtype": cost.problem.training.dtype,
        "devices_per_machine": cost.group.devices_per_machine,
    }


def _stage_seconds(cost: HybridCost, layout: Layouts) -> tuple[list[dict[str, list[float]]], float]:
    """Return what every stage takes for a micro-batch, chunk by chunk, sending left out; and one chunk's transfer.

    What the first stage has more than others lies on its first chunk, what the last has more on its last.
    """
    stages, chunks = int(layout.pipeline[0]), int(layout.interleave[0])
    interval = cost.interval(layout)
    times = stage_times(cost.transformer, layout, interval)
    (ahead_s, both_s), first, last = (
        tuple(float(np.broadcast_to(one, 1)[0]) for one in times[name]) for name in ("middle", "first", "last")
    )
    rows = [
        {"forward_s": [ahead_s / chunks] * chunks, "backward_s": [(both_s - ahead_s) / chunks] * chunks}
        for _ in range(stages)
    ]
    for row, chunk, (forward_s, more_s) in ((rows[0], 0, first), (rows[-1], -1, last)):
        row["forward_s"][chunk] += forward_s
        row["backward_s"][chunk] += more_s - forward_s
    return rows, float(interval["transfer"][0]) if stages > 1 else 0.0


# -- in words --------------------------------------------------------------------------------------------------------


def explain(problem: Problem, configuration: HybridConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds, how much room every stage has, and how the layout is launched."""
    lines = [_binding_line(prediction)]
    if isinstance(configuration, MixedConfiguration):
        return (*lines, *hybrid_mixed.explain(problem, configuration, prediction))
    cost = cost_of_machines(problem, configuration.machines, configuration.global_batch_size)
    details = prediction.details
    lines.append(
        f"{details['tokens_per_s']:,.0f} tokens/s; {details['flop_utilisation']:.0%} of the devices' peak goes into "
        f"the network's own FLOP"
    )
    lines += hybrid_mixed.imbalance_words(cost)
    lines += _memory_lines(prediction)
    lines += launch_words(cost.transformer, configuration, **_launch(cost))
    if not details["is_calibrated"]:
        lines.append(
            f"{cost.group.device.name} is uncalibrated for transformers: the efficiencies are those of another device"
        )
    lines += outside_words(cost, configuration)
    return tuple(lines)


def _binding_line(prediction: Prediction) -> str:
    """Return which parts of an iteration take longest."""
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
    return f"{listed[0]} binds: {shares[listed[0]] / total:.0%} of an iteration" + "; ".join(["", *rest])


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
    reserve_bytes = prediction.memory_bytes.get("reserve", 0.0)
    kept = f", beside a reserve of {format_human(reserve_bytes, Dimension.DATA)}" if reserve_bytes else ""
    if len(words) > _MOST_STAGES:
        places = f"{words[least]} on stage {least + 1} of {len(words)}, {words[-1]} on the last"
        return [f"room on a device{kept}: {places}"]
    return [f"room on a device, stage by stage{kept}: {', '.join(words)}"]


def timeline(problem: Problem, configuration: HybridConfiguration, *, num_iterations: int = 1) -> Timeline:
    """Return what a device of every stage does in some steps: the schedule, task by task, and what follows it."""
    prediction = predict(problem, configuration)
    if isinstance(configuration, MixedConfiguration):
        drawn = hybrid_mixed_timeline.timeline(hybrid_mixed.Given.of(problem, configuration), configuration, prediction)
    else:
        cost = cost_of_machines(problem, configuration.machines, configuration.global_batch_size)
        stages = prediction.details["stages"]
        drawn = hybrid_timeline.timeline(cost, configuration, layout_of(configuration), prediction, stages)
    return repeated(drawn, num_iterations, prediction.iteration_time_s)
