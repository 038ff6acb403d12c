"""A sweep from its spec to its answers: workers chosen, signals heard, all closed in the end."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from types import FrameType

from planner.sweep.cluster import DaskWorkers
from planner.sweep.engine import Done, Told, run
from planner.sweep.question import Sweep
from planner.sweep.store import RETRIED, Store
from planner.sweep.workers import OneWorker, Workers

__all__ = ["Stop", "answer_sweep", "listening"]


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
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def hear(number: int, frame: FrameType | None) -> None:
        stop.number = number
        for one in numbers:
            signal.signal(one, before[one])

    for number in numbers:
        signal.signal(number, hear)
    try:
        yield stop
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def answer_sweep(
    sweep: Sweep,
    store: Store,
    *,
    today: date,
    num_workers: int = 1,
    scheduler: str | None = None,
    is_retried: bool = False,
    told: Told = lambda done: None,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[Done, bool]:
    """Answer what is open of a sweep; return how far it came, and whether a thread still works on what was given up.

    Raises
    ------
    SpecError
        If the store fails, or there are no such workers.
    NoAnswerError
        If the scheduler is lost on the way.
    """
    counts = store.counts(sweep.identity)
    if sum(counts.values()) == len(sweep.grid) and not (is_retried and any(one in counts for one in RETRIED)):
        return Done(number=len(sweep.grid), num_answered=len(sweep.grid)), False  # without starting any worker
    workers = _workers(num_workers, scheduler)
    try:
        done = run(sweep, store, workers, today=today, is_retried=is_retried, told=told, is_over=is_over)
        return done, isinstance(workers, OneWorker) and workers.is_at_work
    finally:
        workers.close()


def _workers(number: int, scheduler: str | None) -> Workers:
    """Return the workers that are asked for."""
    if scheduler is not None:
        return DaskWorkers.at(scheduler)
    return OneWorker() if number == 1 else DaskWorkers.on_this_machine(number)
