"""Training with parameter servers, message by message: links, sums or clocks, and the next pass behind them.

*Iterations.* Every worker runs forward through its layers and backward; the gradient of each key (a tensor, or what one
server holds of it) goes to its server, and parameters come back. What runs beside what is the :class:`Overlap`. When
parameters come back is the slack:

============  =========================================================================================================
None          each sum on its own: a server adds up the gradients of a key, and the sum is complete with the last one
0             behind a barrier: all, when all gradients of all workers have arrived (BSP)
s             to a worker at most s iterations ahead of the slowest one (SSP: Q. Ho et al., NIPS 2013, section 3)
inf           at once (ASP)
============  =========================================================================================================

Local SGD exchanges once in so many iterations (S. U. Stich, ICLR 2019, arXiv:1805.09767). Without a barrier workers may
fall apart: several iterations are run, until they repeat, or for a mean.

*Links* are full duplex. A connection joins a worker and a server, in one direction. What stays on a host takes no link
and no time. Whom links serve first is the :class:`Discipline`:

- *Fair*: the connections that cross links share them max-min fairly: no connection could go faster without slowing down
  one that is no faster (D. Bertsekas and R. Gallager, *Data Networks*, 2nd edition, 1992, section 6.5.2). A connection
  carries its messages one after the other, in order or by priority.
- *First come first served*: a worker's link carries its messages one after the other, a server's link serves what
  comes, byte by byte. Behind a barrier that is the model of :mod:`planner.models.servers`, and with unlimited workers'
  links its Algorithms 1 and 2.

A machine that works and serves has one link for both.

*Alike.* Workers of one kind do the same at the same time, and so do servers of one kind: one class of connections joins
each kind of workers with each kind of servers, and a link is crossed by so many of each class. Kinds are exact where
sums keep workers together, which is so behind a barrier and where sums are sent as soon as they are complete; where
workers may fall apart, give each a kind of its own, and begin them apart (:attr:`Exchange.stagger_s`).

Left out: windows, queues and everything else that makes connections unequal, the servers' additions and updates
(thousandths of a second), losses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen

_ROUNDING = 1e-12  # of a link's share


class Overlap(StrEnum):
    """What goes over the links while workers compute."""

    NONE = "none"  # all is pushed when the backward pass is done, and sums are asked for behind it
    PUSH = "push"  # a key is pushed when its gradient is ready; sums are asked for when the backward pass is done
    PUSH_PULL = "push_pull"  # a sum is sent as soon as it is complete; the next forward pass waits for all of them
    PUSH_PULL_FORWARD = "push_pull_forward"  # the next forward pass waits layer by layer for the layer's own sums

    @property
    def pushes_early(self) -> bool:
        """Whether keys are pushed during the backward pass."""
        return self is not Overlap.NONE

    @property
    def pulls_early(self) -> bool:
        """Whether sums are sent without being asked for behind the backward pass."""
        return self in (Overlap.PUSH_PULL, Overlap.PUSH_PULL_FORWARD)


class Discipline(StrEnum):
    """Whom links serve first."""

    FAIR = "fair"  # all connections alike; the messages of each in the order in which they were sent
    PRIORITY = "priority"  # as fair; of those that wait for a connection, the layer that is first in the forward pass
    FIFO = "fifo"  # what came first


# -- links, and the classes of connections that cross them ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Links and the classes of equal connections over them."""

    bytes_per_s: tuple[float, ...]  # of every link, in its one direction; > 0, and finite for one on each way
    # of every class: the links on the way of its connections, each with how many of the class cross it. A class without
    # any takes no time
    crossing: tuple[tuple[tuple[int, int], ...], ...]

    def __post_init__(self) -> None:
        ways = [one for way in self.crossing for one in way]
        if any(not 0 <= link < len(self.bytes_per_s) or count < 1 for link, count in ways):
            raise ModelError("Connections cross the links that there are, one or more of a class.")
        least = [min(self.bytes_per_s[link] for link, _ in way) for way in self.crossing if way]
        if not all(rate > 0 for rate in self.bytes_per_s) or not all(map(math.isfinite, least)):
            raise ModelError("Every link has a positive rate, and one on each way a finite one.")

    @cached_property
    def _counts(self) -> Floats:
        """How many of each class (column) cross each link (row)."""
        counts = np.zeros((len(self.bytes_per_s), len(self.crossing)))
        for one, way in enumerate(self.crossing):
            for link, count in way:
                counts[link, one] += count
        return counts

    def rates_bytes_per_s(self, busy: Sequence[int]) -> Floats:
        """Return the max-min fair rate of one connection of each busy class.

        The links with the smallest fair share are filled first and leave; their connections keep that share.

        Parameters
        ----------
        busy
            Classes that have something to send; each crosses a link.
        """
        counts = self._counts[:, list(busy)]
        numbers, left, rates = counts.sum(axis=1), np.array(self.bytes_per_s), np.zeros(len(busy))
        while numbers.any():
            shares = np.divide(left, numbers, out=np.full(len(left), math.inf), where=numbers > 0)
            least = float(shares.min())
            filled = counts[shares <= least * (1 + _ROUNDING)].any(axis=0)
            rates[filled] = least
            taken = counts[:, filled].sum(axis=1)
            counts[:, filled] = 0.0
            numbers -= taken
            left = np.maximum(left - taken * least, 0.0, where=taken > 0, out=left)
        return rates

    def busiest_s(self, sent_bytes: Sequence[float]) -> float:
        """Return the seconds for which the busiest link carries so much.

        Parameters
        ----------
        sent_bytes
            Of one connection of every class.
        """
        loads = [0.0] * len(self.bytes_per_s)
        for way, size in zip(self.crossing, sent_bytes, strict=True):
            for link, count in way:
                loads[link] += count * size / self.bytes_per_s[link]
        return max(loads, default=0.0)


