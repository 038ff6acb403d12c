"""The answer to a question of a purchase: the best fleet, its proof, alternatives considered, and how sure it is.

The search (:mod:`planner.procurement.search`) says which fleet is best. Here it is asked: for the answer, fleets of one
type first and then of more; for whatever is shown beside it, as other devices, the trade-off of time against money, and
what changes of prices and hardware would do (:mod:`planner.procurement.what_if`); and where no fleet keeps the limits,
for how far they would have to give (:mod:`planner.procurement.no_fleet`). A fleet that any of these finds and that is
better than the answer becomes the answer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite

from planner.constraints import is_within
from planner.data.fits import transformer_rates
from planner.errors import NoAnswerError, PlannerError
from planner.frozen import frozen
from planner.models.money import (
    H_PER_MONTH,
    S_PER_H,
    S_PER_MONTH,
    break_even_h_per_month,
    months_of_use,
    paid_by_month,
    payback_months,
)
from planner.names import OF_TRANSFORMERS
from planner.plan import Plan
from planner.problem import Problem
from planner.procurement.answer import (
    LATER,
    LIMITS,
    LITTLE_SOONER,
    MUCH_DEARER,
    NEAR,
    SOONER,
    BreakEven,
    Certificate,
    Choice,
    ParetoSet,
    Procured,
    Risk,
    Tradeoff,
    WhatIf,
    amount,
    assumptions_of,
    domain_of,
    rate_unit,
    reasons_of,
    warnings_of,
)
from planner.procurement.fleet import Fleet, Market, carbon_g, prices_of, rates_of
from planner.procurement.no_fleet import no_fleet, not_found
from planner.procurement.oracle import Trained
from planner.procurement.prices import Term
from planner.procurement.question import Procurement
from planner.procurement.search import Fleets, OnProgress
from planner.procurement.what_if import Changed, what_ifs
from planner.question.cluster import trays_of_a_rack
from planner.search import Search
from planner.solution import SAME, Status
from planner.solvers.counts import Candidate, TradeOffs
from planner.words import joined, percent_words, time_words

# The best plan of a question with its provenance and its known error, no worse than the one that is known before.
Planned = Callable[[Problem, Plan | None], Plan]

# --- A fleet that was chosen, with every part of its time and its cost, and how wrong its prediction may be

_STEPS = 60  # of a bisection, which halves to the last digit


def choice_of(fleets: Fleets, fleet: Fleet, trained: Sequence[Trained]) -> Choice:
    """Return what a fleet takes and costs, from what was planned for each job."""
    names = [job.name for job in fleets.procurement.jobs]
    training_s = [one.seconds for one in trained]
    usage = fleets.account.usage(fleet, training_s)
    has_power = all(offer.power_w is not None for offer in fleet.offers)
    plans = {name: one.plan for name, one in zip(names, trained, strict=True) if one.plan is not None}
    error, stated = None, fleets.procurement.asked.error
    bands = [band for plan in plans.values() if (band := plan.prediction.relative_error) is not None]
    if stated is not None:
        error = -stated, stated
    elif bands and len(bands) == len(trained):  # it is known for all of them
        error = min(float(band["low"]) for band in bands), max(float(band["high"]) for band in bands)
    return Choice(
        fleet=fleet,
        objective=usage.objective,
        training_s=dict(zip(names, training_s, strict=True)),
        wall_s=usage.wall_s,
        run_s=usage.run_s,
        money_usd=usage.money_usd,
        energy_j=usage.criteria["energy"] if has_power else None,
        power_w=usage.criteria["power"] if has_power else None,
        capital_usd=usage.criteria["capital"],
        spent_usd=usage.criteria["spent"],
        plans=plans,
        error=error,
        unmeasured=tuple(dict.fromkeys(offer.device for offer in fleet.offers if not fleets.is_measured(offer))),
        carbon_g=carbon_g(fleets.procurement.asked, fleet, usage.criteria["energy"]) if has_power else None,
    )


def planned_choice(fleets: Fleets, fleet: Fleet, trained: Sequence[Trained], planned: Planned) -> Choice:
    """Return a fleet with its plans made once more, as `planner plan` makes them: with provenance and known error.

    Where the search stopped early on a fleet, since nothing better could come of it, its plan may be better now; then
    whatever is asked of the fleet later knows of it.
    """
    anew = []
    for oracle, before in zip(fleets.oracles, trained, strict=True):
        part = fleets.account.part_of(fleet, oracle.job)
        try:
            plan = planned(oracle.problem(part), before.plan)
        except NoAnswerError:  # interrupted, or out of time: what the search found is kept
            anew.append(before)
            continue
        anew.append(oracle.learned(part, plan) if plan.objective <= before.seconds else before)
    fleets.look_at(fleet, anew)
    return choice_of(fleets, fleet, anew)


def margin_of(fleets: Fleets, choice: Choice) -> float | None:
    """Return by what share training may take longer than predicted until the deadline is missed.

    Of several jobs, until the first one is late or the month is too short. None without a deadline, or where no error
    within floating point misses it.
    """
    jobs, is_monthly = fleets.procurement.jobs, fleets.procurement.is_monthly
    if not is_monthly and jobs[0].deadline_s == inf:
        return None

    def keeps(stretch: float) -> bool:
        times = [choice.training_s[job.name] * stretch for job in jobs]
        busy_s = sum(fleets.account.parts_s(choice.fleet, times).values())
        if not is_monthly:
            return busy_s <= jobs[0].deadline_s
        return not fleets.account.is_late(choice.fleet, times) and busy_s <= S_PER_MONTH

    low, high = 0.0, 1.0
    while keeps(high):
        low, high = high, 2 * high
        if high == inf:
            return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low - 1


def risk_of(fleets: Fleets, choice: Choice, planned: Planned) -> Risk | None:
    """Return what a fleet comes to at the pessimistic end: of its own error, else of the widest that is known.

    None where no error is known: of other networks than transformers, on devices whose seconds have no band.
    """
    account = replace(fleets.account, stretch=1.0)
    if choice.error is not None:
        high = max(0.0, choice.error[1])
        is_own = fleets.procurement.asked.error is None
        measured = "the errors elsewhere" if choice.unmeasured else "the error that was measured of such plans"
        origin = measured if is_own else "the error of the question"
        if fleets.stretch > 1 + high:  # else the worst would be better than what is told first
            high, origin = fleets.stretch - 1, "the widest error of transformers on any device"
        seconds = [(1 + high) * one for one in choice.training_s.values()]
    elif fleets.families == (OF_TRANSFORMERS,):
        origin = "the widest error of transformers on any device"
        seconds = [stretch_of(fleets) * one for one in choice.training_s.values()]
    else:
        origin = "the band of the device's seconds"
        try:  # a device whose seconds have no band is a fault of the question
            slow = Fleets(procurement=pessimistic(fleets))
            plans = [planned(one.problem(account.part_of(choice.fleet, one.job)), None) for one in slow.oracles]
        except PlannerError:
            return None
        seconds = [max(plan.objective, own) for plan, own in zip(plans, choice.training_s.values(), strict=True)]
    usage, per = account.usage(choice.fleet, seconds), rate_unit(fleets.procurement)
    missed = [
        f"{LIMITS[name][0]} ({amount(usage.criteria[name], name, per)} of {amount(limit, name, per)})"
        for name, limit in account.limits.items()
        if name in LIMITS and usage.criteria[name] > limit * (1 + SAME)
    ]
    if fleets.procurement.is_monthly and account.is_late(choice.fleet, seconds):
        missed.append("deadline of a job")
    wall_s, cost_usd = sum(usage.run_s.values()), sum(usage.money_usd.values())
    training_s = dict(zip(choice.training_s, seconds, strict=True))
    return Risk(training_s=training_s, origin=origin, wall_s=wall_s, cost_usd=cost_usd, missed=tuple(missed))


def stretch_of(fleets: Fleets) -> float:
    """Return what training takes at most over what is predicted: one number for all fleets.

    As the question states, else that of transformers: the widest error that was measured on any device, so that no
    fleet is preferred for having been measured less.
    """
    asked = fleets.procurement.asked
    if asked.error is not None:
        return 1 + asked.error
    rates = transformer_rates()
    return 1 + max(float(band["high"]) for kind in ("bands", "device_bands") for band in rates[kind].values())


def pessimistic(fleets: Fleets) -> Procurement:
    """Return the question in which every device computes as slowly as the band of its seconds allows.

    With its calibration as it was read, whose files stand in it.

    Raises
    ------
    SpecError
        Later, when the first fleet is asked about: if the seconds of some device have no band.
    """
    procurement = fleets.procurement
    slow = {"calibration": {**fleets.oracles[0].calibration, "pessimistic": True}}
    jobs = tuple(replace(job, question={**job.question, **slow}) for job in procurement.jobs)
    return replace(procurement, jobs=jobs, resolved={**procurement.resolved, **slow})


# --- Rent or buy: from how many hours of use a month on a machine is worth its price

_PARTS = 20  # of a machine's life, on the curve of what was paid
_HOURS = (50.0, 100.0, 200.0, 400.0, H_PER_MONTH)


def break_evens(fleets: Fleets, choice: Choice) -> tuple[BreakEven, ...]:
    """Return, for every kind of machine that was chosen, renting it against buying one with as many of its devices.

    The cheapest counterpart in the list of prices counts, first of those without a long commitment, asked for or not,
    at the prices of the question. A machine to buy whose power is not known has no counterpart's price where
    electricity is to be paid.
    """
    procurement, rates = fleets.procurement, rates_of(fleets.procurement)
    pays_power = procurement.asked.electricity is not None
    rows = []
    for offer in choice.fleet.offers:
        counterparts = [
            other
            for other in procurement.priced
            if (other.device, other.devices_per_machine) == (offer.device, offer.devices_per_machine)
            and other.is_bought is not offer.is_bought
            and other.term is not Term.SPOT
            and not (other.is_bought and pays_power and other.power_w is None)
        ]
        if not counterparts:
            continue
        # Who commits to more than a month pays whatever the use: the price of an hour says little of it.
        other = min(
            counterparts,
            key=lambda one: (one.committed_s > S_PER_MONTH, one.usd_per_h, one.purchase_usd, one.name),
        )
        rented, bought = (other, offer) if offer.is_bought else (offer, other)
        prices = prices_of(rented), prices_of(bought), rates
        hours, used_h = float(break_even_h_per_month(*prices)), choice.total_wall_s / S_PER_H
        note = ""
        if offer.is_bought and used_h < hours:  # it is used too little to be worth its price
            if procurement.is_monthly:
                note = f"this month uses it {used_h:,.1f} h; the whole month of it is counted"
            else:
                share = f"its share of {used_h:,.1f} h is counted as if it were always in use"
                note = f"this run uses it {used_h:,.1f} h; {share}"
        months = months_of_use(_HOURS, *prices)
        life = bought.useful_life_s / S_PER_MONTH
        payback = payback_months(H_PER_MONTH, *prices)
        rows.append(
            BreakEven(
                rented=rented.name,
                bought=bought.name,
                hours_per_month=hours if isfinite(hours) else None,
                rows=tuple((month.use_h, month.rent_usd, month.buy_usd) for month in months),
                committed_h=rented.committed_s / S_PER_H,
                note=note,
                payback_months=payback if payback <= life else None,
                curve=paid_by_month([life * part / _PARTS for part in range(_PARTS + 1)], H_PER_MONTH, *prices)
                if isfinite(life)
                else (),
            )
        )
    return tuple(rows)


# --- The answer

_BUSY, _TOLD_S = 0.5, 5.0  # share of a processor below which others had it; less time is not told
_MOST_CALLS, _MOST_OF_JOBS = 12, 4  # fleets planned for each alternative; where each takes plans of several jobs
_SHARES = (0.6, 0.7)  # of the time that is left, for fleets of one type and of two, where more types may be had
_SHARE_OF_MEASURED = 0.5  # of that, for devices that were measured
_SHARE_OF_LAST = 0.8  # for fleets of as many types as there may be; the rest is for what is shown beside the answer
_MOST_KINDS = 3  # named
_REASON_S = 1.0
_PROVEN = 3 * SAME  # what a search for less than the answer leaves, which finds nothing: it is rounded twice
_CLOSE_BY = 0.1  # share of the objective, within which fleets are planned as the answer is
_MOST_TIES = 2  # after which a fleet that costs the same and is done sooner stays beside the answer
_MISSED_BY, _MOST_CLOSE = 0.25, 3  # share of a limit, within which so many fleets are
_SHARE_OF_NEAR = 0.2  # of what is left for the search
_NOT_MODELLED = (
    "whether machines can be had when they are wanted",
    "taxes, staff and interest",
    "convergence and accuracy",
    "machines of several regions or providers training together",
)


def _not_modelled(fleets: Fleets) -> tuple[str, ...]:
    """Return what the money leaves out: resale where no price list says what machines are worth at the end."""
    has_resale = any(offer.resale_usd for offer in fleets.offers)
    return _NOT_MODELLED if has_resale else (*_NOT_MODELLED, "resale value, which no price list that was read says")


@dataclass(slots=True, kw_only=True)
class _Best:
    """The best fleet so far, and what is proven of fleets of so many types."""

    market: Market | None = None
    point: Candidate | None = None
    bounds: dict[int, float] = field(default_factory=dict)
    num_markets: int = 0
    num_ties: int = 0  # that took the place of an answer

    def take(self, market: Market, point: Candidate) -> None:
        """Make a fleet the best one."""
        self.market, self.point = market, point

    @property
    def objective(self) -> float:
        """Of the best fleet; infinite where there is none."""
        return inf if self.point is None else self.point.criteria[0]

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
    on_progress: OnProgress | None = None,
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
    begin_s = search.clock(), time.process_time()
    fleets = Fleets(procurement=procurement)
    if is_robust and (procurement.asked.error is not None or fleets.families == (OF_TRANSFORMERS,)):
        fleets = fleets.asked_otherwise(stretch=stretch_of(fleets))
    elif is_robust:
        fleets = Fleets(procurement=pessimistic(fleets))
    best = _best(fleets, search.part(search.left_s * (0.5 if has_pareto or has_what_if else 1.0)), on_progress, planned)
    if best.point is None and best.bound < inf:
        _go_on(fleets, best, inf, search)
        _improved(fleets, best, inf, search)
    if best.point is None:
        _check_found(fleets, best, search, planned)
    asked, trade_offs, what_if, are_ends_open = Changed(fleets=fleets), None, tuple[WhatIf, ...](), False
    while True:  # until nothing that was looked at for whatever is shown beside the answer is better than it
        assert best.market is not None and best.point is not None
        fleet = Fleet(offers=best.market.offers, counts=best.point.counts)
        choice = planned_choice(fleets, fleet, best.point.payload, planned)
        alternatives = _alternatives(fleets, choice, search, planned)
        if _improved(fleets, best, choice.objective, search):
            continue
        if has_pareto and trade_offs is None:
            markets = fleets.all_markets()
            part = search.part(search.left_s * (0.5 if has_what_if else 1.0))
            trade_offs = markets, fleets.trade_offs(markets, part)
            if _improved(fleets, best, choice.objective, search):
                continue
        measured = _measured(fleets, choice, planned, search)
        are_ends_open |= _search_near(fleets, choice, search)
        if _improved(fleets, best, choice.objective, search) or _tied(fleets, best, choice, search):
            continue
        if has_what_if:  # last, when all is known that stands beside it in the answer
            what_if = what_ifs(asked, choice, search, 0.0 if fleets.num_contradictions else best.bound)
        _go_on(fleets, best, choice.objective, search)  # what is left of the time is the answer's
        if not _improved(fleets, best, choice.objective, search):
            break
    alternatives = _with_looked_at(fleets, choice, alternatives, search.num_alternatives)
    if measured.choice is not None and all(other.fleet != measured.choice.fleet for other, _ in alternatives):
        rows = (*alternatives, (measured.choice, "the best of the devices whose training steps were measured"))
        alternatives = tuple(sorted(rows, key=lambda pair: pair[0].objective))
    by_deadline, certificate = _by_deadline(fleets, choice), _certificate(fleets, best, choice)
    others = [choice, *(one for one, _ in alternatives), *(one for one, missed in by_deadline if not missed)]
    return Procured(
        objective_name=procurement.asked.objective,
        choice=choice,
        certificate=certificate,
        explanation=(*reasons_of(fleets, choice), *_mixing_words(fleets, best, choice, search)),
        alternatives=alternatives,
        by_deadline=by_deadline,
        margin=margin_of(fleets, choice),
        risk=risk_of(fleets, choice, planned),
        stretch=fleets.stretch,
        break_even=break_evens(fleets, choice),
        pareto=None if trade_offs is None else _pareto(fleets, others, *trade_offs),
        what_if=what_if,
        assumptions=(*procurement.assumptions, *assumptions_of(fleets)),
        warnings=(
            *_busy(certificate, search, *begin_s),
            *_open_ends(fleets, by_deadline, are_ends_open),
            *measured.warnings,
            *warnings_of(fleets, choice),
        ),
        not_modelled=_not_modelled(fleets),
        prices={
            "files": list(procurement.prices.files),
            "oldest": min(offer.date for offer in procurement.priced or procurement.prices.offers).isoformat(),
            "today": procurement.today.isoformat(),
            "offers": len(procurement.prices.offers),
            "unusable": len(procurement.prices.unusable),
            "asked": len(fleets.offers),
            "left_out": {**procurement.left_out, **fleets.refused},
        },
        problem=procurement.resolved,
    )


def _mixing_words(fleets: Fleets, best: _Best, choice: Choice, search: Search) -> list[str]:
    """Return what another mix of several kinds of machines would save at most, and of what costs, why no more."""
    others = [bound for number, bound in best.bounds.items() if number > 1]
    if not others or not choice.objective or len(choice.fleet.offers) > 1:
        return []
    name = fleets.procurement.asked.objective
    saved = 1 - min(*others, choice.objective) / choice.objective
    words = "does not pay" if saved <= SAME else f"saves {percent_words(saved)} at most"
    part = search if search.left_s >= _REASON_S else Search(time_limit_s=_REASON_S)  # known, if there was time for it
    known = fleets.usd_in_company(choice.objective * (1 - SAME), part) if name == "cost" else []
    seen = dict.fromkeys(offer.instance for _, offer in known)  # the cheapest first
    each = {offer.instance: usd for usd, offer in reversed(known)}
    listed = [f"{amount(each[one], name)} on {one}" for one in list(seen)[:_MOST_KINDS]]
    why = "as what a kind does costs in proportion what all of it would, which is at least"
    trays = dict.fromkeys(
        offer.instance for offer in fleets.offers if trays_of_a_rack(offer.device, offer.devices_per_machine) > 1
    )
    note = f" ({joined([*trays])} train beside other machines without the links of their racks)" if trays else ""
    return [f"mixing kinds of machines {words}" + (f", {why} {joined(listed)}" if listed else "") + note]


def _check_found(fleets: Fleets, best: _Best, search: Search, planned: Planned) -> None:
    """Raise why no fleet was found, unless one turns up while it is found out what the limits would have to be."""
    say = partial(no_fleet, fleets) if best.bound == inf else partial(not_found, fleets, best.bounds)
    error, is_better = say(search), _plan_close(fleets, planned)
    if not _improved(fleets, best, inf, search):
        raise say(search) if is_better else error


def _plan_close(fleets: Fleets, planned: Planned) -> bool:
    """Plan fleets that just miss the limits on time and money as an answer is; return whether one is better for it.

    The search of fleets moves single layers between chunks near a fleet's best layout alone, `planner plan` near the
    best ones of other degrees, too. No bound is of either.
    """
    if fleets.procurement.is_monthly:
        return False
    limits, asked, is_better = fleets.account.limits, 0, False
    for market, point in fleets.looked_at_by_time():
        one = choice_of(fleets, Fleet(offers=market.offers, counts=point.counts), point.payload)
        shares = one.total_wall_s / limits["time"], one.spent_usd / limits["spent"]
        if asked < _MOST_CLOSE and max(shares) < 1 + _MISSED_BY:
            asked += 1
            anew = planned_choice(fleets, one.fleet, point.payload, planned)
            is_better |= anew.total_wall_s < one.total_wall_s * (1 - SAME)
    return is_better


def _best(fleets: Fleets, search: Search, on_progress: OnProgress | None, planned: Planned) -> _Best:
    """Return the best fleet of one type of machines, then of more where these are better."""
    best = _Best()

    def report(bound: float, incumbent: float, calls: int) -> None:
        if on_progress is not None:
            on_progress(min(bound, best.objective), min(incumbent, best.objective), calls)

    for num_types in range(1, fleets.procurement.asked.most_types + 1):
        markets = search.bounded(partial(fleets.markets, num_types), None)
        if markets is None:  # so many sets of offers that they were not all listed in time
            best.bounds[num_types] = 0.0
            continue
        best.num_markets += len(markets)
        if not markets:
            continue
        is_last = num_types == fleets.procurement.asked.most_types
        part = search.part(search.left_s * (_SHARE_OF_LAST if is_last else _SHARES[num_types - 1]))
        known = _of_measured(fleets, markets) if num_types == 1 else []
        if known:  # what is told besides of devices that were measured is then known, and nothing is searched twice
            within = part.part(part.left_s * _SHARE_OF_MEASURED)
            find = partial(fleets.best, known, within, on_progress=lambda _bound, *found: report(0.0, *found))
            answer = part.bounded(find, None)
            if answer is not None and (point := answer.solution.value) is not None:
                best.take(known[point.root], point)
        find = partial(fleets.best, markets, part, most=best.objective * (1 - SAME), on_progress=report)
        answer = part.bounded(find, None)
        if answer is None:  # nor were they all bounded
            best.bounds[num_types] = 0.0
            continue
        best.bounds[num_types] = min(answer.solution.bound, best.objective)
        if (point := answer.solution.value) is not None:
            best.take(markets[point.root], point)
        if not is_last and best.market is not None and best.point is not None:
            # Mixes are held against what is planned of it in the end, which may have cuts that no bound is of.
            fleet = Fleet(offers=best.market.offers, counts=best.point.counts)
            planned_choice(fleets, fleet, best.point.payload, planned)
            _improved(fleets, best, best.objective, part)
    return best


def _go_on(fleets: Fleets, best: _Best, objective: float, search: Search) -> None:
    """Search on for what is not proven of the best fleet; a better one is then among those that were looked at.

    Within most of the time that is left; fleets that a limit cut off are asked again, where there is more of it.
    """
    for number, bound in best.bounds.items():
        is_proven = bound >= objective * (1 - _PROVEN)
        if is_proven or fleets.num_contradictions or search.is_over or objective <= search.good_enough:
            continue
        part = search.part(search.left_s * _SHARE_OF_LAST)
        markets = part.bounded(partial(fleets.markets, number), None)
        if markets is None:
            continue
        find = partial(fleets.best, markets, part, most=objective * (1 - SAME))
        if (answer := part.bounded(find, None)) is not None:
            best.bounds[number] = max(bound, min(answer.solution.bound, objective))


def _of_measured(fleets: Fleets, markets: Sequence[Market]) -> list[Market]:
    """Return the markets of devices whose training steps were measured, where others are not."""
    found = [one for one in markets if all(fleets.is_measured(offer) for offer in one.offers)]
    return found if len(found) < len(markets) else []


def _improved(fleets: Fleets, best: _Best, objective: float, search: Search) -> bool:
    """Make a fleet that was looked at, and is better than the answer's objective, the best one, if there is any.

    Asked where the answer is proven, too: a plan may have cuts of the layers that no bound is of.
    """
    better = search.bounded(partial(fleets.best_looked_at, most=objective * (1 - SAME)), None)
    if better is None:
        return False
    best.take(*better)
    return True


def _tied(fleets: Fleets, best: _Best, choice: Choice, search: Search) -> bool:
    """Make a fleet that was looked at the best one where it is as good, and sooner or cheaper, if there is any."""
    if fleets.procurement.is_monthly or search.is_over or best.num_ties == _MOST_TIES:
        return False
    limits = fleets.account.limits
    for market, point in fleets.looked_at_by_time():
        one = choice_of(fleets, Fleet(offers=market.offers, counts=point.counts), point.payload)
        is_kept = is_within(one.total_wall_s, limits["time"]) and is_within(one.spent_usd, limits["spent"])
        pairs = ((one.total_wall_s, choice.total_wall_s), (one.cost_usd, choice.cost_usd))
        is_as_good = one.objective <= choice.objective * (1 + SAME / 2) and is_kept
        if is_as_good and all(a <= b * (1 + SAME) for a, b in pairs) and any(a < b * (1 - NEAR) for a, b in pairs):
            best.take(market, replace(point, criteria=(one.objective,)))
            best.num_ties += 1
            return True
    return False


def _certificate(fleets: Fleets, best: _Best, choice: Choice) -> Certificate:
    """Return what was proven."""
    bound = min(best.bound, choice.objective)
    is_agreed = not fleets.num_contradictions  # else a bound holds for less than all fleets
    is_proven = is_agreed and choice.objective - bound <= _PROVEN * choice.objective
    return Certificate(
        status=Status.OPTIMAL if is_proven else Status.FEASIBLE,
        objective=choice.objective,
        bound=choice.objective if is_proven else bound,
        bounds={number: min(of_types, choice.objective) for number, of_types in best.bounds.items()},
        domain=domain_of(fleets),
        num_offers=len(fleets.offers),
        num_markets=best.num_markets,
        num_planned=sum(oracle.num_planned for oracle in fleets.oracles),
    )


def _busy(certificate: Certificate, search: Search, begin_s: float, begin_cpu_s: float) -> tuple[str, ...]:
    """Return that other programs took the processor while an answer was not proven: limits are of the clock's time."""
    wall_s, cpu_s = search.clock() - begin_s, time.process_time() - begin_cpu_s
    is_short = wall_s < _TOLD_S or cpu_s > _BUSY * wall_s
    if certificate.status is Status.OPTIMAL or search.pool is not None or is_short:
        return ()
    got = f"the search had {time_words(cpu_s)} of a processor in {time_words(wall_s)}, since other programs ran"
    return (f"{got}: with more time (--time-limit) it may find a better fleet, and prove it",)


