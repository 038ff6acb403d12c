"""``planner procure``: what to buy or rent."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import Html, MemoryLimit, Scheduler, Workers, check_helpers

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["procure"]

_SHORT = "Short question"


def procure(
    spec: Annotated[Path | None, typer.Argument(help="The question, YAML or JSON, with a block procure.")] = None,
    dnn: Annotated[
        str | None, typer.Option(help="Zoo name, model.onnx, config.json, profile or trace.", rich_help_panel=_SHORT)
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Samples per iteration, of all devices.", rich_help_panel=_SHORT)
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Of the training.", rich_help_panel=_SHORT)] = None,
    dataset_samples: Annotated[int | None, typer.Option(help="Samples of an epoch.", rich_help_panel=_SHORT)] = None,
    prices: Annotated[
        Path | None, typer.Option(help="A price list (CSV) instead of the built-in one.", rich_help_panel=_SHORT)
    ] = None,
    deadline: Annotated[str | None, typer.Option(help="E.g. '24 h'.", rich_help_panel=_SHORT)] = None,
    budget: Annotated[str | None, typer.Option(help="E.g. '500 USD'.", rich_help_panel=_SHORT)] = None,
    objective: Annotated[
        str | None, typer.Option(help="cost (default), time or energy.", rich_help_panel=_SHORT)
    ] = None,
    providers: Annotated[str | None, typer.Option(help="E.g. aws,lambda.", rich_help_panel=_SHORT)] = None,
    terms: Annotated[
        str | None, typer.Option(help="Of on-demand, spot, bought; else on-demand.", rich_help_panel=_SHORT)
    ] = None,
    families: Annotated[str | None, typer.Option(help="Those to try.", rich_help_panel=_SHORT)] = None,
    pareto: Annotated[bool, typer.Option("--pareto", help="All fleets that none beats in time and money.")] = False,
    robust: Annotated[bool, typer.Option("--robust", help="Plan for the pessimistic end of the known error.")] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Which changes of prices, networks, devices and deadline matter.")
    ] = False,
    top: Annotated[int, typer.Option(min=0, max=100, help="Show this many other fleets.")] = 4,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.procurement/1) on stdout.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to a file, too.")] = None,
    html: Html = None,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    time_limit: Annotated[
        str, typer.Option(help="Stop searching after this; the best so far is given with its bound.")
    ] = "60 s",
    memory_limit: MemoryLimit = None,
) -> None:
    """Find what to buy or rent for a training, with its proof.

    E.g. planner procure --dnn resnet50 --global-batch 2048 --epochs 90 --deadline "24 h" --budget "500 USD"
    """
    import planner
    from planner.cli.output import check_outputs, limit_bytes, limit_s, write_text
    from planner.cli.page import check_page
    from planner.cli.procure_question import question_of
    from planner.cli.progress import Progress
    from planner.cli.refusal import write_refusal
    from planner.cli.terminal import show
    from planner.documents import dump
    from planner.procurement.document import procurement_document
    from planner.procurement.report import procured_text
    from planner.workers.crew import crew_of

    flags = {
        "dnn": dnn,
        "global_batch": global_batch,
        "epochs": epochs,
        "dataset_samples": dataset_samples,
        "prices": prices,
        "deadline": deadline,
        "budget": budget,
        "objective": objective,
        "providers": providers,
        "terms": terms,
        "families": families,
    }
    check_helpers(workers, scheduler)
    most_bytes = limit_bytes(memory_limit, workers)
    check_page(html, spec)
    check_outputs({"--out": out, "--html": html}, spec, {"the price list": prices})
    question = question_of(spec, flags)
    wanted = {"--pareto": pareto, "--robust": robust, "--what-if": what_if}
    options = [name for name, is_asked in wanted.items() if is_asked]
    command = ("planner", "procure", "question.yaml", *options, "--top", str(top), "--time-limit", time_limit)
    command = (*command, *(["--memory-limit", memory_limit] if memory_limit else []))

    with (
        Progress("fleets planned", lambda value: f"{value:.6g}") as progress,
        write_refusal(html) as refused,
        crew_of(workers, scheduler) as crew,
    ):
        refused.asks("What to buy or rent", command, lambda: _resolved(question))
        found = planner.procure(
            question,
            num_alternatives=top,
            has_pareto=pareto,
            is_robust=robust,
            has_what_if=what_if,
            time_limit_s=limit_s(time_limit),
            memory_limit_bytes=most_bytes,
            told=progress.tell,
            crew=crew,
        )
    if html:
        from planner.page import procurement_page

        commands = [(*command, "--out", "answer.json"), ("planner", "check", "answer.json")]
        write_text(html, procurement_page(found, history=progress.history, commands=commands))
    if json or out:
        text = dump(procurement_document(found))
        if out:
            write_text(out, text + "\n")
        if json:
            print(text)
    if not json:
        show(procured_text(found))


def _resolved(question: "Path | dict[str, Any]") -> "Mapping[str, Any]":
    """Return the question as plain data, for the page that says why it has no answer."""
    from datetime import UTC, datetime

    from planner.procurement.question import load_procurement

    return load_procurement(question, today=datetime.now(tz=UTC).date()).resolved
