"""The answer to a question that has none: what conflicts, and how far each constraint would have to give."""

from collections.abc import Mapping, Sequence
from functools import partial

from planner.answer.parts import Commands, origin
from planner.errors import Conflict, InfeasibleError, PlannerError, Relaxation
from planner.sections import Answer, Bars, Block, Bullets, Section, Table, Text
from planner.words import many, short

_LONGEST_ANSWER = 300  # letters


def refusal_answer(
    error: PlannerError, question: Mapping[str, object], *, subject: str, commands: Commands = ()
) -> Answer:
    """Return a question without an answer.

    Parameters
    ----------
    error
        That says so: what conflicts, or which limit struck.
    question
        As plain data.
    subject
        What was asked about: a network on a cluster.
    commands
        That ask it again, each as its arguments.
    """
    is_proven = isinstance(error, InfeasibleError)
    conflicts = error.conflicts if isinstance(error, InfeasibleError) else ()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    titles = ["What conflicts, and what would settle it"]
    if len(conflicts) > 1:
        then = [f"What conflicts then, {index} of {len(conflicts)}" for index in range(2, len(conflicts) + 1)]
        titles = ["What conflicts first", *then]
    return Answer(
        title=f"{subject}: {'no answer' if is_proven else 'no answer yet'}",
        answer=_conflict_words(conflicts[0])
        if conflicts
        else short((lines or ["There is no answer."])[0], _LONGEST_ANSWER),
        verdict="Proven, under this cost model: nothing fits all that was asked."
        if is_proven
        else "Not proven: a limit stopped the search. A longer one may find an answer.",
        mark="open",
        opening=str(error).splitlines(),
        sections=[
            *(
                Section(name=f"conflict-{index}", title=title, blocks=partial(_conflict, one))
                for index, (title, one) in enumerate(zip(titles, conflicts, strict=False), start=1)
            ),
            Section(name="told", title="In full", blocks=lambda: [Bullets(lines)]),
            origin(question, commands),
        ],
    )


def _conflict_words(conflict: Conflict) -> str:
    """Return what conflicts, in one sentence or two."""
    rows = conflict.relaxations
    named = "; ".join(f"{row.field}: {row.given}" for row in rows)
    if not conflict.is_minimal:
        return f"Not all that was asked can be kept together; among what conflicts: {named}."
    if len(rows) == 1:
        return f"Nothing keeps this constraint: {named}. Without it there is an answer."
    return (
        f"These {len(rows)} constraints cannot be kept together: {named}. Without any one of them there is an answer."
    )


def _conflict(conflict: Conflict) -> list[Block]:
    rows = conflict.relaxations
    table = Table(
        caption="The constraints, and how far each would have to give, alone",
        columns=("constraint", "as asked", "would do", "is that proven", "and then", "what to know"),
        rows=[
            (
                one.field,
                one.given,
                " or ".join(one.values) or ("leave it out" if one.is_enough else "not known"),
                "" if not one.values else "proven: nothing nearer does" if one.is_exact else "nearer ones may do, too",
                "then there is a plan" if one.is_enough else "not enough alone",
                one.note,
            )
            for one in rows
        ],
        marked=[place for place, one in enumerate(rows) if one.is_enough],
    )
    open_words = Text("It is not proven that all of these are needed for the conflict.")
    return [*_changes(rows), table, *([] if conflict.is_minimal else [open_words])]


def _changes(rows: Sequence[Relaxation]) -> list[Bars]:
    """Return by how much each would have to give, as bars, where that can be compared."""
    known = [(one, one.change) for one in rows if one.change is not None and one.values]
    if not known:
        return []
    chart = Bars(
        caption="By how much each would have to give",
        alt=f"Bars of how far {many(len(known), 'constraint')} would have to give; {known[0][0].field} least.",
        rows=[(one.field, 100 * change, f"{one.given} \N{RIGHTWARDS ARROW} {one.values[0]}") for one, change in known],
        title="change in per cent of what was asked",
    )
    return [chart]
