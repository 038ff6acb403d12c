"""Reading a table of comma-separated values that a user wrote: every fault with its line, column, value and mend.

A column's unit stands in its name. Cells are separated by commas or, as some spreadsheets write them, by semicolons;
a byte-order mark, Windows line ends, blank lines and lines that begin with ``#`` are no faults. Nothing is dropped in
silence: a row that cannot be read is a fault.
"""

import csv
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from planner.errors import Fault, SpecError
from planner.importers.text import read_text
from planner.names import find, fold

__all__ = ["MOST_BYTES", "MOST_ROWS", "Row", "read_rows", "refuse", "text_of"]

MOST_BYTES = 16 * 2**20
MOST_ROWS = 20_000
_MOST_FAULTS = 100
_MOST_CELL = 2000  # characters
_MOST_SHOWN = 60  # of them in a message
_LEAST, _MOST = 1e-9, 1e12  # beyond them no price, power or rate is meant
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_FIRST_DAY = date(2000, 1, 1)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table; its readers add what is wrong to ``faults`` and return a value that goes on."""

    file: str
    line: int
    cells: Mapping[str, str]
    faults: list[Fault]

    def fault(self, column: str, problem: str, mend: str) -> None:
        """Add a fault of one cell."""
        value = _cut(self.text(column))
        self.faults.append(Fault(file=self.file, line=self.line, field=column, value=value, problem=problem, mend=mend))

    def text(self, column: str) -> str:
        """Return a cell, empty where the table lacks the column."""
        return self.cells.get(column, "")

    def needed(self, column: str) -> str:
        """Return a cell that must not be empty."""
        if not self.text(column):
            self.fault(column, "the cell is empty.", "Fill it.")
        return self.text(column)

    def name(self, column: str) -> str:
        """Return a part of an offer's name: not empty, and without the stroke that joins the parts."""
        if "/" in self.needed(column):
            self.fault(column, f"{_shown(self.text(column))} has a stroke in it.", "Write it without '/'.")
        return self.text(column)

    def choice(self, column: str, choices: Sequence[str]) -> str:
        """Return one of some words; nothing where it is none, which is a fault."""
        given = self.needed(column)
        if not given or given in choices:
            return given
        try:
            return find(given, {fold(choice): choice for choice in choices}, column)
        except SpecError as error:
            self.fault(column, error.faults[0].problem, error.faults[0].mend)
            return ""

    def number(self, column: str, *, is_zero: bool = False) -> float | None:
        """Return a number above 0, or of at least 0; None where the cell is empty, or its content a fault."""
        given = self.text(column)
        if not given:
            return None
        if not _NUMBER.fullmatch(given):
            mend = "Write digits with a point, without separators and without a unit: 1234.5."
            self.fault(column, f"{_shown(given)} is not a number.", mend)
            return None
        value = float(given)
        if value == 0 and is_zero:
            return 0.0
        if value <= 0:
            least = "0 or more" if is_zero else "more than 0"
            self.fault(column, f"{_shown(given)} is not {least}.", f"Write a number of {least}.")
            return None
        if not _LEAST <= value <= _MOST:
            self.fault(column, f"{_shown(given)} is beyond {_LEAST:g} to {_MOST:g}.", "Is it in the column's unit?")
            return None
        return value

    def count(self, column: str, most: int) -> int | None:
        """Return a whole number of at least 1; None where the cell is empty, or its content a fault."""
        given = self.text(column)
        if not given:
            return None
        if not re.fullmatch(r"\d{1,18}", given, re.ASCII) or not 1 <= int(given) <= most:
            self.fault(column, f"{_shown(given)} is not a whole number from 1 to {most}.", "Write e.g. 8.")
            return None
        return int(given)

    def day(self, column: str, today: date | None) -> date:
        """Return a date that is not to come; the first one possible where it is a fault."""
        given = self.needed(column)
        if not given:
            return _FIRST_DAY
        try:
            found = date.fromisoformat(given) if re.fullmatch(r"\d{4}-\d\d-\d\d", given, re.ASCII) else None
        except ValueError:
            found = None
        if found is None:
            self.fault(column, f"{_shown(given)} is not a date.", "Write year-month-day, e.g. 2026-07-20.")
        elif found < _FIRST_DAY:
            self.fault(column, f"{given} is before {_FIRST_DAY}.", "Check the year.")
        elif today is not None and found > today:
            self.fault(column, f"{given} is in the future: today is {today}.", "Write the day on which the price held.")
        return found or _FIRST_DAY


def text_of(path: Path) -> str:
    """Return the text of a table's file, no larger than 16 MiB.

    Raises
    ------
    SpecError
        As :func:`planner.importers.text.read_text`, and for a larger file.
    """
    try:
        size = path.stat().st_size if path.is_file() else 0
    except OSError:
        size = 0  # read_text says why
    if size > MOST_BYTES:
        problem = f"it holds {size} bytes, more than {MOST_BYTES}."
        raise SpecError.of([Fault(file=str(path), value=str(path), problem=problem, mend="Is it the right file?")])
    return read_text(path)


