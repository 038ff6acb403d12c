"""``planner plan``, ``predict`` and ``procure``: the best plan, what a given one costs, what to buy or rent."""

from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Html, MemoryLimit, RunFactory, SearchOptions, TraceOptions, grouped, json_of
from planner.cli.question import ShortPurchase, ShortQuestion
from planner.frozen import frozen

_MOST_EXPLAINED_S = 20.0


@frozen
class RankingOptions:
    """What stands beside the best plan."""

    top: Annotated[
        int, typer.Option(min=0, max=100, help="Rank this many other settings, too: numbers of machines and devices.")
    ] = 0
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier", help="Rank the fastest layouts of less and less memory, too (hybrid; takes longer)."
        ),
    ] = False
    prefer_safe: Annotated[
        bool,
        typer.Option(
            "--prefer-safe", help="Give the plan of least risk within the known error of the best one (hybrid)."
        ),
    ] = False

    @property
    def words(self) -> list[str]:
        """The same as options."""
        asked = {"--frontier": self.frontier, "--prefer-safe": self.prefer_safe}
        return [
            *(["--top", str(self.top)] if self.top else []),
            *(name for name, is_asked in asked.items() if is_asked),
        ]


@frozen
class PlanOutput:
    """Where a plan goes."""

    json: Annotated[bool, json_of("planner.plan/1")] = False
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the plan's JSON to a file, too.")] = None
    html: Html = None
    explain: Annotated[
        bool,
        typer.Option(
            "--explain/--no-explain", help="With --html: ask what other hardware would bring, for up to 20 s more."
        ),
    ] = True


@grouped
def plan(
    *,
    spec: Annotated[
        Path | None,
        typer.Argument(help="The question, YAML or JSON, - from standard input; `planner init` writes one."),
    ] = None,
    question: ShortQuestion,
    ranking: RankingOptions,
    run: RunFactory = None,
    output: PlanOutput,
    drawn: TraceOptions,
    search: SearchOptions,
) -> None:
    """Find the best plan, with its proof.

    E.g. planner plan --dnn vgg16 --machines 4x8xrtx-2080-ti --network "25 Gbit/s"
    """
    import time

    begin_s = time.monotonic()
    seconds, most_bytes = search.checked()  # before anything that takes long is imported

    import planner
    from planner.answer.plan import plan_answer
    from planner.cli.output import Progress, check_outputs, check_page, give, left_s, write_page, write_refusal
    from planner.networks import asked, network_of
    from planner.planning import view_of
    from planner.words import objective_words

    html = output.html
    check_page(html, spec)
    targets = {"--out": output.out, "--trace": drawn.trace, "--html": html}
    check_outputs(targets, spec, {"the measured trace": drawn.measured})
    step = drawn.checked()
    source = question.asked(spec)
    with Progress("reading the question"):
        problem = planner.load(source, run=run or question.code)
    command = ("planner", "plan", "question.yaml", *ranking.words, *search.words)
    words = partial(objective_words, unit=problem.goal.unit)
    with Progress("planning", "steps", words) as progress, write_refusal(html) as refused, search.pool() as pool:
        refused.asks(problem.dnn.name, command, lambda: problem.resolved)
        found = planner.plan(
            problem,
            num_alternatives=ranking.top,
            time_limit_s=left_s(seconds, begin_s),
            memory_limit_bytes=most_bytes,
            has_frontier=ranking.frontier,
            prefers_safe=ranking.prefer_safe,
            on_progress=progress.tell,
            pool=pool,
        )
    network = network_of(asked(problem), found.substitutions)
    drawn.write(network, found.family, found.configuration, step)
    if html:
        explanation = None
        if explained_s := min(seconds, _MOST_EXPLAINED_S) if output.explain else 0.0:
            limits = {"time_limit_s": explained_s, "memory_limit_bytes": most_bytes}
            with Progress("asking what other hardware would bring"):
                explanation = planner.explain(asked(network), found, **limits)
        others = [("planner", name, "plan.json") for name in ("explain", "check")]
        commands = [(*command, "--out", "plan.json"), *others]
        history = progress.history
        view = view_of(network, found)
        write_page(html, plan_answer(found, view, explanation=explanation, history=history, commands=commands))
    launch = found.prediction.details.get("launch", ())
    give(
        found.to_dict,
        lambda: plan_answer(found, view_of(network, found)),
        json=output.json,
        out=output.out,
        launch=launch,
    )


