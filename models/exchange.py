"""Training with parameter servers, message by message: links shared fairly, sums, and the next pass behind them.

*Iterations.* Every worker runs forward through its layers and backward; the gradient of each key (a tensor, or what one
server holds of it) goes to its server, which adds up those of all workers and sends the sum back. A sum is complete
when the last gradient has arrived. What runs beside what is the :class:`Overlap`. Without a barrier a worker waits for
nothing but its own sums, so that workers may fall apart: several iterations are run, until they repeat.

*Links* are full duplex and shared max-min fairly by the connections that cross them: no connection could go faster
without slowing down one that is no faster (D. Bertsekas and R. Gallager, *Data Networks*, 2nd edition, 1992, section
6.5.2). A connection joins a worker and a server, in one direction, and carries its messages one after the other. What
stays on a host takes no link and no time.

*Alike.* Workers of one kind do the same at the same time, and so do servers of one kind: one class of connections joins
each kind of workers with each kind of servers, and a link is crossed by so many of each class. Kinds are exact where
sums keep workers together, which is so behind a barrier and where sums are sent as soon as they are complete; where
workers may fall apart, give each a kind of its own, and begin them apart (:attr:`Exchange.stagger_s`).

Left out: windows, queues and everything else that makes connections unequal, the servers' additions and updates
(thousandths of a second), losses.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError, NoAnswerError

_ROUNDING = 1e-12  # of a moment, and of what a message has left
_SAME = 1e-9  # of an iteration: periods that repeat
_SETTLING = 3  # iterations before those that count, where they do not repeat
_COUNTED = 4  # even: workers may take turns
_COUNTED_UNSTEADY = 12  # where those differ: one of them says little
_STEADY = 0.02  # of an iteration, by which those that count may differ
_MOST_MESSAGES = 5_000_000
_MOST_RATES = 1_000_000  # that are kept


class Overlap(StrEnum):
    """What goes over the links while workers compute."""

    NONE = "none"  # all is pushed when the backward pass is done, and sums are asked for behind it
    PUSH = "push"  # a key is pushed when its gradient is ready; sums are asked for when the backward pass is done
    PUSH_PULL = "push_pull"  # a sum is sent as soon as it is complete; the next forward pass waits for all of them
    PUSH_PULL_FORWARD = "push_pull_forward"  # the next forward pass waits layer by layer for the layer's own sums

    @property
    def pushes_early(self) -> bool:
        """Whether keys are pushed during the backward pass."""
        return self is not Overlap.NONE

    @property
    def pulls_early(self) -> bool:
        """Whether sums are sent without being asked for behind the backward pass."""
        return self in (Overlap.PUSH_PULL, Overlap.PUSH_PULL_FORWARD)


# -- links, and the classes of connections that cross them ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Links and the classes of equal connections over them.

    Attributes
    ----------
    bytes_per_s
        Of every link, in its one direction; finite and > 0.
    crossing
        Of every class: the links on the way of its connections, each with how many of the class cross it. A class
        without any takes no time.
    """

    bytes_per_s: tuple[float, ...]
    crossing: tuple[tuple[tuple[int, int], ...], ...]

    def __post_init__(self) -> None:
        if not all(0 < rate < math.inf for rate in self.bytes_per_s):
            raise ModelError("Every link has a finite positive rate.")
        ways = [one for way in self.crossing for one in way]
        if any(not 0 <= link < len(self.bytes_per_s) or count < 1 for link, count in ways):
            raise ModelError("Connections cross the links that there are, one or more of a class.")

    def rates_bytes_per_s(self, busy: Sequence[int]) -> list[float]:
        """Return the max-min fair rate of one connection of each busy class.

        The link with the smallest fair share is filled first and leaves; its connections keep that share.

        Parameters
        ----------
        busy
            Classes that have something to send; each crosses a link.
        """
        on: dict[int, list[int]] = {}  # classes that cross each link, those that are filled among them
        number: dict[int, int] = {}  # connections that are not
        for one in busy:
            for link, count in self.crossing[one]:
                on.setdefault(link, []).append(one)
                number[link] = number.get(link, 0) + count
        left = {link: self.bytes_per_s[link] for link in on}
        rates: dict[int, float] = {}
        while on:
            share, link = min([(left[link] / number[link], link) for link in on])
            for one in tuple(on[link]):
                if one in rates:
                    continue
                rates[one] = share
                for other, count in self.crossing[one]:
                    left[other] = max(left[other] - share * count, 0.0)
                    number[other] -= count
                    if not number[other]:
                        del on[other]
        return [rates[one] for one in busy]

    def busiest_s(self, sent_bytes: Sequence[float]) -> float:
        """Return the seconds for which the busiest link carries so much.

        Parameters
        ----------
        sent_bytes
            Of one connection of every class.
        """
        loads = [0.0] * len(self.bytes_per_s)
        for way, size in zip(self.crossing, sent_bytes, strict=True):
            for link, count in way:
                loads[link] += count * size / self.bytes_per_s[link]
        return max(loads, default=0.0)


