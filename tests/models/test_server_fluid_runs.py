"""Fluid links: fairness against an independent referee, and what holds for any model of links."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models.server_fluid import (
    Exchange,
    ExchangeWorker,
    FairFluid,
    Fluid,
    Routes,
    Transport,
    WindowFluid,
    begins_s,
    max_min_rates_bytes_per_s,
    routes_of,
)

RATES = st.sampled_from([1e6, 2e6, 3e6, 1e7])
TRANSPORT = Transport(window_bytes=262_144.0)
Make = Callable[[Routes], Fluid]
MODELS = pytest.mark.parametrize(
    "make", [FairFluid, lambda routes: WindowFluid(routes, TRANSPORT)], ids=["fair", "tcp"]
)
STEPS_S = 5 * TRANSPORT.coarse_step_s  # deliveries come at the end of a step, and a few steps queue up


@st.composite
def networks(draw: st.DrawFn) -> Routes:
    """Up to five hosts of unlike links, and flows between any two of them."""
    hosts = draw(st.integers(2, 5))
    pairs = [pair for pair in itertools.product(range(hosts), repeat=2) if pair[0] != pair[1]]
    flows = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=8))
    return Routes(
        source=tuple(source for source, _ in flows),
        sink=tuple(sink for _, sink in flows),
        uplink_bytes_per_s=tuple(draw(st.lists(RATES, min_size=hosts, max_size=hosts))),
        downlink_bytes_per_s=tuple(draw(st.lists(RATES, min_size=hosts, max_size=hosts))),
    )


def one_link(flows: int, rate_bytes_per_s: float = 1e7) -> Routes:
    """Flows from as many hosts to one."""
    rates = (rate_bytes_per_s,) * (flows + 1)
    return Routes(
        source=tuple(range(flows)), sink=(flows,) * flows, uplink_bytes_per_s=rates, downlink_bytes_per_s=rates
    )


def ends_s(fluid: Fluid, messages: Sequence[tuple[int, float]]) -> list[float]:
    """Return when each message arrives, all sent at once."""
    ends: dict[int, list[float]] = {}
    for flow, size_bytes in messages:
        fluid.send(flow, size_bytes)
    for _ in range(100_000):
        if fluid.is_idle:
            break
        for flow in fluid.advance(math.inf):
            ends.setdefault(flow, []).append(fluid.now_s)
    assert fluid.is_idle
    return [ends[flow].pop(0) for flow, _ in messages]


def filled_in_tiny_steps(routes: Routes) -> list[float]:
    """All rates rise together by tiny amounts; one stops when a link of its own is full."""
    step, rates = 1e3, [0.0] * routes.num_flows
    rising = set(range(routes.num_flows))
    while rising:
        for flow in rising:
            rates[flow] += step
        for host in range(routes.num_hosts):
            out = [flow for flow in range(routes.num_flows) if routes.source[flow] == host]
            into = [flow for flow in range(routes.num_flows) if routes.sink[flow] == host]
            for flows, rate in ((out, routes.uplink_bytes_per_s[host]), (into, routes.downlink_bytes_per_s[host])):
                if sum(rates[flow] for flow in flows) > rate - len(flows) * step:
                    rising -= set(flows)
    return rates


@settings(max_examples=30)
@given(networks())
def test_rates_are_those_of_links_filled_in_tiny_steps(routes: Routes) -> None:
    found = max_min_rates_bytes_per_s(routes, range(routes.num_flows))
    assert found == pytest.approx(filled_in_tiny_steps(routes), rel=0.05)


@given(networks())
def test_every_flow_crosses_a_full_link_where_none_is_faster(routes: Routes) -> None:
    found = max_min_rates_bytes_per_s(routes, range(routes.num_flows))
    links = [(routes.source, routes.uplink_bytes_per_s), (routes.sink, routes.downlink_bytes_per_s)]
    for flow in range(routes.num_flows):
        fair = False
        for ends, rates in links:
            shared = [other for other in range(routes.num_flows) if ends[other] == ends[flow]]
            total = sum(found[other] for other in shared)
            assert total <= rates[ends[flow]] * (1 + 1e-9)
            is_full = total >= rates[ends[flow]] * (1 - 1e-9)
            fair |= bool(is_full and found[flow] >= max(found[shared]) * (1 - 1e-9))
        assert fair


@MODELS
def test_one_flow_alone_takes_its_size_over_the_rate(make: Make) -> None:
    (end_s,) = ends_s(make(one_link(1)), [(0, 5e6)])
    assert end_s == pytest.approx(0.5, abs=STEPS_S)


@MODELS
@settings(max_examples=20)
@given(routes=networks(), data=st.data())
def test_everything_arrives_and_no_link_carries_more_than_it_can(
    make: Make, routes: Routes, data: st.DataObject
) -> None:
    flows = st.integers(0, routes.num_flows - 1)
    sizes = st.sampled_from([100.0, 1e4, 3e5])
    messages = data.draw(st.lists(st.tuples(flows, sizes), min_size=1, max_size=12))
    end_s = max(ends_s(make(routes), messages))
    for ends, rates in ((routes.source, routes.uplink_bytes_per_s), (routes.sink, routes.downlink_bytes_per_s)):
        for host, rate in enumerate(rates):
            crossing = sum(size_bytes for flow, size_bytes in messages if ends[flow] == host)
            assert end_s >= crossing / rate * (1 - 1e-6) - 1e-6


@MODELS
def test_flows_that_start_together_through_one_link_end_together(make: Make) -> None:
    found = ends_s(make(one_link(4)), [(flow, 2e6) for flow in range(4)])
    assert found == pytest.approx([0.8] * 4, abs=2 * STEPS_S)


@settings(max_examples=20)
@given(networks(), st.floats(1.1, 3.0))
def test_links_that_are_all_faster_finish_sooner_in_proportion(routes: Routes, factor: float) -> None:
    messages = [(flow, 1e5 * (flow + 1)) for flow in range(routes.num_flows)]
    faster = replace(
        routes,
        uplink_bytes_per_s=tuple(factor * rate for rate in routes.uplink_bytes_per_s),
        downlink_bytes_per_s=tuple(factor * rate for rate in routes.downlink_bytes_per_s),
    )
    slow, fast = (ends_s(FairFluid(one), messages) for one in (routes, faster))
    assert fast == pytest.approx([end_s / factor for end_s in slow])


def test_a_message_waits_for_the_one_before_it() -> None:
    assert ends_s(FairFluid(one_link(1, 1e6)), [(0, 1e6), (0, 2e6)]) == pytest.approx([1.0, 3.0])


def test_a_late_connection_from_the_same_host_stays_behind() -> None:
    routes = Routes(source=(0, 0), sink=(1, 2), uplink_bytes_per_s=(1e7,) * 3, downlink_bytes_per_s=(1e7,) * 3)
    fluid = WindowFluid(routes, TRANSPORT)
    fluid.send(0, 2e6)
    while fluid.now_s < 0.05:
        fluid.advance(0.05)
    fluid.send(1, 2e6)
    ends: list[int] = []
    while not fluid.is_idle:
        ends += fluid.advance(math.inf)
        if ends == [0]:
            break
    # A fair share would let it end after 0.35 s.
    assert fluid.now_s < 0.27


def test_acknowledgements_that_queue_slow_the_other_direction_down() -> None:
    # Three hosts push to one that sends back to a fourth: its acknowledgements wait behind three windows.
    rates = (1e7,) * 5
    routes = Routes(source=(0, 1, 2, 4), sink=(4, 4, 4, 3), uplink_bytes_per_s=rates, downlink_bytes_per_s=rates)
    messages = [(0, 3e6), (1, 3e6), (2, 3e6), (3, 3e6)]
    assert ends_s(FairFluid(routes), messages)[3] == pytest.approx(0.3)
    assert ends_s(WindowFluid(routes, TRANSPORT), messages)[3] > 0.4


@given(st.integers(1, 40))
@settings(max_examples=10)
def test_a_pause_makes_a_window_small_but_never_too_small(pauses: int) -> None:
    transport = replace(TRANSPORT, round_trip_s=0.02, pause_s=0.1)
    fluid = WindowFluid(one_link(1), transport)
    fresh_s = ends_s(WindowFluid(one_link(1), transport), [(0, 1e6)])[0]
    ends_s(fluid, [(0, 1e6)])
    used_s = fluid.now_s
    fluid.advance(used_s + 0.1 * pauses + 0.05)
    begin_s = fluid.now_s
    again_s = ends_s(fluid, [(0, 1e6)])[0] - begin_s
    assert again_s <= fresh_s + STEPS_S
    if pauses > 10:
        assert again_s == pytest.approx(fresh_s, abs=STEPS_S)


def exchange(workers: int = 2, **changes: object) -> Exchange:
    """Workers of two layers and two keys on one server: 0.1 s forward and 0.2 s backward."""
    one = ExchangeWorker(forward_s=(0.05, 0.05), backward_s=0.2, ready_s=(0.2, 0.1))
    whole = Exchange(
        workers=(one,) * workers,
        key_bytes=(1e6, 1e6),
        key_server=(0, 0),
        key_layer=(0, 1),
        num_servers=1,
        header_bytes=1.0,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def period_s(whole: Exchange, rate_bytes_per_s: float = 1e7, *, tcp: bool = False) -> float:
    """Return the last of six iterations' seconds."""
    routes = routes_of(whole, rate_bytes_per_s)
    fluid: Fluid = WindowFluid(routes, TRANSPORT) if tcp else FairFluid(routes)
    return float(np.median(np.diff(begins_s(whole, routes, fluid, num_iterations=7))[:, 3:]))


