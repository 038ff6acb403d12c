"""Modules of models and solvers that are meant for scripts are reached, and answers say what their fields mean."""

from dataclasses import fields
from importlib import import_module
from types import ModuleType

import pytest

from planner import models, solvers
from planner.answer.comparison import Comparison
from planner.errors import Relaxation
from planner.explanation import Explanation, Sensitivity
from planner.exporters.export import Export
from planner.plan import Plan, Prediction
from planner.procurement.answer import Certificate, Choice, Procured, Risk
from planner.solution import Solution
from planner.sweep.swept import Swept


@pytest.mark.parametrize("room", [models, solvers], ids=["models", "solvers"])
def test_what_is_meant_for_scripts_is_reached_through_its_room(room: ModuleType) -> None:
    for name in room.__all__:
        assert getattr(room, name) is import_module(f"{room.__name__}.{name}")
        assert getattr(room, name).__doc__


@pytest.mark.parametrize("room", [models, solvers], ids=["models", "solvers"])
def test_a_name_that_a_room_does_not_have_is_an_attribute_error(room: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no attribute 'telepathy'"):
        _ = room.telepathy


def test_help_says_of_every_field_of_an_answer_what_it_means() -> None:
    answers = (Plan, Prediction, Procured, Swept, Comparison, Explanation, Export)
    for answer in (*answers, Choice, Risk, Certificate, Sensitivity, Solution, Relaxation):
        _, _, section = (answer.__doc__ or "").partition("    Attributes\n    ----------\n")
        names = [line.split(",") for line in section.splitlines() if line.strip() and line[4] != " "]
        said = {name.strip() for several in names for name in several}
        assert {one.name for one in fields(answer)} == said, answer
