"""Seconds of one micro-batch through all of a transformer's layers, its ends and a boundary, for many layouts at once.

What stages take, and so the step, follows in :mod:`planner.models.transformer_time`. Computing comes from
:mod:`planner.models.transformer_compute`, exchange of tensor, context, expert and pipeline groups from
:mod:`planner.models.transformer_exchange`. Exchange is exposed, but where a layout overlaps it: then the longer of the
two counts, and a fitted share of the shorter, their contention for the device's memory and multiprocessors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.models.group_costs import Group, groups_of
from planner.models.layouts import Ints, Layouts, Recompute
from planner.models.roofline import Constants, DeviceRates, Floats, longer_of, move_s
from planner.models.tiers import Tier
from planner.models.transformer_compute import LayerSeconds, Software, Split, embedding_s, head_s, layer_seconds
from planner.models.transformer_exchange import (
    ExchangeTimes,
    exchange_times,
    first_stage_exchanges,
    last_stage_exchanges,
    layer_exchanges,
    pipeline_exchanges,
)
from planner.transformer import LayerKind, Transformer

__all__ = ["OF_LAYERS", "Common", "distinct", "interval_of", "reached_tiers", "sum_of"]

_DEVICE = ("compute", "recompute", "tensor", "expert", "context")
OF_LAYERS = (*_DEVICE, "launch")  # parts of what a device does for its layers
_COMPUTING = ("tensor", "context", "expert", "microbatch", "is_sequence_parallel")
_EXCHANGING = (*_COMPUTING, "pipeline", "data", "recompute", "overlaps_tensor", "order")
_LAUNCH_SHARPNESS = 3.0  # a layer's kernels are unlike: while some fill the device, others wait for the host
_MOST_CODES = 2**40  # so that one more decision still fits 63 bits,
_MOST_WIDTH = 2**20  # of no more values than these
_FORWARD_OF_ENDS = 1 / 3  # of what embedding and head compute: the rest is backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """All that the layouts share."""

    transformer: Transformer
    tiers: tuple[Tier, ...]
    rates: DeviceRates
    software: Software
    constants: Constants
    expert_imbalance: float

    @classmethod
    def of(
        cls,
        transformer: Transformer,
        tiers: Sequence[Tier],
        rates: DeviceRates,
        software: Software,
        constants: Constants,
        expert_imbalance: float,
    ) -> "Common":
        """Return it for tiers with the bandwidths that links are sold by."""
        return cls(
            transformer=transformer,
            tiers=reached_tiers(tiers, constants),
            rates=rates,
            software=software,
            constants=constants,
            expert_imbalance=expert_imbalance,
        )

    def beside(self, computing: Floats, exchange: Floats) -> Floats:
        """Return what an exchange adds to computing that it runs beside: what is longer, and some of the shorter."""
        both = np.maximum(computing, exchange) + self.constants.contention * np.minimum(computing, exchange)
        return both - computing


def interval_of(common: Common, layouts: Layouts) -> Mapping[str, Floats]:
    """Return the seconds of one micro-batch through all layers: by part, and of what is no layer.

    Parts are :data:`OF_LAYERS`; besides ``forward`` (of ``compute``, what the forward pass takes), ``embedding`` and
    ``head``, both ways and with their exchange, ``embedding_forward`` and ``head_forward`` of them, and ``transfer``,
    one chunk's passage to the next stage. Depends on few decisions, so it is computed once for each combination.
    """
    chosen, back = distinct(layouts, _EXCHANGING)
    return {name: array[back] for name, array in _interval(common, layouts.of(chosen)).items()}


def reached_tiers(tiers: Sequence[Tier], constants: Constants) -> tuple[Tier, ...]:
    """Return tiers with the bandwidths that collectives reach, and their start-up for each hop."""
    return tuple(_reached(tier, index, constants) for index, tier in enumerate(tiers))


def _reached(tier: Tier, index: int, constants: Constants) -> Tier:
    """Return a tier with the bandwidth that collectives reach, and their start-up for each hop."""
    share = constants.outside_efficiency if index else constants.inside_efficiency
    return replace(
        tier,
        bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s * share,
        latency_s=tier.latency_s + constants.hop_s,
    )


def sum_of(layouts: Layouts, arrays: Iterable[Floats]) -> Floats:
    """Return the sum of some arrays, one element a layout."""
    return sum(arrays, start=np.zeros(len(layouts)))


def distinct(layouts: Layouts, names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the index of one layout of each combination of some decisions, and for each layout which."""
    arrays = layouts.arrays()
    code, size = np.zeros(len(layouts), dtype=np.int64), 1
    for name in names:
        number = np.asarray(arrays[name], dtype=np.int64)
        number = number - number.min()
        if int(number.max()) >= _MOST_WIDTH:
            number = np.unique(number, return_inverse=True)[1]
        width = int(number.max()) + 1
        if size * width >= _MOST_CODES:
            code, size = np.unique(code, return_inverse=True)[1], len(layouts)
        code, size = code * width + number, size * width
    _, chosen, back = np.unique(code, return_index=True, return_inverse=True)
    return chosen, back


