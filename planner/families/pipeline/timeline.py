"""A pipeline as a timeline: every stage's devices and channels over one simulated iteration; replicas do alike."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.families.pipeline.cost import PipelineCost, Shape
from planner.families.timeline_drawing import Drawing
from planner.models.pipeline_schedule import PipelineTask
from planner.timeline import Timeline

__all__ = ["timeline"]

_MOST_LAYERS = 200_000  # spans of single layers
_SUFFIX = {"compute": "", "send_output": ", outputs", "send_error": ", errors"}
_NAMES = {"send_output": "output", "send_error": "error", "sync": "gradients"}
_NO_LAYERS = "there are too many micro-batches to draw their layers"


def timeline(cost: PipelineCost, shape: Shape) -> Timeline:
    """Return what every stage's devices and channels do when, in one iteration, and what its activations take."""
    run, drawing = cost.run(shape, with_tasks=True), Drawing()
    names = [_name(cost, shape, device) for device in range(shape.num_devices_in_line)]
    for device, name in enumerate(names):
        stage = shape.stages[device]
        rows = [f"{name}{suffix}" for suffix in _SUFFIX.values()]
        kind = cost.groups[stage.group].device.name
        member = (f"stage {device + 1}, replica ", f" ({kind})") if stage.replicas > 1 else (name, "")
        drawing.process(name, rows, count=stage.replicas, member=member)
    spans = {
        (task.kind, task.stage, task.microbatch): _draw(drawing, cost, shape, names[task.device], task)
        for task in run.tasks
    }
    if shape.num_microbatches * cost.costs.num_layers * 2 <= _MOST_LAYERS:
        for task in run.tasks:
            _draw_layers(drawing, cost, shape, names[task.device], task)
    else:
        drawing.notes.append(_NO_LAYERS)
    _draw_flows(drawing, shape, spans)
    end_s = run.makespan_s + cost.stall_s(shape, run.makespan_s)
    drawing.process("input", ["input"])
    drawing.add("input", "wait for input", run.makespan_s, end_s, "wait")
    for device, (name, held) in enumerate(zip(names, cost.memory_bytes(shape), strict=True)):
        tasks = [task for task in run.tasks if task.device == device]
        drawing.counter(name, "memory (bytes)", list(_memory(cost, shape, tasks, held)))
    return drawing.finished()


def _name(cost: PipelineCost, shape: Shape, device: int) -> str:
    """Return the name of a device in line: its stage, and the devices that share it."""
    stage = shape.stages[device]
    return f"stage {device + 1} ({stage.replicas} x {cost.groups[stage.group].device.name})"


def _draw(drawing: Drawing, cost: PipelineCost, shape: Shape, name: str, task: PipelineTask) -> int | None:
    """Draw a task as a span."""
    is_chunked = shape.chunks_per_device > 1 and task.microbatch is not None
    chunk = task.stage // shape.num_devices_in_line + 1 if is_chunked else None
    words = f", chunk {chunk}" if chunk is not None else ""
    number = "" if task.microbatch is None else f" {task.microbatch + 1}{words}"
    return drawing.add(
        f"{name}{_SUFFIX.get(task.kind, '')}",
        f"{_NAMES.get(task.kind, task.kind)}{number}",
        task.start_s,
        task.end_s,
        task.kind,
        microbatch=None if task.microbatch is None else task.microbatch + 1,
        chunk=chunk,
        bytes=_bytes(cost, shape, task),
    )


def _bytes(cost: PipelineCost, shape: Shape, task: PipelineTask) -> float | None:
    """Return what a task sends."""
    if task.kind == "sync":
        stages = shape.stages[task.device :: shape.num_devices_in_line]
        return float(sum(cost.costs.gradient_bytes(one.first, one.last) for one in stages))
    if task.kind in ("send_output", "send_error"):
        position = shape.stages[task.stage + (task.kind == "send_output")].first
        return float(cost.costs.boundary_bytes(position)) * shape.microbatch_size
    return None


def _draw_layers(drawing: Drawing, cost: PipelineCost, shape: Shape, name: str, task: PipelineTask) -> None:
    """Draw the layers of a forward or backward inside its span."""
    if task.kind not in ("forward", "backward"):
        return
    stage, now_s = shape.stages[task.stage], task.start_s
    profile = cost.costs.machines[stage.group].profile
    seconds = profile.forward_s if task.kind == "forward" else profile.backward_s
    layers = list(range(stage.first, stage.last + 1))
    for index in layers if task.kind == "forward" else layers[::-1]:
        layer, end_s = cost.costs.layers.names[index], now_s + float(seconds[index]) * shape.num_samples(stage)
        more: dict[str, Any] = {"layer": layer, "direction": task.kind, "is_part": True}
        drawing.add(name, f"{task.kind} {layer}", now_s, min(end_s, task.end_s), "layer", **more)
        now_s = end_s


_Spans = Mapping[tuple[str, int, int | None], int | None]


def _draw_flows(drawing: Drawing, shape: Shape, spans: _Spans) -> None:
    """Draw arrows from what computes to what sends, and from there to what waits for it."""
    for (kind, stage, number), span in spans.items():
        if kind not in ("forward", "backward"):
            continue
        step, sent = (1, "send_output") if kind == "forward" else (-1, "send_error")
        target = spans.get((kind, stage + step, number))
        if not 0 <= stage + step < len(shape.stages):
            if kind == "forward":
                drawing.flow(span, spans.get(("backward", stage, number)), "loss")
            continue
        way, name = spans.get((sent, stage, number)), "output" if kind == "forward" else "error"
        if way is None:
            drawing.flow(span, target, name)
        else:
            drawing.flow(span, way, name)
            drawing.flow(way, target, name)


def _memory(
    cost: PipelineCost, shape: Shape, tasks: list[PipelineTask], held: Mapping[str, float]
) -> Iterator[tuple[float, Mapping[str, float]]]:
    """Yield what a device holds over time: activations come with a forward's start and go with a backward's end."""
    fixed = sum(value for name, value in held.items() if name not in ("activations", "total", "limit"))
    each = {
        index: float(cost.costs.memory(one.first, one.last, num_samples=shape.num_samples(one)).in_flight_bytes)
        for index, one in enumerate(shape.stages)
    }
    changes = [(task.start_s, 1, each[task.stage]) for task in tasks if task.kind == "forward"]
    changes += [(task.end_s, 0, -each[task.stage]) for task in tasks if task.kind == "backward"]
    now = 0.0
    yield 0.0, {"fixed": fixed, "activations": 0.0}
    for at_s, _, change in sorted(changes):
        now = max(now + change, 0.0)
        yield at_s, {"fixed": fixed, "activations": now}
