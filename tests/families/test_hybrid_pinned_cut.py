"""A cut of the layers into stages that is pinned: kept, proven among all that keep it, and refused where it is none."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hybrid_questions import MOE, TINY, question
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.checks import check, report_text
from planner.data.fits import transformer_rates
from planner.errors import InfeasibleError, SpecError
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import costs_of
from planner.families.hybrid.grid_search import searched
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search

pytestmark = pytest.mark.usefixtures("wordless")

NINE: dict[str, Any] = {**TINY, "layers": 9}


def pinned(layers: list[int], transformer: dict[str, Any] = NINE, **fix: Any) -> Problem:
    """A question of these layers of every stage."""
    return question(transformer, families=["hybrid"], fix={"layers_per_stage": layers, **fix})


def chosen(plan: Plan) -> HybridConfiguration:
    assert isinstance(plan.configuration, HybridConfiguration)
    return plan.configuration


@pytest.mark.parametrize(
    ("layers", "fix", "shape"),
    [
        ([5, 4], {}, (2, 1)),
        ([2, 3, 2, 2], {}, (4, 1)),
        ([2, 3, 2, 2], {"num_stages": 2}, (2, 2)),
        ([2, 3, 2, 2], {"chunks_per_device": 2}, (2, 2)),
        ([3, 2, 4, 0], {"pipeline_parallel_size": 2}, (2, 2)),
        ([3, 3, 3], {"zero_stage": 3}, (3, 1)),
        ([2, 2, 3, 2], {"schedule": "zb_v"}, (2, 2)),
    ],
)
def test_a_pinned_cut_is_planned_and_checked(layers: list[int], fix: dict[str, Any], shape: tuple[int, int]) -> None:
    program = "torchtitan" if "zero_stage" in fix or "schedule" in fix else "megatron-core"
    calibration = {"program": program}
    pins = {"layers_per_stage": layers, **fix}
    problem = question(NINE, rates=transformer_rates(), families=["hybrid"], calibration=calibration, fix=pins)
    plan = planner.plan(problem)
    found = chosen(plan)
    assert found.chunk_layers(9) == tuple(layers)
    assert (found.pipeline, found.interleave) == shape
    assert plan.status == "optimal"
    report = check(problem, plan)
    assert report.is_ok, report_text(report)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([NINE, {**MOE, "layers": 6, "experts": {**MOE["experts"], "every": 2}}]),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
    st.data(),
)
def test_no_layout_of_a_cut_is_better_than_the_plan(
    transformer: dict[str, Any], stages: int, chunks: int, data: Any
) -> None:
    total, count = transformer["layers"], (1 + stages) * chunks
    ends = sorted(
        data.draw(st.sets(st.integers(1, total - 1), min_size=min(count, total) - 1, max_size=min(count, total) - 1))
    )
    layers = np.diff([0, *ends, total]).tolist()
    if len(layers) != count:
        return
    problem = pinned(layers, transformer, num_stages=1 + stages)
    (cost,) = costs_of(problem)
    quick, whole = searched(cost.even, Search()), searched(cost.even, Search(), uses_bounds=False)
    assert quick.solution.objective == pytest.approx(whole.solution.objective, rel=1e-12)
    assert quick.solution.bound <= quick.solution.objective * (1 + 1e-12)


def test_the_best_of_all_cuts_is_no_slower_than_the_plan_that_searches_them() -> None:
    free = planner.plan(question(NINE, families=["hybrid"], fix={"num_stages": 3, "chunks_per_device": 1}))
    cuts = [np.diff([0, *ends, 9]).tolist() for ends in combinations(range(1, 9), 2)]
    best = min(planner.plan(pinned(one)).objective for one in cuts)
    assert best <= free.objective * (1 + 1e-9)
    again = planner.plan(pinned(list(chosen(free).chunk_layers(9))))
    assert again.configuration == free.configuration
    assert again.objective == pytest.approx(free.objective, rel=1e-12)


def test_a_cut_is_kept_on_machines_of_two_kinds() -> None:
    machine = {"count": 1, "devices": 2, "inside": "nvlink-3", "network": "200 Gbit/s", "latency": "5 us"}
    machines = [
        {**machine, "name": "old", "device": "a100-sxm4-80gb"},
        {**machine, "name": "new", "device": "h100-sxm"},
    ]
    asked = {
        "dnn": {"transformer": NINE, "global_batch": 8, "dtype": "bf16", "optimizer": "adam"},
        "cluster": {"machines": machines},
        "constraints": {"machines": 2},
        "families": ["hybrid"],
        "fix": {"layers_per_stage": [4, 5], "num_devices": 4},
    }
    problem = planner.load(asked)
    plan = planner.plan(problem)
    assert [one.layers for one in chosen(plan).stages] == [4, 5]
    assert check(problem, plan).is_ok


@pytest.mark.parametrize(
    ("layers", "fix", "why"),
    [
        ([4, 4], {}, r"fix\.layers_per_stage: they add up to 8 layers, and the network has 9"),
        ([4, 5], {"num_stages": 3}, r"fix\.layers_per_stage: there are 3 stages, and 2 numbers are listed. List 3"),
        ([4, 5], {"num_stages": 2, "chunks_per_device": 2}, "2 stages of 2 chunks, and 2 numbers are listed. List 4"),
        ([9, 0], {}, "stage 2 of 2 holds no layer"),
        ([3, 0, 3, 3], {"num_stages": 2}, "chunk 2 of 4 holds no layer"),
        ([], {}, r"\[\] is no list of layers"),
        ("even", {}, "'even' is no list of layers"),
        ([4.5, 4.5], {}, "4.5 is not a whole number"),
        ([-1, 10], {}, "-1 is too small"),
        ([4, 5], {"schedule": "interleaved"}, "no stage has chunks, of 2, and fix.schedule is interleaved"),
        ([2, 2, 2, 3], {"num_stages": 2, "schedule": "gpipe"}, "2 stages of 2 chunks, and fix.schedule is gpipe"),
        ([4, 5], {"schedule": "dualpipe"}, "DualPipe runs the network both ways"),
    ],
)
def test_a_cut_that_is_none_is_refused_with_its_place(layers: Any, fix: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        pinned(layers, **fix)


def test_a_cut_that_leaves_multi_token_prediction_on_the_first_device_is_refused() -> None:
    network = {**TINY, "layers": 8, "mtp_layers": 1}
    with pytest.raises(SpecError, match="the last chunk holds 0 layers, and the last 1 of multi-token prediction run"):
        pinned([3, 3, 3, 0], network, num_stages=2)
    assert pinned([3, 3, 2, 1], network, num_stages=2).fixed["layers_per_stage"] == [3, 3, 2, 1]


def test_an_open_schedule_of_a_cut_leaves_multi_token_prediction_off_the_first_device() -> None:
    """Where stages turn at the last device, the chunk before the head's is not on the last one."""
    network = {**TINY, "layers": 8, "mtp_layers": 1}
    calibration = {"program": "torchtitan"}  # has schedules that turn
    for last_ones, schedule in (([3, 0], "1f1b"), ([2, 1], "zb_v")):
        pins = {"layers_per_stage": [1, 1, 1, 1, 1, 1, *last_ones], "num_stages": 4}
        problem = question(
            network, rates=transformer_rates(), batch=12, families=["hybrid"], calibration=calibration, fix=pins
        )
        assert chosen(planner.plan(problem)).schedule == schedule


def test_what_would_have_to_give_beside_a_cut_that_no_layout_has_is_found() -> None:
    """Five stages that are tried in its place are no two chunks of each device."""
    problem = pinned([5, 5], {**TINY, "layers": 10}, schedule="zb_v")  # on one device, and a pipeline has two or more
    with pytest.raises(InfeasibleError, match=r"fix\.schedule: zb_v -> gpipe or 1f1b"):
        planner.plan(problem)
