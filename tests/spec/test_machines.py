"""Machines as they are sold, one meaning of ``network``, and drawn clusters of which nothing is dropped in silence."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.answer.documents import dump
from planner.cluster import MachineGroup
from planner.errors import SpecError
from planner.problem import Assumption, Problem
from planner.procurement.check import check_file
from planner.routes import routes_of

CUSTOM = {"name": "mine", "fp32": "10 TFLOP/s", "memory": "24 GiB"}
SPINES: dict[str, Any] = {
    "nodes": [
        {"name": "a", "count": 4, "device": "h100-sxm", "devices": 8, "nics": 1, "inside": "nvlink-4"},
        {"name": "b", "count": 4, "device": "h100-sxm", "devices": 8, "nics": 1, "inside": "nvlink-4"},
        {"name": "spine-0", "type": "switch"},
        {"name": "spine-1", "type": "switch"},
    ],
    "links": [
        {"ends": [group, spine], "bandwidth": rate, "latency": "5 us"}
        for spine, rate in (("spine-0", "400 Gbit/s"), ("spine-1", "200 Gbit/s"))
        for group in ("a", "b")
    ],
}


def load(*machines: dict[str, Any], **more: Any) -> Problem:
    return planner.load({"dnn": {"zoo": "alexnet", "batch_per_device": 8}, "cluster": {"machines": machines}, **more})


def drawn(cluster: dict[str, Any]) -> Problem:
    return planner.load({"dnn": {"zoo": "alexnet", "batch_per_device": 8}, "cluster": cluster})


def group_of(problem: Problem) -> MachineGroup:
    return problem.cluster.machine_groups[0]


def about_machines(problem: Problem) -> list[Assumption]:
    """What was assumed about the machines and what joins them."""
    return [one for one in problem.key_assumptions if one.field[0] == "cluster"]


def card_bytes_per_s(problem: Problem) -> float:
    """The rate of one network card of the first machines."""
    ring = routes_of(problem.cluster).ring(problem.cluster.num_machines)
    return ring.bandwidth_bytes_per_s / group_of(problem).num_nics


@pytest.mark.parametrize(
    ("device", "devices", "inside_gb_per_s", "nics", "gbit_per_s"),
    [
        ("h800-sxm", 8, 200, 8, 400),
        ("h100", 8, 450, 8, 400),
        ("h100", 4, 450, 4, 400),
        ("h100", 1, None, 1, 400),
        ("a100", 8, 300, 8, 200),
        ("v100-32g", 16, 150, 8, 100),
        ("gb200", 72, 900, 72, 400),
        ("mi300x", 8, 448, 8, 400),
        ("trainium2", 16, 512, 16, 200),
        ("trainium2", 64, 640, 64, 200),
        ("gaudi3", 8, 525, 24, 200),
        ("l40s", 8, 31.5, 4, 100),
    ],
)
def test_a_device_does_not_lose_the_link_and_the_cards_of_the_machine_it_is_sold_in(
    device: str, devices: int, inside_gb_per_s: float | None, nics: int, gbit_per_s: float
) -> None:
    problem = load({"count": 4, "device": device, "devices": devices})
    found = group_of(problem)
    assert found.inside is None if inside_gb_per_s is None else found.inside is not None
    assert found.inside is None or found.inside.bandwidth_bytes_per_s == pytest.approx((inside_gb_per_s or 0) * 1e9)
    assert found.num_nics == nics
    assert card_bytes_per_s(problem) == pytest.approx(gbit_per_s * 1e9 / 8)


def test_a_bare_rate_is_not_that_of_the_whole_machine() -> None:
    problem = load({"count": 8, "device": "h100-sxm", "devices": 8, "network": "400 Gbit/s"})
    assert (group_of(problem).num_nics, card_bytes_per_s(problem)) == (8, 50e9)
    first = problem.key_assumptions[0]
    assert (first.field, first.flag, first.other) == (("cluster", "machines", 0, "nics"), "--nics", 1)
    assert "8 network cards of 400 Gbit/s each" in first.text and "HGX H100" in first.text


@pytest.mark.parametrize("text", ["8 x 400 Gbit/s", "8x400 Gbit/s", "8x 50 GB/s"])
def test_cards_times_rate_says_no_other_thing_than_nics_and_a_rate(text: str) -> None:
    said = load({"count": 8, "device": CUSTOM, "devices": 8, "network": text})
    apart = load({"count": 8, "device": CUSTOM, "devices": 8, "network": "400 Gbit/s", "nics": 8})
    both = load({"count": 8, "device": CUSTOM, "devices": 8, "network": text, "nics": 8})
    assert group_of(said) == group_of(apart) == group_of(both)
    assert card_bytes_per_s(said) == card_bytes_per_s(apart) == 50e9
    assert planner.load(said.resolved).cluster.machine_groups == said.cluster.machine_groups


def test_two_numbers_of_cards_are_not_both_taken() -> None:
    with pytest.raises(SpecError, match="has 8 cards, and nics says 4"):
        load({"count": 8, "device": "h100", "devices": 8, "network": "8 x 400 Gbit/s", "nics": 4})


@pytest.mark.parametrize("text", ["0 x 400 Gbit/s", "x 400 Gbit/s", "8 x ", "8 x 400", "8 x 8 x 400 Gbit/s"])
def test_cards_without_a_number_or_a_rate_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        load({"count": 8, "device": "h100", "devices": 8, "network": text})


def test_more_devices_than_any_machine_has_are_not_joined_by_its_link() -> None:
    with pytest.raises(SpecError, match=r"no machine of 16 h100-sxm is sold; HGX H100 has 8.*--inside"):
        load({"count": 2, "device": "h100-sxm", "devices": 16})
    found = group_of(load({"count": 2, "device": "h100-sxm", "devices": 16, "inside": "nvlink-4"}))
    assert (found.devices_per_machine, found.num_nics) == (16, 8)
    assert group_of(load({"device": "rtx-4090", "devices": 10})).devices_per_machine == 10


def test_a_device_of_the_user_s_keeps_one_card_and_pcie_and_says_so() -> None:
    problem = load({"count": 2, "device": CUSTOM, "devices": 4, "network": "25 Gbit/s"})
    found = group_of(problem)
    assert found.inside is not None
    assert (found.num_nics, found.inside.bandwidth_bytes_per_s) == (1, 15.75e9)
    assert "one network card of 25 Gbit/s" in problem.key_assumptions[0].text


def test_a_network_whose_rate_differs_from_server_to_server_is_to_be_said() -> None:
    with pytest.raises(SpecError, match="no network between them"):
        load({"count": 2, "device": "rtx-4090", "devices": 8})


@pytest.mark.parametrize(
    ("machine", "device", "devices", "nics"),
    [("dgx-h100", "h100-sxm", 8, 8), ("p5.48xlarge", "h100-sxm", 8, 32), ("nvl72", "gb200", 72, 72)],
)
def test_a_machine_by_its_name_is_not_asked_for_anything_else(
    machine: str, device: str, devices: int, nics: int
) -> None:
    problem = load({"count": 4, "machine": machine, "latency": "5 us"})
    found = group_of(problem)
    assert (found.device.name, found.devices_per_machine, found.num_nics) == (device, devices, nics)
    assert not about_machines(problem)
    assert "machine" not in problem.resolved["cluster"]["machines"][0]
    own = group_of(load({"count": 4, "machine": machine, "nics": 2, "network": "10 Gbit/s", "inside": "pcie-4-x16"}))
    assert own.inside is not None
    assert (own.num_nics, own.inside.bandwidth_bytes_per_s) == (2, 31.5e9)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"device": "a100"}, "has h100-sxm, and device is a100-sxm4-80gb"),
        ({"devices": 16}, "has 8 devices, and devices says 16"),
        ({"machine": "dgx-h1000"}, "is not a known machine"),
    ],
)
def test_what_contradicts_a_machine_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load({"count": 2, "machine": "dgx-h100", **more})


@pytest.mark.parametrize(
    "machines",
    [
        [{"count": 4, "device": "h100", "devices": 8}],
        [{"count": 4, "device": "h100", "devices": 4, "network": "100 Gbit/s"}, {"count": 2, "machine": "dgx-a100"}],
        [{"count": 2, "device": CUSTOM, "devices": 4, "network": "25 Gbit/s"}],
        [{"count": 2, "device": "rtx-2080-ti", "devices": 4, "network": "2 x 25 Gbit/s"}],
        [{"device": "l40s", "devices": 8}],
    ],
)
def test_a_resolved_question_leaves_nothing_about_machines_to_tables(machines: list[dict[str, Any]]) -> None:
    problem = load(*machines)
    again = planner.load(problem.resolved)
    assert again.cluster.machine_groups == problem.cluster.machine_groups
    assert set(again.cluster.graph.edges) == set(problem.cluster.graph.edges)
    assert not about_machines(again)
    assert again.resolved == problem.resolved
    for one in about_machines(problem):
        changed = json.loads(json.dumps(problem.resolved))
        place = changed
        for key in one.field[:-1]:
            place = place[key]
        assert one.field[-1] in place
        place[one.field[-1]] = one.other
        assert planner.load(changed).resolved != problem.resolved


def test_the_network_is_assumed_before_all_else_and_once_in_the_list_of_all() -> None:
    problem = load({"count": 4, "device": "h100", "devices": 8})
    assert problem.key_assumptions[:4] == tuple(about_machines(problem))
    assert [one.flag for one in about_machines(problem)] == ["--nics", "--network", "--inside", "--latency"]
    for one in about_machines(problem):
        assert problem.assumptions.count(one.text) == 1


def test_a_plan_file_of_before_reference_machines_still_means_one_card(tmp_path: Path) -> None:
    then = {"count": 2, "device": "h800-sxm", "devices": 8, "network": "100 Gbit/s"}
    explicit = load({**then, "nics": 1, "inside": {"bandwidth": "15.75 GB/s"}}, families=["all_reduce"])
    plan = planner.plan(explicit).to_dict()
    del plan["problem"]["cluster"]["machines"][0]["nics"]
    del plan["problem"]["cluster"]["machines"][0]["inside"]
    text = json.dumps(plan["problem"], sort_keys=True, default=str)
    plan["provenance"]["input_digest"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = tmp_path / "plan.json"
    file.write_text(dump(plan))
    assert planner.load(file).cluster.machine_groups == explicit.cluster.machine_groups
    assert planner.predict(planner.load(file)).iteration_time_s == plan["prediction"]["iteration_time_s"]
    assert check_file(file).is_ok


def test_a_plan_file_of_today_is_predicted_and_checked_alike(tmp_path: Path) -> None:
    found = planner.plan(load({"count": 2, "device": "h800-sxm", "devices": 8}, families=["all_reduce"]))
    file = tmp_path / "plan.json"
    file.write_text(dump(found.to_dict()))
    assert planner.predict(planner.load(file)).iteration_time_s == found.prediction.iteration_time_s
    assert check_file(file).is_ok


# -- drawn clusters ----------------------------------------------------------------------------------------------------


def test_a_spine_is_not_dropped_without_a_word_before_all_others() -> None:
    problem = drawn(SPINES)
    first = problem.key_assumptions[0]
    assert (first.flag, first.field, first.other) == ("cluster.links", ("cluster", "links"), None)
    assert "2 of the 4 links drawn carry nothing: a - spine-1 (200 Gbit/s), b - spine-1 (200 Gbit/s)." in first.text
    assert first.text in problem.assumptions and first.text in problem.warnings


def test_rails_of_one_group_share_its_cards() -> None:
    rails = {
        "nodes": [SPINES["nodes"][0], {"name": "rail-0", "type": "switch"}, {"name": "rail-1", "type": "switch"}],
        "links": [{"ends": ["a", f"rail-{index}"], "bandwidth": "400 Gbit/s"} for index in (0, 1)],
    }
    problem = drawn(rails)
    assert not any("carr" in text for text in problem.warnings)
    assert problem.cluster.own_link("a").bandwidth_bytes_per_s == 2 * 50e9  # a card on each rail


def test_what_is_assumed_alike_of_several_groups_is_not_several_assumptions() -> None:
    nodes = [{"name": name, "count": 2, "device": "h100-sxm", "devices": 8} for name in "ab"]
    links = [{"ends": [name, "s"], "bandwidth": "400 Gbit/s", "latency": "5 us"} for name in "ab"]
    network = {"zoo": "llama-2-7b", "global_batch": 64}
    cluster = {"nodes": [*nodes, {"name": "s", "type": "switch"}], "links": links}
    problem = planner.load({"dnn": network, "cluster": cluster, "families": ["hybrid"]})
    (cards,) = [one for one in problem.key_assumptions if one.flag == "--nics"]
    assert cards.text.startswith("a machine of a and b has 8 network cards")
    assert (cards.field, *cards.also) == (("cluster", "nodes", 0, "nics"), ("cluster", "nodes", 1, "nics"))
    (told,) = [line for line in planner.plan(problem).key_assumptions if line.endswith("(--nics)")]
    assert "; with 1: +" in told  # of one group alone no layout of equal machines would be possible


def test_one_drawn_machine_has_no_network_to_tell_of() -> None:
    nodes = [{"name": "a", "device": "h100-sxm", "devices": 8}, {"name": "s", "type": "switch"}]
    problem = drawn({"nodes": nodes, "links": [{"ends": ["a", "s"], "bandwidth": "1 Gbit/s", "latency": "5 us"}]})
    assert [one.flag for one in problem.key_assumptions if one.flag in ("--nics", "cluster.links")] == []
    assert not any("carr" in text for text in problem.warnings)


def test_cards_said_twice_as_text_are_no_contradiction() -> None:
    machine = {"count": 2, "device": "h100-sxm", "devices": 8, "network": "8 x 400 Gbit/s"}
    assert load({**machine, "nics": "8"}).cluster.machine_groups == load(machine).cluster.machine_groups


def test_a_tree_has_no_idle_link_to_warn_of() -> None:
    tree = {**SPINES, "links": [row for row in SPINES["links"] if "spine-0" in row["ends"]]}
    assert not drawn({**tree, "nodes": SPINES["nodes"][:3]}).warnings.count("carry nothing")
    assert routes_of(drawn({**tree, "nodes": SPINES["nodes"][:3]}).cluster).idle_links == ()


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"name": "spine-0", "type": "switch", "device": "h100-sxm"}, "a switch has no device"),
        ({"name": "spine-0", "type": "switch", "count": 2}, "a switch has no count"),
        ({"name": "c", "device": "h100-sxm", "network": "10 Gbit/s"}, "has no network of its own"),
        ({"name": "c"}, "this machine has no device"),
    ],
)
def test_keys_of_a_node_that_would_be_dropped_are_refused(node: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        drawn({"nodes": [node, *(one for one in SPINES["nodes"] if one["name"] != node["name"])], "links": []})


def test_unequal_leaves_are_not_taken_for_one_narrow_switch_without_a_word() -> None:
    leaves = {
        "nodes": [
            {"name": "a", "count": 4, "machine": "dgx-h100"},
            {"name": "b", "count": 2, "machine": "dgx-h100"},
            *({"name": name, "type": "switch"} for name in ("leaf-a", "leaf-b")),
        ],
        "links": [
            {"ends": ["a", "leaf-a"], "bandwidth": "400 Gbit/s", "latency": "5 us"},
            {"ends": ["b", "leaf-b"], "bandwidth": "400 Gbit/s", "latency": "5 us"},
            {"ends": ["leaf-a", "leaf-b"], "bandwidth": "100 Gbit/s", "latency": "5 us"},
        ],
    }
    problem = planner.load({"dnn": {"zoo": "bert-base", "global_batch": 64}, "cluster": leaves})
    assert "as wide as its narrowest place" in problem.key_assumptions[0].text
    assert problem.key_assumptions[0].text in problem.warnings
    wide = json.loads(json.dumps(leaves).replace("100 Gbit/s", "12.8 Tbit/s"))
    assert not about_machines(planner.load({"dnn": {"zoo": "bert-base", "global_batch": 64}, "cluster": wide}))


def test_the_latency_of_drawn_links_is_not_zero_without_a_word() -> None:
    bare = {**SPINES, "links": [{key: row[key] for key in ("ends", "bandwidth")} for row in SPINES["links"]]}
    assert about_machines(drawn(bare))[-1].text == "latency of 4 of 4 drawn links: 0, as none is given"


def test_trays_of_one_rack_have_no_link_that_somebody_drew() -> None:
    found = load({"count": 8, "device": "gb200", "devices": 4, "network": "1600 Gbit/s"})
    assert routes_of(found.cluster).idle_links
    assert not any("links drawn" in text for text in (*found.warnings, *found.assumptions))


def test_that_trays_form_no_domain_of_equal_size_is_said() -> None:
    said = "19 trays of 4 gb200 are no NVLink domain"
    tray = {"device": "gb200", "devices": 4, "network": "1600 Gbit/s"}
    assert any(said in one.text for one in load({"count": 19, **tray}).key_assumptions)
    assert not any("no NVLink domain" in one.text for one in load({"count": 1, **tray}).key_assumptions)


def test_devices_without_a_number_in_a_machine_are_one_each_which_is_said_where_none_is_sold_so() -> None:
    def warned(**machine: Any) -> bool:
        found = load({"name": "a", "network": "25 Gbit/s", **machine})
        return any("as no number of devices is given" in line for line in found.warnings)

    assert warned(count=8, device="h100-sxm")
    assert not warned(count=8, device="h100-sxm", devices=1)
    assert not warned(count=2, device="h100-sxm")
    assert not warned(count=8, device="t4")


def test_chips_that_one_interconnect_joins_need_no_network() -> None:
    with pytest.raises(SpecError, match=r"or write 1x64xtpu-v7 for those that ici-v7 joins"):
        load({"count": 16, "device": "tpu-v7", "devices": 4})


# -- what machines are called ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machines", "names"),
    [
        ([{"device": "h100"}], ["h100-sxm"]),
        ([{"machine": "hgx-h100"}, {"device": "K80"}], ["h100-sxm", "k80"]),
        ([{"device": "k80"}, {"device": CUSTOM}, {"device": "k80", "devices": 4}], ["k80", "mine", "k80 (2)"]),
        ([{"device": "k80"}, {"device": "v100-32g", "name": "k80"}], ["k80 (2)", "k80"]),
        ([{"device": "k80"}, {"device": "k80"}, {"device": "v100-32g", "name": "k80 (2)"}], ["k80", "k80 (3)", "k80 (2)"]),
        ([{"device": {**CUSTOM, "name": "network"}}, {"device": {**CUSTOM, "name": "leaf-0"}}], ["network (2)", "leaf-0 (1)"]),
    ],
)  # fmt: skip
def test_machines_without_a_name_are_called_by_their_device(machines: list[dict[str, Any]], names: list[str]) -> None:
    problem = load(*({"network": "10 Gbit/s", **one} for one in machines))
    assert [group.name for group in problem.cluster.machine_groups] == names


def test_no_machines_of_a_topology_are_called_as_others_are() -> None:
    device = {**CUSTOM, "name": "mine-0"}
    machines = [{"count": 3, "network": "10 Gbit/s", "device": one} for one in (CUSTOM, device)]
    cluster = {"machines": machines, "topology": {"kind": "fat-tree", "leaf": 2}}
    names = [group.name for group in drawn(cluster).cluster.machine_groups]
    assert names == ["mine-0", "mine-1", "mine-0 (1)-0", "mine-0 (1)-1"]


def test_assumptions_and_headlines_say_the_device() -> None:
    several = load(*({"count": 2, "device": name, "network": "1 Gbit/s"} for name in ("rtx-3090", "k80", "rtx-3090")))
    assert about_machines(several)[0].text == "network latency of rtx-3090, k80 and rtx-3090 (2): 20 us per hop"
    alone = load({"machine": "hgx-h100"}, families=["parameter_server"], objective="iteration_time")
    headline = planner.plan(alone).configuration.headline
    assert headline.startswith("1 machine of h100-sxm as worker, 1 server on the same machine")


TWO = [{"count": 2, "device": device, "network": "10 Gbit/s"} for device in ("rtx-3090", "k80")]


@pytest.mark.parametrize(
    ("family", "block"),
    [
        ("parameter_server", {"num_parameter_servers": 1, "servers": "machines-1", "workers": {"machines-0": 2}}),
        (
            "parameter_server",
            {
                "num_parameter_servers": 1,
                "workers": {"machines-0": 1, "machines-1": 1},
                "batch_shares": {"machines-0": 48, "machines-1": 16},
            },
        ),
        ("all_reduce", {"num_devices": 2, "machines": ["machines-1"]}),
        ("all_reduce", {"groups": {"machines-0": {"machines": 2, "batch_per_device": 24}, "machines-1": {"machines": 2, "batch_per_device": 8}}}),
        (
            "pipeline",
            {
                "stages": [
                    {"first": "input", "last": "pool3", "machines": "machines-1"},
                    {"first": "conv4_1", "last": "fc8", "machines": "machines-0"},
                ]
            },
        ),
    ],
)  # fmt: skip
def test_machines_without_a_name_may_be_called_by_their_number(family: str, block: dict[str, Any]) -> None:
    question = {"dnn": {"zoo": "vgg16", "global_batch": 64}, "cluster": {"machines": TWO}}
    text = json.dumps(block).replace("machines-0", "rtx-3090").replace("machines-1", "k80")
    former, named = (
        planner.load({**question, "configuration": {family: one}}).configuration for one in (block, json.loads(text))
    )
    assert former == named
    predictions = [planner.predict({**question, "configuration": {family: one}}) for one in (block, json.loads(text))]
    assert predictions[0] == predictions[1]


def test_a_pin_of_machines_by_their_number_holds() -> None:
    question = {"dnn": {"zoo": "vgg16", "global_batch": 64}, "cluster": {"machines": TWO}}
    assert planner.load({**question, "fix": {"servers": "machines-1"}}).fixed["servers"] == "k80"
    with pytest.raises(SpecError, match=r"no group 'machines-2'\. Write one of rtx-3090, k80"):
        planner.load({**question, "fix": {"servers": "machines-2"}})


def test_a_name_that_the_user_gives_is_no_number_of_others() -> None:
    machines = [{"name": "machines-1", **TWO[0]}, TWO[1]]
    question = {"dnn": {"zoo": "vgg16", "global_batch": 64}, "cluster": {"machines": machines}}
    assert planner.load({**question, "fix": {"servers": "machines-1"}}).fixed["servers"] == "machines-1"


def test_machines_at_a_leaf_may_be_called_by_their_numbers() -> None:
    block = {"stages": [{"first": "input", "last": "pool3", "machines": "machines-1-0"}]}
    cluster = {"machines": TWO, "topology": {"kind": "fat-tree", "leaf": 1}}
    names = drawn(cluster).cluster.with_names(block)["stages"]
    assert names == [{"first": "input", "last": "pool3", "machines": "k80-0"}]
