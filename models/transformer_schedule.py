"""Seconds of a pipelined step from those of its stages, for many layouts at once: closed forms, and exact recurrences.

Closed forms hold for even cuts, where all stages between the first and the last are equal; the general case stands at
the end, :func:`one_forward_one_backward_s`, which plays 1F1B of any stages.

p devices hold the layers in order, v virtual stages (chunks) each; m micro-batches. All devices between the first and
the last are equal: the first has the embedding besides, the last the head, and either may have more or fewer layers.
f_i and b_i are forward and backward of device i for one micro-batch, ``x_i = f_i + b_i``, c is one transfer, X is
``sum x_i + 2 (p - 1) c``.

- **GPipe** [H]: a line of forwards, then one of backwards:
  ``sum f + (p-1) c + (m-1) max(f, c) + sum b + (p-1) c + (m-1) max(b, c)``. Exact for any stages.
- **1F1B** [N]: all orders are fixed, so a step is the longest path through its tasks. ``F_i(k)`` leads down to any
  stage, turns there into a backward, and back on stage i into ``F_i(k + 1 + stages gone down)``. Of these paths the
  closed form takes the longest of six kinds, i being the first device, the second, or the last, ``w_i = p - i``:
  q times through all stages, once from i to the end, and ``n = m - 1 - (q-1) p - w_i`` times i alone, for q = 1 and
  for the greatest q that leaves ``n >= 0``: ``q X + S_i + n x_i``, ``S_i = sum over j >= i of x_j + 2 (p-1-i) c``; as
  often through all stages as goes, and the last few that are left; once through all, and i alone in warm-up or drain:
  ``X + (m - w_i) x_i + (w_i - 1) max(f_i, b_i)``; ``X + (m-1) max(f_i, b_i)``; ``m x_i`` behind the stages before it.
  A sixth dwells on a channel: ``X + (m - 1) c``.
  Exact for equal stages and ``c <= min(f, b)``, where it is ``(m+p-1) x + 2 c (m+p-1 - ceil((m+p-1) / p))``.
- **Interleaved** (v virtual stages a device) [N]: likewise, of paths through a device that never pauses once it
  is reached; exact for equal stages and ``c <= min(f, b) / v``: ``m x + (p-1) x / v + 2 c (p v - 1)``.
- **ZB-H1** [Q], with ``w`` the gradient of the weights and b the rest of the backward, the paths of 1F1B through single
  devices; exact for equal stages, no transfer and ``m >= p``: ``m (f+b+w) + (p-1) (b + max(f-w, 0))``. For ``w <= f``
  that is the bubble ``(p-1) (f+b-w)`` of [Q], table 2. There are no chunks; layouts with chunks get infinity.

Each form but GPipe's is the length of paths that exist, so it never exceeds the simulated schedule; how far it stays
below is measured in ``tests/models/test_transformer_schedule.py``. Transfers run beside computing, or block the sender
(:meth:`Stages.of`). Leaves out jitter, and any exchange between replicas. Sources: [H] Y. Huang et al., arXiv
1811.06965; [N] D. Narayanan et al., SC21, arXiv 2104.04473, section 2.2; [Q] P. Qi et al., arXiv 2401.10241. The paths:
own.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.layouts import Bools, Ints, Layouts, Schedule
from planner.models.schedule import order_of

_INTERLEAVED = -1  # beside the values of Schedule: 1F1B with chunks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """Seconds of one device for one micro-batch, all its chunks; arrays of one element a layout."""

    forward_s: Floats
    backward_s: Floats
    weight_gradient_s: Floats

    @property
    def both_s(self) -> Floats:
        """Forward and backward, without the gradients of the weights where those are apart."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """The devices of each layout's pipeline.

    Attributes
    ----------
    first, middle, last
        The first and last device, and each of those between; of one device, first and last are the same.
    weight_gradient_s
        Part of every backward that zero-bubble schedules put off.
    transfer_s
        Of one chunk's output to the next device, beside computing.
    """

    first: Device
    middle: Device
    last: Device
    transfer_s: Floats

    @classmethod
    def of(
        cls,
        layouts: Layouts,
        forward_s: Floats,
        backward_s: Floats,
        *,
        first_extra_s: tuple[Floats, Floats] | None = None,
        last_extra_s: tuple[Floats, Floats] | None = None,
        weight_gradient_s: Floats | None = None,
        transfer_s: Floats | None = None,
        is_blocking: bool = False,
    ) -> "Stages":
        """Return the devices of pipelines that are equal but for their ends.

        Parameters
        ----------
        forward_s, backward_s
            Of a device between first and last, for one micro-batch: all its chunks; backward with the gradients of the
            weights and what is recomputed.
        first_extra_s, last_extra_s
            How much longer forward and backward of the first and of the last device take; less than 0 where they have
            fewer layers.
        weight_gradient_s
            Part of ``backward_s``, the same on every device.
        transfer_s
            Of one chunk's output, or of its error.
        is_blocking
            Whether a device computes nothing while it sends; it then adds to the seconds of the device.
        """
        nothing = np.zeros(1)
        c = nothing if transfer_s is None else transfer_s
        weights_s = np.where(
            layouts.schedule == Schedule.ZERO_BUBBLE, nothing if weight_gradient_s is None else weight_gradient_s, 0.0
        )
        first, last = (extra or (nothing, nothing) for extra in (first_extra_s, last_extra_s))
        sent_s = layouts.interleave * c if is_blocking else nothing
        unsent_s = c if is_blocking else nothing  # the last output and the first error go nowhere
        middle_s = (forward_s + sent_s, backward_s - weights_s + sent_s)
        is_one = layouts.pipeline == 1
        alone = tuple(one + other - sent_s for one, other in zip(first, last, strict=True))
        extras = {
            "first": [np.where(is_one, alone[0], first[0]), np.where(is_one, alone[1], first[1] - unsent_s)],
            "last": [np.where(is_one, alone[0], last[0] - unsent_s), np.where(is_one, alone[1], last[1])],
            "middle": [nothing, nothing],
        }
        devices = {
            name: Device(
                forward_s=middle_s[0] + forward, backward_s=middle_s[1] + backward, weight_gradient_s=weights_s
            )
            for name, (forward, backward) in extras.items()
        }
        return cls(**devices, transfer_s=nothing if is_blocking else c)

    def kept(self, chosen: Bools) -> "Stages":
        """Return those of some layouts, by a mask."""

        def taken(array: Floats) -> Floats:
            return np.broadcast_to(array, chosen.shape)[chosen]

        devices = {
            name: Device(
                forward_s=taken(device.forward_s),
                backward_s=taken(device.backward_s),
                weight_gradient_s=taken(device.weight_gradient_s),
            )
            for name, device in (("first", self.first), ("middle", self.middle), ("last", self.last))
        }
        return Stages(**devices, transfer_s=taken(self.transfer_s))

    def sum_s(self, pipeline: Floats, forward: float = 1.0, backward: float = 1.0) -> Floats:
        """Return the sum over all devices of forward and backward, each times a factor."""

        def of(device: Device) -> Floats:
            return forward * device.forward_s + backward * device.backward_s

        return np.where(
            pipeline == 1, of(self.first), of(self.first) + of(self.last) + (pipeline - 2) * of(self.middle)
        )


def step_s(stages: Stages, layouts: Layouts) -> Floats:
    """Return the seconds from the start of a step to the end of its last backward, by each layout's schedule."""
    has_chunks = (layouts.interleave > 1) & (layouts.pipeline > 1)
    kind = np.where((layouts.schedule == Schedule.ONE_F_ONE_B) & has_chunks, _INTERLEAVED, layouts.schedule)
    kind = np.broadcast_to(kind, len(layouts))
    found = np.empty(len(layouts))
    for name, seconds_of in _SECONDS.items():
        chosen = kind == name
        if chosen.any():
            p, m, v = (np.broadcast_to(one, kind.shape)[chosen] for one in _sizes(layouts))
            found[chosen] = seconds_of(stages.kept(chosen), p, m, v)
    return np.where(has_chunks & (layouts.schedule == Schedule.ZERO_BUBBLE), np.inf, found)


