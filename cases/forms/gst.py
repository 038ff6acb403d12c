"""The GST model of training with parameter servers, and its parts on their own.

A block gives one or more of ``iteration``, ``stragglers``, ``queue`` and ``compression``; the answer has the same
names. Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with
Parameter Server. How one iteration composes its pipelines, network, stragglers and compression (section V-C) stands
first: all configurations are computed at once, by broadcasting. The paper names the speed-up and the
communication-to-computation ratio and defines neither; definitions are at :class:`Evaluation`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from planner import zoo
from planner.cost import Floats
from planner.data.devices import device
from planner.errors import ModelError
from planner.models.communication import Compression, optimal_compression, optimal_scale_s
from planner.models.compute import profile_from_flop
from planner.models.data_parallel import expected_maximum_s, standard_maximum
from planner.models.servers import (
    LayerTimes,
    ServerNetwork,
    cut_into_pieces,
    exchange,
    num_packets,
    overlap_layers,
    queueing_s,
)
from planner.question.values import Bytes, Count, Model, Name, Positive, Rate, Seconds

__all__ = [
    "BOTTLENECKS",
    "Bottleneck",
    "CompressionInputs",
    "Evaluation",
    "Inputs",
    "IterationInputs",
    "QueueInputs",
    "StragglersInputs",
    "Workload",
    "answer",
    "evaluate",
]

_NUMBER_BYTES = 4  # gradients travel in fp32
Share = Annotated[float, Field(ge=0, le=1)]
Variant = Literal["corrected", "printed"]


# -- one iteration, for one configuration or a whole grid -------------------------------------------------------------


class Bottleneck(StrEnum):
    """What keeps an iteration from being shorter, in the order of :data:`BOTTLENECKS`."""

    INPUT = "input"
    COMPUTATION = "computation"
    PUSH = "push"
    AGGREGATION = "aggregation"
    PULL = "pull"


BOTTLENECKS = tuple(Bottleneck)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """One worker's iteration at compute speed 1.

    Attributes
    ----------
    size_bytes, backward_s
        Of every layer's gradient, and of its backward pass, in backward order; at least one layer.
    forward_s, update_s, input_s
        Of the whole network. Input takes the same at every compute speed: it is storage's.

    Raises
    ------
    ModelError
        If a number is negative or not finite, or nothing is computed.
    """

    size_bytes: Floats
    backward_s: Floats
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Arrays of one shape, a number for each configuration.

    Attributes
    ----------
    iteration_time_s
        A steady iteration: all but the first, which also shows all of its input.
    computation_s, exposed_s
        Forward, backward and update; and the communication and aggregation that the backward pass does not hide.
    input_s, straggling_s
        Input that is not hidden, and what the slowest worker takes longer than the mean, ``sigma e_N``.
    speed_up
        Samples a second against one worker without servers: ``N T_1 / T_N``, at most N.
    communication_to_computation
        ``exposed_s / computation_s``. Where nothing else delays, the speed-up is ``N / (1 + ratio)``.
    bottleneck_index
        Into :data:`BOTTLENECKS`: the resource that is busy for longest, which bounds the iteration from below
        however well all overlap; ties go to the first.
    """

    iteration_time_s: Floats
    computation_s: Floats
    exposed_s: Floats
    input_s: Floats
    first_input_s: float
    straggling_s: float
    speed_up: Floats
    communication_to_computation: Floats
    bottleneck_index: np.ndarray[tuple[int, ...], np.dtype[np.intp]]

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
    straggling_s = sigma_s * standard_maximum(network.num_workers)
    iteration_time_s = rest_s + input_s + straggling_s
    busy = (computation_s, *(np.sum(one, axis=-1) for one in (layers.push_s, layers.aggregate_s, layers.pull_s)))
    return Evaluation(
        iteration_time_s=iteration_time_s,
        computation_s=computation_s,
        exposed_s=exposed_s,
        input_s=input_s,
        first_input_s=workload.input_s,
        straggling_s=straggling_s,
        speed_up=network.num_workers * np.maximum(workload.input_s, computation_s) / iteration_time_s,
        communication_to_computation=exposed_s / computation_s,
        bottleneck_index=np.argmax(np.stack(np.broadcast_arrays(workload.input_s, *busy)), axis=0),
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
    found = evaluate(
        _workload(inputs),
        _network(inputs),
        sigma_s=inputs.sigma,
        compression=compression,
    )
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
