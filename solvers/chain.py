"""Cuts of a line into runs as equal as can be."""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers.chain_bounds import (
    Behind,
    Candidate,
    Grid,
    Integers,
    Moves,
    Pairs,
    PipelineCosts,
    Prefix,
    Schedule,
    Schedules,
    Stack,
    Stage,
    StageSeconds,
    Tail,
    behind_of,
    bound_s,
    joined,
    stage_of,
    through,
)

_CLOSE = 1e-12  # relative difference at which two times are one
_PIPELINE_CUTS_ROUNDING = 1e-13  # of sums; far below _CLOSE, so that every trial comes closer
_MOST_KEPT = 1_000  # layers of cuts that are remembered
_MOST_TRIALS = 64  # each halves what is left, but for rounding: enough for _CLOSE


def balanced_cuts(seconds: Floats, num_parts: int) -> tuple[int, ...]:
    """Return the last layer of each of ``num_parts`` runs of layers, of which the longest takes as little as it can.

    Parameters
    ----------
    seconds
        By layer; >= 0, at least ``num_parts`` of them.

    >>> balanced_cuts(np.array([3.0, 1, 1, 1, 3]), 3)
    (0, 3, 4)
    """
    known = tuple(np.asarray(seconds, dtype=np.float64).tolist())
    return (_balanced if len(known) <= _MOST_KEPT else _balanced.__wrapped__)(known, num_parts)


@lru_cache(maxsize=1_024)  # searches of one question, one after the other, ask for the same cuts
def _balanced(seconds: tuple[float, ...], num_parts: int) -> tuple[int, ...]:
    """Return :func:`balanced_cuts`."""
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    return balanced_cuts_of([total] * num_parts)


def balanced_cuts_of(totals: Sequence[Floats]) -> tuple[int, ...]:
    """Return the last layer of each run, where every run has seconds of its own; a heuristic where they differ.

    Parameters
    ----------
    totals
        For each run, L + 1 prefix sums of what the layers take there; at least as many layers as runs.

    Notes
    -----
    Bisection over the longest run's seconds T: runs are filled one after another. With equal seconds that tells whether
    T suffices, and of the runs that are no longer than the least T the first are the longest. With different ones a run
    may be left with a layer that suits it ill, as none may be empty. A trial that fails rules out all T up to where a
    run would take a layer more, and one that succeeds all above its longest run: a few trials of O(n log L) do.

    >>> balanced_cuts_of([np.array([0.0, 1, 2, 3, 4]), np.array([0.0, 3, 6, 9, 12])])
    (2, 3)
    """
    known = {id(one): one.tolist() for one in totals}
    rows = [known[id(one)] for one in totals]
    low, high = 0.0, max(one[-1] for one in rows)
    best, high = _filled(rows, high)
    assert best is not None, f"{len(totals[0]) - 1} layers do not make {len(totals)} runs"
    for _ in range(_MOST_TRIALS):
        if high - low <= _CLOSE * high:
            break
        found, seconds = _filled(rows, (low + high) / 2)
        if found is None:
            low = seconds
        else:
            best, high = found, seconds
    return best


def _filled(totals: Sequence[list[float]], most_s: float) -> tuple[tuple[int, ...] | None, float]:
    """Return the last layers of runs of at most ``most_s``, and the longest of them.

    Where there would be more runs, return None, and the least seconds with which one of these would be longer.
    """
    num_layers, start, ends = len(totals[0]) - 1, 0, list[int]()
    longest, longer = 0.0, float("inf")
    for part, total in enumerate(totals):
        far = bisect_right(total, total[start] + most_s * (1 + _PIPELINE_CUTS_ROUNDING), start) - 1
        if far < num_layers:
            longer = min(longer, total[far + 1] - total[start])
        if far <= start:
            return None, longer  # not even its first layer
        end = min(far, num_layers - (len(totals) - 1 - part))
        longest = max(longest, total[end] - total[start])
        ends.append(end - 1)
        start = end
    return (tuple(ends), longest) if start == num_layers else (None, longer)


# --- What a pipeline is made of, for solvers: choices, stages, schedules, and what they cost
# The formulation stands at the head of :mod:`planner.solvers.chain_bounds`.


