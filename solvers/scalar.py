"""One number that costs more in one respect and less in another: minimised by interval branch and bound, with a proof.

Given
    ``low <= high``, and on ``[low, high]`` a function ``rising`` that never decreases and one, ``falling``, that never
    increases; either may be ``inf``, jump, or be flat. Nothing else is asked of them: neither continuous nor convex,
    and their sum may have many local minima.
Variable
    ``x``, a floating-point number in ``[low, high]``.
Objective
    minimise ``f(x) = rising(x) + falling(x)``.
Bound
    On ``[a, b]``, ``f(x) >= rising(a) + falling(b)``: the one is not yet higher at its left end, the other not yet
    lower at its right. Halving an interval never lowers the bound of a half, and where no number lies strictly
    between a and b, both of which were evaluated, nothing is left to prove.
Search
    The interval of the least bound is halved next (best first); that bound, or the incumbent where it is less, is a
    bound on the whole. A sum of monotone functions of opposite directions is the one-dimensional case of H. Tuy,
    Monotonic optimization, SIAM J. Optimization 11(2), 2000, doi:10.1137/S1052623499359828.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.frozen import frozen
from planner.search import Search
from planner.solution import Solution, Status

_ROUNDING = 1e-9  # relative: what a monotone function may lose in floating point


@frozen(kw_only=False)
class _Point:
    """A number that was tried."""

    x: float
    rising: float
    falling: float

    @property
    def objective(self) -> float:
        return self.rising + self.falling


def minimise(
    rising: Callable[[float], float],
    falling: Callable[[float], float],
    low: float,
    high: float,
    *,
    tolerance: float = 1e-6,
    search: Search | None = None,
    most_evaluations: int = 20_000,
) -> Solution[float]:
    """Return the number in ``[low, high]`` that minimises ``rising(x) + falling(x)``, and a proven bound.

    Parameters
    ----------
    rising, falling
        Never decreasing and never increasing on ``[low, high]``; ``inf`` where x is not possible.
    low, high
        Finite, ``low <= high``.
    tolerance
        Relative gap at which the answer counts as proven, >= 0.
    search
        Its limits: when it is over, or its ``good_enough`` is reached, the best so far is the answer.
    most_evaluations
        How many numbers are tried at most, a limit that is repeatable.

    Returns
    -------
    Solution
        OPTIMAL where the gap is within ``tolerance``, else FEASIBLE; INFEASIBLE where the sum is proven to be ``inf``
        everywhere, UNKNOWN where a limit struck before a finite sum was met. Of equal objectives the least x.

    Raises
    ------
    ValueError
        If the interval, tolerance or limit is out of range, a value is nan or -inf, or two values contradict that a
        function is monotone: then nothing would be proven.

    Notes
    -----
    Near a smooth minimum about ``1 / sqrt(tolerance)`` numbers are tried: some 300 at 1e-4, 3,000 at 1e-6. Where the
    sum is flat while both functions are steep, ``1 / tolerance``: then `most_evaluations` strikes, and the bound says
    what is left open.

    >>> found = minimise(lambda x: x, lambda x: 0.032 / x**2 if x else float("inf"), 0, 1)
    >>> found.status.value, round(found.value, 2), found.gap <= 1e-6
    ('optimal', 0.4, True)
    """
    _check(low, high, tolerance, most_evaluations)
    tree = _Tree(rising, falling, tolerance)
    tree.start(float(low), float(high))
    search = search or Search()
    while not tree.is_proven and tree.num_evaluated < most_evaluations:
        if search.is_over or tree.best.objective <= search.good_enough:
            break
        tree.halve()
    return tree.solution()


@dataclass(slots=True)
class _Tree:
    """The intervals that may still hold something better, the least bound first, and the incumbent."""

    rising: Callable[[float], float]
    falling: Callable[[float], float]
    tolerance: float
    num_evaluated: int = 0
    best: _Point = field(default_factory=lambda: _Point(math.inf, math.inf, math.inf))
    intervals: list[tuple[float, float, _Point, _Point]] = field(default_factory=list)  # bound, a, and both ends

    @property
    def bound(self) -> float:
        """No number has a smaller sum; the incumbent's own one where no interval is below it."""
        return min(self.intervals[0][0], self.best.objective) if self.intervals else self.best.objective

    @property
    def is_proven(self) -> bool:
        best, bound = self.best.objective, self.bound
        return best <= bound or (math.isfinite(best) and best - bound <= self.tolerance * abs(best))

    def start(self, low: float, high: float) -> None:
        first = self.evaluate(low)
        self.add(first, first if low == high else self.evaluate(high))

    def evaluate(self, x: float) -> _Point:
        """Return the sum at a number, which becomes the incumbent if it is better."""
        point = _Point(x, float(self.rising(x)), float(self.falling(x)))
        for name, value in (("rising", point.rising), ("falling", point.falling)):
            if not value > -math.inf:
                raise ValueError(f"{name}({x:.17g}) is {value}. It must be a number above -inf; inf is allowed.")
        self.num_evaluated += 1
        self.best = min(self.best, point, key=lambda one: (one.objective, one.x))
        return point

    def add(self, left: _Point, right: _Point) -> None:
        """Keep an interval, unless it holds nothing better than the incumbent."""
        _check_monotone(left, right)
        if (bound := left.rising + right.falling) < self.best.objective:
            heapq.heappush(self.intervals, (bound, left.x, left, right))

    def halve(self) -> None:
        """Try the middle of the least interval; it is done with if no number is left in it."""
        _, _, left, right = heapq.heappop(self.intervals)
        middle = left.x + (right.x - left.x) / 2
        if left.x < middle < right.x:
            point = self.evaluate(middle)
            self.add(left, point)
            self.add(point, right)

    def solution(self) -> Solution[float]:
        """Return the incumbent and what was proven."""
        best = self.best.objective
        if math.isinf(best):
            status = Status.UNKNOWN if self.intervals else Status.INFEASIBLE
            return Solution(status=status, objective=best, bound=self.bound, value=None)
        status = Status.OPTIMAL if self.is_proven else Status.FEASIBLE
        return Solution(status=status, objective=best, bound=self.bound, value=self.best.x)


def _check(low: float, high: float, tolerance: float, most_evaluations: int) -> None:
    """Raise ValueError unless there is an interval, and a limit that lets its ends be tried."""
    if not (math.isfinite(high - low) and low <= high):
        raise ValueError(f"the interval [{low}, {high}] must be finite, with low <= high.")
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance is {tolerance}. It must be finite and >= 0.")
    if most_evaluations < 2:
        raise ValueError(f"most_evaluations is {most_evaluations}. The ends alone take 2.")


def _check_monotone(left: _Point, right: _Point) -> None:
    """Raise ValueError where the bound would be none."""
    for name, verb, before, after, sign in (
        ("rising", "decreases", left.rising, right.rising, 1),
        ("falling", "increases", left.falling, right.falling, -1),
    ):
        lost = sign * (before - after) if before != after else 0.0
        if lost > _ROUNDING * (abs(before) if math.isfinite(before) else 0.0):
            between = f"from {before:g} at {left.x:g} to {after:g} at {right.x:g}"
            raise ValueError(f"{name} {verb} {between}: it must be monotone, or nothing is proven.")
