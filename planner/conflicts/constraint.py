"""What a constraint of a question offers to the diagnosis, and the words that all of them share."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from planner.conflicts.values import first_feasible
from planner.errors import Relaxation
from planner.plan import Plan
from planner.problem import Limits, Problem
from planner.units import Dimension, format_human, parse

__all__ = ["Asked", "Constraint", "as_written", "both_ways", "limited", "relaxation", "unknown"]


class Asked(Protocol):
    """Who answers whether a question has an answer."""

    def is_feasible(self, problem: Problem) -> bool | None:
        """Whether there is a plan; None where a limit struck first."""
        ...

    def best(self, problem: Problem) -> Plan | None:
        """Return the best plan; None where there is none, or a limit struck first."""
        ...


class Constraint(Protocol):
    """One constraint of the user's, or one fact of the hardware."""

    @property
    def field(self) -> str:
        """Its path in the spec."""
        ...

    @property
    def given(self) -> str:
        """Its value, as the user wrote it, or would write it."""
        ...

    def without(self, problem: Problem) -> Problem:
        """Return the question without it."""
        ...

    def changed(self, problem: Problem, value: str) -> Problem:
        """Return the question with another value of it, one that ``relaxed`` names."""
        ...

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Return the nearest values that would do; ``problem`` has no answer with it, and one without it."""
        ...


def both_ways(member: Constraint, value: int, most: int, is_feasible: Callable[[int], bool | None]) -> Relaxation:
    """Return the nearest feasible number above and below a value; what is feasible need not stay so beyond."""
    above, is_exact_above = first_feasible(range(value + 1, most + 1), is_feasible)
    below, is_exact_below = first_feasible(range(min(value - 1, most), 0, -1), is_feasible)
    found = sorted((one for one in (above, below) if one is not None), key=lambda one: abs(one - value))
    if not found:
        return unknown(member, is_exact=is_exact_above and is_exact_below)
    change = abs(found[0] / value - 1)
    return relaxation(member, [str(one) for one in found], is_exact=is_exact_above and is_exact_below, change=change)


def relaxation(
    member: Constraint, values: Sequence[str], *, is_exact: bool, change: float | None = None, note: str = ""
) -> Relaxation:
    """Return what a member would have to be."""
    return Relaxation(
        field=member.field, given=member.given, values=tuple(values), is_exact=is_exact, change=change, note=note
    )


def unknown(member: Constraint, *, is_exact: bool = False) -> Relaxation:
    """Return that no value is known; ``is_exact``: that there is none but leaving the constraint out."""
    late = "without it there is a plan; how little would do was not found within the time limit"
    return relaxation(member, (), is_exact=is_exact, note="no other value does; leave it out" if is_exact else late)


def limited(problem: Problem, **changes: Any) -> Problem:
    """Return the question with other limits."""
    limits: Limits = replace(problem.limits, **changes)
    return replace(problem, limits=limits)


def as_written(problem: Problem, key: str, value: float, dimension: Dimension) -> str:
    """Return the value of a key of ``constraints`` in the user's own words, where it still is theirs."""
    words = (problem.resolved.get("constraints") or {}).get(key)
    if isinstance(words, str) and parse(words, dimension) == value:
        return words
    return format_human(value, dimension, 4)
