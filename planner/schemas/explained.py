"""The documents of comparisons and explanations: what differs, which terms decide, what other hardware would bring."""

from typing import Any, Literal

from pydantic import Field

from planner.schemas.answers import AlternativeDocument, ObjectiveDocument
from planner.schemas.base import Document

__all__ = [
    "BreakdownTermDocument",
    "ComparedObjectiveDocument",
    "ComparedPlanDocument",
    "ComparisonDocument",
    "DifferenceDocument",
    "ExplanationDocument",
    "SensitivityDocument",
    "TermDocument",
]


class DifferenceDocument(Document):
    """What is not the same in two plans: the value in the first, and in the second; null where there is none."""

    name: str
    values: tuple[Any, Any]


class TermDocument(Document):
    """A term of the breakdown, in seconds of the objective; ``difference_s`` is second less first."""

    name: str
    seconds: tuple[float, float]
    difference_s: float


class ComparedObjectiveDocument(Document):
    """What a plan minimises, and its value."""

    name: str
    value: float


class ComparedPlanDocument(Document):
    """One of two plans."""

    headline: str
    objective: ComparedObjectiveDocument


class ComparisonDocument(Document):
    """``better``: 0 or 1, or null where the plans are equal or do not minimise the same."""

    schema_: Literal["planner.comparison/1"] = Field(alias="schema")
    plans: tuple[ComparedPlanDocument, ComparedPlanDocument]
    better: Literal[0, 1] | None
    saving: float
    decisions: list[DifferenceDocument]
    question: list[DifferenceDocument]
    terms: list[TermDocument]
    warnings: list[str]


class BreakdownTermDocument(Document):
    """Seconds of an iteration, and their share of it."""

    name: str
    seconds: float
    share: float


class SensitivityDocument(Document):
    """One change of the hardware, the question answered anew: ``saving`` is a share of the plan's objective.

    It is negative where the change costs, and null where there is no such plan; ``note`` says why. ``is_proven``: else
    the change saves at least so much, or costs at most so much.
    """

    name: str
    words: str
    objective: float | None
    saving: float | None
    is_proven: bool
    plan: str
    is_other_plan: bool
    note: str


class ExplanationDocument(Document):
    """What binds a plan, where its time goes, and what other hardware would bring; ``runners_up``: one a family."""

    schema_: Literal["planner.explanation/1"] = Field(alias="schema")
    status: Literal["optimal", "feasible"]
    objective: ObjectiveDocument
    family: str
    headline: str
    substitutions: list[str]
    binding: list[str]
    breakdown: list[BreakdownTermDocument]
    sensitivities: list[SensitivityDocument]
    runners_up: list[AlternativeDocument]
    refusals: list[str]
    proof: str
    warnings: list[str]
