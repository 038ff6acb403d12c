"""What a configuration uses, counted from its block and the question alone, in one form for all families."""

from dataclasses import dataclass, field

from planner.checks import Finding, holds
from planner.cluster import MachineGroup
from planner.constraints import Usage
from planner.problem import Problem

__all__ = ["Facts", "groups_of", "holds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Usage):
    """What a plan uses, and what only its family has to keep to."""

    # recomputed in plain loops, a second opinion on the cost model; None where there is none
    iteration_s: float | None = None
    findings: tuple[Finding, ...] = field(default=())  # what only this family has to keep to


def groups_of(problem: Problem) -> dict[str, MachineGroup]:
    return {group.name: group for group in problem.cluster.machine_groups}
