"""One iteration of synchronous training as PyTorch's DistributedDataParallel runs it over Gloo, on measured links.

::

    zero the gradients, forward, backward ............................. | wait | copy out | update
                              bucket ready -> all-reduce, in order .....|

**One all-reduce** (:func:`steadied`). An isolated measurement has a barrier before it, links at rest and, with a delay,
connections whose windows have not yet grown; a training run sends one all-reduce after another. The isolated medians
therefore give the curve's shape, and its level comes from sizes that were measured in other ways as well: a train
without pauses, again when the session ended, and two issued together (half the time of both). At such a size the level
is the median of those other measurements over the isolated median; between such sizes it is interpolated over the
logarithm of the size, beyond them it stays. No figure is fitted, but the rule is: the best of 51 on 22 measured runs
(``docs/accuracy_runs.md``).

**Several at once** (:func:`exchange`). What a collective does (facebookincubator/gloo, gloo/allreduce.cc): a buffer is
cut into segments of at most 1 MiB, at least two for each worker; a reduce-scatter and an all-gather pass ``segments -
segments / n`` of them each, two in flight at a time, and the next two leave when the last two have come. All
collectives of a process share one connection to each neighbour, which sends its messages in the order in which they
were given to it (gloo/transport/tcp/pair.cc). Two collectives at once therefore do not share the link evenly: each gets
the link for a round in turn, so that a small one beside a large one waits for two of the large one's segments at every
round of its own: of runs with two at once the mean error of when a bucket ends is 2.2 % of an iteration, and simulated
one after another 6.1 %. On workers that start a collective together all links look the same, and one stands for all.
The seconds of a collective alone are taken as measured: what its bytes need of the link is the link's, the rest is
latency, in equal parts behind every round.

**The iteration** (:func:`iterate`). A bucket is ready when the slowest worker has its last gradient, and all before it
are ready. Beyond the textbook's recursion there are

- *workers that vary*: of n equal workers the slowest counts. With normal variation the mean of the largest is ``z(n)``
  standard deviations above the mean (Blom's approximation: G. Blom, Statistical Estimates and Transformed
  Beta-Variables, 1958); the deviation is each worker's own, measured without communication;
- *computing beside communicating*: while the link is busy a layer that only sleeps for its time wakes up late, because
  the workers on its machine handle messages;
- *copies*: without gradients as views of their buckets every byte is copied into its bucket, by the thread of the
  backward pass, and out of it, bucket by bucket, after it has come back.

Left out: what workers vary once communication has begun, retransmissions, and what sending and receiving take of a
processor that computes. Traced iterations on one core a worker show the last: 3 to 6 ns of the backward pass for every
byte all-reduced. Whole iterations do not show it beside profiles measured alone, which vary more than that (0 fits them
best), so that it is not charged. Sources: as named; constants and their runs at :class:`DdpConstants`.
"""

import heapq
from collections.abc import Mapping, Sequence
from itertools import count
from math import ceil
from statistics import NormalDist

import numpy as np

from planner.cost import Floats, TransferCost
from planner.errors import ModelError
from planner.frozen import frozen
from planner.models.communication import MeasuredCurve

LARGEST_SEGMENT_BYTES = 2**20  # gloo/allreduce.h, kMaxSegmentSize
_LARGE_BYTES = 2 * 2**20  # from here on latency is below a hundredth, on the slowest of the measured networks
_CLOSE_S = 1e-9
_MOST_PASSES = 100  # 1e-9 of the first guess's error is left of a loss of 0.8 s a second, less of a smaller one


def steadied(
    size_bytes: Sequence[float], isolated_s: Sequence[float], repeats_s: Mapping[float, Sequence[float]]
) -> MeasuredCurve:
    """Return the curve with its level set by repeats.

    Parameters
    ----------
    size_bytes, isolated_s
        The isolated medians, sizes strictly ascending; bytes and seconds.
    repeats_s
        Size -> seconds of the other measurements; sizes that the isolated ones lack are passed over.

    >>> curve = steadied([1e3, 1e6], [1.0, 2.0], {1e6: [1.9, 1.8, 2.1]})
    >>> float(curve(1e6)), float(curve(1e3))
    (1.9, 0.95)
    """
    sizes, seconds = np.asarray(size_bytes, dtype=float), np.asarray(isolated_s, dtype=float)
    measured = {float(size): float(time) for size, time in zip(sizes, seconds, strict=True)}
    repeated = sorted(size for size, times in repeats_s.items() if times and float(size) in measured)
    if repeated:
        levels = [float(np.median(repeats_s[size])) / measured[float(size)] for size in repeated]
        seconds = seconds * np.exp(np.interp(np.log(sizes), np.log(repeated), np.log(levels)))
    return MeasuredCurve(size_bytes=tuple(sizes.tolist()), seconds=tuple(seconds.tolist()))


