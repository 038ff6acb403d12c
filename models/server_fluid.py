"""Messages between workers and servers as fluids: every link is shared max-min fairly by the flows that cross it.

A flow is one connection in one direction: it leaves a host by that host's uplink, arrives at another by that host's
downlink, and carries its messages one after the other. A switch that is never the bottleneck joins the hosts. Flows
between processes of one host take no link and no time.

Max-min fair (D. Bertsekas and R. Gallager, *Data Networks*, 2nd edition, 1992, section 6.5.2): no flow could go faster
without slowing down one that is no faster. Left out: windows, queues and everything else that makes connections
unequal (:mod:`planner.models.server_fluid_windows` has those), headers, latency.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import ModelError

__all__ = ["FairFluid", "Fluid", "Routes", "max_min_rates_bytes_per_s"]

Indices = NDArray[np.intp]
_ROUNDING_S = 1e-12
_ROUNDING_BYTES = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Hosts on one switch and the flows between them.

    Attributes
    ----------
    source, sink
        The host that each flow leaves, and the one where it arrives.
    uplink_bytes_per_s, downlink_bytes_per_s
        Of every host, per direction; > 0.
    """

    source: tuple[int, ...]
    sink: tuple[int, ...]
    uplink_bytes_per_s: tuple[float, ...]
    downlink_bytes_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.source) != len(self.sink) or len(self.uplink_bytes_per_s) != len(self.downlink_bytes_per_s):
            raise ModelError("A flow has one source and one sink, and a host one uplink and one downlink.")
        if any(not 0 <= host < self.num_hosts for host in (*self.source, *self.sink)):
            raise ModelError(f"Flows join the {self.num_hosts} hosts that there are.")
        if not all(0 < rate < math.inf for rate in (*self.uplink_bytes_per_s, *self.downlink_bytes_per_s)):
            raise ModelError("Every link has a finite positive rate.")

    @property
    def num_hosts(self) -> int:
        """Hosts, each with one link to the switch."""
        return len(self.uplink_bytes_per_s)

    @property
    def num_flows(self) -> int:
        """Flows, busy or not."""
        return len(self.source)

    def is_local(self, flow: int) -> bool:
        """Whether a flow stays on its host and takes no link."""
        return self.source[flow] == self.sink[flow]


class Fluid(Protocol):
    """Moves messages over links as time goes on."""

    @property
    def now_s(self) -> float:
        """How far time has gone."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        ...

    def send(self, flow: int, size_bytes: float) -> None:
        """Queue a message behind those that the flow carries already."""
        ...

    def advance(self, until_s: float) -> list[int]:
        """Go on to the next delivery, or to ``until_s`` if none comes before (or a step later, in a model of steps).

        Returns the flows of the messages delivered now, one entry a message, lowest flow first.
        """
        ...


def max_min_rates_bytes_per_s(routes: Routes, busy: Sequence[int]) -> Floats:
    """Return the max-min fair rate of every flow, 0 of those that are not in ``busy``.

    The link with the smallest fair share is filled first and leaves; its flows keep that share. Local flows are not
    to be in ``busy``.
    """
    num_hosts = routes.num_hosts
    up, down = np.array(routes.source, np.intp), np.array(routes.sink, np.intp) + num_hosts
    left_bytes_per_s = np.array(routes.uplink_bytes_per_s + routes.downlink_bytes_per_s)
    rates = np.zeros(routes.num_flows)
    waiting = np.array(busy, np.intp)
    while waiting.size:
        crossing = np.bincount(up[waiting], minlength=2 * num_hosts) + np.bincount(
            down[waiting], minlength=2 * num_hosts
        )
        share = np.divide(left_bytes_per_s, crossing, out=np.full(2 * num_hosts, math.inf), where=crossing > 0)
        link = int(share.argmin())
        is_full = (up[waiting] == link) | (down[waiting] == link)
        filled = waiting[is_full]
        rates[filled] = share[link]
        np.subtract.at(left_bytes_per_s, up[filled], share[link])
        np.subtract.at(left_bytes_per_s, down[filled], share[link])
        left_bytes_per_s = np.maximum(left_bytes_per_s, 0)
        waiting = waiting[~is_full]
    return rates


class FairFluid:
    """Links shared max-min fairly, exactly: rates change only when a flow gets busy or idle."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._now_s = 0.0
        self._queues: list[deque[float]] = [deque() for _ in range(routes.num_flows)]
        self._left_bytes = np.zeros(routes.num_flows)  # of the message at the head
        self._is_busy = np.zeros(routes.num_flows, bool)
        self._rates_of: dict[bytes, Floats] = {}

    @property
    def now_s(self) -> float:
        """How far time has gone."""
        return self._now_s

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._is_busy.any()

    def send(self, flow: int, size_bytes: float) -> None:
        """Queue a message; of 0 bytes or more."""
        if self._routes.is_local(flow):
            raise ModelError("A message within a host takes no link.")
        queue = self._queues[flow]
        queue.append(size_bytes)
        if len(queue) == 1:
            self._left_bytes[flow], self._is_busy[flow] = size_bytes, True

    def advance(self, until_s: float) -> list[int]:
        """Go on to the next delivery or to ``until_s``, whichever comes first."""
        busy = np.flatnonzero(self._is_busy)
        if not busy.size:
            self._now_s = max(self._now_s, until_s)
            return []
        rates = self._rates(busy)
        end_s = self._now_s + self._left_bytes[busy] / rates
        next_s = min(float(end_s.min()), max(until_s, self._now_s))
        self._left_bytes[busy] -= rates * (next_s - self._now_s)
        self._now_s = next_s
        done = busy[(end_s <= next_s + _ROUNDING_S) | (self._left_bytes[busy] <= _ROUNDING_BYTES)]
        for flow in done.tolist():
            self._pop(flow)
        return [int(flow) for flow in done]

    def _rates(self, busy: Indices) -> Floats:
        """Return the rates of the busy flows; the same ones are often busy again."""
        key = self._is_busy.tobytes()
        if key not in self._rates_of:
            self._rates_of[key] = max_min_rates_bytes_per_s(self._routes, busy.tolist())[busy]
        return self._rates_of[key]

    def _pop(self, flow: int) -> None:
        """Go on with the flow's next message, if any."""
        queue = self._queues[flow]
        queue.popleft()
        self._left_bytes[flow], self._is_busy[flow] = (queue[0], True) if queue else (0.0, False)
