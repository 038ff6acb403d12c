"""The plan drawn: what runs where, and when."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.page import figures
from planner.page.drawing import drawing_of
from planner.page.parts import Block, Code, Figure, Section, Table, Text, few, thinned
from planner.page.runs import timeline_figures
from planner.page.told import Told
from planner.page.words import many, short, size, time

__all__ = ["MOST_LAYERS", "plan_section"]

_MOST_GROUPS = 40  # fusion groups, each a row of the plot
_MOST_TABLE = 200  # rows of a table
_MOST_DEVICES = 50_000
MOST_LAYERS = 10_000  # of a network whose schedule is drawn: it takes a page as long as a plan
_WHOLE = "--json has all of them"


def plan_section(told: Told, trace: Mapping[str, Any] | None) -> Section:
    """Return the drawing of the cluster, and of the schedule as far as the family has one."""
    blocks: list[Block] = []
    if told.problem.cluster.num_devices <= _MOST_DEVICES:
        drawing = drawing_of(told.problem.cluster, told.family, told.block, told.details)
        blocks += [drawing] if drawing is not None else []
    else:
        blocks.append(Text(f"The cluster has {told.problem.cluster.num_devices:,} devices, too many to draw."))
    if (number := len(told.problem.dnn.layers)) > MOST_LAYERS:
        blocks.append(Text(f"The network has {number:,} layers, too many to draw what runs when; --trace writes it."))
    blocks += [
        *_stages(told),
        *_fusion(told),
        *_servers(told),
        *timeline_figures(trace),
        *_launch(told),
        *_decisions(told),
    ]
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
    if not rows:
        return []
    if told.family == "hybrid":
        return _layers_by_stage(rows)
    if told.family != "pipeline":
        return []
    chunks = int(told.block.get("chunks_per_device", 1))
    num_stages = len(rows) // chunks
    listed = thinned(list(enumerate(rows)), _MOST_TABLE)
    columns = ("stage", "chunk", "from layer", "to layer", "on", "replicas", "forward", "backward", "transfer", "idle")
    table = Table(
        caption="Stages",
        columns=columns,
        rows=[
            (
                str(index % num_stages + 1),
                str(index // num_stages + 1) if chunks > 1 else "",
                str(row["first"]),
                str(row["last"]),
                f"{row['machines']} ({row['device']})",
                str(row["replicas"]),
                *(time(row[key]) for key in ("forward_s", "backward_s", "transfer_s")),
                f"{row['idle_share']:.0%}",
            )
            for index, row in listed
        ],
        numbers=(1, 5, 6, 7, 8, 9),
        note=f"Seconds are of one micro-batch. {few(len(rows), len(listed), 'stages', _WHOLE)}".strip(),
    )
    return [table]


def _layers_by_stage(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the stages of a layout of a transformer, where there are several."""
    if len(rows) < 2 or not all("forward_s" in row and "memory_bytes" in row for row in rows):
        return []
    listed = thinned(list(enumerate(rows)), _MOST_TABLE)
    table = Table(
        caption="Stages",
        columns=("stage", "layers", "on", "forward", "backward", "memory of a device", "of"),
        rows=[
            (
                str(index + 1),
                f"{row['layers']:,}" if "layers" in row else "",
                str(row.get("machines") or ""),
                *(time(_in_all(row[key])) for key in ("forward_s", "backward_s")),
                size(row["memory_bytes"]),
                size(row["memory_bytes"] + row["room_bytes"]) if row.get("room_bytes") is not None else "",
            )
            for index, row in listed
        ],
        numbers=(1, 3, 4, 5, 6),
        note=f"Seconds are of one micro-batch. {few(len(rows), len(listed), 'stages', _WHOLE)}".strip(),
    )
    return [table]


def _in_all(seconds: float | Sequence[float]) -> float:
    """Return the seconds of a stage, of all of its chunks where it has several."""
    return float(sum(seconds)) if isinstance(seconds, Sequence) else seconds


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
    figure = Figure(caption="Parameters by server", alt=alt, data=data, layout=layout, table=None, note=note)
    return [figure, table]


def _which(tensors: Sequence[str] | None, placement: Any) -> str:
    """Return the tensors of a server, or the rule of the placement."""
    if tensors is None:
        return f"by the rule {placement}" if isinstance(placement, str) else "none"
    return short(", ".join(tensors), 300)


# -- decisions -------------------------------------------------------------------------------------------------------


def _decisions(told: Told) -> list[Block]:
    """Return the decisions that are plain values."""
    rows = [
        (_decision(str(name)), _plain(value))
        for name, value in told.block.items()
        if not isinstance(value, list) and not (isinstance(value, Mapping) and len(value) > 6)
    ]
    return [Table(caption="Decisions", columns=("decision", "value"), rows=rows)] if rows else []


def _decision(name: str) -> str:
    """Return a decision in words: ``number of devices``."""
    words = name.replace("_", " ")
    return f"number of {words.removeprefix('num ')}" if words.startswith("num ") else words


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
    if not lines:
        return []
    count = told.details.get("num_machines", 1)
    note = "" if count == 1 else f"NODE_RANK is 0 to {count - 1}, one for each machine; MASTER_ADDR is the first one's."
    return [Code(caption="To launch, on every machine", text="\n".join(lines), note=note)]
