"""Whole iterations at several configurations -> the few parameters of a family.

Least squares of log(predicted / measured), predictions by :func:`planner.api.predict` with the calibration varied. A
parameter that the rows do not determine is left at its default and named: no prediction moves with it; or its 95 %
interval, from the Jacobian, is wider than a factor of :data:`_WIDE` either way; or there are too few rows. The error is
of rows left out, one at a time, predicted by a fit to the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from planner import api
from planner.calibration.curves import Interval, Score, fold_of, robust_fit, score_of
from planner.calibration.tables import IterationTime
from planner.cost import Floats
from planner.errors import PlannerError, SpecError
from planner.families import FAMILIES
from planner.frozen import frozen
from planner.problem import Problem
from planner.question.source import merged_questions
from planner.units import Dimension, format_exact

START = {"utilisation": 0.5, "bandwidth_efficiency": 0.7, "inside_efficiency": 0.7, "overhead": 1e-4}
_PLAN_LIMIT_S = 20.0


@frozen(kw_only=False)
class Question:
    """A row's question with its configuration; ``is_planned``: the configuration was chosen by a plan."""

    data: Mapping[str, Any]
    family: str
    is_planned: bool
    problem: Problem

    @staticmethod
    def of(row: IterationTime, base: Mapping[str, object]) -> "Question":
        """Return the question of a row; say which row has no answer."""
        data = _merged(base, row.changes)
        try:
            problem = api.load(data)
            if problem.configuration is not None:
                return Question(data, problem.configuration[0], False, problem)
            plan = api.plan(problem, time_limit_s=_PLAN_LIMIT_S)
        except PlannerError as error:
            first = str(error).splitlines()[0]
            mend = "Check the row's keys and values, and the spec."
            raise SpecError.one(f"{row.name}: {first}", mend, file=row.file, line=row.line) from None
        data = {**data, "configuration": {plan.family: plan.configuration.to_document()}}
        return Question(data, plan.family, True, problem)

    @property
    def has_utilisation(self) -> bool:
        """Whether the question gives a utilisation itself."""
        block = self.data.get("calibration", {})
        return "utilisation" in block or "utilisation_by_kind" in block

    def loaded(self, values: Mapping[str, float]) -> Problem:
        """Return the problem with some parameters set, from the text of the question."""
        times = {name: format_exact(value, Dimension.TIME) for name, value in values.items() if name == "overhead"}
        return api.load({**self.data, "calibration": {**self.data.get("calibration", {}), **values, **times}})


