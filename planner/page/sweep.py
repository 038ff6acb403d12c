"""The page of a sweep: the best answers, the trade-off, what each field does, and why questions have no plan."""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from planner.page import figures
from planner.page.origin import origin_section
from planner.page.parts import Block, Figure, Heading, Page, Section, Table, Text, Tile, Tiles, few, thinned
from planner.page.words import many, objective, short

__all__ = ["sweep_page_of"]

_MOST_ROWS = 100
_MOST_POINTS = 2000
_MOST_VALUES = 60
_MOST_FIELDS = 12
_WORDS = {
    "optimal": "proven optimal",
    "feasible": "with a plan that is not proven",
    "infeasible": "without any plan, proven",
    "wrong": "wrong",
    "limit": "stopped by a limit",
    "failed": "failed",
}
_UNITS = (("_usd", "usd"), ("_s", "s"), ("_j", "J"))
_WHOLE = "--export writes all of them"

Row = Mapping[str, Any]


def sweep_page_of(
    summary: Mapping[str, Any],
    rows: Iterable[Row],
    *,
    title: str,
    question: Mapping[str, Any] | None,
    commands: Sequence[Sequence[str]],
) -> Page:
    """Return the page of a sweep from its document and its rows."""
    name = summary["objective_name"]
    answered = [
        row
        for row in rows
        if name is not None and row.get("objective_name") == name and _is_number(row.get("objective"))
    ]
    sections = [_counts(summary)]
    if name is not None:
        sections += [_best(summary, name), *_trade_off(summary, answered, name), *_effects(summary, name)]
    sections += _failures(summary)
    if question is not None or commands:
        sections.append(origin_section(question or {}, commands))
    return Page(
        title=title,
        answer=_answer(summary, name),
        verdict=_verdict(summary),
        mark="plain" if summary["is_complete"] else "open",
        sections=sections,
    )


def _is_number(value: object) -> bool:
    """Whether a cell is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _unit(name: str) -> str:
    """Return the unit that a column's name ends in."""
    return next((unit for end, unit in _UNITS if name.endswith(end)), "")


def _said(value: Any, name: str) -> str:
    """Return a quantity for reading."""
    if not _is_number(value):
        return ""
    return objective(float(value), _unit(name)).strip()


def _cell(value: Any, most: int = 48) -> str:
    """Return a value of a field in a few words: a block of one key by its value."""
    while isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    return short(value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str), most)


def _field_columns(summary: Mapping[str, Any], row: Row) -> list[str]:
    """Return the columns of the fields that vary: by their names, or with ``question.`` before them."""
    return [f"question.{name}" if f"question.{name}" in row else name for name in summary["fields"]]


def _answer(summary: Mapping[str, Any], name: str | None) -> str:
    """Return the answer in one sentence."""
    if name is None or not summary["best"]:
        return f"None of {many(summary['number'], 'question')} has a plan."
    best = summary["best"][0]
    fields = zip(summary["fields"], _field_columns(summary, best), strict=True)
    settings = ", ".join(f"{field} {_cell(best[column], 60)}" for field, column in fields)
    return (
        f"The best of {many(summary['number'], 'question')} is {settings}: "
        f"{_label(name)} {_said(best['objective'], name)}."
    )


def _label(name: str) -> str:
    """Return an objective's name in words."""
    unit = next((end for end, _ in _UNITS if name.endswith(end)), "")
    return name.removesuffix(unit).replace("_", " ")


def _verdict(summary: Mapping[str, Any]) -> str:
    """Return how far the sweep is."""
    if summary["is_complete"]:
        return "Every question is answered."
    answered = sum(summary["counts"].values())
    return (
        f"{answered:,} of {many(summary['number'], 'question')} are answered; the same command goes on with the others."
    )


def _counts(summary: Mapping[str, Any]) -> Section:
    """Return how many questions ended how."""
    tiles = [Tile(label="questions", value=f"{summary['number']:,}")]
    tiles += [
        Tile(label=_WORDS.get(outcome, outcome), value=f"{number:,}")
        for outcome, number in summary["counts"].items()
        if number
    ]
    return Section(name="summary", title="In short", blocks=[Tiles(tiles=tiles)])


def _rows_table(
    caption: str, rows: Sequence[Row], summary: Mapping[str, Any], name: str, columns: Sequence[str]
) -> Table:
    """Return rows with their fields and some columns of their answers."""
    fields = _field_columns(summary, rows[0]) if rows else []
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
            *summary["fields"],
            *(_label(name) if column == "objective" else column.replace("_", " ") for column in columns),
        ),
        rows=[
            (
                str(row.get("position", "")),
                *(_cell(row.get(field)) for field in fields),
                *(_answered(row.get(column), name if column == "objective" else column) for column in columns),
            )
            for row in listed
        ],
        numbers=(0, *numbers),
        note=few(len(rows), len(listed), "rows", _WHOLE),
    )


def _answered(value: Any, name: str) -> str:
    """Return a cell of an answer."""
    if _is_number(value):
        return _said(value, name) if isinstance(value, float) else f"{value:,}"
    return "" if value is None else short(str(value), 120)


def _best(summary: Mapping[str, Any], name: str) -> Section:
    """Return the best rows."""
    columns = ("objective", "gap", "outcome", "family", "headline")
    table = _rows_table(f"Best by {_label(name)}", summary["best"], summary, name, columns)
    blocks: list[Block] = [table]
    if summary["num_other_objectives"]:
        blocks.append(
            Text(f"{many(summary['num_other_objectives'], 'answer')} with another objective are not compared.")
        )
    return Section(name="best", title="The best", blocks=blocks)


