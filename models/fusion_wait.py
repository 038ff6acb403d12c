"""Fusion by a buffer of constant size: equations 12 to 16 of the OSF model, as the paper's recursion runs.

Source: T. Liu et al., Modeling and Optimizing the Scaling Performance in Distributed Deep Learning Training,
WWW '22, doi:10.1145/3485447.3511981, section 2.2. Any grouping, and all three meanings of the wait, are scheduled by
:func:`planner.channel.schedule`, with which this recursion agrees under ``Wait.PAPER``.
"""

from collections.abc import Sequence

import numpy as np

from planner.cost import TransferCost

__all__ = ["buffer_recursion_time_s"]


def buffer_recursion_time_s(
    size_bytes: Sequence[float],
    backward_s: Sequence[float],
    cost: TransferCost,
    *,
    buffer_bytes: float,
    timeout_s: float = float("inf"),
    is_printed: bool = False,
) -> float:
    """Return ``T_update`` of equations 12 to 16, layer by layer, exactly as the paper's recursion runs.

    Parameters
    ----------
    size_bytes, backward_s
        ``D(i)`` and ``t_b(i)`` in the paper's order: index 0 is layer 1, the last is layer n, nearest the loss.
    is_printed
        Eq. 13 with the printed ``t_b(i)``, where gradients are lost or sent twice; else with ``t_b(i-1)``, as the
        text, eq. 12 and eq. 14 have it.

    Notes
    -----
    Mended: eq. 12 tests ``t_b(i) > timeout`` strictly, like eqs. 13 and 14; eq. 15 sums from i, like eq. 8.
    """
    n = len(size_bytes)
    size = [0.0, *size_bytes]  # 1-based, as printed
    backward = [0.0, *backward_s]
    buffered = [0.0] * (n + 2)
    start_s, wait_s, sent_s = 0.0, 0.0, 0.0  # tau, t_wait and t_update(F) of layer i + 1
    ready_s = 0.0  # S(i)
    for i in range(n, 0, -1):
        is_new = i == n or buffered[i + 1] + size[i] > buffer_bytes or backward[i] > timeout_s
        buffered[i] = size[i] if is_new else buffered[i + 1] + size[i]  # eq. 12
        if i < n:
            ready_s += backward[i]
            start_s = max(start_s + wait_s + sent_s, ready_s)  # eq. 15
        is_late = i > 1 and backward[i - 1] > timeout_s
        is_full = i > 1 and buffered[i] + size[i - 1] > buffer_bytes
        is_flushed = i == 1 or is_full or (backward[i] > timeout_s if is_printed else is_late)
        sent_s = float(cost(np.float64(buffered[i] if is_flushed else 0.0)))  # type: ignore[arg-type]  # eq. 13
        wait_s = timeout_s if is_late else backward[i - 1] if is_full else 0.0  # eq. 14
    return start_s + sent_s  # eq. 16
