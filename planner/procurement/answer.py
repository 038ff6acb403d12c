"""What the question of a purchase is answered with: a fleet, what its run takes and costs, and what is proven."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.plan import Plan
from planner.procurement.fleet import Fleet
from planner.solution import Status, gap_of

__all__ = ["BreakEven", "Certificate", "Choice", "ParetoSet", "Procured", "Tradeoff", "WhatIf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A fleet and what training on it takes.

    Attributes
    ----------
    training_s
        Of each job, by its name: the time of its plan.
    wall_s
        Of each job, by its name: start-up, evaluation, checkpoints and failures included.
    run_s
        The parts of the wall time of all jobs together, which they sum to; of a month where jobs share the machines.
    money_usd
        The parts of the cost, which they sum to; of the run, or of a month.
    capital_usd, spent_usd
        What is bought; and what has to be paid in all, the whole purchase instead of the run's share in it.
    plans
        By the job's name.
    error
        Measured / predicted - 1 of such plans, its least and its largest, where that is known for all of them.
    """

    fleet: Fleet
    objective: float
    training_s: Mapping[str, float]
    wall_s: Mapping[str, float]
    run_s: Mapping[str, float]
    money_usd: Mapping[str, float]
    energy_j: float | None
    power_w: float | None
    capital_usd: float
    spent_usd: float
    plans: Mapping[str, Plan]
    error: tuple[float, float] | None = None

    @property
    def total_wall_s(self) -> float:
        """The sum of the parts."""
        return sum(self.run_s.values())

    @property
    def cost_usd(self) -> float:
        """The sum of the parts."""
        return sum(self.money_usd.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What was proven, over what.

    Attributes
    ----------
    bounds
        By the most types of machines in a fleet: what no fleet of so many types beats.
    domain
        Over what, in words.
    num_offers, num_markets, num_planned
        Offers that could be had, sets of them that were searched, fleets that were planned.
    """

    status: Status
    objective: float
    bound: float
    bounds: Mapping[int, float]
    domain: tuple[str, ...]
    num_offers: int
    num_markets: int
    num_planned: int

    @property
    def gap(self) -> float:
        """Share of the objective that is not proven."""
        return gap_of(self.objective, self.bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """A point of the trade of time against money; ``is_tie``: closer to the one before than the known error."""

    choice: Choice
    is_tie: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoSet:
    """The fleets that none beats in time and money; ``gap``: by what factor less 1 one that is left might beat them."""

    points: tuple[Tradeoff, ...]
    status: Status
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What one change does: the best fleet then, and whether it is another one."""

    change: str
    fleet: Fleet | None
    objective: float
    changes_decision: bool
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Renting against buying the same machine.

    ``hours_per_month``: of use, from which on buying costs less; None: never. ``rows``: hours, rent and ownership in
    dollars a month. ``words``: what to know about it.
    """

    rented: str
    bought: str
    hours_per_month: float | None
    rows: tuple[tuple[float, float, float], ...]
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Procured:
    """The answer.

    ``margin``: share by which training may take longer until a deadline is missed; ``stretch``: what it was taken to
    take over what is predicted.
    """

    objective_name: str
    choice: Choice
    certificate: Certificate
    explanation: tuple[str, ...]
    alternatives: tuple[tuple[Choice, str], ...]
    margin: float | None
    stretch: float
    break_even: tuple[BreakEven, ...]
    pareto: ParetoSet | None
    what_if: tuple[WhatIf, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...]
    prices: Mapping[str, Any]
    problem: Mapping[str, Any]
