"""Schemas of answers about one training: plan, prediction, case, check, explanation, comparison, error and more."""

from typing import Any, Literal

from pydantic import Field

from planner.schemas.base import Document

__all__ = [
    "CaseDocument",
    "CheckDocument",
    "ExportDocument",
    "ImportDocument",
    "ObjectiveDocument",
    "PlanDocument",
    "PredictionAnswerDocument",
    "ShowDocument",
]


class ObjectiveDocument(Document):
    """What is minimised; ``bound``: no plan does better; ``gap = (value - bound) / value``."""

    name: str
    value: float
    bound: float
    gap: float


class ErrorBandDocument(Document):
    """Measured / predicted - 1 of such predictions.

    The share of left-out rows within; where and under which conditions.
    """

    low: float
    high: float
    coverage: float
    from_: str = Field(alias="from")
    conditions: str


class PredictionDocument(Document):
    """``breakdown_s`` sums to ``iteration_time_s``, ``breakdown_usd`` to ``cost_usd``."""

    iteration_time_s: float
    epoch_time_s: float | None
    training_time_s: float | None
    breakdown_s: dict[str, float]
    communication_s: dict[str, float]
    scaling_factor: float
    communication_to_computation: float | None
    memory_bytes: dict[str, float | None]
    cost_usd: float | None
    breakdown_usd: dict[str, float]
    relative_error: ErrorBandDocument | None
    details: dict[str, Any]


class AlternativeDocument(Document):
    """What lost, and by how much: ``relative_loss`` 0.1 is 10 % more than the plan."""

    name: str
    family: str
    objective: float
    relative_loss: float
    reason: str
    configuration: dict[str, Any] | None
    substitutions: list[str] = []


class ProvenanceDocument(Document):
    """How the answer came about."""

    solver: str
    versions: dict[str, str]
    input_digest: str
    seed: int
    num_candidates: int
    num_solved: int


class PlanDocument(Document):
    """The best configuration, its proof, and the resolved question."""

    schema_: Literal["planner.plan/1"] = Field(alias="schema")
    status: Literal["optimal", "feasible"]
    problem: dict[str, Any]
    objective: ObjectiveDocument
    family: str
    configuration: dict[str, Any]
    substitutions: list[str] = []  # plans written before there were any have none
    prediction: PredictionDocument
    explanation: list[str]
    assumptions: list[str]
    warnings: list[str]
    not_modelled: list[str]
    domain: list[str]
    alternatives: list[AlternativeDocument]
    provenance: ProvenanceDocument


class PredictionAnswerDocument(Document):
    """The cost of a given configuration."""

    schema_: Literal["planner.prediction/1"] = Field(alias="schema")
    problem: dict[str, Any]
    family: str
    configuration: dict[str, Any]
    prediction: PredictionDocument
    explanation: list[str]
    assumptions: list[str]
    warnings: list[str]
    not_modelled: list[str]


class CaseRowDocument(Document):
    """One quantity: theirs, ours, and whether they agree within the tolerance."""

    case: str
    quantity: str
    unit: str
    published: float
    ours: float
    relative_difference: float | None
    tolerance: str
    class_: Literal["exact", "derived", "fitted", "measured"] = Field(alias="class")
    ok: bool


class CaseDocument(Document):
    """All rows of the cases that were asked for; cases without their data are named with the reason."""

    schema_: Literal["planner.case/1"] = Field(alias="schema")
    rows: list[CaseRowDocument]
    skipped: dict[str, str]


class ShowDocument(Document):
    """A table of what is built in."""

    schema_: Literal["planner.show/1"] = Field(alias="schema")
    what: str
    rows: list[dict[str, Any]]
    totals: dict[str, Any]


class FindingDocument(Document):
    """One thing that was checked, in words and with its figures."""

    name: str
    ok: bool
    text: str
    values: dict[str, Any]


class CheckDocument(Document):
    """What is right and wrong about a plan; ``not_checked``: what no plan can show by itself."""

    schema_: Literal["planner.check/1"] = Field(alias="schema")
    ok: bool
    family: str
    findings: list[FindingDocument]
    not_checked: list[str]


class ExportDocument(Document):
    """Launch files of a plan for one target: text by file name, and what the target cannot express."""

    schema_: Literal["planner.export/1"] = Field(alias="schema")
    target: str
    version: str
    files: dict[str, str]
    notes: list[str]
    how_to_run: list[str]


class ImportRowDocument(Document):
    """All layers of one kind, for one sample."""

    kind: str
    layers: int
    trainable: int
    multiply_adds: int
    output_elements: int


class ImportDocument(Document):
    """What a file of another program holds: a network (``dnn``), or the decisions of a launch file (``fix``)."""

    schema_: Literal["planner.import/1"] = Field(alias="schema")
    kind: str
    dnn: dict[str, Any] | None = None
    fix: dict[str, Any] | None = None
    rows: list[ImportRowDocument]
    totals: dict[str, float]
    notes: list[str]
    warnings: list[str]
