"""What commands share: limits read, files written whole or not at all."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import Fault, SpecError
from planner.targets import check_targets, reason_of, whole
from planner.units import Dimension, parse

if TYPE_CHECKING:
    from planner.timelines import Measured

_MOST_NAME = 1024  # letters of a file's name with its path

__all__ = [
    "check_outputs",
    "check_trace",
    "left_s",
    "limit_bytes",
    "limit_s",
    "write_files",
    "write_pieces",
    "write_text",
    "write_trace",
]


def limit_s(text: str) -> float:
    """Return the seconds of ``--time-limit``."""
    try:
        return parse(text, Dimension.TIME)
    except ValueError as error:
        raise SpecError.of([Fault(file="command line", field="--time-limit", value=text, problem=str(error))]) from None


def left_s(seconds: float, begin_s: float) -> float:
    """Return what is left of a time limit after reading the question; a quarter of it at least, to search at all.

    ``begin_s``: when the command began, by ``time.monotonic``.
    """
    return max(seconds - (time.monotonic() - begin_s), seconds / 4)


def limit_bytes(text: str | None, num_processes: int = 1) -> float:
    """Return the bytes of ``--memory-limit``, or a share of what is left, and hold this process to them.

    Raises
    ------
    NoAnswerError
        If this process holds more already.
    """
    from planner.errors import NoAnswerError
    from planner.memory import default_limit_bytes, lower_ceiling, resident_bytes
    from planner.units import format_human

    if text is None:
        found = default_limit_bytes(num_processes)
    else:
        try:
            found = parse(text, Dimension.DATA)
        except ValueError as error:
            fault = Fault(file="command line", field="--memory-limit", value=text, problem=str(error))
            raise SpecError.of([fault]) from None
    if found <= (held := resident_bytes()):
        needed = format_human(held, Dimension.DATA, 3)
        raise NoAnswerError(f"--memory-limit: the program itself holds {needed}, more than {text}. Allow more.")
    lower_ceiling(found)
    return found


def check_outputs(
    targets: Mapping[str, Path | None], spec: Path | None = None, inputs: Mapping[str, Path | None] | None = None
) -> None:
    """Refuse at once what could not be written in the end: see :func:`planner.targets.check_targets`.

    Parameters
    ----------
    targets
        What options name, by the options' names.
    spec
        The question: it is read, and so is what it names.
    inputs
        Other files that the command reads, by what they are called.
    """
    is_there = any(path is not None and os.path.lexists(path) for path in targets.values())
    named = _named_by(spec) if spec is not None and is_there else []
    read = [
        ("the question itself", spec),
        *(inputs or {}).items(),
        *(("what the question names", one) for one in named),
    ]
    check_targets(targets, read)


def _named_by(spec: Path) -> list[Path]:
    """Return what may be files in the text of a spec; nothing where it cannot be read, which its reader says better."""
    from planner.spec.source import read_source

    try:
        waiting: list[Any] = [read_source(spec).data]
    except SpecError:
        return []
    names: set[str] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping | list):
            waiting.extend(value.values() if isinstance(value, Mapping) else value)
        elif isinstance(value, str) and 0 < len(value) <= _MOST_NAME and "\0" not in value:
            names.add(value)
    folder = os.fspath(spec.parent)  # of 150,000 words a few are files
    return [spec.parent / name for name in sorted(names) if os.path.lexists(os.path.join(folder, name))]  # noqa: PTH118


def write_trace(
    path: Path,
    problem: Any,
    family: str,
    configuration: Any,
    *,
    devices: str | None = None,
    num_iterations: int = 1,
    measured: "Measured | None" = None,
) -> None:
    """Write a configuration's schedule as a Chrome trace.

    With a measured step, predicted and measured seconds go to stderr as a table, too.
    """
    from planner.api import timeline

    found = timeline(
        problem,
        family,
        configuration,
        devices=devices,
        num_iterations=num_iterations,
        has_parts=True,
        measured=measured,
    )
    write_pieces(path, _json_of(found))
    if measured is not None:
        from planner.timelines import table_text

        print(table_text(found["otherData"]["measured"]), file=sys.stderr)


def _json_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a trace as JSON, an event at a time: of a million the text is not held beside them."""
    import json

    def text(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    rest = {name: value for name, value in document.items() if name != "traceEvents"}
    yield '{"traceEvents":['
    for index, event in enumerate(document["traceEvents"]):
        yield f",{text(event)}" if index else text(event)
    yield f"],{text(rest)[1:]}\n"


def check_trace(
    trace: Path | None, devices: str | None, num_iterations: int | None, measured: Path | None
) -> "Measured | None":
    """Return the measured step, read before anything is searched; refuse options that mean nothing.

    Raises
    ------
    SpecError
        If there is no ``--trace``, a word is not known, or the measured trace is not there or has no modules.
    """
    given = {"--trace-devices": devices, "--trace-iterations": num_iterations, "--measured": measured}
    faults = []
    if trace is None:
        faults += [
            Fault(
                file="command line",
                field=name,
                value=str(value),
                problem="no trace is asked for.",
                mend="Add --trace FILE.",
            )
            for name, value in given.items()
            if value is not None
        ]
    if devices not in (None, "all", "kinds"):
        problem = "this is neither all nor kinds."
        faults.append(
            Fault(
                file="command line", field="--trace-devices", value=devices, problem=problem, mend="Write one of them."
            )
        )
    if measured is not None and not measured.is_file():
        problem = "this is not a regular file." if measured.exists() else "there is no such file."
        mend = "Name the file that torch.profiler's export_chrome_trace wrote."
        faults.append(Fault(file=str(measured), field="--measured", problem=problem, mend=mend))
    if faults:
        raise SpecError.of(faults)
    if trace is None or measured is None:
        return None
    from planner.api import measured_step

    return measured_step(measured)


def write_files(folder: Path, files: Mapping[str, str], *, is_forced: bool) -> None:
    """Write files into a folder, which is made if it is not there; none of them if one is there already.

    Raises
    ------
    SpecError
        If a file is there and ``is_forced`` is not, or one cannot be written.
    """
    paths = {folder / name: text for name, text in files.items()}
    assert all(path.name == name for path, name in zip(paths, files, strict=True))  # no exporter leaves the folder
    there = [] if is_forced else [path for path in paths if path.exists() or path.is_symlink()]
    if there:
        problem, mend = "this file is there already.", "Name another folder, or add --force."
        raise SpecError.of(
            [Fault(file=str(path), field="--out", value=str(path), problem=problem, mend=mend) for path in there]
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"this folder cannot be made: {error.strerror}."
        fault = Fault(file=str(folder), field="--out", value=str(folder), problem=problem, mend="Name another one.")
        raise SpecError.of([fault]) from None
    for path, text in paths.items():
        write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a file whole: see :func:`write_pieces`."""
    write_pieces(path, [text])


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Write a file whole, piece by piece: a reader sees the old one or the new one, never a part.

    What a link leads to is written, and the link stays. A device or a pipe is written to as it is.

    Raises
    ------
    SpecError
        If the file cannot be written.
    """
    try:
        # A name of the file system that is no text, in JSON as in a page, is written as its escape.
        with whole(path) as new, new.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(pieces)
    except OSError as error:
        fault = Fault(file=str(path), value=str(path), problem=reason_of(error), mend="Name another file.")
        raise SpecError.of([fault]) from None
