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

The tables of what may follow (:class:`Tables`), a dynamic programme from the last layer to the first. A state is
(stages left, first layer, devices used by type); as devices are handed out in order, it says where a stage stands. For
every state the tables hold the least rest, each number by itself, and the least rest from a boundary before it on.

- *Number of stages.* With the stages left known the work is ``O(P L^2 sum over states of choices)``; where that is too
  much, ``P = 0`` leaves their number open: K is then relaxed to m, and memory to what one micro-batch in flight takes.
- *What the cutoff T leaves.* Devices whose speeds sum up to S do at most ``S T`` of work in an iteration below T. So
  the layers before a state fit the devices used, and those behind it fit the others; a stage computes no longer than T
  less the way ahead of it and back, and one micro-batch passes all layers before T, by what suits it best elsewhere.
  With T near the time that all devices need together, few devices used are left for each layer, and few ends for each
  stage. Of one type, such stages hold whole layers and whole samples: the fewest devices that the layers before a state
  and behind it need then are another limit, and where all need more than there are nothing is looked at. Entries at or
  above T are given up at once.
- *Slack.* A micro-batch passes the stages ahead of a state both ways, besides what takes ``F`` from there on: so those
  below T leave it T less the least way of any stages that lead there, each with time for its own ``m w`` behind its own
  way. A first pass over the states, from the first layer to the last, finds that slack of each; stages with more work,
  and entries with a longer F, are part of no pipeline below T. With units of 1 alone: else states are not exact.
- *Viable stages.* Whatever a stage has ahead of it, no pipeline takes less than the stage and what follows. So a stage
  that lowers no entry is part of no pipeline below the cutoff, and the search passes it over; so do tables by number
  of stages those of open ones.
- *Many sources at a time.* Small tables of several numbers of micro-batches are filled together: their states stand
  side by side, each source's after those of the one before, and no stage leads from one source to another. Every entry
  is the same as if its source were filled alone.
- *Many layers at a time.* Stages that start in a run of layers and all end behind it do not need one another's entries:
  a run is then filled in one pass of numpy. In a long network of small layers runs are long, so passes do not grow with
  the layers.
- *Units.* Tables of large groups count devices in units of q: of R devices that are left ``R // q`` units, of which a
  stage of r devices takes ``r // q``. What may really follow then never takes more units than are left, so bounds are
  true; they are weak, as a stage of fewer than q devices takes none. v units left are at most ``q v + q - 1`` devices.

The search (:class:`BestFirst`) extends pipelines stage by stage, always the one with the least bound: what its known
stages take, and the least of what may follow. Others of as many stages, whose bounds are nearer to it than to the best
answer, are extended in the same pass of numpy. Complete ones then come in the order of their bounds.

Source: best first with a bound of the rest is A* (P. Hart, N. Nilsson and B. Raphael, IEEE Trans. Syst. Sci. Cybern.
4(2), 1968, doi:10.1109/TSSC.1968.300136).
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any, Protocol

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
    Schedules,
    behind_channel,
    behind_stage,
    through,
)

_MOST_AT_ONCE = 200_000  # stages times numbers of stages in one pass: beyond the processor's cache it gets slower
_MOST_PAIRS = 400_000  # stages by state, choice and first layer that are kept from one pass to the next: 20 MB
_FEW_LAYERS = 24  # whose sums are compared each with each
_BYTES = 8  # of a number
_LARGE_BYTES = 1 << 22  # of an array for which numpy asks for large pages
_ARRAYS_OF_MOVES = 12
_ARRAYS_OF_SIDES = 5
_ROUNDING = 1e-9
_MOST_EXTENDED = 100_000  # stages that are tried at once behind several nodes, at most
_MOST_VIABLE = 20_000_000  # of which it is known whether they may be part of a pipeline below the cutoff
_MOST_KNOWN = 200_000  # stages that may come next, by state, that are kept: 30 MB
_MOST_NODES = 400_000  # that wait to be extended, and may be added by one: half a gibibyte


# What is chosen, and what it costs


@frozen
class Choice:
    """A stage on ``num_devices`` devices of type ``type_index``."""

    type_index: int
    num_devices: int


@frozen
class Stage:
    """Layers ``first`` to ``last`` (inclusive), by the choice of index ``choice``."""

    first: int
    last: int
    choice: int


@frozen
class Stack:
    """Sources of pipelines on the same devices and in one order, whose tables are filled together.

    Attributes
    ----------
    num_microbatches
        By source.
    num_choices
        By source: costs list the choices of the first one, then those of the next, and so on.
    """

    num_microbatches: tuple[int, ...]
    num_choices: tuple[int, ...]
    is_gpipe: bool = False

    @classmethod
    def of(cls, schedule: Schedule, costs: "PipelineCosts") -> "Stack":
        """Return a stack of one.

        Parameters
        ----------
        schedule, costs
            Of the only source.
        """
        number, is_gpipe = schedule.num_microbatches, schedule.is_gpipe
        return cls(num_microbatches=(number,), num_choices=(len(costs.choices),), is_gpipe=is_gpipe)

    def __len__(self) -> int:
        return len(self.num_microbatches)

    def schedule(self, source: int) -> Schedule:
        """Return the schedule of a source.

        Parameters
        ----------
        source
            Its index.
        """
        return Schedule(num_microbatches=self.num_microbatches[source], is_gpipe=self.is_gpipe)

    def schedules(self, sources: Integers) -> Schedule | Schedules:
        """Return the schedule of each of many stages; one for all where there is but one source.

        Parameters
        ----------
        sources
            Of the stages, by stage.
        """
        if len(self) == 1:
            return self.schedule(0)
        return Schedules(num_microbatches=np.array(self.num_microbatches)[sources], is_gpipe=self.is_gpipe)

    @property
    def starts(self) -> Integers:
        """The first choice of each source."""
        return np.cumsum([0, *self.num_choices[:-1]])

    @property
    def sources(self) -> Integers:
        """Sources by choice."""
        return np.repeat(np.arange(len(self)), self.num_choices)


@frozen
class StageSeconds:
    """What stages take, as arrays of one shape.

    Attributes
    ----------
    forward_s, backward_s
        Of one micro-batch.
    flush_s
        After the last backward.
    most_in_flight
        Micro-batches that fit in memory, wherever the stage stands; 0 where not even one does.
    """

    forward_s: Floats
    backward_s: Floats
    flush_s: Floats
    most_in_flight: Integers

    def part(self, which: Integers) -> "StageSeconds":
        """Return some of the stages.

        Parameters
        ----------
        which
            Of the stages, by stage.
        """
        return StageSeconds(
            forward_s=self.forward_s[which],
            backward_s=self.backward_s[which],
            flush_s=self.flush_s[which],
            most_in_flight=self.most_in_flight[which],
        )


