"""Why a question has no answer: a minimal set of constraints that conflict, and how far each would have to give.

A *deletion filter* (J. Chinneck, Feasibility and Infeasibility in Optimization, Springer, 2008, chapter 6): constraints
are dropped one after the other; one without which there is still no plan stays dropped. What remains has no plan, and
has one without any one of its members: a minimal conflict, as QuickXplain finds it in fewer questions where it is small
among many (U. Junker, AAAI 2004); here there are few constraints. Passes are repeated until none can be dropped,
because a batch per device means another global batch when a constraint on the devices goes.

Each question is put to the ranking of all families, which stops at the first answer that will do. An answer that a
limit keeps it from giving is taken for neither yes nor no: the constraint stays, and the set is not called minimal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from planner.conflict_members import Member, members_of
from planner.conflict_question import as_meant
from planner.errors import Conflict, InfeasibleError, PlannerError, Relaxation
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search

__all__ = ["conflict_lines", "conflicts_of", "diagnosed"]

_MOST_CONFLICTS = 3
_SHARE = 0.25  # of the time left, for one question

Solve = Callable[[Problem, Search], Plan]


def diagnosed(problem: Problem, error: InfeasibleError, solve: Solve, search: Search) -> InfeasibleError:
    """Return the error of a question without answer with what conflicts; itself where no constraint is the reason.

    Parameters
    ----------
    solve
        :func:`planner.ranking.best_plan`.
    search
        The diagnosis takes at most half of what is left of its time; a quarter of its time limit where less is left,
        so that a question whose infeasibility took all the time to prove is explained, too.
    """
    if search.was_interrupted:
        return error
    own = Search(time_limit_s=max(search.left_s / 2, search.time_limit_s / 4), seed=search.seed)
    with own.interruptible():
        conflicts = conflicts_of(problem, solve, own)
    if not conflicts:
        return error
    return InfeasibleError.of("\n".join([*conflict_lines(conflicts), str(error)]), conflicts)


def conflicts_of(problem: Problem, solve: Solve, search: Search) -> tuple[Conflict, ...]:
    """Return disjoint conflicting sets of a question without answer, with the relaxations of their members.

    Empty where the question has no answer without any constraint, or where the time did not do for one answer.
    """
    if search.is_over:
        return ()
    members = members_of(problem)
    asked = _Asked(solve=solve, search=search)
    filtered = _Filter(problem, members, asked)
    if filtered.is_feasible(frozenset()) is False:
        return ()
    sets: list[tuple[frozenset[int], bool]] = []
    rest = frozenset(range(len(members)))
    while len(sets) < _MOST_CONFLICTS and (not sets or filtered.is_feasible(rest) is False):
        chosen, is_minimal = filtered.minimal(rest)
        sets.append((chosen, is_minimal))
        rest -= chosen
    if not asked.num_known:
        return ()
    return tuple(
        Conflict(
            relaxations=_relaxations(filtered, chosen, frozenset().union(*(other for other, _ in sets)) - chosen),
            is_minimal=is_minimal,
        )
        for chosen, is_minimal in sets
    )


@dataclass(slots=True, kw_only=True)
class _Asked:
    """The oracle: bounded in time, and stopped at the first answer that will do."""

    solve: Solve
    search: Search
    num_known: int = 0

    def is_feasible(self, problem: Problem) -> bool | None:
        """Whether there is a plan; None where a limit struck first."""
        try:
            meant = as_meant(problem)
            self._solved(meant, self.search.left_s * _SHARE, _good_enough(meant))
        except InfeasibleError:
            self.num_known += 1
            return False
        except PlannerError:  # a limit, or a model asked beyond its range: neither yes nor no
            return None
        self.num_known += 1
        return True

    def best(self, problem: Problem) -> Plan | None:
        """Return the best plan; None where there is none, or a limit struck first."""
        try:
            return self._solved(as_meant(problem), self.search.left_s / 2, float("-inf"))
        except PlannerError:
            return None

    def _solved(self, problem: Problem, time_limit_s: float, good_enough: float) -> Plan:
        """Return a plan within the limits."""
        return self.solve(problem, self.search.part(time_limit_s, good_enough=good_enough))


def _good_enough(problem: Problem) -> float:
    """Return the objective at which a plan will do: any without a deadline, else one that surely meets it."""
    deadline_s, training = problem.limits.deadline_s, problem.training
    if deadline_s is None:
        return float("inf")
    wanted_s = deadline_s * (1 - 1e-9)  # a plan that misses it by rounding would be no answer
    epochs = training.epochs or 1.0
    if problem.goal.name == "training_time":
        return wanted_s
    if problem.goal.name == "epoch_time":
        return wanted_s / epochs
    if training.fixed_batch_size and training.dataset_samples:
        return wanted_s / epochs * training.fixed_batch_size / training.dataset_samples
    return float("-inf")


@dataclass(slots=True)
class _Filter:
    """The deletion filter, which asks nothing twice."""

    problem: Problem
    members: Sequence[Member]
    asked: _Asked
    _known: dict[frozenset[int], bool | None] = field(default_factory=dict)

    def with_only(self, kept: frozenset[int]) -> Problem:
        """Return the question with some of its constraints only."""
        problem = self.problem
        for index, member in enumerate(self.members):
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


def _relaxations(filtered: _Filter, chosen: frozenset[int], others: frozenset[int]) -> tuple[Relaxation, ...]:
    """Return how far each member would have to give, with all else as asked.

    Where that is not enough, with the ``others`` left out, which other conflicts consist of; or within its set alone.
    The least change comes first; what cannot be compared comes last.
    """
    everything = frozenset(range(len(filtered.members)))
    rows = []
    for index in sorted(chosen):
        member = filtered.members[index]
        is_enough = filtered.is_feasible(everything - {index}) is True
        kept = [one for one in (everything, everything - others, chosen) if filtered.is_feasible(one - {index})]
        if kept:
            row = replace(member.relaxed(filtered.with_only(kept[0]), filtered.asked), is_enough=is_enough)
        else:  # nobody knows whether it matters
            note = "no answer in time without it"
            row = Relaxation(
                field=member.field, given=member.given, values=(), is_exact=False, is_enough=False, note=note
            )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: (not row.is_enough, row.change is None, row.change or 0.0)))


# -- words ---------------------------------------------------------------------------------------------------------


def conflict_lines(conflicts: Sequence[Conflict]) -> list[str]:
    """Return the conflicting sets, and the ways out, as lines."""
    lines = []
    for number, conflict in enumerate(conflicts, 1):
        which = f" (conflict {number} of {len(conflicts)}, all of which must be settled)" if len(conflicts) > 1 else ""
        names = "; ".join(f"{row.field}: {row.given}" for row in conflict.relaxations)
        lines.append(f"No plan fits{which}: {_how_many(conflict)}: {names}.")
        lines.append(_lead(conflict))
        lines += [f"  {_way_out(row, is_only=len(conflicts) == 1)}" for row in conflict.relaxations]
    return lines


def _lead(conflict: Conflict) -> str:
    """Return the line before the ways out."""
    if not conflict.is_minimal:
        return "What is known of the ways out:"
    return "Any one of these settles it:" if len(conflict.relaxations) > 1 else "This settles it:"


def _how_many(conflict: Conflict) -> str:
    """Return how many constraints conflict, and what is proven of them."""
    number = len(conflict.relaxations)
    if not conflict.is_minimal:
        these = f"these {number} constraints conflict" if number > 1 else "one constraint leaves none"
        return f"{these}, not proven minimal (a limit struck)"
    return "one constraint leaves none" if number == 1 else f"these {number} constraints conflict, and no fewer of them"


def _way_out(row: Relaxation, *, is_only: bool) -> str:
    """Return ``constraints.memory_per_device: 11 GiB -> 13.4 GiB``, with what is not proven.

    ``is_only``: no other conflict is listed, which would say that this one alone is not enough.
    """
    if not row.values:
        return f"{row.field}: {row.given} ({row.note})"
    text = f"{row.field}: {row.given} -> {' or '.join(row.values)}"
    doubts = [] if row.is_exact else ["less may do: a limit struck"]
    doubts += [row.note] if row.note else []
    doubts += [] if row.is_enough or not is_only else ["another conflict remains"]
    return f"{text} ({'; '.join(doubts)})" if doubts else text
