"""Whole numbers in boxes: best-first branch and bound where a cost model bounds whole boxes at once.

Sets and data
    Boxes ``(kind, low, high)``: all integer vectors between ``low`` and ``high``, both included; the kind says which of
    several problems the vector belongs to.
Variables
    the kind and the vector, and whatever a leaf, a box of one vector, decides besides.
Objective
    minimise what :class:`BoxCost` gives.
Search
    The boxes of least bound are taken up together. Each is first bounded more closely, then one vector of the most
    promising ones is tried, and each is split; leaves are solved. Boxes are bounded
    in batches, as arrays. It ends when no box is left whose bound is less than the incumbent.
Proves
    that nothing is better than the least bound of a box that is still open, or than the incumbent if there is none.
    Limits on the numbers of boxes and of solved leaves make the end repeatable; time is a guard.

Two searches stand here. :func:`best_vector` bounds boxes cheaply and many at once; all_reduce and parameter_server are
instances of it. :func:`best_counts` and :func:`best_trade_offs`, further below, are for a cost of which one evaluation
takes seconds and which never grows with a count: what an evaluation says of other points bounds boxes there, so that
the question is which point to evaluate next, not which box to split.
"""

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import ModelError
from planner.search import Search
from planner.solution import SAME, Solution, Status
from planner.solvers.pareto import front, front_factors

V = TypeVar("V")

_BATCH = 256  # boxes that are taken up together by default
_BOXES_PROBES = 8  # of them, in which a vector is tried


@dataclass(frozen=True, slots=True)
class Box:
    """All integer vectors from ``low`` to ``high`` of one kind."""

    kind: int
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def is_leaf(self) -> bool:
        """Whether it holds one vector."""
        return self.low == self.high

    def halves(self, side: int | None = None) -> tuple["Box", "Box"]:
        """Return both halves along a side; without one, along the relatively widest."""
        if side is None:
            side = max(range(len(self.low)), key=lambda one: ((self.high[one] - self.low[one]) / self.high[one], -one))
        middle = (self.low[side] + self.high[side]) // 2
        below = (*self.high[:side], middle, *self.high[side + 1 :])
        above = (*self.low[:side], middle + 1, *self.low[side + 1 :])
        return Box(self.kind, self.low, below), Box(self.kind, above, self.high)


def _halves_of(boxes: Sequence[Box]) -> list[tuple[Box, Box]]:
    """Return the halves of boxes along their relatively widest sides."""
    return [box.halves() for box in boxes]


class BoxCost(Protocol[V]):
    """What is minimised."""

    def bounds(self, boxes: Sequence[Box], limit: float, /) -> Floats:
        """Return, for every box, what no vector in it beats; ``inf`` where none is possible, or below the limit.

        0 for a box to which the time did not come.
        """
        ...

    def close_bounds(self, boxes: Sequence[Box], bounds: Floats, limit: float, /) -> Floats:
        """Return closer bounds than ``bounds``, at more effort; ``inf`` as above."""
        ...

    def probe(self, boxes: Sequence[Box], limit: float, /) -> Solution[V] | None:
        """Return the best of one vector of each box, None where none is found below the limit."""
        ...

    def solve(self, leaf: Box, bound: float, limit: float, /) -> Solution[V]:
        """Return the best of a leaf below the limit."""
        ...


@dataclass(slots=True, kw_only=True)
class Found(Generic[V]):
    """The state and outcome of a search; ``num_solved`` leaves, ``num_boxes`` bounded.

    ``best``: objectives and values, the best ``num_best`` of them in their order. ``open_bound``: of what was left.
    """

    num_best: int = 1
    best: list[tuple[float, V]] = field(default_factory=list)
    open_bound: float = float("inf")
    num_boxes: int = 0
    num_solved: int = 0
    on_better: Callable[[V], None] = lambda value: None
    _heap: list[tuple[float, int, Box]] = field(default_factory=list)

    @property
    def value(self) -> V | None:
        """The best value."""
        return self.best[0][1] if self.best else None

    @property
    def objective(self) -> float:
        """Of the best value."""
        return self.best[0][0] if self.best else inf

    @property
    def bound(self) -> float:
        """What nothing beats."""
        least = self._heap[0][0] if self._heap else inf
        return min(self.open_bound, self.objective, least)

    @property
    def solution(self) -> Solution[V]:
        """The outcome as a solution."""
        bound = self.bound
        if self.value is None:
            status = Status.INFEASIBLE if bound == inf else Status.UNKNOWN
            return Solution(status=status, objective=inf, bound=bound, value=None)
        is_proven = self.objective - bound <= SAME * self.objective
        status = Status.OPTIMAL if is_proven else Status.FEASIBLE
        return Solution(status=status, objective=self.objective, bound=bound, value=self.value)

    def offer(self, solution: Solution[V] | None) -> None:
        """Take a solution over if it is among the best."""
        if solution is None or solution.value is None:
            return
        is_better = solution.objective < self.objective
        if is_better or len(self.best) < self.num_best or solution.objective < self.best[-1][0]:
            insort(self.best, (solution.objective, solution.value), key=lambda one: one[0])
            del self.best[self.num_best :]
        if is_better:
            self.on_better(solution.value)

    @property
    def enough(self) -> float:
        """What a box must be able to beat."""
        return self.best[-1][0] * (1 - SAME) if len(self.best) >= self.num_best else inf


