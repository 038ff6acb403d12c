"""Push, aggregation and pull through parameter servers, by packets: equations 10 to 18 of the GST model.

Source: X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter
Server, section IV. Print counts bits and packets; here packets have bytes, and rates are bytes/s. A layer's packets may
be fractional, since compression keeps a share of them. Left out, as there: the worker's link and the server's
delay are added although the same packets pass both, and nothing depends on how many layers are on the way.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.errors import ModelError

__all__ = [
    "BarrierLink",
    "Exchange",
    "ServerNetwork",
    "aggregation_delay_bounds_s",
    "aggregation_s",
    "barrier_link",
    "decoupled_maximum_s",
    "exchange",
    "granularity_packets",
    "num_packets",
    "queueing_s",
    "transfer_s",
]


class BarrierLink(StrEnum):
    """Which links hold up the barrier (definition 7)."""

    SERVERS = "servers"  # fewer servers than workers: from the switch to each server
    WORKERS = "workers"  # else: from the switch to each worker


def barrier_link(*, num_workers: int, num_servers: int) -> BarrierLink:
    """Return the barrier link: the servers' links where there are fewer servers than workers."""
    return BarrierLink.SERVERS if num_servers < num_workers else BarrierLink.WORKERS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerNetwork:
    """Workers, servers and what lies between them.

    Parameters
    ----------
    num_workers, num_servers
        ``N`` and ``K``; >= 1.
    bandwidth_bytes_per_s
        ``B``, of every link, one direction. An array asks about many networks at once; a scalar is one network.
    packet_bytes
        ``pks``.
    base_delay_s, volume_factor
        Start-up, propagation and processing of one transfer, and ``alpha``, bytes on the wire per byte of packets.
    switch_packets_per_s, num_hops
        ``S_f``, and ``h``, the hops over the barrier link. The default forwards at once.
    aggregation_startup_s, aggregation_s_per_packet
        ``a`` and ``b`` of adding up one granularity.
    granularity_packets
        ``G``; None for the default, a server's whole share of the layer.
    delay_mix
        Where between the least (0) and the largest (1) aggregation delay; the paper's tunable parameter.
    is_queue_printed
        Eq. 11 as printed; see :func:`queueing_s`.

    Raises
    ------
    ModelError
        If a number is outside its range; the message names it.
    """

    num_workers: int
    num_servers: int = 1
    bandwidth_bytes_per_s: float | Floats
    packet_bytes: float = 1500.0
    base_delay_s: float = 0.0
    volume_factor: float = 1.0
    switch_packets_per_s: float = float("inf")
    num_hops: int = 1
    aggregation_startup_s: float = 0.0
    aggregation_s_per_packet: float = 0.0
    granularity_packets: float | None = None
    delay_mix: float = 0.5
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


# -- communication ---------------------------------------------------------------------------------------------------


def num_packets(size_bytes: ArrayLike, packet_bytes: float) -> Floats:
    """Return ``PN``, the packets that carry so many bytes, rounded up.

    >>> num_packets([0, 1, 3000], 1500).tolist()
    [0.0, 1.0, 2.0]
    """
    return np.asarray(np.ceil(np.asarray(size_bytes, dtype=np.float64) / packet_bytes))


def queueing_s(network: ServerNetwork) -> Floats:
    """Return one packet's time at the barrier link, waiting and forwarding (eqs. 11 and 12).

    Raises
    ------
    ModelError
        If packets arrive as fast as the switch forwards them, or faster: the queue then grows without end.

    Notes
    -----
    M/M/1: ``h / (S_f - lambda)`` with ``lambda = B / pks`` packets/s. Print has ``lambda = 1/B``, which is right
    only where B means seconds per packet; taken literally, with B in bit/s, the load is next to nothing
    (``is_queue_printed``). Arrivals are those of one saturated link, however many workers send.

    >>> half = ServerNetwork(num_workers=2, bandwidth_bytes_per_s=1e6, packet_bytes=1000, switch_packets_per_s=2000)
    >>> float(queueing_s(half)), float(half.packet_time_s)
    (0.001, 0.001)
    """
    if network.switch_packets_per_s == float("inf"):
        return np.zeros_like(network.packet_time_s)
    bits_per_s = 8 * np.asarray(network.bandwidth_bytes_per_s)
    arrivals = 1 / bits_per_s if network.is_queue_printed else 1 / network.packet_time_s
    if (most := float(np.max(arrivals))) >= network.switch_packets_per_s:
        raise ModelError(
            f"the barrier link is saturated: {most:.6g} packets/s of {network.packet_bytes:g} bytes arrive, and the "
            f"switch forwards {network.switch_packets_per_s:.6g}/s. Raise switch_packets_per_s above the arrivals, "
            "lower bandwidth_bytes_per_s, or enlarge packet_bytes."
        )
    return np.asarray(network.num_hops / (network.switch_packets_per_s - arrivals))


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


# -- aggregation -----------------------------------------------------------------------------------------------------


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


def decoupled_maximum_s(gst_s: ArrayLike, aggregate_s: ArrayLike) -> Floats:
    """Return ``max_n(GST - t_ag) + max_n t_ag``, over the first axis (eq. 17): an upper bound on ``max_n GST``.

    Print uses it as an equality, which holds where one worker is the slowest in both.
    """
    whole, aggregation = np.asarray(gst_s, dtype=np.float64), np.asarray(aggregate_s, dtype=np.float64)
    return np.asarray((whole - aggregation).max(axis=0) + aggregation.max(axis=0))


# -- a layer's whole exchange ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """Seconds of every layer's push, aggregation and pull, nothing overlapped."""

    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats


def exchange(network: ServerNetwork, packets: ArrayLike) -> Exchange:
    """Return the seconds of every layer's exchange, in the shape of the bandwidth, then of the layers."""
    one_way_s = transfer_s(network, packets)
    return Exchange(push_s=one_way_s, aggregate_s=aggregation_s(network, packets), pull_s=one_way_s)
