"""Seconds against bytes of one collective on one number of devices: three forms, and the choice among them.

- ``affine``: ``startup + size / bandwidth`` (:class:`planner.cost.Affine`), two parameters;
- ``piecewise``: eq. 18 of the OSF model, logarithmic below a threshold and linear above
  (:class:`planner.models.collectives.PiecewiseLogLinear`), five parameters;
- ``curve``: the measured medians themselves (:class:`planner.models.collectives.MeasuredCurve`).

Rule of the choice: every inner size is left out once, in ten interleaved parts, and predicted by each form from the
rest; both ends stay in, since a form is not asked to reach beyond them. Of the forms whose mean absolute log error is
at most one standard error above the least, or 0.1 %, the simplest is taken, in the order above.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.calibration.fit import (
    Interval,
    Score,
    fold_of,
    interleaved,
    log_ratio,
    robust_fit,
    score_of,
    spread,
)
from planner.calibration.read_collectives import Group
from planner.cost import Affine, Floats, TransferCost
from planner.models.collectives import MeasuredCurve, PiecewiseLogLinear

__all__ = ["FORMS", "LEAST_SIZES", "Curve", "fit_curve"]

FORMS = ("affine", "piecewise", "curve")  # the simpler first
LEAST_SIZES = {"affine": 3, "piecewise": 8, "curve": 5}
_NUM_PARTS = 10
_NUM_THRESHOLDS = 16
_LEAST_PART = 3  # sizes on either side of a threshold
_TOLERANCE = 1e-6
_ALIKE = 1e-3  # errors that differ by less are alike, however exact the measurements are


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A group of timings and what was fitted to it.

    Attributes
    ----------
    form, cost
        The form that was chosen, and it as a cost.
    parameters, intervals
        By name, with the unit at its end; 95 %, by bootstrap over sizes. None of a measured curve.
    left_out
        Predicted / measured - 1 of every size, each left out of its fit but for the two ends.
    scores
        Of every form that the number of sizes allows, of sizes left out.
    """

    group: Group
    form: str
    cost: TransferCost
    parameters: Mapping[str, float]
    intervals: Mapping[str, Interval]
    left_out: Floats
    scores: Mapping[str, Score]
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
    chosen = form or _simplest(scores)
    cost = _FITS[chosen](group.size_bytes, group.time_s)
    parameters = _parameters(cost)
    return Curve(
        group=group,
        form=chosen,
        cost=cost,
        parameters=parameters,
        intervals=_intervals(group, cost, list(parameters)),
        left_out=np.expm1(logs[chosen]),
        scores=scores,
        notes=_remarks(group, cost),
    )


def too_few(group: Group, form: str | None = None) -> str:
    """Return what to say where a group has too few sizes."""
    needs = ", ".join(f"{LEAST_SIZES[name]} for {_WORDS[name]}" for name in FORMS)
    number = len(group.size_bytes)
    what = f"{number} size{'s' * (number > 1)}"
    return f"{group.name}: {what}, too few{f' for the form {form}' if form else ''}. Measure at least {needs}."


_WORDS = {"affine": "a straight line (affine)", "piecewise": "equation 18 (piecewise)", "curve": "the measured curve"}


def _simplest(scores: Mapping[str, Score]) -> str:
    """Return the simplest form within one standard error of the best, or within what makes no difference."""
    best = min(scores.values(), key=lambda score: score.loss)
    limit = best.loss + max(best.standard_error, _ALIKE)
    return next(name for name in FORMS if name in scores and scores[name].loss <= limit)


def _left_out(group: Group, fit: Callable[[Floats, Floats], TransferCost]) -> Floats:
    """Return log(predicted / measured) of a form: of inner sizes left out, and of both ends left in."""
    sizes, seconds = group.size_bytes, group.time_s
    logs = log_ratio(fit(sizes, seconds)(sizes), seconds)
    for part in interleaved(np.arange(1, len(sizes) - 1), _NUM_PARTS):
        kept = fold_of(len(sizes), part)
        logs[part] = log_ratio(fit(sizes[kept], seconds[kept])(sizes[part]), seconds[part])
    return logs


