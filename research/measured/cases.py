"""Cases of measured data: folders of ``research/cases``, read, run and judged.

``case.yaml`` names its ``source`` and, under ``rows_from``, a file or a folder under ``$PLANNER_DATA/``, the module of
this room that reads it, its inputs, and the evaluations: ways to predict all its rows. ``README.md`` asks the question
in its first paragraph.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from planner.case.run import expanded, is_within, text_of, why_missing
from planner.errors import SpecError
from planner.question.source import faults_of, read_source
from planner.question.values import Model
from research import ROOT
from research.measured import MeasuredRow, RowsFrom, measure_of

__all__ = ["CASES", "MeasuredCase", "case_names", "measured_cases", "run_folder"]

CASES = ROOT / "research" / "cases"


class _CaseSpec(Model):
    """The keys of ``case.yaml``."""

    source: Annotated[str, Field(min_length=1)]
    rows_from: RowsFrom


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCase:
    """All rows of a case; none, and the reason in ``skipped``, where its data are missing."""

    name: str
    readme: str
    given: RowsFrom
    rows: tuple[MeasuredRow, ...] = ()
    fitted: Mapping[str, float] = field(default_factory=dict)
    skipped: str | None = None

    @property
    def off(self) -> tuple[MeasuredRow, ...]:
        """The rows that are further off than their evaluation allows."""
        evaluations = self.given.evaluations
        return tuple(
            row
            for row in self.rows
            if not is_within(row.predicted, row.measured, evaluations[row.evaluation].tolerance)
        )


def case_names() -> tuple[str, ...]:
    """Return the names of all cases, sorted."""
    return tuple(sorted(path.parent.name for path in CASES.glob("*/case.yaml")))


def measured_cases() -> tuple[MeasuredCase, ...]:
    """Return all cases of measured data, computed now."""
    return tuple(run_folder(CASES / name) for name in case_names())


def run_folder(folder: Path) -> MeasuredCase:
    """Return the rows of a case that lies anywhere, each measurement predicted in every way that the case names.

    Raises
    ------
    SpecError
        With the faults of the case's files, or of the measurements.
    """
    source = read_source(folder / "case.yaml")
    try:
        spec = _CaseSpec.model_validate(source.data)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, _CaseSpec)) from None
    given = spec.rows_from
    case = MeasuredCase(name=folder.name, readme=text_of(folder / "README.md"), given=given)
    path = Path(expanded(given.path))
    if not path.exists():
        return replace(case, skipped=f"{given.path}: {why_missing([given.path])}")
    inputs, measure = measure_of(given.model)
    try:
        found = measure(inputs.model_validate(given.inputs), path)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, inputs, ("rows_from", "inputs"))) from None
    except (KeyError, ValueError, OSError) as error:
        raise SpecError.one(f"the case cannot read it: {error}.", f"Read {spec.source}", file=path) from None
    if not found.rows:
        raise SpecError.one("there is no measurement in it.", f"Read {spec.source}", file=path)
    return replace(case, rows=found.rows, fitted=found.fitted)
