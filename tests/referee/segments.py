"""Segments of any partition: who reads whose neurons, counted by masks over all of them.

The referee of the stripes of :mod:`planner.models.replica_segments`, which count from rows alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from planner.dnn import Window
from planner.errors import ModelError
from planner.models.replica_segments import Boundary, Counts, Stage

_Matrix = NDArray[np.float64]

# Footnote 3 of the paper: any partition will do. (output shape, number of segments) -> segment of every neuron.
Scheme = Callable[[tuple[int, ...], int], NDArray[np.intp]]


def stripes(shape: tuple[int, ...], num_segments: int) -> NDArray[np.intp]:
    """Return the segment of every neuron: stripes of rows of an image, or of neurons.

    Segment p of n rows is ``[floor(n p / P), floor(n (p + 1) / P))``; some are empty where P > n.

    >>> stripes((5,), 2).tolist()
    [0, 0, 1, 1, 1]
    """
    num_rows = shape[1] if len(shape) == 3 else shape[0]
    starts = [num_rows * p // num_segments for p in range(1, num_segments)]
    of_row = np.searchsorted(starts, np.arange(num_rows), side="right")
    return np.broadcast_to(of_row[:, np.newaxis] if len(shape) == 3 else of_row, shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """A layer's neurons, each in one segment."""

    num_segments: int
    of_neuron: NDArray[np.intp]

    @classmethod
    def of(cls, shape: tuple[int, ...], num_segments: int, scheme: Scheme = stripes) -> Self:
        """Return the partition that a scheme makes; raise ModelError if it is none."""
        found = np.asarray(scheme(shape, num_segments))
        if found.shape != shape or found.min() < 0 or found.max() >= num_segments:
            raise ModelError(
                f"the partition scheme gives segments {found.min()} to {found.max()} in shape {found.shape}; "
                f"{num_segments} segments of a layer {shape} need 0 to {num_segments - 1} in that shape."
            )
        return cls(num_segments=num_segments, of_neuron=found)

    @property
    def num_neurons(self) -> Counts:
        """``N_neuron(l,p)`` of every segment."""
        return self._count(self.of_neuron)

    @property
    def num_channels(self) -> Counts:
        """Channels (or neurons, without channels) of which a segment holds a part: it needs their weights."""
        rows = self.of_neuron.reshape(len(self.of_neuron), -1)
        return np.array([(rows == p).any(axis=1).sum() for p in range(self.num_segments)])

    def at(self, mask: NDArray[np.bool_]) -> Counts:
        """Return how many neurons under a mask (of the layer's shape, or that broadcasts to it) each segment has."""
        return self._count(self.of_neuron[np.broadcast_to(mask, self.of_neuron.shape)])

    def weigh(self, weights: _Matrix) -> Counts:
        """Return the sum of the weights (as the mask) of each segment's neurons."""
        spread = np.broadcast_to(weights, self.of_neuron.shape).ravel()
        return np.bincount(self.of_neuron.ravel(), weights=spread, minlength=self.num_segments).astype(np.int64)

    def masks(self) -> Iterator[NDArray[np.bool_]]:
        """Yield which neurons a segment has, segment by segment."""
        return (self.of_neuron == p for p in range(self.num_segments))

    def _count(self, segments: NDArray[np.intp]) -> Counts:
        return np.bincount(segments.ravel(), minlength=self.num_segments)


