"""Series as plotly's JSON, made as plain data: no library is asked until the page is written.

Rows of lying bars stand at whole numbers, with their names as tick texts: a name as a category would be read as a date
or a number where it looks like one, and two equal names would become one row. Plotly reads a small HTML in labels;
:func:`label` keeps names from being read so.
"""

from collections.abc import Sequence
from math import floor, isfinite, log10
from typing import Any

from planner.letters import visible
from planner.sections import Bars, Chart, Gantt, Points, Stacked
from planner.words import short

# Each has a contrast of 4.5 or more with white, and 3 or more with the dark background; a test computes that.
COLOURS = ("#2f72c4", "#b35900", "#1f7a4a", "#a8408d", "#127a8c", "#c23a4c", "#7656c9", "#77690f")
MUTED = "#6b7280"

_ROW_PX, _LOW_ROW_PX = 26, 20  # the latter where there are many
_MANY = 24
_AXES_PX = 76
_LEAST_PX, _MOST_PX = 130, 1400
_LONGEST = 38  # letters of a row's name
_LONGEST_HINT = 160

Scale = tuple[float, str]
_TIMES: tuple[Scale, ...] = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES: tuple[Scale, ...] = tuple(
    (float(2**power), name) for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))
)
_DASHED = {"color": MUTED, "width": 3, "dash": "dash"}
_LEGEND = {
    "showlegend": True,
    "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "traceorder": "normal"},
}

Plot = tuple[list[dict[str, Any]], dict[str, Any]]  # plotly's data and layout


def plot_of(chart: Chart) -> Plot:
    """Return a series as plotly's data and layout."""
    if isinstance(chart, Bars):
        return _bars(chart)
    if isinstance(chart, Stacked):
        return _stacked(chart)
    return _gantt(chart) if isinstance(chart, Gantt) else _points(chart)


def label(text: str, most: int = _LONGEST) -> str:
    """Return a name as plotly's labels take it: short, and with nothing that reads as markup.

    >>> label("<script>alert(1)</script>")
    '&lt;script&gt;alert(1)&lt;/script&gt;'
    """
    return _escaped(short(visible(text, keep="\n\t"), most))


def _escaped(text: str) -> str:
    """Return a text with nothing that reads as markup."""
    from html import escape  # noqa: PLC0415 - takes a while

    return escape(text, quote=False)


def scale_of(largest: float, unit: str) -> Scale:
    """Return by what to divide an axis's values, and the unit they then have.

    >>> scale_of(0.48, "s"), scale_of(600, "s"), scale_of(3e9, "B")
    ((0.001, 'ms'), (60.0, 'min'), (1073741824.0, 'GiB'))
    """
    scales = {"s": _TIMES, "B": _SIZES}.get(unit, ())
    return next(((by, name) for by, name in scales if largest >= by), (1.0, unit) if unit != "s" else (1e-6, "us"))


def _number(value: float) -> float | None:
    """Return a number with as many digits as a plot can show; JSON has no infinity."""
    return float(f"{value:.7g}") if isfinite(value) else None


