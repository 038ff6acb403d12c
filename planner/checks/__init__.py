"""Whether a plan is what it says: recomputed by the cost model from its JSON alone, without any solver.

The question, the family and the configuration are read from the plan. The configuration is rebuilt and must be the one
that is stated; time, memory and money must be the cost model's; what the configuration uses must keep to every limit
and pin of the question. Objective, bound, gap and status must belong together. What no plan can show by itself is that
nothing beats its bound. That the cost model itself is right, the referee of the tests holds against a second physics.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.answer.plan_file import read_plan
from planner.checks.report import (
    CheckReport,
    Finding,
    agreement,
    certificate,
    differences,
    limits_kept,
    plain,
    ranking,
    report_text,
    stated_figures,
)
from planner.constraints import without_deadline
from planner.data.fits import with_known_error
from planner.errors import Fault, ModelError, PlannerError, SpecError
from planner.families import FAMILIES, usage_of
from planner.networks import asked, network_of
from planner.plan import Configuration, Plan, Prediction
from planner.problem import Problem
from planner.question.build import load_question_of
from planner.question.spec import ConfigurationSpec
from planner.solution import Status

__all__ = ["CheckReport", "Finding", "carried", "check", "checked_document", "predicted", "recomputed", "report_text"]

_NO_CONFIGURATION = (SpecError, ModelError, ValidationError)
_MOST_FAULTS = 5  # of a configuration that are told
_NOT_CHECKED = "that nothing is better than the bound, which takes a search"


def check(problem: Problem, plan: Plan | Mapping[str, Any]) -> CheckReport:
    """Return what is right and wrong about a plan of a question: a :class:`Plan`, or its JSON document.

    Raises
    ------
    SpecError
        If the document is no plan.
    """
    document = read_plan(plan.to_dict() if isinstance(plan, Plan) else plan)
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
        configuration, found = predicted(network, family, block)
    except _NO_CONFIGURATION as error:
        findings.append(Finding(name="configuration", is_ok=False, text=_meaningless(error)))
        return _report(family, "", findings)
    findings += stated_figures(network, document, with_known_error(network, family, configuration, found))
    findings += _alternatives(question, document, found)
    findings += _strange("configuration", block, configuration)
    findings += limits_kept(network, usage_of(network, family, configuration, found))
    return _report(family, configuration.headline, findings)


def checked_document(document: Mapping[str, Any], path: Path) -> CheckReport:
    """Return what is right and wrong about a plan's document that stands in a file, its question read from itself.

    Raises
    ------
    SpecError
        If it is no plan, or holds a question that cannot be asked.
    """
    try:
        problem = load_question_of(document)
    except SpecError as error:
        raise _of_file(error, path) from None
    return check(problem, document)


def recomputed(question: Mapping[str, Any], family: str, block: Mapping[str, Any], objective: float) -> list[Finding]:
    """Return what is wrong about a configuration of a question, which is said to have an objective."""
    try:
        problem = load_question_of({"problem": question})
        configuration, found = predicted(problem, family, block)
    except _NO_CONFIGURATION as error:
        return [Finding(name="configuration", is_ok=False, text=_meaningless(error))]
    findings = [agreement("objective", [(problem.goal.field, objective, found.value_of(problem.goal))])]
    findings += _kept(problem, "configuration", family, block, configuration, found)
    return [one for one in findings if not one.is_ok]


def carried(problem: Problem, plan: Plan) -> Plan | None:
    """Return the configuration of another question's plan as a plan of this one; None where it is none here.

    What other hardware brings is never worse than to go on as before, as long as that is possible, and no limit of the
    other question is broken. Nothing is proven of it: its bound is 0.
    """
    try:
        network = network_of(asked(problem), plan.substitutions)
        configuration, prediction = predicted(network, plan.family, plan.configuration.to_document())
        found = replace(
            plan,
            goal=problem.goal,
            status=Status.FEASIBLE,
            objective=prediction.value_of(problem.goal),
            bound=0.0,
            configuration=configuration,
            prediction=prediction,
            alternatives=(),
        )
        return found if check(asked(problem), found).is_ok else None
    except (PlannerError, ValidationError):  # it means nothing on this hardware
        return None


def predicted(problem: Problem, family: str, block: Mapping[str, Any]) -> tuple[Configuration, Prediction]:
    """Return a configuration and what it costs, rebuilt from its block."""
    _, given = ConfigurationSpec.model_validate({family: block}).block
    problem = replace(problem, configuration=(family, given))
    configuration = FAMILIES[family].configuration_of(problem, given)
    return configuration, FAMILIES[family].predict(problem, configuration)


def _of_file(error: SpecError, path: Path) -> SpecError:
    """Return the error of a question with its places in the plan's file."""
    if not error.faults:
        return SpecError.of([Fault(file=str(path), field="problem", problem=str(error))])
    return SpecError.of(
        replace(one, file=one.file or str(path), field=f"problem.{one.field}".rstrip(".")) for one in error.faults
    )


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


