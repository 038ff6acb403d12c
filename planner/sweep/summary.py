"""What a sweep found: counts, best rows, the trade-off of two columns, what each field does, why questions failed."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.sweep.answers import Outcome
from planner.sweep.question import Sweep
from planner.sweep.rows import Row, rows_of
from planner.sweep.store import Store

__all__ = ["Effect", "Reason", "Summary", "pareto", "summary_of"]

_MOST_BEST = 10
_MOST_LOG = 700.0  # of a ratio that is a float
_MOST_REASONS = 10
_MOST_KEPT = 100_000  # different reasons that are told apart
_PAIRS = (("time_s", "cost_usd"), ("objective", "num_devices"))  # of a trade-off, the first that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a value of a field does, all else equal, against the first value of its axis that has any plan.

    Attributes
    ----------
    ratio
        Geometric mean of the objective over that with that value, over all settings of the other axes in which
        both were answered; None where there are none.
    num_pairs
        How many these are.
    num_answered
        Questions with this value that have a plan.
    best
        The least objective of them.
    """

    value: tuple[Any, ...]
    ratio: float | None
    num_pairs: int
    num_answered: int
    best: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why questions have no plan, their numbers left out; ``example``: of the first of them, at its position."""

    outcome: Outcome
    words: str
    number: int
    position: int
    example: str


@dataclass(slots=True, kw_only=True)
class Summary:
    """What a sweep found; ``objective_name``: of most of its answers, which alone are compared."""

    number: int
    counts: dict[Outcome, int]
    wall_s: float
    objective_name: str | None = None
    num_other_objectives: int = 0
    best: list[Row] = field(default_factory=list)
    pareto_columns: tuple[str, str] | None = None
    pareto: list[Row] = field(default_factory=list)
    effects: list[tuple[tuple[str, ...], list[Effect]]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)


def summary_of(sweep: Sweep, store: Store, *, num_best: int = _MOST_BEST) -> Summary:
    """Return what a sweep found so far."""
    counts = store.counts(sweep.identity)
    names: Counter[str] = Counter()
    reasons: dict[tuple[Outcome, str], Reason] = {}
    wall_s = 0.0
    for row in rows_of(sweep, store):
        wall_s += row.answer.wall_s
        if row.answer.objective_name is not None and row.answer.objective is not None:
            names[row.answer.objective_name] += 1
        elif row.answer.error is not None and len(reasons) < _MOST_KEPT:
            _note_reason(reasons, row)
    found = Summary(number=len(sweep.grid), counts=counts, wall_s=wall_s)
    found.reasons = sorted(reasons.values(), key=lambda one: (-one.number, one.position))[:_MOST_REASONS]
    if names:
        name, number = min(names.items(), key=lambda pair: (-pair[1], pair[0]))
        found.objective_name, found.num_other_objectives = name, names.total() - number
        _compare(sweep, store, found, num_best)
    return found


def _compare(sweep: Sweep, store: Store, found: Summary, num_best: int) -> None:
    """Fill in what compares the answers of one objective."""
    objectives = np.full(len(sweep.grid), np.nan)
    firsts: dict[tuple[str, str], list[Row]] = {pair: [] for pair in _PAIRS}
    best: list[Row] = []
    for row in rows_of(sweep, store):
        if row.answer.objective_name != found.objective_name or row.answer.objective is None:
            continue
        objectives[row.position] = row.answer.objective
        best = nsmallest(num_best, [*best, row], key=_rank)
        for pair, rows in firsts.items():
            _add_to_front(rows, row, pair)
    found.best = best
    found.effects = _effects(sweep, objectives)
    known = [pair for pair in _PAIRS if firsts[pair]]
    if known:
        found.pareto_columns = known[0]
        found.pareto = pareto(firsts[known[0]], known[0])


def _rank(row: Row) -> tuple[float, int]:
    """Order rows by their objective; equal ones by their position."""
    assert row.answer.objective is not None
    return row.answer.objective, row.position


def _point(row: Row, columns: tuple[str, str]) -> tuple[float, float] | None:
    """Return a row's two numbers, if it has both."""
    first, second = (getattr(row.answer, name) for name in columns)
    return None if first is None or second is None else (float(first), float(second))


def _add_to_front(rows: list[Row], row: Row, columns: tuple[str, str]) -> None:
    """Add a row to those that none beats, and drop those that it beats; equal ones stay by the first of them."""
    point = _point(row, columns)
    if point is None:
        return
    points = [_point(one, columns) for one in rows]
    if any(one is not None and one[0] <= point[0] and one[1] <= point[1] for one in points):
        return
    pairs = zip(rows, points, strict=True)
    rows[:] = [one for one, at in pairs if at is not None and not (point[0] <= at[0] and point[1] <= at[1])]
    rows.append(row)


def pareto(rows: Sequence[Row], columns: tuple[str, str]) -> list[Row]:
    """Return the rows that no other beats in both columns, the least of the first column first."""
    front: list[Row] = []
    for row in rows:
        _add_to_front(front, row, columns)
    return sorted(front, key=lambda row: (_point(row, columns) or (0.0, 0.0), row.position))


def _effects(sweep: Sweep, objectives: NDArray[np.float64]) -> list[tuple[tuple[str, ...], list[Effect]]]:
    """Return what every axis of more than one row does."""
    shape = [len(axis.rows) for axis in sweep.grid.axes]
    table = objectives.reshape(shape)
    found = []
    start = 0
    for index, axis in enumerate(sweep.grid.axes):
        names = sweep.grid.fields[start : start + len(axis.paths)]
        start += len(axis.paths)
        if len(axis.rows) > 1:
            lines = np.moveaxis(table, index, 0).reshape(len(axis.rows), -1)
            first = next((line for line in lines if not np.isnan(line).all()), lines[0])
            effects = [_effect(value, first, line) for value, line in zip(axis.rows, lines, strict=True)]
            found.append((names, effects))
    return found


def _effect(value: tuple[Any, ...], first: NDArray[np.float64], line: NDArray[np.float64]) -> Effect:
    """Return what one value does against another, where both have positive objectives."""
    is_answered = ~np.isnan(line)
    pairs = [(a, b) for a, b in zip(first.tolist(), line.tolist(), strict=True) if a > 0 and b > 0]
    mean = sum(log(b) - log(a) for a, b in pairs) / len(pairs) if pairs else None
    ratio = exp(mean) if mean is not None and abs(mean) < _MOST_LOG else None
    best = float(line[is_answered].min()) if is_answered.any() else None
    return Effect(value=value, ratio=ratio, num_pairs=len(pairs), num_answered=int(is_answered.sum()), best=best)


_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def _note_reason(reasons: dict[tuple[Outcome, str], Reason], row: Row) -> None:
    """Count a row with those that failed for the same reason, whatever their numbers."""
    text = (row.answer.error or "").strip()
    words = _NUMBER.sub("#", text.splitlines()[0] if text else "no reason was given")
    known = reasons.get((row.answer.outcome, words))
    reasons[row.answer.outcome, words] = Reason(
        outcome=row.answer.outcome,
        words=words,
        number=1 if known is None else known.number + 1,
        position=row.position if known is None else known.position,
        example=text if known is None else known.example,
    )
