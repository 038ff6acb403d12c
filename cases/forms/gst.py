"""The GST model of training with parameter servers, and its parts on their own.

A block gives one or more of ``iteration``, ``stragglers``, ``queue`` and ``compression``; the answer has the same
names. Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with
Parameter Server. How one iteration composes its pipelines, network, stragglers and compression (section V-C) stands
first: all configurations are computed at once, by broadcasting. The paper names the speed-up and the
communication-to-computation ratio and defines neither; definitions are at :class:`Evaluation`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from planner import zoo
from planner.cost import Floats
from planner.data.devices import device
from planner.errors import ModelError
from planner.frozen import frozen
from planner.models.compression import Compression, optimal_compression, optimal_scale_s
from planner.models.compute import profile_from_flop
from planner.models.data_parallel import expected_maximum_s, standard_maximum
from planner.models.servers import switch_queue_s, type_one_s, type_two_s
from planner.question.values import Bytes, Count, Model, Name, Positive, Rate, Seconds

_NUMBER_BYTES = 4  # gradients travel in fp32
Share = Annotated[float, Field(ge=0, le=1)]
Variant = Literal["corrected", "printed"]


# -- by packets: equations 10 to 18 of the model, and the pipeline of layers: equations 3, 4 and 6 ---------------------
#
# ``packets`` are those of each layer, the last axis; they may be fractional, and are broadcast against the network's
# bandwidth, whose axes come first.


@frozen(eq=False)
class ServerNetwork:
    """Workers, servers and what lies between them.

    Raises
    ------
    ModelError
        If a number is outside its range; the message names it.
    """

    # num_workers, num_servers: ``N`` and ``K``; >= 1
    num_workers: int
    num_servers: int = 1
    # ``B``, of every link, one direction. An array asks about many networks at once; a scalar is one network
    bandwidth_bytes_per_s: float | Floats
    packet_bytes: float = 1500.0  # ``pks``
    # base_delay_s, volume_factor: start-up, propagation and processing of one transfer, and ``alpha``, bytes on the
    # wire per byte of packets
    base_delay_s: float = 0.0
    volume_factor: float = 1.0
    # switch_packets_per_s, num_hops: ``S_f``, and ``h``, the hops over the barrier link. The default forwards at once
    switch_packets_per_s: float = float("inf")
    num_hops: int = 1
    # aggregation_startup_s, aggregation_s_per_packet: ``a`` and ``b`` of adding up one granularity
    aggregation_startup_s: float = 0.0
    aggregation_s_per_packet: float = 0.0
    granularity_packets: float | None = None  # ``G``; None for the default, a server's whole share of the layer
    # where between the least (0) and the largest (1) aggregation delay; the paper's tunable parameter
    delay_mix: float = 0.5
    # Eq. 11 as printed; see :func:`planner.models.servers.switch_queue_s`
    is_queue_printed: bool = False

    def __post_init__(self) -> None:
        """Refuse what no equation holds for."""
        rates = np.asarray(self.bandwidth_bytes_per_s)
        self._check("num_workers", "1 or more", self.num_workers >= 1)
        self._check("num_servers", "1 or more", self.num_servers >= 1)
        self._check("bandwidth_bytes_per_s", "finite and positive", bool((np.isfinite(rates) & (rates > 0)).all()))
        self._check("switch_packets_per_s", "positive; inf forwards at once", self.switch_packets_per_s > 0)
        self._check("delay_mix", "from 0 to 1", 0 <= self.delay_mix <= 1)
        for name in ("packet_bytes", "volume_factor", "granularity_packets"):
            value = getattr(self, name)
            self._check(name, "finite and positive", value is None or 0 < value < float("inf"))
        for name in ("base_delay_s", "num_hops", "aggregation_startup_s", "aggregation_s_per_packet"):
            self._check(name, "finite and not negative", 0 <= getattr(self, name) < float("inf"))

    def _check(self, name: str, wanted: str, is_fine: bool) -> None:
        """Refuse a number outside its range."""
        if not is_fine:
            raise ModelError(f"{name} is {getattr(self, name)}. It must be {wanted}.")

    @property
    def packet_time_s(self) -> Floats:
        """Seconds of one packet on a link, ``pks / B``."""
        return np.asarray(self.packet_bytes / np.asarray(self.bandwidth_bytes_per_s))


def queueing_s(network: ServerNetwork) -> Floats:
    """Return one packet's time at the barrier link; see :func:`planner.models.servers.switch_queue_s`."""
    return switch_queue_s(
        network.bandwidth_bytes_per_s,
        packet_bytes=network.packet_bytes,
        switch_packets_per_s=network.switch_packets_per_s,
        num_hops=network.num_hops,
        is_printed=network.is_queue_printed,
    )


