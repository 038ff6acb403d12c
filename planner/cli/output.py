"""What commands share: limits read, files written whole or not at all."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.units import Dimension, parse

__all__ = ["limit_s", "write_files", "write_text", "write_trace"]


def limit_s(text: str) -> float:
    """Return the seconds of ``--time-limit``."""
    try:
        return parse(text, Dimension.TIME)
    except ValueError as error:
        raise SpecError.of([Fault(file="command line", field="--time-limit", value=text, problem=str(error))]) from None


def write_trace(path: Path, problem: Any, family: str, configuration: Any, *, question: Path | None) -> None:
    """Write a configuration's schedule as a Chrome trace; never over the question itself."""
    if question is not None and path.exists() and path.samefile(question):
        text = "this is the question itself, which the trace would overwrite."
        raise SpecError.of([Fault(file=str(path), field="--trace", problem=text, mend="Name another file.")])
    import json

    from planner.api import timeline

    write_text(path, json.dumps(timeline(problem, family, configuration), separators=(",", ":")) + "\n")


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
    """Write a file whole: a reader sees the old one or the new one, never a part.

    Raises
    ------
    SpecError
        If the file cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except OSError as error:
        fault = Fault(
            file=str(path),
            value=str(path),
            problem=f"it cannot be written: {error.strerror}.",
            mend="Name another file.",
        )
        raise SpecError.of([fault]) from None
