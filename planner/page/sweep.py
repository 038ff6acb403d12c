"""The page of a sweep: the best answers, the trade-off, what each field does, and why questions have no plan."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.page import figures
from planner.page.origin import origin_section
from planner.page.parts import Block, Figure, Heading, Page, Section, Table, Text, Tile, Tiles, few, thinned
from planner.page.sweep_cells import (
    WHOLE,
    Row,
    axis_title,
    cell,
    field_columns,
    in_words,
    is_number,
    is_wide,
    row_words,
    rows_table,
    said,
    scale,
    unit_of,
)
from planner.page.words import many, short

__all__ = ["sweep_page_of"]

_MOST_REASONS = 100
_MOST_POINTS = 2000
_MOST_VALUES = 60
_MOST_FIELDS = 12
_MOST_LETTERS = 1200  # of a reason
_WORDS = {
    "optimal": "proven optimal",
    "feasible": "with a plan that is not proven",
    "infeasible": "without any plan, proven",
    "wrong": "wrong",
    "limit": "stopped by a limit",
    "failed": "failed",
}


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
        if name is not None and row.get("objective_name") == name and is_number(row.get("objective"))
    ]
    sections = [_counts(summary, has_question=question is not None)]
    if name is not None:
        sections += [_best(summary, name), *_trade_off(summary, answered, name), *_effects(summary, name)]
    sections += _failures(summary)
    if question is not None or commands:
        sections.append(origin_section(question or {}, commands))
    return Page(
        title=f"A sweep of {many(summary['number'], 'question')}: {title}",
        answer=_answer(summary, name),
        verdict=_verdict(summary),
        mark="plain" if summary["is_complete"] else "open",
        sections=sections,
    )


def _answer(summary: Mapping[str, Any], name: str | None) -> str:
    """Return the answer in one sentence."""
    if name is None or not summary["best"]:
        return f"None of {many(summary['number'], 'question')} has a plan."
    best = summary["best"][0]
    fields = zip(summary["fields"], field_columns(summary, best), strict=True)
    settings = ", ".join(f"{field} {cell(best[column], 60)}" for field, column in fields)
    return (
        f"The best of {many(summary['number'], 'question')} is {settings}: "
        f"{in_words(name)} {said(best['objective'], name)}."
    )


def _verdict(summary: Mapping[str, Any]) -> str:
    """Return how far the sweep is."""
    if summary["is_complete"]:
        return "Every question is answered."
    answered = sum(summary["counts"].values())
    return (
        f"{answered:,} of {many(summary['number'], 'question')} are answered; the same command goes on with the others."
    )


def _counts(summary: Mapping[str, Any], *, has_question: bool) -> Section:
    """Return how many questions ended how, and what varies."""
    tiles = [Tile(label="questions", value=f"{summary['number']:,}")]
    tiles += [
        Tile(label=_WORDS.get(outcome, outcome), value=f"{number:,}")
        for outcome, number in summary["counts"].items()
        if number
    ]
    blocks: list[Block] = [Tiles(tiles=tiles), *_fields(summary)]
    if has_question:
        blocks.append(Text("All else is as in the question at the end of this page."))
    return Section(name="summary", title="In short", blocks=blocks)


def _fields(summary: Mapping[str, Any]) -> list[Block]:
    """Return the fields that vary, with their values."""
    values: dict[str, list[str]] = {str(field): [] for field in summary["fields"]}
    for effect in summary["effects"]:
        for place, field in enumerate(effect["fields"]):
            values[field] = list(dict.fromkeys(cell(one["value"][place]) for one in effect["values"]))
    rows = [
        (field, f"{len(own):,}" if own else "", short(", ".join(thinned(own, _MOST_VALUES)), 300))
        for field, own in values.items()
    ]
    return [Table(caption="What varies", columns=("field", "values", "which"), rows=rows, numbers=(1,))] if rows else []


def _best(summary: Mapping[str, Any], name: str) -> Section:
    """Return the best rows."""
    has_gap = any(row.get("gap") for row in summary["best"])
    columns = ("objective", *(("gap",) if has_gap else ()), "outcome", "family", "headline")
    table = rows_table(f"Best by {in_words(name)}", summary["best"], summary, name, columns)
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
        scale([row.get(column) for row in (*rows, *found["rows"])], label)
        for column, label in zip((first, second), names, strict=True)
    ]

    def drawn(given: Sequence[Row]) -> list[tuple[float, float, str]]:
        known = [row for row in given if is_number(row.get(first)) and is_number(row.get(second))]
        return [
            (
                float(row[first]) / scales[0][0],
                float(row[second]) / scales[1][0],
                row_words(row, summary, names, (first, second)),
            )
            for row in thinned(known, _MOST_POINTS)
        ]

    front = {row.get("position") for row in found["rows"]}
    others = [row for row in rows if row.get("position") not in front]
    series = {"others": drawn(others), "none is better in both": drawn(found["rows"])}
    titles = [axis_title(label, unit) for label, (_, unit) in zip(names, scales, strict=True)]
    data, layout = figures.points(
        {key: value for key, value in series.items() if value},
        x_title=titles[0],
        y_title=titles[1],
        lines=("none is better in both",),
        log_x=is_wide(row[0] for rows_of in series.values() for row in rows_of),
        log_y=is_wide(row[1] for rows_of in series.values() for row in rows_of),
        steps=True,
    )
    columns = tuple(dict.fromkeys((first, second, "headline")))
    table = rows_table("None is better in both", found["rows"], summary, name, columns)
    caption = f"{in_words(names[0])} against {in_words(names[1])}"
    alt = f"Points of {caption} of {many(len(rows), 'answer')}; on {len(front)} of them none improves in both."
    figure = Figure(
        caption=caption.capitalize(),
        alt=alt,
        data=data,
        layout=layout,
        table=None,
        note=few(len(others), len(series["others"]), "other answers", WHOLE),
    )
    return [Section(name="pareto", title=caption.capitalize(), blocks=[figure, table])]


def _effects(summary: Mapping[str, Any], name: str) -> list[Section]:
    """Return what each field does to the objective."""
    blocks: list[Block] = []
    for effect in summary["effects"][:_MOST_FIELDS]:
        fields, values = ", ".join(effect["fields"]), effect["values"]
        blocks.append(Heading(fields))
        shown = thinned(values, _MOST_VALUES)
        known = [one for one in shown if one["best"] is not None]
        names = [", ".join(cell(part) for part in one["value"]) for one in shown]
        table = Table(
            caption=f"What {fields} does, all else equal",
            columns=(fields, "against the first", "pairs", "plans", "best"),
            rows=[
                (
                    label,
                    "" if one["ratio"] is None else f"x {one['ratio']:.4g}",
                    f"{one['num_pairs']:,}",
                    f"{one['num_answered']:,}",
                    said(one["best"], name),
                )
                for label, one in zip(names, shown, strict=True)
            ],
            numbers=(1, 2, 3, 4),
            note=few(len(values), len(shown), "values", WHOLE),
        )
        bars = [
            (", ".join(cell(part) for part in one["value"]), float(one["best"]), said(one["best"], name))
            for one in known
        ]
        if len(bars) > 1:
            data, layout = figures.bars(bars, title=f"best {in_words(name)}", unit=unit_of(name).replace("usd", "USD"))
            alt = f"Bars of the best {in_words(name)} of {many(len(bars), 'value')} of {fields}."
            blocks.append(
                Figure(caption=f"Best {in_words(name)} by {fields}", alt=alt, data=data, layout=layout, table=None)
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
                short(str(one["example"]), _MOST_LETTERS),
                f"{one['number']:,}",
                _WORDS.get(one["outcome"], one["outcome"]),
                str(one["position"]),
            )
            for one in found[:_MOST_REASONS]
        ],
        numbers=(1, 3),
    )
    return [Section(name="failures", title="Questions without a plan", blocks=[table])]