def best_vector(
    roots: Sequence[Box],
    cost: BoxCost[V],
    search: Search,
    *,
    split: Callable[[Sequence[Box]], Sequence[Sequence[Box]]] = _halves_of,
    most_boxes: float = 20_000,
    most_solved: float = 20_000,
    at_a_time: int = _BATCH,
    num_best: int = 1,
    on_progress: Callable[[float, float], None] = lambda bound, objective: None,
    on_better: Callable[[V], None] = lambda value: None,
) -> Found[V]:
    """Return the best vectors of all boxes, with a bound on what was left open.

    Parameters
    ----------
    split
        Returns, for each of some boxes, smaller ones that together hold all that is possible of it.
    most_boxes, most_solved
        Boxes that are bounded, and leaves that are solved, until it ends.
    at_a_time
        Boxes that are taken up together; of leaves one.
    num_best
        How many solutions are wanted, of different leaves.
    on_progress
        Called with the bound and the incumbent's objective; ``inf`` where there is none.
    on_better
        Called with every better value.

    Notes
    -----
    Where the time does not suffice to bound all roots, those that were stand first.
    """
    found: Found[V] = Found(num_best=num_best, on_better=on_better)

    def push(boxes: Sequence[Box], parents: Sequence[float]) -> None:
        """Bound boxes and add those that can beat the incumbent to the open ones."""
        bounds = cost.bounds(boxes, found.enough).tolist() if boxes else []
        for box, bound, parent in zip(boxes, bounds, parents, strict=True):
            closest = max(bound, parent)
            found.num_boxes += 1
            if closest < found.enough:
                heapq.heappush(found._heap, (closest, found.num_boxes, box))

    def is_over(bound: float) -> bool:
        """Whether to stop with what there is, where nothing that is open is below a bound."""
        is_enough = bool(found.best) and (found.objective <= search.good_enough or bound >= search.cutoff)
        return is_enough or search.is_over or found.num_solved >= most_solved

    push(roots, [0.0] * len(roots))
    first = sorted(found._heap, key=lambda one: (one[0] <= 0.0, *one[:2]))[:_BOXES_PROBES]
    found.offer(cost.probe([box for *_, box in first], inf))
    while found._heap and not is_over(found._heap[0][0]) and found.num_boxes < most_boxes:
        on_progress(found.bound, found.objective)
        taken: list[tuple[float, int, Box]] = []
        while found._heap and found._heap[0][0] < found.enough and len(taken) < at_a_time:
            taken.append(heapq.heappop(found._heap))
            if taken[-1][2].is_leaf:
                break
        if not taken:
            found._heap.clear()
            break
        bounds = np.array([bound for bound, *_ in taken])
        closer = np.maximum(bounds, cost.close_bounds([box for *_, box in taken], bounds, found.enough))
        closed = [(bound, box) for bound, (*_, box) in zip(closer.tolist(), taken, strict=True) if bound < found.enough]
        wide = [(bound, box) for bound, box in closed if not box.is_leaf]
        if wide:
            promising = sorted(range(len(wide)), key=lambda index: (wide[index][0], index))[:_BOXES_PROBES]
            found.offer(cost.probe([wide[index][1] for index in promising], found.enough))
        leaves = [(bound, box) for bound, box in closed if box.is_leaf]
        for bound, leaf in sorted(leaves, key=lambda one: one[0]):
            if bound >= found.enough:
                continue
            if is_over(bound):
                found.open_bound = min(found.open_bound, bound)
                continue
            solution = cost.solve(leaf, bound, found.enough)
            found.num_solved += 1
            found.offer(solution)
            if solution.status is not Status.INFEASIBLE:
                found.open_bound = min(found.open_bound, solution.bound)
        parts = split([box for _, box in wide])
        parents = [bound for (bound, _), halves in zip(wide, parts, strict=True) for _ in halves]
        push([half for halves in parts for half in halves], parents)
    return found


# --- What :mod:`planner.solvers.branch_and_bound` is asked and answers: counts, criteria, an expensive monotone oracle

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one call of the oracle found out about ``t(r, n)``.

    Attributes
    ----------
    value
        At least ``t``, and reached by the payload; ``inf``: nothing was found, or nothing is possible.
    bound
        At most ``t``, proven; equal to ``value`` where that is.
    used
        Counts up to ``n`` that reach ``value``; None: ``n`` itself.
    payload
        Whatever belongs to ``value``; handed back with the answer.
    """

    value: float
    bound: float
    used: Counts | None = None
    payload: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Roots, their criteria, and the oracle.

    Functions of many boxes or points get arrays of one length: ``roots`` of shape (boxes,), counts of shape
    (boxes, K), where a root of fewer than ``K`` variables has zeros at the end.

    Attributes
    ----------
    most
        Shape (roots, K): the largest counts; the least are 1, and 0 where ``most`` is 0.
    oracle
        ``(root, counts, enough)``, the counts without the zeros at the end. May end as soon as its bound is ``enough``
        or more: the point cannot matter then.
    criteria
        ``(roots, counts, t)`` to shape (boxes, criteria); at least 0, never falling where a count or ``t`` grows.
    limits
        Of each criterion; ``inf`` where there is none.
    floor
        ``(roots, least, most)`` to shape (boxes, criteria): no point between ``least`` and ``most`` has less. Cheap.
    can_hold, holds
        A condition besides: ``(roots, least, most)``, False where it holds nowhere in the box, and ``(roots, counts)``,
        whether it holds there. None: no condition.
    size
        ``(roots, counts)``: about how fast each point may be next to others of its root, such as its FLOP/s; above 0.
        It proves nothing, but calls are chosen by it. None: the mean share of ``most``.
    known, foreseen
        Where others can make calls before they are due: what a call returns, as far as that is known already, None
        where it is not; and who is told before every call, with what gives up to so many calls that are likely to
        follow. Neither changes the answer. Without ``known`` nothing is foreseen.
    has_costly_condition
        Whether ``holds`` calls the oracle, too: who looks ahead then leaves it out.
    """

    most: Ints
    oracle: Callable[[int, Counts, float], Reading]
    criteria: Callable[[Ints, Ints, Floats], Floats]
    limits: Sequence[float]
    floor: Callable[[Ints, Ints, Ints], Floats] | None = None
    can_hold: Callable[[Ints, Ints, Ints], Bools] | None = None
    holds: Callable[[Ints, Ints], Bools] | None = None
    size: Callable[[Ints, Ints], Floats] | None = None
    known: Callable[[int, Counts, float], Reading | None] | None = None
    foreseen: Callable[[Callable[[int], list[tuple[int, Counts, float]]]], None] = lambda calls: None
    has_costly_condition: bool = False

    @property
    def least(self) -> Ints:
        """The least counts, of the shape of ``most``."""
        return np.minimum(self.most, 1)

    def sizes_of(self, root: int, counts: Ints) -> Floats:
        """Return the sizes of points of a root."""
        if self.size is not None:
            return np.asarray(self.size(np.full(len(counts), root), counts), dtype=np.float64)
        has = self.most[root] > 0
        return np.asarray((counts[:, has] / self.most[root, has]).mean(axis=1))

    def counts_of(self, root: int, counts: Ints) -> Counts:
        """Return counts without the zeros at the end."""
        return tuple(counts[: int((self.most[root] > 0).sum())].tolist())


# --- Boxes of counts, and points spread over them

_POINTS = 512  # of a lattice, about


@dataclass(frozen=True, slots=True)
class CountBox:
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