def num_packets(size_bytes: ArrayLike, packet_bytes: float) -> Floats:
    """Return ``PN``, the packets that carry so many bytes, rounded up.

    Parameters
    ----------
    size_bytes
        Bytes to carry; an array of any shape.
    packet_bytes
        Bytes of a packet; > 0.

    >>> num_packets([0, 1, 3000], 1500).tolist()
    [0.0, 1.0, 2.0]
    """
    return np.asarray(np.ceil(np.asarray(size_bytes, dtype=np.float64) / packet_bytes))


def transfer_s(network: ServerNetwork, packets: ArrayLike) -> Floats:
    """Return the seconds of one direction of one layer: eq. 10 and eq. 12 together; 0 for no packets.

    Notes
    -----
    ``base + alpha PN pks/B`` on the other links, and one packet's sojourn on the barrier link, whose whole volume is
    charged as aggregation delay. The last axis is the layers', before it those of the bandwidth.
    """
    number = np.asarray(packets, dtype=np.float64)
    start = network.base_delay_s + queueing_s(network)[..., None]
    volume = network.volume_factor * number * network.packet_time_s[..., None]
    return np.where(number > 0, start + volume, 0.0)


def granularity_packets(network: ServerNetwork, packets: ArrayLike) -> Floats:
    """Return ``G``, what a server adds up at once: its share ``PN / K`` unless a smaller one is given (eq. 13)."""
    share = np.asarray(packets, dtype=np.float64) / network.num_servers
    return share if network.granularity_packets is None else np.minimum(share, network.granularity_packets)


def aggregation_delay_bounds_s(network: ServerNetwork, packets: ArrayLike) -> tuple[Floats, Floats]:
    """Return the least and the largest wait for a complete granularity (eqs. 15 and 16).

    Notes
    -----
    ``G pks/B`` where one worker is far ahead, ``(N G - N + 1) pks/B`` where all keep pace. Print leaves out pks. Below
    one packet G is its own upper bound, too.
    """
    size = granularity_packets(network, packets)
    others = (network.num_workers - 1) * np.maximum(size - 1, 0)
    packet_s = network.packet_time_s[..., None]
    return size * packet_s, (size + others) * packet_s


def aggregation_s(network: ServerNetwork, packets: ArrayLike) -> Floats:
    """Return the seconds until the last server has added up a layer of all workers (eq. 18); 0 for no packets.

    Notes
    -----
    ``delay + N ceil(PN / (G K)) (a + b G)``, the inner sum being eq. 14. With the default G the ceiling is 1. Workers'
    granularities queue at each server, and servers share a layer evenly.
    """
    number = np.asarray(packets, dtype=np.float64)
    least, most = aggregation_delay_bounds_s(network, number)
    size = granularity_packets(network, number)
    rounds = np.ceil(number / np.where(size > 0, size * network.num_servers, 1.0) * (1 - 1e-12))  # 3.0000000004 is 3
    each_s = network.aggregation_startup_s + network.aggregation_s_per_packet * size
    delay_s = least + network.delay_mix * (most - least)
    return np.where(number > 0, delay_s + network.num_workers * rounds * each_s, 0.0)


@frozen(eq=False)
class NetworkExchange:
    """Seconds of every layer's push, aggregation and pull, nothing overlapped."""

    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats


def exchange(network: ServerNetwork, packets: ArrayLike) -> NetworkExchange:
    """Return the seconds of every layer's exchange, in the shape of the bandwidth, then of the layers."""
    one_way_s = transfer_s(network, packets)
    return NetworkExchange(push_s=one_way_s, aggregate_s=aggregation_s(network, packets), pull_s=one_way_s)


@frozen(eq=False)
class LayerTimes:
    """Seconds of every layer, in backward order along the last axis; the axes before it are broadcast."""

    backward_s: Floats
    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats


@frozen(eq=False)
class Overlapped:
    """Explicit seconds of an iteration's backward pass and of what it does not hide; they sum to its length."""

    backward_s: Floats
    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats

    @property
    def exposed_s(self) -> Floats:
        """Communication and aggregation that remain visible after the backward pass."""
        return self.push_s + self.aggregate_s + self.pull_s


