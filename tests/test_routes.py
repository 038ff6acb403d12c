"""Routes: shortest paths against a listing of them, loads against the best routing there could be."""

import math
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.cluster import Cable, Cluster, Device, Link, MachineGroup, Switch
from planner.errors import NoAnswerError, SpecError
from planner.explanation import perturbations
from planner.models.tiers import tiers_of
from planner.problem import Problem
from planner.routes import Routes, routes_of
from tests.referee.flows import best_rate, shares_of

GPU = Device(name="gpu")


def machines(name: str, count: int = 1, num_nics: int = 1) -> MachineGroup:
    return MachineGroup(name=name, count=count, device=GPU, num_nics=num_nics)


def cable(rate: float, latency_s: float = 0.0, count: int | None = None, *, is_one_way: bool = False) -> Cable:
    return Cable(bandwidth_bytes_per_s=rate, latency_s=latency_s, count=count, is_one_way=is_one_way)


def leaves(number: int, size: int, spines: int, up: float, own: float = 10.0) -> Cluster:
    nodes: list[MachineGroup | Switch] = [machines(f"m{index}", size) for index in range(number)]
    nodes += [Switch(name=f"leaf{index}") for index in range(number)]
    nodes += [Switch(name=f"spine{index}") for index in range(spines)]
    links: list[tuple[str, str, Link]] = [(f"m{index}", f"leaf{index}", cable(own, 1)) for index in range(number)]
    links += [(f"leaf{one}", f"spine{other}", cable(up, 2)) for one in range(number) for other in range(spines)]
    return Cluster("leaves", nodes, links)


@st.composite
def graphs(draw: st.DrawFn) -> Cluster:
    """A connected graph of switches with cycles, some groups of machines on one or two of them, perhaps a direct cable."""
    number = draw(st.integers(1, 6))
    rates, counts = st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([1, 2])
    links: dict[frozenset[str], tuple[str, str, Link]] = {}

    def join(one: str, other: str, *, count: int | None) -> None:
        links.setdefault(frozenset((one, other)), (one, other, cable(draw(rates), draw(st.integers(0, 3)), count)))

    for index in range(1, number):
        join(f"s{index}", f"s{draw(st.integers(0, index - 1))}", count=draw(counts))
    for _ in range(draw(st.integers(0, 5)) if number > 1 else 0):
        one, other = draw(st.lists(st.integers(0, number - 1), min_size=2, max_size=2, unique=True))
        join(f"s{one}", f"s{other}", count=draw(counts))
    groups = [machines(f"m{index}", draw(st.integers(1, 3)), 3) for index in range(draw(st.integers(2, 4)))]
    for group in groups:
        for place in draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=2, unique=True)):
            join(group.name, f"s{place}", count=1)
    singles = [group.name for group in groups if group.count == 1]
    if len(singles) > 1 and draw(st.booleans()):
        join(singles[0], singles[1], count=1)
    return Cluster("drawn", [*groups, *(Switch(name=f"s{index}") for index in range(number))], links.values())


def pairs_of(cluster: Cluster) -> list[tuple[str, str]]:
    groups = cluster.machine_groups
    return [(one.name, other.name) for one in groups for other in groups if one is not other or one.count > 1]


def named(routes: Routes, one: str, other: str) -> dict[tuple[str, str], float]:
    hop, arcs = routes.hop(one, other), [(first, second) for first, second, _ in routes.cluster.arcs()]
    return dict(zip((arcs[arc] for arc in hop.arcs.tolist()), hop.shares.tolist(), strict=True))


@given(graphs())
def test_a_transfer_is_dealt_over_all_its_shortest_paths(cluster: Cluster) -> None:
    for one, other in pairs_of(cluster):
        truth = shares_of(cluster, one, other)
        assert named(routes_of(cluster), one, other) == pytest.approx(truth), (one, other)
        ringed = Routes(cluster)
        ringed.ring(2)  # counts the links to its first machines once for all
        assert named(ringed, one, other) == pytest.approx(truth), (one, other)