@grouped
def predict(
    spec: Annotated[
        Path, typer.Argument(help="A spec with a configuration block, or a plan that `planner plan --out` wrote.")
    ],
    drawn: TraceOptions,
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
    from planner.cli.output import Progress, check_outputs, check_page, give, limit_bytes, write_page
    from planner.planning import view_of

    limit_bytes(memory_limit)
    check_page(html, spec)
    check_outputs({"--trace": drawn.trace, "--html": html}, spec, {"the measured trace": drawn.measured})
    step = drawn.checked()
    with Progress("predicting"):
        problem, found = predicted(planner.load(spec, run=run))
    drawn.write(problem, found.family, found.configuration, step)
    answer = prediction_answer(found, view_of(problem, found), commands=[("planner", "predict", "question.yaml")])
    if html:
        write_page(html, answer)
    launch = found.prediction.details.get("launch", ())
    give(lambda: prediction_document(found, problem.resolved), lambda: answer, json=json, launch=launch)


@frozen
class PurchaseOptions:
    """What is asked beside the best fleet."""

    pareto: Annotated[bool, typer.Option("--pareto", help="All fleets that none beats in time and money.")] = False
    robust: Annotated[bool, typer.Option("--robust", help="Plan for the pessimistic end of the expected error.")] = (
        False
    )
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Which changes of prices, networks, devices and deadline matter.")
    ] = False
    top: Annotated[int, typer.Option(min=0, max=100, help="Show this many other fleets.")] = 4

    @property
    def words(self) -> list[str]:
        """The same as options."""
        asked = {"--pareto": self.pareto, "--robust": self.robust, "--what-if": self.what_if}
        return [*(name for name, is_asked in asked.items() if is_asked), "--top", str(self.top)]


@frozen
class PurchaseOutput:
    """Where an answer to what to buy or rent goes."""

    json: Annotated[bool, json_of("planner.procurement/1")] = False
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the JSON to a file, too.")] = None
    html: Html = None


@grouped
def procure(
    *,
    spec: Annotated[Path | None, typer.Argument(help="The question, YAML or JSON, with a block procure.")] = None,
    short: ShortPurchase,
    wanted: PurchaseOptions,
    output: PurchaseOutput,
    search: SearchOptions,
) -> None:
    """Find what to buy or rent for a training, with its proof.

    E.g. planner procure --dnn resnet50 --global-batch 2048 --epochs 90 --deadline "24 h" --budget "500 USD"
    """
    from datetime import UTC, datetime

    seconds, most_bytes = search.checked()  # before anything that takes long is imported

    import planner
    from planner.answer.procurement import procurement_answer
    from planner.cli.output import Progress, check_outputs, check_page, give, write_page, write_refusal
    from planner.planning import view_again
    from planner.procurement.answer import amount
    from planner.procurement.question import load_procurement

    check_page(output.html, spec)
    check_outputs({"--out": output.out, "--html": output.html}, spec, {"the price list": short.prices})
    question = short.asked(spec)
    command = ("planner", "procure", "question.yaml", *wanted.words, *search.words)
    today = datetime.now(tz=UTC).date()
    read = cache(lambda: load_procurement(question, today=today))  # only where progress or a refusal is told
    with (
        Progress(
            "looking for fleets", "fleets planned", lambda value: amount(value, read().asked.objective)
        ) as progress,
        write_refusal(output.html) as refused,
        search.pool() as pool,
    ):
        refused.asks("What to buy or rent", command, lambda: read().resolved)
        found = planner.procure(
            question,
            num_alternatives=wanted.top,
            has_pareto=wanted.pareto,
            is_robust=wanted.robust,
            has_what_if=wanted.what_if,
            time_limit_s=seconds,
            memory_limit_bytes=most_bytes,
            on_progress=progress.tell,
            pool=pool,
        )
    commands = [(*command, "--out", "answer.json"), ("planner", "check", "answer.json")]
    answer = procurement_answer(found, view_again, history=progress.history, commands=commands)
    if output.html:
        write_page(output.html, answer)
    give(found.to_dict, lambda: answer, json=output.json, out=output.out)
