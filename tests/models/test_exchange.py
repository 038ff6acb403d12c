"""Exchanges with servers: fair links against an independent referee, kinds against single workers, and what holds."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.cases.forms.bsp_server import BspExchange, algorithm_1_time_s, algorithm_2_time_s, segments_time_s
from planner.errors import ModelError
from planner.models.exchange import Discipline, Exchange, Fabric, Overlap, Servers, Worker
from planner.models.exchange_run import steady
from planner.models.servers import Links, iteration_time_s, push_end_s

RATES = st.sampled_from([1e6, 2e6, 3e6, 1e7])
EVERY = list(Overlap)

# -- links --------------------------------------------------------------------------------------------------------------


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """Up to six links, and classes of one to three connections over one to three of them."""
    rates = tuple(draw(st.lists(RATES, min_size=2, max_size=6)))
    links = st.lists(st.integers(0, len(rates) - 1), min_size=1, max_size=3, unique=True)
    ways = draw(st.lists(st.tuples(links, st.integers(1, 3)), min_size=1, max_size=6))
    return Fabric(bytes_per_s=rates, crossing=tuple(tuple((link, count) for link in way) for way, count in ways))


def filled_in_tiny_steps(fabric: Fabric) -> list[float]:
    """All rates rise together by tiny amounts; one stops when a link of its own is full."""
    step, rates = 1e3, [0.0] * len(fabric.crossing)
    rising = set(range(len(rates)))
    while rising:
        for one in rising:
            rates[one] += step
        for link, rate in enumerate(fabric.bytes_per_s):
            counts = {one: dict(way)[link] for one, way in enumerate(fabric.crossing) if link in dict(way)}
            if sum(rates[one] * count for one, count in counts.items()) > rate - sum(counts.values()) * step:
                rising -= set(counts)
    return rates


@settings(max_examples=40)
@given(fabrics())
def test_rates_are_those_of_links_filled_in_tiny_steps(fabric: Fabric) -> None:
    found = fabric.rates_bytes_per_s(range(len(fabric.crossing)))
    assert found == pytest.approx(filled_in_tiny_steps(fabric), rel=0.1)


@given(fabrics())
def test_every_connection_crosses_a_full_link_where_none_is_faster(fabric: Fabric) -> None:
    found = fabric.rates_bytes_per_s(range(len(fabric.crossing)))
    on = [
        {one: dict(way)[link] for one, way in enumerate(fabric.crossing) if link in dict(way)}
        for link in range(len(fabric.bytes_per_s))
    ]
    for one, way in enumerate(fabric.crossing):
        is_fair = False
        for link, _ in way:
            total = sum(found[other] * count for other, count in on[link].items())
            assert total <= fabric.bytes_per_s[link] * (1 + 1e-9)
            is_full = total >= fabric.bytes_per_s[link] * (1 - 1e-9)
            is_fair |= is_full and found[one] >= max(found[other] for other in on[link]) * (1 - 1e-9)
        assert is_fair


# -- iterations ---------------------------------------------------------------------------------------------------------


def exchange(workers: int = 2, *, rate: float = 1e7, is_co_located: bool = False, **changes: Any) -> Exchange:
    """Workers of two layers and two keys of 1 MB on one server: 0.1 s forward, 0.2 s backward, links of 10 MB/s."""
    one = Worker(forward_s=(0.05, 0.05), backward_s=0.2, ready_s=(0.2, 0.1), bytes_per_s=rate)
    kinds = [replace(one, home=0), replace(one, count=workers - 1)] if is_co_located else [replace(one, count=workers)]
    whole = Exchange(
        workers=tuple(kinds),
        servers=(Servers(bytes_per_s=rate),),
        pushed_bytes=np.full((2, 1), 1e6),
        pulled_bytes=np.full((2, 1), 1e6),
        key_layer=(0, 1),
        overlap=Overlap.NONE,
    )
    return replace(whole, **changes)


def period_s(whole: Exchange) -> float:
    return steady(whole).iteration_s


def test_with_a_barrier_pushes_and_pulls_follow_one_another() -> None:
    # 2 workers x 2 MB over 10 MB/s, there and back.
    assert period_s(exchange(slack=0)) == pytest.approx(0.3 + 0.4 + 0.4)
    early = exchange(slack=0, overlap=Overlap.PUSH)
    assert period_s(early) == pytest.approx(0.1 + 0.1 + 0.4 + 0.4)  # the first key is ready after 0.1 s


def test_one_worker_pulls_a_key_beside_the_push_of_the_next() -> None:
    # Push of key 1 at 0.2..0.3 s and pull till 0.4 s; push of key 0 at 0.3..0.4 s and pull till 0.5 s, then layer 0.
    assert period_s(exchange(1, overlap=Overlap.PUSH_PULL)) == pytest.approx(0.5)


def test_the_next_forward_pass_waits_for_the_layers_own_sums_where_it_may() -> None:
    # The sum of layer 1 is large: layer 0 runs forward beside its way back.
    sizes = np.array([[1e5], [3e6]])
    whole = exchange(1, pushed_bytes=sizes, pulled_bytes=sizes, overlap=Overlap.PUSH_PULL)
    ahead = replace(whole, overlap=Overlap.PUSH_PULL_FORWARD)
    # Key 1: pushed from 0.1 to 0.4 s of the backward pass, pulled until 0.7 s; key 0 behind it, until 0.71 s: layer 0
    # waits for its sum behind that of layer 1, on the same connection.
    assert period_s(whole) == pytest.approx(0.71 + 0.1)
    assert period_s(ahead) == pytest.approx(0.71 + 0.1)
    apart: dict[str, Any] = {
        "servers": (Servers(bytes_per_s=1e7),) * 2,
        "pushed_bytes": np.diag(sizes[:, 0]),
        "pulled_bytes": np.diag(sizes[:, 0]),
    }
    # With servers of their own both share the worker's link: key 0 is pushed from 0.2 to 0.22 s and is back at 0.23 s,
    # key 1 is pushed until 0.41 s and back at 0.71 s; layer 1 runs from there, layer 0 before it.
    assert period_s(replace(whole, **apart)) == pytest.approx(0.71 + 0.1)
    assert period_s(replace(ahead, **apart)) == pytest.approx(0.71 + 0.05)


@given(st.sampled_from(EVERY), st.booleans(), st.sampled_from(list(Discipline)), st.integers(2, 4), st.integers(1, 3))
def test_a_kind_of_workers_is_as_single_ones(
    overlap: Overlap, has_barrier: bool, discipline: Discipline, workers: int, servers: int
) -> None:
    slack = 0 if (has_barrier or discipline is Discipline.FIFO) and not overlap.pulls_early else None
    assume(discipline is not Discipline.FIFO or slack is not None)
    sizes = np.outer([1e6, 2e6], np.ones(servers)) / servers
    kinds = exchange(workers, overlap=overlap, slack=slack, discipline=discipline)
    kinds = replace(
        kinds, servers=(Servers(count=servers, bytes_per_s=1e7),), pushed_bytes=sizes[:, :1], pulled_bytes=sizes[:, :1]
    )
    single = replace(
        kinds,
        workers=(replace(kinds.workers[0], count=1),) * workers,
        servers=(Servers(bytes_per_s=1e7),) * servers,
        pushed_bytes=sizes,
        pulled_bytes=sizes,
    )
    assert period_s(kinds) == pytest.approx(period_s(single), rel=1e-6)


@given(st.sampled_from(EVERY), st.sampled_from(list(Discipline)), st.integers(2, 4), st.integers(0, 2))
def test_servers_on_workers_machines_are_as_single_ones(
    overlap: Overlap, discipline: Discipline, servers: int, others: int
) -> None:
    is_fifo = discipline is Discipline.FIFO
    assume(not is_fifo or not overlap.pulls_early)
    sizes = np.outer([1e6, 2e6], np.ones(servers)) / servers
    (one,) = exchange(1).workers
    kinds = replace(
        exchange(overlap=overlap, discipline=discipline, slack=0 if is_fifo else None),
        workers=(replace(one, count=servers, home=0), *([replace(one, count=others)] if others else [])),
        servers=(Servers(count=servers, bytes_per_s=1e7),),
        pushed_bytes=sizes[:, :1],
        pulled_bytes=sizes[:, :1],
    )
    single = replace(
        kinds,
        workers=(*(replace(one, home=server) for server in range(servers)), *((one,) * others)),
        servers=(Servers(bytes_per_s=1e7),) * servers,
        pushed_bytes=sizes,
        pulled_bytes=sizes,
    )
    assert period_s(kinds) == pytest.approx(period_s(single), rel=1e-6)


@st.composite
def unlike(draw: st.DrawFn, disciplines: Sequence[Discipline] = (Discipline.FAIR,)) -> Exchange:
    """Up to three single workers of unlike speed and links, up to two servers, three keys."""
    workers = tuple(
        Worker(
            forward_s=(0.05, 0.02),
            backward_s=0.2 * factor,
            ready_s=(0.2 * factor, 0.12 * factor, 0.03 * factor),
            bytes_per_s=rate,
        )
        for factor, rate in draw(st.lists(st.tuples(st.sampled_from([1.0, 1.7, 3.0]), RATES), min_size=1, max_size=3))
    )
    servers = tuple(Servers(bytes_per_s=rate) for rate in draw(st.lists(RATES, min_size=1, max_size=2)))
    sizes = draw(st.lists(st.sampled_from([0.0, 1e4, 3e5, 7e5]), min_size=3 * len(servers), max_size=3 * len(servers)))
    rows = np.array(sizes).reshape(3, -1)
    rows[rows.sum(axis=1) == 0, 0] = 1e4
    return Exchange(
        workers=workers,
        servers=servers,
        pushed_bytes=rows,
        pulled_bytes=rows,
        key_layer=(0, 1, 1),
        overlap=draw(st.sampled_from(EVERY)),
        discipline=draw(st.sampled_from(disciplines)),
        latency_s=draw(st.sampled_from([0.0, 1e-3])),
    )


@settings(max_examples=60)
@given(unlike(list(Discipline)))
def test_no_overlap_takes_less_than_the_busiest_link_and_the_slowest_worker(whole: Exchange) -> None:
    for overlap in EVERY:
        found = steady(replace(whole, overlap=overlap)).iteration_s
        slowest_s = max(sum(worker.forward_s) + worker.backward_s for worker in whole.workers)
        assert found >= max(slowest_s, whole.busiest_s) * (1 - 1e-9)


@settings(max_examples=60)
@given(unlike(list(Discipline)))
def test_links_and_workers_that_are_all_faster_take_so_much_less(whole: Exchange) -> None:
    slow = replace(whole, latency_s=0.0)
    faster = replace(
        slow,
        workers=tuple(
            replace(
                one,
                forward_s=tuple(seconds / 2 for seconds in one.forward_s),
                backward_s=one.backward_s / 2,
                ready_s=tuple(seconds / 2 for seconds in one.ready_s),
                bytes_per_s=2 * one.bytes_per_s,
            )
            for one in slow.workers
        ),
        servers=tuple(replace(one, bytes_per_s=2 * one.bytes_per_s) for one in slow.servers),
    )
    assert 2 * period_s(faster) == pytest.approx(period_s(slow), rel=1e-6)


@settings(max_examples=30)
@given(unlike([Discipline.FAIR, Discipline.PRIORITY]))
def test_messages_of_a_connection_follow_one_another_and_sums_their_gradients(whole: Exchange) -> None:
    found = steady(whole)
    for (worker, server, is_pull), group in itertools.groupby(
        sorted(found.transfers, key=lambda one: (one.worker, one.server, one.is_pull)),
        key=lambda one: (one.worker, one.server, one.is_pull),
    ):
        of_one = list(group)
        assert all(before.end_s <= after.start_s + 1e-9 for before, after in itertools.pairwise(of_one))
        rows = whole.pulled_bytes if is_pull else whole.pushed_bytes
        rate = min(whole.workers[worker].bytes_per_s, whole.servers[server].bytes_per_s)
        for one in of_one:
            size = 0.0 if one.key is None else rows[one.key, server]
            assert one.end_s - one.start_s >= size / rate - 1e-9
    ends: dict[tuple[int, int | None, int], float] = {}
    for one in found.transfers:
        part = (one.iteration, one.key, one.server)
        if one.is_pull:  # no sum leaves before the last gradient has arrived
            assert one.start_s >= ends[part] - 1e-9
        else:
            ends[part] = max(ends.get(part, 0.0), one.end_s)


def test_workers_that_nothing_holds_together_fall_apart_and_take_turns() -> None:
    one = replace(exchange(1).workers[0], backward_s=0.4, ready_s=(0.4, 0.3))
    together = replace(exchange(), workers=(one, one))
    apart = steady(replace(together, stagger_s=together.busiest_s / 2))
    assert steady(together).lag == pytest.approx(0, abs=1e-9)
    assert apart.lag > 0.05
    assert apart.iteration_s < 0.95 * period_s(together)


def test_faster_links_help_and_a_co_located_server_saves_its_workers_way() -> None:
    assert period_s(exchange(slack=0, rate=2e7)) < period_s(exchange(slack=0))
    assert period_s(exchange(slack=0, is_co_located=True)) == pytest.approx(0.3 + 0.2 + 0.2)


def test_by_priority_the_layer_that_runs_forward_first_goes_first() -> None:
    # Three keys of 1 MB: the last two layers' are ready after 0.1 s, the first one's after 0.15 s, while one is on its way.
    (one,) = exchange(1).workers
    rows = np.full((3, 1), 1e6)
    whole = replace(
        exchange(1),
        workers=(replace(one, forward_s=(0.3, 0.0, 0.0), ready_s=(0.15, 0.1, 0.1)),),
        pushed_bytes=rows,
        pulled_bytes=rows,
        key_layer=(0, 1, 2),
        overlap=Overlap.PUSH_PULL_FORWARD,
    )
    # In order: pushed by 0.2, 0.3 and 0.4 s, back at 0.5 s. By priority the first layer's is pushed from 0.2 to 0.3 s,
    # and is back at 0.4 s; the other one, at 0.5 s, beside the forward pass.
    assert period_s(whole) == pytest.approx(0.5 + 0.3)
    assert period_s(replace(whole, discipline=Discipline.PRIORITY)) == pytest.approx(0.4 + 0.3)


def test_latency_and_pauses_are_paid_once_an_iteration() -> None:
    plain = period_s(exchange(overlap=Overlap.PUSH_PULL))
    assert period_s(exchange(overlap=Overlap.PUSH_PULL, latency_s=0.1)) == pytest.approx(plain + 0.2)
    computing = exchange(overlap=Overlap.PUSH_PULL, rate=1e12)
    assert period_s(replace(computing, pause_s=0.1)) == pytest.approx(period_s(computing) + 0.1)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ModelError, match="a size for each key and server"):
        exchange(key_layer=(0,))
    with pytest.raises(ModelError, match="layers that there are"):
        exchange(key_layer=(0, 2))
    with pytest.raises(ModelError, match="given one by one"):
        exchange(servers=(Servers(count=2, bytes_per_s=1.0),), discipline=Discipline.FIFO)
    with pytest.raises(ModelError, match="no sum is sent early"):
        exchange(overlap=Overlap.PUSH_PULL, slack=0)
    with pytest.raises(ModelError, match="as many as those"):
        exchange(workers=2, servers=(Servers(count=3, bytes_per_s=1.0),), is_co_located=True)
    with pytest.raises(ModelError, match="one on each way a finite one"):
        Fabric(bytes_per_s=(0.0,), crossing=())
    with pytest.raises(ModelError, match="the links that there are"):
        Fabric(bytes_per_s=(1.0,), crossing=(((1, 1),),))


# -- first come first served: closed forms and recursions of the synchronous model are special cases ---------------------

seconds = st.floats(0.01, 4.0)


def behind_a_barrier(
    passes_s: Sequence[tuple[float, float]],
    pushed: Sequence[Sequence[float]],
    pulled: Sequence[Sequence[float]],
    ready: Sequence[float],
    *,
    server_bytes_per_s: Sequence[float],
    bytes_per_s: float = math.inf,
    overlap: Overlap = Overlap.PUSH,
) -> Exchange:
    """Workers of one layer, whose keys are ready after the given shares of each one's backward pass."""
    return Exchange(
        workers=tuple(
            Worker(
                forward_s=(forward_s,),
                backward_s=backward_s,
                ready_s=tuple(backward_s * share for share in ready),
                bytes_per_s=bytes_per_s,
            )
            for forward_s, backward_s in passes_s
        ),
        servers=tuple(Servers(bytes_per_s=rate) for rate in server_bytes_per_s),
        pushed_bytes=np.array(pushed),
        pulled_bytes=np.array(pulled),
        key_layer=(0,) * len(ready),
        overlap=overlap,
        slack=0,
        discipline=Discipline.FIFO,
    )