def overlap_layers(layers: LayerTimes) -> Overlapped:
    """Return the explicit seconds of the layer pipeline (eq. 6).

    Parameters
    ----------
    layers
        Seconds of every layer's processes, in backward order along the last axis.

    Notes
    -----
    Backward is of type I, the others of type II; the differences are taken at the last layer. A pull neither delays
    the push of the next layer nor is it delayed by it: links are full duplex.
    """
    ends = [type_one_s(layers.backward_s)]
    for duration_s in (layers.push_s, layers.aggregate_s, layers.pull_s):
        ends.append(type_two_s(ends[-1], duration_s))
    backward, push, aggregate, pull = (end[..., -1] for end in ends)
    return Overlapped(
        backward_s=backward, push_s=push - backward, aggregate_s=aggregate - push, pull_s=pull - aggregate
    )


def cut_into_pieces(size_bytes: ArrayLike, backward_s: ArrayLike, piece_bytes: float) -> tuple[Floats, Floats]:
    """Return sizes and backward seconds of pieces that travel on their own, as BytePS cuts tensors.

    Each layer gives whole pieces and a remainder, all ready when its backward ends: the first piece carries the time.

    Parameters
    ----------
    size_bytes, backward_s
        Of each layer, shape (layers,), in backward order; not negative.
    piece_bytes
        The most that travels on its own; > 0.

    Raises
    ------
    ModelError
        If a piece has no bytes.
    """
    if not piece_bytes > 0:
        raise ModelError(f"piece_bytes is {piece_bytes}. It must be positive.")
    sizes, times = np.atleast_1d(np.asarray(size_bytes, dtype=float)), np.atleast_1d(np.asarray(backward_s, float))
    counts = np.maximum(np.ceil(sizes / piece_bytes), 1).astype(int)
    last = np.cumsum(counts) - 1
    cut = np.full(last[-1] + 1, float(piece_bytes))
    cut[last] = sizes - (counts - 1) * piece_bytes
    ready = np.zeros_like(cut)
    ready[last - counts + 1] = times
    return cut, ready


# -- one iteration, for one configuration or a whole grid -------------------------------------------------------------


