"""A pool of worker processes for one large search: its tasks go to them, and come back in any order.

Workers are started when a search first asks for room, so that a short one never pays for them, and beside it: until
they are there, nothing is wanted, and the search goes on alone. What all tasks of a search have in common travels with
the first few only; a worker that lacks it says so, and the task is sent again with it. A scheduler that is gone is no
end: the tasks that were at work come back as failed, nothing more is wanted, and the search goes on alone.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from planner.errors import NoAnswerError, PlannerError, SpecError
from planner.frozen import frozen
from planner.memory import too_many_workers
from planner.worker_pool import FailedTask, Origin, packed, unpacked
from planner.workers.dask_workers import DaskWorkers, check_version

_MOST_KEPT = 8  # origins that a worker keeps: the grids of a question's kinds of machines, or its jobs
_ALONE_S, _ALONE_THEN_S, _SHARE_S = 1.0, 0.3, 1.0
_WORTH_S = 8.0  # to start and end two workers takes three or four, of cores that the search may need itself
_EACH_S = 0.5  # less for each that the search took: so often one short search follows the other
_PER_WORKER = 3  # tasks that carry their origin

_made: "OrderedDict[str, Any]" = OrderedDict()  # of this worker process, by digest


@frozen(kw_only=False)
class Task:
    """A task on its way.

    Attributes
    ----------
    digest, content
        Of its origin; no content where the worker should have it.
    call
        The function and its arguments after what the origin makes, pickled.
    """

    key: str
    digest: str
    content: bytes | None
    call: bytes


@frozen(kw_only=False)
class Result:
    """A task that came back: what its function returned, pickled; None: the worker lacks the origin.

    ``why``: the error instead.
    """

    key: str
    value: bytes | None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What helping took."""

    tasks: int = 0
    failed: int = 0
    sent_again: int = 0
    start_s: float = 0.0
    work_s: float = 0.0
    work_cpu_s: float = 0.0
    longest_s: float = 0.0
    sent_bytes: int = 0
    returned_bytes: int = 0


@dataclass(slots=True)
class DaskPool:
    """A worker pool; see :class:`planner.worker_pool.WorkerPool`.

    Attributes
    ----------
    start
        Starts the workers.
    num_workers
        How many there will be.
    notes
        For whoever asked.
    """

    start: Callable[[], DaskWorkers[Task, Result]]
    num_workers: int
    notes: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    _starting: Future[DaskWorkers[Task, Result]] | None = None
    _is_gone: bool = False
    _at_work: dict[str, tuple[Task, Origin]] = field(default_factory=dict)
    _back: dict[int, Any] = field(default_factory=dict)
    _carried: dict[str, int] = field(default_factory=dict)
    _number: int = 0
    _begin_s: float = field(default_factory=time.process_time)

    @property
    def alone_s(self) -> float:
        """CPU seconds that a search works alone: most are over before the first workers would be there."""
        done_s = _ALONE_S if self._starting is not None else time.process_time() - self._begin_s
        return max(_ALONE_S - done_s, _ALONE_THEN_S)

    def is_worth(self, left_s: float) -> bool:
        """Whether workers are wanted for so many CPU seconds: where they are there, or for many."""
        return self._starting is not None or left_s >= worth_s(time.process_time() - self._begin_s)

    @property
    def share_s(self) -> float:
        """CPU seconds of a task: long beside its way, short beside a search."""
        return _SHARE_S

    def room(self) -> int:
        """Return how many more tasks are wanted now: none while the workers start."""
        if not self._is_gone:
            try:
                workers = self._started()
                return workers.result().room() if workers.done() else 0
            except NoAnswerError as error:
                self._give_up(str(error))
        return 0

    def submit(self, function: Callable[..., object], origin: Origin, arguments: Sequence[object]) -> int:
        """Send a task; return its number."""
        self._number += 1
        self.counts.tasks += 1
        carried = self._carried.get(origin.digest, 0)
        self._carried[origin.digest] = carried + 1
        content = origin.content if carried < _PER_WORKER * self.num_workers else None
        self._send(Task(str(self._number), origin.digest, content, packed((function, tuple(arguments)))), origin)
        return self._number

    def poll(self, wait_s: float, wanted: Container[int]) -> list[tuple[int, Any]]:
        """Return what has come back of what is wanted."""
        if self._at_work and not self._is_gone:
            is_there = any(number in wanted for number in self._back)
            try:
                self._take(self._started().result().poll(0.0 if is_there else wait_s))
            except NoAnswerError as error:
                self._give_up(str(error))
        numbers = [number for number in self._back if number in wanted]
        return [(number, self._back.pop(number)) for number in numbers]

    def tell(self, note: str) -> None:
        """Keep a note once."""
        if note not in self.notes:
            self.notes.append(note)

    def close(self) -> None:
        """End the workers that were started."""
        if self._starting is not None:
            with suppress(PlannerError):
                self._starting.result().close()

    def _started(self) -> Future[DaskWorkers[Task, Result]]:
        """Return the workers when they are there; begin to start them."""
        if self._starting is None:
            self._starting, begin_s = Future(), time.perf_counter()

            def run(starting: Future[DaskWorkers[Task, Result]]) -> None:
                try:
                    workers = self.start()
                    self.counts.start_s = time.perf_counter() - begin_s
                    starting.set_result(workers)
                except BaseException as error:  # raised again where it is awaited
                    starting.set_exception(error)

            threading.Thread(target=run, args=[self._starting], daemon=True, name="start of workers").start()
        return self._starting

    def _send(self, task: Task, origin: Origin) -> None:
        """Send a task, or note that it failed."""
        self._at_work[task.key] = (task, origin)
        self.counts.sent_bytes += len(task.call) + len(task.content or b"")
        try:
            self._started().result().submit([task])
        except NoAnswerError as error:
            self._give_up(str(error))

    def _take(self, results: Sequence[Result]) -> None:
        """Keep what came back; only then send again where a worker lacked an origin: that may find the workers gone."""
        lacking = [result.key for result in results if result.value is None and not result.why]
        for result in results:
            if result.key in lacking:
                continue
            del self._at_work[result.key]
            self.counts.work_s += result.wall_s
            self.counts.work_cpu_s += result.cpu_s
            self.counts.longest_s = max(self.counts.longest_s, result.wall_s)
            if result.value is None:
                self.counts.failed += 1
                self._back[int(result.key)] = FailedTask(result.why)
            else:
                self.counts.returned_bytes += len(result.value)
                self._back[int(result.key)] = unpacked(result.value)
        for key in lacking:
            if key in self._at_work:
                task, origin = self._at_work.pop(key)
                self.counts.sent_again += 1
                self._send(Task(task.key, task.digest, origin.content, task.call), origin)

    def _give_up(self, why: str) -> None:
        """Go on alone: the workers are gone, and with them what they were at."""
        self._is_gone = True
        self._back.update({int(key): FailedTask(why, is_gone=True) for key in self._at_work})
        self._at_work.clear()
        self.tell("the workers are gone; the search went on without them")


