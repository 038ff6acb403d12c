"""Iterations of training with parameter servers, message by message over fluid links.

Every worker runs forward through its layers and backward; each gradient (or slice of one, a key) goes to its server,
which adds up those of all workers and sends the sum back on request. Workers wait for nothing but their own sums, so
that they may fall apart; several iterations are run until they repeat. What may overlap is given:

- neither: a worker pushes everything when its backward pass is done, and asks for the sums behind its last push;
- ``pushes_early``: a key is pushed as soon as its gradient is ready; sums are asked for when the backward pass is done;
- ``pulls_early`` as well: a sum is asked for behind its push, and the next forward pass waits layer by layer.

With a barrier no sum is sent before every push of all workers has arrived. A server that answers several workers hands
the sums to their connections one after the other, ``hand_over_s`` apart: the first gets a start that its connection may
keep. Left out: the servers' additions and updates (thousandths of a second), and losses.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.server_fluid import Fluid, Routes

__all__ = ["Exchange", "ExchangeWorker", "begins_s", "routes_of"]

_SMALL_BYTES = 14_480.0  # leaves at once, in a connection's first window
_SAME_S = 1e-9
_MOST_ROUNDS = 5_000_000


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
    pushes_early, pulls_early, has_barrier
        See the module.
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
        if self.is_co_located and self.num_servers > len(self.workers):
            raise ModelError("A co-located server needs the host of a worker.")

    def flow(self, worker: int, server: int, *, is_pull: bool) -> int:
        """Return the flow from a worker to a server, or back."""
        return (is_pull * len(self.workers) + worker) * self.num_servers + server


def routes_of(exchange: Exchange, rate_bytes_per_s: float) -> Routes:
    """Return the flows between workers and servers over links of one rate, per direction."""
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
    """Return when each worker begins each iteration; shape workers by ``num_iterations``."""
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
            self._due()
            until_s = self._events[0][0] if self._events else math.inf
            if self._fluid.is_idle and not self._events:
                break
            for flow in self._fluid.advance(until_s):
                self._now_s = self._fluid.now_s
                self._messages[flow].popleft()()
        raise ModelError("The exchange does not come to an end.")

    def _due(self) -> None:
        """Do what is due by the links' time; compute goes on from its own time, not from the end of a step."""
        while self._events and self._events[0][0] <= self._fluid.now_s + _SAME_S:
            self._now_s, _, action = heapq.heappop(self._events)
            action()

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
        waits_for_all = not self._exchange.pulls_early and progress.keys_missing
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
        if not self._layer_missing[worker][layer] and (self._exchange.pulls_early or not progress.keys_missing):
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
