"""Given pipelines on four machines, predicted and explained."""

from typing import Any

import planner
from planner.api import configuration_of
from planner.families.pipeline.cost import PipelineConfiguration
from planner.plan import Prediction
from planner.problem import Problem

MACHINE: dict[str, Any] = {
    "name": "w", "count": 4, "devices": 2, "device": "v100-sxm2-16g", "inside": {"bandwidth": "10 GB/s", "latency": "5 us"},
    "network": "10 Gbit/s", "latency": "20 us",
}  # fmt: skip
LAYERS = [
    {
        "name": name,
        "inputs": inputs,
        "forward": f"{forward} ms",
        "backward": f"{2 * forward} ms",
        "parameters": "4 MB",
        "output": "1 MB",
    }
    for name, inputs, forward in (
        ("a", [], 1),
        ("b", ["a"], 2),
        ("c", ["b"], 3),
        ("d", ["a", "c"], 2),
        ("e", ["d"], 1),
        ("f", ["e"], 1),
    )
]
DNN: dict[str, Any] = {"layers": LAYERS, "profile_batch": 1, "global_batch": 32, "dataset_samples": 3200}
TWO = [{"first": "a", "last": "c", "replicas": 2}, {"first": "d", "last": "f", "replicas": 2}]


def asked(stages: list[dict[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    block = {"stages": TWO if stages is None else stages, **changes.pop("block", {})}
    return {"dnn": DNN, "cluster": {"machines": [MACHINE]}, "configuration": {"pipeline": block}, **changes}


def loaded(stages: list[dict[str, Any]] | None = None, **changes: Any) -> tuple[Problem, PipelineConfiguration]:
    problem = planner.load(asked(stages, **changes))
    _, configuration = configuration_of(problem)
    assert isinstance(configuration, PipelineConfiguration)
    return problem, configuration


def predicted(stages: list[dict[str, Any]] | None = None, **changes: Any) -> Prediction:
    problem, configuration = loaded(stages, **changes)
    return planner.predict(problem, configuration)


MIXED = {"machines": [MACHINE, {**MACHINE, "name": "x", "device": "p100-sxm2", "network": "25 Gbit/s"}]}
