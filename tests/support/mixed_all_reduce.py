"""Small questions of data parallelism on unlike machines, and every configuration of them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

import planner
from planner.cost import Profile
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.cost import AllReduceCost
from planner.families.all_reduce.search import plan as search_plan
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search
from tests.referee.exhaustive import all_shares


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
            nics=draw(st.sampled_from([1, 1, 3])),
            inside={"bandwidth": draw(st.sampled_from(["0.5 GB/s", "2 GB/s", "80 GB/s"])), "latency": "3 us"},
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


def every_bare_configuration(problem: Problem) -> Iterator[tuple[AllReduceCost, AllReduceConfiguration]]:
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
        cost = AllReduceCost.heterogeneous(problem, [group.name for group, _, _ in chosen], devices)
        if not cost.most_at_a_time.all() or not cost.transfer_costs(2, 2):
            continue
        numbers = [number for _, number, _ in chosen]
        counts = tuple(number * each for number, each in zip(numbers, devices, strict=True))
        for batch in batches:
            for shares in all_shares(counts, batch, batch):
                fewest = sum(max(n * (share - 1) + 1, n) for n, share in zip(counts, shares, strict=True))
                if fewest <= batch:
                    yield cost, cost.configuration(numbers, shares, batch)


MIXED: dict[str, Any] = {
    "dnn": {"zoo": "resnet50", "global_batch": 256},
    "families": ["all_reduce"],
    "cluster": {
        "machines": [
            {
                "name": "fast",
                "count": 2,
                "device": "v100",
                "devices": 4,
                "inside": "nvlink-2",
                "nics": 1,
                "network": "25 Gbit/s",
            },
            {
                "name": "slow",
                "count": 2,
                "device": "p100",
                "devices": 4,
                "inside": "pcie-3-x16",
                "nics": 1,
                "network": "25 Gbit/s",
            },
        ]
    },
    "calibration": {"utilisation": 0.4, "bandwidth_efficiency": 1},
}
