"""Least bounds of what may follow in a pipeline: a dynamic programme from the last layer to the first.

A state is (stages left, first layer, devices used by type); as devices are handed out in order, it says where a stage
stands. For every state the tables hold the least R, F and E of :mod:`planner.solvers.pipeline_bound`, and the least
that lies behind a boundary before it; each is the least by itself, so that together they bound whatever is put before.

*Number of stages.* With the stages left known the work is ``O(P L^2 sum over states of choices)``; where that is too
much, ``P = 0`` leaves their number open: K is then relaxed to m, and memory to what one micro-batch in flight takes.

*What the cutoff T leaves.* States, first layers and ends that cannot be part of a pipeline below T are passed over, see
:mod:`planner.solvers.pipeline_moves`; entries at or above T are given up at once.

*Many sources at a time.* Small tables of several numbers of micro-batches are filled together: their states stand side
by side, each source's after those of the one before, and no stage leads from one source to another. Every entry is the
same as if its source were filled alone.

*Many layers at a time.* Stages that start in a run of layers and all end behind it do not need one another's entries:
a run is then filled in one pass of numpy. In a long network of small layers runs are long, so passes do not grow with
the layers.

*Units.* Tables of large groups count devices in units of q: of R devices that are left ``R // q`` units, of which a
stage of r devices takes ``r // q``. What may really follow then never takes more units than are left, so bounds are
true; they are weak, as a stage of fewer than q devices takes none. v units left are at most ``q v + q - 1`` devices.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solvers.pipeline_bound import Behind, Tail, behind_of, stage_of
from planner.solvers.pipeline_moves import Grid, Moves, Pairs, joined
from planner.solvers.pipeline_parts import Integers, PipelineCosts, Schedule, Schedules, Stack, StageSeconds

__all__ = ["Tables", "TablesOfOne", "table_bytes"]

_MOST_AT_ONCE = 200_000  # stages times numbers of stages in one pass: beyond the processor's cache it gets slower
_BYTES = 8  # of a number
_ARRAYS_OF_MOVES = 12
_ARRAYS_OF_SIDES = 5
_ROUNDING = 1e-9
_DENSE = 0.5  # share of stages with a follower from which on all are computed


@dataclass(frozen=True, slots=True)
class _Stages:
    """Stages, and what of them does not depend on entries; those that differ in their ends alone are a group.

    By stage: ``after``, the entry behind it by layer and state; f, b and y; ``out_s``, cf and cb that a boundary behind
    it takes at least; ``most_in_flight``; ``schedules``. By group: ``starts``, its first stage; ``state``, the entry
    that it lowers; ``first``; ``floor_s``; ``in_s`` of a boundary before it.
    """

    after: Integers
    forward_s: Floats
    backward_s: Floats
    flush_s: Floats
    out_s: Floats
    most_in_flight: Integers
    schedules: Schedule | Schedules
    starts: Integers
    state: Integers
    first: Integers
    floor_s: Floats
    in_s: Floats


@dataclass(frozen=True, slots=True)
class TablesOfOne:
    """Least R, F, E from a cut on, and least X, F, E and channel terms behind it; axes: stages left, layer, used."""

    entries: Floats
    grid: Grid
    schedule: Schedule
    is_complete: bool

    def state(self, used: Sequence[Integers]) -> Integers:
        """Return the index of the devices used of each type: by the units that are left of them."""
        grid, index = self.grid, np.zeros((), dtype=np.int64)
        for one, number, unit, size, stride in zip(
            used, grid.num_devices, grid.units, grid.shape, grid.strides, strict=True
        ):
            index = index + (size - 1 - (number - one) // unit) * stride
        return index

    def behind(self, num_left: Integers, ends: Integers, used: Sequence[Integers], out_s: Floats) -> Behind:
        """Return what lies behind stages that end before ``ends`` and leave so much used; arrays broadcast."""
        at = self.entries[:, num_left, ends, self.state(used)]
        return behind_of(Tail(*at[:3]), out_s[0], out_s[1], self.schedule).at_least(Behind(*at[3:]))


def table_bytes(costs: PipelineCosts, stack: Stack, num_stages: int) -> int:
    """Return the bytes of tables, about, before they are made; 0 stages leave their number open.

    Entries by stages left, layer and state; moves by state and choice, all of whose arrays count; and by choice and
    layer how far a stage reaches and what a boundary behind or before it takes, with what that is worked out from.
    """
    states, choices = Grid.of(costs).size, len(costs.choices)
    entries = 7 * (num_stages + 1) * (costs.num_layers + 1) * len(stack) * states
    moves = _ARRAYS_OF_MOVES * states * choices
    reach = (2 + _ARRAYS_OF_SIDES * max(costs.num_places)) * choices * (costs.num_layers + 1)
    return _BYTES * (entries + moves + reach)


class Tables:
    """The entries of all sources of a stack: :class:`TablesOfOne` side by side along the last axis.

    Parameters
    ----------
    num_stages
        At most; 0 leaves their number open.
    cutoff
        Entries at or above it are ``inf``.
    allowed
        By number of devices used of each type: whether so many may be used in all; None: all may. Only with units of 1.
    """

    def __init__(
        self,
        costs: PipelineCosts,
        stack: Stack,
        num_stages: int,
        search: Search,
        cutoff: float = np.inf,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        self.costs, self.stack, self.cutoff = costs, stack, cutoff
        self.is_open = not num_stages
        self.left = np.arange(1, num_stages + 1) if num_stages else np.array([max(stack.num_microbatches)])
        self._grid = Grid.of(costs)
        self.entries = np.full((7, num_stages + 1, costs.num_layers + 1, len(stack) * self._grid.size), np.inf)
        last = 0.0 if allowed is None else np.where(allowed.reshape(-1), 0.0, np.inf)
        self.entries[:, 0, -1] = np.tile(np.broadcast_to(last, self._grid.size), len(stack))
        self._flat = self.entries.reshape(7, num_stages + 1, -1)  # the same numbers: by layer and state together
        self._moves = Moves.all(costs, stack, self._grid, cutoff)
        self.is_complete = self._fill(search)

    def of(self, source: int) -> TablesOfOne:
        """Return the tables of one source."""
        begin, size = source * self._grid.size, self._grid.size
        part = self.entries[..., begin : begin + size]
        return TablesOfOne(part, self._grid, self.stack.schedule(source), self.is_complete)

    def _runs(self, all_pairs: Iterable[Pairs]) -> Iterator[list[Pairs]]:
        """Yield the stages by first layer, last layers first, as many layers together as do not need one another."""
        most, run, size, bottom = _MOST_AT_ONCE // len(self.left), list[Pairs](), 0, self.costs.num_layers
        for first, pairs in zip(reversed(range(self.costs.num_layers)), all_pairs, strict=True):
            count = int(pairs.widths.sum())
            if run and (size + count > most or int(pairs.begin.min(initial=bottom)) < bottom):
                yield run
                run, size, bottom = [], 0, first + 1
            elif not run:
                bottom = first + 1
            run.append(pairs)
            size += count
        yield run

    # -- the entries -------------------------------------------------------------------------------------------------

    def _fill(self, search: Search) -> bool:
        """Fill the tables from the last layer to the first; return whether there was time."""
        most = max(1, _MOST_AT_ONCE // len(self.left))
        for run in self._runs(self._moves.pairs(self.costs.num_layers)):
            pairs = run[0] if len(run) == 1 else joined(run)
            ends = np.cumsum(pairs.widths)
            low = 0
            while low < len(ends):
                before = int(ends[low - 1]) if low else 0
                high = max(low + 1, int(np.searchsorted(ends, before + most, side="right")))
                self._add(self._stages(pairs.part(low, high)))
                if search.is_over:
                    return False
                low = high
        return True

    def _stages(self, pairs: Pairs) -> _Stages:
        """Return the stages that something can follow and that may be part of a pipeline below the cutoff."""
        widths, costs, moves = pairs.widths, self.costs, self._moves
        which = np.repeat(np.arange(len(widths)), widths)
        ends = np.arange(len(which)) - np.repeat(np.cumsum(widths) - widths - pairs.begin, widths)
        move = pairs.move[which]
        after = ends * self.entries.shape[-1] + moves.after[move]
        # Nothing can follow most of them: the end of all work is known for few states, and the cutoff leaves fewer.
        is_alive = np.isfinite(self._flat[2][self._after, after]).any(axis=0)
        which, ends, move, after = which[is_alive], ends[is_alive], move[is_alive], after[is_alive]
        first, choice, place = pairs.first[which], moves.choice[move], moves.place[move]
        found, schedules = costs.stages(first, ends - 1, choice, place), self.stack.schedules(moves.source[move])
        may_be = self._may_be(found, schedules)
        which, ends, move, after = which[may_be], ends[may_be], move[may_be], after[may_be]
        first, choice, place = first[may_be], choice[may_be], place[may_be]
        found, schedules = found.part(may_be), schedules.part(may_be)
        starts = _starts(which)
        groups = move[starts], first[starts]
        return _Stages(
            after,
            found.forward_s,
            found.backward_s,
            found.flush_s,
            costs.out_s(ends - 1, choice, place),
            found.most_in_flight,
            schedules,
            starts,
            groups[1] * self.entries.shape[-1] + moves.state[groups[0]],
            groups[1],
            costs.floor_s[moves.choice[groups[0]]],
            costs.in_s(groups[1], moves.choice[groups[0]], moves.place[groups[0]]),
        )

    def _may_be(self, found: StageSeconds, schedules: Schedule | Schedules) -> NDArray[np.bool_]:
        """Return which stages may be part of a pipeline below the cutoff: as if nothing stood behind them."""
        m = schedules.num_microbatches
        least_s = m * (found.forward_s + found.backward_s) + found.flush_s
        held = m if self.stack.is_gpipe else 1
        return np.asarray((least_s <= self.cutoff * (1 + _ROUNDING)) & (found.most_in_flight >= held))

    @property
    def _after(self) -> slice:
        """Numbers of stages that may be left behind one."""
        return slice(0, 1 if self.is_open else len(self.left))

    def _add(self, stages: _Stages) -> None:
        """Lower the entries that some stages lead to."""
        if not len(stages.after):
            return
        low, least = self._least_before(stages)
        if least.size:
            self._keep(np.minimum.reduceat(least, stages.starts, axis=-1), stages, low)

    def _least_before(self, stages: _Stages) -> tuple[int, Floats]:
        """Return R, F and E by number of stages left, from the first number returned on, and stage.

        Few numbers of stages can follow a stage: only those are computed where that is less work, and others are inf.
        """
        every = np.arange(1 if self.is_open else len(self.left))[:, None]
        if self.is_open:
            return 0, self._least(every, slice(None), stages)
        is_alive = np.isfinite(self._flat[2][self._after, stages.after])
        left, column = np.nonzero(is_alive)
        if len(left) > _DENSE * is_alive.size:
            return 1, self._least(every, slice(None), stages)
        low, high = (int(left[0]), int(left[-1]) + 1) if len(left) else (0, 0)
        least = np.full((3, high - low, len(stages.after)), np.inf)
        least[:, left - low, column] = self._least(left, column, stages)
        return low + 1, least

    def _least(self, left: Integers, column: Integers | slice, stages: _Stages) -> Floats:
        """Return R, F and E of some of the stages with so many stages left behind them."""
        forward_s, backward_s = stages.forward_s[column], stages.backward_s[column]
        out_s, back_s = stages.out_s[0][column], stages.out_s[1][column]
        schedules = stages.schedules.part(column)
        at = self._flat[:, left, stages.after[column]]
        behind = behind_of(Tail(*at[:3]), out_s, back_s, schedules).at_least(Behind(*at[3:]))
        in_flight = schedules.in_flight(self.left[left])
        tail = stage_of(forward_s, backward_s, stages.flush_s[column], behind, in_flight, schedules)
        least = np.array([tail.round_trip_s, tail.finish_s, tail.flushed_s])
        held = np.minimum(in_flight, 1) if self.is_open and not self.stack.is_gpipe else in_flight
        is_out = (stages.most_in_flight[column] < held) | (tail.flushed_s >= self.cutoff)
        np.copyto(least, np.inf, where=is_out)
        return least

    def _keep(self, best: Floats, stages: _Stages, low: int) -> None:
        """Lower the entries by the best of each group, ordered by first layer and state; ``low``: least stages left."""
        if not stages.first.all():
            best[2] = np.where(stages.first == 0, np.maximum(best[2], stages.floor_s), best[2])
        best = np.where(best[2] < self.cutoff, best, np.inf)
        schedules = stages.schedules.part(stages.starts)
        before = behind_of(Tail(*best), stages.in_s[0], stages.in_s[1], schedules)
        values = np.array([*best, before.trip_s, before.finish_s, before.flushed_s, before.channel_s])
        starts = _starts(stages.state)
        least = np.minimum.reduceat(values, starts, axis=-1)
        at = (slice(None), slice(low, low + best.shape[1]), stages.state[starts])
        self._flat[at] = np.minimum(self._flat[at], least)


def _starts(rows: Integers) -> Integers:
    """Return where each run of equal numbers starts."""
    is_start = np.ones(len(rows), dtype=np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_start[1:])
    return np.flatnonzero(is_start)
