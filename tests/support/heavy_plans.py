"""Real plans of large networks, which the programs that would run them are asked about."""

from functools import cache
from typing import Any

import planner
from planner.exporters.export import Job

__all__ = ["LARGE", "plan_of"]

# Cards faster than are sold: with them the best layouts are among those that most programs can start.
_MACHINE = {"device": "a100-sxm4-80gb", "devices": 8, "inside": "nvlink-3", "nics": 8, "network": "1600 Gbit/s"}
# Name -> network, batch, machines, and what is pinned beside; 7 stages of 96 layers, and 61 layers, are unlike stages.
_PLANS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "llama2-7b": ("llama2-7b", 64, 1, {}),
    "llama3-8b": ("llama3-8b", 64, 2, {"zero_stage": 3}),
    "mixtral": ("mixtral-8x7b", 256, 8, {}),
    "gpt3-175b": ("gpt3-175b", 1536, 128, {}),
    "gpt3-175b-uneven": ("gpt3-175b", 1536, 112, {"num_stages": 7}),
    "deepseek-v3": ("deepseek-v3", 2048, 128, {"num_stages": 1}),
    "deepseek-v3-chunks": ("deepseek-v3", 2048, 128, {}),
    "deepseek-v3-stages": ("deepseek-v3", 2048, 128, {"num_stages": 8}),
}
LARGE = tuple(_PLANS)


@cache
def plan_of(name: str) -> Job:
    """The best plan of one of them, found anew."""
    network, batch, machines, fix = _PLANS[name]
    problem = planner.load(
        {
            "dnn": {"zoo": network, "global_batch": batch, "dtype": "bf16", "optimizer": "adam"},
            "cluster": {"machines": [{**_MACHINE, "count": machines, "latency": "0 s"}]},
            "objective": "iteration_time",
            "families": ["hybrid"],
            "fix": fix,
        }
    )
    return Job(problem=problem, plan=planner.plan(problem, time_limit_s=120.0))
