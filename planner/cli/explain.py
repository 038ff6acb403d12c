"""``planner explain``: why a plan is as it is, and what other hardware would bring."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Html, MemoryLimit

__all__ = ["explain"]


def explain(
    plan: Annotated[Path, typer.Argument(help="A plan that `planner plan --out` wrote, or a spec, planned first.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.explanation/1) on stdout.")] = False,
    time_limit: Annotated[
        str, typer.Option(help="For all questions on other hardware together; each gets an equal part.")
    ] = "60 s",
    memory_limit: MemoryLimit = None,
    html: Html = None,
) -> None:
    """Explain a plan: what binds, and what twice the bandwidth, faster devices or another machine would bring."""
    import planner
    from planner.api import plan_of_file
    from planner.cli.output import limit_bytes, limit_s
    from planner.cli.page import check_page
    from planner.cli.terminal import show
    from planner.documents import dump
    from planner.explanations.report import explanation_text
    from planner.plan_file import is_plan

    seconds, most_bytes = limit_s(time_limit), limit_bytes(memory_limit)
    check_page(html, plan)
    problem, given = plan_of_file(plan) if is_plan(plan) else (planner.load(plan), None)
    found = planner.explain(problem, given, time_limit_s=seconds, memory_limit_bytes=most_bytes)
    if html:
        from planner.cli.output import write_text
        from planner.networks import asked, network_of
        from planner.page import plan_page

        network = network_of(asked(problem), found.plan.substitutions)
        memory = ["--memory-limit", memory_limit] if memory_limit else []
        commands = [
            ("planner", "plan", "question.yaml", "--out", "plan.json"),
            ("planner", "explain", "plan.json", "--time-limit", time_limit, *memory),
        ]
        write_text(html, plan_page(found.plan, network, explanation=found, commands=commands))
    if json:
        print(dump(found.to_document()))
    else:
        show(explanation_text(found))
