"""Which machines a plan of the family ``pipeline`` takes."""

from collections.abc import Iterator

from planner.families.pipeline.configuration import PipelineConfiguration
from planner.families.pipeline.cost import PipelineCost
from planner.problem import Problem
from planner.used_machines import UsedMachines, filled

__all__ = ["machines"]


def machines(problem: Problem, configuration: PipelineConfiguration) -> Iterator[UsedMachines]:
    """Yield the machines of the stages, group by group in the order in which stages first stand on them."""
    cost = PipelineCost(problem)
    taken: dict[int, int] = {}
    for place in cost.places(cost.shape(configuration))[: configuration.num_stages]:
        taken[place.group] = taken.get(place.group, 0) + place.replicas
    for index, number in taken.items():
        yield from filled([cost.groups[index]], number)
