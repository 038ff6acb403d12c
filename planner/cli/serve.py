"""``planner serve``: the page in which questions are asked."""

from importlib.util import find_spec
from typing import Annotated

import typer

from planner.cli.options import MemoryLimit
from planner.errors import SpecError

_LIBRARIES = ("starlette", "uvicorn")
_MOST_PROCESSES = 64


def serve(
    host: Annotated[
        str, typer.Option(help="Where to listen; other than this machine alone only if you trust who reaches it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")] = 8000,
    name: Annotated[
        list[str] | None, typer.Option(help="A further name by which browsers reach this server; may stand twice.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=_MOST_PROCESSES, help="Searches at once, each in a process; others wait.")
    ] = 2,
    time_limit: Annotated[str, typer.Option(help="Of a search, at most.")] = "60 s",
    memory_limit: MemoryLimit = None,
    open: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Ask questions in the browser, on a page of this machine alone.

    E.g. planner serve --port 8080
    """
    if missing := [one for one in _LIBRARIES if find_spec(one) is None]:
        problem = f"planner serve needs {' and '.join(missing)}, not installed here."
        raise SpecError.of_option("", problem, "Install them: pip install 'training-planner[serve]'.")
    from planner.cli.output import limit_s
    from planner.memory import default_limit_bytes
    from planner.serve.app import is_loopback
    from planner.serve.app import serve as run
    from planner.serve.searches import Limits
    from planner.units import Dimension, parse

    try:
        memory_bytes = default_limit_bytes(workers) if memory_limit is None else parse(memory_limit, Dimension.DATA)
    except ValueError as error:
        raise SpecError.of_option(
            "--memory-limit", str(error), "Write e.g. '2 GiB'.", value=memory_limit or ""
        ) from None
    if not is_loopback(host):
        typer.echo(
            f"warning: whoever reaches {host} may ask here and take this machine's time, without encryption", err=True
        )
    limits = Limits(num_processes=workers, most_s=limit_s(time_limit), memory_bytes=memory_bytes)
    run(host, port, names=tuple(name or ()), limits=limits, is_opened=open)
