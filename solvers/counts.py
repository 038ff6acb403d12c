"""Best counts by few calls of an expensive monotone oracle: the best one, or the front of two criteria.

Sets and data
    Roots ``r``, each with at most ``K`` counts ``n`` in the box ``1 .. most_r``. An oracle ``t(r, n) >= 0``, infinite
    where nothing is possible, that never grows with a count; a call at ``n`` returns ``b <= t(r, n) <= v`` and counts
    ``u <= n`` that reach ``v``, too. Criteria ``c_1 .. c_m (r, n, t) >= 0`` that fall neither with a count nor with
    ``t``. Limits on all of them; a condition on ``(r, n)``.
Variables
    ``r`` and ``n``.
Objective
    :func:`best_counts`: minimise ``c_1(r, n, t(r, n))``. :func:`best_trade_offs`: all pairs ``(c_1, c_2)`` that no
    other one dominates.
Constraints
    ``c_j(r, n, t(r, n)) <= limit_j`` for every ``j``, and the condition.
Bound of a box ``[low, high]``
    ``c(r, low, L(high))``, where ``L(high)`` is the largest ``b`` of all calls at ``n >= high``; and the caller's floor
    where that is higher. Of a root of one count a *profile* ``p(n) <= t(r, n)`` may be had for all ``n`` at once: then
    the bound is the least ``c(r, n, max(L(n), p(n)))`` of all points of the box that keep the limits. A box is cut
    where the bound breaks a limit, is no less than the incumbent, or is weakly dominated by a point of the front.
Search
    The box comes first whose bound is least, or which could beat the front by the largest factor
    (:class:`planner.solvers.branch_and_bound.OpenBoxes`); roots know only their floors at first. A box is tightened:
    slices at its ends that are cut for themselves come off. Of a root of one count whoever can is asked first for a
    profile: with ``e(n)`` from which on a point is cut, and ``w(n)`` from which on its first criterion is no less than
    a target, it proves ``t >= e`` or ``t >= w``, or names the count of the least ``t / w`` of those below, which is
    called next: where that criterion grows as ``t`` does, it is the best of its root, and all others are cut by it.
    The target is the incumbent, or far above the floor. With one side that makes the fewest calls that can prove an
    incumbent, since a call at ``high`` takes off all that it can. All points of a box that one call's ``u`` and ``n``
    enclose have the same ``t``, of which the least corner is the best. Calls are made where readings so far let one
    expect the best improvement, and at ``high``; a box of several sides is split instead where the call would take
    little off. A call may end as soon as its bound cuts the whole box.
Proves
    The bound: nothing that was left, cut or not come to, has less. Where ``b < v``, what is between them is left: the
    answer is then feasible, and the gap is the oracle's. The number of calls may be limited, which is repeatable; time
    is a guard. Of answers that are equal in ``c_1`` the one that is found first stays, unless another one is less in
    the next criteria.
Complexity
    Without a floor a proof of gap ``g`` of one root takes a call for each factor ``1 + g`` by which its counts can
    change with ``c_1`` still near the optimum. Roots that a floor cuts take no call, those that one call cuts take one.
Source
    Branch and bound as in :mod:`planner.solvers.branch_and_bound`; that one evaluation of a monotone function bounds it
    on a whole box: H. Tuy, SIAM J. Optim. 11(2), 2000, doi:10.1137/S1052623499359828.
"""

from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol, Self

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen
from planner.search import Search
from planner.solution import SAME, Solution, Status
from planner.solvers.branch_and_bound import OpenBoxes
from planner.solvers.pareto import front, front_factors
from planner.solvers.readings import Bools, Call, Counts, Ints, Profile, Question, Reading, Readings

_MANY = 1 << 62
_PROBES = 12  # of a root: calls at points that are expected to be better than the incumbent
_SHARE_OF_FRONT = 0.25  # of what its box might gain: a point of less can wait for its box's turn
_SLACK = 1e-12  # relative rounding of a floor
_LATTICE = 512  # points spread over a box, about
_CUTS = 16  # places of a side that are tried at once
_ROUNDS = 64  # of tightening one box
_SLOWS = 0.9  # tightening ends where a round leaves more than this
_WORTH = 1e-3  # relative gain that is worth a call
_NARROW = 1.1  # a corner is asked for in any case where no side is wider by more than this factor
_SHRINKS = 0.8  # a corner is asked for where the box is expected to shrink to this
_TURNS = 4  # one in so many boxes is a root of which nothing is known
_SCOUTS = 3  # calls about it
_STEPS = 64  # places of t that are tried at once
_T_LEAST, _T_MOST = 1e-12, 1e21
_MOST_BEHIND = 64  # calls that were foreseen and not made, until a new copy looks ahead
_FALSE_STEPS = 4  # foreseen calls per call wanted, at most, that one look may take
_CUT = 0.99  # of the tolerance: what is cut at just as much is proven
_PRECISE, _NEARLY = 1e-10, 1e-7  # relative, of a t from which on a count is cut, and of its weight
_WIDTHS = (1e-8, 0.1, 1.0, 10.0)  # logarithms of factors above its bound within which that is looked for first
_PROFILES = 12  # of a root at one turn
_FIRST_AIMS = (8.0, 4096.0)  # times the floor of a root: what is looked for while nothing is known


# What is answered


@frozen
class Candidate:
    """A point that keeps everything, what it costs, and the ``t`` that its payload reaches."""

    root: int
    counts: Counts
    criteria: tuple[float, ...]
    t: float
    payload: Any

    @property
    def order(self) -> tuple[tuple[float, ...], int, Counts]:
        """By criteria, then root, then counts."""
        return self.criteria, self.root, self.counts


