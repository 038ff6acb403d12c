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

KILLS = 60
NUMBER = 150
DRIVER = Path(__file__).parents[1] / "support/sweep_kills.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_sixty_kills_at_random_moments_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(DRIVER), str(tmp_path), str(NUMBER), str(KILLS), "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3 * GUARD_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == KILLS
    assert found["different"] == NUMBER
    # What a kill may cost is what was at work then: one question at work and one that had just been answered.
    assert found["begun"] <= NUMBER + 2 * KILLS
    with Store(tmp_path / "whole.sqlite") as store:
        run(asked(batches(NUMBER)), store, OneWorker(), today=TODAY)
    assert contents(tmp_path / "killed.sqlite") == contents(tmp_path / "whole.sqlite")
    assert len(contents(tmp_path / "killed.sqlite")["results"]) == NUMBER
    assert left_over(tmp_path / "killed.sqlite") == (0, 0)
