"""The cells of a sweep's rows in words, and rows as a table."""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from planner.page import figures
from planner.page.parts import Table, few, thinned
from planner.page.words import objective, short

__all__ = [
    "WHOLE",
    "Row",
    "axis_title",
    "cell",
    "field_columns",
    "in_words",
    "is_number",
    "is_wide",
    "row_words",
    "rows_table",
    "said",
    "scale",
    "unit_of",
]

_MOST_ROWS = 100
_UNITS = (("_usd", "usd"), ("_s", "s"), ("_j", "J"))
WHOLE = "--export writes all of them"

Row = Mapping[str, Any]


def is_number(value: object) -> bool:
    """Whether a cell is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def unit_of(name: str) -> str:
    """Return the unit that a column's name ends in."""
    return next((unit for end, unit in _UNITS if name.endswith(end)), "")


def said(value: Any, name: str) -> str:
    """Return a quantity for reading."""
    if not is_number(value):
        return ""
    return objective(float(value), unit_of(name)).strip()


def cell(value: Any, most: int = 48) -> str:
    """Return a value of a field in a few words: a block of one key by its value."""
    while isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    return short(value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str), most)


def field_columns(summary: Mapping[str, Any], row: Row) -> list[str]:
    """Return the columns of the fields that vary: by their names, or with ``question.`` before them."""
    return [f"question.{name}" if f"question.{name}" in row else name for name in summary["fields"]]


def in_words(name: str) -> str:
    """Return a column's name in words."""
    unit = next((end for end, _ in _UNITS if name.endswith(end)), "")
    return name.removesuffix(unit).removeprefix("num_").replace("_", " ")


def _short_names(fields: Sequence[str]) -> list[str]:
    """Return the last parts of paths, as many as tell them apart.

    >>> _short_names(["dnn.zoo", "cluster.machines.0.count", "cluster.machines.1.count"])
    ['zoo', '0.count', '1.count']
    """
    paths = [field.split(".") for field in fields]
    found = []
    for path in paths:
        number = next(
            (number for number in range(1, len(path)) if sum(one[-number:] == path[-number:] for one in paths) == 1), 0
        )
        found.append(".".join(path[-number:]))
    return found


def _answered(value: Any, name: str) -> str:
    """Return a cell of an answer."""
    if name == "gap" and is_number(value):
        return f"{value:.2%}"
    if is_number(value):
        return said(value, name) if isinstance(value, float) else f"{value:,}"
    return "" if value is None else short(str(value), 120)


def rows_table(
    caption: str, rows: Sequence[Row], summary: Mapping[str, Any], name: str, columns: Sequence[str]
) -> Table:
    """Return rows with their fields and some columns of their answers."""
    fields = field_columns(summary, rows[0]) if rows else []
    listed = thinned(rows, _MOST_ROWS)
    numbers = [
        index
        for index, column in enumerate(columns, 1 + len(fields))
        if column not in ("outcome", "family", "headline")
    ]
    return Table(
        caption=caption,
        columns=(
            "#",
            *_short_names(summary["fields"]),
            *(in_words(name) if column == "objective" else in_words(column) for column in columns),
        ),
        rows=[
            (
                str(row.get("position", "")),
                *(cell(row.get(field)) for field in fields),
                *(_answered(row.get(column), name if column == "objective" else column) for column in columns),
            )
            for row in listed
        ],
        numbers=(0, *numbers),
        note=few(len(rows), len(listed), "rows", WHOLE),
    )


def is_wide(values: Iterable[float]) -> bool:
    """Whether values reach over more than a decade, so that the small ones would lie on each other."""
    known = list(values)
    return bool(known) and max(known) > 20 * min(known) > 0


def scale(values: Sequence[Any], name: str) -> figures.Scale:
    """Return by what to divide a column, and its unit then."""
    unit = unit_of(name)
    return figures.scale_of(max((abs(float(value)) for value in values if is_number(value)), default=1.0), unit)


def axis_title(name: str, unit: str) -> str:
    """Return an axis's title."""
    return f"{in_words(name)} ({unit.upper() if unit == 'usd' else unit})" if unit else in_words(name)


def row_words(row: Row, summary: Mapping[str, Any], names: Sequence[str], columns: Sequence[str]) -> str:
    """Return a point in words."""
    settings = ", ".join(cell(row.get(field), 30) for field in field_columns(summary, row))
    return (
        f"{settings}: "
        f"{', '.join(_answered(row.get(column), name) for column, name in zip(columns, names, strict=True))}"
    )