@given(graphs(), st.integers(1, 4))
def test_no_shift_is_faster_than_the_best_routing(cluster: Cluster, stride: int) -> None:
    order = [group.name for group in routes_of(cluster).order for _ in range(group.count)]
    stride = 1 + stride % (len(order) - 1)
    transfers: dict[tuple[str, str], float] = {}
    for index, name in enumerate(order):
        pair = name, order[(index + stride) % len(order)]
        transfers[pair] = transfers.get(pair, 0.0) + 1
    found, most = routes_of(cluster).shift_bytes_per_s(stride), best_rate(cluster, transfers)
    assert found <= most * (1 + 1e-6)


@given(graphs())
def test_no_all_to_all_is_faster_than_the_best_routing(cluster: Cluster) -> None:
    total = cluster.num_machines
    counts = {group.name: group.count for group in cluster.machine_groups}
    transfers = {
        (one, other): counts[one] * (counts[other] - (one == other)) / (total - 1) for one, other in pairs_of(cluster)
    }
    assert routes_of(cluster).even_bytes_per_s <= best_rate(cluster, transfers) * (1 + 1e-6)


@given(graphs())
def test_a_ring_is_what_its_hops_leave_of_the_links(cluster: Cluster) -> None:
    """Counted again, hop by hop, from the listed paths; machines of a group have links of their own."""
    routes = routes_of(cluster)
    for number in range(2, cluster.num_machines + 1):
        ring = [group for group in routes.order for _ in range(group.count)][:number]
        load: dict[tuple[str, str], float] = {}
        own = math.inf
        capacity = {
            (one, other): link.bandwidth_bytes_per_s * cluster.num_cables(one, other)
            for one, other, link in cluster.arcs()
        }
        for one, other in zip(ring, [*ring[1:], ring[0]], strict=True):
            for way, share in shares_of(cluster, one.name, other.name).items():
                if any(not cluster.forwards(end) for end in way):
                    own = min(own, capacity[way] / share)
                else:
                    load[way] = load.get(way, 0.0) + share
        rate = min([own, *(capacity[way] / part for way, part in load.items())])
        assert routes.ring(number).bandwidth_bytes_per_s == pytest.approx(rate)
        assert routes.widest_ring(number).bandwidth_bytes_per_s >= rate * (1 - 1e-12)
        assert routes.tree_bytes_per_s(number) <= routes.own_bytes_per_s(number) * (1 + 1e-12)


@given(graphs())
def test_what_is_summed_up_over_the_first_machines_is_what_each_of_them_has(cluster: Cluster) -> None:
    routes = routes_of(cluster)
    order = [group for group in routes.order for _ in range(group.count)]
    for number in range(1, len(order) + 1):
        rings = [routes.ring(at) for at in range(number, len(order) + 1)]
        widest = routes.widest_ring(number)
        assert widest.bandwidth_bytes_per_s == max(ring.bandwidth_bytes_per_s for ring in rings)
        assert widest.latency_s == min(ring.latency_s for ring in rings)
        links = [cluster.own_link(one.name) for one in order[:number]] if number > 1 else []
        own = min((link.bandwidth_bytes_per_s for link in links), default=math.inf)
        assert routes.own_bytes_per_s(number) == own


@given(graphs())
def test_what_is_called_non_blocking_leaves_every_machine_its_own_links(cluster: Cluster) -> None:
    routes = routes_of(cluster)
    if routes.is_non_blocking:
        for stride in range(1, cluster.num_machines):
            order = [group for group in routes.order for _ in range(group.count)]
            hops = [routes.hop(one.name, order[(at + stride) % len(order)].name) for at, one in enumerate(order)]
            links = [cluster.own_link(one.name) for one in order]
            own = min([*(link.bandwidth_bytes_per_s for link in links), *(hop.own_bytes_per_s for hop in hops)])
            assert routes.shift_bytes_per_s(stride) >= own * (1 - 1e-9)


@pytest.mark.parametrize(("spines", "rate"), [(1, 3.0), (2, 6.0), (4, 10.0)])
def test_every_spine_carries_its_part(spines: int, rate: float) -> None:
    cluster = leaves(4, 4, spines, up=3.0)
    assert routes_of(cluster).ring(16).bandwidth_bytes_per_s == pytest.approx(rate)
    senders = {("m0", "m1"): 4.0, ("m1", "m0"): 4.0}
    assert best_rate(cluster, senders) == pytest.approx(min(10.0, 3.0 * spines / 4))  # the best there is: it is met
    tiers = tiers_of(cluster)
    assert [tier.size for tier in tiers] == [1, 4, 4]
    assert tiers[2].unit_bytes_per_s == pytest.approx(min(40.0, 3.0 * spines))
    assert routes_of(cluster).idle_links == ()


