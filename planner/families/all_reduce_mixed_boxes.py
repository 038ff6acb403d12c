"""Bounds on mixed all-reduce plans: boxes of machine counts and batches, and the leaves that are solved exactly.

A *team* is a set of groups of machines, so many devices of each machine, and whether gradients are compressed, to a
share kept within an interval. A vector of :mod:`planner.solvers.boxes` holds how many machines of each group take part,
the batch, and the devices in all. The last follows from the counts; but communication depends on it more than on which
machines they are of, so that bounds are close once it is narrow, whatever the counts. On a box of vectors no plan beats

* the communication of the fewest machines and devices, since no algorithm's cost falls as machines join, with the bytes
  of the least share kept and the compression of the greatest;
* the computation of the most machines: within a time T no device of kind t takes more than ``u_t(T)`` samples
  (:meth:`planner.models.data_parallel.Kinds.most_shares_within`), and all together must take the least batch;
* that time, counted as often as an epoch has iterations of the greatest batch.

The closer bound also fuses: within T, shares are at least ``l_t(T)``, since too few samples would be missing otherwise
(:mod:`planner.solvers.shares`); if the dynamic programme with the ready times of these least shares ends after T, no
plan of the box ends within T. While the counts of each kind are open, ``l_t`` is low; but if every kind's share were
more than ``missing / N`` below ``u_t``, more than that would be missing on N devices in all: one of the kinds has at
least ``u_t - missing / N``. If the programme ends after T with the ready times of each kind alone, whichever it is, the
same follows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats, Wait
from planner.families.all_reduce_mixed import MixedCost
from planner.families.all_reduce_mixed_leaf import LeafCost, Team
from planner.families.answer import SAME, iterations_of
from planner.models.compression import Compression
from planner.problem import Problem, Range
from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers.boxes import Box
from planner.solvers.scalar import minimise
from planner.solvers.shares import Workers, best_shares, finish_times_s, repaired

__all__ = ["Choice", "MixedBoxes", "batches_from", "count_ranges"]

Ints = NDArray[np.int64]
_FIRST = 32  # how much narrower, relatively, the devices in all and the batch get before counts are split
_MANY_MACHINES = 64
_STEPS = (-32, -8, -2, -1, 1, 2, 8, 32)  # machines by which plans are varied
_CLOSER_STEPS = 7  # halvings of the closer bound
_KEPT_TOLERANCE = 1e-4  # relative gap at which the share kept counts as proven
_MOST_KEPT = 300  # shares kept that are tried for one leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A solved leaf: the team, its machines, the batch, the shares, and the share of gradients kept."""

    team: int
    machines: tuple[int, ...]
    batch: int
    shares: tuple[int, ...]
    kept: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Boxes of one team as arrays, K rows; columns are groups."""

    low: Ints
    high: Ints
    machines_low: Ints
    machines_high: Ints
    devices_low: Ints
    devices_high: Ints
    batch_low: Ints
    batch_high: Ints

    @property
    def is_possible(self) -> NDArray[np.bool_]:
        """Whether a row may hold a vector within the limits."""
        counts = (self.machines_low <= self.machines_high) & (self.devices_low <= self.devices_high)
        is_one: NDArray[np.bool_] = counts & (self.batch_low <= self.batch_high)
        return is_one


class MixedBoxes:
    """The cost of boxes of mixed plans; teams are its kinds of boxes."""

    def __init__(self, problem: Problem, teams: Sequence[Team], search: Search) -> None:
        self.problem, self.teams, self.search = problem, teams, search
        self.machines, self.devices = count_ranges(problem)
        fitted = problem.calibration
        self.curves = fitted.all_reduce_curves
        self.wait, self.timeout_s = fitted.wait, fitted.timeout_s
        self.is_equal = problem.fixed.get("batch_shares") == "equal"
        self.per_device = problem.training.batch_per_device if problem.training.fixed_batch_size is None else None

    @cached_property
    def roots(self) -> list[Box]:
        """One box of all vectors for each team."""
        boxes = []
        for index, team in enumerate(self.teams):
            counts = tuple(group.count for group in team.cost.groups)
            most = int((np.array(counts) * team.cost.devices).sum())
            low, high = batches_from(self.problem, most)
            fewest = (0 if team.has_free_links else 1,) * len(counts)
            box = self._tightened(Box(index, (*fewest, low, sum(fewest)), (*counts, high, most)))
            boxes += [] if box is None else [box]
        return boxes

    def split(self, box: Box) -> list[Box]:
        """Return the halves of a box, without what the counts and the devices in all rule out of each.

        The devices in all and the batch come first, until they are narrow.
        """
        sides = range(len(box.low))
        width = {side: (box.high[side] - box.low[side]) / max(box.high[side], 1) for side in sides}
        first = len(box.low) - 2
        side = max(sides, key=lambda one: (width[one] * (_FIRST if one >= first else 1), one))
        halves = (self._tightened(half) for half in box.halves(side))
        return [half for half in halves if half is not None]

    def _tightened(self, box: Box) -> Box | None:
        """Return a box without counts and devices that contradict each other; None where nothing is left."""
        devices = self.teams[box.kind].cost.devices.tolist()
        low, high = list(box.low[:-2]), list(box.high[:-2])
        least, most = _dot(low, devices), _dot(high, devices)
        fewest = max(box.low[-1], least, self.devices.least)
        greatest = min(box.high[-1], most, _most(self.devices), box.high[-2])
        if fewest > greatest or box.low[-2] > box.high[-2]:
            return None
        tops = [min(top, one + (greatest - least) // each) for one, top, each in zip(low, high, devices, strict=True)]
        ends = [max(one, top - (most - fewest) // each) for one, top, each in zip(low, high, devices, strict=True)]
        if any(one > top for one, top in zip(ends, tops, strict=True)):
            return None
        fewest, greatest = max(fewest, _dot(ends, devices)), min(greatest, _dot(tops, devices))
        batch = max(box.low[-2], fewest)
        if fewest > greatest or batch > box.high[-2]:
            return None
        return Box(box.kind, (*ends, batch, fewest), (*tops, box.high[-2], greatest))

    # -- bounds ------------------------------------------------------------------------------------------------------

    def bounds(self, boxes: Sequence[Box], limit: float) -> Floats:
        """Return, for every box, what no plan in it beats; ``inf`` where there is none below the limit."""
        return self._by_team(boxes, lambda team, rows, _: self._least(team, rows, limit))

    def close_bounds(self, boxes: Sequence[Box], bounds: Floats, limit: float) -> Floats:
        """Return closer bounds, from the dynamic programme over fusion groups."""
        return self._by_team(boxes, lambda team, rows, places: self._closer(team, rows, bounds[places], limit))

    def _by_team(self, boxes: Sequence[Box], function: Callable[[Team, _Rows, Ints], Floats]) -> Floats:
        """Return a function of the boxes, computed team by team."""
        results = np.full(len(boxes), np.inf)
        kinds = np.array([box.kind for box in boxes], dtype=np.int64)
        for kind in sorted(set(kinds.tolist())):
            places = np.flatnonzero(kinds == kind)
            rows = self._rows(self.teams[kind], [boxes[place] for place in places.tolist()])
            results[places] = np.where(rows.is_possible, function(self.teams[kind], rows, places), np.inf)
        return results

    def _rows(self, team: Team, boxes: Sequence[Box]) -> _Rows:
        """Return boxes as arrays, with the counts and batches that the limits leave."""
        low = np.array([box.low[:-2] for box in boxes], dtype=np.int64)
        high = np.array([box.high[:-2] for box in boxes], dtype=np.int64)
        devices = team.cost.devices
        devices_low = np.array([box.low[-1] for box in boxes], dtype=np.int64)
        devices_high = np.array([box.high[-1] for box in boxes], dtype=np.int64)
        machines_low = np.maximum(low.sum(axis=1), np.maximum(self.machines.least, -(-devices_low // devices.max())))
        machines_high = np.minimum(high.sum(axis=1), np.minimum(_most(self.machines), devices_high // devices.min()))
        devices_low = np.maximum(devices_low, machines_low * devices.min())
        batch_low = np.maximum(np.array([box.low[-2] for box in boxes], dtype=np.int64), devices_low)
        batch_high = np.array([box.high[-2] for box in boxes], dtype=np.int64)
        if self.per_device is not None:
            batch_low = np.maximum(batch_low, self.per_device * devices_low)
            batch_high = np.minimum(batch_high, self.per_device * devices_high)
        return _Rows(
            low=low,
            high=high,
            machines_low=machines_low,
            machines_high=machines_high,
            devices_low=devices_low,
            devices_high=devices_high,
            batch_low=batch_low,
            batch_high=batch_high,
        )

    def _forms(self, team: Team, rows: _Rows) -> tuple[Floats, Floats] | None:
        """Return start-ups and seconds a byte of the algorithms, K x F, with the fewest machines.

        None where a curve or a relaxation leaves no bound.
        """
        if self.curves or team.has_free_links:
            return None
        forms = list(team.cost.closed_forms(rows.machines_low, rows.devices_low).values())
        shape = rows.machines_low.shape
        startup_s = [np.broadcast_to(form.startup_s, shape) for form in forms]
        per_byte_s = [np.broadcast_to(form.per_byte_s, shape) for form in forms]
        return np.stack(startup_s, axis=1), np.stack(per_byte_s, axis=1)

    def _tail_s(self, team: Team, rows: _Rows) -> Floats:
        """Return the least seconds from each gradient's being ready to the last transfer's end; K x L.

        All gradients from one on are sent after it; however they are split, that takes no less than one transfer of all
        their bytes, since the least of affine costs is concave.
        """
        sizes = team.cost.gradients.size_bytes
        forms = self._forms(team, rows)
        if forms is None or not len(sizes):
            return np.zeros((len(rows.low), len(sizes)))
        still_bytes = np.cumsum(sizes[::-1])[::-1] * team.least_kept
        startup_s, per_byte_s = forms
        seconds = startup_s[:, :, None] + per_byte_s[:, :, None] * still_bytes
        return np.where(still_bytes > 0, seconds.min(axis=1), 0.0)

    def _shares_within(self, team: Team, rows: _Rows) -> Callable[[Floats], Floats]:
        """Return the function from times to the shares that no device can exceed within them, K to K x T.

        Times are of an iteration without the least compression.
        """
        kinds, extra_s = team.cost.kinds, team.least_compression_s
        tail_s = self._tail_s(team, rows)
        update_s = 0.0 if team.has_free_links else float(kinds.update_s.max())
        per_sample_s, per_batch_s = self._input_s(team, rows)

        def most(limit_s: Floats) -> Floats:
            shares = kinds.most_shares_within(limit_s, tail_s, update_s)
            whole_s = (limit_s + extra_s)[:, None]
            slow = per_sample_s > 0
            by_input = np.divide(
                np.broadcast_to(whole_s, shares.shape), per_sample_s, out=np.full(shares.shape, np.inf), where=slow
            )
            shares = np.minimum(shares, np.floor(by_input * (1 + 1e-12) + 1e-9))
            is_late = per_batch_s * rows.batch_low[:, None] > whole_s * (1 + 1e-12)
            shares = np.where(is_late, -1.0, shares)
            return np.broadcast_to(shares.min(axis=1)[:, None], shares.shape) if self.is_equal else shares

        return most

    def _input_s(self, team: Team, rows: _Rows) -> tuple[Floats, Floats]:
        """Return the least seconds of input of a sample of the share, and of the batch; K x T both."""
        by_number = {number: team.cost.input_rates(number) for number in set(rows.machines_low.tolist())}
        per_sample, per_batch = [], []
        for number in rows.machines_low.tolist():
            rates = by_number[number]
            per_sample.append([rate.at(1, 0).bound_s for rate in rates])
            per_batch.append([0.0 if team.has_free_links else rate.at(0, 1).bound_s for rate in rates])
        return np.array(per_sample), np.array(per_batch)

    def _capacity(self, team: Team, rows: _Rows, shares: Floats) -> Floats:
        """Return the most samples that machines within the box and the limits take, by the shares of their devices."""
        least = team.cost.kinds.least_shares
        devices = team.cost.devices
        capped = np.minimum(shares, rows.batch_high[:, None])
        base = (rows.low * devices * capped).sum(axis=1)
        rest: Ints = rows.high - rows.low
        rest_devices: Ints = rest * devices
        capped_machines: Floats = capped * devices
        by_machines = base + _filled(rest, capped_machines, rows.machines_high - rows.low.sum(axis=1))
        by_devices = base + _filled(rest_devices, capped, rows.devices_high - rows.low @ devices)
        total = np.minimum(by_machines, by_devices)
        if team.has_free_links:  # groups may stay idle
            idle: Floats = (rows.high * devices * np.maximum(capped, 0)).sum(axis=1)
            return idle
        samples: Floats = np.where((shares >= least).all(axis=1), total, -1.0)
        return samples

    def _least(self, team: Team, rows: _Rows, limit: float) -> Floats:
        """Return the objective that the relaxation needs, or ``inf`` where that is not below the limit."""
        most, kinds = self._shares_within(team, rows), team.cost.kinds
        extra_s, iterations = team.least_compression_s, self._iterations(rows)
        sample_s = np.maximum(kinds.forward_s + kinds.backward_s, 1e-30)
        low_s = rows.batch_low / (rows.high * team.cost.devices / sample_s).sum(axis=1)

        def makes(limit_s: Floats) -> NDArray[np.bool_]:
            makes_batch: NDArray[np.bool_] = self._capacity(team, rows, most(limit_s)) >= rows.batch_low
            return makes_batch

        if np.isfinite(limit):
            high_s = limit / iterations - extra_s
            is_open = makes(high_s)
        else:
            high_s = np.maximum(low_s, 1e-12)
            is_open = makes(high_s)
            for _ in range(100):
                if is_open.all():
                    break
                high_s = np.where(is_open, high_s, 2 * high_s)
                is_open = makes(high_s)
        high_s = np.maximum(high_s, low_s)
        for _ in range(22):
            middle_s = (low_s + high_s) / 2
            enough = makes(middle_s)
            low_s, high_s = np.where(enough, low_s, middle_s), np.where(enough, middle_s, high_s)
        bounds: Floats = np.where(is_open, (low_s + extra_s) * iterations, np.inf)
        return bounds

    def _closer(self, team: Team, rows: _Rows, bounds: Floats, limit: float) -> Floats:
        """Return bounds by the dynamic programme; those given where there is no limit to start from."""
        forms = self._forms(team, rows)
        sizes = team.cost.gradients.size_bytes * team.least_kept
        if forms is None or not np.isfinite(limit) or not len(sizes):
            return bounds
        most, kinds, extra_s = self._shares_within(team, rows), team.cost.kinds, team.least_compression_s
        counts_low = np.maximum(rows.low * team.cost.devices, 1)
        number, update_s = len(kinds.forward_s), float(kinds.update_s.max())
        devices_low = np.maximum(rows.devices_low, 1)[:, None]
        # A wait after the channel is free can get shorter as a gradient gets ready later: then it is left out.
        wait = Wait.NONE if self.wait is Wait.PAPER else self.wait

        def is_beyond(limit_s: Floats) -> NDArray[np.bool_]:
            """Whether nothing in the box ends within the limit."""
            shares = np.minimum(most(limit_s), rows.batch_high[:, None])
            spare = self._capacity(team, rows, shares) - rows.batch_low
            none = spare < 0
            missing = np.where(none, 0, spare)[:, None]
            all_s = ended_s(np.maximum(kinds.least_shares, shares - missing // counts_low))
            one_s = one_ended_s(np.maximum(kinds.least_shares, shares - missing // devices_low))
            beyond: NDArray[np.bool_] = none | (np.maximum(all_s, one_s) > limit_s * (1 + 1e-12))
            return beyond

        def ended_s(least: Floats) -> Floats:
            """Return the end of an iteration with such shares of all kinds."""
            ready_s = kinds.ready_s(least.astype(np.int64))
            return finish_times_s(ready_s, sizes, forms, wait=wait, timeout_s=self.timeout_s) + update_s

        def one_ended_s(least: Floats) -> Floats:
            """Return the end of an iteration with such a share of one kind, whichever ends first."""
            ready_s = kinds.ready_by_kind_s(least.astype(np.int64))
            rows_s = ready_s.reshape(-1, ready_s.shape[2])
            every = (np.repeat(forms[0], number, axis=0), np.repeat(forms[1], number, axis=0))
            finish_s = finish_times_s(rows_s, sizes, every, wait=wait, timeout_s=self.timeout_s)
            least_s: Floats = finish_s.reshape(-1, number).min(axis=1) + update_s
            return least_s

        iterations = self._iterations(rows)
        low_s, high_s = bounds / iterations - extra_s, np.full(len(bounds), limit) / iterations - extra_s
        is_closed = is_beyond(high_s)
        for _ in range(_CLOSER_STEPS):
            middle_s = (low_s + high_s) / 2
            beyond = is_beyond(middle_s)
            low_s, high_s = np.where(beyond, middle_s, low_s), np.where(beyond, high_s, middle_s)
        closer: Floats = np.where(is_closed, np.inf, (low_s + extra_s) * iterations)
        return closer

    def _iterations(self, rows: _Rows) -> Floats:
        """Return how many iterations of the greatest batch the goal counts."""
        greatest = np.maximum(rows.batch_high, 1).astype(float)
        return np.broadcast_to(np.asarray(iterations_of(self.problem, greatest), dtype=float), greatest.shape)

    # -- leaves ------------------------------------------------------------------------------------------------------

    def probe(self, boxes: Sequence[Box], limit: float) -> Solution[Choice] | None:
        """Return the best of one plan of each box: most machines, greatest batch, shares that take equally long."""
        best: Solution[Choice] | None = None
        for box in boxes:
            leaf = self._corner(box)
            if leaf is None:
                continue
            found = self._try(leaf)
            if found is not None and found.objective < (limit if best is None else best.objective):
                best = found
        return best if best is None else self._climbed(best)

    def _climbed(self, start: Solution[Choice]) -> Solution[Choice]:
        """Return the best plan reached by adding or leaving out machines of one group at a time, while that helps.

        Only for clusters of many machines: of few, the search itself is as quick.
        """
        best, is_better = start, True
        while is_better and not self.search.is_over:
            is_better = False
            for leaf in self._neighbours(best):
                found = self._try(leaf)
                if found is not None and found.objective < best.objective * (1 - SAME):
                    best, is_better = found, True
        return best

    def _neighbours(self, found: Solution[Choice]) -> Iterator[Box]:
        """Yield the plans with some machines more or fewer of one group, on the same batch."""
        assert found.value is not None
        team, machines, batch = self.teams[found.value.team], found.value.machines, found.value.batch
        if sum(machines) < _MANY_MACHINES or self.per_device is not None:
            return
        for index, group in enumerate(team.cost.groups):
            for step in _STEPS:
                counts = np.array(machines, dtype=np.int64)
                counts[index] += step
                number = int(counts @ team.cost.devices)
                if 1 <= counts[index] <= group.count and number <= batch and self.is_allowed(team, counts):
                    vector = (*counts.tolist(), batch, number)
                    yield Box(found.value.team, vector, vector)

    def _corner(self, box: Box) -> Box | None:
        """Return the leaf of a box with the most machines that the limits allow."""
        team = self.teams[box.kind]
        counts = np.array(box.low[:-2], dtype=np.int64)
        devices, kinds = team.cost.devices, team.cost.kinds
        for index in np.argsort(kinds.forward_s + kinds.backward_s, kind="stable").tolist():  # the fastest first
            room = min(
                _most(self.machines) - int(counts.sum()),
                (box.high[-1] - int(counts @ devices)) // int(devices[index]),
            )
            counts[index] = min(box.high[index], int(counts[index]) + max(room, 0))
        number = int(counts @ devices)
        batch = box.high[-2] if self.per_device is None else self.per_device * number
        if number > batch or not box.low[-2] <= batch <= box.high[-2] or not self.is_allowed(team, counts):
            return None
        vector = (*counts.tolist(), batch, number)
        return Box(box.kind, vector, vector)

    def is_allowed(self, team: Team, counts: Ints) -> bool:
        """Whether the limits, pins and curves allow so many machines of each group."""
        number = int(counts @ team.cost.devices)
        is_measured = not self.curves or number == 1 or number in self.curves
        return is_measured and int(counts.sum()) in self.machines and number in self.devices

    def _try(self, leaf: Box) -> Solution[Choice] | None:
        """Return a good plan of a leaf."""
        team, workers = self.teams[leaf.kind], self._workers(leaf)
        kept = None if team.kept is None else (team.kept[0] * team.kept[1]) ** 0.5
        cost = LeafCost(team, leaf, kept, has_input=True)
        if self.is_equal:
            shares: tuple[int, ...] | None = self._equal(workers)
        else:
            rows = self._rows(team, [leaf])
            bound = float(self._least(team, rows, float("inf"))[0])
            if not np.isfinite(bound):
                return None
            limit_s = bound / float(self._iterations(rows)[0]) - team.least_compression_s + team.compression_s(kept)
            shares = self._within(workers, cost, limit_s)
        if shares is None or not workers.are_valid(np.array([shares])).all():
            return None
        return self._priced(leaf, shares, float(cost.times_s(np.array([shares]))[0]), kept)

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
        cost = self.teams[leaf.kind].cost
        return Workers(
            counts=np.array(leaf.low[:-2], dtype=np.int64) * cost.devices,
            batch=leaf.low[-2],
            least=cost.kinds.least_shares,
            is_monotone=self.wait is not Wait.PAPER,
        )

    def _priced(self, leaf: Box, shares: tuple[int, ...], seconds: float, kept: float | None) -> Solution[Choice]:
        """Return a plan of a leaf with its objective."""
        objective = seconds * float(iterations_of(self.problem, leaf.low[-2]))
        choice = Choice(team=leaf.kind, machines=leaf.low[:-2], batch=leaf.low[-2], shares=shares, kept=kept)
        return Solution(status=Status.FEASIBLE, objective=objective, bound=0.0, value=choice)

    def solve(self, leaf: Box, bound: float, limit: float) -> Solution[Choice]:
        """Return the best plan of a leaf below the limit, over shares, fusion and the share of gradients kept."""
        team = self.teams[leaf.kind]
        nothing: Solution[Choice] = Solution(
            status=Status.INFEASIBLE, objective=float("inf"), bound=float("inf"), value=None
        )
        counts = np.array(leaf.low[:-2], dtype=np.int64)
        is_meant = self.per_device is None or leaf.low[-2] == self.per_device * int(counts @ team.cost.devices)
        if not is_meant or not self.is_allowed(team, counts):
            return nothing
        iterations = float(iterations_of(self.problem, leaf.low[-2]))
        if team.kept is not None:
            return self._compressed(leaf, bound / iterations, limit / iterations)
        found = self._shares(leaf, None, limit_s=limit / iterations, bound_s=bound / iterations)
        if found.value is None:
            return replace(nothing, status=found.status, bound=found.bound * iterations)
        priced = self._priced(leaf, found.value, found.objective, None)
        return replace(priced, status=found.status, bound=found.bound * iterations)

    def _shares(
        self, leaf: Box, kept: float | None, *, limit_s: float = float("inf"), bound_s: float = 0.0
    ) -> Solution[tuple[int, ...]]:
        """Return the best shares of a leaf at a given share kept."""
        team, workers = self.teams[leaf.kind], self._workers(leaf)
        cost = LeafCost(team, leaf, kept)
        if not self.is_equal:
            return best_shares(workers, cost, limit_s=limit_s, bound_s=bound_s, search=self.search)
        shares = np.array([self._equal(workers)])
        seconds = float(cost.times_s(shares)[0]) if (shares <= team.cost.kinds.most_shares).all() else float("inf")
        if not workers.are_valid(shares).all() or seconds >= limit_s:
            return Solution(status=Status.INFEASIBLE, objective=float("inf"), bound=limit_s, value=None)
        value = tuple(shares[0].tolist())
        return Solution(status=Status.OPTIMAL, objective=seconds, bound=seconds, value=value)

    def _compressed(self, leaf: Box, bound_s: float, limit_s: float) -> Solution[Choice]:
        """Return the best share kept of a leaf, with its shares.

        Time is ``rising(kept) + compression(kept)``, as far as it is below the limit. Rising is the best time of the
        leaf without compressing: with the same shares and groups every transfer is longer the more is kept, so each
        grouping's end rises, and so does the least of them. Compressing adds to all of it; where input binds instead,
        the bound stays true, as waiting for input is then left out of it; the box's own bound,
        ``bound_s``, counts it.
        """
        team, iterations = self.teams[leaf.kind], float(iterations_of(self.problem, leaf.low[-2]))
        assert team.kept is not None
        solved: dict[float, Solution[tuple[int, ...]]] = {}
        seconds: dict[float, float] = {}

        def rising(kept: float) -> float:
            """Return the best time without compressing, or what would reach the limit with it if that is less."""
            own_limit_s = limit_s - team.compression_s(kept)
            if own_limit_s <= 0:
                return 0.0
            solved[kept] = self._shares(leaf, kept, limit_s=own_limit_s)
            seconds[kept] = _monotone(seconds, kept, min(solved[kept].bound, own_limit_s))
            return seconds[kept]

        low, high = team.kept
        found = minimise(
            rising,
            team.compression_s,
            low,
            high,
            tolerance=_KEPT_TOLERANCE,
            search=self.search,
            most_evaluations=_MOST_KEPT,
        )
        least_s = max(found.bound, bound_s)
        value = None if found.value is None else solved.get(found.value)
        shares = None if value is None else value.value
        if shares is None or found.value is None:
            status = Status.INFEASIBLE if found.bound >= limit_s * (1 - 1e-12) else Status.UNKNOWN
            return Solution(status=status, objective=float("inf"), bound=least_s * iterations, value=None)
        cost = LeafCost(team, leaf, found.value, has_input=True)
        priced = self._priced(leaf, shares, float(cost.times_s(np.array([shares]))[0]), found.value)
        return replace(priced, status=Status.FEASIBLE, bound=least_s * iterations)

    def configured(self, choice: Choice) -> tuple[MixedCost, Compression | None]:
        """Return the cost and the compression of a choice."""
        team, option = self.teams[choice.team], self.problem.compression
        if choice.kept is None or option is None:
            return team.cost, None
        return team.cost, Compression(removed=1 - choice.kept, scale_s=option.scale_s)


def count_ranges(problem: Problem) -> tuple[Range, Range]:
    """Return how many machines and devices the limits and pins allow; a range that is empty allows none."""
    limits, fixed = problem.limits, problem.fixed
    return _pinned(limits.machines, fixed.get("num_machines")), _pinned(limits.devices, fixed.get("num_devices"))


def _pinned(allowed: Range, pinned: int | None) -> Range:
    """Return a range with a pinned number."""
    if pinned is None:
        return allowed
    return Range(least=max(allowed.least, pinned), most=pinned if allowed.most is None else min(allowed.most, pinned))


def _monotone(known: Mapping[float, float], where: float, bound: float) -> float:
    """Return a bound that fits between those to its left and right, of a function that never falls.

    A bound that a limit left low is raised to what holds to its left; one to the right that is lower came from such a
    limit, and this one is lowered to it.
    """
    left = max((value for place, value in known.items() if place <= where), default=bound)
    right = min((value for place, value in known.items() if place >= where), default=bound)
    return min(max(bound, left), right) if right >= left else left


def _dot(counts: Sequence[int], devices: Sequence[int]) -> int:
    """Return the devices of so many machines."""
    return sum(count * each for count, each in zip(counts, devices, strict=True))


def _most(allowed: Range) -> int:
    """Return the end of a range, or a number beyond all clusters."""
    return 2**40 if allowed.most is None else allowed.most


def batches_from(problem: Problem, most_devices: int) -> tuple[int, int]:
    """Return the least and greatest batch that may be planned on at most so many devices."""
    training = problem.training
    if (fixed := training.fixed_batch_size) is not None:
        return fixed, fixed
    most = training.max_global_batch_size
    if training.batch_per_device is not None:
        greatest = training.batch_per_device * most_devices
        return training.batch_per_device, greatest if most is None else min(most, greatest)
    assert most is not None  # the spec gives one of the three
    return 1, most


def _filled(room: Ints, worth: Floats, most: Ints) -> Floats:
    """Return the greatest sum of ``worth`` over at most ``most`` places, of which ``room`` have each worth; by rows."""
    order = np.argsort(-worth, axis=1, kind="stable")
    sorted_room = np.take_along_axis(np.broadcast_to(room, worth.shape), order, axis=1)
    before = np.cumsum(sorted_room, axis=1) - sorted_room
    taken = np.clip(np.maximum(most, 0)[:, None] - before, 0, sorted_room)
    total: Floats = (taken * np.take_along_axis(worth, order, axis=1)).sum(axis=1)
    return total
