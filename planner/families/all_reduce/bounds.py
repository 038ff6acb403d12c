"""Bounds on boxes of all-reduce plans.

A *team* is a set of groups of machines, at most so many devices of each machine, and whether gradients are compressed,
to a share kept within an interval; a vector says how many devices of each group take part, and which batch
(:mod:`planner.families.all_reduce.team`). On a box of vectors no plan beats

* the communication of the fewest machines and devices, since no algorithm's cost falls as machines join, with the
  links inside those machines that cannot do with one device, the bytes of the least share kept and the compression of
  the greatest;
* the computation of the most devices: within a time T no device of kind t takes more than ``u_t(T)`` samples
  (:meth:`planner.models.data_parallel.Kinds.most_shares_within`), and all together must take the least batch;
* the input of the fewest devices of each machine;
* that time, counted as often as an epoch has iterations of the greatest batch;
* where batches differ, the rate of the most devices, at which the samples of an epoch are computed in any batch.

The closer bound also fuses: within T, shares are at least ``l_t(T)``, since too few samples would be missing otherwise
(:mod:`planner.solvers.shares`); if the dynamic programme with the ready times of these least shares ends after T, no
plan of the box ends within T. While the counts of each kind are open, ``l_t`` is low; but if every kind's share were
more than ``missing / N`` below ``u_t``, more than that would be missing on N devices in all: one of the kinds has at
least ``u_t - missing / N``. If the programme ends after T with the ready times of each kind alone, whichever it is, the
same follows.

A leaf is solved over the shapes of its devices (:mod:`planner.families.all_reduce.team`), in each over the shares that
can beat the incumbent, and each of those with the dynamic programme for fusion (:mod:`planner.solvers.shares`). The
formulation stands in :mod:`planner.families.all_reduce.search`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, product
from math import ceil

import numpy as np
from numpy.typing import NDArray

from planner.channel import Ends
from planner.cost import Affine, Floats, Wait
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.cost import AllReduceCost, InputRates, Ints, slowest_input
from planner.families.all_reduce.fusion import Exchange, ends_in_time, exchange_of
from planner.families.all_reduce.team import LeafCost, Rows, Shape, Space, Team, batches_from, greatest
from planner.families.answer import iterations_of
from planner.frozen import frozen
from planner.models.communication import EVEN_ALL_REDUCES
from planner.models.compression import Compression
from planner.models.input import stall_s
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME, Solution, Status
from planner.solvers.branch_and_bound import Box
from planner.solvers.fusion import optimal_groups
from planner.solvers.scalar import minimise
from planner.solvers.shares import Workers, best_shares, finish_times_s, repaired

_CLOSER_STEPS = 7  # halvings of the closer bound
_MOST_BYTES = 2**28  # of the tables of one team's boxes: kinds x boxes x gradients, several at a time
_TABLES = 8
_BETWEEN = 4096  # boxes between two looks at the time
_MANY_MACHINES = 64
_STEPS = (-32, -8, -2, -1, 1, 2, 8, 32)  # machines by which plans are varied
_FILLED_WITHIN, _MOST_FILLED = (0.5, 1.05), 512  # of the time on the greatest batch: times that are tried
_KEPT_TOLERANCE = 1e-4  # relative gap at which the share kept counts as proven
_MOST_KEPT = 300  # shares kept that are tried for one leaf
# Of homogeneous devices:
_ROUGH, _FINE = 1e-3, 1e-6  # relative gaps: to tell whether compression can pay, and of the answer
_NUM_INTERVALS = 32  # of the share kept, each with its bound
_MOST_KEPT_OF_SETTING = 6_000

_Split = tuple[Shape, tuple[int, ...]]  # a shape and its shares


class Bounds(Space):
    """What no plan of a box beats."""

    def __init__(self, problem: Problem, teams: Sequence[Team], search: Search) -> None:
        super().__init__(problem, teams)
        self.search = search
        self.wait, self.timeout_s = problem.calibration.wait, problem.calibration.timeout_s
        self.is_equal = problem.fixed.get("batch_shares") == "equal"
        self._rates: dict[tuple[tuple[str, ...], int, int], tuple[InputRates, ...]] = {}

    def bounds(self, boxes: Sequence[Box], limit: float) -> Floats:
        """Return, for every box, what no plan in it beats; ``inf`` where there is none below the limit."""
        return self._by_team(
            boxes,
            lambda team, rows, _: (
                self._least_of_settings(team, rows) if team.cost.is_homogeneous else self._least(team, rows, limit)
            ),
        )

    def close_bounds(self, boxes: Sequence[Box], bounds: Floats, limit: float) -> Floats:
        """Return closer bounds, from the dynamic programme over fusion groups."""
        return self._by_team(
            boxes,
            lambda team, rows, places: (
                bounds[places] if team.cost.is_homogeneous else self._closer(team, rows, bounds[places], limit)
            ),
        )

    def _by_team(self, boxes: Sequence[Box], function: Callable[[Team, Rows, Ints], Floats]) -> Floats:
        """Return a function of the boxes, computed team by team."""
        results = np.full(len(boxes), np.inf)
        kinds = np.array([box.kind for box in boxes], dtype=np.int64)
        for kind in sorted(set(kinds.tolist())):
            team, same = self.teams[kind], np.flatnonzero(kinds == kind)
            for first in range(0, len(same), self.most_rows(team)):
                places = same[first : first + self.most_rows(team)]
                if self.search.is_late:
                    results[places] = 0.0
                    continue
                rows = self.rows(team, [boxes[place] for place in places.tolist()])
                results[places] = np.where(rows.is_possible, function(team, rows, places), np.inf)
        return results

    @cached_property
    def roots(self) -> list[Box]:
        """The boxes that the search starts from; of equally good leaves the one of fewest devices comes first."""
        roots = list(self.search.watch(self.root_boxes(), every=_BETWEEN))
        leaves = [box for box in roots if box.is_leaf]
        leaves.sort(key=lambda box: (box.low[-1], len(self.teams[box.kind].cost.machines)))
        return [*(box for box in roots if not box.is_leaf), *leaves]

    def most_rows(self, team: Team) -> int:
        """Return how many boxes are bounded at a time: all that are usual, fewer of a network of very many layers."""
        kinds, gradients = len(team.cost.names), len(team.cost.gradients.size_bytes)
        return max(1, _MOST_BYTES // (_TABLES * 8 * kinds * max(gradients, 1)))

    def _forms(self, team: Team, rows: Rows) -> tuple[Floats, Floats] | None:
        """Return start-ups and seconds a byte of the algorithms, K x F, with the fewest machines.

        None where a curve or a relaxation leaves no bound.
        """
        if self.curves or team.has_free_links:
            return None
        # The greatest bandwidth and the least latency that links inside machines can have: machines of which one device
        # would not do use theirs, and so do those of one group that has the most devices.
        inside_bytes_per_s, inside_s = np.array(team.cost.insides).T
        has_most, is_used = (team.caps == team.most) & (rows.high >= team.most), rows.least_each > 1
        is_possible = has_most.any(axis=1)
        widest = np.where(has_most, inside_bytes_per_s, 0.0).max(axis=1)
        shortest_s = np.where(has_most, inside_s, np.inf).min(axis=1)
        widest = np.minimum(widest, np.where(is_used, inside_bytes_per_s, np.inf).min(axis=1))
        shortest_s = np.maximum(shortest_s, np.where(is_used, inside_s, 0.0).max(axis=1))
        bandwidth, latency_s = np.where(is_possible, widest, np.inf), np.where(is_possible, shortest_s, 0.0)
        forms = team.cost.forms_of(
            rows.machines_low,
            rows.devices_low,
            most_devices=team.most,
            inside_bytes_per_s=bandwidth,
            inside_latency_s=latency_s,
            is_even=team.is_level,
            is_bound=True,
        )
        shape = rows.machines_low.shape
        startup_s = {name: np.broadcast_to(form.startup_s, shape) for name, form in forms.items()}
        per_byte_s = {name: np.broadcast_to(form.per_byte_s, shape) for name, form in forms.items()}
        of_any = next((name for name in forms if name not in EVEN_ALL_REDUCES), None)
        if of_any is not None:  # it stands for the others where the machines cannot all have the most devices
            may_be_level = (rows.high // team.most * team.most >= rows.low).all(axis=1)
            for terms, name in product((startup_s, per_byte_s), EVEN_ALL_REDUCES & forms.keys()):
                terms[name] = np.where(may_be_level, terms[name], terms[of_any])
        return np.stack(list(startup_s.values()), axis=1), np.stack(list(per_byte_s.values()), axis=1)

    def _tail_s(self, team: Team, rows: Rows) -> Floats:
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

    def _shares_within(self, team: Team, rows: Rows) -> Callable[[Floats], Floats]:
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

    def _input_s(self, team: Team, rows: Rows) -> tuple[Floats, Floats]:
        """Return the least seconds of input of a sample of the share, and of the batch; K x T both."""
        per_sample, per_batch = np.zeros(rows.low.shape), np.zeros(rows.low.shape)
        for kind in range(len(team.cost.names)):
            keys = np.stack((rows.least_each[:, kind], rows.machines_low), axis=1)
            for row, (devices, machines) in enumerate(keys.tolist()):
                rates = self._rates_of(team, kind, devices, machines)
                per_sample[row, kind] = slowest_input(rates, 1, 0).bound_s
                per_batch[row, kind] = slowest_input(rates, 0, 1).bound_s
        return per_sample, np.zeros_like(per_batch) if team.has_free_links else per_batch

    def _rates_of(self, team: Team, kind: int, devices: int, machines: int) -> tuple[InputRates, ...]:
        """Return the input of the groups of a kind while so many machines read."""
        groups = team.cost.device_kinds[kind].groups
        readers = machines if any(group.storage is not None for group in groups) else 1
        key = (tuple(group.name for group in groups), devices, readers)
        if key not in self._rates:
            self._rates[key] = team.cost.rates_of(kind, devices, machines)
        return self._rates[key]

    def _capacity(self, team: Team, rows: Rows, shares: Floats) -> Floats:
        """Return the most samples that devices within the box and the limits take, by their shares."""
        total = self._in_all(team, rows, np.minimum(shares, rows.batch_high[:, None]))
        if team.has_free_links:
            return total
        samples: Floats = np.where((shares >= team.cost.kinds.least_shares).all(axis=1), total, -1.0)
        return samples

    def _in_all(self, team: Team, rows: Rows, each: Floats) -> Floats:
        """Return the most that devices within the box and the limits make together, if ``each`` is of one of a kind."""
        if team.has_free_links:  # groups may stay idle
            idle: Floats = (rows.high * np.maximum(each, 0)).sum(axis=1)
            return idle
        rest: Ints = rows.high - rows.low
        total: Floats = (rows.low * each).sum(axis=1) + _filled(rest, each, rows.devices_high - rows.low.sum(axis=1))
        if self.machines.most is not None:
            of_machines: Floats = each * team.caps
            rest = -(-rows.high // team.caps) - rows.fewest
            room: Ints = rows.machines_high - rows.fewest.sum(axis=1)
            by_machines = (rows.fewest * of_machines).sum(axis=1) + _filled(rest, of_machines, room)
            total = np.minimum(total, by_machines)
        return total

    def _least_by_rate(self, team: Team, rows: Rows) -> Floats:
        """Return the objective that the devices' rate leaves for any batch of a box, however far apart these are.

        Within T, a device of kind t takes at most ``(T - o) / s_t`` samples of ``s_t`` seconds, where o is what it
        waits for after computing; so a batch B takes at least ``o + B / rate``, and an epoch of N samples
        ``N / rate + o N / B``. Input that is slower than computing may overlap with o, which is then left out.
        """
        kinds, iterations = team.cost.kinds, self._iterations(rows)
        input_s, _ = self._input_s(team, rows)
        sample_s = np.maximum(kinds.sample_s, 1e-30)
        each = 1 / np.maximum(sample_s, input_s)
        each = np.broadcast_to(each.min(axis=1)[:, None], each.shape) if self.is_equal else each
        rate = np.maximum(self._in_all(team, rows, each), 1e-30)
        # What a device has left after computing its share, at least: last transfers and update.
        tail_s, after_s = self._tail_s(team, rows), np.zeros(len(rows.low))
        if not team.has_free_links and not tail_s.shape[1]:
            after_s += float(kinds.update_s.min())
        elif not team.has_free_links:
            most = kinds.most_at_a_time
            ahead_s = (kinds.backward.least_s(most)[:, None] - kinds.ready.least_s(most)) * most[:, None]
            waits_s = float(kinds.update_s.max()) + (tail_s[:, None, :] - ahead_s).max(axis=2)
            after_s = np.maximum(waits_s, kinds.update_s).min(axis=1)
        after_s = np.where((input_s > sample_s).any(axis=1), 0.0, after_s)
        counted = rows.batch_low if self.problem.goal.name == "iteration_time" else rows.batch_high
        bounds: Floats = iterations * (counted / rate + after_s + team.least_compression_s) * (1 - 1e-12)
        return bounds

    def _least_of_settings(self, team: Team, rows: Rows) -> Floats:
        """Return the objective of leaves of homogeneous devices that no grouping beats.

        Their share is known, so that it takes one pass over the gradients, not a search for the least time; see
        :meth:`_tail_s`. Nothing is counted where the cost is a curve.
        """
        kinds, sizes = team.cost.kinds, team.cost.gradients.size_bytes
        shares = -(-rows.batch_high // rows.devices_high)[:, None]
        ready_s, computed_s = kinds.ready_s(shares), kinds.computed_s(shares)[:, 0]
        end_s, forms = computed_s, self._forms(team, rows)
        if forms is not None and len(sizes):
            still_bytes, end_s = np.cumsum(sizes[::-1])[::-1], np.full(len(shares), np.inf)
            for kept, compression_s in kept_intervals(self.problem):
                seconds = (forms[0][:, :, None] + forms[1][:, :, None] * (still_bytes * kept)).min(axis=1)
                sent_s = np.maximum(computed_s, (ready_s + np.where(still_bytes > 0, seconds, 0.0)).max(axis=1))
                end_s = np.minimum(end_s, sent_s + compression_s)
        inputs_s = np.zeros(len(shares))
        readers, owner = np.unique(rows.machines_low, return_inverse=True)
        if all(group.storage is None for group in team.cost.groups):  # then it matters to nobody how many read
            readers, owner = readers[:1], np.zeros_like(owner)
        for place, machines in enumerate(readers.tolist()):
            same = owner == place
            share, batch = shares[same, 0], rows.batch_high[same]
            for rate in self._rates_of(team, 0, team.most, machines):
                inputs_s[same] = np.maximum(inputs_s[same], rate.bounds_s(share, batch))
        bounds: Floats = np.maximum(end_s + kinds.update_s[0], inputs_s) * self._iterations(rows)
        return bounds

    def _least(self, team: Team, rows: Rows, limit: float) -> Floats:
        """Return the objective that the relaxation needs, or ``inf`` where that is not below the limit."""
        most, kinds = self._shares_within(team, rows), team.cost.kinds
        extra_s, iterations = team.least_compression_s, self._iterations(rows)
        sample_s = np.maximum(kinds.sample_s, 1e-30)
        low_s = rows.batch_low / (rows.high / sample_s).sum(axis=1)

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
        bounds: Floats = (low_s + extra_s) * iterations
        if (rows.batch_low < rows.batch_high).any():
            bounds = np.maximum(bounds, self._least_by_rate(team, rows))
        return np.where(is_open, bounds, np.inf)

    def _closer(self, team: Team, rows: Rows, bounds: Floats, limit: float) -> Floats:
        """Return bounds by the dynamic programme; those given where there is no limit to start from."""
        forms = self._forms(team, rows)
        sizes = team.cost.gradients.size_bytes * team.least_kept
        if forms is None or not np.isfinite(limit) or not len(sizes):
            return bounds
        most, kinds, extra_s = self._shares_within(team, rows), team.cost.kinds, team.least_compression_s
        counts_low = np.maximum(rows.low, 1)
        number, update_s = len(kinds.update_s), float(kinds.update_s.max())
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

    def _iterations(self, rows: Rows) -> Floats:
        """Return how many iterations of the greatest batch the goal counts."""
        greatest = np.maximum(rows.batch_high, 1).astype(float)
        return np.broadcast_to(np.asarray(iterations_of(self.problem, greatest), dtype=float), greatest.shape)


def _filled(room: Ints, worth: Floats, most: Ints) -> Floats:
    """Return the greatest sum of ``worth`` over at most ``most`` places, of which ``room`` have each worth; by rows."""
    order = np.argsort(-worth, axis=1, kind="stable")
    sorted_room = np.take_along_axis(np.broadcast_to(room, worth.shape), order, axis=1)
    before = np.cumsum(sorted_room, axis=1) - sorted_room
    taken = np.clip(np.maximum(most, 0)[:, None] - before, 0, sorted_room)
    total: Floats = (taken * np.take_along_axis(worth, order, axis=1)).sum(axis=1)
    return total


@frozen
class Choice:
    """A solved leaf: the team, its machines and devices, the batch, the shares, and the share of gradients kept.

    ``ends``: of the fused groups, where they are known.
    """

    team: int
    shape: Shape
    batch: int
    shares: tuple[int, ...]
    kept: float | None = None
    ends: Ends | None = None


class AllReduceBoxes(Bounds):
    """The cost of boxes of plans."""

    def __init__(self, problem: Problem, teams: Sequence[Team], search: Search) -> None:
        super().__init__(problem, teams, search)
        self._least_solved = float("inf")  # objective of homogeneous devices

    def probe(self, boxes: Sequence[Box], limit: float) -> Solution[Choice] | None:
        """Return the best of one plan of each box: most machines, greatest batch, shares that take equally long."""
        best: Solution[Choice] | None = None
        for box in boxes:
            if self.teams[box.kind].cost.is_homogeneous:
                continue  # a leaf, which is about to be solved
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
        for kind in np.argsort(kinds.sample_s, kind="stable").tolist():
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
            shares = None
            for margin in (1e-6, 1e-2, 0.1, 1.0):  # shares that end about the limit, later where the batch needs it
                most = cost.most_shares(np.array([limit_s * (1 + margin) + 1e-15]))[0]
                if (shares := repaired(workers, most)) is not None:
                    break
        if shares is None or not workers.are_valid(np.array([shares])).all():
            return None
        return cost, shares, kept

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
        if self.teams[leaf.kind].cost.is_homogeneous:
            return self._solve_setting(leaf, bound, limit)
        shapes = self.shapes(leaf)
        iterations = float(iterations_of(self.problem, leaf.low[-2]))
        if shapes and self.teams[leaf.kind].kept is not None:
            return self._compressed(leaf, shapes, bound / iterations, limit / iterations)
        found = self._best_split(leaf, shapes, None, limit_s=limit / iterations, bound_s=bound / iterations)
        if found.value is None:
            return Solution(status=found.status, objective=float("inf"), bound=found.bound * iterations, value=None)
        priced = self._priced(leaf, found.value, found.objective, None)
        return replace(priced, status=found.status, bound=found.bound * iterations)

    def _solve_setting(self, leaf: Box, bound: float, limit: float) -> Solution[Choice]:
        """Return the best fusion of homogeneous devices, and the best share of gradients kept, below the limit.

        What is left open has its bound: a grouping that the time did not suffice for, and shares kept.
        """
        team, (number, batch, _) = self.teams[leaf.kind], leaf.low
        cost, machines, share = team.cost, number // team.most, ceil(batch / number)
        bare = cost.configuration([machines], [share], batch)
        exchange, iterations = exchange_of(cost, bare), float(iterations_of(self.problem, batch))
        _, begin_s, last_s = cost.straggler(bare)
        inputs, update_s = cost.inputs(bare), float(cost.kinds.update_s[0])
        shape = Shape(machines=(machines,), devices=(team.most,))

        def choice(kept: float | None, exchange: Exchange | None) -> tuple[Solution[Choice], bool]:
            """Return a plan with such a share kept and its best groups, and whether these are proven to be best."""
            ends, is_best = ends_in_time(exchange, lambda: self.search.is_late)
            finish_s = 0.0 if exchange is None else exchange.finish_s(ends)
            busy_s = begin_s + max(last_s, finish_s) + update_s + team.compression_s(kept)
            seconds = busy_s + max(stall_s(read, busy_s, cost.strategy) for read in inputs)
            value = Choice(team=leaf.kind, shape=shape, batch=batch, shares=(share,), kept=kept, ends=ends)
            return Solution(status=Status.FEASIBLE, objective=seconds * iterations, bound=bound, value=value), is_best

        best, is_best = choice(None, exchange)
        if is_best:
            best = replace(best, bound=best.objective)
            limit_s, least_s = min(limit, best.objective) / iterations, self._least_solved / iterations
            kept, bound_s = self._best_kept(cost, bare, exchange, limit_s=limit_s, least_s=least_s)
            best = replace(best, bound=min(best.bound, bound_s * iterations))
            if kept is not None and exchange is not None:
                sizes = cost.gradients.size_bytes * kept
                compressed, _ = choice(kept, replace(exchange, size_bytes=sizes))
                best = replace(min(compressed, best, key=lambda one: one.objective), bound=best.bound)
        self._least_solved = min(self._least_solved, best.objective)
        return best

    def _best_kept(
        self,
        cost: AllReduceCost,
        bare: AllReduceConfiguration,
        exchange: Exchange | None,
        *,
        limit_s: float,
        least_s: float,
    ) -> tuple[float | None, float]:
        """Return the best share of gradients kept of a setting, or None if none ends an iteration before ``limit_s``.

        Compressing to a share ``x`` takes ``k / x**2`` seconds, which nothing hides, and lets every transfer carry x of
        its bytes. The end of the last transfer under the best groups never falls as x grows: with fixed groups each
        transfer takes longer and starts no earlier. Hence :func:`planner.solvers.scalar.minimise`. A share that is
        proven to end none before ``least_s``, as a better plan is known, is only roughly the best one: that it loses is
        decided by its bound, not by how long there is time to refine it.

        Returns
        -------
        The share, and a bound on the seconds of all compressed plans; ``inf`` where there are none below the limit.
        """
        option = self.problem.compression
        costs = cost.transfer_costs_of(bare).values()
        if option is None or exchange is None or not all(isinstance(one, Affine) for one in costs):
            return None, float("inf")
        _, begin_s, last_s = cost.straggler(bare)
        update_s, own = float(cost.kinds.update_s[0]), self.search.part(float("inf"), good_enough=float("-inf"))

        def rising(kept: float) -> float:
            """Return the seconds of an iteration but for compressing."""
            sizes = exchange.size_bytes * kept
            found = optimal_groups(exchange.ready_s, sizes, exchange.transfer, wait=self.wait, timeout_s=self.timeout_s)
            return begin_s + max(last_s, found.objective) + update_s

        bound_s, kept = 0.0, None
        for tolerance in (_ROUGH, _FINE):
            found = minimise(
                rising,
                lambda kept: option.scale_s / kept**2,
                1 - option.most_removed,
                1.0,
                tolerance=tolerance,
                search=own,
                most_evaluations=_MOST_KEPT_OF_SETTING,
            )
            bound_s, kept = max(bound_s, found.bound), found.value
            if bound_s >= limit_s:
                return None, float("inf")
            if bound_s >= least_s:
                break
        return kept, bound_s

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

    def configured(self, choice: Choice) -> tuple[AllReduceCost, Compression | None]:
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


def kept_intervals(problem: Problem) -> Iterator[tuple[float, float]]:
    """Yield intervals of the share kept, each as its least share and the least seconds of compressing within it.

    The first is that of no compression: all is kept, and nothing takes time.
    """
    yield 1.0, 0.0
    option = problem.compression
    if option is None:
        return
    edges = np.geomspace(1 - option.most_removed, 1.0, _NUM_INTERVALS + 1).tolist()
    edges[0] = min(edges[0], 1 - option.most_removed)
    for low, high in pairwise(edges):
        yield low, option.scale_s / max(high, 1e-300) ** 2
