"""Cases: published results, computed again from their inputs, and held against what was published.

A case is a folder. ``case.yaml`` holds inputs and named convention flags, never code and never our answer:

- ``source``: the publication;
- ``questions``: name -> a question as :func:`planner.api.load` takes it, with its ``configuration``; or a ``model``
  block, the inputs of one paper's own model, see :mod:`planner.case.papers`; or, with a block ``procure``, what to buy
  or rent, see :mod:`planner.case.procure`: its own price list is the file ``prices.csv`` in the folder;
- ``shared``: what all questions have in common; it is merged under each of them;
- ``quantities``: name -> what to compute from the answers, see :mod:`planner.case.quantities`;
- ``fit``: one parameter of all questions, searched between two bounds until one quantity meets a target;
- ``needs``: files without which the case is skipped, relative to the folder, or measured data as
  ``$PLANNER_DATA/traces/...``; a ``model`` block names these the same way;
- ``rows_from``: measured data instead of questions, quantities and ``published.csv``: a row for each measurement in a
  file that is never copied here, see :mod:`planner.case.papers.measured`.

``published.csv`` is what was published, a row for each, see :mod:`planner.case.published`.
``README.md`` asks the question in its first paragraph, and explains the differences.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from planner.case.file import DATA, CaseSpec, expanded, read_case, read_spec
from planner.case.papers.measured import MeasuredRow, RowsFrom, measure_of
from planner.case.published import is_within, text_of
from planner.case.rows import CaseResult, CaseRow, format_table, to_document
from planner.errors import Fault, SpecError
from planner.names import find, fold
from planner.spec.source import Source, faults_of

__all__ = ["CaseResult", "CaseRow", "case_names", "format_table", "run_case", "run_folder", "to_document"]


def case_names() -> tuple[str, ...]:
    """Return the names of all cases, sorted.

    >>> "osf-joint-fit" in case_names()
    True
    """
    return tuple(sorted(path.parent.name for path in _root().glob("*/case.yaml")))


def run_case(name: str) -> CaseResult:
    """Return a case's rows, computed now.

    Raises
    ------
    SpecError
        For an unknown name, with the nearest ones; or with the faults of the case's files.

    >>> result = run_case("osf-scaling-factor")
    >>> result.rows[0].ours, result.ok
    (0.9, True)
    """
    return run_folder(_root() / find(name, {fold(known): known for known in case_names()}, "case"))


def run_folder(folder: Path) -> CaseResult:
    """Return the rows of a case that lies anywhere."""
    source, spec = read_spec(folder)
    case = None if spec.rows_from else read_case(spec, source)
    readme = text_of(folder / "README.md")
    result = CaseResult(name=folder.name, question=_question_of(readme), readme=readme, rows_from=spec.rows_from)
    missing = [path for path in spec.needed if not (folder / expanded(path)).exists()]
    if missing:
        return replace(result, skipped=f"{', '.join(missing)}: {_why_missing(missing)}")
    if case is None:
        return _measured(result, spec, source)
    fitted = case.fitted()
    answers = case.answers(fitted)
    return replace(result, rows=tuple(case.row(one, answers) for one in case.published), fitted=fitted)


def _root() -> Path:
    """Return the folder of all cases."""
    return Path(str(resources.files("planner.cases")))


def _why_missing(paths: Iterable[str]) -> str:
    """Return why needed files are not there."""
    is_unset = not os.environ.get("PLANNER_DATA") and any(path.startswith(DATA) for path in paths)
    return "PLANNER_DATA is not set" if is_unset else "no such file"


def _question_of(readme: str) -> str:
    """Return the first paragraph below the title."""
    paragraphs = [" ".join(part.split()) for part in readme.split("\n\n")]
    return next((part for part in paragraphs if part and not part.startswith("#")), "")


# -- measured data ---------------------------------------------------------------------------------------------------


def _measured(result: CaseResult, spec: CaseSpec, source: Source) -> CaseResult:
    """Return the rows of measured data, each predicted in every way that the case names."""
    assert spec.rows_from is not None
    given, place = spec.rows_from, ("rows_from", "inputs")
    inputs, measure = measure_of(given.model)
    path = Path(expanded(given.path))
    try:
        found = measure(inputs.model_validate(given.inputs), path)
    except ValidationError as error:
        raise SpecError.of(faults_of(error, source, inputs, place)) from None
    except (KeyError, ValueError, OSError) as error:
        fault = Fault(file=str(path), problem=f"the case cannot read it: {error}.", mend=f"Read {spec.source}")
        raise SpecError.of([fault]) from None
    if not found.rows:
        fault = Fault(file=str(path), problem="there is no measurement in it.", mend=f"Read {spec.source}")
        raise SpecError.of([fault])
    rows = tuple(_measured_row(result.name, row, given) for row in found.rows)
    return replace(result, rows=rows, fitted=found.fitted)


def _measured_row(case: str, row: MeasuredRow, given: RowsFrom) -> CaseRow:
    """Return one measurement beside its prediction, judged as its evaluation says."""
    judged = given.evaluations[row.evaluation]
    return CaseRow(
        case=case,
        quantity=row.quantity,
        unit=row.unit,
        published=row.measured,
        ours=row.predicted,
        tolerance=judged.tolerance,
        class_="measured",
        ok=is_within(row.predicted, row.measured, judged.tolerance),
        source=given.path.removeprefix(DATA),
        reason=judged.reason,
        measured=row,
    )
