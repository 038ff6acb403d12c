"""The error of one key of a given configuration."""

from collections.abc import Mapping
from typing import Any

from planner.errors import Fault, SpecError
from planner.models.communication import Compression
from planner.problem import Problem


def wrong(family: str, key: str, value: object, problem: str, mend: str = "Mend this value.") -> SpecError:
    """Return the error of ``configuration.family.key``, with the value that was given."""
    return SpecError.of([Fault(field=f"configuration.{family}.{key}", value=str(value), problem=problem, mend=mend)])


# --- Compression of gradients, as a given configuration says it


def compression_of(given: Mapping[str, Any] | None) -> Compression | None:
    """Return the compression of a block."""
    return None if given is None else Compression(removed=given["removed"], scale_s=given["time"])


# --- Links between switches, which families with a link model of machines alone cannot share out


def check_inner_links(problem: Problem, family: str) -> None:
    """Refuse a network whose links between switches could be narrower than all machines together.

    Raises
    ------
    SpecError
        With the link, its rate, and the rate that it would need.
    """
    graph = problem.cluster.graph
    machines = {group.name: group for group in problem.cluster.machine_groups}
    needed = 0.0
    for first, second, data in graph.edges(data=True):
        group = machines.get(first) or machines.get(second)
        if group is not None:
            needed += data["link"].bandwidth_bytes_per_s * group.num_nics * group.count
    for first, second, data in graph.edges(data=True):
        if first in machines or second in machines:
            continue
        rate = data["link"].bandwidth_bytes_per_s
        if rate < needed:
            text = (
                f"{family} does not model the link {first} - {second} of {rate:.4g} B/s, which all machines may share."
            )
            mend = f"Give it {needed:.4g} B/s or more, put the machines on one switch, or ask all_reduce."
            raise SpecError.of([Fault(field="cluster.links", value=f"{rate:.4g} B/s", problem=text, mend=mend)])
