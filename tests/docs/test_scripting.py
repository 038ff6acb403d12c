"""docs/scripting.md: each section runs by itself, block after block, and prints what stands below its blocks."""

import contextlib
import io
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pytest import MonkeyPatch

import planner
from planner import solvers

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/scripting.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n")[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTS = re.compile(r"^\s*print\(", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A folder with the tests of a clone in it; a module that a block makes is gone afterwards."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "contract", None)
    return tmp_path


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_prints_what_stands_there(title: str, folder: Path) -> None:
    if "import torch" in SECTIONS[title]:
        pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
    blocks = BLOCK.findall(SECTIONS[title])
    known: dict[str, Any] = {}
    for (kind, code), (following, expected) in pairwise([*blocks, ("", "")]):
        if kind != "python":
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"docs/scripting.md, {title}", "exec"), known)
        assert out.getvalue() == (expected if following == "text" else ""), code


@pytest.mark.parametrize("title", SECTIONS)
def test_what_prints_is_followed_by_what_it_prints(title: str) -> None:
    kinds = [kind for kind, _ in BLOCK.findall(SECTIONS[title])]
    assert set(kinds) <= {"python", "text"}
    assert kinds.count("text") == sum(
        bool(PRINTS.search(code)) for kind, code in BLOCK.findall(SECTIONS[title]) if kind == "python"
    )


@pytest.mark.parametrize("name", [*solvers.__all__, *(f"planner.{name}" for name in planner.__all__)])
def test_every_solver_and_every_function_is_named(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}\b", TEXT)
