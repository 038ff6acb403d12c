"""What lost is judged like the plan; a broken configuration and broken limits are told in the checker's own words."""

import json
from dataclasses import replace
from typing import Any

from checked import checked, given_plan, put, question, rebuilt

import planner
from planner.answer.documents import dump
from planner.checks import check as check_plan
from planner.checks import limits_kept, report_text
from planner.constraints import Usage
from planner.problem import Limits, Range


def with_losers(family: str, plan: dict[str, Any], *others: dict[str, Any], **limits: Any) -> dict[str, Any]:
    """The document of a given configuration, called optimal, and of others that are said to have lost to it."""
    documents: list[dict[str, Any]] = []
    for block in (plan, *others):
        asked = question(configuration={family: block}, constraints=limits)
        documents.append(json.loads(dump(given_plan(planner.load(asked)).to_dict())))
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


SERVERS = {"num_parameter_servers": 1, "workers": {"toy": 2}}


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


def test_an_alternative_that_calls_machines_by_their_number_passes() -> None:
    document = with_losers("parameter_server", {**SERVERS, "num_parameter_servers": 2}, SERVERS)
    lost = document["alternatives"][0]
    lost["configuration"] = json.loads(json.dumps(lost["configuration"]).replace('"toy"', '"machines-0"'))
    assert lost["configuration"]["servers"] == "machines-0"
    report = check_plan(planner.load(document["problem"]), document)
    assert report.is_ok, report_text(report)


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


def test_the_limits_are_judged_by_what_is_used() -> None:
    problem, *_ = rebuilt("all_reduce")
    usage = Usage(
        family="all_reduce",
        machines={"toy": 2}, devices={"toy": 4}, memory_bytes={"toy": 2.0**20},
        decisions={"num_devices": 4}, global_batch_size=32, staleness=2.0,
    )  # fmt: skip
    limits = Limits(devices=Range(least=5), machines=Range(most=1), memory_per_device_bytes=2.0**19, max_staleness=1)
    tight = replace(problem, limits=limits, fixed={"num_devices": 5}, families=("pipeline",))
    faults = {one.name for one in limits_kept(tight, usage) if not one.is_ok}
    assert faults == {
        "families",
        "constraints.machines",
        "constraints.devices",
        "memory toy",
        "constraints.max_staleness",
        "fix.num_devices",
    }
