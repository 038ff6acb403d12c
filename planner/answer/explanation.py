"""The explanation of a plan for a terminal: what binds, what other hardware would bring, and the alternatives.

On a page the explanation stands in the answer of its plan: see :mod:`planner.answer.plan`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.sections import Answer, Section
from planner.solution import Status
from planner.words import cut, term_words, time_words

if TYPE_CHECKING:
    from planner.explanation import Explanation, Sensitivity

LEFT_OUT = "left out: interrupted"  # how the note of a change begins that was not answered because of Ctrl-C
_NOTHING = 5e-4  # a share of the objective below which a change brings nothing to speak of
_MOST_TERMS = 7
_MOST_CHANGES = 12
_MOST_NAMED = 3
_MOST_LINES = 4
_WIDTH = 110


def explanation_answer(found: "Explanation") -> Answer:
    """Return an explanation as an answer."""
    plan, rows = found.plan, found.sensitivities
    terms = [row for row in found.breakdown if row[2] > 1e-6]
    shares = [f"  {term_words(name):30} {time_words(s):>9}  {share:6.1%}" for name, s, share in terms[:_MOST_TERMS]]
    changes = []
    for one in rows[:_MOST_CHANGES]:
        then = f": {one.note}" if one.saving is None else f", then {one.plan}" * one.is_other_plan
        changes.append(cut(f"  {effect_words(one):14} {one.words}{then}", _WIDTH))
    seconds = []
    for other in found.runners_up:
        loss = f"{other.relative_loss:+.1%}" if other.relative_loss > _NOTHING else "the same"
        name = other.name if other.family in other.name else f"{other.family}, {other.name}"
        seconds.append(cut(f"  {loss:>8}  {name}: {other.reason}", _WIDTH))
    told = {
        "What binds": [f"  {cut(line, _WIDTH)}" for line in found.binding[:_MOST_LINES]],
        "Where an iteration's time goes": [*shares, *_more(len(terms), _MOST_TERMS, "")],
        "What other hardware would bring, planned anew": [
            *changes,
            *_more(len(rows), _MOST_CHANGES, "; --json has all"),
            *_in_short(found),
        ],
        "Alternatives considered": [
            *(seconds or ["  nothing else was considered"]),
            *(f"  {cut(line, _WIDTH)}" for line in found.refusals[:_MOST_LINES]),
            *([f"Warnings: {'; '.join(found.warnings)}."] if found.warnings else []),
        ],
    }
    title = f"{found.title}: {found.headline}"
    verdict = f"{plan.goal.name.replace('_', ' ')} {time_words(plan.objective)}; {found.proof}."
    return Answer(
        title=title,
        answer=verdict,
        opening=[title, verdict],
        sections=[Section(name="", title=head, lines=[head, *lines]) for head, lines in told.items()],
    )


def savings_words(sensitivities: Sequence["Sensitivity"]) -> str:
    """Return the largest savings as one sentence, or that there is none."""
    named = [one for one in sensitivities if one.saving is not None and one.saving >= _NOTHING][:_MOST_NAMED]
    if all(one.saving is None for one in sensitivities):
        return "nothing could be told in this time"
    if not named:
        is_open = any(one.saving is not None and not one.is_proven for one in sensitivities)
        return f"none of these changes {'was found to' if is_open else 'would'} save anything"
    first, *others = named
    texts = [f"{first.words} would save {_share(first.saving or 0.0)}"]
    return ", ".join([*texts, *(f"{one.words} {_share(one.saving or 0.0)}" for one in others)])


def _more(number: int, most: int, where: str) -> list[str]:
    """Return how many lines are left out."""
    return [f"  ... and {number - most} more{where}"] if number > most else []


def effect_words(one: "Sensitivity") -> str:
    """Return what a change would bring, as far as it is proven; nothing where that is not known."""
    if one.saving is None:
        return ""
    if abs(one.saving) < _NOTHING:
        return "nothing" if one.is_proven else "saves >= 0"
    if one.saving > 0:
        return f"saves {'' if one.is_proven else '>= '}{_share(one.saving)}"
    return f"costs {'' if one.is_proven else '<= '}{_share(-one.saving)}"


def _in_short(found: "Explanation") -> list[str]:
    """Return the savings in a sentence, and a warning where the plan itself is not proven best."""
    rows = found.sensitivities
    lines = [f"  In short: {savings_words(rows)}."]
    if left_out := sum(one.note.startswith(LEFT_OUT) for one in rows):
        lines.append(f"  Interrupted: {left_out} of {len(rows)} changes were left out.")
    if found.plan.status is not Status.OPTIMAL:
        lines.append("  The plan is not proven best: part of a saving may be what a longer search would find anyway.")
    return lines


def _share(share: float) -> str:
    """Return a share: whole per cents where there are several."""
    return f"{share:.0%}" if abs(share) >= 0.0095 else f"{share:.1%}"
