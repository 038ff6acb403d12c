"""What readers of tables share: numbers of cells, and rows that stand twice, each with its line and its mend."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from planner.errors import Fault
from planner.importers.measured import MeasuredLayer

__all__ = ["doubled", "figure_of"]


def figure_of(path: Path, line: int, column: str, given: str, faults: list[Fault], *, example: str = "288202") -> float:
    """Return a finite number >= 0, or NaN and a fault."""
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        problem = f"{given!r:.80} is not a number >= 0."
        mend = f"Write e.g. {example}."
        faults.append(Fault(file=str(path), line=line, field=column, value=given[:80], problem=problem, mend=mend))
    return value


def doubled(path: Path, rows: Iterable[MeasuredLayer]) -> list[Fault]:
    """Return a fault for every row whose name stands twice."""
    every = list(rows)
    counts = Counter(row.name for row in every)
    return [
        Fault(
            file=str(path),
            line=row.line,
            value=row.name,
            problem=f"layer {row.name!r} stands twice.",
            mend="Rename one.",
        )
        for row in every
        if counts[row.name] > 1
    ]
