"""Layers cut into segments on workers: what is chosen, who reads whose neurons, and what every segment computes.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 4.1 with footnote 3,
equations 5, 7, 8 and 9, and the constraints C1 to C4 of figure 7. (Footnote 5 and the text disagree on whether P, H and
R are the same for all layers; they may differ.) Everything is counted from 0.

Choices
    A layer l has P(l) segments, H(l) threads a segment, R(l) replicas, and a worker for every segment.
Stripes
    A segment is a stripe: whole rows of an image, in all channels, or neurons of a layer without rows. Segment p of n
    rows is ``[floor(n p / P), floor(n (p + 1) / P))``. So only rows decide who reads whose neurons: what holds for a
    row is multiplied by its columns and channels. Everything between two layers that depends on their partitions, and
    not on where segments run, is in three small matrices (:class:`Boundary`); a map of segments to workers then says
    which of their entries are remote. Windows are separable: for rows and for columns there is a matrix
    ``[output, input]`` of reads, and one of weights.
All partitions at once
    A search over all P asks :class:`StripedLayer`, which has the stripes of every P in flat arrays without a Python
    loop. Segments of equal size stand for each other where size is all that counts: of a fully-connected layer below
    another one (or below nothing) two segments of each P are enough, n mod P of ``n // P + 1`` neurons and the others
    of ``n // P``. Elsewhere every stripe has a place, and there are at most half the square of an image's rows. What
    the rows ``[a, b)`` read is counted from sums over single rows: windows move on monotonously, so that a row shares
    with all those before it what it shares with the last one,
    ``|union| = sum over [a, b) of |row| - sum over [a, b - 1) of |row and the next one|``.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from functools import cache, lru_cache
from math import log, prod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.dnn import Dnn, Window
from planner.errors import ModelError
from planner.frozen import frozen

Ints = NDArray[np.int64]
Counts = Ints
_CONVOLUTION, _POOLING, _FULLY_CONNECTED = "convolution", "pooling", "fully_connected"
_NEURON_BY_NEURON = {"activation", "batch_norm", "dropout", "flatten"}  # these stay with the layer that they follow
_MOST_KEPT = 1 << 14  # pairs of segments of two layers

# -- what is chosen ----------------------------------------------------------------------------------------------------


@frozen
class LayerChoice:
    """P, H, R and the map of one layer: ``workers[r][p]`` runs all threads of segment p of the layer's replica r."""

    num_threads: int
    workers: tuple[tuple[int, ...], ...]

    @classmethod
    def spread(cls, num_partitions: int, *, num_threads: int = 1, num_replicas: int = 1) -> Self:
        """Return the map of segments to workers in order, replica after replica.

        Parameters
        ----------
        num_partitions, num_replicas
            P and R; >= 1.
        num_threads
            H of every segment; >= 1.
        """
        rows = (range(r * num_partitions, (r + 1) * num_partitions) for r in range(num_replicas))
        return cls(num_threads=num_threads, workers=tuple(tuple(row) for row in rows))

    @property
    def num_partitions(self) -> int:
        """``P(l)``."""
        return len(self.workers[0])

    @property
    def num_replicas(self) -> int:
        """``R(l)``."""
        return len(self.workers)


def segments_beside(choice: LayerChoice, other: LayerChoice) -> tuple[Ints, Ints]:
    """Return the replica and the partition of another layer that share each segment's worker, [r, p]; -1 for none.

    Parameters
    ----------
    choice
        Of the layer whose segments are asked about.
    other
        Of the other layer, of the same replica.
    """
    places = np.ravel(other.workers)
    order = np.argsort(places, kind="stable")
    workers = np.asarray(choice.workers)
    at = order[np.maximum(np.searchsorted(places[order], workers, side="right") - 1, 0)]
    is_shared = places[at] == workers
    replicas, partitions = np.divmod(at, other.num_partitions)
    return np.where(is_shared, replicas, -1), np.where(is_shared, partitions, -1)


@frozen
class ReplicaConfiguration:
    """``N_ps`` servers, ``N_mr`` model replicas of ``N_wr`` workers each, and the choice of every layer."""

    num_servers: int
    num_replicas: int
    num_workers: int
    layers: tuple[LayerChoice, ...]


