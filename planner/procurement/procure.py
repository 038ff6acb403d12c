"""The answer to a question of a purchase: the best fleet, its proof, what else was weighed, and how sure it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from math import ceil, inf, isfinite
from typing import Any

import numpy as np

from planner.constraints import FLEET_LIMITS
from planner.data.fits import transformer_rates
from planner.errors import Conflict, InfeasibleError, NoAnswerError, Relaxation, SpecError
from planner.models.money import H_PER_MONTH, break_even_h_per_month, months_of_use
from planner.names import OF_TRANSFORMERS
from planner.perturb import faster_devices, wider_network
from planner.plan import Plan
from planner.problem import Problem
from planner.procurement.answer import (
    LIMITS,
    BreakEven,
    Certificate,
    Choice,
    ParetoSet,
    Procured,
    Tradeoff,
    WhatIf,
    amount,
    assumptions_of,
    domain_of,
    enough,
    reasons_of,
    warnings_of,
)
from planner.procurement.fleet import S_PER_MONTH, Fleet, Market, fleet_counts, price_of, rates_of
from planner.procurement.oracle import Oracle, Trained
from planner.procurement.prices import Offer, Term
from planner.procurement.question import Procurement
from planner.procurement.search import Fleets, Told
from planner.search import Search
from planner.solution import SAME, Status, gap_of
from planner.solvers.counts import Bounded, TradeOffs

# --- A fleet that was chosen, with every part of its time and its cost, and how wrong its prediction may be

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
        wall_s={
            job.name: float(run.wall_s[0])
            for job, run in zip(jobs, fleets.account.runs(fleet, training_s), strict=True)
        },
        run_s=account.parts_s(fleet, training_s),
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
        part = fleets.account.part_of(fleet, oracle.job)
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
        busy_s = sum(fleets.account.parts_s(choice.fleet, times).values())
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


# --- Planning for the pessimistic end of what is known of the predictions' errors


def stretch_of(fleets: Fleets) -> float:
    """Return what training takes at most over what is predicted: one number for all fleets.

    As the question states, else, for transformers, the widest error that was measured on any device, so that no fleet
    is preferred for having been measured less.

    Raises
    ------
    SpecError
        If no error is known, and the question states none.
    """
    asked = fleets.procurement.asked
    if asked.error is not None:
        return 1 + asked.error
    if fleets.families == (OF_TRANSFORMERS,):
        return 1 + max(float(band["high"]) for band in transformer_rates()["bands"].values())
    message = (
        "procure.error: how far predictions are off was not measured for such a question, so its pessimistic end is "
        "not known. Add e.g. error: 0.15, the share that training may take longer than predicted."
    )
    raise SpecError(message)


# --- Which changes of prices, networks, devices and deadlines change the decision, not only its value

_OF_CHOICE = "the chosen machines"
_WHAT_IF_SHARE = (
    0.8  # of a change's time, for its search; the rest to plan what is found on the question's own hardware
)


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
        one = asked.best(words, changed, choice, part.part(part.left_s * (_WHAT_IF_SHARE if is_open else 1.0)))
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


# --- Rent or buy: from how many hours of use a month on a machine is worth its price

_HOURS = (50.0, 100.0, 200.0, 400.0, H_PER_MONTH)


def break_evens(fleets: Fleets, choice: Choice) -> tuple[BreakEven, ...]:
    """Return, for every kind of machine that was chosen, renting it against buying one with as many of its devices.

    The cheapest counterpart in the list of prices counts, asked for or not, at the prices of the question.
    """
    found = []
    for offer in choice.fleet.offers:
        other = _counterpart(fleets, offer)
        if other is not None:
            rented, bought = (other, offer) if offer.term is Term.BOUGHT else (offer, other)
            found.append(_of(fleets, rented, bought, None if bought is other else choice.total_wall_s / 3600))
    return tuple(found)


def _counterpart(fleets: Fleets, offer: Offer) -> Offer | None:
    """Return the cheapest offer of as many equal devices that is bought where this one is rented, or rented.

    A machine to buy whose power is not known has no counterpart's price where electricity is to be paid.
    """
    is_bought = offer.term is Term.BOUGHT
    pays_power = fleets.procurement.asked.electricity is not None
    alike = [
        one
        for one in fleets.procurement.priced
        if (one.device, one.devices_per_machine) == (offer.device, offer.devices_per_machine)
        and (one.term is Term.BOUGHT) is not is_bought
        and one.term is not Term.SPOT
        and not (one.term is Term.BOUGHT and pays_power and one.power_w is None)
    ]
    return min(alike, key=lambda one: (one.usd_per_h, one.purchase_usd, one.name), default=None)


def _of(fleets: Fleets, rented: Offer, bought: Offer, used_h: float | None) -> BreakEven:
    """Return the break-even of two offers of the same machine; ``used_h``: of the bought one, where it was chosen."""
    rates = rates_of(fleets.procurement)
    one, other = price_of(rented), price_of(bought)
    hours = float(break_even_h_per_month(one, other, rates))
    return BreakEven(
        rented=rented.name,
        bought=bought.name,
        hours_per_month=hours if isfinite(hours) else None,
        rows=tuple((month.use_h, month.rent_usd, month.buy_usd) for month in months_of_use(_HOURS, one, other, rates)),
        words="; ".join(_words(fleets, rented, hours, used_h)),
    )


def _words(fleets: Fleets, rented: Offer, hours: float, used_h: float | None) -> Iterator[str]:
    """Yield what the figures leave out, and that a bought machine is used too little to be worth its price."""
    if rented.committed_s:
        yield f"the commitment to {rented.committed_s / 3600:,.0f} h of rent is left out"
    if used_h is None or used_h >= hours:
        return
    if fleets.procurement.is_monthly:
        yield f"this month uses it {used_h:,.1f} h; the whole month of it is counted"
    else:
        yield f"this run uses it {used_h:,.1f} h; its share of {used_h:,.1f} h is counted as if it were always in use"


# --- Why no fleet keeps the limits, and by how much which of them would have to give

_INFEASIBLE_SHARE = 0.5  # of the time that is left, for each limit
_LATEST = 1024.0  # times the deadlines of jobs
_CLOSE = 1.01  # factor within which the least is told
_FIELDS = {one.criterion: one.field for one in FLEET_LIMITS}

_Found = tuple[float, Market, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A way out, as text and as data."""

    words: str
    relaxation: Relaxation


