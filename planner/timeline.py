"""A schedule as a Chrome trace: a file that Perfetto (ui.perfetto.dev) and chrome://tracing show.

Any model that knows when what runs where describes it by spans on rows, and by arrows between spans; nothing else here
is of a family. Format: Trace Event Format, JSON object form: ``M`` names rows, ``X`` is a span, ``s`` and ``f`` are the
ends of an arrow, times are microseconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

__all__ = ["Flow", "Span", "Timeline", "timeline_document"]

_NS = 1e9  # of a second
_PROCESS = 1
# Reserved names of chrome://tracing (catapult, tracing/base/color_scheme.html), unlike their neighbours. Perfetto
# ignores them on purpose (google/perfetto, issues 208 and 624) and colours by the span's name.
_COLOURS = (
    "thread_state_running",
    "rail_response",
    "thread_state_iowait",
    "rail_animation",
    "cq_build_failed",
    "olive",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What runs on a row from ``start_s`` to ``end_s``; ``kind`` is a category to filter by."""

    row: str
    name: str
    start_s: float
    end_s: float
    iteration: int = 0
    kind: str = "task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An arrow between two spans, by their indices; the source ends before the target starts."""

    source: int
    target: int
    name: str = "gradient"


class Timeline(NamedTuple):
    """What :func:`timeline_document` takes; rows are in the order to show them in."""

    spans: tuple[Span, ...]
    flows: tuple[Flow, ...]
    rows: tuple[str, ...]


def timeline_document(spans: Sequence[Span], flows: Sequence[Flow], rows: Sequence[str]) -> dict[str, Any]:
    """Return the trace as a JSON object: names of the rows first, then all events by time.

    Raises
    ------
    ValueError
        If a row is listed twice or a span's row is not listed, a span ends before it starts, two spans of a row
        overlap, or an arrow leads to no span or back in time.

    >>> spans = [Span(row="gpu", name="backward", start_s=0, end_s=2), Span(row="net", name="send", start_s=2, end_s=3)]
    >>> document = timeline_document(spans, [Flow(source=0, target=1)], ["gpu", "net"])
    >>> [(event["ph"], event.get("ts")) for event in document["traceEvents"][5:]]
    [('X', 0.0), ('s', 1000000.0), ('X', 2000000.0), ('f', 2500000.0)]
    """
    _check(spans, flows, rows)
    row_ids = {row: index + 1 for index, row in enumerate(rows)}
    events = [_span_event(span, row_ids[span.row]) for span in spans]
    for flow_id, flow in enumerate(flows):
        events += _flow_events(flow, flow_id, spans, row_ids)
    # Stable, and spans come first: an arrow's end lies inside its span even where that has no length.
    events.sort(key=lambda event: float(event["ts"]))
    return {"traceEvents": [*_row_names(row_ids), *events], "displayTimeUnit": "ms"}


def _row_names(row_ids: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield what names and orders the rows; metadata have no time."""
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": "schedule"}}
    for row, row_id in row_ids.items():
        place = {"pid": _PROCESS, "tid": row_id}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": row}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": row_id}}


def _span_event(span: Span, row_id: int) -> dict[str, Any]:
    """Return a complete event."""
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "pid": _PROCESS,
        "tid": row_id,
        "ts": _us(_ns(span.start_s)),
        "dur": _us(_ns(span.end_s) - _ns(span.start_s)),
        "cname": _COLOURS[span.iteration % len(_COLOURS)],
        "args": {"iteration": span.iteration},
    }


def _flow_events(flow: Flow, flow_id: int, spans: Sequence[Span], row_ids: dict[str, int]) -> list[dict[str, Any]]:
    """Return both ends of an arrow.

    In the middle of their spans: at its edge an event would as well belong to the span before or after.
    """
    source, target = spans[flow.source], spans[flow.target]
    shared = {"name": flow.name, "cat": "flow", "id": flow_id, "pid": _PROCESS}
    return [
        {"ph": "s", **shared, "tid": row_ids[source.row], "ts": _middle_us(source)},
        {"ph": "f", "bp": "e", **shared, "tid": row_ids[target.row], "ts": _middle_us(target)},
    ]


def _middle_us(span: Span) -> float:
    """Return the middle of a span."""
    return _us((_ns(span.start_s) + _ns(span.end_s)) // 2)


def _ns(seconds: float) -> int:
    """Return whole nanoseconds, in which viewers count: so a span that follows another does not overlap it."""
    return round(seconds * _NS)


def _us(nanoseconds: int) -> float:
    """Return microseconds, the format's unit."""
    return nanoseconds / 1000


def _check(spans: Sequence[Span], flows: Sequence[Flow], rows: Sequence[str]) -> None:
    """Refuse what would be drawn wrongly, in silence."""
    if len(set(rows)) < len(rows):
        raise ValueError(f"rows must differ: {', '.join(rows)}.")
    by_row: dict[str, list[Span]] = {row: [] for row in rows}
    for span in spans:
        if span.row not in by_row:
            raise ValueError(f"{span.name!r} is on row {span.row!r}, which is not among {', '.join(rows) or 'none'}.")
        if not 0 <= span.start_s <= span.end_s < float("inf"):
            raise ValueError(f"{span.name!r} runs from {span.start_s:g} s to {span.end_s:g} s.")
        by_row[span.row].append(span)
    for row, on_row in by_row.items():
        on_row.sort(key=lambda span: (span.start_s, span.end_s))
        for before, after in pairwise(on_row):
            if after.start_s < before.end_s:
                raise ValueError(
                    f"on row {row!r}, {after.name!r} starts at {after.start_s:g} s, but {before.name!r} "
                    f"ends at {before.end_s:g} s."
                )
    for flow in flows:
        _check_flow(flow, spans)


def _check_flow(flow: Flow, spans: Sequence[Span]) -> None:
    """Refuse an arrow to nowhere or back in time."""
    if not (0 <= flow.source < len(spans) and 0 <= flow.target < len(spans)):
        raise ValueError(f"an arrow leads from span {flow.source} to {flow.target}, but there are {len(spans)} spans.")
    source, target = spans[flow.source], spans[flow.target]
    if target.start_s < source.end_s:
        raise ValueError(
            f"an arrow leads back: {source.name!r} ends at {source.end_s:g} s, {target.name!r} starts at "
            f"{target.start_s:g} s."
        )
