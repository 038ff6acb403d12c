"""A lower bound of what a pipeline takes: GPipe's exactly, 1F1B's closely; of many pipelines at once.

Of stage s of n, for one of m micro-batches: seconds ``f`` forward and ``b`` backward, ``w = f + b``, and once, after
the last backward, ``y``. A boundary behind it takes ``cf`` and ``cb``. ``K`` micro-batches are in flight in it: m under
GPipe, ``min(m, n - s)`` under 1F1B.

A *rest* is what a pipeline takes from a point of its line on, a stage or a boundary: least seconds from the arrival of
a forward at that point,

- ``R``: of any micro-batch, until its error is back there; ``G``: of the first one; ``H``: of the last one;
- ``F``: of the first one, until the last error is back;
- ``E``: of the first one, until every stage behind the point has done what it does after its last backward;
- ``L``: of the last one, until then.

Behind the last stage all are 0. With those of what lies behind marked by ', a boundary adds

- ``R = cf + cb + R'``, and so G and H; under GPipe ``G >= m cf + cb + R'`` and ``H >= cf + m cb + R'``;
- ``F = max(cf + cb + F', m cf + cb + H', cf + m cb + G')``, as a channel sends one at a time;
- ``E = cf + max(E', (m - 1) cf + L')`` and ``L = cf + L'``;

and a stage

- ``R = w + R'``. ``G = max(K f + b, w + G')`` and ``H = max(f + K b, w + H')``: a device starts with K forwards, and
  ends with K backwards of which the first follows its last forward. Under GPipe ``G = max((m - 1) f + R, w + G')`` and
  ``H = max(R + (m - 1) b, w + H')``: the last forward goes to the end of the line before the first error comes back;
- ``S``, from the start of its first forward to that of its last: ``(m - 1) f``; where ``K < m``,
  ``G + max over d of (t Z + j w)`` with ``t`` and ``j`` the quotient and the rest of ``(m - 1 - K) / (d + 1)``, and Z
  the way from s to stage s + d and back, of w and cf + cb. The backward of micro-batch i in stage s goes before the
  forward of ``i + K``, that one's forward in stage s + d before the backward of ``i + d + 1`` there, as K of that one
  is less by d, which then passes back to s: so d + 1 micro-batches take Z. For d = 0 Z is w, and for the last stage,
  d = K - 1, it is R: these two are always known;
- ``F = max(S + H, G + (m - 1) b, w + F')``;
- ``L = max(H + y, f + L')`` and ``E = max(F + y, f + E', S + L)``.

Of known stages, terms more: micro-batches turn in a stage t behind stage s, with w and K of t, and Z the way there and
back, as above. ``A`` is the slowest task on the way to t from the first stage of all, as the first forward waits for
nobody, and ``B`` the slowest on the way from it back to s. The forward of micro-batch K reaches t after ``K - 1``
slowest tasks, before its first backward; the last one of all goes before the backward of ``m - K + 1``; and errors come
back one slowest task after another. Under 1F1B

- ``G >= Z + (K - 1) A`` and ``H >= Z + (K - 1) B``;
- ``S >= (m - 1) A`` of stage s itself;
- ``F >= Z + max((K - 1) (A + B) + (m - K) w, (m - 1) A + (K - 1) B, (K - 1) A + (m - 1) B)``;
- ``E >= G + q Z + V + r w + L`` with ``r = m - 1 - K`` of stage s less the ``q (d + 1)`` micro-batches of q turns in
  stage s + d, as many as there are or none; V the way from s to any stage t, of f and cf; w and L of t. The forward of
  micro-batch ``m - 1 - r`` in s waits for G and the turns; it reaches t a V later, where a backward goes before each
  of the r forwards that follow, as t has no more micro-batches in flight than s.

Where the number of stages is open, K is 1 to m: G and H have no term of K, S is ``(m - 1) f``, and ``F >= m w``.

The bound of a pipeline is E of its first stage. Each term sums durations along a chain of tasks of which each waits for
the one before, by the order of a device or a channel or by its input; so no timing of the fixed orders, and hence no
simulation, is below it. All terms rise with all their arguments, so the principle of optimality holds: with the least
R, G, H, F, E and L of what may stand behind a point (each by itself), the recursion bounds whatever stands before it.

Sources: the schedules are GPipe's (Y. Huang et al., arXiv:1811.06965) and 1F1B (D. Narayanan et al., SOSP '19,
doi:10.1145/3341301.3359646). The terms are our own: sums along paths of the timed event graph, of which the longest is
the makespan (F. Baccelli, G. Cohen, G. J. Olsder, J.-P. Quadrat, Synchronization and Linearity, 1992, chapter 2).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.frozen import frozen

Integers = NDArray[np.int64]
_Seconds = Floats | float

REST = 6  # rows of a rest: R, G, H, F, E, L
FIRST, LAST, FINISHED, FLUSHED, DRAINED = range(1, REST)  # the rows of G, H, F, E and L
NOTHING = np.zeros(REST)  # behind the last stage


@frozen
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


@frozen
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


def behind_channel(rest: Floats, out_s: _Seconds, back_s: _Seconds, schedule: Schedule | Schedules) -> Floats:
    """Return the rest from a boundary of ``cf`` and ``cb`` on, of that behind it; (6, ...)."""
    more = schedule.num_microbatches - 1
    found = np.concatenate((rest[:FLUSHED] + (out_s + back_s), rest[FLUSHED:] + out_s))
    trip_s, first_s, last_s, finish_s, flushed_s, drained_s = found
    outs_s, backs_s = more * out_s, more * back_s
    if schedule.is_gpipe:
        found[1], found[2] = np.maximum(first_s, trip_s + outs_s), np.maximum(last_s, trip_s + backs_s)
    found[3] = np.maximum(finish_s, np.maximum(found[2] + outs_s, found[1] + backs_s))
    found[4] = np.maximum(flushed_s, outs_s + drained_s)
    return found


@frozen(kw_only=False)
class _Turn:
    """From a stage to one behind it, where micro-batches turn, and back: Z, A and B; w and K of that one."""

    trip_s: _Seconds
    ahead_s: _Seconds
    back_s: _Seconds
    work_s: _Seconds
    in_flight: Integers | int


def behind_stage(
    rest: Floats,
    forward_s: _Seconds,
    backward_s: _Seconds,
    flush_s: _Seconds,
    in_flight: Integers | int,
    schedule: Schedule | Schedules,
    *,
    is_open: bool = False,
    turns: Sequence[_Turn] = (),
) -> Floats:
    """Return the rest from a stage on, of that behind it.

    Parameters
    ----------
    in_flight
        K; m where ``is_open``.
    is_open
        Whether K is unknown: 1 to m.
    turns
        At the stage itself and at those known behind it.
    """
    m, work_s = schedule.num_microbatches, forward_s + backward_s
    behind_trip_s, behind_first_s, behind_last_s, behind_finish_s, behind_flushed_s, behind_drained_s = rest
    trip_s, first_s, last_s = work_s + behind_trip_s, work_s + behind_first_s, work_s + behind_last_s
    start_s = (m - 1) * (turns[0].ahead_s if turns else forward_s)
    finish_s = work_s + behind_finish_s
    if schedule.is_gpipe:
        first_s = np.maximum(first_s, trip_s + start_s)
        last_s = np.maximum(last_s, trip_s + (m - 1) * backward_s)
    elif is_open:
        finish_s = np.maximum(finish_s, m * work_s)
    else:
        first_s = np.maximum(first_s, in_flight * forward_s + backward_s)
        last_s = np.maximum(last_s, forward_s + in_flight * backward_s)
        for one in turns:
            first_s = np.maximum(first_s, one.trip_s + (one.in_flight - 1) * one.ahead_s)
            last_s = np.maximum(last_s, one.trip_s + (one.in_flight - 1) * one.back_s)
            ways_s = (
                (one.in_flight - 1) * (one.ahead_s + one.back_s) + (m - one.in_flight) * one.work_s,
                (m - 1) * one.ahead_s + (one.in_flight - 1) * one.back_s,
                (one.in_flight - 1) * one.ahead_s + (m - 1) * one.back_s,
            )
            finish_s = np.maximum(finish_s, one.trip_s + np.maximum(np.maximum(*ways_s[:2]), ways_s[2]))
        between = np.maximum(m - 1 - in_flight, 0)
        longer_s = np.maximum(trip_s - in_flight * work_s, 0.0)
        between_s = between * work_s + between // in_flight * longer_s
        for size, one in enumerate(turns[1:], start=2):
            number = between // size
            between_s = np.maximum(between_s, number * one.trip_s + (between - number * size) * work_s)
        start_s = np.maximum(start_s, np.where(in_flight < m, first_s + between_s, 0.0))
    finish_s = np.maximum(finish_s, np.maximum(start_s + last_s, first_s + (m - 1) * backward_s))
    drained_s = np.maximum(last_s + flush_s, forward_s + behind_drained_s)
    flushed_s = np.maximum(finish_s + flush_s, np.maximum(forward_s + behind_flushed_s, start_s + drained_s))
    return np.array([trip_s, first_s, last_s, finish_s, flushed_s, drained_s])


def through(
    stages: Sequence[tuple[_Seconds, _Seconds, _Seconds, Integers | int]],
    sent: Sequence[tuple[_Seconds, _Seconds]],
    rest: Floats,
    schedule: Schedule,
    *,
    is_open: bool = False,
) -> Floats:
    """Return E(0) of known stages and the rest behind them.

    Parameters
    ----------
    stages
        f, b, y and K of each.
    sent
        cf and cb by boundary between them.
    """
    m = schedule.num_microbatches
    turns: list[_Turn] = []
    ways: list[tuple[_Seconds, _Seconds, _Seconds]] = []  # V, w and L of stages that are known
    aheads_s: list[_Seconds] = []
    for (f, *_), (out_s, _) in zip(stages, [(0.0, 0.0), *sent], strict=True):
        aheads_s.append(np.maximum(np.maximum(aheads_s[-1], out_s), f) if aheads_s else f)
    for position in reversed(range(len(stages))):
        f, b, y, k = stages[position]
        if position < len(sent):
            out_s, back_s = sent[position]
            rest, both_s = behind_channel(rest, out_s, back_s, schedule), f + b + out_s + back_s
            turns = [
                _Turn(
                    one.trip_s + both_s,
                    one.ahead_s,
                    np.maximum(one.back_s, np.maximum(b, back_s)),
                    one.work_s,
                    one.in_flight,
                )
                for one in turns
            ]
        if not schedule.is_gpipe and not is_open:
            turns = [_Turn(f + b, aheads_s[position], b, f + b, k), *turns]
        rest = behind_stage(rest, f, b, y, k, schedule, is_open=is_open, turns=turns)
        if turns:
            onward_s = f + (sent[position][0] if position < len(sent) else 0.0)
            further = ((way_s + onward_s, work_s, drained_s) for way_s, work_s, drained_s in ways)
            ways = [(0.0 * f, f + b, rest[DRAINED]), *further]
            rest[FLUSHED] = np.maximum(rest[FLUSHED], _turned_s(rest[FIRST], turns, ways, m - 1 - k))
    return np.asarray(rest[FLUSHED])


def _turned_s(
    first_s: _Seconds,
    turns: Sequence[_Turn],
    ways: Sequence[tuple[_Seconds, _Seconds, _Seconds]],
    between: Integers | int,
) -> _Seconds:
    """Return what E of a stage is not below: G, turns of the micro-batches between, and from then on to the end."""
    most = int(np.max(between, initial=0))
    if not most or len(turns) == 1:
        return 0.0
    way_s, work_s, drained_s = map(np.array, zip(*ways, strict=True))
    least_s = (way_s + between * work_s + drained_s).max(axis=0)
    for size, one in enumerate(turns[1:most], start=2):
        number, rest = np.divmod(between, size)
        least_s = np.maximum(least_s, number * one.trip_s + (way_s + rest * work_s + drained_s).max(axis=0))
    return np.where(np.greater(between, 0), first_s + least_s, 0.0)
