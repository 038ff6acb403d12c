"""How many exchanges a second no asynchronous training exceeds in the long run: the bound to search with."""

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.models.asynchronous_exchange import Exchange, Synchronisation

__all__ = ["exchanges_per_s_bound"]


def exchanges_per_s_bound(exchange: Exchange) -> Floats:
    """Return exchanges a second of each worker, such that no run does more samples a second in total.

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
        for server in _worth_looking_at(exchange, size_s):
            rates = _knapsack(most, samples, home != server, 1.0 / float(size_s[server]))
            if rates @ samples < best @ samples:
                best = rates
    return best


def _worth_looking_at(exchange: Exchange, size_s: Floats) -> list[int]:
    """Return the servers whose link can be the bottleneck: of equal remote workers only the busiest."""
    if exchange.has_homes:
        return np.flatnonzero(size_s).tolist()
    return [int(np.argmax(size_s))] if size_s.any() else []


def _knapsack(most: Floats, samples: Floats, is_remote: NDArray[np.bool_], per_s: float) -> Floats:
    """Return rates that make the most samples of so many exchanges a second over one link."""
    rates, remote = most.copy(), np.flatnonzero(is_remote)
    order = remote[np.argsort(-samples[remote], kind="stable")]
    before = np.concatenate(([0.0], np.cumsum(most[order])))[:-1]
    rates[order] = np.clip(per_s - before, 0.0, most[order])
    return rates
