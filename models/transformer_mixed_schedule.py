"""Seconds of a 1F1B step whose stages are all unlike, for many layouts at once: exact, and a bound that is quick.

Stage i of p does its micro-batches in the order of 1F1B (D. Narayanan et al., SC21, arXiv 2104.04473, section 2.2):
``min(m, p - i)`` forwards, then a backward and a forward in turn, then backwards. ``f_i`` and ``b_i`` are its seconds
for one micro-batch, what it sends included, since it computes nothing meanwhile.

**Exact.** All orders are fixed, so a step is the longest path through its tasks. Round k holds ``B_i(k)`` and
``F_i(k + p - i)`` of every stage. With ``D_i`` the end of what stage i did last,

    B_i(k) = max over j >= i of (D_j + b_j + ... + b_i)    (a running maximum from the last stage to the first)
    F_i(k + p - i) = max(B_i(k), F_(i-1)(k + p - i)) + f_i  (of the round before on the stage before)

so that a round costs a few operations on arrays, whatever p. Time O(m p) a layout. An event simulation is the referee
(:func:`planner.models.transformer_events.simulate_step`).

**Very many micro-batches.** Beyond some thousand rounds the step grows by what the slowest cycle takes, exactly but
where two cycles are so close that the slower one has not caught up by then: the greatest ``x_i`` a micro-batch, or
``X`` for p of them. Rounds beyond that are leapt over, whole multiples of p, at that rate, which no round exceeds.

**Bound.** With ``X`` the sum of all ``x_i = f_i + b_i`` and ``w_i = min(m, p - i)``, paths that dwell on one stage:
``X + (m - w_i) x_i + (w_i - 1) max(f_i, b_i)``, once through all and else on stage i; and those that go q times
through all, once from i to the end and back, and else dwell on i, for the least and for the greatest q. Each exists,
so none is longer than the step.

Arrays have the stages first, shape (p, n); stages that a layout does not have are behind its last, with 0 seconds.
"""

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Ints

__all__ = ["MOST_ROUNDS", "one_forward_one_backward_s", "path_bound_s"]

MOST_ROUNDS = 4_096  # that are played one by one; or so many times the stages
_ROUNDS_PER_STAGE = 8


def one_forward_one_backward_s(forward_s: Floats, backward_s: Floats, stages: Ints, num_microbatches: Ints) -> Floats:
    """Return the seconds from the first forward to the end of the last backward.

    Parameters
    ----------
    forward_s, backward_s
        Of one micro-batch on each stage, shape (p, n).
    stages, num_microbatches
        Of each layout, shape (n,).
    """
    found = np.zeros(forward_s.shape[1])
    for number in np.unique(stages):
        chosen = np.flatnonzero(stages == number)
        ahead_s, back_s, m = forward_s[:number, chosen], backward_s[:number, chosen], num_microbatches[chosen]
        leaps = np.maximum(m - max(MOST_ROUNDS, _ROUNDS_PER_STAGE * int(number)), 0) // number * number
        both_s = ahead_s + back_s
        each_s = np.maximum(both_s.max(axis=0), both_s.sum(axis=0) / number)
        found[chosen] = _step_s(ahead_s, back_s, m - leaps) + leaps * each_s
    return found


def _step_s(forward_s: Floats, backward_s: Floats, m: Ints) -> Floats:
    """Return the same of pipelines of as many stages."""
    p = len(forward_s)
    index = np.arange(p)[:, None]
    ended, newest = _warmed_up(forward_s, m)
    behind = np.cumsum(backward_s, axis=0)  # of a stage and all before it
    for k in range(int(m.max(initial=0))):
        # Ends of backward: the latest of what any stage behind allows, plus all backwards from there to here.
        latest = np.maximum.accumulate((ended + behind)[::-1], axis=0)[::-1]
        is_left = k < m
        ended = np.where(is_left, latest - (behind - backward_s), ended)
        begun = np.maximum(ended[1:], newest[:-1])
        begun = np.concatenate([ended[:1], begun])
        has_forward = k + p - index < m
        ended = np.where(has_forward, begun + forward_s, ended)
        newest = np.where(has_forward, ended, newest)
    return np.asarray(ended.max(axis=0))


def _warmed_up(forward_s: Floats, m: Ints) -> tuple[Floats, Floats]:
    """Return when each stage has done the forwards before its first backward; and the end of the newest of them."""
    p, n = forward_s.shape
    ended = np.zeros((p, n))
    above = np.zeros((p, n))  # ends of micro-batches 0 .. p - 1 on the stage before
    counts = np.arange(p, dtype=np.float64)[:, None]
    for i in range(p):
        # F_i(k) = max over l <= k of (F_(i-1)(l) + (k - l + 1) f_i)
        above = np.maximum.accumulate(above - counts * forward_s[i], axis=0) + (counts + 1) * forward_s[i]
        last = np.minimum(m, p - i) - 1
        ended[i] = above[last, np.arange(n)]
    return ended, ended.copy()


def path_bound_s(forward_s: Floats, backward_s: Floats, stages: Ints, num_microbatches: Ints) -> Floats:
    """Return seconds that the step is not under, parameters as above: the longest of the paths of the module."""
    p, m = stages.astype(np.float64), num_microbatches.astype(np.float64)
    both = forward_s + backward_s
    index = np.arange(len(both), dtype=np.float64)[:, None]
    is_there = index < p
    all_s = both.sum(axis=0)
    before_s = np.cumsum(both, axis=0) - both
    warm_up = np.clip(p - index, 1.0, m)
    once = all_s + (m - warm_up) * both + (warm_up - 1) * np.maximum(forward_s, backward_s)
    alone = m - 1 - (p - index)
    most = np.maximum(np.floor((m - 1 + index) / p), 1.0) - 1
    often = 2 * all_s - before_s + alone * both + most * np.maximum(all_s - p * both, 0.0)
    paths = np.maximum(np.maximum(once, before_s + m * both), np.where(alone >= 0, often, 0.0))
    return np.asarray(np.where(is_there, paths, 0.0).max(axis=0))
