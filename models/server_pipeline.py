"""The two pipelines of an iteration with parameter servers, and its barrier: equations 1 to 6 of the GST model.

Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter
Server, section III. The paper's processes are input (IO), forward and backward (FP, BP), push (its forward
communication, FC), aggregation (AG), pull (its backward communication, BC) and update (UP). The last axis of every
array is the pipeline's: iterations of one worker, or layers in backward order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.errors import ModelError

__all__ = [
    "LayerTimes",
    "Overlapped",
    "Steps",
    "cut_into_pieces",
    "epoch_time_s",
    "explicit_input_s",
    "global_synchronization_times_s",
    "overlap_layers",
    "tail_s",
    "type_one_s",
    "type_two_s",
]


# -- two kinds of processes ------------------------------------------------------------------------------------------


def type_one_s(duration_s: ArrayLike) -> Floats:
    """Return when a process ends that waits only for its own predecessor (eq. 3)."""
    return np.cumsum(np.asarray(duration_s, dtype=np.float64), axis=-1)


def type_two_s(previous_s: ArrayLike, duration_s: ArrayLike) -> Floats:
    """Return when a process ends that also waits for the process before it (eq. 4).

    Parameters
    ----------
    previous_s
        When the process before it ends; need not be ascending.
    duration_s
        Seconds of each; broadcast against ``previous_s``.

    Notes
    -----
    ``tau(m) = max(previous(m), tau(m-1)) + t(m)``, the single channel of :func:`planner.channel.schedule`. Unrolled,
    ``tau(m) = S(m) + max over i <= m of (previous(i) - S(i-1))`` with S the cumulative sum: two passes over arrays,
    for many configurations at once.

    >>> type_two_s([1, 2, 9], [3, 3, 3]).tolist()
    [4.0, 7.0, 12.0]
    """
    sums = type_one_s(duration_s)
    before = sums - np.asarray(duration_s)
    return np.asarray(sums + np.maximum.accumulate(np.asarray(previous_s) - before, axis=-1))


def explicit_input_s(input_s: ArrayLike, rest_s: ArrayLike) -> Floats:
    """Return the seconds of input in each iteration that the rest of the previous one does not hide (eq. 5).

    Parameters
    ----------
    input_s, rest_s
        Of each iteration: input, and all other processes together.

    Notes
    -----
    ``max(0, tau_io(m) - tau_rest(m-1))``, all of the first. These and the rest's seconds sum to the end of the last
    iteration. Reading runs ahead without limit; leaves out that it also goes on while a worker waits at the barrier,
    so that for unequal workers these are an upper bound.

    >>> explicit_input_s([2, 2, 2], [1, 1, 1]).tolist()
    [2.0, 1.0, 1.0]
    """
    read = type_one_s(input_s)
    before = np.zeros_like(ended := type_two_s(read, rest_s))
    before[..., 1:] = ended[..., :-1]
    return np.maximum(0.0, read - before)


# -- the layers of one iteration -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTimes:
    """Seconds of every layer, in backward order along the last axis; the axes before it are broadcast."""

    backward_s: Floats
    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overlapped:
    """Explicit seconds of an iteration's backward pass and of what it does not hide; they sum to its length."""

    backward_s: Floats
    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats

    @property
    def exposed_s(self) -> Floats:
        """Communication and aggregation that remain visible after the backward pass."""
        return self.push_s + self.aggregate_s + self.pull_s


def overlap_layers(layers: LayerTimes) -> Overlapped:
    """Return the explicit seconds of the layer pipeline (eq. 6).

    Notes
    -----
    Backward is of type I, the others of type II; the differences are taken at the last layer. A pull neither delays
    the push of the next layer nor is it delayed by it: links are full duplex.
    """
    ends = [type_one_s(layers.backward_s)]
    for duration_s in (layers.push_s, layers.aggregate_s, layers.pull_s):
        ends.append(type_two_s(ends[-1], duration_s))
    backward, push, aggregate, pull = (end[..., -1] for end in ends)
    return Overlapped(
        backward_s=backward, push_s=push - backward, aggregate_s=aggregate - push, pull_s=pull - aggregate
    )


def cut_into_pieces(size_bytes: ArrayLike, backward_s: ArrayLike, piece_bytes: float) -> tuple[Floats, Floats]:
    """Return sizes and backward seconds of pieces that travel on their own, as BytePS cuts tensors.

    Each layer gives whole pieces and a remainder, all ready when its backward ends: the first piece carries the time.

    Raises
    ------
    ModelError
        If a piece has no bytes.
    """
    if not piece_bytes > 0:
        raise ModelError(f"piece_bytes is {piece_bytes}. It must be positive.")
    sizes, times = np.atleast_1d(np.asarray(size_bytes, dtype=float)), np.atleast_1d(np.asarray(backward_s, float))
    counts = np.maximum(np.ceil(sizes / piece_bytes), 1).astype(int)
    last = np.cumsum(counts) - 1
    cut = np.full(last[-1] + 1, float(piece_bytes))
    cut[last] = sizes - (counts - 1) * piece_bytes
    ready = np.zeros_like(cut)
    ready[last - counts + 1] = times
    return cut, ready


# -- iterations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Explicit seconds of every process: a row for each worker, a column for each iteration."""

    input_s: Floats
    forward_s: Floats
    backward_s: Floats
    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats
    update_s: Floats


def global_synchronization_times_s(steps: Steps, *, is_printed: bool = False) -> Floats:
    """Return ``GST(n, m)``, each worker's seconds from one complete aggregation to the next (eq. 1).

    Parameters
    ----------
    is_printed
        The second case as printed, without push and aggregation: from the second iteration on they then vanish from
        the epoch.
    """
    compute = steps.input_s + steps.forward_s + steps.backward_s
    exchange = steps.push_s + steps.aggregate_s
    times = compute + exchange
    after = (steps.pull_s + steps.update_s)[..., :-1]
    times[..., 1:] = after + (compute if is_printed else times)[..., 1:]
    return times


def tail_s(steps: Steps) -> float:
    """Return the slowest worker's last pull and update, the end of eq. 2."""
    return float(np.max((steps.pull_s + steps.update_s)[..., -1]))


def epoch_time_s(steps: Steps, *, is_printed: bool = False) -> float:
    """Return the seconds of an epoch, all workers meeting when each aggregation is complete (last line of eq. 2).

    Notes
    -----
    ``sum over m of max over n of GST(n, m), + tail``. Print equates this with the slowest worker's own sum, which
    is only a lower bound: different workers may be the slowest in different iterations.
    """
    times = global_synchronization_times_s(steps, is_printed=is_printed)
    return float(times.max(axis=0).sum()) + tail_s(steps)
