"""Workers that keep a pace of their own: samples a second and staleness of an exchange, and what no run exceeds.

The exchange is that of :mod:`planner.models.exchange`, with a slack. SSP(0) and local SGD(1) *are* BSP: the same
events. A round of BSP on links that serve first come first served takes no longer than the synchronous model
(:func:`planner.models.servers.iteration_time_s`) has for one gradient, spread over all servers and ready when all is
computed, plus twice the latency; and exactly that long where workers' links are alike. Where they differ it may be
less: here each worker starts computing when its own pull has ended, there when the last one has.

Faster links or more slack do not always help: order on a first come first served network is not monotone, and a fast
worker that is let go may delay a slow one that others wait for. On an idle network they do.

Left out: what staleness does to convergence.
"""

import math

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen
from planner.models.exchange import Exchange, Overlap
from planner.models.exchange_run import Cycle, Run

_MOST_EXCHANGES = 20_000
_LEAST_ITERATIONS, _DEFAULT_ITERATIONS = 4, 400


@frozen
class Pace:
    """What a simulation found; all but the two largest values leave out the warm-up."""

    # ``measured_samples_per_s``, or :func:`samples_per_s_bound` where that is less: in the long run nothing exceeds it,
    # so that what does is the error of a finite run
    samples_per_s: float
    measured_samples_per_s: float  # sum over workers of samples over the mean time between exchanges
    # mean_staleness, most_staleness: in iterations: updates of *other* workers, divided by the number of workers, that
    # were applied after the parameters were read on which an update was computed (when the pull began), and before that
    # update itself. In updates, without the division, it is the staleness of W. Zhang et al., IJCAI 2016,
    # arXiv:1511.05950. 0 under BSP, where all updates of an iteration are applied at once. Under local SGD the k-th
    # local iteration (k from 0) misses k updates of each other worker: 0 to ``(H - 1)(n - 1)/n``. At most ``(2 s + 1)(n
    # - 1)/n`` under SSP(s)
    mean_staleness: float
    most_staleness: float
    # in iterations (exchanges, of local SGD): how far a worker that starts an iteration is ahead of the slowest one.
    # This is what s of SSP(s) bounds. Under ASP nothing does: with unequal workers it grows for as long as training
    # goes on, and this is the value of the run
    most_ahead: int
    waiting_share: float  # of the workers' time: held back by the slack, not by the network
    cycles: tuple[Cycle, ...]  # all that were simulated, by their ends


