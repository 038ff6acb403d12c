"""The family ``pipeline``: what a given pipeline of stages costs.

Cuts, replicas and machines of every stage, micro-batches and their schedule; see docs/pipeline.md. The costs stand in
:mod:`planner.families.pipeline.cost`, the search in :mod:`planner.families.pipeline.search`, and what a given
configuration means in :mod:`planner.families.pipeline.given`.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.families.pipeline import timeline as pipeline_timeline
from planner.families.pipeline.configuration import NAME, PipelineConfiguration
from planner.families.pipeline.cost import PipelineCost, Shape, StageTimes
from planner.families.pipeline.given import configuration_of, default_num_microbatches
from planner.families.pipeline.machines import machines
from planner.models.pipeline_schedule import ScheduleRun, bubble_share
from planner.plan import Prediction
from planner.problem import Problem
from planner.timeline import Timeline, repeated
from planner.units import Dimension, format_human

__all__ = [
    "DECISIONS",
    "FITTED",
    "NAME",
    "NOT_MODELLED",
    "TAKES_EXCLUSIONS",
    "PipelineConfiguration",
    "configuration_of",
    "default_num_microbatches",
    "explain",
    "left_out",
    "machines",
    "predict",
    "timeline",
]

NOT_MODELLED = (
    "convergence and accuracy: a larger batch may need more epochs",
    "small micro-batches that use a device less well: seconds are in proportion to samples",
    "network cards that stages on one machine, both directions of a boundary, or gradients and activations share",
    "recomputation of activations; other orders of the layers than the one of the graph",
    "variation between iterations, failures and restarts",
    "workspaces and the framework's own memory, beyond calibration.memory_reserve",
)
DECISIONS = frozenset(("num_stages", "num_microbatches", "schedule", "device", "num_devices", "num_machines"))
FITTED = ("utilisation", "bandwidth_efficiency", "inside_efficiency")
TAKES_EXCLUSIONS = False


def predict(problem: Problem, configuration: PipelineConfiguration) -> Prediction:
    """Return what a configuration costs.

    The breakdown is that of the device that computes longest. ``bubble`` is what the schedule adds to its work;
    ``exposed_transfers``, ``exposed_gradients`` and ``update`` are what transfers, then exchanges, then updates add to
    the whole: differences of simulated makespans, which grow with every time, so none is negative and all sum up.
    """
    cost = PipelineCost(problem)
    shape, training = cost.shape(configuration), problem.training
    times = cost.times(shape)
    run = cost.run(shape, times)
    breakdown = _breakdown_s(cost, shape, times, run)
    iteration_s = sum(breakdown.values())
    samples, epochs = training.dataset_samples, training.epochs
    epoch_s = None if samples is None else iteration_s * samples / shape.global_batch_size
    transfers_s = 2 * shape.num_microbatches * max(times.transfer_s, default=0.0)
    exchange_s = float(_by_device(times.sync_s, shape).max())
    compute_s = breakdown["forward"] + breakdown["backward"]
    memory = cost.memory_bytes(shape)
    return Prediction(
        iteration_time_s=iteration_s,
        epoch_time_s=epoch_s,
        training_time_s=None if epoch_s is None or epochs is None else epoch_s * epochs,
        breakdown_s=breakdown,
        communication_s={"transfers": transfers_s, "gradients": exchange_s},
        scaling_factor=_ideal_s(cost, shape) / iteration_s,
        communication_to_computation=(transfers_s + exchange_s) / compute_s if compute_s else float("inf"),
        memory_bytes=memory[_fullest(memory)],
        details=_details(cost, shape, times, run, memory),
    )


def _breakdown_s(cost: PipelineCost, shape: Shape, times: StageTimes, run: ScheduleRun) -> dict[str, float]:
    """Return where the iteration of the busiest device goes; sums to the iteration."""
    untroubled = cost.run(shape, times, with_transfers=False)
    untroubled_s = float(untroubled.compute_end_s.max())
    busiest = int(np.argmax(run.busy_s))
    busy_s = float(run.busy_s[busiest])
    forward_s = float(_by_device(times.forward_s, shape)[busiest]) * shape.num_microbatches
    computed_s = float(run.compute_end_s.max())
    exchanged_s = float((run.compute_end_s + _by_device(times.sync_s, shape)).max())
    return {
        "forward": forward_s,
        "backward": max(0.0, busy_s - forward_s),
        "bubble": max(0.0, untroubled_s - busy_s),  # rounding alone could make it negative
        "exposed_transfers": max(0.0, computed_s - untroubled_s),
        "exposed_gradients": exchanged_s - computed_s,
        "update": max(0.0, run.makespan_s - exchanged_s),
        "input_stall": cost.stall_s(shape, run.makespan_s),
    }


def _by_device(by_stage: Sequence[float], shape: Shape) -> Floats:
    """Return the sum over the chunks of every device."""
    by_chunk: Floats = np.asarray(by_stage, dtype=np.float64).reshape(shape.chunks_per_device, -1)
    return np.asarray(by_chunk.sum(axis=0))


def _fullest(memory: Sequence[Mapping[str, float]]) -> int:
    """Return the device whose memory is used most, by its share and then by bytes."""
    return max(range(len(memory)), key=lambda device: (memory[device]["total"] / memory[device]["limit"],
                                                       memory[device]["total"]))  # fmt: skip


def _ideal_s(cost: PipelineCost, shape: Shape) -> float:
    """Return the batch's time if the devices shared it without any loss, each with the whole network; no input."""
    stages = shape.stages[: shape.num_devices_in_line]
    profiles = [cost.costs.machines[stage.group].profile for stage in stages]
    sample_s = [float(one.forward_s.sum() + one.backward_s.sum()) for one in profiles]
    rate = sum(stage.replicas / seconds for stage, seconds in zip(stages, sample_s, strict=True) if seconds)
    update_s = min(one.update_s for one in profiles)
    return (shape.global_batch_size / rate if rate else 0.0) + update_s


