"""What links are taken to reach where a question gives no efficiency: by its transport, said or told by the cards."""

from typing import Any

import pytest

import planner
from planner.data.fits import links_reached, transformer_rates
from planner.families.hybrid.cost import HybridCost, Placement, cost_of_machines, costs_of
from planner.models.compute import Constants
from planner.plan import Plan
from planner.problem import Calibration, Problem
from planner.routes import routes_of

MOST_TCP_BYTES_PER_S = links_reached("tcp").most_bytes_per_card


def question(network: str, *, device: str = "rtx-2080-ti", nics: int = 1, **calibration: Any) -> Problem:
    machine = {"count": 4, "device": device, "devices": 4, "network": network, "nics": nics}
    dnn = {"zoo": "vgg16", "batch_per_device": 32}
    spec = {"dnn": dnn, "cluster": {"machines": [machine]}, "families": ["all_reduce"], "calibration": calibration}
    return planner.load({**spec, "objective": "iteration_time"})


def reached(problem: Problem) -> float:
    """Bytes a second of a machine, of what its cards are sold by."""
    nominal = routes_of(problem.cluster).ring(problem.cluster.num_machines).bandwidth_bytes_per_s
    return problem.calibration.links.network_bytes_per_s(nominal, *problem.cluster.machine_groups)


@pytest.mark.parametrize(
    ("network", "transport", "bytes_per_s"),
    [
        ("1 Gbit/s", None, 0.89 * 0.125e9),
        ("10 Gbit/s", None, 0.89 * 1.25e9),
        ("25 Gbit/s", None, MOST_TCP_BYTES_PER_S),
        ("100 Gbit/s", "tcp", MOST_TCP_BYTES_PER_S),
        ("10 Gbit/s", "rdma", 0.89 * 1.25e9),  # no less than TCP
        ("20 Gbit/s", "rdma", MOST_TCP_BYTES_PER_S),
        ("30 Gbit/s", "rdma", transformer_rates()["constants"]["outside_efficiency"] * 3.75e9),
        ("100 Gbit/s", None, 0.32 * 15.75e9),  # by PCIe, which is narrower
        ("100 Gbit/s", "rdma", 0.32 * 15.75e9),
    ],
)
def test_what_a_machine_sends_follows_from_its_transport(
    network: str, transport: str | None, bytes_per_s: float
) -> None:
    given: dict[str, Any] = {} if transport is None else {"transport": transport}
    assert reached(question(network, **given)) == pytest.approx(bytes_per_s)


def test_devices_that_nvlink_joins_reach_what_transformers_did() -> None:
    problem, constants = question("100 Gbit/s", device="v100-sxm2-16g"), transformer_rates()["constants"]
    (group,), links = problem.cluster.machine_groups, problem.calibration.links
    assert links.network_share == constants["outside_efficiency"]
    assert links.share_inside(group) == constants["inside_efficiency"]
    assert links.most_bytes_per_s(group) == float("inf")


def test_each_card_of_tcp_is_bounded_and_all_of_them_by_pcie() -> None:
    assert reached(question("25 Gbit/s", nics=2)) == pytest.approx(2 * MOST_TCP_BYTES_PER_S)
    assert reached(question("25 Gbit/s", nics=8)) == pytest.approx(0.32 * 15.75e9)


@pytest.mark.parametrize("given", [{"bandwidth_efficiency": 1}, {"bandwidth_efficiency": 1, "transport": "tcp"}])
def test_an_efficiency_that_is_given_counts_alone(given: dict[str, Any]) -> None:
    problem = question("100 Gbit/s", **given)
    assert reached(problem) == 12.5e9
    assert problem.calibration.links.share_inside(*problem.cluster.machine_groups) == 1
    assert not any("uncalibrated" in one for one in problem.warnings)


def test_a_measured_curve_leaves_the_rest_as_others_measured_it() -> None:
    curve = {"num_devices": 16, "points": [["1 MB", "1 ms"], ["100 MB", "90 ms"]]}
    assert reached(question("25 Gbit/s", curves=[curve])) == reached(question("25 Gbit/s")) < 25e9 / 8


def planned(network: str, **calibration: Any) -> Plan:
    return planner.plan(question(network, **calibration))


@pytest.mark.usefixtures("wordless")
def test_a_faster_network_never_makes_a_plan_slower() -> None:
    rates = [1, 5, 10, 20, 25, 26, 40, 50, 100, 200, 400]
    seconds = [planned(f"{rate} Gbit/s").objective for rate in rates]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 3 * seconds[-1]


