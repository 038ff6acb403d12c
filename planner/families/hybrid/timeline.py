"""A layout of a transformer drawn: as a timeline of its schedule, and as its ranks on the machines with their stages.

The cost model has closed forms for the schedule; the timeline replays the forwards and backwards of every stage in the
order of its schedule, task by task, from the same seconds. Where the closed form is a little shorter than the replay,
all times of the schedule are shortened alike, so that the drawing ends with the prediction; by how much is noted. What
stands inside a forward or a backward (computing, communication of tensor, expert and context groups, launching) are
sums over its layers, one after the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Self, cast

import numpy as np

from planner.cluster import Cluster
from planner.errors import SpecError
from planner.families.timeline_drawing import Drawing, draw_input
from planner.frozen import frozen
from planner.models.input import InputTime, Strategy
from planner.models.layouts import Schedule
from planner.models.orders import BACKWARD, FORWARD, devices_of, neighbour_of
from planner.models.schedule import PipelineTimes, simulate
from planner.models.transformer_interval import LAYER_PARTS
from planner.models.transformer_schedule import order_name
from planner.plan import Prediction
from planner.sections import Cell, FamilyView, Memory, Placement, Role, Table, few_roles
from planner.timeline import Timeline
from planner.words import few, many, size_words, thinned, time_words

_SAME = 1e-9
_MOST_TASKS = 500_000  # forwards and backwards
_MOST_PARTS = 300_000  # slices inside them
_GRADIENTS = ": gradients"
_SUMS = "slices inside a forward or backward are sums over its layers"
_HIDDEN = (
    "exchanges of replicas that computing hides are drawn on a row of their own, where they end with what nothing hides"
)
_NO_PARTS = "there are too many micro-batches to draw what stands inside each forward and backward"


@frozen
class StagePass:
    """What one chunk of a stage takes for one micro-batch, one way."""

    seconds: float  # without sending
    sent_s: float  # sending its result, while nothing is computed
    parts_s: Mapping[str, float]  # what ``seconds`` are made of, by part; they are scaled to it


@dataclass(frozen=True, kw_only=True)
class Line:
    """One pipeline: the processes of its stages, and the passes of every stage, chunk by chunk.

    ``weights_s``: gradients of weights that are put off, of the backward of each chunk of each device; else none.
    """

    names: Sequence[str]
    forward: Sequence[Sequence[StagePass]]
    backward: Sequence[Sequence[StagePass]]
    num_microbatches: int
    schedule: Schedule
    weights_s: Sequence[Sequence[float]] = ()

    @property
    def num_chunks(self) -> int:
        """Of a stage."""
        return len(self.forward[0])

    @property
    def num_stages(self) -> int:
        """Virtual stages; of DualPipe those of both copies."""
        return len(self.names) * self.num_chunks

    @cached_property
    def has_weights(self) -> bool:
        """Whether gradients of weights are tasks of their own."""
        return any(any(one) for one in self.weights_s)

    @cached_property
    def order(self) -> str:
        """The name of the schedule, as orders have it."""
        return order_name(self.schedule, self.num_chunks)

    @cached_property
    def places(self) -> Sequence[tuple[int, int]]:
        """The device of every virtual stage, and which of its chunks it is."""
        devices = devices_of(self.order, len(self.names), self.num_chunks)
        return [(device, stage // len(self.names)) for stage, device in enumerate(devices)]

    def neighbour(self, kind: str, stage: int) -> int | None:
        """Return the virtual stage to which a task's result goes."""
        return neighbour_of(self.order, self.num_stages, FORWARD if kind == "forward" else BACKWARD, stage)


@frozen(kw_only=False)
class Tail:
    """What a stage does behind the schedule: communication that nothing hides, the optimiser; and all communication."""

    exposed_s: float
    optimizer_s: float
    communicated_s: float


