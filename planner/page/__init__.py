"""Answers as pages for a browser: one file each, which asks for nothing else.

Each function returns the whole HTML text; equal answers give equal bytes. Names from files are text everywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.page.render import render

if TYPE_CHECKING:
    from planner.case.rows import CaseResult
    from planner.errors import PlannerError
    from planner.explanations.comparison import Comparison
    from planner.explanations.explanation import Explanation
    from planner.plan import Configuration, Plan, Prediction
    from planner.problem import Problem
    from planner.procurement.answer import Procured

__all__ = [
    "case_page",
    "comparison_page",
    "plan_page",
    "prediction_page",
    "procurement_page",
    "refusal_page",
    "sweep_page",
]

Command = Sequence[str]


def plan_page(
    plan: "Plan",
    problem: "Problem",
    *,
    explanation: "Explanation | None" = None,
    history: Sequence[tuple[float, float, int]] = (),
    commands: Sequence[Command] = (),
) -> str:
    """Return the page of a plan.

    Parameters
    ----------
    problem
        With the network that the plan trains: :func:`planner.networks.network_of`.
    explanation
        Of the plan, for what other hardware would bring.
    history
        Bound, incumbent and number of the step, as the search told them.
    commands
        That give the answer again, each as its arguments.

    Raises
    ------
    SpecError
        If plotly or jinja2 is not installed.
    """
    from planner.page.plan import plan_page_of  # noqa: PLC0415  # late: each kind of page for itself

    return render(plan_page_of(plan, problem, explanation=explanation, history=history, commands=commands))


def prediction_page(
    problem: "Problem",
    family: str,
    configuration: "Configuration",
    prediction: "Prediction",
    *,
    explanation: Sequence[str] = (),
    not_modelled: Sequence[str] = (),
    key_assumptions: Sequence[str] = (),
    assumptions: Sequence[str] = (),
    cautions: Sequence[str] = (),
    commands: Sequence[Command] = (),
) -> str:
    """Return the page of a prediction; raises as :func:`plan_page`."""
    from planner.page.plan import prediction_page_of  # noqa: PLC0415

    page = prediction_page_of(
        problem,
        family,
        configuration,
        prediction,
        explanation=explanation,
        not_modelled=not_modelled,
        key_assumptions=key_assumptions,
        assumptions=assumptions,
        cautions=cautions,
        commands=commands,
    )
    return render(page)


def procurement_page(
    found: "Procured", *, history: Sequence[tuple[float, float, int]] = (), commands: Sequence[Command] = ()
) -> str:
    """Return the page of a purchase; raises as :func:`plan_page`.

    Parameters
    ----------
    history
        Bound, incumbent and number of fleets planned, as the search told them.
    """
    from planner.page.procurement import procurement_page_of  # noqa: PLC0415

    return render(procurement_page_of(found, history=history, commands=commands))


def refusal_page(
    error: "PlannerError", question: Mapping[str, Any], *, subject: str, commands: Sequence[Command] = ()
) -> str:
    """Return the page of a question without an answer; raises as :func:`plan_page`.

    Parameters
    ----------
    error
        That says so: what conflicts, or which limit struck.
    question
        As plain data.
    subject
        What was asked about: a network on a cluster.
    """
    from planner.page.refusal import refusal_page_of  # noqa: PLC0415

    return render(refusal_page_of(error, question, subject=subject, commands=commands))


def comparison_page(found: "Comparison", names: tuple[str, str], *, commands: Sequence[Command] = ()) -> str:
    """Return the page of two plans side by side; ``names``: what the user calls them. Raises as :func:`plan_page`."""
    from planner.page.comparison import comparison_page_of  # noqa: PLC0415

    return render(comparison_page_of(found, names, commands=commands))


def case_page(results: Sequence["CaseResult"]) -> str:
    """Return the page of cases; raises as :func:`plan_page`."""
    from planner.page.case import case_page_of  # noqa: PLC0415

    return render(case_page_of(results))


def sweep_page(
    summary: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    *,
    title: str = "sweep",
    question: Mapping[str, Any] | None = None,
    commands: Sequence[Command] = (),
) -> str:
    """Return the page of a sweep; raises as :func:`plan_page`.

    Parameters
    ----------
    summary
        The document ``planner.sweep/1``.
    rows
        Of the sweep, with the columns of its export: ``position``, the fields that vary, ``outcome``, ``objective``,
        ``bound``, ``family``, ``headline``, ``num_devices``, ``time_s``, ``cost_usd``, ``error``.
    question
        The spec of the sweep.
    """
    from planner.page.sweep import sweep_page_of  # noqa: PLC0415

    return render(sweep_page_of(summary, rows, title=title, question=question, commands=commands))
