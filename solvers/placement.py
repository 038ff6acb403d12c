"""Tensors on parameter servers: which server holds which, so that pushes and pulls end soonest; with a bound.

**Sets.** Tensors j, kinds of equal workers k (``m_k`` of them), servers s.

**Given.** Bytes ``p_j``; the time ``r_kj`` from which on worker k can push tensor j, nondecreasing in j; links ``B_s``
and ``B_k``. A worker's own link serves first come first served, so that it sends tensor j from ``a_kj`` to ``b_kj``
at a constant rate, wherever tensors lie. For any time t let ``c_j(t)`` be the workers from which j arrives at or after
t, counted in part where it is under way.

**Variables.** ``x_js`` in {0, 1}: server s holds tensor j; ``push``; ``pull``.

**Minimise** ``push + pull`` **subject to**

=====================================================  =====================================================
``sum_s x_js = 1``                                     every tensor is on one server
``push >= t + sum_j c_j(t) p_j x_js / B_s``            for every s and every t among all ``a_kj``, ``b_kj``
``pull >= n sum_j p_j x_js / B_s``                     for every s; ``n`` workers pull at the same time
``push >= least_push_s``, ``pull >= least_pull_s``     ends of computing, the workers' own links
=====================================================  =====================================================

*Why this is the queue.* A link that never idles while bytes wait ends at the largest ``t + (bytes arriving from t on) /
B_s``, reached at the start or end of some transfer to s. The rows also hold for transfers that do not go to s: there
they say no more than the end of s, if anything arrives at s later, since that starts after t; else no more than t, when
something still arrives at another server, so that ``push`` is at least t all the same.

*A server on a machine that works* hears nothing of its own worker over its link, so that n is one less. The other
workers that have a server at home send all but what lies there, which depends on the placement; here they send
as soon as they have computed. That relaxes the model, so that the bound stays true; ``evaluate`` is asked for the
objective, and the gap says what the relaxation cost. Everywhere else the rows are the model itself, also for workers
that are ready at different times and for workers' links that bind.

**Bounds**, before any search: all servers as one (``t + sum_j c_j(t) p_j / sum_s B_s``), and tensors are whole: of
``m S + 1`` tensors, ``m + 1`` are on one server, and what the server holds whose pulls take longest is the sum of some.

**Search.** Greedy starts, improved by moves and swaps; then CP-SAT, if a gap is left. Its seconds are whole numbers of
``tick_s``, all rounded down, so that its bound holds here. Of servers with equal links, the first r + 1 are enough for
the largest r + 1 tensors. A model beyond ``_MOST_TERMS`` terms leaves rows out, which relaxes it, too. Where the rows
relax the model and there are few placements, all of them are evaluated instead.

Sources: the end of a busy link is Reich's formula, J.-Y. Le Boudec and P. Thiran, Network Calculus, LNCS 2050, 2001;
``m + 1`` of the largest tensors on one server is R. L. Graham's bound, SIAM J. Appl. Math. 17(2), 1969,
doi:10.1137/0117039. The rest is our own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, gcd
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.channel import fifo_end_s
from planner.cost import Floats
from planner.frozen import frozen
from planner.search import Search
from planner.solution import SAME, Solution, Status
from planner.solvers.cp_sat import new_model, run

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


Placement = tuple[int, ...]

_MOST_SUMS, _MOST_WHOLE = 2**28, 2.0**53  # bits looked at for the sums of tensors; whole numbers of a float
_MOST_NUMBERS, _LEAST_TIMES = 2**23, 16  # in a table of times and tensors: 64 MiB; and times that are kept at least


@frozen(eq=False)
class Arrivals:
    """What a placement costs, linear in it; see the formulation.

    Attributes
    ----------
    size_bytes
        ``p_j`` of every tensor.
    from_s
        The times t, one per row.
    senders
        ``c_j(t)``: a row for each time, a column for each tensor.
    server_bytes_per_s
        ``B_s``.
    num_pullers
        Workers that pull from a server over its link.
    least_push_s, least_pull_s
        What pushes and pulls take at least, wherever tensors lie.
    is_whole
        Whether all times are there; else some were left out for their number, which relaxes the model.
    """

    size_bytes: Floats
    from_s: Floats
    senders: Floats
    server_bytes_per_s: Floats
    num_pullers: float
    least_push_s: float = 0.0
    least_pull_s: float = 0.0
    is_whole: bool = True

    @property
    def num_servers(self) -> int:
        """Servers."""
        return len(self.server_bytes_per_s)

    @property
    def sent_bytes(self) -> Floats:
        """What arrives at or after each time (row) of each tensor (column), at whichever server."""
        return self.senders * self.size_bytes


@frozen
class Workers:
    """Those who push and pull.

    Attributes
    ----------
    counts, bytes_per_s
        Of each kind: how many, and each one's link, ``inf`` where it is no bottleneck.
    home_kind
        The kind of which one worker is on the machine of every server; left out, servers have machines of their own.
    """

    counts: Sequence[int]
    bytes_per_s: Sequence[float]
    home_kind: int | None = None


def arrivals(
    ready_s: ArrayLike,
    size_bytes: ArrayLike,
    server_bytes_per_s: ArrayLike,
    workers: Workers,
    *,
    pulled_bytes: ArrayLike | None = None,
    least_push_s: float = 0.0,
    is_guide: bool = False,
) -> Arrivals:
    """Return what placements cost.

    Parameters
    ----------
    ready_s
        When each kind of workers (row) has computed each tensor (column), nondecreasing along a row.
    size_bytes
        Of each tensor, as it is pushed.
    server_bytes_per_s
        The link of each server.
    workers
        Who pushes and pulls.
    pulled_bytes
        Of each tensor, where pushes are compressed and pulls are not; left out, as much as is pushed. The ratio of
        both is one for all tensors.
    least_push_s
        What pushes take at least, besides.
    is_guide
        Whether workers with a server at home send at the pace of their links, with an even part of all tensors at home:
        nearer to the model, and no bound on it. Else they send at once, which is one.
    """
    ready, sizes = np.atleast_2d(np.asarray(ready_s, dtype=float)), np.asarray(size_bytes, dtype=float)
    servers, whole = np.asarray(server_bytes_per_s, dtype=float), sizes if pulled_bytes is None else pulled_bytes
    total, pulled = float(sizes.sum()), float(np.sum(whole))
    at_home = len(servers) if workers.home_kind is not None else 0
    spans, least_push, least_pull = [], max(least_push_s, float(ready.max(initial=0.0))), 0.0
    for kind, (row, count, rate) in enumerate(zip(ready, workers.counts, workers.bytes_per_s, strict=True)):
        end = fifo_end_s(row, sizes / rate)
        alone = count - (at_home if kind == workers.home_kind else 0)
        if alone:
            spans.append((np.maximum(row, np.append(0.0, end[:-1])), end, alone))
            least_push, least_pull = max(least_push, float(end[-1])), max(least_pull, pulled / rate)
        if kind == workers.home_kind:  # the mean of all servers is at home
            share = 1 - 1 / len(servers)
            end = fifo_end_s(row, sizes * share / rate)
            start = np.maximum(row, np.append(0.0, end[:-1]))
            spans.append((*((start, end) if is_guide else (row, row)), at_home - 1))
            least_push = max(least_push, float(end[-1]))
            least_pull = max(least_pull, pulled * share / rate)
    at = np.unique(np.concatenate([np.concatenate(span[:2]) for span in spans]))
    most = max(_LEAST_TIMES, _MOST_NUMBERS // len(sizes))
    if not (is_whole := len(at) <= most):
        at = at[np.unique(np.linspace(0, len(at) - 1, most).round().astype(int))]
    return Arrivals(
        size_bytes=sizes,
        from_s=at,
        senders=np.sum([number * _still_to_come(start, end, at) for start, end, number in spans], axis=0),
        server_bytes_per_s=servers,
        num_pullers=(sum(workers.counts) - (workers.home_kind is not None)) * (pulled / total if total else 1.0),
        least_push_s=least_push,
        least_pull_s=least_pull,
        is_whole=is_whole,
    )


def _still_to_come(start_s: Floats, end_s: Floats, at_s: Floats) -> Floats:
    """Return the share of each tensor (column) that arrives at or after each time (row)."""
    span = end_s - start_s
    done = np.divide(at_s[:, None] - start_s, span, out=(at_s[:, None] > start_s).astype(float), where=span > 0)
    return np.asarray(1.0 - np.clip(done, 0.0, 1.0))


def objective(given: Arrivals, placement: Placement) -> float:
    """Return ``push + pull`` of a placement, in seconds.

    Parameters
    ----------
    given
        The rows of the model.
    placement
        The server of each tensor.
    """
    at = np.zeros((len(placement), given.num_servers))
    at[np.arange(len(placement)), list(placement)] = 1.0
    push = (given.from_s[:, None] + given.sent_bytes @ at / given.server_bytes_per_s).max(initial=given.least_push_s)
    pull = (given.num_pullers * (given.size_bytes @ at) / given.server_bytes_per_s).max(initial=given.least_pull_s)
    return float(push + pull)


def lower_bound(given: Arrivals) -> float:
    """Return seconds that no placement beats.

    Parameters
    ----------
    given
        The rows of the model.
    """
    return least_push_s(given) + least_pull_s(given)


def least_push_s(given: Arrivals) -> float:
    """Return the bound on pushes: all servers as one, and whole tensors.

    Parameters
    ----------
    given
        The rows of the model.
    """
    sent, rates = given.sent_bytes, given.server_bytes_per_s
    pooled = (given.from_s + sent.sum(axis=1) / rates.sum()).max(initial=0.0)
    whole = (given.from_s + _crowded(sent, len(rates)) / rates.max()).max(initial=0.0)
    return float(max(given.least_push_s, pooled, whole))


def least_pull_s(given: Arrivals) -> float:
    """Return the bound on pulls.

    Parameters
    ----------
    given
        The rows of the model.
    """
    rates, sizes = given.server_bytes_per_s, given.size_bytes
    fullest = max(float(sizes.sum() / rates.sum()), float(_crowded(sizes[None, :], len(rates))[0] / rates.max()))
    fullest = float(min(_least_sum(sizes, fullest * rate) / rate for rate in set(rates.tolist())))
    return max(given.least_pull_s, given.num_pullers * fullest)


def _least_sum(sizes: Floats, least: float) -> float:
    """Return the least sum of some sizes that is no less than a number; that number where finding it takes long."""
    if not (sizes == np.rint(sizes)).all() or not 0 < least < sizes.sum() < _MOST_WHOLE:
        return least
    whole = tuple(sizes.astype(np.int64).tolist())
    unit = gcd(*whole)
    if len(whole) * sum(whole) > _MOST_SUMS * unit:
        return least
    first = ceil(least * (1 - SAME) / unit)
    above = _sums(tuple(size // unit for size in whole)) >> first
    return max(least, float((first + (above & -above).bit_length() - 1) * unit))


@lru_cache(maxsize=4)  # a search asks about few sets of tensors
def _sums(sizes: tuple[int, ...]) -> int:
    """Return a number whose bits are set at all sums of some sizes."""
    found = 1
    for size in sizes:
        found |= found << size
    return found


def _crowded(rows: Floats, num_servers: int) -> Floats:
    """Return, for each row of sizes, what some server holds at least: m + 1 of the largest m S + 1."""
    down = -np.sort(-rows, axis=1)[:, ::num_servers]
    return np.asarray((down * np.arange(1, down.shape[1] + 1)).max(axis=1, initial=0.0))


# Greedy placements, improved by moves and swaps

_MOST_SWAPS = 4_000_000  # numbers looked at for the swaps of one round
_MOST_ROUNDS, _MOST_LOOKED_AT = 200, 300_000_000  # of moves and swaps from one start, and numbers looked at in all
_BETWEEN = 64  # tensors between two questions
_MOST_AT_ONCE = 2**19  # numbers in a table of tensors that are moved or swapped together
_MOST_LOADS, _LEAST_ROWS = 30_000, 12  # numbers looked at for a move, and times that are kept at least


@dataclass(slots=True)
class _Loads:
    """Where tensors lie, and what every server has to do; moved tensor by tensor."""

    given: Arrivals
    sent: Floats  # bytes from each time on (rows) of each tensor (columns)
    server_of: NDArray[np.intp]
    busy_s: Floats  # each time plus what arrives from then on, at each server (columns)
    pull_s: Floats

    @classmethod
    def of(cls, given: Arrivals, server_of: NDArray[np.intp]) -> "_Loads":
        """Return the loads of a placement; -1 lies nowhere yet."""
        sent, rates = given.sent_bytes, given.server_bytes_per_s
        at = np.zeros((len(server_of), len(rates)))
        placed = server_of >= 0
        at[placed, server_of[placed]] = 1.0
        return cls(
            given,
            sent,
            server_of.copy(),
            given.from_s[:, None] + sent @ at / rates,
            given.num_pullers * (given.size_bytes @ at) / rates,
        )

    @property
    def push_end_s(self) -> Floats:
        """When each server has received everything."""
        return np.asarray(self.busy_s.max(axis=0, initial=0.0))

    @property
    def objective(self) -> float:
        """Seconds of pushes and pulls."""
        return self.total_s(float(self.push_end_s.max()), float(self.pull_s.max()))

    def total_s(self, push_s: float, pull_s: float) -> float:
        """Return the objective of the latest push and the longest pull."""
        return max(push_s, self.given.least_push_s) + max(pull_s, self.given.least_pull_s)

    def with_tensors(self, tensors: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return every server's end of pushes and time of pulls (columns), if it held one of the tensors (rows) too."""
        rates, sizes = self.given.server_bytes_per_s, self.given.size_bytes[tensors, None]
        push = (self.busy_s[:, None] + self.sent[:, tensors, None] / rates).max(axis=0, initial=0.0)
        return push, self.pull_s + self.given.num_pullers * sizes / rates

    def without_tensors(self, tensors: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return the same of the server of each tensor, if it did not hold it."""
        servers = self.server_of[tensors]
        rates = self.given.server_bytes_per_s[servers]
        push = (self.busy_s[:, servers] - self.sent[:, tensors] / rates).max(axis=0, initial=0.0)
        return push, self.pull_s[servers] - self.given.num_pullers * self.given.size_bytes[tensors] / rates

    def swapped(
        self, tensors: NDArray[np.intp], others: NDArray[np.intp], rows: slice | NDArray[np.intp]
    ) -> tuple[Floats, Floats]:
        """Return the latest push, of some times, and the longest pull of both servers, if tensors changed places."""
        rates, sizes, sent, busy_s = self.given.server_bytes_per_s, self.given.size_bytes, self.sent, self.busy_s
        mine, theirs = self.server_of[tensors], self.server_of[others]
        more = sent[rows][:, others] - sent[rows][:, tensors]
        here = (busy_s[rows][:, mine] + more / rates[mine]).max(axis=0, initial=0.0)
        there = (busy_s[rows][:, theirs] - more / rates[theirs]).max(axis=0, initial=0.0)
        pull = self.given.num_pullers * (sizes[others] - sizes[tensors])
        return np.maximum(here, there), np.maximum(
            self.pull_s[mine] + pull / rates[mine], self.pull_s[theirs] - pull / rates[theirs]
        )

    def put(self, tensor: int, server: int) -> None:
        """Move a tensor to a server."""
        rates, pulled = self.given.server_bytes_per_s, self.given.num_pullers * self.given.size_bytes[tensor]
        if (old := self.server_of[tensor]) >= 0:
            self.busy_s[:, old] -= self.sent[:, tensor] / rates[old]
            self.pull_s[old] -= pulled / rates[old]
        self.busy_s[:, server] += self.sent[:, tensor] / rates[server]
        self.pull_s[server] += pulled / rates[server]
        self.server_of[tensor] = server


def thinned(given: Arrivals) -> Arrivals:
    """Return fewer of the times, where there are too many to look at all of them at every step.

    Parameters
    ----------
    given
        The rows of the model.
    """
    rows, most = len(given.from_s), max(_LEAST_ROWS, _MOST_LOADS // max(1, len(given.size_bytes)))
    if rows <= most:
        return given
    kept = np.unique(np.linspace(0, rows - 1, most).round().astype(int))
    return replace(given, from_s=given.from_s[kept], senders=given.senders[kept])


def starts(given: Arrivals, search: Search) -> Iterator[Placement]:
    """Yield placements tensor by tensor, each where its server would be done soonest: largest, last or first ahead.

    Parameters
    ----------
    given
        The rows of the model.
    search
        When it is over, the tensors that are left are distributed in turn.
    """
    num_tensors = len(given.size_bytes)
    yield _greedy(given, np.argsort(-given.size_bytes, kind="stable"), search)
    yield _greedy(given, np.arange(num_tensors)[::-1], search)
    yield _greedy(given, np.arange(num_tensors), search)


def _greedy(given: Arrivals, order: NDArray[np.intp], search: Search) -> Placement:
    """Return tensors placed in an order; those to which the time does not come are dealt out."""
    loads = _Loads.of(given, np.full(len(order), -1, dtype=np.intp))
    for number, tensor in enumerate(order.tolist()):
        if number % _BETWEEN == _BETWEEN - 1 and search.is_late:
            rest = order[number:]
            loads.server_of[rest] = np.arange(len(rest)) % given.num_servers
            break
        push, pull = loads.with_tensors(np.array([tensor]))
        loads.put(tensor, int(np.argmin(push + pull)))
    return tuple(loads.server_of.tolist())


def improved(given: Arrivals, start: Placement, search: Search) -> Placement:
    """Return a placement that no single move or swap of a tensor on a busiest server betters.

    Parameters
    ----------
    given
        The rows of the model.
    start
        The server of each tensor.
    search
        When it is over, the best so far is returned.
    """
    loads = _Loads.of(given, np.array(start, dtype=np.intp))
    each = max(1, loads.sent.size * len(start) // given.num_servers)
    for _ in range(min(_MOST_ROUNDS, max(3, _MOST_LOOKED_AT // each))):
        if search.is_over or not _step(loads, search):
            break
    return tuple(loads.server_of.tolist())


def _step(loads: _Loads, search: Search) -> bool:
    """Make the best move or swap, or the best so far; return whether there was one that helps."""
    push_s, now = loads.push_end_s, loads.objective
    best, change = now * (1 - SAME), None
    each = min(_BETWEEN, max(1, _MOST_AT_ONCE // max(1, loads.sent.size)))
    for server in sorted({int(np.argmax(push_s)), int(np.argmax(loads.pull_s))}):
        mine = np.flatnonzero(loads.server_of == server)
        may_swap = loads.sent.size * len(mine) <= _MOST_SWAPS
        rest = _largest_of_others(push_s, server), _largest_of_others(loads.pull_s, server)
        for begin in search.watch(range(0, len(mine), each), every=1):
            tensors = mine[begin : begin + each]
            seconds, row, *what = min(_changes(loads, tensors, rest, best, may_swap=may_swap))
            if seconds < best:
                best, change = seconds, (int(tensors[row]), *what)
    if change is None:
        return False
    tensor, other, server = change
    if other >= 0:
        loads.put(other, int(loads.server_of[tensor]))
    loads.put(tensor, server)
    return True


def _changes(
    loads: _Loads, tensors: NDArray[np.intp], rest: tuple[Floats, Floats], limit: float, *, may_swap: bool
) -> Iterator[tuple[float, int, int, int]]:
    """Yield the best move, and the best swap below a limit: objective, index of the tensor, other one or -1, server.

    ``tensors``: some of one server's; ``rest``: by server, the latest push and the longest pull of all servers but the
    tensors' own and that one.
    """
    server, (rest_push, rest_pull) = int(loads.server_of[tensors[0]]), rest
    floor_push, floor_pull = loads.given.least_push_s, loads.given.least_pull_s

    def total_s(push: Floats, pull: Floats, to: NDArray[np.intp] | slice) -> Floats:
        push = np.maximum(np.maximum(push, rest_push[to]), floor_push)
        return np.asarray(push + np.maximum(np.maximum(pull, rest_pull[to]), floor_pull))

    (push, pull), (own_push, own_pull) = loads.with_tensors(tensors), loads.without_tensors(tensors)
    moved = total_s(np.maximum(push, own_push[:, None]), np.maximum(pull, own_pull[:, None]), slice(None))
    moved[:, server] = np.inf
    row, to = divmod(int(np.argmin(moved)), len(rest_push))
    yield float(moved[row, to]), row, -1, to
    if may_swap:
        others, busy_s = np.flatnonzero(loads.server_of != server), loads.busy_s[:, server]
        # The server's busiest time alone leaves few swaps to look at.
        latest = np.flatnonzero(busy_s == busy_s.max(initial=0.0))[:1]
        least = total_s(*loads.swapped(tensors[:, None], others[None], latest), loads.server_of[others])
        rows, columns = np.nonzero(least < limit)
        if len(rows):
            others = others[columns]
            seconds = total_s(*loads.swapped(tensors[rows], others, slice(None)), loads.server_of[others])
            at = int(np.argmin(seconds))
            yield float(seconds[at]), int(rows[at]), int(others[at]), int(loads.server_of[others[at]])


def _largest_of_others(of_servers: Floats, server: int) -> Floats:
    """Return, for each server, the largest figure of all servers but itself and one more."""
    rest = of_servers.copy()
    rest[server] = -np.inf
    first = int(np.argmax(rest))
    found = np.full(len(rest), rest[first])
    rest[first] = -np.inf
    found[first] = rest.max()
    return found


TICKS = 2**36  # in the incumbent's objective: ten tensors, rounded down, lose less than 1e-9 of it
_MOST_TERMS = 150_000  # of a CP-SAT model
_FEW = 130  # placements, all of which are evaluated: five tensors on three equal servers have 41, six 122


def best_placement(
    given: Arrivals,
    search: Search,
    *,
    evaluate: Callable[[Placement], float] | None = None,
    enough: float = float("-inf"),
    useless: float = float("inf"),
    most_work: float = 2.0,
    guide: Arrivals | None = None,
) -> Solution[Placement]:
    """Return the best placement.

    Parameters
    ----------
    given
        The rows of the model.
    search
        Ends it.
    evaluate
        The exact model, where it says more than the rows; it is never less than them.
    enough
        An objective with which the caller is content.
    useless
        An objective that the caller has already: nothing is proven beyond it, and the search ends as soon as
        the bound reaches it.
    most_work
        Deterministic seconds of CP-SAT.
    guide
        What moves and swaps are judged by, where the rows relax the model.

    Returns
    -------
    Solution
        OPTIMAL only where the bound meets the objective; FEASIBLE with its bound otherwise.

    Notes
    -----
    A greedy start looks at ``rows x tensors x servers`` numbers, and a round of swaps at up to four million.
    """
    cost = evaluate or (lambda placement: objective(given, placement))
    bound, best, least = lower_bound(given), None, float("inf")
    thin = thinned(guide or given)
    for start in starts(thin, search):
        found = improved(thin, start, search)
        seconds = cost(found)
        if best is None or seconds < least:
            best, least = found, seconds
        if least <= max(bound * (1 + SAME), enough) or search.is_over:
            break
    assert best is not None  # there is always a greedy start
    if evaluate is not None and least > max(bound * (1 + SAME), enough) and not search.is_over:
        for placement in _all_if_few(given):
            seconds = cost(placement)
            best, least = (placement, seconds) if seconds < least else (best, least)
            bound = least  # once all have been tried
    is_open = objective(given, best) > bound * (1 + SAME)  # else the rows themselves prove no more
    if least > max(bound * (1 + SAME), enough) and is_open and bound < useless and most_work and not search.is_over:
        best, least, bound = _proven(given, best, least, bound, cost, search, most_work)
    is_proven = least <= bound * (1 + SAME)
    return Solution(
        status=Status.OPTIMAL if is_proven else Status.FEASIBLE,
        objective=least,
        bound=min(bound, least),
        value=best,
    )


def _all_if_few(given: Arrivals) -> list[Placement]:
    """Return all placements but for the names of equal servers, if they are few; else none."""
    servers = _equal_servers(given.server_bytes_per_s)
    found: list[Placement] = [()]
    for _ in given.size_bytes:
        found = [
            (*one, server)
            for one in found
            for server in range(given.num_servers)
            # The first unused one of equal servers stands for all of them.
            if servers[server] == 0 or server in one or _twin_before(given, server) in one
        ]
        if len(found) > _FEW:
            return []
    return found


def _twin_before(given: Arrivals, server: int) -> int:
    """Return the last earlier server with an equal link, or -1."""
    rates = given.server_bytes_per_s
    return max((one for one in range(server) if rates[one] == rates[server]), default=-1)


# -- proof -----------------------------------------------------------------------------------------------------------


def _proven(
    given: Arrivals,
    best: Placement,
    least: float,
    bound: float,
    cost: Callable[[Placement], float],
    search: Search,
    most_work: float,
) -> tuple[Placement, float, float]:
    """Return the best placement that CP-SAT finds, its objective, and the better of both bounds."""
    order, servers = np.argsort(-given.size_bytes, kind="stable"), _equal_servers(given.server_bytes_per_s)
    if len(order) * given.num_servers * 2 > _MOST_TERMS:
        return best, least, bound
    best = _first_come(best, order.tolist(), given.server_bytes_per_s)
    tick_s = objective(given, best) / TICKS
    model, at = _model(given, best, tick_s, order.tolist(), servers)
    outcome = run(model, search, most_work=most_work)
    if outcome.status is Status.INFEASIBLE:  # it contradicts the incumbent, and is not to be trusted
        return best, least, bound
    bound = max(bound, min(outcome.bound * tick_s, least))
    if outcome.has_values:
        found = tuple(
            next(server for server, literal in enumerate(row) if literal is not None and outcome.solver.value(literal))
            for row in at
        )
        seconds = cost(found)
        if seconds < least:
            best, least = found, seconds
    return best, least, bound


def _model(
    given: Arrivals, best: Placement, tick_s: float, order: list[int], servers: list[int]
) -> tuple["cp_model.CpModel", "list[list[cp_model.IntVar | None]]"]:
    """Return the model, and the literal of each tensor (row) on each server, None where symmetry rules it out."""
    model = new_model()
    num_tensors, num_servers = len(order), given.num_servers
    at: list[list[cp_model.IntVar | None]] = [[None] * num_servers for _ in range(num_tensors)]
    for rank, tensor in enumerate(order):
        for server in range(num_servers):
            if servers[server] <= rank:
                at[tensor][server] = literal = model.new_bool_var(f"x_{tensor}_{server}")
                model.add_hint(literal, best[tensor] == server)
        model.add_exactly_one(literal for literal in at[tensor] if literal is not None)
    push = model.new_int_var(int(least_push_s(given) / tick_s), TICKS + num_tensors, "push")
    pull = model.new_int_var(int(least_pull_s(given) / tick_s), TICKS + num_tensors, "pull")
    rates, sent = given.server_bytes_per_s, given.sent_bytes
    for row in _rows_that_may_bind(given):
        _at_least(model, push, given.from_s[row], sent[row], at, rates, tick_s)
    _at_least(model, pull, 0.0, given.num_pullers * given.size_bytes, at, rates, tick_s)
    model.add(push + pull <= TICKS + num_tensors)  # the incumbent, rounded down, is one such
    model.minimize(push + pull)
    return model, at


def _at_least(
    model: "cp_model.CpModel",
    end: "cp_model.IntVar",
    from_s: float,
    sent_bytes: Floats,
    at: "list[list[cp_model.IntVar | None]]",
    rates: Floats,
    tick_s: float,
) -> None:
    """Add ``end >= from + sum_j sent_j x_js / B_s`` for every server, all numbers rounded down to ticks."""
    for server, rate in enumerate(rates.tolist()):
        ticks = np.floor(sent_bytes / rate / tick_s).astype(np.int64).tolist()
        terms = [
            (number, literal)
            for number, row in zip(ticks, at, strict=True)
            if number and (literal := row[server]) is not None
        ]
        model.add(end >= int(from_s / tick_s) + sum(number * literal for number, literal in terms))


def _rows_that_may_bind(given: Arrivals) -> list[int]:
    """Return the times at which some server could be later than the bound; evenly fewer where there are too many."""
    latest = given.from_s + given.sent_bytes.sum(axis=1) / given.server_bytes_per_s.min()
    rows = np.flatnonzero(latest > least_push_s(given))
    most = max(1, _MOST_TERMS // (len(given.size_bytes) * given.num_servers) - 1)
    if len(rows) > most:
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int))]
    found: list[int] = rows.tolist()
    return found


def _equal_servers(rates: Floats) -> list[int]:
    """Return how many earlier servers have a link equal to each one's."""
    seen: dict[float, int] = {}
    found = []
    for rate in rates.tolist():
        found.append(seen.get(rate, 0))
        seen[rate] = found[-1] + 1
    return found


def _first_come(placement: Placement, order: Sequence[int], rates: Floats) -> Placement:
    """Return an equal placement in which servers of equal links are first used in the order of their indices."""
    unused = {
        rate: [server for server, one in enumerate(rates.tolist()) if one == rate] for rate in set(rates.tolist())
    }
    name_of: dict[int, int] = {}
    for tensor in order:
        server = placement[tensor]
        if server not in name_of:
            name_of[server] = unused[float(rates[server])].pop(0)
    return tuple(name_of[server] for server in placement)
