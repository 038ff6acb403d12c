"""The family parameter_server against a referee that tries everything, and what its plans say."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_of_devices import PER_DEVICE, uses_all
from servers import MIXED, planned, question
from tight_memory import TIGHT

import planner
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.parameter_server.bounds import Space, lower_bounds, root, split, tightened
from planner.families.parameter_server.configuration import ParameterServerConfiguration, ways_of
from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.parameter_server.search import plan, row_configuration
from planner.plan import Plan
from planner.problem import Problem, Range
from planner.search import Search
from planner.solution import Status
from tests.referee.exhaustive import all_set_partitions, all_shares


@st.composite
def small_questions(draw: st.DrawFn, split: bool) -> dict[str, Any]:
    """Up to six layers on up to four machines of two types: every kind of batch, links, memory, pin and strategy."""
    weights = st.sampled_from([0, 1, 2, 5, 9] if split else [0, 0, 1, 5])
    layers = [
        {
            "name": f"layer{index}",
            "inputs": [f"layer{index - 1}"] if index else [],
            "multiply_adds": draw(st.integers(1, 60)) * 1e8,
            "parameters": f"{draw(weights) * 400_000 if index else 400_000} B",
            "output": "4 MB",
        }
        for index in range(draw(st.integers(1, 6)))
    ]
    machines = [
        {
            "name": name,
            "count": draw(st.integers(1, 2)),
            "devices": draw(st.integers(1, 2)),
            "device": {
                "name": f"device-{name}",
                "fp32": f"{draw(st.integers(1, 3))} TFLOP/s",
                "memory": f"{draw(st.integers(30, 90))} MB",
                "memory_bandwidth": "100 GB/s",
            },
            "inside": {"bandwidth": "2 GB/s", "latency": "3 us"},
            "network": f"{draw(st.sampled_from([1, 2, 10, 40]))} Gbit/s",
            "latency": f"{draw(st.sampled_from([0, 300, 3000]))} us",
            **draw(st.sampled_from([{}, {"storage": {"bandwidth": "2 MB/s", "shared": draw(st.booleans())}}])),
        }
        for name in draw(st.sampled_from(["a", "ab", "ab"]))
    ]
    if len(machines) == 1:
        machines[0]["count"] = draw(st.integers(1, 4))
    most = draw(st.integers(2, 8))
    batches = [{"global_batch": most}, {"max_global_batch": most}, {"batch_per_device": 2, "max_global_batch": 8}]
    limits: list[dict[str, Any]] = [{}, {"machines": {"at_most": 2}}, {"devices": {"at_least": 2}}]
    batch, objective = draw(
        st.sampled_from([(one, "epoch_time") for one in (batches[0], *batches)] + PER_DEVICE * (len(machines) == 1))
    )
    if objective == "iteration_time":
        limits = [{}, {"machines": 1}]  # a range of devices is refused there
    limits = limits[: 1 if len(machines) == 1 and machines[0]["count"] == 1 else 3]
    pins = [{"batch_shares": "equal"}, {"co_located": True}, {"co_located": False}]
    return {
        "dnn": {
            "layers": layers,
            "dataset_samples": 1000,
            "sample_bytes": "100 kB",
            **batch,
        },
        "cluster": {"machines": machines},
        "calibration": {
            "utilisation": 0.5,
            "split_tensors": split,
            "strategy": draw(st.sampled_from(["caffe_mpi", "mxnet", "naive"])),
            "straggler_deviation": draw(st.sampled_from(["0 s", "10 ms"])),
            "overhead": draw(st.sampled_from(["0 s", "20 ms"])),
            **draw(st.sampled_from([{}, {"queue": {"switch": "100 Gbit/s", "packet": "1 MB"}}])),
        },
        "objective": objective,
        "constraints": draw(st.sampled_from(limits)),
        "fix": draw(st.sampled_from([{}, {}, *pins, {"num_machines": 2}, {"num_devices": 2}])),
    }


def configurations(problem: Problem) -> Iterator[ParameterServerConfiguration]:
    """Everything that there is to choose, one after the other."""
    groups, limits, fixed = problem.cluster.machine_groups, problem.limits, problem.fixed
    for servers, co_located in itertools.product(groups, (False, True)):
        if fixed.get("co_located") not in (None, co_located):
            continue
        for number in range(1, servers.count + 1):
            for counts in itertools.product(*(range(group.count + 1) for group in groups)):
                workers = {group.name: count for group, count in zip(groups, counts, strict=True) if count}
                here = workers.get(servers.name, 0)
                if not workers or (here < number if co_located else here + number > servers.count):
                    continue
                devices = {
                    group.name: workers[group.name] * group.devices_per_machine
                    for group in groups
                    if group.name in workers
                }
                used = sum(counts) + (0 if co_located else number)
                if used not in limits.machines or sum(devices.values()) not in limits.devices:
                    continue
                is_named = limits.machines != Range() or limits.devices != Range() or "num_machines" in fixed
                if uses_all(problem) and not is_named and "num_devices" not in fixed and used < groups[0].count:
                    continue
                pinned = fixed.get("num_machines", used), fixed.get("num_devices", sum(devices.values()))
                if pinned != (used, sum(devices.values())):
                    continue
                for batch, shares in batches(problem, tuple(devices.values())):
                    for way in ways_of(problem):
                        yield ParameterServerConfiguration(
                            num_parameter_servers=number,
                            workers=workers,
                            servers=servers.name,
                            co_located=co_located,
                            placement="sliced",
                            batch_shares=dict(zip(workers, shares, strict=True)),
                            global_batch_size=batch,
                            overlap=way.overlap,
                            has_barrier=way.has_barrier,
                        )


def batches(problem: Problem, devices: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every batch with every split of it into shares."""
    training = problem.training
    most = training.fixed_batch_size or training.max_global_batch_size or 0
    if training.batch_per_device is not None and training.max_global_batch_size is not None:
        batch = training.batch_per_device * sum(devices)
        found = [(batch, (training.batch_per_device,) * len(devices))] * (batch <= most)
    else:
        least = training.fixed_batch_size or 1
        found = [(batch, shares) for batch in range(least, most + 1) for shares in all_shares(devices, batch, batch)]
    for batch, shares in found:
        if len(set(shares)) == 1 or problem.fixed.get("batch_shares") != "equal":
            yield batch, shares


