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

    from planner.documents import MODELS
    from planner.procurement.spec import ProcurementSpec
    from planner.spec.question import Spec
    from planner.sweep.document import SweepDocument

    models = dict(MODELS) | {"spec": Spec, "procure": ProcurementSpec, "sweep": SweepDocument}
    model = models[document.value]
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema(by_alias=True)}
    print(library.dumps(found, indent=2, ensure_ascii=False))
