"""Before a sweep starts: is any of its questions one? A slip in the base question would make all of them wrong."""

from collections.abc import Iterator
from datetime import date

from planner.errors import InfeasibleError, PlannerError, SpecError
from planner.procurement.question import load_procurement
from planner.spec.build import load
from planner.sweep.answers import Answer, Task
from planner.sweep.question import Sweep

__all__ = ["refuse_hopeless"]

_MOST_TRIED = 200
_STRIDE = 2_654_435_761  # a prime: its multiples are spread over the positions of every axis


def refuse_hopeless(sweep: Sweep, today: date) -> None:
    """Refuse a sweep none of whose questions can be read: all of a small one are tried, 200 of a large one.

    Raises
    ------
    SpecError
        With what is wrong with the first of them.
    """
    first: str | None = None
    tried = 0
    for position in _positions(len(sweep.grid)):
        tried += 1
        fault = _fault_of(sweep.task(position, today))
        if fault is None:
            return
        first = first or fault
    number = len(sweep.grid)
    which = (
        f"all {number} questions are" if tried == number else f"{tried} of {number} questions were tried, and all are"
    )
    raise SpecError(f"sweep: {which} wrong. The first one:\n{first}")


def _positions(number: int) -> Iterator[int]:
    """Yield all positions of a small sweep, some of a large one."""
    yield from range(number) if number <= _MOST_TRIED else (i * _STRIDE % number for i in range(_MOST_TRIED))


def _fault_of(task: Task | Answer) -> str | None:
    """Return what is wrong with a question, or None."""
    if isinstance(task, Answer):
        return task.error
    try:
        if "procure" in task.question:
            load_procurement(task.question, today=task.today)
        else:
            load(task.question)
    except InfeasibleError:
        return None
    except PlannerError as error:
        return str(error)
    return None
