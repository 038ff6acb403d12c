"""Schemas of answers about one training: plan, prediction, case, check, explanation, comparison, error and more."""

from typing import Any, Literal

from pydantic import Field

from planner.schemas.base import Document

__all__ = [
    "CaseDocument",
    "CheckDocument",
    "ComparisonDocument",
    "ErrorDocument",
    "ExplanationDocument",
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


class FaultDocument(Document):
    """One fault: where, what, and how to mend it."""

    file: str | None
    line: int | None
    column: int | None
    field: str | None
    value: str | None
    problem: str
    mend: str | None


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
