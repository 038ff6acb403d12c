"""Which machines a plan of the family ``hybrid`` takes."""

from collections.abc import Iterator, Mapping

from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.mixed_configuration import MixedConfiguration
from planner.problem import Problem
from planner.used_machines import UsedMachines, filled

__all__ = ["machines"]


def machines(problem: Problem, configuration: HybridConfiguration) -> Iterator[UsedMachines]:
    """Yield the machines of a layout, filled one after the other."""
    groups = {group.name: group for group in problem.cluster.machine_groups}
    counts: Mapping[str | None, int] = {configuration.machines: configuration.num_devices}
    if isinstance(configuration, MixedConfiguration):
        counts = configuration.devices_of
    for name, number in counts.items():
        yield from filled(problem.cluster.ring_groups if name is None else [groups[name]], number)
