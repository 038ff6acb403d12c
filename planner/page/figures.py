"""Plots as plotly's JSON, made as plain data: no library is asked until the page is written.

Rows of lying bars stand at whole numbers, with their names as tick texts: a name as a category would be read as a date
or a number where it looks like one, and two equal names would become one row. Plotly reads a small HTML in labels;
:func:`label` keeps names from being read so.
"""

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, isfinite, log10
from typing import Any

from planner.page.words import plain, short

__all__ = ["COLOURS", "MUTED", "Bar", "Scale", "bars", "gantt", "label", "points", "scale_of", "stacked"]

# Each has a contrast of 4.5 or more with white, and 3 or more with the dark background; a test computes that.
COLOURS = ("#2f72c4", "#b35900", "#1f7a4a", "#a8408d", "#127a8c", "#c23a4c", "#7656c9", "#77690f")
MUTED = "#6b7280"

_ROW_PX, _LOW_ROW_PX = 26, 20  # the latter where there are many
_MANY = 24
_AXES_PX = 76
_LEAST_PX, _MOST_PX = 130, 1400
_LONGEST = 38  # letters of a row's name

Figure = tuple[list[dict[str, Any]], dict[str, Any]]
Scale = tuple[float, str]
_TIMES: tuple[Scale, ...] = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES: tuple[Scale, ...] = tuple(
    (float(2**power), name) for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))
)


def label(text: str, most: int = _LONGEST) -> str:
    """Return a name as plotly's labels take it: short, and with nothing that reads as markup.

    >>> label("<script>alert(1)</script>")
    '&lt;script&gt;alert(1)&lt;/script&gt;'
    """
    return escape(short(plain(text), most), quote=False)


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
    """Return the axis of rows, the first at the top."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [label(_inside_out(plain(name))) for name in names],
        "range": [len(names) - 0.5, -0.5],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
        "ticks": "",
    }


def _inside_out(name: str) -> str:
    """Return a name whose middle is left out where it is long: names often differ at their ends."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 13]}\N{HORIZONTAL ELLIPSIS}{name[-12:]}"


def _value_axis(title: str, **parts: Any) -> dict[str, Any]:
    """Return an axis of values."""
    return {
        "title": {"text": escape(title, quote=False), "font": {"size": 13}},
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


def _legend() -> dict[str, Any]:
    """Return a legend above the plot."""
    return {
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "traceorder": "normal"},
    }


def bars(
    rows: Sequence[tuple[str, float, str]], *, title: str, unit: str, marked: int | None = None, log: bool = False
) -> Figure:
    """Return lying bars.

    Parameters
    ----------
    rows
        Name, value and the text at its end, top to bottom.
    unit
        ``s``, ``B`` or what stands at the axis as it is.
    marked
        The row that stands out; None: all have the same colour.
    """
    by, name = scale_of(max((abs(value) for _, value, _ in rows), default=0.0), unit)
    colours = [COLOURS[0] if marked is None or index == marked else MUTED for index in range(len(rows))]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [_number(value / by) for _, value, _ in rows],
        "y": list(range(len(rows))),
        "text": [label(text) for *_, text in rows],
        "hovertext": [label(f"{row}: {text}", 160) for row, _, text in rows],
        "hoverinfo": "text",
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": colours},
    }
    axis = _value_axis(f"{title} ({name})" if name else title, **({"type": "log"} if log else {}))
    values = [value / by for _, value, _ in rows if isfinite(value)]
    span = [_number(min([0.0, *values])), _number(max([0.0, *values]) or 1.0)]
    if not log:
        axis["range"] = span  # the page adds room for the texts at the ends, by its width
    height = _AXES_PX + _ROW_PX * len(rows)
    meta = {} if log else {"meta": {"span": span}}
    return [trace], _layout(height, xaxis=axis, yaxis=_rows_axis([row for row, *_ in rows]), bargap=0.25, **meta)