# --- Least bounds of what may follow in a pipeline: a dynamic programme from the last layer to the first
# A state is (stages left, first layer, devices used by type); as devices are handed out in order, it says where a stage
# stands. For every state the tables hold the least R, F and E of :mod:`planner.solvers.chain_bounds`, and the least
# that lies behind a boundary before it; each is the least by itself, so that together they bound whatever is put
# before.
#
# *Number of stages.* With the stages left known the work is ``O(P L^2 sum over states of choices)``; where that is too
# much, ``P = 0`` leaves their number open: K is then relaxed to m, and memory to what one micro-batch in flight takes.
#
# *What the cutoff T leaves.* States, first layers and ends that cannot be part of a pipeline below T are passed over,
# see
# :mod:`planner.solvers.chain_bounds`; entries at or above T are given up at once.
#
# *Many sources at a time.* Small tables of several numbers of micro-batches are filled together: their states stand
# side
# by side, each source's after those of the one before, and no stage leads from one source to another. Every entry is
# the
# same as if its source were filled alone.
#
# *Many layers at a time.* Stages that start in a run of layers and all end behind it do not need one another's entries:
# a run is then filled in one pass of numpy. In a long network of small layers runs are long, so passes do not grow with
# the layers.
#
# *Units.* Tables of large groups count devices in units of q: of R devices that are left ``R // q`` units, of which a
# stage of r devices takes ``r // q``. What may really follow then never takes more units than are left, so bounds are
# true; they are weak, as a stage of fewer than q devices takes none. v units left are at most ``q v + q - 1`` devices.

_MOST_AT_ONCE = 200_000  # stages times numbers of stages in one pass: beyond the processor's cache it gets slower
_BYTES = 8  # of a number
_ARRAYS_OF_MOVES = 12
_ARRAYS_OF_SIDES = 5
_PIPELINE_TABLES_ROUNDING = 1e-9
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
        return np.asarray((least_s <= self.cutoff * (1 + _PIPELINE_TABLES_ROUNDING)) & (found.most_in_flight >= held))

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


# --- The best pipeline: configurations in the order of a lower bound of their makespan
# The formulation, and the proof of the bound, stand at the head of :mod:`planner.solvers.chain_bounds`; the tables of
# what may follow, at that of :mod:`planner.solvers.chain`. Pipelines are extended stage by stage, always the
# one with the least bound (A*: what its known stages take, and the least of what may follow): complete ones then come
# in
# the order of their bounds.

_MOST_NODES = 400_000  # that wait to be extended, and may be added by one: half a gibibyte
_ASKED_EVERY = 4_096  # nodes that are added


@dataclass(frozen=True, slots=True)
class _Node:
    """The first stages of a configuration, and what they take; ``num_stages`` in all, or 0 where that is open.

    ``columns``: f, b and y by stage; ``sent``: cf and cb by boundary between them; ``place``: of the last stage.
    """

    num_stages: int
    stages: tuple[Stage, ...]
    used: tuple[int, ...]
    columns: tuple[tuple[float, float, float], ...] = ()
    sent: tuple[tuple[float, float], ...] = ()
    room: tuple[int, ...] = ()
    place: int = 0

    @property
    def first(self) -> int:
        """The layer that comes next."""
        return self.stages[-1].last + 1 if self.stages else 0


@dataclass(frozen=True, slots=True)
class _Next:
    """Every stage that may come next: what it takes by choice and end, and the bound with it."""

    choices: Integers
    places: Integers
    sent: Floats
    found: StageSeconds
    bounds: Floats


