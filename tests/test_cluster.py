import math
import pickle
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster import Cluster, Device, Link, MachineGroup, Storage, Switch
from planner.routes import routes_of

GPU, OTHER = Device(name="gpu"), Device(name="other")


def machines(name: str, count: int = 1, device: Device = GPU, num_nics: int = 1) -> MachineGroup:
    return MachineGroup(name=name, count=count, device=device, num_nics=num_nics)


def link(bandwidth: float, latency_s: float = 0.0) -> Link:
    return Link(bandwidth_bytes_per_s=bandwidth, latency_s=latency_s)


def star(*groups: MachineGroup, bandwidths: tuple[float, ...]) -> Cluster:
    links = [(group.name, "switch", link(width)) for group, width in zip(groups, bandwidths, strict=True)]
    return Cluster("star", [*groups, Switch(name="switch")], links)


def two_racks(uplink: float, up_latency_s: float = 0.0) -> Cluster:
    """Two racks of four machines at 10, joined by one link."""
    nodes: list[MachineGroup | Switch] = [
        machines("left", 4),
        machines("right", 4),
        Switch(name="one"),
        Switch(name="two"),
    ]
    links = [
        ("left", "one", link(10, 1)),
        ("right", "two", link(10, 5)),
        ("one", "two", link(uplink, up_latency_s)),
    ]
    return Cluster("racks", nodes, links)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[MachineGroup | Switch], list[tuple[str, str, Link]]]:
    num_switches = draw(st.integers(1, 4))
    widths, latencies = st.integers(1, 9).map(float), st.integers(0, 5).map(float)
    drawn_links = st.builds(link, widths, latencies)
    nodes: list[MachineGroup | Switch] = [Switch(name=f"s{index}") for index in range(num_switches)]
    links = [
        (f"s{index}", f"s{draw(st.integers(0, index - 1))}", draw(drawn_links)) for index in range(1, num_switches)
    ]
    for index in range(draw(st.integers(1, 4))):
        nodes.append(machines(f"m{index}", draw(st.integers(1, 3)), num_nics=draw(st.integers(1, 2))))
        links.append((f"m{index}", f"s{draw(st.integers(0, num_switches - 1))}", draw(drawn_links)))
    return draw(st.permutations(nodes)), links


def walk_the_ring(cluster: Cluster, num_machines: int) -> tuple[float, float]:
    """Lay a ring machine by machine: the least share of any link's direction, and the longest hop.

    Every machine has its own cable; a cable or trunk is shared by the hops that cross it in the same direction.
    """
    ring = [(group, number) for group in routes_of(cluster).order for number in range(group.count)][:num_machines]
    crossings: dict[tuple[str, str, object], int] = {}
    longest_s = 0.0
    for (one, first), (other, second) in zip(ring, [*ring[1:], ring[0]], strict=True):
        path = nx.shortest_path(cluster.graph, one.name, other.name)
        if one is other:  # out to the switch and back
            (switch,) = cluster.graph[one.name]
            path = [one.name, switch, one.name]
        ends_s, between_s = [], 0.0
        for index, edge in enumerate(pairwise(path)):
            is_out, is_in = index == 0, index == len(path) - 2
            cable = (edge[0], first) if is_out else (edge[1], second) if is_in else None
            crossings[*edge, cable] = crossings.get((*edge, cable), 0) + 1
            latency_s = cluster.graph.edges[edge]["link"].latency_s
            if is_out or is_in:
                ends_s.append(latency_s)
            else:
                between_s += latency_s
        longest_s = max(longest_s, max(ends_s) + between_s)
    cards = {group.name: group.num_nics for group in cluster.machine_groups}
    shares = [
        cluster.graph.edges[one, other]["link"].bandwidth_bytes_per_s * cards.get(one, cards.get(other, 1)) / times
        for (one, other, _), times in crossings.items()
    ]
    return min(shares), longest_s


@given(clusters())
def test_ring_link_on_a_tree_is_what_a_ring_laid_machine_by_machine_gets(
    drawn: tuple[list[MachineGroup | Switch], list[tuple[str, str, Link]]],
) -> None:
    cluster = Cluster("tree", *drawn)
    for num_machines in range(2, cluster.num_machines + 1):
        found = routes_of(cluster).ring(num_machines)
        bandwidth, latency_s = walk_the_ring(cluster, num_machines)
        assert found.bandwidth_bytes_per_s == pytest.approx(bandwidth)
        assert found.latency_s == pytest.approx(latency_s)


