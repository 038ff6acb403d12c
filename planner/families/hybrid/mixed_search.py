"""The search of layouts with stages of unlike numbers of layers, or on machines of several kinds, team by team.

Domain. 1F1B without chunks, ZeRO 0 and 1, the optimiser on the devices; the batch is given.

- *Stages.* One kind of machines (then two stages or more), or several in any order along the pipeline: each kind has
  one stage or more, which follow each other; tensor, context, data and expert degrees and the micro-batch are those of
  all stages. Ranks of several kinds are numbered stage by stage. Layers are cut so that the slowest stage is as quick
  as can be, as far as memory allows; of such cuts the one with fewest layers on slow kinds, even within a kind
  (:mod:`planner.models.transformer_mixed_layers`).
- *Replicas.* Two kinds or more, each with whole replicas of equal degrees and the same cut; each kind's replicas do
  their own number of micro-batches, dealt out so that the longest of all ``X + (m - w) x + (w - 1) max(f, b)`` is least
  (:mod:`planner.models.transformer_mixed_batches`; the kind that ends last, but for waits in the schedule).

Of a pipeline with few cuts all are tried (:mod:`planner.families.hybrid.mixed_cuts`), and proven; of longer ones the
cuts of the best settings are improved by moving single layers, which is not proven over all cuts.

Of several kinds each gives three quarters of its devices or more, unless numbers of devices or machines are limited or
pinned; of one kind any number takes part.
Over that grid (:mod:`planner.families.hybrid.mixed_space`) the search is branch and bound (:mod:`planner.solvers.grid`)
with the bounds of :mod:`planner.families.hybrid.mixed_bounds`: what it finds is the optimum, proven, unless stopped.
Every team is bounded by the best layouts of those before it, as many as are asked for. A cut into equal stages on one
kind is an even layout, and left to the search of those. Other cuts and numbers of micro-batches that ``predict``
takes are outside of the domain.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, permutations
from math import comb, factorial, inf

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.configuration import DECIDED
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.least import least_step_s, with_least
from planner.families.hybrid.mixed_bounds import MixedBounds
from planner.families.hybrid.mixed_configuration import MixedConfiguration, MixedReplicas, MixedStage
from planner.families.hybrid.mixed_cost import MixedCost
from planner.families.hybrid.mixed_cuts import cut_columns, has_few_cuts, improved
from planner.families.hybrid.mixed_space import MixedSpace
from planner.models.layouts import Schedule
from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers.grid import Columns, Grid, GridAnswer, Point, solve
from planner.units import Dimension, format_human
from planner.words import percent_words

__all__ = [
    "DOMAIN",
    "OTHER_CUTS",
    "MixedFound",
    "all_cuts_bound_s",
    "cuts_improved",
    "cuts_words",
    "even_improved",
    "mixed_searched",
    "other_cuts_s",
    "searched_team",
    "teams_of",
]

DOMAIN = (
    "stages of unlike layers, and layouts over several kinds of machines: 1F1B without chunks, ZeRO 0 and 1, stages or "
    "whole replicas of each kind, numbered kind by kind, and a fixed batch; of stages all cuts of the layers where "
    "stages x cuts are 2,000 or fewer, else of each setting the cut whose slowest stage is least, improved by moving "
    "single layers in the best settings only (what another cut could save stands under the headline); of whole "
    "replicas that cut, with micro-batches dealt out for the quickest kind, where near numbers add up to the batch; on "
    "several kinds together three quarters of each kind's devices or more (unless numbers are limited)"
)
OTHER_CUTS = "hybrid layouts with other cuts of the layers into stages"  # on one kind of machines
_MOST_AT_ONCE = 400_000
_MOST_KINDS = 4  # in a layout
_MOST_IMPROVED = 4  # settings whose cut is improved
_MOST_SHARES = 16  # of the time that is left: each of many teams is searched for a while, as far as they are come to
_GAIN = 1e-9  # relative; less is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedFound:
    """What the search of a team's grid found."""

    mixed: MixedCost
    answer: GridAnswer
    all_cuts_s: float = inf  # what no cut takes less than, of those also that were not tried; of stages on one kind

    @property
    def cost(self) -> HybridCost:
        """Of the first kind, which says what all share."""
        return self.mixed.costs[0]

    @property
    def rows(self) -> list[tuple[float, Point]]:
        """The best layout and its runners-up, with their seconds."""
        value = self.answer.solution.value
        return [] if value is None else [(self.answer.solution.objective, value), *self.answer.others]

    def name_of(self, point: Point) -> str:
        """Return a layout's degrees in short."""
        chosen = self.configuration(point)
        degrees = [f"{name} {getattr(chosen, name)}" for name in ("tensor", "context", "pipeline", "data", "expert")]
        listed = ", ".join(one for one in degrees if not one.endswith(" 1"))
        if chosen.replicas:
            return f"{listed}, replicas on {' and '.join(chosen.groups)}"
        return f"{listed}, stages on {', then '.join(chosen.groups)}" if chosen.groups else f"{listed}, unlike stages"

    def configuration(self, point: Point) -> MixedConfiguration:
        """Return a layout as a configuration."""
        return configuration_of_point(self.mixed, point)


