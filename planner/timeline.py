"""A schedule as a Chrome trace: a file that Perfetto (ui.perfetto.dev) and chrome://tracing show.

Any model that knows when what runs where describes it by spans on rows, by arrows between spans and by counters;
nothing else here is of a family. Format: Trace Event Format, JSON object form: ``M`` names processes and rows, ``X`` is
a span, ``s`` and ``f`` are the ends of an arrow, ``C`` is a counter; times are microseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

__all__ = ["Counter", "Flow", "Process", "Span", "Timeline", "repeated", "timeline_document"]

_NS = 1e9  # of a second
_PROCESS = "schedule"
_SAME = 1e-9  # by so much of its end a span may overlap by rounding, and is cut
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
    """What runs on a row from ``start_s`` to ``end_s``.

    Attributes
    ----------
    kind
        A category to filter by.
    is_part
        Whether it stands inside another span of its row.
    args
        What else is known of it, in plain values: bytes, layer, micro-batch.
    """

    row: str
    name: str
    start_s: float
    end_s: float
    iteration: int = 0
    kind: str = "task"
    is_part: bool = False
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An arrow between two spans, by their indices.

    The source ends before the target starts; or, where ``is_stream``, the target takes in what the source still sends,
    and only ends no sooner than the source starts.
    """

    source: int
    target: int
    name: str = "gradient"
    is_stream: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Rows that are shown together.

    Attributes
    ----------
    rows
        Each begins with ``name``.
    count, member
        Of how many equal devices this is one, and the name of each: what stands before and behind its number from 1
        on; no ``member`` for what is no device. ``name`` is the one that stands for all.
    kind
        Processes of the same kind do alike, if not at the same time; empty: of its own kind.
    """

    name: str
    rows: tuple[str, ...]
    count: int = 1
    member: tuple[str, str] | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """Quantities of a process over time: from each time on, the values of its series."""

    process: str
    name: str
    points: tuple[tuple[float, Mapping[str, float]], ...]


class Timeline(NamedTuple):
    """What :func:`timeline_document` takes; rows are in the order to show them in. ``notes``: what is drawn how."""

    spans: tuple[Span, ...]
    flows: tuple[Flow, ...]
    rows: tuple[str, ...]
    processes: tuple[Process, ...] = ()
    counters: tuple[Counter, ...] = ()
    notes: tuple[str, ...] = ()


def repeated(one: Timeline, num_iterations: int, period_s: float) -> Timeline:
    """Return a timeline of one iteration, which begins at 0, as so many that follow each other.

    Raises
    ------
    ValueError
        Unless there is at least one.
    """
    if num_iterations < 1:
        raise ValueError(f"there must be at least 1 iteration, not {num_iterations}.")
    if num_iterations == 1:
        return one
    spans: list[Span] = []
    flows: list[Flow] = []
    points: list[list[tuple[float, Mapping[str, float]]]] = [[] for _ in one.counters]
    for index in range(num_iterations):
        late_s, first = index * period_s, len(spans)
        flows += [replace(flow, source=flow.source + first, target=flow.target + first) for flow in one.flows]
        spans += [
            replace(span, start_s=span.start_s + late_s, end_s=span.end_s + late_s, iteration=index)
            for span in one.spans
        ]
        for found, counter in zip(points, one.counters, strict=True):
            found += [(at_s + late_s, values) for at_s, values in counter.points]
    counters = tuple(replace(counter, points=tuple(found)) for counter, found in zip(one.counters, points, strict=True))
    return one._replace(spans=tuple(spans), flows=tuple(flows), counters=counters)


def timeline_document(
    spans: Sequence[Span],
    flows: Sequence[Flow],
    rows: Sequence[str],
    processes: Sequence[Process] = (),
    counters: Sequence[Counter] = (),
    notes: Sequence[str] = (),
    *,
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the trace as a JSON object: names of processes and rows first, then all events by time.

    Parameters
    ----------
    processes
        Rows that are of none stand in a process of their own.
    about
        What the file is of; stands in ``otherData``, with the notes.

    Raises
    ------
    ValueError
        If a row is listed twice or a span's row is not listed, a span ends before it starts, two spans of a row
        overlap and neither lies within the other, or an arrow leads to no span or back in time.

    >>> spans = [Span(row="gpu", name="backward", start_s=0, end_s=2), Span(row="net", name="send", start_s=2, end_s=3)]
    >>> document = timeline_document(spans, [Flow(source=0, target=1)], ["gpu", "net"])
    >>> [(event["ph"], event.get("ts")) for event in document["traceEvents"][6:]]
    [('X', 0.0), ('s', 1000000.0), ('X', 2000000.0), ('f', 2500000.0)]
    """
    times = _checked(spans, flows, rows)
    places = _places(rows, processes)
    shared: dict[tuple[int, int], dict[str, Any]] = {}
    events = [_span_event(span, times[index], places, shared) for index, span in enumerate(spans)]
    for flow_id, flow in enumerate(flows):
        events += _flow_events(flow, flow_id, spans, times, places)
    for counter in counters:
        events += _counter_events(counter, places)
    # Stable, and spans come first, the outer before the inner: an arrow's end lies inside its span.
    events.sort(key=lambda event: (event["ts"], event["ph"] != "X", -event.get("dur", 0)))
    found: dict[str, Any] = {"traceEvents": [*_names(places), *events], "displayTimeUnit": "ms"}
    told = {**(about or {}), **({"notes": list(notes)} if notes else {})}
    return {**found, "otherData": told} if told else found


