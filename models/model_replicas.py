"""One epoch of asynchronous training with model replicas and parameter servers: the Adam model.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 4, eqs. 5 to 11.
Mended, where print is displaced or its symbol stands for two things:

- W is connections in eqs. 5, 7 and 8, and stored weights in eqs. 10 and 11;
- a message of nothing has no latency (eq. 6); the last layer receives no error terms and has no connections above it;
- weights are read by a whole replica at once, hence at the full bandwidth, not at one thread's 1/H (eqs. 10, 11);
- ``T_epoch`` charges each replica with the reads of all of them, see :class:`Reading`.

Per sample and layer, each phase lasts as long as its slowest segment, computation and communication together. Sample k
is on replica ``k mod R(l)`` of layer l; what a segment receives is averaged over the samples that it meets. Stripes of
a convolution share its weights, which are read once for each replica of the layer. Writes are asynchronous and cost
nothing, as in the paper; :mod:`planner.families.model_replicas.family` charges them. Left out: the servers' own work,
convergence, and memory, which :mod:`planner.models.replica_memory` has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import gcd, inf

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.replica_configuration import LayerChoice, ReplicaConfiguration, segments_beside
from planner.models.replica_constants import (
    ByPartitions,
    ByThreads,
    ByWorkingSet,
    Connections,
    Constants,
    LayerSeconds,
)
from planner.models.segment_work import SegmentWork
from planner.models.segments import Counts, Stage

__all__ = [
    "ByPartitions",
    "ByThreads",
    "ByWorkingSet",
    "Connections",
    "Constants",
    "EpochTime",
    "LayerSeconds",
    "LayerTime",
    "Phase",
    "Reading",
    "ReplicaModel",
    "Training",
    "least_reading_s",
    "most_reading_s",
]

# -- an epoch -------------------------------------------------------------------------------------------------------


class Reading(StrEnum):
    """The first term of ``T_epoch``: how long the reading of weights takes, over an epoch."""

    PRINTED = "printed"  # M_w N_sample / N_read: the reads of all replicas, one after the other, stall each of them
    REPLICA = "replica"  # a replica trains N_sample / N_mr samples, and waits for its own reads only
    SERIALISED = "serialised"  # as fast as the replicas' and the servers' links allow: the physical limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """An epoch, and how often a replica exchanges weights.

    ``mix`` places ``M_w`` between ``M_min`` (0) and ``M_max`` (1). With ``printed`` reading, M_max counts the replicas
    twice.
    """

    num_samples: float
    samples_per_read: float
    samples_per_write: float = inf
    reading: Reading = Reading.PRINTED
    mix: float = 0.0


# -- costs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Seconds of a sample in one phase of a layer, on its slowest segment; and what all its segments receive."""

    compute_s: float
    receive_s: float = 0.0
    num_received: float = 0.0

    @property
    def total_s(self) -> float:
        """Both, one after the other."""
        return self.compute_s + self.receive_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """The three phases of a layer, and its degree of data parallelism ``Q(l) = H(l) R(l) N_mr``."""

    forward: Phase
    backward: Phase
    update: Phase
    parallelism: int

    @property
    def per_sample_s(self) -> float:
        """Seconds that a sample adds to the epoch."""
        return (self.forward.total_s + self.backward.total_s + self.update.total_s) / self.parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTime:
    """``T_epoch``; ``parts_s`` sums to it. ``read_bytes`` and ``written_bytes`` are those of all replicas."""

    epoch_time_s: float
    parts_s: Mapping[str, float]
    layers: tuple[LayerTime, ...]
    read_bytes: float
    written_bytes: float


def most_reading_s(stages: Sequence[Stage], configuration: ReplicaConfiguration, constants: Constants) -> float:
    """Return ``M_max`` of eq. 10: all replicas read from one server at once."""
    return _reading_s(stages, configuration, constants, configuration.num_replicas)


def least_reading_s(stages: Sequence[Stage], configuration: ReplicaConfiguration, constants: Constants) -> float:
    """Return ``M_min`` of eq. 11: one replica reads with all its workers from all servers."""
    return _reading_s(stages, configuration, constants, 1 / min(configuration.num_servers, configuration.num_workers))


