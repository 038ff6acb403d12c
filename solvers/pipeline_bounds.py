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

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.frozen import frozen

Integers = NDArray[np.int64]
_Seconds = Floats | float

_MOST_STAGES = 24_000  # of pipelines that are bounded at once, and
_MOST_TURNED = 100_000  # numbers that are worked out at once: beyond the processor's cache it gets slower

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
class _Turns:
    """Of stages, the first one of these in the first row, what micro-batches take that turn there.

    Z, A and B from the first one there and back; w of the stage; V of the way there; L from the stage on. What does not
    depend on the first one: ``(K - 1) A``, ``(m - 1) A`` and ``(m - K) w``, and ``K - 1``.
    """

    trip_s: Floats
    ahead_s: Floats
    back_s: Floats
    work_s: Floats
    way_s: Floats
    drained_s: Floats
    held_ahead_s: Floats
    all_ahead_s: Floats
    rest_s: Floats
    more: Floats

    @classmethod
    def at(cls, columns: Floats, held: Integers, sent: Floats, schedule: Schedule | Schedules) -> "_Turns":
        """Return those of known stages, each as if it were the first one."""
        forward_s, backward_s, _ = columns
        ahead_s, work_s, m = forward_s.copy(), forward_s + backward_s, schedule.num_microbatches
        np.maximum(ahead_s[1:], sent[0], out=ahead_s[1:])
        np.maximum.accumulate(ahead_s, axis=0, out=ahead_s)
        more = np.broadcast_to(held - 1.0, work_s.shape)
        none, known = np.zeros_like(work_s), (more * ahead_s, (m - 1) * ahead_s, (m - held) * work_s)
        return cls(work_s.copy(), ahead_s, backward_s.copy(), work_s, none, none.copy(), *known, more)

    def behind(self, position: int) -> "_Turns":
        """Return those from a stage on."""
        return _Turns(*(getattr(self, name)[position:] for name in _TURNS))

    def step_back(self, both_s: Floats, onward_s: Floats, slowest_s: Floats) -> None:
        """Have the first stage of these reached from the one before it.

        Parameters
        ----------
        both_s, onward_s
            Of a micro-batch in the stage before and over the boundary behind that one: both ways, and forward.
        slowest_s
            The slowest task there of the way back.
        """
        np.add(self.trip_s, both_s, out=self.trip_s)
        np.add(self.way_s, onward_s, out=self.way_s)
        np.maximum(self.back_s, slowest_s, out=self.back_s)


_TURNS = tuple(one.name for one in fields(_Turns))


