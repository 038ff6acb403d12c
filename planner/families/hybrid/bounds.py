"""Bounds of the levels of the hybrid grid: seconds that no layout below a node is under, by the cost model itself.

Each rests on one thing that can only make a step longer, and that is left out or set to its best:

- *ideal*: links that cost nothing, hence one device's seconds of the layers for each split of them. A stage does its
  own work for every micro-batch; before its first, the first chunks of the stages ahead of it have passed, and behind
  its last they pass back: with the most chunks, whose first are shortest.
- *fits*: infinite where no recomputation, ZeRO stage or host memory makes a layout fit.
- *exchange*: the real links; no bubble but that of the best chunks, no recomputation, all overlaps.
- *schedule*: the same with the schedule and its transfers, and any recomputation.
- *memory*: what is kept exactly, but for overlaps, which only ever cost memory and save time.

Where the micro-batch is decided by itself (:attr:`Space.is_split`), two stand before these: *peak*, the FLOP of the
network at the highest rate that was fitted, and whether the smallest micro-batch *fits*.

Recomputation only adds work, and more of it than exchange can hide behind; an exchange that overlaps computing never
takes longer than one that does not. Tests hold every bound against every layout of small grids.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.least import least_step_s
from planner.families.hybrid.space import COARSE, Space
from planner.models.layouts import Bools, Ints, Schedule
from planner.models.tiers import Tier
from planner.models.transformer_schedule import Stages, lower_bound_s
from planner.models.transformer_time import stage_times
from planner.search import Search
from planner.solvers.grid import MOST_AT_ONCE, Columns, OverError, distinct

__all__ = ["HybridBounds"]

_EVERY_ZERO = (0, 1, 2, 3)
_EVERY_RECOMPUTE = (0, 1, 2)
_IDEAL_TIERS = (Tier(size=1, bandwidth_bytes_per_s=float("inf")),)
_BEST = {
    "zero": 0,
    "recompute": 0,
    "is_sequence_parallel": 1,
    "schedule": int(Schedule.ONE_F_ONE_B),
    "interleave": 1,
    "is_offloaded": 0,
    "overlaps_data": 1,
    "overlaps_tensor": 1,
    "order": 0,
}


@dataclass(frozen=True)
class HybridBounds:
    """Bounds on the machines of a cost; ``memory_limit_bytes`` in place of the devices' own.

    They raise :class:`OverError` where the search is over.
    """

    cost: HybridCost
    memory_limit_bytes: float
    search: Search = field(default_factory=Search)

    @cached_property
    def space(self) -> Space:
        """What may be chosen."""
        return Space.of(self.cost)

    @property
    def all(self) -> tuple[Callable[[Columns], Floats], ...]:
        """Those of all levels but the last."""
        known = (self.ideal_s, self.fits, self.exchange_s, self.schedule_s, self.memory_s)
        return (self.peak_s, self.fits, *known) if self.space.is_split else known

    @property
    def _is_zero_bubble(self) -> bool:
        """Whether a schedule without most of the bubble may be chosen."""
        return int(Schedule.ZERO_BUBBLE) in self.space.axes["schedule"].values

    @cached_property
    def _ideal(self) -> HybridCost:
        """The cost with links that cost nothing."""
        found = replace(self.cost)
        vars(found).update(tiers=_IDEAL_TIERS, constants=replace(self.cost.constants, hop_s=0.0))
        return found

    # -- levels --------------------------------------------------------------------------------------------------------

    def peak_s(self, nodes: Columns) -> Floats:
        """Return the step at the highest rate that was fitted, whatever the micro-batch."""
        number = nodes["tensor"] * nodes["context"] * nodes["pipeline"] * nodes["data"]
        return least_step_s([self.cost]) * self.cost.cluster.num_devices / number

    def ideal_s(self, nodes: Columns) -> Floats:
        """Return the step of the best chunks where links cost nothing."""
        split = ("tensor", "context", "expert", "microbatch")
        first, back = distinct(nodes, split)
        few = {name: nodes[name][first] for name in split}
        self._ask()
        interval = self._ideal.interval(self._ideal.layouts(_filled({**few, "data": few["expert"]})))
        found = np.empty(len(back))
        for part in self.parts(len(found)):
            some = {name: column[part] for name, column in nodes.items()}
            found[part] = self._least_step_s(some, {name: array[back[part]] for name, array in interval.items()})
        return found

    def _least_step_s(self, nodes: Columns, interval: Mapping[str, Floats]) -> Floats:
        """Return seconds that no schedule goes below, whatever its chunks; transfers between stages cost nothing.

        Parameters
        ----------
        interval
            Seconds of one micro-batch through all layers, of each node.
        """
        layouts = self.cost.layouts({**_filled(nodes), "interleave": self._most_chunks(nodes)})
        times = stage_times(self.cost.transformer, layouts, interval)
        ahead, both = times["middle"]
        first, last = ((forward, whole - forward) for forward, whole in (times["first"], times["last"]))
        stages = Stages.of(layouts, ahead, both - ahead, first_extra_s=first, last_extra_s=last)
        if not self._is_zero_bubble:
            return lower_bound_s(stages, layouts)
        devices = (stages.first, stages.last)
        busiest = np.maximum.reduce([np.broadcast_to(device.both_s, len(layouts)) for device in devices])
        middle = np.where(layouts.pipeline > 2, stages.middle.both_s, 0.0)
        return np.asarray(layouts.num_microbatches * np.maximum(busiest, middle))

    def fits(self, nodes: Columns) -> Floats:
        """Return infinity where nothing fits, in the smallest micro-batch where that is open, and else 0."""
        found = np.zeros(len(nodes["tensor"]))
        least = self.least_memory(nodes)
        found[least > self.memory_limit_bytes] = np.inf
        return found

    def least_memory(self, nodes: Columns) -> Floats:
        """Return the least bytes of nodes of the first level; infinity where no layout is below."""
        plain = int(Schedule.ONE_F_ONE_B)  # keeps no more than the others
        has_plain = plain in self.space.axes["schedule"].values
        schedules = (plain,) if has_plain else self.space.axes["schedule"].values
        free = {"is_sequence_parallel": (0, 1), "schedule": schedules}
        if len(set(self.cost.transformer.layer_kinds)) > 1:  # chunks may share out unlike layers better than stages do
            free["interleave"] = self.space.axes["interleave"].values
        return self._least_memory(nodes, free)

    def exchange_s(self, nodes: Columns) -> Floats:
        """Return the seconds with the real links and the least bubble."""

        def seconds(columns: Columns) -> Floats:
            parts = self._least_parts(columns)
            names = ("compute", "tensor", "expert", "context", "launch", "pipeline")
            busy = sum((parts[name] for name in names), np.zeros(len(columns["pipeline"])))
            step = self._least_step_s(columns, self.cost.interval(self.cost.layouts(_filled(columns))))
            return np.maximum(busy, step) + parts["data"] + parts["optimizer"]

        return self._least(nodes, {"zero": _EVERY_ZERO}, seconds)

    def schedule_s(self, nodes: Columns) -> Floats:
        """Return the seconds with the schedule, the best of all recomputation; infinity where nothing fits.

        Computing again may shorten a schedule a little: a floor of launching is dealt out to forward and backward as
        computing is, and where the floor is all that counts, more of it then falls to backward.
        """

        def seconds(columns: Columns) -> Floats:
            parts = self._least_parts(columns)
            return np.asarray(parts["total"])

        found = self._least(nodes, {"zero": _EVERY_ZERO, "recompute": _EVERY_RECOMPUTE}, seconds)
        found[self._least_memory(nodes, {}) > self.memory_limit_bytes] = np.inf
        return found

    def memory_s(self, nodes: Columns) -> Floats:
        """Return the seconds with all overlaps; infinity where it does not fit without any."""
        found = np.empty(len(nodes["tensor"]))
        overlaps = {"overlaps_data": 0, "overlaps_tensor": 0}
        for part in self.parts(len(found)):
            columns = {name: column[part] for name, column in nodes.items()}
            least = self.cost.memory(self.cost.layouts(_filled(columns, overlaps)))["total"]
            total = self.cost.parts(self.cost.layouts(_filled(columns)))["total"]
            found[part] = np.where(least > self.memory_limit_bytes, np.inf, total)
        return found

    # -- what they share -----------------------------------------------------------------------------------------------

    def _most_chunks(self, nodes: Columns) -> Ints:
        """Return the most chunks that a device may have: with them a stage waits least for others."""
        most = max(self.space.axes["interleave"].values, default=1)
        return np.clip(-(-(self.cost.transformer.num_layers + 2) // nodes["pipeline"]), 1, most)

    def _least_parts(self, columns: Columns) -> dict[str, Floats]:
        """Return the parts of a step at its best, the optimiser where its step is shorter."""
        layouts = self.cost.layouts(_filled(columns))
        parts = self.cost.parts(layouts)
        if 1 in self.space.axes["is_offloaded"].values:
            shorter = np.minimum(parts["optimizer"], self.cost.offload_s(layouts))
            parts["total"] = parts["total"] - parts["optimizer"] + shorter
            parts["optimizer"] = shorter
        return parts

    def _least(self, nodes: Columns, free: Mapping[str, Sequence[int]], seconds: Callable[[Columns], Floats]) -> Floats:
        """Return the least of what some free decisions give."""
        found = np.full(len(nodes["tensor"]), np.inf)
        for part in self.parts(len(found), MOST_AT_ONCE // 16):
            columns, owner = self.space.below({name: column[part] for name, column in nodes.items()}, free)
            if len(owner):
                np.minimum.at(found[part], owner, seconds(columns))
        return found

    def _least_memory(self, nodes: Columns, more: Mapping[str, Sequence[int]]) -> Floats:
        """Return the bytes with the best recomputation, ZeRO stage, and the optimiser on the host where it may be."""
        free = {**more, "recompute": _EVERY_RECOMPUTE, "zero": _EVERY_ZERO, "is_offloaded": (0, 1)}
        found = np.full(len(nodes["tensor"]), np.inf)
        smallest = np.full(len(found), min(self.space.axes["microbatch"].values, default=1))  # needs least, where open
        kept = {"microbatch": smallest, **{name: nodes[name] for name in nodes if name != "order"}}
        for part in self.parts(len(found), MOST_AT_ONCE // 64):
            columns, owner = self.space.below({name: column[part] for name, column in kept.items()}, free)
            kept_rows = self._may_be_least(columns)
            columns, owner = {name: column[kept_rows] for name, column in columns.items()}, owner[kept_rows]
            if len(owner):
                layouts = self.cost.layouts(_filled(columns, {"overlaps_data": 0, "overlaps_tensor": 0}))
                np.minimum.at(found[part], owner, self.cost.memory(layouts)["total"])
        return found

    def parts(self, length: int, most: int = MOST_AT_ONCE // 8) -> Iterator[slice]:
        """Yield slices of a range, each of at most so many; raise an error where the search is over."""
        for start in range(0, length, most):
            self._ask()
            yield slice(start, min(start + most, length))

    def _ask(self) -> None:
        """Raise an error where the search is over."""
        if self.search.is_over:
            raise OverError

    def _may_be_least(self, columns: Columns) -> Bools:
        """Return which layouts may need least memory: ZeRO 1 needs no more than 0, and the host is free."""
        zero, is_offloaded = columns["zero"], columns["is_offloaded"] == 1
        is_alone = columns["context"] * columns["data"] == 1
        may_shard = 1 in self.space.axes["zero"].values
        may_offload = 1 in self.space.axes["is_offloaded"].values
        found = np.ones(len(zero), dtype=bool)
        found &= (zero > 0) | is_alone if may_shard else True
        found &= is_offloaded | (zero > 1) if may_offload else True
        return found


def _filled(nodes: Columns, values: Mapping[str, int] | None = None) -> dict[str, Ints]:
    """Return nodes with the decisions that are still open at their best, or at values given."""
    length = len(nodes["tensor"])
    best = {**dict.fromkeys(COARSE, 1), **_BEST, **(values or {})}
    return {**{name: np.full(length, value) for name, value in best.items()}, **nodes}