@frozen
class Bounded:
    """A point, and a bound of each of its criteria at its counts: below ``point.criteria`` where ``t`` is not proven.

    Of a runner-up, the first one is instead a bound of all points of its root.
    """

    point: Candidate
    bounds: tuple[float, ...]


@frozen
class BestCounts:
    """The outcome of :func:`best_counts`.

    Attributes
    ----------
    solution
        The best point, its first criterion, what none beats, and whether that is proven.
    others
        The best points that were found of other roots, in their order; not proven to be their roots' best.
    num_calls, num_boxes
        Calls of the oracle; boxes that were bounded.
    """

    solution: Solution[Candidate]
    others: tuple[Bounded, ...]
    num_calls: int
    num_boxes: int


@frozen
class TradeOffs:
    """The outcome of :func:`best_trade_offs`.

    Attributes
    ----------
    status
        OPTIMAL: the front is proven. FEASIBLE: something might beat it, by ``gap`` at most.
    points
        In the order of the first criterion.
    gap
        Every point there is, times one more than this, is weakly dominated by one of ``points``; ``inf`` without any.
    left
        The pairs of criteria below which nothing was ruled out, as far as they beat the front.
    """

    status: Status
    points: tuple[Bounded, ...]
    gap: float
    left: tuple[tuple[float, float], ...]
    num_calls: int
    num_boxes: int


def best_counts(
    question: Question,
    search: Search,
    *,
    tolerance: float = SAME,
    most_calls: int = _MANY,
    on_progress: Callable[[float, Candidate | None, int], None] = lambda bound, best, num_calls: None,
) -> BestCounts:
    """Return the point of the least first criterion.

    Parameters
    ----------
    question
        Roots, criteria and the oracle.
    search
        Ends it; an incumbent that is good enough does too, and points above the cutoff do not matter.
    tolerance
        Relative gap at which the search ends.
    most_calls
        Of the oracle; a limit that is the same on every machine.
    on_progress
        Called after every call of the oracle, with the bound, the incumbent and the number of calls so far.
    """
    aim = _Least(np.asarray(question.limits, dtype=np.float64), search, tolerance)

    def report(walk: _Walk) -> None:
        on_progress(min(walk.open_key, aim.left, aim.objective), aim.best, walk.num_calls)

    walk = _Walk(question, aim, search, most_calls, _PROBES, report)
    walk.run()
    others = sorted((one for one in walk.best_of.values() if one is not aim.best), key=lambda one: one.order)
    return BestCounts(
        solution=Solution.proven(
            aim.best, objective=aim.objective, bound=min(aim.left, aim.objective), tolerance=tolerance
        ),
        others=tuple(
            Bounded(
                point=one,
                bounds=(min(one.criteria[0], float(walk.left_of[one.root])), *walk.bounds_at(one)[1:]),
            )
            for one in others
            if aim.best is None or one.root != aim.best.root
        ),
        num_calls=walk.num_calls,
        num_boxes=walk.num_boxes,
    )


def best_trade_offs(
    question: Question, search: Search, *, tolerance: float = SAME, most_calls: int = _MANY
) -> TradeOffs:
    """Return all points that nobody beats in the first two criteria.

    Parameters
    ----------
    question, search
        As of :func:`best_counts`; no incumbent is good enough here.
    tolerance
        Factor, less 1, by which a pair must beat all others to be looked for.
    most_calls
        Of the oracle.
    """
    aim = _Front(np.asarray(question.limits, dtype=np.float64), tolerance)
    walk = _Walk(question, aim, search, most_calls, _MANY, lambda walk: None)
    walk.run()
    left = aim.left
    if aim.archive:
        # Of what was left, and of what was cut within the tolerance, the largest factor that could beat the front.
        factor = max(aim.most_cut, float(aim.factors(left).max(initial=1.0)))
        gap, status = factor - 1, Status.OPTIMAL if factor <= 1 + tolerance else Status.FEASIBLE
    else:
        gap, status = inf, Status.UNKNOWN if len(left) else Status.INFEASIBLE
    return TradeOffs(
        status=status,
        points=tuple(Bounded(point=one, bounds=walk.bounds_at(one)) for one in aim.archive),
        gap=gap,
        left=tuple((float(first), float(second)) for first, second in left),
        num_calls=walk.num_calls,
        num_boxes=walk.num_boxes,
    )


# What is wanted: the least of one criterion, or the front of two. Both cut what cannot matter


class _Aim(Protocol):
    """What is cut, what comes first, and what was left out unproven; ``limits`` are those of the criteria.

    ``share``: a point is asked about for its own sake where its gain is this share of what its box might gain.
    ``weighs_first``: profiles look for the least first criterion, which matters where it is below ``target``.
    """

    limits: Floats
    share: float
    weighs_first: bool

    @property
    def target(self) -> float:
        """Of the first criterion; infinite where nothing is known yet."""
        ...

    @property
    def is_enough(self) -> bool:
        """Whether to stop with what there is."""
        ...

    def copied(self) -> "_Aim":
        """Return the same aim, which goes its own way from now on."""
        ...

    def is_cut(self, bounds: Floats, /) -> Bools:
        """Return which boxes, of which nothing has less criteria than these, need no look."""
        ...

    def keys(self, bounds: Floats, /) -> Floats:
        """Return what orders boxes, least first; a candidate more never lowers it."""
        ...

    def gains(self, criteria: Floats, /) -> Floats:
        """Return the factor by which points of these criteria would beat what is known; 0 where they may not be."""
        ...

    def offer(self, candidate: Candidate, /) -> None:
        """Take in a point."""
        ...

    def leave(self, bounds: Floats, /) -> None:
        """Take note that boxes were left: cut, settled, or not come to."""
        ...


