"""What surrounds a process: encodings, streams that are closed, readers that go away, folders that are gone."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from guards import GUARD_S

Fresh = Callable[[], Path]
PLANNER = f"{sys.executable} -m planner"


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash, which fails where any part of it does."""
    words = ["bash", "-c", f"set -o pipefail; {line}"]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, env={**os.environ, **environment}, check=False, timeout=GUARD_S
    )
    for word in (b"Traceback", b"bug of ours", b"Exception ignored"):
        assert word not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.skipif(shutil.which("bash") is None, reason="this system has no bash")
def test_a_reader_that_goes_away_is_no_error(fresh: Fresh) -> None:
    done = shell(f"{PLANNER} show prices --json | head -1", fresh())
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{\n", b"")


@pytest.mark.skipif(shutil.which("bash") is None, reason="this system has no bash")
def test_closed_streams_change_no_file(fresh: Fresh) -> None:
    folder = fresh()
    done = shell(f"{PLANNER} plan q.yaml --out p.json <&- >&- 2>&-", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (folder / "p.json").read_bytes() == (folder / "plan.json").read_bytes()


def test_letters_that_an_encoding_lacks_are_written_as_escapes(fresh: Fresh) -> None:
    folder = fresh()
    question = json.loads((folder / "q.yaml").read_text())
    question["dnn"]["name"] = "größer 😀"
    (folder / "u.yaml").write_text(json.dumps(question))
    for arguments in ("plan u.yaml", "plan u.yaml --json"):
        done = shell(f"{PLANNER} {arguments}", folder, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
        assert done.returncode == 0
        if "--json" in arguments:
            assert json.loads(done.stdout)["problem"]["dnn"]["name"] == "größer 😀"
        else:
            assert done.stdout.startswith(b"gr\\xf6\\xdfer \\U0001f600 on cluster")