# -- what is exchanged -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Workers that are alike.

    Attributes
    ----------
    count
        How many; >= 1.
    forward_s
        Of every layer, in order.
    backward_s
        Of the whole backward pass.
    ready_s
        From its start until each key's gradient may be pushed; later than its end where it is added up on a machine.
    bytes_per_s
        Of a worker's link, per direction; > 0 and finite.
    home
        The kind of servers on their machines, one each, or None. Such a kind has as many workers as servers.
    """

    count: int = 1
    forward_s: tuple[float, ...]
    backward_s: float
    ready_s: tuple[float, ...]
    bytes_per_s: float
    home: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Servers that are alike: how many, the bytes/s of each one's link per direction; unused where workers host it."""

    count: int = 1
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """What is exchanged, and when it may be.

    Attributes
    ----------
    workers, servers
        Kinds of them; all workers have the same layers and keys.
    pushed_bytes, pulled_bytes
        Of each key (row) between one worker and one server of each kind (column); >= 0.
    key_layer
        The layer that waits for each key.
    overlap, has_barrier
        See the head of the module. Behind a barrier no sum is sent before all gradients have arrived.
    has_priority
        Of the messages that wait for a connection, the one whose layer is first in the forward pass goes next (P3,
        ByteScheduler), instead of the one that has waited longest. A message on its way is not interrupted.
    latency_s
        One way.
    pause_s
        Before a forward pass, when the sums that it waits for are there: updates, start-up.
    message_bytes
        Of every message and request, beside its payload.
    stagger_s
        Between the starts of two kinds' first iterations.
    """

    workers: tuple[Worker, ...]
    servers: tuple[Servers, ...]
    pushed_bytes: Floats
    pulled_bytes: Floats
    key_layer: tuple[int, ...]
    overlap: Overlap
    has_barrier: bool = False
    has_priority: bool = False
    latency_s: float = 0.0
    pause_s: float = 0.0
    message_bytes: float = 0.0
    stagger_s: float = 0.0

    def __post_init__(self) -> None:
        shape = (len(self.key_layer), len(self.servers))
        if not self.workers or not all(shape) or self.pushed_bytes.shape != shape or self.pulled_bytes.shape != shape:
            raise ModelError(
                "An exchange has a worker, a key and a server at least, and a size for each key and server."
            )
        layers = {len(worker.forward_s) for worker in self.workers}
        if len(layers) != 1 or any(len(worker.ready_s) != shape[0] for worker in self.workers):
            raise ModelError("All workers have the same layers and keys.")
        if any(not 0 <= layer < max(layers) for layer in self.key_layer):
            raise ModelError("Keys belong to the layers that there are.")
        if self.has_barrier and self.overlap.pulls_early:
            raise ModelError("Behind a barrier no sum is sent early: have overlap none or push, or no barrier.")
        for worker in self.workers:
            if worker.home is not None and worker.count != self.servers[worker.home].count:
                raise ModelError("Workers with servers on their machines are as many as those.")
        homes = [worker.home for worker in self.workers if worker.home is not None]
        if len(set(homes)) < len(homes):
            raise ModelError("A server stands on one machine.")

    @property
    def fabric(self) -> Fabric:
        """The links of all hosts, on one switch that is never the bottleneck: two for each kind, out and in."""
        hosts = len(self.workers)
        rates = [worker.bytes_per_s for worker in self.workers]
        host_of: dict[int, int] = {worker.home: i for i, worker in enumerate(self.workers) if worker.home is not None}
        for server, kind in enumerate(self.servers):
            if server not in host_of:
                host_of[server] = hosts
                rates.append(kind.bytes_per_s)
                hosts += 1
        crossing: list[tuple[tuple[int, int], ...]] = []
        for is_pull in (False, True):
            for index, worker in enumerate(self.workers):
                for server, kind in enumerate(self.servers):
                    is_home = worker.home == server  # each sends to all servers but its own
                    ends = (index, kind.count - is_home), (host_of[server], worker.count - is_home)
                    (first, sent), (last, received) = reversed(ends) if is_pull else ends
                    crossing.append(((2 * first, sent), (2 * last + 1, received)) if sent and received else ())
        return Fabric(bytes_per_s=tuple(rate for rate in rates for _ in range(2)), crossing=tuple(crossing))

    @property
    def busiest_s(self) -> float:
        """The seconds for which the busiest link carries what one iteration sends."""
        ways = (self.pushed_bytes.sum(axis=0).tolist(), self.pulled_bytes.sum(axis=0).tolist())
        return self.fabric.busiest_s([size for one in ways for _ in self.workers for size in one])


