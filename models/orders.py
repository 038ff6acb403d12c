"""Orders of pipeline schedules as data: what every device does in turn, and how much it holds meanwhile.

**Stages.** A network is cut into K stages in the order of its layers, v of them (*chunks*) on each of p devices:

    loop    stage k on device ``k mod p``                                    all schedules but the next ones
    V       stage k on device ``k``, and behind the turn on ``2 p - 1 - k``  zb_v, v_half, v_min, dualpipe_v
    two     the same of two copies of p stages each, that meet               dualpipe

Of DualPipe stages 0 to p - 1 are the first copy, and stages p to 2 p - 1 the second one, whose first stage stands on
the last device; each copy takes half of the micro-batches.

**Tasks.** Each of m micro-batches passes forward through all stages and backward through all of them. Some schedules
split a backward into the errors that go on (``BACKWARD``) and the gradients of the weights (``WEIGHTS``), which nothing
waits for; ``WHOLE`` is a backward of both under such a schedule.

**Orders** (:func:`order_of`), the same whatever the times. With one chunk, and interleaved, device d does ``lead``
forwards, then a backward and a forward in turn, then the backwards that are left; gradients of weights come ``late``
micro-batches after:

    gpipe        lead = m                                     Y. Huang et al., arXiv:1811.06965
    1f1b         lead = p - d                                 D. Narayanan et al., SC21, arXiv:2104.04473, section 2.2
    interleaved  lead = 2 (p - d - 1) + (v - 1) p + 1         the same, figure 4: p micro-batches of a chunk at a time
    zb_h1        lead = p - d, late = d                       P. Qi et al., arXiv:2401.10241, section 3
    zb_h2        lead = 2 (p - d) - 1, late = 2 d             the same: no bubble but what fills and empties the line

Those of a V:

    zb_v         P. Qi et al., the same, section 6, in the order of ``ScheduleZBVZeroBubble`` of PyTorch
    v_half       P. Qi et al., arXiv:2405.15362: one block of tasks again and again, every six slots; half the
    v_min        memory of 1F1B, or a third (:func:`slots_of_block`)
    dualpipe     DeepSeek-V3, arXiv:2412.19437, section 3.2.1, in the eight parts of deepseek-ai/DualPipe
    dualpipe_v   the same cut in half: one copy in a V on half of the devices

DualPipe runs a forward and a backward of opposite directions side by side, so that each one's tokens travel beside the
other's computing. As tasks they follow one another: what the overlap gains is in their seconds.

**What a device holds** (:func:`in_flight`, :func:`held_chunks`) follows from the order alone: activations of a chunk
stay from its forward to the end of its backward, and where gradients of weights are put off until these, which read
what the forward has kept.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from planner.cost import Floats, Ints
from planner.errors import ModelError

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dualpipe", "dualpipe_v")
PUTS_OFF = frozenset({"zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dualpipe", "dualpipe_v"})  # gradients of weights
IS_V = frozenset({"zb_v", "v_half", "v_min", "dualpipe", "dualpipe_v"})  # stages turn at the last device
FORWARD, BACKWARD, WEIGHTS, WHOLE = range(4)

Task = tuple[int, int, int]  # kind, stage, micro-batch
Order = tuple[Task, ...]  # of one device

_FEW_CHANGES = 4_096  # p^2 v up to which what tasks change is kept, of many schedules: 25,000 tasks, 400 KB
_BLOCK = 6  # slots of a block: forward, backward and weights of two chunks


# -- stages ------------------------------------------------------------------------------------------------------------


def devices_of(schedule: str, num_devices: int, chunks_per_device: int) -> tuple[int, ...]:
    """Return the device of every stage.

    Parameters
    ----------
    schedule, num_devices, chunks_per_device
        As of :func:`order_of`.

    >>> devices_of("interleaved", 2, 2), devices_of("zb_v", 2, 2)
    ((0, 1, 0, 1), (0, 1, 1, 0))
    """
    row = tuple(range(num_devices))
    return row + row[::-1] if schedule in IS_V else row * chunks_per_device


def neighbour_of(schedule: str, num_stages: int, kind: int, stage: int) -> int | None:
    """Return the stage to which a task's output or error goes; None where it goes nowhere.

    Parameters
    ----------
    schedule, num_stages
        As of :func:`order_of`, and K.
    kind, stage
        Of the task.
    """
    if kind == WEIGHTS:
        return None
    found = stage + (1 if kind == FORWARD else -1)
    is_between = schedule == "dualpipe" and {stage, found} == {num_stages // 2 - 1, num_stages // 2}
    return found if 0 <= found < num_stages and not is_between else None


def fewest_microbatches(schedule: str, num_devices: int) -> int:
    """Return the fewest micro-batches with which a schedule exists: of DualPipe each device fills both directions.

    Parameters
    ----------
    schedule, num_devices
        As of :func:`order_of`. deepseek-ai/DualPipe asks for twice its devices.
    """
    return 2 * num_devices if schedule in ("dualpipe", "dualpipe_v") else 1


# -- orders ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def order_of(schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int = 1) -> tuple[Order, ...]:
    """Return every device's tasks in order, by the rules at the head of the chapter.

    Parameters
    ----------
    schedule
        One of ``SCHEDULES``.
    num_devices, num_microbatches, chunks_per_device
        p, m and v, all >= 1; m is a multiple of p for the interleaved schedule; v is 2 of a V and for DualPipe (its two
        copies), and else 1.

    Raises
    ------
    ModelError
        If there is no such schedule for these numbers.

    >>> order_of("1f1b", 2, 2)[1]
    ((0, 1, 0), (1, 1, 0), (0, 1, 1), (1, 1, 1))
    """
    p, m, v = num_devices, num_microbatches, chunks_per_device
    check_schedule(schedule, p, m, v)
    if schedule in ("v_half", "v_min"):
        return tuple(tuple(task for _, task in row) for row in slotted(schedule, p, m))
    if schedule == "zb_v":
        return tuple(_zero_bubble_v(p, m, d) for d in range(p))
    if schedule == "dualpipe_v":
        return tuple(_dual(p, m, d, (d, 2 * p - 1 - d)) for d in range(p))
    if schedule == "dualpipe":
        down = [_dual(p // 2, m // 2, d, (d, 2 * p - 1 - d)) for d in range(p // 2)]
        back = [_dual(p // 2, m // 2, d, (p + d, p - 1 - d)) for d in range(p // 2)]
        return (*down, *back[::-1])
    orders = []
    for d in range(p):
        # Number n of a device's forwards: p micro-batches of a chunk, then of the next one; chunks backwards reversed.
        numbered = [(n % (p * v) // p, n // (p * v) * p + n % p) for n in range(m * v)]
        forwards = [(FORWARD, chunk * p + d, j) for chunk, j in numbered]
        late = {"zb_h1": d, "zb_h2": 2 * d}.get(schedule)
        lead = {"gpipe": m, "interleaved": 2 * (p - d - 1) + (v - 1) * p + 1, "zb_h2": 2 * (p - d) - 1}
        first = lead.get(schedule, p - d)
        tasks = forwards[:first]
        for n, (chunk, j) in enumerate(numbered):
            tasks.append((BACKWARD, (v - 1 - chunk) * p + d, j))
            if late is not None and n >= late:
                tasks.append((WEIGHTS, d, n - late))
            tasks += forwards[n + first : n + first + 1]
        if late is not None:
            tasks += [(WEIGHTS, d, j) for j in range(max(m - late, 0), m)]
        orders.append(tuple(tasks))
    return tuple(orders)


def check_schedule(schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int = 1) -> None:
    """Refuse a schedule that does not exist for these numbers.

    Parameters
    ----------
    schedule, num_devices, num_microbatches, chunks_per_device
        As of :func:`order_of`.
    """
    p, m, v = num_devices, num_microbatches, chunks_per_device
    if schedule not in SCHEDULES or min(p, m, v) < 1:
        raise ModelError(f"no schedule {schedule!r} for {p} devices, {m} micro-batches and {v} chunks a device.")
    if schedule in IS_V and v != 2:  # the legs of a V, or the copies of DualPipe
        raise ModelError(f"{schedule} has two stages a device, not {v}.")
    if schedule not in IS_V and schedule != "interleaved" and v > 1:
        raise ModelError(f"{schedule} has one stage a device, not {v}; only the interleaved schedule has chunks.")
    if schedule == "interleaved" and m % p:
        raise ModelError(f"the interleaved schedule needs micro-batches in multiples of its {p} devices, not {m}.")
    if schedule == "dualpipe" and (p % 2 or m % 2):
        raise ModelError(f"dualpipe needs devices and micro-batches in pairs, not {p} and {m}.")
    if m < (fewest := fewest_microbatches(schedule, p)):
        raise ModelError(f"{schedule} on {p} devices needs {fewest} micro-batches or more, not {m}.")


def _zero_bubble_v(p: int, m: int, d: int) -> Order:
    """Return a device's tasks under ZB-V; of fewer than ``2 p - 1`` micro-batches those that there are."""
    down, up, most = d, 2 * p - 1 - d, max(m, 2 * p - 1)
    tasks: list[Task] = []
    count: dict[tuple[int, int], int] = {}

    def do(stage: int, *kinds: int) -> None:
        for kind in kinds:
            number = count.get((kind, stage), 0)
            if number < most:
                tasks.append((kind, stage, number))
            count[kind, stage] = number + 1

    for _ in range(2 * (p - d) - 1):
        do(down, FORWARD)
    for _ in range(d):
        do(up, FORWARD)
        do(down, FORWARD)
    for _ in range(p - d):
        do(up, FORWARD, BACKWARD, WEIGHTS)
    while count.get((FORWARD, up), 0) < most:
        do(down, FORWARD)
        do(down, BACKWARD, WEIGHTS)
        do(up, FORWARD, BACKWARD, WEIGHTS)
    for _ in range(d):
        do(down, BACKWARD)
        do(up, BACKWARD)
    for _ in range(p - d):
        do(down, BACKWARD, WEIGHTS)
    for stage in (up, down):
        while count.get((WEIGHTS, stage), 0) < most:
            do(stage, WEIGHTS)
    return tuple(task for task in tasks if task[2] < m)


