"""A configuration's schedule as a Chrome trace: a file that Perfetto (ui.perfetto.dev) and chrome://tracing show.

Format: Trace Event Format, JSON object form. ``M`` names processes and rows, ``X`` is a span, ``s`` and ``f`` are the
ends of an arrow, ``C`` is a counter; times are microseconds. A timeline of a family has one process for each kind of
device. :func:`trace_of` draws all devices or one of each kind, puts the terms of the prediction before them and a
measured step behind, and leaves out the shortest spans where there are more than a viewer bears;
:func:`file_of` holds files to 20 MB.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from planner.errors import SpecError
from planner.frozen import frozen
from planner.plan import Prediction
from planner.timeline import Counter, Flow, Process, Span, Timeline
from planner.words import time_words

MOST_DRAWN = 64  # devices that are all drawn unless it is said otherwise
MOST_ITERATIONS = 100
MOST_EVENTS = 1_000_000
MOST_BYTES = 20_000_000  # of a file; gzip takes a tenth of what plain JSON does
_FIRST_EVENTS = 20_000
_MORE, _FULL = 3, 0.85  # how often more events are drawn, into a file that is not so full
_THINNED = "thinned to "
_OF_A_ROW = 2  # events that name it
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
_MEASURED_ROW = "measured: compute"
_BREAKDOWN_ROW = "prediction: where the time goes"
_BREAKDOWN_KIND = "prediction"
_DIRECTIONS = ("forward", "backward")
_MOST_LINES = 60
_MATCHED = {
    "name": "layers matched by name",
    "order": "layers matched by order: no names are the same",
    "none": "no layers matched: neither names nor numbers of layers are the same",
}


@frozen
class Measured:
    """Seconds of one step, by layer, in the order of the forward pass; ``update_s`` 0 where it is not known."""

    origin: str
    names: tuple[str, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: float = 0.0

    @property
    def passes(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """Seconds of the layers, by direction."""
        return tuple(zip(_DIRECTIONS, (self.forward_s, self.backward_s), strict=True))


@frozen
class Drawn:
    """What is drawn of a timeline."""

    # ``all``, or ``kinds``: one device of each kind. None: all, if they are 64 or fewer
    devices: str | None = None
    num_iterations: int = 1  # that the timeline holds
    # whether the slices inside others are there, and the prediction's terms as a process of their own
    has_parts: bool = True
    most_events: int = MOST_EVENTS  # beyond which the shortest spans are left out


class Trace(TypedDict):
    """A file of the Trace Event Format; each event has the keys that its ``ph`` asks for."""

    traceEvents: list[dict[str, Any]]
    displayTimeUnit: str
    otherData: NotRequired[dict[str, Any]]


class ComparedRow(TypedDict):
    """A layer's seconds in one direction; None where one side does not know it."""

    layer: str
    direction: str
    predicted_s: float | None
    measured_s: float | None
    ratio: float | None


class Compared(TypedDict):
    """Measured beside predicted seconds; ``layers`` says by what they were matched."""

    origin: str
    layers: str
    rows: list[ComparedRow]


def traces_of(
    timeline: Timeline,
    prediction: Prediction,
    drawn: Drawn,
    *,
    about: Mapping[str, object],
    measured: Measured | None = None,
) -> Callable[[int], Trace]:
    """Return what gives the trace of a family's timeline, which holds all iterations already, of so many events.

    It raises an error if the rows alone are more.

    Parameters
    ----------
    about
        What the file is of, for ``otherData``.
    measured
        Whose seconds stand beside the predicted ones; compared in ``otherData.measured``.
    """
    number = num_devices(timeline)
    is_expanded = drawn.devices == "all" or (drawn.devices is None and number <= MOST_DRAWN)
    found = with_parts(timeline if is_expanded else of_each_kind(timeline), has_parts=drawn.has_parts)
    if drawn.has_parts:
        found = with_breakdown(found, prediction.breakdown_s, prediction.iteration_time_s, drawn.num_iterations)
    if measured is not None:
        found = with_measured(found, measured)
    told = {
        **about,
        "iteration_time_s": prediction.iteration_time_s,
        "iterations": drawn.num_iterations,
        "num_devices": number,
        "devices": "all" if is_expanded else "one of each kind",
        **({} if measured is None else {"measured": compared(timeline, measured)}),
    }

    def draw(most: int) -> Trace:
        try:
            fewer = thinned(found, is_expanded=is_expanded, most=most)
        except ValueError as error:
            raise SpecError(f"--trace-devices: {error} Write --trace-devices kinds.") from None
        return timeline_document(*(with_all(fewer) if is_expanded else fewer), about=told)

    return draw


