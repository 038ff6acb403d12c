"""Layers dealt out to virtual stages otherwise than evenly: a few are looked for, all are bounded.

The grid has virtual stages (chunks) of as equal numbers of layers as there are. Other numbers may be a little better: a
device with a long head is better off with a layer less. They are no axis of the grid, which has too many of them:

- *improved*: near the best layout found, and near the best ones of the degrees of which the bound promises most, single
  layers are moved from the busiest devices to others while that helps
  (:func:`planner.families.hybrid.grid_search.chunks_improved`);
- *bounded*: :class:`ChunkBounds` counts no cut, so that what it finds is true of all; the plan says how much is open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.bounds import fullest_s, peak_step_s, sharding_is_free
from planner.families.hybrid.configuration import AWAY, COARSE, CODES_OF_CUTS, MOST_ZERO_OF_CUTS, OVERLAPS
from planner.families.hybrid.cost import PLAIN_CODES, GroupCost, HybridCost, Placement
from planner.families.hybrid.even_bounds import EVERY_ZERO, NOTHING_AGAIN, EvenBounds
from planner.families.hybrid.layer_table import LeastSeconds
from planner.families.hybrid.space import Bound
from planner.models.layouts import Bools, Ints, Layouts, Recompute
from planner.models.memory import CutMemory
from planner.search import Search
from planner.solvers.grid import Columns, Point, Wanted, solve

OTHER_CHUNKS = "hybrid layouts with other cuts of the layers into chunks"
_FEWEST = 2  # virtual stages of a device
_MOST_SETTINGS = 2  # degrees near which layers are moved
_NO_LIMIT_BYTES = 1e30  # beyond all memory there is, yet finite: rooms are subtracted
_MORE_ZERO = EVERY_ZERO[MOST_ZERO_OF_CUTS + 1 :]
_SAVING = ("sequence_parallel", "offload_optimizer")  # more of it needs less memory


# -- any cut into virtual stages on one group --------------------------------------------------------------------------


@dataclass(frozen=True)
class _AnyLayersMemory(CutMemory):
    """Bytes of devices whose layers need not follow one another, as those of several virtual stages."""

    def in_flight(self, layouts: Layouts, index: Ints) -> Ints:
        """Return the micro-batches of a device's last virtual stage, of which there are fewest, before a backward.

        ``2 (p - i - 1) + (v - 1) p + 1`` forwards, p of each virtual stage in turn: see
        :func:`planner.models.layouts.chunk_in_flight`.
        """
        most = np.minimum(layouts.num_microbatches, layouts.pipeline)
        return np.asarray(np.minimum(most, np.maximum(2 * (layouts.pipeline - index) - 1, 1)))

    def least_recomputed(self, layouts: Layouts, limit_bytes: float) -> Floats:
        """Return how many layers, in fractions, must be computed again for all to have room: shape (2, n).

        In the first row no device has more than ``ceil(L / p)`` layers, in the second it may have any. Infinite where
        there is no room at all. What ``layouts`` compute again of all layers they do besides.

        A device of ``C`` bytes for layers of ``A`` each, or ``A - B`` where they are computed again, has room for
        ``C / A`` of them, and for ``B / A`` more with each that is: at most for ``C / (A - B)``. The first devices keep
        most micro-batches, where a layer saves most. A device has a layer or more that its first virtual stage keeps of
        p micro-batches. Layers of other kinds than the most frequent one count as so many of it as they hold bytes, and
        all of them may be computed again besides.

        Layers are whole: a device takes ``floor(C / A)`` and one more that needs what is missing, and then ``A / B``
        must be computed again for each. Those of kinds that need less may all come besides.
        """
        stages, index = layouts.pipeline, np.arange(int(layouts.pipeline.max(initial=1)))[:, None]
        in_flight, counts = self.in_flight(layouts, index), np.array([*self.transformer.kind_counts.values()])
        again = np.full(len(layouts), int(Recompute.FULL))
        plain, saving = self._lines(layouts), self._lines(replace(layouts, recompute=again))
        whole, small = (np.maximum(one.of_layer(in_flight), 1.0) for one in (plain, saving))
        usual, kind = whole[np.argmax(counts)], np.argmax(counts)
        share, saved = whole / usual, np.maximum(in_flight * (plain.kept - saving.kept)[:, None], 1.0)
        place, is_there = np.where(index == 0, 0, np.where(index == stages - 1, 2, 1)), index < stages
        rest = np.minimum(*(one.rest[:, 1:].min(axis=1)[place, np.arange(len(layouts))] for one in (plain, saving)))
        first = np.minimum(layouts.num_microbatches, stages) - in_flight
        rest = rest + (index > 0) * first * np.minimum(plain.kept, saving.kept).min(axis=0)
        room = np.where(is_there, np.clip(limit_bytes * (1 + 1e-9) - rest, 0.0, _NO_LIMIT_BYTES), 0.0)
        has_room, most_room = room / usual, np.maximum(room / small[kind], room / usual)
        others = counts * (np.arange(len(counts)) != kind)
        missing = counts @ share.min(axis=1) - has_room.sum(axis=0) - others @ (saved / usual).max(axis=1)
        more = most_room - has_room
        before = np.cumsum(more, axis=0) - more
        in_parts = (np.clip(missing - before, 0.0, more) * usual / saved[kind]).sum(axis=0)
        can = missing <= more.sum(axis=0) * (1 + 1e-9)
        besides, layers, found = counts @ (share < 1).any(axis=1), len(self.transformer.layer_kinds), []
        each, least = usual / saved.max(axis=0), np.where(share < 1, inf, small).min(axis=0)
        most_room = np.maximum(room / least, room / usual)
        for most in (-(-layers // stages), np.full(len(layouts), layers)):
            held, most_held = (np.minimum(np.floor(one), most) for one in (has_room, most_room))
            left = layers - besides - held.sum(axis=0)
            one_more = np.where(held < most_held, np.minimum((held + 1) * usual - room, usual) / usual * each, inf)
            cheapest = np.where(is_there, each, inf).min(axis=0)
            one_more = np.sort(np.minimum(one_more, cheapest), axis=0)
            whole_ones = np.where(index < left, one_more, 0.0).sum(axis=0) + np.maximum(left - len(index), 0) * cheapest
            fits = can & (layers - besides <= most_held.sum(axis=0))
            found.append(np.where(fits, np.maximum(in_parts, whole_ones), inf))
        return np.array(found)


@dataclass(frozen=True)
class ChunkBounds(EvenBounds):
    """Bounds of layouts with several virtual stages a device, whatever layers each of them holds.

    With ``T_d`` what device d takes for a micro-batch, all its virtual stages together, and ``c_i`` its first one: d
    begins when a forward has passed the devices before it, and behind its last backward one passes them again, so that
    a step takes ``m T_d + sum of c_i over i < d`` or more: the mean over all d is a bound, since every virtual stage
    between the ends has a layer. Layers are whole: some device has ``ceil(L / p)`` or more
    (:func:`planner.families.hybrid.bounds.fullest_s`).

    Memory: of all layers of a device as many micro-batches as of its last virtual stage, and of one as many as of its
    first; so many layers as have no room so must be computed again, where some layers alone may be. Of schedules that
    turn at the last device nothing is ruled out by memory.
    """

    @property
    def all(self) -> list[Bound]:
        """See the module."""
        return [*self._coarse, self.fits, self.layers_s]

    def seconds(self, nodes: Columns) -> Floats:
        """Return the bound with what is computed again, of nodes whose micro-batch is decided."""
        return np.where(np.isinf(self.fits(nodes)), inf, self.room_s(nodes))

    def room_s(self, nodes: Columns) -> Floats:
        """Return the same of the least recomputation that leaves room; infinite where none does."""
        found = np.full(len(nodes["tensor"]), inf)
        for again in self._again:
            least, number = (
                self._linked[tuple(again.values())].of(nodes, self._ask_uncounted),
                self._least_recomputed(nodes, again),
            )
            more_s = np.where(number > 0, inf, 0.0)
            if self._is_partly(again):
                whole, least = least, self._linked[NOTHING_AGAIN].of(nodes, self._ask_uncounted)
                each_s = np.broadcast_to((whole.layer_s - least.layer_s).min(axis=0), number.shape)
                # Infinite where there is no room, even of frozen layers, which nothing is computed again of.
                more_s = np.multiply(number, each_s, out=np.full_like(number, inf), where=number < inf)
            found = np.minimum(found, self._any_schedule_s(nodes, least, more_s=more_s))
        return found

    def _any_schedule_s(
        self, nodes: Columns, least: LeastSeconds, *, rounds_of: Ints | None = None, more_s: Floats | None = None
    ) -> Floats:
        """Return seconds that no schedule of any cut into virtual stages goes below; infinite where there is none.

        ``more_s``: that layers take longer, whichever they are, where no device has more of them than ``ceil(L / p)``,
        and where one has; shape (2, n), of a micro-batch.
        """
        layouts = self._group.layouts(self._filled(nodes))
        stages, number = layouts.pipeline, layouts.num_microbatches
        counts = np.array([*self.cost.transformer.kind_counts.values()])
        all_s = counts @ least.layer_s + least.embedding_s + least.head_s
        first_s = least.layer_s.min(axis=0) * (stages - 1) * (stages - 2) / (2 * stages)
        if self._puts_off:  # or ways meet
            first_s = np.zeros(1)
        handed_s = (2 if self._folded else 2 * _FEWEST - 1) * self._group.constants.send_s * number  # by an end
        means_s = number * (all_s + (np.zeros((2, 1)) if more_s is None else more_s)) / stages + first_s
        busiest_s = fullest_s(self.cost.transformer, least.layer_s, stages)
        found = np.maximum(means_s, number * busiest_s).min(axis=0) + handed_s
        rounds_of = number if rounds_of is None else rounds_of
        can = (stages > 1) & (2 * stages <= self.cost.transformer.num_layers + 2)
        can &= bool(self._folded) | (rounds_of % stages == 0)
        return np.where(can, found, inf)

    def _has_room(self, nodes: Columns, again: Sequence[Mapping[str, int]]) -> Bools:
        """Return whether there is room for all layers with one of what may be computed again."""
        found = np.zeros(len(nodes["tensor"]), dtype=bool)
        for one in again:
            number = self._least_recomputed(nodes, one)[1]
            found |= (number < inf) if self._is_partly(one) else (number == 0)
        return found

    def _is_partly(self, again: Mapping[str, int]) -> bool:
        """Return whether some layers alone may be computed again."""
        return again["recompute"] == Recompute.FULL and any(self.space.axes["recompute_layers"].values)

    def _least_recomputed(self, nodes: Columns, again: Mapping[str, int]) -> Floats:
        """Return how many layers must be computed again, beside what all do: see :class:`_AnyLayersMemory`."""
        size = len(nodes["tensor"])
        found = np.zeros((2, size))
        if self._folded or any(any(self.space.axes[name].values) for name in AWAY):
            return found
        one = {"recompute": int(Recompute.NONE), "recompute_modules": 0} if self._is_partly(again) else again
        zeros = [one for one in self.space.axes["zero"].values if one <= MOST_ZERO_OF_CUTS] or [0]
        zeros = [max(zeros)] if sharding_is_free(self._group) else zeros
        saving = {name: max(self.space.axes[name].values) for name in _SAVING}
        plain = {**dict.fromkeys(OVERLAPS, 0), **PLAIN_CODES, **CODES_OF_CUTS}
        fixed = {**plain, **saving, **one, "order": 0, "context_method": self._context_method}
        columns = {name: np.full(size, value) for name, value in fixed.items()}
        columns |= {"microbatch": np.full(size, self.smallest_microbatch), **nodes}
        _, owner = self.space.below({**nodes, "microbatch": columns["microbatch"]}, {"zero": _MORE_ZERO})
        left = np.setdiff1d(np.arange(size), owner)  # others may shard more than stages without virtual ones know
        for part in self.slices(len(left)):
            few = {name: column[left[part]] for name, column in columns.items()}
            each = [self._group.layouts({**few, "zero": np.full(len(left[part]), zero)}) for zero in zeros]
            found[:, left[part]] = np.min(
                [self._memory.least_recomputed(one, self._limit_bytes) for one in each], axis=0
            )
        return found

    @cached_property
    def _memory(self) -> _AnyLayersMemory:
        """Bytes of devices of any layers."""
        own = HybridCost(self.cost.groups, Placement.STAGES).memory
        return _AnyLayersMemory(**{one.name: getattr(own, one.name) for one in fields(own)})


def all_chunks_bound_s(cost: GroupCost, best_s: float, search: Search) -> tuple[float, list[Point]]:
    """Return what no layout with several chunks a device takes less than, and degrees where one may be the quickest.

    At most ``best_s``, and infinite for none. Degrees are those of the least bounds below ``best_s``, the best first.
    """
    bounds = ChunkBounds(cost.even, search)
    if max(bounds.space.axes["interleave"].values, default=1) == 1:
        return inf, []
    grid = bounds.space.grid()
    levels = tuple(
        replace(level, bound=bound) for level, bound in zip(grid.levels[: len(bounds.all)], bounds.all, strict=True)
    )
    part = search.part(search.left_s, good_enough=-inf, cutoff=best_s, num_alternatives=0)
    answer = solve(
        replace(grid, levels=levels),
        bounds.seconds,
        part,
        Wanted(num_answers=_MOST_SETTINGS, group_by=COARSE, is_strict=True, counts=False),
    )
    points = [answer.solution.value, *(point for _, point in answer.others)]
    settings: list[Point] = [{name: point[name] for name in COARSE} for point in points if point is not None]
    return min(max(answer.solution.bound, peak_step_s([cost])), best_s), settings