def all_objectives(problem: Problem) -> Iterator[float]:
    """What every configuration that fits in memory costs."""
    names = Space(problem).gradients[0].names
    for configuration in configurations(problem):
        placed = [
            replace(configuration, placement=placement)
            for placement in placements(problem, names, configuration.num_parameter_servers)
        ]
        if configuration.sends_alone and problem.calibration.split_tensors:
            placed += [replace(placed[0], placement="round_robin", partition_bytes=size) for size in (4.096e6, 1.024e6)]
        if configuration.overlap == "push_pull_forward":
            placed += [replace(one, has_priority=True) for one in placed]
        for one in placed:
            prediction = ParameterServerCost(problem, one).predict()
            if prediction.memory_bytes["total"] <= prediction.memory_bytes["limit"]:
                yield prediction.value_of(problem.goal)


def placements(problem: Problem, names: tuple[str, ...], number: int) -> Iterator[str | dict[str, int]]:
    """Every placement, up to the names of equal servers."""
    if problem.calibration.split_tensors:
        yield "sliced"
        return
    for parts in all_set_partitions(len(names)):
        if len(parts) <= number:
            yield {names[tensor]: server for server, part in enumerate(parts) for tensor in part}


def with_truth(problem: Problem) -> tuple[float, Plan | None]:
    """Return the objective of the best of all configurations, and what is planned: nothing where there is none."""
    truth = min(all_objectives(problem), default=inf)
    if truth == inf:
        with pytest.raises(InfeasibleError, match="No plan fits"):
            plan(problem, Search())
        return truth, None
    return truth, plan(problem, Search())


