"""What a case answers: its rows, and the document and the table that they make."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.case.papers.measured import MeasuredRow, RowsFrom

__all__ = ["CaseResult", "CaseRow", "format_table", "to_document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """One quantity: theirs and ours, in ``unit``, and whether they agree within the tolerance.

    ``measured`` has the group and the alternatives of a row of ``rows_from``.
    """

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
    measured: MeasuredRow | None = None

    @property
    def relative_difference(self) -> float | None:
        """``ours / published - 1``; None where 0 was published."""
        return self.ours / self.published - 1 if self.published else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """All rows of a case; none, and the reason in ``skipped``, where its data are missing.

    ``rows_from`` is what a case of measured data says about them.
    """

    name: str
    question: str
    readme: str
    rows: tuple[CaseRow, ...] = ()
    fitted: Mapping[str, float] = field(default_factory=dict)
    skipped: str | None = None
    rows_from: RowsFrom | None = None

    @property
    def ok(self) -> bool:
        """Whether every row is within its tolerance."""
        return all(row.ok for row in self.rows)


def to_document(results: Iterable[CaseResult]) -> dict[str, Any]:
    """Return ``planner.case/1``."""
    found = tuple(results)
    return {
        "schema": "planner.case/1",
        "rows": [_document_row(row) for result in found for row in result.rows],
        "skipped": {result.name: result.skipped for result in found if result.skipped is not None},
    }


def format_table(result: CaseResult) -> str:
    """Return a case's rows as a table in Markdown, and its fitted parameter, as its README has them."""
    if result.skipped is not None:
        return f"Skipped: {result.skipped}.\n"
    head = ("quantity", "unit", "published", "ours", "difference", "tolerance", "class", "source", "within")
    rows = [head, tuple("---" for _ in head), *(_cells(row) for row in result.rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    for parameter, value in result.fitted.items():
        lines += ["", f"Fitted: `{parameter}` = {value:.5g}"]
    return "\n".join(lines) + "\n"


def _cells(row: CaseRow) -> tuple[str, ...]:
    """Return the cells of one row."""
    difference = "" if row.relative_difference is None else f"{row.relative_difference:+.1%}"
    numbers = (row.unit, f"{row.published:g}", f"{row.ours:.5g}", difference)
    return (row.quantity, *numbers, row.tolerance, row.class_, row.source, "yes" if row.ok else "NO")


def _document_row(row: CaseRow) -> dict[str, Any]:
    """Return one row of the document."""
    names = ("case", "quantity", "unit", "published", "ours", "relative_difference", "tolerance", "ok")
    return {**{name: getattr(row, name) for name in names}, "class": row.class_}
