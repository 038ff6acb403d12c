"""Options that several commands have, said once."""

import re
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Html",
    "MeasuredTrace",
    "MemoryLimit",
    "RunFactory",
    "Scheduler",
    "Trace",
    "TraceDevices",
    "TraceIterations",
    "Workers",
    "check_helpers",
]

_MOST_WORKERS = 1024
_CONNECT_S = 5.0
_BY_SOCKET = ("", "tcp", "tls")  # addresses at which a plain connection shows that somebody listens


def _address(text: str | None) -> str | None:
    """Return a scheduler's address if it can be one: a short search never asks it, and would keep silent on a slip."""
    if text is not None and not re.fullmatch(r"(\w+://)?[^\s/]+:\d+/?", text):
        raise typer.BadParameter(f"{text!r} is no address of a scheduler. Write e.g. tcp://127.0.0.1:8786.")
    return text


def _check_libraries(*names: str) -> None:
    """Refuse worker processes where a library of theirs is not installed."""
    from importlib.util import find_spec

    from planner.errors import Fault, SpecError

    if missing := [name for name in names if find_spec(name) is None]:
        problem = f"more than one worker needs {' and '.join(missing)}, not installed here."
        mend = "pip install 'training-planner[distributed]', or leave out --workers and --scheduler."
        raise SpecError.of([Fault(file="command line", field="--workers", problem=problem, mend=mend)])


def check_helpers(workers: int, scheduler: str | None) -> None:
    """Refuse a scheduler where nobody listens, workers of this machine beside it, or either without their libraries.

    Short searches would say neither, and long ones late.
    """
    if workers > 1 or scheduler is not None:
        _check_libraries("distributed", *(["cryptography"] if workers > 1 else []))
    if scheduler is None:
        return
    if workers > 1:
        raise typer.BadParameter("--workers and --scheduler name different workers. Give one of the two.")
    import socket

    way, _, place = scheduler.rpartition("://")
    if way.lower() not in _BY_SOCKET:
        return
    host, port = place.rstrip("/").rsplit(":", 1)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError, ValueError) as error:  # also what is no name of a host
        problem = f"--scheduler: {scheduler}: no Dask scheduler answers there ({error})."
        raise typer.BadParameter(f"{problem} Start one with `dask scheduler`, or leave it out.") from None


Trace = Annotated[Path | None, typer.Option(help="Write the schedule as a Chrome trace, for ui.perfetto.dev.")]
TraceDevices = Annotated[
    str | None, typer.Option(help="With --trace: all, or kinds, one device of each kind; else all of up to 64.")
]
TraceIterations = Annotated[
    int | None, typer.Option(min=1, max=100, help="With --trace: how many iterations; else one.")
]
MeasuredTrace = Annotated[
    Path | None,
    typer.Option(help="With --trace: a torch.profiler trace, whose modules are put beside the predicted layers."),
]
RunFactory = Annotated[
    str | None, typer.Option(help="Allow dnn.torch to run this factory of a PyTorch module, package:function.")
]
Workers = Annotated[
    int,
    typer.Option(
        min=1, max=_MOST_WORKERS, help="Processes on this machine that help with a long search, the answer is the same."
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(callback=_address, help="Workers of a Dask scheduler that you trust help, tcp://host:port."),
]
Html = Annotated[Path | None, typer.Option(help="Write the answer as a page for a browser, too: one file, offline.")]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        help="Hold no more memory, e.g. '2 GiB'; the best so far is given. Else three quarters of what is left."
    ),
]
