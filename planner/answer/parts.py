"""Sections that several kinds of answers have: what is proven, how a search closed in, notes, and the question."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import NamedTuple

from planner.answer.charts import scale_of
from planner.answer.text import note_lines
from planner.sections import Bars, Block, Bullets, Code, Points, Section, Table, Text
from planner.words import few, many, objective_words, short, size_words, term_words, thinned

_LEAST_SHARE = 1e-6  # what is less of a sum is not shown
_MOST_LINES = 100
_LEAST_MOMENTS = 3
_MOST_MOMENTS = 200
_WIDE = 20  # times the least: beyond, an axis from 0 shows nothing of the end
_MOST_LEAVES = 3000  # values beyond which the question is written as JSON, which is YAML too, and read quickly
_MOST_LETTERS = 300_000

Commands = Sequence[Sequence[str]]  # that give the answer again, each as its arguments
History = Sequence[tuple[float, float, int]]  # bound, incumbent, and how much was done by then


def bullet_blocks(title: str, lines: Sequence[str]) -> list[Block]:
    """Return lines under a title; nothing where there are none."""
    return [Text(f"{title}:"), Bullets(lines)] if lines else []


def of_limit(memory_bytes: Mapping[str, float]) -> str:
    """Return the memory of the fullest device that is used, of what there is."""
    limit = memory_bytes.get("limit", float("inf"))
    return size_words(memory_bytes["total"]) + ("" if limit == float("inf") else f" of {size_words(limit)}")


class Share(NamedTuple):
    """A part of a sum, and its share of it."""

    name: str
    value: float
    share: float


def shares_of(parts: Mapping[str, float]) -> list[Share]:
    """Return the parts of a sum that are worth telling, by their names in words."""
    total = sum(parts.values())
    return [
        Share(term_words(name), value, value / total)
        for name, value in parts.items()
        if total and value > _LEAST_SHARE * total
    ]


def shares_chart(caption: str, shares: Sequence[Share], title: str, unit: str, table: tuple[str, ...]) -> Bars:
    """Return the parts of a sum as bars.

    Parameters
    ----------
    unit
        As :func:`planner.words.objective_words` takes it.
    table
        The caption and the columns of the table with the same numbers.
    """
    rows = [(part.name, objective_words(part.value, unit), f"{part.share:.1%}") for part in shares]
    whole = objective_words(sum(part.value for part in shares), unit)
    largest = max(shares, key=lambda part: part.value, default=Share("nothing", 0.0, 0.0))
    named, *columns = table
    return Bars(
        caption=caption,
        alt=f"Bars of {many(len(rows), 'part')} that add up to {whole}; the largest is {largest.name}, "
        f"{objective_words(largest.value, unit)}.",
        rows=[(name, part.value, f"{words}, {share}") for part, (name, words, share) in zip(shares, rows, strict=True)],
        title=title,
        unit="USD" if unit == "usd" else unit,
        table=Table(caption=named, columns=columns, rows=rows, numbers=(1, 2)),
    )


def certificate_chart(value: float, bound: float, unit: str, *, axis: str | None = None) -> list[Bars]:
    """Return objective and bound, side by side, where they differ; ``axis``: the unit as the axis has it."""
    if value - bound <= 1e-9 * abs(value):
        return []
    words, least = objective_words(value, unit), objective_words(bound, unit)
    gap = (value - bound) / value if value else 0.0
    chart = Bars(
        caption="Objective and bound",
        alt=f"Two bars: the objective, {words}, and the bound, {least}; the gap is {gap:.2%}.",
        rows=[("found", value, words), ("bound", bound, least)],
        title="objective",
        unit=axis or unit,
        marked=0,
        table=Table(
            caption="Objective and bound",
            columns=("what", "value"),
            rows=[("found", words), ("bound", least)],
            numbers=(1,),
        ),
    )
    return [chart]


def history_charts(
    history: History, said: Callable[[float], str], *, goal: str, axis: str, best: str, step: str
) -> list[Points]:
    """Return bound and incumbent as the search went on, by what was done; nothing where there are few moments.

    Parameters
    ----------
    said
        Puts a bound or an incumbent into words.
    goal, axis
        What is minimised, and its unit as :func:`planner.answer.charts.scale_of` takes it.
    best, step
        What the incumbent is, and what is counted.
    """
    if len({number for *_, number in history}) < _LEAST_MOMENTS:
        return []
    shown = thinned(history, _MOST_MOMENTS)
    by, unit = scale_of(max(max(row[:2]) for row in shown), axis)
    series = {
        best: [(number, value / by, f"{number:,} {step}: {said(value)}") for _, value, number in shown],
        "bound": [(number, bound / by, f"{number:,} {step}: at least {said(bound)}") for bound, _, number in shown],
    }
    is_wide = max(row[1] for row in shown) > _WIDE * min(row[0] for row in shown) > 0
    bound, value, _ = shown[-1]
    apart = f"{(value - bound) / value:.1%} apart" if value else "together"
    chart = Points(
        caption="How the search closed in",
        alt=f"Lines of the {best} and of the bound over {many(len(shown), 'moment')} of the search; they end {apart}.",
        series=series,
        titles=(step, f"{goal} ({unit})"),
        lines=tuple(series),
        is_log=(False, is_wide),
        has_steps=True,
        table=Table(
            caption="Bound and best so far as the search went on",
            columns=(step, best, "bound"),
            rows=[(f"{number:,}", said(value), said(bound)) for bound, value, number in shown],
            numbers=(0, 1, 2),
            note=few(len(history), len(shown), "moments", "these are chosen evenly"),
        ),
    )
    return [chart]


def notes(warnings: Sequence[str], page: Mapping[str, Sequence[str]], terminal: Mapping[str, Sequence[str]]) -> Section:
    """Return warnings, and what else is to be known by titles: a page tells some of it in sections of their own."""

    def blocks() -> list[Block]:
        found: list[Block] = []
        for title, lines in {"Warnings": warnings, **page}.items():
            shown = list(lines)[:_MOST_LINES]
            left = few(len(lines), len(shown), "lines", "--json has all of them")
            found += bullet_blocks(title, [short(line, 2000) for line in shown] + [left] * bool(left))
        return found or [Text("There are none.")]

    lines = note_lines(warnings, terminal)
    return Section(name="notes", title="Warnings and assumptions", lines=lines, blocks=blocks)


def origin(
    question: Mapping[str, object], commands: Commands, *, configuration: Mapping[str, object] | None = None
) -> Section:
    """Return the question, which needs no other file, and the commands that ask it again."""

    def blocks() -> list[Block]:
        found: list[Block] = []
        if commands:
            caption = "To get this answer again: save the question below as question.yaml, then"
            found.append(Code(caption=caption, text="\n".join(map(shlex.join, commands))))
        text, note = yaml_of(question)
        found.append(Code(caption="question.yaml", text=text, note=note))
        if configuration is not None:
            text, note = yaml_of({"configuration": configuration})
            caption = "To predict this plan alone, with planner predict, add"
            found.append(Code(caption=caption, text=text, note=note))
        return found

    return Section(name="question", title="The question, and how to repeat it", blocks=blocks)


def yaml_of(value: Mapping[str, object]) -> tuple[str, str]:
    """Return data as YAML, and a note where it was cut."""
    if _num_leaves(value) > _MOST_LEAVES:
        text = json.dumps(value, ensure_ascii=False, indent=1, default=str)
    else:
        from ruamel.yaml import YAML  # noqa: PLC0415  # late: only a page pays for it

        writer = YAML(typ="safe", pure=True)
        writer.default_flow_style = None
        writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        writer.width = 96
        writer.allow_unicode = True
        target = StringIO()
        writer.dump(json.loads(json.dumps(value, default=str)), target)
        text = target.getvalue()
    if len(text) <= _MOST_LETTERS:
        return text.rstrip("\n"), ""
    return text[:_MOST_LETTERS], f"Only the first {_MOST_LETTERS:,} of {len(text):,} letters are shown; --json has all."


def _num_leaves(value: object) -> int:
    """Return the number of plain values in nested data."""
    if isinstance(value, Mapping):
        return sum(map(_num_leaves, value.values()))
    return sum(map(_num_leaves, value)) if isinstance(value, list | tuple) else 1
