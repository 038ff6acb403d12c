"""GPipe by its closed form, and 1F1B round after round for all devices: what the walk from task to task gives, quicker.

The rules, and what the times mean, stand at the head of :mod:`planner.models.pipeline_schedule`.
"""

from collections.abc import Sequence

import numpy as np

from planner.cost import Floats

__all__ = ["end_at_once_s"]


def end_at_once_s(
    schedule: str,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_transfer_s: Sequence[float],
    backward_transfer_s: Sequence[float],
    num_microbatches: int,
) -> Floats:
    """Return the end of every device's last backward, one stage a device; arguments are those of ``simulate``."""
    at_once = _gpipe_end_s if schedule == "gpipe" else _one_forward_one_backward_end_s
    return at_once(
        np.asarray(forward_s, dtype=np.float64),
        np.asarray(backward_s, dtype=np.float64),
        np.asarray(forward_transfer_s, dtype=np.float64),
        np.asarray(backward_transfer_s, dtype=np.float64),
        num_microbatches,
    )


def _gpipe_end_s(f: Floats, b: Floats, c: Floats, c_back: Floats, m: int) -> Floats:
    """Return the end of every device's last backward under GPipe: a line of forwards, then one of backwards.

    Equal jobs pass a line of stages and channels, each of which serves one at a time: the last of m leaves stage i
    ``sum + (m - 1) max`` of the times up to there after the first has come (a "proportionate" flow shop).
    No error reaches a device that still has forwards to do, as the last stage's backwards start after all of them.
    """
    all_forward_s = _line_end_s(f, c, m)[-1]
    ends_s: Floats = all_forward_s + _line_end_s(b[::-1], c_back[::-1], m)[::-1]
    return ends_s


def _line_end_s(seconds: Floats, sent_s: Floats, m: int) -> Floats:
    """Return when the last of m jobs leaves each stage of a line, with transfers between them."""
    before_s = np.concatenate(([0.0], sent_s))
    slowest_s = np.maximum.accumulate(np.maximum(seconds, before_s))
    ends_s: Floats = np.cumsum(seconds + before_s) + (m - 1) * slowest_s
    return ends_s


def _one_forward_one_backward_end_s(f: Floats, b: Floats, c: Floats, c_back: Floats, m: int) -> Floats:
    """Return the end of every device's last backward under 1F1B: round after round, all devices at once.

    Round r holds the forward of micro-batch r on every device, and after it on device i the backward of micro-batch
    ``r - (p - i) + 1``, whose error left device i + 1 in the round before. So backwards of a round do not depend on one
    another; its forwards are a chain ``e_i = max(e_{i-1} + c_{i-1}, g_i) + f_i``, that is ``D_i + max over k <= i of
    (g_k + f_k - D_k)`` with ``D_i`` the sum of all f and c up to i.
    """
    p = len(f)
    path_s = np.cumsum(f) + np.concatenate(([0.0], np.cumsum(c)))
    shift_s = f - path_s
    free_s, sent_s, sent_back_s, error_s = np.zeros(p), np.zeros(p - 1), np.zeros(p - 1), np.zeros(p)
    for number in range(m + p - 1):
        if number < m:
            free_s[1:] = np.maximum(free_s[1:], sent_s + c)
            free_s = path_s + np.maximum.accumulate(free_s + shift_s)
            sent_s = np.maximum(free_s[:-1], sent_s) + c
        low, high = max(0, p - 1 - number), min(p, m + p - 1 - number)
        ends_s = np.maximum(free_s[low:high], error_s[low:high]) + b[low:high]
        free_s[low:high] = ends_s
        first = max(low, 1)  # device 0 sends no error
        sent_back_s[first - 1 : high - 1] = np.maximum(ends_s[first - low :], sent_back_s[first - 1 : high - 1])
        sent_back_s[first - 1 : high - 1] += c_back[first - 1 : high - 1]
        error_s[first - 1 : high - 1] = sent_back_s[first - 1 : high - 1]
    return free_s
