"""Which machines a plan of the family ``all_reduce`` takes."""

from collections.abc import Iterator

from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.groups import one_type
from planner.problem import Problem
from planner.used_machines import UsedMachines

__all__ = ["machines"]


def machines(problem: Problem, configuration: AllReduceConfiguration) -> Iterator[UsedMachines]:
    """Yield the machines of a data-parallel plan; those of one type are taken in the order of the ring."""
    if configuration.groups:
        groups = {group.name: group for group in problem.cluster.machine_groups}
        for row in configuration.groups:
            yield UsedMachines.training(groups[row.name], row.num_machines, row.devices_per_machine)
        return
    whole = one_type(problem, configuration.machines)
    cluster = whole.of_groups(configuration.machines) if configuration.machines else whole
    left = configuration.num_machines
    for group in cluster.ring_groups:
        if (number := min(left, group.count)) > 0:
            yield UsedMachines.training(group, number, configuration.devices_per_machine)
            left -= number
