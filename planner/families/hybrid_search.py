"""The search of the family ``hybrid``: branch and bound over the whole grid of layouts, of all machines that are alike.

Domain: every tensor degree that divides heads and widths, context degree that splits the sequence, number of stages and
chunks that splits the layers evenly (or these with embedding and head in a layer's place each), data degree and
micro-batch that divide the batch, expert degree that divides the experts; ZeRO 0 to 3, recomputation, sequence
parallelism, GPipe and 1F1B (zero-bubble schedules where they are pinned, as few programs have them), overlaps, the
optimiser on the host, and the order of the degrees on the tiers of the network. Any number of devices that limits
allow.

The grid and its rules stand in :mod:`planner.families.hybrid_space`, bounds in :mod:`planner.families.hybrid_bounds`,
the search itself in :mod:`planner.solvers.grid`: what it finds is the optimum of the grid, proven, unless it is
stopped. Runners-up differ in a degree. Machines that differ are searched kind by kind: a layout stands on one kind.

*A batch that may vary up to a maximum.* Only the maximum is searched; smaller ones are bounded by the devices' peak.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.answer import SAME, TOO_SHORT, iterations_of, plan_of
from planner.families.hybrid import NAME, NOT_MODELLED, explain, predict
from planner.families.hybrid_bounds import HybridBounds
from planner.families.hybrid_configuration import HybridConfiguration
from planner.families.hybrid_cost import HybridCost, costs_of
from planner.families.hybrid_frontier import frontier_words
from planner.families.hybrid_infeasible import why_nothing_fits
from planner.families.hybrid_least import least_objective
from planner.families.hybrid_space import COARSE
from planner.plan import Alternative, Plan
from planner.problem import Problem
from planner.search import Search
from planner.solvers.grid import Columns, GridAnswer, Point, solve

__all__ = ["plan", "searched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the search of some machines' grid found."""

    cost: HybridCost
    answer: GridAnswer

    @property
    def rows(self) -> list[tuple[float, Point]]:
        """The best layout and its runners-up, with their seconds."""
        value = self.answer.solution.value
        return [] if value is None else [(self.answer.solution.objective, value), *self.answer.others]

    def configuration(self, point: Point) -> HybridConfiguration:
        """Return a layout as a configuration."""
        return HybridConfiguration.of(point, batch=self.cost.batch, machines=self.cost.machines)


def plan(problem: Problem, search: Search) -> Plan:
    """Return the best layout, with the best of other degrees.

    Raises
    ------
    InfeasibleError
        If the network is no transformer, or no layout fits; the message says how much is missing.
    NoAnswerError
        If the time limit struck before the first layout that fits was found.
    """
    costs = costs_of(problem)
    count = float(iterations_of(problem, costs[0].batch))
    found: list[_Found] = []
    for index, cost in enumerate(costs):
        known = min((one.answer.solution.objective for one in found), default=float("inf"))
        part = search.part(
            search.left_s / (len(costs) - index),
            good_enough=search.good_enough / count,
            cutoff=min(search.cutoff / count, known),
        )
        found.append(_Found(cost=cost, answer=searched(cost, part)))
    bound_s = min(one.answer.solution.bound for one in found)
    best = min(found, key=lambda one: one.answer.solution.objective)
    if best.answer.solution.value is None:
        if bound_s < float("inf"):
            raise NoAnswerError(TOO_SHORT)
        raise InfeasibleError(why_nothing_fits(costs, search))
    return _plan_of(problem, search, found, best, bound_s, count)


def searched(cost: HybridCost, search: Search, *, uses_bounds: bool = True) -> GridAnswer:
    """Return the best layouts of the grid of some machines, whose bounds may be left unused."""
    limit, bounds = cost.memory_limit_bytes, HybridBounds(cost, cost.memory_limit_bytes)

    def seconds(columns: Columns) -> Floats:
        layouts = cost.layouts(columns)
        fits = cost.memory(layouts)["total"] <= limit
        return np.where(fits, cost.seconds(layouts), np.inf)

    return solve(
        bounds.space.grid(bounds.all if uses_bounds else (None,) * len(bounds.all)),
        seconds,
        search,
        num_answers=1 + max(search.num_alternatives, 0),
        group_by=COARSE,
        uses_bounds=uses_bounds,
    )