def teams_of(costs: Sequence[HybridCost]) -> Iterator[MixedCost]:
    """Yield the teams that may train: each kind alone, several in all orders along a pipeline, and their replicas.

    Replicas come before pipelines: they are searched sooner, and their best bounds the others.
    """
    yield from (MixedCost((one,), is_staged=True) for one in costs)
    several = [
        some
        for number in range(2, min(len(costs), _MOST_KINDS) + 1)
        for some in combinations(costs, number)
        if costs[0].problem.cluster.of_groups_is_connected({one.machines for one in some if one.machines is not None})
    ]
    yield from (MixedCost(some, is_staged=False) for some in several)
    yield from (MixedCost(order, is_staged=True) for some in several for order in permutations(some))


def mixed_searched(
    costs: Sequence[HybridCost],
    search: Search,
    known_s: Sequence[float],
    on_found: Callable[[list[MixedFound]], None] = lambda found: None,
) -> list[MixedFound]:
    """Return what the search of every team found, as far as it is the best or one of the runners-up asked for.

    Limits of ``search`` are in seconds of a step, as are the layouts known. Nothing is searched where the batch is
    open, or pins leave nothing. Teams that the time never came to are bounded together, by what their devices compute
    at most. ``on_found`` is called with all that was found so far, after each team that found something.
    """
    if costs[0].problem.training.fixed_batch_size is None:
        return []
    found: list[MixedFound] = []
    is_open: dict[bool, bool] = {}  # pins leave as much to all pipelines, and to all replicas
    number, rows = max(search.num_alternatives, 0), sorted(known_s)
    left = _num_teams(len(costs))
    for team in teams_of(costs):
        left -= 1
        if team.is_staged not in is_open:
            is_open[team.is_staged] = MixedSpace(team).is_open
        if not is_open[team.is_staged]:
            continue
        if search.is_over:
            fastest = sorted(costs, key=lambda one: least_step_s([one]))[:_MOST_KINDS]
            return [*found, MixedFound(mixed=team, answer=_nothing(least_step_s(fastest)))]
        worst_s = [*rows, *[inf] * (1 + number)][number]
        share_s = search.left_s / min(left + 1, _MOST_SHARES)
        part = search.part(share_s, cutoff=min([search.cutoff, worst_s]))
        bounds = MixedBounds(team)
        one = cuts_improved(MixedFound(mixed=team, answer=searched_team(bounds, part, is_strict=bool(rows))), part)
        if len(team.costs) == 1 and search.good_enough < inf:
            least_s = min([*rows[:1], *(seconds for seconds, _ in one.rows), search.cutoff])
            one = replace(one, all_cuts_s=all_cuts_bound_s(bounds, least_s, search))
        found.append(one)
        if one.rows:
            rows = sorted([*rows, *(seconds for seconds, _ in one.rows)])
            on_found(found)
    return found


def _num_teams(kinds: int) -> int:
    """Return how many teams there are at most."""
    sizes = range(2, min(kinds, _MOST_KINDS) + 1)
    return kinds + sum(comb(kinds, size) * (1 + factorial(size)) for size in sizes)


def _nothing(bound_s: float) -> GridAnswer:
    """Return the answer of a search that found nothing, and knows no more than a bound."""
    none: Solution[Point] = Solution(status=Status.UNKNOWN, objective=inf, bound=bound_s, value=None)
    return GridAnswer(solution=none, others=(), num_points=0, num_evaluated=0, is_counted=False)