def spread(low: int, high: int, number: int) -> Ints:
    """Return whole numbers from ``low`` to ``high`` with both ends, at most so many, by about equal factors."""
    if high - low < number:
        return np.arange(low, high + 1)
    return np.unique(np.rint(np.geomspace(low, high, number)).astype(np.int64))


def middle(box: CountBox) -> Ints:
    """Return the point in the middle of a box, by equal factors."""
    return np.asarray(np.sqrt(box.least * box.most.astype(float)).astype(np.int64))


def lattice(box: CountBox) -> Ints:
    """Return points of a box, spread by equal factors along every side."""
    wide = max(1, int((box.least < box.most).sum()))
    number = max(2, int(_POINTS ** (1 / wide)))
    sides = [spread(int(low), int(high), number) for low, high in zip(box.least, box.most, strict=True)]
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(sides))


# --- Which calls of its oracle a search of :mod:`planner.solvers.branch_and_bound` makes next, so that others can
# begin them A copy of the walk goes on ahead of it. Where an answer is known it takes that; else it guesses that the
# call proves what it can prove: that the box is cut. That is what most calls come to once there is a good incumbent.
# What the copy guesses never reaches the walk, which makes the same calls in the same order as without anybody ahead:
# a wrong guess costs whoever began the call, and nothing else. The copy goes on as long as the walk makes the calls
# that it foresaw; after a call that it did not, a new copy is made.

Call = tuple[int, Counts, float]  # root, counts, and a t from which on nothing matters

_MOST_BEHIND = 64  # calls that were foreseen and not made, until a new copy is made
_FALSE_STEPS = 4  # foreseen calls per call wanted, at most, that one look may take


@dataclass(slots=True)
class Ahead:
    """Foresees the calls of a walk.

    Attributes
    ----------
    known
        What a call returns, where that is known already; None where it is not.
    """

    known: Callable[[int, Counts, float], Reading | None]
    num_hits: int = 0
    num_misses: int = 0
    _copy: "Walk | None" = None
    _foreseen: dict[Call, None] = field(default_factory=dict)  # in their order
    _new: deque[Call] = field(default_factory=deque)

    def note(self, walk: "Walk", box: "CountBox", counts: "Ints", call: Call) -> None:
        """Take note that the walk makes a call, about a point of a box."""
        if call in self._foreseen:
            self.num_hits += 1
            del self._foreseen[call]
            if len(self._foreseen) <= _MOST_BEHIND:
                return
        else:
            self.num_misses += 1
        self._foreseen.clear()
        self._new.clear()
        self._copy = _copied(walk, self._answer)
        try:
            self._copy.guess(box, counts, self._guess(call))
        except ModelError:  # a guess that contradicts what is known
            self._copy = None

    def next(self, number: int) -> list[Call]:
        """Return up to so many calls that are foreseen next, each once."""
        found: list[Call] = []
        for _ in range(number * _FALSE_STEPS):
            if len(found) >= number or not self._steps():
                break
            while self._new:
                found.append(self._new.popleft())
        return found

    def _steps(self) -> bool:
        """Take a step ahead; return False where there is none."""
        if self._copy is None:
            return False
        try:
            return self._copy.step()
        except ModelError:
            self._copy = None
            return False

    def _answer(self, root: int, counts: Counts, enough: float) -> Reading:
        """Answer a call of the copy."""
        call = (root, counts, enough)
        known = self.known(root, counts, enough)
        if call not in self._foreseen:
            self._foreseen[call] = None
            if known is None:
                self._new.append(call)
        return self._guess(call) if known is None else known

    def _guess(self, call: Call) -> Reading:
        """Return that a point does not matter; where there is no telling what matters, that nothing is possible."""
        _, _, enough = call
        return Reading(value=enough, bound=enough) if enough < inf else Reading(value=inf, bound=inf)


def _copied(walk: "Walk", oracle: Callable[[int, Counts, float], Reading]) -> "Walk":
    """Return a copy that goes its own way, and tells nobody."""
    found = copy(walk)
    holds = None if walk.question.has_costly_condition else walk.question.holds
    question: Question = replace(walk.question, oracle=oracle, holds=holds)
    found.question, found.ahead, found.search, found.told = question, None, Search(), lambda walk: None
    found.aim = walk.aim.copied()
    found.most_calls = walk.num_calls + (1 << 30)
    found.readings = {root: one.copied(question) for root, one in walk.readings.items()}
    found.best_of, found.left_of = dict(walk.best_of), walk.left_of.copy()
    found.fork()
    return found


# --- What calls of a monotone oracle say about other points, and what they lead one to expect
# For a root, readings ``k`` at ``n_k`` with ``bound_k <= t(n_k) <= value_k`` reached by ``used_k <= n_k``. Since ``t``
# never grows with a count, for every ``n``
#
#     max {bound_k : n_k >= n}  <=  t(n)  <=  min {value_k : used_k <= n}.
#
# What is expected in between is no bound and proves nothing: it only chooses where to ask next.

_SAME = 1e-9  # relative: what two calls may differ by for rounding


