"""Which few measurements would sharpen a decision most: those on which the ranking of the best plans depends.

Each figure that a plan rests on is known within a range: narrow where it was measured, wide where it was looked up. The
question is asked again at both ends of each range, and answered anew. Where another plan wins there, the plan in hand
would be regretted by so much, and somewhere in between lies the value at which the two are equal: measuring which side
of it the truth lies on settles the decision. Where none wins, measuring that figure changes the prediction alone.

One figure at a time is moved. Ranges of figures that were not measured are assumed; see
:data:`planner.calibration.wanted_figures.ASSUMED`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.calibration.wanted_figures import Figure, figures_of, range_of
from planner.checks.carried import carried
from planner.errors import Fault, InfeasibleError, NoAnswerError, PlannerError, SpecError
from planner.explanations.sensitivity import headline
from planner.plan import Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search

__all__ = ["Wanted", "WantedMeasurements", "measurements_wanted"]

_MATTERS = 1e-3  # a regret below which no one would measure
_SAME = 1e-6  # a relative difference below which two plans are as good as each other
_STEPS = 20  # of halving, by which the value where two plans are equal is found


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One figure, and what measuring it would settle.

    Attributes
    ----------
    name
        ``network``, ``inside``, ``device:NAME``, ``start``, ``input`` or ``memory``.
    low, high
        Factors on what the plan counts with, between which the truth is taken to lie.
    regret
        How much slower the plan in hand is than the best one, at the worse end; infinite where it does not fit there.
    rival
        The plan that wins there; empty where none does.
    turns_at
        Factor at which plan and rival are equal; None where no rival wins, or the plan in hand ends to fit.
    spread
        Share by which the best objective changes from one end to the other: what the prediction gains by measuring.
    how
        What to run, and what reads it.
    note
        Ends that were not answered in time.
    """

    name: str
    words: str
    low: float
    high: float
    regret: float
    rival: str
    turns_at: float | None
    spread: float
    how: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedMeasurements:
    """The plan in hand, and its figures, the one that decides most first."""

    plan: Plan
    rows: tuple[Wanted, ...]

    @property
    def deciding(self) -> tuple[Wanted, ...]:
        """Those that can change which plan is best."""
        return tuple(row for row in self.rows if row.regret > _MATTERS)

    def to_document(self) -> dict[str, Any]:
        """Return ``planner.measurements/1``; what is infinite is null."""
        plan = self.plan
        return {
            "schema": "planner.measurements/1",
            "family": plan.family,
            "headline": headline(plan),
            "objective": {"name": plan.goal.field, "value": plan.objective, "bound": plan.bound, "gap": plan.gap},
            "rows": [
                {
                    "name": row.name,
                    "low": row.low,
                    "high": row.high,
                    "regret": row.regret if math.isfinite(row.regret) else None,
                    "decides": row.regret > _MATTERS,
                    "rival": row.rival,
                    "turns_at": row.turns_at,
                    "spread": row.spread,
                    "how": row.how,
                    "note": row.note,
                }
                for row in self.rows
            ],
        }


def measurements_wanted(
    problem: Problem, plan: Plan, search: Search, *, ranges: Mapping[str, tuple[float, float]] | None = None
) -> WantedMeasurements:
    """Return which figures decide whether a plan is the best one.

    Parameters
    ----------
    ranges
        By name of a figure, or of its kind: factors between which the truth lies, instead of those assumed.

    Raises
    ------
    SpecError
        If a range is of no figure of this question, or is none.
    """
    figures = figures_of(problem, plan)
    given = dict(ranges or {})
    _check(given, figures)
    rows = []
    for index, figure in enumerate(figures):
        low, high = given.get(figure.name) or given.get(figure.kind) or range_of(figure)
        rows.append(_wanted(figure, plan, low, high, search.part(search.left_s / (len(figures) - index))))
    return WantedMeasurements(plan=plan, rows=tuple(sorted(rows, key=lambda row: (-row.regret, -row.spread))))


