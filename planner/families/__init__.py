"""Families of plans: which decisions, which cost. One folder each, all of one shape; see ``Family``.

Nothing here searches, so that a plan can be checked without any solver; see :mod:`planner.families.searches`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from planner.families.all_reduce import family as all_reduce
from planner.families.hybrid import family as hybrid
from planner.families.model_replicas import family as model_replicas
from planner.families.parameter_server import family as parameter_server
from planner.families.pipeline import family as pipeline
from planner.plan import Configuration, Prediction
from planner.problem import Problem
from planner.timeline import Timeline

__all__ = ["FAMILIES", "Family"]


class Family(Protocol):
    """What the module of a family offers: the cost of a given configuration."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a module's constant
        """The family's name in specs and plans."""
        ...

    @property
    def NOT_MODELLED(self) -> tuple[str, ...]:  # noqa: N802  # a module's constant
        """What its predictions leave out, in words."""
        ...

    @property
    def DECISIONS(self) -> frozenset[str]:  # noqa: N802  # a module's constant
        """The keys of ``fix`` that pin a decision of the family; with any other pinned, it cannot answer."""
        ...

    def predict(self, problem: Problem, configuration: Any) -> Prediction:
        """Return what a configuration of the family costs."""
        ...

    def explain(self, problem: Problem, configuration: Any, prediction: Prediction) -> tuple[str, ...]:
        """Return what binds, in words."""
        ...

    def timeline(self, problem: Problem, configuration: Any, *, num_iterations: int = 1) -> Timeline:
        """Return what runs where and when, over some iterations from 0 on; one device stands for all that do alike."""
        ...

    def configuration_of(self, problem: Problem, given: Mapping[str, Any]) -> Configuration:
        """Return the configuration that a spec's block means; raise SpecError where it means none."""
        ...


FAMILIES: Mapping[str, Family] = {
    all_reduce.NAME: all_reduce,
    parameter_server.NAME: parameter_server,
    model_replicas.NAME: model_replicas,
    pipeline.NAME: pipeline,
    hybrid.NAME: hybrid,
}
