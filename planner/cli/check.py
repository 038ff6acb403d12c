"""``planner check``: whether a plan is what it says."""

from pathlib import Path
from typing import Annotated

import typer


def check(
    plan: Annotated[Path, typer.Argument(help="What `planner plan --out` or `planner procure --out` wrote.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.check/1) on stdout.")] = False,
) -> None:
    """Recompute a plan, or the answer to what to buy or rent, from its file alone, without any solver.

    Exit code 0 if all checks pass, 1 if one fails, 2 if the file is no plan.
    """
    from planner.answer.documents import dump
    from planner.checks import report_text
    from planner.cli.output import Progress
    from planner.procurement.check import check_file

    with Progress("checking"):
        report = check_file(plan)
    print(dump(report.to_dict()) if json else report_text(report))
    if not report.is_ok:
        raise typer.Exit(1)
