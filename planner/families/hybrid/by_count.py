"""The layouts of equal machines of any number, held against a weight and a limit for each number.

Every layout says how many devices it takes, so the grid of layouts on all machines holds those on fewer
machines, too. The search minimises ``seconds(layout) / weight(n)`` over all layouts of the grid of less than
``limit(n)`` seconds: with the bounds of :mod:`planner.families.hybrid.bounds`, each divided by the weight of the
devices that its node has decided. The least ratio ``r``, or the bound of it where the time is over, is a bound for
every number of machines: no layout on n of them takes less than the lesser of ``r weight(n)`` and ``limit(n)``.

Left out: cuts that are not searched anywhere, as of chunks that are moved by single layers (see
:mod:`planner.families.hybrid.grid_search`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from planner.cost import Floats
from planner.errors import InfeasibleError
from planner.families.answer import CountBounds, iterations_of, plan_of
from planner.families.hybrid.bounds import Bounds, peak_step_s
from planner.families.hybrid.configuration import NAME
from planner.families.hybrid.cost import HybridCost, Placement, costs_of
from planner.families.hybrid.grid_search import configuration_of_point
from planner.families.hybrid.prediction import NOT_MODELLED, explain, predict, warnings
from planner.models.layouts import Ints
from planner.problem import Problem
from planner.search import Search
from planner.solvers.grid import Columns, Grid, GridAnswer, Level, solve

_DEGREES = ("tensor", "context", "pipeline", "data")
_SHARE_OF_EVEN = 0.6  # of the time
_LOOSE = 0.4  # of the limit: where devices at their peak take less, layouts are likely to be below it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limited:
    """The layouts of one placement, in shares of the weight of as many machines as they take."""

    bounds: Bounds
    weight_s: Floats  # of a step, by the number of machines
    limit_s: Floats
    devices_per_machine: int

    def num_machines(self, nodes: Columns) -> Ints:
        """Return the machines that nodes take at least: as many as what is decided of their degrees asks for."""
        number = np.ones(len(nodes["tensor"]), dtype=np.int64)
        for name in dict.fromkeys((*_DEGREES, *self.bounds.space.part_names)):
            if name in nodes:
                number = number * nodes[name]
        return -(-number // self.devices_per_machine)

    def shares(self, seconds: Callable[[Columns], Floats]) -> Callable[[Columns], Floats]:
        """Return a function of nodes in shares of their weights; weight and limit never rise with the machines."""

        def share(nodes: Columns) -> Floats:
            machines = self.num_machines(nodes)
            at = np.minimum(machines, len(self.limit_s)) - 1
            found = np.full(len(machines), inf)
            has_any = np.minimum(self.weight_s, self.limit_s)[at] > 0
            left = np.flatnonzero((machines <= len(self.limit_s)) & has_any)
            if len(left):
                columns = {name: column[left] for name, column in nodes.items()} if len(left) < len(found) else nodes
                least_s = seconds(columns)  # infinite where nothing fits, whatever the limit
                weight_s, is_below = self.weight_s[at[left]], least_s < self.limit_s[at[left]]
                found[left] = np.divide(least_s, weight_s, out=np.full(len(left), inf), where=is_below)
            return found

        return share

    def least(self, search: Search, most: float, *, is_loose: bool) -> GridAnswer:
        """Return the layout of the least share below ``most``.

        ``is_loose``: some layout is likely to be far below, so that one is looked for first.
        """
        grid = self.bounds.grid()
        levels = tuple(
            Level(axes=level.axes, bound=None if level.bound is None else self.shares(level.bound))
            for level in grid.levels
        )
        cost, part = self.shares(self.bounds.seconds), search.part(search.left_s, cutoff=most, good_enough=-inf)
        part.pool = None
        return solve(Grid(levels=levels, rules=grid.rules), cost, part, counts=False, is_strict=True, dives=is_loose)


def least_by_count(problem: Problem, weight_s: Floats, limit_s: Floats, search: Search) -> CountBounds | None:
    """Return what no layout on so many machines takes less than; see :class:`planner.families.answer.CountBounds`."""
    if problem.training.fixed_batch_size is None or not problem.cluster.has_equal_machines:
        return None  # racks of trays are groups of their own, all equal
    try:
        (cost,) = costs_of(problem)
    except InfeasibleError:
        return CountBounds(bounds_s=np.full(len(limit_s), inf))
    steps = float(iterations_of(problem, cost.batch))
    weight_s, limit_s = np.minimum.accumulate(weight_s), np.minimum.accumulate(limit_s)
    bound, least, machines, best = 1.0, 1.0, 0, None
    peak_s = peak_step_s([cost]) * len(limit_s) / np.arange(1, len(limit_s) + 1)
    is_loose = bool((peak_s < _LOOSE * np.minimum(weight_s, limit_s) / steps).any())
    for placement, share in ((cost.even, _SHARE_OF_EVEN), (HybridCost((cost,), Placement.STAGES), 1.0)):
        part = search.part(search.left_s * share)
        limited = _Limited(
            bounds=Bounds.of(placement, part),
            weight_s=weight_s / steps,
            limit_s=limit_s / steps,
            devices_per_machine=cost.group.devices_per_machine,
        )
        if not limited.bounds.space.is_open:
            continue
        answer = limited.least(part, least, is_loose=is_loose and least == 1.0)
        bound = min(bound, answer.solution.bound)
        if (point := answer.solution.value) is not None and answer.solution.objective < least:
            least, best = answer.solution.objective, (placement, point)
            machines = int(limited.num_machines({name: np.array([value]) for name, value in point.items()})[0])
    with np.errstate(invalid="ignore"):
        bounds_s = np.nan_to_num(np.minimum(bound * weight_s, limit_s), nan=0.0, posinf=inf)
    if best is None:
        return CountBounds(bounds_s=bounds_s)
    configuration = configuration_of_point(*best)
    prediction = predict(problem, configuration)
    plan = plan_of(
        problem,
        family=NAME,
        configuration=configuration,
        prediction=prediction,
        bound=min(float(bounds_s[machines - 1]), prediction.value_of(problem.goal)),
        explanation=explain(problem, configuration, prediction),
        warnings=warnings(best[0], configuration),
        not_modelled=NOT_MODELLED,
        solver="branch and bound on the grid of layouts of any number of machines",
    )
    return CountBounds(bounds_s=bounds_s, num_machines=machines, plan=plan)
