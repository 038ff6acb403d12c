"""Answering a sweep: questions are claimed, asked, and stored as their answers come; nothing waits for good."""

import gc
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from types import FrameType

from planner.errors import InfeasibleError, PlannerError, SpecError
from planner.procurement.question import load_procurement
from planner.question.build import load
from planner.sweep.answers import Answer, Outcome, Task, answer, answer_all, failed
from planner.sweep.question import Sweep
from planner.sweep.store import RETRIED, Store
from planner.workers.dask_workers import DaskWorkers

_POLL_S = 0.1
_GRACE_S = 2.0  # for what is asked where the sweep is to end
_WAIT_S = 0.3  # between two looks at questions that another sweep has claimed
_BLOCK = 4096  # positions whose state is read at once
_MOST_LOOKED = 500  # positions put together before the workers are looked after again
_MOST_CLAIMED = 200
_COLLECTED = 20  # questions between two collections of garbage
_QUEUED = 2  # of one worker: one at work, one waiting, so that it never waits for the store
_MOST_TRIED = 200  # questions of a large sweep, before it starts
_STRIDE = 2_654_435_761  # a prime: its multiples are spread over the positions of every axis

Progress = Callable[["Done"], None]


@dataclass(slots=True)
class Done:
    """How far a sweep is."""

    number: int  # of all questions
    num_answered: int = 0  # of them, answered by now, whoever did it
    num_new: int = 0  # of them, answered by this run
    num_asked: int = 0  # of them, with the workers
    is_stopped: bool = False  # whether it was asked to stop before the end


# -- workers -----------------------------------------------------------------------------------------------------------