def _layout(height_px: float, **parts: Any) -> dict[str, Any]:
    """Return what all plots share; colours of text and lines are the page's own."""
    return {
        "height": round(min(_MOST_PX, max(_LEAST_PX, height_px))),
        "margin": {"l": 8, "r": 16, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": False,
        **parts,
    }


def _rows_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return the axis of rows, the first at the top; of long names the middle is left out: the ends often differ."""
    seen = [visible(name, keep="\n\t") for name in names]
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [
            label(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 13]}\N{HORIZONTAL ELLIPSIS}{name[-12:]}")
            for name in seen
        ],
        "range": [len(names) - 0.5, -0.5],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
        "ticks": "",
    }


def _value_axis(title: str, **parts: Any) -> dict[str, Any]:
    return {
        "title": {"text": _escaped(title), "font": {"size": 13}},
        "automargin": True,
        "zeroline": True,
        "fixedrange": True,
        **parts,
    }


def _log(values: Sequence[float]) -> dict[str, Any]:
    """Return what makes an axis logarithmic, with ticks at 1, 2 and 5: plotly's own are digits without their decade."""
    known = [value for value in values if value > 0] or [1.0]
    decades = range(floor(log10(min(known))), floor(log10(max(known))) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    texts = [f"{tick:.6g}" for tick in ticks]
    return {"type": "log", "zeroline": False, "tickvals": [_number(tick) for tick in ticks], "ticktext": texts}


def _rows_trace(index: int, name: str, hints: Sequence[str], **parts: Any) -> dict[str, Any]:
    """Return the trace of one kind of lying bars."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": label(name),
        "hovertext": [label(hint, _LONGEST_HINT) for hint in hints],
        "hoverinfo": "text",
        "marker": {"color": COLOURS[index % len(COLOURS)], "line": {"width": 0}},
        **parts,
    }


def _bars(chart: Bars) -> Plot:
    """Return lying bars, each with its text at its end."""
    rows = chart.rows
    by, unit = scale_of(max((abs(value) for _, value, _ in rows), default=0.0), chart.unit)
    is_marked = [chart.marked is None or index == chart.marked for index in range(len(rows))]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [_number(value / by) for _, value, _ in rows],
        "y": list(range(len(rows))),
        "text": [label(text) for *_, text in rows],
        "hovertext": [label(f"{row}: {text}", _LONGEST_HINT) for row, _, text in rows],
        "hoverinfo": "text",
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [COLOURS[0] if is_it else MUTED for is_it in is_marked]},
    }
    values = [value / by for _, value, _ in rows if isfinite(value)]
    span = [_number(min([0.0, *values])), _number(max([0.0, *values]) or 1.0)]  # the page adds room for the texts
    axis = _value_axis(f"{chart.title} ({unit})" if unit else chart.title, range=span)
    height = _AXES_PX + _ROW_PX * len(rows)
    axes = {"xaxis": axis, "yaxis": _rows_axis([row for row, *_ in rows])}
    return [trace], _layout(height, **axes, bargap=0.25, meta={"span": span})


def _stacked(chart: Stacked) -> Plot:
    """Return lying bars made of parts."""
    names, limits = chart.names, chart.limits
    totals = [sum(values[index] for values in chart.parts.values()) for index in range(len(names))]
    by, unit = scale_of(max((value for value in (*totals, *limits) if isfinite(value)), default=0.0), "B")
    traces = [
        _rows_trace(
            index,
            part,
            [f"{name}, {part}: {value / by:.4g} {unit}" for name, value in zip(names, values, strict=True)],
            x=[_number(value / by) for value in values],
            y=list(range(len(names))),
        )
        for index, (part, values) in enumerate(chart.parts.items())
    ]
    ends = [(index, value) for index, value in enumerate(limits) if isfinite(value)]
    if ends:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "limit",
                "x": [part for _, value in ends for part in (_number(value / by), _number(value / by), None)],
                "y": [part for index, _ in ends for part in (index - 0.48, index + 0.48, None)],
                "hoverinfo": "name",
                "line": _DASHED,
            }
        )
    height = _AXES_PX + 60 + (_ROW_PX + 8) * len(names)
    axes = {"xaxis": _value_axis(f"{chart.title} ({unit})"), "yaxis": _rows_axis(names)}
    return traces, _layout(height, barmode="stack", **axes, bargap=0.25, **_LEGEND)


def _gantt(chart: Gantt) -> Plot:
    """Return what is when on which row, one colour a kind."""
    names = chart.names
    ends = [end for spans in chart.kinds.values() for *_, end, _ in spans]
    by, unit = scale_of(max([*ends, *chart.marks.values()], default=0.0), "s")
    traces = [
        _rows_trace(
            index,
            kind,
            [f"{words}: {start / by:.4g} to {end / by:.4g} {unit}" for _, start, end, words in spans],
            base=[_number(start / by) for _, start, _, _ in spans],
            x=[_number((end - start) / by) for _, start, end, _ in spans],
            y=[row for row, *_ in spans],
            width=0.8,
        )
        for index, (kind, spans) in enumerate(chart.kinds.items())
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label(text),
            "x": [_number(at / by)] * 2,
            "y": [-0.5, len(names) - 0.5],
            "hoverinfo": "name",
            "line": {**_DASHED, "width": 2},
        }
        for text, at in chart.marks.items()
    ]
    height = _AXES_PX + 64 + (_ROW_PX if len(names) <= _MANY else _LOW_ROW_PX) * len(names)
    axis = _value_axis(f"{chart.title} ({unit})", fixedrange=False, rangemode="tozero")
    axes = {"xaxis": axis, "yaxis": _rows_axis(names)}
    layout = _layout(height, barmode="overlay", bargap=0.2, **axes, **_LEGEND)
    return traces, {**layout, "dragmode": "zoom"}


def _points(chart: Points) -> Plot:
    """Return points, one colour a series."""
    traces = []
    for index, (name, rows) in enumerate(chart.series.items()):
        colour = COLOURS[index % len(COLOURS)]
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "lines+markers" if name in chart.lines else "markers",
            "name": label(name),
            "x": [_number(x) for x, *_ in rows],
            "y": [_number(y) for _, y, _ in rows],
            "hovertext": [label(words, _LONGEST_HINT) for *_, words in rows],
            "hoverinfo": "text",
            "marker": {"color": colour, "size": 9, "symbol": index % 6},
            "cliponaxis": False,
        }
        if name in chart.lines:
            trace["line"] = {"color": colour, "width": 2, **({"shape": "hv"} if chart.has_steps else {})}
        traces.append(trace)
    known = [row for rows in chart.series.values() for row in rows]
    axes = {
        name: _value_axis(title, **(_log(values) if is_log else {"rangemode": "tozero"}))
        for name, title, is_log, values in (
            ("xaxis", chart.titles[0], chart.is_log[0], [x for x, *_ in known]),
            ("yaxis", chart.titles[1], chart.is_log[1], [y for _, y, _ in known]),
        )
    }
    return traces, _layout(380, **axes, **(_LEGEND if len(chart.series) > 1 else {}))