def test_tcp_is_slower_than_rdma_and_both_are_than_the_rate_as_sold() -> None:
    tcp, rdma = (planned("100 Gbit/s", transport=one).objective for one in ("tcp", "rdma"))
    assert tcp > 1.1 * rdma > planned("100 Gbit/s", bandwidth_efficiency=1).objective


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("all_reduce", {"num_devices": 16}),
        ("parameter_server", {"num_parameter_servers": 1}),
        ("hybrid", {"tensor": 2, "data": 8, "microbatch": 2}),
    ],
)
@pytest.mark.parametrize("gbit_per_s", [1, 10, 22, 25, 100])
def test_rdma_is_never_slower_than_tcp_and_naming_what_is_assumed_changes_nothing(
    family: str, layout: dict[str, int], gbit_per_s: int
) -> None:
    machine = {"count": 4, "device": "rtx-3090", "devices": 4, "network": f"{gbit_per_s} Gbit/s"}
    dnn = {"zoo": "bert-large", "global_batch": 64, "dtype": "bf16"}
    if family == "parameter_server":
        dnn = {"zoo": "vgg16", "batch_per_device": 32}
    spec = {"dnn": dnn, "cluster": {"machines": [machine]}, "configuration": {family: layout}}
    usual, tcp, rdma, wide = (
        planner.predict(planner.load({**spec, "calibration": one})).iteration_time_s
        for one in ({}, {"transport": "tcp"}, {"transport": "rdma"}, {"bandwidth_efficiency": 0.99})
    )
    assert wide < rdma <= tcp
    assert usual == (tcp if gbit_per_s <= 25 else rdma)


_KINDS = {
    "many cards": {"count": 2, "device": "h100-sxm", "devices": 8, "network": "25 Gbit/s", "nics": 8},
    "one card": {"count": 2, "device": "v100-sxm2-16g", "devices": 4, "network": "25 Gbit/s", "nics": 1},
    "pcie": {"count": 2, "device": "l40s", "devices": 4, "network": "100 Gbit/s", "nics": 4},
    "one device": {"count": 2, "device": "t4", "devices": 1, "network": "25 Gbit/s", "nics": 1},
}


def own_figures(kinds: list[str], **calibration: Any) -> dict[str, list[float]]:
    """What a machine of each kind reaches inside, and of what its cards are sold by; all of them of a rate of both."""
    machines = [{"name": name, **_KINDS[name]} for name in kinds]
    dnn = {"zoo": "vgg16", "global_batch": 64}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}, "calibration": calibration})
    links, cluster = problem.calibration.links, problem.cluster
    return {
        group.name: [
            links.inside_bytes_per_s(group),
            links.network_bytes_per_s(cluster.own_link(group.name).bandwidth_bytes_per_s, group),
        ]
        for group in cluster.machine_groups
    }


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
@pytest.mark.parametrize("kinds", [["many cards", "one card"], ["pcie", "many cards"], [*_KINDS]])
def test_what_a_machine_reaches_depends_on_no_other_in_its_cluster(kinds: list[str], transport: str) -> None:
    """Neither cards nor NVLink of others widen a machine, and PCIe of others bounds none."""
    together = own_figures(kinds, transport=transport)
    for name in kinds:
        assert together[name] == own_figures([name], transport=transport)[name]
    inside, network = together.get("pcie", (0.32 * 31.5e9, 0.0))
    assert inside == pytest.approx(0.32 * 31.5e9)
    assert network <= inside * (1 + 1e-12)


def test_what_bounds_each_kind_of_machines_is_said_of_it() -> None:
    machines = [{"name": name, **_KINDS[name]} for name in ("many cards", "pcie")]
    problem = planner.load({"dnn": {"zoo": "vgg16", "global_batch": 64}, "cluster": {"machines": machines}})
    (line,) = [one.text for one in problem.key_assumptions if one.flag == "calibration.transport"]
    assert line == (
        "transport: rdma, which reaches 68.6 % of the network's rate; on h100-sxm links reach 85 % inside machines; "
        "on l40s at most 80.6 Gbit/s a machine, links reach 32 % inside machines"
    )


