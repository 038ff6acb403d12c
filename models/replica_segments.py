"""Every segment of a layer cut into stripes, for many numbers of partitions at once: counts and seconds in flat arrays.

The numbers are those of :class:`SegmentWork`, which makes one number of partitions after
the other and keeps each of its segments: of a layer of n neurons, ``n^2 / 2`` of them. Here no Python loop runs over
partitions, and segments of equal size stand for each other where size is all that counts: of a fully-connected layer
below another one (or below nothing) two segments of each P are enough, n mod P of ``n // P + 1`` neurons and the others
of ``n // P``. Elsewhere every stripe has a place, and there are at most half the square of an image's rows.

What the rows ``[a, b)`` read is counted from sums over single rows: windows move on monotonously, so that a row shares
with all those before it what it shares with the last one,
``|union| = sum over [a, b) of |row| - sum over [a, b - 1) of |row and the next one|``.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache, lru_cache
from math import log, prod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.dnn import Dnn, Layer, Window
from planner.errors import ModelError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """P, H, R and the map of one layer: ``workers[r][p]`` runs all threads of segment p of the layer's replica r."""

    num_threads: int
    workers: tuple[tuple[int, ...], ...]

    @classmethod
    def spread(cls, num_partitions: int, *, num_threads: int = 1, num_replicas: int = 1) -> Self:
        """Return the map of segments to workers in order, replica after replica."""
        rows = (range(r * num_partitions, (r + 1) * num_partitions) for r in range(num_replicas))
        return cls(num_threads=num_threads, workers=tuple(tuple(row) for row in rows))

    @classmethod
    def of_map(cls, entries: Iterable[tuple[int, int, int, int]]) -> Self:
        """Return the choice that a map ``f(p, h, r)`` makes: rows of partition, thread, replica (from 0) and worker.

        Raises
        ------
        ModelError
            For a segment that is mapped twice, threads of a segment on two workers (C4), or a segment left out.
        """
        at: dict[tuple[int, int, int], int] = {}
        home: dict[tuple[int, int], tuple[int, int]] = {}
        for p, h, r, worker in entries:
            if (p, h, r) in at:
                what = f"partition {p}, thread {h}, replica {r} is mapped twice"
                raise ModelError(f"C4: {what}, to workers {at[p, h, r]} and {worker}. Map it once.")
            at[p, h, r] = worker
            thread, place = home.setdefault((p, r), (h, worker))
            if place != worker:
                what = f"threads {thread} and {h} of partition {p}, replica {r} are on workers {place} and {worker}"
                raise ModelError(f"C4: {what}. All threads of a segment run on one worker.")
        if not at:
            raise ModelError("C4: the map is empty. Map every partition, thread and replica to a worker.")
        partitions, threads, replicas = (1 + max(key[axis] for key in at) for axis in range(3))
        if len(at) != partitions * threads * replicas:
            raise ModelError(
                f"the map has {len(at)} of {partitions} partitions x {threads} threads x {replicas} replicas = "
                f"{partitions * threads * replicas} entries. Map every one."
            )
        rows = (tuple(at[p, 0, r] for p in range(partitions)) for r in range(replicas))
        return cls(num_threads=threads, workers=tuple(rows))

    @property
    def num_partitions(self) -> int:
        """``P(l)``."""
        return len(self.workers[0])

    @property
    def num_replicas(self) -> int:
        """``R(l)``."""
        return len(self.workers)


