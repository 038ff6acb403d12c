"""The search over pipelines: tables of the bound, and whole plans, as layers, devices and types grow.

Measured with ``python -m pytest benchmarks/test_pipeline_search.py -p no:xdist`` on a shared server of two
cores, CPython 3.11:

=====================================================================  =======================
what                                                                   time
=====================================================================  =======================
tables, 16 devices, 8 / 64 / 256 / 1,024 layers, below a quick answer  4 / 9 / 16 / 146 ms
tables, 16 devices, 8 / 64 / 256 layers, no answer known               8 / 70 / 1,236 ms
tables, 100 layers, 16 / 100 / 1,000 devices, below a quick answer     8 / 28 / 78 ms
a plan, 12 layers, 4 devices of each of 1 / 2 / 3 types                24 / 106 / 209 ms
a plan, 16 devices, 64 / 1,024 layers, proven                          0.2 / 1.6 s
a plan, 100 layers, 1,000 machines of one type, proven                 20 s
the same, machines of 2 / 4 types: gap after 20 s                      3.1 / 4.3 %
the same, one type, a batch of 10**6 / 10**7: gap after 2 s            0.11 / 0.01 %
one simulation, 16 stages, 1,000 / 1,000,000 micro-batches, 1F1B       3.1 / 3.1 ms
first answer, 100 layers, 20 / 1,000 devices                           3 / 10 ms
VGG16 on osf-testbed in 1 GiB (nothing fits) / in 2 GiB (any answer)   134 / 4 ms
the default question, with / without another family's objective        0.7 / 2.0 s
=====================================================================  =======================

Single runs, while other work shared the cores. "Tables" is one number of micro-batches under 1F1B, with the number of
stages left open, up to the first bound. Repeated layers are not told apart; a known answer leaves few states and ends,
and many layers are filled at once: of layers 16 times as many the tables cost 17 times as much, and a plan 4 to 7
times. No single part of it stands out: tables, cuts of interleaved chunks and the interleaved bounds each take a share.
"""

from collections.abc import Callable
from typing import Any

import pytest

import planner
from planner.errors import InfeasibleError
from planner.families.pipeline.domain import Domain
from planner.families.pipeline.rows import PlainSource, quick_shapes
from planner.families.pipeline.search import plan
from planner.models.schedule import PipelineTimes, simulate
from planner.problem import Problem
from planner.search import Search
from planner.solvers.pipeline_bounds import Schedule


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


def seconds_of_tables(problem: Problem, number: int, known_s: float) -> Callable[[], float]:
    """Return what fills the tables of one number of micro-batches, and gives the first bound."""

    def bound() -> float:
        source = PlainSource(Domain(problem), Schedule(num_microbatches=number), Search())
        source.next(known_s, float("inf"))
        return source.bound

    return bound


def quick_s(problem: Problem) -> float:
    domain = Domain(problem)
    return min(domain.cost.iteration_time_s(shape) for shape in quick_shapes(domain) if domain.allows(shape))


@pytest.mark.parametrize("layers", [8, 64, 256])
def test_tables_on_16_devices_without_any_answer(benchmark: Any, layers: int) -> None:
    problem = question(layers, machines=4, devices=4, batch=256)
    assert benchmark.pedantic(seconds_of_tables(problem, 16, float("inf")), rounds=1) > 0


@pytest.mark.parametrize("layers", [8, 64, 256, 1024])
def test_tables_on_16_devices(benchmark: Any, layers: int) -> None:
    problem = question(layers, machines=4, devices=4, batch=256)
    assert benchmark.pedantic(seconds_of_tables(problem, 16, quick_s(problem)), rounds=1) > 0


@pytest.mark.parametrize("devices", [16, 100, 1000])
def test_tables_of_100_layers(benchmark: Any, devices: int) -> None:
    problem = question(100, machines=devices, devices=1, batch=32 * devices)
    assert benchmark.pedantic(seconds_of_tables(problem, 32, quick_s(problem)), rounds=1) > 0


