"""Answers as text and as pages, in one call each."""

from typing import Any

from planner.answer.case import case_answer
from planner.answer.comparison import comparison_answer
from planner.answer.explanation import explanation_answer
from planner.answer.html import page_of
from planner.answer.plan import plan_answer, prediction_answer
from planner.answer.procurement import procurement_answer
from planner.answer.refusal import refusal_answer
from planner.answer.sweep import sweep_answer
from planner.answer.text import text_of
from planner.planning import view_again, view_of
from planner.problem import Problem
from planner.sweep.report import summary_document


def plan_page(found: Any, problem: Problem, **options: Any) -> str:
    return page_of(plan_answer(found, view_of(problem, found), **options))


def plan_text(found: Any, problem: Problem, **options: Any) -> str:
    return text_of(plan_answer(found, view_of(problem, found), **options))


def prediction_page(found: Any, problem: Problem, **options: Any) -> str:
    return page_of(prediction_answer(found, view_of(problem, found), **options))


def procurement_page(found: Any, **options: Any) -> str:
    return page_of(procurement_answer(found, view_again, **options))


def procured_text(found: Any, **options: Any) -> str:
    return text_of(procurement_answer(found, view_again, **options))


def sweep_page(*given: Any, **options: Any) -> str:
    return page_of(sweep_answer(*given, **options))


def summary_text(found: Any, grid: Any) -> str:
    return text_of(sweep_answer(summary_document(found, grid, identity="", is_complete=True)))


def comparison_page(*given: Any, **options: Any) -> str:
    return page_of(comparison_answer(*given, **options))


def comparison_text(*given: Any, **options: Any) -> str:
    return text_of(comparison_answer(*given, **options))


def explanation_text(*given: Any, **options: Any) -> str:
    return text_of(explanation_answer(*given, **options))


def refusal_page(*given: Any, **options: Any) -> str:
    return page_of(refusal_answer(*given, **options))


def case_page(*given: Any, **options: Any) -> str:
    return page_of(case_answer(*given, **options))
