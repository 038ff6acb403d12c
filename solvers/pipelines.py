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

The bound, from the last stage to the first. ``R(s)``: seconds of one micro-batch from its forward in stage s to the end
of its backward there; ``F(s)``: seconds from the first forward of stage s to the end of its last backward; ``E(s)``: to
the end of what every stage from s on does after its last backward. With ``w = f + b`` of stage s,
``X = cf + R(s+1) + cb`` (0 for the last stage), ``K`` its micro-batches in flight, ``q = ceil(m / K)``:

- ``R(s) = w + X``.
- ``F(s)`` is the greatest of
  (1) 1F1B, ``K < m``: ``max(K f, f + X) + (m - K) w + max(K b, X + b)``. The device starts with K forwards, and its
  first backward starts no earlier than X after its first forward; likewise at the end, mirrored; in between come
  ``m - K`` of each. ``K = m``: ``max(m f, f + X) + m b`` and ``m f + max(m b, X + b)``. GPipe: ``m w + X``: the last
  stage's backwards start after its last forward;
  (2) ``(m - 1 - (q - 1) K) f + q R(s)`` under 1F1B: the forward of micro-batch j + K follows the backward of j;
  (3) ``w + X + (m - 1) max(cf, cb)``, under GPipe ``w + X + (m - 1)(cf + cb)``: a channel sends one at a time, and
  under GPipe it sends no error before the last output has arrived;
  (4) ``w + cf + cb + F(s+1)``: before the first forward of stage s + 1 and after its last backward, one micro-batch
  passes stage s and the boundary.
- Of known stages in front of what is still open, terms more. 1F1B, ``K(s) < m``, stages s to s + d: the backward of
  micro-batch j in stage s goes before the forward of ``j + K(s)``, that one's forward in stage s + d before the
  backward of ``j + d + 1`` there, which then passes back to s. So d + 1 micro-batches take at least ``Z = sum w + sum
  (cf + cb)`` of these stages and the boundaries between them; ``F(s) >= 2 R(s) + j0 b + t Z`` with ``t`` and ``j0`` the
  quotient and the rest of ``(m - 1 - K(s)) / (d + 1)``. GPipe: ``E(0) >= R(0) + (m - 1) (max(f, cf) + max(b, cb))``,
  each greatest over all stages: forwards go as one line, and then backwards.

  1F1B, where K is known: micro-batches go to stage s, turn there, and come back to stage i, which then flushes. ``A``
  and ``B``: the slowest task forward of stages 0 to s and of the boundaries between them, and the slowest back of
  stages i to s; ``way``: f and cf of all stages before s, and b and cb of those from i on before s.
  (5) ``E(0) >= way + w + y(i) + max((K-1) A + (m-K) w + (K-1) B, (m-1) A + (K-1) B, (K-1) A + (m-1) B)``, w and K of
  stage s: micro-batch j reaches it after ``j - 1`` slowest tasks; the forward of micro-batch K goes before the first
  backward, that of m before the backward of ``m - K + 1``; and errors come back one slowest task after another. Where
  what lies behind s is open, R(s) in place of w, and 1 in place of K.
  (6) Twice: the first error is back at stage 0 after ``way + w + (K-1) A`` with the stage s and i = 0 for which that is
  greatest; forward ``1 + K(0)`` follows; turns as above lead to forward m; and that one's way to any s, with the K - 1
  errors behind the one that it lets go, ends in y(i).
- ``E(s) = max(F(s) + y, f + cf + E(s+1))``. The bound of a configuration is ``E(0)``, or what its first stage takes at
  least, e.g. to read its samples.

Each term sums durations along a chain of tasks of which each waits for the one before, by the order of a device or a
channel or by its input; so no timing of the fixed orders, and hence no simulation, is below it. All terms rise with all
their arguments, so the principle of optimality holds: with least R, F, E of the stages behind a cut (each by itself),
the recursion bounds whatever is put before them. Boundaries: the tables know one side only, so both sides bound it, the
stage before by ``out`` and the one behind by ``in``; a configuration is given its true boundary.

The tables of what may follow (:class:`Tables`), a dynamic programme from the last layer to the first. A state is
(stages left, first layer, devices used by type); as devices are handed out in order, it says where a stage stands. For
every state the tables hold the least R, F and E, and the least that lies behind a boundary before it.

