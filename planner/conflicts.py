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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from planner.constraints import good_enough, relaxables
from planner.errors import Conflict, InfeasibleError, PlannerError, Relaxation, SpecError
from planner.frozen import frozen
from planner.plan import Plan
from planner.problem import Problem, as_meant
from planner.relaxation import Relaxable
from planner.search import Search
from planner.words import capitalised

# --- The questions that a diagnosis asks, each bounded in time and asked once, and the deletion filter over them

_SHARE = 0.25  # of the time left, for one question

Solve = Callable[[Problem, Search], Plan]


@dataclass(slots=True, kw_only=True)
class Oracle:
    """Whether a question has an answer: bounded in time, and stopped at the first answer that will do.

    ``enough_bytes``: memory of a device with which the question that was asked is known to have one.
    """

    solve: Solve
    search: Search
    enough_bytes: float = inf

    def is_feasible(self, problem: Problem) -> bool | None:
        """Whether there is a plan; None where a limit struck first."""
        if self.search.is_over:  # not even to set up the question: thousands of numbers may be waiting
            return None
        try:
            meant = as_meant(problem)
        except PlannerError:
            return None
        try:
            self._solved(meant, self.search.left_s * _SHARE, good_enough(meant))
        except (InfeasibleError, SpecError):  # nothing fits, or every family refuses the question
            return False
        except PlannerError:  # a limit, or a model asked beyond its range: neither yes nor no
            return None
        return True

    def best(self, problem: Problem) -> Plan | None:
        """Return the best plan; None where there is none, or a limit struck first."""
        if self.search.is_over:
            return None
        try:
            return self._solved(as_meant(problem), self.search.left_s / 2, float("-inf"))
        except PlannerError:
            return None

    def _solved(self, problem: Problem, time_limit_s: float, good_enough: float) -> Plan:
        """Return a plan within the limits."""
        return self.solve(problem, self.search.part(time_limit_s, good_enough=good_enough))


@dataclass(slots=True)
class DeletionFilter:
    """The deletion filter over the members of a question without answer; it asks nothing twice."""

    problem: Problem
    members: Sequence[Relaxable]
    asked: Oracle
    _known: dict[frozenset[int], bool | None] = field(init=False)

    def __post_init__(self) -> None:
        self._known = {self.everything: False}

    @property
    def everything(self) -> frozenset[int]:
        """The indices of all members."""
        return frozenset(range(len(self.members)))

    def with_only(self, kept: frozenset[int]) -> Problem:
        """Return the question with some of its constraints only; a limit goes before the device's memory within it."""
        problem = self.problem
        for index, member in reversed(list(enumerate(self.members))):
            if index not in kept:
                problem = member.without(problem)
        return problem

    def is_feasible(self, kept: frozenset[int]) -> bool | None:
        """Whether there is a plan with some of the constraints only."""
        if kept not in self._known:
            self._known[kept] = self.asked.is_feasible(self.with_only(kept))
        return self._known[kept]

    def minimal(self, kept: frozenset[int]) -> tuple[frozenset[int], bool]:
        """Return a part of an infeasible set from which nothing can be dropped, and whether that is proven.

        A constraint that leaves no plan by itself, as most often, is looked for first: to find a plan with each of
        the others is quicker than to prove, over and over, that there is none with all but one.
        """
        for index in sorted(kept, reverse=True):
            if self.is_feasible(frozenset({index})) is False:
                return frozenset({index}), self.is_feasible(frozenset()) is True
        has_dropped = True
        while has_dropped:
            has_dropped = False
            for index in sorted(kept):
                if self.is_feasible(kept - {index}) is False:
                    kept -= {index}
                    has_dropped = True
        return kept, all(self.is_feasible(kept - {index}) for index in sorted(kept))

    def disjoint(self, most: int) -> list[tuple[frozenset[int], bool]]:
        """Return minimal conflicts of which no two share a member, and of each whether that is proven.

        One with a later member comes later: how far a deadline has to give depends on how the others gave.
        """
        found: list[tuple[frozenset[int], bool]] = []
        rest = self.everything
        while len(found) < most and (not found or self.is_feasible(rest) is False):
            chosen, is_minimal = self.minimal(rest)
            found.append((chosen, is_minimal))
            if any(self.is_feasible(self.everything - {index}) for index in sorted(chosen)):
                break  # without this one there is a plan; hence without all of them, too
            rest -= chosen
        return sorted(found, key=lambda one: max(one[0]))


# --- What a diagnosis holds, and its words: each line is true by itself, and together they are a way to a plan

_ENDS = ("at least", "at most", "exactly")


@frozen
class Way:
    """How far one member of a conflict would have to give.

    ``is_enough``: whether the question has an answer then, with the changes named before; None where nobody knows. If
    not, its own conflict is settled, and another one remains.
    """

    member: Relaxable
    row: Relaxation
    is_enough: bool | None

    def of(self, problem: Problem) -> Problem:
        """Return the question with the nearest value, or without the member where no value does."""
        return self.member.changed(problem, self.row.values[0]) if self.row.values else self.member.without(problem)

    @property
    def change(self) -> str:
        """What :meth:`of` changes, in words."""
        return f"{self.key}{self.row.values[0]}" if self.row.values else f"no {self.row.field}"

    @property
    def key(self) -> str:
        """What stands before the value: ``constraints.machines: at most ``."""
        words = self.row.given.rsplit(" ", 1)[0]
        return f"{self.row.field}: {words} " if words in _ENDS else f"{self.row.field}: "