def _details(
    cost: PipelineCost, shape: Shape, times: StageTimes, run: ScheduleRun, memory: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Return the family's own figures; bubbles are idle over working time of the busiest device."""
    p, places, read = shape.num_devices_in_line, cost.places(shape), cost.input(shape)
    devices = sum(stage.replicas for stage in shape.stages[:p])
    machines = {(one.group, one.first_machine + index) for one in places for index in range(one.num_machines)}
    busy_s = float(run.busy_s.max())
    return {
        "batch_per_device": ceil(shape.global_batch_size / devices),
        "global_batch_size": shape.global_batch_size,
        "microbatch_size": shape.microbatch_size,
        "num_microbatches": shape.num_microbatches,
        "num_stages": p,
        "num_devices": devices,
        "num_machines": len(machines),
        "bubble": (float(run.compute_end_s.max()) - busy_s) / busy_s if busy_s else 0.0,
        "bubble_of_equal_stages": bubble_share(shape.schedule, p, shape.num_microbatches, shape.chunks_per_device),
        "staleness": 0,
        "input_s": {"read": read.read_s, "decode": read.decode_s, "copy": read.copy_s},
        "stages": [_stage_row(cost, shape, times, run, memory, k) for k in range(len(shape.stages))],
    }


def _stage_row(
    cost: PipelineCost, shape: Shape, times: StageTimes, run: ScheduleRun, memory: Sequence[Mapping[str, float]], k: int
) -> dict[str, Any]:
    """Return the figures of stage k; memory and idle share are its device's."""
    stage, device, layers = shape.stages[k], k % shape.num_devices_in_line, cost.costs.layers
    group = cost.groups[stage.group]
    return {
        "first": layers.names[stage.first],
        "last": layers.names[stage.last],
        "machines": group.name,
        "device": group.device.name,
        "replicas": stage.replicas,
        "num_machines": cost.places(shape)[k].num_machines,
        "samples_per_replica": shape.num_samples(stage),
        "forward_s": times.forward_s[k],
        "backward_s": times.backward_s[k],
        "transfer_s": times.transfer_s[k] if k + 1 < len(shape.stages) else 0.0,
        "gradients_s": times.sync_s[k],
        "update_s": times.update_s[k],
        "in_flight": run.in_flight[k],
        "idle_share": float(run.idle_s[device]) / run.makespan_s if run.makespan_s else 0.0,
        "memory_bytes": memory[device]["total"],
        "memory_limit_bytes": memory[device]["limit"],
        "num_relayed": len(layers.line.relayed_by(stage.first, stage.last)),
    }


# -- in words --------------------------------------------------------------------------------------------------------


def explain(problem: Problem, configuration: PipelineConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds, what the bubble and the transfers add, and whether the stages fit."""
    del problem
    parts, details = prediction.breakdown_s, prediction.details
    shares = {
        "computation": parts["forward"] + parts["backward"] + parts["update"],
        "the bubble": parts["bubble"],
        "transfers between stages": parts["exposed_transfers"],
        "the exchange of gradients": parts["exposed_gradients"],
        "input": parts["input_stall"],
    }
    most = max(shares, key=shares.__getitem__)
    lines = [f"{most} binds: {shares[most] / prediction.iteration_time_s:.0%} of an iteration"]
    if configuration.num_stages > 1:
        lines += _stage_lines(prediction)
    if relayed := sum(row["num_relayed"] for row in details["stages"]):
        lines.append(f"tensors that skip over stages are relayed by them, {relayed} times in all")
    return (*lines, *_memory_lines(details["stages"]))


def _stage_lines(prediction: Prediction) -> list[str]:
    """Return which stage is slowest, and what bubble and transfers add to it."""
    parts, details = prediction.breakdown_s, prediction.details
    p, rows = details["num_stages"], details["stages"]
    work_s = [sum(row["forward_s"] + row["backward_s"] for row in rows[device::p]) for device in range(p)]
    slowest = int(np.argmax(work_s))
    where = f"{rows[slowest]['replicas']} x {rows[slowest]['device']}, from {rows[slowest]['first']} on"
    lines = [
        f"stage {slowest + 1} of {p} ({where}) computes longest; idle time adds {details['bubble']:.0%} to its work, "
        f"where equal stages and free transfers would add {details['bubble_of_equal_stages']:.0%}"
    ]
    if parts["exposed_transfers"] > 0:
        row = max(rows, key=lambda one: one["transfer_s"])
        added, each = (format_human(one, Dimension.TIME) for one in (parts["exposed_transfers"], row["transfer_s"]))
        lines.append(
            f"transfers add {added}; the slowest boundary, behind {row['last']}, takes {each} a micro-batch, each way"
        )
    return lines


def _memory_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which stages do not fit."""
    lines = []
    for index, row in enumerate(rows):
        held, limit = (format_human(row[key], Dimension.DATA) for key in ("memory_bytes", "memory_limit_bytes"))
        if row["memory_bytes"] > row["memory_limit_bytes"]:
            many = f"{row['in_flight']} micro-batch{'es' * (row['in_flight'] > 1)}"
            lines.append(
                f"it does not fit: a device of stage {index + 1} would hold {held} with {many} in flight, and may "
                f"hold {limit}"
            )
    return lines


def timeline(problem: Problem, configuration: PipelineConfiguration, *, num_iterations: int = 1) -> Timeline:
    """Return what every stage's devices and channels do when, in some iterations; replicas do alike."""
    cost = PipelineCost(problem)
    shape = cost.shape(configuration)
    return repeated(pipeline_timeline.timeline(cost, shape), num_iterations, cost.iteration_time_s(shape))


def left_out(problem: Problem, given: Mapping[str, Any], configuration: PipelineConfiguration) -> tuple[str, ...]:
    """Return the number of micro-batches, which a search would look for."""
    if given["num_microbatches"] is not None:
        return ()
    return (f"num_microbatches: {configuration.num_microbatches}, up to four a stage; plan looks for the best number",)
