"""The orders of pipeline schedules: what every device does in turn, and how many micro-batches that keeps in flight.

Sources: GPipe: Y. Huang et al., arXiv:1811.06965. 1F1B with a flush, and the interleaved order: D. Narayanan et al.,
SC21, arXiv:2104.04473, section 2.2 and figure 4. Times play no part here; see :mod:`planner.models.schedule`.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats, Profile, TransferCost
from planner.dnn import Dnn
from planner.errors import ModelError
from planner.models.communication import (
    cheapest_of,
    delayed,
    double_binary_tree_all_reduces,
    ring_all_reduces,
    two_level_all_reduces,
)
from planner.models.memory import Precision

SCHEDULES = ("gpipe", "1f1b", "interleaved")

Order = tuple[tuple[bool, int, int], ...]  # a device's tasks: (is it a backward, stage, micro-batch)


@lru_cache(maxsize=8)
def order_of(schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int = 1) -> tuple[Order, ...]:
    """Return every device's tasks, in order.

    - ``gpipe``: all forwards, then all backwards.
    - ``1f1b``: device d starts with ``min(m, p - d)`` forwards, then a backward and a forward in turn, then the
      remaining backwards.
    - ``interleaved``: forwards go chunk by chunk for p micro-batches at a time, backwards likewise with the chunks
      reversed; device d starts with ``min(m v, 2 (p - d - 1) + (v - 1) p)`` forwards, then a forward and a backward in
      turn, then the remaining backwards.

    Raises
    ------
    ModelError
        If there is no such schedule for these numbers.
    """
    p, m, v = num_devices, num_microbatches, chunks_per_device
    check_schedule(schedule, p, m, v)
    if schedule == "interleaved":
        return tuple(_interleaved(d, p, m, v) for d in range(p))
    return tuple(_plain(d, m, m if schedule == "gpipe" else min(m, p - d)) for d in range(p))


def check_schedule(schedule: str, p: int, m: int, v: int) -> None:
    """Refuse a schedule that does not exist for these numbers."""
    if schedule not in SCHEDULES or min(p, m, v) < 1:
        raise ModelError(f"no schedule {schedule!r} for {p} devices, {m} micro-batches and {v} chunks a device.")
    if schedule != "interleaved" and v > 1:
        raise ModelError(f"{schedule} has one stage a device, not {v}; only the interleaved schedule has chunks.")
    if schedule == "interleaved" and m % p:
        raise ModelError(f"the interleaved schedule needs micro-batches in multiples of its {p} devices, not {m}.")


def _plain(device: int, m: int, warm_up: int) -> Order:
    """Return a device's order: so many forwards, then backward and forward in turn, then the other backwards."""
    tasks = [(False, device, j) for j in range(warm_up)]
    for j in range(m):
        tasks.append((True, device, j))
        if j + warm_up < m:
            tasks.append((False, device, j + warm_up))
    return tuple(tasks)


def _interleaved(device: int, p: int, m: int, v: int) -> Order:
    """Return a device's order: forwards and backwards by their number, forwards ahead by the warm-up."""
    total = m * v
    warm_up = min(total, 2 * (p - device - 1) + (v - 1) * p)
    forwards, backwards = [], []
    for number in range(total):
        chunk, microbatch = number % (p * v) // p, number // (p * v) * p + number % p
        forwards.append((False, chunk * p + device, microbatch))
        backwards.append((True, (v - 1 - chunk) * p + device, microbatch))
    tasks = forwards[:warm_up]
    for number in range(total):
        if number + warm_up < total:
            tasks.append(forwards[number + warm_up])
        tasks.append(backwards[number])
    return tuple(tasks)


def in_flight(schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int = 1) -> tuple[int, ...]:
    """Return, by stage, the most micro-batches between forward and backward: ``min(m, p - d)`` for 1F1B, m for GPipe.

    It follows from the order alone, whatever the times. The chunks of a device need not reach their most at once; see
    :func:`peak_weight`.
    """
    p, v = num_devices, chunks_per_device
    if schedule == "gpipe":
        return (num_microbatches,) * p
    if schedule == "1f1b":
        return tuple(min(num_microbatches, p - d) for d in range(p))
    counts = [0] * (p * v)
    for order in order_of(schedule, p, _enough(p, num_microbatches), v):
        for stage in sorted({stage for _, stage, _ in order}):
            steps = ((-1 if is_backward else 1) for is_backward, at, _ in order if at == stage)
            counts[stage] = max(accumulate(steps))
    return tuple(counts)


def peak_weight(
    weights: Sequence[float], schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int = 1
) -> Floats:
    """Return, by device, the most that its micro-batches in flight weigh together.

    Parameters
    ----------
    weights
        By stage, of one micro-batch in flight: bytes of activations, say.
    """
    if schedule != "interleaved":
        counts = in_flight(schedule, num_devices, num_microbatches)
        return np.array([count * weight for count, weight in zip(counts, weights, strict=True)], dtype=np.float64)
    peaks = []
    enough = _enough(num_devices, num_microbatches)
    for order in order_of(schedule, num_devices, enough, chunks_per_device):
        stages = np.array([stage for _, stage, _ in order])
        signs = np.array([-1.0 if is_backward else 1.0 for is_backward, _, _ in order])
        peaks.append(float(np.cumsum(signs * np.asarray(weights, dtype=np.float64)[stages]).max()))
    return np.array(peaks)


def _enough(p: int, m: int) -> int:
    """Return how many micro-batches of the interleaved schedule show the most that are ever in flight.

    After its warm-up of ``w <= 2 p + (v - 1) p`` forwards a device does a forward and a backward in turn. Which stages
    they are of repeats every ``p v`` of each, and what is in flight with them; at the end there are backwards alone. So
    ``w + p v`` forwards show all, and each micro-batch has v: ``3 p`` micro-batches do.
    """
    return min(m, 3 * p)


def bubble_share(schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int = 1) -> float:
    """Return idle over ideal time for *equal* stages and free transfers: ``(p - 1) / (v m)``; no bound for others."""
    return (num_devices - 1) / ((chunks_per_device if schedule == "interleaved" else 1) * num_microbatches)


# --- GPipe by its closed form, and 1F1B round after round for all devices: what the walk from task to task gives,
# quicker
# The rules, and what the times mean, stand at the head of :mod:`planner.models.schedule`.


def end_at_once_s(
    schedule: str,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_transfer_s: Sequence[float],
    backward_transfer_s: Sequence[float],
    num_microbatches: int,
) -> Floats:
    """Return the end of every device's last backward, one stage a device; arguments are those of ``simulate``."""
    at_once = _gpipe_end_s if schedule == "gpipe" else _one_forward_one_backward_end_s
    return at_once(
        np.asarray(forward_s, dtype=np.float64),
        np.asarray(backward_s, dtype=np.float64),
        np.asarray(forward_transfer_s, dtype=np.float64),
        np.asarray(backward_transfer_s, dtype=np.float64),
        num_microbatches,
    )