- *Number of stages.* With the stages left known the work is ``O(P L^2 sum over states of choices)``; where that is too
  much, ``P = 0`` leaves their number open: K is then relaxed to m, and memory to what one micro-batch in flight takes.
- *What the cutoff T leaves.* Devices whose speeds sum up to S do at most ``S T`` of work in an iteration below T. So
  the layers before a state fit the devices used, and those behind it fit the others; a stage computes no longer than T.
  With T near the time that all devices need together, few devices used are left for each layer, and few ends for each
  stage. Entries at or above T are given up at once.
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
stages take, and the least of what may follow. Complete ones then come in the order of their bounds.

Sources: the schedules are GPipe's (Y. Huang et al., arXiv:1811.06965) and 1F1B (D. Narayanan et al., SOSP '19,
doi:10.1145/3341301.3359646); best first with a bound of the rest is A* (P. Hart, N. Nilsson and B. Raphael, IEEE Trans.
Syst. Sci. Cybern. 4(2), 1968, doi:10.1109/TSSC.1968.300136). The terms of the bound are our own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solvers.branch_and_bound import OpenBoxes

Integers = NDArray[np.int64]
_Seconds = Floats | float

_MOST_AT_ONCE = 200_000  # stages times numbers of stages in one pass: beyond the processor's cache it gets slower
_MOST_PAIRS = 1_000_000  # moves times layers that are looked at together
_BYTES = 8  # of a number
_ARRAYS_OF_MOVES = 12
_ARRAYS_OF_SIDES = 5
_ROUNDING = 1e-9
_DENSE = 0.5  # share of stages with a follower from which on all are computed
_MOST_NODES = 400_000  # that wait to be extended, and may be added by one: half a gibibyte
_ASKED_EVERY = 4_096  # nodes that are added


# What is chosen, and what it costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A stage on ``num_devices`` devices of type ``type_index``."""

    type_index: int
    num_devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers ``first`` to ``last`` (inclusive), by the choice of index ``choice``."""

    first: int
    last: int
    choice: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``num_microbatches`` in the order of GPipe, or else of 1F1B."""

    num_microbatches: int
    is_gpipe: bool = False

    def in_flight(self, num_left: Integers) -> Integers:
        """Return the micro-batches in flight in a stage.

        Parameters
        ----------
        num_left
            Stages from it to the last, itself included; >= 1, of any shape.
        """
        m = self.num_microbatches
        return np.full_like(num_left, m) if self.is_gpipe else np.minimum(num_left, m)

    def part(self, which: Integers | NDArray[np.bool_] | slice) -> "Schedule":
        """Return the schedule of some stages of many: the same for all.

        Parameters
        ----------
        which
            Of the stages, by stage.
        """
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """A :class:`Schedule` of each of many stages: one order, and ``num_microbatches`` by stage."""

    num_microbatches: Integers
    is_gpipe: bool

    def in_flight(self, num_left: Integers) -> Integers:
        """Return the micro-batches in flight.

        Parameters
        ----------
        num_left
            Stages from each to the last; the last axis goes by stage, or is 1.
        """
        m = self.num_microbatches
        if self.is_gpipe:
            return np.broadcast_to(m, np.broadcast_shapes(m.shape, num_left.shape))
        return np.minimum(num_left, m)

    def part(self, which: Integers | NDArray[np.bool_] | slice) -> "Schedules":
        """Return the schedules of some of the stages.

        Parameters
        ----------
        which
            Of the stages, by stage.
        """
        return Schedules(num_microbatches=self.num_microbatches[which], is_gpipe=self.is_gpipe)


