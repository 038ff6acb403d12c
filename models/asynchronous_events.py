"""The events of an asynchronous training: every worker computes, pushes, waits if it must, pulls, and starts again.

The engine behind :func:`planner.models.asynchronous.simulate`, where the model is described.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from planner.models.asynchronous_exchange import Exchange, WorkerKind
from planner.models.asynchronous_links import server_links

__all__ = ["Log", "Record", "play"]

Log = list[tuple[int, str, float, float]]  # worker; pull, compute, push or wait; start and end in seconds

_DRAWS = 64  # random numbers drawn at a time


@dataclass(slots=True)
class _Tally:
    """Mean and largest of numbers that come one by one; the mean is of those after the warm-up."""

    total: int = 0
    number: int = 0
    most: int = 0

    def add(self, value: int, *, is_warm: bool) -> None:
        self.most = max(self.most, value)
        if is_warm:
            self.total += value
            self.number += 1

    @property
    def mean(self) -> float:
        return self.total / self.number if self.number else 0.0


@dataclass(slots=True)
class Record:
    """What was counted; a cycle is the time between two moments at which a worker may pull.

    Attributes
    ----------
    num_cycles, cycles_s
        Of each worker, after the warm-up.
    all_cycles, all_s
        The same of the whole run, the start included: for a worker that is too slow to have any other.
    waits_s, computes_s
        Of all workers together: held back by the others, and computing, in those cycles.
    missed, clock_difference
        Sum, number and largest: updates of others that a push missed, and iterations ahead of the slowest worker.
    rounds_s
        When each n-th update of n workers was applied, of the whole run.
    """

    num_cycles: list[int]
    cycles_s: list[float]
    all_cycles: list[int]
    all_s: list[float]
    waits_s: float = 0.0
    computes_s: float = 0.0
    missed: _Tally = field(default_factory=_Tally)
    clock_difference: _Tally = field(default_factory=_Tally)
    rounds_s: list[float] = field(default_factory=list)


def play(exchange: Exchange, *, num_exchanges: int, num_warm_up: int, seed: int, log: Log | None = None) -> Record:
    """Return what happens until so many updates were applied; the first ``num_warm_up`` of them are not counted.

    ``log``: where to put what every worker does, in the order in which it ends.
    """
    game = _Play(exchange, num_exchanges=num_exchanges, num_warm_up=num_warm_up, seed=seed)
    game.log = log
    return game.run()


class _Play:
    """The state of all workers; events are (time, number, what, worker), and equal times come in order of number."""

    def __init__(self, exchange: Exchange, *, num_exchanges: int, num_warm_up: int, seed: int) -> None:
        size, both = exchange.num_workers, (exchange.push_bytes, exchange.pull_bytes)
        self.num_workers, self.slack = size, exchange.slack
        self.num_exchanges, self.num_warm_up = num_exchanges, num_warm_up
        self.compute_s = [
            _compute_s(kind, exchange.num_steps, seed, index) for index, kind in enumerate(exchange.workers)
        ]
        self.push, self.pull = (server_links(exchange, *direction) for direction in exchange.directions())
        self.pushes, self.pulls = map(exchange.remote_bytes, both)
        self.push_s, self.pull_s = map(exchange.own_s, both)
        self.push_delay_s, self.pull_delay_s = map(exchange.delays_s, both)
        self.clock = _first_clocks(exchange)
        self.least_clock = min(self.clock)
        self.at_clock = Counter(self.clock)
        self.waiting: set[int] = set()  # read in sorted order only
        self.applied_s, self.computed_s = [0.0] * size, [0.0] * size
        self.computed_at_s = [0.0] * size  # kept for the log alone
        self.released_s = _starts_s(exchange)
        self.is_counted = [False] * size  # the cycle under way began after the warm-up
        self.seen = [0] * size  # updates in the parameters that each worker has
        self.num_applied = self.number = 0
        self.events: list[tuple[float, int, int, int]] = []
        self.log: Log | None = None
        self.record = Record([0] * size, [0.0] * size, [0] * size, [0.0] * size)

    def run(self) -> Record:
        """Play until the last update."""
        steps = (self.push_begins, self.push_ends, self.push_is_applied, self.pull_begins, self.pull_ends, self.start)
        for worker, start_s in enumerate(self.released_s):
            self.at(start_s, 5, worker)
        while self.num_applied < self.num_exchanges:
            now, _, what, worker = heapq.heappop(self.events)
            steps[what](now, worker)
        return self.record

    def at(self, when: float, what: int, worker: int) -> None:
        """Have something happen."""
        self.number += 1
        heapq.heappush(self.events, (when, self.number, what, worker))

    def start(self, now: float, worker: int) -> None:
        """Compute with the parameters that there are: nothing has to be pulled."""
        self.seen[worker] = self.num_applied
        self.compute_from(now, worker)

    def compute_from(self, now: float, worker: int) -> None:
        """Compute; what happens next is that the push's first byte reaches the servers' links."""
        self.computed_s[worker] = compute_s = next(self.compute_s[worker])
        if self.log is not None:
            self.log.append((worker, "pull", self.released_s[worker], now))
            self.log.append((worker, "compute", now, now + compute_s))
            self.computed_at_s[worker] = now + compute_s
        self.at(now + compute_s + self.push_delay_s[worker], 0, worker)

    def push_begins(self, now: float, worker: int) -> None:
        if not self.pushes[worker]:
            self.push_is_applied(now, worker)
        else:
            self.push.open(now, worker)
            self.at(now + self.push_s[worker], 1, worker)

    def push_ends(self, now: float, worker: int) -> None:
        self.at(now + self.push.close(now, worker), 2, worker)

    def push_is_applied(self, now: float, worker: int) -> None:
        """Apply an update, advance the worker's clock, and let go on whoever now may, in the order of their numbers."""
        is_warm = self.num_applied >= self.num_warm_up
        missed = self.num_applied - self.seen[worker] if self.slack else 0  # behind a barrier all are applied at once
        self.record.missed.add(missed, is_warm=is_warm)
        self.num_applied += 1
        if self.num_applied % self.num_workers == 0:
            self.record.rounds_s.append(now)
        self.applied_s[worker] = now
        if self.log is not None:
            self.log.append((worker, "push", self.computed_at_s[worker], now))
        self.waiting.add(worker)
        asking = self.waiting if self.tick(worker) else {worker}
        for one in sorted(one for one in asking if self.clock[one] - self.least_clock <= self.slack):
            self.waiting.remove(one)
            self.release(now, one)

    def tick(self, worker: int) -> bool:
        """Count a finished iteration; return whether it was the last one that others waited for."""
        before = self.clock[worker]
        self.clock[worker] = before + 1
        self.at_clock[before + 1] += 1
        self.at_clock[before] -= 1
        if self.at_clock[self.least_clock]:
            return False
        del self.at_clock[self.least_clock]
        self.least_clock += 1  # where this worker is now, if nobody else
        return True

    def release(self, now: float, worker: int) -> None:
        """Let a worker pull: one cycle ends, and the next begins."""
        is_warm, record = self.num_applied >= self.num_warm_up, self.record
        if self.log is not None:
            self.log.append((worker, "wait", self.applied_s[worker], now))
        record.clock_difference.add(self.clock[worker] - self.least_clock, is_warm=is_warm)
        cycle_s = now - self.released_s[worker]
        record.all_cycles[worker] += 1
        record.all_s[worker] += cycle_s
        if self.is_counted[worker]:
            record.num_cycles[worker] += 1
            record.cycles_s[worker] += cycle_s
            record.waits_s += now - self.applied_s[worker]
            record.computes_s += self.computed_s[worker]
        self.is_counted[worker], self.released_s[worker] = is_warm, now
        if self.pulls[worker]:
            self.at(now + self.pull_delay_s[worker], 3, worker)
        else:
            self.start(now, worker)

    def pull_begins(self, now: float, worker: int) -> None:
        self.seen[worker] = self.num_applied
        self.pull.open(now, worker)
        self.at(now + self.pull_s[worker], 4, worker)

    def pull_ends(self, now: float, worker: int) -> None:
        self.compute_from(now + self.pull.close(now, worker), worker)


