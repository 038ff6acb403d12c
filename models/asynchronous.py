"""Parameter servers without a barrier, or with a looser one: samples a second and staleness, by event simulation.

A worker computes, pushes its update to the servers, pulls the parameters of all servers, and starts again. When it may
pull is the synchronisation:

===========  =========================================================================================================
BSP          when all workers' updates of the iteration have been applied
SSP(s)       when, having finished c iterations, it is at most s ahead: ``c - (least finished of all) <= s``
             (Q. Ho et al., NIPS 2013, section 3: the read of a worker that is too fast blocks)
ASP          at once
local SGD    as BSP, but only once in H iterations (S. U. Stich, ICLR 2019, arXiv:1805.09767)
===========  =========================================================================================================

SSP(0) and local SGD(1) *are* BSP: the same events. A round of BSP takes no longer than
:func:`planner.models.servers.iteration_time_s` of one gradient, spread over all servers and ready when all is
computed, plus twice the latency; and exactly that long where workers' links are alike. Where they differ it may be
less: here each worker starts computing when its own pull has ended, there when the last one has. (Pushes that begin
earlier end no later, since a link works whenever something waits.)

The network is that of :mod:`planner.models.servers`: full duplex; a transfer goes to (or comes from) all servers
at once, at the pace of the worker's own link; every server's link, in each direction, serves first come first served,
byte by byte, and works whenever something waits; what arrives at the same moment is served mixed. First come first
served, and not equal shares, because it is what the synchronous model does, and because it needs one number per link to
simulate. Latency is paid once by a push and once by a pull, where anything crosses the network.

Faster links or a looser condition do not always help: order on a first come first served network is not monotone, and a
fast worker that is let go may delay a slow one that others wait for. On an idle network they do.

Left out: what staleness does to convergence; overlap of the push with the backward
pass; the servers' own work; a switch that queues. While a server's queue holds back a pull, the worker's own link
rests, and may then catch up with its pace: the worker's link bounds the time of a pull, not every moment of it.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import ModelError

Log = list[tuple[int, str, float, float]]  # worker; pull, compute, push or wait; start and end in seconds
_DRAWS = 64  # random numbers drawn at a time
_MOST_EXCHANGES = 20_000  # at most five events each
_LEAST_ITERATIONS, _DEFAULT_ITERATIONS = 4, 400
_NUM_BATCHES = 8

# -- what is asked: workers, servers' links, and when a worker may go on -----------------------------------------------


class Synchronisation(StrEnum):
    """When a worker that has pushed its update may pull parameters and go on."""

    BSP = "bsp"  # when all workers have pushed theirs of the same iteration
    SSP = "ssp"  # when no worker is more than s iterations behind: stale synchronous parallel
    ASP = "asp"  # at once
    LOCAL_SGD = "local_sgd"  # as BSP, but only every H iterations is anything pushed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """Workers that are alike.

    Attributes
    ----------
    count
        How many; >= 1.
    compute_s
        Forward, backward and update of one iteration: the mean; > 0.
    deviation_s
        Standard deviation of the normal distribution that an iteration's seconds are drawn from, anew and independently
        each time; draws below 0 are drawn again. 0 for none.
    samples
        In one worker's iteration; >= 1.
    link_bytes_per_s
        The worker's own link, per direction; > 0, ``inf`` where it is no bottleneck.
    """

    count: int
    compute_s: float
    deviation_s: float = 0.0
    samples: int
    link_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if self.count < 1 or self.samples < 1:
            raise ModelError(f"a kind of worker has count {self.count} and samples {self.samples}; both must be >= 1.")
        if not 0 < self.compute_s < math.inf:
            raise ModelError(f"compute_s is {self.compute_s}. It must be finite and > 0.")
        if not 0 <= self.deviation_s < math.inf:
            raise ModelError(f"deviation_s is {self.deviation_s}. It must be finite and >= 0.")
        if not self.link_bytes_per_s > 0:
            raise ModelError(f"link_bytes_per_s is {self.link_bytes_per_s}. It must be > 0; inf is allowed.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """One question, checked.

    Attributes
    ----------
    workers
        One kind per worker: kinds repeated as often as they count.
    push_bytes, pull_bytes, server_bytes_per_s
        Of each server.
    home
        The server on each worker's own machine, or None.
    """

    workers: tuple[WorkerKind, ...]
    push_bytes: Floats
    pull_bytes: Floats
    server_bytes_per_s: Floats
    latency_s: float
    synchronisation: Synchronisation
    bound: int
    home: tuple[int | None, ...]

    @classmethod
    def of(
        cls,
        kinds: Sequence[WorkerKind],
        *,
        push_bytes: Sequence[float],
        pull_bytes: Sequence[float],
        server_bytes_per_s: Sequence[float],
        latency_s: float = 0.0,
        synchronisation: Synchronisation,
        bound: int = 0,
        home: Sequence[int | None] | None = None,
    ) -> "Exchange":
        """Return the question of one training.

        Parameters
        ----------
        kinds
            The workers, numbered kind by kind.
        push_bytes, pull_bytes
            What one worker pushes to, and pulls from, each server, shape (servers,); >= 0.
        server_bytes_per_s
            Each server's link, per direction; > 0 and finite.
        latency_s
            One way between a worker and a server, start-up included; once a push and once a pull; >= 0.
        synchronisation, bound
            ``bound`` is s of SSP (>= 0) and H of local SGD (>= 1); BSP and ASP have none and ignore it.
        home
            For each worker the server on its own machine, or None: to and from that server nothing crosses the
            network. Left out, none.

        Raises
        ------
        ModelError
            If a number is out of range.
        """
        workers = tuple(kind for kind in kinds for _ in range(kind.count))
        exchange = cls(
            workers=workers,
            push_bytes=np.asarray(push_bytes, dtype=np.float64),
            pull_bytes=np.asarray(pull_bytes, dtype=np.float64),
            server_bytes_per_s=np.asarray(server_bytes_per_s, dtype=np.float64),
            latency_s=latency_s,
            synchronisation=Synchronisation(synchronisation),
            bound=bound,
            home=tuple(home) if home is not None else (None,) * len(workers),
        )
        exchange._check()
        return exchange

    def _check(self) -> None:
        """Refuse numbers out of range."""
        rates = self.server_bytes_per_s
        if rates.ndim != 1 or not rates.size or not (np.isfinite(rates).all() and (rates > 0).all()):
            raise ModelError(f"server_bytes_per_s must be at least one finite number > 0, not {rates.tolist()}.")
        for name, sizes in (("push_bytes", self.push_bytes), ("pull_bytes", self.pull_bytes)):
            if sizes.shape != rates.shape or not (np.isfinite(sizes).all() and (sizes >= 0).all()):
                raise ModelError(f"{name} must be {len(rates)} finite numbers >= 0, one a server: {sizes.tolist()}.")
        if not 0 <= self.latency_s < math.inf:
            raise ModelError(f"latency_s is {self.latency_s}. It must be finite and >= 0.")
        if not self.workers:
            raise ModelError("there is no worker. Give at least one kind.")
        if self.bound < (least := int(self.synchronisation is Synchronisation.LOCAL_SGD)):
            raise ModelError(f"bound is {self.bound} under {self.synchronisation}. It must be >= {least}.")
        if len(self.home) != len(self.workers):
            raise ModelError(f"home has {len(self.home)} entries for {len(self.workers)} workers. Give one for each.")
        for server in self.home:
            if server is not None and not 0 <= server < len(self.server_bytes_per_s):
                raise ModelError(f"home names server {server} of {len(self.server_bytes_per_s)}, counted from 0.")

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return len(self.workers)

    @property
    def slack(self) -> float:
        """How many iterations (exchanges of local SGD) a worker may be ahead of the slowest one; ``inf`` under ASP."""
        return {Synchronisation.ASP: math.inf, Synchronisation.SSP: float(self.bound)}.get(self.synchronisation, 0.0)

    @property
    def num_steps(self) -> int:
        """Iterations between two exchanges of a worker: H of local SGD, else 1."""
        return self.bound if self.synchronisation is Synchronisation.LOCAL_SGD else 1

    @property
    def has_homes(self) -> bool:
        """Whether a worker shares its machine with a server."""
        return any(server is not None for server in self.home)

    def directions(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield bytes and seconds on the server's idle link, of each server: first of a push, then of a pull."""
        for size_bytes in (self.push_bytes, self.pull_bytes):
            yield size_bytes, size_bytes / self.server_bytes_per_s

    def remote_bytes(self, size_bytes: Floats) -> list[float]:
        """Return what crosses the network for each worker: all but its own machine's share.

        Parameters
        ----------
        size_bytes
            Of one worker's transfer at each server, shape (servers,).
        """
        total, own = float(size_bytes.sum()), size_bytes.tolist()
        # All at home is exactly 0, whatever rounding says.
        alone = [not np.delete(size_bytes, server).any() for server in range(len(own))]
        return [total if server is None else 0.0 if alone[server] else total - own[server] for server in self.home]

    def own_s(self, size_bytes: Floats) -> list[float]:
        """Return the seconds of each worker's transfer on its own link, were servers' links unlimited.

        Parameters
        ----------
        size_bytes
            Of one worker's transfer at each server, shape (servers,).
        """
        remote = self.remote_bytes(size_bytes)
        return [size / worker.link_bytes_per_s for size, worker in zip(remote, self.workers, strict=True)]

    def delays_s(self, size_bytes: Floats) -> list[float]:
        """Return the latency that each worker's transfer pays: none where nothing crosses the network.

        Parameters
        ----------
        size_bytes
            Of one worker's transfer at each server, shape (servers,).
        """
        return [self.latency_s if size else 0.0 for size in self.remote_bytes(size_bytes)]

    def num_remote(self) -> Floats:
        """Return how many workers reach each server over the network."""
        homes = [server for server in self.home if server is not None]
        return self.num_workers - np.bincount(homes, minlength=len(self.server_bytes_per_s)).astype(np.float64)

    def alone_s(self) -> list[tuple[float, float]]:
        """Return the seconds of each worker's push and of its pull in an idle network, latency included."""
        both = [self._alone_s(size_bytes, server_s) for size_bytes, server_s in self.directions()]
        return list(zip(*both, strict=True))

    def cycles_s(self) -> list[float]:
        """Return the mean seconds of each worker from exchange to exchange, if it were alone."""
        computes_s = (self.num_steps * worker.compute_s for worker in self.workers)
        return [
            compute_s + push_s + pull_s for compute_s, (push_s, pull_s) in zip(computes_s, self.alone_s(), strict=True)
        ]

    def _alone_s(self, size_bytes: Floats, server_s: Floats) -> list[float]:
        slowest: dict[int | None, float] = {None: float(server_s.max())}
        for server in {server for server in self.home if server is not None}:
            slowest[server] = float(np.delete(server_s, server).max(initial=0.0))
        links = zip(self.delays_s(size_bytes), self.own_s(size_bytes), self.home, strict=True)
        return [delay_s + max(own_s, slowest[server]) for delay_s, own_s, server in links]


