"""An explanation as text for a terminal."""

from collections.abc import Sequence

from planner.explanations.explanation import Explanation
from planner.explanations.sensitivity import LEFT_OUT, Sensitivity
from planner.plan import Alternative
from planner.solution import Status
from planner.words import part_words, time_words

__all__ = ["explanation_text", "in_short"]

_NOTHING = 5e-4  # a share of the objective below which a change brings nothing to speak of
_MOST_TERMS = 7
_MOST_CHANGES = 12
_MOST_NAMED = 3
_WIDTH = 110


def explanation_text(explanation: Explanation) -> str:
    """Return an explanation as at most some forty lines."""
    plan = explanation.plan
    lines = [
        f"{explanation.title}: {explanation.headline}",
        f"{plan.goal.name.replace('_', ' ')} {time_words(plan.objective)}; {explanation.proof}.",
        "",
        "What binds",
        *(f"  {_cut(line)}" for line in explanation.binding[:4]),
        "",
        "Where an iteration's time goes",
        *_terms(explanation),
        "",
        "What other hardware would bring, planned anew",
        *_changes(explanation),
        *_in_short(explanation),
        "",
        "Who came second",
        *_seconds(explanation.runners_up),
        *(f"  {_cut(line)}" for line in explanation.refusals[:4]),
        *([f"Mind: {'; '.join(explanation.warnings)}."] if explanation.warnings else []),
    ]
    return "\n".join(lines)


def in_short(sensitivities: Sequence[Sensitivity]) -> str:
    """Return the largest savings as one sentence, or that there is none.

    >>> network = Sensitivity(name="a", words="a network twice as fast", saving=0.31)
    >>> device = Sensitivity(name="b", words="a100 twice as fast", saving=0.04)
    >>> in_short([network, device])
    'a network twice as fast would save 31%, a100 twice as fast 4%'
    """
    named = [one for one in sensitivities if one.saving is not None and one.saving >= _NOTHING][:_MOST_NAMED]
    if all(one.saving is None for one in sensitivities):
        return "nothing could be told in this time"
    if not named:
        is_open = any(one.saving is not None and not one.is_proven for one in sensitivities)
        return f"none of these changes {'was found to' if is_open else 'would'} save anything"
    first, *others = named
    texts = [f"{first.words} would save {_share(first.saving or 0.0)}"]
    return ", ".join([*texts, *(f"{one.words} {_share(one.saving or 0.0)}" for one in others)])


def _terms(explanation: Explanation) -> list[str]:
    """Return the terms of an iteration, the largest first."""
    rows = [row for row in explanation.breakdown if row[2] > 1e-6]
    lines = [f"  {part_words(name):26} {time_words(s):>9}  {share:6.1%}" for name, s, share in rows[:_MOST_TERMS]]
    return [*lines, *([f"  ... and {len(rows) - _MOST_TERMS} more"] if len(rows) > _MOST_TERMS else [])]


def _changes(explanation: Explanation) -> list[str]:
    """Return what each change would bring, the largest saving first."""
    rows = explanation.sensitivities
    lines = [_cut(_change(one)) for one in rows[:_MOST_CHANGES]]
    return [*lines, *([f"  ... and {len(rows) - _MOST_CHANGES} more; --json has all"] if rows[_MOST_CHANGES:] else [])]


def _change(one: Sensitivity) -> str:
    """Return one change as a line."""
    if one.saving is None:
        return f"  {'':14} {one.words}: {one.note}"
    then = f", then {one.plan}" if one.is_other_plan else ""
    return f"  {_effect(one):14} {one.words}{then}"


def _effect(one: Sensitivity) -> str:
    """Return ``saves 31%``, ``costs 5%`` or ``nothing``, as far as it is proven."""
    saving = one.saving or 0.0
    if abs(saving) < _NOTHING:
        return "nothing" if one.is_proven else "saves >= 0"
    if saving > 0:
        return f"saves {'' if one.is_proven else '>= '}{_share(saving)}"
    return f"costs {'' if one.is_proven else '<= '}{_share(-saving)}"


def _in_short(explanation: Explanation) -> list[str]:
    """Return the savings in a sentence, and a doubt where the plan itself is not proven best."""
    rows = explanation.sensitivities
    lines = [f"  In short: {in_short(rows)}."]
    if left_out := sum(one.note.startswith(LEFT_OUT) for one in rows):
        lines.append(f"  Interrupted: {left_out} of {len(rows)} changes were left out.")
    if explanation.plan.status is not Status.OPTIMAL:
        lines.append("  The plan is not proven best: part of a saving may be what a longer search would find anyway.")
    return lines


def _seconds(runners_up: Sequence[Alternative]) -> list[str]:
    """Return the runner-up of each family."""
    if not runners_up:
        return ["  nothing else was weighed"]
    return [_cut(f"  {_loss(one):>8}  {_of(one)}: {one.reason}") for one in runners_up]


def _of(one: Alternative) -> str:
    """Return an alternative with its family, where its name does not hold it."""
    return one.name if one.family in one.name else f"{one.family}, {one.name}"


def _loss(one: Alternative) -> str:
    """Return how much more an alternative takes."""
    return f"{one.relative_loss:+.1%}" if one.relative_loss > _NOTHING else "the same"


def _share(share: float) -> str:
    """Return a share: whole per cents where there are several."""
    return f"{share:.0%}" if abs(share) >= 0.0095 else f"{share:.1%}"


def _cut(line: str) -> str:
    """Return a line of at most a terminal's width."""
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
