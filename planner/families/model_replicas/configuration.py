"""The decisions of the family ``model_replicas``: what they are, how a spec's block says them, which machines work."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.cluster import MachineGroup
from planner.errors import Fault, ModelError, SpecError
from planner.families.parsing import check_inner_links, wrong
from planner.frozen import frozen
from planner.models.replica_segments import (
    ByThreads,
    LayerChoice,
    Limits,
    ReplicaConfiguration,
    Stage,
    broken_constraints,
    chain_of,
)
from planner.problem import Problem
from planner.used_machines import UsedMachines

NAME = "model_replicas"
_MOST_CORES = 4_096


@frozen
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

    def to_document(self) -> dict[str, object]:
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


def machines(problem: Problem, configuration: ReplicaChoice) -> Iterator[UsedMachines]:
    """Yield the workers of all replicas, one device each; then the servers."""
    group, counts = group_of(problem), configuration.configuration
    yield UsedMachines.training(group, counts.num_replicas * counts.num_workers, 1)
    yield UsedMachines.serving(group, counts.num_servers)


# -- what a question leaves open ---------------------------------------------------------------------------------------


def group_of(problem: Problem) -> MachineGroup:
    """Return the only group of machines, or the one whose device is pinned."""
    pinned = problem.fixed.get("device")
    groups = [group for group in problem.cluster.machine_groups if pinned in (None, group.device.name)]
    if len(groups) != 1:
        raise wrong(
            NAME, "num_replicas", len(groups), "model_replicas needs one group of equal machines. Pin fix.device."
        )
    if (number := groups[0].devices_per_machine) > 1:
        raise wrong(NAME, "num_replicas", number, f"model_replicas runs one device a machine; these have {number}.")
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
            NAME, "samples_per_read", batch, f"a batch of {batch} leaves some of {num_replicas} replicas without one."
        )
    return share


def batch_of(problem: Problem, num_replicas: int, samples_per_read: int) -> int:
    """Return the samples of an iteration: a fixed batch that replicas share, or what they train between two reads."""
    fixed = problem.training.fixed_batch_size
    shares_fixed = fixed is not None and samples_per_read == fixed // num_replicas
    return fixed if fixed is not None and shares_fixed else samples_per_read * num_replicas


# -- a configuration that a user gives ---------------------------------------------------------------------------------


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> ReplicaChoice:
    """Return the configuration that a spec's block means; raise SpecError with every constraint that it breaks."""
    check_inner_links(problem, NAME)
    stages, group = stages_of(problem), group_of(problem)
    servers, replicas, workers = (
        given[key] for key in ("num_parameter_servers", "num_replicas", "num_workers_per_replica")
    )
    if (used := servers + replicas * workers) > group.count:  # at once: layers are spread over that many workers
        asked = f"{servers} servers + {replicas} replicas x {workers} workers"
        text = f"C1: {asked} = {used} machines; there are {group.count}."
        raise wrong(NAME, "num_replicas", replicas, text)
    layers = given["layers"] or [{}] * len(stages)
    if len(layers) != len(stages):
        names = ", ".join(stage.name for stage in stages)
        raise wrong(
            NAME, "layers", len(layers), f"{len(layers)} layers are given; the network has {len(stages)}: {names}."
        )
    chosen = ReplicaConfiguration(
        num_servers=servers,
        num_replicas=replicas,
        num_workers=workers,
        layers=tuple(_layer(layer, workers, fastest_threads(problem)) for layer in layers),
    )
    limits = Limits(num_machines=group.count, num_cores=problem.calibration.num_cores)
    if faults := broken_constraints(chosen, limits, stages):
        raise SpecError.of(
            Fault(field=f"configuration.{NAME}", problem=fault, mend="Mend these numbers.") for fault in faults
        )
    share = given["samples_per_read"] or problem.training.batch_per_device or share_of(problem, replicas)
    training, batch = problem.training, batch_of(problem, replicas, share)
    wanted, most = training.global_batch_size, training.max_global_batch_size
    if (wanted is not None and batch != wanted) or (most is not None and batch > most):
        asked = f"at most {most}" if wanted is None else f"{wanted}"
        text = f"{replicas} replicas x {share} samples make a batch of {batch}; dnn asks for {asked}."
        raise wrong(NAME, "samples_per_read", share, text)
    return ReplicaChoice(configuration=chosen, samples_per_read=share)


def left_out(problem: Problem, given: Mapping[str, Any], configuration: ReplicaChoice) -> tuple[str, ...]:
    """Return the threads of layers that do not name theirs."""
    number = fastest_threads(problem)
    if number == 1 or all(one["threads"] is not None for one in given["layers"] or [{"threads": None}]):
        return ()
    return (f"threads: {number} in every layer that names none, which are fastest",)


def _layer(given: Mapping[str, Any], num_workers: int, most_threads: int) -> LayerChoice:
    """Return one layer's choice: partitioned over all workers unless it says otherwise."""
    threads, replicas = given.get("threads") or most_threads, given.get("replicas") or 1
    if given.get("workers"):
        rows = tuple(tuple(row) for row in given["workers"])
        partitions = given.get("partitions") or len(rows[0])
        if len(rows) != (given.get("replicas") or len(rows)) or {len(row) for row in rows} != {partitions}:
            raise wrong(
                NAME, "layers", rows, f"{partitions} partitions x {replicas} replicas are not what workers list."
            )
        return LayerChoice(num_threads=threads, workers=rows)
    partitions = given.get("partitions") or max(1, num_workers // replicas)
    return LayerChoice.spread(partitions, num_threads=threads, num_replicas=replicas)
