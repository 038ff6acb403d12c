"""One ranking over all networks and families: the same objective, one bound, and why the losers lost.

A question allows a network for every subset of its substitutions, and each family may answer on each. The bound of the
ranking is the least bound of any that may answer; one that found nothing before its limit leaves no more proven than
that the samples have to be computed, see :func:`planner.networks.computation_bound`. Changed networks that not even
computation alone would make faster than the best plan so far are not planned at all.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from planner.errors import InfeasibleError, NoAnswerError, PlannerError, SpecError
from planner.families import FAMILIES
from planner.families.searches import BOUNDS, DOMAINS, SEARCHES
from planner.family_names import OF_TRANSFORMERS
from planner.memory import OUT_OF_MEMORY
from planner.networks import computation_bound, networks_of
from planner.plan import Plan
from planner.problem import Problem
from planner.ranking_deadline import check_deadline
from planner.ranking_refusals import Entry, Refusal, no_plan, refused_words
from planner.ranking_words import about_networks, about_overlap, about_staleness, is_asynchronous, ranked_alternative
from planner.search import LateError, Search
from planner.solution import SAME, Status

__all__ = ["TOO_LATE", "best_plan"]

TOO_LATE = "it did not end with its time, and was broken off; raise --time-limit."
_WEIGHT_OF_OWN = 5


class _Progress:
    """What nothing beats, and the best so far, over all families and networks, as one after the other is searched."""

    def __init__(self, bounds: Sequence[float], search: Search) -> None:
        self._bounds = list(bounds)  # of each entry: first that of its computation alone
        self._best = float("inf")
        self._search = search

    def of(self, index: int) -> Callable[[float, float], None]:
        """Return whom an entry's search tells how far it is."""
        return lambda bound, incumbent: self._tell(index, bound, incumbent)

    def end(self, index: int, bound: float, objective: float = float("inf")) -> None:
        """Take down how an entry ended."""
        self._tell(index, bound, objective)

    def _tell(self, index: int, bound: float, incumbent: float) -> None:
        """Take down a bound, which only rises, and an incumbent, and tell of both where there is a plan."""
        self._bounds[index] = max(self._bounds[index], bound)
        self._best = min(self._best, incumbent)
        if self._best < float("inf"):
            self._search.tell(min(self._best, *self._bounds), self._best)


def best_plan(problem: Problem, search: Search) -> Plan:
    """Return the best plan of all networks and families that the question allows.

    Raises
    ------
    InfeasibleError
        If no family has an answer, or none meets the deadline: with every family's reason.
    NoAnswerError
        If a limit struck before any answer, or before one that meets the deadline.
    SpecError
        If every family refuses the question for the same field of it.
    """
    plans: list[Plan] = []
    refusals: list[Refusal] = []
    entries = _entries(problem)
    progress = _Progress([one.bound for one in entries], search)
    for index, entry in enumerate(entries):
        least = min((one.objective for one in plans), default=float("inf"))
        if plans and least <= search.good_enough:
            refusals += [
                Refusal(entry=one, reason="an answer was good enough.", is_open=True) for one in entries[index:]
            ]
            break
        if entry.is_changed and entry.bound >= least * (1 - SAME):
            progress.end(index, float("inf"))
            continue
        known = [one.objective for one in plans if not is_asynchronous(one.prediction)]
        cutoff = min(known, default=search.cutoff)  # a family that loses is searched until that is proven
        told = progress.of(index) if search.told is not None else None
        part = search.part(search.left_s * _share(entries[index:]), cutoff=cutoff, told=told)
        last = len(plans)
        for answer in _answers(entry, part):
            if isinstance(answer, Plan):
                plans.append(answer)
            else:
                refusals.append(answer)
                if not answer.is_open:
                    progress.end(index, float("inf"))
        for one in plans[last : last + 1]:  # the first answer's bound covers a second one
            progress.end(index, one.bound, one.objective)
    if not plans:
        raise no_plan(refusals)
    least = min(one.objective for one in plans)
    best = next(one for one in plans if one.objective <= least * (1 + SAME))  # of equals, the family asked first
    found = _ranked(problem, best, [one for one in plans if one is not best], refusals)
    check_deadline(problem, found, search)
    return found


def _entries(problem: Problem) -> list[Entry]:
    """Return every family on every network: the given network first, then the most promising ones.

    The families stand in the order in which they are asked: the first of equals is the answer.
    """
    first, *others = networks_of(problem)
    networks = [first, *sorted(others, key=computation_bound)]
    return [
        Entry(
            problem=network,
            family=family,
            bound=BOUNDS[family](network),
            is_changed=network is not first,
        )
        for network in networks
        for family in _in_order(network)
        if family in SEARCHES
    ]


def _in_order(network: Problem) -> list[str]:
    """Return the families of a network in the order in which they are asked; the order of equals stays."""
    # Of a transformer its own family is asked first: its answer tells which others are worth while.
    own = OF_TRANSFORMERS if network.dnn.transformer is not None else None
    return sorted(network.families, key=lambda one: one != own)


