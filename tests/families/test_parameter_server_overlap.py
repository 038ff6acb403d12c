"""Sums that are sent on their own: what overlap, barrier and pieces do to a plan, and what of them is refused."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.api import configuration_of, timeline
from planner.decisions import ServerOverlap
from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families.parameter_server import search
from planner.families.parameter_server.bounds import Boxes, Space, lower_bounds, root, tightened
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.parameter_server.search import row_configuration
from planner.models.exchange import Overlap
from planner.plan import Plan, Prediction

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


def searched(network: str, most: str = "push_pull_forward", *, is_cut: bool = True, **more: Any) -> Plan:
    """The best plan where sums may go on their own."""
    allowed = {"split_tensors": is_cut, "max_overlap": most, "bandwidth_efficiency": 1}
    return planner.plan(planner.load(question(network, calibration=allowed, **more)))


def test_the_best_overlap_and_number_of_servers_change_with_the_network() -> None:
    slow, fast = searched("1 Gbit/s"), searched("400 Gbit/s")
    barred = planner.plan(planner.load(question("1 Gbit/s", calibration={"split_tensors": True})))
    assert slow.configuration.to_document()["overlap"] == "push_pull_forward"
    assert slow.objective < 0.8 * barred.objective
    assert slow.configuration.to_document()["priority"]  # what runs first is pushed last
    assert "priority" not in fast.configuration.to_document()
    number = [one.configuration.to_document()["num_parameter_servers"] for one in (slow, fast)]
    assert number[0] != number[1]
    (line,) = [one for one in slow.explanation if "by what goes beside computing" in one]
    assert all(words in line for words in ("push behind a barrier: ", "push_pull: ", "push_pull_forward: "))


def test_of_ways_that_are_as_fast_the_one_that_asks_least_of_a_program_is_taken() -> None:
    first = {"name": "a", "forward": "10 ms", "backward": "20 ms", "parameters": "20 MB", "output": "1 MB"}
    last = {**first, "name": "b", "inputs": ["a"], "parameters": "0 B"}
    dnn = {"layers": [first, last], "profile_batch": 8, "batch_per_device": 8}
    fix = {"num_parameter_servers": 1, "co_located": False}
    found = searched("10 Gbit/s", is_cut=False, dnn=dnn, fix=fix)
    assert "overlap" not in found.configuration.to_document()  # of one tensor the sum comes behind all pushes anyhow
    dnn["layers"] = [first, {**last, "parameters": "5 MB"}]
    found = searched("10 Gbit/s", is_cut=False, dnn=dnn, fix=fix)
    assert found.configuration.to_document()["overlap"] == "push_pull"  # the first layer's sum is the last to arrive
    pinned = searched("10 Gbit/s", is_cut=False, dnn=dnn, fix={**fix, "overlap": "push_pull_forward"})
    assert pinned.objective == pytest.approx(found.objective)
    alone = {"machines": [{"name": "w", "count": 1, "device": "rtx-3090", "devices": 1, "network": "1 Gbit/s"}]}
    (one,) = [searched("1 Gbit/s", cluster=alone)]
    assert "overlap" not in one.configuration.to_document()  # nothing is sent


@pytest.mark.parametrize(
    "fix",
    [
        {"partition_bytes": "3 MB"},
        {"partition_bytes": "3 MB", "priority": True},
        {"priority": False},
        {"barrier": False},
        {"barrier": True},
        {"overlap": "push_pull", "partition_bytes": "3 MB"},
    ],
    ids=str,
)
def test_pins_of_how_sums_travel_are_kept_and_read_back(fix: dict[str, Any]) -> None:
    found = searched("1 Gbit/s", fix=fix)
    block = found.configuration.to_document()
    for key, value in fix.items():
        assert block[key] == value, key
    again = planner.predict(planner.load(question("1 Gbit/s", configuration={"parameter_server": block})))
    assert again.iteration_time_s == pytest.approx(found.prediction.iteration_time_s)
    assert found.bound <= found.objective * (1 + 1e-9)


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        ({"partition_bytes": "3 MB"}, "Set calibration.max_overlap"),
        ({"priority": True}, "Set calibration.max_overlap"),
        ({"priority": True, "overlap": "push"}, "Drop fix.overlap and set calibration.max_overlap"),
        ({"priority": True, "barrier": True}, "Drop fix.barrier"),
        ({"overlap": "push_pull", "partition_bytes": "1 GB"}, "largest tensor has 28.6 MiB"),
        ({"overlap": "push_pull", "partition_bytes": "100 B"}, "400,000 pieces are more than can be followed"),
    ],
)
def test_pieces_and_orders_that_cannot_be_are_refused_by_their_pins(fix: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        planner.plan(planner.load(question(fix=fix)))
    assert f"fix.{'priority' if 'priority' in fix else 'partition_bytes'}: " in str(caught.value)


def test_a_pinned_piece_is_the_permission_to_cut_tensors_that_are_sent_whole_else() -> None:
    fix = {"partition_bytes": "3 MB", "num_devices": 4}
    found = searched("1 Gbit/s", is_cut=False, fix=fix)
    assert found.configuration.placement in ("round_robin", "largest_first")  # type: ignore[attr-defined]
    given = {"num_parameter_servers": 2, "workers": {"w": 4}, "servers": "s", "placement": "round_robin"}
    block = {**given, "overlap": "push_pull_forward", "partition_bytes": "3 MB"}
    asked = question("1 Gbit/s", configuration={"parameter_server": block})
    assert found.bound <= planner.predict(planner.load(asked)).iteration_time_s * (1 + 1e-9)
    assert found.objective <= planner.predict(planner.load(asked)).iteration_time_s * (1 + 1e-9)
    allowed = {"max_overlap": "push_pull_forward", "bandwidth_efficiency": 1}
    assert planner.check(planner.load(question("1 Gbit/s", calibration=allowed, fix=fix)), found).is_ok


def test_of_sums_on_their_own_the_share_kept_is_chosen_by_what_they_take() -> None:
    compression = {"time": "1 ms", "at_most": 0.9}
    fix = {"num_machines": 4, "num_parameter_servers": 4, "co_located": True}
    found = searched("1 Gbit/s", "push_pull", compression=compression, fix=fix)
    block = found.configuration.to_document()
    for removed in (0.0, 0.3, 0.6, 0.9):
        share = {"removed": removed, "time": "1 ms"} if removed else None
        asked = question("1 Gbit/s", configuration={"parameter_server": {**block, "compression": share}})
        assert found.objective <= planner.predict(planner.load(asked)).iteration_time_s * 1.001


def test_what_a_row_was_found_to_cost_stays_where_time_is_over_before_its_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, tried = search._evaluated, list[Any]()

    def once(problem: Any, configuration: Any, *_: Any) -> Any:
        tried.append(configuration)
        if len(tried) > 1:
            raise NoAnswerError("The time was over.")
        return real(problem, configuration)

    monkeypatch.setattr(search, "_evaluated", once)
    found = searched("1 Gbit/s", fix={"overlap": "push_pull_forward"})
    assert len(tried) > 1
    assert found.configuration == tried[0]


def test_whole_tensors_on_hundreds_of_machines_are_proven() -> None:
    machine = {"device": "rtx-3090", "devices": 1, "latency": "20 us"}
    machines = [
        {"name": "w", "count": 300, "network": "10 Gbit/s", **machine},
        {"name": "s", "count": 60, "network": "25 Gbit/s", **machine, "device": "dual-xeon-gold-6126"},
    ]
    layers = [
        {**LAYERS[1], "name": f"l{index}", "inputs": [f"l{index - 1}"] if index else [], "parameters": size}
        for index, size in enumerate(["100 kB", *["1 MB"] * 20, "8 MB"])
    ]
    dnn = {"layers": layers, "profile_batch": 8, "global_batch": 2400, "dataset_samples": 100_000}
    found = searched("", is_cut=False, dnn=dnn, cluster={"machines": machines}, objective="epoch_time")
    assert found.configuration.to_document()["overlap"] == "push_pull_forward"
    assert found.objective <= 1.01 * found.bound


@settings(max_examples=25)
@given(st.data())
def test_no_bound_is_above_any_placement_piece_or_order_on_machines_of_two_kinds(data: st.DataObject) -> None:
    def one_of(*values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    layers = [
        {
            "name": f"l{index}",
            "inputs": [f"l{index - 1}"] if index else [],
            "forward": f"{one_of(0.1, 1, 5, 20)} ms",
            "backward": f"{one_of(0.2, 2, 10, 40)} ms",
            "parameters": f"{one_of(0 if index else 1, 0.01, 1, 5, 40)} MB",
            "output": "1 MB",
        }
        for index in range(data.draw(st.integers(1, 6)))
    ]
    machines = [
        {
            "name": name,
            "count": data.draw(st.integers(2, 12)),
            "device": "rtx-3090",
            "devices": one_of(1, 1, 2),
            "inside": {"bandwidth": "2 GB/s"},
            "network": f"{one_of(1, 2, 10, 40)} Gbit/s",
            "latency": f"{one_of(0, 1, 30)} ms",
        }
        for name in one_of("a", "ab")
    ]
    fitted = {
        "bandwidth_efficiency": 1,
        "overhead": one_of("0 s", "5 ms"),
        "straggler_deviation": one_of("0 s", "5 ms"),
    }
    problem = planner.load(
        {
            "dnn": {"layers": layers, "profile_batch": 8, "global_batch": 768, "dataset_samples": 100_000},
            "cluster": {"machines": machines},
            "families": ["parameter_server"],
            "calibration": {"split_tensors": one_of(True, False), "max_overlap": "push_pull_forward", **fitted},
        }
    )
    space = Space(problem)
    for site in space.sites:
        workers = np.array([data.draw(st.integers(0, int(count))) for count in space.counts])
        serving = space.index_of(site)
        free = int(workers[serving] if site.co_located else space.counts[serving] - workers[serving])
        shares = space.shares_of(workers) if workers.any() and free else None
        if shares is None:
            continue
        number = data.draw(st.integers(1, min(free, len(space.loads_bytes))))
        row = [number, *workers.tolist(), *shares.tolist()]
        bound = float(lower_bounds(space, site, Boxes(np.array([row]), np.array([row])))[0])
        given = row_configuration(space, site, row)
        tried = [given]
        if not problem.calibration.split_tensors:
            placed = {name: data.draw(st.integers(0, number - 1)) for name in space.gradients[0].names}
            tried = [replace(given, placement=one) for one in ("round_robin", "largest_first", placed)]
        elif site.way.is_keyed:
            tried += [replace(given, placement="largest_first", partition_bytes=size) for size in (4.096e6, 3e5)]
        if site.way.is_forward:
            tried += [replace(one, has_priority=True) for one in tried]
        for one in tried:
            assert bound <= ParameterServerCost(problem, one).predict().value_of(problem.goal) * (1 + 1e-9)


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
