"""Parameter servers in lockstep: pushes, aggregation and pulls of one iteration, on links and by packets.

*Several servers* (:class:`Links`, :func:`push_end_s`, :func:`pull_time_s`): tensors spread over them, each server and
each worker with its own link. Beyond Y. Zeng et al., Int. J. Intelligent Systems, 2023, doi:10.1155/2023/2663115, who
name it as future work; with one server and unlimited workers' links it is their Algorithm 1, Algorithm 2 or its
segments, by what is given as ready times. Links are full duplex, behind a switch that is never the bottleneck. A worker
sends its tensors one after the other, as they get ready, at the speed of its own link; what has arrived waits at the
server's link, which works whenever something waits. Bytes flow on while the rest of their tensor is still being sent.
What a worker owes the server on its own machine takes no link: it is there when it is computed. Leaves out latency,
headers, the switch's finite buffers (a congested server slows no sender down), and the servers' own work.

*By packets* (:class:`ServerNetwork`, :func:`exchange`): equations 10 to 18 of the GST model, X. Zhang et al.,
Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter Server, section IV. Print
counts bits and packets; here packets have bytes, and rates are bytes/s. A layer's packets may be fractional, since
compression keeps a share of them. Left out, as there: the worker's link and the server's delay are added although the
same packets pass both, and nothing depends on how many layers are on the way.

*The pipeline of layers* (:func:`overlap_layers`): equations 3, 4 and 6 of the same paper, section III. Its processes
are forward and backward (FP, BP), push (its forward communication, FC), aggregation (AG) and pull (its backward
communication, BC). The last axis of every array is the pipeline's: layers in backward order.

*One server and unequal workers* (:class:`BspExchange`, :func:`algorithm_1_time_s`): Zeng et al., equations 28 to 33,
Algorithms 1 and 2. Every worker computes, pushes all gradients through the server's link, which serves one push after
the other, and pulls; the pulls come last, all together, and overlap with nothing. Leaves out the server's own work,
latency, and the workers' links.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.channel import fifo_end_s
from planner.cost import Floats
from planner.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Bandwidth of every link, per direction.

    Attributes
    ----------
    server_bytes_per_s
        One per server; > 0 and finite.
    worker_bytes_per_s
        One per worker, or per kind of equal workers; > 0, ``inf`` where it is no bottleneck.
    worker_counts
        How many equal workers each entry stands for; left out, one.
    worker_homes
        The server on each worker's own machine, None for none; left out, none. A worker with one stands for itself.
    """

    server_bytes_per_s: tuple[float, ...]
    worker_bytes_per_s: tuple[float, ...]
    worker_counts: tuple[int, ...] = ()
    worker_homes: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.server_bytes_per_s or not self.worker_bytes_per_s:
            counts = f"{len(self.server_bytes_per_s)} servers and {len(self.worker_bytes_per_s)} workers"
            raise ModelError(f"there must be at least one server and one worker, not {counts}.")
        if not all(0 < rate < math.inf for rate in self.server_bytes_per_s):
            raise ModelError(f"server_bytes_per_s must be finite and > 0, not {self.server_bytes_per_s}.")
        if not all(rate > 0 for rate in self.worker_bytes_per_s):
            raise ModelError(f"worker_bytes_per_s must be > 0, not {self.worker_bytes_per_s}.")
        kinds, homes = len(self.worker_bytes_per_s), [home for home in self.worker_homes if home is not None]
        if len(self.worker_counts) not in (0, kinds) or len(self.worker_homes) not in (0, kinds):
            raise ModelError(
                f"worker_counts and worker_homes must have one entry for each of {kinds} kinds of workers."
            )
        if any(count < 1 for count in self.worker_counts):
            raise ModelError(f"worker_counts must be 1 or more, not {self.worker_counts}.")
        if len(set(homes)) < len(homes) or any(not 0 <= home < len(self.server_bytes_per_s) for home in homes):
            raise ModelError(f"worker_homes must be different servers, from 0 on, not {self.worker_homes}.")
        if any(home is not None and count > 1 for count, home in zip(self.counts, self.homes, strict=True)):
            raise ModelError("several workers cannot share one machine with a server: give each its own entry.")

    @property
    def counts(self) -> tuple[int, ...]:
        """How many workers each entry stands for."""
        return self.worker_counts or (1,) * len(self.worker_bytes_per_s)

    @property
    def homes(self) -> tuple[int | None, ...]:
        """The server on each worker's own machine, or None."""
        return self.worker_homes or (None,) * len(self.worker_bytes_per_s)

    @property
    def num_workers(self) -> int:
        """All workers."""
        return sum(self.counts)

    @property
    def senders(self) -> NDArray[np.intp]:
        """How many workers send to each server over the network: all but one on its own machine."""
        at_home = [home for home in self.homes if home is not None]
        return self.num_workers - np.bincount(at_home, minlength=len(self.server_bytes_per_s))