@pytest.mark.parametrize("split", [True, False], ids=["sliced", "whole"])
@settings(max_examples=50)
@given(data=st.data())
def test_the_plan_agrees_with_every_configuration_tried(split: bool, data: st.DataObject) -> None:
    problem = planner.load(data.draw(small_questions(split)))
    truth, found = with_truth(problem)
    if found is None:
        return
    assert found.bound <= truth * (1 + 1e-9)
    assert found.objective >= truth * (1 - 1e-9)
    assert ParameterServerCost(problem, found.configuration).predict().value_of(problem.goal) == found.objective  # type: ignore[arg-type]
    if found.status is Status.OPTIMAL:
        assert found.objective == pytest.approx(truth)
    else:  # a placement that workers' links make harder than its bound sees
        assert not split
        assert found.objective <= truth * 1.02


BESIDE: list[dict[str, Any]] = [
    {"overlap": "none"},
    {"overlap": "none", "barrier": False},
    {"overlap": "push", "barrier": False},
    {"overlap": "push_pull"},
    {"overlap": "push_pull_forward"},
    {"max_overlap": "push_pull"},
    {"max_overlap": "push_pull_forward"},
]


@pytest.mark.parametrize("pins", BESIDE, ids=lambda pins: "-".join(map(str, pins.values())))
@pytest.mark.parametrize("split", [True, False], ids=["sliced", "whole"])
@settings(max_examples=8)
@given(data=st.data())
def test_no_configuration_beats_the_bound_where_sums_are_sent_on_their_own(
    split: bool, pins: dict[str, Any], data: st.DataObject
) -> None:
    asked = data.draw(small_questions(split))
    block = "calibration" if "max_overlap" in pins else "fix"
    problem = planner.load({**asked, block: {**asked[block], **pins}})
    truth, found = with_truth(problem)
    if found is None:
        return
    assert found.bound <= truth * (1 + 1e-9)
    assert found.objective >= truth * (1 - 1e-9)
    assert found.objective <= truth * 1.1
    if found.status is Status.OPTIMAL:
        assert found.objective == pytest.approx(truth)
    if block == "fix":
        assert {name: found.configuration.to_document().get(name) for name in pins} == pins


