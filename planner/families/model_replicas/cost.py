"""The cost of a configuration of model replicas: the numbers of a question in the Adam model, and what comes of them.

A worker is a machine of one device whose cores run the threads. At each exchange a replica writes its gradients to the
servers, and reads the weights; both are limited by the replicas' and the servers' links (``serialised``), take equally
long, and follow one another, as the weights of a synchronous replica must wait for its gradients. Of several replicas,
which are asynchronous, writes could overlap reads and computation: for them this is conservative. With ``variant:
printed`` reads are charged as the paper prints them, and writes cost nothing. The model is that of
:mod:`planner.models.replicas`, memory that of :mod:`planner.models.replica_memory`.

Seconds of the layers are those of the question's profiles, which all families share: a thread has ``1 / cores`` of the
device. The error terms of a layer (eq. 7) are half of the backward pass of the layer above, its update (eq. 8) is the
other half; a layer without weights has error terms alone. The first layer sends no error terms down: its half of an
*estimated* backward pass is left out, a measured one has none. With ``calibration.multiply_add_s``, which are the
paper's canonical loops measured on a machine, computation is counted instead, by the working set of each segment.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from planner import constraints
from planner.cluster import Link
from planner.families.model_replicas.configuration import (
    NAME,
    ReplicaChoice,
    batch_of,
    group_of,
    stages_of,
)
from planner.families.parsing import wrong
from planner.models.activations import kept_bytes
from planner.models.input import InputTime, Samples, Strategy, input_time, stall_s
from planner.models.memory import Precision
from planner.models.replica_memory import Kept, ReplicaMemory
from planner.models.replica_segments import (
    ByThreads,
    ByWorkingSet,
    Constants,
    LayerChoice,
    LayerSeconds,
    ReplicaConfiguration,
    SegmentWork,
    Stage,
)
from planner.models.replicas import EpochTime, Reading, ReplicaModel, Training
from planner.plan import Prediction
from planner.problem import Problem
from planner.units import Dimension, format_human

NOT_MODELLED = (
    "convergence under stale weights: more replicas may need more epochs",
    "the servers' own work",
    "the memory of the servers' hosts: parameters and the optimiser's state, once over all servers",
    "workspaces and the framework's own memory, beyond calibration.memory_reserve",
    "cache effects, and threads that slow each other down, unless calibration names measured ones",
)


def model_of(problem: Problem) -> ReplicaModel:
    """Return the costs on the machines of the question."""
    fitted, link = problem.calibration, _link_of(problem)
    stages = stages_of(problem)
    constants = Constants(
        multiply_add_s=ByWorkingSet(fitted.multiply_add_s) if fitted.multiply_add_s else lambda _size, _partitions: 0.0,
        activation_s=fitted.activation_s,
        error_s=fitted.error_s,
        bandwidth_bytes_per_s=fitted.links.network_bytes_per_s(link.bandwidth_bytes_per_s, group_of(problem)),
        latency_s=lambda _threads: link.latency_s,
        number_bytes=Precision.of(problem.training.dtype, "sgd").gradient_bytes,
        interference=ByThreads(fitted.interference) if fitted.interference else lambda _threads: 1.0,
    )
    return ReplicaModel(
        SegmentWork(stages, constants, seconds=None if fitted.multiply_add_s else _seconds(problem, stages))
    )


def _link_of(problem: Problem) -> Link:
    """Return what a machine sends by its network cards; raise SpecError if there is none."""
    if not problem.cluster.links:
        raise wrong(NAME, "num_workers_per_replica", "", "one machine has no network to replicate over.")
    return problem.cluster.own_link(group_of(problem).name)


def _seconds(problem: Problem, stages: tuple[Stage, ...]) -> tuple[LayerSeconds, ...]:
    """Return the profile's seconds of every stage on one thread, which passes one sample at a time."""
    profile = problem.profiles[group_of(problem).device.name]
    forward_s, backward_s = np.zeros(len(stages)), np.zeros(len(stages))
    for index, one_s, back_s in zip(_homes(problem, stages), profile.forward(1), profile.backward(1), strict=True):
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
    precision = Precision.of(problem.training.dtype, problem.training.optimizer)
    numbers = np.ceil(kept_bytes(problem.dnn, precision) / precision.activation_bytes).astype(np.int64).tolist()
    moving, stored = np.zeros((2, len(model.stages)), dtype=np.int64)
    for layer, home, number in zip(problem.dnn.layers, _homes(problem, model.stages), numbers, strict=True):
        moving[home] += layer.num_moving
        stored[home] += 0 if layer.kind == "input" else number
    kept = [Kept(num_moving=one, num_stored=other) for one, other in zip(moving.tolist(), stored.tolist(), strict=True)]
    return ReplicaMemory(model.work, kept, precision, reserve_bytes=problem.calibration.memory_reserve_bytes)


