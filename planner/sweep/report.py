"""What a sweep found: rows, their files, and a summary as the document ``planner.sweep/1``.

A *row* is one question with its answer: its position, the values of the fields that vary, what was answered. The
*summary* counts outcomes, and compares the answers of the objective that most have: the best rows, those that none
beats in two columns, what each value of a field does against the first one, all else equal. Questions without a plan
are told by their reason.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nsmallest
from importlib import import_module
from itertools import islice
from math import exp, log
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from planner.answer.documents import finite
from planner.errors import SpecError
from planner.frozen import frozen
from planner.letters import table_cell, visible, visible_json
from planner.sweep.answers import Answer, Outcome, writable
from planner.sweep.question import Grid, Sweep
from planner.sweep.store import Store
from planner.targets import reason_of, whole

# What every row has beside the fields that vary; the wall time last, for it is no part of the answer.
ANSWER_COLUMNS = (
    "outcome",
    "objective_name",
    "objective",
    "bound",
    "gap",
    "family",
    "headline",
    "num_devices",
    "iteration_time_s",
    "time_s",
    "cost_usd",
    "error",
    "key",
    "wall_s",
)
_NUMBERS = {"objective", "bound", "gap", "iteration_time_s", "time_s", "cost_usd", "wall_s"}
_MOST_BEST = 10
_MOST_LOG = 700.0  # of a ratio that is a float
_MOST_REASONS = 10
_MOST_KEPT = 100_000  # different reasons that are told apart
_PAIRS = (("time_s", "cost_usd"), ("objective", "num_devices"))  # of a trade-off, the first that is known
_BLOCK_ROWS = 10_000
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
# -- rows --------------------------------------------------------------------------------------------------------------


@frozen
class Row:
    """One question of a sweep and its answer; ``values`` are those of the grid's fields."""

    position: int
    values: tuple[Any, ...]
    answer: Answer

    def cells(self) -> list[object]:
        """Return the cells of :func:`columns_of`."""
        answer = [getattr(self.answer, name) for name in ANSWER_COLUMNS]
        return [self.position, *self.values, str(answer[0]), *answer[1:]]


def columns_of(grid: Grid) -> list[str]:
    """Return the names of a row's cells; a field that bears the name of another column as ``question.objective``."""
    taken = {"position", *ANSWER_COLUMNS}
    return ["position", *(f"question.{name}" if name in taken else name for name in grid.fields), *ANSWER_COLUMNS]


def rows_of(sweep: Sweep, store: Store) -> Iterator[Row]:
    """Yield the answered questions of a sweep in the order of their positions."""
    for stored in store.rows(sweep.identity):
        if 0 <= stored.position < len(sweep.grid):
            values = sweep.grid.values(stored.position)
            yield Row(position=stored.position, values=values, answer=stored.answer)


# -- files of rows -----------------------------------------------------------------------------------------------------


def check_export(path: Path) -> None:
    """Refuse a file that could not be written at the end of a long sweep.

    Raises
    ------
    SpecError
        If its ending is unknown, its folder is not there, or its library is missing.
    """
    if path.suffix.lower() not in _WRITERS:
        raise _fault(path, f"a file ends in one of {', '.join(_WRITERS)}.", "Name it so.")
    if not path.parent.is_dir():
        raise _fault(path, f"there is no folder {path.parent}.", "Make it, or name another file.")
    if path.suffix.lower() == ".parquet":
        _parquet_library(path)


def export(sweep: Sweep, store: Store, path: Path) -> int:
    """Write the answered questions of a sweep, whole or not at all, as CSV, JSON or Parquet; return how many.

    Raises
    ------
    SpecError
        If the file cannot be written.
    """
    check_export(path)
    try:
        with whole(path) as new:
            return _WRITERS[path.suffix.lower()](sweep, rows_of(sweep, store), new)
    except OSError as error:
        raise _fault(path, reason_of(error), "Name another file.") from None


