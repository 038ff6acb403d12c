"""Boxes of mixed all-reduce plans: what is tried in them, and the leaves that are solved.

The formulation stands in :mod:`planner.families.all_reduce.mixed_search`, the bounds in
:mod:`planner.families.all_reduce.mixed_bounds`. A leaf is solved over the shapes of its devices
(:mod:`planner.families.all_reduce.mixed_team`), in each over the shares that can beat the incumbent, and each of those
with the dynamic programme for fusion (:mod:`planner.solvers.shares`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost import Wait
from planner.families.all_reduce.mixed import MixedCost
from planner.families.all_reduce.mixed_bounds import MixedBounds
from planner.families.all_reduce.mixed_leaf import LeafCost
from planner.families.all_reduce.mixed_rows import batches_from, greatest
from planner.families.all_reduce.mixed_team import Shape, Team
from planner.families.answer import iterations_of
from planner.models.compression import Compression
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME, Solution, Status
from planner.solvers.boxes import Box
from planner.solvers.scalar import minimise
from planner.solvers.shares import Workers, best_shares, repaired

__all__ = ["Choice", "MixedBoxes"]

_MANY_MACHINES = 64
_STEPS = (-32, -8, -2, -1, 1, 2, 8, 32)  # machines by which plans are varied
_FILLED_WITHIN, _MOST_FILLED = (0.5, 1.05), 512  # of the time on the greatest batch: times that are tried
_KEPT_TOLERANCE = 1e-4  # relative gap at which the share kept counts as proven
_MOST_KEPT = 300  # shares kept that are tried for one leaf

_Split = tuple[Shape, tuple[int, ...]]  # a shape and its shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A solved leaf: the team, its machines and devices, the batch, the shares, and the share of gradients kept."""

    team: int
    shape: Shape
    batch: int
    shares: tuple[int, ...]
    kept: float | None = None


