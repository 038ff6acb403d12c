"""A team: groups of machines that take part, and the ways in which given numbers of their devices stand in machines.

A device of a group is as good as any other of it, so that a search decides how many devices of each group take part; a
*shape* says on how many machines, and how many of each machine, they are. What an iteration costs depends on shapes by
the links inside machines, by how many machines exchange gradients, and by input that the devices of a machine share.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from planner.cost import Affine, TransferCost
from planner.families.all_reduce.forms import Ints
from planner.families.all_reduce.mixed import MixedCost
from planner.families.all_reduce.mixed_parts import InputRates
from planner.problem import Range

__all__ = ["Shape", "Team"]


@dataclass(frozen=True, slots=True)
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

    cost: MixedCost
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

    # -- devices and machines ----------------------------------------------------------------------------------------

    @cached_property
    def counts(self) -> Ints:
        """Machines of each group."""
        return np.array([group.count for group in self.cost.groups], dtype=np.int64)

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

        Where one is pinned, or two levels are the only algorithm, all use equally many; where a single group can have
        the most, it does.
        """
        problem, caps = self.cost.problem, self.caps.tolist()
        allowed = [problem.fixed["algorithm"]] if "algorithm" in problem.fixed else problem.calibration.algorithms
        needs_level = set(allowed) == {"two_level"} and not problem.calibration.all_reduce_curves
        if not self.has_free_links and (needs_level or "devices_per_machine" in problem.fixed):
            return tuple((cap,) for cap in caps)
        is_only = not self.has_free_links and caps.count(self.most) == 1
        return tuple((cap,) if is_only and cap == self.most else tuple(range(1, cap + 1)) for cap in caps)

    @cached_property
    def numbers(self) -> tuple[list[int], ...]:
        """The numbers of devices of each group that some machines make, ascending."""
        idle = [0] if self.has_free_links else []
        return tuple(
            idle + np.unique(np.outer(np.arange(1, count + 1), choices)).tolist()
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

    # -- shapes ------------------------------------------------------------------------------------------------------

    def cost_of(self, shape: Shape) -> MixedCost:
        """Return the cost on so many devices of each machine."""
        if shape.devices not in self._costs:
            self._costs[shape.devices] = self.cost.with_devices(shape.devices)
        return self._costs[shape.devices]

    @cached_property
    def _costs(self) -> dict[tuple[int, ...], MixedCost]:
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
        kept: list[tuple[Shape, _Means]] = []
        for shape in shapes:
            means = self._means(shape) if len(shapes) > 1 else ((), ())
            if not any(_is_no_worse(other, means) for _, other in kept):
                kept.append((shape, means))
        return [shape for shape, _ in kept]

    def _options(self, kind: int, number: int, machines: Range) -> list[tuple[int, int]]:
        """Return the machines and devices of each that make a number of devices of a group, fewest machines first.

        More machines than needed are left out where they are no better whatever the other groups do: two or more
        devices use the links inside a machine alike, and fewer machines are never worse but for a limit on them.
        """
        options: list[tuple[int, int]] = []
        group = self.cost.groups[kind]
        for each in reversed(self.choices[kind]):
            if number % each or number // each > group.count:
                continue
            rates = self.cost.rates_of(group, each, 1)
            is_needless = machines.least <= len(self.counts) and each > 1
            if is_needless and any(self.cost.rates_of(group, other, 1) == rates for _, other in options):
                continue
            options.append((number // each, each))
        return options

    def _means(self, shape: Shape) -> "_Means":
        """Return the costs of transfers, and the input of each group."""
        cost, num_machines = self.cost_of(shape), sum(shape.machines)
        num_devices = sum(count * each for count, each in zip(shape.machines, shape.devices, strict=True))
        return tuple(cost.transfer_costs(num_machines, num_devices).values()), cost.input_rates(num_machines)


_Means = tuple[tuple[TransferCost, ...], tuple[InputRates, ...]]


def _is_no_worse(one: _Means, other: _Means) -> bool:
    """Whether each transfer of another shape has one that is no dearer at any size, and no input is faster."""
    transfers = all(any(_is_below(cheap, dear) for cheap in one[0]) for dear in other[0])
    return transfers and all(
        fast.read_s <= slow.read_s
        and fast.read_of_batch_s <= slow.read_of_batch_s
        and fast.decode_s <= slow.decode_s
        and fast.copy_s <= slow.copy_s
        for fast, slow in zip(one[1], other[1], strict=True)
    )


def _is_below(one: TransferCost, other: TransferCost) -> bool:
    """Whether a cost is no dearer at any size."""
    if isinstance(one, Affine) and isinstance(other, Affine):
        return one.startup_s <= other.startup_s and one.per_byte_s <= other.per_byte_s
    return one is other or one == other
