"""Layers on stages, and micro-batches on replicas, that make the slowest of them as fast as can be.

**Cuts by speed.** Sets. Stages ``i`` of a layout, each on a machine group. Data. ``t_i`` seconds of a layer on stage i,
``e_i`` of what it does besides, ``c_i`` the most layers that fit in its memory, L layers in all. Variables. Whole
numbers ``1 <= n_i <= c_i`` with ``sum n_i = L``. Objective. ``min max_i (e_i + n_i t_i)``.

For a given T, stage i holds ``floor((T - e_i) / t_i)`` layers at most, between 1 and c_i; the smallest T for which
these add up to L or more is found by bisection, and then among the values that stages can take. What they are too many
is taken away from the groups that are slowest per layer first, evenly within a group, the later stages first (whose
micro-batches have more stages to pass before them): so the slowest stage stays what it is, and one micro-batch through
all stages takes as little as can be.

**Micro-batches of replicas.** Sets. Classes k, ``d_k`` replicas each. Data. ``a_k + m x_k``: seconds of m
micro-batches, N micro-batches in all. Variables. Whole numbers ``m_k >= 1`` with ``sum d_k m_k = N``. Objective.
``min max_k (a_k + m_k x_k)``.

The optimum is one of the values ``a_k + m x_k``. For a given T class k does ``floor((T - a_k) / x_k)`` at most; if all
do, that is too many by some replicas' micro-batches, and whether as many can be left out is a bounded subset sum: the
sums that can be made are the bits of one integer, to which powers of two of a class's replicas are added by shifting
it. What can be done until T can be done until any later one, so the smallest T is found by bisection over the sorted
values from the time that fractions would take on, as many of them as are needed: neither the list nor the integers grow
with N. Where not even millions too many can be left out (replicas by the thousand of odd numbers), there is no answer.
"""

from collections.abc import Iterator, Sequence
from math import floor, gcd

import numpy as np
from numpy.typing import NDArray

from planner.models.layouts import Bools, Ints

# -- cuts by speed -----------------------------------------------------------------------------------------------------

_BISECTIONS = 32
_ROUNDING = 1e-9