@dataclass(slots=True)
class Readings:
    """All that was asked about one root."""

    question: Question
    root: int
    at: Ints = field(init=False)
    used: Ints = field(init=False)
    bounds: Floats = field(init=False)
    values: Floats = field(init=False)
    payloads: list[Any] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.at = self.used = np.zeros((0, self.question.most.shape[1]), dtype=np.int64)
        self.bounds = self.values = np.zeros(0)

    def copied(self, question: Question) -> "Readings":
        """Return the same readings, which go their own way from now on."""
        found = copy(self)
        found.question, found.payloads = question, list(self.payloads)
        return found

    def add(self, counts: Ints, reading: Reading) -> Ints:
        """Take in a reading; return the counts that it used.

        Raises
        ------
        ModelError
            Where it is no reading of a function that never grows with a count.
        """
        used = counts.copy()
        if reading.used is not None:
            used[: len(reading.used)] = reading.used
            used = np.maximum(used, self.question.least[self.root])
        if not 0 <= reading.bound <= reading.value or (used > counts).any():
            raise ModelError(f"The oracle's answer for {counts.tolist()} is none: {reading}.")
        self.at, self.used = np.vstack([self.at, counts]), np.vstack([self.used, used])
        self.bounds, self.values = np.append(self.bounds, reading.bound), np.append(self.values, reading.value)
        self.payloads.append(reading.payload)
        self._check(counts, used, reading)
        return used

    def _check(self, counts: Ints, used: Ints, reading: Reading) -> None:
        """Refuse what contradicts an earlier answer."""
        least, most = self.least(used[None, :])[0], self.most_at(counts[None, :])[0]
        if least > reading.value * (1 + _SAME) or reading.bound > most * (1 + _SAME):
            raise ModelError(
                f"The oracle contradicts itself at {counts.tolist()}: between {reading.bound!r} and {reading.value!r}, "
                f"but other counts say between {least!r} and {most!r}. It must not grow with any count."
            )

    def least(self, counts: Ints) -> Floats:
        """Return what ``t`` is at least at each of some points: 0 where nothing is known."""
        reaches = (self.at >= counts[:, None, :]).all(axis=2)
        return np.asarray(np.where(reaches, self.bounds, 0.0).max(axis=1, initial=0.0))

    def most_at(self, counts: Ints) -> Floats:
        """Return what ``t`` is at most at each of some points: ``inf`` where nothing is known."""
        is_reached = (self.used <= counts[:, None, :]).all(axis=2)
        return np.asarray(np.where(is_reached, self.values, np.inf).min(axis=1, initial=np.inf))

    def best_at(self, counts: Ints) -> tuple[float, Any]:
        """Return the least known value that a point reaches, and its payload."""
        values = np.where((self.used <= counts).all(axis=1), self.values, np.inf)
        index = int(values.argmin())
        return float(values[index]), self.payloads[index]

    def is_read(self, counts: Ints) -> bool:
        """Whether the oracle was asked about a point."""
        return bool((self.at == counts).all(axis=1).any())

    def is_settled(self, least: Ints, most: Ints) -> bool:
        """Whether one reading says all there is to know of every point of a box."""
        if bool(((self.at >= most).all(axis=1) & (self.used <= least).all(axis=1)).any()):
            return True
        return bool(np.isfinite(self.values).any()) and bool(
            self.most_at(least[None, :])[0] <= self.least(most[None, :])[0]
        )

    def expected(self, counts: Ints) -> Floats:
        """Return what ``t`` may be: a part that is shared evenly and one that is not, through the nearest readings.

        So ``t`` is taken to be linear in one over the size.
        """
        known = np.isfinite(self.values)
        if not known.any():
            return self.least(counts)
        inverse, seconds = 1 / self.question.sizes_of(self.root, self.used[known]), self.values[known]
        order = np.lexsort([seconds, inverse])
        inverse, first = np.unique(inverse[order], return_index=True)
        seconds = seconds[order][first]
        asked = 1 / self.question.sizes_of(self.root, counts)
        slope = seconds[-1] / inverse[-1]
        if len(inverse) > 1:
            slope = max(0.0, (seconds[-1] - seconds[-2]) / (inverse[-1] - inverse[-2]))
        found = np.interp(asked, inverse, seconds) + slope * np.maximum(asked - inverse[-1], 0.0)
        return np.asarray(np.clip(found, self.least(counts), self.most_at(counts)))


# --- What a search of counts wants: the least of one criterion, or the front of two. Both cut what cannot matter

_SHARE = 0.25  # of the front: points that lie close to known ones can wait for their box's turn


@dataclass(frozen=True, slots=True, kw_only=True)
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


class Aim(Protocol):
    """What is cut, what comes first, and what was left out unproven."""

    def copied(self) -> "Aim":
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
        """Take in a point that was found."""
        ...

    def leave(self, bounds: Floats, /) -> None:
        """Take note that boxes were left: cut, settled, or not come to."""
        ...

    @property
    def is_enough(self) -> bool:
        """Whether to stop with what there is."""
        ...

    @property
    def limits(self) -> Floats:
        """Of the criteria."""
        ...

    @property
    def share(self) -> float:
        """A point is asked about for its own sake where its gain is this share of what its box might gain."""
        ...


