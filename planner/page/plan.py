"""The page of a plan, and that of a prediction."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from planner.api import predict, timeline
from planner.errors import ModelError, PlannerError, SpecError
from planner.explanations.explanation import Explanation
from planner.page.costs import memory_section, tiles, time_section
from planner.page.origin import origin_section
from planner.page.parts import Block, Bullets, Page, Section, Text
from planner.page.proof import (
    History,
    accuracy_section,
    alternatives_section,
    certificate_section,
    frontier_section,
    notes_section,
    sensitivity_section,
)
from planner.page.schedule import MOST_LAYERS, plan_section
from planner.page.told import Told
from planner.page.words import cluster_words, family_words, goal_words, objective, size, time
from planner.plan import Configuration, Plan, Prediction
from planner.problem import Problem
from planner.solution import Status
from planner.words import beyond_words, capitalised, devices_words, proof_words, untold

__all__ = ["plan_page_of", "prediction_page_of"]

_MOST_WEIGHED = 60  # alternatives that are predicted anew for the plot of time against memory


def plan_page_of(
    plan: Plan,
    problem: Problem,
    *,
    explanation: Explanation | None = None,
    history: History = (),
    commands: Sequence[Sequence[str]] = (),
) -> Page:
    """Return the page of a plan; ``problem``: with the network that the plan trains."""
    told = Told(problem=problem, family=plan.family, configuration=plan.configuration, prediction=plan.prediction)
    sections = [
        Section(
            name="summary",
            title="In short",
            blocks=[
                *_listed("Warnings:", [*plan.cautions, *filter(None, [plan.instead])]),
                tiles(told),
                *_listed("Assumptions:", plan.key_assumptions),
                *_why(untold(plan.explanation, plan.warnings), told),
            ],
        ),
        plan_section(told, _trace(told)),
        time_section(told),
        memory_section(told),
        alternatives_section(plan),
        frontier_section(_weighed(plan, problem), plan),
        sensitivity_section(explanation, plan.goal.unit),
        certificate_section(plan, history),
        accuracy_section(plan.prediction, value=plan.objective, unit=plan.goal.unit),
        notes_section(
            {
                "Warnings": untold(plan.warnings, plan.key_assumptions),
                "Also assumed": plan.assumptions,
                "Not modelled": plan.not_modelled,
            }
        ),
        origin_section(plan.problem, commands, configuration={plan.family: told.block}),
    ]
    return Page(
        title=f"{problem.dnn.name} on {cluster_words(problem.cluster)}: the plan",
        answer=_answer(plan, problem),
        verdict=_verdict(plan, problem),
        mark="proven" if plan.status is Status.OPTIMAL else "open",
        sections=[section for section in sections if section is not None],
    )


def prediction_page_of(
    problem: Problem,
    family: str,
    configuration: Configuration,
    prediction: Prediction,
    *,
    explanation: Sequence[str] = (),
    not_modelled: Sequence[str] = (),
    key_assumptions: Sequence[str] = (),
    assumptions: Sequence[str] = (),
    cautions: Sequence[str] = (),
    commands: Sequence[Sequence[str]] = (),
) -> Page:
    """Return the page of a prediction."""
    told = Told(problem=problem, family=family, configuration=configuration, prediction=prediction)
    value = prediction.iteration_time_s
    sections = [
        Section(
            name="summary",
            title="In short",
            blocks=[
                *_listed("Warnings:", cautions),
                tiles(told),
                *_listed("Assumptions:", key_assumptions),
                *_why(explanation, told),
            ],
        ),
        plan_section(told, _trace(told)),
        time_section(told),
        memory_section(told),
        accuracy_section(prediction, value=value, unit="s"),
        notes_section(
            {
                "Warnings": untold(problem.warnings, key_assumptions),
                "Also assumed": assumptions,
                "Not modelled": not_modelled,
            }
        ),
        origin_section(problem.resolved, commands),
    ]
    return Page(
        title=f"{problem.dnn.name} on {cluster_words(problem.cluster)}: a prediction",
        answer=f"Training {problem.dnn.name} by {family_words(family)} on "
        f"{configuration.headline} takes {time(value)} an iteration.",
        verdict="A configuration as it was given: nothing says that it is the best one.",
        sections=[section for section in sections if section is not None],
    )


def _answer(plan: Plan, problem: Problem) -> str:
    """Return the answer in one sentence."""
    network = f", with {', '.join(plan.substitutions)} in the network" if plan.substitutions else ""
    return (
        f"Train {problem.dnn.name} on {cluster_words(problem.cluster)} by {family_words(plan.family)} on "
        f"{plan.configuration.headline}{network}: {goal_words(plan.goal.name)} takes "
        f"{objective(plan.objective, plan.goal.unit)}."
    )


def _verdict(plan: Plan, problem: Problem) -> str:
    """Return what is proven, and on how many of the devices."""
    where = devices_words(plan.configuration, problem)
    beyond = "".join(f" {capitalised(line)}." for line in beyond_words(plan))
    return f"{proof_words(plan)}, under this cost model{', ' * bool(where)}{where}.{beyond}"


def _listed(title: str, lines: Sequence[str]) -> list[Block]:
    """Return lines under a title; nothing where there are none."""
    return [Text(title), Bullets(lines=lines)] if lines else []


def _why(lines: Sequence[str], told: Told) -> list[Block]:
    """Return what binds; commands and refusals stand in sections of their own."""
    launch = set(told.details.get("launch", ()))
    pairs = pairwise([*lines, ""])  # what ends in a colon before the commands introduces them
    kept = [
        line
        for line, after in pairs
        if line not in launch and " gives no plan: " not in line and not (line.endswith(":") and after in launch)
    ]
    return [Text("Why:"), Bullets(lines=kept)] if kept else []


def _trace(told: Told) -> Mapping[str, Any] | None:
    """Return the schedule, where the family has one, and of so many layers that it can be looked at."""
    if len(told.problem.dnn.layers) > MOST_LAYERS:
        return None
    try:
        return timeline(told.problem, told.family, told.configuration)
    except (ModelError, SpecError):
        return None


def _weighed(plan: Plan, problem: Problem) -> list[tuple[str, float, float]]:
    """Return name, objective and memory of the plan and of the alternatives on its network, predicted anew."""
    if plan.goal.unit != "s" or "total" not in plan.prediction.memory_bytes:
        return []
    rows = [("this plan", plan.objective, float(plan.prediction.memory_bytes["total"]))]
    own = [
        one for one in plan.alternatives if one.configuration is not None and one.substitutions == plan.substitutions
    ]
    for one in own[:_MOST_WEIGHED]:
        try:
            found = predict(problem, one.configuration)
        except PlannerError:  # an alternative that was only bounded, or that another network's rules made
            continue
        memory = found.memory_bytes.get("total")
        if memory is not None:
            rows.append(
                (f"{one.name}, {size(memory)}" if one.family != plan.family else one.name, one.objective, float(memory))
            )
    is_telling = max(row[2] for row in rows) > 1.001 * min(row[2] for row in rows)
    return rows if is_telling else []