# -- how many exchanges a second no training exceeds in the long run ---------------------------------------------------


def exchanges_per_s_bound(exchange: Exchange) -> Floats:
    """Return exchanges a second of each worker, such that no run does more samples a second in total.

    Parameters
    ----------
    exchange
        The workers, the servers, and how they keep in step.

    Notes
    -----
    The long-run rates ``x_w`` of every run, whatever the order of its transfers, satisfy:

    1. ``x_w <= 1 / c_w``, where ``c_w`` is the mean computation plus push and pull in an idle network: a worker does
       one thing after the other, no transfer is faster than each link on its way, and the mean of a normal draw that is
       not negative is at least ``compute_s`` (the law of large numbers makes the mean of draws the rate's).
    2. ``sum of x_w over workers not at home there <= 1 / (seconds of one transfer)`` for each server and direction:
       a link carries no more bytes than it has bandwidth, and what waits in it is bounded by n transfers.
    3. Under all but ASP, ``x_w = x`` for all: clocks differ by at most ``s + 1``, for ever. So x is at most the least
       ``1 / c_w`` of 1 and the least ``1 / (number of remote workers x seconds)`` of 2.
    4. With a barrier (BSP, SSP(0), local SGD), all pulls of a round begin together, latency apart, and are served
       mixed: that of a worker whose own link takes d seconds ends after ``sum over v of min(1, d / d_v)`` transfers of
       the busiest link or later, since so much has then arrived there. Then it computes and pushes. ``1 / x`` is at
       least the longest of these sums; and, of the workers, the earliest beginning of a push (without computation
       where it varies: the mean of a least is not the least mean) plus all pushes through the busiest link.

    Under ASP, the samples' sum is maximised subject to 1 and to one constraint of 2 at a time, and the least of these
    maxima is taken: greedily, most samples first, since each exchange costs the link the same. Worker w's rate in
    that maximum is returned; only the sum of samples is a bound, not each rate.
    """
    if exchange.synchronisation is Synchronisation.ASP:
        return _asynchronous(exchange)
    if exchange.slack == 0:
        return np.full(exchange.num_workers, 1.0 / _round_s(exchange))
    busiest_s = max(_busiest_s(exchange, size_s) for _, size_s in exchange.directions())
    return np.full(exchange.num_workers, 1.0 / max(*exchange.cycles_s(), busiest_s))


