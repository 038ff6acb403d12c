"""How many layers each stage of a pipeline holds so that the slowest stage is as quick as can be; many at once.

Sets. Stages ``i`` of a layout, each on a kind of machines. Data. ``t_i`` seconds of a layer on stage i, ``e_i`` of what
it does besides, ``c_i`` the most layers that fit in its memory, L layers in all.
Variables. Whole numbers ``1 <= n_i <= c_i`` with ``sum n_i = L``. Objective. ``min max_i (e_i + n_i t_i)``.

For a given T, stage i holds ``floor((T - e_i) / t_i)`` layers at most, between 1 and c_i; the least T for which these
add up to L or more is found by bisection, and then among the values that stages can take. What they are too many is
taken away from the kinds that are slowest per layer first, evenly within a kind, the later stages first (whose
micro-batches have more stages to pass before them): so the slowest stage stays what it is, and one micro-batch through
all stages takes least.

Arrays of shape (p, n): stages first, those that a layout does not have behind its last.
"""

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Bools, Ints

__all__ = ["least_slowest"]

_BISECTIONS = 32
_ROUNDING = 1e-9  # of a layer


def least_slowest(
    layer_s: Floats, fixed_s: Floats, most_layers: Ints, is_there: Bools, kinds: Ints, num_layers: int
) -> tuple[Ints, Bools]:
    """Return the layers of every stage, and for which layouts there are any.

    Parameters
    ----------
    layer_s, fixed_s, most_layers
        ``t``, ``e`` and ``c``.
    is_there
        Which stages a layout has.
    kinds
        Index of the kind of machines; stages of one kind have the same ``layer_s``.
    num_layers
        L.

    Returns
    -------
    Layers of shape (p, n), 0 where there is no stage; and whether a layout can hold all layers, shape (n,).
    """
    most = np.where(is_there, np.minimum(most_layers, num_layers), 0)
    can = np.asarray(((most >= 1) | ~is_there).all(axis=0) & (most.sum(axis=0) >= num_layers))
    can = np.asarray(can & (is_there.sum(axis=0) <= num_layers))
    least = np.where(is_there, 1, 0)

    def held(slowest_s: Floats) -> Ints:
        fitting = np.floor((slowest_s - fixed_s) / layer_s + _ROUNDING)
        return np.where(is_there, np.clip(fitting, least, np.maximum(most, least)), 0).astype(np.int64)

    low = np.where(is_there, fixed_s + layer_s, 0.0).max(axis=0)
    high = np.where(is_there, fixed_s + np.maximum(most, 1) * layer_s, 0.0).max(axis=0)
    low_is_enough = held(low).sum(axis=0) >= num_layers
    high = np.where(low_is_enough, low, high)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_enough = held(middle).sum(axis=0) >= num_layers
        low, high = np.where(is_enough, low, middle), np.where(is_enough, middle, high)
    # Of the values that stages can take the next above the last that is too little, where that is enough.
    following = np.where(is_there & (held(low) < most), fixed_s + (held(low) + 1) * layer_s, np.inf).min(axis=0)
    next_is_enough = (following < high) & (held(following).sum(axis=0) >= num_layers)
    layers = held(np.where(next_is_enough & ~low_is_enough, following, high))
    return np.where(can, _trimmed(layers, layer_s, is_there, kinds, num_layers), 0), can


def _trimmed(layers: Ints, layer_s: Floats, is_there: Bools, kinds: Ints, num_layers: int) -> Ints:
    """Return layers that add up to their number, those too many taken from the slowest kinds first."""
    number = int(kinds.max(initial=0)) + 1
    slowness = np.array([np.where(is_there & (kinds == kind), layer_s, -1.0).max(axis=0) for kind in range(number)])
    order = np.argsort(-slowness, axis=0, kind="stable")
    for rank in range(number):
        surplus = np.maximum(layers.sum(axis=0) - num_layers, 0)
        is_own = is_there & (kinds == order[rank])
        spare = np.where(is_own, layers - 1, 0).sum(axis=0)
        wanted = np.where(is_own, layers, 0).sum(axis=0) - np.minimum(surplus, spare)
        layers = np.where(is_own, _levelled(np.where(is_own, layers, 0), wanted), layers)
    return layers


def _levelled(most: Ints, wanted: Ints) -> Ints:
    """Return numbers as even as ``most`` allows that add up to what is wanted, the first ones getting those left."""
    low, high = np.zeros_like(wanted), most.max(axis=0, initial=0)
    for _ in range(int(high.max(initial=1)).bit_length() + 1):
        middle = (low + high + 1) // 2
        is_below = np.minimum(most, middle).sum(axis=0) <= wanted
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle - 1)
    found = np.minimum(most, low)
    left = wanted - found.sum(axis=0)
    may_have = most > low
    return np.asarray(found + (may_have & (np.cumsum(may_have, axis=0) <= left)))
