"""What is asked of workers, whatever they are asked."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["Answered", "Asked", "Team"]

_Task_contra = TypeVar("_Task_contra", contravariant=True)
_Answer = TypeVar("_Answer")


class Asked(Protocol):
    """Something to work on."""

    @property
    def key(self) -> str:
        """What tells it from all others."""
        ...


class Answered(Protocol):
    """What came of it."""

    @property
    def wall_s(self) -> float:
        """Seconds that it took."""
        ...


class Team(Protocol[_Task_contra, _Answer]):
    """Works on tasks somewhere. No method waits longer than it is told to."""

    def room(self) -> int:
        """Return how many more tasks are wanted now."""
        ...

    def submit(self, tasks: Sequence[_Task_contra]) -> None:
        """Take tasks; each is answered once, in any order."""
        ...

    def poll(self, wait_s: float) -> list[_Answer]:
        """Return the answers that have come since, waiting for the first a while.

        Raises
        ------
        NoAnswerError
            If the workers are lost for good.
        """
        ...

    @property
    def num_asked(self) -> int:
        """How many tasks are not answered yet."""
        ...

    def finish(self, grace_s: float) -> list[_Answer]:
        """Begin nothing more; return what is answered within a while, and give up the rest."""
        ...

    def close(self) -> None:
        """End the workers that were started here."""
        ...