def test_with_a_barrier_pushes_and_pulls_follow_one_another() -> None:
    # 2 workers x 2 MB over 10 MB/s, there and back.
    assert period_s(exchange(has_barrier=True)) == pytest.approx(0.3 + 0.4 + 0.4, rel=1e-4)
    early = exchange(has_barrier=True, pushes_early=True)
    assert period_s(early) == pytest.approx(0.1 + 0.1 + 0.4 + 0.4, rel=1e-4)  # the first key is ready after 0.1 s


def test_one_worker_pulls_a_key_beside_the_push_of_the_next() -> None:
    # Push of key 1 at 0.2..0.3 s and pull till 0.4 s; push of key 0 at 0.3..0.4 s and pull till 0.5 s, then layer 0.
    assert period_s(exchange(1, pushes_early=True, pulls_early=True)) == pytest.approx(0.5, rel=1e-4)


def test_the_next_forward_pass_waits_for_all_sums_unless_its_layers_wait_one_by_one() -> None:
    worker = ExchangeWorker(forward_s=(0.05, 0.05), backward_s=0.2, ready_s=(0.1, 0.2))  # the first layer's comes first
    both = replace(exchange(1, pushes_early=True, pulls_early=True), workers=(worker,))
    # The sums are there 0.3 and 0.4 s after the backward pass began.
    assert period_s(both) == pytest.approx(0.1 + 0.4, rel=1e-4)
    # The first layer runs when its sum is there, the second one 0.1 s later with its own.
    assert period_s(replace(both, forwards_early=True)) == pytest.approx(0.3 + 0.1 + 0.05, rel=1e-4)