def balanced_layers(
    layer_s: NDArray[np.float64],
    fixed_s: NDArray[np.float64],
    most_layers: Ints,
    fewest_layers: Ints,
    groups: Ints,
    num_layers: int,
) -> tuple[Ints, Bools]:
    """Return the layers of every stage, and for which layouts there are any.

    Parameters
    ----------
    layer_s, fixed_s, most_layers
        ``t``, ``e`` and ``c``, shape (p, n).
    fewest_layers
        That each stage has at least, shape (p, n): one or more, and 0 where a layout has no stage.
    groups
        Index of the machine group, shape (p, n); stages of one group have the same ``layer_s``.
    num_layers
        L.

    Returns
    -------
    Layers of shape (p, n), 0 where there is no stage; and whether a layout can hold all layers, shape (n,).
    """
    is_there, is_absent = fewest_layers > 0, fewest_layers == 0
    most = np.where(is_there, np.minimum(most_layers, num_layers), 0)
    can = np.asarray((most >= fewest_layers).all(axis=0) & (most.sum(axis=0) >= num_layers))
    can = np.asarray(can & (fewest_layers.sum(axis=0) <= num_layers))
    fewest, highest = fewest_layers.astype(np.float64), np.maximum(most, fewest_layers)

    def fitting(slowest_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return whole numbers, in place: they are asked for some forty times."""
        found = np.asarray(slowest_s - fixed_s)
        found /= layer_s
        found += _ROUNDING
        np.floor(found, out=found)
        np.minimum(np.maximum(found, fewest, out=found), highest, out=found)
        np.copyto(found, 0.0, where=is_absent)
        return found

    def is_enough_in(slowest_s: NDArray[np.float64]) -> Bools:
        return np.asarray(fitting(slowest_s).sum(axis=0) >= num_layers)

    def held(slowest_s: NDArray[np.float64]) -> Ints:
        return fitting(slowest_s).astype(np.int64)

    low = np.where(is_there, fixed_s + fewest * layer_s, 0.0).max(axis=0)
    high = np.where(is_there, fixed_s + highest * layer_s, 0.0).max(axis=0)
    low_is_enough = is_enough_in(low)
    high = np.where(low_is_enough, low, high)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_enough = is_enough_in(middle)
        low, high = np.where(is_enough, low, middle), np.where(is_enough, middle, high)
    # Of the values that stages can take the next above the last that is too little, where that is enough.
    following = np.where(is_there & (held(low) < most), fixed_s + (held(low) + 1) * layer_s, np.inf).min(axis=0)
    next_is_enough = (following < high) & is_enough_in(following)
    layers = held(np.where(next_is_enough & ~low_is_enough, following, high))
    number = int(groups.max(initial=0)) + 1
    slowness = np.array([np.where(is_there & (groups == one), layer_s, -1.0).max(axis=0) for one in range(number)])
    # Those too many are taken from the slowest group first.
    for slowest in np.argsort(-slowness, axis=0, kind="stable"):
        surplus = np.maximum(layers.sum(axis=0) - num_layers, 0)
        is_own = is_there & (groups == slowest)
        own, least = np.where(is_own, layers, 0), np.where(is_own, fewest_layers, 0)
        left = own.sum(axis=0) - np.minimum(surplus, (own - least).sum(axis=0))
        layers = np.where(is_own, _levelled(least, own, left), layers)
    return np.where(can, layers, 0), can


def _levelled(least: Ints, most: Ints, total: Ints) -> Ints:
    """Return numbers as even as ``least`` and ``most`` allow that add up to a total, the first getting those left."""
    low, high = np.zeros_like(total), most.max(axis=0, initial=0)
    for _ in range(int(high.max(initial=1)).bit_length() + 1):
        middle = (low + high + 1) // 2
        is_below = np.clip(middle, least, most).sum(axis=0) <= total
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle - 1)
    levels = np.clip(low, least, most)
    may_have = (least <= low) & (low < most)
    return np.asarray(levels + (may_have & (np.cumsum(may_have, axis=0) <= total - levels.sum(axis=0))))


# -- micro-batches of replicas -----------------------------------------------------------------------------------------

_MOST_BITS = 1 << 20  # micro-batches too many that are looked at
_MOST_STEPS = 1 << 14  # micro-batches of the slowest class that a stretch may hold


def share_microbatches(
    replicas: Sequence[int], start_s: Sequence[float], each_s: Sequence[float], total: int
) -> list[int] | None:
    """Return the micro-batches of one replica of each class; None where no numbers add up.

    Parameters
    ----------
    replicas, start_s, each_s
        ``d``, ``a`` and ``x`` of each class.
    total
        N.

    >>> share_microbatches([1, 1], [0.0, 0.0], [1.0, 3.0], 8)
    [6, 2]
    >>> share_microbatches([2, 2], [0.0, 0.0], [1.0, 1.0], 7) is None
    True
    """
    left = total - sum(replicas)  # one each is certain
    if left < 0 or left % gcd(*replicas):
        return None
    classes = list(zip(replicas, start_s, each_s, strict=True))
    rate = sum(number / each for number, _, each in classes)
    first_s = (total + sum(number / each * start for number, start, each in classes)) / rate
    first_s = max(first_s, *(start + each for _, start, each in classes)) * (1 - _ROUNDING)
    last_s = max(start + each * (left // number + 1) for number, start, each in classes)
    low_s, width_s = first_s, 2 * max(each_s)

    def numbers(slowest_s: float) -> list[int] | None:
        most = [floor((slowest_s - start) / each + _ROUNDING) - 1 for _, start, each in classes]
        return None if min(most) < 0 else _adding_up(replicas, most, left)

    def values(high_s: float) -> Iterator[NDArray[np.float64]]:
        """Yield the seconds of each class that lie between, and next to it; at most ``left`` beyond the first."""
        for number, start, each in classes:
            first = max(1, floor((low_s - start) / each))
            last = min(left // number + 1, floor((high_s - start) / each) + 1)
            yield start + each * np.arange(first, last + 1, dtype=np.float64)

    while low_s <= last_s:  # the first value that will do lies in one of ever longer stretches
        listed = np.unique(np.concatenate(list(values(low_s + width_s))))
        listed = listed[listed <= low_s + width_s]
        low, high = 0, len(listed)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if numbers(float(listed[middle])) is None else (low, middle)
        if low < len(listed):
            return numbers(float(listed[low]))
        low_s, width_s = low_s + width_s, 2 * width_s
        if width_s > _MOST_STEPS * max(each_s):
            return None
    return None


def _adding_up(replicas: Sequence[int], most: Sequence[int], left: int) -> list[int] | None:
    """Return numbers that add up, as many as can be of the last class first; None where there are none."""
    caps = [min(count, left // number) for number, count in zip(replicas, most, strict=True)]
    over = sum(number * count for number, count in zip(replicas, caps, strict=True)) - left  # to be left out
    if not 0 <= over <= _MOST_BITS:
        return None
    sums = [1]  # bit s is set where s can be left out by the classes so far
    whole = (1 << (over + 1)) - 1
    for number, count in zip(replicas, caps, strict=True):
        reached, power, rest = sums[-1], 1, min(count, over // number)
        while rest > 0:
            taken = min(power, rest)
            reached |= (reached << (taken * number)) & whole
            rest, power = rest - taken, power * 2
        sums.append(reached)
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


def shared_bound_s(
    replicas: NDArray[np.float64], start_s: NDArray[np.float64], each_s: NDArray[np.float64], total: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return seconds that no numbers of micro-batches are under, fractions allowed, shape (n,).

    Parameters
    ----------
    replicas, start_s, each_s
        ``d``, ``a`` and ``x`` of each class, shape (k, n).
    total
        N, shape (n,).
    """
    rates = replicas / each_s
    return np.asarray((total + (rates * start_s).sum(axis=0)) / rates.sum(axis=0))
