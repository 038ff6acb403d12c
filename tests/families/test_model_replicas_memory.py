"""The family model_replicas where a worker's memory is tight, against every configuration tried, and what it says."""

import json
import os
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicas import TriedPlans, cost_of, every_chain, every_configuration, question, questions, tight_question

import planner
from planner.answer.documents import dump
from planner.checks import report_text
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.model_replicas.configuration import configuration_of, threads_of
from planner.families.model_replicas.cost import explain, memory_of, model_of, predict
from planner.families.model_replicas.layers import Fitting, Layers
from planner.families.model_replicas.search import plan, search_space
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from tests.referee.second_physics import check
from tests.referee.second_physics.replica_memory import fullest_bytes

INSTANCES = int(os.environ.get("PLANNER_TIGHT", "100"))  # 500 were tried for docs/reliability.md


def limited(problem: Problem, limit_bytes: float | None) -> Problem:
    """The question with so much memory in each device."""
    return replace(problem, limits=replace(problem.limits, memory_per_device_bytes=limit_bytes))


def answer(problem: Problem) -> Plan | InfeasibleError | NoAnswerError:
    try:
        return plan(problem, Search())
    except (InfeasibleError, NoAnswerError) as error:
        return error


# -- against every configuration -------------------------------------------------------------------------------------


# Questions drawn as a property's are: four tenths of them here, all with `make test-heavy`.
@pytest.mark.parametrize("part", [pytest.param(one, marks=[pytest.mark.long] * (one >= 4)) for one in range(10)])
def test_no_plan_that_fits_tight_memory_is_missed_or_beats_what_is_said_to_be_proven(part: int) -> None:
    for seed in range(part, INSTANCES, 10):
        problem, lot = tight_question(seed), random.Random(seed)
        tried = TriedPlans(problem)
        if not tried.sizes:
            continue
        for size in lot.sample(tried.sizes, min(3, len(tried.sizes))):
            limit_bytes = size + lot.choice([-1, 0, 0, 1])  # just below, at, just above what some plan needs
            truth, found = tried.least(limit_bytes), answer(limited(problem, limit_bytes))
            said = (seed, limit_bytes, truth)
            if truth == float("inf"):
                assert isinstance(found, InfeasibleError), said
                continue
            assert isinstance(found, Plan), (said, found)
            assert found.prediction.memory_bytes["total"] <= limit_bytes, said
            assert found.status is Status.OPTIMAL, (said, found.objective, found.bound)
            assert found.objective == pytest.approx(truth, rel=1e-9), said
            assert found.bound <= found.objective, said
            for other in found.alternatives:
                lost = predict(problem, other.configuration)  # type: ignore[arg-type]
                assert lost.memory_bytes["total"] <= limit_bytes, said
                assert other.objective == pytest.approx(lost.value_of(problem.goal)), said


def test_fewer_threads_are_not_dropped_where_only_they_fit() -> None:
    shape = {"count": 4, "device": {"name": "d", "kind": "cpu", "fp32": "1 TFLOP/s"}, "network": "1 kB/s"}
    layers = [
        {"name": "in", "kind": "input", "shape": [16]},
        {"name": "f0", "kind": "fully_connected", "inputs": ["in"], "shape": [1000], "multiply_adds": 16000,
         "tensors": [{"name": "w", "elements": 16000}]},
    ]  # fmt: skip
    asked = question(machine=shape | {"latency": "0 s"}, calibration={"bandwidth_efficiency": 1})
    asked["dnn"] = {"layers": layers, "dataset_samples": 1000, "global_batch": 3}
    problem = planner.load(asked)
    for limit_bytes, seconds, workers in ((66_065, 64 / 3 * 1000, 2), (44_153, 128 / 3 * 1000, 3)):
        found = plan(limited(problem, limit_bytes), Search())
        assert found.status is Status.OPTIMAL and found.objective == pytest.approx(seconds, rel=1e-6)
        chosen = found.configuration.configuration  # type: ignore[attr-defined]
        assert chosen.num_workers == workers
        assert [(one.num_partitions, one.num_threads) for one in chosen.layers] == [(workers, 1)]
    with pytest.raises(InfeasibleError, match="Raise memory_per_device to"):
        plan(limited(problem, 44_151), Search())


