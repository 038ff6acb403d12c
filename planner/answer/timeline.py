"""A configuration's schedule as a trace: devices, the breakdown, fewer events, measured times beside predicted ones."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.families import FAMILIES
from planner.plan import Configuration, Prediction
from planner.problem import Problem
from planner.timeline import Counter, Flow, Process, Span, Timeline, timeline_document
from planner.units import Dimension, format_human

# --- Measured seconds beside predicted ones: a process of their own in the timeline, and a table, layer by layer
# The measured step is taken to be one iteration of one device. Of a timeline over several kinds of devices the first
# one that has a layer is compared; of one without layers only the passes through all of them.

_MEASURED_PROCESS = "measured"
_MEASURED_ROW = "measured: compute"
_DIRECTIONS = ("forward", "backward")
_MOST_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of one step, by layer, in the order of the forward pass; ``update_s`` 0 where it is not known."""

    origin: str
    names: tuple[str, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: float = 0.0


def with_measured(timeline: Timeline, measured: Measured) -> Timeline:
    """Return a timeline with the measured step as a process beside the others, from the start of the first iteration.

    A trace says how long modules take, not when: they follow one another, forward and then backward, the update last.
    """
    spans: list[Span] = []
    now_s = 0.0
    for direction, seconds in zip(_DIRECTIONS, (measured.forward_s, measured.backward_s), strict=True):
        layers = list(zip(measured.names, seconds, strict=True))
        begun_s, found = now_s, []
        for name, length_s in layers if direction == "forward" else layers[::-1]:
            if length_s > 0:
                told = {"layer": name, "direction": direction}
                found.append(_span(f"{direction} {name}", now_s, now_s + length_s, "layer", is_part=True, args=told))
                now_s += length_s
        if now_s > begun_s:
            spans += [_span(direction, begun_s, now_s, direction), *found]
    if measured.update_s > 0:
        spans.append(_span("update", now_s, now_s + measured.update_s, "update"))
    if not spans:
        return timeline
    return timeline._replace(
        spans=(*timeline.spans, *spans),
        rows=(*timeline.rows, _MEASURED_ROW),
        processes=(*timeline.processes, Process(name=_MEASURED_PROCESS, rows=(_MEASURED_ROW,))),
    )


def _span(
    name: str, start_s: float, end_s: float, kind: str, *, is_part: bool = False, args: Mapping[str, Any] | None = None
) -> Span:
    """Return a measured span."""
    return Span(
        row=_MEASURED_ROW,
        name=name,
        start_s=start_s,
        end_s=end_s,
        kind=kind,
        is_part=is_part,
        args={**(args or {}), "is_measured": True},
    )


# -- comparison --------------------------------------------------------------------------------------------------------


def compared(timeline: Timeline, measured: Measured) -> dict[str, Any]:
    """Return predicted and measured seconds of an iteration, layer by layer and in all.

    Returns
    -------
    ``origin``; ``layers``: how they were matched (``name``, ``order``, or ``none``); and ``rows`` of ``layer``,
    ``direction``, ``predicted_s``, ``measured_s`` and ``ratio``, measured over predicted, where both are known.
    Layers are matched by name, or, where no name is the same, by order if there are as many that take time.
    """
    predicted = _predicted(timeline)
    matched, partner = _partners(predicted, measured)
    rows = []
    for index, name in enumerate(measured.names):
        for direction, seconds in zip(_DIRECTIONS, (measured.forward_s, measured.backward_s), strict=True):
            own = predicted.get((partner.get(name, ""), direction))
            if seconds[index] or own:
                rows.append(_measured_row(name, direction, own, seconds[index]))
    for name, direction in predicted:
        if name not in partner.values():
            rows.append(_measured_row(name, direction, predicted[name, direction], None))
    totals = _totals(timeline, predicted)
    for direction, seconds in zip(_DIRECTIONS, (measured.forward_s, measured.backward_s), strict=True):
        rows.append(_measured_row("all layers", direction, totals[direction], sum(seconds)))
    return {"origin": measured.origin, "layers": matched, "rows": rows}


def _measured_row(layer: str, direction: str, predicted_s: float | None, measured_s: float | None) -> dict[str, Any]:
    """Return a row of the comparison."""
    ratio = measured_s / predicted_s if predicted_s and measured_s is not None else None
    told = {"layer": layer, "direction": direction, "predicted_s": predicted_s, "measured_s": measured_s}
    return {**told, "ratio": ratio}


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


def _partners(predicted: Mapping[tuple[str, str], float], measured: Measured) -> tuple[str, dict[str, str]]:
    """Return how layers are matched, and the predicted layer of each measured one."""
    names = list(dict.fromkeys(name for name, _ in predicted))
    known = set(names)
    if same := {name: name for name in measured.names if name in known}:
        return "name", same
    ahead = [name for name, direction in predicted if direction == "forward"]
    timed = [name for name, seconds in zip(measured.names, measured.forward_s, strict=True) if seconds > 0]
    if ahead and len(ahead) == len(timed):
        return "order", dict(zip(timed, ahead, strict=True))
    return "none", {}


def _totals(timeline: Timeline, predicted: Mapping[tuple[str, str], float]) -> dict[str, float | None]:
    """Return the seconds of the passes through all layers: of the layers, or of a pipeline's stages."""
    if predicted:
        return {
            direction: sum(seconds for (_, way), seconds in predicted.items() if way == direction)
            for direction in _DIRECTIONS
        }
    rows = _joined(timeline)
    found: dict[str, float | None] = {}
    for direction in _DIRECTIONS:
        lengths = [
            span.end_s - span.start_s
            for span in timeline.spans
            if span.kind == direction and span.row in rows and not span.iteration
        ]
        found[direction] = sum(lengths) if lengths else None
    return found


def _joined(timeline: Timeline) -> set[str]:
    """Return the rows of one pipeline: those that arrows join to the first that computes."""
    first = next((span.row for span in timeline.spans if span.kind in _DIRECTIONS), None)
    beside: dict[str, set[str]] = {}
    for flow in timeline.flows:
        one, other = timeline.spans[flow.source].row, timeline.spans[flow.target].row
        beside.setdefault(one, set()).add(other)
        beside.setdefault(other, set()).add(one)
    found: set[str] = set()
    waiting = [] if first is None else [first]
    while waiting:
        row = waiting.pop()
        if row not in found:
            found.add(row)
            waiting += beside.get(row, set()) - found
    return found


def table_text(comparison: Mapping[str, Any]) -> str:
    """Return the comparison as lines of text; of many layers those that differ most, in seconds."""
    rows: Sequence[Mapping[str, Any]] = comparison["rows"]
    layers = [row for row in rows if row["layer"] != "all layers"]
    shown = layers
    if len(layers) > _MOST_LINES:
        kept = sorted(range(len(layers)), key=lambda index: (-_difference_s(layers[index]), index))[:_MOST_LINES]
        shown = [layers[index] for index in sorted(kept)]
    shown = [*shown, *(row for row in rows if row["layer"] == "all layers")]
    cells = [("layer", "pass", "predicted", "measured", "ratio")]
    for row in shown:
        times = [_time(row[key]) for key in ("predicted_s", "measured_s")]
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        cells.append((row["layer"], row["direction"], *times, ratio))
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = [f"predicted and measured, {comparison['origin']} ({_MATCHED[comparison['layers']]}):"]
    for one in cells:
        words = [cell.ljust(width) for cell, width in zip(one[:2], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(one[2:], widths[2:], strict=True)]
        lines.append("  ".join([*words, *numbers]))
    if len(layers) > _MOST_LINES:
        lines.append(f"{len(layers) - _MOST_LINES} rows that differ less are in the trace's otherData.measured")
    return "\n".join(lines)


_MATCHED = {
    "name": "layers matched by name",
    "order": "layers matched by order: no names are the same",
    "none": "no layers matched: neither names nor numbers of layers are the same",
}


def _difference_s(row: Mapping[str, Any]) -> float:
    """Return by how much a row differs."""
    return abs(float(row["measured_s"] or 0.0) - float(row["predicted_s"] or 0.0))


def _time(seconds: float | None) -> str:
    """Return a time in words."""
    return "-" if seconds is None else format_human(seconds, Dimension.TIME)


# --- The prediction itself as a process of the timeline: an iteration, and where its time goes

_BREAKDOWN_PROCESS = "prediction"
_BREAKDOWN_ROW = "prediction: where the time goes"


def with_breakdown(
    timeline: Timeline, breakdown_s: Mapping[str, float], iteration_time_s: float, num_iterations: int
) -> Timeline:
    """Return a timeline with the prediction's terms before all else, in their order, inside each iteration.

    They sum to the iteration; their places on this row are not when they occur.
    """
    spans: list[Span] = []
    for index in range(num_iterations):
        start_s, end_s = index * iteration_time_s, (index + 1) * iteration_time_s
        shared = {"row": _BREAKDOWN_ROW, "iteration": index, "kind": "prediction"}
        whole = {"seconds": iteration_time_s}
        spans.append(Span(name=f"iteration {index + 1}", start_s=start_s, end_s=end_s, args=whole, **shared))  # type: ignore[arg-type]
        for name, seconds in breakdown_s.items():
            until_s = min(start_s + seconds, end_s)
            if until_s > start_s:
                told = {"seconds": seconds}
                spans.append(Span(name=name, start_s=start_s, end_s=until_s, is_part=True, args=told, **shared))  # type: ignore[arg-type]
            start_s = max(until_s, start_s)
    return timeline._replace(
        spans=(*timeline.spans, *spans),
        rows=(_BREAKDOWN_ROW, *timeline.rows),
        processes=(Process(name=_BREAKDOWN_PROCESS, rows=(_BREAKDOWN_ROW,)), *timeline.processes),
    )


# --- All devices of a timeline, or one of each kind


def num_devices(timeline: Timeline) -> int:
    """Return how many devices a timeline stands for; servers and networks are none."""
    return sum(one.count for one in timeline.processes if one.member)


def of_each_kind(timeline: Timeline) -> Timeline:
    """Return a timeline with the first process of each kind only."""
    first: dict[str, str] = {}
    kept = [one for one in timeline.processes if first.setdefault(one.kind or f"/{one.name}", one.name) == one.name]
    if len(kept) == len(timeline.processes):
        return timeline
    gone = {row for one in timeline.processes if one not in kept for row in one.rows}
    numbers = _numbers([span.row not in gone for span in timeline.spans])
    names = {one.name for one in kept}
    return timeline._replace(
        spans=tuple(span for span in timeline.spans if span.row not in gone),
        flows=_renumbered(timeline.flows, numbers),
        rows=tuple(row for row in timeline.rows if row not in gone),
        processes=tuple(kept),
        counters=tuple(one for one in timeline.counters if one.process in names),
    )


def with_parts(timeline: Timeline, *, has_parts: bool) -> Timeline:
    """Return a timeline with or without the spans that stand inside others; arrows of these go with them."""
    if has_parts:
        return timeline
    numbers = _numbers([not span.is_part for span in timeline.spans])
    spans = tuple(span for span in timeline.spans if not span.is_part)
    return timeline._replace(spans=spans, flows=_renumbered(timeline.flows, numbers))


def with_all(timeline: Timeline) -> Timeline:
    """Return a timeline with every device in a process of its own, in the order of the kinds.

    An arrow between two kinds leads from each device to the one that stands where it does among its own.
    """
    if all(one.count == 1 for one in timeline.processes):
        return timeline
    owner = {row: one for one in timeline.processes for row in one.rows}
    spans: list[Span] = []
    copies: list[list[int]] = []
    for span in timeline.spans:
        process = owner.get(span.row)
        count = process.count if process is not None and process.member else 1
        copies.append(list(range(len(spans), len(spans) + count)))
        spans += [replace(span, row=_devices_row(process, span.row, index)) for index in range(count)]
    flows = [made for flow in timeline.flows for made in _flows(flow, copies[flow.source], copies[flow.target])]
    members = {one.name: _members(one) for one in timeline.processes}
    listed = [made for one in timeline.processes for made in members[one.name]]
    loose = [row for row in timeline.rows if row not in owner]
    return timeline._replace(
        spans=tuple(spans),
        flows=tuple(flows),
        rows=(*(row for one in listed for row in one.rows), *loose),
        processes=tuple(listed),
        counters=tuple(
            Counter(process=made.name, name=one.name, points=one.points)
            for one in timeline.counters
            for made in members[one.process]
        ),
    )


def _members(process: Process) -> list[Process]:
    """Return a process for each device of a kind."""
    if process.count == 1 or not process.member:
        return [process]
    return [
        Process(
            name=_name(process.member, index),
            rows=tuple(_devices_row(process, row, index) for row in process.rows),
            member=(_name(process.member, index), ""),
        )
        for index in range(process.count)
    ]


def _devices_row(process: Process | None, row: str, index: int) -> str:
    """Return the row of one device."""
    if process is None or process.count == 1 or not process.member:
        return row
    return _name(process.member, index) + row.removeprefix(process.name)


def _name(member: tuple[str, str], index: int) -> str:
    """Return the name of one device: others' names may stand beside its number, whatever they hold."""
    before, behind = member
    return f"{before}{index + 1}{behind}"


def _flows(flow: Flow, sources: list[int], targets: list[int]) -> list[Flow]:
    """Return the arrows between all devices of two kinds."""
    most = max(len(sources), len(targets))
    return [
        replace(flow, source=sources[index * len(sources) // most], target=targets[index * len(targets) // most])
        for index in range(most)
    ]


def _numbers(are_kept: list[bool]) -> dict[int, int]:
    """Return the new number of everything that is kept."""
    kept = [index for index, is_kept in enumerate(are_kept) if is_kept]
    return {old: new for new, old in enumerate(kept)}


def _renumbered(flows: tuple[Flow, ...], numbers: Mapping[int, int]) -> tuple[Flow, ...]:
    """Return the arrows of which both spans are kept."""
    return tuple(
        replace(flow, source=numbers[flow.source], target=numbers[flow.target])
        for flow in flows
        if flow.source in numbers and flow.target in numbers
    )


# --- A timeline of no more events than a viewer bears: the shortest spans are left out, and it is said how many

MOST_EVENTS = 1_000_000
_OF_A_ROW = 2  # events that name it
_KEPT = "prediction"  # the kind of spans that always stay


def thinned(timeline: Timeline, *, is_expanded: bool, most: int = MOST_EVENTS) -> Timeline:
    """Return a timeline of at most so many events, names included, with a note of what was left out.

    Of spans the shortest go first, and arrows with them; then other arrows, and counters last.

    Parameters
    ----------
    is_expanded
        Whether each kind of device will be drawn as often as it is there.

    Raises
    ------
    ValueError
        If the rows alone are too many.
    """
    owner = {row: one for one in timeline.processes for row in one.rows}
    counts = {row: owner[row].count if is_expanded and row in owner else 1 for row in timeline.rows}
    processes = sum(one.count if is_expanded else 1 for one in timeline.processes) + 1
    left = most - _OF_A_ROW * (processes + sum(counts.values()))
    if left <= 0:
        raise ValueError(f"{processes - 1:,} devices and links are too many to draw.")
    weights = [counts[span.row] for span in timeline.spans]
    points = [
        len(one.points) * next((p.count for p in timeline.processes if is_expanded and p.name == one.process), 1)
        for one in timeline.counters
    ]

    def arrows(flow: Flow) -> int:
        return 2 * max(weights[flow.source], weights[flow.target])

    if sum(weights) + sum(map(arrows, timeline.flows)) + sum(points) <= left:
        return timeline
    order = sorted(range(len(weights)), key=lambda index: _rank(timeline, index))
    kept: set[int] = set()
    for index in order:
        if weights[index] > left:
            break
        left -= weights[index]
        kept.add(index)
    numbers = {old: new for new, old in enumerate(sorted(kept))}
    flows = []
    for flow in timeline.flows:
        if flow.source in numbers and flow.target in numbers and arrows(flow) <= left:
            left -= arrows(flow)
            flows.append(
                Flow(
                    source=numbers[flow.source],
                    target=numbers[flow.target],
                    name=flow.name,
                    is_stream=flow.is_stream,
                )
            )
    counters = []
    for counter, number in zip(timeline.counters, points, strict=True):
        if number <= left:
            left -= number
            counters.append(counter)
    gone = (
        f"thinned to {most:,} events: of {len(weights):,} spans the {len(weights) - len(kept):,} shortest are left "
        f"out, of {len(timeline.flows):,} arrows {len(timeline.flows) - len(flows):,}, of {len(points):,} counters "
        f"{len(points) - len(counters):,}"
    )
    return timeline._replace(
        spans=tuple(timeline.spans[index] for index in sorted(kept)),
        flows=tuple(flows),
        counters=tuple(counters),
        notes=(*timeline.notes, gone),
    )


def _rank(timeline: Timeline, index: int) -> tuple[bool, float, int]:
    """Return the place of a span among those to keep: the prediction's own first, then the longest."""
    span = timeline.spans[index]
    return span.kind != _KEPT, span.start_s - span.end_s, index


# --- From a family's timeline to the document that is written

MOST_DRAWN = 64  # devices that are all drawn unless it is said otherwise
MOST_ITERATIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What is drawn: ``all`` devices, one of each of their ``kinds``, or None for what suits their number."""

    devices: str | None = None
    num_iterations: int = 1
    has_parts: bool = True
    most_events: int = MOST_EVENTS


def drawn_document(
    timeline: Timeline,
    prediction: Prediction,
    wanted: Drawn,
    *,
    about: Mapping[str, Any],
    measured: Measured | None = None,
) -> dict[str, Any]:
    """Return the trace of a family's timeline, which holds all iterations already.

    Raises
    ------
    SpecError
        If the rows alone are too many events.
    """
    number = num_devices(timeline)
    is_expanded = wanted.devices == "all" or (wanted.devices is None and number <= MOST_DRAWN)
    comparison = None if measured is None else compared(timeline, measured)
    found = timeline if is_expanded else of_each_kind(timeline)
    found = with_parts(found, has_parts=wanted.has_parts)
    if wanted.has_parts:
        terms, iteration_s = prediction.breakdown_s, prediction.iteration_time_s
        found = with_breakdown(found, terms, iteration_s, wanted.num_iterations)
    if measured is not None:
        found = with_measured(found, measured)
    try:
        found = thinned(found, is_expanded=is_expanded, most=wanted.most_events)
    except ValueError as error:
        raise SpecError(f"--trace-devices: {error} Write --trace-devices kinds.") from None
    if is_expanded:
        found = with_all(found)
    told = {
        **about,
        "iteration_time_s": prediction.iteration_time_s,
        "iterations": wanted.num_iterations,
        "num_devices": number,
        "devices": "all" if is_expanded else "one of each kind",
    }
    if comparison is not None:
        told["measured"] = comparison
    return timeline_document(*found, about=told)


def timeline(
    problem: Problem,
    family: str,
    configuration: Configuration,
    *,
    devices: str | None = "kinds",
    num_iterations: int = 1,
    has_parts: bool = False,
    measured: Path | Measured | None = None,
) -> dict[str, Any]:
    """Return a configuration's schedule as a Chrome trace, for Perfetto.

    Parameters
    ----------
    devices
        ``all``, or ``kinds``: one device of each kind. None: all, if they are 64 or fewer.
    num_iterations
        From 1 to 100.
    has_parts
        Whether the slices inside others are there, and the prediction's terms as a process of their own.
    measured
        A trace of ``torch.profiler`` of one device, or what :func:`measured_step` read from it, whose modules' seconds
        stand beside the predicted ones; compared in ``otherData.measured``.

    Raises
    ------
    SpecError
        If a parameter is none of these, the schedule has too many tasks to draw, or the measured trace cannot be read.
    """
    if devices not in (None, "all", "kinds"):
        raise SpecError(f"--trace-devices: {devices!r} is not known. Write all or kinds.")
    if not 1 <= num_iterations <= MOST_ITERATIONS:
        raise SpecError(f"--trace-iterations: {num_iterations} is not from 1 to {MOST_ITERATIONS}.")
    chosen: Any = configuration
    found = FAMILIES[family].timeline(problem, chosen, num_iterations=num_iterations)
    prediction = FAMILIES[family].predict(problem, chosen)
    about = {"family": family, "configuration": configuration.headline}
    wanted = Drawn(devices=devices, num_iterations=num_iterations, has_parts=has_parts)
    step = measured_step(measured) if isinstance(measured, Path) else measured
    return drawn_document(found, prediction, wanted, about=about, measured=step)


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


def pieces_of(trace: Mapping[str, Any]) -> Iterator[str]:
    """Yield a trace as JSON, an event at a time: of a million the text is not held beside them."""

    def text(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    yield '{"traceEvents":['
    for index, event in enumerate(trace["traceEvents"]):
        yield f",{text(event)}" if index else text(event)
    yield f"],{text({name: value for name, value in trace.items() if name != 'traceEvents'})[1:]}\n"
