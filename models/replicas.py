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
nothing, as in the paper; :mod:`planner.families.model_replicas.cost` charges them. Left out: the servers' own work,
convergence, and memory, which :mod:`planner.models.replica_memory` has.

*States.* A state of a layer is its partitions P, its replicas R and its threads H. Costs of states are seconds a sample
of one model replica, each phase divided by its own layer's parallelism ``H R``: N_mr divides all of them alike.

*Why two layers are enough* (section 5.3). What a segment receives depends on which segment of the neighbouring layer
shares its worker, and on nothing else of the map. Two layers' maps are thus a matching between their segments, the
shared workers. Workers are equal, so any matchings between neighbours, made one by one, are the matchings of a whole
map: name the workers of the first layer as they come, and give each segment of the next layer the name of its partner;
those without a partner take free names, which exist since ``P R <= N_wr``. (A free worker may hold a segment of the
layer before: that adds a partner, which only takes messages away. For the same reason a largest matching is among the
best, and needs no more workers than the larger of both layers.) Hence the best matching of a pair of states depends on
neither earlier layers nor N_wr.

*Who may be partners.* Sample k is on replica ``k mod R`` of a layer, so that replicas r and r' of neighbours meet in
the same samples if ``r = r' modulo g``, ``g = gcd(R, R')``: then in ``g / R'`` of the samples of r, else never. A
partner that is never met saves nothing. The pair of layers falls apart into g equal problems, one for each remainder.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise
from math import gcd, inf
from typing import Self

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError, NoAnswerError
from planner.frozen import frozen
from planner.models.replica_segments import (
    Constants,
    Counts,
    Ints,
    LayerChoice,
    ReplicaConfiguration,
    SegmentWork,
    Stage,
    StripedLayer,
    num_stripes,
    segments_beside,
    stripe_sizes,
)

_MOST_KEPT = 1_000_000  # pairs of states of two layers, whose bounds are kept
# Two matrices (seconds of the later layer's forward phase, of the earlier one's backward phase) by later segment (row)
# and earlier segment (column) -> the column of every row, and the least sum of the worst entries of both.
Assign = Callable[[Floats, Floats], tuple[tuple[int, ...], float]]

# -- an epoch ----------------------------------------------------------------------------------------------------------


class Reading(StrEnum):
    """The first term of ``T_epoch``: how long the reading of weights takes, over an epoch."""

    PRINTED = "printed"  # M_w N_sample / N_read: the reads of all replicas, one after the other, stall each of them
    REPLICA = "replica"  # a replica trains N_sample / N_mr samples, and waits for its own reads only
    SERIALISED = "serialised"  # as fast as the replicas' and the servers' links allow: the physical limit


@frozen
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


@frozen
class Phase:
    """Seconds of a sample in one phase of a layer, on its slowest segment; and what all its segments receive."""

    compute_s: float
    receive_s: float = 0.0
    num_received: float = 0.0

    @property
    def total_s(self) -> float:
        """Both, one after the other."""
        return self.compute_s + self.receive_s


@frozen
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


@frozen
class EpochTime:
    """``T_epoch``; ``parts_s`` sums to it. ``read_bytes`` and ``written_bytes`` are those of all replicas."""

    epoch_time_s: float
    parts_s: Mapping[str, float]
    layers: tuple[LayerTime, ...]
    read_bytes: float
    written_bytes: float


def most_reading_s(stages: Sequence[Stage], configuration: ReplicaConfiguration, constants: Constants) -> float:
    """Return ``M_max`` of eq. 10: all replicas read from one server at once.

    Parameters
    ----------
    stages
        The layers of the chain.
    configuration
        Servers, replicas, workers and every layer's choice; as many layers as there are stages.
    constants
        What the canonical loops and the network take.
    """
    return _reading_s(stages, configuration, constants, configuration.num_replicas)


