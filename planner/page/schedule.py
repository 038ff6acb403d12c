"""The plan drawn: what runs where, and when."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.page import figures
from planner.page.drawing import drawing_of
from planner.page.parts import Block, Code, Figure, Heading, Section, Table, Text, few, thinned
from planner.page.told import Told
from planner.page.words import many, short, size, time

__all__ = ["plan_section"]

_MOST_GROUPS = 40  # fusion groups, each a row of the plot
_MOST_TABLE = 200  # rows of a table
_MOST_SPANS = 4000
_MOST_LANES = 40
_MOST_DEVICES = 50_000
_WHOLE = "--json has all of them"


def plan_section(told: Told, trace: Mapping[str, Any] | None) -> Section:
    """Return the drawing of the cluster, and of the schedule as far as the family has one."""
    blocks: list[Block] = []
    if told.problem.cluster.num_devices <= _MOST_DEVICES:
        drawing = drawing_of(told.problem.cluster, told.family, told.block, told.details)
        blocks += [drawing] if drawing is not None else []
    else:
        blocks.append(Text(f"The cluster has {told.problem.cluster.num_devices:,} devices, too many to draw."))
    blocks += [*_stages(told), *_fusion(told), *_servers(told), *_timeline(trace), *_decisions(told), *_launch(told)]
    return Section(name="plan", title="The plan", blocks=blocks)


# -- fusion groups ---------------------------------------------------------------------------------------------------


def _fusion(told: Told) -> list[Block]:
    """Return the gradients' timeline: when each group is ready, and when it is sent."""
    groups, rows = told.block.get("fusion_groups"), told.details.get("schedule")
    if not groups or not rows:
        return []
    both = list(zip(groups, rows, strict=True))
    shown = thinned(both, _MOST_GROUPS)
    names = [f"{_named(group['tensors'])} ({size(row['size_bytes'])})" for group, row in shown]
    kinds: dict[str, list[figures.Bar]] = {"ready, waits": [], "all-reduce": []}
    for index, (_, row) in enumerate(shown):
        if row["start_s"] > row["ready_s"]:
            kinds["ready, waits"].append((index, row["ready_s"], row["start_s"], f"{names[index]} waits"))
        kinds["all-reduce"].append((index, row["start_s"], row["end_s"], f"{names[index]} is sent"))
    marks = {"end of the backward pass": told.details["last_backward_s"]} if "last_backward_s" in told.details else {}
    data, layout = figures.gantt(names, kinds, title="time since the backward pass began", marks=marks)
    listed = thinned(both, _MOST_TABLE)
    table = Table(
        caption="Fusion groups in the order in which they are sent",
        columns=("sent after the gradient of", "gradients", "algorithm", "size", "ready", "from", "to"),
        rows=[
            (
                short(str(group["tensors"][-1]), 80),
                str(len(group["tensors"])),
                str(group["algorithm"]),
                size(row["size_bytes"]),
                *(time(row[key]) for key in ("ready_s", "start_s", "end_s")),
            )
            for group, row in listed
        ],
        numbers=(1, 3, 4, 5, 6),
        note=few(len(both), len(listed), "groups", _WHOLE),
    )
    last_s = max(row["end_s"] for row in rows)
    alt = (
        f"Timeline of {many(len(shown), 'fusion group')}: each waits until it is ready, then for "
        f"the channel; the last ends after {time(last_s)}."
    )
    return [
        Figure(
            caption="Fusion groups over the gradients' timeline",
            alt=alt,
            data=data,
            layout=layout,
            table=table,
            note=few(len(both), len(shown), "groups", "the table has more"),
        )
    ]


def _named(tensors: Sequence[str]) -> str:
    """Return a group by its last gradient, and how many more there are."""
    return str(tensors[-1]) + (f" + {len(tensors) - 1}" if len(tensors) > 1 else "")


# -- stages and servers ----------------------------------------------------------------------------------------------


def _stages(told: Told) -> list[Block]:
    """Return the stages of a pipeline as a table."""
    rows = told.details.get("stages")
    if told.family != "pipeline" or not rows:
        return []
    listed = thinned(list(enumerate(rows)), _MOST_TABLE)
    table = Table(
        caption="Stages",
        columns=("stage", "from layer", "to layer", "on", "replicas", "forward", "backward", "transfer", "idle"),
        rows=[
            (
                str(index + 1),
                str(row["first"]),
                str(row["last"]),
                f"{row['machines']} ({row['device']})",
                str(row["replicas"]),
                *(time(row[key]) for key in ("forward_s", "backward_s", "transfer_s")),
                f"{row['idle_share']:.0%}",
            )
            for index, row in listed
        ],
        numbers=(4, 5, 6, 7, 8),
        note=few(len(rows), len(listed), "stages", _WHOLE),
    )
    return [table, Text("Seconds are of one micro-batch.")]


