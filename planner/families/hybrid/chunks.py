"""Layers dealt out to virtual stages otherwise than evenly: a few are looked for, all are bounded.

The grid has virtual stages (chunks) of as equal numbers of layers as there are. Other numbers may be a little better: a
device with a long head is better off with a layer less. They are no axis of the grid, which has too many of them:

- *improved*: of layouts that would be quickest if devices did equal work, single layers are moved from the busiest
  devices to others while that helps (:func:`chunks_improved`);
- *bounded*: :class:`ChunkBounds` counts no cut, so that what it finds is true of all; the plan says how much is open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import permutations
from math import inf

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.bounds import fullest_s, peak_step_s, sharding_is_free
from planner.families.hybrid.configuration import (
    AWAY,
    COARSE,
    CODES_OF_CUTS,
    MOST_ZERO_OF_CUTS,
    OVERLAPS,
    uneven_rules,
)
from planner.families.hybrid.cost import PLAIN_CODES, GroupCost, HybridCost, Placement
from planner.families.hybrid.even_bounds import EVERY_ZERO, NOTHING_AGAIN, EvenBounds
from planner.families.hybrid.grid_search import GAIN, LAYERS, Found, nothing, with_rows
from planner.families.hybrid.layer_table import LeastSeconds
from planner.families.hybrid.space import Bound, Space
from planner.models.layouts import (
    Bools,
    Ints,
    Layouts,
    Recompute,
    Schedule,
    busiest_stages,
    dealt_layers,
    folded_layers,
)
from planner.models.memory import CutMemory
from planner.search import Search
from planner.solvers.grid import Columns, Point, Wanted, solve

OTHER_CHUNKS = "hybrid layouts with other cuts of the layers into chunks"
_FEWEST = 2  # virtual stages of a device
_MOST_NEAR = 3  # degrees near which layers are moved, beside known layouts,
_MOST_IMPROVED = 4  # each with so many numbers of chunks,
_MOST_MOVES = 16  # one after another
HOPE = 1.05  # how much longer than the best one such a layout may seem to take: waits that moving spares are not seen
_OF_MEMORY = ("recompute", "recompute_modules", "offload_optimizer", *AWAY)
_MOST_MOVED = 40_000  # chunks of all cuts that are tried together
_AT_ONCE = 32  # cuts of these, the quickest first, whose memory is asked for
_NO_TIME_S = 1e-30  # of a layer, to divide by
_NO_LIMIT_BYTES = 1e30  # beyond all memory there is, yet finite: rooms are subtracted
_MORE_ZERO = EVERY_ZERO[MOST_ZERO_OF_CUTS + 1 :]
_SAVING = ("sequence_parallel", "offload_optimizer")  # more of it needs less memory


# -- any cut into virtual stages on one group --------------------------------------------------------------------------


def dealt_s(num_layers: int, stages: Ints, least: LeastSeconds) -> Floats:
    """Return what the busiest of p devices takes of a micro-batch where layers are dealt out best, the quickest kind.

    Devices have embedding, head or neither, ``c_d``, and ``n_d`` layers of l seconds each: the least of all
    ``max (c_d + n_d l)`` with ``sum n_d = L``, itself one of these sums. Within T devices have room for
    ``sum floor((T - c_d) / l)`` layers, so that of each form (``k l``, ``c_d + k l``) the first T with room for L is
    known; the least of the three is the answer, unless an end alone takes longer. As no layer takes less than the
    quickest, and no order matters, no cut into any chunks has a busiest device below it.

    Parameters
    ----------
    num_layers, stages
        L, and p of each of n layouts.
    least
        Of these layouts; no number where they have no seconds.
    """
    layer_s, ends_s = np.maximum(least.layer_s.min(axis=0), _NO_TIME_S), (least.embedding_s, least.head_s)

    def whole(numbers: Floats) -> Floats:
        return np.asarray(np.floor(numbers + 1e-9))  # rounding takes no room away

    def within_s(form_s: Floats) -> Floats:
        room = (stages - 2) * whole(form_s / layer_s) + sum(whole((form_s - end_s) / layer_s) for end_s in ends_s)
        return np.asarray(form_s + layer_s * np.maximum(-whole((room - num_layers) / stages), 0.0))

    with np.errstate(invalid="ignore"):
        found = np.minimum.reduce([within_s(form_s) for form_s in (np.zeros_like(layer_s), *ends_s)])
        return np.asarray(np.maximum.reduce([found, *ends_s]))


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
    them devices have, the busiest is not under :func:`dealt_s`.

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
        found = np.maximum(means_s, number * busiest_s).min(axis=0)
        if not self._folded:  # of a V one device has both ends
            found = np.fmax(found, number * dealt_s(self.cost.transformer.num_layers, stages, least))
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


class NearBounds(EvenBounds):
    """Even layouts with chunks as if single layers had been moved until all devices did as equal work as can be.

    No bounds of any cut: they rank layouts near which one is looked for. A step takes ``(m + (p - 1) / v) T`` and what
    replicas exchange, T being what the busiest device takes of a micro-batch where layers of their mean are dealt out
    best. Layouts have room as they are.
    """

    def _any_schedule_s(self, nodes: Columns, least: LeastSeconds, *, rounds_of: Ints | None = None) -> Floats:
        """Return these seconds of the virtual stages that are decided, or of the most that there may be."""
        layouts = self._group.layouts(self._filled(nodes))
        stages, number = layouts.pipeline, layouts.num_microbatches
        most = max(self.space.axes["interleave"].values, default=1)
        chunks = nodes.get("interleave", np.clip((self.cost.transformer.num_layers + 2) // stages, 1, most))
        can = (stages > 1) & (chunks > 1)
        can &= bool(self._folded) | ((number if rounds_of is None else rounds_of) % stages == 0)
        return np.where(can, self._passed(layouts, chunks) * self._balanced_s(layouts, least), inf)

    def _passed(self, layouts: Layouts, chunks: Ints) -> Floats:
        """Return how often a step takes what a micro-batch does: its own number, and what fills the pipeline."""
        return np.asarray(layouts.num_microbatches + (layouts.pipeline - 1) / chunks)

    def _balanced_s(self, layouts: Layouts, least: LeastSeconds) -> Floats:
        """Return what the busiest device takes of a micro-batch where layers are dealt out best."""
        number, counts = self.cost.transformer.num_layers, np.array([*self.cost.transformer.kind_counts.values()])
        layers_s = counts @ least.layer_s
        mean_s = (layers_s + least.embedding_s + least.head_s) / layouts.pipeline
        if self._folded:  # one device has both ends
            return np.asarray(mean_s)
        return np.asarray(
            np.fmax(mean_s, dealt_s(number, layouts.pipeline, replace(least, layer_s=layers_s[None] / number)))
        )

    def _busy_s(self, columns: Columns, parts: Mapping[str, Floats]) -> Floats:
        """Return nothing: what is known is of even ones alone."""
        return np.zeros(1)

    def _least_s(self, layouts: Layouts) -> Floats:
        """Return the seconds of even layouts, less what their busiest devices take longer."""
        network = self.cost.transformer
        least = LeastSeconds.of_interval(network, self._group.interval(layouts))
        busy = busiest_stages(network, layouts)
        is_last = busy.index == np.where(layouts.is_folded, 0, layouts.pipeline - 1)
        loads_s = (busy.layers * least.layer_s[:, None]).sum(axis=0)
        loads_s = loads_s + (busy.index == 0) * least.embedding_s + is_last * least.head_s
        spared_s = loads_s.max(axis=0) - self._balanced_s(layouts, least)
        return np.asarray(super()._least_s(layouts) - self._passed(layouts, layouts.interleave) * spared_s)

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

    Near the best known layouts, and of the degrees whose layouts would be quickest if their devices did equal work
    (:class:`NearBounds`), with the most hopeful numbers of chunks, single layers are moved away from the busiest
    devices while it helps. None where nothing is better than all known.

    Parameters
    ----------
    found
        The even layouts of the group.
    others
        Seconds and layouts of stages without chunks on it. A brief search looks near the best of both alone; where
        neither is within a strict cutoff, though some layout may fit, of any degrees.
    """
    may_be = bool(found.rows) or (search.is_strict and found.answer.solution.bound < inf)
    if search.is_over or search.good_enough == inf or not may_be:
        return None
    known = [*found.rows[:1], *sorted(others, key=lambda row: row[0])[:1]]
    points = [_of_axes(found.cost, point) for _, point in known]
    rows = [*points, *_near(found.cost, best_s, search, points)]
    best: tuple[float, Point] | None = None
    least_s, asked = best_s * (1 - GAIN), 0
    for hoped_s, point in _starts(found.cost.first, rows):
        if search.is_over:
            break
        if hoped_s >= least_s * HOPE:
            continue
        better_s, better, number = _moved(found.cost.first, point, search)
        asked += number
        if better_s < least_s:
            least_s, best = better_s, (better_s, {**point, **_layers_columns(better)})
    if best is None:
        return None
    return Found(cost=found.cost, answer=with_rows(nothing(inf, is_counted=True), [best], asked))