class BestFirst:
    """Configurations of one schedule in the order of their bounds.

    Parameters
    ----------
    numbers_of_stages
        Those that are allowed.
    allowed
        By number of devices used of each type: whether so many may be used in all; None: all may.
    cutoff
        Makespan of an answer that is known: nothing at or above it is looked at.
    is_open
        Whether the tables leave the number of stages open, see above.
    tables
        Those of these costs, if they are filled already: with the same limits, and a cutoff of no less.

    Attributes
    ----------
    is_too_large
        Whether it has ended since more configurations wait than fit in memory; the bound still holds.
    """

    def __init__(
        self,
        costs: PipelineCosts,
        schedule: Schedule,
        numbers_of_stages: Sequence[int],
        search: Search,
        *,
        allowed: NDArray[np.bool_] | None = None,
        cutoff: float = np.inf,
        is_open: bool = False,
        tables: TablesOfOne | None = None,
    ) -> None:
        self.costs, self.schedule, self.search = costs, schedule, search
        self.numbers_of_stages = frozenset(numbers_of_stages)
        self._types = np.array([one.type_index for one in costs.choices])
        self._sizes = np.array([one.num_devices for one in costs.choices])
        if tables is None:
            most, stack = 0 if is_open else max(numbers_of_stages), Stack.of(schedule, costs)
            tables = Tables(costs, stack, most, search, cutoff, allowed).of(0)
        self._tables = tables
        self.is_too_large = False
        self._heap: list[tuple[float, int, _Node]] = []
        self._count = 0
        for number in [0] if is_open else sorted(self.numbers_of_stages):
            if self._tables.is_complete:
                least_s = float(self._tables.entries[2, number, 0, 0])
                self._push(least_s, _Node(number, (), (0,) * len(costs.num_devices)), cutoff)

    @property
    def bound(self) -> float:
        """No configuration below the cutoff that has not been given is below; ``inf`` when all have been.

        0 where the limit struck before the tables were full.
        """
        if not self._tables.is_complete:
            return 0.0
        return self._heap[0][0] if self._heap else np.inf

    def next(self, cutoff: float, until: float = np.inf) -> Candidate | None:
        """Return the next configuration with a bound below ``cutoff`` and of at most ``until``.

        None where there is none, or the search is over; which of the two it was, :attr:`bound` tells. Nothing at or
        above the cutoff is kept; what lies above ``until`` is kept for later.
        """
        while self._heap and self._heap[0][0] < cutoff and self._heap[0][0] <= until and not self.search.is_over:
            if self.is_too_large:
                return None
            bound, _, node = heapq.heappop(self._heap)
            if not node.stages or node.stages[-1].last < self.costs.num_layers - 1:
                self._expand(bound, node, cutoff)
            elif node.num_stages:
                return Candidate(bound=bound, stages=node.stages)
            else:
                self._close(bound, node, cutoff)
        return None

    def dive(self, number: int) -> list[Candidate]:
        """Return the configurations that the least bound leads to, step by step, from the most promising roots.

        Nothing is taken away from what :meth:`next` gives. The bounds are those of the last step.
        """
        found = []
        for _, _, root in sorted(one for one in self._heap if not one[2].stages)[:number]:
            node, bound = root, 0.0
            while not self.search.is_over and (not node.stages or node.stages[-1].last < self.costs.num_layers - 1):
                following = self._following(node)
                if not following.bounds.size:
                    break
                row, end = (int(one) for one in np.unravel_index(following.bounds.argmin(), following.bounds.shape))
                if not following.bounds[row, end] < np.inf:
                    break
                bound, node = float(following.bounds[row, end]), self._extended(node, following, row, end)
            if node.stages and node.stages[-1].last == self.costs.num_layers - 1:  # else a limit struck on the way
                found.append(Candidate(bound=bound, stages=node.stages))
        return found

    def _push(self, bound: float, node: _Node, cutoff: float) -> None:
        """Keep a node that may still beat the best answer; first in, first out among equals."""
        if bound < cutoff:
            self._count += 1
            heapq.heappush(self._heap, (bound, self._count, node))

    def _close(self, bound: float, node: _Node, cutoff: float) -> None:
        """Bound a complete configuration again by its number of stages, now known; drop it if it does not fit."""
        n = len(node.stages)
        held = self.schedule.in_flight(np.arange(n, 0, -1)).tolist()
        if n in self.numbers_of_stages and all(one <= most for one, most in zip(held, node.room, strict=True)):
            forward_s, backward_s, flush_s = zip(*node.columns, strict=True)
            outs, backs = ([pair[way] for pair in node.sent] for way in (0, 1))
            true = bound_s(forward_s, backward_s, outs, backs, flush_s, self.schedule)
            self._push(max(bound, true), replace(node, num_stages=n), cutoff)

    def _expand(self, bound: float, node: _Node, cutoff: float) -> None:
        """Add every next stage below the cutoff; where they are too many, or the search is over, keep the node."""
        following = self._following(node)
        rows, ends = np.nonzero(following.bounds < cutoff)
        self.is_too_large = len(self._heap) + len(rows) > _MOST_NODES
        for number, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
            if self.is_too_large or (number % _ASKED_EVERY == _ASKED_EVERY - 1 and self.search.is_over):
                self._push(bound, node, cutoff)
                return
            least = max(bound, float(following.bounds[row, end]))
            self._push(least, self._extended(node, following, row, end), cutoff)

    def _extended(self, node: _Node, following: _Next, row: int, end: int) -> _Node:
        """Return a node with one stage more."""
        index, found = int(following.choices[row]), following.found
        choice, first = self.costs.choices[index], node.first
        used = list(node.used)
        used[choice.type_index] += choice.num_devices
        sent = ((float(following.sent[0, row]), float(following.sent[1, row])),) if node.stages else ()
        at = (row, end)
        column = (float(found.forward_s[at]), float(found.backward_s[at]), float(found.flush_s[at]))
        return _Node(
            node.num_stages,
            (*node.stages, Stage(first=first, last=first + end, choice=index)),
            tuple(used),
            (*node.columns, column),
            (*node.sent, *sent),
            (*node.room, int(found.most_in_flight[at])),
            int(following.places[row]),
        )

    def _following(self, node: _Node) -> _Next:
        """Return what may come next; the bound is ``inf`` where that is impossible."""
        costs, taken, first = self.costs, np.array(node.used), node.first
        choices = np.flatnonzero(self._sizes <= (np.array(costs.num_devices) - taken)[self._types])
        types, sizes = self._types[choices], self._sizes[choices]
        places = taken[types] % np.array(costs.num_places)[types]
        by_choice, by_place = choices[:, None], places[:, None]
        ends = np.arange(first + 1, costs.num_layers + 1)[None, :]
        used = [(number + np.where(types == axis, sizes, 0))[:, None] for axis, number in enumerate(node.used)]
        position = len(node.stages)
        left = np.array(node.num_stages - position - 1 if node.num_stages else 0)
        behind = self._tables.behind(left, ends, used, costs.out_s(ends - 1, by_choice, by_place))
        in_flight = self._in_flight(node, position)
        found = costs.stages(np.full_like(ends, first), ends - 1, by_choice, by_place)
        tail = stage_of(found.forward_s, found.backward_s, found.flush_s, behind, in_flight, self.schedule)
        sent = np.zeros((2, len(choices)))
        if node.stages:
            sent = costs.boundary_s(first, node.stages[-1].choice, node.place, choices, places)
        work_s = np.array([found.forward_s, found.backward_s])
        held = [int(self._in_flight(node, index)) for index in range(position)]
        prefix = Prefix(node.columns, node.sent, held)
        bounds = through(prefix, tail, work_s, sent[:, :, None], self.schedule, is_closed=node.num_stages > 0)
        if not node.stages:
            bounds = np.maximum(bounds, costs.floor_s[choices][:, None])
        least = in_flight if node.num_stages or self.schedule.is_gpipe else 1
        bounds = np.where(found.most_in_flight >= least, bounds, np.inf)
        return _Next(choices, places, sent, found, bounds)

    def _in_flight(self, node: _Node, position: int) -> Integers:
        """Return K of a stage, relaxed to m where the number of stages is open."""
        left = node.num_stages - position if node.num_stages else self.schedule.num_microbatches
        return self.schedule.in_flight(np.array(left))


