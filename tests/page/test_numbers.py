"""The numbers on a plan's page are those of the plan's document."""

import json
import re
from typing import Any

import pytest
from answers import plan_page, plan_text
from pages import Read, read

import planner
from planner.answer.documents import dump
from planner.networks import asked, network_of
from planner.words import objective_words as objective
from planner.words import size_words as size
from planner.words import term_words as term
from planner.words import time_words as time

GROUP = {"count": 4, "devices": 1, "device": "rtx-2080-ti", "network": "10 Gbit/s", "latency": "20 us"}
SMALL = {"zoo": "alexnet", "global_batch": 128, "dataset_samples": 100_000}
LARGE = {"zoo": "megatron-1.7b", "global_batch": 32}
A100 = {"count": 2, "devices": 4, "device": "a100-sxm4-80gb", "inside": "nvlink-3"}
QUESTIONS: dict[str, dict[str, Any]] = {
    "all_reduce": {"dnn": SMALL, "cluster": {"machines": [{**GROUP, "devices": 2}]}},
    "parameter_server": {"dnn": SMALL, "cluster": {"machines": [GROUP]}},
    "model_replicas": {"dnn": SMALL, "cluster": {"machines": [GROUP]}},
    "pipeline": {"dnn": SMALL, "cluster": {"machines": [{**GROUP, "count": 2, "devices": 2}]}},
    "hybrid": {"dnn": LARGE, "cluster": {"machines": [{**GROUP, **A100}]}, "fix": {"pipeline_parallel_size": 2}},
}


@pytest.fixture(scope="module", params=list(QUESTIONS))
def told(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Read]:
    """A plan as ``planner plan --json`` prints it, and its page."""
    problem = planner.load({**QUESTIONS[request.param], "families": [request.param]})
    plan = planner.plan(problem, time_limit_s=10)
    page = plan_page(plan, network_of(asked(problem), plan.substitutions))
    return json.loads(dump(plan.to_dict())), read(page)


def test_objective_bound_and_gap_are_those_of_the_document(told: tuple[dict[str, Any], Read]) -> None:
    plan, page = told
    facts = dict(page.tables["Certificate"][1:])
    stated, unit = plan["objective"], "s"
    assert facts["status"] == plan["status"]
    assert facts["objective"] == f"{objective(stated['value'], unit)} ({stated['value']:.6g} s)"
    assert facts["bound: no plan has less"] == f"{objective(stated['bound'], unit)} ({stated['bound']:.6g} s)"
    assert facts["gap"] == f"{stated['gap']:.2%}"
    assert f"{plan['provenance']['input_digest']}, {plan['provenance']['seed']}" in page.text


def test_the_terms_of_an_iteration_are_those_of_the_document(told: tuple[dict[str, Any], Read]) -> None:
    plan, page = told
    found = plan["prediction"]
    total_s = found["iteration_time_s"]
    rows = [[term(name), time(value), f"{value / total_s:.1%}"] for name, value in found["breakdown_s"].items() if value > 1e-6 * total_s]  # fmt: skip
    assert page.tables["Terms of an iteration; they add up to it"][1:] == rows
    assert time(total_s) in page.text
    for name in ("epoch_time_s", "training_time_s"):
        if found[name] is not None:
            assert time(found[name]) in page.text


def test_alternatives_and_memory_are_those_of_the_document(told: tuple[dict[str, Any], Read]) -> None:
    plan, page = told
    found = plan["alternatives"]
    if found:
        header, first, *rows = page.tables["Alternatives considered"]
        place = header.index(plan["objective"]["name"].removesuffix("_s").replace("_", " "))
        assert first[place] == time(plan["objective"]["value"])
        assert [row[place] for row in rows] == [time(one["objective"]) for one in found]
        assert [row[-1] for row in rows] == [one["reason"] for one in found]
    assert size(plan["prediction"]["memory_bytes"]["total"]) in page.text


def test_groups_and_stages_are_those_of_the_document(told: tuple[dict[str, Any], Read]) -> None:
    plan, page = told
    details, block = plan["prediction"]["details"], plan["configuration"]
    block = block.get(plan["family"], block)
    if plan["family"] == "all_reduce":
        rows = page.tables["Fusion groups in the order in which they are sent"][1:]
        truth = zip(block["fusion_groups"], details["schedule"], strict=True)
        wanted = [[str(len(group["tensors"])), group["algorithm"], size(row["size_bytes"]), *(time(row[key]) for key in ("ready_s", "start_s", "end_s"))] for group, row in truth]  # fmt: skip
        assert [row[1:] for row in rows] == wanted
    if plan["family"] == "pipeline":
        header, *rows = page.tables["Stages"]
        keys = {"from layer": "first", "to layer": "last", "replicas": "replicas"}
        for name, key in keys.items():
            assert [row[header.index(name)] for row in rows] == [str(one[key]) for one in details["stages"]]
        assert [row[header.index("forward")] for row in rows] == [time(one["forward_s"]) for one in details["stages"]]
    if plan["family"] == "hybrid":
        header, *rows = page.tables["Stages"]
        assert len(rows) == block["pipeline"]
        seconds = [one["forward_s"] for one in details["stages"]]
        shown = [row[header.index("forward")] for row in rows]
        assert shown == [time(sum(one) if isinstance(one, list) else one) for one in seconds]
        memory = [row[header.index("memory of a device")] for row in rows]
        assert memory == [size(one["memory_bytes"]) for one in details["stages"]]
    if plan["family"] == "parameter_server":
        rows = page.tables["Parameter servers and their tensors"][1:]
        assert [row[1] for row in rows] == [size(value) for value in details["server_bytes"]]


def test_a_terminal_tells_the_same_numbers_in_few_lines() -> None:
    for name, question in QUESTIONS.items():
        problem = planner.load({**question, "families": [name]})
        plan = planner.plan(problem, time_limit_s=10)
        text = plan_text(plan, network_of(asked(problem), plan.substitutions))
        launch = plan.prediction.details.get("launch", ())
        assert len(text.splitlines()) - len(launch) <= 50
        assert "{'" not in text
        for term_name, value in plan.prediction.breakdown_s.items():
            if value > 1e-6 * plan.prediction.iteration_time_s:
                assert re.search(rf"^  {re.escape(term(term_name))} +{re.escape(time(value))} ", text, re.MULTILINE)
        for index, stage in enumerate(plan.configuration.to_document().get("stages") or ()):
            if "first" in stage:
                assert f"stage {index + 1}: {stage['first']} to {stage['last']}, on {stage['replicas']} of" in text


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        *((2, "2 samples on 8 devices"), (1, "1 sample on 8 devices"), (12, "12 samples on 8 devices")),
        *((8, "1 sample a device"), (16, "2 samples a device")),
    ],
)
def test_a_batch_that_gives_not_every_device_as_many_whole_samples_is_said_to_be_shared(batch: int, words: str) -> None:
    asked_of = {**QUESTIONS["hybrid"], "dnn": {**LARGE, "global_batch": batch}, "constraints": {"devices": 8}}
    problem = planner.load({**asked_of, "families": ["hybrid"]})
    plan = planner.plan(problem)
    network = network_of(asked(problem), plan.substitutions)
    assert f"  {words}; " in plan_text(plan, network)
    page = read(plan_page(plan, network)).text
    assert ("samples a device" in page) is (batch % 8 == 0)
    assert (words in page) is (batch % 8 > 0)
