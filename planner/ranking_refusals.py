"""Families that gave no plan: each with its reason, beside a plan or where there is none at all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.errors import InfeasibleError, NoAnswerError, PlannerError, SpecError
from planner.problem import Problem

__all__ = ["Entry", "Refusal", "no_plan", "refused_words"]


_MOST_WORDS = 160  # letters of a refusal in an explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A family on a network; ``bound`` is what no plan of it can beat."""

    problem: Problem
    family: str
    bound: float
    is_changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why there is no plan; ``is_open``: not because there is none, but because a limit struck.

    ``error``: what is wrong with the question, where that is the reason.
    """

    entry: Entry
    reason: str
    is_open: bool = False
    error: SpecError | None = None


def no_plan(refusals: Sequence[Refusal]) -> PlannerError:
    """Return why there is no plan at all: wrong input, a limit, or that nothing fits."""
    if wrong := _wrong_input(refusals):
        return wrong
    unanswered = [one for one in refusals if one.is_open]
    if not unanswered:
        return InfeasibleError(_reasons(refusals))
    closed = [one for one in refusals if not one.is_open]
    if not closed:
        return NoAnswerError(_reasons(refusals))
    lines = ["No plan was found, nor is it proven that there is none. Not known:", *_lines(unanswered)]
    return NoAnswerError("\n".join([*lines, "Known to have no plan:", *_lines(closed)]))


def _wrong_input(refusals: Sequence[Refusal]) -> SpecError | None:
    """Return the error of a question that every family refuses for one field of it, the same for all."""
    errors = [one.error for one in refusals if one.error is not None]
    if not errors or len(errors) < len(refusals):
        return None
    fields = {frozenset(fault.field for fault in error.faults) for error in errors}
    faults = dict.fromkeys(fault for error in errors for fault in error.faults)
    return SpecError.of(faults) if len(fields) == 1 and faults else None


def _lines(refusals: Sequence[Refusal]) -> list[str]:
    """Return the families with their reasons, an indented line or more for each."""
    found = dict.fromkeys(f"{_who(one)}: {one.reason}" for one in refusals)
    return [f"  {line}" for text in found for line in text.splitlines()]


def _reasons(refusals: Sequence[Refusal]) -> str:
    """Return why there is no plan at all, a line for each family; for changed networks only what differs."""
    lines: dict[tuple[str, str], str] = {}
    for one in refusals:
        lines.setdefault((one.entry.family, one.reason), f"{_who(one)}: {one.reason}")
    if len(lines) == 1:
        return refusals[0].reason
    return "\n".join(lines.values()) or "No plan fits: none of the allowed families can be searched. Allow others."


def _who(refusal: Refusal) -> str:
    """Return the family, and its network where that is a changed one."""
    taken = refusal.entry.problem.taken if refusal.entry.is_changed else ()
    return f"{refusal.entry.family} with {', '.join(taken)}" if taken else refusal.entry.family


def refused_words(refusals: Iterable[Refusal]) -> list[str]:
    """Return the families that give no plan, each with its reason in short, once."""
    lines: dict[tuple[str, str], str] = {}
    for one in refusals:
        lines.setdefault((one.entry.family, one.reason), f"{_who(one)} gives no plan: {_short(one.reason)}")
    return list(lines.values())


def _short(reason: str) -> str:
    """Return the first sentence or two of a reason, at most a line and a half."""
    text = " ".join(reason.split())
    if len(text) <= _MOST_WORDS:
        return text
    cut = text.rfind(". ", 0, _MOST_WORDS)
    return text[: cut + 1] if cut > 0 else f"{text[: _MOST_WORDS - 3].rsplit(' ', 1)[0]} ..."
