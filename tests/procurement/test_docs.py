"""docs/procure.md: its commands run, and print what it says they print."""

import re
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from planner.cli.run import run
from planner.procurement.spec import ProcureSpec

TEXT = (Path(__file__).parents[2] / "docs/procure.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
SHELL = [line.split("  #")[0].strip() for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
PRINTED = [block for kind, block in BLOCKS if kind == ""]


def arguments_of(command: str) -> list[str]:
    """The words of a command line after the program's name."""
    words = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', command)]
    assert words[0] == "planner"
    return words[1:]


def test_every_command_runs_and_prints_what_stands_there(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, name in (("csv", "month.csv"), ("yaml", "month.yaml")):
        (tmp_path / name).write_text(next(block for one, block in BLOCKS if one == kind), encoding="utf-8")
    outputs = []
    for command in SHELL:
        assert run(arguments_of(command)) == 0, command
        outputs.append(capsys.readouterr().out)
    for printed, output in zip(PRINTED, (outputs[0], outputs[-1]), strict=True):
        lines = output.splitlines()
        assert [line for line in printed.splitlines() if line != "..." and line not in lines] == []


@pytest.mark.parametrize("key", ProcureSpec.model_fields)
def test_every_key_of_the_block_is_explained(key: str) -> None:
    assert re.search(rf"^\|[^|]*`{key}`", TEXT, re.MULTILINE)
