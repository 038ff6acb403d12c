"""The grid of the family ``hybrid``: values of every decision, pins and limits, in levels from coarse to fine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import isqrt
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.configuration import ORDER_NAMES, PINS, RECOMPUTE_NAMES, SCHEDULE_NAMES
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.rules import LayoutRule, launch_rules, rules_of, unlike_rules
from planner.models.layouts import Ints, Schedule
from planner.models.transformer_programs import PROGRAMS
from planner.problem import Problem, Range
from planner.solvers.grid import Axis, Columns, Grid, Level, Rule
from planner.transformer import Transformer

__all__ = ["COARSE", "LEVELS", "Space"]

COARSE = ("tensor", "context", "pipeline", "data", "expert")
LEVELS = (  # the second has no decision but a bound: whether anything fits
    (*COARSE, "microbatch"),
    (),
    ("is_sequence_parallel", "order"),
    ("schedule", "interleave"),
    ("recompute", "zero", "is_offloaded"),
    ("overlaps_data", "overlaps_tensor"),
)

# Of a batch of very many divisors the micro-batch is decided by itself, below the degrees, with bounds of their own.
_SPLIT_LEVELS = (COARSE, (), ("microbatch",), *LEVELS[1:])
_MOST_PAIRS = 2_000  # data degrees times micro-batches that are decided at once
_FEW_DEGREES, _FEW_SIZES = 60, 24  # of a narrow space
_AT_ONCE = 1 << 18  # numbers that are tried as divisors together

_NAMES = {"recompute": RECOMPUTE_NAMES, "order": ORDER_NAMES}
Bound = Callable[[Columns], Floats]


@dataclass(frozen=True, kw_only=True)
class Space:
    """What a question allows on the machines of one group (or on all, where they are alike)."""

    problem: Problem
    transformer: Transformer
    batch: int
    num_machines: int
    devices_per_machine: int

    @classmethod
    def of(cls, cost: HybridCost) -> "Space":
        """Return the space of a question on the machines of a cost."""
        return cls(
            problem=cost.problem,
            transformer=cost.transformer,
            batch=cost.batch,
            num_machines=cost.cluster.num_machines,
            devices_per_machine=cost.group.devices_per_machine,
        )

    @property
    def num_devices(self) -> int:
        """Devices that there are."""
        return self.num_machines * self.devices_per_machine

    @cached_property
    def layout_rules(self) -> tuple[LayoutRule, ...]:
        """What any layout must keep to."""
        return rules_of(self.transformer, self.batch)

    @cached_property
    def axes(self) -> Mapping[str, Axis]:
        """Every decision and its values, pins taken into account."""
        values = self._values()
        for key, name in PINS.items():
            if (pinned := self.problem.fixed.get(key)) is not None:
                code = _NAMES[name].index(pinned) if name in _NAMES else int(pinned)
                values[name] = [code] if name not in _NUMBERS else [one for one in [code] if one >= 1]
            out = {_NAMES[name].index(one) if name in _NAMES else int(one) for one in self._excluded(key)}
            values[name] = [one for one in values[name] if one not in out]
        if self._pinned_schedule == "interleaved":
            values["interleave"] = [one for one in values["interleave"] if one > 1]
        if "interleaved" in self._excluded("schedule"):
            values["interleave"] = [one for one in values["interleave"] if one == 1]
        if "gpipe" in self._excluded("schedule"):
            values["schedule"] = [one for one in values["schedule"] if one != Schedule.GPIPE]
        return {name: Axis(name=name, values=tuple(listed)) for name, listed in values.items()}

    def _excluded(self, key: str) -> tuple[Any, ...]:
        """Return the values that a decision must not take."""
        return self.problem.excluded.get(key, ())

    @property
    def _pinned_schedule(self) -> str | None:
        """The schedule that is pinned; ``interleaved`` is 1F1B with chunks."""
        schedule: str | None = self.problem.fixed.get("schedule")
        return schedule

    def _values(self) -> dict[str, list[int]]:
        """Return the values of every decision, rules on it alone applied."""
        network, most = self.transformer, self.num_devices
        has = PROGRAMS[self.problem.calibration.program].has
        layers, experts = network.num_layers, network.experts
        pinned = self._pinned_schedule
        schedules = [Schedule.ONE_F_ONE_B, Schedule.GPIPE] if pinned is None else [_schedule(pinned)]
        if self.problem.fixed.get("zero_bubble"):
            schedules = [Schedule.ZERO_BUBBLE] if pinned is None else []
        return {
            "tensor": self._kept("tensor", _divisors(network.num_heads, most)),
            "context": self._kept("context", _divisors(network.sequence_length, most)),
            "pipeline": self._kept("pipeline", range(1, min(layers, most) + 1)),
            "data": _divisors(self.batch, most),
            "expert": [1] if experts is None else _divisors(experts.num_experts, most),
            "microbatch": _divisors(self.batch, self.batch),
            "recompute": list(range(len(RECOMPUTE_NAMES))),
            "zero": [0, 1, 2, 3],
            "is_sequence_parallel": [0, 1],
            "schedule": [int(one) for one in schedules],
            "interleave": [1] if pinned in ("gpipe", "1f1b") else _chunks(layers),
            "is_offloaded": [0, 1],
            **{name: [0, 1] if name in has else [0] for name in ("overlaps_data", "overlaps_tensor")},
            "order": list(range(len(ORDER_NAMES))),
        }

    def _kept(self, name: str, values: Iterable[int]) -> list[int]:
        """Return the values that keep every rule on one decision alone."""
        column = np.array(list(values), dtype=np.int64)
        for one in self.layout_rules:
            if one.names == (name,):
                column = column[one.holds({name: column})]
        found: list[int] = column.tolist()
        return found

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the grid: those of layouts, of the number of devices, and of layouts that are the same."""
        pins: list[Rule] = []
        if (number := self.problem.fixed.get("num_microbatches")) is not None:
            pins.append(
                Rule(
                    names=("data", "microbatch"),
                    holds=lambda one: one["data"] * one["microbatch"] * number == self.batch,
                )
            )
        if "1f1b" in self._excluded("schedule"):
            pins.append(
                Rule(
                    names=("schedule", "interleave"),
                    holds=lambda one: (one["schedule"] != Schedule.ONE_F_ONE_B) | (one["interleave"] > 1),
                )
            )
        unlike = [one for one in unlike_rules() if not self._is_pinned(one)]
        program = self.problem.calibration.program
        launch = () if "rank_order" in self.problem.fixed else launch_rules(program)
        return (self._device_rule(), *pins, *map(_rule, (*self.layout_rules, *unlike, *launch)))

    def _is_pinned(self, rule: LayoutRule) -> bool:
        """Whether the last decision of a rule is pinned, or has excluded values: both hold even without a meaning."""
        is_pinned = self._pinned_schedule is not None or self.problem.fixed.get("zero_bubble")
        is_schedule = rule.names[-1] == "schedule" and bool(is_pinned or self._excluded("schedule"))
        given = {*self.problem.fixed, *self.problem.excluded}
        return is_schedule or any(name == rule.names[-1] and key in given for key, name in PINS.items())

    def _device_rule(self) -> Rule:
        """Return the rule of how many devices and machines may be used."""
        devices, machines = self.device_limits
        most = min(self.num_devices, devices.most or self.num_devices)
        places = self.devices_per_machine
        most_machines = min(self.num_machines, machines.most or self.num_machines)

        def holds(one: Columns) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
            number = one["tensor"] * one["context"] * one["pipeline"] * one["data"]
            used = -(-number // places)
            return np.asarray(
                (number >= devices.least) & (number <= most) & (used >= machines.least) & (used <= most_machines)
            )

        return Rule(names=("tensor", "context", "pipeline", "data"), holds=holds)

    @property
    def device_limits(self) -> tuple[Range, Range]:
        """Numbers of devices and machines, pins included."""
        return self.problem.training_devices, self.problem.allowed_machines

    @cached_property
    def is_split(self) -> bool:
        """Whether the micro-batch is decided by itself."""
        return len(self.axes["data"].values) * len(self.axes["microbatch"].values) > _MOST_PAIRS

    @property
    def narrow(self) -> "Space":
        """The same with the smallest micro-batches, and data degrees evenly on a logarithmic scale."""
        found, data, sizes = replace(self), self.axes["data"].values, self.axes["microbatch"].values
        places = np.unique(np.linspace(0, len(data) - 1, _FEW_DEGREES).astype(int))
        few = {"data": tuple(data[one] for one in places), "microbatch": sizes[:_FEW_SIZES]}
        vars(found)["axes"] = {**self.axes, **{name: Axis(name=name, values=few[name]) for name in few}}
        return found

    @property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Decisions of each level."""
        return _SPLIT_LEVELS if self.is_split else LEVELS

    def grid(self, bounds: Sequence[Bound | None] | None = None) -> Grid:
        """Return the grid, with the bounds of its :attr:`levels` but the last."""
        names = self.levels
        given = [None] * (len(names) - 1) if bounds is None else bounds
        levels = [
            Level(axes=tuple(self.axes[one] for one in level), bound=bound)
            for level, bound in zip(names, [*given, None], strict=True)
        ]
        return Grid(levels=tuple(levels), rules=self.rules)

    def below(self, nodes: Columns, free: Mapping[str, Sequence[int]]) -> tuple[dict[str, Ints], Ints]:
        """Return nodes with more decisions made, in every way of some values that the rules allow; and whose they are.

        Values that the question does not allow are left out.
        """
        axes = [
            Axis(name=name, values=tuple(one for one in values if one in self.axes[name].values))
            for name, values in free.items()
        ]
        grid = Grid(levels=(Level(axes=tuple(axes)),), rules=self.rules)
        number = len(next(iter(nodes.values())))
        found = grid.expand({**nodes, "": np.arange(number, dtype=np.int64)}, 0)
        return found, found.pop("")


_NUMBERS = {"tensor", "context", "pipeline", "data", "expert", "interleave", "microbatch"}


def _rule(one: LayoutRule) -> Rule:
    """Return a rule as the solver has it."""
    return Rule(names=one.names, holds=one.holds)


def _schedule(name: str) -> Schedule:
    """Return a schedule by its name in a spec."""
    return Schedule.ONE_F_ONE_B if name == "interleaved" else Schedule(SCHEDULE_NAMES.index(name))


def _divisors(number: int, most: int) -> list[int]:
    """Return the divisors of a number up to a limit, in order."""
    return [one for one in _all_divisors(number) if one <= most]


@lru_cache(maxsize=256)
def _all_divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, in order, from its prime factors: a third of a second for 10^15."""
    found, left, low = [1], number, 2
    while low * low <= left:
        tried = np.arange(low, min(low + _AT_ONCE, isqrt(left) + 1))
        factors = tried[left % tried == 0]
        if not len(factors):
            low = int(tried[-1]) + 1
            continue
        prime, before = int(factors[0]), found
        while left % prime == 0:
            left //= prime
            before = [one * prime for one in before]
            found = found + before
        low = prime + 1
    return tuple(sorted(found if left == 1 else [*found, *(one * left for one in found)]))


def _chunks(layers: int) -> list[int]:
    """Return how many chunks a device may have: divisors of the layers, or of these and both ends."""
    return sorted({*_divisors(layers, layers), *_divisors(layers + 2, layers)})
