"""The schema of ``planner.sweep/1``: what ``planner sweep --json`` prints. Seconds and dollars, as the keys say."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from planner.sweep.answers import Outcome

__all__ = ["SweepDocument"]


class _Document(BaseModel):
    """A part of the document."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class TradeOffDocument(_Document):
    """The rows that none beats in both of two columns, the least of the first one first."""

    columns: list[str]
    rows: list[dict[str, Any]]


class ValueDocument(_Document):
    """What a value does against the first one of its axis, all else equal: mean ``ratio`` over ``num_pairs``."""

    value: list[Any]
    ratio: float | None
    num_pairs: int
    num_answered: int
    best: float | None


class EffectDocument(_Document):
    """One field, or several that vary together."""

    fields_: list[str] = Field(alias="fields")
    values: list[ValueDocument]


class FailureDocument(_Document):
    """Questions without a plan for one reason; ``example``: of the first of them, at its position."""

    outcome: Outcome
    reason: str
    number: int
    position: int
    example: str


class SweepDocument(_Document):
    """What a sweep found so far; rows hold ``position``, the fields that vary, and the columns of an export."""

    schema_: str = Field(alias="schema", pattern=r"^planner\.sweep/1$")
    identity: str
    fields_: list[str] = Field(alias="fields")
    number: int
    is_complete: bool
    counts: dict[Outcome, int]
    wall_s: float
    objective_name: str | None
    num_other_objectives: int
    best: list[dict[str, Any]]
    pareto: TradeOffDocument | None
    effects: list[EffectDocument]
    failures: list[FailureDocument]