def _gpipe_end_s(f: Floats, b: Floats, c: Floats, c_back: Floats, m: int) -> Floats:
    """Return the end of every device's last backward under GPipe: a line of forwards, then one of backwards.

    Equal jobs pass a line of stages and channels, each of which serves one at a time: the last of m leaves stage i
    ``sum + (m - 1) max`` of the times up to there after the first has come (a "proportionate" flow shop).
    No error reaches a device that still has forwards to do, as the last stage's backwards start after all of them.
    """
    all_forward_s = _line_end_s(f, c, m)[-1]
    ends_s: Floats = all_forward_s + _line_end_s(b[::-1], c_back[::-1], m)[::-1]
    return ends_s


def _line_end_s(seconds: Floats, sent_s: Floats, m: int) -> Floats:
    """Return when the last of m jobs leaves each stage of a line, with transfers between them."""
    before_s = np.concatenate(([0.0], sent_s))
    slowest_s = np.maximum.accumulate(np.maximum(seconds, before_s))
    ends_s: Floats = np.cumsum(seconds + before_s) + (m - 1) * slowest_s
    return ends_s


def _one_forward_one_backward_end_s(f: Floats, b: Floats, c: Floats, c_back: Floats, m: int) -> Floats:
    """Return the end of every device's last backward under 1F1B: round after round, all devices at once.

    Round r holds the forward of micro-batch r on every device, and after it on device i the backward of micro-batch
    ``r - (p - i) + 1``, whose error left device i + 1 in the round before. So backwards of a round do not depend on one
    another; its forwards are a chain ``e_i = max(e_{i-1} + c_{i-1}, g_i) + f_i``, that is ``D_i + max over k <= i of
    (g_k + f_k - D_k)`` with ``D_i`` the sum of all f and c up to i.
    """
    p = len(f)
    path_s = np.cumsum(f) + np.concatenate(([0.0], np.cumsum(c)))
    shift_s = f - path_s
    free_s, sent_s, sent_back_s, error_s = np.zeros(p), np.zeros(p - 1), np.zeros(p - 1), np.zeros(p)
    for number in range(m + p - 1):
        if number < m:
            free_s[1:] = np.maximum(free_s[1:], sent_s + c)
            free_s = path_s + np.maximum.accumulate(free_s + shift_s)
            sent_s = np.maximum(free_s[:-1], sent_s) + c
        low, high = max(0, p - 1 - number), min(p, m + p - 1 - number)
        ends_s = np.maximum(free_s[low:high], error_s[low:high]) + b[low:high]
        free_s[low:high] = ends_s
        first = max(low, 1)  # device 0 sends no error
        sent_back_s[first - 1 : high - 1] = np.maximum(ends_s[first - low :], sent_back_s[first - 1 : high - 1])
        sent_back_s[first - 1 : high - 1] += c_back[first - 1 : high - 1]
        error_s[first - 1 : high - 1] = sent_back_s[first - 1 : high - 1]
    return free_s


# --- Pipelines of many micro-batches: their steady rounds are leapt over, exactly
# After its warm-up a device repeats the same few tasks, a *round*, with the micro-batches counted up: one micro-batch
# under 1F1B, p of them under the interleaved schedule. What a round leaves behind is a vector x of times: when each
# device is free, when each channel is, and when each output or error arrives that was sent and not yet used. A round
# turns x into ``g(x)``, each entry of which is a greatest of sums ``x_i + constant`` (the tasks' times): longest paths.
# So g is convex, and ``g(x + s) = g(x) + s`` for one number s added to all entries.
#
# *The leap.* Let c rounds add d to x, and c more rounds add the same d (a vector: devices may still drift apart). Along
# ``x + t d`` each entry of ``h(t) = g^c(x + t d) - (x + t d)`` is convex and equals that of d at t = 0 and t = 1. If it
# does at t = n, too, it does so everywhere in between. Hence ``n + 1`` times c rounds add ``(n + 1) d``, and one round
# at the far end proves it. Where all entries of d are equal, that holds for every n; else n is found by bisection, and
# rounds are run one by one again from there.
#
# All of it is done in whole numbers: every floating-point number is one divided by a power of two, so nothing is
# rounded
# but the result. Sooner or later all rounds add the same (F. Baccelli, G. Cohen, G. J. Olsder, J.-P. Quadrat,
# Synchronization and Linearity, 1992, section 3.7); how soon depends on the times. Rounds that cannot be leapt over are
# simulated, up to ``MOST_TASKS`` tasks.

MOST_TASKS = 4_000_000  # forwards and backwards that are simulated, some seconds

_Task = tuple[bool, int, int]  # is it a backward, stage, micro-batch
_Round = Callable[[list[int]], list[int]]
_MOST_SAME = 64  # rounds after which things may repeat, at most


def steady_end_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_transfer_s: Sequence[float],
    backward_transfer_s: Sequence[float],
    *,
    num_microbatches: int,
    schedule: str,
    chunks_per_device: int = 1,
) -> Floats:
    """Return the end of every device's last backward under 1F1B or the interleaved schedule.

    Arguments are those of :func:`planner.models.schedule.simulate`; there must be at least
    :func:`least_microbatches`.

    Raises
    ------
    ModelError
        If too many rounds would have to be simulated.
    """
    p = len(forward_s) // chunks_per_device
    scale, times = _whole(p, forward_s, backward_s, forward_transfer_s, backward_transfer_s)
    warm_up, one_round, drain = _parts(times, schedule, chunks_per_device)
    each = 1 if schedule == "1f1b" else p
    left = (num_microbatches - least_microbatches(p, schedule)) // each + 1
    most = MOST_TASKS // (2 * len(forward_s) * each)
    found = _after(warm_up.run([0] * (3 * p)), one_round.run, left, most)
    if found is None:
        raise ModelError(
            f"{num_microbatches} micro-batches are too many to simulate: {most} rounds of this pipeline do not become "
            f"regular. Take fewer micro-batches."
        )
    return np.array([one / scale for one in drain.run(found)[:p]])


def least_microbatches(num_devices: int, schedule: str) -> int:
    """Return the micro-batches of a schedule with one steady round."""
    return num_devices + 1 if schedule == "1f1b" else 4 * num_devices


@dataclass(frozen=True, slots=True)
class _Times:
    """Whole times by [is it backward][stage]; transfers by the stage that sends, on p devices."""

    num_devices: int
    tasks: tuple[Sequence[int], Sequence[int]]
    transfers: tuple[Sequence[int], Sequence[int]]

    @property
    def last(self) -> int:
        """Index of the last stage."""
        return len(self.tasks[0]) - 1


