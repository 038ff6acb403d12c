"""The bound of stages that are all known, from the equations that tables of pipelines are made of."""

from collections.abc import Sequence

import numpy as np

from planner.solvers.pipeline_bounds import NOTHING, Schedule, through


def bound_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_transfer_s: Sequence[float],
    backward_transfer_s: Sequence[float],
    flush_s: Sequence[float],
    schedule: Schedule,
) -> float:
    """Return ``E(0)``, which no simulation of these stages is below.

    Parameters
    ----------
    forward_s, backward_s, flush_s
        f, b and y by stage.
    forward_transfer_s, backward_transfer_s
        cf and cb by boundary: one less than stages.
    schedule
        Of these stages.

    >>> bound_s([2, 1], [2, 1], [0], [0], [0, 0], Schedule(num_microbatches=2))
    8.0
    """
    held = schedule.in_flight(np.arange(len(forward_s), 0, -1))
    columns = np.array([forward_s, backward_s, flush_s], dtype=np.float64)
    sent = np.array([forward_transfer_s, backward_transfer_s], dtype=np.float64)
    return float(through(columns, held, sent, NOTHING, schedule))