def trace_of(timeline: Timeline, prediction: Prediction, drawn: Drawn, *, about: Mapping[str, object]) -> Trace:
    """Return the trace of a timeline, as :func:`traces_of` has it, of the events that ``drawn`` allows."""
    return traces_of(timeline, prediction, drawn, about=about)(drawn.most_events)


def pieces_of(trace: Trace) -> Iterator[str]:
    """Yield a trace as JSON, an event at a time: of a million the text is not held beside them."""
    text = json.JSONEncoder(separators=(",", ":")).encode
    yield '{"traceEvents":['
    for index, event in enumerate(trace["traceEvents"]):
        yield f",{text(event)}" if index else text(event)
    yield f"],{text({name: value for name, value in trace.items() if name != 'traceEvents'})[1:]}\n"


def file_of(draw: Callable[[int], Trace], *, is_packed: bool) -> tuple[bytes, Trace]:
    """Return a trace as a file of at most 20 MB, and the trace: drawn with as many events as go into it.

    Parameters
    ----------
    draw
        Draws it with at most so many events.
    is_packed
        Whether the file is compressed, as Perfetto and :func:`measured_step` read it.
    """
    most, more = _FIRST_EVENTS, _MORE  # few events tell how many go into a file: a million would be drawn for nothing
    while True:
        try:
            trace = draw(most)
        except SpecError:  # rows alone are more than a few
            if not more:
                raise
            most, more = MOST_EVENTS, 0
            continue
        number = len(trace["traceEvents"])
        content, num_written = _content(trace, is_packed=is_packed)
        if content is None:
            most = int(0.95 * min(most, number) * num_written / number)
            more = 0
            continue
        notes = trace.get("otherData", {}).get("notes", ())
        is_full = most == MOST_EVENTS or len(content) > _FULL * MOST_BYTES
        if not more or is_full or not any(one.startswith(_THINNED) for one in notes):
            return content, trace
        most, more = min(MOST_EVENTS, int(0.97 * MOST_BYTES * number / len(content))), more - 1


def _content(trace: Trace, *, is_packed: bool) -> tuple[bytes | None, int]:
    """Return a trace as a file, None where that has too many bytes, and how many of its pieces were within these."""
    import gzip  # noqa: PLC0415  # few ask for it

    out = BytesIO()
    file = gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) if is_packed else out  # no name, no time
    number = 0
    for piece in pieces_of(trace):
        file.write(piece.encode())
        if out.tell() > MOST_BYTES:
            return None, number
        number += 1
    if is_packed:
        file.close()  # what it held back comes now
    return (out.getvalue() if out.tell() <= MOST_BYTES else None), number


# --- The document: names of processes and rows first, then all events by time, in whole nanoseconds, in which viewers
# count: so a span that follows another does not overlap it.


