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
:func:`planner.models.server_links.iteration_time_s` of one gradient, spread over all servers and ready when all is
computed, plus twice the latency; and exactly that long where workers' links are alike. Where they differ it may be
less: here each worker starts computing when its own pull has ended, there when the last one has. (Pushes that begin
earlier end no later, since a link works whenever something waits.)

The network is that of :mod:`planner.models.server_links`: full duplex; a transfer goes to (or comes from) all servers
at once, at the pace of the worker's own link; every server's link, in each direction, serves first come first served,
byte by byte, and works whenever something waits; what arrives at the same moment is served mixed. First come first
served, and not equal shares, because it is what the synchronous model does, and because it needs one number per link to
simulate. Latency is paid once by a push and once by a pull, where anything crosses the network.

Faster links or a looser condition do not always help: order on a first come first served network is not monotone, and a
fast worker that is let go may delay a slow one that others wait for. On an idle network they do.

Left out: what staleness does to convergence (see :func:`break_even_epochs`); overlap of the push with the backward
pass; the servers' own work; a switch that queues. While a server's queue holds back a pull, the worker's own link
rests, and may then catch up with its pace: the worker's link bounds the time of a pull, not every moment of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.asynchronous_bound import exchanges_per_s_bound
from planner.models.asynchronous_events import Log, Record, play
from planner.models.asynchronous_exchange import Exchange, Synchronisation, WorkerKind

__all__ = [
    "AsynchronousRun",
    "Exchange",
    "Synchronisation",
    "WorkerKind",
    "break_even_epochs",
    "samples_per_s_bound",
    "simulate",
]

_MOST_EXCHANGES = 20_000  # at most five events each
_LEAST_ITERATIONS, _DEFAULT_ITERATIONS = 4, 400
_NUM_BATCHES = 8


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
    kinds: Sequence[WorkerKind],
    *,
    push_bytes: Sequence[float],
    pull_bytes: Sequence[float],
    server_bytes_per_s: Sequence[float],
    latency_s: float = 0.0,
    synchronisation: Synchronisation,
    bound: int = 0,
    num_iterations: int | None = None,
    seed: int = 0,
    home: Sequence[int | None] | None = None,
    log: Log | None = None,
) -> AsynchronousRun:
    """Return the steady state of a training without a barrier, or with one.

    Parameters
    ----------
    kinds
        The workers, numbered kind by kind.
    push_bytes, pull_bytes
        What one worker pushes to, and pulls from, each server; >= 0.
    server_bytes_per_s
        Each server's link, per direction; > 0 and finite.
    latency_s
        One way between a worker and a server, start-up included; once a push and once a pull.
    synchronisation, bound
        ``bound`` is s of SSP (>= 0) and H of local SGD (>= 1); BSP and ASP have none and ignore it.
    num_iterations
        Exchanges per worker, on average; >= 4. The first quarter is the warm-up. Left out, 400, or as many as make
        20,000 exchanges of all workers together: 20 for 1,000 workers. The error that this leaves is reported.
    seed
        Of the iterations' seconds; worker and iteration have the same number under every synchronisation.
    home
        For each worker the server on its own machine, or None: to and from that server nothing crosses the network.
    log
        Where to put what every worker does, the start included; it does not change what is found.

    Raises
    ------
    ModelError
        If a number is out of range.

    Notes
    -----
    Workers start spread evenly over a cycle (equal ones without variation would else stay in step, and queue for each
    other, for ever); under SSP(s) those which alone are faster than the slowest are then already s iterations ahead,
    which is where they end. An event takes O(log n), and O(servers) more where workers have homes.

    >>> fast, slow = (WorkerKind(count=1, compute_s=seconds, samples=8) for seconds in (1.0, 2.0))
    >>> for name, s in (("bsp", 0), ("ssp", 3), ("asp", 0)):
    ...     run = simulate([fast, slow], push_bytes=[1e6], pull_bytes=[1e6], server_bytes_per_s=[1e9],
    ...                    synchronisation=Synchronisation(name), bound=s)
    ...     print(name, round(run.samples_per_s, 2), round(run.waiting_share, 2), run.most_clock_difference <= s)
    bsp 7.99 0.25 True
    ssp 7.99 0.25 True
    asp 11.98 0.0 False
    """
    exchange = Exchange.of(
        kinds,
        push_bytes=push_bytes,
        pull_bytes=pull_bytes,
        server_bytes_per_s=server_bytes_per_s,
        latency_s=latency_s,
        synchronisation=synchronisation,
        bound=bound,
        home=home,
    )
    rounds = _num_rounds(exchange.num_workers, num_iterations)
    num_exchanges, num_warm_up = rounds * exchange.num_workers, rounds // 4 * exchange.num_workers
    record = play(exchange, num_exchanges=num_exchanges, num_warm_up=num_warm_up, seed=seed, log=log)
    return _run_of(exchange, record, rounds)


