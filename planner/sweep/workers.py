"""Who answers the questions of a sweep: what the engine asks of workers, and the one worker within this process."""

import queue
import threading
from collections.abc import Sequence

from planner.sweep.answers import Answer, Task, answer
from planner.workers.team import Team

__all__ = ["OneWorker", "Workers"]

_QUEUED = 2  # one at work, one waiting: the worker never waits for the store


Workers = Team[Task, Answer]


class OneWorker:
    """One thread of this process.

    The main thread is free for signals: they are heard at once, and the search of a question never takes a Ctrl-C for
    its own. A question that is given up runs on in its thread until the process ends.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        self._number = 0
        self._is_ended = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="sweep")
        self._thread.start()

    def _work(self) -> None:
        """Answer questions until there is a None."""
        while (task := self._asked.get()) is not None and not self._is_ended:
            try:
                self._found.put(answer(task))
            except BaseException as error:  # raised again where it is awaited
                self._found.put(error)

    def room(self) -> int:
        """Return how many more questions are wanted now."""
        return _QUEUED - self._number

    def submit(self, tasks: Sequence[Task]) -> None:
        """Take questions."""
        for task in tasks:
            self._number += 1
            self._asked.put(task)

    def poll(self, wait_s: float) -> list[Answer]:
        """Return the answers that have come since."""
        found: list[Answer] = []
        while self._number:
            try:
                one = self._found.get(timeout=0 if found else wait_s)
            except queue.Empty:
                break
            self._number -= 1
            if isinstance(one, BaseException):
                raise one
            found.append(one)
        return found

    @property
    def num_asked(self) -> int:
        """How many questions are not answered yet."""
        return self._number

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
        return self._number > 0 and self._thread.is_alive()
