"""Groupings of gradients on one channel: the best contiguous one, and the rules of frameworks and papers.

Tensors, groups (``ends``) and waits are those of :mod:`planner.channel`. Rules prove nothing: :func:`optimal_groups`
under the same wait is never worse. Equations are those of T. Liu et al., WWW '22, doi:10.1145/3485447.3511981 (the OSF
model), where no other source is named.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from planner.channel import Ends, as_tensors, prefix_sums, schedule, transfer_s, waits_of
from planner.cost import Affine, CheapestOf, Floats, TransferCost, Wait
from planner.solution import Solution, Status

_BETWEEN = 256  # tensors between two questions: the last of 50,000 take a third of a millisecond each


def optimal_groups(
    ready_s: ArrayLike,
    size_bytes: ArrayLike,
    cost: TransferCost,
    *,
    wait: Wait = Wait.NONE,
    timeout_s: float = math.inf,
    is_late: Callable[[], bool] = lambda: False,
) -> Solution[Ends]:
    """Return the contiguous grouping whose last transfer ends first.

    Sets and data: tensors ``0..n-1``, ready times ``r`` (nondecreasing), sizes ``d``; ``P[b] = d[0] + .. + d[b-1]``;
    ``w[b] = min(timeout, r[b+1] - r[b])``, and ``w[n-1] = 0``. The wait depends only on where a group ends, hence

    ======  ===================  ==============
    wait    threshold ``T[b]``   lag ``L[b]``
    ======  ===================  ==============
    none    ``r[b]``             0
    exact   ``r[b] + w[b]``      0
    paper   ``r[b]``             ``w[b]``
    ======  ===================  ==============

    Variables: the number of groups and their last indices ``e[1] < .. < e[g] = n-1``; ``e[0] = -1``.
    Objective: minimise ``end[g]``. Constraints: one channel, in ready order, ``end[0] = r[0]``, cost(0) = 0,
    ``end[j] = max(end[j-1], T[e[j]]) + L[e[j]] + cost(P[e[j]+1] - P[e[j-1]+1])``.

    Recursion: ``E[b+1] = min over a <= b of max(E[a], T[b]) + L[b] + cost(P[b+1] - P[a])``, ``E[0] = r[0]``, answer
    ``E[n]``. It is exact for any cost, also one that falls with size, as a group's end never falls when the end of
    the group before it rises.

    Parameters
    ----------
    ready_s, size_bytes, cost, wait, timeout_s
        As for `schedule`. `Affine` costs, and the `CheapestOf` several, are recognised by their types, and solved in
        O(n) for each.
    is_late
        Asked where the cost is of another kind, some times for a million sums; then it ends.

    Returns
    -------
    Solution
        OPTIMAL, with the ends of the groups as ``value``; or UNKNOWN, where it was late.

    Raises
    ------
    ValueError
        If the tensors are not in ready order, a number is not finite or negative, or the cost is not finite.

    Notes
    -----
    Complexity: O(n^2) with O(n) memory for any cost, O(n k) for the cheapest of k `Affine` ones.

    Proves: no grouping that is *contiguous in ready order* ends earlier, under this cost and these waits. An affine
    cost loses nothing against arbitrary groupings: keep where an arbitrary grouping's nonempty groups end and make
    them contiguous; from every end on, what is still to be sent becomes no more. With a cost of another shape
    something can be lost. Ready (1, 1.5, 15.3, 17.7), sizes (60, 200, 16, 8), cost log2 D + 1 below 64 and from
    there on at slope 0.1: the best contiguous grouping ends at 33.685, the best of all, {2} and {1, 3, 4}, at 31.100.

    Sizes are compared through ``P``: they should be whole bytes (below 2**53 in sum, where sums are exact).
    The same input gives the same groups. Of groupings that tie, the general search takes the one whose last groups
    start earliest; the affine search may take a later start if the channel idles before either.

    >>> from planner.cost import Affine
    >>> optimal_groups([0, 1, 9], [4, 4, 4], Affine(startup_s=3, per_byte_s=1)).value
    (1, 2)
    """
    ready, sizes = as_tensors(ready_s, size_bytes)
    _, threshold, lag = waits_of(ready, wait, timeout_s)
    parts = cost.costs if isinstance(cost, CheapestOf) else (cost,)
    affine = [part for part in parts if isinstance(part, Affine)]
    if len(affine) == len(parts):
        starts = _affine_starts(threshold, lag, prefix_sums(sizes), ready[0], affine)
    else:
        found = _general_starts(threshold, lag, prefix_sums(sizes), ready[0], cost, is_late)
        if found is None:
            return Solution(status=Status.UNKNOWN, objective=math.inf, bound=0.0, value=None)
        starts = found
    ends = _follow(starts)
    finish_s = schedule(ends, ready, sizes, cost, wait=wait, timeout_s=timeout_s).finish_s
    if not math.isfinite(finish_s):
        raise ValueError(f"cost gives {finish_s} seconds. It must be finite for every sum of adjacent sizes.")
    return Solution(status=Status.OPTIMAL, objective=finish_s, bound=finish_s, value=ends)


def _general_starts(
    threshold: Floats, lag: Floats, prefix: Floats, origin_s: float, cost: TransferCost, is_late: Callable[[], bool]
) -> list[int] | None:
    """Return, for every ``b``, the best first tensor ``a`` of a group that ends at ``b``; None if it is late."""
    best_s = np.full(len(prefix), origin_s)
    first_equal = np.searchsorted(prefix, prefix)  # groups from here on up to b are empty, their cost 0
    starts = []
    for b in range(len(threshold)):
        if b % _BETWEEN == _BETWEEN - 1 and is_late():
            return None
        end_s = np.maximum(best_s[: b + 1], threshold[b]) + lag[b]
        if num_carrying := min(first_equal[b + 1], b + 1):
            end_s[:num_carrying] += cost(prefix[b + 1] - prefix[:num_carrying])
        a = int(np.argmin(end_s))
        starts.append(a)
        best_s[b + 1] = end_s[a]
    return starts


def _affine_starts(
    threshold: Floats, lag: Floats, prefix: Floats, origin_s: float, costs: Sequence[Affine]
) -> list[int]:
    """Return the same in O(n) for each cost ``s + k D``, where a transfer takes what the cheapest of them takes.

    ``E[b+1]`` is the least over ``a`` of the least over costs, hence the least over costs of that over ``a``: each
    cost has a queue, of starts at the one ``E`` of all.

    By one cost a group from ``a`` to ``b`` ends at ``max(key[a], T[b] - k P[a])`` plus terms without ``a``, where
    ``key[a] = E[a] - k P[a]``; P and T never fall. Hence (1) a later start with a lower key replaces an earlier one
    for good, so along the queue keys rise. This needs no rising E, which the printed wait does not grant. (2) Once
    the second key lies below ``T[b] - k P[first]``, the second start is no worse than the first, for good. (3) If
    it does not, no key behind it does, and the first is best. Each start enters and leaves once.

    A group of empty tensors costs 0, not s. Priced at s in the queue, such starts are never too cheap; their true
    price needs only the least E since the last tensor that carries bytes.
    """
    thresholds, lags, totals = threshold.tolist(), lag.tolist(), prefix.tolist()
    best_s, starts = [float(origin_s)], []
    # What another cost is no dearer than at any size is left out.
    queues: list[tuple[float, float, deque[tuple[float, int]]]] = []
    for cost in sorted(costs, key=lambda one: (one.startup_s, one.per_byte_s)):
        if not queues or cost.per_byte_s < queues[-1][1]:
            queues.append((cost.startup_s, cost.per_byte_s, deque()))
    empty = -1  # the best start of a group without bytes, or -1
    for b, (ready, lag_s) in enumerate(zip(thresholds, lags, strict=True)):
        start_s, total, until, a, end_s = best_s[b], totals[b], totals[b + 1], -1, math.inf
        for startup_s, per_byte_s, queue in queues:
            key = start_s - per_byte_s * total
            while queue and queue[-1][0] > key:
                queue.pop()
            queue.append((key, b))
            while len(queue) > 1 and queue[1][0] < ready - per_byte_s * totals[queue[0][1]]:
                queue.popleft()
            first = queue[0][1]
            by_this_s = max(best_s[first], ready) + lag_s + (startup_s + per_byte_s * (until - totals[first]))
            if a < 0 or by_this_s < end_s:
                a, end_s = first, by_this_s
        if until > total:
            empty = -1
        else:
            empty = b if empty < 0 or start_s < best_s[empty] else empty
            if (empty_end_s := max(best_s[empty], ready) + lag_s) < end_s:
                a, end_s = empty, empty_end_s
        starts.append(a)
        best_s.append(end_s)
    return starts


def _follow(starts: list[int]) -> Ends:
    """Return the ends of the groups that lead to the last tensor."""
    ends, b = [], len(starts)
    while b > 0:
        ends.append(b - 1)
        b = starts[b - 1]
    return tuple(reversed(ends))


class AdaFusion(StrEnum):
    """Which wait adaFusion holds against a merge."""

    LITERAL = "literal"  # equation 17: the whole gap to the next gradient
    IDLE = "idle"  # only the part of it that the channel would spend idle


def unfused(num_tensors: int) -> Ends:
    """Return every tensor as its own group.

    Parameters
    ----------
    num_tensors
        >= 1.

    >>> unfused(3)
    (0, 1, 2)
    """
    return tuple(range(_at_least_one(num_tensors)))


def one_group(num_tensors: int) -> Ends:
    """Return all tensors as one group: no overlap with computing, one start-up.

    Parameters
    ----------
    num_tensors
        >= 1.

    >>> one_group(3)
    (2,)
    """
    return (_at_least_one(num_tensors) - 1,)


def constant_buffer(
    size_bytes: ArrayLike, buffer_bytes: float, ready_s: ArrayLike | None = None, timeout_s: float = math.inf
) -> Ends:
    """Return the groups of a buffer that is flushed when full, or when the next gradient is late.

    Parameters
    ----------
    size_bytes
        Of each tensor. One that is larger than the buffer travels alone.
    buffer_bytes
        Q; >= 0. A group may fill it exactly.
    ready_s
        Needed only with a timeout.
    timeout_s
        A gap to the next gradient above this flushes; it is per gap, not since the buffer's first tensor.

    Raises
    ------
    ValueError
        Where the buffer or the timeout is below 0, or a timeout comes without ready times.

    Notes
    -----
    Equations 12 and 13, with the timeout test strict in both, and 13 testing the *next* gradient's backward time:
    as printed, gradients are lost or sent twice.

    >>> constant_buffer([4, 4, 4, 9, 1], 8)
    (1, 2, 3, 4)
    >>> constant_buffer([1, 1, 1], 8, ready_s=[0, 1, 5], timeout_s=2)
    (1, 2)
    """
    if ready_s is None and timeout_s != math.inf:
        raise ValueError(f"timeout_s={timeout_s} needs ready_s.")
    if not buffer_bytes >= 0 or not timeout_s >= 0:
        raise ValueError(f"buffer_bytes={buffer_bytes} and timeout_s={timeout_s} must be >= 0.")
    ready, sizes = as_tensors(np.zeros(np.shape(size_bytes)) if ready_s is None else ready_s, size_bytes)
    gaps = np.diff(ready).tolist()
    ends, held = [], float(sizes[0])
    for last, (gap, size) in enumerate(zip(gaps, sizes[1:].tolist(), strict=True)):
        if held + size > buffer_bytes or gap > timeout_s:
            ends.append(last)
            held = 0.0
        held += size
    return (*ends, len(sizes) - 1)


def mg_wfbp(ready_s: ArrayLike, size_bytes: ArrayLike, cost: TransferCost, startup_s: float) -> Ends:
    """Return the groups of MG-WFBP: wait for the next gradient if it comes before a start-up would be over.

    Parameters
    ----------
    ready_s, size_bytes, cost
        As for `planner.channel.schedule`; judged without waits.
    startup_s
        What one transfer fewer saves; the affine cost's constant.

    Notes
    -----
    With ``start = max(free, ready)`` of the group as it stands, the next tensor joins iff its ready time is below
    ``start + startup_s`` and below the end of the group's own transfer. Source: S. Shi, X. Chu and B. Li, MG-WFBP,
    INFOCOM 2019, arXiv:1811.11141, as the OSF paper compares itself with it.

    >>> from planner.cost import Affine
    >>> mg_wfbp([0, 1, 9], [4, 4, 4], Affine(startup_s=3, per_byte_s=1), 3)
    (1, 2)
    """
    ready, sizes = as_tensors(ready_s, size_bytes)
    one_s, free, held, ends = _one_s(cost), -math.inf, 0.0, []
    for last, ((now, following), size) in enumerate(zip(pairwise(ready.tolist()), sizes[:-1].tolist(), strict=True)):
        held += size
        start = max(free, now)
        end = start + one_s(held)
        if not following < min(start + startup_s, end):
            ends.append(last)
            free, held = end, 0.0
    return (*ends, len(sizes) - 1)


def ada_fusion(
    ready_s: ArrayLike, size_bytes: ArrayLike, cost: TransferCost, variant: AdaFusion = AdaFusion.LITERAL
) -> Ends:
    """Return the groups of adaFusion: the next tensor joins if that costs less than a transfer of its own.

    Parameters
    ----------
    ready_s, size_bytes, cost
        As for `planner.channel.schedule`; ``free`` below is the channel without waits.
    variant
        Which wait ``w`` counts.

    Notes
    -----
    Equation 17: fuse D into the buffer B iff ``cost(B + D) + w < cost(B) + cost(D)``. Literal: ``w`` is the next
    tensor's backward time (printed as t_wait(i), which is the wait *for* the tensor after it). Idle: ``w = max(0,
    next ready - max(free, ready of the last buffered))``. With an affine cost the literal rule is ``gap < start-up``
    for sizes above 0, so it merges everything when all layers are short: its weakness.

    >>> from planner.cost import Affine
    >>> cost = Affine(startup_s=2, per_byte_s=1)
    >>> ada_fusion([0, 3, 6], [9, 9, 9], cost), ada_fusion([0, 3, 6], [9, 9, 9], cost, AdaFusion.IDLE)
    ((0, 1, 2), (0, 2))
    """
    ready, sizes = as_tensors(ready_s, size_bytes)
    alone_s = transfer_s(cost, sizes).tolist()
    one_s = _one_s(cost)
    times, free, held, held_s, ends = ready.tolist(), -math.inf, float(sizes[0]), alone_s[0], []
    for last, size in enumerate(sizes[1:].tolist()):
        now, following = times[last], times[last + 1]
        wait = following - now if variant == AdaFusion.LITERAL else max(0.0, following - max(free, now))
        fused_s = one_s(held + size)
        if fused_s + wait < held_s + alone_s[last + 1]:
            held, held_s = held + size, fused_s
        else:
            ends.append(last)
            free = max(free, now) + held_s
            held, held_s = size, alone_s[last + 1]
    return (*ends, len(sizes) - 1)


def _one_s(cost: TransferCost) -> Callable[[float], float]:
    """Return the seconds of one transfer as a function of its size: of plain numbers where all of it is affine."""
    parts = getattr(cost, "costs", (cost,))  # of the cheapest of several
    affine = [(one.startup_s, one.per_byte_s) for one in parts if isinstance(one, Affine)]
    if len(affine) < len(parts):
        return lambda size: float(transfer_s(cost, size)[0])
    return lambda size: min(startup_s + per_byte_s * size for startup_s, per_byte_s in affine) if size > 0 else 0.0


def _at_least_one(num_tensors: int) -> int:
    if num_tensors < 1:
        raise ValueError(f"num_tensors must be >= 1, not {num_tensors}.")
    return num_tensors
