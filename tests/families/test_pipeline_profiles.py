"""Pipelines of measured profiles, also on devices that were not measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from given_pipelines import DNN, MACHINE, MIXED, asked

import planner
from planner.api import configuration_of
from planner.errors import SpecError
from planner.families.pipeline.cost import PipelineConfiguration, PipelineCost
from planner.problem import Problem


def test_a_profile_is_scaled_to_other_devices_by_their_peaks_and_says_so() -> None:
    problem = planner.load(
        asked(
            [{"first": "a", "last": "f", "machines": "w"}],
            cluster=MIXED,
            dnn={**DNN, "profile_device": "v100-sxm2-16g"},
        )
    )
    measured, scaled = (problem.profiles[name] for name in ("v100-sxm2-16g", "p100-sxm2"))
    peaks = {group.device.name: group.device.peak_flop_per_s["fp32"] for group in problem.cluster.machine_groups}
    ratio = peaks["v100-sxm2-16g"] / peaks["p100-sxm2"]
    assert ratio > 1.3
    assert (scaled.forward_s / measured.forward_s).tolist() == pytest.approx([ratio] * 6)
    assert (scaled.backward_s / measured.backward_s).tolist() == pytest.approx([ratio] * 6)
    said = f"scaled from v100-sxm2-16g by {ratio:.4g}, the ratio of their fp32 peaks"
    assert scaled.origin.endswith(said)
    assert f"seconds on p100-sxm2 {said}" in problem.assumptions
    assert not any("scaled" in one for one in planner.load(asked()).assumptions)


def test_on_mixed_devices_the_first_is_assumed_to_be_the_measured_one_and_the_plan_keeps_that() -> None:
    problem = planner.load(asked([{"first": "a", "last": "f", "machines": "w"}], cluster=MIXED))
    assert any(
        "the profile was measured on v100-sxm2-16g; set dnn.profile_device" in one for one in problem.assumptions
    )
    again = planner.load(problem.resolved)
    assert again.resolved["dnn"]["profile_device"] == "v100-sxm2-16g"
    for name, profile in problem.profiles.items():
        assert again.profiles[name].forward_s.tolist() == pytest.approx(profile.forward_s.tolist())


def test_a_profile_of_a_device_that_the_cluster_lacks_is_scaled_too() -> None:
    there = planner.load(asked(dnn={**DNN, "profile_device": "v100-sxm2-16g"})).profiles["v100-sxm2-16g"]
    elsewhere = planner.load(asked(dnn={**DNN, "profile_device": "p100-sxm2"})).profiles["v100-sxm2-16g"]
    assert (elsewhere.forward_s < there.forward_s).all()
    with pytest.raises(SpecError, match=r"dnn\.profile_device"):
        planner.load(asked(dnn={**DNN, "profile_device": "abacus-9000"}))
    with pytest.raises(SpecError, match="profile_device belongs to a measured profile"):
        planner.load({**asked(), "dnn": {"zoo": "vgg16", "profile_device": "v100-sxm2-16g"}})


def test_without_a_common_peak_seconds_stay_and_a_warning_says_so() -> None:
    other = {**MACHINE, "name": "x", "device": {"name": "npu", "memory": "8 GiB"}}
    problem = planner.load(
        asked([{"first": "a", "last": "f", "machines": "w"}], cluster={"machines": [MACHINE, other]})
    )
    assert any("no peak of both to scale by" in warning for warning in problem.warnings)
    assert problem.profiles["npu"].forward_s.tolist() == problem.profiles["v100-sxm2-16g"].forward_s.tolist()


def measured(
    folder: Path, name: str, batch: int, stages: list[dict[str, Any]], **block: Any
) -> tuple[Problem, PipelineConfiguration]:
    file = folder / "traces" / "pipedream" / f"{name}.graph.txt"
    dnn = {"profile": str(file), "profile_batch": batch, "batch_per_device": batch}
    machine = {**MACHINE, "devices": 4}
    problem = planner.load(
        {"dnn": dnn, "cluster": {"machines": [machine]}, "configuration": {"pipeline": {"stages": stages, **block}}}
    )
    _, configuration = configuration_of(problem)
    assert isinstance(configuration, PipelineConfiguration)
    return problem, configuration


@pytest.mark.measured
def test_vgg16_sends_far_less_behind_its_convolutions(data_folder: Path) -> None:
    late: list[dict[str, Any]] = [
        {"first": "node1", "last": "node32", "replicas": 15},
        {"first": "node33", "last": "node41"},
    ]
    early: list[dict[str, Any]] = [
        {"first": "node1", "last": "node10", "replicas": 15},
        {"first": "node11", "last": "node41"},
    ]
    times = []
    for stages in (late, early):
        problem, configuration = measured(data_folder, "vgg16", 128, stages)
        found = planner.predict(problem, configuration)
        times.append(found.details["stages"][0]["transfer_s"])
        assert found.details["num_machines"] == 4
        assert found.details["global_batch_size"] == 2048
    assert times[1] == pytest.approx(64 * times[0], rel=0.01)


@pytest.mark.measured
def test_a_branched_network_relays_and_counts_every_byte_that_its_edges_carry(data_folder: Path) -> None:
    for name, batch in (("resnet50", 128), ("gnmt", 64)):
        problem, _ = measured(
            data_folder,
            name,
            batch,
            [{"first": "node1", "last": {"resnet50": "node177", "gnmt": "node48"}[name], "replicas": 16}],
        )
        cost = PipelineCost(problem)
        order = {layer.name: index for index, layer in enumerate(problem.dnn.layers)}
        sizes = {layer.name: 4 * layer.num_output_elements for layer in problem.dnn.layers}
        for position in range(1, len(order)):
            across = {one for one, other in problem.dnn.graph.edges if order[one] < position <= order[other]}
            assert cost.costs.boundary_bytes(position) == pytest.approx(sum(sizes[one] for one in across))


@pytest.mark.measured
def test_gnmt_warns_of_a_backward_near_zero_and_vgg16_of_nothing(data_folder: Path) -> None:
    whole = {"gnmt": "node48", "vgg16": "node41"}
    doubts = {}
    for name, last in whole.items():
        problem, _ = measured(data_folder, name, 128, [{"first": "node1", "last": last, "replicas": 16}])
        doubts[name] = [warning for warning in problem.warnings if "near zero" in warning]
    assert doubts == {"gnmt": ["backward times near zero beside their forward times: node5"], "vgg16": []}


@pytest.mark.measured
def test_many_small_stages_of_a_measured_network_are_simulated(data_folder: Path) -> None:
    stages: list[dict[str, Any]] = [
        {"first": f"node{k}", "last": f"node{k + 10}", "replicas": 1} for k in range(1, 166, 11)
    ]
    stages.append({"first": "node166", "last": "node177", "replicas": 1})
    problem, configuration = measured(data_folder, "resnet50", 128, stages, num_microbatches=64)
    found = planner.predict(problem, configuration)
    work_s = [row["forward_s"] + row["backward_s"] for row in found.details["stages"]]
    assert found.iteration_time_s >= 64 * max(work_s)
    assert found.details["stages"][0]["in_flight"] == 16
    fewer = planner.predict(problem, replace(configuration, num_microbatches=16))
    assert fewer.breakdown_s["bubble"] > found.breakdown_s["bubble"]