def least_reading_s(stages: Sequence[Stage], configuration: ReplicaConfiguration, constants: Constants) -> float:
    """Return ``M_min`` of eq. 11: one replica reads with all its workers from all servers.

    Parameters
    ----------
    stages
        The layers of the chain.
    configuration
        Servers, replicas, workers and every layer's choice; as many layers as there are stages.
    constants
        What the canonical loops and the network take.
    """
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
        """Return eqs. 5 and 6 for layer ``index``; samples are at hand for the first layer.

        Parameters
        ----------
        index
            Of the layer, from 0.
        choice, before
            Of the layer, and of the one before it; without one, samples are at hand.
        """
        p = choice.num_partitions
        compute_s = self.work.forward_s(index, p)
        if index == 0 or before is None:
            return self._slowest(choice, compute_s)
        needed = self.work.boundary(index, before.num_partitions, p).needed
        return self._slowest(choice, compute_s, (needed, before))

    def backward(self, index: int, choice: LayerChoice, after: LayerChoice | None = None) -> Phase:
        """Return eq. 7 and its communication for layer ``index``; the last layer has no error terms to receive.

        Parameters
        ----------
        index
            Of the layer, from 0.
        choice, after
            Of the layer, and of the one after it; without one, nothing is received.
        """
        p = choice.num_partitions
        compute_s = self.work.backward_s(index, p)
        if index == len(self.stages) - 1 or after is None:
            return self._slowest(choice, compute_s)
        returned = self.work.boundary(index + 1, p, after.num_partitions).returned
        return self._slowest(choice, compute_s, (returned, after))

    def update(self, index: int, choice: LayerChoice) -> Phase:
        """Return eq. 8; weights are not communicated inside a replica.

        Parameters
        ----------
        index
            Of the layer, from 0.
        choice
            Of the layer.
        """
        return self._slowest(choice, self.work.update_s(index, choice.num_partitions))

    def reading_s(self, configuration: ReplicaConfiguration, training: Training) -> float:
        """Return the first term of ``T_epoch``; raise ModelError for a mix outside 0 to 1.

        Parameters
        ----------
        configuration
            Servers, replicas, workers and every layer's choice; as many layers as there are stages.
        training
            The epoch, and how often a replica reads, in samples.

        Raises
        ------
        ModelError
            For a mix outside 0 to 1.
        """
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
        """Return every layer's phases, per sample; layers that are alike, neighbours included, are costed once.

        Parameters
        ----------
        configuration
            Servers, replicas, workers and every layer's choice; as many layers as there are stages.
        """
        numbers: dict[LayerChoice, int] = {}  # a choice may be large: it is looked up once, its number thereafter
        chosen = [-1, *(numbers.setdefault(one, len(numbers)) for one in configuration.layers), -1]
        made: dict[tuple[int, ...], LayerTime] = {}
        times = []
        for index in range(len(configuration.layers)):
            key = (self.work.alike(index), *chosen[index : index + 3])
            if key not in made:
                made[key] = self.layer_time(index, configuration)
            times.append(made[key])
        return tuple(times)

    def layer_time(self, index: int, configuration: ReplicaConfiguration) -> LayerTime:
        """Return the phases of one layer, per sample.

        Parameters
        ----------
        index
            Of the layer, from 0.
        configuration
            Servers, replicas, workers and every layer's choice; as many layers as there are stages.
        """
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
        """Return ``T_epoch`` of a configuration that breaks no constraint.

        Parameters
        ----------
        configuration
            Servers, replicas, workers and every layer's choice; as many layers as there are stages.
        training
            The epoch, and how often a replica exchanges weights, in samples.
        """
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


# -- what may be chosen for a layer, and its extreme segments ----------------------------------------------------------


@frozen(kw_only=False, eq=False)
class LayerStates:
    """What may be chosen for a layer, by index: P, R and H, in rising order of the workers that they need."""

    partitions: Ints
    replicas: Ints
    threads: Ints

    @property
    def workers(self) -> Ints:
        """``P R``."""
        return self.partitions * self.replicas

    def at(self, index: int) -> tuple[int, int, int]:
        """Return P, R and H of one state.

        Parameters
        ----------
        index
            Of the state, in rising order of the workers that it needs.
        """
        return int(self.partitions[index]), int(self.replicas[index]), int(self.threads[index])

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int]]) -> "LayerStates":
        """Return the states of rows (P, R, H).

        Parameters
        ----------
        rows
            P, R and H of every state, in any order; at least one.
        """
        ordered = np.array(sorted(rows, key=lambda row: (row[0] * row[1], row)), dtype=np.int64)
        return cls(*ordered.T)


