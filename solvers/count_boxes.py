"""Best counts by few calls of an expensive monotone oracle: branch and bound over boxes, one criterion or the front.

Sets and data
    Roots ``r``, each with at most ``K`` counts ``n`` in the box ``1 .. most_r``. An oracle ``t(r, n) >= 0``, infinite
    where nothing is possible, that never grows with a count; a call at ``n`` returns ``b <= t(r, n) <= v`` and counts
    ``u <= n`` that reach ``v``, too. Criteria ``c_1 .. c_m (r, n, t) >= 0`` that fall neither with a count nor with
    ``t``. Limits on all of them; a condition on ``(r, n)``.
Variables
    ``r`` and ``n``.
Objective
    :func:`best_counts`: minimise ``c_1(r, n, t(r, n))``. :func:`best_trade_offs`: all pairs ``(c_1, c_2)`` that no
    other one dominates.
Constraints
    ``c_j(r, n, t(r, n)) <= limit_j`` for every ``j``, and the condition.
Bound of a box ``[low, high]``
    ``c(r, low, L(high))``, where ``L(high)`` is the largest ``b`` of all calls at ``n >= high``; and the caller's
    floor where that is higher. A box is cut where the bound breaks a limit, is no less than the incumbent, or is
    weakly dominated by a point of the front.
Search
    The box comes first whose bound is least, or which could beat the front by the largest factor; roots know only
    their floors at first. A box is tightened: slices at its ends that are cut for themselves come off. With one side
    that makes the fewest calls that can prove an incumbent, since a call at ``high`` takes off all that it can. All
    points of a box that one call's ``u`` and ``n`` enclose have the same ``t``, of which the least corner is the best.
    Calls are made where readings so far, put together by powers of the size, let one expect the best improvement, and
    at ``high``; a box of several sides is split instead where the call would take little off. A call may end as soon
    as its bound cuts the whole box.
Proves
    The bound: nothing that was left, cut or not come to, has less. Where ``b < v``, what is between them is left: the
    answer is then feasible, and the gap is the oracle's. The number of calls may be limited, which is repeatable; time
    is a guard. Of answers that are equal in ``c_1`` the one that is found first stays, unless another one is less in
    the next criteria.
Complexity
    Without a floor a proof of gap ``g`` of one root takes a call for each factor ``1 + g`` by which its counts can
    change with ``c_1`` still near the optimum. Roots that a floor cuts take no call, those that one call cuts take one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers.count_ahead import Ahead
from planner.solvers.count_aims import Candidate, Front, Least
from planner.solvers.count_question import Ints, Question, Reading
from planner.solvers.count_walk import Walk

__all__ = ["BestCounts", "Bounded", "Candidate", "Question", "Reading", "TradeOffs", "best_counts", "best_trade_offs"]

_TOLERANCE = 1e-9
_PROBES = 12  # of a root: calls at points that are expected to be better than the incumbent
_MANY = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A point, and a bound of each of its criteria at its counts: below ``point.criteria`` where ``t`` is not proven.

    Of a runner-up, the first one is instead a bound of all points of its root.
    """

    point: Candidate
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCounts:
    """The outcome of :func:`best_counts`.

    Attributes
    ----------
    solution
        The best point, its first criterion, what none beats, and whether that is proven.
    others
        The best points that were found of other roots, in their order; not proven to be their roots' best.
    num_calls, num_boxes
        Calls of the oracle; boxes that were bounded.
    """

    solution: Solution[Candidate]
    others: tuple[Bounded, ...]
    num_calls: int
    num_boxes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOffs:
    """The outcome of :func:`best_trade_offs`.

    Attributes
    ----------
    status
        OPTIMAL: the front is proven. FEASIBLE: something might beat it, by ``gap`` at most.
    points
        In the order of the first criterion.
    gap
        Every point there is, times one more than this, is weakly dominated by one of ``points``; ``inf`` without any.
    left
        The pairs of criteria below which nothing was ruled out, as far as they beat the front.
    """

    status: Status
    points: tuple[Bounded, ...]
    gap: float
    left: tuple[tuple[float, float], ...]
    num_calls: int
    num_boxes: int


