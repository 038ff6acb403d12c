"""``planner sweep``: many variants of one question."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import MOST_WORKERS, MemoryLimit, check_helpers, grouped, json_of
from planner.errors import SpecError
from planner.frozen import frozen

if TYPE_CHECKING:
    from datetime import date

    from planner.sweep.question import Sweep
    from planner.sweep.store import Store


@frozen
class SweepWorkers:
    """Who answers the questions, and within which limits."""

    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS, help="Processes on this machine.")] = 1
    scheduler: Annotated[
        str | None, typer.Option(help="Workers of a Dask scheduler that you trust, tcp://host:port.")
    ] = None
    time_limit: Annotated[str, typer.Option(help="Of each question.")] = "60 s"
    memory_limit: MemoryLimit = None
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask those again that failed, or that a limit stopped.")
    ] = False


@frozen
class SweepOutput:
    """Where the answers go."""

    export: Annotated[Path | None, typer.Option(help="Write all rows: .csv, .json or .parquet.")] = None
    report: Annotated[
        bool, typer.Option("--report", help="Only tell what the store holds of this sweep; ask nothing.")
    ] = False
    html: Annotated[Path | None, typer.Option(help="Write a page to look at: one file that asks for no other.")] = None
    json: Annotated[bool, json_of("planner.sweep/1")] = False


@grouped
def sweep(
    *,
    spec: Annotated[Path, typer.Argument(help="A question, of a plan or a purchase, with a block sweep.")],
    store: Annotated[
        Path | None, typer.Option(help="SQLite file of the answers; the spec's name with .sqlite if left out.")
    ] = None,
    workers: SweepWorkers,
    output: SweepOutput,
) -> None:
    """Answer many variants of a question; the same command goes on where it was stopped.

    E.g. planner sweep sweep.yaml --workers 4 --export rows.csv
    """
    from datetime import UTC, datetime

    from planner.cli.output import check_outputs, check_page, limit_bytes, limit_s
    from planner.errors import NoAnswerError
    from planner.sweep.engine import refuse_hopeless
    from planner.sweep.question import load_sweep
    from planner.sweep.report import check_export
    from planner.sweep.store import Store

    if output.export is not None:
        check_export(output.export)
    check_helpers(workers.workers, workers.scheduler)
    check_page(output.html, spec)
    most_bytes = limit_bytes(workers.memory_limit)
    asked = load_sweep(
        spec,
        time_limit_s=limit_s(workers.time_limit),
        memory_limit_bytes=None if workers.memory_limit is None else most_bytes,
        num_workers=workers.workers,
    )
    path = store or spec.with_suffix(".sqlite")
    check_outputs({"--store": path, "--export": output.export, "--html": output.html}, spec)
    today = datetime.now(tz=UTC).date()
    if output.report and not path.exists():
        raise SpecError.of_option(
            "--store", f"there is no store {path}.", "Leave out --report to answer the sweep.", value=str(path)
        )
    if not output.report:
        refuse_hopeless(asked, today)
    code = 0
    with Store(path) as opened:
        if not output.report:
            try:
                code = _answer(asked, opened, today, workers)
            except NoAnswerError as error:
                raise NoAnswerError(f"{error}\n{_resume()}") from None
        if not code:
            _tell(asked, opened, output, spec)
    if code:
        raise typer.Exit(code)


def _answer(asked: "Sweep", opened: "Store", today: "date", workers: SweepWorkers) -> int:
    """Answer what is open; return 0, or 128 and the signal that stopped it."""
    import os
    import sys

    from planner.sweep.engine import answer_sweep, listening, progress

    with listening() as stop, progress() as on_progress:
        done, is_at_work = answer_sweep(
            asked,
            opened,
            today=today,
            num_workers=workers.workers,
            scheduler=workers.scheduler,
            is_retried=workers.retry_failed,
            on_progress=on_progress,
            is_over=stop.is_over,
        )
    if not done.is_stopped:
        return 0
    print(f"stopped: {done.num_answered} of {done.number} questions are answered. {_resume()}", file=sys.stderr)
    if is_at_work:  # its thread cannot be ended, and must not run while the interpreter takes itself apart
        opened.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + stop.number)
    return 128 + stop.number


def _resume() -> str:
    import shlex
    import sys

    return f"The same command goes on: planner {shlex.join(sys.argv[1:])}"


def _tell(asked: "Sweep", opened: "Store", output: SweepOutput, spec: Path) -> None:
    """Write the rows and tell what was found; exit code 2 where every question was wrong."""
    from planner.answer.documents import dump
    from planner.answer.sweep import sweep_answer
    from planner.answer.text import text_of
    from planner.cli.output import write_page
    from planner.sweep.answers import Outcome, writable
    from planner.sweep.report import columns_of, rows_of, summary_document, summary_of
    from planner.sweep.report import export as write

    if output.export is not None:
        write(asked, opened, output.export)
    found = summary_of(asked, opened)
    is_complete = sum(found.counts.values()) == found.number
    document = summary_document(found, asked.grid, identity=asked.identity, is_complete=is_complete)
    names = columns_of(asked.grid)
    limits = ["--time-limit", f"{asked.time_limit_s:g} s"]
    if asked.memory_limit_bytes is not None:
        limits += ["--memory-limit", f"{asked.memory_limit_bytes:.17g} B"]
    answer = sweep_answer(
        document,
        (dict(zip(names, row.cells(), strict=True)) for row in rows_of(asked, opened)),
        title=spec.stem,
        question={**asked.document["question"], "sweep": asked.document["sweep"]},
        commands=[["planner", "sweep", "question.yaml", *limits, "--html", "sweep.html"]],
    )
    if output.html is not None:
        write_page(output.html, answer)
    print(writable(dump(document) if output.json else text_of(answer)))
    if is_complete and set(found.counts) == {Outcome.WRONG}:
        raise typer.Exit(2)
