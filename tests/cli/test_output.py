import os
import pty
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from planner.cli.output import write_text
from planner.errors import SpecError


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "plan.json", tmp_path / "plan.json"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, "whole")
    reader.join(timeout=60)
    assert read == ["whole"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_in_its_place_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(SpecError, match="cannot be written"):
        write_text(tmp_path / "plan.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


CLEARED = b"\r\n\x1b[?25h\r\x1b[1A\x1b[2K"  # its line is empty, and the cursor is back
LONG = """
import time
from planner.cli.output import Progress
with Progress("thinking", "steps") as progress:
    until_s = time.monotonic() + 60
    while (progress._bar is None) is {is_shown} and time.monotonic() < until_s:
        time.sleep(0.05)
    time.sleep(0.6)
    progress.tell(1.0, 2.0)
    time.sleep(0.6)
assert (progress._bar is not None) is {is_shown}
"""


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_what_takes_long_says_so_on_a_terminal_and_takes_its_line_away(term: str) -> None:
    leader, follower = pty.openpty()
    is_shown = term != "dumb"
    code = [sys.executable, "-c", LONG.format(is_shown=is_shown)]
    with subprocess.Popen(code, stderr=follower, env={**os.environ, "TERM": term, "COLUMNS": "100"}) as process:
        os.close(follower)
        said = b""
        while part := _read(leader):
            said += part
        os.close(leader)
        assert process.wait() == 0, said.decode()
    assert (b"thinking" in said) is is_shown
    assert (b"steps: 1; best: 2.0, none below 1.0" in said) is is_shown
    if is_shown:
        assert said.endswith(CLEARED)
    else:
        assert said == b""


def test_what_takes_long_says_nothing_into_a_pipe() -> None:
    code = [sys.executable, "-c", LONG.format(is_shown=False)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _read(leader: int) -> bytes:
    """What comes next from a terminal; nothing where its other end is closed, which Linux says as an error."""
    try:
        return os.read(leader, 65536)
    except OSError:
        return b""


SPEC = "dnn: {zoo: alexnet, batch_per_device: 32}\ncluster: {preset: osf-testbed}\nfamilies: [all_reduce]\n"


def piped(text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """One command of a pipeline."""
    command = [sys.executable, "-m", "planner", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)


def test_a_pipeline_hands_on_questions_and_plans_by_a_dash(tmp_path: Path) -> None:
    first = piped(SPEC, "plan", "-", "--json", "--out", str(tmp_path / "plan.json"))  # the spec is read twice
    assert first.returncode == 0, first.stderr
    assert first.stdout == (tmp_path / "plan.json").read_text()
    for command in (["check", "-"], ["export", "-", "--to", "ddp"], ["compare", "-", str(tmp_path / "plan.json")]):
        then = piped(first.stdout, *command)
        assert then.returncode == 0, then.stderr
    assert "-: the file is empty." in piped("", "plan", "-").stderr
    assert "-:1:7: dnn.zoo: 'alexnett' is not a known network" in piped(SPEC.replace("net", "nett"), "plan", "-").stderr


def test_a_dash_is_no_file_to_write(tmp_path: Path) -> None:
    found = piped(SPEC, "plan", "-", "--out", "-")
    assert found.returncode == 2
    assert "-: --out: this is no name of a file. Name one, or add --json" in found.stderr