def _interval(common: Common, layouts: Layouts) -> dict[str, Floats]:
    """Return the seconds of all layers of one micro-batch, by part, of embedding and head, and of one transfer."""
    groups = groups_of(common.tiers, layouts)
    chosen, back = distinct(layouts, _COMPUTING)
    few, split = Split.of(layouts.of(chosen)), Split.of(layouts)
    found = {name: np.zeros(len(layouts)) for name in (*_DEVICE, "forward", "launch")}
    kinds = common.transformer.layer_kinds
    for kind in dict.fromkeys(kinds):
        layer = _layer(common, kind, few, back)
        exchanges = exchange_times(
            layer_exchanges(common.transformer, layouts, kind, expert_imbalance=common.expert_imbalance), groups
        )
        parts = _layer_parts(common, layouts, split, kind, layer, exchanges)
        parts["launch"] = _launch_s(common, layouts, sum_of(layouts, (parts[name] for name in _DEVICE)))
        for name, seconds in parts.items():
            found[name] = found[name] + kinds.count(kind) * seconds
    found["transfer"] = _transfer_s(common, layouts, groups)
    return {**found, **_ends_parts(common, layouts, (few, back), groups)}


def _ends_parts(
    common: Common, layouts: Layouts, computing: tuple[Split, Ints], groups: Mapping[str, Group]
) -> dict[str, Floats]:
    """Return the seconds of embedding and of head, both ways, and of them forward; ``computing``: distinct, and where.

    Their tensor-parallel exchange is exposed, but for the gather that runs beside the head's backward product.
    """
    few, back = computing
    floor = common.constants.head_floor_ratio * common.software.launch_s
    shared = {"rates": common.rates, "constants": common.constants}
    embedding = embedding_s(common.transformer, few, **shared)[back]  # type: ignore[arg-type]
    head = head_s(common.transformer, few, software=common.software, **shared)[back] + floor  # type: ignore[arg-type]
    first = exchange_times(first_stage_exchanges(common.transformer, layouts), groups)["embedding"]
    last = exchange_times(last_stage_exchanges(common.transformer, layouts), groups)["logits"]
    return {
        "embedding": embedding + _exposed_s(common, embedding, first),
        "embedding_forward": _FORWARD_OF_ENDS * embedding + first.forward_s,
        "head": head + _exposed_s(common, head, last),
        "head_forward": _FORWARD_OF_ENDS * head + last.forward_s,
    }


def _layer(common: Common, kind: LayerKind, split: Split, back: Ints) -> LayerSeconds:
    """Return the seconds of a layer of a kind, for every layout."""
    one = layer_seconds(
        common.transformer,
        kind,
        split,
        rates=common.rates,
        software=common.software,
        constants=common.constants,
        expert_imbalance=common.expert_imbalance,
    )
    return LayerSeconds(
        forward_s=one.forward_s[back],
        backward_s=one.backward_s[back],
        attention_s=one.attention_s[back],
        last_s=one.last_s[back],
    )


def _layer_parts(
    common: Common,
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
    again = layer.again_s(layouts.recompute, common.software)
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


def _exposed_s(common: Common, compute: Floats, times: ExchangeTimes) -> Floats:
    """Return an exchange's seconds, those that backward computes beside only as far as they show."""
    return _total_s(times) + common.beside(compute / 2, times.hidden_backward_s)


def _launch_s(common: Common, layouts: Layouts, device_s: Floats) -> Floats:
    """Return what launching a layer's kernels takes beyond the device's own time: backward twice forward."""
    passes = 3.0 + (layouts.recompute == Recompute.FULL)
    grown = 1 + common.constants.tensor_floor_ratio * (layouts.tensor > 1)
    return longer_of(device_s, common.software.launch_s * passes * grown, _LAUNCH_SHARPNESS) - device_s


def _parameters(transformer: Transformer, kind: LayerKind, split: Split) -> Floats:
    """Return the parameters of one layer that one device holds before any ZeRO."""
    is_moe = kind == "moe" and transformer.experts is not None
    routed = transformer.experts.num_experts * transformer.expert_parameters if is_moe and transformer.experts else 0
    dense = transformer.block_parameters(kind) - routed
    return dense / split.tensor + routed / (split.tensor * split.expert)


def _transfer_s(common: Common, layouts: Layouts, groups: Mapping[str, Group]) -> Floats:
    """Return the seconds in which one chunk's output passes a boundary between stages."""
    times = exchange_times(pipeline_exchanges(common.transformer, layouts), groups)
    return sum_of(layouts, (one.forward_s for one in times.values())) / layouts.interleave