# --- The cheapest choice for every layer of a chain, where neighbours' costs are known at first only from below

Path = tuple[int, ...]
_WORK_AT_ONCE = 10_000_000  # pairs that are added between two questions whether to stop: some hundredths of a second
_LEAST_WORK = 10_000  # that a layer counts for, however few its pairs


def cheapest_chain(
    nodes: Sequence[Floats],
    bounds: Sequence[Floats],
    pair_cost: Callable[[int, int, int], float],
    *,
    enough: float = np.inf,
    is_over: Callable[[], bool] = lambda: False,
) -> Solution[Path]:
    """Return one state for every layer, of least total cost.

    Sets: layers ``1..L``, states ``S(l)``. Variables: ``s(l)`` in ``S(l)``. Objective: minimise
    ``sum over l of node(l, s(l)) + sum over l > 1 of pair(l, s(l-1), s(l))``. No constraints.

    Recursion: ``T(1, s) = node(1, s)``, ``T(l, s) = node(l, s) + min over s' of T(l-1, s') + pair(l, s', s)``; the
    answer is ``min over s of T(L, s)``. A pair's cost may be dear to find (an assignment). So the recursion runs on
    lower bounds; the pairs on its cheapest chain are priced exactly and take their bounds' places; and it runs
    again, until all pairs of the cheapest chain are exact. That chain's cost is then its own bound: it is optimal.

    Parameters
    ----------
    nodes
        For every layer, the cost of each state; ``inf`` for one that may not be chosen.
    bounds
        For every layer but the first, ``[s', s]``: no more than the cost of the pair. They are not changed. Layers
        with the same array have equal pairs: what a pair costs for one of them, it costs for all.
    pair_cost
        ``(l, s', s)``, l from 1 as layers count from 0: the exact cost.
    enough
        Stop as soon as no chain can cost less than this: the bound says so.
    is_over
        Whether to stop with the best so far; asked in every run, after each ten million pairs or thousand layers.

    Returns
    -------
    Solution
        OPTIMAL; INFEASIBLE if some layer has no state; or, stopped early, FEASIBLE (UNKNOWN without any chain) with a
        bound. If not even the first run came to its end, that is the chain of each layer's cheapest state, and the sum
        of each layer's least costs. The objective is the sum of exact costs.

    Notes
    -----
    Complexity: O(L S^2) a run; a run prices at least one pair, hence at most L S^2 runs, in practice a few tens.
    Memory: two numbers for every state, and a copy of every distinct array of bounds. Ties go to the lower index.
    """
    if any(not np.isfinite(costs).any() for costs in nodes):
        return Solution(status=Status.INFEASIBLE, objective=np.inf, bound=np.inf, value=None)
    chain = _Chain(nodes, bounds)
    best: tuple[float, Path | None] = (np.inf, None)
    bound = -np.inf
    while True:
        found = chain.cheapest(is_over)
        if found is None and best[1] is not None:
            break
        bound, path = found or chain.cheapest_states()
        if bound >= min(enough, best[0]) or (best[1] is not None and is_over()):
            break
        total = sum(float(costs[state]) for costs, state in zip(nodes, path, strict=True))
        total += sum(chain.price(layer, path[layer - 1], path[layer], pair_cost) for layer in range(1, len(nodes)))
        if found is None:
            best = (total, path) if total < np.inf else best
            break
        if chain.is_settled:  # its pairs cost what they were taken to cost: nothing is cheaper
            best = (bound, path)
            break
        if total < best[0]:
            best = (total, path)
    objective, value = best
    status = Status.UNKNOWN if value is None else Status.OPTIMAL if bound >= objective else Status.FEASIBLE
    return Solution(status=status, objective=objective, bound=min(bound, objective), value=value)


