"""The search of the family ``hybrid``: branch and bound over the whole grid of layouts, of all machines that are alike.

Domain: every tensor degree that divides heads and widths, context degree that splits the sequence, number of stages and
chunks that splits the layers evenly (or these with embedding and head in a layer's place each), data degree and
micro-batch that divide the batch, expert degree that divides the experts; ZeRO 0 to 3, recomputation, sequence
parallelism, GPipe and 1F1B (zero-bubble schedules where they are pinned, as few programs have them), overlaps, the
optimiser on the host, and the order of the degrees on the tiers of the network. Any number of devices that limits
allow.

The grid and its rules stand in :mod:`planner.families.hybrid.space`, bounds in :mod:`planner.families.hybrid.bounds`,
the search itself in :mod:`planner.solvers.grid`: what it finds is the optimum of the grid, proven, unless it is
stopped. Runners-up differ in a degree. Machines that differ are searched kind by kind, and then together: layouts with
stages or replicas on several kinds, and stages of unlike layers, stand in :mod:`planner.families.hybrid.mixed_search`.

*A batch that may vary up to a maximum.* Only the maximum is searched; smaller ones are bounded by the devices' peak.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from planner.cost import Floats
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.answer import TOO_SHORT, iterations_of, plan_of
from planner.families.hybrid.bounds import HybridBounds
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import HybridCost, costs_of
from planner.families.hybrid.family import NAME, NOT_MODELLED, explain, predict
from planner.families.hybrid.frontier import frontier_words, ladder
from planner.families.hybrid.idle import idle_words
from planner.families.hybrid.infeasible import why_nothing_fits
from planner.families.hybrid.least import least_objective, least_step_s, with_least
from planner.families.hybrid.mixed import reserve_words
from planner.families.hybrid.mixed import warnings as mixed_warnings
from planner.families.hybrid.mixed_configuration import MixedConfiguration
from planner.families.hybrid.mixed_cuts import has_few_cuts
from planner.families.hybrid.mixed_idle import mixed_idle_words
from planner.families.hybrid.mixed_search import (
    OTHER_CUTS,
    MixedFound,
    cuts_words,
    even_improved,
    mixed_searched,
    other_cuts_s,
)
from planner.families.hybrid.ranges import outside_words
from planner.families.hybrid.space import COARSE, LEVELS
from planner.plan import Alternative, Plan
from planner.problem import Problem
from planner.search import Search
from planner.solution import SAME, Status
from planner.solvers.grid import Columns, Grid, GridAnswer, Point, solve
from planner.units import Dimension, format_human

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
    found: list[_Found | MixedFound] = []

    def keep(so_far: Sequence[_Found | MixedFound]) -> None:
        """Have the best so far as the answer, should the search be broken off."""
        best = _best(so_far)
        if best.answer.solution.value is not None:
            search.keep(lambda: _plan_of(problem, search, so_far, best, 0.0, count))

    for index, cost in enumerate(costs):
        known = min((one.answer.solution.objective for one in found), default=float("inf"))
        part = search.part(
            search.left_s / (len(costs) + 1 - index),
            good_enough=search.good_enough / count,
            cutoff=min(search.cutoff / count, known),
        )
        found.append(_Found(cost=cost, answer=searched(cost, part)))
        keep(list(found))
    known_s = [seconds for one in found for seconds, _ in one.rows]
    rest = search.part(search.left_s, good_enough=search.good_enough / count, cutoff=search.cutoff / count)
    even = [(one.cost, one.rows) for one in found]
    found += mixed_searched(costs, rest, known_s, lambda mixed: keep([*found, *mixed]))
    least_s = min(one.answer.solution.objective for one in found)
    near = [even_improved(cost, rows, least_s, rest) for cost, rows in even]
    found += [one for one in near if one is not None]
    bound_s = min(one.answer.solution.bound for one in found)
    best = _best(found)
    keep(found)
    if best.answer.solution.value is None:
        if bound_s < float("inf"):
            raise NoAnswerError(TOO_SHORT)
        raise InfeasibleError(why_nothing_fits(costs, search))
    return _plan_of(problem, search, found, best, bound_s, count)


def _best(found: Sequence[_Found | MixedFound]) -> _Found | MixedFound:
    """Return where the best layout is; of equally good ones the even layout on one kind is the simpler."""
    return min(found, key=lambda one: one.answer.solution.objective * (1 + SAME * isinstance(one, MixedFound)))


def searched(
    cost: HybridCost, search: Search, *, uses_bounds: bool = True, memory_limit_bytes: float = inf
) -> GridAnswer:
    """Return the best layouts of the grid of some machines, whose bounds may be left unused.

    ``memory_limit_bytes``: where that is less than what a device may hold.
    """
    limit = min(cost.memory_limit_bytes, memory_limit_bytes)
    number = 1 + max(search.num_alternatives, 0)
    grid, seconds = _grid_of(cost, limit, search, uses_bounds=uses_bounds)
    first = None
    if uses_bounds and len(grid.levels) > len(LEVELS):  # very many divisors: an answer from some of them comes first
        part = search.part(search.left_s / 2)
        first = solve(*_grid_of(cost, limit, part, is_narrow=True), part, num_answers=number, group_by=COARSE)
    answer = solve(
        grid,
        seconds,
        search,
        num_answers=number,
        group_by=COARSE,
        uses_bounds=uses_bounds,
        maker=partial(_grid_of, replace(cost), limit),
    )
    if first is not None and first.solution.objective < answer.solution.objective:  # the time was over before
        bound = min(answer.solution.bound, first.solution.objective)
        best = replace(first.solution, bound=bound, status=Status.FEASIBLE)
        answer = replace(first, solution=best, num_evaluated=answer.num_evaluated + first.num_evaluated)
        answer = replace(answer, is_counted=False, num_points=answer.num_evaluated)
    return with_least(answer, least_step_s([cost]))


def _grid_of(
    cost: HybridCost,
    limit_bytes: float,
    search: Search | None = None,
    *,
    uses_bounds: bool = True,
    is_narrow: bool = False,
) -> tuple[Grid, Callable[[Columns], Floats]]:
    """Return the grid of some machines and the seconds of its points; narrow: with few data degrees, micro-batches."""
    bounds = HybridBounds(cost, limit_bytes, search or Search())
    if is_narrow:
        vars(bounds)["space"] = bounds.space.narrow

    def seconds(columns: Columns) -> Floats:
        found = np.empty(len(columns["tensor"]))
        for part in bounds.parts(len(found)):
            layouts = cost.layouts({name: column[part] for name, column in columns.items()})
            fits = cost.memory(layouts)["total"] <= limit_bytes
            found[part] = np.where(fits, cost.seconds(layouts), np.inf)
        return found

    return bounds.space.grid(bounds.all if uses_bounds else None), seconds


def _plan_of(
    problem: Problem,
    search: Search,
    found: Sequence[_Found | MixedFound],
    best: _Found | MixedFound,
    bound_s: float,
    count: float,
) -> Plan:
    """Return the plan of the best layout."""
    objective_s, point = best.rows[0]
    configuration = best.configuration(point)
    prediction = predict(problem, configuration)
    bound = min(bound_s * count, prediction.value_of(problem.goal))
    if problem.training.fixed_batch_size is None:
        bound = min(bound, least_objective(problem))
    is_proven = objective_s - bound_s <= SAME * objective_s
    cuts_s = other_cuts_s(found, bound_s)
    rungs, ladder_words = ([], []) if isinstance(best, MixedFound) else _rungs(best, count, search)
    return plan_of(
        problem,
        family=NAME,
        configuration=configuration,
        prediction=prediction,
        bound=bound,
        explanation=(
            *explain(problem, configuration, prediction),
            *_more_words(best, point, configuration, search),
            *ladder_words,
            *_counts(problem, found, is_proven, best.cost.batch),
            *cuts_words(cuts_s, objective_s),
        ),
        alternatives=[*_alternatives(found, best, count, search.num_alternatives), *rungs],
        warnings=[*mixed_warnings(best.mixed, configuration), *reserve_words(best.mixed.costs)]
        if isinstance(best, MixedFound)
        else [*_warnings(best.cost), *outside_words(best.cost, configuration)],
        not_modelled=NOT_MODELLED,
        solver="branch and bound on the grid of layouts",
        num_candidates=sum(one.answer.num_points for one in found),
        num_solved=sum(one.answer.num_evaluated for one in found),
        beyond={OTHER_CUTS: 0.0 if _has_open_cuts(problem, configuration) else cuts_s * count},
    )


def _has_open_cuts(problem: Problem, configuration: HybridConfiguration) -> bool:
    """Whether a layout has stages on several kinds of machines of whose cuts only one was tried: no bound is of all."""
    transformer = problem.dnn.transformer
    if not isinstance(configuration, MixedConfiguration) or transformer is None:
        return False
    is_staged = len(set(configuration.groups)) > 1 and not configuration.replicas
    return is_staged and not has_few_cuts(transformer.num_layers, configuration.pipeline)


def _more_words(
    best: _Found | MixedFound, point: Point, configuration: HybridConfiguration, search: Search
) -> list[str]:
    """Return what other layouts would take; nothing where only asked whether anything fits."""
    if search.good_enough == inf:
        return []
    if isinstance(best, MixedFound):
        return mixed_idle_words(best.mixed, configuration, search)
    words = frontier_words(best.cost, point, search)
    return [*words, *idle_words(best.cost, configuration, search, searched)]


def _counts(problem: Problem, found: Sequence[_Found | MixedFound], is_proven: bool, batch: int) -> list[str]:
    """Return how many layouts there are, were ruled out and were evaluated."""
    points, pruned, evaluated = (
        sum(getattr(one.answer, name) for one in found) for name in ("num_points", "num_pruned", "num_evaluated")
    )
    rest = "ruled out by their bounds" if is_proven else "ruled out by their bounds or not come to"
    lines = [f"layouts in the grid: {points:,}; {rest}: {pruned:,}; evaluated in full: {evaluated:,}"]
    if not all(one.answer.is_counted for one in found):
        lines = [f"layouts evaluated in full: {evaluated:,}; those of the whole grid are too many to count in the time"]
    if problem.training.fixed_batch_size is None:
        lines.append(f"only the largest batch, {batch}, was searched; smaller ones are bounded")
    return lines


def _alternatives(
    found: Sequence[_Found | MixedFound], best: _Found | MixedFound, count: float, number: int
) -> list[Alternative]:
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
            relative_loss=max(seconds / least_s - 1, 0.0) if least_s else 0.0,
            reason=f"the best of these degrees: {one.configuration(point).headline}",
            configuration=one.configuration(point),
        )
        for seconds, one, point in others[: max(number, 0)]
    ]


def _rungs(best: _Found, count: float, search: Search) -> tuple[list[Alternative], list[str]]:
    """Return the fastest layouts of less and less memory, where they are asked for, and a line about them."""
    if not search.has_frontier or search.good_enough == inf:
        return [], []
    rows, is_whole = ladder(
        best.cost, best.rows[0][1], search, lambda cost, part, most: searched(cost, part, memory_limit_bytes=most)
    )
    least_s = best.rows[0][0]
    found = [
        Alternative(
            name=f"in {format_human(held, Dimension.DATA)}: {_name(best, point)}",
            family=NAME,
            objective=seconds * count,
            relative_loss=seconds / least_s - 1 if least_s else 0.0,
            reason=f"no layout that needs as little is faster: {best.configuration(point).headline}",
            configuration=best.configuration(point),
        )
        for seconds, held, point in rows
        if point is not best.rows[0][1]
    ]
    end = "until none fits" if is_whole else "as far as the time went"
    return found, [f"time against memory over the whole grid, each time a tenth less, {end}: {len(found)} layouts more"]


def _name(one: _Found | MixedFound, point: Point) -> str:
    """Return a layout's degrees in short."""
    if isinstance(one, MixedFound):
        return one.name_of(point)
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
    return [*found, *reserve_words([cost])]