class PipelineCosts(Protocol):
    """What the stages and boundaries of one network, cluster and size of micro-batch take; or of a :class:`Stack`.

    Indices are arrays that broadcast: ``firsts`` and ``lasts`` of layers, both inclusive, ``choices``, and ``places``:
    where on a machine the first of a stage's devices stands.
    """

    @property
    def num_layers(self) -> int:
        """L."""
        ...

    @property
    def num_devices(self) -> Sequence[int]:
        """By type."""
        ...

    @property
    def num_places(self) -> Sequence[int]:
        """Devices on a machine, by type."""
        ...

    @property
    def choices(self) -> Sequence[Choice]:
        """What a stage may run on."""
        ...

    @property
    def units(self) -> Sequence[int]:
        """By type, devices that tables count as one, rounded down for every stage: 1, or more where they get large."""
        ...

    @property
    def work_s(self) -> Floats | None:
        """L + 1 seconds of one micro-batch that layers ``0..l-1`` take at least on a device of speed 1; or unknown.

        Of a stack (K, L + 1), by source. So many devices of a type are, together, at most as fast as so many times its
        speed.
        """
        ...

    @property
    def speeds(self) -> Sequence[float]:
        """By type."""
        ...

    @property
    def line_s(self) -> Floats | None:
        """(C, L + 1) seconds of one micro-batch, both ways, that layers ``0..l-1`` take by each choice; or unknown.

        No stage takes less than the difference of two of them.
        """
        ...

    @property
    def floor_s(self) -> Floats:
        """(C,): no pipeline whose first stage runs by this choice takes less."""
        ...

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        """Return what stages take.

        Parameters
        ----------
        firsts, lasts, choices, places
            As above.
        """
        ...

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        """Return (2, ...) seconds that no boundary behind a stage is below, of one micro-batch, forward and back.

        0 behind the last layer.

        Parameters
        ----------
        lasts, choices, places
            Of the stage before the boundary.
        used
            Devices used, its own included, by type along the first axis; at least, where tables count them in units.
        """
        ...

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, used: Integers, /) -> Floats:
        """Return (2, ...) seconds that no boundary before a stage is below; 0 before the first layer.

        Parameters
        ----------
        firsts, choices, places
            Of the stage behind the boundary.
        used
            Devices used before it, by type along the first axis; anything where tables count them in units.
        """
        ...

    def boundary_s(
        self, cuts: Integers, lefts: Integers, left_places: Integers, rights: Integers, places: Integers, /
    ) -> Floats:
        """Return (2, ...) seconds of a micro-batch over cuts, forward and back.

        Parameters
        ----------
        cuts
            Layers behind the boundaries.
        lefts, left_places
            Choices of the stages before them, and where their first devices stand.
        rights, places
            Choices of the stages behind them, and where theirs do; those of one type stand side by side.
        """
        ...


@frozen
class Candidate:
    """A complete configuration and the lower bound of its makespan."""

    bound: float
    stages: tuple[Stage, ...]


# Which stages the tables look at: what devices are left for, and what the cutoff leaves


@frozen(kw_only=False)
class _Grid:
    """States of one source: devices used of each type, by the units that are left of them.

    ``shape``: numbers of units that may be used, by type; ``strides``: between states that differ in one unit.
    """

    num_devices: tuple[int, ...]
    units: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, costs: PipelineCosts) -> "_Grid":
        """Return the states of a question."""
        numbers, units = tuple(costs.num_devices), tuple(costs.units)
        shape = tuple(number // unit + 1 for number, unit in zip(numbers, units, strict=True))
        return cls(numbers, units, shape, tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))))

    @property
    def size(self) -> int:
        """Number of states."""
        return prod(self.shape)

    @property
    def used(self) -> Integers:
        """Units used by type and state."""
        return np.indices(self.shape).reshape(len(self.units), -1)

    @property
    def most_left(self) -> Integers:
        """Devices left by type and state, at most."""
        units = np.array(self.units)[:, None]
        left = (np.array(self.shape)[:, None] - 1 - self.used) * units + units - 1
        most: Integers = np.minimum(np.array(self.num_devices)[:, None], left)
        return most


@frozen(kw_only=False)
class _Pairs:
    """Stages by state, choice and first layer, and the state behind them: with ``begin``, ..., ``stop - 1`` behind."""

    state: Integers
    choice: Integers
    after: Integers
    first: Integers
    begin: Integers
    stop: Integers

    def __len__(self) -> int:
        return len(self.state)

    @property
    def _columns(self) -> tuple[Integers, ...]:
        return self.state, self.choice, self.after, self.first, self.begin, self.stop

    def part(self, low: int, high: int) -> "_Pairs":
        """Return some of them."""
        return _Pairs(*(one[low:high] for one in self._columns))

    @classmethod
    def joined(cls, run: Sequence["_Pairs"]) -> "_Pairs":
        """Return the stages of several first layers together."""
        return cls(*map(np.concatenate, zip(*(one._columns for one in run), strict=True)))

    @property
    def widths(self) -> Integers:
        """Return the numbers of ends."""
        return self.stop - self.begin

    @property
    def ends(self) -> tuple[Integers, Integers]:
        """Return which of them each stage is of, and the layer behind it."""
        which, index = _spread(self.widths)
        return which, index + self.begin.take(which)


def _spread(counts: Integers) -> tuple[Integers, Integers]:
    """Return of things of which each has a number of parts, part by part, the thing and which of its parts it is."""
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


