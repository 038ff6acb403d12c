"""The GST model of training with parameter servers, and its parts on their own.

A block gives one or more of ``iteration``, ``stragglers``, ``queue`` and ``compression``; the answer has the same
names. Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with
Parameter Server.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from planner import zoo
from planner.data.devices import device
from planner.models.communication import Compression, optimal_compression, optimal_scale_s
from planner.models.compute import profile_from_flop
from planner.models.data_parallel import expected_maximum_s, standard_maximum
from planner.models.servers import ServerNetwork, queueing_s
from planner.models.ssgd import Workload, evaluate
from planner.question.values import Bytes, Count, Model, Name, Positive, Rate, Seconds

__all__ = ["CompressionInputs", "Inputs", "IterationInputs", "QueueInputs", "StragglersInputs", "answer"]

_NUMBER_BYTES = 4  # gradients travel in fp32
Share = Annotated[float, Field(ge=0, le=1)]
Variant = Literal["corrected", "printed"]


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