# -- placements: bytes of each tensor (row) on each server (column) ----------------------------------------------------


def place_round_robin(size_bytes: ArrayLike, *, num_servers: int) -> Floats:
    """Return tensors dealt out in their order, as TensorFlow does by default.

    Parameters
    ----------
    size_bytes
        Of every tensor, shape (tensors,); finite and >= 0, at least one.
    num_servers
        Servers; >= 1.

    Raises
    ------
    ModelError
        If there is no tensor, a negative size, or no server.

    >>> place_round_robin([5, 3, 2], num_servers=2).tolist()
    [[5.0, 0.0], [0.0, 3.0], [2.0, 0.0]]
    """
    if num_servers < 1:
        raise ModelError(f"there must be at least 1 server, not {num_servers}.")
    sizes = _sizes(size_bytes)
    return _placed(sizes, np.arange(len(sizes)) % num_servers, num_servers)


def place_largest_first(size_bytes: ArrayLike, *, server_bytes_per_s: ArrayLike) -> Floats:
    """Return tensors placed one by one, the largest first, where the server would be done with its load soonest.

    Parameters
    ----------
    size_bytes
        Of every tensor, shape (tensors,); finite and >= 0, at least one.
    server_bytes_per_s
        Of each server's link, per direction, shape (servers,); finite and > 0.

    >>> place_largest_first([5, 3, 2], server_bytes_per_s=[1, 1]).tolist()
    [[5.0, 0.0], [0.0, 3.0], [0.0, 2.0]]
    """
    sizes, rates = _sizes(size_bytes), _rates(server_bytes_per_s)
    load, server_of = np.zeros_like(rates), np.zeros(len(sizes), dtype=np.intp)
    for index in np.argsort(-sizes, kind="stable"):
        server_of[index] = np.argmin((load + sizes[index]) / rates)
        load[server_of[index]] += sizes[index]
    return _placed(sizes, server_of, len(rates))


def place_sliced(size_bytes: ArrayLike, *, server_bytes_per_s: ArrayLike) -> Floats:
    """Return every tensor cut into one slice per server, as large as its link is fast: no server is a hot spot.

    Parameters
    ----------
    size_bytes
        Of every tensor, shape (tensors,); finite and >= 0, at least one.
    server_bytes_per_s
        Of each server's link, per direction, shape (servers,); finite and > 0.

    >>> place_sliced([6, 3], server_bytes_per_s=[2, 1]).tolist()
    [[4.0, 2.0], [2.0, 1.0]]
    """
    rates = _rates(server_bytes_per_s)
    return np.outer(_sizes(size_bytes), rates / rates.sum())


def _placed(sizes: Floats, server_of: NDArray[np.intp], num_servers: int) -> Floats:
    """Return whole tensors on their servers."""
    placed = np.zeros((len(sizes), num_servers))
    placed[np.arange(len(sizes)), server_of] = sizes
    return placed


def _sizes(size_bytes: ArrayLike) -> Floats:
    """Return the tensors' sizes; raise ModelError if there is none, or a negative one."""
    sizes = np.asarray(size_bytes, dtype=np.float64)
    if sizes.ndim != 1 or not sizes.size or not (np.isfinite(sizes).all() and (sizes >= 0).all()):
        raise ModelError(f"size_bytes must be a row of at least one finite number >= 0, not {sizes.tolist()}.")
    return sizes


def _rates(server_bytes_per_s: ArrayLike) -> Floats:
    """Return the servers' bandwidths, checked."""
    rates = np.asarray(server_bytes_per_s, dtype=np.float64)
    return np.array(Links(server_bytes_per_s=tuple(rates.tolist()), worker_bytes_per_s=(1.0,)).server_bytes_per_s)


# -- several servers: times --------------------------------------------------------------------------------------------


