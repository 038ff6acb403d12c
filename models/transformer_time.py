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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.models.group_costs import Group, groups_of
from planner.models.layouts import Bools, Ints, Layouts, Recompute
from planner.models.roofline import Constants, DeviceRates, Floats, longer_of, move_s
from planner.models.tiers import Tier
from planner.models.transformer_compute import LayerSeconds, Software, Split, embedding_s, head_s, layer_seconds
from planner.models.transformer_exchange import ExchangeTimes, exchange_times, layer_exchanges, pipeline_exchanges
from planner.models.transformer_replicas import replica_exchanges, replica_times
from planner.models.transformer_schedule import Stages, step_s
from planner.transformer import LayerKind, Transformer

__all__ = ["PARTS", "iteration_times"]

PARTS = ("compute", "recompute", "tensor", "expert", "context", "launch", "bubble", "pipeline", "data", "optimizer")

_EXCHANGES = ("tensor", "expert", "context")
_DEVICE = ("compute", "recompute", *_EXCHANGES)
_COMPUTING = ("tensor", "context", "expert", "microbatch", "is_sequence_parallel")
_EXCHANGING = (*_COMPUTING, "pipeline", "data", "recompute", "overlaps_tensor", "order")
_REPLICATING = ("tensor", "context", "expert", "pipeline", "data", "order", "zero", "num_microbatches")
_MOST_CODES = 2**40  # so that one more decision still fits 63 bits
_FORWARD_OF_ENDS = 1 / 3  # of embedding and head: the rest is backward


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """All that the layouts share."""

    transformer: Transformer
    tiers: tuple[Tier, ...]
    rates: DeviceRates
    software: Software
    constants: Constants

    def beside(self, computing: Floats, exchange: Floats) -> Floats:
        """Return what an exchange adds to computing that it runs beside: what is longer, and some of the shorter."""
        both = np.maximum(computing, exchange) + self.constants.contention * np.minimum(computing, exchange)
        return both - computing


def iteration_times(
    transformer: Transformer,
    layouts: Layouts,
    *,
    tiers: Sequence[Tier],
    rates: DeviceRates,
    software: Software,
    constants: Constants,
) -> Mapping[str, Floats]:
    """Return the seconds of one step: every part of :data:`PARTS`, and ``total``, their sum; one element a layout.

    Parameters
    ----------
    tiers
        Of the cluster, from the inside outwards, with the bandwidths that links are sold by; the fitted shares and
        start-up are put to them here.
    rates, software, constants
        Of device and program, and of all.

    Notes
    -----
    What one micro-batch takes depends on few decisions, so it is computed once for each distinct combination of them.
    The last stage holds as many layers as the others, but where two layers more would make all stages alike: embedding
    and head then take a layer's place each (Llama 3, arXiv 2407.21783, section 3.3.2; BLOOM, arXiv 2211.05100).
    """
    reached = tuple(_reached(tier, index, constants) for index, tier in enumerate(tiers))
    common = _Common(transformer=transformer, tiers=reached, rates=rates, software=software, constants=constants)
    chosen, back = _distinct(layouts, _EXCHANGING)
    interval = {name: array[back] for name, array in _interval(common, layouts.of(chosen)).items()}
    parts = _step(common, layouts, interval)
    parts = {name: np.broadcast_to(parts[name], len(layouts)) for name in PARTS}
    return {**parts, "total": _sum(layouts, parts.values())}


def _reached(tier: Tier, index: int, constants: Constants) -> Tier:
    """Return a tier with the bandwidth that collectives reach, and their start-up for each hop."""
    share = constants.outside_efficiency if index else constants.inside_efficiency
    return replace(
        tier,
        bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s * share,
        latency_s=tier.latency_s + constants.hop_s,
    )


def _sum(layouts: Layouts, arrays: Iterable[Floats]) -> Floats:
    """Return the sum of some arrays, one element a layout."""
    return sum(arrays, start=np.zeros(len(layouts)))


