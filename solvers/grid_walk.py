"""The walk through a grid for :mod:`planner.solvers.grid`: level by level, chunk by chunk, the best points kept.

A walk that is stopped, or has done its share, leaves *boxes*: nodes of a level with their bounds, below which nothing
was looked at. Another walk may take them up, here or in another process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np

from planner.cost import Floats
from planner.search import Search
from planner.solvers.grid_axes import Columns, Grid, Ints, OverError, Point, codes_of, length_of

__all__ = ["MOST_AT_ONCE", "Best", "Box", "Row", "Walk"]

MOST_AT_ONCE = 200_000  # nodes in one array
_FIRST_NODES = 16  # of the first chunk: few, so that an incumbent is found soon
_FIRST_POINTS = 256  # evaluated in one go: the better they are, the fewer follow
_FIRST_STRICT = 1024  # of the last levels, where a good answer is known: less costs more in calls than it rules out
_GROWTH = 4
_LAST_LEVELS = 4  # whose bounds take as long as evaluating
_SLACK = 1e-12  # relative rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Nodes of a level, in the order of their bounds, below which nothing was looked at."""

    level: int
    nodes: Columns
    least: Floats

    def __len__(self) -> int:
        return len(self.least)

    @property
    def bound(self) -> float:
        """What no point below costs less than."""
        return float(self.least[0]) if len(self.least) else inf

    def part(self, rows: slice) -> "Box":
        """Return some of the nodes."""
        return Box(
            level=self.level,
            nodes={name: column[rows] for name, column in self.nodes.items()},
            least=self.least[rows],
        )

    def within(self, limit: float) -> "Box":
        """Return the nodes whose bounds are not above a limit."""
        return self.part(slice(0, int(np.searchsorted(self.least, limit, side="right"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A point, its cost, its group, and its place in the grid."""

    cost: float
    place: tuple[int, ...]
    group: tuple[int, ...]
    point: Point


@dataclass(slots=True)
class Best:
    """The best points so far, of different groups."""

    grid: Grid
    names: tuple[str, ...]
    number: int
    rows: list[Row] = field(default_factory=list)
    _sorted: dict[str, tuple[Ints, Ints]] = field(init=False)

    def __post_init__(self) -> None:
        values = {axis.name: np.array(axis.values, dtype=np.int64) for axis in self.grid.axes}
        orders = {name: np.argsort(array, kind="stable") for name, array in values.items()}
        self._sorted = {name: (values[name][order], order) for name, order in orders.items()}

    @property
    def limit(self) -> float:
        """Cost above which no point is among the answers."""
        return self.rows[self.number - 1].cost if len(self.rows) >= self.number else inf

    def add(self, points: Columns, costs: Floats) -> None:
        """Take in points: the best of each group, as far as they may be among the answers."""
        hopeful = np.flatnonzero(np.isfinite(costs) & (costs <= self.limit))
        if not len(hopeful):
            return
        found = costs[hopeful]
        groups = codes_of([points[name][hopeful] for name in self.names])
        least = np.full(int(groups.max()) + 1, inf)
        np.minimum.at(least, groups, found)
        enough = np.sort(least)[: self.number][-1]
        kept = (found == least[groups]) & (found <= enough)
        hopeful, groups = hopeful[kept], groups[kept]
        places = [self._places(name, points[name][hopeful]) for name in reversed(list(points))]
        order = np.lexsort([*places, costs[hopeful]])
        _, first = np.unique(groups[order], return_index=True)
        for index in order[np.sort(first)]:
            self._insert({name: int(column[hopeful[index]]) for name, column in points.items()}, costs[hopeful[index]])

    def _places(self, name: str, values: "Ints | int") -> Ints:
        """Return the positions of values on their axis."""
        known, order = self._sorted[name]
        return np.asarray(order[np.searchsorted(known, values)])

    def _insert(self, point: Point, cost: float) -> None:
        """Take in one point; of its group the better one stays."""
        row = Row(
            cost=float(cost),
            place=tuple(int(self._places(axis.name, point[axis.name])) for axis in self.grid.axes),
            group=tuple(point[name] for name in self.names),
            point=point,
        )
        self.join([row])

    def join(self, found: Sequence[Row]) -> None:
        """Take in points of the same grid that were found elsewhere, in any order."""
        rows = sorted([*self.rows, *found], key=lambda one: (one.cost, one.place))
        kept: dict[tuple[int, ...], Row] = {}
        for one in rows:
            kept.setdefault(one.group, one)
        self.rows = list(kept.values())[: self.number]


@dataclass(slots=True)
class Walk:
    """Depth first through the levels, chunk by chunk."""

    grid: Grid
    cost: Callable[[Columns], Floats]
    search: Search
    best: Best
    uses_bounds: bool
    most_at_once: int
    is_strict: bool = False
    is_full: Callable[["Walk"], bool] = lambda walk: False
    num_evaluated: int = 0
    num_chunks: int = 0
    rest: list[Box] = field(default_factory=list)  # what was not looked at, though it may be better

    @property
    def open_bound(self) -> float:
        """Least bound of what was not looked at."""
        return min((box.bound for box in self.rest), default=inf)

    def from_root(self) -> None:
        """Look at the whole grid."""
        try:
            self.below({}, 0)
        except OverError:  # before anything was known of the first level
            self.rest.append(Box(level=0, nodes={}, least=np.array([-inf])))

    def below(self, nodes: Columns, level: int, bounds: Floats | None = None) -> None:
        """Look at all points below nodes of the level before, whose bounds are known."""
        found = self.grid.expand({**nodes, "": np.arange(length_of(nodes))}, level)
        parents = found.pop("")
        least = np.full(len(parents), -inf) if bounds is None else bounds[parents]
        least = np.maximum(least, self._bounds(found, level))
        order = np.argsort(least, kind="stable")
        order = order[least[order] < inf]
        for name in found:  # one by one: the arrays are large
            found[name] = found[name][order]
        self.take_up(Box(level=level, nodes=found, least=least[order]))

    def take_up(self, box: Box) -> None:
        """Look at all points below the nodes of a box, or at its points."""
        if box.level == len(self.grid.levels) - 1:
            self._evaluate(box)
            return
        start, size = 0, self._first_size(box.level)
        while start < len(box):
            if box.least[start] > self._limit:
                return
            if self._is_over:
                self.rest.append(box.part(slice(start, None)))
                return
            chunk = box.part(slice(start, start + size)).within(self._limit)
            self.num_chunks += 1
            start += size
            size = min(size * _GROWTH, self._most(box.level))
            try:
                self.below(chunk.nodes, box.level + 1, chunk.least)
            except OverError:
                self.rest.append(chunk)

    def _bounds(self, nodes: Columns, level: int) -> Floats:
        """Return the bounds of nodes, a rounding below what is told; minus infinity where nothing is known."""
        bound = self.grid.levels[level].bound
        if bound is None or not self.uses_bounds or not length_of(nodes):
            return np.full(length_of(nodes), -inf)
        found = np.asarray(bound(nodes))
        found = np.where(np.isnan(found), -inf, found)  # what is no number cuts nothing
        return np.asarray(found - np.where(np.isfinite(found), np.abs(found), 0.0) * _SLACK)

    def _evaluate(self, box: Box) -> None:
        """Evaluate points that may be among the answers."""
        start, size = 0, _FIRST_POINTS if self.uses_bounds else self.most_at_once
        while start < len(box):
            if self.uses_bounds and box.least[start] > self._limit:
                return
            if self._is_over:
                self.rest.append(box.part(slice(start, None)))
                return
            chunk = box.part(slice(start, start + size)).within(self._limit)
            self.num_chunks += 1
            start, size = start + size, min(size * _GROWTH, self.most_at_once)
            try:
                costs = np.asarray(self.cost(chunk.nodes), dtype=np.float64)
            except OverError:
                self.rest.append(chunk)
                continue
            self.best.add(chunk.nodes, costs)
            self.num_evaluated += len(chunk)

    @property
    def _limit(self) -> float:
        """Bounds above this need no look; a known answer elsewhere counts once there is one here."""
        is_known = bool(self.best.rows) or self.is_strict
        return min(self.best.limit, self.search.cutoff) if is_known and self.uses_bounds else inf

    @property
    def _is_over(self) -> bool:
        """Whether to stop: out of time, good enough, or its share done."""
        has_enough = bool(self.best.rows) and self.best.rows[0].cost <= self.search.good_enough
        return has_enough or self.search.is_over or self.is_full(self)

    def _most(self, level: int) -> int:
        """Return how many nodes of a level may be expanded at once."""
        return max(1, self.most_at_once // max(1, prod(len(axis.values) for axis in self.grid.levels[level + 1].axes)))

    def _first_size(self, level: int) -> int:
        """Return the size of the first chunk."""
        if self.is_strict and level >= len(self.grid.levels) - _LAST_LEVELS:
            return min(_FIRST_STRICT, self._most(level))
        is_known = bool(self.best.rows) or (self.is_strict and level > 0)
        return self._most(level) if is_known else min(_FIRST_NODES, self._most(level))
