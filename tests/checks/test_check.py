"""The checker: it passes what plans say of themselves, and finds every number that was tampered with."""

import json
from typing import Any

import pytest
from checked import BLOCKS, checked, document_of, given_plan, question

import planner
from planner.answer.schemas import MODELS
from planner.checks import check as check_plan
from planner.checks import report_text
from planner.planning import plan_of_document
from tests.referee.second_physics import check


@pytest.mark.parametrize("family", sorted(BLOCKS))
def test_what_predict_says_of_a_given_configuration_passes(family: str) -> None:
    report = checked(json.loads(document_of(family)))
    assert report.is_ok, report_text(report)
    assert MODELS["check"].model_validate(report.to_dict())
    names = {one.name for one in report.findings}
    assert {"objective", "bound", "gap", "status", "breakdown_s sums up", "batch", "second opinion"} <= names


def test_a_configuration_that_means_nothing_is_told_in_our_words() -> None:
    plan = {**json.loads(document_of("all_reduce")), "configuration": {}}
    (wrong,) = [one for one in checked(plan).findings if not one.is_ok and one.name == "configuration"]
    assert wrong.text == "it means nothing here: all_reduce: give num_devices, or groups where devices differ."


LINE = [
    {"first": "data", "last": "data"},
    {"first": "one", "last": "one"},
    {"first": "two", "last": "two"},
    {"first": "three", "last": "three"},
]


@pytest.mark.parametrize(
    ("family", "block"),
    [
        ("all_reduce", {"num_devices": 6, "gradient_accumulation_steps": 2, "fusion_groups": "none"}),
        ("all_reduce", {"num_devices": 8, "compression": {"removed": 0.5, "time": "1 ms"}, "fusion_groups": "one"}),
        ("all_reduce", {"num_devices": 1}),
        ("parameter_server", {"num_parameter_servers": 1, "compression": {"removed": 0.25, "time": "1 ms"}}),
        ("parameter_server", {"num_parameter_servers": 3, "co_located": True, "placement": "sliced"}),
        ("parameter_server", {"num_parameter_servers": 2, "placement": "largest_first"}),
        ("pipeline", {"stages": [*LINE[:3], {**LINE[3], "replicas": 3}], "num_microbatches": 8, "schedule": "gpipe"}),
        ("pipeline", {"stages": LINE, "num_microbatches": 7}),
        ("pipeline", {"stages": LINE, "num_microbatches": 6, "schedule": "interleaved", "chunks_per_device": 2}),
        ("pipeline", {"stages": [{"first": "data", "last": "three", "replicas": 8}], "num_microbatches": 1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("strategy", ["caffe_mpi", "mxnet", "cntk", "naive"])
def test_other_configurations_pass_too_whatever_the_framework_overlaps(
    family: str, block: dict[str, Any], strategy: str
) -> None:
    asked = question(configuration={family: block})
    asked["calibration"] = {**asked["calibration"], "strategy": strategy, "wait": "paper"}
    problem = planner.load(asked)
    report = check(problem, given_plan(problem))
    assert report.is_ok, report_text(report)
    assert "second opinion" in {one.name for one in report.findings}


def test_unlike_devices_pass_with_unequal_shares() -> None:
    fast, slow = {"name": "fast", "fp32": "3 TFLOP/s"}, {"name": "slow", "fp32": "1 TFLOP/s"}
    link = {"devices": 2, "inside": "pcie-3-x16", "network": "10 Gbit/s", "latency": "20 us"}
    machines = [{"name": name, "count": 2, "device": device, **link} for name, device in (("a", fast), ("b", slow))]
    groups = {
        "a": {"machines": 2, "batch_per_device": 6},
        "b": {"machines": 1, "batch_per_device": 4, "gradient_accumulation_steps": 2},
    }
    asked = question(cluster={"machines": machines}, configuration={"all_reduce": {"groups": groups}})
    problem = planner.load(asked)
    report = check(problem, given_plan(problem))
    assert report.is_ok, report_text(report)
    assert "second opinion" in {one.name for one in report.findings}


@pytest.mark.parametrize("family", sorted(BLOCKS))
def test_a_plan_that_calls_machines_by_their_number_passes(family: str) -> None:
    document = json.loads(document_of(family))
    as_printed = document["configuration"]
    document["configuration"] = json.loads(json.dumps(as_printed).replace('"toy"', '"machines-0"'))
    report = check_plan(planner.load(document["problem"]), document)
    assert report.is_ok, report_text(report)
    if family in ("parameter_server", "pipeline"):
        assert document["configuration"] != as_printed
    _, plan = plan_of_document(document)
    assert plan.configuration.to_document() == as_printed
