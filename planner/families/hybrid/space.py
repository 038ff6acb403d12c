"""The grid of the family ``hybrid``: values of every decision, pins, limits and rules, in levels from coarse to fine.

One grid for all placements (:class:`planner.families.hybrid.cost.Placement`): what stands on each machine group, its
stages or its replicas, are *parts*, and their sum is the pipeline or the data degree. An even cut has one part, the
pipeline. Other cuts go with 1F1B without virtual stages, ZeRO 0 and 1 and the optimiser on the devices.

Of several groups each gives three quarters of its devices or more, unless numbers of devices or machines are limited.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.decisions import LAYOUT
from planner.families.hybrid.configuration import (
    AWAY,
    COARSE,
    CODES_OF_CUTS,
    MOST_ZERO_OF_CUTS,
    OVERLAPS,
    PINS,
    LayoutRule,
    broken_rule,
    depth_rules,
    device_rules,
    graph_rules,
    is_spread,
    launch_rules,
    maxtext_rules,
    pinned_cut,
    program_rules,
    rules_of,
    training_rules,
    uneven_rules,
    unlike_rules,
)
from planner.families.hybrid.cost import HybridCost, launches_graphs, useful_offload_sets
from planner.models.layouts import SCHEDULE_NAMES, Bools, Ints, Schedule
from planner.models.programs import PROGRAMS
from planner.models.tiers import ORDERS
from planner.problem import Problem, Range
from planner.solvers.divisors import divisors
from planner.solvers.grid import Axis, Columns, Grid, Level, Rule
from planner.transformer import Transformer

_FIRST_LEVELS = (  # those without a decision have a bound: the next tighter one, and whether anything fits
    COARSE,
    (),
    (),
    ("microbatch",),
    (),
    ("schedule", "interleave"),
    (),
    ("sequence_parallel", "order"),
    (),
    (
        *("recompute", "recompute_modules", "recompute_layers", "zero", "shard"),
        *("offload_optimizer", "offload_layers", "offload_percent", "offload_modules", "context_method"),
    ),
)
# The last level has what no other one decides.
_EVEN_LEVELS = (*_FIRST_LEVELS, tuple(name for name in LAYOUT if not any(name in level for level in _FIRST_LEVELS)))
_EVEN_LEVELS_OF_EXPERTS = (COARSE[:4], (), COARSE[4:], *_EVEN_LEVELS[2:])  # few nodes before experts are spread
_SPLIT_EVEN_LEVELS = (COARSE, *_EVEN_LEVELS[2:])  # of a batch of very many divisors: no bound looks at all of them
_FINE = (  # of a cut
    ("sequence_parallel", "order"),
    ("recompute", "recompute_modules", "zero", "context_method"),
    ("overlap_data", "overlap_tensor"),
)
MOST_UNLIKE_CHUNKS = 32  # on a device, that are searched where layers do not divide
_MOST_PAIRS = 4_000  # data degrees times micro-batches whose pace is looked at
_FEW_DEGREES, _FEW_SIZES = 60, 24  # of a narrow space
_SHARDS_WEIGHTS = 3  # the stage of ZeRO that gathers in every micro-batch
_FEW_LAYERS = (1, 2, 4, 8)  # of a virtual stage, that may be computed again
_PARTS_AWAY = 4  # of a network's layers: how many of these may have activations on the host
_SMALLEST_SHARE = 0.75  # of each of several groups' devices that take part, where their number is not limited

Bound = Callable[[Columns], Floats]


@dataclass(frozen=True, kw_only=True)
class Space:
    """What a question allows on the machine groups of a cost.

    Attributes
    ----------
    machines
        Of each group: how many, and the devices of one.
    cost
        Says the placement, and nothing of seconds.
    is_full
        Whether each group has as many parts as there are devices for.
    """

    problem: Problem
    batch: int
    machines: tuple[tuple[int, int], ...]
    cost: HybridCost
    is_full: bool = False

    @classmethod
    def of(cls, cost: HybridCost) -> "Space":
        """Return the space of a question on the machines of a cost."""
        machines = tuple((one.cluster.num_machines, one.group.devices_per_machine) for one in cost.groups)
        return cls(problem=cost.problem, batch=cost.batch, machines=machines, cost=cost)

    @property
    def transformer(self) -> Transformer:
        """The network."""
        return self.cost.transformer

    @cached_property
    def devices(self) -> list[int]:
        """Devices of each group."""
        return [prod(one) for one in self.machines]

    @property
    def part_names(self) -> tuple[str, ...]:
        """Of the columns that hold the stages of each group, or its replicas."""
        return self.cost.part_names

    @property
    def _whole(self) -> str:
        """The degree that the parts add up to."""
        return "data" if self.cost.has_replicas else "pipeline"

    @property
    def coarse(self) -> tuple[str, ...]:
        """The decisions that all groups share and that the first levels make."""
        return ("tensor", "context", self.shared, "expert", "expert_tensor", "microbatch")

    @property
    def shared(self) -> str:
        """The degree that all groups share beside those of a stage."""
        return "pipeline" if self.cost.has_replicas else "data"

    @property
    def group_by(self) -> tuple[str, ...]:
        """Decisions in which two answers must differ."""
        return COARSE if self.cost.is_even else (*self.coarse[:-1], *self.part_names)

    @cached_property
    def layout_rules(self) -> tuple[LayoutRule, ...]:
        """What any even layout must keep to."""
        program, cut = self.problem.calibration.program, self.cost.first.cut
        return (
            *rules_of(self.transformer, self.batch, is_dealt=cut is None, program=program),
            *(() if cut is None else (*uneven_rules(program), *depth_rules(self.transformer, cut))),
            *training_rules(self.problem.training),
            *graph_rules(launches_graphs(self.problem), self.transformer),
            *device_rules(self.cost.first.group.device.kind),
        )

    # -- values --------------------------------------------------------------------------------------------------------

    @cached_property
    def known_axes(self) -> Mapping[str, Axis]:
        """Every decision of an even cut and its values, pins and exclusions taken into account."""
        values = self._values()
        for key, name in PINS.items():
            row = LAYOUT[name]
            if (pinned := self.problem.fixed.get(key)) is not None:
                code = row.code(pinned)
                has = name not in OVERLAPS or code in values[name]  # of the program
                alone = [one for one in program_rules(self.problem.calibration.program) if one.names == (name,)]
                has &= broken_rule(alone, {name: code}) is None
                values[name] = [one for one in [code] if has and (one >= row.least or not row.is_count)]
            left_out = {row.code(one) for one in self._excluded(key)}
            values[name] = [one for one in values[name] if one not in left_out]
        if (cut := pinned_cut(self.problem)) is not None:
            layers, stages, chunks = cut
            is_cut = len(layers) == stages * chunks  # not of all that is tried in place of another pin
            for name, number in (("pipeline", stages), ("interleave", chunks)):
                values[name] = [number] if is_cut and number not in self._excluded(LAYOUT[name].key) else []
            values["schedule"] = [one for one in values["schedule"] if one != Schedule.DUALPIPE]
            most_zero = MOST_ZERO_OF_CUTS if self.cost.first.cut is not None else max(values["zero"], default=0)
            values["zero"] = [one for one in values["zero"] if one <= most_zero]
        if self._pinned_schedule == "interleaved":
            values["interleave"] = [one for one in values["interleave"] if one > 1]
        if "interleaved" in self._excluded("schedule"):
            values["interleave"] = [one for one in values["interleave"] if one == 1]
        out = {str(one) for one in self._excluded("schedule")} - {"1f1b"}  # which with chunks is another one
        values["schedule"] = [one for one in values["schedule"] if SCHEDULE_NAMES[one] not in out]
        return {name: Axis(name=name, values=tuple(listed)) for name, listed in values.items()}

    def _excluded(self, key: str) -> tuple[Any, ...]:
        """Return the values that a decision must not take."""
        return self.problem.excluded.get(key, ())

    @property
    def _pinned_schedule(self) -> str | None:
        """The schedule that is pinned; ``interleaved`` is 1F1B with virtual stages."""
        schedule: str | None = self.problem.fixed.get("schedule")
        return schedule

    def _values(self) -> dict[str, list[int]]:
        """Return the values of every decision, rules on it alone applied."""
        network, most = self.transformer, sum(self.devices)
        program = PROGRAMS[self.problem.calibration.program]
        has = program.has
        layers, experts, pinned = network.num_layers, network.experts, self._pinned_schedule
        tensor = divisors(network.num_heads, most)
        schedules = [Schedule.ONE_F_ONE_B, Schedule.GPIPE]
        schedules += [Schedule(code) for code, name in enumerate(SCHEDULE_NAMES) if name in program.schedules]
        if pinned is not None:
            is_plain = pinned == "interleaved"
            schedules = [Schedule.ONE_F_ONE_B if is_plain else Schedule(LAYOUT["schedule"].names.index(pinned))]
        if self.problem.fixed.get("zero_bubble"):
            schedules = [Schedule.ZB_H1] if pinned in (None, "zb_h1") else []
        is_folded = all(one >= Schedule.ZB_V and one != Schedule.DUALPIPE for one in schedules)
        # Few, of two stages with embedding and head alone at most; or as many as make them alike.
        chunks = {*range(1, min((layers + 2) // 2, MOST_UNLIKE_CHUNKS) + 1)}
        chunks |= {1, *divisors(layers, layers), *divisors(layers + 2, layers)}
        if self.cost.first.is_tpu and pinned is None and not self._is_given(LAYOUT["interleave"].key):
            chunks = {1}  # as :func:`maxtext_rules` has it
        return {
            **{name: self._kept(name, range(len(row.values))) for name, row in LAYOUT.items() if row.values},
            "tensor": self._kept("tensor", tensor),
            "context": self._kept("context", divisors(network.sequence_length, most)),
            "pipeline": self._kept("pipeline", range(1, min(layers, most) + 1)),
            "data": divisors(self.batch, most),
            "expert": [1] if experts is None else divisors(experts.num_experts, most),
            "expert_tensor": [1] if experts is None else self._kept("expert_tensor", tensor),
            "microbatch": divisors(self.batch, self.batch),
            "schedule": [int(one) for one in schedules],
            "interleave": sorted(chunks) if pinned in (None, "interleaved") else [2 if is_folded else 1],
            **{name: [0, 1] if name in has else [0] for name in OVERLAPS},
            **self._recomputed(),
            "context_method": [int(one) for one in program.context_methods],
            "shard": self._shards(),
            **self._away(),
            "offload_percent": [100],
        }

    @cached_property
    def _places(self) -> list[int]:
        """Devices of one unit of each tier of the network but the outermost."""
        sizes = np.cumprod([tier.size for tier in self.cost.first.tiers]).tolist()
        return [int(one) for one in sizes if 1 < one < sum(self.devices)]

    def _shards(self) -> list[int]:
        """Return over how many data ranks states may be sharded, where that is not pinned: see :meth:`_shard_rules`.

        Of programs that shard weights as a matter of course; of Megatron-Core, which does so without stages only and
        by another part of it, all ranks.
        """
        program = PROGRAMS[self.problem.calibration.program]
        can = program.shards_partly and program.precision.master_bytes == 0 and self.cost.is_even
        found = {one for place in self._places if can for one in divisors(self.batch, place) if place % one == 0}
        return [0, *sorted(found)]

    def _shard_rules(self) -> Iterator[Rule]:
        """Yield which partial shards are worth trying: of ZeRO 3, whose ranks just fill a unit of some tier.

        With ZeRO 1 and 2 nothing is gathered but once a step, and what the copies then add up is as much as what is not
        gathered outside.
        """
        if self._is_given(LAYOUT["shard"].key):
            return
        yield Rule(names=("zero", "shard"), holds=lambda one: (one["shard"] == 0) | (one["zero"] == _SHARDS_WEIGHTS))
        yield Rule(
            names=("tensor", "context", "pipeline", "shard"),
            holds=lambda one: (
                (one["shard"] == 0)
                | np.isin(one["tensor"] * one["context"] * one["pipeline"] * one["shard"], self._places)
            ),
        )
        yield Rule(names=("order", "shard"), holds=lambda one: (one["shard"] == 0) | (one["order"] == 0))

    def _recomputed(self) -> dict[str, list[int]]:
        """Return the sets of modules, and the numbers of layers, that may be computed again where neither is pinned."""
        if not PROGRAMS[self.problem.calibration.program].recomputes_modules:
            return {"recompute_modules": [0], "recompute_layers": [0]}
        layers = [one for one in _FEW_LAYERS if one < self.transformer.num_layers and self.cost.is_even]
        return {"recompute_modules": [0, *self.cost.first.module_sets], "recompute_layers": [0, *layers]}

    def _away(self) -> dict[str, list[int]]:
        """Return of how many layers, and of which modules, activations may wait on the host where that is open."""
        found: dict[str, list[int]] = {name: [0] for name in AWAY}
        if self.cost.first.opens_offload and self.cost.is_even:
            layers = self.transformer.num_layers
            some = sorted({layers * part // _PARTS_AWAY for part in range(1, _PARTS_AWAY)} | {layers - 1})
            found["offload_layers"] = [0, *(one for one in some if one > 0)]
            found["offload_modules"] = [0, *useful_offload_sets(self.cost.first)]
        return found

    def _kept(self, name: str, values: Iterable[int]) -> list[int]:
        """Return the values that keep every rule on one decision alone."""
        column = np.array(list(values), dtype=np.int64)
        for one in self.layout_rules:
            if one.names == (name,):
                column = column[one.holds({name: column})]
        found: list[int] = column.tolist()
        return found

    @cached_property
    def axes(self) -> Mapping[str, Axis]:
        """Every decision of this placement and its values."""
        known, layers = self.known_axes, self.cost.parted_layers
        if self.cost.is_even:
            return known
        fine = [name for names in _FINE for name in names]
        found = {name: known[name] for name in (*self.coarse, *fine)}
        found["zero"] = Axis(name="zero", values=tuple(one for one in known["zero"].values if one <= MOST_ZERO_OF_CUTS))
        for name, devices in zip(self.part_names, self.devices, strict=True):
            most = min(devices, self.batch if self.cost.has_replicas else layers)
            found[name] = Axis(name=name, values=tuple(range(1, most + 1)))
        if self.cost.has_replicas:
            stages = range(1, min(layers, *self.devices) + 1)
            kept = tuple(one for one in stages if self._may_be("pipeline", one))
            found["pipeline"] = Axis(name="pipeline", values=kept)
        elif len(self.devices) > 1:  # so that ranks of one group are numbered one after the other
            kept = tuple(one for one in known["order"].values if ORDERS[one][-1] == "pipeline")
            found["order"] = Axis(name="order", values=kept)
        return found

    @property
    def is_open(self) -> bool:
        """Whether pins leave this placement a layout."""
        axes, fixed = self.known_axes, self.problem.fixed
        if self.cost.is_even:
            return True
        is_plain = all(code in axes[name].values for name, code in CODES_OF_CUTS.items())
        is_plain &= "1f1b" not in self._excluded("schedule")
        is_shared = not self.cost.has_replicas or "num_microbatches" not in fixed
        return bool(is_plain and is_shared and min(axes["zero"].values, default=9) <= MOST_ZERO_OF_CUTS)

    def _may_be(self, name: str, value: int) -> bool:
        """Return whether pins and exclusions allow a degree."""
        keys = [key for key, decision in PINS.items() if decision == name]
        pinned = [self.problem.fixed[key] for key in keys if key in self.problem.fixed]
        if name == "pipeline" and (cut := pinned_cut(self.problem)) is not None:
            pinned.append(cut[1])
        excluded = {one for key in keys for one in self._excluded(key)}
        return all(one == value for one in pinned) and value not in excluded

    # -- rules ---------------------------------------------------------------------------------------------------------

    @property
    def device_limits(self) -> tuple[Range, Range]:
        """Numbers of devices and machines, pins included."""
        return self.problem.training_devices, self.problem.allowed_machines

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the grid: of devices, pins, layouts, what a program can start, and layouts that are the same."""
        found = (*self._device_rules(), *self._expert_rules(), *self._pin_rules(), *self._layout_rules())
        return (*found, *self._shard_rules()) if self.cost.is_even else found

    def _expert_rules(self) -> Iterator[Rule]:
        """Yield that experts are whole, or cut as all else is, unless a pin or an exclusion says more of it."""
        if not self._is_given(LAYOUT["expert_tensor"].key):
            yield Rule(
                names=("tensor", "expert_tensor"),
                holds=lambda one: (one["expert_tensor"] == 1) | (one["expert_tensor"] == one["tensor"]),
            )

    def _device_rules(self) -> Iterator[Rule]:
        """Yield that each group has the devices, of several gives most of them, and that all together keep limits."""
        shared = [name for name in self.coarse if name in ("tensor", "context", "data", "pipeline")]
        number, machines = self.device_limits
        is_limited = (number, machines) != (Range(), Range())
        is_open = is_limited or len(self.devices) == 1

        def used(one: Columns, index: int) -> Ints:
            return prod((one[name] for name in shared), start=one[self.part_names[index]])

        def has(one: Columns, index: int) -> Bools:
            taken, devices = used(one, index), self.devices[index]
            found = (taken <= devices) & (is_open | (taken >= _SMALLEST_SHARE * devices))
            found &= taken >= number.least - (sum(self.devices) - devices)  # even where all others give theirs
            if self.is_full:
                found &= taken + prod(one[name] for name in shared) > devices
            return np.asarray(found)

        for index, name in enumerate(self.part_names):
            yield Rule(
                names=(*shared, name),
                holds=lambda one, index=index: has(one, index),  # type: ignore[misc]  # bound now
            )

        def is_within(one: Columns) -> Bools:
            taken = np.array([used(one, index) for index in range(len(self.machines))])
            whole = taken.sum(axis=0)
            units = sum(-(-row // place) for row, (_, place) in zip(taken, self.machines, strict=True))
            found = (whole >= number.least) & (units >= machines.least)
            found &= whole <= (number.most or whole)
            return np.asarray(found & (units <= (machines.most or units)))

        if is_limited:
            yield Rule(names=(*shared, *self.part_names), holds=is_within)

    def _pin_rules(self) -> Iterator[Rule]:
        """Yield what pins ask of several decisions together, and what parts add up to."""
        batch, names, layers = self.batch, self.part_names, self.cost.parted_layers
        if (count := self.problem.fixed.get("num_microbatches")) is not None and not self.cost.has_replicas:
            yield Rule(names=("data", "microbatch"), holds=lambda one: one["data"] * one["microbatch"] * count == batch)
        if self.cost.is_even:
            if "1f1b" in self._excluded("schedule"):
                yield Rule(
                    names=("schedule", "interleave"),
                    holds=lambda one: (one["schedule"] != Schedule.ONE_F_ONE_B) | (one["interleave"] > 1),
                )
            return

        def whole(one: Columns) -> Ints:
            return np.asarray(sum(one[part] for part in names))

        def may_be(one: Columns) -> Bools:
            values, back = np.unique(whole(one), return_inverse=True)
            return np.asarray([self._may_be(self._whole, int(value)) for value in values], dtype=bool)[back]

        has_cut = self._whole == "pipeline" and pinned_cut(self.problem) is not None
        if has_cut or any(decision == self._whole and self._is_given(key) for key, decision in PINS.items()):
            yield Rule(names=names, holds=may_be)
        if not self.cost.has_replicas:
            yield Rule(names=names, holds=lambda one: (whole(one) <= layers) & (whole(one) > 1))
            return
        yield Rule(names=("microbatch",), holds=lambda one: batch % one["microbatch"] == 0)
        for part in names:
            yield Rule(
                names=("tensor", "context", "expert", "expert_tensor", part),
                holds=lambda one, part=part: np.asarray(is_spread(one, one["context"] * one[part])),  # type: ignore[misc]
            )

    def _is_given(self, key: str) -> bool:
        """Return whether a decision is pinned or has excluded values: both hold even where it has no meaning."""
        return key in self.problem.fixed or key in self.problem.excluded

    def _layout_rules(self) -> Iterator[Rule]:
        """Yield the rules of layouts, as far as they ask for nothing that differs here."""
        given = {decision for key, decision in PINS.items() if self._is_given(key)}
        if self._pinned_schedule is not None or self.problem.fixed.get("zero_bubble") or self._excluded("schedule"):
            given.add("schedule")
        is_even, has_replicas = self.cost.is_even, self.cost.has_replicas
        for one in self.layout_rules:
            if is_even or (one.key != "pipeline" and not (has_replicas and "data" in one.names)):
                yield from self._of_parts(one)
        for one in unlike_rules(self.transformer):
            if one.names[-1] not in given:
                yield from self._of_parts(one)
        if "rank_order" not in self.problem.fixed and not has_replicas:
            for one in launch_rules(self.problem.calibration.program, self.transformer):
                yield from self._of_parts(one)
        if self.cost.is_even and self.cost.first.is_tpu:
            pinned = {decision for key, decision in PINS.items() if key in self.problem.fixed} | given
            if pinned_cut(self.problem) is not None:
                pinned |= {"pipeline", "interleave"}
            if "num_microbatches" in self.problem.fixed:
                pinned.add("microbatch")
            for one in maxtext_rules(self.transformer, self.batch, self.machines[0][1]):
                if one.key not in pinned:
                    yield from self._of_parts(one)

    def _of_parts(self, rule: LayoutRule) -> Iterator[Rule]:
        """Yield a rule on decisions of this placement; none where it is on others.

        A rule on the order of ranks is asked as if every group had several stages, or replicas, and one on a schedule
        of what the parts of a pipeline add up to; other rules on that degree always hold here.
        """
        whole = self._whole
        if self.cost.is_even or whole not in rule.names:
            if set(rule.names) <= self.axes.keys():
                yield Rule(names=rule.names, holds=rule.holds)
        elif rule.names[-1] == "order":
            yield Rule(
                names=tuple(name for name in rule.names if name != whole),
                holds=lambda one: rule.holds({**one, whole: np.full_like(one["order"], 2)}),
            )
        elif rule.key == "schedule" and whole == "pipeline":
            parts, plain = self.part_names, {"schedule": np.array(Schedule.ONE_F_ONE_B), "interleave": np.array(1)}
            yield Rule(
                names=(*(name for name in rule.names if name in self.axes), *parts),
                holds=lambda one: rule.holds({**plain, **one, whole: np.asarray(sum(one[part] for part in parts))}),
            )

    # -- the grid ------------------------------------------------------------------------------------------------------

    @cached_property
    def is_split(self) -> bool:
        """Whether data degrees and micro-batches are too many to look at all of them."""
        known = self.axes if self.cost.is_even else self.known_axes
        return len(known["data"].values) * len(known["microbatch"].values) > _MOST_PAIRS

    @property
    def narrow(self) -> "Space":
        """The same with the smallest micro-batches, and data degrees evenly on a logarithmic scale."""
        data, sizes = self.axes["data"].values, self.axes["microbatch"].values
        places = np.unique(np.linspace(0, len(data) - 1, _FEW_DEGREES).astype(int))
        return self.of_values({"data": tuple(data[one] for one in places), "microbatch": sizes[:_FEW_SIZES]})

    def of_values(self, few: Mapping[str, tuple[int, ...]]) -> "Space":
        """Return the same with these values alone of some decisions."""
        found = replace(self)
        vars(found)["axes"] = {**self.axes, **{name: Axis(name=name, values=few[name]) for name in few}}
        return found

    @property
    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Decisions of each level: what is shared, each group's part, how ranks lie, whether it fits, and the rest."""
        if self.cost.is_even:
            whole = _EVEN_LEVELS if self.transformer.experts is None else _EVEN_LEVELS_OF_EXPERTS
            return _SPLIT_EVEN_LEVELS if self.is_split else whole
        parted = [()] if self.cost.has_replicas else []  # before their numbers on each group are decided, of very many
        first = (self.coarse[:-1], *([] if self.is_split else [()]), self.coarse[-1:], *parted)
        return (*first, *((name,) for name in self.part_names), _FINE[0], (), _FINE[1], (), _FINE[2], ())

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
        allowed = {name: frozenset(self.axes[name].values) for name in free}
        axes = [
            Axis(name=name, values=tuple(one for one in values if one in allowed[name]))
            for name, values in free.items()
        ]
        grid = Grid(levels=(Level(axes=tuple(axes)),), rules=self.rules)
        number = len(next(iter(nodes.values())))
        found = grid.expand({**nodes, "": np.arange(number, dtype=np.int64)}, 0)
        return found, found.pop("")
