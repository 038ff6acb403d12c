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

Who helps. Where the search has a pool, and the grid can be made again elsewhere, one walk works alone for a while; what
it leaves is shared out (:mod:`planner.solvers.grid`). The answer is the same.

Runners-up are the best points of other *groups*: points that agree in some axes are one group, of which the best
counts. Of equal costs the point counts that comes first in the grid's own order.
"""

import heapq
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solution import Solution, Status
from planner.worker_pool import FailedTask, Origin, WorkerPool

# --- Grids: a product of axes under rules, in levels from coarse to fine, and how nodes of one level become the next's

Ints = NDArray[np.int64]
Columns = Mapping[str, Ints]  # arrays of one length, by axis
Point = Mapping[str, int]

_MOST_CODES = 1 << 62
_MOST_TABLE = 1 << 20
_FEW_NAMES = 2  # of a rule that is asked once for all nodes of equal values
MOST_COUNTED = 20_000_000  # nodes times values of an axis that counting looks at: about a second


class OverError(Exception):
    """A bound or a cost was broken off, since the search is over: nothing is known of the nodes it was asked about."""


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
        may_be = np.ones((length_of(nodes), len(values)), dtype=bool)
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

    def count(self, most: int = MOST_COUNTED) -> int | None:
        """Return how many points there are, without listing them; None where counting would look at too many nodes.

        Axis by axis, those first after which later rules ask for fewest axes, of fewest values; nodes that agree in all
        of these are counted as one, with their number. What is too many is a number, not a time, so that the answer is
        the same on every machine.
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
            most -= len(weights) * len(axis.values)
            if most < 0:
                return None
            marked = self._with({**nodes, "": np.arange(len(weights))}, axis)
            weights = weights[marked.pop("")]
            nodes, weights = _merged({one: marked[one] for one in needed}, weights)
        return int(weights.sum())

    def _needed(self, decided: Sequence[str], left: Set[str]) -> list[str]:
        """Return which of the decided axes a rule asks for together with one that is left."""
        asked = {name for rule in self.rules if left & set(rule.names) for name in rule.names}
        return [name for name in decided if name in asked]


def length_of(nodes: Columns) -> int:
    """Return the number of nodes; no axis at all is one."""
    return len(next(iter(nodes.values()))) if nodes else 1


def _table(rule: Rule, nodes: Columns, name: str, values: Ints) -> "NDArray[np.bool_]":
    """Return which values of an axis go with each node by a rule on it and at most one axis more.

    Asked once for each value of the other axis: nodes are many, and their values few.
    """
    others = [one for one in rule.names if one != name]
    if not others:
        return np.asarray(rule.holds({name: values}))[None, :]
    known = _values_of(nodes[others[0]])
    asked = {others[0]: np.repeat(known, len(values)), name: np.tile(values, len(known))}
    table = np.asarray(rule.holds(asked)).reshape(len(known), len(values))
    return np.asarray(table[np.searchsorted(known, nodes[others[0]])])


def codes_of(columns: Sequence[Ints]) -> Ints:
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
    """Return the index of one node of each combination of some decisions, and for each node which."""
    code = np.zeros(length_of(nodes), dtype=np.int64)
    for name in names:
        column = nodes[name]
        size = int(column.max(initial=0)) + 1
        if size > _MOST_TABLE:
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


def _merged(nodes: Mapping[str, Ints], weights: "NDArray[Any]") -> "tuple[dict[str, Ints], NDArray[Any]]":
    """Return nodes with equal ones as one, and the sums of their weights."""
    if not nodes:
        return {}, weights.sum(keepdims=True) if len(weights) else np.zeros(1, dtype=weights.dtype)
    code = codes_of(list(nodes.values()))
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    sums = np.add.reduceat(weights[order], starts) if len(starts) else weights[:0]
    return {name: column[order[starts]] for name, column in nodes.items()}, sums


# --- The walk through a grid for :mod:`planner.solvers.grid`: level by level, chunk by chunk, the best points kept
# A walk that is stopped, or has done its share, leaves *boxes*: nodes of a level with their bounds, below which nothing
# was looked at. Another walk may take them up, here or in another process.

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


# --- A search of a grid shared out: what one walk leaves are boxes that others take up, each with the best cost so far
# The client holds the boxes, least bound first, and the best points. It sends a piece of the first box with the cost
# above which nothing counts any more; what comes back are points, and boxes that are left when a share of time was
# worked. A box above the best cost is never sent. The answer is that of one walk, whoever works, in whatever order:
# of each group the least (cost, place) is kept, pieces are cut only above the limit, and the limit only falls. A
# limit that is stale costs work, never the answer.
#
# What is lost with who worked on it counts with its bound, as what is not looked at when the time is over.

