"""Bounds of even cuts on one group, and of a cut that is given: see :mod:`planner.families.hybrid.bounds`.

- *pace*: links that cost nothing, and the pace of the best micro-batch (:mod:`planner.families.hybrid.layer_table`). A
  stage does its own work for every micro-batch; before its first, the first virtual stages of the devices ahead of it
  have passed, and behind its last they pass back: with the most virtual stages, whose first are shortest;
- *linked pace*: the same with the communication of layers, at the nearest ranks and in the best order; where there are
  experts both of the best way to spread them first, and then of each;
- *fits*: infinite where no recomputation, ZeRO stage or host memory makes a layout fit;
- *layers*: the same as linked pace, of the micro-batch that is decided;
- *ordered*: the same of the best order of ranks, with what replicas then exchange at the least; and once more of the
  schedule and the virtual stages that are decided;
- *room*: the same with the least of recomputation that leaves room in memory; where it leaves room without any, nothing
  is known beyond the levels before;
- *communication*: the real links; no bubble but that of equal micro-batches without waits, such recomputation, all
  overlaps that the rules allow beside what is decided;
- *schedule*: the same with the schedule and its transfers, and any recomputation, ZeRO stage and place of the optimiser
  that fits: the least that the next level has;
- *memory*: what is kept exactly, but for overlaps, which only ever cost memory.

Recomputation only adds work, and more of it than communication can hide behind; communication that overlaps computing
never takes longer than if it does not. Where stages differ much, layers that take less may hide less of what another
stage exchanges: the last three levels look without such overlaps, too.

Virtual stages need micro-batches in multiples of the stages: where there are none such, stages hold layers that are
known, and each is passed as a whole. Which layers, with experts or without, a device holds otherwise depends on its
virtual stages. Where these are open, the bounds take all layers to be of the quicker kind, some device to do the mean
of all, and of k devices with most layers one to have no more of the quicker kind than a k-th of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import compress, product
from math import inf
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.bounds import BEST, Bounds, fullest_s, peak_step_s, sharding_is_free
from planner.families.hybrid.configuration import AWAY, COARSE, OVERLAPS
from planner.families.hybrid.cost import GroupCost
from planner.families.hybrid.layer_table import KnownNodes, LayerTable, LeastSeconds
from planner.families.hybrid.space import Bound
from planner.models.layer_memory import dropped_outputs
from planner.models.layouts import (
    Bools,
    EvenCut,
    Ints,
    Layouts,
    Recompute,
    Schedule,
    busiest_stages,
    dealt_layers,
    folded_layers,
    layers_by_kind,
)
from planner.models.offload import OFFLOAD_SETS
from planner.models.programs import PROGRAMS
from planner.models.tiers import ORDERS
from planner.models.transformer_interval import LAYER_PARTS
from planner.models.transformer_schedule import Stages, lower_bound_s
from planner.models.transformer_step import (
    least_exchanged_s,
)
from planner.models.transformer_time import cut_times
from planner.solvers.grid import MOST_AT_ONCE, Axis, Columns, Rule, distinct
from planner.transformer import KINDS, Transformer

_ROUNDING = 1 + 1e-12  # of bytes that are added up in another order
_NEXT_TO_NONE = 1e-9  # of the layers of a virtual stage, computed again: so few save nothing
EVERY_ZERO = (0, 1, 2, 3)
_SHARDS_WEIGHTS = 3  # the stage of ZeRO that gathers in every micro-batch
NOTHING_AGAIN = (int(Recompute.NONE), 0)  # is computed again
NONE_AND_ALL = (Recompute.NONE, Recompute.FULL)
_OF_LAYERS = {"overlap_tensor": "tensor", "overlap_expert": "expert"}  # overlaps within a layer, by whose ranks
_MOST_PACED = 1 << 14  # nodes whose pace is worked out together: their columns stay in the processor's cache


@lru_cache(maxsize=4096)
def _evenness(
    network: Transformer,
    pipeline: int,
    interleave: int,
    schedule: int,
    cut: tuple[int, ...] | None,
    *,
    of_experts: bool,
) -> float:
    """Return the layers of the device with fewest over those of the one with most, of the kind where that is least.

    ``cut``: the layers of every virtual stage, where they are not dealt out; ``of_experts``: of kinds with experts.
    """
    is_folded = schedule >= Schedule.ZB_V
    pipeline = pipeline // 2 if schedule == Schedule.DUALPIPE else pipeline
    if cut is None and is_folded:
        cut = tuple(folded_layers(network.num_layers, pipeline).tolist())
    elif cut is None:
        cut = tuple(dealt_layers(network.num_layers, pipeline, interleave).ravel().tolist())
    held = layers_by_kind(network, np.array(cut)).reshape(-1, len(cut) // pipeline, pipeline)
    if is_folded:
        held[:, 1::2] = held[:, 1::2, ::-1].copy()
    counts = held.sum(axis=1)[[KINDS[kind].feed_forward == "moe" or not of_experts for kind in network.kind_counts]]
    return float((counts.min(axis=1) / counts.max(axis=1)).min(initial=1.0))


def _states_bytes(held: Mapping[str, Floats]) -> Floats:
    """Return what a device holds whatever is computed again or waits on the host: all but activations and the like."""
    return held["weights"] + held["gradients"] + held["optimizer"] + held["reserve"]


@dataclass(frozen=True)
class EvenBounds(Bounds):
    """Bounds of even cuts on one group."""

    @property
    def _limit_bytes(self) -> float:
        """What a device may hold."""
        return min(self._group.memory_limit_bytes, self.memory_limit_bytes)

    @property
    def _group(self) -> GroupCost:
        """The cost on the one group."""
        return self.cost.first

    @property
    def all(self) -> Sequence[Bound | None]:
        """See the module."""
        fine: list[Bound] = [self.room_s, self.communication_s, self.schedule_s, self.memory_s]
        return [*self._coarse, self.fits, self.layers_s, self.ordered_s, self.ordered_s, *fine]

    @property
    def _coarse(self) -> Sequence[Bound]:
        """Those of the degrees."""
        spread = [] if self.cost.transformer.experts is None else [self.linked_pace_s]
        return [self.peak_s] if self.space.is_split else [self.pace_s, self.linked_pace_s, *spread]

    @cached_property
    def _ideal(self) -> LayerTable:
        """Layers where links cost nothing."""
        return self.layer_table(self._group, has_links=False, best=BEST)

    @cached_property
    def _linked(self) -> Mapping[tuple[int, ...], LayerTable]:
        """Layers with the real links, by what is computed again."""
        found = {}
        for one in ({"recompute": int(Recompute.NONE), "recompute_modules": 0}, *self._again):
            row = self._filled({name: np.array([value]) for name, value in one.items()})
            best = {name: int(row[name][0]) for name in BEST}
            found[tuple(one.values())] = self.layer_table(self._group, has_links=True, best=best)
        return found

    def peak_s(self, nodes: Columns) -> Floats:
        """Return the step at the highest rate that was fitted, whatever the micro-batch."""
        number = nodes["tensor"] * nodes["context"] * nodes["pipeline"] * nodes["data"]
        return np.asarray(peak_step_s([self._group]) * self._group.cluster.num_devices / number)

    def pace_s(self, nodes: Columns) -> Floats:
        """Return the step of the best virtual stages at the pace of the best micro-batch, where links cost nothing."""
        return self._pace_s(nodes, self._ideal)

    def linked_pace_s(self, nodes: Columns) -> Floats:
        """Return the same with the communication of layers."""
        return self._pace_s(nodes, self.linked_table)

    @property
    def linked_table(self) -> LayerTable:
        """Layers with the real links, nothing computed again."""
        return self._linked[NOTHING_AGAIN]

    def _pace_s(self, nodes: Columns, table: LayerTable) -> Floats:
        """Return the same of a table: see :mod:`planner.families.hybrid.layer_table`."""
        self._ask()
        smallest, found = self.smallest_microbatch, np.empty(len(nodes["data"]))
        for part in self.slices(len(found), _MOST_PACED):
            few = {name: column[part] for name, column in nodes.items()}
            samples = self.cost.batch // few["data"]
            each = {**few, "microbatch": np.full(len(samples), smallest)}
            least = table.of_each_sample(few, samples, self.microbatches, self._ask_uncounted, self._with_experts)
            is_open = (samples >= smallest) & np.isfinite(least.layer_s).all(axis=0)  # some way spreads its experts
            with np.errstate(invalid="ignore"):  # of what is not open
                found[part] = np.where(is_open, self._any_schedule_s(each, least, rounds_of=samples), inf)
        return found

    def _with_experts(self, nodes: dict[str, Ints]) -> tuple[Columns, Ints]:
        """Return nodes in every way that their experts may be spread, and whose they are."""
        free = {name: self.space.axes[name].values for name in ("expert", "expert_tensor") if name not in nodes}
        return self.space.below(nodes, free)

    def layers_s(self, nodes: Columns) -> Floats:
        """Return the step of the best virtual stages with the communication of layers."""
        found = np.empty(len(nodes["tensor"]))
        for part in self.slices(len(found), _MOST_PACED):
            few = {name: column[part] for name, column in nodes.items()}
            found[part] = self._any_schedule_s(few, self.linked_table.of(few, self._ask_uncounted))
        return found

    def ordered_s(self, nodes: Columns) -> Floats:
        """Return the step of the best order of ranks, with what replicas exchange.

        Tensor ranks are near each other in some orders, and replicas in others. With m micro-batches of x seconds a
        device on average, and R and G of reductions and gathers, no more than x is hidden of these: a step takes no
        less than ``(m - 1) x + R + G``. With ZeRO 3 all of m x may hide some.
        """
        rows, back = self._exchanged.of(nodes, self._least_exchanged)
        number = self.cost.batch // (nodes["data"] * nodes["microbatch"])
        counts = np.array([*self.cost.transformer.kind_counts.values()])
        shown = np.ones(len(number))
        if _SHARDS_WEIGHTS in self.space.axes["zero"].values:
            _, owner = self.space.below(nodes, {"zero": (_SHARDS_WEIGHTS,)})
            shown[owner] = 0.0
        found = np.full(len(number), inf)
        for table, exchanged_s in zip(self._by_order.values(), rows[:, back], strict=True):
            least = table.of(nodes, self._ask_uncounted)
            computed_s = (number - 1) * (counts @ least.layer_s) + number * (least.embedding_s + least.head_s)
            behind_s = shown * computed_s / nodes["pipeline"] + exchanged_s
            found = np.minimum(found, np.maximum(self._any_schedule_s(nodes, least), behind_s))
        return found

    @cached_property
    def _by_order(self) -> Mapping[tuple[str, ...], LayerTable]:
        """Layers with the real links, nothing computed again, by the order of ranks but for the pipeline's place."""
        axes, best = self.space.axes, self.linked_table.best
        found: dict[tuple[str, ...], LayerTable] = {}
        for one in axes["order"].values:
            order = {**axes, "order": Axis(name="order", values=(one,))}
            names = tuple(name for name in ORDERS[one] if name != "pipeline")
            found.setdefault(names, LayerTable.kept(self._group, order, has_links=True, best=best, split=self._split))
        return found

    @cached_property
    def _exchanged(self) -> KnownNodes:
        """By degrees, what replicas exchange at the least in each of these orders."""
        return KnownNodes({name: self.space.axes[name].values for name in COARSE}, num_rows=len(self._by_order))

    def _least_exchanged(self, few: Columns) -> Floats:
        """Return what replicas exchange in each order, in shards or not; nothing where other layouts exchange less.

        With the largest micro-batch: ZeRO 2 and 3 may exchange in every one.
        """
        size = len(few["tensor"])
        found = np.zeros((len(self._by_order), size))
        if self._folded or any(self.space.axes["shard"].values):
            return found
        zeros = self.space.axes["zero"].values
        for row, names in enumerate(self._by_order):
            order = np.full(size, ORDERS.index((*names, "pipeline")))
            columns = {**few, "order": order, "microbatch": self.cost.batch // few["data"]}
            layouts = [self._group.layouts(self._filled({**columns, "zero": np.full(size, one)})) for one in zeros]
            found[row] = np.min([least_exchanged_s(self._group.figures, one) for one in layouts], axis=0)
        return found

    def room_s(self, nodes: Columns) -> Floats:
        """Return the same of the least recomputation that leaves room; infinite where none does."""
        codes, share = self._recomputations(nodes)
        found = np.where(codes == 0, inf, 0.0)
        for place, again in enumerate(self._again):
            if again["recompute"] == Recompute.NONE:
                continue
            at = np.flatnonzero(
                (codes & self._none == 0) & (codes >> place & 1 == 1)
            )  # each that leaves room may be the best
            if not len(at):
                continue
            columns = {name: column[at] for name, column in nodes.items()}
            least = self._linked[tuple(again.values())].of(columns, self._ask_uncounted)
            if again["recompute"] == Recompute.FULL:
                least = self._linked[NOTHING_AGAIN].of(columns, self._ask_uncounted).mixed(least, share[at])
            seconds = self._any_schedule_s(columns, least)
            found[at] = np.minimum(np.where(found[at] == 0.0, inf, found[at]), seconds)
        return found

    def _any_schedule_s(self, nodes: Columns, least: LeastSeconds, *, rounds_of: Ints | None = None) -> Floats:
        """Return seconds that no schedule goes below, or not the one that is decided; transfers cost nothing.

        Parameters
        ----------
        least
            Seconds of one micro-batch, of each node.
        rounds_of
            What the stages must divide, where there are virtual stages; left out: the number of micro-batches. Of any
            of their sizes they divide the samples.
        """
        layouts = self._group.layouts(self._filled(nodes))
        if "interleave" not in nodes:  # with the most virtual stages that a device may have a stage waits least
            most = max(self.space.axes["interleave"].values, default=1)
            chunks = np.clip((self.cost.transformer.num_layers + 2) // nodes["pipeline"], 1, most)
            number = layouts.num_microbatches if rounds_of is None else rounds_of
            layouts = replace(layouts, interleave=np.where(number % nodes["pipeline"] == 0, chunks, 1))
        if not self._puts_off:
            return self._passed_s(layouts, least, is_decided="interleave" in nodes)
        found = self._late_s(layouts, least)
        plain = np.flatnonzero(nodes.get("schedule", np.full(len(found), Schedule.ZB_H1)) < Schedule.ZB_H1)
        if len(plain):
            found[plain] = self._passed_s(layouts.of(plain), least.of(plain), is_decided="interleave" in nodes)
        return found

    def _late_s(self, layouts: Layouts, least: LeastSeconds) -> Floats:
        """Return the same where gradients of weights may wait, or virtual stages turn at the last device."""
        if self._folded:  # their first device has both ends, and others share out the rest
            counts = np.array([*self.cost.transformer.kind_counts.values()])
            whole_s = counts @ least.layer_s + least.embedding_s + least.head_s
            return np.asarray(layouts.num_microbatches * whole_s / layouts.pipeline)
        _, stages = self._alike(layouts, least)
        devices = (stages.first, stages.last)
        busiest = np.maximum.reduce([np.broadcast_to(device.both_s, len(layouts)) for device in devices])
        busiest = np.maximum(busiest, np.where(layouts.pipeline > 2, stages.middle.both_s, 0.0))
        if len(least.layer_s) > 1:
            busiest = np.maximum(busiest, self._busiest_s(layouts, least))
        return np.asarray(layouts.num_microbatches * busiest)

    def _passed_s(self, layouts: Layouts, least: LeastSeconds, *, is_decided: bool) -> Floats:
        """Return the same of GPipe and 1F1B: before a stage works, and behind, micro-batches pass those before it.

        ``is_decided``: whether there are no other virtual stages; else layers of several kinds are all alike, or some
        device has the busiest mean.
        """
        is_known = is_decided | (layouts.interleave == 1)
        if len(least.layer_s) > 1 and is_known.all():
            return self._of_stages_s(layouts, least)
        cut, stages = self._alike(layouts, least)
        found = lower_bound_s(stages, layouts, cut)
        if len(least.layer_s) == 1:
            return found
        found = np.maximum(found, layouts.num_microbatches * self._busiest_s(layouts, least))
        known = np.flatnonzero(is_known)
        if len(known):
            found[known] = self._of_stages_s(layouts.of(known), least.of(known))
        return found

    def _of_stages_s(self, layouts: Layouts, least: LeastSeconds) -> Floats:
        """Return the same of stages whose layers are known: a stage does its work for every micro-batch.

        The first virtual stages of those before it are passed once each way.
        """
        busy = busiest_stages(self.cost.transformer, layouts)

        def of_layers(layers: Ints) -> Floats:
            return np.asarray((layers * least.layer_s[:, None]).sum(axis=0))

        is_first, is_last = busy.index == 0, busy.index == layouts.pipeline - 1
        own_s = of_layers(busy.layers) + is_first * least.embedding_s + is_last * least.head_s
        passed_s = of_layers(busy.before) + ~is_first * least.embedding_s
        return np.asarray((layouts.num_microbatches * own_s + passed_s).max(axis=0))

    @property
    def _puts_off(self) -> bool:
        """Whether a schedule may compute gradients of weights later."""
        return max(self.space.axes["schedule"].values, default=0) >= Schedule.ZB_H1

    def _busiest_s(self, layouts: Layouts, least: LeastSeconds) -> Floats:
        """Return seconds of a micro-batch that some device is not under, whatever layers virtual stages give it.

        The mean of all devices; and of those with most layers the one with fewest of the quickest kind.
        """
        network, pipeline, by_kind = self.cost.transformer, layouts.pipeline, least.layer_s
        counts = np.array([*network.kind_counts.values()])
        mean_s = (counts @ by_kind + least.embedding_s + least.head_s) / pipeline
        return np.asarray(np.maximum(mean_s, fullest_s(network, by_kind, pipeline)[0]))

    def _alike(self, layouts: Layouts, least: LeastSeconds) -> tuple[EvenCut, Stages]:
        """Return the cuts and devices of layouts as if all layers were of the kind that takes least."""
        cut = EvenCut.of(self.cost.transformer.num_layers, layouts)
        quickest = np.argmin(least.layer_s, axis=0)[None]
        both, ahead = (np.take_along_axis(one, quickest, axis=0)[0] for one in (least.layer_s, least.layer_forward_s))
        ends = ((least.embedding_forward_s, least.embedding_s), (least.head_forward_s, least.head_s))
        times = cut_times(cut, (ahead, both), *ends)
        ahead, both = times["middle"]
        first, last = ((forward, whole - forward) for forward, whole in (times["first"], times["last"]))
        return cut, Stages.of(layouts, ahead, both - ahead, first_extra_s=first, last_extra_s=last)

    @property
    def _some_chunks(self) -> tuple[int, ...]:
        """Numbers of virtual stages that change what devices hold: of layers of one kind those of a V."""
        known = self.space.axes["interleave"].values
        return known if len(self.cost.transformer.kind_counts) > 1 else tuple(one for one in known if one <= 2) or known

    @cached_property
    def _folded(self) -> tuple[int, ...]:
        """Schedules that may be taken and turn at the last device."""
        return tuple(one for one in self.space.axes["schedule"].values if one >= Schedule.ZB_V)

    def fits(self, nodes: Columns) -> Floats:
        """Return infinity where nothing fits, and else 0."""
        return np.where(self._has_room(nodes, self._most_saving), 0.0, inf)

    def _has_room(self, nodes: Columns, again: Sequence[Mapping[str, int]]) -> Bools:
        """Return whether some layout below nodes of the first levels fits, with one of what may be computed again."""
        found = np.zeros(len(nodes["tensor"]), dtype=bool)
        is_open = self._may_hold_states(nodes) if len(again) > 1 else ~found
        for some in (again[:1], again[1:]):  # most often the first does; all others at once
            left = np.flatnonzero(is_open & ~found)
            if not some or not len(left):
                break
            columns, owner, _ = self._with_each({name: column[left] for name, column in nodes.items()}, some)
            found[left[owner[self._may_fit(columns)]]] = True
        return found

    def _may_hold_states(self, nodes: Columns) -> Bools:
        """Return whether some layout below nodes may have room for its states: these are the same whatever is kept.

        What a device holds of weights, gradients and the optimiser on one stage, be it the fullest or not, is no more
        than the fullest stage holds in all, with any activations.
        """
        held = self.states_bytes(nodes)
        # Infinite: no layout of the smallest micro-batch at all.
        return np.asarray((held <= self._limit_bytes * _ROUNDING) | np.isinf(held))

    def states_bytes(self, nodes: Columns) -> Floats:
        """Return the bytes of states that no layout below nodes, of the smallest micro-batch if open, is under."""
        held = np.full(len(nodes["tensor"]), inf)
        on_device = {name: (0,) for name in AWAY if 0 in self.space.axes[name].values}
        self._over_memory(nodes, {**self._free_memory, **on_device}, held, _states_bytes)
        return held

    def _with_each(self, nodes: Columns, again: Sequence[Mapping[str, int]]) -> tuple[dict[str, Ints], Ints, Ints]:
        """Return nodes once for each of what may be computed again, as rules allow; whose they are, and which it is."""
        free = {name: tuple(dict.fromkeys(one[name] for one in again)) for name in ("recompute", "recompute_modules")}
        columns, owner = self.space.below(nodes, free)
        place = np.full(len(owner), -1)
        for index, one in enumerate(again):
            place[np.logical_and.reduce([columns[name] == value for name, value in one.items()])] = index
        kept = place >= 0
        return {name: column[kept] for name, column in columns.items()}, owner[kept], place[kept]

    def _may_fit(self, nodes: Columns) -> Bools:
        """Return whether some layout below nodes fits, of which is decided what is computed again.

        Stages of the fewest chunks are looked at first, and others where these do not fit: of layers of several kinds
        chunks may share them out better. So are larger micro-batches where the smallest does not fit, though all but
        what is temporary would: under GPipe as many samples are in flight whatever a micro-batch has, and the last
        stage's logits of one are gone by the time that its layers run backward.
        """
        found = np.zeros(len(nodes["tensor"]), dtype=bool)
        chunks = self._free_memory.get("interleave", ())
        for some in (chunks[:1], chunks[1:]) if len(chunks) > 1 else (chunks,):
            left = np.flatnonzero(~found)
            if not len(left):
                break
            free = {**self._free_memory, **({"interleave": some} if some else {})}
            columns = {name: column[left] for name, column in nodes.items()}
            found[left] = self._smallest_memory(columns, free) <= self._limit_bytes * _ROUNDING
        if "microbatch" in nodes or not self.may_need_less or found.all():
            return found
        left = np.flatnonzero(~found)
        few, held = {name: column[left] for name, column in nodes.items()}, np.full(len(left), inf)
        self._over_memory(few, self._free_memory, held, lambda terms: terms["total"] - terms["temporary"])
        # Infinite: no layout of the smallest one at all.
        left = left[(held <= self._limit_bytes * _ROUNDING) | np.isinf(held)]
        few = {name: column[left] for name, column in nodes.items()}
        columns, owner = self.space.below(few, {"microbatch": self.microbatches})
        if len(owner):
            found[left[owner[self._may_fit(columns)]]] = True
        return found

    @property
    def _most_saving(self) -> Sequence[Mapping[str, int]]:
        """What may be computed again among which one needs least memory: all, where that is allowed.

        Or nothing, where activations may wait on the host.
        """
        if any(any(self.space.axes[name].values) for name in AWAY):
            return self._again
        return self._most_again

    @property
    def _none(self) -> int:
        """The bit of computing nothing again; 0 where that is not allowed."""
        return sum(1 << place for place, one in enumerate(self._again) if one["recompute"] == Recompute.NONE)

    @cached_property
    def _rooms(self) -> KnownNodes:
        """By degrees and micro-batch, which recomputations leave room, and the share where they are of whole layers."""
        return KnownNodes({name: self.space.axes[name].values for name in (*COARSE, "microbatch")}, num_rows=2)

    def _recomputations(self, nodes: Columns) -> tuple[Ints, Floats]:
        """Return which recomputations leave room and may be the best, as bits in the order of :attr:`_again`.

        Where none is needed it is the only one. And the least share of the layers of a stage, where whole ones are.
        """

        def worked_out(few: Columns) -> Floats:
            found, share = np.zeros(len(few["tensor"]), dtype=np.int64), np.zeros(len(few["tensor"]))
            is_each = len(self._most_saving) > 1  # any of which may need least
            left = np.flatnonzero(self._may_hold_states(few) if is_each else self._has_room(few, self._most_saving))
            none, full = ([one for one in self._again if one["recompute"] == kind] for kind in NONE_AND_ALL)
            if none and len(left):
                found[left] |= np.where(
                    self._has_room({name: column[left] for name, column in few.items()}, none), self._none, 0
                )
                left = left[found[left] == 0]
            if not len(left):
                return np.array([found.astype(np.float64), share])
            columns = {name: column[left] for name, column in few.items()}
            # Where all layers of a stage have room is known, and a set that drops nothing leaves none that was missing.
            some = [one for one in self._again if one not in none and (is_each or one not in full)]
            some = [one for one in some if one in full or self._dropped(one) or not none]
            found[left] |= self._sets_with_room(columns, some, has_order=not is_each)
            if full:
                if is_each:
                    has_room = found[left] > 0
                    left, columns = left[has_room], {name: column[has_room] for name, column in columns.items()}
                found[left] |= 1 << self._again.index(full[0])
                share[left] = self._least_share(columns)
            return np.array([found.astype(np.float64), share])

        (codes, shares), back = self._rooms.of(nodes, worked_out)
        return np.asarray(codes.astype(np.int64)[back]), np.asarray(shares[back])

    def _sets_with_room(self, nodes: Columns, some: Sequence[Mapping[str, int]], *, has_order: bool) -> Ints:
        """Return which of what may be computed again leaves room, as bits in the order of :attr:`_again`.

        Many at once: few nodes take as long as many. But ``has_order``: of sets of modules, those first that drop most.
        A set that drops less keeps no less in any layer, so that a layout holds no less with it than weights, states
        and activations with the other one, be the temporary bytes of this one more. Rules tell no such sets apart but
        where activations may wait on the host.
        """
        found, beyond = np.zeros((2, len(nodes["tensor"])), dtype=np.int64)
        places = [self._again.index(one) for one in some]
        drops = {
            place: self._dropped(one) if has_order else frozenset() for place, one in zip(places, some, strict=True)
        }
        wider = {one: sum(1 << other for other in places if drops[one] < drops[other]) for one in places}
        inner = [one for one in places if wider[one]]
        for asked in ([one for one in places if not wider[one]], inner):
            columns, owner, index = self._with_each(nodes, [self._again[one] for one in asked])
            place, outer = (np.array(one, dtype=np.int64)[index] for one in (asked, [wider[one] for one in asked]))
            rows = np.flatnonzero(beyond[owner] & outer == 0)
            columns, owner, bits = {name: one[rows] for name, one in columns.items()}, owner[rows], 1 << place[rows]
            has_room = self._may_fit(columns)
            np.bitwise_or.at(found, owner, np.where(has_room, bits, 0))
            if not inner or asked is inner:
                break
            left = np.flatnonzero(~has_room)
            held, columns = np.full(len(left), inf), {name: one[left] for name, one in columns.items()}
            self._over_memory(columns, self._free_memory, held, lambda terms: terms["total"] - terms["temporary"])
            is_over = (held > self._limit_bytes * _ROUNDING) & (held < inf)  # infinite: there is no such layout
            np.bitwise_or.at(beyond, owner[left], np.where(is_over, bits[left], 0))
        return found

    def _dropped(self, again: Mapping[str, int]) -> frozenset[tuple[object, str]]:
        """Return what layers do not keep with a set of modules; of whole layers nothing is told apart."""
        return dropped_outputs(self.cost.transformer, again["recompute_modules"], self._group.kernels)

    def _least_share(self, nodes: Columns) -> Floats:
        """Return the least share of a stage's layers that must be computed again, where some may be.

        With next to no layer computed again, but an encoder, which then is, too, the fullest stage holds ``N`` bytes,
        ``A`` of them activations, of which a share s of layers saves no more than ``s A``: so ``s >= (N - limit) / A``.
        A stage of fewer layers, one at the most, has as many computed again, so that the one of most layers may have a
        share a little less.
        """
        if not any(self.space.axes["recompute_layers"].values):
            return np.ones(len(nodes["tensor"]))
        found = np.full(len(nodes["tensor"]), inf)

        def shares(held: Mapping[str, Floats]) -> Floats:
            return (held["total"] - self._limit_bytes * _ROUNDING) / np.maximum(held["activations"], 1.0)

        on_device = {name: (0,) for name in AWAY if 0 in self.space.axes[name].values}  # as all do that compute again
        again = {"recompute": int(Recompute.FULL), "recompute_layers": _NEXT_TO_NONE}
        self._over_memory(nodes, {**self._free_memory, **on_device}, found, shares, again)
        layers = self.cost.transformer.num_layers
        most = -(-layers // nodes["pipeline"])
        less = np.where(layers % nodes["pipeline"] > 0, (most - 1) / most, 1.0)
        return np.asarray(np.clip(found, 0.0, 1.0) * less)

    @property
    def may_need_less(self) -> bool:
        """Whether a larger micro-batch may need less memory: of other schedules than 1F1B."""
        return self._may_lack or bool(self._folded)

    @cached_property
    def _may_lack(self) -> bool:
        """Whether there may be no 1F1B: on TPUs stages go with GPipe alone."""
        is_open = int(Schedule.ONE_F_ONE_B) in self.space.axes["schedule"].values
        return not is_open or PROGRAMS[self._group.program].fills_stages or self._group.is_tpu

    @cached_property
    def _free_memory(self) -> Mapping[str, Sequence[int]]:
        """Decisions behind the first levels on which memory depends, and their values among which one needs least."""
        plain, schedules = int(Schedule.ONE_F_ONE_B), self.space.axes["schedule"].values
        free: dict[str, Sequence[int]] = {
            "sequence_parallel": (0, 1),
            # 1F1B keeps no more than the others, but for some that turn at the last device.
            "schedule": schedules if self._may_lack else (plain, *self._folded),
        }
        if self._folded or len(self.cost.transformer.kind_counts) > 1:  # virtual stages may share layers out better
            free["interleave"] = self._some_chunks
        return free

    def smallest_memory(self, nodes: Columns) -> Floats:
        """Return bytes that no layout below nodes of the first levels is under; infinity where there is none."""
        found = np.full(len(nodes["tensor"]), inf)
        columns, owner, _ = self._with_each(nodes, self._most_saving)
        np.minimum.at(found, owner, self._smallest_memory(columns, self._free_memory))
        return found

    def communication_s(self, nodes: Columns) -> Floats:
        """Return the seconds with the real links and the smallest bubble.

        Work that is done again takes longer, but may hide more of what replicas exchange: of stages that are unlike
        both may be of some use, so that the least of each part is taken (:meth:`_best_parts`).
        """

        def seconds(columns: Columns) -> Floats:
            parts, interval = self._best_parts(columns)
            step = self._any_schedule_s(columns, LeastSeconds.of_interval(self.cost.transformer, interval))
            return np.maximum(self._busy_s(columns, parts), step) + parts["data"] + parts["optimizer"]

        free: dict[str, Sequence[int]] = {"zero": EVERY_ZERO, "shard": self.space.axes["shard"].values}
        found = np.full(len(nodes["tensor"]), inf)
        columns, owner = self._with_recomputation(nodes)
        if len(owner):
            least = partial(self._of_each_context, seconds=lambda nodes: seconds(self._with_share(nodes)))
            np.minimum.at(found, owner, self._minimum(columns, free, least))
        return found

    def _busy_s(self, columns: Columns, parts: Mapping[str, Floats]) -> Floats:
        """Return what the busiest stage computes and sends."""
        busy = sum((parts[name] for name in LAYER_PARTS), np.zeros(len(columns["pipeline"])))
        # Interleaved stages may send beside computing, and what fills a pipeline is no part of this bound.
        is_beside = (columns["interleave"] > 1) & self._group.software.overlaps_transfers
        return busy + np.where(is_beside, 0.0, parts["pipeline"])

    def _may_show(self, nodes: Columns, overlap: str = "") -> Bools:
        """Return whether layers that take less by an overlap, or by anything, may make a step longer.

        Per second that each layer takes less the busiest stage gains as many as it has layers, and another one shows
        all but the contention's share of as many as it has.
        """
        hidden = 1 - self._group.constants.contention
        first, back = distinct(nodes, ("pipeline", "interleave", "schedule"))
        rows = zip(*(nodes[name][first].tolist() for name in ("pipeline", "interleave", "schedule")), strict=True)
        network, cut = self.cost.transformer, self.cost.first.cut
        found = [_evenness(network, *row, cut, of_experts=overlap == "overlap_expert") < hidden for row in rows]
        return np.array(found, dtype=bool)[back]

    def _of_each_context(self, nodes: Columns, seconds: Bound) -> Floats:
        """Return the same of each method of context parallelism, with all overlaps that are open."""
        methods = self.space.axes["context_method"].values
        if "context_method" in nodes or len(methods) == 1:
            return seconds(nodes)
        if len(self.cost.transformer.kind_counts) == 1 and not self._may_show(nodes).any():
            return seconds(nodes)
        found = np.full(len(nodes["context"]), inf)
        rules = [one for one in self.space.rules if "context_method" in one.names]
        columns = {name: np.tile(column, len(methods)) for name, column in nodes.items()}
        columns["context_method"] = np.repeat(np.array(methods, dtype=np.int64), len(found))
        holds = [rule.holds(columns) for rule in rules if columns.keys() >= set(rule.names)]
        at = np.flatnonzero(np.logical_and.reduce([np.ones(len(found) * len(methods), dtype=bool), *holds]))
        if len(at):
            np.minimum.at(found, at % len(found), seconds({name: column[at] for name, column in columns.items()}))
        return found

    def schedule_s(self, nodes: Columns) -> Floats:
        """Return the seconds with the schedule, the best of all recomputation; infinity where nothing fits.

        Computing again may shorten a schedule a little: a floor of launching is shared out to forward and backward as
        computing is, and where the floor is all that counts, more of it then falls to backward.
        """
        names = ("recompute", "recompute_modules", "recompute_layers", "zero", "shard", "offload_optimizer")
        free = {name: self.space.axes[name].values for name in (*names, "offload_percent")}
        return self._minimum(
            nodes, {**free, **self._most_away}, partial(self._of_each_context, seconds=self._without_waits_s)
        )

    @cached_property
    def _most_away(self) -> Mapping[str, Sequence[int]]:
        """Of activations on the host those values among which one leaves most room on the device, whatever goes beside.

        Nothing, all layers that may be, and all modules, or those that go beside experts which are computed again.
        """
        layers, modules = (self.space.axes[name].values for name in AWAY)
        beside = [one for one in modules if not {"expert_fc1", "moe_act"} & {*OFFLOAD_SETS[one]}]
        return {
            "offload_layers": tuple(dict.fromkeys([*layers[:1], *layers[-1:]])),
            "offload_modules": tuple(dict.fromkeys([*modules[:1], *beside[-1:], *modules[-1:]])),
        }

    def _without_waits_s(self, nodes: Columns) -> Floats:
        """Return the seconds with all overlaps, and copies to the host for nothing; infinity where it does not fit."""
        may_wait = any(any(self.space.axes[name].values) for name in AWAY)
        return self._fitting_s(nodes, dict.fromkeys(AWAY, 0) if may_wait else {})

    def memory_s(self, nodes: Columns) -> Floats:
        """Return the seconds with all overlaps; infinity where it does not fit without any.

        Copies of activations to the host end no sooner where layers take less, and hide nothing that replicas exchange.
        """
        return self._of_each_context(nodes, partial(self._fitting_s, timed={}))

    def _fitting_s(self, nodes: Columns, timed: Mapping[str, int]) -> Floats:
        """Return the same, with other values of some decisions where seconds are counted."""
        found = np.full(len(nodes["tensor"]), inf)
        overlaps = dict.fromkeys(OVERLAPS, 0)
        for part in self.slices(len(found)):
            columns = {name: column[part] for name, column in nodes.items()}
            held = self._group.memory(self._group.layouts(self._filled(columns, overlaps)))["total"]
            fits = np.flatnonzero(held <= self._limit_bytes)
            if len(fits):
                left = {name: one[fits] for name, one in columns.items()}
                left |= {name: np.full(len(fits), value) for name, value in timed.items()}
                found[part][fits] = self._of_overlaps_s(left)
        return found

    def _of_overlaps_s(self, nodes: Columns) -> Floats:
        """Return the least seconds with all overlaps, and without each of layers' that is open: all priced at once.

        What takes less in one stage may hide less of what its replicas exchange, and this may be what a step waits for:
        the least of each part is no bound of their sum. Of stages that are nearly equal it is (:func:`_evenness`), but
        where they wait for the host whatever they take.
        """
        names = [name for name in _OF_LAYERS if name not in nodes and {*self.space.axes[name].values} == {0, 1}]
        filled, number = self._filled(nodes), len(nodes["tensor"])
        waits = np.any([nodes[name] > 0 for name in AWAY], axis=0)
        shows = [(nodes[_OF_LAYERS[name]] > 1) & (self._may_show(nodes, name) | waits) for name in names]
        without = list(product((False, True), repeat=len(names)))
        places = [np.flatnonzero(np.all([*compress(shows, one), np.ones(number, bool)], axis=0)) for one in without]
        rows = np.concatenate(places)
        columns = {name: column[rows] for name, column in filled.items()}
        for index, name in enumerate(names):
            columns[name] = columns[name] * ~np.repeat([one[index] for one in without], [len(one) for one in places])
        found = np.full(number, inf)
        np.minimum.at(found, rows, self._least_s(self._group.layouts(columns)))
        return found

    def _least_s(self, layouts: Layouts) -> Floats:
        """Return the seconds of layouts, their schedules bounded."""
        return self._group.parts(layouts, is_exact=False)["total"]

    def seconds(self, nodes: Columns) -> Floats:
        """Return the seconds of points; infinite where they do not fit."""
        found = np.full(len(nodes["tensor"]), inf)
        for part in self.slices(len(found)):
            layouts = self._group.layouts({name: column[part] for name, column in nodes.items()})
            fits = np.flatnonzero(self._group.memory(layouts)["total"] <= self._limit_bytes)
            if len(fits):
                found[part][fits] = self._seconds_of(layouts.of(fits))
        return found

    def _seconds_of(self, layouts: Layouts) -> Floats:
        """Return the seconds of layouts that fit."""
        return self._group.seconds(layouts)

    def _best_parts(self, columns: Columns) -> tuple[dict[str, Floats], Mapping[str, Floats]]:
        """Return the parts of a step at its best, and the interval: the optimiser where its step is shorter.

        Of what replicas exchange shows, of stages that are unlike, the least of any work: it is least behind the most,
        without overlaps that are open, and with whole layers computed again. All are priced at once.
        """
        filled, number = self._filled(columns), len(columns["tensor"])
        at = np.flatnonzero(self._may_show(columns)) if len(self.cost.transformer.kind_counts) > 1 else np.zeros(0, int)
        open_ones = [name for name in _OF_LAYERS if name not in columns and 0 in self.space.axes[name].values]
        rows = [filled]
        for again in self._most_again if len(at) else ():
            more = {**dict.fromkeys(open_ones, 0), **again, "recompute_layers": 0}
            shown = {name: column[at] for name, column in columns.items()}
            rows.append(self._filled({**shown, **{name: np.full(len(at), value) for name, value in more.items()}}))
        layouts = self._group.layouts({name: np.concatenate([one[name] for one in rows]) for name in filled})
        every = self._group.parts(layouts, is_exact=False)
        own = layouts.of(slice(0, number))
        parts = {name: column[:number].copy() for name, column in every.items()}
        np.minimum.at(parts["data"], np.tile(at, len(rows) - 1), every["data"][number:])
        if 1 in self.space.axes["offload_optimizer"].values:
            shorter = np.minimum(parts["optimizer"], self._group.offload_s(own))
            parts["total"] = parts["total"] - parts["optimizer"] + shorter
            parts["optimizer"] = shorter
        return parts, self._group.interval(own)

    def _minimum(self, nodes: Columns, free: Mapping[str, Sequence[int]], seconds: Bound) -> Floats:
        """Return the least of what some free decisions give."""
        found = np.full(len(nodes["tensor"]), inf)
        for part in self.slices(len(found), MOST_AT_ONCE // 16):
            columns, owner = self.space.below({name: column[part] for name, column in nodes.items()}, free)
            if len(owner):
                np.minimum.at(found[part], owner, seconds(columns))
        return found

    def _with_recomputation(self, nodes: Columns) -> tuple[dict[str, Ints], Ints]:
        """Return nodes once for each recomputation that leaves room and may be the best; and whose they are."""
        codes, _ = self._recomputations(nodes)
        rows, place = np.nonzero(codes[:, None] >> np.arange(len(self._again)) & 1)
        columns = {name: column[rows] for name, column in nodes.items()}
        for name in ("recompute", "recompute_modules"):
            columns[name] = np.array([one[name] for one in self._again], dtype=np.int64)[place]
        return columns, rows

    def _with_share(self, nodes: Columns) -> dict[str, Any]:
        """Return nodes with the fewest layers, in fractions, that must be computed again where whole ones are."""
        _, share = self._recomputations(nodes)
        is_full = nodes["recompute"] == Recompute.FULL
        most = -(-self.cost.transformer.num_layers // nodes["pipeline"])
        number = np.where(is_full & (share < 1), share * most / nodes.get("interleave", 1), 0.0)
        recompute = np.where(is_full & (share == 0), int(Recompute.NONE), nodes["recompute"])
        return {**nodes, "recompute": recompute, "recompute_layers": number}

    def _smallest_memory(self, nodes: Columns, more: Mapping[str, Sequence[int]]) -> Floats:
        """Return the bytes with the best ZeRO stage, and the optimiser on the host where it may be."""
        found = np.full(len(nodes["tensor"]), inf)
        self._over_memory(nodes, more, found, lambda held: held["total"])
        return found

    def _over_memory(
        self,
        nodes: Columns,
        more: Mapping[str, Sequence[int]],
        found: Floats,
        number_of: Callable[[Mapping[str, Floats]], Floats],
        values: Mapping[str, float] | None = None,
    ) -> None:
        """Lower numbers of nodes to the least of what layouts below them give that may need least memory.

        ``values``: of decisions that are open, in place of the best.
        """
        free = {**self._most_away, "zero": EVERY_ZERO, "offload_optimizer": (0, 1), **more}
        smallest = np.full(len(found), self.smallest_microbatch)  # where open
        kept = {"microbatch": smallest, **{name: nodes[name] for name in nodes if name != "order"}}
        for part in self.slices(len(found), MOST_AT_ONCE // 64):
            columns, owner = self.space.below({name: column[part] for name, column in kept.items()}, free)
            rows = self._may_be_smallest(columns)
            columns, owner = {name: column[rows] for name, column in columns.items()}, owner[rows]
            if len(owner):
                layouts = self._group.layouts(self._filled(columns, {**dict.fromkeys(OVERLAPS, 0), **(values or {})}))
                np.minimum.at(found[part], owner, number_of(self._group.memory(layouts)))

    def _filled(self, nodes: Columns, values: Mapping[str, float] | None = None) -> dict[str, Ints]:
        """Return nodes with the decisions that are still open at their best, or at values given.

        What may run beside computing does so, unless a rule on what is decided forbids it.
        """
        length = len(next(iter(nodes.values())))
        best = {**dict.fromkeys(COARSE, 1), **BEST, "context_method": self._context_method, **(values or {})}
        found = {**{name: np.full(length, value) for name, value in best.items() if name not in nodes}, **nodes}
        for name in OVERLAPS:
            if name in nodes or name in (values or {}):
                continue
            if 1 not in self.space.axes[name].values:
                found[name] = np.zeros(length, dtype=np.int64)
            elif 0 in self.space.axes[name].values:
                asked = {**nodes, name: found[name]}
                for rule in self._overlap_rules[name]:
                    if asked.keys() >= set(rule.names):
                        found[name] = np.where(rule.holds(asked), found[name], 0)
        return found

    @cached_property
    def _overlap_rules(self) -> Mapping[str, Sequence[Rule]]:
        """Rules on each overlap and other decisions."""
        return {name: [one for one in self.space.rules if name in one.names] for name in OVERLAPS}

    def _may_be_smallest(self, columns: Columns) -> Bools:
        """Return which layouts may need least memory: sharded ones where they need no more; the host is free."""
        zero, offload_optimizer = columns["zero"], columns["offload_optimizer"] == 1
        is_alone = columns["context"] * columns["data"] == 1
        found = np.ones(len(zero), dtype=bool)
        if 1 in self.space.axes["zero"].values and sharding_is_free(self._group):
            found &= (zero > 0) | is_alone
        if 1 in self.space.axes["offload_optimizer"].values:
            found &= offload_optimizer | (zero > 1)
        return found


# -- a cut that is given, on one group ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class GivenBounds(EvenBounds):
    """Bounds of layouts whose layers are cut as a pin says: stages and chunks are decided with it.

    The levels that would ask which cut is best have none; *schedule* and *memory* price the cut itself.
    """

    @property
    def all(self) -> Sequence[Bound | None]:
        """See the module."""
        return [*self._coarse, self.fits, self.layers_s, *[None] * 4, self.schedule_s, self.memory_s]

    def _any_schedule_s(self, nodes: Columns, least: LeastSeconds, *, rounds_of: Ints | None = None) -> Floats:
        """Return seconds that no schedule goes below: a device does its own work for every micro-batch.

        Before its first one, the first chunks of the devices ahead of it have passed, and behind its last they pass
        back, but where weights' gradients may wait.
        """
        if self._folded:
            return super()._any_schedule_s(nodes, least, rounds_of=rounds_of)
        cut, chunks = self.cost.first.cut, max(self.space.axes["interleave"].values, default=1)
        held = layers_by_kind(self.cost.transformer, np.array(cut)).reshape(len(least.layer_s), chunks, -1)
        loads, firsts = np.tensordot(held.sum(axis=1).T, least.layer_s, 1), np.tensordot(held[:, 0].T, least.layer_s, 1)
        loads[0] += least.embedding_s
        loads[-1] += least.head_s
        number = self._group.layouts(self._filled(nodes)).num_microbatches
        ahead = np.cumsum(firsts, axis=0) - firsts
        if self._puts_off:
            ahead = np.zeros_like(ahead)
        return np.asarray((number * loads + ahead).max(axis=0))

    def _filled(self, nodes: Columns, values: Mapping[str, float] | None = None) -> dict[str, Ints]:
        """Return the same with the chunks that are given."""
        found = super()._filled(nodes, values)
        if "interleave" not in nodes:
            chunks = max(self.space.axes["interleave"].values, default=1)
            found["interleave"] = np.full_like(found["interleave"], chunks)
        return found
