"""Families whose searches are made up, in the place of those that the ranking asks."""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace

import pytest

from planner import ranking
from planner.families import FAMILIES, bound_of
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
    made = {name: SimpleNamespace(search=search, domain=FAMILIES[name].domain) for name, search in searches.items()}
    monkeypatch.setattr(ranking, "FAMILIES", made)
    own: dict[str, Callable[[Problem], float]] = {name: partial(bound_of, name) for name in searches}
    own.update(bounds or {})
    monkeypatch.setattr(ranking, "bound_of", lambda family, problem: own[family](problem))
