"""What a sweep found, as text for a terminal and as a JSON document."""

from collections.abc import Sequence
from typing import Any

from planner.report import table
from planner.sweep.answers import Outcome
from planner.sweep.grid import Grid
from planner.sweep.rows import Row, columns_of, short
from planner.sweep.summary import Effect, Reason, Summary
from planner.units import Dimension, format_human

__all__ = ["counts_text", "summary_document", "summary_text"]

_MOST_VALUES = 12  # of one field in the table of effects
_WORDS = {
    Outcome.OPTIMAL: "proven optimal",
    Outcome.FEASIBLE: "with a plan that is not proven",
    Outcome.INFEASIBLE: "without any plan, proven",
    Outcome.WRONG: "wrong",
    Outcome.LIMIT: "stopped by a limit",
    Outcome.FAILED: "failed",
}
_DIMENSIONS = (("_usd", Dimension.MONEY), ("_s", Dimension.TIME), ("_j", Dimension.ENERGY))


def counts_text(number: int, counts: dict[Outcome, int]) -> str:
    """Return how many questions ended how, in a line."""
    answered = sum(counts.values())
    parts = ", ".join(f"{count} {_WORDS[outcome]}" for outcome, count in counts.items())
    head = f"{number} questions" if answered == number else f"{answered} of {number} questions"
    return f"{head}: {parts}" if parts else f"{number} questions, none of them answered yet"


def summary_text(found: Summary, grid: Grid) -> str:
    """Return a summary as text, without colour."""
    lines = [counts_text(found.number, found.counts)]
    if found.objective_name is not None:
        lines += ["", f"Best by {found.objective_name}", *_indented(_best(found, grid))]
        lines += _others(found)
        lines += _pareto(found, grid)
        lines += ["", f"What each field does to {found.objective_name}", *_effects(found)]
    lines += _reasons(found.reasons)
    return "\n".join(lines)


def _others(found: Summary) -> list[str]:
    """Say which answers are not compared."""
    if not found.num_other_objectives:
        return []
    return [f"  {found.num_other_objectives} answers have another objective and are not compared."]


def _indented(text: str) -> list[str]:
    """Return lines two to the right."""
    return [f"  {line}" for line in text.splitlines()]


def _amount(value: float | None, name: str) -> str:
    """Return a quantity for reading, by the unit that its name ends in."""
    if value is None:
        return ""
    found = next((dimension for end, dimension in _DIMENSIONS if name.endswith(end)), None)
    return f"{value:.6g}" if found is None or value < 0 else format_human(value, found, 4)


def _row(row: Row, grid: Grid, columns: Sequence[str], objective_name: str) -> dict[str, object]:
    """Return a row for reading: its fields, then some columns of its answer."""
    cells: dict[str, object] = {"#": row.position}
    cells |= {name: short(value) for name, value in zip(grid.fields, row.values, strict=True)}
    for name in columns:
        value = getattr(row.answer, name)
        label = objective_name if name == "objective" else name
        is_number = isinstance(value, float)
        cells[label] = _amount(value, label) if is_number else "" if value is None else short(value, 48)
    return cells


def _best(found: Summary, grid: Grid) -> str:
    """Return the table of the best rows."""
    name = found.objective_name or ""
    return table([_row(row, grid, ("objective", "outcome", "family", "headline"), name) for row in found.best])


def _pareto(found: Summary, grid: Grid) -> list[str]:
    """Return the table of the trade-off."""
    if found.pareto_columns is None:
        return []
    name = found.objective_name or ""
    columns = tuple(dict.fromkeys([*found.pareto_columns, "headline"]))
    labels = [name if one == "objective" else one for one in found.pareto_columns]
    if len(found.pareto) == 1:
        return ["", f"#{found.pareto[0].position} is the best in both {labels[0]} and {labels[1]}."]
    rows = table([_row(row, grid, columns, name) for row in found.pareto])
    return ["", f"None is better in both {labels[0]} and {labels[1]} ({len(found.pareto)} rows)", *_indented(rows)]


def _effects(found: Summary) -> list[str]:
    """Return a table of values for each field, or for those that vary together."""
    lines = []
    for names, effects in found.effects:
        shown = effects if len(effects) <= _MOST_VALUES else [*effects[: _MOST_VALUES - 1], effects[-1]]
        rows = [_effect(names, one, found.objective_name or "") for one in shown]
        lines += _indented(table(rows))
        if len(shown) < len(effects):
            lines.append(f"  ({len(effects) - len(shown)} values between the last two are left out)")
        lines.append("")
    return [
        *lines[:-1],
        "  Against the first value that has a plan, all else equal, over the pairs that both have one.",
    ]


def _effect(names: Sequence[str], one: Effect, objective_name: str) -> dict[str, object]:
    """Return the line of a value."""
    cells: dict[str, object] = {name: short(value) for name, value in zip(names, one.value, strict=True)}
    ratio = "" if one.ratio is None else f"x {one.ratio:.4g}"
    return {
        **cells,
        objective_name: ratio,
        "pairs": one.num_pairs,
        "plans": one.num_answered,
        "best": _amount(one.best, objective_name),
    }


def _reasons(reasons: Sequence[Reason]) -> list[str]:
    """Return why questions have no plan."""
    if not reasons:
        return []
    lines = ["", "Questions without a plan, by their reason"]
    for one in reasons:
        lines.append(f"  {one.number} x {_WORDS[one.outcome]}, the first is #{one.position}:")
        lines += [f"      {line}" for line in one.example.splitlines()[:3]]
    return lines


def summary_document(found: Summary, grid: Grid, *, identity: str, is_complete: bool) -> dict[str, Any]:
    """Return ``planner.sweep/1``."""
    names = columns_of(grid)
    return {
        "schema": "planner.sweep/1",
        "identity": identity,
        "fields": list(grid.fields),
        "number": found.number,
        "is_complete": is_complete,
        "counts": {str(outcome): number for outcome, number in found.counts.items()},
        "wall_s": found.wall_s,
        "objective_name": found.objective_name,
        "num_other_objectives": found.num_other_objectives,
        "best": [dict(zip(names, row.cells(), strict=True)) for row in found.best],
        "pareto": None
        if found.pareto_columns is None
        else {
            "columns": list(found.pareto_columns),
            "rows": [dict(zip(names, row.cells(), strict=True)) for row in found.pareto],
        },
        "effects": [
            {"fields": list(fields), "values": [_effect_document(one) for one in effects]}
            for fields, effects in found.effects
        ],
        "failures": [_reason_document(one) for one in found.reasons],
    }


def _effect_document(one: Effect) -> dict[str, Any]:
    """Return what a value does."""
    return {
        "value": list(one.value),
        "ratio": one.ratio,
        "num_pairs": one.num_pairs,
        "num_answered": one.num_answered,
        "best": one.best,
    }


def _reason_document(one: Reason) -> dict[str, Any]:
    """Return why questions have no plan."""
    return {
        "outcome": str(one.outcome),
        "reason": one.words,
        "number": one.number,
        "position": one.position,
        "example": one.example,
    }
