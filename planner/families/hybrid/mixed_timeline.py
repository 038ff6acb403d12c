"""A layout with unlike stages or replicas as a timeline: a pipeline for every class of replicas, task by task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.families.hybrid.mixed import Given
from planner.families.hybrid.mixed_configuration import MixedConfiguration
from planner.families.hybrid.timeline import Line, StagePass, draw_line, draw_memory, draw_tail, pass_parts
from planner.families.timeline_drawing import Drawing
from planner.models.layouts import Schedule
from planner.models.transformer_mixed_kinds import LAYER_PARTS
from planner.plan import Prediction
from planner.timeline import Timeline

__all__ = ["timeline"]

_NOTE = "slices inside a forward or backward are sums over its layers"


def timeline(given: Given, configuration: MixedConfiguration, prediction: Prediction) -> Timeline:
    """Return what a device of every stage of every class of replicas does in one step."""
    drawing, rows = Drawing(), prediction.details["stages"]
    size, iteration_s = configuration.pipeline, prediction.iteration_time_s
    busy_s = iteration_s - prediction.breakdown_s["input_stall"]
    scheduled_s = float(given.step.class_steps_s.max())
    for index in range(len(given.step.classes)):
        of_class = rows[index * size : (index + 1) * size]
        line = _line(drawing, given, configuration, index, of_class)
        counts = draw_line(drawing, line, float(given.step.class_steps_s[index, 0]))
        for name, row, changes in zip(line.names, of_class, counts, strict=True):
            wait_s = iteration_s - busy_s
            end_s = scheduled_s + row["exchange_s"] + row["optimizer_s"]
            pieces = [
                ("gradients and weights, what nothing hides", row["exchange_s"], "data"),
                ("optimizer", row["optimizer_s"], "optimizer"),
                ("wait for the slowest stage", max(busy_s - end_s, 0.0), "wait"),
                ("wait for input", wait_s, "wait"),
            ]
            draw_tail(drawing, name, scheduled_s, pieces, row["exchange_s"])
            draw_memory(drawing, name, row["terms_bytes"], changes)
    drawing.notes.append(_NOTE)
    return drawing.finished()


def _line(
    drawing: Drawing,
    given: Given,
    configuration: MixedConfiguration,
    index: int,
    rows: Sequence[Mapping[str, Any]],
) -> Line:
    """Announce the stages of a class of replicas, and return their passes."""
    step, mixed = given.step, given.mixed
    own = step.classes[index]
    kinds = own.kinds[:, 0].tolist()
    data = configuration.replicas[index].data if configuration.replicas else configuration.data
    devices = configuration.tensor * configuration.context * data
    names: list[str] = []
    forward: list[list[StagePass]] = []
    backward: list[list[StagePass]] = []
    for stage, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
        device = mixed.costs[kind].group.device.name
        where = f"{mixed.names[kind]}: " if configuration.replicas else ""
        name = f"{where}stage {stage + 1} ({devices} x {device})"
        member = (f"{where}stage {stage + 1}, device ", f" ({device})") if devices > 1 else (name, "")
        drawing.process(name, [name, f"{name}: gradients"], count=devices, member=member)
        names.append(name)
        seconds, layers = step.kinds[kind], row["layers"]
        both = {one: float(np.broadcast_to(seconds.layer[one], 1)[0]) * layers for one in LAYER_PARTS}
        ahead, behind = pass_parts(both, float(np.broadcast_to(seconds.computed_forward_s, 1)[0]) * layers)
        for found, way, parts in ((forward, "forward", ahead), (backward, "backward", behind)):
            more = {**parts, "compute": max(parts["compute"] + row[f"{way}_s"] - sum(parts.values()), 0.0)}
            found.append([StagePass(seconds=row[f"{way}_s"], sent_s=row[f"sent_{way}_s"], parts_s=more)])
    return Line(
        names=names,
        forward=forward,
        backward=backward,
        num_microbatches=int(own.num_microbatches[0]),
        schedule=Schedule.ONE_F_ONE_B,
    )