def per_byte_s(size_bytes: Sequence[float], curve: MeasuredCurve) -> float:
    """Return the seconds that a byte of a large all-reduce takes of the link: the median over sizes of 2 MiB and more.

    Parameters
    ----------
    size_bytes
        Sizes that were measured; where all are smaller, the largest counts.
    curve
        Seconds of an all-reduce by its bytes.
    """
    large = [size for size in size_bytes if size >= _LARGE_BYTES] or [max(size_bytes)]
    sizes = np.asarray(large, dtype=float)
    return float(np.median(curve(sizes) / sizes))


def num_rounds(size_bytes: float, *, num_workers: int) -> int:
    """Return how many times a ring all-reduce hands two segments to the link and waits for two.

    Parameters
    ----------
    size_bytes, num_workers
        Of the buffer; and n. Nothing is sent of nothing, nor by one worker.

    >>> num_rounds(8_000_000, num_workers=2), num_rounds(1000, num_workers=8)
    (4, 14)
    """
    if num_workers < 2 or size_bytes <= 0:
        return 0
    least_segments = max(ceil(size_bytes / LARGEST_SEGMENT_BYTES), 2 * num_workers)
    num_segments = num_workers * ceil(least_segments / num_workers)
    return num_segments - num_segments // num_workers  # two phases, two segments a round


@frozen
class Collectives:
    """All-reduces in the order in which they are started.

    Raises
    ------
    ModelError
        If the lists differ in length, a time is negative or none may run.
    """

    # size_bytes, alone_s: of each: its bytes, and its seconds with nothing beside it
    size_bytes: tuple[float, ...]
    alone_s: tuple[float, ...]
    # wire_s, rounds: of each: what of those the link is busy, and in how many rounds
    wire_s: tuple[float, ...]
    rounds: tuple[int, ...]
    num_concurrent: int = 1  # how many may run at once

    def __post_init__(self) -> None:
        """Check what the simulation relies on."""
        if not len(self.size_bytes) == len(self.alone_s) == len(self.wire_s) == len(self.rounds):
            raise ModelError("collectives need as many seconds and rounds as sizes.")
        if self.num_concurrent < 1 or min([*self.alone_s, *self.wire_s], default=0.0) < 0:
            raise ModelError("collectives need times of at least 0 and at least one at once.")

    @classmethod
    def rings(
        cls,
        size_bytes: Sequence[float],
        curve: TransferCost,
        *,
        per_byte_s: float,
        num_workers: int,
        num_concurrent: int = 1,
    ) -> "Collectives":
        """Return ring all-reduces of these sizes.

        Parameters
        ----------
        size_bytes
            In the order in which they are started.
        curve
            Seconds of one alone, by its bytes.
        per_byte_s
            What a byte of a large one takes of the link, see :func:`per_byte_s`.
        num_workers, num_concurrent
            In the ring; and how many all-reduces may run at once.
        """
        return cls(
            size_bytes=tuple(size_bytes),
            alone_s=tuple(curve(np.asarray(size_bytes, dtype=float)).tolist()),
            wire_s=tuple(per_byte_s * size for size in size_bytes),
            rounds=tuple(num_rounds(size, num_workers=num_workers) for size in size_bytes),
            num_concurrent=num_concurrent,
        )