# -- forms -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
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


def _piecewise(sizes: Floats, seconds: Floats) -> TransferCost:
    """Return eq. 18: the threshold by trying, the two sides by robust least squares."""
    last = len(sizes) - _LEAST_PART
    places = np.unique(np.linspace(_LEAST_PART, last, _NUM_THRESHOLDS).round().astype(int)).tolist()
    rough = {place: _rough_loss(sizes, seconds, place) for place in places}
    place = min(rough, key=lambda one: rough[one])
    step = max(1, (last - _LEAST_PART) // _NUM_THRESHOLDS)
    near = range(max(_LEAST_PART, place - step), min(last, place + step) + 1)
    fine = {one: rough.get(one) or _rough_loss(sizes, seconds, one) for one in list(near)[:: max(1, len(near) // 16)]}
    return _with_threshold(sizes, seconds, min(fine, key=lambda one: fine[one]))


def _rough_loss(sizes: Floats, seconds: Floats, place: int) -> float:
    """Return the loss of a threshold at a place: straight lines by least squares of relative errors."""
    loss = 0.0
    for x, y in ((np.log2(sizes[:place]), seconds[:place]), (sizes[place:], seconds[place:])):
        columns = np.column_stack([x / x.max() / y if x.max() else x / y, 1 / y])
        found = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)[0]
        loss += float(np.abs(columns @ found - 1).sum())
    return loss


def _with_threshold(sizes: Floats, seconds: Floats, place: int) -> PiecewiseLogLinear:
    """Return eq. 18 with the threshold at the size at a place; slopes are not negative, offsets may be."""
    log_slope_s, log_offset_s = _Line.of(np.log2(sizes[:place]), seconds[:place], is_signed=True).slope_and_offset
    per_byte_s, offset_s = _Line.of(sizes[place:], seconds[place:], is_signed=True).slope_and_offset
    return PiecewiseLogLinear(
        log_slope_s=log_slope_s,
        log_offset_s=log_offset_s,
        per_byte_s=per_byte_s,
        offset_s=offset_s,
        threshold_bytes=float(sizes[place]),
    )


def _curve(sizes: Floats, seconds: Floats) -> TransferCost:
    """Return the measured curve."""
    return MeasuredCurve(size_bytes=tuple(sizes.tolist()), seconds=tuple(seconds.tolist()))


_FITS: Mapping[str, Callable[[Floats, Floats], TransferCost]] = {
    "affine": _affine,
    "piecewise": _piecewise,
    "curve": _curve,
}


# -- what is told ----------------------------------------------------------------------------------------------------


def _parameters(cost: TransferCost) -> dict[str, float]:
    """Return a form's parameters by name, in SI units."""
    if isinstance(cost, Affine):
        return {"startup_s": cost.startup_s, "per_byte_s": cost.per_byte_s}
    if isinstance(cost, PiecewiseLogLinear):
        names = ("log_slope_s", "log_offset_s", "per_byte_s", "offset_s", "threshold_bytes")
        return {name: float(getattr(cost, name)) for name in names}
    return {}


def _intervals(group: Group, cost: TransferCost, names: list[str]) -> dict[str, Interval]:
    """Return the 95 % intervals; the threshold of eq. 18 is held."""
    sizes, seconds = group.size_bytes, group.time_s
    if isinstance(cost, Affine):
        slope, offset = _Line.of(sizes, seconds).intervals
        return dict(zip(names, (offset, slope), strict=True))
    if not isinstance(cost, PiecewiseLogLinear):
        return {}
    place = int(np.searchsorted(sizes, cost.threshold_bytes))
    below = _Line.of(np.log2(sizes[:place]), seconds[:place], is_signed=True).intervals
    above = _Line.of(sizes[place:], seconds[place:], is_signed=True).intervals
    return dict(zip(names, (*below, *above, (cost.threshold_bytes, cost.threshold_bytes)), strict=True))


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
