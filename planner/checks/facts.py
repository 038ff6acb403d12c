"""What a configuration uses, told by its block and the question alone, in one form for all families."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.checks.report import Finding
from planner.cluster import MachineGroup
from planner.problem import Problem

__all__ = ["Facts", "groups_of", "holds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a plan uses.

    Attributes
    ----------
    machines
        How many machines of each group, serving ones included.
    devices
        How many devices of each group train.
    memory_bytes
        On the fullest device of each group; empty where the family models none.
    decisions
        What the configuration says about each key of ``fix`` that the family decides.
    global_batch_size
        Samples of an iteration.
    staleness
        By how many iterations a gradient may lag; 0 for synchronous training.
    iteration_s
        Recomputed in plain loops, a second opinion on the cost model; None where there is none.
    findings
        What only this family has to keep to.
    """

    machines: Mapping[str, int]
    devices: Mapping[str, int]
    memory_bytes: Mapping[str, float]
    decisions: Mapping[str, Any]
    global_batch_size: int
    staleness: float = 0.0
    iteration_s: float | None = None
    findings: tuple[Finding, ...] = field(default=())


def groups_of(problem: Problem) -> dict[str, MachineGroup]:
    """Return the machine groups by name."""
    return {group.name: group for group in problem.cluster.machine_groups}


def holds(name: str, is_ok: bool, right: str, wrong: str, **values: Any) -> Finding:
    """Return a finding with the words for either case."""
    return Finding(name=name, is_ok=is_ok, text=right if is_ok else wrong, values=values)
