"""Whether a plan is what it says: feasibility and objective recomputed from its JSON alone, without any solver.

The question, the family and the configuration are read from the plan; the objective is the cost model's of that
configuration. Feasibility is judged by plain Python of this package, and the core of the schedule is replayed in slow
loops, as a second opinion on the cost model itself. What no plan can show by itself is that nothing beats its bound.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.checks import all_reduce, model_replicas, parameter_server, pipeline
from planner.checks.certificate import certificate, stated_figures
from planner.checks.facts import Facts
from planner.checks.limits import limits_kept
from planner.checks.report import CheckReport, Finding, agree, report_text
from planner.documents import PlanDocument, plan_document
from planner.errors import Fault, ModelError, SpecError
from planner.families import FAMILIES
from planner.networks import asked, network_of
from planner.plan import Plan, Prediction
from planner.problem import Problem
from planner.spec_build import load
from planner.spec_configuration import ConfigurationSpec
from planner.spec_source import read_source

__all__ = ["CheckReport", "Finding", "check", "check_file", "report_text"]

_FACTS: Mapping[str, Callable[[Problem, Mapping[str, Any], Prediction], Facts]] = {
    "all_reduce": all_reduce.facts_of,
    "parameter_server": parameter_server.facts_of,
    "model_replicas": model_replicas.facts_of,
    "pipeline": pipeline.facts_of,
}
_NOT_CHECKED = "that nothing is better than the bound, which takes a search"
_MEND = "Give a file that `planner plan --out` wrote."


def check_file(path: Path) -> CheckReport:
    """Return what is right and wrong about a plan file.

    Raises
    ------
    SpecError
        If the file holds no plan, or a question that cannot be asked.
    """
    document = read_source(path).data
    _checked_form(document, str(path))
    return check(load(document["problem"]), document)


def check(problem: Problem, plan: Plan | Mapping[str, Any]) -> CheckReport:
    """Return what is right and wrong about a plan of a question: a :class:`Plan`, or its JSON document.

    Raises
    ------
    SpecError
        If the document is no plan.
    """
    document = plan_document(plan) if isinstance(plan, Plan) else plan
    _checked_form(document, "")
    findings = list(certificate(document))
    family, block = document["family"], document["configuration"]
    if family not in FAMILIES:
        text = f"there is no family {family!r}; there are {', '.join(FAMILIES)}"
        return _report(family, "", [*findings, Finding(name="families", is_ok=False, text=text)])
    question = asked(problem)
    network, network_findings = _network(question, document)
    findings += network_findings
    if network is None:
        return _report(family, "", findings)
    try:
        headline, found = _predicted(network, family, block)
    except (SpecError, ModelError, ValidationError) as error:
        text = " ".join(str(error).split())
        findings.append(Finding(name="configuration", is_ok=False, text=f"it means nothing here: {text}"))
        return _report(family, "", findings)
    findings += stated_figures(network, document, found)
    findings += _facts_kept(network, document, found)
    return _report(family, headline, findings)


def _checked_form(document: Any, file: str) -> None:
    """Refuse what is no plan."""
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if schema != "planner.plan/1":
        what = f"its schema is {schema!r}, not 'planner.plan/1'." if schema else "this is no plan: it has no schema."
        raise SpecError.of([Fault(file=file, field="schema", problem=what, mend=_MEND)])
    try:
        PlanDocument.model_validate(document)
    except ValidationError as error:
        faults = [
            Fault(file=file, field=".".join(map(str, one["loc"])), problem=f"{one['msg']}.", mend=_MEND)
            for one in error.errors()
        ]
        raise SpecError.of(faults) from None


def _network(problem: Problem, document: Mapping[str, Any]) -> tuple[Problem | None, list[Finding]]:
    """Return the question on the network with the plan's substitutions, if they are allowed."""
    taken = document["substitutions"]
    known = [one.name for one in problem.substitutions]
    if unknown := [name for name in taken if name not in known]:
        text = f"the question allows no {', '.join(unknown)}"
        return None, [Finding(name="substitutions", is_ok=False, text=text)]
    pinned = problem.fixed.get("substitutions")
    if pinned is not None and sorted(pinned) != sorted(taken):
        text = f"the plan has {', '.join(taken) or 'none'}, and {', '.join(pinned) or 'none'} is pinned"
        return network_of(problem, taken), [Finding(name="fix.substitutions", is_ok=False, text=text)]
    findings = [Finding(name="substitutions", is_ok=True, text=", ".join(taken) or "none")] if known else []
    return network_of(problem, taken), findings


def _predicted(problem: Problem, family: str, block: Mapping[str, Any]) -> tuple[str, Prediction]:
    """Return the headline of a configuration and what it costs, rebuilt from its block."""
    given = getattr(ConfigurationSpec.model_validate({family: block}), family).model_dump()
    problem = replace(problem, configuration=(family, given))
    configuration = FAMILIES[family].configuration_of(problem, given)
    return configuration.headline, FAMILIES[family].predict(problem, configuration)


def _facts_kept(network: Problem, document: Mapping[str, Any], found: Prediction) -> list[Finding]:
    """Return whether what the plan uses is there and allowed, and the second opinion on its time."""
    family = document["family"]
    try:
        facts = _FACTS[family](network, document["configuration"], found)
    except KeyError as error:
        return [Finding(name="configuration", is_ok=False, text=f"its key {error} is missing")]
    findings = [*facts.findings, *limits_kept(network, family, facts, found)]
    if facts.iteration_s is not None:
        stated_s = found.iteration_time_s
        text = f"{facts.iteration_s:.9g} s an iteration, replayed in plain loops"
        wrong = (
            f"replayed in plain loops an iteration takes {facts.iteration_s:.12g} s, and {stated_s:.12g} s is predicted"
        )
        is_ok = agree(facts.iteration_s, stated_s)
        findings.append(Finding(name="second opinion", is_ok=is_ok, text=text if is_ok else wrong))
    return findings


def _report(family: str, headline: str, findings: list[Finding]) -> CheckReport:
    """Return the report."""
    return CheckReport(family=family, headline=headline, findings=tuple(findings), not_checked=(_NOT_CHECKED,))
