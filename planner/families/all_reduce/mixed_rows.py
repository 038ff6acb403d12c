"""Boxes of mixed all-reduce plans: which vectors a question allows, and boxes of one team as arrays.

A vector of :mod:`planner.solvers.boxes` holds how many devices of each group take part, the batch, and the devices in
all. The last follows from the first; but communication depends on it more than on which machines they are of, so that
bounds are close once it is narrow, whatever the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.families.all_reduce.forms import Ints
from planner.families.all_reduce.mixed_team import Shape, Team
from planner.problem import Problem, Range
from planner.solvers.boxes import Box

__all__ = ["MixedSpace", "Rows", "batches_from", "count_ranges", "greatest"]

_FIRST = 32  # how much narrower, relatively, the devices in all and the batch get before those of groups are split


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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


class MixedSpace:
    """The vectors that a question allows; teams are the kinds of boxes."""

    def __init__(self, problem: Problem, teams: Sequence[Team]) -> None:
        self.problem, self.teams = problem, teams
        self.machines, self.devices = count_ranges(problem)
        self.curves = problem.calibration.all_reduce_curves
        self.per_device = problem.training.batch_per_device if problem.training.fixed_batch_size is None else None

    @cached_property
    def roots(self) -> list[Box]:
        """One box of all vectors for each team."""
        boxes = []
        for index, team in enumerate(self.teams):
            least = tuple(numbers[0] for numbers in team.numbers)
            most = tuple(numbers[-1] for numbers in team.numbers)
            low, high = batches_from(self.problem, sum(most))
            box = self._tightened(Box(index, (*least, low, sum(least)), (*most, high, sum(most))))
            boxes += [] if box is None else [box]
        return boxes

    def split(self, box: Box) -> list[Box]:
        """Return the halves of a box, without what the limits rule out of each.

        The devices in all and the batch come first, until they are narrow.
        """
        sides = range(len(box.low))
        width = {side: (box.high[side] - box.low[side]) / max(box.high[side], 1) for side in sides}
        first = len(box.low) - 2
        side = max(sides, key=lambda one: (width[one] * (_FIRST if one >= first else 1), one))
        halves = (self._tightened(half) for half in box.halves(side))
        return [half for half in halves if half is not None]

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
