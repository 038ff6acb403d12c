"""The modules of models and solvers that are meant for scripts, and that the reference of the site lists, are reached."""

from importlib import import_module
from types import ModuleType

import pytest

from planner import models, solvers


@pytest.mark.parametrize("room", [models, solvers], ids=["models", "solvers"])
def test_what_is_meant_for_scripts_is_reached_through_its_room(room: ModuleType) -> None:
    for name in room.__all__:
        assert getattr(room, name) is import_module(f"{room.__name__}.{name}")
        assert getattr(room, name).__doc__


@pytest.mark.parametrize("room", [models, solvers], ids=["models", "solvers"])
def test_a_name_that_a_room_does_not_have_is_an_attribute_error(room: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no attribute 'telepathy'"):
        _ = room.telepathy
