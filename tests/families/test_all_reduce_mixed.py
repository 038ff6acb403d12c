"""The family all_reduce on unlike devices: against a referee that tries everything, and its properties."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.api import configuration_of
from planner.cost import Profile
from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families.all_reduce import family as all_reduce
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.fusion import mixed_exchange_of
from planner.families.all_reduce.mixed import MixedCost
from planner.families.all_reduce.search import plan as search_plan
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.solvers.exhaustive import all_shares, best_groups
from planner.timeline import timeline_document


def planned(problem: Problem, **limits: Any) -> Plan:
    return search_plan(problem, Search(**limits))


def machine(name: str, *, count: int, devices: int, memory: str = "1 GB", **changes: object) -> dict[str, Any]:
    """A group of machines whose device has the group's name."""
    device = {"name": f"{name}-device", "fp32": "1 TFLOP/s", "memory": memory, "memory_bandwidth": "100 GB/s"}
    return {
        "name": name,
        "count": count,
        "devices": devices,
        "device": device,
        "inside": {"bandwidth": "2 GB/s", "latency": "3 us"},
        "network": "10 Gbit/s",
        "latency": "1 ms",
        **changes,
    }


def with_seconds(problem: Problem, seconds: dict[str, list[tuple[float, float]]]) -> Problem:
    """The problem with given seconds of every layer, forward and backward, by the name of the group."""
    profiles = {}
    for name, rows in seconds.items():
        old = problem.profiles[f"{name}-device"]
        forward_s, backward_s = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
        profiles[f"{name}-device"] = Profile(forward_s=forward_s, backward_s=backward_s, update_s=old.update_s)
    return replace(problem, profiles=profiles)


@st.composite
def small_problems(draw: st.DrawFn, most_machines: int = 4, *, is_compressed: bool = False) -> Problem:
    """Up to 6 layers on up to 4 machines of 2 types, whose seconds are in no proportion."""
    num_layers = draw(st.integers(1, 6))
    layers = [
        {
            "name": f"layer{index}",
            "inputs": [f"layer{index - 1}"] if index else [],
            "multiply_adds": 1e8,
            "parameters": f"{draw(st.integers(0, 40)) * 40_000} B",
            "output": "4 MB",
        }
        for index in range(num_layers)
    ]
    layers[-1]["parameters"] = "400 kB"
    most = draw(st.integers(2, 8))
    batch = draw(st.sampled_from([{"global_batch": most}] * 3 + [{"max_global_batch": min(most, 5)}]))
    counts = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)]))
    groups = [
        machine(
            name,
            count=count,
            devices=draw(st.integers(1, 3 if sum(counts) < 3 else 2)) if sum(counts) < 4 else 1,
            memory=f"{draw(st.integers(25, 90))} MB",
            network=f"{draw(st.integers(1, 40))} Gbit/s",
            latency=f"{draw(st.integers(0, 3000))} us",
            **draw(st.sampled_from([{}, {"storage": {"bandwidth": "20 MB/s", "shared": draw(st.booleans())}}])),
        )
        for name, count in zip(("a", "b"), counts, strict=True)
    ]
    calibration = {
        "utilisation": 1,
        "wait": draw(st.sampled_from(["none", "none", "exact", "paper"])),
        "timeout": f"{draw(st.integers(1, 100))} ms",
        "overhead": f"{draw(st.integers(0, 8))} ms",
        "strategy": draw(st.sampled_from(["caffe_mpi", "caffe_mpi", "mxnet", "cntk", "naive"])),
    }
    asked: dict[str, Any] = {
        "dnn": {"layers": layers, "dataset_samples": 1000, "sample_bytes": "40 kB", **batch},
        "cluster": {"machines": groups},
        "calibration": calibration,
        "objective": "epoch_time",
    }
    number = draw(st.integers(-4, sum(group["count"] * group["devices"] for group in groups)))
    if number > 0:
        asked["constraints"] = {"devices": number}
    if is_compressed:
        asked["compression"] = {"time": f"{draw(st.integers(0, 20))} ms", "at_most": 0.75}
    row = st.tuples(st.integers(0, 9), st.integers(0, 20)).map(lambda one: (one[0] * 1e-3, one[1] * 1e-3))
    seconds = {name: draw(st.lists(row, min_size=num_layers, max_size=num_layers)) for name in ("a", "b")}
    for rows in seconds.values():
        rows[0] = (rows[0][0] + 1e-3, rows[0][1])
    return with_seconds(planner.load(asked), seconds)


