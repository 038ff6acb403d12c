"""Answering a sweep: questions are claimed, asked, and stored as their answers come; nothing waits for good."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date

from planner.sweep.answers import Answer, Outcome, Task
from planner.sweep.question import Sweep
from planner.sweep.store import RETRIED, Store
from planner.sweep.workers import Workers

__all__ = ["Done", "Told", "run"]

_POLL_S = 0.1
_WAIT_S = 0.3  # between two looks at questions that another sweep has claimed
_BLOCK = 4096  # positions whose state is read at once
_MOST_LOOKED = 500  # positions put together before the workers are looked after again
_MOST_CLAIMED = 200

Told = Callable[["Done"], None]


@dataclass(slots=True)
class Done:
    """How far a sweep is.

    Attributes
    ----------
    number
        Of all questions.
    num_answered
        Of them, answered by now, whoever did it.
    num_new
        Of them, answered by this run.
    is_stopped
        Whether it was asked to stop before the end.
    """

    number: int
    num_answered: int = 0
    num_new: int = 0
    num_asked: int = 0
    is_stopped: bool = False


def run(
    sweep: Sweep,
    store: Store,
    workers: Workers,
    *,
    today: date,
    is_retried: bool = False,
    told: Told = lambda done: None,
    is_over: Callable[[], bool] = lambda: False,
    grace_s: float = 2.0,
) -> Done:
    """Answer all questions of a sweep that are not answered yet.

    Parameters
    ----------
    today
        Against which the age of prices is told.
    is_retried
        Ask those again that failed, or for which a limit came first.
    told
        Called often, with how far it is.
    is_over
        Asked often; where it says so, what is asked may still be answered for ``grace_s``, and then it stops.

    Raises
    ------
    NoAnswerError
        If the workers are lost; all answers so far are stored.
    SpecError
        If the store fails.
    """
    begun = store.begin(sweep, today)
    feed = _Feed(sweep, store, begun, RETRIED if is_retried else ())
    while not is_over():
        store.beat()
        tasks = feed.take(min(workers.room(), _MOST_CLAIMED))
        if tasks:
            workers.submit(tasks)
        if feed.is_done and not workers.num_asked:
            break
        _keep(workers.poll(_POLL_S if workers.num_asked else 0.0), feed)
        if feed.is_waiting and not workers.num_asked:
            time.sleep(_WAIT_S)
        feed.done.num_asked = workers.num_asked
        told(feed.done)
    else:
        feed.done.is_stopped = True
        _keep(workers.finish(grace_s), feed)
    told(feed.done)
    return feed.done


def _keep(found: Sequence[Answer], feed: "_Feed") -> None:
    """Store what was answered."""
    for one in found:
        feed.keep(one)


@dataclass(slots=True)
class _Feed:
    """The questions that are still to be asked, put together as they are wanted, in their order.

    ``_later``: positions whose question another sweep has claimed, or this one already at another position.
    ``_tried``: questions that were asked again, and failed again.
    """

    sweep: Sweep
    store: Store
    today: date
    retried: Sequence[Outcome]
    done: Done = field(init=False)
    _next: int = 0
    _open: deque[int] = field(default_factory=deque)
    _later: deque[int] = field(default_factory=deque)
    _places: dict[str, int] = field(default_factory=dict)
    _tried: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.done = Done(number=len(self.sweep.grid))

    @property
    def is_done(self) -> bool:
        """Whether every question is answered or asked."""
        return self._next >= self.done.number and not self._open and not self._later

    @property
    def is_waiting(self) -> bool:
        """Whether only questions are left that others have claimed."""
        return self._next >= self.done.number and not self._open and bool(self._later)

    def take(self, most: int) -> list[Task]:
        """Return at most so many questions to ask; none means none for now."""
        tasks: list[Task] = []
        if most > 0 and self.is_waiting:
            self.store.free_dead()
            self._open, self._later = self._later, deque()
        looked = 0
        while len(tasks) < most and looked < _MOST_LOOKED and self._fill():
            positions = [self._open.popleft() for _ in range(min(most - len(tasks), len(self._open)))]
            looked += len(positions)
            tasks += self._claimed(positions)
        return tasks

    def keep(self, found: Answer) -> None:
        """Store an answer at its position."""
        if found.outcome in self.retried:
            self._tried.add(found.key)
        self.done.num_new += self.store.put(self.sweep.identity, self._places.pop(found.key), found)
        self.done.num_answered += 1

    def _fill(self) -> bool:
        """Read on which positions are open; return whether there are any."""
        while not self._open and self._next < self.done.number:
            last = min(self._next + _BLOCK, self.done.number)
            known = self.store.answered(self.sweep.identity, self._next, last, but=self.retried)
            self.done.num_answered += len(known)
            self._open.extend(position for position in range(self._next, last) if position not in known)
            self._next = last
        return bool(self._open)

    def _claimed(self, positions: Sequence[int]) -> list[Task]:
        """Claim questions; return those that are to be asked now, and note the others."""
        made = {position: self.sweep.task(position, self.today) for position in positions}
        for position, one in made.items():
            if isinstance(one, Answer):  # it could not even be put together
                self._places[one.key] = position
                self.keep(one)
        tasks = {position: one for position, one in made.items() if isinstance(one, Task)}
        keys = list(dict.fromkeys(task.key for task in tasks.values()))
        claim = self.store.claim([key for key in keys if key not in self._tried], but=self.retried)
        answered = claim.answered | self._tried
        self._join([(position, task.key) for position, task in tasks.items() if task.key in answered])
        asked = []
        for position, task in tasks.items():
            if task.key in claim.mine and task.key not in self._places:
                self._places[task.key] = position
                asked.append(task)
            elif task.key not in answered:
                self._later.append(position)
        return asked

    def _join(self, rows: Sequence[tuple[int, str]]) -> None:
        """Note answers that are there already."""
        self.store.join(self.sweep.identity, rows)
        self.done.num_answered += len(rows)
