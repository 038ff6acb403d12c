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
from planner.families.faults import wrong
from planner.families.inner_links import check_inner_links
from planner.models.compute import peak_flop_per_s
from planner.models.input import input_time
from planner.models.memory import Precision
from planner.models.model_replicas import (
    ByThreads,
    ByWorkingSet,
    Constants,
    EpochTime,
    Reading,
    ReplicaModel,
    Training,
)
from planner.models.replica_configuration import LayerChoice, Limits, ReplicaConfiguration, broken_constraints
from planner.models.segments import Stage, chain_of
from planner.plan import Prediction
from planner.problem import Problem
from planner.timeline import Timeline

__all__ = ["DECISIONS", "NAME", "NOT_MODELLED", "ReplicaChoice", "configuration_of", "explain", "predict", "timeline"]

NAME = "model_replicas"
NOT_MODELLED = (
    "convergence under stale weights: more replicas may need more epochs",
    "the servers' own work, and writes, which are asynchronous",
    "memory of the workers",
    "cache effects, and threads that slow each other down, unless calibration names measured ones",
)
DECISIONS = frozenset(("num_parameter_servers", "num_replicas", "num_workers_per_replica", "device"))


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
    parts["input_stall"] = max(0.0, _input_s(problem, configuration) - sum(parts.values()))
    iteration_s = sum(parts.values())
    epoch_s = iteration_s / per_iteration
    one = ReplicaChoice(configuration=_alone(chosen), samples_per_read=configuration.samples_per_read)
    alone, _ = _epoch(problem, one)
    alone_s = sum(alone.parts_s[name] for name in ("forward", "backward", "update"))
    num_workers = chosen.num_replicas * chosen.num_workers
    epochs = problem.training.epochs
    return Prediction(
        iteration_time_s=iteration_s,
        epoch_time_s=epoch_s,
        training_time_s=None if epochs is None else epoch_s * epochs,
        breakdown_s=parts,
        communication_s={"read": parts["read"], "activations_and_errors": exchange_s},
        scaling_factor=alone_s / (num_workers * epoch_s),
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


def _input_s(problem: Problem, configuration: ReplicaChoice) -> float:
    """Return the seconds in which all machines read what they train on between two reads of weights."""
    chosen, training, group = configuration.configuration, problem.training, _group(problem)
    return input_time(
        group,
        num_machines=chosen.num_replicas * chosen.num_workers,
        devices_per_machine=1,
        batch_per_device=configuration.samples_per_read / chosen.num_workers,
        sample_bytes=training.sample_bytes,
        device_sample_bytes=training.device_sample_bytes,
    ).bound_s


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
        raise wrong(NAME, "num_workers_per_replica", "", "one machine has no network to replicate over.")
    core_flop_per_s = peak_flop_per_s(group.device, problem.training.dtype) * fitted.utilisation / fitted.num_cores
    constants = Constants(
        multiply_add_s=ByWorkingSet(fitted.multiply_add_s)
        if fitted.multiply_add_s
        else lambda _size, _partitions: 2 / core_flop_per_s,
        activation_s=fitted.activation_s,
        error_s=fitted.error_s,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * group.num_nics * fitted.bandwidth_efficiency,
        latency_s=lambda _threads: link.latency_s,
        number_bytes=Precision.of(problem.training.dtype, "sgd").gradient_bytes,
        interference=ByThreads(fitted.interference) if fitted.interference else lambda _threads: 1.0,
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
        raise wrong(
            NAME, "num_replicas", len(groups), "model_replicas needs one group of equal machines. Pin fix.device."
        )
    if (number := groups[0].devices_per_machine) > 1:
        raise wrong(NAME, "num_replicas", number, f"model_replicas runs one device a machine; these have {number}.")
    return groups[0]


def explain(problem: Problem, configuration: ReplicaChoice, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds: reading weights, messages between workers, or computation."""
    del problem, configuration
    parts = prediction.breakdown_s
    shares = {
        "reading weights": parts["read"],
        "messages between workers": parts["receive_activations"] + parts["receive_errors"],
        "computation": parts["forward"] + parts["backward"] + parts["update"],
        "input": parts["input_stall"],
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
    check_inner_links(problem, NAME)
    stages, group = _stages(problem), _group(problem)
    servers, replicas, workers = (
        given[key] for key in ("num_parameter_servers", "num_replicas", "num_workers_per_replica")
    )
    if (used := servers + replicas * workers) > group.count:
        text = (
            f"C1: {servers} servers + {replicas} replicas x {workers} workers = {used} machines; there "
            f"are {group.count}."
        )
        raise wrong(NAME, "num_replicas", replicas, text)
    layers = given["layers"] or [{}] * len(stages)
    if len(layers) != len(stages):
        names = ", ".join(stage.name for stage in stages)
        raise wrong(
            NAME, "layers", len(layers), f"{len(layers)} layers are given; the network has {len(stages)}: {names}."
        )
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
    return ReplicaChoice(
        configuration=chosen, samples_per_read=given["samples_per_read"] or _samples(problem, replicas)
    )


def _samples(problem: Problem, num_replicas: int) -> int:
    """Return a replica's share of the batch, after which it reads again."""
    training = problem.training
    batch = training.global_batch_size or training.max_global_batch_size or 0
    share = training.batch_per_device or batch // num_replicas
    if share < 1:
        raise wrong(
            NAME, "samples_per_read", batch, f"a batch of {batch} leaves some of {num_replicas} replicas without one."
        )
    return share


def _layer(given: Mapping[str, Any], num_workers: int) -> LayerChoice:
    """Return one layer's choice: partitioned over all workers unless it says otherwise."""
    threads, replicas = given.get("threads") or 1, given.get("replicas") or 1
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
