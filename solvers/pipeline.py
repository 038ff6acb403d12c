"""The best pipeline: configurations in the order of a lower bound of their makespan.

The formulation, and the proof of the bound, stand at the head of :mod:`planner.solvers.pipeline_bound`; the tables of
what may follow, at that of :mod:`planner.solvers.pipeline_tables`. Pipelines are extended stage by stage, always the
one with the least bound (A*: what its known stages take, and the least of what may follow): complete ones then come in
the order of their bounds.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solvers.pipeline_bound import Prefix, bound_s, stage_of, through
from planner.solvers.pipeline_cuts import balanced_cuts
from planner.solvers.pipeline_parts import (
    Candidate,
    Choice,
    Integers,
    PipelineCosts,
    Schedule,
    Stack,
    Stage,
    StageSeconds,
)
from planner.solvers.pipeline_tables import Tables, TablesOfOne, table_bytes

__all__ = [
    "BestFirst",
    "Candidate",
    "Choice",
    "Integers",
    "PipelineCosts",
    "Schedule",
    "Stack",
    "Stage",
    "StageSeconds",
    "Tables",
    "TablesOfOne",
    "balanced_cuts",
    "bound_s",
    "table_bytes",
]

_MOST_NODES = 400_000  # that wait to be extended, and may be added by one: half a gibibyte
_ASKED_EVERY = 4_096  # nodes that are added


@dataclass(frozen=True, slots=True)
class _Node:
    """The first stages of a configuration, and what they take; ``num_stages`` in all, or 0 where that is open.

    ``columns``: f, b and y by stage; ``sent``: cf and cb by boundary between them; ``place``: of the last stage.
    """

    num_stages: int
    stages: tuple[Stage, ...]
    used: tuple[int, ...]
    columns: tuple[tuple[float, float, float], ...] = ()
    sent: tuple[tuple[float, float], ...] = ()
    room: tuple[int, ...] = ()
    place: int = 0

    @property
    def first(self) -> int:
        """The layer that comes next."""
        return self.stages[-1].last + 1 if self.stages else 0


@dataclass(frozen=True, slots=True)
class _Next:
    """Every stage that may come next: what it takes by choice and end, and the bound with it."""

    choices: Integers
    places: Integers
    sent: Floats
    found: StageSeconds
    bounds: Floats


class BestFirst:
    """Configurations of one schedule in the order of their bounds.

    Parameters
    ----------
    numbers_of_stages
        Those that are allowed.
    allowed
        By number of devices used of each type: whether so many may be used in all; None: all may.
    cutoff
        Makespan of an answer that is known: nothing at or above it is looked at.
    is_open
        Whether the tables leave the number of stages open, see above.
    tables
        Those of these costs, if they are filled already: with the same limits, and a cutoff of no less.

    Attributes
    ----------
    is_too_large
        Whether it has ended since more configurations wait than fit in memory; the bound still holds.
    """

    def __init__(
        self,
        costs: PipelineCosts,
        schedule: Schedule,
        numbers_of_stages: Sequence[int],
        search: Search,
        *,
        allowed: NDArray[np.bool_] | None = None,
        cutoff: float = np.inf,
        is_open: bool = False,
        tables: TablesOfOne | None = None,
    ) -> None:
        self.costs, self.schedule, self.search = costs, schedule, search
        self.numbers_of_stages = frozenset(numbers_of_stages)
        self._types = np.array([one.type_index for one in costs.choices])
        self._sizes = np.array([one.num_devices for one in costs.choices])
        if tables is None:
            most, stack = 0 if is_open else max(numbers_of_stages), Stack.of(schedule, costs)
            tables = Tables(costs, stack, most, search, cutoff, allowed).of(0)
        self._tables = tables
        self.is_too_large = False
        self._heap: list[tuple[float, int, _Node]] = []
        self._count = 0
        for number in [0] if is_open else sorted(self.numbers_of_stages):
            if self._tables.is_complete:
                least_s = float(self._tables.entries[2, number, 0, 0])
                self._push(least_s, _Node(number, (), (0,) * len(costs.num_devices)), cutoff)

    @property
    def bound(self) -> float:
        """No configuration below the cutoff that has not been given is below; ``inf`` when all have been.

        0 where the limit struck before the tables were full.
        """
        if not self._tables.is_complete:
            return 0.0
        return self._heap[0][0] if self._heap else np.inf

    def next(self, cutoff: float, until: float = np.inf) -> Candidate | None:
        """Return the next configuration with a bound below ``cutoff`` and of at most ``until``.

        None where there is none, or the search is over; which of the two it was, :attr:`bound` tells. Nothing at or
        above the cutoff is kept; what lies above ``until`` is kept for later.
        """
        while self._heap and self._heap[0][0] < cutoff and self._heap[0][0] <= until and not self.search.is_over:
            if self.is_too_large:
                return None
            bound, _, node = heapq.heappop(self._heap)
            if not node.stages or node.stages[-1].last < self.costs.num_layers - 1:
                self._expand(bound, node, cutoff)
            elif node.num_stages:
                return Candidate(bound=bound, stages=node.stages)
            else:
                self._close(bound, node, cutoff)
        return None

    def dive(self, number: int) -> list[Candidate]:
        """Return the configurations that the least bound leads to, step by step, from the most promising roots.

        Nothing is taken away from what :meth:`next` gives. The bounds are those of the last step.
        """
        found = []
        for _, _, root in sorted(one for one in self._heap if not one[2].stages)[:number]:
            node, bound = root, 0.0
            while not self.search.is_over and (not node.stages or node.stages[-1].last < self.costs.num_layers - 1):
                following = self._following(node)
                if not following.bounds.size:
                    break
                row, end = (int(one) for one in np.unravel_index(following.bounds.argmin(), following.bounds.shape))
                if not following.bounds[row, end] < np.inf:
                    break
                bound, node = float(following.bounds[row, end]), self._extended(node, following, row, end)
            if node.stages and node.stages[-1].last == self.costs.num_layers - 1:  # else a limit struck on the way
                found.append(Candidate(bound=bound, stages=node.stages))
        return found

    def _push(self, bound: float, node: _Node, cutoff: float) -> None:
        """Keep a node that may still beat the best answer; first in, first out among equals."""
        if bound < cutoff:
            self._count += 1
            heapq.heappush(self._heap, (bound, self._count, node))

    def _close(self, bound: float, node: _Node, cutoff: float) -> None:
        """Bound a complete configuration again by its number of stages, now known; drop it if it does not fit."""
        n = len(node.stages)
        held = self.schedule.in_flight(np.arange(n, 0, -1)).tolist()
        if n in self.numbers_of_stages and all(one <= most for one, most in zip(held, node.room, strict=True)):
            forward_s, backward_s, flush_s = zip(*node.columns, strict=True)
            outs, backs = ([pair[way] for pair in node.sent] for way in (0, 1))
            true = bound_s(forward_s, backward_s, outs, backs, flush_s, self.schedule)
            self._push(max(bound, true), replace(node, num_stages=n), cutoff)

    def _expand(self, bound: float, node: _Node, cutoff: float) -> None:
        """Add every next stage below the cutoff; where they are too many, or the search is over, keep the node."""
        following = self._following(node)
        rows, ends = np.nonzero(following.bounds < cutoff)
        self.is_too_large = len(self._heap) + len(rows) > _MOST_NODES
        for number, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
            if self.is_too_large or (number % _ASKED_EVERY == _ASKED_EVERY - 1 and self.search.is_over):
                self._push(bound, node, cutoff)
                return
            least = max(bound, float(following.bounds[row, end]))
            self._push(least, self._extended(node, following, row, end), cutoff)

    def _extended(self, node: _Node, following: _Next, row: int, end: int) -> _Node:
        """Return a node with one stage more."""
        index, found = int(following.choices[row]), following.found
        choice, first = self.costs.choices[index], node.first
        used = list(node.used)
        used[choice.type_index] += choice.num_devices
        sent = ((float(following.sent[0, row]), float(following.sent[1, row])),) if node.stages else ()
        at = (row, end)
        column = (float(found.forward_s[at]), float(found.backward_s[at]), float(found.flush_s[at]))
        return _Node(
            node.num_stages,
            (*node.stages, Stage(first=first, last=first + end, choice=index)),
            tuple(used),
            (*node.columns, column),
            (*node.sent, *sent),
            (*node.room, int(found.most_in_flight[at])),
            int(following.places[row]),
        )

    def _following(self, node: _Node) -> _Next:
        """Return what may come next; the bound is ``inf`` where that is impossible."""
        costs, taken, first = self.costs, np.array(node.used), node.first
        choices = np.flatnonzero(self._sizes <= (np.array(costs.num_devices) - taken)[self._types])
        types, sizes = self._types[choices], self._sizes[choices]
        places = taken[types] % np.array(costs.num_places)[types]
        by_choice, by_place = choices[:, None], places[:, None]
        ends = np.arange(first + 1, costs.num_layers + 1)[None, :]
        used = [(number + np.where(types == axis, sizes, 0))[:, None] for axis, number in enumerate(node.used)]
        position = len(node.stages)
        left = np.array(node.num_stages - position - 1 if node.num_stages else 0)
        behind = self._tables.behind(left, ends, used, costs.out_s(ends - 1, by_choice, by_place))
        in_flight = self._in_flight(node, position)
        found = costs.stages(np.full_like(ends, first), ends - 1, by_choice, by_place)
        tail = stage_of(found.forward_s, found.backward_s, found.flush_s, behind, in_flight, self.schedule)
        sent = np.zeros((2, len(choices)))
        if node.stages:
            sent = costs.boundary_s(first, node.stages[-1].choice, node.place, choices, places)
        work_s = np.array([found.forward_s, found.backward_s])
        held = [int(self._in_flight(node, index)) for index in range(position)]
        prefix = Prefix(node.columns, node.sent, held)
        bounds = through(prefix, tail, work_s, sent[:, :, None], self.schedule, is_closed=node.num_stages > 0)
        if not node.stages:
            bounds = np.maximum(bounds, costs.floor_s[choices][:, None])
        least = in_flight if node.num_stages or self.schedule.is_gpipe else 1
        bounds = np.where(found.most_in_flight >= least, bounds, np.inf)
        return _Next(choices, places, sent, found, bounds)

    def _in_flight(self, node: _Node, position: int) -> Integers:
        """Return K of a stage, relaxed to m where the number of stages is open."""
        left = node.num_stages - position if node.num_stages else self.schedule.num_microbatches
        return self.schedule.in_flight(np.array(left))
