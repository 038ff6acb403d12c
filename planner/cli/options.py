"""Options, said once: a command names groups of them, and the options that it has alone.

A group is a frozen dataclass; each field is an option, with its words. :func:`grouped` makes of a command with groups
the function with one parameter an option that typer wants.
"""

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from planner.errors import Fault, SpecError
from planner.frozen import frozen

if TYPE_CHECKING:
    from planner.answer.timeline import Measured
    from planner.plan import Configuration
    from planner.problem import Problem
    from planner.worker_pool import WorkerPool

MOST_WORKERS = 1024
_CONNECT_S = 5.0
_BY_SOCKET = ("", "tcp", "tls")  # addresses at which a plain connection shows that somebody listens


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the fields of each of its groups in the group's place, as options of its own."""
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    kinds = get_type_hints(command, include_extras=True)
    for name, parameter in signature(command).parameters.items():
        kind = kinds[name]
        if not is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))
            continue
        groups[name] = kind
        own = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            default = Parameter.empty if field.default is MISSING else field.default
            parameters.append(
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=own[field.name])
            )

    @wraps(command)
    def called(**options: Any) -> None:
        made = {
            name: kind(**{one.name: options.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()
        }
        command(**options, **made)

    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def in_short(text: str, offered: Callable[[str], list[str]] | None = None) -> object:
    """Return an option of a question that is asked by flags, with its help and what a shell offers for it."""
    return typer.Option(help=text, rich_help_panel="Short question", autocompletion=offered)


def json_of(schema: str) -> object:
    """Return the option that prints an answer as a document of a schema."""
    return typer.Option("--json", help=f"One JSON document ({schema}) on stdout.")


def _address(text: str | None) -> str | None:
    """Return a scheduler's address if it can be one: a short search never asks it, and would keep silent on a slip."""
    if text is not None and not re.fullmatch(r"(\w+://)?[^\s/]+:\d+/?", text):
        raise typer.BadParameter(f"{text!r} is no address of a scheduler. Write e.g. tcp://127.0.0.1:8786.")
    return text


RunFactory = Annotated[
    str | None, typer.Option(help="Allow dnn.torch to run this factory of a PyTorch module, package:function.")
]
Html = Annotated[Path | None, typer.Option(help="Write the answer as a page for a browser, too: one file, offline.")]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        help="Hold no more memory, e.g. '2 GiB'; the best so far is given. Else three quarters of what is left."
    ),
]


def check_helpers(workers: int, scheduler: str | None) -> None:
    """Refuse a scheduler where nobody listens, workers beside it or too many of them, or either without libraries.

    Short searches would say neither, and long ones late.
    """
    from importlib.util import find_spec

    from planner.memory import most_workers, too_many_workers

    needed = [] if workers == 1 and scheduler is None else ["distributed", *(["cryptography"] if workers > 1 else [])]
    if missing := [name for name in needed if find_spec(name) is None]:
        problem = f"more than one worker needs {' and '.join(missing)}, not installed here."
        mend = "pip install 'training-planner[distributed]', or leave out --workers and --scheduler."
        raise SpecError.of_option("--workers", problem, mend)
    if scheduler is None:
        if problem := too_many_workers(workers):
            mend = f"Give {most_workers()} or fewer; --scheduler has those of other machines help."
            raise SpecError.of_option("--workers", f"{problem}.", mend)
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


