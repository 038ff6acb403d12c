"""Where the time of an iteration goes, for one configuration or a whole grid: section V-C of the GST model.

Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter
Server. Composes its pipelines, network, stragglers and compression; all configurations are computed at once, by
broadcasting. The paper names the speed-up and the communication-to-computation ratio and defines neither; definitions
are at :class:`Evaluation`.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.compression import Compression
from planner.models.server_network import ServerNetwork, exchange, num_packets
from planner.models.server_pipeline import LayerTimes, cut_into_pieces, overlap_layers
from planner.models.stragglers import standard_maximum

__all__ = ["BOTTLENECKS", "Bottleneck", "Evaluation", "Workload", "evaluate", "evaluate_grid"]


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
    layers = _layer_times(workload, network, packets, speed, compression)
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


def _layer_times(
    workload: Workload, network: ServerNetwork, packets: Floats, speed: Floats, compression: Compression | None
) -> LayerTimes:
    """Return the seconds of every layer, with compression as a part of the push."""
    kept = 1.0 if compression is None else compression.kept[..., None]
    sent = exchange(network, packets * kept)
    push_s = sent.push_s
    if compression is not None:
        push_s = push_s + compression.time_s[..., None] * packets / np.maximum(packets.sum(), 1.0)
    backward_s = workload.backward_s / speed[..., None]
    return LayerTimes(backward_s=backward_s, push_s=push_s, aggregate_s=sent.aggregate_s, pull_s=sent.pull_s)


def evaluate_grid(
    workload: Workload,
    network: ServerNetwork,
    *,
    bandwidth_bytes_per_s: ArrayLike,
    compute_speed: ArrayLike,
    sigma_s: float = 0.0,
) -> Evaluation:
    """Return every bandwidth (rows) with every compute speed (columns): the grid of the paper's Figure 5."""
    rows = replace(network, bandwidth_bytes_per_s=np.asarray(bandwidth_bytes_per_s, dtype=np.float64)[:, None])
    return evaluate(workload, rows, compute_speed=np.asarray(compute_speed)[None, :], sigma_s=sigma_s)