@pytest.mark.parametrize("types", [1, 2, 3])
def test_a_plan_of_12_layers_on_4_devices_of_each_type(benchmark: Any, types: int) -> None:
    problem = question(12, machines=2, devices=2, batch=64, types=types)
    found = benchmark.pedantic(plan, (problem, Search(time_limit_s=60)), rounds=1)
    assert found.bound <= found.objective


@pytest.mark.parametrize("layers", [64, 1024])
def test_a_plan_of_repeated_layers_on_16_devices(benchmark: Any, layers: int) -> None:
    problem = question(layers, machines=4, devices=4, batch=256)
    found = benchmark.pedantic(plan, (problem, Search(time_limit_s=60)), rounds=1)
    assert found.bound <= found.objective


@pytest.mark.parametrize(("types", "machines"), [(1, 1000), (2, 500), (4, 250)])
def test_the_gap_after_20_s_of_100_layers_on_1000_machines(benchmark: Any, types: int, machines: int) -> None:
    problem = question(100, machines=machines, devices=1, batch=32_000, types=types)
    found = benchmark.pedantic(plan, (problem, Search(time_limit_s=20)), rounds=1)
    benchmark.extra_info["gap"] = found.gap
    assert found.bound <= found.objective


@pytest.mark.parametrize("batch", [10**6, 10**7])
def test_the_gap_after_2_s_of_a_batch_of_millions(benchmark: Any, batch: int) -> None:
    problem = question(100, machines=1000, devices=1, batch=batch)
    found = benchmark.pedantic(plan, (problem, Search(time_limit_s=2)), rounds=1)
    benchmark.extra_info["gap"] = found.gap
    assert found.bound <= found.objective


@pytest.mark.parametrize("number", [1_000, 1_000_000])
def test_the_simulation_of_16_stages(benchmark: Any, number: int) -> None:
    stages, boundaries = [1.0 + 0.01 * (7 * k % 5) for k in range(16)], [0.3] * 15
    times = PipelineTimes(forward_s=stages, backward_s=stages, output_s=boundaries, error_s=boundaries)
    run = benchmark(simulate, times, num_microbatches=number, schedule="1f1b")
    assert run.makespan_s >= 2 * number * max(stages)


@pytest.mark.parametrize("machines", [20, 1000])
def test_the_first_answer_for_100_layers(benchmark: Any, machines: int) -> None:
    problem = question(100, machines=machines, devices=1, batch=32 * machines)
    found = benchmark.pedantic(plan, (problem, Search(good_enough=float("inf"))), rounds=1)
    assert found.objective > 0


@pytest.mark.parametrize("memory", ["1 GiB", "2 GiB"])
def test_whether_vgg16_fits(benchmark: Any, memory: str) -> None:
    problem = planner.load(
        {
            "dnn": {"zoo": "vgg16"},
            "cluster": {"preset": "osf-testbed"},
            "constraints": {"memory_per_device": memory},
            "families": ["pipeline"],
        }
    )

    def fits() -> bool:
        try:
            return plan(problem, Search(good_enough=float("inf"))).objective > 0
        except InfeasibleError:
            return False

    assert benchmark.pedantic(fits, rounds=1) == (memory == "2 GiB")


@pytest.mark.parametrize("share", [0.93, float("inf")])
def test_the_default_question_with_and_without_the_objective_of_another_family(benchmark: Any, share: float) -> None:
    """Data parallelism reaches 93 % of the best pipeline's time here."""
    machines = [{"count": 4, "devices": 8, "device": "rtx-2080-ti", "network": "25 Gbit/s"}]
    problem = planner.load({"dnn": {"zoo": "vgg16"}, "cluster": {"machines": machines}, "families": ["pipeline"]})
    best = plan(problem, Search()).objective
    found = benchmark.pedantic(plan, (problem, Search(cutoff=share * best)), rounds=1)
    assert found.bound >= min(share, 1) * best * (1 - 1e-9)
