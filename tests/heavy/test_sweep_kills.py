"""The whole command killed fifty times, wherever it is: starting, reading, asking, storing or telling."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweeps import batches, contents, left_over, num_answered, write_spec

KILLS = 50
NUMBER = 1200
MOST_NEW = 20  # answers until a kill: fifty of these are fewer than all


def command(spec: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "planner", "sweep", str(spec), "--json", *more]


def wait_at_random(process: "subprocess.Popen[bytes]", store: Path, lots: random.Random) -> None:
    """Wait for a random moment: of the start, or some answers later, and between any two steps of the sweep."""
    before, begin_s = num_answered(store), time.monotonic()
    most_s = lots.uniform(0.0, 2.0) if lots.random() < 0.3 else float("inf")
    least = lots.randint(0, MOST_NEW)
    while process.poll() is None and num_answered(store) - before < least and time.monotonic() - begin_s < most_s:
        time.sleep(0.01)
    time.sleep(lots.uniform(0.0, 0.05))


@pytest.mark.timeout(1200)  # fifty starts of the program, and two whole sweeps: minutes where others run beside it
def test_fifty_kills_of_the_whole_command_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    lots, spec, store = random.Random(50), write_spec(tmp_path / "s.yaml", batches(NUMBER)), tmp_path / "s.sqlite"
    sizes = [0]
    for _ in range(KILLS):
        with subprocess.Popen(command(spec), stdout=subprocess.DEVNULL) as process:
            wait_at_random(process, store, lots)
            assert process.poll() is None  # it was not done before: it is killed at work
            process.send_signal(signal.SIGKILL)
        sizes.append(num_answered(store))
    assert sizes == sorted(sizes)  # nothing is ever lost
    assert len(set(sizes)) > KILLS // 3  # and many runs came some way
    done = subprocess.run(command(spec), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["counts"] == {"optimal": NUMBER}
    subprocess.run(command(spec, "--store", str(tmp_path / "whole.sqlite")), capture_output=True, check=True)
    assert contents(store) == contents(tmp_path / "whole.sqlite")
    assert left_over(store) == (0, 0)
