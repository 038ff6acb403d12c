"""Grids: a product of axes under rules, in levels from coarse to fine, and how nodes of one level become the next's."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats

__all__ = [
    "Axis",
    "Columns",
    "Grid",
    "Ints",
    "Level",
    "OverError",
    "Point",
    "Rule",
    "codes_of",
    "distinct",
    "length_of",
]

Ints = NDArray[np.int64]
Columns = Mapping[str, Ints]  # arrays of one length, by axis
Point = Mapping[str, int]

_MOST_CODES = 1 << 62
_MOST_TABLE = 1 << 20
_FEW_NAMES = 2  # of a rule that is asked once for all nodes of equal values
MOST_COUNTED = 20_000_000  # nodes times values of an axis that counting looks at: about a second


class OverError(Exception):
    """A bound or a cost was broken off, since the search is over: nothing is known of the nodes it was asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A decision: its name and the values that it may take."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition on the axes named; ``holds`` answers for arrays of their values."""

    names: tuple[str, ...]
    holds: Callable[[Columns], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Axes that are decided together, and a bound of the nodes that they make; None: nothing is known of them.

    A level without axes, which is not the first, has a tighter bound for the nodes of the level before.
    """

    axes: tuple[Axis, ...]
    bound: Callable[[Columns], Floats] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Levels from coarse to fine, and the rules that all points keep."""

    levels: tuple[Level, ...]
    rules: tuple[Rule, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, in their order."""
        return tuple(axis for level in self.levels for axis in level.axes)

    def expand(self, nodes: Columns, level: int) -> dict[str, Ints]:
        """Return the nodes of a level below some nodes of the level before; those of no axis are one."""
        found = dict(nodes)
        for axis in self.levels[level].axes:
            found = self._with(found, axis)
        return found

    def _with(self, nodes: Columns, axis: Axis) -> dict[str, Ints]:
        """Return nodes with one more axis decided, those that break a rule left out."""
        known = {*nodes, axis.name}
        rules = [rule for rule in self.rules if axis.name in rule.names and known.issuperset(rule.names)]
        values = np.array(axis.values, dtype=np.int64)
        may_be = np.ones((length_of(nodes), len(values)), dtype=bool)
        for rule in rules:
            if len(rule.names) <= _FEW_NAMES:
                may_be &= _table(rule, nodes, axis.name, values)
        owner, place = np.nonzero(may_be)
        for rule in rules:
            if len(rule.names) > _FEW_NAMES:
                asked = {name: values[place] if name == axis.name else nodes[name][owner] for name in rule.names}
                kept = rule.holds(asked)
                owner, place = owner[kept], place[kept]
        return {**{name: column[owner] for name, column in nodes.items()}, axis.name: values[place]}

    def count(self, most: int = MOST_COUNTED) -> int | None:
        """Return how many points there are, without listing them; None where counting would look at too many nodes.

        Axis by axis, those first after which later rules ask for fewest axes, of fewest values; nodes that agree in all
        of these are counted as one, with their number. What is too many is a number, not a time, so that the answer is
        the same on every machine.
        """
        left = {axis.name: axis for axis in self.axes}
        sizes = {name: len(axis.values) for name, axis in left.items()}
        is_small = prod(len(axis.values) for axis in left.values()) < np.iinfo(np.int64).max
        nodes: dict[str, Ints] = {}
        weights = np.ones(1, dtype=np.int64 if is_small else object)  # Python's integers do not overflow
        while left:
            asked = {one: self._needed([*nodes, one], left.keys() - {one}) for one in left}
            name = min(left, key=lambda one: (len(asked[one]), prod(sizes[key] for key in asked[one])))
            axis = left.pop(name)
            needed = asked[name]
            if not any(name in rule.names for rule in self.rules):
                weights = weights * len(axis.values)
                continue
            most -= len(weights) * len(axis.values)
            if most < 0:
                return None
            marked = self._with({**nodes, "": np.arange(len(weights))}, axis)
            weights = weights[marked.pop("")]
            nodes, weights = _merged({one: marked[one] for one in needed}, weights)
        return int(weights.sum())

    def _needed(self, decided: Sequence[str], left: Set[str]) -> list[str]:
        """Return which of the decided axes a rule asks for together with one that is left."""
        asked = {name for rule in self.rules if left & set(rule.names) for name in rule.names}
        return [name for name in decided if name in asked]


def length_of(nodes: Columns) -> int:
    """Return the number of nodes; no axis at all is one."""
    return len(next(iter(nodes.values()))) if nodes else 1


def _table(rule: Rule, nodes: Columns, name: str, values: Ints) -> "NDArray[np.bool_]":
    """Return which values of an axis go with each node by a rule on it and at most one axis more.

    Asked once for each value of the other axis: nodes are many, and their values few.
    """
    others = [one for one in rule.names if one != name]
    if not others:
        return np.asarray(rule.holds({name: values}))[None, :]
    known = _values_of(nodes[others[0]])
    asked = {others[0]: np.repeat(known, len(values)), name: np.tile(values, len(known))}
    table = np.asarray(rule.holds(asked)).reshape(len(known), len(values))
    return np.asarray(table[np.searchsorted(known, nodes[others[0]])])


def codes_of(columns: Sequence[Ints]) -> Ints:
    """Return one number for each row, equal for equal rows."""
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        values = _values_of(column)
        if size * len(values) >= _MOST_CODES:
            present, code = np.unique(code, return_inverse=True)
            size = len(present)
        code = code * len(values) + np.searchsorted(values, column)
        size *= len(values)
    return np.unique(code, return_inverse=True)[1]


def distinct(nodes: Columns, names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return the index of one node of each combination of some decisions, and for each node which."""
    code = np.zeros(length_of(nodes), dtype=np.int64)
    for name in names:
        column = nodes[name]
        size = int(column.max(initial=0)) + 1
        if size > _MOST_TABLE:
            values, column = np.unique(column, return_inverse=True)
            size = len(values)
        if int(code.max(initial=0)) >= _MOST_CODES // size:
            code = np.unique(code, return_inverse=True)[1]
        code = code * size + column
    _, first, back = np.unique(code, return_index=True, return_inverse=True)
    return first, back


def _values_of(column: Ints) -> Ints:
    """Return the values of a column, in order: by a table where they are small."""
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    if least < 0 or most > _MOST_TABLE:
        return np.unique(column)
    seen = np.zeros(most + 1, dtype=bool)
    seen[column] = True
    return np.flatnonzero(seen)


def _merged(nodes: Mapping[str, Ints], weights: "NDArray[Any]") -> "tuple[dict[str, Ints], NDArray[Any]]":
    """Return nodes with equal ones as one, and the sums of their weights."""
    if not nodes:
        return {}, weights.sum(keepdims=True) if len(weights) else np.zeros(1, dtype=weights.dtype)
    code = codes_of(list(nodes.values()))
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    sums = np.add.reduceat(weights[order], starts) if len(starts) else weights[:0]
    return {name: column[order[starts]] for name, column in nodes.items()}, sums
