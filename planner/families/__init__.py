"""Families of plans: which decisions, which cost, which search. One folder each, all of one shape; see ``Family``.

Nothing here imports a search before it is asked for, so that a plan can be checked without any solver.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar

from planner.cluster import Cluster
from planner.constraints import Usage, memory_limit_bytes, needed_s
from planner.decisions import decided_by, pinnable_keys
from planner.families.all_reduce import family as all_reduce_family
from planner.families.answer import LeastBeside, LeastByCount, LeastParts
from planner.families.hybrid import family as hybrid_family
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.model_replicas import family as model_replicas_family
from planner.families.parameter_server import family as parameter_server_family
from planner.families.pipeline import family as pipeline_family
from planner.networks import computation_bound
from planner.plan import Configuration, Plan, Prediction, Unmeasured
from planner.plugins import Registry
from planner.problem import Problem
from planner.search import Search
from planner.sections import FamilyView
from planner.timeline import Timeline
from planner.used_machines import UsedMachines

__all__ = [
    "FAMILIES",
    "Family",
    "Risks",
    "bound_of",
    "least_beside_of",
    "least_by_count_of",
    "least_parts_of",
    "risks_of",
    "usage_of",
]


Chosen_contra = TypeVar("Chosen_contra", contravariant=True)  # what a family decides: its configuration


class Family(Protocol[Chosen_contra]):
    """What the module of a family offers: the cost of a given configuration, and the search for the best one.

    It may have six more: ``bound``, see :func:`bound_of`; ``least_by_count``, a
    :data:`planner.families.answer.LeastByCount`, else purchases plan one number of machines after the other;
    ``least_parts_s``, a :data:`planner.families.answer.LeastParts`, else its bound holds for mixed machines, too;
    ``least_beside_usd``, a :data:`planner.families.answer.LeastBeside`, else mixed machines are bounded kind by kind;
    ``risks``, which returns :class:`Risks`, without which all its configurations are of one risk; and, of a plug-in,
    ``PINS``: those keys of ``fix`` that its search keeps, of ``num_devices``, ``num_machines`` and ``device``, which
    :meth:`machines` shows.
    """

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

    def predict(self, problem: Problem, configuration: Chosen_contra) -> Prediction:
        """Return what a configuration of the family costs."""
        ...

    def explain(self, problem: Problem, configuration: Chosen_contra, prediction: Prediction) -> tuple[str, ...]:
        """Return what binds, in words."""
        ...

    def timeline(self, problem: Problem, configuration: Chosen_contra, *, num_iterations: int = 1) -> Timeline:
        """Return what runs where and when, over some iterations from 0 on; one device stands for all that do alike."""
        ...

    def machines(self, problem: Problem, configuration: Chosen_contra) -> Iterator[UsedMachines]:
        """Yield the machines of a configuration in the order of its ranks; servers come after the workers.

        A group whose last machine gives fewer devices than the others stands in two rows.
        """
        ...

    def configuration_of(self, problem: Problem, given: Mapping[str, object]) -> Configuration:
        """Return the configuration that a spec's block means; raise SpecError where it means none."""
        ...

    def view(self, cluster: Cluster, block: Mapping[str, object], prediction: Prediction) -> FamilyView:
        """Return what an answer shows of a configuration, given as its document, on a cluster."""
        ...

    def left_out(self, problem: Problem, given: Mapping[str, object], configuration: Chosen_contra) -> tuple[str, ...]:
        """Return, in words, what the configuration of a block has where the block says nothing, and why.

        What ``plan`` takes by default; only what may change the prediction.
        """
        ...

    def search(self, problem: Problem, search: Search, /) -> Plan:
        """Return the best plan of the family, its bound and its runners-up.

        Raises
        ------
        InfeasibleError
            If no configuration of the family answers; the message says why, and what would have to give.
        NoAnswerError
            If a limit struck before any configuration was found.
        """
        ...

    def domain(self) -> str:
        """Return what the search covers, where ``predict`` accepts more; a bound says nothing about the rest."""
        ...


class Risks(Protocol[Chosen_contra]):
    """What a family knows of how far its predictions may be trusted."""

    @property
    def OF_LAYOUT(self) -> tuple[str, ...]:  # noqa: N802  # a module's constant
        """What lines of an explanation hold that are of the layout alone, beside those of ``explain``."""
        ...

    def unmeasured(self, problem: Problem, configuration: Chosen_contra) -> tuple[Unmeasured, ...]:
        """Return the features that no measured step has, and which of them a configuration takes."""
        ...

    def known_error(self, problem: Problem, configuration: Chosen_contra, prediction: Prediction) -> float:
        """Return by which share a measured time may be longer than predicted."""
        ...

    def warnings(self, problem: Problem, configuration: Chosen_contra) -> list[str]:
        """Return what makes the figures of a configuration doubtful: the warnings of its plan."""
        ...


