"""``planner compare``: two plans side by side."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Html

__all__ = ["compare"]


def compare(
    first: Annotated[Path, typer.Argument(help="A plan that `planner plan --out` wrote.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.comparison/1) on stdout.")] = False,
    html: Html = None,
) -> None:
    """Compare two plans: which is better, decision by decision, and which terms decide."""
    import planner
    from planner.cli.page import check_page
    from planner.cli.terminal import show
    from planner.documents import dump
    from planner.explanations.comparison_report import comparison_text
    from planner.letters import visible

    for path in (first, second):
        check_page(html, path)
    found = planner.compare(first, second)
    one, other = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    names = visible(one), visible(other)
    if html:
        from planner.cli.output import write_text
        from planner.page import comparison_page

        command = ("planner", "compare", str(first), str(second))
        write_text(html, comparison_page(found, names, commands=[command]))
    if json:
        print(dump(found.to_document()))
    else:
        show(comparison_text(found, names))
