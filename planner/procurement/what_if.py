"""Which changes of prices, networks, devices and deadlines change the decision, not only its value."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from planner.explanations.perturb import faster_devices, wider_network
from planner.problem import Problem
from planner.procurement.answer import Choice, WhatIf
from planner.procurement.fleet import Fleet, Market
from planner.procurement.offer import Offer
from planner.procurement.oracle import Oracle
from planner.procurement.question import Procurement
from planner.procurement.search import Fleets
from planner.search import Search
from planner.solution import SAME, gap_of

__all__ = ["Changed", "due", "what_ifs"]

_OF_CHOICE = "the chosen machines"
_SHARE = 0.8  # of a change's time, for its search; the rest to plan what is found on the question's own hardware


@dataclass(slots=True, kw_only=True)
class Changed:
    """A question, and what its changes were found to come to: on other hardware plans are made anew, and kept.

    Attributes
    ----------
    known
        By the change and what its answer depends on besides: the changed question, and what no fleet of it beats.
    """

    fleets: Fleets
    known: dict[tuple[Any, ...], tuple[Fleets, float]] = field(default_factory=dict)

    def best(self, words: str, make: Callable[[], Fleets], choice: Choice, search: Search) -> WhatIf:
        """Return the best fleet of a changed question, of as many types as were chosen, and whether it is another."""
        num_types = len(choice.fleet.offers)
        own = tuple(offer.name for offer in choice.fleet.offers) if words.startswith(_OF_CHOICE) else ()
        changed, bound = self.known.get((words, num_types, own), (None, 0.0))
        changed = changed or make()
        markets = [market for number in range(1, num_types + 1) for market in changed.markets(number)]
        solution = changed.best(markets, search).solution
        bound = min(solution.objective, max(bound, solution.bound))
        self.known[words, num_types, own] = changed, bound
        if solution.value is None:
            is_none = bound == inf
            said = "no fleet keeps the limits" if is_none else "none was found in time"
            return WhatIf(change=words, fleet=None, objective=inf, changes_decision=is_none, words=said)
        point = solution.value
        fleet = Fleet(offers=markets[point.root].offers, counts=point.counts)
        now = {offer.name: count for offer, count in zip(choice.fleet.offers, choice.fleet.counts, strict=True)}
        then = {offer.name: count for offer, count in zip(fleet.offers, fleet.counts, strict=True)}
        gap = gap_of(solution.objective, bound)
        return WhatIf(
            change=words,
            fleet=fleet,
            objective=solution.objective,
            changes_decision=now != then,
            words="" if gap <= SAME else f"not proven: gap {gap:.1%}",
        )


def what_ifs(asked: Changed, choice: Choice, search: Search, *, is_open: bool = False) -> tuple[WhatIf, ...]:
    """Return the best fleet after each change, within equal parts of the time that is left.

    ``is_open``: the choice is not proven to be the best. Then what is found on other hardware is planned on the
    question's own, too, for it may be better.
    """
    changes = list(_changes(asked.fleets, choice))
    found = []
    for index, (words, changed) in enumerate(changes):
        part = search.part(search.left_s / (len(changes) - index))
        one = asked.best(words, changed, choice, part.part(part.left_s * (_SHARE if is_open else 1.0)))
        found.append(one)
        if is_open and one.fleet is not None:
            market = Market(offers=one.fleet.offers, most=one.fleet.counts)
            asked.fleets.trained(market, one.fleet.counts, part)
    return tuple(found)


def _changes(fleets: Fleets, choice: Choice) -> Iterator[tuple[str, Callable[[], Fleets]]]:
    """Yield each change in words, and what makes the question with it."""
    names = {offer.name for offer in choice.fleet.offers}
    for factor in (0.8, 1.2):
        yield f"{_OF_CHOICE} {factor - 1:+.0%} in price", partial(_priced, fleets, factor, names)
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
    return fleets.asked_otherwise(procurement=procurement)


def due(fleets: Fleets, factor: float) -> Fleets:
    """Return the question with other deadlines; no fleet has to be planned again."""
    given: Procurement = fleets.procurement
    asked = given.asked
    if asked.deadline is not None:
        asked = asked.model_copy(update={"deadline": asked.deadline * factor})
    jobs = tuple(replace(job, deadline_s=job.deadline_s * factor) for job in given.jobs)
    return fleets.asked_otherwise(procurement=replace(given, asked=asked, jobs=jobs))


def _on_other_hardware(fleets: Fleets, change: Callable[[Problem], Problem]) -> Fleets:
    """Return the question on changed hardware."""
    oracles = tuple(Oracle(fleets.procurement, job, change=change) for job in fleets.procurement.jobs)
    return Fleets(procurement=fleets.procurement, stretch=fleets.stretch, oracles=oracles)