# -- rows ------------------------------------------------------------------------------------------------------------


class _Places(NamedTuple):
    """Numbers of processes by name; process and thread numbers of rows."""

    processes: Mapping[str, int]
    rows: Mapping[str, tuple[int, int]]


def _places(rows: Sequence[str], processes: Sequence[Process]) -> _Places:
    """Return the numbers of all processes and rows, those of no process behind the others."""
    owner = {row: process.name for process in processes for row in process.rows}
    names = [process.name for process in processes]
    if any(row not in owner for row in rows) or not names:
        names.append(_PROCESS)
    numbers = {name: index + 1 for index, name in enumerate(dict.fromkeys(names))}
    return _Places(
        processes=numbers,
        rows={row: (numbers[owner.get(row, _PROCESS)], index + 1) for index, row in enumerate(rows)},
    )


def _names(places: _Places) -> Iterator[dict[str, Any]]:
    """Yield what names and orders processes and rows; metadata have no time."""
    for name, number in places.processes.items():
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
    for row, (process, number) in places.rows.items():
        place = {"pid": process, "tid": number}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": row}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": number}}


# -- events ----------------------------------------------------------------------------------------------------------


def _span_event(
    span: Span, times: tuple[int, int], places: _Places, shared: dict[tuple[int, int], dict[str, Any]]
) -> dict[str, Any]:
    """Return a complete event; ``shared``: arguments made before, since copies of a span for many devices have one."""
    args = shared.setdefault((id(span.args), span.iteration), {"iteration": span.iteration, **span.args})
    process, row = places.rows[span.row]
    start, end = times
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "pid": process,
        "tid": row,
        "ts": _us(start),
        "dur": _us(end - start),
        "cname": _COLOURS[span.iteration % len(_COLOURS)],
        "args": args,
    }


def _flow_events(
    flow: Flow, flow_id: int, spans: Sequence[Span], times: Sequence[tuple[int, int]], places: _Places
) -> list[dict[str, Any]]:
    """Return both ends of an arrow.

    In the middle of their spans: at its edge an event would as well belong to the span before or after.
    """
    shared = {"name": flow.name, "cat": "flow", "id": flow_id}
    (first, last), (begin, end) = times[flow.source], times[flow.target]
    leaves, comes = (first + last) // 2, (begin + end) // 2
    if flow.is_stream:  # it comes as it leaves, as far as the target's span goes
        comes = min(max(leaves, begin), end)
        leaves = min(leaves, comes)
    ends = []
    for what, span, at in (
        ({"ph": "s"}, spans[flow.source], leaves),
        ({"ph": "f", "bp": "e"}, spans[flow.target], comes),
    ):
        process, row = places.rows[span.row]
        ends.append({**what, **shared, "pid": process, "tid": row, "ts": _us(at)})
    return ends


