"""What every solver returns: how sure it is, what it found, and what nobody can beat."""

import math
from enum import StrEnum
from typing import Generic, TypeVar

from planner.frozen import frozen

SAME = 1e-9  # relative difference below which two objectives are one, and a gap is closed
BELOW = 1 - SAME  # sums of seconds are rounded; a bound stays below them

T = TypeVar("T")


class Status(StrEnum):
    """What a search proved before it ended."""

    OPTIMAL = "optimal"  # proven: the gap is within tolerance
    FEASIBLE = "feasible"  # an incumbent, not proven best: a limit stopped the search
    INFEASIBLE = "infeasible"  # proven: no plan exists
    UNKNOWN = "unknown"  # stopped with neither an incumbent nor a proof


@frozen
class Solution(Generic[T]):
    """An answer and its proof. "No" is an answer too: ``value`` is then None, and nothing was raised.

    Attributes
    ----------
    status
        What was proven.
    objective
        Of ``value``, re-evaluated by the cost model; ``inf`` without a value.
    bound
        No answer does better, under this cost model; ``inf`` where none exists.
    value
        What was searched for; None under INFEASIBLE and UNKNOWN.
    """

    status: Status
    objective: float
    bound: float
    value: T | None

    @property
    def gap(self) -> float:
        """Return the share of the objective that a better answer could still save; ``inf`` without a value.

        >>> Solution(status=Status.FEASIBLE, objective=4.0, bound=3.0, value="a").gap
        0.25
        """
        if self.value is None:
            return math.inf
        return gap_of(self.objective, self.bound)

    @classmethod
    def proven(cls, value: T | None, *, objective: float, bound: float, tolerance: float = SAME) -> "Solution[T]":
        """Return the outcome of a search: what its incumbent and its bound prove together.

        Parameters
        ----------
        value
            The incumbent; None where there is none.
        objective
            Of the incumbent; not looked at without one.
        bound
            What nothing beats; ``inf`` without an incumbent says that nothing is possible.
        tolerance
            Relative gap up to which the incumbent counts as optimal.

        >>> Solution.proven("a", objective=4.0, bound=3.0).status.value
        'feasible'
        """
        if value is None:
            status = Status.INFEASIBLE if bound == math.inf else Status.UNKNOWN
            return Solution(status=status, objective=math.inf, bound=bound, value=None)
        is_optimal = objective <= bound or objective - bound <= tolerance * objective
        status = Status.OPTIMAL if is_optimal else Status.FEASIBLE
        return Solution(status=status, objective=objective, bound=bound, value=value)


def gap_of(objective: float, bound: float) -> float:
    """Return the share of an objective that is not proven; of an objective of 0, none.

    >>> gap_of(8.0, 6.0)
    0.25
    """
    return (objective - bound) / objective if objective else 0.0


def proof_of(objective: float, bound: float) -> Status:
    """Return what is proven of an answer by a bound that no answer beats.

    >>> proof_of(8.0, 6.0).value, proof_of(8.0, 8.0).value
    ('feasible', 'optimal')
    """
    return Status.OPTIMAL if objective - bound <= SAME * objective else Status.FEASIBLE
