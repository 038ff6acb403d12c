"""Whether a plan is what it says: feasibility and objective recomputed from its JSON alone, without any solver.

The question, the family and the configuration are read from the plan; the objective is the cost model's of that
configuration. Feasibility is judged by plain Python of this package, and the core of the schedule is replayed in slow
loops, as a second opinion on the cost model itself. What no plan can show by itself is that nothing beats its bound.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.checks import all_reduce, hybrid, model_replicas, parameter_server, pipeline
from planner.checks.certificate import certificate, is_asynchronous, other_kinds, plain, ranking, stated_figures
from planner.checks.facts import Facts
from planner.checks.limits import limits_kept
from planner.checks.procurement import checked_procurement
from planner.checks.report import CheckReport, Finding, agree, agreement, report_text
from planner.data.accuracy import with_known_error
from planner.documents import plan_document
from planner.errors import Fault, ModelError, SpecError
from planner.families import FAMILIES
from planner.networks import asked, network_of
from planner.plan import Configuration, Plan, Prediction
from planner.plan_file import is_procurement, read_plan, read_procurement
from planner.problem import Problem
from planner.spec.build import load_question_of
from planner.spec.configuration import ConfigurationSpec

__all__ = ["CheckReport", "Finding", "check", "check_file", "report_text"]

_FACTS: Mapping[str, Callable[[Problem, Mapping[str, Any], Prediction], Facts]] = {
    "all_reduce": all_reduce.facts_of,
    "parameter_server": parameter_server.facts_of,
    "model_replicas": model_replicas.facts_of,
    "pipeline": pipeline.facts_of,
    "hybrid": hybrid.facts_of,
}
_NO_CONFIGURATION = (SpecError, ModelError, ValidationError)
_MOST_FAULTS = 5  # of a configuration that are told
_NOT_CHECKED = "that nothing is better than the bound, which takes a search"


def check_file(path: Path) -> CheckReport:
    """Return what is right and wrong about a plan file, or about the answer to a question of a purchase.

    Raises
    ------
    SpecError
        If the file holds no plan, or a question that cannot be asked.
    """
    if is_procurement(path):
        return checked_procurement(
            read_procurement(path), str(path), lambda plan: _checked_file(plan, path), _recomputed
        )
    return _checked_file(read_plan(path), path)


def _checked_file(document: Mapping[str, Any], path: Path) -> CheckReport:
    """Return what is right and wrong about a plan of a file."""
    try:
        problem = load_question_of(document)
    except SpecError as error:
        raise _of_file(error, path) from None
    return _checked(problem, document)


def _recomputed(question: Mapping[str, Any], family: str, block: Mapping[str, Any], objective: float) -> list[Finding]:
    """Return what is wrong about a configuration of a question, which is said to have an objective."""
    try:
        problem = load_question_of({"problem": question})
        configuration, found = _predicted(problem, family, block)
    except _NO_CONFIGURATION as error:
        return [Finding(name="configuration", is_ok=False, text=_meaningless(error))]
    findings = [agreement("objective", [(problem.goal.field, objective, found.value_of(problem.goal))])]
    strange = list(_strange("configuration", block, configuration))
    findings += strange or _facts_kept(problem, family, block, found, None)
    return [one for one in findings if not one.is_ok]


def check(problem: Problem, plan: Plan | Mapping[str, Any]) -> CheckReport:
    """Return what is right and wrong about a plan of a question: a :class:`Plan`, or its JSON document.

    Raises
    ------
    SpecError
        If the document is no plan.
    """
    return _checked(problem, read_plan(plan_document(plan) if isinstance(plan, Plan) else plan))


def _checked(problem: Problem, document: Mapping[str, Any]) -> CheckReport:
    """Return what is right and wrong about a document that has the form of a plan."""
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
        configuration, found = _predicted(network, family, block)
    except _NO_CONFIGURATION as error:
        findings.append(Finding(name="configuration", is_ok=False, text=_meaningless(error)))
        return _report(family, "", findings)
    findings += stated_figures(network, document, with_known_error(network, family, configuration, found))
    findings += _alternatives(question, document, found)
    strange = list(_strange("configuration", block, configuration))
    # No other block can be judged by what stands in it.
    findings += strange or _facts_kept(network, family, block, found, problem.limits.deadline_s)
    return _report(family, configuration.headline, findings)


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


def _predicted(problem: Problem, family: str, block: Mapping[str, Any]) -> tuple[Configuration, Prediction]:
    """Return a configuration and what it costs, rebuilt from its block."""
    given = getattr(ConfigurationSpec.model_validate({family: block}), family).model_dump()
    problem = replace(problem, configuration=(family, given))
    configuration = FAMILIES[family].configuration_of(problem, given)
    return configuration, FAMILIES[family].predict(problem, configuration)


def _meaningless(error: Exception) -> str:
    """Return why a configuration cannot be rebuilt."""
    return f"it means nothing here: {' '.join(str(error).split())}"


def _alternatives(question: Problem, document: Mapping[str, Any], found: Prediction) -> Iterator[Finding]:
    """Yield whether what lost is what its configuration makes it, keeps the limits, and is no better than the plan.

    It may miss the deadline, for which it may have lost. One without a configuration cannot be recomputed; it is taken
    to be of the plan's kind.
    """
    are_stale, is_stale = [], is_asynchronous(found)
    for index, one in enumerate(document["alternatives"]):
        name, other = f"alternatives.{index}", found
        if one["configuration"] is not None:
            try:
                network, configuration, other = _predicted_loser(question, one)
            except _NO_CONFIGURATION as error:
                yield Finding(name=name, is_ok=False, text=_meaningless(error))
            else:
                yield agreement(name, [(question.goal.field, one["objective"], other.value_of(question.goal))])
                strange = list(_strange(f"{name}.configuration", one["configuration"], configuration))
                yield from strange
                kept = [] if strange else _facts_kept(network, one["family"], one["configuration"], other, None)
                # A layout that lost states no memory: how the cost model's is counted is judged on the plan alone.
                is_stated = [not (one["family"] == "hybrid" and fault.name.startswith("memory ")) for fault in kept]
                kept = [fault for fault, is_said in zip(kept, is_stated, strict=True) if is_said and not fault.is_ok]
                yield from (replace(fault, name=f"{name} {fault.name}") for fault in kept)
        are_stale.append(is_asynchronous(other))
    yield ranking(document, is_stale=is_stale, are_stale=are_stale)


def _strange(name: str, block: Mapping[str, Any], configuration: Configuration) -> Iterator[Finding]:
    """Yield that a block is not of the form in which its family prints it, if so."""
    if faults := list(other_kinds(name, block, plain(configuration.to_document()))):
        yield Finding(name=name, is_ok=False, text="; ".join(faults[:_MOST_FAULTS]))


def _predicted_loser(question: Problem, one: Mapping[str, Any]) -> tuple[Problem, Configuration, Prediction]:
    """Return an alternative's own network, its configuration, and what it costs there."""
    known = [allowed.name for allowed in question.substitutions]
    if one["family"] not in FAMILIES or not set(one["substitutions"]) <= set(known):
        raise SpecError(f"{one['family']} with {', '.join(one['substitutions']) or 'no substitutions'} is unknown")
    network = network_of(question, one["substitutions"])
    return network, *_predicted(network, one["family"], one["configuration"])


def _facts_kept(
    network: Problem, family: str, block: Mapping[str, Any], found: Prediction, deadline_s: float | None
) -> list[Finding]:
    """Return whether what a configuration uses is there and allowed, and the second opinion on its time."""
    network = replace(network, limits=replace(network.limits, deadline_s=deadline_s))
    try:
        facts = _FACTS[family](network, block, found)
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