def _reading_s(
    stages: Sequence[Stage], configuration: ReplicaConfiguration, constants: Constants, slowdown: float
) -> float:
    """Return latency and transfer of every layer's weights, at the bandwidth over a slowdown."""
    sizes = _weight_bytes(stages, configuration, constants)
    transfer_s = sum(sizes) * slowdown / constants.bandwidth_bytes_per_s
    return sum(size > 0 for size in sizes) * constants.latency_s(1) + transfer_s


def _weight_bytes(
    stages: Sequence[Stage], configuration: ReplicaConfiguration, constants: Constants
) -> tuple[float, ...]:
    """Return what a model replica reads of every layer: its stored weights, once for each of the layer's replicas."""
    pairs = zip(stages, configuration.layers, strict=True)
    return tuple(stage.num_weights * choice.num_replicas * constants.number_bytes for stage, choice in pairs)


class ReplicaModel:
    """Seconds of any configuration of a chain of layers.

    The three phases ask for two neighbouring layers at most, so that a search can go layer by layer. Counts
    are made once for each pair of partitions.

    Parameters
    ----------
    work
        What every segment of the chain computes and exchanges.
    """

    def __init__(self, work: SegmentWork) -> None:
        self.work = work
        self.stages = work.stages
        self.constants = work.constants

    def forward(self, index: int, choice: LayerChoice, before: LayerChoice | None = None) -> Phase:
        """Return eqs. 5 and 6 for layer ``index``; samples are at hand for the first layer."""
        p = choice.num_partitions
        compute_s = self.work.forward_s(index, p)
        if index == 0 or before is None:
            return self._slowest(choice, compute_s)
        needed = self.work.boundary(index, before.num_partitions, p).needed
        return self._slowest(choice, compute_s, (needed, before))

    def backward(self, index: int, choice: LayerChoice, after: LayerChoice | None = None) -> Phase:
        """Return eq. 7 and its communication for layer ``index``; the last layer has no error terms to receive."""
        p = choice.num_partitions
        compute_s = self.work.backward_s(index, p)
        if index == len(self.stages) - 1 or after is None:
            return self._slowest(choice, compute_s)
        returned = self.work.boundary(index + 1, p, after.num_partitions).returned
        return self._slowest(choice, compute_s, (returned, after))

    def update(self, index: int, choice: LayerChoice) -> Phase:
        """Return eq. 8; weights are not communicated inside a replica."""
        return self._slowest(choice, self.work.update_s(index, choice.num_partitions))

    def reading_s(self, configuration: ReplicaConfiguration, training: Training) -> float:
        """Return the first term of ``T_epoch``; raise ModelError for a mix outside 0 to 1."""
        if not 0 <= training.mix <= 1:
            raise ModelError(f"mix {training.mix:g}: M_w lies between M_min (0) and M_max (1).")
        replicas = configuration.num_replicas
        num_reads = training.num_samples / training.samples_per_read
        if training.reading is Reading.SERIALISED:
            links = min(configuration.num_servers, configuration.num_workers)
            slowdown = max(1 / (replicas * links), 1 / configuration.num_servers)
            size = sum(_weight_bytes(self.stages, configuration, self.constants))
            return num_reads * size / self.constants.bandwidth_bytes_per_s * slowdown
        least_s = least_reading_s(self.stages, configuration, self.constants)
        most_s = most_reading_s(self.stages, configuration, self.constants)
        one_s = least_s + training.mix * (most_s - least_s)
        return num_reads * one_s / (replicas if training.reading is Reading.REPLICA else 1)

    def layer_times(self, configuration: ReplicaConfiguration) -> tuple[LayerTime, ...]:
        """Return every layer's phases, per sample; layers that are alike, neighbours included, are costed once."""
        numbers: dict[LayerChoice, int] = {}  # a choice may be large: it is looked up once, its number thereafter
        chosen = [-1, *(numbers.setdefault(one, len(numbers)) for one in configuration.layers), -1]
        made: dict[tuple[int, ...], LayerTime] = {}
        found = []
        for index in range(len(configuration.layers)):
            key = (self.work.alike(index), *chosen[index : index + 3])
            if key not in made:
                made[key] = self.layer_time(index, configuration)
            found.append(made[key])
        return tuple(found)

    def layer_time(self, index: int, configuration: ReplicaConfiguration) -> LayerTime:
        """Return the phases of one layer, per sample."""
        layers = configuration.layers
        choice = layers[index]
        before = layers[index - 1] if index else None
        after = layers[index + 1] if index + 1 < len(layers) else None
        return LayerTime(
            forward=self.forward(index, choice, before),
            backward=self.backward(index, choice, after),
            update=self.update(index, choice),
            parallelism=choice.num_threads * choice.num_replicas * configuration.num_replicas,
        )

    def epoch(self, configuration: ReplicaConfiguration, training: Training) -> EpochTime:
        """Return ``T_epoch`` of a configuration that breaks no constraint."""
        layers = self.layer_times(configuration)

        def total_s(seconds: Callable[[LayerTime], float]) -> float:
            return sum(seconds(layer) / layer.parallelism for layer in layers) * training.num_samples

        parts_s = {
            "read": self.reading_s(configuration, training),
            "forward": total_s(lambda layer: layer.forward.compute_s),
            "receive_activations": total_s(lambda layer: layer.forward.receive_s),
            "backward": total_s(lambda layer: layer.backward.compute_s),
            "receive_errors": total_s(lambda layer: layer.backward.receive_s),
            "update": total_s(lambda layer: layer.update.compute_s),
        }
        size = sum(_weight_bytes(self.stages, configuration, self.constants)) * training.num_samples
        return EpochTime(
            epoch_time_s=sum(parts_s.values()),
            parts_s=parts_s,
            layers=layers,
            read_bytes=size / training.samples_per_read,
            written_bytes=size / training.samples_per_write,
        )

    # -- from counts to seconds

    def _slowest(
        self, choice: LayerChoice, compute_s: Floats, source: tuple[Counts, LayerChoice] | None = None
    ) -> Phase:
        """Return the slowest segment of all replicas: threads interfere (eq. 9) and share the network card."""
        threads = choice.num_threads
        busy_s = self.constants.interference(threads) * compute_s
        if source is None:
            return Phase(compute_s=float(busy_s.max()))
        numbers, share = _received(*source, choice)
        byte_s = threads / self.constants.bandwidth_bytes_per_s
        receive_s = share * self.constants.latency_s(threads) + numbers * self.constants.number_bytes * byte_s
        r, p = np.unravel_index(np.argmax(busy_s + receive_s), receive_s.shape)
        return Phase(
            compute_s=float(busy_s[p]),
            receive_s=float(receive_s[r, p]),
            num_received=float(numbers.sum() / len(numbers)),
        )


def _received(counts: Counts, source: LayerChoice, choice: LayerChoice) -> tuple[Floats, Floats]:
    """Return, for every replica and segment, what a sample brings on average, and for which share of them anything.

    Replicas r and r' of neighbours meet in the same samples k, ``k = r modulo R`` and ``k = r' modulo R'``, if they are
    equal modulo ``g = gcd(R, R')``: then in ``g / R'`` of the samples of r. A worker has one segment of a layer (C3).
    """
    if choice.workers is source.workers:  # every replica meets its like alone, with every segment on the same worker
        choice = source = replace(choice, workers=choice.workers[:1])
    shared = gcd(choice.num_replicas, source.num_replicas)
    r_source, q = segments_beside(choice, source)
    needed = counts.sum(axis=1)
    numbers = np.tile(needed.astype(np.float64), (choice.num_replicas, 1))
    share = (numbers > 0).astype(np.float64)
    is_met = (q >= 0) & ((np.arange(choice.num_replicas)[:, np.newaxis] - r_source) % shared == 0)
    met = is_met * (shared / source.num_replicas)
    brought = counts[np.arange(choice.num_partitions), q]
    return numbers - met * brought, share * (1 - met * (brought == needed))
