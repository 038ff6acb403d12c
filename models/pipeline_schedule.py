"""Event simulation of pipeline schedules: every device does its tasks in a fixed order, each as soon as it can.

K stages in the order of the layers run on p devices (a device stands for all replicas of its stages), stage k on device
``k mod p``; there are ``K = p`` stages but for the interleaved schedule, which has v chunks a device and ``K = p v``.
Every one of m micro-batches passes forward through all stages and backward through all of them.

- Device order: the schedule's, see :mod:`planner.models.pipeline_orders`. A task starts when the one before it on its
  device has ended and its input has arrived.
- Input: the forward of stage k needs its micro-batch's output of stage k - 1, the backward of stage k the error from
  stage k + 1; the last stage's backward needs its own forward.
- Transfers overlap with computation. Between device d and the next one there is one channel for outputs and one for
  errors; each sends in the order in which its device produces, one at a time. The channels of neighbouring pairs, and
  the two directions, do not slow each other.
- When a device's last backward has ended, it exchanges the gradients of its stages and updates their weights
  (``sync_s``, ``update_s``; in turn for several chunks). Meanwhile other devices still drain; nothing of a device's own
  computation hides its exchange, which is conservative. The next iteration starts after the last update: the weights
  are never stale.

All orders are fixed, so start times are longest paths in a graph that does not depend on the times: the makespan is
monotone in every time given, and doubles if all double.

Sources: those of the orders. No closed form holds for unequal stages.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.pipeline_orders import (
    SCHEDULES,
    Order,
    bubble_share,
    check_schedule,
    in_flight,
    order_of,
    peak_weight,
)

__all__ = [
    "SCHEDULES",
    "PipelineTask",
    "ScheduleRun",
    "bubble_share",
    "in_flight",
    "order_of",
    "peak_weight",
    "simulate",
]


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
        If a time is negative or not finite, the lengths do not agree, or the schedule does not exist for these numbers.

    >>> run = simulate([2, 1], [2, 1], [0], [0], num_microbatches=2, schedule="1f1b")
    >>> run.makespan_s, run.in_flight
    (8.0, (2, 1))
    """
    num_stages = len(forward_s)
    sync_s = [0.0] * num_stages if sync_s is None else sync_s
    update_s = [0.0] * num_stages if update_s is None else update_s
    _check(forward_s, backward_s, forward_transfer_s, backward_transfer_s, sync_s, update_s)
    if chunks_per_device < 1 or num_stages % chunks_per_device:
        raise ModelError(f"{num_stages} stages are no multiple of {chunks_per_device} chunks a device.")
    num_devices = num_stages // chunks_per_device
    check_schedule(schedule, num_devices, num_microbatches, chunks_per_device)
    walk = None
    if with_tasks or num_devices < _AT_ONCE.get(schedule, num_devices + 1):
        orders = order_of(schedule, num_devices, num_microbatches, chunks_per_device)
        walk = _Walk(orders, forward_s, backward_s, forward_transfer_s, backward_transfer_s, num_microbatches)
        walk.run()
        compute_end_s = np.array(walk.free_s)
    else:
        compute_end_s = _end_s(
            schedule, forward_s, backward_s, forward_transfer_s, backward_transfer_s, num_microbatches
        )
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


def _end_s(
    schedule: str,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_transfer_s: Sequence[float],
    backward_transfer_s: Sequence[float],
    num_microbatches: int,
) -> Floats:
    """Return the end of every device's last backward; the same as the walk's, but for rounding, and quicker."""
    at_once = _gpipe_end_s if schedule == "gpipe" else _one_forward_one_backward_end_s
    return at_once(
        np.asarray(forward_s, dtype=np.float64),
        np.asarray(backward_s, dtype=np.float64),
        np.asarray(forward_transfer_s, dtype=np.float64),
        np.asarray(backward_transfer_s, dtype=np.float64),
        num_microbatches,
    )


def _gpipe_end_s(f: Floats, b: Floats, c: Floats, c_back: Floats, m: int) -> Floats:
    """Return the end of every device's last backward under GPipe: stage after stage, all micro-batches at once."""
    ready_s, ends_s = np.zeros(m), np.zeros(len(f))
    for stage, seconds in enumerate(f.tolist()):
        done_s = _in_turn_s(ready_s, seconds)
        ends_s[stage] = done_s[-1]
        if stage + 1 < len(f):
            ready_s = _in_turn_s(done_s, c[stage])
    ready_s = np.zeros(m)
    for stage in range(len(f) - 1, -1, -1):
        done_s = _in_turn_s(np.maximum(ready_s, ends_s[stage]), b[stage])
        ends_s[stage] = done_s[-1]
        if stage:
            ready_s = _in_turn_s(done_s, c_back[stage - 1])
    return ends_s


def _in_turn_s(ready_s: Floats, seconds: float) -> Floats:
    """Return when jobs of equal length end, one at a time: ``max over k <= j of (ready_k - k s) + (j + 1) s``."""
    before_s = np.arange(len(ready_s)) * seconds
    latest_s: Floats = np.maximum.accumulate(ready_s - before_s)
    return latest_s + before_s + seconds


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


# From how many devices on numpy is faster than the walk.
_AT_ONCE = {"gpipe": 1, "1f1b": 8}


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


def _check(
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
