"""A search of a grid shared out: what one walk leaves are boxes that others take up, each with the best cost so far.

The client holds the boxes, least bound first, and the best points. It sends a piece of the first box with the cost
above which nothing counts any more; what comes back are points, and boxes that are left when a share of time was
worked. A box above the best cost is never sent. The answer is that of one walk, whoever works, in whatever order: of
each group the least (cost, place) is kept, pieces are cut only above the limit, and the limit only falls. A limit that
is stale costs work, never the answer.

What is lost with who worked on it counts with its bound, as what is not looked at when the time is over.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.crew import Crew, Lost, Origin
from planner.search import Search
from planner.solvers.grid_axes import Columns, Grid, Ints
from planner.solvers.grid_walk import Best, Box, Row, Walk

__all__ = ["Explored", "GridMaker", "Shares", "explored", "share_out"]

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
    walk: Walk, shares: Shares, origin: Origin, crew: Crew, search: Search, meanwhile: Callable[[], None]
) -> None:
    """Have a crew look at all that a walk left; its best points, counts and what is left are then the walk's.

    ``meanwhile`` is called once, when all who help have something to do.
    """
    client = _Client(walk=walk, shares=shares, origin=origin, crew=crew, search=search)
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
    crew: Crew
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
            for number, found in self.crew.poll(_POLL_S, self._at_work):
                self._take(number, found)

    def send(self) -> None:
        """Send as many pieces as are wanted."""
        room = self.crew.room()
        while room > 0 and (piece := self._piece(room)) is not None:
            arguments = (self.shares, _packed(piece), self.limit, self.crew.share_s)
            self._at_work[self.crew.submit(explored, self.origin, arguments)] = piece
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

    def _take(self, number: int, found: Explored | Lost) -> None:
        """Take in what came back of a piece."""
        piece = self._at_work.pop(number)
        if isinstance(found, Lost):
            if found.is_gone:
                self.put([piece])
                return
            self._lost.append(piece)
            self.crew.tell(f"a part of the search was lost and counts as not looked at: {found.why}")
            return
        self.walk.best.join(found.rows)
        self.walk.num_evaluated += found.num_evaluated
        self.put([_unpacked(box) for box in found.rest])

    def _alone(self) -> None:
        """Look at the first box here: nobody is left to do it."""
        _, _, box = heapq.heappop(self._heap)
        walk = self.walk
        end_s, before = time.thread_time() + self.crew.share_s, walk.num_chunks
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
