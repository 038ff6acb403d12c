"""Scaling factors with and without overlap: equations 1 to 11 of the OSF model.

Source: T. Liu et al., WWW '22, doi:10.1145/3485447.3511981, section 2.1. Layers are in the paper's order: index 0 is
layer 1, the last is layer n, nearest the loss. Time 0 is the end of layer n's backward.
"""

from collections.abc import Sequence

import numpy as np

from planner.cost import TransferCost

__all__ = ["csf", "osf", "scaling_factor", "unfused_update_time_s"]


def scaling_factor(*, one_worker_s: float, many_workers_s: float, num_workers: int) -> float:
    """Return ``SF = T_1 / (N T_N)`` for the same whole job (eq. 1).

    >>> scaling_factor(one_worker_s=9, many_workers_s=1.25, num_workers=8)
    0.9
    """
    return one_worker_s / (num_workers * many_workers_s)


def csf(*, computation_s: float, communication_s: float) -> float:
    """Return the scaling factor if nothing overlapped, from the communication-to-computation ratio (eq. 2)."""
    return computation_s / (computation_s + communication_s)


def osf(*, computation_s: float, update_s: float, overlap_s: float) -> float:
    """Return the scaling factor considering overlap (eqs. 3 and 11).

    ``update_s`` contains idle time between transfers; ``overlap_s`` is the backward time of all layers but the last
    (eq. 10).
    """
    return computation_s / (computation_s + update_s - overlap_s)


def unfused_update_time_s(size_bytes: Sequence[float], backward_s: Sequence[float], cost: TransferCost) -> float:
    """Return ``T_update`` with one transfer a layer, by the recursion of eqs. 8 and 9."""
    transfer_s = np.asarray(cost(np.asarray(size_bytes, dtype=float))).tolist()
    start_s, ready_s = 0.0, 0.0
    for i in range(len(size_bytes) - 2, -1, -1):
        ready_s += backward_s[i]
        start_s = max(start_s + transfer_s[i + 1], ready_s)
    return float(start_s + transfer_s[0])