def _alternatives(fleets: Fleets, choice: Choice, search: Search, planned: Planned) -> tuple[tuple[Choice, str], ...]:
    """Return the best fleets of other devices, one of each, found by a limited number of plans.

    Most offers are ruled out by bounds alone, so that nothing but these is known of them: what they would have come
    to is what a buyer asks next. The first few that come close are planned as the answer is, and may become it, however
    many are asked for: see :func:`_plan_close`.
    """
    others: list[tuple[Choice, str]] = []
    own, by_device = {offer.device for offer in choice.fleet.offers}, dict[str, list[Market]]()
    close, most_calls = choice.objective * (1 + _CLOSE_BY), _MOST_CALLS if len(fleets.oracles) == 1 else _MOST_OF_JOBS
    for market in fleets.promising(fleets.markets(1)):
        if (device := market.offers[0].device) not in own:
            by_device.setdefault(device, []).append(market)
    for num_tried, markets in enumerate(by_device.values(), start=1):
        is_close, is_full = num_tried <= _MOST_CLOSE, len(others) >= search.num_alternatives
        worst = others[-1][0].objective if others and is_full else 0.0 if is_full else inf
        if not (enough := max(worst, close if is_close else 0.0)):
            break
        solution = fleets.best(markets, search, most_calls=most_calls, most=enough).solution
        if (point := solution.value) is None:
            continue
        other = choice_of(fleets, Fleet(offers=markets[point.root].offers, counts=point.counts), point.payload)
        if other.objective < close and is_close:
            other = planned_choice(fleets, other.fleet, point.payload, planned)
        is_proven = solution.status is Status.OPTIMAL
        others.append((other, "" if is_proven else f"or less, by {percent_words(solution.gap)} at most"))
        others = sorted(others, key=lambda pair: pair[0].objective)[: search.num_alternatives]
    return tuple(others)