def memory_limit_bytes(problem: Problem) -> float:
    """Return what a worker's device may hold: its memory, or the user's limit where that is less."""
    return constraints.memory_limit_bytes(problem, group_of(problem))


def input_of(problem: Problem, num_workers: int, num_samples: float) -> InputTime:
    """Return the time of input for so many samples, of which each machine reads its share at the same time."""
    return input_time(
        group_of(problem),
        Samples.of(problem),
        num_machines=num_workers,
        devices_per_machine=1,
        batch_per_device=num_samples / num_workers,
        whole_batch=num_samples,
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


def predict(problem: Problem, configuration: ReplicaChoice) -> Prediction:
    """Return what a configuration costs; an iteration is the fixed batch, or what replicas train between two reads.

    ``details.staleness``: how many of the other replicas' updates are missing from the weights that a replica computes
    on, counted in its own read intervals.
    """
    return predicted(problem, model_of(problem), configuration)


def predicted(problem: Problem, model: ReplicaModel, configuration: ReplicaChoice) -> Prediction:
    """Return the same by the model of the question, which a search has made already."""
    chosen, share, training = configuration.configuration, configuration.samples_per_read, problem.training
    batch = batch_of(problem, chosen.num_replicas, share)
    num_workers = chosen.num_replicas * chosen.num_workers
    epoch = iteration(problem, model, configuration)
    parts = dict(epoch.parts_s)
    parts["write"] = 0.0 if problem.variant == "printed" else parts["read"]
    parts |= exchange_parts_s(problem)
    read = input_of(problem, num_workers, batch)
    parts["input_stall"] = stall_s(read, sum(parts.values()), Strategy(problem.calibration.strategy))
    iteration_s = sum(parts.values())
    layers = tuple(LayerChoice.spread(1, num_threads=layer.num_threads) for layer in chosen.layers)
    one_worker = ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=1, layers=layers)
    alone = model.epoch(one_worker, _training(problem, batch, share)).parts_s
    computed_s, alone_s = (one["forward"] + one["backward"] + one["update"] for one in (parts, alone))
    exchange_s = parts["receive_activations"] + parts["receive_errors"]
    epoch_s = None if training.dataset_samples is None else iteration_s * training.dataset_samples / batch
    memory = memory_of(problem, model).fullest(chosen.layers, chosen.num_workers)
    return Prediction(
        iteration_time_s=iteration_s,
        epoch_time_s=epoch_s,
        training_time_s=None if epoch_s is None or training.epochs is None else epoch_s * training.epochs,
        breakdown_s=parts,
        communication_s={"read": parts["read"], "write": parts["write"], "activations_and_errors": exchange_s},
        scaling_factor=alone_s / (num_workers * iteration_s),
        communication_to_computation=(parts["read"] + parts["write"] + exchange_s) / computed_s,
        memory_bytes=memory.terms_bytes(1, limit_bytes=memory_limit_bytes(problem)),
        details={
            "batch_per_device": share,
            "global_batch_size": batch,
            "num_workers": num_workers,
            "read_bytes": epoch.read_bytes * (training.dataset_samples or batch) / batch,
            "staleness": staleness_of(chosen.num_replicas),
            "layers": [
                {"forward_s": one.forward.total_s, "backward_s": one.backward.total_s, "update_s": one.update.total_s}
                for one in epoch.layers
            ],
        },
    )


def iteration(problem: Problem, model: ReplicaModel, configuration: ReplicaChoice) -> EpochTime:
    """Return what the samples of an iteration take, but for what every family pays beside."""
    chosen, share = configuration.configuration, configuration.samples_per_read
    return model.epoch(chosen, _training(problem, batch_of(problem, chosen.num_replicas, share), share))


def _training(problem: Problem, num_samples: int, samples_per_read: int) -> Training:
    """Return so many samples, read as the question's variant has it."""
    reading = Reading.PRINTED if problem.variant == "printed" else Reading.SERIALISED
    return Training(num_samples=num_samples, samples_per_read=samples_per_read, reading=reading)


def explain(problem: Problem, configuration: ReplicaChoice, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds: weights and gradients, messages between workers, computation or input; and whether it fits."""
    del problem, configuration
    parts = prediction.breakdown_s
    shares = {
        "reading weights and writing gradients": parts["read"] + parts["write"] + parts["latency"] + parts["overhead"],
        "messages between workers": parts["receive_activations"] + parts["receive_errors"],
        "computation": parts["forward"] + parts["backward"] + parts["update"] + parts["optimizer"],
        "input": parts["input_stall"],
    }
    slowest = max(shares, key=shares.__getitem__)
    lines = [f"{slowest} binds: {shares[slowest] / prediction.iteration_time_s:.0%} of the time"]
    memory = prediction.memory_bytes
    if memory["total"] > memory["limit"]:
        total, limit = (format_human(memory[key], Dimension.DATA) for key in ("total", "limit"))
        lines.append(f"it does not fit: a worker would hold {total}, and may hold {limit}")
    return tuple(lines)
