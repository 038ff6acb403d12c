"""The cost of a pipeline: one way from a question and its decisions to seconds and bytes, and to what binds in words.

The stages' times come from :mod:`planner.models.stages`, their schedule from :mod:`planner.models.schedule`, input from
:mod:`planner.models.input`. An iteration is the simulated makespan and what the devices then wait for input. Gradients
are synchronous: the pipeline drains before the update.

Where a network repeats its blocks, what lies in one is never cut (:class:`BlockCost`): the search then handles as many
layers as there are blocks, which is a tenth of the operators of a transformer, and a hundredth of the pairs of cuts.
All sums are those of the layers themselves, so a stage costs what the layers in it cost. What is left out are cuts
inside a block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Cluster, MachineGroup
from planner.constraints import memory_limit_bytes
from planner.cost import Floats
from planner.dnn import Dnn
from planner.families.parsing import check_inner_links
from planner.frozen import frozen
from planner.models.input import InputTime, Samples, Strategy, input_time, stall_s
from planner.models.memory import Precision
from planner.models.orders import bubble_share, peak_weight
from planner.models.schedule import PipelineTimes, ScheduleRun, simulate
from planner.models.stages import LayerBytes, Place, Stage, StageCosts, StageMachines, StageMemory, places_of
from planner.plan import Prediction
from planner.problem import Problem
from planner.routes import routes_of
from planner.units import Dimension, format_human

NAME = "pipeline"
_MOST_LISTED = 8  # stages whose replicas stand one by one in a headline
NOT_LAUNCHED = frozenset({"unequal shares"})  # all shapes but those that Shape.is_equal has

NOT_MODELLED = (
    "convergence and accuracy: a larger batch may need more epochs",
    "small micro-batches that use a device less well: seconds are in proportion to samples",
    "network cards that stages on one machine, both directions of a boundary, or gradients and activations share",
    "recomputation of activations; other orders of the layers than the one of the graph",
    "variation between iterations, failures and restarts",
    "workspaces and the framework's own memory, beyond calibration.memory_reserve",
)


@frozen
class PipelineStage:
    """A stage by names: its first and last layer, its machine group, and how many devices share its micro-batches."""

    first: str
    last: str
    machines: str
    replicas: int = 1


@frozen
class PipelineConfiguration:
    """All decisions of the family.

    Stages cover the layers in order. The interleaved schedule has ``chunks_per_device`` times as many stages as
    devices; stage k then runs on the devices of stage ``k mod p``.
    """

    stages: tuple[PipelineStage, ...]
    num_microbatches: int
    global_batch_size: int
    schedule: str = "1f1b"
    chunks_per_device: int = 1

    @property
    def num_stages(self) -> int:
        """Stages of different devices: p."""
        return len(self.stages) // self.chunks_per_device

    @property
    def num_devices(self) -> int:
        """Devices of all stages."""
        return sum(stage.replicas for stage in self.stages[: self.num_stages])

    @property
    def headline(self) -> str:
        """Stages with their replicas, micro-batches and schedule."""
        numbers = [stage.replicas for stage in self.stages[: self.num_stages]]
        replicas = "-".join(map(str, numbers))
        if len(numbers) > _MOST_LISTED:
            runs = [(number, len(list(same))) for number, same in groupby(numbers)]
            replicas = ", ".join(f"{length} of {number} replica{'s' * (number > 1)}" for number, length in runs)
        stages = f"{self.num_stages} stage{'s' * (self.num_stages > 1)}"
        chunks = f" x {self.chunks_per_device} chunks" if self.chunks_per_device > 1 else ""
        return (
            f"{self.num_devices} device{'s' * (self.num_devices > 1)} ({stages}{chunks}: {replicas}), "
            f"{self.num_microbatches} micro-batch{'es' * (self.num_microbatches > 1)}, {self.schedule}"
        )

    def to_document(self) -> dict[str, object]:
        """Return the block that ``predict`` reads back."""
        return {
            "stages": [
                {"first": one.first, "last": one.last, "machines": one.machines, "replicas": one.replicas}
                for one in self.stages
            ],
            "num_microbatches": self.num_microbatches,
            "global_batch_size": self.global_batch_size,
            "schedule": self.schedule,
            "chunks_per_device": self.chunks_per_device,
        }


@frozen
class Shape:
    """A configuration by indices of layers and groups, as a search has it."""

    stages: tuple[Stage, ...]
    num_microbatches: int
    global_batch_size: int
    schedule: str = "1f1b"
    chunks_per_device: int = 1

    @property
    def num_devices_in_line(self) -> int:
        """p: stages of different devices."""
        return len(self.stages) // self.chunks_per_device

    @property
    def microbatch_size(self) -> int:
        """Samples of the largest micro-batch; where the batch does not divide, all are taken to be as large."""
        return ceil(self.global_batch_size / self.num_microbatches)

    def num_samples(self, stage: Stage) -> int:
        """Return the samples of a micro-batch on the replica of a stage that has most of them."""
        return ceil(self.microbatch_size / stage.replicas)

    @property
    def is_equal(self) -> bool:
        """Whether every device has one stage and as many samples of each micro-batch: programs launch no others."""
        replicas = {one.replicas for one in self.stages}
        is_even = not self.global_batch_size % (self.num_microbatches * max(replicas))
        return len(replicas) == 1 and self.chunks_per_device == 1 and is_even


@frozen
class StageTimes:
    """What :func:`planner.models.schedule.simulate` takes: by stage, transfers by boundary."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    sync_s: tuple[float, ...]
    update_s: tuple[float, ...]