def _share(left: Sequence[Entry]) -> float:
    """Return the share of the time that the first of the entries may take: more for a family that knows transformers.

    What it leaves goes to the others.
    """
    knows = (one.family == OF_TRANSFORMERS and one.problem.dnn.transformer is not None for one in left)
    weights = [_WEIGHT_OF_OWN if it_does else 1 for it_does in knows]
    return weights[0] / sum(weights)


def _answers(entry: Entry, part: Search) -> Iterator[Plan | Refusal]:
    """Yield a family's plan, or why there is none; after an asynchronous one its best synchronous one, too."""
    answer = _searched(entry, part)
    yield answer
    limits = entry.problem.limits
    is_pinned = "synchronisation" in entry.problem.fixed
    if limits.max_staleness and not is_pinned and isinstance(answer, Plan) and is_asynchronous(answer.prediction):
        waiting = replace(entry.problem, limits=replace(limits, max_staleness=0.0))
        second = _searched(replace(entry, problem=waiting), part.part(part.left_s))
        if isinstance(second, Plan) and not is_asynchronous(second.prediction):
            yield second  # the first answer's bound covers it


def _searched(entry: Entry, search: Search) -> Plan | Refusal:
    """Return what a family's search answers."""
    if entry.problem.excluded and not FAMILIES[entry.family].TAKES_EXCLUSIONS:
        key = next(iter(entry.problem.excluded))
        reason = f"{entry.family} takes no exclusions, and constraints.exclude.{key} is given."
        return Refusal(entry=entry, reason=reason)
    if stranger := sorted(entry.problem.fixed.keys() - FAMILIES[entry.family].DECISIONS):
        return Refusal(entry=entry, reason=f"{entry.family} does not decide fix.{stranger[0]}, which is pinned.")
    is_begun = not search.is_late
    try:  # even where the time is over: a family that does not apply says so at once
        with search.ended():
            found = SEARCHES[entry.family](entry.problem, search)
    except (LateError, MemoryError) as error:
        return _broken_off(entry, search, error)
    except InfeasibleError as error:
        return Refusal(entry=entry, reason=str(error))
    except SpecError as error:
        return Refusal(entry=entry, reason=str(error), error=error)
    except NoAnswerError as error:
        if is_begun:
            return _broken_off(entry, search, error)
        return Refusal(entry=entry, reason=str(error), is_open=True)
    return replace(found, substitutions=entry.problem.taken)


def _broken_off(entry: Entry, search: Search, why: BaseException) -> Plan | Refusal:
    """Return the best that a family had when it was broken off, with what is known without its search."""
    search.disarm()
    reason = TOO_LATE if isinstance(why, LateError) else str(why) or OUT_OF_MEMORY
    gc.collect()  # what it held stands in the others' way
    if search.kept is None:
        return Refusal(entry=entry, reason=reason, is_open=True)
    try:
        found = search.kept()
    except (PlannerError, MemoryError):
        return Refusal(entry=entry, reason=reason, is_open=True)
    warning = f"{entry.family}: its search was broken off, so its bound is a weak one: {reason}"
    return replace(
        found,
        status=Status.FEASIBLE,
        bound=min(entry.bound, found.objective),
        substitutions=entry.problem.taken,
        warnings=(*found.warnings, warning),
    )


# -- the ranking -----------------------------------------------------------------------------------------------------


def _ranked(problem: Problem, best: Plan, losers: Iterable[Plan], refusals: Sequence[Refusal]) -> Plan:
    """Return the best plan with the bound over all that was asked, and the losers as alternatives."""
    losers = sorted(losers, key=lambda one: one.objective)
    open_bounds = [one.entry.bound for one in refusals if one.is_open]
    bound = min([best.bound, *open_bounds, *(one.bound for one in losers)])
    is_proven = best.objective - bound <= SAME * best.objective
    own = [replace(one, substitutions=best.substitutions) for one in best.alternatives]
    others = [ranked_alternative(one, best) for one in losers]
    networks = about_networks(problem, best, losers, is_proven=is_proven)
    staleness, warnings = about_staleness([best, *losers])
    beyond: dict[str, float] = {}
    for one in (best, *losers):
        for what, least in one.beyond.items():
            if least < best.objective * (1 - SAME):
                beyond[what] = min(least, beyond.get(what, least))
    return replace(
        best,
        status=Status.OPTIMAL if is_proven else Status.FEASIBLE,
        bound=best.objective if is_proven else bound,
        alternatives=tuple(sorted([*own, *others], key=lambda one: one.objective)),
        explanation=(*best.explanation, *networks, *staleness, *refused_words(refusals)),
        warnings=(*best.warnings, *warnings, *about_overlap(problem, best, losers)),
        beyond=beyond,
        domain=tuple(f"{name}: {DOMAINS[name]}" for name in dict.fromkeys(one.family for one in (best, *losers))),
    )