def _search_near(fleets: Fleets, choice: Choice, search: Search) -> bool:
    """Look for the cheapest fleets with other ends, of one training: a good half of the time, and twice as much.

    Fleets of one type, over the budget, too. What is found is no part of the answer. Return whether a limit of time
    struck.
    """
    if fleets.procurement.is_monthly or not search.num_alternatives:
        return False
    cost_usd, found, is_late = choice.cost_usd, None, False
    ends = ((SOONER, cost_usd * MUCH_DEARER), (LITTLE_SOONER, inf), (LATER, cost_usd * (1 - NEAR)))
    for factor, most in ends:
        if factor == LITTLE_SOONER and found is not None and isfinite(found.solution.objective):
            continue
        update = {"objective": "cost", "deadline": factor * choice.total_wall_s}
        asked = fleets.procurement.asked.model_copy(update=update)
        other = fleets.asked_otherwise(procurement=replace(fleets.procurement, asked=asked))
        part, without = search.part(search.left_s * _SHARE_OF_NEAR), ("spent", "spending")
        find = partial(other.best, other.markets(1), part, without=without, most=most, most_calls=_MOST_CALLS)
        found = search.bounded(find, None)
        is_late |= found is None or part.is_out_of_time
    return is_late


def _open_ends(fleets: Fleets, by_deadline: Sequence[object], is_late: bool) -> tuple[str, ...]:
    """Return that fleets with other ends are the best so far, where a limit of time struck while they were looked for.

    The answer may be proven all the same: of fleets that cannot be better a bound will do.
    """
    is_cut_off = is_late or any(oracle.was_cut_off for oracle in fleets.oracles)
    if not by_deadline or not is_cut_off:
        return ()
    told = "of fleets that end sooner or later the cheapest so far are told, since a limit of time struck"
    return (f"{told}: with more time (--time-limit) there may be cheaper ones",)