def no_fleet(fleets: Fleets, search: Search) -> InfeasibleError:
    """Return the error of a question that no fleet answers: every limit that settles it alone, with its least value."""
    ways = list(_ways(fleets, _every(fleets), search))
    if not ways:
        reason = _training(fleets, search)
        return InfeasibleError(reason or f"no fleet keeps {_limits(fleets)}, and no one of them alone settles it.")
    lines = [f"no fleet keeps {_limits(fleets)}; {_settled(ways)}:", *(way.words for way in ways)]
    return InfeasibleError.of("\n".join(lines), [_conflict(fleets, ways)])


def _conflict(fleets: Fleets, ways: Sequence[_Way]) -> Conflict:
    """Return the limits that have to give, and by how much.

    Every set of limits that leave no answer holds each limit that settles it alone. So where every limit of the
    question does, there is an answer without any one of them.
    """
    rows = tuple(way.relaxation for way in ways)
    alone = {row.field for row in rows if row.is_enough}
    is_monthly = fleets.procurement.is_monthly  # a month is what it is
    wanted = {_field(name) for name in _given(fleets) if not (name == "time" and is_monthly)}
    wanted |= {"procure.jobs"} if _has_deadlines(fleets) else set()
    return Conflict(relaxations=rows, is_minimal=alone == wanted)


def _field(name: str) -> str:
    """Return where a limit stands in the question."""
    return _FIELDS.get(name, f"procure.{name}")


def _has_deadlines(fleets: Fleets) -> bool:
    """Whether one of several jobs has a deadline."""
    return fleets.procurement.is_monthly and any(job.deadline_s < inf for job in fleets.procurement.jobs)