def best_counts(
    question: Question,
    search: Search,
    *,
    tolerance: float = _TOLERANCE,
    most_calls: int = _MANY,
    told: Callable[[float, Candidate | None, int], None] | None = None,
) -> BestCounts:
    """Return the point of the least first criterion.

    Parameters
    ----------
    tolerance
        Relative gap at which the search ends.
    most_calls
        Of the oracle; a limit that is the same on every machine.
    told
        Called after every call of the oracle, with the bound, the incumbent and the number of calls so far.
    """
    aim = Least(np.asarray(question.limits, dtype=np.float64), search, tolerance)

    def tell(walk: Walk) -> None:
        if told is not None:
            told(min(walk.open_key, aim.left, aim.objective), aim.best, walk.num_calls)

    walk = Walk(question, aim, search, most_calls, _PROBES, tell, _ahead(question))
    walk.run()
    objective, bound = aim.objective, min(aim.left, aim.objective)
    if aim.best is None:
        status = Status.INFEASIBLE if bound == inf else Status.UNKNOWN
    else:
        status = Status.OPTIMAL if objective - bound <= tolerance * objective else Status.FEASIBLE
    others = sorted((one for one in walk.best_of.values() if one is not aim.best), key=lambda one: one.order)
    return BestCounts(
        solution=Solution(status=status, objective=objective, bound=bound, value=aim.best),
        others=tuple(
            Bounded(point=one, bounds=(min(one.criteria[0], float(walk.left_of[one.root])), *_bounds(walk, one)[1:]))
            for one in others
            if aim.best is None or one.root != aim.best.root
        ),
        num_calls=walk.num_calls,
        num_boxes=walk.num_boxes,
    )


def best_trade_offs(
    question: Question,
    search: Search,
    *,
    tolerance: float = _TOLERANCE,
    most_calls: int = _MANY,
    told: Callable[[int, int], None] | None = None,
) -> TradeOffs:
    """Return all points that nobody beats in the first two criteria.

    Parameters
    ----------
    tolerance
        Factor, less 1, by which a pair must beat all others to be looked for.
    told
        Called after every call of the oracle, with the numbers of points on the front and of calls so far.
    """
    aim = Front(np.asarray(question.limits, dtype=np.float64), search, tolerance)

    def tell(walk: Walk) -> None:
        if told is not None:
            told(len(aim.archive), walk.num_calls)

    walk = Walk(question, aim, search, most_calls, _MANY, tell, _ahead(question))
    walk.run()
    left = aim.left
    gap = aim.factor - 1 if aim.archive else inf
    if aim.archive:
        status = Status.OPTIMAL if aim.factor <= 1 + tolerance else Status.FEASIBLE
    else:
        status = Status.UNKNOWN if len(left) else Status.INFEASIBLE
    return TradeOffs(
        status=status,
        points=tuple(Bounded(point=one, bounds=_bounds(walk, one)) for one in aim.archive),
        gap=gap,
        left=tuple((float(first), float(second)) for first, second in left),
        num_calls=walk.num_calls,
        num_boxes=walk.num_boxes,
    )


def _ahead(question: Question) -> Ahead | None:
    """Return who looks ahead, where anybody may begin calls before they are due."""
    return None if question.known is None else Ahead(question.known)


def _bounds(walk: Walk, point: Candidate) -> tuple[float, ...]:
    """Return what each criterion of a point is at least, at its counts."""
    counts: Ints = np.zeros((1, walk.question.most.shape[1]), dtype=np.int64)
    counts[0, : len(point.counts)] = point.counts
    seconds = walk.readings[point.root].least(counts)
    found = np.asarray(walk.question.criteria(np.array([point.root]), counts, seconds))[0]
    return tuple(float(min(one, value)) for one, value in zip(found, point.criteria, strict=True))