def all_states(shape: tuple[int, ...], num_workers: int, threads: Sequence[int]) -> LayerStates:
    """Return every P, R and H of a layer on so many workers.

    More partitions than rows (or neurons) are left out: the surplus segments are empty.

    Parameters
    ----------
    shape
        Of the layer's output: channels, rows and columns, or neurons.
    num_workers
        Of a replica; >= 1.
    threads
        Numbers of threads that may run, in any order.
    """
    most = min(num_workers, num_stripes(shape))
    counts = num_workers // np.arange(1, most + 1)  # of replicas, by P
    partitions = np.repeat(np.arange(1, most + 1), counts)
    replicas = np.arange(1, partitions.size + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort((partitions, partitions * replicas))  # as LayerStates.of has them; R follows from P and P R
    rising = np.sort(np.asarray(threads, dtype=np.int64))
    return LayerStates(
        partitions=np.repeat(partitions[order], rising.size),
        replicas=np.repeat(replicas[order], rising.size),
        threads=np.tile(rising, order.size),
    )


def worthwhile_threads(model: ReplicaModel, threads: Sequence[int], *, is_memory_ample: bool = True) -> tuple[int, ...]:
    """Return the numbers of threads of which one is best for any layer, whatever its neighbours.

    A phase's share of H threads is ``(C_interf(H) U + C_ncost(H) share + A C_bits H / C_nbw) / (H R)``: the bytes cost
    the same for every H, and the rest falls with ``C_interf / H`` and ``C_ncost / H``. An H for which another one has
    both no larger is never needed (the larger H of two that are alike stays). A worker holds the outputs of H samples,
    so that where memory is not ample only a smaller H may take the place of another: a larger one is dearer.

    Parameters
    ----------
    model
        Whose constants say how threads interfere, and what a message waits.
    threads
        Numbers of threads to choose from; >= 1 each.
    is_memory_ample
        Whether every choice fits, so that only seconds count.
    """
    constants = model.constants
    number = np.asarray(threads, dtype=np.int64)
    busy = np.array([constants.interference(h) / h for h in threads])
    waiting = np.array([constants.latency_s(h) / h for h in threads])
    is_as_fast = (busy[:, np.newaxis] >= busy) & (waiting[:, np.newaxis] >= waiting)  # [H, the other one]
    if is_memory_ample:
        is_alike = (busy[:, np.newaxis] == busy) & (waiting[:, np.newaxis] == waiting)
        is_beaten = is_as_fast & (~is_alike | (number > number[:, np.newaxis]))
    else:
        is_beaten = is_as_fast & (number < number[:, np.newaxis])
    return tuple(h for h, is_one in zip(threads, is_beaten.any(axis=1).tolist(), strict=True) if not is_one)


@frozen(kw_only=False, eq=False)
class PhaseExtremes:
    """A phase that receives messages, by P: two of its segments (rows 0 and 1), and the least of any segment.

    The segment that computes most, and that which receives most. ``seconds`` is computation on one thread; ``numbers``
    what comes in from all segments of the neighbour.
    """

    seconds: Floats
    numbers: Floats
    least_s: Floats
    least_numbers: Floats

    @classmethod
    def of(cls, partitions: Ints, stripes: StripedLayer, seconds: Floats, numbers: Counts) -> Self:
        """Return a phase for some numbers of partitions, from what each stripe computes and receives.

        Parameters
        ----------
        partitions
            Numbers of partitions in rising order, shape (numbers,).
        stripes
            The segments of the layer, P after P.
        seconds, numbers
            What each of them computes on one thread, and receives of a sample.
        """
        extremes = np.zeros((6, int(partitions.max()) + 1))
        extremes[:, partitions] = (
            stripes.most(seconds),
            stripes.most_where_most(seconds, numbers),
            stripes.most_where_most(numbers, seconds),
            stripes.most(numbers),
            stripes.least(seconds),
            stripes.least(numbers),
        )
        return cls(extremes[:2], extremes[2:4], extremes[4], extremes[5])


@frozen(kw_only=False, eq=False)
class LayerExtremes:
    """The extreme segments of a layer by P, which bounds are made of: forward, backward, the longest update, neurons.

    ``largest``: the neurons of the largest segment.
    """

    forward: PhaseExtremes
    backward: PhaseExtremes
    update_s: Floats
    largest: Floats

    @classmethod
    def of(cls, work: SegmentWork, layer: int, partitions: Ints) -> Self:
        """Return a layer for some numbers of partitions, in rising order: all of them at once.

        Parameters
        ----------
        work
            What every segment computes and exchanges.
        layer
            Its index, from 0.
        partitions
            Numbers of partitions in rising order, shape (numbers,).
        """
        stripes = StripedLayer.of(work, layer, partitions)
        update_s, largest = np.zeros((2, int(partitions.max()) + 1))
        update_s[partitions], largest[partitions] = stripes.most(stripes.update_s), stripes.most(stripes.size)
        return cls(
            forward=PhaseExtremes.of(partitions, stripes, stripes.forward_s, stripes.needed),
            backward=PhaseExtremes.of(partitions, stripes, stripes.backward_s, stripes.returned),
            update_s=update_s,
            largest=largest,
        )


# -- costs of the states of one layer, and of two neighbours under their best relative map -----------------------------


class ReplicaPairs:
    """What every state of a layer, and every pair of states of neighbours, costs.

    Parameters
    ----------
    states
        Of every layer.
    assign
        Finds the best matching, see :data:`Assign`.
    is_over
        Whether to stop, asked before every layer's tables are made.

    Raises
    ------
    NoAnswerError
        If the time was over before.
    """

    def __init__(
        self,
        model: ReplicaModel,
        states: Sequence[LayerStates],
        assign: Assign,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model = model
        self.states = tuple(states)
        self._assign = assign
        self._best: dict[tuple[int, int, int], tuple[float, tuple[int, ...]]] = {}
        self._tight: dict[int, Floats] = {}
        distinct = {id(one): one for one in self.states}  # equal layers share their states
        threads = {h for one in distinct.values() for h in np.unique(one.threads).tolist()}
        constants, size = model.constants, max(threads) + 1
        self._busy, self._waiting = np.zeros(size), np.zeros(size)  # C_interf / H and C_ncost / H, by H
        for h in sorted(threads):
            self._busy[h], self._waiting[h] = constants.interference(h) / h, constants.latency_s(h) / h
        self._number_s = constants.number_bytes / constants.bandwidth_bytes_per_s
        self._layers: list[LayerExtremes] = []
        made: dict[tuple[Hashable, int], LayerExtremes] = {}
        for layer, one in enumerate(self.states):
            key = (model.work.alike(layer), id(one))  # equal layers are made once
            if key not in made:
                if is_over():
                    raise NoAnswerError("the time limit came before the layers were costed; raise --time-limit.")
                made[key] = LayerExtremes.of(model.work, layer, np.unique(one.partitions))
            self._layers.append(made[key])
        first: dict[Hashable, int] = {}
        self._first_alike = [
            first.setdefault((model.work.alike(layer - 1), model.work.alike(layer), *map(id, pair)), layer)
            for layer, pair in enumerate(pairwise(self.states), start=1)
        ]
        self._first_alike.insert(0, 0)

    # -- one layer

    def weight_bytes(self, layer: int) -> Floats:
        """Return what a model replica reads of a layer in each state: its weights, once for each of its replicas.

        Parameters
        ----------
        layer
            Its index, from 0.
        """
        size_bytes = self.model.stages[layer].num_weights * self.model.constants.number_bytes
        return np.asarray(self.states[layer].replicas * size_bytes, dtype=np.float64)

    def own_s(self, layer: int) -> Floats:
        """Return what each state costs whatever the neighbours: the update, and a phase without messages.

        The samples are at hand for the first layer; the last one receives no error terms.

        Parameters
        ----------
        layer
            Its index, from 0.
        """
        states = self.states[layer]
        layer_of = self._layers[layer]
        seconds = layer_of.update_s[states.partitions]
        if layer == 0:
            seconds = seconds + layer_of.forward.seconds[0, states.partitions]
        if layer == len(self.states) - 1:
            seconds = seconds + layer_of.backward.seconds[0, states.partitions]
        return np.asarray(self._busy[states.threads] * seconds / states.replicas)

    def floor_s(self, layer: int) -> Floats:
        """Return no more than what each state costs with any neighbours: all phases, with messages that nothing saves.

        If a neighbour has fewer segments, ``P' R' < P R``, some segment has no partner and receives all it needs. Else
        a partner brings at most ``min(1, P' / P)`` of the neighbour's largest segment, since
        ``g / R' <= R / R' <= P' / P``: of n rows at most ``(n + P - 1) / P``. All of it falls as ``1 / R``.

        Parameters
        ----------
        layer
            Its index, from 0.
        """
        states, last = self.states[layer], len(self.states) - 1
        p, busy, floor_s = states.partitions, self._busy[states.threads], self.own_s(layer)
        phases = []  # with the shape of the neighbour's output
        if layer > 0:
            phases.append((self._layers[layer].forward, self.model.work.shape_before(layer)))
        if layer < last:
            phases.append((self._layers[layer].backward, self.model.stages[layer + 1].output_shape))
        for phase, neighbour in phases:
            rows = num_stripes(neighbour)
            partner = stripe_sizes(neighbour, 1)[0] / rows * (rows + p - 1) / p
            kept = busy * phase.seconds[:, p] + self._number_s * np.maximum(phase.numbers[:, p] - partner, 0.0)
            alone = self._alone_s(phase, states)
            seconds = np.maximum(busy * phase.seconds[0, p], np.minimum(kept.max(axis=0), alone))
            floor_s = floor_s + seconds / states.replicas
        return np.asarray(floor_s)

    def _alone_s(self, phase: PhaseExtremes, states: LayerStates) -> Floats:
        """Return no more than the seconds of a segment without a partner."""
        p, h = states.partitions, states.threads
        receives = phase.least_numbers[p] > 0
        return np.asarray(
            self._busy[h] * phase.least_s[p] + self._waiting[h] * receives + self._number_s * phase.least_numbers[p]
        )

    # -- two neighbours

    def bound_s(self, layer: int, before: Ints, after: Ints) -> Floats:
        """Return no more than the cost of every pair of the given states of a layer and of the one before, [s', s].

        Parameters
        ----------
        layer
            The index of the later one of two neighbours; >= 1.
        before, after
            Indices of states of the layer before and of the layer itself.
        """
        earlier, later = self._some(layer - 1, before), self._some(layer, after)
        shared = np.gcd(earlier.replicas[:, np.newaxis], later.replicas)
        forward_s = self._phase_bound_s(
            self._layers[layer].forward, later, earlier, shared.T, self._layers[layer - 1].largest
        ).T
        backward_s = self._phase_bound_s(
            self._layers[layer - 1].backward, earlier, later, shared, self._layers[layer].largest
        )
        return np.asarray(forward_s + backward_s)

    def _phase_bound_s(
        self, phase: PhaseExtremes, states: LayerStates, neighbours: LayerStates, shared: Ints, largest: Floats
    ) -> Floats:
        """Return the least seconds of a phase, by state (row) and the neighbour's state (column)."""
        p, h = states.partitions, states.threads
        met = shared / neighbours.replicas  # the share of a segment's samples in which it meets its partner
        partner = largest[neighbours.partitions]
        worst = np.zeros(met.shape)
        for seconds, numbers in zip(phase.seconds[:, p], phase.numbers[:, p], strict=True):
            needed = numbers[:, np.newaxis]
            is_spared = partner >= needed  # the partner may have all of it: then nothing comes, and no latency
            some = self._busy[h] * seconds
            late = (self._waiting[h] * (numbers > 0))[:, np.newaxis] * (1 - met * is_spared)
            one = some[:, np.newaxis] + late + self._number_s * (needed - met * np.minimum(needed, partner))
            np.maximum(worst, one, out=worst)
        has_singles = states.workers[:, np.newaxis] > neighbours.workers
        alone = self._alone_s(phase, states)[:, np.newaxis]
        np.maximum(worst, np.where(has_singles, alone, 0.0), out=worst)
        return np.asarray(worst / states.replicas[:, np.newaxis])

    def num_places(self, layer: int, before: Ints, after: Ints) -> Ints:
        """Return the rows of the matrices that :meth:`pair_s` makes of every pair of states, [s', s].

        Parameters
        ----------
        layer
            The index of the later one of two neighbours; >= 1.
        before, after
            Indices of states of the layer before and of the layer itself.
        """
        earlier, later = self._some(layer - 1, before), self._some(layer, after)
        shared = np.gcd(earlier.replicas[:, np.newaxis], later.replicas)
        return np.asarray(np.maximum(earlier.workers[:, np.newaxis], later.workers) // shared)

    def all_bounds_s(self, kept: Sequence[Ints], is_over: Callable[[], bool] = lambda: False) -> list[Floats] | None:
        """Return :meth:`bounds_s` of every layer but the first for the states kept of each; equal layers share them.

        None if the search was over before.

        Parameters
        ----------
        kept
            Indices of the states that are kept of every layer.
        is_over
            Whether to stop, asked before each table is made.
        """
        made: dict[tuple[int, int, int], Floats] = {}
        found = []
        for layer in range(1, len(kept)):
            key = (self._first_alike[layer], id(kept[layer - 1]), id(kept[layer]))
            if key not in made:
                if is_over():
                    return None
                made[key] = self.bounds_s(layer, kept[layer - 1], kept[layer])
            found.append(made[key])
        return found

    def bounds_s(self, layer: int, before: Ints, after: Ints) -> Floats:
        """Return :meth:`bound_s`, and the exact cost of what :meth:`pair_s` was asked before.

        Parameters
        ----------
        layer
            The index of the later one of two neighbours; >= 1.
        before, after
            Indices of states of the layer before and of the layer itself.
        """
        layer = self._first_alike[layer]
        every = self.states[layer - 1].workers.size, self.states[layer].workers.size
        if every[0] * every[1] > _MOST_KEPT:
            bounds = self.bound_s(layer, before, after)
            place = {int(state): index for index, state in enumerate(before)}
            column = {int(state): index for index, state in enumerate(after)}
            for (at, one, other), (cost, _) in self._best.items():
                if at == layer and one in place and other in column:
                    bounds[place[one], column[other]] = cost
            return bounds
        if layer not in self._tight:
            self._tight[layer] = self.bound_s(layer, *(np.arange(number) for number in every))
        return self._tight[layer][np.ix_(before, after)]

    def pair_s(self, layer: int, before: int, after: int) -> float:
        """Return the exact cost of a pair of states: both phases between a layer and the one before, mapped best.

        Parameters
        ----------
        layer
            The index of the later one of two neighbours; >= 1.
        before, after
            The index of a state of the layer before, and of one of the layer itself.
        """
        return self._pair(layer, before, after)[0]

    def _pair(self, layer: int, before: int, after: int) -> tuple[float, tuple[int, ...]]:
        """Return the cost of a pair and its matching, of one remainder of the replicas."""
        layer = self._first_alike[layer]
        key = (layer, before, after)
        if key not in self._best:
            columns, cost = self._assign(*self._phases_s(layer, before, after))
            self._best[key] = (cost, columns)
            if layer in self._tight:
                self._tight[layer][before, after] = cost
        return self._best[key]

    def _phases_s(self, layer: int, before: int, after: int) -> tuple[Floats, Floats]:
        """Return the seconds of the forward phase of a layer and of the backward phase of the one before.

        By segment of the layer (row) and partner in the layer before (column), of replicas with one remainder; a row or
        a column beyond a layer's segments means no partner. Rows and columns are by partition, then by replica.
        """
        p_before, r_before, _ = earlier = self.states[layer - 1].at(before)
        p_after, r_after, _ = later = self.states[layer].at(after)
        shared = gcd(r_before, r_after)
        boundary = self.model.work.boundary(layer, p_before, p_after)
        copies, copies_before = r_after // shared, r_before // shared
        size = max(p_after * copies, p_before * copies_before)
        forward_s = self._with_partner_s(
            later, self.model.work.forward_s(layer, p_after), boundary.needed, shared / r_before
        )
        backward_s = self._with_partner_s(
            earlier, self.model.work.backward_s(layer - 1, p_before), boundary.returned, shared / r_after
        )
        return (_square(forward_s, copies, copies_before, size), _square(backward_s, copies_before, copies, size).T)

    def _with_partner_s(self, state: tuple[int, int, int], seconds: Floats, counts: Counts, met: float) -> Floats:
        """Return the seconds of every segment (row) with every partner (column; the last column: none)."""
        _, replicas, threads = state
        needed = counts.sum(axis=1, keepdims=True)
        brought = np.hstack((counts, np.zeros_like(needed)))
        share = (needed > 0) * (1 - met * (brought == needed))
        numbers = needed - met * brought
        busy_s = self._busy[threads] * seconds[:, np.newaxis]
        return np.asarray((busy_s + self._waiting[threads] * share + self._number_s * numbers) / replicas)

    # -- a whole chain

    def choices(self, path: Sequence[int]) -> tuple[LayerChoice, ...]:
        """Return the choices of a chain of states, every segment on the worker of its partner in the layer before.

        Parameters
        ----------
        path
            The index of a state of every layer.
        """
        workers: list[Ints] = []  # by layer, [replica, partition]
        for layer, state in enumerate(path):
            p, r, _ = self.states[layer].at(state)
            placed = np.full((r, p), -1, dtype=np.int64)
            if layer:  # every segment that has a partner onto its worker, for every remainder of the replicas
                before = workers[-1]
                r_before, p_before = before.shape
                shared = gcd(r, r_before)
                copies, copies_before = r // shared, r_before // shared
                columns = self._pair(layer, path[layer - 1], state)[1]
                for row, column in enumerate(columns[: p * copies]):
                    if column < p_before * copies_before:
                        (own, copy), (other, copy_before) = divmod(row, copies), divmod(column, copies_before)
                        replicas = slice(copy_before * shared, (copy_before + 1) * shared)
                        placed[copy * shared : (copy + 1) * shared, own] = before[replicas, other]
            taken = set(placed[placed >= 0].tolist())
            free = iter(worker for worker in range(p * r + len(taken)) if worker not in taken)
            flat = placed.ravel()
            flat[flat < 0] = [next(free) for _ in range(int((flat < 0).sum()))]
            workers.append(placed)
        return tuple(
            LayerChoice(
                num_threads=self.states[layer].at(state)[2],
                workers=tuple(tuple(row) for row in workers[layer].tolist()),
            )
            for layer, state in enumerate(path)
        )

    def _some(self, layer: int, indices: Ints) -> LayerStates:
        states = self.states[layer]
        return LayerStates(states.partitions[indices], states.replicas[indices], states.threads[indices])


def _square(seconds: Floats, copies: int, copies_of_partner: int, size: int) -> Floats:
    """Return the seconds of every copy of a segment with every copy of a partner, filled up to a square.

    A partner beyond those that exist is none; a segment beyond them takes no time.
    """
    square = np.zeros((size, size))
    rows, columns = len(seconds) * copies, (seconds.shape[1] - 1) * copies_of_partner
    with_partner = square[:rows, :columns].reshape(len(seconds), copies, -1, copies_of_partner)  # a view: no copies of
    with_partner[...] = seconds[:, np.newaxis, :-1, np.newaxis]  # what may be thousands of rows and columns
    square[:rows, columns:] = np.repeat(seconds[:, -1:], copies, axis=0)
    return square
