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
the layers.

*Units.* Tables of large groups count devices in units of q: of R devices that are left ``R // q`` units, of which a
stage of r devices takes ``r // q``. What may really follow then never takes more units than are left, so bounds are
true; they are weak, as a stage of fewer than q devices takes none. v units left are at most ``q v + q - 1`` devices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solvers.pipeline_bound import Behind, Tail, behind_of, stage_of
from planner.solvers.pipeline_parts import Integers, PipelineCosts, Schedule, StageSeconds

__all__ = ["Tables"]

_MOST_AT_ONCE = 200_000  # stages times numbers of stages in one pass: beyond the processor's cache it gets slower
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
        return _Pairs(*(one[low:high] for one in (self.move, self.first, self.begin, self.stop)))

    @property
    def widths(self) -> Integers:
        """Return the numbers of ends."""
        return self.stop - self.begin


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

    def _pairs(self, first: int) -> _Pairs:
        """Return the stages that may start at a layer."""
        moves = self._moves
        begin = np.maximum(moves.earliest, first + 1)
        stop = self._furthest[moves.choice, first] + 1
        move = np.flatnonzero((begin < stop) & (moves.least <= first) & (first <= moves.most))
        return _Pairs(move, np.full(len(move), first), begin[move], stop[move])

    def _runs(self) -> Iterator[list[_Pairs]]:
        """Yield the stages by first layer, last layers first, as many layers together as do not need one another."""
        most, run, size, bottom = _MOST_AT_ONCE // len(self.left), list[_Pairs](), 0, self.costs.num_layers
        for first in reversed(range(self.costs.num_layers)):
            pairs = self._pairs(first)
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
        for run in self._runs():
            for pairs in run if len(run) == 1 else [_joined(run)]:
                ends = np.cumsum(pairs.widths)
                low = 0
                while low < len(ends):
                    before = int(ends[low - 1]) if low else 0
                    high = max(low + 1, int(np.searchsorted(ends, before + most, side="right")))
                    self._add(pairs.part(low, high))
                    if search.is_over:
                        return False
                    low = high
        return True

    def _add(self, pairs: _Pairs) -> None:
        """Lower the entries that some stages lead to."""
        widths = pairs.widths
        which = np.repeat(np.arange(len(widths)), widths)
        ends = np.arange(len(which)) - np.repeat(np.cumsum(widths) - widths - pairs.begin, widths)
        after = slice(0, 1 if self.is_open else len(self.left))
        # Nothing can follow most of them: the end of all work is known for few states, and the cutoff leaves fewer.
        is_alive = np.isfinite(self.entries[2][after, ends, self._moves.after[pairs.move[which]]]).any(axis=0)
        which, ends = which[is_alive], ends[is_alive]
        if not len(which):
            return
        move, first = pairs.move[which], pairs.first[which]
        choice, place = self._moves.choice[move], self._moves.place[move]
        at = self.entries[:, after, ends, self._moves.after[move]]
        out_s, back_s = self.costs.out_s(ends - 1, choice, place)
        behind = behind_of(Tail(*at[:3]), out_s, back_s, self.schedule).at_least(Behind(*at[3:]))
        found = self.costs.stages(first, ends - 1, choice, place)
        in_flight = self.schedule.in_flight(self.left)[:, None]
        tail = stage_of(found.forward_s, found.backward_s, found.flush_s, behind, in_flight, self.schedule)
        is_out = self._is_out(found, in_flight)
        starts = np.flatnonzero(np.diff(which, prepend=-1))
        self._keep(
            [
                np.minimum.reduceat(np.where(is_out, np.inf, one), starts, axis=-1)
                for one in (tail.round_trip_s, tail.finish_s, tail.flushed_s)
            ],
            move[starts],
            first[starts],
        )

    def _is_out(self, found: StageSeconds, in_flight: Integers) -> NDArray[np.bool_]:
        """Return which stages do not fit in memory, or compute longer than the cutoff."""
        m = self.schedule.num_microbatches
        held = np.minimum(in_flight, 1 if self.is_open and not self.schedule.is_gpipe else m)
        is_late = m * (found.forward_s + found.backward_s) > self.cutoff
        return np.asarray((found.most_in_flight < np.maximum(held, 1)) | is_late)

    def _keep(self, best: list[Floats], move: Integers, first: Integers) -> None:
        """Lower the entries by the best of stages that differ in their ends alone; ordered by first layer and state."""
        choice = self._moves.choice[move]
        best[2] = np.where(first == 0, np.maximum(best[2], self.costs.floor_s[choice]), best[2])
        best = [np.where(best[2] < self.cutoff, one, np.inf) for one in best]
        in_s, in_back_s = self.costs.in_s(first, choice, self._moves.place[move])
        before = behind_of(Tail(*best), in_s, in_back_s, self.schedule)
        values = np.array([*best, before.trip_s, before.finish_s, before.flushed_s, before.channel_s])
        states = first * self.entries.shape[-1] + self._moves.state[move]
        starts = np.flatnonzero(np.diff(states, prepend=-1))
        least = np.minimum.reduceat(values, starts, axis=-1)
        at = (
            slice(None),
            slice(0, 1) if self.is_open else slice(1, None),
            first[starts],
            self._moves.state[move[starts]],
        )
        self.entries[at] = np.minimum(self.entries[at], least)


def _joined(run: Sequence[_Pairs]) -> _Pairs:
    """Return the stages of several first layers together."""
    return _Pairs(
        np.concatenate([one.move for one in run]),
        np.concatenate([one.first for one in run]),
        np.concatenate([one.begin for one in run]),
        np.concatenate([one.stop for one in run]),
    )