def not_found(fleets: Fleets, bounds: Mapping[int, float], search: Search) -> NoAnswerError:
    """Return the error of a search that a limit ended before it found a fleet: what is proven by then, and ways out.

    ``bounds``: by the number of types, what no fleet of so many beats; infinite where none keeps the limits.
    """
    least = amount(min(bounds.values()), fleets.procurement.asked.objective)
    ended, mend = ("a limit came", "Raise --time-limit")
    if search.was_interrupted:
        ended, mend = ("the search was interrupted", "Let it run")
    lines = [f"{ended} before the first fleet was found; nothing beats {least}. {mend}."]
    proven = [number for number, bound in bounds.items() if bound == inf]
    if proven:
        types = " or ".join(map(str, proven))
        lines[0] += f" Proven: no fleet of {types} type{'s' * (proven != [1])} of machines keeps {_limits(fleets)}"
        ways = list(_ways(fleets, proven, search))
        told = [way.words for way in ways]
        lines = [f"{lines[0]}; with so many, {_settled(ways)}:", *told] if ways else [f"{lines[0]}."]
    return NoAnswerError("\n".join(lines))


def _every(fleets: Fleets) -> Sequence[int]:
    """Return all numbers of types that a fleet may have."""
    return range(1, fleets.procurement.asked.most_types + 1)


def _given(fleets: Fleets) -> list[str]:
    """Return the limits that there are, and that have a value to tell."""
    return [name for name, limit in fleets.account.limits.items() if limit < inf and name in LIMITS]


def _limits(fleets: Fleets) -> str:
    """Return all limits in words."""
    asked = fleets.procurement.asked
    found = [f"{_called(fleets, name)} {amount(fleets.account.limits[name], name)}" for name in _given(fleets)]
    if _has_deadlines(fleets):
        found.append("the deadlines of the jobs")
    if asked.machines is not None:
        found.append("the number of machines")
    if asked.quotas or any(offer.most is not None for offer in fleets.offers):
        found.append("what can be had of each")
    return f"the limits ({', '.join(found)})" if found else "the question"


def _called(fleets: Fleets, name: str) -> str:
    """Return how a limit is called: jobs that are done month after month have the month."""
    return "month of" if name == "time" and fleets.procurement.is_monthly else LIMITS[name][0]


def _settled(ways: Sequence[_Way]) -> str:
    return "this settles it" if len(ways) == 1 else "any one of these settles it"


def _ways(fleets: Fleets, types: Sequence[int], search: Search) -> Iterator[_Way]:
    """Yield the least value of a limit with which some fleet keeps all others; where none does alone, less of them."""
    given = _given(fleets)
    late = _late(fleets, types, search)
    if late is not None:
        yield late
    for number in range(len(given)):
        found = late is not None and not number
        for name in given:
            if name == "time" and fleets.procurement.is_monthly:
                continue  # a month is what it is
            for others in combinations([other for other in given if other != name], number):
                if (way := _way(fleets, [name, *others], types, search)) is not None:
                    found = True
                    yield way
        if found:
            return


def _way(fleets: Fleets, names: list[str], types: Sequence[int], search: Search) -> _Way | None:
    """Return what the first of some limits has to be without the others, or None where that is not enough."""
    best, is_proven = _least(fleets, types, search, names)
    called, limit = LIMITS[names[0]][0], fleets.account.limits[names[0]]
    given = amount(limit, names[0])
    if best is None:
        note = "whether more of it is enough was not found out in time"
        row = Relaxation(field=_field(names[0]), given=given, values=(), is_exact=False, is_enough=False, note=note)
        return None if is_proven else _Way(words=f"  {called}: {note}", relaxation=row)
    value, market, counts = best
    fleet = Fleet(offers=market.offers, counts=counts)
    others = "".join(f" and no limit on {LIMITS[name][0]}" for name in names[1:])
    least = "" if is_proven else ", or less: a limit struck before the least was proven"
    needed = enough(value, names[0])
    row = Relaxation(
        field=_field(names[0]),
        given=given,
        values=(needed,),
        is_exact=is_proven,
        is_enough=not others,
        change=value / limit - 1 if limit else None,
        note=f"{fleet.headline}{others}",
    )
    return _Way(words=f"  {called} {needed}{others} ({fleet.headline}){least}", relaxation=row)