_OVERLAPS = [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]


@given(st.sampled_from(_OVERLAPS), st.booleans())
def test_equal_workers_begin_together(overlap: tuple[bool, bool, bool], has_barrier: bool) -> None:
    names = ("pushes_early", "pulls_early", "forwards_early")
    whole = exchange(3, has_barrier=has_barrier, **dict(zip(names, overlap, strict=True)))
    routes = routes_of(whole, 1e7)
    begins = begins_s(whole, routes, FairFluid(routes), num_iterations=4)
    assert np.ptp(begins, axis=0) == pytest.approx(np.zeros(4), abs=1e-6)


@pytest.mark.parametrize("tcp", [False, True])
def test_an_iteration_takes_no_less_than_the_busiest_link_needs(tcp: bool) -> None:
    for early, late in ((False, False), (True, False), (True, True)):
        whole = exchange(4, pushes_early=early, pulls_early=late, stagger_s=0.2)
        assert period_s(whole, tcp=tcp) >= 4 * 2e6 / 1e7 - STEPS_S


def test_faster_links_help_and_a_co_located_server_saves_its_workers_way() -> None:
    assert period_s(exchange(has_barrier=True), 2e7) < period_s(exchange(has_barrier=True), 1e7)
    assert period_s(exchange(has_barrier=True, is_co_located=True)) == pytest.approx(0.3 + 0.2 + 0.2, rel=1e-4)


def test_a_sum_for_which_two_wait_is_handed_to_one_after_the_other() -> None:
    early = exchange(2, pushes_early=True, pulls_early=True)
    assert period_s(replace(early, hand_over_s=0.5)) > period_s(early) + 0.1


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ModelError, match="same layers and keys"):
        exchange(key_layer=(0,))
    with pytest.raises(ModelError, match="1 servers that there are"):
        exchange(key_server=(0, 1))
    with pytest.raises(ModelError, match="set pushes_early"):
        exchange(pulls_early=True)
    with pytest.raises(ModelError, match="set pulls_early"):
        exchange(pushes_early=True, forwards_early=True)
    with pytest.raises(ModelError, match="host of a worker"):
        exchange(1, is_co_located=True, num_servers=2)
    with pytest.raises(ModelError, match="within a host"):
        FairFluid(replace(one_link(1), sink=(0,))).send(0, 1.0)
    with pytest.raises(ModelError, match="finite positive rate"):
        one_link(1, math.inf)
    with pytest.raises(ModelError, match="at most the largest"):
        Transport(window_bytes=1.0)
