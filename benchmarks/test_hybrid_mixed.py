"""The search over layouts on several kinds of machines.

``python -m pytest benchmarks/test_hybrid_mixed.py -p no:xdist -s`` prints what docs/hybrid_mixed.md lists; single kinds
included.
"""

import resource
import time

import pytest

import planner
from planner.families.hybrid.search import plan
from planner.search import Search

KINDS = {
    "a100": {"device": "a100-sxm4-80gb", "inside": "nvlink-3", "count": 32},
    "h100": {"device": "h100-sxm", "inside": "nvlink-4", "count": 16},
    "v100": {"device": "v100-sxm2-32g", "inside": "nvlink-2", "count": 16},
}
QUESTIONS = {
    "GPT-3 175B on 256 A100s and 128 H100s": ("gpt3-175b", 1536, ("a100", "h100")),
    "Mixtral 8x7B on 256 A100s and 128 H100s": ("mixtral-8x7b", 1024, ("a100", "h100")),
    "Llama 3 70B on 256 A100s, 128 H100s and 128 V100s": ("llama3-70b", 1024, ("a100", "h100", "v100")),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_plan_over_several_kinds(name: str) -> None:
    network, batch, kinds = QUESTIONS[name]
    machines = [{"name": one, "devices": 8, "network": "400 Gbit/s", "latency": "5 us", **KINDS[one]} for one in kinds]
    dnn = {"zoo": network, "global_batch": batch, "dtype": "fp16", "optimizer": "adam"}
    asked = {"dnn": dnn, "cluster": {"machines": machines}, "objective": "iteration_time", "families": ["hybrid"]}
    problem = planner.load(asked)
    start_s = time.process_time()
    found = plan(problem, Search(time_limit_s=600, num_alternatives=3))
    counts = found.provenance
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\n{name}: {found.status}, {counts.num_candidates:,} layouts, {counts.num_solved:,} evaluated, "
        f"{time.process_time() - start_s:.0f} s, {peak_mib:.0f} MiB so far; {found.configuration.headline}"
    )
    assert found.bound <= found.objective