def every_bare_configuration(problem: Problem) -> Iterator[tuple[MixedCost, AllReduceConfiguration]]:
    """All machines, devices of each (by group), batches and shares by brute force, in the fewest micro-batches, not yet fused."""
    groups = problem.cluster.machine_groups
    training = problem.training
    most = training.global_batch_size or training.max_global_batch_size or 0
    batches = [most] if training.global_batch_size else list(range(1, most + 1))
    every = [[(0, 0), *product(range(1, group.count + 1), range(1, group.devices_per_machine + 1))] for group in groups]
    for rows in product(*every):
        chosen = [(group, *row) for group, row in zip(groups, rows, strict=True) if row[0]]
        devices = [each for _, _, each in chosen]
        if not chosen or sum(number * each for _, number, each in chosen) not in problem.limits.devices:
            continue
        cost = MixedCost(problem, [group.name for group, _, _ in chosen], devices)
        if not cost.most_at_a_time.all() or not cost.transfer_costs(2, 2):
            continue
        numbers = [number for _, number, _ in chosen]
        counts = tuple(number * each for number, each in zip(numbers, devices, strict=True))
        for batch in batches:
            for shares in all_shares(counts, batch, batch):
                fewest = sum(max(n * (share - 1) + 1, n) for n, share in zip(counts, shares, strict=True))
                if fewest <= batch:
                    yield cost, cost.configuration(numbers, shares, batch)


def best_by_trying_everything(problem: Problem) -> float | None:
    found = []
    for cost, bare in every_bare_configuration(problem):
        exchange = mixed_exchange_of(cost, bare)
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
        "calibration": {"utilisation": 1, "update": "0 s", "aggregation": False, "algorithms": ["ring"]},
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
        calibration=replace(old, overhead_s=2 * old.overhead_s, timeout_s=2 * old.timeout_s),
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


MIXED: dict[str, Any] = {
    "dnn": {"zoo": "resnet50", "global_batch": 256},
    "families": ["all_reduce"],
    "cluster": {
        "machines": [
            {"name": "fast", "count": 2, "device": "v100", "devices": 4, "inside": "nvlink-2", "network": "25 Gbit/s"},
            {
                "name": "slow",
                "count": 2,
                "device": "p100",
                "devices": 4,
                "inside": "pcie-3-x16",
                "network": "25 Gbit/s",
            },
        ]
    },
    "calibration": {"utilisation": 0.4},
}


def test_a_mixed_plan_gives_the_fast_devices_more_and_says_what_each_group_is_worth() -> None:
    found = planner.plan(planner.load(MIXED))
    assert found.status is Status.OPTIMAL
    assert isinstance(found.configuration, AllReduceConfiguration)
    fast, slow = found.configuration.groups
    assert fast.batch_per_device > slow.batch_per_device
    names = [one.name for one in found.alternatives]
    assert "without the 2 slow machines" in names
    assert "equal shares" in names
    assert any("leaving out the 2 slow machines would cost +" in line for line in found.explanation)
    again = planner.load({**found.problem, "configuration": {"all_reduce": found.configuration.to_document()}})
    assert planner.predict(again) == found.prediction
    assert found.prediction.relative_error is None


def test_a_slow_group_that_would_hurt_is_left_out() -> None:
    slow = {"name": "slow", "count": 2, "device": "k80", "devices": 1, "network": "0.1 Gbit/s", "latency": "1 ms"}
    fast = MIXED["cluster"]["machines"][0]
    found = planner.plan(planner.load({**MIXED, "cluster": {"machines": [fast, slow]}}))
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert [one.name for one in found.configuration.groups] == ["fast"]
    assert any("slow stay idle" in line for line in found.explanation)


def test_the_same_mixed_question_gives_the_same_bytes() -> None:
    from planner.documents import dump, plan_document

    first, second = (dump(plan_document(planner.plan(planner.load(MIXED)))) for _ in range(2))
    assert first == second