@dataclass(slots=True)
class Least:
    """The least first criterion."""

    limits: Floats
    search: Search
    tolerance: float
    best: Candidate | None = None
    left: float = inf  # no point in a box that was left has less
    share: float = 0.0  # every better incumbent is welcome

    @property
    def objective(self) -> float:
        """Of the incumbent."""
        return self.best.criteria[0] if self.best is not None else inf

    @property
    def is_enough(self) -> bool:
        """Whether the incumbent is as good as was asked for."""
        return self.best is not None and self.objective <= self.search.good_enough

    def copied(self) -> "Least":
        """Return the same aim, which goes its own way."""
        return copy(self)

    def is_cut(self, bounds: Floats, /) -> Bools:
        """Cut what breaks a limit or does not beat the incumbent by more than the tolerance."""
        enough = min(self.objective * (1 - self.tolerance), self.search.cutoff) if self.best is not None else inf
        return np.asarray((bounds > self.limits).any(axis=1) | (bounds[:, 0] >= enough))

    def keys(self, bounds: Floats, /) -> Floats:
        """Order by the bound of the objective."""
        return bounds[:, 0]

    def gains(self, criteria: Floats, /) -> Floats:
        """Of the first criterion; where there is no incumbent one over it, which is as good for comparing."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            gains = (self.objective if self.best is not None else np.finfo(float).max) / criteria[:, 0]
        return np.where((criteria <= self.limits).all(axis=1), gains, 0.0)

    def offer(self, candidate: Candidate, /) -> None:
        """Keep the better one."""
        if self.best is None or candidate.order < self.best.order:
            self.best = candidate

    def leave(self, bounds: Floats, /) -> None:
        """Remember the least that a box within the limits could have."""
        within = (bounds <= self.limits).all(axis=1)
        self.left = min(self.left, float(bounds[within, 0].min(initial=inf)))


@dataclass(slots=True)
class Front:
    """The points that nobody dominates in the first two criteria."""

    limits: Floats
    search: Search
    tolerance: float
    archive: list[Candidate] = field(default_factory=list)
    share: float = _SHARE
    _points: Floats = field(init=False)
    _left: list[Floats] = field(init=False, default_factory=list)
    _most_cut: float = field(init=False, default=1.0)  # factor by which something that was cut might beat the front

    def __post_init__(self) -> None:
        self._points = np.zeros((0, 2))

    @property
    def is_enough(self) -> bool:
        """Nothing is enough: the whole front was asked for."""
        return False

    def copied(self) -> "Front":
        """Return the same front, which goes its own way."""
        found = copy(self)
        found._left = list(self._left)
        return found

    def is_cut(self, bounds: Floats, /) -> Bools:
        """Cut what breaks a limit or is dominated."""
        return np.asarray((bounds > self.limits).any(axis=1) | (self._factors(bounds) <= 1 + self.tolerance))

    def keys(self, bounds: Floats, /) -> Floats:
        """Order by the factor by which the archive might be beaten, the largest first."""
        return -self._factors(bounds)

    def gains(self, criteria: Floats, /) -> Floats:
        """The factor by which each beats the archive."""
        return np.where((criteria <= self.limits).all(axis=1), self._factors(criteria), 0.0)

    def offer(self, candidate: Candidate, /) -> None:
        """Keep the front, of equal points the first."""
        rows = sorted([*self.archive, candidate], key=lambda one: one.order)
        points = np.array([row.criteria[:2] for row in rows])
        kept = front(points)
        self.archive, self._points = [rows[index] for index in kept], points[kept]

    def leave(self, bounds: Floats, /) -> None:
        """Remember what is not cut; what is stays so, since the archive only grows."""
        within = bounds[(bounds <= self.limits).all(axis=1), :2]
        gains = self._factors(within)
        is_cut = gains <= 1 + self.tolerance
        self._most_cut = max(self._most_cut, float(gains[is_cut].max(initial=1.0)))
        within = within[~is_cut]
        if len(within):
            self._left.append(within[front(within)])

    @property
    def left(self) -> Floats:
        """The front of what was left: no point in a box that was left is below all of these."""
        rows: Sequence[Floats] = [np.zeros((0, 2)), *self._left]
        points = np.concatenate(rows)
        return points[front(points)] if len(points) else points

    @property
    def factor(self) -> float:
        """The largest factor by which something that was left could beat the archive."""
        return max(self._most_cut, float(self._factors(self.left).max(initial=1.0)))

    def _factors(self, criteria: Floats) -> Floats:
        return front_factors(criteria[:, :2], self._points)


# --- The search of :mod:`planner.solvers.branch_and_bound`: boxes, best first, of which the corners are asked for

_SLACK = 1e-12  # relative rounding of a floor
_CUTS = 16  # places of a side that are tried at once
_ROUNDS = 64  # of tightening one box
_SLOWS = 0.9  # tightening ends where a round leaves more than this
_WORTH = 1e-3  # relative gain that is worth a question
_NARROW = 1.1  # a corner is asked for in any case where no side is wider by more than this factor
_SHRINKS = 0.8  # a corner is asked for where the box is expected to shrink to this
_TURNS = 4  # one in so many boxes is a root of which nothing is known
_SCOUTS = 3  # questions about it
_STEPS = 64  # places of t that are tried at once
_T_LEAST, _T_MOST = 1e-12, 1e21


@dataclass(slots=True)
class Walk:
    """Boxes that are open, in the order of the aim, and what the oracle said so far."""

    question: Question
    aim: Aim
    search: Search
    most_calls: int
    most_probes: int
    told: Callable[["Walk"], None]
    ahead: Ahead | None = None
    num_calls: int = 0
    num_boxes: int = 0
    open_key: float = -inf  # after the last question: no open box comes before this
    readings: dict[int, Readings] = field(default_factory=dict)
    best_of: dict[int, Candidate] = field(default_factory=dict)
    left_of: Floats = field(init=False)  # by root: least first criterion of what was left
    _num_probes: dict[int, int] = field(default_factory=dict)
    _heap: list[tuple[float, int, int, CountBox]] = field(default_factory=list)
    _roots: list[tuple[float, int, int, CountBox]] = field(
        default_factory=list
    )  # those of the first ones not asked about
    _taken: set[int] = field(default_factory=set)  # numbers of boxes that were taken off the heap, or count as if
    _turn: int = 0

    def run(self) -> None:
        """Search until nothing is open, or something ends it."""
        self._start()
        while self.step():
            pass
        self._leave_all([box for *_, number, box in self._heap if number not in self._taken])

    def step(self) -> bool:
        """Take up one box; return False where nothing is open, or something ends the search."""
        if not self._heap or self._is_over:
            return False
        self._turn += 1
        if self._turn % _TURNS == 0 and (new := self._unread()) is not None:
            self._scout(new)
            return True
        *_, number, box = heapq.heappop(self._heap)
        if number in self._taken:
            return True
        self._taken.add(number)
        bounds = self.bounds(box)
        if self._is_left(box, bounds):
            return True
        if self._heap and float(self.aim.keys(bounds)[0]) > self._heap[0][0]:
            self._push(box, bounds)
        else:
            self._take_up(box)
        return True

    def fork(self) -> None:
        """Have lists of its own, after it was copied from another walk."""
        self._num_probes = dict(self._num_probes)
        self._heap, self._roots, self._taken = list(self._heap), list(self._roots), set(self._taken)

    def guess(self, box: CountBox, counts: Ints, reading: Reading) -> None:
        """Take a reading for the answer to a call about a point of a box that was taken up."""
        self._readings_of(box.root).add(counts, reading)
        self._push(box, self.bounds(box))

    def _unread(self) -> CountBox | None:
        """Return the best root of which nothing was asked, as far as it is open."""
        while self._roots:
            _, number, _, box = heapq.heappop(self._roots)
            if number not in self.readings and number not in self._taken:
                self._taken.add(number)
                return box
        return None

    def _scout(self, box: CountBox) -> None:
        """Ask a few questions about a root: what is found there may cut others, long before its turn comes."""
        for _ in range(_SCOUTS):
            bounds = self.bounds(box)
            if self._is_left(box, bounds):
                return
            tight = self._tightened(box)
            if tight is None:
                return
            box, known = tight, self._readings_of(tight.root)
            if self._is_over or box.is_point or known.is_settled(box.least, box.most):
                break
            point = self._next_point(box, known)
            if point is None:
                break
            self._ask(box, point)
        self._push(box, self.bounds(box))

    @property
    def _is_over(self) -> bool:
        return self.aim.is_enough or self.num_calls >= self.most_calls or self.search.is_over

    # Bounds

    def _start(self) -> None:
        """Open all roots, by their floors alone."""
        question, least = self.question, self.question.least
        roots = np.arange(len(question.most))
        self.left_of = np.full(len(roots), inf)
        bounds = self._bounds(roots, least, question.most, np.zeros(len(roots)))
        keys = self.aim.keys(bounds).tolist()
        self.num_boxes = len(roots)
        for root in np.flatnonzero(~(self.aim.is_cut(bounds))).tolist():
            self._heap.append((keys[root], root, root, CountBox(root, least[root], question.most[root])))
        heapq.heapify(self._heap)
        self._roots = list(self._heap)

    def bounds(self, box: CountBox) -> Floats:
        """Return what no point of a box has less of, of shape (1, criteria)."""
        return self._bounds_of(box.root, box.least[None, :], box.most[None, :])

    def _bounds_of(self, root: int, least: Ints, most: Ints) -> Floats:
        """Return the bounds of boxes of one root."""
        known = self.readings.get(root)
        seconds = np.zeros(len(least)) if known is None else known.least(most)
        return self._bounds(np.full(len(least), root), least, most, seconds)

    def _bounds(self, roots: Ints, least: Ints, most: Ints, seconds: Floats) -> Floats:
        """Return the criteria of the least corner at the ``t`` of the other one, or the floor where it is higher."""
        question = self.question
        found = self._criteria(roots, least, seconds)
        if question.floor is not None:
            found = np.maximum(found, np.asarray(question.floor(roots, least, most)) * (1 - _SLACK))
        if question.can_hold is not None:
            found = np.where(question.can_hold(roots, least, most)[:, None], found, inf)
        return found

    def _criteria(self, roots: Ints, counts: Ints, seconds: Floats) -> Floats:
        """Return the criteria; infinite where ``t`` is."""
        is_possible = np.isfinite(seconds)
        found = self.question.criteria(roots, counts, np.where(is_possible, seconds, 0.0))
        return np.where(is_possible[:, None], found, inf)

    def _holds(self, root: int, counts: Ints) -> bool:
        holds = self.question.holds
        return holds is None or bool(holds(np.array([root]), counts[None, :])[0])

    # Boxes

    def _push(self, box: CountBox, bounds: Floats) -> None:
        self.num_boxes += 1
        heapq.heappush(self._heap, (float(self.aim.keys(bounds)[0]), box.root, self.num_boxes, box))

    def _leave(self, box: CountBox, bounds: Floats) -> None:
        """Note that boxes, of the same root, are not looked at any more; without end means that nothing is there."""
        bounds = bounds[np.isfinite(bounds).all(axis=1)]
        self.aim.leave(bounds)
        self.left_of[box.root] = min(self.left_of[box.root], float(bounds[:, 0].min(initial=inf)))

    def _leave_all(self, boxes: Sequence[CountBox]) -> None:
        """Note that boxes of any roots are not looked at any more."""
        if not boxes:
            return
        roots = np.array([box.root for box in boxes])
        least, most = np.array([box.least for box in boxes]), np.array([box.most for box in boxes])
        seconds = np.zeros(len(boxes))
        for root, known in self.readings.items():
            rows = np.flatnonzero(roots == root)
            seconds[rows] = known.least(most[rows])
        bounds = self._bounds(roots, least, most, seconds)
        is_possible = np.isfinite(bounds).all(axis=1)
        self.aim.leave(bounds[is_possible])
        np.minimum.at(self.left_of, roots[is_possible], bounds[is_possible, 0])

    def _is_left(self, box: CountBox, bounds: Floats) -> bool:
        """Leave a box that is cut."""
        if not self._is_cut(bounds)[0]:
            return False
        self._leave(box, bounds)
        return True

    def _is_cut(self, bounds: Floats) -> Bools:
        return ~np.isfinite(bounds).all(axis=1) | self.aim.is_cut(bounds)

    def _take_up(self, box: CountBox) -> None:
        """Tighten a box; then settle it, ask about one of its points, or split it."""
        tight = self._tightened(box)
        if tight is None:
            return
        bounds = self.bounds(tight)
        if self._is_left(tight, bounds):
            return
        if self._heap and float(self.aim.keys(bounds)[0]) > self._heap[0][0]:
            self._push(tight, bounds)
            return
        known = self._readings_of(box.root)
        if known.is_settled(tight.least, tight.most):
            self._settle(tight, bounds, known)
        elif tight.is_point and not self._holds(tight.root, tight.least):
            return
        elif (point := self._next_point(tight, known)) is not None:
            self._ask(tight, point)
            self._push(tight, self.bounds(tight))
        else:
            self._split(tight)

    def _readings_of(self, root: int) -> Readings:
        if root not in self.readings:
            self.readings[root] = Readings(self.question, root)
        return self.readings[root]

    def _settle(self, box: CountBox, bounds: Floats, known: Readings) -> None:
        """Offer the least corner of a box in which ``t`` is known; without it, look further, but ask no more."""
        if self._holds(box.root, box.least):
            self._offer(box.root, box.least, known)
            self._leave(box, bounds)
        elif not box.is_point:
            self._split(box)

    def _offer(self, root: int, counts: Ints, known: Readings) -> None:
        """Offer a point with the best that is known to be reached there."""
        value, payload = known.best_at(counts)
        if not np.isfinite(value) or not self._holds(root, counts):
            return
        criteria = self._criteria(np.array([root]), counts[None, :], np.array([value]))[0]
        if (criteria > self.aim.limits).any() or not np.isfinite(criteria).all():
            return
        candidate = Candidate(
            root=root,
            counts=self.question.counts_of(root, counts),
            criteria=tuple(criteria.tolist()),
            t=value,
            payload=payload,
        )
        self.aim.offer(candidate)
        if root not in self.best_of or candidate.order < self.best_of[root].order:
            self.best_of[root] = candidate

    def _split(self, box: CountBox) -> None:
        """Split a box where its upper part's bound grows most, else where it is relatively widest."""
        sides = np.flatnonzero(box.least < box.most)
        middles = np.sqrt(box.least[sides] * box.most[sides].astype(float)).astype(np.int64)
        middles = np.clip(middles, box.least[sides], box.most[sides] - 1)
        least = np.repeat(box.least[None, :], len(sides), axis=0)
        least[np.arange(len(sides)), sides] = middles + 1
        bounds = self._bounds_of(box.root, least, np.repeat(box.most[None, :], len(sides), axis=0))
        keys, widths = self.aim.keys(bounds), box.most[sides] / box.least[sides]
        first = np.lexsort([sides, -widths, -keys])[0]
        below = box.most.copy()
        below[sides[first]] = middles[first]
        for part in (CountBox(box.root, box.least, below), CountBox(box.root, least[first], box.most)):
            found = self.bounds(part)
            if not self._is_left(part, found):
                self._push(part, found)

    # Tightening

    def _tightened(self, box: CountBox) -> CountBox | None:
        """Return a box without slices that are cut; None where nothing is left."""
        for _ in range(_ROUNDS):
            smaller = self._sliced(self._without_settled(box))
            if smaller is None or (smaller.least > smaller.most).any():
                return None
            is_same = smaller.size == box.size
            if is_same or (smaller.size > box.size * _SLOWS and (smaller.least < smaller.most).sum() > 1):
                return smaller
            box = smaller
        return box

    def _without_settled(self, box: CountBox) -> CountBox:
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
            if self._holds(box.root, corner):
                slice_ = CountBox(box.root, corner, box.most)
                self._offer(box.root, corner, known)
                self._leave(slice_, self.bounds(slice_))
                most = box.most.copy()
                most[side] = corner[side] - 1
                return CountBox(box.root, box.least, most)
        return box

    def _sliced(self, box: CountBox) -> CountBox | None:
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
        bounds = self._bounds_of(box.root, least, most)
        is_cut = self._is_cut(bounds)
        if not is_cut.any():
            return box
        new_least, new_most = box.least.copy(), box.most.copy()
        upper, lower = is_cut[: len(sides)], is_cut[len(sides) :]
        np.minimum.at(new_most, sides[upper], places[upper] - 1)
        np.maximum.at(new_least, sides[lower], places[lower])
        taken = np.concatenate([upper & (places == new_most[sides] + 1), lower & (places == new_least[sides])])
        self._leave(box, bounds[taken])
        return CountBox(box.root, new_least, new_most)

    def _places(self, box: CountBox) -> tuple[Ints, Ints]:
        """Return sides and the places at which each is tried to be cut in two, from its second place to its last."""
        known = self.readings.get(box.root)
        sides, places = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for side in np.flatnonzero(box.least < box.most).tolist():
            low, high = int(box.least[side]) + 1, int(box.most[side])
            tried = spread(low, high, _CUTS)
            if known is not None:
                tried = np.union1d(tried, known.at[-_CUTS:, side] + 1)
                tried = tried[(tried >= low) & (tried <= high)]
            sides.append(np.full(len(tried), side))
            places.append(tried)
        return np.concatenate(sides), np.concatenate(places)

    # Questions

    def _ask(self, box: CountBox, counts: Ints) -> None:
        """Ask the oracle about a point of a box, and offer what it used."""
        question, known = self.question, self.readings[box.root]
        call = (box.root, question.counts_of(box.root, counts), self._enough(box.root, box.least))
        if self.ahead is not None:
            self.ahead.note(self, box, counts, call)
            question.foreseen(self.ahead.next)
        reading: Reading = question.oracle(*call)
        self.num_calls += 1
        used = known.add(counts, reading)
        self._offer(box.root, used if self._holds(box.root, used) else counts, known)
        first = self._heap[0][0] if self._heap else inf
        self.open_key = min(first, float(self.aim.keys(self.bounds(box))[0]))
        self.told(self)

    def _enough(self, root: int, counts: Ints) -> float:
        """Return a ``t`` from which on a point is cut, and all above it; near the least such, ``inf`` if none."""
        low, high = _T_LEAST, _T_MOST
        if not self._cuts_at(root, counts, np.array([high]))[0]:
            return inf
        for _ in range(4):
            tried = np.geomspace(low, high, _STEPS)
            tried[-1] = high
            first = int(self._cuts_at(root, counts, tried).argmax())
            high = float(tried[first])
            if first == 0:
                break
            low = float(tried[first - 1])
        return high

    def _cuts_at(self, root: int, counts: Ints, seconds: Floats) -> Bools:
        roots, points = np.full(len(seconds), root), np.repeat(counts[None, :], len(seconds), axis=0)
        return self._is_cut(self._criteria(roots, points, seconds))

    def _next_point(self, box: CountBox, known: Readings) -> Ints | None:
        """Return the point of a box that is worth a question; None: the box is better split."""
        point = self._probe(box, known)
        return self._corner(box, known) if point is None else point

    def _probe(self, box: CountBox, known: Readings) -> Ints | None:
        """Return the point of a box that is expected to beat what is known by most; None where none is."""
        if not len(known.payloads) or self._num_probes.get(box.root, 0) >= self.most_probes:
            return None
        if len(known.payloads) == 1 and not known.is_read(centre := middle(box)):
            return centre  # what comes from one reading alone is not worth much
        points = lattice(box)
        roots = np.full(len(points), box.root)
        expected = known.expected(points)
        criteria = self._criteria(roots, points, expected)
        gains = np.where(np.isfinite(criteria).all(axis=1), self.aim.gains(criteria), 0.0)
        gains[known.most_at(points) <= known.least(points) * (1 + _WORTH)] = 0.0
        if self.question.holds is not None:
            gains[~self.question.holds(roots, points)] = 0.0
        best = int(gains.argmax())
        if gains[best] < 1 + max(_WORTH, self._hoped(box)) or known.is_read(points[best]):
            return None
        self._num_probes[box.root] = self._num_probes.get(box.root, 0) + 1
        return np.asarray(points[best])

    def _hoped(self, box: CountBox) -> float:
        """Return the gain, less 1, that a point of a box must promise; 0 where there is nothing to compare with."""
        most = float(self.aim.gains(self.bounds(box))[0])
        return self.aim.share * (most - 1) if self.aim.share and np.isfinite(most) else 0.0

    def _corner(self, box: CountBox, known: Readings) -> Ints | None:
        """Return the greatest corner of a box where asking about it is expected to be worth it."""
        if known.is_read(box.most):
            return None
        if not len(known.payloads) or (box.most <= box.least * _NARROW).all():
            return box.most
        expected = float(known.expected(box.most[None, :])[0])
        sides, places = self._places(box)
        uppers = np.repeat(box.least[None, :], len(sides) + 1, axis=0)
        uppers[np.arange(len(sides)), sides] = places
        roots = np.full(len(uppers), box.root)
        is_cut = self._is_cut(self._criteria(roots, uppers, np.full(len(uppers), expected)))
        if is_cut[-1]:
            return box.most
        most = box.most.copy()
        np.minimum.at(most, sides[is_cut[:-1]], places[is_cut[:-1]] - 1)
        share = float(np.prod((most - box.least + 1) / (box.most - box.least + 1)))
        return box.most if share <= _SHRINKS else None


