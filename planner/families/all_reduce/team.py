"""Teams of machines, the boxes of plans on them, and what an iteration of given machines takes by the shares.

A *team* is groups of machines that take part; :class:`Space` says which vectors of their devices a question allows.

A device of a group is as good as any other of it, so that a search decides how many devices of each group take part; a
*shape* says on how many machines, and how many of each machine, they are. What an iteration costs depends on shapes by
the links inside machines, by how many machines exchange gradients, and by input that the devices of a machine share.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil

import numpy as np
from numpy.typing import NDArray

from planner.cost import Affine, Floats, TransferCost
from planner.families.all_reduce.configuration import batches_of
from planner.families.all_reduce.cost import AllReduceCost, InputRates, Ints, slowest_input
from planner.frozen import frozen
from planner.models.communication import EVEN_ALL_REDUCES, cheapest_of
from planner.models.input import stall_s
from planner.problem import Problem, Range
from planner.solvers.branch_and_bound import Box
from planner.solvers.shares import finish_times_s

_FIRST = 32  # how much narrower, relatively, the devices in all and the batch get before those of groups are split
_MOST_NUMBERS = 2**20  # in a table of gradients


@frozen(kw_only=False)
class Shape:
    """How many machines of each group take part, and how many devices of each machine."""

    machines: tuple[int, ...]
    devices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Team:
    """Groups that take part, with at most so many devices of each machine: those of ``cost``, its *caps*.

    The most of them are in use in some group. ``kept`` is the interval of the share of gradients that is sent; None:
    they are not compressed. ``has_free_links``: a relaxation, in which all-reduces cost nothing and groups may stay
    idle.
    """

    cost: AllReduceCost
    kept: tuple[float, float] | None = None
    has_free_links: bool = False

    @property
    def least_kept(self) -> float:
        """The smallest share that may be sent."""
        return 1.0 if self.kept is None else self.kept[0]

    def compression_s(self, kept: float | None) -> float:
        """Return the seconds of compressing to a share."""
        option = self.cost.problem.compression
        return 0.0 if kept is None or option is None else option.scale_s / kept**2

    @property
    def least_compression_s(self) -> float:
        """The least seconds of compressing."""
        return self.compression_s(None if self.kept is None else self.kept[1])

    @property
    def counts(self) -> Ints:
        """Machines of each kind."""
        return self.cost.counts

    @property
    def caps(self) -> Ints:
        """The most devices of a machine of each group."""
        return self.cost.devices

    @cached_property
    def most(self) -> int:
        """The most devices of any machine."""
        return int(self.caps.max())

    @cached_property
    def is_level(self) -> bool:
        """Whether all machines may have equally many devices."""
        return int(self.caps.min()) == self.most

    @cached_property
    def choices(self) -> tuple[tuple[int, ...], ...]:
        """How many devices of each machine each group may use.

        Where one is pinned, or all algorithms need it, all use equally many; where a single group can have
        the most, it does.
        """
        problem, caps = self.cost.problem, self.caps.tolist()
        allowed = [problem.fixed["algorithm"]] if "algorithm" in problem.fixed else problem.calibration.algorithms
        needs_level = set(allowed) <= EVEN_ALL_REDUCES and not problem.calibration.all_reduce_curves
        if not self.has_free_links and (needs_level or "devices_per_machine" in problem.fixed):
            return tuple((cap,) for cap in caps)
        is_only = not self.has_free_links and caps.count(self.most) == 1
        return tuple((cap,) if is_only and cap == self.most else tuple(range(1, cap + 1)) for cap in caps)

    @cached_property
    def numbers(self) -> tuple[list[int], ...]:
        """The numbers of devices of each group that some machines make, ascending."""
        idle = [0] if self.has_free_links else []
        return tuple(
            idle + sorted({number * choice for number in range(1, count + 1) for choice in choices})
            for count, choices in zip(self.counts.tolist(), self.choices, strict=True)
        )

    def at_least(self, kind: int, number: int) -> int | None:
        """Return the least possible number of devices of a group from ``number`` on; None if there is none."""
        place = bisect_left(self.numbers[kind], number)
        return self.numbers[kind][place] if place < len(self.numbers[kind]) else None

    def at_most(self, kind: int, number: int) -> int | None:
        """Return the greatest possible number of devices of a group up to ``number``; None if there is none."""
        place = bisect_right(self.numbers[kind], number)
        return self.numbers[kind][place - 1] if place else None

    def cost_of(self, shape: Shape) -> AllReduceCost:
        """Return the cost on so many devices of each machine."""
        if shape.devices not in self._costs:
            self._costs[shape.devices] = self.cost.with_devices(shape.devices)
        return self._costs[shape.devices]

    @cached_property
    def _costs(self) -> dict[tuple[int, ...], AllReduceCost]:
        """The costs that were asked for."""
        return {}

    def shapes(self, numbers: Sequence[int], machines: Range) -> list[Shape]:
        """Return the shapes of so many devices of each group, the fewest machines first.

        Those for which another has no dearer transfers and no slower input are left out: nothing gets better with them.
        """
        options = [self._options(kind, number, machines) for kind, number in enumerate(numbers)]
        shapes = [
            Shape(machines=tuple(count for count, _ in rows), devices=tuple(each for _, each in rows))
            for rows in product(*options)
        ]
        shapes = [one for one in shapes if max(one.devices) == self.most and sum(one.machines) in machines]
        shapes.sort(key=lambda one: (sum(one.machines), one.devices))
        if len(shapes) == 1:
            return shapes
        kept: list[tuple[Shape, list[TransferCost], list[InputRates]]] = []
        for shape in shapes:
            cost, num_machines = self.cost_of(shape), sum(shape.machines)
            num_devices = sum(count * each for count, each in zip(shape.machines, shape.devices, strict=True))
            transfers = list(cost.transfer_costs(num_machines, num_devices).values())
            inputs = [rate for rates in cost.input_rates(num_machines) for rate in rates]
            if not any(
                all(any(_is_below(one, other) for one in cheaper) for other in transfers)
                and all(one.is_below(other) for one, other in zip(faster, inputs, strict=True))
                for _, cheaper, faster in kept
            ):
                kept.append((shape, transfers, inputs))
        return [shape for shape, *_ in kept]

    def _options(self, kind: int, number: int, machines: Range) -> list[tuple[int, int]]:
        """Return the machines and devices of each that make a number of devices of a group, fewest machines first.

        More machines than needed are left out where they are no better whatever the other groups do: two or more
        devices use the links inside a machine alike, and fewer machines are never worse but for a limit on them.
        """
        options: list[tuple[int, int]] = []
        for each in reversed(self.choices[kind]):
            if number % each or number // each > self.counts[kind]:
                continue
            rates = self.cost.rates_of(kind, each, 1)
            is_needless = machines.least <= len(self.counts) and each > 1
            if is_needless and any(self.cost.rates_of(kind, other, 1) == rates for _, other in options):
                continue
            options.append((number // each, each))
        return options


def _is_below(one: TransferCost, other: TransferCost) -> bool:
    """Whether a cost is no dearer at any size."""
    if isinstance(one, Affine) and isinstance(other, Affine):
        return one.startup_s <= other.startup_s and one.per_byte_s <= other.per_byte_s
    return one is other or one == other


@frozen(eq=False)
class Rows:
    """Boxes of one team as arrays, K rows; columns are groups.

    ``low`` and ``high`` are devices. ``fewest`` machines hold the least of them, with at least ``least_each`` devices
    of each machine.
    """

    low: Ints
    high: Ints
    fewest: Ints
    least_each: Ints
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


class Space:
    """The vectors that a question allows; teams are the kinds of boxes.

    A vector of :mod:`planner.solvers.branch_and_bound` holds how many devices of each group take part, the batch, and
    the devices in all. The last follows from the first; but communication depends on it more than on which machines
    they are of, so that bounds are close once it is narrow, whatever the rest.
    """

    def __init__(self, problem: Problem, teams: Sequence[Team]) -> None:
        self.problem, self.teams = problem, teams
        self.machines, self.devices = count_ranges(problem)
        self.curves = problem.calibration.all_reduce_curves
        self.per_device = problem.training.batch_per_device if problem.training.fixed_batch_size is None else None

    def root_boxes(self) -> Iterator[Box]:
        """Yield boxes that together hold all vectors: of homogeneous devices every leaf, of others one for each team.

        Homogeneous devices have one share, so that few batches are worth trying on so many of them
        (:func:`planner.families.all_reduce.configuration.batches_of`), and all leaves are bounded at once.
        """
        limits = [
            (int(cost.kinds.least_shares[0]), float(cost.kinds.most_shares[0]), int(cost.most_at_a_time[0]))
            for cost in (team.cost for team in self.teams)
        ]
        for index, number in self.numbers():
            fewest, most_share, most_at_a_time = limits[index]
            for batch in batches_of(self.problem, number, most_at_a_time):
                if fewest <= ceil(batch / number) <= most_share:
                    vector = (number, batch, number)
                    yield Box(index, vector, vector)
        for index, team in enumerate(self.teams):
            if team.cost.is_homogeneous:
                continue
            least = tuple(numbers[0] for numbers in team.numbers)
            most = tuple(numbers[-1] for numbers in team.numbers)
            low, high = batches_from(self.problem, sum(most))
            box = self._tightened(Box(index, (*least, low, sum(least)), (*most, high, sum(most))))
            if box is not None:
                yield box

    def numbers(self) -> Iterator[tuple[int, int]]:
        """Yield the teams of homogeneous devices, by their index, with every number of devices within the limits."""
        for index, team in enumerate(self.teams):
            each = team.most
            for number in team.numbers[0] if team.cost.is_homogeneous else ():
                is_measured = not self.curves or number == 1 or number in self.curves
                if is_measured and number in self.devices and number // each in self.machines:
                    yield index, number

    def split(self, boxes: Sequence[Box]) -> list[list[Box]]:
        """Return the halves of each box, without what the limits rule out of them.

        The devices in all and the batch come first, until they are narrow.
        """
        parts = []
        for box in boxes:
            sides = range(len(box.low))
            width = {side: (box.high[side] - box.low[side]) / max(box.high[side], 1) for side in sides}
            first = len(box.low) - 2
            side = max(sides, key=lambda one: (width[one] * (_FIRST if one >= first else 1), one))
            halves = (self._tightened(half) for half in box.halves(side))
            parts.append([half for half in halves if half is not None])
        return parts

    def _tightened(self, box: Box) -> Box | None:
        """Return a box without numbers of devices that contradict each other; None where nothing is left."""
        team = self.teams[box.kind]
        fewest = max(box.low[-1], sum(box.low[:-2]), self.devices.least)
        most = min(box.high[-1], sum(box.high[:-2]), greatest(self.devices), box.high[-2])
        if fewest > most or box.low[-2] > box.high[-2]:
            return None
        room, need = most - sum(box.low[:-2]), sum(box.high[:-2]) - fewest
        ends, tops = [], []
        for kind, (low, high) in enumerate(zip(box.low[:-2], box.high[:-2], strict=True)):
            end, top = team.at_least(kind, max(low, high - need)), team.at_most(kind, min(high, low + room))
            if end is None or top is None or end > top:
                return None
            ends.append(end)
            tops.append(top)
        fewest, most = max(fewest, sum(ends)), min(most, sum(tops))
        batch = max(box.low[-2], fewest)
        if fewest > most or batch > box.high[-2]:
            return None
        return Box(box.kind, (*ends, batch, fewest), (*tops, box.high[-2], most))

    def rows(self, team: Team, boxes: Sequence[Box]) -> Rows:
        """Return boxes as arrays, with the counts and batches that the limits leave."""
        low = np.array([box.low[:-2] for box in boxes], dtype=np.int64)
        high = np.array([box.high[:-2] for box in boxes], dtype=np.int64)
        caps, least = team.caps, min(choices[0] for choices in team.choices)
        devices_low = np.array([box.low[-1] for box in boxes], dtype=np.int64)
        devices_high = np.array([box.high[-1] for box in boxes], dtype=np.int64)
        fewest = -(-low // caps)
        at_least = np.maximum(fewest.sum(axis=1), -(-devices_low // team.most))
        at_most = np.minimum(np.minimum(high, team.counts).sum(axis=1), devices_high // least)
        machines_low = np.maximum(at_least, self.machines.least)
        machines_high = np.minimum(at_most, greatest(self.machines))
        devices_low = np.maximum(devices_low, machines_low * least)
        batch_low = np.maximum(np.array([box.low[-2] for box in boxes], dtype=np.int64), devices_low)
        batch_high = np.array([box.high[-2] for box in boxes], dtype=np.int64)
        if self.per_device is not None:
            batch_low = np.maximum(batch_low, self.per_device * devices_low)
            batch_high = np.minimum(batch_high, self.per_device * devices_high)
        return Rows(
            low=low,
            high=high,
            fewest=fewest,
            least_each=np.maximum(-(-low // team.counts), [choices[0] for choices in team.choices]),
            machines_low=machines_low,
            machines_high=machines_high,
            devices_low=devices_low,
            devices_high=devices_high,
            batch_low=batch_low,
            batch_high=batch_high,
        )

    def shapes(self, leaf: Box) -> list[Shape]:
        """Return the shapes of a leaf that the limits, pins and curves allow; see :meth:`Team.shapes`."""
        number, team = sum(leaf.low[:-2]), self.teams[leaf.kind]
        is_measured = not self.curves or number == 1 or number in self.curves
        is_meant = self.per_device is None or leaf.low[-2] == self.per_device * number
        if not is_measured or not is_meant or number not in self.devices:
            return []
        return team.shapes(leaf.low[:-2], self.machines)


def count_ranges(problem: Problem) -> tuple[Range, Range]:
    """Return how many machines and devices limits, pins and the batch allow; a range that is empty allows none."""
    return problem.allowed_machines, problem.training_devices


def greatest(allowed: Range) -> int:
    """Return the end of a range, or a number beyond all clusters."""
    return 2**40 if allowed.most is None else allowed.most


def batches_from(problem: Problem, most_devices: int) -> tuple[int, int]:
    """Return the least and greatest batch that may be planned on at most so many devices."""
    training = problem.training
    if (fixed := training.fixed_batch_size) is not None:
        return fixed, fixed
    most = training.max_global_batch_size
    if training.batch_per_device is not None:
        batch = training.batch_per_device * most_devices
        return training.batch_per_device, batch if most is None else min(most, batch)
    assert most is not None  # the spec gives one of the three
    return 1, most


class LeafCost:
    """Seconds of an iteration of one shape by the shares, at a given share of gradients kept.

    ``batch``: the most samples of an iteration; where shares make more, some devices have one sample less.

    Without input and compression where ``has_input`` is false and gradients are compressed, see
    :meth:`planner.families.all_reduce.bounds.AllReduceBoxes.solve`; all of it otherwise.
    """

    def __init__(
        self, team: Team, shape: Shape, kept: float | None, *, batch: int, has_input: bool | None = None
    ) -> None:
        self.shape = shape
        self.cost = team.cost_of(shape)
        self.batch = batch
        self.machines = sum(shape.machines)
        self.counts = np.array(shape.machines, dtype=np.int64) * self.cost.devices
        self.kept = 1.0 if kept is None else kept
        self.has_input = kept is None if has_input is None else has_input
        self.extra_s = team.compression_s(kept) if self.has_input else 0.0
        costs = list(self.cost.transfer_costs(self.machines, int(self.counts.sum())).values())
        self.transfer: TransferCost = cheapest_of(costs)
        self.sizes = self.cost.gradients.size_bytes * self.kept
        self.is_alone = int(self.counts.sum()) == 1 or not len(self.sizes)
        self.rates = self.cost.input_rates(self.machines)
        is_affine = all(isinstance(one, Affine) for one in costs)
        still_bytes = np.cumsum(self.sizes[::-1])[::-1]
        seconds = self.transfer(still_bytes) if is_affine and len(self.sizes) else np.zeros(len(self.sizes))
        self.tail_s = np.zeros_like(self.sizes) if self.is_alone else seconds

    def most_shares(self, limit_s: Floats) -> Floats:
        """Return the shares that no device can exceed within each limit."""
        size = max(1, _MOST_NUMBERS // max(len(self.sizes), 1))  # limits at a time: each has a row of all gradients
        if len(limit_s) > size:
            parts = [self.most_shares(limit_s[first : first + size]) for first in range(0, len(limit_s), size)]
            return np.concatenate(parts)
        kinds = self.cost.kinds
        left_s = limit_s - self.extra_s
        update_s = float(kinds.update_s.max())
        shares = kinds.most_shares_within(
            left_s, np.broadcast_to(self.tail_s, (len(limit_s), len(self.tail_s))), update_s
        )
        if self.has_input:
            for index, rate in enumerate(self.rates):
                per_sample_s = slowest_input(rate, 1, 0).bound_s
                if per_sample_s > 0:
                    most = np.floor(limit_s / per_sample_s * (1 + 1e-12) + 1e-9)
                    shares[:, index] = np.minimum(shares[:, index], most)
        return shares

    def least_times_s(self, shares: Ints) -> Floats:
        """Return seconds that no grouping beats."""
        ready_s = self.cost.kinds.ready_s(shares)
        if not ready_s.shape[1]:
            return self._ended_s(shares, None)
        return self._ended_s(shares, (ready_s + self.tail_s).max(axis=1))

    def times_s(self, shares: Ints) -> Floats:
        """Return the seconds of an iteration with the best groups."""
        if self.is_alone:
            return self._ended_s(shares, None)
        ready_s = self.cost.kinds.ready_s(shares)
        fitted = self.cost.problem.calibration
        finish_s = finish_times_s(ready_s, self.sizes, self.transfer, wait=fitted.wait, timeout_s=fitted.timeout_s)
        return self._ended_s(shares, finish_s)

    def _ended_s(self, shares: Ints, finish_s: Floats | None) -> Floats:
        """Return the seconds of an iteration whose last transfer ends at ``finish_s``."""
        kinds = self.cost.kinds
        end_s: Floats = (kinds.computed_s(shares) + kinds.update_s).max(axis=1)
        if finish_s is not None:
            end_s = np.maximum(end_s, finish_s + float(kinds.update_s.max()))
        busy_s = end_s + self.extra_s
        if not self.has_input:
            return busy_s
        strategy = self.cost.strategy
        whole_s = busy_s
        totals = np.minimum(shares @ self.counts, self.batch)
        for index, rate in enumerate(self.rates):
            if slowest_input(rate, 1, 1).bound_s > 0:
                rows = zip(shares[:, index].tolist(), totals.tolist(), busy_s.tolist(), strict=True)
                own_s = [
                    busy + stall_s(slowest_input(rate, share, total), busy, strategy) for share, total, busy in rows
                ]
                whole_s = np.maximum(whole_s, own_s)
        return whole_s