NINE: dict[str, Any] = {
    "dnn": {"zoo": "resnet50", "global_batch": 288},
    "families": ["all_reduce"],
    "cluster": {
        "machines": [
            {"name": "fast", "count": 1, "device": "v100", "devices": 8, "inside": "nvlink-2", "network": "25 Gbit/s"},
            {"name": "slow", "count": 1, "device": "k80", "devices": 8, "inside": "nvlink-2", "network": "25 Gbit/s"},
        ]
    },
    "constraints": {"devices": 9},
    "calibration": {"utilisation": 0.4},
}


def test_each_group_uses_its_own_number_of_devices_of_a_machine() -> None:
    problem = planner.load(NINE)
    found = planned(problem)
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert [one.devices_per_machine for one in found.configuration.groups] == [8, 1]
    assert found.status is Status.OPTIMAL
    assert planner.check(problem, planner.plan(problem)).is_ok
    for fast, slow in ((8, 1), (5, 4), (1, 8)):
        for share in range(1, 288 // slow, 5):
            rest = -(-(288 - slow * share) // fast)
            groups = {
                "fast": {"machines": 1, "devices_per_machine": fast, "batch_per_device": rest},
                "slow": {"machines": 1, "devices_per_machine": slow, "batch_per_device": share},
            }
            question = {**NINE, "configuration": {"all_reduce": {"groups": groups, "fusion_groups": "optimal"}}}
            if max(fast * (rest - 1) + 1, fast) + max(slow * (share - 1) + 1, slow) > 288:
                continue
            assert planner.predict(planner.load(question)).value_of(found.goal) >= found.bound * (1 - 1e-9)


def test_a_pinned_number_of_devices_is_that_of_every_machine() -> None:
    asked = {key: value for key, value in NINE.items() if key != "constraints"}
    problem = planner.load({**asked, "fix": {"devices_per_machine": 4}})
    found = planner.plan(problem)
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert {one.devices_per_machine for one in found.configuration.groups} == {4}
    assert planner.check(problem, found).is_ok
    other = planner.load({**NINE, "fix": {"devices_per_machine": 8}})
    report = planner.check(other, planner.plan(planner.load(NINE)))
    (pin,) = [one for one in report.findings if one.name == "fix.devices_per_machine"]
    assert not pin.is_ok
    assert "[8, 1]" in pin.text


class Clock:
    """A clock by which so much time passes between two looks at it."""

    def __init__(self, tick_s: float) -> None:
        self.tick_s, self.looks = tick_s, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks * self.tick_s


@pytest.mark.parametrize("compression", [{}, {"compression": {"time": "2 ms", "at_most": 0.9}}])
@pytest.mark.parametrize("asked", [MIXED, {**MIXED, "cluster": {"machines": MIXED["cluster"]["machines"][:1]}}])
def test_a_slow_clock_and_a_fast_one_give_the_same_bytes(
    asked: dict[str, Any], compression: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.documents import dump, plan_document

    problem = planner.load({**asked, **compression})
    clock = Clock(0.0)
    monkeypatch.setattr("time.monotonic", clock)
    first = dump(plan_document(planner.plan(problem, num_alternatives=2, time_limit_s=60)))
    fast = Clock(0.95 * 60 / clock.looks)  # the whole search ends just before the limit
    monkeypatch.setattr("time.monotonic", fast)
    second = dump(plan_document(planner.plan(problem, num_alternatives=2, time_limit_s=60)))
    assert fast.looks == clock.looks
    assert second == first


def test_a_mixed_question_without_time_gives_no_answer() -> None:
    with pytest.raises(NoAnswerError, match="time limit"):
        planned(planner.load(MIXED), time_limit_s=0)


def test_a_mixed_search_may_end_with_the_first_plan_that_is_good_enough() -> None:
    problem = planner.load(MIXED)
    best = planned(problem)
    some = planned(problem, good_enough=float("inf"))
    assert some.objective >= best.objective * (1 - 1e-9)
    assert some.bound <= best.objective * (1 + 1e-9)
    assert some.provenance.num_candidates <= best.provenance.num_candidates


def test_more_unlike_groups_than_can_be_tried_leave_a_true_bound() -> None:
    names = ["v100", "p100", "k80", "t4", "a100"] * 2
    groups = [
        {"name": f"m{index}", "count": 1, "device": name, "network": "10 Gbit/s"} for index, name in enumerate(names)
    ]
    asked = {**MIXED, "cluster": {"machines": groups}, "constraints": {"machines": 2}}
    found = planned(planner.load(asked), time_limit_s=20)
    assert found.status is Status.FEASIBLE
    assert 0 < found.bound < found.objective


GROUPS = {"fast": {"machines": 2, "batch_per_device": 20}, "slow": {"machines": 2, "batch_per_device": 12}}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"groups": {"gone": {"machines": 1, "batch_per_device": 256}}}, "no machines 'gone'"),
        ({"groups": {**GROUPS, "slow": {"machines": 3, "batch_per_device": 12}}}, "2 machines 'slow', not 3"),
        (
            {"groups": {**GROUPS, "slow": {"machines": 2, "batch_per_device": 11}}},
            "batches of 234 to 248 samples, not 256",
        ),
        ({"groups": {"fast": {"machines": 1, "devices_per_machine": 9, "batch_per_device": 1}}}, "4 devices, not 9"),
        ({"groups": GROUPS, "num_devices": 8}, "16 in all"),
        ({"num_devices": 16}, "several types of device take part"),
        ({"groups": GROUPS, "devices_per_machine": 4}, "leave out machines"),
        ({"global_batch_size": 256}, "give num_devices, or groups"),
    ],
)
def test_an_impossible_mixed_configuration_is_refused_with_the_numbers(block: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planner.predict(planner.load({**MIXED, "configuration": {"all_reduce": block}}))


def test_a_given_mixed_configuration_is_fused_and_explained() -> None:
    block = {"groups": GROUPS, "fusion_groups": {"buffer": "25 MiB"}}
    problem = planner.load({**MIXED, "configuration": {"all_reduce": block}})
    family, configuration = configuration_of(problem)
    prediction = planner.predict(problem)
    assert isinstance(configuration, AllReduceConfiguration)
    lines = all_reduce.explain(problem, configuration, prediction)
    assert family == "all_reduce"
    assert prediction.details["straggler"] == "fast"
    assert any("fast computes longest, idle meanwhile: slow" in line for line in lines)


def test_a_configuration_on_one_type_of_a_mixed_cluster_needs_its_machines_named() -> None:
    block = {"machines": ["fast"], "num_devices": 8}
    problem = planner.load({**MIXED, "configuration": {"all_reduce": block}})
    pinned = planner.load({**MIXED, "fix": {"device": "v100"}, "configuration": {"all_reduce": {"num_devices": 8}}})
    assert planner.predict(problem).iteration_time_s == pytest.approx(planner.predict(pinned).iteration_time_s)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constraints": {"memory_per_device": "100 MB"}}, "even one sample at a time needs"),
        ({"fix": {"num_machines": 3, "num_devices": 13}}, "fix.num_devices|No plan fits"),
        ({"dnn": {"global_batch": 3}, "constraints": {"devices": 4}}, "cannot be split over 4 devices"),
    ],
)
def test_a_mixed_question_without_answer_says_what_would_have_to_give(changes: dict[str, Any], message: str) -> None:
    asked = {**MIXED, **changes, "dnn": {**MIXED["dnn"], **changes.get("dnn", {})}}
    with pytest.raises(InfeasibleError, match=message):
        planned(planner.load(asked))


