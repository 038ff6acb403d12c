"""docs/report.md: its commands and its lines of Python run, and its limits are those of the code."""

import re
from pathlib import Path

import pytest
from purchases import asked, row
from pytest import CaptureFixture, MonkeyPatch

from planner.cli.run import run
from planner.page import drawing, proof, runs, schedule

pytest.importorskip("plotly", reason="plotly is not installed: pip install 'training-planner[report]'")
pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'training-planner[report]'")

TEXT = (Path(__file__).parents[2] / "docs/report.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SHELL = [line.split("  #")[0].strip() for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]


def test_every_command_that_writes_a_page_runs(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    import json

    monkeypatch.chdir(tmp_path)
    Path("question.yaml").write_text(
        json.dumps(asked(Path("prices.csv"), [row("small"), row("large", device="v100-sxm2-16gb", usd_per_h=3)]))
    )
    commands = [command for command in SHELL if command.startswith("planner ") and "--html" in command]
    assert len(commands) == 7
    for command in commands:
        arguments = command.split()[1:]
        page = Path(arguments[arguments.index("--html") + 1])
        page.unlink(missing_ok=True)
        assert run(arguments) == 0, (command, capsys.readouterr().err)
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_lines_of_python_run() -> None:
    (code,) = [block for kind, block in BLOCKS if kind == "python"]
    found: dict[str, str] = {}
    exec(code, found)
    assert found["page"].startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("machines of a group", drawing._MOST_MACHINES),
        ("fusion groups", schedule._MOST_GROUPS),
        ("alternatives", proof._MOST_ROWS),
        ("bars of a timeline", runs._MOST_SPANS),
    ],
)
def test_limits_are_those_of_the_code(words: str, number: int) -> None:
    assert f"{number:,} {words}" in " ".join(TEXT.split())
