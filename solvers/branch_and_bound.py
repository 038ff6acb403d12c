"""Best-first branch and bound: the open boxes, what the end of a search proves, and the search over integer vectors.

A *box* is a set of solutions with a bound that none of them beats. The box of least bound is taken up first; it is
solved, dropped or replaced by smaller ones, until no open box can beat the incumbent. What is open then, or when a
limit strikes, bounds every solution. Source: A. H. Land and A. G. Doig, Econometrica 28(3), 1960, doi:10.2307/1910129;
best first: E. L. Lawler and D. E. Wood, Operations Research 14(4), 1966, doi:10.1287/opre.14.4.699.

Every search of this package keeps its open boxes in :class:`OpenBoxes` and says what it
proved by :meth:`planner.solution.Solution.proven`:

- :func:`best_vector`, below: a cost model bounds many boxes of integer vectors at once;
- :mod:`planner.solvers.counts`: one evaluation takes seconds and never grows with a count, so that the question is
  which point to evaluate next, not which box to split;
- :mod:`planner.solvers.grid`: nodes of a tree of decisions in large arrays, which workers share;
- :mod:`planner.solvers.chain`: pipelines extended stage by stage.

Integer vectors
    Sets and data: boxes ``(kind, low, high)``, all integer vectors between ``low`` and ``high``, both included; the
    kind says which of several problems the vector belongs to. Variables: the kind and the vector, and whatever a leaf,
    a box of one vector, decides besides. Objective: minimise what :class:`BoxCost` gives.

    The boxes of least bound are taken up together, as arrays. Each is first bounded more closely, then one vector of
    the most promising ones is tried, and each is split; leaves are solved. Nothing is better than the least bound of a
    box that is still open, or than the incumbent if there is none. Limits on the numbers of boxes and of solved leaves
    make the end repeatable; time is a guard.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from planner.cost import Floats
from planner.frozen import frozen
from planner.search import Search
from planner.solution import SAME, Solution, Status

B = TypeVar("B")
V = TypeVar("V")

_BOXES_PROBED = 8  # of those that are taken up together


class OpenBoxes(Generic[B]):
    """Boxes of which nothing is decided yet: least bound first, of equal ones the least rank, then the first added."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, int, int, B]] = []
        self._removed: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        return len(self._rows) - len(self._removed)

    def __iter__(self) -> Iterator[B]:
        """Yield all boxes, the first one first, the others in no useful order."""
        return (box for *_, number, box in self._rows if number not in self._removed)

    @property
    def bound(self) -> float:
        """What no solution in an open box beats; ``inf`` where none is open."""
        return self._rows[0][0] if self._rows else inf

    def add(self, bound: float, box: B, *, rank: int = 0) -> int:
        """Open a box; return its number, by which it can be removed.

        Parameters
        ----------
        bound
            What no solution in it beats, or whatever else orders boxes, least first.
        box
            Any description of it.
        rank
            Which of equal bounds comes first.
        """
        self._count += 1
        heapq.heappush(self._rows, (bound, rank, self._count, box))
        return self._count

    def pop(self) -> tuple[float, B]:
        """Take off the first box; return its bound and it."""
        bound, _, _, box = heapq.heappop(self._rows)
        self._settle()
        return bound, box

    def remove(self, number: int) -> None:
        """Take off an open box, wherever it stands.

        Parameters
        ----------
        number
            What :meth:`add` returned of it.
        """
        self._removed.add(number)
        self._settle()

    def _settle(self) -> None:
        """Drop boxes that were removed from the front."""
        while self._rows and self._removed and self._rows[0][2] in self._removed:
            self._removed.discard(heapq.heappop(self._rows)[2])

    def in_order(self) -> list[tuple[float, B]]:
        """Return all boxes with their bounds in the order in which they would be taken up."""
        return [(bound, box) for bound, _, number, box in sorted(self._rows) if number not in self._removed]

    def clear(self) -> None:
        """Close all boxes."""
        self._rows.clear()
        self._removed.clear()

    def copied(self) -> Self:
        """Return the same open boxes, which go their own way."""
        other = copy(self)
        other._rows, other._removed = list(self._rows), set(self._removed)
        return other


