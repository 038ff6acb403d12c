"""Sums that are sent on their own: what overlap, barrier and pieces do to a plan, and what of them is refused."""

from typing import Any, get_args

import pytest

import planner
from planner.api import configuration_of, timeline
from planner.decisions import ServerOverlap
from planner.errors import InfeasibleError, SpecError
from planner.families.parameter_server.bounds import Space, lower_bounds, root, tightened
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.parameter_server.search import row_configuration
from planner.models.exchange import Overlap
from planner.plan import Prediction

LAYERS: list[dict[str, Any]] = [
    {"name": name, "inputs": [before] if before else [], "forward": forward, "backward": backward, "parameters": size, "output": "1 MB"}
    for name, before, forward, backward, size in (
        ("a", "", "10 ms", "20 ms", "2 MB"),
        ("b", "a", "10 ms", "20 ms", "8 MB"),
        ("c", "b", "10 ms", "20 ms", "30 MB"),
    )
]  # fmt: skip


def question(network: str = "2 Gbit/s", **more: Any) -> dict[str, Any]:
    """A network of 40 MB on four machines, two more may serve."""
    machine = {"device": "rtx-3090", "devices": 1, "network": network, "latency": "0 s"}
    return {
        "dnn": {"layers": LAYERS, "profile_batch": 8, "batch_per_device": 8},
        "cluster": {"machines": [{"name": "w", "count": 4, **machine}, {"name": "s", "count": 2, **machine}]},
        "families": ["parameter_server"],
        "objective": "iteration_time",
        "calibration": {"bandwidth_efficiency": 1},
        **more,
    }


def predicted(network: str = "2 Gbit/s", **block: Any) -> Prediction:
    """What a configuration of two dedicated servers costs."""
    given = {"num_parameter_servers": 2, "workers": {"w": 4}, "servers": "s", **block}
    return planner.predict(planner.load(question(network, configuration={"parameter_server": given})))


def seconds(network: str = "2 Gbit/s", **block: Any) -> float:
    """Its seconds of an iteration."""
    return predicted(network, **block).iteration_time_s


def test_overlaps_have_the_same_names_in_spec_and_model() -> None:
    assert get_args(ServerOverlap) == tuple(Overlap)


def test_each_further_overlap_saves_time_here_and_the_parts_sum_to_the_iteration() -> None:
    found = [
        predicted(overlap="none"),
        predicted(overlap="push"),
        predicted(overlap="push_pull"),
        predicted(overlap="push_pull_forward"),
        predicted(overlap="push_pull_forward", partition_bytes="1 MB"),
        predicted(overlap="push_pull_forward", partition_bytes="1 MB", priority=True),
    ]
    iterations = [one.iteration_time_s for one in found]
    assert iterations == sorted(iterations, reverse=True)
    assert len(set(iterations)) >= 4  # the last layer is the largest here: nothing runs forward before its sum
    for one in found:
        assert sum(one.breakdown_s.values()) == pytest.approx(one.iteration_time_s)
        assert min(one.breakdown_s.values()) >= 0


def test_the_exchange_is_that_of_a_computation_by_hand() -> None:
    # Every worker pushes 32 MB and 8 MB (c and a to server 0, b to server 1) at 250 MB/s; 4 workers share a server's link.
    found = predicted(overlap="push_pull", placement={"c": 0, "b": 1, "a": 0})
    # c: ready 20 ms into the backward pass, 120 MB over 250 MB/s: at 500 ms; its sums go back until 980 ms. a waits
    # behind it: 8 MB, from 500 until 532 ms, its sums from 980 until 1,012 ms. Then 30 ms forward.
    assert found.iteration_time_s == pytest.approx(1.012 + 0.030 + found.breakdown_s["update"])
    assert found.details["overlap"] == "push_pull"
    assert found.details["barrier"] is False