def lower_bound_s(stages: Stages, layouts: Layouts) -> Floats:
    """Return seconds that no order of a device's tasks goes below.

    Every device works m micro-batches. Before its first the forward of one chunk has passed the devices before it, and
    behind its last the backward of one goes back through them; gradients of weights may be computed meanwhile.
    """
    p, m, v = _sizes(layouts)
    c, middle = stages.transfer_s, stages.middle
    found = np.zeros(len(layouts))
    # Where there are chunks, what the first device has more lies on its first.
    first = [getattr(stages.first, name) - (1 - 1 / v) * getattr(middle, name) for name in ("forward_s", "backward_s")]
    for device, index in ((stages.first, np.zeros(1)), (middle, p - 2), (stages.last, p - 1)):
        between = np.maximum(index - 1, 0)
        head_s = np.where(index > 0, first[0], 0.0) + between * middle.forward_s / v + index * c
        tail_s = np.where(index > 0, first[1], 0.0) + between * middle.backward_s / v + index * c
        busy_s = head_s + m * device.both_s
        bound_s = busy_s + np.maximum(tail_s, m * device.weight_gradient_s)
        found = np.maximum(found, np.where((device is not middle) | (index > 0), bound_s, 0.0))
    return found


# -- the schedules -----------------------------------------------------------------------------------------------------