def _of_axes(placed: HybridCost, point: Point) -> Point:
    """Return a layout of stages, with or without chunks, as even ones on the same group say it."""
    plain = {**PLAIN_CODES, **CODES_OF_CUTS, "pipeline": point["stages_0"]} if "stages_0" in point else {}
    return {name: {**plain, **point}.get(name, 0) for name in Space.of(placed).axes}


def _near(placed: HybridCost, best_s: float, search: Search, known: Sequence[Point]) -> list[Point]:
    """Return even layouts of different degrees near which a quick one may be, the most hopeful first.

    To save memory they do no more than the known ones, if any, or nothing but shard the optimiser; in a brief search
    they have the degrees of these.
    """
    part = search.part(search.left_s, good_enough=-inf, cutoff=best_s * HOPE, num_alternatives=0)
    bounds = NearBounds(placed, part)
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
    wanted = Wanted(num_answers=_MOST_NEAR, group_by=COARSE, is_strict=True, counts=False)
    answer = solve(bounds.grid(), bounds.seconds, part, wanted)
    return [one for one in (answer.solution.value, *(point for _, point in answer.others)) if one is not None]


def _starts(cost: GroupCost, points: Sequence[Point]) -> list[tuple[float, Point]]:
    """Return even layouts whose layers are then moved, and what they may take then, the most hopeful first.

    Of each point with a few of the numbers of chunks that there may be.
    """
    bounds, rows = NearBounds(cost.even), dict[tuple[int, ...], Point]()
    for point in points:
        is_plain = point["schedule"] == Schedule.ONE_F_ONE_B
        chunks = bounds.space.axes["interleave"].values if is_plain else (point["interleave"],)
        for row in ({**point, "interleave": value} for value in chunks if value > 1):
            rows.setdefault(tuple(row.values()), row)
    if not rows:
        return []
    columns = {name: np.array([row[name] for row in rows.values()]) for name in bounds.space.axes}
    holds = (*(rule.holds for rule in bounds.space.rules), *(rule.holds for rule in uneven_rules(cost.program)))
    may_be = [np.isin(columns[name], axis.values) for name, axis in bounds.space.axes.items()]
    kept = np.flatnonzero(np.all([*may_be, *(one(columns) for one in holds)], axis=0))
    few, number = [*rows.values()], dict[tuple[int, ...], int]()
    found = []
    for hoped_s, at in sorted(
        zip(bounds.seconds({n: one[kept] for n, one in columns.items()}), kept.tolist(), strict=True)
    ):
        others = tuple(value for name, value in few[at].items() if name != "interleave")
        number[others] = number.get(others, 0) + 1
        if hoped_s < inf and number[others] <= _MOST_IMPROVED:
            found.append((float(hoped_s), few[at]))
    return found