def _dual(p: int, m: int, d: int, stages: tuple[int, int]) -> Order:
    """Return a device's tasks under DualPipeV, or of half of DualPipe's devices and micro-batches.

    ``stages``: the one whose forward comes first, and the other. Weights are put off where the line fills and empties.
    """
    tasks: list[Task] = []
    count = [0, 0, 0, 0]  # forwards of both, backwards of both
    waiting: list[Task] = []

    def forward(way: int) -> None:
        tasks.append((FORWARD, stages[way], count[way]))
        count[way] += 1

    def backward(way: int, *, is_split: bool = False) -> None:
        number = count[2 + way]
        count[2 + way] += 1
        tasks.append((BACKWARD if is_split else WHOLE, stages[way], number))
        if is_split:
            waiting.append((WEIGHTS, stages[way], number))

    def weights() -> None:
        tasks.append(waiting.pop(0))

    for _ in range(2 * (p - d - 1)):
        forward(0)
    for _ in range(d + 1):
        forward(0)
        forward(1)
    for _ in range(p - d - 1):
        backward(1, is_split=True)
        weights()
        forward(1)
    for _ in range(m - 2 * p + d + 1):
        forward(0)
        backward(1)
        forward(1)
        backward(0)
    for _ in range(p - d - 1):
        backward(1)
        forward(1)
        backward(0)
    half = (d + 1) // 2
    for n in range(d + 1):
        backward(1, is_split=n > half or (n == half and d % 2 == 1))
        backward(0, is_split=n >= half)
    for _ in range(p - d - 1):
        weights()
        backward(0, is_split=True)
    while waiting:
        weights()
    return tuple(tasks)