def _counter_events(counter: Counter, places: _Places) -> Iterator[dict[str, Any]]:
    """Yield a counter's values."""
    for at_s, values in counter.points:
        yield {
            "ph": "C",
            "name": counter.name,
            "pid": places.processes[counter.process],
            "ts": _us(_ns(at_s)),
            "args": dict(values),
        }


def _ns(seconds: float) -> int:
    """Return whole nanoseconds, in which viewers count: so a span that follows another does not overlap it."""
    return round(seconds * _NS)


def _us(nanoseconds: int) -> float:
    """Return microseconds, the format's unit."""
    return nanoseconds / 1000


# -- checks ----------------------------------------------------------------------------------------------------------


def _checked(spans: Sequence[Span], flows: Sequence[Flow], rows: Sequence[str]) -> list[tuple[int, int]]:
    """Return every span's start and end in nanoseconds; refuse what would be drawn wrongly, in silence."""
    if len(set(rows)) < len(rows):
        raise ValueError(f"rows must differ: {', '.join(rows)}.")
    by_row: dict[str, list[int]] = {row: [] for row in rows}
    for index, span in enumerate(spans):
        if span.row not in by_row:
            raise ValueError(f"{span.name!r} is on row {span.row!r}, which is not among {', '.join(rows) or 'none'}.")
        if not 0 <= span.start_s <= span.end_s < float("inf"):
            raise ValueError(f"{span.name!r} runs from {span.start_s:g} s to {span.end_s:g} s.")
        by_row[span.row].append(index)
    times = [(_ns(span.start_s), _ns(span.end_s)) for span in spans]
    for on_row in by_row.values():
        _nest(on_row, spans, times)
    for flow in flows:
        _check_flow(flow, spans)
    return times


def _nest(on_row: list[int], spans: Sequence[Span], times: list[tuple[int, int]]) -> None:
    """Refuse spans of a row that overlap without lying in one another; cut what does so by rounding alone."""
    on_row.sort(key=lambda index: (times[index][0], -times[index][1]))
    around: list[int] = []
    for index in on_row:
        start, end = times[index]
        same = 1 + int(_SAME * end)
        while around and times[around[-1]][1] - start <= (same if times[around[-1]][1] < end else 0):
            start = max(start, times[around.pop()][1])
        if around and end > times[around[-1]][1]:
            if end - times[around[-1]][1] > same:
                before, after = spans[around[-1]], spans[index]
                raise ValueError(
                    f"on row {after.row!r}, {after.name!r} starts at {after.start_s:g} s, but {before.name!r} "
                    f"ends at {before.end_s:g} s."
                )
            end = times[around[-1]][1]
        times[index] = (start, end)
        around.append(index)


def _check_flow(flow: Flow, spans: Sequence[Span]) -> None:
    """Refuse an arrow to nowhere or back in time."""
    if not (0 <= flow.source < len(spans) and 0 <= flow.target < len(spans)):
        raise ValueError(f"an arrow leads from span {flow.source} to {flow.target}, but there are {len(spans)} spans.")
    source, target = spans[flow.source], spans[flow.target]
    late_s = source.start_s - target.end_s if flow.is_stream else source.end_s - target.start_s
    if late_s > _SAME * max(1.0, source.end_s):
        raise ValueError(
            f"an arrow leads back: {source.name!r} ends at {source.end_s:g} s, {target.name!r} starts at "
            f"{target.start_s:g} s."
        )