@frozen(kw_only=False)
class _Moves:
    """Choices for stages by state, of all sources: the states of the first one first.

    By choice ``sizes``, units taken of its type, ``types`` and ``steps``, between the states before and behind it; by
    source its ``starts``. By state ``least`` and ``most``, the first layer of a stage, from and to; by type and state
    ``left``, units, ``used``, devices at least, and ``places``. ``furthest``, by choice and first layer: behind which
    layer a stage ends at most. ``ahead``, by source and layer: devices that the layers before it need at least, of one
    type.
    """

    sizes: Integers
    types: Integers
    steps: Integers
    starts: Integers
    least: Integers
    most: Integers
    left: Integers
    used: Integers
    places: Integers
    furthest: Integers
    ahead: Floats

    @classmethod
    def of(
        cls, costs: PipelineCosts, stack: Stack, grid: _Grid, cutoff: float, viable: NDArray[np.bool_] | None
    ) -> "_Moves":
        """Return what the cutoff leaves, and the stages that are ``viable``, where that is known."""
        units, shape, used, count = np.array(grid.units), np.array(grid.shape), grid.used, len(stack)
        types = np.array([one.type_index for one in costs.choices])
        sizes = np.array([one.num_devices for one in costs.choices]) // units[types]
        furthest = _furthest(costs, stack, cutoff)
        if viable is not None:
            last = viable.shape[2] - 1 - viable[:, :, ::-1].argmax(axis=2)
            furthest = np.minimum(furthest, np.where(viable.any(axis=2), last, 0))
        least, most, ahead = _layers_left(costs, stack, grid, cutoff, furthest)
        return cls(
            sizes,
            types,
            sizes * np.array(grid.strides)[types],
            np.append(stack.starts, len(sizes)),
            least.reshape(-1),
            most.reshape(-1),
            np.tile(shape[:, None] - 1 - used, count),
            np.tile(np.array(grid.num_devices)[:, None] - grid.most_left, count),
            np.tile(used * units[:, None] % np.array(costs.num_places)[:, None], count),
            furthest,
            ahead,
        )

    def pairs(self, first: int, reached: NDArray[np.bool_]) -> _Pairs:
        """Return the stages that may start at a layer, in the states that are ``reached`` there."""
        stops = self.furthest[:, first] + 1
        choices = np.flatnonzero(stops > first + 1)
        starts = np.searchsorted(choices, self.starts)
        states = np.flatnonzero(reached & (self.least <= first) & (first <= self.most))
        source = states * (len(starts) - 1) // len(self.least)
        which, index = _spread(np.diff(starts)[source])
        state, choice = states.take(which), choices.take(index + starts[source].take(which))
        fits = np.flatnonzero(self.sizes.take(choice) <= self.left[self.types.take(choice), state])
        state, choice = state.take(fits), choice.take(fits)
        after, stop = state + self.steps.take(choice), stops.take(choice)
        begin = np.maximum(self.least.take(after), first + 1)
        kept = np.flatnonzero(begin < stop)
        columns = (one.take(kept) for one in (state, choice, after, np.full(len(state), first), begin, stop))
        return _Pairs(*columns)


def _layers_left(
    costs: PipelineCosts, stack: Stack, grid: _Grid, cutoff: float, furthest: Integers
) -> tuple[Integers, Integers, Floats]:
    """Return, by source and state, the first layer of a stage that starts in it: from, and to; ``furthest``: of moves.

    Where nothing leads through a state, it is from behind the last layer. And the devices ahead of each layer.
    """
    num_layers, shape = costs.num_layers, (len(stack), grid.size)
    ahead = np.zeros((len(stack), num_layers + 1))
    if cutoff == np.inf or costs.work_s is None:
        return np.zeros(shape, dtype=np.int64), np.full(shape, num_layers - 1), ahead
    rest_s = _most_done_s(costs, grid.most_left, cutoff)
    works_s = _works_s(stack, costs.work_s)
    least = np.array([np.searchsorted(one, one[-1] - rest_s, side="left") for one in works_s])
    most = np.full(shape, num_layers - 1)
    if max(grid.units) == 1:  # else more may be used than this
        done_s = _most_done_s(costs, grid.used, cutoff)
        reached = np.array([np.searchsorted(one, done_s, side="right") for one in works_s])
        most = np.minimum(reached - 1, most)
    if len(grid.units) == 1:
        ahead, behind = _fewest_devices(costs, stack, furthest)
        least = np.maximum(least, [np.searchsorted(-one, -grid.most_left[0]) for one in behind])
        if grid.units[0] == 1:
            most = np.minimum(most, [np.searchsorted(one, grid.used[0], side="right") - 1 for one in ahead])
        least[behind[:, 0] > grid.num_devices[0]] = num_layers
    return least, most, ahead


@frozen(kw_only=False)
class LeastDevices:
    """Devices of one type that no pipeline below a cutoff has fewer of, by source.

    ``line``: of all layers. ``stage``: of a stage, by first and last layer. ``ahead``: of all those before a layer.
    """

    line: Floats
    stage: Integers
    ahead: Integers

    @classmethod
    def of(cls, costs: PipelineCosts, stack: Stack, cutoff: float) -> "LeastDevices":
        """Return those of sources; ``cutoff``: makespan."""
        furthest = _furthest(costs, stack, cutoff)
        ahead, behind = _fewest_devices(costs, stack, furthest)
        return cls(behind[:, 0], *_least_devices(costs, stack, furthest, ahead))


def _fewest_devices(costs: PipelineCosts, stack: Stack, furthest: Integers) -> tuple[Floats, Floats]:
    """Return, by source, the fewest devices of stages that hold the layers before each, and of those from each on.

    Of one type of device. Stages end where ``furthest`` lets them, by choice and first layer: the time that a stage
    needs beside it, and memory, are left out. So fewer layers never need more devices, and longer stages do best.
    """
    num_layers, sources = costs.num_layers, stack.sources
    sizes = np.array([one.num_devices for one in costs.choices], dtype=np.float64)
    ends = np.maximum(np.maximum.accumulate(furthest, axis=1), np.arange(num_layers))
    ahead, behind = (np.full((len(stack), num_layers + 1), np.inf) for _ in range(2))
    behind[:, -1] = 0.0
    for first in reversed(range(num_layers)):  # a stage of no layer leads to what is infinite still
        behind[:, first] = np.minimum.reduceat(sizes + behind[sources, ends[:, first]], stack.starts)
    ahead[:, 0] = 0.0
    for first in range(num_layers):  # where a longer stage ends, a shorter one may, too
        ahead[:, first] = ahead[:, first:].min(axis=1)
        np.minimum.at(ahead, (sources, ends[:, first]), sizes + ahead[sources, first])
    return ahead, behind


def _least_devices(costs: PipelineCosts, stack: Stack, furthest: Integers, ahead: Floats) -> tuple[Integers, Integers]:
    """Return, by source, the fewest devices of a stage by first and last layer, and of all those before a layer."""
    num_layers, most = costs.num_layers, sum(costs.num_devices) + 1  # no pipeline has so many
    by_end = np.full((len(stack), num_layers, num_layers + 1), most, dtype=np.int64)
    sizes = np.array([one.num_devices for one in costs.choices])[:, None]
    np.minimum.at(by_end, (stack.sources[:, None], np.arange(num_layers), furthest), sizes)
    least = np.minimum.accumulate(by_end[..., ::-1], axis=2)[..., -2::-1]
    return np.asarray(least), np.minimum(ahead, most).astype(np.int64)


def _works_s(stack: Stack, work_s: Floats) -> Floats:
    """Return, by source, the work of an iteration in front of every layer."""
    return np.array(stack.num_microbatches)[:, None] * np.atleast_2d(work_s)


def _most_done_s(costs: PipelineCosts, devices: Integers, cutoff: float) -> Floats:
    """Return the work that so many devices of every type, along the first axis, can do until the cutoff."""
    done_s: Floats = np.asarray(costs.speeds, dtype=np.float64) @ devices * (cutoff * (1 + _ROUNDING))
    return done_s


