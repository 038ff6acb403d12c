"""All commands, put together."""

from typing import Annotated

import typer

from planner.cli.calibrate import calibrate
from planner.cli.case import case
from planner.cli.check import check
from planner.cli.compare import compare
from planner.cli.explain import explain
from planner.cli.export import export
from planner.cli.import_network import import_network
from planner.cli.init import init
from planner.cli.plan import plan
from planner.cli.predict import predict
from planner.cli.procure import procure
from planner.cli.schema import schema
from planner.cli.show import show
from planner.cli.sweep import sweep

__all__ = ["app"]

app = typer.Typer(
    name="planner",
    help="Find the provably fastest way to train a deep neural network on given machines.",
    epilog="Exit codes: 0 answered; 1 no plan exists, a check fails or a case is off; 2 the input is wrong; "
    "3 a limit came first.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(is_asked: bool) -> None:
    """Print the version and stop, if that was asked."""
    if is_asked:
        from importlib.metadata import version

        print(f"planner {version('training-planner')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Find the provably fastest way to train a deep neural network on given machines."""


for command in (plan, predict, procure, sweep, explain, compare, check, init, show, schema, case, calibrate, export):
    app.command()(command)
app.command(name="import")(import_network)
