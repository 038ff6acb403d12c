"""Segments of partitioned layers: who reads whose neurons, counted exactly for any partition and any mapping.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 4.1 and footnotes 3
and 4. Everything between two layers that depends on their partitions, and not on where segments run, is in three small
matrices (:class:`Boundary`); a mapping of segments to workers then says which of their entries are remote
(:func:`remote_counts`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from planner.dnn import Dnn, Layer, Window
from planner.errors import ModelError

__all__ = [
    "Boundary",
    "Counts",
    "Partition",
    "Scheme",
    "Stage",
    "chain_of",
    "count_boundary",
    "remote_counts",
    "stripes",
    "unroll",
]

Counts = NDArray[np.int64]
_Matrix = NDArray[np.float64]

# Footnote 3: any partition will do. (output shape, number of segments) -> segment of every neuron, in that shape.
Scheme = Callable[[tuple[int, ...], int], NDArray[np.intp]]

_CONVOLUTION, _POOLING, _FULLY_CONNECTED = "convolution", "pooling", "fully_connected"
_NEURON_BY_NEURON = {"activation", "batch_norm", "dropout", "flatten"}  # these stay with the layer that they follow


# -- layers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A layer of the Adam model: a convolution, a pool or a fully-connected layer, with what follows neuron by neuron.

    Attributes
    ----------
    num_connections
        ``W_c(l)``, multiply-adds of a sample; 0 for a pool.
    num_weights
        ``W_s(l)``, what is stored and read from the parameter servers. For a convolution the two
        differ by the number of output positions.
    """

    name: str
    kind: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    num_connections: int = 0
    num_weights: int = 0
    window: Window | None = None

    @property
    def num_neurons(self) -> int:
        """Outputs of a sample."""
        return prod(self.output_shape)


def chain_of(dnn: Dnn) -> tuple[Stage, ...]:
    """Return the layers 1 to L of a network that is a chain.

    Raises
    ------
    ModelError
        For a branch, a join, or a kind of layer whose connections are not known; the message names the layer.
    """
    stages: list[Stage] = []
    shape = dnn.layers[0].output_shape
    for before, layer in zip(dnn.layers, dnn.layers[1:], strict=False):
        if dnn.inputs_of(layer.name) != (before.name,):
            reads = ", ".join(dnn.inputs_of(layer.name)) or "nothing"
            raise ModelError(
                f"layer {layer.name!r} of {dnn.name} reads {reads}: this model takes a chain, where each layer reads "
                f"the one before it, here {before.name!r}."
            )
        if stages and layer.kind in _NEURON_BY_NEURON:
            stages[-1] = replace(stages[-1], num_weights=stages[-1].num_weights + layer.num_trainable)
            continue
        stages.append(_stage(layer, shape))
        shape = layer.output_shape
    return tuple(stages)


def _stage(layer: Layer, input_shape: tuple[int, ...]) -> Stage:
    """Return a layer by itself."""
    is_known = layer.kind in (_POOLING, _FULLY_CONNECTED) or (layer.kind == _CONVOLUTION and layer.window is not None)
    if not is_known:
        raise ModelError(
            f"layer {layer.name!r} is a {layer.kind!r} whose connections are not known. Use convolutions with a "
            "window, pools and fully-connected layers."
        )
    return Stage(
        name=layer.name,
        kind=layer.kind,
        input_shape=input_shape,
        output_shape=layer.output_shape,
        num_connections=layer.num_multiply_adds,
        num_weights=layer.num_trainable,
        window=layer.window,
    )


def unroll(stage: Stage, num_steps: int) -> tuple[Stage, ...]:
    """Return a recurrent layer as so many fully-connected ones, each reading the step before (footnote 4).

    ``stage`` is one step: its connections count those from the state and from that step's input, which arrives with
    the sample. All steps share the weights: only the first one reads them from the servers.
    """
    if stage.kind != _FULLY_CONNECTED or num_steps < 1:
        raise ModelError(
            f"{stage.name!r}: {num_steps} steps of a {stage.kind!r}; unroll 1 or more fully-connected ones."
        )
    later = replace(stage, input_shape=stage.output_shape, num_weights=0)
    steps = (stage, *(later for _ in range(num_steps - 1)))
    return tuple(replace(step, name=f"{step.name}@{number}") for number, step in enumerate(steps, start=1))


# -- partitions ------------------------------------------------------------------------------------------------------


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
        """Return how often each segment occurs."""
        return np.bincount(segments.ravel(), minlength=self.num_segments)


# -- between two layers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boundary:
    """What passes between the segments q of layer l-1 and the segments p of layer l, wherever they run.

    Attributes
    ----------
    needed
        ``[p, q]``: activations of q that p reads. A segment receives a neuron once, however often it uses it.
    returned
        ``[q, p]``: error terms of p that q reads.
    connections
        ``[p, q]``: connections between them; those of a convolution to its padding count with the neuron at the edge,
        so that all of ``W_c(l)`` is there. None in a pool, which has no weights.
    """

    needed: Counts
    returned: Counts
    connections: Counts


def count_boundary(stage: Stage, before: Partition, after: Partition) -> Boundary:
    """Return what passes between the partitions of the layer before a stage and of the stage itself."""
    if stage.kind == _FULLY_CONNECTED:
        return _count_fully_connected(stage, before.num_neurons, after.num_neurons)
    is_convolution = stage.kind == _CONVOLUTION
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
        (read_y, times_y), (read_x, times_x) = (_along(*sizes, stage.window) for sizes in pairs)
        return cls(read_y, read_x, times_y, times_x)

    def inputs_of(self, outputs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which inputs are read by any of these outputs."""
        return np.asarray((self.is_read_y.T @ outputs.astype(np.float64) @ self.is_read_x) > 0)

    def outputs_of(self, inputs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which outputs read any of these inputs."""
        return np.asarray((self.is_read_y @ inputs.astype(np.float64) @ self.is_read_x.T) > 0)

    def weights_on_inputs(self, outputs: Counts) -> _Matrix:
        """Return the connections of so many outputs at each position to one input channel, by position."""
        return self.times_y.T @ outputs.astype(np.float64) @ self.times_x


def _along(num_outputs: int, num_inputs: int, window: Window | None) -> tuple[_Matrix, _Matrix]:
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