@frozen(eq=False)
class Workload:
    """One worker's iteration at compute speed 1.

    Raises
    ------
    ModelError
        If a number is negative or not finite, or nothing is computed.
    """

    # size_bytes, backward_s: of every layer's gradient, and of its backward pass, in backward order; at least one layer
    size_bytes: Floats
    backward_s: Floats
    # forward_s, update_s, input_s: of the whole network. Input takes the same at every compute speed: it is storage's
    forward_s: float
    update_s: float = 0.0
    input_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no ratio is defined for."""
        for name in ("size_bytes", "backward_s", "forward_s", "update_s", "input_s"):
            values = np.asarray(getattr(self, name))
            if not (np.isfinite(values) & (values >= 0)).all():
                raise ModelError(f"{name} is {values}. It must be finite and not negative.")
        if not self.compute_s > 0:
            raise ModelError("forward, backward and update take 0 s. Ratios need some computation.")

    @property
    def compute_s(self) -> float:
        """Forward, backward and update."""
        return self.forward_s + float(np.sum(self.backward_s)) + self.update_s

    def in_pieces(self, piece_bytes: float) -> "Workload":
        """Return the same with every gradient cut into pieces."""
        sizes, times = cut_into_pieces(self.size_bytes, self.backward_s, piece_bytes)
        return replace(self, size_bytes=sizes, backward_s=times)


@frozen(eq=False)
class Evaluation:
    """Arrays of one shape, a number for each configuration."""

    iteration_time_s: Floats  # a steady iteration: all but the first, which also shows all of its input
    # computation_s, exposed_s: forward, backward and update; and the communication and aggregation that the backward
    # pass does not hide
    computation_s: Floats
    exposed_s: Floats
    input_s: Floats  # input that is not hidden
    first_input_s: float
    speed_up: Floats  # samples a second against one worker without servers: ``N T_1 / T_N``, at most N
    # ``exposed_s / computation_s``. Where nothing else delays, the speed-up is ``N / (1 + ratio)``
    communication_to_computation: Floats

    def epoch_time_s(self, num_iterations: int) -> Floats:
        """Return eq. 9 for equal iterations: the steady ones, and the input of the first that nothing hides."""
        return num_iterations * self.iteration_time_s + (self.first_input_s - self.input_s)


def evaluate(
    workload: Workload,
    network: ServerNetwork,
    *,
    compute_speed: ArrayLike = 1.0,
    sigma_s: float = 0.0,
    compression: Compression | None = None,
) -> Evaluation:
    """Return the time of an iteration and its parts.

    Parameters
    ----------
    compute_speed
        How many times faster than the workload says; > 0. Arrays of it, of the network's bandwidth and of the
        compression's ratio broadcast against each other.
    sigma_s
        Of one worker's time from barrier to barrier, the paper's tunable parameter. It does not shrink with speed.
    compression
        Its time is shared out over the layers by their packets.

    Raises
    ------
    ModelError
        Where the barrier link is saturated, the speed is not positive, or sigma is negative.

    Notes
    -----
    ``max(input, computation + exposed) + sigma e_N``: with equal iterations, eqs. 1 to 9 come to this one line.
    """
    speed = np.asarray(compute_speed, dtype=np.float64)
    if not ((speed > 0).all() and sigma_s >= 0):
        raise ModelError(f"compute_speed is {speed} and sigma_s {sigma_s}. Give > 0, and 0 or more.")
    packets = num_packets(workload.size_bytes, network.packet_bytes)
    sent = exchange(network, packets * (1.0 if compression is None else compression.kept[..., None]))
    push_s = sent.push_s
    if compression is not None:  # a part of the push
        push_s = push_s + compression.time_s[..., None] * packets / np.maximum(packets.sum(), 1.0)
    backward_s = workload.backward_s / speed[..., None]
    layers = LayerTimes(backward_s=backward_s, push_s=push_s, aggregate_s=sent.aggregate_s, pull_s=sent.pull_s)
    overlapped = overlap_layers(layers)
    computation_s, exposed_s = workload.compute_s / speed, overlapped.exposed_s
    rest_s = computation_s + exposed_s
    input_s = np.maximum(0.0, workload.input_s - rest_s)
    iteration_time_s = rest_s + input_s + sigma_s * standard_maximum(network.num_workers)
    return Evaluation(
        iteration_time_s=iteration_time_s,
        computation_s=computation_s,
        exposed_s=exposed_s,
        input_s=input_s,
        first_input_s=workload.input_s,
        speed_up=network.num_workers * np.maximum(workload.input_s, computation_s) / iteration_time_s,
        communication_to_computation=exposed_s / computation_s,
    )


# -- a case's questions ------------------------------------------------------------------------------------------------


class CompressionInputs(Model):
    """``k`` and ``A`` of ``A x + k / x^2``, where x is the share kept; give k for the best share, or x for its k."""

    transfer: Seconds
    scale: Seconds | None = None
    kept: Share | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.scale is None) == (self.kept is None):
            raise ValueError("give exactly one of scale and kept.")
        return self


class StragglersInputs(Model):
    """N equal workers; or a mean and a sigma for each."""

    num_workers: Count | None = None
    means: list[Seconds] = []
    sigmas: list[Seconds] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.num_workers is None) == (not self.means) or len(self.means) != len(self.sigmas):
            raise ValueError("give num_workers, or as many means as sigmas.")
        return self


class QueueInputs(Model):
    """A barrier link; ``switch`` is how fast it forwards, packets of ``packet`` bytes."""

    bandwidth: Rate
    packet: Bytes
    switch: Rate
    hops: Count = 1
    equation_11: Variant = "corrected"


class RatioInputs(Model):
    """What compression removes, and the seconds ``k`` it takes to remove next to nothing."""

    removed: Share
    scale: Seconds


class IterationInputs(Model):
    """A network of the zoo on workers and servers; what a parameter means is said at ``ServerNetwork``."""

    dnn: Name
    batch_per_worker: Count
    device: Name
    utilisation: Positive
    num_workers: Count
    num_servers: Count = 1
    bandwidth: Rate
    packet: Bytes
    piece: Bytes | None = None
    base_delay: Seconds = 0.0
    volume_factor: Positive = 1.0
    switch: Rate | None = None
    hops: Count = 1
    equation_11: Variant = "corrected"
    aggregation_startup: Seconds = 0.0
    aggregation: Rate | None = None
    granularity: Bytes | None = None
    delay_mix: Share = 0.5
    sigma: Seconds = 0.0
    input: Seconds = 0.0
    update: Seconds = 0.0
    compression: RatioInputs | None = None
    iterations_per_epoch: Count = 1


class Inputs(Model):
    """At least one part."""

    iteration: IterationInputs | None = None
    stragglers: StragglersInputs | None = None
    queue: QueueInputs | None = None
    compression: CompressionInputs | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("give iteration, stragglers, queue or compression.")
        return self


def answer(inputs: Inputs) -> Mapping[str, Any]:
    """Return the numbers of every part that is given."""
    parts = {
        "iteration": inputs.iteration and _iteration(inputs.iteration),
        "stragglers": inputs.stragglers and _stragglers(inputs.stragglers),
        "queue": inputs.queue and _queue(inputs.queue),
        "compression": inputs.compression and _compression(inputs.compression),
    }
    return {name: part for name, part in parts.items() if part is not None}


def _iteration(inputs: IterationInputs) -> Mapping[str, float]:
    """Return one steady iteration and its parts, and an epoch."""
    ratio = inputs.compression
    compression = None if ratio is None else Compression(removed=ratio.removed, scale_s=ratio.scale)
    found = evaluate(_workload(inputs), _network(inputs), sigma_s=inputs.sigma, compression=compression)
    return {
        "iteration_time_s": float(found.iteration_time_s),
        "epoch_time_s": float(found.epoch_time_s(inputs.iterations_per_epoch)),
        "computation_s": float(found.computation_s),
        "exposed_s": float(found.exposed_s),
        "speed_up": float(found.speed_up),
        "communication_to_computation": float(found.communication_to_computation),
    }


def _workload(inputs: IterationInputs) -> Workload:
    """Return the network's gradients and seconds, by FLOP, in backward order and in pieces."""
    dnn = zoo.build(inputs.dnn)
    profile = profile_from_flop(dnn, device(inputs.device), dtype="fp32", utilisation=inputs.utilisation)
    whole = Workload(
        size_bytes=np.array([layer.num_trainable * float(_NUMBER_BYTES) for layer in reversed(dnn.layers)]),
        backward_s=profile.backward_s[::-1] * inputs.batch_per_worker,
        forward_s=float(profile.forward_s.sum()) * inputs.batch_per_worker,
        update_s=inputs.update,
        input_s=inputs.input,
    )
    return whole if inputs.piece is None else whole.in_pieces(inputs.piece)