class _Chain:
    """The recursion's tables, which are made again from the first layer on whose pairs were priced."""

    def __init__(self, nodes: Sequence[Floats], bounds: Sequence[Floats]) -> None:
        self._nodes = nodes
        first = dict[int, int]()  # of the layers that share an array, by the array
        self._table = [first.setdefault(id(pairs), layer) for layer, pairs in enumerate(bounds, start=1)]
        self._pairs = {layer: bounds[layer - 1] for layer in first.values()}
        self._exact: dict[int, NDArray[np.bool_]] = {}  # what has none is all bounds, and not yet copied
        self._totals: list[Floats] = [np.asarray(nodes[0], dtype=np.float64)]
        self._from: list[NDArray[np.intp]] = []

    @property
    def is_settled(self) -> bool:
        """Whether no price has changed the tables since the last run."""
        return len(self._totals) == len(self._nodes)

    def cheapest(self, is_over: Callable[[], bool]) -> tuple[float, Path] | None:
        """Return the cost of the cheapest chain, as far as it is known, and its states; None if the time was over."""
        work = 0
        for layer in range(len(self._totals), len(self._nodes)):
            pairs = self._pairs[self._table[layer - 1]]
            work += max(pairs.size, _LEAST_WORK)
            if work > _WORK_AT_ONCE:
                work = 0
                if is_over():
                    return None
            sums = self._totals[-1][:, np.newaxis] + pairs
            before = sums.argmin(axis=0)
            self._from.append(before)
            self._totals.append(self._nodes[layer] + sums[before, np.arange(sums.shape[1])])
        state = int(self._totals[-1].argmin())
        cost = float(self._totals[-1][state])
        path = [state]
        for before in reversed(self._from):
            path.append(int(before[path[-1]]))
        return cost, tuple(reversed(path))

    def cheapest_states(self) -> tuple[float, Path]:
        """Return the least that any chain may cost, and the cheapest state of every layer, whatever the pairs cost."""
        least = {table: float(pairs.min()) for table, pairs in self._pairs.items()}
        bound = sum(float(costs.min()) for costs in self._nodes) + sum(least[table] for table in self._table)
        return bound, tuple(int(costs.argmin()) for costs in self._nodes)

    def price(self, layer: int, before: int, after: int, pair_cost: Callable[[int, int, int], float]) -> float:
        """Return the exact cost of a pair, which takes the place of its bound."""
        table = self._table[layer - 1]
        if table not in self._exact:
            self._pairs[table] = np.array(self._pairs[table], dtype=np.float64)
            self._exact[table] = np.zeros(self._pairs[table].shape, dtype=np.bool_)
        pairs, exact = self._pairs[table], self._exact[table]
        if not exact[before, after]:
            exact[before, after] = True
            cost = pair_cost(layer, before, after)
            if cost != pairs[before, after]:
                pairs[before, after] = cost
                del self._totals[table:], self._from[table - 1 :]
        return float(pairs[before, after])
