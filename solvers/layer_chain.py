"""The cheapest choice for every layer of a chain, where neighbours' costs are known at first only from below."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.solution import Solution, Status

__all__ = ["cheapest_chain"]

Path = tuple[int, ...]
_WORK_AT_ONCE = 10_000_000  # pairs that are added between two questions whether to stop: some hundredths of a second
_LEAST_WORK = 10_000  # that a layer counts for, however few its pairs


def cheapest_chain(
    nodes: Sequence[Floats],
    bounds: Sequence[Floats],
    pair_cost: Callable[[int, int, int], float],
    *,
    enough: float = np.inf,
    is_over: Callable[[], bool] = lambda: False,
) -> Solution[Path]:
    """Return one state for every layer, of least total cost.

    Sets: layers ``1..L``, states ``S(l)``. Variables: ``s(l)`` in ``S(l)``. Objective: minimise
    ``sum over l of node(l, s(l)) + sum over l > 1 of pair(l, s(l-1), s(l))``. No constraints.

    Recursion: ``T(1, s) = node(1, s)``, ``T(l, s) = node(l, s) + min over s' of T(l-1, s') + pair(l, s', s)``; the
    answer is ``min over s of T(L, s)``. A pair's cost may be dear to find (an assignment). So the recursion runs on
    lower bounds; the pairs on its cheapest chain are priced exactly and take their bounds' places; and it runs
    again, until all pairs of the cheapest chain are exact. That chain's cost is then its own bound: it is optimal.

    Parameters
    ----------
    nodes
        For every layer, the cost of each state; ``inf`` for one that may not be chosen.
    bounds
        For every layer but the first, ``[s', s]``: no more than the cost of the pair. They are not changed. Layers
        with the same array have equal pairs: what a pair costs for one of them, it costs for all.
    pair_cost
        ``(l, s', s)``, l from 1 as layers count from 0: the exact cost.
    enough
        Stop as soon as no chain can cost less than this: the bound says so.
    is_over
        Whether to stop with the best so far; asked in every run, after each ten million pairs or thousand layers.

    Returns
    -------
    Solution
        OPTIMAL; INFEASIBLE if some layer has no state; or, stopped early, FEASIBLE (UNKNOWN without any chain) with a
        bound. If not even the first run came to its end, that is the chain of each layer's cheapest state, and the sum
        of each layer's least costs. The objective is the sum of exact costs.

    Notes
    -----
    Complexity: O(L S^2) a run; a run prices at least one pair, hence at most L S^2 runs, in practice a few tens.
    Memory: two numbers for every state, and a copy of every distinct array of bounds. Ties go to the lower index.
    """
    if any(not np.isfinite(costs).any() for costs in nodes):
        return Solution(status=Status.INFEASIBLE, objective=np.inf, bound=np.inf, value=None)
    chain = _Chain(nodes, bounds)
    best: tuple[float, Path | None] = (np.inf, None)
    bound = -np.inf
    while True:
        found = chain.cheapest(is_over)
        if found is None and best[1] is not None:
            break
        bound, path = found or chain.cheapest_states()
        if bound >= min(enough, best[0]) or (best[1] is not None and is_over()):
            break
        total = sum(float(costs[state]) for costs, state in zip(nodes, path, strict=True))
        total += sum(chain.price(layer, path[layer - 1], path[layer], pair_cost) for layer in range(1, len(nodes)))
        if found is None:
            best = (total, path) if total < np.inf else best
            break
        if chain.is_settled:  # its pairs cost what they were taken to cost: nothing is cheaper
            best = (bound, path)
            break
        if total < best[0]:
            best = (total, path)
    objective, value = best
    status = Status.UNKNOWN if value is None else Status.OPTIMAL if bound >= objective else Status.FEASIBLE
    return Solution(status=status, objective=objective, bound=min(bound, objective), value=value)


class _Chain:
    """The recursion's tables, which are made again from the first layer on whose pairs were priced."""

    def __init__(self, nodes: Sequence[Floats], bounds: Sequence[Floats]) -> None:
        self._nodes = nodes
        first = dict[int, int]()  # of the layers that share an array, by the array
        self._table = [first.setdefault(id(pairs), layer) for layer, pairs in enumerate(bounds, start=1)]
        self._pairs = {layer: bounds[layer - 1] for layer in first.values()}
        self._exact: dict[int, NDArray[np.bool_]] = {}  # what has none is all bounds, and not yet copied
        self._totals: list[Floats] = [np.asarray(nodes[0], dtype=np.float64)]
        self._from: list[NDArray[np.intp]] = []

    @property
    def is_settled(self) -> bool:
        """Whether no price has changed the tables since the last run."""
        return len(self._totals) == len(self._nodes)

    def cheapest(self, is_over: Callable[[], bool]) -> tuple[float, Path] | None:
        """Return the cost of the cheapest chain, as far as it is known, and its states; None if the time was over."""
        work = 0
        for layer in range(len(self._totals), len(self._nodes)):
            pairs = self._pairs[self._table[layer - 1]]
            work += max(pairs.size, _LEAST_WORK)
            if work > _WORK_AT_ONCE:
                work = 0
                if is_over():
                    return None
            sums = self._totals[-1][:, np.newaxis] + pairs
            before = sums.argmin(axis=0)
            self._from.append(before)
            self._totals.append(self._nodes[layer] + sums[before, np.arange(sums.shape[1])])
        state = int(self._totals[-1].argmin())
        cost = float(self._totals[-1][state])
        path = [state]
        for before in reversed(self._from):
            path.append(int(before[path[-1]]))
        return cost, tuple(reversed(path))

    def cheapest_states(self) -> tuple[float, Path]:
        """Return the least that any chain may cost, and the cheapest state of every layer, whatever the pairs cost."""
        least = {table: float(pairs.min()) for table, pairs in self._pairs.items()}
        bound = sum(float(costs.min()) for costs in self._nodes) + sum(least[table] for table in self._table)
        return bound, tuple(int(costs.argmin()) for costs in self._nodes)

    def price(self, layer: int, before: int, after: int, pair_cost: Callable[[int, int, int], float]) -> float:
        """Return the exact cost of a pair, which takes the place of its bound."""
        table = self._table[layer - 1]
        if table not in self._exact:
            self._pairs[table] = np.array(self._pairs[table], dtype=np.float64)
            self._exact[table] = np.zeros(self._pairs[table].shape, dtype=np.bool_)
        pairs, exact = self._pairs[table], self._exact[table]
        if not exact[before, after]:
            exact[before, after] = True
            cost = pair_cost(layer, before, after)
            if cost != pairs[before, after]:
                pairs[before, after] = cost
                del self._totals[table:], self._from[table - 1 :]
        return float(pairs[before, after])
