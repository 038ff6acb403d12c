"""The Adam model of training with model replicas: one configuration, and the best and worst of an enumeration.

The enumeration is that of figure 15, over <workers, replicas, servers>: all machines are used, so that the machines
left over by the replicas are servers; every layer is partitioned over all workers and not replicated.
Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field

from planner import zoo
from planner.cases.forms import Hertz
from planner.cost import Floats
from planner.models.replica_segments import (
    ByPartitions,
    ByThreads,
    Connections,
    Constants,
    LayerChoice,
    Limits,
    ReplicaConfiguration,
    SegmentWork,
    chain_of,
    check,
)
from planner.models.replicas import EpochTime, LayerStates, Reading, ReplicaModel, ReplicaPairs, Training
from planner.question.values import Bytes, Count, Model, Name, Positive, Rate, Seconds
from planner.solvers.chain import cheapest_chain
from planner.solvers.matching import two_phase_assignment

_FLOP_PER_MULTIPLY_ADD = 2


def _factors(value: dict[int, float]) -> dict[int, float]:
    """Refuse interference below 1: threads do not speed each other up."""
    if 1 not in value or min(value.values()) < 1:
        raise ValueError(f"{value}: give a factor for 1 thread, and none below 1.")
    return value


class ConfigurationInputs(Model):
    """<workers, replicas, servers>, as section 6 writes it."""

    workers: Count
    replicas: Count
    servers: Count


class Inputs(Model):
    """A network of the zoo on equal machines.

    ``utilisation`` is of a core's multiply-adds at one partition without cache effect; ``cache_effect`` multiplies
    C_muladd by P, ``interference`` everything by H. ``search`` lists the numbers of workers of the enumeration;
    ``optimise`` gives each of its settings the best maps of uniform layers, or the best layers and maps: any P of the
    enumeration's, any number of layer replicas that fits.
    """

    dnn: Name
    machines: Count
    cores: Count
    clock: Hertz
    flop_per_cycle: Count
    utilisation: Positive
    cache_effect: dict[int, Positive]
    interference: Annotated[dict[int, float], AfterValidator(_factors)] = {}
    activation: Seconds
    error: Seconds
    network: Rate
    latency: Seconds
    number: Bytes
    threads: Count
    samples: Count
    samples_per_read: Count
    samples_per_write: Count
    reading: Reading = Reading.PRINTED
    mix: Annotated[float, Field(ge=0, le=1)] = 0.0
    connections: Connections = Connections.COUNTED
    configuration: ConfigurationInputs
    search: list[Count] = []
    optimise: Literal["no", "uniform", "free"] = "no"


def answer(inputs: Inputs) -> Mapping[str, object]:
    """Return the epoch of the configuration, its parts, and of the enumeration, if any, the best and the worst.

    Raises
    ------
    ModelError
        For a configuration that breaks a constraint, or a number of workers without a cache effect.
    """
    model = ReplicaModel(
        SegmentWork(chain_of(zoo.build(inputs.dnn)), _constants(inputs), connections=inputs.connections)
    )
    given = inputs.configuration
    found = _epoch(inputs, model, (given.workers, given.replicas, given.servers))
    return {
        "peak_gigaflop": _core_flop(inputs) * inputs.cores / 1e9,
        "connections": sum(stage.num_connections for stage in model.stages),
        "weights": sum(stage.num_weights for stage in model.stages),
        "epoch_time_s": found.epoch_time_s,
        "parts_s": found.parts_s,
        "remote_activations": {
            stage.name: layer.forward.num_received for stage, layer in zip(model.stages, found.layers, strict=True)
        },
        "remote_errors": {
            stage.name: layer.backward.num_received for stage, layer in zip(model.stages, found.layers, strict=True)
        },
        "read_bytes": found.read_bytes,
        "written_bytes": found.written_bytes,
        **_extremes(inputs, model),
        **_optimum(inputs, model),
    }


def _points(inputs: Inputs) -> list[tuple[int, int, int]]:
    """Return <workers, replicas, servers> of the enumeration, where all machines left are servers."""
    total = inputs.machines
    return [(w, r, total - w * r) for w in inputs.search for r in range(1, total) if w * r < total]


def _extremes(inputs: Inputs, model: ReplicaModel) -> dict[str, Any]:
    """Return the number of settings of the enumeration, the best and the worst; the first of equals."""
    points = _points(inputs)
    if not points:
        return {}
    times_s = {point: _epoch(inputs, model, point).epoch_time_s for point in points}
    names = ("workers", "replicas", "servers", "epoch_time_s")
    ends = {"best": min(points, key=times_s.__getitem__), "worst": max(points, key=times_s.__getitem__)}
    extremes = {end: dict(zip(names, (*point, times_s[point]), strict=True)) for end, point in ends.items()}
    return {"settings": len(points), **extremes}


def _optimum(inputs: Inputs, model: ReplicaModel) -> dict[str, Any]:
    """Return the best setting of the enumeration with its best layers and maps, and how many layers are replicated."""
    if inputs.optimise == "no":
        return {}
    rows = [(_with_best_layers(inputs, model, point), point) for point in _points(inputs)]
    times_s = [_run(inputs, model, configuration).epoch_time_s for configuration, _ in rows]
    best = min(range(len(rows)), key=times_s.__getitem__)
    configuration, (workers, replicas, servers) = rows[best]
    replicated = sum(layer.num_replicas > 1 for layer in configuration.layers)
    found = {"workers": workers, "replicas": replicas, "servers": servers, "epoch_time_s": times_s[best]}
    return {"optimum": {**found, "replicated_layers": replicated}}


def _with_best_layers(inputs: Inputs, model: ReplicaModel, point: tuple[int, int, int]) -> ReplicaConfiguration:
    """Return a setting with the layers and maps that the dynamic programme finds."""
    workers, replicas, _ = point
    rows = [(workers, 1, inputs.threads)]
    if inputs.optimise == "free":
        every = (p for p in inputs.search if p <= workers)
        rows = [(p, r, inputs.threads) for p in every for r in range(1, workers // p + 1)]
    pairs = ReplicaPairs(model, [LayerStates.of(rows)] * len(model.stages), _assign)
    # Reading is linear in the bytes: what one replica more of every layer adds is the price of its bytes.
    once, twice = (_reading_s(inputs, model, point, copies) for copies in (1, 2))
    layers = range(len(model.stages))
    size_bytes = sum(stage.num_weights for stage in model.stages) * model.constants.number_bytes
    price = (twice - once) / size_bytes / inputs.samples * replicas
    every_state = np.arange(len(rows))
    found = cheapest_chain(
        [pairs.own_s(layer) + price * pairs.weight_bytes(layer) for layer in layers],
        [pairs.bounds_s(layer, every_state, every_state) for layer in layers[1:]],
        pairs.pair_s,
    )
    assert found.value is not None  # all states are finite
    return _configuration(point, pairs.choices(found.value))


def _assign(first: Floats, second: Floats) -> tuple[tuple[int, ...], float]:
    """Return the columns and the cost of the best assignment."""
    found = two_phase_assignment(first, second)
    assert found.value is not None  # every square matrix has one
    return found.value, found.objective


def _reading_s(inputs: Inputs, model: ReplicaModel, point: tuple[int, int, int], copies: int) -> float:
    """Return the reading of an epoch if every layer is replicated so often."""
    layer = LayerChoice.spread(1, num_replicas=copies)
    return model.reading_s(_configuration(point, (layer,) * len(model.stages)), _training(inputs))


def _configuration(point: tuple[int, int, int], layers: tuple[LayerChoice, ...]) -> ReplicaConfiguration:
    """Return <workers, replicas, servers> with layers."""
    workers, replicas, servers = point
    return ReplicaConfiguration(num_servers=servers, num_replicas=replicas, num_workers=workers, layers=layers)


def _epoch(inputs: Inputs, model: ReplicaModel, point: tuple[int, int, int]) -> EpochTime:
    """Return the epoch of <workers, replicas, servers>."""
    layer = LayerChoice.spread(point[0], num_threads=inputs.threads)
    return _run(inputs, model, _configuration(point, (layer,) * len(model.stages)))


def _run(inputs: Inputs, model: ReplicaModel, configuration: ReplicaConfiguration) -> EpochTime:
    """Return the epoch of a configuration; refuse one that breaks a constraint."""
    check(configuration, Limits(num_machines=inputs.machines, num_cores=inputs.cores), model.stages)
    return model.epoch(configuration, _training(inputs))


def _training(inputs: Inputs) -> Training:
    """Return the epoch, and how often replicas exchange weights."""
    return Training(
        num_samples=inputs.samples,
        samples_per_read=inputs.samples_per_read,
        samples_per_write=inputs.samples_per_write,
        reading=inputs.reading,
        mix=inputs.mix,
    )


def _core_flop(inputs: Inputs) -> float:
    """Return the FLOP/s of a core's peak."""
    return inputs.clock * inputs.flop_per_cycle


def _constants(inputs: Inputs) -> Constants:
    multiply_add_s = _FLOP_PER_MULTIPLY_ADD / (inputs.utilisation * _core_flop(inputs))
    interference = tuple(sorted(inputs.interference.items())) or ((1, 1.0), (inputs.cores, 1.0))
    return Constants(
        multiply_add_s=ByPartitions({p: multiply_add_s * factor for p, factor in inputs.cache_effect.items()}),
        activation_s=inputs.activation,
        error_s=inputs.error,
        bandwidth_bytes_per_s=inputs.network,
        latency_s=lambda _: inputs.latency,
        number_bytes=inputs.number,
        interference=ByThreads(interference),
    )
