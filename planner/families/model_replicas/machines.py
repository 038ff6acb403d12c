"""Which machines a plan of the family ``model_replicas`` takes."""

from collections.abc import Iterator

from planner.families.model_replicas.configuration import ReplicaChoice
from planner.families.model_replicas.cost import group_of
from planner.problem import Problem
from planner.used_machines import UsedMachines

__all__ = ["machines"]


def machines(problem: Problem, configuration: ReplicaChoice) -> Iterator[UsedMachines]:
    """Yield the workers of all replicas, one device each; then the servers."""
    group, counts = group_of(problem), configuration.configuration
    yield UsedMachines.training(group, counts.num_replicas * counts.num_workers, 1)
    yield UsedMachines.serving(group, counts.num_servers)
