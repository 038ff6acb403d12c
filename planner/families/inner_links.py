"""Links between switches, which families with a link model of machines alone cannot share out."""

from planner.errors import Fault, SpecError
from planner.problem import Problem

__all__ = ["check_inner_links"]


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