def _meaningless(error: Exception) -> str:
    """Return why a configuration cannot be rebuilt."""
    return f"it means nothing here: {' '.join(str(error).split())}"


def _alternatives(question: Problem, document: Mapping[str, Any], found: Prediction) -> Iterator[Finding]:
    """Yield whether what lost is what its configuration makes it, keeps the limits, and is no better than the plan.

    It may miss the deadline, for which it may have lost. One without a configuration cannot be recomputed; it is taken
    to be of the plan's kind. What is recommended is recomputed, too.
    """
    are_stale, is_stale = [], found.is_asynchronous
    known = {allowed.name for allowed in question.substitutions}
    rows = {f"alternatives.{index}": one for index, one in enumerate(document["alternatives"])}
    if (recommended := document.get("recommended")) is not None:
        rows["recommended"] = recommended
    for name, one in rows.items():
        family, block, other = one["family"], one["configuration"], found
        if block is not None:
            try:
                if family not in FAMILIES or not set(one["substitutions"]) <= known:
                    taken = ", ".join(one["substitutions"]) or "no substitutions"
                    raise SpecError(f"{family} with {taken} is unknown")
                network = network_of(question, one["substitutions"])
                configuration, other = predicted(network, family, block)
            except _NO_CONFIGURATION as error:
                yield Finding(name=name, is_ok=False, text=_meaningless(error))
            else:
                yield agreement(name, [(question.goal.field, one["objective"], other.value_of(question.goal))])
                kept = _kept(network, f"{name}.configuration", family, block, configuration, other)
                for fault in kept:
                    if not fault.is_ok:
                        is_named = fault.name.startswith(name)
                        yield fault if is_named else replace(fault, name=f"{name} {fault.name}")
        if one is not recommended:
            are_stale.append(other.is_asynchronous)
    yield ranking(document, is_stale=is_stale, are_stale=are_stale)


def _kept(
    problem: Problem,
    name: str,
    family: str,
    block: Mapping[str, Any],
    configuration: Configuration,
    found: Prediction,
) -> Iterator[Finding]:
    """Yield whether a block is what its family prints, and keeps all limits but the deadline."""
    yield from _strange(name, block, configuration)
    yield from limits_kept(without_deadline(problem), usage_of(problem, family, configuration, found))


def _strange(name: str, block: Mapping[str, Any], configuration: Configuration) -> Iterator[Finding]:
    """Yield that a block is not what its family prints of the configuration that it means, if so."""
    if faults := list(differences(name, block, plain(configuration.to_document()))):
        yield Finding(name=name, is_ok=False, text="; ".join(faults[:_MOST_FAULTS]))


def _report(family: str, headline: str, findings: list[Finding]) -> CheckReport:
    """Return the report."""
    return CheckReport(family=family, headline=headline, findings=tuple(findings), not_checked=(_NOT_CHECKED,))