def count_boundary(stage: Stage, before: Partition, after: Partition) -> Boundary:
    """Return what passes between the partitions of the layer before a stage and of the stage itself."""
    if stage.kind == "fully_connected":
        return _count_fully_connected(stage, before.num_neurons, after.num_neurons)
    is_convolution = stage.kind == "convolution"
    reads = _Windows.of(stage)

    def seen(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        # A convolution reads all channels; a pool each one by itself, but one stands for all where they are alike.
        if is_convolution:
            return np.asarray(mask.any(axis=0, keepdims=True))
        return mask[:1] if (mask == mask[:1]).all() else mask

    connections = np.zeros((after.num_segments, before.num_segments), dtype=np.int64)
    if is_convolution:
        connections[:] = [before.weigh(reads.weights_on_inputs(mask.sum(axis=0))) for mask in after.masks()]
    return Boundary(
        needed=np.array([before.at(reads.inputs_of(seen(mask))) for mask in after.masks()]),
        returned=np.array([after.at(reads.outputs_of(seen(mask))) for mask in before.masks()]),
        connections=connections,
    )


def _count_fully_connected(stage: Stage, num_before: Counts, num_after: Counts) -> Boundary:
    """Return the boundary where every neuron of one layer reads every one of the other, if there is any."""
    pairs = np.outer(num_after, num_before)
    recurrent = stage.num_connections / pairs.sum()  # an unrolled step has more connections than it has pairs
    return Boundary(
        needed=np.outer(num_after > 0, num_before),
        returned=np.outer(num_before > 0, num_after),
        connections=np.rint(pairs * recurrent).astype(np.int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """Sliding windows, which are separable: for rows and for columns a matrix ``[output, input]``.

    ``is_read_*`` says whether an output reads an input, ``times_*`` how many of its weights lie on it.
    """

    is_read_y: _Matrix
    is_read_x: _Matrix
    times_y: _Matrix
    times_x: _Matrix

    @classmethod
    def of(cls, stage: Stage) -> Self:
        """Return the windows of a convolution or a pool."""
        pairs = zip(stage.output_shape[1:], stage.input_shape[1:], strict=True)
        (read_y, times_y), (read_x, times_x) = (_segments_along(*sizes, stage.window) for sizes in pairs)
        return cls(read_y, read_x, times_y, times_x)

    def inputs_of(self, outputs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.asarray((self.is_read_y.T @ outputs.astype(np.float64) @ self.is_read_x) > 0)

    def outputs_of(self, inputs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.asarray((self.is_read_y @ inputs.astype(np.float64) @ self.is_read_x.T) > 0)

    def weights_on_inputs(self, outputs: Counts) -> _Matrix:
        """Return the connections of so many outputs at each position to one input channel, by position."""
        return self.times_y.T @ outputs.astype(np.float64) @ self.times_x


def _segments_along(num_outputs: int, num_inputs: int, window: Window | None) -> tuple[_Matrix, _Matrix]:
    """Return, along one axis, which inputs each output reads, and with how many weights; without a window, all."""
    if window is None:
        return (np.ones((num_outputs, num_inputs)),) * 2
    outputs, offsets = np.ogrid[:num_outputs, : window.kernel]
    at = outputs * window.stride - window.padding + offsets
    is_inside = (at >= 0) & (at < num_inputs)
    is_read, times = np.zeros((num_outputs, num_inputs)), np.zeros((num_outputs, num_inputs))
    rows = np.broadcast_to(outputs, at.shape)
    is_read[rows[is_inside], at[is_inside]] = 1
    np.add.at(times, (rows, at.clip(0, num_inputs - 1)), 1)
    return is_read, times


def remote_counts(counts: Counts, workers: Sequence[int], workers_of_source: Sequence[int]) -> Counts:
    """Return ``A(l,p)`` or ``E(l,p)``: what each segment receives from other workers than its own.

    Parameters
    ----------
    counts
        ``Boundary.needed`` for activations, ``Boundary.returned`` for error terms: a row for each receiving segment.
    workers, workers_of_source
        Worker of each receiving segment, and of each one that it reads.

    >>> remote_counts(np.array([[3, 3], [3, 3]]), [0, 1], [0, 1]).tolist()
    [3, 3]
    """
    is_elsewhere = np.asarray(workers)[:, np.newaxis] != np.asarray(workers_of_source)[np.newaxis, :]
    return np.asarray((counts * is_elsewhere).sum(axis=1), dtype=np.int64)