class Transfer(NamedTuple):
    """A message that went over a link: its kinds of workers and servers, and its iteration; a request has no key."""

    is_pull: bool
    worker: int
    server: int
    key: int | None
    iteration: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """What iterations come to.

    Attributes
    ----------
    iteration_s
        The median of those that count.
    pushed_s
        From the first end of a backward pass of an iteration until its last gradient has arrived; 0 if before.
    spread
        Largest less smallest of those that count, as a share.
    lag
        Between the first and the last worker's beginning of the same iteration, as a share of one.
    transfers
        All messages, in the order of their arrival.
    forward_begins_s, backward_begins_s
        Of each kind of workers, by iteration.
    """

    iteration_s: float
    pushed_s: float
    spread: float
    lag: float
    transfers: tuple[Transfer, ...]
    forward_begins_s: tuple[tuple[float, ...], ...]
    backward_begins_s: tuple[tuple[float, ...], ...]


def steady(exchange: Exchange, is_over: Callable[[], bool] = lambda: False) -> Steady:
    """Return what iterations come to, run until they repeat, or until so many are enough for a median.

    Parameters
    ----------
    exchange
        What is exchanged, and when it may be.
    is_over
        Asked now and then.

    Raises
    ------
    ModelError
        If it takes more messages than can be followed.
    NoAnswerError
        If it was over before iterations repeated.
    """
    run = _Run(exchange, is_over)
    for counted in (_COUNTED, _COUNTED_UNSTEADY):
        run.go(_SETTLING + counted + 1)
        begins_s = run.begins_s()
        periods_s = np.diff(begins_s[:, -counted - 1 :] if not run.repeats else begins_s[:, -2:], axis=1)
        iteration_s = float(np.median(periods_s))
        spread = float(np.ptp(periods_s)) / iteration_s if iteration_s else 0.0
        if run.repeats or spread <= _STEADY:
            break
    last = begins_s.shape[1] - 2
    ends_s = [run.backward_s[i][last] + worker.backward_s for i, worker in enumerate(exchange.workers)]
    arrived_s = max((one.end_s for one in run.transfers if not one.is_pull and one.iteration == last), default=0.0)
    return Steady(
        iteration_s=iteration_s,
        pushed_s=max(arrived_s - min(ends_s), 0.0),
        spread=spread,
        lag=float(np.ptp(begins_s[:, -1])) / iteration_s if iteration_s else 0.0,
        transfers=tuple(run.transfers),
        forward_begins_s=tuple(tuple(one) for one in run.forward_s),
        backward_begins_s=tuple(tuple(one) for one in run.backward_s),
    )


