"""``planner plan``, ``predict`` and ``procure``: the best plan, what a given one costs, what to buy or rent."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import (
    Html,
    MeasuredTrace,
    MemoryLimit,
    RunFactory,
    Scheduler,
    TimeLimit,
    Trace,
    TraceDevices,
    TraceIterations,
    TraceOptions,
    Workers,
    check_helpers,
    in_short,
    json_of,
)

_MOST_EXPLAINED_S = 20.0


def plan(
    spec: Annotated[Path | None, typer.Argument(help="The question, YAML or JSON; `planner init` writes one.")] = None,
    dnn: Annotated[
        str | None, in_short("Zoo name, model.onnx, config.json, profile, trace, or torch:package:factory.")
    ] = None,
    machines: Annotated[
        str | None, in_short("E.g. 4x8xrtx-2080-ti or 4xdgx-h100 (`planner show machines`); unlike ones after commas.")
    ] = None,
    cluster: Annotated[str | None, in_short("A testbed by name, e.g. osf-testbed.")] = None,
    network: Annotated[
        str | None, in_short("Of each network card, '25 Gbit/s', or of all of a machine, '8 x 400 Gbit/s'.")
    ] = None,
    nics: Annotated[int | None, in_short("Network cards of a machine.")] = None,
    latency: Annotated[str | None, in_short("Per hop, e.g. '20 us'.")] = None,
    inside: Annotated[str | None, in_short("Link inside a machine, e.g. nvlink-3.")] = None,
    batch: Annotated[int | None, in_short("Samples per device.")] = None,
    global_batch: Annotated[int | None, in_short("Samples per iteration; then the number of devices is open.")] = None,
    profile_batch: Annotated[int | None, in_short("Samples of the batch that a profile was measured at.")] = None,
    sequence_length: Annotated[int | None, in_short("Tokens of a sample of a transformer.")] = None,
    precision: Annotated[str | None, in_short("fp32, tf32, fp16 or bf16 (dnn.dtype).")] = None,
    epochs: Annotated[float | None, in_short("Of the training, for training_time.")] = None,
    dataset_samples: Annotated[int | None, in_short("Samples of an epoch.")] = None,
    objective: Annotated[str | None, in_short("iteration_time, epoch_time or training_time.")] = None,
    families: Annotated[str | None, in_short("Those to try, e.g. all_reduce,pipeline; else all.")] = None,
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
    json: Annotated[bool, json_of("planner.plan/1")] = False,
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
    time_limit: TimeLimit = "60 s",
    memory_limit: MemoryLimit = None,
) -> None:
    """Find the best plan, with its proof.

    E.g. planner plan --dnn vgg16 --machines 4x8xrtx-2080-ti --network "25 Gbit/s"
    """
    given = dict(locals())  # the options by their names

    import time

    begin_s = time.monotonic()

    import planner
    from planner.answer.documents import plan_document
    from planner.answer.plan import plan_answer
    from planner.cli.output import (
        Progress,
        check_outputs,
        check_page,
        give,
        left_s,
        limit_bytes,
        limit_s,
        write_page,
        write_refusal,
    )
    from planner.cli.question import code_of, question_of
    from planner.networks import asked, network_of
    from planner.planning import view_of
    from planner.words import time_words
    from planner.workers.pool import worker_pool

    seconds, most_bytes = limit_s(time_limit), limit_bytes(memory_limit, workers)
    check_helpers(workers, scheduler)
    check_page(html, spec)
    check_outputs({"--out": out, "--trace": trace, "--html": html}, spec, {"the measured trace": measured})
    drawn = TraceOptions(trace, trace_devices, trace_iterations, measured)
    step = drawn.checked()
    problem = planner.load(question_of(spec, given), run=run or code_of(dnn))
    options = [*(["--top", str(top)] if top else []), *(["--frontier"] if frontier else [])]
    options += ["--time-limit", time_limit, *(["--memory-limit", memory_limit] if memory_limit else [])]
    command = ("planner", "plan", "question.yaml", *options)
    with (
        Progress("steps", time_words) as progress,
        write_refusal(html) as refused,
        worker_pool(workers, scheduler) as pool,
    ):
        refused.asks(problem.dnn.name, command, lambda: problem.resolved)
        found = planner.plan(
            problem,
            num_alternatives=top,
            time_limit_s=left_s(seconds, begin_s),
            memory_limit_bytes=most_bytes,
            has_frontier=frontier,
            told=progress.tell,
            pool=pool,
        )
    network_problem = network_of(asked(problem), found.substitutions)
    drawn.write(network_problem, found.family, found.configuration, step)
    if html:
        explained_s = min(seconds, _MOST_EXPLAINED_S) if explain else 0.0
        limits = {"time_limit_s": explained_s, "memory_limit_bytes": most_bytes}
        explanation = planner.explain(asked(network_problem), found, **limits) if explained_s else None
        commands = [
            (*command, "--out", "plan.json"),
            ("planner", "explain", "plan.json"),
            ("planner", "check", "plan.json"),
        ]
        history = progress.history
        view = view_of(network_problem, found)
        write_page(html, plan_answer(found, view, explanation=explanation, history=history, commands=commands))
    launch = found.prediction.details.get("launch", ())
    give(
        lambda: plan_document(found),
        lambda: plan_answer(found, view_of(network_problem, found)),
        json=json,
        out=out,
        launch=launch,
    )


def predict(
    spec: Annotated[
        Path, typer.Argument(help="A spec with a configuration block, or a plan that `planner plan --out` wrote.")
    ],
    trace: Trace = None,
    trace_devices: TraceDevices = None,
    trace_iterations: TraceIterations = None,
    measured: MeasuredTrace = None,
    run: RunFactory = None,
    json: Annotated[bool, json_of("planner.prediction/1")] = False,
    html: Html = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """Predict time, breakdown and memory of a given configuration."""
    import planner
    from planner.answer.documents import prediction_document
    from planner.answer.plan import prediction_answer
    from planner.api import predicted
    from planner.cli.output import check_outputs, check_page, give, limit_bytes, write_page
    from planner.planning import view_of

    limit_bytes(memory_limit)
    check_page(html, spec)
    check_outputs({"--trace": trace, "--html": html}, spec, {"the measured trace": measured})
    drawn = TraceOptions(trace, trace_devices, trace_iterations, measured)
    step = drawn.checked()
    problem, found = predicted(planner.load(spec, run=run))
    drawn.write(problem, found.family, found.configuration, step)
    answer = prediction_answer(found, view_of(problem, found), commands=[("planner", "predict", "question.yaml")])
    if html:
        write_page(html, answer)
    launch = found.prediction.details.get("launch", ())
    give(lambda: prediction_document(found, problem.resolved), lambda: answer, json=json, launch=launch)


def procure(
    spec: Annotated[Path | None, typer.Argument(help="The question, YAML or JSON, with a block procure.")] = None,
    dnn: Annotated[str | None, in_short("Zoo name, model.onnx, config.json, profile or trace.")] = None,
    global_batch: Annotated[int | None, in_short("Samples per iteration, of all devices.")] = None,
    epochs: Annotated[float | None, in_short("Of the training.")] = None,
    dataset_samples: Annotated[int | None, in_short("Samples of an epoch.")] = None,
    prices: Annotated[Path | None, in_short("A price list (CSV) instead of the built-in one.")] = None,
    deadline: Annotated[str | None, in_short("E.g. '24 h'.")] = None,
    budget: Annotated[str | None, in_short("E.g. '500 USD'.")] = None,
    objective: Annotated[str | None, in_short("cost (default), time or energy.")] = None,
    providers: Annotated[str | None, in_short("E.g. aws,lambda.")] = None,
    terms: Annotated[str | None, in_short("Of on-demand, spot, bought; else on-demand.")] = None,
    families: Annotated[str | None, in_short("Those to try.")] = None,
    pareto: Annotated[bool, typer.Option("--pareto", help="All fleets that none beats in time and money.")] = False,
    robust: Annotated[
        bool, typer.Option("--robust", help="Plan for the pessimistic end of the expected error.")
    ] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Which changes of prices, networks, devices and deadline matter.")
    ] = False,
    top: Annotated[int, typer.Option(min=0, max=100, help="Show this many other fleets.")] = 4,
    json: Annotated[bool, json_of("planner.procurement/1")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to a file, too.")] = None,
    html: Html = None,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    time_limit: TimeLimit = "60 s",
    memory_limit: MemoryLimit = None,
) -> None:
    """Find what to buy or rent for a training, with its proof.

    E.g. planner procure --dnn resnet50 --global-batch 2048 --epochs 90 --deadline "24 h" --budget "500 USD"
    """
    given = dict(locals())  # the options by their names

    from datetime import UTC, datetime

    import planner
    from planner.answer.procurement import procurement_answer
    from planner.cli.output import (
        Progress,
        check_outputs,
        check_page,
        give,
        limit_bytes,
        limit_s,
        write_page,
        write_refusal,
    )
    from planner.cli.question import purchase_of
    from planner.planning import view_again
    from planner.procurement.answer import procurement_document
    from planner.procurement.question import load_procurement
    from planner.workers.pool import worker_pool

    check_helpers(workers, scheduler)
    most_bytes = limit_bytes(memory_limit, workers)
    check_page(html, spec)
    check_outputs({"--out": out, "--html": html}, spec, {"the price list": prices})
    question = purchase_of(spec, given)
    wanted = {"--pareto": pareto, "--robust": robust, "--what-if": what_if}
    options = [*(name for name, is_asked in wanted.items() if is_asked), "--top", str(top), "--time-limit", time_limit]
    options += ["--memory-limit", memory_limit] if memory_limit else []
    command = ("planner", "procure", "question.yaml", *options)
    with (
        Progress("fleets planned", lambda value: f"{value:.6g}") as progress,
        write_refusal(html) as refused,
        worker_pool(workers, scheduler) as pool,
    ):
        today = datetime.now(tz=UTC).date()
        refused.asks("What to buy or rent", command, lambda: load_procurement(question, today=today).resolved)
        found = planner.procure(
            question,
            num_alternatives=top,
            has_pareto=pareto,
            is_robust=robust,
            has_what_if=what_if,
            time_limit_s=limit_s(time_limit),
            memory_limit_bytes=most_bytes,
            told=progress.tell,
            pool=pool,
        )
    commands = [(*command, "--out", "answer.json"), ("planner", "check", "answer.json")]
    answer = procurement_answer(found, view_again, history=progress.history, commands=commands)
    if html:
        write_page(html, answer)
    give(lambda: procurement_document(found), lambda: answer, json=json, out=out)
