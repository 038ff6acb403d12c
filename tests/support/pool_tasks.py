"""Tasks for workers: in a module of its own, which worker processes find wherever tests are started."""

import os
import signal
from pathlib import Path

__all__ = ["double", "variable"]


def double(made: int, number: int, folder: str) -> int:
    """Double a number; 3 kills its worker always, 5 once, and 7 is a bug."""
    flag = Path(folder) / "once"
    if number == 3 or (number == 5 and not flag.exists()):
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 7:
        raise ValueError("seven is a bug")
    return made * number


def variable(made: int, name: str) -> str | None:
    """Return a variable of the worker's environment."""
    return os.environ.get(name)
