"""``planner predict``: what a given configuration costs."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Html, MeasuredTrace, MemoryLimit, RunFactory, Trace, TraceDevices, TraceIterations

__all__ = ["predict"]

_WEIGHED_S = 10.0  # the most that the effects of assumptions may take


def predict(
    spec: Annotated[
        Path, typer.Argument(help="A spec with a configuration block, or a plan that `planner plan --out` wrote.")
    ],
    trace: Trace = None,
    trace_devices: TraceDevices = None,
    trace_iterations: TraceIterations = None,
    measured: MeasuredTrace = None,
    run: RunFactory = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.prediction/1) on stdout.")] = False,
    html: Html = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """Predict time, breakdown and memory of a given configuration."""
    import planner
    from planner.api import configuration_of, with_left_out
    from planner.cli.output import check_outputs, check_trace, limit_bytes, write_text, write_trace
    from planner.cli.page import check_page
    from planner.cli.terminal import show
    from planner.documents import dump, prediction_document
    from planner.families import FAMILIES
    from planner.planning_assumptions import weigh_assumptions
    from planner.planning_cautions import little_memory
    from planner.report import prediction_text
    from planner.search import Search

    limit_bytes(memory_limit)
    check_page(html, spec)
    check_outputs({"--trace": trace, "--html": html}, spec, {"the measured trace": measured})
    step = check_trace(trace, trace_devices, trace_iterations, measured)
    problem = planner.load(spec, run=run)
    family, configuration = configuration_of(problem)
    problem = with_left_out(problem, configuration)
    prediction = planner.predict(problem, configuration)
    explanation = FAMILIES[family].explain(problem, configuration, prediction)
    search = Search(time_limit_s=_WEIGHED_S)
    value = prediction.value_of(problem.goal)
    weighed = weigh_assumptions(problem, family, configuration, value, search)
    cautions = little_memory(problem, prediction)
    if trace:
        write_trace(
            trace,
            problem,
            family,
            configuration,
            devices=trace_devices,
            num_iterations=trace_iterations or 1,
            measured=step,
        )
    block, not_modelled = configuration.to_document(), FAMILIES[family].NOT_MODELLED
    if html:
        from planner.page import prediction_page

        text = prediction_page(
            problem,
            family,
            configuration,
            prediction,
            explanation=explanation,
            not_modelled=not_modelled,
            key_assumptions=weighed.key,
            assumptions=weighed.minor,
            cautions=cautions,
            commands=[("planner", "predict", "question.yaml")],
        )
        write_text(html, text)
    if not json:
        text = prediction_text(
            problem,
            family,
            configuration,
            prediction,
            explanation,
            not_modelled,
            key_assumptions=weighed.key,
            assumptions=weighed.minor,
            cautions=cautions,
        )
        show(text, commands=prediction.details.get("launch", ()))
        return
    document = prediction_document(
        problem=problem.resolved,
        family=family,
        configuration=block,
        prediction=prediction,
        explanation=explanation,
        assumptions=[*weighed.key, *weighed.minor],
        warnings=[*cautions, *problem.warnings],
        not_modelled=not_modelled,
    )
    print(dump(document))