@dataclass(slots=True)
class _Least:
    """The least first criterion; ``left``: no point in a box that was left has less."""

    limits: Floats
    search: Search
    tolerance: float
    best: Candidate | None = None
    left: float = inf
    share: float = 0.0  # every better incumbent is welcome
    weighs_first: bool = True

    @property
    def objective(self) -> float:
        return self.best.criteria[0] if self.best is not None else inf

    @property
    def target(self) -> float:
        """The least that is known, or that was given as a limit."""
        return float(min(self.objective, self.limits[0]))

    @property
    def is_enough(self) -> bool:
        return self.best is not None and self.objective <= self.search.good_enough

    def copied(self) -> Self:
        return copy(self)

    def is_cut(self, bounds: Floats, /) -> Bools:
        """Cut what breaks a limit or does not beat the incumbent by the tolerance, of which rounding has its part."""
        least = self.objective * (1 - _CUT * self.tolerance)
        enough = min(least, self.search.cutoff) if self.best is not None else inf
        return np.asarray((bounds > self.limits).any(axis=1) | (bounds[:, 0] >= enough))

    def keys(self, bounds: Floats, /) -> Floats:
        return bounds[:, 0]

    def gains(self, criteria: Floats, /) -> Floats:
        """Of the first criterion; where there is no incumbent one over it, which is as good for comparing."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            gains = (self.objective if self.best is not None else np.finfo(float).max) / criteria[:, 0]
        return np.where((criteria <= self.limits).all(axis=1), gains, 0.0)

    def offer(self, candidate: Candidate, /) -> None:
        if self.best is None or candidate.order < self.best.order:
            self.best = candidate

    def leave(self, bounds: Floats, /) -> None:
        within = (bounds <= self.limits).all(axis=1)
        self.left = min(self.left, float(bounds[within, 0].min(initial=inf)))


@dataclass(slots=True)
class _Front:
    """The points that nobody dominates in the first two criteria.

    ``most_cut``: factor by which something that was cut within the tolerance might beat the front.
    """

    limits: Floats
    tolerance: float
    archive: list[Candidate] = field(default_factory=list)
    share: float = _SHARE_OF_FRONT
    most_cut: float = 1.0
    is_enough: bool = False  # the whole front was asked for
    weighs_first: bool = False
    _points: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    _left: list[Floats] = field(default_factory=list)

    @property
    def target(self) -> float:
        return float(self.limits[0]) if self.archive else inf

    def copied(self) -> Self:
        other = copy(self)
        other._left = list(self._left)
        return other

    def factors(self, criteria: Floats) -> Floats:
        """Return the factor by which each beats the archive in the first two criteria."""
        return front_factors(criteria[:, :2], self._points)

    def is_cut(self, bounds: Floats, /) -> Bools:
        return np.asarray((bounds > self.limits).any(axis=1) | (self.factors(bounds) <= 1 + self.tolerance))

    def keys(self, bounds: Floats, /) -> Floats:
        return -self.factors(bounds)

    def gains(self, criteria: Floats, /) -> Floats:
        return np.where((criteria <= self.limits).all(axis=1), self.factors(criteria), 0.0)

    def offer(self, candidate: Candidate, /) -> None:
        """Keep the front, of equal points the first."""
        rows = sorted([*self.archive, candidate], key=lambda one: one.order)
        points = np.array([row.criteria[:2] for row in rows])
        kept = front(points)
        self.archive, self._points = [rows[index] for index in kept], points[kept]

    def leave(self, bounds: Floats, /) -> None:
        """Remember what is not cut; what is stays so, since the archive only grows."""
        within = bounds[(bounds <= self.limits).all(axis=1), :2]
        gains = self.factors(within)
        is_cut = gains <= 1 + self.tolerance
        self.most_cut = max(self.most_cut, float(gains[is_cut].max(initial=1.0)))
        within = within[~is_cut]
        if len(within):
            self._left.append(within[front(within)])

    @property
    def left(self) -> Floats:
        """The front of what was left: no point in a box that was left is below all of these."""
        points = np.concatenate([np.zeros((0, 2)), *self._left])
        return points[front(points)] if len(points) else points


# The search


@frozen(kw_only=False)
class _CountBox:
    """All points of a root from ``least`` to ``most``."""

    root: int
    least: Ints
    most: Ints

    @property
    def is_point(self) -> bool:
        """Whether it holds one point."""
        return bool((self.least == self.most).all())

    @property
    def size(self) -> float:
        """How many points it holds."""
        return float(np.prod(self.most - self.least + 1.0))

    @property
    def lattice(self) -> Ints:
        """Points of it, spread by equal factors along every side."""
        wide = max(1, int((self.least < self.most).sum()))
        number = max(2, int(_LATTICE ** (1 / wide)))
        sides = [_spread(int(low), int(high), number) for low, high in zip(self.least, self.most, strict=True)]
        return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(sides))


def _spread(low: int, high: int, number: int) -> Ints:
    """Return whole numbers from ``low`` to ``high`` with both ends, at most so many, by about equal factors."""
    if high - low < number:
        return np.arange(low, high + 1)
    return np.unique(np.rint(np.geomspace(low, high, number)).astype(np.int64))


def _from_first(seconds: Floats, least: int) -> Floats:
    """Return numbers of counts from ``least`` on as numbers of all counts from 1 on, never rising."""
    return np.concatenate([np.full(least - 1, seconds[0]), np.minimum.accumulate(seconds)])


@dataclass(slots=True)
class _Walk:
    """Boxes that are open, in the order of the aim, and what the oracle said so far.

    ``open_key``: after the last call, no open box comes before this. ``best_of`` and ``left_of``, by root: the best
    point, and the least first criterion of what was left.
    """

    question: Question
    aim: _Aim
    search: Search
    most_calls: int
    most_probes: int
    on_call: Callable[["_Walk"], None]
    num_calls: int = 0
    num_boxes: int = 0
    open_key: float = -inf
    readings: dict[int, Readings] = field(default_factory=dict)
    best_of: dict[int, Candidate] = field(default_factory=dict)
    left_of: Floats = field(init=False)
    _ahead: "_Ahead | None" = field(init=False)
    _open: OpenBoxes[_CountBox] = field(default_factory=OpenBoxes)
    _untouched: dict[int, tuple[int, _CountBox]] = field(default_factory=dict)  # roots in their order, by their number
    _num_probes: dict[int, int] = field(default_factory=dict)
    _without_profile: set[int] = field(default_factory=set)  # roots of which there is none
    _turn: int = 0

    def __post_init__(self) -> None:
        """Open all roots, by their floors alone."""
        question, least = self.question, self.question.least
        self._ahead = None if question.known is None else _Ahead(question.known)
        roots = np.arange(len(question.most))
        self.left_of = np.full(len(roots), inf)
        for root in roots.tolist() if question.begun is not None else ():
            self._begin(root)
        bounds = self._bounds_of(roots, least, question.most, np.zeros(len(roots)))
        keys = self.aim.keys(bounds).tolist()
        self.num_boxes = len(roots)
        kept = np.flatnonzero(~self.aim.is_cut(bounds)).tolist()
        for root in sorted(kept, key=lambda root: (keys[root], root)):
            box = _CountBox(root, least[root], question.most[root])
            self._untouched[root] = (self._open.add(keys[root], box, rank=root), box)

    def _begin(self, root: int) -> None:
        """Take in what is known of a root, and offer its points."""
        assert self.question.begun is not None
        width = self.question.most.shape[1]
        for counts, reading in self.question.begun(root):
            point = np.array([*counts, *[0] * (width - len(counts))], dtype=np.int64)
            known = self._readings_of(root)
            known.add(point, reading)
            self._offer(root, point, known)

    def copied(self, oracle: Callable[[int, Counts, float], Reading]) -> "_Walk":
        """Return a walk that goes its own way with another oracle, and reports to nobody."""
        other = copy(self)
        other.question = replace(self.question, oracle=oracle, kept_by=None, profile=None, begun=None)
        other._ahead, other.search, other.on_call = None, Search(), lambda walk: None
        other.aim = self.aim.copied()
        other.most_calls = self.num_calls + (1 << 30)
        other.readings = {root: one.copied(other.question) for root, one in self.readings.items()}
        other.best_of, other.left_of = dict(self.best_of), self.left_of.copy()
        other._open, other._untouched = self._open.copied(), dict(self._untouched)
        other._num_probes = dict(self._num_probes)
        return other

    def run(self) -> None:
        """Search until nothing is open, or something ends it; what is open then is left."""
        while self.step():
            pass
        boxes = [box for _, box in self._open.in_order()]
        if not boxes:
            return
        roots = np.array([box.root for box in boxes])
        least, most = np.array([box.least for box in boxes]), np.array([box.most for box in boxes])
        seconds = np.zeros(len(boxes))
        for root, known in self.readings.items():
            rows = np.flatnonzero(roots == root)
            seconds[rows] = known.least(most[rows])
        bounds = self._bounds_of(roots, least, most, seconds)
        for root, known in self.readings.items():
            if known.profile is not None and len(rows := np.flatnonzero(roots == root)):
                bounds[rows] = self._bounds_in(root, least[rows], most[rows])
        is_possible = np.isfinite(bounds).all(axis=1)
        self.aim.leave(bounds[is_possible])
        np.minimum.at(self.left_of, roots[is_possible], bounds[is_possible, 0])

    def step(self) -> bool:
        """Take up one box; return False where nothing is open, or something ends the search."""
        if not len(self._open) or self._is_over:
            return False
        self._turn += 1
        if self._turn % _TURNS == 0 and self._scout():
            return True
        _, box = self._open.pop()
        self._untouched.pop(box.root, None)
        if self._is_put_away(box) or self._profiled(box):
            return True
        if (tight := self._tightened(box)) is not None:
            self._take_up(tight)
        return True

    def _profiled(self, box: _CountBox) -> bool:
        """Ask for a profile of a root of one count, and for the points that it names, until it cuts the box.

        Return False where it has none, or does not come to an end with it.
        """
        profile, root, known = self.question.profile, box.root, self._readings_of(box.root)
        if profile is None or box.is_point or root in self._without_profile:
            return False
        if int((self.question.most[root] > 0).sum()) != 1:
            return False
        least, most = int(box.least[0]), int(box.most[0])
        if known.profile is None and self.question.first_profile is not None:
            known.take_profile(1, self.question.first_profile(root))
            if self._is_put_away(box):
                return True
        for _ in range(_PROFILES):
            found = self._profile_of(box)
            if found is None:
                self._without_profile.add(root)
                return False
            if self._leave_if_cut(box, self.bounds(box)):
                return True
            point = box.least.copy()
            point[0] = min(max(found.promising or 0, least), most)
            if found.promising is None or known.is_read(point) or self._is_over:
                return False
            self._ask(box, point, point)  # all others have their own bounds
            if self._is_put_away(box):
                return True
        return False

    def _profile_of(self, box: _CountBox) -> Profile | None:
        """Ask for a profile of a box; where nothing limits it yet, for one of points that are not far from its floor.

        None where there is none, or nothing was found so near.
        """
        if self.aim.target < inf:
            return self._profile_within(box, self.aim.target)
        floors = self._points_of(self._readings_of(box.root))[int(box.least[0]) - 1 : int(box.most[0])]
        floor = float(floors[np.isfinite(floors).all(axis=1), 0].min(initial=inf))
        for aim in _FIRST_AIMS:
            found = self._profile_within(box, aim * floor, is_first=True)
            if found is None or found.promising is not None:
                return found
        return found if self._is_cut(self.bounds(box))[0] else None

    def _profile_within(self, box: _CountBox, target: float, *, is_first: bool = False) -> Profile | None:
        """Return a profile of a box, of points whose first criterion is below a target where that is weighed."""
        assert self.question.profile is not None
        known, least, most = self._readings_of(box.root), int(box.least[0]), int(box.most[0])
        floors = self._points_of(known)[least - 1 : most]
        is_open: Bools = ~np.asarray(self._is_cut(floors) | (floors[:, 0] >= target))
        number = int(np.flatnonzero(is_open).max(initial=0)) + 1  # more machines are cut by their floors
        counts = np.repeat(box.least[None, :], number, axis=0)
        counts[:, 0] = np.arange(least, least + number)
        at, enough = np.flatnonzero(is_open), known.least(counts)
        few, first = counts[at], self._first_cut(known, counts[at], enough[at], self._is_cut, _PRECISE)
        weight = enough
        if self.aim.weighs_first or is_first:
            weight, near = np.zeros(number), np.where((first < inf) & ~np.array(is_first), first, enough[at])
            weight[at] = self._first_cut(known, few, near, lambda criteria: criteria[:, 0] >= target, _NEARLY)
            weight = np.maximum.accumulate(weight[::-1])[::-1]  # numbers that are not open have that of the next
        enough[at] = first
        found = self.question.profile(box.root, _from_first(weight, least), _from_first(enough, least))
        if found is None:
            return None
        known.take_profile(least, found.bounds)
        return found

    def _first_cut(
        self, known: Readings, counts: Ints, least: Floats, is_cut: Callable[[Floats], Bools], precise: float
    ) -> Floats:
        """Return a ``t`` from which on criteria at some counts are cut, not far from the least such above ``least``.

        No more than what is reached there, and infinite where none is cut.
        """

        def is_cut_at(logarithm: Floats, at: Ints) -> Bools:
            return np.asarray(is_cut(self._criteria(np.full(len(at), known.root), counts[at], np.exp(logarithm))))

        low = np.log(np.clip(least, _T_LEAST, _T_MOST / 2))
        high, left = np.full(len(counts), inf), np.arange(len(counts))
        for most in (*(low + wide for wide in _WIDTHS), np.full(len(counts), np.log(_T_MOST))):
            is_at = is_cut_at(most[left], left)
            high[left[is_at]], left = most[left[is_at]], left[~is_at]
            low[left] = most[left]
        left = np.flatnonzero(np.isfinite(high))
        while len(left := left[high[left] - low[left] > precise]):
            middle = (low[left] + high[left]) / 2
            is_at = is_cut_at(middle, left)
            high[left[is_at]], low[left[~is_at]] = middle[is_at], middle[~is_at]
        return np.asarray(np.minimum(np.exp(high), known.most_at(counts)))

    def _take_up(self, tight: _CountBox) -> None:
        """Settle a box that was tightened, ask about one of its points, or split it."""
        if self._is_put_away(tight):
            return
        bounds, known = self.bounds(tight), self._readings_of(tight.root)
        if known.is_settled(tight.least, tight.most):
            # The least corner is the best point; where it breaks the condition, others are looked at without a call.
            keeps = self._is_kept(tight.root, tight.least, known)
            if keeps:
                self._offer(tight.root, tight.least, known)
            if keeps or (tight.is_point and keeps is None):
                self._leave(tight, bounds)
            elif not tight.is_point:
                self._split(tight)
        elif tight.is_point and not self._holds(tight.root, tight.least):
            return
        elif (point := self._next_point(tight, known)) is not None:
            self._ask(tight, point)
            self._add(tight, self.bounds(tight))
        else:
            self._split(tight)

    def guess(self, box: _CountBox, counts: Ints, reading: Reading) -> None:
        """Take a reading for the answer to a call about a point of a box that was taken up."""
        self._readings_of(box.root).add(counts, reading)
        self._add(box, self.bounds(box))

    def _scout(self) -> bool:
        """Ask a few times about the best root of which nothing is known; return False where there is none.

        What is found there may cut others, long before its turn comes.
        """
        while True:
            root = next(iter(self._untouched), None)
            if root is None or self.question.profile is not None:
                return False
            number, box = self._untouched.pop(root)
            if root not in self.readings:
                break
        self._open.remove(number)
        for _ in range(_SCOUTS):
            if self._leave_if_cut(box, self.bounds(box)):
                return True
            tight = self._tightened(box)
            if tight is None:
                return True
            box, known = tight, self._readings_of(tight.root)
            if self._is_over or box.is_point or known.is_settled(box.least, box.most):
                break
            point = self._next_point(box, known)
            if point is None:
                break
            self._ask(box, point)
        self._add(box, self.bounds(box))
        return True

    @property
    def _is_over(self) -> bool:
        return self.aim.is_enough or self.num_calls >= self.most_calls or self.search.is_over

    # Bounds

    def bounds(self, box: _CountBox) -> Floats:
        """Return what no point of a box has less of, of shape (1, criteria)."""
        return self._bounds_in(box.root, box.least[None, :], box.most[None, :])

    def bounds_at(self, point: Candidate) -> tuple[float, ...]:
        """Return what each criterion of a point is at least, at its counts."""
        counts: Ints = np.zeros((1, self.question.most.shape[1]), dtype=np.int64)
        counts[0, : len(point.counts)] = point.counts
        seconds = self.readings[point.root].least(counts)
        bounds = np.asarray(self.question.criteria(np.array([point.root]), counts, seconds))[0]
        return tuple(float(min(one, value)) for one, value in zip(bounds, point.criteria, strict=True))

    def _bounds_in(self, root: int, least: Ints, most: Ints) -> Floats:
        """Return the bounds of boxes of one root."""
        known = self.readings.get(root)
        if known is not None and known.profile is not None:
            return self._bounds_of_profile(known, least, most)
        seconds = np.zeros(len(least))
        if known is not None:
            seconds = np.where((least == most).all(axis=1), known.least_at(most), known.least(most))
        return self._bounds_of(np.full(len(least), root), least, most, seconds)

    def _bounds_of_profile(self, known: Readings, least: Ints, most: Ints) -> Floats:
        """Return the least criteria of all points of boxes that keep the limits, at their bounds."""
        points = self._points_of(known)
        rows = zip(least[:, 0].tolist(), most[:, 0].tolist(), strict=True)
        return np.array([points[low - 1 : high].min(axis=0) for low, high in rows])

    def _points_of(self, known: Readings) -> Floats:
        """Return the criteria of all points of a root of one count at their bounds; infinite where a limit breaks."""
        if known.points is None:
            counts = np.zeros((int(self.question.most[known.root, 0]), self.question.most.shape[1]), dtype=np.int64)
            counts[:, 0] = np.arange(1, len(counts) + 1)
            roots = np.full(len(counts), known.root)
            points = self._bounds_of(roots, counts, counts, known.least_at(counts))
            is_within: Bools = np.asarray((points <= self.aim.limits).all(axis=1))
            known.points = np.where(is_within[:, None], points, inf)
        return known.points

    def _bounds_of(self, roots: Ints, least: Ints, most: Ints, seconds: Floats) -> Floats:
        """Return the criteria of the least corner at the ``t`` of the other one, or the floor where it is higher."""
        question = self.question
        bounds = self._criteria(roots, least, seconds)
        if question.floor is not None:
            bounds = np.maximum(bounds, np.asarray(question.floor(roots, least, most)) * (1 - _SLACK))
        if question.can_hold is not None:
            bounds = np.where(question.can_hold(roots, least, most)[:, None], bounds, inf)
        return bounds

    def _criteria(self, roots: Ints, counts: Ints, seconds: Floats) -> Floats:
        """Return the criteria; infinite where ``t`` is."""
        is_possible = np.isfinite(seconds)
        criteria = self.question.criteria(roots, counts, np.where(is_possible, seconds, 0.0))
        return np.where(is_possible[:, None], criteria, inf)

    def _holds(self, root: int, counts: Ints) -> bool:
        """Whether a point keeps the condition on counts."""
        holds = self.question.holds
        return holds is None or bool(holds(np.array([root]), counts[None, :])[0])

    def _is_kept(self, root: int, counts: Ints, known: Readings) -> bool | None:
        """Whether a point keeps both conditions: on counts, and on what was told of the best known to be reached there.

        None where too little was told.
        """
        is_held = self._holds(root, counts)
        if not is_held or self.question.kept_by is None:
            return is_held
        reached = np.where((known.used <= counts).all(axis=1), known.values, np.inf)
        is_known = (known.used <= counts).all(axis=1).any()
        payload = known.payloads[int(reached.argmin())] if is_known else None
        return self.question.kept_by(root, self.question.counts_of(root, counts), payload)

    def _is_cut(self, bounds: Floats) -> Bools:
        return ~np.isfinite(bounds).all(axis=1) | self.aim.is_cut(bounds)

    # Boxes

    def _add(self, box: _CountBox, bounds: Floats) -> None:
        self.num_boxes += 1
        self._open.add(float(self.aim.keys(bounds)[0]), box, rank=box.root)

    def _is_behind(self, bounds: Floats) -> bool:
        """Whether some open box comes before one of these bounds."""
        return len(self._open) > 0 and float(self.aim.keys(bounds)[0]) > self._open.bound

    def _leave(self, box: _CountBox, bounds: Floats) -> None:
        """Note that boxes, of the same root, are not looked at any more; infinite bounds mean that nothing is there."""
        bounds = bounds[np.isfinite(bounds).all(axis=1)]
        self.aim.leave(bounds)
        self.left_of[box.root] = min(self.left_of[box.root], float(bounds[:, 0].min(initial=inf)))

    def _is_put_away(self, box: _CountBox) -> bool:
        """Leave a box that is cut, or put it back where some open one comes before it; return whether either is so."""
        bounds = self.bounds(box)
        if self._leave_if_cut(box, bounds):
            return True
        if self._is_behind(bounds):
            self._add(box, bounds)
            return True
        return False

    def _leave_if_cut(self, box: _CountBox, bounds: Floats) -> bool:
        if not self._is_cut(bounds)[0]:
            return False
        self._leave(box, bounds)
        return True

    def _readings_of(self, root: int) -> Readings:
        if root not in self.readings:
            self.readings[root] = Readings(self.question, root)
        return self.readings[root]

    def _offer(self, root: int, counts: Ints, known: Readings) -> None:
        """Offer a point with the best that is known to be reached there."""
        values = np.where((known.used <= counts).all(axis=1), known.values, np.inf)
        best = int(values.argmin())
        if not np.isfinite(values[best]) or not self._is_kept(root, counts, known):
            return
        criteria = self._criteria(np.array([root]), counts[None, :], values[[best]])[0]
        if (criteria > self.aim.limits).any() or not np.isfinite(criteria).all():
            return
        candidate = Candidate(
            root=root,
            counts=self.question.counts_of(root, counts),
            criteria=tuple(criteria.tolist()),
            t=float(values[best]),
            payload=known.payloads[best],
        )
        self.aim.offer(candidate)
        if root not in self.best_of or candidate.order < self.best_of[root].order:
            self.best_of[root] = candidate

    def _split(self, box: _CountBox) -> None:
        """Split a box where its upper part's bound grows most, else where it is relatively widest."""
        sides = np.flatnonzero(box.least < box.most)
        middles = np.sqrt(box.least[sides] * box.most[sides].astype(float)).astype(np.int64)
        middles = np.clip(middles, box.least[sides], box.most[sides] - 1)
        least = np.repeat(box.least[None, :], len(sides), axis=0)
        least[np.arange(len(sides)), sides] = middles + 1
        bounds = self._bounds_in(box.root, least, np.repeat(box.most[None, :], len(sides), axis=0))
        keys, widths = self.aim.keys(bounds), box.most[sides] / box.least[sides]
        first = np.lexsort([sides, -widths, -keys])[0]
        below = box.most.copy()
        below[sides[first]] = middles[first]
        for part in (_CountBox(box.root, box.least, below), _CountBox(box.root, least[first], box.most)):
            bounds = self.bounds(part)
            if not self._leave_if_cut(part, bounds):
                self._add(part, bounds)

    def _tightened(self, box: _CountBox) -> _CountBox | None:
        """Return a box without slices that are cut; None where nothing is left."""
        for _ in range(_ROUNDS):
            smaller = self._sliced(self._without_settled(box))
            if (smaller.least > smaller.most).any():
                return None
            is_same = smaller.size == box.size
            if is_same or (smaller.size > box.size * _SLOWS and (smaller.least < smaller.most).sum() > 1):
                return smaller
            box = smaller
        return box

    def _without_settled(self, box: _CountBox) -> _CountBox:
        """Offer and take off a slice in which one reading says what ``t`` is."""
        known = self.readings.get(box.root)
        if known is None:
            return box
        lacks = known.used > box.least
        is_slice = (known.at >= box.most).all(axis=1) & (lacks.sum(axis=1) == 1) & np.isfinite(known.values)
        is_slice &= (known.used <= box.most).all(axis=1)
        for index in np.flatnonzero(is_slice).tolist():
            side = int(np.flatnonzero(lacks[index])[0])
            corner = box.least.copy()
            corner[side] = known.used[index, side]
            if self._is_kept(box.root, corner, known):
                slice_ = _CountBox(box.root, corner, box.most)
                self._offer(box.root, corner, known)
                self._leave(slice_, self.bounds(slice_))
                most = box.most.copy()
                most[side] = corner[side] - 1
                return _CountBox(box.root, box.least, most)
        return box

    def _sliced(self, box: _CountBox) -> _CountBox:
        """Take slices off both ends of every side, as thick as are proven to be cut."""
        sides, places = self._places(box)
        if not len(sides):
            return box
        rows = np.arange(len(sides))
        uppers = np.repeat(box.least[None, :], len(sides), axis=0)
        uppers[rows, sides] = places  # slices from here on
        lowers = np.repeat(box.most[None, :], len(sides), axis=0)
        lowers[rows, sides] = places - 1  # slices up to before here
        least = np.vstack([uppers, np.repeat(box.least[None, :], len(sides), axis=0)])
        most = np.vstack([np.repeat(box.most[None, :], len(sides), axis=0), lowers])
        bounds = self._bounds_in(box.root, least, most)
        is_cut = self._is_cut(bounds)
        if not is_cut.any():
            return box
        new_least, new_most = box.least.copy(), box.most.copy()
        upper, lower = is_cut[: len(sides)], is_cut[len(sides) :]
        np.minimum.at(new_most, sides[upper], places[upper] - 1)
        np.maximum.at(new_least, sides[lower], places[lower])
        taken = np.concatenate([upper & (places == new_most[sides] + 1), lower & (places == new_least[sides])])
        self._leave(box, bounds[taken])
        return _CountBox(box.root, new_least, new_most)

    def _places(self, box: _CountBox) -> tuple[Ints, Ints]:
        """Return sides and the places at which each is tried to be cut in two, from its second place to its last."""
        known = self.readings.get(box.root)
        sides, places = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for side in np.flatnonzero(box.least < box.most).tolist():
            low, high = int(box.least[side]) + 1, int(box.most[side])
            tried = _spread(low, high, _CUTS)
            if known is not None:
                tried = np.union1d(tried, known.at[-_CUTS:, side] + 1)
                tried = tried[(tried >= low) & (tried <= high)]
            sides.append(np.full(len(tried), side))
            places.append(tried)
        return np.concatenate(sides), np.concatenate(places)

    # Calls

    def _ask(self, box: _CountBox, counts: Ints, least: Ints | None = None) -> None:
        """Ask about a point of a box, and offer what it used; ``least``: from where on all is cut, if not the box's."""
        question, known = self.question, self.readings[box.root]
        enough = self._enough(box.root, box.least if least is None else least)
        call = (box.root, question.counts_of(box.root, counts), enough)
        if self._ahead is not None:
            self._ahead.note(self, box, counts, call)
            question.foreseen(self._ahead.next)
        reading: Reading = question.oracle(*call)
        self.num_calls += 1
        used = known.add(counts, reading)
        self._offer(box.root, used if self._holds(box.root, used) else counts, known)
        self.open_key = min(self._open.bound, float(self.aim.keys(self.bounds(box))[0]))
        self.on_call(self)

    def _enough(self, root: int, counts: Ints) -> float:
        """Return a ``t`` from which on a point is cut, and all above it; near the least such, ``inf`` if none."""
        low, high = _T_LEAST, _T_MOST

        def is_cut_at(seconds: Floats) -> Bools:
            roots, points = np.full(len(seconds), root), np.repeat(counts[None, :], len(seconds), axis=0)
            return self._is_cut(self._criteria(roots, points, seconds))

        if not is_cut_at(np.array([high]))[0]:
            return inf
        for _ in range(4):
            tried = np.geomspace(low, high, _STEPS)
            tried[-1] = high
            first = int(is_cut_at(tried).argmax())
            high = float(tried[first])
            if first == 0:
                break
            low = float(tried[first - 1])
        return high

    def _next_point(self, box: _CountBox, known: Readings) -> Ints | None:
        """Return the point of a box that is worth a call; None: the box is better split.

        First the point that is expected to beat what is known by most; else the greatest corner, where a call at it is
        expected to take enough off the box.
        """
        if len(known.payloads) and self._num_probes.get(box.root, 0) < self.most_probes:
            if len(known.payloads) == 1:  # what comes from one reading alone is not worth much
                middle: Ints = np.sqrt(box.least * box.most.astype(float)).astype(np.int64)
                if not known.is_read(middle):
                    return middle
            points = box.lattice
            roots = np.full(len(points), box.root)
            criteria = self._criteria(roots, points, known.expected(points))
            gains = np.where(np.isfinite(criteria).all(axis=1), self.aim.gains(criteria), 0.0)
            gains[known.most_at(points) <= known.least(points) * (1 + _WORTH)] = 0.0
            if self.question.holds is not None:
                gains[~self.question.holds(roots, points)] = 0.0
            best, hoped = int(gains.argmax()), 0.0
            if self.aim.share and np.isfinite(most := float(self.aim.gains(self.bounds(box))[0])):
                hoped = self.aim.share * (most - 1)
            if gains[best] >= 1 + max(_WORTH, hoped) and not known.is_read(points[best]):
                self._num_probes[box.root] = self._num_probes.get(box.root, 0) + 1
                return np.asarray(points[best])
        if known.is_read(box.most):
            return None
        if not len(known.payloads) or (box.most <= box.least * _NARROW).all():
            return box.most
        expected = float(known.expected(box.most[None, :])[0])
        sides, places = self._places(box)
        uppers = np.repeat(box.least[None, :], len(sides) + 1, axis=0)
        uppers[np.arange(len(sides)), sides] = places
        is_cut = self._is_cut(self._criteria(np.full(len(uppers), box.root), uppers, np.full(len(uppers), expected)))
        if is_cut[-1]:
            return box.most
        top = box.most.copy()
        np.minimum.at(top, sides[is_cut[:-1]], places[is_cut[:-1]] - 1)
        share = float(np.prod((top - box.least + 1) / (box.most - box.least + 1)))
        return box.most if share <= _SHRINKS else None


