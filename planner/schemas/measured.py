"""Schemas of the documents about measurements: constants of a machine, fits, measured runs, what to measure."""

from typing import Any, Literal

from pydantic import Field

from planner.schemas.base import Document

__all__ = ["CalibrationDocument", "FitDocument", "MeasurementsDocument", "RunsDocument"]


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