@given(clusters(), st.integers(0, 20), st.floats(1, 10))
def test_more_bandwidth_never_narrows_the_ring(
    drawn: tuple[list[MachineGroup | Switch], list[tuple[str, str, Link]]], at: int, factor: float
) -> None:
    nodes, links = drawn
    one, other, old = links[at % len(links)]
    wider = replace(old, bandwidth_bytes_per_s=old.bandwidth_bytes_per_s * factor)
    before = Cluster("before", nodes, links)
    after = Cluster("after", nodes, [*links[: at % len(links)], (one, other, wider), *links[at % len(links) + 1 :]])
    for num_machines in range(1, before.num_machines + 1):
        found, truth = routes_of(after).ring(num_machines), routes_of(before).ring(num_machines)
        assert found.bandwidth_bytes_per_s >= truth.bandwidth_bytes_per_s


@given(clusters())
def test_a_ring_over_more_machines_is_never_wider(
    drawn: tuple[list[MachineGroup | Switch], list[tuple[str, str, Link]]],
) -> None:
    cluster = Cluster("tree", *drawn)
    widths = [routes_of(cluster).ring(number).bandwidth_bytes_per_s for number in range(1, cluster.num_machines + 1)]
    assert widths == sorted(widths, reverse=True)


@given(clusters())
def test_the_idealised_cluster_is_never_worse(
    drawn: tuple[list[MachineGroup | Switch], list[tuple[str, str, Link]]],
) -> None:
    cluster = Cluster("tree", *drawn)
    ideal = cluster.idealised()
    assert (ideal.num_machines, ideal.is_uniform) == (cluster.num_machines, True)
    for num_machines in range(1, cluster.num_machines + 1):
        best, real = routes_of(ideal).ring(num_machines), routes_of(cluster).ring(num_machines)
        assert best.bandwidth_bytes_per_s >= real.bandwidth_bytes_per_s
        assert best.latency_s <= real.latency_s


def test_the_idealised_machine_has_the_best_of_every_figure() -> None:
    slow = replace(
        machines("slow"), inside=link(5, 2), decode_samples_per_s=10, storage=Storage(bandwidth_bytes_per_s=3)
    )
    quick = replace(
        machines("quick", 2, num_nics=2),
        devices_per_machine=4,
        inside=link(9, 3),
        host_link_bytes_per_s=7,
        storage=Storage(bandwidth_bytes_per_s=8, is_shared=True),
    )
    (best,) = star(slow, quick, bandwidths=(1, 2)).idealised().machine_groups
    assert (best.count, best.devices_per_machine, best.num_nics) == (3, 4, 2)
    assert best.inside == link(9, 2)
    assert best.storage == Storage(bandwidth_bytes_per_s=8, is_shared=False)
    assert (best.host_link_bytes_per_s, best.decode_samples_per_s) == (math.inf, math.inf)


def test_a_ring_on_a_star_is_as_wide_as_its_narrowest_link() -> None:
    cluster = star(machines("a", 2), machines("b", 2), machines("c", 2), bandwidths=(8, 4, 2))
    widths = [routes_of(cluster).ring(number).bandwidth_bytes_per_s for number in range(2, 7)]
    assert widths == [8, 4, 4, 2, 2]


def test_an_oversubscribed_link_between_racks_binds_only_rings_that_cross_it() -> None:
    cluster = two_racks(3)
    assert [routes_of(cluster).ring(number).bandwidth_bytes_per_s for number in (4, 5, 8)] == [10, 3, 3]


def test_a_hop_between_racks_takes_the_same_time_in_both_directions() -> None:
    assert routes_of(two_racks(3, up_latency_s=2)).ring(8).latency_s == pytest.approx(7)
    chain = Cluster(
        "chain",
        [machines("a"), machines("b"), machines("c"), Switch(name="one"), Switch(name="two")],
        [("a", "one", link(1, 1)), ("one", "two", link(1, 1)), ("b", "two", link(1, 5)), ("c", "two", link(1, 1))],
    )
    assert routes_of(chain).ring(3).latency_s == pytest.approx(6)


def test_on_a_network_with_a_cycle_the_ring_takes_the_shortest_ways() -> None:
    nodes: list[MachineGroup | Switch] = [machines("a"), machines("b"), machines("c")]
    triangle = Cluster("triangle", nodes, [("a", "b", link(1)), ("b", "c", link(5)), ("a", "c", link(4))])
    assert routes_of(triangle).ring(3).bandwidth_bytes_per_s == 1  # from a to b in one link, not by way of c in two


