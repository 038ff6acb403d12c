"""What keeps a plan from being run as it is: no program that starts it, or memory that is all but full."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import PlannerError
from planner.exporters.export import Job
from planner.exporters.programs_inside import refusal_of
from planner.families import FAMILIES
from planner.family_names import FAMILY_NAMES
from planner.networks import asked, network_of
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem
from planner.ranking import best_plan
from planner.ranking_words import ranked_alternative
from planner.search import Search
from planner.solution import SAME
from planner.words import percent_words, size_words, time_words

__all__ = ["NOT_ASKED", "Launchable", "launchable", "little_memory"]

_GIB = 2.0**30
_BY_HAND = "write a launch script by hand, or give other families or devices"
_MOST_TRIED = 30  # alternatives that are asked about
_MOST_LATE = 3  # of them, once the time is over
_MOST_PLANNED = 6  # questions that are planned for a plan that can be launched


def little_memory(problem: Problem, prediction: Prediction) -> tuple[str, ...]:
    """Return a warning where the fullest accelerator has little memory left, less than predictions of memory are off.

    Little is less than 1 GiB or 2 % of its memory, whichever is more, as buffers of NCCL and pieces of free memory take
    that; of small devices a tenth. A limit that the user sets below the device's memory leaves room by itself.
    """
    held, own = prediction.memory_bytes, problem.limits.memory_per_device_bytes
    limit = held.get("limit", float("inf"))
    kinds = {group.device.kind for group in problem.cluster.machine_groups}
    if limit == float("inf") or kinds <= {"cpu"} or (own is not None and own <= limit):
        return ()
    left = limit - held["total"]
    if not 0 <= left < min(max(_GIB, 0.02 * limit), 0.1 * limit):
        return ()
    return (
        f"only {size_words(left)} of {size_words(limit)} stay free on the fullest device: training may run out of "
        f"memory. Set calibration.memory_reserve to keep more free",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launchable:
    """What is told of a plan that no target can launch, and the best one that some target can, where it is new.

    ``better``: that one, if it answers the question and beats the plan itself, whose search was cut off.
    """

    better: Plan | None = None
    cautions: tuple[str, ...] = ()
    instead: str = ""
    alternatives: tuple[Alternative, ...] = ()


NOT_ASKED = Launchable(
    cautions=("whether a target of `planner export` can launch this plan was not asked: no time left",)
)


def launchable(problem: Problem, plan: Plan, search: Search) -> Launchable:
    """Return nothing for a plan that some target of `planner export` can launch; else why, and the best that one can.

    Looked for among the plan's alternatives, and, in the time that is left, by planning again without what no target
    runs.
    """
    why = _refusal(problem, plan)
    if why is None:
        return Launchable()
    name = plan.goal.name.replace("_", " ")
    found = _best(problem, plan, search)
    begin = f"no target of `planner export` can launch this plan: {why}"
    if found is None:
        return Launchable(cautions=(f"{begin}. No plan that one can launch was found: {_BY_HAND}",))
    best, how = found
    is_asked = best.family in problem.families
    if is_asked and plan.bound <= best.objective < plan.objective * (1 - SAME):
        return Launchable(better=best)
    value = time_words(best.objective) if plan.goal.unit == "s" else f"{best.objective:.6g} {plan.goal.unit}"
    loss = percent_words(best.objective / plan.objective - 1 if plan.objective else 0.0, is_signed=True)
    what = f"{best.family} on {best.configuration.headline}, {name} {value} ({loss})"
    is_new = all((one.family, one.configuration) != (best.family, best.configuration) for one in plan.alternatives)
    return Launchable(
        cautions=(begin,),
        instead=f"best plan found that can be launched: {what}; ask for it with {how}",
        alternatives=(ranked_alternative(best, plan),) if is_new and is_asked else (),
    )


def _refusal(problem: Problem, plan: Plan) -> str | None:
    """Return why no target can launch a plan; None where one can."""
    return refusal_of(Job(problem=network_of(asked(problem), plan.substitutions), plan=plan))


def _best(problem: Problem, plan: Plan, search: Search) -> tuple[Plan, str] | None:
    """Return the best plan that a target can launch, and how it is asked for."""
    best = _best_alternative(problem, plan, search)
    waiting = _narrowed(problem, plan)
    others = tuple(one for one in FAMILY_NAMES if one not in problem.families)
    for tried in range(_MOST_PLANNED):
        if not waiting and best is None and others:  # families that were not asked for
            waiting, others = [replace(problem, families=others)], ()
        if not waiting or search.is_over:
            break
        question = waiting.pop(0)
        cutoff = float("inf") if best is None else best[0].objective
        part = search.part(search.left_s / min(len(waiting) + 1, _MOST_PLANNED - tried), num_alternatives=0)
        part.cutoff = cutoff
        try:
            found = best_plan(question, part)
        except PlannerError:
            continue
        if found.objective >= cutoff:
            continue
        if _refusal(question, found) is None:
            best = found, _how(problem, question, found)
        else:
            waiting += _narrowed(question, found)
    return best


def _best_alternative(problem: Problem, plan: Plan, search: Search) -> tuple[Plan, str] | None:
    """Return the best of a plan's alternatives that a target can launch."""
    for number, one in enumerate(plan.alternatives[:_MOST_TRIED]):
        if search.is_over and number >= _MOST_LATE:
            break
        if one.configuration is None:
            continue
        network = network_of(asked(problem), one.substitutions)
        try:
            prediction = FAMILIES[one.family].predict(network, one.configuration)
        except PlannerError:
            continue
        found = replace(
            plan,
            family=one.family,
            configuration=one.configuration,
            prediction=prediction,
            objective=prediction.value_of(problem.goal),
            substitutions=one.substitutions,
        )
        if _refusal(problem, found) is None:
            is_other = one.family != plan.family
            return found, f"--families {one.family}" if is_other else "its configuration, which --json lists"
    return None


def _narrowed(problem: Problem, plan: Plan) -> list[Problem]:
    """Return the questions that leave out what a plan cannot be launched with: its family, or decisions of it."""
    families = tuple(one for one in problem.families if one != plan.family)
    found = [replace(problem, families=families)] if families else []
    kinds = {group.device.name: None for group in problem.cluster.training_groups(problem.fixed.get("device"))}
    pins: Sequence[Mapping[str, str]] = [{"schedule": "1f1b"}] if plan.family == "pipeline" else []
    if len(kinds) > 1:
        pins = [*pins, *({"device": name} for name in kinds)]
    own = [
        one for one in pins if not one.keys() & problem.fixed.keys() and one.keys() <= FAMILIES[plan.family].DECISIONS
    ]
    return found + [replace(problem, families=(plan.family,), fixed={**problem.fixed, **one}) for one in own]


def _how(problem: Problem, question: Problem, found: Plan) -> str:
    """Return how a narrower question is asked."""
    pins = [f"fix.{name}: {value}" for name, value in question.fixed.items() if name not in problem.fixed]
    return " and ".join([f"--families {found.family}", *pins])
