"""Who goes where: assignments of rows to columns by their sum, or by two phases' worst entries.

Cost matrices are square; ``value[i]`` is the column of row i. scipy does the matching and is imported when it is first
needed: an assignment that is seen to be optimal without a matching needs none. Costs are finite (a row of ``inf`` makes
scipy's Hungarian method raise an error), and matchings run on masks, never on sparse costs (scipy's ``csgraph`` drops
costs of 0).

Sources: the Hungarian method, H. W. Kuhn, Nav. Res. Logist. Q. 2, 1955, doi:10.1002/nav.3800020109; matchings, J. E.
Hopcroft and R. M. Karp, SIAM J. Comput. 2(4), 1973, doi:10.1137/0202019. All refuse, by a ValueError, costs that are
not square, empty or not finite.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost import Floats
from planner.solution import Solution, Status

Columns = tuple[int, ...]
_Mask = NDArray[np.bool_]


def sum_assignment(cost: ArrayLike) -> Solution[Columns]:
    """Return the assignment of least sum (the Hungarian method), in O(n^3).

    Parameters
    ----------
    cost
        Square, finite; of row i in column j.

    >>> sum_assignment([[4, 1], [2, 0]]).objective
    3.0
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  # late: most questions need no matching

    matrix = _square(cost)
    _, columns = linear_sum_assignment(matrix)
    return _proven(float(matrix[np.arange(len(matrix)), columns].sum()), columns)


def greedy_assignment(cost: ArrayLike) -> Solution[Columns]:
    """Return every row's cheapest column (the first of equals), which has the least sum where no two rows want one.

    Parameters
    ----------
    cost
        Square, finite; of row i in column j.

    Notes
    -----
    The rule of F. Yan et al., KDD 2015, doi:10.1145/2783258.2783270, section 5.3. UNKNOWN on a conflict, which
    :func:`sum_assignment` resolves: to give way row by row can lose, as in ``[[0, 1], [0, 9]]``.
    """
    matrix = _square(cost)
    columns = matrix.argmin(axis=1)
    least = float(matrix.min(axis=1).sum())
    if len(set(columns.tolist())) < len(columns):
        return Solution(status=Status.UNKNOWN, objective=np.inf, bound=least, value=None)
    return _proven(least, columns)


def two_phase_assignment(first: ArrayLike, second: ArrayLike) -> Solution[Columns]:
    """Return the assignment for which the worst entry of one matrix plus the worst entry of the other is least.

    Parameters
    ----------
    first, second
        Square, finite, of one shape; of row i in column j.

    Notes
    -----
    Sets: rows and columns ``0..n-1``. Variables: a permutation ``c``, thresholds ``s`` and ``t``.
    Objective: minimise ``s + t``. Constraints: ``first[i, c(i)] <= s`` and ``second[i, c(i)] <= t`` for every row i.

    Method: s runs over the distinct entries of ``first`` upwards; for each, a binary search finds the least t among the
    entries of ``second`` for which the entries within both thresholds hold a perfect matching. Only t that would beat
    the best sum so far are asked, and s ends where s and the least conceivable t do not beat it. Hence the answer
    is exact. A first guess (row i to column i, or spread) that meets the bound of both phases ends the search at once.

    The bound of a phase is the largest of all rows' and columns' least entries.

    >>> two_phase_assignment([[0, 3], [3, 0]], [[9, 0], [0, 9]]).objective
    3.0
    """
    one, other = _square(first), _square(second)
    rows = np.arange(len(one))
    least, least_other = _least_worst(one), _least_worst(other)
    best = np.inf
    columns = rows
    for guess in _guesses(len(one)):
        worst = float(one[rows, guess].max() + other[rows, guess].max())
        if worst < best:
            best, columns = worst, guess
    levels = np.unique(other[other >= least_other])
    for level in np.unique(one[one >= least]).tolist():
        if level + least_other >= best:
            break
        within = one <= level
        better = levels[level + levels < best]
        found = _first_level(better, lambda limit, within=within: _perfect(within & (other <= limit)))  # type: ignore[misc]
        if found is not None:
            columns = np.asarray(found[1])
            best = float(one[rows, columns].max() + other[rows, columns].max())
    return _proven(best, columns)


def _guesses(size: int) -> tuple[NDArray[np.intp], ...]:
    """Return assignments that are often best: in order, and in order with every other row or column left for last."""
    order = np.arange(size)
    spread = np.concatenate((order[::2], order[1::2]))
    inverse = np.empty_like(order)
    inverse[spread] = order
    return order, spread, inverse


def _first_level(
    levels: Floats, matching_at: Callable[[float], NDArray[np.intp] | None]
) -> tuple[float, NDArray[np.intp]] | None:
    """Return the least level at which there is a matching, and the matching; None if there is none at the last."""
    low, high, best = 0, len(levels) - 1, None
    if high < 0 or (columns := matching_at(float(levels[-1]))) is None:
        return None
    best = (float(levels[-1]), columns)
    while low < high:
        middle = (low + high) // 2
        columns = matching_at(float(levels[middle]))
        if columns is None:
            low = middle + 1
        else:
            high, best = middle, (float(levels[middle]), columns)
    return best


def _perfect(allowed: _Mask) -> NDArray[np.intp] | None:
    """Return the column of every row in a perfect matching on the allowed entries, or None."""
    if not (allowed.any(axis=0).all() and allowed.any(axis=1).all()):
        return None
    from scipy.sparse import csr_array  # noqa: PLC0415
    from scipy.sparse.csgraph import maximum_bipartite_matching  # noqa: PLC0415

    columns = maximum_bipartite_matching(csr_array(allowed), perm_type="column")
    return None if (columns < 0).any() else columns.astype(np.intp)


def _least_worst(matrix: Floats) -> float:
    """Return a bound on the worst entry of any assignment: every row and every column takes part."""
    return float(max(matrix.min(axis=1).max(), matrix.min(axis=0).max()))


def _square(cost: ArrayLike) -> Floats:
    """Return a cost matrix; refuse one that is not square, empty or not finite."""
    matrix = np.asarray(cost, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"costs of shape {matrix.shape} are no square matrix. Pad the shorter side.")
    if not np.isfinite(matrix).all():
        raise ValueError("costs must be finite. Leave out what may not be assigned, or give it a large cost.")
    return matrix


def _proven(objective: float, columns: NDArray[np.intp]) -> Solution[Columns]:
    """Return an optimal assignment."""
    return Solution(
        status=Status.OPTIMAL, objective=objective, bound=objective, value=tuple(int(one) for one in columns)
    )