def push_end_s(ready_s: ArrayLike, placed_bytes: ArrayLike, links: Links) -> Floats:
    """Return when each server has received all gradients; 0 for a server that holds nothing.

    Parameters
    ----------
    ready_s
        When each worker (row) has computed the gradient of each tensor (column), in seconds; >= 0. Algorithm 1: the end
        of all computing, for every tensor; Algorithm 2: the end of the first part of the backward pass.
    placed_bytes
        Bytes of each tensor (row) on each server (column); finite and >= 0.
    links
        Of all servers and workers, per direction.

    Notes
    -----
    A worker's link serves first come first served; during its transfer a tensor's bytes reach the servers at a constant
    rate. A link that never idles while bytes wait ends at ``max over t of t + (bytes arriving from t on) / bandwidth``,
    and the maximum is at the start or end of a transfer.
    """
    ready, placed = _checked(ready_s, placed_bytes, links)
    column_of = _equal_columns(placed)
    kinds: Counter[_Kind] = Counter()
    at_home: dict[int, _Kind] = {}
    for row, rate, count, home in zip(ready, links.worker_bytes_per_s, links.counts, links.homes, strict=True):
        kind = (row.tobytes(), rate, None if home is None else column_of[home])
        kinds[kind] += count
        if home is not None:
            at_home[home] = kind
    sent = {kind: _Sent.of(np.frombuffer(kind[0]), placed, kind[1], kind[2]) for kind in kinds}
    ends: dict[tuple[int, float, _Kind | None], float] = {}
    all_ends = []
    for server, rate in enumerate(links.server_bytes_per_s):
        alike = (column_of[server], rate, at_home.get(server))
        if alike not in ends:
            numbers = kinds - Counter([alike[2]] if alike[2] else [])
            remote_s = _server_end_s([(sent[kind], number) for kind, number in numbers.items()], alike[0], rate)
            ends[alike] = max(remote_s, _local_end_s(alike[2], placed[:, server]))
        all_ends.append(ends[alike])
    return np.array(all_ends)


def sliced_push_end_s(
    ready_s: Sequence[Floats],
    size_bytes: Floats,
    *,
    num_servers: int,
    server_bytes_per_s: float,
    worker_bytes_per_s: Sequence[float],
    worker_counts: Sequence[int],
    home_kind: int | None = None,
) -> Floats:
    """Return what :func:`push_end_s` does where equal servers hold equal slices of all tensors, however many they are.

    Nothing is as large as tensors times servers, or workers: only two kinds of servers differ, those on a machine that
    works and the others.

    Parameters
    ----------
    ready_s
        Of each kind of workers, shape (tensors,), in seconds.
    size_bytes
        Of every tensor, shape (tensors,).
    num_servers
        Servers; >= 1, each holds an equal slice of every tensor.
    server_bytes_per_s, worker_bytes_per_s
        Of every server's link; of each kind's workers, per direction.
    worker_counts
        How many workers each kind has; >= 1.
    home_kind
        The kind whose machines the servers stand on, as far as there are so many; None for no such kind.
    """
    slices = (size_bytes / num_servers)[:, None]
    at_home = 0 if home_kind is None else min(worker_counts[home_kind], num_servers)
    found: list[tuple[_Sent, int]] = []
    home: _Sent | None = None
    for kind, (ready, rate, count) in enumerate(zip(ready_s, worker_bytes_per_s, worker_counts, strict=True)):
        order = np.argsort(ready, kind="stable")
        for share, number in ((1.0, count - at_home * (kind == home_kind)), (1 - 1 / num_servers, at_home)):
            if number and (share == 1.0 or kind == home_kind):
                end = fifo_end_s(ready[order], size_bytes[order] * share / rate)
                start = np.maximum(ready[order], np.append(0.0, end[:-1]))
                found.append((_Sent(start, end, slices[order]), number))
                home = found[-1][0] if share < 1.0 else home
    away_s = _server_end_s(found, 0, server_bytes_per_s) if at_home < num_servers else 0.0
    ends = np.full(num_servers, away_s)
    if at_home and home_kind is not None:
        others = [(one, number - (one is home)) for one, number in found]
        remote_s = _server_end_s([row for row in others if row[1]], 0, server_bytes_per_s)
        ends[:at_home] = max(remote_s, float(ready_s[home_kind][size_bytes > 0].max(initial=0.0)))
    return ends


_Kind = tuple[bytes, float, int | None]  # ready times, rate, and a column equal to that of the server at home


def _equal_columns(placed: Floats) -> list[int]:
    """Return, for every server, the first one that holds exactly the same."""
    first: dict[bytes, int] = {}
    return [first.setdefault(column.tobytes(), server) for server, column in enumerate(placed.T)]


def _local_end_s(kind: "_Kind | None", column: Floats) -> float:
    """Return when the worker on a server's own machine has computed what that server holds; 0 without one."""
    if kind is None or not column.any():
        return 0.0
    return float(np.frombuffer(kind[0])[column > 0].max())