# -- what is exchanged -------------------------------------------------------------------------------------------------


@frozen
class Worker:
    """Workers that are alike."""

    count: int = 1  # how many; >= 1
    forward_s: tuple[float, ...]  # of every layer, in order
    backward_s: float  # of the whole backward pass
    # from its start until each key's gradient may be pushed; later than its end where it is added up on a machine
    ready_s: tuple[float, ...]
    bytes_per_s: float  # of a worker's link, per direction; > 0, ``inf`` where it is no bottleneck
    # the kind of servers on their machines, one each, or None. Such a kind has as many workers as servers
    home: int | None = None
    # standard deviation of the normal distribution that the seconds of an iteration are drawn from, anew and
    # independently each time; draws below 0 are drawn again. Passes and gradients stretch alike
    deviation_s: float = 0.0
    samples: int = 1  # in one worker's iteration; of account where workers keep a pace of their own

    def __post_init__(self) -> None:
        if self.count < 1 or self.samples < 1:
            raise ModelError(f"Workers have count {self.count} and samples {self.samples}; both must be >= 1.")
        if not 0 <= self.deviation_s < math.inf or not self.bytes_per_s > 0:
            raise ModelError(
                f"deviation_s is {self.deviation_s} and bytes_per_s {self.bytes_per_s}. Have one finite and >= 0, the "
                f"other > 0."
            )

    @property
    def compute_s(self) -> float:
        """Seconds of both passes."""
        return sum(self.forward_s) + self.backward_s


@frozen
class Servers:
    """Servers that are alike: how many, and the bytes/s of each one's link per direction; > 0 and finite.

    Where workers host them, the worker's link carries it all.
    """

    count: int = 1
    bytes_per_s: float