@frozen
class Pipeline:
    """The stages of equal replicas, as a prediction's details have them."""

    # device, rows, layer_parts, computed_forward_s, tails: of each stage: its device, row of the details, seconds of
    # its layers both ways by part (of one virtual stage), of which the forward pass computes, and what follows
    device: Sequence[str]
    num_devices: int  # of a stage
    rows: Sequence[Mapping[str, Any]]
    layer_parts: Sequence[Mapping[str, float]]
    computed_forward_s: Sequence[float]
    sends_s: tuple[float, float] | None  # seconds of a transfer forward and backward; None where the rows have them
    num_microbatches: int
    schedule: Schedule
    # own_end_s, end_s: when its last backward shall have ended, where that is known by itself; and that of the last
    # class
    end_s: float
    tails: Sequence[Tail]
    own_end_s: float | None = None
    # filling_s, filling_transfers_s: of these, what is drawn behind the passes: experts' exchange and transfers that
    # nothing hides while stages fill and empty; and of it the transfers
    filling_s: float = 0.0
    filling_transfers_s: float = 0.0
    weights_s: Sequence[Sequence[float]] = ()
    where: str = ""  # before the names of the stages, where there are several classes

    def line(self, names: Sequence[str]) -> Line:
        """Return the passes of all stages."""
        forward: list[list[StagePass]] = []
        backward: list[list[StagePass]] = []
        chunks = len(np.atleast_1d(self.rows[0]["forward_s"]))
        order, number = order_name(self.schedule, chunks), len(self.rows) * chunks
        device_of = devices_of(order, len(self.rows), chunks)
        for index, row in enumerate(self.rows):
            ahead, behind = pass_parts(self.layer_parts[index], self.computed_forward_s[index])
            for found, way, parts in ((forward, "forward", ahead), (backward, "backward", behind)):
                passes = []
                for chunk, seconds in enumerate(np.atleast_1d(row[f"{way}_s"]).tolist()):
                    if self.sends_s is None:
                        sent_s = row[f"sent_{way}_s"]
                    else:  # the last output and the first error go nowhere; at the turn of a V nothing is sent
                        place = [stage for stage, device in enumerate(device_of) if device == index][chunk]
                        to = neighbour_of(order, number, FORWARD if way == "forward" else BACKWARD, place)
                        is_sent = to is not None and (len(self.rows) == 1 or device_of[to] != index)
                        sent_s = self.sends_s[way == "backward"] * is_sent
                    # What embedding or head take more, or a layer less, is computing.
                    more = max(parts["compute"] + seconds - sum(parts.values()), 0.0)
                    passes.append(StagePass(seconds=seconds, sent_s=sent_s, parts_s={**parts, "compute": more}))
                found.append(passes)
        return Line(
            names=names,
            forward=forward,
            backward=backward,
            num_microbatches=self.num_microbatches,
            schedule=self.schedule,
            weights_s=self.weights_s,
        )


def draw(
    pipelines: Sequence[Pipeline], prediction: Prediction, read: InputTime | None, strategy: "str | Strategy"
) -> Timeline:
    """Return what a device of every stage of every pipeline does in one step.

    Parameters
    ----------
    read
        The input's seconds, where they are drawn: on the first stage.
    """
    drawing, iteration_s = Drawing(), prediction.iteration_time_s
    stall_s = prediction.breakdown_s["input_stall"]
    busy_s = iteration_s - stall_s
    for pipeline in pipelines:
        names = []
        for index, device in enumerate(pipeline.device):
            start, count = f"{pipeline.where}stage {index + 1}", pipeline.num_devices
            name = f"{start} ({count} x {device})"
            more = ("disk", "decode", "PCIe") if read is not None else ()
            rows = [name, *(f"{name}: {row}" for row in more), f"{name}{_GRADIENTS}"]
            member = (f"{start}, device ", f" ({device})") if count > 1 else (name, "")
            drawing.process(name, rows, count=count, member=member)
            names.append(name)
        end_s = pipeline.end_s
        played_s = (end_s if pipeline.own_end_s is None else pipeline.own_end_s) - pipeline.filling_s
        counts = draw_line(drawing, pipeline.line(names), played_s)
        for name, row, tail, changes in zip(names, pipeline.rows, pipeline.tails, counts, strict=True):
            left_s = busy_s - end_s - tail.exposed_s - tail.optimizer_s
            pieces = [
                ("gradients and weights, what nothing hides", tail.exposed_s, "data"),
                ("optimizer", tail.optimizer_s, "optimizer"),
                ("wait for the slowest stage", left_s if left_s > _SAME * busy_s else 0.0, "wait"),
                ("wait for input", stall_s, "wait"),
            ]
            sent_s = pipeline.filling_transfers_s
            filling = [
                ("experts' exchange that nothing hides", pipeline.filling_s - sent_s, "expert"),
                ("transfers that nothing hides", sent_s, "pipeline"),
            ]
            drawing.chain(name, played_s, [one for one in filling if one[1] > _SAME * end_s])
            drawing.chain(name, end_s, pieces)
            shown_s = end_s + tail.exposed_s
            first_s = max(shown_s - max(tail.communicated_s, tail.exposed_s), 0.0)
            drawing.add(f"{name}{_GRADIENTS}", "exchange of gradients and weights, all of it", first_s, shown_s, "data")
            draw_memory(drawing, name, row["terms_bytes"], changes)
        if read is not None:
            draw_input(drawing, names[0], read, Strategy(strategy), busy_s, iteration_s)
    drawing.notes.append(_SUMS if read is None else f"{_SUMS}; {_HIDDEN}")
    return drawing.finished()


