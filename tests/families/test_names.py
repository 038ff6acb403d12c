"""Whatever has an entry for every family has one for each of the one list, and for no other."""

from collections.abc import Collection
from importlib import import_module

import pytest

from planner import families
from planner.exporters import data_parallel
from planner.families import FAMILIES
from planner.names import FAMILY_NAMES, OF_TRANSFORMERS
from planner.question.blocks import CalibrationSpec
from planner.question.spec import ConfigurationSpec
from tests.referee.second_physics import FACTS

TABLES: dict[str, Collection[str]] = {
    "what a family is": FAMILIES.own,
    "second physics": FACTS,
    "blocks of a spec": ConfigurationSpec.model_fields.keys() - {"substitutions"},
    "what is no data parallelism": data_parallel._OTHERS.keys() | {"all_reduce", "hybrid"},
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_an_entry_for_every_family(table: str) -> None:
    assert sorted(TABLES[table]) == sorted(FAMILY_NAMES)


def test_families_stand_in_the_order_of_the_list() -> None:
    assert tuple(FAMILIES.own) == FAMILY_NAMES


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_the_package_of_a_family_is_reached_by_its_name(name: str) -> None:
    assert getattr(families, name) is import_module(f"planner.families.{name}")  # nothing else hides it


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_family_is_registered_by_the_name_that_it_has(name: str) -> None:
    assert name == FAMILIES[name].NAME


def test_what_iterations_may_fit_is_a_key_of_calibration() -> None:
    for family in FAMILIES.own.values():
        assert family.FITTED
        assert set(family.FITTED) <= CalibrationSpec.model_fields.keys()


def test_the_family_of_transformers_is_one_of_them() -> None:
    assert OF_TRANSFORMERS in FAMILY_NAMES