@settings(max_examples=TIGHT // 2)
@given(small_questions(True), st.integers(0, 10**6), st.sampled_from([-1, 0, 1]))
def test_nothing_that_fits_tight_memory_is_missed(asked: dict[str, Any], which: int, more: int) -> None:
    free = planner.load(asked)
    predictions = [ParameterServerCost(free, one).predict() for one in configurations(free)]
    sizes = sorted({one.memory_bytes["total"] for one in predictions})
    if not sizes:
        return
    limits = replace(free.limits, memory_per_device_bytes=sizes[which % len(sizes)] + more)
    problem = replace(free, limits=limits)
    truth, found = with_truth(problem)
    if found is None:
        return
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(truth)
    assert found.prediction.memory_bytes["total"] <= found.prediction.memory_bytes["limit"]


# -- larger questions ------------------------------------------------------------------------------------------------


def test_a_plan_is_read_back_with_the_same_seconds(tmp_path: Any) -> None:
    found = planned()
    block = {"parameter_server": found.configuration.to_document()}
    again = planner.predict(planner.load(question(configuration=block)))
    assert again.iteration_time_s == pytest.approx(found.prediction.iteration_time_s)
    assert again.details["global_batch_size"] == 256


def test_cpus_beside_accelerators_serve_and_do_not_work() -> None:
    chosen = planned(fix={"servers": "hosts"}).configuration.to_document()
    assert chosen["servers"] == "hosts"
    assert not chosen["co_located"]
    assert "hosts" not in chosen["workers"]


def test_equal_input_gives_an_equal_plan() -> None:
    assert planned() == planned()


def test_slices_are_no_slower_than_whole_tensors_and_more_servers_help_until_workers_links_bind() -> None:
    whole = planned()
    sliced = planned(calibration={"utilisation": 0.5, "split_tensors": True})
    assert sliced.objective <= whole.objective * (1 + 1e-9)
    fixed = [
        planned(
            calibration={"utilisation": 0.5, "split_tensors": True},
            fix={"num_parameter_servers": number, "servers": "hosts"},
        ).objective
        for number in (1, 2, 3)
    ]
    assert fixed == sorted(fixed, reverse=True)


def test_under_a_communication_bottleneck_slower_workers_cost_no_time() -> None:
    # Two RTX 4000 and a GTX 1060 at 1 Gbit/s, as in section 6.3 of Zeng et al.: a third RTX 4000 would save nothing.
    def seconds(third: str, network: str) -> float:
        machine = {"network": network, "latency": "0 s"}
        machines = [
            {**machine, "name": "workers", "count": 2, "device": "quadro-rtx-4000"},
            {**machine, "name": "third", "device": third},
            {**machine, "name": "server", "device": "xeon-e5-2660"},
        ]
        block = {
            "num_parameter_servers": 1,
            "servers": "server",
            "batch_shares": {"workers": 16, "third": 16},
        }
        dnn = {"zoo": "vgg16", "global_batch": 48}
        asked = question(dnn=dnn, cluster={"machines": machines}, configuration={"parameter_server": block})
        return planner.predict(planner.load(asked)).iteration_time_s

    slow, fast = seconds("gtx-1060-6gb", "1 Gbit/s"), seconds("quadro-rtx-4000", "1 Gbit/s")
    assert slow == pytest.approx(fast, rel=1e-2)
    assert seconds("gtx-1060-6gb", "100 Gbit/s") > 1.3 * seconds("quadro-rtx-4000", "100 Gbit/s")


def test_two_machines_that_serve_themselves_send_half_of_everything() -> None:
    machines = [{"name": "w", "count": 2, "device": "v100-sxm2-16g", "network": "10 Gbit/s", "latency": "0 s"}]
    fix = {"num_parameter_servers": 2, "co_located": True}
    calibration = {"utilisation": 0.5, "split_tensors": True, "bandwidth_efficiency": 1}
    found = planned(cluster={"machines": machines}, fix=fix, calibration=calibration).prediction
    gradient_bytes = found.details["gradient_bytes"]
    assert found.breakdown_s["pull"] == pytest.approx(gradient_bytes / 2 / 1.25e9)
    assert found.communication_s["push"] == pytest.approx(gradient_bytes / 2 / 1.25e9)


def test_latency_is_paid_once_in_each_direction() -> None:
    near, far = (
        planned(
            cluster={"machines": [{**one, "latency": latency} for one in MIXED]}, fix={"servers": "hosts"}
        ).prediction.breakdown_s["latency"]
        for latency in ("0 s", "5 ms")
    )
    assert near == 0
    assert far == pytest.approx(0.01)


def test_one_machine_that_serves_itself_needs_no_network() -> None:
    machines = [{"name": "w", "count": 2, "device": "v100-sxm2-16g", "network": "1 Gbit/s", "latency": "1 ms"}]
    limits = {"machines": {"exactly": 1}}
    found = planned(cluster={"machines": machines}, constraints=limits).prediction.breakdown_s
    assert found["pull"] == found["latency"] == 0
    assert found["exposed_push"] == pytest.approx(0, abs=1e-12)


def test_compression_is_chosen_where_it_pays_and_not_elsewhere() -> None:
    slow = [{**one, "network": "1 Gbit/s"} for one in MIXED]
    far = {"cluster": {"machines": slow}, "fix": {"servers": "hosts"}}
    plain = planned(**far)
    paid = planned(**far, compression={"time": "1 ms", "at_most": 0.9})
    dear = planned(**far, compression={"time": "100 s"})
    removed = paid.configuration.to_document()["compression"]["removed"]
    assert 0 < removed <= 0.9
    assert paid.bound <= paid.objective < plain.objective
    assert "compression" not in dear.configuration.to_document()
    assert dear.objective == pytest.approx(plain.objective)


@settings(max_examples=15)
@given(small_questions(True), st.sampled_from(["10 us", "1 ms", "30 ms"]), st.sampled_from([0.5, 0.9]))
def test_no_ratio_of_a_grid_beats_the_bound_under_compression(asked: dict[str, Any], time: str, most: float) -> None:
    problem = planner.load({**asked, "compression": {"time": time, "at_most": most}})
    try:
        found = plan(problem, Search())
    except InfeasibleError:
        return
    assert problem.compression is not None
    best = min(
        prediction.value_of(problem.goal)
        for configuration in itertools.islice(configurations(problem), 60)
        for removed in (None, 0.0, most / 2, most)
        for prediction in [ParameterServerCost(problem, _compressed(problem, configuration, removed)).predict()]
        if prediction.memory_bytes["total"] <= prediction.memory_bytes["limit"]
    )
    assert found.bound <= best * (1 + 1e-9)
    assert found.objective <= best * (1 + 1e-3)


@pytest.mark.parametrize("split", [True, False], ids=["sliced", "whole"])
def test_compression_that_costs_nothing_leaves_out_all_that_it_may(split: bool) -> None:
    slow = [{**one, "network": "1 Gbit/s"} for one in MIXED]
    asked = {"cluster": {"machines": slow}, "fix": {"servers": "hosts"}}
    calibration = {"utilisation": 0.5, "split_tensors": split}
    found = planned(**asked, calibration=calibration, compression={"time": "0 s", "at_most": 0.9})
    assert found.configuration.to_document()["compression"]["removed"] == pytest.approx(0.9, abs=1e-3)
    assert found.bound <= found.objective < planned(**asked, calibration=calibration).objective


def _compressed(
    problem: Problem, configuration: ParameterServerConfiguration, removed: float | None
) -> ParameterServerConfiguration:
    from planner.models.compression import Compression

    assert problem.compression is not None
    scale_s = problem.compression.scale_s
    compression = None if removed is None else Compression(removed=removed, scale_s=scale_s)
    return replace(configuration, compression=compression)


# -- without a barrier -------------------------------------------------------------------------------------------------


def test_asynchronous_plans_are_made_only_where_staleness_is_allowed_and_say_so() -> None:
    assert "synchronisation" not in planned().configuration.to_document()
    stale = planned(constraints={"max_staleness": 2})
    kind = stale.configuration.to_document().get("synchronisation", "bsp")
    told = " ".join(stale.explanation)
    assert "asynchronous, gradients lag" in told
    assert ("times the epochs" in told) is (kind != "bsp")
    assert any("asynchronous" in line for line in stale.warnings) is (kind != "bsp")
    assert stale.bound <= stale.objective <= planned().objective


def test_a_pinned_synchronisation_is_kept_and_its_staleness_reported() -> None:
    found = planned(fix={"synchronisation": "ssp"}, constraints={"max_staleness": 2})
    block = found.configuration.to_document()
    assert block["synchronisation"] == "ssp"
    assert 1 <= block["max_staleness"] <= 2
    assert found.prediction.details["staleness"]["mean"] >= 0
    assert sum(found.prediction.breakdown_s.values()) == pytest.approx(found.prediction.iteration_time_s)
    again = planner.predict(planner.load(question(configuration={"parameter_server": block})))
    assert again.iteration_time_s == pytest.approx(found.prediction.iteration_time_s)


# -- limits ----------------------------------------------------------------------------------------------------------


def test_a_search_that_is_over_gives_no_answer_and_one_that_is_content_stops() -> None:
    problem = planner.load(question())
    over = Search()
    over.interrupt()
    with pytest.raises(NoAnswerError, match="time limit"):
        plan(problem, over)
    content = plan(problem, Search(good_enough=float("inf")))
    assert content.bound <= plan(problem, Search()).objective <= content.objective


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"constraints": {"memory_per_device": "1 MB"}}, "even one sample at a time needs .* Raise memory_per_device"),
        ({"dnn": {"zoo": "alexnet", "global_batch": 2}, "constraints": {"devices": {"at_least": 3}}}, "batch of 2 is less than 3"),
        ({"fix": {"num_parameter_servers": 9}}, "fix.num_parameter_servers: 9"),
        ({"fix": {"num_machines": 8}}, "fix.num_machines: 8 is more than the 7 machines of the cluster. Pin 7 or less"),
        ({"fix": {"num_devices": 5}}, "fix.num_devices: 5 is more than the 4 devices that may work. Pin 4 or less"),
        ({"fix": {"num_devices": 3}, "cluster": {"machines": [{**MIXED[0], "devices": 2}]}}, "does so with all its devices"),
        ({"fix": {"servers": "hosts", "co_located": True}}, "fix.servers and fix.co_located"),
        ({"constraints": {"machines": {"exactly": 1}}, "fix": {"co_located": False}}, "constraints.machines from 1 to 1"),
    ],
)  # fmt: skip
def test_where_nothing_fits_the_message_says_what_is_missing(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InfeasibleError, match=words):
        planned(**changes)


