"""Rules by which frameworks and papers fuse gradients.

Each returns ``ends``, to be judged by `planner.channel.schedule`.

Arrays are in ready order, and numbers mean what they mean in `planner.channel`. No rule proves anything:
`fusion.optimal_groups` under the same wait is never worse.
"""

import math
from collections.abc import Callable
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from planner.channel import Ends, as_tensors, transfer_s
from planner.cost import Affine, TransferCost

__all__ = ["AdaFusion", "ada_fusion", "constant_buffer", "mg_wfbp", "one_group", "unfused"]


class AdaFusion(StrEnum):
    """Which wait adaFusion holds against a merge."""

    LITERAL = "literal"  # equation 17: the whole gap to the next gradient
    IDLE = "idle"  # only the part of it that the channel would spend idle


def unfused(num_tensors: int) -> Ends:
    """Return every tensor as its own group.

    >>> unfused(3)
    (0, 1, 2)
    """
    return tuple(range(_at_least_one(num_tensors)))


def one_group(num_tensors: int) -> Ends:
    """Return all tensors as one group: no overlap with computing, one start-up.

    >>> one_group(3)
    (2,)
    """
    return (_at_least_one(num_tensors) - 1,)


def constant_buffer(
    size_bytes: ArrayLike, buffer_bytes: float, ready_s: ArrayLike | None = None, timeout_s: float = math.inf
) -> Ends:
    """Return the groups of a buffer that is flushed when full, or when the next gradient is late.

    Parameters
    ----------
    size_bytes
        Of each tensor. One that is larger than the buffer travels alone.
    buffer_bytes
        Q; >= 0. A group may fill it exactly.
    ready_s
        Needed only with a timeout.
    timeout_s
        A gap to the next gradient above this flushes; it is per gap, not since the buffer's first tensor.

    Notes
    -----
    Equations 12 and 13, with the timeout test strict in both, and 13 testing the *next* gradient's backward time:
    as printed, gradients are lost or sent twice.

    >>> constant_buffer([4, 4, 4, 9, 1], 8)
    (1, 2, 3, 4)
    >>> constant_buffer([1, 1, 1], 8, ready_s=[0, 1, 5], timeout_s=2)
    (1, 2)
    """
    if ready_s is None and timeout_s != math.inf:
        raise ValueError(f"timeout_s={timeout_s} needs ready_s.")
    if not buffer_bytes >= 0 or not timeout_s >= 0:
        raise ValueError(f"buffer_bytes={buffer_bytes} and timeout_s={timeout_s} must be >= 0.")
    ready, sizes = as_tensors(np.zeros(np.shape(size_bytes)) if ready_s is None else ready_s, size_bytes)
    gaps = np.diff(ready).tolist()
    ends, held = [], float(sizes[0])
    for last, (gap, size) in enumerate(zip(gaps, sizes[1:].tolist(), strict=True)):
        if held + size > buffer_bytes or gap > timeout_s:
            ends.append(last)
            held = 0.0
        held += size
    return (*ends, len(sizes) - 1)


def mg_wfbp(ready_s: ArrayLike, size_bytes: ArrayLike, cost: TransferCost, startup_s: float) -> Ends:
    """Return the groups of MG-WFBP: wait for the next gradient if it comes before a start-up would be over.

    Parameters
    ----------
    ready_s, size_bytes, cost
        As for `planner.channel.schedule`; judged without waits.
    startup_s
        What one transfer fewer saves; the affine cost's constant.

    Notes
    -----
    With ``start = max(free, ready)`` of the group as it stands, the next tensor joins iff its ready time is below
    ``start + startup_s`` and below the end of the group's own transfer. Source: S. Shi, X. Chu and B. Li, MG-WFBP,
    INFOCOM 2019, arXiv:1811.11141, as the OSF paper compares itself with it.

    >>> from planner.cost import Affine
    >>> mg_wfbp([0, 1, 9], [4, 4, 4], Affine(startup_s=3, per_byte_s=1), 3)
    (1, 2)
    """
    ready, sizes = as_tensors(ready_s, size_bytes)
    one_s, free, held, ends = _one_s(cost), -math.inf, 0.0, []
    for last, ((now, following), size) in enumerate(zip(pairwise(ready.tolist()), sizes[:-1].tolist(), strict=True)):
        held += size
        start = max(free, now)
        end = start + one_s(held)
        if not following < min(start + startup_s, end):
            ends.append(last)
            free, held = end, 0.0
    return (*ends, len(sizes) - 1)


def ada_fusion(
    ready_s: ArrayLike, size_bytes: ArrayLike, cost: TransferCost, variant: AdaFusion = AdaFusion.LITERAL
) -> Ends:
    """Return the groups of adaFusion: the next tensor joins if that costs less than a transfer of its own.

    Parameters
    ----------
    ready_s, size_bytes, cost
        As for `planner.channel.schedule`; ``free`` below is the channel without waits.
    variant
        Which wait ``w`` counts.

    Notes
    -----
    Equation 17: fuse D into the buffer B iff ``cost(B + D) + w < cost(B) + cost(D)``. Literal: ``w`` is the next
    tensor's backward time (printed as t_wait(i), which is the wait *for* the tensor after it). Idle: ``w = max(0,
    next ready - max(free, ready of the last buffered))``. With an affine cost the literal rule is ``gap < start-up``
    for sizes above 0, so it merges everything when all layers are short: its weakness.

    >>> from planner.cost import Affine
    >>> cost = Affine(startup_s=2, per_byte_s=1)
    >>> ada_fusion([0, 3, 6], [9, 9, 9], cost), ada_fusion([0, 3, 6], [9, 9, 9], cost, AdaFusion.IDLE)
    ((0, 1, 2), (0, 2))
    """
    ready, sizes = as_tensors(ready_s, size_bytes)
    alone_s = transfer_s(cost, sizes).tolist()
    one_s = _one_s(cost)
    times, free, held, held_s, ends = ready.tolist(), -math.inf, float(sizes[0]), alone_s[0], []
    for last, size in enumerate(sizes[1:].tolist()):
        now, following = times[last], times[last + 1]
        wait = following - now if variant == AdaFusion.LITERAL else max(0.0, following - max(free, now))
        fused_s = one_s(held + size)
        if fused_s + wait < held_s + alone_s[last + 1]:
            held, held_s = held + size, fused_s
        else:
            ends.append(last)
            free = max(free, now) + held_s
            held, held_s = size, alone_s[last + 1]
    return (*ends, len(sizes) - 1)


def _one_s(cost: TransferCost) -> Callable[[float], float]:
    """Return the seconds of one transfer as a function of its size: of plain numbers where all of it is affine."""
    parts = getattr(cost, "costs", (cost,))  # of the cheapest of several
    affine = [(one.startup_s, one.per_byte_s) for one in parts if isinstance(one, Affine)]
    if len(affine) < len(parts):
        return lambda size: float(transfer_s(cost, size)[0])
    return lambda size: min(startup_s + per_byte_s * size for startup_s, per_byte_s in affine) if size > 0 else 0.0


def _at_least_one(num_tensors: int) -> int:
    if num_tensors < 1:
        raise ValueError(f"num_tensors must be >= 1, not {num_tensors}.")
    return num_tensors