def test_machines_that_take_no_part_in_an_all_reduce_bound_it_not() -> None:
    """Of one device, machines with few cards stand behind those with many, which do without them."""
    kind = {"count": 2, "device": "v100-sxm2-16g", "devices": 4, "network": "25 Gbit/s"}
    many, few = {"name": "many", **kind, "nics": 4}, {"name": "few", **kind, "nics": 1}

    def seconds(number: int, *machines: dict[str, Any]) -> float:
        spec = {"dnn": {"zoo": "vgg16", "global_batch": 96}, "cluster": {"machines": list(machines)}}
        return planner.predict({**spec, "configuration": {"all_reduce": {"num_devices": number}}}).iteration_time_s

    assert seconds(8, many, few) == pytest.approx(seconds(8, many))
    assert seconds(12, many, few) > seconds(8, many)


def test_wider_networks_have_wider_hosts_and_wider_links_inside_leave_networks_as_they_are() -> None:
    problem = question("100 Gbit/s")
    assert reached(problem) == pytest.approx(0.32 * 15.75e9)
    assert reached(planner.perturb.wider_network(problem, 2)) == pytest.approx(2 * 0.32 * 15.75e9)
    inside = planner.perturb.wider_inside(problem, 8)  # beyond what else is PCIe
    assert reached(inside) == pytest.approx(0.32 * 15.75e9)
    (group,) = inside.cluster.machine_groups
    assert inside.calibration.links.inside_bytes_per_s(group) == pytest.approx(8 * 0.32 * 15.75e9)
    tcp = question("25 Gbit/s")
    assert reached(planner.perturb.wider_network(tcp, 2)) == pytest.approx(2 * MOST_TCP_BYTES_PER_S)


def test_machines_of_one_device_that_reach_unlike_rates_are_told_apart_by_their_names() -> None:
    kind = {"count": 2, "device": "l40s", "devices": 4, "network": "25 Gbit/s"}
    machines = [{"name": "one", **kind, "nics": 1}, {"name": "many", **kind, "nics": 4}, {**_KINDS["one device"]}]
    problem = planner.load({"dnn": {"zoo": "vgg16", "global_batch": 64}, "cluster": {"machines": machines}})
    (line,) = [one.text for one in problem.key_assumptions if one.flag == "calibration.transport"]
    _, one, many, alone = line.split("; ")
    assert one == "on one at most 16.2 Gbit/s a machine, links reach 32 % inside machines"
    assert many == "on many at most 64.6 Gbit/s a machine, links reach 32 % inside machines"
    assert alone == "on t4 at most 16.2 Gbit/s a machine"


@pytest.mark.parametrize(
    ("count", "kinds"), [(2, ["h100-sxm"]), (1, ["h100-sxm"]), (1, ["h100-sxm", "a100-sxm4-80gb"])]
)
def test_of_links_that_no_machine_has_nothing_is_said(count: int, kinds: list[str]) -> None:
    """Machines of one device have none inside, and one device has none at all."""
    machines = [{"count": count, "device": name, "devices": 1, "network": "400 Gbit/s"} for name in kinds]
    dnn = {"zoo": "llama3.2-1b", "global_batch": 32, "dtype": "bf16"}
    for calibration in ({}, {"transport": "tcp"}):
        spec = {"dnn": dnn, "cluster": {"machines": machines}, "calibration": calibration}
        problem = planner.load({**spec, "families": ["all_reduce", "hybrid"]})
        said = [*problem.assumptions, *(one.text for one in problem.key_assumptions)]
        assert not any("inside" in one for one in said)
        assert any("links" in one or "transport" in one for one in said) == (problem.cluster.num_devices > 1)


@pytest.mark.parametrize("family", ["all_reduce", "parameter_server", "pipeline", "hybrid"])
def test_network_cards_bound_no_links_between_trays_that_take_none(family: str) -> None:
    """In a rack all goes by NVLink: whatever transport its network cards have, and however narrow they are."""
    pins = {"num_devices": 16} if family in ("all_reduce", "parameter_server") else {}
    pins |= {"tensor_parallel_size": 16} if family == "hybrid" else {}
    spec = {
        "dnn": {"zoo": "bert-large", "global_batch": 64, "dtype": "bf16"},
        "families": [family],
        "objective": "iteration_time",
        "fix": pins,
    }
    usual, tcp, narrow = (
        planner.plan({**spec, "cluster": {"machines": [{**_RACK, "network": rate}]}, "calibration": given}).objective
        for rate, given in (("400 Gbit/s", {}), ("400 Gbit/s", {"transport": "tcp"}), ("25 Gbit/s", {}))
    )
    assert narrow == tcp == pytest.approx(usual, rel=1e-12)


