"""An exchange, run from event to event: fair links and queues, workers, servers that wait for sums or look at clocks.

What is exchanged, and who waits for whom: :mod:`planner.models.exchange`. Iterations that repeat: :func:`steady`; the
pace of workers that keep no common one: :mod:`planner.models.asynchronous`.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError, NoAnswerError
from planner.frozen import frozen
from planner.models.exchange import Discipline, Exchange, Overlap, Worker

_ROUNDING = 1e-12  # of a moment, and of what a message has left
_SAME = 1e-9  # of an iteration: periods that repeat
_SETTLING = 3  # iterations before those that count, where they do not repeat
_COUNTED = 4  # even: workers may take turns
_COUNTED_UNSTEADY = 12  # where those differ: one of them says little
_STEADY = 0.02  # of an iteration, by which those that count may differ
_MOST_MESSAGES = 5_000_000
_MOST_RATES = 1_000_000  # that are kept
_DRAWS = 64  # random numbers drawn at a time


class Transfer(NamedTuple):
    """A message that went over a link: its kinds of workers and servers, and its iteration; a request has no key."""

    is_pull: bool
    worker: int
    server: int
    key: int | None
    iteration: int
    start_s: float
    end_s: float


@frozen
class Steady:
    """What iterations come to."""

    iteration_s: float  # the median of those that count
    # from the first end of a backward pass of an iteration until its last gradient has arrived; 0 if before
    pushed_s: float
    spread: float  # largest less smallest of those that count, as a share
    lag: float  # between the first and the last worker's beginning of the same iteration, as a share of one
    transfers: tuple[Transfer, ...]  # all messages, in the order of their arrival
    # forward_begins_s, backward_begins_s: of each kind of workers, by iteration
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
    run = Run(exchange, [index * exchange.stagger_s for index in range(len(exchange.workers))], is_over=is_over)
    for counted in (_COUNTED, _COUNTED_UNSTEADY):
        run.go(lambda number=_SETTLING + counted + 1: run.num_begun >= number or run.is_same())  # type: ignore[misc]
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
        transfers=tuple(sorted(run.transfers, key=lambda one: one.end_s)),
        forward_begins_s=tuple(tuple(one) for one in run.forward_s),
        backward_begins_s=tuple(tuple(one) for one in run.backward_s),
    )


# -- fair links --------------------------------------------------------------------------------------------------------

_Waiting = tuple[int, int, int, float, int | None, int]  # iteration, layer and number, bytes, key, iteration


class _FairLinks:
    """Links that connections share max-min fairly, from event to event."""

    def __init__(self, run: "Run", is_over: Callable[[], bool]) -> None:
        self._run, self._exchange, self._is_over = run, run.exchange, is_over
        self._fabric = fabric = run.exchange.fabric
        # Of each class of connections: the message on its way, and those behind it.
        self._on_way: list[tuple[int | None, int]] = [(None, 0)] * len(fabric.crossing)  # key and iteration
        self._behind: list[list[_Waiting]] = [[] for _ in fabric.crossing]  # heaps
        self._left: dict[int, float] = {}  # bytes of those that are on their way since rates were last reckoned
        self._ends_s = np.full(len(fabric.crossing), math.inf)  # of the others: when they are through at their rates
        self._soonest_s = math.inf  # the least of these
        self._since_s = [0.0] * len(fabric.crossing)
        self._busy = 0  # the classes that have a message on its way, a bit each
        self._is_changed = False  # which classes are busy, since rates were reckoned
        self._rates = np.zeros(len(fabric.crossing))  # 0 of those that are not busy
        self._rates_of: dict[int, Floats] = {}  # by the bits of those that are
        self._num_rates = self._count = 0

    def next_s(self) -> float:
        """Return when a message is next through."""
        if self._is_changed:
            self._reckon()
        return self._soonest_s

    def _reckon(self) -> None:
        """Give every class that is busy now its rate, and find when its message is through."""
        now_s, ends_s, left = self._run.now_s, self._ends_s, self._left
        self._is_changed = False
        if self._is_over():
            raise NoAnswerError("The time was over before iterations of an exchange repeated.")
        found = self._rates_of.get(self._busy)
        if found is None:
            self._num_rates += len(ends_s)
            if self._num_rates > _MOST_RATES:
                self._rates_of.clear()
                self._num_rates = len(ends_s)
            found = np.zeros(len(ends_s))
            busy = [*np.flatnonzero(ends_s < math.inf).tolist(), *left]
            found[busy] = self._fabric.rates_bytes_per_s(busy)
            self._rates_of[self._busy] = found
        other = ((found != self._rates) & (ends_s < math.inf)).nonzero()[0]
        if other.size:
            ends_s[other] = now_s + (ends_s[other] - now_s) * (self._rates[other] / found[other])
        for one, size in left.items():
            ends_s[one] = now_s + size / float(found[one])
        left.clear()
        self._rates, self._soonest_s = found, float(ends_s.min())

    def deliver(self) -> None:
        """Take the messages that are through, and go on with the next ones."""
        for flow in (self._ends_s <= self._run.now_s * (1 + _ROUNDING)).nonzero()[0].tolist():
            self._deliver(flow)
        self._soonest_s = float(self._ends_s.min())

    def send(
        self, is_pull: bool, worker: int, servers: tuple[int, ...], sizes: list[float], key: int | None, iteration: int
    ) -> None:
        """Queue messages; at once where they take no link."""
        exchange = self._exchange
        for server in servers:
            flow = (is_pull * len(exchange.workers) + worker) * len(exchange.servers) + server
            if not self._fabric.crossing[flow]:
                self._run.at(self._run.now_s, self._run.act, is_pull, worker, (server,), key, iteration, 0.0)
                continue
            size_bytes = sizes[server] + exchange.message_bytes
            if self._busy >> flow & 1:
                layer = len(exchange.workers[0].forward_s) if key is None else exchange.key_layer[key]
                self._count += 1
                has_priority = exchange.discipline is Discipline.PRIORITY
                rank = (iteration, layer, self._count) if has_priority else (0, 0, self._count)
                heapq.heappush(self._behind[flow], (*rank, size_bytes, key, iteration))
            else:
                self._busy |= 1 << flow
                self._is_changed = True
                self._left[flow] = size_bytes
                self._start(flow, key, iteration)

    def _start(self, flow: int, key: int | None, iteration: int) -> None:
        """Put a message on its way."""
        self._since_s[flow], self._on_way[flow] = self._run.now_s, (key, iteration)

    def _deliver(self, flow: int) -> None:
        """Take a message, and go on with the next one of its connection."""
        key, iteration = self._on_way[flow]
        kinds, server = divmod(flow, len(self._exchange.servers))
        is_pull, worker = divmod(kinds, len(self._exchange.workers))
        now_s = self._run.now_s
        self._run.transfers.append(Transfer(bool(is_pull), worker, server, key, iteration, self._since_s[flow], now_s))
        if self._behind[flow]:
            size_bytes, key_behind, iteration_behind = heapq.heappop(self._behind[flow])[3:]
            self._ends_s[flow] = now_s + size_bytes / float(self._rates[flow])
            self._start(flow, key_behind, iteration_behind)
        else:
            self._ends_s[flow] = math.inf
            self._busy ^= 1 << flow
            self._is_changed = True
        self._run.act(bool(is_pull), worker, (server,), key, iteration, 2 * self._exchange.latency_s)


# -- links that serve first come first served --------------------------------------------------------------------------


class _Message(NamedTuple):
    """A message, or several workers' of a kind, on links: its seconds on a worker's own, and its work for the others.

    ``home``: the column of servers at home, for which there is only ``home_s`` of work. ``own``: the column of the
    worker's machine, where a server sends (receives) beside what the worker sends (receives). ``through``: runs of the
    columns that it goes through. ``far``: the servers that it is for, without those to which nothing crosses a link
    (``near``).
    """

    own_s: float
    work_s: Floats
    home: int | None
    home_s: float
    own: int | None
    through: tuple[slice, ...]
    far: tuple[int, ...]
    near: tuple[int, ...]

    def add(self, to: Floats, times: float) -> None:
        """Add its work so many times, in place."""
        if self.home is None:
            to += self.work_s * times
        else:
            at_home = float(to[self.home]) + self.home_s * times
            to += self.work_s * times
            to[self.home] = at_home
        if self.own is not None:
            to[self.own] += self.own_s * times


class _FifoLinks:
    """Links that serve first come first served: a worker's own, and behind it a server's, in both directions alike.

    A worker's link carries messages one after the other, each to all its servers at once. At that pace its bytes come
    to the servers' links, which work whenever something waits, in the order of arrival: what comes now has gone through
    after as many seconds as work waits. What comes at the same moment is served mixed, as are messages that overlap.
    While a server's queue holds back what a worker pulls, the worker's link rests, and may then catch up. What a worker
    sends beside a server's answers on its own machine waits with them, for one link.

    Where nobody asks for single messages (``is_told``), links that another one bounds, always, are left out: one that
    all workers send to, and that has more work of every key.
    """

    def __init__(self, run: "Run", *, is_told: bool) -> None:
        exchange = run.exchange
        self._run, self._exchange, self._is_told = run, exchange, is_told
        self._rates, self._numbers = exchange.server_rates, np.array([server.count for server in exchange.servers])
        first: dict[Worker, int] = {}
        self._first = [first.setdefault(worker, index) for index, worker in enumerate(exchange.workers)]  # its equal
        # Columns are links that are followed: to servers, then from servers.
        self._is_column = np.ones((2, len(self._rates)), dtype=bool)
        homes = {worker.home for worker in exchange.workers}
        away = np.array([server for server in range(len(self._rates)) if server not in homes], dtype=np.intp)
        if len(away) and exchange.slack is not None and not is_told and not exchange.message_bytes:
            for way, sizes in enumerate((exchange.pushed_bytes, exchange.pulled_bytes)):
                seconds = (sizes / self._rates)[:, away]
                busiest = int(np.argmax(seconds.sum(axis=0)))
                self._is_column[way, away] = (seconds > seconds[:, [busiest]]).any(axis=0)
                self._is_column[way, away[busiest]] = True
        self._column = (np.cumsum(self._is_column) - 1).reshape(self._is_column.shape)  # of those that are
        self._work_s, self._growth = np.zeros(self._is_column.sum()), np.full(self._is_column.sum(), -1.0)  # a second
        self._num_open, self._since_s = 0, 0.0
        self._queues: list[list[deque[tuple[_Message, int | None, int]]]] = [
            [deque() for _ in exchange.workers] for _ in range(2)
        ]
        self._begun_s = [[0.0] * len(exchange.workers) for _ in range(2)]
        self._messages: dict[tuple[bool, int, int | None, int | None], _Message] = {}
        self._work_of: dict[tuple[bool, int, tuple[int, ...], int | None], Floats] = {}

    def send(
        self, is_pull: bool, worker: int, servers: tuple[int, ...], sizes: list[float], key: int | None, iteration: int
    ) -> None:
        """Queue one message for all servers behind what the worker's link has; at once where it takes no link."""
        run, first = self._run, self._first[worker]
        name = is_pull, first, key, servers[0] if len(servers) == 1 else None  # one of a key's servers, or all
        message = self._messages.get(name)
        if message is None:
            message = self._messages[name] = self._message(is_pull, first, servers, key, sizes)
        if message.near:
            run.at(run.now_s, run.act, is_pull, worker, message.near, key, iteration, 0.0)
        if message.far and self._exchange.latency_s:
            run.at(run.now_s + self._exchange.latency_s, self._enter, is_pull, worker, message, key, iteration)
        elif message.far:
            self._enter(is_pull, worker, message, key, iteration)

    def _message(
        self, is_pull: bool, worker: int, servers: tuple[int, ...], key: int | None, sizes: list[float]
    ) -> _Message:
        own, chosen = self._exchange.workers[worker], np.array(servers)
        numbers = self._numbers[chosen] - (chosen == own.home)
        size_bytes = np.array(sizes)[chosen] + self._exchange.message_bytes
        is_far = np.zeros(self._is_column.shape, dtype=bool)
        is_far[int(is_pull), chosen] = is_remote = (numbers > 0) & ((size_bytes > 0) | (key is None))
        far, near = tuple(chosen[is_remote].tolist()), tuple(chosen[~is_remote].tolist())
        if far and self._is_whole(is_pull) and not self._is_told:
            far, near = servers, ()
        name = is_pull, own.count, servers, key
        if name not in self._work_of:
            work_s = np.zeros(self._is_column.shape)
            work_s[int(is_pull), chosen] = size_bytes * own.count / self._rates[chosen]
            self._work_of[name] = work_s[self._is_column]
        work_s, home, home_s, beside = self._work_of[name], None, 0.0, None
        if own.home is not None:
            beside = int(self._column[int(not is_pull), own.home])
            is_far[int(not is_pull), own.home] = True
            if own.home in servers:
                home = int(self._column[int(is_pull), own.home])
                home_s = float(work_s[home]) * (own.count - 1) / own.count
        edges = np.flatnonzero(
            np.diff(np.concatenate(([False], is_far[self._is_column], [False])).astype(int))
        ).tolist()
        return _Message(
            own_s=float((size_bytes * numbers)[is_remote].sum()) / own.bytes_per_s,
            work_s=work_s,
            home=home,
            home_s=home_s,
            own=beside,
            through=tuple(map(slice, edges[::2], edges[1::2])),
            far=far,
            near=near,
        )

    def _is_whole(self, is_pull: bool) -> bool:
        """Whether of a message for several servers only the last byte counts, and not each server's own."""
        return is_pull or self._exchange.slack is not None

    def _pass(self) -> Floats:
        """Return the work that waits now, in seconds; arrivals have had a constant pace since the last look."""
        work_s, passed_s = self._work_s, self._run.now_s - self._since_s
        if passed_s > 0:
            work_s += self._growth * passed_s
            np.maximum(work_s, 0.0, out=work_s)
            self._since_s = self._run.now_s
        return work_s

    def _enter(self, is_pull: bool, worker: int, message: _Message, key: int | None, iteration: int) -> None:
        """Have a message wait for its worker's link."""
        if is_pull:
            self._run.read(worker)
        queue = self._queues[is_pull][worker]
        queue.append((message, key, iteration))
        if len(queue) == 1:
            self._open(is_pull, worker)

    def _open(self, is_pull: bool, worker: int) -> None:
        """Begin with what waits for a worker's link; all of it arrives at once if that is unlimited."""
        message, work_s = self._queues[is_pull][worker][0][0], self._pass()
        if message.own_s:
            message.add(self._growth, 1 / message.own_s)
            self._num_open += 1
        else:
            message.add(work_s, 1.0)
        self._begun_s[is_pull][worker] = now_s = self._run.now_s
        self._run.at(now_s + message.own_s, self._leave, is_pull, worker)

    def _leave(self, is_pull: bool, worker: int) -> None:
        """End with a message on its worker's link; its last byte is behind all that waits at the servers'."""
        run, work_s, queue = self._run, self._pass(), self._queues[is_pull][worker]
        message, key, iteration = queue.popleft()
        if message.own_s:
            self._num_open -= 1
            if self._num_open:
                message.add(self._growth, -1 / message.own_s)
            else:
                self._growth.fill(-1.0)  # whatever rounding says
        now_s, is_whole = run.now_s, self._is_whole(is_pull)
        if is_whole:
            end_s = now_s + max([float(np.maximum.reduce(work_s[part])) for part in message.through])
            run.at(end_s, run.act, is_pull, worker, message.far, key, iteration, 0.0)
        if self._is_told or not is_whole:
            least_s = 0.0 if message.own is None else float(work_s[message.own])
            for server in message.far:
                end_s = now_s + max(float(work_s[self._column[int(is_pull), server]]), least_s)
                begun_s = self._begun_s[is_pull][worker]
                run.transfers.append(Transfer(is_pull, worker, server, key, iteration, begun_s, end_s))
                if not is_whole:
                    run.at(end_s, run.act, is_pull, worker, (server,), key, iteration, 0.0)
        if queue:
            self._open(is_pull, worker)