@given(st.lists(seconds, min_size=1, max_size=5), seconds, seconds)
def test_with_unlimited_workers_links_an_iteration_is_algorithm_1s(
    compute_s: list[float], push_s: float, pull_s: float
) -> None:
    whole = behind_a_barrier(
        [(one, 0.0) for one in compute_s], [[push_s]], [[pull_s]], [1.0], server_bytes_per_s=[1.0], overlap=Overlap.NONE
    )
    expected_s = algorithm_1_time_s(compute_s, BspExchange(push_s=push_s, pull_s=pull_s))
    assert period_s(whole) == pytest.approx(expected_s)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4), seconds, seconds, st.integers(1, 5))
def test_with_pushes_of_equal_parts_it_is_algorithm_2s_wherever_that_holds(
    passes_s: list[tuple[float, float]], push_s: float, pull_s: float, parts: int
) -> None:
    whole = behind_a_barrier(
        passes_s,
        [[push_s / parts]] * parts,
        [[pull_s / parts]] * parts,
        [(part + 1) / parts for part in range(parts)],
        server_bytes_per_s=[1.0],
    )
    forward_s, backward_s = zip(*passes_s, strict=True)
    server = BspExchange(push_s=push_s, pull_s=pull_s)
    assert period_s(whole) == pytest.approx(segments_time_s(forward_s, backward_s, server, num_pushes=parts))
    if push_s >= max(backward_s):  # the link is the slower one: Algorithm 2 takes that for granted
        assert period_s(whole) == pytest.approx(algorithm_2_time_s(forward_s, backward_s, server, num_pushes=parts))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4),
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=2, max_size=2).filter(any), min_size=1, max_size=4),
    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=2, max_size=2),
    st.sampled_from([0.4, 2.0, math.inf]),
    st.data(),
)
def test_on_several_servers_it_is_that_of_the_model_of_links_which_pulls_all_at_once(
    passes_s: list[tuple[float, float]],
    placed: list[list[float]],
    rates: list[float],
    bytes_per_s: float,
    data: st.DataObject,
) -> None:
    shares = st.lists(st.sampled_from([0.1, 0.4, 0.7, 1.0]), min_size=len(placed) - 1, max_size=len(placed) - 1)
    ready = [*sorted(data.draw(shares)), 1.0]
    together = [np.sum(placed, axis=0).tolist(), *([[0.0, 0.0]] * (len(placed) - 1))]
    whole = behind_a_barrier(passes_s, placed, placed, ready, server_bytes_per_s=rates, bytes_per_s=bytes_per_s)
    at_once = replace(whole, pulled_bytes=np.array(together))
    links = Links(server_bytes_per_s=tuple(rates), worker_bytes_per_s=(bytes_per_s,) * len(passes_s))
    ready_s = [[forward_s + share * backward_s for share in ready] for forward_s, backward_s in passes_s]
    expected_s = iteration_time_s(ready_s, placed, links)
    assert period_s(at_once) == pytest.approx(expected_s)
    assert period_s(whole) >= expected_s * (1 - 1e-9)  # key by key, a worker's link may wait for one server