class OneWorker:
    """One thread of this process.

    The main thread is free for signals: they are heard at once, and the search of a question never takes a Ctrl-C for
    its own. A question that is given up runs on in its thread until the process ends. The methods are those of
    :class:`planner.workers.dask_workers.DaskWorkers`.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        self.num_asked = 0  # questions that are not answered yet
        self._is_ended, self._num_begun = False, 0
        self._thread = threading.Thread(target=self._work, daemon=True, name="sweep")
        self._thread.start()

    def _work(self) -> None:
        """Answer questions until there is a None."""
        while (task := self._asked.get()) is not None and not self._is_ended:
            self._num_begun += 1
            if self._num_begun % _COLLECTED == 0:  # the command line collects seldom, and each question leaves circles
                gc.collect()
            try:
                self._answers.put(answer(task))
            except BaseException as error:  # raised again where it is awaited
                self._answers.put(error)

    def room(self) -> int:
        """Return how many more questions are wanted now."""
        return _QUEUED - self.num_asked

    def submit(self, tasks: Sequence[Task]) -> None:
        """Take questions."""
        for task in tasks:
            self.num_asked += 1
            self._asked.put(task)

    def poll(self, wait_s: float) -> list[Answer]:
        """Return the answers that have come since, waiting for the first a while."""
        found: list[Answer] = []
        while self.num_asked:
            try:
                one = self._answers.get(timeout=0 if found else wait_s)
            except queue.Empty:
                break
            self.num_asked -= 1
            if isinstance(one, BaseException):
                raise one
            found.append(one)
        return found

    def finish(self, grace_s: float) -> list[Answer]:
        """Begin no further question; return the answer to the one at work, if it comes within a while."""
        self.close()
        self._thread.join(grace_s)
        return self.poll(0.0)

    def close(self) -> None:
        """Begin no further question."""
        self._is_ended = True
        self._asked.put(None)

    @property
    def is_at_work(self) -> bool:
        """Whether a question that was given up still runs."""
        return self.num_asked > 0 and self._thread.is_alive()


Workers = OneWorker | DaskWorkers[Task, Answer]


def processes(num_workers: int = 1, scheduler: str | None = None) -> DaskWorkers[Task, Answer]:
    """Return worker processes that answer questions: so many of this machine, or those of a Dask scheduler.

    Raises
    ------
    SpecError
        If there are no such workers.
    """
    if scheduler is not None:
        return DaskWorkers.at(scheduler, answer_all, failed)
    return DaskWorkers.on_this_machine(num_workers, answer_all, failed)


# -- a sweep from its start to its end ---------------------------------------------------------------------------------


def refuse_hopeless(sweep: Sweep, today: date) -> None:
    """Refuse a sweep none of whose questions can be read: all of a small one are tried, 200 of a large one.

    A slip in the base question would make all of them wrong.

    Raises
    ------
    SpecError
        With what is wrong with the first of them.
    """
    number, first = len(sweep.grid), ""
    tried = [*range(number)] if number <= _MOST_TRIED else [i * _STRIDE % number for i in range(_MOST_TRIED)]
    for position in tried:
        task = sweep.task(position, today)
        if isinstance(task, Answer):
            first = first or task.error or ""
            continue
        try:
            if "procure" in task.question:
                load_procurement(task.question, today=task.today)
            else:
                load(task.question)
        except InfeasibleError:
            return
        except PlannerError as error:
            first = first or str(error)
        else:
            return
    which = f"all {number} questions are"
    if len(tried) < number:
        which = f"{len(tried)} of {number} questions were tried, and all are"
    raise SpecError(f"sweep: {which} wrong. The first one:\n{first}")


@dataclass(slots=True)
class Stop:
    """The signal that asked to stop: its number, 0 where there was none."""

    number: int = 0

    def is_over(self) -> bool:
        """Return whether to stop."""
        return self.number != 0


@contextmanager
def listening() -> Iterator[Stop]:
    """Let the first Ctrl-C or SIGTERM ask the sweep to stop; a second one breaks off as ever."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def hear(number: int, frame: FrameType | None) -> None:
        stop.number = number
        for one, handler in before.items():
            signal.signal(one, handler)

    for number in before:
        signal.signal(number, hear)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress() -> Iterator[Progress]:
    """Yield what is called with how far a sweep is: a bar on stderr with rate and time left, where it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console  # noqa: PLC0415  # late: only a terminal pays for it
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("sweep", total=None, rate="")
        is_begun = False

        def show(done: Done) -> None:
            nonlocal is_begun
            if not is_begun:  # what was answered before says nothing about the rate
                is_begun = True
                bar.reset(line, total=done.number, completed=done.num_answered)
            speed = bar.tasks[0].speed
            rate = "" if not speed else f"{speed:.1f}/s" if speed >= 1 else f"{60 * speed:.1f}/min"
            bar.update(line, completed=done.num_answered, rate=rate)

        yield show


def answer_sweep(
    sweep: Sweep,
    store: Store,
    *,
    today: date,
    num_workers: int = 1,
    scheduler: str | None = None,
    is_retried: bool = False,
    on_progress: Progress = lambda done: None,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[Done, bool]:
    """Answer what is open of a sweep; return how far it came, and whether a thread still works on what was given up.

    Parameters
    ----------
    num_workers, scheduler
        Processes of this machine, one being this one; or the address of a Dask scheduler.
    today, is_retried, on_progress, is_over
        See :func:`run`.

    Raises
    ------
    SpecError
        If the store fails, or there are no such workers.
    NoAnswerError
        If the scheduler is gone on the way.
    """
    counts = store.counts(sweep.identity)
    if sum(counts.values()) == len(sweep.grid) and not (is_retried and any(one in counts for one in RETRIED)):
        return Done(number=len(sweep.grid), num_answered=len(sweep.grid)), False  # without starting any worker
    workers = OneWorker() if scheduler is None and num_workers == 1 else processes(num_workers, scheduler)
    try:
        done = run(sweep, store, workers, today=today, is_retried=is_retried, on_progress=on_progress, is_over=is_over)
        return done, isinstance(workers, OneWorker) and workers.is_at_work
    finally:
        workers.close()


def run(
    sweep: Sweep,
    store: Store,
    workers: Workers,
    *,
    today: date,
    is_retried: bool = False,
    on_progress: Progress = lambda done: None,
    is_over: Callable[[], bool] = lambda: False,
) -> Done:
    """Answer all questions of a sweep that are not answered yet.

    Parameters
    ----------
    today
        Against which the age of prices is told.
    is_retried
        Ask those again that failed, or for which a limit came first.
    on_progress
        Called often, with how far it is.
    is_over
        Asked often; where it says so, what is asked may still be answered for two seconds, and then it stops.

    Raises
    ------
    NoAnswerError
        If the workers are gone; all answers so far are stored.
    SpecError
        If the store fails.
    """
    feed = _Feed(sweep, store, store.begin(sweep, today), RETRIED if is_retried else ())
    while not is_over():
        store.beat()
        tasks = feed.take(min(workers.room(), _MOST_CLAIMED))
        if tasks:
            workers.submit(tasks)
        if feed.is_read and not feed.later and not workers.num_asked:
            break
        for found in workers.poll(_POLL_S if workers.num_asked else 0.0):
            feed.keep(found)
        if feed.is_read and feed.later and not workers.num_asked:
            time.sleep(_WAIT_S)
        feed.done.num_asked = workers.num_asked
        on_progress(feed.done)
    else:
        feed.done.is_stopped = True
        for found in workers.finish(_GRACE_S):
            feed.keep(found)
    on_progress(feed.done)
    return feed.done


@dataclass(slots=True)
class _Feed:
    """The questions that are still to be asked, put together as they are wanted, in their order.

    ``later``: positions whose question another sweep has claimed, or this one already at another position.
    ``_tried``: questions that were asked again, and failed again.
    """

    sweep: Sweep
    store: Store
    today: date
    retried: Sequence[Outcome]
    later: deque[int] = field(default_factory=deque)
    done: Done = field(init=False)
    _next: int = 0
    _open: deque[int] = field(default_factory=deque)
    _positions: dict[str, int] = field(default_factory=dict)
    _tried: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.done = Done(number=len(self.sweep.grid))

    @property
    def is_read(self) -> bool:
        """Whether every question is answered, asked, or put off."""
        return self._next >= self.done.number and not self._open

    def take(self, most: int) -> list[Task]:
        """Return at most so many questions to ask; none means none for now."""
        tasks: list[Task] = []
        if most > 0 and self.is_read and self.later:
            self.store.free_dead()
            self._open, self.later = self.later, deque()
        looked = 0
        while len(tasks) < most and looked < _MOST_LOOKED:
            while not self._open and self._next < self.done.number:  # read on which positions are open
                last = min(self._next + _BLOCK, self.done.number)
                known = self.store.answered(self.sweep.identity, self._next, last, but=self.retried)
                self.done.num_answered += len(known)
                self._open.extend(position for position in range(self._next, last) if position not in known)
                self._next = last
            if not self._open:
                break
            positions = [self._open.popleft() for _ in range(min(most - len(tasks), len(self._open)))]
            looked += len(positions)
            tasks += self._claimed(positions)
        return tasks

    def keep(self, found: Answer) -> None:
        """Store an answer at its position."""
        if found.outcome in self.retried:
            self._tried.add(found.key)
        self.done.num_new += self.store.put(self.sweep.identity, self._positions.pop(found.key), found)
        self.done.num_answered += 1

    def _claimed(self, positions: Sequence[int]) -> list[Task]:
        """Claim questions; return those that are to be asked now, and note the others."""
        tasks: dict[int, Task] = {}
        for position in positions:
            made = self.sweep.task(position, self.today)
            if isinstance(made, Task):
                tasks[position] = made
            else:  # it could not even be put together
                self._positions[made.key] = position
                self.keep(made)
        keys = dict.fromkeys(task.key for task in tasks.values() if task.key not in self._tried)
        claim = self.store.claim(list(keys), but=self.retried)
        answered = claim.answered | self._tried
        rows = [(position, task.key) for position, task in tasks.items() if task.key in answered]
        self.store.join(self.sweep.identity, rows)
        self.done.num_answered += len(rows)
        asked = []
        for position, task in tasks.items():
            if task.key in claim.mine and task.key not in self._positions:
                self._positions[task.key] = position
                asked.append(task)
            elif task.key not in answered:
                self.later.append(position)
        return asked
