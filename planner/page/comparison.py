"""The page of a comparison: which of two plans is better, which terms decide, and what differs."""

import shlex
from collections.abc import Sequence
from typing import Any

from planner.explanations.comparison import Comparison, Difference, Term
from planner.page import figures
from planner.page.parts import Block, Bullets, Code, Figure, Page, Section, Table, Text, Tile, Tiles, few, thinned
from planner.page.words import goal_words, many, objective, short, term, time

__all__ = ["comparison_page_of"]

_MOST_ROWS = 200
_MOST_BARS = 30
_WHOLE = "--json has all of them"


def comparison_page_of(found: Comparison, names: tuple[str, str], *, commands: Sequence[Sequence[str]] = ()) -> Page:
    """Return the page of two plans; ``names`` are what the user calls them."""
    sections: list[Section | None] = [
        Section(name="summary", title="In short", blocks=_summary(found, names)),
        _terms_section(found.terms, found.objectives, names),
        _differences("decisions", "What the plans decide", found.decisions, names),
        _differences("asked", "What was asked", found.question, names),
    ]
    if commands:
        repeat = Section(
            name="question",
            title="How to repeat it",
            blocks=[Code(caption="To compare them again", text="\n".join(map(shlex.join, commands)))],
        )
        sections.append(repeat)
    return Page(
        title=f"{names[0]} against {names[1]}",
        answer=_answer(found, names),
        verdict="; ".join(found.warnings),
        mark="open" if found.warnings else "plain",
        sections=[section for section in sections if section is not None],
    )


def _answer(found: Comparison, names: tuple[str, str]) -> str:
    """Return which plan is better, in one sentence."""
    if found.better is not None:
        better, worse = names[found.better], names[1 - found.better]
        least, most = (_value(found, index) for index in (found.better, 1 - found.better))
        goal = goal_words(found.objective_names[0].removesuffix("_s"))
        return f"{better} is better: {goal} takes {least} instead of the {most} of {worse}, {found.saving:.2%} less."
    if found.objective_names[0] != found.objective_names[1]:
        return "Neither is better: they do not minimise the same."
    return f"Both take the same, {_value(found, 0)}."


def _value(found: Comparison, index: int) -> str:
    """Return the objective of a plan."""
    name = found.objective_names[index]
    unit = next((unit for end, unit in (("_usd", "usd"), ("_j", "J"), ("_s", "s")) if name.endswith(end)), "")
    return objective(found.objectives[index], unit)


def _summary(found: Comparison, names: tuple[str, str]) -> list[Block]:
    """Return both plans."""
    goals = [goal_words(one.removesuffix("_s")) for one in found.objective_names]
    tiles = [Tile(label=f"{goals[index]}, {short(names[index])}", value=_value(found, index)) for index in (0, 1)]
    lines = [f"{name}: {headline}" for name, headline in zip(names, found.headlines, strict=True)]
    return [Tiles(tiles=tiles), Bullets(lines=lines)]


def _terms_section(terms: Sequence[Term], totals: tuple[float, float], names: tuple[str, str]) -> Section | None:
    """Return which terms decide."""
    known = [one for one in terms if any(one.seconds)]
    if not known:
        return None
    shown = known[:_MOST_BARS]
    bars = [(term(one.name), one.difference_s, _signed(one.difference_s)) for one in shown]
    data, layout = figures.bars(bars, title=f"more time with {short(names[1])}", unit="s")
    table = Table(
        caption="The terms of both, the largest difference first",
        columns=("term", *names, "difference"),
        rows=[
            *((term(one.name), *map(time, one.seconds), _signed(one.difference_s)) for one in shown),
            ("in all", *map(time, totals), _signed(totals[1] - totals[0])),
        ],
        numbers=(1, 2, 3),
        marked=(len(shown),),
        note=few(len(known), len(shown), "terms", _WHOLE),
    )
    alt = f"Bars of what {names[1]} takes more than {names[0]}, by {many(len(shown), 'term')}."
    figure = Figure(caption=f"What {names[1]} takes more", alt=alt, data=data, layout=layout, table=None)
    return Section(name="time", title="Where the time goes", blocks=[figure, table])


def _differences(name: str, title: str, rows: Sequence[Difference], names: tuple[str, str]) -> Section:
    """Return what differs, as a table."""
    if not rows:
        return Section(name=name, title=title, blocks=[Text("The same in both.")])
    shown = thinned(rows, _MOST_ROWS)
    table = Table(
        caption=f"{title}, where it differs",
        columns=("what", *names),
        rows=[(one.name.replace("_", " "), *(_cell(value) for value in one.values)) for one in shown],
        note=few(len(rows), len(shown), "differences", _WHOLE),
    )
    return Section(name=name, title=title, blocks=[table])


def _cell(value: Any) -> str:
    """Return a value; a dash for none."""
    return "-" if value is None else short(str(value), 300)


def _signed(seconds: float) -> str:
    """Return a difference of times."""
    return "0 s" if not seconds else f"{'+' if seconds > 0 else '-'}{time(abs(seconds))}"
