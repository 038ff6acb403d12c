"""Small questions of the family ``pipeline``, and every pipeline of their domain."""

from collections.abc import Iterator
from itertools import product
from math import ceil
from typing import Any

from hypothesis import strategies as st
from number_of_devices import PER_DEVICE, uses_all

from planner.families.pipeline.cost import PipelineCost, Shape
from planner.families.pipeline.family import predict
from planner.models.stages import Stage
from planner.problem import Problem
from tests.referee.exhaustive import all_groupings, all_pipelines

MACHINE: dict[str, Any] = {
    "name": "w", "count": 2, "devices": 2, "device": "v100-sxm2-16g", "inside": {"bandwidth": "10 GB/s", "latency": "5 us"},
    "network": "10 Gbit/s", "latency": "20 us",
}  # fmt: skip


def layer(index: int, forward_ms: float = 2, parameters: str = "4 MB", output: str = "1 MB") -> dict[str, Any]:
    return {
        "name": f"layer{index}",
        "inputs": [f"layer{index - 1}"] if index else [],
        "forward": f"{forward_ms} ms",
        "backward": f"{2 * forward_ms} ms",
        "parameters": parameters,
        "output": output,
    }


def question(num_layers: int = 4, **changes: Any) -> dict[str, Any]:
    dnn = {
        "layers": [layer(index) for index in range(num_layers)],
        "profile_batch": 1,
        "global_batch": 8,
        "dataset_samples": 800,
    }
    base: dict[str, Any] = {
        "dnn": dnn,
        "cluster": {"machines": [MACHINE]},
        "families": ["pipeline"],
        "objective": "epoch_time",
    }
    for key, block in changes.items():
        base[key] = {**base[key], **block} if key == "dnn" else block
    return base


@st.composite
def small_questions(draw: st.DrawFn, *, least_layers: int = 1, least_machines: int = 1) -> dict[str, Any]:
    """Few layers with skips, one or two groups of few devices, memory that may be short, limits and pins."""
    layers = []
    for index in range(draw(st.integers(least_layers, 4))):
        parameters, output = (f"{draw(st.integers(0, 6)) * 4} MB" for _ in range(2))
        row = layer(index, draw(st.integers(1, 9)), parameters, output)
        if index > 1 and draw(st.booleans()):
            row["inputs"].append(f"layer{draw(st.integers(0, index - 2))}")
        layers.append(row)
    layers[0]["parameters"] = "4 MB"
    groups: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 2))):
        machine: dict[str, Any] = {
            "name": f"g{index}",
            "count": draw(st.integers(least_machines, 2)),
            "devices": draw(st.integers(1, 2)),
            "device": {
                "name": f"kind{index}",
                "fp32": f"{1 + index} TFLOP/s",
                "memory": f"{draw(st.sampled_from([60, 150, 900]))} MB",
            },
            "inside": {"bandwidth": "2 GB/s", "latency": "3 us"},
            "network": f"{draw(st.integers(1, 40))} Gbit/s",
            "latency": f"{draw(st.integers(0, 3000))} us",
            "storage": {"bandwidth": f"{draw(st.sampled_from([20, 2000]))} MB/s"},
        }
        groups.append(machine)
    most = sum(one["count"] * one["devices"] for one in groups)
    limits: list[dict[str, Any]] = [{}, {"machines": {"at_most": 1}}, {"devices": {"at_least": min(2, most)}}]
    fix: dict[str, Any] = {}
    pins: dict[str, list[Any]] = {
        "num_stages": [1, 2, 3],
        "num_microbatches": [1, 2, 3],
        "schedule": ["1f1b", "gpipe", "interleaved"],
        "num_devices": [1, most],
    }
    for key, values in pins.items():
        if draw(st.integers(0, 5)) == 0:
            fix[key] = draw(st.sampled_from(values))
    batch, objective = draw(st.sampled_from([({"global_batch": draw(st.integers(1, 6))}, "epoch_time"), *PER_DEVICE]))
    if objective == "iteration_time":
        limits = [{}]  # a range of devices is refused there
    if most > 3 and "batch_per_device" in batch:
        batch = {"batch_per_device": 1}
    return {
        "dnn": {"layers": layers, "profile_batch": 1, "profile_device": "kind0", "dataset_samples": 600,
                "sample_bytes": "1 MB", **batch},
        "cluster": {"machines": groups},
        "calibration": {"strategy": draw(st.sampled_from(["caffe_mpi", "naive", "cntk"]))},
        "constraints": draw(st.sampled_from(limits)),
        "families": ["pipeline"],
        "objective": objective,
        "fix": fix,
    }  # fmt: skip