def _fault(path: Path, problem: str, hint: str) -> SpecError:
    """Return the error of a file."""
    return SpecError.of_option("--export", f"{path}: {problem}", hint, value=str(path))


def _text_file(path: Path) -> TextIO:
    """Open a text file to be written."""
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")


def _write_csv(sweep: Sweep, rows: Iterator[Row], path: Path) -> int:
    """Write CSV: one line of names, one for each row; numbers as exactly as Python reads them back."""

    def cell(value: object) -> object:
        """Return a cell: blocks and lists as JSON, texts that no spreadsheet takes for a formula."""
        if isinstance(value, dict | list):
            return visible_json(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
        return table_cell(visible(value, keep="\n")) if isinstance(value, str) else value

    number = 0
    with _text_file(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(cell, columns_of(sweep.grid)))
        for row in rows:
            writer.writerow(map(cell, row.cells()))
            number += 1
    return number


def _write_json(sweep: Sweep, rows: Iterator[Row], path: Path) -> int:
    """Write one JSON document, a row a line."""
    names, number = columns_of(sweep.grid), 0
    with _text_file(path) as file:
        head = json.dumps({"fields": list(sweep.grid.fields), "number": len(sweep.grid)}, ensure_ascii=False)
        file.write(f'{visible_json(head)[:-1]}, "rows": [')
        for row in rows:
            cells = dict(zip(names, finite(row.cells()), strict=True))
            file.write(",\n" if number else "\n")
            file.write(visible_json(json.dumps(cells, ensure_ascii=False, allow_nan=False)))
            number += 1
        file.write("\n]}\n")
    return number


def _write_parquet(sweep: Sweep, rows: Iterator[Row], path: Path) -> int:
    """Write Parquet: a field's column is of numbers where all its values are, else of text, blocks as JSON."""
    arrow, parquet = _parquet_library(path)

    def kind_of(values: Sequence[Any]) -> Any:
        """Return the type that holds all values of a field."""
        kinds = {type(value) for value in values if value is not None}
        if kinds == {bool}:
            return arrow.bool_()
        if kinds == {int} and all(abs(value) < 2**63 for value in values if value is not None):
            return arrow.int64()
        return arrow.float64() if kinds and kinds <= {int, float} else arrow.string()

    def cell(value: Any, kind: Any) -> Any:
        """Return a cell; text where its column is of text."""
        if kind != arrow.string() or value is None:
            return value
        return writable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))

    axes = sweep.grid.axes
    kinds = [arrow.int64(), *(kind_of([row[j] for row in axis.rows]) for axis in axes for j in range(len(axis.paths)))]
    for name in ANSWER_COLUMNS:
        kinds.append(
            arrow.int64() if name == "num_devices" else arrow.float64() if name in _NUMBERS else arrow.string()
        )
    schema = arrow.schema(list(zip(map(writable, columns_of(sweep.grid)), kinds, strict=True)))
    number = 0
    with parquet.ParquetWriter(str(path), schema) as writer:
        while block := list(islice(rows, _BLOCK_ROWS)):
            columns = zip(*(row.cells() for row in block), strict=True)
            arrays = [
                arrow.array([cell(value, kind) for value in column], type=kind)
                for column, kind in zip(columns, kinds, strict=True)
            ]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            number += len(block)
    return number


