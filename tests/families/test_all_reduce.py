"""The family all_reduce against a referee that tries everything, and its properties."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_of_devices import PER_DEVICE, uses_all
from tight_memory import TIGHT

import planner
from planner.checks import check
from planner.cost import Wait
from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families.all_reduce.bounds import AllReduceBoxes
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.all_reduce.search import teams_of
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.solvers.branch_and_bound import best_vector
from tests.referee.exhaustive import all_groupings

OSF = {"preset": "osf-testbed"}
ALONE = {"families": ["all_reduce"]}


def question(**changes: Any) -> dict[str, Any]:
    """A question on a real network and testbed, with changes to its top-level blocks."""
    base: dict[str, Any] = {**ALONE, "dnn": {"zoo": "vgg16", "batch_per_device": 32}, "cluster": OSF}
    for key, block in changes.items():
        base[key] = {**base.get(key, {}), **block} if isinstance(block, dict) and key != "cluster" else block
    return base


@st.composite
def small_questions(draw: st.DrawFn) -> dict[str, Any]:
    """A few layers, a few machines, every kind of batch, memory that may be short, every wait."""
    layers = [
        {
            "name": f"layer{index}",
            "inputs": [f"layer{index - 1}"] if index else [],
            "multiply_adds": draw(st.integers(1, 60)) * 1e8,
            "parameters": f"{draw(st.integers(0, 40)) * 40_000} B",
            "output": "4 MB",
        }
        for index in range(draw(st.integers(1, 5)))
    ]
    layers[0]["parameters"] = "400 kB"
    most = draw(st.integers(1, 9))
    batch = draw(
        st.sampled_from(
            [{"global_batch": most}, {"max_global_batch": most}, {"batch_per_device": 2, "max_global_batch": 8}]
        )
    )
    batch, objective = draw(st.sampled_from([(batch, "epoch_time"), *PER_DEVICE]))
    machine = {
        "count": draw(st.integers(1, 3)),
        "devices": draw(st.integers(1, 2)),
        "device": {
            "name": "small",
            "fp32": "1 TFLOP/s",
            "memory": f"{draw(st.integers(12, 60))} MB",
            "memory_bandwidth": "100 GB/s",
        },
        "inside": {"bandwidth": "2 GB/s", "latency": "3 us"},
        "network": f"{draw(st.integers(1, 40))} Gbit/s",
        "latency": f"{draw(st.integers(0, 3000))} us",
        "nics": draw(st.integers(1, 2)),
    }
    calibration = {
        "utilisation": 1,
        "wait": draw(st.sampled_from(["none", "exact", "paper"])),
        "timeout": f"{draw(st.integers(1, 100))} ms",
        "overhead": f"{draw(st.integers(0, 20))} ms",
        "negotiate": f"{draw(st.integers(0, 2))} ms",
    }
    return {
        **ALONE,
        "dnn": {"layers": layers, "dataset_samples": 1000, **batch},
        "cluster": {"machines": [machine]},
        "calibration": calibration,
        "objective": objective,
    }


def every_setting(problem: Problem) -> Iterator[tuple[AllReduceCost, AllReduceConfiguration]]:
    """All machines, devices, batches and micro-batches, by brute force, not yet fused."""
    training, (group,) = problem.training, problem.cluster.machine_groups
    for machines in range(1, group.count + 1):
        for devices in range(1, group.devices_per_machine + 1):
            cost = AllReduceCost.homogeneous(problem, devices_per_machine=devices)
            number, there_are = machines * devices, group.count * group.devices_per_machine
            most = training.max_global_batch_size
            if number < there_are and uses_all(problem):
                continue
            if training.global_batch_size:
                batches = [training.global_batch_size]
            elif training.batch_per_device and most is None:
                batches = [training.batch_per_device * there_are]
            elif training.batch_per_device:
                batches = [training.batch_per_device * number]
            else:
                batches = list(range(number, (most or 0) + 1))
            for batch in batches:
                for steps in range(1, ceil(batch / number) + 1):
                    if number <= batch <= (most or batch):
                        yield cost, cost.configuration([machines], [ceil(batch / number)], batch, steps=[steps])


def best_by_trying_everything(problem: Problem) -> float | None:
    found = []
    for cost, bare in every_setting(problem):
        if cost.memory_bytes(bare)[0]["total"] > cost.memory_limits_bytes[0]:
            continue
        groupings = all_groupings(len(cost.gradients.names)) if bare.num_devices > 1 else iter([()])
        found += [cost.predict(cost.fused(bare, ends)).value_of(problem.goal) for ends in groupings]
    return min(found, default=None)


def hold_plan_against_everything(problem: Problem) -> Plan | None:
    """The plan, which is the best of everything tried; None where nothing fits, and that is said."""
    truth = best_by_trying_everything(problem)
    if truth is None:
        with pytest.raises(InfeasibleError, match="No plan fits"):
            planner.plan(problem)
        return None
    found = planner.plan(problem)
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(truth, rel=1e-9)
    return found


@settings(max_examples=150)
@given(small_questions())
def test_the_plan_is_as_good_as_the_best_of_everything_tried(asked: dict[str, Any]) -> None:
    problem = planner.load(asked)
    if (found := hold_plan_against_everything(problem)) is not None:
        assert found.bound <= found.objective


@settings(max_examples=40)
@given(small_questions())
def test_homogeneous_devices_are_planned_as_a_single_group_of_heterogeneous_ones(asked: dict[str, Any]) -> None:
    problem = planner.load(asked)
    boxes = AllReduceBoxes(problem, list(teams_of(problem, is_one_kind=False)), Search())
    general = best_vector(boxes.roots, boxes, Search(), split=boxes.split)
    try:
        found = planner.plan(problem)
    except InfeasibleError:
        assert general.value is None
        return
    assert general.objective == pytest.approx(found.objective, rel=1e-9)


@settings(max_examples=60)
@given(small_questions())
def test_no_setting_is_faster_than_its_bound_which_is_met_by_a_single_gradient(asked: dict[str, Any]) -> None:
    problem = planner.load(asked)
    boxes = AllReduceBoxes(problem, list(teams_of(problem)), Search())
    bounds = boxes.bounds(boxes.roots, float("inf"))
    is_tight = len(problem.dnn.trained_layers) == 1 and problem.calibration.wait is Wait.NONE
    for leaf, bound in zip(boxes.roots, bounds.tolist(), strict=True):
        solved = boxes.solve(leaf, bound, float("inf"))
        assert bound <= solved.objective * (1 + 1e-9)
        if is_tight:
            assert bound == pytest.approx(solved.objective)


@settings(max_examples=TIGHT)
@given(small_questions(), st.integers(0, 10**6), st.sampled_from([-1, 0, 1]))
def test_nothing_that_fits_tight_memory_is_missed(asked: dict[str, Any], which: int, more: int) -> None:
    free = planner.load(asked)
    sizes = sorted({cost.memory_bytes(bare)[0]["total"] for cost, bare in every_setting(free)})
    if not sizes:
        return
    limits = replace(free.limits, memory_per_device_bytes=sizes[which % len(sizes)] + more)
    problem = replace(free, limits=limits)
    if (found := hold_plan_against_everything(problem)) is not None:
        assert found.prediction.memory_bytes["total"] <= found.prediction.memory_bytes["limit"]


@settings(max_examples=60)
@given(small_questions())
def test_a_plan_says_what_predict_says_of_its_configuration(asked: dict[str, Any]) -> None:
    problem = planner.load(asked)
    try:
        found = planner.plan(problem)
    except InfeasibleError:
        return
    again = planner.load({**found.problem, "configuration": {found.family: found.configuration.to_document()}})
    assert planner.predict(again) == found.prediction


@settings(max_examples=60)
@given(small_questions())
def test_the_breakdown_sums_to_the_iteration(asked: dict[str, Any]) -> None:
    problem = planner.load(asked)
    try:
        prediction = planner.plan(problem).prediction
    except InfeasibleError:
        return
    assert sum(prediction.breakdown_s.values()) == pytest.approx(prediction.iteration_time_s)
    assert min(prediction.breakdown_s.values()) >= -1e-12
    memory = dict(prediction.memory_bytes)
    limit, total = memory.pop("limit"), memory.pop("total")
    assert sum(memory.values()) == pytest.approx(total)
    assert total <= limit


@settings(max_examples=60)
@given(small_questions(), st.floats(1.1, 10))
def test_a_wider_network_never_hurts(asked: dict[str, Any], factor: float) -> None:
    machine = asked["cluster"]["machines"][0]
    wider = {**machine, "network": f"{float(machine['network'].split()[0]) * factor} Gbit/s"}
    try:
        narrow = planner.plan(planner.load(asked)).objective
    except InfeasibleError:
        return
    assert planner.plan(planner.load({**asked, "cluster": {"machines": [wider]}})).objective <= narrow * (1 + 1e-9)


@settings(max_examples=60)
@given(small_questions())
def test_one_more_machine_that_may_stay_idle_never_hurts(asked: dict[str, Any]) -> None:
    machine, dnn = asked["cluster"]["machines"][0], asked["dnn"]
    if "batch_per_device" in dnn and "max_global_batch" not in dnn:  # more devices would mean another global batch
        whole = dnn["batch_per_device"] * machine["count"] * machine["devices"]
        layers = {key: value for key, value in dnn.items() if key != "batch_per_device"}
        asked = {**asked, "dnn": {**layers, "global_batch": whole}}
    more = {**machine, "count": machine["count"] + 1}
    try:
        fewer = planner.plan(planner.load(asked)).objective
    except InfeasibleError:
        return
    assert planner.plan(planner.load({**asked, "cluster": {"machines": [more]}})).objective <= fewer * (1 + 1e-9)


@pytest.mark.parametrize("zoo", ["alexnet", "vgg16", "resnet50", "googlenet"])
@pytest.mark.parametrize("wait", ["none", "exact", "paper"])
def test_the_optimum_never_loses_to_a_rule_under_the_same_wait(zoo: str, wait: str) -> None:
    asked = question(dnn={"zoo": zoo}, calibration={"wait": wait, "overhead": "3.28 ms", "utilisation": 0.4})
    found = planner.plan(planner.load(asked))
    by_tensor = planner.load(question(**{**asked, "calibration": {**asked["calibration"], "fusion_unit": "tensor"}}))
    least = planner.plan(by_tensor).objective
    assert least <= found.objective * (1 + 1e-12)
    frameworks = [one for one in found.alternatives if "DDP" in one.name or "Horovod" in one.name]
    assert (len(found.alternatives), len(frameworks)) == (8, 3)
    assert all(one.objective >= found.objective * (1 - 1e-12) for one in found.alternatives)


def test_the_same_question_gives_the_same_bytes() -> None:
    from planner.answer.documents import dump

    asked = question(dnn={"zoo": "resnet50"}, calibration={"utilisation": 0.4})
    first, second = (dump(planner.plan(planner.load(asked), num_alternatives=3).to_dict()) for _ in range(2))
    assert first == second


def test_with_an_open_number_of_devices_a_slow_network_leaves_some_idle() -> None:
    machines = [{"count": 16, "device": "a100", "network": "1 Gbit/s", "latency": "50 us"}]
    asked = question(dnn={"zoo": "vgg16", "global_batch": 256}, cluster={"machines": machines})
    asked["dnn"].pop("batch_per_device")
    found = planner.plan(planner.load(asked), num_alternatives=3)
    configuration = found.configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert configuration.num_devices < 16
    assert len([one for one in found.alternatives if "devices on" in one.name or "device on" in one.name]) == 3


def test_a_batch_that_does_not_fit_is_accumulated_in_micro_batches() -> None:
    asked = question(dnn={"zoo": "resnet152", "batch_per_device": 256}, calibration={"utilisation": 0.4})
    found = planner.plan(planner.load(asked))
    configuration = found.configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert configuration.gradient_accumulation_steps > 1
    assert found.prediction.memory_bytes["total"] <= 11 * 2**30
    assert any("micro-batches" in line for line in found.explanation)


def test_slow_storage_binds_the_iteration() -> None:
    machines = [
        {
            "count": 4,
            "device": "v100",
            "devices": 4,
            "network": "100 Gbit/s",
            "storage": {"bandwidth": "100 MB/s", "shared": True},
        }
    ]
    found = planner.plan(planner.load(question(cluster={"machines": machines})))
    read_s = 4 * 4 * 32 * 3 * 224 * 224 * 4 / 100e6
    assert found.prediction.iteration_time_s == pytest.approx(read_s)
    assert found.explanation[0].startswith("input binds: read")


def test_a_chain_of_small_messages_is_told_from_one_of_large_ones() -> None:
    many_small = question(
        dnn={"zoo": "resnet152", "batch_per_device": 1},
        calibration={"utilisation": 1, "overhead": "1 s"},
        fix={"num_devices": 32},
    )
    assert "latency of small messages binds" in planner.plan(planner.load(many_small)).explanation[0]
    few_large = question(dnn={"batch_per_device": 1}, calibration={"utilisation": 1}, fix={"num_devices": 32})
    assert "by its bandwidth" in planner.plan(planner.load(few_large)).explanation[0]


def test_a_measured_curve_is_used_where_it_was_measured_and_nowhere_else() -> None:
    points = [["1 kB", "1 ms"], ["1 MB", "2 ms"], ["100 MB", "90 ms"]]
    asked = question(
        dnn={"zoo": "vgg16", "global_batch": 512}, calibration={"curves": [{"num_devices": 8, "points": points}]}
    )
    asked["dnn"].pop("batch_per_device")
    found = planner.plan(planner.load(asked))
    configuration = found.configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert configuration.num_devices == 8
    assert {group.algorithm for group in configuration.fusion_groups} == {"measured"}


def unlike(num_machines: int) -> dict[str, Any]:
    """One machine with a slow link beside others with fast ones, all on one switch."""
    nodes = [{"name": f"m{index}", "device": "v100"} for index in range(num_machines)] + [
        {"name": "s", "type": "switch"}
    ]
    links = [
        {"ends": [f"m{index}", "s"], "bandwidth": f"{10 if index else 1} Gbit/s", "latency": "10 us"}
        for index in range(num_machines)
    ]
    return {"nodes": nodes, "links": links}


def test_of_unlike_machines_the_best_set_is_chosen_and_proven() -> None:
    asked: dict[str, Any] = {**ALONE, "dnn": {"zoo": "vgg16", "global_batch": 96}, "cluster": unlike(3)}
    found = planner.plan(planner.load({**asked, "constraints": {"devices": 2}}))
    assert found.status is Status.OPTIMAL
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert found.configuration.machines == ("m1", "m2")
    again = planner.load({**found.problem, "configuration": {"all_reduce": found.configuration.to_document()}})
    assert planner.predict(again) == found.prediction


def test_a_bad_machine_that_may_stay_idle_never_hurts() -> None:
    good = {"name": "a", "count": 2, "device": "a100", "devices": 8, "inside": "nvlink-3", "network": "100 Gbit/s"}
    bad = {**good, "name": "b", "inside": "pcie-3-x16", "network": "1 Mbit/s", "storage": {"bandwidth": "1 MB/s"}}
    asked: dict[str, Any] = {**ALONE, "dnn": {"zoo": "vgg16", "global_batch": 256}, "constraints": {"deadline": "1 h"}}
    alone = planner.plan(planner.load({**asked, "cluster": {"machines": [good]}}))
    for machines in ([good, bad], [bad, good]):
        both = planner.plan(planner.load({**asked, "cluster": {"machines": machines}}))
        assert both.objective == pytest.approx(alone.objective)
        assert both.status is Status.OPTIMAL


def test_machines_with_unequal_numbers_of_devices_each_count() -> None:
    eight = {"name": "a", "count": 1, "device": "a100", "devices": 8, "inside": "nvlink-3", "network": "100 Gbit/s"}
    four = {**eight, "name": "b", "devices": 4}
    asked: dict[str, Any] = {
        **ALONE,
        "dnn": {"zoo": "vgg16", "global_batch": 256},
        "cluster": {"machines": [four, eight]},
    }
    found = planner.plan(planner.load({**asked, "fix": {"num_machines": 1, "devices_per_machine": 8}}))
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert found.configuration.machines == ("a",)
    both = planner.load({**asked, "dnn": {"zoo": "vgg16", "batch_per_device": 8}})
    assert both.training.global_batch_size == 8 * 12
    assert any("96, 8 samples for each of 12 unequal devices" in line for line in both.assumptions)


def test_more_unlike_groups_than_can_be_tried_leave_a_bound() -> None:
    asked = {**ALONE, "dnn": {"zoo": "vgg16", "global_batch": 96}, "cluster": unlike(10), "constraints": {"devices": 2}}
    found = planner.plan(planner.load(asked))
    assert found.status is Status.FEASIBLE
    assert 0 < found.gap < 1


def test_a_deadline_that_is_missed_but_not_proven_impossible_is_no_proof() -> None:
    asked = {
        **ALONE,
        "dnn": {"zoo": "vgg16", "global_batch": 96},
        "cluster": unlike(10),
        "constraints": {"devices": 2, "deadline": "3 h"},
    }
    with pytest.raises(NoAnswerError, match="only proven that none takes less than"):
        planner.plan(planner.load(asked))


def test_the_scaling_factor_counts_the_input_of_one_device_alone() -> None:
    machine = {"count": 8, "device": "k80", "network": "10 Gbit/s", "storage": {"bandwidth": "10 MB/s", "shared": True}}
    asked: dict[str, Any] = {
        **ALONE,
        "dnn": {"zoo": "resnet50", "batch_per_device": 32, "sample_bytes": "100 kB"},
        "cluster": {"machines": [machine]},
        "constraints": {"devices": 8},
    }
    many = planner.plan(planner.load(asked)).prediction
    one = planner.plan(planner.load({**asked, "constraints": {"devices": 1}})).prediction
    assert one.epoch_time_s is not None
    assert many.epoch_time_s is not None
    assert many.scaling_factor == pytest.approx(one.epoch_time_s / (8 * many.epoch_time_s))


def test_cpus_beside_accelerators_leave_one_type_of_device() -> None:
    asked = {**ALONE, "dnn": {"zoo": "vgg16", "global_batch": 96}, "cluster": {"preset": "gst-1g"}}
    found = planner.plan(planner.load(asked))
    pinned = planner.plan(planner.load({**asked, "fix": {"device": "RTX 3090"}}))
    assert isinstance(found.configuration, AllReduceConfiguration)
    assert found.configuration.num_devices <= 3
    assert not found.configuration.groups
    assert found.objective == pytest.approx(pinned.objective)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"constraints": {"memory_per_device": "1 GiB"}},
            r"even one sample at a time needs 1\.6\d* GiB.*may hold 1 GiB",
        ),
        ({"constraints": {"deadline": "1 s"}}, r"takes at least .* and constraints\.deadline is 1 s"),
        ({"fix": {"num_devices": 31, "devices_per_machine": 8}}, "no number of machines and devices meets"),
        ({"fix": {"gradient_accumulation_steps": 64, "num_devices": 32}}, "gradient_accumulation_steps: 64"),
    ],
)
def test_a_question_without_answer_says_what_would_have_to_give(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        planner.plan(planner.load(question(**changes)))


def test_the_memory_and_the_deadline_named_are_enough() -> None:
    tight = planner.load(question(constraints={"memory_per_device": "1 GiB"}))
    with pytest.raises(InfeasibleError) as error:
        planner.plan(tight)
    named = str(error.value).split("Raise memory_per_device to ")[1].split(",")[0]
    planner.plan(planner.load(question(constraints={"memory_per_device": named})))
    late = planner.load(question(constraints={"deadline": "1 s"}))
    with pytest.raises(InfeasibleError) as error:
        planner.plan(late)
    (conflict,) = error.value.conflicts
    (deadline,) = [row for row in conflict.relaxations if row.field == "constraints.deadline"]
    assert deadline.is_exact and deadline.is_enough
    assert deadline.values[0] in str(error.value)
    planner.plan(planner.load(question(constraints={"deadline": deadline.values[0]})))


def test_a_time_limit_of_nothing_gives_no_answer() -> None:
    with pytest.raises(NoAnswerError, match="time limit"):
        planner.plan(planner.load(question()), time_limit_s=0)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"num_devices": 33}, "makes 33 with equally many"),
        ({"num_devices": 32, "fusion_groups": [{"tensors": ["fc8"]}]}, "'fc7' is in no group"),
        ({"num_devices": 32, "fusion_groups": [{"tensors": ["fc9"]}]}, "'fc9' is no gradient"),
        ({"num_devices": 32, "global_batch_size": 8}, "a batch of 8 has no sample for each of 32 devices"),
    ],
)
def test_an_impossible_configuration_is_refused_with_the_numbers(block: dict[str, Any], message: str) -> None:
    problem = planner.load(question(configuration={"all_reduce": block}))
    with pytest.raises(SpecError, match=message):
        planner.predict(problem)


def test_the_printed_equation_13_is_a_variant_of_predict_alone() -> None:
    block = {"all_reduce": {"num_devices": 32, "fusion_groups": {"buffer": "100 MB"}}}
    calibration = {"timeout": "5 ms", "wait": "paper"}
    corrected = planner.predict(planner.load(question(configuration=block, calibration=calibration)))
    printed_question = question(configuration=block, calibration=calibration, variant="printed")
    printed = planner.predict(planner.load(printed_question))
    assert printed.iteration_time_s != pytest.approx(corrected.iteration_time_s)
    with pytest.raises(SpecError, match="variant"):
        planner.plan(planner.load(printed_question))


def test_switches_that_add_up_are_taken_where_the_library_has_them_and_asked_of_nccl() -> None:
    spec: dict[str, Any] = {
        "dnn": {"zoo": "vgg16", "batch_per_device": 32},
        "cluster": {"machines": [{"count": 4, "devices": 8, "device": "h100-sxm", "network": "8 x 400 Gbit/s"}]},
        "families": ["all_reduce"],
        "calibration": {"bandwidth_efficiency": 1},
    }
    usual = planner.plan(planner.load(spec))
    names = ["ring", "tree", "two_level", "in_network"]
    problem = planner.load({**spec, "calibration": {"bandwidth_efficiency": 1, "algorithms": names}})
    plan = planner.plan(problem)
    configuration = plan.configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert {group.algorithm for group in configuration.fusion_groups} == {"in_network"}
    assert plan.objective < usual.objective
    assert check(problem, plan).is_ok
    assert any("NVLink SHARP" in line for line in plan.warnings)
    assert not any("SHARP" in line for line in usual.warnings)
    exported = planner.export(plan, "ddp")
    assert "NCCL_COLLNET_ENABLE:-1" in exported.files["launch.sh"]
    assert "NCCL_ALGO=" not in exported.files["launch.sh"]  # an algorithm that it lacks ends a job
    assert any("in_network has no name in NCCL" in note for note in exported.notes)
    assert any("in_network" in note for note in planner.export(plan, "horovod").notes)


def test_machines_of_unequal_numbers_of_devices_do_not_add_up_in_switches() -> None:
    spec: dict[str, Any] = {
        "dnn": {"zoo": "vgg16", "batch_per_device": 32},
        "cluster": {
            "machines": [
                {"name": device, "count": 2, "devices": number, "device": device, "network": "100 Gbit/s"}
                for device, number in (("h100-sxm", 2), ("a100-sxm4-80gb", 8))
            ]
        },
        "fix": {"num_devices": 20},
        "calibration": {"algorithms": ["ring", "in_network"]},
        "families": ["all_reduce"],
    }
    configuration = planner.plan(planner.load(spec)).configuration
    assert isinstance(configuration, AllReduceConfiguration)
    assert {group.algorithm for group in configuration.fusion_groups} == {"ring"}
