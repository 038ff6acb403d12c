"""Data-parallel training on any number of equal machines, held against a limit for each number.

All settings (machines, devices of each, batch) are bounded at once and solved in the order in which their bounds are
furthest below the limit of as many machines, until no bound is below the best of these shares
(:mod:`planner.families.by_count`).
"""

from math import inf

import numpy as np

from planner.cost import Floats
from planner.families.all_reduce.bounds import AllReduceBoxes
from planner.families.all_reduce.configuration import is_heterogeneous
from planner.families.all_reduce.search import teams_of
from planner.families.by_count import CountBounds
from planner.problem import Problem
from planner.search import Search
from planner.solvers.branch_and_bound import Box

_ALL_S = 1.0  # of a limit


def least_by_count(problem: Problem, limit_s: Floats, search: Search) -> CountBounds | None:
    """Return what no plan on so many machines takes less than; see :mod:`planner.families.by_count`."""
    if is_heterogeneous(problem) or len(problem.cluster.machine_groups) != 1:
        return None
    boxes = AllReduceBoxes(problem, list(search.watch(teams_of(problem), every=8)), search)
    leaves, limits = boxes.roots, np.minimum.accumulate(limit_s)
    if search.is_late or not all(leaf.is_leaf for leaf in leaves):
        return None
    if not leaves:
        return CountBounds(bounds_s=np.full(len(limit_s), inf))

    def machines_of(leaf: Box) -> int:
        return -(-leaf.low[-1] // boxes.teams[leaf.kind].most)

    machines = np.array([machines_of(leaf) for leaf in leaves], dtype=np.int64)
    within = np.where(machines <= len(limits), limits[np.minimum(machines, len(limits)) - 1], 0.0)
    bounds = boxes.bounds(leaves, inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(within > 0, bounds / within, inf)
    best, best_machines, least = _ALL_S, None, inf
    for place in np.argsort(shares, kind="stable").tolist():
        if shares[place] >= best:
            least = min(least, float(shares[place]))
            break
        if search.is_late:
            least = min(least, float(shares[place]))
            break
        limit = float(within[place])
        found = boxes.solve(leaves[place], float(bounds[place]), best * limit)
        least = min(least, found.bound / limit)
        if found.objective / limit < best:
            best, best_machines = found.objective / limit, int(machines[place])
    with np.errstate(invalid="ignore"):
        bounds_s = np.nan_to_num(min(least, best) * limit_s, nan=0.0, posinf=inf)
    return CountBounds(bounds_s=bounds_s, num_machines=best_machines)