def _parquet_library(path: Path) -> tuple[Any, Any]:
    """Return the library, which is an optional part."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        hint = "pip install 'training-planner[parquet]', or write .csv or .json."
        raise _fault(path, "Parquet needs the library pyarrow, which is not installed.", hint) from None


_WRITERS: dict[str, Callable[[Sweep, Iterator[Row], Path], int]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".parquet": _write_parquet,
}


# -- the summary -------------------------------------------------------------------------------------------------------


_PLAIN = ConfigDict(extra="forbid", populate_by_name=True)  # of all parts of the document


@frozen
class Effect:
    """What a value of a field does, all else equal, against the first value of its axis that has any plan."""

    __pydantic_config__: ClassVar[ConfigDict] = _PLAIN

    value: tuple[Any, ...]
    # geometric mean of the objective over that with that value, over all settings of the other axes in which both were
    # answered; None where there are none
    ratio: float | None
    num_pairs: int  # how many these are
    num_answered: int  # questions with this value that have a plan
    best: float | None  # the least objective of them


@frozen
class Reason:
    """Why questions have no plan, its numbers left out; ``example``: of the first of them, at its position."""

    __pydantic_config__: ClassVar[ConfigDict] = _PLAIN

    outcome: Outcome
    reason: str
    number: int
    position: int
    example: str


@dataclass(slots=True, kw_only=True)
class Summary:
    """What a sweep found; ``objective_name``: of most of its answers, which alone are compared."""

    number: int
    counts: dict[Outcome, int]
    wall_s: float
    objective_name: str | None = None
    num_other_objectives: int = 0
    best: list[Row] = field(default_factory=list)
    pareto_columns: tuple[str, str] | None = None
    pareto: list[Row] = field(default_factory=list)
    effects: list[tuple[tuple[str, ...], list[Effect]]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)


def summary_of(sweep: Sweep, store: Store) -> Summary:
    """Return what a sweep found so far."""
    names: Counter[str] = Counter()
    reasons: dict[tuple[Outcome, str], Reason] = {}
    found = Summary(number=len(sweep.grid), counts=store.counts(sweep.identity), wall_s=0.0)
    for row in rows_of(sweep, store):
        answer = row.answer
        found.wall_s += answer.wall_s
        if answer.objective_name is not None and answer.objective is not None:
            names[answer.objective_name] += 1
        elif answer.error is not None and len(reasons) < _MOST_KEPT:
            text = answer.error.strip()
            words = _NUMBER.sub("#", text.splitlines()[0] if text else "no reason was given")
            first = reasons.get((answer.outcome, words))
            reasons[answer.outcome, words] = Reason(
                outcome=answer.outcome,
                reason=words,
                number=1 if first is None else first.number + 1,
                position=row.position if first is None else first.position,
                example=text if first is None else first.example,
            )
    found.reasons = sorted(reasons.values(), key=lambda one: (-one.number, one.position))[:_MOST_REASONS]
    if not names:
        return found
    name, number = min(names.items(), key=lambda pair: (-pair[1], pair[0]))
    found.objective_name, found.num_other_objectives = name, names.total() - number
    objectives = np.full(len(sweep.grid), np.nan)
    fronts: dict[tuple[str, str], list[Row]] = {pair: [] for pair in _PAIRS}
    for row in rows_of(sweep, store):
        if row.answer.objective_name == name and row.answer.objective is not None:
            objectives[row.position] = row.answer.objective
            found.best = nsmallest(_MOST_BEST, [*found.best, row], key=lambda one: (one.answer.objective, one.position))
            for pair, rows in fronts.items():
                _add_to_front(rows, row, pair)
    found.effects = _effects(sweep, objectives)
    found.pareto_columns = next((pair for pair in _PAIRS if fronts[pair]), None)
    if found.pareto_columns is not None:
        found.pareto = pareto(fronts[found.pareto_columns], found.pareto_columns)
    return found


def pareto(rows: Sequence[Row], columns: tuple[str, str]) -> list[Row]:
    """Return the rows that no other beats in both columns, the least of the first column first."""
    front: list[Row] = []
    for row in rows:
        _add_to_front(front, row, columns)
    return sorted(front, key=lambda row: (_point(row, columns) or (0.0, 0.0), row.position))


def _point(row: Row, columns: tuple[str, str]) -> tuple[float, float] | None:
    """Return a row's two numbers, if it has both."""
    first, second = (getattr(row.answer, name) for name in columns)
    return None if first is None or second is None else (float(first), float(second))


