"""A worker pool of any number of workers within one process, whose time is CPU time: what a cluster would take.

Every part is worked on when it is sent, and comes back when, by the clock of CPU seconds, a worker would have finished
it. So the speed-up of many workers can be told on a machine of few cores that others use, too: the client's own work,
the waits for the last part, stale bounds, the bytes and what every worker makes for itself are all in it. What is left
out is what workers cost each other: memory bandwidth, the network, and the scheduler beyond ``overhead_s`` a part.
"""

import time
from collections.abc import Callable, Container, Sequence
from typing import Any

from planner.worker_pool import Origin, packed, unpacked
from planner.workers.pool import _ALONE_S, _ALONE_THEN_S, _SHARE_S, worth_s

__all__ = ["VirtualPool"]


class VirtualPool:
    """``start_s``: until the workers can begin; ``overhead_s``: of a part on its way there and back."""

    def __init__(self, num_workers: int, *, start_s: float = 0.0, overhead_s: float = 0.0) -> None:
        self.notes: list[str] = []
        self.parts: list[tuple[float, int]] = []  # CPU seconds and bytes of each
        self._spans: list[tuple[float, float]] = []  # when a worker was at each
        self._free_s = [0.0] * num_workers
        self._start_s, self._overhead_s = start_s, overhead_s
        self._ready_s: float | None = None
        self._jumped_s, self._hidden_s, self._begin_s = 0.0, 0.0, time.thread_time()
        self._at_work: dict[int, tuple[float, Any]] = {}
        self._made: dict[tuple[int, str], Any] = {}  # of each worker

    @property
    def now_s(self) -> float:
        """Seconds since the beginning, of the client's own CPU and of its waits."""
        return time.thread_time() - self._begin_s - self._hidden_s + self._jumped_s

    @property
    def serial_s(self) -> float:
        """Seconds so far in which no worker had anything to do."""
        now_s, last_s, busy_s = self.now_s, 0.0, 0.0
        for begin_s, end_s in sorted(self._spans):
            busy_s += max(min(end_s, now_s) - max(begin_s, last_s), 0.0)
            last_s = max(last_s, end_s)
        return now_s - busy_s

    share_s = _SHARE_S

    def room(self) -> int:
        """Return how many more parts are wanted: two for each worker, as of the real ones; none while they start."""
        now_s = self.now_s
        if self._ready_s is None:
            self._ready_s = now_s + self._start_s
        if now_s < self._ready_s:
            return 0
        return 2 * len(self._free_s) - sum(end_s > now_s for end_s, _ in self._at_work.values())

    def submit(self, function: Callable[..., Any], origin: Origin, arguments: Sequence[Any]) -> int:
        """Work on a part, and hide that from the client's clock."""
        call = packed((function, tuple(arguments)))
        now_s, hidden_from_s = self.now_s, time.thread_time()
        worker = self._free_s.index(min(self._free_s))
        if (worker, origin.digest) not in self._made:
            self._made[worker, origin.digest] = origin.made()
        again, given = unpacked(call)
        found = packed(again(self._made[worker, origin.digest], *given))
        took_s = time.thread_time() - hidden_from_s
        begin_s = max(now_s, self._free_s[worker])
        self._free_s[worker] = end_s = begin_s + took_s + self._overhead_s
        self._spans.append((begin_s, end_s))
        self.parts.append((took_s, len(call) + len(found)))
        self._at_work[len(self.parts)] = (end_s, found)
        self._hidden_s += time.thread_time() - hidden_from_s
        return len(self.parts)

    @property
    def alone_s(self) -> float:
        """CPU seconds that a search works alone, as with the real one."""
        return max(_ALONE_S - self.now_s, _ALONE_THEN_S) if self._ready_s is None else _ALONE_THEN_S

    def is_worth(self, left_s: float) -> bool:
        """Whether workers are wanted, as of the real one."""
        return self._ready_s is not None or left_s >= worth_s(self.now_s)

    def poll(self, wait_s: float, wanted: Container[int]) -> list[tuple[int, Any]]:
        """Return what is finished by now; if it may wait, the clock goes on to the next one that will be."""
        ends = [(end_s, number) for number, (end_s, _) in self._at_work.items() if number in wanted]
        if wait_s and ends and min(ends)[0] > self.now_s:
            self._jumped_s += min(ends)[0] - self.now_s
        now_s = self.now_s
        ended = sorted(one for one in ends if one[0] <= now_s)
        return [(number, unpacked(self._at_work.pop(number)[1])) for _, number in ended]

    def tell(self, note: str) -> None:
        self.notes.append(note)
