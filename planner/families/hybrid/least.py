"""What no plan of the family ``hybrid`` beats, without a search: all devices at the highest rate that was fitted."""

from planner.errors import InfeasibleError
from planner.families.hybrid.cost import HybridCost, costs_of
from planner.models.transformer_operators import flop_per_sample
from planner.networks import samples_of
from planner.problem import Problem

__all__ = ["least_objective"]

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
    flop = flop_per_sample(costs[0].transformer).total_flop
    return samples_of(problem) * flop / sum(_rate_flop_per_s(cost) for cost in costs) * _EXACT


def _rate_flop_per_s(cost: HybridCost) -> float:
    """Return what all devices multiply in a second at most."""
    rates = cost.rates
    return rates.peak_flop_per_s * max(rates.product_efficiency, rates.attention_efficiency) * cost.cluster.num_devices
