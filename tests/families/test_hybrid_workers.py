"""Layouts on several kinds of machines are the same whoever helps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
from shuffled_pool import ShuffledPool

import planner
from planner.families.hybrid import grid_search
from planner.families.hybrid import search as hybrid_search
from planner.families.hybrid.cost import HybridCost, Placement, costs_of
from planner.families.hybrid.found import Found, nothing
from planner.plan import Plan
from planner.search import Search
from planner.solvers.grid import Grid

_LINKS = {"network": "100 Gbit/s", "latency": "5 us"}
_LAYERS = {"layers": 8, "hidden": 2048, "heads": 16, "vocabulary": 51200, "sequence_length": 1024}
QUESTION: dict[str, Any] = {
    "dnn": {"transformer": _LAYERS, "global_batch": 12, "dtype": "bf16", "optimizer": "adam"},
    "cluster": {
        "machines": [
            {"device": "h100-sxm", "count": 1, "devices": 2, "inside": "nvlink-4", **_LINKS},
            {"device": "a100-sxm4-80gb", "count": 1, "devices": 2, "inside": "nvlink-3", **_LINKS},
        ]
    },
    "objective": "iteration_time",
    "families": ["hybrid"],
}
_H200 = {"device": "h200-sxm", "count": 1, "devices": 2, "inside": "nvlink-4", **_LINKS}
THREE = {**QUESTION, "cluster": {"machines": [*QUESTION["cluster"]["machines"], _H200]}}


def answered(pool: ShuffledPool | None, question: dict[str, Any] = QUESTION, number: int = 2) -> dict[str, Any]:
    """What is found with the help of a pool, without how many layouts were evaluated."""
    plan: Plan = planner.plan(planner.load(question), num_alternatives=number, pool=pool)
    words = [one for one in plan.explanation if not one.startswith("layouts ")]
    names = ("status", "objective", "bound", "configuration", "prediction", "alternatives")
    counts = [one.split(";")[0] for one in plan.explanation if one.startswith("layouts in the grid")]
    return {"words": words, "counts": counts, **{name: getattr(plan, name) for name in names}}


@contextmanager
def counted(most: int) -> Iterator[list[Grid]]:
    """The grids whose layouts are counted, up to so many of one."""
    count, asked = Grid.count, []

    def up_to(grid: Grid) -> int | None:
        asked.append(grid)
        found = count(grid)
        return found if found is not None and found <= most else None

    with patch.object(Grid, "count", up_to):
        yield asked


@cache
def alone(most: int = 10**9) -> tuple[dict[str, Any], int]:
    """What is found on two kinds without help, and how many grids were counted."""
    with counted(most) as asked:
        return answered(None), len(asked)


@pytest.mark.usefixtures("wordless")
@pytest.mark.parametrize(("number", "gone_after"), [(0, None), (2, 10)])
def test_placements_on_three_kinds_that_are_searched_at_once_give_what_they_give_in_turn(
    number: int, gone_after: int | None
) -> None:
    pool = ShuffledPool(seed=1, num_workers=4, gone_after=gone_after)
    assert answered(pool, THREE, number) == answered(None, THREE, number)
    assert pool.num_parts > (gone_after or 19)  # placements: more than one part of each


def test_a_first_layout_on_several_kinds_alters_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it matter when the search for it ends."""
    limits: list[float] = []
    first = grid_search._first_found

    def sooner(costs: Any, kinds: Any, search: Any, known_s: Any) -> tuple[Found, float]:
        monkeypatch.setattr(grid_search, "_MOST_OF_FIRST", 8)
        best, limit_s = first(costs, kinds, search, known_s)
        limits.append(limit_s)
        return best, limit_s

    def none(costs: Any, kinds: Any, search: Any, known_s: Any) -> tuple[Found, float]:
        best, _ = sooner(costs, kinds, search, known_s)
        return replace(best, answer=nothing(float("inf"))), float("inf")

    for one in (sooner, none):
        monkeypatch.setattr(grid_search, "_first_found", one)
        assert answered(None) == alone()[0]
    assert alone()[0]["objective"] <= min(limits) < 1.5 * alone()[0]["objective"]


