"""Whether a plan is what it says: recomputed by the cost model from its JSON alone, without any solver.

The question, the family and the configuration are read from the plan. The configuration is rebuilt and must be the one
that is stated; time, memory and money must be the cost model's; what the configuration uses must keep to every limit
and pin of the question. Objective, bound, gap and status must belong together. What no plan can show by itself is that
nothing beats its bound. That the cost model itself is right, the referee of the tests holds against a second physics.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import ValidationError

from planner.answer.plan_file import read_plan
from planner.constraints import Usage, verdicts, without_deadline
from planner.data.fits import with_known_error
from planner.errors import ModelError, PlannerError, SpecError
from planner.families import FAMILIES, usage_of
from planner.frozen import frozen
from planner.networks import asked, network_of
from planner.plan import Configuration, Plan, Prediction, Provenance
from planner.problem import Problem
from planner.question.build import load_question_of
from planner.question.spec import ConfigurationSpec
from planner.shown import Recorded
from planner.solution import Status

_NO_CONFIGURATION = (SpecError, ModelError, ValidationError)
_MOST_FAULTS = 5  # of a configuration that are told
_NOT_CHECKED = "that nothing is better than the bound, which takes a search"
SAME = 1e-9  # relative difference below which two figures are one


@frozen
class Finding:
    """One thing that was checked: what, whether it holds, in words, and with its figures."""

    name: str
    is_ok: bool
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)


@frozen
class CheckReport(Recorded):
    """All findings about one plan. ``not_checked`` says what no plan can show by itself."""

    tables = ("findings",)
    family: str
    headline: str
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return what a prompt shows; :meth:`to_dict` has every finding."""
        return f"<CheckReport: {self.verdict}>"

    @property
    def verdict(self) -> str:
        """Of what how many checks pass, in words."""
        number, faults = len(self.findings), len(self.faults)
        what = f"{self.family} on {self.headline}" if self.headline else self.family
        return f"{what}: {f'{faults} of {number} checks fail' if faults else f'all {number} checks pass'}"

    @property
    def is_ok(self) -> bool:
        """Whether everything holds."""
        return all(one.is_ok for one in self.findings)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What does not hold."""
        return tuple(one for one in self.findings if not one.is_ok)

    def to_dict(self) -> dict[str, object]:
        """Return ``planner.check/1``."""
        return {
            "schema": "planner.check/1",
            "ok": self.is_ok,
            "family": self.family,
            "findings": [
                {"name": one.name, "ok": one.is_ok, "text": one.text, "values": dict(one.values)}
                for one in self.findings
            ],
            "not_checked": list(self.not_checked),
        }


def report_text(report: CheckReport) -> str:
    """Return a report as text, what fails first."""
    ordered = [*report.faults, *(one for one in report.findings if one.is_ok)]
    lines = [report.verdict]
    lines += [f"  {'ok  ' if one.is_ok else 'FAIL'}  {one.name}: {one.text}" for one in ordered]
    return "\n".join([*lines, *(f"  not checked: {what}" for what in report.not_checked)])


def holds(name: str, is_ok: bool, right: str, wrong: str, **values: object) -> Finding:
    """Return a finding with the words for either case."""
    return Finding(name=name, is_ok=is_ok, text=right if is_ok else wrong, values=values)


def agree(one: float | None, other: float | None) -> bool:
    """Whether two figures are the same but for rounding; an infinite one is written as null."""
    if one is None or other is None:
        return (one is None or abs(one) == float("inf")) and (other is None or abs(other) == float("inf"))
    return one == other or abs(one - other) <= SAME * max(abs(one), abs(other))


def agreement(name: str, pairs: Iterable[tuple[str, float | None, float | None]]) -> Finding:
    """Return the finding that stated figures are those recomputed; ``pairs``: name, stated, recomputed."""
    rows = list(pairs)
    wrong = [row for row in rows if not agree(row[1], row[2])]
    if not wrong:
        text = (
            f"{rows[0][1]:.9g} as stated"
            if len(rows) == 1 and rows[0][1] is not None
            else f"{len(rows)} figures as stated"
        )
        return Finding(name=name, is_ok=True, text=text, values={key: found for key, _, found in rows})
    text = "; ".join(f"{key} is stated as {_number(stated)}, and is {_number(found)}" for key, stated, found in wrong)
    values = {key: {"stated": stated, "found": found} for key, stated, found in wrong}
    return Finding(name=name, is_ok=False, text=text, values=values)


def _number(value: float | None) -> str:
    """Return a figure with all the digits that are compared."""
    if value is None:
        return "nothing"
    return "no number" if math.isnan(value) else f"{value:.12g}"


_NUMBERS = (
    "iteration_time_s",
    "epoch_time_s",
    "training_time_s",
    "scaling_factor",
    "communication_to_computation",
    "cost_usd",
)
_MOST_LETTERS = 40  # of a value that is shown
_TIE = 2 * SAME  # of plans that tie, the family asked first wins; the least is no further below it than this
_TABLES = ("breakdown_s", "communication_s", "memory_bytes", "breakdown_usd")


def stated_figures(problem: Problem, document: Mapping[str, Any], found: Prediction) -> Iterator[Finding]:
    """Yield whether every figure of the plan is what the cost model says of its configuration."""
    stated, objective = document["prediction"], document["objective"]
    goal = problem.goal
    yield holds(
        "goal",
        objective["name"] == goal.field,
        f"{goal.field}, as the question asks",
        f"the plan minimises {objective['name']}; the question asks for {goal.field}",
    )
    yield agreement("objective", [(goal.field, objective["value"], found.value_of(goal))])
    yield agreement("prediction", [(name, stated[name], getattr(found, name)) for name in _NUMBERS])
    for table in _TABLES:
        old, new = stated[table], getattr(found, table)
        names = list(dict.fromkeys((*old, *new)))
        if names:
            yield agreement(table, [(name, old.get(name, math.nan), new.get(name, math.nan)) for name in names])
    yield _sum("breakdown_s sums up", stated["breakdown_s"], stated["iteration_time_s"])
    if stated["memory_bytes"]:
        terms = {name: size for name, size in stated["memory_bytes"].items() if name not in ("total", "limit")}
        yield _sum("memory_bytes sums up", terms, stated["memory_bytes"].get("total"))
    if stated["relative_error"] is not None:
        rows = list(_pairs("relative_error", stated["relative_error"], plain(found.relative_error)))
        yield agreement("relative_error", rows)
    rows = list(_pairs("details", stated["details"], plain(found.details)))
    if rows:
        yield agreement("details", rows)


def _sum(name: str, terms: Mapping[str, float | None], whole: float | None) -> Finding:
    """Return whether terms make up a whole; a term that is unknown makes up none."""
    known = [float(one) for one in terms.values() if one is not None]
    if whole is None or len(known) < len(terms):
        return Finding(name=name, is_ok=False, text="a term of it, or the sum, is null")
    found, size = sum(known), sum(map(abs, known))
    is_ok = math.isfinite(size) and abs(found - whole) <= SAME * max(abs(whole), size)
    return holds(name, is_ok, f"to {whole:.9g}", f"to {found:.12g}, not to {whole:.12g}")


def plain(value: object) -> object:
    """Return a family's figures as JSON would hold them."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def _pairs(path: str, stated: Any, found: Any) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield all numbers of nested figures, stated and recomputed; what is no number, or not there, counts as nan.

    A part of another kind (a mapping where a number belongs) yields one pair that does not agree.
    """
    if isinstance(stated, Mapping) and isinstance(found, Mapping):
        for key in dict.fromkeys((*stated, *found)):
            yield from _pairs(f"{path}.{key}", stated.get(key, math.nan), found.get(key, math.nan))
    elif isinstance(stated, list) and isinstance(found, list):
        for index in range(max(len(stated), len(found))):
            pair = [rows[index] if index < len(rows) else math.nan for rows in (stated, found)]
            yield from _pairs(f"{path}.{index}", *pair)
    elif _is_number(stated) or _is_number(found):
        numbers = [one if _is_number(one) or one is None else math.nan for one in (stated, found)]
        yield path, numbers[0], numbers[1]
    elif stated != found or type(stated) is not type(found):
        yield path, math.nan, math.nan


def _is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def differences(path: str, stated: object, found: object) -> Iterator[str]:
    """Yield in words where a block is not what its family prints of it: keys, lengths, kinds of values, and values."""
    if isinstance(stated, Mapping) and isinstance(found, Mapping):
        for key in dict.fromkeys((*stated, *found)):
            if key not in stated or key not in found:
                yield f"{path}.{key} is {'missing' if key in found else 'unknown'}"
            else:
                yield from differences(f"{path}.{key}", stated[key], found[key])
    elif isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        for index, pair in enumerate(zip(stated, found, strict=True)):
            yield from differences(f"{path}.{index}", *pair)
    elif isinstance(stated, list) and isinstance(found, list):
        yield f"{path} has {len(stated)} entries, and read back it has {len(found)}"
    elif _is_number(stated) and _is_number(found):
        if not agree(stated, found) or (type(stated) is float and type(found) is int):
            yield f"{path} is stated as {_short(stated)}, and read back it is {_short(found)}"
    elif type(stated) is not type(found) or stated != found:
        yield f"{path} is stated as {_short(stated)}, and read back it is {_short(found)}"


def _short(value: object) -> str:
    """Return a value as JSON has it, in a few letters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


