"""The answer to a sweep: the best rows, the trade-off, what each field does, and why questions have no plan."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any

from planner.answer.charts import scale_of
from planner.answer.parts import Commands, origin
from planner.answer.text import table
from planner.letters import visible
from planner.sections import Answer, Bars, Block, Heading, Points, Section, Table, Text, Tiles
from planner.units import Dimension, format_human
from planner.words import capitalised, cut, few, many, short, thinned

_UNITS = {"_usd": ("USD", Dimension.MONEY), "_s": ("s", Dimension.TIME), "_j": ("J", Dimension.ENERGY)}
_WORDS = {
    "optimal": "proven optimal",
    "feasible": "with a plan that is not proven",
    "infeasible": "without any plan, proven",
    "wrong": "wrong",
    "limit": "stopped by a limit",
    "failed": "failed",
}
_TEXTS = ("outcome", "family", "headline")  # columns that hold no number
_MOST_LINES = 12  # values of a field on a terminal
_MOST_ROWS = 100
_MOST_REASONS = 100
_MOST_POINTS = 2000
_MOST_VALUES = 60
_MOST_FIELDS = 12
_MOST_LETTERS = 1200  # of a reason
_WHOLE = "--export writes all of them"

Row = Mapping[str, Any]


def sweep_answer(
    summary: Mapping[str, Any],
    rows: Iterable[Row] = (),
    *,
    title: str = "sweep",
    question: Mapping[str, Any] | None = None,
    commands: Commands = (),
) -> Answer:
    """Return a sweep as an answer.

    Parameters
    ----------
    summary
        The document ``planner.sweep/1``.
    rows
        Of the sweep, which a page draws, with the columns of its export: ``position``, the fields that vary,
        ``outcome``, ``objective``, ``bound``, ``family``, ``headline``, ``num_devices``, ``time_s``, ``cost_usd``,
        ``error``.
    question
        The spec of the sweep.
    commands
        That give the answer again, each as its arguments.
    """
    name, number = summary["objective_name"], many(summary["number"], "question")
    answer = f"None of {number} has a plan."
    if name is not None and summary["best"]:
        best = summary["best"][0]
        values = zip(summary["fields"], _settings(summary, best, 60), strict=True)
        settings = ", ".join(f"{field} {value}" for field, value in values)
        answer = f"The best of {number} is {settings}: {_in_words(name)} {_amount(float(best['objective']), name)}."
    counts = summary["counts"]
    verdict = "Every question is answered."
    if not summary["is_complete"]:
        verdict = f"{sum(counts.values()):,} of {number} are answered; the same command goes on with the others."
    sections = [
        Section(name="summary", title="In short", blocks=partial(_summary, summary, has_question=question is not None))
    ]
    if name is not None:
        sections += [
            Section(
                name="best", title="The best", lines=_best_lines(summary, name), blocks=partial(_best, summary, name)
            ),
            *_trade_off(summary, rows, name),
            Section(
                name="effects",
                title="What each field does",
                lines=[f"What each field does to {name}", *_effect_lines(summary, name)],
                blocks=partial(_effects, summary, name),
            ),
        ]
    sections.append(
        Section(
            name="failures",
            title="Questions without a plan",
            lines=_failure_lines(summary["failures"]),
            blocks=partial(_failures, summary["failures"]),
        )
    )
    if question is not None or commands:
        sections.append(origin(question or {}, commands))
    return Answer(
        title=f"A sweep of {number}: {title}",
        answer=answer,
        verdict=verdict,
        mark="plain" if summary["is_complete"] else "open",
        opening=[_counts_words(summary)],
        sections=sections,
    )


# --- Cells in words, the same on a terminal and on a page but for their length


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _ending(name: str) -> str:
    """Return the unit that a column's name ends in, as an ending; nothing where it has none."""
    return next((end for end in _UNITS if name.endswith(end)), "")


def _unit_of(name: str) -> str:
    """Return the unit of a column, as an axis has it."""
    return _UNITS[_ending(name)][0] if _ending(name) else ""


