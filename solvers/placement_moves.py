"""Greedy placements of tensors on servers, bettered by moves and swaps; formulation in ``solvers/placement.py``."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solution import SAME
from planner.solvers.placement_rows import Arrivals, Placement

__all__ = ["improved", "starts", "thinned"]

_MOST_SWAPS = 4_000_000  # numbers looked at for the swaps of one round
_MOST_ROUNDS, _MOST_LOOKED_AT = 200, 300_000_000  # of moves and swaps from one start, and numbers looked at in all
_BETWEEN = 64  # tensors between two questions
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

    def with_tensor(self, tensor: int) -> tuple[Floats, Floats]:
        """Return every server's end of pushes and time of pulls, if it held this tensor, too."""
        rates = self.given.server_bytes_per_s
        push = (self.busy_s + self.sent[:, tensor, None] / rates).max(axis=0, initial=0.0)
        return push, self.pull_s + self.given.num_pullers * self.given.size_bytes[tensor] / rates

    def without_tensor(self, tensor: int) -> tuple[float, float]:
        """Return the same of its server, if it did not hold it."""
        server = self.server_of[tensor]
        rate = self.given.server_bytes_per_s[server]
        push = (self.busy_s[:, server] - self.sent[:, tensor] / rate).max(initial=0.0)
        pull = self.pull_s[server] - self.given.num_pullers * self.given.size_bytes[tensor] / rate
        return float(push), float(pull)

    def swapped(self, tensor: int) -> tuple[Floats, Floats]:
        """Return the latest push and the longest pull of both servers, if a tensor changed places with each other."""
        rates, pullers, sizes = self.given.server_bytes_per_s, self.given.num_pullers, self.given.size_bytes
        mine, theirs = self.server_of[tensor], self.server_of
        more = self.sent - self.sent[:, tensor, None]
        here_s = more / rates[mine]
        there_s = here_s if (rates == rates[mine]).all() else more / rates[theirs]
        there = (self.busy_s.take(theirs, axis=1) - there_s).max(axis=0, initial=0.0)
        here = (self.busy_s[:, mine, None] + here_s).max(axis=0, initial=0.0)
        pull = pullers * (sizes - sizes[tensor])
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
    """Return fewer of the times, where there are too many to look at all of them at every step."""
    rows, most = len(given.from_s), max(_LEAST_ROWS, _MOST_LOADS // max(1, len(given.size_bytes)))
    if rows <= most:
        return given
    kept = np.unique(np.linspace(0, rows - 1, most).round().astype(int))
    return replace(given, from_s=given.from_s[kept], senders=given.senders[kept])


def starts(given: Arrivals, search: Search) -> Iterator[Placement]:
    """Yield placements tensor by tensor, each where its server would be done soonest: largest, last or first ahead."""
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
        push, pull = loads.with_tensor(tensor)
        loads.put(tensor, int(np.argmin(push + pull)))
    return tuple(loads.server_of.tolist())


def improved(given: Arrivals, start: Placement, search: Search) -> Placement:
    """Return a placement that no single move or swap of a tensor on a busiest server betters."""
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
    for server in sorted({int(np.argmax(push_s)), int(np.argmax(loads.pull_s))}):
        mine = np.flatnonzero(loads.server_of == server)
        may_swap = loads.sent.size * len(mine) <= _MOST_SWAPS
        rest = _largest_of_others(push_s, server), _largest_of_others(loads.pull_s, server)
        for tensor in search.watch(mine.tolist(), every=_BETWEEN):
            for seconds, what in _changes(loads, tensor, rest, may_swap=may_swap):
                if seconds < best:
                    best, change = seconds, (tensor, *what)
    if change is None:
        return False
    tensor, other, server = change
    if other >= 0:
        loads.put(other, int(loads.server_of[tensor]))
    loads.put(tensor, server)
    return True


def _changes(
    loads: _Loads, tensor: int, rest: tuple[Floats, Floats], *, may_swap: bool
) -> Iterator[tuple[float, tuple[int, int]]]:
    """Yield the objective of moving a tensor to the best server, and of the best swap: (other tensor or -1, server).

    ``rest``: by server, the latest push and the longest pull of all servers but the tensor's own and that one.
    """
    server, (rest_push, rest_pull) = int(loads.server_of[tensor]), rest
    own_push, own_pull = loads.without_tensor(tensor)
    push, pull = loads.with_tensor(tensor)
    floor_push, floor_pull = loads.given.least_push_s, loads.given.least_pull_s
    total = np.maximum(np.maximum(push, rest_push), max(own_push, floor_push))
    total = total + np.maximum(np.maximum(pull, rest_pull), max(own_pull, floor_pull))
    total[server] = np.inf
    to = int(np.argmin(total))
    yield float(total[to]), (-1, to)
    if may_swap:
        push, pull = loads.swapped(tensor)
        theirs = loads.server_of
        total = np.maximum(np.maximum(push, rest_push[theirs]), floor_push)
        total = total + np.maximum(np.maximum(pull, rest_pull[theirs]), floor_pull)
        total[theirs == server] = np.inf
        other = int(np.argmin(total))
        yield float(total[other]), (other, int(theirs[other]))


def _largest_of_others(of_servers: Floats, server: int) -> Floats:
    """Return, for each server, the largest figure of all servers but itself and one more."""
    rest = of_servers.copy()
    rest[server] = -np.inf
    first = int(np.argmax(rest))
    found = np.full(len(rest), rest[first])
    rest[first] = -np.inf
    found[first] = rest.max()
    return found
