"""Measured seconds beside predicted ones: a process of their own in the timeline, and a table, layer by layer.

The measured step is taken to be one iteration of one device. Of a timeline over several kinds of devices the first one
that has a layer is compared; of one without layers only the passes through all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.timeline import Process, Span, Timeline
from planner.units import Dimension, format_human

__all__ = ["Measured", "compared", "table_text", "with_measured"]

_PROCESS = "measured"
_ROW = "measured: compute"
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
        rows=(*timeline.rows, _ROW),
        processes=(*timeline.processes, Process(name=_PROCESS, rows=(_ROW,))),
    )


def _span(
    name: str, start_s: float, end_s: float, kind: str, *, is_part: bool = False, args: Mapping[str, Any] | None = None
) -> Span:
    """Return a measured span."""
    return Span(
        row=_ROW,
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
                rows.append(_row(name, direction, own, seconds[index]))
    for name, direction in predicted:
        if name not in partner.values():
            rows.append(_row(name, direction, predicted[name, direction], None))
    totals = _totals(timeline, predicted)
    for direction, seconds in zip(_DIRECTIONS, (measured.forward_s, measured.backward_s), strict=True):
        rows.append(_row("all layers", direction, totals[direction], sum(seconds)))
    return {"origin": measured.origin, "layers": matched, "rows": rows}


def _row(layer: str, direction: str, predicted_s: float | None, measured_s: float | None) -> dict[str, Any]:
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
