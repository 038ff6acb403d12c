"""Layouts on several kinds of machines are the same whoever helps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from shuffled_pool import ShuffledPool

import planner
from planner.families.hybrid import grid_search
from planner.families.hybrid.grid_search import Found
from planner.plan import Plan
from planner.solvers.grid import Grid

_LINKS = {"network": "100 Gbit/s", "latency": "5 us"}
QUESTION: dict[str, Any] = {
    "dnn": {"zoo": "megatron-1.7b", "global_batch": 12, "dtype": "bf16", "optimizer": "adam"},
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


def answered(pool: ShuffledPool | None, machines: Sequence[dict[str, Any]] = (), number: int = 2) -> dict[str, Any]:
    """What is found with the help of a pool, without how many layouts were evaluated."""
    question = {**QUESTION, "cluster": {"machines": [*QUESTION["cluster"]["machines"], *machines]}}
    plan: Plan = planner.plan(planner.load(question), num_alternatives=number, pool=pool)
    words = [one for one in plan.explanation if not one.startswith("layouts ")]
    names = ("status", "objective", "bound", "configuration", "prediction", "alternatives")
    counts = [one.split(";")[0] for one in plan.explanation if one.startswith("layouts in the grid")]
    return {"words": words, "counts": counts, **{name: getattr(plan, name) for name in names}}


def test_a_layout_on_two_kinds_of_machines_is_the_same_whoever_helps() -> None:
    pool = ShuffledPool(seed=1, num_workers=3)
    assert answered(pool) == answered(None)
    assert pool.num_parts > 0


@pytest.mark.parametrize(("number", "gone_after"), [(0, None), (2, 10)])
def test_placements_on_three_kinds_that_are_searched_at_once_give_what_they_give_in_turn(
    number: int, gone_after: int | None
) -> None:
    pool = ShuffledPool(seed=1, num_workers=4, gone_after=gone_after)
    assert answered(pool, [_H200], number) == answered(None, [_H200], number)
    assert pool.num_parts > (gone_after or 19)  # placements: more than one part of each


@pytest.mark.parametrize("most", [8, 64])
def test_a_first_layout_on_several_kinds_alters_no_answer(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it matter when the search for it ends: in its dive, or once it has one."""
    monkeypatch.setattr(grid_search, "_MOST_OF_FIRST", most)
    helped = answered(None, [_H200])
    first, limits = grid_search._first_found, []

    def none(costs: Any, kinds: Any, search: Any, known_s: Any) -> tuple[Found, float]:
        found, limit_s = first(costs, kinds, search, known_s)
        limits.append(limit_s)
        return replace(found, answer=grid_search._nothing(float("inf"))), float("inf")

    monkeypatch.setattr(grid_search, "_first_found", none)
    assert answered(None, [_H200]) == helped
    assert helped["objective"] <= min(limits) < (1.5 * helped["objective"] if most > 8 else float("inf"))


@pytest.mark.parametrize("most", [1_000, 10**9])
def test_layouts_are_counted_up_to_the_first_placement_of_too_many_whoever_helps(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, asked = Grid.count, []

    def counted(grid: Grid) -> int | None:
        asked.append(grid)
        found = count(grid)
        return found if found is not None and found <= most else None

    monkeypatch.setattr(Grid, "count", counted)
    alone = answered(None, [_H200])
    number = len(asked)
    shared = answered(ShuffledPool(seed=1, num_workers=4), [_H200])
    assert alone == shared
    assert bool(alone["counts"]) is (most == 10**9)
    assert len(asked) == 2 * number


def test_a_placement_of_which_a_part_was_lost_is_not_proven() -> None:
    pool = ShuffledPool(seed=4, num_workers=4, lost=range(1, 1_000))
    found = planner.plan(planner.load(QUESTION), pool=pool)
    alone = planner.plan(planner.load(QUESTION))
    assert found.bound <= alone.bound
    assert found.objective >= alone.objective
    assert pool.notes