def test_behind_a_barrier_and_by_default_everything_is_as_before() -> None:
    for overlap, strategy in (("push", "mxnet"), ("none", "naive")):
        given = {"num_parameter_servers": 2, "workers": {"w": 4}, "servers": "s"}
        plain = question(
            calibration={"strategy": strategy, "bandwidth_efficiency": 1}, configuration={"parameter_server": given}
        )
        assert planner.predict(planner.load(plain)).iteration_time_s == seconds(overlap=overlap)
        assert seconds(overlap=overlap, barrier=True) == seconds(overlap=overlap)


def test_pieces_lie_by_the_rule_and_are_all_there() -> None:
    given = {"num_parameter_servers": 2, "workers": {"w": 4}, "servers": "s", "overlap": "push_pull"}
    problem = planner.load(
        question(configuration={"parameter_server": {**given, "partition_bytes": "3 MB", "placement": "round_robin"}})
    )
    cost = ParameterServerCost(problem, configuration_of(problem)[1])  # type: ignore[arg-type]
    assert cost.pieces.tolist() == [10, 3, 1]  # of c, b, a
    assert cost.placed_bytes.sum(axis=1) == pytest.approx([30e6, 8e6, 2e6])
    assert cost.placed_pieces_bytes.max() == 3e6
    assert cost.held_bytes == pytest.approx([20e6, 20e6])


@pytest.mark.parametrize("overlap", ["push_pull", "push_pull_forward"])
def test_a_pinned_overlap_is_planned_read_back_and_drawn(overlap: str) -> None:
    problem = planner.load(question(fix={"overlap": overlap}))
    plan = planner.plan(problem)
    block = plan.configuration.to_document()
    assert block["overlap"] == overlap
    assert plan.bound <= plan.objective
    assert f"overlap {overlap}" in plan.configuration.headline
    again = planner.load(question(configuration={"parameter_server": block}))
    family, configuration = configuration_of(again)
    assert configuration == plan.configuration
    assert planner.predict(again).iteration_time_s == plan.objective
    events = timeline(again, family, configuration, devices="kinds")["traceEvents"]
    pushes, pulls = ([one for one in events if one.get("cat") == kind] for kind in ("push", "pull"))
    assert min(one["ts"] for one in pulls) < max(one["ts"] + one["dur"] for one in pushes)
    end_s = max(one["ts"] + one["dur"] for one in events if one.get("ph") == "X") / 1e6
    assert end_s == pytest.approx(plan.objective, abs=1e-8)


