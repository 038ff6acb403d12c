"""A larger part of ``python -m tests.fuzz``, of all parsers: about a minute."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_changed_inputs_of_every_parser_give_nothing_but_clean_errors() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "5000", "--seed", "8", "--workers", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    total = next(line for line in done.stdout.splitlines() if "**all**" in line)
    reached = float(total.split("|")[7].strip().rstrip("%"))
    assert reached > 80, "half of the inputs at least must get past reading"
