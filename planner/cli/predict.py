"""``planner predict``: what a given configuration costs."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["predict"]


def predict(
    spec: Annotated[
        Path, typer.Argument(help="A spec with a configuration block, or a plan that `planner plan --out` wrote.")
    ],
    trace: Annotated[
        Path | None, typer.Option(help="Write the schedule as a Chrome trace, for ui.perfetto.dev.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.prediction/1) on stdout.")] = False,
) -> None:
    """Predict time, breakdown and memory of a given configuration."""
    import planner
    from planner.api import configuration_of
    from planner.cli.output import write_trace
    from planner.documents import dump, prediction_document
    from planner.families import FAMILIES
    from planner.report import prediction_text

    problem = planner.load(spec)
    family, configuration = configuration_of(problem)
    prediction = planner.predict(problem, configuration)
    explanation = FAMILIES[family].explain(problem, configuration, prediction)
    if trace:
        write_trace(trace, problem, family, configuration, question=spec)
    block, not_modelled = configuration.to_document(), FAMILIES[family].NOT_MODELLED
    if not json:
        print(prediction_text(problem, family, configuration, prediction, explanation, not_modelled))
        return
    document = prediction_document(
        problem=problem.resolved,
        family=family,
        configuration=block,
        prediction=prediction,
        explanation=explanation,
        assumptions=problem.assumptions,
        warnings=problem.warnings,
        not_modelled=not_modelled,
    )
    print(dump(document))