def test_the_placement_of_the_first_good_layout_is_searched_before_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its layers moved it bounds them; of equally good ones the first is the answer all the same."""
    costs, asked, known = costs_of(planner.load(THREE)), list[HybridCost](), list[Found]()
    whole, first = grid_search.searched, grid_search._first_found

    def listed(cost: HybridCost, search: Search, **options: Any) -> Any:
        asked.append(cost)
        return whole(cost, search, **options)

    def kept(*arguments: Any) -> Any:
        found, limit_s = first(*arguments)
        known.append(found)
        return found, limit_s

    monkeypatch.setattr(grid_search, "searched", listed)
    monkeypatch.setattr(grid_search, "_first_found", kept)
    found, placements = grid_search.cuts_searched(costs, Search(), []), [*grid_search.placements_of(costs)]
    several = [one for one in asked if len(one.groups) > 1]
    assert several[0] == known[0].cost != next(one for one in placements if len(one.groups) > 1)
    assert [one.cost for one in found] == placements


@pytest.mark.parametrize("most", [1_000, 10**9])
def test_layouts_are_counted_up_to_the_first_placement_of_too_many_whoever_helps(most: int) -> None:
    found, number = alone(most)
    pool = ShuffledPool(seed=1, num_workers=4)
    with counted(most) as asked:
        assert answered(pool) == found
    assert pool.num_parts > 0
    assert bool(found["counts"]) is (most == 10**9)
    assert len(asked) == number


def test_what_idle_devices_are_for_is_looked_for_by_a_worker_and_told_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = [{**one, "devices": number} for one, number in zip(QUESTION["cluster"]["machines"], (4, 3), strict=True)]
    pins = {"num_stages": 6, "tensor_parallel_size": 1, "context_parallel_size": 1}
    question = {**QUESTION, "cluster": {"machines": machines}, "fix": pins}
    monkeypatch.setattr("planner.planning.answered", lambda _problem, plan, *_, **__: plan)
    found = answered(None, question)
    assert any("1 of 4 devices of h100-sxm stay idle" in one for one in found["words"])
    asked, submit = list[str](), ShuffledPool.submit

    def noted(pool: ShuffledPool, function: Any, *others: Any) -> int:
        asked.append(function.__name__)
        return submit(pool, function, *others)

    monkeypatch.setattr(ShuffledPool, "submit", noted)
    assert answered(ShuffledPool(seed=1, num_workers=4), question) == found
    assert asked.count("_best_of_all") == 1


@pytest.mark.parametrize("most", [1, 2_000])
def test_what_a_worker_finds_of_all_devices_in_so_many_questions_is_told_of_its_placement_alone(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(hybrid_search, "_MOST_QUESTIONS", most)
    costs = costs_of(planner.load(QUESTION))
    stages, replicas = (HybridCost(tuple(costs), kind) for kind in (Placement.STAGES, Placement.REPLICAS))
    idle = hybrid_search._Idle(Search())
    idle.use(ShuffledPool(seed=1))
    few = grid_search.searched(hybrid_search._of_devices(stages, 2, 2), Search(), counts=False)
    idle.begin(Found(cost=stages, answer=few))
    whole, other = (hybrid_search._of_devices(one, 4, None) for one in (stages, replicas))
    of_whole, of_other = (hybrid_search._proven(one, Search(questions_left=most)) for one in (whole, other))
    assert idle.best_of(other, Search(questions_left=most)) == of_other
    assert idle.best_of(whole, Search(time_limit_s=0.0)) == of_whole  # that was looked for elsewhere
    assert (of_whole is None, of_other is None) == (most == 1, most == 1)


def test_a_placement_of_which_a_part_was_lost_is_not_proven() -> None:
    pool = ShuffledPool(seed=4, num_workers=4, lost=range(1, 1_000))
    found = planner.plan(planner.load(QUESTION), pool=pool)
    assert found.bound <= alone()[0]["bound"]
    assert found.objective >= alone()[0]["objective"]
    assert pool.notes
