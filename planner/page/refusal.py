"""The page of a question without an answer: what conflicts, and how far each constraint would have to give."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import Conflict, InfeasibleError, PlannerError, Relaxation
from planner.page import figures
from planner.page.origin import origin_section
from planner.page.parts import Block, Bullets, Figure, Page, Section, Table, Text
from planner.page.words import many

__all__ = ["refusal_page_of"]

_SETTLED = "then there is a plan"
_NOT_SETTLED = "not enough alone"
_LONGEST_ANSWER = 300  # letters


def refusal_page_of(
    error: PlannerError,
    question: Mapping[str, Any],
    *,
    subject: str,
    commands: Sequence[Sequence[str]] = (),
) -> Page:
    """Return the page of an error that says that there is no answer; ``subject``: what was asked about, in words."""
    conflicts = error.conflicts if isinstance(error, InfeasibleError) else ()
    lines = str(error).splitlines()
    sections = [
        *(_conflict(index, one, len(conflicts)) for index, one in enumerate(conflicts)),
        Section(name="told", title="In full", blocks=[Bullets(lines=[line.strip() for line in lines if line.strip()])]),
        origin_section(question, commands),
    ]
    is_proven = isinstance(error, InfeasibleError)
    return Page(
        title=f"{subject}: {'no answer' if is_proven else 'no answer yet'}",
        answer=_answer(conflicts, lines),
        verdict="Proven, under this cost model: nothing fits all that was asked."
        if is_proven
        else "Not proven: a limit stopped the search. A longer one may find an answer.",
        mark="open",
        sections=sections,
    )


def _answer(conflicts: Sequence[Conflict], lines: Sequence[str]) -> str:
    """Return why there is no answer, in one sentence."""
    if not conflicts:
        first = lines[0] if lines else "There is no answer."
        return first if len(first) <= _LONGEST_ANSWER else f"{first[:_LONGEST_ANSWER]}\N{HORIZONTAL ELLIPSIS}"
    rows = conflicts[0].relaxations
    named = "; ".join(f"{row.field}: {row.given}" for row in rows)
    if not conflicts[0].is_minimal:
        return f"Not all that was asked can be kept together; among what conflicts: {named}."
    without = " Without any one of them there is an answer."
    if len(rows) == 1:
        return f"Nothing keeps this constraint: {named}. Without it there is an answer."
    return f"These {len(rows)} constraints cannot be kept together: {named}.{without}"


def _conflict(index: int, conflict: Conflict, number: int) -> Section:
    """Return one conflict with the ways out of it."""
    title = "What conflicts, and what would settle it"
    if number > 1:
        title = "What conflicts first" if not index else f"What conflicts then, {index + 1} of {number}"
    rows = conflict.relaxations
    table = Table(
        caption="The constraints, and how far each would have to give, alone",
        columns=("constraint", "as asked", "would do", "is that proven", "and then", "what to know"),
        rows=[_row(one) for one in rows],
        marked=[place for place, one in enumerate(rows) if one.is_enough],
    )
    blocks: list[Block] = [*_changes(rows), table]
    if not conflict.is_minimal:
        blocks.append(Text("It is not proven that all of these are needed for the conflict."))
    return Section(name=f"conflict-{index + 1}", title=title, blocks=blocks)


def _row(one: Relaxation) -> tuple[str, ...]:
    """Return how far one constraint would have to give."""
    return (
        one.field,
        one.given,
        " or ".join(one.values) or ("leave it out" if one.is_enough else "not known"),
        "" if not one.values else "proven: nothing nearer does" if one.is_exact else "nearer ones may do, too",
        _SETTLED if one.is_enough else _NOT_SETTLED,
        one.note,
    )


def _changes(rows: Sequence[Relaxation]) -> list[Block]:
    """Return by how much each would have to give, as bars, where that can be compared."""
    known = [one for one in rows if one.change is not None and one.values]
    if not known:
        return []
    bars = [
        (one.field, 100 * (one.change or 0.0), f"{one.given} \N{RIGHTWARDS ARROW} {one.values[0]}") for one in known
    ]
    data, layout = figures.bars(bars, title="change in per cent of what was asked", unit="")
    alt = f"Bars of how far {many(len(known), 'constraint')} would have to give; {known[0].field} least."
    return [Figure(caption="By how much each would have to give", alt=alt, data=data, layout=layout, table=None)]
