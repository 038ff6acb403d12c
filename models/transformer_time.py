"""Seconds of a transformer's training step in many layouts at once, with its parts, which sum to the total.

A step is ``num_microbatches`` intervals of the slowest pipeline stage, the fill and drain of the pipeline, the exchange
of gradients, and the optimiser. An interval holds what the stage computes, what it computes again, what its layers
exchange, and what launching its kernels takes beyond that. This file adds these up; the seconds come from
:mod:`planner.models.transformer_compute` (products, attention, memory), :mod:`planner.models.transformer_exchange`
(tensor, context, expert and pipeline groups) and :mod:`planner.models.transformer_replicas` (gradients and weights).

The first stage does the embedding besides, the last the head, and a stage computes nothing while it sends; the schedule
is that of :mod:`planner.models.transformer_schedule`. What it takes beyond the intervals of the slowest stage is the
part ``bubble``. Gradients of weights, which zero-bubble schedules put off, are taken as half of a backward pass.

Leaves out stragglers, input, checkpoints, offloading, and the memory that a nearly full device is short of.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.models.group_costs import groups_of
from planner.models.layouts import Bools, Ints, Layouts
from planner.models.roofline import Constants, DeviceRates, Floats, move_s
from planner.models.tiers import Tier
from planner.models.transformer_compute import Software, Split
from planner.models.transformer_interval import OF_LAYERS, Common, distinct, interval_of, reached_tiers, sum_of
from planner.models.transformer_replicas import replica_exchanges, replica_times
from planner.models.transformer_schedule import Stages, step_s
from planner.transformer import Transformer

__all__ = ["PARTS", "interval_times", "iteration_times", "reached_tiers", "stage_times"]

PARTS = ("compute", "recompute", "tensor", "expert", "context", "launch", "bubble", "pipeline", "data", "optimizer")

_REPLICATING = ("tensor", "context", "expert", "pipeline", "data", "order", "zero", "num_microbatches")

Pair = tuple[Floats, Floats]  # forward, and both ways


def iteration_times(
    transformer: Transformer,
    layouts: Layouts,
    *,
    tiers: Sequence[Tier],
    rates: DeviceRates,
    software: Software,
    constants: Constants,
    expert_imbalance: float = 1.0,
) -> Mapping[str, Floats]:
    """Return the seconds of one step: every part of :data:`PARTS`, and ``total``, their sum; one element a layout.

    Parameters
    ----------
    tiers
        Of the cluster, from the inside outwards, with the bandwidths that links are sold by; the fitted shares and
        start-up are put to them here.
    rates, software, constants
        Of device and program, and of all.
    expert_imbalance
        Tokens of the fullest rank's experts, over the mean; >= 1. All ranks wait for the fullest.

    Notes
    -----
    What one micro-batch takes depends on few decisions, so it is computed once for each distinct combination of them.
    Where two layers more would make all stages alike, embedding and head take a layer's place each (Llama 3, arXiv
    2407.21783, section 3.3.2; BLOOM, arXiv 2211.05100). Where layers do not divide otherwise, all stages count as many
    as the fullest, and the last, which has the head, one less.
    """
    common = Common.of(transformer, tiers, rates, software, constants, expert_imbalance)
    parts = _step(common, layouts, interval_of(common, layouts))
    parts = {name: np.broadcast_to(parts[name], len(layouts)) for name in PARTS}
    return {**parts, "total": sum_of(layouts, parts.values())}


def interval_times(
    transformer: Transformer,
    layouts: Layouts,
    *,
    tiers: Sequence[Tier],
    rates: DeviceRates,
    software: Software,
    constants: Constants,
    expert_imbalance: float = 1.0,
) -> Mapping[str, Floats]:
    """Return the seconds of one micro-batch through all layers, as :func:`interval_of` says, with the links' figures.

    Parameters as of :func:`iteration_times`.
    """
    return interval_of(Common.of(transformer, tiers, rates, software, constants, expert_imbalance), layouts)


def stage_times(transformer: Transformer, layouts: Layouts, interval: Mapping[str, Floats]) -> Mapping[str, Pair]:
    """Return the seconds of a micro-batch on one stage, forward and both ways, sending left out; one element a layout.

    Parameters
    ----------
    interval
        Of :func:`interval_times`.

    Returns
    -------
    ``middle``: of a stage between the ends; ``first`` and ``last``: how much longer these take, less than 0 where they
    have a layer less.
    """
    stage = sum_of(layouts, (interval[name] for name in OF_LAYERS)) * _share(transformer, layouts.pipeline)
    # Exchange and launching fall to both ways as computing does.
    ahead = stage * interval["forward"] / (interval["compute"] + interval["recompute"])
    first, last = _ends_s(transformer, layouts, interval, (ahead, stage))
    return {"middle": (ahead, stage), "first": first, "last": last}


# -- the step --------------------------------------------------------------------------------------------------------


def _step(common: Common, layouts: Layouts, interval: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the parts of the step from those of one micro-batch through all layers."""
    number, stages = layouts.num_microbatches, layouts.pipeline
    share = _share(common.transformer, stages)
    inner = {name: interval[name] * share for name in OF_LAYERS}
    times = stage_times(common.transformer, layouts, interval)
    ends, transfer = (times["first"], times["last"]), interval["transfer"]
    reductions, gathers = _replicas_s(common, layouts, interval["forward"] * share, times["middle"][1])
    parts = {name: number * seconds for name, seconds in inner.items()}
    longer, sends = _busiest(layouts, ends, transfer)
    parts["compute"] = parts["compute"] + number * longer
    parts["pipeline"] = number * sends * transfer
    busy = sum_of(layouts, parts.values())
    weights = (inner["compute"] - interval["forward"] * share) / 2
    scheduled = _scheduled_s(layouts, times["middle"], weights, ends, transfer)
    parts["bubble"] = np.maximum(scheduled - busy, 0.0)
    parts["data"] = reductions + gathers
    parts["optimizer"] = _optimizer_s(common, layouts, share)
    return parts


