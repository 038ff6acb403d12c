"""Plots as data: what plotly accepts, names that stay text, colours that can be seen."""

from datetime import date
from html import unescape
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import contrast

from planner.answer import charts
from planner.answer.charts import plot_of
from planner.answer.html import script_json
from planner.letters import visible
from planner.sections import Bars, Gantt, Points, Stacked
from planner.words import thinned

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<b>bold</b>",
    "$x^2$",
    "a & b",
    "%{x}",
    "2026-01-01",
    "12",
    "",
    "\u2028",
    "'\"",
)
TOLD: Any = {"caption": "what is drawn", "alt": "in words"}
seconds = st.floats(0, 1e7, allow_nan=False)
names = st.text(max_size=60) | st.sampled_from(HOSTILE)


@pytest.mark.parametrize("colour", [*charts.COLOURS, charts.MUTED])
def test_white_text_on_a_colour_can_be_read_and_the_colour_seen_on_both_grounds(colour: str) -> None:
    assert contrast(colour, "#ffffff") >= 4.5
    assert contrast(colour, "#14171c") >= 3


@given(names)
def test_a_label_holds_no_markup_and_says_the_name(name: str) -> None:
    found = charts.label(name, 1000)
    assert "<" not in found
    assert unescape(found) == visible(name, keep="\n\t")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_never_categories_of_an_axis(name: str) -> None:
    data, layout = plot_of(Bars(rows=[(name, 1.0, "1"), (name, 2.0, "2")], title=name, unit="s", **TOLD))
    assert data[0]["y"] == [0, 1]
    assert layout["yaxis"]["ticktext"] == [charts.label(name)] * 2


@given(st.lists(st.tuples(names, seconds, names), min_size=1, max_size=8), st.booleans())
def test_bars_are_what_plotly_accepts(rows: list[tuple[str, float, str]], is_marked: bool) -> None:
    data, layout = plot_of(Bars(rows=rows, title="time", unit="s", marked=0 if is_marked else None, **TOLD))
    assert len(go.Figure(data, layout).data[0].x) == len(rows)
    script_json([data, layout])


@given(st.lists(st.tuples(st.integers(0, 4), seconds, seconds, names), min_size=1, max_size=8))
def test_a_timeline_is_what_plotly_accepts_and_keeps_lengths(spans: list[tuple[int, float, float, str]]) -> None:
    rows = [(row, min(one, other), max(one, other), name) for row, one, other, name in spans]
    data, layout = plot_of(Gantt(names=["row"] * 5, kinds={"kind": rows}, title="time", marks={"end": 1.0}, **TOLD))
    figure = go.Figure(data, layout)
    scale = charts.scale_of(max(1.0, *(end for _, _, end, _ in rows)), "s")[0]
    for drawn, (_, start, end, _) in zip(figure.data[0].x, rows, strict=True):
        assert drawn * scale == pytest.approx(end - start, rel=1e-5, abs=1e-12)


@given(st.lists(st.tuples(seconds, seconds, names), min_size=1, max_size=8), st.booleans())
def test_points_are_what_plotly_accepts(rows: list[tuple[float, float, str]], is_log: bool) -> None:
    data, layout = plot_of(
        Points(series={"a": rows, "b": rows}, titles=("x", "y"), lines=("a",), is_log=(is_log, is_log), **TOLD)
    )
    assert go.Figure(data, layout).layout.xaxis.type == ("log" if is_log else None)


def test_stacked_parts_and_an_infinite_limit_are_what_plotly_accepts() -> None:
    data, layout = plot_of(
        Stacked(
            names=["a", "b"],
            parts={"weights": [1e9, 2e9], "rest": [0.0, 1e9]},
            title="memory",
            limits=[4e9, float("inf")],
            **TOLD,
        )
    )
    figure = go.Figure(data, layout)
    assert [one.name for one in figure.data] == ["weights", "rest", "limit"]
    assert len(figure.data[2].x) == 3  # one line, and the break behind it
    assert sum(one.x[1] for one in figure.data[:2]) * 2**30 == pytest.approx(3e9, rel=1e-6)


@given(st.floats(1e-9, 1e9))
def test_an_axis_shows_numbers_that_can_be_read(value: float) -> None:
    by, unit = charts.scale_of(value, "s")
    assert unit in ("us", "ms", "s", "min", "h", "d")
    assert value < 1e-6 or value / by >= 1 - 1e-12


@given(st.lists(st.integers(), max_size=50), st.integers(2, 20))
def test_thinning_keeps_the_first_and_the_last_and_the_order(items: list[int], most: int) -> None:
    indices = thinned(range(len(items)), most)
    assert len(indices) == min(len(items), most)
    assert indices == sorted(set(indices))
    assert not items or (indices[0], indices[-1]) == (0, len(items) - 1)


@given(
    st.recursive(
        st.text() | st.sampled_from(HOSTILE) | st.integers(),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    )
)
def test_data_in_a_script_end_nothing_and_read_back(value: object) -> None:
    import json

    text = script_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_data_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        script_json([float("nan")])
    with pytest.raises(TypeError):
        script_json([date(2026, 1, 1)])