@settings(max_examples=40)
@given(
    st.lists(st.tuples(seconds, seconds), min_size=2, max_size=4),
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=2, max_size=2).filter(any), min_size=1, max_size=4),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.data(),
)
def test_with_servers_on_workers_machines_pushes_end_as_in_that_model(
    passes_s: list[tuple[float, float]], placed: list[list[float]], rate: float, data: st.DataObject
) -> None:
    shares = st.lists(st.sampled_from([0.1, 0.4, 0.7, 1.0]), min_size=len(placed) - 1, max_size=len(placed) - 1)
    ready = [*sorted(data.draw(shares)), 1.0]
    nothing = [[0.0, 0.0]] * len(placed)
    apart = behind_a_barrier(passes_s, placed, nothing, ready, server_bytes_per_s=[rate] * 2, bytes_per_s=rate)
    homes = [0, 1, *((None,) * (len(passes_s) - 2))]
    workers = tuple(replace(one, home=home) for one, home in zip(apart.workers, homes, strict=True))
    links = Links(server_bytes_per_s=(rate,) * 2, worker_bytes_per_s=(rate,) * len(homes), worker_homes=tuple(homes))
    ready_s = [[forward_s + share * backward_s for share in ready] for forward_s, backward_s in passes_s]
    ends_s = push_end_s(ready_s, placed, links)
    assert period_s(replace(apart, workers=workers)) == pytest.approx(max(*ends_s, *map(sum, passes_s)))


