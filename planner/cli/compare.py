"""``planner compare``: two plans side by side."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["compare"]


def compare(
    first: Annotated[Path, typer.Argument(help="A plan that `planner plan --out` wrote.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.comparison/1) on stdout.")] = False,
) -> None:
    """Compare two plans: which is better, decision by decision, and which terms decide."""
    import planner
    from planner.documents import dump
    from planner.explanations.comparison_report import comparison_text

    found = planner.compare(first, second)
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    print(dump(found.to_document()) if json else comparison_text(found, names))
