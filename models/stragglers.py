"""The slowest of N workers: expected maximum of normal synchronisation times, equations 7 to 9 of the GST model.

Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter
Server, section III-C. Workers are independent, and each worker's time to the barrier is normal. Left out: a time
cannot be negative (matters only where sigma is not small beside the mean), and a slow worker stays as likely slow in
the next iteration as any other.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.errors import ModelError

__all__ = [
    "expected_epoch_time_s",
    "expected_maximum_of_equals_s",
    "expected_maximum_s",
    "standard_maximum",
    "standard_maximum_closed",
]

_REACH = 12  # standard deviations; less than 1e-32 of a normal lies beyond
_KNOTS = np.arange(-_REACH, _REACH + 0.5, 0.5)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def expected_maximum_s(mean_s: ArrayLike, sigma_s: ArrayLike) -> float:
    """Return the expected time of the slowest of several workers, equal or not (eqs. 8 and 9).

    Parameters
    ----------
    mean_s, sigma_s
        Of each worker, broadcast against each other; sigma >= 0, and 0 is a worker that never varies.

    Raises
    ------
    ModelError
        If there is no worker, a number is not finite, or a sigma is negative.

    Notes
    -----
    ``E = low + integral from low of (1 - prod F_n)``, with ``low`` the largest ``mean - 12 sigma``, below which
    the slowest worker never is. Gauss-Legendre in panels of half a standard deviation of every worker, so that a narrow
    worker among wide ones is not stepped over. This is the mean of the density ``N f F^(N-1)`` of eq. 9 where all
    are equal; print has ``E[f_max]``, the mean of the density itself.

    >>> round(expected_maximum_s([10, 10], 1), 6)
    10.56419
    """
    pairs = np.stack(np.broadcast_arrays(np.atleast_1d(mean_s), sigma_s)).reshape(2, -1).astype(float)
    if not pairs.size or not np.isfinite(pairs).all() or (pairs[1] < 0).any():
        raise ModelError(
            f"the slowest of workers with means {pairs[0]} s and sigmas {pairs[1]} s is not defined. Give at least one "
            "worker, finite means, and finite sigmas of 0 or more."
        )
    (mean, sigma), counts = np.unique(pairs, axis=1, return_counts=True)
    return _expected_maximum_s(mean, sigma, counts)


def _expected_maximum_s(mean: Floats, sigma: Floats, counts: ArrayLike) -> float:
    """Return the expected maximum over groups of equal workers."""
    from scipy.special import log_ndtr  # noqa: PLC0415  # heavy, and only models of stragglers need it

    low, high = np.max(mean - _REACH * sigma), np.max(mean + _REACH * sigma)
    knots = np.unique(np.clip(mean[:, None] + sigma[:, None] * _KNOTS, low, high))
    half = np.diff(knots)[:, None] / 2
    time = knots[:-1, None] + half * (1 + _NODES)
    log_all = np.zeros_like(time)  # logarithm of prod F_n: keeps the digits of 1 - F near 1
    for one_mean, one_sigma, count in zip(mean, sigma, np.asarray(counts), strict=True):
        if one_sigma > 0:  # the others have certainly ended at low
            log_all += count * log_ndtr((time - one_mean) / one_sigma)
    return float(low - np.sum(half * _WEIGHTS * np.expm1(log_all)))


@cache
def standard_maximum(num_workers: int) -> float:
    """Return ``e_N``, the expected maximum of N standard normals; 0 for one.

    Raises
    ------
    ModelError
        Below one worker.

    >>> [round(standard_maximum(n), 6) for n in (2, 3, 8, 32)]
    [0.56419, 0.846284, 1.4236, 2.069669]
    """
    if num_workers < 1:
        raise ModelError(f"the slowest of {num_workers} workers is not defined. Give 1 or more.")
    return _expected_maximum_s(np.zeros(1), np.ones(1), [num_workers]) if num_workers > 1 else 0.0


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
