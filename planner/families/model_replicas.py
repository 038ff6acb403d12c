"""The family ``model_replicas``: what a given configuration of asynchronous replicas costs (Adam).

A worker is a machine of one device whose cores run the threads. Reading of weights is limited by the replicas' and the
servers' links (``serialised``); with ``variant: printed`` it is charged as the paper prints it. The model is that of
:mod:`planner.models.model_replicas`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.cluster import MachineGroup
from planner.errors import Fault, SpecError
from planner.models.compute import peak_flop_per_s
from planner.models.model_replicas import Constants, EpochTime, Reading, ReplicaModel, Training
from planner.models.replica_configuration import LayerChoice, Limits, ReplicaConfiguration, broken_constraints
from planner.models.segments import Stage, chain_of
from planner.plan import Prediction
from planner.problem import Problem
from planner.timeline import Timeline

__all__ = ["NAME", "NOT_MODELLED", "ReplicaChoice", "configuration_of", "explain", "predict", "timeline"]

NAME = "model_replicas"
NOT_MODELLED = (
    "convergence under stale weights: more replicas may need more epochs",
    "the servers' own work, and writes, which are asynchronous",
    "memory of the workers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChoice:
    """All decisions of the family, and how often a replica reads."""

    configuration: ReplicaConfiguration
    samples_per_read: int

    @property
    def headline(self) -> str:
        """Replicas, workers and servers."""
        chosen = self.configuration
        return f"{chosen.num_replicas} replicas x {chosen.num_workers} workers, {chosen.num_servers} servers"

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


def predict(problem: Problem, configuration: ReplicaChoice) -> Prediction:
    """Return what a configuration costs; an iteration is what all replicas train between two reads of each."""
    found, num_samples = _epoch(problem, configuration)
    chosen = configuration.configuration
    batch = configuration.samples_per_read * chosen.num_replicas
    per_iteration = batch / num_samples
    parts = {name: seconds * per_iteration for name, seconds in found.parts_s.items()}
    exchange_s = parts["receive_activations"] + parts["receive_errors"]
    compute_s = parts["forward"] + parts["backward"] + parts["update"]
    iteration_s = sum(parts.values())
    one = ReplicaChoice(configuration=_alone(chosen), samples_per_read=configuration.samples_per_read)
    alone, _ = _epoch(problem, one)
    alone_s = sum(alone.parts_s[name] for name in ("forward", "backward", "update"))
    num_workers = chosen.num_replicas * chosen.num_workers
    epochs = problem.training.epochs
    return Prediction(
        iteration_time_s=iteration_s,
        epoch_time_s=found.epoch_time_s,
        training_time_s=None if epochs is None else found.epoch_time_s * epochs,
        breakdown_s=parts,
        communication_s={"read": parts["read"], "activations_and_errors": exchange_s},
        scaling_factor=alone_s / (num_workers * found.epoch_time_s),
        communication_to_computation=(parts["read"] + exchange_s) / compute_s,
        memory_bytes={},
        details={
            "batch_per_device": configuration.samples_per_read,
            "num_workers": num_workers,
            "read_bytes": found.read_bytes,
            "layers": [
                {"forward_s": one.forward.total_s, "backward_s": one.backward.total_s, "update_s": one.update.total_s}
                for one in found.layers
            ],
        },
    )


def _alone(chosen: ReplicaConfiguration) -> ReplicaConfiguration:
    """Return one worker with the same threads."""
    layers = tuple(LayerChoice.spread(1, num_threads=layer.num_threads) for layer in chosen.layers)
    return ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=1, layers=layers)


def _epoch(problem: Problem, configuration: ReplicaChoice) -> tuple[EpochTime, int]:
    """Return the epoch of a configuration, and its samples."""
    num_samples = problem.training.dataset_samples
    if num_samples is None:
        mend = "Add dataset_samples: 60000, say."
        raise SpecError.of([Fault(field="dnn", problem="model_replicas needs the size of the data set.", mend=mend)])
    training = Training(
        num_samples=num_samples,
        samples_per_read=configuration.samples_per_read,
        reading=Reading.PRINTED if problem.variant == "printed" else Reading.SERIALISED,
    )
    return _model(problem).epoch(configuration.configuration, training), num_samples


def _model(problem: Problem) -> ReplicaModel:
    """Return the costs on the machines of the question."""
    fitted, group = problem.calibration, _group(problem)
    edges = problem.cluster.graph.edges(group.name, data=True)
    link = next((data["link"] for _, _, data in edges), None)
    if link is None:
        raise _wrong("num_workers_per_replica", "", "one machine has no network to replicate over.")
    core_flop_per_s = peak_flop_per_s(group.device, problem.training.dtype) * fitted.utilisation / fitted.num_cores
    constants = Constants(
        multiply_add_s=lambda _size, _partitions: 2 / core_flop_per_s,
        activation_s=fitted.activation_s,
        error_s=fitted.error_s,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * group.num_nics * fitted.bandwidth_efficiency,
        latency_s=lambda _threads: link.latency_s,
    )
    return ReplicaModel(_stages(problem), constants)


def _stages(problem: Problem) -> tuple[Stage, ...]:
    """Return the network as a chain of layers with weights; raise SpecError if it is none."""
    try:
        return chain_of(problem.dnn)
    except ValueError as error:
        mend = "Ask about a chain, such as adam-mnist, alexnet or vgg16."
        raise SpecError.of([Fault(field="dnn", problem=f"{error}.", mend=mend)]) from None


def _group(problem: Problem) -> MachineGroup:
    """Return the only group of machines, or the one whose device is pinned."""
    pinned = problem.fixed.get("device")
    groups = [group for group in problem.cluster.machine_groups if pinned in (None, group.device.name)]
    if len(groups) != 1:
        raise _wrong("num_replicas", len(groups), "model_replicas needs one group of equal machines. Pin fix.device.")
    return groups[0]


def explain(problem: Problem, configuration: ReplicaChoice, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds: reading weights, messages between workers, or computation."""
    del problem, configuration
    parts = prediction.breakdown_s
    shares = {
        "reading weights": parts["read"],
        "messages between workers": parts["receive_activations"] + parts["receive_errors"],
        "computation": parts["forward"] + parts["backward"] + parts["update"],
    }
    slowest = max(shares, key=shares.__getitem__)
    return (f"{slowest} binds: {shares[slowest] / prediction.iteration_time_s:.0%} of the time",)