def _gpipe_s(stages: Stages, p: Floats, m: Floats, _: Floats) -> Floats:
    """Return GPipe's step: of two lines of equal jobs; chunks play no part."""
    c = np.where(p > 1, stages.transfer_s, 0.0)
    slowest = []
    for name in ("forward_s", "backward_s"):
        first, middle, last = (getattr(device, name) for device in (stages.first, stages.middle, stages.last))
        slowest.append(np.maximum(np.maximum(first, last), np.maximum(np.where(p > 2, middle, 0.0), c)))
    seconds: Floats = stages.sum_s(p) + 2 * (p - 1) * c + (m - 1) * (slowest[0] + slowest[1])
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Place:
    """A device that a path may dwell on, how many stand before it, and the sums of their forwards and backwards."""

    device: Device
    index: Floats
    forwards_before_s: Floats
    backwards_before_s: Floats


def _places(stages: Stages, p: Floats) -> tuple[_Place, _Place, _Place]:
    """Return the first, the second and the last device; of a short pipeline some are the same."""
    nothing, first, last = np.zeros(1), stages.first, stages.last
    forwards_s, backwards_s = stages.sum_s(p, backward=0.0), stages.sum_s(p, forward=0.0)
    second = _Place(
        device=_where(p > 2, stages.middle, last),
        index=np.minimum(p - 1, 1.0),
        forwards_before_s=np.where(p > 1, first.forward_s, 0.0),
        backwards_before_s=np.where(p > 1, first.backward_s, 0.0),
    )
    end = _Place(
        device=last,
        index=p - 1,
        forwards_before_s=forwards_s - last.forward_s,
        backwards_before_s=backwards_s - last.backward_s,
    )
    return _Place(device=first, index=nothing, forwards_before_s=nothing, backwards_before_s=nothing), second, end


def _where(is_first: Bools, one: Device, other: Device) -> Device:
    """Return one device or another, by layout."""
    return Device(
        forward_s=np.where(is_first, one.forward_s, other.forward_s),
        backward_s=np.where(is_first, one.backward_s, other.backward_s),
        weight_gradient_s=np.where(is_first, one.weight_gradient_s, other.weight_gradient_s),
    )


def _one_forward_one_backward_s(stages: Stages, p: Floats, m: Floats, _: Floats) -> Floats:
    """Return the longest of the paths that the module names, of a 1F1B step."""
    c = stages.transfer_s
    all_s = stages.sum_s(p) + 2 * (p - 1) * c
    found = np.maximum(_through_and_tail_s(stages, p, m, all_s), all_s + np.where(p > 1, (m - 1) * c, 0.0))
    for place in _places(stages, p):
        device, warm_up = place.device, p - place.index
        x, longer_s = device.both_s, np.maximum(device.forward_s, device.backward_s)
        before_s = place.forwards_before_s + place.backwards_before_s + 2 * place.index * c
        most = np.maximum(np.floor((m - 1 + place.index) / p), 1.0) - 1
        alone = m - 1 - warm_up
        path_s = 2 * all_s - before_s + alone * x + most * np.maximum(all_s - p * x, 0.0)
        found = np.maximum(found, np.where(alone >= 0, path_s, 0.0))
        # In warm-up or drain there are forwards, or backwards, alone.
        rounds = np.maximum(m - warm_up, 0.0)
        found = np.maximum(found, all_s + rounds * x + (m - 1 - rounds) * longer_s)
        found = np.maximum(found, before_s + m * x)
    return found


def _through_and_tail_s(stages: Stages, p: Floats, m: Floats, all_s: Floats) -> Floats:
    """Return the path that passes all stages as often as it can, and then the last few that are left."""
    times = np.ceil((m + p - 1) / p) - 1
    hops = m - 2 - (times - 1) * p  # of the rest: one stage more than hops
    rest_s = stages.last.both_s + hops * stages.middle.both_s + 2 * hops * stages.transfer_s
    rest_s = np.where(hops == p - 1, all_s, rest_s)
    return np.where((times >= 1) & (hops >= 0) & (hops < p), times * all_s + rest_s, 0.0)