@frozen(kw_only=False)
class Exchange:
    """When each collective starts and ends, in the order in which they were given, and when the link was busy."""

    start_s: Floats
    end_s: Floats
    busy_from_s: Floats
    busy_to_s: Floats

    @property
    def _breaks_s(self) -> Floats:
        """0, then start and end of every busy span."""
        return np.concatenate([[0.0], np.stack([self.busy_from_s, self.busy_to_s], axis=1).ravel()])

    def busy_before_s(self, time_s: Floats) -> Floats:
        """Return for how many seconds the link was busy before each time.

        Parameters
        ----------
        time_s
            Seconds from the start of the exchange, >= 0; any shape, which the answer has, too.
        """
        ends_s = np.cumsum(self.busy_to_s - self.busy_from_s)
        before_s = np.concatenate([[0.0], np.stack([np.concatenate([[0.0], ends_s[:-1]]), ends_s], axis=1).ravel()])
        return np.asarray(np.interp(np.asarray(time_s, dtype=float), self._breaks_s, before_s))

    def disturbed_s(self, undisturbed_s: Floats, lost_share: float) -> Floats:
        """Return when work is done that loses time while the link is busy.

        That is the first time ``t`` with ``t - lost_share x busy(t)`` at what it would be with the link at rest.

        Parameters
        ----------
        undisturbed_s
            When it would be done with the link at rest; ascending.
        lost_share
            Seconds that are lost for every second in which the link is busy; from 0 to 1.
        """
        breaks_s = self._breaks_s
        progress_s = np.maximum.accumulate(breaks_s - lost_share * self.busy_before_s(breaks_s))
        undisturbed_s = np.asarray(undisturbed_s, dtype=float)
        inside_s = np.interp(undisturbed_s, progress_s, breaks_s)
        return np.asarray(inside_s + np.maximum(undisturbed_s - progress_s[-1], 0.0))


def exchange(ready_s: Sequence[float], collectives: Collectives) -> Exchange:
    """Simulate collectives that are started in order.

    Parameters
    ----------
    ready_s
        When the last worker could start each; a collective starts when it and all before it are ready, and one of
        ``num_concurrent`` threads is free. Seconds, >= 0.
    collectives
        What is sent, one for each ready time.

    Raises
    ------
    ModelError
        If there is not one ready time for each collective, or a time is negative.

    >>> from dataclasses import replace
    >>> both = Collectives(size_bytes=(3, 2), alone_s=(3, 2), wire_s=(2, 2), rounds=(1, 1))
    >>> exchange([0, 0], both).end_s.tolist()
    [3.0, 5.0]
    >>> exchange([0, 0], replace(both, num_concurrent=2)).end_s.tolist()
    [3.0, 4.0]
    """
    if len(ready_s) != len(collectives.alone_s):
        raise ModelError("an exchange needs as many ready times as collectives.")
    if min(ready_s, default=0.0) < 0:
        raise ModelError("an exchange needs ready times of at least 0.")
    could_start_s = np.maximum.accumulate(np.asarray([0.0, *ready_s]))[1:].tolist()
    number = len(could_start_s)
    left = [max(rounds, 1) for rounds in collectives.rounds]
    on_link_s = [min(wire, alone) for wire, alone in zip(collectives.wire_s, collectives.alone_s, strict=True)]
    wire_s = [used / rounds for used, rounds in zip(on_link_s, left, strict=True)]
    latency_s = [
        (alone - used) / rounds for alone, used, rounds in zip(collectives.alone_s, on_link_s, left, strict=True)
    ]
    start_s, end_s, busy_s = [0.0] * number, [0.0] * number, list[list[float]]()
    events: list[tuple[float, int, int]] = []  # a collective hands a round to the link, or ends
    ticket, following = count(), iter(range(number))  # equal times keep the order of their making

    def start_next(free_s: float) -> None:
        """Give a thread that is free to the next collective, if there is one."""
        for index in following:
            start_s[index] = max(free_s, could_start_s[index])
            heapq.heappush(events, (start_s[index], next(ticket), index))
            return

    for _ in range(min(collectives.num_concurrent, number)):
        start_next(0.0)
    while events:
        now_s, _, index = heapq.heappop(events)
        if not left[index]:
            end_s[index] = now_s
            start_next(now_s)
            continue
        free_s = busy_s[-1][1] if busy_s else 0.0  # behind what the link has to send
        from_s = max(now_s, free_s)
        to_s = from_s + wire_s[index]
        if busy_s and from_s <= free_s:
            busy_s[-1][1] = to_s
        else:
            busy_s.append([from_s, to_s])
        left[index] -= 1
        heapq.heappush(events, (to_s + latency_s[index], next(ticket), index))
    busy = np.asarray(busy_s, dtype=float).reshape(-1, 2)
    return Exchange(np.asarray(start_s), np.asarray(end_s), busy[:, 0], busy[:, 1])