@given(questions(), st.integers(1, 3), st.sampled_from([0.0, 1e-7]), st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_a_price_of_memory_bounds_whatever_fits(problem: Problem, num_workers: int, price: float, share: float) -> None:
    model, threads = model_of(problem), threads_of(problem)
    memory = memory_of(problem, model)
    rows = [
        (memory.fullest(layers, num_workers).total_bytes(1), cost_of(model, layers, price))
        for layers in every_chain(model, num_workers, threads)
    ]
    least, most = min(rows)[0], max(rows)[0]
    limit_bytes = least + share * (most - least)
    truth = min(cost for size, cost in rows if size <= limit_bytes)
    fitting = Fitting(limited(problem, limit_bytes), Layers(model, threads, num_workers), threads)
    assert fitting.may_fit(num_workers)
    for unit in (1e-10, 1e-8, 1e-6):
        for _, bound in fitting._priced(num_workers, price, unit, lambda: False):
            assert bound <= truth * (1 + 1e-9)


@given(questions())
@settings(deadline=None, max_examples=25)
def test_more_memory_never_hurts(problem: Problem) -> None:
    free = answer(limited(problem, None))
    if not isinstance(free, Plan):
        return
    whole = free.prediction.memory_bytes["total"]
    objectives = []
    for share in (0.2, 0.35, 0.5, 0.7, 0.85, 1.0):
        found = answer(limited(problem, share * whole))
        objectives.append(found.objective if isinstance(found, Plan) else float("inf"))
    assert all(later <= one * (1 + 1e-9) for one, later in pairwise(objectives))
    assert objectives[-1] == pytest.approx(free.objective)


@given(questions(), st.sampled_from(["fp32", "fp16"]))
@settings(deadline=None, max_examples=25)
def test_the_checker_counts_the_same_bytes_in_plain_loops(problem: Problem, dtype: str) -> None:
    problem = replace(problem, training=replace(problem.training, dtype=dtype))
    for index, choice in enumerate(every_configuration(problem)):
        if index % 7 == 0:
            block = choice.to_document()
            assert predict(problem, choice).memory_bytes["total"] == fullest_bytes(problem, block)
        if index > 300:
            break


@pytest.mark.parametrize("dnn", ["adam-imagenet22k", "vgg16"])
def test_the_checker_agrees_on_real_networks(dnn: str) -> None:
    problem = planner.load(question(machine={"count": 6}, dnn={"zoo": dnn}, calibration={"memory_reserve": "100 MB"}))
    workers = [[0, 1], [2, 3]]
    odd = {"partitions": 2, "replicas": 2, "threads": 2, "workers": workers}
    number = len(model_of(problem).stages)
    layers = [odd if index % 3 == 1 else {"partitions": 3, "threads": 1} for index in range(number)]
    block = {
        "num_parameter_servers": 1, "num_replicas": 1, "num_workers_per_replica": 4, "layers": layers, "samples_per_read": 120,
    }  # fmt: skip
    choice = configuration_of(problem, block)
    assert predict(problem, choice).memory_bytes["total"] == fullest_bytes(problem, choice.to_document())


# -- what is said ----------------------------------------------------------------------------------------------------


def tight(share: float, **changes: Any) -> Problem:
    """ImageNet-22K on six workers at most, each with a share of what the free plan takes."""
    problem = planner.load(question(machine={"count": 7}, dnn={"zoo": "adam-imagenet22k"}, **changes))
    free = plan(problem, Search()).prediction.memory_bytes["total"]
    return limited(problem, share * free)


def test_terms_sum_to_the_total_and_a_plan_that_fits_passes_the_checker() -> None:
    problem = tight(0.75)
    found = plan(problem, Search())
    memory = found.prediction.memory_bytes
    terms = ("weights", "gradients", "optimizer", "activations", "reserve")
    assert memory["total"] == pytest.approx(sum(memory[name] for name in terms)) and memory["optimizer"] == 0
    assert memory["total"] <= memory["limit"] == problem.limits.memory_per_device_bytes
    assert found.bound <= found.objective
    report = check(problem, json.loads(dump(found.to_dict())))
    assert not [one for one in report.findings if not one.is_ok and "memory" in one.name], report_text(report)
    assert any(one.name == "memory w" for one in report.findings)


def test_the_checker_refuses_what_does_not_fit() -> None:
    problem = planner.load(question(machine={"count": 7}, dnn={"zoo": "adam-imagenet22k"}))
    found = plan(problem, Search())
    size = found.prediction.memory_bytes["total"]
    report = check(limited(problem, size * 0.99), json.loads(dump(found.to_dict())))
    assert "memory w" in [one.name for one in report.findings if not one.is_ok]
    lines = explain(problem, found.configuration, predict(limited(problem, size * 0.99), found.configuration))  # type: ignore[arg-type]
    assert any("it does not fit" in line for line in lines)


def test_where_the_whole_network_fits_nothing_changes() -> None:
    problem = planner.load(question(machine={"count": 7}))
    free, same = (plan(limited(problem, limit), Search()) for limit in (None, 2.0**30))
    assert free.configuration == same.configuration and same.status is Status.OPTIMAL
    layers = Layers(model_of(problem), threads_of(problem), 6)
    assert Fitting(limited(problem, 2.0**30), layers, threads_of(problem)).is_ample
    assert not Fitting(limited(problem, 2.0**20), layers, threads_of(problem)).is_ample


def test_no_memory_is_proven_infeasible_and_what_is_said_to_be_enough_is_enough() -> None:
    with pytest.raises(
        InfeasibleError, match=r"holds at least .* and may hold .* Raise memory_per_device to"
    ) as caught:
        plan(tight(0.01), Search())
    said = str(caught.value).split("Raise memory_per_device to ")[1].split(",")[0]
    problem = planner.load(
        question(machine={"count": 7}, dnn={"zoo": "adam-imagenet22k"}, constraints={"memory_per_device": said})
    )
    assert plan(problem, Search()).objective > 0


def test_a_limit_that_strikes_before_anything_fits_is_no_proof() -> None:
    problem = tight(0.75)
    with pytest.raises(NoAnswerError, match="time limit"):
        plan(problem, Search(time_limit_s=0))


def test_the_space_of_uniform_layers_leaves_out_what_does_not_fit() -> None:
    free = limited(tight(1.0), None)
    most = max(predict(free, choice).memory_bytes["total"] for choice, _ in search_space(free))
    some = search_space(limited(free, most * 0.5))
    assert 0 < len(some) < len(search_space(free))
    assert all(predict(free, choice).memory_bytes["total"] <= most * 0.5 for choice, _ in some)


def test_the_conflict_names_the_memory_and_a_value_that_does() -> None:
    asked = question(machine={"count": 2}, constraints={"memory_per_device": "1 MiB"})
    with pytest.raises(InfeasibleError, match=r"constraints.memory_per_device: 1 MiB -> ") as caught:
        planner.plan(planner.load(asked))
    value = str(caught.value).split("1 MiB -> ")[1].splitlines()[0].split(" (")[0]
    asked["constraints"] = {"memory_per_device": value}
    found = planner.plan(planner.load(asked))
    assert found.prediction.memory_bytes["total"] <= found.prediction.memory_bytes["limit"]
