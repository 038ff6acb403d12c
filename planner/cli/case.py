"""``planner case``: published results, reproduced: theirs, ours, difference."""

from typing import Annotated

import typer

from planner.cli.completion import names_of
from planner.cli.options import Html


def case(
    name: Annotated[
        str | None, typer.Argument(help="Which case; all names if left out.", autocompletion=names_of("case"))
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every case.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.case/1) on stdout.")] = False,
    html: Html = None,
) -> None:
    """Reproduce a published result; exit code 1 where a figure is outside its tolerance."""
    from planner.answer.documents import dump
    from planner.case.run import case_names, format_table, run_case, to_document
    from planner.cli.output import Progress, check_outputs, check_page

    check_page(html)
    check_outputs({"--html": html})
    if name is None and not every and not json and html is None:
        print("\n".join(case_names()))
        return
    names = case_names() if name is None else (name,)
    with Progress("reproducing"):
        results = [run_case(one) for one in names]
    if html:
        from planner.answer.case import case_answer
        from planner.cli.output import write_page

        write_page(html, case_answer(results))
    if json:
        print(dump(to_document(results)))
    else:
        print("\n".join(f"{result.name}\n{result.question}\n\n{format_table(result)}" for result in results))
    if not all(result.ok for result in results):
        raise typer.Exit(1)