def _with_looked_at(
    fleets: Fleets, choice: Choice, others: Sequence[tuple[Choice, str]], number: int
) -> tuple[tuple[Choice, str], ...]:
    """Return the best fleets of other devices, those among them that were only looked at on the way; the best first.

    So nothing that stands beside the answer is better than what is said to be next to it.
    """
    own = {offer.device for offer in choice.fleet.offers}
    best = {frozenset(offer.device for offer in one.fleet.offers): (one, note) for one, note in others}
    for market, point in fleets.best_by_devices():
        devices = frozenset(offer.device for offer in market.offers)
        is_known = devices in best and best[devices][0].objective <= point.criteria[0] * (1 + SAME)
        if not devices & own and not is_known:
            one = choice_of(fleets, Fleet(offers=market.offers, counts=point.counts), point.payload)
            best[devices] = one, "or less: it was found on the way"
    return tuple(sorted(best.values(), key=lambda pair: pair[0].objective)[:number])


def _by_deadline(fleets: Fleets, choice: Choice) -> tuple[tuple[Choice, str], ...]:
    """Return what other deadlines would cost, of all fleets that were planned.

    Nothing is proven of it but that each of these fleets does it.
    """
    if fleets.procurement.is_monthly:
        return ()
    found, limits = [], fleets.account.limits
    for market, point in fleets.looked_at_by_time():
        fleet = Fleet(offers=market.offers, counts=point.counts)
        one = choice if fleet == choice.fleet else choice_of(fleets, fleet, point.payload)
        missed = ["after the deadline"] if not is_within(one.total_wall_s, limits["time"]) else []
        missed += ["over the budget"] if not is_within(one.spent_usd, limits["spent"]) else []
        found.append((one, joined(missed)))
    return tuple(found)


