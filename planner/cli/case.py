"""``planner case``: published and measured results, reproduced: theirs, ours, difference."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Html

__all__ = ["case"]


def case(
    name: Annotated[str | None, typer.Argument(help="Which case; all names if left out.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every case.")] = False,
    accuracy: Annotated[
        Path | None, typer.Option(help="Write the page of measured cases (docs/accuracy.md), and go no further.")
    ] = None,
    bands: Annotated[Path | None, typer.Option(help="With --accuracy: write the bands that plans carry, too.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.case/1) on stdout.")] = False,
    html: Html = None,
) -> None:
    """Reproduce a published result; exit code 1 where a figure is outside its tolerance."""
    from planner.case.run import case_names, format_table, run_case, to_document
    from planner.cli.output import check_outputs
    from planner.cli.page import check_page
    from planner.documents import dump

    check_page(html)
    check_outputs({"--accuracy": accuracy, "--bands": bands, "--html": html})
    if accuracy is not None:
        _write_accuracy(accuracy, bands)
        return
    if name is None and not every and not json and html is None:
        print("\n".join(case_names()))
        return
    results = [run_case(one) for one in (case_names() if name is None else (name,))]
    if html:
        from planner.cli.output import write_text
        from planner.page import case_page

        write_text(html, case_page(results))
    if json:
        print(dump(to_document(results)))
    else:
        print("\n".join(f"{result.name}\n{result.question}\n\n{format_table(result)}" for result in results))
    if not all(result.ok for result in results):
        raise typer.Exit(1)


def _write_accuracy(page: Path, bands: Path | None) -> None:
    """Write the page, and the bands where a file is named for them."""
    from planner.cli.output import write_text
    from planner.evaluation.accuracy import accuracy_page, bands_text, measured_results

    results = measured_results()
    write_text(page, accuracy_page(results))
    if bands is not None:
        write_text(bands, bands_text(results))