class PipelineCost:
    """What pipelines of one question cost; groups are those of the cluster, or of the pinned device.

    Raises
    ------
    SpecError
        If a link between switches could be narrower than all machines together.
    """

    def __init__(self, problem: Problem) -> None:
        check_inner_links(problem, NAME)
        self.problem = problem
        pinned = problem.fixed.get("device")
        self.groups = tuple(one for one in problem.cluster.machine_groups if pinned in (None, one.device.name))
        self.group_index = {group.name: index for index, group in enumerate(self.groups)}

    @cached_property
    def costs(self) -> StageCosts:
        """What any stage costs."""
        training, fitted = self.problem.training, self.problem.calibration
        return StageCosts(
            layers=LayerBytes.of(self.problem.dnn, Precision.of(training.dtype, training.optimizer)),
            machines=tuple(self._machines(group) for group in self.groups),
            latency_s=np.array(
                [[_latency_s(self.problem.cluster, one, other) for other in self.groups] for one in self.groups]
            ),
            reserve_bytes=fitted.memory_reserve_bytes,
        )

    @cached_property
    def layer_index(self) -> dict[str, int]:
        """Position of every layer in the order of the line."""
        return {name: index for index, name in enumerate(self.costs.layers.names)}

    def _machines(self, group: MachineGroup) -> StageMachines:
        """Return a group at the rates that it reaches."""
        fitted = self.problem.calibration
        precision = Precision.of(self.problem.training.dtype, self.problem.training.optimizer)
        inside = group.inside
        own = self.problem.cluster.own_link(group.name)  # without a network nothing limits them
        return StageMachines(
            name=group.name,
            num_machines=group.count,
            devices_per_machine=group.devices_per_machine,
            profile=self.problem.profiles[group.device.name],
            memory_limit_bytes=memory_limit_bytes(self.problem, group),
            network_bytes_per_s=fitted.links.network_bytes_per_s(own.bandwidth_bytes_per_s, group),
            network_latency_s=_latency_s(self.problem.cluster, group, group),
            inside_bytes_per_s=fitted.links.inside_bytes_per_s(group),
            inside_latency_s=0.0 if inside is None else inside.latency_s,
            overhead_s=fitted.overhead_s,
            delay_s=fitted.negotiate_s,
            reduce_bytes_per_s=fitted.reduce_bytes_per_s(group.device, precision.gradient_bytes),
            algorithms=fitted.algorithms,
            curves=fitted.all_reduce_curves,
        )

    def configuration(self, shape: Shape) -> PipelineConfiguration:
        """Return a shape by its names."""
        names = self.costs.layers.names
        return PipelineConfiguration(
            stages=tuple(
                PipelineStage(
                    first=names[one.first],
                    last=names[one.last],
                    machines=self.groups[one.group].name,
                    replicas=one.replicas,
                )
                for one in shape.stages
            ),
            num_microbatches=shape.num_microbatches,
            global_batch_size=shape.global_batch_size,
            schedule=shape.schedule,
            chunks_per_device=shape.chunks_per_device,
        )

    def shape(self, configuration: PipelineConfiguration) -> Shape:
        """Return a configuration by its indices."""
        return Shape(
            stages=tuple(
                Stage(
                    first=self.layer_index[one.first],
                    last=self.layer_index[one.last],
                    group=self.group_index[one.machines],
                    replicas=one.replicas,
                )
                for one in configuration.stages
            ),
            num_microbatches=configuration.num_microbatches,
            global_batch_size=configuration.global_batch_size,
            schedule=configuration.schedule,
            chunks_per_device=configuration.chunks_per_device,
        )

    def places(self, shape: Shape) -> tuple[Place, ...]:
        """Return where every stage stands; chunks of a device stand where its first one does."""
        p = shape.num_devices_in_line
        return places_of(shape.stages[:p], self.costs.machines) * shape.chunks_per_device

    def times(self, shape: Shape, *, num_transfers: int | None = None) -> StageTimes:
        """Return the seconds of every stage and boundary, or of the first boundaries alone."""
        costs, places, stages = self.costs, self.places(shape), shape.stages
        computing = (
            costs.computing_s(one.first, one.last, group=one.group, num_samples=shape.num_samples(one))
            for one in stages
        )
        forward_s, backward_s, update_s = zip(*computing, strict=True)
        return StageTimes(
            forward_s=forward_s,
            backward_s=backward_s,
            transfer_s=tuple(
                costs.transfer_s(stages[k + 1].first, places[k], places[k + 1], microbatch_size=shape.microbatch_size)
                for k in range(len(stages) - 1 if num_transfers is None else num_transfers)
            ),
            sync_s=tuple(costs.sync_s(one.first, one.last, place) for one, place in zip(stages, places, strict=True)),
            update_s=update_s,
        )

    def run(
        self, shape: Shape, times: StageTimes | None = None, *, with_transfers: bool = True, with_tasks: bool = False
    ) -> ScheduleRun:
        """Return the simulated iteration, without input; without transfers, what it would be if they were free."""
        found = times or self.times(shape)
        transfer_s = found.transfer_s if with_transfers else (0.0,) * len(found.transfer_s)
        return simulate(
            PipelineTimes(
                forward_s=found.forward_s,
                backward_s=found.backward_s,
                output_s=transfer_s,
                error_s=transfer_s,
                sync_s=found.sync_s,
                update_s=found.update_s,
            ),
            num_microbatches=shape.num_microbatches,
            schedule=shape.schedule,
            chunks_per_device=shape.chunks_per_device,
            with_tasks=with_tasks,
        )

    def iteration_time_s(self, shape: Shape) -> float:
        """Return the seconds of an iteration, input included: what a search minimises for a fixed batch."""
        makespan_s = self.run(shape).makespan_s
        return makespan_s + self.stall_s(shape, makespan_s)

    def stall_s(self, shape: Shape, makespan_s: float) -> float:
        """Return how long the devices wait for input in a steady iteration."""
        return stall_s(self.input(shape), makespan_s, Strategy(self.problem.calibration.strategy))

    def input(self, shape: Shape) -> InputTime:
        """Return the time of input: the machines of the first stage read all samples."""
        training, place = self.problem.training, self.places(shape)[0]
        group = self.groups[place.group]
        return input_time(
            group,
            Samples.of(self.problem),
            num_machines=place.num_machines,
            devices_per_machine=place.most_per_machine,
            batch_per_device=ceil(shape.global_batch_size / place.replicas),
            whole_batch=shape.global_batch_size,
            read_s_per_sample=training.measured_read_s(self.problem.profiles[group.device.name], group),
        )

    def stage_memory(self, shape: Shape) -> StageMemory:
        """Return the bytes of each stage, of activations those of one micro-batch in flight."""
        rows = [(one.first, one.last, shape.num_samples(one)) for one in shape.stages]
        firsts, lasts, samples = np.array(rows, dtype=np.int64).T
        return self.costs.memory(firsts, lasts, num_samples=samples)

    def memory_bytes(self, shape: Shape) -> list[dict[str, float]]:
        """Return, by device in line, the bytes term by term and in total, with what it may hold."""
        p, costs, stages = shape.num_devices_in_line, self.costs, self.stage_memory(shape)
        held = peak_weight(
            stages.in_flight_bytes, shape.schedule, p, shape.num_microbatches, shape.chunks_per_device
        ).tolist()
        by_stage = (stages.weights_bytes, stages.gradients_bytes, stages.optimizer_bytes, stages.error_bytes)
        weights, gradients, optimizer, boundaries = (
            [sum(of_stages[device::p]) for device in range(p)] for of_stages in (one.tolist() for one in by_stage)
        )
        found = []
        for device in range(p):
            terms = {
                "weights": weights[device],
                "gradients": gradients[device],
                "optimizer": optimizer[device],
                "activations": held[device],
                "boundaries": boundaries[device],
                "reserve": costs.reserve_bytes,
            }
            limit = costs.machines[shape.stages[device].group].memory_limit_bytes
            found.append({**terms, "total": sum(terms.values()), "limit": limit})
        return found

    def fits(self, shape: Shape) -> bool:
        """Whether every device holds what it must."""
        return all(row["total"] <= row["limit"] for row in self.memory_bytes(shape))


