"""The numbers of a question in the Adam model: its machines, layers, constants, batch and input.

Seconds of the layers are those of the question's profiles, which all families share: a thread has ``1 / cores`` of the
device. The error terms of a layer (eq. 7) are half of the backward pass of the layer above, its update (eq. 8) is the
other half; a layer without weights has error terms alone. The first layer sends no error terms down: its half of an
*estimated* backward pass is left out, a measured one has none. With ``calibration.multiply_add_s``, which are the
paper's canonical loops measured on a machine, computation is counted instead, by the working set of each segment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from planner import constraints
from planner.cluster import Link, MachineGroup
from planner.errors import Fault, ModelError, SpecError
from planner.families.parsing import wrong
from planner.models.input import InputTime, input_time
from planner.models.memory import Precision
from planner.models.replica_memory import Kept, ReplicaMemory
from planner.models.replica_segments import (
    ByThreads,
    ByWorkingSet,
    Constants,
    LayerSeconds,
    ReplicaConfiguration,
    SegmentWork,
    Stage,
    chain_of,
)
from planner.models.replicas import ReplicaModel
from planner.problem import Problem
from planner.used_machines import UsedMachines

# --- The decisions of the family ``model_replicas``, and the block that says them

NAME = "model_replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChoice:
    """All decisions of the family, and how often a replica reads."""

    configuration: ReplicaConfiguration
    samples_per_read: int

    @property
    def headline(self) -> str:
        """Replicas, workers and servers."""
        chosen = self.configuration
        replicas, workers, servers = (
            f"{number} {noun}{'s' * (number != 1)}"
            for number, noun in (
                (chosen.num_replicas, "replica"),
                (chosen.num_workers, "worker"),
                (chosen.num_servers, "server"),
            )
        )
        return f"{replicas} x {workers}, {servers}"

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        chosen = self.configuration
        layers = [
            {
                "partitions": layer.num_partitions,
                "threads": layer.num_threads,
                "replicas": layer.num_replicas,
                "workers": [list(row) for row in layer.workers],
            }
            for layer in chosen.layers
        ]
        return {
            "num_parameter_servers": chosen.num_servers,
            "num_replicas": chosen.num_replicas,
            "num_workers_per_replica": chosen.num_workers,
            "samples_per_read": self.samples_per_read,
            "layers": layers,
        }


_NAME = "model_replicas"
_MOST_CORES = 4_096


def group_of(problem: Problem) -> MachineGroup:
    """Return the only group of machines, or the one whose device is pinned."""
    pinned = problem.fixed.get("device")
    groups = [group for group in problem.cluster.machine_groups if pinned in (None, group.device.name)]
    if len(groups) != 1:
        raise wrong(
            _NAME, "num_replicas", len(groups), "model_replicas needs one group of equal machines. Pin fix.device."
        )
    if (number := groups[0].devices_per_machine) > 1:
        raise wrong(_NAME, "num_replicas", number, f"model_replicas runs one device a machine; these have {number}.")
    return groups[0]


def stages_of(problem: Problem) -> tuple[Stage, ...]:
    """Return the network as a chain of layers with weights; raise SpecError if it is none."""
    mend = "Ask about a chain, such as adam-mnist, alexnet or vgg16."
    first = problem.dnn.layers[0]
    if first.kind != "input":
        text = f"layer {first.name!r} comes first and is of kind {first.kind!r}; model_replicas reads samples from an"
        raise SpecError.of(
            [Fault(field="dnn", problem=f"{text} input layer.", mend="Put a layer of kind input first.")]
        )
    try:
        return chain_of(problem.dnn)
    except ModelError as error:
        raise SpecError.of([Fault(field="dnn", problem=f"{error}", mend=mend)]) from None


def model_of(problem: Problem) -> ReplicaModel:
    """Return the costs on the machines of the question."""
    fitted, group, link = problem.calibration, group_of(problem), _link_of(problem)
    stages = stages_of(problem)
    constants = Constants(
        multiply_add_s=ByWorkingSet(fitted.multiply_add_s) if fitted.multiply_add_s else lambda _size, _partitions: 0.0,
        activation_s=fitted.activation_s,
        error_s=fitted.error_s,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * group.num_nics * fitted.bandwidth_efficiency,
        latency_s=lambda _threads: link.latency_s,
        number_bytes=Precision.of(problem.training.dtype, "sgd").gradient_bytes,
        interference=ByThreads(fitted.interference) if fitted.interference else lambda _threads: 1.0,
    )
    return ReplicaModel(
        SegmentWork(stages, constants, seconds=None if fitted.multiply_add_s else _seconds(problem, stages))
    )


def _link_of(problem: Problem) -> Link:
    """Return the link of every machine; raise SpecError if there is none."""
    edges = problem.cluster.graph.edges(group_of(problem).name, data=True)
    link: Link | None = next((data["link"] for _, _, data in edges), None)
    if link is None:
        raise wrong(_NAME, "num_workers_per_replica", "", "one machine has no network to replicate over.")
    return link


def _seconds(problem: Problem, stages: tuple[Stage, ...]) -> tuple[LayerSeconds, ...]:
    """Return the profile's seconds of every stage on one thread."""
    profile = problem.profiles[group_of(problem).device.name]
    forward_s, backward_s = np.zeros(len(stages)), np.zeros(len(stages))
    for index, one_s, back_s in zip(_homes(problem, stages), profile.forward_s, profile.backward_s, strict=True):
        forward_s[index] += one_s
        backward_s[index] += back_s
    updates = np.array([0.5 if stage.num_weights or stage.num_connections else 0.0 for stage in stages])
    if profile.is_measured:
        updates[0] = 1.0
    below_s = (1 - updates) * backward_s
    errors_s = [later for _, later in pairwise(below_s.tolist())] + [0.0]
    cores = problem.calibration.num_cores
    return tuple(
        LayerSeconds(forward_s=cores * one, error_s=cores * error, update_s=cores * update)
        for one, error, update in zip(forward_s.tolist(), errors_s, (updates * backward_s).tolist(), strict=True)
    )