_Waiting = tuple[int, int, int, float, int | None, int]  # iteration, layer and number, bytes, key, iteration


@dataclass(slots=True)
class _Progress:
    """Where workers of one kind are."""

    ended_s: float  # their last backward pass
    missing: int = 0  # sums that have not arrived
    arrived_s: list[float] = field(default_factory=list)  # the last sum of each layer


class _Run:
    """The state of a whole run; events are plain tuples, whose third entry names the method that acts on them."""

    def __init__(self, exchange: Exchange, is_over: Callable[[], bool]) -> None:
        self.exchange, self.now_s, self.repeats, self._is_over = exchange, 0.0, False, is_over
        self.forward_s: list[list[float]] = [[] for _ in exchange.workers]  # begins, by iteration
        self.backward_s: list[list[float]] = [[] for _ in exchange.workers]
        self.transfers: list[Transfer] = []
        fabric = exchange.fabric
        self._fabric, self._crossing = fabric, fabric.crossing
        self._pushed, self._pulled = exchange.pushed_bytes.tolist(), exchange.pulled_bytes.tolist()
        self._servers_of = [
            [server for server, both in enumerate(zip(*row, strict=True)) if any(both)]
            for row in zip(self._pushed, self._pulled, strict=True)
        ]
        self._num_parts = sum(map(len, self._servers_of))
        # Keys of each kind of workers by the time of their gradients, those of one moment together.
        self._batches: list[list[tuple[float, list[int]]]] = []
        for worker in exchange.workers:
            batches: dict[float, list[int]] = {}
            for key in sorted(range(len(exchange.key_layer)), key=lambda key: (worker.ready_s[key], key)):
                batches.setdefault(worker.ready_s[key], []).append(key)
            self._batches.append(list(batches.items()))
        self._progress = [_Progress(0.0) for _ in exchange.workers]
        self._events: list[tuple[float, int, str, tuple[int | Sequence[int], ...]]] = []
        self._count = 0
        # Of each class of connections: the message on its way, whose bytes are in ``_left``, and those behind it.
        self._on_way: list[tuple[int | None, int]] = [(None, 0)] * len(fabric.crossing)  # key and iteration
        self._behind: list[list[_Waiting]] = [[] for _ in fabric.crossing]  # heaps
        self._left: dict[int, float] = {}
        self._since_s = [0.0] * len(fabric.crossing)
        self._busy = 0  # the classes in ``_left``, a bit each
        self._rates: dict[int, dict[int, float]] = {}  # by these bits
        self._num_rates = 0
        self._arrived: dict[tuple[int, int, int], int] = {}  # gradients by iteration, key and server
        self._asked: dict[tuple[int, int, int], list[int]] = {}
        self._pushes_left: dict[int, int] = {}  # by iteration, for the barrier
        self._is_new = False  # whether a backward pass has begun since periods were compared
        for index in range(len(exchange.workers)):
            self._at(index * exchange.stagger_s, "_forward", index)

    def begins_s(self) -> Floats:
        """Return when each kind began the backward passes that all have begun, shape (kinds, iterations)."""
        number = min(map(len, self.backward_s))
        return np.array([one[:number] for one in self.backward_s])

    def go(self, num_iterations: int) -> None:
        """Run until every kind has begun so many backward passes, or two periods in a row were the same."""
        left, rates_of = self._left, self._rates
        rates: dict[int, float] = {}
        while min(map(len, self.backward_s)) < num_iterations and not self._is_same():
            next_s = math.inf
            if left:
                found = rates_of.get(self._busy)
                if found is None:
                    self._num_rates += len(left)
                    if self._num_rates > _MOST_RATES:
                        rates_of.clear()
                        self._num_rates = len(left)
                    if self._is_over():
                        raise NoAnswerError("The time was over before iterations of an exchange repeated.")
                    found = dict(zip(left, self._fabric.rates_bytes_per_s(tuple(left)), strict=True))
                    rates_of[self._busy] = found
                rates = found
                next_s = self.now_s + min([size / rates[one] for one, size in left.items()])
            if self._events and self._events[0][0] <= next_s:
                time_s, _, name, given = heapq.heappop(self._events)
                passed_s = time_s - self.now_s
                if passed_s > 0:
                    for one in left:
                        left[one] -= rates[one] * passed_s
                    self.now_s = time_s
                getattr(self, name)(*given)
                continue
            if next_s == math.inf or len(self.transfers) > _MOST_MESSAGES:
                raise ModelError("The exchange does not come to an end.")
            passed_s, self.now_s = next_s - self.now_s, next_s
            done = []
            for one in left:
                left[one] -= rates[one] * passed_s
                if left[one] <= rates[one] * _ROUNDING * next_s:
                    done.append(one)
            for one in done:
                self._deliver(one)

    def _is_same(self) -> bool:
        """Return whether the last two periods were the same for all kinds, to be asked where one has just begun."""
        if self.repeats or not self._is_new:
            return self.repeats
        self._is_new = False
        if min(map(len, self.backward_s)) < _SETTLING or len(set(map(len, self.backward_s))) > 1:
            return False
        periods = [(one[-1] - one[-2], one[-2] - one[-3]) for one in self.backward_s]
        self.repeats = all(
            abs(last - before) <= _SAME * last and abs(last - periods[0][0]) <= _SAME * last for last, before in periods
        )
        return self.repeats

    def _at(self, time_s: float, name: str, *given: "int | Sequence[int]") -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, name, given))

    # -- links

    def _send(self, flow: int, size_bytes: float, key: int | None, iteration: int) -> None:
        """Queue a message; at once where it takes no link."""
        if not self._crossing[flow]:
            self._at(self.now_s, "_act", flow, -1 if key is None else key, iteration)
            return
        size_bytes += self.exchange.message_bytes
        if flow in self._left:
            layer = len(self.exchange.workers[0].forward_s) if key is None else self.exchange.key_layer[key]
            self._count += 1
            rank = (iteration, layer, self._count) if self.exchange.has_priority else (0, 0, self._count)
            heapq.heappush(self._behind[flow], (*rank, size_bytes, key, iteration))
        else:
            self._busy |= 1 << flow
            self._start(flow, size_bytes, key, iteration)

    def _start(self, flow: int, size_bytes: float, key: int | None, iteration: int) -> None:
        """Put a message on its way."""
        self._left[flow], self._since_s[flow], self._on_way[flow] = size_bytes, self.now_s, (key, iteration)

    def _deliver(self, flow: int) -> None:
        """Take the message that has arrived, and go on with the next one."""
        key, iteration = self._on_way[flow]
        kinds, server = divmod(flow, len(self.exchange.servers))
        is_pull, worker = divmod(kinds, len(self.exchange.workers))
        self.transfers.append(Transfer(bool(is_pull), worker, server, key, iteration, self._since_s[flow], self.now_s))
        if self._behind[flow]:
            self._start(flow, *heapq.heappop(self._behind[flow])[3:])
        else:
            del self._left[flow]
            self._busy ^= 1 << flow
        self._act(flow, -1 if key is None else key, iteration)

    def _act(self, flow: int, key: int, iteration: int) -> None:
        """Act on a message: a sum at its worker, or a request (no key) or a gradient at its server."""
        kinds, server = divmod(flow, len(self.exchange.servers))
        is_pull, worker = divmod(kinds, len(self.exchange.workers))
        if is_pull:
            self._pulled_one(worker, key, is_far=bool(self._crossing[flow]))
        elif key < 0:
            self._asked_for(worker, server, iteration)
        else:
            self._pushed_one(key, server, iteration)

    # -- workers

    def _forward(self, index: int) -> None:
        """Begin a forward pass whose sums are all known, and go on to the backward pass."""
        exchange, progress = self.exchange, self._progress[index]
        arrived, is_layered = progress.arrived_s, exchange.overlap is Overlap.PUSH_PULL_FORWARD
        begin_s = self.now_s
        if arrived:
            begin_s = max(progress.ended_s, *(arrived[:1] if is_layered else arrived)) + exchange.pause_s
        now_s = begin_s
        for layer, seconds in enumerate(exchange.workers[index].forward_s):
            if arrived and arrived[layer] > now_s:
                now_s = arrived[layer]
            now_s += seconds
        self.forward_s[index].append(begin_s)
        self._at(now_s, "_backward", index)

    def _backward(self, index: int) -> None:
        """Begin a backward pass, whose sums the next forward pass needs."""
        exchange, progress, worker = self.exchange, self._progress[index], self.exchange.workers[index]
        iteration = len(self.backward_s[index])
        self.backward_s[index].append(self.now_s)
        self._is_new = True
        progress.missing, progress.arrived_s = self._num_parts, [0.0] * len(worker.forward_s)
        progress.ended_s = self.now_s + worker.backward_s
        done_s = self.now_s + max(worker.backward_s, self._batches[index][-1][0])
        if exchange.overlap.pushes_early:
            for ready_s, keys in self._batches[index]:
                self._at(self.now_s + ready_s, "_push", index, iteration, keys)
        else:
            keys = [key for _, keys in self._batches[index] for key in keys]
            self._at(done_s, "_push", index, iteration, keys)
        if not exchange.overlap.pulls_early and not exchange.has_barrier:
            self._at(done_s, "_ask", index, iteration)

    def _push(self, index: int, iteration: int, keys: Sequence[int]) -> None:
        """Send gradients, in this order."""
        for key in keys:
            for server in self._servers_of[key]:
                self._send(index * len(self.exchange.servers) + server, self._pushed[key][server], key, iteration)

    def _ask(self, index: int, iteration: int) -> None:
        """Ask every server for its sums: one message for each key, behind all gradients where none was pushed early."""
        numbers = [0] * len(self.exchange.servers)
        for servers in self._servers_of:
            for server in servers:
                numbers[server] += 1
        for server, number in enumerate(numbers):
            if number and self.exchange.overlap.pushes_early:
                self._asked_for(index, server, iteration)
            elif number:
                size_bytes = self.exchange.message_bytes * (number - 1)
                self._send(index * len(numbers) + server, size_bytes, None, iteration)

    def _pulled_one(self, index: int, key: int, *, is_far: bool) -> None:
        """Note a sum; with the last one the next forward pass is known."""
        progress, layer = self._progress[index], self.exchange.key_layer[key]
        there_s = self.now_s + (2 * self.exchange.latency_s if is_far else 0.0)
        progress.arrived_s[layer] = max(progress.arrived_s[layer], there_s)
        progress.missing -= 1
        if not progress.missing:
            self._forward(index)

    # -- servers

    def _pushed_one(self, key: int, server: int, iteration: int) -> None:
        """Add a gradient to its sum, and send what is waited for if it was the last."""
        exchange, part = self.exchange, (iteration, key, server)
        self._arrived[part] = number = self._arrived.get(part, 0) + 1
        if number < len(exchange.workers):
            return
        if exchange.has_barrier:
            left = self._pushes_left.get(iteration, self._num_parts) - 1
            self._pushes_left[iteration] = left
            if not left:
                for _, keys in self._batches[0]:
                    for one in keys:
                        for other in self._servers_of[one]:
                            self._answer(iteration, one, other, range(len(exchange.workers)))
        elif exchange.overlap.pulls_early:
            self._answer(iteration, key, server, range(len(exchange.workers)))
        else:
            self._answer(iteration, key, server, self._asked.pop(part, ()))

    def _asked_for(self, index: int, server: int, iteration: int) -> None:
        """Send the sums that are complete, in the order of gradients; the others later."""
        for _, keys in self._batches[index]:
            for key in keys:
                if server not in self._servers_of[key]:
                    continue
                part = (iteration, key, server)
                if self._arrived.get(part, 0) == len(self.exchange.workers):
                    self._answer(iteration, key, server, (index,))
                else:
                    self._asked.setdefault(part, []).append(index)

    def _answer(self, iteration: int, key: int, server: int, workers: Sequence[int]) -> None:
        """Send a sum to workers."""
        servers = len(self.exchange.servers)
        for worker in workers:
            flow = (len(self.exchange.workers) + worker) * servers + server
            self._send(flow, self._pulled[key][server], key, iteration)