def _interleaved_s(stages: Stages, p: Floats, m: Floats, v: Floats) -> Floats:
    """Return the longest of three paths: those that dwell on the last device, the one before it, and the first.

    What the ends have more than others lies on the first and on the last chunk. Before all else the first device does
    p forwards of its first chunk, and behind all else p backwards; or one of them, and the wraps' transfers count.
    """
    c, chunks = stages.transfer_s, p * v
    f, b = stages.middle.forward_s / v, stages.middle.backward_s / v
    first = stages.first.forward_s - stages.middle.forward_s, stages.first.backward_s - stages.middle.backward_s
    last_s = stages.last.both_s - stages.middle.both_s
    edges = [np.maximum(extra + (chunks - 1) * c, p * extra + np.maximum(chunks - p - 1, 0.0) * c) for extra in first]
    base_s = m * stages.middle.both_s + (p - 1) * (f + b)
    at_last_s = base_s + m * last_s + edges[0] + edges[1]
    # The others wait for their first backward, which comes from the last device, or are busy until then.
    come_s = chunks * f + b + edges[0] + last_s + c
    done_s = np.minimum((v - 1) * p + 3, m * v) * f
    tail_s = (p - 2) * (b + c) + np.maximum(first[1], p * first[1])
    waited_s = np.maximum(come_s, (p - 2) * (f + c) + np.maximum(first[0], p * first[0]) + done_s)
    before_last_s = m * stages.middle.both_s + waited_s - done_s + tail_s
    done = np.minimum(2 * (p - 1) + (v - 1) * p + 1, m * v)  # forwards of the first device before its first backward
    of_first_chunk = np.floor(done / chunks) * p + np.minimum(done % chunks, p)
    done_s = done * f + of_first_chunk * first[0]
    waited_s = np.maximum(come_s + (p - 2) * (b + c), done_s)
    at_first_s = waited_s + m * stages.first.both_s - done_s
    return np.maximum(np.maximum(at_last_s, at_first_s), np.where(p > 2, before_last_s, 0.0))


def _zero_bubble_s(stages: Stages, p: Floats, m: Floats, _: Floats) -> Floats:
    """Return the longest of the paths of a ZB-H1 step through single devices.

    With the gradients of weights put off by as many micro-batches as the device has before it, ``max(m - p, 0)`` of
    them lie between the first backward and the last forward of any device.
    """
    c, last_s = stages.transfer_s, stages.first.weight_gradient_s
    all_s = stages.sum_s(p) + 2 * (p - 1) * c
    found = all_s + last_s + np.where(p > 1, (m - 1) * c, 0.0)
    for place in _places(stages, p):
        device, warm_up, hops = place.device, p - place.index, p - 1 - place.index
        before_s = place.forwards_before_s + place.backwards_before_s + 2 * place.index * c
        path_s = 2 * all_s - before_s + (m - warm_up - 1) * device.both_s
        path_s = path_s + np.maximum(m - p, 0.0) * device.weight_gradient_s + last_s
        found = np.maximum(found, np.where(m > warm_up, path_s, 0.0))
        # From its first backward on the device is busy to its end.
        start_s = stages.sum_s(p) - place.backwards_before_s + (p - 1 + hops) * c
        busy_s = (m - 1) * device.backward_s + np.maximum(m - warm_up, 0.0) * device.forward_s
        found = np.maximum(found, start_s + busy_s + m * device.weight_gradient_s)
    return found


_SECONDS: Mapping[int, Callable[[Stages, Floats, Floats, Floats], Floats]] = {
    Schedule.GPIPE: _gpipe_s,
    Schedule.ONE_F_ONE_B: _one_forward_one_backward_s,
    Schedule.ZERO_BUBBLE: _zero_bubble_s,
    _INTERLEAVED: _interleaved_s,
}


def _sizes(layouts: Layouts) -> tuple[Floats, Floats, Floats]:
    """Return devices of a pipeline, micro-batches and chunks, as they enter sums of seconds."""
    return (
        layouts.pipeline.astype(np.float64),
        layouts.num_microbatches.astype(np.float64),
        layouts.interleave.astype(np.float64),
    )