def _least(fleets: Fleets, types: Sequence[int], search: Search, names: Sequence[str]) -> tuple[_Found | None, bool]:
    """Return the fleet with the least of the first criterion, without limits on any of them, and whether it is proven.

    Without names: any fleet that keeps all limits.
    """
    best: _Found | None = None
    is_proven = True
    for num_types in types:
        markets = fleets.markets(num_types)
        if not markets:
            continue
        part = search.part(search.left_s * _INFEASIBLE_SHARE, good_enough=None if names else inf)
        most = inf if best is None else best[0] * (1 - SAME)  # else as good a fleet of more types takes its place
        answer = fleets.best(markets, part, objective=names[0] if names else None, without=names, most=most)
        is_proven &= answer.solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
        if answer.solution.value is not None:
            point = answer.solution.value
            best = (answer.solution.objective, markets[point.root], point.counts)
    return best, is_proven


def _late(fleets: Fleets, types: Sequence[int], search: Search) -> _Way | None:
    """Return by what factor all deadlines of jobs have to be later for some fleet to keep them and the limits."""
    if not _has_deadlines(fleets):
        return None
    low, high = 1.0, _LATEST
    best = _least(due(fleets, high), types, search, ())[0]
    if best is None:
        return None
    while high > low * _CLOSE:
        middle = (low * high) ** 0.5
        found = _least(due(fleets, middle), types, search, ())[0]
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    fleet = Fleet(offers=best[1].offers, counts=best[2])
    times = f"{ceil(high * 100) / 100:g} times as late"
    row = Relaxation(
        field="procure.jobs",
        given="the deadlines of the jobs",
        values=(times,),
        is_exact=False,
        change=high - 1,
        note=fleet.headline,
    )
    return _Way(words=f"  deadlines of the jobs {times} ({fleet.headline})", relaxation=row)


def _training(fleets: Fleets, search: Search) -> str | None:
    """Return why no fleet can train at all, from the largest fleets of a few offers; None where some can."""
    for market in fleets.markets(1):
        reading = fleets.trained(market, market.most, search)
        if reading.value < inf:
            return None
        if reading.payload:
            reason = next(iter(reading.payload[0].reason.splitlines()), "")
            if reason:
                return f"no fleet can train it; e.g. on {market.most[0]} x {market.offers[0].name}: {reason}"
            return None
    return "no fleet can be made of the offers."


_MOST_CALLS = 12  # fleets planned for each alternative
_SHARES = (0.6, 0.7, 0.8)  # of the time that is left, for fleets of one type, of two, of three
_NOT_MODELLED = (
    "whether machines can be had when they are wanted",
    "taxes, staff, interest and resale value",
    "convergence and accuracy",
    "machines of several regions or providers training together",
)


@dataclass(slots=True, kw_only=True)
class _Best:
    """The best fleet so far, and what is proven of fleets of so many types."""

    market: Market | None = None
    found: Bounded | None = None
    objective: float = inf
    bounds: dict[int, float] = field(default_factory=dict)
    num_markets: int = 0

    @property
    def bound(self) -> float:
        """What no fleet beats."""
        return min([self.objective, *self.bounds.values()])


