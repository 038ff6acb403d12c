"""Families of plans: which decisions, which cost. One folder each, all of one shape; see ``Family``.

Nothing here searches, so that a plan can be checked without any solver; see :mod:`planner.families.searches`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from planner.families.all_reduce import family as all_reduce_family
from planner.families.hybrid import family as hybrid_family
from planner.families.model_replicas import family as model_replicas_family
from planner.families.parameter_server import family as parameter_server_family
from planner.families.pipeline import family as pipeline_family
from planner.plan import Configuration, Prediction
from planner.problem import Problem
from planner.timeline import Timeline
from planner.used_machines import UsedMachines

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

    @property
    def FITTED(self) -> tuple[str, ...]:  # noqa: N802  # a module's constant
        """The parameters of the calibration that measured iterations of the family may fit."""
        ...

    @property
    def TAKES_EXCLUSIONS(self) -> bool:  # noqa: N802  # a module's constant
        """Whether its search leaves out the values of ``constraints.exclude``."""
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

    def machines(self, problem: Problem, configuration: Any) -> Iterator[UsedMachines]:
        """Yield the machines of a configuration in the order of its ranks; servers come after the workers.

        A group whose last machine gives fewer devices than the others stands in two rows.
        """
        ...

    def configuration_of(self, problem: Problem, given: Mapping[str, Any]) -> Configuration:
        """Return the configuration that a spec's block means; raise SpecError where it means none."""
        ...

    def left_out(self, problem: Problem, given: Mapping[str, Any], configuration: Any) -> tuple[str, ...]:
        """Return, in words, what the configuration of a block has where the block says nothing, and why.

        What ``plan`` takes by default; only what may change the prediction.
        """
        ...


FAMILIES: Mapping[str, Family] = {
    all_reduce_family.NAME: all_reduce_family,
    parameter_server_family.NAME: parameter_server_family,
    model_replicas_family.NAME: model_replicas_family,
    pipeline_family.NAME: pipeline_family,
    hybrid_family.NAME: hybrid_family,
}