@frozen(eq=False)
class Exchange:
    """What is exchanged, and when it may be."""

    # workers, servers: kinds of them; all workers have the same layers and keys
    workers: tuple[Worker, ...]
    servers: tuple[Servers, ...]
    # pushed_bytes, pulled_bytes: of each key (row) between one worker and one server of each kind (column); >= 0
    pushed_bytes: Floats
    pulled_bytes: Floats
    key_layer: tuple[int, ...]  # the layer that waits for each key
    # overlap, slack, discipline: see the head of the module. By priority (P3, ByteScheduler) a message on its way is
    # not interrupted
    overlap: Overlap
    slack: float | None = None
    discipline: Discipline = Discipline.FAIR
    # iterations of a worker between two exchanges, of which the last one's gradients are pushed; >= 1
    num_steps: int = 1
    # one way: a fair one of each sum, there and back; first come first served, of what is pushed and of what comes
    # back, each on its way
    latency_s: float = 0.0
    pause_s: float = 0.0  # before a forward pass, when the sums that it waits for are there: updates, start-up
    message_bytes: float = 0.0  # of every message and request, beside its payload
    stagger_s: float = 0.0  # between the starts of two kinds' first iterations

    def __post_init__(self) -> None:
        shape = (len(self.key_layer), len(self.servers))
        if not self.workers or not all(shape) or self.pushed_bytes.shape != shape or self.pulled_bytes.shape != shape:
            raise ModelError(
                "An exchange has a worker, a key and a server at least, and a size for each key and server."
            )
        layers = {len(worker.forward_s) for worker in self.workers}
        if len(layers) != 1 or any(len(worker.ready_s) != shape[0] for worker in self.workers):
            raise ModelError("All workers have the same layers and keys.")
        if any(not 0 <= layer < max(layers) for layer in self.key_layer):
            raise ModelError("Keys belong to the layers that there are.")
        sizes = np.concatenate((self.pushed_bytes, self.pulled_bytes))
        if not (np.isfinite(sizes).all() and (sizes >= 0).all()):
            raise ModelError("Sizes of keys are finite and >= 0.")
        if not all(0 < server.bytes_per_s < math.inf for server in self.servers):
            raise ModelError("Every server's link has a finite positive rate.")
        if not 0 <= self.latency_s < math.inf or self.num_steps < 1 or not (self.slack is None or self.slack >= 0):
            given = f"latency_s {self.latency_s}, num_steps {self.num_steps}, slack {self.slack}"
            raise ModelError(f"The latency is finite and >= 0, steps are 1 or more, the slack is >= 0, not {given}.")
        is_fifo = self.discipline is Discipline.FIFO
        if is_fifo and self.slack is None and any(server.count > 1 for server in self.servers):
            raise ModelError("First come first served, sums on their own come from servers that are given one by one.")
        if self.slack is not None and self.overlap.pulls_early:
            raise ModelError("Behind a barrier no sum is sent early: have overlap none or push, or no barrier.")
        homes = [worker.home for worker in self.workers if worker.home is not None]
        if any(not 0 <= home < len(self.servers) for home in homes):
            raise ModelError("Workers have servers at home that there are.")
        for worker in self.workers:
            if worker.home is not None and worker.count != self.servers[worker.home].count:
                raise ModelError("Workers with servers on their machines are as many as those.")
        if len(set(homes)) < len(homes):
            raise ModelError("A server stands on one machine.")

    @property
    def server_rates(self) -> Floats:
        """Bytes/s of the link of each kind of servers, per direction: its machine's."""
        rates = np.array([server.bytes_per_s for server in self.servers], dtype=np.float64)
        for worker in self.workers:
            if worker.home is not None:
                rates[worker.home] = worker.bytes_per_s
        return rates

    @property
    def fabric(self) -> Fabric:
        """The links of all hosts, on one switch that is never the bottleneck: two for each kind, out and in."""
        hosts = len(self.workers)
        rates = [worker.bytes_per_s for worker in self.workers]
        host_of: dict[int, int] = {worker.home: i for i, worker in enumerate(self.workers) if worker.home is not None}
        for server, kind in enumerate(self.servers):
            if server not in host_of:
                host_of[server] = hosts
                rates.append(kind.bytes_per_s)
                hosts += 1
        crossing: list[tuple[tuple[int, int], ...]] = []
        for is_pull in (False, True):
            for index, worker in enumerate(self.workers):
                for server, kind in enumerate(self.servers):
                    is_home = worker.home == server  # each sends to all servers but its own
                    ends = (index, kind.count - is_home), (host_of[server], worker.count - is_home)
                    (first, sent), (last, received) = reversed(ends) if is_pull else ends
                    crossing.append(((2 * first, sent), (2 * last + 1, received)) if sent and received else ())
        return Fabric(bytes_per_s=tuple(rate for rate in rates for _ in range(2)), crossing=tuple(crossing))

    @property
    def busiest_s(self) -> float:
        """The seconds for which the busiest link carries what one iteration sends."""
        ways = (self.pushed_bytes.sum(axis=0).tolist(), self.pulled_bytes.sum(axis=0).tolist())
        return self.fabric.busiest_s([size for one in ways for _ in self.workers for size in one])
