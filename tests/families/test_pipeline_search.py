"""The best pipeline against every pipeline of its domain, predicted one by one; limits, pins, reasons, measured networks."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import MACHINE, every_shape, is_allowed, layer, question, small_questions

import planner
from planner.errors import InfeasibleError, NoAnswerError
from planner.families import pipeline, pipeline_rows
from planner.families.pipeline_cost import PipelineConfiguration, PipelineCost
from planner.families.pipeline_domain import Domain
from planner.families.pipeline_search import plan
from planner.families.pipeline_sources import PlainSource
from planner.plan import Plan
from planner.problem import Limits, Problem
from planner.search import Search
from planner.solution import Status
from planner.solvers.pipeline import Schedule, bound_s


def line_of(found: Plan) -> PipelineConfiguration:
    assert isinstance(found.configuration, PipelineConfiguration)
    return found.configuration


def best(asked: dict[str, Any], **limits: Any) -> Plan:
    return plan(planner.load(asked), Search(**limits))


def every_value(problem: Problem) -> list[float]:
    """The objective of every pipeline of the domain that is allowed and fits."""
    cost = PipelineCost(problem)
    return [
        pipeline.predict(problem, cost.configuration(shape)).value_of(problem.goal)
        for shape in every_shape(problem, cost)
        if is_allowed(problem, cost, shape)
    ]


@settings(max_examples=80)
@given(small_questions())
def test_choices_that_stand_for_several_numbers_of_devices_give_a_true_bound(asked: dict[str, Any]) -> None:
    problem = planner.load(asked)
    values = every_value(problem)
    with patch.object(pipeline_rows, "MOST_REPLICAS", 0):
        if not values:
            with pytest.raises((InfeasibleError, NoAnswerError)):
                plan(problem, Search())
            return
        try:
            found = plan(problem, Search())
        except NoAnswerError:  # a limit on devices that only a number in between meets
            assert problem.fixed or problem.limits != Limits()
            return
    assert found.bound <= min(values) * (1 + 1e-9)
    assert min(values) <= found.objective * (1 + 1e-9)


@settings(max_examples=150)
@given(small_questions())
def test_the_plan_is_as_good_as_the_best_of_every_pipeline_predicted(asked: dict[str, Any]) -> None:
    problem = planner.load(asked)
    values = every_value(problem)
    if not values:
        with pytest.raises(InfeasibleError, match="No plan fits"):
            plan(problem, Search())
        return
    found = plan(problem, Search())
    assert found.status is Status.OPTIMAL
    assert found.objective == found.bound == pytest.approx(min(values))
    assert found.prediction.memory_bytes["total"] <= found.prediction.memory_bytes["limit"]


@settings(max_examples=80)
@given(small_questions(), st.booleans(), st.integers(0, 9))
def test_the_bound_of_a_candidate_is_that_of_its_true_times(asked: dict[str, Any], is_gpipe: bool, index: int) -> None:
    domain = Domain(planner.load({**asked, "fix": {}, "constraints": {}}))
    number = domain.numbers_of_microbatches[index % len(domain.numbers_of_microbatches)]
    source = PlainSource(domain, Schedule(num_microbatches=number, is_gpipe=is_gpipe), Search())
    for _ in range(6):
        shape = source.next(float("inf"), float("inf"))
        if shape is None:
            continue
        times = domain.cost.times(shape)
        flush_s = [one + other for one, other in zip(times.sync_s, times.update_s, strict=True)]
        true_s = bound_s(
            times.forward_s, times.backward_s, times.transfer_s, times.transfer_s, flush_s, source.schedule
        )
        least_s = domain.cost.input(shape).bound_s if domain.least_stall_s == 0 else 0.0
        assert source.bound_of_last >= max(true_s + domain.least_stall_s, least_s) * (1 - 1e-9)
        assert source.bound_of_last <= domain.cost.iteration_time_s(shape) * (1 + 1e-9)


def test_the_same_question_gives_the_same_plan() -> None:
    first, second = (best(question()) for _ in range(2))
    assert first == second


def test_a_large_layer_without_work_gets_a_stage_of_its_own_and_the_plan_says_what_that_saves() -> None:
    layers = [layer(0, 20), layer(1, 20), layer(2, 1, "400 MB", "1 kB")]
    layers[1]["output"] = "40 kB"
    machines = [{**MACHINE, "count": 4, "devices": 1}]
    asked = question(dnn={"layers": layers, "global_batch": 12}, cluster={"machines": machines})
    found = best(asked, num_alternatives=3)
    assert [one.replicas for one in line_of(found).stages] == [3, 1]
    assert [one.first for one in line_of(found).stages] == ["layer0", "layer2"]
    assert any("data parallelism without overlap" in line and "longer" in line for line in found.explanation)
    assert any(one.name == "data parallel, one stage" for one in found.alternatives)


def test_where_gradients_cost_nothing_pipelining_does_not_pay() -> None:
    fast = {
        **MACHINE,
        "network": "4000 Gbit/s",
        "latency": "0 us",
        "inside": {"bandwidth": "4000 GB/s", "latency": "0 us"},
    }
    layers = [layer(index, 5, "4 kB", "400 MB") for index in range(3)]
    found = best(question(dnn={"layers": layers}, cluster={"machines": [fast]}))
    assert line_of(found).num_stages == 1
    assert any("pipelining does not pay" in line for line in found.explanation)


def test_the_faster_devices_of_a_mixed_cluster_get_the_longer_stage() -> None:
    machines = [
        {
            **MACHINE,
            "name": name,
            "count": 1,
            "devices": 1,
            "device": {"name": name, "fp32": f"{rate} TFLOP/s", "memory": "16 GB"},
        }
        for name, rate in (("slow", 1), ("fast", 3))
    ]
    dnn = {"layers": [layer(index, 5, "200 MB", "4 kB") for index in range(4)], "profile_device": "slow"}
    found = best(question(dnn=dnn, cluster={"machines": machines}, fix={"num_stages": 2}))
    assert {one.machines: int(one.last[-1]) - int(one.first[-1]) + 1 for one in line_of(found).stages} == {
        "slow": 1,
        "fast": 3,
    }


def test_a_time_limit_gives_the_best_so_far_with_a_bound_below_it() -> None:
    problem = planner.load(question(12))
    truth = plan(problem, Search())

    class Soon(Search):
        """A search that is over after so many questions."""

        asked = 0

        @property
        def is_over(self) -> bool:
            Soon.asked += 1
            return Soon.asked > 60

    found = plan(problem, Soon())
    assert found.bound <= truth.objective <= found.objective
    with pytest.raises(NoAnswerError, match="time limit"):
        plan(problem, Search(time_limit_s=0.0))


def test_the_search_ends_with_the_first_answer_that_is_good_enough() -> None:
    problem = planner.load(question(6))
    any_answer, truth = plan(problem, Search(good_enough=float("inf"))), plan(problem, Search())
    assert any_answer.provenance.num_solved == 1
    assert any_answer.bound <= truth.objective <= any_answer.objective


def test_a_network_that_is_too_large_for_every_split_says_how_much_memory_would_do() -> None:
    asked = question(3, dnn={"layers": [layer(0), layer(1, 2, "400 MB"), layer(2)], "global_batch": 2})
    with pytest.raises(InfeasibleError, match="for any split, some stage needs at least") as caught:
        best({**asked, "constraints": {"memory_per_device": "500 MB"}})
    enough = str(caught.value).split(" to ")[1].split(" ")
    assert best({**asked, "constraints": {"memory_per_device": f"{enough[0]} {enough[1].rstrip('.')}"}}).objective > 0
    with pytest.raises(InfeasibleError):
        best({**asked, "constraints": {"memory_per_device": f"{float(enough[0]) * 0.997} {enough[1].rstrip('.')}"}})


def test_a_pinned_number_of_stages_that_does_not_fit_is_told_the_next_that_does() -> None:
    asked = question(4, dnn={"layers": [layer(index, 2, "400 MB", "4 kB") for index in range(4)], "global_batch": 4})
    asked["constraints"] = {"memory_per_device": "2500 MB"}
    with pytest.raises(InfeasibleError, match=r"fix\.num_stages from 1 to 2"):
        best({**asked, "fix": {"num_stages": 1}})
    assert line_of(best({**asked, "fix": {"num_stages": 2}})).num_stages == 2
    with pytest.raises(InfeasibleError, match="1 to 4 stages"):
        best({**asked, "fix": {"num_stages": 5}})


def test_a_batch_that_may_vary_is_searched_at_its_maximum_and_bounded_below() -> None:
    asked = question(3)
    del asked["dnn"]["global_batch"]
    found = best({**asked, "dnn": {**asked["dnn"], "max_global_batch": 8}})
    fixed = best(question(3))
    assert found.objective == pytest.approx(fixed.objective)
    assert found.bound <= found.objective


def test_a_large_group_is_searched_in_units_with_a_true_bound() -> None:
    machines = [{**MACHINE, "count": 200, "devices": 1}]
    asked = question(5, cluster={"machines": machines}, dnn={"global_batch": 400})
    found = best({**asked, "fix": {"num_microbatches": 2}})
    assert found.bound <= found.objective
    assert found.gap < 0.5
    fewer = best({**asked, "fix": {"num_microbatches": 2, "num_devices": 60}})
    assert found.bound <= fewer.objective


@pytest.mark.measured
def test_vgg16_on_four_machines_becomes_fifteen_replicas_and_one_device_for_its_fully_connected_layers(
    data_folder: Path,
) -> None:
    """PipeDream (D. Narayanan et al., SOSP 2019), table 1: 15-1 on 16 V100 of cluster A."""
    asked = {
        "dnn": {"profile": str(data_folder / "traces/pipedream/vgg16.graph.txt"), "profile_batch": 64, "global_batch": 1024, "dataset_samples": 1281167},
        "cluster": {"machines": [{**MACHINE, "count": 4, "devices": 4, "inside": "pcie-3-x16"}]},
        "families": ["pipeline"],
        "fix": {"schedule": "1f1b", "num_microbatches": 8},
    }  # fmt: skip
    found = best(asked)
    assert found.status is Status.OPTIMAL
    assert [one.replicas for one in line_of(found).stages] == [15, 1]
    assert any("data parallelism without overlap" in line and "longer" in line for line in found.explanation)
