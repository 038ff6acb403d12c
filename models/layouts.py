"""Parallel layouts of a transformer's training step, many at once: one array a decision, one element a layout.

Every cost of the hybrid family is a function of such arrays, so that a million layouts are one call. Ranks are counted
as Megatron does: ``tensor x context x data x pipeline`` devices; experts are spread over ``expert`` of the ``context x
data`` ranks that hold the same layers, and each of these groups of experts is copied ``context x data / expert`` times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bools", "Ints", "Layouts", "Recompute", "Schedule"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Recompute(IntEnum):
    """What the backward pass computes again instead of reading it from memory (Korthikanti et al., section 5)."""

    NONE = 0
    SELECTIVE = 1  # the products of queries, keys and values, and the softmax between them
    FULL = 2  # whole layers, of which only the input is kept


class Schedule(IntEnum):
    """In which order a stage does its micro-batches."""

    GPIPE = 0
    ONE_F_ONE_B = 1  # interleaved, where a device has more than one chunk
    ZERO_BUBBLE = 2  # gradients of weights fill the waits (ZB-H1: as much memory as 1F1B)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layouts:
    """Arrays of one length, or of length 1 where all layouts agree.

    Attributes
    ----------
    tensor, context, pipeline, data
        Degrees; their product is the number of devices.
    expert
        Devices over which the experts of a layer are spread; divides ``context x data``. 1 without experts.
    interleave
        Chunks of layers on each device; 1 is plain.
    microbatch
        Samples of one micro-batch on one replica.
    num_microbatches
        Of one step on one replica: ``global batch / (data x microbatch)``.
    zero
        ZeRO stage, 0 to 3, over ``data x context`` ranks.
    recompute, schedule
        See :class:`Recompute` and :class:`Schedule`.
    is_sequence_parallel
        Whether what lies between the tensor-parallel products is split along the sequence.
    overlaps_data, overlaps_tensor
        Whether gradients' and weights' exchange runs beside computing; whether the tensor-parallel exchange does.
    is_offloaded
        Whether the optimiser's state lies in host memory.
    order
        Which permutation of the degrees, from the innermost tier outwards; an index into ``models.tiers.ORDERS``.
    """

    tensor: Ints
    context: Ints
    pipeline: Ints
    data: Ints
    expert: Ints
    interleave: Ints
    microbatch: Ints
    num_microbatches: Ints
    zero: Ints
    recompute: Ints
    schedule: Ints
    is_sequence_parallel: Bools
    overlaps_data: Bools
    overlaps_tensor: Bools
    is_offloaded: Bools
    order: Ints

    @classmethod
    def one(cls, **decisions: int | bool) -> "Layouts":
        """Return a single layout; whatever is left out is 1, False, plain 1F1B or the first order."""
        ones = {"schedule": int(Schedule.ONE_F_ONE_B), "zero": 0, "recompute": 0, "order": 0}
        found: dict[str, Ints | Bools] = {}
        for field in fields(cls):
            is_flag = field.name.startswith(("is_", "overlaps_"))
            value = decisions.pop(field.name, False if is_flag else ones.get(field.name, 1))
            found[field.name] = np.array([value], dtype=bool) if is_flag else np.array([value], dtype=np.int64)
        if decisions:
            raise TypeError(f"no such decision: {', '.join(sorted(decisions))}")
        return cls(**found)  # type: ignore[arg-type]  # arrays of both kinds, by the name of the field

    def __len__(self) -> int:
        """Return how many layouts there are."""
        return max([len(getattr(self, name)) for name in self.__slots__])

    def arrays(self) -> Mapping[str, "Ints | Bools"]:
        """Return the arrays by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def of(self, kept: "Ints | Bools | slice") -> "Layouts":
        """Return some of the layouts: by index, mask or slice."""
        number = len(self)
        taken = {
            name: (array if len(array) == number else np.broadcast_to(array, number))[kept]
            for name, array in self.arrays().items()
        }
        return Layouts(**taken)  # type: ignore[arg-type]  # arrays of both kinds, by the name of the field

    @property
    def num_devices(self) -> Ints:
        """Devices of each layout."""
        return self.tensor * self.context * self.pipeline * self.data