# --- Best counts by few calls of an expensive monotone oracle: branch and bound over boxes, one criterion or the front
# Sets and data
#     Roots ``r``, each with at most ``K`` counts ``n`` in the box ``1 .. most_r``. An oracle ``t(r, n) >= 0``, infinite
#     where nothing is possible, that never grows with a count; a call at ``n`` returns ``b <= t(r, n) <= v`` and counts
#     ``u <= n`` that reach ``v``, too. Criteria ``c_1 .. c_m (r, n, t) >= 0`` that fall neither with a count nor with
#     ``t``. Limits on all of them; a condition on ``(r, n)``.
# Variables
#     ``r`` and ``n``.
# Objective
#     :func:`best_counts`: minimise ``c_1(r, n, t(r, n))``. :func:`best_trade_offs`: all pairs ``(c_1, c_2)`` that no
#     other one dominates.
# Constraints
#     ``c_j(r, n, t(r, n)) <= limit_j`` for every ``j``, and the condition.
# Bound of a box ``[low, high]``
#     ``c(r, low, L(high))``, where ``L(high)`` is the largest ``b`` of all calls at ``n >= high``; and the caller's
#     floor where that is higher. A box is cut where the bound breaks a limit, is no less than the incumbent, or is
#     weakly dominated by a point of the front.
# Search
#     The box comes first whose bound is least, or which could beat the front by the largest factor; roots know only
#     their floors at first. A box is tightened: slices at its ends that are cut for themselves come off. With one side
#     that makes the fewest calls that can prove an incumbent, since a call at ``high`` takes off all that it can. All
#     points of a box that one call's ``u`` and ``n`` enclose have the same ``t``, of which the least corner is the
# best.
#     Calls are made where readings so far, put together by powers of the size, let one expect the best improvement, and
#     at ``high``; a box of several sides is split instead where the call would take little off. A call may end as soon
#     as its bound cuts the whole box.
# Proves
#     The bound: nothing that was left, cut or not come to, has less. Where ``b < v``, what is between them is left: the
#     answer is then feasible, and the gap is the oracle's. The number of calls may be limited, which is repeatable;
# time
#     is a guard. Of answers that are equal in ``c_1`` the one that is found first stays, unless another one is less in
#     the next criteria.
# Complexity
#     Without a floor a proof of gap ``g`` of one root takes a call for each factor ``1 + g`` by which its counts can
#     change with ``c_1`` still near the optimum. Roots that a floor cuts take no call, those that one call cuts take
# one.