def test_the_best_overlap_and_number_of_servers_change_with_the_network() -> None:
    found = {
        network: {
            overlap: planner.plan(
                planner.load(question(network, fix={"overlap": overlap}, calibration={"split_tensors": True}))
            )
            for overlap in ("push", "push_pull_forward")
        }
        for network in ("1 Gbit/s", "100 Gbit/s")
    }
    slow, fast = found["1 Gbit/s"], found["100 Gbit/s"]
    assert slow["push_pull_forward"].objective < 0.9 * slow["push"].objective
    assert fast["push_pull_forward"].objective > 0.9 * fast["push"].objective


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"overlap": "push_pul"}, "push_pull"),
        ({"overlap": "push_pull", "barrier": True}, "behind a barrier no sum is sent early"),
        ({"overlap": "push", "synchronisation": "asp"}, "overlap belongs to bsp"),
        ({"barrier": False, "synchronisation": "ssp", "max_staleness": 1}, "barrier belongs to bsp"),
        ({"overlap": "push_pull", "partition_bytes": "0 B"}, "a piece has a byte or more"),
        ({"overlap": "push_pull", "partition_bytes": "100 B"}, "400,000 pieces are more than can be followed"),
        ({"overlap": "push_pull", "partition_bytes": "1 GB"}, "largest tensor has 28.6 MiB"),
        ({"partition_bytes": "1 MB"}, "Set barrier: false"),
        ({"priority": True, "overlap": "push", "barrier": True}, "in any order alike"),
        ({"priority": True, "synchronisation": "asp"}, "priority belongs to bsp"),
    ],
)
def test_what_does_not_go_together_is_refused(block: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        seconds(**block)
    assert words in str(caught.value)


def test_latency_is_not_charged_to_a_worker_whose_sums_are_back_before_it_ends() -> None:
    layers = [
        {"name": "a", "forward": "1 ms", "backward": "200 ms", "parameters": "0 B", "output": "1 MB"},
        {"name": "b", "inputs": ["a"], "forward": "1 ms", "backward": "10 ms", "parameters": "5 MB", "output": "1 MB"},
    ]
    machine = {"device": "rtx-3090", "devices": 1, "network": "10 Gbit/s"}
    spec = question(
        dnn={"layers": layers, "profile_batch": 8, "batch_per_device": 8},
        cluster={
            "machines": [
                {"name": "w", "count": 3, **machine, "latency": "0 s"},
                {"name": "s", "count": 1, **machine, "latency": "60 ms"},
            ]
        },
        fix={"overlap": "push_pull", "co_located": False, "servers": "s", "num_machines": 4},
    )
    found = planner.plan(planner.load(spec))
    assert found.bound <= found.objective < 0.3


def test_one_machine_that_serves_itself_is_not_cut_off_by_what_others_would_send() -> None:
    layers = [{"name": "a", "forward": "10 ms", "backward": "20 ms", "parameters": "100 MB", "output": "1 MB"}]
    machine = {"name": "w", "count": 4, "device": "rtx-3090", "devices": 1, "network": "1 Gbit/s"}
    for overlap in ("none", "push", "push_pull", "push_pull_forward"):
        spec = question(
            dnn={"layers": layers, "profile_batch": 8, "batch_per_device": 8, "dataset_samples": 1000},
            cluster={"machines": [machine]},
            constraints={"devices": {"at_least": 1}},
            calibration={"split_tensors": True},
            objective="epoch_time",
            fix={"overlap": overlap, "barrier": False},
        )
        space = Space(planner.load(spec))
        for site in space.sites:
            _, boxes = tightened(space, site, root(space, site))
            if len(boxes) and site.co_located:
                one = ParameterServerCost(space.problem, row_configuration(space, site, [1, 1, 8])).predict()
                assert lower_bounds(space, site, boxes).min() <= one.value_of(space.problem.goal) * (1 + 1e-9)


def test_a_network_without_weights_and_an_exchange_beyond_what_can_be_followed_are_refused() -> None:
    layers = [{"name": "a", "forward": "10 ms", "backward": "20 ms", "parameters": "0 B", "output": "1 MB"}]
    given = {"num_parameter_servers": 2, "workers": {"w": 4}, "servers": "s"}
    spec = question(
        dnn={"layers": layers, "profile_batch": 8, "batch_per_device": 8}, configuration={"parameter_server": given}
    )
    with pytest.raises(SpecError, match="nothing for a server to hold"):
        planner.predict(planner.load(spec))
    many = [{**LAYERS[0], "name": f"l{index}", "inputs": [f"l{index - 1}"] if index else []} for index in range(200)]
    machine = {"name": "w", "count": 64, "device": "rtx-3090", "devices": 1, "network": "1 Gbit/s"}
    block = {"num_parameter_servers": 64, "workers": {"w": 64}, "servers": "w", "co_located": True}
    spec = question(
        dnn={"layers": many, "profile_batch": 8, "batch_per_device": 8},
        cluster={"machines": [machine]},
        configuration={"parameter_server": {**block, "overlap": "push_pull"}},
    )
    with pytest.raises(SpecError, match="Slice tensors"):
        planner.predict(planner.load(spec))
    spec["configuration"]["parameter_server"]["placement"] = "sliced"
    assert planner.predict(planner.load(spec)).iteration_time_s > 0


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        ({"overlap": "push_pull", "barrier": True}, "fix.barrier"),
        ({"overlap": "push", "synchronisation": "asp"}, "fix.synchronisation is asp"),
    ],
)
def test_pins_that_contradict_one_another_are_refused(fix: dict[str, Any], words: str) -> None:
    with pytest.raises(InfeasibleError, match=words):
        planner.plan(planner.load(question(fix=fix)))
