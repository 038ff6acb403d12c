"""How many micro-batches each class of replicas does so that the slowest class is as quick as can be.

Sets. Classes k, ``d_k`` replicas each. Data. ``a_k + m x_k``: seconds of m micro-batches, N micro-batches in all.
Variables. Whole numbers ``m_k >= 1`` with ``sum d_k m_k = N``. Objective. ``min max_k (a_k + m_k x_k)``.

The optimum is one of the values ``a_k + m x_k``. For a given T class k does ``floor((T - a_k) / x_k)`` at most, and
whether N can be made of such numbers is a bounded subset sum: the sums that can be made are the bits of one integer,
to which powers of two of a class's replicas are added by shifting it. The least T is found by bisection over the
sorted values: time O(K log N log(K N)) operations on integers of N bits.
"""

from collections.abc import Sequence
from math import floor

import numpy as np

from planner.cost import Floats

__all__ = ["dealt", "relaxed_s"]

_ROUNDING = 1e-9


def dealt(replicas: Sequence[int], start_s: Sequence[float], each_s: Sequence[float], total: int) -> list[int] | None:
    """Return the micro-batches of one replica of each class; None where no numbers add up.

    >>> dealt([1, 1], [0.0, 0.0], [1.0, 3.0], 8)
    [6, 2]
    >>> dealt([2, 2], [0.0, 0.0], [1.0, 1.0], 7) is None
    True
    """
    left = total - sum(replicas)  # one each is certain
    if left < 0:
        return None
    values = np.unique(
        np.concatenate(
            [
                start + each * np.arange(1, left // number + 2)
                for number, start, each in zip(replicas, start_s, each_s, strict=True)
            ]
        )
    )
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if _chosen(replicas, _most(float(values[middle]), start_s, each_s), left) is None:
            low = middle + 1
        else:
            high = middle
    return None if low == len(values) else _chosen(replicas, _most(float(values[low]), start_s, each_s), left)


def _most(slowest_s: float, start_s: Sequence[float], each_s: Sequence[float]) -> list[int]:
    """Return how many micro-batches beyond the first each class may do; below 0 where not even that one."""
    return [floor((slowest_s - start) / each + _ROUNDING) - 1 for start, each in zip(start_s, each_s, strict=True)]


def _chosen(replicas: Sequence[int], most: Sequence[int], left: int) -> list[int] | None:
    """Return numbers that add up, as many as can be of the last class first; None where there are none."""
    if min(most) < 0:
        return None
    sums = [1]  # bit s is set where s can be made by the classes so far
    whole = (1 << (left + 1)) - 1
    for number, count in zip(replicas, most, strict=True):
        found, power, rest = sums[-1], 1, count
        while rest > 0:
            taken = min(power, rest)
            found |= (found << (taken * number)) & whole
            rest, power = rest - taken, power * 2
        sums.append(found)
    if not sums[-1] >> left & 1:
        return None
    chosen: list[int] = []
    for index in range(len(replicas) - 1, -1, -1):
        number = next(
            one
            for one in range(min(most[index], left // replicas[index]), -1, -1)
            if sums[index] >> (left - one * replicas[index]) & 1
        )
        chosen.append(number + 1)
        left -= number * replicas[index]
    return chosen[::-1]


def relaxed_s(replicas: Floats, start_s: Floats, each_s: Floats, total: Floats) -> Floats:
    """Return seconds that no numbers of micro-batches are under, fractions allowed; classes first, shape (k, n)."""
    rates = replicas / each_s
    return np.asarray((total + (rates * start_s).sum(axis=0)) / rates.sum(axis=0))
