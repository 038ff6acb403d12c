"""How far one value of a question would have to give: bisection, a walk outwards, and printed values that are tested.

A relaxable value knows how to leave itself out and how to take another value; whoever looks for the nearest one that
does asks whether the changed question has an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Protocol

from planner.errors import Relaxation
from planner.frozen import frozen
from planner.plan import Plan
from planner.problem import Problem
from planner.units import Dimension, format_human, parse


def least_feasible(low: int, high: int, is_feasible: Callable[[int], bool | None]) -> tuple[int | None, bool]:
    """Return the least feasible number above ``low``, up to ``high``, and whether the one below it is proven not to be.

    ``low`` is infeasible, and what is feasible stays so above. None where ``high`` is not known to be feasible.
    """
    if high <= low or not is_feasible(high):
        return None, False
    is_exact = True
    while high - low > 1:
        middle = (low + high) // 2
        answer = is_feasible(middle)
        if answer:
            high = middle
        else:
            low = middle
            is_exact = answer is not None
    return high, is_exact


def first_feasible(
    numbers: Sequence[int],
    is_feasible: Callable[[int], bool | None],
    is_any_feasible: Callable[[Sequence[int]], bool | None] | None,
) -> tuple[int | None, bool]:
    """Return the first feasible number, and whether all before it are proven not to be.

    ``is_any_feasible`` asks of several numbers at once: one question then answers where none of them is, and otherwise
    the first one is found by bisection of how many are asked of. Where it does not know, each is asked of by itself.
    """
    if is_any_feasible is not None and len(numbers) > _FEW:
        if (is_there_one := is_any_feasible(numbers)) is False:
            return None, True
        if is_there_one:
            many, is_first = least_feasible(0, len(numbers), lambda many: is_any_feasible(numbers[:many]))
            if many is not None and is_first:
                return numbers[many - 1], True
    is_exact = True
    for number in numbers:
        answer = is_feasible(number)
        if answer:
            return number, is_exact
        if answer is None:
            is_exact = False
            break
    return None, is_exact


_FEW = 3  # numbers that are asked of one by one


@frozen
class Unit:
    """A unit with so many digits after the point."""

    name: str
    digits: int
    dimension: Dimension

    @property
    def size(self) -> float:
        """What one of it is, in SI units."""
        return parse(f"1 {self.name}", self.dimension)

    @property
    def step(self) -> float:
        """What the last digit is worth, in SI units."""
        return self.size / 10.0**self.digits

    def text(self, number: int) -> str:
        """Return ``number`` of the last digits, as a spec writes it."""
        text = f"{number / 10**self.digits:.{self.digits}f}"
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {self.name}"


UNITS: Mapping[Dimension, Sequence[Unit]] = {
    dimension: tuple(Unit(name=name, digits=digits, dimension=dimension) for name, digits in names)
    for dimension, names in {
        Dimension.DATA: (("GiB", 2), ("MiB", 1), ("KiB", 1), ("B", 0)),
        Dimension.TIME: (("h", 3), ("min", 2), ("s", 2), ("ms", 2), ("us", 2), ("ns", 2)),
        Dimension.POWER: (("kW", 2), ("W", 0)),
    }.items()
}


def unit_of(value: float, dimension: Dimension) -> Unit:
    """Return the unit in which a value is printed: the largest that it holds one of, else the smallest."""
    units = UNITS[dimension]
    return next((one for one in units if one.size <= value), units[-1])


def rounded_up(value: float, dimension: Dimension) -> str:
    """Return the least printed value that is no less than ``value``.

    >>> rounded_up(1234.5, Dimension.TIME)
    '20.58 min'
    """
    unit = unit_of(value, dimension)
    number = ceil(value / unit.step) - 1
    while parse(unit.text(number), dimension) < value:
        number += 1
    return unit.text(number)


# --- A value that may give way, and the words that all of them share


class Asked(Protocol):
    """Who answers whether a question has an answer; ``enough_bytes``: memory with which that asked first has one."""

    enough_bytes: float

    def is_feasible(self, problem: Problem) -> bool | None:
        """Whether there is a plan; None where a limit struck first."""
        ...

    def best(self, problem: Problem) -> Plan | None:
        """Return the best plan; None where there is none, or a limit struck first."""
        ...


@frozen
class Relaxable:
    """One value of the user's, or one fact of the hardware, that may give way."""

    field: str  # its path in the spec
    given: str  # its value, as the user wrote it, or would write it
    turn: int  # when a conflict drops it: of two that would both do, the one with the lower number goes

    def without(self, problem: Problem) -> Problem:
        """Return the question without it."""
        raise NotImplementedError  # each value says it; conflicts ask all three of every one

    def changed(self, problem: Problem, value: str) -> Problem:
        """Return the question with another value of it, one that ``relaxed`` names."""
        raise NotImplementedError  # each value says it; conflicts ask all three of every one

    def relaxed(self, problem: Problem, asked: Asked) -> Relaxation:
        """Return the nearest values that would do; ``problem`` has no answer with it, and one without it."""
        raise NotImplementedError  # each value says it; conflicts ask all three of every one


