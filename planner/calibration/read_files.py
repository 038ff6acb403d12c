"""Which kind of measurement every file is, told by its content, and all of them read."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from planner.calibration.read_collectives import Timing, read_table_timings
from planner.calibration.read_iterations import IterationTime, read_iteration_document, read_iteration_table
from planner.calibration.read_nccl import is_nccl, read_nccl
from planner.calibration.read_osu import is_osu, read_osu
from planner.calibration.read_table import fault
from planner.errors import SpecError
from planner.importers.kinds import kind_of
from planner.importers.text import read_text
from planner.letters import visible
from planner.spec.foreign import PROFILE_KINDS

__all__ = ["Kind", "Measurements", "expanded", "kind_of_file", "read_files"]

_MOST_FILES = 1000
_RUN_KEYS = ("session_id", "family", "inputs")
_HEADER_ROWS = 50  # comments before a header


class Kind(StrEnum):
    """What a file holds."""

    RUN = "run"
    OSU = "osu"
    NCCL = "nccl"
    COLLECTIVES = "collectives"
    LAYERS = "layers"
    ITERATIONS = "iterations"
    ITERATION_DOCUMENT = "iteration document"
    PROFILE = "profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What all files hold together; profiles and layer tables are read later, beside their network."""

    timings: tuple[Timing, ...] = ()
    iterations: tuple[IterationTime, ...] = ()
    layer_tables: tuple[Path, ...] = ()
    profiles: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def expanded(paths: Sequence[Path]) -> list[Path]:
    """Return the files, those of folders in the order of their names; hidden ones and folders in folders are left out.

    Raises
    ------
    SpecError
        If a folder is empty, or there are more than 1,000 files.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        inside = [one for one in inside if one.name.lower() not in ("readme.md", "readme", "license", "sources.md")]
        if not inside:
            raise SpecError.of([fault(path, None, "there is no file in this folder.", "Name the files themselves.")])
        found += inside
    if len(found) > _MOST_FILES:
        problem = f"{len(found)} files, more than {_MOST_FILES}."
        raise SpecError.of([fault(paths[0], None, problem, "Give them in parts.")])
    return list(dict.fromkeys(found))


def kind_of_file(path: Path) -> tuple[Kind, str]:
    """Return a file's kind and its text.

    Raises
    ------
    SpecError
        If nothing here can read it.
    """
    profile = kind_of(path)
    if profile == "chrome_trace":  # may be compressed, which is no text
        return Kind.PROFILE, ""
    text = read_text(path)
    if text.lstrip().startswith("{") and _is_run(text):
        return Kind.RUN, text
    if is_osu(text):
        return Kind.OSU, text
    if is_nccl(text):
        return Kind.NCCL, text
    header = _header(text)
    if any(name.startswith("iteration_time") for name in header) and len(header) > 1:
        return Kind.ITERATIONS, text
    if "layer" in header and "multiply_adds" in header:
        return Kind.LAYERS, text
    if {"num_devices", "collective"} & header and any(re.match(r"(size|time)", name) for name in header):
        return Kind.COLLECTIVES, text
    if re.search(r"^rows:", text, re.MULTILINE) and "iteration_time" in text:
        return Kind.ITERATION_DOCUMENT, text
    if profile in PROFILE_KINDS:
        return Kind.PROFILE, text
    problem = "its content is of no kind that is known here."
    mend = (
        "Give output of nccl-tests or osu-micro-benchmarks, a profile of layers, a measured run, or a table "
        "as `planner calibrate --template collectives` (or layers, iterations) prints it."
    )
    raise SpecError.of([fault(path, None, problem, mend)])


def _is_run(text: str) -> bool:
    """Whether a JSON text is a measured run."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and all(key in data for key in _RUN_KEYS)


def _header(text: str) -> set[str]:
    """Return the names of a CSV table's columns."""
    lines = [line for line in text.split("\n", _HEADER_ROWS)[:_HEADER_ROWS] if line.strip()]
    first = next((line for line in lines if not line.lstrip().startswith("#")), "")
    return {cell.strip().strip('"') for cell in first.split(",")}


def read_files(paths: Sequence[Path], *, num_devices: int | None = None) -> Measurements:
    """Return what the files hold.

    Parameters
    ----------
    num_devices
        Of timings whose format does not say it.

    Raises
    ------
    SpecError
        With what is wrong in all of them.
    """
    timings: list[Timing] = []
    iterations: list[IterationTime] = []
    found: dict[Kind, list[Path]] = {}
    notes, faults = [], []
    for path in expanded(paths):
        try:
            kind, text = kind_of_file(path)
            found.setdefault(kind, []).append(path)
            if kind is Kind.OSU:
                rows = read_osu(path, text, num_devices=num_devices)
                notes += _hints(path, rows, given=num_devices)
                timings += rows
            elif kind is Kind.NCCL:
                timings += read_nccl(path, text, num_devices=num_devices)
            elif kind is Kind.COLLECTIVES:
                timings += read_table_timings(path)
            elif kind is Kind.ITERATIONS:
                iterations += read_iteration_table(path)
            elif kind is Kind.ITERATION_DOCUMENT:
                iterations += read_iteration_document(path)
        except SpecError as error:
            faults += list(error.faults)
    if faults:
        raise SpecError.of(faults[:50])
    return Measurements(
        timings=tuple(timings),
        iterations=tuple(iterations),
        layer_tables=tuple(found.get(Kind.LAYERS, ())),
        profiles=tuple(found.get(Kind.PROFILE, ())),
        runs=tuple(found.get(Kind.RUN, ())),
        files=tuple(path for paths_of in found.values() for path in paths_of),
        notes=tuple(notes),
    )


def _hints(path: Path, rows: Iterable[Timing], *, given: int | None) -> list[str]:
    """Say where the number of devices was read from, if nobody gave it."""
    numbers = {row.num_devices for row in rows}
    if given or not numbers:
        return []
    return [f"{visible(path.name)}: {numbers.pop()} devices, as its name or its lines say"]
