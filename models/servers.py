"""Parameter servers in lockstep: pushes and pulls of one iteration, on links and by packets.

*Several servers* (:class:`Links`, :func:`push_end_s`, :func:`pull_time_s`): tensors spread over them, each server and
each worker with its own link. Beyond Y. Zeng et al., Int. J. Intelligent Systems, 2023, doi:10.1155/2023/2663115, who
name it as future work; with one server and unlimited workers' links it is their Algorithm 1, Algorithm 2 or its
segments, by what is given as ready times. Links are full duplex, behind a switch that is never the bottleneck. A worker
sends its tensors one after the other, as they get ready, at the speed of its own link; what has arrived waits at the
server's link, which works whenever something waits. Bytes flow on while the rest of their tensor is still being sent.
What a worker owes the server on its own machine takes no link: it is there when it is computed. Leaves out latency,
headers, the switch's finite buffers (a congested server slows no sender down), and the servers' own work.

*By packets* (:func:`switch_queue_s`): a packet's time at the link where all meet, by equations 11 and 12 of the GST
model, X. Zhang et al., Performance Modeling and Analysis of Distributed Deep Neural Network Training with Parameter
Server, section IV; and equations 3 and 4 of its pipeline of layers. Print counts bits and packets; here packets have
bytes, and rates are bytes/s. What else of that paper, and of Zeng et al.'s single server with unequal workers, only
cases ask for stands in ``cases/forms/gst.py`` and ``cases/forms/bsp_server.py``.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.channel import fifo_end_s
from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen


@frozen
class Links:
    """Bandwidth of every link, per direction."""

    server_bytes_per_s: tuple[float, ...]  # one per server; > 0 and finite
    # one per worker, or per kind of equal workers; > 0, ``inf`` where it is no bottleneck
    worker_bytes_per_s: tuple[float, ...]
    worker_counts: tuple[int, ...] = ()  # how many equal workers each entry stands for; left out, one
    # the server on each worker's own machine, None for none; left out, none. A worker with one stands for itself
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


@frozen(kw_only=False)
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
    ready, placed = np.asarray(ready_s, dtype=np.float64), _checked_placement(placed_bytes, links)
    if ready.shape != (wanted := (len(links.worker_bytes_per_s), len(placed))):
        raise ModelError(f"ready_s has shape {ready.shape}; {wanted[0]} workers and {wanted[1]} tensors make {wanted}.")
    if not (np.isfinite(ready).all() and (ready >= 0).all()):
        raise ModelError(f"ready_s must be finite and >= 0; its least is {ready.min():g}.")
    return ready, placed


def _checked_placement(placed_bytes: ArrayLike, links: Links) -> Floats:
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


# -- by packets: equations 11 and 12 of the GST model ------------------------------------------------------------------


def switch_queue_s(
    bandwidth_bytes_per_s: ArrayLike,
    *,
    packet_bytes: float,
    switch_packets_per_s: float,
    num_hops: int = 1,
    is_printed: bool = False,
) -> Floats:
    """Return one packet's time at the barrier link, waiting and forwarding (eqs. 11 and 12).

    Parameters
    ----------
    bandwidth_bytes_per_s
        ``B``, of every link, one direction; finite and > 0.
    packet_bytes
        ``pks``; finite and > 0.
    switch_packets_per_s, num_hops
        ``S_f`` > 0, infinite where it forwards at once, and ``h``, the hops over the barrier link.
    is_printed
        Whether eq. 11 is taken as printed.

    Raises
    ------
    ModelError
        If packets arrive as fast as the switch forwards them, or faster: the queue then grows without end.

    Notes
    -----
    M/M/1: ``h / (S_f - lambda)`` with ``lambda = B / pks`` packets/s. Print has ``lambda = 1/B``, which is right
    only where B means seconds per packet; taken literally, with B in bit/s, the load is next to nothing. Arrivals are
    those of one saturated link, however many workers send.

    >>> float(switch_queue_s(1e6, packet_bytes=1000, switch_packets_per_s=2000))
    0.001
    """
    rates = np.asarray(bandwidth_bytes_per_s)
    if switch_packets_per_s == float("inf"):
        return np.zeros(rates.shape)
    arrivals = 1 / (8 * rates) if is_printed else 1 / np.asarray(packet_bytes / rates)
    if (most := float(np.max(arrivals))) >= switch_packets_per_s:
        raise ModelError(
            f"the barrier link is saturated: {most:.6g} packets/s of {packet_bytes:g} bytes arrive, and the "
            f"switch forwards {switch_packets_per_s:.6g}/s. Raise switch_packets_per_s above the arrivals, "
            "lower bandwidth_bytes_per_s, or enlarge packet_bytes."
        )
    return np.asarray(num_hops / (switch_packets_per_s - arrivals))


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


# -- one server and unequal workers in lockstep ------------------------------------------------------------------------
