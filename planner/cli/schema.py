"""``planner schema``: JSON Schemas, for editors and for readers of the documents."""

from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["schema"]


class Document(StrEnum):
    """What has a schema."""

    SPEC = "spec"
    PROCURE = "procure"
    PLAN = "plan"
    PREDICTION = "prediction"
    CASE = "case"
    SHOW = "show"
    CALIBRATION = "calibration"
    FIT = "fit"
    RUNS = "runs"
    MEASUREMENTS = "measurements"
    CHECK = "check"
    EXPLANATION = "explanation"
    COMPARISON = "comparison"
    PROCUREMENT = "procurement"
    SWEEP = "sweep"
    IMPORT = "import"
    EXPORT = "export"
    ERROR = "error"


def schema(
    document: Annotated[Document, typer.Argument(help="Which one.")] = Document.SPEC,
    json: Annotated[bool, typer.Option("--json", help="A schema is JSON anyway.")] = False,
) -> None:
    """Print the JSON Schema of a question (spec, or procure: of what to buy or rent) or of an answer."""
    import json as library

    from planner.procurement.spec import ProcurementSpec
    from planner.schemas import MODELS
    from planner.spec.question import Spec
    from planner.sweep.document import SweepDocument
    from planner.sweep.question import question_schema

    questions: dict[str, type[Spec | ProcurementSpec]] = {"spec": Spec, "procure": ProcurementSpec}
    if document.value in questions:
        found = question_schema(questions[document.value])
    else:
        found = (dict(MODELS) | {"sweep": SweepDocument})[document.value].model_json_schema(by_alias=True)
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
    print(library.dumps(found, indent=2, ensure_ascii=False))
