"""Measured iterations at several configurations: from a CSV, or YAML with a list ``rows``.

A row is a change of the question and its time. Bare names are keys of ``fix``; a dotted name is a place in the question
(``dnn.batch_per_device``, ``configuration.all_reduce.num_devices``); in YAML ``fix``, ``dnn`` and ``configuration`` may
be mappings.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.calibration.read_table import Column, fault, read_rows
from planner.errors import Fault, SpecError
from planner.spec.source import Source, read_source
from planner.units import Dimension, parse

__all__ = ["TEMPLATE", "IterationTime", "read_iteration_document", "read_iteration_table"]

TEMPLATE = """\
# Measured iterations for `planner calibrate --spec SPEC`: the question in SPEC, changed in each row. Bare names are
# keys of its block fix (num_devices, num_parameter_servers, tensor_parallel_size, ...); dotted names are places in the
# question, e.g. dnn.batch_per_device or configuration.all_reduce.num_devices. An empty cell changes nothing.
# iteration_time_s may be iteration_time_ms or iteration_time_us. Measure at least one row more than there are
# parameters: all_reduce and parameter_server have three, hybrid two.
num_devices,dnn.batch_per_device,iteration_time_s
4,32,0.182
8,32,0.197
16,32,0.224
32,32,0.251
"""
_PLACES = frozenset({"fix", "dnn", "configuration", "cluster"})
_MOST_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTime:
    """One measured iteration: what differs from the question, its median seconds, and where it stands."""

    changes: Mapping[str, Any]
    time_s: float
    file: str
    line: int | None = None

    @property
    def name(self) -> str:
        """The changes in a few words."""
        return ", ".join(_words(self.changes)) or "the question as it is"


def _words(changes: Mapping[str, Any]) -> list[str]:
    """Return ``num_devices 4``, key by key, without the places they stand in; long values are cut."""
    found = []
    for key, value in changes.items():
        found += _words(value) if isinstance(value, Mapping) else [f"{key} {str(value)[:24]}"]
    return found


def read_iteration_table(path: Path) -> list[IterationTime]:
    """Return the rows of a CSV table; see ``TEMPLATE``.

    Raises
    ------
    SpecError
        With the line of everything that is wrong.
    """
    rows = read_rows(path, (Column(name="iteration_time", unit="s"),), has_others=True)
    if len(rows) > _MOST_ROWS:
        raise SpecError.of([fault(path, None, f"more than {_MOST_ROWS} rows.", "Give the medians of each setting.")])
    found, faults = [], []
    for row in rows:
        changes: dict[str, Any] = {}
        for name, cell in row.texts.items():
            parts = name.split(".") if "." in name else ["fix", name]
            if parts[0] not in _PLACES or not all(parts):
                mend = f"Write a key of fix, or a place below {', '.join(sorted(_PLACES))}."
                faults.append(fault(path, row.line, f"{name!r} is no place in a question.", mend, field=name))
            elif cell:
                _put(changes, parts, _value(cell))
        found.append(
            IterationTime(changes=changes, time_s=row.numbers["iteration_time"], file=str(path), line=row.line)
        )
    if faults:
        raise SpecError.of(faults[:50])
    return found


def _put(changes: dict[str, Any], parts: list[str], value: object) -> None:
    """Set a value at a place, making the mappings on the way."""
    for part in parts[:-1]:
        changes = changes.setdefault(part, {})
    changes[parts[-1]] = value


def _value(cell: str) -> object:
    """Return a cell as a truth value, a whole number, a number, or text."""
    if cell in ("true", "false"):
        return cell == "true"
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def read_iteration_document(path: Path) -> list[IterationTime]:
    """Return the rows of a YAML document ``rows: [{fix: {...}, iteration_time: 182 ms}]``.

    Raises
    ------
    SpecError
        With the line of everything that is wrong.
    """
    source = read_source(path)
    rows = source.data.get("rows")
    if not isinstance(rows, list) or not rows or len(rows) > _MOST_ROWS:
        mend = "Write e.g. rows: [{fix: {num_devices: 4}, iteration_time: 182 ms}]."
        raise SpecError.of([source.fault(("rows",), f"this is no list of 1 to {_MOST_ROWS} rows.", mend)])
    faults: list[Fault] = []
    found = [_row_of(source, index, row, faults) for index, row in enumerate(rows)]
    if faults:
        raise SpecError.of(faults[:50])
    return found


def _row_of(source: Source, index: int, row: object, faults: list[Fault]) -> IterationTime:
    """Return one row; what is wrong with it goes to ``faults``."""
    at: tuple[str | int, ...] = ("rows", index)
    line, _ = source.positions.get(at) or (None, None)
    if not isinstance(row, dict):
        faults.append(source.fault(at, "a row is a mapping.", "Write {fix: {num_devices: 4}, iteration_time: 182 ms}."))
        return IterationTime(changes={}, time_s=1.0, file=source.file, line=line)
    given = row.get("iteration_time")
    try:
        time_s = parse(given, Dimension.TIME) if isinstance(given, str) else math.nan
        problem = "" if time_s > 0 else f"{given!r} is no time of more than 0 with its unit."
    except ValueError as error:
        time_s, problem = 1.0, str(error)
    if problem:
        faults.append(source.fault((*at, "iteration_time"), problem, "Write e.g. 182 ms.", given))
    for key, value in row.items():
        if key != "iteration_time" and (key not in _PLACES or not isinstance(value, dict)):
            mend = f"Known: iteration_time, and mappings {', '.join(sorted(_PLACES))}."
            faults.append(source.fault((*at, key), f"{key!r} is no mapping that a row may hold.", mend))
    changes = {key: value for key, value in row.items() if key in _PLACES}
    return IterationTime(changes=changes, time_s=time_s, file=source.file, line=line)
