"""A sweep's rows as a file: CSV, JSON or Parquet, written whole or not at all."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from planner.documents import finite
from planner.errors import Fault, SpecError
from planner.letters import table_cell, visible, visible_json
from planner.sweep.answers import writable
from planner.sweep.question import Sweep
from planner.sweep.rows import ANSWER_COLUMNS, Row, columns_of, rows_of
from planner.sweep.store import Store
from planner.targets import reason_of, whole

__all__ = ["ENDINGS", "check_export", "export"]

ENDINGS = (".csv", ".json", ".parquet")
_WHOLE = {"num_devices"}
_NUMBERS = {"objective", "bound", "gap", "iteration_time_s", "time_s", "cost_usd", "wall_s"}
_BLOCK_ROWS = 10_000


def check_export(path: Path) -> None:
    """Refuse a file that could not be written at the end of a long sweep.

    Raises
    ------
    SpecError
        If its ending is unknown, its folder is not there, or its library is missing.
    """
    if path.suffix.lower() not in ENDINGS:
        raise _fault(path, f"a file ends in one of {', '.join(ENDINGS)}.", "Name it so.")
    if not path.parent.is_dir():
        raise _fault(path, f"there is no folder {path.parent}.", "Make it, or name another file.")
    if path.suffix.lower() == ".parquet":
        _parquet_library(path)


def export(sweep: Sweep, store: Store, path: Path) -> int:
    """Write the answered questions of a sweep; return how many.

    Raises
    ------
    SpecError
        If the file cannot be written.
    """
    check_export(path)
    write = {".csv": _csv, ".json": _json, ".parquet": _parquet}[path.suffix.lower()]
    try:
        with whole(path) as new:
            return write(sweep, rows_of(sweep, store), new)
    except OSError as error:
        raise _fault(path, reason_of(error), "Name another file.") from None


def _fault(path: Path, problem: str, mend: str) -> SpecError:
    """Return the error of a file."""
    return SpecError.of(
        [Fault(file="command line", field="--export", value=str(path), problem=f"{path}: {problem}", mend=mend)]
    )


def _text_of(value: Any) -> Any:
    """Return a cell as CSV has it: blocks and lists as JSON, texts that no spreadsheet takes for a formula."""
    if isinstance(value, dict | list):
        return visible_json(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    return table_cell(visible(value, keep="\n")) if isinstance(value, str) else value


def _written(path: Path, write: Callable[[TextIO], int]) -> int:
    """Write a text file."""
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        return write(file)


def _csv(sweep: Sweep, rows: Iterator[Row], path: Path) -> int:
    """Write CSV: one line of names, one for each row; numbers as exactly as Python reads them back."""

    def write(file: TextIO) -> int:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(_text_of, columns_of(sweep.grid)))
        number = 0
        for row in rows:
            writer.writerow([_text_of(cell) for cell in row.cells()])
            number += 1
        return number

    return _written(path, write)


def _json(sweep: Sweep, rows: Iterator[Row], path: Path) -> int:
    """Write one JSON document, a row a line."""
    names = columns_of(sweep.grid)

    def write(file: TextIO) -> int:
        head = json.dumps({"fields": list(sweep.grid.fields), "number": len(sweep.grid)}, ensure_ascii=False)
        file.write(f'{visible_json(head)[:-1]}, "rows": [')
        number = 0
        for row in rows:
            cells = dict(zip(names, finite(row.cells()), strict=True))
            file.write(",\n" if number else "\n")
            file.write(visible_json(json.dumps(cells, ensure_ascii=False, allow_nan=False)))
            number += 1
        file.write("\n]}\n")
        return number

    return _written(path, write)


def _parquet(sweep: Sweep, rows: Iterator[Row], path: Path) -> int:
    """Write Parquet: a field's column is of numbers where all its values are, else of text, blocks as JSON."""
    arrow, parquet = _parquet_library(path)
    names = columns_of(sweep.grid)
    fields = [_kind_of_values(arrow, values) for values in _values_of_fields(sweep)]
    kinds = [arrow.int64(), *fields, *(_kind(arrow, name) for name in ANSWER_COLUMNS)]
    schema = arrow.schema(list(zip(map(writable, names), kinds, strict=True)))
    number = 0
    with parquet.ParquetWriter(str(path), schema) as writer:
        while block := list(islice(rows, _BLOCK_ROWS)):
            columns = zip(*(row.cells() for row in block), strict=True)
            arrays = [_array(arrow, column, kind) for column, kind in zip(columns, kinds, strict=True)]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            number += len(block)
    return number


def _kind(arrow: Any, name: str) -> Any:
    """Return the type of a column of answers."""
    if name in _WHOLE:
        return arrow.int64()
    return arrow.float64() if name in _NUMBERS else arrow.string()


def _values_of_fields(sweep: Sweep) -> list[list[Any]]:
    """Return all values of each field."""
    return [[row[j] for row in axis.rows] for axis in sweep.grid.axes for j in range(len(axis.paths))]


def _kind_of_values(arrow: Any, values: Sequence[Any]) -> Any:
    """Return the type that holds all values."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return arrow.bool_()
    if kinds == {int} and all(abs(value) < 2**63 for value in values if value is not None):
        return arrow.int64()
    return arrow.float64() if kinds and kinds <= {int, float} else arrow.string()


def _array(arrow: Any, column: Sequence[Any], kind: Any) -> Any:
    """Return a column; text where it is of text."""
    if kind == arrow.string():
        texts = [one if one is None or isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in column]
        return arrow.array([None if one is None else writable(one) for one in texts], type=kind)
    return arrow.array(list(column), type=kind)


def _parquet_library(path: Path) -> tuple[Any, Any]:
    """Return the library, which is an optional part."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        mend = "pip install 'training-planner[parquet]', or write .csv or .json."
        raise _fault(path, "Parquet needs the library pyarrow, which is not installed.", mend) from None