def test_machines_at_two_switches_talk_by_way_of_the_wider_link() -> None:
    nodes: list[MachineGroup | Switch] = [machines("a", 2), machines("b"), Switch(name="narrow"), Switch(name="wide")]
    links = [("a", "narrow", link(1)), ("a", "wide", link(10)), ("b", "wide", link(10))]
    assert routes_of(Cluster("both", nodes, links)).ring(3).bandwidth_bytes_per_s == 10


def test_several_network_cards_multiply_a_groups_own_link_only() -> None:
    assert routes_of(star(machines("a", 4, num_nics=4), bandwidths=(2,))).ring(4).bandwidth_bytes_per_s == 8
    mixed = star(machines("a", num_nics=4), machines("b"), bandwidths=(2, 3))
    assert routes_of(mixed).ring(2).bandwidth_bytes_per_s == 3
    cable = Cluster("cable", [machines("a", num_nics=4), machines("b")], [("a", "b", link(2))])
    assert routes_of(cable).ring(2).bandwidth_bytes_per_s == 2  # b has one card to plug it into


def test_one_machine_needs_no_network() -> None:
    alone = Cluster("alone", [machines("a")], [])
    assert routes_of(alone).ring(1) == link(math.inf, 0)
    assert routes_of(alone.idealised()).ring(1) == link(math.inf, 0)
    assert routes_of(two_racks(1)).ring(1) == link(math.inf, 0)
    assert alone.is_uniform


def test_counts_are_of_all_groups() -> None:
    cluster = star(replace(machines("a", 3), devices_per_machine=8), machines("b"), bandwidths=(1, 1))
    assert (cluster.num_machines, cluster.num_devices) == (4, 25)


def test_uniform_means_that_any_machines_will_do() -> None:
    assert star(machines("a", 2), machines("b", 3), bandwidths=(1, 1)).is_uniform
    assert not star(machines("a", 2), machines("b", 3), bandwidths=(1, 2)).is_uniform
    assert not star(machines("a"), machines("b", device=OTHER), bandwidths=(1, 1)).is_uniform
    assert not two_racks(10).is_uniform
    assert two_racks(10).has_equal_machines


def test_of_device_keeps_the_network_and_drops_other_machines() -> None:
    cluster = star(machines("a", 2), machines("b", 3, OTHER), machines("c"), bandwidths=(1, 2, 3))
    kept = cluster.of_device("gpu")
    assert [group.name for group in kept.machine_groups] == ["a", "c"]
    assert "switch" in kept.graph
    assert {frozenset(edge) for edge in kept.graph.edges} == {frozenset(("a", "switch")), frozenset(("c", "switch"))}
    with pytest.raises(ValueError, match="there is no machine"):
        cluster.of_device("abacus")


def test_machines_that_cannot_reach_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="machines 'b' are not connected to 'a'; add a link"):
        Cluster("islands", [machines("a"), machines("b")], [])
    with pytest.raises(ValueError, match="the 4 machines 'a' have no network between them; add a link"):
        Cluster("unplugged", [machines("a", 4)], [])


def test_bad_nodes_and_links_are_refused() -> None:
    switch = Switch(name="switch")
    with pytest.raises(ValueError, match="node 'a' stands twice"):
        Cluster("twins", [machines("a"), machines("a")], [])
    with pytest.raises(ValueError, match="a link ends at 'ghost', which does not exist"):
        Cluster("haunted", [machines("a"), switch], [("a", "ghost", link(1))])
    with pytest.raises(ValueError, match="the link 'switch' - 'a' stands twice; say how many there are by count"):
        Cluster("double", [machines("a"), switch], [("a", "switch", link(1)), ("switch", "a", link(1))])
    with pytest.raises(ValueError, match="a link joins 'a' to itself"):
        Cluster("loop", [machines("a", 2)], [("a", "a", link(1))])
    with pytest.raises(ValueError, match="there is no machine"):
        Cluster("void", [switch], [])


def test_the_graph_is_frozen_and_the_cluster_survives_the_trip_to_a_worker_process() -> None:
    cluster = two_racks(3)
    twin = pickle.loads(pickle.dumps(cluster))
    assert twin.machine_groups == cluster.machine_groups
    assert routes_of(twin).ring(8) == routes_of(cluster).ring(8)
    for frozen in (cluster.graph, twin.graph):
        with pytest.raises(nx.NetworkXError, match="Frozen graph"):
            frozen.remove_node("left")
