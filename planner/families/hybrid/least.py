"""What no plan of the family ``hybrid`` beats, without a search: all devices at the highest rate that was fitted."""

from collections.abc import Sequence
from dataclasses import replace

from planner.errors import InfeasibleError
from planner.families.hybrid.cost import HybridCost, costs_of
from planner.models.transformer_operators import flop_per_sample
from planner.networks import samples_of
from planner.problem import Problem
from planner.solution import Status
from planner.solvers.grid import GridAnswer

__all__ = ["least_objective", "least_step_s", "with_least"]

_EXACT = 1 - 1e-9  # sums of seconds are rounded; a bound stays below them


def least_objective(problem: Problem) -> float:
    """Return an objective that no plan of the family beats, in the goal's unit; 0 where the family does not apply.

    The FLOP of the network's products at the device's rate of large products or of attention, whichever is higher: no
    product is timed below that (:mod:`planner.models.roofline`). A layout may stand on all kinds of machines.
    """
    try:
        costs = costs_of(problem)
    except InfeasibleError:
        return 0.0
    return _least(costs, samples_of(problem))


def least_step_s(costs: Sequence[HybridCost]) -> float:
    """Return seconds that no layout on some kinds of machines takes a step less than."""
    return _least(costs, costs[0].batch)


def with_least(answer: GridAnswer, least_s: float) -> GridAnswer:
    """Return an answer with a bound of no less than this: a search that is stopped early may know less."""
    solution = answer.solution
    if solution.bound >= least_s or solution.status not in (Status.FEASIBLE, Status.UNKNOWN):
        return answer
    return replace(answer, solution=replace(solution, bound=min(least_s, solution.objective)))


def _least(costs: Sequence[HybridCost], samples: float) -> float:
    """Return seconds that so many samples take at least."""
    flop = flop_per_sample(costs[0].transformer).total_flop
    return samples * flop / sum(_rate_flop_per_s(cost) for cost in costs) * _EXACT


def _rate_flop_per_s(cost: HybridCost) -> float:
    """Return what all devices multiply in a second at most."""
    rates = cost.rates
    return rates.peak_flop_per_s * max(rates.product_efficiency, rates.attention_efficiency) * cost.cluster.num_devices
