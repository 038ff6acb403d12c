"""A test that hangs shows where, in a worker process of pytest-xdist, too."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from guards import GUARD_S

pytest.importorskip("xdist", reason="pytest-xdist is not installed")
SETTINGS = Path(__file__).parents[1] / "pyproject.toml"


def test_a_test_that_hangs_shows_its_stack_and_is_named(tmp_path: Path) -> None:
    settings = tomllib.loads(SETTINGS.read_text())["tool"]["pytest"]["ini_options"]
    assert 0 < settings["faulthandler_timeout"] < settings["timeout"]
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nfaulthandler_timeout = 1\ntimeout = 4\ntimeout_method = {settings['timeout_method']}\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import threading\n\n\ndef test_it() -> None:\n    wait_here()\n\n\n"
        "def wait_here() -> None:\n    threading.Event().wait()\n"
    )
    command = [sys.executable, "-m", "pytest", "-n", "1", "--max-worker-restart", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=GUARD_S
    )
    assert "in wait_here" in done.stderr
    assert "crashed while running 'test_it.py::test_it'" in done.stdout