@dataclass(frozen=True, slots=True)
class _Sent:
    """One worker's transfers, in order of sending: start, end, and bytes for each server (columns)."""

    start_s: Floats
    end_s: Floats
    size_bytes: Floats

    @classmethod
    def of(cls, ready: Floats, placed: Floats, bytes_per_s: float, home: int | None) -> "_Sent":
        """Return the transfers over a worker's link: all but what goes to the server at home."""
        order = np.argsort(ready, kind="stable")
        remote = placed.sum(axis=1) - (0.0 if home is None else placed[:, home])
        duration = np.maximum(remote[order], 0.0) / bytes_per_s
        end = fifo_end_s(ready[order], duration)
        start = np.maximum(ready[order], np.append(0.0, end[:-1]))
        return cls(start, end, placed[order])

    def bounds_s(self, server: int) -> Floats:
        """Return starts and ends of what goes to a server."""
        goes = self.size_bytes[:, server] > 0
        return np.concatenate((self.start_s[goes], self.end_s[goes]))

    def arrived_bytes(self, at_s: Floats, server: int) -> Floats:
        """Return the bytes that reached a server strictly before each time."""
        sizes = self.size_bytes[:, server]
        before = np.concatenate(([0.0], np.cumsum(sizes)))
        if np.array_equal(self.start_s, self.end_s):  # an unlimited link: all of a tensor at once
            return before[np.searchsorted(self.start_s, at_s, side="left")]
        knots = np.stack((self.start_s, self.end_s), axis=1).ravel()
        arrived: Floats = np.interp(at_s, knots, np.stack((before[:-1], before[1:]), axis=1).ravel())
        return arrived


def _server_end_s(sent: Sequence[tuple[_Sent, int]], server: int, bytes_per_s: float) -> float:
    """Return when one server's link has passed on everything; each worker stands for so many equal ones."""
    at = np.concatenate([np.zeros(0), *(one.bounds_s(server) for one, _ in sent)])
    if not at.size:
        return 0.0
    total = sum(number * float(one.size_bytes[:, server].sum()) for one, number in sent)
    arrived: Floats = np.sum([number * one.arrived_bytes(at, server) for one, number in sent], axis=0)
    return float(np.max(at + np.maximum(total - arrived, 0.0) / bytes_per_s))


def _checked(ready_s: ArrayLike, placed_bytes: ArrayLike, links: Links) -> tuple[Floats, Floats]:
    """Return both as arrays that fit the links and each other."""
    ready, placed = np.asarray(ready_s, dtype=np.float64), _checked_placement(placed_bytes, links)
    if ready.shape != (wanted := (len(links.worker_bytes_per_s), len(placed))):
        raise ModelError(f"ready_s has shape {ready.shape}; {wanted[0]} workers and {wanted[1]} tensors make {wanted}.")
    if not (np.isfinite(ready).all() and (ready >= 0).all()):
        raise ModelError(f"ready_s must be finite and >= 0; its least is {ready.min():g}.")
    return ready, placed


def _checked_placement(placed_bytes: ArrayLike, links: Links) -> Floats:
    """Return the bytes of each tensor on each server."""
    placed, num_servers = np.asarray(placed_bytes, dtype=np.float64), len(links.server_bytes_per_s)
    if placed.ndim != 2 or not len(placed) or placed.shape[1] != num_servers:
        raise ModelError(f"placed_bytes has shape {placed.shape}; it needs tensors as rows and {num_servers} columns.")
    if not (np.isfinite(placed).all() and (placed >= 0).all()):
        raise ModelError(f"placed_bytes must be finite and >= 0; its least is {placed.min():g}.")
    return placed


def pull_time_s(placed_bytes: ArrayLike, links: Links) -> float:
    """Return the time in which every worker pulls all parameters, all starting together.

    Parameters
    ----------
    placed_bytes
        Bytes of each tensor (row) on each server (column); finite and >= 0.
    links
        Of all servers and workers, per direction.

    Notes
    -----
    ``max(n P_s / B_s over servers, P / B_w over workers)``: with every flow at a constant rate the busiest link is
    never idle, so that nothing is faster. One server: ``n T_pull``. What lies on a worker's own machine is not pulled
    over a link: n then counts the other workers, and P the other servers' parameters.
    """
    placed = _checked_placement(placed_bytes, links)
    held = placed.sum(axis=0)
    servers = links.senders * held / np.array(links.server_bytes_per_s)
    at_home = np.array([0.0 if home is None else held[home] for home in links.homes])
    workers = np.maximum(held.sum() - at_home, 0.0) / np.array(links.worker_bytes_per_s)
    return float(max(servers.max(), workers.max()))


