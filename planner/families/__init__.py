"""Families of plans: which decisions, which cost. One folder each, all of one shape; see ``Family``.

Nothing here searches, so that a plan can be checked without any solver; see :mod:`planner.families.searches`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from planner.cluster import Cluster
from planner.constraints import Usage, needed_s
from planner.decisions import decided_by
from planner.families.all_reduce import family as all_reduce_family
from planner.families.hybrid import family as hybrid_family
from planner.families.model_replicas import family as model_replicas_family
from planner.families.parameter_server import family as parameter_server_family
from planner.families.pipeline import family as pipeline_family
from planner.plan import Configuration, Prediction
from planner.problem import Problem
from planner.sections import FamilyView
from planner.timeline import Timeline
from planner.used_machines import UsedMachines

__all__ = ["FAMILIES", "Family", "usage_of"]


class Family(Protocol):
    """What the module of a family offers: the cost of a given configuration."""

    @property
    def NAME(self) -> str:  # noqa: N802  # a module's constant
        """The family's name in specs and plans."""
        ...

    @property
    def WORDS(self) -> str:  # noqa: N802  # a module's constant
        """How it trains: ``pipeline parallelism``."""
        ...

    @property
    def NOT_MODELLED(self) -> tuple[str, ...]:  # noqa: N802  # a module's constant
        """What its predictions leave out, in words."""
        ...

    @property
    def FITTED(self) -> tuple[str, ...]:  # noqa: N802  # a module's constant
        """The parameters of the calibration that measured iterations of the family may fit."""
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

    def view(self, cluster: Cluster, block: Mapping[str, Any], prediction: Prediction) -> FamilyView:
        """Return what an answer shows of a configuration, given as its document, on a cluster."""
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


def usage_of(problem: Problem, family: str, configuration: Configuration, prediction: Prediction) -> Usage:
    """Return what a configuration of a family uses of all that constraints limit; its memory by group where it has one.

    Machines that serve on machines of workers count once. A pin that the block does not show is taken to be kept.
    """
    rows = list(FAMILIES[family].machines(problem, configuration))
    groups = list(dict.fromkeys(row.group for row in rows))
    machines = {
        name: sum(row.num_machines for row in rows if row.group == name and not row.is_shared) for name in groups
    }
    devices = {name: sum(row.num_devices for row in rows if row.group == name) for name in groups}
    block, staleness = configuration.to_document(), prediction.details.get("staleness", 0)
    most = staleness["most"] if isinstance(staleness, Mapping) else staleness
    return Usage(
        family=family,
        machines=machines,
        devices={name: number for name, number in devices.items() if number},
        memory_bytes={groups[0]: prediction.memory_bytes["total"]} if len(groups) == 1 else {},
        staleness=float("inf") if most is None else float(most),
        global_batch_size=int(block.get("global_batch_size") or problem.training.fixed_batch_size or 0),
        needed_s=needed_s(prediction),
        decisions={**problem.fixed, **decided_by(family, block)},
    )