# -- a second physics: the same exchange in small steps of time ---------------------------------------------------------

STEP_S = 4e-4


class Stepped:
    """Single workers of an exchange without a barrier, step by step: states are looked at, and nothing is foreseen."""

    def __init__(self, whole: Exchange) -> None:
        self.whole, self.now_s = whole, 0.0
        workers, keys = len(whole.workers), len(whole.key_layer)
        self.sent = [[0] * keys for _ in range(workers)]  # iterations whose gradient is on its way
        servers = range(len(whole.servers))
        pushed, pulled = (
            [(key, server) for key in range(keys) for server in servers if sizes[key, server]]
            for sizes in (whole.pushed_bytes, whole.pulled_bytes)
        )
        # there, back, answered: by key and server, of each worker the iterations whose gradient has arrived, whose sum
        # has, and whose sum was sent
        self.there = {one: [0] * workers for one in pushed}
        self.back, self.answered = ({one: [0] * workers for one in pulled} for _ in range(2))
        self.queues: dict[tuple[int, int, bool], list[list[float]]] = {}
        self.layer = [0] * workers  # whose forward runs; the number of layers: backward
        self.left_s = [worker.forward_s[0] for worker in whole.workers]
        self.iteration = [1] * workers
        self.begins: list[list[float]] = [[] for _ in whole.workers]

    def step(self) -> None:
        for worker in range(len(self.whole.workers)):
            self.compute(worker)
            self.push(worker)
        self.answer()
        self.move()
        self.now_s += STEP_S

    def has(self, worker: int, keys: list[int]) -> bool:
        """Whether the sums of the iteration before are there."""
        number = self.iteration[worker] - 1
        return all(back[worker] >= number for (key, _), back in self.back.items() if key in keys)

    def compute(self, worker: int) -> None:
        one, layers = self.whole.workers[worker], len(self.whole.workers[worker].forward_s)
        layer, keys = self.layer[worker], list(range(len(self.whole.key_layer)))
        if layer < layers:
            if self.whole.overlap is Overlap.PUSH_PULL_FORWARD:
                keys = [key for key in keys if self.whole.key_layer[key] == layer]
            if self.left_s[worker] == one.forward_s[layer] and not self.has(worker, keys):
                return
        self.left_s[worker] -= STEP_S
        if self.left_s[worker] > STEP_S / 2:
            return
        if layer == layers:
            self.iteration[worker] += 1
            self.layer[worker], self.left_s[worker] = 0, one.forward_s[0]
        else:
            self.layer[worker] += 1
            if self.layer[worker] == layers:
                self.begins[worker].append(self.now_s)
            self.left_s[worker] = one.backward_s if self.layer[worker] == layers else one.forward_s[layer + 1]

    def push(self, worker: int) -> None:
        one = self.whole.workers[worker]
        if not self.begins[worker]:
            return
        passed_s, number = self.now_s - self.begins[worker][-1], len(self.begins[worker])
        for key in sorted(range(len(one.ready_s)), key=lambda key: (one.ready_s[key], key)):
            ready_s = one.ready_s[key] if self.whole.overlap.pushes_early else max(one.backward_s, *one.ready_s)
            if self.sent[worker][key] < number and passed_s >= ready_s - STEP_S / 2:
                self.sent[worker][key] = number
                self.queue(worker, key, number, is_pull=False)

    def queue(self, worker: int, key: int, number: int, *, is_pull: bool, only: int | None = None) -> None:
        sizes = self.whole.pulled_bytes if is_pull else self.whole.pushed_bytes
        for server in range(len(self.whole.servers)):
            if sizes[key, server] and only in (None, server):
                self.queues.setdefault((worker, server, is_pull), []).append([sizes[key, server], key, number])

    def answer(self) -> None:
        """Send the sums that are complete, and asked for: behind the backward pass, or all gradients, or at once."""
        for (key, server), answered in self.answered.items():
            complete = min(self.there[key, server])
            for worker, own in enumerate(self.whole.workers):
                number, begins = answered[worker] + 1, self.begins[worker]
                if complete < number or len(begins) < number:
                    continue
                done_s = max(own.backward_s, *own.ready_s)
                is_asked = True
                if self.whole.overlap is Overlap.NONE:
                    is_asked = all(there[worker] >= number for (_, one), there in self.there.items() if one == server)
                elif self.whole.overlap is Overlap.PUSH:
                    is_asked = len(begins) > number or self.now_s - begins[-1] >= done_s - STEP_S / 2
                if is_asked:
                    answered[worker] = number
                    self.queue(worker, key, number, is_pull=True, only=server)

    def move(self) -> None:
        """Let every connection go as fast as its links allow, in forty equal parts of what links carry."""
        busy = [flow for flow, queue in self.queues.items() if queue]
        links: dict[tuple[str, int, bool], float] = {}
        ends = {}
        for worker, server, is_pull in busy:
            ends[worker, server, is_pull] = (("w", worker, is_pull), ("s", server, is_pull))
            links["w", worker, is_pull] = self.whole.workers[worker].bytes_per_s * STEP_S
            links["s", server, is_pull] = self.whole.servers[server].bytes_per_s * STEP_S
        part = min(links.values(), default=0.0) / 40
        rising, moved, full = sorted(busy), dict.fromkeys(busy, 0.0), set()
        while rising:
            for flow in rising:
                one, other = ends[flow]
                if links[one] >= part and links[other] >= part:
                    moved[flow] += part
                    links[one] -= part
                    links[other] -= part
                else:
                    full.add(flow)
            rising = [flow for flow in rising if flow not in full]
        for (worker, server, is_pull), size in moved.items():
            queue, left = self.queues[worker, server, is_pull], size
            while queue and left > 0:
                taken = min(left, queue[0][0])
                queue[0][0] -= taken
                left -= taken
                if queue[0][0] > 1e-6:
                    break
                _, key, number = queue.pop(0)
                (self.back if is_pull else self.there)[int(key), server][worker] = int(number)


@settings(max_examples=6)
@given(unlike())
def test_iterations_are_those_of_a_second_physics_in_small_steps(whole: Exchange) -> None:
    whole = replace(whole, latency_s=0.0)
    found = steady(whole)
    stepped = Stepped(whole)
    while min(map(len, stepped.begins)) < len(found.backward_begins_s[0]) and stepped.now_s < 20:
        stepped.step()
    for own, seen in zip(found.backward_begins_s, stepped.begins, strict=True):
        number = min(len(own), len(seen))
        assert number > 1
        assert list(own[:number]) == pytest.approx(seen[:number], rel=0.02, abs=15 * STEP_S)
