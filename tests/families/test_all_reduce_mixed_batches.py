"""The family all_reduce on many unlike devices, where the batch may vary within a wide range."""

import numpy as np
import pytest

import planner
from planner.families.all_reduce.bounds import AllReduceBoxes
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.all_reduce.search import plan
from planner.families.all_reduce.team import Team
from planner.problem import Problem
from planner.search import Search

UNLIKE_MANY = [
    {"name": "a", "count": 250, "devices": 4, "device": "v100-sxm2-16g", "inside": "pcie-3-x16"},
    {"name": "b", "count": 250, "devices": 2, "device": "rtx-2080-ti", "inside": "pcie-3-x16"},
    {"name": "c", "count": 251, "devices": 2, "device": "gtx-1060-6gb", "inside": "pcie-3-x16"},
    {"name": "d", "count": 249, "devices": 1, "device": "quadro-rtx-4000"},
]


def of_many(**batch: int) -> Problem:
    machines = [{**one, "network": "10 Gbit/s", "latency": "20 us"} for one in UNLIKE_MANY]
    dnn = {"zoo": "resnet50", "dataset_samples": 1281167, **batch}
    return planner.load({"dnn": dnn, "cluster": {"machines": machines}, "objective": "epoch_time"})


class Brief(Search):
    """A search that is over from the second time on that it is asked: before a box is split."""

    @property
    def is_over(self) -> bool:
        self.seed += 1
        return self.seed > 1


def test_where_the_batch_may_vary_the_first_plan_is_as_good_as_on_the_largest_and_its_bound_is_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Boxes of all batches are bounded by the devices' rate, so that the best set of groups is tried first."""
    monkeypatch.setattr("planner.families.all_reduce.search._decisions", lambda *_: [])  # the first plan alone
    fixed = plan(of_many(global_batch=1_000_000), Brief())
    problem = of_many(max_global_batch=1_000_000)
    found = plan(problem, Brief())
    assert found.objective <= fixed.objective * 1.001
    assert found.bound >= 0.99 * found.objective


def test_a_batch_of_which_every_device_has_its_whole_share_is_tried() -> None:
    problem = of_many(max_global_batch=1_000_000)
    names = [group.name for group in problem.cluster.machine_groups]
    devices = [group.devices_per_machine for group in problem.cluster.machine_groups]
    teams = [Team(cost=AllReduceCost.heterogeneous(problem, names, devices))]
    boxes = AllReduceBoxes(problem, teams, Search())
    tried = boxes.probe(boxes.roots[:1], float("inf"))
    assert tried is not None
    assert tried.value is not None
    shape = tried.value.shape
    samples = sum(np.array(shape.machines) * np.array(shape.devices) * np.array(tried.value.shares))
    assert samples == tried.value.batch <= 1_000_000