def read_rows(
    text: str, file: str, *, required: Collection[str], optional: Collection[str], faults: list[Fault]
) -> list[Row]:
    """Return the rows of a table, cells stripped; what is wrong with its form is added to ``faults``.

    Raises
    ------
    SpecError
        Where the columns are not known: no header, a missing or an unknown column.
    """
    lines = _lines(text, file, faults)
    line, header = next(lines, (1, []))
    columns = [name.strip() for name in header]
    refuse(_header_faults(file, line, columns, required, optional))
    found: list[Row] = []
    for line, cells in lines:
        if len(found) == MOST_ROWS:
            faults.append(_huge(file, line))
            break
        if len(cells) != len(columns):
            faults.append(_ragged(file, line, cells, len(columns)))
            continue
        row = Row(file=file, line=line, cells=dict(zip(columns, map(str.strip, cells), strict=True)), faults=faults)
        found.append(_legible(row))
    if not found and not faults:
        mend = "Add rows below the line of the columns' names."
        faults.append(Fault(file=file, line=1, problem="there is no row in it.", mend=mend))
    return found


def refuse(faults: Sequence[Fault]) -> None:
    """Raise all faults, if there are any, by line; of very many the first hundred, and the number of the others."""
    if not faults:
        return
    kept = sorted(faults, key=lambda fault: fault.line or 0)[:_MOST_FAULTS]
    if len(faults) > _MOST_FAULTS:
        problem = f"there are {len(faults) - _MOST_FAULTS} more faults like these."
        kept.append(Fault(file=faults[0].file, problem=problem, mend="Mend these first."))
    raise SpecError.of(kept)


def _lines(text: str, file: str, faults: list[Fault]) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line and its cells, up to one that cannot be read."""
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    delimiter = ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    before = 0
    try:
        for cells in reader:
            line, before = before + 1, reader.line_num
            if any(cell.strip() for cell in cells) and not cells[0].startswith("#"):
                yield line, cells
    except csv.Error as error:
        problem = f"the row that begins here cannot be read, nor what follows: {error}."
        faults.append(Fault(file=file, line=before + 1, problem=problem, mend="Is every quotation mark closed?"))


def _header_faults(
    file: str, line: int, columns: Sequence[str], required: Collection[str], optional: Collection[str]
) -> list[Fault]:
    """Return what is wrong with the columns' names."""
    known = {fold(name): name for name in (*required, *optional)}
    faults = [
        Fault(file=file, line=line, field=name, value=name, problem="the column is missing.", mend=f"Add {name!r}.")
        for name in required
        if name not in columns
    ]
    for index, name in enumerate(columns):
        if name in columns[:index]:
            problem, mend = f"the column {_shown(name)} stands twice.", "Remove one."
        elif name in known.values():
            continue
        else:
            problem, mend = f"{_shown(name)} is not a known column.", _nearest(name, known)
        faults.append(Fault(file=file, line=line, field=_cut(name), value=_cut(name), problem=problem, mend=mend))
    return faults


def _nearest(name: str, known: Mapping[str, str]) -> str:
    """Return how to mend an unknown column."""
    try:
        return f"Write {find(_cut(name), known, 'column')!r}."
    except SpecError as error:
        return f"{error.faults[0].mend} Text that is for people belongs into 'note'."


def _legible(row: Row) -> Row:
    """Return a row without the cells that no message and no table could show, each of which is a fault."""
    cells = dict(row.cells)
    for column, cell in row.cells.items():
        if len(cell) > _MOST_CELL:
            row.fault(column, f"the cell holds {len(cell)} characters, more than {_MOST_CELL}.", "Shorten it.")
        elif not cell.isprintable():
            row.fault(column, f"{_shown(cell)} holds a character that cannot be printed.", "Type the cell again.")
        else:
            continue
        cells[column] = _cut("".join(letter if letter.isprintable() else "?" for letter in cell[: 2 * _MOST_SHOWN]))
    return Row(file=row.file, line=row.line, cells=cells, faults=row.faults)


def _ragged(file: str, line: int, cells: Sequence[str], expected: int) -> Fault:
    """Return the fault of a row of another length than the header."""
    mend = "Write one cell for each column; put text that holds a separator into double quotation marks."
    problem = f"{len(cells)} cells instead of {expected}."
    return Fault(file=file, line=line, value=_cut(",".join(cells)), problem=problem, mend=mend)


def _huge(file: str, line: int) -> Fault:
    """Return the fault of a table of too many rows."""
    problem = f"there are more than {MOST_ROWS} rows; what follows was not read."
    return Fault(file=file, line=line, problem=problem, mend="Leave rows out that are not to be chosen from.")


def _cut(text: str) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _shown(text: str) -> str:
    """Return a text in quotes, cut to what a message can bear."""
    return repr(_cut(text))