def iteration_time_s(
    ready_s: ArrayLike,
    placed_bytes: ArrayLike,
    links: Links,
    *,
    parameters_bytes: ArrayLike | None = None,
    overhead_s: float = 0.0,
) -> float:
    """Return the iteration time: pushes, then, after the last one of all servers, pulls.

    Parameters
    ----------
    ready_s, placed_bytes, links
        As for :func:`push_end_s`.
    parameters_bytes
        What is pulled, as ``placed_bytes``; left out, as much as is pushed.
    overhead_s
        Start-up of push and pull, once; finite and >= 0.

    Raises
    ------
    ModelError
        If a number is out of range, or shapes do not fit each other.

    >>> links = Links(server_bytes_per_s=(1.0, 1.0), worker_bytes_per_s=(math.inf, math.inf))
    >>> iteration_time_s([[1, 1], [1, 2]], place_round_robin([4, 2], num_servers=2), links)
    17.0
    """
    if not 0 <= overhead_s < math.inf:
        raise ModelError(f"overhead_s must be finite and >= 0, not {overhead_s:g}.")
    pulled = placed_bytes if parameters_bytes is None else parameters_bytes
    pushed_s = float(push_end_s(ready_s, placed_bytes, links).max())
    return pushed_s + pull_time_s(pulled, links) + overhead_s


# -- by packets: equations 10 to 18 of the GST model -------------------------------------------------------------------


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


def queueing_s(network: ServerNetwork) -> Floats:
    """Return one packet's time at the barrier link, waiting and forwarding (eqs. 11 and 12).

    Parameters
    ----------
    network
        Workers, servers and what lies between them.

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

    Parameters
    ----------
    network
        Workers, servers and what lies between them.
    packets
        Of each layer, the last axis; may be fractional. Broadcast against the network's bandwidth, whose axes come
        first.

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
    """Return ``G``, what a server adds up at once: its share ``PN / K`` unless a smaller one is given (eq. 13).

    Parameters
    ----------
    network
        Workers, servers and what lies between them.
    packets
        Of each layer, the last axis; may be fractional. Broadcast against the network's bandwidth, whose axes come
        first.
    """
    share = np.asarray(packets, dtype=np.float64) / network.num_servers
    return share if network.granularity_packets is None else np.minimum(share, network.granularity_packets)


def aggregation_delay_bounds_s(network: ServerNetwork, packets: ArrayLike) -> tuple[Floats, Floats]:
    """Return the least and the largest wait for a complete granularity (eqs. 15 and 16).

    Parameters
    ----------
    network
        Workers, servers and what lies between them.
    packets
        Of each layer, the last axis; may be fractional. Broadcast against the network's bandwidth, whose axes come
        first.

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

    Parameters
    ----------
    network
        Workers, servers and what lies between them.
    packets
        Of each layer, the last axis; may be fractional. Broadcast against the network's bandwidth, whose axes come
        first.

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkExchange:
    """Seconds of every layer's push, aggregation and pull, nothing overlapped."""

    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats


def exchange(network: ServerNetwork, packets: ArrayLike) -> NetworkExchange:
    """Return the seconds of every layer's exchange, in the shape of the bandwidth, then of the layers.

    Parameters
    ----------
    network
        Workers, servers and what lies between them.
    packets
        Of each layer, the last axis; may be fractional. Broadcast against the network's bandwidth, whose axes come
        first.
    """
    one_way_s = transfer_s(network, packets)
    return NetworkExchange(push_s=one_way_s, aggregate_s=aggregation_s(network, packets), pull_s=one_way_s)


# -- the pipeline of layers: equations 3, 4 and 6 ----------------------------------------------------------------------


def type_one_s(duration_s: ArrayLike) -> Floats:
    """Return when a process ends that waits only for its own predecessor (eq. 3).

    Parameters
    ----------
    duration_s
        Seconds of each, in the order of the pipeline along the last axis.
    """
    return np.cumsum(np.asarray(duration_s, dtype=np.float64), axis=-1)


