"""Pipelines of many micro-batches: their steady rounds are leapt over, exactly.

After its warm-up a device repeats the same few tasks, a *round*, with the micro-batches counted up: one micro-batch
under 1F1B, p of them under the interleaved schedule. What a round leaves behind is a vector x of times: when each
device is free, when each channel is, and when each output or error arrives that was sent and not yet used. A round
turns x into ``g(x)``, each entry of which is a greatest of sums ``x_i + constant`` (the tasks' times): longest paths.
So g is convex, and ``g(x + s) = g(x) + s`` for one number s added to all entries.

*The leap.* Let c rounds add d to x, and c more rounds add the same d (a vector: devices may still drift apart). Along
``x + t d`` each entry of ``h(t) = g^c(x + t d) - (x + t d)`` is convex and equals that of d at t = 0 and t = 1. If it
does at t = n, too, it does so everywhere in between. Hence ``n + 1`` times c rounds add ``(n + 1) d``, and one round
at the far end proves it. Where all entries of d are equal, that holds for every n; else n is found by bisection, and
rounds are run one by one again from there.

All of it is done in whole numbers: every floating-point number is one divided by a power of two, so nothing is rounded
but the result. Sooner or later all rounds add the same (F. Baccelli, G. Cohen, G. J. Olsder, J.-P. Quadrat,
Synchronization and Linearity, 1992, section 3.7); how soon depends on the times. Rounds that cannot be leapt over are
simulated, up to ``MOST_TASKS`` tasks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.pipeline_orders import Order, order_of

__all__ = ["MOST_TASKS", "least_microbatches", "steady_end_s"]

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

    Arguments are those of :func:`planner.models.pipeline_schedule.simulate`; there must be at least
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