@dataclass(frozen=True, slots=True, kw_only=True)
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
    def sources(self) -> Integers:
        """Sources by choice."""
        return np.repeat(np.arange(len(self)), self.num_choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """What stages take, as arrays of one shape.

    Attributes
    ----------
    forward_s, backward_s
        Of one micro-batch.
    flush_s
        After the last backward.
    most_in_flight
        Micro-batches that fit in memory; 0 where not even one does.
    """

    forward_s: Floats
    backward_s: Floats
    flush_s: Floats
    most_in_flight: Integers

    def part(self, which: NDArray[np.bool_]) -> "StageSeconds":
        """Return some of the stages.

        Parameters
        ----------
        which
            Of the shape of the arrays.
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

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return (2, ...) seconds that no boundary behind a stage is below, of one micro-batch, forward and back.

        0 behind the last layer.

        Parameters
        ----------
        lasts, choices, places
            Of the stage before the boundary.
        """
        ...

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return (2, ...) seconds that no boundary before a stage is below; 0 before the first layer.

        Parameters
        ----------
        firsts, choices, places
            Of the stage behind the boundary.
        """
        ...

    def boundary_s(self, cut: int, left: int, place: int, rights: Integers, places: Integers, /) -> Floats:
        """Return (2, len(rights)) seconds of a micro-batch over the cut before layer ``cut``, forward and back.

        Parameters
        ----------
        cut
            Layer behind the boundary.
        left, place
            Choice of the stage before it, and where its first device stands.
        rights, places
            Choices of stages behind it, and where their first devices stand; one of the same type as ``left`` has the
            devices that follow.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A complete configuration and the lower bound of its makespan."""

    bound: float
    stages: tuple[Stage, ...]


# The bound of known stages


@dataclass(frozen=True, slots=True)
class _Tail:
    """R, F and E of a stage and all behind it, as arrays of any one shape."""

    round_trip_s: Floats
    finish_s: Floats
    flushed_s: Floats


@dataclass(frozen=True, slots=True)
class _Behind:
    """What lies behind a stage, boundary included: X, F, E, and the channel's term (3) less w."""

    trip_s: Floats
    finish_s: Floats
    flushed_s: Floats
    channel_s: Floats

    def at_least(self, other: "_Behind") -> "_Behind":
        """Return the greater of two bounds of the same."""
        return _Behind(
            np.maximum(self.trip_s, other.trip_s),
            np.maximum(self.finish_s, other.finish_s),
            np.maximum(self.flushed_s, other.flushed_s),
            np.maximum(self.channel_s, other.channel_s),
        )


_ZERO = np.zeros(())
_NOTHING = _Behind(_ZERO, _ZERO, _ZERO, _ZERO)


def _behind_of(tail: _Tail, out_s: Floats | float, back_s: Floats | float, schedule: Schedule | Schedules) -> _Behind:
    """Return what lies behind a boundary of ``cf`` and ``cb``."""
    both_s = out_s + back_s
    sent_s = both_s if schedule.is_gpipe else np.maximum(out_s, back_s)
    trip_s = both_s + tail.round_trip_s
    return _Behind(
        trip_s,
        both_s + tail.finish_s,
        out_s + tail.flushed_s,
        trip_s + (schedule.num_microbatches - 1) * sent_s,
    )


def _stage_of(
    forward_s: Floats | float,
    backward_s: Floats | float,
    flush_s: Floats | float,
    behind: _Behind,
    in_flight: Integers | int,
    schedule: Schedule | Schedules,
) -> _Tail:
    """Return the recursion for one stage; ``in_flight`` is K."""
    m, trip_s, work_s = schedule.num_microbatches, behind.trip_s, forward_s + backward_s
    round_trip_s = work_s + trip_s
    if schedule.is_gpipe:
        own_s = m * work_s + trip_s
    else:
        last_s = trip_s + backward_s
        lead_s = np.maximum(in_flight * forward_s, forward_s + trip_s)
        drain_s = np.maximum(in_flight * backward_s, last_s)
        some_s = lead_s + (m - in_flight) * work_s + drain_s
        all_s = np.maximum(lead_s + m * backward_s, m * forward_s + drain_s)
        is_some = in_flight < m
        own_s = (some_s if is_some else all_s) if isinstance(is_some, bool) else np.where(is_some, some_s, all_s)
        turns = -(-m // in_flight)
        own_s = np.maximum(own_s, (m - 1 - (turns - 1) * in_flight) * forward_s + turns * round_trip_s)
    finish_s = np.maximum(own_s, work_s + np.maximum(behind.finish_s, behind.channel_s))
    return _Tail(round_trip_s, finish_s, np.maximum(finish_s + flush_s, forward_s + behind.flushed_s))


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Known stages, first to last: f, b and y by stage, cf and cb by boundary between them, K by stage."""

    columns: Sequence[tuple[float, float, float]]
    sent: Sequence[tuple[float, float]]
    in_flight: Sequence[int]


def _through(
    prefix: _Prefix,
    tail: _Tail,
    work_s: Floats,
    flush_s: Floats,
    sent: Floats,
    in_flight: int,
    schedule: Schedule,
    *,
    is_closed: bool,
) -> Floats:
    """Return E(0) where ``tail`` stands behind known stages.

    Parameters
    ----------
    tail, work_s, flush_s, in_flight
        R, F and E from the stage behind on, and its f and b, y and K.
    sent
        cf and cb between them.
    is_closed
        Whether the number of stages, and so K, is known.
    """
    m = schedule.num_microbatches
    out_s, back_s = sent
    turned_s: _Seconds = 0.0
    if is_closed and not schedule.is_gpipe and prefix.columns:
        turned_s = _turned_s(prefix, tail.round_trip_s, work_s, flush_s, sent, in_flight, m)
    greatest = work_s
    spans = [work_s[0] + work_s[1]]  # of the stages from s to each of those behind, boundaries between them included
    for position in reversed(range(len(prefix.columns))):
        f, b, y = prefix.columns[position]
        in_flight = prefix.in_flight[position]
        behind = _behind_of(tail, out_s, back_s, schedule)
        tail = _stage_of(f, b, y, behind, in_flight, schedule)
        if schedule.is_gpipe:
            greatest = np.array(
                [np.maximum(greatest[0], np.maximum(f, out_s)), np.maximum(greatest[1], np.maximum(b, back_s))]
            )
        elif is_closed:
            reached_s = f + b + out_s + back_s
            spans = [np.asarray(f + b), *(reached_s + one for one in spans)]
            if in_flight < m:
                finish_s, twice_s = tail.finish_s, 2 * tail.round_trip_s
                for size, span_s in enumerate(spans, start=1):
                    turns, rest = divmod(m - 1 - in_flight, size)
                    finish_s = np.maximum(finish_s, twice_s + rest * b + turns * span_s)
                tail = _Tail(tail.round_trip_s, finish_s, np.maximum(tail.flushed_s, finish_s + y))
        if position:
            out_s, back_s = prefix.sent[position - 1]
    if schedule.is_gpipe:
        line_s: Floats = tail.round_trip_s + (m - 1) * (greatest[0] + greatest[1])
        return np.asarray(np.maximum(tail.flushed_s, line_s))
    return np.maximum(tail.flushed_s, turned_s)


def _turned_s(
    prefix: _Prefix, round_trip_s: Floats, work_s: Floats, flush_s: Floats, sent: Floats, in_flight: int, m: int
) -> Floats:
    """Return the greatest of the terms (5) and (6) of known stages and the one behind them.

    Parameters
    ----------
    prefix
        Known stages.
    round_trip_s, work_s, flush_s, in_flight
        R, f and b, y and K of the stage behind.
    sent
        cf and cb between them.
    m
        Micro-batches.
    """
    columns: list[tuple[_Seconds, _Seconds, _Seconds]] = [*prefix.columns, (work_s[0], work_s[1], flush_s)]
    sends: list[tuple[_Seconds, _Seconds]] = [*prefix.sent, (sent[0], sent[1])]
    there_s: _Seconds = 0.0  # the way to stage s,
    ahead_s: _Seconds = 0.0  # the slowest task of it, its own included,
    first_s: _Seconds = 0.0  # the first error's way to the first stage, at least, and what follows its last forward
    last_s: _Seconds = 0.0
    least_s: _Seconds = 0.0
    for s, ((f, b, _), k) in enumerate(zip(columns, [*prefix.in_flight, in_flight], strict=True)):
        if s:
            there_s, ahead_s = there_s + columns[s - 1][0] + sends[s - 1][0], _greater(ahead_s, sends[s - 1][0])
        ahead_s, turn_s = _greater(ahead_s, f), f + b
        back_s: _Seconds = 0.0  # the way back from it to stage i, and the slowest task of that
        behind_s = b
        for i in range(s, -1, -1):
            if i < s:
                back_s = back_s + columns[i][1] + sends[i][1]
                behind_s = _greater(behind_s, _greater(columns[i][1], sends[i][1]))
            home_s = back_s + columns[i][2]
            one_s, all_s = there_s + (k - 1) * ahead_s, there_s + (m - 1) * ahead_s
            own_s = _greater(one_s + (m - k) * turn_s, all_s) + (k - 1) * behind_s
            least_s = _greater(least_s, _greater(own_s, one_s + (m - 1) * behind_s) + turn_s + home_s)
            last_s = _greater(last_s, there_s + turn_s + (k - 1) * behind_s + home_s)
            if s == len(prefix.columns):
                least_s = _greater(least_s, there_s + (m - 1) * _greater(ahead_s, behind_s) + round_trip_s + home_s)
                last_s = _greater(last_s, there_s + round_trip_s + home_s)
        first_s = _greater(first_s, there_s + (k - 1) * ahead_s + turn_s + back_s)
    first_s = _greater(first_s, there_s + round_trip_s + back_s)
    if prefix.in_flight[0] < m:
        span_s = own_s = columns[0][0] + columns[0][1]
        between_s: _Seconds = 0.0
        for size in range(1, len(columns) + 1):
            if size > 1:
                span_s = span_s + sum(sends[size - 2]) + sum(columns[size - 1][:2])
            turns, rest = divmod(m - 1 - prefix.in_flight[0], size)
            between_s = _greater(between_s, turns * span_s + rest * own_s)
        least_s = _greater(least_s, first_s + between_s + last_s)
    return np.asarray(least_s)


def _greater(one: _Seconds, other: _Seconds) -> _Seconds:
    """Return the greater of two; of single numbers without numpy, which takes ten times as long."""
    if isinstance(one, float) and isinstance(other, float):
        return max(one, other)
    return np.maximum(one, other)


def bound_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_transfer_s: Sequence[float],
    backward_transfer_s: Sequence[float],
    flush_s: Sequence[float],
    schedule: Schedule,
) -> float:
    """Return ``E(0)``, which no simulation of these stages is below.

    Parameters
    ----------
    forward_s, backward_s, flush_s
        f, b and y by stage.
    forward_transfer_s, backward_transfer_s
        cf and cb by boundary: one less than stages.
    schedule
        Of these stages.

    >>> bound_s([2, 1], [2, 1], [0], [0], [0, 0], Schedule(num_microbatches=2))
    8.0
    """
    n = len(forward_s)
    held = schedule.in_flight(np.arange(n, 0, -1)).tolist()
    columns = list(zip(forward_s, backward_s, flush_s, strict=True))
    sent = list(zip(forward_transfer_s, backward_transfer_s, strict=True))
    last = [np.array(one, dtype=np.float64) for one in columns[-1]]
    tail = _stage_of(last[0], last[1], last[2], _NOTHING, np.array(held[-1]), schedule)
    prefix = _Prefix(columns[:-1], sent, held[:-1])
    between = np.array(sent[-1] if sent else (0.0, 0.0), dtype=np.float64)
    return float(_through(prefix, tail, np.array(last[:2]), last[2], between, held[-1], schedule, is_closed=True))


# Which stages the tables look at: what devices are left for, and what the cutoff leaves


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class _Pairs:
    """_Moves with first layers: stages that start at ``first`` and end before ``begin``, ..., ``stop - 1``."""

    move: Integers
    first: Integers
    begin: Integers
    stop: Integers

    def part(self, low: int, high: int) -> "_Pairs":
        """Return some of them."""
        return _Pairs(self.move[low:high], self.first[low:high], self.begin[low:high], self.stop[low:high])

    @classmethod
    def joined(cls, run: Sequence["_Pairs"]) -> "_Pairs":
        """Return the stages of several first layers together."""
        columns = ([getattr(one, name) for one in run] for name in ("move", "first", "begin", "stop"))
        return cls(*map(np.concatenate, columns))

    @property
    def widths(self) -> Integers:
        """Return the numbers of ends."""
        return self.stop - self.begin


@dataclass(frozen=True, slots=True)
class _Moves:
    """A state's devices used and a choice for the stage that starts there, of every source; ordered by state.

    ``furthest``, by choice and first layer: behind which layer a stage ends at most.
    """

    source: Integers
    state: Integers  # of all sources, those of the first one first
    choice: Integers
    place: Integers
    after: Integers  # the state behind the stage
    earliest: Integers  # the layer behind it, at least
    least: Integers  # its first layer, from
    most: Integers  # to
    furthest: Integers

    def __len__(self) -> int:
        return len(self.state)

    @classmethod
    def all(cls, costs: PipelineCosts, stack: Stack, grid: _Grid, cutoff: float) -> "_Moves":
        """Return all states with the choices that are left in them, and the layers that the cutoff leaves for both."""
        units, shape, used = np.array(grid.units), np.array(grid.shape), grid.used
        types = np.array([one.type_index for one in costs.choices])
        sizes = np.array([one.num_devices for one in costs.choices]) // units[types]
        state, choice = np.nonzero(used[types].T + sizes < shape[types])
        source = stack.sources[choice]
        if len(stack) > 1:
            order = np.argsort(source * grid.size + state, kind="stable")
            source, state, choice = source[order], state[order], choice[order]
        axis = types[choice]
        place = (used[axis, state] * units[axis]) % np.array(costs.num_places)[axis]
        after = state + sizes[choice] * np.array(grid.strides)[axis]
        first = source * grid.size
        least, most = _layers_left(costs, stack, grid, cutoff)
        return cls(
            source,
            first + state,
            choice,
            place,
            first + after,
            least[source, after],
            least[source, state],
            most[source, state],
            _furthest(costs, stack, cutoff),
        )

    def pairs(self, num_layers: int) -> Iterator[_Pairs]:
        """Yield the stages that may start at a layer, those of the last layers first; none of layers without any."""
        together = max(1, _MOST_PAIRS // max(1, len(self)))
        for high in range(num_layers, 0, -together):
            yield from reversed(self._pairs(max(0, high - together), high))

    def _pairs(self, low: int, high: int) -> list[_Pairs]:
        """Return the stages that may start at the layers from ``low`` to before ``high``, by layer."""
        firsts = np.arange(low, high)[:, None]
        begins = np.maximum(self.earliest, firsts + 1)
        stops = self.furthest[self.choice, firsts] + 1
        rows, move = np.nonzero((begins < stops) & (self.least <= firsts) & (firsts <= self.most))
        found = _Pairs(move, rows + low, begins[rows, move], stops[rows, move])
        ends = np.searchsorted(rows, np.arange(high - low + 1)).tolist()
        return [found.part(begin, stop) for begin, stop in pairwise(ends) if begin < stop]


def _layers_left(costs: PipelineCosts, stack: Stack, grid: _Grid, cutoff: float) -> tuple[Integers, Integers]:
    """Return, by source and state, the first layer of a stage that starts in it: from, and to."""
    num_layers, shape = costs.num_layers, (len(stack), grid.size)
    if cutoff == np.inf or costs.work_s is None:
        return np.zeros(shape, dtype=np.int64), np.full(shape, num_layers - 1)
    rest_s = _most_done_s(costs, grid.most_left, cutoff)
    works_s = _works_s(stack, costs.work_s)
    least = np.array([np.searchsorted(one, one[-1] - rest_s, side="left") for one in works_s])
    most = np.full(shape, num_layers - 1)
    if max(grid.units) == 1:  # else more may be used than this
        done_s = _most_done_s(costs, grid.used, cutoff)
        reached = np.array([np.searchsorted(one, done_s, side="right") for one in works_s])
        most = np.minimum(reached - 1, most)
    return least, most


def _works_s(stack: Stack, work_s: Floats) -> Floats:
    """Return, by source, the work of an iteration in front of every layer."""
    return np.array(stack.num_microbatches)[:, None] * np.atleast_2d(work_s)


def _most_done_s(costs: PipelineCosts, devices: Integers, cutoff: float) -> Floats:
    """Return the work that so many devices of every type, along the first axis, can do until the cutoff."""
    done_s: Floats = np.asarray(costs.speeds, dtype=np.float64) @ devices * (cutoff * (1 + _ROUNDING))
    return done_s


def _furthest(costs: PipelineCosts, stack: Stack, cutoff: float) -> Integers:
    """Return, by choice and first layer, behind which layer a stage ends at most: a longer one computes beyond T."""
    if cutoff == np.inf or (line_s := costs.line_s) is None:
        return np.full((len(costs.choices), costs.num_layers), costs.num_layers)
    most_s = cutoff * (1 + _ROUNDING) / np.array(stack.num_microbatches)[stack.sources]
    rows = zip(line_s, line_s[:, :-1] + most_s[:, None], strict=True)
    return np.array([np.searchsorted(one_s, until_s, side="right") - 1 for one_s, until_s in rows])


# The tables


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
    grid: _Grid
    schedule: Schedule
    is_complete: bool

    def state(self, used: Sequence[Integers]) -> Integers:
        """Return the index of the devices used of each type: by the units that are left of them.

        Parameters
        ----------
        used
            Devices by type; arrays of one shape.
        """
        grid, index = self.grid, np.zeros((), dtype=np.int64)
        for one, number, unit, size, stride in zip(
            used, grid.num_devices, grid.units, grid.shape, grid.strides, strict=True
        ):
            index = index + (size - 1 - (number - one) // unit) * stride
        return index

    def behind(self, num_left: Integers, ends: Integers, used: Sequence[Integers], out_s: Floats) -> _Behind:
        """Return what lies behind stages, boundary included; arrays broadcast.

        Parameters
        ----------
        num_left
            Stages behind each; 0 where the tables leave their number open.
        ends
            Layers behind them.
        used
            Devices used by type, their own included.
        out_s
            (2, ...) least seconds of the boundary behind them.
        """
        at = self.entries[:, num_left, ends, self.state(used)]
        return _behind_of(_Tail(*at[:3]), out_s[0], out_s[1], self.schedule).at_least(_Behind(*at[3:]))


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
    Entries by stages left, layer and state; moves by state and choice, all of whose arrays count; and by choice and
    layer how far a stage reaches and what a boundary behind or before it takes, with what that is worked out from.
    """
    states, choices = _Grid.of(costs).size, len(costs.choices)
    entries = 7 * (num_stages + 1) * (costs.num_layers + 1) * len(stack) * states
    moves = _ARRAYS_OF_MOVES * states * choices
    reach = (3 + _ARRAYS_OF_SIDES * max(costs.num_places)) * choices * (costs.num_layers + 1)
    return _BYTES * (entries + moves + reach)


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
        Entries at or above it are ``inf``.
    allowed
        By number of devices used of each type: whether so many may be used in all; None: all may. Only with units of 1.

    Attributes
    ----------
    num_tried
        Stages that the cutoff left to be looked at.
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
        self._grid = _Grid.of(costs)
        self.entries = np.full((7, num_stages + 1, costs.num_layers + 1, len(stack) * self._grid.size), np.inf)
        last = 0.0 if allowed is None else np.where(allowed.reshape(-1), 0.0, np.inf)
        self.entries[:, 0, -1] = np.tile(np.broadcast_to(last, self._grid.size), len(stack))
        self._flat = self.entries.reshape(7, num_stages + 1, -1)  # the same numbers: by layer and state together
        self._moves = _Moves.all(costs, stack, self._grid, cutoff)
        self.num_tried = 0
        self.is_complete = self._fill(search)

    def of(self, source: int) -> TablesOfOne:
        """Return the tables of one source.

        Parameters
        ----------
        source
            Its index in the stack.
        """
        begin, size = source * self._grid.size, self._grid.size
        part = self.entries[..., begin : begin + size]
        return TablesOfOne(part, self._grid, self.stack.schedule(source), self.is_complete)

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

    # -- the entries -------------------------------------------------------------------------------------------------

    def _fill(self, search: Search) -> bool:
        """Fill the tables from the last layer to the first; return whether there was time."""
        most = max(1, _MOST_AT_ONCE // len(self.left))
        for run in self._runs(self._moves.pairs(self.costs.num_layers)):
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
        widths, costs, moves = pairs.widths, self.costs, self._moves
        which = np.repeat(np.arange(len(widths)), widths)
        self.num_tried += len(which)
        ends = np.arange(len(which)) - np.repeat(np.cumsum(widths) - widths - pairs.begin, widths)
        move = pairs.move[which]
        after = ends * self.entries.shape[-1] + moves.after[move]
        # Nothing can follow most of them: the end of all work is known for few states, and the cutoff leaves fewer.
        is_alive = np.isfinite(self._flat[2][self._after, after]).any(axis=0)
        if not is_alive.any():
            return None
        which, ends, move, after = which[is_alive], ends[is_alive], move[is_alive], after[is_alive]
        first, choice, place = pairs.first[which], moves.choice[move], moves.place[move]
        found, schedules = costs.stages(first, ends - 1, choice, place), self.stack.schedules(moves.source[move])
        # As if nothing stood behind them, they are below the cutoff, and some micro-batches fit.
        m = schedules.num_microbatches
        least_s = m * (found.forward_s + found.backward_s) + found.flush_s
        held = m if self.stack.is_gpipe else 1
        may_be = (least_s <= self.cutoff * (1 + _ROUNDING)) & (found.most_in_flight >= held)
        if not may_be.any():
            return None
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

    @property
    def _after(self) -> slice:
        """Numbers of stages that may be left behind one."""
        return slice(0, 1 if self.is_open else len(self.left))

    def _add(self, stages: _Stages) -> None:
        """Lower the entries that some stages lead to."""
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
        behind = _behind_of(_Tail(*at[:3]), out_s, back_s, schedules).at_least(_Behind(*at[3:]))
        in_flight = schedules.in_flight(self.left[left])
        tail = _stage_of(forward_s, backward_s, stages.flush_s[column], behind, in_flight, schedules)
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
        before = _behind_of(_Tail(*best), stages.in_s[0], stages.in_s[1], schedules)
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


# The search


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
        self._types = np.array([one.type_index for one in costs.choices])
        self._sizes = np.array([one.num_devices for one in costs.choices])
        if tables is None:
            most, stack = 0 if is_open else max(numbers_of_stages), Stack.of(schedule, costs)
            tables = Tables(costs, stack, most, search, cutoff, allowed).of(0)
        self._tables = tables
        self.is_too_large = False
        self._open: OpenBoxes[_Node] = OpenBoxes()
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
        return self._open.bound

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
        while self._open.bound < cutoff and self._open.bound <= until and not self.search.is_over:
            if self.is_too_large:
                return None
            bound, node = self._open.pop()
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

        Parameters
        ----------
        number
            Roots that are followed.
        """
        candidates = []
        for root in [node for _, node in self._open.in_order() if not node.stages][:number]:
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
                candidates.append(Candidate(bound=bound, stages=node.stages))
        return candidates

    def _push(self, bound: float, node: _Node, cutoff: float) -> None:
        """Keep a node that may still beat the best answer; first in, first out among equals."""
        if bound < cutoff:
            self._open.add(bound, node)

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
        self.is_too_large = len(self._open) + len(rows) > _MOST_NODES
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
        tail = _stage_of(found.forward_s, found.backward_s, found.flush_s, behind, in_flight, self.schedule)
        sent = np.zeros((2, len(choices)))
        if node.stages:
            sent = costs.boundary_s(first, node.stages[-1].choice, node.place, choices, places)
        work_s = np.array([found.forward_s, found.backward_s])
        held = [int(self._in_flight(node, index)) for index in range(position)]
        prefix = _Prefix(node.columns, node.sent, held)
        bounds = _through(
            prefix,
            tail,
            work_s,
            found.flush_s,
            sent[:, :, None],
            int(in_flight),
            self.schedule,
            is_closed=node.num_stages > 0,
        )
        if not node.stages:
            bounds = np.maximum(bounds, costs.floor_s[choices][:, None])
        least = in_flight if node.num_stages or self.schedule.is_gpipe else 1
        bounds = np.where(found.most_in_flight >= least, bounds, np.inf)
        return _Next(choices, places, sent, found, bounds)

    def _in_flight(self, node: _Node, position: int) -> Integers:
        """Return K of a stage, relaxed to m where the number of stages is open."""
        left = node.num_stages - position if node.num_stages else self.schedule.num_microbatches
        return self.schedule.in_flight(np.array(left))
