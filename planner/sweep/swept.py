"""A sweep from a script: asked, answered and told by one call."""

from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.frozen import frozen
from planner.shown import Recorded
from planner.sweep.engine import Done, answer_sweep, refuse_hopeless
from planner.sweep.question import Sweep
from planner.sweep.report import columns_of, rows_of, summary_document, summary_of
from planner.sweep.store import Store


@frozen
class Swept(Recorded):
    """What a sweep found.

    Attributes
    ----------
    columns, rows
        Of each question the fields that vary and its answer, as ``planner sweep --export`` writes them.
    summary
        The document ``planner.sweep/1``, with the best rows and what each value of a field does.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    summary: Mapping[str, Any]

    def __repr__(self) -> str:
        """Return what a prompt shows: how many rows of which outcome; :meth:`to_records` has all of them."""
        counts = ", ".join(f"{number:,} {outcome}" for outcome, number in self.summary["counts"].items() if number)
        return f"<Swept: {len(self.rows):,} rows ({counts})>"

    def to_dict(self) -> dict[str, object]:
        """Return the summary."""
        return dict(self.summary)

    def to_records(self) -> list[dict[str, object]]:
        """Return a row of each question that was answered, in the order of the grid."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def answered(
    asked: Sweep,
    *,
    store: Path | None,
    today: date,
    scheduler: str | None,
    is_retried: bool,
    on_progress: Callable[[Done], None],
) -> Swept:
    """Answer what is open of a sweep; without a store in a file that is gone afterwards."""
    refuse_hopeless(asked, today)
    with TemporaryDirectory() as folder, Store(store or Path(folder) / "sweep.sqlite") as opened:
        answer_sweep(
            asked,
            opened,
            today=today,
            num_workers=asked.num_workers,
            scheduler=scheduler,
            is_retried=is_retried,
            on_progress=on_progress,
        )
        summary = summary_of(asked, opened)
        is_complete = sum(summary.counts.values()) == summary.number
        return Swept(
            columns=tuple(columns_of(asked.grid)),
            rows=tuple(tuple(row.cells()) for row in rows_of(asked, opened)),
            summary=summary_document(summary, asked.grid, identity=asked.identity, is_complete=is_complete),
        )
