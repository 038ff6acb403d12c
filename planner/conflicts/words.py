"""What a diagnosis holds, and its words: each line is true by itself, and together they are a way to a plan."""

from collections.abc import Iterable
from dataclasses import dataclass

from planner.conflicts.constraint import Constraint
from planner.errors import Relaxation
from planner.problem import Problem

__all__ = ["Diagnosis", "Step", "Way", "diagnosis_lines", "names_of", "told_by"]

_ENDS = ("at least", "at most", "exactly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How far one member of a conflict would have to give.

    ``is_enough``: whether the question has an answer then, with the changes named before; None where nobody knows. If
    not, its own conflict is settled, and another one remains.
    """

    member: Constraint
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A conflict of the question with some ``changes``; ``is_minimal``: proven that no member can be missed."""

    ways: tuple[Way, ...]
    is_minimal: bool
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Conflicts, each one behind a change of the one before it; ``end``: what is left open, in words."""

    steps: tuple[Step, ...] = ()
    end: str = ""


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """Return the conflicts, and the ways out, as lines."""
    lines = []
    for step in found.steps:
        lines.append(_head(step))
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


def _head(step: Step) -> str:
    """Return which constraints conflict, and after which changes."""
    names = "; ".join(f"{way.row.field}: {way.row.given}" for way in step.ways)
    start = f"With {' and '.join(step.changes)}, still no plan fits" if step.changes else "No plan fits"
    return f"{start}: {_how_many(step)}: {names}."


def _how_many(step: Step) -> str:
    """Return how many constraints conflict, and what is proven of them."""
    number = len(step.ways)
    if not step.is_minimal:
        these = f"these {number} constraints conflict" if number > 1 else "one constraint leaves none"
        return f"{these} (not proven minimal within the time limit)"
    return "one constraint leaves none" if number == 1 else f"these {number} constraints conflict, and no fewer of them"


def _lead(step: Step, is_enough: bool | None, number: int) -> str:
    """Return the line before the ways out of one kind."""
    which = "this" if number == 1 else "any one of these"
    if is_enough:
        text = f"{which} settles it:"
        return f"With that, {text}" if step.changes else _capital(text)
    if is_enough is None:
        return f"Not found within the time limit whether {which} settles it:"
    if any(way.is_enough for way in step.ways):
        return f"{_capital('this' if number == 1 else 'each of these')} alone is not enough:"
    return f"{_capital(which)} settles this conflict, but another one remains:"


def _way_out(row: Relaxation) -> str:
    """Return ``constraints.memory_per_device: 11 GiB -> 13.4 GiB``, with what is not proven."""
    if not row.values:
        return f"{row.field}: {row.given} ({row.note})"
    text = f"{row.field}: {row.given} -> {' or '.join(row.values)}"
    doubts = [] if row.is_exact else ["whether less does was not found within the time limit"]
    doubts += [row.note] if row.note else []
    return f"{text} ({'; '.join(doubts)})" if doubts else text


def _capital(text: str) -> str:
    """Return the text as the start of a sentence."""
    return text[0].upper() + text[1:]
