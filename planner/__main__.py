"""The command line's way in: ``planner`` and ``python -m planner``; signals and streams, before any import."""

import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

_AGAIN_S = 0.01
COLLECTED = (20_000, 20, 50)  # seldom: a question of 50,000 layers is a million objects, and nearly none is garbage
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")  # what asks a process to end; not every system has all of them


class _Signals:
    """Hears what asks this process to end.

    SIGTERM and SIGHUP do what Ctrl-C does, so they end a search with its best so far; which it was, the exit code
    says. What is ignored, as ``nohup`` has it, stays ignored.
    """

    def __init__(self) -> None:
        self.number = int(signal.SIGINT)
        self._is_leaving = False
        for number in self._all():
            if number != signal.SIGINT and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._hear)

    def leave(self) -> None:
        """Let signals end the process without a word: the interpreter takes itself apart, and all is said."""
        self._is_leaving = True
        for number in self._all():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)

    def hear_lost(self, lost: Any) -> None:
        """Ask again for a Ctrl-C that came where Python cannot raise it, in a destructor or a back end's callback.

        A moment later, and from another thread: raised in here it would be lost again, with a traceback.
        """
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            if type(lost.exc_value).__name__ != "LateError":  # which is raised again by itself
                sys.__unraisablehook__(lost)
        elif not self._is_leaving:
            again = threading.Timer(_AGAIN_S, self._ask_again)
            again.daemon = True
            with suppress(RuntimeError):  # no thread starts any more: the process ends anyway
                again.start()

    def _ask_again(self) -> None:
        """Send the signal once more, unless there is nothing left to end."""
        if not self._is_leaving:
            os.kill(os.getpid(), signal.SIGINT)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Do what a Ctrl-C would do now: a search has a handler of its own for it."""
        self.number = number
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # ignored, as shells have it for what runs in the background
            raise KeyboardInterrupt
        handler(number, frame)

    @staticmethod
    def _all() -> list[signal.Signals]:
        """Return those that this system has."""
        return [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]


def main() -> None:
    """Run the command line and leave with its exit code; Ctrl-C while all that is imported leaves without a traceback.

    Even the command line's own modules are imported here and not above, where nothing could catch it.
    """
    gc.set_threshold(*COLLECTED)
    signals = _Signals()
    sys.unraisablehook = signals.hear_lost
    try:
        _open_streams()
        from planner.cli.run import INTERRUPTED, run  # noqa: PLC0415

        code = run(sys.argv[1:])
        if code == INTERRUPTED:
            code = 128 + signals.number  # as shells have it
        signals.leave()
    except (KeyboardInterrupt, Exception) as error:  # by its name: where a class was being made it comes as another's
        if "KeyboardInterrupt" not in f"{error!r} {error.__cause__!r}":  # cause, or pydantic's text
            raise
        signals.leave()
        code = 128 + signals.number
        with suppress(OSError):
            os.write(2, b"interrupted\n")
    gc.freeze()  # the end of the interpreter would look through all modules for garbage: a tenth of a short question
    sys.exit(code)


def _open_streams() -> None:
    """Open what was closed by who started this process, or a file of ours would become its stdout."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            mode, errors = ("w", "backslashreplace") if number else ("r", None)
            setattr(sys, name, open(number, mode, encoding="utf-8", errors=errors, closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