# -- workers and servers, from event to event --------------------------------------------------------------------------


class Cycle(NamedTuple):
    """What a worker did between two moments at which it was let go."""

    worker: int
    let_go_s: float  # its pull begins
    begins_s: float  # to compute
    computed_s: float  # its push begins, if it does not earlier
    pushed_s: float  # its update is applied
    ends_s: float  # it is let go again
    num_before: int  # updates of all workers that had been applied when it began
    ahead: int  # iterations before the slowest worker, when it ends


@dataclass(slots=True)
class _Progress:
    ended_s: float  # their last backward pass
    missing: int = 0  # sums that have not arrived
    arrived_s: list[float] = field(default_factory=list)  # the last sum of each layer
    unpushed: int = 0  # gradients that have not arrived
    clock: int = 0  # iterations whose gradients have
    stretch: float = 1.0  # of what is computed now
    begins_s: float = 0.0
    computed_s: float = 0.0
    pushed_s: float = 0.0
    let_go_s: float = 0.0
    num_before: int = 0
    seen: int | None = None  # updates in the parameters that it has


class Run:
    """The state of a whole run; events are plain tuples, whose third entry acts on them.

    Parameters
    ----------
    exchange
        What is exchanged, and when it may be.
    starts_s
        Of each kind's first iteration.
    ahead
        Iterations that each kind is ahead of the slowest one at the start; left out, none.
    seed
        Of the seconds that are drawn; a worker's are the same under every slack and discipline.
    is_told
        Whether ``transfers`` are asked for. Without them fewer links need be followed.
    is_over
        Asked now and then.
    """

    def __init__(
        self,
        exchange: Exchange,
        starts_s: Sequence[float],
        *,
        ahead: Sequence[int] = (),
        seed: int = 0,
        is_told: bool = True,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.exchange, self.now_s, self.repeats = exchange, 0.0, False
        self.forward_s: list[list[float]] = [[] for _ in exchange.workers]  # begins, by iteration
        self.backward_s: list[list[float]] = [[] for _ in exchange.workers]
        self.transfers: list[Transfer] = []
        self.updates: list[tuple[float, int]] = []  # when they were applied, and how many others each of them missed
        self.cycles: list[Cycle] = []
        is_fifo = exchange.discipline is Discipline.FIFO
        self._links = _FifoLinks(self, is_told=is_told) if is_fifo else _FairLinks(self, is_over)
        self._pushed, self._pulled = exchange.pushed_bytes.tolist(), exchange.pulled_bytes.tolist()
        self._servers_of = [
            tuple(server for server, both in enumerate(zip(*row, strict=True)) if any(both))
            for row in zip(self._pushed, self._pulled, strict=True)
        ]
        if not any(self._servers_of):  # nothing is sent: workers exchange as much
            self._servers_of[0] = (0,)
        self._num_parts = sum(map(len, self._servers_of))
        # Keys of each kind of workers by the time of their gradients, those of one moment together.
        self._batches: list[list[tuple[float, list[int]]]] = []
        for worker in exchange.workers:
            batches: dict[float, list[int]] = {}
            for key in sorted(range(len(exchange.key_layer)), key=lambda key: (worker.ready_s[key], key)):
                batches.setdefault(worker.ready_s[key], []).append(key)
            self._batches.append(list(batches.items()))
        self._keys = [[key for _, keys in batches for key in keys] for batches in self._batches]
        self._done_s = [
            max(one.backward_s, batches[-1][0]) for one, batches in zip(exchange.workers, self._batches, strict=True)
        ]
        self._pushes_early, self._pulls_early = exchange.overlap.pushes_early, exchange.overlap.pulls_early
        self._seconds = [
            _drawn(worker, exchange.num_steps, (seed, index)) for index, worker in enumerate(exchange.workers)
        ]
        self._progress = [_Progress(0.0, let_go_s=start_s) for start_s in starts_s]
        for progress, clock in zip(self._progress, ahead, strict=False):
            progress.clock = clock
        self._at_clock = Counter(progress.clock for progress in self._progress)
        self._least_clock = min(self._at_clock)
        self._waiting: set[int] = set()  # read in sorted order only
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self._arrived: dict[tuple[int, int, int], int] = {}  # gradients by iteration, key and server
        self._asked: dict[tuple[int, int, int], list[int]] = {}
        self._is_new = False  # whether a backward pass has begun since periods were compared
        self._has_news = True  # whether one has, or an update was applied, since the end was asked for
        for index, start_s in enumerate(starts_s):
            self.at(start_s, self._forward, index)

    @property
    def num_begun(self) -> int:
        """Backward passes that every kind has begun."""
        return min(map(len, self.backward_s))

    def begins_s(self) -> Floats:
        """Return when each kind began the backward passes that all have begun, shape (kinds, iterations)."""
        number = self.num_begun
        return np.array([one[:number] for one in self.backward_s])

    def go(self, is_done: Callable[[], bool]) -> None:
        """Run on until it is done, which is asked whenever a backward pass has begun or an update was applied.

        Raises
        ------
        ModelError
            If it takes more messages than can be followed.
        NoAnswerError
            If the time was over before.
        """
        events, fair = self._events, self._links if isinstance(self._links, _FairLinks) else None
        self._has_news = True
        while True:
            if self._has_news:
                if is_done():
                    return
                self._has_news = False
            next_s = fair.next_s() if fair else math.inf
            if events and events[0][0] <= next_s:
                time_s, _, act, given = heapq.heappop(events)
                self.now_s = time_s
                act(*given)
                continue
            if not fair or next_s == math.inf or len(self.transfers) > _MOST_MESSAGES:
                raise ModelError("The exchange does not come to an end.")
            self.now_s = next_s
            fair.deliver()

    def is_same(self) -> bool:
        """Return whether the last two periods were the same for all kinds, to be asked where one has just begun."""
        if self.repeats or not self._is_new:
            return self.repeats
        self._is_new = False
        if self.num_begun < _SETTLING or len(set(map(len, self.backward_s))) > 1:
            return False
        periods = [(one[-1] - one[-2], one[-2] - one[-3]) for one in self.backward_s]
        self.repeats = all(
            abs(last - before) <= _SAME * last and abs(last - periods[0][0]) <= _SAME * last for last, before in periods
        )
        return self.repeats

    def at(self, time_s: float, act: Callable[..., None], *given: object) -> None:
        """Have something happen."""
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, act, given))

    def act(
        self, is_pull: bool, worker: int, servers: tuple[int, ...], key: int | None, iteration: int, late_s: float
    ) -> None:
        """Act on a message: a sum at its worker, so much later, or a request (no key) or a gradient at its servers."""
        if is_pull:
            assert key is not None
            self._got(worker, key, len(servers), self.now_s + late_s)
        elif key is None:
            for server in servers:
                self._asked_for(worker, server, iteration)
        elif self.exchange.slack is not None:
            progress = self._progress[worker]
            progress.unpushed -= len(servers)
            if not progress.unpushed:
                self._tick(worker)
        else:
            for server in servers:
                self._add(key, server, iteration)

    # -- workers

    def _forward(self, index: int) -> None:
        """Begin a forward pass whose sums are all known, and go on to the backward pass."""
        exchange, progress = self.exchange, self._progress[index]
        arrived, is_layered = progress.arrived_s, exchange.overlap is Overlap.PUSH_PULL_FORWARD
        begin_s = self.now_s
        if arrived:
            begin_s = max(progress.ended_s, *(arrived[:1] if is_layered else arrived)) + exchange.pause_s
        self.read(index)
        local_s, progress.stretch = next(self._seconds[index])
        now_s = begin_s + local_s
        for layer, seconds in enumerate(exchange.workers[index].forward_s):
            if arrived and arrived[layer] > now_s:
                now_s = arrived[layer]
            now_s += seconds * progress.stretch
        self.forward_s[index].append(begin_s)
        progress.begins_s = begin_s
        self.at(now_s, self._backward, index)

    def _backward(self, index: int) -> None:
        """Begin a backward pass, whose sums the next forward pass needs."""
        progress, worker = self._progress[index], self.exchange.workers[index]
        iteration, stretch = len(self.backward_s[index]), progress.stretch
        self.backward_s[index].append(self.now_s)
        self._is_new = self._has_news = True
        progress.missing = progress.unpushed = self._num_parts
        progress.arrived_s = [0.0] * len(worker.forward_s)
        progress.ended_s = self.now_s + worker.backward_s * stretch
        progress.computed_s = done_s = self.now_s + self._done_s[index] * stretch
        if self._pushes_early:
            for ready_s, keys in self._batches[index]:
                self.at(self.now_s + ready_s * stretch, self._push, index, iteration, keys)
        else:
            keys = self._keys[index]
            if done_s > self.now_s:
                self.at(done_s, self._push, index, iteration, keys)
            else:
                self._push(index, iteration, keys)
        if not self._pulls_early and self.exchange.slack is None:
            self.at(done_s, self._ask, index, iteration)

    def _push(self, index: int, iteration: int, keys: Sequence[int]) -> None:
        """Send gradients, in this order."""
        for key in keys:
            if servers := self._servers_of[key]:
                self._links.send(False, index, servers, self._pushed[key], key, iteration)

    def _ask(self, index: int, iteration: int) -> None:
        """Ask every server for its sums: one message for each key, behind all gradients where none was pushed early."""
        numbers = [0] * len(self.exchange.servers)
        for servers in self._servers_of:
            for server in servers:
                numbers[server] += 1
        sizes = [self.exchange.message_bytes * (number - 1) for number in numbers]
        for server, number in enumerate(numbers):
            if number and self._pushes_early:
                self._asked_for(index, server, iteration)
            elif number:
                self._links.send(False, index, (server,), sizes, None, iteration)

    def _got(self, index: int, key: int, number: int, there_s: float) -> None:
        """Note a sum, or what several servers hold of it; with the last one the next forward pass is known."""
        progress, layer = self._progress[index], self.exchange.key_layer[key]
        progress.arrived_s[layer] = max(progress.arrived_s[layer], there_s)
        progress.missing -= number
        if not progress.missing:
            self._forward(index)

    # -- servers that wait for the gradients of a sum

    def _add(self, key: int, server: int, iteration: int) -> None:
        """Add a gradient to its sum, and send what is waited for if it was the last."""
        part, num_workers = (iteration, key, server), len(self.exchange.workers)
        self._arrived[part] = number = self._arrived.get(part, 0) + 1
        if number == num_workers:
            waiting = range(num_workers) if self._pulls_early else self._asked.pop(part, ())
            self._answer(iteration, key, server, waiting)

    def _asked_for(self, index: int, server: int, iteration: int) -> None:
        """Send the sums that are complete, in the order of gradients; the others later."""
        for key in self._keys[index]:
            if server not in self._servers_of[key]:
                continue
            part = (iteration, key, server)
            if self._arrived.get(part, 0) == len(self.exchange.workers):
                self._answer(iteration, key, server, (index,))
            else:
                self._asked.setdefault(part, []).append(index)

    def _answer(self, iteration: int, key: int, server: int, workers: Sequence[int]) -> None:
        """Send a sum to workers."""
        for worker in workers:
            self._links.send(True, worker, (server,), self._pulled[key], key, iteration)

    # -- servers that look at clocks

    def read(self, index: int) -> None:
        """Note which updates are in the parameters that a worker gets, when the first of them leave."""
        if self._progress[index].seen is None:
            self._progress[index].seen = len(self.updates)

    def _tick(self, index: int) -> None:
        """Apply an update, advance its worker's clock, and let go whoever now may, in the order of their numbers."""
        progress, slack = self._progress[index], self.exchange.slack
        assert slack is not None and progress.seen is not None
        # Behind a barrier all are applied at once.
        self._has_news = True
        self.updates.append((self.now_s, len(self.updates) - progress.seen if slack else 0))
        progress.pushed_s = self.now_s
        self._waiting.add(index)
        self._at_clock[progress.clock] -= 1
        progress.clock += 1
        self._at_clock[progress.clock] += 1
        asking = {index}
        if not self._at_clock[self._least_clock]:  # it was the last one that others waited for
            del self._at_clock[self._least_clock]
            self._least_clock += 1
            asking = self._waiting
        for one in sorted(one for one in asking if self._progress[one].clock - self._least_clock <= slack):
            self._waiting.remove(one)
            self._let_go(one)

    def _let_go(self, index: int) -> None:
        """Send a worker all parameters: one cycle ends, and the next begins."""
        progress, number = self._progress[index], len(self.updates)
        self.cycles.append(
            Cycle(
                worker=index,
                let_go_s=progress.let_go_s,
                begins_s=progress.begins_s,
                computed_s=progress.computed_s,
                pushed_s=progress.pushed_s,
                ends_s=self.now_s,
                num_before=progress.num_before,
                ahead=progress.clock - self._least_clock,
            )
        )
        progress.let_go_s, progress.num_before, progress.seen = self.now_s, number, None
        iteration = len(self.backward_s[index]) - 1
        for key in self._keys[0]:
            if servers := self._servers_of[key]:
                self._links.send(True, index, servers, self._pulled[key], key, iteration)


def _drawn(worker: Worker, num_steps: int, seed: tuple[int, int]) -> Iterator[tuple[float, float]]:
    """Yield, of each exchange: seconds of the iterations before the last one, and how much longer than planned that is.

    Where seconds vary, draws are independent, normal and not negative.
    """
    mean_s = worker.compute_s
    if not worker.deviation_s:
        yield from repeat(((num_steps - 1) * mean_s, 1.0))
    rng = np.random.default_rng(seed)
    while True:
        drawn = rng.normal(mean_s, worker.deviation_s, (_DRAWS, num_steps))
        while (negative := drawn < 0).any():
            drawn[negative] = rng.normal(mean_s, worker.deviation_s, int(negative.sum()))
        yield from zip(drawn[:, :-1].sum(axis=1).tolist(), (drawn[:, -1] / mean_s).tolist(), strict=True)
