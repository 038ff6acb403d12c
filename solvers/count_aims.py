"""What a search of counts wants: the least of one criterion, or the front of two. Both cut what cannot matter."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

import numpy as np

from planner.cost import Floats
from planner.search import Search
from planner.solvers.count_question import Bools, Counts
from planner.solvers.pareto import front, front_factors

__all__ = ["Aim", "Candidate", "Front", "Least"]

_SHARE = 0.25  # of the front: points that lie close to known ones can wait for their box's turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A point that keeps everything, what it costs, and the ``t`` that its payload reaches."""

    root: int
    counts: Counts
    criteria: tuple[float, ...]
    t: float
    payload: Any

    @property
    def order(self) -> tuple[tuple[float, ...], int, Counts]:
        """By criteria, then root, then counts."""
        return self.criteria, self.root, self.counts


class Aim(Protocol):
    """What is cut, what comes first, and what was left out unproven."""

    def copied(self) -> "Aim":
        """Return the same aim, which goes its own way from now on."""
        ...

    def is_cut(self, bounds: Floats, /) -> Bools:
        """Return which boxes, of which nothing has less criteria than these, need no look."""
        ...

    def keys(self, bounds: Floats, /) -> Floats:
        """Return what orders boxes, least first; a candidate more never lowers it."""
        ...

    def gains(self, criteria: Floats, /) -> Floats:
        """Return the factor by which points of these criteria would beat what is known; 0 where they may not be."""
        ...

    def offer(self, candidate: Candidate, /) -> None:
        """Take in a point that was found."""
        ...

    def leave(self, bounds: Floats, /) -> None:
        """Take note that boxes were left: cut, settled, or not come to."""
        ...

    @property
    def is_enough(self) -> bool:
        """Whether to stop with what there is."""
        ...

    @property
    def limits(self) -> Floats:
        """Of the criteria."""
        ...

    @property
    def share(self) -> float:
        """A point is asked about for its own sake where its gain is this share of what its box might gain."""
        ...


@dataclass(slots=True)
class Least:
    """The least first criterion."""

    limits: Floats
    search: Search
    tolerance: float
    best: Candidate | None = None
    left: float = inf  # no point in a box that was left has less
    share: float = 0.0  # every better incumbent is welcome

    @property
    def objective(self) -> float:
        """Of the incumbent."""
        return self.best.criteria[0] if self.best is not None else inf

    @property
    def is_enough(self) -> bool:
        """Whether the incumbent is as good as was asked for."""
        return self.best is not None and self.objective <= self.search.good_enough

    def copied(self) -> "Least":
        """Return the same aim, which goes its own way."""
        return copy(self)

    def is_cut(self, bounds: Floats, /) -> Bools:
        """Cut what breaks a limit or does not beat the incumbent by more than the tolerance."""
        enough = min(self.objective * (1 - self.tolerance), self.search.cutoff) if self.best is not None else inf
        return np.asarray((bounds > self.limits).any(axis=1) | (bounds[:, 0] >= enough))

    def keys(self, bounds: Floats, /) -> Floats:
        """Order by the bound of the objective."""
        return bounds[:, 0]

    def gains(self, criteria: Floats, /) -> Floats:
        """Of the first criterion; where there is no incumbent one over it, which is as good for comparing."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            gains = (self.objective if self.best is not None else np.finfo(float).max) / criteria[:, 0]
        return np.where((criteria <= self.limits).all(axis=1), gains, 0.0)

    def offer(self, candidate: Candidate, /) -> None:
        """Keep the better one."""
        if self.best is None or candidate.order < self.best.order:
            self.best = candidate

    def leave(self, bounds: Floats, /) -> None:
        """Remember the least that a box within the limits could have."""
        within = (bounds <= self.limits).all(axis=1)
        self.left = min(self.left, float(bounds[within, 0].min(initial=inf)))


@dataclass(slots=True)
class Front:
    """The points that nobody dominates in the first two criteria."""

    limits: Floats
    search: Search
    tolerance: float
    archive: list[Candidate] = field(default_factory=list)
    share: float = _SHARE
    _points: Floats = field(init=False)
    _left: list[Floats] = field(init=False, default_factory=list)
    _most_cut: float = field(init=False, default=1.0)  # factor by which something that was cut might beat the front

    def __post_init__(self) -> None:
        self._points = np.zeros((0, 2))

    @property
    def is_enough(self) -> bool:
        """Nothing is enough: the whole front was asked for."""
        return False

    def copied(self) -> "Front":
        """Return the same front, which goes its own way."""
        found = copy(self)
        found._left = list(self._left)
        return found

    def is_cut(self, bounds: Floats, /) -> Bools:
        """Cut what breaks a limit or is dominated."""
        return np.asarray((bounds > self.limits).any(axis=1) | (self._factors(bounds) <= 1 + self.tolerance))

    def keys(self, bounds: Floats, /) -> Floats:
        """Order by the factor by which the archive might be beaten, the largest first."""
        return -self._factors(bounds)

    def gains(self, criteria: Floats, /) -> Floats:
        """The factor by which each beats the archive."""
        return np.where((criteria <= self.limits).all(axis=1), self._factors(criteria), 0.0)

    def offer(self, candidate: Candidate, /) -> None:
        """Keep the front, of equal points the first."""
        rows = sorted([*self.archive, candidate], key=lambda one: one.order)
        points = np.array([row.criteria[:2] for row in rows])
        kept = front(points)
        self.archive, self._points = [rows[index] for index in kept], points[kept]

    def leave(self, bounds: Floats, /) -> None:
        """Remember what is not cut; what is stays so, since the archive only grows."""
        within = bounds[(bounds <= self.limits).all(axis=1), :2]
        gains = self._factors(within)
        is_cut = gains <= 1 + self.tolerance
        self._most_cut = max(self._most_cut, float(gains[is_cut].max(initial=1.0)))
        within = within[~is_cut]
        if len(within):
            self._left.append(within[front(within)])

    @property
    def left(self) -> Floats:
        """The front of what was left: no point in a box that was left is below all of these."""
        rows: Sequence[Floats] = [np.zeros((0, 2)), *self._left]
        points = np.concatenate(rows)
        return points[front(points)] if len(points) else points

    @property
    def factor(self) -> float:
        """The largest factor by which something that was left could beat the archive."""
        return max(self._most_cut, float(self._factors(self.left).max(initial=1.0)))

    def _factors(self, criteria: Floats) -> Floats:
        return front_factors(criteria[:, :2], self._points)
