"""The question of a measured row, and its predictions with the calibration varied."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner import api
from planner.calibration.read_iterations import IterationTime
from planner.calibration.read_table import fault
from planner.cost import Floats
from planner.errors import PlannerError, SpecError
from planner.problem import Problem
from planner.units import Dimension, format_exact

__all__ = ["START", "Predictor", "Question"]

START = {"utilisation": 0.5, "bandwidth_efficiency": 0.7, "inside_efficiency": 0.7, "overhead": 1e-4}
_FIELDS = {
    "overhead": "overhead_s",
    "bandwidth_efficiency": "bandwidth_efficiency",
    "inside_efficiency": "inside_efficiency",
}
_PLAN_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Question:
    """A row's question with its configuration; ``is_planned``: the configuration was chosen by a plan."""

    data: Mapping[str, Any]
    family: str
    is_planned: bool
    problem: Problem

    @staticmethod
    def of(row: IterationTime, base: Mapping[str, Any]) -> "Question":
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
            raise SpecError.of([fault(Path(row.file), row.line, f"{row.name}: {first}", mend)]) from None
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
        is_alike = fitted.inside_efficiency == fitted.bandwidth_efficiency
        # What a block means that gives the one share alone: see planner.spec.calibration.
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
        fields: dict[str, Any] = {_FIELDS[name]: value for name, value in values.items() if name != "utilisation"}
        if self.follows:
            fields["inside_efficiency"] = values["bandwidth_efficiency"]
        problem = replace(self.problem, calibration=replace(self.problem.calibration, **fields))
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
    data = copy.deepcopy(dict(base))
    for key, value in changes.items():
        old = data.get(key)
        data[key] = _deep(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    given = changes.get("configuration")
    if isinstance(given, Mapping):
        data["configuration"] = {key: data["configuration"][key] for key in given}
    elif "fix" in changes:
        data.pop("configuration", None)
    return data


def _deep(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with another one's keys set, level by level."""
    found = dict(old)
    for key, value in new.items():
        before = found.get(key)
        found[key] = _deep(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return found
