import heapq
import math
from dataclasses import dataclass
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cases.forms.bsp_server import (
    BspExchange,
    algorithm_1_time_s,
    algorithm_2_time_s,
    segment_ready_s,
    segments_time_s,
)
from planner.cost import Floats
from planner.errors import ModelError
from planner.models.servers import (
    Links,
    iteration_time_s,
    place_largest_first,
    place_round_robin,
    place_sliced,
    pull_time_s,
    push_end_s,
    sliced_push_end_s,
)

seconds = st.integers(0, 20).map(float)
sizes = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=6)
rates = st.sampled_from([0.5, 1.0, 2.0, 3.0])
any_rates = rates | st.just(math.inf)
SLACK_S = 1e-9  # of floating point
LINKS = Links(server_bytes_per_s=(1.0,), worker_bytes_per_s=(1.0,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Gradients, where they go, and over which links."""

    ready_s: Floats
    placed_bytes: Floats
    links: Links


@st.composite
def instances(draw: st.DrawFn, worker_rates: st.SearchStrategy[float] = any_rates, homes: bool = False) -> Instance:
    size = draw(sizes)
    servers = draw(st.lists(rates, min_size=1, max_size=3))
    workers = draw(st.lists(worker_rates, min_size=1, max_size=4))
    ready = draw(
        st.lists(
            st.lists(seconds, min_size=len(size), max_size=len(size)), min_size=len(workers), max_size=len(workers)
        )
    )
    places = [
        place_round_robin(size, num_servers=len(servers)),
        place_largest_first(size, server_bytes_per_s=servers),
        place_sliced(size, server_bytes_per_s=servers),
    ]
    return Instance(
        ready_s=np.array(ready),
        placed_bytes=draw(st.sampled_from(places)),
        links=Links(
            server_bytes_per_s=tuple(servers),
            worker_bytes_per_s=tuple(workers),
            worker_homes=tuple(
                (*range(len(servers)), *[None] * len(workers))[: len(workers)] if homes else [None] * len(workers)
            ),
        ),
    )


def simulate(given: Instance, num_pieces: int) -> list[float]:
    """Send tensors piece by piece, event by event: when each server has everything, and 0 if it gets nothing.

    A link has a queue and a piece under way. A piece that is through a worker's link joins the queue of each server
    that gets a part of it.
    """
    number = count()
    events: list[tuple[float, int, str, int, int]] = []  # time, tie-break, what happens, where, tensor
    queues: dict[tuple[str, int], list[tuple[int, float]]] = {}  # link -> waiting (tensor, bytes)
    busy: set[tuple[str, int]] = set()
    ends = [0.0] * len(given.links.server_bytes_per_s)
    rate_of = {("worker", i): rate for i, rate in enumerate(given.links.worker_bytes_per_s)}
    rate_of |= {("server", i): rate for i, rate in enumerate(given.links.server_bytes_per_s)}
    for worker, row in enumerate(given.ready_s):
        for tensor, ready in enumerate(row):
            heapq.heappush(events, (ready, next(number), "ready", worker, tensor))

    def serve(now: float, link: tuple[str, int]) -> None:
        if link in busy or not queues.get(link):
            return
        tensor, size = queues[link].pop(0)
        busy.add(link)
        heapq.heappush(events, (now + size / rate_of[link], next(number), f"{link[0]} done", link[1], tensor))

    while events:
        now, _, what, where, tensor = heapq.heappop(events)
        parts = given.placed_bytes[tensor] / num_pieces
        home = given.links.homes[where] if what != "server done" else None
        if home is not None:  # no link on the own machine
            parts = np.where(np.arange(len(parts)) == home, 0.0, parts)
        if what == "ready":
            if home is not None and given.placed_bytes[tensor, home]:
                ends[home] = max(ends[home], now)
            queues.setdefault(("worker", where), []).extend([(tensor, float(parts.sum()))] * num_pieces)
            serve(now, ("worker", where))
        elif what == "worker done":
            busy.discard(("worker", where))
            for server in np.flatnonzero(parts):
                queues.setdefault(("server", int(server)), []).append((tensor, float(parts[server])))
                serve(now, ("server", int(server)))
            serve(now, ("worker", where))
        else:
            busy.discard(("server", where))
            ends[where] = max(ends[where], now)
            serve(now, ("server", where))
    return ends


# -- against a simulation of every link ------------------------------------------------------------------------------


@pytest.mark.parametrize("homes", [False, True])
@given(st.data())
def test_with_unlimited_workers_links_a_simulation_agrees_exactly(homes: bool, data: st.DataObject) -> None:
    drawn = data.draw(instances(worker_rates=st.just(math.inf), homes=homes))
    found = push_end_s(drawn.ready_s, drawn.placed_bytes, drawn.links)
    assert found.tolist() == pytest.approx(simulate(drawn, num_pieces=1))


@pytest.mark.parametrize("homes", [False, True])
@given(st.data(), st.sampled_from([1, 4, 8, 32]))
def test_a_simulation_agrees_but_for_one_piece_on_a_workers_link(
    homes: bool, data: st.DataObject, num_pieces: int
) -> None:
    """``homes``: whether servers stand on workers' machines, where what goes to them needs no link."""
    drawn = data.draw(instances(homes=homes))
    found = push_end_s(drawn.ready_s, drawn.placed_bytes, drawn.links)
    piece_s = drawn.placed_bytes.sum(axis=1).max() / num_pieces / min(drawn.links.worker_bytes_per_s)
    for ours, theirs in zip(found, simulate(drawn, num_pieces), strict=True):
        assert ours - SLACK_S <= theirs <= ours + piece_s + SLACK_S


@given(instances(homes=True))
def test_a_server_at_home_never_makes_an_iteration_longer(drawn: Instance) -> None:
    apart = Links(server_bytes_per_s=drawn.links.server_bytes_per_s, worker_bytes_per_s=drawn.links.worker_bytes_per_s)
    at_home_s = iteration_time_s(drawn.ready_s, drawn.placed_bytes, drawn.links)
    assert at_home_s <= iteration_time_s(drawn.ready_s, drawn.placed_bytes, apart) + SLACK_S


@given(instances(), st.integers(1, 3))
def test_equal_workers_may_be_counted_instead_of_listed(drawn: Instance, number: int) -> None:
    servers, rates = drawn.links.server_bytes_per_s, drawn.links.worker_bytes_per_s
    listed = Links(server_bytes_per_s=servers, worker_bytes_per_s=rates * number)
    counted = Links(server_bytes_per_s=servers, worker_bytes_per_s=rates, worker_counts=(number,) * len(rates))
    long, short = (
        iteration_time_s(ready, drawn.placed_bytes, links)
        for ready, links in ((np.tile(drawn.ready_s, (number, 1)), listed), (drawn.ready_s, counted))
    )
    assert long == pytest.approx(short)


def test_two_machines_that_serve_themselves_exchange_half() -> None:
    links = Links(server_bytes_per_s=(1, 1), worker_bytes_per_s=(1, 1), worker_homes=(0, 1))
    placed = place_sliced([8], server_bytes_per_s=[1, 1])
    assert push_end_s([[1], [1]], placed, links).tolist() == [5, 5]
    assert pull_time_s(placed, links) == 4


def test_a_simulation_of_ever_smaller_pieces_converges() -> None:
    rng = np.random.default_rng(4)
    size = rng.uniform(1, 50, 12)
    drawn = Instance(
        ready_s=np.cumsum(rng.uniform(0, 4, (5, 12)), axis=1),
        placed_bytes=place_largest_first(size, server_bytes_per_s=[6, 9, 4]),
        links=Links(server_bytes_per_s=(6, 9, 4), worker_bytes_per_s=(3, 5, 2, 8, math.inf)),
    )
    found = push_end_s(drawn.ready_s, drawn.placed_bytes, drawn.links)
    assert simulate(drawn, num_pieces=2000) == pytest.approx(found.tolist(), rel=1e-4)


# -- one server is the paper's ---------------------------------------------------------------------------------------


@given(st.lists(seconds, min_size=1, max_size=5), sizes, rates)
def test_one_server_is_algorithm_1(compute_s: list[float], size: list[float], rate: float) -> None:
    links = Links(server_bytes_per_s=(rate,), worker_bytes_per_s=(math.inf,) * len(compute_s))
    ready = np.repeat(np.array(compute_s)[:, None], len(size), axis=1)
    exchange = BspExchange.of(gradient_bytes=sum(size), parameter_bytes=sum(size), bandwidth_bytes_per_s=rate)
    found = iteration_time_s(ready, place_round_robin(size, num_servers=1), links)
    if sum(size):
        assert found == pytest.approx(algorithm_1_time_s(compute_s, exchange))


@given(
    st.lists(st.tuples(seconds, seconds), min_size=1, max_size=5),
    st.sampled_from([1, 2, 4, 8]), st.integers(1, 40), rates, st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_one_server_is_algorithm_2_and_its_segments(
    pairs: list[tuple[float, float]], k: int, total_bytes: int, rate: float, overhead_s: float
) -> None:
    forward_s, backward_s = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    links = Links(server_bytes_per_s=(rate,), worker_bytes_per_s=(math.inf,) * len(pairs))
    placed = place_round_robin([total_bytes / k] * k, num_servers=1)
    exchange = BspExchange.of(
        gradient_bytes=total_bytes, parameter_bytes=total_bytes, bandwidth_bytes_per_s=rate, overhead_s=overhead_s
    )
    ready = segment_ready_s(forward_s, backward_s, num_pushes=k)
    first = np.repeat(ready[:, :1], k, axis=1)
    for time_s, when in ((algorithm_2_time_s, first), (segments_time_s, ready)):
        found = iteration_time_s(when, placed, links, overhead_s=overhead_s)
        assert found == pytest.approx(time_s(forward_s, backward_s, exchange, num_pushes=k))


@given(instances(worker_rates=st.just(math.inf)))
def test_servers_that_share_every_tensor_are_one_with_all_their_bandwidth(drawn: Instance) -> None:
    size, links = drawn.placed_bytes.sum(axis=1), drawn.links
    one = Links(server_bytes_per_s=(sum(links.server_bytes_per_s),), worker_bytes_per_s=links.worker_bytes_per_s)
    sliced = place_sliced(size, server_bytes_per_s=links.server_bytes_per_s)
    whole_s = iteration_time_s(drawn.ready_s, size[:, None], one)
    assert iteration_time_s(drawn.ready_s, sliced, links) == pytest.approx(whole_s)
    # No placement is better.
    assert iteration_time_s(drawn.ready_s, drawn.placed_bytes, links) >= whole_s - SLACK_S


# -- properties ------------------------------------------------------------------------------------------------------


@given(instances())
def test_every_link_carries_its_bytes_and_none_sooner_than_they_are_ready(drawn: Instance) -> None:
    end = push_end_s(drawn.ready_s, drawn.placed_bytes, drawn.links)
    num_workers, load = len(drawn.ready_s), drawn.placed_bytes.sum(axis=0)
    for server, rate in enumerate(drawn.links.server_bytes_per_s):
        mine = drawn.placed_bytes[:, server] > 0
        if not mine.any():
            assert end[server] == 0
            continue
        first, last = drawn.ready_s[:, mine].min(), drawn.ready_s[:, mine].max()
        assert end[server] >= max(first + num_workers * load[server] / rate, last) - SLACK_S
    total, slowest = drawn.placed_bytes.sum(), min(drawn.links.worker_bytes_per_s)
    latest = drawn.ready_s.max() + total / slowest + max(num_workers * load / drawn.links.server_bytes_per_s)
    assert end.max() <= latest + SLACK_S
    if total and len(drawn.ready_s) == 1:
        assert end.max() >= drawn.ready_s[:, drawn.placed_bytes.sum(axis=1) > 0].min() + total / slowest - SLACK_S


@given(instances(), st.integers(0, 9), st.booleans())
def test_more_bandwidth_never_hurts(drawn: Instance, index: int, is_server: bool) -> None:
    rates_of = [list(drawn.links.server_bytes_per_s), list(drawn.links.worker_bytes_per_s)]
    mine = rates_of[0 if is_server else 1]
    mine[index % len(mine)] *= 2
    faster = Links(server_bytes_per_s=tuple(rates_of[0]), worker_bytes_per_s=tuple(rates_of[1]))
    before = iteration_time_s(drawn.ready_s, drawn.placed_bytes, drawn.links)
    assert iteration_time_s(drawn.ready_s, drawn.placed_bytes, faster) <= before + SLACK_S


@given(instances(), st.integers(0, 99), seconds)
def test_a_later_gradient_never_helps_unless_it_lets_another_pass(drawn: Instance, index: int, extra_s: float) -> None:
    later = drawn.ready_s.copy()
    later[index % len(later)] += extra_s  # a whole worker: its order of sending stays
    before = push_end_s(drawn.ready_s, drawn.placed_bytes, drawn.links)
    assert all(push_end_s(later, drawn.placed_bytes, drawn.links) >= before - SLACK_S)


@given(instances())
def test_names_of_workers_and_servers_do_not_count(drawn: Instance) -> None:
    mirrored = Links(
        server_bytes_per_s=drawn.links.server_bytes_per_s[::-1], worker_bytes_per_s=drawn.links.worker_bytes_per_s[::-1]
    )
    found = iteration_time_s(drawn.ready_s[::-1], drawn.placed_bytes[:, ::-1], mirrored)
    assert found == pytest.approx(iteration_time_s(drawn.ready_s, drawn.placed_bytes, drawn.links))


@given(instances())
def test_fast_workers_links_are_as_good_as_unlimited_ones(drawn: Instance) -> None:
    workers = len(drawn.links.worker_bytes_per_s)
    fast, unlimited = (
        Links(server_bytes_per_s=drawn.links.server_bytes_per_s, worker_bytes_per_s=(rate,) * workers)
        for rate in (1e9, math.inf)
    )
    times_s = [iteration_time_s(drawn.ready_s, drawn.placed_bytes, links) for links in (fast, unlimited)]
    assert times_s[0] == pytest.approx(times_s[1], rel=1e-6, abs=1e-6)


def test_a_workers_own_link_is_a_second_bottleneck() -> None:
    # Two servers of 4 B/s each for 8 bytes, and one worker: its 1 B/s takes 8 s each way.
    links = Links(server_bytes_per_s=(4, 4), worker_bytes_per_s=(1,))
    placed = place_round_robin([4, 4], num_servers=2)
    assert push_end_s([[0, 0]], placed, links).tolist() == [4, 8]
    assert pull_time_s(placed, links) == 8


def test_the_rest_of_a_tensor_flows_while_its_beginning_is_received() -> None:
    # Not 10 + 10 s: both links carry the tensor at the same time.
    links = Links(server_bytes_per_s=(1,), worker_bytes_per_s=(1,))
    assert push_end_s([[3]], [[10]], links).tolist() == [13]


def test_what_is_pulled_may_differ_from_what_is_pushed() -> None:
    links = Links(server_bytes_per_s=(2,), worker_bytes_per_s=(math.inf, math.inf))
    assert iteration_time_s([[1], [1]], [[2]], links, parameters_bytes=[[6]]) == 1 + 2 + 6


@given(sizes, st.lists(rates, min_size=1, max_size=4))
def test_placements_hold_every_byte(size: list[float], servers: list[float]) -> None:
    places = (
        place_round_robin(size, num_servers=len(servers)),
        place_largest_first(size, server_bytes_per_s=servers),
        place_sliced(size, server_bytes_per_s=servers),
    )
    for placed in places:
        assert placed.sum(axis=1).tolist() == pytest.approx(size)


def test_largest_first_keeps_vggs_first_classifier_layer_alone() -> None:
    placed = place_largest_first([1, 2, 100, 3, 4], server_bytes_per_s=[1, 1])
    assert placed.sum(axis=0).tolist() == [100, 10]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Links(server_bytes_per_s=(), worker_bytes_per_s=(1,)), "not 0 servers and 1 workers"),
        (lambda: Links(server_bytes_per_s=(1,), worker_bytes_per_s=()), "not 1 servers and 0 workers"),
        (
            lambda: Links(server_bytes_per_s=(1,), worker_bytes_per_s=(1,), worker_counts=(1, 1)),
            "one entry for each of 1",
        ),
        (lambda: Links(server_bytes_per_s=(1,), worker_bytes_per_s=(1,), worker_counts=(0,)), r"1 or more, not \(0,\)"),
        (lambda: Links(server_bytes_per_s=(1,), worker_bytes_per_s=(1, 1), worker_homes=(0, 0)), r"different servers"),
        (
            lambda: Links(server_bytes_per_s=(1,), worker_bytes_per_s=(1,), worker_counts=(2,), worker_homes=(0,)),
            "own entry",
        ),
        (lambda: Links(server_bytes_per_s=(0,), worker_bytes_per_s=(1,)), r"finite and > 0, not \(0,\)"),
        (lambda: Links(server_bytes_per_s=(1,), worker_bytes_per_s=(0,)), r"must be > 0, not \(0,\)"),
        (lambda: place_round_robin([1], num_servers=0), "at least 1 server, not 0"),
        (lambda: place_sliced([-1], server_bytes_per_s=[1]), r"not \[-1.0\]"),
        (lambda: push_end_s([[1, 2]], [[1]], LINKS), r"1 workers and 1 tensors make \(1, 1\)"),
        (lambda: push_end_s([[1]], [[1, 1]], LINKS), "tensors as rows and 1 columns"),
        (lambda: push_end_s([[-1]], [[1]], LINKS), "ready_s must be finite and >= 0; its least is -1"),
        (lambda: push_end_s([[1]], [[-1]], LINKS), "placed_bytes must be finite and >= 0; its least is -1"),
        (lambda: iteration_time_s([[1]], [[1]], LINKS, overhead_s=-1), "overhead_s must be finite and >= 0, not -1"),
    ],
)
def test_bad_input_is_refused_with_the_constraint_and_the_number(call: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call()  # type: ignore[operator]


@given(st.data())
def test_slices_counted_by_kinds_of_servers_end_when_a_table_of_them_does(data: st.DataObject) -> None:
    servers, tensors = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    counts = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    home = data.draw(st.none() | st.integers(0, len(counts) - 1))
    numbers = st.floats(0.5, 20.0)
    sizes = np.array(data.draw(st.lists(st.just(0.0) | numbers, min_size=tensors, max_size=tensors)))
    ready = [np.sort(data.draw(st.lists(numbers, min_size=tensors, max_size=tensors))) for _ in counts]
    rates, server_rate = [data.draw(numbers) for _ in counts], data.draw(numbers)
    entries: list[tuple[int, int, int | None]] = []
    for kind, number in enumerate(counts):
        at_home = min(number, servers) if kind == home else 0
        entries += [(kind, 1, server) for server in range(at_home)]
        entries += [(kind, number - at_home, None)] * (number > at_home)
    links = Links(
        server_bytes_per_s=(server_rate,) * servers,
        worker_bytes_per_s=tuple(rates[kind] for kind, _, _ in entries),
        worker_counts=tuple(number for _, number, _ in entries),
        worker_homes=tuple(server for _, _, server in entries),
    )
    table = push_end_s(
        np.array([ready[kind] for kind, _, _ in entries]),
        place_sliced(sizes, server_bytes_per_s=links.server_bytes_per_s),
        links,
    )
    counted = sliced_push_end_s(
        ready,
        sizes,
        num_servers=servers,
        server_bytes_per_s=server_rate,
        worker_bytes_per_s=rates,
        worker_counts=counts,
        home_kind=home,
    )
    assert counted == pytest.approx(table, rel=1e-9)
