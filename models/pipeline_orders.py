"""The orders of pipeline schedules: what every device does in turn, and how many micro-batches that keeps in flight.

Sources: GPipe: Y. Huang et al., arXiv:1811.06965. 1F1B with a flush, and the interleaved order: D. Narayanan et al.,
SC21, arXiv:2104.04473, section 2.2 and figure 4. Times play no part here; see :mod:`planner.models.pipeline_schedule`.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError

__all__ = ["SCHEDULES", "Order", "bubble_share", "check_schedule", "in_flight", "order_of", "peak_weight"]

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