def searched_team(
    bounds: MixedBounds, search: Search, *, uses_bounds: bool = True, is_strict: bool = False
) -> GridAnswer:
    """Return the best layouts of a team's grid, whose bounds may be left unused; strict: none above the cutoff."""
    bounds = replace(bounds, search=search)
    space = bounds.space
    grid, seconds = _grid_of(bounds, uses_bounds=uses_bounds)
    answer = solve(
        grid,
        seconds,
        search,
        num_answers=1 + max(search.num_alternatives, 0),
        group_by=tuple(name for name in (*space.coarse, *space.part_names) if name != "microbatch"),
        uses_bounds=uses_bounds,
        most_at_once=_MOST_AT_ONCE,
        is_strict=is_strict,
        maker=partial(_made_grid, _bare(bounds.cost)),
    )
    return with_least(answer, least_step_s(bounds.cost.costs))


def _grid_of(bounds: MixedBounds, *, uses_bounds: bool = True) -> tuple[Grid, Callable[[Columns], Floats]]:
    """Return a team's grid and the seconds of its points."""
    return bounds.space.grid(bounds.all if uses_bounds else None), bounds.seconds


def _made_grid(mixed: MixedCost) -> tuple[Grid, Callable[[Columns], Floats]]:
    """Return the grid of a team as another process makes it."""
    return _grid_of(MixedBounds(mixed))


def _bare(mixed: MixedCost) -> MixedCost:
    """Return a cost without all that it has worked out so far, to travel."""
    return replace(mixed, costs=tuple(replace(one) for one in mixed.costs))


def all_cuts_bound_s(bounds: MixedBounds, least_s: float, search: Search) -> float:
    """Return what no cut that was not tried takes less than, of settings with many cuts; at most ``least_s``.

    The bounds of a team down to its links count no cut: see :mod:`planner.families.hybrid.mixed_bounds`.
    """
    bounds = replace(bounds, search=search)
    grid, layers = bounds.space.grid(bounds.all), bounds.cost.transformer.num_layers
    is_few = np.array([has_few_cuts(layers, stages) for stages in range(layers + 1)])

    def seconds(nodes: Columns) -> Floats:
        stages = sum((nodes[name] for name in bounds.space.part_names), np.zeros(1, dtype=np.int64))
        return np.where(is_few[stages] | np.isinf(bounds.fits(nodes)), inf, bounds.exchange_s(nodes))

    last = bounds.all.index(bounds.best_path_s)  # the level before is the last whose bound knows no cut
    known = replace(grid, levels=grid.levels[:last])
    part = search.part(search.left_s, good_enough=-inf, cutoff=least_s, num_alternatives=0)
    found_s = solve(known, seconds, part, is_strict=True).solution.bound
    return min(max(found_s, least_step_s(bounds.cost.costs)), least_s)


# -- near cuts ---------------------------------------------------------------------------------------------------------


def cuts_improved(found: MixedFound, search: Search) -> MixedFound:
    """Return what a search found with the cuts of its best settings improved, where not all cuts were tried."""
    rows, asked, mixed = found.rows, 0, found.mixed
    if not mixed.is_staged or search.good_enough == inf:
        return found
    for index, (seconds, point) in enumerate(rows[:_MOST_IMPROVED]):
        if not search.is_over:
            better_s, better, number = _near(mixed, point, seconds, search)
            asked += number
            if better_s < seconds * (1 - _GAIN):
                rows[index] = (better_s, better)
    rows.sort(key=lambda row: row[0])
    return replace(found, answer=_with_rows(found.answer, rows, asked)) if asked else found


def even_improved(
    cost: HybridCost, rows: Sequence[tuple[float, Point]], best_s: float, search: Search
) -> MixedFound | None:
    """Return the best cut near the even ones of one kind's best layouts; None where none is better than all known."""
    mixed = MixedCost((cost,), is_staged=True)
    bounds = MixedBounds(mixed)
    is_open = cost.problem.training.fixed_batch_size is not None and bounds.space.is_open
    if search.is_over or search.good_enough == inf or not is_open:
        return None
    found: tuple[float, Point] | None = None
    total = 0
    for seconds, row in rows[:_MOST_IMPROVED]:
        if search.is_over or row["pipeline"] == 1 or row["is_offloaded"]:
            continue
        point = {name: row[name] for name in bounds.space.axes if name in row} | {"stages_0": row["pipeline"]}
        columns = {name: np.array([value]) for name, value in point.items()}
        if bounds.exchange_s(columns)[0] >= best_s * (1 - _GAIN):
            continue
        is_plain = row["interleave"] == 1 and row["schedule"] == Schedule.ONE_F_ONE_B
        better_s, better, asked = _near(mixed, point, seconds if is_plain else inf, search)
        total += asked
        if better is not point and better_s < best_s * (1 - _GAIN):
            best_s, found = better_s, (better_s, better)
    if found is None:
        return None
    return MixedFound(mixed=mixed, answer=_with_rows(replace(_nothing(inf), is_counted=True), [found], total))


