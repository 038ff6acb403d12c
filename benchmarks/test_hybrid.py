"""The search over layouts of transformers: whole grids, and evaluations a second.

Measured with ``python -m pytest benchmarks/test_hybrid.py -p no:xdist --benchmark-disable -s``, which prints the
counts, on a shared server of two cores, CPython 3.11, one core used:

====================================  ===========  ===========  =========  ========
question                              in the grid  ruled out    evaluated  seconds
====================================  ===========  ===========  =========  ========
GPT-3 175B on 1,024 A100s             36,940,632   36,938,792   1,840      0.5
GPT-3 175B on 4,096 A100s             65,543,496   65,541,184   2,312      0.5
GPT 1T on 4,096 A100s                 23,845,662   23,844,804   858        0.4
DeepSeek-V3 on 2,048 H100s            71,435,424   71,435,270   154        2.3
Llama 3.1 405B on 16,384 H100s        33,729,270   33,728,682   588        0.4
GPT-3 175B on 16,384 H100s            944,964,024  944,962,688  1,336      3.1
Mixtral 8x7B on 64 H100s, no bounds   2,344,554    0            2,344,554  3.9
====================================  ===========  ===========  =========  ========

The last row is the same search with its bounds off: 0.6 million full evaluations of time and memory a second, and the
same optimum and runners-up as with them. Of DeepSeek-V3's seconds most go into bounds of memory and of exchange: its
batch of 15,360 has many divisors. Peak memory of all searches in one process: below 310 MiB.
"""

import resource
import time

import pytest

import planner
from planner.families.hybrid.cost import costs_of
from planner.families.hybrid.grid_search import searched
from planner.families.hybrid.search import plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status

A100 = {"device": "a100-sxm4-80gb", "inside": "nvlink-3", "network": "200 Gbit/s"}
H100 = {"device": "h100-sxm", "inside": "nvlink-4", "network": "400 Gbit/s"}
QUESTIONS = {
    "gpt3-175b on 1,024 A100s": ("gpt3-175b", 1536, 128, A100),
    "gpt3-175b on 4,096 A100s": ("gpt3-175b", 1536, 512, A100),
    "megatron-1t on 4,096 A100s": ("megatron-1t", 4096, 512, A100),
    "deepseek-v3 on 2,048 H100s": ("deepseek-v3", 15360, 256, H100),
    "llama3.1-405b on 16,384 H100s": ("llama3.1-405b", 2048, 2048, H100),
    "gpt3-175b on 16,384 H100s": ("gpt3-175b", 55440, 2048, H100),  # 120 divisors
}


def question(network: str, batch: int, count: int, machine: dict[str, str]) -> Problem:
    """A transformer of the zoo on machines of eight devices and eight network cards."""
    dnn = {"zoo": network, "global_batch": batch, "dtype": "bf16", "optimizer": "adam"}
    cluster = {"machines": [{**machine, "count": count, "devices": 8, "latency": "5 us", "nics": 8}]}
    return planner.load({"dnn": dnn, "cluster": cluster, "objective": "iteration_time", "families": ["hybrid"]})


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_whole_grid(name: str) -> None:
    cost = costs_of(question(*QUESTIONS[name]))[0].even
    start_s = time.process_time()
    answer = searched(cost, Search(num_alternatives=3))
    seconds = time.process_time() - start_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\n{name}: {answer.num_points:,} in the grid, {answer.num_evaluated:,} of them evaluated, {seconds:.2f} s, "
        f"{peak_mib:.0f} MiB so far"
    )
    assert answer.solution.status is Status.OPTIMAL


def test_evaluations_a_second_without_bounds() -> None:
    cost = costs_of(question("mixtral-8x7b", 1024, 8, H100))[0].even
    quick = searched(cost, Search(num_alternatives=3))
    start_s = time.process_time()
    slow = searched(cost, Search(num_alternatives=3), uses_bounds=False)
    seconds = time.process_time() - start_s
    print(f"\n{slow.num_evaluated:,} evaluations in {seconds:.2f} s: {slow.num_evaluated / seconds:,.0f} a second")
    assert (slow.solution, slow.others) == (quick.solution, quick.others)


def test_growth_with_the_divisors_of_the_batch() -> None:
    """As many machines and samples, about; 11 to 60 micro-batches: the degrees are bounded before one is decided."""
    first_s = None
    for batch in (1024, 960, 1008, 1260, 5040):
        cost = costs_of(question("deepseek-v3", batch, 32, H100))[0].even
        start_s = time.process_time()
        answer = searched(cost, Search())
        seconds = time.process_time() - start_s
        first_s = first_s or seconds
        sizes = sum(batch % one == 0 for one in range(1, batch + 1))
        print(f"\n{sizes} divisors: {answer.num_points:,} in the grid, {seconds / first_s:.2f} times the seconds of 11")
        assert answer.solution.status is Status.OPTIMAL


@pytest.mark.parametrize("name", ["gpt3-175b on 1,024 A100s", "deepseek-v3 on 2,048 H100s"])
def test_a_whole_plan(name: str) -> None:
    """All placements, and why devices stay idle; its seconds over those of the even layouts alone."""
    problem = question(*QUESTIONS[name])
    start_s = time.process_time()
    searched(costs_of(problem)[0].even, Search())
    even_s = time.process_time() - start_s
    start_s = time.process_time()
    found = plan(problem, Search())
    seconds = time.process_time() - start_s
    print(f"\n{name}: {seconds:.2f} s, {seconds / even_s:.1f} times as long as even layouts alone took before it")
    assert found.status is Status.OPTIMAL


def test_growth_with_layers_is_none() -> None:
    """As many divisors, four times the layers."""
    for layers in (24, 96):
        sizes = {"layers": layers, "hidden": 8192, "heads": 64, "vocabulary": 50304, "sequence_length": 2048}
        dnn = {"transformer": sizes, "global_batch": 512, "dtype": "bf16", "optimizer": "adam"}
        cluster = {"machines": [{**A100, "count": 64, "devices": 8, "latency": "5 us", "nics": 8}]}
        asked = {"dnn": dnn, "cluster": cluster, "objective": "iteration_time", "fix": {"num_stages": 4}}
        cost = costs_of(planner.load({**asked, "families": ["hybrid"]}))[0].even
        start_s = time.process_time()
        answer = searched(cost, Search())
        print(f"\n{layers} layers: {answer.num_points:,} in the grid, {time.process_time() - start_s:.2f} s")
