"""A bound of all pipelines of a line of layers at once: what bubbles cost where memory forces many stages.

Sets and data: layers ``0..L-1`` with ``t`` seconds of a sample, forward and backward, on a device of speed 1; devices
whose speeds sum up to N; a batch of B samples in m micro-batches of at most ``b = ceil(B / m)``; for each run of layers
the micro-batches in flight that one device could hold.

Variables: p stages, their cuts, and the replicas of each; ``w_k`` are the seconds of a micro-batch in stage k. A
replica has at least one sample, and r of them share b: ``w_k >= t_k``, ``w_k >= b t_k / r_k``, ``sum r_k <= N``, and at
most b replicas each, so that ``N_p = min(N, p b fastest)`` of them count.

The bound. By the terms (1) and (4) of :mod:`planner.solvers.chain_bounds`, with A the sum of w before stage s, X the
sum behind it, and ``K = min(m, p - s + 1)`` micro-batches in flight, no iteration is below

- 1F1B, ``K < m``: ``A + (m - K + 1) w_s + 2 X``; ``K = m``: ``A + (m + 1) / 2 w_s + X``, the mean of two terms;
- GPipe: ``A + m w_s + X``.

The mean over all stages is ``sum c_k w_k`` with ``c_k = (p - k + sum of X's factors before k + w_k's factor) / p``, and
by Cauchy and Schwarz ``(sum c_k w_k) (sum b t_k / w_k) >= b (sum sqrt(c_k t_k))**2``; so no iteration is below
``b (sum sqrt(c_k t_k))**2 / N_p``. The least sum over all cuts is a recursion over the layers, from the last one.

*Many m at once.* Of all m from ``low`` to ``high`` one bound is given. ``c_k / m`` falls with m where ``m > p``; where
not, the terms of ``K = m`` are taken for all stages (with ``K < m`` they hold, too: they are less than the mean of the
first terms and ``A + m w_s``), and fall likewise. So the lesser of the values at ``high`` and ``min(high, p)`` counts.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search

Integers = NDArray[np.int64]


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
        """Return the micro-batches in flight in a stage, by the number of stages from it to the last."""
        m = self.num_microbatches
        return np.full_like(num_left, m) if self.is_gpipe else np.minimum(num_left, m)

    def part(self, which: Integers | NDArray[np.bool_] | slice) -> "Schedule":
        """Return the schedule of some stages of many: the same for all."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """A :class:`Schedule` of each of many stages: one order, and ``num_microbatches`` by stage."""

    num_microbatches: Integers
    is_gpipe: bool

    def in_flight(self, num_left: Integers) -> Integers:
        """Return the micro-batches in flight; the last axis of what is left goes by stage, or is 1."""
        m = self.num_microbatches
        if self.is_gpipe:
            return np.broadcast_to(m, np.broadcast_shapes(m.shape, num_left.shape))
        return np.minimum(num_left, m)

    def part(self, which: Integers | NDArray[np.bool_] | slice) -> "Schedules":
        """Return the schedules of some of the stages."""
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
        """Return a stack of one."""
        number, is_gpipe = schedule.num_microbatches, schedule.is_gpipe
        return cls(num_microbatches=(number,), num_choices=(len(costs.choices),), is_gpipe=is_gpipe)

    def __len__(self) -> int:
        return len(self.num_microbatches)

    def schedule(self, source: int) -> Schedule:
        """Return the schedule of a source."""
        return Schedule(num_microbatches=self.num_microbatches[source], is_gpipe=self.is_gpipe)

    def schedules(self, sources: Integers) -> Schedule | Schedules:
        """Return the schedule of each of many stages, by their sources; one for all where there is but one."""
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
        """Return some of the stages."""
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
    def floor_s(self) -> Floats:
        """(C,): no pipeline whose first stage runs by this choice takes less."""
        ...

    def stages(self, firsts: Integers, lasts: Integers, choices: Integers, places: Integers, /) -> StageSeconds:
        """Return what stages take."""
        ...

    def out_s(self, lasts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return (2, ...) seconds that no boundary behind a stage is below, of one micro-batch, forward and back.

        0 behind the last layer.
        """
        ...

    def in_s(self, firsts: Integers, choices: Integers, places: Integers, /) -> Floats:
        """Return (2, ...) seconds that no boundary before a stage is below; 0 before the first layer."""
        ...

    def boundary_s(self, cut: int, left: int, place: int, rights: Integers, places: Integers, /) -> Floats:
        """Return (2, len(rights)) seconds of a micro-batch over the cut before layer ``cut``, forward and back.

        From a stage by choice ``left`` whose first device stands at ``place`` to one by each of the choices ``rights``,
        whose first devices stand at ``places``; one of the same type has the devices that follow.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A complete configuration and the lower bound of its makespan."""

    bound: float
    stages: tuple[Stage, ...]