def _near(mixed: MixedCost, point: Point, seconds: float, search: Search) -> tuple[float, Point, int]:
    """Return the seconds of the best cut found near a setting's, the layout, and how many cuts were evaluated."""
    columns = {name: np.array([value]) for name, value in point.items()}
    stages = int(mixed.parts_of(columns).sum())
    if stages == 1 or has_few_cuts(mixed.transformer.num_layers, stages):
        return seconds, point, 0
    layers = mixed.chosen(columns).layers[:stages, 0]
    number = mixed.batch // (point["data"] * point["microbatch"])
    better_s, cut, asked = improved(point, layers, number, mixed.bound_s, mixed.seconds, search, seconds)
    if (cut == layers).all():
        return seconds, point, asked
    return better_s, {**point, **{name: int(row[0]) for name, row in cut_columns(cut[:, None]).items()}}, asked


def _with_rows(answer: GridAnswer, rows: Sequence[tuple[float, Point]], asked: int) -> GridAnswer:
    """Return an answer with other rows; a cut that was improved may be better than all that the bound is of."""
    objective, value = rows[0]
    bound = min(answer.solution.bound, objective)
    status = Status.OPTIMAL if objective <= bound else Status.FEASIBLE
    return replace(
        answer,
        solution=Solution(status=status, objective=objective, bound=bound, value=value),
        others=tuple(rows[1:]),
        num_points=answer.num_points + asked,
        num_evaluated=answer.num_evaluated + asked,
    )


def other_cuts_s(found: Sequence[object], bound_s: float) -> float:
    """Return what no cut of the layers into stages on one kind takes less than; ``inf`` where no layout has stages.

    ``bound_s`` is of the cuts that were tried.
    """
    known = [one.all_cuts_s for one in found if isinstance(one, MixedFound) and one.all_cuts_s < inf]
    return min([*known, bound_s]) if known else inf


def cuts_words(least_s: float, best_s: float) -> list[str]:
    """Return what is known of cuts that were not tried, which take ``least_s`` or more."""
    if least_s == inf:
        return []
    if least_s >= best_s * (1 - _GAIN):
        return [f"{OTHER_CUTS}, also those not tried: proven not to be faster"]
    named, share = format_human(least_s, Dimension.TIME), percent_words(1 - least_s / best_s)
    return [f"{OTHER_CUTS}: none takes less than {named} (at most {share} faster); `planner predict` tells of one"]


def configuration_of_point(mixed: MixedCost, point: Point) -> MixedConfiguration:
    """Return a layout of a team's grid as a configuration, layers and micro-batches dealt out."""
    columns = {name: np.array([value]) for name, value in point.items()}
    chosen, numbers = mixed.finished(columns)
    layers = chosen.layers[:, 0].tolist()
    layouts = chosen.step.layouts
    known = {"interleave": 1, "schedule": int(Schedule.ONE_F_ONE_B), "is_offloaded": 0}
    arrays = layouts.arrays()
    codes = {name: known.get(name, int(np.broadcast_to(arrays[name], 1)[0])) for name in DECIDED}
    kinds = chosen.step.classes[0].kinds[:, 0].tolist()
    names = [mixed.names[kind] if mixed.is_staged else None for kind in kinds]
    stages = [MixedStage(layers=count, machines=name) for count, name in zip(layers, names, strict=True)]
    replicas = []
    if numbers is not None:
        parts = mixed.parts_of(columns)[:, 0].tolist()
        replicas = [
            MixedReplicas(machines=str(name), data=data, num_microbatches=number)
            for name, data, number in zip(mixed.names, parts, numbers[:, 0].tolist(), strict=True)
        ]
    return MixedConfiguration.mixed(codes, batch=mixed.batch, stages=stages, replicas=replicas)
