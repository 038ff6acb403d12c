"""Dominance of points of which every coordinate is to be small.

A point ``a`` weakly dominates ``b`` where no coordinate of ``a`` is greater. The *front* of some points are those that
no other one dominates. The *factor* by which a point beats a set is the least ``f`` such that some point of the set,
divided by ``f``, weakly dominates it: 1 or less where it is dominated already, ``inf`` where the set is empty.

Source: H. T. Kung, F. Luccio and F. P. Preparata, J. ACM 22(4), 1975, doi:10.1145/321906.321910: the front of two
coordinates by sorting, O(n log n).
"""

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats

_AT_ONCE = 1 << 20  # numbers in one comparison
_FEW = 8  # points of a front that are all compared


def front(points: Floats) -> NDArray[np.int64]:
    """Return which rows nobody dominates, in the order of their coordinates; of equal rows the first.

    Parameters
    ----------
    points
        Shape (points, coordinates).

    >>> front(np.array([[3.0, 1.0], [1.0, 3.0], [2.0, 3.0], [1.0, 3.0]])).tolist()
    [1, 0]
    """
    order = np.lexsort(points.T[::-1])  # by the first coordinate, then the second: a dominator comes first
    if points.shape[1] == 2:
        seconds = points[order, 1]
        before = np.minimum.accumulate(np.concatenate([[np.inf], seconds[:-1]]))
        is_first = np.arange(len(order)) == 0
        return np.asarray(order[(seconds < before) | is_first])
    kept: list[int] = []
    for row in order.tolist():
        if not kept or not (points[kept] <= points[row]).all(axis=1).any():
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def factors(points: Floats, archive: Floats) -> Floats:
    """Return the factor by which each of some points beats an archive.

    Parameters
    ----------
    points, archive
        Shape (points, coordinates), of no coordinate below 0.

    >>> factors(np.array([[1.0, 2.0], [4.0, 4.0]]), np.array([[2.0, 3.0]])).tolist()
    [2.0, 0.75]
    """
    found = np.full(len(points), np.inf)
    if not len(archive):
        return found
    size = max(1, _AT_ONCE // archive.size)
    for start in range(0, len(points), size):
        part = points[start : start + size, None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(archive == part, 1.0, archive / part)  # 0 over 0 and inf over inf are equal, too
        found[start : start + size] = ratios.max(axis=2).min(axis=1)
    return found


def front_factors(points: Floats, staircase: Floats) -> Floats:
    """Return :func:`factors` of points of two coordinates next to a front, in its order: by bisection.

    Parameters
    ----------
    points
        Shape (points, 2), of no coordinate below 0.
    staircase
        A front of two coordinates, in the order of the first one.

    Notes
    -----
    Along the front the first ratio grows and the second one falls: the least of the larger one is where they cross.

    >>> front_factors(np.array([[1.0, 2.0], [4.0, 4.0]]), np.array([[1.0, 9.0], [2.0, 3.0], [8.0, 1.0]])).tolist()
    [2.0, 0.75]
    """
    if len(staircase) <= _FEW or not (np.isfinite(staircase) & (staircase > 0)).all():
        return factors(points, staircase)
    is_plain = (np.isfinite(points) & (points > 0)).all(axis=1)
    found = np.empty(len(points))
    found[~is_plain] = factors(points[~is_plain], staircase)
    asked = points[is_plain]
    crossing = np.searchsorted(staircase[:, 0] / staircase[:, 1], asked[:, 0] / asked[:, 1])
    near = np.clip(crossing[:, None] + np.arange(-2, 3), 0, len(staircase) - 1)  # rounding may shift it by one
    found[is_plain] = (staircase[near] / asked[:, None, :]).max(axis=2).min(axis=1)
    return found