def _distinct(layouts: Layouts, names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the index of one layout of each combination of some decisions, and for each layout which."""
    arrays = layouts.arrays()
    code, size = np.zeros(len(layouts), dtype=np.int64), 1
    for name in names:
        number = np.asarray(arrays[name], dtype=np.int64)
        number = number - number.min()
        width = int(number.max()) + 1
        if size * width >= _MOST_CODES:
            code, size = np.unique(code, return_inverse=True)[1], len(layouts)
        code, size = code * width + number, size * width
    _, chosen, back = np.unique(code, return_index=True, return_inverse=True)
    return chosen, back


# -- one micro-batch through all layers ------------------------------------------------------------------------------


def _interval(common: _Common, layouts: Layouts) -> dict[str, Floats]:
    """Return the seconds of all layers of one micro-batch, by part, of embedding and head, and of one transfer."""
    groups = groups_of(common.tiers, layouts)
    chosen, back = _distinct(layouts, _COMPUTING)
    few, split = Split.of(layouts.of(chosen)), Split.of(layouts)
    found = {name: np.zeros(len(layouts)) for name in (*_DEVICE, "forward", "launch")}
    kinds = common.transformer.layer_kinds
    for kind in dict.fromkeys(kinds):
        layer = _layer(common, kind, few, back)
        exchanges = exchange_times(layer_exchanges(common.transformer, layouts, kind), groups)
        parts = _layer_parts(common, layouts, split, kind, layer, exchanges)
        parts["launch"] = _launch_s(common, layouts, _sum(layouts, (parts[name] for name in _DEVICE)))
        for name, seconds in parts.items():
            found[name] = found[name] + kinds.count(kind) * seconds
    found["transfer"] = _transfer_s(common, layouts, groups)
    floor = common.constants.head_floor_ratio * common.software.launch_s
    shared = {"rates": common.rates, "constants": common.constants}
    found["embedding"] = embedding_s(common.transformer, few, **shared)[back]  # type: ignore[arg-type]
    found["head"] = head_s(common.transformer, few, software=common.software, **shared)[back] + floor  # type: ignore[arg-type]
    return found


def _layer(common: _Common, kind: LayerKind, split: Split, back: Ints) -> LayerSeconds:
    """Return the seconds of a layer of a kind, for every layout."""
    one = layer_seconds(
        common.transformer,
        kind,
        split,
        rates=common.rates,
        software=common.software,
        constants=common.constants,
    )
    return LayerSeconds(
        forward_s=one.forward_s[back], backward_s=one.backward_s[back], attention_s=one.attention_s[back]
    )


def _layer_parts(
    common: _Common,
    layouts: Layouts,
    split: Split,
    kind: LayerKind,
    layer: LayerSeconds,
    exchanges: Mapping[str, ExchangeTimes],
) -> dict[str, Floats]:
    """Return what the device does for one layer and micro-batch, both ways."""
    accumulated = _parameters(common.transformer, kind, split) * common.software.accumulation_bytes
    added_s = move_s(accumulated * common.constants.accumulation_ratio, common.rates)
    compute = layer.forward_s + layer.backward_s + added_s
    again = layer.again_s(layouts.recompute)
    tensor = sum((_exposed_s(common, compute, exchanges[name]) for name in exchanges if "tensor" in name), np.zeros(1))
    ring = _total_s(exchanges["context"])
    attention = 3 * layer.attention_s + np.where(layouts.recompute == Recompute.FULL, layer.attention_s, 0.0)
    return {
        "forward": layer.forward_s,
        "compute": compute,
        "recompute": again,
        "tensor": np.where(layouts.overlaps_tensor, common.beside(compute, tensor), tensor),
        "expert": _total_s(exchanges["experts"]) if "experts" in exchanges else np.zeros(len(layouts)),
        "context": common.beside(attention, ring),
    }


def _total_s(times: ExchangeTimes) -> Floats:
    """Return the seconds of an exchange that nothing hides."""
    return times.forward_s + times.backward_s + times.recomputed_s


def _exposed_s(common: _Common, compute: Floats, times: ExchangeTimes) -> Floats:
    """Return an exchange's seconds, those that backward computes beside only as far as they show."""
    return _total_s(times) + common.beside(compute / 2, times.hidden_backward_s)


def _launch_s(common: _Common, layouts: Layouts, device_s: Floats) -> Floats:
    """Return what launching a layer's kernels takes beyond the device's own time: backward twice forward."""
    passes = 3.0 + (layouts.recompute == Recompute.FULL)
    grown = 1 + common.constants.tensor_floor_ratio * (layouts.tensor > 1)
    return longer_of(device_s, common.software.launch_s * passes * grown) - device_s


def _parameters(transformer: Transformer, kind: LayerKind, split: Split) -> Floats:
    """Return the parameters of one layer that one device holds before any ZeRO."""
    is_moe = kind == "moe" and transformer.experts is not None
    routed = transformer.experts.num_experts * transformer.expert_parameters if is_moe and transformer.experts else 0
    dense = transformer.block_parameters(kind) - routed
    return dense / split.tensor + routed / (split.tensor * split.expert)


# -- the step --------------------------------------------------------------------------------------------------------


def _step(common: _Common, layouts: Layouts, interval: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the parts of the step from those of one micro-batch through all layers."""
    number, stages = layouts.num_microbatches, layouts.pipeline
    share = _share(common.transformer, stages)
    inner = {name: interval[name] * share for name in (*_DEVICE, "launch")}
    stage = _sum(layouts, inner.values())
    ends = _ends_s(common, layouts, interval, stage)
    transfer = interval["transfer"]
    reductions, gathers = _replicas_s(common, layouts, interval["forward"] * share, stage)
    parts = {name: number * seconds for name, seconds in inner.items()}
    parts["compute"] = parts["compute"] + number * _slowest_end_s(layouts, ends)
    parts["pipeline"] = number * 2 * layouts.interleave * transfer
    busy = _sum(layouts, parts.values())
    computing = (interval["forward"] * share, inner["compute"], inner["recompute"])
    scheduled = _scheduled_s(layouts, stage, computing, ends, transfer)
    parts["bubble"] = np.maximum(scheduled - busy, 0.0)
    parts["data"] = reductions + gathers
    parts["optimizer"] = _optimizer_s(common, layouts, share)
    return parts


def _ends_s(common: _Common, layouts: Layouts, interval: Mapping[str, Floats], stage: Floats) -> tuple[Floats, Floats]:
    """Return what one micro-batch takes longer on the first and on the last stage; less than 0 with a layer less."""
    layers = common.transformer.num_layers * _share(common.transformer, layouts.pipeline)
    lighter = np.where(_counts_ends(common.transformer, layouts.pipeline), stage / layers, 0.0)
    return interval["embedding"] - lighter, interval["head"] - lighter


def _slowest_end_s(layouts: Layouts, ends: tuple[Floats, Floats]) -> Floats:
    """Return what embedding and head add to the interval of the slowest stage."""
    return np.where(layouts.pipeline > 1, np.maximum(np.maximum(*ends), 0.0), ends[0] + ends[1])


def _scheduled_s(
    layouts: Layouts,
    stage: Floats,
    computing: tuple[Floats, Floats, Floats],
    ends: tuple[Floats, Floats],
    transfer: Floats,
) -> Floats:
    """Return the seconds from the first forward to the last backward.

    ``computing``: forward alone, both ways, and again. Exchange and launching fall to both ways as computing does.
    """
    forward, both, again = computing
    ahead = stage * forward / (both + again)
    extras = [(end * _FORWARD_OF_ENDS, end * (1 - _FORWARD_OF_ENDS)) for end in ends]
    return step_s(
        Stages.of(
            layouts,
            ahead,
            stage - ahead,
            first_extra_s=extras[0],
            last_extra_s=extras[1],
            weight_gradient_s=(both - forward) / 2,
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
    return np.where(_counts_ends(transformer, stages), (layers + 2) / layers, 1.0) / stages


def _transfer_s(common: _Common, layouts: Layouts, groups: Mapping[str, Group]) -> Floats:
    """Return the seconds in which one chunk's output passes a boundary between stages."""
    times = exchange_times(pipeline_exchanges(common.transformer, layouts), groups)
    return _sum(layouts, (one.forward_s for one in times.values())) / layouts.interleave


def _replicas_s(
    common: _Common,
    layouts: Layouts,
    forward: Floats,
    stage: Floats,
) -> tuple[Floats, Floats]:
    """Return the exposed seconds of the step's reductions and gathers.

    Beside the stage's work, launching included: ZeRO-3 in every micro-batch, the others beside the last one's backward.
    """
    is_whole, number = layouts.zero == 3, layouts.num_microbatches
    chosen, back = _distinct(layouts, _REPLICATING)
    few = layouts.of(chosen)
    exchanges = replica_exchanges(
        common.transformer,
        few,
        gradient_bytes=common.software.gradient_bytes,
        bucket_bytes=common.software.bucket_bytes,
        reduces_every_microbatch=common.software.reduces_every_microbatch,
    )
    times = replica_times(exchanges, groups_of(common.tiers, few))
    reduced, gathered = (_sum(few, (one[i] for one in times.values()))[back] for i in (0, 1))
    passes = np.where(is_whole, number, 1)
    # ZeRO-3 gathers half beside forward, half beside backward; else weights are gathered beside the next forward.
    ahead = np.where(is_whole, gathered / 2, gathered)
    behind = reduced + np.where(is_whole, gathered / 2, 0.0)
    hidden_ahead = common.beside(passes * forward, ahead)
    hidden_behind = common.beside(passes * (stage - forward), behind)
    # A tied embedding is reduced between the two ends after the last micro-batch: alone, nothing runs beside it.
    overlaps: Bools = layouts.overlaps_data & (layouts.context * layouts.data > 1)
    return np.where(overlaps, hidden_behind, behind), np.where(overlaps, hidden_ahead, ahead)


def _optimizer_s(common: _Common, layouts: Layouts, share: Floats) -> Floats:
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
