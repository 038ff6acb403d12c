"""Which changes of prices, networks, devices and deadlines change the decision, not only its value."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf

from planner.explanations.perturb import faster_devices, wider_network
from planner.problem import Problem
from planner.procurement.answer import Choice, WhatIf
from planner.procurement.fleet import Fleet
from planner.procurement.offer import Offer
from planner.procurement.oracle import Oracle
from planner.procurement.question import Procurement
from planner.procurement.search import Fleets
from planner.search import Search
from planner.solution import Status

__all__ = ["due", "what_ifs"]


def what_ifs(fleets: Fleets, choice: Choice, search: Search) -> tuple[WhatIf, ...]:
    """Return the best fleet after each change, within equal parts of the time that is left."""
    changes = list(_changes(fleets, choice))
    found = []
    for index, (words, changed) in enumerate(changes):
        part = search.part(search.left_s / (len(changes) - index))
        found.append(_what_if(words, changed(), choice, part))
    return tuple(found)


def _changes(fleets: Fleets, choice: Choice) -> Iterator[tuple[str, Callable[[], Fleets]]]:
    """Yield each change in words, and what makes the question with it."""
    names = {offer.name for offer in choice.fleet.offers}
    for factor in (0.8, 1.2):
        yield f"the chosen machines {factor - 1:+.0%} in price", partial(_priced, fleets, factor, names)
    for factor in (0.8, 1.2):
        yield f"all prices {factor - 1:+.0%}", partial(_priced, fleets, factor, None)
    for factor in (0.5, 2.0):
        yield f"networks {factor:g} times as wide", partial(_on_other_hardware, fleets, _network(factor))
    for factor in (0.8, 1.2):
        yield f"devices {factor - 1:+.0%} in speed", partial(_on_other_hardware, fleets, _devices(factor))
    if any(job.deadline_s < inf for job in fleets.procurement.jobs):
        for factor in (0.8, 1.2):
            yield f"deadline {factor - 1:+.0%}", partial(due, fleets, factor)


def _network(factor: float) -> Callable[[Problem], Problem]:
    """Return the change to networks so many times as wide."""
    return lambda problem: wider_network(problem, factor)


def _devices(factor: float) -> Callable[[Problem], Problem]:
    """Return the change to devices so many times as fast."""
    return lambda problem: faster_devices(problem, factor, problem.profiles)


def _priced(fleets: Fleets, factor: float, names: set[str] | None) -> Fleets:
    """Return the question with other prices of some offers, or of all; no fleet has to be planned again."""

    def priced(offer: Offer) -> Offer:
        if names is not None and offer.name not in names:
            return offer
        return replace(offer, usd_per_h=offer.usd_per_h * factor, purchase_usd=offer.purchase_usd * factor)

    procurement = replace(fleets.procurement, offers=tuple(priced(offer) for offer in fleets.procurement.offers))
    return Fleets(procurement=procurement, stretch=fleets.stretch, oracles=fleets.oracles)


def due(fleets: Fleets, factor: float) -> Fleets:
    """Return the question with other deadlines; no fleet has to be planned again."""
    given: Procurement = fleets.procurement
    asked = given.asked
    if asked.deadline is not None:
        asked = asked.model_copy(update={"deadline": asked.deadline * factor})
    jobs = tuple(replace(job, deadline_s=job.deadline_s * factor) for job in given.jobs)
    return Fleets(procurement=replace(given, asked=asked, jobs=jobs), stretch=fleets.stretch, oracles=fleets.oracles)


def _on_other_hardware(fleets: Fleets, change: Callable[[Problem], Problem]) -> Fleets:
    """Return the question on changed hardware."""
    oracles = tuple(Oracle(fleets.procurement, job, change=change) for job in fleets.procurement.jobs)
    return Fleets(procurement=fleets.procurement, stretch=fleets.stretch, oracles=oracles)


def _what_if(words: str, changed: Fleets, choice: Choice, search: Search) -> WhatIf:
    """Return the best fleet of a changed question, of as many types as were chosen, and whether it is another one."""
    num_types = len(choice.fleet.offers)
    markets = [market for number in range(1, num_types + 1) for market in changed.markets(number)]
    answer = changed.best(markets, search)
    if answer.solution.value is None:
        is_none = answer.solution.status is Status.INFEASIBLE
        said = "no fleet keeps the limits" if is_none else "none was found in time"
        return WhatIf(change=words, fleet=None, objective=inf, changes_decision=is_none, words=said)
    point = answer.solution.value
    fleet = Fleet(offers=markets[point.root].offers, counts=point.counts)
    now = {offer.name: count for offer, count in zip(choice.fleet.offers, choice.fleet.counts, strict=True)}
    then = {offer.name: count for offer, count in zip(fleet.offers, fleet.counts, strict=True)}
    is_proven = answer.solution.status is Status.OPTIMAL
    return WhatIf(
        change=words,
        fleet=fleet,
        objective=answer.solution.objective,
        changes_decision=now != then,
        words="" if is_proven else f"not proven: gap {answer.solution.gap:.1%}",
    )