def _ends_s(
    transformer: Transformer, layouts: Layouts, interval: Mapping[str, Floats], stage: Pair
) -> tuple[Pair, Pair]:
    """Return what one micro-batch takes longer on the first and on the last stage; less than 0 with a layer less."""
    layers = transformer.num_layers * _share(transformer, layouts.pipeline)
    counts_ends = _counts_ends(transformer, layouts.pipeline)
    found = []
    for name, has_less in (
        ("embedding", counts_ends),
        ("head", counts_ends | (transformer.num_layers % layouts.pipeline != 0)),
    ):
        ahead, both = (np.where(has_less, seconds / layers, 0.0) for seconds in stage)
        found.append((interval[f"{name}_forward"] - ahead, interval[name] - both))
    return found[0], found[1]


def _busiest(layouts: Layouts, ends: tuple[Pair, Pair], transfer: Floats) -> Pair:
    """Return what a micro-batch takes the busiest stage longer than one between the ends, and how often that one sends.

    An end sends once less: the last output and the first error go nowhere.
    """
    (_, first), (_, last) = ends
    longer = np.maximum(first, last)
    is_end = (layouts.pipeline == 2) | (longer > transfer)
    sends = np.where(layouts.pipeline > 1, 2.0 * layouts.interleave - is_end, 0.0)
    return np.where(layouts.pipeline > 1, np.where(is_end, longer, 0.0), first + last), sends


def _scheduled_s(layouts: Layouts, stage: Pair, weights: Floats, ends: tuple[Pair, Pair], transfer: Floats) -> Floats:
    """Return the seconds from the first forward to the last backward; ``weights``: of the gradients of weights."""
    ahead, both = stage
    extras = [(forward, end - forward) for forward, end in ends]
    return step_s(
        Stages.of(
            layouts,
            ahead,
            both - ahead,
            first_extra_s=extras[0],
            last_extra_s=extras[1],
            weight_gradient_s=weights,
            transfer_s=transfer,
            is_blocking=True,
        ),
        layouts,
    )


def _counts_ends(transformer: Transformer, stages: Ints) -> NDArray[np.bool_]:
    """Return whether embedding and head each take a layer's place, so that all stages are alike."""
    layers = transformer.num_layers
    return np.asarray(((layers + 2) % stages == 0) & (layers % stages != 0))


def _share(transformer: Transformer, stages: Ints) -> Floats:
    """Return the part of all layers that the fullest stage holds."""
    layers = transformer.num_layers
    return np.where(_counts_ends(transformer, stages), (layers + 2) // stages, -(-layers // stages)) / layers


def _replicas_s(
    common: Common,
    layouts: Layouts,
    forward: Floats,
    stage: Floats,
) -> tuple[Floats, Floats]:
    """Return the exposed seconds of the step's reductions and gathers.

    Beside the stage's work, launching included: ZeRO-3 in every micro-batch, the others beside the last one's backward.
    """
    is_whole, number = layouts.zero == 3, layouts.num_microbatches
    chosen, back = distinct(layouts, _REPLICATING)
    few = layouts.of(chosen)
    exchanges = replica_exchanges(
        common.transformer,
        few,
        gradient_bytes=common.software.gradient_bytes,
        bucket_bytes=common.software.bucket_bytes,
        reduces_every_microbatch=common.software.reduces_every_microbatch,
        shards_gradients=common.software.shards_gradients,
    )
    times = dict(replica_times(exchanges, groups_of(common.tiers, few)))
    tied = np.broadcast_to(times.pop("tied")[0], len(few))[back]
    reduced, gathered = (sum_of(few, (one[i] for one in times.values()))[back] for i in (0, 1))
    passes = np.where(is_whole, number, 1)
    # ZeRO-3 gathers half beside forward, half beside backward; else weights are gathered beside the next forward.
    ahead = np.where(is_whole, gathered / 2, gathered)
    behind = reduced + np.where(is_whole, gathered / 2, 0.0)
    hidden_ahead = common.beside(passes * forward, ahead)
    hidden_behind = common.beside(passes * (stage - forward), behind)
    # A tied embedding is reduced between the two ends after the last micro-batch: alone, nothing runs beside it.
    overlaps: Bools = layouts.overlaps_data & (layouts.context * layouts.data > 1)
    return tied + np.where(overlaps, hidden_behind, behind), np.where(overlaps, hidden_ahead, ahead)


def _optimizer_s(common: Common, layouts: Layouts, share: Floats) -> Floats:
    """Return the seconds of the optimiser's step, which moves its state; ZeRO of any stage shares it out."""
    transformer, split = common.transformer, Split.of(layouts)
    experts = transformer.experts
    routed = experts.num_experts * transformer.expert_parameters * transformer.num_moe_layers if experts else 0
    ends = max(transformer.embedding_parameters, transformer.head_parameters)
    both = transformer.embedding_parameters + transformer.head_parameters
    blocks = transformer.num_parameters - both - routed
    ranks = np.where(layouts.zero > 0, layouts.data * layouts.context, 1)
    dense = (blocks * share + np.where(layouts.pipeline > 1, ends, both)) / split.tensor
    held = dense / ranks + routed * share / (split.tensor * split.expert) / np.maximum(ranks / split.expert, 1)
    return move_s(held * common.software.optimizer_bytes, common.rates)