# -- tasks one by one: orders of a device's tasks, and the longest path through them -----------------------------------
#
# A step is a set of tasks, each with its seconds, the lines that it occupies (a device's computing, a channel, a
# network) and the tasks that it waits for. A line does its tasks in a fixed order. A task starts when those before it
# on its lines and those that it waits for have ended; so its end is a longest path, found in one pass.
#
# Orders: GPipe: [H]; 1F1B: [N]; ZB-H1: [Q], section 3: stage i (from 0) computes the gradients of weights i
# micro-batches late. The interleaved order is that of :mod:`planner.models.schedule`.

Line = Hashable


@dataclass(slots=True)
class Events:
    """Tasks in the making: add them line by line in the order in which each line does them, then run.

    >>> events = Events()
    >>> events.add("a", 2.0, ["device"])
    >>> events.add("b", 3.0, ["device"], after=["c"])
    >>> events.add("c", 4.0, ["link"], after=["a"])
    >>> events.run()["b"]
    9.0
    """

    seconds: dict[Hashable, float] = field(default_factory=dict)
    lines: dict[Line, list[Hashable]] = field(default_factory=dict)
    after: dict[Hashable, list[Hashable]] = field(default_factory=dict)

    def add(self, task: Hashable, seconds: float, lines: Sequence[Line], after: Sequence[Hashable] = ()) -> None:
        """Append a task to the order of its lines."""
        self.seconds[task] = seconds
        self.after[task] = list(after)
        for line in lines:
            self.lines.setdefault(line, []).append(task)

    def run(self) -> dict[Hashable, float]:
        """Return the end of every task, in seconds from 0; raise ModelError where tasks wait for one another."""
        before = {task: list(others) for task, others in self.after.items()}
        for order in self.lines.values():
            for one, other in pairwise(order):
                before[other].append(one)
        behind: dict[Hashable, list[Hashable]] = {task: [] for task in self.seconds}
        missing = {task: len(others) for task, others in before.items()}
        for task, others in before.items():
            for other in others:
                behind[other].append(task)
        ready = [task for task, number in missing.items() if not number]
        ends: dict[Hashable, float] = {}
        while ready:
            task = ready.pop()
            ends[task] = max((ends[other] for other in before[task]), default=0.0) + self.seconds[task]
            for other in behind[task]:
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
        if len(ends) < len(self.seconds):
            raise ModelError(f"{len(self.seconds) - len(ends)} tasks wait for one another.")
        return ends


def device_order(schedule: Schedule, device: int, p: int, m: int, v: int) -> list[tuple[str, int, int]]:
    """Return a device's tasks in order: kind (forward, backward, weights), virtual stage of all, micro-batch."""
    if schedule is not Schedule.ZERO_BUBBLE:
        name = "gpipe" if schedule is Schedule.GPIPE else "1f1b" if v == 1 else "interleaved"
        return [("backward" if back else "forward", stage, j) for back, stage, j in order_of(name, p, m, v)[device]]
    warm_up = min(m, p - device)
    tasks = [("forward", device, j) for j in range(warm_up)]
    for j in range(m):
        tasks.append(("backward", device, j))
        if j >= device:
            tasks.append(("weights", device, j - device))
        if j + warm_up < m:
            tasks.append(("forward", device, j + warm_up))
    return [*tasks, *(("weights", device, j) for j in range(max(m - device, 0), m))]


# -- 1F1B of stages that all differ, for many layouts at once: exact, and a bound that is quick ------------------------
#
# Stage i of p does its micro-batches in the order of 1F1B [N]: ``min(m, p - i)`` forwards, then a backward and a
# forward in turn, then backwards. ``f_i`` and ``b_i`` are its seconds for one micro-batch, what it sends included,
# since it computes nothing meanwhile.
#
# **Exact.** All orders are fixed, so a step is the longest path through its tasks. Round k holds ``B_i(k)`` and
# ``F_i(k + p - i)`` of every stage. With ``D_i`` the end of what stage i did last,
#
#     B_i(k) = max over j >= i of (D_j + b_j + ... + b_i)    (a running maximum from the last stage to the first)
#     F_i(k + p - i) = max(B_i(k), F_(i-1)(k + p - i)) + f_i  (of the round before on the stage before)
#
# so that a round costs a few operations on arrays, whatever p. Time O(m p) a layout. A simulation task by task is the
# referee.
#
# **Very many micro-batches.** Beyond some thousand rounds the step grows by what the slowest cycle takes, exactly but
# where two cycles are so close that the slower one has not caught up by then: the greatest ``x_i`` a micro-batch, or
# ``X`` for p of them. Rounds beyond that are leapt over, whole multiples of p, at that rate, which no round exceeds.
#
# **Bound.** With ``X`` the sum of all ``x_i = f_i + b_i`` and ``w_i = min(m, p - i)``, paths that dwell on one stage:
# ``X + (m - w_i) x_i + (w_i - 1) max(f_i, b_i)``, once through all and else on stage i; and those that go q times
# through all, once from i to the end and back, and else dwell on i, for the smallest and for the greatest q. Each
# exists, so none is longer than the step.
#
# Arrays have the stages first, shape (p, n); stages that a layout does not have are behind its last, with 0 seconds.

