"""The family all_reduce on unlike devices: against a referee that tries everything, and its properties."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from mixed_all_reduce import every_bare_configuration, machine, planned, small_problems, with_seconds

import planner
from planner.answer.timeline import timeline_document
from planner.cost import Profile
from planner.errors import InfeasibleError
from planner.families.all_reduce import family as all_reduce
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.fusion import exchange_of
from planner.problem import Problem
from planner.solution import Status
from tests.referee.exhaustive import best_groups


def best_by_trying_everything(problem: Problem) -> float | None:
    found = []
    for cost, bare in every_bare_configuration(problem):
        exchange = exchange_of(cost, bare)
        ends: tuple[int, ...] = ()
        if exchange is not None:
            best = best_groups(
                exchange.ready_s,
                exchange.size_bytes,
                exchange.transfer,
                wait=exchange.wait,
                timeout_s=exchange.timeout_s,
            )
            assert best.value is not None
            ends = best.value
        rows = {one.name: one for one in bare.groups}
        configuration = cost.configuration(
            [rows[name].num_machines for name in cost.names],
            [rows[name].batch_per_device for name in cost.names],
            bare.global_batch_size,
            ends=ends,
        )
        found.append(cost.predict(configuration).value_of(problem.goal))
    return min(found, default=None)


@settings(max_examples=80)
@given(small_problems())
def test_the_plan_is_as_good_as_the_best_of_everything_tried(problem: Problem) -> None:
    truth = best_by_trying_everything(problem)
    if truth is None:
        with pytest.raises(InfeasibleError, match="No plan fits"):
            planned(problem)
        return
    found = planned(problem)
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(truth, rel=1e-9)
    assert found.bound <= found.objective


def test_shares_and_fusion_are_found_together_where_equal_shares_lose() -> None:
    layers = [
        {"name": "first", "multiply_adds": 1e8, "output": "4 B"},
        {"name": "last", "inputs": ["first"], "multiply_adds": 1e8, "parameters": "60 MB", "output": "4 B"},
    ]
    link = {"network": "1 MB/s", "latency": "0 s"}
    asked = {
        "dnn": {"layers": layers, "global_batch": 10, "sample_bytes": "0 B"},
        "cluster": {"machines": [machine(name, count=1, devices=1, **link) for name in ("a", "b")]},
        "calibration": {
            "utilisation": 1,
            "update": "0 s",
            "aggregation": False,
            "algorithms": ["ring"],
            "bandwidth_efficiency": 1,
        },
        "constraints": {"devices": 2},
    }
    problem = with_seconds(planner.load(asked), {"a": [(0, 9), (0, 1)], "b": [(0, 1), (0, 9)]})
    found = planned(problem)
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(80)
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert [one.batch_per_device for one in found.configuration.groups] == [8, 2]
    equal = planned(replace(problem, fixed={"batch_shares": "equal"}))
    assert equal.objective == pytest.approx(105)
    (row,) = [one for one in found.alternatives if one.name == "equal shares"]
    assert row.relative_loss == pytest.approx(105 / 80 - 1)


@settings(max_examples=15)
@given(small_problems())
def test_a_device_type_that_may_stay_idle_never_hurts(problem: Problem) -> None:
    for name in ("a", "b"):
        alone = replace(problem, cluster=problem.cluster.of_groups([name]))
        try:
            less = planned(alone).objective
        except InfeasibleError:
            continue
        assert planned(problem).objective <= less * (1 + 1e-9)


@settings(max_examples=15)
@given(small_problems())
def test_the_order_of_the_groups_changes_nothing(problem: Problem) -> None:
    nodes = [node["node"] for _, node in problem.cluster.graph.nodes(data=True)]
    links = [(one, other, data["link"]) for one, other, data in problem.cluster.graph.edges(data=True)]
    turned = replace(problem, cluster=type(problem.cluster)("turned", nodes[::-1], links))
    try:
        objective = planned(problem).objective
    except InfeasibleError:
        return
    assert planned(turned).objective == pytest.approx(objective, rel=1e-9)


def doubled(problem: Problem) -> Problem:
    """The problem with twice as many seconds of everything."""
    profiles = {
        name: Profile(forward_s=2 * one.forward_s, backward_s=2 * one.backward_s, update_s=2 * one.update_s)
        for name, one in problem.profiles.items()
    }
    nodes, links = [], []
    for _, data in problem.cluster.graph.nodes(data=True):
        node = data["node"]
        if hasattr(node, "device"):
            flop = {name: rate / 2 for name, rate in node.device.peak_flop_per_s.items()}
            store = node.storage
            node = replace(
                node,
                device=replace(node.device, peak_flop_per_s=flop),
                inside=node.inside and _slower(node.inside),
                storage=store and replace(store, bandwidth_bytes_per_s=store.bandwidth_bytes_per_s / 2),
                host_link_bytes_per_s=node.host_link_bytes_per_s / 2,
            )
        nodes.append(node)
    for one, other, data in problem.cluster.graph.edges(data=True):
        links.append((one, other, _slower(data["link"])))
    old = problem.calibration
    return replace(
        problem,
        profiles=profiles,
        cluster=type(problem.cluster)("slower", nodes, links),
        calibration=replace(
            old,
            overhead_s=2 * old.overhead_s,
            timeout_s=2 * old.timeout_s,
            links=old.links.wider_network(0.5).wider_inside(0.5),
        ),
    )


def _slower(link: Any) -> Any:
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / 2, latency_s=2 * link.latency_s)


@settings(max_examples=15)
@given(small_problems())
def test_doubling_all_seconds_doubles_the_objective(problem: Problem) -> None:
    try:
        objective = planned(problem).objective
    except InfeasibleError:
        return
    assert planned(doubled(problem)).objective == pytest.approx(2 * objective, rel=1e-9)


def twins(devices: int, **dnn: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same machines as one group of one type, and as two groups whose devices differ by name alone."""
    base: dict[str, Any] = {"dnn": {"zoo": "alexnet", **dnn}, "calibration": {"utilisation": 0.5, "overhead": "1 ms"}}
    group = machine("x", count=4, devices=devices, memory="8 GB")
    halves = [{**group, "name": name, "count": 2, "device": {**group["device"], "name": name}} for name in ("p", "q")]
    return {**base, "cluster": {"machines": [group]}}, {**base, "cluster": {"machines": halves}}


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("dnn", [{"global_batch": 96}, {"global_batch": 97}, {"max_global_batch": 64}])
def test_two_equal_types_are_as_good_as_one(devices: int, dnn: dict[str, Any]) -> None:
    one, two = (planned(planner.load(asked)) for asked in twins(devices, **dnn))
    assert one.status is two.status is Status.OPTIMAL
    assert two.objective == pytest.approx(one.objective, rel=1e-9)
    assert two.prediction.memory_bytes == pytest.approx(one.prediction.memory_bytes)
    if dnn.get("global_batch") == 96:  # else the largest share is on fewer devices of two groups than of one
        assert two.prediction.scaling_factor == pytest.approx(one.prediction.scaling_factor)


@settings(max_examples=30)
@given(small_problems())
def test_a_plan_says_what_predict_says_of_its_block(problem: Problem) -> None:
    try:
        found = planned(problem)
    except InfeasibleError:
        return
    block = {
        "machines": None,
        "groups": None,
        "num_devices": None,
        "num_machines": None,
        "devices_per_machine": None,
        "compression": None,
        **found.configuration.to_document(),
    }
    configuration = all_reduce.configuration_of(problem, block)
    assert configuration.to_document() == found.configuration.to_document()
    prediction = all_reduce.predict(problem, configuration)
    assert prediction == found.prediction
    assert sum(prediction.breakdown_s.values()) == pytest.approx(prediction.iteration_time_s)
    assert min(prediction.breakdown_s.values()) >= 0
    assert prediction.memory_bytes["total"] <= prediction.memory_bytes["limit"]
    drawn = all_reduce.timeline(problem, configuration)
    timeline_document(*drawn)
    assert max(span.end_s for span in drawn.spans) == pytest.approx(prediction.iteration_time_s)