def _trade_off(summary: Mapping[str, Any], rows: Sequence[Row], name: str) -> list[Section]:
    """Return the rows that none beats in two columns, among all of them."""
    found = summary["pareto"]
    if not found or not found["rows"]:
        return []
    first, second = found["columns"]
    names = [name if column == "objective" else column for column in (first, second)]
    scales = [
        _scale([row.get(column) for row in (*rows, *found["rows"])], label)
        for column, label in zip((first, second), names, strict=True)
    ]

    def drawn(given: Sequence[Row]) -> list[tuple[float, float, str]]:
        known = [row for row in given if _is_number(row.get(first)) and _is_number(row.get(second))]
        return [
            (
                float(row[first]) / scales[0][0],
                float(row[second]) / scales[1][0],
                _words(row, summary, names, (first, second)),
            )
            for row in thinned(known, _MOST_POINTS)
        ]

    front = {row.get("position") for row in found["rows"]}
    others = [row for row in rows if row.get("position") not in front]
    series = {"none is better in both": drawn(found["rows"]), "others": drawn(others)}
    titles = [_axis(label, unit) for label, (_, unit) in zip(names, scales, strict=True)]
    data, layout = figures.points(
        {key: value for key, value in series.items() if value},
        x_title=titles[0],
        y_title=titles[1],
        lines=("none is better in both",),
        steps=True,
    )
    columns = tuple(dict.fromkeys((first, second, "headline")))
    table = _rows_table("None is better in both", found["rows"], summary, name, columns)
    caption = f"{_label(names[0])} against {_label(names[1])}"
    alt = f"Points of {caption} of {many(len(rows), 'answer')}; on {len(front)} of them none improves in both."
    figure = Figure(
        caption=caption.capitalize(),
        alt=alt,
        data=data,
        layout=layout,
        table=table,
        note=few(len(others), len(series["others"]), "other answers", _WHOLE),
    )
    return [Section(name="pareto", title=caption.capitalize(), blocks=[figure, table])]


def _scale(values: Sequence[Any], name: str) -> figures.Scale:
    """Return by what to divide a column, and its unit then."""
    unit = _unit(name)
    return figures.scale_of(max((abs(float(value)) for value in values if _is_number(value)), default=1.0), unit)


def _axis(name: str, unit: str) -> str:
    """Return an axis's title."""
    return f"{_label(name)} ({unit.upper() if unit == 'usd' else unit})" if unit else _label(name)


def _words(row: Row, summary: Mapping[str, Any], names: Sequence[str], columns: Sequence[str]) -> str:
    """Return a point in words."""
    settings = ", ".join(_cell(row.get(field), 30) for field in _field_columns(summary, row))
    return (
        f"{settings}: "
        f"{', '.join(_answered(row.get(column), name) for column, name in zip(columns, names, strict=True))}"
    )


def _effects(summary: Mapping[str, Any], name: str) -> list[Section]:
    """Return what each field does to the objective."""
    blocks: list[Block] = []
    for effect in summary["effects"][:_MOST_FIELDS]:
        fields, values = ", ".join(effect["fields"]), effect["values"]
        blocks.append(Heading(fields))
        shown = thinned(values, _MOST_VALUES)
        known = [one for one in shown if one["best"] is not None]
        names = [", ".join(_cell(part) for part in one["value"]) for one in shown]
        table = Table(
            caption=f"What {fields} does, all else equal",
            columns=(fields, "against the first", "pairs", "plans", "best"),
            rows=[
                (
                    label,
                    "" if one["ratio"] is None else f"x {one['ratio']:.4g}",
                    f"{one['num_pairs']:,}",
                    f"{one['num_answered']:,}",
                    _said(one["best"], name),
                )
                for label, one in zip(names, shown, strict=True)
            ],
            numbers=(1, 2, 3, 4),
            note=few(len(values), len(shown), "values", _WHOLE),
        )
        bars = [
            (", ".join(_cell(part) for part in one["value"]), float(one["best"]), _said(one["best"], name))
            for one in known
        ]
        if len(bars) > 1:
            data, layout = figures.bars(bars, title=f"best {_label(name)}", unit=_unit(name).replace("usd", "USD"))
            alt = f"Bars of the best {_label(name)} of {many(len(bars), 'value')} of {fields}."
            blocks.append(
                Figure(caption=f"Best {_label(name)} by {fields}", alt=alt, data=data, layout=layout, table=table)
            )
        blocks.append(table)
    if not blocks:
        return []
    blocks.append(
        Text(
            "Against the first value of its field: the geometric mean over all settings of "
            "the other fields in which both have a plan."
        )
    )
    return [Section(name="effects", title="What each field does", blocks=blocks)]


def _failures(summary: Mapping[str, Any]) -> list[Section]:
    """Return why questions have no plan."""
    found = summary["failures"]
    if not found:
        return []
    table = Table(
        caption="Questions without a plan, by their reason",
        columns=("reason", "number", "how it ended", "the first is #"),
        rows=[
            (
                short(str(one["example"]), 400),
                f"{one['number']:,}",
                _WORDS.get(one["outcome"], one["outcome"]),
                str(one["position"]),
            )
            for one in found[:_MOST_ROWS]
        ],
        numbers=(1, 3),
    )
    return [Section(name="failures", title="Questions without a plan", blocks=[table])]
