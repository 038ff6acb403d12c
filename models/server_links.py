"""Several parameter servers in lockstep: tensors spread over them, each server and each worker with its own link.

Beyond Y. Zeng et al., Int. J. Intelligent Systems, 2023, doi:10.1155/2023/2663115, who name it as future work; with one
server and unlimited workers' links it is their Algorithm 1, Algorithm 2 or its segments, by what is given as ready
times.

Links are full duplex, behind a switch that is never the bottleneck. A worker sends its tensors one after the other, as
they get ready, at the speed of its own link; what has arrived waits at the server's link, which works whenever
something waits. Bytes flow on while the rest of their tensor is still being sent. Leaves out latency, headers, the
switch's finite buffers (a congested server slows no sender down), the servers' own work, and servers that share
a machine with workers.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost import Floats
from planner.errors import ModelError
from planner.fifo import fifo_end_s

__all__ = [
    "Links",
    "iteration_time_s",
    "place_largest_first",
    "place_round_robin",
    "place_sliced",
    "pull_time_s",
    "push_end_s",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Bandwidth of every link, per direction.

    Attributes
    ----------
    server_bytes_per_s
        One per server; > 0 and finite.
    worker_bytes_per_s
        One per worker; > 0, ``inf`` where it is no bottleneck.
    """

    server_bytes_per_s: tuple[float, ...]
    worker_bytes_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.server_bytes_per_s or not self.worker_bytes_per_s:
            counts = f"{len(self.server_bytes_per_s)} servers and {len(self.worker_bytes_per_s)} workers"
            raise ModelError(f"there must be at least one server and one worker, not {counts}.")
        if not all(0 < rate < math.inf for rate in self.server_bytes_per_s):
            raise ModelError(f"server_bytes_per_s must be finite and > 0, not {self.server_bytes_per_s}.")
        if not all(rate > 0 for rate in self.worker_bytes_per_s):
            raise ModelError(f"worker_bytes_per_s must be > 0, not {self.worker_bytes_per_s}.")


# -- placements: bytes of each tensor (row) on each server (column) ----------------------------------------------------


def place_round_robin(size_bytes: ArrayLike, *, num_servers: int) -> Floats:
    """Return tensors dealt out in their order, as TensorFlow does by default.

    >>> place_round_robin([5, 3, 2], num_servers=2).tolist()
    [[5.0, 0.0], [0.0, 3.0], [2.0, 0.0]]
    """
    if num_servers < 1:
        raise ModelError(f"there must be at least 1 server, not {num_servers}.")
    sizes = _sizes(size_bytes)
    return _placed(sizes, np.arange(len(sizes)) % num_servers, num_servers)


def place_largest_first(size_bytes: ArrayLike, *, server_bytes_per_s: ArrayLike) -> Floats:
    """Return tensors placed one by one, the largest first, where the server would be done with its load soonest.

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


# -- times -----------------------------------------------------------------------------------------------------------


def push_end_s(ready_s: ArrayLike, placed_bytes: ArrayLike, links: Links) -> Floats:
    """Return when each server has received all gradients; 0 for a server that holds nothing.

    Parameters
    ----------
    ready_s
        When each worker (row) has computed the gradient of each tensor (column); >= 0. Algorithm 1: the end of all
        computing, for every tensor; Algorithm 2: the end of the first part of the backward pass.
    placed_bytes
        Of each tensor (row) on each server (column).

    Notes
    -----
    A worker's link serves first come first served; during its transfer a tensor's bytes reach the servers at a constant
    rate. A link that never idles while bytes wait ends at ``max over t of t + (bytes arriving from t on) / bandwidth``,
    and the maximum is at the start or end of a transfer.
    """
    ready, placed = _checked(ready_s, placed_bytes, links)
    alike = Counter((row.tobytes(), rate) for row, rate in zip(ready, links.worker_bytes_per_s, strict=True))
    sent = [(_Sent.of(np.frombuffer(row), placed, rate), number) for (row, rate), number in alike.items()]
    return np.array([_server_end_s(sent, server, rate) for server, rate in enumerate(links.server_bytes_per_s)])


@dataclass(frozen=True, slots=True)
class _Sent:
    """One worker's transfers, in order of sending: start, end, and bytes for each server (columns)."""

    start_s: Floats
    end_s: Floats
    size_bytes: Floats

    @classmethod
    def of(cls, ready: Floats, placed: Floats, bytes_per_s: float) -> "_Sent":
        """Return the transfers over a worker's link."""
        order = np.argsort(ready, kind="stable")
        duration = placed[order].sum(axis=1) / bytes_per_s
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


def _server_end_s(sent: list[tuple[_Sent, int]], server: int, bytes_per_s: float) -> float:
    """Return when one server's link has passed on everything; each worker stands for so many equal ones."""
    at = np.concatenate([one.bounds_s(server) for one, _ in sent])
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

    Notes
    -----
    ``max(n P_s / B_s over servers, P / B_w over workers)``: with every flow at a constant rate the busiest link is
    never idle, so that nothing is faster. One server: ``n T_pull``.
    """
    placed = _checked_placement(placed_bytes, links)
    servers = len(links.worker_bytes_per_s) * placed.sum(axis=0) / np.array(links.server_bytes_per_s)
    return float(max(servers.max(), placed.sum() / min(links.worker_bytes_per_s)))


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
    ready_s, placed_bytes
        As for :func:`push_end_s`.
    parameters_bytes
        What is pulled, as ``placed_bytes``; left out, as much as is pushed.
    overhead_s
        Start-up of push and pull, once.

    >>> links = Links(server_bytes_per_s=(1.0, 1.0), worker_bytes_per_s=(math.inf, math.inf))
    >>> iteration_time_s([[1, 1], [1, 2]], place_round_robin([4, 2], num_servers=2), links)
    17.0
    """
    if not 0 <= overhead_s < math.inf:
        raise ModelError(f"overhead_s must be finite and >= 0, not {overhead_s:g}.")
    pulled = placed_bytes if parameters_bytes is None else parameters_bytes
    pushed_s = float(push_end_s(ready_s, placed_bytes, links).max())
    return pushed_s + pull_time_s(pulled, links) + overhead_s
