"""The answer to a case: published figures, ours and the difference, row by row."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from planner.sections import Answer, Bars, Block, Bullets, Section, Table, Text, Tiles
from planner.words import few, many, thinned

if TYPE_CHECKING:
    from planner.case.run import CaseResult, CaseRow

_MOST_BARS = 60
_MOST_ROWS = 400
_MOST_CASES = 120
_WHOLE = "--json has all of them"


def case_answer(results: Sequence["CaseResult"]) -> Answer:
    """Return cases as an answer."""
    rows = [row for result in results for row in result.rows]
    num_off = sum(not row.ok for row in rows)
    num_skipped = sum(result.skipped is not None for result in results)
    names = results[0].name if len(results) == 1 else many(len(results), "case")
    verdict = f"{many(num_off, 'figure')} off" if num_off else "Every figure that was computed agrees"
    left_out = f"; {many(num_skipped, 'case')} left out, for want of data" if num_skipped else ""
    overview = [Section(name="summary", title="All cases", blocks=partial(_overview, results))]
    return Answer(
        title=f"Published results, computed again: {names}",
        answer=f"{len(rows) - num_off:,} of {many(len(rows), 'figure')} are within their tolerance.",
        verdict=f"{verdict}{left_out}.",
        mark="open" if num_off or not rows else "proven",
        sections=[
            *(overview if len(results) > 1 else []),
            *(
                Section(name=f"case-{index}", title=result.name, blocks=partial(_case, result))
                for index, result in enumerate(results, start=1)
            ),
        ],
    )


def _overview(results: Sequence["CaseResult"]) -> list[Block]:
    """Return all cases, a row each."""
    listed = thinned(results, _MOST_CASES)
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
        note=few(len(results), len(listed), "cases", _WHOLE),
    )
    return [table]


def _largest(rows: Sequence["CaseRow"]) -> str:
    found = [row.relative_difference for row in rows if row.relative_difference is not None]
    return f"{max(found, key=abs):+.1%}" if found else ""


def _case(result: "CaseResult") -> list[Block]:
    if result.skipped is not None:
        return [Text(result.question), Text(f"Left out: {result.skipped}.")]
    rows = thinned(result.rows, _MOST_ROWS)
    classes = sorted(Counter(row.class_ for row in result.rows).items())
    tiles = [("figures", f"{len(result.rows):,}"), ("largest difference", _largest(result.rows) or "none")]
    table = Table(
        caption="Published and ours",
        columns=("quantity", "unit", "published", "ours", "difference", "tolerance", "within", "class", "source"),
        rows=[
            (
                row.quantity,
                row.unit,
                f"{row.published:g}",
                f"{row.ours:.5g}",
                "" if row.relative_difference is None else f"{row.relative_difference:+.1%}",
                row.tolerance,
                "yes" if row.ok else "NO",
                row.class_,
                row.source,
            )
            for row in rows
        ],
        numbers=(2, 3, 4, 5),
        marked=[index for index, row in enumerate(rows) if not row.ok],
        note=few(len(result.rows), len(rows), "figures", _WHOLE),
    )
    reasons = []  # why tolerances are as wide as they are, a reason once
    for reason, same in groupby(sorted(filter(lambda row: row.reason, result.rows), key=_reason), key=_reason):
        named = [row.quantity for row in same]
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        reasons.append(f"{', '.join(named[:3])}{more}: {reason}")
    return [
        Text(result.question),
        Tiles([*tiles, *((label, f"{number:,}") for label, number in classes)]),
        *_chart(result),
        table,
        *([Bullets(reasons[:_MOST_BARS])] if reasons else []),
        *(Text(f"Fitted: {parameter} = {value:.5g}.") for parameter, value in result.fitted.items()),
    ]


def _reason(row: "CaseRow") -> str:
    """Return why a tolerance is as wide as it is."""
    return row.reason


def _chart(result: "CaseResult") -> list[Bars]:
    rows = [(row.quantity, row.relative_difference) for row in result.rows if row.relative_difference is not None]
    if len(rows) < 2:
        return []
    shown = thinned(rows, _MOST_BARS)
    table = Table(
        caption="Differences",
        columns=("quantity", "difference"),
        rows=[(name, f"{difference:+.1%}") for name, difference in shown],
        numbers=(1,),
    )
    chart = Bars(
        caption="Ours against what was published",
        alt=f"Bars of the differences of {many(len(shown), 'figure')} from what was "
        f"published; the largest is {_largest(result.rows)}.",
        rows=[(name, 100 * difference, f"{difference:+.1%}") for name, difference in shown],
        title="ours against what was published, in per cent",
        table=table,
        note=few(len(rows), len(shown), "figures", "the table has more"),
    )
    return [chart]
