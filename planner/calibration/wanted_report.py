"""What to measure, as text."""

import math

from planner.calibration.wanted import Wanted, WantedMeasurements
from planner.explanations.sensitivity import headline

__all__ = ["measurements_text"]


def measurements_text(found: WantedMeasurements) -> str:
    """Return the answer: what decides between plans and how to measure it, and what only sharpens the prediction."""
    lines = [f"The plan in hand: {headline(found.plan)}"]
    if found.deciding:
        number = len(found.deciding)
        lines += ["", f"Measure first: {number} figure{'s' * (number > 1)} can change which plan is best"]
        for place, row in enumerate(found.deciding, start=1):
            lines += [f"  {place}. {row.words}: {_words(row)}", f"     {row.how}"]
    else:
        lines += [
            "",
            "Nothing within these ranges changes which plan is best: measuring sharpens the prediction alone.",
        ]
    rest = [row for row in found.rows if row not in found.deciding]
    if rest:
        lines += ["", "Of these the prediction changes, the plan does not"]
        lines += [f"  {row.words} ({row.low:g} to {row.high:g} times): by {row.spread:.1%}{_note(row)}" for row in rest]
    return "\n".join(lines)


def _words(row: Wanted) -> str:
    """Return what one figure decides."""
    if not row.rival:
        return f"between {row.low:g} and {row.high:g} times what is counted with, the plan may not be one{_note(row)}"
    side = "below" if row.turns_at is not None and row.turns_at < 1 else "above"
    turn = (
        f"{side} {row.turns_at:.2f} times" if row.turns_at is not None else f"within {row.low:g} to {row.high:g} times"
    )
    if math.isinf(row.regret):
        return f"{turn} what is counted with, the plan is none any more, and best is {row.rival}{_note(row)}"
    return f"{turn} what is counted with, {row.rival} is faster, by up to {row.regret:.1%}{_note(row)}"


def _note(row: Wanted) -> str:
    """Return what was not answered."""
    return f" ({row.note})" if row.note else ""
