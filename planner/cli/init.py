"""``planner init``: a commented spec to start from."""

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from planner.errors import Fault, SpecError

__all__ = ["init"]


def init(
    file: Annotated[Path | None, typer.Argument(help="Where to write it; stdout if left out, or -.")] = None,
    procure: Annotated[bool, typer.Option("--procure", help="One for `planner procure`: what to buy or rent.")] = False,
) -> None:
    """Write a commented spec to start from."""
    from planner.cli.output import write_text

    text = (
        resources.files("planner.data")
        .joinpath(f"examples/{'procure' if procure else 'spec'}.yaml")
        .read_text(encoding="utf-8")
    )
    if file is None or str(file) == "-":
        print(text, end="")
        return
    if file.exists():
        fault = Fault(
            file=str(file), value=str(file), problem="this file exists.", mend="Name another one, or remove it first."
        )
        raise SpecError.of([fault])
    write_text(file, text)
    typer.echo(f"Wrote {file}. Next: planner {'procure' if procure else 'plan'} {file}", err=True)