GridMaker = Callable[[], tuple[Grid, Callable[[Columns], Floats]]]  # may be pickled

_PIECE = 8192  # nodes, at most, that travel together
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What came of a piece: points among the best, what was left, how many points were evaluated."""

    rows: tuple[Row, ...]
    rest: tuple[Box, ...]
    num_evaluated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How a search is shared out: how many answers that differ in which axes, and nodes in one array."""

    names: tuple[str, ...]
    number: int
    most_at_once: int


def explored(
    made: tuple[Grid, Callable[[Columns], Floats]], shares: Shares, box: Box, limit: float, share_s: float
) -> Explored:
    """Return what lies below a box, as far as it costs no more than a limit.

    A function of its arguments but for where its share of time ends, which moves points from ``rows`` to ``rest``.
    """
    grid, cost = made
    best = Best(grid=grid, names=shares.names, number=shares.number)
    end_s = time.thread_time() + share_s
    walk = Walk(
        grid=grid,
        cost=cost,
        search=Search(cutoff=limit),
        best=best,
        uses_bounds=True,
        most_at_once=shares.most_at_once,
        is_strict=True,
        is_full=lambda walk: walk.num_chunks > 0 and time.thread_time() >= end_s,
    )
    walk.take_up(_unpacked(box))
    within = [one.within(min(limit, best.limit)) for one in walk.rest]
    return Explored(
        rows=tuple(best.rows), rest=tuple(_packed(one) for one in within if len(one)), num_evaluated=walk.num_evaluated
    )


def share_out(
    walk: Walk, shares: Shares, origin: Origin, pool: WorkerPool, search: Search, meanwhile: Callable[[], None]
) -> None:
    """Have a worker pool look at all that a walk left; its best points, counts and what is left are then the walk's.

    ``meanwhile`` is called once, when all who help have something to do.
    """
    client = _Client(walk=walk, shares=shares, origin=origin, pool=pool, search=search)
    client.put(walk.rest)
    walk.rest = []
    client.send()
    meanwhile()
    client.run()
    walk.rest = client.left()