def _busiest_s(exchange: Exchange, size_s: Floats) -> float:
    """Return the seconds in which the busiest link carries one transfer of every worker."""
    return float((exchange.num_remote() * size_s).max())


def _round_s(exchange: Exchange) -> float:
    """Return the least seconds of a round with a barrier, from one release of the pulls to the next."""
    computes_s = np.array([exchange.num_steps * worker.compute_s for worker in exchange.workers])
    pushes_s = np.array([push_s for push_s, _ in exchange.alone_s()])
    pulls_s = _pulls_s(exchange)
    varies = any(worker.deviation_s for worker in exchange.workers)
    begin_s = pulls_s + exchange.delays_s(exchange.push_bytes) + (0.0 if varies else computes_s)
    (_, push_s), _ = exchange.directions()
    return max(float((pulls_s + computes_s + pushes_s).max()), float(begin_s.min()) + _busiest_s(exchange, push_s))


def _pulls_s(exchange: Exchange) -> Floats:
    """Return the least seconds of each worker's pull, if all begin together."""
    _, (pull_bytes, pull_s) = exchange.directions()
    paces_s, which, counts = np.unique(exchange.own_s(pull_bytes), return_inverse=True, return_counts=True)
    ratio = np.divide(paces_s[:, None], paces_s, out=np.ones((len(paces_s),) * 2), where=paces_s[:, None] < paces_s)
    arrived = (ratio @ counts)[which].tolist()
    # Of those transfers the ones of workers at home there are missing, at most one each.
    missing = exchange.num_workers - exchange.num_remote()
    at_servers_s = {number: pull_s * (number - missing) for number in set(arrived)}
    mixed_s = [
        float(at_servers_s[number].max() if server is None else np.delete(at_servers_s[number], server).max(initial=0))
        for number, server in zip(arrived, exchange.home, strict=True)
    ]
    delayed_s: Floats = np.add(mixed_s, exchange.delays_s(pull_bytes))
    return np.maximum(delayed_s, [pull for _, pull in exchange.alone_s()])


