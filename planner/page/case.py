"""The page of cases: theirs, ours and the difference, row by row."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from planner.case.rows import CaseResult, CaseRow
from planner.page import figures
from planner.page.parts import Block, Bullets, Figure, Page, Section, Table, Text, Tile, Tiles, few, thinned
from planner.page.words import many

__all__ = ["case_page_of"]

_MOST_BARS = 60
_MOST_ROWS = 400
_MOST_OVERVIEW = 120


def case_page_of(results: Sequence[CaseResult]) -> Page:
    """Return the page of cases."""
    rows = [row for result in results for row in result.rows]
    off = [row for row in rows if not row.ok]
    skipped = [result for result in results if result.skipped is not None]
    names = results[0].name if len(results) == 1 else many(len(results), "case")
    within = f"{len(rows) - len(off):,} of {many(len(rows), 'figure')}"
    sections = [_overview(results)] if len(results) > 1 else []
    sections += [_case(index, result) for index, result in enumerate(results)]
    return Page(
        title=f"Published results, computed again: {names}",
        answer=f"{within} are within their tolerance.",
        verdict=_verdict(off, skipped),
        mark="open" if off or not rows else "proven",
        sections=sections,
    )


def _verdict(off: Sequence[CaseRow], skipped: Sequence[CaseResult]) -> str:
    """Return what is off and what was left out."""
    parts = [f"{many(len(off), 'figure')} off"] if off else ["every figure that was computed agrees"]
    parts += [f"{many(len(skipped), 'case')} left out, for want of data"] if skipped else []
    return f"{'; '.join(parts)}.".capitalize()


def _overview(results: Sequence[CaseResult]) -> Section:
    """Return all cases, a row each."""
    listed = thinned(results, _MOST_OVERVIEW)
    table = Table(
        caption="Cases",
        columns=("case", "figures", "within", "largest difference", "question"),
        rows=[
            (
                result.name,
                f"{len(result.rows):,}",
                f"{sum(row.ok for row in result.rows):,}" if result.skipped is None else "left out",
                _largest(result.rows),
                result.question,
            )
            for result in listed
        ],
        numbers=(1, 2, 3),
        marked=[index for index, result in enumerate(listed) if not result.ok],
        note=few(len(results), len(listed), "cases", "--json has all of them"),
    )
    return Section(name="summary", title="All cases", blocks=[table])


def _largest(rows: Sequence[CaseRow]) -> str:
    """Return the largest relative difference."""
    found = [row.relative_difference for row in rows if row.relative_difference is not None]
    return f"{max(found, key=abs):+.1%}" if found else ""


def _case(index: int, result: CaseResult) -> Section:
    """Return one case."""
    name = f"case-{index + 1}"
    if result.skipped is not None:
        return Section(
            name=name, title=result.name, blocks=[Text(result.question), Text(f"Left out: {result.skipped}.")]
        )
    classes = Counter(row.class_ for row in result.rows)
    tiles = [
        Tile(label="figures", value=f"{len(result.rows):,}"),
        Tile(label="largest difference", value=_largest(result.rows) or "none"),
    ]
    tiles += [Tile(label=label, value=f"{number:,}") for label, number in sorted(classes.items())]
    blocks: list[Block] = [Text(result.question), Tiles(tiles=tiles), *_plot(result), _table(result)]
    blocks += [Bullets(lines=lines)] if (lines := _reasons(result.rows)) else []
    blocks += [Text(f"Fitted: {parameter} = {value:.5g}.") for parameter, value in result.fitted.items()]
    return Section(name=name, title=result.name, blocks=blocks)


def _plot(result: CaseResult) -> list[Block]:
    """Return the differences as bars."""
    rows = [row for row in result.rows if row.relative_difference is not None]
    if len(rows) < 2:
        return []
    shown = thinned(rows, _MOST_BARS)
    bars = [(row.quantity, 100 * (row.relative_difference or 0.0), f"{row.relative_difference:+.1%}") for row in shown]
    data, layout = figures.bars(bars, title="ours against theirs, in per cent", unit="")
    table = Table(
        caption="Differences",
        columns=("quantity", "difference"),
        rows=[(name, text) for name, _, text in bars],
        numbers=(1,),
    )
    alt = (
        f"Bars of the differences of {many(len(shown), 'figure')} from what was "
        f"published; the largest is {_largest(rows)}."
    )
    note = few(len(rows), len(shown), "figures", "the table has more")
    return [Figure(caption="Ours against theirs", alt=alt, data=data, layout=layout, table=table, note=note)]


def _table(result: CaseResult) -> Table:
    """Return theirs, ours and the difference."""
    listed = thinned(result.rows, _MOST_ROWS)
    return Table(
        caption="Theirs and ours",
        columns=("quantity", "unit", "theirs", "ours", "difference", "tolerance", "within", "class", "source"),
        rows=[_row(row) for row in listed],
        numbers=(2, 3, 4, 5),
        marked=[index for index, row in enumerate(listed) if not row.ok],
        note=few(len(result.rows), len(listed), "figures", "--json has all of them"),
    )


def _row(row: CaseRow) -> tuple[str, ...]:
    """Return one figure."""
    difference = "" if row.relative_difference is None else f"{row.relative_difference:+.1%}"
    figures_of = (f"{row.published:g}", f"{row.ours:.5g}", difference)
    return (row.quantity, row.unit, *figures_of, row.tolerance, "yes" if row.ok else "NO", row.class_, row.source)


def _reasons(rows: Sequence[CaseRow]) -> list[str]:
    """Return why tolerances are as wide as they are, a reason once."""
    given = sorted((row for row in rows if row.reason), key=lambda row: row.reason)
    found = []
    for reason, same in groupby(given, key=lambda row: row.reason):
        names = [row.quantity for row in same]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        found.append(f"{', '.join(names[:3])}{more}: {reason}")
    return found[:_MOST_BARS]
