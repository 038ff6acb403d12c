"""The plan drawn: what runs where, on the machines of the cluster, and what runs when."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from planner.answer.timeline import Trace
from planner.cluster import Cluster, MachineGroup
from planner.sections import Cell, Drawing, Gantt, Group, Machine, Placement, Role, Table
from planner.units import Dimension, format_human
from planner.words import few, many, size_words, term_words, thinned, time_words

# --- The cluster, drawn: groups of machines, their devices, and what runs on each

_MOST_MACHINES = 24  # of a group
_MOST_GROUPS = 16
_MOST_DEVICES = 16  # of a machine
_IDLE = Cell(label="\N{MIDDLE DOT}", words="idle")


def drawing_of(cluster: Cluster, placement: Placement) -> Drawing:
    """Return the cluster with what runs where."""
    groups = thinned(cluster.machine_groups, _MOST_GROUPS)
    drawn = [_group(cluster, group, placement) for group in groups]
    is_idle = any(_IDLE in machine.cells for group in drawn for machine in group.machines)
    idle = (Role(label=_IDLE.label, words="a device that does nothing"),) if is_idle else ()
    left_out = len(cluster.machine_groups) - len(groups)
    return Drawing(
        caption=f"What runs where on {cluster.words}",
        groups=drawn,
        roles=(*placement.roles, *idle),
        note=f"{many(left_out, 'group')} of machines are not drawn." if left_out else "",
    )


def _group(cluster: Cluster, group: MachineGroup, placement: Placement) -> Group:
    machines = _alike([_machine(group, index, placement) for index in range(group.count)], group)
    shown = thinned(machines, _MOST_MACHINES)
    note = ""
    if len(shown) < len(machines):
        kinds = "machines" if len(machines) == group.count else "rows of like machines"
        note = f"{len(shown)} of {len(machines):,} {kinds} are drawn, chosen evenly."
    return Group(
        title=f"{group.name}: {many(group.count, 'machine')} x {group.devices_per_machine} {group.device.name}",
        words="; ".join(_links(cluster, group)),
        machines=shown,
        note=note,
    )


def _alike(machines: Sequence[Machine], group: MachineGroup) -> Sequence[Machine]:
    """Return machines, of more than are drawn those next to each other that do the same as one."""
    if len(machines) <= _MOST_MACHINES:
        return machines
    found: list[Machine] = []
    for _, run in groupby(enumerate(machines), key=lambda one: [(cell.label, cell.colour) for cell in one[1].cells]):
        indices, own = zip(*run, strict=True)
        if len(own) == 1:
            found += own
        else:
            words = f"{len(own):,} machines, each like this"
            note = f"{own[0].note}; {words}" if own[0].note else words
            found.append(replace(own[0], name=f"{group.name} {indices[0]} to {indices[-1]}", note=note))
    return found


def _links(cluster: Cluster, group: MachineGroup) -> list[str]:
    """Return the memory of a group's devices, and its links, in words; networks in bits, as they are sold."""
    words = [] if group.device.memory_bytes == float("inf") else [f"{size_words(group.device.memory_bytes)} a device"]
    if group.inside is not None:
        words.append(f"inside a machine {format_human(group.inside.bandwidth_bytes_per_s, Dimension.RATE)}")
    for one, other, link in cluster.links:
        if group.name not in (one, other):
            continue
        number, end = cluster.num_cables(one, other), other if one == group.name else one
        cards = f"{number} x " if number > 1 else ""
        rate = f"{link.bandwidth_bytes_per_s * 8 / 1e9:.4g} Gbit/s"
        words.append(f"{cards}{rate} to {end}, {time_words(link.latency_s)} a hop")
    return words


def _machine(group: MachineGroup, index: int, placement: Placement) -> Machine:
    cells: Sequence[Cell] = placement.devices.get(group.name, ())
    used = placement.per_machine.get(group.name, group.devices_per_machine)
    own = [*cells[index * used : (index + 1) * used]]
    own += [_IDLE] * (group.devices_per_machine - len(own))
    shown = thinned(own, _MOST_DEVICES)
    servers = placement.servers.get(group.name, {}).get(index, ())
    note = f"{len(shown)} of {group.devices_per_machine} devices" if len(shown) < group.devices_per_machine else ""
    return Machine(name=f"{group.name} {index}", cells=[*servers, *shown], note=note)


# --- What runs when: a schedule's trace as a plot of bars on rows

_MOST_SPANS = 8000
_MOST_LANES = 40
_US = 1e-6
_NS_PER_US = 1000  # times of a trace are whole nanoseconds, in microseconds

Event = Mapping[str, Any]
Span = tuple[int, float, float, str]  # row, start, end, words


def timeline_chart(trace: Trace) -> Gantt:
    """Return the plot of a trace of :func:`planner.answer.timeline.timeline_document`."""
    events = trace["traceEvents"]
    lanes = {
        one["tid"]: str(one["args"]["name"]) for one in events if one["ph"] == "M" and one["name"] == "thread_name"
    }
    shown = _whole_processes(events, list(lanes))
    place = {lane: index for index, lane in enumerate(shown)}
    spans = _outer([one for one in events if one["ph"] == "X" and one["tid"] in place])
    end_s = max((one["ts"] + one["dur"] for one in spans), default=0.0) * _US
    kinds, coarse = _bars(spans, place, end_s)
    told = (f"{one[:1].upper()}{one[1:]}." for one in trace.get("otherData", {}).get("notes", ()))
    notes = [few(len(lanes), len(shown), "rows", "--trace writes all of them"), coarse, *told]
    return Gantt(
        caption="What runs when",
        alt=f"Timeline of {many(len(shown), 'row')} with {many(len(spans), 'task')} over {time_words(end_s)}.",
        names=[lanes[lane] for lane in shown],
        kinds=kinds,
        title="time",
        table=Table(
            caption="How long each row is busy",
            columns=("row", "tasks", "busy", "share"),
            rows=[_busy(lanes[lane], [one for one in spans if one["tid"] == lane], end_s) for lane in shown],
            numbers=(1, 2, 3),
        ),
        note=" ".join(filter(None, notes)),
    )


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
    busy_s = sum(one["dur"] for one in spans) * _US
    return name, f"{len(spans):,}", time_words(busy_s), f"{busy_s / end_s:.0%}" if end_s else ""


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
    return term_words(str(one["cat"]))


def _bars(spans: Sequence[Event], place: Mapping[int, int], end_s: float) -> tuple[dict[str, list[Span]], str]:
    """Return the bars by kind, and a note where there are too many spans to draw each."""
    kinds: dict[str, list[Span]] = {_kind(one): [] for one in spans}
    if len(spans) <= _MOST_SPANS:
        for one in spans:
            start_s = one["ts"] * _US
            kinds[_kind(one)].append((place[one["tid"]], start_s, start_s + one["dur"] * _US, str(one["name"])))
        return kinds, ""
    number = max(100, _MOST_SPANS // len(place))
    for lane, row in place.items():
        for kind, start_s, last_s in _resampled([one for one in spans if one["tid"] == lane], number, end_s):
            kinds[kind].append((row, start_s, last_s, f"{kind}, several tasks"))
    step = time_words(end_s / number)
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