def _asynchronous(exchange: Exchange) -> Floats:
    """Return rates of the least of the maxima, one for each server and direction."""
    most = 1.0 / np.array(exchange.cycles_s())
    samples = np.array([worker.samples for worker in exchange.workers], dtype=np.float64)
    home = np.array([-1 if server is None else server for server in exchange.home])
    best = most
    for _, size_s in exchange.directions():
        servers = np.flatnonzero(size_s).tolist()
        if servers and not exchange.has_homes:  # of equal remote workers only the busiest link can be the bottleneck
            servers = [int(np.argmax(size_s))]
        for server in servers:
            rates = _knapsack(most, samples, home != server, 1.0 / float(size_s[server]))
            if rates @ samples < best @ samples:
                best = rates
    return best


def _knapsack(most: Floats, samples: Floats, is_remote: NDArray[np.bool_], per_s: float) -> Floats:
    """Return rates that make the most samples of so many exchanges a second over one link."""
    rates, remote = most.copy(), np.flatnonzero(is_remote)
    order = remote[np.argsort(-samples[remote], kind="stable")]
    before = np.concatenate(([0.0], np.cumsum(most[order])))[:-1]
    rates[order] = np.clip(per_s - before, 0.0, most[order])
    return rates


# -- servers' links from event to event: how long what is sent now waits and takes -------------------------------------
# A transfer is a stream that the worker's own link paces: ``open`` lets it begin (all of it arrives at once if that
# link is unlimited), ``close`` lets it end, and returns the seconds until its last byte is through the slowest link.
# Work is counted in seconds: bytes over the server's bandwidth. A link works whenever work waits, in the order of
# arrival, so that what arrives now has gone through after as many seconds as work waits. What arrives at the same
# moment is served mixed, as are streams that overlap: an unlimited worker's link is the limit of a fast one.


class _Streams:
    """How many streams of each pace are open: their sum has no rounding errors that would add up over a run."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number: dict[float, int] = {}

    def add(self, pace: float, number: int) -> None:
        """Open or close streams."""
        self._number[pace] = self._number.get(pace, 0) + number

    @property
    def pace(self) -> float:
        """Of all together, in transfers a second."""
        return sum(pace * number for pace, number in self._number.items())


class _OneLink:
    """The busiest server's link, which stands for all: every worker sends it the longest work of each exchange.

    Work that waits is ``max over t of (work arrived from t on) - (now - t)``, and every server gets the same streams
    times its own seconds of a transfer; so it waits longest where that is largest, always.
    """

    __slots__ = ("_now_s", "_own_s", "_size_s", "_streams", "_work_s")

    def __init__(self, size_s: float, own_s: list[float]) -> None:
        self._size_s, self._own_s, self._streams = size_s, own_s, _Streams()
        self._now_s = self._work_s = 0.0

    def _advance(self, now: float) -> None:
        # Between two events arrivals have a constant rate, so that the clipped straight line is exact.
        work_s = self._work_s + (self._size_s * self._streams.pace - 1.0) * (now - self._now_s)
        self._work_s, self._now_s = (work_s if work_s > 0.0 else 0.0), now

    def open(self, now: float, worker: int) -> None:
        self._advance(now)
        if own_s := self._own_s[worker]:
            self._streams.add(1.0 / own_s, 1)
        else:
            self._work_s += self._size_s

    def close(self, now: float, worker: int) -> float:
        self._advance(now)
        if own_s := self._own_s[worker]:
            self._streams.add(1.0 / own_s, -1)
        return self._work_s


class _AllLinks:
    """All servers' links, where workers differ in what they send: nothing to the server on their own machine."""

    __slots__ = ("_at_home", "_home", "_home_pace", "_now_s", "_own_s", "_size_s", "_streams", "_work_s")

    def __init__(self, size_s: Floats, own_s: list[float], home: tuple[int | None, ...]) -> None:
        self._size_s, self._own_s, self._home = size_s, own_s, home
        self._streams = _Streams()
        self._at_home = {server: _Streams() for server in home if server is not None}
        self._now_s, self._work_s, self._home_pace = 0.0, np.zeros_like(size_s), np.zeros_like(size_s)

    def _advance(self, now: float) -> None:
        arriving = self._size_s * (self._streams.pace - self._home_pace)
        self._work_s = np.maximum(self._work_s + (arriving - 1.0) * (now - self._now_s), 0.0)
        self._now_s = now

    def _add(self, worker: int, number: int) -> None:
        pace, home = 1.0 / self._own_s[worker], self._home[worker]
        self._streams.add(pace, number)
        if home is not None:
            self._at_home[home].add(pace, number)
            self._home_pace[home] = self._at_home[home].pace

    def open(self, now: float, worker: int) -> None:
        self._advance(now)
        if self._own_s[worker]:
            self._add(worker, 1)
            return
        home = self._home[worker]
        here = self._work_s[home] if home is not None else 0.0
        self._work_s += self._size_s
        if home is not None:
            self._work_s[home] = here

    def close(self, now: float, worker: int) -> float:
        self._advance(now)
        if self._own_s[worker]:
            self._add(worker, -1)
        home = self._home[worker]
        if home is None:
            return float(self._work_s.max())
        return float(max(self._work_s[:home].max(initial=0.0), self._work_s[home + 1 :].max(initial=0.0)))


