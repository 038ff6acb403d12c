"""Buckets as frameworks close them: by a size, tensor by tensor, in the order in which gradients get ready.

**DistributedDataParallel** takes tensors into a bucket until it holds as much as its limit: the tensor that fills it is
the last one in it. ``compute_bucket_assignment_by_size`` (``torch/csrc/distributed/c10d/reducer.cpp``), called when the
first iteration has told the order of gradients. The limits are of ``_BucketCapacityConfig``
(``torch/nn/parallel/distributed.py``), both of PyTorch 2.13:

====================================  =========================================
the program says                      limits, one bucket after the other
====================================  =========================================
nothing                               1 MiB, then 25 MiB for all that follow
``bucket_cap_mb=x``, 25 included      ``int(x * 2**20)`` bytes for every bucket, the first too
``bucket_cap_mb_list=[x, y, ...]``    each its own, the last for all that follow
====================================  =========================================

Gradients of several types or devices have buckets of their own, which a plan of one type does not meet. Left out:
``find_unused_parameters``, with which the buckets stay those of the order of parameters, and the environment variable
``DDP_SET_LAST_BUCKET_CAP``, which takes them from the other end.

**Horovod** wakes once a cycle and fuses what got ready since the last one, up to a threshold: a tensor that would pass
it is the first of the next buffer. ``TensorFusionThresholdBytes`` and the cycle of ``horovod/common/operations.cc``,
``FuseResponses`` of ``controller.cc``, Horovod 0.28.1: 128 MiB (older versions: 64 MiB) and 1 ms by default. Left out:
that it looks further ahead for a smaller tensor which still fits, the 16 bytes to which GPUs pad each tensor, the wait
for a cycle's end, and cycles that become longer while a transfer that does not return at once (MPI's, gloo's) goes on.
Its response cache spares the ranks their talk, and leaves sizes as they are.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, floor, inf

import numpy as np

from planner.channel import Ends
from planner.cost import Floats

MIB = 2**20
DDP_FIRST_BYTES, DDP_CAP_BYTES = MIB, 25 * MIB
HOROVOD_THRESHOLD_BYTES, HOROVOD_CYCLE_S = 128 * MIB, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """What a rule makes of a size: the last tensor of each bucket, and the sizes that make the same of it.

    These are all above ``low_bytes`` up to ``high_bytes``, which is infinite where larger ones change nothing.
    """

    ends: Ends
    low_bytes: float
    high_bytes: float


def ddp_buckets(size_bytes: Floats, limits_bytes: Iterable[float]) -> Buckets:
    """Return the buckets that close as soon as they hold as much as their limit.

    Parameters
    ----------
    size_bytes
        Of every tensor, in the order in which they get ready; at least one.
    limits_bytes
        Of the buckets one after the other; the last one holds for all that follow. PyTorch counts whole bytes:
        fractions of them are cut off.

    Notes
    -----
    ``low_bytes`` and ``high_bytes`` are those of the last limit, with the others as they are.

    >>> ddp_buckets(np.array([3.0, 3, 3, 9, 1]), [5]).ends
    (1, 3, 4)
    >>> ddp_buckets(np.array([3.0, 3, 3, 9, 1]), [3, 6, 9]).ends
    (0, 2, 3, 4)
    """
    limits = [floor(limit) if limit < inf else limit for limit in limits_bytes]
    until, sizes = np.cumsum(size_bytes).tolist(), size_bytes.tolist()
    ends: list[int] = []
    low, high, sent, first, last = 0.0, inf, 0.0, 0, len(sizes) - 1
    while first <= last:
        limit = limits[min(len(ends), len(limits) - 1)]
        # The index of the first sum that reaches the limit; searched for, since networks have thousands of tensors.
        end = min(bisect_left(until, sent + limit, first), last)
        held = until[end] - sent
        if len(ends) >= len(limits) - 1:
            low = max(low, held - sizes[end])
            high = min(high, held) if end < last else high
        ends.append(end)
        sent, first = until[end], end + 1
    return Buckets(ends=tuple(ends), low_bytes=low, high_bytes=high)


def horovod_buckets(size_bytes: Floats, tick: Floats, threshold_bytes: float) -> Buckets:
    """Return the groups of tensors that are fused: ready by the same tick, and together no more than a threshold.

    Parameters
    ----------
    size_bytes
        Of every tensor, in the order in which they get ready; at least one.
    tick
        Of every tensor, the tick after it got ready; nondecreasing.
    threshold_bytes
        A tensor above it goes alone.

    >>> horovod_buckets(np.array([4.0, 4, 4, 9, 1]), np.array([1, 1, 1, 2, 2]), 8).ends
    (1, 2, 3, 4)
    """
    ends: list[int] = []
    low, high, held, count = 0.0, inf, 0.0, 0
    sizes, ticks = size_bytes.tolist(), tick.tolist()
    for index, size in enumerate(sizes):
        is_late = index > 0 and ticks[index] != ticks[index - 1]
        if count and (is_late or held + size > threshold_bytes):
            ends.append(index - 1)
            high = high if is_late else min(high, held + size - 1)
            held, count = 0.0, 0
        held, count = held + size, count + 1
        low = max(low, held - 1) if count > 1 else low
    return Buckets(ends=(*ends, len(sizes) - 1), low_bytes=low, high_bytes=high)


def ticks_of(ready_s: Floats, cycle_s: float, phase: float = 0.0) -> Floats:
    """Return the tick of a cycle after which each tensor is ready.

    Parameters
    ----------
    ready_s
        From the start of the backward pass.
    cycle_s
        Seconds of a cycle; > 0.
    phase
        Of a cycle, at which the backward pass begins: nothing ties one to the other.
    """
    ticks: Floats = np.ceil(ready_s / cycle_s - phase)
    return ticks


def best_size(
    size_bytes: Floats,
    judge: Callable[[float], tuple[float, Buckets]],
    *,
    step: float = 1.0,
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[float, Buckets]:
    """Return the best size of a bucket: the seconds that it gives, and what it makes.

    A size alters nothing until it passes ``high_bytes``. Hence every size at which a rule makes something else is
    tried, from one tensor each to one bucket: of whole bytes, the best of all there are. Networks of 100 to 700 tensors
    have 500 to 4,000 of them. Of equally good ones the largest.

    Parameters
    ----------
    size_bytes
        Of every tensor; at least one.
    judge
        Of a size in bytes: the seconds to be minimised, and what is made of it.
    step
        Sizes closer than this to the last one are not told apart; 1 tells all apart.
    is_late
        Asked from size to size; then it ends with the best so far.
    """
    size, total = max(float(size_bytes.min()), 1.0), float(size_bytes.sum())
    best: tuple[float, Buckets] | None = None
    while best is None or (size <= total and not is_late()):  # larger ones hold everything
        found = judge(size)
        if best is None or found[0] <= best[0]:
            best = found
        size = max(found[1].high_bytes + 1, size * step)
    return best


def round_mib(buckets: Buckets, total_bytes: float) -> float:
    """Return a size in MiB that makes such buckets, with as few digits as possible, and near the upper end.

    Parameters
    ----------
    buckets
        With the sizes between which nothing alters.
    total_bytes
        Of all tensors.

    >>> round_mib(Buckets(ends=(0,), low_bytes=25.2 * MIB, high_bytes=27.35 * MIB), 100 * MIB)
    27.0
    """
    high = min(buckets.high_bytes, max(buckets.low_bytes + 1, total_bytes)) / MIB
    low = (buckets.low_bytes + 1) / MIB
    for digits in range(7):
        rounded = int(high * 10**digits) / 10**digits
        if rounded >= low:
            return float(rounded)
    return high if high >= low else float(ceil(low))
