"""Equations of the papers that no question asks for: closed forms, relaxations and grids, for tests to compare with.

Sources: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter
Server (the GST model); T. Liu et al., WWW '22, doi:10.1145/3485447.3511981, section 2.1
(the OSF model); and the modules of :mod:`planner.models` that the tests hold against them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from planner.cases.forms.gst import Evaluation, ServerNetwork, Workload, evaluate
from planner.cost import Floats, TransferCost
from planner.errors import ModelError
from planner.models.compression import Compression
from planner.models.data_parallel import expected_maximum_s, standard_maximum


def compressed_time_s(compression: Compression, *, transfer_s: ArrayLike) -> Floats:
    """Return ``A (1 - r) + k / (1 - r)^2``, where all of the ``A`` seconds shrink with the packets."""
    return np.asarray(np.asarray(transfer_s, dtype=np.float64) * compression.kept + compression.time_s)


def standard_maximum_closed(num_workers: int) -> float:
    """Return ``e_N`` in closed form, for 1 to 5 workers.

    Raises
    ------
    ModelError
        For more: there is no closed form in elementary functions.

    Notes
    -----
    Classical order statistics: H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition, section 3.2.
    """
    angle = math.asin(1 / 3) / math.pi
    unscaled = (0.0, 1.0, 3 / 2, 3 * (1 / 2 + angle), 5 / 2 * (1 / 2 + 3 * angle))
    if not 1 <= num_workers <= len(unscaled):
        raise ModelError(f"e_N has a closed form for 1 to 5 workers, not for {num_workers}. Use standard_maximum.")
    return unscaled[num_workers - 1] / math.sqrt(math.pi)


def expected_maximum_of_equals_s(mean_s: ArrayLike, sigma_s: ArrayLike, *, num_workers: int) -> Floats:
    """Return ``mu + sigma e_N``, the expected time of the slowest of N equal workers; element by element."""
    return np.asarray(np.add(mean_s, np.multiply(sigma_s, standard_maximum(num_workers))), dtype=np.float64)


def expected_epoch_time_s(mean_s: ArrayLike, sigma_s: ArrayLike, *, tail_s: float = 0.0) -> float:
    """Return the seconds of an epoch: the expected slowest worker of every iteration, then the tail (eq. 9).

    Parameters
    ----------
    mean_s, sigma_s
        ``GST(n, m)``: a row for each worker, a column for each iteration. The paper gives all processes one sigma.
    tail_s
        The last pull and update, which eq. 2 has and printed eq. 9 lost.
    """
    pairs = np.stack(np.broadcast_arrays(np.atleast_2d(mean_s), sigma_s))
    iterations, counts = np.unique(pairs, axis=2, return_counts=True)
    each_s = [expected_maximum_s(*iterations[:, :, index]) for index in range(iterations.shape[2])]
    return float(np.dot(each_s, counts)) + tail_s


class BarrierLink(StrEnum):
    """Which links hold up the barrier (definition 7)."""

    SERVERS = "servers"  # fewer servers than workers: from the switch to each server
    WORKERS = "workers"  # else: from the switch to each worker


def barrier_link(*, num_workers: int, num_servers: int) -> BarrierLink:
    """Return the barrier link: the servers' links where there are fewer servers than workers."""
    return BarrierLink.SERVERS if num_servers < num_workers else BarrierLink.WORKERS


def decoupled_maximum_s(gst_s: ArrayLike, aggregate_s: ArrayLike) -> Floats:
    """Return ``max_n(GST - t_ag) + max_n t_ag``, over the first axis (eq. 17): an upper bound on ``max_n GST``.

    Print uses it as an equality, which holds where one worker is the slowest in both.
    """
    whole, aggregation = np.asarray(gst_s, dtype=np.float64), np.asarray(aggregate_s, dtype=np.float64)
    return np.asarray((whole - aggregation).max(axis=0) + aggregation.max(axis=0))


def evaluate_grid(
    workload: Workload,
    network: ServerNetwork,
    *,
    bandwidth_bytes_per_s: ArrayLike,
    compute_speed: ArrayLike,
    sigma_s: float = 0.0,
) -> Evaluation:
    """Return every bandwidth (rows) with every compute speed (columns): the grid of the paper's Figure 5."""
    rows = replace(network, bandwidth_bytes_per_s=np.asarray(bandwidth_bytes_per_s, dtype=np.float64)[:, None])
    return evaluate(workload, rows, compute_speed=np.asarray(compute_speed)[None, :], sigma_s=sigma_s)


def osf(*, computation_s: float, update_s: float, overlap_s: float) -> float:
    """Return the scaling factor considering overlap (T. Liu et al., eqs. 3 and 11).

    ``update_s`` contains idle time between transfers; ``overlap_s`` is the backward time of all layers but the last
    (eq. 10).
    """
    return computation_s / (computation_s + update_s - overlap_s)


def unfused_update_time_s(size_bytes: Sequence[float], backward_s: Sequence[float], cost: TransferCost) -> float:
    """Return ``T_update`` with one transfer a layer, by the recursion of T. Liu et al., eqs. 8 and 9."""
    transfer_s = np.asarray(cost(np.asarray(size_bytes, dtype=float))).tolist()
    start_s, ready_s = 0.0, 0.0
    for i in range(len(size_bytes) - 2, -1, -1):
        ready_s += backward_s[i]
        start_s = max(start_s + transfer_s[i + 1], ready_s)
    return float(start_s + transfer_s[0])
