"""Cuts of a line into runs as equal as can be."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from planner.cost import Floats

__all__ = ["balanced_cuts", "balanced_cuts_of"]

_CLOSE = 1e-12  # relative difference at which two times are one
_ROUNDING = 1e-13  # of sums; far below _CLOSE, so that every trial comes closer
_MOST_KEPT = 1_000  # layers of cuts that are remembered
_MOST_TRIALS = 64  # each halves what is left, but for rounding: enough for _CLOSE


def balanced_cuts(seconds: Floats, num_parts: int) -> tuple[int, ...]:
    """Return the last layer of each of ``num_parts`` runs of layers, of which the longest takes as little as it can.

    Parameters
    ----------
    seconds
        By layer; >= 0, at least ``num_parts`` of them.

    >>> balanced_cuts(np.array([3.0, 1, 1, 1, 3]), 3)
    (0, 3, 4)
    """
    known = tuple(np.asarray(seconds, dtype=np.float64).tolist())
    return (_balanced if len(known) <= _MOST_KEPT else _balanced.__wrapped__)(known, num_parts)


@lru_cache(maxsize=1_024)  # searches of one question, one after the other, ask for the same cuts
def _balanced(seconds: tuple[float, ...], num_parts: int) -> tuple[int, ...]:
    """Return :func:`balanced_cuts`."""
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    return balanced_cuts_of([total] * num_parts)


def balanced_cuts_of(totals: Sequence[Floats]) -> tuple[int, ...]:
    """Return the last layer of each run, where every run has seconds of its own; a heuristic where they differ.

    Parameters
    ----------
    totals
        For each run, L + 1 prefix sums of what the layers take there; at least as many layers as runs.

    Notes
    -----
    Bisection over the longest run's seconds T: runs are filled one after another. With equal seconds that tells whether
    T suffices, and of the runs that are no longer than the least T the first are the longest. With different ones a run
    may be left with a layer that suits it ill, as none may be empty. A trial that fails rules out all T up to where a
    run would take a layer more, and one that succeeds all above its longest run: a few trials of O(n log L) do.

    >>> balanced_cuts_of([np.array([0.0, 1, 2, 3, 4]), np.array([0.0, 3, 6, 9, 12])])
    (2, 3)
    """
    known = {id(one): one.tolist() for one in totals}
    rows = [known[id(one)] for one in totals]
    low, high = 0.0, max(one[-1] for one in rows)
    best, high = _filled(rows, high)
    assert best is not None, f"{len(totals[0]) - 1} layers do not make {len(totals)} runs"
    for _ in range(_MOST_TRIALS):
        if high - low <= _CLOSE * high:
            break
        found, seconds = _filled(rows, (low + high) / 2)
        if found is None:
            low = seconds
        else:
            best, high = found, seconds
    return best


def _filled(totals: Sequence[list[float]], most_s: float) -> tuple[tuple[int, ...] | None, float]:
    """Return the last layers of runs of at most ``most_s``, and the longest of them.

    Where there would be more runs, return None, and the least seconds with which one of these would be longer.
    """
    num_layers, start, ends = len(totals[0]) - 1, 0, list[int]()
    longest, longer = 0.0, float("inf")
    for part, total in enumerate(totals):
        far = bisect_right(total, total[start] + most_s * (1 + _ROUNDING), start) - 1
        if far < num_layers:
            longer = min(longer, total[far + 1] - total[start])
        if far <= start:
            return None, longer  # not even its first layer
        end = min(far, num_layers - (len(totals) - 1 - part))
        longest = max(longest, total[end] - total[start])
        ends.append(end - 1)
        start = end
    return (tuple(ends), longest) if start == num_layers else (None, longer)