_RACK = {"count": 4, "device": "gb200", "devices": 4}


def test_between_racks_network_cards_bound_what_they_send_and_within_each_nothing_is() -> None:
    rack = {**_RACK, "count": 36, "network": "400 Gbit/s"}
    spec = {"dnn": {"zoo": "llama3.2-1b", "global_batch": 144}, "cluster": {"machines": [rack]}}
    problem = planner.load({**spec, "calibration": {"transport": "tcp"}})
    cost, shares = cost_of_machines(problem, None), links_reached("tcp")
    within, between = (tier.unit_bytes_per_s * cost.constants.outside_efficiency for tier in cost.tiers[1:])
    assert within == pytest.approx(shares.scale_up_share * 4 * 900e9)
    assert shares.scale_up_share == links_reached("rdma").network_share  # as any link that was fitted to
    given = planner.load({**spec, "calibration": {"bandwidth_efficiency": 0.5}}).calibration.links
    assert given.network_bytes_per_s(4 * 900e9, *problem.cluster.machine_groups) == pytest.approx(0.5 * 4 * 900e9)
    assert between / 18 == pytest.approx(4 * MOST_TCP_BYTES_PER_S)
    wider = planner.perturb.wider_network(problem, 2).calibration.links
    assert wider.network_bytes_per_s(2 * 4 * 900e9, *problem.cluster.machine_groups) == pytest.approx(2 * within)


def test_a_network_through_several_machines_is_what_the_slowest_of_them_reaches() -> None:
    machines = [{"name": name, **_KINDS[name]} for name in ("many cards", "one card", "pcie")]
    dnn = {"zoo": "vgg16", "global_batch": 64}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}, "calibration": {"transport": "tcp"}})
    links, groups = problem.calibration.links, problem.cluster.machine_groups
    for rate in (1e9, 3.125e9, 12.5e9, 100e9):
        own = [links.network_bytes_per_s(rate, one) for one in groups]
        assert links.network_bytes_per_s(rate, *groups) == min(own)
        assert links.share_of_network(rate, *groups) == pytest.approx(min(own) / rate)


@pytest.mark.parametrize(("name", "machines", "devices"), [("bandwidth_efficiency", 4, 1), ("inside_efficiency", 1, 4)])
@pytest.mark.parametrize("family", ["all_reduce", "pipeline", "hybrid"])
def test_every_share_that_is_given_counts_and_1_is_one_of_them(
    family: str, name: str, machines: int, devices: int
) -> None:
    """However little it differs from one that is no share at all, and aloud."""
    machine = {"count": machines, "device": "l40s", "devices": devices, "network": "100 Gbit/s"}
    pins = {"all_reduce": {"num_devices": 4}, "pipeline": {"num_stages": 4}, "hybrid": {"tensor_parallel_size": 4}}
    spec = {
        "dnn": {"zoo": "bert-large", "global_batch": 64, "dtype": "bf16"},
        "cluster": {"machines": [machine]},
        "families": [family],
        "objective": "iteration_time",
        "fix": pins[family],
    }
    problems = [planner.load({**spec, "calibration": {name: share}}) for share in (0.6, 0.99, 1 - 1e-12, 1.0)]
    slow, near, same, sold = (planner.plan(one).objective for one in problems)
    assert slow > near > sold
    assert same == pytest.approx(sold)
    said = [*problems[-1].assumptions, *(one.text for one in problems[-1].key_assumptions)]
    assert any("100 %" in line and f"(calibration.{name})" in line for line in said)


@pytest.mark.parametrize(
    ("network", "given", "is_fitted"),
    [
        ("400 Gbit/s", {}, True),
        ("25 Gbit/s", {}, False),
        ("400 Gbit/s", {"transport": "tcp"}, False),
        ("400 Gbit/s", {"bandwidth_efficiency": 0.5}, False),
    ],
)
def test_shares_of_links_are_said_to_be_those_of_transformers_only_where_they_are(
    network: str, given: dict[str, Any], is_fitted: bool
) -> None:
    machine = {"count": 2, "device": "h100-sxm", "devices": 8, "network": network, "nics": 8}
    spec = {"dnn": {"zoo": "llama3.2-1b", "global_batch": 32}, "cluster": {"machines": [machine]}}
    said = planner.load({**spec, "families": ["hybrid"], "calibration": given}).assumptions
    (line,) = [one for one in said if "as fitted to transformers" in one]
    assert ("shares of the links" in line) == is_fitted