_OWN: tuple[Family[Any], ...] = (
    all_reduce_family,
    parameter_server_family,
    model_replicas_family,
    pipeline_family,
    hybrid_family,
)
_NEEDS = [name for name in vars(Family) if not name.startswith("_")]
FAMILIES: Registry[Family[Any]] = Registry("planner.families", {one.NAME: one for one in _OWN}, needs=_NEEDS)


def bound_of(family: str, problem: Problem) -> float:
    """Return an objective that no plan of a family beats, without any search; computing alone if it knows no better."""
    found: float = getattr(FAMILIES[family], "bound", computation_bound)(problem)
    return found


def least_by_count_of(family: str) -> LeastByCount | None:
    """Return a family's search over all numbers of machines at once; None where it has none."""
    found: LeastByCount | None = getattr(FAMILIES[family], "least_by_count", None)
    return found


def least_parts_of(family: str) -> LeastParts | None:
    """Return a family's bound by part, in company of other kinds of machines; None: its bound is as much."""
    found: LeastParts | None = getattr(FAMILIES[family], "least_parts_s", None)
    return found


def least_beside_of(family: str) -> LeastBeside | None:
    """Return a family's bound of the money of several kinds of machines at once; None where it has none."""
    found: LeastBeside | None = getattr(FAMILIES[family], "least_beside_usd", None)
    return found


def not_launched(family: str) -> frozenset[str]:
    """Return the kinds of a family's answers that no program launches, as :attr:`Search.skipped` has them."""
    found: frozenset[str] = getattr(FAMILIES[family], "NOT_LAUNCHED", frozenset())
    return found


def risks_of(family: str) -> Risks[Any] | None:
    """Return what a family knows of how far its predictions may be trusted; None: all are of one risk."""
    risks = getattr(FAMILIES[family], "risks", None)
    found: Risks[Any] | None = None if risks is None else risks()
    return found


def _layers_of(problem: Problem, configuration: Configuration) -> dict[str, list[int]]:
    """Return the layers of every stage, or chunk, of a transformer."""
    network = problem.dnn.transformer
    if not isinstance(configuration, HybridConfiguration) or network is None:
        return {}
    return {"layers_per_stage": list(configuration.chunk_layers(network.num_layers))}


def usage_of(problem: Problem, family: str, configuration: Configuration, prediction: Prediction) -> Usage:
    """Return what a configuration of a family uses of all that constraints limit.

    Machines that serve on machines of workers count once. A pin that the block cannot show is taken to be kept.
    """
    block = configuration.to_document()
    machines: dict[str, int] = {}
    devices: dict[str, int] = {}
    for row in FAMILIES[family].machines(problem, configuration):
        there = machines.get(row.group, 0)
        machines[row.group] = there + max(0, row.num_machines - there * row.is_shared)
        if row.role == "worker":
            devices[row.group] = devices.get(row.group, 0) + row.num_devices
    # The cost model states the device that is fullest for what it may hold: no other one's limit is broken before.
    total, limit = prediction.memory_bytes["total"], prediction.memory_bytes["limit"]
    groups = {group.name: group for group in problem.cluster.machine_groups}
    names = list(dict.fromkeys(groups[name].device.name for name in devices))
    is_unbounded = block.get("synchronisation") == "asp" or block.get("num_replicas", 1) > 1
    unseen = {"algorithm"} & problem.fixed.keys() & pinnable_keys(family)
    return Usage(
        family=family,
        machines=machines,
        devices=devices,
        memory_bytes={name: total for name in devices if memory_limit_bytes(problem, groups[name]) == limit},
        staleness=float("inf")
        if is_unbounded
        else float(block.get("max_staleness") or (block.get("local_steps") or 1) - 1),
        global_batch_size=int(block.get("global_batch_size") or prediction.details["global_batch_size"]),
        needed_s=needed_s(prediction),
        decisions={
            **{key: problem.fixed[key] for key in unseen},
            "num_devices": sum(devices.values()),
            "num_machines": sum(machines.values()),
            "device": names[0] if len(names) == 1 else names,
            **decided_by(family, block),
            **_layers_of(problem, configuration),
        },
    )