@frozen(kw_only=False)
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
        """Return both halves along a side.

        Parameters
        ----------
        side
            Index of the side, on which ``low < high``; None: the relatively widest.
        """
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
    """What is minimised. Bounds and objectives are in one unit; a limit is what a box must be able to beat."""

    def bounds(self, boxes: Sequence[Box], limit: float, /) -> Floats:
        """Return, for every box, what no vector in it beats; ``inf`` where none is possible, or below the limit.

        Parameters
        ----------
        boxes
            K of them, of any kinds.
        limit
            Of the objective; bounds need not be close above it.

        Returns
        -------
        Length K; 0 for a box to which the time did not come.
        """
        ...

    def close_bounds(self, boxes: Sequence[Box], bounds: Floats, limit: float, /) -> Floats:
        """Return closer bounds, at more effort.

        Parameters
        ----------
        boxes, limit
            As above.
        bounds
            What is known already; length K.
        """
        ...

    def probe(self, boxes: Sequence[Box], limit: float, /) -> Solution[V] | None:
        """Return the best of one vector of each box; None where none is found below the limit.

        Parameters
        ----------
        boxes, limit
            As above.
        """
        ...

    def solve(self, leaf: Box, bound: float, limit: float, /) -> Solution[V]:
        """Return the best of a leaf below the limit.

        Parameters
        ----------
        leaf
            A box of one vector.
        bound
            What is known of it already.
        limit
            As above.
        """
        ...


@frozen
class Effort:
    """How far a search over vectors goes.

    Attributes
    ----------
    most_boxes, most_solved
        Boxes that are bounded, and leaves that are solved, until it ends.
    at_a_time
        Boxes that are taken up together; of leaves one.
    num_best
        How many solutions are wanted, of different leaves.
    """

    most_boxes: float = 20_000
    most_solved: float = 20_000
    at_a_time: int = 256
    num_best: int = 1


@dataclass(slots=True, kw_only=True)
class BestVectors(Generic[V]):
    """The state and the outcome of :func:`best_vector`.

    Attributes
    ----------
    num_best
        How many solutions are wanted.
    best
        Objectives and values, the best ``num_best`` of them in their order.
    open
        The boxes that are left.
    left_bound
        Of leaves that were left, or solved but not proven.
    num_boxes, num_solved
        Boxes that were bounded, leaves that were solved.
    on_better
        Called with every better value.
    """

    num_best: int = 1
    on_better: Callable[[V], None] = lambda value: None
    best: list[tuple[float, V]] = field(default_factory=list)
    open: OpenBoxes[Box] = field(default_factory=OpenBoxes)
    left_bound: float = inf
    num_boxes: int = 0
    num_solved: int = 0

    @property
    def value(self) -> V | None:
        """The best value."""
        return self.best[0][1] if self.best else None

    @property
    def objective(self) -> float:
        """Of the best value; ``inf`` without one."""
        return self.best[0][0] if self.best else inf

    @property
    def bound(self) -> float:
        """What nothing beats."""
        return min(self.left_bound, self.objective, self.open.bound)

    @property
    def limit(self) -> float:
        """What a box must be able to beat."""
        return self.best[-1][0] * (1 - SAME) if len(self.best) >= self.num_best else inf

    @property
    def solution(self) -> Solution[V]:
        """The outcome as a solution."""
        return Solution.proven(self.value, objective=self.objective, bound=self.bound)

    def offer(self, solution: Solution[V] | None) -> None:
        """Take a solution over if it is among the best.

        Parameters
        ----------
        solution
            Of a box; None, or one without a value, where none was found.
        """
        if solution is None or solution.value is None:
            return
        is_better = solution.objective < self.objective
        if len(self.best) < self.num_best or solution.objective < self.best[-1][0]:
            insort(self.best, (solution.objective, solution.value), key=lambda row: row[0])
            del self.best[self.num_best :]
        if is_better:
            self.on_better(solution.value)


