"""The documents of an error: its faults, and where nothing fits the conflict and how far each would have to give."""

from typing import Literal

from pydantic import Field

from planner.schemas.base import Document

__all__ = ["ConflictDocument", "ErrorDocument", "FaultDocument", "FurtherConflictDocument", "RelaxationDocument"]


class FaultDocument(Document):
    """One fault: where, what, and how to mend it."""

    file: str | None
    line: int | None
    column: int | None
    field: str | None
    value: str | None
    problem: str
    mend: str | None


class RelaxationDocument(Document):
    """How far one constraint would have to give: any one of ``values`` does, the nearest first."""

    field: str
    given: str
    values: list[str]
    is_exact: bool
    is_enough: bool
    change: float | None
    note: str


class ConflictDocument(Document):
    """Constraints that leave no answer together; ``is_minimal``: there is one without any one of them, proven."""

    members: list[str]
    is_minimal: bool


class FurtherConflictDocument(ConflictDocument):
    """Another set, which shares no member with the ones before it and has to be settled, too."""

    relaxations: list[RelaxationDocument]


class ErrorDocument(Document):
    """Why there is no answer. The first fault's place stands at the top; ``faults`` lists all of them.

    ``conflict``: of an infeasible question, the constraints that conflict, and in ``relaxations`` how far each would
    have to give; null where none of the user's constraints is the reason.
    """

    schema_: Literal["planner.error/1"] = Field(alias="schema")
    kind: Literal["input", "infeasible", "limit", "bug"]
    message: str
    file: str | None
    line: int | None
    field: str | None
    value: str | None
    mend: str | None
    faults: list[FaultDocument]
    conflict: ConflictDocument | None
    relaxations: list[RelaxationDocument]
    further_conflicts: list[FurtherConflictDocument]
