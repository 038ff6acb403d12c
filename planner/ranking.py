"""One ranking over all families: the same objective, one bound, and why the losers lost.

The bound of the ranking is the least bound of any family that may answer; a family that found nothing before its limit
leaves nothing proven.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families import FAMILIES
from planner.families.answer import SAME
from planner.families.searches import SEARCHES
from planner.plan import Alternative, Plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.units import Dimension, format_human

__all__ = ["best_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Why a family gives no plan; ``is_open``: not because there is none, but because a limit struck."""

    family: str
    reason: str
    is_open: bool = False


def best_plan(problem: Problem, search: Search) -> Plan:
    """Return the best plan of all families that the question allows.

    Raises
    ------
    InfeasibleError
        If no family has an answer, or none meets the deadline: with every family's reason.
    NoAnswerError
        If a limit struck before any answer, or before one that meets the deadline.
    """
    plans: list[Plan] = []
    refusals: list[_Refusal] = []
    families = [name for name in problem.families if name in SEARCHES]
    for index, family in enumerate(families):
        part = search.part(search.left_s / (len(families) - index), num_alternatives=search.num_alternatives)
        answer = _answer(problem, family, part)
        if isinstance(answer, Plan):
            plans.append(answer)
        else:
            refusals.append(answer)
        if plans and min(one.objective for one in plans) <= search.good_enough:
            break
    if not plans:
        text = "\n".join(f"{one.family}: {one.reason}" if len(refusals) > 1 else one.reason for one in refusals)
        raise (NoAnswerError if any(one.is_open for one in refusals) else InfeasibleError)(text)
    best = min(plans, key=lambda one: one.objective)
    is_open = any(one.is_open for one in refusals)
    found = _ranked(best, [one for one in plans if one is not best], refusals, 0.0 if is_open else float("inf"))
    _check_deadline(problem, found)
    return found


def _answer(problem: Problem, family: str, search: Search) -> Plan | _Refusal:
    """Return a family's plan, or why there is none."""
    if stranger := sorted(problem.fixed.keys() - FAMILIES[family].DECISIONS):
        return _Refusal(family=family, reason=f"it does not decide fix.{stranger[0]}, which is pinned.")
    if search.is_over:
        return _Refusal(family=family, reason="the time limit came before its turn.", is_open=True)
    try:
        return SEARCHES[family](problem, search)
    except (InfeasibleError, SpecError) as error:
        return _Refusal(family=family, reason=str(error))
    except NoAnswerError as error:
        return _Refusal(family=family, reason=str(error), is_open=True)


def _ranked(best: Plan, losers: Iterable[Plan], refusals: Iterable[_Refusal], open_bound: float) -> Plan:
    """Return the best plan with the bound over all families, and the losers as alternatives."""
    losers = sorted(losers, key=lambda one: one.objective)
    bound = min([best.bound, open_bound, *(one.bound for one in losers)])
    is_proven = best.objective - bound <= SAME * best.objective
    others = [
        Alternative(
            name=f"{one.family}: {one.configuration.headline}",
            family=one.family,
            objective=one.objective,
            relative_loss=one.objective / best.objective - 1 if best.objective else 0.0,
            reason=one.explanation[0] if one.explanation else "",
            configuration=one.configuration,
        )
        for one in losers
    ]
    refused = tuple(f"{one.family} gives no plan: {one.reason}" for one in refusals)
    return replace(
        best,
        status=Status.OPTIMAL if is_proven else Status.FEASIBLE,
        bound=best.objective if is_proven else bound,
        alternatives=tuple(sorted([*best.alternatives, *others], key=lambda one: one.objective)),
        explanation=(*best.explanation, *refused),
    )


def _check_deadline(problem: Problem, best: Plan) -> None:
    """Refuse a plan that misses the deadline; say by how much, if no plan meets it, or that none was found."""
    deadline_s, prediction = problem.limits.deadline_s, best.prediction
    needed_s = prediction.epoch_time_s if prediction.training_time_s is None else prediction.training_time_s
    if deadline_s is None or needed_s is None or needed_s <= deadline_s:
        return
    least_s = needed_s * best.bound / best.objective
    what = "an epoch" if prediction.training_time_s is None else "the training"
    limit = f"constraints.deadline is {format_human(deadline_s, Dimension.TIME)}"
    if least_s <= deadline_s:
        raise NoAnswerError(
            f"No plan found: {what} takes {format_human(needed_s, Dimension.TIME)} with the best one, {limit}, and it "
            f"is only proven that none takes less than {format_human(least_s, Dimension.TIME)}. Raise --time-limit."
        )
    raise InfeasibleError(
        f"No plan fits: {what} takes at least {format_human(least_s, Dimension.TIME)}, and {limit}. Raise it to "
        f"{format_human(needed_s * 1.001, Dimension.TIME, 4)}, or add machines."
    )