MOST_ROUNDS = 4_096  # that are played one by one; or so many times the stages
_ROUNDS_PER_STAGE = 8


def one_forward_one_backward_s(forward_s: Floats, backward_s: Floats, stages: Ints, num_microbatches: Ints) -> Floats:
    """Return the seconds from the first forward to the end of the last backward.

    Parameters
    ----------
    forward_s, backward_s
        Of one micro-batch on each stage, shape (p, n).
    stages, num_microbatches
        Of each layout, shape (n,).
    """
    found = np.zeros(forward_s.shape[1])
    for number in np.unique(stages):
        chosen = np.flatnonzero(stages == number)
        ahead_s, back_s, m = forward_s[:number, chosen], backward_s[:number, chosen], num_microbatches[chosen]
        leaps = np.maximum(m - max(MOST_ROUNDS, _ROUNDS_PER_STAGE * int(number)), 0) // number * number
        both_s = ahead_s + back_s
        each_s = np.maximum(both_s.max(axis=0), both_s.sum(axis=0) / number)
        found[chosen] = _step_s(ahead_s, back_s, m - leaps) + leaps * each_s
    return found


def _step_s(forward_s: Floats, backward_s: Floats, m: Ints) -> Floats:
    """Return the same of pipelines of as many stages."""
    p = len(forward_s)
    index = np.arange(p)[:, None]
    ended, newest = _warmed_up(forward_s, m)
    behind = np.cumsum(backward_s, axis=0)  # of a stage and all before it
    for k in range(int(m.max(initial=0))):
        # Ends of backward: the latest of what any stage behind allows, plus all backwards from there to here.
        latest = np.maximum.accumulate((ended + behind)[::-1], axis=0)[::-1]
        is_left = k < m
        ended = np.where(is_left, latest - (behind - backward_s), ended)
        begun = np.maximum(ended[1:], newest[:-1])
        begun = np.concatenate([ended[:1], begun])
        has_forward = k + p - index < m
        ended = np.where(has_forward, begun + forward_s, ended)
        newest = np.where(has_forward, ended, newest)
    return np.asarray(ended.max(axis=0))


def _warmed_up(forward_s: Floats, m: Ints) -> tuple[Floats, Floats]:
    """Return when each stage has done the forwards before its first backward; and the end of the newest of them."""
    p, n = forward_s.shape
    ended = np.zeros((p, n))
    above = np.zeros((p, n))  # ends of micro-batches 0 .. p - 1 on the stage before
    counts = np.arange(p, dtype=np.float64)[:, None]
    for i in range(p):
        # F_i(k) = max over l <= k of (F_(i-1)(l) + (k - l + 1) f_i)
        above = np.maximum.accumulate(above - counts * forward_s[i], axis=0) + (counts + 1) * forward_s[i]
        last = np.minimum(m, p - i) - 1
        ended[i] = above[last, np.arange(n)]
    return ended, ended.copy()


def path_bound_s(forward_s: Floats, backward_s: Floats, stages: Ints, num_microbatches: Ints) -> Floats:
    """Return seconds that the step is not under, parameters as above: the longest of the paths of the module."""
    p, m = stages.astype(np.float64), num_microbatches.astype(np.float64)
    both = forward_s + backward_s
    index = np.arange(len(both), dtype=np.float64)[:, None]
    is_there = index < p
    all_s = both.sum(axis=0)
    before_s = np.cumsum(both, axis=0) - both
    warm_up = np.clip(p - index, 1.0, m)
    once = all_s + (m - warm_up) * both + (warm_up - 1) * np.maximum(forward_s, backward_s)
    alone = m - 1 - (p - index)
    most = np.maximum(np.floor((m - 1 + index) / p), 1.0) - 1
    often = 2 * all_s - before_s + alone * both + most * np.maximum(all_s - p * both, 0.0)
    paths = np.maximum(np.maximum(once, before_s + m * both), np.where(alone >= 0, often, 0.0))
    return np.asarray(np.where(is_there, paths, 0.0).max(axis=0))