# -- the events: every worker computes, pushes, waits if it must, pulls, and starts again ------------------------------


@dataclass(slots=True)
class _Tally:
    """Mean and largest of numbers that come one by one; the mean is of those after the warm-up."""

    total: int = 0
    number: int = 0
    most: int = 0

    def add(self, value: int, *, is_warm: bool) -> None:
        self.most = max(self.most, value)
        if is_warm:
            self.total += value
            self.number += 1

    @property
    def mean(self) -> float:
        return self.total / self.number if self.number else 0.0


@dataclass(slots=True)
class Record:
    """What was counted; a cycle is the time between two moments at which a worker may pull.

    Attributes
    ----------
    num_cycles, cycles_s
        Of each worker, after the warm-up.
    all_cycles, all_s
        The same of the whole run, the start included: for a worker that is too slow to have any other.
    waits_s, computes_s
        Of all workers together: held back by the others, and computing, in those cycles.
    missed, clock_difference
        Sum, number and largest: updates of others that a push missed, and iterations ahead of the slowest worker.
    rounds_s
        When each n-th update of n workers was applied, of the whole run.
    """

    num_cycles: list[int]
    cycles_s: list[float]
    all_cycles: list[int]
    all_s: list[float]
    waits_s: float = 0.0
    computes_s: float = 0.0
    missed: _Tally = field(default_factory=_Tally)
    clock_difference: _Tally = field(default_factory=_Tally)
    rounds_s: list[float] = field(default_factory=list)


def play(exchange: Exchange, *, num_exchanges: int, num_warm_up: int, seed: int, log: Log | None = None) -> Record:
    """Return what happens until so many updates were applied; the first ``num_warm_up`` of them are not counted.

    ``log``: where to put what every worker does, in the order in which it ends.

    Parameters
    ----------
    exchange
        The workers, the servers, and how they keep in step.
    num_exchanges, num_warm_up
        Updates that are applied in all; the first of them that are not counted.
    seed
        Of the iterations' seconds.
    log
        Where to put what every worker does, in the order in which it ends; None for nowhere.
    """
    return _Play(exchange, num_exchanges=num_exchanges, num_warm_up=num_warm_up, seed=seed, log=log).run()


