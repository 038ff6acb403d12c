"""Time against memory: the layouts with the degrees of the best one that no other beats in both."""

import numpy as np

from planner.cost import Floats
from planner.families.hybrid_cost import HybridCost
from planner.families.hybrid_space import COARSE, Space
from planner.search import Search
from planner.solvers.grid import Axis, Columns, Grid, Level, Point
from planner.units import Dimension, format_human

__all__ = ["frontier", "frontier_words"]

_MOST_LAYOUTS = 400_000
_MOST_WORDS = 5
_STEP = 0.95  # of the memory of the layout printed before


def frontier(cost: HybridCost, best: Point) -> list[tuple[float, float, Point]]:
    """Return seconds, bytes and layout of those with the degrees of ``best`` that none beats in both, fastest first.

    Every layout with these degrees that the question allows is evaluated, whether it fits or not; of those that do not,
    none is returned. Empty where they are too many.
    """
    space = Space.of(cost)
    axes = tuple(Axis(name=name, values=(best[name],)) if name in COARSE else axis for name, axis in space.axes.items())
    grid = Grid(levels=(Level(axes=axes),), rules=space.rules)
    if grid.count() > _MOST_LAYOUTS:
        return []
    columns = grid.expand({}, 0)
    layouts = cost.layouts(columns)
    held, seconds = cost.memory(layouts)["total"], cost.seconds(layouts)
    order = np.lexsort([held, seconds])
    least = np.minimum.accumulate(held[order])
    is_new = np.concatenate([[True], least[1:] < least[:-1]]) & (held[order] <= cost.memory_limit_bytes)
    return [_row(columns, seconds, held, int(index)) for index in order[is_new]]


def _row(columns: Columns, seconds: Floats, held: Floats, index: int) -> tuple[float, float, Point]:
    """Return one layout."""
    return float(seconds[index]), float(held[index]), {name: int(column[index]) for name, column in columns.items()}


def frontier_words(cost: HybridCost, best: Point, search: Search) -> list[str]:
    """Return a line with a few layouts of the frontier; none where time is over."""
    rows = [] if search.is_over else frontier(cost, best)
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