# -- compression -----------------------------------------------------------------------------------------------------


@settings(max_examples=8)
@given(small_problems(is_compressed=True))
def test_compression_never_hurts_and_beats_every_share_of_a_grid(problem: Problem) -> None:
    try:
        plain = planned(replace(problem, compression=None))
    except InfeasibleError:
        return
    found = planned(problem)
    assert found.objective <= plain.objective * (1 + 1e-9)
    assert found.bound <= found.objective
    if not found.prediction.breakdown_s["input_stall"]:  # where input binds, too, the bound may leave it out
        assert found.gap <= 1e-3
    grid = (0.25, 0.4, 0.6, 0.8, 1.0)
    option = problem.compression
    assert option is not None
    from planner.families.all_reduce.fusion import best_ends
    from planner.models.compression import Compression

    for cost, bare in list(every_bare_configuration(problem))[::7]:
        for kept in grid:
            squeezed = replace(bare, compression=Compression(removed=1 - kept, scale_s=option.scale_s))
            ends = best_ends(mixed_exchange_of(cost, squeezed))
            rows = {one.name: one for one in bare.groups}
            configuration = cost.configuration(
                [rows[name].num_machines for name in cost.names],
                [rows[name].batch_per_device for name in cost.names],
                bare.global_batch_size,
                ends=ends,
                compression=squeezed.compression,
            )
            assert cost.predict(configuration).value_of(problem.goal) >= found.bound * (1 - 1e-9)