# Which calls come next, so that others can begin them. A copy of the walk goes on ahead of it. Where an answer is known
# it takes that; else it guesses that the call proves what it can prove: that the box is cut. That is what most calls
# come to once there is a good incumbent. What the copy guesses never reaches the walk, which makes the same calls in
# the same order as without anybody ahead: a wrong guess costs whoever began the call, and nothing else. The copy goes
# on as long as the walk makes the calls that it foresaw; after a call that it did not, a new copy is made.


@dataclass(slots=True)
class _Ahead:
    """Foresees the calls of a walk; ``known``: what a call returns, None where that is not known yet."""

    known: Callable[[int, Counts, float], Reading | None]
    _copy: _Walk | None = None
    _foreseen: dict[Call, None] = field(default_factory=dict)  # in their order
    _new: deque[Call] = field(default_factory=deque)

    def note(self, walk: _Walk, box: _CountBox, counts: Ints, call: Call) -> None:
        """Take note that the walk makes a call, about a point of a box."""
        if call in self._foreseen:
            del self._foreseen[call]
            if len(self._foreseen) <= _MOST_BEHIND:
                return
        self._foreseen.clear()
        self._new.clear()
        self._copy = walk.copied(self._answer)
        try:
            self._copy.guess(box, counts, _guess(call))
        except ModelError:  # a guess that contradicts what is known
            self._copy = None

    def next(self, number: int) -> list[Call]:
        """Return up to so many calls that are foreseen next, each once."""
        calls: list[Call] = []
        for _ in range(number * _FALSE_STEPS):
            if len(calls) >= number or self._copy is None:
                break
            try:
                if not self._copy.step():
                    break
            except ModelError:
                self._copy = None
                break
            while self._new:
                calls.append(self._new.popleft())
        return calls

    def _answer(self, root: int, counts: Counts, enough: float) -> Reading:
        """Answer a call of the copy."""
        call = (root, counts, enough)
        known = self.known(root, counts, enough)
        if call not in self._foreseen:
            self._foreseen[call] = None
            if known is None:
                self._new.append(call)
        return _guess(call) if known is None else known


def _guess(call: Call) -> Reading:
    """Return that a point does not matter; where there is no telling what matters, that nothing is possible."""
    _, _, enough = call
    return Reading(value=enough, bound=enough) if enough < inf else Reading(value=inf, bound=inf)
