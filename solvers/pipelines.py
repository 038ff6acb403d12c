"""The best pipeline over a line of layers: configurations in the order of a lower bound of their makespan.

Sets and data: layers ``0..L-1`` in order; device types ``t`` with ``N_t`` devices, ``A_t`` on a machine, handed out in
order; choices ``c``: a stage on ``r_c`` devices of type ``t_c``; micro-batches ``m``. A stage from layer i to layer j
by choice c has, for one micro-batch, seconds ``f`` forward and ``b`` backward, and ``y`` once at its end (exchange of
gradients and update); a boundary between two stages has ``cf`` and ``cb`` for one micro-batch forward and back; ``k``
micro-batches in flight fit in the memory of a stage.

Variables: the number of stages n, the last layer of each, its choice. Constraints: every layer in one stage, stages in
order; at most ``N_t`` devices of a type; the micro-batches in flight, ``m`` under GPipe and ``min(m, n - s)`` in stage
s of n under 1F1B, fit. Objective: the makespan of the schedule, which only its simulation gives; here a lower bound of
it is minimised, and :class:`BestFirst` yields configurations in the order of their bounds, so that simulating them
until the next bound is no better than the best simulated one proves that one optimal.

The bound is that of :mod:`planner.solvers.pipeline_bounds`: from the last stage to the first, by a rest of six numbers.
Boundaries: the tables know one side only, so both sides bound it, the stage before by ``out`` and the one behind by
``in``; a configuration is given its true boundary.

The search (:class:`Frontier`) extends pipelines stage by stage, always the one with the least bound: what its known
stages take, and the least of what may follow (:mod:`planner.solvers.pipeline_tables`). Others of as many stages, whose
bounds are nearer to it than to the best answer, are extended in the same pass of numpy, also those of other sources:
which are extended first changes no bound. Complete ones then come in the order of their bounds, by source.

Source: best first with a bound of the rest is A* (P. Hart, N. Nilsson and B. Raphael, IEEE Trans. Syst. Sci. Cybern.
4(2), 1968, doi:10.1109/TSSC.1968.300136).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.frozen import frozen
from planner.search import Search
from planner.solvers.pipeline_bounds import (
    DRAINED,
    FINISHED,
    FIRST,
    FLUSHED,
    LAST,
    NOTHING,
    REST,
    Integers,
    Schedule,
    behind_channel,
    behind_stage,
    through,
)
from planner.solvers.pipeline_tables import (
    PipelineCosts,
    Stack,
    Tables,
    TablesOfOne,
    each_part,
    run_starts,
)

_ROUNDING = 1e-9
_MOST_EXTENDED = 100_000  # stages that are tried at once behind several nodes, at most
_MOST_KNOWN = 200_000  # stages that may come next, by state, that are kept: 30 MB
_NO_NODES = np.zeros((), dtype=np.int64)
_MOST_NODES = 400_000  # that wait to be extended, and may be added by one: half a gibibyte


@frozen
class Stage:
    """Layers ``first`` to ``last`` (inclusive), by the choice of index ``choice``."""

    first: int
    last: int
    choice: int


@frozen
class Candidate:
    """A complete configuration and the lower bound of its makespan."""

    bound: float
    stages: tuple[Stage, ...]


@frozen(kw_only=False)
class _Nodes:
    """The first stages of configurations that have as many of them; the last axis goes by configuration.

    ``source`` of each; ``num_stages``: in all, or 0 where that is open. By known stage ``choices``, ``ends``, the layer
    behind it, ``room`` for micro-batches in flight, and ``columns``: f, b and y. ``sent``: cf and cb by boundary
    between them. ``used`` by type; ``place`` of the last stage.
    """

    bounds: Floats
    source: Integers
    num_stages: Integers
    choices: Integers
    ends: Integers
    room: Integers
    columns: Floats
    sent: Floats
    used: Integers
    place: Integers

    @classmethod
    def roots(cls, bounds: Floats, source: int, num_stages: Integers, num_types: int) -> "_Nodes":
        """Return configurations of which no stage is known."""
        size, none = len(bounds), np.zeros((0, len(bounds)), dtype=np.int64)
        used, place = np.zeros((num_types, size), dtype=np.int64), np.zeros(size, dtype=np.int64)
        sources, columns, sent = np.full(size, source), np.zeros((3, 0, size)), np.zeros((2, 0, size))
        return cls(bounds, sources, num_stages, none, none, none, columns, sent, used, place)

    @classmethod
    def joined(cls, parts: Sequence["_Nodes"]) -> "_Nodes":
        """Return the nodes of all parts, one after the other."""
        return cls(*(np.concatenate(rows, axis=-1) for rows in zip(*(one._rows for one in parts), strict=True)))

    @property
    def _rows(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.bounds)

    def at(self, which: Integers | NDArray[np.bool_] | slice) -> "_Nodes":
        """Return some of them."""
        return _Nodes(*(one[..., which] for one in self._rows))

    @property
    def position(self) -> int:
        """Known stages of each."""
        return len(self.ends)

    @property
    def firsts(self) -> Integers:
        """The layer that comes next."""
        return self.ends[-1] if self.position else np.zeros(len(self), dtype=np.int64)

    def stages(self, row: int = 0) -> tuple[Stage, ...]:
        """Return those of one of them."""
        ends, choices = self.ends[:, row].tolist(), self.choices[:, row].tolist()
        return tuple(
            Stage(first=first, last=end - 1, choice=choice)
            for first, end, choice in zip([0, *ends], ends, choices, strict=False)
        )


class _Waiting:
    """Nodes that wait, of as many known stages: least bound first, of equal ones the first added."""

    def __init__(self, num_sources: int) -> None:
        self._num_sources = num_sources
        self._parts: list[_Nodes] = []  # each in the order of its bounds
        self._bounds: Floats | None = None  # until nodes come or go

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def counts(self) -> Integers:
        """How many there are of each source."""
        return sum((np.bincount(part.source, minlength=self._num_sources) for part in self._parts), _NO_NODES)

    @property
    def bounds(self) -> Floats:
        """The least bound of each source; infinite where it has none."""
        if self._bounds is None:
            self._bounds = np.full(self._num_sources, np.inf)
            for part in self._parts:
                np.minimum.at(self._bounds, part.source, part.bounds)
        return self._bounds

    def add(self, nodes: _Nodes) -> None:
        """Keep some more."""
        self._parts.append(nodes.at(np.argsort(nodes.bounds, kind="stable")))
        self._bounds = None

    def drop(self, source: int) -> None:
        """Let go all nodes of a source."""
        rest = (part.at(part.source != source) for part in self._parts)
        self._parts, self._bounds = [part for part in rest if len(part)], None

    def first(self, number: int, source: int) -> _Nodes:
        """Return the first nodes of a source, of equal bounds those of fewer stages."""
        nodes = _Nodes.joined([part.at(part.source == source) for part in self._parts])
        return nodes.at(np.lexsort((nodes.num_stages, nodes.bounds))[:number])

    def pop(self, until: float, most: float, size: Callable[[Integers, Integers], Integers]) -> _Nodes:
        """Take off the first node, and those that follow up to a bound while all but the last are within a size."""
        near = [int(part.bounds.searchsorted(until, side="right")) for part in self._parts]
        bounds, source, firsts = (
            np.concatenate([getattr(part, name)[:n] for part, n in zip(self._parts, near, strict=True)])
            for name in ("bounds", "source", "firsts")
        )
        order = np.argsort(bounds, kind="stable")
        taken = order[: 1 + np.searchsorted(np.cumsum(size(source[order], firsts[order])), most, side="right")]
        of_part = np.repeat(np.arange(len(near)), near)[taken]
        counts = np.bincount(of_part, minlength=len(near)).tolist()
        nodes = _Nodes.joined([part.at(slice(n)) for part, n in zip(self._parts, counts, strict=True) if n])
        rest = (part.at(slice(n, None)) if n else part for part, n in zip(self._parts, counts, strict=True))
        self._parts, self._bounds = [part for part in rest if len(part)], None
        return nodes.at(np.argsort(nodes.bounds, kind="stable"))


@frozen(kw_only=False)
class _Ways:
    """Stages that may come next in one state, and what does not depend on the stages ahead of them.

    ``whole``: rows of the choice, the layer behind the stage, its place, and the micro-batches that fit. ``seconds``:
    f, b and y; the rest behind it; and of the rest from the boundary before it on E, F, L and G + H.
    """

    whole: Integers
    seconds: Floats


class Frontier:
    """Configurations that wait to be extended, of all sources of a stack: those of several are extended in one pass.

    Parameters
    ----------
    costs, stack
        Of all sources.
    search
        Ends it.
    is_open
        Whether the tables leave the number of stages open.
    """

    def __init__(self, costs: PipelineCosts, stack: Stack, search: Search, *, is_open: bool = False) -> None:
        self.costs, self.stack, self.search, self._is_open = costs, stack, search, is_open
        self._types = np.array([one.type_index for one in costs.choices])
        self._sizes = np.array([one.num_devices for one in costs.choices])
        self._starts, self._counts = stack.starts, np.array(stack.num_choices)
        self._tables: dict[int, TablesOfOne] = {}
        self._numbers: dict[int, frozenset[int]] = {}  # of stages that are allowed, by source
        self._known_ends: dict[tuple[int, ...], tuple[Integers, Integers]] = {}  # by source, stages left, first layer
        self._known: dict[tuple[int, ...], _Ways] = {}  # by source, stages left, first layer and devices used
        self._num_known = 0
        self._ended_s: dict[int, float] = {}  # bound of what waited, by source of which too much did
        # By number of known stages; where all are, by source, too: others are extended together.
        self._open: dict[tuple[int, int | None], _Waiting] = {}

    def add(self, source: int, tables: TablesOfOne, numbers_of_stages: Sequence[int], cutoff: float) -> None:
        """Have the configurations of one more source wait, from its first stages on."""
        self._tables[source], self._numbers[source] = tables, frozenset(numbers_of_stages)
        if tables.is_complete:
            numbers = np.array([0] if self._is_open else sorted(self._numbers[source]), dtype=np.int64)
            least_s = np.where(tables.is_alive[numbers, 0, 0], tables.entries[FLUSHED, numbers, 0, 0], np.inf)
            self._push(_Nodes.roots(least_s, source, numbers, len(self.costs.num_devices)), cutoff)

    def is_too_large(self, source: int) -> bool:
        """Whether a source has ended since more of it waits than fits in memory."""
        return source in self._ended_s

    def bound(self, source: int) -> float:
        """Return what no configuration of a source that waits is below; 0 where its tables are not full."""
        if not self._tables[source].is_complete:
            return 0.0
        least_s = self._ended_s.get(source, np.inf)
        return min([least_s, *(float(waiting.bounds[source]) for waiting in self._open.values())])

    def next(self, source: int, cutoff: float, until: float) -> Candidate | None:
        """Return the next configuration of a source; see :meth:`BestFirst.next`."""
        if not self._tables[source].is_complete:
            return None
        while self._open and source not in self._ended_s and not self.search.is_over:
            key, waiting = min(self._open.items(), key=lambda item: float(item[1].bounds[source]))
            bound = float(waiting.bounds[source])
            if not (bound < cutoff and bound <= until):
                return None
            is_complete = key[1] is not None
            # As many as one pass extends, of which the cutoff will hardly spare one.
            is_one = is_complete or cutoff == np.inf
            nodes = waiting.pop(
                bound if is_one else bound + (cutoff - bound) / 2,
                -1 if is_complete else _MOST_EXTENDED,
                self._size,
            )
            if not len(waiting):
                del self._open[key]
            if not is_complete:
                self._expand(nodes, cutoff)
            elif nodes.num_stages[0]:
                return Candidate(bound=bound, stages=nodes.stages())
            else:
                self._close(nodes, cutoff)
        return None

    def dive(self, source: int, number: int, cutoff: float) -> list[Candidate]:
        """Return the configurations that the least bound leads to; see :meth:`BestFirst.dive`."""
        if (roots := self._open.get((0, None))) is None:
            return []
        found: dict[int, Candidate] = {}  # by number of stages, in which roots differ
        nodes = ahead = roots.first(number, source)
        while len(nodes) and not self.search.is_over:
            following = self._following(replace(nodes, bounds=np.zeros(len(nodes))), cutoff)
            order = np.lexsort((following.bounds, following.num_stages))
            nodes = following.at(order[run_starts(following.num_stages[order])])
            is_complete = self._is_complete(nodes)
            for row in np.flatnonzero(is_complete).tolist():
                found[int(nodes.num_stages[row])] = Candidate(bound=float(nodes.bounds[row]), stages=nodes.stages(row))
            nodes = nodes.at(np.flatnonzero(~is_complete))
        return [found[one] for one in ahead.num_stages.tolist() if one in found]

    def _is_complete(self, nodes: _Nodes) -> NDArray[np.bool_]:
        """Whether all layers have their stages."""
        return np.asarray(nodes.firsts == self.costs.num_layers)

    def _push(self, nodes: _Nodes, cutoff: float) -> None:
        """Keep nodes that may still beat the best answer; first in, first out among equals."""
        complete, is_near = self._is_complete(nodes), nodes.bounds < cutoff
        kinds = [(None, is_near & ~complete)]
        kinds += [
            (one, is_near & complete & (nodes.source == one)) for one in sorted(set(nodes.source[complete].tolist()))
        ]
        for source, which in kinds:
            if len(rows := np.flatnonzero(which)):
                key = nodes.position, source
                self._open.setdefault(key, _Waiting(len(self.stack))).add(nodes.at(rows))

    def _size(self, source: Integers, firsts: Integers) -> Integers:
        """Return how many stages may come next at most, by source and first layer."""
        return np.asarray(self._counts[source] * (self.costs.num_layers - firsts))

    def _close(self, node: _Nodes, cutoff: float) -> None:
        """Bound a complete configuration again by its number of stages, now known; drop it if it does not fit."""
        n, source = node.position, int(node.source[0])
        schedule = self.stack.schedule(source)
        held = schedule.in_flight(np.arange(n, 0, -1))
        if n in self._numbers[source] and (held <= node.room[:, 0]).all():
            true_s = through(node.columns[..., 0], held, node.sent[..., 0], NOTHING, schedule)
            self._push(replace(node, bounds=np.maximum(node.bounds, true_s), num_stages=np.array([n])), cutoff)

    def _expand(self, nodes: _Nodes, cutoff: float) -> None:
        """Add every next stage below the cutoff; sources of which they are too many end."""
        following = self._following(nodes, cutoff)
        if sum(map(len, self._open.values())) + len(following) > _MOST_NODES:
            counts = sum((one.counts for one in self._open.values()), _NO_NODES)
            is_large = counts + np.bincount(following.source, minlength=len(self.stack)) > _MOST_NODES
            for source in np.flatnonzero(is_large).tolist():
                self._end(source, nodes)
            following = following.at(~is_large[following.source])
        self._push(following, cutoff)

    def _end(self, source: int, nodes: _Nodes) -> None:
        """Let go what waits of a source, and keep its bound, with that of some nodes: passes of others go without."""
        self._ended_s[source] = min(self.bound(source), nodes.bounds[nodes.source == source].min(initial=np.inf))
        for waiting in self._open.values():
            waiting.drop(source)
        self._open = {key: waiting for key, waiting in self._open.items() if len(waiting)}

    def _ends(self, source: int, left: int, first: int) -> tuple[Integers, Integers]:
        """Return choices and ends of the viable stages that start at a layer, with so many stages left behind them."""
        if (source, left, first) not in self._known_ends:
            choices, steps = np.nonzero(self._tables[source].is_viable[left, :, first, first + 1 :])
            self._known_ends[source, left, first] = choices + self._starts[source], steps + first + 1
        return self._known_ends[source, left, first]

    def _ways(self, states: Sequence[tuple[int, ...]], cutoff: float) -> list[_Ways]:
        """Return the stages that may come next in some states: source, stages left behind, first layer, devices used.

        States of one source stand together.
        """
        costs, numbers = self.costs, np.array(states)
        source, left, first, used = numbers[:, 0], numbers[:, 1], numbers[:, 2], numbers[:, 3:].T
        ends = [self._ends(*one[:3]) for one in states]
        which = np.repeat(np.arange(len(states)), [len(choices) for choices, _ in ends])
        choice, end = (np.concatenate(one) for one in zip(*ends, strict=True))
        # Where devices are left for them.
        unused = np.array(costs.num_devices)[:, None] - used
        fits = np.flatnonzero(self._sizes[choice] <= unused[self._types[choice], which])
        which, choice, end = which[fits], choice[fits], end[fits]
        # Where the stage would stand, and what is used up with it; where something may follow.
        types, after, number = self._types[choice], used[:, which], np.arange(len(which))
        place = after[types, number] % np.array(costs.num_places)[types]
        after[types, number] += self._sizes[choice]
        edges = [*run_starts(source).tolist(), len(states)]
        parts, entries = list[Integers](), list[Floats]()
        for low, (begin, stop) in zip(edges, pairwise(np.searchsorted(which, edges).tolist()), strict=False):
            tables = self._tables[states[low][0]]
            behind, layer, state = left[which[begin:stop]], end[begin:stop], tables.state(after[:, begin:stop])
            some = np.flatnonzero(tables.is_alive[behind, layer, state])
            parts.append(some + begin)
            entries.append(tables.entries[:, behind[some], layer[some], state[some]])
        alive, rests = np.concatenate(parts), np.concatenate(entries, axis=1)
        which, choice, end, place, after = (one[..., alive] for one in (which, choice, end, place, after))
        schedule = self.stack.schedules(source[which])
        found, out_s = costs.stages(first[which], end - 1, choice, place), costs.out_s(end - 1, choice, place, after)
        rest = np.maximum(behind_channel(rests[:REST], out_s[0], out_s[1], schedule), rests[REST:])
        m, is_gpipe = schedule.num_microbatches, schedule.is_gpipe
        held = m if is_gpipe or self._is_open else np.minimum(m, left[which] + 1)
        columns = found.forward_s, found.backward_s, found.flush_s
        own = behind_stage(rest, *columns, held, schedule, is_open=self._is_open)
        in_s, back_s = costs.in_s(first[which], choice, place, used[:, which])
        before = behind_channel(own, in_s, back_s, schedule)
        is_near = (own[FLUSHED] < cutoff) & (found.most_in_flight >= (1 if self._is_open and not is_gpipe else held))
        kept = np.flatnonzero(is_near)
        rows = (*columns, *rest, before[FLUSHED], before[FINISHED], before[DRAINED], before[FIRST] + before[LAST])
        seconds = np.array(rows)[:, kept]
        whole = np.array((choice, end, place, found.most_in_flight))[:, kept]
        cuts = np.searchsorted(which[kept], np.arange(len(states) + 1)).tolist()
        return [_Ways(whole[:, low:high], seconds[:, low:high]) for low, high in pairwise(cuts)]

    def _following(self, nodes: _Nodes, cutoff: float) -> _Nodes:
        """Return the nodes with every stage more that the cutoff leaves, those of each node together."""
        position = nodes.position
        left = np.maximum(nodes.num_stages - position - 1, 0)
        rows = np.vstack((nodes.source, left, nodes.firsts, nodes.used)).T.tolist()
        index: dict[tuple[int, ...], int] = {}
        states = np.array([index.setdefault(one, len(index)) for one in map(tuple, rows)])
        if self._num_known > _MOST_KNOWN:
            self._known, self._num_known = {}, 0
        if new := sorted(one for one in index if one not in self._known):
            self._known.update(zip(new, self._ways(new, cutoff), strict=True))
            self._num_known += sum(self._known[one].seconds.shape[1] for one in new)
        ways = [self._known[one] for one in index]
        whole, seconds = (
            np.concatenate([getattr(one, name) for one in ways], axis=1) for name in _Ways.__dataclass_fields__
        )
        counts = np.array([one.whole.shape[1] for one in ways])
        widths, begins = counts[states], (np.cumsum(counts) - counts)[states]
        which, at = each_part(widths)
        at += begins.take(which)
        # What the stages ahead leave for each: of most ways nothing.
        least_s = self._ahead_s(nodes).take(which, axis=1) + seconds[-4:].take(at, axis=1)
        near = np.flatnonzero(least_s.max(axis=0) < cutoff * (1 + _ROUNDING))
        nodes, at = nodes.at(which[near]), at[near]
        (choice, end, place, room), seconds = whole.take(at, axis=1), seconds.take(at, axis=1)
        columns, sent = np.concatenate((nodes.columns, seconds[:3, None]), axis=1), nodes.sent
        if position:
            sent_s = self.costs.boundary_s(nodes.firsts, nodes.choices[-1], nodes.place, choice, place)
            sent = np.concatenate((sent, sent_s[:, None]), axis=1)
        held, schedule = self._held(nodes, position + 1), self.stack.schedules(nodes.source)
        bounds = through(columns, held, sent, seconds[3 : 3 + REST], schedule, is_open=self._is_open)
        if not position:
            bounds = np.maximum(bounds, self.costs.floor_s[choice])
        used = nodes.used.copy()
        used[self._types[choice], np.arange(len(choice))] += self._sizes[choice]
        choices, ends, rooms = (
            np.vstack(rows) for rows in ((nodes.choices, choice), (nodes.ends, end), (nodes.room, room))
        )
        found = _Nodes(
            np.maximum(bounds, nodes.bounds),
            nodes.source,
            nodes.num_stages,
            choices,
            ends,
            rooms,
            columns,
            sent,
            used,
            place,
        )
        return found.at(np.flatnonzero(bounds < cutoff))

    def _held(self, nodes: _Nodes, number: int) -> Integers:
        """Return the micro-batches in flight by stage, of the first ones; m while the number of stages is open."""
        m = self.stack.schedules(nodes.source).num_microbatches
        if self.stack.is_gpipe or self._is_open:
            return np.full((number, len(nodes)), m)
        return np.asarray(np.minimum(m, nodes.num_stages - np.arange(number)[:, None]))

    def _ahead_s(self, nodes: _Nodes) -> Floats:
        """Return rows of what the stages of nodes add to E, F, L and G + H from the boundary behind them on, at least.

        ``E(0) >= V + E``, ``Z + F`` and ``V + (m - 1) A + L`` with V the way of all known stages, Z that and back, and
        A the slowest task of either; and of 1F1B, from any stage s with ``K < m`` on, ``E(s) >= S + L`` with
        ``S >= Z + G + (m - 1 - K) w`` and ``L >= Z + H + y``.
        """
        m, (f, b, y) = self.stack.schedules(nodes.source).num_microbatches, nodes.columns
        if not nodes.position:
            return np.tile([[0.0], [0.0], [0.0], [-np.inf]], len(nodes))
        out_s, back_s = np.concatenate((nodes.sent, np.zeros((2, 1, len(nodes)))), axis=1)
        ways_s, trips_s = np.cumsum(f + out_s, axis=0), np.cumsum((f + b + out_s + back_s)[::-1], axis=0)[::-1]
        turned_s = np.full(len(nodes), -np.inf)
        if not self.stack.is_gpipe and not self._is_open:
            between = m - 1 - self._held(nodes, nodes.position)
            each_s = ways_s - f - out_s + 2 * trips_s + y + between * (f + b)
            turned_s = np.where(between >= 0, each_s, -np.inf).max(axis=0)
        slowest_s = (m - 1) * np.maximum(f, out_s).max(axis=0)
        return np.array((ways_s[-1], trips_s[0], ways_s[-1] + slowest_s, turned_s))


class BestFirst:
    """Configurations of one schedule in the order of their bounds.

    Parameters
    ----------
    costs, schedule
        Of all its configurations.
    numbers_of_stages
        Those that are allowed.
    search
        Ends it.
    allowed
        By number of devices used of each type: whether so many may be used in all; None: all may.
    cutoff
        Makespan of an answer that is known: nothing at or above it is looked at.
    is_open
        Whether the tables leave the number of stages open, see above.
    tables
        Those of these costs, if they are filled already: with the same limits, and a cutoff of no less.
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
        stack = Stack.of(schedule, costs)
        if tables is None:
            most = 0 if is_open else max(numbers_of_stages)
            tables = Tables(costs, stack, most, search, cutoff, allowed).of(0)
        self._frontier, self._source = Frontier(costs, stack, search, is_open=is_open), 0
        self._frontier.add(self._source, tables, numbers_of_stages, cutoff)

    @classmethod
    def of(cls, frontier: Frontier, source: int) -> "BestFirst":
        """Return those of one source, which was added to others."""
        found = cls.__new__(cls)
        found._frontier, found._source = frontier, source
        return found

    @property
    def costs(self) -> PipelineCosts:
        """By whose choices stages are told: of all sources that are searched together."""
        return self._frontier.costs

    @property
    def is_too_large(self) -> bool:
        """Whether it has ended since more configurations wait than fit in memory; the bound still holds."""
        return self._frontier.is_too_large(self._source)

    @property
    def bound(self) -> float:
        """No configuration below the cutoff that has not been given is below; ``inf`` when all have been.

        0 where the limit struck before the tables were full.
        """
        return self._frontier.bound(self._source)

    def next(self, cutoff: float, until: float = np.inf) -> Candidate | None:
        """Return the next configuration with a bound below ``cutoff`` and of at most ``until``.

        None where there is none, or the search is over; which of the two it was, :attr:`bound` tells.

        Parameters
        ----------
        cutoff
            Seconds; nothing at or above it is kept.
        until
            Seconds; what lies above it is kept for later.
        """
        return self._frontier.next(self._source, cutoff, until)

    def dive(self, number: int, cutoff: float = np.inf) -> list[Candidate]:
        """Return the configurations that the least bound leads to, step by step, from the most promising roots.

        Before the first :meth:`next`, from whose answers nothing is taken. The bounds are those of the last step.

        Parameters
        ----------
        number
            Roots that are followed.
        cutoff
            Seconds; nothing at or above it is followed.
        """
        return self._frontier.dive(self._source, number, cutoff)