@frozen
class _OfMeasured:
    """The best fleet of devices whose training steps were measured, and what to tell of it."""

    choice: Choice | None = None
    warnings: tuple[str, ...] = ()


def _measured(fleets: Fleets, choice: Choice, planned: Planned, search: Search) -> _OfMeasured:
    """Return the best fleet of measured devices where the choice rests on others; nothing where it does not."""
    unknown = dict.fromkeys(offer.device for offer in choice.fleet.offers if not fleets.is_measured(offer))
    if not unknown:
        return _OfMeasured()
    begin = f"the choice rests on {', '.join(unknown)}, where no training steps were measured"
    known = tuple(offer for offer in fleets.offers if fleets.is_measured(offer))
    if not known:
        return _OfMeasured(warnings=(f"{begin}, as they were on none that is offered",))
    narrowed = fleets.asked_otherwise(procurement=replace(fleets.procurement, offers=known))
    asked = fleets.procurement.asked.model_copy(update={"most_types": 1})
    one_type = replace(narrowed.procurement, asked=asked)
    best = _best(narrowed.asked_otherwise(procurement=one_type), search.part(search.left_s / 2), None, planned)
    _improved(narrowed, best, best.objective, search)  # of more types what was looked at will do: nothing is proven
    if best.market is None or best.point is None:
        return _OfMeasured(warnings=(f"{begin}; no fleet of measured devices that keeps the limits was found",))
    fleet = Fleet(offers=best.market.offers, counts=best.point.counts)
    other = planned_choice(narrowed, fleet, best.point.payload, planned)
    name = fleets.procurement.asked.objective
    each = zip(fleet.counts, fleet.offers, strict=True)
    machines = " and ".join(f"{count} x {offer.instance} ({offer.device})" for count, offer in each)
    more = other.objective / choice.objective - 1 if choice.objective else 0.0
    what = f"{machines}, {percent_words(more, is_signed=True)} of its {name.replace('_', ' ')}"
    return _OfMeasured(choice=other, warnings=(f"{begin}; the best of measured devices: {what}",))


