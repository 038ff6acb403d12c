"""The answer to a question of a purchase: the best fleet, its proof, what else was weighed, and how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

from planner.procurement.answer import Certificate, Choice, ParetoSet, Procured, Tradeoff, WhatIf
from planner.procurement.break_even import break_evens
from planner.procurement.choice import Planned, choice_of, margin_of, planned_choice
from planner.procurement.fleet import Fleet, Market
from planner.procurement.infeasible import no_fleet, not_found
from planner.procurement.notes import assumptions_of, warnings_of
from planner.procurement.question import Procurement
from planner.procurement.robust import stretch_of
from planner.procurement.search import Fleets, Told
from planner.procurement.what_if import Changed, what_ifs
from planner.procurement.words import domain_of, reasons_of
from planner.search import Search
from planner.solution import SAME, Status
from planner.solvers.count_boxes import Bounded, TradeOffs

__all__ = ["procure"]

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
