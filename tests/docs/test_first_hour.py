"""docs/first_hour.md, word for word: its files are written, its commands run in their order, their output is compared."""

import re
import tomllib
from pathlib import Path

import pytest
from docs_commands import ROOT, blocks, follow, is_there, write
from pytest import CaptureFixture, MonkeyPatch

PAGE = blocks("docs/first_hour.md")
TEXT = (ROOT / "docs/first_hour.md").read_text(encoding="utf-8")


def test_every_step_does_what_stands_there(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in PAGE:
        assert block.kind in ("yaml", "csv", "console", "sh")
        if block.kind in ("yaml", "csv"):
            write(block, tmp_path)
        for command in block.commands:
            if block.kind == "console" and is_there(command.needs):
                assert command.printed
                follow(command, capsys)


def test_the_page_shows_every_part_of_the_work() -> None:
    commands = {
        call.words[1] for block in PAGE if block.kind == "console" for one in block.commands for call in one.parts
    }
    assert commands >= {"plan", "import", "calibrate", "compare", "explain", "procure", "export", "sweep", "check"}


def test_what_is_installed_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (install,) = re.findall(r"pip install '\.\[(\w+)\]'", TEXT)
    assert install in extras


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\]\((\w+\.md)\)", TEXT))))
def test_what_is_linked_is_there(name: str) -> None:
    assert (ROOT / "docs" / name).is_file()
