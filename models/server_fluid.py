"""Training with parameter servers, message by message over links as fluids: fair ones, or TCP connections with windows.

*Flows.* A flow is one connection in one direction: it leaves a host by that host's uplink, arrives at another by that
host's downlink, and carries its messages one after the other. A switch that is never the bottleneck joins the hosts.
Flows between processes of one host take no link and no time.

*Iterations* (:func:`begins_s`). Every worker runs forward through its layers and backward; each gradient (or slice of
one, a key) goes to its server, which adds up those of all workers and sends the sum back on request. Workers wait for
nothing but their own sums, so that they may fall apart; several iterations are run until they repeat. What may overlap
is given:

- neither: a worker pushes everything when its backward pass is done, and asks for the sums behind its last push;
- ``pushes_early``: a key is pushed as soon as its gradient is ready; sums are asked for when the backward pass is done;
- ``pulls_early`` as well: a sum is asked for behind its push;
- ``forwards_early`` as well: the next forward pass waits layer by layer, otherwise for all sums.

With a barrier no sum is sent before every push of all workers has arrived. A server that answers several workers hands
the sums to their connections one after the other, ``hand_over_s`` apart: the first gets a start that its connection may
keep. Left out: the servers' additions and updates (thousandths of a second), and losses.

*Fair links* (:class:`FairFluid`). Every link is shared max-min fairly by the flows that cross it (D. Bertsekas and R.
Gallager, *Data Networks*, 2nd edition, 1992, section 6.5.2): no flow could go faster without slowing down one that is
no faster. Left out: windows, queues and everything else that makes connections unequal, headers, latency.

*TCP connections* (:class:`WindowFluid`). What fair links leave out and runs show:

- **Acknowledgements wait in queues.** Pushes of many workers fill the queue before a server's downlink with a window
  each. Acknowledgements of pulls go the same way, so that a pull gets a window per delay of that queue, not its share.
- **Late connections stay behind.** A sender's stack holds about a millisecond of each connection's own rate in the
  queue before its uplink (the kernel's limit on output, `net/ipv4/tcp_output.c`, ``tcp_small_queue_check``). Who has
  more there gets more of the link, and a window grows only while its connection uses it: one that starts beside an
  established one keeps a small share until that has done.
- **Windows start small** (RFC 5681, slow start: a byte more for every byte acknowledged), and shrink while a connection
  pauses (``tcp_cwnd_restart`` of Linux halves them for every time-out gone by).

State of a flow: bytes accepted, past the uplink, delivered and acknowledged, and its window. Time goes on in steps,
fine just after a flow starts and coarse later. An uplink is shared in proportion to the bytes that the connections may
hold before it; the queue before a downlink is shared in proportion to its content. Left out: losses, receivers' windows
that grow, the size of packets.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import ModelError

Indices = NDArray[np.intp]
_ROUNDING_S = 1e-12
_ROUNDING_BYTES = 1e-3  # of fair links
_SMALL_BYTES = 14_480.0  # leaves at once, in a connection's first window
_SAME_S = 1e-9
_MOST_ROUNDS = 5_000_000

FIRST_WINDOW_BYTES = 14_480.0  # 10 segments of 1,448 bytes: RFC 6928
_STEP_ROUNDING_BYTES = 0.5
_PACING = 2.0  # in slow start, tcp_pacing_ss_ratio of Linux
_OUTPUT_S = 2.0**-10  # of its own rate that a connection may hold before the uplink: sk_pacing_shift of Linux
_WINDOWS_USED = 2.0  # a window grows only while half of it is in use: tcp_is_cwnd_limited of Linux
_FILL_ROUNDS = 4
_MOST_HALVINGS = 60
_NO_WEIGHT = 1e-30  # weights are of a byte or more, or 0
_QUEUE_MEMORY = 0.5  # of the uplink's delay, from step to step: a guard against swinging

# -- flows, and links that they share fairly ---------------------------------------------------------------------------


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
        """Whether a flow stays on its host and takes no link.

        Parameters
        ----------
        flow
            Index of a flow.
        """
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
        """Queue a message behind those that the flow carries already.

        Parameters
        ----------
        flow
            Index of a flow between two hosts.
        size_bytes
            Of the message; >= 0.
        """
        ...

    def advance(self, until_s: float) -> list[int]:
        """Go on to the next delivery, or to ``until_s`` if none comes before (or a step later, in a model of steps).

        Returns the flows of the messages delivered now, one entry a message, lowest flow first.

        Parameters
        ----------
        until_s
            A time, not before now, in seconds from the start; ``inf`` for none.
        """
        ...


def max_min_rates_bytes_per_s(routes: Routes, busy: Sequence[int]) -> Floats:
    """Return the max-min fair rate of every flow, 0 of those that are not in ``busy``.

    The link with the smallest fair share is filled first and leaves; its flows keep that share. Local flows are not
    to be in ``busy``.

    Parameters
    ----------
    routes
        Hosts and the flows between them.
    busy
        Indices of the flows that have something to send.
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
        """Queue a message; of 0 bytes or more.

        Parameters
        ----------
        flow
            Index of a flow between two hosts.
        size_bytes
            Of the message; >= 0.

        Raises
        ------
        ModelError
            For a flow that stays on its host.
        """
        if self._routes.is_local(flow):
            raise ModelError("A message within a host takes no link.")
        queue = self._queues[flow]
        queue.append(size_bytes)
        if len(queue) == 1:
            self._left_bytes[flow], self._is_busy[flow] = size_bytes, True

    def advance(self, until_s: float) -> list[int]:
        """Go on to the next delivery or to ``until_s``, whichever comes first.

        Parameters
        ----------
        until_s
            A time in seconds from the start; ``inf`` for none.
        """
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


