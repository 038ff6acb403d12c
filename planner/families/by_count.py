"""What no plan takes less than, by the number of machines that it uses: one search for all numbers at once.

A purchase asks for the best of many numbers of machines. Planning each on its own repeats nearly the same search; here
a family's search runs once over all of them, and looks for the plan that is furthest below a limit that depends on how
many machines it takes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from planner.cost import Floats
from planner.problem import Problem
from planner.search import Search

__all__ = ["CountBounds", "LeastByCount", "LeastParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBounds:
    """The outcome.

    Attributes
    ----------
    bounds_s
        Entry n - 1: no plan on exactly n machines takes less. Where that is the limit or more, none is below it.
    num_machines
        Of the plan that is furthest below its limit, of those found; None where none was found to be.
    """

    bounds_s: Floats
    num_machines: int | None = None


# ``(problem, limit_s, search)``: one group of machines, and for n = 1 .. all of them from which seconds on a plan on n
# machines does not matter. None where the family cannot tell.
LeastByCount = Callable[[Problem, Floats, Search], CountBounds | None]

# ``(problem, enough_s, within_s, fastest_s)``: one group of machines; device-seconds from which on it does not matter
# how long all parts of a training take; seconds in which it must be done; and what all parts take on any device.
LeastParts = Callable[[Problem, float, float, float], Floats | None]
