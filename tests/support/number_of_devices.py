"""The rule of how many devices a plan uses, said a second time: a referee must not ask the code that it judges."""

from typing import Any

from planner.problem import Problem

__all__ = ["PER_DEVICE", "uses_all"]

# The batches of questions with a number of samples per device, each with its goal.
PER_DEVICE: list[tuple[dict[str, Any], str]] = [
    ({"batch_per_device": 2}, "epoch_time"),
    ({"batch_per_device": 2}, "iteration_time"),
]


def uses_all(problem: Problem) -> bool:
    """Whether no device may be idle: a goal per iteration, with a fixed batch on each of several equal devices."""
    dnn = problem.resolved["dnn"]
    kinds = {group.device.name for group in problem.cluster.machine_groups}
    return (
        problem.goal.name == "iteration_time"
        and dnn.get("batch_per_device") is not None
        and dnn.get("max_global_batch") is None
        and len(kinds) == 1
    )