def _in_words(name: str) -> str:
    """Return a column's name in words, without its unit."""
    return name.removesuffix(_ending(name)).removeprefix("num_").replace("_", " ")


def _brief(value: Any, most: int = 32) -> str:
    """Return a value of a field in a few words: a block of one key by its value, a list of one by its part.

    >>> _brief({"zoo": "vgg16"}), _brief(["spot"]), _brief([1, 2]), _brief("10 Gbit/s")
    ('vgg16', 'spot', '[1,2]', '10 Gbit/s')
    """
    while isinstance(value, dict | list) and len(value) == 1:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    return cut(visible(" ".join(text.split())), most)


def _amount(value: Any, name: str, most: int = 48) -> str:
    """Return a cell of an answer: a quantity with four digits, by the unit that its column's name ends in."""
    if not isinstance(value, float):
        return "" if value is None else _brief(value, most)
    if name == "gap":
        return f"{value:.2%}"
    return format_human(value, _UNITS[_ending(name)][1], 4) if _ending(name) and value >= 0 else f"{value:.6g}"


def _settings(summary: Mapping[str, Any], row: Row, most: int) -> list[str]:
    """Return the cells of the fields that vary, whose columns have their names, or ``question.`` before them."""
    return [
        _brief(row.get(f"question.{name}" if f"question.{name}" in row else name), most) for name in summary["fields"]
    ]


def _rows_lines(summary: Mapping[str, Any], rows: Sequence[Row], columns: Sequence[str], name: str) -> list[str]:
    """Return rows with their fields and some columns of their answers, for a terminal."""
    labels = [name if column == "objective" else column for column in columns]
    listed = [
        {
            "#": row["position"],
            **dict(zip(summary["fields"], _settings(summary, row, 32), strict=True)),
            **{label: _amount(row[column], label) for column, label in zip(columns, labels, strict=True)},
        }
        for row in rows
    ]
    return [f"  {line}" for line in table(listed).splitlines()]


def _rows_table(
    caption: str, rows: Sequence[Row], summary: Mapping[str, Any], name: str, columns: Sequence[str]
) -> Table:
    """Return the same for a page; fields by the last parts of their paths, as many as tell them apart."""
    paths = [field.split(".") for field in summary["fields"]]
    fields = []
    for path in paths:
        sizes = (size for size in range(1, len(path)) if sum(one[-size:] == path[-size:] for one in paths) == 1)
        fields.append(".".join(path[-next(sizes, 0) :]))
    listed = thinned(rows, _MOST_ROWS)
    labels = [name if column == "objective" else column for column in columns]
    return Table(
        caption=caption,
        columns=("#", *fields, *map(_in_words, labels)),
        rows=[
            (
                str(row.get("position", "")),
                *_settings(summary, row, 48),
                *(_amount(row.get(column), label, 120) for column, label in zip(columns, labels, strict=True)),
            )
            for row in listed
        ],
        numbers=(0, *(index for index, column in enumerate(columns, 1 + len(fields)) if column not in _TEXTS)),
        note=few(len(rows), len(listed), "rows", _WHOLE),
    )


# --- How many questions ended how, and the best


def _counts_words(summary: Mapping[str, Any]) -> str:
    """Return how many questions ended how, in a line."""
    number, counts = summary["number"], summary["counts"]
    answered = sum(counts.values())
    parts = ", ".join(f"{count} {_WORDS[outcome]}" for outcome, count in counts.items())
    head = f"{number} questions" if answered == number else f"{answered} of {number} questions"
    return f"{head}: {parts}" if parts else f"{number} questions, none of them answered yet"


def _summary(summary: Mapping[str, Any], *, has_question: bool) -> list[Block]:
    """Return how many questions ended how, and what varies."""
    tiles = [("questions", f"{summary['number']:,}")]
    tiles += [(_WORDS.get(outcome, outcome), f"{number:,}") for outcome, number in summary["counts"].items() if number]
    values: dict[str, list[str]] = {str(field): [] for field in summary["fields"]}
    for effect in summary["effects"]:
        for place, field in enumerate(effect["fields"]):
            values[field] = list(dict.fromkeys(_brief(one["value"][place], 48) for one in effect["values"]))
    rows = [
        (field, f"{len(own):,}" if own else "", short(", ".join(thinned(own, _MOST_VALUES)), 300))
        for field, own in values.items()
    ]
    varies = Table(caption="What varies", columns=("field", "values", "which"), rows=rows, numbers=(1,))
    rest = Text("All else is as in the question at the end of this page.")
    return [Tiles(tiles), *([varies] if rows else []), *([rest] if has_question else [])]