def _latency_s(cluster: Cluster, one: MachineGroup, other: MachineGroup) -> float:
    """Return the longest latency between machines of two groups."""
    return routes_of(cluster).latency_s({one.name, other.name})


def block_starts(dnn: Dnn) -> NDArray[np.int64]:
    """Return the first layers of the pieces that stay whole, and the number of layers; what lies between is a piece.

    Without repeats every layer is a piece.
    """
    if not dnn.repeats:
        return np.arange(len(dnn.layers) + 1)
    starts = {0, len(dnn.layers)}
    for one in dnn.repeats:
        starts.update(range(one.first, one.first + one.num_layers * one.count + 1, one.num_layers))
    return np.array(sorted(starts))


def has_whole_blocks(problem: Problem) -> bool:
    """Whether the network repeats blocks, and no more stages are pinned than it has."""
    pinned = problem.fixed.get("num_stages", 1)
    return bool(problem.dnn.repeats) and pinned < len(block_starts(problem.dnn))


class BlockCost(PipelineCost):
    """What pipelines of whole blocks cost; a "layer" of its shapes is a piece of :func:`block_starts`.

    Names are those of the layers, so that any :class:`PipelineCost` of the question reads its configurations; it reads
    none itself.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.starts = block_starts(problem.dnn)

    @cached_property
    def costs(self) -> StageCosts:
        """What any stage of whole blocks costs."""
        whole, starts = self._by_layers.costs, self.starts
        layers, machines = whole.layers, []
        for one in whole.machines:
            machines.append(replace(one, profile=one.profile.of_pieces(starts[:-1])))
        merged = replace(  # sums up to where pieces start, and what crosses there
            layers,
            names=tuple(layers.names[start] for start in starts[:-1]),
            weights_bytes=layers.weights_bytes[starts],
            gradients_bytes=layers.gradients_bytes[starts],
            optimizer_bytes=layers.optimizer_bytes[starts],
            activations_bytes=layers.activations_bytes[starts],
            trainable_share=layers.trainable_share[starts],
            cut_bytes=layers.cut_bytes[starts],
        )
        return replace(whole, layers=merged, machines=tuple(machines))

    def configuration(self, shape: Shape) -> PipelineConfiguration:
        """Return a shape by the names of the layers at the ends of its stages."""
        firsts, lasts = self.starts[:-1], self.starts[1:] - 1
        layers = [replace(one, first=int(firsts[one.first]), last=int(lasts[one.last])) for one in shape.stages]
        return self._by_layers.configuration(replace(shape, stages=tuple(layers)))

    @cached_property
    def _by_layers(self) -> PipelineCost:
        """The costs by layer, for their names."""
        return PipelineCost(self.problem)


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
        memory_bytes=max(memory, key=lambda one: (one["total"] / one["limit"], one["total"])),
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


def _ideal_s(cost: PipelineCost, shape: Shape) -> float:
    """Return the batch's time if the devices shared it without any loss, each with the whole network; no input.

    In passes of as many samples as theirs.
    """
    stages = shape.stages[: shape.num_devices_in_line]
    profiles = [cost.costs.machines[stage.group].profile for stage in stages]
    samples = [shape.num_samples(one) for one in stages]
    sample_s = [
        float(sum(one(many) for one in profile.whole)) / many for profile, many in zip(profiles, samples, strict=True)
    ]
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
        "batch_per_device": batch / devices if (batch := shape.global_batch_size) % devices else batch // devices,
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
