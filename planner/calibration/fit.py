"""Robust least squares, and how sure its result is.

Residuals are log(predicted / measured), so that an error of 5 % counts alike at 1 KiB and at 1 GiB. The loss is scipy's
``soft_l1`` with a scale of 5 %: quadratic for small residuals, linear for large ones, so that a few disturbed
measurements do not bend the fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats

__all__ = [
    "SEED",
    "Interval",
    "Score",
    "bootstrap",
    "fold_of",
    "interleaved",
    "log_ratio",
    "robust_fit",
    "score_of",
    "spread",
]

SEED = 0
_SCALE = 0.05
_ROUNDS = 200
_COVERED = (2.5, 97.5)  # percent
_TINY = 1e-12
Indices = NDArray[np.intp]
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How far off predictions are of what was left out: mean and largest of absolute predicted / measured - 1.

    ``loss`` is the mean of absolute log ratios and ``standard_error`` its own; ``num_left_out`` predictions count.
    """

    mean: float
    worst: float
    loss: float
    standard_error: float
    num_left_out: int


def log_ratio(predicted: Floats, measured: Floats) -> Floats:
    """Return log(predicted / measured); a prediction of nothing counts as very small, not as minus infinity."""
    return np.log(np.maximum(predicted, _TINY * measured) / measured)


def robust_fit(
    residuals: Callable[[Floats], Floats],
    start: Sequence[float],
    *,
    lower: Sequence[float] | None = None,
    upper: Sequence[float] | None = None,
    tolerance: float = 1e-8,
    step: float | None = None,
) -> Floats:
    """Return the parameters that make log residuals least under the robust loss.

    Parameters
    ----------
    residuals
        Of parameters of order 1; finite everywhere within the bounds.
    lower, upper
        0 and infinity where they are left out.
    tolerance
        Relative change of loss or parameters at which to stop.
    step
        Relative step of the numerical derivatives; scipy's own where it is left out.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  # 0.4 s of import, of this command alone

    low = np.zeros(len(start)) if lower is None else np.asarray(lower, dtype=float)
    high = np.full(len(start), np.inf) if upper is None else np.asarray(upper, dtype=float)
    inside = np.clip(np.asarray(start, dtype=float), low + _TINY, high - _TINY)
    found = least_squares(
        residuals,
        inside,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_SCALE,
        ftol=tolerance,
        xtol=tolerance,
        diff_step=None if step is None else [step] * len(start),
    )
    return np.asarray(found.x, dtype=float)


def spread(
    residuals: Callable[[Floats], Floats], found: Floats, *, lower: Sequence[float] | None = None
) -> tuple[Interval, ...]:
    """Return 95 % intervals of what :func:`robust_fit` found: by bootstrap over rows.

    Rows are drawn again with replacement, with a fixed seed, so that equal data give equal intervals. Each draw is
    fitted by one Newton step from the fit to all rows, within the lower bounds. Fits from scratch to every draw took a
    hundred times as long and gave intervals alike on real timings, wider where two fits compete. Residuals of few rows
    are smaller than the errors, and their spread is not well known: the draws are stretched about the fit by
    ``sqrt(n / (n - p))`` and Student's t over the normal quantile, for ``n`` rows and ``p`` parameters (B. Efron and R.
    Tibshirani, An Introduction to the Bootstrap, 1993, sections 9.4 and 12.5). What all rows have in common, say a
    disturbed machine, widens no interval.

    Parameters
    ----------
    lower
        Of the parameters, as the fit kept to them; 0 where it is left out.
    """
    here = residuals(found)
    steps = 1e-6 * np.maximum(1.0, np.abs(found))
    columns = [
        (residuals(found + step * unit) - here) / step for step, unit in zip(steps, np.eye(len(found)), strict=True)
    ]
    jacobian = np.column_stack(columns)
    number = len(here)
    draw = np.random.default_rng(SEED)
    counts = draw.multinomial(number, np.full(number, 1 / number), size=_ROUNDS)
    times = 1 + (here / _SCALE) ** 2
    # Of soft_l1: its derivative over the residual, and its second derivative, which is small for large residuals.
    pulls = np.einsum("rm,mp->rp", counts * (here / np.sqrt(times)), jacobian)
    squares = np.einsum("rm,mp,mq->rpq", counts * times**-1.5, jacobian, jacobian, optimize=True)
    least = np.zeros(len(found)) if lower is None else np.asarray(lower, dtype=float)
    drawn = [_stepped(found, one, pull, least) for one, pull in zip(squares, pulls, strict=True)]
    stretched = found + _stretch(number, len(found)) * (np.percentile(drawn, _COVERED, axis=0) - found)
    low, high = np.maximum(stretched, least)
    return tuple(zip(low.tolist(), high.tolist(), strict=True))


def _stretch(num_rows: int, num_parameters: int) -> float:
    """Return by how much an interval of few rows is wider than its draws say; see :func:`spread`."""
    from scipy.stats import norm, t  # noqa: PLC0415  # late, as above

    freedom = max(1, num_rows - num_parameters)
    quantile = float(t.ppf(_COVERED[1] / 100, freedom) / norm.ppf(_COVERED[1] / 100))
    return float(np.sqrt(num_rows / freedom)) * quantile


def _stepped(found: Floats, squares: Floats, pull: Floats, least: Floats) -> Floats:
    """Return the parameters after one Newton step; those that would fall below their least stay there."""
    is_free = np.ones(len(found), dtype=bool)
    moved = least - found
    while is_free.any():
        ridge = 1e-9 * np.trace(squares) * np.eye(int(is_free.sum())) + _TINY * np.eye(int(is_free.sum()))
        sides = -pull[is_free] - squares[np.ix_(is_free, ~is_free)] @ (least - found)[~is_free]
        moved[is_free] = np.linalg.solve(squares[np.ix_(is_free, is_free)] + ridge, sides)
        below = is_free & (found + moved < least)
        if not below.any():
            break
        is_free &= ~below
        moved[below] = (least - found)[below]
    return np.asarray(found + moved)


def bootstrap(
    fit: Callable[[Indices], Sequence[float]], num_rows: int, *, rounds: int = _ROUNDS
) -> tuple[Interval, ...]:
    """Return 95 % intervals of figures of rows: of the same figures of rows drawn again, with a fixed seed."""
    draw = np.random.default_rng(SEED)
    found = np.array([fit(np.sort(draw.integers(0, num_rows, num_rows))) for _ in range(rounds)])
    low, high = np.percentile(found, _COVERED, axis=0)
    return tuple(zip(low.tolist(), high.tolist(), strict=True))


def interleaved(candidates: Indices, num_folds: int) -> list[Indices]:
    """Return the candidates in so many parts, dealt out in turn, so that neighbours fall into different parts."""
    count = min(num_folds, len(candidates))
    return [candidates[start::count] for start in range(count)]


def fold_of(num_rows: int, left_out: Indices) -> Indices:
    """Return the rows that stay in."""
    kept = np.ones(num_rows, dtype=bool)
    kept[left_out] = False
    return np.flatnonzero(kept)


def score_of(residuals: Sequence[float] | Floats) -> Score:
    """Return the score of log ratios of what was left out; at least one."""
    logs = np.asarray(residuals, dtype=float)
    sizes, errors = np.abs(logs), np.abs(np.expm1(logs))
    spread = float(sizes.std(ddof=1) / np.sqrt(len(sizes))) if len(sizes) > 1 else float(sizes[0])
    return Score(
        mean=float(errors.mean()),
        worst=float(errors.max()),
        loss=float(sizes.mean()),
        standard_error=spread,
        num_left_out=len(sizes),
    )
