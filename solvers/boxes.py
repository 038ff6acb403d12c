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
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from planner.cost import Floats
from planner.search import Search
from planner.solution import SAME, Solution, Status

__all__ = ["Box", "BoxCost", "Found", "best_vector"]

V = TypeVar("V")

_BATCH = 256  # boxes that are taken up together
_PROBES = 8  # of them, in which a vector is tried


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
    """The state and outcome of a search; ``num_solved`` leaves, ``num_boxes`` bounded."""

    value: V | None = None
    objective: float = float("inf")
    open_bound: float = float("inf")
    num_boxes: int = 0
    num_solved: int = 0
    kept: Callable[[V], None] | None = None
    _heap: list[tuple[float, int, Box]] = field(default_factory=list)

    @property
    def solution(self) -> Solution[V]:
        """The outcome as a solution."""
        bound = min(self.open_bound, self.objective)
        if self.value is None:
            status = Status.INFEASIBLE if bound == float("inf") else Status.UNKNOWN
            return Solution(status=status, objective=float("inf"), bound=bound, value=None)
        is_proven = self.objective - bound <= SAME * self.objective
        status = Status.OPTIMAL if is_proven else Status.FEASIBLE
        return Solution(status=status, objective=self.objective, bound=bound, value=self.value)

    def offer(self, solution: Solution[V] | None) -> None:
        """Take a solution over if it is better."""
        if solution is not None and solution.value is not None and solution.objective < self.objective:
            self.objective, self.value = solution.objective, solution.value
            if self.kept is not None:
                self.kept(solution.value)

    @property
    def enough(self) -> float:
        """What a box must be able to beat."""
        return self.objective * (1 - SAME) if self.value is not None else float("inf")


def best_vector(
    roots: Sequence[Box],
    cost: BoxCost[V],
    search: Search,
    *,
    split: Callable[[Box], Sequence[Box]] = Box.halves,
    most_boxes: int = 20_000,
    most_solved: int = 20_000,
    told: Callable[[float, float], None] | None = None,
    kept: Callable[[V], None] | None = None,
) -> Found[V]:
    """Return the best vector of all boxes, with a bound on what was left open.

    ``split`` returns smaller boxes that together hold all that is possible of a box. It ends after ``most_boxes`` were
    bounded, and before more than ``most_solved`` leaves are solved. ``told`` is called with bound and incumbent,
    ``kept`` with every better value. Where the time does not suffice to bound all roots, those that were stand first.
    """
    found: Found[V] = Found(kept=kept)
    _push(found, roots, cost, [0.0] * len(roots))
    first = sorted(found._heap, key=lambda one: (one[0] <= 0.0, *one[:2]))[:_PROBES]
    found.offer(cost.probe([box for *_, box in first], float("inf")))
    while found._heap:
        is_enough = found.value is not None and found.objective <= search.good_enough
        if is_enough or search.is_over or found.num_boxes >= most_boxes or found.num_solved >= most_solved:
            break
        if told is not None:
            told(min(found._heap[0][0], found.open_bound, found.objective), found.objective)
        taken = [
            heapq.heappop(found._heap) for _ in range(min(_BATCH, len(found._heap))) if found._heap[0][0] < found.enough
        ]
        if not taken:
            found._heap.clear()
            break
        _take_up(found, taken, cost, search, split, most_solved)
    left = [bound for bound, *_ in found._heap]
    found.open_bound = min([found.open_bound, *left])
    return found


def _take_up(
    found: Found[V],
    taken: Sequence[tuple[float, int, Box]],
    cost: BoxCost[V],
    search: Search,
    split: Callable[[Box], Sequence[Box]],
    most_solved: int,
) -> None:
    """Bound boxes more closely; solve the leaves among them, halve the others."""
    closed = _closer(found, taken, cost)
    wide = [(bound, box) for bound, box in closed if not box.is_leaf]
    if wide:
        promising = sorted(range(len(wide)), key=lambda index: (wide[index][0], index))[:_PROBES]
        found.offer(cost.probe([wide[index][1] for index in promising], found.enough))
    for bound, leaf in sorted(((b, box) for b, box in closed if box.is_leaf), key=lambda one: (one[0], one[1].low)):
        if bound >= found.enough:
            continue
        is_enough = found.value is not None and found.objective <= search.good_enough
        if is_enough or search.is_over or found.num_solved >= most_solved:
            found.open_bound = min(found.open_bound, bound)
            continue
        solution = cost.solve(leaf, bound, found.enough)
        found.num_solved += 1
        found.offer(solution)
        if solution.status is not Status.INFEASIBLE:
            found.open_bound = min(found.open_bound, solution.bound)
    halves = [(half, bound) for bound, box in wide for half in split(box)]
    _push(found, [half for half, _ in halves], cost, [bound for _, bound in halves])


def _closer(found: Found[V], taken: Sequence[tuple[float, int, Box]], cost: BoxCost[V]) -> list[tuple[float, Box]]:
    """Return the boxes that can still beat the incumbent, with closer bounds."""
    bounds = np.array([bound for bound, *_ in taken])
    closer = np.maximum(bounds, cost.close_bounds([box for *_, box in taken], bounds, found.enough))
    return [(bound, box) for bound, (*_, box) in zip(closer.tolist(), taken, strict=True) if bound < found.enough]


def _push(found: Found[V], boxes: Sequence[Box], cost: BoxCost[V], parents: Sequence[float]) -> None:
    """Bound boxes and add those that can beat the incumbent to the open ones."""
    if not boxes:
        return
    bounds = cost.bounds(boxes, found.enough)
    for box, bound, parent in zip(boxes, bounds.tolist(), parents, strict=True):
        closest = max(bound, parent)
        found.num_boxes += 1
        if closest < found.enough:
            heapq.heappush(found._heap, (closest, found.num_boxes, box))