def _whole(num_devices: int, *lists: Sequence[float]) -> tuple[int, _Times]:
    """Return a scale, a power of two, and times that are multiplied by it: whole, and nothing lost."""
    ratios = [[float(one).as_integer_ratio() for one in some] for some in lists]
    scale = lcm(*(below for some in ratios for _, below in some))
    forward, backward, out, back = [[above * (scale // below) for above, below in some] for some in ratios]
    return scale, _Times(num_devices, (forward, backward), ([*out, 0], [0, *back]))


# -- leaps -----------------------------------------------------------------------------------------------------------


def _after(state: list[int], following: _Round, left: int, most: int) -> list[int] | None:
    """Return the state after ``left`` rounds; None where more than about ``most`` would have to be run."""
    window = 2
    while left and most > 0:
        states = [state]
        for _ in range(min(2 * window, left)):
            states.append(following(states[-1]))
        left -= len(states) - 1
        most -= len(states) - 1
        state = states[-1]
        if left and (period := _period(states, window)):
            state, left = _leapt(states[-1 - period], state, period, following, left)
        window = min(2 * window, _MOST_SAME)
    return None if left else state


def _period(states: Sequence[list[int]], most: int) -> int:
    """Return the fewest rounds that added the same twice, at the end; 0 if none did."""
    last = states[-1]
    for period in range(1, min(most, (len(states) - 1) // 2) + 1):
        middle, first = states[-1 - period], states[-1 - 2 * period]
        if all(2 * b == a + c for a, b, c in zip(last, middle, first, strict=True)):
            return period
    return 0


def _leapt(before: list[int], state: list[int], period: int, following: _Round, left: int) -> tuple[list[int], int]:
    """Return the state as far on as ``period`` rounds add the same to it, and the rounds that are then left."""
    added = [now - then for then, now in zip(before, state, strict=True)]

    def at(times: int) -> list[int]:
        return [now + times * one for now, one in zip(state, added, strict=True)]

    def is_same(times: int) -> bool:
        found = at(times)
        for _ in range(period):
            found = following(found)
        return found == at(times + 1)

    low, high = 0, left // period  # whether it is the same at `low - 1` is known, at `high` not
    if high and is_same(high - 1):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_same(middle - 1) else (low, middle)
    return at(low), left - low * period


# -- a schedule in three parts -----------------------------------------------------------------------------------------


class _Part:
    """Tasks in an order in which none waits for a later one, as steps on registers.

    Registers: by device, when it is free; when its channels for outputs, and for errors, are; and arrivals, by the
    task that waits for them. ``before``: tasks whose inputs were sent earlier; ``after``: those for later parts.
    """

    def __init__(self, tasks: Sequence[_Task], before: Sequence[_Task], after: Sequence[_Task], times: _Times) -> None:
        p = times.num_devices
        register = {task: 3 * p + index for index, task in enumerate(before)}
        self._steps: list[tuple[int, int, int, int, int, int]] = []
        for task in tasks:
            is_backward, stage, _ = task
            device, target = stage % p, _target(task)
            is_sent = 0 <= target[1] <= times.last
            self._steps.append(
                (
                    device,
                    register.get(task, -1),
                    times.tasks[is_backward][stage],
                    register.setdefault(target, 3 * p + len(register)) if is_sent else -1,
                    (2 if is_backward else 1) * p + device,
                    times.transfers[is_backward][stage],
                )
            )
        self._new = [0] * (len(register) - len(before))
        self._kept = [*range(3 * p), *(register[task] for task in after)]

    def run(self, state: list[int]) -> list[int]:
        """Return the times that are kept afterwards."""
        at = [*state, *self._new]
        for device, source, seconds, target, channel, transfer in self._steps:
            now = at[device]
            if source >= 0 and at[source] > now:
                now = at[source]
            at[device] = now = now + seconds
            if target >= 0:
                at[channel] = at[target] = max(at[channel], now) + transfer
        return [at[one] for one in self._kept]


def _parts(times: _Times, schedule: str, chunks: int) -> tuple[_Part, _Part, _Part]:
    """Return the warm-up, one steady round, and the drain.

    Before the round device d has done its warm-up of w_d forwards and, of the backwards and forwards in turn, 2 d tasks
    under the interleaved schedule and none under 1F1B: so that no task before that cut waits for one behind it.
    """
    p, is_plain = times.num_devices, schedule == "1f1b"
    each = 1 if is_plain else p
    orders = order_of(schedule, p, least_microbatches(p, schedule), chunks)
    begin = [p - d if is_plain else 2 * (p - d - 1) + (chunks - 1) * p + 2 * d for d in range(p)]
    cuts = [[0] * p, begin, [one + 2 * each * chunks for one in begin], [len(order) for order in orders]]
    done: set[_Task] = set()
    parts = [_in_order(orders, low, high, done, times.last) for low, high in pairwise(cuts)]
    early = set(parts[0])
    before = sorted({_target(task) for task in parts[0]} - early)
    before = [task for task in before if 0 <= task[1] <= times.last]
    after = [(is_backward, stage, j + each) for is_backward, stage, j in before]
    return (
        _Part(parts[0], [], before, times),
        _Part(parts[1], before, after, times),
        _Part(parts[2], after, [], times),
    )


def _target(task: _Task) -> _Task:
    """Return the task that waits for what a task sends."""
    is_backward, stage, j = task
    return is_backward, stage + (-1 if is_backward else 1), j


def _in_order(
    orders: Sequence[Order], low: Sequence[int], high: Sequence[int], done: set[_Task], last: int
) -> list[_Task]:
    """Return the tasks of all devices between two cuts, each behind those that it waits for; adds them to ``done``."""
    found: list[_Task] = []
    position, devices = list(low), list(range(len(orders)))
    while position != list(high):
        count = len(found)
        for device in devices:
            while position[device] < high[device]:
                task = is_backward, stage, j = orders[device][position[device]]
                if (
                    stage != (last if is_backward else 0)
                    and (is_backward, stage + (1 if is_backward else -1), j) not in done
                ):
                    break
                found.append(task)
                done.add(task)
                position[device] += 1
        assert len(found) > count, "a task before a cut waits for one behind it"
        devices.reverse()  # outputs go up the line, errors down
    return found


# --- Event simulation of pipeline schedules: every device does its tasks in a fixed order, each as soon as it can
# K stages in the order of the layers run on p devices (a device stands for all replicas of its stages), stage k on
# device
# ``k mod p``; there are ``K = p`` stages but for the interleaved schedule, which has v chunks a device and ``K = p v``.
# Every one of m micro-batches passes forward through all stages and backward through all of them.
#
# - Device order: the schedule's, see :mod:`planner.models.schedule`. A task starts when the one before it on its
# device has ended and its input has arrived.
# - Input: the forward of stage k needs its micro-batch's output of stage k - 1, the backward of stage k the error from
# stage k + 1; the last stage's backward needs its own forward.
# - Transfers overlap with computation. Between device d and the next one there is one channel for outputs and one for
# errors; each sends in the order in which its device produces, one at a time. The channels of neighbouring pairs, and
# the two directions, do not slow each other.
# - When a device's last backward has ended, it exchanges the gradients of its stages and updates their weights
# (``sync_s``, ``update_s``; in turn for several chunks). Meanwhile other devices still drain; nothing of a device's own
# computation hides its exchange, which is conservative. The next iteration starts after the last update: the weights
# are never stale.
#
# All orders are fixed, so start times are longest paths in a graph that does not depend on the times: the makespan is
# monotone in every time given, and doubles if all double. GPipe is two lines of equal jobs, for which these paths
# have a
# closed form; of many micro-batches under the other schedules the steady rounds are leapt over, exactly
# (:mod:`planner.models.schedule`).
#
# Sources: those of the orders. No closed form holds for unequal stages.

MOST_LISTED = 500_000  # forwards and backwards
_AT_ONCE = 8  # devices from which on numpy is faster than the walk under 1F1B
_MANY = 64  # micro-batches from which on leaps may pay


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTask:
    """What runs from ``start_s`` to ``end_s``; ``kind``: forward, backward, send_output, send_error, sync, update.

    ``stage`` is the one that computes or sends; a sync or update is the device's, and has no micro-batch.
    """

    kind: str
    device: int
    stage: int
    microbatch: int | None
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleRun:
    """One iteration.

    Attributes
    ----------
    makespan_s
        End of the last update.
    busy_s
        By device: forwards and backwards.
    compute_end_s
        By device: end of its last backward.
    end_s
        By device: end of its exchange and update.
    idle_s
        By device: seconds of the makespan in which it neither computes, exchanges nor updates.
    in_flight
        By stage: most micro-batches whose forward has started and whose backward has not ended.
    tasks
        Everything that ran, by device and time; empty unless asked for.
    """

    makespan_s: float
    busy_s: Floats
    compute_end_s: Floats
    end_s: Floats
    idle_s: Floats
    in_flight: tuple[int, ...]
    tasks: tuple[PipelineTask, ...] = ()


def simulate(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_transfer_s: Sequence[float],
    backward_transfer_s: Sequence[float],
    *,
    num_microbatches: int,
    schedule: str,
    sync_s: Sequence[float] | None = None,
    update_s: Sequence[float] | None = None,
    chunks_per_device: int = 1,
    with_tasks: bool = False,
) -> ScheduleRun:
    """Return one iteration of a pipeline.

    Parameters
    ----------
    forward_s, backward_s
        By stage, of one micro-batch.
    forward_transfer_s, backward_transfer_s
        By boundary (one fewer than stages): of the output of stage k to stage k + 1, and of the error back.
    num_microbatches
        At least 1; a multiple of the number of devices for the interleaved schedule.
    schedule
        One of ``SCHEDULES``.
    sync_s, update_s
        By stage, once an iteration; 0 where left out.
    chunks_per_device
        v; 1 but for the interleaved schedule.
    with_tasks
        Whether to list all tasks, for a timeline.

    Raises
    ------
    ModelError
        If a time is negative or not finite, the lengths do not agree, or the schedule does not exist for these numbers;
        or if there are too many tasks to list, or to simulate where they do not become regular.

    >>> run = simulate([2, 1], [2, 1], [0], [0], num_microbatches=2, schedule="1f1b")
    >>> run.makespan_s, run.in_flight
    (8.0, (2, 1))
    """
    num_stages = len(forward_s)
    sync_s = [0.0] * num_stages if sync_s is None else sync_s
    update_s = [0.0] * num_stages if update_s is None else update_s
    _pipeline_schedule_check(forward_s, backward_s, forward_transfer_s, backward_transfer_s, sync_s, update_s)
    if chunks_per_device < 1 or num_stages % chunks_per_device:
        raise ModelError(f"{num_stages} stages are no multiple of {chunks_per_device} chunks a device.")
    num_devices = num_stages // chunks_per_device
    check_schedule(schedule, num_devices, num_microbatches, chunks_per_device)
    times = (forward_s, backward_s, forward_transfer_s, backward_transfer_s)
    walk = None
    if with_tasks or _is_walked(schedule, num_devices, num_microbatches):
        _check_number(num_stages, num_microbatches, with_tasks=with_tasks)
        walk = _Walk(order_of(schedule, num_devices, num_microbatches, chunks_per_device), *times, num_microbatches)
        walk.run()
        compute_end_s = np.array(walk.free_s)
    elif _is_leapt(schedule, num_devices, num_microbatches):
        compute_end_s = steady_end_s(
            *times, num_microbatches=num_microbatches, schedule=schedule, chunks_per_device=chunks_per_device
        )
    else:
        compute_end_s = end_at_once_s(schedule, *times, num_microbatches)
    by_device = [
        np.asarray(one, dtype=np.float64).reshape(chunks_per_device, num_devices).sum(axis=0)
        for one in (forward_s, backward_s, sync_s, update_s)
    ]
    busy_s = num_microbatches * (by_device[0] + by_device[1])
    end_s = compute_end_s + by_device[2] + by_device[3]
    makespan_s = float(end_s.max())
    return ScheduleRun(
        makespan_s=makespan_s,
        busy_s=busy_s,
        compute_end_s=compute_end_s,
        end_s=end_s,
        idle_s=np.maximum(makespan_s - busy_s - by_device[2] - by_device[3], 0.0),  # but for rounding
        in_flight=in_flight(schedule, num_devices, num_microbatches, chunks_per_device),
        tasks=_tasks(walk, by_device[2].tolist(), by_device[3].tolist()) if walk and with_tasks else (),
    )


class _Walk:
    """The state of a simulation: devices run as far as their inputs allow, and wake those that they send to."""

    def __init__(
        self,
        orders: Sequence[Order],
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        forward_transfer_s: Sequence[float],
        backward_transfer_s: Sequence[float],
        num_microbatches: int,
    ) -> None:
        self.orders = orders
        self.num_devices, self.num_stages = len(orders), len(forward_s)
        self.duration_s = [[float(one) for one in seconds] for seconds in (forward_s, backward_s)]
        # Transfers by the stage that sends; the last sends no output and the first no error.
        self.transfer_s = [
            [*(float(one) for one in forward_transfer_s), 0.0],
            [0.0, *(float(one) for one in backward_transfer_s)],
        ]
        self.end_s = [[[-1.0] * num_microbatches for _ in forward_s] for _ in range(2)]
        self.arrival_s = [[[-1.0] * num_microbatches for _ in forward_s] for _ in range(2)]  # -1: not yet
        self.arrival_s[0][0] = [0.0] * num_microbatches
        self.arrival_s[1][-1] = [0.0] * num_microbatches  # its own forward goes before in the order
        self.free_s = [0.0] * self.num_devices
        self.channel_s = [[0.0] * self.num_devices for _ in range(2)]
        self.position = [0] * self.num_devices

    def run(self) -> None:
        """Run all tasks."""
        ready = deque(range(self.num_devices))
        while ready:
            ready.extend(self._advance(ready.popleft()))
        assert all(done == len(order) for done, order in zip(self.position, self.orders, strict=True))

    def _advance(self, device: int) -> list[int]:
        """Run a device's tasks until one lacks its input; return the devices that got something from it."""
        order, p, last = self.orders[device], self.num_devices, self.num_stages - 1
        free_s, index = self.free_s[device], self.position[device]
        ends, arrivals, durations, transfers = self.end_s, self.arrival_s, self.duration_s, self.transfer_s
        channels = self.channel_s
        sent = [False, False]
        while index < len(order):
            is_backward, stage, j = order[index]
            arrival_s = arrivals[is_backward][stage][j]
            if arrival_s < 0:
                break
            free_s = (arrival_s if arrival_s > free_s else free_s) + durations[is_backward][stage]
            ends[is_backward][stage][j] = free_s
            target = stage - 1 if is_backward else stage + 1
            if 0 <= target <= last:
                channel = channels[is_backward]
                start_s = channel[device] if channel[device] > free_s else free_s
                channel[device] = start_s + transfers[is_backward][stage]
                arrivals[is_backward][target][j] = channel[device]
                sent[is_backward] = True
            index += 1
        self.free_s[device], self.position[device] = free_s, index
        woken = {(device + 1) % p: sent[False], (device - 1) % p: sent[True]} if p > 1 else {}
        if p == 2:  # both neighbours are one
            woken = {1 - device: any(sent)}
        return [other for other, is_woken in woken.items() if is_woken]


def _is_walked(schedule: str, p: int, m: int) -> bool:
    """Whether walking from task to task is the quickest."""
    return not (schedule == "gpipe" or _is_leapt(schedule, p, m) or (schedule == "1f1b" and p >= _AT_ONCE))


def _is_leapt(schedule: str, p: int, m: int) -> bool:
    """Whether there are so many micro-batches that steady rounds are worth a leap; warm-up and drain have p^2 tasks."""
    return schedule != "gpipe" and m > max(_MANY, p * p // 2, 2 * least_microbatches(p, schedule))


def _check_number(num_stages: int, m: int, *, with_tasks: bool) -> None:
    """Refuse to list more tasks than a reader of a timeline could bear."""
    if with_tasks and 2 * m * num_stages > MOST_LISTED:
        most = MOST_LISTED // (2 * num_stages)
        raise ModelError(
            f"{m} micro-batches through {num_stages} stages are too many tasks to draw. Take {most} micro-batches or "
            f"fewer, or leave out the timeline."
        )


def _tasks(walk: _Walk, sync_s: Sequence[float], update_s: Sequence[float]) -> tuple[PipelineTask, ...]:
    """Return everything that ran, device by device."""
    tasks: list[PipelineTask] = []
    for device, order in enumerate(walk.orders):
        now_s, sent_s = 0.0, [0.0, 0.0]
        for is_backward, stage, j in order:
            start_s = max(now_s, walk.arrival_s[is_backward][stage][j])
            now_s = walk.end_s[is_backward][stage][j]
            kind = "backward" if is_backward else "forward"
            tasks.append(_task(kind, device, stage, j, start_s, now_s))
            target = stage - 1 if is_backward else stage + 1
            if 0 <= target < walk.num_stages and walk.transfer_s[is_backward][stage] > 0:
                start_s, arrival_s = max(now_s, sent_s[is_backward]), walk.arrival_s[is_backward][target][j]
                kind = "send_error" if is_backward else "send_output"
                tasks.append(_task(kind, device, stage, j, start_s, arrival_s))
                sent_s[is_backward] = arrival_s
        for kind, seconds in (("sync", sync_s[device]), ("update", update_s[device])):
            if seconds > 0:
                tasks.append(_task(kind, device, device, None, now_s, now_s + seconds))
                now_s += seconds
    return tuple(tasks)


def _task(kind: str, device: int, stage: int, microbatch: int | None, start_s: float, end_s: float) -> PipelineTask:
    """Return one task."""
    return PipelineTask(kind=kind, device=device, stage=stage, microbatch=microbatch, start_s=start_s, end_s=end_s)


def _pipeline_schedule_check(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_transfer_s: Sequence[float],
    backward_transfer_s: Sequence[float],
    sync_s: Sequence[float],
    update_s: Sequence[float],
) -> None:
    """Refuse times that are no times, and lists of different lengths."""
    num_stages = len(forward_s)
    if not num_stages:
        raise ModelError("a pipeline needs at least one stage.")
    named = {
        "backward_s": (backward_s, num_stages),
        "forward_transfer_s": (forward_transfer_s, num_stages - 1),
        "backward_transfer_s": (backward_transfer_s, num_stages - 1),
        "sync_s": (sync_s, num_stages),
        "update_s": (update_s, num_stages),
        "forward_s": (forward_s, num_stages),
    }
    for name, (seconds, number) in named.items():
        if len(seconds) != number:
            raise ModelError(f"{name} has {len(seconds)} entries; {num_stages} stages need {number}.")
        if not all(0 <= one < float("inf") for one in seconds):
            raise ModelError(f"{name} must be finite and >= 0.")


# --- Where the stages of a pipeline stand: machines in a line, and what every stage's devices share


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The layers ``first`` to ``last`` on ``replicas`` devices of the machine group with index ``group``."""

    first: int
    last: int
    group: int = 0
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The devices of a stage: so many of a group, from device ``start`` on, in machines of ``devices_per_machine``."""

    group: int
    start: int
    replicas: int
    devices_per_machine: int

    @property
    def first_machine(self) -> int:
        """Index of its first machine in the group."""
        return self.start // self.devices_per_machine

    @property
    def num_machines(self) -> int:
        """Machines that it stands on, wholly or in part."""
        return (self.start + self.replicas - 1) // self.devices_per_machine - self.first_machine + 1

    @property
    def most_per_machine(self) -> int:
        """Devices on the machine that has most of them."""
        first = self.devices_per_machine - self.start % self.devices_per_machine
        if self.num_machines == 1:
            return self.replicas
        if self.num_machines > 2:
            return self.devices_per_machine
        return max(first, self.replicas - first)

    @property
    def is_even(self) -> bool:
        """Whether all its machines hold equally many of its devices."""
        return self.num_machines * self.most_per_machine == self.replicas


class PlaceError(ValueError):
    """A group has fewer devices than its stages take; ``group`` is its index, ``needed`` what they take."""

    def __init__(self, group: int, needed: int) -> None:
        super().__init__(group, needed)
        self.group, self.needed = group, needed


def places_of(stages: Iterable[Stage], machines: Sequence["StageMachines"]) -> tuple[Place, ...]:
    """Return where stages stand that take the devices of their groups in order.

    Raises
    ------
    PlaceError
        If a group has too few devices.

    Examples
    --------
    Three stages on machines of four devices stand on one, two and one machine:

    >>> [place.num_machines for place in _places([(0, 3), (0, 2), (0, 3)], [4])]
    [1, 2, 1]
    """
    stages = tuple(stages)
    places = _places([(stage.group, stage.replicas) for stage in stages], [one.devices_per_machine for one in machines])
    for place in places:
        if place.start + place.replicas > machines[place.group].num_devices:
            needed = sum(stage.replicas for stage in stages if stage.group == place.group)
            raise PlaceError(place.group, needed)
    return places


def _places(taken: Sequence[tuple[int, int]], devices_per_machine: Sequence[int]) -> tuple[Place, ...]:
    """Return the places of (group, replicas), one after another."""
    free = [0] * len(devices_per_machine)
    places = []
    for group, replicas in taken:
        places.append(
            Place(group=group, start=free[group], replicas=replicas, devices_per_machine=devices_per_machine[group])
        )
        free[group] += replicas
    return tuple(places)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageMachines:
    """A machine group as stages see it; rates are those that are reached, efficiency included.

    Attributes
    ----------
    profile
        Seconds per sample of every layer on its device, and ``update_s`` of the whole network.
    memory_limit_bytes
        What a device may hold.
    network_bytes_per_s, network_latency_s
        Of all network cards of a machine, one direction; between two of its machines.
    inside_bytes_per_s, inside_latency_s
        Of one device's link to another in the machine.
    overhead_s, reduce_bytes_per_s, algorithms, curves
        Of an all-reduce, as :mod:`planner.models.communication` takes them; a curve of so many devices goes before.
    """

    name: str
    num_machines: int
    devices_per_machine: int
    profile: Profile
    memory_limit_bytes: float = float("inf")
    network_bytes_per_s: float = float("inf")
    network_latency_s: float = 0.0
    inside_bytes_per_s: float = float("inf")
    inside_latency_s: float = 0.0
    overhead_s: float = 0.0
    delay_s: float = 0.0
    reduce_bytes_per_s: float = float("inf")
    algorithms: tuple[str, ...] = ("ring", "tree", "two_level")
    curves: Mapping[int, TransferCost] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        """Devices of all its machines."""
        return self.num_machines * self.devices_per_machine

    def all_reduce(self, place: Place) -> TransferCost:
        """Return the cost of an all-reduce over the devices of a place, by its cheapest algorithm.

        Two levels need equally many devices on every machine; where they are uneven, and no other algorithm is
        allowed, the ring is taken.
        """
        if curve := self.curves.get(place.replicas):
            return delayed(curve, self.delay_s)
        machines, most = place.num_machines, place.most_per_machine
        spans = machines > 1
        network = self.network_bytes_per_s if spans else float("inf")
        inside = self.inside_bytes_per_s if most > 1 else float("inf")
        inside_latency_s = self.inside_latency_s if most > 1 else 0.0
        network_latency_s = self.network_latency_s if spans else 0.0
        flat: dict[str, Any] = {
            "bandwidth_bytes_per_s": min(network, inside),
            "latency_s": max(network_latency_s, inside_latency_s),
            "overhead_s": self.overhead_s + self.delay_s,
            "reduce_bytes_per_s": self.reduce_bytes_per_s,
        }
        forms: dict[str, TransferCost] = {"ring": ring_all_reduces(num_devices=[place.replicas], **flat).at(0)}
        trees = double_binary_tree_all_reduces(num_devices=[machines if spans else most], **flat).at(0)
        chain_s = 2 * (most - 1) * inside_latency_s if spans else 0.0
        forms["tree"] = delayed(trees, chain_s)
        if place.is_even:
            forms["two_level"] = two_level_all_reduces(
                num_machines=[machines],
                devices_per_machine=most,
                inside_bytes_per_s=inside,
                network_bytes_per_s=network,
                inside_latency_s=inside_latency_s,
                network_latency_s=network_latency_s,
                overhead_s=self.overhead_s + self.delay_s,
                reduce_bytes_per_s=self.reduce_bytes_per_s,
            ).at(0)
        allowed = [forms[name] for name in self.algorithms if name in forms]
        return cheapest_of(allowed or [forms["ring"]])


# --- A layer graph as a line: an order that breaks no edge, and what crosses every cut of it
# The order is that of ``Dnn.layers``: topological, ties by insertion, so every edge leads forward. A stage of a
# pipeline
# is a run of consecutive layers; every edge then stays in its stage or leads to a later one. What crosses a cut are the
# outputs of the *distinct producers* before it that some layer behind it still reads: a tensor that two later layers
# read
# crosses once, and one that skips over whole stages is relayed by each of them. Other orders of the same graph may
# cross
# less; choosing among them is left out.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linearisation:
    """The order of the layers and, for each, how long its output is needed.

    Attributes
    ----------
    names
        Of the L layers, in order.
    last_reader
        By layer, the position of the last layer that reads its output; its own position where none does.
    output_elements
        By layer, of one sample.
    cut_elements
        L - 1 numbers: elements of one sample that cross the cut behind each layer but the last.
    """

    names: tuple[str, ...]
    last_reader: NDArray[np.int64]
    output_elements: NDArray[np.int64]
    cut_elements: NDArray[np.int64]

    def producers_across(self, cut: int) -> tuple[int, ...]:
        """Return the layers whose outputs cross the cut behind layer ``cut``."""
        before = np.arange(cut + 1)
        return tuple(before[self.last_reader[: cut + 1] > cut].tolist())

    def relayed_by(self, first: int, last: int) -> tuple[int, ...]:
        """Return the earlier layers whose outputs the stage ``first`` to ``last`` must pass on to later ones."""
        before = np.arange(first)
        return tuple(before[self.last_reader[:first] > last].tolist())


def linearise(dnn: Dnn) -> Linearisation:
    """Return the network as a line.

    Notes
    -----
    The output of layer u crosses the cuts ``u .. last_reader(u) - 1``: one difference array, summed up, gives all cuts
    in ``O(V + E)``.
    """
    position = {layer.name: index for index, layer in enumerate(dnn.layers)}
    last_reader = np.arange(len(dnn.layers))
    for source, target in dnn.graph.edges:
        index = position[source]
        last_reader[index] = max(last_reader[index], position[target])
    elements = np.array([layer.num_output_elements for layer in dnn.layers], dtype=np.int64)
    change = np.zeros(len(elements) + 1, dtype=np.int64)
    np.add.at(change, np.arange(len(elements)), elements)
    np.add.at(change, last_reader, -elements)
    return Linearisation(
        names=tuple(position),
        last_reader=last_reader,
        output_elements=elements,
        cut_elements=np.cumsum(change)[: len(elements) - 1],
    )


# --- What the stages of a pipeline cost: seconds of a micro-batch, gradients, boundaries, and bytes on a device
# Layers stand in the order of :func:`planner.models.schedule.linearise`; a stage is the run ``first`` to ``last``,
# both included, on ``replicas`` equal devices of one machine group. All questions are answered from prefix sums, and
# take
# arrays of ``first`` and ``last`` as well as numbers.
#
# - A micro-batch of b samples is split over the r replicas: each computes ``ceil(b / r)`` samples.
# - Placement: the stages of a group take its devices in their order, filling machine after machine.
# - A replicated stage exchanges its gradients in one all-reduce, by the cheapest closed form that its placement allows;
# its update takes the share of the whole network's that its trainable parameters have.
# - A boundary between two stages on the same one machine uses the link inside: ``latency + bytes / (min(r, r') B)``,
# each
# device with a link of its own. Any other uses the network: ``latency + bytes / min(k B, k' B')``, with the k machines
# that a stage stands on and their network cards together; that other stages on these machines may send at the same time
# is left out.
# - Errors come back as large as the outputs went; images or words that are relayed are charged likewise.
#
# Memory of a stage: weights, gradients and optimiser's state of its layers; for each micro-batch in flight the
# outputs of
# its layers and the input that it received; one outgoing and one incoming error; the reserve. No recomputation.

Positions = int | NDArray[np.int64]

_STATISTIC_BYTES = 4  # batch-norm statistics stay in fp32, as in planner.models.memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """The network in its linear order, in bytes: prefix sums with a leading 0, so that a run is one difference.

    ``cut_bytes`` is by position in front of a layer: 0 in front of the first and behind the last.
    """

    names: tuple[str, ...]
    weights_bytes: Floats
    gradients_bytes: Floats
    optimizer_bytes: Floats
    activations_bytes: Floats
    trainable_share: Floats
    cut_bytes: Floats
    line: Linearisation

    @classmethod
    def of(cls, dnn: Dnn, precision: Precision) -> "LayerBytes":
        """Return the bytes of a network."""
        line = linearise(dnn)
        trainable = _prefix([layer.num_trainable for layer in dnn.layers])
        moving = _prefix([layer.num_moving for layer in dnn.layers])
        return cls(
            names=line.names,
            weights_bytes=trainable * precision.weight_bytes + moving * _STATISTIC_BYTES,
            gradients_bytes=trainable * precision.gradient_bytes,
            optimizer_bytes=trainable * (precision.master_bytes + precision.optimizer_bytes),
            activations_bytes=_prefix([layer.num_stored_elements for layer in dnn.layers]) * precision.activation_bytes,
            trainable_share=trainable / max(1.0, float(trainable[-1])),
            cut_bytes=np.array([0.0, *line.cut_elements.tolist(), 0.0]) * precision.activation_bytes,
            line=line,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of a stage on each of its devices; arrays where the stages were.

    Attributes
    ----------
    in_flight_bytes
        Of one micro-batch in flight: outputs of the layers, and the input that the stage received.
    error_bytes
        One outgoing and one incoming error.
    """

    weights_bytes: Any
    gradients_bytes: Any
    optimizer_bytes: Any
    in_flight_bytes: Any
    error_bytes: Any

    def total_bytes(self, num_in_flight: Any) -> Any:
        """Return the bytes with so many micro-batches in flight; the reserve comes on top, once a device."""
        fixed = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.error_bytes
        return fixed + num_in_flight * self.in_flight_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class StageCosts:
    """What any stage of one question costs.

    Parameters
    ----------
    layers, machines
        The network, and the groups that stages may stand on.
    latency_s
        Between a machine of one group and a machine of another, by their indices.
    reserve_bytes
        On every device, beside what stages hold.
    """

    layers: LayerBytes
    machines: tuple[StageMachines, ...]
    latency_s: Floats
    reserve_bytes: float = 0.0

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers.names)

    @cached_property
    def _seconds(self) -> tuple[tuple[Floats, Floats], ...]:
        """Prefix sums of forward and backward seconds of one sample, by group."""
        return tuple((_prefix(one.profile.forward_s), _prefix(one.profile.backward_s)) for one in self.machines)

    @cached_property
    def _all_reduces(self) -> dict[Place, TransferCost]:
        """Costs of exchanges by place, as they are asked for: searches ask for few places, many times."""
        return {}

    def forward_s(self, first: Positions, last: Positions, *, group: int, num_samples: Any) -> Any:
        """Return the forward seconds of ``num_samples`` on one device: ``ceil(b / r)`` of a micro-batch."""
        return _run(self._seconds[group][0], first, last) * num_samples

    def backward_s(self, first: Positions, last: Positions, *, group: int, num_samples: Any) -> Any:
        """Return the backward seconds of ``num_samples`` on one device."""
        return _run(self._seconds[group][1], first, last) * num_samples

    def update_s(self, first: Positions, last: Positions, *, group: int) -> Any:
        """Return the seconds of the optimiser's step on the parameters of these layers."""
        return _run(self.layers.trainable_share, first, last) * self.machines[group].profile.update_s

    def gradient_bytes(self, first: Positions, last: Positions) -> Any:
        """Return the bytes of the gradients of these layers, which replicas exchange."""
        return _run(self.layers.gradients_bytes, first, last)

    def sync_s(self, first: Positions, last: Positions, place: Place) -> Any:
        """Return the seconds in which the replicas of a stage exchange its gradients; 0 for one replica."""
        if isinstance(last, int):  # searches ask this for the same few stages, many times
            key = (first, last, place)
            if key not in self._syncs_s:
                self._syncs_s[key] = self._sync_s(first, last, place)
            return self._syncs_s[key]
        return self._sync_s(first, last, place)

    @cached_property
    def _syncs_s(self) -> dict[Any, float]:
        """Seconds of exchanges by first layer, last layer and place."""
        return {}

    def _sync_s(self, first: Positions, last: Positions, place: Place) -> Any:
        """Return the seconds of an exchange, computed."""
        size = np.asarray(self.gradient_bytes(first, last), dtype=np.float64)
        if place.replicas > 1 and place not in self._all_reduces:
            self._all_reduces[place] = self.machines[place.group].all_reduce(place)
        seconds = self._all_reduces[place](size) if place.replicas > 1 else size * 0.0
        return seconds if size.ndim else float(seconds)

    def boundary_bytes(self, position: Positions) -> Any:
        """Return the bytes of one sample that cross the cut in front of layer ``position``, in each direction."""
        return self.layers.cut_bytes[position]

    def transfer_s(self, position: Positions, before: Place, after: Place, *, microbatch_size: int) -> Any:
        """Return the seconds of one micro-batch over the cut in front of layer ``position``, in either direction.

        ``microbatch_size`` counts the samples of all replicas together. Nothing crosses in 0 s.
        """
        latency_s, rate = self.boundary_link(before, after)
        if isinstance(position, int):
            size = float(self.boundary_bytes(position)) * microbatch_size
            return latency_s + size / rate if size > 0 else 0.0
        sizes = np.asarray(self.boundary_bytes(position), dtype=np.float64) * microbatch_size
        seconds = np.where(sizes > 0, latency_s + sizes / rate, 0.0)
        return seconds if seconds.ndim else float(seconds)

    def boundary_link(self, before: Place, after: Place) -> tuple[float, float]:
        """Return latency and bytes a second between the devices of two stages."""
        one, other = self.machines[before.group], self.machines[after.group]
        if before == after:
            return 0.0, float("inf")  # the same devices: chunks of one device
        is_inside = before.group == after.group and before.num_machines == after.num_machines == 1
        if is_inside and before.first_machine == after.first_machine:
            return one.inside_latency_s, one.inside_bytes_per_s * min(before.replicas, after.replicas)
        rate = min(before.num_machines * one.network_bytes_per_s, after.num_machines * other.network_bytes_per_s)
        return float(self.latency_s[before.group, after.group]), rate

    def memory(self, first: Positions, last: Positions, *, num_samples: Any) -> StageMemory:
        """Return what each device of a stage holds, with ``num_samples`` of every micro-batch."""
        layers, end = self.layers, np.asarray(last) + 1
        received, sent = self.boundary_bytes(first), layers.cut_bytes[end]
        return StageMemory(
            weights_bytes=_run(layers.weights_bytes, first, last),
            gradients_bytes=_run(layers.gradients_bytes, first, last),
            optimizer_bytes=_run(layers.optimizer_bytes, first, last),
            in_flight_bytes=(_run(layers.activations_bytes, first, last) + received) * num_samples,
            error_bytes=(received + sent) * num_samples,
        )


def _prefix(values: Any) -> Floats:
    """Return prefix sums with a leading 0."""
    return np.concatenate(([0.0], np.cumsum(np.asarray(values, dtype=np.float64))))


def _run(prefix: Floats, first: Positions, last: Positions) -> Any:
    """Return the sum of ``first`` to ``last``, by number or by array."""
    if isinstance(last, int):
        return prefix[last + 1] - prefix[first]
    return prefix[np.asarray(last) + 1] - prefix[first]


# --- List scheduling: tasks with predecessors on named resources, each of which does one task at a time
# Whenever a resource is free it starts, of the tasks that are ready for it, the one with the smallest priority, ties by
# index; it never waits for a better one (R. L. Graham, SIAM J. Appl. Math. 17(2), 1969, doi:10.1137/0117039). With one
# resource only, and priorities by ready time, this is the first-come-first-served channel of :mod:`planner.channel`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task; tasks are known by their index in a sequence.

    Attributes
    ----------
    duration_s
        Finite and >= 0; the resource is held for all of it.
    after
        Indices of the tasks that must have ended; all smaller than the task's own, so that there is no cycle.
    priority
        Smaller goes first.
    lag_s
        From the end of the last predecessor, or from 0 if there is none, to the earliest start; nothing is held.
    """

    duration_s: float
    resource: str
    after: tuple[int, ...] = ()
    priority: tuple[int, ...] = ()
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Start and end of every task, by its index."""

    start_s: Floats
    end_s: Floats

    @property
    def makespan_s(self) -> float:
        """End of the last task; 0 if there is none."""
        return float(self.end_s.max(initial=0.0))


def list_schedule(tasks: Sequence[Task]) -> Schedule:
    """Return when each task runs: ``O((V + E) log V)``. Proves nothing about the best makespan; see `lower_bound_s`.

    Raises
    ------
    ModelError
        If a time is negative or not finite, or a task does not stand after its predecessors.

    >>> tasks = [Task(duration_s=2, resource="a"), Task(duration_s=3, resource="b", after=(0,)),
    ...          Task(duration_s=1, resource="b")]
    >>> list_schedule(tasks).end_s.tolist()
    [2.0, 5.0, 1.0]
    """
    _list_schedule_check(tasks)
    run = _Run(tasks)
    while run.events:
        run.step()
    start_s = np.array(run.start_s, dtype=np.float64)
    return Schedule(start_s=start_s, end_s=start_s + [task.duration_s for task in tasks])


class _Run:
    """The state of a simulation. Events are (time, index, whether the task ends; else it gets ready)."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.start_s = [0.0] * len(tasks)
        self.num_open = [len(task.after) for task in tasks]
        self.followers: list[list[int]] = [[] for _ in tasks]
        for index, task in enumerate(tasks):
            for before in task.after:
                self.followers[before].append(index)
        self.events = [(task.lag_s, index, False) for index, task in enumerate(tasks) if not task.after]
        heapq.heapify(self.events)
        self.waiting: dict[str, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        self.busy: set[str] = set()

    def step(self) -> None:
        """Advance to the next moment, hear of everything that happens then, and start what can start."""
        now = self.events[0][0]
        touched: dict[str, None] = {}  # an ordered set: the order of a set of texts differs between runs
        while self.events and self.events[0][0] == now:
            _, index, is_end = heapq.heappop(self.events)
            touched[self.tasks[index].resource] = None
            if is_end:
                self._end(index, now)
            else:
                heapq.heappush(self.waiting[self.tasks[index].resource], (self.tasks[index].priority, index))
        for resource in touched:
            if resource not in self.busy and self.waiting[resource]:
                self._start(heapq.heappop(self.waiting[resource])[1], now)

    def _end(self, index: int, now: float) -> None:
        """Free the resource, and announce the followers that waited for this task last."""
        self.busy.discard(self.tasks[index].resource)
        for follower in self.followers[index]:
            self.num_open[follower] -= 1
            if not self.num_open[follower]:
                heapq.heappush(self.events, (now + self.tasks[follower].lag_s, follower, False))

    def _start(self, index: int, now: float) -> None:
        """Hold the resource until the task ends."""
        self.start_s[index] = now
        self.busy.add(self.tasks[index].resource)
        heapq.heappush(self.events, (now + self.tasks[index].duration_s, index, True))


# -- lower bounds ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Path:
    """The longest path to each task's end, and its last predecessor on it; -1 for none."""

    end_s: list[float] = field(default_factory=list)
    via: list[int] = field(default_factory=list)


def critical_path(tasks: Sequence[Task]) -> tuple[int, ...]:
    """Return the tasks of a longest path, first to last: what bounds the makespan were resources unlimited."""
    path = _longest_paths(tasks)
    index = int(np.argmax(path.end_s)) if path.end_s else -1
    found = []
    while index >= 0:
        found.append(index)
        index = path.via[index]
    return tuple(reversed(found))


def longest_path_s(tasks: Sequence[Task]) -> float:
    """Return the length of the critical path, lags included: no schedule is shorter."""
    return max(_longest_paths(tasks).end_s, default=0.0)


def lower_bound_s(tasks: Sequence[Task]) -> float:
    """Return the longer of the critical path and the work of the busiest resource."""
    work_s: dict[str, float] = defaultdict(float)
    for task in tasks:
        work_s[task.resource] += task.duration_s
    return max(longest_path_s(tasks), max(work_s.values(), default=0.0))


def _longest_paths(tasks: Sequence[Task]) -> _Path:
    """Return the longest path to every task, in one pass over the edges."""
    _list_schedule_check(tasks)
    path = _Path()
    for task in tasks:
        last = max(task.after, key=path.end_s.__getitem__, default=-1)
        ready_s = path.end_s[last] if last >= 0 else 0.0
        path.end_s.append(ready_s + task.lag_s + task.duration_s)
        path.via.append(last)
    return path


def _list_schedule_check(tasks: Sequence[Task]) -> None:
    """Refuse times that are no times, and predecessors that do not come first."""
    for index, task in enumerate(tasks):
        for what, seconds in (("duration_s", task.duration_s), ("lag_s", task.lag_s)):
            if not 0 <= seconds < float("inf"):
                raise ModelError(f"task {index}: {what} must be finite and >= 0, not {seconds}.")
        for before in task.after:
            if not 0 <= before < index:
                raise ModelError(
                    f"task {index} of {len(tasks)} comes after task {before}, which must stand before it. "
                    f"Give tasks in topological order, numbered from 0."
                )
