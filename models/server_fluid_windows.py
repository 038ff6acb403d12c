"""Messages between workers and servers over TCP as fluids: windows, the sender's queue, the switch's queue, late acks.

What max-min fair links (:mod:`planner.models.server_fluid`) leave out and runs show:

- **Acknowledgements wait in queues.** Pushes of many workers fill the queue before a server's downlink with a window
  each. Acknowledgements of pulls go the same way, so that a pull gets a window per delay of that queue, not its share.
- **Late connections stay behind.** A sender's stack holds about a millisecond of each connection's own rate in the
  queue before its uplink (the kernel's limit on output, `net/ipv4/tcp_output.c`, ``tcp_small_queue_check``). Who has
  more there gets more of the link, and a window grows only while its connection uses it: one that starts beside an
  established one keeps a small share until that has done.
- **Windows start small** (RFC 5681, slow start: a byte more for every byte acknowledged), and shrink while
  a connection pauses (``tcp_cwnd_restart`` of Linux halves them for every time-out gone by).

State of a flow: bytes accepted, past the uplink, delivered and acknowledged, and its window. Time goes on in steps,
fine just after a flow starts and coarse later. An uplink is shared in proportion to the bytes that the connections may
hold before it; the queue before a downlink is shared in proportion to its content. Left out: losses, receivers'
windows that grow, the size of packets.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.server_fluid import Routes

__all__ = ["FIRST_WINDOW_BYTES", "Transport", "WindowFluid"]

FIRST_WINDOW_BYTES = 14_480.0  # 10 segments of 1,448 bytes: RFC 6928
_ROUNDING_BYTES = 0.5
_PACING = 2.0  # in slow start, tcp_pacing_ss_ratio of Linux
_OUTPUT_S = 2.0**-10  # of its own rate that a connection may hold before the uplink: sk_pacing_shift of Linux
_WINDOWS_USED = 2.0  # a window grows only while half of it is in use: tcp_is_cwnd_limited of Linux
_FILL_ROUNDS = 4
_MOST_HALVINGS = 60
_NO_WEIGHT = 1e-30  # weights are of a byte or more, or 0
_QUEUE_MEMORY = 0.5  # of the uplink's delay, from step to step: a guard against swinging


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """What the connections are like.

    Attributes
    ----------
    window_bytes
        Most that a connection has unacknowledged.
    first_window_bytes
        At the start, and the least after pauses.
    pause_s
        Without anything unacknowledged; each halves the window.
    round_trip_s
        Of an idle network.
    smallest_output_bytes, largest_output_bytes
        That a connection may hold before its uplink.
    fine_step_s, coarse_step_s, fine_for_s
        Steps of time until ``fine_for_s`` after any flow starts, and later.
    """

    window_bytes: float
    first_window_bytes: float = FIRST_WINDOW_BYTES
    pause_s: float = 0.2
    round_trip_s: float = 3e-4
    smallest_output_bytes: float = 2_896.0
    largest_output_bytes: float = 262_144.0
    fine_step_s: float = 3e-4
    coarse_step_s: float = 1e-3
    fine_for_s: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.first_window_bytes <= self.window_bytes < math.inf:
            raise ModelError("A first window is positive, and at most the largest.")
        if not 0 < self.fine_step_s <= self.coarse_step_s:
            raise ModelError("A fine step is positive, and at most the coarse one.")


class WindowFluid:
    """Links shared by connections with windows; deliveries at the end of a step."""

    def __init__(self, routes: Routes, transport: Transport) -> None:
        self._routes, self._transport = routes, transport
        self._source, self._sink = np.array(routes.source, np.intp), np.array(routes.sink, np.intp)
        self._up, self._down = np.array(routes.uplink_bytes_per_s), np.array(routes.downlink_bytes_per_s)
        shape = routes.num_flows
        self._accepted, self._past_uplink = np.zeros(shape), np.zeros(shape)
        self._delivered, self._acknowledged = np.zeros(shape), np.zeros(shape)
        self._window = np.full(shape, transport.first_window_bytes)
        self._used_s = np.zeros(shape)  # when the flow last had something unacknowledged
        self._ends: list[deque[float]] = [deque() for _ in range(shape)]  # of its messages, in bytes accepted
        self._next_end = np.full(shape, math.inf)
        self._up_delay_s, self._down_delay_s = np.zeros(routes.num_hosts), np.zeros(routes.num_hosts)
        self._now_s, self._fine_until_s = 0.0, 0.0

    @property
    def now_s(self) -> float:
        """How far time has gone."""
        return self._now_s

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way; acknowledgements may still be."""
        return bool((self._accepted - self._delivered <= _ROUNDING_BYTES).all())

    def send(self, flow: int, size_bytes: float) -> None:
        """Queue a message; of a byte or more."""
        if self._routes.is_local(flow):
            raise ModelError("A message within a host takes no link.")
        if size_bytes < 1:
            raise ModelError(f"A message has a byte or more, not {size_bytes}.")
        if self._accepted[flow] - self._acknowledged[flow] <= 1:
            pauses = (self._now_s - self._used_s[flow]) // self._transport.pause_s
            shrunk = self._window[flow] * 0.5 ** min(pauses, _MOST_HALVINGS)
            self._window[flow] = max(shrunk, self._transport.first_window_bytes)
            self._fine_until_s = self._now_s + self._transport.fine_for_s
        self._accepted[flow] += size_bytes
        self._ends[flow].append(float(self._accepted[flow]))
        self._next_end[flow] = self._ends[flow][0]

    def advance(self, until_s: float) -> list[int]:
        """Go on to the next step that delivers a message, or to the first at or after ``until_s``."""
        while self._now_s < until_s:
            if self.is_idle:
                self._rest(until_s)
                return []
            self._step()
            reached = np.flatnonzero(self._delivered >= self._next_end - _ROUNDING_BYTES)
            if reached.size:
                return [flow for one in reached.tolist() for flow in self._pop(one)]
        return []

    def _rest(self, until_s: float) -> None:
        """Let an idle network be until then: all is acknowledged, queues are empty."""
        self._acknowledged = self._delivered.copy()
        self._up_delay_s[:], self._down_delay_s[:] = 0, 0
        self._now_s = until_s

    def _pop(self, flow: int) -> list[int]:
        """Take the messages that are delivered."""
        ends, count = self._ends[flow], 0
        while ends and ends[0] <= self._delivered[flow] + _ROUNDING_BYTES:
            ends.popleft()
            count += 1
        self._next_end[flow] = ends[0] if ends else math.inf
        return [flow] * count

    def _step(self) -> None:
        """Move bytes for one step."""
        is_fine = self._now_s < self._fine_until_s
        step_s = self._transport.fine_step_s if is_fine else self._transport.coarse_step_s
        back_s = self._down_delay_s[self._source] + self._up_delay_s[self._sink]
        round_trip_s = (
            self._transport.round_trip_s + self._down_delay_s[self._sink] + self._up_delay_s[self._source] + back_s
        )
        held = self._leave(step_s, round_trip_s)
        self._arrive(step_s)
        self._acknowledge(step_s, back_s, held)
        self._now_s += step_s
        self._used_s[self._accepted - self._acknowledged > 1] = self._now_s

    def _leave(self, step_s: float, round_trip_s: Floats) -> Floats:
        """Share the uplinks; return the bytes that each flow holds before its own."""
        transport = self._transport
        left = self._accepted - self._past_uplink
        room = np.maximum(np.minimum(self._window - (self._past_uplink - self._acknowledged), left), 0)
        paced = _PACING * self._window / round_trip_s * _OUTPUT_S
        held = np.minimum(room, np.clip(paced, transport.smallest_output_bytes, transport.largest_output_bytes))
        # A window turns over several times in a step where the round trip is shorter than the step.
        most = np.minimum(left, np.maximum(room, self._window * (step_s / round_trip_s)))
        most[left <= _ROUNDING_BYTES] = 0
        moved = self._filled(most, np.where(most > 0, np.maximum(held, 1.0), 0.0), step_s)
        self._past_uplink += moved
        waiting = np.bincount(self._source, np.where(left - moved > _ROUNDING_BYTES, held, 0), len(self._up))
        self._up_delay_s = _QUEUE_MEMORY * self._up_delay_s + (1 - _QUEUE_MEMORY) * waiting / self._up
        return held

    def _filled(self, most: Floats, weights: Floats, step_s: float) -> Floats:
        """Return what passes the uplinks: in proportion to weights, at most ``most``, what one leaves to the others."""
        source, num_hosts = self._source, len(self._up)
        wanted, left = most, self._up * step_s
        for _ in range(_FILL_ROUNDS):
            total = np.bincount(source, weights, num_hosts)
            # Where nobody wants anything the weights are 0, and so are the shares.
            more = np.minimum(weights * (left / np.maximum(total, _NO_WEIGHT))[source], wanted)
            wanted = wanted - more
            weights = weights * (wanted > _ROUNDING_BYTES)
            if not weights.any():
                break
            left = np.maximum(left - np.bincount(source, more, num_hosts), 0)
            if left.max() < 1:
                break
        return most - wanted

    def _arrive(self, step_s: float) -> None:
        """Empty the queues before the downlinks, in proportion to what the flows have there."""
        queued = self._past_uplink - self._delivered
        total = np.bincount(self._sink, queued, len(self._down))
        share = np.minimum(1.0, self._down * step_s / np.maximum(total, _NO_WEIGHT))
        self._delivered += queued * share[self._sink]
        self._down_delay_s = np.maximum(total / self._down - step_s, 0)

    def _acknowledge(self, step_s: float, back_s: Floats, held: Floats) -> None:
        """Return acknowledgements, and let windows grow where they are used."""
        transport = self._transport
        late = self._delivered - self._acknowledged
        back = late * np.minimum(1.0, step_s / (back_s + transport.round_trip_s / 3))
        is_used = _WINDOWS_USED * (self._past_uplink - self._acknowledged + held) > self._window
        self._acknowledged += back
        self._window = np.minimum(self._window + np.where(is_used, back, 0), transport.window_bytes)
