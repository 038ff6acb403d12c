"""Which changes of prices, networks, devices and deadlines change what is bought, not only what it costs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from planner.errors import PlannerError
from planner.families import FAMILIES
from planner.networks import network_of
from planner.perturb import faster_devices, wider_network
from planner.problem import Problem
from planner.procurement.answer import Choice, WhatIf
from planner.procurement.fleet import Fleet, Market
from planner.procurement.oracle import Oracle
from planner.procurement.search import Fleets
from planner.search import Search
from planner.solution import SAME, gap_of
from planner.words import percent_words

_OF_CHOICE = "the chosen machines"
_WORSE = "deadline -20%", "all prices +20%", f"{_OF_CHOICE} +20% in price"  # for every fleet, whatever its plan
_NO_GAP = 0.9995  # from which on it is told as all of it, which tells nothing
_WHAT_IF_SHARE = 0.8  # of a change's time, for its search; the rest to plan its fleet on the question's own hardware


@dataclass(slots=True, kw_only=True)
class Changed:
    """A question, and what its changes were found to come to: on other hardware plans are made anew, and kept.

    Attributes
    ----------
    answers
        By the change and what its answer depends on besides: the changed question, and what no fleet of it beats.
    """

    fleets: Fleets
    answers: dict[tuple[str, int, tuple[str, ...]], tuple[Fleets, float]] = field(default_factory=dict)

    def best(
        self, words: str, make: Callable[[], Fleets], choice: Choice, search: Search, least: float = 0.0
    ) -> WhatIf:
        """Return the best fleet of a changed question, of as many types as were chosen, and whether it is another.

        ``least``: what no fleet of the question itself beats; nor does one that has less time or is dearer.
        """
        num_types = len(choice.fleet.offers)
        own = tuple(offer.name for offer in choice.fleet.offers) if words.startswith(_OF_CHOICE) else ()
        changed, bound = self.answers.get((words, num_types, own)) or (make(), 0.0)
        bound = max(bound, least) if words in _WORSE else bound
        same = Market(offers=choice.fleet.offers, most=choice.fleet.counts)
        changed.trained(same, same.most, search)  # so that others are held against it from the beginning
        if changed.oracles is not self.fleets.oracles:
            _learn_plans_of(choice, changed)
        markets = [market for number in range(1, num_types + 1) for market in changed.markets(number)]
        solution = changed.best(markets, search).solution
        bound = min(solution.objective, max(bound, solution.bound))
        self.answers[words, num_types, own] = changed, bound
        if (point := solution.value) is None:
            is_none = bound == inf
            note = "no fleet keeps the limits" if is_none else "none was found in time"
            return WhatIf(change=words, fleet=None, objective=inf, changes_decision=is_none, words=note)
        fleet = Fleet(offers=markets[point.root].offers, counts=point.counts)
        now, then = (
            {offer.name: count for offer, count in zip(one.offers, one.counts, strict=True)}
            for one in (choice.fleet, fleet)
        )
        gap = gap_of(solution.objective, bound)
        return WhatIf(
            change=words,
            fleet=fleet,
            objective=solution.objective,
            changes_decision=now != then,
            words="" if gap <= SAME else f"not proven: gap {percent_words(gap)}" if gap < _NO_GAP else "not proven",
        )


def _learn_plans_of(choice: Choice, changed: Fleets) -> None:
    """Predict the plans of a choice on other hardware: they may have cuts of the layers that no search there tries."""
    for oracle in changed.oracles:
        part, plan = changed.account.part_of(choice.fleet, oracle.job), choice.plans.get(oracle.job.name)
        if plan is None or oracle.found(part) is None:
            continue
        family: Any = FAMILIES[plan.family]
        try:
            prediction = family.predict(network_of(oracle.problem(part), plan.substitutions), plan.configuration)
        except PlannerError:
            continue
        oracle.learned(part, replace(plan, prediction=prediction, objective=prediction.value_of(plan.goal)))


def what_ifs(asked: Changed, choice: Choice, search: Search, least: float = 0.0) -> tuple[WhatIf, ...]:
    """Return the best fleet after each change, within equal parts of the time that is left.

    ``least``: what no fleet beats. While the choice is not proven to be the best, what is found on other hardware is
    planned on the question's own, too, for it may be better.
    """
    is_open = least < choice.objective * (1 - SAME)
    changes = list(_changes(asked.fleets, choice))
    rows = []
    for index, (words, make) in enumerate(changes):
        part = search.part(search.left_s / (len(changes) - index))
        row = asked.best(words, make, choice, part.part(part.left_s * (_WHAT_IF_SHARE if is_open else 1.0)), least)
        rows.append(row)
        if is_open and row.fleet is not None:
            market = Market(offers=row.fleet.offers, most=row.fleet.counts)
            asked.fleets.trained(market, row.fleet.counts, part)
    return tuple(rows)


def _changes(fleets: Fleets, choice: Choice) -> Iterator[tuple[str, Callable[[], Fleets]]]:
    """Yield each change in words, and what makes the question with it."""
    procurement = fleets.procurement
    chosen = {offer.name for offer in choice.fleet.offers}

    def priced(factor: float, names: set[str] | None) -> Fleets:
        """Return the question with other prices of some offers, or of all; no fleet has to be planned again."""
        offers = tuple(
            offer
            if names is not None and offer.name not in names
            else replace(offer, usd_per_h=offer.usd_per_h * factor, purchase_usd=offer.purchase_usd * factor)
            for offer in procurement.offers
        )
        return fleets.asked_otherwise(procurement=replace(procurement, offers=offers))

    def on_other_hardware(change: Callable[[Problem], Problem]) -> Fleets:
        oracles = tuple(Oracle(procurement, job, change=change) for job in procurement.jobs)
        return Fleets(procurement=procurement, stretch=fleets.stretch, oracles=oracles)

    def wider(factor: float) -> Fleets:
        return on_other_hardware(lambda problem: wider_network(problem, factor))

    def faster(factor: float) -> Fleets:
        return on_other_hardware(lambda problem: faster_devices(problem, factor, problem.profiles))

    for factor in (0.8, 1.2):
        yield f"{_OF_CHOICE} {factor - 1:+.0%} in price", partial(priced, factor, chosen)
    for factor in (0.8, 1.2):
        yield f"all prices {factor - 1:+.0%}", partial(priced, factor, None)
    for factor in (0.5, 2.0):
        yield f"networks {factor:g} times as wide", partial(wider, factor)
    for factor in (0.8, 1.2):
        yield f"devices {factor - 1:+.0%} in speed", partial(faster, factor)
    if any(job.deadline_s < inf for job in procurement.jobs):
        for factor in (0.8, 1.2):
            yield f"deadline {factor - 1:+.0%}", partial(with_deadlines, fleets, factor)


def with_deadlines(fleets: Fleets, factor: float) -> Fleets:
    """Return the question with deadlines so many times as long; no fleet has to be planned again."""
    procurement = fleets.procurement
    asked = procurement.asked
    if asked.deadline is not None:
        asked = asked.model_copy(update={"deadline": asked.deadline * factor})
    jobs = tuple(replace(job, deadline_s=job.deadline_s * factor) for job in procurement.jobs)
    return fleets.asked_otherwise(procurement=replace(procurement, asked=asked, jobs=jobs))
