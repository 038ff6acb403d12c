"""``planner compare``, ``explain``, ``check`` and ``export``: what is told of plans that were written to files."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.completion import names_of
from planner.cli.options import Html, MemoryLimit, grouped, json_of
from planner.frozen import frozen


def compare(
    first: Annotated[Path, typer.Argument(help="A plan that `planner plan --out` wrote.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    json: Annotated[bool, json_of("planner.comparison/1")] = False,
    html: Html = None,
) -> None:
    """Compare two plans: which is better, decision by decision, and which terms decide."""
    import planner
    from planner.answer.comparison import comparison_answer
    from planner.cli.output import Progress, check_page, give, write_page
    from planner.letters import visible

    for path in (first, second):
        check_page(html, path)
    with Progress("comparing"):
        found = planner.compare(first, second)
    one, other = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    command = ("planner", "compare", str(first), str(second))
    answer = comparison_answer(found, (visible(one), visible(other)), commands=[command])
    if html:
        write_page(html, answer)
    give(found.to_dict, lambda: answer, json=json)


def explain(
    plan: Annotated[Path, typer.Argument(help="A plan that `planner plan --out` wrote, or a spec, planned first.")],
    json: Annotated[bool, json_of("planner.explanation/1")] = False,
    time_limit: Annotated[
        str, typer.Option(help="For all questions on other hardware together; each gets an equal part.")
    ] = "60 s",
    memory_limit: MemoryLimit = None,
    html: Html = None,
) -> None:
    """Explain a plan: what binds, and what twice the bandwidth, faster devices or another machine would bring."""
    import time

    begin_s = time.monotonic()

    import planner
    from planner.answer.explanation import explanation_answer
    from planner.answer.plan import plan_answer
    from planner.answer.plan_file import is_plan
    from planner.api import plan_of_file
    from planner.cli.output import Progress, check_page, give, left_s, limit_bytes, limit_s, write_page
    from planner.networks import asked, network_of
    from planner.planning import view_of

    seconds, most_bytes = limit_s(time_limit), limit_bytes(memory_limit)
    check_page(html, plan)
    with Progress("explaining"):
        problem, given = plan_of_file(plan) if is_plan(plan) else (planner.load(plan), None)
        found = planner.explain(problem, given, time_limit_s=left_s(seconds, begin_s), memory_limit_bytes=most_bytes)
    if html:
        network = network_of(asked(problem), found.plan.substitutions)
        memory = ["--memory-limit", memory_limit] if memory_limit else []
        commands = [
            ("planner", "plan", "question.yaml", "--out", "plan.json"),
            ("planner", "explain", "plan.json", "--time-limit", time_limit, *memory),
        ]
        write_page(html, plan_answer(found.plan, view_of(network, found.plan), explanation=found, commands=commands))
    give(found.to_dict, lambda: explanation_answer(found), json=json)


def check(
    plan: Annotated[Path, typer.Argument(help="What `planner plan --out` or `planner procure --out` wrote.")],
    json: Annotated[bool, json_of("planner.check/1")] = False,
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


@frozen
class Launch:
    """What a plan does not know of a launch."""

    script: Annotated[
        str | None, typer.Option(help='Your training program with its arguments: "train.py --data x".')
    ] = None
    image: Annotated[str | None, typer.Option(help="Of the container, where the target starts containers.")] = None
    program: Annotated[
        str | None,
        typer.Option(
            help="The target that trains, where --to only starts machines: slurm, skypilot.",
            autocompletion=names_of("target"),
        ),
    ] = None
    name: Annotated[str | None, typer.Option(help="Of the job.")] = None


@grouped
def export(
    *,
    plan: Annotated[Path, typer.Argument(help="What `planner plan --out` wrote, or `planner procure --out`.")],
    to: Annotated[
        str,
        typer.Option(
            help="ddp, horovod, deepspeed, accelerate, megatron, megatron-bridge, primus, torchtitan, maxtext, tfjob, "
            "pytorchjob, trainjob, slurm or skypilot.",
            autocompletion=names_of("target"),
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write all files into this folder.")] = None,
    launch: Launch,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files of an earlier export.")] = False,
    json: Annotated[bool, json_of("planner.export/1")] = False,
) -> None:
    """Write a plan as launch files of a program; what that program cannot express is said on stderr."""
    import shlex
    import sys

    import planner
    from planner.answer.documents import dump
    from planner.cli.output import Progress, write_files
    from planner.network_import import other_launch_files
    from planner.procurement.check import check_file

    with Progress("exporting"):
        found = planner.export(plan, to, **asdict(launch))
        is_right = check_file(plan).is_ok
    if not is_right:
        print(f"warning: {plan} is not what it says; see: planner check {shlex.quote(str(plan))}", file=sys.stderr)
    if out is not None:
        write_files(out, found.files, is_forced=force)
        if left := other_launch_files(out, found.files):
            print(
                f"warning: {out} holds {', '.join(left)} of another export, too: remove what you do not run",
                file=sys.stderr,
            )
    if json:
        print(dump(found.to_dict()))
        return
    first, *others = found.files
    written = "".join(f"{out / name}\n" for name in found.files) if out is not None else found.files[first]
    print(written, end="")
    lines = [f"{found.target}: for {found.version}"]
    if others and out is None:
        lines.append(f"this is {first}; it needs {', '.join(others)}, too: write all by --out FOLDER")
    for line in [*lines, *(f"- {note}" for note in found.notes), *(f"run: {line}" for line in found.how_to_run)]:
        print(line, file=sys.stderr)
