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

Each kind gives three quarters of its devices or more, unless numbers of devices or machines are limited or pinned.
Over that grid (:mod:`planner.families.hybrid_mixed_space`) the search is branch and bound (:mod:`planner.solvers.grid`)
with the bounds of :mod:`planner.families.hybrid_mixed_bounds`: what it finds is the optimum, proven, unless stopped.
Every team is bounded by the best layouts of those before it, as many as are asked for. A cut into equal stages on one
kind is an even layout, and left to the search of those. Other cuts and numbers of micro-batches that ``predict``
takes are outside of the domain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import inf

import numpy as np

from planner.families.hybrid_configuration import DECIDED
from planner.families.hybrid_cost import HybridCost
from planner.families.hybrid_mixed_bounds import MixedBounds
from planner.families.hybrid_mixed_configuration import MixedConfiguration, MixedReplicas, MixedStage
from planner.families.hybrid_mixed_cost import MixedCost
from planner.models.layouts import Schedule
from planner.search import Search
from planner.solvers.grid import GridAnswer, Point, solve

__all__ = ["DOMAIN", "MixedFound", "mixed_searched", "searched_team", "teams_of"]

DOMAIN = (
    "stages of unlike layers, and layouts over several kinds of machines: 1F1B without chunks, ZeRO 0 and 1, stages or "
    "whole replicas of each kind, numbered kind by kind, layers and micro-batches dealt out for the quickest slowest "
    "stage and kind, three quarters of each kind's devices or more (unless numbers are limited), and a fixed batch"
)
_MOST_AT_ONCE = 400_000
_MOST_KINDS = 4  # in a layout


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedFound:
    """What the search of a team's grid found."""

    mixed: MixedCost
    answer: GridAnswer

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


def teams_of(costs: Sequence[HybridCost]) -> list[MixedCost]:
    """Return the teams that may train: each kind alone, several in all orders along a pipeline, and their replicas.

    Replicas come before pipelines: they are searched sooner, and their best bounds the others.
    """
    found, replicas = [MixedCost((one,), is_staged=True) for one in costs], []
    for number in range(2, min(len(costs), _MOST_KINDS) + 1):
        for some in combinations(costs, number):
            names = {one.machines for one in some if one.machines is not None}
            if costs[0].problem.cluster.of_groups_is_connected(names):
                replicas.append(MixedCost(some, is_staged=False))
                found += [MixedCost(order, is_staged=True) for order in permutations(some)]
    alone = len(costs)
    return [*found[:alone], *replicas, *found[alone:]]


def mixed_searched(costs: Sequence[HybridCost], search: Search, known_s: Sequence[float]) -> list[MixedFound]:
    """Return what the search of every team found, as far as it is the best or one of the runners-up asked for.

    Limits of ``search`` are in seconds of a step, as are the layouts known. Nothing is searched where the batch is
    open, or pins leave nothing.
    """
    if costs[0].problem.training.fixed_batch_size is None:
        return []
    teams = [MixedBounds(one) for one in teams_of(costs)]
    teams = [one for one in teams if one.space.is_open]
    found: list[MixedFound] = []
    for index, bounds in enumerate(teams):
        rows = sorted([*known_s, *(seconds for one in found for seconds, _ in one.rows)])
        worst_s = [*rows, *[inf] * (1 + search.num_alternatives)][max(search.num_alternatives, 0)]
        part = search.part(search.left_s / (len(teams) - index), cutoff=min([search.cutoff, worst_s]))
        answer = searched_team(bounds, part, is_strict=bool(rows))
        found.append(MixedFound(mixed=bounds.cost, answer=answer))
    return found


def searched_team(
    bounds: MixedBounds, search: Search, *, uses_bounds: bool = True, is_strict: bool = False
) -> GridAnswer:
    """Return the best layouts of a team's grid, whose bounds may be left unused; strict: none above the cutoff."""
    space = bounds.space
    return solve(
        space.grid(bounds.all if uses_bounds else None),
        bounds.seconds,
        search,
        num_answers=1 + max(search.num_alternatives, 0),
        group_by=tuple(name for name in (*space.coarse, *space.part_names) if name != "microbatch"),
        uses_bounds=uses_bounds,
        most_at_once=_MOST_AT_ONCE,
        is_strict=is_strict,
    )


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