# -- iterations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeWorker:
    """Seconds of one worker: forward by layer in order, backward as a whole, and until each key's gradient is ready."""

    forward_s: tuple[float, ...]
    backward_s: float
    ready_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What is exchanged, and when it may be.

    Attributes
    ----------
    workers
        In order of rank; equal numbers of layers and keys.
    key_bytes, key_server, key_layer
        Of every key: its size, the server that holds it, the layer that waits for it.
    num_servers, is_co_located
        Servers have hosts of their own, or server ``i`` shares that of worker ``i``.
    pushes_early, pulls_early, forwards_early, has_barrier
        What overlaps, see the head of this module.
    header_bytes
        Of every message and every request.
    latency_s
        From the last byte of a sum to the layer that waits for it.
    hand_over_s
        Between the sums that a server sends to two workers.
    stagger_s
        Between the starts of two workers' first iterations.
    """

    workers: tuple[ExchangeWorker, ...]
    key_bytes: tuple[float, ...]
    key_server: tuple[int, ...]
    key_layer: tuple[int, ...]
    num_servers: int
    is_co_located: bool = False
    pushes_early: bool = False
    pulls_early: bool = False
    forwards_early: bool = False
    has_barrier: bool = False
    header_bytes: float = 66.0
    latency_s: float = 0.0
    hand_over_s: float = 0.0
    stagger_s: float = 0.0

    def __post_init__(self) -> None:
        layers = {len(worker.forward_s) for worker in self.workers}
        keys = {len(self.key_bytes), len(self.key_server), len(self.key_layer)}
        if len(layers) != 1 or keys | {len(worker.ready_s) for worker in self.workers} != keys or len(keys) != 1:
            raise ModelError("All workers have the same layers and keys, and a key has a size, a server and a layer.")
        if not layers.pop() or not self.key_bytes:
            raise ModelError("An exchange has a layer and a key at least.")
        if any(not 0 <= server < self.num_servers for server in self.key_server):
            raise ModelError(f"Keys lie on the {self.num_servers} servers that there are.")
        if any(not 0 <= layer < len(self.workers[0].forward_s) for layer in self.key_layer):
            raise ModelError("Keys belong to the layers that there are.")
        if self.pulls_early and not self.pushes_early:
            raise ModelError("Sums cannot be asked for before gradients are pushed: set pushes_early, too.")
        if self.forwards_early and not self.pulls_early:
            raise ModelError("Layers cannot begin before sums are asked for: set pulls_early, too.")
        if self.is_co_located and self.num_servers > len(self.workers):
            raise ModelError("A co-located server needs the host of a worker.")

    def flow(self, worker: int, server: int, *, is_pull: bool) -> int:
        """Return the flow from a worker to a server, or back.

        Parameters
        ----------
        worker, server
            Their indices, from 0.
        is_pull
            Whether it goes from the server to the worker.
        """
        return (is_pull * len(self.workers) + worker) * self.num_servers + server


def routes_of(exchange: Exchange, rate_bytes_per_s: float) -> Routes:
    """Return the flows between workers and servers over links of one rate, per direction.

    Parameters
    ----------
    exchange
        What is exchanged between which workers and servers.
    rate_bytes_per_s
        Of every host's link, per direction; finite and > 0.
    """
    num_workers = len(exchange.workers)
    first = 0 if exchange.is_co_located else num_workers
    pairs = [(worker, first + server) for worker in range(num_workers) for server in range(exchange.num_servers)]
    rates = (rate_bytes_per_s,) * (num_workers if exchange.is_co_located else num_workers + exchange.num_servers)
    return Routes(
        source=tuple(worker for worker, _ in pairs) + tuple(host for _, host in pairs),
        sink=tuple(host for _, host in pairs) + tuple(worker for worker, _ in pairs),
        uplink_bytes_per_s=rates,
        downlink_bytes_per_s=rates,
    )


def begins_s(exchange: Exchange, routes: Routes, fluid: Fluid, *, num_iterations: int) -> Floats:
    """Return when each worker begins each iteration; shape workers by ``num_iterations``.

    Parameters
    ----------
    exchange
        What is exchanged, and when it may be.
    routes
        The flows of the exchange, see :func:`routes_of`.
    fluid
        Moves the messages; at time 0, with nothing on its way.
    num_iterations
        Whose beginnings are asked for; >= 1.

    Raises
    ------
    ModelError
        If the exchange does not come to an end.
    """
    run = _Iterations(exchange, routes, fluid, num_iterations)
    run.go()
    return np.array(run.begins_s)


@dataclass(slots=True)
class _Progress:
    """Where one worker is."""

    iteration: int = 0
    layer: int = 0  # whose forward is next
    is_running: bool = False  # a layer forward, or the whole backward pass
    keys_missing: int = 0


class _Iterations:
    """The state of a whole run."""

    def __init__(self, exchange: Exchange, routes: Routes, fluid: Fluid, num_iterations: int) -> None:
        self._exchange, self._routes, self._fluid, self._last = exchange, routes, fluid, num_iterations
        self._now_s, self._count = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._messages: list[deque[Callable[[], None]]] = [deque() for _ in range(routes.num_flows)]
        workers, layers = range(len(exchange.workers)), len(exchange.workers[0].forward_s)
        self._progress = [_Progress() for _ in workers]
        self._layer_missing = [[0] * layers for _ in workers]
        keys = len(exchange.key_bytes)
        self._arrived: defaultdict[int, list[int]] = defaultdict(lambda: [0] * keys)  # pushes by iteration and key
        # Workers that wait for a sum, by iteration and key.
        self._asked: defaultdict[int, list[list[int]]] = defaultdict(lambda: [[] for _ in range(keys)])
        self._pushes_left: dict[int, int] = {}  # by iteration, for the barrier
        self._batches = [_by_time(worker.ready_s) for worker in exchange.workers]
        self.begins_s: list[list[float]] = [[] for _ in workers]

    def go(self) -> None:
        """Run until every worker has begun its last iteration."""
        for worker in range(len(self._progress)):
            self._at(worker * self._exchange.stagger_s, partial(self._forward, worker))
        for _ in range(_MOST_ROUNDS):
            if all(len(times) == self._last for times in self.begins_s):
                return
            # Compute goes on from its own time, not from the end of a step of the links.
            while self._events and self._events[0][0] <= self._fluid.now_s + _SAME_S:
                self._now_s, _, action = heapq.heappop(self._events)
                action()
            until_s = self._events[0][0] if self._events else math.inf
            if self._fluid.is_idle and not self._events:
                break
            for flow in self._fluid.advance(until_s):
                self._now_s = self._fluid.now_s
                self._messages[flow].popleft()()
        raise ModelError("The exchange does not come to an end.")

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, action))

    def _send(self, flow: int, size_bytes: float, action: Callable[[], None]) -> None:
        """Send a message and act on its arrival."""
        if self._routes.is_local(flow):
            self._at(self._now_s, action)
            return
        self._messages[flow].append(action)
        self._fluid.send(flow, size_bytes + self._exchange.header_bytes)

    # workers

    def _forward(self, worker: int) -> None:
        """Run the next layer, or the backward pass behind the last, if the worker is free and its sums are there."""
        progress, times = self._progress[worker], self._exchange.workers[worker]
        if progress.is_running or len(self.begins_s[worker]) == self._last:
            return
        waits_for_all = not self._exchange.forwards_early and progress.keys_missing
        if progress.layer < len(times.forward_s) and (waits_for_all or self._layer_missing[worker][progress.layer] > 0):
            return
        if progress.layer == 0:
            self.begins_s[worker].append(self._now_s)
        progress.is_running = True
        if progress.layer == len(times.forward_s):
            self._backward(worker)
        else:
            self._at(self._now_s + times.forward_s[progress.layer], partial(self._layer_done, worker))

    def _layer_done(self, worker: int) -> None:
        progress = self._progress[worker]
        progress.is_running = False
        progress.layer += 1
        self._forward(worker)

    def _backward(self, worker: int) -> None:
        """Start the backward pass, whose sums the next forward pass needs."""
        exchange, iteration = self._exchange, self._progress[worker].iteration
        for layer in exchange.key_layer:
            self._layer_missing[worker][layer] += 1
        self._progress[worker].keys_missing = len(exchange.key_layer)
        if exchange.pushes_early:
            for ready_s, keys in self._batches[worker]:
                self._at(self._now_s + ready_s, partial(self._push, worker, iteration, keys))
        self._at(self._now_s + exchange.workers[worker].backward_s, partial(self._backward_done, worker))

    def _backward_done(self, worker: int) -> None:
        exchange, progress = self._exchange, self._progress[worker]
        if not exchange.pushes_early:
            self._push(worker, progress.iteration, [key for _, keys in self._batches[worker] for key in keys])
        if not exchange.pulls_early and not exchange.has_barrier:
            self._ask_for_all(worker, progress.iteration)
        progress.iteration += 1
        progress.layer, progress.is_running = 0, False
        self._forward(worker)

    def _push(self, worker: int, iteration: int, keys: Sequence[int]) -> None:
        """Send gradients, in this order."""
        exchange = self._exchange
        asks = exchange.pulls_early and not exchange.has_barrier
        for key in keys:
            flow = exchange.flow(worker, exchange.key_server[key], is_pull=False)
            size_bytes = exchange.key_bytes[key] + (exchange.header_bytes if asks else 0.0)
            self._send(flow, size_bytes, partial(self._pushed, worker, iteration, key, asks))

    def _ask_for_all(self, worker: int, iteration: int) -> None:
        """Ask every server for the sums of its keys, in the order of their gradients; one message for each server."""
        keys_of: dict[int, list[int]] = {}
        for _, keys in self._batches[worker]:
            for key in keys:
                keys_of.setdefault(self._exchange.key_server[key], []).append(key)
        for server, wanted in keys_of.items():
            size_bytes = self._exchange.header_bytes * (len(wanted) - 1)
            flow = self._exchange.flow(worker, server, is_pull=False)
            self._send(flow, size_bytes, partial(self._asked_for, worker, iteration, wanted))

    def _pulled(self, worker: int, key: int) -> None:
        progress, layer = self._progress[worker], self._exchange.key_layer[key]
        self._layer_missing[worker][layer] -= 1
        progress.keys_missing -= 1
        if not self._layer_missing[worker][layer] and (self._exchange.forwards_early or not progress.keys_missing):
            self._at(self._now_s + self._exchange.latency_s, partial(self._forward, worker))

    # servers

    def _pushed(self, worker: int, iteration: int, key: int, asks: bool) -> None:
        """Add a gradient to its sum; answer those that wait for it if it was the last."""
        exchange, num_workers = self._exchange, len(self._progress)
        arrived = self._arrived[iteration]
        arrived[key] += 1
        if asks:
            self._asked[iteration][key].append(worker)
        if arrived[key] == num_workers:
            waiting, self._asked[iteration][key] = self._asked[iteration][key], []
            self._answer(key, waiting)
        if exchange.has_barrier:
            left = self._pushes_left.get(iteration, num_workers * len(exchange.key_bytes)) - 1
            self._pushes_left[iteration] = left
            if not left:
                for one in range(num_workers):
                    self._ask_for_all(one, iteration)

    def _asked_for(self, worker: int, iteration: int, keys: Sequence[int]) -> None:
        """Send the sums that are complete; the others later."""
        arrived = self._arrived[iteration]
        for key in keys:
            if arrived[key] == len(self._progress):
                self._answer(key, [worker])
            else:
                self._asked[iteration][key].append(worker)

    def _answer(self, key: int, workers: Sequence[int]) -> None:
        """Hand a sum to the connections of workers, one after the other."""
        apart_s = self._exchange.hand_over_s if self._exchange.key_bytes[key] > _SMALL_BYTES else 0.0
        for place, worker in enumerate(workers):
            if place and apart_s:
                self._at(self._now_s + place * apart_s, partial(self._answer_one, key, worker))
            else:
                self._answer_one(key, worker)

    def _answer_one(self, key: int, worker: int) -> None:
        exchange = self._exchange
        flow = exchange.flow(worker, exchange.key_server[key], is_pull=True)
        self._send(flow, exchange.key_bytes[key], partial(self._pulled, worker, key))


def _by_time(ready_s: Sequence[float]) -> list[tuple[float, list[int]]]:
    """Return the keys in the order of their gradients, those of one moment together, by index."""
    batches: dict[float, list[int]] = {}
    for key in sorted(range(len(ready_s)), key=lambda key: (ready_s[key], key)):
        batches.setdefault(ready_s[key], []).append(key)
    return list(batches.items())


# -- TCP connections ---------------------------------------------------------------------------------------------------


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
        return bool((self._accepted - self._delivered <= _STEP_ROUNDING_BYTES).all())

    def send(self, flow: int, size_bytes: float) -> None:
        """Queue a message; of a byte or more.

        Parameters
        ----------
        flow
            Index of a flow between two hosts.
        size_bytes
            Of the message; a byte or more.

        Raises
        ------
        ModelError
            For a flow that stays on its host, or a message of less than a byte.
        """
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
        """Go on to the next step that delivers a message, or to the first at or after ``until_s``.

        Parameters
        ----------
        until_s
            A time in seconds from the start; ``inf`` for none.
        """
        while self._now_s < until_s:
            if self.is_idle:  # all is acknowledged, queues are empty
                self._acknowledged = self._delivered.copy()
                self._up_delay_s[:], self._down_delay_s[:] = 0, 0
                self._now_s = until_s
                return []
            self._step()
            reached = np.flatnonzero(self._delivered >= self._next_end - _STEP_ROUNDING_BYTES)
            if reached.size:
                return [flow for one in reached.tolist() for flow in self._pop(one)]
        return []

    def _pop(self, flow: int) -> list[int]:
        """Take the messages that are delivered."""
        ends, count = self._ends[flow], 0
        while ends and ends[0] <= self._delivered[flow] + _STEP_ROUNDING_BYTES:
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
        most[left <= _STEP_ROUNDING_BYTES] = 0
        moved = self._filled(most, np.where(most > 0, np.maximum(held, 1.0), 0.0), step_s)
        self._past_uplink += moved
        waiting = np.bincount(self._source, np.where(left - moved > _STEP_ROUNDING_BYTES, held, 0), len(self._up))
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
            weights = weights * (wanted > _STEP_ROUNDING_BYTES)
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
