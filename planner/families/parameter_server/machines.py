"""Which machines a plan of the family ``parameter_server`` takes."""

from collections.abc import Iterator

from planner.families.parameter_server.configuration import ParameterServerConfiguration
from planner.problem import Problem
from planner.used_machines import UsedMachines

__all__ = ["machines"]


def machines(problem: Problem, configuration: ParameterServerConfiguration) -> Iterator[UsedMachines]:
    """Yield workers by group, all devices of a machine; then the servers."""
    groups = {group.name: group for group in problem.cluster.machine_groups}
    for name, number in configuration.workers.items():
        yield UsedMachines.training(groups[name], number, groups[name].devices_per_machine)
    servers, number = groups[configuration.servers], configuration.num_parameter_servers
    yield UsedMachines.serving(servers, number, is_shared=configuration.co_located)
