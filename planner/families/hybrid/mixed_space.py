"""The grid of layouts over a team of kinds of machines: values, pins, limits and rules, from coarse to fine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.configuration import PINS
from planner.families.hybrid.mixed_cost import MixedCost
from planner.families.hybrid.rules import LayoutRule, launch_rules, rules_of, unlike_rules
from planner.families.hybrid.space import Space
from planner.models.layouts import Bools, Ints, Schedule
from planner.models.tiers import ORDERS
from planner.problem import Problem, Range
from planner.solvers.grid import Axis, Columns, Grid, Level, Rule

__all__ = ["MixedSpace"]

Bound = Callable[[Columns], Floats]
_FINE = (("is_sequence_parallel", "order"), ("recompute", "zero"), ("overlaps_data", "overlaps_tensor"))
_LEAST_SHARE = 0.75  # of each of several kinds' devices that take part, where their number is not limited
_PLAIN_ZERO = 1  # the highest stage that goes with unlike replicas and with a pipeline


@dataclass(frozen=True)
class MixedSpace:
    """What a question allows for a team."""

    cost: MixedCost

    @property
    def problem(self) -> Problem:
        """The question."""
        return self.cost.problem

    @cached_property
    def devices(self) -> list[int]:
        """Devices of each kind."""
        return [one.cluster.num_devices for one in self.cost.costs]

    @cached_property
    def even(self) -> Space:
        """What may be chosen for each decision by itself."""
        return Space(
            problem=self.problem,
            transformer=self.cost.transformer,
            batch=self.cost.batch,
            num_machines=sum(self.devices),
            devices_per_machine=1,
        )

    @property
    def is_open(self) -> bool:
        """Whether pins leave a layout: 1F1B without chunks, ZeRO 0 or 1, the optimiser on the device."""
        axes, fixed = self.even.axes, self.problem.fixed
        is_plain = int(Schedule.ONE_F_ONE_B) in axes["schedule"].values and 1 in axes["interleave"].values
        is_plain &= "1f1b" not in self.problem.excluded.get("schedule", ()) and 0 in axes["is_offloaded"].values
        is_dealt = self.cost.is_staged or "num_microbatches" not in fixed
        return bool(is_plain and is_dealt and min(axes["zero"].values, default=9) <= _PLAIN_ZERO)

    @cached_property
    def part_names(self) -> tuple[str, ...]:
        """Of the columns that hold the stages of each kind, or its replicas."""
        name = "stages" if self.cost.is_staged else "data"
        return tuple(f"{name}_{index}" for index in range(len(self.devices)))

    @cached_property
    def coarse(self) -> tuple[str, ...]:
        """The decisions that all kinds share and that the first level makes."""
        shared = "data" if self.cost.is_staged else "pipeline"
        return ("tensor", "context", shared, "expert", "microbatch")

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """Every decision and its values."""
        known = self.even.axes
        fine = [name for names in _FINE for name in names]
        found = {name: known[name] for name in (*self.coarse, *fine) if name != "pipeline"}
        layers = self.cost.transformer.num_layers
        found["zero"] = Axis(name="zero", values=tuple(one for one in known["zero"].values if one <= _PLAIN_ZERO))
        for name, devices in zip(self.part_names, self.devices, strict=True):
            most = min(devices, layers if self.cost.is_staged else self.cost.batch)
            found[name] = Axis(name=name, values=tuple(range(1, most + 1)))
        if self.cost.is_staged and len(self.devices) > 1:  # so that ranks of one kind are numbered one after the other
            kept = tuple(one for one in known["order"].values if ORDERS[one][-1] == "pipeline")
            found["order"] = Axis(name="order", values=kept)
        if not self.cost.is_staged:
            stages = range(1, min(layers, *self.devices) + 1)
            kept = tuple(one for one in stages if self._may_be("pipeline", one))
            found["pipeline"] = Axis(name="pipeline", values=kept)
        return found

    def _may_be(self, name: str, value: int) -> bool:
        """Whether pins and exclusions allow a degree."""
        keys = [key for key, decision in PINS.items() if decision == name]
        pinned = [self.problem.fixed[key] for key in keys if key in self.problem.fixed]
        excluded = {one for key in keys for one in self.problem.excluded.get(key, ())}
        return all(one == value for one in pinned) and value not in excluded

    # -- rules ---------------------------------------------------------------------------------------------------------

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Those of all layouts, as far as they apply, of devices and of what is dealt out."""
        return (
            *self._device_rules(),
            *self._part_rules(),
            *self._layout_rules(),
            *self._launch_rules(),
            *self._unlike_rules(),
        )

    def _device_rules(self) -> Iterator[Rule]:
        """Yield that each kind has the devices, of several gives most of them, or that all together keep the limits."""
        places = [one.group.devices_per_machine for one in self.cost.costs]
        shared = [name for name in self.coarse if name in ("tensor", "context", "data", "pipeline")]

        def used(one: Columns, index: int) -> Ints:
            return prod((one[name] for name in shared), start=one[self.part_names[index]])

        number, machines = self.even.device_limits
        is_open = len(self.devices) == 1 or (number, machines) != (Range(), Range())

        def has(one: Columns, index: int) -> Bools:
            taken, devices = used(one, index), self.devices[index]
            return np.asarray((taken <= devices) & (is_open | (taken >= _LEAST_SHARE * devices)))

        for index in range(len(self.devices)):
            yield Rule(
                names=(*shared, self.part_names[index]),
                holds=lambda one, index=index: has(one, index),  # type: ignore[misc]  # bound now
            )
        if (number, machines) == (Range(), Range()):
            return

        def is_within(one: Columns) -> Bools:
            taken = np.array([used(one, index) for index in range(len(places))])
            whole = taken.sum(axis=0)
            units = sum(-(-row // place) for row, place in zip(taken, places, strict=True))
            found = (whole >= number.least) & (units >= machines.least)
            found &= whole <= (number.most or whole)
            return np.asarray(found & (units <= (machines.most or units)))

        yield Rule(names=(*shared, *self.part_names), holds=is_within)

    def _part_rules(self) -> Iterator[Rule]:
        """Yield what stages of all kinds, or replicas, add up to."""
        batch, names, layers = self.cost.batch, self.part_names, self.cost.transformer.num_layers
        name = "pipeline" if self.cost.is_staged else "data"

        def whole(one: Columns) -> Ints:
            return np.asarray(sum(one[part] for part in names))

        def may_be(one: Columns) -> Bools:
            values, back = np.unique(whole(one), return_inverse=True)
            return np.asarray([self._may_be(name, int(value)) for value in values], dtype=bool)[back]

        keys = {key for key, decision in PINS.items() if decision == name}
        if keys & {*self.problem.fixed, *self.problem.excluded}:
            yield Rule(names=names, holds=may_be)
        if self.cost.is_staged:
            yield Rule(names=names, holds=lambda one: (whole(one) <= layers) & (whole(one) > 1))
            if (number := self.problem.fixed.get("num_microbatches")) is not None:
                yield Rule(
                    names=("data", "microbatch"), holds=lambda one: one["data"] * one["microbatch"] * number == batch
                )
            return
        yield Rule(names=("microbatch",), holds=lambda one: batch % one["microbatch"] == 0)
        for part in names:
            yield Rule(
                names=("context", "expert", part),
                holds=lambda one, part=part: one["context"] * one[part] % one["expert"] == 0,  # type: ignore[misc]
            )

    def _layout_rules(self) -> Iterator[Rule]:
        """Yield the rules of layouts that ask for nothing which differs here."""
        for one in rules_of(self.cost.transformer, self.cost.batch):
            if one.key != "pipeline" and set(one.names) <= self.axes.keys():
                yield Rule(names=one.names, holds=one.holds)

    def _launch_rules(self) -> Iterator[Rule]:
        """Yield the rules of layouts that the program can start: of stages, since whole replicas have no pipeline."""
        if not self.cost.is_staged or "rank_order" in self.problem.fixed:
            return
        for one in launch_rules(self.problem.calibration.program):
            names = tuple(name for name in one.names if name != "pipeline")
            yield Rule(
                names=names,
                holds=lambda layouts, one=one: one.holds({**layouts, "pipeline": np.full_like(layouts["order"], 2)}),  # type: ignore[misc]
            )

    def _unlike_rules(self) -> Iterator[Rule]:
        """Yield rules that keep one of layouts which differ in name only; a pin holds even without a meaning."""
        given = {*self.problem.fixed, *self.problem.excluded}
        pinned = {decision for key, decision in PINS.items() if key in given}
        missing = "pipeline" if self.cost.is_staged else "data"
        for one in unlike_rules():
            if one.names[-1] in pinned or one.names[-1] == "schedule":
                continue
            if missing not in one.names:
                yield Rule(names=one.names, holds=one.holds)
            elif one.names[-1] == "order":
                yield self._order_rule(one, missing)

    def _order_rule(self, rule: LayoutRule, missing: str) -> Rule:
        """Return the rule on orders as if every kind had several stages, or replicas."""
        names = tuple(name for name in rule.names if name != missing)
        return Rule(names=names, holds=lambda one: rule.holds({**one, missing: np.full_like(one["order"], 2)}))

    def grid(self, bounds: Sequence[Bound | None] | None = None) -> Grid:
        """Return the grid; a bound for each level but the last: see :attr:`levels`."""
        levels = self.levels
        given = [None] * (len(levels) - 1) if bounds is None else bounds
        made = [
            Level(axes=tuple(self.axes[name] for name in names), bound=bound)
            for names, bound in zip(levels, [*given, None], strict=True)
        ]
        return Grid(levels=tuple(made), rules=self.rules)

    @property
    def is_split(self) -> bool:
        """Whether the micro-batch is decided by itself, as there are very many: see :attr:`Space.is_split`."""
        return self.even.is_split

    @property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Decisions of each level: what is shared, each kind's part, how ranks lie, whether it fits, and the rest."""
        parts = ((name,) for name in self.part_names)
        if self.is_split:
            degrees = tuple(name for name in self.coarse if name != "microbatch")
            return (degrees, ("microbatch",), *parts, _FINE[0], (), _FINE[1], (), _FINE[2], ())
        return (self.coarse, *parts, _FINE[0], (), _FINE[1], (), _FINE[2], ())
