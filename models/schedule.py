"""Pipeline schedules: when each ends. Orders of tasks are data (:mod:`planner.models.orders`), ends are longest paths.

A device stands for all replicas of its stages.

**Longest paths.** A task starts when the one before it on its device has ended and its input has arrived: the output of
stage k - 1 for a forward, the error of stage k + 1 for a backward, for that of the last stage its own forward. What is
sent takes time on a line of its own: between a device and the next there is one channel down the line and one up, which
carry outputs and errors (in a V both carry both), each of which sends one at a time, in the order in which its device
produces; at the turn of a V nothing is sent. Where sending blocks, the line is the device itself.
So all tasks and transfers are nodes with at most two predecessors each,

    end = max(end of the one before it on its line, end of what it waits for) + its seconds,

found in one pass over a topological order that is the same for all times (:func:`simulate`). Ends are therefore
monotone in every time, and double if all double.

**Many micro-batches** are leapt over, exactly. After its warm-up a device repeats the same few tasks, a *round*, with
the micro-batches counted up: p of them interleaved, one under the others. A round turns the vector x of times at which
lines are free and outputs arrive into ``g(x)``, each entry the greatest of sums ``x_i + constant``. So g is convex, and
``g(x + s) = g(x) + s`` for one number s added to all entries. Let c rounds add d to x, and c more rounds add the same d
(a vector: devices may still drift apart). Along ``x + t d`` each entry of ``h(t) = g^c(x + t d) - (x + t d)`` is convex
and equals that of d at t = 0 and t = 1. If it does at t = n, too, it does so everywhere in between. Hence ``n + 1``
times c rounds add ``(n + 1) d``, and one round at the far end proves it. Where all entries of d are equal, that holds
for every n; else n is found by bisection. All of it is done in whole numbers: every floating-point number is one
divided by a power of two, so nothing is rounded but the result. Sooner or later all rounds add the same (F. Baccelli,
G. Cohen, G. J. Olsder, J.-P. Quadrat, Synchronization and Linearity, 1992, section 3.7); how soon depends on the times.

**Fast paths**, tested against the longest path: GPipe in closed form, two lines of equal jobs; and 1F1B round by round,
for all devices and any number of pipelines at once (:func:`one_forward_one_backward_s`). Closed forms and bounds for
many layouts stand in :mod:`planner.models.transformer_schedule`.

Many pipelines of one size, whatever their stages, are played together, wave by wave of tasks that do not depend on one
another (:func:`played_s`).

**The end.** When a device's last backward has ended it exchanges the gradients of its stages and updates their weights.
Other devices still drain meanwhile; nothing of a device's own computation hides its exchange, which is conservative.
The next iteration starts after the last update: the weights are never stale. Left out: channels of different pairs, or
of the two directions, that slow each other; jitter.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from math import lcm
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen
from planner.models.orders import (
    FORWARD,
    IS_V,
    PUTS_OFF,
    WEIGHTS,
    WHOLE,
    Order,
    Task,
    check_schedule,
    devices_of,
    in_flight,
    neighbour_of,
    order_of,
    slots_of_block,
    slotted,
)

Ints = NDArray[np.int64]

Number = TypeVar("Number", int, float)

MOST_LISTED = 500_000  # forwards and backwards that a timeline may have
MOST_TASKS = 4_000_000  # forwards and backwards that are simulated where rounds do not become regular, some seconds
MOST_ROUNDS = 4_096  # of 1F1B that are played one by one for many pipelines; or so many times the stages
_ROUNDS_PER_STAGE = 8
_ROUNDING = 1e-12
_MOST_SAME = 64  # rounds after which things may repeat, at most
_MANY = 64  # micro-batches from which on leaps may pay
_AT_ONCE = 12  # devices from which on 1F1B round by round is quicker than a longest path whose order is not known yet
_COLUMNS_PER_STAGE = 16  # pipelines a stage from which on a running maximum is quicker row by row
_KEPT_TASKS = 5_000  # tasks of a schedule whose topological order is worth remembering


# -- one iteration ---------------------------------------------------------------------------------------------------


@frozen
class PipelineTimes:
    """Seconds of K stages, each time finite and >= 0."""

    # forward_s, backward_s: by stage, of one micro-batch; the backward without what ``weights_s`` has
    forward_s: Sequence[float]
    backward_s: Sequence[float]
    # output_s, error_s: by boundary (one fewer than stages): from stage k to stage k + 1, and back. Empty: nothing
    # takes time
    output_s: Sequence[float] = ()
    error_s: Sequence[float] = ()
    # sync_s, update_s: by stage, once an iteration: the exchange of gradients between replicas, and the optimiser.
    # Empty: 0
    sync_s: Sequence[float] = ()
    update_s: Sequence[float] = ()
    # by stage, of the gradients of the weights, of schedules that put them off. Empty: 0
    weights_s: Sequence[float] = ()


@frozen
class PipelineTask:
    """What runs from ``start_s`` to ``end_s``.

    Kinds: forward, backward, weights, whole (a backward with the gradients of the weights, where others are without),
    send_output, send_error, sync, update. ``stage`` is the one that computes or sends; a sync or update is the
    device's, and has no micro-batch.
    """

    kind: str
    device: int
    stage: int
    microbatch: int | None
    start_s: float
    end_s: float


_KINDS = ("forward", "backward", "weights", "whole", "send_output", "send_error")  # of a node, by its row of seconds
_SENDS = len(_KINDS) - 2


@frozen(eq=False)
class ScheduleRun:
    """One iteration."""

    makespan_s: float  # end of the last update
    busy_s: Floats  # by device: forwards and backwards
    compute_end_s: Floats  # by device: end of its last task; where sending blocks, of what it sent last
    end_s: Floats  # by device: end of its exchange and update
    idle_s: Floats  # by device: seconds of the makespan in which it neither computes, exchanges nor updates
    # by stage: most micro-batches whose forward has started and whose backward has not ended
    in_flight: tuple[int, ...]
    tasks: tuple[PipelineTask, ...] = ()  # everything that ran, by device and time; empty unless asked for


def simulate(
    times: PipelineTimes,
    *,
    schedule: str,
    num_microbatches: int,
    chunks_per_device: int = 1,
    is_blocking: bool = False,
    with_tasks: bool = False,
) -> ScheduleRun:
    """Return one iteration of a pipeline.

    Parameters
    ----------
    times
        Seconds of all stages and boundaries.
    schedule, num_microbatches, chunks_per_device
        As of :func:`order_of`.
    is_blocking
        Whether a device does nothing else while it sends.
    with_tasks
        Whether to list all tasks, for a timeline.

    Raises
    ------
    ModelError
        If a time is negative or not finite, the lengths do not agree, the schedule does not exist for these numbers, or
        has weights_s and puts none off; or if there are too many tasks to list, or to simulate where they do not
        become regular.

    >>> times = PipelineTimes(forward_s=[2, 1], backward_s=[2, 1])
    >>> run = simulate(times, schedule="1f1b", num_microbatches=2)
    >>> run.makespan_s, run.in_flight
    (8.0, (2, 1))
    """
    num_stages, m, v = len(times.forward_s), num_microbatches, chunks_per_device
    columns = _columns(times)
    if v < 1 or num_stages % v:
        raise ModelError(f"{num_stages} stages are no multiple of {v} chunks a device.")
    p = num_stages // v
    check_schedule(schedule, p, m, v)
    if with_tasks and 2 * m * num_stages > MOST_LISTED:
        most = MOST_LISTED // (2 * num_stages)
        raise ModelError(
            f"{m} micro-batches through {num_stages} stages are too many tasks to draw. Take {most} micro-batches or "
            f"fewer, or leave out the timeline."
        )
    forward_s, backward_s, weights_s, output_s, error_s, sync_s, update_s = columns
    if any(weights_s) and schedule not in PUTS_OFF:
        raise ModelError(f"{schedule} puts no gradients of weights off. Add weights_s to backward_s.")
    is_plain = not (with_tasks or is_blocking)
    tasks: list[list[PipelineTask]] = []
    if is_plain and schedule == "gpipe":
        compute_end_s = _gpipe_end_s(*map(np.array, (forward_s, backward_s, output_s[:-1], error_s[1:])), m=m)
    elif is_plain and schedule != "dualpipe" and m > max(_MANY, p * p // 2, 2 * least_microbatches(p, schedule)):
        compute_end_s = steady_end_s(times, schedule=schedule, num_microbatches=m, chunks_per_device=v)
    elif is_plain and schedule == "1f1b" and p >= _AT_ONCE:
        sent_s = np.array(output_s[:-1]), np.array(error_s[1:])
        compute_end_s = _rounds_end_s(np.array(forward_s), np.array(backward_s), np.array([m]), sent_s)
    else:
        part = (_whole if 2 * m * num_stages <= _KEPT_TASKS else _whole.__wrapped__)(schedule, p, m, v, is_blocking)
        seconds = _rows(columns)
        ends_s = part.run([0.0] * (3 * p), seconds)
        compute_end_s = np.array([ends_s[register] for register in part.kept[:p]])
        tasks = part.tasks(ends_s, seconds, devices_of(schedule, p, v)) if with_tasks else []
    by_device = [
        np.bincount(devices_of(schedule, p, v), weights=one, minlength=p).astype(np.float64)
        for one in (forward_s, backward_s, weights_s, sync_s, update_s)
    ]
    busy_s = (m // 2 if schedule == "dualpipe" else m) * (by_device[0] + by_device[1] + by_device[2])
    synced_s = compute_end_s + by_device[3]
    end_s = synced_s + by_device[4]
    makespan_s = float(end_s.max())
    for device, row in enumerate(tasks):
        marks = (compute_end_s[device], synced_s[device], end_s[device])
        for kind, (start_s, stop_s) in zip(("sync", "update"), pairwise(map(float, marks)), strict=True):
            if stop_s > start_s:
                row.append(
                    PipelineTask(kind=kind, device=device, stage=device, microbatch=None, start_s=start_s, end_s=stop_s)
                )
    return ScheduleRun(
        makespan_s=makespan_s,
        busy_s=busy_s,
        compute_end_s=compute_end_s,
        end_s=end_s,
        idle_s=np.maximum(makespan_s - busy_s - by_device[3] - by_device[4], 0.0),  # but for rounding
        in_flight=in_flight(schedule, p, m, v),
        tasks=tuple(one for row in tasks for one in row),
    )


def _rows(columns: Sequence[list[Number]]) -> list[Number]:
    """Return the seconds of nodes, row by row of ``_KINDS``."""
    forward, backward, weights, output, error = columns[:5]
    whole = [one + other for one, other in zip(backward, weights, strict=True)]
    return [one for row in (forward, backward, weights, whole, output, error) for one in row]


def _columns(times: PipelineTimes) -> list[list[float]]:
    """Return all times by the stage that computes or sends: tasks, what is sent, then sync and update; checked.

    Transfers have a stage more than boundaries: the last sends no output, and the first no error.
    """
    number = len(times.forward_s)
    if not number:
        raise ModelError("a pipeline needs at least one stage.")
    columns = []
    for name in ("forward_s", "backward_s", "weights_s", "output_s", "error_s", "sync_s", "update_s"):
        needed = number - (name in ("output_s", "error_s"))
        values = getattr(times, name)
        column = [float(one) for one in values] or [0.0] * needed * (name != "backward_s")
        if len(column) != needed:
            raise ModelError(f"{name} has {len(column)} entries; {number} stages need {needed}.")
        if not all(0 <= one < float("inf") for one in column):
            raise ModelError(f"{name} must be finite and >= 0.")
        columns.append(column)
    columns[3].append(0.0)
    columns[4].insert(0, 0.0)
    return columns


# -- longest paths ---------------------------------------------------------------------------------------------------


@frozen(kw_only=False)
class _Part:
    """Some tasks and transfers of a schedule as nodes in a topological order, each with a register for its end."""

    # registers of the two predecessors, and the index of its seconds: ``row x K + stage``, rows as in ``_KINDS``.
    # Registers 0 to 3p - 1 are when devices, their channels down the line, and those up are free before; then come
    # arrivals of what was sent before, then the nodes
    nodes: tuple[tuple[int, int, int], ...]
    microbatches: tuple[int, ...]  # of each node
    # the registers that have the same after all nodes: lines, and arrivals that are still waited for
    kept: tuple[int, ...]
    waiting: tuple[Task, ...]  # the tasks that wait for those arrivals

    def run(self, state: Sequence[Number], seconds: Sequence[Number]) -> list[Number]:
        """Return all registers: longest paths."""
        ends = list(state)
        for one, other, index in self.nodes:
            first, second = ends[one], ends[other]
            ends.append((first if first > second else second) + seconds[index])
        return ends

    def tasks(
        self, ends_s: Sequence[float], seconds: Sequence[float], devices: Sequence[int]
    ) -> list[list[PipelineTask]]:
        """Return what a whole schedule does, by device, without transfers that take no time; ``devices``: of stages."""
        num_devices, num_stages = max(devices) + 1, len(devices)
        rows: list[list[PipelineTask]] = [[] for _ in range(num_devices)]
        listed = zip(self.nodes, self.microbatches, ends_s[3 * num_devices :], strict=True)
        for (one, other, index), microbatch, end_s in listed:
            row, stage = divmod(index, num_stages)
            if row < _SENDS or seconds[index] > 0:
                start_s, device = max(ends_s[one], ends_s[other]), devices[stage]
                rows[device].append(
                    PipelineTask(
                        kind=_KINDS[row],
                        device=device,
                        stage=stage,
                        microbatch=microbatch,
                        start_s=start_s,
                        end_s=end_s,
                    )
                )
        return rows


def _part(
    schedule: str,
    orders: Sequence[Order],
    cuts: tuple[Sequence[int], Sequence[int]],
    waiting: Sequence[Task],
    num_stages: int,
    *,
    is_blocking: bool,
    has_sends: bool = True,
) -> _Part:
    """Return the tasks of all devices between two cuts of their orders, each behind what it waits for.

    ``has_sends``: whether transfers are nodes of their own; else seconds of tasks include them.
    """
    p, (low, high) = len(orders), cuts
    device_of = devices_of(schedule, p, num_stages // p)
    goes = [[neighbour_of(schedule, num_stages, kind, stage) for stage in range(num_stages)] for kind in range(WHOLE)]
    comes = [{to for to in row if to is not None} for row in goes]  # stages that wait for another
    lines = list(range(3 * p))  # the register that each line has got to
    arrivals = {task: 3 * p + index for index, task in enumerate(waiting)}
    nodes: list[tuple[int, int, int]] = []
    microbatches: list[int] = []
    position, devices, register = list(low), list(range(p)), 3 * p + len(waiting)
    while position != list(high):
        count = len(nodes)
        for device in devices:
            order, at = orders[device], position[device]
            while at < high[device]:
                task = order[at]
                kind, stage, j = task
                way, line = kind, lines[device]
                if kind >= WHOLE:  # a whole backward waits and sends as any backward
                    way = kind - WEIGHTS
                    task = way, stage, j
                arrived = arrivals.pop(task, -1)
                if arrived < 0:
                    if stage in comes[way]:
                        break
                    arrived = line
                nodes.append((line, arrived, kind * num_stages + stage))
                lines[device], register = register, register + 1
                to = goes[way][stage]
                if to is not None and (not has_sends or (schedule in IS_V and device_of[to] == device)):
                    arrivals[way, to, j] = lines[device]
                elif to is not None:
                    is_down = way == FORWARD if schedule not in IS_V else device_of[to] > device
                    line = device if is_blocking else (1 if is_down else 2) * p + device
                    nodes.append((register - 1, lines[line], (_SENDS + way) * num_stages + stage))
                    arrivals[way, to, j] = lines[line] = register
                    register += 1
                    microbatches.append(j)
                microbatches.append(j)
                at += 1
            position[device] = at
        assert len(nodes) > count, "a task before a cut waits for one behind it"
        devices.reverse()  # outputs go up the line, errors down
    left = tuple(sorted(arrivals))
    return _Part(tuple(nodes), tuple(microbatches), (*lines, *(arrivals[task] for task in left)), left)


@lru_cache(maxsize=32)
def _whole(schedule: str, p: int, m: int, v: int, is_blocking: bool) -> _Part:  # a key of the cache
    """Return all tasks of a schedule."""
    orders = order_of(schedule, p, m, v)
    return _part(schedule, orders, ([0] * p, [len(order) for order in orders]), (), p * v, is_blocking=is_blocking)


# -- many micro-batches: leaps over steady rounds ----------------------------------------------------------------------

_Round = Callable[[list[int]], list[int]]


def steady_end_s(times: PipelineTimes, *, schedule: str, num_microbatches: int, chunks_per_device: int = 1) -> Floats:
    """Return the end of every device's last task under a schedule with a steady round; shape (p,).

    Parameters
    ----------
    times, schedule, num_microbatches, chunks_per_device
        As of :func:`simulate`; at least :func:`least_microbatches` micro-batches.

    Raises
    ------
    ModelError
        If too many rounds would have to be simulated.
    """
    v, columns = chunks_per_device, _columns(times)[:5]
    num_stages = len(times.forward_s)
    p = num_stages // v
    ratios = [[one.as_integer_ratio() for one in column] for column in columns]
    scale = lcm(*(below for column in ratios for _, below in column))
    seconds = _rows([[above * (scale // below) for above, below in column] for column in ratios])
    warm_up, one_round, drain = _steady_parts(schedule, p, v)
    each = _round_microbatches(p, schedule)

    def after_round(state: list[int]) -> list[int]:
        ends = one_round.run(state, seconds)
        return [ends[register] for register in one_round.kept]

    ends = warm_up.run([0] * (3 * p), seconds)
    state = [ends[register] for register in warm_up.kept]
    left = (num_microbatches - least_microbatches(p, schedule)) // each + 1
    most = most_left = MOST_TASKS // (2 * num_stages * each)
    window = 2
    while left and most_left > 0:
        states = [state]
        for _ in range(min(2 * window, left)):
            states.append(after_round(states[-1]))
        left -= len(states) - 1
        most_left -= len(states) - 1
        state = states[-1]
        if left and (period := _period(states, window)):
            state, left = _leapt(states[-1 - period], state, period, after_round, left)
        window = min(2 * window, _MOST_SAME)
    if left:
        raise ModelError(
            f"{num_microbatches} micro-batches are too many to simulate: {most} rounds of this pipeline do not become "
            f"regular. Take fewer micro-batches."
        )
    ends = drain.run(state, seconds)
    return np.array([ends[register] / scale for register in drain.kept[:p]])


def least_microbatches(num_devices: int, schedule: str) -> int:
    """Return the micro-batches of a schedule with one steady round.

    Parameters
    ----------
    num_devices, schedule
        p, and any but GPipe and DualPipe.
    """
    p = num_devices
    known = {"1f1b": p + 1, "zb_h1": 2 * p + 1, "zb_h2": 4 * p + 1, "zb_v": 2 * p + 1, "dualpipe_v": 2 * p + 1}
    if schedule in _SLOTTED:
        return _steady_slot(schedule, p) // _BLOCK + 2
    return known.get(schedule, 4 * p)


_SLOTTED = ("v_half", "v_min")
_BLOCK = 6  # slots of a round


@lru_cache(maxsize=64)
def _steady_slot(schedule: str, p: int) -> int:
    """Return a slot from which on every six are as the six before, as long as there are micro-batches to begin.

    All that recurs has begun with the last backward of the first micro-batch, whose slot is that of its block. A
    micro-batch alone ends sooner: with none to begin, its backwards do not wait for their slots.
    """
    last = max(max(slots_of_block(schedule, p, d)) for d in range(p))
    alone = max(slot for row in slotted(schedule, p, 1) for slot, _ in row)
    return max(-(-(last - 1) // _BLOCK), alone // _BLOCK + 2) * _BLOCK


def _round_microbatches(num_devices: int, schedule: str) -> int:
    return num_devices if schedule == "interleaved" else 1


@lru_cache(maxsize=64)
def _steady_parts(schedule: str, p: int, v: int, *, has_sends: bool = True) -> tuple[_Part, _Part, _Part]:
    """Return the warm-up, one steady round, and the drain, of a schedule with one steady round.

    Before the round device d has done its warm-up of w_d forwards and, of the backwards and forwards in turn, 2 d tasks
    under the interleaved schedule, none under 1F1B, and under ZB-H1 those of p micro-batches (ZB-H2: 2 p), so that it
    has put off all gradients of weights that it does; under ZB-V and DualPipeV all tasks before its main part, and in a
    schedule of slots those before one: no task before that cut waits for one behind it.
    """
    each, least = _round_microbatches(p, schedule), least_microbatches(p, schedule)
    orders = order_of(schedule, p, least, v)
    if schedule in _SLOTTED:
        last = _steady_slot(schedule, p)
        begin = [sum(slot < last for slot, _ in row) for row in slotted(schedule, p, least)]
    else:
        begin = {
            "1f1b": [p - d for d in range(p)],
            "zb_h1": [p - d + 3 * p - d for d in range(p)],
            "zb_h2": [2 * (p - d) - 1 + 6 * p - 2 * d for d in range(p)],
            "zb_v": [2 * (p - d) - 1 + 2 * d + 3 * (p - d) for d in range(p)],
            "dualpipe_v": [2 * (p - d - 1) + 2 * (d + 1) + 3 * (p - d - 1) for d in range(p)],
        }.get(schedule, [2 * (p - d - 1) + (v - 1) * p + 2 * d for d in range(p)])
    size = 3 if schedule in PUTS_OFF - {"dualpipe_v"} else 2  # tasks of a chunk
    end = [one + size * each * v for one in begin]
    make = partial(_part, schedule, num_stages=p * v, is_blocking=False, has_sends=has_sends)
    warm_up = make(orders, ([0] * p, begin), ())
    one_round = make(orders, (begin, end), warm_up.waiting)
    assert one_round.waiting == tuple((kind, stage, j + each) for kind, stage, j in warm_up.waiting)
    drain = make(orders, (end, [len(order) for order in orders]), one_round.waiting)
    return warm_up, one_round, drain


def _period(states: Sequence[list[int]], most: int) -> int:
    """Return the fewest rounds that added the same twice, at the end; 0 if none did."""
    last = states[-1]
    for period in range(1, min(most, (len(states) - 1) // 2) + 1):
        middle, first = states[-1 - period], states[-1 - 2 * period]
        if all(2 * b == a + c for a, b, c in zip(last, middle, first, strict=True)):
            return period
    return 0


def _leapt(before: list[int], state: list[int], period: int, after_round: _Round, left: int) -> tuple[list[int], int]:
    """Return the state as far on as ``period`` rounds add the same to it, and the rounds that are then left."""
    added = [now - then for then, now in zip(before, state, strict=True)]

    def at(times: int) -> list[int]:
        return [now + times * one for now, one in zip(state, added, strict=True)]

    def is_same(times: int) -> bool:
        found = at(times)
        for _ in range(period):
            found = after_round(found)
        return found == at(times + 1)

    low, high = 0, left // period  # whether it is the same at `low - 1` is known, at `high` not
    if high and is_same(high - 1):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_same(middle - 1) else (low, middle)
    return at(low), left - low * period


# -- GPipe in closed form, and 1F1B round by round ---------------------------------------------------------------------


def _gpipe_end_s(f: Floats, b: Floats, c: Floats, c_back: Floats, *, m: int) -> Floats:
    """Return the end of every device's last backward under GPipe: a line of forwards, then one of backwards.

    Equal jobs pass a line of stages and channels, each of which serves one at a time: the last of m leaves stage i
    ``sum + (m - 1) max`` of the times up to there after the first has come (a "proportionate" flow shop).
    No error reaches a device that still has forwards to do, as the last stage's backwards start after all of them.
    """

    def line_end_s(seconds: Floats, sent_s: Floats) -> Floats:
        before_s = np.concatenate(([0.0], sent_s))
        slowest_s = np.maximum.accumulate(np.maximum(seconds, before_s))
        return np.asarray(np.cumsum(seconds + before_s) + (m - 1) * slowest_s)

    return np.asarray(line_end_s(f, c)[-1] + line_end_s(b[::-1], c_back[::-1])[::-1])


def one_forward_one_backward_s(forward_s: Floats, backward_s: Floats, stages: Ints, num_microbatches: Ints) -> Floats:
    """Return the seconds of 1F1B from the first forward to the end of the last backward, of n pipelines; shape (n,).

    Parameters
    ----------
    forward_s, backward_s
        Of one micro-batch on each stage, what it sends included, since it computes nothing meanwhile; shape (p, n),
        with the most stages that any has: what stands behind a pipeline's last stage is not looked at.
    stages, num_microbatches
        Of each pipeline, >= 1; shape (n,).

    Notes
    -----
    Exact up to ``MOST_ROUNDS`` rounds. Beyond some thousand the step grows by what the slowest cycle takes, exactly but
    where two cycles are so close that the slower one has not caught up by then: the greatest ``x_i`` of a stage's
    forward and backward a micro-batch, or the sum X of all of them for p. Rounds beyond that are leapt over, whole
    multiples of p, at that rate, which no round exceeds.
    """
    found = np.zeros(forward_s.shape[1])
    for number in np.unique(stages):
        chosen = np.flatnonzero(stages == number)
        leaps = np.maximum(num_microbatches[chosen] - max(MOST_ROUNDS, _ROUNDS_PER_STAGE * int(number)), 0)
        leaps = leaps // number * number
        played = num_microbatches[chosen] - leaps
        order = np.argsort(-played, kind="stable")
        chosen, leaps, played = chosen[order], leaps[order], played[order]
        ahead_s, back_s = forward_s[:number, chosen], backward_s[:number, chosen]
        both_s = ahead_s + back_s
        each_s = np.maximum(both_s.max(axis=0), both_s.sum(axis=0) / number)
        found[chosen] = _rounds_end_s(ahead_s, back_s, played).max(axis=0) + leaps * each_s
    return found


def _rounds_end_s(
    forward_s: Floats, backward_s: Floats, m: Ints, sent_s: tuple[Floats, Floats] | None = None
) -> Floats:
    """Return the end of every device's last backward under 1F1B, all devices and pipelines at once.

    Parameters
    ----------
    forward_s, backward_s
        Shape (p, n), or (p,) of one pipeline.
    m
        Micro-batches, descending; shape (n,).
    sent_s
        Of an output and of an error, beside computing; shape (p - 1, n) or (p - 1,). None: none takes time.

    Notes
    -----
    Round r holds the forward of micro-batch r on every device, and after it on device i the backward of micro-batch
    ``r - (p - i) + 1``, whose error left device i + 1 in the round before. So backwards of a round do not depend on one
    another; its forwards are a chain ``e_i = max(e_{i-1} + c_{i-1}, g_i) + f_i``, that is ``D_i + max over k <= i of
    (g_k + f_k - D_k)`` with ``D_i`` the sum of all f and c up to i. Time O(m p) a pipeline.
    """
    p, n, most, is_one = len(forward_s), len(m), int(m[0]), m[0] == m[-1]
    # Pipelines with more than r micro-batches: as m descends, the first so many columns.
    counts = [n] * most if is_one else np.searchsorted(-m, -np.arange(most), side="left").tolist()
    path_s = np.cumsum(forward_s, axis=0)
    if sent_s is not None:
        path_s[1:] += np.cumsum(sent_s[0], axis=0)
    shift_s = forward_s - path_s
    free_s, error_s = np.zeros_like(path_s), np.zeros_like(path_s)
    output_sent_s, error_sent_s = np.zeros_like(path_s[1:]), np.zeros_like(path_s[1:])
    index = np.arange(p)[:, None]
    for r in range(most + p - 1):
        ahead = counts[r] if r < most else 0
        if ahead:
            columns = ... if is_one else np.s_[:, :ahead]
            now_s = free_s[columns]
            if sent_s is not None:
                np.maximum(now_s[1:], (output_sent_s + sent_s[0])[columns], out=now_s[1:])
            now_s += shift_s[columns]
            if n < _COLUMNS_PER_STAGE * p:
                np.maximum.accumulate(now_s, axis=0, out=now_s)
            else:
                for i in range(1, p):
                    np.maximum(now_s[i], now_s[i - 1], out=now_s[i])
            now_s += path_s[columns]
            if sent_s is not None:
                leaving_s = output_sent_s[columns]
                np.maximum(now_s[:-1], leaving_s, out=leaving_s)
                leaving_s += sent_s[0][columns]
        done = r - p + 1  # the backward of this micro-batch is the first device's
        low, high, active = max(0, -done), min(p, most - done), counts[max(done, 0)]
        rows = slice(low, high) if is_one else np.s_[low:high, :active]
        ends_s = np.maximum(free_s[rows], error_s[rows])
        ends_s += backward_s[rows]
        if not is_one and active > ahead:  # the last devices of a pipeline that drains have done all
            has_done = index[low:high] >= m[ahead:active] - done
            np.copyto(ends_s[:, ahead:], free_s[low:high, ahead:active], where=has_done)
        free_s[rows] = ends_s
        first = max(low, 1)  # device 0 sends no error
        rows = slice(first - 1, high - 1) if is_one else np.s_[first - 1 : high - 1, :active]
        arrived_s = ends_s[first - low :]
        if sent_s is not None:
            leaving_s = error_sent_s[rows]
            arrived_s = np.maximum(arrived_s, leaving_s, out=leaving_s)
            arrived_s += sent_s[1][rows]
        error_s[rows] = arrived_s
    return free_s


# -- any stages, many pipelines of one size at once --------------------------------------------------------------------

_MOST_PLAYED = 256  # rounds
_LONGEST_PERIOD = 16  # rounds that may add the same to all ends together; looked for behind every so many


@frozen(kw_only=False, eq=False)
class _Waves:
    """A part whose tasks include what they send, in waves that do not depend on one another.

    Registers of nodes follow one another as their waves do.
    """

    # of each wave the first register and the one behind the last, and registers of the two predecessors
    waves: tuple[tuple[int, int, Ints, Ints], ...]
    index: Ints  # of the seconds of each node
    num_registers: int  # in all
    kept: Ints  # the registers of devices and of waiting arrivals behind all nodes

    def run(self, state: Floats, seconds: Floats) -> Floats:
        """Return the registers that are kept, of n pipelines, from those before; ``seconds``: of each node."""
        first, ends = len(state), np.empty((self.num_registers, seconds.shape[1]))
        ends[:first] = state
        for low, high, one, other in self.waves:
            found = ends[low:high]
            np.maximum(ends.take(one, axis=0), ends.take(other, axis=0), out=found)
            found += seconds[low - first : high - first]
        return np.asarray(ends[self.kept])


@lru_cache(maxsize=512)
def _waves(schedule: str, p: int, m: int, v: int) -> tuple[_Waves, ...]:
    """Return the whole schedule where m is too little for a steady round, else warm-up, round and drain."""
    if m < least_microbatches(p, schedule):
        orders = order_of(schedule, p, m, v)
        whole = [len(order) for order in orders]
        parts: tuple[_Part, ...] = (
            _part(schedule, orders, ([0] * p, whole), (), p * v, is_blocking=False, has_sends=False),
        )
    else:
        parts = _steady_parts(schedule, p, v, has_sends=False)
    found, waiting = [], 0
    for part in parts:
        first = 3 * p + waiting
        levels = [0] * first
        for one, other, _ in part.nodes:
            levels.append(1 + max(levels[one], levels[other]))
        nodes, level = np.array(part.nodes, dtype=np.int64).reshape(-1, 3), np.array(levels[first:], dtype=np.int64)
        order = np.argsort(level, kind="stable")
        place = np.arange(len(levels))  # of each register, in the order of waves
        place[first + order] = np.arange(first, len(levels))
        one, other, index = nodes[order].T
        bounds = [0, *(np.flatnonzero(np.diff(level[order])) + 1).tolist(), len(order)]
        waves = tuple(
            (first + low, first + high, place[one[low:high]], place[other[low:high]]) for low, high in pairwise(bounds)
        )
        found.append(_Waves(waves, index, len(levels), place[np.array(part.kept, dtype=np.int64)]))
        waiting = len(part.waiting)
    return tuple(found)


def played_s(
    forward_s: Floats,
    backward_s: Floats,
    weights_s: Floats | None = None,
    *,
    schedule: str,
    num_devices: int,
    num_microbatches: int,
    most_rounds: int = _MOST_PLAYED,
) -> Floats:
    """Return the seconds from the first forward to the end of the last task, of n pipelines of one size; shape (n,).

    Parameters
    ----------
    forward_s, backward_s
        Of one micro-batch on each virtual stage, what it sends included, since it computes nothing meanwhile; shape
        (K, n).
    weights_s
        Of the gradients of its weights, where they are put off and ``backward_s`` has them not; shape (K, n).
    schedule, num_devices, num_microbatches
        As of :func:`order_of`; not GPipe, which has a closed form, nor DualPipe, which is DualPipeV on half of the
        devices and micro-batches.
    most_rounds
        That are played.

    Notes
    -----
    Exact: once a round adds the same to all ends, so does every later one, and these are leapt over: an end is a latest
    one of those before plus seconds, so that ends which are all later by the same leave all behind them later by it.
    So do as many rounds as the longest period or fewer that together add the same to all ends, again and again. Where
    none of the first ``most_rounds`` do, those left add what the last half of these did on average.
    """
    p, m, v = num_devices, num_microbatches, len(forward_s) // num_devices
    apart_s = np.zeros_like(forward_s) if weights_s is None else weights_s
    seconds = np.concatenate([forward_s, backward_s, apart_s, backward_s + apart_s])
    least = least_microbatches(p, schedule)
    first, *steady = _waves(schedule, p, min(m, least), v)
    state = first.run(np.zeros((3 * p, seconds.shape[1])), seconds[first.index])
    if steady:
        one_round, drain = steady
        round_s = seconds[one_round.index]
        moving = np.r_[0:p, 3 * p : len(state)]
        left, rounds = (m - least) // _round_microbatches(p, schedule) + 1, [state[moving]]
        ends_s = [rounds[0].max(axis=0)]
        while left and len(ends_s) <= most_rounds:
            after = one_round.run(state, round_s)
            left, state = left - 1, after
            rounds.append(after[moving])
            ends_s.append(rounds[-1].max(axis=0))
            number = len(rounds) - 1
            longest = min(_LONGEST_PERIOD, left) if number % _LONGEST_PERIOD == 0 else 1
            for period in range(1, longest + 1):
                added = rounds[-1] - rounds[-1 - period]
                if (np.ptp(added, axis=0) <= _ROUNDING * ends_s[-1]).all():
                    state[moving] += left // period * added.max(axis=0)
                    for _ in range(left % period):
                        state = one_round.run(state, round_s)
                    left = 0
                    break
        if left:
            half = len(ends_s) // 2
            state[moving] += left * (ends_s[-1] - ends_s[-1 - half]) / half
        state = drain.run(state, seconds[drain.index])
    return np.asarray(state[:p].max(axis=0))