def _plan_of(
    problem: Problem, search: Search, found: Sequence[_Found], best: _Found, bound_s: float, count: float
) -> Plan:
    """Return the plan of the best layout."""
    objective_s, point = best.rows[0]
    configuration = best.configuration(point)
    prediction = predict(problem, configuration)
    bound = min(bound_s * count, prediction.value_of(problem.goal))
    if problem.training.fixed_batch_size is None:
        bound = min(bound, least_objective(problem))
    is_proven = objective_s - bound_s <= SAME * objective_s
    return plan_of(
        problem,
        family=NAME,
        configuration=configuration,
        prediction=prediction,
        bound=bound,
        explanation=(
            *explain(problem, configuration, prediction),
            *frontier_words(best.cost, point, search),
            *_counts(problem, found, is_proven, best.cost.batch),
        ),
        alternatives=_alternatives(found, best, count, search.num_alternatives),
        warnings=_warnings(best.cost),
        not_modelled=NOT_MODELLED,
        solver="branch and bound on the grid of layouts",
        num_candidates=sum(one.answer.num_points for one in found),
        num_solved=sum(one.answer.num_evaluated for one in found),
    )


def _counts(problem: Problem, found: Sequence[_Found], is_proven: bool, batch: int) -> list[str]:
    """Return how many layouts there are, were ruled out and were evaluated."""
    points, pruned, evaluated = (
        sum(getattr(one.answer, name) for one in found) for name in ("num_points", "num_pruned", "num_evaluated")
    )
    rest = "ruled out by their bounds" if is_proven else "ruled out by their bounds or not come to"
    lines = [f"layouts in the grid: {points:,}; {rest}: {pruned:,}; evaluated in full: {evaluated:,}"]
    if problem.training.fixed_batch_size is None:
        lines.append(f"only the largest batch, {batch}, was searched; smaller ones are bounded")
    return lines


def _alternatives(found: Sequence[_Found], best: _Found, count: float, number: int) -> list[Alternative]:
    """Return the best layouts of other degrees, and on other machines."""
    rows = [(seconds, one, point) for one in found for seconds, point in one.rows]
    rows.sort(key=lambda row: row[0])
    least_s = best.rows[0][0]
    others = [row for row in rows if not (row[1] is best and row[2] is best.rows[0][1])]
    return [
        Alternative(
            name=_name(one, point),
            family=NAME,
            objective=seconds * count,
            relative_loss=seconds / least_s - 1 if least_s else 0.0,
            reason=f"the best of these degrees: {one.configuration(point).headline}",
            configuration=one.configuration(point),
        )
        for seconds, one, point in others[: max(number, 0)]
    ]


def _name(one: _Found, point: Point) -> str:
    """Return a layout's degrees in short."""
    degrees = ", ".join(f"{name} {point[name]}" for name in COARSE if point[name] > 1) or "one device"
    return degrees if one.cost.machines is None else f"{degrees} on {one.cost.machines}"


def _warnings(cost: HybridCost) -> list[str]:
    """Return what makes the figures doubtful."""
    found = []
    name = cost.group.device.name
    if not cost.is_calibrated:
        found.append(f"{name} is uncalibrated for transformers: the fitted efficiencies are those of another device")
    if cost.group.device.memory_bytes == float("inf") and cost.problem.limits.memory_per_device_bytes is None:
        found.append(f"the memory of {name} is not known, so that any layout fits")
    if not cost.problem.calibration.memory_reserve_bytes:
        found.append(
            "calibration.memory_reserve is 0: the device's context, buffers of the communication library and pieces of "
            "free memory take some GiB more"
        )
    return found
