"""Best points of a grid: a product of axes under rules, searched by branch and bound on whole arrays.

Sets. Axes ``a`` with values ``V_a``, in levels ``0 .. n`` (coarse to fine). Rules ``r``: a condition on the values of
some axes. The grid ``G``: all points of the product of the ``V_a`` that keep every rule. A *node* of level ``l`` is a
choice of values for the axes of the levels up to ``l`` that keeps the rules on them; on the last level it is a point.

Variables. One point ``x`` of ``G``.

Objective. ``min cost(x)``, infinite where a point is not allowed. ``bound_l(node)``: no point below the node costs
less; infinite where none is allowed.

Search. First a few points are evaluated below the most hopeful nodes of each level, which gives an incumbent, unless
the answer may depend on the order. Then nodes of a level are looked at in the order of their bounds, in chunks, each of
which is expanded to the next level at once, before the next chunk. A node is dropped where its bound is above the
incumbent (or the k-th best, where k answers are wanted). What is left at the end is proven to be the optimum, whatever
the bounds, so long as they are true. Memory is that of a few chunks, of at most about ``MOST_AT_ONCE`` nodes each.

Workers. A walk that is stopped, or has done its share, leaves *boxes*: nodes of a level with their bounds, below which
nothing was looked at. Where the search has a pool, and the grid can be made again elsewhere, one walk works alone for a
while; what it leaves is kept by level, and pieces are sent to workers with the cost above which nothing counts any
more; meanwhile the asking process looks at what nobody has room for. What a walk has left is estimated from the nodes
behind and ahead of it: of little nothing is shared, and shares are short beside it, so that nobody waits long for the
last ones. The answer is that of one walk, whoever works, in whatever order: of each group the least (cost, place) is
kept, pieces are cut only above the limit, and the limit only falls. A limit that is stale costs work, never the answer.
A piece whose worker failed counts with its bound, as what is not looked at when the time is over. What a worker has no
memory for is looked at by the asking process, which sends nothing more.

Runners-up are the best points of other *groups*: points that agree in some axes are one group, of which the best
counts. Of equal costs the point counts that comes first in the grid's own order.

Source: branch and bound as in :mod:`planner.solvers.branch_and_bound`, depth first by levels.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.frozen import frozen
from planner.search import Search
from planner.solution import Solution
from planner.worker_pool import FailedTask, Origin, WorkerPool

Ints = NDArray[np.int64]
Columns = Mapping[str, Ints]  # arrays of one length, by axis
Point = Mapping[str, int]
Cost = Callable[[Columns], Floats]
Grids = Callable[[int, Search], tuple["Grid", Cost]]  # by their place, within the limits of a search
GridMaker = Callable[[], tuple["Grid", Cost] | Grids]  # may be pickled

_MOST_CODES = 1 << 62
_MOST_TABLE = 1 << 20
_FEW_NAMES = 2  # of a rule that is asked once for all nodes of equal values; others, too, of
_FEW_PAIRS = 1_024  # nodes and values, of which rules are asked one by one: looking for equal ones takes longer
_MANY_PAIRS = 100_000
_MANY_CELLS = 1_000_000  # of them, for which to look for equal nodes first is worth it
_MOST_PAIRS = 1 << 16  # of them, of which a rule is asked in one go
MOST_COUNTED = 20_000_000  # nodes times values of an axis that counting looks at: some tenths of a second
MOST_AT_ONCE = 200_000  # nodes in one array
_FIRST_NODES = 16  # of the first chunk: few, so that an incumbent is found soon
_FIRST_KNOWN = 1024  # where several answers are asked for,
_FIRST_LATE = 256  # or of the last levels: those known may be far from the best
_FIRST_POINTS = 256  # evaluated in one go: the better they are, the fewer follow
_FIRST_STRICT = 1024  # of the last levels, where a good answer is known: less costs more in calls than it rules out
_GROWTH = 4
_MOST_RULED_OUT = 32  # values of a node for each that rules leave, that are counted on
_MANY_DIVING = 2048  # nodes of a level below which a first answer is looked for,
_FEW_DIVING = 64  # and of the last levels:
_LATE_DIVING = 5  # so many
_LAST_LEVELS = 4  # whose bounds take as long as evaluating
_SLACK = 1e-12  # relative rounding of a bound
_PIECE = 32_768  # nodes, at most, that travel together,
_LEAST_PIECE = 256  # and at least, of the last levels: a bound of so many takes mostly what it takes for a single one
_FEWER = 4  # times as few nodes in one array where a search is shared out: between two arrays a share may end
_OWN_S = 2.0  # of the process that asks, by how many pieces are at work: as many may wait for it meanwhile,
_MOST_OWN_S = 0.5  # and no more
_OWN_NODES = 2_048  # in one array there,
_FIRST_OWN = 256  # and looked at first
_FEW_AT_WORK = 6  # pieces: three helpers
_POLL_S = 0.05
_SHARES = 100  # of a search, about: so many that the last ones end together, however many work,
_LEAST_SHARE_S = 0.5  # and each long beside what every piece takes, however small: of 0.1 s they took 40 % more
_SHORT_SHARE_S = 0.2  # where somebody has nothing to do


class OverError(Exception):
    """A bound or a cost was broken off, since the search is over: nothing is known of the nodes it was asked about."""


@frozen
class Axis:
    """A decision: its name and the values that it may take."""

    name: str
    values: tuple[int, ...]


@frozen
class Rule:
    """A condition on the axes named; ``holds`` answers for arrays of their values."""

    names: tuple[str, ...]
    holds: Callable[[Columns], NDArray[np.bool_]]


@frozen
class Level:
    """Axes that are decided together, and a bound of the nodes that they make; None: nothing is known of them.

    A level without axes, which is not the first, has a tighter bound for the nodes of the level before.
    """

    axes: tuple[Axis, ...]
    bound: Callable[[Columns], Floats] | None = None


@frozen
class Grid:
    """Levels from coarse to fine, and the rules that all points keep."""

    levels: tuple[Level, ...]
    rules: tuple[Rule, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, in their order."""
        return tuple(axis for level in self.levels for axis in level.axes)

    @property
    def has_bounds(self) -> bool:
        """Whether any level has a bound; where none has, every point is evaluated."""
        return any(level.bound is not None for level in self.levels)

    def expand(self, nodes: Columns, level: int) -> dict[str, Ints]:
        """Return the nodes of a level below some nodes of the level before; those of no axis are one.

        Parameters
        ----------
        nodes
            Columns of one length, for every axis of the levels before; others are carried along.
        level
            Index of the level.
        """
        found = dict(nodes)
        for axis in self.levels[level].axes:
            found = self._with(found, axis)
        return found

    def _with(self, nodes: Columns, axis: Axis) -> dict[str, Ints]:
        """Return nodes with one more axis decided, those that break a rule left out."""
        values = np.array(axis.values, dtype=np.int64)
        number, rules = _length_of(nodes) * len(values), self._rules_on(axis.name, nodes)
        most = 0 if number <= _FEW_PAIRS else _FEW_NAMES if number < _MANY_PAIRS else 1 + len(nodes)
        tables = [one for one in rules if len(one.names) <= most]
        if tables:
            owner, place = np.nonzero(self._may_be(nodes, axis, tables))
        else:
            owner, place = np.divmod(np.arange(number), max(len(values), 1))
        for rule in (one for one in rules if len(one.names) > most):
            asked = {name: values[place] if name == axis.name else nodes[name][owner] for name in rule.names}
            kept = np.asarray(rule.holds(asked))
            owner, place = owner[kept], place[kept]
        return {**{name: column[owner] for name, column in nodes.items()}, axis.name: values[place]}

    def _rules_on(self, name: str, nodes: Columns) -> list[Rule]:
        """Return the rules on an axis and those that are decided."""
        known = {*nodes, name}
        return [rule for rule in self.rules if name in rule.names and known.issuperset(rule.names)]

    def _may_be(self, nodes: Columns, axis: Axis, rules: Sequence[Rule]) -> NDArray[np.bool_]:
        """Return which values of an axis keep rules, for each node.

        A rule is asked once for each combination of its other axes: nodes are many, and those few. So are those of all
        rules together, where there are several: each is then asked for these.
        """
        named = sorted({name for rule in rules for name in rule.names if name != axis.name})
        if len(rules) > _FEW_NAMES and named and _length_of(nodes) * len(axis.values) > _MANY_CELLS:
            first, back = distinct(nodes, named)
            if len(first) * _FEW_NAMES < len(back):
                return self._may_be({name: nodes[name][first] for name in named}, axis, rules)[back]
        values = np.array(axis.values, dtype=np.int64)
        found = np.ones((_length_of(nodes), len(values)), dtype=bool)
        for rule in rules:
            others = [name for name in rule.names if name != axis.name]
            if not others:
                found &= np.asarray(rule.holds({axis.name: values}))[None, :]
                continue
            if len(others) == 1:
                present = {others[0]: _values_of(nodes[others[0]])}
                back = np.searchsorted(present[others[0]], nodes[others[0]])
            else:
                first, back = distinct(nodes, others)
                present = {name: nodes[name][first] for name in others}
            number = len(present[others[0]])
            tables: list[NDArray[np.bool_]] = []
            each = max(1, _MOST_PAIRS // max(len(values), 1))
            for start in range(0, max(number, 1), each):  # new memory takes longer than the rule
                few = {name: column[start : start + each] for name, column in present.items()}
                pairs = {name: np.repeat(column, len(values)) for name, column in few.items()}
                shape = len(few[others[0]]), len(values)
                every = np.tile(values, shape[0])
                tables.append(np.asarray(rule.holds({**pairs, axis.name: every})).reshape(shape))
            found &= np.concatenate(tables)[back]
        return found

    def count(self, most: int = MOST_COUNTED) -> int | None:
        """Return how many points there are, without listing them; None where counting would look at too many nodes.

        Parameters
        ----------
        most
            Nodes times values of an axis that may be looked at.

        Notes
        -----
        Axis by axis, those first after which later rules ask for fewest axes, of fewest values; nodes that agree in all
        of these are counted as one, with their number. What is too many is a number, not a time, so that the answer is
        the same on every machine.
        """
        left = {axis.name: axis for axis in self.axes}
        sizes = {name: len(axis.values) for name, axis in left.items()}
        is_small = prod(len(axis.values) for axis in left.values()) < np.iinfo(np.int64).max
        nodes: dict[str, Ints] = {}

        def needed() -> dict[str, list[str]]:
            """Return of each axis that is left which decided ones a rule then asks for together with one still left."""
            sources: dict[str, set[str]] = {}  # of a name, the axes that are left of rules that ask for it
            for rule in self.rules:
                still = [name for name in rule.names if name in left]
                for name in rule.names if still else ():
                    sources.setdefault(name, set()).update(still)
            return {one: [name for name in (*nodes, one) if sources.get(name, set()) - {one}] for one in left}

        weights = np.ones(1, dtype=np.int64 if is_small else object)  # Python's integers do not overflow
        while left:
            asked = needed()
            name = min(left, key=lambda one: (len(asked[one]), prod(sizes[key] for key in asked[one])))
            axis = left.pop(name)
            if not any(name in rule.names for rule in self.rules):
                weights = weights * len(axis.values)
                continue
            most -= len(weights) * len(axis.values)
            if most < 0:
                return None
            if name in asked[name]:
                marked = self._with({**nodes, "": np.arange(len(weights))}, axis)
                weights = weights[marked.pop("")]
            else:  # no later rule asks for its value: only how many there are counts
                numbers = self._may_be(nodes, axis, self._rules_on(name, nodes)).sum(axis=1)
                weights, marked = weights * (numbers if is_small else numbers.astype(object)), dict(nodes)
            nodes = {one: marked[one] for one in asked[name]}
            if not nodes:
                weights = weights.sum(keepdims=True) if len(weights) else np.zeros(1, dtype=weights.dtype)
                continue
            code = _codes_of(list(nodes.values()))
            order = np.argsort(code, kind="stable")
            starts = np.flatnonzero(np.diff(code[order], prepend=-1))
            weights = np.add.reduceat(weights[order], starts) if len(starts) else weights[:0]
            nodes = {one: column[order[starts]] for one, column in nodes.items()}
        return int(weights.sum())


def _length_of(nodes: Columns) -> int:
    """Return the number of nodes; no axis at all is one."""
    return len(next(iter(nodes.values()))) if nodes else 1


def _codes_of(columns: Sequence[Ints]) -> Ints:
    """Return one number for each row, equal for equal rows."""
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        values = _values_of(column)
        if size * len(values) >= _MOST_CODES:
            present, code = np.unique(code, return_inverse=True)
            size = len(present)
        code = code * len(values) + np.searchsorted(values, column)
        size *= len(values)
    return np.unique(code, return_inverse=True)[1]


def distinct(nodes: Columns, names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the index of one node of each combination of some decisions, and for each node which.

    Parameters
    ----------
    nodes
        Columns of one length.
    names
        Of the axes that combinations are made of.
    """
    code = np.zeros(_length_of(nodes), dtype=np.int64)
    for name in names:
        column = nodes[name]
        size = int(column.max(initial=0)) + 1
        if size > _MOST_TABLE or int(column.min(initial=0)) < 0:
            values, column = np.unique(column, return_inverse=True)
            size = len(values)
        if int(code.max(initial=0)) >= _MOST_CODES // size:
            code = np.unique(code, return_inverse=True)[1]
        code = code * size + column
    _, first, back = np.unique(code, return_index=True, return_inverse=True)
    return first, back


def _values_of(column: Ints) -> Ints:
    """Return the values of a column, in order: by a table where they are small."""
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    if least < 0 or most > _MOST_TABLE:
        return np.unique(column)
    seen = np.zeros(most + 1, dtype=bool)
    seen[column] = True
    return np.flatnonzero(seen)


@frozen
class _Box:
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

    def part(self, rows: slice | Ints) -> "_Box":
        """Return some of the nodes, in their order."""
        nodes = {name: column[rows] for name, column in self.nodes.items()}
        return _Box(level=self.level, nodes=nodes, least=self.least[rows])

    @classmethod
    def of(cls, boxes: Sequence["_Box"]) -> "_Box":
        """Return the nodes of boxes of one level together."""
        if len(boxes) == 1:
            return boxes[0]
        nodes = {name: np.concatenate([box.nodes[name] for box in boxes]) for name in boxes[0].nodes}
        least = np.concatenate([box.least for box in boxes])
        return cls(level=boxes[0].level, nodes=nodes, least=least).part(np.argsort(least, kind="stable"))

    def within(self, limit: float) -> "_Box":
        """Return the nodes whose bounds are not above a limit."""
        return self.part(slice(0, int(np.searchsorted(self.least, limit, side="right"))))

    def spread(self, names: Sequence[str], most_each: int) -> "_Box":
        """Return the first nodes of each group, so many: those that are equal in the named decisions already made."""
        codes = _codes_of([self.nodes[name] for name in names if name in self.nodes] or [np.zeros(len(self), np.int64)])
        order = np.argsort(codes, kind="stable")
        place = np.arange(len(self)) - np.searchsorted(codes[order], codes[order])  # within its group
        return self.part(np.sort(order[place < most_each]))

    def packed(self) -> "_Box":
        """Return it in as few bytes as its numbers need, to travel."""
        nodes = {}
        for name, column in self.nodes.items():
            least, most = int(column.min(initial=0)), int(column.max(initial=0))
            nodes[name] = column.astype(np.min_scalar_type(most if least >= 0 else min(least, -most - 1)))
        return _Box(level=self.level, nodes=nodes, least=self.least)

    def unpacked(self) -> "_Box":
        """Return it with integers that products do not overflow."""
        nodes = {name: column.astype(np.int64) for name, column in self.nodes.items()}
        return _Box(level=self.level, nodes=nodes, least=self.least)


_ROOT = _Box(level=0, nodes={}, least=np.array([-inf]))  # of a whole grid, of which nothing is known


@frozen
class _Row:
    """A point, its cost, its group, and its place in the grid."""

    cost: float
    place: tuple[int, ...]
    group: tuple[int, ...]
    point: Point


@dataclass(slots=True)
class _Best:
    """The best points so far, of different groups: so many that differ in the axes named."""

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
        groups = _codes_of([points[name][hopeful] for name in self.names])
        least = np.full(int(groups.max()) + 1, inf)
        np.minimum.at(least, groups, costs[hopeful])
        enough = np.sort(least)[: self.number][-1]
        kept = (costs[hopeful] == least[groups]) & (costs[hopeful] <= enough)
        hopeful, groups = hopeful[kept], groups[kept]
        places = {name: self._places(name, column[hopeful]) for name, column in points.items()}
        order = np.lexsort([*(places[name] for name in reversed(list(points))), costs[hopeful]])
        _, first = np.unique(groups[order], return_index=True)
        self.join(
            [
                _Row(
                    cost=float(costs[hopeful[index]]),
                    place=tuple(int(places[axis.name][index]) for axis in self.grid.axes),
                    group=tuple(int(points[name][hopeful[index]]) for name in self.names),
                    point={name: int(column[hopeful[index]]) for name, column in points.items()},
                )
                for index in order[np.sort(first)].tolist()
            ]
        )

    def _places(self, name: str, values: Ints) -> Ints:
        """Return the positions of values on their axis."""
        known, order = self._sorted[name]
        return np.asarray(order[np.searchsorted(known, values)])

    def join(self, rows: Sequence[_Row]) -> None:
        """Take in points of the same grid, in any order; of a group the best one stays."""
        kept: dict[tuple[int, ...], _Row] = {}
        for row in sorted([*self.rows, *rows], key=lambda one: (one.cost, one.place)):
            kept.setdefault(row.group, row)
        self.rows = list(kept.values())[: self.number]


@dataclass(slots=True)
class _Walk:
    """Depth first through the levels, chunk by chunk; ``rest``: what was not looked at, though it may be better."""

    grid: Grid
    cost: Cost
    search: Search
    best: _Best
    most_at_once: int
    is_strict: bool = False
    dives: bool = False
    is_proof: bool = False
    is_full: Callable[["_Walk"], bool] = lambda walk: False
    num_evaluated: int = 0
    num_dived: int = 0
    num_chunks: int = 0
    was_broken_off: bool = False  # a bound or a cost
    rest: list[_Box] = field(default_factory=list)
    _expanded: dict[int, tuple[int, int]] = field(default_factory=dict)
    _begin_s: float = field(default_factory=time.thread_time)
    _path: list[tuple[int, int, int]] = field(default_factory=list)  # nodes behind, at work and in all, level by level

    @property
    def left_s(self) -> float:
        """CPU seconds that are left, about: as if below each node of a level lay as much; what is left may be less.

        As long as no node is behind, as many as it took so far: nothing tells of more.
        """
        done, share = 0.0, 1.0
        for behind, at_work, number in self._path:
            done += share * behind / number
            share *= at_work / number
        return (time.thread_time() - self._begin_s) * (1 / done - 1 if done else 1.0)

    def from_root(self) -> None:
        """Look at the whole grid."""
        try:
            box = self._box({}, 0)
        except OverError:  # before anything was known of the first level
            self.rest.append(_ROOT)
            return
        if self.dives:
            self._dive(box)
        self.take_up(box)

    def look_at(self, box: _Box) -> None:
        """Look at all points below the nodes of a box; without any, at the whole grid."""
        if box.nodes:
            self.take_up(box)
        else:
            self.from_root()

    def go_on(self, before: "GridAnswer") -> None:
        """Look at what an earlier search left, with the points that it found."""
        value = before.solution.value
        rows = [] if value is None else [(before.solution.objective, value), *before.others]
        if rows:
            points = {axis.name: np.array([point[axis.name] for _, point in rows]) for axis in self.grid.axes}
            self.best.add(points, np.array([cost for cost, _ in rows]))
        self.num_evaluated = before.num_evaluated
        for box in sorted(before.rest, key=lambda one: one.bound):
            self.look_at(box)

    def _dive(self, box: _Box) -> None:
        """Evaluate a few points below the most hopeful nodes, so that a good answer is known before all is looked at.

        Of each level the nodes of the least bounds are expanded, fewer where bounds take longer, and none so many that
        other groups than the best have no answer: bounds cut nothing before each answer asked for has one.
        """
        last = len(self.grid.levels) - 1

        def chosen(box: _Box) -> _Box:
            most = _FEW_DIVING if box.level + _LATE_DIVING > last else _MANY_DIVING
            if self.best.number > 1:
                box = box.spread(self.best.names, -(-most // self.best.number))
            return box.part(slice(0, most))

        with suppress(OverError):
            while box.level < last and len(box):
                few = chosen(box)
                box = self._box(few.nodes, few.level + 1, few.least)
            few = chosen(box)
            if len(few):
                self._add(few.nodes)
                self.num_dived += len(few)

    def _add(self, points: Columns) -> None:
        """Evaluate points; the cutoff falls with the last of the answers, so that bounds know what does not matter."""
        self.best.add(points, np.asarray(self.cost(points), dtype=np.float64))
        self.search.cutoff = min(self.search.cutoff, self.best.limit)

    def _box(self, nodes: Columns, level: int, bounds: Floats | None = None, limit: float = inf) -> _Box:
        """Return what lies below nodes of the level before, whose bounds are known, and is not above a limit."""
        parts = self.grid.expand({**nodes, "": np.arange(_length_of(nodes))}, level)
        parents = parts.pop("")
        known = self._expanded.get(level, (0, 0))
        self._expanded[level] = known[0] + _length_of(nodes), known[1] + len(parents)
        least = np.full(len(parents), -inf) if bounds is None else bounds[parents]
        own_bound = self.grid.levels[level].bound
        if own_bound is not None and len(parents):
            own = np.asarray(own_bound(parts))
            own = np.where(np.isnan(own), -inf, own)  # what is no number cuts nothing
            least = np.maximum(least, own - np.where(np.isfinite(own), np.abs(own), 0.0) * _SLACK)
        left = np.flatnonzero((least <= limit) & (least < inf))  # the fewest, often: these alone are sorted
        order = left[np.argsort(least[left], kind="stable")]
        for name in parts:  # one by one: the arrays are large
            parts[name] = parts[name][order]
        return _Box(level=level, nodes=parts, least=least[order])

    def take_up(self, box: _Box) -> None:
        """Look at all points below the nodes of a box, or at its points: chunk by chunk, each larger than the last."""
        is_last, has_bounds = box.level == len(self.grid.levels) - 1, self.grid.has_bounds
        if is_last:
            most, size = self.most_at_once, _FIRST_POINTS if has_bounds else self.most_at_once
        else:
            most, size = self._sizes(box.level)
        start = 0
        while start < len(box):
            if box.least[start] > self._limit:
                return
            self._path.append((start, min(size, len(box) - start), len(box)))
            if self._is_over:
                self._path.pop()
                self.rest.append(box.part(slice(start, None)))
                return
            chunk = box.part(slice(start, start + size)).within(self._limit)
            self.num_chunks += 1
            start, size = start + size, min(size * _GROWTH, most)
            try:
                if is_last:
                    self._add(chunk.nodes)
                    self.num_evaluated += len(chunk)
                else:
                    self.take_up(self._box(chunk.nodes, box.level + 1, chunk.least, self._limit))
            except OverError:
                self.was_broken_off = True
                self.rest.append(chunk)
            self._path.pop()

    @property
    def _limit(self) -> float:
        """Bounds above this need no look; a known answer elsewhere counts once there is one here."""
        is_known = bool(self.best.rows) or self.is_strict
        return min(self.best.limit, self.search.cutoff) if is_known else inf

    @property
    def _is_over(self) -> bool:
        """Whether to stop: out of time, good enough, or its share done."""
        has_enough = bool(self.best.rows) and self.best.rows[0].cost <= self.search.good_enough
        return has_enough or self.search.is_over or self.is_full(self)

    def _sizes(self, level: int) -> tuple[int, int]:
        """Return how many nodes of a level may be expanded at once, and how many at first."""
        below: float = prod(len(axis.values) for axis in self.grid.levels[level + 1].axes)
        number, children = self._expanded.get(level + 1, (0, 0))
        if number:  # rules leave fewer: as many as they have left so far
            below = max(children / number, below / _MOST_RULED_OUT)
        most = max(1, int(self.most_at_once / max(1.0, below)))
        if self.is_proof:
            return most, most
        if self.is_strict and self.best.number == 1 and level >= len(self.grid.levels) - _LAST_LEVELS:
            return most, min(_FIRST_STRICT, most)
        is_known = bool(self.best.rows) or (self.is_strict and level > 0)
        if not is_known:  # as many as were looked at in vain: few, so that an incumbent is found soon, or most of them
            return most, min(max(_FIRST_NODES, number), most)
        if level + _LATE_DIVING >= len(self.grid.levels):  # a better answer soon spares the most
            return most, min(_FIRST_LATE, most)
        return most, min(_FIRST_KNOWN, most) if self.best.number > 1 else most


@frozen
class _Shares:
    """How a search is shared out: how many answers that differ in which axes, and nodes in one array.

    ``expanded``: how many nodes had how many children on each level so far. ``memory_limit_bytes``: of each process.
    ``index``: of the grid, where the origin makes several.
    """

    names: tuple[str, ...]
    number: int
    most_at_once: int
    expanded: Mapping[int, tuple[int, int]]
    memory_limit_bytes: float | None
    index: int | None = None


@frozen
class _Explored:
    """What came of a piece: points among the best, what was left, how many points were evaluated.

    ``has_room``: whether the worker's memory did for it.
    """

    rows: tuple[_Row, ...]
    rest: tuple[_Box, ...]
    num_evaluated: int
    expanded: Mapping[int, tuple[int, int]]
    has_room: bool = True


def _explored(made: tuple[Grid, Cost] | Grids, shares: _Shares, box: _Box, limit: float, share_s: float) -> _Explored:
    """Return what lies below a box, as far as it costs no more than a limit.

    A function of its arguments but for where its share of time ends, which moves points from ``rows`` to ``rest``.
    """
    end_s = time.thread_time() + share_s
    search = Search(cutoff=limit, memory_limit_bytes=shares.memory_limit_bytes)
    grid, cost = made if isinstance(made, tuple) else made(shares.index or 0, search)
    best = _Best(grid=grid, names=shares.names, number=shares.number)
    walk = _Walk(
        grid=grid,
        cost=cost,
        search=search,
        best=best,
        most_at_once=shares.most_at_once,
        is_strict=True,
        is_full=lambda walk: walk.num_chunks > 0 and time.thread_time() >= end_s,
        _expanded=dict(shares.expanded),
    )
    try:
        walk.look_at(box.unpacked())
    except MemoryError:  # what was looked at by then is not known
        return _Explored(rows=(), rest=(box,), num_evaluated=0, expanded={}, has_room=False)
    return _Explored(
        rows=tuple(best.rows),
        rest=tuple(one.packed() for one in (one.within(min(limit, best.limit)) for one in walk.rest) if len(one)),
        num_evaluated=walk.num_evaluated,
        expanded=walk._expanded,
        has_room=not (walk.was_broken_off or search.is_late),
    )


@dataclass(slots=True)
class _Part:
    """A grid that a client has searched: its walk, what waits of it, by level, and how many pieces are at work."""

    walk: _Walk
    shares: _Shares
    waiting: dict[int, list[_Box]] = field(default_factory=dict)
    num_at_work: int = 0
    lost: list[_Box] = field(default_factory=list)

    @property
    def limit(self) -> float:
        """Cost above which nothing counts."""
        return min(self.walk.best.limit, self.walk.search.cutoff)

    @property
    def is_open(self) -> bool:
        """Whether any of it waits, or is at work."""
        return bool(self.waiting or self.num_at_work)

    def put(self, box: _Box) -> None:
        """Have a box wait, as far as it may hold an answer."""
        within = box.within(self.limit)
        if len(within):
            self.waiting.setdefault(within.level, []).append(within)

    def put_rest(self) -> None:
        """Have what the walk left wait."""
        for box in self.walk.rest:
            self.put(box)
        self.walk.rest = []

    def pieces(self, number: int, most: int = _PIECE) -> list[_Box]:
        """Return so many pieces, or fewer, of nodes of one level that wait; each of ``most`` nodes or less.

        Of the finest level of which many wait, since what is asked of many at once takes less time for each, and so
        that few wait. Else of the coarsest, below which most is left to do; of the last levels no crumbs. Nodes of
        equal decisions are in one piece, as what one of them needs others do, too: each worker works out its own.
        """
        while self.waiting:
            waiting = {level: sum(map(len, boxes)) for level, boxes in self.waiting.items()}
            level = max((one for one, count in waiting.items() if count >= _PIECE), default=min(waiting))
            above = len(self.walk.grid.levels) - 1 - level  # of the points themselves
            least = _LEAST_PIECE if 0 < above <= _LATE_DIVING else 1
            together = _Box.of(self.waiting.pop(level)).within(self.limit)
            if not len(together):
                continue
            each = min(most, max(-(-len(together) // number), least))
            number = min(number, -(-len(together) // each))
            if number * each < len(together):
                self.waiting[level] = [together.part(slice(number * each, None))]
                together = together.part(slice(0, number * each))
            if number == 1:
                return [together]
            order = np.lexsort([together.nodes[name] for name in reversed([*together.nodes])])
            return [together.part(np.sort(rows)) for rows in np.array_split(order, number)]
        return []


@dataclass(slots=True)
class _Client:
    """Has a worker pool look at all that waits of some grids, those of the first before those of the next."""

    parts: Collection[_Part]
    origin: Origin
    pool: WorkerPool
    search: Search
    share_s: float
    on_taken: Callable[[], None] = lambda: None
    meanwhile: Callable[[], None] | None = None  # called once, when all who help have something to do
    _has_room: bool = True
    _is_first: bool = True  # whether the first part is not done yet
    _own_nodes: int = _FIRST_OWN  # that this process looks at next
    _at_work: dict[int, tuple[_Part, _Box]] = field(default_factory=dict)

    def run(self, part: _Part) -> None:
        """Send pieces and take in what comes back, until nothing is left of a part or the time is over.

        Its walk's best points, counts and rest are then those of the whole search of it.
        """
        while part.is_open and not self.search.is_over:
            self._send()
            has_looked = self._take_up()  # at what nobody has room for
            for number, explored in self.pool.poll(0.0 if has_looked else _POLL_S, self._at_work):
                self._take(*self._at_work.pop(number), explored)
        at_work = [box for one, box in self._at_work.values() if one is part]
        boxes = [*chain.from_iterable(part.waiting.values()), *at_work, *part.lost]
        part.walk.rest = [box for box in (one.within(part.limit) for one in boxes) if len(box)]
        self._is_first = False

    @property
    def _num_waiting(self) -> int:
        """How many parts have nodes that wait."""
        return sum(bool(part.waiting) for part in self.parts)

    def _take_up(self) -> bool:
        """Look at some nodes here, for so briefly that who helps gets something new to do; return whether at any.

        At whole grids, of which nobody knows how long they take, only while few may wait for it.
        """
        waiting = [one for one in self.parts if one.waiting]
        known = [one for one in waiting if 0 not in one.waiting or one.waiting[0][0].nodes]
        if not waiting or (not known and len(self._at_work) > _FEW_AT_WORK):
            return False
        part, own_s = (known or waiting)[0], min(_OWN_S / max(len(self._at_work), 1), _MOST_OWN_S)
        begin_s, before = time.thread_time(), part.walk.num_chunks
        part.walk.is_full = lambda walk: walk.num_chunks > before and time.thread_time() >= begin_s + own_s
        for piece in part.pieces(1, self._own_nodes):
            part.walk.look_at(piece)
        self.on_taken()
        part.put_rest()
        took_s = time.thread_time() - begin_s
        if took_s > own_s:
            self._own_nodes = max(self._own_nodes // 2, 1)
        elif took_s < own_s / 2:
            self._own_nodes = min(self._own_nodes * 2, _PIECE)
        return True

    def _send(self) -> None:
        """Send as many pieces as are wanted.

        Where they are fewer, and of whole grids, of which nobody knows what lies below, unless more of them wait than
        are wanted, shares are short: what these leave is for all. They are shorter than usual, too, where no more wait
        of later grids than are wanted: the last of them may be the longest.
        """
        room, chosen = self.pool.room() if self._has_room else 0, list[tuple[_Part, _Box]]()
        for part in self.parts:
            while len(chosen) < room and part.waiting:
                left = room - len(chosen)
                number = left + 1 if self._is_first else -(-left // self._num_waiting)
                pieces = part.pieces(number)
                chosen += [(part, piece) for piece in pieces[:left]]
                for piece in pieces[left:]:
                    part.put(piece)
        is_enough, first = self._num_waiting > room, next(iter(self.parts)) if self._is_first else None
        for part, piece in chosen:
            is_short = len(chosen) < room or not (piece.nodes or is_enough)
            most_s = inf if is_enough or part is first else _LEAST_SHARE_S
            share_s = min(self.share_s, _SHORT_SHARE_S if is_short else most_s)
            shares = replace(part.shares, expanded=dict(part.walk._expanded))
            arguments = (shares, piece.packed(), part.limit, share_s)
            self._at_work[self.pool.submit(_explored, self.origin, arguments)] = part, piece
            part.num_at_work += 1
        if chosen and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()

    def _take(self, part: _Part, piece: _Box, explored: _Explored | FailedTask) -> None:
        """Take in what came back of a piece."""
        part.num_at_work -= 1
        if isinstance(explored, FailedTask):
            if explored.is_gone:
                part.put(piece)
                return
            part.lost.append(piece)
            self.pool.tell(f"a part of the search failed and counts as not looked at: {explored.why}")
            return
        part.walk.best.join(explored.rows)
        part.walk.search.cutoff = part.limit
        part.walk.num_evaluated += explored.num_evaluated
        for level, known in explored.expanded.items():  # whichever knows most
            part.walk._expanded[level] = max(known, part.walk._expanded.get(level, (0, 0)))
        self.on_taken()
        for box in explored.rest:
            part.put(box.unpacked())
        if not explored.has_room:
            self._has_room = False
            self.pool.tell("a worker's memory limit was reached; the search went on without workers")


@frozen
class GridAnswer:
    """The outcome of :func:`solve`.

    Attributes
    ----------
    solution
        The best point, its cost, what no point beats, and whether that is proven.
    others
        The best points of the next groups with their costs, in order.
    num_points, num_evaluated
        Points of the grid, and those whose cost was asked for.
    is_counted
        Whether the points of the grid were counted; where not, since they are too many or the time was over,
        ``num_points`` are those whose cost was asked for.
    rest
        What was not looked at when the search was over, though it may be better: :func:`solve` goes on there.
    """

    solution: Solution[Point]
    others: tuple[tuple[float, Point], ...]
    num_points: int
    num_evaluated: int
    is_counted: bool = True
    rest: tuple[_Box, ...] = field(default=(), repr=False, compare=False)

    def of_points(self, number: int | None) -> "GridAnswer":
        """Return the answer with the points of its grid, where they were counted."""
        if number is None:
            return self
        return replace(self, num_points=number, num_evaluated=min(self.num_evaluated, number), is_counted=True)


@frozen
class Wanted:
    """What is wanted of a grid.

    Attributes
    ----------
    num_answers
        The best point and runners-up in all; bounds are held against the last of them.
    group_by
        Axes in which two answers must differ; by default they must be different points.
    most_at_once
        Nodes in one array, about.
    is_strict
        Whether points that cost more than the search's cutoff are not wanted at all, so that there may be no answer.
        Else the cutoff counts only once there is one.
    counts
        Whether to count the points of the grid.
    dives
        Whether a first answer is looked for below the most hopeful nodes; None: unless a cutoff is known that counts,
        or what is found may depend on the order.
    is_proof
        Whether no answer is likely, or nodes are few: then as many as may be are looked at together from the beginning.
    """

    num_answers: int = 1
    group_by: Sequence[str] = ()
    most_at_once: int = MOST_AT_ONCE
    is_strict: bool = False
    counts: bool = True
    dives: bool | None = None
    is_proof: bool = False


_ONE = Wanted()


def solve(
    grid: Grid,
    cost: Cost,
    search: Search,
    wanted: Wanted = _ONE,
    *,
    maker: GridMaker | None = None,
    before: GridAnswer | None = None,
) -> GridAnswer:
    """Return the best point of a grid and the next ones.

    Parameters
    ----------
    grid
        Its levels, bounds and rules; without any bound every point is evaluated: slow, and the same answer.
    cost
        Of points: one number each; infinite for what is not allowed. Where it takes long it asks whether the search is
        over, as bounds do, and raises :class:`OverError`.
    search
        Ends it; an answer that is good enough does, too.
    wanted
        How many points, of which kind, and how they are looked for.
    maker
        Makes the same grid and cost elsewhere, or :data:`Grids` of this one. A search for the first answer that is good
        enough, or of counted work, is not shared out: what it finds depends on the order.
    before
        The answer of a search of the same grid that was stopped: only what it left is looked at.
    """
    is_strict, most_at_once, counts, dives = wanted.is_strict, wanted.most_at_once, wanted.counts, wanted.dives
    cutoff = search.cutoff  # which falls meanwhile
    names = tuple(wanted.group_by) or tuple(axis.name for axis in grid.axes)
    best_points = _Best(grid=grid, names=names, number=max(wanted.num_answers, 1))
    depends_on_order = search.questions_left is not None or search.good_enough > -inf
    if dives is None:
        dives = not (is_strict and search.cutoff < inf) and not depends_on_order
    dives = dives and grid.has_bounds
    walk = _Walk(grid, cost, search, best_points, most_at_once, is_strict, dives, wanted.is_proof)
    begin = walk.from_root if before is None else partial(walk.go_on, before)
    pool = None if depends_on_order else search.pool
    origin = None if pool is None or maker is None else Origin.of(maker)
    counted: list[int | None] = []
    try:
        if pool is None or origin is None:
            begin()
        else:
            begin_s = time.thread_time()
            end_s = begin_s + pool.alone_s
            left_s, hoped_s = list[float](), list[float]()

            def is_full(walk: _Walk) -> bool:
                # Until there is an answer, a cutoff that is not strict does not count: what is found depends on the
                # order.
                is_set = is_strict or cutoff == inf or bool(walk.best.rows)
                now_s = time.thread_time()
                if not left_s and is_set and now_s >= end_s:
                    if not pool.is_worth(walk.left_s):
                        hoped_s.clear()
                    elif pool.is_worth(0.0) or (hoped_s and now_s - begin_s >= 2 * (hoped_s[0] - begin_s)):
                        left_s.append(walk.left_s)  # helpers are there, or it still is so after twice as long
                    elif not hoped_s:
                        hoped_s.append(now_s)
                return bool(left_s)

            walk.is_full = is_full
            begin()
            if left_s and walk.rest and not search.is_over:
                few = -(-most_at_once // _FEWER)
                walk.most_at_once = min(few, _OWN_NODES)
                shares = _Shares(
                    names=names,
                    number=best_points.number,
                    most_at_once=few,
                    expanded=dict(walk._expanded),
                    memory_limit_bytes=search.memory_limit_bytes,
                )
                share_s = min(pool.share_s, max(_LEAST_SHARE_S, left_s[0] / _SHARES))
                part = _Part(walk=walk, shares=shares)
                part.put_rest()
                client = _Client(
                    parts=[part],
                    origin=origin,
                    pool=pool,
                    search=search,
                    share_s=share_s,
                    meanwhile=lambda: counted.append(grid.count() if counts else None),
                )
                client.run(part)
    finally:
        search.cutoff = cutoff
    if not counted:
        counted.append(None if search.is_over or not counts else grid.count())
    return _answer_of(walk, counted[0])


def _answer_of(walk: _Walk, num_points: int | None) -> GridAnswer:
    """Return what a walk found; ``num_points``: of its grid, where they were counted."""
    best, search, passes_over = walk.best.rows, walk.search, walk.grid.has_bounds
    if walk.is_strict:  # a point may cost more than all that bounds it
        best = [row for row in best if row.cost <= search.cutoff]
        passes_over |= len(best) < len(walk.best.rows)
    objective = best[0].cost if best else inf
    bound = min([objective, *(box.bound for box in walk.rest)])
    if (best or walk.is_strict) and passes_over and search.cutoff < objective:
        bound = min(bound, search.cutoff)  # what costs more was passed over
    asked = walk.num_evaluated + walk.num_dived  # some of which twice
    return GridAnswer(
        solution=Solution.proven(best[0].point if best else None, objective=objective, bound=bound, tolerance=0.0),
        others=tuple((row.cost, row.point) for row in best[1:]),
        num_points=asked,
        num_evaluated=asked,
        is_counted=False,
        rest=tuple(walk.rest),
    ).of_points(num_points)


@frozen
class Turn:
    """One of several grids that are searched in turn.

    Attributes
    ----------
    index
        Its place among those that the origin makes.
    grid, cost
        As of :func:`solve`; they ask ``search``.
    search
        Of its own: its cutoff falls as better points of earlier grids are found.
    group_by
        Axes in which two answers must differ.
    """

    index: int
    grid: Grid
    cost: Cost
    search: Search
    group_by: tuple[str, ...]


def solve_in_turn(
    turns: Sequence[Turn],
    search: Search,
    origin: Origin,
    known: Sequence[float],
    *,
    num_answers: int = 1,
    most_at_once: int = MOST_AT_ONCE,
    meanwhile: Callable[[], None] | None = None,
) -> Iterator[GridAnswer]:
    """Yield the best points of grids that are searched at once, each as if it was searched after the one before.

    Their points are not counted.

    Of each grid those that cost no more than the best known, of which as many count as answers are wanted: what is
    known at the time, and what earlier grids have found. Who helps looks at later grids where an earlier one has
    nothing to do for them, so that nobody waits for the last piece of each. Their limits are looser meanwhile, which
    costs work, never an answer: a grid's points up to the limit that counts in its turn are among those up to any
    earlier one.

    Parameters
    ----------
    search
        Ends all of them; its pool helps.
    origin
        Makes :data:`Grids`.
    known
        Costs of points known elsewhere, in order: whoever takes an answer puts its points in before the next one.
    num_answers, most_at_once
        As of :class:`Wanted`.
    meanwhile
        Called once, when who helps has something to do.
    """
    pool = search.pool
    assert pool is not None
    number, few = max(num_answers, 1), -(-most_at_once // _FEWER)
    parts = []
    for turn in turns:
        best = _Best(grid=turn.grid, names=turn.group_by, number=number)
        walk = _Walk(turn.grid, turn.cost, turn.search, best, min(few, _OWN_NODES), is_strict=True)
        shares = _Shares(
            names=turn.group_by,
            number=number,
            most_at_once=few,
            expanded={},
            memory_limit_bytes=search.memory_limit_bytes,
            index=turn.index,
        )
        parts.append(_Part(walk=walk, shares=shares, waiting={0: [_ROOT]}))
    left = deque(parts)

    def tighten() -> None:
        """Hold each grid against what is known, and what those before it have found."""
        costs = [*known[:number], *[inf] * (number - len(known))]
        for part in left:
            part.walk.search.cutoff = min(part.walk.search.cutoff, costs[-1])
            costs = sorted([*costs, *(row.cost for row in part.walk.best.rows)])[:number]

    client = _Client(
        parts=left,
        origin=origin,
        pool=pool,
        search=search,
        share_s=pool.share_s,
        on_taken=tighten,
        meanwhile=meanwhile,
    )
    while left:
        tighten()
        part = left[0]
        client.run(part)
        walk = part.walk
        yield _answer_of(walk, None)
        left.popleft()
