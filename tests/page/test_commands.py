"""``--html`` and answers on a terminal, as users meet them."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from pages import read
from purchases import asked, row
from pytest import CaptureFixture, MonkeyPatch

from planner.answer.text import show
from planner.cli.run import run

SHORT = ("plan", "--dnn", "alexnet", "--cluster", "osf-testbed", "--families", "all_reduce")


def test_a_plan_is_written_as_a_page_and_told_as_before(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    assert run(SHORT) == 0
    plain = capsys.readouterr().out
    page = tmp_path / "a plan é.html"
    assert run([*SHORT, "--html", str(page), "--time-limit", "20 s"]) == 0
    assert capsys.readouterr().out == plain
    found = read(page.read_text(encoding="utf-8"))
    assert "What other hardware would bring" in found.text
    assert "planner plan question.yaml --time-limit '20 s' --out plan.json" in found.text


def test_no_explain_leaves_out_other_hardware(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert run([*SHORT, "--html", str(page), "--no-explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "planner.plan/1"
    assert "What other hardware would bring" not in page.read_text(encoding="utf-8")


def test_the_question_on_the_page_gives_the_same_plan(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    page, plan = tmp_path / "plan.html", tmp_path / "plan.json"
    assert run([*SHORT, "--html", str(page), "--out", str(plan), "--no-explain"]) == 0
    texts = re.findall(r'aria-label="question.yaml"><code>(.*?)</code>', page.read_text(encoding="utf-8"), re.DOTALL)
    question = tmp_path / "question.yaml"
    question.write_text(texts[0])
    assert run(["plan", str(question), "--out", str(tmp_path / "again.json")]) == 0
    capsys.readouterr()
    one, other = (json.loads(path.read_text()) for path in (plan, tmp_path / "again.json"))
    for name in ("status", "objective", "family", "configuration", "prediction", "problem"):
        assert one[name] == other[name]
    assert run(["predict", str(plan), "--html", str(tmp_path / "predicted.html")]) == 0
    assert "a prediction" in read((tmp_path / "predicted.html").read_text(encoding="utf-8")).title


def test_a_purchase_and_a_case_have_pages(tmp_path: Path) -> None:
    question = tmp_path / "question.json"
    question.write_text(
        json.dumps(asked(tmp_path / "prices.csv", [row("small"), row("large", device="v100-sxm2-16gb", usd_per_h=3)]))
    )
    assert run(["procure", str(question), "--what-if", "--html", str(tmp_path / "fleet.html")]) == 0
    found = read((tmp_path / "fleet.html").read_text(encoding="utf-8"))
    assert "What if" in found.text
    assert "planner procure question.yaml --what-if" in found.text
    assert run(["case", "osf-scaling-factor", "--html", str(tmp_path / "case.html")]) == 0
    assert "osf-scaling-factor" in read((tmp_path / "case.html").read_text(encoding="utf-8")).text


def refused(capsys: CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 2
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["field"] == "--html"
    return found


def test_what_cannot_be_written_is_refused_before_the_search(
    tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.plan", None)  # nobody gets so far
    assert "there is no folder" in refused(capsys, *SHORT, "--html", str(tmp_path / "no" / "plan.html"))["message"]
    assert "this is a folder" in refused(capsys, *SHORT, "--html", str(tmp_path))["message"]
    os.mkfifo(tmp_path / "pipe")
    assert "no plain file" in refused(capsys, *SHORT, "--html", str(tmp_path / "pipe"))["message"]
    question = tmp_path / "question.yaml"
    question.write_text("dnn: {zoo: vgg16}\ncluster: {preset: osf-testbed}\n")
    assert "the question itself" in refused(capsys, "plan", str(question), "--html", str(question))["message"]
    assert question.read_text().startswith("dnn:")


# -- terminal --------------------------------------------------------------------------------------------------------


def on_terminal(columns: int, *arguments: str, **environment: str) -> str:
    """What a command prints on a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", *arguments],
        stdin=follower, stdout=follower, stderr=subprocess.DEVNULL, env={**kept, "TERM": "xterm-256color", **environment},
    )  # fmt: skip
    os.close(follower)
    told = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux says so where the other end is closed
            break
        if not part:
            break
        told += part
    os.close(leader)
    assert process.wait() == 0
    return told.decode().replace("\r", "")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_terminal_of_60_columns_gets_lines_that_fit_and_all_words() -> None:
    told = on_terminal(60, *SHORT)
    assert "\x1b[32m" in told  # what is proven is green
    lines = plain(told).splitlines()
    assert max(map(len, lines)) <= 60
    piped = subprocess.run([sys.executable, "-m", "planner", *SHORT], capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in piped
    assert plain(told).split() == piped.split()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_stay_out_where_they_are_not_wanted(name: str, value: str) -> None:
    told = on_terminal(100, *SHORT, **{name: value})
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", told)
    if name == "TERM":
        assert "\x1b" not in told


def test_commands_to_copy_are_not_broken(tmp_path: Path) -> None:
    question = tmp_path / "question.json"
    machines = {"count": 2, "devices": 4, "device": "a100-sxm4-80gb", "network": "100 Gbit/s", "inside": "nvlink-3"}
    question.write_text(
        json.dumps(
            {
                "dnn": {"zoo": "megatron-1.7b", "global_batch": 32},
                "cluster": {"machines": [machines]},
                "families": ["hybrid"],
            }
        )
    )
    told = plain(on_terminal(60, "plan", str(question))).splitlines()
    piped = subprocess.run(
        [sys.executable, "-m", "planner", "plan", str(question)], capture_output=True, text=True, check=True
    ).stdout
    commands = [line for line in piped.splitlines() if line.startswith(("  export ", "  torchrun ", "  --"))]
    assert any(len(line) > 60 for line in commands)
    assert set(commands) <= set(told)
    assert all(len(line) <= 60 for line in told if line not in commands)


TABLE = (
    "Title\n  name                          value   why\n  a long name of something       1 ms   because of one thing and of another, and of more\n"
    "  b                              2 ms   short\n  ... and 3 more; --json has all\n\nAfter"
)


def shown(text: str, columns: int, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> list[str]:
    """Lines as a terminal of so many columns gets them, without colours."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    show(text)
    return plain(capsys.readouterr().out).rstrip("\n").split("\n")


def test_columns_of_a_table_stay_below_each_other_as_long_as_they_fit(
    monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    assert shown(TABLE, 100, monkeypatch, capsys) == TABLE.split("\n")
    narrower = shown(TABLE, 90, monkeypatch, capsys)
    assert max(map(len, narrower)) <= 90
    assert len({line.index(word) for line, word in zip(narrower[1:4], ("why", "because", "short"), strict=True)}) == 1
    hanging = shown(TABLE, 70, monkeypatch, capsys)
    assert max(map(len, hanging)) <= 70
    place = hanging[1].index("why")
    assert hanging[2][place:].startswith("because")
    assert hanging[3][:place].strip() == ""
    assert hanging[3][place:].strip()
    small = shown(TABLE, 30, monkeypatch, capsys)
    assert max(map(len, small)) <= 30
    for lines in (narrower, hanging, small):
        assert " ".join(lines).split() == TABLE.split()
