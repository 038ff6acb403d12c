"""A sweep holds no more memory the longer it is: 10,000 questions within 1 GiB, reckoned from fewer."""

import os
import subprocess
import sys
from pathlib import Path

from sweeps import batches, write_spec

FEW, MANY, ALL = 200, 1_200, 10_000
GIB = 2**30


def peak_bytes(folder: Path, number: int) -> int:
    """What the whole command held at most, rows and page written."""
    spec = write_spec(folder / f"{number}.yaml", batches(number))
    more = ["--export", f"{number}.csv", "--html", f"{number}.html"]
    command = [sys.executable, "-m", "planner", "sweep", spec.name, *more]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_ten_thousand_questions_fit_into_a_gibibyte(tmp_path: Path) -> None:
    few, many = peak_bytes(tmp_path, FEW), peak_bytes(tmp_path, MANY)
    assert many + (ALL - MANY) * max(0.0, many - few) / (MANY - FEW) < GIB
