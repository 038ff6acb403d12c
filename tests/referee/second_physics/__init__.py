"""A second physics: what plans use and take, counted from their JSON alone and apart from the families' costs.

It may disagree with the product every day. Feasibility is judged by plain Python of this package, and the core of each
schedule is replayed in slow loops. ``check`` adds what it finds to what ``planner check`` says of a plan.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planner import checks
from planner.answer.plan_file import read_plan
from planner.checks import CheckReport, Finding, agree, limits_kept
from planner.constraints import needed_s
from planner.networks import asked, network_of
from planner.plan import Plan, Prediction
from planner.problem import Problem
from tests.referee.second_physics import all_reduce, hybrid, model_replicas, parameter_server, pipeline
from tests.referee.second_physics.facts import Facts

__all__ = ["FACTS", "check", "opinion"]

FACTS: Mapping[str, Callable[[Problem, Mapping[str, Any], Prediction], Facts]] = {
    "all_reduce": all_reduce.facts_of,
    "parameter_server": parameter_server.facts_of,
    "model_replicas": model_replicas.facts_of,
    "pipeline": pipeline.facts_of,
    "hybrid": hybrid.facts_of,
}


def opinion(problem: Problem, family: str, block: Mapping[str, Any], found: Prediction) -> list[Finding]:
    """Return whether what a configuration uses is there and allowed, and whether its time is what loops replay."""
    facts = replace(FACTS[family](problem, block, found), needed_s=needed_s(found))
    findings = [*facts.findings, *limits_kept(problem, facts)]
    if facts.iteration_s is not None:
        stated_s = found.iteration_time_s
        text = f"replayed in plain loops an iteration takes {facts.iteration_s:.12g} s, and {stated_s:.12g} s predicted"
        findings.append(Finding(name="second opinion", is_ok=agree(facts.iteration_s, stated_s), text=text))
    return findings


def check(problem: Problem, plan: Plan | Mapping[str, Any]) -> CheckReport:
    """Return what ``planner check`` says of a plan, with the second opinion on it and on what lost to it."""
    report = checks.check(problem, plan)
    if not report.is_ok:  # only a block of its family's form can be judged by what stands in it
        return report
    document = read_plan(plan.to_dict() if isinstance(plan, Plan) else plan)
    question = asked(problem)
    findings = list(report.findings)
    rows = [("", document), *((f"alternatives.{index} ", one) for index, one in enumerate(document["alternatives"]))]
    for prefix, one in rows:
        if one["configuration"] is None:
            continue
        family, network = one["family"], network_of(question, one["substitutions"])
        if prefix:  # it may have lost for missing the deadline
            network = replace(network, limits=replace(network.limits, deadline_s=None))
        _, found = checks.predicted(network, family, one["configuration"])
        for finding in opinion(network, family, one["configuration"], found):
            # A layout that lost states no memory: how it is counted is judged on the plan alone.
            if prefix and (finding.is_ok or (family == "hybrid" and finding.name.startswith("memory "))):
                continue
            findings.append(replace(finding, name=f"{prefix}{finding.name}"))
    return replace(report, findings=tuple(findings))