def procure(
    procurement: Procurement,
    search: Search,
    planned: Planned,
    *,
    is_robust: bool = False,
    has_pareto: bool = False,
    has_what_if: bool = False,
    told: Told | None = None,
) -> Procured:
    """Return the best fleet of a question.

    Parameters
    ----------
    planned
        Plans a training as `planner plan` does; for the answer alone.
    is_robust
        Plan for the pessimistic end of the predictions' error.
    has_pareto, has_what_if
        Whether to find all fleets that none beats in time and money, and which changes would change the decision.

    Raises
    ------
    InfeasibleError
        If no fleet keeps the limits: with which of them, and by how much it would have to give.
    NoAnswerError
        If a limit struck before any fleet was found.
    """
    fleets = Fleets(procurement=procurement)
    if is_robust:
        fleets = fleets.asked_otherwise(stretch=stretch_of(fleets))
    part = _half(search, is_half=has_pareto or has_what_if)
    best = _best(fleets, part, told)
    if best.found is None or best.market is None:
        if best.bound == inf:
            raise no_fleet(fleets, search)
        error = not_found(fleets, best.bounds, search)
        if not _improved(fleets, best, inf, search):  # while it was found out what the limits would have to be
            raise error
    asked, trade_offs, what_if = Changed(fleets=fleets), None, tuple[WhatIf, ...]()
    while True:  # until nothing that was looked at for whatever is shown beside the answer is better than it
        assert best.market is not None and best.found is not None
        fleet = Fleet(offers=best.market.offers, counts=best.found.point.counts)
        choice = planned_choice(fleets, fleet, best.found.point.payload, planned)
        alternatives = _alternatives(fleets, choice, search.num_alternatives, search)
        if _improved(fleets, best, choice.objective, search):
            continue
        if has_pareto and trade_offs is None:
            trade_offs = _trade_offs(fleets, search.part(search.left_s * (0.5 if has_what_if else 1.0)))
            if _improved(fleets, best, choice.objective, search):
                continue
        if has_what_if:
            what_if = what_ifs(asked, choice, search, is_open=best.bound < choice.objective * (1 - SAME))
        if not _improved(fleets, best, choice.objective, search):
            break
    known = [choice, *(other for other, _ in alternatives)]
    return Procured(
        objective_name=procurement.asked.objective,
        choice=choice,
        certificate=_certificate(fleets, best, choice),
        explanation=reasons_of(fleets, choice),
        alternatives=alternatives,
        margin=margin_of(fleets, choice),
        stretch=fleets.stretch,
        break_even=break_evens(fleets, choice),
        pareto=None if trade_offs is None else _pareto(fleets, known, *trade_offs),
        what_if=what_if,
        assumptions=(*procurement.assumptions, *assumptions_of(fleets)),
        warnings=warnings_of(fleets, choice),
        not_modelled=_NOT_MODELLED,
        prices={
            "files": list(procurement.prices.files),
            "oldest": procurement.prices.oldest.isoformat(),
            "today": procurement.today.isoformat(),
            "offers": len(procurement.prices.offers),
            "unusable": len(procurement.prices.unusable),
            "asked": len(fleets.offers),
            "left_out": {**procurement.left_out, **fleets.refused},
        },
        problem=procurement.resolved,
    )


def _best(fleets: Fleets, search: Search, told: Told | None) -> _Best:
    """Return the best fleet of one type of machines, then of more where these are better."""
    best = _Best()
    for num_types in range(1, fleets.procurement.asked.most_types + 1):
        markets = search.bounded(partial(fleets.markets, num_types), None)
        if markets is None:  # so many sets of offers that they were not all listed in time
            best.bounds[num_types] = 0.0
            continue
        best.num_markets += len(markets)
        if not markets:
            continue
        part = search.part(search.left_s * _SHARES[num_types - 1])
        find = partial(fleets.best, markets, part, most=best.objective * (1 - SAME), told=told)
        answer = part.bounded(find, None)
        if answer is None:  # nor were they all bounded
            best.bounds[num_types] = 0.0
            continue
        best.bounds[num_types] = min(answer.solution.bound, best.objective)
        if answer.solution.value is not None:
            point = answer.solution.value
            best.market, best.objective = markets[point.root], answer.solution.objective
            best.found = Bounded(point=point, bounds=point.criteria)
    return best


def _improved(fleets: Fleets, best: _Best, objective: float, search: Search) -> bool:
    """Make a fleet that was looked at, and is better than the answer's objective, the best one, if there is any."""
    if best.bound >= objective * (1 - SAME) and not fleets.num_contradictions:
        return False  # proven
    found = search.bounded(partial(fleets.best_looked_at, most=objective * (1 - SAME)), None)
    if found is None:
        return False
    market, point = found
    best.market, best.objective = market, point.criteria[0]
    best.found = Bounded(point=point, bounds=point.criteria)
    return True