_TOLERANCE = 1e-9
_COUNT_BOXES_PROBES = 12  # of a root: calls at points that are expected to be better than the incumbent
_MANY = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A point, and a bound of each of its criteria at its counts: below ``point.criteria`` where ``t`` is not proven.

    Of a runner-up, the first one is instead a bound of all points of its root.
    """

    point: Candidate
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    tolerance: float = _TOLERANCE,
    most_calls: int = _MANY,
    told: Callable[[float, Candidate | None, int], None] | None = None,
) -> BestCounts:
    """Return the point of the least first criterion.

    Parameters
    ----------
    tolerance
        Relative gap at which the search ends.
    most_calls
        Of the oracle; a limit that is the same on every machine.
    told
        Called after every call of the oracle, with the bound, the incumbent and the number of calls so far.
    """
    aim = Least(np.asarray(question.limits, dtype=np.float64), search, tolerance)

    def tell(walk: Walk) -> None:
        if told is not None:
            told(min(walk.open_key, aim.left, aim.objective), aim.best, walk.num_calls)

    walk = Walk(question, aim, search, most_calls, _COUNT_BOXES_PROBES, tell, _ahead(question))
    walk.run()
    objective, bound = aim.objective, min(aim.left, aim.objective)
    if aim.best is None:
        status = Status.INFEASIBLE if bound == inf else Status.UNKNOWN
    else:
        status = Status.OPTIMAL if objective - bound <= tolerance * objective else Status.FEASIBLE
    others = sorted((one for one in walk.best_of.values() if one is not aim.best), key=lambda one: one.order)
    return BestCounts(
        solution=Solution(status=status, objective=objective, bound=bound, value=aim.best),
        others=tuple(
            Bounded(point=one, bounds=(min(one.criteria[0], float(walk.left_of[one.root])), *_bounds(walk, one)[1:]))
            for one in others
            if aim.best is None or one.root != aim.best.root
        ),
        num_calls=walk.num_calls,
        num_boxes=walk.num_boxes,
    )


def best_trade_offs(
    question: Question,
    search: Search,
    *,
    tolerance: float = _TOLERANCE,
    most_calls: int = _MANY,
    told: Callable[[int, int], None] | None = None,
) -> TradeOffs:
    """Return all points that nobody beats in the first two criteria.

    Parameters
    ----------
    tolerance
        Factor, less 1, by which a pair must beat all others to be looked for.
    told
        Called after every call of the oracle, with the numbers of points on the front and of calls so far.
    """
    aim = Front(np.asarray(question.limits, dtype=np.float64), search, tolerance)

    def tell(walk: Walk) -> None:
        if told is not None:
            told(len(aim.archive), walk.num_calls)

    walk = Walk(question, aim, search, most_calls, _MANY, tell, _ahead(question))
    walk.run()
    left = aim.left
    gap = aim.factor - 1 if aim.archive else inf
    if aim.archive:
        status = Status.OPTIMAL if aim.factor <= 1 + tolerance else Status.FEASIBLE
    else:
        status = Status.UNKNOWN if len(left) else Status.INFEASIBLE
    return TradeOffs(
        status=status,
        points=tuple(Bounded(point=one, bounds=_bounds(walk, one)) for one in aim.archive),
        gap=gap,
        left=tuple((float(first), float(second)) for first, second in left),
        num_calls=walk.num_calls,
        num_boxes=walk.num_boxes,
    )


def _ahead(question: Question) -> Ahead | None:
    """Return who looks ahead, where anybody may begin calls before they are due."""
    return None if question.known is None else Ahead(question.known)


def _bounds(walk: Walk, point: Candidate) -> tuple[float, ...]:
    """Return what each criterion of a point is at least, at its counts."""
    counts: Ints = np.zeros((1, walk.question.most.shape[1]), dtype=np.int64)
    counts[0, : len(point.counts)] = point.counts
    seconds = walk.readings[point.root].least(counts)
    found = np.asarray(walk.question.criteria(np.array([point.root]), counts, seconds))[0]
    return tuple(float(min(one, value)) for one, value in zip(found, point.criteria, strict=True))