def _best_lines(summary: Mapping[str, Any], name: str) -> list[str]:
    lines = [
        f"Best by {name}",
        *_rows_lines(summary, summary["best"], ("objective", "outcome", "family", "headline"), name),
    ]
    if number := summary["num_other_objectives"]:
        lines.append(f"  {number} answers have another objective and are not compared.")
    return lines


def _best(summary: Mapping[str, Any], name: str) -> list[Block]:
    has_gap = any(row.get("gap") for row in summary["best"])
    columns = ("objective", *(("gap",) if has_gap else ()), "outcome", "family", "headline")
    listed = _rows_table(f"Best by {_in_words(name)}", summary["best"], summary, name, columns)
    number = summary["num_other_objectives"]
    words = Text(f"{many(number, 'answer')} with another objective are not compared.")
    return [listed, *([words] if number else [])]


# --- The trade-off


def _trade_off(summary: Mapping[str, Any], rows: Iterable[Row], name: str) -> list[Section]:
    """Return the rows that none beats in two columns, among all of them."""
    found = summary["pareto"]
    if not found:
        return []
    columns, best = found["columns"], found["rows"]
    names = [name if column == "objective" else column for column in columns]
    lines = [f"None is better in both {names[0]} and {names[1]} ({len(best)} rows)"]
    lines += _rows_lines(summary, best, tuple(dict.fromkeys([*columns, "headline"])), name)
    if len(best) == 1:
        lines = [f"#{best[0]['position']} is the best in both {names[0]} and {names[1]}."]
    title = capitalised(f"{_in_words(names[0])} against {_in_words(names[1])}")
    blocks = partial(_trade_off_blocks, summary, rows, name, title)
    return [Section(name="pareto", title=title, lines=lines, blocks=blocks)]


def _trade_off_blocks(summary: Mapping[str, Any], rows: Iterable[Row], name: str, title: str) -> list[Block]:
    """Return the trade-off as points, among all answers, and as a table."""
    columns, best = summary["pareto"]["columns"], summary["pareto"]["rows"]
    if not best:
        return []
    answered = [row for row in rows if row.get("objective_name") == name and _is_number(row.get("objective"))]
    names = [name if column == "objective" else column for column in columns]
    scales = []
    for column, label in zip(columns, names, strict=True):
        values = [abs(float(row[column])) for row in (*answered, *best) if _is_number(row.get(column))]
        scales.append(scale_of(max(values, default=1.0), _unit_of(label)))

    def drawn(given: Sequence[Row]) -> list[tuple[float, float, str]]:
        points = []
        for row in thinned([row for row in given if all(_is_number(row.get(one)) for one in columns)], _MOST_POINTS):
            settings = ", ".join(_settings(summary, row, 30))
            values = ", ".join(_amount(row.get(one), label) for one, label in zip(columns, names, strict=True))
            x, y = (float(row[one]) / by for one, (by, _) in zip(columns, scales, strict=True))
            points.append((x, y, f"{settings}: {values}"))
        return points

    def is_wide(values: Sequence[float]) -> bool:
        return bool(values) and max(values) > 20 * min(values) > 0

    front = {row.get("position") for row in best}
    others = [row for row in answered if row.get("position") not in front]
    series = {"others": drawn(others), "none is better in both": drawn(best)}
    known = [point for points in series.values() for point in points]
    titles = [
        f"{_in_words(label)} ({unit})".removesuffix(" ()") for label, (_, unit) in zip(names, scales, strict=True)
    ]
    chart = Points(
        caption=title,
        alt=f"Points of {title[:1].lower()}{title[1:]} of {many(len(answered), 'answer')}; on {len(front)} of them "
        "none improves in both.",
        series={key: value for key, value in series.items() if value},
        titles=(titles[0], titles[1]),
        lines=("none is better in both",),
        is_log=(is_wide([x for x, *_ in known]), is_wide([y for _, y, _ in known])),
        has_steps=True,
        note=few(len(others), len(series["others"]), "other answers", _WHOLE),
    )
    shown = tuple(dict.fromkeys((*columns, "headline")))
    return [chart, _rows_table("None is better in both", best, summary, name, shown)]


