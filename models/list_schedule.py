"""List scheduling: tasks with predecessors on named resources, each of which does one task at a time.

Whenever a resource is free it starts, of the tasks that are ready for it, the one with the smallest priority, ties by
index; it never waits for a better one (R. L. Graham, SIAM J. Appl. Math. 17(2), 1969, doi:10.1137/0117039). With one
resource only, and priorities by ready time, this is the first-come-first-served channel of :mod:`planner.channel`.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task; tasks are known by their index in a sequence.

    Attributes
    ----------
    duration_s
        Finite and >= 0; the resource is held for all of it.
    after
        Indices of the tasks that must have ended; all smaller than the task's own, so that there is no cycle.
    priority
        Smaller goes first.
    lag_s
        From the end of the last predecessor, or from 0 if there is none, to the earliest start; nothing is held.
    """

    duration_s: float
    resource: str
    after: tuple[int, ...] = ()
    priority: tuple[int, ...] = ()
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Start and end of every task, by its index."""

    start_s: Floats
    end_s: Floats

    @property
    def makespan_s(self) -> float:
        """End of the last task; 0 if there is none."""
        return float(self.end_s.max(initial=0.0))


def list_schedule(tasks: Sequence[Task]) -> Schedule:
    """Return when each task runs: ``O((V + E) log V)``. Proves nothing about the best makespan; see `lower_bound_s`.

    Raises
    ------
    ModelError
        If a time is negative or not finite, or a task does not stand after its predecessors.

    >>> tasks = [Task(duration_s=2, resource="a"), Task(duration_s=3, resource="b", after=(0,)),
    ...          Task(duration_s=1, resource="b")]
    >>> list_schedule(tasks).end_s.tolist()
    [2.0, 5.0, 1.0]
    """
    _list_schedule_check(tasks)
    run = _Run(tasks)
    while run.events:
        run.step()
    start_s = np.array(run.start_s, dtype=np.float64)
    return Schedule(start_s=start_s, end_s=start_s + [task.duration_s for task in tasks])


class _Run:
    """The state of a simulation. Events are (time, index, whether the task ends; else it gets ready)."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.start_s = [0.0] * len(tasks)
        self.num_open = [len(task.after) for task in tasks]
        self.followers: list[list[int]] = [[] for _ in tasks]
        for index, task in enumerate(tasks):
            for before in task.after:
                self.followers[before].append(index)
        self.events = [(task.lag_s, index, False) for index, task in enumerate(tasks) if not task.after]
        heapq.heapify(self.events)
        self.waiting: dict[str, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        self.busy: set[str] = set()

    def step(self) -> None:
        """Advance to the next moment, hear of everything that happens then, and start what can start."""
        now = self.events[0][0]
        touched: dict[str, None] = {}  # an ordered set: the order of a set of texts differs between runs
        while self.events and self.events[0][0] == now:
            _, index, is_end = heapq.heappop(self.events)
            touched[self.tasks[index].resource] = None
            if is_end:
                self._end(index, now)
            else:
                heapq.heappush(self.waiting[self.tasks[index].resource], (self.tasks[index].priority, index))
        for resource in touched:
            if resource not in self.busy and self.waiting[resource]:
                self._start(heapq.heappop(self.waiting[resource])[1], now)

    def _end(self, index: int, now: float) -> None:
        """Free the resource, and announce the followers that waited for this task last."""
        self.busy.discard(self.tasks[index].resource)
        for follower in self.followers[index]:
            self.num_open[follower] -= 1
            if not self.num_open[follower]:
                heapq.heappush(self.events, (now + self.tasks[follower].lag_s, follower, False))

    def _start(self, index: int, now: float) -> None:
        """Hold the resource until the task ends."""
        self.start_s[index] = now
        self.busy.add(self.tasks[index].resource)
        heapq.heappush(self.events, (now + self.tasks[index].duration_s, index, True))


# -- lower bounds ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Path:
    """The longest path to each task's end, and its last predecessor on it; -1 for none."""

    end_s: list[float] = field(default_factory=list)
    via: list[int] = field(default_factory=list)


def critical_path(tasks: Sequence[Task]) -> tuple[int, ...]:
    """Return the tasks of a longest path, first to last: what bounds the makespan were resources unlimited."""
    path = _longest_paths(tasks)
    index = int(np.argmax(path.end_s)) if path.end_s else -1
    found = []
    while index >= 0:
        found.append(index)
        index = path.via[index]
    return tuple(reversed(found))


def longest_path_s(tasks: Sequence[Task]) -> float:
    """Return the length of the critical path, lags included: no schedule is shorter."""
    return max(_longest_paths(tasks).end_s, default=0.0)


def lower_bound_s(tasks: Sequence[Task]) -> float:
    """Return the longer of the critical path and the work of the busiest resource."""
    work_s: dict[str, float] = defaultdict(float)
    for task in tasks:
        work_s[task.resource] += task.duration_s
    return max(longest_path_s(tasks), max(work_s.values(), default=0.0))


def _longest_paths(tasks: Sequence[Task]) -> _Path:
    """Return the longest path to every task, in one pass over the edges."""
    _list_schedule_check(tasks)
    path = _Path()
    for task in tasks:
        last = max(task.after, key=path.end_s.__getitem__, default=-1)
        ready_s = path.end_s[last] if last >= 0 else 0.0
        path.end_s.append(ready_s + task.lag_s + task.duration_s)
        path.via.append(last)
    return path


def _list_schedule_check(tasks: Sequence[Task]) -> None:
    """Refuse times that are no times, and predecessors that do not come first."""
    for index, task in enumerate(tasks):
        for what, seconds in (("duration_s", task.duration_s), ("lag_s", task.lag_s)):
            if not 0 <= seconds < float("inf"):
                raise ModelError(f"task {index}: {what} must be finite and >= 0, not {seconds}.")
        for before in task.after:
            if not 0 <= before < index:
                raise ModelError(
                    f"task {index} of {len(tasks)} comes after task {before}, which must stand before it. "
                    f"Give tasks in topological order, numbered from 0."
                )