@frozen
class Limits:
    """``N`` machines of ``K`` cores."""

    num_machines: int
    num_cores: int


def broken_constraints(
    configuration: ReplicaConfiguration, limits: Limits, stages: Sequence["Stage"]
) -> tuple[str, ...]:
    """Return which of C1 to C4 a configuration breaks, each with its numbers; nothing if it may run.

    C4 holds by the form of :class:`LayerChoice`; what remains of it is that a layer's replicas have equal segments.

    Parameters
    ----------
    configuration
        Numbers and choices, right or wrong.
    limits
        Machines, and cores of each.
    stages
        The layers of the network.
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
    """Raise ModelError, with every constraint that a configuration breaks.

    Parameters
    ----------
    configuration
        Numbers and choices, right or wrong.
    limits
        Machines, and cores of each.
    stages
        The layers of the network.

    Raises
    ------
    ModelError
        Where it breaks any, with a line for each.
    """
    if faults := broken_constraints(configuration, limits, stages):
        raise ModelError("\n".join(faults))


# -- constants ---------------------------------------------------------------------------------------------------------


@frozen(kw_only=False)
class ByPartitions:
    """``C_muladd`` by P, where the cache effect was measured or fitted so."""

    seconds: Mapping[int, float]

    def __call__(self, working_set_bytes: float, num_partitions: int, /) -> float:
        """Return seconds; raise ModelError for a P that is not in the table."""
        if num_partitions not in self.seconds:
            known = ", ".join(map(str, self.seconds))
            raise ModelError(f"C_muladd is known for P = {known}, not for {num_partitions}. Add it.")
        return self.seconds[num_partitions]


@frozen(kw_only=False)
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


@frozen(kw_only=False)
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


@frozen
class Constants:
    """What the canonical loops and the network take."""

    # ``C_muladd``, of a segment's working set in bytes (weights, what it reads, its neurons) and of P: the cache
    # effect, which makes model parallelism super-linear
    multiply_add_s: Callable[[float, int], float]
    # activation_s, error_s: ``C_act`` and ``C_err``, of a neuron
    activation_s: float
    error_s: float
    # bandwidth_bytes_per_s, number_bytes: ``C_nbw / 8`` and ``C_bits / 8``
    bandwidth_bytes_per_s: float
    # latency_s, interference: ``C_ncost(H)``, and ``C_interf(H) >= 1``
    latency_s: Callable[[int], float]
    number_bytes: float = 4.0
    interference: Callable[[int], float] = lambda _: 1.0


class Connections(StrEnum):
    """``W_c'(l,p)`` of eq. 7, the connections from layer l+1 to a segment.

    A padded or unpadded edge has fewer of them; the paper takes segments to have "roughly the same number".
    """

    COUNTED = "counted"
    EVEN = "even"  # in proportion to the segment's neurons


@frozen
class LayerSeconds:
    """Measured seconds of a whole layer, of a sample on one thread, in place of counts times ``C_muladd``.

    ``error_s`` is the time of this layer's error terms, which the layer above sends down: none for the last layer.
    Segments share them in proportion to their connections, or to their neurons in a layer that has none.
    """

    forward_s: float
    error_s: float
    update_s: float


# -- layers ------------------------------------------------------------------------------------------------------------


@frozen
class Stage:
    """A layer of the Adam model: a convolution, a pool or a fully-connected layer, and what follows by neuron."""

    name: str
    kind: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    num_connections: int = 0  # ``W_c(l)``, multiply-adds of a sample; 0 for a pool
    # ``W_s(l)``, what is stored and read from the parameter servers. For a convolution the two differ by the number of
    # output positions
    num_weights: int = 0
    window: Window | None = None

    @property
    def num_neurons(self) -> int:
        """Outputs of a sample."""
        return prod(self.output_shape)


def chain_of(dnn: Dnn) -> tuple[Stage, ...]:
    """Return the layers 1 to L of a network that is a chain.

    Parameters
    ----------
    dnn
        Its first layer is the input.

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
        has_window = layer.kind == _CONVOLUTION and layer.window is not None
        if not has_window and layer.kind not in (_POOLING, _FULLY_CONNECTED):
            raise ModelError(
                f"layer {layer.name!r} is a {layer.kind!r} whose connections are not known. Use convolutions with a "
                "window, pools and fully-connected layers."
            )
        stages.append(
            Stage(
                name=layer.name,
                kind=layer.kind,
                input_shape=shape,
                output_shape=layer.output_shape,
                num_connections=layer.num_multiply_adds,
                num_weights=layer.num_trainable,
                window=layer.window,
            )
        )
        shape = layer.output_shape
    return tuple(stages)


