"""Best points of a grid: a product of axes under rules, searched by branch and bound on whole arrays.

Sets. Axes ``a`` with values ``V_a``, in levels ``0 .. n`` (coarse to fine). Rules ``r``: a condition on the values of
some axes. The grid ``G``: all points of the product of the ``V_a`` that keep every rule. A *node* of level ``l`` is a
choice of values for the axes of the levels up to ``l`` that keeps the rules on them; on the last level it is a point.

Variables. One point ``x`` of ``G``.

Objective. ``min cost(x)``, infinite where a point is not allowed. ``bound_l(node)``: no point below the node costs
less; infinite where none is allowed.

Search. Nodes of a level are looked at in the order of their bounds, in chunks, each of which is expanded to the next
level at once; a chunk's nodes are dealt with before the next chunk. A node is dropped where its bound is above the
incumbent (or the k-th best, where k answers are wanted). What is left at the end is proven to be the optimum, whatever
the bounds, so long as they are true. Memory is that of a few chunks, of at most about ``MOST_AT_ONCE`` nodes each.

Runners-up are the best points of other *groups*: points that agree in some axes are one group, of which the best
counts. Of equal costs the point counts that comes first in the grid's own order.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solution import Solution, Status

__all__ = ["MOST_AT_ONCE", "Axis", "Columns", "Grid", "GridAnswer", "Level", "Point", "Rule", "solve"]

Ints = NDArray[np.int64]
Columns = Mapping[str, Ints]  # arrays of one length, by axis
Point = Mapping[str, int]

MOST_AT_ONCE = 200_000  # nodes in one array
_FIRST_NODES = 16  # of the first chunk: few, so that an incumbent is found soon
_FIRST_POINTS = 256  # evaluated in one go: the better they are, the fewer follow
_GROWTH = 4
_LAST_LEVELS = 4  # whose bounds take as long as evaluating
_MOST_CODES = 1 << 62
_MOST_TABLE = 1 << 20
_FEW_NAMES = 2  # of a rule that is asked once for all nodes of equal values
_SLACK = 1e-12  # relative rounding of a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A decision: its name and the values that it may take."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition on the axes named; ``holds`` answers for arrays of their values."""

    names: tuple[str, ...]
    holds: Callable[[Columns], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Axes that are decided together, and a bound of the nodes that they make; None: nothing is known of them.

    A level without axes, which is not the first, has a tighter bound for the nodes of the level before.
    """

    axes: tuple[Axis, ...]
    bound: Callable[[Columns], Floats] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Levels from coarse to fine, and the rules that all points keep."""

    levels: tuple[Level, ...]
    rules: tuple[Rule, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, in their order."""
        return tuple(axis for level in self.levels for axis in level.axes)

    def expand(self, nodes: Columns, level: int) -> dict[str, Ints]:
        """Return the nodes of a level below some nodes of the level before; those of no axis are one."""
        found = dict(nodes)
        for axis in self.levels[level].axes:
            found = self._with(found, axis)
        return found

    def _with(self, nodes: Columns, axis: Axis) -> dict[str, Ints]:
        """Return nodes with one more axis decided, those that break a rule left out."""
        known = {*nodes, axis.name}
        rules = [rule for rule in self.rules if axis.name in rule.names and known.issuperset(rule.names)]
        values = np.array(axis.values, dtype=np.int64)
        may_be = np.ones((_length(nodes), len(values)), dtype=bool)
        for rule in rules:
            if len(rule.names) <= _FEW_NAMES:
                may_be &= _table(rule, nodes, axis.name, values)
        owner, place = np.nonzero(may_be)
        for rule in rules:
            if len(rule.names) > _FEW_NAMES:
                asked = {name: values[place] if name == axis.name else nodes[name][owner] for name in rule.names}
                kept = rule.holds(asked)
                owner, place = owner[kept], place[kept]
        return {**{name: column[owner] for name, column in nodes.items()}, axis.name: values[place]}

    def count(self) -> int:
        """Return how many points there are, without listing them.

        Axis by axis, those first after which later rules ask for fewest axes, of fewest values; nodes that agree in all
        of these are counted as one, with their number.
        """
        left = {axis.name: axis for axis in self.axes}
        sizes = {name: len(axis.values) for name, axis in left.items()}
        is_small = prod(len(axis.values) for axis in left.values()) < np.iinfo(np.int64).max
        nodes: dict[str, Ints] = {}
        weights = np.ones(1, dtype=np.int64 if is_small else object)  # Python's integers do not overflow
        while left:
            asked = {one: self._needed([*nodes, one], left.keys() - {one}) for one in left}
            name = min(left, key=lambda one: (len(asked[one]), prod(sizes[key] for key in asked[one])))
            axis = left.pop(name)
            needed = asked[name]
            if not any(name in rule.names for rule in self.rules):
                weights = weights * len(axis.values)
                continue
            marked = self._with({**nodes, "": np.arange(len(weights))}, axis)
            weights = weights[marked.pop("")]
            nodes, weights = _merged({one: marked[one] for one in needed}, weights)
        return int(weights.sum())

    def _needed(self, decided: Sequence[str], left: Set[str]) -> list[str]:
        """Return which of the decided axes a rule asks for together with one that is left."""
        asked = {name for rule in self.rules if left & set(rule.names) for name in rule.names}
        return [name for name in decided if name in asked]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridAnswer:
    """What a search of a grid found.

    Attributes
    ----------
    solution
        The best point, its cost, what no point beats, and whether that is proven.
    others
        The best points of the next groups with their costs, in order.
    num_points, num_evaluated
        Points of the grid, and those whose cost was asked for.
    """

    solution: Solution[Point]
    others: tuple[tuple[float, Point], ...]
    num_points: int
    num_evaluated: int

    @property
    def num_pruned(self) -> int:
        """Points that bounds ruled out, or that were not come to."""
        return self.num_points - self.num_evaluated


def solve(
    grid: Grid,
    cost: Callable[[Columns], Floats],
    search: Search,
    *,
    num_answers: int = 1,
    group_by: Sequence[str] = (),
    uses_bounds: bool = True,
    most_at_once: int = MOST_AT_ONCE,
    is_strict: bool = False,
) -> GridAnswer:
    """Return the best point of a grid and the next ones.

    Parameters
    ----------
    cost
        Of points: one number each; infinite for what is not allowed.
    num_answers
        The best point and runners-up in all; bounds are held against the last of them.
    group_by
        Axes in which two answers must differ; by default they must be different points.
    uses_bounds
        Without, every point is evaluated: slow, and the same answer.
    is_strict
        Whether points that cost more than the search's cutoff are not wanted at all, so that there may be no answer.
        Else the cutoff counts only once there is one.
    """
    names = tuple(group_by) or tuple(axis.name for axis in grid.axes)
    best_of = _Best(grid=grid, names=names, number=max(num_answers, 1))
    walk = _Walk(grid, cost, search, best_of, uses_bounds, most_at_once, is_strict)
    walk.below({}, 0)
    best = walk.best.rows
    objective = best[0].cost if best else inf
    bound = min(walk.open_bound, objective)
    if (best or is_strict) and uses_bounds and search.cutoff < objective:
        bound = min(bound, search.cutoff)  # what costs more was passed over
    solution: Solution[Point] = Solution(
        status=_status(bool(best), objective, bound),
        objective=objective,
        bound=bound,
        value=best[0].point if best else None,
    )
    return GridAnswer(
        solution=solution,
        others=tuple((row.cost, row.point) for row in best[1:]),
        num_points=grid.count(),
        num_evaluated=walk.num_evaluated,
    )


def _status(is_found: bool, objective: float, bound: float) -> Status:
    """Return what an answer and a bound prove."""
    if is_found:
        return Status.OPTIMAL if objective <= bound else Status.FEASIBLE
    return Status.INFEASIBLE if bound == inf else Status.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A point, its cost, its group, and its place in the grid."""

    cost: float
    place: tuple[int, ...]
    group: tuple[int, ...]
    point: Point


@dataclass(slots=True)
class _Best:
    """The best points so far, of different groups."""

    grid: Grid
    names: tuple[str, ...]
    number: int
    rows: list[_Row] = field(default_factory=list)
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
        groups = _codes([points[name][hopeful] for name in self.names])
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
        row = _Row(
            cost=float(cost),
            place=tuple(int(self._places(axis.name, point[axis.name])) for axis in self.grid.axes),
            group=tuple(point[name] for name in self.names),
            point=point,
        )
        rows = sorted([*self.rows, row], key=lambda one: (one.cost, one.place))
        kept: dict[tuple[int, ...], _Row] = {}
        for one in rows:
            kept.setdefault(one.group, one)
        self.rows = list(kept.values())[: self.number]


@dataclass(slots=True)
class _Walk:
    """Depth first through the levels, chunk by chunk."""

    grid: Grid
    cost: Callable[[Columns], Floats]
    search: Search
    best: _Best
    uses_bounds: bool
    most_at_once: int
    is_strict: bool = False
    num_evaluated: int = 0
    open_bound: float = inf  # least bound of what was not looked at, though it may be better

    def below(self, nodes: Columns, level: int, bounds: Floats | None = None) -> None:
        """Look at all points below nodes of the level before, whose bounds are known."""
        found = self.grid.expand({**nodes, "": np.arange(_length(nodes))}, level)
        parents = found.pop("")
        least = np.full(len(parents), -inf) if bounds is None else bounds[parents]
        least = np.maximum(least, self._bounds(found, level))
        if level == len(self.grid.levels) - 1:
            self._evaluate(found, least)
            return
        order = np.argsort(least, kind="stable")
        order = order[least[order] < inf]
        start, size = 0, self._first_size(level)
        while start < len(order):
            if least[order[start]] > self._limit:
                return
            if self._is_over:
                self.open_bound = min(self.open_bound, float(least[order[start]]))
                return
            chunk = order[start : start + size]
            start += size
            size = min(size * _GROWTH, self._most(level))
            chunk = chunk[least[chunk] <= self._limit]
            self.below({name: column[chunk] for name, column in found.items()}, level + 1, least[chunk])

    def _bounds(self, nodes: Columns, level: int) -> Floats:
        """Return the bounds of nodes; 0 where none are asked for."""
        bound = self.grid.levels[level].bound
        if bound is None or not self.uses_bounds or not _length(nodes):
            return np.full(_length(nodes), -inf)
        found = bound(nodes)
        return np.asarray(np.where(found < inf, found - np.abs(np.where(found < inf, found, 0.0)) * _SLACK, inf))

    def _evaluate(self, points: Columns, least: Floats) -> None:
        """Evaluate points that may be among the answers."""
        order = np.argsort(least, kind="stable")
        start, size = 0, _FIRST_POINTS if self.uses_bounds else self.most_at_once
        while start < len(order):
            if self.uses_bounds and least[order[start]] > self._limit:
                return
            if self._is_over:
                self.open_bound = min(self.open_bound, float(least[order[start]]))
                return
            chunk = order[start : start + size]
            start, size = start + size, min(size * _GROWTH, self.most_at_once)
            chunk = chunk[least[chunk] <= self._limit]
            part = {name: column[chunk] for name, column in points.items()}
            self.best.add(part, np.asarray(self.cost(part), dtype=np.float64))
            self.num_evaluated += len(chunk)

    @property
    def _limit(self) -> float:
        """Bounds above this need no look; a known answer elsewhere counts once there is one here."""
        is_known = bool(self.best.rows) or self.is_strict
        return min(self.best.limit, self.search.cutoff) if is_known and self.uses_bounds else inf

    @property
    def _is_over(self) -> bool:
        """Whether to stop: out of time, or good enough."""
        has_enough = bool(self.best.rows) and self.best.rows[0].cost <= self.search.good_enough
        return has_enough or self.search.is_over

    def _most(self, level: int) -> int:
        """Return how many nodes of a level may be expanded at once."""
        return max(1, self.most_at_once // max(1, prod(len(axis.values) for axis in self.grid.levels[level + 1].axes)))

    def _first_size(self, level: int) -> int:
        """Return the size of the first chunk."""
        if self.is_strict and level >= len(self.grid.levels) - _LAST_LEVELS:
            return min(_FIRST_POINTS, self._most(level))
        is_known = bool(self.best.rows) or (self.is_strict and level > 0)
        return self._most(level) if is_known else min(_FIRST_NODES, self._most(level))


def _length(nodes: Columns) -> int:
    """Return the number of nodes; no axis at all is one."""
    return len(next(iter(nodes.values()))) if nodes else 1


def _table(rule: Rule, nodes: Columns, name: str, values: Ints) -> "NDArray[np.bool_]":
    """Return which values of an axis go with each node by a rule on it and at most one axis more.

    Asked once for each value of the other axis: nodes are many, and their values few.
    """
    others = [one for one in rule.names if one != name]
    if not others:
        return np.asarray(rule.holds({name: values}))[None, :]
    known = _values(nodes[others[0]])
    asked = {others[0]: np.repeat(known, len(values)), name: np.tile(values, len(known))}
    table = np.asarray(rule.holds(asked)).reshape(len(known), len(values))
    return np.asarray(table[np.searchsorted(known, nodes[others[0]])])


def _codes(columns: Sequence[Ints]) -> Ints:
    """Return one number for each row, equal for equal rows."""
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        values = _values(column)
        if size * len(values) >= _MOST_CODES:
            present, code = np.unique(code, return_inverse=True)
            size = len(present)
        code = code * len(values) + np.searchsorted(values, column)
        size *= len(values)
    return np.unique(code, return_inverse=True)[1]


def _values(column: Ints) -> Ints:
    """Return the values of a column, in order: by a table where they are small."""
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    if least < 0 or most > _MOST_TABLE:
        return np.unique(column)
    seen = np.zeros(most + 1, dtype=bool)
    seen[column] = True
    return np.flatnonzero(seen)


def _merged(nodes: Mapping[str, Ints], weights: "NDArray[Any]") -> "tuple[dict[str, Ints], NDArray[Any]]":
    """Return nodes with equal ones as one, and the sums of their weights."""
    if not nodes:
        return {}, weights.sum(keepdims=True) if len(weights) else np.zeros(1, dtype=weights.dtype)
    code = _codes(list(nodes.values()))
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    sums = np.add.reduceat(weights[order], starts) if len(starts) else weights[:0]
    return {name: column[order[starts]] for name, column in nodes.items()}, sums
