"""The extreme segments of every phase of a layer, by its partitions: what bounds on a layer's time are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from planner.cost import Floats
from planner.models.replica_segments import StripedLayer
from planner.models.replica_states import Ints
from planner.models.segment_work import SegmentWork
from planner.models.segments import Counts
from planner.models.stripe_counts import stripe_sizes

__all__ = ["LayerExtremes", "PhaseExtremes"]


@dataclass(frozen=True, slots=True, eq=False)
class PhaseExtremes:
    """A phase that receives messages, by P: two of its segments (rows 0 and 1), and the least of any segment.

    ``seconds`` is computation on one thread; ``numbers`` what comes in from all segments of the neighbour.
    """

    seconds: Floats
    numbers: Floats
    least_s: Floats
    least_numbers: Floats

    @classmethod
    def of(cls, partitions: Ints, seconds: Callable[[int], Floats], numbers: Callable[[int], Counts]) -> Self:
        """Return the phase for some numbers of partitions: the segment that computes most, and that receives most."""
        found = np.zeros((6, int(partitions.max()) + 1))
        for p in partitions.tolist():
            busy_s, received = seconds(p), numbers(p)
            slow = int(np.lexsort((-received, -busy_s))[0])
            full = int(np.lexsort((-busy_s, -received))[0])
            found[:, p] = busy_s[slow], busy_s[full], received[slow], received[full], busy_s.min(), received.min()
        return cls(found[:2], found[2:4], found[4], found[5])

    @classmethod
    def of_stripes(cls, partitions: Ints, every: StripedLayer, seconds: Floats, numbers: Counts) -> Self:
        """Return the same of stripes, all numbers of partitions at once."""
        found = np.zeros((6, int(partitions.max()) + 1))
        found[:, partitions] = (
            every.most(seconds),
            every.most_where_most(seconds, numbers),
            every.most_where_most(numbers, seconds),
            every.most(numbers),
            every.least(seconds),
            every.least(numbers),
        )
        return cls(found[:2], found[2:4], found[4], found[5])


@dataclass(frozen=True, slots=True, eq=False)
class LayerExtremes:
    """The phases of a layer by P: forward, backward, the longest update, and the neurons of the largest segment."""

    forward: PhaseExtremes
    backward: PhaseExtremes
    update_s: Floats
    largest: Floats

    @classmethod
    def of(cls, work: SegmentWork, layer: int, partitions: Ints) -> Self:
        """Return a layer for some numbers of partitions, in rising order."""
        if work.is_striped:
            return cls.of_stripes(work, layer, partitions)
        return cls.one_by_one(work, layer, partitions)

    @classmethod
    def of_stripes(cls, work: SegmentWork, layer: int, partitions: Ints) -> Self:
        """Return a layer that is cut into stripes: all numbers of partitions at once."""
        every = StripedLayer.of(work, layer, partitions)
        update_s, largest = np.zeros((2, int(partitions.max()) + 1))
        update_s[partitions], largest[partitions] = every.most(every.update_s), every.most(every.size)
        return cls(
            forward=PhaseExtremes.of_stripes(partitions, every, every.forward_s, every.needed),
            backward=PhaseExtremes.of_stripes(partitions, every, every.backward_s, every.returned),
            update_s=update_s,
            largest=largest,
        )

    @classmethod
    def one_by_one(cls, work: SegmentWork, layer: int, partitions: Ints) -> Self:
        """Return a layer that is cut in any way: one number of partitions after the other."""

        def returned(p: int) -> Counts:
            is_last = layer == len(work.stages) - 1
            return np.zeros(p, dtype=np.int64) if is_last else work.boundary(layer + 1, p, 1).returned[:, 0]

        update_s, largest = np.zeros((2, int(partitions.max()) + 1))
        for p in partitions.tolist():
            update_s[p] = work.update_s(layer, p).max()
            largest[p] = stripe_sizes(work.stages[layer].output_shape, p).max()
        return cls(
            forward=PhaseExtremes.of(
                partitions,
                lambda p: work.forward_s(layer, p),
                lambda p: work.boundary(layer, 1, p).needed[:, 0],
            ),
            backward=PhaseExtremes.of(partitions, lambda p: work.backward_s(layer, p), returned),
            update_s=update_s,
            largest=largest,
        )