_MOST_WORK = 1e7  # of one recursion
_PIPELINE_LEAST_ROUNDING = 1 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of layers and the devices for it.

    Attributes
    ----------
    work_s
        (L,) device-seconds of a sample of each layer, both ways.
    most_in_flight
        (L, L): micro-batches of one sample that fit on a device with layers i to j, both included.
    speed
        Of all devices together.
    fastest
        Speed of the fastest device.
    """

    work_s: Floats
    most_in_flight: Integers
    speed: float
    fastest: float

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.work_s)

    @property
    def width(self) -> int:
        """Layers that a stage holds at most."""
        firsts, lasts = np.nonzero(self.most_in_flight > 0)
        return int((lasts - firsts).max(initial=-1)) + 1


def least_s(line: Line, batch: int, low: int, high: int, numbers_of_stages: Sequence[int]) -> float:
    """Return seconds that no iteration with ``low`` to ``high`` micro-batches is below, GPipe or 1F1B.

    ``inf`` where no cut fits in memory; 0 where the recursion would take too long.

    >>> line = Line(work_s=np.ones(2), most_in_flight=np.diag([9, 9]), speed=2.0, fastest=1.0)
    >>> round(least_s(line, 4, 4, 4, [1, 2]), 2)  # each layer is a stage: a bubble of one micro-batch beside four
    4.95
    """
    most = max(numbers_of_stages, default=0)
    if most * most * line.num_layers * line.width > _MOST_WORK:
        return 0.0
    numbers = np.array(sorted(numbers_of_stages))
    least = np.inf
    for is_gpipe in (False, True):
        sums = _least_sums(line, numbers, low, high, is_gpipe=is_gpipe)
        useful = np.minimum(line.speed, numbers * ceil(batch / low) * line.fastest)
        least = min(least, float((batch * sums**2 / useful).min(initial=np.inf)))
    return least * _PIPELINE_LEAST_ROUNDING


def fits(line: Line, low: int, numbers_of_stages: Collection[int]) -> bool:
    """Whether some cut fits in memory under 1F1B, with ``low`` micro-batches or more of one sample each.

    That is less than any of these pipelines holds, interleaved ones apart. How many devices there are is not asked.

    >>> line = Line(work_s=np.ones(2), most_in_flight=np.diag([1, 1]), speed=2.0, fastest=1.0)
    >>> fits(line, 1, [2]), fits(line, 2, [2])
    (True, False)
    """
    num_layers = line.num_layers
    rest_fits = np.zeros(num_layers + 1, dtype=bool)  # from a layer on, with the stages behind
    rest_fits[-1] = True
    for behind in range(max(numbers_of_stages, default=0)):
        stage_fits = line.most_in_flight >= min(low, behind + 1)
        rest_fits = np.append((stage_fits & rest_fits[1:]).any(axis=1), False)
        if rest_fits[0] and behind + 1 in numbers_of_stages:
            return True
    return False


def _least_sums(line: Line, numbers: Integers, low: int, high: int, *, is_gpipe: bool) -> Floats:
    """Return, by number of stages, the least sum of ``sqrt(c_k t_k / m)`` over all cuts that fit."""
    num_layers, width = line.num_layers, max(line.width, 1)
    sums = np.concatenate(([0.0], np.cumsum(line.work_s)))
    firsts, ends = np.arange(num_layers)[:, None], np.arange(num_layers)[:, None] + np.arange(1, width + 1)[None, :]
    inside = ends <= num_layers
    ends = np.minimum(ends, num_layers)
    root_s = np.where(inside, np.sqrt(np.maximum(sums[ends] - sums[firsts], 0.0)), np.inf)
    room = np.where(inside, line.most_in_flight[firsts, ends - 1], 0)
    found = np.full(len(numbers), np.inf)
    left = np.full((len(numbers), num_layers + 1), np.inf)  # from a layer on, with the stages behind
    left[:, -1] = 0.0
    for behind in range(int(numbers[-1])):
        held = low if is_gpipe else min(low, behind + 1)
        root = np.where(room >= max(held, 1), root_s, np.inf)
        factors = np.sqrt(_factors(numbers, numbers - behind, low, high, is_gpipe=is_gpipe))
        after = left[:, ends]
        with np.errstate(invalid="ignore"):
            best = (factors[:, None, None] * root[None] + after).min(axis=2)
        left = np.concatenate((best, np.full((len(numbers), 1), np.inf)), axis=1)
        is_done = numbers == behind + 1
        found[is_done] = left[is_done, 0]
    return found


def _factors(numbers: Integers, stage: Integers, low: int, high: int, *, is_gpipe: bool) -> Floats:
    """Return ``c_k / m`` by number of stages p, for stage k counted from 1.

    Before the first stage it is as of the first, so that the recursion may run on for numbers that are done.
    """
    k = np.maximum(stage, 1)
    if is_gpipe:
        return (numbers - 1 + high) / (high * numbers)
    few = np.minimum(high, numbers)
    beside = (numbers - 1 + (few + 1) / 2) / few
    plain = (high + 2 * k - 2) / high
    is_plain = low > numbers
    is_beside = high <= numbers
    return np.where(is_plain, plain, np.where(is_beside, beside, np.minimum(plain, beside))) / numbers


# --- Pipelines over a line of layers: what is chosen, and a lower bound of what it takes
# Sets and data: layers ``0..L-1`` in order; device types ``t`` with ``N_t`` devices, ``A_t`` on a machine, handed out
# in
# order; choices ``c``: a stage on ``r_c`` devices of type ``t_c``; micro-batches ``m``. A stage from layer i to layer j
# by choice c has, for one micro-batch, seconds ``f`` forward and ``b`` backward, and ``y`` once at its end (exchange of
# gradients and update); a boundary between two stages has ``cf`` and ``cb`` for one micro-batch forward and back; ``k``
# micro-batches in flight fit in the memory of a stage.
#
# Variables: the number of stages n, the last layer of each, its choice. Constraints: every layer in one stage, stages
# in order; at most ``N_t`` devices of a type; the micro-batches in flight, ``m`` under GPipe and ``min(m, n - s)`` in
# stage s of n under 1F1B, fit.
# Objective: the makespan of the schedule, which only its simulation gives; here a lower bound of it is minimised, and
# :class:`BestFirst` yields configurations in the order of their bounds, so that simulating them until the next bound is
# no better than the best simulated one proves that one optimal.
#
# The bound, from the last stage to the first. ``R(s)``: seconds of one micro-batch from its forward in stage s to the
# end of its backward there; ``F(s)``: seconds from the first forward of stage s to the end of its last backward;
# ``E(s)``: to the end of what every stage from s on does after its last backward. With ``w = f + b`` of stage s,
# ``X = cf + R(s+1) + cb`` (0 for the last stage), ``K`` its micro-batches in flight, ``q = ceil(m / K)``:
#
# - ``R(s) = w + X``.
# - ``F(s)`` is the greatest of
# (1) 1F1B, ``K < m``: ``max(K f, f + X) + (m - K) w + max(K b, X + b)``. The device starts with K forwards, and its
# first backward starts no earlier than X after its first forward; likewise at the end, mirrored; in between come
# ``m - K`` of each. ``K = m``: ``max(m f, f + X) + m b`` and ``m f + max(m b, X + b)``. GPipe: ``m w + X``: the last
# stage's backwards start after its last forward;
# (2) ``(m - 1 - (q - 1) K) f + q R(s)`` under 1F1B: the forward of micro-batch j + K follows the backward of j;
# (3) ``w + X + (m - 1) max(cf, cb)``, under GPipe ``w + X + (m - 1)(cf + cb)``: a channel sends one at a time, and
# under GPipe it sends no error before the last output has arrived;
# (4) ``w + cf + cb + F(s+1)``: before the first forward of stage s + 1 and after its last backward, one micro-batch
# passes stage s and the boundary.
# - Of known stages in front of what is still open, two terms more. 1F1B, ``K(s) < m``, stages s to s + d: the
# backward of
# micro-batch j in stage s goes before the forward of ``j + K(s)``, that one's forward in stage s + d before the
# backward of ``j + d + 1`` there, which then passes back to s. So d + 1 micro-batches take at least ``Z = sum w + sum
# (cf + cb)`` of these stages and the boundaries between them; ``F(s) >= 2 R(s) + j0 b + t Z`` with ``t`` and ``j0`` the
# quotient and the rest of ``(m - 1 - K(s)) / (d + 1)``. GPipe: ``E(0) >= R(0) + (m - 1) (max(f, cf) + max(b, cb))``,
# each greatest over all stages: forwards go as one line, and then backwards.
# - ``E(s) = max(F(s) + y, f + cf + E(s+1))``. The bound of a configuration is ``E(0)``, or what its first stage takes
# at least, e.g. to read its samples.
#
# Each term sums durations along a chain of tasks of which each waits for the one before, by the order of a device or a
# channel or by its input; so no timing of the fixed orders, and hence no simulation, is below it. All terms rise
# with all their arguments, so the principle of optimality holds: with least R, F, E of the stages behind a cut (each by
# itself), the recursion bounds whatever is put before them. Boundaries: the tables know one side only, so both sides
# bound it, the stage before by ``out`` and the one behind by ``in``; a configuration is given its true boundary.


@dataclass(frozen=True, slots=True)
class Tail:
    """R, F and E of a stage and all behind it, as arrays of any one shape."""

    round_trip_s: Floats
    finish_s: Floats
    flushed_s: Floats


@dataclass(frozen=True, slots=True)
class Behind:
    """What lies behind a stage, boundary included: X, F, E, and the channel's term (3) less w."""

    trip_s: Floats
    finish_s: Floats
    flushed_s: Floats
    channel_s: Floats

    def at_least(self, other: "Behind") -> "Behind":
        """Return the greater of two bounds of the same."""
        return Behind(
            np.maximum(self.trip_s, other.trip_s),
            np.maximum(self.finish_s, other.finish_s),
            np.maximum(self.flushed_s, other.flushed_s),
            np.maximum(self.channel_s, other.channel_s),
        )


