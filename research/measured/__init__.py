"""Cases of measured data, which stay in the folder that ``PLANNER_DATA`` names: rows, fits, and bands of error.

A case's ``rows_from`` names a file or a folder under ``$PLANNER_DATA/``, the module of this room that reads it, and the
evaluations: ways to predict all its rows. A module has ``Inputs`` (a pydantic model) and ``measure(inputs, path)``.

A parameter is fitted by least squares of log(predicted / measured), so that twice and half are equally wrong, and
rounded to three digits, so that what is printed is what was used. A row's prediction comes from a fit without the row's
group (:func:`left_out`).
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator

from planner.names import find, fold
from planner.question.values import Model

__all__ = [
    "BandSpec",
    "EvaluationSpec",
    "Folds",
    "Measured",
    "MeasuredRow",
    "Parameters",
    "RowsFrom",
    "fit_logs",
    "left_out",
    "left_out_each",
    "measure_of",
    "share_of",
]

# Name in a case -> module of this room; imported when asked for.
MODULES = {"throughput": "throughput", "layers": "layers", "push-pull": "push_pull"}
_DIGITS = 3
_PULL = 1e-5  # towards the start: a parameter that the rows do not tell stays there, on every processor
_LEAST = 1e-12  # of a parameter, so that it has a logarithm

_Text = Annotated[str, Field(min_length=1)]
Parameters = tuple[float, ...]


class _Timed(Protocol):
    @property
    def measured_s(self) -> float: ...


_Row = TypeVar("_Row")
_TimedRow = TypeVar("_TimedRow", bound=_Timed)
# Evaluation -> the group of a row, and a fit to the rows of other groups.
Folds = Mapping[str, tuple[Callable[[_Row], str], Callable[[Sequence[_Row]], Parameters]]]


class EvaluationSpec(Model):
    """One way to predict all rows, and by how much a row may be off before the case fails."""

    about: _Text
    tolerance: Annotated[str, Field(pattern=r"^\d+%$")]
    reason: _Text


class BandSpec(Model):
    """Whose error one evaluation shows: a family's, with or without calibration on the network in question.

    ``parameters``: how many a network of layers has, at least and at most, for which the band counts; None where no
    answer carries it.
    """

    family: _Text
    calibrated: bool
    evaluation: _Text
    conditions: _Text
    parameters: tuple[float, float] | None = None


class RowsFrom(Model):
    """Where measured rows lie, who reads them, and how they are judged."""

    path: Annotated[str, Field(pattern=r"^\$PLANNER_DATA/.")]
    model: _Text
    inputs: dict[str, Any] = {}
    evaluations: Annotated[dict[str, EvaluationSpec], Field(min_length=1)]
    bands: list[BandSpec] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        unknown = [band.evaluation for band in self.bands if band.evaluation not in self.evaluations]
        if unknown:
            raise ValueError(f"no evaluation {unknown[0]!r}. Use one of {', '.join(self.evaluations)}.")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measurement and one prediction of it."""

    evaluation: str  # how it was predicted
    quantity: str
    # what the row is reported under; in an evaluation that leaves groups out, the one that its fit did not see
    group: str
    unit: str
    measured: float
    predicted: float
    # setting, choice: rows of one setting differ in a choice that somebody has to make, and are ranked; no choice, no
    # rank
    setting: str = ""
    choice: str = ""
    transport: str = ""  # ``tcp`` or ``rdma``: bands are of either


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All rows of a case, and the parameters as fitted on all of them."""

    rows: tuple[MeasuredRow, ...]
    fitted: Mapping[str, float]


def measure_of(name: str) -> tuple[type[BaseModel], Callable[[Any, Path], Measured]]:
    """Return the inputs and the function of a reader of measured data; raise SpecError for an unknown name."""
    known = find(name, {fold(known): known for known in MODULES}, "model")
    module = import_module(f"research.measured.{MODULES[known]}")
    return module.Inputs, module.measure


def left_out(
    rows: Sequence[_Row], group_of: Callable[[_Row], Hashable], fit: Callable[[Sequence[_Row]], Parameters]
) -> Iterator[tuple[_Row, Parameters]]:
    """Yield every row with parameters that were fitted to the rows of all other groups.

    >>> mean = lambda rows: (sum(rows) / len(rows),)
    >>> list(left_out([1.0, 2.0, 6.0], lambda row: row > 3, mean))
    [(1.0, (6.0,)), (2.0, (6.0,)), (6.0, (1.5,))]
    """
    for group in dict.fromkeys(map(group_of, rows)):
        parameters = fit([row for row in rows if group_of(row) != group])
        yield from ((row, parameters) for row in rows if group_of(row) == group)


def left_out_each(rows: Sequence[_Row], folds: Folds[_Row]) -> Iterator[tuple[str, str, _Row, Parameters]]:
    """Yield evaluation, group, row and parameters of every row in every evaluation that leaves its group out."""
    for name, (group_of, fit) in folds.items():
        yield from ((name, group_of(row), row, found) for row, found in left_out(rows, group_of, fit))


def share_of(name: str, names: Iterable[str], shares: Sequence[float]) -> float:
    """Return the share that is fitted for one of several names: its own, or the one of all.

    >>> share_of("b", ["a", "b"], (0.5, 0.7)), share_of("b", ["a", "b"], (0.6,))
    (0.7, 0.6)
    """
    return shares[list(names).index(name)] if len(shares) > 1 else shares[0]


def fit_logs(
    rows: Sequence[_TimedRow],
    predicted_s: Callable[[_TimedRow, Parameters], float],
    *,
    start: Parameters,
    most: Parameters,
) -> Parameters:
    """Return positive parameters with the least squares of log(predicted / measured), to three digits.

    Parameters
    ----------
    rows, predicted_s
        What was measured, and what some parameters make of it.
    start, most
        Where the search begins, and where a parameter that the rows do not tell stays; the largest value of each.

    >>> from types import SimpleNamespace as Row
    >>> rows = [Row(measured_s=2.0), Row(measured_s=8.0)]
    >>> fit_logs(rows, lambda row, parameters: parameters[0], start=(1.0,), most=(100.0,))
    (4.0,)
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  # late: most cases fit nothing

    def logs(log_parameters: Any) -> Any:
        parameters = tuple(np.exp(log_parameters).tolist())
        residuals = np.log([predicted_s(row, parameters) / row.measured_s for row in rows])
        return np.append(residuals, _PULL * (log_parameters - np.log(start)))

    found = least_squares(logs, np.log(start), bounds=(np.log(_LEAST), np.log(most)), diff_step=[1e-3])
    return tuple(float(f"{value:.{_DIGITS}g}") for value in np.exp(found.x).tolist())