def _pareto(fleets: Fleets, others: Sequence[Choice], markets: Sequence[Market], answer: TradeOffs) -> ParetoSet:
    """Return all fleets that none beats in time and money, fastest first, with ties by the known error marked.

    ``others``: fleets that were found elsewhere; an unfinished search may not have come to them.
    """
    is_proven = answer.status is Status.OPTIMAL
    choices = [] if is_proven else [*others]
    for one in answer.points:
        fleet = Fleet(offers=markets[one.point.root].offers, counts=one.point.counts)
        choices.append(choice_of(fleets, fleet, one.point.payload))
    points: list[Choice] = []
    for choice in sorted(choices, key=lambda one: (one.total_wall_s, one.cost_usd)):
        if points and choice.total_wall_s <= points[-1].total_wall_s * (1 + SAME) < inf:
            points[-1] = min(points[-1], choice, key=lambda one: one.cost_usd)  # as fast, but for rounding
        elif not points or choice.cost_usd < points[-1].cost_usd * (1 - SAME):
            points.append(choice)
    status = Status.FEASIBLE if is_proven and fleets.num_contradictions else answer.status
    return ParetoSet(points=tuple(with_ties(points)), status=status, gap=answer.gap)


def with_ties(front: Sequence[Choice]) -> list[Tradeoff]:
    """Mark points whose times differ by less than the prediction's known error: which is faster is not known."""
    points: list[Tradeoff] = []
    for choice in front:
        before = points[-1].choice if points else None
        is_tie = False
        if before is not None and before.error is not None and choice.error is not None:
            slowest = before.total_wall_s * (1 + before.error[1])
            is_tie = slowest >= choice.total_wall_s * (1 + choice.error[0])
        points.append(Tradeoff(choice=choice, is_tie=is_tie))
    return points
