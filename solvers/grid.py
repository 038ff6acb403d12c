"""Best points of a grid: a product of axes under rules, searched by branch and bound on whole arrays.

Sets. Axes ``a`` with values ``V_a``, in levels ``0 .. n`` (coarse to fine). Rules ``r``: a condition on the values of
some axes. The grid ``G``: all points of the product of the ``V_a`` that keep every rule. A *node* of level ``l`` is a
choice of values for the axes of the levels up to ``l`` that keeps the rules on them; on the last level it is a point.

Variables. One point ``x`` of ``G``.

Objective. ``min cost(x)``, infinite where a point is not allowed. ``bound_l(node)``: no point below the node costs
less; infinite where none is allowed.

Search. Nodes of a level are looked at in the order of their bounds, in chunks, each of which is expanded to the next
level at once; a chunk's nodes are dealt with before the next chunk. A node is dropped where its bound is above the
incumbent (or the k-th best, where k answers are wanted). What is left at the end is proven to be the optimum, whatever
the bounds, so long as they are true. Memory is that of a few chunks, of at most about ``MOST_AT_ONCE`` nodes each.

Who helps. Where the search has a crew, and the grid can be made again elsewhere, one walk works alone for a while; what
it leaves is shared out (:mod:`planner.solvers.grid_split`). The answer is the same.

Runners-up are the best points of other *groups*: points that agree in some axes are one group, of which the best
counts. Of equal costs the point counts that comes first in the grid's own order.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from planner.cost import Floats
from planner.crew import Origin
from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers.grid_axes import Axis, Columns, Grid, Level, OverError, Point, Rule, distinct
from planner.solvers.grid_split import GridMaker, Shares, share_out
from planner.solvers.grid_walk import MOST_AT_ONCE, Best, Walk

__all__ = [
    "MOST_AT_ONCE",
    "Axis",
    "Columns",
    "Grid",
    "GridAnswer",
    "GridMaker",
    "Level",
    "OverError",
    "Point",
    "Rule",
    "distinct",
    "solve",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridAnswer:
    """What a search of a grid found.

    Attributes
    ----------
    solution
        The best point, its cost, what no point beats, and whether that is proven.
    others
        The best points of the next groups with their costs, in order.
    num_points, num_evaluated
        Points of the grid, and those whose cost was asked for.
    is_counted
        Whether the points of the grid were counted; where not, since they are too many or the time was over,
        ``num_points`` are those whose cost was asked for.
    """

    solution: Solution[Point]
    others: tuple[tuple[float, Point], ...]
    num_points: int
    num_evaluated: int
    is_counted: bool = True

    @property
    def num_pruned(self) -> int:
        """Points that bounds ruled out, or that were not come to."""
        return self.num_points - self.num_evaluated


def solve(
    grid: Grid,
    cost: Callable[[Columns], Floats],
    search: Search,
    *,
    num_answers: int = 1,
    group_by: Sequence[str] = (),
    uses_bounds: bool = True,
    most_at_once: int = MOST_AT_ONCE,
    is_strict: bool = False,
    maker: GridMaker | None = None,
) -> GridAnswer:
    """Return the best point of a grid and the next ones.

    Parameters
    ----------
    cost
        Of points: one number each; infinite for what is not allowed. Where it takes long it asks whether the search is
        over, as bounds do, and raises :class:`OverError`.
    num_answers
        The best point and runners-up in all; bounds are held against the last of them.
    group_by
        Axes in which two answers must differ; by default they must be different points.
    uses_bounds
        Without, every point is evaluated: slow, and the same answer.
    is_strict
        Whether points that cost more than the search's cutoff are not wanted at all, so that there may be no answer.
        Else the cutoff counts only once there is one.
    maker
        Makes the same grid and cost elsewhere. A search for the first answer that is good enough, or of counted work,
        is not shared out: what it finds depends on the order.
    """
    names = tuple(group_by) or tuple(axis.name for axis in grid.axes)
    shares = Shares(names=names, number=max(num_answers, 1), most_at_once=most_at_once)
    best_of = Best(grid=grid, names=names, number=shares.number)
    walk = Walk(grid, cost, search, best_of, uses_bounds, most_at_once, is_strict)
    is_counted = search.questions_left is not None or search.good_enough > -inf
    crew = search.crew if uses_bounds and not is_counted else None
    origin = None if crew is None or maker is None else Origin.of(maker)
    counted: list[int | None] = []
    if crew is None or origin is None:
        walk.from_root()
    else:
        end_s = time.thread_time() + crew.alone_s
        # Until there is an answer, a cutoff that is not strict does not count, and what is found depends on the order.
        walk.is_full = lambda walk: (
            time.thread_time() >= end_s and (is_strict or search.cutoff == inf or bool(walk.best.rows))
        )
        walk.from_root()
        if walk.rest and not search.is_over:
            share_out(walk, shares, origin, crew, search, meanwhile=lambda: counted.append(grid.count()))
    best = walk.best.rows
    objective = best[0].cost if best else inf
    bound = min(walk.open_bound, objective)
    if (best or is_strict) and uses_bounds and search.cutoff < objective:
        bound = min(bound, search.cutoff)  # what costs more was passed over
    solution: Solution[Point] = Solution(
        status=_status(bool(best), objective, bound),
        objective=objective,
        bound=bound,
        value=best[0].point if best else None,
    )
    if not counted:
        counted.append(None if search.is_over else grid.count())
    return GridAnswer(
        solution=solution,
        others=tuple((row.cost, row.point) for row in best[1:]),
        num_points=walk.num_evaluated if counted[0] is None else counted[0],
        num_evaluated=walk.num_evaluated,
        is_counted=counted[0] is not None,
    )


def _status(is_found: bool, objective: float, bound: float) -> Status:
    """Return what an answer and a bound prove."""
    if is_found:
        return Status.OPTIMAL if objective <= bound else Status.FEASIBLE
    return Status.INFEASIBLE if bound == inf else Status.UNKNOWN