def timeline(problem: Problem, configuration: ReplicaChoice) -> Timeline | None:
    """Return None: replicas are asynchronous, and the model has no tasks to draw."""
    del problem, configuration
    return None


# -- a given configuration -------------------------------------------------------------------------------------------


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> ReplicaChoice:
    """Return the configuration that a spec's block means; raise SpecError with every constraint that it breaks."""
    stages, group = _stages(problem), _group(problem)
    layers = given["layers"] or [{}] * len(stages)
    if len(layers) != len(stages):
        names = ", ".join(stage.name for stage in stages)
        raise _wrong("layers", len(layers), f"{len(layers)} layers are given; the network has {len(stages)}: {names}.")
    workers = given["num_workers_per_replica"]
    chosen = ReplicaConfiguration(
        num_servers=given["num_parameter_servers"],
        num_replicas=given["num_replicas"],
        num_workers=workers,
        layers=tuple(_layer(layer, workers) for layer in layers),
    )
    limits = Limits(num_machines=group.count, num_cores=problem.calibration.num_cores)
    if faults := broken_constraints(chosen, limits, stages):
        raise SpecError.of(
            Fault(field=f"configuration.{NAME}", problem=fault, mend="Mend these numbers.") for fault in faults
        )
    batch = problem.training.batch_per_device or problem.training.global_batch_size or 1
    return ReplicaChoice(configuration=chosen, samples_per_read=given["samples_per_read"] or batch)


def _layer(given: Mapping[str, Any], num_workers: int) -> LayerChoice:
    """Return one layer's choice: partitioned over all workers unless it says otherwise."""
    threads, replicas = given.get("threads") or 1, given.get("replicas") or 1
    if given.get("workers"):
        return LayerChoice(num_threads=threads, workers=tuple(tuple(row) for row in given["workers"]))
    partitions = given.get("partitions") or max(1, num_workers // replicas)
    return LayerChoice.spread(partitions, num_threads=threads, num_replicas=replicas)


def _wrong(key: str, value: object, problem: str) -> SpecError:
    """Return the error of one key of the configuration."""
    return SpecError.of(
        [Fault(field=f"configuration.{NAME}.{key}", value=str(value), problem=problem, mend="Mend it.")]
    )
