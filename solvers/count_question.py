"""What :mod:`planner.solvers.count_boxes` is asked and answers: counts, criteria, an expensive monotone oracle."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats

__all__ = ["Bools", "Counts", "Ints", "Question", "Reading"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one call of the oracle found out about ``t(r, n)``.

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
    """

    value: float
    bound: float
    used: Counts | None = None
    payload: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
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
    has_costly_condition
        Whether ``holds`` calls the oracle, too: who looks ahead then leaves it out.
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
    foreseen: Callable[[Callable[[int], list[tuple[int, Counts, float]]]], None] = lambda calls: None
    has_costly_condition: bool = False

    @property
    def least(self) -> Ints:
        """The least counts, of the shape of ``most``."""
        return np.minimum(self.most, 1)

    def sizes_of(self, root: int, counts: Ints) -> Floats:
        """Return the sizes of points of a root."""
        if self.size is not None:
            return np.asarray(self.size(np.full(len(counts), root), counts), dtype=np.float64)
        has = self.most[root] > 0
        return np.asarray((counts[:, has] / self.most[root, has]).mean(axis=1))

    def counts_of(self, root: int, counts: Ints) -> Counts:
        """Return counts without the zeros at the end."""
        return tuple(counts[: int((self.most[root] > 0).sum())].tolist())
