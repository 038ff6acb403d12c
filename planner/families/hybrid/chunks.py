"""Layers dealt out to virtual stages otherwise than evenly: a few are looked for, all are bounded.

The grid has virtual stages (chunks) of as equal numbers of layers as there are. Other numbers may be a little better: a
device with a long head is better off with a layer less. They are no axis of the grid, which has too many of them:

- *improved*: of layouts that would be quickest if devices did equal work, single layers are moved between chunks while
  that helps, from numbers that are even if embedding and head count as layers (:func:`chunks_improved`);
- *bounded*: :class:`ChunkBounds` counts no cut, so that what it finds is true of all; the plan says how much is open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import product
from math import inf
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.decisions import has_depths_together
from planner.families.hybrid.bounds import fullest_s, peak_step_s, sharding_is_free
from planner.families.hybrid.configuration import (
    AWAY,
    COARSE,
    CODES_OF_CUTS,
    MOST_ZERO_OF_CUTS,
    OVERLAPS,
    uneven_rules,
)
from planner.families.hybrid.cost import OFFLOAD, PLAIN_CODES, GroupCost, HybridCost, Placement
from planner.families.hybrid.even_bounds import EVERY_ZERO, NOTHING_AGAIN, EvenBounds
from planner.families.hybrid.found import GAIN, LAYERS, Found, nothing, with_rows
from planner.families.hybrid.layer_table import LeastSeconds
from planner.families.hybrid.space import Bound, Space
from planner.models.layouts import (
    Bools,
    Ints,
    Layouts,
    Recompute,
    Schedule,
    dealt_layers,
    folded_layers,
)
from planner.models.memory import CutMemory
from planner.models.schedule import least_microbatches, played_s
from planner.models.transformer_interval import LAYER_PARTS, kind_times, mean_layer
from planner.models.transformer_schedule import chunk_bound_s, order_name
from planner.models.transformer_time import chunk_passes_s, filling_s
from planner.search import Search
from planner.solvers.grid import Columns, Point, Wanted, solve

OTHER_CHUNKS = "hybrid layouts with other cuts of the layers into chunks"
_FEWEST = 2  # virtual stages of a device
_MOST_NEAR = 6  # degrees near which layers are moved, beside known layouts,
_SPARED = 1.25  # times what fits: layouts whose even cut needs up to so much are looked at, too, of
_MOST_SPARED = 2  # degrees,
_MOST_STARTS = 12  # from so many cuts,
_HOPE = 1.02  # times the quickest of these at the most,
_MOST_MOVES = 16  # one after another
_MOST_BEGUN = 6  # cuts of one layout that are priced together, of those to begin with:
_MORE = tuple(product(range(3), range(-1, 3)))  # even where embedding and head count as so many layers more than whole
_PLACES = 9  # that chunks with one layer more than others may have
_OF_MEMORY = ("recompute", "recompute_modules", "offload_optimizer", *AWAY)
_MOST_IN_ALL = 800_000  # chunks of all cuts that are compared for a move of each start
_MOST_TASKS = 2_000_000  # of all cuts that are played together, those of the least bounds,
_MOST_ROUNDS = 4  # for so many rounds
_AT_ONCE = 8  # of these, the shortest ones, that are priced
_NO_TIME_S = 1e-30  # of a layer, to divide by
_NO_LIMIT_BYTES = 1e30  # beyond all memory there is, yet finite: rooms are subtracted
_MORE_ZERO = EVERY_ZERO[MOST_ZERO_OF_CUTS + 1 :]
_SAVING = ("sequence_parallel", "offload_optimizer")  # more of it needs less memory


# -- any cut into virtual stages on one group --------------------------------------------------------------------------


def dealt_s(num_layers: int, stages: Ints, layer_s: Floats, own_s: Floats, fewest: Ints | int = 0) -> Floats:
    """Return what the busiest of p devices takes where layers are dealt out best.

    Devices take ``c_d`` besides their ``n_d`` layers of l seconds: the least of all ``max (c_d + n_d l)`` with
    ``sum n_d = L``. It is no less than the mean T of all, nor than a device with its fewest layers. Within T devices
    have room for ``sum floor((T - c_d) / l)`` layers, and less than one a device is missing; so many of the devices
    that take least with one more take it.

    Parameters
    ----------
    num_layers, stages
        L, and p of each of n layouts.
    layer_s
        l of each; no number where there are no seconds.
    own_s
        ``c_d``, one row a device, of as many as any layout has.
    fewest
        Layers that a device has at the least, by device, too.
    """
    layer_s, is_there = np.maximum(layer_s, _NO_TIME_S), np.arange(len(own_s))[:, None] < stages
    with np.errstate(invalid="ignore"):
        mean_s = (num_layers * layer_s + np.where(is_there, own_s, 0.0).sum(axis=0)) / stages
        within_s = np.maximum(mean_s, np.where(is_there, own_s + fewest * layer_s, 0.0).max(axis=0))
        room = np.where(is_there, np.floor((within_s - own_s) / layer_s + 1e-9), 0.0)  # rounding takes none away
        missing = np.nan_to_num(np.clip(num_layers - room.sum(axis=0), 0, stages)).astype(np.int64)
        longer_s = np.sort(np.where(is_there, own_s + (room + 1) * layer_s, inf), axis=0)
        last_s = np.take_along_axis(longer_s, np.maximum(missing - 1, 0)[None], axis=0)[0]
        return np.asarray(np.where(missing > 0, np.maximum(last_s, within_s), within_s))


def _ends_s(stages: Ints, least: LeastSeconds, *, is_folded: bool) -> Floats:
    """Return what embedding and head take of each device, a row each; of a V the first one has both."""
    index = np.arange(int(stages.max(initial=1)))[:, None]
    is_last = index == (0 if is_folded else stages - 1)
    return np.asarray((index == 0) * least.embedding_s + is_last * least.head_s)


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

    Layers of one kind, or all taken to be of the quickest, are dealt out beside embedding and head: whatever numbers of
    them devices have, the busiest is not under :func:`dealt_s`. So is what a device waits for those ahead of it.

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
        fewest = number  # micro-batches, each of which an end hands on
        if rounds_of is not None:  # of any size
            fewest = np.maximum(rounds_of // max(self.microbatches), 1 if self._folded else stages)
        handed_s = (2 if self._folded else 2 * _FEWEST - 1) * self._group.constants.send_s * fewest
        means_s = number * (all_s + (np.zeros((2, 1)) if more_s is None else more_s)) / stages + first_s
        busiest_s = fullest_s(self.cost.transformer, least.layer_s, stages)
        found = np.maximum(means_s, number * busiest_s).min(axis=0)
        quickest_s, index = least.layer_s.min(axis=0), np.arange(int(stages.max(initial=1)))[:, None]
        ahead_s = 0.0 if self._puts_off else np.maximum(index - 1, 0) * quickest_s / np.maximum(number, 1)
        ways = sorted({one >= Schedule.ZB_V for one in self.space.axes["schedule"].values} or {False})
        devices_s = [_ends_s(stages, least, is_folded=is_v) + ahead_s for is_v in ways]
        dealt = [dealt_s(self.cost.transformer.num_layers, stages, quickest_s, own_s) for own_s in devices_s]
        found = np.fmax(found, number * np.min(dealt, axis=0))
        found = found + handed_s
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


@dataclass(frozen=True)
class NearBounds(EvenBounds):
    """Even layouts with chunks as if layers had been moved until no device did more than need be.

    No bounds of any cut: they rank layouts near which one is looked for. With c a mean chunk, f of it the shorter one
    of forward and backward, device d takes ``m T_d + (p - 1) c - 2 (p - 1 - d) f``, as the longest path through it does
    where all chunks are equal: the last device works from the first chunks' forwards to their backwards, and those
    ahead of it do more forwards, ``2 (p - 1 - d)`` of them, while they wait for their first backward. So much of the
    waiting is spared by layers that go to devices further ahead. The ``T_d`` are those of layers of their mean that are
    dealt out best. Even layouts have room, or need up to ``spared`` times what there is: moved layers may do with less.
    """

    spared: float = 1.0

    @property
    def _limit_bytes(self) -> float:
        """What a device may hold of an even layout."""
        return super()._limit_bytes * self.spared

    def _any_schedule_s(self, nodes: Columns, least: LeastSeconds, *, rounds_of: Ints | None = None) -> Floats:
        """Return these seconds of the virtual stages that are decided, or of the most that there may be."""
        layouts = self._group.layouts(self._filled(nodes))
        stages, number = layouts.pipeline, layouts.num_microbatches
        most = max(self.space.axes["interleave"].values, default=1)
        chunks = nodes.get("interleave", np.clip((self.cost.transformer.num_layers + 2) // stages, 1, most))
        can = (stages > 1) & (chunks > 1)
        can &= bool(self._folded) | ((number if rounds_of is None else rounds_of) % stages == 0)
        fewest = chunks if "interleave" in nodes else np.full(1, _FEWEST)
        return np.where(can, self._dealt_s(layouts, least, chunks, fewest), inf)

    def _dealt_s(self, layouts: Layouts, least: LeastSeconds, chunks: Ints, fewest: Ints) -> Floats:
        """Return the seconds of a schedule without transfers whose layers are dealt out best.

        ``chunks``: of each device, how many it may have for its waits, and ``fewest`` for the layers that it must hold.
        """
        layers, counts = self.cost.transformer.num_layers, np.array([*self.cost.transformer.kind_counts.values()])
        stages, number = layouts.pipeline, layouts.num_microbatches
        both_s, ahead_s = counts @ least.layer_s, counts @ least.layer_forward_s
        own_s = _ends_s(stages, least, is_folded=bool(self._folded))
        if self._folded:
            mean_s = (both_s + own_s.sum(axis=0)) / stages
            return np.asarray(mean_s * (number + (stages - 1) / chunks))
        index = np.arange(len(own_s))[:, None]
        less_s = 2 * (stages - 1 - index) * np.minimum(ahead_s, both_s - ahead_s)
        waits_s = ((stages - 1) * both_s - less_s) / (stages * chunks)
        held = fewest - ((index == 0) | (index == stages - 1))  # the ends' may have none
        return np.asarray(
            number * dealt_s(layers, stages, both_s / layers, own_s + waits_s / np.maximum(number, 1), held)
        )

    def _busy_s(self, columns: Columns, parts: Mapping[str, Floats]) -> Floats:
        """Return nothing: what is known is of even ones alone."""
        return np.zeros(1)

    def _least_s(self, layouts: Layouts) -> Floats:
        """Return the seconds of even layouts, or less where it takes less to deal their layers out best."""
        network, interval = self.cost.transformer, self._group.interval(layouts)
        parts = self._group.parts(layouts, is_exact=False)
        least = LeastSeconds.of_interval(network, interval)
        dealt_s = self._dealt_s(layouts, least, layouts.interleave, layouts.interleave) + parts["pipeline"]
        even_s = sum(parts[name] for name in (*LAYER_PARTS, "pipeline", "bubble"))
        return np.asarray(parts["total"] - np.maximum(even_s - dealt_s - filling_s(network, layouts, interval), 0.0))

    def _seconds_of(self, layouts: Layouts) -> Floats:
        return self._least_s(layouts)


# -- the bound, and what is looked for ---------------------------------------------------------------------------------


def all_chunks_bound_s(cost: GroupCost, best_s: float, search: Search) -> float:
    """Return what no layout with several chunks a device takes less than: at most ``best_s``, infinite for none."""
    bounds = ChunkBounds(cost.even, search)
    if max(bounds.space.axes["interleave"].values, default=1) == 1:
        return inf
    grid = bounds.space.grid()
    levels = tuple(
        replace(level, bound=bound) for level, bound in zip(grid.levels[: len(bounds.all)], bounds.all, strict=True)
    )
    part = search.part(search.left_s, good_enough=-inf, cutoff=best_s, num_alternatives=0)
    found = solve(replace(grid, levels=levels), bounds.seconds, part, Wanted(is_strict=True, counts=False))
    return min(max(found.solution.bound, peak_step_s([cost])), best_s)


def chunks_improved(
    found: Found, best_s: float, search: Search, others: Sequence[tuple[float, Point]] = ()
) -> Found | None:
    """Return the best layout found with chunks on one group whose layers are not dealt out evenly.

    Near the best known layouts, and of the degrees whose layouts would be quickest if their layers were dealt out best
    (:class:`NearBounds`), with any number of chunks: of a few of the quickest cuts to begin with single layers are
    moved while it helps. So where no even layout fits, a cut may. None where nothing is better than all known.

    Parameters
    ----------
    found
        The even layouts of the group.
    others
        Seconds and layouts of stages without chunks on it. A brief search looks near the best of both alone; where
        there is neither, of any degrees.
    """
    if search.is_over or (search.good_enough == inf and (found.rows or others)):  # something fits
        return None
    known = [*found.rows[:1], *sorted(others, key=lambda row: row[0])[:1]]
    points = [_of_axes(found.cost, point) for _, point in known]
    rows = [*points, *_near(found.cost, best_s, search, points)]
    rows += _near(found.cost, best_s, search, points, spared=_SPARED, most=_MOST_SPARED)
    best: tuple[float, Point] | None = None
    least_s, asked, cells, seen = best_s * (1 - GAIN), 0, 0, set[tuple[int, ...]]()
    for start in _starts(found.cost.first, rows, least_s, search):
        if search.is_over:
            break
        is_moved = cells + start.cuts.num_cells <= _MOST_IN_ALL
        cells += start.cuts.num_cells * is_moved
        better_s, better, number = _moved(start, search, seen) if is_moved else (start.seconds, start.layers, 0)
        asked += number
        if better_s < least_s and (better != start.cuts.even).any():  # those are known
            least_s, best = better_s, (better_s, {**start.point, **_layers_columns(better)})
    if best is None:
        return None
    return Found(cost=found.cost, answer=with_rows(nothing(inf, is_counted=True), [best], asked))


def _of_axes(placed: HybridCost, point: Point) -> Point:
    """Return a layout of stages, with or without chunks, as even ones on the same group say it."""
    plain = {**PLAIN_CODES, **CODES_OF_CUTS, "pipeline": point["stages_0"]} if "stages_0" in point else {}
    return {name: {**plain, **point}.get(name, 0) for name in Space.of(placed).axes}


def _near(
    placed: HybridCost,
    best_s: float,
    search: Search,
    known: Sequence[Point],
    *,
    spared: float = 1.0,
    most: int = _MOST_NEAR,
) -> list[Point]:
    """Return even layouts of different degrees near which a quick one may be, the most hopeful first.

    To save memory they do no more than the known ones, if any, or nothing but shard the optimiser; in a brief search
    they have the degrees of these.
    """
    part = search.part(search.left_s, good_enough=-inf, cutoff=best_s, num_alternatives=0)
    bounds = NearBounds(placed, part, spared=spared)
    axes = bounds.space.axes
    few = {"interleave": tuple(value for value in axes["interleave"].values if value > 1)}
    if not few["interleave"]:
        return []
    asked: dict[str, set[int]] = {name: {0} for name in _OF_MEMORY} | {"zero": {0, 1}}
    asked |= {name: set() for name in COARSE if search.is_brief}
    for name, values in asked.items() if known else ():
        values |= {one[name] for one in known}
        few[name] = tuple(value for value in axes[name].values if value in values)
    bounds = bounds.of_space(bounds.space.of_values(few))
    wanted = Wanted(num_answers=most, group_by=COARSE, is_strict=True, counts=False)
    answer = solve(bounds.grid(), bounds.seconds, part, wanted)
    return [one for one in (answer.solution.value, *(point for _, point in answer.others)) if one is not None]


@dataclass(frozen=True)
class _Start:
    """A layout, and a cut of it from which layers are moved; ``seconds``: what it takes."""

    cuts: "_Cuts"
    at: int
    layers: Ints
    seconds: float

    @property
    def point(self) -> Point:
        """The layout."""
        return self.cuts.points[self.at]

    @property
    def fits(self) -> bool:
        """Whether the cut does."""
        return self.cuts.has_room(self.at, self.layers)


@dataclass(frozen=True)
class _Begun:
    """Cuts of layouts that layers may be moved from, ranked by ``about_s``: what they take, about; shape (K, n)."""

    cuts: "_Cuts"
    at: Ints
    layers: Ints
    about_s: Floats

    @cached_property
    def has_even(self) -> bool:
        """Whether any of the layouts fits where it is cut evenly; of others few cuts are looked at."""
        return any(self.cuts.has_room(at, self.cuts.even) for at in np.unique(self.at).tolist())

    @cached_property
    def fitting_s(self) -> float:
        """What the quickest of the first cuts that fits takes, about: none that fits is passed over for another one."""
        rows = zip(self.at[:_MOST_BEGUN].tolist(), self.layers.T, self.about_s.tolist(), strict=False)
        return next((about_s for at, layers, about_s in rows if self.cuts.has_room(at, layers)), inf)

    def priced(self, known_s: float) -> list[_Start]:
        """Return a few of each layout, the quickest first, which fits; none that takes much more than ``known_s``."""
        rank = np.zeros(len(self.at), dtype=np.int64)  # of each among those of its layout
        for own in np.unique(self.at):
            rank[self.at == own] = np.arange(np.count_nonzero(self.at == own))
        rank[self.about_s >= known_s * _HOPE] = -1
        if not self.has_even:
            rank[rank >= _MOST_BEGUN] = -1
        for first in range(0, int(rank.max(initial=-1)) + 1, _MOST_BEGUN):
            few = np.flatnonzero((rank >= first) & (rank < first + _MOST_BEGUN))
            seconds = self.cuts.priced_s(self.at[few], self.layers[:, few])
            begun = [
                _Start(self.cuts, int(self.at[few[one]]), self.layers[:, few[one]], float(seconds[one]))
                for one in np.argsort(seconds, kind="stable").tolist()
                if seconds[one] < known_s * _HOPE
            ]
            while begun and not begun[0].fits:
                begun.pop(0)
            if begun:
                return begun
        return []


def _starts(cost: GroupCost, points: Sequence[Point], best_s: float, search: Search) -> list[_Start]:
    """Return where layers are moved from, near some layouts: the quickest cuts first.

    Of each point with all numbers of chunks and orders of ranks that there may be; none that is not hoped to be quicker
    than ``best_s``.
    """
    bounds, rows = NearBounds(cost.even, spared=_SPARED), dict[tuple[int, ...], Point]()
    for point in points:
        is_plain = point["schedule"] == Schedule.ONE_F_ONE_B
        chunks = bounds.space.axes["interleave"].values if is_plain else (point["interleave"],)
        orders = dict.fromkeys((point["order"], *bounds.space.axes["order"].values))
        for order, value in product(orders, (one for one in chunks if one > 1)):
            row = {**point, "order": order, "interleave": value}
            rows.setdefault(tuple(row[name] for name in bounds.space.axes), row)
    if not rows:
        return []
    columns = {name: np.array([row[name] for row in rows.values()]) for name in bounds.space.axes}
    holds = (*(rule.holds for rule in bounds.space.rules), *(rule.holds for rule in uneven_rules(cost.program)))
    may_be = [np.isin(columns[name], axis.values) for name, axis in bounds.space.axes.items()]
    kept = np.flatnonzero(np.all([*may_be, *(one(columns) for one in holds)], axis=0))
    hoped_s, few = bounds.seconds({name: one[kept] for name, one in columns.items()}), [*rows.values()]
    hopeful = dict[tuple[float, ...], Point]()
    for at, took_s in zip(kept[hoped_s < best_s].tolist(), hoped_s[hoped_s < best_s].tolist(), strict=True):
        others = (value for name, value in few[at].items() if name != "order")
        hopeful.setdefault((took_s, *others), few[at])  # one of those that their order leaves alike
    ranked, known_s = list[_Begun](), inf
    for cuts in _Cuts.of(cost, [*hopeful.values()]):
        if search.is_over:
            break
        if (one := cuts.ranked(known_s)).fitting_s < inf or one.has_even:
            ranked.append(one)
            known_s = min(known_s, one.fitting_s)
    begun, known_s = list[_Start](), inf
    for one in sorted(ranked, key=lambda one: one.about_s[0]):
        if search.is_over:
            break
        begun += (some := one.priced(known_s))
        known_s = min([known_s, *(start.seconds for start in some[:1])])
    found = list[_Start]()
    for start in sorted(begun, key=lambda one: one.seconds):
        if len(found) == _MOST_STARTS or start.seconds > known_s * _HOPE:
            break
        found += [start] * start.fits
    return found


def _evenly(num_layers: int, num_chunks: int, ends: Ints) -> Ints:
    """Return cuts that are even if embedding and head count as so many layers, shape (2, n), a row each.

    As many as there are in another chunk, at the most. Where the numbers do not divide, some chunks that follow one
    another have one layer more, wherever these are.
    """
    before = np.minimum(ends[0], num_layers // (num_chunks - 1))
    behind = np.minimum(ends[1], (num_layers + before) // (num_chunks - 1))
    before, behind = (one[:, None, None] for one in np.unique([before, behind], axis=1))
    each, more = np.divmod(num_layers + before + behind, num_chunks)
    first = np.rint(np.linspace(0, num_chunks - more, _PLACES, axis=1)).astype(np.int64)[..., 0]
    index = np.arange(num_chunks)
    cuts = each + ((first <= index) & (index < first + more))
    cuts = cuts - before * (index == 0) - behind * (index == num_chunks - 1)
    cuts = cuts[each[:, 0, 0] > 0].reshape(-1, num_chunks)
    return np.asarray(cuts[np.minimum(cuts[:, 0], cuts[:, -1]) >= 0])


def _layers_columns(layers: Ints) -> Point:
    """Return the layers of each chunk as columns have them."""
    return {f"{LAYERS}{index}": int(one) for index, one in enumerate(layers)}


def _moved(start: _Start, search: Search, seen: set[tuple[int, ...]]) -> tuple[float, Ints, int]:
    """Return the seconds of a layout with layers moved while that helps, the layers, and how many were asked.

    A move takes one layer from any chunk to any other. Behind cuts of the layout that were ``seen`` all is known.
    """
    cuts, at, layers, seconds, asked = start.cuts, start.at, start.layers, start.seconds, 0
    for _ in range(_MOST_MOVES):
        if (one := (*start.point.values(), *layers.tolist())) in seen:
            break
        seen.add(one)
        hopeful = cuts.hopeful(at, layers)
        if not hopeful.size or search.is_over:
            break
        asked += hopeful.shape[1]
        total = cuts.priced_s(at, hopeful)
        better = next(
            (
                place
                for place in np.argsort(total, kind="stable").tolist()
                if total[place] < seconds * (1 - GAIN) and cuts.has_room(at, hopeful[:, place])
            ),
            None,
        )
        if better is None:
            break
        seconds, layers = float(total[better]), hopeful[:, better]
    return seconds, layers, asked


@dataclass(frozen=True)
class _Cuts:
    """Cuts into chunks of layouts that have as many stages, chunks and micro-batches, and the same schedule.

    Attributes
    ----------
    points, layouts
        n of these.
    interval
        Seconds of a micro-batch of each.
    beside_s
        What shows beside the schedule of each where it is cut evenly.
    """

    cost: GroupCost
    points: Sequence[Point]
    layouts: Layouts
    interval: Mapping[str, Floats]
    beside_s: Floats

    @classmethod
    def of(cls, cost: GroupCost, points: Sequence[Point]) -> "list[_Cuts]":
        """Return those of any layouts, of the fewest chunks first."""
        if not points:
            return []
        layouts = cost.layouts({name: np.array([one[name] for one in points]) for name in points[0]})
        interval, parts = cost.interval(layouts), cost.parts(layouts, is_exact=False)
        beside_s = parts["data"] + parts["optimizer"] + parts.get(OFFLOAD, 0.0)
        beside_s = beside_s + filling_s(cost.transformer, layouts, interval)
        _, of_shape = layouts.distinct(("interleave", "pipeline", "schedule", "num_microbatches"))
        return [
            cls(
                cost,
                [points[at] for at in some.tolist()],
                layouts.of(some),
                {
                    name: np.broadcast_to(one, (*np.shape(one)[:-1], len(points)))[..., some]
                    for name, one in interval.items()
                },
                beside_s[some],
            )
            for some in (np.flatnonzero(of_shape == index) for index in range(int(of_shape.max()) + 1))
        ]

    @cached_property
    def even(self) -> Ints:
        """Layers of each chunk where they are dealt out evenly, in the order of the network."""
        stages, chunks = int(self.layouts.pipeline[0]), int(self.layouts.interleave[0])
        deal = folded_layers if self.layouts.is_folded[0] else partial(dealt_layers, interleave=chunks)
        return np.asarray(deal(self.cost.transformer.num_layers, stages).ravel())

    @property
    def ends(self) -> Ints:
        """Layers that embedding and head of any layout take as long as, rounded down, and a few more; shape (2, k)."""
        network = self.cost.transformer
        layer_s = mean_layer(network, kind_times(network, self.interval)[0])
        ends_s = np.array([np.broadcast_to(self.interval[name], len(self.points)) for name in ("embedding", "head")])
        whole = np.floor(np.minimum(ends_s / np.maximum(layer_s, _NO_TIME_S), network.num_layers)).astype(np.int64)
        each = np.unique((whole[..., None] + np.array(_MORE).T[:, None]).reshape(2, -1), axis=1)
        return np.asarray(np.maximum(each, 0))

    @property
    def num_cells(self) -> int:
        """Chunks of all cuts that are compared for a move."""
        return len(self.even) ** 3

    def ranked(self, known_s: float) -> "_Begun":
        """Return the cuts that layers may be moved from, the quickest ones first, about; none far above ``known_s``."""
        cuts = np.concatenate([self.even[None], _evenly(self.cost.transformer.num_layers, len(self.even), self.ends)])
        cuts = cuts[np.sort(np.unique(cuts, axis=0, return_index=True)[1])]
        cuts = cuts[(cuts == self.even).all(axis=1) | self.may_be(cuts.T)].T
        at, of_cut = (one.ravel() for one in np.indices((len(self.points), cuts.shape[1])))
        bound_s = self.bound_s(at, cuts[:, of_cut])
        kept = np.argsort(bound_s, kind="stable")[: self.num_played]
        kept = np.sort(kept[bound_s[kept] < known_s * _HOPE])
        about_s = self.about_s(at[kept], cuts[:, of_cut[kept]], bound_s[kept]) if len(kept) else np.zeros(0)
        order = np.argsort(about_s, kind="stable")
        return _Begun(self, at[kept[order]], cuts[:, of_cut[kept[order]]], about_s[order])

    def has_room(self, at: int, layers: Ints) -> bool:
        """Return whether a cut of one layout fits; it is asked of some again and again."""
        if (known := self._rooms.get((at, layers.tobytes()))) is None:
            held = self.cost.memory(self.layouts.of(slice(at, at + 1)), layers.tolist())["total"][0]
            known = self._rooms[at, layers.tobytes()] = bool(held <= self.cost.memory_limit_bytes)
        return known

    @cached_property
    def _rooms(self) -> dict[tuple[int, bytes], bool]:
        """By layout and cut, what is known of :meth:`has_room`."""
        return {}

    def hopeful(self, at: int, layers: Ints) -> Ints:
        """Return the cuts of one layout with one layer moved that may take least, a few; shape (K, n).

        Of many those are played whose bounds are least.
        """
        number, unit = len(layers), np.eye(len(layers), dtype=np.int64)
        has_one = layers > (np.arange(number) % (number - 1) > 0)  # the ends may be left with none
        sources, targets = np.nonzero(has_one[:, None] & (unit == 0))
        cuts = layers[:, None] - unit[:, sources] + unit[:, targets]
        cuts = np.concatenate([layers[:, None], cuts[:, self.may_be(cuts)]], axis=1)
        bound_s = self.bound_s(at, cuts)
        own_s = self.about_s(at, cuts[:, :1], bound_s[:1])[0] * (1 + GAIN)
        order = np.argsort(bound_s[1:], kind="stable")[: self.num_played] + 1
        kept = order[bound_s[order] < own_s]
        if not len(kept):
            return cuts[:, :0]
        about_s = self.about_s(at, cuts[:, kept], bound_s[kept])
        best = np.argsort(about_s, kind="stable")[:_AT_ONCE]
        return cuts[:, kept[best[about_s[best] < own_s]]]

    def may_be(self, cuts: Ints) -> Bools:
        """Return which cuts, of shape (K, n), leave depths of multi-token prediction in one chunk."""
        is_v, depths = bool(self.layouts.is_folded[0]), self.cost.transformer.num_mtp_layers
        return has_depths_together(depths, cuts, int(self.layouts.pipeline[0]), is_folded=is_v)

    def bound_s(self, at: Ints | int, cuts: Ints) -> Floats:
        """Return what cuts of layouts, of shape (K, n), are not under, but for what shows beside their schedules."""
        return chunk_bound_s(*self._passes(at, cuts), **self._order) + self.beside_s[at]

    def about_s(self, at: Ints | int, cuts: Ints, bound_s: Floats) -> Floats:
        """Return what the same take, about: their schedules are played for a few rounds, where more follow.

        These are no steady ones yet where devices work unlike long; then their bound is the better number.
        """
        took_s = played_s(*self._passes(at, cuts), **self._order, most_rounds=_MOST_ROUNDS)
        return np.maximum(took_s + self.beside_s[at], bound_s)

    def priced_s(self, at: Ints | int, cuts: Ints) -> Floats:
        """Return the seconds of the same."""
        if not cuts.size:
            return np.zeros(0)
        repeated = self.layouts.of(np.broadcast_to(at, cuts.shape[1]))
        total = self.cost.parts(repeated, cuts)["total"]
        return np.asarray(total + self.cost.stalls_s(repeated, total))

    @cached_property
    def _order(self) -> dict[str, Any]:
        """The schedule as its player knows it, and its sizes."""
        schedule, chunks = Schedule(int(self.layouts.schedule[0])), int(self.layouts.interleave[0])
        schedule = Schedule.DUALPIPE_V if schedule == Schedule.DUALPIPE else schedule
        sizes = {
            "num_devices": int(self.layouts.pipeline[0]),
            "num_microbatches": int(self.layouts.num_microbatches[0]),
        }
        return {"schedule": order_name(schedule, chunks), **sizes}

    @property
    def num_played(self) -> int:
        """How many cuts are played together at the most."""
        devices, schedule = self._order["num_devices"], self._order["schedule"]
        played = min(self._order["num_microbatches"], least_microbatches(devices, schedule))
        return int(max(_MOST_TASKS // (2 * devices * int(self.layouts.interleave[0]) * played), 1))

    def _passes(self, at: Ints | int, cuts: Ints) -> tuple[Floats, Floats, Floats]:
        """Return what forwards, backwards and gradients of weights of each chunk take."""
        interval = {name: one[..., np.atleast_1d(at)] for name, one in self.interval.items()}
        return chunk_passes_s(self.cost.transformer, interval, Schedule(int(self.layouts.schedule[0])), cuts)