# -- stripes: one number of partitions at a time -----------------------------------------------------------------------


def num_stripes(shape: tuple[int, ...]) -> int:
    """Return the most stripes that a layer can be cut into without empty ones: its rows, or neurons without rows.

    Parameters
    ----------
    shape
        Of the layer's output: channels, rows and columns, or neurons.

    >>> num_stripes((96, 55, 55)), num_stripes((500,))
    (55, 500)
    """
    return shape[1] if len(shape) == 3 else shape[0]


def stripe_sizes(shape: tuple[int, ...], num_segments: int) -> Counts:
    """Return the neurons of every stripe.

    Parameters
    ----------
    shape
        Of the layer's output: channels, rows and columns, or neurons.
    num_segments
        P; >= 1. Some stripes are empty where there are fewer rows.

    >>> stripe_sizes((5,), 2).tolist()
    [2, 3]
    """
    num_rows = num_stripes(shape)
    return np.asarray(np.diff(_ends(num_rows, num_segments)) * (prod(shape) // num_rows), dtype=np.int64)


def stripe_channels(shape: tuple[int, ...], num_segments: int) -> Counts:
    """Return the channels (or neurons, without rows) of which each stripe holds a part: it needs their weights.

    Parameters
    ----------
    shape
        Of the layer's output: channels, rows and columns, or neurons.
    num_segments
        P; >= 1. Some stripes are empty where there are fewer rows.
    """
    sizes = stripe_sizes(shape, num_segments)
    return np.where(sizes > 0, shape[0], 0) if len(shape) == 3 else sizes


@frozen(eq=False)
class Boundary:
    """What passes between the segments q of layer l-1 and the segments p of layer l, wherever they run."""

    # ``[p, q]``: activations of q that p reads. A segment receives a neuron once, however often it uses it
    needed: Counts
    returned: Counts  # ``[q, p]``: error terms of p that q reads
    # ``[p, q]``: connections between them; those of a convolution to its padding count with the neuron at the edge, so
    # that all of ``W_c(l)`` is there. None in a pool, which has no weights
    connections: Counts


def stripe_boundary(stage: Stage, num_before: int, num_segments: int, before_shape: tuple[int, ...]) -> Boundary:
    """Return what passes between the stripes of the layer before a stage and those of the stage itself.

    Parameters
    ----------
    stage
        The later layer.
    num_before, num_segments
        P of the layer before, and of the stage; >= 1.
    before_shape
        Of the output of the layer before, which a fully-connected stage may flatten.
    """
    if stage.kind == _FULLY_CONNECTED:  # every neuron of one layer reads every one of the other, if there is any
        neurons_before, neurons = stripe_sizes(before_shape, num_before), stripe_sizes(stage.output_shape, num_segments)
        pairs = np.outer(neurons, neurons_before)
        return Boundary(
            needed=np.outer(neurons > 0, neurons_before),
            returned=np.outer(neurons_before > 0, neurons),
            connections=_connections(stage, pairs, int(pairs.sum())),
        )
    rows = _window_rows(stage)
    before, after = _ends(stage.input_shape[1], num_before), _ends(stage.output_shape[1], num_segments)
    return Boundary(
        needed=_whole(_blocks(_blocks(rows.reads, after) > 0, before, axis=1) * rows.inputs_of_a_row),
        returned=_whole(_blocks(_blocks(rows.reads.T, before) > 0, after, axis=1) * rows.outputs_of_a_row),
        connections=_whole(_blocks(_blocks(rows.times, after), before, axis=1) * rows.connections_of_a_row),
    )


@frozen
class _WindowRows:
    """Which rows of its input (column) each row of a stage's output reads, and with how many rows of weights.

    Beside it what a row stands for: neurons of the input that are read, of the output that read, and connections.
    """

    reads: Floats
    times: Floats
    inputs_of_a_row: int
    outputs_of_a_row: int
    connections_of_a_row: float


def _window_rows(stage: Stage) -> _WindowRows:
    """Return the rows of a convolution or a pool; a pool has no connections."""
    (channels_in, rows_in, columns_in), (channels, rows, columns) = stage.input_shape, stage.output_shape
    reads_x, times_x = _along(columns, columns_in, stage.window)
    reads, times = _along(rows, rows_in, stage.window)
    return _WindowRows(
        reads=reads,
        times=times,
        inputs_of_a_row=channels_in * int(reads_x.any(axis=0).sum()),
        outputs_of_a_row=channels * int(reads_x.any(axis=1).sum()),
        connections_of_a_row=times_x.sum() * channels_in * channels if stage.kind == _CONVOLUTION else 0.0,
    )


def _whole(numbers: Floats) -> Counts:
    """Return whole numbers."""
    return np.asarray(np.rint(numbers), dtype=np.int64)


def _ends(num_rows: int, num_segments: int) -> Counts:
    """Return where each stripe begins, and where the last one ends."""
    return np.asarray(num_rows * np.arange(num_segments + 1) // num_segments)


def _blocks(matrix: NDArray[np.generic], ends: Counts, axis: int = 0) -> Floats:
    """Return the sums of a matrix's rows (or columns) over every stripe."""
    sums = np.zeros_like(matrix, dtype=np.float64, shape=tuple(n + (i == axis) for i, n in enumerate(matrix.shape)))
    np.cumsum(matrix, axis=axis, out=sums[1:] if axis == 0 else sums[:, 1:])
    return np.asarray(np.diff(np.take(sums, ends, axis=axis), axis=axis))


@lru_cache(maxsize=256)  # a network has few shapes, and every number of stripes asks for them again
def _along(num_outputs: int, num_inputs: int, window: Window | None) -> tuple[Floats, Floats]:
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


class SegmentWork:
    """Seconds and counts by layer (``index``) and number of its segments.

    Parameters
    ----------
    stages
        The chain.
    constants
        What the canonical loops and the network take.
    connections
        How those above a segment are counted.
    seconds
        Measured seconds of every layer, in place of counts; None to count.

    Notes
    -----
    Seconds are those of one thread, before threads interfere (eq. 9). Everything is made once for each number of
    partitions; equal layers share it. ``forward_s``, ``backward_s`` and ``update_s`` take the index of a layer and the
    number of its segments, and return the seconds of every segment of a sample (eqs. 5, 7 and 8).
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        constants: Constants,
        *,
        connections: Connections = Connections.COUNTED,
        seconds: Sequence[LayerSeconds] | None = None,
    ) -> None:
        self.stages = tuple(stages)
        self.constants = constants
        self.connections = connections
        self.seconds = None if seconds is None else tuple(seconds)
        first: dict[Hashable, int] = {}
        names = [field.name for field in fields(Stage) if field.name != "name"]
        alike = [
            (*(getattr(stage, name) for name in names), self.shape_before(index))
            for index, stage in enumerate(self.stages)
        ]
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

    def shape_before(self, index: int) -> tuple[int, ...]:
        """Return the shape of what a layer reads, as the layer before has it.

        Parameters
        ----------
        index
            Of the layer, from 0.
        """
        return self.stages[index - 1].output_shape if index else self.stages[0].input_shape

    def alike(self, index: int) -> int:
        """Return a number that layers share which compute and exchange the same, in both directions.

        Parameters
        ----------
        index
            Of the layer, from 0.
        """
        return self._kinds[index]

    def boundary(self, index: int, num_before: int, num_segments: int) -> Boundary:
        """Return what passes between a layer and the one before; large ones have megabytes each, and are not kept.

        Parameters
        ----------
        index
            Of the layer, from 0.
        num_before, num_segments
            P of the layer before, and of the layer; >= 1.
        """
        made = self._make_boundary if num_before * num_segments > _MOST_KEPT else self._boundary
        return made(self._first_alike[index], num_before, num_segments)

    def _forward_s(self, index: int, num_segments: int) -> Floats:
        """Return eq. 5."""
        own_s = self._neurons(index, num_segments) * self.constants.activation_s
        return own_s + self._multiply_adds_s(index, num_segments, "forward_s")

    def _backward_s(self, index: int, num_segments: int) -> Floats:
        """Return eq. 7: the error terms of a layer's own neurons; the last layer has no connections above it."""
        neurons = self._neurons(index, num_segments)
        own_s = neurons * self.constants.error_s
        if index == len(self.stages) - 1:
            return own_s
        if self.connections is Connections.COUNTED:
            above = self.boundary(index + 1, num_segments, 1).connections[0].astype(np.float64)
        else:
            above = self.stages[index + 1].num_connections * neurons / self.stages[index].num_neurons
        if self.seconds is not None:
            return own_s + self.seconds[index].error_s * _shares(above, neurons)
        return np.asarray(own_s + self._multiply_add_s(self._first_alike[index], num_segments) * above)

    def _update_s(self, index: int, num_segments: int) -> Floats:
        """Return eq. 8; weights are not communicated inside a replica."""
        return self._multiply_adds_s(index, num_segments, "update_s")

    def _multiply_adds_s(self, index: int, num_segments: int, phase: str) -> Floats:
        """Return ``C_muladd W_c(l,p)``, or every segment's share of a phase's measured seconds."""
        connections = self.boundary(index, 1, num_segments).connections[:, 0].astype(np.float64)
        if self.seconds is not None:
            share = _shares(connections, self._neurons(index, num_segments))
            return np.asarray(getattr(self.seconds[index], phase) * share)
        return self._multiply_add_s(self._first_alike[index], num_segments) * connections

    def _make_multiply_add_s(self, index: int, num_segments: int) -> Floats:
        """Return ``C_muladd`` of every segment, by its working set."""
        stage = self.stages[index]
        weights = stage.num_weights * stripe_channels(stage.output_shape, num_segments) / stage.output_shape[0]
        numbers = weights + self.boundary(index, 1, num_segments).needed[:, 0] + self._neurons(index, num_segments)
        sizes = (numbers * self.constants.number_bytes).tolist()
        return np.array([self.constants.multiply_add_s(size, num_segments) for size in sizes])

    def _make_boundary(self, index: int, num_before: int, num_segments: int) -> Boundary:
        """Return what passes between a layer and the one before."""
        return stripe_boundary(self.stages[index], num_before, num_segments, self.shape_before(index))

    def _neurons(self, index: int, num_segments: int) -> Floats:
        """Return ``N_neuron(l,p)``."""
        return stripe_sizes(self.stages[index].output_shape, num_segments).astype(np.float64)


def _shares(connections: Floats, neurons: Floats) -> Floats:
    """Return every segment's share, by connections or, where there are none, by neurons."""
    weights = connections if connections.any() else neurons
    return np.asarray(weights / weights.sum())


# -- all numbers of partitions at once ---------------------------------------------------------------------------------


@frozen(kw_only=False, eq=False)
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
        """Return a layer for some numbers of partitions, in rising order.

        Parameters
        ----------
        work
            The chain, its constants, and how its connections are counted.
        layer
            Its index, from 0.
        partitions
            Numbers of partitions in rising order, shape (numbers,).
        """
        cut = StripeCut.of(work, layer, partitions)
        stage, is_last = work.stages[layer], layer == len(work.stages) - 1
        needed, below = read_of_layer(stage, work.shape_before(layer), cut)
        returned, counted = np.zeros((2, needed.size), dtype=np.int64)
        if not is_last:
            returned, counted = _read_by(work.stages[layer + 1], stage.output_shape, cut)
        above = counted.astype(np.float64)
        if work.connections is Connections.EVEN and not is_last:
            above = np.asarray(work.stages[layer + 1].num_connections * cut.size / stage.num_neurons)
        if work.seconds is None:
            # C_muladd by the working set: asked once for all stripes of equal size and P
            weights = stage.num_weights * cut.channels / stage.output_shape[0]
            sizes = (weights + needed + cut.size) * work.constants.number_bytes
            distinct, place = np.unique(np.stack((sizes, cut.partitions)), axis=1, return_inverse=True)
            distinct_s = [work.constants.multiply_add_s(size, int(p)) for size, p in distinct.T.tolist()]
            loop_s: Floats = np.array(distinct_s, dtype=np.float64)[place.ravel()]
            forward_s = update_s = np.asarray(loop_s * below)
            error_s = loop_s * above
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
        """Return the largest of every P.

        Parameters
        ----------
        numbers
            One number of every stripe, in the order of the stripes.
        """
        return np.asarray(np.maximum.reduceat(numbers, self.first), dtype=np.float64)

    def least(self, numbers: NDArray[np.generic]) -> Floats:
        """Return the least of every P.

        Parameters
        ----------
        numbers
            One number of every stripe, in the order of the stripes.
        """
        return np.asarray(np.minimum.reduceat(numbers, self.first), dtype=np.float64)

    def most_where_most(self, numbers: NDArray[np.generic], others: NDArray[np.generic]) -> Floats:
        """Return the largest of those segments of every P that have the most of something else.

        Parameters
        ----------
        numbers, others
            A number, and something else, of every stripe, in the order of the stripes.
        """
        counts = np.diff(np.append(self.first, len(numbers)))
        is_most = others == np.repeat(self.most(others), counts)
        return self.most(np.where(is_most, numbers, -1))


@frozen(kw_only=False, eq=False)
class StripeCut:
    """The stripes of a layer's output, P after P: their P, rows, neurons and channels, and how many each stands for."""

    first: Ints
    partitions: Ints
    rows: tuple[Ints, Ints]  # where stripes begin and end
    size: Ints
    channels: Ints
    number: Ints

    @classmethod
    def of(cls, work: SegmentWork, layer: int, partitions: Ints) -> "StripeCut":
        """Return two stripes of every P where their size is all that counts, else all.

        Parameters
        ----------
        work
            The chain, its constants, and how its connections are counted.
        layer
            Its index, from 0.
        partitions
            Numbers of partitions in rising order, shape (numbers,).
        """
        shape = work.stages[layer].output_shape
        num_rows = num_stripes(shape)
        if all(stage.kind == _FULLY_CONNECTED for stage in work.stages[layer : layer + 2]):
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

    def shares(self, connections: Ints | Floats) -> Floats:
        """Return every segment's share of its layer: by connections or, where there are none, by neurons.

        Parameters
        ----------
        connections
            Of every stripe.
        """
        counts = np.diff(np.append(self.first, self.size.size))
        every = np.repeat(np.add.reduceat(connections * self.number, self.first), counts)
        neurons = np.repeat(np.add.reduceat(self.size * self.number, self.first), counts)
        return np.asarray(np.where(every > 0, connections / np.maximum(every, 1), self.size / neurons))


def read_of_layer(stage: Stage, shape_before: tuple[int, ...], cut: StripeCut) -> tuple[Ints, Ints]:
    """Return what every stripe of a stage reads of the whole layer before, and over how many connections.

    Parameters
    ----------
    stage
        A layer of the chain.
    shape_before
        Of the output of the layer before, which a fully-connected stage may flatten.
    cut
        The stripes of the stage's output.
    """
    if stage.kind == _FULLY_CONNECTED:
        other = prod(shape_before)
        return (cut.size > 0) * other, _connections(stage, cut.size * other, stage.num_neurons * other)
    rows = _window_rows(stage)
    return (
        _union(rows.reads, cut) * rows.inputs_of_a_row,
        _whole(_between(rows.times.sum(axis=1), *cut.rows) * rows.connections_of_a_row),
    )


def _read_by(stage: Stage, shape: tuple[int, ...], cut: StripeCut) -> tuple[Ints, Ints]:
    """Return by how much of a stage the stripes of the layer before are read, and over how many connections."""
    if stage.kind == _FULLY_CONNECTED:
        other = stage.num_neurons
        return (cut.size > 0) * other, _connections(stage, cut.size * other, prod(shape) * other)
    rows = _window_rows(stage)
    return (
        _union(rows.reads.T, cut) * rows.outputs_of_a_row,
        _whole(_between(rows.times.sum(axis=0), *cut.rows) * rows.connections_of_a_row),
    )


def _connections(stage: Stage, pairs: Ints, all_pairs: int) -> Ints:
    """Return a stage's connections between so many of all pairs of neurons."""
    return _whole(np.asarray(pairs * (stage.num_connections / all_pairs), dtype=np.float64))


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