@frozen
class Step:
    """A conflict of the question with some ``changes``; ``is_minimal``: proven that no member can be missed."""

    ways: tuple[Way, ...]
    is_minimal: bool
    changes: tuple[str, ...] = ()


@frozen
class Diagnosis:
    """Conflicts, each one behind a change of the one before it; ``end``: what is left open, in words."""

    steps: tuple[Step, ...] = ()
    end: str = ""


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """Return the conflicts, and the ways out, as lines."""
    lines = []
    for step in found.steps:
        number, names = len(step.ways), "; ".join(f"{way.row.field}: {way.row.given}" for way in step.ways)
        if number == 1:
            which = "one constraint leaves none"
        else:
            which = f"these {number} constraints conflict{', and no fewer of them' * step.is_minimal}"
        which += "" if step.is_minimal else " (not proven minimal within the time limit)"
        begin = f"With {' and '.join(step.changes)}, still no plan fits" if step.changes else "No plan fits"
        lines.append(f"{begin}: {which}: {names}.")
        for is_enough in (True, False, None):
            if ways := [way for way in step.ways if way.is_enough is is_enough]:
                lines.append(_lead(step, is_enough, len(ways)))
                lines += [f"  {_way_out(way.row)}" for way in ways]
    return [*lines, found.end] if found.end else lines


def names_of(members: Iterable[tuple[str, str]]) -> str:
    """Return members with their values: ``fix.num_devices: 3 and fix.num_machines: 2``."""
    return " and ".join(f"{field}: {given}" for field, given in members)


def told_by(problem: Problem, reasons: str) -> str:
    """Return the reasons that the families give, and say whose they are where they do not say so."""
    lines = reasons.split("\n")
    if len(lines) > 1 and all(line.partition(":")[0].split(" ")[0] in problem.families for line in lines):
        return "\n".join(["Family by family:", *(f"  {line}" for line in lines)])
    if len(problem.families) == 1 and reasons.startswith("it "):
        return f"{problem.families[0]}: {reasons}"
    return reasons


def _lead(step: Step, is_enough: bool | None, number: int) -> str:
    """Return the line before the ways out of one kind."""
    which = "this" if number == 1 else "any one of these"
    if is_enough:
        text = f"{which} settles it:"
        return f"With that, {text}" if step.changes else capitalised(text)
    if is_enough is None:
        return f"Not found within the time limit whether {which} settles it:"
    if any(way.is_enough for way in step.ways):
        return f"{capitalised('this' if number == 1 else 'each of these')} alone is not enough:"
    return f"{capitalised(which)} settles this conflict, but another one remains:"


def _way_out(row: Relaxation) -> str:
    """Return ``constraints.memory_per_device: 11 GiB -> 13.4 GiB``, with what is not proven."""
    if not row.values:
        return f"{row.field}: {row.given} ({row.note})"
    text = f"{row.field}: {row.given} -> {' or '.join(row.values)}"
    doubts = [] if row.is_exact else ["whether less does was not found within the time limit"]
    doubts += [row.note] if row.note else []
    return f"{text} ({'; '.join(doubts)})" if doubts else text


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
    found = conflicts_of(problem, solve, own, error.enough_bytes)
    if found.steps:
        conflicts = [
            Conflict(relaxations=tuple(way.row for way in step.ways), is_minimal=step.is_minimal)
            for step in found.steps
        ]
        return InfeasibleError.of("\n".join([*diagnosis_lines(found), said]), conflicts)
    return InfeasibleError.of(f"{said}\n{found.end}", ()) if found.end else error


def conflicts_of(problem: Problem, solve: Solve, search: Search, enough_bytes: float = inf) -> Diagnosis:
    """Return the conflicts of a question without answer, one after the other, with the relaxations of their members.

    Without any where the question has no answer without any constraint, or where the time did not do for one answer.
    """
    asked = Oracle(solve=solve, search=search, enough_bytes=enough_bytes)
    filtered = DeletionFilter(problem, relaxables(problem), asked)
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
        filtered = DeletionFilter(changed, relaxables(changed), asked)
    return Diagnosis(steps=tuple(steps), end=f"More conflicts remain; {_MOST_CONFLICTS} are listed at most.")


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
        note = f"whether there is a plan without it was not found {_LATE}"
        row = Relaxation(field=member.field, given=member.given, values=(), is_exact=False, is_enough=False, note=note)
        return Way(member=member, row=row, is_enough=None)
    row = member.relaxed(filtered.with_only(kept), filtered.asked)
    answers = [filtered.asked.is_feasible(member.changed(filtered.problem, value)) for value in row.values]
    if enough := tuple(value for value, answer in zip(row.values, answers, strict=True) if answer):
        # The batch may go with the number of devices, so that a value does though no limit at all would not.
        return Way(member=member, row=replace(row, values=enough, is_enough=True), is_enough=True)
    if is_enough is None or None in answers:
        note = row.note or f"whether another conflict remains was not found {_LATE}"
        return Way(member=member, row=replace(row, is_enough=False, note=note), is_enough=None)
    left = others[0] if others else filtered.minimal(everything - {index})[0]
    names = names_of([(filtered.members[one].field, filtered.members[one].given) for one in sorted(left)])
    note = f"then {names} still {'leaves none' if len(left) == 1 else 'conflict'}"
    note = "; ".join(filter(None, [row.note, note]))
    return Way(member=member, row=replace(row, is_enough=False, note=note), is_enough=False)