def _num_rounds(num_workers: int, num_iterations: int | None) -> int:
    """Return how many exchanges a worker makes on average."""
    if num_iterations is None:
        return max(_LEAST_ITERATIONS, min(_DEFAULT_ITERATIONS, _MOST_EXCHANGES // num_workers))
    if num_iterations < _LEAST_ITERATIONS:
        raise ModelError(f"num_iterations is {num_iterations}. It must be >= {_LEAST_ITERATIONS}: some are warm-up.")
    return num_iterations


def _run_of(exchange: Exchange, record: Record, rounds: int) -> AsynchronousRun:
    """Return what a record of so many rounds says."""
    per_s = _exchanges_per_s(record)
    measured, limit = float(per_s @ _samples(exchange)), samples_per_s_bound(exchange)
    mean_staleness, most_staleness = (
        missed / exchange.num_workers for missed in (record.missed.mean, record.missed.most)
    )
    if exchange.num_steps > 1:
        most_staleness = (exchange.num_steps - 1) * (exchange.num_workers - 1) / exchange.num_workers
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
        num_exchanges=rounds * exchange.num_workers,
    )


def _exchanges_per_s(record: Record) -> Floats:
    """Return each worker's rate: after the warm-up; of the whole run if it did not end a cycle since; else 0."""
    later, ever = np.array([record.num_cycles, record.cycles_s]), np.array([record.all_cycles, record.all_s])
    number, seconds = np.where(later[0] > 0, later, ever)
    rates: Floats = np.divide(number, seconds, out=np.zeros(len(number)), where=number > 0)
    return rates


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

    Proof: :func:`planner.models.asynchronous_bound.exchanges_per_s_bound`.

    >>> four = [WorkerKind(count=4, compute_s=1.0, samples=8)]
    >>> samples_per_s_bound(Exchange.of(four, push_bytes=[5e8], pull_bytes=[5e8], server_bytes_per_s=[1e9],
    ...                                 synchronisation=Synchronisation.ASP))
    16.0
    """
    return float(exchanges_per_s_bound(exchange) @ _samples(exchange))


def _samples(exchange: Exchange) -> Floats:
    """Return the samples of each worker between two of its exchanges."""
    return np.array([worker.samples for worker in exchange.workers], dtype=np.float64) * exchange.num_steps


def break_even_epochs(*, samples_per_s: float, synchronous_samples_per_s: float) -> float:
    """Return how many times the epochs a run may need before the synchronous one is done first: the ratio of rates.

    >>> break_even_epochs(samples_per_s=150.0, synchronous_samples_per_s=100.0)
    1.5
    """
    if not (0 < samples_per_s < math.inf and 0 < synchronous_samples_per_s < math.inf):
        rates = f"samples_per_s {samples_per_s} and synchronous_samples_per_s {synchronous_samples_per_s}"
        raise ModelError(f"{rates} must be finite and > 0.")
    return samples_per_s / synchronous_samples_per_s
