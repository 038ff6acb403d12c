"""Robust least squares, how sure its result is, and seconds against bytes of one collective on one number of devices.

Residuals are log(predicted / measured), so that an error of 5 % counts alike at 1 KiB and at 1 GiB. The loss is scipy's
``soft_l1`` with a scale of 5 %: quadratic for small residuals, linear for large ones, so that a few disturbed
measurements do not bend the fit.

A curve has one of three forms:

- ``affine``: ``startup + size / bandwidth`` (:class:`planner.cost.Affine`), two parameters;
- ``piecewise``: eq. 18 of the OSF model, logarithmic below a threshold and linear above
  (:class:`planner.models.communication.PiecewiseLogLinear`), five parameters;
- ``curve``: the measured medians themselves (:class:`planner.models.communication.MeasuredCurve`).

Rule of the choice: every inner size is left out once, in ten interleaved parts, and predicted by each form from the
rest; both ends stay in, since a form is not asked to reach beyond them. Of the forms whose mean absolute log error is
at most one standard error above the least, or 0.1 %, the simplest is taken, in the order above.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from planner.calibration.tables import Group
from planner.cost import Affine, Floats, TransferCost
from planner.frozen import frozen
from planner.models.communication import MeasuredCurve, PiecewiseLogLinear

SEED = 0
_SCALE = 0.05
_ROUNDS = 200
_COVERED = (2.5, 97.5)  # percent
_TINY = 1e-12
Indices = NDArray[np.intp]
Interval = tuple[float, float]


@frozen
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
    from scipy.special import ndtri, stdtrit  # noqa: PLC0415  # late, as above

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
    freedom = max(1, number - len(found))
    quantile = float(stdtrit(freedom, _COVERED[1] / 100) / ndtri(_COVERED[1] / 100))
    stretched = found + float(np.sqrt(number / freedom)) * quantile * (np.percentile(drawn, _COVERED, axis=0) - found)
    low, high = np.maximum(stretched, least)
    return tuple(zip(low.tolist(), high.tolist(), strict=True))


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


# -- curves ------------------------------------------------------------------------------------------------------------

FORMS = ("affine", "piecewise", "curve")  # the simpler first
LEAST_SIZES = {"affine": 3, "piecewise": 8, "curve": 5}
_WORDS = {"affine": "a straight line (affine)", "piecewise": "equation 18 (piecewise)", "curve": "the measured curve"}
_NUM_PARTS = 10
_NUM_THRESHOLDS = 16
_LEAST_PART = 3  # sizes on either side of a threshold
_TOLERANCE = 1e-6
_ALIKE = 1e-3  # errors that differ by less are alike, however exact the measurements are


@frozen
class Curve:
    """A group of timings and what was fitted to it."""

    group: Group
    # form, cost: the form that was chosen, and it as a cost
    form: str
    cost: TransferCost
    # parameters, intervals: by name, with the unit at its end; 95 %, by bootstrap over sizes. None of a measured curve
    parameters: Mapping[str, float]
    intervals: Mapping[str, Interval]
    left_out: Floats  # predicted / measured - 1 of every size, each left out of its fit but for the two ends
    scores: Mapping[str, Score]  # of every form that the number of sizes allows, of sizes left out
    notes: tuple[str, ...] = field(default=())

    @property
    def score(self) -> Score:
        """The score of the chosen form."""
        return self.scores[self.form]


def fit_curve(group: Group, *, form: str | None = None) -> Curve:
    """Return a group's fit: of the form that cross-validation chooses, or of a given one.

    Raises
    ------
    ValueError
        If there are fewer than three sizes, or fewer than the given form needs.
    """
    number = len(group.size_bytes)
    allowed = [name for name in FORMS if number >= LEAST_SIZES[name]]
    if not allowed or (form is not None and form not in allowed):
        raise ValueError(too_few(group, form))
    logs = {name: _left_out(group, _FITS[name]) for name in allowed}
    scores = {name: score_of(found[1:-1]) for name, found in logs.items()}
    best = min(scores.values(), key=lambda score: score.loss)
    limit = best.loss + max(best.standard_error, _ALIKE)  # or what makes no difference
    chosen = form or next(name for name in FORMS if name in scores and scores[name].loss <= limit)
    cost = _FITS[chosen](group.size_bytes, group.time_s)
    parameters, intervals = _parameters(group, cost)
    return Curve(
        group=group,
        form=chosen,
        cost=cost,
        parameters=parameters,
        intervals=intervals,
        left_out=np.expm1(logs[chosen]),
        scores=scores,
        notes=_remarks(group, cost),
    )


def too_few(group: Group, form: str | None) -> str:
    """Return what to say where a group has too few sizes."""
    needs = ", ".join(f"{LEAST_SIZES[name]} for {_WORDS[name]}" for name in FORMS)
    number = len(group.size_bytes)
    what = f"{number} size{'s' * (number > 1)}"
    return f"{group.name}: {what}, too few{f' for the form {form}' if form else ''}. Measure at least {needs}."


def _left_out(group: Group, fit: Callable[[Floats, Floats], TransferCost]) -> Floats:
    """Return log(predicted / measured) of a form: of inner sizes left out, and of both ends left in."""
    sizes, seconds = group.size_bytes, group.time_s
    logs = log_ratio(fit(sizes, seconds)(sizes), seconds)
    for part in interleaved(np.arange(1, len(sizes) - 1), _NUM_PARTS):
        kept = fold_of(len(sizes), part)
        logs[part] = log_ratio(fit(sizes[kept], seconds[kept])(sizes[part]), seconds[part])
    return logs


# -- forms -----------------------------------------------------------------------------------------------------------


@frozen(kw_only=False)
class _Line:
    """A straight line by robust least squares of relative errors: ``values`` of order 1 times ``units``.

    ``least``: of the values; slopes and start-ups are not negative, intercepts of eq. 18 may be.
    """

    values: Floats
    units: Floats
    least: tuple[float, float]
    x: Floats
    y: Floats

    @staticmethod
    def of(x: Floats, y: Floats, *, is_signed: bool = False) -> "_Line":
        """Return the line ``slope x + offset`` through points of ascending x."""
        units = np.array([float(y[-1]) / float(max(x[-1], 1.0)), float(y.mean() if is_signed else y.min())])
        least = (0.0, -10.0 if is_signed else 0.0)
        start = [0.5, 0.5] if is_signed else [1.0, 1.0]
        found = robust_fit(_residuals(x, y, units), start, lower=least, upper=(np.inf, np.inf), tolerance=_TOLERANCE)
        return _Line(found, units, least, x, y)

    @property
    def slope_and_offset(self) -> tuple[float, float]:
        """The line in SI units."""
        slope, offset = (self.values * self.units).tolist()
        return slope, offset

    @property
    def intervals(self) -> tuple[Interval, Interval]:
        """The 95 % intervals of slope and offset."""
        ends = np.array(spread(_residuals(self.x, self.y, self.units), self.values, lower=self.least))
        slope, offset = (ends * self.units[:, None]).tolist()
        return (slope[0], slope[1]), (offset[0], offset[1])


def _residuals(x: Floats, y: Floats, units: Floats) -> Callable[[Floats], Floats]:
    """Return the log residuals of lines through points."""
    return lambda values: log_ratio(values[0] * units[0] * x + values[1] * units[1], y)


def _affine(sizes: Floats, seconds: Floats) -> TransferCost:
    """Return the straight line, neither part negative."""
    per_byte_s, startup_s = _Line.of(sizes, seconds).slope_and_offset
    return Affine(startup_s=startup_s, per_byte_s=per_byte_s)


def _sides(sizes: Floats, seconds: Floats, place: int) -> tuple[_Line, _Line]:
    """Return both sides of eq. 18 with the threshold at a place; slopes are not negative, offsets may be."""
    below = _Line.of(np.log2(sizes[:place]), seconds[:place], is_signed=True)
    return below, _Line.of(sizes[place:], seconds[place:], is_signed=True)


def _piecewise(sizes: Floats, seconds: Floats) -> TransferCost:
    """Return eq. 18: the threshold by trying, the two sides by robust least squares."""
    last = len(sizes) - _LEAST_PART
    places = np.unique(np.linspace(_LEAST_PART, last, _NUM_THRESHOLDS).round().astype(int)).tolist()
    rough = {place: _rough_loss(sizes, seconds, place) for place in places}
    place = min(rough, key=lambda one: rough[one])
    step = max(1, (last - _LEAST_PART) // _NUM_THRESHOLDS)
    near = range(max(_LEAST_PART, place - step), min(last, place + step) + 1)
    fine = {one: rough.get(one) or _rough_loss(sizes, seconds, one) for one in list(near)[:: max(1, len(near) // 16)]}
    place = min(fine, key=lambda one: fine[one])
    below, above = _sides(sizes, seconds, place)
    (log_slope_s, log_offset_s), (per_byte_s, offset_s) = below.slope_and_offset, above.slope_and_offset
    return PiecewiseLogLinear(
        log_slope_s=log_slope_s,
        log_offset_s=log_offset_s,
        per_byte_s=per_byte_s,
        offset_s=offset_s,
        threshold_bytes=float(sizes[place]),
    )


def _rough_loss(sizes: Floats, seconds: Floats, place: int) -> float:
    """Return the loss of a threshold at a place: straight lines by least squares of relative errors."""
    loss = 0.0
    for x, y in ((np.log2(sizes[:place]), seconds[:place]), (sizes[place:], seconds[place:])):
        columns = np.column_stack([x / x.max() / y if x.max() else x / y, 1 / y])
        found = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)[0]
        loss += float(np.abs(columns @ found - 1).sum())
    return loss


_FITS: Mapping[str, Callable[[Floats, Floats], TransferCost]] = {
    "affine": _affine,
    "piecewise": _piecewise,
    "curve": lambda sizes, seconds: MeasuredCurve(size_bytes=tuple(sizes.tolist()), seconds=tuple(seconds.tolist())),
}


# -- what is told ----------------------------------------------------------------------------------------------------


def _parameters(group: Group, cost: TransferCost) -> tuple[dict[str, float], dict[str, Interval]]:
    """Return a form's parameters by name, in SI units, and their 95 % intervals; the threshold of eq. 18 is held."""
    sizes, seconds = group.size_bytes, group.time_s
    ends: tuple[Interval, ...]
    if isinstance(cost, Affine):
        names: tuple[str, ...] = ("startup_s", "per_byte_s")
        slope, offset = _Line.of(sizes, seconds).intervals
        ends = offset, slope
    elif isinstance(cost, PiecewiseLogLinear):
        names = ("log_slope_s", "log_offset_s", "per_byte_s", "offset_s", "threshold_bytes")
        below, above = _sides(sizes, seconds, int(np.searchsorted(sizes, cost.threshold_bytes)))
        ends = *below.intervals, *above.intervals, (cost.threshold_bytes, cost.threshold_bytes)
    else:
        return {}, {}
    return {name: float(getattr(cost, name)) for name in names}, dict(zip(names, ends, strict=True))


def _remarks(group: Group, cost: TransferCost) -> tuple[str, ...]:
    """Return what a reader should know about a form as it was fitted."""
    notes = list(group.notes)
    if isinstance(cost, Affine) and cost.startup_s <= 1e-3 * float(group.time_s.min()):
        notes.append("no start-up shows: the smallest sizes already take time in proportion to their bytes")
    if isinstance(cost, Affine) and cost.per_byte_s * group.size_bytes[-1] <= 1e-3 * cost.startup_s:
        notes.append("no bandwidth shows: the largest size takes no longer than the smallest; measure larger ones")
    if isinstance(cost, PiecewiseLogLinear):
        before, after = (float(cost(np.float64(cost.threshold_bytes * factor))) for factor in (1 - 1e-9, 1.0))  # type: ignore[arg-type]
        if before and abs(after / before - 1) > 0.05:
            notes.append(f"the two sides of the threshold differ there by {after / before - 1:+.0%}")
    return tuple(notes)