def test_trees_count_what_they_put_on_an_uplink() -> None:
    two = routes_of(leaves(2, 1, 1, up=3.0))
    assert two.ring(2).bandwidth_bytes_per_s == pytest.approx(3.0)
    assert two.tree_bytes_per_s(2) == pytest.approx(6.0)  # half a buffer up and half down, of both trees: 2 D / 6
    many = routes_of(leaves(2, 8, 1, up=3.0))
    assert many.tree_bytes_per_s(16) == pytest.approx(3.0)  # the root and its child's child lie across: twice as much
    assert routes_of(leaves(1, 8, 1, up=1.0)).tree_bytes_per_s(8) == pytest.approx(10.0)


def test_full_bisection_is_proven_and_a_narrow_spine_is_not() -> None:
    assert routes_of(leaves(3, 4, 4, up=10.0)).is_non_blocking
    assert not routes_of(leaves(3, 4, 4, up=9.0)).is_non_blocking


def test_a_one_way_link_carries_nothing_back() -> None:
    nodes: list[MachineGroup | Switch] = [machines("a"), machines("b"), Switch(name="s"), Switch(name="t")]
    both: list[tuple[str, str, Link]] = [("a", "s", cable(8)), ("b", "t", cable(8))]
    there, back = ("s", "t", cable(4, is_one_way=True)), ("t", "s", cable(2, is_one_way=True))
    assert routes_of(Cluster("ways", nodes, [*both, there, back])).ring(2).bandwidth_bytes_per_s == 2
    with pytest.raises(ValueError, match="no way leads from machines 'b' to 'a'"):
        Cluster("ways", nodes, [*both, there])


def test_a_group_of_machines_forwards_nothing() -> None:
    nodes: list[MachineGroup | Switch] = [machines("a", 2), machines("b"), machines("c"), Switch(name="s")]
    links: list[tuple[str, str, Link]] = [("a", "s", cable(8)), ("a", "b", cable(8)), ("c", "s", cable(8))]
    assert Cluster("by b", nodes, [*links[:1], ("b", "s", cable(8)), links[2]]).num_machines == 4
    lonely: list[MachineGroup | Switch] = [machines("a", 2), machines("b", 2)]
    with pytest.raises(ValueError, match="the 2 machines 'a' have no network between them; add a link to a switch"):
        Cluster("pairs", lonely, [("a", "b", cable(8))])


def test_cards_are_dealt_evenly_over_links_that_do_not_say() -> None:
    rails: list[MachineGroup | Switch] = [machines("a", 4, 8), Switch(name="r0"), Switch(name="r1"), Switch(name="r2")]
    ends = [("a", f"r{index}", cable(2)) for index in range(3)]
    assert routes_of(Cluster("two", rails[:3], ends[:2])).ring(4).bandwidth_bytes_per_s == 16
    with pytest.raises(ValueError, match="8 network cards of 'a' cannot be dealt evenly over its 3 links"):
        Cluster("three", rails, ends)
    said = [("a", f"r{index}", cable(2, count=count)) for index, count in enumerate((4, 2, 2))]
    assert routes_of(Cluster("said", rails, said)).ring(4).bandwidth_bytes_per_s == 16


# -- networks by name ---------------------------------------------------------------------------------------------------


def asked(topology: object, count: int = 16, **keys: object) -> Problem:
    machine = {"machine": "dgx-h100", "count": count, "network": "400 Gbit/s", "nics": 8, "latency": "2 us", **keys}
    cluster = {"machines": [machine], "topology": topology}
    return planner.load(
        {"dnn": {"zoo": "llama-2-7b", "global_batch": 1024}, "cluster": cluster, "families": ["hybrid"]}
    )