@frozen
class DdpConstants:
    """What a process costs beside its layers. Source: measured runs, fitted on 35 open jobs.

    Both are medians over the traced iterations of the 22 jobs with all-reduces, which tell when buckets were ready and
    when their copies ended; no iteration time went into them (:mod:`research.runs.constants_fit`).
    """

    # by how much later a sleeping layer wakes up, for each worker on the same machine of two cores, while the link is
    # busy. 15 jobs, whose own figures lie from 0.02 to 0.30 ms; without any one session 0.108 to 0.121 ms
    wake_s: float = 0.11e-3
    # of a copy into a bucket, and of one out of it; 6 GB/s. 7 jobs, whose own figures lie from 0.15 to 0.24 ns; without
    # any one session 0.168 to 0.176 ns
    copy_s_per_byte: float = 0.17e-9


@frozen
class DdpWorker:
    """One worker alone."""

    before_s: float  # from the start of the iteration to that of the backward pass
    bucket_offset_s: tuple[float, ...]  # from there to the last gradient of each bucket, in order of communication
    backward_s: float  # the whole backward pass
    # seconds by which the backward pass gets later for every second in which the link is busy; from 0 to 1
    lost_share: float = 0.0
    deviation: float = 0.0  # standard deviation of its seconds over their mean
    num_equal: int = 1  # workers that are as fast as this one, itself included

    @property
    def slowest_of_equal(self) -> float:
        """The factor by which the slowest of the equal workers is expected to be late."""
        return 1 + expected_largest(self.num_equal) * self.deviation


@frozen
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

    Parameters
    ----------
    number
        At least 1.

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
    workers
        Each alone, equal ones once; at least one.
    buckets
        In order of communication.
    update_s
        Of the optimiser, behind all else.
    copy_s_per_byte
        Of a copy into a bucket, and of one out of it; 0 where gradients are views of their buckets.

    Raises
    ------
    ModelError
        If a worker has not one offset for each bucket, or there is no worker.

    Notes
    -----
    Computing delays communication, which delays computing. A bucket is delayed by those before it alone. Once these are
    settled, a guess that is too early is followed by one that is too late, since the bucket's own all-reduce disturbed
    it, and that by the right one: two passes settle each. They settle together as well: where the link is busy a second
    later, work is done at most ``lost_share`` seconds later. So the passes are as many as the buckets only where these
    are few.
    """
    if not workers or any(len(worker.bucket_offset_s) != len(buckets.size_bytes) for worker in workers):
        raise ModelError("an iteration needs workers with one offset for each bucket.")
    copied_s = copy_s_per_byte * np.cumsum(np.asarray(buckets.size_bytes, dtype=float))
    rows = []  # of each worker: when each bucket is ready and the backward pass ends, with the link at rest
    for worker in workers:
        offsets_s = np.maximum.accumulate(np.asarray(worker.bucket_offset_s, dtype=float)) + copied_s
        end_s = max(worker.backward_s + float(copied_s[-1] if len(copied_s) else 0.0), offsets_s.max(initial=0.0))
        rows.append((worker.before_s + np.append(offsets_s, end_s)) * worker.slowest_of_equal)
    undisturbed_s = times_s = np.stack(rows)
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


def copied_out_s(end_s: Sequence[float], size_bytes: Sequence[float], copy_s_per_byte: float) -> float:
    """Return when the last bucket is copied back; each waits for its all-reduce and for the one before it.

    Parameters
    ----------
    end_s, size_bytes
        Of each all-reduce, in order: when it ends, and its bytes.
    copy_s_per_byte
        Of a copy.

    >>> copied_out_s([1.0, 1.5], [10, 20], 0.1)
    4.0
    """
    free_s = 0.0
    for end, size in zip(end_s, size_bytes, strict=True):
        free_s = max(free_s, end) + copy_s_per_byte * size
    return free_s
