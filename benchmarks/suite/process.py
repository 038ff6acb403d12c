"""One run of one command as a process of its own, and what the system says that it took."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Run", "environment", "run", "user_instructions"]

_WIDTH = "100"  # columns of a terminal that is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run took.

    Attributes
    ----------
    wall_s, user_s, system_s
        The last two of the process and of all processes that it waited for.
    peak_bytes
        Greatest resident memory of any one of these processes.
    exit_code
        Negative: the signal that ended it.
    output_sha256
        Of what it wrote to stdout.
    error
        The last line of what it wrote to stderr.
    """

    wall_s: float
    user_s: float
    system_s: float
    peak_bytes: int
    exit_code: int
    output_sha256: str
    error: str

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s

    def to_document(self) -> dict[str, float | int]:
        return {name: value for name, value in asdict(self).items() if isinstance(value, float | int)}


def environment(tree: Path, cache: Path) -> dict[str, str]:
    """Return the variables under which a command runs the code of a tree, with bytecode kept in a folder of its own.

    Without bytecode every process would compile the whole program again, which no user pays for twice.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PLANNER"))}
    own = {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "PYTHONPYCACHEPREFIX": str(cache)}
    return {**kept, **own, "NO_COLOR": "1", "COLUMNS": _WIDTH}


def run(command: Sequence[str], *, folder: Path, variables: Mapping[str, str]) -> Run:
    """Run a command to its end, and return what it took.

    The peak of a process is never said to be below that of the process that started it, so this one must stay small: it
    imports nothing but the standard library.
    """
    output, errors = folder / ".stdout", folder / ".stderr"
    with output.open("wb") as to, output.with_name(".stderr").open("wb") as to_errors:
        start_s = time.perf_counter()
        process = subprocess.Popen(  # waited for below, by hand: wait4 tells what it took
            command, cwd=folder, env=dict(variables), stdin=subprocess.DEVNULL, stdout=to, stderr=to_errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start_s
        process.returncode = os.waitstatus_to_exitcode(status)
    lines = errors.read_text(encoding="utf-8", errors="replace").split("\n")
    return Run(
        wall_s=wall_s,
        user_s=usage.ru_utime,
        system_s=usage.ru_stime,
        peak_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        exit_code=process.returncode,
        output_sha256=hashlib.sha256(output.read_bytes()).hexdigest(),
        error=next((line for line in reversed(lines) if line.strip()), "")[:300],
    )


def user_instructions(command: Sequence[str], *, folder: Path, variables: Mapping[str, str]) -> int | None:
    """Return the instructions that a command takes outside the kernel, by ``perf``; None where it cannot count them."""
    report = folder / ".perf"
    counted = ["perf", "stat", "-x,", "-e", "instructions:u", "-o", str(report), "--", *command]
    try:
        run(counted, folder=folder, variables=variables)
        return instructions_of(report.read_text(encoding="utf-8"))
    except OSError:
        return None


def instructions_of(report: str) -> int | None:
    """Return the count in what ``perf stat -x,`` wrote; None where it says that it is not supported.

    >>> instructions_of("# started\\n\\n8123456,,instructions:u,5,100.00,,\\n")
    8123456
    >>> instructions_of("<not supported>,,instructions:u,0,100.00,,") is None
    True
    """
    for line in report.split("\n"):
        count, *rest = line.split(",")
        if "instructions:u" in rest and count.isdigit():
            return int(count)
    return None
