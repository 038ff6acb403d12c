"""Time against memory: layouts that no other beats in both, of the best one's degrees, or of the whole grid.

Of the whole grid (*ladder*): the fastest layout, the fastest of those that need a tenth less memory than it, and so on
until none fits. Each is the proven optimum of the search under that limit: no layout that needs as little is faster.
Between two rungs there may be others on the frontier.
"""

from collections.abc import Callable
from math import inf

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.space import COARSE, Space
from planner.search import Search
from planner.solvers.grid import Axis, Columns, Grid, GridAnswer, Level, Point
from planner.units import Dimension, format_human

__all__ = ["frontier", "frontier_words", "ladder"]

_MOST_LAYOUTS = 400_000
_AT_ONCE = 20_000
_MOST_WORDS = 5
_STEP = 0.95  # of the memory of the layout printed before
_RUNG = 0.9  # of the memory of the layout before


def frontier(cost: HybridCost, best: Point, search: Search | None = None) -> list[tuple[float, float, Point]]:
    """Return seconds, bytes and layout of those with the degrees of ``best`` that none beats in both, fastest first.

    Every layout with these degrees that the question allows is evaluated, whether it fits or not; of those that do not,
    none is returned. Empty where they are too many, or the search is over before all are evaluated.
    """
    space = Space.of(cost)
    axes = tuple(Axis(name=name, values=(best[name],)) if name in COARSE else axis for name, axis in space.axes.items())
    grid = Grid(levels=(Level(axes=axes),), rules=space.rules)
    number = grid.count()
    if number is None or number > _MOST_LAYOUTS:
        return []
    columns = grid.expand({}, 0)
    held, seconds = np.empty(number), np.empty(number)
    for start in range(0, number, _AT_ONCE):
        if search is not None and search.is_over:
            return []
        part = slice(start, start + _AT_ONCE)
        layouts = cost.layouts({name: column[part] for name, column in columns.items()})
        held[part], seconds[part] = cost.memory(layouts)["total"], cost.seconds(layouts)
    order = np.lexsort([held, seconds])
    least = np.minimum.accumulate(held[order])
    is_new = np.concatenate([[True], least[1:] < least[:-1]]) & (held[order] <= cost.memory_limit_bytes)
    return [_row(columns, seconds, held, int(index)) for index in order[is_new]]


def _row(columns: Columns, seconds: Floats, held: Floats, index: int) -> tuple[float, float, Point]:
    """Return one layout."""
    return float(seconds[index]), float(held[index]), {name: int(column[index]) for name, column in columns.items()}


def frontier_words(cost: HybridCost, best: Point, search: Search) -> list[str]:
    """Return a line with a few layouts of the frontier; none where time is over."""
    rows = [] if search.is_over else frontier(cost, best, search)
    kept: list[tuple[float, float, Point]] = []
    for row in rows:
        if not kept or row[1] <= _STEP * kept[-1][1]:
            kept.append(row)
    if len(kept) < 2:  # the best alone
        return []
    words = [
        f"{format_human(seconds, Dimension.TIME)} in {format_human(held, Dimension.DATA)}"
        for seconds, held, _ in kept[:_MOST_WORDS]
    ]
    return [f"time against memory with these degrees: {'; '.join(words)}"]


def ladder(
    cost: HybridCost, best: Point, search: Search, searched: Callable[[HybridCost, Search, float], GridAnswer]
) -> tuple[list[tuple[float, float, Point]], bool]:
    """Return seconds, bytes and layout of the fastest under each limit, the best first; whether no limit was missed.

    Parameters
    ----------
    searched
        The search of the family, with less memory than a device may hold.

    Notes
    -----
    A layout as fast as the one before, with less memory, takes its place. No rung is faster than the one before, so
    that a search ends with the first layout as fast as that.
    """
    rows = [_evaluated(cost, best)]
    while not search.is_over:
        seconds, held, _ = rows[-1]
        part = search.part(search.left_s, num_alternatives=0, good_enough=seconds, cutoff=inf)
        answer = searched(cost, part, _RUNG * held).solution
        if answer.value is None and answer.bound == inf:
            return rows, True
        if answer.value is None or answer.objective > max(answer.bound, seconds):
            return rows, False
        row = _evaluated(cost, answer.value)
        rows = [*(rows[:-1] if row[0] <= seconds else rows), row]
    return rows, False


def _evaluated(cost: HybridCost, point: Point) -> tuple[float, float, Point]:
    """Return a layout with its seconds and bytes."""
    layouts = cost.layouts({name: np.array([value]) for name, value in point.items()})
    return float(cost.seconds(layouts)[0]), float(cost.memory(layouts)["total"][0]), point
