"""docs/sweep.md: its commands run, print what it says they print, and its keys are those there are."""

import re
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from planner.cli.run import run
from planner.sweep.answers import Outcome
from planner.sweep.question import SweepSpec

TEXT = (Path(__file__).parents[2] / "docs/sweep.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SHELL = [
    line.split("  #")[0].split(" # ")[0].strip()
    for kind, block in BLOCKS
    if kind == "sh"
    for line in block.splitlines()
]


def test_every_command_runs_and_prints_what_stands_there(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(next(block for kind, block in BLOCKS if kind == "yaml"), encoding="utf-8")
    outputs = []
    assert len(SHELL) == 6
    for command in SHELL:
        for word, library in (("--workers", "distributed"), ("--html", "plotly")):
            if word in command:
                pytest.importorskip(library, reason=f"{library} is not installed")
        assert run(command.split()[1:]) == 0, command
        outputs.append(capsys.readouterr().out)
    (printed,) = [block for kind, block in BLOCKS if kind == ""]
    lines = outputs[0].splitlines()
    assert [line for line in printed.splitlines() if line != "..." and line not in lines] == []
    assert outputs[0] == outputs[1] == outputs[2] == outputs[3] == outputs[5]
    assert len(Path("rows.csv").read_text().splitlines()) > 12


@pytest.mark.parametrize("name", [*SweepSpec.model_fields, *Outcome])
def test_every_key_and_every_outcome_is_explained(name: str) -> None:
    assert re.search(rf"^\|[^|]*`{name}`", TEXT, re.MULTILINE)