def _network(inputs: IterationInputs) -> ServerNetwork:
    """Return workers, servers and links; rates of bytes become rates of packets."""
    return ServerNetwork(
        num_workers=inputs.num_workers,
        num_servers=inputs.num_servers,
        bandwidth_bytes_per_s=inputs.bandwidth,
        packet_bytes=inputs.packet,
        base_delay_s=inputs.base_delay,
        volume_factor=inputs.volume_factor,
        switch_packets_per_s=float("inf") if inputs.switch is None else inputs.switch / inputs.packet,
        num_hops=inputs.hops,
        aggregation_startup_s=inputs.aggregation_startup,
        aggregation_s_per_packet=0.0 if inputs.aggregation is None else inputs.packet / inputs.aggregation,
        granularity_packets=None if inputs.granularity is None else inputs.granularity / inputs.packet,
        delay_mix=inputs.delay_mix,
        is_queue_printed=inputs.equation_11 == "printed",
    )


def _stragglers(inputs: StragglersInputs) -> Mapping[str, float]:
    """Return ``e_N``, or the expected slowest of unequal workers."""
    if inputs.num_workers is not None:
        return {"standard_maximum": standard_maximum(inputs.num_workers)}
    return {"slowest_s": expected_maximum_s(inputs.means, inputs.sigmas)}


def _queue(inputs: QueueInputs) -> Mapping[str, float]:
    """Return a packet's time at the barrier link, and on an idle link."""
    network = ServerNetwork(
        num_workers=1,
        bandwidth_bytes_per_s=inputs.bandwidth,
        packet_bytes=inputs.packet,
        switch_packets_per_s=inputs.switch / inputs.packet,
        num_hops=inputs.hops,
        is_queue_printed=inputs.equation_11 == "printed",
    )
    return {"sojourn_s": float(queueing_s(network)), "packet_time_s": float(network.packet_time_s)}


def _compression(inputs: CompressionInputs) -> Mapping[str, float]:
    """Return the best share to remove for k, or the k for which a share is the best."""
    if inputs.scale is None:
        removed = 1 - (inputs.kept or 0.0)
        return {"scale_s": optimal_scale_s(removed=removed, transfer_s=inputs.transfer), "transfer_s": inputs.transfer}
    best = optimal_compression(scale_s=inputs.scale, transfer_s=inputs.transfer)
    return {"removed": best.removed, "time_s": best.time_s, "transfer_s": inputs.transfer}