def _layers_columns(layers: Ints) -> Point:
    """Return the layers of each chunk as columns have them."""
    return {f"{LAYERS}{index}": int(one) for index, one in enumerate(layers)}


def _moved(cost: GroupCost, point: Point, search: Search) -> tuple[float, Ints, int]:
    """Return the seconds of an even layout with layers moved while that helps, the layers, and how many were asked.

    Infinite where none was moved.
    """
    layout = cost.layouts({name: np.array([value]) for name, value in point.items()})
    deal = folded_layers if layout.is_folded[0] else partial(dealt_layers, interleave=point["interleave"])
    layers = deal(cost.transformer.num_layers, point["pipeline"]).ravel()
    even_s = seconds = float(cost.seconds(layout)[0])
    pipeline, chunks = point["pipeline"], len(layers)
    device_of = np.arange(chunks) % pipeline
    device_of[pipeline:] = device_of[:pipeline][::-1] if layout.is_folded[0] else device_of[pipeline:]
    ends = {0, chunks - 1}  # which may have embedding or head alone
    asked = 0
    for _ in range(_MOST_MOVES):
        loads = cost.device_loads(layout, layers)
        busiest = {index for index in range(pipeline) if loads[index] >= loads.max() * (1 - GAIN)}
        pairs = [
            (one, other)
            for one, other in permutations(range(chunks), 2)
            if device_of[one] in busiest and layers[one] > (one not in ends) and device_of[other] not in busiest
        ]
        if not pairs or len(pairs) * chunks > _MOST_MOVED or search.is_over:
            break
        cuts = np.repeat(layers[:, None], len(pairs), axis=1)
        sources, targets = np.array(pairs).T
        cuts[sources, np.arange(len(pairs))] -= 1
        cuts[targets, np.arange(len(pairs))] += 1
        repeated = layout.of(np.zeros(len(pairs), dtype=np.int64))
        total = cost.parts(repeated, cuts)["total"]
        total = total + cost.stalls_s(repeated, total)
        asked += len(pairs)
        better = next(
            (
                at
                for at in np.argsort(total, kind="stable")[:_AT_ONCE].tolist()
                if total[at] < seconds * (1 - GAIN)
                and cost.memory(layout, cuts[:, at].tolist())["total"][0] <= cost.memory_limit_bytes
            ),
            None,
        )
        if better is None:
            break
        seconds, layers = float(total[better]), cuts[:, better]
    return seconds if seconds < even_s else inf, layers, asked
