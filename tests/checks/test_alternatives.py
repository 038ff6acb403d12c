"""What lost is judged like the plan; a broken configuration and broken limits are told in the checker's own words."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from checked import checked, given_plan, put, question, rebuilt

import planner
from planner.checks import all_reduce, model_replicas, parameter_server, pipeline, report_text
from planner.checks.facts import Facts
from planner.checks.limits import limits_kept
from planner.documents import dump, plan_document
from planner.problem import Limits, Range


def with_losers(family: str, plan: dict[str, Any], *others: dict[str, Any], **limits: Any) -> dict[str, Any]:
    """The document of a given configuration, called optimal, and of others that are said to have lost to it."""
    documents: list[dict[str, Any]] = []
    for block in (plan, *others):
        asked = question(configuration={family: block}, constraints=limits)
        documents.append(json.loads(dump(plan_document(given_plan(planner.load(asked))))))
    first = documents[0]
    first["alternatives"] = [
        {
            "name": "another",
            "family": family,
            "objective": one["objective"]["value"],
            "relative_loss": one["objective"]["value"] / first["objective"]["value"] - 1,
            "reason": "",
            "configuration": one["configuration"],
            "substitutions": [],
        }
        for one in documents[1:]
    ]
    return first


SERVERS = {"num_parameter_servers": 1, "workers": {"machines-0": 2}}


def test_an_alternative_that_is_better_than_the_plan_fails() -> None:
    many, few = {"num_devices": 8}, {"num_devices": 2}
    assert checked(with_losers("all_reduce", many, few)).is_ok
    report = checked(with_losers("all_reduce", few, many))
    assert [one.name for one in report.faults] == ["ranking"], report_text(report)
    assert "less than the bound" in report_text(report)
    document = with_losers("all_reduce", few, many)
    put("objective", "bound", value=0.0)(document)  # then only the plan itself is in its way
    put("objective", "gap", value=1.0)(document)
    put("status", value="feasible")(document)
    report = checked(document)
    assert [one.name for one in report.faults] == ["ranking"], report_text(report)
    assert "less than the plan's" in report_text(report)


def test_an_alternative_without_a_configuration_is_ranked_by_what_it_states() -> None:
    document = with_losers("all_reduce", {"num_devices": 8}, {"num_devices": 2})
    put("alternatives", 0, "configuration")(document)
    assert checked(document).is_ok
    put("alternatives", 0, "objective", value=document["objective"]["value"] / 2)(document)
    put("alternatives", 0, "relative_loss", value=-0.5)(document)
    assert [one.name for one in checked(document).faults] == ["ranking"]


def test_an_alternative_that_ties_but_for_rounding_passes() -> None:
    document = with_losers("all_reduce", {"num_devices": 8}, {"num_devices": 8})
    put("alternatives", 0, "objective", times=1 - 1e-10)(document)
    put("alternatives", 0, "relative_loss", value=-1e-10)(document)
    assert checked(document).is_ok


def test_an_asynchronous_alternative_is_not_ranked_with_a_synchronous_plan() -> None:
    stale = {**SERVERS, "synchronisation": "local_sgd", "local_steps": 4}
    document = with_losers("parameter_server", SERVERS, stale, max_staleness=3)
    assert document["alternatives"][0]["objective"] < document["objective"]["bound"]
    report = checked(document)
    assert report.is_ok, report_text(report)
    two = {**SERVERS, "num_parameter_servers": 2}
    report = checked(with_losers("parameter_server", SERVERS, two))
    assert [one.name for one in report.faults] == ["ranking"], report_text(report)
    slow = {**two, "synchronisation": "local_sgd", "local_steps": 2}
    report = checked(with_losers("parameter_server", slow, stale, max_staleness=3))  # both are asynchronous
    assert [one.name for one in report.faults] == ["ranking"], report_text(report)


def test_an_alternative_that_costs_something_else_fails() -> None:
    document = with_losers("all_reduce", {"num_devices": 8}, {"num_devices": 2})
    put("alternatives", 0, "objective", times=2.0)(document)
    put("alternatives", 0, "relative_loss", value=2 * (document["alternatives"][0]["relative_loss"] + 1) - 1)(document)
    assert [one.name for one in checked(document).faults] == ["alternatives.0"]
    put("alternatives", 0, "configuration", "num_devices", value=10**6)(document)
    assert "alternatives.0" in {one.name for one in checked(document).faults}


# The configuration is also refused where it is rebuilt; these look at what the checker itself makes of the block.
@pytest.mark.parametrize(
    ("family", "change", "name"),
    [
        ("all_reduce", put("fusion_groups", 0, "tensors", value=["one"]), "gradients"),
        ("all_reduce", put("fusion_groups", 0, "size_bytes", value=1.0), "fusion_groups.0"),
        ("all_reduce", put("num_machines", value=5), "machines machines-0"),
        ("all_reduce", put("devices_per_machine", value=3), "devices machines-0"),
        ("all_reduce", put("num_devices", value=7), "devices in all"),
        ("all_reduce", put("global_batch_size", value=7), "shares"),
        ("parameter_server", put("workers", "machines-0", value=5), "machines machines-0"),
        ("parameter_server", put("batch_shares", "machines-0", value=3), "shares"),
        ("parameter_server", put("placement", value={"one": 0, "two": 1}), "placement"),
        ("parameter_server", put("placement", value={"one": 0, "two": 1, "three": 2}), "placement"),
        ("parameter_server", put("co_located", value=False), "machines machines-0"),
        ("parameter_server", put("synchronisation", value="asp"), "constraints.max_staleness"),
        ("pipeline", put("stages", 1, "first", value="three"), "layers"),
        ("pipeline", put("stages", 0, "last", value="two"), "layers"),
        ("pipeline", put("stages", 0, "replicas", value=8), "machines machines-0"),
        ("pipeline", put("num_microbatches", value=33), "schedule"),
        ("pipeline", put("chunks_per_device", value=2), "schedule"),
        ("pipeline", put("global_batch_size", value=31), "batch"),
        ("model_replicas", put("num_replicas", value=2), "constraints.max_staleness"),
        ("model_replicas", put("num_workers_per_replica", value=4), "machines machines-0"),
        ("model_replicas", put("layers", 0, "threads", value=2), "layers.0"),
        ("model_replicas", put("layers", 0, "workers", value=[[0, 0]]), "layers.0"),
    ],
)
def test_a_broken_configuration_is_told_by_the_checkers_own_code(
    family: str, change: Callable[[dict[str, Any]], None], name: str
) -> None:
    problem, block, found = rebuilt(family)
    change(block)
    facts = FACTS[family](problem, block, found)
    faults = {one.name for one in (*facts.findings, *limits_kept(problem, family, facts, found)) if not one.is_ok}
    assert name in faults


FACTS = {
    "all_reduce": all_reduce.facts_of,
    "parameter_server": parameter_server.facts_of,
    "pipeline": pipeline.facts_of,
    "model_replicas": model_replicas.facts_of,
}


def test_the_limits_are_judged_by_what_is_used() -> None:
    problem, _, found = rebuilt("all_reduce")
    facts = Facts(
        machines={"machines-0": 2}, devices={"machines-0": 4}, memory_bytes={"machines-0": 2.0**20},
        decisions={"num_devices": 4}, global_batch_size=32, staleness=2.0,
    )  # fmt: skip
    limits = Limits(devices=Range(least=5), machines=Range(most=1), memory_per_device_bytes=2.0**19, max_staleness=1)
    tight = replace(problem, limits=limits, fixed={"num_devices": 5}, families=("pipeline",))
    faults = {one.name for one in limits_kept(tight, "all_reduce", facts, found) if not one.is_ok}
    assert faults == {
        "families",
        "constraints.machines",
        "constraints.devices",
        "memory machines-0",
        "constraints.max_staleness",
        "fix.num_devices",
    }
