"""Small grids of drawn costs, rules and bounds, and a referee that tries every point."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solvers.grid import Axis, Columns, Grid, GridAnswer, Level, Rule, Wanted, solve

__all__ = ["Case", "best_of", "cases", "rows_of"]

Key = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A grid, the cost of every point of its product, the pairs that its rules forbid, and the slack of its bounds."""

    sizes: tuple[tuple[int, ...], ...]
    costs: dict[Key, float]
    forbidden: frozenset[tuple[int, int, int, int]]
    slack: float

    @property
    def names(self) -> list[str]:
        return [f"a{index}" for index in range(sum(map(len, self.sizes)))]

    def points(self) -> list[Key]:
        """Every point that the rules allow, in the grid's order."""
        spans = [range(size) for level in self.sizes for size in level]
        return [
            point
            for point in product(*spans)
            if not any((i, point[i], j, point[j]) in self.forbidden for i, j in product(range(len(point)), repeat=2))
        ]

    def grid(self) -> Grid:
        """The same as a Grid; the values of an axis run backwards."""
        levels, done = [], 0
        for sizes in self.sizes:
            axes = tuple(
                Axis(name=f"a{done + at}", values=tuple(10 * k for k in range(size))) for at, size in enumerate(sizes)
            )
            done += len(sizes)
            levels.append(Level(axes=axes, bound=self._bound_of(done)))
        return Grid(levels=tuple(levels), rules=tuple(self._rule(i, j) for i in range(done) for j in range(i)))

    def _rule(self, i: int, j: int) -> Rule:
        def holds(nodes: Columns) -> NDArray[np.bool_]:
            pairs = zip(nodes[f"a{i}"] // 10, nodes[f"a{j}"] // 10, strict=True)
            bad = [(i, a, j, b) in self.forbidden or (j, b, i, a) in self.forbidden for a, b in pairs]
            return ~np.array(bad, dtype=bool)

        return Rule(names=(f"a{i}", f"a{j}"), holds=holds)

    def _bound_of(self, depth: int) -> Callable[[Columns], Floats]:
        least: dict[Key, float] = {}
        for point in self.points():
            least[point[:depth]] = min(least.get(point[:depth], inf), self.costs[point])

        def bound(nodes: Columns) -> Floats:
            return np.array([least.get(key, inf) - self.slack for key in self._keys(nodes)])

        return bound

    def _keys(self, nodes: Columns) -> list[Key]:
        columns = [nodes[name].tolist() for name in self.names if name in nodes]
        return [tuple(value // 10 for value in row) for row in zip(*columns, strict=True)]

    def cost(self, nodes: Columns) -> Floats:
        return np.array([self.costs[key] for key in self._keys(nodes)])

    def solve(self, search: Search | None = None, *, uses_bounds: bool = True, **options: Any) -> GridAnswer:
        grid = self.grid()
        if not uses_bounds:
            grid = replace(grid, levels=tuple(replace(level, bound=None) for level in grid.levels))
        return solve(grid, self.cost, search or Search(), Wanted(**options))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    axes = st.integers(1, 3)
    first = tuple(draw(st.lists(axes, min_size=1, max_size=2)))
    sizes = [first, *draw(st.lists(st.lists(axes, max_size=2).map(tuple), max_size=2))]
    flat = [size for level in sizes for size in level]
    keys = list(product(*(range(size) for size in flat)))
    numbers = st.one_of(st.integers(-3, 9).map(float), st.just(inf))
    costs = dict(zip(keys, draw(st.lists(numbers, min_size=len(keys), max_size=len(keys))), strict=True))
    last = len(flat) - 1
    place = st.tuples(st.integers(0, last), st.integers(0, 2), st.integers(0, last), st.integers(0, 2))
    forbidden = draw(st.frozensets(place.filter(lambda one: one[0] != one[2]), max_size=4))
    return Case(tuple(sizes), costs, forbidden, draw(st.sampled_from([0.0, 0.5, 20.0])))


def best_of(case: Case, groups: tuple[int, ...]) -> list[tuple[float, Key]]:
    """The best point of every group, in order of cost and then of the grid."""
    found: dict[Key, tuple[float, Key]] = {}
    for point in case.points():
        row = (case.costs[point], point)
        group = tuple(point[index] for index in groups)
        if row[0] < inf:
            found[group] = min(found.get(group, row), row)
    return sorted(found.values())


def rows_of(answer: GridAnswer, case: Case) -> list[tuple[float, Key]]:
    """The answers in the referee's form."""
    if answer.solution.value is None:
        return []
    rows = [(answer.solution.objective, answer.solution.value), *answer.others]
    return [(cost, tuple(point[name] // 10 for name in case.names)) for cost, point in rows]
