"""Gloo's ring all-reduces on one link: several at once, each in rounds of two segments, sent first come first served.

What a collective does (facebookincubator/gloo, gloo/allreduce.cc): a buffer is cut into segments of at most 1 MiB, at
least two for each worker; a reduce-scatter and an all-gather pass ``segments - segments / n`` of them each, two in
flight at a time, and the next two leave when the last two have come. All collectives of a process share one connection
to each neighbour, which sends its messages in the order in which they were given to it (gloo/transport/tcp/pair.cc).
Two collectives at once therefore do not share the link evenly: each gets the link for a round in turn, so that a small
one beside a large one waits for two of the large one's segments at every round of its own. On workers that start a
collective together all links look the same, and one stands for all of them.

The seconds of a collective alone are taken as measured; how they split tells how collectives delay one another: what
its bytes need of the link is the link's, the rest is latency, in equal parts behind every round.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil

import numpy as np

from planner.cost import Floats, TransferCost
from planner.errors import ModelError

__all__ = ["LARGEST_SEGMENT_BYTES", "Collectives", "Exchange", "exchange", "num_rounds"]

LARGEST_SEGMENT_BYTES = 2**20  # gloo/allreduce.h, kMaxSegmentSize


def num_rounds(size_bytes: float, *, num_workers: int) -> int:
    """Return how many times a ring all-reduce hands two segments to the link and waits for two.

    >>> num_rounds(8_000_000, num_workers=2), num_rounds(1000, num_workers=8)
    (4, 14)
    """
    if num_workers < 2 or size_bytes <= 0:
        return 0
    segment_bytes = min(ceil(size_bytes / (2 * num_workers)), LARGEST_SEGMENT_BYTES)
    num_segments = num_workers * ceil(max(ceil(size_bytes / segment_bytes), 2 * num_workers) / num_workers)
    return num_segments - num_segments // num_workers  # two phases, two segments a round


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """All-reduces in the order in which they are started.

    Attributes
    ----------
    size_bytes, alone_s
        Of each: its bytes, and its seconds with nothing beside it.
    wire_s, rounds
        Of each: what of those the link is busy, and in how many rounds.
    num_concurrent
        How many may run at once.

    Raises
    ------
    ModelError
        If the lists differ in length, a time is negative or none may run.
    """

    size_bytes: tuple[float, ...]
    alone_s: tuple[float, ...]
    wire_s: tuple[float, ...]
    rounds: tuple[int, ...]
    num_concurrent: int = 1

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
        """Return ring all-reduces of these sizes, whose seconds alone a curve tells.

        ``per_byte_s`` is what a byte of a large one takes of the link.
        """
        return cls(
            size_bytes=tuple(size_bytes),
            alone_s=tuple(curve(np.asarray(size_bytes, dtype=float)).tolist()),
            wire_s=tuple(per_byte_s * size for size in size_bytes),
            rounds=tuple(num_rounds(size, num_workers=num_workers) for size in size_bytes),
            num_concurrent=num_concurrent,
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """When each collective starts and ends, in the order in which they were given, and when the link was busy."""

    start_s: Floats
    end_s: Floats
    busy_from_s: Floats
    busy_to_s: Floats

    def busy_before_s(self, time_s: Floats) -> Floats:
        """Return for how many seconds the link was busy before each time."""
        spans_s = self.busy_to_s - self.busy_from_s
        # Pairs of one time each: busy seconds before a span begins, and when it ends.
        breaks_s = np.concatenate([[0.0], np.stack([self.busy_from_s, self.busy_to_s], axis=1).ravel()])
        before_s = np.concatenate([[0.0], np.stack([np.cumsum(spans_s) - spans_s, np.cumsum(spans_s)], axis=1).ravel()])
        return np.asarray(np.interp(np.asarray(time_s, dtype=float), breaks_s, before_s))

    def disturbed_s(self, undisturbed_s: Floats, lost_share: float) -> Floats:
        """Return when work is done that loses ``lost_share`` seconds for every second in which the link is busy.

        That is the first time ``t`` with ``t - lost_share x busy(t)`` at what it would be with the link at rest.
        """
        breaks_s = np.concatenate([[0.0], np.stack([self.busy_from_s, self.busy_to_s], axis=1).ravel()])
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
        ``num_concurrent`` threads is free.

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
    return _Simulation(ready_s, collectives).run(collectives.num_concurrent)


class _Simulation:
    """The events of one exchange: a collective hands a round to the link, or ends."""

    def __init__(self, ready_s: Sequence[float], given: Collectives) -> None:
        self._ready_s = np.maximum.accumulate(np.asarray([0.0, *ready_s]))[1:].tolist()
        self._left = [max(number, 1) for number in given.rounds]
        used_s = [min(wire, alone) for wire, alone in zip(given.wire_s, given.alone_s, strict=True)]
        self._wire_s = [used / left for used, left in zip(used_s, self._left, strict=True)]
        self._latency_s = [
            (alone - used) / left for alone, used, left in zip(given.alone_s, used_s, self._left, strict=True)
        ]
        self._events: list[tuple[float, int, int]] = []
        self._ticket = count()  # equal times keep the order of their making
        self._started = 0
        self._start_s = [0.0] * len(self._left)
        self._end_s = [0.0] * len(self._left)
        self._busy: list[list[float]] = []

    def run(self, num_concurrent: int) -> Exchange:
        """Play all events; return the times."""
        for _ in range(min(num_concurrent, len(self._left))):
            self._start(0.0)
        while self._events:
            now_s, _, index = heapq.heappop(self._events)
            if self._left[index]:
                self._send(now_s, index)
            else:
                self._end_s[index] = now_s
                self._start(now_s)
        busy = np.asarray(self._busy, dtype=float).reshape(-1, 2)
        return Exchange(np.asarray(self._start_s), np.asarray(self._end_s), busy[:, 0], busy[:, 1])

    def _start(self, free_s: float) -> None:
        """Give a thread that is free to the next collective, if there is one."""
        if self._started < len(self._left):
            index, self._started = self._started, self._started + 1
            self._start_s[index] = max(free_s, self._ready_s[index])
            heapq.heappush(self._events, (self._start_s[index], next(self._ticket), index))

    def _send(self, now_s: float, index: int) -> None:
        """Put one round behind what the link has to send."""
        free_s = self._busy[-1][1] if self._busy else 0.0
        from_s = max(now_s, free_s)
        to_s = from_s + self._wire_s[index]
        if self._busy and from_s <= free_s:
            self._busy[-1][1] = to_s
        else:
            self._busy.append([from_s, to_s])
        self._left[index] -= 1
        heapq.heappush(self._events, (to_s + self._latency_s[index], next(self._ticket), index))
