import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cases.forms.gst import (
    ServerNetwork,
    aggregation_delay_bounds_s,
    aggregation_s,
    exchange,
    granularity_packets,
    num_packets,
    queueing_s,
    transfer_s,
)
from planner.cost import Floats
from planner.errors import ModelError
from tests.referee.equations import BarrierLink, barrier_link, decoupled_maximum_s

networks = st.builds(
    ServerNetwork,
    num_workers=st.integers(1, 40),
    num_servers=st.integers(1, 40),
    bandwidth_bytes_per_s=st.floats(1e6, 1e11),
    packet_bytes=st.sampled_from([64.0, 1500.0, 9000.0]),
    base_delay_s=st.floats(0, 1e-3),
    volume_factor=st.floats(1, 1.1),
    num_hops=st.integers(0, 4),
    aggregation_startup_s=st.floats(0, 1e-3),
    aggregation_s_per_packet=st.floats(0, 1e-5),
    granularity_packets=st.none() | st.floats(0.5, 1e4),
    delay_mix=st.floats(0, 1),
)
packets = st.lists(st.integers(0, 100_000), min_size=1, max_size=5).map(lambda drawn: np.array(drawn, dtype=float))


def network(**changes: Any) -> ServerNetwork:
    return replace(ServerNetwork(num_workers=3, bandwidth_bytes_per_s=1.5e6, packet_bytes=1500), **changes)


# -- equations 10 to 12 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bandwidth", [1.25e8, 1.25e10])
@pytest.mark.parametrize("num_hops", [1, 3])
def test_at_half_load_a_hop_takes_one_packet_time(bandwidth: float, num_hops: int) -> None:
    half = network(bandwidth_bytes_per_s=bandwidth, switch_packets_per_s=2 * bandwidth / 1500, num_hops=num_hops)
    assert float(queueing_s(half)) == pytest.approx(num_hops * 1500 / bandwidth)


@given(st.floats(0.01, 0.99))
def test_the_queue_is_the_mean_sojourn_of_the_stationary_distribution(load: float) -> None:
    # Little's law: packets in the queue, sum of n (1 - load) load^n, over the rate at which they arrive.
    number = np.arange(20_000)
    waiting = np.sum(number * (1 - load) * load**number)
    found = queueing_s(network(bandwidth_bytes_per_s=1500 * load * 100, switch_packets_per_s=100))
    assert float(found) == pytest.approx(waiting / (load * 100))


def test_without_load_forwarding_alone_remains() -> None:
    assert float(queueing_s(network(bandwidth_bytes_per_s=1e-6, switch_packets_per_s=1e4))) == pytest.approx(1e-4)
    assert float(queueing_s(network())) == 0


@pytest.mark.parametrize("switch", [1000, 999, 1])
def test_saturation_is_refused_with_its_numbers(switch: float) -> None:
    full = network(switch_packets_per_s=switch)
    with pytest.raises(
        ModelError, match=rf"saturated: 1000 packets/s of 1500 bytes arrive.* forwards {switch}/s\. Raise"
    ):
        exchange(full, [1.0])


def test_one_saturated_network_among_many_is_refused_and_named() -> None:
    many = network(bandwidth_bytes_per_s=np.array([1.5e5, 3e6]), switch_packets_per_s=1500)
    with pytest.raises(ModelError, match="saturated: 2000 packets/s"):
        queueing_s(many)


@given(st.floats(1e6, 1e10), st.floats(1.01, 10))
def test_equation_11_as_printed_is_right_if_b_is_seconds_per_packet(bandwidth: float, headroom: float) -> None:
    right = network(bandwidth_bytes_per_s=bandwidth, switch_packets_per_s=headroom * bandwidth / 1500)
    literal = replace(right, bandwidth_bytes_per_s=1500 / bandwidth / 8, is_queue_printed=True)  # read back as bit/s
    assert float(queueing_s(literal)) == pytest.approx(float(queueing_s(right)))
    switch, packet_s = right.switch_packets_per_s, 1500 / bandwidth
    assert float(queueing_s(right)) == pytest.approx(packet_s / (switch * packet_s - 1))  # its last form