def _add_to_front(rows: list[Row], row: Row, columns: tuple[str, str]) -> None:
    """Add a row to those that none beats, and drop those that it beats; equal ones stay by the first of them."""
    point = _point(row, columns)
    if point is None:
        return
    points = [_point(one, columns) for one in rows]
    if any(one is not None and one[0] <= point[0] and one[1] <= point[1] for one in points):
        return
    pairs = zip(rows, points, strict=True)
    rows[:] = [one for one, at in pairs if at is not None and not (point[0] <= at[0] and point[1] <= at[1])]
    rows.append(row)


def _effects(sweep: Sweep, objectives: NDArray[np.float64]) -> list[tuple[tuple[str, ...], list[Effect]]]:
    """Return what every axis of more than one row does, where both values have positive objectives."""
    found, start = [], 0
    cube = objectives.reshape([len(axis.rows) for axis in sweep.grid.axes])
    for index, axis in enumerate(sweep.grid.axes):
        names = sweep.grid.fields[start : start + len(axis.paths)]
        start += len(axis.paths)
        if len(axis.rows) == 1:
            continue
        lines = np.moveaxis(cube, index, 0).reshape(len(axis.rows), -1)
        first = next((line for line in lines if not np.isnan(line).all()), lines[0])
        effects = []
        for value, line in zip(axis.rows, lines, strict=True):
            is_answered = ~np.isnan(line)
            pairs = [(a, b) for a, b in zip(first.tolist(), line.tolist(), strict=True) if a > 0 and b > 0]
            mean = sum(log(b) - log(a) for a, b in pairs) / len(pairs) if pairs else None
            effects.append(
                Effect(
                    value=value,
                    ratio=exp(mean) if mean is not None and abs(mean) < _MOST_LOG else None,
                    num_pairs=len(pairs),
                    num_answered=int(is_answered.sum()),
                    best=float(line[is_answered].min()) if is_answered.any() else None,
                )
            )
        found.append((names, effects))
    return found


# -- the summary as a document -----------------------------------------------------------------------------------------


class _Document(BaseModel):
    """A part of the document: seconds and dollars, as the keys say."""

    model_config = _PLAIN


class TradeOffDocument(_Document):
    """The rows that none beats in both of two columns, the least of the first one first."""

    columns: list[str]
    rows: list[dict[str, Any]]


class EffectDocument(_Document):
    """One field, or several that vary together."""

    fields_: list[str] = Field(alias="fields")
    values: list[Effect]


class SweepDocument(_Document):
    """What a sweep found so far; rows hold ``position``, the fields that vary, and the columns of an export."""

    schema_: str = Field(alias="schema", pattern=r"^planner\.sweep/1$")
    identity: str
    fields_: list[str] = Field(alias="fields")
    number: int
    is_complete: bool
    counts: dict[Outcome, int]
    wall_s: float
    objective_name: str | None
    num_other_objectives: int
    best: list[dict[str, Any]]
    pareto: TradeOffDocument | None
    effects: list[EffectDocument]
    failures: list[Reason]


def summary_document(found: Summary, grid: Grid, *, identity: str, is_complete: bool) -> dict[str, object]:
    """Return ``planner.sweep/1``."""
    names = columns_of(grid)

    def rows(chosen: Sequence[Row]) -> list[dict[str, Any]]:
        return [dict(zip(names, row.cells(), strict=True)) for row in chosen]

    trade_off = None
    if found.pareto_columns is not None:
        trade_off = {"columns": list(found.pareto_columns), "rows": rows(found.pareto)}
    return {
        "schema": "planner.sweep/1",
        "identity": identity,
        "fields": list(grid.fields),
        "number": found.number,
        "is_complete": is_complete,
        "counts": {str(outcome): number for outcome, number in found.counts.items()},
        "wall_s": found.wall_s,
        "objective_name": found.objective_name,
        "num_other_objectives": found.num_other_objectives,
        "best": rows(found.best),
        "pareto": trade_off,
        "effects": [
            {"fields": list(fields), "values": [{**asdict(effect), "value": list(effect.value)} for effect in effects]}
            for fields, effects in found.effects
        ],
        "failures": [{**asdict(reason), "outcome": str(reason.outcome)} for reason in found.reasons],
    }
