"""The memory of model replicas' workers in plain loops: segment by segment, row by row.

A worker keeps the weights and gradients of its segments, and for every thread the outputs of one sample and what they
are made of, unless it has that anyway. The optimiser's state is the servers'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from planner.dnn import Layer
from planner.problem import Problem

__all__ = ["fullest_bytes"]

_FOLLOWING = ("activation", "batch_norm", "dropout", "flatten")  # neuron by neuron: with the layer that they follow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A layer with what follows it, and the shape of what it reads."""

    layer: Layer
    members: Sequence[Layer]
    input_shape: tuple[int, ...]


def fullest_bytes(problem: Problem, block: Mapping[str, Any]) -> float:
    """Return what the fullest worker of a replica holds."""
    used = [problem.calibration.memory_reserve_bytes] * block["num_workers_per_replica"]
    size = 2 if problem.training.dtype in ("fp16", "bf16") else 4
    before: Mapping[str, Any] | None = None
    for stage, choice in zip(_stages(problem), block["layers"], strict=True):
        for r, row in enumerate(choice["workers"]):
            for p, worker in enumerate(row):
                rows = _rows(stage.layer.output_shape, p, choice["partitions"])
                read = _read(stage, rows)
                have = _there(stage, before, worker, r, choice["replicas"], read)
                samples = choice["threads"] * (_outputs(stage, rows) + len(read) * _row_elements(stage) - have)
                used[worker] += _weights_bytes(stage, rows, size) + samples * size
        before = choice
    return max(used)


def _stages(problem: Problem) -> list[_Stage]:
    """Return the chain, as the family cuts it: layers with what follows them neuron by neuron."""
    first, *others = problem.dnn.layers
    shape, found = first.output_shape, list[_Stage]()
    for layer in others:
        if found and layer.kind in _FOLLOWING:
            last = found.pop()
            found.append(_Stage(layer=last.layer, members=[*last.members, layer], input_shape=last.input_shape))
            continue
        found.append(_Stage(layer=layer, members=[layer], input_shape=shape))
        shape = layer.output_shape
    return found


def _height(shape: tuple[int, ...]) -> int:
    """Return the rows of an image, or the neurons of a layer without rows."""
    return shape[1] if len(shape) == 3 else shape[0]


def _rows(shape: tuple[int, ...], index: int, number: int) -> range:
    """Return the rows (or neurons) of one of so many stripes."""
    height = _height(shape)
    return range(height * index // number, height * (index + 1) // number)


def _weights_bytes(stage: _Stage, rows: range, size: int) -> float:
    """Return weights, gradients and batch-norm statistics: all of a layer with rows, else a share by neurons."""
    trained = sum(one.num_trainable for one in stage.members)
    moving = sum(one.num_moving for one in stage.members)
    shape = stage.layer.output_shape
    if len(shape) == 3:
        return (2 * trained * size + 4 * moving) * (len(rows) > 0)
    return 2 * size * ceil(trained * len(rows) / shape[0]) + 4 * ceil(moving * len(rows) / shape[0])


def _outputs(stage: _Stage, rows: range) -> int:
    """Return the elements of a stripe that one sample keeps for the backward pass."""
    stored = sum(one.num_output_elements for one in stage.members if not one.is_in_place)
    return ceil(stored * len(rows) / _height(stage.layer.output_shape))


def _row_elements(stage: _Stage) -> int:
    """Return the elements that are read of one row of the input: of the columns that any output reads."""
    if len(stage.input_shape) != 3:
        return 1
    channels, _, width = stage.input_shape
    if stage.layer.kind == "fully_connected":
        return channels * width
    columns = {one for x in range(stage.layer.output_shape[2]) for one in _seen(stage, x, width)}
    return channels * len(columns)


def _seen(stage: _Stage, position: int, most: int) -> range:
    """Return the rows (or columns) of the input under the window of an output."""
    window = stage.layer.window
    if window is None:
        return range(most)
    start = position * window.stride - window.padding
    return range(max(0, start), min(most, start + window.kernel))


def _read(stage: _Stage, rows: range) -> set[int]:
    """Return the rows of the input that a stripe reads."""
    height = _height(stage.input_shape)
    if stage.layer.kind == "fully_connected":
        return set(range(height)) if rows else set()
    return {one for y in rows for one in _seen(stage, y, height)}


def _there(
    stage: _Stage, before: Mapping[str, Any] | None, worker: int, replica: int, num_replicas: int, read: set[int]
) -> int:
    """Return the elements read that the worker holds of the layer before, of all samples that it needs."""
    if before is None or num_replicas % before["replicas"]:
        return 0
    row = before["workers"][replica % before["replicas"]]  # that replica has every sample of this one
    if worker not in row:
        return 0
    held = _rows(stage.input_shape, row.index(worker), before["partitions"])
    return len(read & set(held)) * _row_elements(stage)
