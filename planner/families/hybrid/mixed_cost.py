"""What layouts over several kinds of machines cost, many at once: :mod:`planner.models.transformer_mixed` and its kin.

A *team* is one kind of machines or more. *Staged*: each kind has some stages that follow each other, in the order of
the team. Else each kind has whole replicas. Columns are those of :mod:`planner.families.hybrid.space`, and for kind k
``stages_k``, its stages, or ``data_k``, its replicas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.configuration import layouts_of
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.mixed_cuts import cut_of, few_bounds_s, few_cuts
from planner.models.layouts import Bools, Ints, Layouts, Schedule
from planner.models.transformer_mixed import MixedStep, ReplicaClass
from planner.models.transformer_mixed_batches import dealt, relaxed_s
from planner.models.transformer_mixed_kinds import KindSeconds, MixedKind, kind_seconds
from planner.models.transformer_mixed_layers import least_slowest
from planner.models.transformer_mixed_memory import MixedMemory
from planner.problem import Problem
from planner.transformer import Transformer

__all__ = ["Chosen", "MixedCost", "Placed"]

Columns = Mapping[str, Ints]
_SAME = {"interleave": 1, "schedule": int(Schedule.ONE_F_ONE_B), "is_offloaded": 0}  # in every mixed layout


@dataclass(frozen=True, kw_only=True, eq=False)
class Placed:
    """Layouts with what a micro-batch takes on each kind, before layers are cut.

    Attributes
    ----------
    layouts
        ``pipeline`` of all stages, ``data`` of all replicas.
    kinds
        Seconds by kind.
    stage_kinds
        Index of each stage's kind, shape (p, n); of whole replicas the kind whose layers are slowest.
    """

    layouts: Layouts
    kinds: tuple[KindSeconds, ...]
    stage_kinds: Ints

    @cached_property
    def is_there(self) -> Bools:
        """Which stages a layout has, shape (p, n)."""
        return np.asarray(np.arange(len(self.stage_kinds))[:, None] < self.layouts.pipeline)


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """Layouts with their layers cut: these, shape (p, n), whether all fit, and the step but for its micro-batches."""

    layers: Ints
    can: Bools
    step: MixedStep


@dataclass(frozen=True)
class MixedCost:
    """Costs of a team, one :class:`HybridCost` for each of its kinds."""

    costs: tuple[HybridCost, ...]
    is_staged: bool

    @property
    def problem(self) -> Problem:
        """The question."""
        return self.costs[0].problem

    @property
    def transformer(self) -> Transformer:
        """The network."""
        return self.costs[0].transformer

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.costs[0].batch

    @property
    def names(self) -> list[str | None]:
        """Names of the kinds; None of a single one, where all machines are alike."""
        return [one.machines for one in self.costs]

    @cached_property
    def machines(self) -> tuple[MixedKind, ...]:
        """The kinds as the models have them: between kinds the narrowest link of a ring through all of them counts."""
        if len(self.costs) == 1:
            return (MixedKind(tiers=self.costs[0].tiers, rates=self.costs[0].rates),)
        joint = self.problem.cluster.of_groups({name for name in self.names if name is not None})
        link = joint.ring_link(joint.num_machines)
        return tuple(
            MixedKind(
                tiers=one.tiers,
                rates=one.rates,
                between_bytes_per_s=link.bandwidth_bytes_per_s,
                between_latency_s=link.latency_s,
            )
            for one in self.costs
        )

    @cached_property
    def limits_bytes(self) -> Floats:
        """What a device of each kind may hold."""
        return np.array([one.memory_limit_bytes for one in self.costs])

    @cached_property
    def memory(self) -> MixedMemory:
        """Bytes of stages."""
        one = self.costs[0]
        return MixedMemory(
            transformer=self.transformer,
            precision=one.precision,
            kernels=one.kernels,
            reserve_bytes=max(cost.reserve_bytes for cost in self.costs),
            expert_imbalance=one.expert_imbalance,
        )

    # -- layouts of columns --------------------------------------------------------------------------------------------

    def parts_of(self, columns: Columns) -> Ints:
        """Return the stages of each kind, or its replicas, shape (kinds, n)."""
        name = "stages" if self.is_staged else "data"
        return np.array([columns[f"{name}_{index}"] for index in range(len(self.costs))])

    def layouts(self, columns: Columns, index: int | None = None) -> Layouts:
        """Return layouts of columns: all stages and replicas, or those that stand on one kind."""
        parts = self.parts_of(columns)
        own = parts.sum(axis=0) if index is None else parts[index]
        key = "pipeline" if self.is_staged else "data"
        length = len(own)
        known = {name: np.full(length, value) for name, value in _SAME.items()}
        return layouts_of({**known, **columns, key: own}, self.batch)

    def placed(self, columns: Columns) -> Placed:
        """Return layouts with the seconds of a micro-batch on each kind."""
        whole, found = self.layouts(columns), self.kind_seconds(columns)
        return Placed(layouts=whole, kinds=tuple(found), stage_kinds=self._stage_kinds(columns, whole, found))

    def kind_seconds(self, columns: Columns) -> list[KindSeconds]:
        """Return the seconds of a micro-batch on each kind."""
        whole, found = self.layouts(columns), []
        for index, (one, kind) in enumerate(zip(self.costs, self.machines, strict=True)):
            own = self.layouts(columns, index)
            joint = own if self.is_staged else replace(own, data=whole.data)
            found.append(
                kind_seconds(
                    self.transformer,
                    own,
                    joint,
                    kind,
                    software=one.software,
                    constants=one.constants,
                    expert_imbalance=one.expert_imbalance,
                )
            )
        return found

    def _stage_kinds(self, columns: Columns, whole: Layouts, kinds: Sequence[KindSeconds]) -> Ints:
        """Return on which kind each stage lies."""
        index = np.arange(int(whole.pipeline.max(initial=1)))[:, None]
        if self.is_staged:
            ends = np.cumsum(self.parts_of(columns), axis=0)
            found = sum(((index >= end).astype(np.int64) for end in ends[:-1]), np.zeros_like(index))
            return np.asarray(np.broadcast_to(found, (len(index), len(whole))))
        if not kinds:  # only what fits is asked, and that is alike for all
            return np.zeros((len(index), len(whole)), dtype=np.int64)
        slowest = np.argmax([np.broadcast_to(one.layer_s, len(whole)) for one in kinds], axis=0)
        return np.asarray(np.broadcast_to(slowest, (len(index), len(whole))))

    def step(self, placed: Placed, layers: Ints, numbers: Ints | None = None) -> MixedStep:
        """Return the step of layouts with layers, and for whole replicas the micro-batches of each kind."""
        classes = [ReplicaClass(kinds=placed.stage_kinds, num_microbatches=placed.layouts.num_microbatches)]
        if not self.is_staged:
            counts = np.ones((len(self.costs), len(placed.layouts)), dtype=np.int64) if numbers is None else numbers
            classes = [
                ReplicaClass(kinds=np.full_like(placed.stage_kinds, index), num_microbatches=counts[index])
                for index in range(len(self.costs))
            ]
        return MixedStep(
            transformer=self.transformer,
            layouts=placed.layouts,
            layers=layers,
            kinds=placed.kinds,
            classes=classes,
            software=self.costs[0].software,
            constants=self.costs[0].constants,
        )

    # -- what follows from the other decisions -------------------------------------------------------------------------

    def most_layers(self, columns: Columns, placed_kinds: Ints) -> Ints:
        """Return how many layers fit on each stage, shape (p, n)."""
        layouts, number = self.layouts(columns), len(placed_kinds)
        if self.is_staged:
            return self.memory.most_layers(layouts, number, self.limits_bytes[placed_kinds])
        # Replicas may do as many micro-batches as a pipeline holds.
        full = replace(layouts, num_microbatches=np.maximum(layouts.num_microbatches, layouts.pipeline))
        least = np.full(placed_kinds.shape, self.limits_bytes.min())
        return self.memory.most_layers(full, number, least)

    def chosen(self, columns: Columns) -> Chosen:
        """Return layouts cut as columns say, else the best of few cuts, else for the quickest slowest stage.

        What does not fit is not taken.
        """
        if (given := cut_of(columns)) is not None:
            return self._cut_as(columns, given)
        found = self._cut_evenly(columns)
        if not self.is_staged:
            return found
        stages, layers = found.step.layouts.pipeline, found.layers.copy()
        some, best = few_cuts(columns, stages, self.transformer.num_layers, self.bound_s, self.seconds)
        if not len(some):
            return found
        layers[:, some] = best[: len(layers)]
        return self._cut_as(columns, layers)

    def _cut_as(self, columns: Columns, layers: Ints) -> Chosen:
        """Return layouts with given cuts."""
        placed = self.placed(columns)
        most, is_there = self.most_layers(columns, placed.stage_kinds), placed.is_there
        can = (~is_there | ((layers >= 1) & (layers <= most))).all(axis=0)
        return Chosen(layers=layers, can=can & self._is_unlike(layers, placed), step=self.step(placed, layers))

    def _cut_evenly(self, columns: Columns) -> Chosen:
        """Return layouts with layers cut so that the slowest stage is as quick as can be, as far as memory allows."""
        placed = self.placed(columns)
        shape = placed.stage_kinds.shape
        bare = self.step(placed, np.zeros(shape, dtype=np.int64))
        own = ReplicaClass(kinds=placed.stage_kinds, num_microbatches=placed.layouts.num_microbatches)
        fixed_s = bare.ends_s(own) + sum(bare.sends_s(own), np.zeros(1))
        layers, can = least_slowest(
            bare.of_kind(own, "layer_s"),
            fixed_s,
            self.most_layers(columns, placed.stage_kinds),
            placed.is_there,
            placed.stage_kinds,
            self.transformer.num_layers,
        )
        return Chosen(layers=layers, can=can & self._is_unlike(layers, placed), step=replace(bare, layers=layers))

    def _is_unlike(self, layers: Ints, placed: Placed) -> Bools:
        """Whether a cut is none of those that even layouts on one kind have, which are searched by themselves."""
        if len(self.costs) > 1:
            return np.ones(layers.shape[1], dtype=bool)
        return np.asarray((placed.is_there & (layers != layers[0])).any(axis=0))

    def lines(self, step: MixedStep) -> tuple[Floats, Floats]:
        """Return ``a`` and ``x``: m micro-batches take each class ``a + m x`` at least; shape (classes, n).

        The path that passes all stages once and else dwells on the slowest one, i of p: ``X + (m - w) x + (w - 1)
        max(f, b)`` with ``w = p - i``.
        """
        starts, each = [], []
        columns = np.arange(len(step.layouts))
        for one in step.classes:
            forward, backward = step.passes_s(one)
            both = forward + backward
            slowest = np.argmax(both, axis=0)
            x = both[slowest, columns]
            longer = np.maximum(forward, backward)[slowest, columns]
            warm_up = step.layouts.pipeline - slowest
            starts.append(both.sum(axis=0) - warm_up * x + (warm_up - 1) * longer)
            each.append(x)
        return np.array(starts), np.array(each)

    def bound_s(self, columns: Columns) -> Floats:
        """Return seconds that layouts are not under; infinite where they do not fit."""
        found = np.full(len(columns["tensor"]), np.inf)
        fits = np.flatnonzero(self._has_room(columns))
        if len(fits):
            found[fits] = self._bound_s({name: column[fits] for name, column in columns.items()})
        return found

    def _has_room(self, columns: Columns) -> Bools:
        """Return which layouts have room for all layers."""
        whole = self.layouts(columns)
        kinds = self._stage_kinds(columns, whole, [])
        is_there = np.arange(len(kinds))[:, None] < whole.pipeline
        most = np.where(is_there, self.most_layers(columns, kinds), 0)
        return np.asarray(((most >= 1) | ~is_there).all(axis=0) & (most.sum(axis=0) >= self.transformer.num_layers))

    def _bound_s(self, columns: Columns) -> Floats:
        """Return the same of layouts that fit."""
        given = cut_of(columns)
        chosen = self._cut_evenly(columns) if given is None else self._cut_as(columns, given)
        if self.is_staged:
            found = np.where(chosen.can, chosen.step.bound_s, np.inf)
            if given is None:
                stages = chosen.step.layouts.pipeline
                some, least = few_bounds_s(columns, stages, self.transformer.num_layers, self.bound_s)
                found[some] = least
            return np.asarray(found)
        starts, each = self.lines(chosen.step)
        total = (self.batch // columns["microbatch"]).astype(np.float64)
        found = relaxed_s(self.parts_of(columns).astype(np.float64), starts, each, total)
        found = found + chosen.step.tail_s.max(axis=0)
        return np.where(chosen.can, found, np.inf)

    def numbers(self, columns: Columns, step: MixedStep) -> Ints:
        """Return the micro-batches of one replica of each kind, shape (kinds, n); 0 where none add up."""
        starts, each = self.lines(step)
        parts, found = self.parts_of(columns), np.zeros((len(self.costs), len(step.layouts)), dtype=np.int64)
        for index in range(len(step.layouts)):
            total = self.batch // int(columns["microbatch"][index])
            found[:, index] = (
                dealt(parts[:, index].tolist(), starts[:, index].tolist(), each[:, index].tolist(), total) or 0
            )
        return found

    def finished(self, columns: Columns) -> tuple[Chosen, Ints | None]:
        """Return layouts with layers and micro-batches chosen; the latter None where replicas are alike."""
        chosen = self.chosen(columns)
        if self.is_staged:
            return chosen, None
        numbers = self.numbers(columns, chosen.step)
        can = chosen.can & (numbers.min(axis=0) > 0)
        step = self.step(self.placed(columns), chosen.layers, np.maximum(numbers, 1))
        return Chosen(layers=chosen.layers, can=can, step=step), numbers

    def seconds(self, columns: Columns) -> Floats:
        """Return the seconds of layouts with layers and micro-batches chosen, input included; infinite: no fit."""
        chosen, numbers = self.finished(columns)
        total_s = chosen.step.total_s
        total_s = total_s + self.stalls_s(columns, total_s, numbers)
        return np.where(chosen.can, total_s, np.inf)

    def stalls_s(self, columns: Columns, busy_s: Floats, numbers: Ints | None) -> Floats:
        """Return how long devices wait for samples; the first stage of every replica reads them."""
        if self.is_staged:
            return self.costs[0].stalls_s(self.layouts(columns), busy_s)
        found = np.zeros(len(busy_s))
        parts = self.parts_of(columns)
        for index, one in enumerate(self.costs):
            own = self.layouts(columns, index)
            for at in range(len(busy_s)):
                samples = int(parts[index, at] * (0 if numbers is None else numbers[index, at]) * own.microbatch[at])
                reading = replace(one, given_batch=max(samples, 1))
                found[at] = max(found[at], float(reading.stalls_s(own.of(slice(at, at + 1)), busy_s[at : at + 1])[0]))
        return found