def stacked(
    names: Sequence[str], parts: Mapping[str, Sequence[float]], *, title: str, unit: str, limit: Sequence[float] = ()
) -> Figure:
    """Return lying bars made of parts, one bar a name; ``limit``: of each bar, drawn as a line across it."""
    totals = [sum(values[index] for values in parts.values()) for index in range(len(names))]
    finite = [value for value in (*totals, *limit) if isfinite(value)]
    by, unit_name = scale_of(max(finite, default=0.0), unit)
    traces: list[dict[str, Any]] = []
    for index, (part, values) in enumerate(parts.items()):
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label(part),
                "x": [_number(value / by) for value in values],
                "y": list(range(len(names))),
                "hovertext": [
                    label(f"{name}, {part}: {value / by:.4g} {unit_name}", 160)
                    for name, value in zip(names, values, strict=True)
                ],
                "hoverinfo": "text",
                "marker": {"color": COLOURS[index % len(COLOURS)], "line": {"width": 0}},
            }
        )
    ends = [(index, value) for index, value in enumerate(limit) if isfinite(value)]
    if ends:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "limit",
                "x": [part for _, value in ends for part in (_number(value / by), _number(value / by), None)],
                "y": [part for index, _ in ends for part in (index - 0.48, index + 0.48, None)],
                "hoverinfo": "name",
                "line": {"color": MUTED, "width": 3, "dash": "dash"},
            }
        )
    height = _AXES_PX + 60 + (_ROW_PX + 8) * len(names)
    axis = _value_axis(f"{title} ({unit_name})")
    return traces, _layout(height, barmode="stack", xaxis=axis, yaxis=_rows_axis(names), bargap=0.25, **_legend())


Bar = tuple[int, float, float, str]  # row, start, end, words


def gantt(
    names: Sequence[str], kinds: Mapping[str, Sequence[Bar]], *, title: str, marks: Mapping[str, float] | None = None
) -> Figure:
    """Return what is when on which row, in seconds, one colour a kind; ``marks`` are moments with their names."""
    ends = [end for spans in kinds.values() for *_, end, _ in spans]
    by, unit = scale_of(max([*ends, *(marks or {}).values()], default=0.0), "s")
    traces: list[dict[str, Any]] = []
    for index, (kind, spans) in enumerate(kinds.items()):
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label(kind),
                "base": [_number(start / by) for _, start, _, _ in spans],
                "x": [_number((end - start) / by) for _, start, end, _ in spans],
                "y": [row for row, *_ in spans],
                "width": 0.8,
                "hovertext": [
                    label(f"{words}: {start / by:.4g} to {end / by:.4g} {unit}", 160) for _, start, end, words in spans
                ],
                "hoverinfo": "text",
                "marker": {"color": COLOURS[index % len(COLOURS)], "line": {"width": 0}},
            }
        )
    for text, at in (marks or {}).items():
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label(text),
                "x": [_number(at / by)] * 2,
                "y": [-0.5, len(names) - 0.5],
                "hoverinfo": "name",
                "line": {"color": MUTED, "width": 2, "dash": "dash"},
            }
        )
    height = _AXES_PX + 64 + (_ROW_PX if len(names) <= _MANY else _LOW_ROW_PX) * len(names)
    axis = _value_axis(f"{title} ({unit})", fixedrange=False, rangemode="tozero")
    axes = {"xaxis": axis, "yaxis": _rows_axis(names)}
    layout = _layout(height, barmode="overlay", bargap=0.2, **axes, **_legend())
    layout["dragmode"] = "zoom"
    return traces, layout


def points(
    series: Mapping[str, Sequence[tuple[float, float, str]]],
    *,
    x_title: str,
    y_title: str,
    lines: Sequence[str] = (),
    log_x: bool = False,
    log_y: bool = False,
    steps: bool = False,
) -> Figure:
    """Return points with their words, one colour a series; those named in ``lines`` are joined."""
    traces = []
    for index, (name, rows) in enumerate(series.items()):
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "lines+markers" if name in lines else "markers",
            "name": label(name),
            "x": [_number(x) for x, *_ in rows],
            "y": [_number(y) for _, y, _ in rows],
            "hovertext": [label(words, 160) for *_, words in rows],
            "hoverinfo": "text",
            "marker": {"color": COLOURS[index % len(COLOURS)], "size": 9, "symbol": index % 6},
            "cliponaxis": False,
        }
        if name in lines:
            trace["line"] = {"color": COLOURS[index % len(COLOURS)], "width": 2, **({"shape": "hv"} if steps else {})}
        traces.append(trace)
    rows_of_all = [row for rows in series.values() for row in rows]
    x_axis = _value_axis(x_title, **(_log([x for x, *_ in rows_of_all]) if log_x else {"rangemode": "tozero"}))
    y_axis = _value_axis(y_title, **(_log([y for _, y, _ in rows_of_all]) if log_y else {"rangemode": "tozero"}))
    return traces, _layout(380, xaxis=x_axis, yaxis=y_axis, **(_legend() if len(series) > 1 else {}))
