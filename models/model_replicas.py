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
nothing. Left out: the servers' own work, and convergence.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import inf, lcm, log

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.replica_configuration import LayerChoice, ReplicaConfiguration
from planner.models.segments import Boundary, Counts, Partition, Scheme, Stage, count_boundary, remote_counts, stripes

__all__ = [
    "ByPartitions",
    "ByThreads",
    "ByWorkingSet",
    "Connections",
    "Constants",
    "EpochTime",
    "LayerTime",
    "Phase",
    "Reading",
    "ReplicaModel",
    "Training",
    "least_reading_s",
    "most_reading_s",
]

# -- constants -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByPartitions:
    """``C_muladd`` by P, where the cache effect was measured or fitted so."""

    seconds: Mapping[int, float]

    def __call__(self, working_set_bytes: float, num_partitions: int, /) -> float:
        """Return seconds; raise ModelError for a P that is not in the table."""
        if num_partitions not in self.seconds:
            known = ", ".join(map(str, self.seconds))
            raise ModelError(f"C_muladd is known for P = {known}, not for {num_partitions}. Add it.")
        return self.seconds[num_partitions]


@dataclass(frozen=True, slots=True)
class ByWorkingSet:
    """``C_muladd`` by the bytes that a segment's loop touches: straight lines over the logarithm, constant outside.

    >>> ByWorkingSet(((1e3, 1.0), (1e5, 3.0)))(1e5, 1)
    3.0
    """

    points: tuple[tuple[float, float], ...]

    def __call__(self, working_set_bytes: float, num_partitions: int, /) -> float:
        """Return seconds."""
        sizes, seconds = zip(*self.points, strict=True)
        return float(np.interp(log(max(working_set_bytes, 1)), np.log(sizes), seconds))


