"""What calls of a monotone oracle say about other points, and what they lead one to expect.

For a root, readings ``k`` at ``n_k`` with ``bound_k <= t(n_k) <= value_k`` reached by ``used_k <= n_k``. Since ``t``
never grows with a count, for every ``n``

    max {bound_k : n_k >= n}  <=  t(n)  <=  min {value_k : used_k <= n}.

What is expected in between is no bound and proves nothing: it only chooses where to ask next.
"""

from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.solvers.count_question import Ints, Question, Reading

__all__ = ["Readings"]

_SAME = 1e-9  # relative: what two calls may differ by for rounding


@dataclass(slots=True)
class Readings:
    """All that was asked about one root."""

    question: Question
    root: int
    at: Ints = field(init=False)
    used: Ints = field(init=False)
    bounds: Floats = field(init=False)
    values: Floats = field(init=False)
    payloads: list[Any] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.at = self.used = np.zeros((0, self.question.most.shape[1]), dtype=np.int64)
        self.bounds = self.values = np.zeros(0)

    def copied(self, question: Question) -> "Readings":
        """Return the same readings, which go their own way from now on."""
        found = copy(self)
        found.question, found.payloads = question, list(self.payloads)
        return found

    def add(self, counts: Ints, reading: Reading) -> Ints:
        """Take in a reading; return the counts that it used.

        Raises
        ------
        ModelError
            Where it is no reading of a function that never grows with a count.
        """
        used = counts.copy()
        if reading.used is not None:
            used[: len(reading.used)] = reading.used
            used = np.maximum(used, self.question.least[self.root])
        if not 0 <= reading.bound <= reading.value or (used > counts).any():
            raise ModelError(f"The oracle's answer for {counts.tolist()} is none: {reading}.")
        self.at, self.used = np.vstack([self.at, counts]), np.vstack([self.used, used])
        self.bounds, self.values = np.append(self.bounds, reading.bound), np.append(self.values, reading.value)
        self.payloads.append(reading.payload)
        self._check(counts, used, reading)
        return used

    def _check(self, counts: Ints, used: Ints, reading: Reading) -> None:
        """Refuse what contradicts an earlier answer."""
        least, most = self.least(used[None, :])[0], self.most_at(counts[None, :])[0]
        if least > reading.value * (1 + _SAME) or reading.bound > most * (1 + _SAME):
            raise ModelError(
                f"The oracle contradicts itself at {counts.tolist()}: between {reading.bound!r} and {reading.value!r}, "
                f"but other counts say between {least!r} and {most!r}. It must not grow with any count."
            )

    def least(self, counts: Ints) -> Floats:
        """Return what ``t`` is at least at each of some points: 0 where nothing is known."""
        reaches = (self.at >= counts[:, None, :]).all(axis=2)
        return np.asarray(np.where(reaches, self.bounds, 0.0).max(axis=1, initial=0.0))

    def most_at(self, counts: Ints) -> Floats:
        """Return what ``t`` is at most at each of some points: ``inf`` where nothing is known."""
        is_reached = (self.used <= counts[:, None, :]).all(axis=2)
        return np.asarray(np.where(is_reached, self.values, np.inf).min(axis=1, initial=np.inf))

    def best_at(self, counts: Ints) -> tuple[float, Any]:
        """Return the least known value that a point reaches, and its payload."""
        values = np.where((self.used <= counts).all(axis=1), self.values, np.inf)
        index = int(values.argmin())
        return float(values[index]), self.payloads[index]

    def is_read(self, counts: Ints) -> bool:
        """Whether the oracle was asked about a point."""
        return bool((self.at == counts).all(axis=1).any())

    def is_settled(self, least: Ints, most: Ints) -> bool:
        """Whether one reading says all there is to know of every point of a box."""
        if bool(((self.at >= most).all(axis=1) & (self.used <= least).all(axis=1)).any()):
            return True
        return bool(np.isfinite(self.values).any()) and bool(
            self.most_at(least[None, :])[0] <= self.least(most[None, :])[0]
        )

    def expected(self, counts: Ints) -> Floats:
        """Return what ``t`` may be: a part that is shared evenly and one that is not, through the nearest readings.

        So ``t`` is taken to be linear in one over the size.
        """
        known = np.isfinite(self.values)
        if not known.any():
            return self.least(counts)
        inverse, seconds = 1 / self.question.sizes_of(self.root, self.used[known]), self.values[known]
        order = np.lexsort([seconds, inverse])
        inverse, first = np.unique(inverse[order], return_index=True)
        seconds = seconds[order][first]
        asked = 1 / self.question.sizes_of(self.root, counts)
        slope = seconds[-1] / inverse[-1]
        if len(inverse) > 1:
            slope = max(0.0, (seconds[-1] - seconds[-2]) / (inverse[-1] - inverse[-2]))
        found = np.interp(asked, inverse, seconds) + slope * np.maximum(asked - inverse[-1], 0.0)
        return np.asarray(np.clip(found, self.least(counts), self.most_at(counts)))