def behind_stage(
    rest: Floats,
    forward_s: _Seconds,
    backward_s: _Seconds,
    flush_s: _Seconds,
    in_flight: Integers | int,
    schedule: Schedule | Schedules,
    *,
    is_open: bool = False,
    turns: _Turns | None = None,
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
    start_s = (m - 1) * forward_s if turns is None else turns.all_ahead_s[0]
    finish_s = work_s + behind_finish_s
    if schedule.is_gpipe:
        first_s = np.maximum(first_s, trip_s + start_s)
        last_s = np.maximum(last_s, trip_s + (m - 1) * backward_s)
    elif is_open:
        finish_s = np.maximum(finish_s, m * work_s)
    else:
        first_s = np.maximum(first_s, in_flight * forward_s + backward_s)
        last_s = np.maximum(last_s, forward_s + in_flight * backward_s)
        if turns is not None:
            back_s = turns.more * turns.back_s
            first_s = np.maximum(first_s, (turns.trip_s + turns.held_ahead_s).max(axis=0))
            last_s = np.maximum(last_s, (turns.trip_s + back_s).max(axis=0))
            way_s = np.maximum(turns.more * (turns.ahead_s + turns.back_s) + turns.rest_s, turns.all_ahead_s + back_s)
            way_s = np.maximum(way_s, turns.held_ahead_s + (m - 1) * turns.back_s)
            finish_s = np.maximum(finish_s, (turns.trip_s + way_s).max(axis=0))
        between = np.maximum(m - 1 - in_flight, 0)
        longer_s = np.maximum(trip_s - in_flight * work_s, 0.0)
        between_s = between * work_s + between // in_flight * longer_s
        if turns is not None and len(turns.trip_s) > 1:
            sizes = _column(np.arange(2, len(turns.trip_s) + 1), turns.trip_s)
            number = between // sizes
            turned_s = number * turns.trip_s[1:] + (between - number * sizes) * work_s
            between_s = np.maximum(between_s, turned_s.max(axis=0))
        start_s = np.maximum(start_s, np.where(in_flight < m, first_s + between_s, 0.0))
    finish_s = np.maximum(finish_s, np.maximum(start_s + last_s, first_s + (m - 1) * backward_s))
    drained_s = np.maximum(last_s + flush_s, forward_s + behind_drained_s)
    flushed_s = np.maximum(finish_s + flush_s, np.maximum(forward_s + behind_flushed_s, start_s + drained_s))
    return np.array([trip_s, first_s, last_s, finish_s, flushed_s, drained_s])


def through(
    columns: Floats,
    held: Integers,
    sent: Floats,
    rest: Floats,
    schedule: Schedule | Schedules,
    *,
    is_open: bool = False,
) -> Floats:
    """Return E(0) of known stages and the rest behind them.

    Parameters
    ----------
    columns
        f, b and y by stage, (3, n, ...).
    held
        K by stage; m while their number is open.
    sent
        cf and cb by boundary between them, (2, n - 1, ...).
    """
    size = max(1, _MOST_STAGES // columns.shape[1])
    if columns.ndim == 2 or columns.shape[2] <= size:
        return _through(columns, held, sent, rest, schedule, is_open=is_open)
    held, rest = np.broadcast_to(held, columns.shape[1:]), np.broadcast_to(rest, (REST, columns.shape[2]))
    parts = (slice(low, low + size) for low in range(0, columns.shape[2], size))
    bounds = [
        _through(columns[..., one], held[:, one], sent[..., one], rest[:, one], schedule.part(one), is_open=is_open)
        for one in parts
    ]
    return np.concatenate(bounds)


def _through(
    columns: Floats, held: Integers, sent: Floats, rest: Floats, schedule: Schedule | Schedules, *, is_open: bool
) -> Floats:
    """Return the same of few pipelines."""
    forward_s, backward_s, flush_s = columns
    out_s, back_s = sent
    both_s, onward_s = forward_s[:-1] + backward_s[:-1] + out_s + back_s, forward_s[:-1] + out_s
    slowest_s, between = np.maximum(backward_s[:-1], back_s), schedule.num_microbatches - 1 - held
    turns = None if schedule.is_gpipe or is_open else _Turns.at(columns, held, sent, schedule)
    for position in reversed(range(len(forward_s))):
        if position < len(both_s):
            rest = behind_channel(rest, out_s[position], back_s[position], schedule)
            if turns is not None:
                turns.behind(position + 1).step_back(both_s[position], onward_s[position], slowest_s[position])
        at = None if turns is None else turns.behind(position)
        own = forward_s[position], backward_s[position], flush_s[position], held[position]
        rest = behind_stage(rest, *own, schedule, is_open=is_open, turns=at)
        if at is not None:
            at.drained_s[0] = rest[DRAINED]
            rest[FLUSHED] = np.maximum(rest[FLUSHED], _turned_s(rest[FIRST], at, between[position]))
    return np.asarray(rest[FLUSHED])


def _turned_s(first_s: _Seconds, turns: _Turns, between: Integers) -> _Seconds:
    """Return what E of a stage is not below: G, turns of the micro-batches between, and from then on to the end."""
    most = min(int(np.max(between, initial=0)), len(turns.trip_s))
    if not most or len(turns.trip_s) == 1:
        return 0.0
    least_s = (turns.way_s + between * turns.work_s + turns.drained_s).max(axis=0)
    step = max(1, _MOST_TURNED // max(1, turns.trip_s.size))
    for low in range(1, most, step):  # turns in stage s + d for some d at once
        trips_s = turns.trip_s[low : min(low + step, most)]
        number, rest = np.divmod(between, _column(np.arange(low + 1, low + 1 + len(trips_s)), trips_s))
        ends_s = rest[:, None].astype(np.float64) * turns.work_s
        ends_s += turns.way_s
        ends_s += turns.drained_s
        least_s = np.maximum(least_s, (number * trips_s + ends_s.max(axis=1)).max(axis=0))
    return np.where(np.greater(between, 0), first_s + least_s, 0.0)


def _column(numbers: Integers, like: Floats) -> Integers:
    """Return numbers along the first axis, for arrays that have further ones."""
    return numbers.reshape(-1, *(1,) * (like.ndim - 1))
