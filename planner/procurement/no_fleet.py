"""Why no fleet keeps the limits of a purchase, and how far each of them would have to give."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import ceil, inf

from planner.constraints import FLEET_LIMITS
from planner.errors import Conflict, InfeasibleError, NoAnswerError, Relaxation
from planner.frozen import frozen
from planner.procurement.answer import LIMITS, amount, begins_anew, enough, rate_unit
from planner.procurement.fleet import Fleet
from planner.procurement.search import Fleets
from planner.procurement.what_if import with_deadlines
from planner.search import Search
from planner.solution import SAME, Status

_INFEASIBLE_SHARE = 0.5  # of the time that is left, for each limit
_LATEST = 1024.0  # times the deadlines of jobs
_CLOSE = 1.01  # factor within which the least is found
_FIELDS = {limit.criterion: limit.field for limit in FLEET_LIMITS}


@frozen
class _Relaxed:
    """A limit that would have to give, as text and as data."""

    words: str
    relaxation: Relaxation


def no_fleet(fleets: Fleets, search: Search) -> InfeasibleError:
    """Return the error of a question that no fleet answers: every limit that settles it alone, with its least value.

    Every set of limits that leave no answer holds each limit that settles it alone. So where every limit of the
    question does, there is an answer without any one of them, and the conflict is minimal.
    """
    relaxed = list(_relaxations(fleets, range(1, fleets.procurement.asked.most_types + 1), search))
    limits = _limits_words(fleets)
    if not relaxed:
        reason = _no_training(fleets, search)
        return InfeasibleError(reason or f"no fleet keeps {limits}, and no one of them alone settles it.")
    lines = [f"no fleet keeps {limits}; {_settled(relaxed)}:", *(one.words for one in relaxed)]
    if begins_anew(fleets):
        lines.append("without procure.run.storage_rate, or checkpoint, training begins anew after every failure")
    relaxations = tuple(one.relaxation for one in relaxed)
    wanted = {_FIELDS[name] for name in _movable(fleets)}
    wanted |= {"procure.jobs"} if _has_deadlines(fleets) else set()
    is_minimal = {row.field for row in relaxations if row.is_enough} == wanted
    return InfeasibleError.of("\n".join(lines), [Conflict(relaxations=relaxations, is_minimal=is_minimal)])


def not_found(fleets: Fleets, bounds: Mapping[int, float], search: Search) -> NoAnswerError:
    """Return the error of a search that a limit ended before it found a fleet: what is proven then, and what would do.

    ``bounds``: by the number of types, what no fleet of so many beats; infinite where none keeps the limits.
    """
    bound = min(bounds.values())
    least = (
        f"nothing beats {amount(bound, fleets.procurement.asked.objective)}" if bound > 0 else "nothing is proven yet"
    )
    ended, mend = ("a limit came", "Raise --time-limit")
    if search.was_interrupted:
        ended, mend = ("the search was interrupted", "Let it run")
    lines = [f"{ended} before the first fleet was found; {least}. {mend}."]
    if proven := [number for number, bound in bounds.items() if bound == inf]:
        types = " or ".join(map(str, proven))
        lines[0] += (
            f" Proven: no fleet of {types} type{'s' * (proven != [1])} of machines keeps {_limits_words(fleets)}"
        )
        relaxed = list(_relaxations(fleets, proven, search))
        lines[0] += f"; with so many, {_settled(relaxed)}:" if relaxed else "."
        lines += [one.words for one in relaxed]
    return NoAnswerError("\n".join(lines))


def _has_deadlines(fleets: Fleets) -> bool:
    """Whether one of several jobs has a deadline."""
    return fleets.procurement.is_monthly and any(job.deadline_s < inf for job in fleets.procurement.jobs)


def _limits_words(fleets: Fleets) -> str:
    """Return all limits in words."""
    asked, words = fleets.procurement.asked, []
    for name, limit in fleets.account.limits.items():
        if limit < inf and name in LIMITS:
            called = "month of" if name == "time" and fleets.procurement.is_monthly else LIMITS[name][0]
            words.append(f"{called} {amount(limit, name, rate_unit(fleets.procurement))}")
    if _has_deadlines(fleets):
        words.append("the deadlines of the jobs")
    if asked.machines is not None:
        words.append("the number of machines")
    if asked.quotas or any(offer.most is not None for offer in fleets.offers):
        words.append("what can be had of each")
    return f"the limits ({', '.join(words)})" if words else "the question"


def _settled(relaxed: Sequence[_Relaxed]) -> str:
    return "this settles it" if len(relaxed) == 1 else "any one of these settles it"


def _movable(fleets: Fleets) -> list[str]:
    """Return the limits that there are and that can be another one: a month is what it is."""
    is_monthly = fleets.procurement.is_monthly
    limits = fleets.account.limits
    return [name for name in limits if limits[name] < inf and name in _FIELDS and not (name == "time" and is_monthly)]


def _relaxations(fleets: Fleets, types: Sequence[int], search: Search) -> Iterator[_Relaxed]:
    """Yield the least value of a limit with which some fleet keeps all others; where none does alone, less of them."""
    later = _later(fleets, types, search)
    if later is not None:
        yield later
    names = _movable(fleets)
    others = [name for name in fleets.account.limits if fleets.account.limits[name] < inf and name in LIMITS]
    for number in range(len(others)):
        is_settled = later is not None and not number
        for name in names:
            for dropped in combinations([other for other in others if other != name], number):
                if (one := _relaxation(fleets, [name, *dropped], types, search)) is not None:
                    is_settled = True
                    yield one
        if is_settled:
            return


def _relaxation(fleets: Fleets, names: list[str], types: Sequence[int], search: Search) -> _Relaxed | None:
    """Return what the first of some limits has to be without the others, or None where that is not enough."""
    best, is_proven = _least(fleets, types, search, names)
    called, limit = LIMITS[names[0]][0], fleets.account.limits[names[0]]
    per = rate_unit(fleets.procurement)
    given = amount(limit, names[0], per)
    if best is None:
        if is_proven:
            return None
        note = "whether more of it is enough was not found out in time"
        row = Relaxation(field=_FIELDS[names[0]], given=given, values=(), is_exact=False, is_enough=False, note=note)
        return _Relaxed(words=f"  {called}: {note}", relaxation=row)
    value, fleet = best
    others = "".join(f" and no limit on {LIMITS[name][0]}" for name in names[1:])
    least = "" if is_proven else ", or less: a limit struck before the least was proven"
    needed = enough(value, names[0], per)
    row = Relaxation(
        field=_FIELDS[names[0]],
        given=given,
        values=(needed,),
        is_exact=is_proven,
        is_enough=not others,
        change=value / limit - 1 if limit else None,
        note=f"{fleet.headline}{others}",
    )
    return _Relaxed(words=f"  {called} {needed}{others} ({fleet.headline}){least}", relaxation=row)


def _least(
    fleets: Fleets, types: Sequence[int], search: Search, names: Sequence[str]
) -> tuple[tuple[float, Fleet] | None, bool]:
    """Return the fleet with the least of the first criterion, without limits on any of them, and whether it is proven.

    Without names: any fleet that keeps all limits.
    """
    best: tuple[float, Fleet] | None = None
    is_proven = True
    for num_types in types:
        if not (markets := fleets.markets(num_types)):
            continue
        part = search.part(search.left_s * _INFEASIBLE_SHARE, good_enough=None if names else inf)
        most = inf if best is None else best[0] * (1 - SAME)  # else as good a fleet of more types takes its place
        objective = names[0] if names else "objective"
        solution = fleets.best(markets, part, objective=objective, without=names, most=most).solution
        is_proven &= solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
        if (point := solution.value) is not None:
            best = solution.objective, Fleet(offers=markets[point.root].offers, counts=point.counts)
    return best, is_proven


def _later(fleets: Fleets, types: Sequence[int], search: Search) -> _Relaxed | None:
    """Return by what factor all deadlines of jobs have to be later for some fleet to keep them and the limits."""
    if not _has_deadlines(fleets):
        return None
    low, high = 1.0, _LATEST
    best = _least(with_deadlines(fleets, high), types, search, ())[0]
    if best is None:
        return None
    while high > low * _CLOSE:
        middle = (low * high) ** 0.5
        earlier = _least(with_deadlines(fleets, middle), types, search, ())[0]
        low, high, best = (middle, high, best) if earlier is None else (low, middle, earlier)
    times, headline = f"{ceil(high * 100) / 100:g} times as late", best[1].headline
    row = Relaxation(
        field="procure.jobs",
        given="the deadlines of the jobs",
        values=(times,),
        is_exact=False,
        change=high - 1,
        note=headline,
    )
    return _Relaxed(words=f"  deadlines of the jobs {times} ({headline})", relaxation=row)


def _no_training(fleets: Fleets, search: Search) -> str | None:
    """Return why no fleet can train at all, from the largest fleets of a few offers; None where some can."""
    for market in fleets.markets(1):
        reading = fleets.trained(market, market.most, search)
        if reading.value < inf:
            return None
        if reading.payload:
            reason = next(iter(reading.payload[0].reason.splitlines()), "")
            fleet = f"{market.most[0]} x {market.offers[0].name}"
            return f"no fleet can train it; e.g. on {fleet}: {reason}" if reason else None
    return "no fleet can be made of the offers."
