"""Least bounds of what may follow in a pipeline: a dynamic programme from the last layer to the first.

A state is (stages left, first layer, devices used by type); as devices are handed out in order, it says where a stage
stands. For every state the tables hold the least R, F and E of :mod:`planner.solvers.pipeline_bound`, and the least
that lies behind a boundary before it; each is the least by itself, so that together they bound whatever is put before.

*Number of stages.* With the stages left known the work is ``O(P L^2 sum over states of choices)``; where that is too
much, ``P = 0`` leaves their number open: K is then relaxed to m, and memory to what one micro-batch in flight takes.

*What the cutoff T leaves.* Devices whose speeds sum up to S do at most ``S T`` of work in an iteration. So the layers
before a state fit the devices used, those behind it fit the others, and those of a stage fit its own; with T near the
time that all devices need together, few devices used are left for each layer, and few ends for each stage. Entries at
or above T are given up at once.

*Many layers at a time.* Stages that start in a run of layers and all end behind it do not need one another's entries:
a run is then filled in one pass of numpy. In a long network of small layers runs are long, so passes do not grow with
the layers. What does not depend on entries is computed before the passes, for all stages of a small table at once: its
passes are so short that calls of numpy would take most of the time.

*Units.* Tables of large groups count devices in units of q: of R devices that are left ``R // q`` units, of which a
stage of r devices takes ``r // q``. What may really follow then never takes more units than are left, so bounds are
true; they are weak, as a stage of fewer than q devices takes none. v units left are at most ``q v + q - 1`` devices.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solvers.pipeline_bound import Behind, Tail, behind_of, stage_of
from planner.solvers.pipeline_parts import Integers, PipelineCosts, Schedule

__all__ = ["Tables"]

_MOST_AT_ONCE = 200_000  # stages times numbers of stages in one pass: beyond the processor's cache it gets slower
_MOST_BEFORE = 30_000  # stages of a table that are all computed before its passes: of more, few may have a follower
_MOST_PAIRS = 1_000_000  # moves times layers that are looked at together
_DENSE = 0.5  # share of stages with a follower from which on all are computed
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Moves:
    """A state's devices used and a choice for the stage that starts there: arrays, ordered by state."""

    state: Integers
    choice: Integers
    place: Integers
    after: Integers  # the state behind the stage
    earliest: Integers  # the layer behind it, at least
    least: Integers  # its first layer, from
    most: Integers  # to


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Moves with first layers: stages that start at ``first`` and end before ``begin``, ..., ``stop - 1``."""

    move: Integers
    first: Integers
    begin: Integers
    stop: Integers

    def part(self, low: int, high: int) -> "_Pairs":
        """Return some of them."""
        return _Pairs(self.move[low:high], self.first[low:high], self.begin[low:high], self.stop[low:high])

    @property
    def widths(self) -> Integers:
        """Return the numbers of ends."""
        return self.stop - self.begin


@dataclass(frozen=True, slots=True)
class _Stages:
    """Stages, and what of them does not depend on entries; those that differ in their ends alone are a group.

    By stage: ``after``, the entry behind it by layer and state; f, b and y; ``out_s``, cf and cb that a boundary behind
    it takes at least; ``most_in_flight``. By group: ``starts``, its first stage; ``state``, the entry that it lowers;
    ``first``; ``floor_s``; ``in_s`` of a boundary before it.
    """

    after: Integers
    forward_s: Floats
    backward_s: Floats
    flush_s: Floats
    out_s: Floats
    most_in_flight: Integers
    starts: Integers
    state: Integers
    first: Integers
    floor_s: Floats
    in_s: Floats

    def part(self, low: int, high: int) -> "_Stages":
        """Return some groups."""
        begin = int(self.starts[low])
        stop = int(self.starts[high]) if high < len(self.starts) else len(self.after)
        return _Stages(
            self.after[begin:stop],
            self.forward_s[begin:stop],
            self.backward_s[begin:stop],
            self.flush_s[begin:stop],
            self.out_s[:, begin:stop],
            self.most_in_flight[begin:stop],
            self.starts[low:high] - begin,
            self.state[low:high],
            self.first[low:high],
            self.floor_s[low:high],
            self.in_s[:, low:high],
        )


class Tables:
    """Least R, F, E from a cut on, and least X, F, E and channel terms behind it; axes: stages left, layer, used.

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
        schedule: Schedule,
        num_stages: int,
        search: Search,
        cutoff: float = np.inf,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        self.costs, self.schedule, self.cutoff = costs, schedule, cutoff
        self.is_open = not num_stages
        self.left = np.arange(1, num_stages + 1) if num_stages else np.array([schedule.num_microbatches])
        self._grid = [number // unit + 1 for number, unit in zip(costs.num_devices, costs.units, strict=True)]
        self._strides = [prod(self._grid[axis + 1 :]) for axis in range(len(self._grid))]
        self.entries = np.full((7, num_stages + 1, costs.num_layers + 1, prod(self._grid)), np.inf)
        self.entries[:, 0, -1] = 0.0 if allowed is None else np.where(allowed.reshape(-1), 0.0, np.inf)
        self._flat = self.entries.reshape(7, num_stages + 1, -1)  # the same numbers: by layer and state together
        self._moves = self._all_moves()
        self._furthest = self._all_furthest()
        self.is_complete = self._fill(search)

    def state(self, used: Sequence[Integers]) -> Integers:
        """Return the index of the devices used of each type: by the units that are left of them."""
        index: Integers = np.zeros((), dtype=np.int64)
        for axis, one in enumerate(used):
            left = (self.costs.num_devices[axis] - one) // self.costs.units[axis]
            index = index + (self._grid[axis] - 1 - left) * self._strides[axis]
        return index

    def behind(self, num_left: Integers, ends: Integers, used: Sequence[Integers], out_s: Floats) -> Behind:
        """Return what lies behind stages that end before ``ends`` and leave so much used; arrays broadcast."""
        at = self.entries[:, num_left, ends, self.state(used)]
        return behind_of(Tail(*at[:3]), out_s[0], out_s[1], self.schedule).at_least(Behind(*at[3:]))

    # -- what the cutoff leaves --------------------------------------------------------------------------------------

    def _all_moves(self) -> _Moves:
        """Return all states with the choices that are left in them, and the layers that the cutoff leaves for both."""
        costs, grid = self.costs, np.array(self._grid)
        used = np.indices(self._grid).reshape(len(grid), -1)
        types = np.array([one.type_index for one in costs.choices])
        sizes = np.array([one.num_devices for one in costs.choices]) // np.array(costs.units)[types]
        state, choice = np.nonzero(used[types].T + sizes < grid[types])
        axis = types[choice]
        place = (used[axis, state] * np.array(costs.units)[axis]) % np.array(costs.num_places)[axis]
        after = state + sizes[choice] * np.array(self._strides)[axis]
        num_layers = costs.num_layers
        earliest, least, most = (np.full(len(state), one) for one in (1, 0, num_layers - 1))
        if self.cutoff < np.inf and costs.work_s is not None:
            work_s = self.schedule.num_microbatches * costs.work_s
            units, numbers = np.array(costs.units)[:, None], np.array(costs.num_devices)[:, None]
            left = np.minimum(numbers, (grid[:, None] - 1 - used) * units + units - 1)  # at most, of each type
            rest_s = self._most_done_s(left)
            earliest = np.searchsorted(work_s, work_s[-1] - rest_s[after], side="left")
            least = np.searchsorted(work_s, work_s[-1] - rest_s[state], side="left")
            if (units == 1).all():  # else more may be used than this
                most = np.minimum(np.searchsorted(work_s, self._most_done_s(used)[state], side="right") - 1, most)
        return _Moves(state, choice, place, after, earliest, least, most)

    def _most_done_s(self, devices: Integers) -> Floats:
        """Return the work that so many devices of every type, along the first axis, can do until the cutoff."""
        done_s: Floats = np.asarray(self.costs.speeds, dtype=np.float64) @ devices * (self.cutoff * (1 + _ROUNDING))
        return done_s

    def _all_furthest(self) -> Integers:
        """Return, by choice and first layer, behind which layer a stage ends at most."""
        costs, num_layers = self.costs, self.costs.num_layers
        if self.cutoff == np.inf or costs.work_s is None:
            return np.full((len(costs.choices), num_layers), num_layers)
        work_s = self.schedule.num_microbatches * costs.work_s
        able = np.array([one.num_devices * costs.speeds[one.type_index] for one in costs.choices])
        most_s = work_s[:-1] + able[:, None] * (self.cutoff * (1 + _ROUNDING))
        return np.searchsorted(work_s, most_s, side="right") - 1

    def _pairs(self, low: int, high: int) -> list[_Pairs]:
        """Return the stages that may start at the layers from ``low`` to before ``high``, by layer."""
        moves, firsts = self._moves, np.arange(low, high)[:, None]
        begins = np.maximum(moves.earliest, firsts + 1)
        stops = self._furthest[moves.choice, firsts] + 1
        rows, move = np.nonzero((begins < stops) & (moves.least <= firsts) & (firsts <= moves.most))
        found = _Pairs(move, rows + low, begins[rows, move], stops[rows, move])
        ends = np.searchsorted(rows, np.arange(high - low + 1)).tolist()
        return [found.part(begin, stop) for begin, stop in pairwise(ends)]

    def _all_pairs(self) -> Iterator[_Pairs]:
        """Yield the stages that may start at each layer, last layers first."""
        together = max(1, _MOST_PAIRS // max(1, len(self._moves.state)))
        for high in range(self.costs.num_layers, 0, -together):
            yield from reversed(self._pairs(max(0, high - together), high))

    def _runs(self, all_pairs: Iterable[_Pairs]) -> Iterator[list[_Pairs]]:
        """Yield the stages by first layer, last layers first, as many layers together as do not need one another."""
        most, run, size, bottom = _MOST_AT_ONCE // len(self.left), list[_Pairs](), 0, self.costs.num_layers
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
        all_pairs: Iterable[_Pairs] = self._all_pairs()
        known, done = None, 0
        if len(self._moves.state) * self.costs.num_layers <= _MOST_PAIRS:
            all_pairs = list(all_pairs)
            if sum(int(one.widths.sum()) for one in all_pairs) <= _MOST_BEFORE:
                known = self._stages(_joined(all_pairs), is_before=True)
        for run in self._runs(all_pairs):
            pairs = run[0] if len(run) == 1 else _joined(run)
            ends = np.cumsum(pairs.widths)
            low = 0
            while low < len(ends):
                before = int(ends[low - 1]) if low else 0
                high = max(low + 1, int(np.searchsorted(ends, before + most, side="right")))
                if known is None:
                    self._add(self._stages(pairs.part(low, high)))
                else:
                    self._add(known.part(done + low, done + high))
                if search.is_over:
                    return False
                low = high
            done += len(ends)
        return True

    def _stages(self, pairs: _Pairs, *, is_before: bool = False) -> _Stages:
        """Return what is known of stages; unless that is asked before the passes, only of those with a follower."""
        widths, costs, moves = pairs.widths, self.costs, self._moves
        which = np.repeat(np.arange(len(widths)), widths)
        ends = np.arange(len(which)) - np.repeat(np.cumsum(widths) - widths - pairs.begin, widths)
        move = pairs.move[which]
        after = ends * self.entries.shape[-1] + moves.after[move]
        if not is_before:
            # Nothing can follow most of them: the end of all work is known for few states, and the cutoff leaves fewer.
            is_alive = np.isfinite(self._flat[2][self._after, after]).any(axis=0)
            which, ends, move, after = which[is_alive], ends[is_alive], move[is_alive], after[is_alive]
        first, choice, place = pairs.first[which], moves.choice[move], moves.place[move]
        found = costs.stages(first, ends - 1, choice, place)
        starts = _starts(which)
        groups = move[starts], first[starts]
        return _Stages(
            after,
            found.forward_s,
            found.backward_s,
            found.flush_s,
            costs.out_s(ends - 1, choice, place),
            found.most_in_flight,
            starts,
            groups[1] * self.entries.shape[-1] + moves.state[groups[0]],
            groups[1],
            costs.floor_s[moves.choice[groups[0]]],
            costs.in_s(groups[1], moves.choice[groups[0]], moves.place[groups[0]]),
        )

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
        at = self._flat[:, left, stages.after[column]]
        behind = behind_of(Tail(*at[:3]), out_s, back_s, self.schedule).at_least(Behind(*at[3:]))
        in_flight = self.schedule.in_flight(self.left[left])
        tail = stage_of(forward_s, backward_s, stages.flush_s[column], behind, in_flight, self.schedule)
        least = np.array([tail.round_trip_s, tail.finish_s, tail.flushed_s])
        np.copyto(least, np.inf, where=self._is_out(stages, column, in_flight))
        return least

    def _is_out(self, stages: _Stages, column: Integers | slice, in_flight: Integers) -> NDArray[np.bool_]:
        """Return which stages do not fit in memory, or compute longer than the cutoff."""
        m = self.schedule.num_microbatches
        held = np.minimum(in_flight, 1 if self.is_open and not self.schedule.is_gpipe else m)
        is_late = (m * (stages.forward_s + stages.backward_s) > self.cutoff)[column]
        return np.asarray((stages.most_in_flight[column] < np.maximum(held, 1)) | is_late)

    def _keep(self, best: Floats, stages: _Stages, low: int) -> None:
        """Lower the entries by the best of each group, ordered by first layer and state; ``low``: least stages left."""
        if not stages.first.all():
            best[2] = np.where(stages.first == 0, np.maximum(best[2], stages.floor_s), best[2])
        best = np.where(best[2] < self.cutoff, best, np.inf)
        before = behind_of(Tail(*best), stages.in_s[0], stages.in_s[1], self.schedule)
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


def _joined(run: Sequence[_Pairs]) -> _Pairs:
    """Return the stages of several first layers together."""
    return _Pairs(
        np.concatenate([one.move for one in run]),
        np.concatenate([one.first for one in run]),
        np.concatenate([one.begin for one in run]),
        np.concatenate([one.stop for one in run]),
    )