@dataclass(frozen=True, slots=True)
class ByThreads:
    """``C_interf`` (eq. 9) or ``C_ncost`` by H, straight lines between the points.

    >>> ByThreads(((1, 1.0), (16, 2.5)))(6)
    1.5
    """

    points: tuple[tuple[int, float], ...]

    def __call__(self, num_threads: int, /) -> float:
        """Return the factor or the seconds; raise ModelError outside the points."""
        threads, values = zip(*self.points, strict=True)
        if not threads[0] <= num_threads <= threads[-1]:
            raise ModelError(f"{num_threads} threads: known for {threads[0]} to {threads[-1]} only. Measure there.")
        return float(np.interp(num_threads, threads, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the canonical loops and the network take.

    Attributes
    ----------
    multiply_add_s
        ``C_muladd``, of a segment's working set in bytes (weights, what it reads, its neurons) and of P: the cache
        effect, which makes model parallelism super-linear.
    activation_s, error_s
        ``C_act`` and ``C_err``, of a neuron.
    bandwidth_bytes_per_s, number_bytes
        ``C_nbw / 8`` and ``C_bits / 8``.
    latency_s, interference
        ``C_ncost(H)``, and ``C_interf(H) >= 1``.
    """

    multiply_add_s: Callable[[float, int], float]
    activation_s: float
    error_s: float
    bandwidth_bytes_per_s: float
    latency_s: Callable[[int], float]
    number_bytes: float = 4.0
    interference: Callable[[int], float] = lambda _: 1.0


class Connections(StrEnum):
    """``W_c'(l,p)`` of eq. 7, the connections from layer l+1 to a segment.

    A padded or unpadded edge has fewer of them; the paper takes segments to have "roughly the same number".
    """

    COUNTED = "counted"
    EVEN = "even"  # in proportion to the segment's neurons


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
    scheme
        How layers are partitioned, see :data:`planner.models.segments.Scheme`.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        constants: Constants,
        *,
        scheme: Scheme = stripes,
        connections: Connections = Connections.COUNTED,
    ) -> None:
        self.stages = tuple(stages)
        self.constants = constants
        self._scheme = scheme
        self._connections = connections
        self._partition = cache(self._make_partition)
        self._boundary = cache(self._make_boundary)
        self._multiply_add_s = cache(self._make_multiply_add_s)

    def forward(self, index: int, choice: LayerChoice, before: LayerChoice | None = None) -> Phase:
        """Return eqs. 5 and 6 for layer ``index``; samples are at hand for the first layer."""
        p = choice.num_partitions
        compute_s = self._multiply_adds_s(index, p) + self._neurons(index, p) * self.constants.activation_s
        if index == 0 or before is None:
            return self._slowest(choice, compute_s)
        needed = self._boundary(index, before.num_partitions, p).needed
        return self._slowest(choice, compute_s, (needed, before))

    def backward(self, index: int, choice: LayerChoice, after: LayerChoice | None = None) -> Phase:
        """Return eq. 7 and its communication for layer ``index``; the last layer has no error terms to receive."""
        p = choice.num_partitions
        compute_s = self._neurons(index, p) * self.constants.error_s
        if index == len(self.stages) - 1 or after is None:
            return self._slowest(choice, compute_s)
        compute_s = self._multiply_add_s(index, p) * self._connections_above(index, p) + compute_s
        returned = self._boundary(index + 1, p, after.num_partitions).returned
        return self._slowest(choice, compute_s, (returned, after))

    def update(self, index: int, choice: LayerChoice) -> Phase:
        """Return eq. 8; weights are not communicated inside a replica."""
        return self._slowest(choice, self._multiply_adds_s(index, choice.num_partitions))

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
        """Return every layer's phases, per sample."""
        chosen = (None, *configuration.layers, None)
        return tuple(
            LayerTime(
                forward=self.forward(index, choice, chosen[index]),
                backward=self.backward(index, choice, chosen[index + 2]),
                update=self.update(index, choice),
                parallelism=choice.num_threads * choice.num_replicas * configuration.num_replicas,
            )
            for index, choice in enumerate(configuration.layers)
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

    # -- counts, by layer and partitions

    def _make_partition(self, index: int, num_segments: int) -> Partition:
        """Return the partition of a layer's output; of the samples for -1."""
        shape = self.stages[index].output_shape if index >= 0 else self.stages[0].input_shape
        return Partition.of(shape, num_segments, self._scheme)

    def _make_boundary(self, index: int, num_before: int, num_segments: int) -> Boundary:
        """Return what passes between a layer and the one before."""
        stage, before = self.stages[index], self._partition(index - 1, num_before)
        return count_boundary(stage, before, self._partition(index, num_segments))

    def _make_multiply_add_s(self, index: int, num_segments: int) -> Floats:
        """Return ``C_muladd`` of every segment, by its working set."""
        stage, partition = self.stages[index], self._partition(index, num_segments)
        weights = stage.num_weights * partition.num_channels / stage.output_shape[0]
        numbers = weights + self._boundary(index, 1, num_segments).needed[:, 0] + partition.num_neurons
        sizes = (numbers * self.constants.number_bytes).tolist()
        return np.array([self.constants.multiply_add_s(size, num_segments) for size in sizes])

    def _neurons(self, index: int, num_segments: int) -> Floats:
        """Return ``N_neuron(l,p)``."""
        return self._partition(index, num_segments).num_neurons.astype(np.float64)

    def _multiply_adds_s(self, index: int, num_segments: int) -> Floats:
        """Return ``C_muladd W_c(l,p)``."""
        return self._multiply_add_s(index, num_segments) * self._boundary(index, 1, num_segments).connections[:, 0]

    def _connections_above(self, index: int, num_segments: int) -> Floats:
        """Return ``W_c'(l,p)``."""
        if self._connections is Connections.COUNTED:
            return np.asarray(self._boundary(index + 1, num_segments, 1).connections[0], dtype=np.float64)
        stage = self.stages[index]
        return self.stages[index + 1].num_connections * self._neurons(index, num_segments) / stage.num_neurons

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
            num_received=float(numbers.sum() / choice.num_replicas),
        )


def _received(counts: Counts, source: LayerChoice, choice: LayerChoice) -> tuple[Floats, Floats]:
    """Return, for every replica and segment, what a sample brings on average, and for which share of them anything.

    The residues of k modulo both numbers of replicas stand for all samples.
    """
    num_samples = lcm(choice.num_replicas, source.num_replicas)
    numbers = np.zeros((choice.num_replicas, choice.num_partitions))
    share = np.zeros_like(numbers)
    for k in range(num_samples):
        r = k % choice.num_replicas
        remote = remote_counts(counts, choice.workers[r], source.workers[k % source.num_replicas])
        numbers[r] += remote
        share[r] += remote > 0
    own = num_samples / choice.num_replicas
    return numbers / own, share / own
