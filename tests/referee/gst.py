"""An epoch of unequal workers that meet at every aggregation: equations 1, 2 and 5 of the GST model.

Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter
Server, section III. The last axis of every array is the iterations'. No plan asks for an epoch of explicit iterations:
the closed form of ``cases/forms/gst.py`` is held against this one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.models.servers import type_one_s, type_two_s


def explicit_input_s(input_s: ArrayLike, rest_s: ArrayLike) -> Floats:
    """Return the seconds of input in each iteration that the rest of the previous one does not hide (eq. 5).

    Parameters
    ----------
    input_s, rest_s
        Of each iteration: input, and all other processes together.

    Notes
    -----
    ``max(0, tau_io(m) - tau_rest(m-1))``, all of the first. These and the rest's seconds sum to the end of the last
    iteration. Reading runs ahead without limit; leaves out that it also goes on while a worker waits at the barrier,
    so that for unequal workers these are an upper bound.

    >>> explicit_input_s([2, 2, 2], [1, 1, 1]).tolist()
    [2.0, 1.0, 1.0]
    """
    read = type_one_s(input_s)
    before = np.zeros_like(ended := type_two_s(read, rest_s))
    before[..., 1:] = ended[..., :-1]
    return np.maximum(0.0, read - before)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Explicit seconds of every process: a row for each worker, a column for each iteration."""

    input_s: Floats
    forward_s: Floats
    backward_s: Floats
    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats
    update_s: Floats


def global_synchronization_times_s(steps: Steps, *, is_printed: bool = False) -> Floats:
    """Return ``GST(n, m)``, each worker's seconds from one complete aggregation to the next (eq. 1).

    Parameters
    ----------
    is_printed
        The second case as printed, without push and aggregation: from the second iteration on they then vanish from
        the epoch.
    """
    compute = steps.input_s + steps.forward_s + steps.backward_s
    exchange = steps.push_s + steps.aggregate_s
    times = compute + exchange
    after = (steps.pull_s + steps.update_s)[..., :-1]
    times[..., 1:] = after + (compute if is_printed else times)[..., 1:]
    return times


def tail_s(steps: Steps) -> float:
    """Return the slowest worker's last pull and update, the end of eq. 2."""
    return float(np.max((steps.pull_s + steps.update_s)[..., -1]))


def epoch_time_s(steps: Steps, *, is_printed: bool = False) -> float:
    """Return the seconds of an epoch, all workers meeting when each aggregation is complete (last line of eq. 2).

    Notes
    -----
    ``sum over m of max over n of GST(n, m), + tail``. Print equates this with the slowest worker's own sum, which
    is only a lower bound: different workers may be the slowest in different iterations.
    """
    times = global_synchronization_times_s(steps, is_printed=is_printed)
    return float(times.max(axis=0).sum()) + tail_s(steps)