class Predictor:
    """Predictions of one question with the same parameters set to one value after the other.

    It loads the question two times in all: seconds of layers are linear in 1 / utilisation, and shares of the links and
    the overhead stand in the problem as they are.
    """

    def __init__(self, question: Question, names: Sequence[str]) -> None:
        start = {name: START[name] for name in names}
        self.problem = question.loaded(start)
        given = question.data.get("calibration", {})
        fitted = self.problem.calibration
        is_alike = fitted.links.inside_share == fitted.links.pcie_share == fitted.links.network_share
        # What a block means that gives the one share alone: see planner.question.calibration.
        is_open = "bandwidth_efficiency" in names and not {"inside_efficiency"} & (given.keys() | set(names))
        self.follows = is_alike and is_open
        self.slopes: dict[str, tuple[Floats, Floats]] = {}
        if "utilisation" in names:
            half = question.loaded({**start, "utilisation": start["utilisation"] / 2}).profiles
            self.slopes = {
                name: (half[name].forward_s - one.forward_s, half[name].backward_s - one.backward_s)
                for name, one in self.problem.profiles.items()
            }

    def predicted_s(self, values: Mapping[str, float]) -> float:
        """Return the seconds of an iteration."""
        fitted = self.problem.calibration
        links = fitted.links
        if (share := values.get("bandwidth_efficiency")) is not None:
            links = links.with_network(share)
        if (inside := share if self.follows else values.get("inside_efficiency")) is not None:
            links = links.with_inside(inside)
        fitted = replace(fitted, links=links, overhead_s=values.get("overhead", fitted.overhead_s))
        problem = replace(self.problem, calibration=fitted)
        if self.slopes:
            more = START["utilisation"] / values["utilisation"] - 1
            profiles = {
                name: replace(
                    one,
                    forward_s=one.forward_s + more * self.slopes[name][0],
                    backward_s=one.backward_s + more * self.slopes[name][1],
                )
                for name, one in problem.profiles.items()
            }
            problem = replace(problem, profiles=profiles)
        return api.predict(problem).iteration_time_s


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the question with a row's changes; a configuration that a row gives replaces the whole one.

    Only where the row's configuration is of the family that the question has are its keys merged.
    """
    data = merged_questions(base, changes)
    given = changes.get("configuration")
    if isinstance(given, Mapping):
        data["configuration"] = {key: data["configuration"][key] for key in given}
    elif "fix" in changes:
        data.pop("configuration", None)
    return data


# -- the fit ---------------------------------------------------------------------------------------------------------

_WIDE = 2.0
_SEEN = 2e-3  # a doubled parameter that moves no prediction by this much is not seen
_FAR, _HALVINGS = 8.0, 10
_NOISE = 5e-3  # of a measured iteration, at least: a fit through all rows is not without error
_LIMITS = {"utilisation": (1e-3, 4.0), "bandwidth_efficiency": (1e-3, 4.0), "inside_efficiency": (1e-3, 4.0)}
_MOST_OVERHEAD = 0.5  # of the shortest iteration


@frozen
class FittedRow:
    """A row: what was measured, and what is predicted with the defaults, with the fit, and by a fit without it."""

    name: str
    measured_s: float
    default_s: float
    fitted_s: float
    left_out_s: float | None


@frozen
class Iterations:
    """What was fitted to iterations."""

    family: str
    # parameters, intervals: those that the rows determine, in SI units, by the calibration's keys; 95 %, from the
    # Jacobian
    parameters: Mapping[str, float]
    intervals: Mapping[str, Interval]
    undetermined: Mapping[str, str]  # why each of the others is left at its default
    rows: tuple[FittedRow, ...]
    # score, default_score: of rows left out (None where there is no fit, or a row too few to leave one out), and of the
    # defaults on all
    score: Score | None
    default_score: Score
    notes: tuple[str, ...] = field(default=())


def fit_iterations(rows: Sequence[IterationTime], base: Mapping[str, object]) -> Iterations:
    """Return the fit of a question's family to measured rows.

    Parameters
    ----------
    base
        The resolved question (``Problem.resolved``), which each row changes.

    Raises
    ------
    SpecError
        If a row's changes do not make a question with an answer, or the rows are of several families.
    """
    questions = [Question.of(row, base) for row in rows]
    families = sorted({one.family for one in questions})
    if len(families) > 1:
        problem = f"the rows are of several families: {', '.join(families)}."
        mend = "Give each family's rows in a file of their own, or name one family in the spec."
        raise SpecError.one(problem, mend, file=rows[0].file)
    measured = np.array([row.time_s for row in rows])
    model = _Model(questions, measured)
    may_be_fitted = FAMILIES[families[0]].FITTED
    names = [name for name in may_be_fitted if not (name == "utilisation" and model.has_own_seconds)]
    values, undetermined = model.determined(names)
    if model.has_own_seconds and "utilisation" in may_be_fitted:
        undetermined["utilisation"] = "the question's seconds of layers are measured, or fitted to transformers"
    default, fitted = model.predicted({}), model.predicted(values)
    left_out = model.left_out(values)
    logs = [math.log(one / time_s) for one, time_s in zip(left_out, measured.tolist(), strict=True) if one is not None]
    return Iterations(
        family=families[0],
        parameters=values,
        intervals=model.intervals(values),
        undetermined=undetermined,
        rows=tuple(
            FittedRow(name=row.name, measured_s=row.time_s, default_s=before, fitted_s=after, left_out_s=without)
            for row, before, after, without in zip(rows, default.tolist(), fitted.tolist(), left_out, strict=True)
        ),
        score=score_of(logs) if logs else None,
        default_score=score_of(np.log(default / measured)),
        notes=(
            f"{number} of the rows give no configuration: what is not pinned is as planned with the defaults, which "
            f"may differ from what ran",
        )
        if (number := sum(one.is_planned for one in questions))
        else (),
    )


# -- the fit ---------------------------------------------------------------------------------------------------------


class _Model:
    """Predictions of all rows as a function of the parameters, and what the rows say about them."""

    def __init__(self, questions: Sequence[Question], measured: Floats) -> None:
        self.questions = questions
        self.measured = measured
        self._known: dict[tuple[int, tuple[tuple[str, float], ...]], float] = {}
        self._predictors: dict[tuple[int, tuple[str, ...]], Predictor] = {}

    @property
    def has_own_seconds(self) -> bool:
        """Whether the seconds of layers do not come from a utilisation."""
        return any(
            profile.is_measured or (one.problem.dnn.transformer is not None and not one.has_utilisation)
            for one in self.questions
            for profile in one.problem.profiles.values()
        )

    def predicted(self, values: Mapping[str, float], rows: Sequence[int] | None = None) -> Floats:
        """Return the seconds of some rows, or of all."""
        key, names = tuple(sorted(values.items())), tuple(sorted(values))
        chosen = range(len(self.questions)) if rows is None else rows
        for row in chosen:
            if (row, names) not in self._predictors:
                self._predictors[row, names] = Predictor(self.questions[row], names)
            if (row, key) not in self._known:
                self._known[row, key] = self._predictors[row, names].predicted_s(values)
        return np.array([self._known[row, key] for row in chosen])

    def limits(self, name: str) -> tuple[float, float]:
        """Return the least and the greatest value of a parameter."""
        return _LIMITS.get(name, (1e-9, _MOST_OVERHEAD * float(self.measured.min())))

    def fit(
        self, names: Sequence[str], rows: Sequence[int] | None = None, start: Mapping[str, float] = START
    ) -> dict[str, float]:
        """Return the parameters that fit some rows best, or all; in logarithms, within their limits."""
        if not names:
            return {}
        chosen = list(range(len(self.questions))) if rows is None else list(rows)
        bounds = np.log([self.limits(name) for name in names])

        def residuals(x: Floats) -> Floats:
            values = dict(zip(names, np.exp(x).tolist(), strict=True))
            return np.log(self.predicted(values, chosen) / self.measured[chosen])

        first = np.clip(np.log([start[name] for name in names]), bounds[:, 0], bounds[:, 1])
        low, high = bounds[:, 0].tolist(), bounds[:, 1].tolist()
        found = robust_fit(residuals, first.tolist(), lower=low, upper=high, tolerance=1e-5, step=1e-4)
        return dict(zip(names, np.exp(found).tolist(), strict=True))

    def determined(self, names: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
        """Return the parameters that the rows determine, and why the others are not."""
        undetermined: dict[str, str] = {}
        left = list(names)
        while left:
            if len(left) >= len(self.questions):
                worst = min(left, key=lambda name: self.moved(name, {}))
                few = "1 row is" if len(self.questions) == 1 else f"{len(self.questions)} rows are"
                undetermined[worst] = f"{few} too few to determine it, too"
                left.remove(worst)
                continue
            values = self.fit(left)
            unseen = [name for name in left if self.moved(name, values) < _SEEN]
            if unseen:
                undetermined |= dict.fromkeys(unseen, "no measured row depends on it")
                left = [name for name in left if name not in unseen]
                continue
            widths = {name: math.log(high / low) / 2 for name, (low, high) in self.intervals(values).items()}
            widest = max(left, key=lambda name: widths[name])
            if widths[widest] <= math.log(_WIDE):
                return values, undetermined
            factor = f"{math.exp(widths[widest]):.2g}" if widths[widest] < math.log(1e3) else "more than 1000"
            undetermined[widest] = f"the rows leave it open by a factor of {factor} either way"
            left.remove(widest)
        return {}, undetermined

    def moved(self, name: str, values: Mapping[str, float]) -> float:
        """Return by how much a doubled parameter moves the prediction that it moves most, in logarithms."""
        one = values.get(name, START[name])
        low, high = ({**values, name: value} for value in (one, min(2 * one, self.limits(name)[1])))
        return float(np.abs(np.log(self.predicted(high) / self.predicted(low))).max())

    def intervals(self, values: Mapping[str, float]) -> dict[str, Interval]:
        """Return 95 % intervals from the Jacobian of the log residuals in the logarithms of the parameters.

        Predictions have kinks, where one thing begins to wait for another, and a fit likes to end at one. Slopes say
        little there: of those on both sides the flatter counts, and an interval reaches at least as far as the squares
        stay within what noise explains while the other parameters are held.
        """
        from scipy.special import stdtrit  # noqa: PLC0415  # late: of this command alone

        names, step = list(values), 1e-2
        if not names:
            return {}
        here = np.log(self.predicted(values))
        up, down = (
            np.column_stack(
                [np.log(self.predicted({**values, name: values[name] * math.exp(by)})) - here for name in names]
            )
            / by
            for by in (step, -step)
        )
        jacobian = np.where(np.abs(up) < np.abs(down), up, down)
        freedom = max(1, len(self.measured) - len(names))
        residuals = here - np.log(self.measured)
        variance = max(float(residuals @ residuals) / freedom, _NOISE**2)
        inverse = np.linalg.pinv(jacobian.T @ jacobian + 1e-12 * np.eye(len(names)))
        quantile = float(stdtrit(freedom, 0.975))
        widths = np.minimum(quantile * np.sqrt(variance * np.diag(inverse)), 50.0)
        most = float(residuals @ residuals) + quantile**2 * variance
        return {
            name: (
                values[name] * math.exp(-max(width, self._reach(values, name, -1, most))),
                values[name] * math.exp(max(width, self._reach(values, name, 1, most))),
            )
            for name, width in zip(names, widths.tolist(), strict=True)
        }

    def _reach(self, values: Mapping[str, float], name: str, sign: int, most: float) -> float:
        """Return how far, in its logarithm, a parameter can go before the squares are too many; at most by 8 times."""

        def is_within(way: float) -> bool:
            moved = {**values, name: values[name] * math.exp(sign * way)}
            residuals = np.log(self.predicted(moved) / self.measured)
            return float(residuals @ residuals) <= most

        near, far = 0.0, math.log(_FAR)
        if is_within(far):
            return far
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            near, far = (middle, far) if is_within(middle) else (near, middle)
        return near

    def left_out(self, values: Mapping[str, float]) -> list[float | None]:
        """Return the prediction of every row by a fit of the same parameters to the others."""
        names, number = list(values), len(self.questions)
        if not names or number <= len(names) + 1:
            return [None] * number
        found: list[float | None] = []
        for row in range(number):
            others = fold_of(number, np.array([row])).tolist()
            found.append(float(self.predicted(self.fit(names, others, values), [row])[0]))
        return found
