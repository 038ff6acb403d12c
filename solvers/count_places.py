"""Boxes of counts, and points spread over them."""

from dataclasses import dataclass

import numpy as np

from planner.solvers.count_question import Ints

__all__ = ["Box", "lattice", "middle", "spread"]

_POINTS = 512  # of a lattice, about


@dataclass(frozen=True, slots=True)
class Box:
    """All points of a root from ``least`` to ``most``."""

    root: int
    least: Ints
    most: Ints

    @property
    def is_point(self) -> bool:
        """Whether it holds one point."""
        return bool((self.least == self.most).all())

    @property
    def size(self) -> float:
        """How many points it holds."""
        return float(np.prod(self.most - self.least + 1.0))


def spread(low: int, high: int, number: int) -> Ints:
    """Return whole numbers from ``low`` to ``high`` with both ends, at most so many, by about equal factors."""
    if high - low < number:
        return np.arange(low, high + 1)
    return np.unique(np.rint(np.geomspace(low, high, number)).astype(np.int64))


def middle(box: Box) -> Ints:
    """Return the point in the middle of a box, by equal factors."""
    return np.asarray(np.sqrt(box.least * box.most.astype(float)).astype(np.int64))


def lattice(box: Box) -> Ints:
    """Return points of a box, spread by equal factors along every side."""
    wide = max(1, int((box.least < box.most).sum()))
    number = max(2, int(_POINTS ** (1 / wide)))
    sides = [spread(int(low), int(high), number) for low, high in zip(box.least, box.most, strict=True)]
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(sides))
