"""Layers dealt out to virtual stages otherwise than evenly: a few are looked for, all are bounded.

The grid has virtual stages (chunks) of as equal numbers of layers as there are. Other numbers may be a little better: a
device with a long head is better off with a layer less. They are no axis of the grid, which has too many of them:

- *improved*: near the best layouts found, with each number of chunks, single layers are moved from the busiest devices
  to others while that helps (:func:`planner.families.hybrid.grid_search.chunks_improved`);
- *bounded*: :class:`ChunkBounds` counts no cut, so that what it finds is true of all; the plan says how much is open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.bounds import EVERY_ZERO, NOTHING_AGAIN, CutBounds, EvenBounds, peak_step_s
from planner.families.hybrid.configuration import MOST_ZERO_OF_CUTS
from planner.families.hybrid.cost import GroupCost, HybridCost, Placement
from planner.families.hybrid.layer_table import LeastSeconds
from planner.families.hybrid.space import Bound
from planner.models.layouts import Bools, Ints, Layouts, Recompute, Schedule
from planner.models.memory import CutMemory
from planner.search import Search
from planner.solvers.grid import Columns, solve

OTHER_CHUNKS = "hybrid layouts with other cuts of the layers into chunks"
_SAVING = ("sequence_parallel", "offload_optimizer")  # more of it needs less memory


# -- any cut into virtual stages on one group --------------------------------------------------------------------------


@dataclass(frozen=True)
class _AnyLayersMemory(CutMemory):
    """Bytes of devices whose layers need not follow one another, as those of several virtual stages."""

    @cached_property
    def _windows(self) -> tuple[Ints, Ints]:
        """As many layers of each kind as there can be: (kinds, 1, L + 1)."""
        counts = np.array([*self.transformer.kind_counts.values()])[:, None]
        size = np.arange(len(self.transformer.layer_kinds) + 1)
        few, many = np.maximum(size - (size[-1] - counts), 0), np.minimum(size, counts)
        return few[:, None], many[:, None]


@dataclass(frozen=True)
class ChunkBounds(EvenBounds):
    """Bounds of layouts with several virtual stages a device, whatever layers each of them holds.

    With ``T_d`` what device d takes for a micro-batch, all its virtual stages together, and ``c_i`` its first one: d
    begins when a forward has passed the devices before it, and behind its last backward one passes them again, so that
    a step takes ``m T_d + sum of c_i over i < d`` or more: the mean over all d is a bound, since every virtual stage
    between the ends has a layer. Layers are whole: some device has ``ceil(L / p)`` or more.

    Memory: as of 1F1B without virtual stages, which keeps no more of any layer than the interleaved schedule of as many
    devices; of layers of several kinds a device may have any. Of schedules that turn at the last device nothing is
    ruled out by memory.
    """

    @property
    def all(self) -> list[Bound]:
        """See the module."""
        coarse: list[Bound] = [self.peak_s] if self.space.is_split else [self.pace_s, self.linked_pace_s]
        return [*coarse, self.fits, self.layers_s]

    def seconds(self, nodes: Columns) -> Floats:
        """Return the bound with what is computed again, of nodes whose micro-batch is decided."""
        return np.where(np.isinf(self.fits(nodes)), inf, self.room_s(nodes))

    def layers_s(self, nodes: Columns) -> Floats:
        """Return the bound with the communication of layers; infinite where micro-batches go in no rounds."""
        number = self.cost.batch // (nodes["data"] * nodes["microbatch"])
        found = super().layers_s(nodes)
        return found if self._folded else np.where(number % nodes["pipeline"] == 0, found, inf)

    def room_s(self, nodes: Columns) -> Floats:
        """Return the same of the least recomputation that leaves room; infinite where none does."""
        found = np.full(len(nodes["tensor"]), inf)
        left = np.arange(len(found))
        for again in self._again:
            columns = {name: column[left] for name, column in nodes.items()}
            has_room = self._has_room(columns, [again])
            columns = {name: column[has_room] for name, column in columns.items()}
            is_partly = again["recompute"] == Recompute.FULL and any(self.space.axes["recompute_layers"].values)
            table = self._linked[NOTHING_AGAIN if is_partly else tuple(again.values())]
            seconds = self._any_schedule_s(columns, table.of(columns, self._ask))
            found[left[has_room]] = np.minimum(found[left[has_room]], seconds)
            if again["recompute"] == Recompute.NONE:
                left = left[~has_room]
        return found

    def _any_schedule_s(self, nodes: Columns, least: LeastSeconds) -> Floats:
        """Return seconds that no schedule of any cut into virtual stages goes below."""
        layouts = self._group.layouts(self._filled(nodes))
        stages, number = layouts.pipeline, layouts.num_microbatches
        counts = np.array([*self.cost.transformer.kind_counts.values()])
        mean_s = (counts @ least.layer_s + least.embedding_s + least.head_s) / stages
        first_s = least.layer_s.min(axis=0) * (stages - 1) * (stages - 2) / (2 * stages)
        if max(self.space.axes["schedule"].values, default=0) >= Schedule.ZB_H1:  # weights may wait, or ways meet
            first_s = np.zeros(1)
        found = np.maximum(number * mean_s + first_s, number * self._busiest_s(layouts, least))
        can = (stages > 1) & (2 * stages <= self.cost.transformer.num_layers + 2)
        return np.where(can, found, inf)

    def _busiest_s(self, layouts: Layouts, least: LeastSeconds) -> Floats:
        """Return seconds of a micro-batch that the device with most layers is not under."""
        most, by_kind = -(-self.cost.transformer.num_layers // layouts.pipeline), least.layer_s
        quickest_s, *others = np.sort(by_kind, axis=0)
        counts = np.array([*self.cost.transformer.kind_counts.values()])
        quick = np.minimum(counts[np.argmin(by_kind, axis=0)], most)
        return np.asarray(quick * quickest_s + (most - quick) * (others[0] if others else quickest_s))

    def _has_room(self, nodes: Columns, again: Sequence[Mapping[str, int]]) -> Bools:
        """Return whether there is room for all layers with one of what may be computed again."""
        found = np.full(len(nodes["tensor"]), bool(self._folded) or any(self.space.axes["offload_layers"].values))
        if found.any() or not len(found):
            return found
        decided = {**nodes, "microbatch": nodes.get("microbatch", np.full(len(found), self.smallest_microbatch))}
        _, owner = self.space.below(decided, {"zero": EVERY_ZERO[MOST_ZERO_OF_CUTS + 1 :]})
        found[owner] = True  # more is sharded than such cuts know
        best = {name: np.full(len(found), max(self.space.axes[name].values)) for name in _SAVING}
        stages = {name: column for name, column in decided.items() if name not in ("pipeline", "order")}
        stages |= {**best, "stages_0": nodes["pipeline"], "order": np.zeros_like(nodes["tensor"])}
        for one in again:
            found |= self._stages_bounds._has_room(stages, one)
        return found

    @cached_property
    def _stages_bounds(self) -> CutBounds:
        """Bounds of stages without virtual ones, of any layers."""
        cost = HybridCost(self.cost.groups, Placement.STAGES)
        own = cost.memory
        vars(cost)["memory"] = _AnyLayersMemory(**{one.name: getattr(own, one.name) for one in fields(own)})
        return CutBounds(cost, self.search)


def all_chunks_bound_s(cost: GroupCost, best_s: float, search: Search) -> float:
    """Return what no layout with several chunks a device takes less than; at most ``best_s``, and infinite for none."""
    bounds = ChunkBounds(cost.even, search)
    if max(bounds.space.axes["interleave"].values, default=1) == 1:
        return inf
    grid = bounds.space.grid()
    levels = tuple(
        replace(level, bound=bound) for level, bound in zip(grid.levels[: len(bounds.all)], bounds.all, strict=True)
    )
    part = search.part(search.left_s, good_enough=-inf, cutoff=best_s, num_alternatives=0)
    found = solve(replace(grid, levels=levels), bounds.seconds, part, is_strict=True, counts=False).solution
    return min(max(found.bound, peak_step_s([cost])), best_s)
