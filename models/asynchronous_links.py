"""Servers' links in an asynchronous training, from event to event: how long what is sent now waits and takes."""

from typing import Protocol

import numpy as np

from planner.cost import Floats
from planner.models.asynchronous_exchange import Exchange

__all__ = ["ServerLinks", "server_links"]


class ServerLinks(Protocol):
    """The servers' links in one direction; a transfer is a stream that the worker's own link paces.

    Work is counted in seconds: bytes over the server's bandwidth. A link works whenever work waits, in the order of
    arrival, so that what arrives now has gone through after as many seconds as work waits. What arrives at the same
    moment is served mixed, as are streams that overlap: an unlimited worker's link is the limit of a fast one.
    """

    def open(self, now: float, worker: int) -> None:
        """Let a worker's stream begin; all of it arrives at once if the worker's own link is unlimited."""

    def close(self, now: float, worker: int) -> float:
        """Let it end; return the seconds until its last byte is through the slowest link."""
        ...


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


def server_links(exchange: Exchange, size_bytes: Floats, size_s: Floats) -> ServerLinks:
    """Return the servers' links in one direction, for transfers of so many bytes, and seconds, at each server."""
    own_s = exchange.own_s(size_bytes)
    if exchange.has_homes:
        return _AllLinks(size_s, own_s, exchange.home)
    return _OneLink(float(size_s.max()), own_s)