def type_two_s(previous_s: ArrayLike, duration_s: ArrayLike) -> Floats:
    """Return when a process ends that also waits for the process before it (eq. 4).

    Parameters
    ----------
    previous_s
        When the process before it ends; need not be ascending.
    duration_s
        Seconds of each; broadcast against ``previous_s``.

    Notes
    -----
    ``tau(m) = max(previous(m), tau(m-1)) + t(m)``, the single channel of :func:`planner.channel.schedule`. Unrolled,
    ``tau(m) = S(m) + max over i <= m of (previous(i) - S(i-1))`` with S the cumulative sum: two passes over arrays,
    for many configurations at once.

    >>> type_two_s([1, 2, 9], [3, 3, 3]).tolist()
    [4.0, 7.0, 12.0]
    """
    sums = type_one_s(duration_s)
    before = sums - np.asarray(duration_s)
    return np.asarray(sums + np.maximum.accumulate(np.asarray(previous_s) - before, axis=-1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTimes:
    """Seconds of every layer, in backward order along the last axis; the axes before it are broadcast."""

    backward_s: Floats
    push_s: Floats
    aggregate_s: Floats
    pull_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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


# -- one server and unequal workers in lockstep ------------------------------------------------------------------------

_ROUNDING = 1e-9  # relative: what floating point may lose


@dataclass(frozen=True, slots=True, kw_only=True)
class BspExchange:
    """Seconds for which one worker's exchange occupies the server's link.

    Attributes
    ----------
    push_s, pull_s
        All gradients in, all parameters out (eqs. 30 and 31); finite and >= 0.
    overhead_s
        Start-up of push and pull, once an iteration: section 6.3 measured about 0.5 s, and its predictions take 0.
    """

    push_s: float
    pull_s: float
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= one < math.inf for one in (self.push_s, self.pull_s, self.overhead_s)):
            raise ModelError(f"{self}: push_s, pull_s and overhead_s must be finite and >= 0.")

    @classmethod
    def of(
        cls,
        *,
        gradient_bytes: float,
        parameter_bytes: float,
        bandwidth_bytes_per_s: float,
        overhead_s: float = 0.0,
    ) -> "BspExchange":
        """Return ``T_push = G / B`` and ``T_pull = P / B`` (eqs. 31 and 30).

        Parameters
        ----------
        gradient_bytes, parameter_bytes
            ``G`` and ``P``: what one worker pushes and pulls.
        bandwidth_bytes_per_s
            ``B`` of the server's link, per direction; finite and > 0.
        overhead_s
            Start-up of push and pull, once an iteration; finite and >= 0.

        >>> BspExchange.of(gradient_bytes=1e9, parameter_bytes=5e8, bandwidth_bytes_per_s=1.25e8).push_s
        8.0
        """
        _positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
        return cls(
            push_s=gradient_bytes / bandwidth_bytes_per_s,
            pull_s=parameter_bytes / bandwidth_bytes_per_s,
            overhead_s=overhead_s,
        )


def _positive(name: str, value: float) -> None:
    """Refuse a rate or count that is not finite and > 0."""
    if not 0 < value < math.inf:
        raise ModelError(f"{name} must be finite and > 0, not {value:g}.")


def _per_worker(name: str, value: ArrayLike) -> Floats:
    """Return one number of seconds for every worker; raise ModelError if there is no worker or no time."""
    seconds = np.asarray(value, dtype=np.float64)
    if seconds.ndim != 1 or not seconds.size:
        raise ModelError(f"{name} has shape {seconds.shape}; give the seconds of at least one worker.")
    if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
        raise ModelError(f"{name} must be finite and >= 0, not {seconds.tolist()}.")
    return seconds


def cpu_time_s(flop: float, *, clock_hz: float, values_per_cycle: float) -> float:
    """Return the computing time on a CPU (eq. 28): ``FLOP / (cpuhz simd)``.

    Parameters
    ----------
    flop
        Floating-point operations, one multiply-add being two.
    clock_hz
        ``cpuhz``, cycles a second; > 0.
    values_per_cycle
        ``simd``: values worked on in one cycle, a fitted real number; > 0. The equation has one core.

    >>> cpu_time_s(9.6e9, clock_hz=2e9, values_per_cycle=2.4)
    2.0
    """
    _positive("clock_hz", clock_hz)
    _positive("values_per_cycle", values_per_cycle)
    return flop / (clock_hz * values_per_cycle)


def gpu_time_s(flop: float, *, clock_hz: float, num_stream_processors: float, flop_per_cycle: float = 1) -> float:
    """Return the computing time on a GPU (eq. 33): ``FLOP / (gpuhz sp fc)``.

    Parameters
    ----------
    flop
        Floating-point operations, one multiply-add being two.
    clock_hz
        ``gpuhz``, cycles a second; > 0.
    num_stream_processors
        ``sp``; > 0.
    flop_per_cycle
        ``fc`` of one stream processor: 2 with fused multiply-add, else 1.

    >>> gpu_time_s(6e12, clock_hz=1.5e9, num_stream_processors=2000)
    2.0
    """
    _positive("clock_hz", clock_hz)
    _positive("num_stream_processors", num_stream_processors)
    _positive("flop_per_cycle", flop_per_cycle)
    return flop / (clock_hz * num_stream_processors * flop_per_cycle)


def equal_workers_time_s(compute_s: float, exchange: BspExchange, *, num_workers: int) -> float:
    """Return the iteration time with equal workers (eq. 29): ``T_cpu + n T_push + n T_pull``.

    Parameters
    ----------
    compute_s
        Seconds that every worker computes; >= 0.
    exchange
        Seconds for which one worker's push and pull occupy the server's link.
    num_workers
        ``n``; >= 1.

    Raises
    ------
    ModelError
        If there is no worker.
    """
    if num_workers < 1:
        raise ModelError(f"there must be at least 1 worker, not {num_workers}.")
    return compute_s + num_workers * (exchange.push_s + exchange.pull_s) + exchange.overhead_s


def equation_32_holds(compute_s: ArrayLike, *, push_s: float) -> bool:
    """Whether the server's link is never idle after the first push: ``T_1 + (i - 1) T_push >= T_i``, sorted.

    Parameters
    ----------
    compute_s
        Seconds that each worker computes, shape (workers,), in any order; finite and >= 0.
    push_s
        Seconds of one worker's push; >= 0.

    Notes
    -----
    This is when eq. 32 and Algorithm 1 agree. The paper's condition, that communication takes longer than every
    computation, is sufficient but not necessary.

    >>> equation_32_holds([1, 2, 3], push_s=1), equation_32_holds([1, 2, 4], push_s=1)
    (True, False)
    """
    return _first_idle(np.sort(_per_worker("compute_s", compute_s)), push_s) is None


def _first_idle(compute: Floats, push_s: float) -> int | None:
    """Return the first worker, in ascending order, for which the link has to wait; None if it never does."""
    late = compute - (compute[0] + np.arange(len(compute)) * push_s)
    found = np.flatnonzero(late > _ROUNDING * np.maximum(compute, push_s))
    return int(found[0]) if found.size else None


def fastest_worker_time_s(compute_s: ArrayLike, exchange: BspExchange) -> float:
    """Return the iteration time where the link is the bottleneck (eq. 32): ``n T_pull + T_min + n T_push``.

    Parameters
    ----------
    compute_s
        Seconds that each worker computes, shape (workers,), in any order; finite and >= 0.
    exchange
        Seconds for which one worker's push and pull occupy the server's link.

    Raises
    ------
    ModelError
        Where :func:`equation_32_holds` is false: the time would be too short.
    """
    compute = np.sort(_per_worker("compute_s", compute_s))
    index = _first_idle(compute, exchange.push_s)
    if index is not None:
        raise ModelError(
            f"eq. 32 does not hold: worker {index + 1} of {len(compute)} computes until {compute[index]:.4g} s, but "
            f"the pushes before it end at {compute[0] + index * exchange.push_s:.4g} s. Use Algorithm 1."
        )
    return equal_workers_time_s(float(compute[0]), exchange, num_workers=len(compute))


def algorithm_1_time_s(compute_s: ArrayLike, exchange: BspExchange) -> float:
    """Return the iteration time of workers that push when all is computed (Algorithm 1).

    Parameters
    ----------
    compute_s
        Seconds that each worker computes, shape (workers,), in any order; finite and >= 0.
    exchange
        Seconds for which one worker's push and pull occupy the server's link.

    Notes
    -----
    The loop of the listing, ``T = max(T, t_i) + T_push``, is a channel that serves first come first served. Its
    ``simd = 2`` is an input here: no table of the paper uses it.

    >>> algorithm_1_time_s([5, 1, 2], BspExchange(push_s=2, pull_s=1))
    10.0
    """
    compute = np.sort(_per_worker("compute_s", compute_s))
    pushed_s = float(fifo_end_s(compute, exchange.push_s)[-1])
    return pushed_s + len(compute) * exchange.pull_s + exchange.overhead_s


def segment_ready_s(forward_s: ArrayLike, backward_s: ArrayLike, *, num_pushes: int) -> Floats:
    """Return when each of k equal parts of each worker's backward pass is done: ``forward + j / k backward``.

    Parameters
    ----------
    forward_s, backward_s
        Seconds of each worker for its own share of the batch, shape (workers,); finite and >= 0.
    num_pushes
        ``k``, the equal parts in which a backward pass is pushed; >= 1.

    Returns
    -------
    Floats
        One row per worker, one column per part.

    Raises
    ------
    ModelError
        If the workers of both differ in number, or ``num_pushes`` is less than 1.
    """
    forward, backward = _per_worker("forward_s", forward_s), _per_worker("backward_s", backward_s)
    if forward.shape != backward.shape:
        raise ModelError(f"forward_s of {len(forward)} workers does not go with backward_s of {len(backward)}.")
    if num_pushes < 1:
        raise ModelError(f"num_pushes must be at least 1, not {num_pushes}.")
    return forward[:, None] + backward[:, None] * (np.arange(1, num_pushes + 1) / num_pushes)


def algorithm_2_time_s(forward_s: ArrayLike, backward_s: ArrayLike, exchange: BspExchange, *, num_pushes: int) -> float:
    """Return the iteration time of workers that push while they compute (Algorithm 2).

    Parameters
    ----------
    forward_s, backward_s
        Seconds of each worker for its own share of the batch, shape (workers,); finite and >= 0.
    exchange
        Seconds for which one worker's push and pull occupy the server's link.
    num_pushes
        ``k``, the equal parts in which a backward pass is pushed; >= 1.

    Notes
    -----
    Algorithm 1 with the end of the first of k parts of the backward pass as ready time (lines 3 and 4; the listing
    drops the indices of ``sp`` and ``fc``). It takes for granted that the link is slower than every backward pass.
    Where it is not, the answer can be less than a worker's own computing time: see :func:`checked_algorithm_2`.
    """
    first = segment_ready_s(forward_s, backward_s, num_pushes=num_pushes)[:, 0]
    return algorithm_1_time_s(first, exchange)


def segments_time_s(forward_s: ArrayLike, backward_s: ArrayLike, exchange: BspExchange, *, num_pushes: int) -> float:
    """Return the iteration time if every part is pushed on its own, no sooner than it is computed.

    Parameters
    ----------
    forward_s, backward_s
        Seconds of each worker for its own share of the batch, shape (workers,); finite and >= 0.
    exchange
        Seconds for which one worker's push and pull occupy the server's link.
    num_pushes
        ``k``, the equal parts in which a backward pass is pushed; >= 1.

    Notes
    -----
    Stricter than Algorithm 2, and never less: k parts of ``T_push / k`` a worker on one channel, first come first
    served. Both agree where ``T_push`` is at least every worker's backward pass. Own extension of the paper's Figure 5.
    """
    ready = segment_ready_s(forward_s, backward_s, num_pushes=num_pushes)
    pushed_s = float(fifo_end_s(np.sort(ready, axis=None), exchange.push_s / num_pushes)[-1])
    return pushed_s + len(ready) * exchange.pull_s + exchange.overhead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTime:
    """The segment-level time, Algorithm 2's, and a warning where they differ."""

    iteration_s: float
    algorithm_2_s: float
    warnings: tuple[str, ...] = ()


def checked_algorithm_2(
    forward_s: ArrayLike, backward_s: ArrayLike, exchange: BspExchange, *, num_pushes: int
) -> CheckedTime:
    """Return the time at the level of segments, with a warning where Algorithm 2 departs from it.

    Parameters
    ----------
    forward_s, backward_s
        Seconds of each worker for its own share of the batch, shape (workers,); finite and >= 0.
    exchange
        Seconds for which one worker's push and pull occupy the server's link.
    num_pushes
        ``k``, the equal parts in which a backward pass is pushed; >= 1.
    """
    strict_s = segments_time_s(forward_s, backward_s, exchange, num_pushes=num_pushes)
    simple_s = algorithm_2_time_s(forward_s, backward_s, exchange, num_pushes=num_pushes)
    warnings: tuple[str, ...] = ()
    if not math.isclose(strict_s, simple_s, rel_tol=_ROUNDING):
        longest_s = float(np.max(_per_worker("backward_s", backward_s)))
        text = (
            f"Algorithm 2 gives {simple_s:.4g} s, {strict_s - simple_s:.4g} s too little: it takes for granted that "
            f"a push ({exchange.push_s:.4g} s) lasts as long as every backward pass (up to {longest_s:.4g} s)."
        )
        warnings = (text,)
    return CheckedTime(iteration_s=strict_s, algorithm_2_s=simple_s, warnings=warnings)


def accuracy(*, predicted_s: float, measured_s: float, relative_to: Literal["predicted", "measured"]) -> float:
    """Return ``1 - |PT - MT| / PT`` (Tables 2 to 5) or ``... / MT`` (Tables 6 and 7).

    Parameters
    ----------
    predicted_s, measured_s
        PT and MT, seconds of an iteration; > 0.
    relative_to
        Which of the two the difference is divided by.

    >>> accuracy(predicted_s=4, measured_s=5, relative_to="measured")
    0.8
    """
    base_s = predicted_s if relative_to == "predicted" else measured_s
    _positive(f"{relative_to}_s", base_s)
    return 1 - abs(predicted_s - measured_s) / base_s