def slots_of_block(schedule: str, p: int, d: int) -> tuple[int, int, int, int]:
    """Return the slots of the first micro-batch: forwards down and up the V, and backwards down and up.

    The next micro-batch has the same six later. A slot is as long as any task. The closer the slots of one chunk's
    forward and backward, the less is held: on all devices ``4 p / 6`` or ``6 p / 6`` chunks of half a stage, and a few
    (arXiv:2405.15362, section 3; offsets, and the wait at the turn that keeps tasks apart, as in
    sail-sg/zero-bubble-pipeline-parallelism, ``zbv_greedy.py``).

    Parameters
    ----------
    schedule
        v_half or v_min.
    p, d
        Devices, and the one that is meant.
    """
    if schedule == "v_min":
        wait = 2 if p % 3 == 0 else 0
        return d, 2 * p - d - 1, 2 * p + wait + d, 4 * p + wait - d - 1
    wait = 3 if p % 2 == 0 else 0
    return 2 * d, 3 * p - d - 2, 3 * p + wait + 2 * d - 1, 6 * p + wait - d - 2


@lru_cache(maxsize=8)
def slotted(schedule: str, num_devices: int, num_microbatches: int) -> tuple[tuple[tuple[int, Task], ...], ...]:
    """Return every device's tasks under v_half or v_min with their slots, in order.

    Gradients of weights take the first slots that are free once their backward has ended. Once no micro-batch begins
    any more, backwards take the first slot in which they can run, and gradients of weights what is left.

    Parameters
    ----------
    schedule, num_devices, num_microbatches
        As of :func:`order_of`.
    """
    p, m, found = num_devices, num_microbatches, []
    for d in range(p):
        stages = (d, 2 * p - 1 - d)
        kinds = (FORWARD, FORWARD, BACKWARD, BACKWARD)
        block = zip(kinds, (stages[0], stages[1], stages[1], stages[0]), slots_of_block(schedule, p, d), strict=True)
        fixed = {slot + _BLOCK * j: (kind, stage, j) for kind, stage, slot in block for j in range(m)}
        assert len(fixed) == 4 * m, "two tasks in one slot"
        row: list[tuple[int, Task]] = []
        waiting: list[Task] = []
        slot = 0
        while waiting or slot <= max(fixed):
            if slot in fixed:
                row.append((slot, fixed[slot]))
                if fixed[slot][0] == BACKWARD:
                    waiting.append((WEIGHTS, *fixed[slot][1:]))
            elif waiting:
                row.append((slot, waiting.pop(0)))
            slot += 1
        found.append(row)
    return tuple(map(tuple, _drained(found, _BLOCK * m)))


