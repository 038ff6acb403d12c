"""Every segment of a layer cut into stripes, for many numbers of partitions at once: counts and seconds in flat arrays.

The numbers are those of :class:`planner.models.segment_work.SegmentWork`, which makes one number of partitions after
the other and keeps each of its segments: of a layer of n neurons, ``n^2 / 2`` of them. Here no Python loop runs over
partitions, and segments of equal size stand for each other where size is all that counts: of a fully-connected layer
below another one (or below nothing) two segments of each P are enough, n mod P of ``n // P + 1`` neurons and the others
of ``n // P``. Elsewhere every stripe has a place, and there are at most half the square of an image's rows.

What the rows ``[a, b)`` read is counted from sums over single rows: windows move on monotonously, so that a row shares
with all those before it what it shares with the last one,
``|union| = sum over [a, b) of |row| - sum over [a, b - 1) of |row and the next one|``.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.models.replica_states import Ints
from planner.models.segment_work import SegmentWork
from planner.models.segments import Stage
from planner.models.stripe_counts import num_stripes, window_rows

__all__ = ["StripeCut", "StripedLayer", "read_of_layer"]

_Rows = tuple[Ints, Ints]  # where stripes begin and end


@dataclass(frozen=True, slots=True, eq=False)
class StripedLayer:
    """The segments of a layer, P after P; those of each P begin at ``first``.

    ``size`` counts neurons, ``needed`` and ``returned`` numbers that come in from the neighbours in a sample; seconds
    are those of one thread.
    """

    first: Ints
    size: Ints
    needed: Ints
    returned: Ints
    forward_s: Floats
    backward_s: Floats
    update_s: Floats

    @classmethod
    def of(cls, work: SegmentWork, layer: int, partitions: Ints) -> "StripedLayer":
        """Return a layer for some numbers of partitions, in rising order; ``work`` is one that ``is_striped``."""
        cut = StripeCut.of(work, layer, partitions)
        stage, is_last = work.stages[layer], layer == len(work.stages) - 1
        needed, below = read_of_layer(stage, work.shape_before(layer), cut)
        returned, above = (
            _read_by(work.stages[layer + 1], stage.output_shape, cut) if not is_last else (np.zeros_like(needed),) * 2
        )
        if work.seconds is None:
            loop_s = _multiply_add_s(work, stage, cut, needed)
            forward_s, update_s, error_s = loop_s * below, loop_s * below, loop_s * above
        else:
            seconds, share = work.seconds[layer], cut.shares(below)
            forward_s, update_s = seconds.forward_s * share, seconds.update_s * share
            error_s = np.zeros_like(share) if is_last else seconds.error_s * cut.shares(above)
        return cls(
            first=cut.first,
            size=cut.size,
            needed=needed,
            returned=returned,
            forward_s=cut.size * work.constants.activation_s + forward_s,
            backward_s=cut.size * work.constants.error_s + error_s,
            update_s=update_s,
        )

    def most(self, numbers: NDArray[np.generic]) -> Floats:
        """Return the largest of every P."""
        return np.asarray(np.maximum.reduceat(numbers, self.first), dtype=np.float64)

    def least(self, numbers: NDArray[np.generic]) -> Floats:
        """Return the least of every P."""
        return np.asarray(np.minimum.reduceat(numbers, self.first), dtype=np.float64)

    def most_where_most(self, numbers: NDArray[np.generic], others: NDArray[np.generic]) -> Floats:
        """Return the largest of those segments of every P that have the most of something else."""
        counts = np.diff(np.append(self.first, len(numbers)))
        is_most = others == np.repeat(self.most(others), counts)
        return self.most(np.where(is_most, numbers, -1))


@dataclass(frozen=True, slots=True, eq=False)
class StripeCut:
    """The stripes of a layer's output, P after P: their P, rows, neurons and channels, and how many each stands for."""

    first: Ints
    partitions: Ints
    rows: _Rows
    size: Ints
    channels: Ints
    number: Ints

    @classmethod
    def of(cls, work: SegmentWork, layer: int, partitions: Ints) -> "StripeCut":
        """Return two stripes of every P where their size is all that counts, else all."""
        shape = work.stages[layer].output_shape
        num_rows = num_stripes(shape)
        if all(stage.kind == "fully_connected" for stage in work.stages[layer : layer + 2]):
            counts = np.full(partitions.size, 2)
            least, larger = np.divmod(num_rows, partitions)
            rows = np.zeros(2 * partitions.size, dtype=np.int64), np.column_stack((least, least + (larger > 0))).ravel()
            number = np.column_stack((partitions - larger, larger)).ravel()
        else:
            counts = partitions
            first = np.cumsum(counts) - counts
            each, k = np.repeat(partitions, counts), np.arange(int(counts.sum())) - np.repeat(first, counts)
            rows = num_rows * k // each, num_rows * (k + 1) // each
            number = np.ones(k.size, dtype=np.int64)
        size = (rows[1] - rows[0]) * (prod(shape) // num_rows)
        return cls(
            first=np.cumsum(counts) - counts,
            partitions=np.repeat(partitions, counts),
            rows=rows,
            size=size,
            channels=np.where(size > 0, shape[0], 0) if len(shape) == 3 else size,
            number=number,
        )

    def shares(self, connections: Ints) -> Floats:
        """Return every segment's share of its layer: by connections or, where there are none, by neurons."""
        counts = np.diff(np.append(self.first, self.size.size))
        every = np.repeat(np.add.reduceat(connections * self.number, self.first), counts)
        neurons = np.repeat(np.add.reduceat(self.size * self.number, self.first), counts)
        return np.asarray(np.where(every > 0, connections / np.maximum(every, 1), self.size / neurons))


def read_of_layer(stage: Stage, shape_before: tuple[int, ...], cut: StripeCut) -> tuple[Ints, Ints]:
    """Return what every stripe of a stage reads of the whole layer before, and over how many connections."""
    if stage.kind == "fully_connected":
        other = prod(shape_before)
        return (cut.size > 0) * other, _connections(stage, cut.size * other, stage.num_neurons * other)
    rows = window_rows(stage)
    return (
        _union(rows.reads, cut) * rows.inputs_of_a_row,
        _whole(_between(rows.times.sum(axis=1), *cut.rows) * rows.connections_of_a_row),
    )


def _read_by(stage: Stage, shape: tuple[int, ...], cut: StripeCut) -> tuple[Ints, Ints]:
    """Return by how much of a stage the stripes of the layer before are read, and over how many connections."""
    if stage.kind == "fully_connected":
        other = stage.num_neurons
        return (cut.size > 0) * other, _connections(stage, cut.size * other, prod(shape) * other)
    rows = window_rows(stage)
    return (
        _union(rows.reads.T, cut) * rows.outputs_of_a_row,
        _whole(_between(rows.times.sum(axis=0), *cut.rows) * rows.connections_of_a_row),
    )


def _connections(stage: Stage, pairs: Ints, all_pairs: int) -> Ints:
    """Return a stage's connections between so many of all pairs of neurons."""
    return _whole(pairs * (stage.num_connections / all_pairs))


def _union(reads: Floats, cut: StripeCut) -> Ints:
    """Return how many columns the rows of every stripe have, each counted once; see the head of this module."""
    begins, ends = cut.rows
    shared = np.append((reads[:-1] * reads[1:]).sum(axis=1), 0.0)
    every = _between(reads.sum(axis=1), begins, ends) - _between(shared, begins, np.maximum(ends - 1, begins))
    return _whole(every)


def _between(numbers: Floats, begins: Ints, ends: Ints) -> Floats:
    """Return the sums of numbers from where stripes begin to where they end."""
    sums = np.append(0.0, np.cumsum(numbers))
    return np.asarray(sums[ends] - sums[begins])


def _whole(numbers: NDArray[np.floating]) -> Ints:
    """Return whole numbers."""
    return np.asarray(np.rint(numbers), dtype=np.int64)


def _multiply_add_s(work: SegmentWork, stage: Stage, cut: StripeCut, needed: Ints) -> Floats:
    """Return ``C_muladd`` of every stripe by its working set: asked once for all of equal size and P."""
    shape, constants = stage.output_shape, work.constants
    sizes = (stage.num_weights * cut.channels / shape[0] + needed + cut.size) * constants.number_bytes
    distinct, place = np.unique(np.stack((sizes, cut.partitions)), axis=1, return_inverse=True)
    seconds = [constants.multiply_add_s(size, int(p)) for size, p in distinct.T.tolist()]
    return np.asarray(np.array(seconds)[place.ravel()])
