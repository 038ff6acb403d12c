"""The schemas of the JSON contract: one class for every document that leaves the program, and for its parts.

``planner.plan/1``, ``planner.prediction/1``, ``planner.case/1``, ``planner.show/1``, ``planner.calibration/1``,
``planner.fit/1``, ``planner.runs/1``, ``planner.measurements/1``, ``planner.check/1``, ``planner.explanation/1``,
``planner.comparison/1``, ``planner.procurement/1``, ``planner.import/1``, ``planner.export/1`` and ``planner.error/1``;
a question is ``planner.spec/1``, of a purchase ``planner.procure/1``. Seconds, bytes and dollars throughout, as the
keys say. Numbers that are infinite or unknown are null. :mod:`planner.documents` writes them, :mod:`planner.plan_file`
reads a plan back.
"""

from collections.abc import Mapping

from pydantic import BaseModel

from planner.schemas.answers import (
    CaseDocument,
    CheckDocument,
    ExportDocument,
    ImportDocument,
    PlanDocument,
    PredictionAnswerDocument,
    ShowDocument,
)
from planner.schemas.errors import ErrorDocument
from planner.schemas.explained import ComparisonDocument, ExplanationDocument
from planner.schemas.measured import CalibrationDocument, FitDocument, MeasurementsDocument, RunsDocument
from planner.schemas.procurement import ProcurementDocument

__all__ = ["MODELS", "CaseDocument", "ComparisonDocument", "ExplanationDocument", "PlanDocument", "ProcurementDocument"]

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