class MixedBoxes(MixedBounds):
    """The cost of boxes of mixed plans."""

    def __init__(self, problem: Problem, teams: Sequence[Team], search: Search) -> None:
        super().__init__(problem, teams, search)

    def probe(self, boxes: Sequence[Box], limit: float) -> Solution[Choice] | None:
        """Return the best of one plan of each box: most machines, greatest batch, shares that take equally long."""
        best: Solution[Choice] | None = None
        for box in boxes:
            leaf = self._corner(box)
            if leaf is None or (best is not None and self.search.is_over):
                continue
            found = self._try(leaf)
            if found is not None and found.objective < (limit if best is None else best.objective):
                best = found
        return best if best is None else self._filled_up(self._climbed(best))

    def _filled_up(self, start: Solution[Choice]) -> Solution[Choice]:
        """Return the plan, or a better one on the same devices and another batch, in which no device has less to do.

        Of shares that take equally long, for many times up to that of the greatest batch, those with the most samples
        a second make a batch of which every device has its whole share.
        """
        assert start.value is not None
        choice, team = start.value, self.teams[start.value.team]
        least, most = batches_from(self.problem, self.devices.most or greatest(self.devices))
        if least == most or self.per_device is not None or self.is_equal or self.search.is_over:
            return start
        cost = LeafCost(team, choice.shape, choice.kept, batch=most, has_input=True)
        end_s = start.objective / float(iterations_of(self.problem, choice.batch))
        shares = cost.most_shares(end_s * np.linspace(*_FILLED_WITHIN, _MOST_FILLED)).clip(-1, most).astype(np.int64)
        batches = shares @ cost.counts
        is_valid = (shares >= team.cost.kinds.least_shares).all(axis=1) & (batches >= least) & (batches <= most)
        if not is_valid.any():
            return start
        shares, batches = shares[is_valid], batches[is_valid]
        place = int((cost.least_times_s(shares) * iterations_of(self.problem, batches.astype(float))).argmin())
        row, batch = tuple(shares[place].tolist()), int(batches[place])
        vector = (*cost.counts.tolist(), batch, int(cost.counts.sum()))
        leaf = Box(choice.team, vector, vector)
        other = self._priced(leaf, (choice.shape, row), float(cost.times_s(shares[[place]])[0]), choice.kept)
        return other if other.objective < start.objective * (1 - SAME) else start

    def _climbed(self, start: Solution[Choice]) -> Solution[Choice]:
        """Return the best plan reached by adding or leaving out machines of one group at a time, while that helps.

        Only for clusters of many machines: of few, the search itself is as quick.
        """
        best, is_better = start, True
        while is_better and not self.search.is_over:
            is_better = False
            for leaf in self.search.watch(self._neighbours(best), every=1):
                found = self._try(leaf)
                if found is not None and found.objective < best.objective * (1 - SAME):
                    best, is_better = found, True
        return best

    def _neighbours(self, found: Solution[Choice]) -> Iterator[Box]:
        """Yield the plans with some machines more or fewer of one group, on the same batch."""
        assert found.value is not None
        shape, batch = found.value.shape, found.value.batch
        if sum(shape.machines) < _MANY_MACHINES or self.per_device is not None:
            return
        for index, group in enumerate(self.teams[found.value.team].cost.groups):
            for step in _STEPS:
                counts = list(shape.machines)
                counts[index] += step
                numbers = tuple(count * each for count, each in zip(counts, shape.devices, strict=True))
                if 1 <= counts[index] <= group.count and sum(numbers) <= batch:
                    vector = (*numbers, batch, sum(numbers))
                    yield Box(found.value.team, vector, vector)

    def _corner(self, box: Box) -> Box | None:
        """Return the leaf of a box with the most devices that the limits allow, the fastest first."""
        team, numbers = self.teams[box.kind], list(box.low[:-2])
        caps, kinds = team.caps.tolist(), team.cost.kinds
        machines = [-(-number // cap) for number, cap in zip(numbers, caps, strict=True)]
        for kind in np.argsort(kinds.forward_s + kinds.backward_s, kind="stable").tolist():
            room = box.high[-1] - sum(numbers)
            by_machines = (machines[kind] + greatest(self.machines) - sum(machines)) * caps[kind]
            most = team.at_most(kind, min(box.high[kind], numbers[kind] + max(room, 0), by_machines))
            numbers[kind] = max(numbers[kind], most or 0)
            machines[kind] = -(-numbers[kind] // caps[kind])
        number = sum(numbers)
        batch = box.high[-2] if self.per_device is None else self.per_device * number
        if number > batch or not box.low[-2] <= batch <= box.high[-2]:
            return None
        vector = (*numbers, batch, number)
        return Box(box.kind, vector, vector)

    def first(self, box: Box) -> Choice | None:
        """Return some plan of a box, without asking how its gradients are best grouped, which may take long."""
        leaf = self._corner(box)
        found = None if leaf is None else self._quick(leaf)
        if leaf is None or found is None:
            return None
        return Choice(team=leaf.kind, shape=found[0].shape, batch=leaf.low[-2], shares=found[1], kept=found[2])

    def _try(self, leaf: Box) -> Solution[Choice] | None:
        """Return a good plan of a leaf: of its shape with the fewest machines."""
        found = self._quick(leaf)
        if found is None:
            return None
        cost, shares, kept = found
        return self._priced(leaf, (cost.shape, shares), float(cost.times_s(np.array([shares]))[0]), kept)

    def _quick(self, leaf: Box) -> tuple[LeafCost, tuple[int, ...], float | None] | None:
        """Return the cost of a leaf's shape with the fewest machines, shares about as long, and the share kept."""
        team, workers, shapes = self.teams[leaf.kind], self._workers(leaf), self.shapes(leaf)
        if not shapes:
            return None
        kept = None if team.kept is None else (team.kept[0] * team.kept[1]) ** 0.5
        cost = LeafCost(team, shapes[0], kept, batch=leaf.low[-2], has_input=True)
        if self.is_equal:
            shares: tuple[int, ...] | None = self._equal(workers)
        else:
            rows = self.rows(team, [leaf])
            bound = float(self._least(team, rows, float("inf"))[0])
            if not np.isfinite(bound):
                return None
            limit_s = bound / float(self._iterations(rows)[0]) - team.least_compression_s + team.compression_s(kept)
            shares = self._within(workers, cost, limit_s)
        if shares is None or not workers.are_valid(np.array([shares])).all():
            return None
        return cost, shares, kept

    def _within(self, workers: Workers, cost: LeafCost, limit_s: float) -> tuple[int, ...] | None:
        """Return shares that end about the limit, later where the batch needs it."""
        for margin in (1e-6, 1e-2, 0.1, 1.0):
            shares = repaired(workers, cost.most_shares(np.array([limit_s * (1 + margin) + 1e-15]))[0])
            if shares is not None:
                return shares
        return None

    def _equal(self, workers: Workers) -> tuple[int, ...]:
        """Return the same share for all."""
        return (-(-workers.batch // int(workers.counts.sum())),) * len(workers.counts)

    def _workers(self, leaf: Box) -> Workers:
        """Return the devices of a leaf and the batch that they share."""
        return Workers(
            counts=np.array(leaf.low[:-2], dtype=np.int64),
            batch=leaf.low[-2],
            least=self.teams[leaf.kind].cost.kinds.least_shares,
            is_monotone=self.wait is not Wait.PAPER,
        )

    def _priced(self, leaf: Box, split: _Split, seconds: float, kept: float | None) -> Solution[Choice]:
        """Return a plan of a leaf with its objective."""
        objective = seconds * float(iterations_of(self.problem, leaf.low[-2]))
        choice = Choice(team=leaf.kind, shape=split[0], batch=leaf.low[-2], shares=split[1], kept=kept)
        return Solution(status=Status.FEASIBLE, objective=objective, bound=0.0, value=choice)

    def solve(self, leaf: Box, bound: float, limit: float) -> Solution[Choice]:
        """Return the best plan of a leaf below the limit, over shapes, shares, fusion and the gradients kept."""
        shapes = self.shapes(leaf)
        iterations = float(iterations_of(self.problem, leaf.low[-2]))
        if shapes and self.teams[leaf.kind].kept is not None:
            return self._compressed(leaf, shapes, bound / iterations, limit / iterations)
        found = self._best_split(leaf, shapes, None, limit_s=limit / iterations, bound_s=bound / iterations)
        if found.value is None:
            return Solution(status=found.status, objective=float("inf"), bound=found.bound * iterations, value=None)
        priced = self._priced(leaf, found.value, found.objective, None)
        return replace(priced, status=found.status, bound=found.bound * iterations)

    def _best_split(
        self, leaf: Box, shapes: Sequence[Shape], kept: float | None, *, limit_s: float, bound_s: float = 0.0
    ) -> Solution[_Split]:
        """Return the best shape and shares of a leaf below a limit, at a given share kept."""
        best: _Split | None = None
        least_s, open_s = limit_s, float("inf")
        for shape in shapes:
            found = self._shares(leaf, shape, kept, limit_s=least_s, bound_s=bound_s)
            if found.value is not None:
                best, least_s = (shape, found.value), found.objective
            if found.status in (Status.FEASIBLE, Status.UNKNOWN):
                open_s = min(open_s, found.bound)
        bound_s = min(least_s, open_s)
        if best is None:
            status = Status.INFEASIBLE if open_s == float("inf") else Status.UNKNOWN
            return Solution(status=status, objective=float("inf"), bound=bound_s, value=None)
        status = Status.OPTIMAL if bound_s >= least_s * (1 - SAME) else Status.FEASIBLE
        return Solution(status=status, objective=least_s, bound=bound_s, value=best)

    def _shares(
        self, leaf: Box, shape: Shape, kept: float | None, *, limit_s: float, bound_s: float
    ) -> Solution[tuple[int, ...]]:
        """Return the best shares of a shape below a limit, at a given share kept."""
        team, workers = self.teams[leaf.kind], self._workers(leaf)
        cost = LeafCost(team, shape, kept, batch=leaf.low[-2])
        if not self.is_equal:
            return best_shares(workers, cost, limit_s=limit_s, bound_s=bound_s, search=self.search)
        shares = np.array([self._equal(workers)])
        seconds = float(cost.times_s(shares)[0]) if (shares <= team.cost.kinds.most_shares).all() else float("inf")
        if not workers.are_valid(shares).all() or seconds >= limit_s:
            return Solution(status=Status.INFEASIBLE, objective=float("inf"), bound=limit_s, value=None)
        value = tuple(shares[0].tolist())
        return Solution(status=Status.OPTIMAL, objective=seconds, bound=seconds, value=value)

    def _compressed(self, leaf: Box, shapes: Sequence[Shape], bound_s: float, limit_s: float) -> Solution[Choice]:
        """Return the best share kept of a leaf, with its shares.

        Time is ``rising(kept) + compression(kept)``, as far as it is below the limit. Rising is the best time of the
        leaf without compressing: with the same shares and groups every transfer is longer the more is kept, so each
        grouping's end rises, and so does the least of them. Compressing adds to all of it; where input binds instead,
        the bound stays true, as waiting for input is then left out of it; the box's own bound,
        ``bound_s``, counts it.
        """
        team, iterations = self.teams[leaf.kind], float(iterations_of(self.problem, leaf.low[-2]))
        assert team.kept is not None
        solved: dict[float, Solution[_Split]] = {}
        seconds: dict[float, float] = {}

        def rising(kept: float) -> float:
            """Return the best time without compressing, or what would reach the limit with it if that is less."""
            own_limit_s = limit_s - team.compression_s(kept)
            if own_limit_s <= 0:
                return 0.0
            solved[kept] = self._best_split(leaf, shapes, kept, limit_s=own_limit_s)
            seconds[kept] = _monotone(seconds, kept, min(solved[kept].bound, own_limit_s))
            return seconds[kept]

        low, high = team.kept
        found = minimise(
            rising,
            team.compression_s,
            low,
            high,
            tolerance=_KEPT_TOLERANCE,
            search=self.search.part(float("inf"), good_enough=float("-inf")),  # the goal may count more
            most_evaluations=_MOST_KEPT,
        )
        least_s = max(found.bound, bound_s)
        value = None if found.value is None else solved.get(found.value)
        split = None if value is None else value.value
        if split is None or found.value is None:
            status = Status.INFEASIBLE if found.bound >= limit_s * (1 - 1e-12) else Status.UNKNOWN
            return Solution(status=status, objective=float("inf"), bound=least_s * iterations, value=None)
        cost = LeafCost(team, split[0], found.value, batch=leaf.low[-2], has_input=True)
        priced = self._priced(leaf, split, float(cost.times_s(np.array([split[1]]))[0]), found.value)
        return replace(priced, status=Status.FEASIBLE, bound=least_s * iterations)

    def configured(self, choice: Choice) -> tuple[MixedCost, Compression | None]:
        """Return the cost and the compression of a choice."""
        cost, option = self.teams[choice.team].cost_of(choice.shape), self.problem.compression
        if choice.kept is None or option is None:
            return cost, None
        return cost, Compression(removed=1 - choice.kept, scale_s=option.scale_s)


def _monotone(known: Mapping[float, float], where: float, bound: float) -> float:
    """Return a bound that fits between those to its left and right, of a function that never falls.

    A bound that a limit left low is raised to what holds to its left; one to the right that is lower came from such a
    limit, and this one is lowered to it.
    """
    left = max((value for place, value in known.items() if place <= where), default=bound)
    right = min((value for place, value in known.items() if place >= where), default=bound)
    return min(max(bound, left), right) if right >= left else left
