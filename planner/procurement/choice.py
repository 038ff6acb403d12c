"""A fleet that was chosen, with every part of its time and its cost, and how wrong its prediction may be."""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from planner.errors import NoAnswerError
from planner.plan import Plan
from planner.problem import Problem
from planner.procurement.account import S_PER_MONTH, fleet_counts
from planner.procurement.answer import Choice
from planner.procurement.fleet import Fleet
from planner.procurement.oracle import Trained
from planner.procurement.search import Fleets

__all__ = ["Planned", "choice_of", "margin_of", "planned_choice"]

Planned = Callable[[Problem], Plan]  # the best plan of a question, with its provenance and its known error

_STEPS = 60


def choice_of(fleets: Fleets, fleet: Fleet, trained: Sequence[Trained]) -> Choice:
    """Return what a fleet takes and costs, from what was planned for each job."""
    account, jobs = fleets.account, fleets.procurement.jobs
    counts = fleet_counts(fleet, fleets.offers)
    training_s = [one.seconds for one in trained]
    criteria = account.criteria(counts, np.array([fleets.work_s(fleet, training_s)]))
    money = account.money(counts, criteria["time"])
    is_known = all(offer.power_w is not None for offer in fleet.offers)
    return Choice(
        fleet=fleet,
        objective=float(account.objective(criteria)[0]),
        training_s={job.name: seconds for job, seconds in zip(jobs, training_s, strict=True)},
        wall_s={job.name: float(run.wall_s[0]) for job, run in zip(jobs, fleets.runs(fleet, training_s), strict=True)},
        run_s=fleets.parts_s(fleet, training_s),
        money_usd={name: float(part[0]) for name, part in money.items()},
        energy_j=float(criteria["energy"][0]) if is_known else None,
        power_w=float(criteria["power"][0]) if is_known else None,
        capital_usd=float(criteria["capital"][0]),
        spent_usd=float(criteria["spent"][0]),
        plans={job.name: one.plan for job, one in zip(jobs, trained, strict=True) if one.plan is not None},
        error=_error(trained, fleets.procurement.asked.error),
    )


def planned_choice(fleets: Fleets, fleet: Fleet, trained: Sequence[Trained], planned: Planned) -> Choice:
    """Return a fleet with its plans made once more, as `planner plan` makes them: with provenance and known error.

    Where the search stopped early on a fleet, since nothing better could come of it, its plan may be better now; then
    whatever is asked of the fleet later knows of it.
    """
    found = []
    for oracle, before in zip(fleets.oracles, trained, strict=True):
        part = fleets.part_of(fleet, oracle.job)
        try:
            plan = planned(oracle.problem(part))
        except NoAnswerError:  # interrupted, or out of time: what the search found is kept
            found.append(before)
            continue
        found.append(oracle.learned(part, plan) if plan.objective <= before.seconds else before)
    fleets.look_at(fleet, found)
    return choice_of(fleets, fleet, found)


def _error(trained: Sequence[Trained], stated: float | None) -> tuple[float, float] | None:
    """Return how far measured times may lie off the predicted ones: as the question states, or where it is known."""
    if stated is not None:
        return -stated, stated
    bands = [one.plan.prediction.relative_error if one.plan is not None else None for one in trained]
    if any(band is None for band in bands):
        return None
    return min(float(band["low"]) for band in bands if band), max(float(band["high"]) for band in bands if band)


def margin_of(fleets: Fleets, choice: Choice) -> float | None:
    """Return by what share training may take longer than predicted until the deadline is missed.

    Of several jobs, until the first one is late or the month is too short. None without a deadline, or where no error
    within floating point misses it.
    """
    jobs = fleets.procurement.jobs
    is_monthly = fleets.procurement.is_monthly
    if not is_monthly and jobs[0].deadline_s == inf:
        return None
    training_s = [choice.training_s[job.name] for job in jobs]

    def keeps(stretch: float) -> bool:
        times = [seconds * stretch for seconds in training_s]
        busy_s = sum(fleets.parts_s(choice.fleet, times).values())
        if not is_monthly:
            return busy_s <= jobs[0].deadline_s
        return not fleets.is_late(choice.fleet, times) and busy_s <= S_PER_MONTH

    low, high = 0.0, 1.0
    while keeps(high):
        low, high = high, 2 * high
        if high == inf:
            return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low - 1