def _furthest(costs: PipelineCosts, stack: Stack, cutoff: float) -> Integers:
    """Return, by choice and first layer, behind which layer a stage ends at most: a longer one computes beyond T.

    Before its first micro-batch that one passes the layers ahead, and behind its last that one passes them back; and
    every micro-batch goes through all layers: as quickly as any choice of the source is at each of them.
    """
    if cutoff == np.inf or (line_s := costs.line_s) is None:
        return np.full((len(costs.choices), costs.num_layers), costs.num_layers)
    numbers, most_s = np.array(stack.num_microbatches)[stack.sources, None], cutoff * (1 + _ROUNDING)
    ways_s = np.zeros_like(line_s)
    if np.isfinite(line_s).all():
        least_s = np.minimum.reduceat(np.diff(line_s, axis=1), stack.starts)
        ways_s[:, 1:] = np.cumsum(least_s, axis=1)[stack.sources]
    more_s = np.maximum.accumulate(line_s - ways_s, axis=1)
    own = _last_within(line_s, line_s[:, :-1] + (most_s - ways_s[:, :-1]) / numbers)
    return np.minimum(own, _last_within(more_s, more_s[:, :-1] + most_s - ways_s[:, -1:]))


def _last_within(rows_s: Floats, most_s: Floats) -> Integers:
    """Return the last column of each row of rising numbers that is no more than each of some."""
    if most_s.shape[1] <= _FEW_LAYERS:
        return np.asarray(np.count_nonzero(rows_s[:, None] <= most_s[:, :, None], axis=2) - 1)
    return np.array([one.searchsorted(most, side="right") for one, most in zip(rows_s, most_s, strict=True)]) - 1


