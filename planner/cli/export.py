"""``planner export``: a plan as the launch files of the program that runs it."""

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["export"]


def export(
    plan: Annotated[Path, typer.Argument(help="What `planner plan --out` wrote, or `planner procure --out`.")],
    to: Annotated[
        str,
        typer.Option(
            help="ddp, horovod, deepspeed, accelerate, megatron, torchtitan, tfjob, pytorchjob, trainjob, slurm or "
            "skypilot."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write all files into this folder.")] = None,
    script: Annotated[
        str | None, typer.Option(help='Your training program with its arguments: "train.py --data x".')
    ] = None,
    image: Annotated[str | None, typer.Option(help="Of the container, where the target starts containers.")] = None,
    program: Annotated[
        str | None, typer.Option(help="The target that trains, where --to only starts machines: slurm, skypilot.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the job.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files of an earlier export.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document (planner.export/1) on stdout.")] = False,
) -> None:
    """Write a plan as launch files of a program; what that program cannot express is said on stderr."""
    import shlex
    import sys

    import planner
    from planner.checks import check_file
    from planner.cli.output import write_files
    from planner.documents import dump

    found = planner.export(plan, to, script=script, image=image, program=program, name=name)
    if not check_file(plan).is_ok:
        print(f"warning: {plan} is not what it says; see: planner check {shlex.quote(str(plan))}", file=sys.stderr)
    if out is not None:
        write_files(out, found.files, is_forced=force)
    if json:
        print(dump(found.to_document()))
        return
    print(_written(out, found) if out is not None else next(iter(found.files.values())), end="")
    for line in _words(found, is_written=out is not None):
        print(line, file=sys.stderr)


def _written(out: Path, found: Any) -> str:
    """Return which files there are now."""
    return "".join(f"{out / name}\n" for name in found.files)


def _words(found: Any, *, is_written: bool) -> list[str]:
    """Return what is said beside the files: version, notes, and how to start it."""
    first, *others = found.files
    lines = [f"{found.target}: for {found.version}"]
    if others and not is_written:
        lines.append(f"this is {first}; it needs {', '.join(others)}, too: write all by --out FOLDER")
    lines += [f"- {note}" for note in found.notes]
    return lines + [f"run: {line}" for line in found.how_to_run]
