"""Plans for the jobs of Kubeflow: data parallelism, a transformer's layout, and parameter servers of both kinds."""

from functools import cache
from typing import Any

import planner
from planner.exporters import Job, Settings
from planner.networks import asked, network_of

__all__ = ["QUESTIONS", "job_of"]

GPUS = {"name": "nodes", "count": 4, "devices": 8, "device": "h100-sxm", "inside": "nvlink-4", "network": "400 Gbit/s"}
SINGLE = {"name": "workers", "count": 6, "device": "v100-sxm2", "network": "10 Gbit/s"}
HELPERS = {"name": "helpers", "count": 3, "device": "dual-xeon-e5-2650-v4", "network": "10 Gbit/s"}
QUESTIONS: dict[str, dict[str, Any]] = {
    "data": {
        "dnn": {"zoo": "resnet50", "batch_per_device": 32},
        "cluster": {"machines": [GPUS]},
        "families": ["all_reduce"],
    },
    "layout": {
        "dnn": {"zoo": "llama2-7b", "global_batch": 64},
        "cluster": {"machines": [GPUS]},
        "objective": "iteration_time",
        "families": ["hybrid"],
    },
    "own": {
        "dnn": {"zoo": "alexnet", "batch_per_device": 64},
        "cluster": {"machines": [SINGLE, HELPERS]},
        "families": ["parameter_server"],
        "fix": {"num_parameter_servers": 2, "co_located": False, "servers": "helpers"},
    },
    "shared": {
        "dnn": {"zoo": "alexnet", "batch_per_device": 64},
        "cluster": {"machines": [SINGLE]},
        "families": ["parameter_server"],
        "fix": {"co_located": True, "num_parameter_servers": 3, "num_machines": 6},
    },
}


@cache
def job_of(name: str, settings: Settings | None = None) -> Job:
    """The plan of a question, as an exporter takes it."""
    problem = planner.load(QUESTIONS[name])
    plan = planner.plan(problem, time_limit_s=20)
    return Job(problem=network_of(asked(problem), plan.substitutions), plan=plan, settings=settings or Settings())
