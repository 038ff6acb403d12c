"""Cases: published results, computed again from their inputs, and held against what was published.

A case is a folder. ``case.yaml`` holds inputs and named convention flags, never code and never our answer:

- ``source``: the publication;
- ``questions``: name -> a question as :func:`planner.api.load` takes it, with its ``configuration``; or a ``model``
  block, the inputs of one paper's own model, see :mod:`planner.cases.forms`; or, with a block ``procure``, what to buy
  or rent, whose own price list is the file ``prices.csv`` in the folder;
- ``shared``: what all questions have in common; it is merged under each of them;
- ``quantities``: name -> what to compute from the answers, see :mod:`planner.case.quantities`;
- ``fit``: one parameter of all questions, searched between two bounds until one quantity meets a target;
- ``needs``: files without which the case is skipped, relative to the folder, or measured data as
  ``$PLANNER_DATA/traces/...``; a ``model`` block names these the same way.

``published.csv`` is what was published, a row for each, see :mod:`planner.case.files`.
``README.md`` asks the question in its first paragraph, and explains the differences.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from planner.case.files import PublishedSpec, expanded, is_within, read_case, text_of, why_missing
from planner.case.quantities import evaluate, scale_of
from planner.errors import SpecError
from planner.names import find, fold

__all__ = ["CaseResult", "CaseRow", "case_names", "format_table", "run_case", "run_folder", "to_document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """One quantity: theirs and ours, in ``unit``, and whether they agree within the tolerance."""

    case: str
    quantity: str
    unit: str
    published: float
    ours: float
    tolerance: str
    class_: str
    ok: bool
    source: str
    reason: str

    @property
    def relative_difference(self) -> float | None:
        """``ours / published - 1``; None where 0 was published."""
        return self.ours / self.published - 1 if self.published else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """All rows of a case; none, and the reason in ``skipped``, where its data are missing."""

    name: str
    question: str
    readme: str
    rows: tuple[CaseRow, ...] = ()
    fitted: Mapping[str, float] = field(default_factory=dict)
    skipped: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every row is within its tolerance."""
        return all(row.ok for row in self.rows)


def case_names() -> tuple[str, ...]:
    """Return the names of all cases, sorted.

    >>> "osf-joint-fit" in case_names()
    True
    """
    return tuple(sorted(path.parent.name for path in _root().glob("*/case.yaml")))


def _root() -> Path:
    """Return the folder of all cases."""
    return Path(str(resources.files("planner.cases")))


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
    case = read_case(folder)
    readme = text_of(folder / "README.md")
    paragraphs = [" ".join(part.split()) for part in readme.split("\n\n")]
    question = next((part for part in paragraphs if part and not part.startswith("#")), "")
    result = CaseResult(name=folder.name, question=question, readme=readme)
    missing = [path for path in case.spec.needs if not (folder / expanded(path)).exists()]
    if missing:
        return replace(result, skipped=f"{', '.join(missing)}: {why_missing(missing)}")
    fitted = case.fitted()
    answers = case.answers(fitted)

    def row(theirs: PublishedSpec) -> CaseRow:
        """Return one quantity, computed, beside what was published."""
        value = evaluate(case.quantities[theirs.quantity], answers, case.source)
        try:
            ours = value.number / scale_of(theirs.unit, value.dimension)
        except ValueError as error:
            place = (theirs.quantity, "unit")
            raise SpecError.of([case.table.fault(place, str(error), "Mend the unit.")]) from None
        is_ok = is_within(ours, theirs.published, theirs.tolerance)
        return CaseRow(case=folder.name, ours=ours, ok=is_ok, **theirs.model_dump())

    return replace(result, rows=tuple(row(one) for one in case.published), fitted=fitted)


def to_document(results: Iterable[CaseResult]) -> dict[str, Any]:
    """Return ``planner.case/1``."""
    found = tuple(results)
    names = ("case", "quantity", "unit", "published", "ours", "relative_difference", "tolerance", "ok")
    rows = [row for result in found for row in result.rows]
    return {
        "schema": "planner.case/1",
        "rows": [{**{name: getattr(row, name) for name in names}, "class": row.class_} for row in rows],
        "skipped": {result.name: result.skipped for result in found if result.skipped is not None},
    }


def format_table(result: CaseResult) -> str:
    """Return a case's rows as a table in Markdown, and its fitted parameter, as its README has them."""
    if result.skipped is not None:
        return f"Skipped: {result.skipped}.\n"
    head = ("quantity", "unit", "published", "ours", "difference", "tolerance", "class", "source", "within")
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head))]
    for row in result.rows:
        difference = "" if row.relative_difference is None else f"{row.relative_difference:+.1%}"
        cells = (row.quantity, row.unit, f"{row.published:g}", f"{row.ours:.5g}", difference, row.tolerance)
        lines.append(f"| {' | '.join((*cells, row.class_, row.source, 'yes' if row.ok else 'NO'))} |")
    for parameter, value in result.fitted.items():
        lines += ["", f"Fitted: `{parameter}` = {value:.5g}"]
    return "\n".join(lines) + "\n"
