"""The best contiguous grouping of gradients on one channel.

Tensors, groups (``ends``) and waits are those of :mod:`planner.channel`. Fast heuristics are in
`planner.solvers.fusion_heuristics`, the referee in `planner.solvers.exhaustive`.
"""

import math
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from planner.channel import Ends, as_tensors, prefix_sums, schedule, waits_of
from planner.cost import Affine, Floats, TransferCost, Wait
from planner.solution import Solution, Status

__all__ = ["optimal_groups"]

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
        As for `schedule`. An `Affine` cost is recognised by its type, and solved in O(n).
    is_late
        Asked where the cost is not affine, some times for a million sums; then it ends.

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
    Complexity: O(n^2) with O(n) memory for any cost, O(n) for an `Affine` one.

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
    if isinstance(cost, Affine):
        starts = _affine_starts(threshold, lag, prefix_sums(sizes), ready[0], cost)
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


def _affine_starts(threshold: Floats, lag: Floats, prefix: Floats, origin_s: float, cost: Affine) -> list[int]:
    """Return the same in O(n), for cost ``s + k D``.

    A group from ``a`` to ``b`` ends at ``max(key[a], T[b] - k P[a])`` plus terms without ``a``, where
    ``key[a] = E[a] - k P[a]``; P and T never fall. Hence (1) a later start with a lower key replaces an earlier one
    for good, so along the queue keys rise. This needs no rising E, which the printed wait does not grant. (2) Once
    the second key lies below ``T[b] - k P[first]``, the second start is no worse than the first, for good. (3) If
    it does not, no key behind it does, and the first is best. Each start enters and leaves once.

    A group of empty tensors costs 0, not s. Priced at s in the queue, such starts are never too cheap; their true
    price needs only the least E since the last tensor that carries bytes.
    """
    thresholds, lags, totals = threshold.tolist(), lag.tolist(), prefix.tolist()
    startup_s, per_byte_s = cost.startup_s, cost.per_byte_s
    best_s, keys, starts = [float(origin_s)], [], []
    queue: deque[int] = deque()
    empty = -1  # the best start of a group without bytes, or -1
    for b, (ready, lag_s) in enumerate(zip(thresholds, lags, strict=True)):
        keys.append(best_s[b] - per_byte_s * totals[b])
        while queue and keys[queue[-1]] > keys[b]:
            queue.pop()
        queue.append(b)
        while len(queue) > 1 and keys[queue[1]] < ready - per_byte_s * totals[queue[0]]:
            queue.popleft()
        a = queue[0]
        end_s = max(best_s[a], ready) + lag_s + (startup_s + per_byte_s * (totals[b + 1] - totals[a]))
        if totals[b + 1] > totals[b]:
            empty = -1
        else:
            empty = b if empty < 0 or best_s[b] < best_s[empty] else empty
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
