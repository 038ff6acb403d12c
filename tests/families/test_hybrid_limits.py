"""Limits of the search of ``hybrid``: what passes between two readings of the clock, and what huge questions ask for."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hybrid_questions import TINY, question
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.decisions import LAYOUT
from planner.errors import NoAnswerError
from planner.families.hybrid import cost as hybrid_cost
from planner.families.hybrid import grid_search
from planner.families.hybrid import search as hybrid_search
from planner.families.hybrid import space as hybrid_space
from planner.families.hybrid.configuration import OVERLAPS, HybridConfiguration, layouts_of
from planner.families.hybrid.cost import HybridCost, Placement, costs_of, has_few_cuts
from planner.families.hybrid.found import Found
from planner.families.hybrid.grid_search import bounds_of, searched
from planner.families.hybrid.search import plan
from planner.families.hybrid.space import Space
from planner.models import schedule as pipeline_schedule
from planner.models.balance import share_microbatches
from planner.models.layouts import Layouts
from planner.models.schedule import one_forward_one_backward_s
from planner.models.transformer_schedule import path_bound_s
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.solvers.divisors import all_divisors

SMALL = {"layers": 8, "hidden": 4096, "heads": 32, "vocabulary": 32000, "sequence_length": 2048}


def kinds(number: int, batch: int = 96, machines: int = 4) -> Problem:
    """A transformer on machines of several kinds, which differ in their networks."""
    rows = [
        {
            "name": f"k{index}",
            "count": machines,
            "device": "a100-sxm4-80gb",
            "devices": 8,
            "inside": "nvlink-3",
            "network": f"{100 + index} Gbit/s",
            "latency": "5 us",
        }
        for index in range(number)
    ]
    return question(SMALL, batch=batch, cluster={"machines": rows})


class Readings:
    """A clock that moves by a step with every reading, and the most work of any kind that passed between two."""

    def __init__(self, limit: int) -> None:
        self.now_s, self.since, self.most = 0.0, 0, 0
        self.search = Search(clock=self.read, resident=lambda: 0, time_limit_s=float(limit))

    def read(self) -> float:
        self.now_s, self.since = self.now_s + 1.0, 0
        return self.now_s

    def work(self, amount: int) -> None:
        self.since += amount
        self.most = max(self.most, self.since)


@pytest.mark.parametrize("limit", [30, 400])
def test_few_layouts_are_looked_at_between_two_readings_of_the_clock(limit: int) -> None:
    problem = kinds(4)
    clock, whole = Readings(limit), layouts_of

    def counted(columns: Any, batch: int) -> Layouts:
        found = whole(columns, batch)
        clock.work(len(found))
        return found

    with patch.object(hybrid_cost, "layouts_of", counted):
        try:
            found = plan(problem, clock.search)
            assert found.bound <= found.objective
        except NoAnswerError:
            assert limit < 100
    assert clock.now_s < 4 * limit + 100
    assert 0 < clock.most <= 300_000


def test_teams_of_ten_kinds_are_not_made_once_the_search_is_over() -> None:
    problem = kinds(10)
    clock = Readings(300)
    with patch.object(grid_search, "HybridCost", wraps=HybridCost) as made:
        found = plan(problem, clock.search)
    assert found.bound <= found.objective
    assert made.call_count < 600


def test_the_teams_that_were_never_come_to_count_in_the_bound() -> None:
    problem = kinds(2)
    truth = plan(problem, Search())
    for limit in (120, 200, 300):
        try:
            found = plan(problem, Readings(limit).search)
        except NoAnswerError:
            continue
        assert found.bound <= truth.objective * (1 + 1e-9)
        assert found.objective >= truth.objective * (1 - 1e-9)


@given(st.integers(1, 20_000))
def test_divisors_are_those_of_trying_every_number(number: int) -> None:
    assert list(all_divisors(number)) == [one for one in range(1, number + 1) if number % one == 0]


@pytest.mark.parametrize(("number", "size"), [(10**13, 196), (10**15, 256), (999_999_999_999_989, 2)])
def test_divisors_of_huge_batches_are_not_looked_for_one_by_one(number: int, size: int) -> None:
    with patch.object(np, "arange", wraps=np.arange) as made:
        assert len(all_divisors.__wrapped__(number)) == size
    assert all(call.args[1] - call.args[0] <= 1 << 18 for call in made.call_args_list)
    assert made.call_count <= 200


def test_a_micro_batch_beyond_what_integers_hold_does_not_fit() -> None:
    problem = question(batch=10**15)
    cost = costs_of(problem)[0]
    held = [
        float(cost.memory(cost.layouts({**_columns(), "microbatch": np.array([size])}))["total"][0])
        for size in (1, 10**3, 10**6, 10**9, 10**12, 10**15)
    ]
    assert held == sorted(held)
    assert held[-1] > 1e18


def _columns() -> dict[str, Any]:
    ones = {
        name: np.array([1])
        for name in ("tensor", "context", "pipeline", "data", "expert", "expert_tensor", "interleave")
    }
    flags = ("sequence_parallel", *OVERLAPS, "offload_optimizer", "zero", "order")
    others = {name: np.array([0]) for name in (*LAYOUT, *flags) if name not in ones}
    return {**ones, **others, "recompute": np.array([2]), "schedule": np.array([1])}


@pytest.mark.parametrize("batch", [720_720**2, 866_421_317_361_600])
def test_a_batch_of_very_many_divisors_gets_an_answer_whose_bound_covers_every_micro_batch(batch: int) -> None:
    problem = question(batch=batch)
    assert Space.of(costs_of(problem)[0].even).is_split
    found = plan(problem, Readings(100).search)
    assert 0 < found.bound < found.objective  # broken off amidst the micro-batches


def test_deciding_the_micro_batch_by_itself_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = question(TINY, batch=24)
    known = plan(problem, Search())
    monkeypatch.setattr(hybrid_space, "_MOST_PAIRS", 1)
    split = plan(problem, Search())
    assert (split.objective, split.bound, split.configuration) == (known.objective, known.bound, known.configuration)
    cost = costs_of(problem)[0]
    bounds = bounds_of(cost.even)
    assert len(bounds.all) == len(bounds.space.levels) - 1


# -- what is dealt out, and schedules, of as many micro-batches as there may be ----------------------------------------


def brute(replicas: list[int], start_s: list[float], each_s: list[float], total: int) -> float:
    """The least time of the slowest class over all numbers that add up; infinite where none do."""
    best = float("inf")

    def go(index: int, left: int, slowest_s: float) -> None:
        nonlocal best
        if index == len(replicas):
            best = min(best, slowest_s) if left == 0 else best
            return
        for number in range(1, left // replicas[index] + 1):
            seconds = max(slowest_s, start_s[index] + number * each_s[index])
            if seconds < best:
                go(index + 1, left - number * replicas[index], seconds)

    go(0, total, 0.0)
    return best


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0, 9), st.floats(0.1, 5)), min_size=2, max_size=3),
    st.integers(1, 90),
)
def test_what_is_dealt_out_is_as_quick_as_any_numbers_that_add_up(
    classes: list[tuple[int, float, float]], total: int
) -> None:
    replicas, start_s, each_s = (list(one) for one in zip(*classes, strict=True))
    found, least = share_microbatches(replicas, start_s, each_s, total), brute(replicas, start_s, each_s, total)
    if found is None:
        assert least == float("inf")
        return
    assert sum(d * m for d, m in zip(replicas, found, strict=True)) == total
    slowest = max(a + m * x for a, m, x in zip(start_s, found, each_s, strict=True))
    assert slowest == pytest.approx(least, rel=1e-8)


@pytest.mark.parametrize("total", [10**9, 10**12, 10**15])
def test_dealing_out_lists_no_more_for_a_huge_batch(total: int) -> None:
    with patch.object(np, "arange", wraps=np.arange) as made:
        found = share_microbatches([24, 31, 17], [0.1, 0.2, 0.3], [1.0, 1.3, 0.7], total)
    assert found is not None
    assert sum(d * m for d, m in zip([24, 31, 17], found, strict=True)) == total
    assert all(call.args[1] - call.args[0] < 1_000_000 for call in made.call_args_list)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0.1, 2), st.floats(0.1, 3)), min_size=1, max_size=5), st.integers(1, 400))
def test_rounds_that_are_leapt_over_are_never_too_short_and_hardly_too_long(
    stages: list[tuple[float, float]], number: int
) -> None:
    forward_s, backward_s = (np.array(one)[:, None] for one in zip(*stages, strict=True))
    asked = forward_s, backward_s, np.array([len(stages)]), np.array([number])
    exact = one_forward_one_backward_s(*asked)[0]
    with patch.object(pipeline_schedule, "MOST_ROUNDS", 60):
        leapt = one_forward_one_backward_s(*asked)[0]
    assert exact * (1 - 1e-12) <= leapt <= exact * 1.02
    assert path_bound_s(*asked)[0] <= leapt * (1 + 1e-12)


def test_a_schedule_of_a_trillion_micro_batches_is_not_played_one_by_one() -> None:
    asked = np.array([[1.0], [1.5]]), np.array([[2.0], [2.5]]), np.array([2])
    found = one_forward_one_backward_s(*asked, np.array([10**12]))[0]
    assert found == pytest.approx(4.0 * 10**12, rel=1e-9)


def test_cuts_of_50000_layers_are_told_to_be_many_without_counting_them() -> None:
    assert not any(has_few_cuts(50_000, stages) for stages in range(51_000))
    assert has_few_cuts(30, 2)
    assert not has_few_cuts(30, 5)


def test_a_search_that_is_broken_off_has_kept_its_best_layout() -> None:
    problem, search = question(), Search()
    with patch.object(hybrid_search, "cuts_searched", side_effect=MemoryError), pytest.raises(MemoryError):
        plan(problem, search)
    assert search.kept is not None
    assert search.kept().objective == pytest.approx(plan(problem, Search()).objective)


MOVED = {"tensor_parallel_size": 1, "context_parallel_size": 1, "num_stages": 2, "zero_stage": 1}
CUTS = {"tensor_parallel_size": 1, "context_parallel_size": 1, "num_stages": 4, "chunks_per_device": 1}


@pytest.mark.parametrize(
    ("layers", "vocabulary", "batch", "pins"),
    [(8, 64000, 16, MOVED), (28, 96000, 8, {**CUTS, "recompute": "none", "microbatch_size": 1})],
)
@pytest.mark.parametrize("has_reasons", [True, False])
def test_an_answer_is_optimal_only_once_layers_were_moved_as_far_as_that_helps(
    layers: int, vocabulary: int, batch: int, pins: dict[str, Any], has_reasons: bool
) -> None:
    """Whenever the time is over, so that who reads "optimal" of one question reads one answer."""
    sizes = {**TINY, "layers": layers, "vocabulary": vocabulary, "tied_embeddings": False}
    problem = question(sizes, machines=1, devices=4, batch=batch, fix=pins)
    count = Readings(10**9)
    count.search.has_reasons = has_reasons
    best, statuses = plan(problem, count.search), set()
    assert not isinstance(best.configuration, HybridConfiguration) or best.configuration.stages  # layers were moved
    for limit in range(1, int(count.now_s) + 3, 1 + int(count.now_s) // 10):
        search = Readings(limit).search
        search.has_reasons = has_reasons
        try:
            found = plan(problem, search)
        except NoAnswerError:
            continue
        statuses.add(found.status)
        assert found.bound <= best.objective
        assert found.status is not Status.OPTIMAL or found.configuration == best.configuration
    assert Status.FEASIBLE in statuses


def test_a_placement_whose_share_of_the_time_ended_before_its_cut_was_improved_is_not_proven() -> None:
    sizes = {**TINY, "layers": 28, "vocabulary": 96000, "tied_embeddings": False}
    problem = question(sizes, machines=1, devices=4, batch=8, fix={**CUTS, "recompute": "none", "microbatch_size": 1})
    cost = HybridCost((costs_of(problem)[0],), Placement.STAGES)
    found = Found(cost=cost, answer=searched(cost, Search()))
    late, whole = (grid_search._cuts_improved(found, one, []).answer.solution for one in (Readings(0).search, Search()))
    assert late.status is Status.FEASIBLE and late.bound <= whole.objective < late.objective
