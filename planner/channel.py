"""One channel or server, first come first served: when every group of gradients is sent, and when each job ends.

Tensors come in ready order, the gradient that is computed first coming first; index 0 is the layer nearest the loss.
A grouping is contiguous in that order and is written as ``ends``: the last index of every group, inclusive.
Source: T. Liu et al., WWW '22, doi:10.1145/3485447.3511981, equations 8 and 12 to 16, corrected as the docstrings say.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats, TransferCost, Wait
from planner.frozen import frozen

Ends = tuple[int, ...]


@frozen(eq=False)
class FusionSchedule:
    """One number per group, in the order of transfer."""

    ready_s: Floats  # when the last gradient of the group is computed
    # how long the buffer then waits for a gradient that does not join; 0 for the last group and under ``Wait.NONE``
    wait_s: Floats
    # start_s, end_s: of the transfer itself; between them the channel works for this group alone
    start_s: Floats
    end_s: Floats
    size_bytes: Floats  # sum of the group's tensors

    @property
    def finish_s(self) -> float:
        """Return the end of the last transfer: tau(1) + t_update of equations 9 and 16."""
        return float(self.end_s[-1])


def as_tensors(ready_s: ArrayLike, size_bytes: ArrayLike) -> tuple[Floats, Floats]:
    """Return both as arrays; raise ValueError unless they describe at least one tensor, in ready order."""
    ready, sizes = np.asarray(ready_s, dtype=np.float64), np.asarray(size_bytes, dtype=np.float64)
    if ready.ndim != 1 or ready.shape != sizes.shape or not len(ready):
        raise ValueError(f"ready_s {ready.shape} and size_bytes {sizes.shape} must be equally long and not empty.")
    if not (np.isfinite(ready).all() and np.isfinite(sizes).all()):
        raise ValueError("ready_s and size_bytes must be finite numbers.")
    if (sizes < 0).any():
        raise ValueError(f"size_bytes must be >= 0, but tensor {int(np.argmin(sizes))} has {sizes.min():g}.")
    if (drops := np.flatnonzero(np.diff(ready) < 0)).size:
        raise ValueError(f"ready_s must not decrease, but does after tensor {drops[0]}. Sort tensors by ready time.")
    return ready, sizes


def transfer_s(cost: TransferCost, size_bytes: ArrayLike) -> Floats:
    """Return ``cost`` of each size and 0 for each empty transfer, about which ``cost`` is not asked."""
    sizes = np.atleast_1d(np.asarray(size_bytes, dtype=np.float64))
    seconds = np.zeros_like(sizes)
    if (carried := sizes > 0).any():
        seconds[carried] = cost(sizes[carried])
    return seconds


def schedule(
    ends: Ends,
    ready_s: ArrayLike,
    size_bytes: ArrayLike,
    cost: TransferCost,
    *,
    wait: Wait = Wait.NONE,
    timeout_s: float = math.inf,
) -> FusionSchedule:
    """Return when each group is sent: the model by which every grouping is judged.

    Parameters
    ----------
    ends
        Last index of every group, inclusive and increasing; the last one is the last tensor.
    ready_s, size_bytes
        Of each tensor; ready times nondecreasing, sizes >= 0.
    cost
        Of one transfer.
    wait, timeout_s
        A group that ends at ``e`` waits ``w = min(timeout_s, ready_s[e + 1] - ready_s[e])``, the last group 0.

    Raises
    ------
    ValueError
        If the tensors are not in ready order, a number is not finite or negative, or ``ends`` is no grouping.

    Notes
    -----
    One channel, first come first served, and free at the start; ``D`` is the group's size::

        none    start = max(free, ready)         exact   start = max(free, ready + w)
        paper   start = max(free, ready) + w     all     free = end = start + cost(D)

    Equations 8 and 13-16 with three slips of print mended: the buffer is flushed by the *next* gradient's gap,
    comparisons with the timeout are strict, and the sum in equation 15 starts at i. Leaves out the copies in and
    out of the buffer.

    >>> from planner.cost import Affine
    >>> plan = schedule((0, 2), [0, 4, 5], [8, 1, 1], Affine(startup_s=1, per_byte_s=1), wait=Wait.PAPER)
    >>> plan.start_s.tolist(), plan.end_s.tolist()
    ([4.0, 13.0], [13.0, 16.0])
    """
    ready, sizes = as_tensors(ready_s, size_bytes)
    last = np.asarray(ends, dtype=np.intp)
    if not last.size or last[0] < 0 or last[-1] != len(ready) - 1 or (np.diff(last) <= 0).any():
        raise ValueError(f"ends {ends} must increase from >= 0 to {len(ready) - 1}, the last tensor.")
    waits, threshold, lag = waits_of(ready, wait, timeout_s)
    group_bytes = np.diff(prefix_sums(sizes)[np.concatenate(([0], last + 1))])
    # Python's floats: a loop over numpy's would be several times slower.
    thresholds, lags, costs = threshold[last].tolist(), lag[last].tolist(), transfer_s(cost, group_bytes).tolist()
    free, starts, finishes = -math.inf, [], []
    for group_threshold, group_lag, group_s in zip(thresholds, lags, costs, strict=True):
        start = max(free, group_threshold) + group_lag
        free = start + group_s
        starts.append(start)
        finishes.append(free)
    return FusionSchedule(
        ready_s=ready[last],
        wait_s=waits[last],
        start_s=np.array(starts),
        end_s=np.array(finishes),
        size_bytes=group_bytes,
    )


def waits_of(ready: Floats, wait: Wait, timeout_s: float) -> tuple[Floats, Floats, Floats]:
    """Return, for a group that ends at each tensor, its wait, its threshold T and its lag L."""
    if not timeout_s >= 0:
        raise ValueError(f"timeout_s must be >= 0, not {timeout_s}. Use inf for none.")
    none = np.zeros_like(ready)
    if (wait := Wait(wait)) is Wait.NONE:
        return none, ready, none
    # The next ready time itself, not ready + gap: rounding must not let a threshold pass its successor's.
    until = np.minimum(ready + timeout_s, np.append(ready[1:], ready[-1]))
    waits = until - ready
    return (waits, until, none) if wait is Wait.EXACT else (waits, ready, waits)


def prefix_sums(sizes: Floats) -> Floats:
    """Return ``P[b]``, the sum of the first ``b`` sizes."""
    return np.concatenate(([0.0], np.cumsum(sizes)))


def fifo_end_s(ready_s: ArrayLike, duration_s: ArrayLike) -> Floats:
    """Return when each job ends: ``free = max(free, ready) + duration``.

    Parameters
    ----------
    ready_s
        When each job could start, in the order of service; first come first served if it never decreases.
    duration_s
        How long each occupies the channel, >= 0; or one number for all.

    Raises
    ------
    ValueError
        If there is no job, the lengths differ, or a number is not finite or a duration negative.

    >>> fifo_end_s([0, 1, 9], [3, 2, 1]).tolist()
    [3.0, 5.0, 10.0]
    """
    ready = np.asarray(ready_s, dtype=np.float64)
    duration = np.broadcast_to(np.asarray(duration_s, dtype=np.float64), ready.shape)
    if ready.ndim != 1 or not ready.size:
        raise ValueError(f"ready_s has shape {ready.shape}; give at least one job, in one row.")
    if not (np.isfinite(ready).all() and np.isfinite(duration).all() and (duration >= 0).all()):
        raise ValueError(f"ready_s {ready} must be finite, and duration_s {duration} finite and >= 0.")
    free, ends = -math.inf, []
    for one_ready, one_duration in zip(ready.tolist(), duration.tolist(), strict=True):
        free = max(free, one_ready) + one_duration
        ends.append(free)
    return np.array(ends)