def segments_beside(choice: LayerChoice, other: LayerChoice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the replica and the partition of another layer that share each segment's worker, [r, p]; -1 for none."""
    places = np.ravel(other.workers)
    order = np.argsort(places, kind="stable")
    workers = np.asarray(choice.workers)
    at = order[np.maximum(np.searchsorted(places[order], workers, side="right") - 1, 0)]
    is_shared = places[at] == workers
    replicas, partitions = np.divmod(at, other.num_partitions)
    return np.where(is_shared, replicas, -1), np.where(is_shared, partitions, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfiguration:
    """``N_ps`` servers, ``N_mr`` model replicas of ``N_wr`` workers each, and the choice of every layer."""

    num_servers: int
    num_replicas: int
    num_workers: int
    layers: tuple[LayerChoice, ...]

    @classmethod
    def uniform(
        cls, *, num_workers: int, num_replicas: int, num_servers: int, num_threads: int, num_layers: int
    ) -> Self:
        """Return <workers, replicas, servers> of the paper's section 6: every layer partitioned over all workers."""
        layer = LayerChoice.spread(num_workers, num_threads=num_threads)
        return cls(
            num_servers=num_servers, num_replicas=num_replicas, num_workers=num_workers, layers=(layer,) * num_layers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``N`` machines of ``K`` cores."""

    num_machines: int
    num_cores: int


def broken_constraints(
    configuration: ReplicaConfiguration, limits: Limits, stages: Sequence["Stage"]
) -> tuple[str, ...]:
    """Return which of C1 to C4 a configuration breaks, each with its numbers; nothing if it may run.

    C4 holds by the form of :class:`LayerChoice`; what remains of it is that a layer's replicas have equal segments.
    """
    servers, replicas, workers = configuration.num_servers, configuration.num_replicas, configuration.num_workers
    if min(servers, replicas, workers) < 1:
        return (f"C1: {servers} servers, {replicas} replicas and {workers} workers; each is at least 1.",)
    if len(configuration.layers) != len(stages):
        return (f"{len(configuration.layers)} layers are configured; the network has {len(stages)}.",)
    faults = []
    if (used := servers + replicas * workers) > limits.num_machines:
        faults.append(
            f"C1: {servers} servers + {replicas} replicas x {workers} workers = {used} machines; "
            f"there are {limits.num_machines}."
        )
    for stage, choice in zip(stages, configuration.layers, strict=True):
        faults += [f"{name}: layer {stage.name!r}: {what}" for name, what in _broken(choice, limits, workers)]
    return tuple(faults)


def _broken(choice: LayerChoice, limits: Limits, num_workers: int) -> Iterator[tuple[str, str]]:
    """Yield which constraint the choice of one layer breaks, and how."""
    if not 1 <= choice.num_threads <= limits.num_cores:
        yield "C2", f"{choice.num_threads} threads on machines of {limits.num_cores} cores."
    sizes = [len(row) for row in choice.workers] or [0]
    if min(sizes) < 1 or min(sizes) != max(sizes):
        yield "C4", f"its replicas have {sizes} segments; each needs as many as the others, at least 1."
        return
    if (needed := sum(sizes)) > num_workers:
        yield "C3", f"{sizes[0]} partitions x {len(sizes)} replicas = {needed} workers; a replica has {num_workers}."
    first: dict[int, str] = {}
    for r, row in enumerate(choice.workers):
        for p, worker in enumerate(row):
            segment = f"partition {p}, replica {r}"
            if not 0 <= worker < num_workers:
                yield "C3", f"{segment} is on worker {worker}; there are 0 to {num_workers - 1}."
            elif (other := first.setdefault(worker, segment)) != segment:
                yield "C3", f"{other} and {segment} are both on worker {worker}."


def check(configuration: ReplicaConfiguration, limits: Limits, stages: Sequence["Stage"]) -> None:
    """Raise ModelError, with every constraint that a configuration breaks."""
    if faults := broken_constraints(configuration, limits, stages):
        raise ModelError("\n".join(faults))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """Measured seconds of a whole layer, of a sample on one thread, in place of counts times ``C_muladd``.

    ``error_s`` is the time of this layer's error terms, which the layer above sends down: none for the last layer.
    Segments share them in proportion to their connections, or to their neurons in a layer that has none.
    """

    forward_s: float
    error_s: float
    update_s: float


# --- Segments of partitioned layers: who reads whose neurons, counted exactly for any partition and any mapping
# Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 4.1 and footnotes 3
# and 4. Everything between two layers that depends on their partitions, and not on where segments run, is in three
# small
# matrices (:class:`Boundary`); a mapping of segments to workers then says which of their entries are remote
# (:func:`remote_counts`).

Counts = NDArray[np.int64]
_Matrix = NDArray[np.float64]

# Footnote 3: any partition will do. (output shape, number of segments) -> segment of every neuron, in that shape.
Scheme = Callable[[tuple[int, ...], int], NDArray[np.intp]]

_CONVOLUTION, _POOLING, _FULLY_CONNECTED = "convolution", "pooling", "fully_connected"
_NEURON_BY_NEURON = {"activation", "batch_norm", "dropout", "flatten"}  # these stay with the layer that they follow


# -- layers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A layer of the Adam model: a convolution, a pool or a fully-connected layer, with what follows neuron by neuron.

    Attributes
    ----------
    num_connections
        ``W_c(l)``, multiply-adds of a sample; 0 for a pool.
    num_weights
        ``W_s(l)``, what is stored and read from the parameter servers. For a convolution the two
        differ by the number of output positions.
    """

    name: str
    kind: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    num_connections: int = 0
    num_weights: int = 0
    window: Window | None = None

    @property
    def num_neurons(self) -> int:
        """Outputs of a sample."""
        return prod(self.output_shape)


def chain_of(dnn: Dnn) -> tuple[Stage, ...]:
    """Return the layers 1 to L of a network that is a chain.

    Raises
    ------
    ModelError
        For a branch, a join, or a kind of layer whose connections are not known; the message names the layer.
    """
    stages: list[Stage] = []
    shape = dnn.layers[0].output_shape
    for before, layer in zip(dnn.layers, dnn.layers[1:], strict=False):
        if dnn.inputs_of(layer.name) != (before.name,):
            reads = ", ".join(dnn.inputs_of(layer.name)) or "nothing"
            raise ModelError(
                f"layer {layer.name!r} of {dnn.name} reads {reads}: this model takes a chain, where each layer reads "
                f"the one before it, here {before.name!r}."
            )
        if stages and layer.kind in _NEURON_BY_NEURON:
            stages[-1] = replace(stages[-1], num_weights=stages[-1].num_weights + layer.num_trainable)
            continue
        stages.append(_stage(layer, shape))
        shape = layer.output_shape
    return tuple(stages)


def _stage(layer: Layer, input_shape: tuple[int, ...]) -> Stage:
    """Return a layer by itself."""
    is_known = layer.kind in (_POOLING, _FULLY_CONNECTED) or (layer.kind == _CONVOLUTION and layer.window is not None)
    if not is_known:
        raise ModelError(
            f"layer {layer.name!r} is a {layer.kind!r} whose connections are not known. Use convolutions with a "
            "window, pools and fully-connected layers."
        )
    return Stage(
        name=layer.name,
        kind=layer.kind,
        input_shape=input_shape,
        output_shape=layer.output_shape,
        num_connections=layer.num_multiply_adds,
        num_weights=layer.num_trainable,
        window=layer.window,
    )


def unroll(stage: Stage, num_steps: int) -> tuple[Stage, ...]:
    """Return a recurrent layer as so many fully-connected ones, each reading the step before (footnote 4).

    ``stage`` is one step: its connections count those from the state and from that step's input, which arrives with
    the sample. All steps share the weights: only the first one reads them from the servers.
    """
    if stage.kind != _FULLY_CONNECTED or num_steps < 1:
        raise ModelError(
            f"{stage.name!r}: {num_steps} steps of a {stage.kind!r}; unroll 1 or more fully-connected ones."
        )
    later = replace(stage, input_shape=stage.output_shape, num_weights=0)
    steps = (stage, *(later for _ in range(num_steps - 1)))
    return tuple(replace(step, name=f"{step.name}@{number}") for number, step in enumerate(steps, start=1))


# -- partitions ------------------------------------------------------------------------------------------------------


def stripes(shape: tuple[int, ...], num_segments: int) -> NDArray[np.intp]:
    """Return the segment of every neuron: stripes of rows of an image, or of neurons.

    Segment p of n rows is ``[floor(n p / P), floor(n (p + 1) / P))``; some are empty where P > n.

    >>> stripes((5,), 2).tolist()
    [0, 0, 1, 1, 1]
    """
    num_rows = shape[1] if len(shape) == 3 else shape[0]
    starts = [num_rows * p // num_segments for p in range(1, num_segments)]
    of_row = np.searchsorted(starts, np.arange(num_rows), side="right")
    return np.broadcast_to(of_row[:, np.newaxis] if len(shape) == 3 else of_row, shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """A layer's neurons, each in one segment."""

    num_segments: int
    of_neuron: NDArray[np.intp]

    @classmethod
    def of(cls, shape: tuple[int, ...], num_segments: int, scheme: Scheme = stripes) -> Self:
        """Return the partition that a scheme makes; raise ModelError if it is none."""
        found = np.asarray(scheme(shape, num_segments))
        if found.shape != shape or found.min() < 0 or found.max() >= num_segments:
            raise ModelError(
                f"the partition scheme gives segments {found.min()} to {found.max()} in shape {found.shape}; "
                f"{num_segments} segments of a layer {shape} need 0 to {num_segments - 1} in that shape."
            )
        return cls(num_segments=num_segments, of_neuron=found)

    @property
    def num_neurons(self) -> Counts:
        """``N_neuron(l,p)`` of every segment."""
        return self._count(self.of_neuron)

    @property
    def num_channels(self) -> Counts:
        """Channels (or neurons, without channels) of which a segment holds a part: it needs their weights."""
        rows = self.of_neuron.reshape(len(self.of_neuron), -1)
        return np.array([(rows == p).any(axis=1).sum() for p in range(self.num_segments)])

    def at(self, mask: NDArray[np.bool_]) -> Counts:
        """Return how many neurons under a mask (of the layer's shape, or that broadcasts to it) each segment has."""
        return self._count(self.of_neuron[np.broadcast_to(mask, self.of_neuron.shape)])

    def weigh(self, weights: _Matrix) -> Counts:
        """Return the sum of the weights (as the mask) of each segment's neurons."""
        spread = np.broadcast_to(weights, self.of_neuron.shape).ravel()
        return np.bincount(self.of_neuron.ravel(), weights=spread, minlength=self.num_segments).astype(np.int64)

    def masks(self) -> Iterator[NDArray[np.bool_]]:
        """Yield which neurons a segment has, segment by segment."""
        return (self.of_neuron == p for p in range(self.num_segments))

    def _count(self, segments: NDArray[np.intp]) -> Counts:
        """Return how often each segment occurs."""
        return np.bincount(segments.ravel(), minlength=self.num_segments)


# -- between two layers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boundary:
    """What passes between the segments q of layer l-1 and the segments p of layer l, wherever they run.

    Attributes
    ----------
    needed
        ``[p, q]``: activations of q that p reads. A segment receives a neuron once, however often it uses it.
    returned
        ``[q, p]``: error terms of p that q reads.
    connections
        ``[p, q]``: connections between them; those of a convolution to its padding count with the neuron at the edge,
        so that all of ``W_c(l)`` is there. None in a pool, which has no weights.
    """

    needed: Counts
    returned: Counts
    connections: Counts


def count_boundary(stage: Stage, before: Partition, after: Partition) -> Boundary:
    """Return what passes between the partitions of the layer before a stage and of the stage itself."""
    if stage.kind == _FULLY_CONNECTED:
        return _count_fully_connected(stage, before.num_neurons, after.num_neurons)
    is_convolution = stage.kind == _CONVOLUTION
    reads = _Windows.of(stage)

    def seen(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        # A convolution reads all channels; a pool each one by itself, but one stands for all where they are alike.
        if is_convolution:
            return np.asarray(mask.any(axis=0, keepdims=True))
        return mask[:1] if (mask == mask[:1]).all() else mask

    connections = np.zeros((after.num_segments, before.num_segments), dtype=np.int64)
    if is_convolution:
        connections[:] = [before.weigh(reads.weights_on_inputs(mask.sum(axis=0))) for mask in after.masks()]
    return Boundary(
        needed=np.array([before.at(reads.inputs_of(seen(mask))) for mask in after.masks()]),
        returned=np.array([after.at(reads.outputs_of(seen(mask))) for mask in before.masks()]),
        connections=connections,
    )


def _count_fully_connected(stage: Stage, num_before: Counts, num_after: Counts) -> Boundary:
    """Return the boundary where every neuron of one layer reads every one of the other, if there is any."""
    pairs = np.outer(num_after, num_before)
    recurrent = stage.num_connections / pairs.sum()  # an unrolled step has more connections than it has pairs
    return Boundary(
        needed=np.outer(num_after > 0, num_before),
        returned=np.outer(num_before > 0, num_after),
        connections=np.rint(pairs * recurrent).astype(np.int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """Sliding windows, which are separable: for rows and for columns a matrix ``[output, input]``.

    ``is_read_*`` says whether an output reads an input, ``times_*`` how many of its weights lie on it.
    """

    is_read_y: _Matrix
    is_read_x: _Matrix
    times_y: _Matrix
    times_x: _Matrix

    @classmethod
    def of(cls, stage: Stage) -> Self:
        """Return the windows of a convolution or a pool."""
        pairs = zip(stage.output_shape[1:], stage.input_shape[1:], strict=True)
        (read_y, times_y), (read_x, times_x) = (_segments_along(*sizes, stage.window) for sizes in pairs)
        return cls(read_y, read_x, times_y, times_x)

    def inputs_of(self, outputs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which inputs are read by any of these outputs."""
        return np.asarray((self.is_read_y.T @ outputs.astype(np.float64) @ self.is_read_x) > 0)

    def outputs_of(self, inputs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which outputs read any of these inputs."""
        return np.asarray((self.is_read_y @ inputs.astype(np.float64) @ self.is_read_x.T) > 0)

    def weights_on_inputs(self, outputs: Counts) -> _Matrix:
        """Return the connections of so many outputs at each position to one input channel, by position."""
        return self.times_y.T @ outputs.astype(np.float64) @ self.times_x


def _segments_along(num_outputs: int, num_inputs: int, window: Window | None) -> tuple[_Matrix, _Matrix]:
    """Return, along one axis, which inputs each output reads, and with how many weights; without a window, all."""
    if window is None:
        return (np.ones((num_outputs, num_inputs)),) * 2
    outputs, offsets = np.ogrid[:num_outputs, : window.kernel]
    at = outputs * window.stride - window.padding + offsets
    is_inside = (at >= 0) & (at < num_inputs)
    is_read, times = np.zeros((num_outputs, num_inputs)), np.zeros((num_outputs, num_inputs))
    rows = np.broadcast_to(outputs, at.shape)
    is_read[rows[is_inside], at[is_inside]] = 1
    np.add.at(times, (rows, at.clip(0, num_inputs - 1)), 1)
    return is_read, times


def remote_counts(counts: Counts, workers: Sequence[int], workers_of_source: Sequence[int]) -> Counts:
    """Return ``A(l,p)`` or ``E(l,p)``: what each segment receives from other workers than its own.

    Parameters
    ----------
    counts
        ``Boundary.needed`` for activations, ``Boundary.returned`` for error terms: a row for each receiving segment.
    workers, workers_of_source
        Worker of each receiving segment, and of each one that it reads.

    >>> remote_counts(np.array([[3, 3], [3, 3]]), [0, 1], [0, 1]).tolist()
    [3, 3]
    """
    is_elsewhere = np.asarray(workers)[:, np.newaxis] != np.asarray(workers_of_source)[np.newaxis, :]
    return np.asarray((counts * is_elsewhere).sum(axis=1), dtype=np.int64)


# --- Who reads whose neurons where layers are cut into stripes: the counts of segments.py, from rows alone
# A stripe holds whole rows of an image, in all channels, so that only rows decide: what holds for a row is multiplied
# by
# its columns and channels. The counts are those of :func:`planner.models.replica_segments.count_boundary` for the
# scheme
# :func:`planner.models.replica_segments.stripes`, some hundred times as fast, which a search over all partitions needs.


def num_stripes(shape: tuple[int, ...]) -> int:
    """Return the most stripes that a layer can be cut into without empty ones: its rows, or neurons without rows.

    >>> num_stripes((96, 55, 55)), num_stripes((500,))
    (55, 500)
    """
    return shape[1] if len(shape) == 3 else shape[0]


def stripe_sizes(shape: tuple[int, ...], num_segments: int) -> Counts:
    """Return the neurons of every stripe.

    >>> stripe_sizes((5,), 2).tolist()
    [2, 3]
    """
    num_rows = num_stripes(shape)
    return np.asarray(np.diff(_ends(num_rows, num_segments)) * (prod(shape) // num_rows), dtype=np.int64)


def stripe_channels(shape: tuple[int, ...], num_segments: int) -> Counts:
    """Return the channels (or neurons, without rows) of which each stripe holds a part: it needs their weights."""
    sizes = stripe_sizes(shape, num_segments)
    return np.where(sizes > 0, shape[0], 0) if len(shape) == 3 else sizes


def stripe_boundary(stage: Stage, num_before: int, num_segments: int, before_shape: tuple[int, ...]) -> Boundary:
    """Return what passes between the stripes of the layer before a stage and those of the stage itself.

    Parameters
    ----------
    before_shape
        Of the output of the layer before, which a fully-connected stage may flatten.
    """
    if stage.kind == "fully_connected":
        return _fully_connected(
            stage, stripe_sizes(before_shape, num_before), stripe_sizes(stage.output_shape, num_segments)
        )
    rows = window_rows(stage)
    before, after = _ends(stage.input_shape[1], num_before), _ends(stage.output_shape[1], num_segments)
    return Boundary(
        needed=_stripe_counts_whole(_blocks(_blocks(rows.reads, after) > 0, before, axis=1) * rows.inputs_of_a_row),
        returned=_stripe_counts_whole(
            _blocks(_blocks(rows.reads.T, before) > 0, after, axis=1) * rows.outputs_of_a_row
        ),
        connections=_stripe_counts_whole(
            _blocks(_blocks(rows.times, after), before, axis=1) * rows.connections_of_a_row
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """Which rows of its input (column) each row of a stage's output reads, and with how many rows of weights.

    Beside it what a row stands for: neurons of the input that are read, of the output that read, and connections.
    """

    reads: _Matrix
    times: _Matrix
    inputs_of_a_row: int
    outputs_of_a_row: int
    connections_of_a_row: float


def window_rows(stage: Stage) -> WindowRows:
    """Return the rows of a convolution or a pool; a pool has no connections."""
    (channels_in, rows_in, columns_in), (channels, rows, columns) = stage.input_shape, stage.output_shape
    reads_x, times_x = _stripe_counts_along(columns, columns_in, stage.window)
    reads, times = _stripe_counts_along(rows, rows_in, stage.window)
    return WindowRows(
        reads=reads,
        times=times,
        inputs_of_a_row=channels_in * int(reads_x.any(axis=0).sum()),
        outputs_of_a_row=channels * int(reads_x.any(axis=1).sum()),
        connections_of_a_row=times_x.sum() * channels_in * channels if stage.kind == "convolution" else 0.0,
    )


def _fully_connected(stage: Stage, num_before: Counts, num_after: Counts) -> Boundary:
    """Return the boundary where every neuron of one layer reads every one of the other, if there is any."""
    pairs = np.outer(num_after, num_before)
    return Boundary(
        needed=np.outer(num_after > 0, num_before),
        returned=np.outer(num_before > 0, num_after),
        connections=_stripe_counts_whole(pairs * (stage.num_connections / pairs.sum())),
    )


def _stripe_counts_whole(numbers: _Matrix) -> Counts:
    """Return whole numbers."""
    return np.rint(numbers).astype(np.int64)


def _ends(num_rows: int, num_segments: int) -> Counts:
    """Return where each stripe begins, and where the last one ends."""
    return np.asarray(num_rows * np.arange(num_segments + 1) // num_segments)


def _blocks(matrix: NDArray[np.generic], ends: Counts, axis: int = 0) -> _Matrix:
    """Return the sums of a matrix's rows (or columns) over every stripe."""
    sums = np.zeros_like(matrix, dtype=np.float64, shape=tuple(n + (i == axis) for i, n in enumerate(matrix.shape)))
    np.cumsum(matrix, axis=axis, out=sums[1:] if axis == 0 else sums[:, 1:])
    return np.asarray(np.diff(np.take(sums, ends, axis=axis), axis=axis))


@lru_cache(maxsize=256)  # a network has few shapes, and every number of stripes asks for them again
def _stripe_counts_along(num_outputs: int, num_inputs: int, window: Window | None) -> tuple[_Matrix, _Matrix]:
    """Return which inputs each output reads along one axis, and with how many weights: those on padding at the edge."""
    if window is None:
        return (np.ones((num_outputs, num_inputs)),) * 2
    first = np.arange(num_outputs)[:, np.newaxis] * window.stride - window.padding
    inputs = np.arange(num_inputs)
    reads = ((inputs >= first) & (inputs < first + window.kernel)).astype(np.float64)
    times = reads.copy()
    times[:, :1] += np.clip(-first, 0, window.kernel)
    times[:, -1:] += np.clip(first + window.kernel - num_inputs, 0, window.kernel)
    return reads, times


# --- What every segment of a chain of layers computes and exchanges, for any number of partitions; seconds of one
# thread
# Equations 5, 7 and 8 of F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, before
# threads
# interfere (eq. 9). Everything is made once for each number of partitions; equal layers share it.

_MOST_KEPT = 1 << 14  # pairs of segments of two layers


class SegmentWork:
    """Seconds and counts by layer (``index``) and number of its segments.

    Parameters
    ----------
    scheme
        How layers are partitioned, see :data:`planner.models.replica_segments.Scheme`.
    connections
        How those above a segment are counted.
    seconds
        Measured seconds of every layer, in place of counts; None to count.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        constants: Constants,
        *,
        scheme: Scheme = stripes,
        connections: Connections = Connections.COUNTED,
        seconds: Sequence[LayerSeconds] | None = None,
    ) -> None:
        self.stages = tuple(stages)
        self.constants = constants
        self._scheme = scheme
        self._connections = connections
        self.seconds = None if seconds is None else tuple(seconds)
        first: dict[Hashable, int] = {}
        alike = ((*_without_name(stage), self.shape_before(index)) for index, stage in enumerate(self.stages))
        self._first_alike = [first.setdefault(key, index) for index, key in enumerate(alike)]
        kinds: dict[Hashable, int] = {}
        later = [*self._first_alike[1:], -1]
        measured = self.seconds or (None,) * len(later)
        self._kinds = [
            kinds.setdefault(key, len(kinds)) for key in zip(self._first_alike, later, measured, strict=True)
        ]
        self._boundary = cache(self._make_boundary)
        self._multiply_add_s = cache(self._make_multiply_add_s)
        self.forward_s = cache(self._forward_s)
        self.backward_s = cache(self._backward_s)
        self.update_s = cache(self._update_s)

    @property
    def is_striped(self) -> bool:
        """Whether layers are cut into stripes, and connections are counted."""
        return self._scheme is stripes and self._connections is Connections.COUNTED

    def shape_before(self, index: int) -> tuple[int, ...]:
        """Return the shape of what a layer reads, as the layer before has it."""
        return self.stages[index - 1].output_shape if index else self.stages[0].input_shape

    def alike(self, index: int) -> int:
        """Return a number that layers share which compute and exchange the same, in both directions."""
        return self._kinds[index]

    def boundary(self, index: int, num_before: int, num_segments: int) -> Boundary:
        """Return what passes between a layer and the one before; large ones have megabytes each, and are not kept."""
        made = self._make_boundary if num_before * num_segments > _MOST_KEPT else self._boundary
        return made(self._first_alike[index], num_before, num_segments)

    def num_neurons(self, index: int, num_segments: int) -> Floats:
        """Return ``N_neuron(l,p)``."""
        return self._sizes(self.stages[index].output_shape, num_segments).astype(np.float64)

    # -- seconds of every segment: forward_s, backward_s and update_s

    def _forward_s(self, index: int, num_segments: int) -> Floats:
        """Return eq. 5."""
        own_s = self.num_neurons(index, num_segments) * self.constants.activation_s
        if self.seconds is not None:
            return own_s + self.seconds[index].forward_s * self._share(index, num_segments)
        return own_s + self._multiply_adds_s(index, num_segments)

    def _backward_s(self, index: int, num_segments: int) -> Floats:
        """Return eq. 7: the error terms of a layer's own neurons; the last layer has no connections above it."""
        own_s = self.num_neurons(index, num_segments) * self.constants.error_s
        if index == len(self.stages) - 1:
            return own_s
        above = self._connections_above(index, num_segments)
        if self.seconds is not None:
            share = _shares(above, self.num_neurons(index, num_segments))
            return own_s + self.seconds[index].error_s * share
        return own_s + self._multiply_add_s(self._first_alike[index], num_segments) * above

    def _update_s(self, index: int, num_segments: int) -> Floats:
        """Return eq. 8; weights are not communicated inside a replica."""
        if self.seconds is not None:
            return self.seconds[index].update_s * self._share(index, num_segments)
        return self._multiply_adds_s(index, num_segments)

    # -- counts

    def _sizes(self, shape: tuple[int, ...], num_segments: int) -> Counts:
        """Return the neurons of every segment."""
        if self._scheme is stripes:
            return stripe_sizes(shape, num_segments)
        return Partition.of(shape, num_segments, self._scheme).num_neurons

    def _make_boundary(self, index: int, num_before: int, num_segments: int) -> Boundary:
        """Return what passes between a layer and the one before."""
        stage, shape = self.stages[index], self.shape_before(index)
        if self._scheme is stripes:
            return stripe_boundary(stage, num_before, num_segments, shape)
        before, after = (
            Partition.of(one, number, self._scheme)
            for one, number in ((shape, num_before), (stage.output_shape, num_segments))
        )
        return count_boundary(stage, before, after)

    def _make_multiply_add_s(self, index: int, num_segments: int) -> Floats:
        """Return ``C_muladd`` of every segment, by its working set."""
        shape = self.stages[index].output_shape
        channels = (
            stripe_channels(shape, num_segments)
            if self._scheme is stripes
            else Partition.of(shape, num_segments, self._scheme).num_channels
        )
        weights = self.stages[index].num_weights * channels / shape[0]
        numbers = weights + self.boundary(index, 1, num_segments).needed[:, 0] + self._sizes(shape, num_segments)
        sizes = (numbers * self.constants.number_bytes).tolist()
        return np.array([self.constants.multiply_add_s(size, num_segments) for size in sizes])

    def _multiply_adds_s(self, index: int, num_segments: int) -> Floats:
        """Return ``C_muladd W_c(l,p)``."""
        seconds = self._multiply_add_s(self._first_alike[index], num_segments)
        return seconds * self.boundary(index, 1, num_segments).connections[:, 0]

    def _share(self, index: int, num_segments: int) -> Floats:
        """Return the share of a layer's computation that every segment has."""
        connections = self.boundary(index, 1, num_segments).connections[:, 0].astype(np.float64)
        return _shares(connections, self.num_neurons(index, num_segments))

    def _connections_above(self, index: int, num_segments: int) -> Floats:
        """Return ``W_c'(l,p)``."""
        if self._connections is Connections.COUNTED:
            return np.asarray(self.boundary(index + 1, num_segments, 1).connections[0], dtype=np.float64)
        stage = self.stages[index]
        return self.stages[index + 1].num_connections * self.num_neurons(index, num_segments) / stage.num_neurons


def _without_name(stage: Stage) -> tuple[Hashable, ...]:
    """Return all that a layer is, but for its name."""
    return tuple(getattr(stage, field.name) for field in fields(stage) if field.name != "name")


def _shares(connections: Floats, neurons: Floats) -> Floats:
    """Return every segment's share, by connections or, where there are none, by neurons."""
    weights = connections if connections.any() else neurons
    return np.asarray(weights / weights.sum())


_Rows = tuple[Ints, Ints]  # where stripes begin and end


@dataclass(frozen=True, slots=True, eq=False)
class StripedLayer:
    """The segments of a layer, P after P; those of each P begin at ``first``.

    ``size`` counts neurons, ``needed`` and ``returned`` numbers that come in from the neighbours in a sample; seconds
    are those of one thread.
    """

    first: Ints
    size: Ints
    needed: Ints
    returned: Ints
    forward_s: Floats
    backward_s: Floats
    update_s: Floats

    @classmethod
    def of(cls, work: SegmentWork, layer: int, partitions: Ints) -> "StripedLayer":
        """Return a layer for some numbers of partitions, in rising order; ``work`` is one that ``is_striped``."""
        cut = StripeCut.of(work, layer, partitions)
        stage, is_last = work.stages[layer], layer == len(work.stages) - 1
        needed, below = read_of_layer(stage, work.shape_before(layer), cut)
        returned, above = (
            _read_by(work.stages[layer + 1], stage.output_shape, cut) if not is_last else (np.zeros_like(needed),) * 2
        )
        if work.seconds is None:
            loop_s = _multiply_add_s(work, stage, cut, needed)
            forward_s, update_s, error_s = loop_s * below, loop_s * below, loop_s * above
        else:
            seconds, share = work.seconds[layer], cut.shares(below)
            forward_s, update_s = seconds.forward_s * share, seconds.update_s * share
            error_s = np.zeros_like(share) if is_last else seconds.error_s * cut.shares(above)
        return cls(
            first=cut.first,
            size=cut.size,
            needed=needed,
            returned=returned,
            forward_s=cut.size * work.constants.activation_s + forward_s,
            backward_s=cut.size * work.constants.error_s + error_s,
            update_s=update_s,
        )

    def most(self, numbers: NDArray[np.generic]) -> Floats:
        """Return the largest of every P."""
        return np.asarray(np.maximum.reduceat(numbers, self.first), dtype=np.float64)

    def least(self, numbers: NDArray[np.generic]) -> Floats:
        """Return the least of every P."""
        return np.asarray(np.minimum.reduceat(numbers, self.first), dtype=np.float64)

    def most_where_most(self, numbers: NDArray[np.generic], others: NDArray[np.generic]) -> Floats:
        """Return the largest of those segments of every P that have the most of something else."""
        counts = np.diff(np.append(self.first, len(numbers)))
        is_most = others == np.repeat(self.most(others), counts)
        return self.most(np.where(is_most, numbers, -1))


@dataclass(frozen=True, slots=True, eq=False)
class StripeCut:
    """The stripes of a layer's output, P after P: their P, rows, neurons and channels, and how many each stands for."""

    first: Ints
    partitions: Ints
    rows: _Rows
    size: Ints
    channels: Ints
    number: Ints

    @classmethod
    def of(cls, work: SegmentWork, layer: int, partitions: Ints) -> "StripeCut":
        """Return two stripes of every P where their size is all that counts, else all."""
        shape = work.stages[layer].output_shape
        num_rows = num_stripes(shape)
        if all(stage.kind == "fully_connected" for stage in work.stages[layer : layer + 2]):
            counts = np.full(partitions.size, 2)
            least, larger = np.divmod(num_rows, partitions)
            rows = np.zeros(2 * partitions.size, dtype=np.int64), np.column_stack((least, least + (larger > 0))).ravel()
            number = np.column_stack((partitions - larger, larger)).ravel()
        else:
            counts = partitions
            first = np.cumsum(counts) - counts
            each, k = np.repeat(partitions, counts), np.arange(int(counts.sum())) - np.repeat(first, counts)
            rows = num_rows * k // each, num_rows * (k + 1) // each
            number = np.ones(k.size, dtype=np.int64)
        size = (rows[1] - rows[0]) * (prod(shape) // num_rows)
        return cls(
            first=np.cumsum(counts) - counts,
            partitions=np.repeat(partitions, counts),
            rows=rows,
            size=size,
            channels=np.where(size > 0, shape[0], 0) if len(shape) == 3 else size,
            number=number,
        )

    def shares(self, connections: Ints) -> Floats:
        """Return every segment's share of its layer: by connections or, where there are none, by neurons."""
        counts = np.diff(np.append(self.first, self.size.size))
        every = np.repeat(np.add.reduceat(connections * self.number, self.first), counts)
        neurons = np.repeat(np.add.reduceat(self.size * self.number, self.first), counts)
        return np.asarray(np.where(every > 0, connections / np.maximum(every, 1), self.size / neurons))


def read_of_layer(stage: Stage, shape_before: tuple[int, ...], cut: StripeCut) -> tuple[Ints, Ints]:
    """Return what every stripe of a stage reads of the whole layer before, and over how many connections."""
    if stage.kind == "fully_connected":
        other = prod(shape_before)
        return (cut.size > 0) * other, _connections(stage, cut.size * other, stage.num_neurons * other)
    rows = window_rows(stage)
    return (
        _union(rows.reads, cut) * rows.inputs_of_a_row,
        _whole(_between(rows.times.sum(axis=1), *cut.rows) * rows.connections_of_a_row),
    )


def _read_by(stage: Stage, shape: tuple[int, ...], cut: StripeCut) -> tuple[Ints, Ints]:
    """Return by how much of a stage the stripes of the layer before are read, and over how many connections."""
    if stage.kind == "fully_connected":
        other = stage.num_neurons
        return (cut.size > 0) * other, _connections(stage, cut.size * other, prod(shape) * other)
    rows = window_rows(stage)
    return (
        _union(rows.reads.T, cut) * rows.outputs_of_a_row,
        _whole(_between(rows.times.sum(axis=0), *cut.rows) * rows.connections_of_a_row),
    )


def _connections(stage: Stage, pairs: Ints, all_pairs: int) -> Ints:
    """Return a stage's connections between so many of all pairs of neurons."""
    return _whole(pairs * (stage.num_connections / all_pairs))


def _union(reads: Floats, cut: StripeCut) -> Ints:
    """Return how many columns the rows of every stripe have, each counted once; see the head of this module."""
    begins, ends = cut.rows
    shared = np.append((reads[:-1] * reads[1:]).sum(axis=1), 0.0)
    every = _between(reads.sum(axis=1), begins, ends) - _between(shared, begins, np.maximum(ends - 1, begins))
    return _whole(every)


def _between(numbers: Floats, begins: Ints, ends: Ints) -> Floats:
    """Return the sums of numbers from where stripes begin to where they end."""
    sums = np.append(0.0, np.cumsum(numbers))
    return np.asarray(sums[ends] - sums[begins])


def _whole(numbers: NDArray[np.floating]) -> Ints:
    """Return whole numbers."""
    return np.asarray(np.rint(numbers), dtype=np.int64)


def _multiply_add_s(work: SegmentWork, stage: Stage, cut: StripeCut, needed: Ints) -> Floats:
    """Return ``C_muladd`` of every stripe by its working set: asked once for all of equal size and P."""
    shape, constants = stage.output_shape, work.constants
    sizes = (stage.num_weights * cut.channels / shape[0] + needed + cut.size) * constants.number_bytes
    distinct, place = np.unique(np.stack((sizes, cut.partitions)), axis=1, return_inverse=True)
    seconds = [constants.multiply_add_s(size, int(p)) for size, p in distinct.T.tolist()]
    return np.asarray(np.array(seconds)[place.ravel()])