def timeline_document(
    spans: Sequence[Span],
    flows: Sequence[Flow],
    rows: Sequence[str],
    processes: Sequence[Process] = (),
    counters: Sequence[Counter] = (),
    notes: Sequence[str] = (),
    *,
    about: Mapping[str, object] | None = None,
) -> Trace:
    """Return a timeline's trace as a JSON object.

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
    owner = {row: process.name for process in processes for row in process.rows}
    names = [process.name for process in processes]
    if any(row not in owner for row in rows) or not names:
        names.append(_PROCESS)
    numbers = {name: index + 1 for index, name in enumerate(dict.fromkeys(names))}
    places = {row: {"pid": numbers[owner.get(row, _PROCESS)], "tid": index + 1} for index, row in enumerate(rows)}
    heads: list[dict[str, Any]] = []  # metadata have no time
    for name, number in numbers.items():
        heads.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        heads.append({"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}})
    for row, place in places.items():
        heads.append({"ph": "M", "name": "thread_name", **place, "args": {"name": row}})
        heads.append({"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": place["tid"]}})
    has_colours = any(span.iteration for span in spans)
    shared: dict[tuple[int, int], dict[str, Any]] = {}  # copies of a span for many devices have one object of arguments
    events: list[dict[str, Any]] = [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.kind,
            **places[span.row],
            "ts": start / 1000,
            "dur": (end - start) / 1000,
            **({"cname": _COLOURS[span.iteration % len(_COLOURS)]} if has_colours else {}),
            "args": shared.setdefault((id(span.args), span.iteration), {"iteration": span.iteration, **span.args}),
        }
        for span, (start, end) in zip(spans, times, strict=True)
    ]
    for flow_id, flow in enumerate(flows):
        # In the middle of their spans: at its edge an event would as well belong to the span before or after.
        (first, last), (begin, end) = times[flow.source], times[flow.target]
        leaves, comes = (first + last) // 2, (begin + end) // 2
        if flow.is_stream:  # it comes as it leaves, as far as the target's span goes
            comes = min(max(leaves, begin), end)
            leaves = min(leaves, comes)
        both = {"name": flow.name, "cat": "flow", "id": flow_id}
        events.append({"ph": "s", **both, **places[spans[flow.source].row], "ts": leaves / 1000})
        events.append({"ph": "f", "bp": "e", **both, **places[spans[flow.target].row], "ts": comes / 1000})
    for counter in counters:
        head = {"ph": "C", "name": counter.name, "pid": numbers[counter.process]}
        events += [{**head, "ts": _ns(at_s) / 1000, "args": dict(values)} for at_s, values in counter.points]
    # Stable, and spans come first, the outer before the inner: an arrow's end lies inside its span.
    events.sort(key=lambda event: (event["ts"], event["ph"] != "X", -event.get("dur", 0)))
    document: Trace = {"traceEvents": [*heads, *events], "displayTimeUnit": "ms"}
    other = {**(about or {}), **({"notes": list(notes)} if notes else {})}
    if other:
        document["otherData"] = other
    return document


def _ns(seconds: float) -> int:
    """Return whole nanoseconds."""
    return round(seconds * _NS)


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
        if not (0 <= flow.source < len(spans) and 0 <= flow.target < len(spans)):
            ends = f"from span {flow.source} to {flow.target}"
            raise ValueError(f"an arrow leads {ends}, but there are {len(spans)} spans.")
        source, target = spans[flow.source], spans[flow.target]
        late_s = source.start_s - target.end_s if flow.is_stream else source.end_s - target.start_s
        if late_s > _SAME * max(1.0, source.end_s):
            raise ValueError(
                f"an arrow leads back: {source.name!r} ends at {source.end_s:g} s, {target.name!r} starts at "
                f"{target.start_s:g} s."
            )
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


# --- All devices of a timeline or one of each kind, its spans with or without their parts, no more than a viewer bears


def num_devices(timeline: Timeline) -> int:
    """Return how many devices a timeline stands for; servers and networks are none."""
    return sum(process.count for process in timeline.processes if process.member)


def _with_spans(timeline: Timeline, kept: Sequence[int]) -> Timeline:
    """Return a timeline with some of its spans, by index, and the arrows between these."""
    numbers = {old: new for new, old in enumerate(kept)}
    flows = tuple(
        replace(flow, source=numbers[flow.source], target=numbers[flow.target])
        for flow in timeline.flows
        if flow.source in numbers and flow.target in numbers
    )
    return timeline._replace(spans=tuple(timeline.spans[index] for index in kept), flows=flows)


def of_each_kind(timeline: Timeline) -> Timeline:
    """Return a timeline with the first process of each kind only."""
    first: dict[str, str] = {}
    kept = [one for one in timeline.processes if first.setdefault(one.kind or f"/{one.name}", one.name) == one.name]
    if len(kept) == len(timeline.processes):
        return timeline
    gone = {row for one in timeline.processes if one not in kept for row in one.rows}
    names = {one.name for one in kept}
    found = _with_spans(timeline, [index for index, span in enumerate(timeline.spans) if span.row not in gone])
    return found._replace(
        rows=tuple(row for row in timeline.rows if row not in gone),
        processes=tuple(kept),
        counters=tuple(one for one in timeline.counters if one.process in names),
    )


def with_parts(timeline: Timeline, *, has_parts: bool) -> Timeline:
    """Return a timeline with or without the spans that stand inside others; arrows of these go with them."""
    if has_parts:
        return timeline
    return _with_spans(timeline, [index for index, span in enumerate(timeline.spans) if not span.is_part])


def with_all(timeline: Timeline) -> Timeline:
    """Return a timeline with every device in a process of its own, in the order of the kinds.

    An arrow between two kinds leads from each device to the one that stands where it does among its own.
    """
    if all(process.count == 1 for process in timeline.processes):
        return timeline

    def name(process: Process, index: int) -> str:  # others' names may stand beside its number, whatever they hold
        before, behind = process.member or ("", "")
        return f"{before}{index + 1}{behind}"

    def row_of(process: Process | None, row: str, index: int) -> str:
        if process is None or process.count == 1 or not process.member:
            return row
        return name(process, index) + row.removeprefix(process.name)

    def devices(process: Process) -> list[Process]:
        if process.count == 1 or not process.member:
            return [process]
        return [
            Process(
                name=name(process, index),
                rows=tuple(row_of(process, row, index) for row in process.rows),
                member=(name(process, index), ""),
            )
            for index in range(process.count)
        ]

    owner = {row: process for process in timeline.processes for row in process.rows}
    spans: list[Span] = []
    copies: list[range] = []
    for span in timeline.spans:
        process = owner.get(span.row)
        count = process.count if process is not None and process.member else 1
        copies.append(range(len(spans), len(spans) + count))
        spans += [replace(span, row=row_of(process, span.row, index)) for index in range(count)]
    flows = []
    for flow in timeline.flows:
        sources, targets = copies[flow.source], copies[flow.target]
        most = max(len(sources), len(targets))
        flows += [
            replace(flow, source=sources[index * len(sources) // most], target=targets[index * len(targets) // most])
            for index in range(most)
        ]
    members = {process.name: devices(process) for process in timeline.processes}
    listed = [device for process in timeline.processes for device in members[process.name]]
    return timeline._replace(
        spans=tuple(spans),
        flows=tuple(flows),
        rows=(*(row for device in listed for row in device.rows), *(row for row in timeline.rows if row not in owner)),
        processes=tuple(listed),
        counters=tuple(
            replace(counter, process=device.name)
            for counter in timeline.counters
            for device in members[counter.process]
        ),
    )


def thinned(timeline: Timeline, *, is_expanded: bool, most: int = MOST_EVENTS) -> Timeline:
    """Return a timeline of at most so many events, names included, with a note of what was left out.

    Of spans the shortest go first, but those of the prediction itself last of all, and arrows with them; then other
    arrows, and counters last.

    Parameters
    ----------
    is_expanded
        Whether each kind of device will be drawn as often as it is there.

    Raises
    ------
    ValueError
        If the rows alone are too many.
    """
    owner = {row: process for process in timeline.processes for row in process.rows}
    counts = {row: owner[row].count if is_expanded and row in owner else 1 for row in timeline.rows}
    num_processes = sum(process.count if is_expanded else 1 for process in timeline.processes) + 1
    left = most - _OF_A_ROW * (num_processes + sum(counts.values()))
    if left <= 0:
        raise ValueError(f"{num_processes - 1:,} devices and links are too many to draw.")
    by_name = {process.name: process.count for process in reversed(timeline.processes)}  # of equal names the first
    weights = [counts[span.row] for span in timeline.spans]
    points = [
        len(counter.points) * (by_name.get(counter.process, 1) if is_expanded else 1) for counter in timeline.counters
    ]
    arrows = [2 * max(weights[flow.source], weights[flow.target]) for flow in timeline.flows]
    if sum(weights) + sum(arrows) + sum(points) <= left:
        return timeline

    is_other = [span.kind != _BREAKDOWN_KIND for span in timeline.spans]
    order = np.lexsort(([span.start_s - span.end_s for span in timeline.spans], is_other))
    taken = np.cumsum(np.array(weights)[order])
    number = int(np.searchsorted(taken, left, side="right"))
    left -= int(taken[number - 1]) if number else 0
    kept = sorted(order[:number].tolist())
    found = _with_spans(timeline, kept)
    flows, counters = [], []
    for flow in found.flows:
        weight = 2 * max(weights[kept[flow.source]], weights[kept[flow.target]])
        if weight <= left:
            left -= weight
            flows.append(flow)
    for counter, number in zip(timeline.counters, points, strict=True):
        if number <= left:
            left -= number
            counters.append(counter)
    gone = (
        f"{_THINNED}{most:,} events: of {len(weights):,} spans the {len(weights) - len(kept):,} shortest are left "
        f"out, of {len(arrows):,} arrows {len(arrows) - len(flows):,}, of {len(points):,} counters "
        f"{len(points) - len(counters):,}"
    )
    return found._replace(flows=tuple(flows), counters=tuple(counters), notes=(*timeline.notes, gone))


# --- The prediction's terms, and a measured step, as processes of the timeline


def with_breakdown(
    timeline: Timeline, breakdown_s: Mapping[str, float], iteration_time_s: float, num_iterations: int
) -> Timeline:
    """Return a timeline with the prediction's terms before all else, in their order, inside each iteration.

    They sum to the iteration; their places on this row are not when they occur.
    """
    spans: list[Span] = []
    for index in range(num_iterations):
        start_s, end_s = index * iteration_time_s, (index + 1) * iteration_time_s
        whole = Span(
            row=_BREAKDOWN_ROW,
            name=f"iteration {index + 1}",
            start_s=start_s,
            end_s=end_s,
            iteration=index,
            kind=_BREAKDOWN_KIND,
            args={"seconds": iteration_time_s},
        )
        spans.append(whole)
        for name, seconds in breakdown_s.items():
            until_s = min(start_s + seconds, end_s)
            if until_s > start_s:
                told = {"seconds": seconds}
                spans.append(replace(whole, name=name, start_s=start_s, end_s=until_s, is_part=True, args=told))
            start_s = max(until_s, start_s)
    return timeline._replace(
        spans=(*timeline.spans, *spans),
        rows=(_BREAKDOWN_ROW, *timeline.rows),
        processes=(Process(name="prediction", rows=(_BREAKDOWN_ROW,)), *timeline.processes),
    )


def measured_step(path: Path) -> Measured:
    """Return the seconds of one step of a trace of torch.profiler, by module.

    Raises
    ------
    SpecError
        If it cannot be read, or has no modules.
    """
    from planner.importers.chrome_trace import read_chrome_trace  # noqa: PLC0415  # few ask for it

    found = read_chrome_trace(path, batch_size=1)
    return Measured(
        origin=f"measured in {path.name}",
        names=tuple(layer.name for layer in found.dnn.layers),
        forward_s=tuple(found.profile.forward_s.tolist()),
        backward_s=tuple(found.profile.backward_s.tolist()),
        update_s=found.profile.update_s,
    )


def with_measured(timeline: Timeline, measured: Measured) -> Timeline:
    """Return a timeline with the measured step as a process beside the others, from the start of the first iteration.

    A trace says how long modules take, not when: they follow one another, forward and then backward, the update last.
    """

    def span(name: str, start_s: float, end_s: float, kind: str, *, is_part: bool = False, **args: str) -> Span:
        told = {**args, "is_measured": True}
        return Span(row=_MEASURED_ROW, name=name, start_s=start_s, end_s=end_s, kind=kind, is_part=is_part, args=told)

    spans: list[Span] = []
    now_s = 0.0
    for direction, seconds in measured.passes:
        layers = list(zip(measured.names, seconds, strict=True))
        begin_s, parts = now_s, []
        for name, length_s in layers if direction == "forward" else layers[::-1]:
            if length_s > 0:
                end_s, what = now_s + length_s, f"{direction} {name}"
                parts.append(span(what, now_s, end_s, "layer", is_part=True, layer=name, direction=direction))
                now_s = end_s
        if parts:
            spans += [span(direction, begin_s, now_s, direction), *parts]
    if measured.update_s > 0:
        spans.append(span("update", now_s, now_s + measured.update_s, "update"))
    if not spans:
        return timeline
    return timeline._replace(
        spans=(*timeline.spans, *spans),
        rows=(*timeline.rows, _MEASURED_ROW),
        processes=(*timeline.processes, Process(name="measured", rows=(_MEASURED_ROW,))),
    )


# --- Measured seconds beside predicted ones as a table, layer by layer. The measured step is taken to be one iteration
# of one device. Of a timeline over several kinds of devices the first one that has a layer is compared; of one without
# layers only the passes through all of them.


def compared(timeline: Timeline, measured: Measured) -> Compared:
    """Return predicted and measured seconds of an iteration, layer by layer and in all.

    Returns
    -------
    ``origin``; ``layers``: how they were matched (``name``, ``order``, or ``none``); and ``rows`` of ``layer``,
    ``direction``, ``predicted_s``, ``measured_s`` and ``ratio``, measured over predicted, where both are known.
    Layers are matched by name, or, where no name is the same, by order if there are as many that take time.
    """
    predicted = _predicted(timeline)
    matched, partner = "none", dict[str, str]()
    names = {name for name, _ in predicted}
    ahead = [name for name, direction in predicted if direction == "forward"]
    timed = [name for name, seconds in zip(measured.names, measured.forward_s, strict=True) if seconds > 0]
    if same := {name: name for name in measured.names if name in names}:
        matched, partner = "name", same
    elif ahead and len(ahead) == len(timed):
        matched, partner = "order", dict(zip(timed, ahead, strict=True))
    pairs: list[tuple[str, str, float | None, float | None]] = []
    for index, name in enumerate(measured.names):
        for direction, seconds in measured.passes:
            own = predicted.get((partner.get(name, ""), direction))
            if seconds[index] or own:
                pairs.append((name, direction, own, seconds[index]))
    pairs += [
        (name, direction, seconds, None)
        for (name, direction), seconds in predicted.items()
        if name not in partner.values()
    ]
    totals = _totals(timeline, predicted)
    pairs += [("all layers", direction, totals[direction], sum(seconds)) for direction, seconds in measured.passes]
    rows: list[ComparedRow] = [
        {
            "layer": name,
            "direction": direction,
            "predicted_s": predicted_s,
            "measured_s": measured_s,
            "ratio": measured_s / predicted_s if predicted_s and measured_s is not None else None,
        }
        for name, direction, predicted_s, measured_s in pairs
    ]
    return {"origin": measured.origin, "layers": matched, "rows": rows}


def _predicted(timeline: Timeline) -> dict[tuple[str, str], float]:
    """Return the seconds of every layer and direction in the first iteration, on the first device that has it."""
    row_of: dict[tuple[str, str], str] = {}
    found: dict[tuple[str, str], float] = {}
    for span in timeline.spans:
        if "layer" not in span.args or span.kind not in ("layer", *_DIRECTIONS) or span.iteration:
            continue
        key = (str(span.args["layer"]), str(span.args["direction"]))
        if key[1] in _DIRECTIONS and row_of.setdefault(key, span.row) == span.row:
            found[key] = found.get(key, 0.0) + span.end_s - span.start_s
    return found


def _totals(timeline: Timeline, predicted: Mapping[tuple[str, str], float]) -> dict[str, float | None]:
    """Return the seconds of the passes through all layers: of the layers, or of the stages of the first pipeline.

    Its rows are those that arrows join to the first one that computes.
    """
    if predicted:
        return {
            direction: sum(seconds for (_, way), seconds in predicted.items() if way == direction)
            for direction in _DIRECTIONS
        }
    beside: dict[str, set[str]] = defaultdict(set)
    for flow in timeline.flows:
        one, other = timeline.spans[flow.source].row, timeline.spans[flow.target].row
        beside[one].add(other)
        beside[other].add(one)
    joined: set[str] = set()
    waiting = [span.row for span in timeline.spans if span.kind in _DIRECTIONS][:1]
    while waiting:
        row = waiting.pop()
        if row not in joined:
            joined.add(row)
            waiting += beside[row] - joined
    found: dict[str, float | None] = {}
    for direction in _DIRECTIONS:
        lengths = [
            span.end_s - span.start_s
            for span in timeline.spans
            if span.kind == direction and span.row in joined and not span.iteration
        ]
        found[direction] = sum(lengths) if lengths else None
    return found


def table_text(comparison: Compared) -> str:
    """Return the comparison as lines of text; of many layers those that differ most, in seconds."""

    def difference_s(row: ComparedRow) -> float:
        return abs(float(row["measured_s"] or 0.0) - float(row["predicted_s"] or 0.0))

    def time(seconds: float | None) -> str:
        return "-" if seconds is None else time_words(seconds)

    rows = comparison["rows"]
    layers = [row for row in rows if row["layer"] != "all layers"]
    most = sorted(range(len(layers)), key=lambda index: (-difference_s(layers[index]), index))[:_MOST_LINES]
    shown = [*(layers[index] for index in sorted(most)), *(row for row in rows if row["layer"] == "all layers")]
    cells = [("layer", "pass", "predicted", "measured", "ratio")]
    for row in shown:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        cells.append((row["layer"], row["direction"], time(row["predicted_s"]), time(row["measured_s"]), ratio))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [f"predicted and measured, {comparison['origin']} ({_MATCHED[comparison['layers']]}):"]
    for row_cells in cells:
        words = [cell.ljust(width) for cell, width in zip(row_cells[:2], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(row_cells[2:], widths[2:], strict=True)]
        lines.append("  ".join([*words, *numbers]))
    if len(layers) > _MOST_LINES:
        lines.append(f"{len(layers) - _MOST_LINES} rows that differ less are in the trace's otherData.measured")
    return "\n".join(lines)
