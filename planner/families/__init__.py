"""Families of plans: which decisions, which cost, which solver. One file each, all of one shape; see ``Family``."""

from collections.abc import Mapping
from typing import Any, Protocol

from planner.families import all_reduce
from planner.plan import Configuration, Plan, Prediction
from planner.problem import Problem

__all__ = ["FAMILIES", "Family"]


class Family(Protocol):
    """What every module of this room offers."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a module's constant
        """The family's name in specs and plans."""
        ...

    @property
    def NOT_MODELLED(self) -> tuple[str, ...]:  # noqa: N802  # a module's constant
        """What its predictions leave out, in words."""
        ...

    def plan(self, problem: Problem, *, num_alternatives: int = 0, time_limit_s: float = float("inf")) -> Plan:
        """Return the best plan of the family; raise InfeasibleError where there is none."""
        ...

    def predict(self, problem: Problem, configuration: Any) -> Prediction:
        """Return what a configuration of the family costs."""
        ...

    def explain(self, problem: Problem, configuration: Any, prediction: Prediction) -> tuple[str, ...]:
        """Return what binds, in words."""
        ...

    def configuration_of(self, problem: Problem, given: Mapping[str, Any]) -> Configuration:
        """Return the configuration that a spec's block means; raise SpecError where it means none."""
        ...


FAMILIES: Mapping[str, Family] = {all_reduce.NAME: all_reduce}
