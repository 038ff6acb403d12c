"""The questions that a diagnosis asks, each bounded in time and asked once, and the deletion filter over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from planner.conflicts.constraint import Constraint
from planner.conflicts.question import as_meant
from planner.errors import InfeasibleError, PlannerError, SpecError
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search

__all__ = ["DeletionFilter", "Oracle", "Solve"]

_SHARE = 0.25  # of the time left, for one question

Solve = Callable[[Problem, Search], Plan]


@dataclass(slots=True, kw_only=True)
class Oracle:
    """Whether a question has an answer: bounded in time, and stopped at the first answer that will do."""

    solve: Solve
    search: Search

    def is_feasible(self, problem: Problem) -> bool | None:
        """Whether there is a plan; None where a limit struck first."""
        if self.search.is_over:  # not even to set up the question: thousands of numbers may be waiting
            return None
        try:
            meant = as_meant(problem)
        except PlannerError:
            return None
        try:
            self._solved(meant, self.search.left_s * _SHARE, _good_enough(meant))
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
class DeletionFilter:
    """The deletion filter over the members of a question without answer; it asks nothing twice."""

    problem: Problem
    members: Sequence[Constraint]
    asked: Oracle
    _known: dict[frozenset[int], bool | None] = field(default_factory=dict)

    @property
    def everything(self) -> frozenset[int]:
        """The indices of all members."""
        return frozenset(range(len(self.members)))

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