def _homes(problem: Problem, stages: tuple[Stage, ...]) -> list[int]:
    """Return the stage of every layer: what follows one neuron by neuron belongs to it, the input to the first."""
    names = {stage.name: index for index, stage in enumerate(stages)}
    homes: list[int] = []
    for layer in problem.dnn.layers:
        homes.append(names.get(layer.name, homes[-1] if homes else 0))
    return homes


def memory_of(problem: Problem, model: ReplicaModel) -> ReplicaMemory:
    """Return what workers hold; samples count where they are read, not as outputs of the input layer."""
    moving, stored = np.zeros((2, len(model.stages)), dtype=np.int64)
    for layer, home in zip(problem.dnn.layers, _homes(problem, model.stages), strict=True):
        moving[home] += layer.num_moving
        stored[home] += 0 if layer.kind == "input" else layer.num_stored_elements
    kept = [Kept(num_moving=one, num_stored=other) for one, other in zip(moving.tolist(), stored.tolist(), strict=True)]
    precision = Precision.of(problem.training.dtype, problem.training.optimizer)
    return ReplicaMemory(model.work, kept, precision, reserve_bytes=problem.calibration.memory_reserve_bytes)


def memory_limit_bytes(problem: Problem) -> float:
    """Return what a worker's device may hold: its memory, or the user's limit where that is less."""
    return constraints.memory_limit_bytes(problem, group_of(problem))


def threads_of(problem: Problem) -> tuple[int, ...]:
    """Return the numbers of threads that a machine may run: up to its cores, and for which interference is known."""
    points = problem.calibration.interference
    least, most = (points[0][0], points[-1][0]) if points else (1, problem.calibration.num_cores)
    most = min(most, problem.calibration.num_cores)
    if most > _MOST_CORES:
        text = f"{most:,} cores a machine; model_replicas takes up to {_MOST_CORES:,}."
        raise SpecError.of([Fault(field="calibration.cores", problem=text, mend="Give the cores of one machine.")])
    return tuple(range(least, most + 1))