def _check(given: Mapping[str, tuple[float, float]], figures: Sequence[Figure]) -> None:
    """Refuse ranges of what is no figure here, and those that are none."""
    known = {name for figure in figures for name in (figure.name, figure.kind)}
    for name, (low, high) in given.items():
        field = f"range {name}"
        if name not in known:
            problem, mend = "this question has no such figure.", f"Known: {', '.join(sorted(known))}."
            raise SpecError.of([Fault(file="command line", field=field, value=name, problem=problem, mend=mend)])
        if not 0.01 <= low <= 1 <= high <= 100:
            problem = f"{low:g}..{high:g} is no range of factors around 1, within 0.01..100."
            raise SpecError.of([Fault(file="command line", field=field, problem=problem, mend="Write e.g. 0.8..1.1.")])


def _wanted(figure: Figure, plan: Plan, low: float, high: float, search: Search) -> Wanted:
    """Return what measuring one figure would settle."""
    ends = [factor for factor in (low, high) if factor != 1]
    found = [
        _end(figure, plan, factor, search.part(search.left_s / (len(ends) - at))) for at, factor in enumerate(ends)
    ]
    worst = max(found, key=lambda end: end.regret, default=None)
    objectives = [plan.objective, *(end.best.objective for end in found if end.best is not None)]
    is_turned = worst is not None and worst.best is not None and worst.regret > _SAME
    return Wanted(
        name=figure.name,
        words=figure.words,
        low=low,
        high=high,
        regret=max(worst.regret, 0.0) if worst is not None else 0.0,
        rival=_told_apart(worst.best, plan) if is_turned and worst is not None and worst.best is not None else "",
        turns_at=_turn(figure, plan, worst) if is_turned and worst is not None else None,
        spread=(max(objectives) - min(objectives)) / plan.objective if plan.objective else 0.0,
        how=figure.how,
        note="; ".join(f"at {end.factor:g}: {end.note}" for end in found if end.note),
    )


def _told_apart(rival: Plan, plan: Plan) -> str:
    """Return a plan in a few words, with what makes it another one where those are the same."""
    words = headline(rival)
    if words != headline(plan):
        return words
    before, after = plan.configuration.to_document(), rival.configuration.to_document()
    others = [key.replace("_", " ") for key, value in after.items() if before.get(key) != value]
    return f"{words}, with other {' and '.join(others)}" if others else words


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """The best plan at one end of a range, and how much slower the plan in hand is there."""

    factor: float
    best: Plan | None
    regret: float
    note: str = ""


def _end(figure: Figure, plan: Plan, factor: float, search: Search) -> _End:
    """Return what is best at one end."""
    problem = figure.moved(factor)
    kept = carried(problem, plan)
    try:
        best = best_plan(problem, search)
    except (InfeasibleError, NoAnswerError) as error:
        note = "no plan fits" if isinstance(error, InfeasibleError) else "not answered in time"
        return _End(factor=factor, best=kept, regret=0.0, note=note)
    if kept is None:
        return _End(factor=factor, best=best, regret=math.inf, note="the plan in hand is none there")
    if kept.objective <= best.objective:
        return _End(factor=factor, best=kept, regret=0.0)
    return _End(factor=factor, best=best, regret=kept.objective / best.objective - 1)


def _turn(figure: Figure, plan: Plan, end: _End) -> float | None:
    """Return the factor at which the plan in hand and the one that wins at the end are equal; by halving, in log."""
    assert end.best is not None, "asked where one wins"
    # A plan of the same question, as the checker asks.
    winner = replace(end.best, provenance=plan.provenance, problem=plan.problem)
    near, far = 0.0, math.log(end.factor)
    for _ in range(_STEPS):
        middle = (near + far) / 2
        kept, rival = (_at(figure.moved(math.exp(middle)), one) for one in (plan, winner))
        if kept is None:
            far = middle
        elif rival is None or kept <= rival * (1 + _SAME):
            near = middle
        else:
            far = middle
    return math.exp(far)


def _at(problem: Problem, plan: Plan) -> float | None:
    """Return the objective of a plan's configuration on another question; None where it is none there."""
    try:
        found = carried(problem, plan)
    except PlannerError:
        return None
    return None if found is None else found.objective
