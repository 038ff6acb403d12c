"""A sweep killed at random moments: nothing is lost, nothing doubled, and the end is that of an undisturbed run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from guards import GUARD_S
from sweeps import TODAY, asked, batches, contents, left_over

from planner.sweep.engine import OneWorker, run
from planner.sweep.store import Store

# Kills, and questions; the larger ones with `make test-heavy`.
SIZES = [(10, 30), pytest.param(60, 150, marks=pytest.mark.long)]
DRIVER = Path(__file__).parents[1] / "support/sweep_kills.py"


@pytest.mark.parametrize(("kills", "number"), SIZES)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_kills_at_random_moments_lose_nothing_and_double_nothing(tmp_path: Path, kills: int, number: int) -> None:
    command = [sys.executable, str(DRIVER), str(tmp_path), str(number), str(kills), "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3 * GUARD_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == kills
    assert found["different"] == number
    # What a kill may cost is what was at work then: one question at work and one that had just been answered.
    assert found["begun"] <= number + 2 * kills
    with Store(tmp_path / "whole.sqlite") as store:
        run(asked(batches(number)), store, OneWorker(), today=TODAY)
    assert contents(tmp_path / "killed.sqlite") == contents(tmp_path / "whole.sqlite")
    assert len(contents(tmp_path / "killed.sqlite")["results"]) == number
    assert left_over(tmp_path / "killed.sqlite") == (0, 0)
