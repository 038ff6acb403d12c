"""The schemas of the JSON contract: one class for every document that leaves the program, and for its parts.

``planner.plan/1``, ``planner.prediction/1``, ``planner.case/1``, ``planner.show/1``, ``planner.calibration/1``,
``planner.fit/1``, ``planner.runs/1``, ``planner.measurements/1``, ``planner.check/1``, ``planner.explanation/1``,
``planner.comparison/1``, ``planner.procurement/1``, ``planner.import/1``, ``planner.export/1`` and ``planner.error/1``;
a question is ``planner.spec/1``, of a purchase ``planner.procure/1``. Seconds, bytes and dollars throughout, as the
keys say. Numbers that are infinite or unknown are null. :mod:`planner.answer.documents` writes them,
:mod:`planner.answer.plan_file` reads a plan back.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# --- What all documents have in common: every key is known, and nothing changes once it is read


class Document(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


# --- The documents of an error: its faults, and where nothing fits the conflict and how far each would have to give


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


# --- Schemas of answers about one training: plan, prediction, case, check, explanation, comparison, error and more


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


class RecommendedDocument(Document):
    """The plan of least risk within ``known_error`` of the best one; ``relative_loss`` 0.1 is 10 % more than that."""

    family: str
    configuration: dict[str, Any]
    substitutions: list[str]
    objective: float
    relative_loss: float
    known_error: float
    memory_bytes: dict[str, float | None]
    reasons: list[str]


class ProvenanceDocument(Document):
    """How the answer came about."""

    solver: str
    versions: dict[str, str]
    input_digest: str
    seed: int
    num_candidates: int
    num_solved: int
    plugins: dict[str, str] = {}  # none where nothing of a plug-in was asked for


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
    recommended: RecommendedDocument | None = None  # the plan itself where that was asked for; older plans have none
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
    """What a file of another program holds: a network (``dnn``), or the decisions of a launch file (``fix``).

    Of a launch file ``dnn`` and ``calibration`` say how it trains.
    """

    schema_: Literal["planner.import/1"] = Field(alias="schema")
    kind: str
    dnn: dict[str, Any] | None = None
    fix: dict[str, Any] | None = None
    calibration: dict[str, Any] | None = None
    rows: list[ImportRowDocument]
    totals: dict[str, float]
    notes: list[str]
    warnings: list[str]


# --- The documents of comparisons and explanations: what differs, which terms decide, what other hardware would bring


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
    """``better``: 0 or 1, or null where the plans are equal or ``why_neither`` says why they have no order.

    ``sample_s``: seconds of a sample of each, which decide where iterations are of different numbers of samples.
    """

    schema_: Literal["planner.comparison/1"] = Field(alias="schema")
    plans: tuple[ComparedPlanDocument, ComparedPlanDocument]
    sample_s: tuple[float, float] | None
    better: Literal[0, 1] | None
    saving: float
    why_neither: str | None
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


# --- Schemas of the documents about measurements: constants of a machine, fits, measured runs, what to measure


class MultiplyAddDocument(Document):
    """``C_muladd`` for a working set."""

    working_set_bytes: float
    seconds: float


class InterferenceDocument(Document):
    """By how much so many threads slow each other down."""

    num_threads: int
    factor: float


class CalibrationDocument(Document):
    """What the canonical loops of the Adam model take on this machine."""

    schema_: Literal["planner.calibration/1"] = Field(alias="schema")
    number_bytes: int
    num_cores: int
    multiply_add: list[MultiplyAddDocument]
    activation_s: float
    error_s: float
    interference: list[InterferenceDocument]


class ScoreDocument(Document):
    """How far off a fit is of what was left out: absolute predicted / measured - 1."""

    mean: float
    worst: float
    num_left_out: int


class FitCurveDocument(Document):
    """Timings of one collective on one number of devices, with the form that was chosen and its residuals."""

    collective: str
    num_devices: int
    files: list[str]
    form: Literal["affine", "piecewise", "curve"]
    parameters: dict[str, dict[str, float | None]]
    scores: dict[str, ScoreDocument]
    size_bytes: list[float]
    measured_s: list[float]
    residuals: list[float]
    notes: list[str]


class FitDocument(Document):
    """What was fitted to measurements; ``calibration`` is the block that a spec may hold."""

    schema_: Literal["planner.fit/1"] = Field(alias="schema")
    calibration: dict[str, Any]
    curves: list[FitCurveDocument]
    laws: list[dict[str, Any]]
    utilisation: dict[str, Any] | None
    iterations: dict[str, Any] | None
    notes: list[str]


class RunDocument(Document):
    """One measured run; ``error`` is predicted / measured - 1, null where the run has no results."""

    job: str
    session: str
    family: str
    predicted_s: float
    measured_s: float | None
    error: float | None
    breakdown_s: dict[str, float]
    notes: list[str]


class RunFamilyDocument(Document):
    """Absolute errors of the runs of one family; ``bias`` is the mean with its sign, ``worst`` a job."""

    family: str
    count: int
    mean: float
    median: float
    largest: float
    bias: float
    worst: str


class RegretDocument(Document):
    """Jobs of one session to choose among; ``regret``: the chosen one's measured seconds / the best one's - 1."""

    session: str
    jobs: list[str]
    chosen: str
    best: str
    regret: float


class RunsDocument(Document):
    """Measured runs beside their predictions."""

    schema_: Literal["planner.runs/1"] = Field(alias="schema")
    runs: list[RunDocument]
    families: list[RunFamilyDocument]
    regrets: list[RegretDocument]


class WantedDocument(Document):
    """One figure: the range in which it is taken to lie, as factors on what is counted with, and what it decides.

    ``regret`` is null where the plan in hand is none at the worse end; ``turns_at``: the factor at which ``rival`` is
    as good; ``spread``: share by which the best objective changes over the range.
    """

    name: str
    low: float
    high: float
    regret: float | None
    decides: bool
    rival: str
    turns_at: float | None
    spread: float
    how: str
    note: str


class MeasurementsDocument(Document):
    """Which measurements would sharpen a decision; what decides most stands first."""

    schema_: Literal["planner.measurements/1"] = Field(alias="schema")
    family: str
    headline: str
    objective: dict[str, float | str]
    rows: list[WantedDocument]


# --- Schemas of the answer to what to buy or rent


class FleetRowDocument(Document):
    """So many machines of an offer, at the price after discounts; ``useful_life_s`` is null where it is endless."""

    count: int
    name: str
    provider: str
    instance: str
    region: str
    term: Literal["on-demand", "spot", "reserved", "bought"]
    device: str
    devices_per_machine: int
    date: str
    source: str
    usd_per_h: float
    billing_s: float
    least_billed_s: float
    committed_s: float
    upfront_usd: float | None = None
    purchase_usd: float
    useful_life_s: float | None
    resale_usd: float | None = None
    hosting_usd_per_month: float
    power_w: float | None = None
    inside: str | None = None
    network_bytes_per_s: float | None = None
    latency_s: float
    memory_bytes: float | None = None
    vcpus: int | None = None
    interruptions_per_h: float
    most: int | None = None
    lead_time_s: float | None = None
    note: str
    tier: str | None = None


class FleetErrorDocument(Document):
    """Measured / predicted - 1 of such plans, its least and its largest."""

    low: float
    high: float


class FleetDocument(Document):
    """A fleet's run: ``breakdown_s`` sums to ``wall_time_s``, ``breakdown_usd`` to ``cost_usd``.

    Where jobs share the machines, of a month. ``spent_usd`` holds the whole purchase instead of the run's share in it;
    of a month it is the first one's, with all that reservations take at the start.
    """

    fleet: list[FleetRowDocument]
    objective: float
    cost_usd: float
    spent_usd: float
    breakdown_usd: dict[str, float]
    wall_time_s: float
    breakdown_s: dict[str, float]
    training_s: dict[str, float]
    job_wall_s: dict[str, float]
    energy_j: float | None
    power_w: float | None
    capital_usd: float
    worth_usd: float | None = None
    unmeasured: list[str] = []
    carbon_g: float | None = None
    upfront_usd: float | None = None
    error: FleetErrorDocument | None


class ChosenFleetDocument(FleetDocument):
    """The fleet that was chosen, with the plan of each job."""

    plans: dict[str, PlanDocument]


class TradeoffPlanDocument(Document):
    """How a job trains on a fleet that is not the answer."""

    status: Literal["optimal", "feasible"]
    objective: float
    bound: float
    family: str
    configuration: dict[str, Any]


class OtherFleetDocument(FleetDocument):
    """A fleet that is not the answer; ``words``: how sure it is, or what it misses; files of old have no ``plans``."""

    words: str
    plans: dict[str, TradeoffPlanDocument] = {}


class TradeoffDocument(FleetDocument):
    """A fleet that none beats in time and money; ``is_tie``: closer to the one before than the known error."""

    is_tie: bool
    plans: dict[str, TradeoffPlanDocument]


class TradeoffsDocument(Document):
    """All fleets that none beats, fastest first; ``gap``: by what factor less 1 one that is left might beat them."""

    status: Literal["optimal", "feasible"]
    gap: float | None
    points: list[TradeoffDocument]


class FleetCertificateDocument(Document):
    """What was proven, over what; bounds by the most types of machines in a fleet, null where there is none."""

    bounds_by_types: dict[str, float | None]
    domain: list[str]
    num_offers: int
    num_markets: int
    num_planned: int


class MonthDocument(Document):
    """What a machine costs in a month of so many hours of use."""

    hours: float
    rent_usd: float
    buy_usd: float


class PaidDocument(Document):
    """What was paid in all after so many months of use around the clock."""

    months: float
    rent_usd: float
    buy_usd: float


class BreakEvenDocument(Document):
    """From how many hours of use a month on buying costs less; null: never.

    ``payback_months``: used around the clock; null: not in its life.
    """

    rented: str
    bought: str
    hours_per_month: float | None
    rows: list[MonthDocument]
    payback_months: float | None = None
    curve: list[PaidDocument] = []
    words: str = ""


class WhatIfDocument(Document):
    """The best fleet after a change, null where there is none."""

    change: str
    fleet: list[FleetRowDocument] | None
    objective: float | None
    changes_decision: bool
    words: str


class RiskDocument(Document):
    """What the fleet comes to where training takes as long as it may, by whose error, and the limits missed there."""

    training_s: dict[str, float]
    origin: str
    wall_s: float
    cost_usd: float
    missed: list[str]


class ProcurementDocument(Document):
    """What to buy or rent, its proof, and the question; ``objective`` is in dollars, seconds or joules by its name.

    ``margin``: by what share training may take longer until the deadline is missed; null without one. ``stretch``: what
    training was taken to take over what is predicted; 1 but with ``--robust``. ``risk``: null where no error is known.
    ``by_deadline``: what other deadlines cost, of fleets that were planned, fastest first; they may miss the limits on
    time and money.
    """

    schema_: Literal["planner.procurement/1"] = Field(alias="schema")
    status: Literal["optimal", "feasible"]
    problem: dict[str, Any]
    objective: ObjectiveDocument
    choice: ChosenFleetDocument
    certificate: FleetCertificateDocument
    margin: float | None
    risk: RiskDocument | None = None
    stretch: float
    explanation: list[str]
    alternatives: list[OtherFleetDocument]
    by_deadline: list[OtherFleetDocument] = []
    break_even: list[BreakEvenDocument]
    pareto: TradeoffsDocument | None
    what_if: list[WhatIfDocument]
    assumptions: list[str]
    warnings: list[str]
    not_modelled: list[str]
    prices: dict[str, Any]


MODELS: Mapping[str, type[BaseModel]] = {
    "plan": PlanDocument,
    "prediction": PredictionAnswerDocument,
    "case": CaseDocument,
    "show": ShowDocument,
    "calibration": CalibrationDocument,
    "fit": FitDocument,
    "runs": RunsDocument,
    "measurements": MeasurementsDocument,
    "check": CheckDocument,
    "explanation": ExplanationDocument,
    "comparison": ComparisonDocument,
    "procurement": ProcurementDocument,
    "import": ImportDocument,
    "export": ExportDocument,
    "error": ErrorDocument,
}
