"""``planner plan``: the best plan of a question."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import (
    Html,
    MeasuredTrace,
    MemoryLimit,
    RunFactory,
    Scheduler,
    Trace,
    TraceDevices,
    TraceIterations,
    Workers,
    check_helpers,
)

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.problem import Problem

__all__ = ["plan"]

_SHORT = "Short question"
_MOST_EXPLAINED_S = 20.0


def plan(
    spec: Annotated[Path | None, typer.Argument(help="The question, YAML or JSON; `planner init` writes one.")] = None,
    dnn: Annotated[
        str | None,
        typer.Option(
            help="Zoo name, model.onnx, config.json, profile, trace, or torch:package:factory.", rich_help_panel=_SHORT
        ),
    ] = None,
    machines: Annotated[
        str | None,
        typer.Option(
            help="E.g. 4x8xrtx-2080-ti or 4xdgx-h100 (`planner show machines`); unlike ones after commas.",
            rich_help_panel=_SHORT,
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="A testbed by name, e.g. osf-testbed.", rich_help_panel=_SHORT)
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="Of each network card, '25 Gbit/s', or of all of a machine, '8 x 400 Gbit/s'.", rich_help_panel=_SHORT
        ),
    ] = None,
    nics: Annotated[int | None, typer.Option(help="Network cards of a machine.", rich_help_panel=_SHORT)] = None,
    latency: Annotated[str | None, typer.Option(help="Per hop, e.g. '20 us'.", rich_help_panel=_SHORT)] = None,
    inside: Annotated[
        str | None, typer.Option(help="Link inside a machine, e.g. nvlink-3.", rich_help_panel=_SHORT)
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Samples per device.", rich_help_panel=_SHORT)] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(help="Samples per iteration; then the number of devices is open.", rich_help_panel=_SHORT),
    ] = None,
    profile_batch: Annotated[
        int | None, typer.Option(help="Samples of the batch that a profile was measured at.", rich_help_panel=_SHORT)
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(help="Tokens of a sample of a transformer.", rich_help_panel=_SHORT)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32, fp16 or bf16 (dnn.dtype).", rich_help_panel=_SHORT)
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Of the training, for training_time.", rich_help_panel=_SHORT)
    ] = None,
    dataset_samples: Annotated[int | None, typer.Option(help="Samples of an epoch.", rich_help_panel=_SHORT)] = None,
    objective: Annotated[
        str | None, typer.Option(help="iteration_time, epoch_time or training_time.", rich_help_panel=_SHORT)
    ] = None,
    families: Annotated[
        str | None, typer.Option(help="Those to try, e.g. all_reduce,pipeline; else all.", rich_help_panel=_SHORT)
    ] = None,
    top: Annotated[
        int, typer.Option(min=0, max=100, help="Rank this many other settings, too: numbers of machines and devices.")
    ] = 0,
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier", help="Rank the fastest layouts of less and less memory, too (hybrid; takes longer)."
        ),
    ] = False,
    run: RunFactory = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.plan/1) on stdout.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan's JSON to a file, too.")] = None,
    trace: Trace = None,
    trace_devices: TraceDevices = None,
    trace_iterations: TraceIterations = None,
    measured: MeasuredTrace = None,
    html: Html = None,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain/--no-explain", help="With --html: ask what other hardware would bring, for up to 20 s more."
        ),
    ] = True,
    time_limit: Annotated[
        str, typer.Option(help="Stop searching after this; the best so far is given with its bound.")
    ] = "60 s",
    memory_limit: MemoryLimit = None,
) -> None:
    """Find the best plan, with its proof.

    E.g. planner plan --dnn vgg16 --machines 4x8xrtx-2080-ti --network "25 Gbit/s"
    """
    import time

    begin_s = time.monotonic()

    import planner
    from planner.cli.output import check_outputs, check_trace, left_s, limit_bytes, limit_s, write_text, write_trace
    from planner.cli.page import check_page
    from planner.cli.progress import Progress
    from planner.cli.question import code_of, question_of
    from planner.cli.refusal import write_refusal
    from planner.cli.terminal import show
    from planner.documents import dump, plan_document
    from planner.networks import asked, network_of
    from planner.report import plan_text
    from planner.units import Dimension, format_human
    from planner.workers.crew import crew_of

    flags = {
        "dnn": dnn,
        "machines": machines,
        "cluster": cluster,
        "network": network,
        "nics": nics,
        "latency": latency,
        "inside": inside,
        "batch": batch,
        "global_batch": global_batch,
        "profile_batch": profile_batch,
        "sequence_length": sequence_length,
        "precision": precision,
        "dataset_samples": dataset_samples,
        "epochs": epochs,
        "objective": objective,
        "families": families,
    }
    seconds, most_bytes = limit_s(time_limit), limit_bytes(memory_limit, workers)
    check_helpers(workers, scheduler)
    check_page(html, spec)
    check_outputs({"--out": out, "--trace": trace, "--html": html}, spec, {"the measured trace": measured})
    step = check_trace(trace, trace_devices, trace_iterations, measured)
    problem = planner.load(question_of(spec, flags), run=run or code_of(dnn))
    options = [*(["--top", str(top)] if top else []), *(["--frontier"] if frontier else [])]
    options += ["--time-limit", time_limit, *(["--memory-limit", memory_limit] if memory_limit else [])]
    with (
        Progress("steps", lambda value: format_human(value, Dimension.TIME)) as progress,
        write_refusal(html) as refused,
        crew_of(workers, scheduler) as crew,
    ):
        refused.asks(problem.dnn.name, ("planner", "plan", "question.yaml", *options), lambda: problem.resolved)
        found = planner.plan(
            problem,
            num_alternatives=top,
            time_limit_s=left_s(seconds, begin_s),
            memory_limit_bytes=most_bytes,
            has_frontier=frontier,
            told=progress.tell,
            crew=crew,
        )
    problem = network_of(asked(problem), found.substitutions)
    if trace:
        write_trace(
            trace,
            problem,
            found.family,
            found.configuration,
            devices=trace_devices,
            num_iterations=trace_iterations or 1,
            measured=step,
        )
    if html:
        _write_page(html, found, problem, progress.history, options, seconds if explain else 0.0, most_bytes)
    if json or out:
        text = dump(plan_document(found))
        if out:
            write_text(out, text + "\n")
        if json:
            print(text)
    if not json:
        show(plan_text(found, problem), commands=found.prediction.details.get("launch", ()))


def _write_page(
    path: Path,
    plan: "Plan",
    problem: "Problem",
    history: list[tuple[float, float, int]],
    options: list[str],
    explained_s: float,
    memory_limit_bytes: float,
) -> None:
    """Write the page of a plan; ``explained_s``: the most that may go into what other hardware would bring."""
    import planner
    from planner.cli.output import write_text
    from planner.networks import asked
    from planner.page import plan_page

    limit_s = min(explained_s, _MOST_EXPLAINED_S)
    limits = {"time_limit_s": limit_s, "memory_limit_bytes": memory_limit_bytes}
    explanation = planner.explain(asked(problem), plan, **limits) if limit_s else None
    command = ("planner", "plan", "question.yaml", *options, "--out", "plan.json")
    commands = [command, ("planner", "explain", "plan.json"), ("planner", "check", "plan.json")]
    write_text(path, plan_page(plan, problem, explanation=explanation, history=history, commands=commands))