class _Play:
    """The state of all workers; events are (time, number, what, worker), and equal times come in order of number."""

    def __init__(self, exchange: Exchange, *, num_exchanges: int, num_warm_up: int, seed: int, log: Log | None) -> None:
        size, both = exchange.num_workers, (exchange.push_bytes, exchange.pull_bytes)
        self.num_workers, self.slack = size, exchange.slack
        self.num_exchanges, self.num_warm_up = num_exchanges, num_warm_up
        self.compute_s = [
            _drawn_s(kind, exchange.num_steps, seed, index) for index, kind in enumerate(exchange.workers)
        ]
        self.pushes, self.pulls = map(exchange.remote_bytes, both)
        self.push_s, self.pull_s = map(exchange.own_s, both)
        self.push, self.pull = (
            _AllLinks(size_s, own_s, exchange.home) if exchange.has_homes else _OneLink(float(size_s.max()), own_s)
            for own_s, (_, size_s) in zip((self.push_s, self.pull_s), exchange.directions(), strict=True)
        )
        self.push_delay_s, self.pull_delay_s = map(exchange.delays_s, both)
        # Equal workers without variation would for ever stay in step after a common start, and queue up every time:
        # starts are spread evenly over a cycle. Behind a barrier that is forgotten after one round. Under SSP a worker
        # that alone is faster than the slowest gets ahead until s stops it. Where the two differ little that takes
        # longer than any simulation; so it starts there.
        cycles_s = exchange.cycles_s()
        self.released_s = [cycle_s * index / size for index, cycle_s in enumerate(cycles_s)]
        slowest_s, ahead = max(cycles_s), exchange.bound if 0 < exchange.slack < math.inf else 0
        self.clock = [0 if math.isclose(cycle_s, slowest_s) else ahead for cycle_s in cycles_s]
        self.least_clock = min(self.clock)
        self.at_clock = Counter(self.clock)
        self.waiting: set[int] = set()  # read in sorted order only
        self.applied_s, self.computed_s = [0.0] * size, [0.0] * size
        self.computed_at_s = [0.0] * size  # kept for the log alone
        self.is_counted = [False] * size  # the cycle under way began after the warm-up
        self.seen = [0] * size  # updates in the parameters that each worker has
        self.num_applied = self.number = 0
        self.events: list[tuple[float, int, int, int]] = []
        self.log = log
        self.record = Record([0] * size, [0.0] * size, [0] * size, [0.0] * size)

    def run(self) -> Record:
        """Play until the last update."""
        steps = (self.push_begins, self.push_ends, self.push_is_applied, self.pull_begins, self.pull_ends, self.start)
        for worker, start_s in enumerate(self.released_s):
            self.at(start_s, 5, worker)
        while self.num_applied < self.num_exchanges:
            now, _, what, worker = heapq.heappop(self.events)
            steps[what](now, worker)
        return self.record

    def at(self, when: float, what: int, worker: int) -> None:
        """Have something happen."""
        self.number += 1
        heapq.heappush(self.events, (when, self.number, what, worker))

    def start(self, now: float, worker: int) -> None:
        """Compute with the parameters that there are: nothing has to be pulled."""
        self.seen[worker] = self.num_applied
        self.compute_from(now, worker)

    def compute_from(self, now: float, worker: int) -> None:
        """Compute; what happens next is that the push's first byte reaches the servers' links."""
        self.computed_s[worker] = compute_s = next(self.compute_s[worker])
        if self.log is not None:
            self.log.append((worker, "pull", self.released_s[worker], now))
            self.log.append((worker, "compute", now, now + compute_s))
            self.computed_at_s[worker] = now + compute_s
        self.at(now + compute_s + self.push_delay_s[worker], 0, worker)

    def push_begins(self, now: float, worker: int) -> None:
        if not self.pushes[worker]:
            self.push_is_applied(now, worker)
        else:
            self.push.open(now, worker)
            self.at(now + self.push_s[worker], 1, worker)

    def push_ends(self, now: float, worker: int) -> None:
        self.at(now + self.push.close(now, worker), 2, worker)

    def push_is_applied(self, now: float, worker: int) -> None:
        """Apply an update, advance the worker's clock, and let go on whoever now may, in the order of their numbers."""
        is_warm = self.num_applied >= self.num_warm_up
        missed = self.num_applied - self.seen[worker] if self.slack else 0  # behind a barrier all are applied at once
        self.record.missed.add(missed, is_warm=is_warm)
        self.num_applied += 1
        if self.num_applied % self.num_workers == 0:
            self.record.rounds_s.append(now)
        self.applied_s[worker] = now
        if self.log is not None:
            self.log.append((worker, "push", self.computed_at_s[worker], now))
        self.waiting.add(worker)
        asking = self.waiting if self.tick(worker) else {worker}
        for one in sorted(one for one in asking if self.clock[one] - self.least_clock <= self.slack):
            self.waiting.remove(one)
            self.release(now, one)

    def tick(self, worker: int) -> bool:
        """Count a finished iteration; return whether it was the last one that others waited for."""
        before = self.clock[worker]
        self.clock[worker] = before + 1
        self.at_clock[before + 1] += 1
        self.at_clock[before] -= 1
        if self.at_clock[self.least_clock]:
            return False
        del self.at_clock[self.least_clock]
        self.least_clock += 1  # where this worker is now, if nobody else
        return True

    def release(self, now: float, worker: int) -> None:
        """Let a worker pull: one cycle ends, and the next begins."""
        is_warm, record = self.num_applied >= self.num_warm_up, self.record
        if self.log is not None:
            self.log.append((worker, "wait", self.applied_s[worker], now))
        record.clock_difference.add(self.clock[worker] - self.least_clock, is_warm=is_warm)
        cycle_s = now - self.released_s[worker]
        record.all_cycles[worker] += 1
        record.all_s[worker] += cycle_s
        if self.is_counted[worker]:
            record.num_cycles[worker] += 1
            record.cycles_s[worker] += cycle_s
            record.waits_s += now - self.applied_s[worker]
            record.computes_s += self.computed_s[worker]
        self.is_counted[worker], self.released_s[worker] = is_warm, now
        if self.pulls[worker]:
            self.at(now + self.pull_delay_s[worker], 3, worker)
        else:
            self.start(now, worker)

    def pull_begins(self, now: float, worker: int) -> None:
        self.seen[worker] = self.num_applied
        self.pull.open(now, worker)
        self.at(now + self.pull_s[worker], 4, worker)

    def pull_ends(self, now: float, worker: int) -> None:
        self.compute_from(now + self.pull.close(now, worker), worker)