# --- What each field does, and why questions have no plan


def _effect_lines(summary: Mapping[str, Any], name: str) -> list[str]:
    """Return a table of values for each field, or for those that vary together, for a terminal."""
    lines: list[str] = []
    for effect in summary["effects"]:
        values = effect["values"]
        shown = values if len(values) <= _MOST_LINES else [*values[: _MOST_LINES - 1], values[-1]]
        rows = [
            {
                **{field: _brief(part) for field, part in zip(effect["fields"], one["value"], strict=True)},
                name: "" if one["ratio"] is None else f"x {one['ratio']:.4g}",
                "pairs": one["num_pairs"],
                "plans": one["num_answered"],
                "best": _amount(one["best"], name),
            }
            for one in shown
        ]
        lines += [f"  {line}" for line in table(rows).splitlines()]
        if len(shown) < len(values):
            lines.append(f"  ({len(values) - len(shown)} values between the last two are left out)")
        lines.append("")
    told = "  Against the first value that has a plan, all else equal, over the pairs that both have one."
    return [*lines[:-1], told]


def _effects(summary: Mapping[str, Any], name: str) -> list[Block]:
    """Return what each field does to the objective."""
    blocks: list[Block] = []
    for effect in summary["effects"][:_MOST_FIELDS]:
        fields, values = ", ".join(effect["fields"]), effect["values"]
        shown = [(", ".join(_brief(part, 48) for part in one["value"]), one) for one in thinned(values, _MOST_VALUES)]
        bars = [
            (label, float(one["best"]), _amount(one["best"], name)) for label, one in shown if one["best"] is not None
        ]
        blocks.append(Heading(fields))
        if len(bars) > 1:
            chart = Bars(
                caption=f"Best {_in_words(name)} by {fields}",
                alt=f"Bars of the best {_in_words(name)} of {many(len(bars), 'value')} of {fields}.",
                rows=bars,
                title=f"best {_in_words(name)}",
                unit=_unit_of(name),
            )
            blocks.append(chart)
        listed = Table(
            caption=f"What {fields} does, all else equal",
            columns=(fields, "against the first", "pairs", "plans", "best"),
            rows=[
                (
                    label,
                    "" if one["ratio"] is None else f"x {one['ratio']:.4g}",
                    f"{one['num_pairs']:,}",
                    f"{one['num_answered']:,}",
                    _amount(one["best"], name),
                )
                for label, one in shown
            ],
            numbers=(1, 2, 3, 4),
            note=few(len(values), len(shown), "values", _WHOLE),
        )
        blocks.append(listed)
    words = (
        "Against the first value of its field: the geometric mean over all settings of "
        "the other fields in which both have a plan."
    )
    return [*blocks, Text(words)] if blocks else []


def _failure_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why questions have no plan, for a terminal."""
    lines = ["Questions without a plan, by their reason"]
    for one in found:
        lines.append(f"  {one['number']} x {_WORDS[one['outcome']]}, the first is #{one['position']}:")
        lines += [f"      {line}" for line in one["example"].splitlines()[:3]]
    return lines if found else []


def _failures(found: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return why questions have no plan."""
    rows = [
        (
            short(str(one["example"]), _MOST_LETTERS),
            f"{one['number']:,}",
            _WORDS.get(one["outcome"], one["outcome"]),
            str(one["position"]),
        )
        for one in found[:_MOST_REASONS]
    ]
    columns = ("reason", "number", "how it ended", "the first is #")
    caption = "Questions without a plan, by their reason"
    return [Table(caption=caption, columns=columns, rows=rows, numbers=(1, 3))] if rows else []