# -- the schedule ------------------------------------------------------------------------------------------------------


def pass_parts(both_s: Mapping[str, float], forward_s: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return the parts of a forward and of a backward, from those of both and the computing of the forward.

    Exchange and launching fall to both ways as computing does.
    """
    computed_s = both_s["compute"] + both_s["recompute"]
    share = forward_s / computed_s if computed_s else 0.0
    ahead = {name: seconds * share for name, seconds in both_s.items() if name not in ("compute", "recompute")}
    behind = {name: both_s[name] - seconds for name, seconds in ahead.items()}
    return {"compute": forward_s, **ahead}, {
        "recompute": both_s["recompute"],
        "compute": both_s["compute"] - forward_s,
        **behind,
    }


def draw_line(drawing: Drawing, line: Line, scheduled_s: float | None = None) -> list[list[tuple[float, int]]]:
    """Draw a pipeline's schedule; return, for every stage, when an activation of a chunk comes (1) and goes (-1).

    ``scheduled_s``: when the last backward shall have ended; left out, when it does.
    """
    ends, order = _replayed(line)
    kinds = {(kind, stage) for tasks in order for kind, stage, _ in tasks}
    drawn = {(kind, stage): _Task.of(line, kind, stage) for kind, stage in kinds}
    has_parts = sum(map(len, order)) * len(LAYER_PARTS) <= _MOST_PARTS
    if not has_parts:
        drawing.notes.append(_NO_PARTS)
    replayed_s = max(ends.values(), default=0.0)
    factor = 1.0 if scheduled_s is None or not replayed_s else scheduled_s / replayed_s
    if abs(factor - 1) > _SAME:
        drawing.notes.append(f"times of the schedule are {factor:.6g} of the replay's, as the closed form has it")
    spans: dict[tuple[str, int, int], int | None] = {}
    counts: list[list[tuple[float, int]]] = []
    for tasks in order:
        found: list[tuple[float, int]] = []
        for task in tasks:
            kind, stage, number = task
            one, end_s = drawn[kind, stage], ends[task]
            start_s = (end_s - one.seconds) * factor
            name = f"{one.words} {number + 1}{one.where}"
            spans[one.way, stage, number] = drawing.add(
                one.row, name, start_s, end_s * factor, one.way, microbatch=number + 1, chunk=one.chunk
            )
            if has_parts and kind != "weights":
                _draw_parts(drawing, line, task, one.passed, (start_s, end_s * factor))
            if one.send:
                sent_s, name = ends["sent", one.way, stage, number], f"{one.send} {number + 1}"
                spans["sent " + one.way, stage, number] = drawing.add(
                    one.row, name, end_s * factor, sent_s * factor, "pipeline", microbatch=number + 1
                )
            if kind == "forward":
                found.append((start_s, 1))
            elif one.is_last:
                found.append((end_s * factor, -1))
        counts.append(found)
    _draw_flows(drawing, line, spans)
    return counts


@frozen
class _Task:
    """What the tasks of a kind have in common on a virtual stage; ``send``: in words, where they send."""

    passed: StagePass
    seconds: float
    way: str
    words: str
    where: str
    row: str
    chunk: int | None
    send: str
    is_last: bool  # whether activations go with it

    @classmethod
    def of(cls, line: Line, kind: str, stage: int) -> Self:
        """Return a stage's."""
        passed, seconds = _of_task(line, kind, stage)
        chunk = stage // len(line.names) + 1 if line.num_chunks > 1 else None
        way = "backward" if kind == "whole" else kind
        sends = {"forward": "send output", "backward": "send error"} if passed.sent_s else {}
        return cls(
            passed=passed,
            seconds=seconds,
            way=way,
            words="gradients of weights" if way == "weights" else way,
            where="" if chunk is None else f", chunk {chunk}",
            row=line.names[line.places[stage][0]],
            chunk=chunk,
            send=sends.get(way, ""),
            is_last=kind in (("weights", "whole") if line.has_weights else ("backward", "whole")),
        )


def _of_task(line: Line, kind: str, stage: int) -> tuple[StagePass, float]:
    """Return the pass of a task and its seconds."""
    device, chunk = line.places[stage]
    passed = (line.forward if kind == "forward" else line.backward)[device][chunk]
    is_split = kind in ("backward", "weights") and line.weights_s
    weights_s = min(line.weights_s[device][chunk], passed.seconds) if is_split else 0.0
    return passed, weights_s if kind == "weights" else passed.seconds - weights_s


def _num_tasks(num_stages: int, num_chunks: int, num_microbatches: int) -> int:
    """Return the forwards and backwards of a step."""
    return 2 * num_stages * num_chunks * num_microbatches


def _replayed(line: Line) -> tuple[dict[Any, float], list[list[tuple[str, int, int]]]]:
    """Return the end of every task and of its sending, and the order of tasks on every device."""
    p, v = len(line.names), line.num_chunks
    if _num_tasks(p, v, line.num_microbatches) > _MOST_TASKS:
        raise SpecError(
            f"--trace: {line.num_microbatches} micro-batches through {p * v} stages are too many tasks to draw. Take "
            f"{_MOST_TASKS // (2 * p * v)} micro-batches or fewer, or leave out --trace."
        )
    has_weights, last = line.has_weights, p * v - 1
    seconds = {
        kind: [_of_task(line, kind, stage)[1] for stage in range(p * v)] for kind in ("forward", "backward", "weights")
    }
    run = simulate(
        PipelineTimes(
            forward_s=seconds["forward"],
            backward_s=seconds["backward"],
            output_s=[_of_task(line, "forward", stage)[0].sent_s for stage in range(last)],
            error_s=[_of_task(line, "backward", stage)[0].sent_s for stage in range(1, last + 1)],
            weights_s=seconds["weights"],
        ),
        schedule=line.order,
        num_microbatches=line.num_microbatches,
        chunks_per_device=v,
        is_blocking=True,
        with_tasks=True,
    )
    ends: dict[Any, float] = {}
    order: list[list[tuple[str, int, int]]] = [[] for _ in range(p)]
    sent = {"send_output": "forward", "send_error": "backward"}
    for task in run.tasks:
        assert task.microbatch is not None, "nothing is exchanged or updated"
        if task.kind in sent:
            ends["sent", sent[task.kind], task.stage, task.microbatch] = task.end_s
        elif has_weights or task.kind != "weights":
            ends[task.kind, task.stage, task.microbatch] = task.end_s
            order[task.device].append((task.kind, task.stage, task.microbatch))
    return ends, order


def _draw_parts(
    drawing: Drawing, line: Line, task: tuple[str, int, int], passed: StagePass, times: tuple[float, float]
) -> None:
    """Draw what stands inside a task."""
    kind, stage, number = task
    parts = {name: seconds for name, seconds in passed.parts_s.items() if seconds > 0}
    if kind == "backward" and line.has_weights:
        device, chunk = line.places[stage]
        parts["compute"] = max(parts.get("compute", 0.0) - line.weights_s[device][chunk], 0.0)
    whole_s = sum(parts.values())
    now_s, end_s = times
    scale = (end_s - now_s) / whole_s if whole_s else 0.0
    for name, seconds in parts.items():
        until_s = min(now_s + seconds * scale, end_s)
        row = line.names[line.places[stage][0]]
        drawing.add(row, name, now_s, until_s, name, is_part=True, microbatch=number + 1)
        now_s = until_s


def _draw_flows(drawing: Drawing, line: Line, spans: Mapping[tuple[str, int, int], int | None]) -> None:
    """Draw arrows from what is sent to what waits for it."""
    ways = ("forward", "backward")
    targets = {(kind, stage): line.neighbour(kind, stage) for kind in ways for stage in range(line.num_stages)}
    for (kind, stage, number), span in spans.items():
        if kind not in ways:
            continue
        target = targets[kind, stage]
        name = "output" if kind == "forward" else "error"
        if target is not None:
            way = spans.get((f"sent {kind}", stage, number))
            drawing.flow(span if way is None else way, spans.get((kind, target, number)), name)
        elif kind == "forward":
            drawing.flow(span, spans.get(("backward", stage, number)), "loss")


def draw_memory(
    drawing: Drawing, name: str, terms_bytes: Mapping[str, float], counts: Sequence[tuple[float, int]]
) -> None:
    """Count a stage's memory: activations come with a forward, go with its backward, and peak as the model has it."""
    fixed = sum(value for term, value in terms_bytes.items() if term != "activations")
    changes = sorted(counts, key=lambda one: (one[0], one[1]))
    levels = np.maximum(np.cumsum([change for _, change in changes]), 0) if changes else np.zeros(0)
    each = terms_bytes["activations"] / max(float(levels.max(initial=0)), 1.0)
    points: Iterator[tuple[float, Mapping[str, float]]] = (
        (at_s, {"fixed": fixed, "activations": each * float(level)})
        for (at_s, _), level in zip(changes, levels.tolist(), strict=True)
    )
    drawing.counter(name, "memory (bytes)", [(0.0, {"fixed": fixed, "activations": 0.0}), *points])


# -- the ranks with their coordinates, the stages, and the memory of each stage ----------------------------------------

_MOST_LISTED = 200  # stages in a table
_COORDINATES = {  # letter and word of a rank's place, in the order in which they are told
    "pipeline": ("P", "stage"),
    "data": ("D", "replica"),
    "tensor": ("T", "tensor rank"),
    "context": ("C", "context rank"),
}
_LETTERS = {
    "data": "D: replica, with its share of the batch",
    "tensor": "T: rank that holds a slice of every layer",
    "context": "C: rank that holds a slice of every sequence",
}


def view(cluster: Cluster, block: Mapping[str, object], prediction: Prediction) -> FamilyView:
    """Return what a layout's document and its prediction show."""
    rows: Sequence[Mapping[str, Any]] = prediction.details.get("stages", ())
    is_staged, chosen = len(rows) > 1, cast("Mapping[str, Any]", block)
    memory: list[Memory] = []
    if is_staged and all("terms_bytes" in one for one in rows):
        for index, one in enumerate(rows):
            room = one.get("room_bytes")
            limit = None if room is None else one["memory_bytes"] + room
            memory.append((f"stage {index + 1}", one["terms_bytes"], limit))
    has_table = is_staged and all("forward_s" in row and "memory_bytes" in row for row in rows)
    return FamilyView(
        placement=lambda: _placement(cluster, block),
        blocks=lambda: [_stages_table(rows)] if has_table else (),
        memory=memory,
        num_tasks=_num_tasks(
            chosen["pipeline"], chosen.get("interleave", 1), prediction.details.get("num_microbatches", 1)
        ),
    )


def _placement(cluster: Cluster, block: Mapping[str, Any]) -> Placement:
    """Return the ranks on the machines: by the order that the layout names, the first degree fastest."""
    degrees = {name: int(block[name]) for name in ("tensor", "context", "pipeline", "data")}
    order = [name for name in str(block["order"]).split("-") if name in degrees]
    order += [name for name in degrees if name not in order]
    shown = [name for name in _COORDINATES if degrees[name] > 1]
    stages, replicas = block.get("stages"), block.get("replicas")
    cells: dict[str, list[Cell]] = {}
    if replicas:
        number = 0
        for one in replicas:
            ranks = _ranks(degrees | {"data": one["data"]}, order, shown, first={"data": number})
            cells.setdefault(one["machines"], []).extend(ranks)
            number += one["data"]
    elif stages and any(one.get("machines") for one in stages):
        for index, one in enumerate(stages[: degrees["pipeline"]]):  # chunks stand where their stage does
            ranks = _ranks(degrees | {"pipeline": 1}, order, shown, first={"pipeline": index})
            cells.setdefault(one["machines"], []).extend(ranks)
    else:
        ranks = _ranks(degrees, order, shown, first={})
        for group in cluster.machine_groups:
            if block.get("machines") in (None, group.name):
                room = group.count * group.devices_per_machine
                cells[group.name], ranks = ranks[:room], ranks[room:]
    return Placement(devices=cells, roles=_roles(block, degrees))


def _ranks(
    degrees: Mapping[str, int], order: Sequence[str], shown: Sequence[str], *, first: Mapping[str, int]
) -> list[Cell]:
    """Return ranks in order, ``shown`` of their coordinates told; ``first`` is added to them."""
    cells = []
    for rank in range(prod(degrees.values())):
        at, rest = {}, rank
        for name in order:
            rest, digit = divmod(rest, degrees[name])
            at[name] = digit + first.get(name, 0) + (name == "pipeline")  # stages count from 1, ranks from 0
        label = " ".join(f"{_COORDINATES[name][0]}{at[name]}" for name in shown) or "R"
        words = ", ".join(f"{_COORDINATES[name][1]} {at[name]}" for name in shown) or "a replica of the whole network"
        colour = (at["pipeline"] - 1 if "pipeline" in shown else at["data"]) % 8
        cells.append(Cell(label=label, words=words, colour=colour))
    return cells


def _roles(block: Mapping[str, Any], degrees: Mapping[str, int]) -> list[Role]:
    """Return what labels and colours mean."""
    roles = []
    if degrees["pipeline"] > 1:
        chunks, count = [one["layers"] for one in block.get("stages") or ()], degrees["pipeline"]
        layers = [sum(chunks[index::count]) for index in range(count if chunks else 0)]
        for index in range(degrees["pipeline"]):
            words = f"stage {index + 1}" + (f": {many(layers[index], 'layer')}" if index < len(layers) else "")
            roles.append(Role(label=f"P{index + 1}", words=words, colour=index % 8))
    elif degrees["data"] > 1:
        words = "devices of one colour hold a replica together; the colours repeat"
        roles.append(Role(label="D0", words=words, colour=0))
    letters = [text for name, text in _LETTERS.items() if degrees[name] > 1]
    return [*few_roles(roles), *(Role(label=text[0], words=text[3:]) for text in letters)]


def _stages_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the stages, each with all of its chunks."""
    listed = thinned(list(enumerate(rows)), _MOST_LISTED)
    left = few(len(rows), len(listed), "stages", "--json has all of them")

    def seconds(value: float | Sequence[float]) -> str:
        return time_words(float(sum(value)) if isinstance(value, Sequence) else value)

    return Table(
        caption="Stages",
        columns=("stage", "layers", "on", "forward", "backward", "memory of a device", "of"),
        rows=[
            (
                str(index + 1),
                f"{row['layers']:,}" if "layers" in row else "",
                str(row.get("machines") or ""),
                seconds(row["forward_s"]),
                seconds(row["backward_s"]),
                size_words(row["memory_bytes"]),
                size_words(row["memory_bytes"] + row["room_bytes"]) if row.get("room_bytes") is not None else "",
            )
            for index, row in listed
        ],
        numbers=(1, 3, 4, 5, 6),
        note=f"Seconds are of one micro-batch. {left}".strip(),
    )