def test_equation_11_as_printed_sees_no_load_in_bits_per_second() -> None:
    half = network(bandwidth_bytes_per_s=1.25e8, switch_packets_per_s=2 * 1.25e8 / 1500, is_queue_printed=True)
    assert float(queueing_s(half)) == pytest.approx(0.5 * 1500 / 1.25e8)


def test_a_transfer_by_hand() -> None:
    # 10 packets of 1 ms and 10 % more on the wire, 2 ms of base delay, and 2 hops of 1/(3000 - 1000) s.
    one = network(base_delay_s=2e-3, volume_factor=1.1, switch_packets_per_s=3000, num_hops=2)
    assert transfer_s(one, [10, 0]).tolist() == pytest.approx([0.011 + 0.002 + 0.001, 0])


@given(networks, packets, st.floats(1, 8))
def test_more_bandwidth_never_hurts(one: ServerNetwork, number: Floats, factor: float) -> None:
    slow, fast = (
        exchange(replace(one, bandwidth_bytes_per_s=one.bandwidth_bytes_per_s * scale), number) for scale in (1, factor)
    )
    assert (fast.push_s <= slow.push_s * (1 + 1e-12)).all()
    assert (fast.aggregate_s <= slow.aggregate_s * (1 + 1e-12)).all()


@pytest.mark.parametrize(("num_workers", "num_servers"), [(1, 1), (2, 1), (4, 4), (4, 3), (2, 5)])
def test_the_barrier_links_are_the_servers_where_there_are_fewer(num_workers: int, num_servers: int) -> None:
    found = barrier_link(num_workers=num_workers, num_servers=num_servers)
    assert found is (BarrierLink.SERVERS if num_servers < num_workers else BarrierLink.WORKERS)


# -- equations 13 to 18 ----------------------------------------------------------------------------------------------


def test_packets_are_whole_and_shares_are_not() -> None:
    assert num_packets([0, 1, 1500, 1501], 1500).tolist() == [0, 1, 1, 2]
    assert granularity_packets(network(num_servers=4), [10]).tolist() == [2.5]
    assert granularity_packets(network(num_servers=4, granularity_packets=2), [10, 4]).tolist() == [2, 1]


def test_aggregation_by_hand() -> None:
    # 3 workers, 12 packets of 1 ms, 2 servers, G = 2: 3 rounds of 1 + 2 x 0.5 ms from each worker, after 2 to 4 ms.
    one = network(num_servers=2, granularity_packets=2, aggregation_startup_s=1e-3, aggregation_s_per_packet=5e-4)
    assert [float(bound[0]) for bound in aggregation_delay_bounds_s(one, [12])] == pytest.approx([2e-3, 4e-3])
    for mix in (0, 0.5, 1):
        found = aggregation_s(replace(one, delay_mix=mix), [12, 0])
        assert found.tolist() == pytest.approx([2e-3 + 2e-3 * mix + 3 * 3 * 2e-3, 0])


@given(networks, st.floats(1, 1e5))
def test_the_largest_delay_is_equation_16_from_one_packet_on(one: ServerNetwork, size: float) -> None:
    whole = replace(one, granularity_packets=size)
    least, most = aggregation_delay_bounds_s(whole, [size * one.num_servers])
    packet_s = float(one.packet_time_s)
    assert float(least[0]) == pytest.approx(size * packet_s)
    assert float(most[0]) == pytest.approx((one.num_workers * size - one.num_workers + 1) * packet_s, rel=1e-6)


@given(networks, packets)
def test_the_delay_is_between_its_bounds_and_one_worker_has_none_to_choose(one: ServerNetwork, number: Floats) -> None:
    free = replace(one, aggregation_startup_s=0.0, aggregation_s_per_packet=0.0)
    least, most = aggregation_delay_bounds_s(free, number)
    found = aggregation_s(free, number)
    assert (least <= found * (1 + 1e-12)).all()
    assert (found <= most * (1 + 1e-12)).all()
    alone = aggregation_delay_bounds_s(replace(one, num_workers=1), number)
    assert alone[0] == pytest.approx(alone[1])


@given(networks, packets)
def test_a_granularity_of_the_whole_share_is_the_default(one: ServerNetwork, number: Floats) -> None:
    default = replace(one, granularity_packets=None)
    whole = replace(one, granularity_packets=float(number.max()) / one.num_servers + 1)
    assert aggregation_s(whole, number) == pytest.approx(aggregation_s(default, number))


