"""The page of a question that has no answer, where a page was asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InfeasibleError, NoAnswerError

__all__ = ["write_refusal"]


@dataclass(slots=True)
class _Asked:
    """What was asked, as the page of a refusal tells it; ``document`` is called only there."""

    subject: str = ""
    command: Sequence[str] = ()
    document: Callable[[], Mapping[str, Any]] = dict

    def asks(self, subject: str, command: Sequence[str], document: Callable[[], Mapping[str, Any]]) -> None:
        """Take down what is asked."""
        self.subject, self.command, self.document = subject, command, document


@contextmanager
def write_refusal(path: Path | None) -> Iterator[_Asked]:
    """Write the page of a question that has no answer, or none in time, where a page is wanted; the error goes on."""
    asked = _Asked()
    try:
        yield asked
    except (InfeasibleError, NoAnswerError) as error:
        if path is not None:
            from planner.cli.output import write_text
            from planner.page import refusal_page

            commands = [asked.command] if asked.command else []
            write_text(path, refusal_page(error, asked.document(), subject=asked.subject, commands=commands))
        raise
