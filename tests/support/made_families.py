"""Families whose searches are made up, in the place of those that the ranking asks."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest

from planner import ranking
from planner.families import FAMILIES
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search

__all__ = ["Found", "only_searched"]

Found = Callable[[Problem, Search], Plan]


def only_searched(
    monkeypatch: pytest.MonkeyPatch,
    searches: Mapping[str, Found],
    bounds: Mapping[str, Callable[[Problem], float]] | None = None,
) -> None:
    """Let the ranking know these families alone, each with its own bound and domain if it is given no other."""
    made = {
        name: SimpleNamespace(
            search=search, bound=(bounds or {}).get(name, FAMILIES[name].bound), domain=FAMILIES[name].domain
        )
        for name, search in searches.items()
    }
    monkeypatch.setattr(ranking, "FAMILIES", made)