def pace(exchange: Exchange, *, num_iterations: int | None = None, seed: int = 0) -> Pace:
    """Return the steady pace of workers that a slack holds together, or nothing.

    Parameters
    ----------
    exchange
        With a slack, and single workers and servers: equal ones, too, keep a pace of their own.
    num_iterations
        Exchanges per worker, on average; >= 4. The first quarter is the warm-up. Left out, 400, or as many as make
        20,000 exchanges of all workers together: 20 for 1,000 workers.
    seed
        Of the iterations' seconds; worker and iteration have the same number under every slack.

    Raises
    ------
    ModelError
        If there are too few iterations, no slack, or several workers of a kind.

    Notes
    -----
    Workers start spread evenly over a cycle (equal ones without variation would else stay in step, and queue for each
    other, for ever; behind a barrier that is forgotten after one round). Under SSP(s) a worker that alone is faster
    than the slowest gets ahead until s stops it; where the two differ little that takes longer than any simulation, so
    it starts there.

    >>> from planner.models.exchange import Discipline, Servers, Worker
    >>> workers = [Worker(forward_s=(one,), backward_s=0, ready_s=(0,), bytes_per_s=1e9, samples=8) for one in (1, 2)]
    >>> for slack in (0, 3, math.inf):
    ...     found = pace(Exchange(workers=tuple(workers), servers=(Servers(bytes_per_s=1e9),),
    ...                           pushed_bytes=np.array([[1e6]]), pulled_bytes=np.array([[1e6]]), key_layer=(0,),
    ...                           overlap=Overlap.NONE, discipline=Discipline.FIFO, slack=slack))
    ...     print(slack, round(found.samples_per_s, 2), round(found.waiting_share, 2), found.most_ahead <= slack)
    0 7.99 0.25 True
    3 7.99 0.25 True
    inf 11.98 0.0 True
    """
    slack, num_workers = _checked(exchange), len(exchange.workers)
    rounds = num_iterations
    if rounds is None:
        rounds = max(_LEAST_ITERATIONS, min(_DEFAULT_ITERATIONS, _MOST_EXCHANGES // num_workers))
    if rounds < _LEAST_ITERATIONS:
        raise ModelError(f"num_iterations is {rounds}. It must be >= {_LEAST_ITERATIONS}: some are warm-up.")
    num_exchanges, num_warm_up = rounds * num_workers, rounds // 4 * num_workers
    alone_s = cycles_s(exchange)
    is_slowest = np.isclose(alone_s, alone_s.max(), rtol=1e-9, atol=0.0)
    run = Run(
        exchange,
        (alone_s * np.arange(num_workers) / num_workers).tolist(),
        ahead=[] if math.isinf(slack) else np.where(is_slowest, 0, int(slack)).tolist(),
        seed=seed,
        is_told=False,
    )
    updates = run.updates
    run.go(lambda: len(updates) >= num_exchanges)
    worker, let_go_s, _, _, pushed_s, ends_s, before, ahead = np.array(run.cycles).T
    # Each worker's rate: after the warm-up; of the whole run if it did not end a cycle since; else 0.
    is_counted, index = before >= num_warm_up, worker.astype(np.intp)
    later, ever = (
        np.array([np.bincount(index, one, num_workers) for one in (chosen, chosen * (ends_s - let_go_s))])
        for chosen in (is_counted.astype(float), np.ones(len(index)))
    )
    number, seconds = np.where(later[0] > 0, later, ever)
    per_s = np.divide(number, seconds, out=np.zeros(num_workers), where=number > 0)
    measured = float(per_s @ _samples(exchange))
    missed = np.array([one for _, one in updates]) / num_workers
    mean_staleness, most_staleness = float(missed[num_warm_up:].mean()), float(missed.max())
    if exchange.num_steps > 1:
        most_staleness = (exchange.num_steps - 1) * (num_workers - 1) / num_workers
        mean_staleness = most_staleness / 2
    return Pace(
        samples_per_s=min(measured, samples_per_s_bound(exchange)),
        measured_samples_per_s=measured,
        mean_staleness=mean_staleness,
        most_staleness=most_staleness,
        most_ahead=int(ahead.max()),
        waiting_share=float((ends_s - pushed_s)[is_counted].sum() / (ends_s - let_go_s)[is_counted].sum()),
        cycles=tuple(run.cycles),
    )


def _checked(exchange: Exchange) -> float:
    """Return the slack; raise ModelError where an exchange has none, or is not of single workers that compute."""
    if exchange.slack is None:
        raise ModelError("Sums that wait for their own gradients have no slack: ask for what iterations come to.")
    if any(worker.count > 1 for worker in exchange.workers) or any(server.count > 1 for server in exchange.servers):
        raise ModelError("Workers that keep a pace of their own, and their servers, are given one by one.")
    if exchange.overlap is not Overlap.NONE:
        raise ModelError(f"overlap is {exchange.overlap}. Pace is of workers that push when all is computed: none.")
    if not all(worker.compute_s > 0 for worker in exchange.workers):
        raise ModelError("Every worker computes for more than 0 s: a pace of infinitely many iterations is none.")
    return exchange.slack


def _samples(exchange: Exchange) -> Floats:
    """Return the samples of each worker between two of its exchanges."""
    return np.array([worker.samples for worker in exchange.workers], dtype=np.float64) * exchange.num_steps


# -- a worker that is alone --------------------------------------------------------------------------------------------


def _directions(exchange: Exchange) -> tuple[Floats, Floats]:
    """Return the bytes between one worker and each server: of a push, and of a pull."""
    return exchange.pushed_bytes.sum(axis=0), exchange.pulled_bytes.sum(axis=0)


def _homes(exchange: Exchange) -> NDArray[np.intp]:
    """Return the server on each worker's own machine, or -1."""
    return np.array([-1 if worker.home is None else worker.home for worker in exchange.workers])


def _link_s(exchange: Exchange, size_bytes: Floats) -> Floats:
    """Return the seconds of one transfer on each server's idle link."""
    return np.asarray(size_bytes / exchange.server_rates)


def _alone_s(exchange: Exchange, size_bytes: Floats) -> Floats:
    """Return the seconds of each worker's transfer in an idle network: its own link's or the slowest server's."""
    home, link_s = _homes(exchange), _link_s(exchange, size_bytes)
    is_away = {server: np.arange(len(size_bytes)) != server for server in home.tolist()}
    away = {server: (size_bytes[one].sum(), link_s[one].max(initial=0.0)) for server, one in is_away.items()}
    remote_bytes, server_s = np.array([away[server] for server in home.tolist()]).T
    own_s = remote_bytes / np.array([worker.bytes_per_s for worker in exchange.workers])
    return np.asarray(np.where(remote_bytes > 0, exchange.latency_s, 0.0) + np.maximum(own_s, server_s))


def cycles_s(exchange: Exchange) -> Floats:
    """Return the mean seconds of each worker from exchange to exchange, if it were alone.

    Parameters
    ----------
    exchange
        With single workers and servers.
    """
    computes_s = exchange.num_steps * np.array([worker.compute_s for worker in exchange.workers])
    links_s = [_alone_s(exchange, size_bytes) for size_bytes in _directions(exchange)]
    return np.asarray(computes_s + exchange.pause_s + links_s[0] + links_s[1])


# -- what no training exceeds in the long run --------------------------------------------------------------------------


def samples_per_s_bound(exchange: Exchange) -> float:
    """Return samples a second that no run exceeds in the long run, whatever its seed and its links' discipline.

    Parameters
    ----------
    exchange
        With a slack, and single workers and servers.

    Notes
    -----
    The long-run rates ``x_w`` of exchanges of every run, whatever the order of its transfers, satisfy:

    1. ``x_w <= 1 / c_w``, where ``c_w`` is the mean computation plus push and pull in an idle network: a worker does
       one thing after the other, no transfer is faster than each link on its way, and the mean of a normal draw that is
       not negative is at least that of the normal distribution (the law of large numbers makes the mean of draws the
       rate's).
    2. ``sum of x_w over workers not at home there <= 1 / (seconds of one transfer)`` for each server and direction:
       a link carries no more bytes than it has bandwidth, and what waits in it is bounded by n transfers.
    3. With a slack that is finite, ``x_w = x`` for all: clocks differ by at most ``s + 1``, for ever.

    With no end of slack, the samples' sum is maximised subject to 1 and to one constraint of 2 at a time, and the least
    of these maxima is taken: greedily, most samples first, since each exchange costs the link the same.

    >>> from planner.models.exchange import Servers, Worker
    >>> four = (Worker(forward_s=(1,), backward_s=0, ready_s=(0,), bytes_per_s=math.inf, samples=8),) * 4
    >>> sizes = np.array([[5e8]])
    >>> samples_per_s_bound(Exchange(workers=four, servers=(Servers(bytes_per_s=1e9),), pushed_bytes=sizes,
    ...                              pulled_bytes=sizes, key_layer=(0,), overlap=Overlap.NONE, slack=math.inf))
    16.0
    """
    slack, samples, home = _checked(exchange), _samples(exchange), _homes(exchange)
    most = 1.0 / cycles_s(exchange)
    if slack < math.inf:  # the slowest worker's, or the busiest link's
        most = np.full(len(home), most.min())
    best = float(most @ samples)
    for size_bytes in _directions(exchange):
        size_s = _link_s(exchange, size_bytes)
        servers = np.flatnonzero(size_s).tolist()
        if servers and (home < 0).all():  # of equal remote workers only the busiest link can be the bottleneck
            servers = [int(np.argmax(size_s))]
        for server in servers:
            remote, per_s = np.flatnonzero(home != server), 1.0 / float(size_s[server])
            rates = most.copy()
            if slack < math.inf and len(remote):
                rates = np.minimum(rates, per_s / len(remote))
            elif len(remote):
                order = remote[np.argsort(-samples[remote], kind="stable")]
                before = np.concatenate(([0.0], np.cumsum(most[order])))[:-1]
                rates[order] = np.clip(per_s - before, 0.0, most[order])
            best = min(best, float(rates @ samples))
    return best