def _drawn_s(kind: WorkerKind, num_steps: int, seed: int, worker: int) -> Iterator[float]:
    """Yield the seconds that a worker computes between exchanges; the same numbers under every synchronisation.

    Where they vary, sums of independent draws, each normal and not negative.
    """
    if not kind.deviation_s:
        yield from repeat(num_steps * kind.compute_s)
    rng = np.random.default_rng((seed, worker))
    while True:
        drawn = rng.normal(kind.compute_s, kind.deviation_s, (_DRAWS, num_steps))
        while (negative := drawn < 0).any():
            drawn[negative] = rng.normal(kind.compute_s, kind.deviation_s, int(negative.sum()))
        yield from drawn.sum(axis=1).tolist()


# -- what a run says ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousRun:
    """What a simulation found; all but the two largest values leave out the warm-up.

    Attributes
    ----------
    samples_per_s
        ``measured_samples_per_s``, or :func:`samples_per_s_bound` where that is less: in the long run nothing exceeds
        it, so that what does is the error of a finite run.
    measured_samples_per_s
        Sum over workers of samples over the mean time between exchanges.
    relative_standard_error
        Of the rate: of the means of eight batches of rounds (a round is n exchanges of n workers). 0 for a run whose
        rounds are all alike. Batches are too few for more than an order of magnitude.
    mean_staleness, most_staleness
        In iterations: updates of *other* workers, divided by the number of workers, that were applied after the
        parameters were read on which an update was computed (when the pull began), and before that update itself. In
        updates, without the division, it is the staleness of W. Zhang et al., IJCAI 2016, arXiv:1511.05950.
        0 under BSP, where all updates of an iteration are applied at once. Under local SGD the k-th local iteration
        (k from 0) misses k updates of each other worker: 0 to ``(H - 1)(n - 1)/n``.
        At most ``(2 s + 1)(n - 1)/n`` under SSP(s).
    mean_clock_difference, most_clock_difference
        In iterations (exchanges, of local SGD): how far a worker that starts an iteration is ahead of the slowest one.
        This is what s of SSP(s) bounds. Under ASP nothing does: with unequal workers it grows for as long as training
        goes on, and this is the value of the run.
    waiting_share
        Of the workers' time: held back by the condition of synchronisation, not by the network.
    exchanges_s
        Mean seconds of one exchange: push and pull with latency and queues, without that waiting.
    push_utilisation, pull_utilisation
        Of each server's link, per direction.
    num_exchanges
        How many were simulated, the warm-up included.
    """

    samples_per_s: float
    measured_samples_per_s: float
    relative_standard_error: float
    mean_staleness: float
    most_staleness: float
    mean_clock_difference: float
    most_clock_difference: float
    waiting_share: float
    exchanges_s: float
    push_utilisation: tuple[float, ...]
    pull_utilisation: tuple[float, ...]
    num_exchanges: int


