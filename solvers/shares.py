"""Shares of a batch for heterogeneous workers, jointly with the fusion of their gradients.

Sets and data
    kinds ``t`` of equal workers, ``n_t`` of each; ``B`` samples; gradients ``0..L-1`` in ready order.
Variables
    ``b_t``, whole: the largest share of a worker of kind t; some of the kind have one sample less. The ends of the
    fusion groups.
Constraints
    ``sum n_t b_t >= B``: the batch is shared out. ``least_t <= b_t``, and every worker has a sample, so that
    ``B >= sum over t of max(n_t (b_t - 1) + 1, n_t)``.
Objective
    minimise the time of an iteration. It depends on the shares by the ready times of the gradients, of which each is
    that of the latest kind, and by computation and input of each kind; and on the groups by the end of the last
    transfer.
Search
    For given shares the best groups come from a dynamic programme, here of many share vectors at once
    (:func:`finish_times_s`). A cost model says which shares no kind may exceed if an iteration is to end within T
    (:class:`ShareCost`); with T the incumbent, at most ``sum n_t u_t - B`` samples may be missing from these shares
    u, hence ``b_t >= u_t - (sum n_s u_s - B) / n_t``. This box is enumerated. Where the time never falls as a
    share grows, the last kind's share follows from the others': the least that makes the batch.
Proves
    that no shares and contiguous groups are better, if the box could be enumerated to its end; else the bound is that
    of the relaxation: no T below it admits shares that make the batch.
Source
    The formulation is our own; the groups are those of :func:`planner.solvers.fusion.optimal_groups`.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.channel import prefix_sums
from planner.cost import Floats, TransferCost, Wait
from planner.frozen import frozen
from planner.search import Search
from planner.solution import SAME, Solution, Status

Ints = NDArray[np.int64]
_CHUNK = 512  # share vectors that are looked at together
_MOST_VECTORS = 200_000


class ShareCost(Protocol):
    """Seconds of an iteration by the shares."""

    def times_s(self, shares: Ints, /) -> Floats:
        """Return the seconds of an iteration with the best groups, for every row of shares.

        Parameters
        ----------
        shares
            K x T: samples of a worker of each kind.
        """
        ...

    def least_times_s(self, shares: Ints, /) -> Floats:
        """Return seconds that no grouping beats, for every row of shares; cheaper than ``times_s``.

        Parameters
        ----------
        shares
            K x T.
        """
        ...

    def most_shares(self, limit_s: Floats, /) -> Floats:
        """Return, for every limit, the shares that no kind may exceed in an iteration within it; K x T.

        Parameters
        ----------
        limit_s
            Length K.
        """
        ...


@frozen(eq=False)
class Workers:
    """How many workers of each kind, the samples that they share, and the least share of each kind.

    ``is_monotone``: whether an iteration never gets shorter as a share grows.
    """

    counts: Ints
    batch: int
    least: Ints
    is_monotone: bool = True

    def are_valid(self, shares: Ints) -> NDArray[np.bool_]:
        """Say which rows of shares make the batch.

        Parameters
        ----------
        shares
            K x T.
        """
        fewest = np.maximum(self.counts * (shares - 1) + 1, self.counts).sum(axis=1)
        valid: NDArray[np.bool_] = (shares >= self.least).all(axis=1) & (shares @ self.counts >= self.batch)
        valid &= fewest <= self.batch
        return valid


def best_shares(
    workers: Workers,
    cost: ShareCost,
    *,
    limit_s: float = float("inf"),
    bound_s: float = 0.0,
    search: Search | None = None,
) -> Solution[tuple[int, ...]]:
    """Return the best shares below ``limit_s``; the formulation stands at the head of the module.

    Parameters
    ----------
    workers
        Who shares the batch.
    cost
        Of an iteration by the shares.
    limit_s
        Only shares that take less are looked for.
    bound_s
        A known bound, below which nothing is tried.
    search
        Ends it; None: nothing does.

    Returns
    -------
    Solution
        OPTIMAL, or INFEASIBLE where nothing takes less than ``limit_s``; FEASIBLE or UNKNOWN where a limit struck.
        INFEASIBLE and UNKNOWN have ``limit_s`` and ``bound_s`` as their bounds.
    """
    incumbent, best = limit_s, None
    start_s, start = _start(workers, cost, bound_s)
    if start is not None:
        own_s = float(cost.times_s(np.array([start]))[0])
        if own_s < incumbent:
            incumbent, best = own_s, start
    bound_s = min(max(bound_s, start_s), incumbent)
    enough_s = incumbent * (1 - SAME)
    box = _box(workers, cost, enough_s)
    is_whole = True
    if bound_s < enough_s and box is not None:
        vectors, is_whole = _vectors(workers, *box)
        least_s = _in_chunks(cost.least_times_s, vectors)
        order = np.lexsort((np.arange(len(vectors)), least_s))
        size = 16
        position = 0
        while position < len(order):
            rows = order[position : position + size]
            if least_s[rows[0]] >= incumbent * (1 - SAME):
                break
            if search is not None and search.is_over:
                is_whole = False
                break
            times_s = cost.times_s(vectors[rows])
            first = int(np.argmin(times_s))
            if times_s[first] < incumbent:
                incumbent, best = float(times_s[first]), tuple(vectors[rows[first]].tolist())
            position += size
            size = min(2 * size, _CHUNK)
    proven_s = incumbent if is_whole else bound_s
    if best is None:
        status = Status.INFEASIBLE if is_whole else Status.UNKNOWN
        return Solution(status=status, objective=float("inf"), bound=proven_s, value=None)
    status = Status.OPTIMAL if proven_s >= incumbent * (1 - SAME) else Status.FEASIBLE
    return Solution(status=status, objective=incumbent, bound=min(proven_s, incumbent), value=best)


def _start(workers: Workers, cost: ShareCost, bound_s: float) -> tuple[float, tuple[int, ...] | None]:
    """Return the least time that the relaxation allows, and the shares that it has then, cut down to the batch."""

    def makes(limit_s: float) -> bool:
        most = cost.most_shares(np.array([limit_s]))[0]
        return bool((most >= workers.least).all() and workers.counts @ most >= workers.batch)

    equal = np.maximum(-(-workers.batch // int(workers.counts.sum())), workers.least)
    high_s = max(float(cost.least_times_s(equal[None])[0]), bound_s)
    for _ in range(60):
        if makes(high_s):
            break
        high_s *= 2
    else:
        return bound_s, None
    low_s = bound_s
    while high_s - low_s > 1e-6 * high_s:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if makes(middle_s) else (middle_s, high_s)
    return low_s, repaired(workers, cost.most_shares(np.array([high_s]))[0])


def repaired(workers: Workers, most: Floats) -> tuple[int, ...] | None:
    """Return shares of at most ``most`` that make the batch with as few samples too many as one pass cuts off.

    None where they cannot.

    Parameters
    ----------
    workers
        Who shares the batch.
    most
        The largest share of each kind; length T.
    """
    counts, batch = workers.counts, workers.batch
    shares = np.minimum(most, batch).astype(np.int64)
    if (shares < workers.least).any():
        return None
    for kind in np.argsort(-counts, kind="stable"):
        spare = int((shares @ counts - batch) // counts[kind])
        shares[kind] = max(int(workers.least[kind]), int(shares[kind]) - max(spare, 0))
    return tuple(shares.tolist()) if workers.are_valid(shares[None])[0] else None


def _box(workers: Workers, cost: ShareCost, limit_s: float) -> tuple[Ints, Ints] | None:
    """Return the least and the most shares of an iteration within ``limit_s``, or None if nothing is."""
    most = np.minimum(cost.most_shares(np.array([limit_s]))[0], workers.batch)
    if not (most >= workers.least).all():
        return None
    high = most.astype(np.int64)
    spare = int(workers.counts @ high) - workers.batch
    if spare < 0:
        return None
    return np.maximum(workers.least, high - spare // workers.counts), high


def _vectors(workers: Workers, low: Ints, high: Ints) -> tuple[Ints, bool]:
    """Return the valid share vectors of a box in a fixed order, and whether these are all."""
    widths = high - low + 1
    last = int(np.argmax(widths)) if workers.is_monotone else -1
    ranges = [range(one, other + 1) for one, other in zip(low.tolist(), high.tolist(), strict=True)]
    if last >= 0:
        ranges[last] = range(1)
    is_whole = True
    while math.prod(float(len(one)) for one in ranges) > _MOST_VECTORS:
        longest = int(np.argmax([len(one) for one in ranges]))
        ranges[longest] = ranges[longest][len(ranges[longest]) // 2 :]  # the shares nearest to what time allows
        is_whole = False
    axes = [np.arange(one.start, one.stop, dtype=np.int64) for one in ranges]  # only now: a batch may be of any size
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    if last >= 0:
        missing = workers.batch - grid @ workers.counts
        grid[:, last] = np.maximum(workers.least[last], -(-missing // workers.counts[last]))
        grid = grid[grid[:, last] <= high[last]]
    return grid[workers.are_valid(grid)], is_whole


def _in_chunks(function: Callable[[Ints], Floats], vectors: Ints) -> Floats:
    """Return a function of all rows, computed in pieces that fit into caches."""
    if not len(vectors):
        return np.zeros(0)
    parts = [function(vectors[start : start + _CHUNK]) for start in range(0, len(vectors), _CHUNK)]
    return np.concatenate(parts)


def finish_times_s(
    ready_s: Floats,
    size_bytes: Floats,
    costs: TransferCost | tuple[Floats, Floats],
    *,
    wait: Wait = Wait.NONE,
    timeout_s: float = float("inf"),
) -> Floats:
    """Return when the last transfer ends under the best contiguous groups, for many rows of ready times at once.

    Parameters
    ----------
    ready_s
        K x L, nondecreasing along rows.
    size_bytes
        Length L.
    costs
        One cost for all rows; or start-ups and seconds a byte, both K x F, of F affine costs, of which each transfer
        takes the cheapest.
    wait, timeout_s
        How a full buffer waits, as in :func:`planner.channel.schedule`.

    Notes
    -----
    The recursion of :func:`planner.solvers.fusion.optimal_groups`, O(K L^2 F); the same waits.

    >>> from planner.cost import Affine
    >>> ready = np.array([[0.0, 1.0, 9.0], [0.0, 4.0, 4.0]])
    >>> finish_times_s(ready, np.array([4.0, 4.0, 4.0]), Affine(startup_s=3, per_byte_s=1)).tolist()
    [19.0, 18.0]
    """
    until_s = np.minimum(ready_s + timeout_s, np.concatenate((ready_s[:, 1:], ready_s[:, -1:]), axis=1))
    threshold_s = until_s if wait is Wait.EXACT else ready_s
    lag_s = until_s - ready_s if wait is Wait.PAPER else None
    prefix = prefix_sums(size_bytes)
    end_s = np.empty((len(ready_s), len(prefix)))
    end_s[:, 0] = ready_s[:, 0]
    for b in range(len(size_bytes)):
        group_s = _group_s(costs, prefix[b + 1] - prefix[: b + 1])
        finish_s = (np.maximum(end_s[:, : b + 1], threshold_s[:, b : b + 1]) + group_s).min(axis=1)
        end_s[:, b + 1] = finish_s if lag_s is None else finish_s + lag_s[:, b]
    return end_s[:, -1]


def _group_s(costs: TransferCost | tuple[Floats, Floats], sizes: Floats) -> Floats:
    """Return the seconds of each of some transfers: for all rows, or row by row."""
    if not isinstance(costs, tuple):
        carried = sizes > 0
        seconds = np.zeros_like(sizes)
        if carried.any():
            seconds[carried] = costs(sizes[carried])
        return seconds[None]
    startup_s, per_byte_s = costs
    seconds = startup_s[:, :1] + per_byte_s[:, :1] * sizes
    for form in range(1, startup_s.shape[1]):
        seconds = np.minimum(seconds, startup_s[:, form : form + 1] + per_byte_s[:, form : form + 1] * sizes)
    return np.where(sizes > 0, seconds, 0.0)