def _starts_s(exchange: Exchange) -> list[float]:
    """Return when each worker first computes: spread evenly over a cycle.

    Equal workers without variation would for ever stay in step after a common start, and queue up every time. Behind a
    barrier the start is forgotten after one round.
    """
    return [cycle_s * index / exchange.num_workers for index, cycle_s in enumerate(exchange.cycles_s())]


def _first_clocks(exchange: Exchange) -> list[int]:
    """Return how far each worker is ahead at the start.

    Under SSP a worker that alone is faster than the slowest gets ahead until s stops it. Where the two differ little
    that takes longer than any simulation; so it starts there.
    """
    if not 0 < exchange.slack < math.inf:
        return [0] * exchange.num_workers
    cycles_s = exchange.cycles_s()
    slowest_s = max(cycles_s)
    return [0 if math.isclose(cycle_s, slowest_s) else exchange.bound for cycle_s in cycles_s]


def _compute_s(kind: WorkerKind, num_steps: int, seed: int, worker: int) -> Iterator[float]:
    """Return the seconds that a worker computes between exchanges; the same numbers under every synchronisation."""
    return _drawn_s(kind, num_steps, seed, worker) if kind.deviation_s else repeat(num_steps * kind.compute_s)


def _drawn_s(kind: WorkerKind, num_steps: int, seed: int, worker: int) -> Iterator[float]:
    """Yield sums of independent draws, each normal and not negative."""
    rng = np.random.default_rng((seed, worker))
    while True:
        drawn = rng.normal(kind.compute_s, kind.deviation_s, (_DRAWS, num_steps))
        while (negative := drawn < 0).any():
            drawn[negative] = rng.normal(kind.compute_s, kind.deviation_s, int(negative.sum()))
        yield from drawn.sum(axis=1).tolist()