def behind_of(tail: Tail, out_s: Floats, back_s: Floats, schedule: Schedule | Schedules) -> Behind:
    """Return what lies behind a boundary of ``cf`` and ``cb``."""
    both_s = out_s + back_s
    sent_s = both_s if schedule.is_gpipe else np.maximum(out_s, back_s)
    trip_s = both_s + tail.round_trip_s
    return Behind(
        trip_s,
        both_s + tail.finish_s,
        out_s + tail.flushed_s,
        trip_s + (schedule.num_microbatches - 1) * sent_s,
    )


_ZERO = np.zeros(())
NOTHING = Behind(_ZERO, _ZERO, _ZERO, _ZERO)


def stage_of(
    forward_s: Floats,
    backward_s: Floats,
    flush_s: Floats,
    behind: Behind,
    in_flight: Integers,
    schedule: Schedule | Schedules,
) -> Tail:
    """Return the recursion for one stage; ``in_flight`` is K."""
    m, trip_s, work_s = schedule.num_microbatches, behind.trip_s, forward_s + backward_s
    round_trip_s = work_s + trip_s
    if schedule.is_gpipe:
        own_s = m * work_s + trip_s
    else:
        last_s = trip_s + backward_s
        lead_s = np.maximum(in_flight * forward_s, forward_s + trip_s)
        drain_s = np.maximum(in_flight * backward_s, last_s)
        middle_s = (m - in_flight) * work_s
        all_s = np.maximum(lead_s + m * backward_s, m * forward_s + drain_s)
        own_s = np.where(in_flight < m, lead_s + middle_s + drain_s, all_s)
        turns = -(-m // in_flight)
        own_s = np.maximum(own_s, (m - 1 - (turns - 1) * in_flight) * forward_s + turns * round_trip_s)
    finish_s = np.maximum(own_s, work_s + np.maximum(behind.finish_s, behind.channel_s))
    return Tail(round_trip_s, finish_s, np.maximum(finish_s + flush_s, forward_s + behind.flushed_s))


@dataclass(frozen=True, slots=True)
class Prefix:
    """Known stages, first to last: f, b and y by stage, cf and cb by boundary between them, K by stage."""

    columns: Sequence[tuple[float, float, float]]
    sent: Sequence[tuple[float, float]]
    in_flight: Sequence[int]


def through(prefix: Prefix, tail: Tail, work_s: Floats, sent: Floats, schedule: Schedule, *, is_closed: bool) -> Floats:
    """Return E(0) where ``tail`` stands behind known stages.

    Parameters
    ----------
    tail, work_s
        R, F and E from the stage behind on, and its f and b.
    sent
        cf and cb between them.
    is_closed
        Whether the number of stages, and so K, is known.
    """
    m = schedule.num_microbatches
    out_s, back_s = sent
    greatest = work_s
    spans = [work_s[0] + work_s[1]]  # of the stages from s to each of those behind, boundaries between them included
    for position in reversed(range(len(prefix.columns))):
        f, b, y = (np.array(one) for one in prefix.columns[position])
        in_flight = np.array(prefix.in_flight[position])
        behind = behind_of(tail, out_s, back_s, schedule)
        tail = stage_of(f, b, y, behind, in_flight, schedule)
        spans = [f + b, *(f + b + out_s + back_s + one for one in spans)]
        if schedule.is_gpipe:
            greatest = np.array(
                [np.maximum(greatest[0], np.maximum(f, out_s)), np.maximum(greatest[1], np.maximum(b, back_s))]
            )
        elif is_closed and in_flight < m:
            for size, span_s in enumerate(spans, start=1):
                turns, rest = divmod(m - 1 - prefix.in_flight[position], size)
                finish_s = np.maximum(tail.finish_s, 2 * tail.round_trip_s + rest * b + turns * span_s)
                tail = Tail(tail.round_trip_s, finish_s, np.maximum(tail.flushed_s, finish_s + y))
        if position:
            out_s, back_s = (np.array(one) for one in prefix.sent[position - 1])
    if schedule.is_gpipe:
        line_s: Floats = tail.round_trip_s + (m - 1) * (greatest[0] + greatest[1])
        return np.asarray(np.maximum(tail.flushed_s, line_s))
    return tail.flushed_s


def bound_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_transfer_s: Sequence[float],
    backward_transfer_s: Sequence[float],
    flush_s: Sequence[float],
    schedule: Schedule,
) -> float:
    """Return ``E(0)``, which no simulation of these stages is below.

    >>> bound_s([2, 1], [2, 1], [0], [0], [0, 0], Schedule(num_microbatches=2))
    8.0
    """
    n = len(forward_s)
    held = schedule.in_flight(np.arange(n, 0, -1)).tolist()
    columns = list(zip(forward_s, backward_s, flush_s, strict=True))
    sent = list(zip(forward_transfer_s, backward_transfer_s, strict=True))
    last = [np.array(one, dtype=np.float64) for one in columns[-1]]
    tail = stage_of(last[0], last[1], last[2], NOTHING, np.array(held[-1]), schedule)
    prefix = Prefix(columns[:-1], sent, held[:-1])
    between = np.array(sent[-1] if sent else (0.0, 0.0), dtype=np.float64)
    return float(through(prefix, tail, np.array(last[:2]), between, schedule, is_closed=True))


