"""docs/first_hour.md, word for word: its files are written, its commands run in their order, their output is compared."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from planner.cli.run import run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/first_hour.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"[Pp]ut (?:this|these measurements) into `([\w.-]+)`")
NOTE = re.compile(r"<!-- (exit|needs) (\w+) -->\n$")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A file to write, or a command with what it prints; ``needs`` names a library that may be missing."""

    file: str = ""
    text: str = ""
    command: str = ""
    code: int = 0
    needs: str = ""


def steps() -> Iterator[Step]:
    """Files and commands, in their order."""
    end = 0
    for block in BLOCK.finditer(TEXT):
        before, kind, body = TEXT[end : block.start()], *block.groups()
        end = block.end()
        note = NOTE.search(before)
        told = {note[1]: note[2]} if note else {}
        if kind in ("yaml", "csv"):
            (name,) = FILE.findall(before)
            yield Step(file=name, text=body)
        elif kind == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, text = part.partition("\n")
                yield Step(command=command, text=text, code=int(told.get("exit", 0)), needs=told.get("needs", ""))
        else:
            assert kind == "sh"


STEPS = list(steps())


def missing(shown: str, printed: str) -> list[str]:
    """The lines shown that were not printed in that order; ``...`` stands for any lines, at a line's end for its rest.

    Lines that stand below each other with nothing between them were printed so.
    """
    lines, at, is_free, lost = printed.splitlines(), 0, False, []
    for line in shown.splitlines():
        if line == "...":
            is_free = True
            continue
        fits = [
            index
            for index in range(at, len(lines) if is_free else min(at + 1, len(lines)))
            if lines[index] == line or (line.endswith("...") and lines[index].startswith(line[:-3]))
        ]
        if not fits:
            lost.append(line)
            continue
        at, is_free = fits[0] + 1, False
    if at < len(lines) and not is_free:
        lost.append(f"(printed, and not shown: {lines[at]})")
    return lost


def test_every_step_does_what_stands_there(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for step in STEPS:
        if step.file:
            Path(step.file).write_text(step.text, encoding="utf-8")
            continue
        if step.needs and not _has(step.needs):
            continue
        name, *arguments = shlex.split(step.command)
        assert name == "planner"
        code = run(arguments)
        out, err = capsys.readouterr()
        assert code == step.code, (step.command, err)
        assert missing(step.text, out if code == 0 else err) == [], step.command


def _has(library: str) -> bool:
    return find_spec(library) is not None


def test_the_page_shows_every_part_of_the_work() -> None:
    commands = {step.command.split()[1] for step in STEPS if step.command}
    assert commands >= {"plan", "import", "calibrate", "compare", "explain", "procure", "export", "sweep", "check"}


def test_what_is_installed_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (install,) = re.findall(r"pip install '\.\[(\w+)\]'", TEXT)
    assert install in extras


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\]\((\w+\.md)\)", TEXT))))
def test_what_is_linked_is_there(name: str) -> None:
    assert (ROOT / "docs" / name).is_file()


@pytest.mark.parametrize(
    ("shown", "printed", "lost"),
    [
        ("a\nb\n", "a\nb\n", []),
        ("a\n...\n", "a\nb\nc\n", []),
        ("a\n...\nc\n", "a\nb\nc\n", []),
        ("M: ...\n", "M: x\n", []),
        ("a\nc\n", "a\nb\nc\n", ["c", "(printed, and not shown: b)"]),
        ("a\n", "a\nb\n", ["(printed, and not shown: b)"]),
        ("...\nb\na\n...\n", "a\nb\n", ["a"]),
    ],
)
def test_the_comparison_finds_what_differs(shown: str, printed: str, lost: list[str]) -> None:
    assert missing(shown, printed) == lost
