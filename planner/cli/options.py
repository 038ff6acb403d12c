"""Options that several commands have, said once."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from planner.answer.timeline import Measured
    from planner.plan import Configuration
    from planner.problem import Problem

__all__ = [
    "Html",
    "MeasuredTrace",
    "MemoryLimit",
    "RunFactory",
    "Scheduler",
    "TimeLimit",
    "Trace",
    "TraceDevices",
    "TraceIterations",
    "TraceOptions",
    "Workers",
    "check_helpers",
    "in_short",
    "json_of",
]

_MOST_WORKERS = 1024
_CONNECT_S = 5.0
_BY_SOCKET = ("", "tcp", "tls")  # addresses at which a plain connection shows that somebody listens


def in_short(text: str) -> Any:
    """Return an option of a question that is asked by flags, with its help."""
    return typer.Option(help=text, rich_help_panel="Short question")


def json_of(schema: str) -> Any:
    """Return the option that prints an answer as a document of a schema."""
    return typer.Option("--json", help=f"One JSON document ({schema}) on stdout.")


def _address(text: str | None) -> str | None:
    """Return a scheduler's address if it can be one: a short search never asks it, and would keep silent on a slip."""
    if text is not None and not re.fullmatch(r"(\w+://)?[^\s/]+:\d+/?", text):
        raise typer.BadParameter(f"{text!r} is no address of a scheduler. Write e.g. tcp://127.0.0.1:8786.")
    return text


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
TimeLimit = Annotated[str, typer.Option(help="Stop searching after this; the best so far is given with its bound.")]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        help="Hold no more memory, e.g. '2 GiB'; the best so far is given. Else three quarters of what is left."
    ),
]


def check_helpers(workers: int, scheduler: str | None) -> None:
    """Refuse a scheduler where nobody listens, workers of this machine beside it, or either without their libraries.

    Short searches would say neither, and long ones late.
    """
    from importlib.util import find_spec

    from planner.cli.question import flag_fault

    needed = [] if workers == 1 and scheduler is None else ["distributed", *(["cryptography"] if workers > 1 else [])]
    if missing := [name for name in needed if find_spec(name) is None]:
        problem = f"more than one worker needs {' and '.join(missing)}, not installed here."
        mend = "pip install 'training-planner[distributed]', or leave out --workers and --scheduler."
        raise flag_fault("--workers", problem, mend)
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


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What ``--trace`` and its like ask for."""

    path: Path | None
    devices: str | None
    num_iterations: int | None
    measured: Path | None

    def checked(self) -> "Measured | None":
        """Return the measured step, read before anything is searched; refuse options that mean nothing.

        Raises
        ------
        SpecError
            If there is no ``--trace``, a word is not known, or the measured trace is not there or has no modules.
        """
        from planner.errors import Fault, SpecError

        given = {
            "--trace-devices": self.devices,
            "--trace-iterations": self.num_iterations,
            "--measured": self.measured,
        }
        where, mend = "command line", "Add --trace FILE."
        faults = [
            Fault(file=where, field=name, value=str(value), problem="no trace is asked for.", mend=mend)
            for name, value in given.items()
            if self.path is None and value is not None
        ]
        if self.devices not in (None, "all", "kinds"):
            problem, mend = "this is neither all nor kinds.", "Write one of them."
            faults.append(Fault(file=where, field="--trace-devices", value=self.devices, problem=problem, mend=mend))
        if self.measured is not None and not self.measured.is_file():
            problem = "this is not a regular file." if self.measured.exists() else "there is no such file."
            mend = "Name the file that torch.profiler's export_chrome_trace wrote."
            faults.append(Fault(file=str(self.measured), field="--measured", problem=problem, mend=mend))
        if faults:
            raise SpecError.of(faults)
        if self.path is None or self.measured is None:
            return None
        from planner.answer.timeline import measured_step

        return measured_step(self.measured)

    def write(
        self, problem: "Problem", family: str, configuration: "Configuration", measured: "Measured | None"
    ) -> None:
        """Write a configuration's schedule as a Chrome trace, if one is asked for.

        With a measured step, predicted and measured seconds go to stderr as a table, too.
        """
        if self.path is None:
            return
        import sys

        from planner.answer.timeline import pieces_of, table_text
        from planner.api import timeline
        from planner.cli.output import write_pieces

        found = timeline(
            problem,
            family,
            configuration,
            devices=self.devices,
            num_iterations=self.num_iterations or 1,
            has_parts=True,
            measured=measured,
        )

        write_pieces(self.path, pieces_of(found))
        if measured is not None:
            print(table_text(found["otherData"]["measured"]), file=sys.stderr)