# --- Whether a line of layers fits on devices at all, and on how few: stages, their devices, and nothing about time
# Sets and data: layers ``0..L-1`` in order, device types t with ``N_t`` devices. A stage of layers i to j that has k
# stages from it to the last, itself included, needs at least ``r_t(k, i, j)`` devices of type t, or fits on none.
#
# Variables: the number of stages n, the last layer of each, its type and its devices. Constraints: every layer in one
# stage, stages in order; a stage has at least the devices that it needs; at most ``N_t`` of a type in all.
#
# ``D(k, i, w)`` is the fewest devices of the first type on which layers i to the last fit in exactly k stages, where
# they may use ``w_t`` devices of each other type:
#
#     ``D(0, L, w) = 0``; ``D(k, i, w) = min over j of  r_0(k, i, j) + D(k - 1, j + 1, w)
#     and, for the other types, D(k - 1, j + 1, w - r_t(k, i, j) e_t)``.
#
# As a stage may have more devices than it needs, any configuration gives one with the fewest of each stage, so this is
# exact: n stages fit if and only if ``D(n, 0, N) <= N_0``. Work: ``O(n L^2 T prod over the other types of (N_t + 1))``.

NONE = 2**40  # devices of a stage that fits on no number of them

_MOST_AT_ONCE = 2_000_000  # numbers in one pass
_MOST_KEPT = 1 << 26  # numbers in all tables: half a gibibyte