def test_compression_on_unlike_devices_beats_every_share_of_a_grid() -> None:
    asked = {**MIXED, "dnn": {"zoo": "vgg16", "global_batch": 128}}
    plain = planned(planner.load(asked))
    found = planned(planner.load({**asked, "compression": {"time": "2 ms", "at_most": 0.9}}))
    configuration = found.configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert configuration.compression is not None
    assert found.objective < plain.objective
    assert found.gap <= 1e-3
    assert any("accuracy is not modelled" in line for line in found.warnings)
    again = planner.load({**found.problem, "configuration": {"all_reduce": configuration.to_document()}})
    assert planner.predict(again) == found.prediction
    block = {key: value for key, value in configuration.to_document().items() if key != "fusion_groups"}
    for removed in np.linspace(0, 0.9, 19).tolist():
        given_block = {**block, "compression": {"removed": removed, "time": "2 ms"}}
        other = planner.predict(planner.load({**asked, "configuration": {"all_reduce": given_block}}))
        assert other.value_of(found.goal) >= found.objective * (1 - 1e-3)


@pytest.mark.parametrize("time", ["0 s", "1 ms", "20 ms", "10 s"])
def test_compression_on_one_type_is_taken_only_where_it_pays(time: str) -> None:
    asked = {
        "dnn": {"zoo": "vgg16", "batch_per_device": 16},
        "families": ["all_reduce"],
        "cluster": {"machines": [{"count": 4, "device": "v100", "network": "5 Gbit/s", "latency": "20 us"}]},
        "calibration": {"utilisation": 0.4},
    }
    plain = planner.plan(planner.load(asked))
    found = planner.plan(planner.load({**asked, "compression": {"time": time, "at_most": 0.9}}))
    configuration = found.configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert found.objective <= plain.objective * (1 + 1e-9)
    assert (configuration.compression is not None) == (time != "10 s")
    assert found.gap <= 1e-5
    if configuration.compression is None:
        assert found.objective == pytest.approx(plain.objective)
        return
    assert any("accuracy is not modelled" in line for line in found.warnings)
    again = planner.load({**found.problem, "configuration": {"all_reduce": configuration.to_document()}})
    assert planner.predict(again) == found.prediction
    assert sum(found.prediction.breakdown_s.values()) == pytest.approx(found.prediction.iteration_time_s)
    block = {key: value for key, value in configuration.to_document().items() if key != "fusion_groups"}
    for removed in np.linspace(0, 0.9, 19).tolist():
        given_block = {**block, "compression": {"removed": removed, "time": time}}
        other = planner.predict(planner.load({**asked, "configuration": {"all_reduce": given_block}}))
        assert other.value_of(found.goal) >= found.bound * (1 - 1e-9)


def test_predicting_listed_groups_needs_no_solver() -> None:
    found = planner.plan(planner.load(MIXED))
    question = {**found.problem, "configuration": {"all_reduce": found.configuration.to_document()}}
    code = (
        "import sys, json; from planner.spec.build import load; from planner.families import all_reduce; "
        "problem = load(json.loads(sys.argv[1])); block = problem.configuration[1]; "
        "given = all_reduce.configuration_of(problem, block); "
        "prediction = all_reduce.predict(problem, given); all_reduce.explain(problem, given, prediction); "
        "print(prediction.iteration_time_s); "
        "print(sorted(name for name in sys.modules if name.startswith('planner.solvers')))"
    )
    import json

    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(question)], capture_output=True, text=True, check=True
    )
    seconds, modules = done.stdout.splitlines()
    assert float(seconds) == pytest.approx(found.prediction.iteration_time_s)
    assert modules == "[]"