def _servers(told: Told) -> list[Block]:
    """Return what each parameter server holds."""
    stored: Sequence[float] = told.details.get("server_bytes") or ()
    placement = told.block.get("placement")
    if not stored:
        return []
    held: dict[int, list[str]] = {}
    for tensor, server in placement.items() if isinstance(placement, Mapping) else ():
        held.setdefault(int(server), []).append(str(tensor))
    shown = thinned(list(enumerate(stored)), _MOST_GROUPS)
    data, layout = figures.bars(
        [(f"server {index}", value, size(value)) for index, value in shown], title="parameters", unit="B"
    )
    table = Table(
        caption="Parameter servers and their tensors",
        columns=("server", "parameters", "tensors", "which"),
        rows=[
            (
                f"server {index}",
                size(value),
                str(len(held[index])) if index in held else "",
                _which(held.get(index), placement),
            )
            for index, value in shown
        ],
        numbers=(1, 2),
    )
    alt = f"Bars of the parameters on {many(len(shown), 'server')}, from {size(min(stored))} to {size(max(stored))}."
    note = few(len(stored), len(shown), "servers", _WHOLE)
    figure = Figure(caption="Parameters by server", alt=alt, data=data, layout=layout, table=table, note=note)
    return [Heading("Placement of the parameters"), figure]


def _which(tensors: Sequence[str] | None, placement: Any) -> str:
    """Return the tensors of a server, or the rule of the placement."""
    if tensors is None:
        return f"by the rule {placement}" if isinstance(placement, str) else "none"
    return short(", ".join(tensors), 300)


# -- timeline --------------------------------------------------------------------------------------------------------


def _timeline(trace: Mapping[str, Any] | None) -> list[Block]:
    """Return the schedule of the family's own, from its trace."""
    if trace is None:
        return []
    events = trace["traceEvents"]
    lanes = {
        one["tid"]: str(one["args"]["name"]) for one in events if one["ph"] == "M" and one["name"] == "thread_name"
    }
    shown = thinned(list(lanes), _MOST_LANES)
    spans = [one for one in events if one["ph"] == "X" and one["tid"] in set(shown)]
    merged = _merged(spans)
    place = {lane: index for index, lane in enumerate(shown)}
    kinds: dict[str, list[figures.Bar]] = {}
    for one in merged:
        bar = (place[one["tid"]], one["ts"] / 1e6, (one["ts"] + one["dur"]) / 1e6, str(one["name"]))
        kinds.setdefault(str(one["cat"]).replace("_", " "), []).append(bar)
    names = [lanes[lane] for lane in shown]
    data, layout = figures.gantt(names, kinds, title="time")
    end_s = max((one["ts"] + one["dur"] for one in spans), default=0.0) / 1e6
    table = Table(
        caption="How long each row is busy",
        columns=("row", "tasks", "busy", "share"),
        rows=[_busy(lanes[lane], [one for one in spans if one["tid"] == lane], end_s) for lane in shown],
        numbers=(1, 2, 3),
    )
    alt = f"Timeline of {many(len(shown), 'row')} with {many(len(spans), 'task')} over {time(end_s)}."
    notes = [
        few(len(lanes), len(shown), "rows", "--trace writes all of them"),
        "Neighbours of one kind are drawn as one." if len(merged) < len(spans) else "",
    ]
    note = " ".join(filter(None, notes))
    return [Figure(caption="What runs when", alt=alt, data=data, layout=layout, table=table, note=note)]


def _busy(name: str, spans: Sequence[Mapping[str, Any]], end_s: float) -> tuple[str, ...]:
    """Return how long a row is busy."""
    busy_s = sum(one["dur"] for one in spans) / 1e6
    return name, f"{len(spans):,}", time(busy_s), f"{busy_s / end_s:.0%}" if end_s else ""


def _merged(spans: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return few enough spans to draw: neighbours on a row of one kind become one, closer ones before others."""
    found = [dict(one) for one in spans]
    end = max((one["ts"] + one["dur"] for one in found), default=0.0)
    gap = end / 4096
    while len(found) > _MOST_SPANS and gap < end:
        last: dict[int, dict[str, Any]] = {}
        kept = []
        for one in found:
            before = last.get(one["tid"])
            if before and before["cat"] == one["cat"] and one["ts"] - before["ts"] - before["dur"] <= gap:
                before["dur"] = one["ts"] + one["dur"] - before["ts"]
                before["name"] = f"{one['cat']}, several tasks"
            else:
                last[one["tid"]] = one
                kept.append(one)
        found, gap = kept, gap * 2
    return found[:_MOST_SPANS]


# -- decisions -------------------------------------------------------------------------------------------------------


def _decisions(told: Told) -> list[Block]:
    """Return the decisions that are plain values."""
    rows = [
        (str(name).replace("_", " "), _plain(value))
        for name, value in told.block.items()
        if not isinstance(value, list) and not (isinstance(value, Mapping) and len(value) > 6)
    ]
    return [Table(caption="Decisions", columns=("decision", "value"), rows=rows)] if rows else []


def _plain(value: Any) -> str:
    """Return a value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return short("; ".join(f"{key}: {_plain(part)}" for key, part in value.items()), 200)
    return f"{value:,}" if isinstance(value, int) else short(str(value), 200)


def _launch(told: Told) -> list[Block]:
    """Return the commands that start the training, where the family tells them."""
    lines = told.details.get("launch")
    return [Code(caption="To launch, on every machine", text="\n".join(lines))] if lines else []
