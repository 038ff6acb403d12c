"""What a search of the family ``hybrid`` found: rows of seconds and layouts, and layouts as configurations."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from planner.decisions import LAYOUT
from planner.families.hybrid.configuration import CODES_OF_CUTS, HybridConfiguration, PipelineStage, ReplicaGroup
from planner.families.hybrid.cost import HybridCost
from planner.frozen import frozen
from planner.solution import Solution, Status
from planner.solvers.grid import GridAnswer, Point

GAIN = 1e-9  # relative; less is rounding
LAYERS = "layers_"  # of a column: a stage's or a chunk's


@frozen
class Found:
    """What the search of one placement found.

    Attributes
    ----------
    all_cuts_s
        What no cut takes less than, of those also that were not tried; of stages on one group.
    """

    cost: HybridCost
    answer: GridAnswer
    all_cuts_s: float = inf

    @property
    def rows(self) -> list[tuple[float, Point]]:
        """The best layout and its runners-up, with their seconds."""
        value = self.answer.solution.value
        return [] if value is None else [(self.answer.solution.objective, value), *self.answer.others]

    def name_of(self, point: Point) -> str:
        """Return a layout's degrees in short."""
        chosen = configuration_of_point(self.cost, point)
        if chosen.replicas:
            return f"{chosen.degree_words}, replicas on {' and '.join(chosen.groups)}"
        if not chosen.is_even:
            where = f"stages on {', then '.join(chosen.groups)}" if chosen.groups else "unlike stages"
            return f"{chosen.degree_words}, {where}"
        return " on ".join([chosen.degree_words or "one device", *chosen.groups])


def configuration_of_point(cost: HybridCost, point: Point) -> HybridConfiguration:
    """Return a point of a grid as a configuration, with layers and micro-batches shared out."""
    if cost.is_even:
        name, cut = cost.first.machines, [point[name] for name in point if name.startswith(LAYERS)]
        cut = cut or [*(cost.first.cut or ())]
        stages = [PipelineStage(layers=layers, machines=name) for layers in cut]
        return HybridConfiguration.of(point, batch=cost.batch, machines=None if cut else name, stages=stages)
    columns = {name: np.array([value]) for name, value in point.items()}
    chosen = cost.finished(columns)
    arrays = chosen.step.layouts.arrays()
    codes = {name: int(np.broadcast_to(arrays[name], 1)[0]) for name in LAYOUT} | CODES_OF_CUTS
    on = chosen.step.classes[0].groups[:, 0].tolist()
    stages = [
        PipelineStage(layers=layers, machines=None if cost.has_replicas else cost.names[group])
        for layers, group in zip(chosen.step.layers[:, 0].tolist(), on, strict=True)
    ]
    replicas = []
    if chosen.numbers is not None:
        rows = zip(cost.names, cost.parts_of(columns)[:, 0].tolist(), chosen.numbers[:, 0].tolist(), strict=True)
        replicas = [ReplicaGroup(machines=str(name), data=data, num_microbatches=count) for name, data, count in rows]
    return HybridConfiguration.of(codes, batch=cost.batch, stages=stages, replicas=replicas)


def nothing(bound_s: float, *, is_counted: bool = False) -> GridAnswer:
    """Return the answer of a search that found nothing, and knows no more than a bound."""
    none: Solution[Point] = Solution(status=Status.UNKNOWN, objective=inf, bound=bound_s, value=None)
    return GridAnswer(solution=none, others=(), num_points=0, num_evaluated=0, is_counted=is_counted)


def with_rows(answer: GridAnswer, rows: Sequence[tuple[float, Point]], asked: int) -> GridAnswer:
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
