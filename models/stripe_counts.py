"""Who reads whose neurons where layers are cut into stripes: the counts of segments.py, from rows alone.

A stripe holds whole rows of an image, in all channels, so that only rows decide: what holds for a row is multiplied by
its columns and channels. The counts are those of :func:`planner.models.segments.count_boundary` for the scheme
:func:`planner.models.segments.stripes`, some hundred times as fast, which a search over all partitions needs.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.dnn import Window
from planner.models.segments import Boundary, Counts, Stage

__all__ = ["WindowRows", "num_stripes", "stripe_boundary", "stripe_channels", "stripe_sizes", "window_rows"]

_Matrix = NDArray[np.float64]


def num_stripes(shape: tuple[int, ...]) -> int:
    """Return the most stripes that a layer can be cut into without empty ones: its rows, or neurons without rows.

    >>> num_stripes((96, 55, 55)), num_stripes((500,))
    (55, 500)
    """
    return shape[1] if len(shape) == 3 else shape[0]


def stripe_sizes(shape: tuple[int, ...], num_segments: int) -> Counts:
    """Return the neurons of every stripe.

    >>> stripe_sizes((5,), 2).tolist()
    [2, 3]
    """
    num_rows = num_stripes(shape)
    return np.asarray(np.diff(_ends(num_rows, num_segments)) * (prod(shape) // num_rows), dtype=np.int64)


def stripe_channels(shape: tuple[int, ...], num_segments: int) -> Counts:
    """Return the channels (or neurons, without rows) of which each stripe holds a part: it needs their weights."""
    sizes = stripe_sizes(shape, num_segments)
    return np.where(sizes > 0, shape[0], 0) if len(shape) == 3 else sizes


def stripe_boundary(stage: Stage, num_before: int, num_segments: int, before_shape: tuple[int, ...]) -> Boundary:
    """Return what passes between the stripes of the layer before a stage and those of the stage itself.

    Parameters
    ----------
    before_shape
        Of the output of the layer before, which a fully-connected stage may flatten.
    """
    if stage.kind == "fully_connected":
        return _fully_connected(
            stage, stripe_sizes(before_shape, num_before), stripe_sizes(stage.output_shape, num_segments)
        )
    rows = window_rows(stage)
    before, after = _ends(stage.input_shape[1], num_before), _ends(stage.output_shape[1], num_segments)
    return Boundary(
        needed=_whole(_blocks(_blocks(rows.reads, after) > 0, before, axis=1) * rows.inputs_of_a_row),
        returned=_whole(_blocks(_blocks(rows.reads.T, before) > 0, after, axis=1) * rows.outputs_of_a_row),
        connections=_whole(_blocks(_blocks(rows.times, after), before, axis=1) * rows.connections_of_a_row),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """Which rows of its input (column) each row of a stage's output reads, and with how many rows of weights.

    Beside it what a row stands for: neurons of the input that are read, of the output that read, and connections.
    """

    reads: _Matrix
    times: _Matrix
    inputs_of_a_row: int
    outputs_of_a_row: int
    connections_of_a_row: float


def window_rows(stage: Stage) -> WindowRows:
    """Return the rows of a convolution or a pool; a pool has no connections."""
    (channels_in, rows_in, columns_in), (channels, rows, columns) = stage.input_shape, stage.output_shape
    reads_x, times_x = _along(columns, columns_in, stage.window)
    reads, times = _along(rows, rows_in, stage.window)
    return WindowRows(
        reads=reads,
        times=times,
        inputs_of_a_row=channels_in * int(reads_x.any(axis=0).sum()),
        outputs_of_a_row=channels * int(reads_x.any(axis=1).sum()),
        connections_of_a_row=times_x.sum() * channels_in * channels if stage.kind == "convolution" else 0.0,
    )


def _fully_connected(stage: Stage, num_before: Counts, num_after: Counts) -> Boundary:
    """Return the boundary where every neuron of one layer reads every one of the other, if there is any."""
    pairs = np.outer(num_after, num_before)
    return Boundary(
        needed=np.outer(num_after > 0, num_before),
        returned=np.outer(num_before > 0, num_after),
        connections=_whole(pairs * (stage.num_connections / pairs.sum())),
    )


def _whole(numbers: _Matrix) -> Counts:
    """Return whole numbers."""
    return np.rint(numbers).astype(np.int64)


def _ends(num_rows: int, num_segments: int) -> Counts:
    """Return where each stripe begins, and where the last one ends."""
    return np.asarray(num_rows * np.arange(num_segments + 1) // num_segments)


def _blocks(matrix: NDArray[np.generic], ends: Counts, axis: int = 0) -> _Matrix:
    """Return the sums of a matrix's rows (or columns) over every stripe."""
    sums = np.zeros_like(matrix, dtype=np.float64, shape=tuple(n + (i == axis) for i, n in enumerate(matrix.shape)))
    np.cumsum(matrix, axis=axis, out=sums[1:] if axis == 0 else sums[:, 1:])
    return np.asarray(np.diff(np.take(sums, ends, axis=axis), axis=axis))


@lru_cache(maxsize=256)  # a network has few shapes, and every number of stripes asks for them again
def _along(num_outputs: int, num_inputs: int, window: Window | None) -> tuple[_Matrix, _Matrix]:
    """Return which inputs each output reads along one axis, and with how many weights: those on padding at the edge."""
    if window is None:
        return (np.ones((num_outputs, num_inputs)),) * 2
    first = np.arange(num_outputs)[:, np.newaxis] * window.stride - window.padding
    inputs = np.arange(num_inputs)
    reads = ((inputs >= first) & (inputs < first + window.kernel)).astype(np.float64)
    times = reads.copy()
    times[:, :1] += np.clip(-first, 0, window.kernel)
    times[:, -1:] += np.clip(first + window.kernel - num_inputs, 0, window.kernel)
    return reads, times