def every_shape(problem: Problem, cost: PipelineCost) -> Iterator[Shape]:
    """Every pipeline of the stated domain, but for limits and memory."""
    batch = problem.training.fixed_batch_size
    assert batch is not None
    devices = [group.count * group.devices_per_machine for group in cost.groups]
    pinned = problem.fixed.get("num_microbatches")
    numbers = [one for one in range(1, batch + 1) if pinned in (None, one)]
    fewest = sorted({ceil(batch / size) for size in range(1, batch + 1)}) if pinned is None else numbers
    for stages in all_pipelines(cost.costs.num_layers, devices):
        for number, name in product(numbers, ("1f1b", "gpipe")):
            line = tuple(Stage(first=i, last=j, group=group, replicas=r) for i, j, group, r in stages)
            yield Shape(stages=line, num_microbatches=number, global_batch_size=batch, schedule=name)
    for (group, most), chunks, number in product(enumerate(devices), range(2, 17), fewest):
        profile = cost.costs.machines[group].profile
        seconds = profile.least_s(batch).tolist()
        for p in range(2, most + 1):
            if p * chunks > len(seconds) or number % p:
                continue
            cuts = slowest_as_fast_as_can_be(seconds, p * chunks)
            for replicas in range(1, most // p + 1):
                line = tuple(Stage(first=i, last=j, group=group, replicas=replicas) for i, j in cuts)
                yield Shape(
                    stages=line,
                    num_microbatches=number,
                    global_batch_size=batch,
                    schedule="interleaved",
                    chunks_per_device=chunks,
                )


def every_value(problem: Problem) -> list[float]:
    """The objective of every pipeline of the domain that is allowed and fits."""
    cost = PipelineCost(problem)
    return [
        predict(problem, cost.configuration(shape)).value_of(problem.goal)
        for shape in every_shape(problem, cost)
        if is_allowed(problem, cost, shape)
    ]


def slowest_as_fast_as_can_be(seconds: list[float], parts: int) -> list[tuple[int, int]]:
    """Of all such cuts, those whose first chunks are the longest."""
    cuts = [ends for ends in all_groupings(len(seconds)) if len(ends) == parts]
    runs = [list(zip((0, *(end + 1 for end in ends)), ends, strict=False)) for ends in cuts]
    slowest = [max(sum(seconds[i : j + 1]) for i, j in run) for run in runs]
    least = min(slowest) * (1 + 1e-9)
    return max(run for run, most in zip(runs, slowest, strict=True) if most <= least)


def is_allowed(problem: Problem, cost: PipelineCost, shape: Shape) -> bool:
    p, fixed, limits = shape.num_devices_in_line, problem.fixed, problem.limits
    places = cost.places(shape)[:p]
    machines = {(one.group, one.first_machine + k) for one in places for k in range(one.num_machines)}
    devices = sum(one.replicas for one in places)
    if uses_all(problem) and "num_devices" not in fixed and devices < problem.cluster.num_devices:
        return False
    return (
        fixed.get("num_stages", p) == p
        and fixed.get("schedule", shape.schedule) == shape.schedule
        and fixed.get("num_devices", devices) == devices
        and devices in limits.devices
        and len(machines) in limits.machines
        and max(one.replicas for one in places) <= shape.global_batch_size // shape.num_microbatches
        and cost.fits(shape)
    )