@contextmanager
def worker_pool(num_workers: int, scheduler: str | None = None) -> Iterator[DaskPool | None]:
    """Give a pool of so many processes of this machine, or of a scheduler's workers; None for one process alone.

    Raises
    ------
    SpecError
        If they are too many for this machine; once the workers are wanted, if the library is missing, or no scheduler
        answers.
    """
    if scheduler is None and num_workers == 1:
        yield None
        return
    if scheduler is None and (problem := too_many_workers(num_workers)):
        raise SpecError(f"num_workers: {problem}. Give as many or fewer.")

    def start() -> DaskWorkers[Task, Result]:
        if scheduler is None:
            return DaskWorkers.on_this_machine(num_workers, work_all, failed)
        return DaskWorkers.at(scheduler, work_all, failed)

    pool = DaskPool(start=start, num_workers=num_workers)
    try:
        yield pool
    finally:
        pool.close()


def worth_s(done_s: float) -> float:
    """Return the CPU seconds that a search must have left for workers to be started, after so many."""
    return _WORTH_S - _EACH_S * done_s


# -- what a worker process runs ----------------------------------------------------------------------------------------


def work_all(tasks: Sequence[Task], expected: str) -> list[Result]:
    """Work on several tasks, in a process elsewhere.

    Raises
    ------
    VersionError
        If this process runs another version than the one that asks.
    """
    check_version(expected)
    return [work(task) for task in tasks]


def work(task: Task) -> Result:
    """Work on a task, whatever comes of it; what its origin makes is kept for the next ones."""
    begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
    if task.digest not in _made and task.content is None:
        return Result(key=task.key, value=None)
    try:
        if task.digest not in _made:
            assert task.content is not None
            _made[task.digest] = Origin(digest=task.digest, content=task.content).made()
            while len(_made) > _MOST_KEPT:
                _made.popitem(last=False)
        _made.move_to_end(task.digest)
        function, arguments = unpacked(task.call)
        value = packed(function(_made[task.digest], *arguments))
    except Exception as error:  # the box or the fleet counts as not looked at, and the reason is told
        text = " ".join(str(error).split())[:500]
        return failed(task.key, f"{type(error).__name__}: {text}")
    wall_s, cpu_s = time.perf_counter() - begin_s, time.thread_time() - begin_cpu_s
    return Result(key=task.key, value=value, wall_s=wall_s, cpu_s=cpu_s)


def failed(key: str, why: str) -> Result:
    """Return what comes back of a task that could not be worked on."""
    return Result(key=key, value=None, why=why)
