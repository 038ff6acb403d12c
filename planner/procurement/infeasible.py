"""Why no fleet keeps the limits, and by how much which of them would have to give."""

from collections.abc import Iterator
from itertools import combinations
from math import inf

from planner.errors import InfeasibleError
from planner.procurement.fleet import Fleet, Market
from planner.procurement.search import Fleets
from planner.procurement.words import LIMITS, amount
from planner.search import Search
from planner.solution import Status

__all__ = ["no_fleet"]

_SHARE = 0.5  # of the time that is left, for each limit


def no_fleet(fleets: Fleets, search: Search) -> InfeasibleError:
    """Return the error of a question that no fleet answers: every limit that settles it alone, with its least value."""
    given = [name for name, limit in fleets.account.limits.items() if limit < inf and name in LIMITS]
    wanted = ", ".join(f"{LIMITS[name][0]} {amount(fleets.account.limits[name], name)}" for name in given)
    ways = list(_ways(fleets, given, search))
    if not ways:
        reason = _training(fleets, search)
        return InfeasibleError(reason or f"no fleet keeps the limits ({wanted}), and no one of them alone settles it.")
    which = "this settles it" if len(ways) == 1 else "any one of these settles it"
    return InfeasibleError(
        "\n".join([f"no fleet keeps the limits ({wanted}); {which}:", *(f"  {way}" for way in ways)])
    )


def _ways(fleets: Fleets, given: list[str], search: Search) -> Iterator[str]:
    """Yield the least value of a limit with which some fleet keeps all others; where none does alone, of two."""
    found = False
    for name in given:
        if (words := _way(fleets, [name], search)) is not None:
            found = True
            yield words
    if not found:
        for names in combinations(given, 2):
            if (words := _way(fleets, list(names), search)) is not None:
                yield words


def _way(fleets: Fleets, names: list[str], search: Search) -> str | None:
    """Return what the first of some limits has to be without the others, or None where that is not enough."""
    best: tuple[float, Market, tuple[int, ...]] | None = None
    is_proven = True
    for num_types in range(1, fleets.procurement.asked.most_types + 1):
        markets = fleets.markets(num_types)
        if not markets:
            continue
        part = search.part(search.left_s * _SHARE)
        most = inf if best is None else best[0]
        answer = fleets.best(markets, part, objective=names[0], without=names, most=most)
        is_proven &= answer.solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
        if answer.solution.value is not None:
            point = answer.solution.value
            best = (answer.solution.objective, markets[point.root], point.counts)
    if best is None:
        return None
    value, market, counts = best
    fleet = Fleet(offers=market.offers, counts=counts)
    called = LIMITS[names[0]][0]
    others = "".join(f", without the limit on {LIMITS[name][0]}" for name in names[1:])
    least = "" if is_proven else ", or less: a limit struck before the least was proven"
    return f"{called} {amount(value, names[0])}{others} ({fleet.headline}){least}"


def _training(fleets: Fleets, search: Search) -> str | None:
    """Return why no fleet can train at all, from the largest fleets of a few offers; None where some can."""
    for market in fleets.markets(1):
        reading = fleets.trained(market, market.most, search)
        if reading.value < inf:
            return None
        if reading.payload:
            reason = next(iter(reading.payload[0].reason.splitlines()), "")
            return f"no fleet can train it; e.g. on {market.most[0]} x {market.offers[0].name}: {reason}"
    return "no fleet can be made of the offers."
