"""The searches of the families, by name."""

from collections.abc import Callable, Mapping
from typing import Protocol

from planner.families.all_reduce import by_count as all_reduce_by_count
from planner.families.all_reduce import search as all_reduce_search
from planner.families.by_count import LeastByCount, LeastParts
from planner.families.hybrid import bounds as hybrid_bounds
from planner.families.hybrid import by_count as hybrid_by_count
from planner.families.hybrid import pace as hybrid_pace
from planner.families.hybrid import search as hybrid_search
from planner.families.hybrid.grid_search import DOMAIN as HYBRID_CUTS
from planner.families.hybrid.space import MOST_UNLIKE_CHUNKS
from planner.families.model_replicas import search as model_replicas_search
from planner.families.model_replicas import settings as model_replicas_settings
from planner.families.parameter_server import search as parameter_server_search
from planner.families.pipeline import search as pipeline_search
from planner.networks import computation_bound
from planner.plan import Plan
from planner.problem import Problem
from planner.search import Search

__all__ = ["BOUNDS", "BY_COUNT", "DOMAINS", "LEAST_PARTS", "SEARCHES", "FamilySearch"]


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
    "hybrid": hybrid_search.plan,
}

# An objective that no plan of the family beats, without any search: of one that the time never came to.
BOUNDS: Mapping[str, Callable[[Problem], float]] = {
    "all_reduce": computation_bound,
    "parameter_server": computation_bound,
    "model_replicas": model_replicas_settings.least_objective,
    "pipeline": computation_bound,
    "hybrid": hybrid_bounds.lower_bound,
}

# What no plan beats by the number of equal machines that it uses, all numbers at once; others are planned one by one.
BY_COUNT: Mapping[str, LeastByCount] = {
    "all_reduce": all_reduce_by_count.least_by_count,
    "hybrid": hybrid_by_count.least_by_count,
}

# Device-seconds that each part of a training takes at least on one kind of machines, in company of others: see
# :mod:`planner.families.hybrid.pace`. Of other families the bound above is as much.
LEAST_PARTS: Mapping[str, LeastParts] = {"hybrid": hybrid_pace.least_parts_s}

# What each search covers, where that is less than `predict` accepts: a bound says nothing about the rest.
DOMAINS: Mapping[str, str] = {
    "all_reduce": "gradients grouped in the order in which they become ready; as many devices of each machine of a "
    "group, and on devices of one type as many of each machine that takes part",
    "parameter_server": "the servers are machines of one group; a tensor is whole, or sliced over all servers; sums "
    "wait behind a barrier, unless calibration.max_overlap, fix.overlap or fix.barrier say otherwise: then they go by "
    "priority or not, whole or, where tensors are cut, in pieces of 4.1 or 1 MB or as pinned, by overlaps that send "
    "them early",
    "model_replicas": "each layer's segments are stripes of equal size",
    "pipeline": "stages of consecutive layers, of whole blocks where a network repeats them, on devices of one "
    "group; interleaved schedules with 2 to 16 chunks a "
    "device, equal replicas, and evenly cut",
    "hybrid": "on one kind of machines layers dealt out to stages and chunks as evenly as whole layers go (to "
    f"more than {MOST_UNLIKE_CHUNKS} chunks a device only where they divide), and "
    "GPipe, 1F1B and further schedules that the program has (others only where fix.schedule asks for them); "
    f"{HYBRID_CUTS}",
}