def certificate(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether bound, gap and status are consistent, and whether the question is the one that was planned."""
    objective, status = document["objective"], document["status"]
    value, bound, gap = objective["value"], objective["bound"], objective["gap"]
    is_number = all(math.isfinite(one) and one >= 0 for one in (value, bound))
    yield holds("figures", is_number, "objective and bound are finite", f"objective {value} and bound {bound} are not")
    yield holds(
        "bound",
        bound <= value * (1 + SAME),
        f"{bound:.9g} is no more than the objective",
        f"{bound:.12g} is above the objective {value:.12g}",
    )
    expected = (value - bound) / value if value else 0.0
    is_gap = abs(gap - expected) <= SAME
    yield holds("gap", is_gap, f"{gap:.3g}", f"{gap:.6g} is stated; (objective - bound) / objective is {expected:.6g}")
    is_closed = expected <= SAME
    yield holds(
        "status",
        is_closed == (status == "optimal"),
        f"{status}, as the gap says",
        f"{status} is stated with a gap of {expected:.3g}",
    )
    for index, one in enumerate(document["alternatives"]):
        loss = one["objective"] / value - 1 if value else 0.0
        if not (agree(loss, one["relative_loss"]) or abs(loss - one["relative_loss"]) <= SAME):
            text = f"alternatives.{index}: {one['relative_loss']:.6g} is stated; its objective makes it {loss:.6g}"
            yield Finding(name="alternatives", is_ok=False, text=text)
    provenance = document["provenance"]
    counts = {name: provenance[name] for name in ("num_candidates", "num_solved", "seed")}
    wrong = ", ".join(f"{name} is {value}" for name, value in counts.items() if value < 0)
    yield holds("provenance", not wrong, "the search counts what it looked at", f"{wrong}; none is below 0")
    digest = Provenance.digest_of(document["problem"])
    stated = document["provenance"]["input_digest"]
    yield holds(
        "question",
        digest == stated,
        f"the one that was planned ({digest})",
        f"it was changed after planning: its digest is {digest}, and {stated} was planned",
    )


def limits_kept(problem: Problem, usage: Usage) -> Iterator[Finding]:
    """Yield whether every limit of the cluster and of the user is kept."""
    for one in verdicts(problem, usage):
        yield Finding(name=one.name, is_ok=one.is_kept, text=one.words)


def ranking(document: Mapping[str, Any], *, is_stale: bool, are_stale: Sequence[bool]) -> Finding:
    """Return whether what lost is no better than the plan, nor than the bound that nothing beats.

    ``is_stale``, ``are_stale``: whether the plan, and each alternative, is asynchronous. An asynchronous one is not
    ranked with synchronous plans, since it may need more epochs; a synchronous one is ranked with every plan.
    """
    value, bound = document["objective"]["value"], document["objective"]["bound"]
    faults = []
    for index, (one, other) in enumerate(zip(document["alternatives"], are_stale, strict=True)):
        objective = one["objective"]
        if other and not is_stale:
            continue
        if objective < bound * (1 - _TIE):
            faults.append(f"alternatives.{index} takes {objective:.12g}, less than the bound {bound:.12g}")
        elif objective < value * (1 - _TIE):
            faults.append(f"alternatives.{index} takes {objective:.12g}, less than the plan's {value:.12g}")
    right = f"none of {len(are_stale)} alternatives is better than the plan, or than the bound"
    return holds("ranking", not faults, right, "; ".join(faults))


def check(problem: Problem, plan: Plan | Mapping[str, object]) -> CheckReport:
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
    findings += _strange(network, "configuration", block, configuration)
    findings += limits_kept(network, usage_of(network, family, configuration, found))
    return _report(family, configuration.headline, findings)


def checked_document(document: Mapping[str, object], path: Path) -> CheckReport:
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


def recomputed(
    question: Mapping[str, object], family: str, block: Mapping[str, object], objective: float
) -> list[Finding]:
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


def predicted(problem: Problem, family: str, block: Mapping[str, object]) -> tuple[Configuration, Prediction]:
    """Return a configuration and what it costs, rebuilt from its block."""
    _, given = ConfigurationSpec.model_validate({family: problem.cluster.with_names(block)}).block
    problem = replace(problem, configuration=(family, given))
    configuration = FAMILIES[family].configuration_of(problem, given)
    return configuration, FAMILIES[family].predict(problem, configuration)


def _of_file(error: SpecError, path: Path) -> SpecError:
    """Return the error of a question with its places in the plan's file."""
    if not error.faults:
        return SpecError.one(str(error), file=path, field="problem")
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
    text = str(error)
    if isinstance(error, ValidationError):  # pydantic's own text names our classes and its pages
        rows = error.errors(include_url=False)
        text = "; ".join(
            f"{'.'.join(map(str, row['loc']))}: {row['msg'].removeprefix('Value error, ')}" for row in rows
        )
    return f"it means nothing here: {' '.join(text.split())}"


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
    yield from _strange(problem, name, block, configuration)
    yield from limits_kept(without_deadline(problem), usage_of(problem, family, configuration, found))


def _strange(problem: Problem, name: str, block: Mapping[str, Any], configuration: Configuration) -> Iterator[Finding]:
    """Yield that a block is not what its family prints of the configuration that it means, if so."""
    if faults := list(differences(name, problem.cluster.with_names(block), plain(configuration.to_document()))):
        yield Finding(name=name, is_ok=False, text="; ".join(faults[:_MOST_FAULTS]))


def _report(family: str, headline: str, findings: list[Finding]) -> CheckReport:
    """Return the report."""
    return CheckReport(family=family, headline=headline, findings=tuple(findings), not_checked=(_NOT_CHECKED,))