@pytest.mark.parametrize(
    ("more", "samples"),
    [
        ({}, 64),
        ({"fix": {"co_located": False}}, 128),  # one of the machines only serves
        ({"fix": {"num_devices": 2, "co_located": True}}, 128),
        ({"constraints": {"machines": {"at_most": 1}}, "fix": {"co_located": True}}, 128),
    ],
)
def test_the_memory_that_is_said_to_be_enough_is_that_of_a_share_of_the_batch(
    more: dict[str, Any], samples: int
) -> None:
    machine = {"count": 2, "device": "v100-sxm2-16g", "devices": 2, "network": "10 Gbit/s"}
    asked: dict[str, Any] = {"dnn": {"zoo": "vgg16", "global_batch": 256}, "cluster": {"machines": [machine]}, **more}

    def answered(memory: str) -> Any:
        limits = {**more.get("constraints", {}), "memory_per_device": memory}
        return plan(planner.load(question(**{**asked, "constraints": limits})), Search())

    with pytest.raises(InfeasibleError, match=f"a share of {samples} samples, which pass together, needs") as caught:
        answered("1 GiB")
    enough = caught.value.enough_bytes
    (amount,) = re.findall(r"Raise memory_per_device to ([\d.]+ \w+)", str(caught.value))
    assert answered(amount)
    assert answered(f"{enough * 1.0001} B")
    with pytest.raises(InfeasibleError):
        answered(f"{enough * 0.999} B")