def _drained(rows: list[list[tuple[int, Task]]], begin: int) -> list[list[tuple[int, Task]]]:
    """Return tasks of a V with those from a slot on as early as they can be, backwards first; forwards not earlier."""
    last = 2 * len(rows) - 1
    done = {task for row in rows for slot, task in row if slot < begin}
    found = [[one for one in row if one[0] < begin] for row in rows]
    left = [[one for one in row if one[0] >= begin] for row in rows]

    def is_ready(task: Task) -> bool:
        kind, stage, j = task
        if kind == WEIGHTS:
            return (BACKWARD, stage, j) in done
        before = (kind, stage - 1 if kind == FORWARD else stage + 1, j)
        if stage == (0 if kind == FORWARD else last):
            before = (FORWARD, last, j)
        return (kind == FORWARD and stage == 0) or before in done

    # Of a kind and a stage only the next micro-batch can be ready.
    queues = [
        [[one for one in row if one[1][:2] == key][::-1] for key in sorted({one[1][:2] for one in row})] for row in left
    ]
    slot = begin
    while any(any(row) for row in queues):
        taken: list[Task] = []
        for device, row in enumerate(queues):
            heads = [queue for queue in row if queue and (queue[-1][1][0] != FORWARD or queue[-1][0] <= slot)]
            can = [queue for queue in heads if is_ready(queue[-1][1])]
            if can:
                chosen = min(can, key=lambda queue: (queue[-1][1][0] == WEIGHTS, queue[-1][0])).pop()
                found[device].append((slot, chosen[1]))
                taken.append(chosen[1])
        done.update(taken)
        slot += 1
    return found


# -- what is held ------------------------------------------------------------------------------------------------------


def in_flight(schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int = 1) -> tuple[int, ...]:
    """Return, by stage, the most micro-batches whose activations are held: ``min(m, p - d)`` for 1F1B, m for GPipe.

    It follows from the order alone, whatever the times. The chunks of a device need not reach their most at once; see
    :func:`peak_weight`.

    Parameters
    ----------
    schedule, num_devices, num_microbatches, chunks_per_device
        As of :func:`order_of`.

    >>> in_flight("1f1b", 4, 8), in_flight("interleaved", 2, 4, 2)
    ((4, 3, 2, 1), (4, 3, 2, 1))
    >>> in_flight("zb_h2", 4, 8)
    (7, 7, 7, 7)
    """
    p, m, v = num_devices, num_microbatches, chunks_per_device
    if schedule in ("gpipe", "1f1b"):
        return (m,) * p if schedule == "gpipe" else tuple(min(m, p - d) for d in range(p))
    counts = [0] * (p * v)
    for order in order_of(schedule, p, _enough(schedule, p, m), v):
        for stage in {stage for _, stage, _ in order}:
            changes = (_change(schedule, kind) for kind, at, _ in order if at == stage)
            counts[stage] = max(accumulate(changes))
    return tuple(counts)