def _slack_s(
    costs: PipelineCosts, stack: Stack, moves: _Moves, search: Search, cutoff: float
) -> tuple[Floats, list[_Pairs] | None]:
    """Return, by layer and state, the seconds that the way both ways of the stages ahead leaves below the cutoff.

    0 where no stages lead there that each have time for all micro-batches. And the stages that start where any lead, by
    first layer, where they are few enough to be kept.
    """
    num_states = len(moves.least)
    shape, most_s, line_s = (costs.num_layers + 1, num_states), cutoff * (1 + _ROUNDING), _line_s(costs)
    if cutoff == np.inf or line_s is None or max(costs.units) > 1:
        return np.broadcast_to(most_s, shape), None
    slack_s, numbers = _zeros(shape), np.repeat(stack.num_microbatches, stack.num_choices)
    flat_s, kept, size = slack_s.reshape(-1), list[_Pairs](), 0
    slack_s[0, :: num_states // len(stack)] = most_s  # nothing is used ahead of the first layer
    for first in range(costs.num_layers):
        if search.is_late:
            break
        pairs = moves.pairs(first, slack_s[first] > 0)
        size += len(pairs)
        kept.append(pairs)
        if size > _MOST_PAIRS:
            kept.clear()
        which, ends = pairs.ends
        left_s, choice = slack_s[first].take(pairs.state).take(which), pairs.choice.take(which)
        at = choice * line_s.shape[1]
        seconds = line_s.take(at + ends) - line_s[:, first].take(choice)
        fits = np.flatnonzero(numbers.take(choice) * seconds <= left_s)
        after = ends * num_states + pairs.after.take(which)
        np.maximum.at(flat_s, after.take(fits), left_s.take(fits) - seconds.take(fits))
    return slack_s, kept if size <= _MOST_PAIRS else None


def _line_s(costs: PipelineCosts) -> Floats | None:
    """Return what layers take at least by choice, as sums of those before each; or unknown."""
    line_s = costs.line_s
    return line_s if line_s is not None and np.isfinite(line_s).all() else None


# The tables


@frozen(kw_only=False)
class _Stages:
    """Stages, and what of them does not depend on entries; those that differ in their ends alone are a group.

    By stage: ``choice``; ``end``, the layer behind it; ``after``, the entry behind it by layer and state; f, b and y;
    ``out_s``, cf and cb that a boundary behind it takes at least; ``most_in_flight``; ``schedules``; ``group``. By
    group: ``starts``, its first stage; ``state``, the entry that it lowers; ``first``; ``floor_s``; ``in_s`` of a
    boundary before it; ``slack_s`` of that entry.
    """

    choice: Integers
    end: Integers
    after: Integers
    forward_s: Floats
    backward_s: Floats
    flush_s: Floats
    out_s: Floats
    most_in_flight: Integers
    schedules: Schedule | Schedules
    group: Integers
    starts: Integers
    state: Integers
    first: Integers
    floor_s: Floats
    in_s: Floats
    slack_s: Floats


@frozen(kw_only=False)
class TablesOfOne:
    """Least rest from a stage on, and from the boundary before it on: rows; axes: stages left, layer, used.

    ``is_alive``: whether there is an entry, by these axes. ``is_viable``: whether a stage may be part of a pipeline
    below the cutoff, wherever it stands; by stages left behind it, choice, first layer and the layer behind it.
    """

    entries: Floats
    is_alive: NDArray[np.bool_]
    is_viable: NDArray[np.bool_]
    grid: _Grid
    is_complete: bool

    def state(self, used: Integers) -> Integers:
        """Return the index of the devices used of each type: by the units that are left of them.

        Parameters
        ----------
        used
            Devices by type along the first axis.
        """
        grid, index = self.grid, np.zeros((), dtype=np.int64)
        for one, number, unit, size, stride in zip(
            used, grid.num_devices, grid.units, grid.shape, grid.strides, strict=True
        ):
            index = index + (size - 1 - (number - one) // unit) * stride
        return index


def table_bytes(costs: PipelineCosts, stack: Stack, num_stages: int) -> int:
    """Return the bytes of tables, about, before they are made.

    Parameters
    ----------
    costs, stack
        Of the sources.
    num_stages
        At most; 0 leaves their number open.

    Notes
    -----
    Entries by stages left, layer and state, and what leads to them; moves by state and choice, all of whose arrays
    count; by choice and layer how far a stage reaches and what a boundary behind or before it takes, with what that is
    worked out from; and which stages are viable.
    """
    states, choices = _Grid.of(costs).size, len(costs.choices)
    entries = 2 * (REST * (num_stages + 1) + 1) * (costs.num_layers + 1) * len(stack) * states
    moves = _ARRAYS_OF_MOVES * states * choices
    reach = (3 + _ARRAYS_OF_SIDES * max(costs.num_places)) * choices * (costs.num_layers + 1)
    viable = (num_stages + 1) * choices * costs.num_layers * (costs.num_layers + 1)
    return _BYTES * (entries + moves + reach) + (viable if viable <= _MOST_VIABLE else 0)


class Tables:
    """The entries of all sources of a stack: :class:`TablesOfOne` side by side along the last axis.

    Parameters
    ----------
    costs, stack
        Of the sources.
    search
        Ends the filling; ``is_complete`` says whether there was time.
    num_stages
        At most; 0 leaves their number open.
    cutoff
        Entries at or above it are left out.
    allowed
        By number of devices used of each type: whether so many may be used in all; None: all may. Only with units of 1.
    fits
        Of one type, by source, asked where the cutoff leaves stages: whether any pipeline may fit in memory, or the
        tables stay empty. Given the devices that the cutoff leaves a stage at least, by first and last layer, and those
        of all stages before each layer.
    viable
        Stages that are looked at, by choice, first layer and the layer behind; None: all. Those of tables of bounds
        that are no higher, and of a cutoff that is no less: what is not viable there is not viable here.

    Attributes
    ----------
    num_tried
        Stages that the cutoff left to be looked at, by source.
    is_alive
        By stages left, layer and state: whether there is an entry.
    """

    def __init__(
        self,
        costs: PipelineCosts,
        stack: Stack,
        num_stages: int,
        search: Search,
        cutoff: float = np.inf,
        allowed: NDArray[np.bool_] | None = None,
        fits: Sequence[Callable[[Integers, Integers], bool]] | None = None,
        viable: NDArray[np.bool_] | None = None,
    ) -> None:
        self.costs, self.stack, self.cutoff = costs, stack, cutoff
        self.is_open = not num_stages
        self.left = np.arange(1, num_stages + 1) if num_stages else np.array([max(stack.num_microbatches)])
        self._grid = _Grid.of(costs)
        # Few entries are ever reached: zeros take no memory until they are written. The numbers of one lie together.
        shape = num_stages + 1, costs.num_layers + 1, len(stack) * self._grid.size
        by_entry, self.is_alive = _zeros((*shape, 2 * REST)), np.zeros(shape, dtype=np.bool_)
        self.entries = np.moveaxis(by_entry, -1, 0)
        self.is_alive[0, -1] = True if allowed is None else np.tile(allowed.reshape(-1), len(stack))
        if viable is not None and stack.is_gpipe:  # and all micro-batches are in flight in each
            choice, first, end = np.nonzero(viable)
            room = costs.stages(first, end - 1, choice, np.zeros_like(first)).most_in_flight
            viable = viable.copy()
            viable[choice, first, end] = room >= np.repeat(stack.num_microbatches, stack.num_choices)[choice]
        self._looked_at = viable
        self._is_viable = _viable((num_stages + 1, len(costs.choices), costs.num_layers, costs.num_layers + 1))
        self._flat, self._flat_alive = by_entry.reshape(-1, 2 * REST), self.is_alive.reshape(-1)  # the same numbers
        self._alive_by_left = self.is_alive.reshape(num_stages + 1, -1)
        self._is_any_alive = self._alive_by_left[0].copy()  # with some number of stages left
        self._moves = _Moves.of(costs, stack, self._grid, cutoff, viable)
        self._line_s = _line_s(costs)
        # Of the last error back at an entry, with any number of stages left; 0 where there is no entry.
        self._finish_s = _zeros((self._is_any_alive.size,))
        self._slack_s: Floats = np.zeros(0)
        self.num_tried = np.zeros(len(stack), dtype=np.int64)
        if fits is not None:
            self._leave_out(fits)
        self.is_complete = self._fill(search)

    def _leave_out(self, fits: Sequence[Callable[[Integers, Integers], bool]]) -> None:
        """Look at no stage of sources of which nothing fits."""
        moves, shape = self._moves, (len(self.stack), -1)
        least_devices, ahead = _least_devices(self.costs, self.stack, moves.furthest, moves.ahead)
        least, most = moves.least.reshape(shape), moves.most.reshape(shape)
        for source, may_fit in enumerate(fits):
            if (least[source] <= most[source]).any() and not may_fit(least_devices[source], ahead[source]):
                least[source] = self.costs.num_layers

    def of(self, source: int) -> TablesOfOne:
        """Return the tables of one source.

        Parameters
        ----------
        source
            Its index in the stack.
        """
        part = slice(source * self._grid.size, (source + 1) * self._grid.size)
        begin = sum(self.stack.num_choices[:source])
        return TablesOfOne(
            self.entries[..., part],
            self.is_alive[..., part],
            self._is_viable[:, begin : begin + self.stack.num_choices[source]],
            self._grid,
            self.is_complete,
        )

    def _runs(self, all_pairs: Iterable[_Pairs]) -> Iterator[list[_Pairs]]:
        """Yield the stages by first layer, last layers first, as many layers together as do not need one another."""
        most, run, size, bottom = _MOST_AT_ONCE // len(self.left), list[_Pairs](), 0, 0
        for pairs in all_pairs:
            count = int(pairs.widths.sum())
            if run and (size + count > most or int(pairs.begin.min()) < bottom):
                yield run
                run, size = [], 0
            if not run:
                bottom = int(pairs.first[0]) + 1
            run.append(pairs)
            size += count
        if run:
            yield run

    def _reached(self, kept: list[_Pairs] | None) -> Iterator[_Pairs]:
        """Yield the stages that start where any lead, those of the last layers first; none of layers without any."""
        for first in reversed(range(self.costs.num_layers)):
            pairs = self._moves.pairs(first, self._slack_s[first] > 0) if kept is None else kept[first]
            if len(pairs):
                yield pairs

    # -- the entries -------------------------------------------------------------------------------------------------

    def _fill(self, search: Search) -> bool:
        """Fill the tables from the last layer to the first; return whether there was time."""
        most = max(1, _MOST_AT_ONCE // len(self.left))
        self._slack_s, kept = _slack_s(self.costs, self.stack, self._moves, search, self.cutoff)
        if search.is_late:
            return False
        for run in self._runs(self._reached(kept)):
            pairs = run[0] if len(run) == 1 else _Pairs.joined(run)
            ends = np.cumsum(pairs.widths)
            low = 0
            while low < len(ends):
                before = int(ends[low - 1]) if low else 0
                high = max(low + 1, int(np.searchsorted(ends, before + most, side="right")))
                if (stages := self._stages(pairs.part(low, high))) is not None:
                    self._add(stages)
                if search.is_over:
                    return False
                low = high
        return True

    def _stages(self, pairs: _Pairs) -> _Stages | None:
        """Return the stages that something can follow and that may be part of a pipeline below the cutoff, if any."""
        costs, moves, stack = self.costs, self._moves, self.stack
        which, ends = pairs.ends
        self.num_tried += np.bincount(stack.sources[pairs.choice], pairs.widths, minlength=len(stack)).astype(np.int64)
        after = ends * self.entries.shape[-1] + pairs.after.take(which)
        # Nothing can follow most of them: the end of all work is known for few states, and the cutoff leaves fewer.
        alive = np.flatnonzero(self._is_any_alive.take(after))
        which, ends, after = which.take(alive), ends.take(alive), after.take(alive)
        slack_s = self._slack_s[pairs.first, pairs.state].take(which)
        if self._line_s is not None:
            begins_s, line_s = self._line_s[pairs.choice, pairs.first].take(which), self._line_s.reshape(-1)
            work_s = line_s.take(pairs.choice.take(which) * self._line_s.shape[1] + ends) - begins_s
            many: Integers | int = stack.num_microbatches[0]
            if len(stack) > 1:
                many = np.repeat(stack.num_microbatches, stack.num_choices)[pairs.choice].take(which)
            near = np.flatnonzero(np.maximum(many * work_s, work_s + self._finish_s.take(after)) <= slack_s)
            which, ends, after, slack_s = which.take(near), ends.take(near), after.take(near), slack_s.take(near)
        first, choice = pairs.first.take(which), pairs.choice.take(which)
        if self._looked_at is not None:
            near = np.flatnonzero(self._looked_at[choice, first, ends])
            which, ends, after, slack_s = which.take(near), ends.take(near), after.take(near), slack_s.take(near)
            first, choice = first.take(near), choice.take(near)
        if not which.size:
            return None
        state = pairs.state.take(which)
        place = moves.places[moves.types[choice], state]
        found, schedules = costs.stages(first, ends - 1, choice, place), stack.schedules(stack.sources[choice])
        # As if nothing stood behind them, they are below the cutoff, and some micro-batches fit.
        m = schedules.num_microbatches
        works_s = m * (found.forward_s + found.backward_s)
        is_soon = (works_s <= slack_s) & (works_s + found.flush_s <= self.cutoff * (1 + _ROUNDING))
        held = m if self.stack.is_gpipe else 1
        may_be = np.flatnonzero(is_soon & (found.most_in_flight >= held))
        if not may_be.size:
            return None
        which, ends, after = which.take(may_be), ends.take(may_be), after.take(may_be)
        first, choice, place = first.take(may_be), choice.take(may_be), place.take(may_be)
        found, schedules, slack_s = found.part(may_be), schedules.part(may_be), slack_s.take(may_be)
        starts = _starts(which)
        state, begin, chosen = state.take(may_be.take(starts)), first.take(starts), choice.take(starts)
        return _Stages(
            choice,
            ends,
            after,
            found.forward_s,
            found.backward_s,
            found.flush_s,
            costs.out_s(ends - 1, choice, place, moves.used[:, pairs.after.take(which)]),
            found.most_in_flight,
            schedules,
            np.cumsum(np.bincount(starts, minlength=len(which))) - 1,
            starts,
            begin * self.entries.shape[-1] + state,
            begin,
            costs.floor_s[chosen],
            costs.in_s(begin, chosen, place.take(starts), moves.used[:, state]),
            slack_s[starts],
        )

    def _add(self, stages: _Stages) -> None:
        """Lower the entries that some stages lead to: of every group the least of each row, by stages left."""
        left, column = np.nonzero(self._alive_by_left[: len(self.left)].take(stages.after, axis=1))
        # While the number of stages is open every one of them has something behind it.
        least = self._least(left, slice(None) if self.is_open else column, stages)
        group = stages.group[column]
        kept = np.flatnonzero((least[FLUSHED] < self.cutoff) & (least[FINISHED] <= stages.slack_s[group]))
        if not kept.size:
            return
        least, left, column, group = least.take(kept, axis=1), left[kept], column[kept], group[kept]
        if self._is_viable.flags.writeable:
            self._is_viable[left, stages.choice[column], stages.first[group], stages.end[column]] = True
        starts = _starts(left * len(stages.state) + group)
        best, left, group = np.minimum.reduceat(least, starts, axis=-1), left[starts], group[starts]
        if not stages.first.all():
            best[FLUSHED] = np.maximum(best[FLUSHED], np.where(stages.first == 0, stages.floor_s, 0.0)[group])
        out_s, back_s = stages.in_s[:, group]
        before = behind_channel(best, out_s, back_s, stages.schedules.part(stages.starts[group]))
        # Nor is anything in front of it.
        is_kept = (before[FLUSHED] < self.cutoff) & (before[FINISHED] <= stages.slack_s[group])
        best, before, group, left = best[:, is_kept], before[:, is_kept], group[is_kept], left[is_kept]
        state, left = stages.state[group], left + (not self.is_open)
        at = left * len(self._is_any_alive) + state
        starts = _starts(at)
        values = np.minimum.reduceat(np.concatenate((best, before)), starts, axis=-1)
        at = at[starts]
        known = np.where(self._flat_alive[at, None], self._flat.take(at, axis=0), np.inf)
        self._flat[at] = np.minimum(known, values.T)
        state = at % len(self._is_any_alive)
        self._finish_s[state[~self._is_any_alive[state]]] = np.inf
        np.minimum.at(self._finish_s, state, values[REST + FINISHED])
        self._flat_alive[at], self._is_any_alive[state] = True, True

    def _least(self, left: Integers, column: Integers | slice, stages: _Stages) -> Floats:
        """Return the rest from some of the stages on with so many stages left behind them; E is inf where it is not."""
        out_s, back_s = stages.out_s[:, column]
        schedules = stages.schedules.part(column)
        at = np.ascontiguousarray(self._flat.take(left * len(self._is_any_alive) + stages.after[column], axis=0).T)
        behind = np.maximum(behind_channel(at[:REST], out_s, back_s, schedules), at[REST:])
        in_flight = schedules.in_flight(self.left[left])
        least = behind_stage(
            behind,
            stages.forward_s[column],
            stages.backward_s[column],
            stages.flush_s[column],
            in_flight,
            schedules,
            is_open=self.is_open,
        )
        held = np.minimum(in_flight, 1) if self.is_open and not self.stack.is_gpipe else in_flight
        least[FLUSHED, stages.most_in_flight[column] < held] = np.inf
        return least


def _viable(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return room for which stages are viable; where that is too large, read-only, that all are."""
    return np.zeros(shape, dtype=np.bool_) if prod(shape) <= _MOST_VIABLE else np.broadcast_to(np.True_, shape)


def _zeros(shape: tuple[int, ...]) -> Floats:
    """Return zeros of which few are written: in large pages, as numpy takes them, most time would go into clearing."""
    if prod(shape) * _BYTES < _LARGE_BYTES or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(shape)
    try:
        memory = mmap.mmap(-1, prod(shape) * _BYTES, flags=mmap.MAP_PRIVATE)
    except OSError as error:
        raise MemoryError from error  # as of numpy's arrays
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.float64).reshape(shape)


def _starts(rows: Integers) -> Integers:
    """Return where each run of equal numbers starts."""
    is_start = np.ones(len(rows), dtype=np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_start[1:])
    return np.flatnonzero(is_start)


# The search


@frozen(kw_only=False)
class _Nodes:
    """The first stages of configurations that have as many of them; the last axis goes by configuration.

    ``num_stages``: in all, or 0 where that is open. By known stage ``choices``, ``ends``, the layer behind it, ``room``
    for micro-batches in flight, and ``columns``: f, b and y. ``sent``: cf and cb by boundary between them. ``used`` by
    type; ``place`` of the last stage.
    """

    bounds: Floats
    num_stages: Integers
    choices: Integers
    ends: Integers
    room: Integers
    columns: Floats
    sent: Floats
    used: Integers
    place: Integers

    @classmethod
    def roots(cls, bounds: Floats, num_stages: Integers, num_types: int) -> "_Nodes":
        """Return configurations of which no stage is known."""
        size, none = len(bounds), np.zeros((0, len(bounds)), dtype=np.int64)
        used, place = np.zeros((num_types, size), dtype=np.int64), np.zeros(size, dtype=np.int64)
        return cls(bounds, num_stages, none, none, none, np.zeros((3, 0, size)), np.zeros((2, 0, size)), used, place)

    @classmethod
    def joined(cls, parts: Sequence["_Nodes"]) -> "_Nodes":
        """Return the nodes of all parts, one after the other."""
        return cls(*(np.concatenate(rows, axis=-1) for rows in zip(*(one._rows for one in parts), strict=True)))

    @property
    def _rows(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.bounds)

    def at(self, which: Integers | slice) -> "_Nodes":
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

    def __init__(self) -> None:
        self._parts: list[_Nodes] = []  # each in the order of its bounds

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def bound(self) -> float:
        """The least."""
        return min((float(part.bounds[0]) for part in self._parts), default=np.inf)

    def add(self, nodes: _Nodes) -> None:
        """Keep some more."""
        self._parts.append(nodes.at(np.argsort(nodes.bounds, kind="stable")))

    def first(self, number: int) -> _Nodes:
        """Return the first nodes, of equal bounds those of fewer stages."""
        nodes = _Nodes.joined(self._parts)
        return nodes.at(np.lexsort((nodes.num_stages, nodes.bounds))[:number])

    def pop(self, until: float, most: float, size: Callable[[Integers], Integers]) -> _Nodes:
        """Take off the first node, and those that follow up to a bound while all but the last are within a size."""
        near = [int(np.searchsorted(part.bounds, until, side="right")) for part in self._parts]
        bounds = np.concatenate([part.bounds[:count] for part, count in zip(self._parts, near, strict=True)])
        firsts = np.concatenate([part.firsts[:count] for part, count in zip(self._parts, near, strict=True)])
        order = np.argsort(bounds, kind="stable")
        taken = order[: 1 + np.searchsorted(np.cumsum(size(firsts[order])), most, side="right")]
        counts = np.bincount(np.repeat(np.arange(len(near)), near)[taken], minlength=len(near)).tolist()
        nodes = _Nodes.joined([part.at(slice(n)) for part, n in zip(self._parts, counts, strict=True) if n])
        rest = (part.at(slice(n, None)) if n else part for part, n in zip(self._parts, counts, strict=True))
        self._parts = [part for part in rest if len(part)]
        return nodes.at(np.argsort(nodes.bounds, kind="stable"))


@frozen(kw_only=False)
class _Ways:
    """Stages that may come next in one state, and what does not depend on the stages ahead of them.

    ``whole``: rows of the choice, the layer behind the stage, its place, and the micro-batches that fit. ``seconds``:
    f, b and y; the rest behind it; and of the rest from the boundary before it on E, F, L and G + H.
    """

    whole: Integers
    seconds: Floats


class BestFirst:
    """Configurations of one schedule in the order of their bounds.

    Parameters
    ----------
    costs, schedule
        Of all its configurations.
    search
        Ends it.
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
        self._cutoff = cutoff
        self._types = np.array([one.type_index for one in costs.choices])
        self._sizes = np.array([one.num_devices for one in costs.choices])
        if tables is None:
            most, stack = 0 if is_open else max(numbers_of_stages), Stack.of(schedule, costs)
            tables = Tables(costs, stack, most, search, cutoff, allowed).of(0)
        self._tables, self._is_open = tables, is_open
        self._known_ends: dict[tuple[int, int], tuple[Integers, Integers]] = {}  # by stages left and first layer
        self._known: dict[tuple[int, ...], _Ways] = {}  # by stages left, first layer and devices used
        self._num_known = 0
        self.is_too_large = False
        # By number of known stages, and whether all are: nodes of one kind are extended together.
        self._open: dict[tuple[int, bool], _Waiting] = {}
        if self._tables.is_complete:
            numbers = np.array([0] if is_open else sorted(self.numbers_of_stages), dtype=np.int64)
            least_s = np.where(tables.is_alive[numbers, 0, 0], tables.entries[FLUSHED, numbers, 0, 0], np.inf)
            self._push(_Nodes.roots(least_s, numbers, len(costs.num_devices)), cutoff)

    @property
    def bound(self) -> float:
        """No configuration below the cutoff that has not been given is below; ``inf`` when all have been.

        0 where the limit struck before the tables were full.
        """
        if not self._tables.is_complete:
            return 0.0
        return min((nodes.bound for nodes in self._open.values()), default=np.inf)

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
        while self._open and not self.is_too_large and not self.search.is_over:
            key, waiting = min(self._open.items(), key=lambda item: item[1].bound)
            bound, is_complete = waiting.bound, key[1]
            if not (bound < cutoff and bound <= until):
                return None
            # As many as one pass extends, of which the cutoff will hardly spare one.
            is_one = is_complete or cutoff == np.inf
            nodes = waiting.pop(
                bound if is_one else bound + (cutoff - bound) / 2, -1 if is_complete else _MOST_EXTENDED, self._size
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
        if (roots := self._open.get((0, False))) is None:
            return []
        found: dict[int, Candidate] = {}  # by number of stages, in which roots differ
        nodes = ahead = roots.first(number)
        while len(nodes) and not self.search.is_over:
            following = self._following(replace(nodes, bounds=np.zeros(len(nodes))), cutoff)
            order = np.lexsort((following.bounds, following.num_stages))
            nodes = following.at(order[_starts(following.num_stages[order])])
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
        is_complete, is_near = self._is_complete(nodes), nodes.bounds < cutoff
        for which in (False, True):
            if len(rows := np.flatnonzero(is_near & (is_complete == which))):
                self._open.setdefault((nodes.position, which), _Waiting()).add(nodes.at(rows))

    def _size(self, firsts: Integers) -> Integers:
        """Return how many stages may come next at most, by first layer."""
        return len(self._sizes) * (self.costs.num_layers - firsts)

    def _close(self, node: _Nodes, cutoff: float) -> None:
        """Bound a complete configuration again by its number of stages, now known; drop it if it does not fit."""
        n = node.position
        held = self.schedule.in_flight(np.arange(n, 0, -1))
        if n in self.numbers_of_stages and (held <= node.room[:, 0]).all():
            stages = [(*column, k) for column, k in zip(node.columns[..., 0].T.tolist(), held.tolist(), strict=True)]
            sent = [(out_s, back_s) for out_s, back_s in node.sent[..., 0].T.tolist()]
            true_s = through(stages, sent, NOTHING, self.schedule)
            self._push(replace(node, bounds=np.maximum(node.bounds, true_s), num_stages=np.array([n])), cutoff)

    def _expand(self, nodes: _Nodes, cutoff: float) -> None:
        """Add every next stage below the cutoff; where they are too many, keep the nodes."""
        following = self._following(nodes, cutoff)
        self.is_too_large = sum(map(len, self._open.values())) + len(following) > _MOST_NODES
        self._push(nodes if self.is_too_large else following, cutoff)

    def _ends(self, left: int, first: int) -> tuple[Integers, Integers]:
        """Return choices and ends of the viable stages that start at a layer, with so many stages left behind them."""
        if (left, first) not in self._known_ends:
            choices, steps = np.nonzero(self._tables.is_viable[left, :, first, first + 1 :])
            self._known_ends[left, first] = choices, steps + first + 1
        return self._known_ends[left, first]

    def _ways(self, states: Sequence[tuple[int, ...]]) -> list[_Ways]:
        """Return the stages that may come next in some states: stages left behind them, first layer, devices used."""
        costs, schedule, numbers = self.costs, self.schedule, np.array(states)
        left, first, used = numbers[:, 0], numbers[:, 1], numbers[:, 2:].T
        ends = [self._ends(*one[:2]) for one in states]
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
        state = self._tables.state(after)
        alive = np.flatnonzero(self._tables.is_alive[left[which], end, state])
        which, choice, end, place, state, after = (one[..., alive] for one in (which, choice, end, place, state, after))
        found, out_s = costs.stages(first[which], end - 1, choice, place), costs.out_s(end - 1, choice, place, after)
        at = self._tables.entries[:, left[which], end, state]
        rest = np.maximum(behind_channel(at[:REST], out_s[0], out_s[1], schedule), at[REST:])
        m, is_gpipe = schedule.num_microbatches, schedule.is_gpipe
        held = m if is_gpipe or self._is_open else np.minimum(m, left[which] + 1)
        columns = found.forward_s, found.backward_s, found.flush_s
        own = behind_stage(rest, *columns, held, schedule, is_open=self._is_open)
        in_s, back_s = costs.in_s(first[which], choice, place, used[:, which])
        before = behind_channel(own, in_s, back_s, schedule)
        is_near = (own[FLUSHED] < self._cutoff) & (
            found.most_in_flight >= (1 if self._is_open and not is_gpipe else held)
        )
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
        rows = np.vstack((left, nodes.firsts, nodes.used)).T.tolist()
        index: dict[tuple[int, ...], int] = {}
        states = np.array([index.setdefault(one, len(index)) for one in map(tuple, rows)])
        if self._num_known > _MOST_KNOWN:
            self._known, self._num_known = {}, 0
        if new := [one for one in index if one not in self._known]:
            self._known.update(zip(new, self._ways(new), strict=True))
            self._num_known += sum(self._known[one].seconds.shape[1] for one in new)
        ways = [self._known[one] for one in index]
        whole, seconds = (
            np.concatenate([getattr(one, name) for one in ways], axis=1) for name in _Ways.__dataclass_fields__
        )
        counts = np.array([one.whole.shape[1] for one in ways])
        widths, begins = counts[states], (np.cumsum(counts) - counts)[states]
        which, at = _spread(widths)
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
        stages = [(*columns[:, s], self._held(nodes, s)) for s in range(position + 1)]
        sends = [tuple(sent[:, s]) for s in range(position)]
        bounds = through(stages, sends, seconds[3 : 3 + REST], self.schedule, is_open=self._is_open)
        if not position:
            bounds = np.maximum(bounds, self.costs.floor_s[choice])
        used = nodes.used.copy()
        used[self._types[choice], np.arange(len(choice))] += self._sizes[choice]
        choices, ends, rooms = (
            np.vstack(rows) for rows in ((nodes.choices, choice), (nodes.ends, end), (nodes.room, room))
        )
        found = _Nodes(
            np.maximum(bounds, nodes.bounds), nodes.num_stages, choices, ends, rooms, columns, sent, used, place
        )
        return found.at(np.flatnonzero(bounds < cutoff))

    def _held(self, nodes: _Nodes, position: int) -> Integers | int:
        """Return the micro-batches in flight in a stage; m while the number of stages is open."""
        m = self.schedule.num_microbatches
        return m if self.schedule.is_gpipe or self._is_open else np.minimum(m, nodes.num_stages - position)

    def _ahead_s(self, nodes: _Nodes) -> Floats:
        """Return rows of what the stages of nodes add to E, F, L and G + H from the boundary behind them on, at least.

        ``E(0) >= V + E``, ``Z + F`` and ``V + (m - 1) A + L`` with V the way of all known stages, Z that and back, and
        A the slowest task of either; and of 1F1B, from any stage s with ``K < m`` on, ``E(s) >= S + L`` with
        ``S >= Z + G + (m - 1 - K) w`` and ``L >= Z + H + y``.
        """
        m, (f, b, y) = self.schedule.num_microbatches, nodes.columns
        if not nodes.position:
            return np.tile([[0.0], [0.0], [0.0], [-np.inf]], len(nodes))
        out_s, back_s = np.concatenate((nodes.sent, np.zeros((2, 1, len(nodes)))), axis=1)
        ways_s, trips_s = np.cumsum(f + out_s, axis=0), np.cumsum((f + b + out_s + back_s)[::-1], axis=0)[::-1]
        turned_s = np.full(len(nodes), -np.inf)
        if not self.schedule.is_gpipe and not self._is_open:
            between = m - 1 - np.array([self._held(nodes, s) for s in range(nodes.position)])
            each_s = ways_s - f - out_s + 2 * trips_s + y + between * (f + b)
            turned_s = np.where(between >= 0, each_s, -np.inf).max(axis=0)
        slowest_s = (m - 1) * np.maximum(f, out_s).max(axis=0)
        return np.array((ways_s[-1], trips_s[0], ways_s[-1] + slowest_s, turned_s))
