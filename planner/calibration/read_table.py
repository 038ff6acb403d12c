"""Tables of measurements in CSV: named columns with their unit in the name, every fault with its line and mend."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import Fault, SpecError
from planner.importers.text import read_cells

__all__ = ["MOST_ROWS", "Column", "Row", "fault", "read_rows"]

MOST_ROWS = 200_000
_MOST_COLUMNS = 64
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_UNITS: Mapping[str, Mapping[str, float]] = {"s": _SECONDS, "bytes": _BYTES, "": {"": 1.0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of numbers: its name without unit, its SI unit (``s``, ``bytes`` or none), and what it may hold."""

    name: str
    unit: str = ""
    is_needed: bool = True
    is_whole: bool = False
    least: float = 0.0
    is_least_allowed: bool = False

    @property
    def spellings(self) -> dict[str, float]:
        """Every spelling of the column's name, with what one of its unit is in SI units."""
        return {f"{self.name}_{unit}" if unit else self.name: scale for unit, scale in _UNITS[self.unit].items()}

    @property
    def template(self) -> str:
        """The name in SI units, as templates have it."""
        return f"{self.name}_{self.unit}" if self.unit else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table: numbers in SI units by column, the other cells as text, and the line's number."""

    line: int
    numbers: Mapping[str, float]
    texts: Mapping[str, str]


def fault(path: Path, line: int | None, problem: str, mend: str, *, field: str = "", value: object = "") -> Fault:
    """Return a fault of a file."""
    return Fault(file=str(path), line=line, field=field, value=str(value)[:80], problem=problem, mend=mend)


def read_rows(
    path: Path, columns: Sequence[Column], *, texts: Sequence[str] = (), has_others: bool = False
) -> list[Row]:
    """Return the rows of a table.

    Parameters
    ----------
    columns, texts
        Columns of numbers, and those of text that may stand beside them.
    has_others
        Whether columns of any other name are taken as text; else they are refused.

    Raises
    ------
    SpecError
        With the line of everything that is wrong, in one pass: no header, a column that is missing, unknown or there in
        two units, a cell that is no number in its range, no row at all, or more than 200,000 rows.
    """
    lines = read_cells(path, most_rows=MOST_ROWS)
    wanted = ",".join([*(column.template for column in columns), *texts])
    if len(lines) < 2:
        raise SpecError.of([fault(path, None, "there is no row below a header.", f"Write the columns {wanted}.")])
    at, header = lines[0]
    names = [cell.strip() for cell in header]
    places = _places(path, at, names, columns, texts, has_others=has_others)
    faults: list[Fault] = []
    rows = [_row(path, number, cells, names, places, faults) for number, cells in lines[1:]]
    if faults:
        raise SpecError.of(faults[:50])
    return rows


def _places(
    path: Path, line: int, names: Sequence[str], columns: Sequence[Column], texts: Sequence[str], *, has_others: bool
) -> dict[int, tuple[Column, float]]:
    """Return where every column of numbers stands, and its scale; refuse headers that do not fit."""
    faults: list[Fault] = []
    places: dict[int, tuple[Column, float]] = {}
    wanted = ", ".join([*(column.template for column in columns), *texts])
    if len(names) > _MOST_COLUMNS:
        raise SpecError.of([fault(path, line, f"{len(names)} columns, more than {_MOST_COLUMNS}.", f"Write {wanted}.")])
    for name in sorted({name for name in names if names.count(name) > 1}):
        faults.append(fault(path, line, f"the column {name!r} stands twice.", "Keep one.", field=name))
    known = set(texts)
    for column in columns:
        spellings = column.spellings
        found = [index for index, name in enumerate(names) if name in spellings]
        known |= spellings.keys()
        if len(found) > 1:
            given = " and ".join(names[index] for index in found)
            problem = f"{given} are given: which of the units holds?"
            faults.append(fault(path, line, problem, "Keep one of them.", field=column.name))
        elif not found and column.is_needed:
            mend = f"Name it {column.template}; other units: {', '.join(spellings)}." if column.unit else "Add it."
            faults.append(fault(path, line, f"the column {column.template!r} is missing.", mend, field=column.name))
        for index in found:
            places[index] = (column, spellings[names[index]])
    for name in names:
        if name not in known and not has_others:
            faults.append(fault(path, line, f"unknown column {name!r}.", f"Known: {wanted}.", field=name))
    if faults:
        raise SpecError.of(faults)
    return places


def _row(
    path: Path,
    line: int,
    cells: Sequence[str],
    names: Sequence[str],
    places: Mapping[int, tuple[Column, float]],
    faults: list[Fault],
) -> Row:
    """Return one row; what is wrong with it goes to ``faults``."""
    if len(cells) != len(names):
        problem = f"{len(cells)} cells under {len(names)} columns."
        faults.append(fault(path, line, problem, "Write one cell for each column.", value=",".join(cells)))
        return Row(line=line, numbers={}, texts={})
    numbers, texts = {}, {}
    for index, (name, cell) in enumerate(zip(names, cells, strict=True)):
        text = cell.strip()
        if index not in places:
            texts[name] = text
        elif text or places[index][0].is_needed:
            column, scale = places[index]
            value = _number(text, column)
            if isinstance(value, str):
                mend = "Write a plain number; its unit belongs into the column's name."
                faults.append(fault(path, line, f"{text!r} is {value}.", mend, field=name, value=text))
            else:
                numbers[column.name] = value * scale
    return Row(line=line, numbers=numbers, texts=texts)


def _number(text: str, column: Column) -> float | str:
    """Return a number in the column's range, or what is wrong with it."""
    try:
        value = float(text)
    except ValueError:
        return "not a number"
    if not math.isfinite(value):
        return "not a finite number"
    is_too_small = value < column.least or (value == column.least and not column.is_least_allowed)
    if is_too_small:
        return f"not {'at least' if column.is_least_allowed else 'more than'} {column.least:g}"
    if column.is_whole and value != int(value):
        return "not a whole number"
    return value
