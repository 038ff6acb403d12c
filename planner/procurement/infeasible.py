"""Why no fleet keeps the limits, and by how much which of them would have to give."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, inf

from planner.errors import Conflict, InfeasibleError, NoAnswerError, Relaxation
from planner.procurement.fleet import Fleet, Market
from planner.procurement.search import Fleets
from planner.procurement.what_if import due
from planner.procurement.words import LIMITS, amount, enough
from planner.search import Search
from planner.solution import SAME, Status

__all__ = ["no_fleet", "not_found"]

_SHARE = 0.5  # of the time that is left, for each limit
_LATEST = 1024.0  # times the deadlines of jobs
_CLOSE = 1.01  # factor within which the least is told
_FIELDS = {"spent": "budget", "time": "deadline"}  # of the block procure, where a limit is not called as there

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
    return f"procure.{_FIELDS.get(name, name)}"


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
        part = search.part(search.left_s * _SHARE, good_enough=None if names else inf)
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