def _certificate(fleets: Fleets, best: _Best, choice: Choice) -> Certificate:
    """Return what was proven."""
    bound = min(best.bound, choice.objective)
    is_agreed = not fleets.num_contradictions  # else a bound holds for less than all fleets
    is_proven = is_agreed and choice.objective - bound <= SAME * choice.objective
    return Certificate(
        status=Status.OPTIMAL if is_proven else Status.FEASIBLE,
        objective=choice.objective,
        bound=choice.objective if is_proven else bound,
        bounds={number: min(one, choice.objective) for number, one in best.bounds.items()},
        domain=domain_of(fleets),
        num_offers=len(fleets.offers),
        num_markets=best.num_markets,
        num_planned=sum(oracle.num_planned for oracle in fleets.oracles),
    )


def _alternatives(fleets: Fleets, choice: Choice, most: int, search: Search) -> tuple[tuple[Choice, str], ...]:
    """Return the best fleet of each of the most promising other devices, found by a limited number of plans.

    Most offers are ruled out by bounds alone, so that nothing but these is known of them: what they would have come
    to is what a buyer asks next.
    """
    found: list[tuple[Choice, str]] = []
    seen = {offer.device for offer in choice.fleet.offers}
    for market in fleets.promising(fleets.markets(1)):
        device = market.offers[0].device
        if len(found) == most:
            break
        if device in seen:
            continue
        seen.add(device)
        answer = fleets.best([market], search, most_calls=_MOST_CALLS)
        if answer.solution.value is not None:
            point = answer.solution.value
            other = choice_of(fleets, Fleet(offers=market.offers, counts=point.counts), point.payload)
            is_proven = answer.solution.status is Status.OPTIMAL
            found.append((other, "" if is_proven else f"or less, by {answer.solution.gap:.1%} at most"))
    return tuple(sorted(found, key=lambda pair: pair[0].objective))


def _half(search: Search, *, is_half: bool) -> Search:
    """Return a search of what time is left, or of half of it."""
    return search.part(search.left_s * (0.5 if is_half else 1.0))


def _trade_offs(fleets: Fleets, search: Search) -> tuple[list[Market], TradeOffs]:
    """Return all markets, and the fleets of them that none beats in time and money."""
    most = fleets.procurement.asked.most_types
    markets = [market for num_types in range(1, most + 1) for market in fleets.markets(num_types)]
    return markets, fleets.trade_offs(markets, search)


def _pareto(fleets: Fleets, known: Sequence[Choice], markets: Sequence[Market], answer: TradeOffs) -> ParetoSet:
    """Return all fleets that none beats in time and money, fastest first, with ties by the known error marked.

    ``known``: other fleets that were found; an unfinished search may not have come to them.
    """
    found = [*known] if answer.status is not Status.OPTIMAL else []
    for one in answer.points:
        fleet = Fleet(offers=markets[one.point.root].offers, counts=one.point.counts)
        found.append(choice_of(fleets, fleet, one.point.payload))
    points: list[Choice] = []
    for choice in sorted(found, key=lambda one: (one.total_wall_s, one.cost_usd)):
        if points and choice.total_wall_s <= points[-1].total_wall_s * (1 + SAME) < inf:
            points[-1] = min(points[-1], choice, key=lambda one: one.cost_usd)  # as fast, but for rounding
        elif not points or choice.cost_usd < points[-1].cost_usd * (1 - SAME):
            points.append(choice)
    is_agreed = not fleets.num_contradictions
    status = answer.status if is_agreed or answer.status is not Status.OPTIMAL else Status.FEASIBLE
    return ParetoSet(points=tuple(_with_ties(points)), status=status, gap=answer.gap)


def _with_ties(front: Sequence[Choice]) -> list[Tradeoff]:
    """Mark points whose times differ by less than the prediction's known error: which is faster is not known."""
    found: list[Tradeoff] = []
    for one in front:
        before = found[-1].choice if found else None
        is_tie = False
        if before is not None and before.error is not None and one.error is not None:
            slowest = before.total_wall_s * (1 + before.error[1])
            is_tie = slowest >= one.total_wall_s * (1 + one.error[0])
        found.append(Tradeoff(choice=one, is_tie=is_tie))
    return found
