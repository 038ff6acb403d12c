"""The modules of models and solvers that are meant for scripts are those that docs/scripting.md lists."""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from planner import models, solvers

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/scripting.md").read_text(encoding="utf-8")


def listed(heading: str, room: ModuleType) -> set[str]:
    """The modules of a room that stand in the table below a heading of its name."""
    (table,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    files = {path.stem for path in (ROOT / room.__name__.rpartition(".")[2]).glob("[a-z]*.py")}
    return {name.split(".")[0] for name in re.findall(r"`([\w.]+)`", table)} & files


@pytest.mark.parametrize(
    ("heading", "room"),
    [("modules of `planner.models`", models), ("module of `planner.solvers`", solvers)],
    ids=["models", "solvers"],
)
def test_the_page_lists_what_is_meant_for_scripts(heading: str, room: ModuleType) -> None:
    assert listed(heading, room) == set(room.__all__)


@pytest.mark.parametrize("room", [models, solvers], ids=["models", "solvers"])
def test_what_is_meant_for_scripts_is_reached_through_its_room(room: ModuleType) -> None:
    for name in room.__all__:
        assert getattr(room, name) is import_module(f"{room.__name__}.{name}")
        assert getattr(room, name).__all__


@pytest.mark.parametrize("room", [models, solvers], ids=["models", "solvers"])
def test_a_name_that_a_room_does_not_have_is_an_attribute_error(room: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no attribute 'telepathy'"):
        _ = room.telepathy