@given(networks, packets, st.integers(1, 4))
def test_equation_18_is_the_last_server_of_a_walk_over_its_queue(
    one: ServerNetwork, number: Floats, rounds: int
) -> None:
    # Every server adds N granularities a round, one after the other, and servers share a layer evenly.
    cut = replace(one, granularity_packets=float(max(number.max(), 1)) / one.num_servers / rounds, delay_mix=0.0)
    for layer, found in zip(number, aggregation_s(cut, number), strict=True):
        size = float(granularity_packets(cut, layer))
        clock, left = size * float(cut.packet_time_s), layer / cut.num_servers
        while left > 1e-6 * size:
            clock += cut.num_workers * (cut.aggregation_startup_s + cut.aggregation_s_per_packet * size)
            left -= size
        assert found == pytest.approx(clock)


@given(networks, packets)
def test_one_more_server_never_delays_more_with_the_default_granularity(one: ServerNetwork, number: Floats) -> None:
    default = replace(one, granularity_packets=None)
    more = replace(default, num_servers=one.num_servers + 1)
    assert (aggregation_s(more, number) <= aggregation_s(default, number) * (1 + 1e-12)).all()


def test_as_many_servers_as_workers_wait_for_what_one_link_carries() -> None:
    # K = N, in step: each server receives N shares of PN / N, a layer's packets, less the N - 1 that overlap.
    equal = network(num_workers=4, num_servers=4, delay_mix=1.0)
    assert float(aggregation_s(equal, [40])[0]) == pytest.approx((40 - 3) * 1e-3)


@given(st.lists(st.tuples(st.floats(0, 99), st.floats(0, 99)), min_size=1, max_size=8))
def test_equation_17_is_an_upper_bound_and_exact_for_one_worker(pairs: list[tuple[float, float]]) -> None:
    rest_s, aggregate_s = np.array(pairs).T
    gst_s = rest_s + aggregate_s
    bound = float(decoupled_maximum_s(gst_s, aggregate_s))
    assert bound >= gst_s.max() - 1e-9
    assert float(decoupled_maximum_s(gst_s[:1], aggregate_s[:1])) == pytest.approx(gst_s[0])
    if rest_s.argmax() == aggregate_s.argmax():
        assert bound == pytest.approx(gst_s.max())


def test_equation_17_is_no_equality() -> None:
    assert float(decoupled_maximum_s([5, 5], [4, 1])) == 8


# -- many at once, and refusals --------------------------------------------------------------------------------------


@given(networks, packets)
def test_networks_side_by_side_are_those_one_by_one(one: ServerNetwork, number: Floats) -> None:
    rates = np.array([1e7, 1e9, 1e10])
    together = exchange(replace(one, bandwidth_bytes_per_s=rates), number)
    for index, rate in enumerate(rates):
        alone = exchange(replace(one, bandwidth_bytes_per_s=rate), number)
        assert together.push_s[index] == pytest.approx(alone.push_s)
        assert together.aggregate_s[index] == pytest.approx(alone.aggregate_s)
        assert together.pull_s[index] == pytest.approx(alone.pull_s)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_workers": 0}, "num_workers is 0. It must be 1 or more."),
        ({"num_servers": 0}, "num_servers is 0. It must be 1 or more."),
        ({"bandwidth_bytes_per_s": 0.0}, "bandwidth_bytes_per_s is 0.0. It must be finite and positive."),
        ({"bandwidth_bytes_per_s": np.array([1.0, math.inf])}, "It must be finite and positive."),
        ({"packet_bytes": 0.0}, "packet_bytes is 0.0. It must be finite and positive."),
        ({"switch_packets_per_s": 0.0}, "switch_packets_per_s is 0.0. It must be positive; inf forwards at once."),
        ({"delay_mix": 1.5}, "delay_mix is 1.5. It must be from 0 to 1."),
        ({"granularity_packets": -1.0}, "granularity_packets is -1.0. It must be finite and positive."),
        ({"base_delay_s": -1.0}, "base_delay_s is -1.0. It must be finite and not negative."),
    ],
)
def test_a_number_outside_its_range_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        network(**changes)