@pytest.mark.parametrize(
    ("topology", "count", "sizes", "shares"),
    [
        ("fat-tree", 16, [8, 4, 4], [1, 1]),
        ({"kind": "fat-tree", "leaf": 4, "oversubscription": 4}, 16, [8, 4, 4], [1, 0.25]),
        ({"kind": "fat-tree", "leaf": 4, "pod": 4, "pod_oversubscription": 8}, 64, [8, 4, 4, 4], [1, 1, 0.125]),
        ("rail-optimised", 16, [8, 16], [1]),
        ({"kind": "rail-optimised", "leaf": 8, "oversubscription": 2}, 32, [8, 8, 4], [1, 0.5]),
        ({"kind": "nvlink-domain", "size": 8}, 16, [8, 8, 2], [9, 1]),
        ({"kind": "fat-tree", "leaf": 16}, 16, [8, 16], [1]),
    ],
)
def test_named_networks_have_the_levels_that_they_are_built_of(
    topology: object, count: int, sizes: list[int], shares: list[float]
) -> None:
    tiers = tiers_of(asked(topology, count).cluster)
    assert [tier.size for tier in tiers] == sizes
    devices, found = 1, []
    for tier in tiers:
        found.append(tier.unit_bytes_per_s / devices / 50e9)
        devices *= tier.size
    assert found[1:] == pytest.approx(shares)


def test_a_torus_has_a_ring_through_all_nodes_and_less_for_all_to_all() -> None:
    cluster = asked({"kind": "torus", "dimensions": [4, 4], "bandwidth": "800 Gbit/s"}).cluster
    routes = routes_of(cluster)
    assert routes.ring(16).bandwidth_bytes_per_s == pytest.approx(100e9)  # a link between neighbours, and no more
    assert routes.units is None
    hops = sum(min(x, 4 - x) for x in range(4)) / 4  # of a mean transfer, in each dimension
    even = 100e9 / (hops / 2) * 15 / 16  # each of two directions carries half of them
    assert routes.even_bytes_per_s == pytest.approx(even)
    transfers = {
        (one.name, two.name): 1 / 15
        for one in cluster.machine_groups
        for two in cluster.machine_groups
        if one is not two
    }
    assert even == pytest.approx(best_rate(cluster, transfers))
    assert tiers_of(cluster)[1].even_share == pytest.approx(1.875)


