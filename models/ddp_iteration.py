"""One iteration of synchronous training as PyTorch's DistributedDataParallel runs it, on workers that may be unlike.

::

    zero the gradients, forward, backward ............................. | wait | copy out | update
                              bucket ready -> all-reduce, in order .....|

A bucket is ready when the slowest worker has its last gradient, and all before it are ready. All-reduces are those of
:mod:`planner.models.ddp_ring`. Beyond the textbook's recursion there are

- *workers that vary*: of n equal workers the slowest counts. With normal variation the mean of the largest is ``z(n)``
  standard deviations above the mean (Blom's approximation: G. Blom, Statistical Estimates and Transformed
  Beta-Variables, 1958); the deviation is each worker's own, measured without communication;
- *computing beside communicating*: while the link is busy a layer that only sleeps for its time wakes up late, because
  the workers on its machine handle messages;
- *copies*: without gradients as views of their buckets every byte is copied into its bucket, by the thread of the
  backward pass, and out of it, bucket by bucket, after it has come back.

Constants stand in :class:`DdpConstants`, with their source. Left out: what workers vary once communication has begun,
retransmissions, and what sending and receiving take of a processor that computes. Traced iterations on one core a
worker show the last: 3 to 6 ns of the backward pass for every byte all-reduced. Whole iterations do not show it beside
profiles measured alone, which vary more than that (0 fits them best), so that it is not charged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.ddp_ring import Collectives, Exchange, exchange

__all__ = ["DdpConstants", "DdpIteration", "DdpWorker", "copied_out_s", "expected_largest", "iterate"]

_CLOSE_S = 1e-9
_MOST_PASSES = 100  # 1e-9 of the first guess's error is left of a loss of 0.8 s a second, less of a smaller one


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpConstants:
    """What a process costs beside its layers. Source: measured runs, fitted on 35 open jobs.

    Both are medians over the traced iterations of the 22 jobs with all-reduces, which tell when buckets were ready and
    when their copies ended; no iteration time went into them (:mod:`planner.calibration.runs.constants_fit`).

    Attributes
    ----------
    wake_s
        By how much later a sleeping layer wakes up, for each worker on the same machine of two cores, while the link is
        busy. 15 jobs, whose own figures lie from 0.02 to 0.30 ms; without any one session 0.108 to 0.121 ms.
    copy_s_per_byte
        Of a copy into a bucket, and of one out of it; 6 GB/s. 7 jobs, whose own figures lie from 0.15 to 0.24 ns;
        without any one session 0.168 to 0.176 ns.
    """

    wake_s: float = 0.11e-3
    copy_s_per_byte: float = 0.17e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpWorker:
    """One worker alone.

    Attributes
    ----------
    before_s
        From the start of the iteration to that of the backward pass.
    bucket_offset_s
        From there to the last gradient of each bucket, in order of communication.
    backward_s
        The whole backward pass.
    lost_share
        Seconds by which the backward pass gets later for every second in which the link is busy; from 0 to 1.
    deviation
        Standard deviation of its seconds over their mean.
    num_equal
        Workers that are as fast as this one, itself included.
    """

    before_s: float
    bucket_offset_s: tuple[float, ...]
    backward_s: float
    lost_share: float = 0.0
    deviation: float = 0.0
    num_equal: int = 1

    @property
    def slowest_of_equal(self) -> float:
        """The factor by which the slowest of the equal workers is expected to be late."""
        return 1 + expected_largest(self.num_equal) * self.deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpIteration:
    """Seconds of one iteration; ``computed_s`` is when the last backward pass ends, ``exchanged_s`` the copies out."""

    iteration_time_s: float
    before_s: float
    computed_s: float
    exchanged_s: float
    update_s: float
    ready_s: tuple[float, ...]
    exchange: Exchange


def expected_largest(number: int) -> float:
    """Return the mean of the largest of ``number`` standard normal figures, by Blom's approximation; 0 for one.

    >>> round(expected_largest(2), 3), expected_largest(1)
    (0.589, 0.0)
    """
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25)) if number > 1 else 0.0


def iterate(
    workers: Sequence[DdpWorker], buckets: Collectives, *, update_s: float, copy_s_per_byte: float
) -> DdpIteration:
    """Return the times of one iteration.

    Parameters
    ----------
    buckets
        In order of communication.
    copy_s_per_byte
        0 where gradients are views of their buckets.

    Raises
    ------
    ModelError
        If a worker has not one offset for each bucket, or there is no worker.
    """
    if not workers or any(len(worker.bucket_offset_s) != len(buckets.size_bytes) for worker in workers):
        raise ModelError("an iteration needs workers with one offset for each bucket.")
    copied_s = copy_s_per_byte * np.cumsum(np.asarray(buckets.size_bytes, dtype=float))
    times_s, done = _disturbed(workers, np.stack([_undisturbed_s(worker, copied_s) for worker in workers]), buckets)
    computed_s = float(times_s[:, -1].max())
    exchanged_s = copied_out_s(done.end_s.tolist(), buckets.size_bytes, copy_s_per_byte)
    return DdpIteration(
        iteration_time_s=max(computed_s, exchanged_s) + update_s,
        before_s=max(worker.before_s * worker.slowest_of_equal for worker in workers),
        computed_s=computed_s,
        exchanged_s=exchanged_s,
        update_s=update_s,
        ready_s=tuple(times_s[:, :-1].max(axis=0).tolist()),
        exchange=done,
    )


def _disturbed(workers: Sequence[DdpWorker], undisturbed_s: Floats, buckets: Collectives) -> tuple[Floats, Exchange]:
    """Return when each worker has each bucket and ends its backward pass, beside the communication that this causes.

    A bucket is delayed by those before it alone. Once these are settled, a guess that is too early is followed by one
    that is too late, since the bucket's own all-reduce disturbed it, and that by the right one: two passes settle each.
    They settle together as well: where the link is busy a second later, work is done at most ``lost_share`` seconds
    later. So the passes are as many as the buckets only where these are few.
    """
    times_s = undisturbed_s
    done = exchange(times_s[:, :-1].max(axis=0).tolist(), buckets)
    for _ in range(min(2 * len(buckets.size_bytes) + 2, _MOST_PASSES)):
        later_s = np.stack(
            [done.disturbed_s(row, worker.lost_share) for row, worker in zip(undisturbed_s, workers, strict=True)]
        )
        is_settled = bool(np.abs(later_s - times_s).max() <= _CLOSE_S)
        times_s = later_s
        if is_settled:
            break
        done = exchange(times_s[:, :-1].max(axis=0).tolist(), buckets)
    return times_s, done


def _undisturbed_s(worker: DdpWorker, copied_s: Floats) -> Floats:
    """Return when each bucket is ready and the backward pass ends, with the link at rest."""
    offsets_s = np.maximum.accumulate(np.asarray(worker.bucket_offset_s, dtype=float)) + copied_s
    last_copy_s = float(copied_s[-1]) if len(copied_s) else 0.0
    ends_s = np.append(offsets_s, max(worker.backward_s + last_copy_s, float(offsets_s.max(initial=0.0))))
    return np.asarray((worker.before_s + ends_s) * worker.slowest_of_equal)


def copied_out_s(end_s: Sequence[float], size_bytes: Sequence[float], copy_s_per_byte: float) -> float:
    """Return when the last bucket is copied back; each waits for its all-reduce and for the one before it.

    >>> copied_out_s([1.0, 1.5], [10, 20], 0.1)
    4.0
    """
    free_s = 0.0
    for end, size in zip(end_s, size_bytes, strict=True):
        free_s = max(free_s, end) + copy_s_per_byte * size
    return free_s
