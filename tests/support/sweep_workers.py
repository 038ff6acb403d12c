"""What workers of tests do with a batch: some questions kill their worker, and where each ran is noted."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from planner.sweep.answers import Answer, Task, answer_all

POISON = 13  # the batch per device of the question that kills its worker


def poisoned(tasks: Sequence[Task], expected: str) -> list[Answer]:
    """Answer a batch; die where the poisonous question is in it."""
    if any(task.question["dnn"]["batch_per_device"] == POISON for task in tasks):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer_all(tasks, expected)


def suicidal(tasks: Sequence[Task], expected: str, flag: Path) -> list[Answer]:
    """Answer a batch; the first worker that begins one makes the flag and dies."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return answer_all(tasks, expected)
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def outdated(tasks: Sequence[Task], expected: str) -> list[Answer]:
    """Answer as a worker of another version."""
    return answer_all(tasks, f"{expected}.1")


def failing(tasks: Sequence[Task], expected: str) -> list[Answer]:
    """Fail with an error of the machinery, not of a question."""
    raise MemoryError("no room for a batch")