def test_a_dragonfly_is_narrow_between_its_groups() -> None:
    cluster = asked({"kind": "dragonfly", "leaf": 2, "routers": 4}, 32).cluster
    tier = tiers_of(cluster)[-1]
    assert tier.even_share < 0.6
    assert dict(tier.by_stride)[16] < 0.5
    assert routes_of(cluster).idle_links == ()


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ("ringo", "cluster.topology.kind: it must be 'fat-tree', 'rail-optimised', 'torus', 'dragonfly' or"),
        ("torus", "kind torus needs dimensions. Add e.g. dimensions: .4, 4, 4."),
        ({"kind": "torus", "dimensions": [3, 5]}, "a torus of 3 x 5 nodes has 15 machines, and 16 are listed"),
        ({"kind": "fat-tree", "dimensions": [4]}, "kind fat-tree has no dimensions. Known: bandwidth, kind"),
        ({"kind": "fat-tree", "leaf": 4, "spines": 3}, "32 cables upwards from each switch cannot be dealt evenly"),
        ({"kind": "fat-tree", "leaf": 4, "oversubscription": 0.5}, "it must be at least 1"),
        ({"kind": "fat-tree", "leaf": 4, "oversubscription": 5}, "make an oversubscription of 4.571, not 5"),
        ({"kind": "fat-tree", "leaf": 16, "spines": 3}, "all machines stand on one leaf switch, so that spines would"),
        ({"kind": "fat-tree", "leaf": 4, "pod": 4}, "all 4 leaf switches stand in one pod, so that pod would change"),
        ({"kind": "fat-tree", "leaf": 4, "pod_oversubscription": 4}, "pod_oversubscription belongs to pods"),
        ({"kind": "rail-optimised", "leaf": 16, "spines": 3}, "all machines stand in one block of rails"),
        (
            {"kind": "fat-tree", "leaf": 4, "bandwidth": "1 bit/s"},
            "cables upwards from each switch. Is bandwidth right",
        ),
        ({"kind": "dragonfly", "leaf": 2, "routers": 4, "cables": 30_000}, "30000 cables are more than 20000"),
        ({"kind": "fat-tree", "bandwidth": "0 Gbit/s"}, "bandwidth"),
    ],
)
def test_a_network_that_cannot_be_built_is_refused(topology: object, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        asked(topology)


def test_a_topology_without_machines_is_refused() -> None:
    with pytest.raises(SpecError, match="it joins machines, and there is one"):
        asked("fat-tree", 1)
    with pytest.raises(SpecError, match="topology belongs to machines"):
        planner.load({"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "osf-testbed", "topology": "fat-tree"}})
    with pytest.raises(SpecError, match="rails need machines of several network cards"):
        asked("rail-optimised", network="400 Gbit/s", nics=1)


@pytest.mark.parametrize("family", ["pipeline", "parameter_server"])
def test_families_that_count_cards_refuse_cards_that_do_not_lead_to_all_machines(family: str) -> None:
    machine = {"count": 8, "device": "v100-sxm2-32gb", "devices": 8, "nics": 1, "network": "100 Gbit/s"}
    cluster = {"machines": [machine], "topology": {"kind": "nvlink-domain", "size": 4}}
    spec = {"dnn": {"zoo": "vgg16", "global_batch": 512}, "cluster": cluster, "families": [family]}
    with pytest.raises((SpecError, NoAnswerError), match="does not model the link"):
        planner.plan(planner.load(spec))
    assert (
        planner.load({**spec, "families": ["all_reduce"]}).cluster.own_link("v100-sxm2-32g-0").bandwidth_bytes_per_s
        > 1e12
    )


def test_single_machines_that_forward_are_shared_links_too() -> None:
    names = "abcdef"
    line = Cluster(
        "line", [machines(name, num_nics=2) for name in names], [(a, b, cable(10)) for a, b in pairwise(names)]
    )
    assert not routes_of(line).is_non_blocking
    assert routes_of(line).even_bytes_per_s < 10


def test_a_full_fat_tree_of_many_leaves_is_proven_by_its_levels() -> None:
    assert routes_of(asked({"kind": "fat-tree", "leaf": 1}, 80).cluster).is_non_blocking
    assert not routes_of(asked({"kind": "fat-tree", "leaf": 1, "oversubscription": 2}, 80).cluster).is_non_blocking


def test_a_machine_sends_no_faster_than_it_receives() -> None:
    nodes: list[MachineGroup | Switch] = [machines("a", 4, 4), Switch(name="s")]
    ways = [("a", "s", cable(10, count=4, is_one_way=True)), ("s", "a", cable(10, count=1, is_one_way=True))]
    cluster = Cluster("ways", nodes, ways)
    assert cluster.own_link("a").bandwidth_bytes_per_s == 10
    assert routes_of(cluster).ring(4).bandwidth_bytes_per_s == 10
    with pytest.raises(
        ValueError, match="1 network card of 'a' cannot hold 2 cables; write nics: 2, or fewer by count"
    ):
        Cluster("cards", [machines("a", 4, 1), Switch(name="s")], [("a", "s", cable(10, count=2))])


# -- questions ----------------------------------------------------------------------------------------------------------


def drawn_ring(*, reduces: bool = False) -> dict[str, object]:
    """Four switches in a ring with two machines on each, and a narrow link across it."""
    nodes = [{"name": f"m{index}", "count": 2, "device": "v100-sxm2-32gb"} for index in range(4)]
    switches = [{"name": f"s{index}", "type": "switch", "reduces": reduces} for index in range(4)]
    around: list[dict[str, object]] = [
        {"ends": [f"s{index}", f"s{(index + 1) % 4}"], "bandwidth": "100 Gbit/s", "latency": "5 us"}
        for index in range(4)
    ]
    around.append({"ends": ["s0", "s2"], "bandwidth": "5 Gbit/s", "latency": "5 us"})
    own = [{"ends": [f"m{index}", f"s{index}"], "bandwidth": "40 Gbit/s", "latency": "5 us"} for index in range(4)]
    return {"nodes": [*nodes, *switches], "links": [*own, *around]}


def question(cluster: object, **keys: object) -> dict[str, object]:
    return {
        "dnn": {"zoo": "resnet-50", "global_batch": 512},
        "cluster": cluster,
        "families": ["all_reduce"],
        "objective": "iteration_time",
        **keys,
    }


def test_the_number_of_devices_is_searched_right_where_more_machines_make_a_ring_no_narrower() -> None:
    """The ring over six machines closes over the narrow link, that over eight does not."""
    ring = drawn_ring()
    rates = [routes_of(planner.load(question(ring)).cluster).ring(number) for number in range(2, 9)]
    assert [rate.bandwidth_bytes_per_s for rate in rates] != sorted(
        (r.bandwidth_bytes_per_s for r in rates), reverse=True
    )
    found = planner.plan(planner.load(question(ring)))
    each = []
    for number in range(1, 9):
        one = planner.plan(planner.load(question(ring, fix={"num_devices": number})))
        each.append(one.prediction.iteration_time_s)
    assert found.status == "optimal"
    assert found.prediction.iteration_time_s == pytest.approx(min(each))


def test_machines_of_one_leaf_are_asked_for_all_leaves_alike() -> None:
    machine = {"count": 12, "device": "v100-sxm2-32gb", "network": "100 Gbit/s", "nics": 1}
    cluster = {"machines": [machine], "topology": {"kind": "fat-tree", "leaf": 2}}
    names = [one.name for one in perturbations(planner.load(question(cluster))) if one.name.startswith("machines")]
    assert names == ["machines+1:v100-sxm2-32g-0", "machines-1:v100-sxm2-32g-0"]


def test_switches_that_reduce_offer_it_and_others_do_not() -> None:
    plain = planner.plan(planner.load(question(drawn_ring())))
    reducing = planner.plan(planner.load(question(drawn_ring(reduces=True))))
    assert {group.algorithm for group in plain.configuration.fusion_groups} <= {"ring", "tree", "two_level"}  # type: ignore[attr-defined]
    assert "in_network" in {group.algorithm for group in reducing.configuration.fusion_groups}  # type: ignore[attr-defined]
    assert reducing.prediction.iteration_time_s < plain.prediction.iteration_time_s
    assert any("the network's switches add up, as the cluster says" in line for line in reducing.warnings)
    pinned = planner.plan(planner.load(question(drawn_ring(reduces=True), fix={"algorithm": "in_network"})))
    assert pinned.prediction.iteration_time_s >= reducing.prediction.iteration_time_s * (1 - 1e-12)


def test_a_networkx_graph_is_a_cluster() -> None:
    spec = drawn_ring()
    graph: nx.Graph[str] = nx.Graph()
    for node in spec["nodes"]:  # type: ignore[attr-defined]
        graph.add_node(node["name"], **{key: value for key, value in node.items() if key != "name"})
    for cable in spec["links"]:  # type: ignore[attr-defined]
        graph.add_edge(*cable["ends"], **{key: value for key, value in cable.items() if key != "ends"})
    found, truth = planner.load(question(graph)).cluster, planner.load(question(spec)).cluster
    assert found.machine_groups == truth.machine_groups
    assert {(frozenset(ends), link) for *ends, link in found.links} == {
        (frozenset(ends), link) for *ends, link in truth.links
    }
    ways = planner.load(question(graph.to_directed())).cluster
    assert {frozenset(link[:2]) for link in ways.links} == {frozenset(link[:2]) for link in truth.links}
    assert not any(cable.is_one_way for *_, cable in ways.links)
    parallel: nx.MultiGraph[str] = nx.MultiGraph(graph)
    parallel.add_edge("s0", "s1", **graph.edges["s0", "s1"])
    assert planner.load(question(parallel)).cluster.num_cables("s0", "s1") == 2
    parallel.add_edge("s0", "s1", bandwidth="1 Gbit/s")
    with pytest.raises(SpecError, match="edges s0 - s1 differ"):
        planner.load(question(parallel))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bandwidth": "0 Gbit/s"}, "cluster.links.0.bandwidth: it must be greater than 0"),
        ({"ends": ["m0", "m0"]}, "a link joins 'm0' to itself"),
        ({"ends": ["m0", "nowhere"]}, "a link ends at 'nowhere', which does not exist"),
        ({"directed": True}, "no way leads from machines 'm1' to 'm0'"),
        ({"count": 0}, "0 is too small"),
        ({"count": 30_000}, "30000 cables are more than 20000 side by side"),
    ],
)
def test_links_that_cannot_be_are_refused(change: dict[str, object], words: str) -> None:
    ring = drawn_ring()
    links = [dict(link) for link in ring["links"]]  # type: ignore[attr-defined]
    links[0].update(change)
    with pytest.raises(SpecError, match=words):
        planner.load(question({**ring, "links": links}))
