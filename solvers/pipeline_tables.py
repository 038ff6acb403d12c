"""Tables of what may follow in a pipeline over a line of layers: what bounds the search of :mod:`.pipelines`.

A dynamic programme from the last layer to the first (:class:`Tables`), with the symbols of that search. A state is
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
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.frozen import frozen
from planner.search import Search
from planner.solvers.pipeline_bounds import (
    FINISHED,
    FLUSHED,
    REST,
    Integers,
    Schedule,
    Schedules,
    behind_channel,
    behind_stage,
)

_MOST_AT_ONCE = 200_000  # stages times numbers of stages in one pass: beyond the processor's cache it gets slower
_MOST_PAIRS = 400_000  # stages by state, choice and first layer that are kept from one pass to the next: 20 MB
_FEW_LAYERS = 24  # whose sums are compared each with each
_BYTES = 8  # of a number
_LARGE_BYTES = 1 << 22  # of an array for which numpy asks for large pages
_ARRAYS_OF_MOVES = 12
_ARRAYS_OF_SIDES = 5
_ROUNDING = 1e-9
_MOST_VIABLE = 20_000_000  # of which it is known whether they may be part of a pipeline below the cutoff


# What is chosen, and what it costs


@frozen
class Choice:
    """A stage on ``num_devices`` devices of type ``type_index``."""

    type_index: int
    num_devices: int


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
        which, index = each_part(self.widths)
        return which, index + self.begin.take(which)


def each_part(counts: Integers) -> tuple[Integers, Integers]:
    """Return of things of which each has a number of parts, part by part, the thing and which of its parts it is."""
    which = np.arange(len(counts)).repeat(counts)
    return which, np.arange(len(which)) - (counts.cumsum() - counts).repeat(counts)


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
        choices = (stops > first + 1).nonzero()[0]
        starts = choices.searchsorted(self.starts)
        states = (reached & (self.least <= first) & (first <= self.most)).nonzero()[0]
        source = states * (len(starts) - 1) // len(self.least)
        which, index = each_part(np.diff(starts)[source])
        state, choice = states.take(which), choices.take(index + starts[source].take(which))
        fits = (self.sizes.take(choice) <= self.left[self.types.take(choice), state]).nonzero()[0]
        state, choice = state.take(fits), choice.take(fits)
        after, stop = state + self.steps.take(choice), stops.take(choice)
        begin = np.maximum(self.least.take(after), first + 1)
        kept = (begin < stop).nonzero()[0]
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
        if not len(pairs):
            continue
        which, ends = pairs.ends
        left_s, choice = slack_s[first].take(pairs.state).take(which), pairs.choice.take(which)
        at = choice * line_s.shape[1]
        seconds = line_s.take(at + ends) - line_s[:, first].take(choice)
        fits = (numbers.take(choice) * seconds <= left_s).nonzero()[0]
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

    By stage: ``viable``, where it is told whether it is; ``after``, the entry behind it by layer and state; f, b and y;
    ``out_s``, cf and cb that a boundary behind it takes at least; ``most_in_flight``; ``schedules``; ``group``. By
    group: ``starts``, its first stage; ``state``, the entry that it lowers; ``first``; ``floor_s``; ``in_s`` of a
    boundary before it; ``slack_s`` of that entry.
    """

    viable: Integers
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
        self._flat_viable = self._is_viable.reshape(-1) if self._is_viable.flags.writeable else self._is_viable
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
        alive = self._is_any_alive.take(after).nonzero()[0]
        which, ends, after = which.take(alive), ends.take(alive), after.take(alive)
        slack_s = self._slack_s[pairs.first, pairs.state].take(which)
        if self._line_s is not None:
            begins_s, line_s = self._line_s[pairs.choice, pairs.first].take(which), self._line_s.reshape(-1)
            work_s = line_s.take(pairs.choice.take(which) * self._line_s.shape[1] + ends) - begins_s
            many: Integers | int = stack.num_microbatches[0]
            if len(stack) > 1:
                many = np.repeat(stack.num_microbatches, stack.num_choices)[pairs.choice].take(which)
            near = (np.maximum(many * work_s, work_s + self._finish_s.take(after)) <= slack_s).nonzero()[0]
            which, ends, after, slack_s = which.take(near), ends.take(near), after.take(near), slack_s.take(near)
        first, choice = pairs.first.take(which), pairs.choice.take(which)
        if self._looked_at is not None:
            near = self._looked_at[choice, first, ends].nonzero()[0]
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
        may_be = (is_soon & (found.most_in_flight >= held)).nonzero()[0]
        if not may_be.size:
            return None
        which, ends, after = which.take(may_be), ends.take(may_be), after.take(may_be)
        first, choice, place = first.take(may_be), choice.take(may_be), place.take(may_be)
        found, schedules, slack_s = found.part(may_be), schedules.part(may_be), slack_s.take(may_be)
        starts = run_starts(which)
        state, begin, chosen = state.take(may_be.take(starts)), first.take(starts), choice.take(starts)
        return _Stages(
            (choice * costs.num_layers + first) * (costs.num_layers + 1) + ends,
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
        most = min(len(self.left), self.costs.num_layers - int(stages.first.min()))  # a stage holds a layer or more
        left, column = self._alive_by_left[:most].take(stages.after, axis=1).nonzero()
        # While the number of stages is open every one of them has something behind it.
        least = self._least(left, slice(None) if self.is_open else column, stages)
        group = stages.group[column]
        kept = ((least[FLUSHED] < self.cutoff) & (least[FINISHED] <= stages.slack_s[group])).nonzero()[0]
        if not kept.size:
            return
        least, left, column, group = least.take(kept, axis=1), left[kept], column[kept], group[kept]
        if self._is_viable.flags.writeable:
            self._flat_viable[left * self._is_viable[0].size + stages.viable.take(column)] = True
        starts = run_starts(left * len(stages.state) + group)
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
        starts = run_starts(at)
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


def run_starts(rows: Integers) -> Integers:
    """Return where each run of equal numbers starts."""
    is_start = np.ones(len(rows), dtype=np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_start[1:])
    return is_start.nonzero()[0]
