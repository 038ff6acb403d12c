"""What is asked of an expensive monotone oracle, and what its answers say of all other points of a root.

Readings ``k`` of a root at ``n_k`` have ``bound_k <= t(n_k) <= value_k``, reached by ``used_k <= n_k``. Since ``t``
never grows with a count, for every ``n``

    max {bound_k : n_k >= n}  <=  t(n)  <=  min {value_k : used_k <= n}.

A profile is a bound of its own of every n; a value below it, by a plan that it did not know of, lowers it. What is
expected in between is no bound and proves nothing: it only chooses where to ask next. Symbols as in
:mod:`planner.solvers.counts`.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen
from planner.solution import SAME

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Counts = tuple[int, ...]
Call = tuple[int, Counts, float]  # root, counts, and a t from which on nothing matters


@frozen
class Profile:
    """What is said about all counts ``n = 1 ..`` of a root of one count at once.

    Attributes
    ----------
    bounds
        Entry n - 1: no ``t`` of n or fewer is less.
    promising
        The count whose ``t`` is the least share of its weight; None where none was found that matters.
    """

    bounds: Floats
    promising: int | None = None


@frozen
class Reading:
    """What one call of the oracle says about ``t(r, n)``.

    Attributes
    ----------
    value
        At least ``t``, and reached by the payload; ``inf``: nothing was found, or nothing is possible.
    bound
        At most ``t``, proven; equal to ``value`` where that is.
    used
        Counts up to ``n`` that reach ``value``; None: ``n`` itself.
    payload
        Whatever belongs to ``value``; handed back with the answer.
    own
        At most what ``t`` may be taken for at ``n`` itself, where fewer counts could do with less.
    """

    value: float
    bound: float
    used: Counts | None = None
    payload: Any = None
    own: float = 0.0


@frozen
class Question:
    """Roots, their criteria, and the oracle.

    Functions of many boxes or points get arrays of one length: ``roots`` of shape (boxes,), counts of shape
    (boxes, K), where a root of fewer than ``K`` variables has zeros at the end.

    Attributes
    ----------
    most
        Shape (roots, K): the largest counts; the least are 1, and 0 where ``most`` is 0.
    oracle
        ``(root, counts, enough)``, the counts without the zeros at the end. May end as soon as its bound is ``enough``
        or more: the point cannot matter then.
    criteria
        ``(roots, counts, t)`` to shape (boxes, criteria); at least 0, never falling where a count or ``t`` grows.
    limits
        Of each criterion; ``inf`` where there is none.
    floor
        ``(roots, least, most)`` to shape (boxes, criteria): no point between ``least`` and ``most`` has less. Cheap.
    can_hold, holds
        A condition besides: ``(roots, least, most)``, False where it holds nowhere in the box, and ``(roots, counts)``,
        whether it holds there. None: no condition.
    size
        ``(roots, counts)``: about how fast each point may be next to others of its root, such as its FLOP/s; above 0.
        It proves nothing, but calls are chosen by it. None: the mean share of ``most``.
    known, foreseen
        Where others can make calls before they are due: what a call returns, as far as that is known already, None
        where it is not; and who is told before every call, with what gives up to so many calls that are likely to
        follow. Neither changes the answer. Without ``known`` nothing is foreseen.
    kept_by
        A condition on what a call told: ``(root, counts, payload)``, whether the point keeps it; None where it does
        not with this payload, but with a better one might. More of any count never keep it better with the same one.
    profile
        ``(root, weight, enough)`` of a root of one count: entry n - 1 is a ``t`` of which the least share is wanted,
        and one from which on n does not matter. Cheaper than calls at many counts. None, or an answer of None: there
        is none.
    first_profile
        By root of one count, bounds of all its counts that cost nothing to ask.
    begun
        By root, what is known of its points before the first call.
    """

    most: Ints
    oracle: Callable[[int, Counts, float], Reading]
    criteria: Callable[[Ints, Ints, Floats], Floats]
    limits: Sequence[float]
    floor: Callable[[Ints, Ints, Ints], Floats] | None = None
    can_hold: Callable[[Ints, Ints, Ints], Bools] | None = None
    holds: Callable[[Ints, Ints], Bools] | None = None
    size: Callable[[Ints, Ints], Floats] | None = None
    known: Callable[[int, Counts, float], Reading | None] | None = None
    foreseen: Callable[[Callable[[int], list[Call]]], None] = lambda calls: None
    kept_by: Callable[[int, Counts, Any], bool | None] | None = None
    profile: Callable[[int, Floats, Floats], Profile | None] | None = None
    first_profile: Callable[[int], Floats] | None = None
    begun: Callable[[int], Sequence[tuple[Counts, Reading]]] | None = None

    @property
    def least(self) -> Ints:
        """The least counts, of the shape of ``most``."""
        return np.minimum(self.most, 1)

    def sizes_of(self, root: int, counts: Ints) -> Floats:
        """Return the sizes of points of a root.

        Parameters
        ----------
        root
            Its index.
        counts
            Shape (points, K).
        """
        if self.size is not None:
            return np.asarray(self.size(np.full(len(counts), root), counts), dtype=np.float64)
        has = self.most[root] > 0
        return np.asarray((counts[:, has] / self.most[root, has]).mean(axis=1))

    def counts_of(self, root: int, counts: Ints) -> Counts:
        """Return counts without the zeros at the end.

        Parameters
        ----------
        root
            Its index.
        counts
            Length K.
        """
        return tuple(counts[: int((self.most[root] > 0).sum())].tolist())


@dataclass(slots=True)
class Readings:
    """All that was asked about one root."""

    question: Question
    root: int
    at: Ints = field(init=False)
    used: Ints = field(init=False)
    bounds: Floats = field(init=False)
    values: Floats = field(init=False)
    own: Floats = field(init=False)
    payloads: list[Any] = field(init=False, default_factory=list)
    profile: Floats | None = None
    points: Floats | None = None  # criteria of all points at their bounds, until more is known

    def __post_init__(self) -> None:
        self.at = self.used = np.zeros((0, self.question.most.shape[1]), dtype=np.int64)
        self.bounds = self.values = self.own = np.zeros(0)

    def copied(self, question: Question) -> "Readings":
        """Return the same readings, which go their own way from now on."""
        other = copy(self)
        other.question, other.payloads = question, list(self.payloads)
        other.profile = None if self.profile is None else self.profile.copy()
        return other

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
        self.own = np.append(self.own, reading.own)
        self.payloads.append(reading.payload)
        self.points = None
        least, most = self.least(used[None, :])[0], self.most_at(counts[None, :])[0]
        if least > reading.value * (1 + SAME) or reading.bound > most * (1 + SAME):
            raise ModelError(
                f"The oracle contradicts itself at {counts.tolist()}: between {reading.bound!r} and {reading.value!r}, "
                f"but other counts say between {least!r} and {most!r}. It must not grow with any count."
            )
        return used

    def least(self, counts: Ints) -> Floats:
        """Return what ``t`` is at least at each of some points: 0 where nothing is known."""
        reaches = (self.at >= counts[:, None, :]).all(axis=2)
        found: Floats = np.where(reaches, self.bounds, 0.0).max(axis=1, initial=0.0)
        if self.profile is not None:
            found = np.maximum(found, np.minimum(self.profile[counts[:, 0] - 1], self.most_at(counts)))
        return found

    def least_at(self, counts: Ints) -> Floats:
        """Return what ``t`` may be taken for at the least at each of some points, for themselves alone."""
        is_at = (self.at == counts[:, None, :]).all(axis=2)
        own: Floats = np.where(is_at, self.own, 0.0).max(axis=1, initial=0.0)
        return np.maximum(self.least(counts), own)

    def take_profile(self, least: int, bounds: Floats) -> None:
        """Take in bounds of all counts from ``least`` on."""
        if self.profile is None:
            self.profile = np.zeros(int(self.question.most[self.root, 0]))
        part = self.profile[least - 1 : len(bounds)]
        np.maximum(part, bounds[least - 1 :], out=part)
        self.points = None

    def most_at(self, counts: Ints) -> Floats:
        """Return what ``t`` is at most at each of some points: ``inf`` where nothing is known."""
        is_reached = (self.used <= counts[:, None, :]).all(axis=2)
        return np.asarray(np.where(is_reached, self.values, np.inf).min(axis=1, initial=np.inf))

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
        through = np.interp(asked, inverse, seconds) + slope * np.maximum(asked - inverse[-1], 0.0)
        return np.asarray(np.clip(through, self.least(counts), self.most_at(counts)))
