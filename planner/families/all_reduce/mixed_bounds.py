"""Bounds on boxes of mixed all-reduce plans.

A *team* is a set of groups of machines, at most so many devices of each machine, and whether gradients are compressed,
to a share kept within an interval; a vector says how many devices of each group take part, and which batch
(:mod:`planner.families.all_reduce.mixed_rows`). On a box of vectors no plan beats

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
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cluster import MachineGroup
from planner.cost import Floats, Wait
from planner.families.all_reduce.forms import Ints
from planner.families.all_reduce.mixed_rows import MixedSpace, Rows
from planner.families.all_reduce.mixed_team import Team
from planner.families.answer import iterations_of
from planner.problem import Problem
from planner.search import Search
from planner.solvers.boxes import Box
from planner.solvers.shares import finish_times_s

__all__ = ["MixedBounds"]

_CLOSER_STEPS = 7  # halvings of the closer bound
_MOST_BYTES = 2**28  # of the tables of one team's boxes: kinds x boxes x gradients, several at a time
_TABLES = 8


class MixedBounds(MixedSpace):
    """What no plan of a box beats."""

    def __init__(self, problem: Problem, teams: Sequence[Team], search: Search) -> None:
        super().__init__(problem, teams)
        self.search = search
        self.wait, self.timeout_s = problem.calibration.wait, problem.calibration.timeout_s
        self.is_equal = problem.fixed.get("batch_shares") == "equal"
        self._rates: dict[tuple[str, int, int], tuple[float, float]] = {}

    def bounds(self, boxes: Sequence[Box], limit: float) -> Floats:
        """Return, for every box, what no plan in it beats; ``inf`` where there is none below the limit."""
        return self._by_team(boxes, lambda team, rows, _: self._least(team, rows, limit))

    def close_bounds(self, boxes: Sequence[Box], bounds: Floats, limit: float) -> Floats:
        """Return closer bounds, from the dynamic programme over fusion groups."""
        return self._by_team(boxes, lambda team, rows, places: self._closer(team, rows, bounds[places], limit))

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

    def most_rows(self, team: Team) -> int:
        """Return how many boxes are bounded at a time: all that are usual, fewer of a network of very many layers."""
        kinds, gradients = len(team.cost.groups), len(team.cost.gradients.size_bytes)
        return max(1, _MOST_BYTES // (_TABLES * 8 * kinds * max(gradients, 1)))

    def _forms(self, team: Team, rows: Rows) -> tuple[Floats, Floats] | None:
        """Return start-ups and seconds a byte of the algorithms, K x F, with the fewest machines.

        None where a curve or a relaxation leaves no bound.
        """
        if self.curves or team.has_free_links:
            return None
        bandwidth, latency_s = self._inside(team, rows)
        forms = team.cost.forms_of(
            rows.machines_low,
            rows.devices_low,
            most_devices=team.most,
            inside_bytes_per_s=bandwidth,
            inside_latency_s=latency_s,
            is_even=team.is_level,
        )
        shape = rows.machines_low.shape
        startup_s = {name: np.broadcast_to(form.startup_s, shape) for name, form in forms.items()}
        per_byte_s = {name: np.broadcast_to(form.per_byte_s, shape) for name, form in forms.items()}
        if "two_level" in forms and len(forms) > 1:  # where the machines cannot all have the most devices, another one
            may_be_level = (rows.high // team.most * team.most >= rows.low).all(axis=1)
            other = next(name for name in forms if name != "two_level")
            for terms in (startup_s, per_byte_s):
                terms["two_level"] = np.where(may_be_level, terms["two_level"], terms[other])
        return np.stack(list(startup_s.values()), axis=1), np.stack(list(per_byte_s.values()), axis=1)

    def _inside(self, team: Team, rows: Rows) -> tuple[Floats, Floats]:
        """Return the greatest bandwidth and the least latency that the links inside machines can have, row by row.

        Machines of which one device would not do use theirs, and so do those of one group that has the most devices.
        """
        bandwidth, latency_s = np.array(team.cost.inside_links).T
        has_most = (team.caps == team.most) & (rows.high >= team.most)
        is_used = rows.least_each > 1
        widest = np.where(has_most, bandwidth, 0.0).max(axis=1)
        shortest_s = np.where(has_most, latency_s, np.inf).min(axis=1)
        widest = np.minimum(widest, np.where(is_used, bandwidth, np.inf).min(axis=1))
        shortest_s = np.maximum(shortest_s, np.where(is_used, latency_s, 0.0).max(axis=1))
        is_possible = has_most.any(axis=1)
        return np.where(is_possible, widest, np.inf), np.where(is_possible, shortest_s, 0.0)

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
        for kind, group in enumerate(team.cost.groups):
            keys = np.stack((rows.least_each[:, kind], rows.machines_low), axis=1)
            for row, (devices, machines) in enumerate(keys.tolist()):
                rates = self._rates_of(team, group, devices, machines)
                per_sample[row, kind], per_batch[row, kind] = rates
        return per_sample, np.zeros_like(per_batch) if team.has_free_links else per_batch

    def _rates_of(self, team: Team, group: MachineGroup, devices: int, machines: int) -> tuple[float, float]:
        """Return the seconds of input of a group for a sample of the share, and for one of the batch."""
        key = (group.name, devices, machines)
        if key not in self._rates:
            rates = team.cost.rates_of(group, devices, machines)
            self._rates[key] = rates.at(1, 0).bound_s, rates.at(0, 1).bound_s
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
        sample_s = np.maximum(kinds.forward_s + kinds.backward_s, 1e-30)
        each = 1 / np.maximum(sample_s, input_s)
        each = np.broadcast_to(each.min(axis=1)[:, None], each.shape) if self.is_equal else each
        rate = np.maximum(self._in_all(team, rows, each), 1e-30)
        after_s = np.where((input_s > sample_s).any(axis=1), 0.0, self._after_s(team, rows))
        counted = rows.batch_low if self.problem.goal.name == "iteration_time" else rows.batch_high
        bounds: Floats = iterations * (counted / rate + after_s + team.least_compression_s) * (1 - 1e-12)
        return bounds

    def _after_s(self, team: Team, rows: Rows) -> Floats:
        """Return the least seconds that a device has left after computing its share: last transfers and update."""
        kinds, tail_s = team.cost.kinds, self._tail_s(team, rows)
        if team.has_free_links or not tail_s.shape[1]:
            return np.full(len(rows.low), 0.0 if team.has_free_links else float(kinds.update_s.min()))
        ahead_s = (kinds.backward_s[:, None] - kinds.ready_s_per_sample) * kinds.most_at_a_time[:, None]
        waits_s = float(kinds.update_s.max()) + (tail_s[:, None, :] - ahead_s).max(axis=2)
        least_s: Floats = np.maximum(waits_s, kinds.update_s).min(axis=1)
        return least_s

    def _least(self, team: Team, rows: Rows, limit: float) -> Floats:
        """Return the objective that the relaxation needs, or ``inf`` where that is not below the limit."""
        most, kinds = self._shares_within(team, rows), team.cost.kinds
        extra_s, iterations = team.least_compression_s, self._iterations(rows)
        sample_s = np.maximum(kinds.forward_s + kinds.backward_s, 1e-30)
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
