"""A sweep holds no more memory the longer it is: 10,000 questions within 1 GiB, reckoned from fewer."""

import subprocess
import sys
from pathlib import Path

from sweeps import batches, write_spec

FEW, MANY, ALL = 200, 1_200, 10_000
GIB = 2**30


# Of a small process: one that a large process starts is said to have held as much as that did.
ASKED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_bytes(folder: Path, number: int) -> int:
    """What the whole command held at most, rows and page written."""
    spec = write_spec(folder / f"{number}.yaml", batches(number))
    more = ["--export", f"{number}.csv", "--html", f"{number}.html"]
    command = [sys.executable, "-m", "planner", "sweep", spec.name, *more]
    asked = subprocess.run(
        [sys.executable, "-c", ASKED, *command], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    return int(asked.stdout) * 1024


def test_ten_thousand_questions_fit_into_a_gibibyte(tmp_path: Path) -> None:
    few, many = peak_bytes(tmp_path, FEW), peak_bytes(tmp_path, MANY)
    assert many + (ALL - MANY) * max(0.0, many - few) / (MANY - FEW) < GIB
