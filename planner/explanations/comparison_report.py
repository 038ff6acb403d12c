"""A comparison of two plans as text for a terminal: which is better, what differs, and which terms decide."""

from collections.abc import Sequence

from planner.explanations.comparison import Comparison, Difference
from planner.report import table
from planner.words import part_words, time_words

__all__ = ["comparison_text"]

_MOST_ROWS = 9  # of decisions, of the question, of the terms


def comparison_text(comparison: Comparison, names: tuple[str, str]) -> str:
    """Return a comparison as at most some forty lines; ``names`` are what the user calls the plans."""
    lines = [
        *(_plan_line(comparison, names, index) for index in (0, 1)),
        _verdict(comparison, names),
        *(f"Mind: {warning}." for warning in comparison.warnings),
        "",
        *_differences("Decisions", comparison.decisions, names),
        *_differences("The question", comparison.question, names),
        *_terms(comparison, names),
    ]
    return "\n".join(lines).rstrip()


def _plan_line(comparison: Comparison, names: tuple[str, str], index: int) -> str:
    """Return one plan in a line."""
    name = comparison.objective_names[index].removesuffix("_s").replace("_", " ")
    return f"{names[index]}: {name} {time_words(comparison.objectives[index])}, {comparison.headlines[index]}"


def _verdict(comparison: Comparison, names: tuple[str, str]) -> str:
    """Return which plan is better, and by how much."""
    if comparison.better is not None:
        better, worse = names[comparison.better], names[1 - comparison.better]
        return f"{better} is better: it saves {comparison.saving:.2%} of what {worse} takes."
    if comparison.objective_names[0] != comparison.objective_names[1]:
        return "Neither is better: they do not minimise the same."
    return "Both take the same."


def _differences(title: str, rows: Sequence[Difference], names: tuple[str, str]) -> list[str]:
    """Return differences as a table."""
    if not rows:
        return [f"{title}: the same", ""]
    shown = [
        {title: one.name, **{name: _cell(value) for name, value in zip(_two(names), one.values, strict=True)}}
        for one in rows[:_MOST_ROWS]
    ]
    return [table(shown), *_and_more(len(rows)), ""]


def _terms(comparison: Comparison, names: tuple[str, str]) -> list[str]:
    """Return the terms that decide, and their sum."""
    if not comparison.terms:
        return []
    first, second = _two(names)
    shown = [
        {
            "Where the time goes": part_words(one.name),
            first: time_words(one.seconds[0]),
            second: time_words(one.seconds[1]),
            "difference": _signed(one.difference_s),
        }
        for one in comparison.terms
        if any(one.seconds)
    ]
    total = {
        "Where the time goes": "in all",
        first: time_words(comparison.objectives[0]),
        second: time_words(comparison.objectives[1]),
        "difference": _signed(comparison.objectives[1] - comparison.objectives[0]),
    }
    return [table([*shown[:_MOST_ROWS], total]), *_and_more(len(shown))]


def _two(names: tuple[str, str]) -> tuple[str, str]:
    """Return two headings that are not the same."""
    return names if names[0] != names[1] else (f"{names[0]} (first)", f"{names[1]} (second)")


def _and_more(number: int) -> list[str]:
    """Return how many rows are left out."""
    return [f"... and {number - _MOST_ROWS} more; --json has all"] if number > _MOST_ROWS else []


def _cell(value: object) -> str:
    """Return a value of at most some words; a dash for none."""
    text = "-" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _signed(seconds: float) -> str:
    """Return a difference of times."""
    return "0 s" if seconds == 0 else f"{'+' if seconds > 0 else '-'}{time_words(abs(seconds))}"
