"""Timelines: each task once, and where there are too many, what takes most of each step."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer import drawing
from planner.answer.charts import plot_of
from planner.answer.drawing import timeline_chart
from planner.answer.timeline import timeline_document
from planner.timeline import Process, Span

lengths = st.lists(
    st.tuples(st.sampled_from(["forward", "backward", "idle"]), st.integers(1, 50)), min_size=1, max_size=60
)


def spans_of(given_lengths: list[tuple[str, int]], row: str) -> list[Span]:
    """Spans one after the other, milliseconds long; idle time between them."""
    found, at = [], 0
    for kind, length in given_lengths:
        if kind != "idle":
            found.append(Span(row=row, name=kind, kind=kind, start_s=at / 1000, end_s=(at + length) / 1000))
        at += length
    return found


def drawn(spans: list[Span], rows: list[str]) -> dict[str, list[tuple[int, float, float]]]:
    """Row, start and length of the bars by kind, in seconds."""
    data, layout = plot_of(timeline_chart(timeline_document(spans, [], rows)))
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[layout["xaxis"]["title"]["text"].split("(")[1].rstrip(")")]
    return {
        trace["name"]: [
            (row, base * unit, length * unit)
            for row, base, length in zip(trace["y"], trace["base"], trace["x"], strict=True)
        ]
        for trace in data
    }


@given(lengths.filter(lambda given: any(kind != "idle" for kind, _ in given)))
def test_each_task_is_a_bar_of_its_length(given_lengths: list[tuple[str, int]]) -> None:
    spans = spans_of(given_lengths, "gpu")
    found = drawn(spans, ["gpu"])
    for kind, bars in found.items():
        own = [span for span in spans if span.kind == kind]
        assert [start for _, start, _ in bars] == pytest.approx([span.start_s for span in own], rel=1e-4, abs=1e-6)
        assert [length for *_, length in bars] == pytest.approx([span.end_s - span.start_s for span in own], rel=1e-4)


@given(st.lists(lengths, min_size=1, max_size=3))
def test_too_many_tasks_keep_the_shares_of_their_kinds(rows: list[list[tuple[str, int]]]) -> None:
    names = [f"row {index}" for index in range(len(rows))]
    spans = [span for name, given_lengths in zip(names, rows, strict=True) for span in spans_of(given_lengths, name)]
    if not spans:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_MOST_SPANS", 0)
        found = drawn(spans, names)
    step_s = max(span.end_s for span in spans) / 100
    for index, name in enumerate(names):
        bars = sorted((start, length) for kind in found.values() for row, start, length in kind if row == index)
        assert all(start + length <= after + 1e-6 for (start, length), (after, _) in pairwise(bars))
        for kind in ("forward", "backward"):
            truth_s = sum(span.end_s - span.start_s for span in spans if span.row == name and span.kind == kind)
            shown_s = sum(length for row, _, length in found.get(kind, ()) if row == index)
            assert abs(truth_s - shown_s) <= 3 * step_s + 1e-6  # as many kinds as there are


def test_what_lies_within_a_task_is_not_drawn_again() -> None:
    spans = [
        Span(row="gpu", name="forward", kind="forward", start_s=0, end_s=3),
        Span(row="gpu", name="part", kind="tensor", start_s=1, end_s=2, is_part=True),
    ]
    chart = timeline_chart(timeline_document(spans, [], ["gpu"]))
    assert list(chart.kinds) == ["forward"]
    assert chart.table is not None
    assert chart.table.rows == [("gpu", "1", "3 s", "100%")]


@given(st.lists(st.floats(1e-6, 0.5), min_size=2, max_size=40))
def test_tasks_that_meet_end_to_end_are_all_drawn(lengths_s: list[float]) -> None:
    ends_s = list(accumulate(lengths_s))
    spans = [
        Span(row="network", name="all-reduce", kind="all_reduce", start_s=start, end_s=end)
        for start, end in zip([0.0, *ends_s], ends_s, strict=False)
    ]
    chart = timeline_chart(timeline_document(spans, [], ["network"]))
    assert [len(bars) for bars in chart.kinds.values()] == [len(spans)]


def test_of_many_rows_those_of_whole_processes_are_drawn() -> None:
    rows = [f"stage {stage}: {row}" for stage in range(50) for row in ("compute", "gradients")]
    processes = [Process(name=f"stage {stage}", rows=tuple(rows[2 * stage : 2 * stage + 2])) for stage in range(50)]
    spans = [Span(row=row, name="forward", kind="forward", start_s=0, end_s=1) for row in rows]
    chart = timeline_chart(timeline_document(spans, [], rows, processes=processes))
    drawn = chart.names
    assert len(drawn) == 40
    assert [name.split(":")[0] for name in drawn[::2]] == [name.split(":")[0] for name in drawn[1::2]]
    assert {drawn[0], drawn[-1]} == {rows[0], rows[-1]}
    assert "40 of 100 rows are shown" in chart.note
