"""Pipelines over a line of layers: what is chosen, and a lower bound of what it takes.

Sets and data: layers ``0..L-1`` in order; device types ``t`` with ``N_t`` devices, ``A_t`` on a machine, handed out in
order; choices ``c``: a stage on ``r_c`` devices of type ``t_c``; micro-batches ``m``. A stage from layer i to layer j
by choice c has, for one micro-batch, seconds ``f`` forward and ``b`` backward, and ``y`` once at its end (exchange of
gradients and update); a boundary between two stages has ``cf`` and ``cb`` for one micro-batch forward and back; ``k``
micro-batches in flight fit in the memory of a stage.

Variables: the number of stages n, the last layer of each, its choice. Constraints: every layer in one stage, stages
in order; at most ``N_t`` devices of a type; the micro-batches in flight, ``m`` under GPipe and ``min(m, n - s)`` in
stage s of n under 1F1B, fit.
Objective: the makespan of the schedule, which only its simulation gives; here a lower bound of it is minimised, and
:class:`BestFirst` yields configurations in the order of their bounds, so that simulating them until the next bound is
no better than the best simulated one proves that one optimal.

The bound, from the last stage to the first. ``R(s)``: seconds of one micro-batch from its forward in stage s to the
end of its backward there; ``F(s)``: seconds from the first forward of stage s to the end of its last backward;
``E(s)``: to the end of what every stage from s on does after its last backward. With ``w = f + b`` of stage s,
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
- Of known stages in front of what is still open, two terms more. 1F1B, ``K(s) < m``, stages s to s + d: the backward of
  micro-batch j in stage s goes before the forward of ``j + K(s)``, that one's forward in stage s + d before the
  backward of ``j + d + 1`` there, which then passes back to s. So d + 1 micro-batches take at least ``Z = sum w + sum
  (cf + cb)`` of these stages and the boundaries between them; ``F(s) >= 2 R(s) + j0 b + t Z`` with ``t`` and ``j0`` the
  quotient and the rest of ``(m - 1 - K(s)) / (d + 1)``. GPipe: ``E(0) >= R(0) + (m - 1) (max(f, cf) + max(b, cb))``,
  each greatest over all stages: forwards go as one line, and then backwards.
- ``E(s) = max(F(s) + y, f + cf + E(s+1))``. The bound of a configuration is ``E(0)``, or what its first stage takes
  at least, e.g. to read its samples.

Each term sums durations along a chain of tasks of which each waits for the one before, by the order of a device or a
channel or by its input; so no timing of the fixed orders, and hence no simulation, is below it. All terms rise
with all their arguments, so the principle of optimality holds: with least R, F, E of the stages behind a cut (each by
itself), the recursion bounds whatever is put before them. Boundaries: the tables know one side only, so both sides
bound it, the stage before by ``out`` and the one behind by ``in``; a configuration is given its true boundary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.solvers.pipeline_parts import Integers, Schedule, Schedules

__all__ = ["NOTHING", "Behind", "Prefix", "Tail", "behind_of", "bound_s", "stage_of", "through"]


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