def peak_weight(
    weights: Sequence[float] | Floats,
    schedule: str,
    num_devices: int,
    num_microbatches: int,
    chunks_per_device: int = 1,
) -> Floats:
    """Return, by device, the most that its micro-batches in flight weigh together; shape (p,).

    Parameters
    ----------
    weights
        By stage, of one micro-batch in flight: bytes of activations, say.
    schedule, num_devices, num_microbatches, chunks_per_device
        As of :func:`order_of`.
    """
    p, m, v = num_devices, num_microbatches, chunks_per_device
    each = np.asarray(weights, dtype=np.float64)
    if schedule in ("gpipe", "1f1b"):
        return np.asarray(in_flight(schedule, p, m), dtype=np.float64) * each
    kept = _kept_changes if p * p * v <= _FEW_CHANGES else _changes
    changes = kept(schedule, p, _enough(schedule, p, m), v)
    return np.array([np.cumsum(change * each[stage]).max() for change, stage in changes])


@lru_cache(maxsize=8)
def _changes(
    schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int
) -> tuple[tuple[Ints, Ints], ...]:
    """Return, by device, by how many micro-batches each task in turn changes what is held, and of which stage."""
    found = []
    for order in order_of(schedule, num_devices, num_microbatches, chunks_per_device):
        kinds, stages, _ = np.array(order).T
        found.append(
            (np.array([_change(schedule, kind) for kind in (FORWARD, BACKWARD, WEIGHTS, WHOLE)])[kinds], stages)
        )
    return tuple(found)


@lru_cache(maxsize=256)
def _kept_changes(
    schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int
) -> tuple[tuple[Ints, Ints], ...]:
    """Return the same of few tasks: a search asks for a hundred schedules over and over."""
    return _changes(schedule, num_devices, num_microbatches, chunks_per_device)


@lru_cache(maxsize=512)
def held_chunks(
    schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int = 1
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return, by device, its fullest moments: micro-batches of each of its chunks, none all fewer than another.

    Parameters
    ----------
    schedule, num_devices, num_microbatches, chunks_per_device
        As of :func:`order_of`; chunks are listed in the order of their stages.

    >>> held_chunks("1f1b", 2, 4), held_chunks("zb_v", 2, 4, 2)
    ((((2,),), ((1,),)), (((3, 1), (4, 0)), ((2, 2), (3, 1))))
    """
    p, m, v = num_devices, num_microbatches, chunks_per_device
    found = []
    for order in order_of(schedule, p, _enough(schedule, p, m), v):
        place = {stage: index for index, stage in enumerate(sorted({stage for _, stage, _ in order}))}
        changes = np.zeros((len(order), v), dtype=np.int64)
        for at, (kind, stage, _) in enumerate(order):
            changes[at, place[stage]] = _change(schedule, kind)
        rows = sorted({tuple(row) for row in np.cumsum(changes, axis=0).tolist()}, reverse=True)
        kept: list[tuple[int, ...]] = []  # those with more of the first chunk come first
        for row in rows:
            if not any(all(a >= b for a, b in zip(other, row, strict=True)) for other in kept):
                kept.append(row)
        found.append(tuple(kept[::-1]))
    return tuple(found)


def _change(schedule: str, kind: int) -> int:
    """Return by how many micro-batches a task changes what is held of its chunk."""
    return {FORWARD: 1, WHOLE: -1, WEIGHTS: -1}.get(kind, 0 if schedule in PUTS_OFF else -1)


def _enough(schedule: str, p: int, m: int) -> int:
    """Return how many micro-batches of a schedule show the most that are ever in flight.

    After its lead of ``w <= 2 p + (v - 1) p`` forwards a device of the interleaved schedule does a backward and a
    forward in turn. Which stages they are of repeats every ``p v`` of each, and what is in flight with them; at the end
    there are backwards alone. So ``w + p v`` forwards show all, and each micro-batch has v: ``3 p`` micro-batches do.
    The others repeat themselves with every micro-batch (DualPipe with every two) once nothing is as at the start: a V's
    first micro-batch is done within the forwards of 2 p others, in blocks of six slots within those of p and a few.
    """
    most = {"gpipe": m, "interleaved": 3 * p, "v_half": p + 4, "v_min": p + 4}
    return min(m, most.get(schedule, 2 * p + 2))


def bubble_share(schedule: str, num_devices: int, num_microbatches: int, chunks_per_device: int = 1) -> float:
    """Return idle over ideal time for *equal* stages and free transfers: ``(p - 1) / (v m)``; no bound for others.

    Parameters
    ----------
    schedule, num_devices, num_microbatches, chunks_per_device
        As of :func:`order_of`. Of GPipe, 1F1B and interleaved; the bubble of others depends on the times.
    """
    return (num_devices - 1) / ((chunks_per_device if schedule == "interleaved" else 1) * num_microbatches)
