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
monotone in every time given, and doubles if all double. GPipe is two lines of equal jobs, for which these paths have a
closed form; of many micro-batches under the other schedules the steady rounds are leapt over, exactly
(:mod:`planner.models.pipeline_steady`).

Sources: those of the orders. No closed form holds for unequal stages.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.pipeline_at_once import end_at_once_s
from planner.models.pipeline_orders import (
    SCHEDULES,
    Order,
    bubble_share,
    check_schedule,
    in_flight,
    order_of,
    peak_weight,
)
from planner.models.pipeline_steady import least_microbatches, steady_end_s

__all__ = [
    "MOST_LISTED",
    "SCHEDULES",
    "PipelineTask",
    "ScheduleRun",
    "bubble_share",
    "in_flight",
    "order_of",
    "peak_weight",
    "simulate",
]

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
    _check(forward_s, backward_s, forward_transfer_s, backward_transfer_s, sync_s, update_s)
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
