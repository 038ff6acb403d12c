"""Given configurations of data parallelism on unlike machines, and questions without an answer."""

import subprocess
import sys
from typing import Any

import pytest
from mixed_all_reduce import MIXED, planned

import planner
from planner.api import configuration_of
from planner.errors import InfeasibleError, SpecError
from planner.families.all_reduce import family as all_reduce
from planner.families.all_reduce.configuration import AllReduceConfiguration

GROUPS = {"fast": {"machines": 2, "batch_per_device": 20}, "slow": {"machines": 2, "batch_per_device": 12}}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"groups": {"gone": {"machines": 1, "batch_per_device": 256}}}, "no machines 'gone'"),
        ({"groups": {**GROUPS, "slow": {"machines": 3, "batch_per_device": 12}}}, "2 machines 'slow', not 3"),
        (
            {"groups": {**GROUPS, "slow": {"machines": 2, "batch_per_device": 11}}},
            "batches of 234 to 248 samples, not 256",
        ),
        ({"groups": {"fast": {"machines": 1, "devices_per_machine": 9, "batch_per_device": 1}}}, "4 devices, not 9"),
        ({"groups": GROUPS, "num_devices": 8}, "16 in all"),
        ({"num_devices": 16}, "several types of device take part"),
        ({"groups": GROUPS, "devices_per_machine": 4}, "leave out machines"),
        ({"global_batch_size": 256}, "give num_devices, or groups"),
    ],
)
def test_an_impossible_mixed_configuration_is_refused_with_the_numbers(block: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planner.predict(planner.load({**MIXED, "configuration": {"all_reduce": block}}))


def test_a_given_mixed_configuration_is_fused_and_explained() -> None:
    block = {"groups": GROUPS, "fusion_groups": {"buffer": "25 MiB"}}
    problem = planner.load({**MIXED, "configuration": {"all_reduce": block}})
    family, configuration = configuration_of(problem)
    prediction = planner.predict(problem)
    assert isinstance(configuration, AllReduceConfiguration)
    lines = all_reduce.explain(problem, configuration, prediction)
    assert family == "all_reduce"
    assert prediction.details["straggler"] == "fast"
    assert any("fast computes longest, idle meanwhile: slow" in line for line in lines)


def test_a_configuration_on_one_type_of_a_mixed_cluster_needs_its_machines_named() -> None:
    block = {"machines": ["fast"], "num_devices": 8}
    problem = planner.load({**MIXED, "configuration": {"all_reduce": block}})
    pinned = planner.load({**MIXED, "fix": {"device": "v100"}, "configuration": {"all_reduce": {"num_devices": 8}}})
    assert planner.predict(problem).iteration_time_s == pytest.approx(planner.predict(pinned).iteration_time_s)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constraints": {"memory_per_device": "100 MB"}}, "even one sample at a time needs"),
        ({"fix": {"num_machines": 3, "num_devices": 13}}, "fix.num_devices|No plan fits"),
        ({"dnn": {"global_batch": 3}, "constraints": {"devices": 4}}, "cannot be split over 4 devices"),
    ],
)
def test_a_mixed_question_without_answer_says_what_would_have_to_give(changes: dict[str, Any], message: str) -> None:
    asked = {**MIXED, **changes, "dnn": {**MIXED["dnn"], **changes.get("dnn", {})}}
    with pytest.raises(InfeasibleError, match=message):
        planned(planner.load(asked))


def test_predicting_listed_groups_needs_no_solver() -> None:
    found = planner.plan(planner.load(MIXED))
    question = {**found.problem, "configuration": {"all_reduce": found.configuration.to_document()}}
    code = (
        "import sys, json; from planner.question.build import load; from planner.families.all_reduce import family as all_reduce; "
        "problem = load(json.loads(sys.argv[1])); block = problem.configuration[1]; "
        "given = all_reduce.configuration_of(problem, block); "
        "prediction = all_reduce.predict(problem, given); all_reduce.explain(problem, given, prediction); "
        "print(prediction.iteration_time_s); "
        "print(sorted(name for name in sys.modules if name.startswith('planner.solvers')))"
    )
    import json

    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(question)], capture_output=True, text=True, check=True
    )
    seconds, modules = done.stdout.splitlines()
    assert float(seconds) == pytest.approx(found.prediction.iteration_time_s)
    assert modules == "[]"