@dataclass(slots=True)
class _Client:
    """Boxes that wait, and pieces that are at work."""

    walk: Walk
    shares: Shares
    origin: Origin
    pool: WorkerPool
    search: Search
    _heap: list[tuple[float, int, Box]] = field(default_factory=list)
    _at_work: dict[int, Box] = field(default_factory=dict)
    _lost: list[Box] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    @property
    def limit(self) -> float:
        """Cost above which nothing counts."""
        return min(self.walk.best.limit, self.search.cutoff)

    def put(self, boxes: Sequence[Box]) -> None:
        """Take in boxes, as far as they may hold an answer."""
        for box in boxes:
            within = box.within(self.limit)
            if len(within):
                heapq.heappush(self._heap, (within.bound, next(self._numbers), within))

    def run(self) -> None:
        """Send pieces and take in what comes back, until nothing is left or the time is over."""
        while (self._heap or self._at_work) and not self.search.is_over:
            self.send()
            if not self._at_work and self._heap:
                self._alone()
                continue
            for number, found in self.pool.poll(_POLL_S, self._at_work):
                self._take(number, found)

    def send(self) -> None:
        """Send as many pieces as are wanted."""
        room = self.pool.room()
        while room > 0 and (piece := self._piece(room)) is not None:
            arguments = (self.shares, _packed(piece), self.limit, self.pool.share_s)
            self._at_work[self.pool.submit(explored, self.origin, arguments)] = piece
            room -= 1

    def left(self) -> list[Box]:
        """Return what was not looked at."""
        boxes = [*(box for *_, box in self._heap), *self._at_work.values(), *self._lost]
        return [box for box in (one.within(self.limit) for one in boxes) if len(box)]

    def _piece(self, room: int) -> Box | None:
        """Return the nodes of least bounds that wait, some of one box, so that all who have room get some."""
        while self._heap:
            _, _, box = heapq.heappop(self._heap)
            box = box.within(self.limit)
            if not len(box):
                continue
            others = sum(len(one) for *_, one in self._heap[:room])
            size = min(_PIECE, max(1, -(-(len(box) + others) // room)))
            if size < len(box):
                rest = box.part(slice(size, None))
                heapq.heappush(self._heap, (rest.bound, next(self._numbers), rest))
            return box.part(slice(0, size))
        return None

    def _take(self, number: int, found: Explored | FailedTask) -> None:
        """Take in what came back of a piece."""
        piece = self._at_work.pop(number)
        if isinstance(found, FailedTask):
            if found.is_gone:
                self.put([piece])
                return
            self._lost.append(piece)
            self.pool.tell(f"a part of the search failed and counts as not looked at: {found.why}")
            return
        self.walk.best.join(found.rows)
        self.walk.num_evaluated += found.num_evaluated
        self.put([_unpacked(box) for box in found.rest])

    def _alone(self) -> None:
        """Look at the first box here: nobody is left to do it."""
        _, _, box = heapq.heappop(self._heap)
        walk = self.walk
        end_s, before = time.thread_time() + self.pool.share_s, walk.num_chunks
        walk.is_full = lambda walk: walk.num_chunks > before and time.thread_time() >= end_s
        walk.rest = []
        walk.take_up(box.within(self.limit))
        self.put(walk.rest)
        walk.rest = []


def _packed(box: Box) -> Box:
    """Return a box in as few bytes as its numbers need."""
    return Box(
        level=box.level,
        nodes={name: column.astype(_narrow(column)) for name, column in box.nodes.items()},
        least=box.least,
    )


def _narrow(column: Ints) -> np.dtype[Any]:
    """Return the type of fewest bytes that holds all numbers of a column, negative ones, too."""
    least, most = int(column.min(initial=0)), int(column.max(initial=0))
    return np.min_scalar_type(most if least >= 0 else min(least, -most - 1))


def _unpacked(box: Box) -> Box:
    """Return a box with integers that products do not overflow."""
    nodes = {name: column.astype(np.int64) for name, column in box.nodes.items()}
    return Box(level=box.level, nodes=nodes, least=box.least)


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
    is_counted
        Whether the points of the grid were counted; where not, since they are too many or the time was over,
        ``num_points`` are those whose cost was asked for.
    """

    solution: Solution[Point]
    others: tuple[tuple[float, Point], ...]
    num_points: int
    num_evaluated: int
    is_counted: bool = True

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
    maker: GridMaker | None = None,
) -> GridAnswer:
    """Return the best point of a grid and the next ones.

    Parameters
    ----------
    cost
        Of points: one number each; infinite for what is not allowed. Where it takes long it asks whether the search is
        over, as bounds do, and raises :class:`OverError`.
    num_answers
        The best point and runners-up in all; bounds are held against the last of them.
    group_by
        Axes in which two answers must differ; by default they must be different points.
    uses_bounds
        Without, every point is evaluated: slow, and the same answer.
    is_strict
        Whether points that cost more than the search's cutoff are not wanted at all, so that there may be no answer.
        Else the cutoff counts only once there is one.
    maker
        Makes the same grid and cost elsewhere. A search for the first answer that is good enough, or of counted work,
        is not shared out: what it finds depends on the order.
    """
    names = tuple(group_by) or tuple(axis.name for axis in grid.axes)
    shares = Shares(names=names, number=max(num_answers, 1), most_at_once=most_at_once)
    best_of = Best(grid=grid, names=names, number=shares.number)
    walk = Walk(grid, cost, search, best_of, uses_bounds, most_at_once, is_strict)
    is_counted = search.questions_left is not None or search.good_enough > -inf
    pool = search.pool if uses_bounds and not is_counted else None
    origin = None if pool is None or maker is None else Origin.of(maker)
    counted: list[int | None] = []
    if pool is None or origin is None:
        walk.from_root()
    else:
        end_s = time.thread_time() + pool.alone_s
        # Until there is an answer, a cutoff that is not strict does not count, and what is found depends on the order.
        walk.is_full = lambda walk: (
            time.thread_time() >= end_s and (is_strict or search.cutoff == inf or bool(walk.best.rows))
        )
        walk.from_root()
        if walk.rest and not search.is_over:
            share_out(walk, shares, origin, pool, search, meanwhile=lambda: counted.append(grid.count()))
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
    if not counted:
        counted.append(None if search.is_over else grid.count())
    return GridAnswer(
        solution=solution,
        others=tuple((row.cost, row.point) for row in best[1:]),
        num_points=walk.num_evaluated if counted[0] is None else counted[0],
        num_evaluated=walk.num_evaluated,
        is_counted=counted[0] is not None,
    )


def _status(is_found: bool, objective: float, bound: float) -> Status:
    """Return what an answer and a bound prove."""
    if is_found:
        return Status.OPTIMAL if objective <= bound else Status.FEASIBLE
    return Status.INFEASIBLE if bound == inf else Status.UNKNOWN
