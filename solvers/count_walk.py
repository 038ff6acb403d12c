"""The search of :mod:`planner.solvers.count_boxes`: boxes, best first, of which the corners are asked for."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from planner.cost import Floats
from planner.search import Search
from planner.solvers.count_ahead import Ahead
from planner.solvers.count_aims import Aim, Candidate
from planner.solvers.count_places import Box, lattice, middle, spread
from planner.solvers.count_question import Bools, Ints, Question, Reading
from planner.solvers.count_readings import Readings

__all__ = ["Walk"]

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
    _heap: list[tuple[float, int, int, Box]] = field(default_factory=list)
    _roots: list[tuple[float, int, int, Box]] = field(default_factory=list)  # those of the first ones not asked about
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

    def guess(self, box: Box, counts: Ints, reading: Reading) -> None:
        """Take a reading for the answer to a call about a point of a box that was taken up."""
        self._readings_of(box.root).add(counts, reading)
        self._push(box, self.bounds(box))

    def _unread(self) -> Box | None:
        """Return the best root of which nothing was asked, as far as it is open."""
        while self._roots:
            _, number, _, box = heapq.heappop(self._roots)
            if number not in self.readings and number not in self._taken:
                self._taken.add(number)
                return box
        return None

    def _scout(self, box: Box) -> None:
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
            self._heap.append((keys[root], root, root, Box(root, least[root], question.most[root])))
        heapq.heapify(self._heap)
        self._roots = list(self._heap)

    def bounds(self, box: Box) -> Floats:
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

    def _push(self, box: Box, bounds: Floats) -> None:
        self.num_boxes += 1
        heapq.heappush(self._heap, (float(self.aim.keys(bounds)[0]), box.root, self.num_boxes, box))

    def _leave(self, box: Box, bounds: Floats) -> None:
        """Note that boxes, of the same root, are not looked at any more; without end means that nothing is there."""
        bounds = bounds[np.isfinite(bounds).all(axis=1)]
        self.aim.leave(bounds)
        self.left_of[box.root] = min(self.left_of[box.root], float(bounds[:, 0].min(initial=inf)))

    def _leave_all(self, boxes: Sequence[Box]) -> None:
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

    def _is_left(self, box: Box, bounds: Floats) -> bool:
        """Leave a box that is cut."""
        if not self._is_cut(bounds)[0]:
            return False
        self._leave(box, bounds)
        return True

    def _is_cut(self, bounds: Floats) -> Bools:
        return ~np.isfinite(bounds).all(axis=1) | self.aim.is_cut(bounds)

    def _take_up(self, box: Box) -> None:
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

    def _settle(self, box: Box, bounds: Floats, known: Readings) -> None:
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

    def _split(self, box: Box) -> None:
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
        for part in (Box(box.root, box.least, below), Box(box.root, least[first], box.most)):
            found = self.bounds(part)
            if not self._is_left(part, found):
                self._push(part, found)

    # Tightening

    def _tightened(self, box: Box) -> Box | None:
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

    def _without_settled(self, box: Box) -> Box:
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
                slice_ = Box(box.root, corner, box.most)
                self._offer(box.root, corner, known)
                self._leave(slice_, self.bounds(slice_))
                most = box.most.copy()
                most[side] = corner[side] - 1
                return Box(box.root, box.least, most)
        return box

    def _sliced(self, box: Box) -> Box | None:
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
        return Box(box.root, new_least, new_most)

    def _places(self, box: Box) -> tuple[Ints, Ints]:
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

    def _ask(self, box: Box, counts: Ints) -> None:
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

    def _next_point(self, box: Box, known: Readings) -> Ints | None:
        """Return the point of a box that is worth a question; None: the box is better split."""
        point = self._probe(box, known)
        return self._corner(box, known) if point is None else point

    def _probe(self, box: Box, known: Readings) -> Ints | None:
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

    def _hoped(self, box: Box) -> float:
        """Return the gain, less 1, that a point of a box must promise; 0 where there is nothing to compare with."""
        most = float(self.aim.gains(self.bounds(box))[0])
        return self.aim.share * (most - 1) if self.aim.share and np.isfinite(most) else 0.0

    def _corner(self, box: Box, known: Readings) -> Ints | None:
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
