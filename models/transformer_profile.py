"""Seconds of every layer of a transformer on one device, for families that know layers only.

The whole of it is what :mod:`planner.models.transformer_time` gives for one device and no exchange, so that every
family computes as long as the family ``hybrid`` does with the same samples at a time. Blocks, embedding and head take
what :mod:`planner.models.transformer_compute` gives them; inside each, seconds are dealt out by multiply-adds, so that
cuts inside a block, and when a gradient in it is ready, are estimates.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from planner.cluster import Device
from planner.cost import Floats, Profile
from planner.dnn import Dnn, Repeat
from planner.models.compute import peak_flop_per_s
from planner.models.layouts import Layouts
from planner.models.roofline import Constants, DeviceRates
from planner.models.tiers import Tier
from planner.models.transformer_compute import Software, Split, embedding_s, head_s, layer_seconds
from planner.models.transformer_time import iteration_times
from planner.transformer import Transformer

__all__ = ["device_rates", "microbatch_of", "transformer_profile"]

_MOST_TOKENS = 32768  # at a time: more make products no faster that are worth telling apart
_FEW_TOKENS = 2048  # of a micro-batch on a device of a pipeline, or one sample where that is longer
_FORWARD = 1 / 3  # of embedding and head
_ALONE = (Tier(size=1, bandwidth_bytes_per_s=inf),)


def microbatch_of(transformer: Transformer, samples_per_device: int) -> int:
    """Return the samples at a time that a profile is stated for: a device's, but no more than 32,768 tokens.

    >>> from planner.zoo.transformers import row
    >>> [microbatch_of(row("bert-large").transformer, samples) for samples in (1, 2, 512)]
    [1, 2, 64]
    """
    return max(1, min(samples_per_device, _MOST_TOKENS // transformer.sequence_length))


def device_rates(device: Device, dtype: str, fitted: Mapping[str, Any]) -> DeviceRates:
    """Return a device's figures with fitted shares: a mapping of fields of :class:`DeviceRates`, others passed over."""
    return DeviceRates(
        name=device.name,
        peak_flop_per_s=peak_flop_per_s(device, dtype),
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        **{name: value for name, value in fitted.items() if name in DeviceRates.__slots__},
    )


@lru_cache(maxsize=64)  # a purchase asks for that of every device again and again
def transformer_profile(
    dnn: Dnn,
    *,
    microbatch: int,
    rates: DeviceRates,
    software: Software,
    constants: Constants,
    update_s: float = 0.0,
) -> Profile:
    """Return the seconds of every layer of one sample, where ``microbatch`` samples pass the network together.

    Raises
    ------
    ValueError
        If the network is not known as a transformer.
    """
    if dnn.transformer is None:
        raise ValueError(f"{dnn.name} is not known as a transformer")
    forward_s, backward_s = np.zeros(len(dnn.layers)), np.zeros(len(dnn.layers))
    fields: dict[str, Any] = {"rates": rates, "constants": constants}
    for layers, (ahead_s, back_s) in _parts(dnn, Split.of(Layouts.one(microbatch=microbatch)), software, fields):
        share = _shares(dnn, layers)
        forward_s[layers] += ahead_s * share
        backward_s[layers] += back_s * share
    total_s = _sample_s(dnn.transformer, microbatch, software, fields)
    few = max(1, min(microbatch, _FEW_TOKENS // dnn.transformer.sequence_length))
    scale = total_s / float(forward_s.sum() + backward_s.sum())  # what launching and adding up gradients take besides
    return Profile(
        forward_s=forward_s * scale,
        backward_s=backward_s * scale,
        update_s=update_s,
        few_samples_factor=max(1.0, _sample_s(dnn.transformer, few, software, fields) / total_s),
        origin=f"fitted rooflines of {rates.name}, {microbatch} samples at a time",
    )


def _sample_s(transformer: Transformer, microbatch: int, software: Software, fields: Mapping[str, Any]) -> float:
    """Return the seconds that a device computes for a sample, of so many that pass together."""
    alone = Layouts.one(microbatch=microbatch)
    parts = iteration_times(transformer, alone, tiers=_ALONE, software=software, **fields)
    return float(parts["compute"][0] + parts["launch"][0]) / microbatch


def _parts(
    dnn: Dnn, split: Split, software: Software, fields: Mapping[str, Any]
) -> list[tuple[slice, tuple[float, float]]]:
    """Return embedding, every block and head: their layers, and seconds forward and backward of the samples."""
    transformer, repeats = dnn.transformer, dnn.repeats
    assert transformer is not None and repeats, "asked before"
    ends = [
        (slice(0, repeats[0].first), embedding_s(transformer, split, **fields)),
        (slice(_end(repeats[-1]), len(dnn.layers)), head_s(transformer, split, software=software, **fields)),
    ]
    parts = [(at, (float(s[0]) * _FORWARD, float(s[0]) * (1 - _FORWARD))) for at, s in ends if at.start < at.stop]
    for one in repeats:
        found = layer_seconds(transformer, one.kind, split, software=software, **fields)  # type: ignore[arg-type]
        both_s = float(found.forward_s[0]), float(found.backward_s[0])
        starts = range(one.first, _end(one), one.num_layers)
        parts += [(slice(start, start + one.num_layers), both_s) for start in starts]
    return parts


def _end(repeat: Repeat) -> int:
    """Return the layer behind a run of blocks."""
    return repeat.first + repeat.num_layers * repeat.count


def _shares(dnn: Dnn, layers: slice) -> Floats:
    """Return how the seconds of a part are dealt out over its layers: by multiply-adds, or all to the last one."""
    work = np.array([one.num_multiply_adds for one in dnn.layers[layers]], dtype=float)
    if not work.any():
        work[-1] = 1.0
    return np.asarray(work / work.sum())