def best_vector(
    roots: Sequence[Box],
    cost: BoxCost[V],
    search: Search,
    *,
    split: Callable[[Sequence[Box]], Sequence[Sequence[Box]]] = _halves_of,
    effort: Effort = Effort(),  # noqa: B008  # frozen
    on_progress: Callable[[float, float], None] = lambda bound, objective: None,
    on_better: Callable[[V], None] = lambda value: None,
) -> BestVectors[V]:
    """Return the best vectors of all boxes, with a bound on what was left open.

    Parameters
    ----------
    roots
        Boxes that together hold all vectors.
    cost
        Bounds and solves them.
    search
        Ends it; an incumbent that is good enough, or a bound above the cutoff, does too.
    split
        Returns, for each of some boxes, smaller ones that together hold all that is possible of it.
    effort
        How far to go, and how many solutions are wanted.
    on_progress
        Called with the bound and the incumbent's objective; ``inf`` where there is none.
    on_better
        Called with every better value.

    Notes
    -----
    Where the time does not suffice to bound all roots, those that were stand first.
    """
    outcome: BestVectors[V] = BestVectors(num_best=effort.num_best, on_better=on_better)
    left = outcome.open

    def add(boxes: Sequence[Box], parents: Sequence[float]) -> None:
        """Bound boxes and open those that can beat the incumbent."""
        limit = outcome.limit
        outcome.num_boxes += len(boxes)
        bounds = cost.bounds(boxes, limit).tolist() if boxes else []
        for box, bound, parent in zip(boxes, bounds, parents, strict=True):
            if (closest := max(bound, parent)) < limit:
                left.add(closest, box)

    def is_over(bound: float) -> bool:
        """Whether to stop with what there is, where nothing that is open is below a bound."""
        is_enough = bool(outcome.best) and (outcome.objective <= search.good_enough or bound >= search.cutoff)
        return is_enough or search.is_over or outcome.num_solved >= effort.most_solved

    add(roots, [0.0] * len(roots))
    first = left.in_order()
    first.sort(key=lambda row: row[0] <= 0.0)  # the time did not come to these, or nothing is known of them
    outcome.offer(cost.probe([box for _, box in first[:_BOXES_PROBED]], inf))
    while len(left) and not is_over(left.bound) and outcome.num_boxes < effort.most_boxes:
        on_progress(outcome.bound, outcome.objective)
        taken: list[tuple[float, Box]] = []
        while left.bound < outcome.limit and len(taken) < effort.at_a_time:
            taken.append(left.pop())
            if taken[-1][1].is_leaf:
                break
        if not taken:
            left.clear()
            break
        bounds = np.array([bound for bound, _ in taken])
        closer = np.maximum(bounds, cost.close_bounds([box for _, box in taken], bounds, outcome.limit)).tolist()
        hopeful = [(bound, box) for bound, (_, box) in zip(closer, taken, strict=True) if bound < outcome.limit]
        wide = [row for row in hopeful if not row[1].is_leaf]
        if wide:
            promising = sorted(wide, key=lambda row: row[0])[:_BOXES_PROBED]
            outcome.offer(cost.probe([box for _, box in promising], outcome.limit))
        for bound, leaf in sorted((row for row in hopeful if row[1].is_leaf), key=lambda row: row[0]):
            if bound >= outcome.limit:
                continue
            if is_over(bound):
                outcome.left_bound = min(outcome.left_bound, bound)
                continue
            solution = cost.solve(leaf, bound, outcome.limit)
            outcome.num_solved += 1
            outcome.offer(solution)
            if solution.status is not Status.INFEASIBLE:
                outcome.left_bound = min(outcome.left_bound, solution.bound)
        parts = split([box for _, box in wide])
        parents = [bound for (bound, _), smaller in zip(wide, parts, strict=True) for _ in smaller]
        add([box for smaller in parts for box in smaller], parents)
    return outcome
