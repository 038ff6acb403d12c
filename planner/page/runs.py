"""What runs when: a schedule's trace as a plot of bars on rows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from planner.page import figures
from planner.page.parts import Figure, Table, few, thinned
from planner.page.words import many, term, time

__all__ = ["timeline_figures"]

_MOST_SPANS = 8000
_MOST_LANES = 40
_US = 1e-6
_NS_PER_US = 1000  # times of a trace are whole nanoseconds, in microseconds

Event = Mapping[str, Any]


def timeline_figures(trace: Mapping[str, Any] | None) -> list[Figure]:
    """Return the plot of a trace of :func:`planner.timeline.timeline_document`; nothing where there is none."""
    if trace is None:
        return []
    events = trace["traceEvents"]
    lanes = {
        one["tid"]: str(one["args"]["name"]) for one in events if one["ph"] == "M" and one["name"] == "thread_name"
    }
    shown = _whole_processes(events, list(lanes))
    place = {lane: index for index, lane in enumerate(shown)}
    spans = _outer([one for one in events if one["ph"] == "X" and one["tid"] in place])
    end_s = max((one["ts"] + one["dur"] for one in spans), default=0.0) * _US
    kinds, coarse = _bars(spans, place, end_s)
    names = [lanes[lane] for lane in shown]
    data, layout = figures.gantt(names, kinds, title="time")
    table = Table(
        caption="How long each row is busy",
        columns=("row", "tasks", "busy", "share"),
        rows=[_busy(lanes[lane], [one for one in spans if one["tid"] == lane], end_s) for lane in shown],
        numbers=(1, 2, 3),
    )
    alt = f"Timeline of {many(len(shown), 'row')} with {many(len(spans), 'task')} over {time(end_s)}."
    told = (f"{one[:1].upper()}{one[1:]}." for one in trace.get("otherData", {}).get("notes", ()))
    notes = [few(len(lanes), len(shown), "rows", "--trace writes all of them"), coarse, *told]
    note = " ".join(filter(None, notes))
    return [Figure(caption="What runs when", alt=alt, data=data, layout=layout, table=table, note=note)]


def _whole_processes(events: Sequence[Event], lanes: Sequence[int]) -> list[int]:
    """Return the rows to draw: all rows of as many processes as there is room for, chosen evenly."""
    process = {one["tid"]: one["pid"] for one in events if one["ph"] == "M" and one["name"] == "thread_name"}
    rows: dict[int, list[int]] = defaultdict(list)
    for lane in lanes:
        rows[process[lane]].append(lane)
    for number in range(len(rows), 0, -1):
        shown = [lane for one in thinned(list(rows), number) for lane in rows[one]]
        if len(shown) <= _MOST_LANES:
            return shown
    return thinned(lanes, _MOST_LANES)


def _busy(name: str, spans: Sequence[Event], end_s: float) -> tuple[str, ...]:
    """Return how long a row is busy."""
    busy_s = sum(one["dur"] for one in spans) * _US
    return name, f"{len(spans):,}", time(busy_s), f"{busy_s / end_s:.0%}" if end_s else ""


def _outer(spans: Sequence[Event]) -> list[Event]:
    """Return the spans that lie within no other of their row; an outer one comes before what is in it."""
    ends: dict[int, int] = {}
    found = []
    for one in spans:
        start, length = (round(one[name] * _NS_PER_US) for name in ("ts", "dur"))  # floats would not meet end to end
        if one["tid"] not in ends or start >= ends[one["tid"]]:
            ends[one["tid"]] = start + length
            found.append(one)
    return found


def _kind(one: Event) -> str:
    """Return the kind of a span in words."""
    return term(str(one["cat"]))


def _bars(spans: Sequence[Event], place: Mapping[int, int], end_s: float) -> tuple[dict[str, list[figures.Bar]], str]:
    """Return the bars by kind, and a note where there are too many spans to draw each."""
    kinds: dict[str, list[figures.Bar]] = {_kind(one): [] for one in spans}
    if len(spans) <= _MOST_SPANS:
        for one in spans:
            start_s = one["ts"] * _US
            kinds[_kind(one)].append((place[one["tid"]], start_s, start_s + one["dur"] * _US, str(one["name"])))
        return kinds, ""
    number = max(100, _MOST_SPANS // len(place))
    for lane, row in place.items():
        for kind, start_s, last_s in _resampled([one for one in spans if one["tid"] == lane], number, end_s):
            kinds[kind].append((row, start_s, last_s, f"{kind}, several tasks"))
    step = time(end_s / number)
    note = f"Drawn in {number} steps of {step}, so that shares are right over a few of them; --trace writes every task."
    return kinds, note


def _resampled(spans: Sequence[Event], number: int, end_s: float) -> list[tuple[str, float, float]]:
    """Return a row in so many equal steps of one kind each, equal neighbours as one, without the idle ones.

    A step is of the kind that is owed most time so far, itself included: so every kind, and idle time, has its share
    over a few steps, also where all alternate within one.
    """
    step = end_s / number / _US
    taken: list[dict[str, float]] = [defaultdict(float) for _ in range(number)]
    for one in spans:
        start, end = one["ts"], one["ts"] + one["dur"]
        for index in range(int(start // step), min(int(end // step), number - 1) + 1):
            taken[index][_kind(one)] += max(0.0, min(end, (index + 1) * step) - max(start, index * step))
    owed: dict[str, float] = defaultdict(float)
    found: list[tuple[str, float, float]] = []
    before = ""
    for index, parts in enumerate(taken):
        for kind, share in (*parts.items(), ("", step - sum(parts.values()))):
            owed[kind] += share
        kind = max(owed, key=lambda name: (owed[name], name))
        owed[kind] -= step
        if kind and kind == before:
            found[-1] = (kind, found[-1][1], (index + 1) * step * _US)
        elif kind:
            found.append((kind, index * step * _US, (index + 1) * step * _US))
        before = kind
    return found