def simulate(
    exchange: Exchange, *, num_iterations: int | None = None, seed: int = 0, log: Log | None = None
) -> AsynchronousRun:
    """Return the steady state of a training without a barrier, or with one.

    Parameters
    ----------
    exchange
        The workers, the servers, and how they keep in step.
    num_iterations
        Exchanges per worker, on average; >= 4. The first quarter is the warm-up. Left out, 400, or as many as make
        20,000 exchanges of all workers together: 20 for 1,000 workers. The error that this leaves is reported.
    seed
        Of the iterations' seconds; worker and iteration have the same number under every synchronisation.
    log
        Where to put what every worker does, the start included; it does not change what is found.

    Raises
    ------
    ModelError
        If there are too few iterations.

    Notes
    -----
    Workers start spread evenly over a cycle (equal ones without variation would else stay in step, and queue for each
    other, for ever); under SSP(s) those which alone are faster than the slowest are then already s iterations ahead,
    which is where they end. An event takes O(log n), and O(servers) more where workers have homes.

    >>> fast, slow = (WorkerKind(count=1, compute_s=seconds, samples=8) for seconds in (1.0, 2.0))
    >>> for name, s in (("bsp", 0), ("ssp", 3), ("asp", 0)):
    ...     exchange = Exchange.of([fast, slow], push_bytes=[1e6], pull_bytes=[1e6], server_bytes_per_s=[1e9],
    ...                            synchronisation=Synchronisation(name), bound=s)
    ...     run = simulate(exchange)
    ...     print(name, round(run.samples_per_s, 2), round(run.waiting_share, 2), run.most_clock_difference <= s)
    bsp 7.99 0.25 True
    ssp 7.99 0.25 True
    asp 11.98 0.0 False
    """
    num_workers, rounds = exchange.num_workers, num_iterations
    if rounds is None:
        rounds = max(_LEAST_ITERATIONS, min(_DEFAULT_ITERATIONS, _MOST_EXCHANGES // num_workers))
    if rounds < _LEAST_ITERATIONS:
        raise ModelError(f"num_iterations is {rounds}. It must be >= {_LEAST_ITERATIONS}: some are warm-up.")
    num_exchanges, num_warm_up = rounds * num_workers, rounds // 4 * num_workers
    record = play(exchange, num_exchanges=num_exchanges, num_warm_up=num_warm_up, seed=seed, log=log)
    # Each worker's rate: after the warm-up; of the whole run if it did not end a cycle since; else 0.
    later, ever = np.array([record.num_cycles, record.cycles_s]), np.array([record.all_cycles, record.all_s])
    number, seconds = np.where(later[0] > 0, later, ever)
    per_s = np.divide(number, seconds, out=np.zeros(num_workers), where=number > 0)
    measured, limit = float(per_s @ _samples(exchange)), samples_per_s_bound(exchange)
    mean_staleness, most_staleness = (missed / num_workers for missed in (record.missed.mean, record.missed.most))
    if exchange.num_steps > 1:
        most_staleness = (exchange.num_steps - 1) * (num_workers - 1) / num_workers
        mean_staleness = most_staleness / 2
    cycles_s, num_cycles = sum(record.cycles_s), sum(record.num_cycles)
    push, pull = (_utilisation(exchange, per_s, size_s) for _, size_s in exchange.directions())
    return AsynchronousRun(
        samples_per_s=min(measured, limit),
        measured_samples_per_s=measured,
        relative_standard_error=_relative_error(record.rounds_s[rounds // 4 :]),
        mean_staleness=mean_staleness,
        most_staleness=most_staleness,
        mean_clock_difference=record.clock_difference.mean,
        most_clock_difference=record.clock_difference.most,
        waiting_share=record.waits_s / cycles_s,
        exchanges_s=max(0.0, (cycles_s - record.waits_s - record.computes_s) / num_cycles),
        push_utilisation=push,
        pull_utilisation=pull,
        num_exchanges=num_exchanges,
    )


def _utilisation(exchange: Exchange, per_s: Floats, size_s: Floats) -> tuple[float, ...]:
    """Return the busy share of each server's link: work arriving per second, at most 1."""
    arriving = np.full(len(size_s), per_s.sum())
    for worker, server in enumerate(exchange.home):
        if server is not None:
            arriving[server] -= per_s[worker]
    return tuple(np.clip(arriving * size_s, 0.0, 1.0).tolist())


def _relative_error(rounds_s: Sequence[float]) -> float:
    """Return the standard error of the mean round over that mean, by batch means."""
    rounds = np.diff(rounds_s)
    means = np.array([batch.mean() for batch in np.array_split(rounds, min(_NUM_BATCHES, len(rounds)))])
    if len(means) < 2 or not means.mean():
        return math.inf
    return float(means.std(ddof=1) / means.mean() / math.sqrt(len(means)))


def samples_per_s_bound(exchange: Exchange) -> float:
    """Return samples a second that no run exceeds in the long run, whatever its seed.

    Proof: :func:`planner.models.asynchronous.exchanges_per_s_bound`.

    Parameters
    ----------
    exchange
        The workers, the servers, and how they keep in step.

    >>> four = [WorkerKind(count=4, compute_s=1.0, samples=8)]
    >>> samples_per_s_bound(Exchange.of(four, push_bytes=[5e8], pull_bytes=[5e8], server_bytes_per_s=[1e9],
    ...                                 synchronisation=Synchronisation.ASP))
    16.0
    """
    return float(exchanges_per_s_bound(exchange) @ _samples(exchange))


def _samples(exchange: Exchange) -> Floats:
    """Return the samples of each worker between two of its exchanges."""
    return np.array([worker.samples for worker in exchange.workers], dtype=np.float64) * exchange.num_steps