def kinds_of(*groups: tuple[int, str, str, int]) -> Problem:
    """Return a question about a transformer on groups of a number of machines of a device, network and cards."""
    machines = [
        {"name": name, "count": count, "device": device, "devices": 8, "network": network, "nics": nics}
        for name, (count, device, network, nics) in zip("ab", groups, strict=False)
    ]
    dnn = {"zoo": "llama3.2-1b", "global_batch": 32}
    return planner.load({"dnn": dnn, "cluster": {"machines": machines}, "families": ["hybrid"]})


def own_reached(problem: Problem) -> list[float]:
    """Bytes a second that layouts count a machine of each group with, by its network."""
    costs = [cost_of_machines(problem, one.name) for one in problem.cluster.machine_groups]
    own = [problem.cluster.own_link(one.name).bandwidth_bytes_per_s for one in problem.cluster.machine_groups]
    return [cost.constants.outside_efficiency * rate for cost, rate in zip(costs, own, strict=True)]


@pytest.mark.parametrize("counts", [(2, 2), (1, 2)])
@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (("h100-sxm", "100 Gbit/s", 8), ("v100-sxm2-16g", "10 Gbit/s", 1)),
        (("h100-sxm", "25 Gbit/s", 1), ("v100-sxm2-16g", "10 Gbit/s", 1)),
        (("l40s", "400 Gbit/s", 1), ("t4", "10 Gbit/s", 1)),
    ],
)
def test_each_kind_of_machines_reaches_a_share_of_its_own_network(
    wide: tuple[str, str, int], narrow: tuple[str, str, int], counts: tuple[int, int]
) -> None:
    """As in all families: a narrow network elsewhere widens none, and hides no bound of PCIe or of TCP."""
    problem = kinds_of((counts[0], *wide), (counts[1], *narrow))
    own = [problem.cluster.own_link(one.name).bandwidth_bytes_per_s for one in problem.cluster.machine_groups]
    links, groups = problem.calibration.links, problem.cluster.machine_groups
    expected = [links.network_bytes_per_s(rate, group) for rate, group in zip(own, groups, strict=True)]
    assert own_reached(problem) == pytest.approx(expected)
    assert expected[0] < 0.88 * own[0]


@pytest.mark.parametrize(
    ("device", "network", "nics", "oversubscription"),
    [("h100-sxm", "100 Gbit/s", 8, 8), ("l40s", "400 Gbit/s", 1, 8), ("h100-sxm", "25 Gbit/s", 1, 4)],
)
def test_each_level_of_switches_reaches_a_share_of_its_own_rate(
    device: str, network: str, nics: int, oversubscription: int
) -> None:
    """What narrow spines reach widens no leaf switch, and what bounds cards does not bind behind them."""
    machine = {"count": 16, "device": device, "devices": 8, "network": network, "nics": nics}
    topology = {"kind": "fat-tree", "leaf": 8, "oversubscription": oversubscription}
    cluster = {"machines": [machine], "topology": topology}
    problem = planner.load({"dnn": {"zoo": "llama3.2-1b", "global_batch": 32}, "cluster": cluster})
    cost, units = cost_of_machines(problem, None), routes_of(problem.cluster).units
    assert units is not None
    sold = [unit.machine_bytes_per_s for unit in units]
    assert len(sold) == 2
    leaf, spine = (tier.unit_bytes_per_s * cost.constants.outside_efficiency for tier in cost.tiers[1:])
    reached = problem.calibration.links.network_bytes_per_s
    expected = [reached(rate, *problem.cluster.machine_groups) for rate in sold]
    assert [leaf, spine / 8] == pytest.approx(expected)
    usual = Constants(**transformer_rates()["constants"]).exchange_efficiency
    more = cost.constants.exchange_efficiency / cost.constants.outside_efficiency
    for rate, whole, own in zip((leaf * more, spine / 8 * more), sold, expected, strict=True):
        assert rate <= max(own, usual * whole) * (1 + 1e-12)


