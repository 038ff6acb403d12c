"""The searches of the families, by name."""

from collections.abc import Mapping
from typing import Protocol

from planner.families import all_reduce_search, model_replicas_search, parameter_server_search, pipeline_search
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search

__all__ = ["SEARCHES", "FamilySearch"]


class FamilySearch(Protocol):
    """A family's search over its configurations."""

    def __call__(self, problem: Problem, search: Search, /) -> Plan:
        """Return the best plan of the family, its bound and its runners-up.

        Raises
        ------
        InfeasibleError
            If no configuration of the family answers; the message says why, and what would have to give.
        NoAnswerError
            If a limit struck before any configuration was found.
        """
        ...


SEARCHES: Mapping[str, FamilySearch] = {
    "all_reduce": all_reduce_search.plan,
    "parameter_server": parameter_server_search.plan,
    "model_replicas": model_replicas_search.plan,
    "pipeline": pipeline_search.plan,
}