def test_alternatives_are_a_curve_over_the_number_of_servers() -> None:
    found = planned()
    numbers = [
        one.configuration.to_document()["num_parameter_servers"] for one in found.alternatives if one.configuration
    ]
    assert len(set(numbers)) == len(numbers) >= 2
    assert all(one.objective >= found.objective for one in found.alternatives)
    assert any("by the number of servers" in line for line in found.explanation)


def test_a_thousand_machines_of_two_types_are_planned() -> None:
    machines = [{**one, "count": 500} for one in MIXED[:2]]
    found = planned(
        dnn={"zoo": "resnet50", "global_batch": 32_000},
        cluster={"machines": machines},
        calibration={"utilisation": 0.5, "split_tensors": True},
    )
    assert found.gap < 0.01


# -- boxes -----------------------------------------------------------------------------------------------------------


@settings(max_examples=35)
@given(small_questions(True), st.sampled_from([{}, *(pins for pins in BESIDE if "max_overlap" not in pins)]))
def test_boxes_hold_every_configuration_once_and_no_bound_is_above_what_they_hold(
    asked: dict[str, Any], pins: dict[str, Any]
) -> None:
    problem = planner.load({**asked, "fix": {**asked["fix"], **pins}})
    space, rows, least = Space(problem), [], float("inf")
    for index, site in enumerate(space.sites):
        waiting = [(root(space, site), float("-inf"))]
        while waiting:
            boxes, above = waiting.pop()
            _, boxes = tightened(space, site, boxes)
            if not len(boxes):
                continue
            bound = max(above, float(lower_bounds(space, site, boxes).max()))
            if not boxes.are_points.all():
                halves = split(space, site, boxes)
                waiting += [(halves.of(np.array([half])), bound) for half in range(len(halves))]
                continue
            row = boxes.low[0].tolist()
            cost = ParameterServerCost(problem, row_configuration(space, site, row))
            objective = cost.predict().value_of(problem.goal)
            assert bound <= objective * (1 + 1e-9)
            rows.append((index, *row))
            least = min(least, objective)
    assert len(set(rows)) == len(rows)
    truth = min(all_objectives(problem), default=float("inf"))
    assert least == pytest.approx(truth) if not pins else least >= truth * (1 - 1e-9)  # rows have no pieces
