"""The answers of a sweep as rows: position, the values of the fields that vary, what was answered."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.letters import visible
from planner.sweep.answers import Answer
from planner.sweep.grid import Grid
from planner.sweep.question import Sweep
from planner.sweep.store import Store

__all__ = ["ANSWER_COLUMNS", "Row", "columns_of", "rows_of", "short"]

# What every row has beside the fields that vary; the wall time last, for it is no part of the answer.
ANSWER_COLUMNS = (
    "outcome",
    "objective_name",
    "objective",
    "bound",
    "gap",
    "family",
    "headline",
    "num_devices",
    "iteration_time_s",
    "time_s",
    "cost_usd",
    "error",
    "key",
    "wall_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question of a sweep and its answer; ``values`` are those of the grid's fields."""

    position: int
    values: tuple[Any, ...]
    answer: Answer

    def cells(self) -> list[Any]:
        """Return the cells of :func:`columns_of`."""
        found = self.answer
        told = [str(found.outcome) if name == "outcome" else getattr(found, name) for name in ANSWER_COLUMNS]
        return [self.position, *self.values, *told]


def columns_of(grid: Grid) -> list[str]:
    """Return the names of a row's cells; a field that bears the name of another column as ``question.objective``."""
    taken = {"position", *ANSWER_COLUMNS}
    return ["position", *(f"question.{name}" if name in taken else name for name in grid.fields), *ANSWER_COLUMNS]


def rows_of(sweep: Sweep, store: Store) -> Iterator[Row]:
    """Yield the answered questions of a sweep in the order of their positions."""
    for stored in store.rows(sweep.identity):
        if 0 <= stored.position < len(sweep.grid):
            values = sweep.grid.values(stored.position)
            yield Row(position=stored.position, values=values, answer=stored.answer)


def short(value: Any, width: int = 32) -> str:
    """Return a value of a field in a few words: a block of one key by its value, a list of one by its part.

    >>> short({"zoo": "vgg16"}), short(["spot"]), short([1, 2]), short("10 Gbit/s")
    ('vgg16', 'spot', '[1,2]', '10 Gbit/s')
    """
    while isinstance(value, dict | list) and len(value) == 1:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    line = visible(" ".join(text.split()))
    return line if len(line) <= width else f"{line[: width - 3]}..."
