"""Why a question has no answer: a minimal set of constraints that conflict, and how far each would have to give.

A *deletion filter* (J. Chinneck, Feasibility and Infeasibility in Optimization, Springer, 2008, chapter 6): constraints
are dropped one after the other; one without which there is still no plan stays dropped. What remains has no plan, and
has one without any one of its members: a minimal conflict, as QuickXplain finds it in fewer questions where it is small
among many (U. Junker, AAAI 2004); here there are few constraints. Passes are repeated until none can be dropped,
because a batch per device means another global batch when a constraint on the devices goes.

To relax one member may not be enough: another conflict may stand beside the first one, or share members with it. Then
the member is relaxed as far as its own conflict needs, the question is asked again with that value, and what conflicts
now is the next one; and so on, up to a few. Thus each conflict is one of the question with the changes named before it.

Each question is put to the ranking of all families, which stops at the first answer that will do. An answer that a
limit keeps it from giving is taken for neither yes nor no: the constraint stays, and the set is not called minimal.
"""

from dataclasses import replace

from planner.conflicts.constraints_of import constraints_of
from planner.conflicts.filter import DeletionFilter, Oracle, Solve
from planner.conflicts.words import Diagnosis, Step, Way, diagnosis_lines, names_of, told_by
from planner.errors import Conflict, InfeasibleError, Relaxation
from planner.problem import Problem
from planner.search import Search

__all__ = ["conflicts_of", "diagnosed"]

_MOST_CONFLICTS = 4
_LATE = "within the time limit"


def diagnosed(problem: Problem, error: InfeasibleError, solve: Solve, search: Search) -> InfeasibleError:
    """Return the error of a question without answer with what conflicts; itself where no constraint is the reason.

    Parameters
    ----------
    solve
        :func:`planner.ranking.best_plan`.
    search
        The diagnosis takes what is left of its time, and stops with it.
    """
    said = told_by(problem, str(error))
    if search.is_over:
        return InfeasibleError.of(f"{said}\nWhich constraints conflict was not found {_LATE}.", ())
    own = search.part(search.left_s)
    found = conflicts_of(problem, solve, own)
    if found.steps:
        return InfeasibleError.of("\n".join([*diagnosis_lines(found), said]), _documented(found))
    return InfeasibleError.of(f"{said}\n{found.end}", ()) if found.end else error


def conflicts_of(problem: Problem, solve: Solve, search: Search) -> Diagnosis:
    """Return the conflicts of a question without answer, one after the other, with the relaxations of their members.

    Without any where the question has no answer without any constraint, or where the time did not do for one answer.
    """
    asked = Oracle(solve=solve, search=search)
    filtered = DeletionFilter(problem, constraints_of(problem), asked)
    if filtered.is_feasible(frozenset()) is False:
        return Diagnosis()
    steps: list[Step] = []
    changes: dict[str, str] = {}
    while len(steps) < _MOST_CONFLICTS:
        step = replace(_step(filtered), changes=tuple(changes.values()))
        if all(way.is_enough is None and not way.row.values for way in step.ways):  # nothing is known of any member
            what = "What else is in the way" if steps else "Which constraints conflict"
            return Diagnosis(steps=tuple(steps), end=f"{what} was not found {_LATE}.")
        steps.append(step)
        if (way := _next(steps)) is None:
            return Diagnosis(steps=tuple(steps))
        if search.is_over:
            return Diagnosis(steps=tuple(steps), end=f"What else is in the way was not found {_LATE}.")
        changes[way.key] = way.change
        changed = way.of(filtered.problem)
        filtered = DeletionFilter(changed, constraints_of(changed), asked)
    return Diagnosis(steps=tuple(steps), end=f"More conflicts remain; {_MOST_CONFLICTS} are listed at most.")


def _documented(found: Diagnosis) -> tuple[Conflict, ...]:
    """Return the conflicts as the error carries them."""
    return tuple(
        Conflict(relaxations=tuple(way.row for way in step.ways), is_minimal=step.is_minimal) for step in found.steps
    )


def _next(steps: list[Step]) -> Way | None:
    """Return the relaxation behind which the next conflict is looked for; None where none need be.

    Of the first conflict, that is one that is not enough, even where others are; later, only where none is enough.
    """
    ways = steps[-1].ways
    if len(steps) > 1 and any(way.is_enough for way in ways):
        return None
    return next((way for way in ways if way.is_enough is False), None)


def _step(filtered: DeletionFilter) -> Step:
    """Return the first conflict of a question, with the ways out of it.

    The least change comes first; what cannot be compared comes last.
    """
    (chosen, is_minimal), *others = filtered.disjoint(_MOST_CONFLICTS)
    ways = [_way(filtered, index, chosen, [one for one, _ in others]) for index in sorted(chosen)]
    rank = {True: 0, False: 1, None: 2}
    ways.sort(key=lambda way: (rank[way.is_enough], way.row.change is None, way.row.change or 0.0))
    return Step(ways=tuple(ways), is_minimal=is_minimal)


def _way(filtered: DeletionFilter, index: int, chosen: frozenset[int], others: list[frozenset[int]]) -> Way:
    """Return how far a member would have to give, with all else as asked, and whether that is enough.

    Where it is not, how far it would have to give with the ``others`` left out, which other conflicts consist of; or
    within its own conflict, where all else is left out.
    """
    member, everything = filtered.members[index], filtered.everything
    is_enough = filtered.is_feasible(everything - {index})
    if is_enough:
        row = member.relaxed(filtered.problem, filtered.asked)
        return Way(member=member, row=replace(row, is_enough=True), is_enough=True)
    contexts = (everything.difference(*others), chosen)
    kept = next((one for one in contexts if filtered.is_feasible(one - {index})), None)
    if kept is None:
        return _open(Way(member=member, row=_unanswered(filtered, index), is_enough=None))
    row = member.relaxed(filtered.with_only(kept), filtered.asked)
    answers = [filtered.asked.is_feasible(member.changed(filtered.problem, value)) for value in row.values]
    if enough := tuple(value for value, answer in zip(row.values, answers, strict=True) if answer):
        # The batch may go with the number of devices, so that a value does though no limit at all would not.
        return Way(member=member, row=replace(row, values=enough, is_enough=True), is_enough=True)
    if is_enough is None or None in answers:
        return _open(Way(member=member, row=row, is_enough=None))
    left = others[0] if others else filtered.minimal(everything - {index})[0]
    names = names_of([(filtered.members[one].field, filtered.members[one].given) for one in sorted(left)])
    note = f"then {names} still {'leaves none' if len(left) == 1 else 'conflict'}"
    return Way(member=member, row=_noted(row, note), is_enough=False)


def _unanswered(filtered: DeletionFilter, index: int) -> Relaxation:
    """Return that nobody knows whether a member matters."""
    member = filtered.members[index]
    note = f"whether there is a plan without it was not found {_LATE}"
    return Relaxation(field=member.field, given=member.given, values=(), is_exact=False, note=note)


def _open(way: Way) -> Way:
    """Return the way as one of which it is not known whether it is enough."""
    note = "" if way.row.note else f"whether another conflict remains was not found {_LATE}"
    return replace(way, row=_noted(way.row, note))


def _noted(row: Relaxation, note: str) -> Relaxation:
    """Return a relaxation that is not known to be enough, with what to know of it."""
    return replace(row, is_enough=False, note="; ".join(filter(None, [row.note, note])))
