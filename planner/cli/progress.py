"""How far a long search is: one line on stderr, where that is a terminal; else nothing."""

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType

__all__ = ["Progress"]

_FIRST_S = 1.0
_EVERY_S = 0.5
_CLEARED = "\r\033[K"


class Progress:
    """Prints bound, incumbent and how much was done, at most twice a second, from the first second on.

    As a context it clears its line at the end, so that the answer does not begin behind it.
    """

    def __init__(self, what: str, said: Callable[[float], str]) -> None:
        """Count ``what`` was done, such as fleets planned; ``said`` puts a bound or an incumbent into words."""
        self._what, self._said = what, said
        self._next_s = time.monotonic() + _FIRST_S
        self.history: list[tuple[float, float, int]] = []
        self._number = 0
        self._is_able = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._is_shown = False

    def tell(self, bound: float, incumbent: float, number: int | None = None) -> None:
        """Say how far the search is, and keep it in ``history``; ``number``: done so far, else calls are counted."""
        self._number = self._number + 1 if number is None else number
        if not self.history or self.history[-1][:2] != (bound, incumbent):
            self.history.append((bound, incumbent, self._number))
        if not self._is_able or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        best = "none yet" if incumbent == float("inf") else self._said(incumbent)
        line = f"{self._number:,} {self._what}; best {best}, none below {self._said(bound)}"
        print(f"{_CLEARED}{line[: _columns() - 1]}", end="", file=sys.stderr, flush=True)
        self._is_shown = True

    def __enter__(self) -> "Progress":
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the line."""
        if self._is_shown:
            print(_CLEARED, end="", file=sys.stderr, flush=True)


def _columns() -> int:
    """Return the width of the terminal on stderr; a longer line would not be cleared whole."""
    try:
        return max(20, os.get_terminal_size(sys.stderr.fileno()).columns)
    except (OSError, ValueError):  # no terminal after all
        return 80
