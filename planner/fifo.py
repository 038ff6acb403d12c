"""One channel or server, first come first served: the recursion behind every queue of this project."""

import math

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats

__all__ = ["fifo_end_s"]


def fifo_end_s(ready_s: ArrayLike, duration_s: ArrayLike) -> Floats:
    """Return when each job ends: ``free = max(free, ready) + duration``.

    Parameters
    ----------
    ready_s
        When each job could start, in the order of service; first come first served if it never decreases.
    duration_s
        How long each occupies the channel, >= 0; or one number for all.

    Raises
    ------
    ValueError
        If there is no job, the lengths differ, or a number is not finite or a duration negative.

    >>> fifo_end_s([0, 1, 9], [3, 2, 1]).tolist()
    [3.0, 5.0, 10.0]
    """
    ready = np.asarray(ready_s, dtype=np.float64)
    duration = np.broadcast_to(np.asarray(duration_s, dtype=np.float64), ready.shape)
    if ready.ndim != 1 or not ready.size:
        raise ValueError(f"ready_s has shape {ready.shape}; give at least one job, in one row.")
    if not (np.isfinite(ready).all() and np.isfinite(duration).all() and (duration >= 0).all()):
        raise ValueError(f"ready_s {ready} must be finite, and duration_s {duration} finite and >= 0.")
    free, ends = -math.inf, []
    for one_ready, one_duration in zip(ready.tolist(), duration.tolist(), strict=True):
        free = max(free, one_ready) + one_duration
        ends.append(free)
    return np.array(ends)
