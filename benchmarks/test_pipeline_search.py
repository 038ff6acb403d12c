"""The search over pipelines: tables of the bound, and whole plans, as layers, devices and types grow.

Measured with ``python -m pytest benchmarks/test_pipeline_search.py -p no:xdist`` on a shared server of two
cores, CPython 3.11:

=======================================================  ==================
what                                                     time
=======================================================  ==================
tables, 16 devices, 8 / 64 layers                        0.07 / 0.6 s
tables, 16 devices, 256 / 1,024 layers                   3.2 / 20 s
tables, 100 layers, 16 / 100 / 1,000 devices             0.7 / 0.7 / 11 s
a plan, 12 layers, 4 devices of each of 1 / 2 / 3 types  0.2 / 0.7 / 1.0 s
first answer, 100 layers, 20 / 1,000 devices             11 / 31 ms
=======================================================  ==================

Single runs, while other work shared the cores. Repeated layers are not told apart: 1,024 layers cost 34 times what 64
do, since the tables hold every pair of a first and a last layer. "Tables" is one number of micro-batches under 1F1B,
with the number of stages left open, up to the first bound.
"""

from typing import Any

import pytest

import planner
from planner.families.pipeline_domain import Domain
from planner.families.pipeline_search import plan
from planner.families.pipeline_sources import PlainSource
from planner.problem import Problem
from planner.search import Search
from planner.solvers.pipeline import Schedule


def question(layers: int, machines: int, devices: int, batch: int, types: int = 1) -> Problem:
    """A chain whose layers repeat every seven, on machines of a few types."""
    rows = [
        {
            "name": f"layer{index}",
            "inputs": [f"layer{index - 1}"] if index else [],
            "forward": f"{1 + index * 7 % 5} ms",
            "backward": f"{2 + 2 * (index * 7 % 5)} ms",
            "parameters": f"{4 + 4 * (index * 3 % 7)} MB",
            "output": "1 MB",
        }
        for index in range(layers)
    ]
    groups = [
        {
            "name": f"group{kind}",
            "count": machines,
            "devices": devices,
            "device": {"name": f"kind{kind}", "fp32": f"{10 + 5 * kind} TFLOP/s", "memory": "32 GB"},
            "inside": {"bandwidth": "50 GB/s", "latency": "5 us"},
            "network": "25 Gbit/s",
            "latency": "20 us",
        }
        for kind in range(types)
    ]
    dnn = {
        "layers": rows,
        "profile_batch": 1,
        "profile_device": "kind0",
        "global_batch": batch,
        "dataset_samples": 10**6,
    }
    return planner.load({"dnn": dnn, "cluster": {"machines": groups}, "families": ["pipeline"]})


@pytest.mark.parametrize("layers", [8, 64, 256, 1024])
def test_tables_on_16_devices(benchmark: Any, layers: int) -> None:
    problem = question(layers, machines=4, devices=4, batch=256)

    def bound() -> float:
        source = PlainSource(Domain(problem), Schedule(num_microbatches=16), Search())
        source.next(float("inf"), float("inf"))
        return source.bound

    assert benchmark.pedantic(bound, rounds=1) > 0


@pytest.mark.parametrize("devices", [16, 100, 1000])
def test_tables_of_100_layers(benchmark: Any, devices: int) -> None:
    problem = question(100, machines=devices, devices=1, batch=32 * devices)
    quick = plan(problem, Search(good_enough=float("inf"))).prediction.iteration_time_s

    def bound() -> float:
        source = PlainSource(Domain(problem), Schedule(num_microbatches=32), Search())
        source.next(quick, float("inf"))
        return source.bound

    assert benchmark.pedantic(bound, rounds=1) > 0


@pytest.mark.parametrize("types", [1, 2, 3])
def test_a_plan_of_12_layers_on_4_devices_of_each_type(benchmark: Any, types: int) -> None:
    problem = question(12, machines=2, devices=2, batch=64, types=types)
    found = benchmark.pedantic(plan, (problem, Search(time_limit_s=60)), rounds=1)
    assert found.bound <= found.objective


@pytest.mark.parametrize("machines", [20, 1000])
def test_the_first_answer_for_100_layers(benchmark: Any, machines: int) -> None:
    problem = question(100, machines=machines, devices=1, batch=32 * machines)
    found = benchmark.pedantic(plan, (problem, Search(good_enough=float("inf"))), rounds=1)
    assert found.objective > 0