def fastest_threads(problem: Problem) -> int:
    """Return the number of threads that multiplies fastest, whatever a layer's partitions; of equals the fewest."""
    points = problem.calibration.interference
    slower = ByThreads(points) if points else lambda _threads: 1.0
    return min(threads_of(problem), key=lambda number: (slower(number) / number, number), default=1)


def share_of(problem: Problem, num_replicas: int) -> int:
    """Return a replica's share of the batch, after which it reads again.

    The batch where it is fixed, directly or by devices, as for all families; else the batch per device, or the largest
    batch.

    Raises
    ------
    SpecError
        If the batch has fewer samples than there are replicas.
    """
    training = problem.training
    batch = training.fixed_batch_size or training.max_global_batch_size or 0
    share = batch // num_replicas
    if training.fixed_batch_size is None and training.batch_per_device is not None:
        share = training.batch_per_device if not batch or training.batch_per_device <= share else 0
    if share < 1:
        raise wrong(
            _NAME, "samples_per_read", batch, f"a batch of {batch} leaves some of {num_replicas} replicas without one."
        )
    return share


def batch_of(problem: Problem, num_replicas: int, samples_per_read: int) -> int:
    """Return the samples of an iteration: a fixed batch that replicas share, or what they train between two reads."""
    fixed = problem.training.fixed_batch_size
    shares_fixed = fixed is not None and samples_per_read == fixed // num_replicas
    return fixed if fixed is not None and shares_fixed else samples_per_read * num_replicas


def input_of(problem: Problem, num_workers: int, num_samples: float) -> InputTime:
    """Return the time of input for so many samples, of which each machine reads its share at the same time."""
    training = problem.training
    return input_time(
        group_of(problem),
        num_machines=num_workers,
        devices_per_machine=1,
        batch_per_device=num_samples / num_workers,
        sample_bytes=training.sample_bytes,
        device_sample_bytes=training.device_sample_bytes,
        whole_batch=num_samples,
        is_pipelined=problem.calibration.is_prefetch_pipelined,
    )


def exchange_parts_s(problem: Problem) -> dict[str, float]:
    """Return what each exchange costs beside its bytes: latency there and back, start-up, and the optimiser's step.

    Other families pay the same; the paper has none of it, and neither has ``variant: printed``.
    """
    is_printed = problem.variant == "printed"
    profile = problem.profiles[group_of(problem).device.name]
    return {
        "latency": 0.0 if is_printed else 2 * _link_of(problem).latency_s,
        "overhead": 0.0 if is_printed else problem.calibration.overhead_s,
        "optimizer": 0.0 if is_printed else profile.update_s,
    }


def staleness_of(num_replicas: int) -> Mapping[str, float | None]:
    """Return how many updates of other replicas a replica's weights lack, counted in its own read intervals.

    While a replica trains on the weights that it has read, each of the others, at the same speed, writes once on
    average: ``num_replicas - 1``. Nothing bounds how far one may fall behind (``most`` None). The paper does not count
    staleness; the definition is that of Q. Ho et al., NIPS 2013, of updates that a worker does not see.
    """
    return {"mean": float(num_replicas - 1), "most": 0.0 if num_replicas == 1 else None}


# --- Which machines a plan of the family ``model_replicas`` takes


def machines(problem: Problem, configuration: ReplicaChoice) -> Iterator[UsedMachines]:
    """Yield the workers of all replicas, one device each; then the servers."""
    group, counts = group_of(problem), configuration.configuration
    yield UsedMachines.training(group, counts.num_replicas * counts.num_workers, 1)
    yield UsedMachines.serving(group, counts.num_servers)