@frozen
class SearchOptions:
    """Who searches, and within which limits."""

    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_WORKERS,
            help="Processes on this machine that help with a long search, the answer is the same.",
        ),
    ] = 1
    scheduler: Annotated[
        str | None,
        typer.Option(callback=_address, help="Workers of a Dask scheduler that you trust help, tcp://host:port."),
    ] = None
    time_limit: Annotated[
        str, typer.Option(help="Stop searching after this; the best so far is given with its bound.")
    ] = "60 s"
    memory_limit: MemoryLimit = None

    def checked(self) -> tuple[float, float]:
        """Return the limits of time and memory, in seconds and bytes; hold this process to the latter.

        Raises
        ------
        SpecError
            If a limit is no quantity, or a library is missing.
        NoAnswerError
            If this process holds more memory already.
        """
        from planner.cli.output import limit_bytes, limit_s

        limits = limit_s(self.time_limit), limit_bytes(self.memory_limit, self.workers)
        check_helpers(self.workers, self.scheduler)
        return limits

    def pool(self) -> "AbstractContextManager[WorkerPool | None]":
        """Return the workers that help; what they need is imported where there are any."""
        if self.scheduler is None and self.workers == 1:
            return nullcontext()
        from planner.workers.pool import worker_pool

        return worker_pool(self.workers, self.scheduler)

    @property
    def words(self) -> list[str]:
        """The limits as options, for the command that asks again."""
        return ["--time-limit", self.time_limit, *(["--memory-limit", self.memory_limit] if self.memory_limit else [])]


@frozen
class TraceOptions:
    """A schedule that is drawn."""

    trace: Annotated[
        Path | None, typer.Option(help="Write the schedule as a Chrome trace, for ui.perfetto.dev; .json or .json.gz.")
    ] = None
    trace_devices: Annotated[
        str | None, typer.Option(help="With --trace: all, or kinds, one device of each kind; else all of up to 64.")
    ] = None
    trace_iterations: Annotated[
        int | None, typer.Option(min=1, max=100, help="With --trace: how many iterations; else one.")
    ] = None
    measured: Annotated[
        Path | None,
        typer.Option(help="With --trace: a torch.profiler trace, whose modules are put beside the predicted layers."),
    ] = None

    def checked(self) -> "Measured | None":
        """Return the measured step, read before anything is searched; refuse options that mean nothing.

        Raises
        ------
        SpecError
            If there is no ``--trace``, a word is not known, or the measured trace is not there or has no modules.
        """
        given = {
            "--trace-devices": self.trace_devices,
            "--trace-iterations": self.trace_iterations,
            "--measured": self.measured,
        }
        where, mend = "command line", "Add --trace FILE."
        faults = [
            Fault(file=where, field=name, value=str(value), problem="no trace is asked for.", mend=mend)
            for name, value in given.items()
            if self.trace is None and value is not None
        ]
        if self.trace_devices not in (None, "all", "kinds"):
            problem, mend = "this is neither all nor kinds.", "Write one of them."
            faults.append(
                Fault(file=where, field="--trace-devices", value=self.trace_devices, problem=problem, mend=mend)
            )
        if self.measured is not None and not self.measured.is_file():
            problem = "this is not a regular file." if self.measured.exists() else "there is no such file."
            mend = "Name the file that torch.profiler's export_chrome_trace wrote."
            faults.append(Fault(file=str(self.measured), field="--measured", problem=problem, mend=mend))
        if faults:
            raise SpecError.of(faults)
        if self.trace is None or self.measured is None:
            return None
        from planner.answer.timeline import measured_step

        return measured_step(self.measured)

    def write(
        self, problem: "Problem", family: str, configuration: "Configuration", measured: "Measured | None"
    ) -> None:
        """Write a configuration's schedule as a Chrome trace, if one is asked for.

        With a measured step, predicted and measured seconds go to stderr as a table, too, and so does that it holds
        less than all.
        """
        if self.trace is None:
            return
        from planner.answer.timeline import file_of, table_text
        from planner.api import timelines
        from planner.cli.output import Progress, write_bytes

        is_packed = self.trace.suffix == ".gz"
        with Progress("drawing"):
            draw = timelines(
                problem,
                family,
                configuration,
                devices=self.trace_devices,
                num_iterations=self.trace_iterations or 1,
                has_parts=True,
                measured=measured,
            )
            content, found = file_of(draw, is_packed=is_packed)
        write_bytes(self.trace, content)
        for note in found["otherData"].get("notes", ()):
            if note.startswith("thinned"):
                more = "" if is_packed else f" {self.trace.name}.gz holds about ten times as many."
                print(f"{self.trace}: {note}.{more}", file=sys.stderr)
        if measured is not None:
            print(table_text(found["otherData"]["measured"]), file=sys.stderr)