def both_ways(
    member: Relaxable,
    value: int,
    most: int,
    is_feasible: Callable[[int], bool | None],
    is_any_feasible: Callable[[Sequence[int]], bool | None] | None = None,
    *,
    least: int = 1,
) -> Relaxation:
    """Return the nearest feasible number above and below a value; what is feasible need not stay so beyond.

    See :func:`first_feasible` for who answers; ``least``: the smallest number that means anything.
    """
    above, is_exact_above = first_feasible(range(value + 1, most + 1), is_feasible, is_any_feasible)
    below, is_exact_below = first_feasible(range(min(value - 1, most), least - 1, -1), is_feasible, is_any_feasible)
    found = sorted((one for one in (above, below) if one is not None), key=lambda one: abs(one - value))
    if not found:
        return unknown(member, is_exact=is_exact_above and is_exact_below)
    change = abs(found[0] - value) / (value or 1)
    return relaxation(member, [str(one) for one in found], is_exact=is_exact_above and is_exact_below, change=change)


def tried_each(member: Relaxable, problem: Problem, values: Sequence[str], asked: Asked) -> Relaxation:
    """Return which of some values would do, each tried by itself."""
    answers = [asked.is_feasible(member.changed(problem, value)) for value in values]
    enough = [value for value, answer in zip(values, answers, strict=True) if answer]
    is_exact = None not in answers
    return relaxation(member, enough, is_exact=is_exact) if enough else unknown(member, is_exact=is_exact)


def relaxation(
    member: Relaxable, values: Sequence[str], *, is_exact: bool, change: float | None = None, note: str = ""
) -> Relaxation:
    """Return what a member would have to be."""
    return Relaxation(
        field=member.field, given=member.given, values=tuple(values), is_exact=is_exact, change=change, note=note
    )


def unknown(member: Relaxable, *, is_exact: bool = False) -> Relaxation:
    """Return that no value is known; ``is_exact``: that there is none but leaving the constraint out."""
    late = "without it there is a plan; how little would do was not found within the time limit"
    return relaxation(member, (), is_exact=is_exact, note="no other value does; leave it out" if is_exact else late)


def limited(problem: Problem, **changes: object) -> Problem:
    """Return the question with other limits."""
    known: dict[str, Any] = changes
    return replace(problem, limits=replace(problem.limits, **known))


def as_written(problem: Problem, key: str, value: float, dimension: Dimension) -> str:
    """Return the value of a key of ``constraints`` (or ``key.part``) as the user wrote it, where it still is theirs."""
    words: object = problem.resolved.get("constraints")
    for part in key.split("."):
        words = words.get(part) if isinstance(words, Mapping) else None
    if isinstance(words, str) and parse(words, dimension) == value:
        return words
    return format_human(value, dimension, 4)
