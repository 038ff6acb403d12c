"""A plan is the best of what its family looked at: what is found for the alternatives becomes the plan if it is better."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch
from servers import question

import planner
from planner.families.all_reduce import search as mixed_search
from planner.families.all_reduce.bounds import AllReduceBoxes
from planner.families.parameter_server import search as branch
from planner.families.parameter_server import search as servers_search
from planner.problem import Problem, Range
from planner.solvers import branch_and_bound as boxes_solver
from tests.referee import second_physics


def assert_best_of(problem: Problem, seen: list[float]) -> None:
    """The plan is as good as everything that its search came across, and says so of what it shows."""
    found = planner.plan(problem)
    assert seen
    assert found.objective <= min(seen) * (1 + 1e-9)
    assert all(one.objective >= found.objective * (1 - 1e-9) for one in found.alternatives)
    assert all(one.relative_loss == pytest.approx(one.objective / found.objective - 1) for one in found.alternatives)
    assert found.bound <= found.objective
    assert second_physics.check(problem, found).is_ok


@settings(max_examples=4)
@given(st.sampled_from(["alexnet", "vgg16"]), st.integers(8, 300))
def test_no_number_of_servers_that_is_shown_is_better_than_the_plan(net: str, batch: int) -> None:
    plain, seen = branch.search_boxes, list[float]()

    def cut_off(incumbents: Any, roots: Any, **named: Any) -> float:
        """Come to no plan but those of three servers, as a search may that is cut off."""
        is_of_plan = "most_solved" not in named  # not the search of a number of servers that is shown beside it
        plain(incumbents, branch.roots_of(incumbents.space, 3) if is_of_plan else roots, **named)
        seen.extend(one.objective for one in incumbents.solved)
        return 0.0

    with MonkeyPatch.context() as patch:
        patch.setattr(servers_search, "search_boxes", cut_off)
        assert_best_of(planner.load(question(dnn={"zoo": net, "global_batch": batch})), seen)


@settings(max_examples=4)
@given(st.sampled_from(["alexnet", "vgg16"]), st.integers(8, 300))
def test_no_plan_without_a_group_of_unlike_devices_is_better_than_the_plan(net: str, batch: int) -> None:
    plain, answered, seen = boxes_solver.best_vector, mixed_search._answer, list[float]()

    def cut_off(roots: Any, boxes: Any, search: Any, **named: Any) -> Any:
        """Come to no plan but those of all devices, as a search may that is cut off."""
        if named["effort"].most_boxes == mixed_search._MOST_BOXES_OF_ALTERNATIVES:
            return plain(roots, boxes, search, **named)
        everything = sum(group.count * group.devices_per_machine for group in boxes.problem.cluster.machine_groups)
        wide = replace(boxes.problem, limits=replace(boxes.problem.limits, devices=Range(least=everything)))
        part = AllReduceBoxes(wide, boxes.teams, search)
        return plain(part.roots, part, search, **{**named, "split": part.split})

    def answer(boxes: Any, choice: Any, **late: Any) -> Any:
        found = answered(boxes, choice, **late)
        seen.append(found.objective)
        return found

    machines = [
        {"name": "fast", "count": 2, "device": "v100-sxm2-16g", "network": "1 Gbit/s"},
        {"name": "slow", "count": 2, "device": "quadro-rtx-4000", "network": "10 Gbit/s"},
    ]
    asked = question(dnn={"zoo": net, "global_batch": batch}, cluster={"machines": machines}, families=["all_reduce"])
    with MonkeyPatch.context() as patch:
        patch.setattr(mixed_search, "best_vector", cut_off)
        patch.setattr(mixed_search, "_answer", answer)
        assert_best_of(planner.load(asked), seen)
