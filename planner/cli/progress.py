"""How far a long search is: one line on stderr, where that is a terminal; else nothing."""

import sys
import time

__all__ = ["Progress"]

_FIRST_S = 1.0
_EVERY_S = 0.5


class Progress:
    """Prints bound, incumbent and number of fleets, at most twice a second, from the first second on."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _FIRST_S
        self._is_shown = sys.stderr.isatty()

    def tell(self, bound: float, incumbent: float, number: int) -> None:
        """Say how far the search is."""
        if not self._is_shown or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        best = "none yet" if incumbent == float("inf") else f"{incumbent:.6g}"
        print(f"\r{number} fleets planned; best {best}, bound {bound:.6g}\033[K\r", end="", file=sys.stderr, flush=True)