Needs = Callable[[int, Integers], Integers]


class FewestDevices:
    """The tables D, one number of stages after the other.

    Parameters
    ----------
    needs
        Given k and first layers, ``r_t(k, i, j)`` by type, first layer and last layer 0 to L - 1, ``NONE`` where no
        number will do; ends before the first layer are ignored.
    search
        Filling a table ends with it.

    Attributes
    ----------
    is_stopped
        Whether a table was not filled, as the search was over or all tables would be too large.
    """

    def __init__(self, num_layers: int, num_devices: Sequence[int], needs: Needs, search: Search | None = None) -> None:
        self.num_layers, self.num_devices, self.needs = num_layers, tuple(num_devices), needs
        self.is_stopped = False
        self._search = search
        self._grid = [number + 1 for number in num_devices[1:]]
        self._strides = [prod(self._grid[axis + 1 :]) for axis in range(len(self._grid))]
        self._budgets = np.indices(self._grid).reshape(len(self._grid), -1) if self._grid else np.zeros((0, 1), int)
        start = np.full((num_layers + 1, prod(self._grid)), NONE)
        start[-1] = 0
        self._tables = [start]

    def add(self) -> bool:
        """Fill the table of one stage more; return whether anything fits in so many stages, or may in still more.

        False, too, where it was not filled.
        """
        self.is_stopped = (len(self._tables) + 1) * self._tables[0].size > _MOST_KEPT
        if self.is_stopped:
            return False
        table = np.full_like(self._tables[-1], NONE)
        step = max(1, _MOST_AT_ONCE // (self.num_layers * table.shape[1]))
        for low in range(0, self.num_layers, step):
            if self._search is not None and self._search.is_over:
                self.is_stopped = True
                return False
            firsts = np.arange(low, min(low + step, self.num_layers))
            for axis, needed in enumerate(self.needs(len(self._tables), firsts)):
                fewest = self._through(len(self._tables), firsts, axis, needed).min(axis=1)
                table[firsts] = np.minimum(table[firsts], fewest)
        self._tables.append(table)
        return bool((table < NONE).any())

    def _through(self, k: int, firsts: Integers, axis: int, needed: Integers) -> Integers:
        """Return the fewest by first layer, last layer and budget, with a first stage of one type."""
        needed = needed[:, :, None]
        behind = self._tables[k - 1][None, 1:]
        if axis:
            left = self._budgets[axis - 1] - needed
            at = np.arange(behind.shape[2]) - np.where(left < 0, 0, needed) * self._strides[axis - 1]
            found = np.where(left < 0, NONE, np.take_along_axis(np.broadcast_to(behind, at.shape), at, axis=2))
        else:
            found = np.minimum(needed + behind, NONE)
        is_run = np.arange(self.num_layers)[None, :, None] >= firsts[:, None, None]
        is_few = found <= self.num_devices[0]
        return np.where(is_run & is_few, found, NONE)

    def fewest(self, num_stages: int) -> Integers:
        """Return ways to have so many stages fit, a row each: numbers of devices by type, none of which can be less.

        None of a type but the first counts what is left over: rows hold what may be used, and cover all ways.
        """
        table = self._tables[num_stages][0]
        fits = np.flatnonzero(table < NONE)
        return np.concatenate((table[None, fits], self._budgets[:, fits])).T

    def stages(self, num_stages: int, used: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """Return stages (first, last, type, devices) that fit within a row of :meth:`fewest`; the first such."""
        budget = int(sum(one * stride for one, stride in zip(used[1:], self._strides, strict=True)))
        first, found = 0, []
        for k in range(num_stages, 0, -1):
            firsts, target = np.array([first]), self._tables[k][first, budget]
            needs = self.needs(k, firsts)
            for axis, by_end in enumerate(needs):
                ends = np.flatnonzero(self._through(k, firsts, axis, by_end)[0, :, budget] == target)
                if len(ends):
                    break
            last = int(ends[0])
            needed = int(needs[axis, 0, last])
            found.append((first, last, axis, needed))
            budget -= needed * self._strides[axis - 1] if axis else 0
            first = last + 1
        return found


# --- Which stages the tables of pipelines look at: what devices are left for, and what the cutoff leaves
# Devices whose speeds sum up to S do at most ``S T`` of work in an iteration below the cutoff T. So the layers before a
# state fit the devices used, those behind it fit the others, and those of a stage fit its own; with T near the time
# that
# all devices need together, few devices used are left for each layer, and few ends for each stage.

_MOST_PAIRS = 1_000_000  # moves times layers that are looked at together
_PIPELINE_MOVES_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Grid:
    """States of one source: devices used of each type, by the units that are left of them.

    ``shape``: numbers of units that may be used, by type; ``strides``: between states that differ in one unit.
    """

    num_devices: tuple[int, ...]
    units: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, costs: PipelineCosts) -> "Grid":
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
class Pairs:
    """Moves with first layers: stages that start at ``first`` and end before ``begin``, ..., ``stop - 1``."""

    move: Integers
    first: Integers
    begin: Integers
    stop: Integers

    def part(self, low: int, high: int) -> "Pairs":
        """Return some of them."""
        return Pairs(self.move[low:high], self.first[low:high], self.begin[low:high], self.stop[low:high])

    @property
    def widths(self) -> Integers:
        """Return the numbers of ends."""
        return self.stop - self.begin


def joined(run: Sequence[Pairs]) -> Pairs:
    """Return the stages of several first layers together."""
    return Pairs(
        np.concatenate([one.move for one in run]),
        np.concatenate([one.first for one in run]),
        np.concatenate([one.begin for one in run]),
        np.concatenate([one.stop for one in run]),
    )


@dataclass(frozen=True, slots=True)
class Moves:
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
    def all(cls, costs: PipelineCosts, stack: Stack, grid: Grid, cutoff: float) -> "Moves":
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

    def pairs(self, num_layers: int) -> Iterator[Pairs]:
        """Yield the stages that may start at each layer, last layers first."""
        together = max(1, _MOST_PAIRS // max(1, len(self)))
        for high in range(num_layers, 0, -together):
            yield from reversed(self._pairs(max(0, high - together), high))

    def _pairs(self, low: int, high: int) -> list[Pairs]:
        """Return the stages that may start at the layers from ``low`` to before ``high``, by layer."""
        firsts = np.arange(low, high)[:, None]
        begins = np.maximum(self.earliest, firsts + 1)
        stops = self.furthest[self.choice, firsts] + 1
        rows, move = np.nonzero((begins < stops) & (self.least <= firsts) & (firsts <= self.most))
        found = Pairs(move, rows + low, begins[rows, move], stops[rows, move])
        ends = np.searchsorted(rows, np.arange(high - low + 1)).tolist()
        return [found.part(begin, stop) for begin, stop in pairwise(ends)]


def _layers_left(costs: PipelineCosts, stack: Stack, grid: Grid, cutoff: float) -> tuple[Integers, Integers]:
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
    done_s: Floats = np.asarray(costs.speeds, dtype=np.float64) @ devices * (cutoff * (1 + _PIPELINE_MOVES_ROUNDING))
    return done_s


def _furthest(costs: PipelineCosts, stack: Stack, cutoff: float) -> Integers:
    """Return, by choice and first layer, behind which layer a stage ends at most."""
    if cutoff == np.inf or costs.work_s is None:
        return np.full((len(costs.choices), costs.num_layers), costs.num_layers)
    able = np.array([one.num_devices * costs.speeds[one.type_index] for one in costs.choices])
    most_s = able[:, None] * (cutoff * (1 + _PIPELINE_MOVES_ROUNDING))
    ends = np.cumsum((0, *stack.num_choices))
    found = [
        np.searchsorted(work_s, work_s[:-1] + most_s[low:high], side="right") - 1
        for work_s, (low, high) in zip(_works_s(stack, costs.work_s), pairwise(ends.tolist()), strict=True)
    ]
    return np.concatenate(found)
