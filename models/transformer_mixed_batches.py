"""How many micro-batches each class of replicas does so that the slowest class is as quick as can be.

Sets. Classes k, ``d_k`` replicas each. Data. ``a_k + m x_k``: seconds of m micro-batches, N micro-batches in all.
Variables. Whole numbers ``m_k >= 1`` with ``sum d_k m_k = N``. Objective. ``min max_k (a_k + m_k x_k)``.

The optimum is one of the values ``a_k + m x_k``. For a given T class k does ``floor((T - a_k) / x_k)`` at most; if all
do, that is too many by some replicas' micro-batches, and whether as many can be left out is a bounded subset sum: the
sums that can be made are the bits of one integer, to which powers of two of a class's replicas are added by shifting
it. What can be done until T can be done until any later one, so the least T is found by bisection over the sorted
values from the time that fractions would take on, as many of them as are needed: neither the list nor the integers
grow with N. Where not even millions too many can be left out (replicas by the thousand of odd numbers), none is found.
"""

from collections.abc import Sequence
from math import floor, gcd

import numpy as np

from planner.cost import Floats

__all__ = ["dealt", "relaxed_s"]

_ROUNDING = 1e-9
_MOST_BITS = 1 << 20  # micro-batches too many that are looked at
_MOST_STEPS = 1 << 14  # micro-batches of the slowest class that a stretch may hold


def dealt(replicas: Sequence[int], start_s: Sequence[float], each_s: Sequence[float], total: int) -> list[int] | None:
    """Return the micro-batches of one replica of each class; None where no numbers add up.

    >>> dealt([1, 1], [0.0, 0.0], [1.0, 3.0], 8)
    [6, 2]
    >>> dealt([2, 2], [0.0, 0.0], [1.0, 1.0], 7) is None
    True
    """
    left = total - sum(replicas)  # one each is certain
    if left < 0 or left % gcd(*replicas):
        return None
    classes = list(zip(replicas, start_s, each_s, strict=True))
    rate = sum(number / each for number, _, each in classes)
    least_s = (total + sum(number / each * start for number, start, each in classes)) / rate
    least_s = max(least_s, *(start + each for _, start, each in classes)) * (1 - _ROUNDING)
    last_s = max(start + each * (left // number + 1) for number, start, each in classes)
    low_s, width_s, found = least_s, 2 * max(each_s), None
    while found is None and low_s <= last_s:  # the first value that will do lies in one of ever longer stretches
        values = np.unique(np.concatenate([_values(one, low_s, low_s + width_s, left) for one in classes]))
        values = values[values <= low_s + width_s]
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) // 2
            found = _chosen(replicas, _most(float(values[middle]), start_s, each_s), left)
            low, high = (middle + 1, high) if found is None else (low, middle)
        if low < len(values):
            return _chosen(replicas, _most(float(values[low]), start_s, each_s), left)
        low_s, width_s = low_s + width_s, 2 * width_s
        if width_s > _MOST_STEPS * max(each_s):
            return None
    return None


def _values(one: tuple[int, float, float], low_s: float, high_s: float, left: int) -> Floats:
    """Return the seconds of a class that lie in a stretch, and next to it; at most ``left`` beyond the first."""
    number, start, each = one
    first = max(1, floor((low_s - start) / each))
    last = min(left // number + 1, floor((high_s - start) / each) + 1)
    return np.asarray(start + each * np.arange(first, last + 1, dtype=np.float64))


def _most(slowest_s: float, start_s: Sequence[float], each_s: Sequence[float]) -> list[int]:
    """Return how many micro-batches beyond the first each class may do; below 0 where not even that one."""
    return [floor((slowest_s - start) / each + _ROUNDING) - 1 for start, each in zip(start_s, each_s, strict=True)]


def _chosen(replicas: Sequence[int], most: Sequence[int], left: int) -> list[int] | None:
    """Return numbers that add up, as many as can be of the last class first; None where there are none."""
    if min(most) < 0:
        return None
    caps = [min(count, left // number) for number, count in zip(replicas, most, strict=True)]
    over = sum(number * count for number, count in zip(replicas, caps, strict=True)) - left  # to be left out
    if not 0 <= over <= _MOST_BITS:
        return None
    sums = [1]  # bit s is set where s can be left out by the classes so far
    whole = (1 << (over + 1)) - 1
    for number, count in zip(replicas, caps, strict=True):
        found, power, rest = sums[-1], 1, min(count, over // number)
        while rest > 0:
            taken = min(power, rest)
            found |= (found << (taken * number)) & whole
            rest, power = rest - taken, power * 2
        sums.append(found)
    if not sums[-1] >> over & 1:
        return None
    chosen: list[int] = []
    for index in range(len(replicas) - 1, -1, -1):
        number = next(
            one
            for one in range(min(caps[index], over // replicas[index]) + 1)
            if sums[index] >> (over - one * replicas[index]) & 1
        )
        chosen.append(caps[index] - number + 1)
        over -= number * replicas[index]
    return chosen[::-1]


def relaxed_s(replicas: Floats, start_s: Floats, each_s: Floats, total: Floats) -> Floats:
    """Return seconds that no numbers of micro-batches are under, fractions allowed; classes first, shape (k, n)."""
    rates = replicas / each_s
    return np.asarray((total + (rates * start_s).sum(axis=0)) / rates.sum(axis=0))