def test_between_kinds_of_machines_the_narrower_network_reaches_what_it_does_alone() -> None:
    problem = kinds_of((2, "h100-sxm", "100 Gbit/s", 8), (2, "v100-sxm2-16g", "10 Gbit/s", 1))
    cost = HybridCost(tuple(costs_of(problem)), Placement.STAGES)
    joined = [group.joint_tiers[-1].unit_bytes_per_s for group in cost._device_groups]
    shares = [one.constants.outside_efficiency for one in cost.groups]
    assert [rate * share for rate, share in zip(joined, shares, strict=True)] == pytest.approx([0.89 * 1.25e9] * 2)


def test_what_rdma_reaches_on_narrow_cards_is_said() -> None:
    (line,) = [one for one in question("10 Gbit/s", transport="rdma").assumptions if "transport: rdma" in one]
    assert "but no less than TCP: 89 %, up to 16.2 Gbit/s a machine" in line
    (line,) = [one for one in question("100 Gbit/s", transport="rdma").assumptions if "transport: rdma" in one]
    assert "TCP" not in line


def test_transformers_say_links_that_are_not_those_of_their_fit() -> None:
    def said(network: str, device: str) -> list[str]:
        machine = {"count": 4, "device": device, "devices": 8, "network": network}
        dnn = {"zoo": "bert-large", "global_batch": 64, "dtype": "bf16"}
        problem = planner.load({"dnn": dnn, "cluster": {"machines": [machine]}})
        return [one.text for one in problem.key_assumptions if one.flag == "calibration.transport"]

    assert not said("100 Gbit/s", "h100-sxm")
    assert said("10 Gbit/s", "h100-sxm")[0].startswith("transport: tcp, which reaches 89 % of the network's rate")
    assert "at most 80.6 Gbit/s a machine" in said("400 Gbit/s", "rtx-3090")[0]


def test_the_transport_is_said_where_it_was_assumed() -> None:
    assumed, told = question("100 Gbit/s"), question("100 Gbit/s", transport="rdma")
    (line,) = [one for one in assumed.key_assumptions if one.text.startswith("transport: rdma")]
    assert (line.flag, line.other) == ("calibration.transport", "tcp")
    assert "32 % inside machines" in line.text
    assert "at most 40.3 Gbit/s a machine" in line.text
    assert not [one for one in told.key_assumptions if one.text.startswith("transport")]
    assert any(one.startswith("transport: rdma") for one in told.assumptions)


def test_experts_reach_as_much_more_of_a_network_as_they_do_of_the_usual_one() -> None:
    spec = {
        "dnn": {"zoo": "mixtral-8x7b", "global_batch": 64},
        "cluster": {"machines": [{"count": 4, "device": "h100-sxm", "devices": 8, "network": "400 Gbit/s"}]},
        "families": ["hybrid"],
    }
    usual = Constants(**transformer_rates()["constants"])
    for given in (usual.outside_efficiency / 2, usual.outside_efficiency, 1 - 1e-9):
        problem = planner.load({**spec, "calibration": {"bandwidth_efficiency": given}})
        found = cost_of_machines(problem, None).constants
        assert found.outside_efficiency == pytest.approx(given)
        more = usual.exchange_efficiency / usual.outside_efficiency
        widest = max(given, usual.exchange_efficiency)
        assert found.exchange_efficiency == pytest.approx(min(widest, more * given))


@pytest.mark.usefixtures("wordless")
def test_hybrid_counts_with_the_shares_that_were_fitted_with_its_seconds_on_cards_like_theirs() -> None:
    machine = {"count": 4, "device": "a100-sxm4-80gb", "devices": 8, "network": "200 Gbit/s"}
    spec: dict[str, Any] = {
        "dnn": {"zoo": "bert-large", "global_batch": 256, "dtype": "bf16"},
        "cluster": {"machines": [machine]},
        "families": ["hybrid"],
        "objective": "iteration_time",
    }
    constants = transformer_rates()["constants"]
    given = {
        "bandwidth_efficiency": constants["outside_efficiency"],
        "inside_efficiency": constants["inside_efficiency"],
    }
    usual, same, tcp = (
        planner.plan(planner.load({**spec, "calibration": one})) for one in ({}, given, {"transport": "tcp"})
    )
    assert usual.objective == pytest.approx(same.objective)
    assert tcp.objective > usual.objective


def test_a_calibration_of_ones_own_has_the_rates_as_sold() -> None:
    (group,) = question("100 Gbit/s").cluster.machine_groups
    assert Calibration().links.network_bytes_per_s(12.5e9, group) == 12.5e9
