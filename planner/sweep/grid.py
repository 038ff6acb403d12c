"""The questions of a sweep: every combination of its axes, made one at a time when it is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from planner.sweep.paths import FieldPath, path_text, with_value

__all__ = ["Axis", "Grid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Fields that vary together: ``rows[i][j]`` is the ``i``-th value of field ``j``."""

    paths: tuple[FieldPath, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A base question and the axes that vary it; the last axis varies fastest."""

    base: Mapping[str, Any]
    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        """Return how many questions there are."""
        return prod(len(axis.rows) for axis in self.axes)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that vary, as they are written, in the order of the axes."""
        return tuple(path_text(path) for axis in self.axes for path in axis.paths)

    def places(self, position: int) -> tuple[int, ...]:
        """Return which row of each axis a question takes."""
        found = []
        for axis in reversed(self.axes):
            position, place = divmod(position, len(axis.rows))
            found.append(place)
        return tuple(reversed(found))

    def values(self, position: int) -> tuple[Any, ...]:
        """Return the values of :attr:`fields` in a question."""
        rows = (axis.rows[place] for axis, place in zip(self.axes, self.places(position), strict=True))
        return tuple(value for row in rows for value in row)

    def question(self, position: int) -> dict[str, Any]:
        """Return a question as plain data. It shares parts with others: change none of them.

        Raises
        ------
        ValueError
            If a value has no place, e.g. the third machine of two.
        """
        values = self.values(position)
        question: Any = dict(self.base)
        for index in self._order:
            question = with_value(question, self._paths[index], values[index])
        return dict(question)

    @cached_property
    def _paths(self) -> tuple[FieldPath, ...]:
        """The paths of all fields."""
        return tuple(path for axis in self.axes for path in axis.paths)

    @cached_property
    def _order(self) -> tuple[int, ...]:
        """Whole blocks first, then fields in them."""
        return tuple(sorted(range(len(self._paths)), key=lambda index: (len(self._paths[index]), index)))
