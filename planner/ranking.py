"""One ranking over all networks and families: the same objective, one bound, and why the losers lost.

A question allows a network for every subset of its substitutions, and each family may answer on each. The bound of the
ranking is the least bound of any that may answer; one that found nothing before its limit leaves no more proven than
that the samples have to be computed, see :func:`planner.networks.computation_bound`. Changed networks that not even
computation alone would make faster than the best plan so far are not planned at all.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from operator import ne

from planner.constraints import check_deadline, lockstep, narrowed
from planner.decisions import asked_by, excludable_keys, pinnable_keys
from planner.errors import InfeasibleError, NoAnswerError, PlannerError, SpecError
from planner.families import FAMILIES, bound_of
from planner.frozen import frozen
from planner.memory import OUT_OF_MEMORY
from planner.names import OF_TRANSFORMERS
from planner.networks import asked, computation_bound, name_of, networks_of
from planner.plan import Alternative, Plan
from planner.plugins import PluginError
from planner.problem import Problem
from planner.search import LateError, MemoryLimitError, Search
from planner.solution import SAME, Status, proof_of
from planner.words import clipped, part_words, percent_words, time_words

TOO_LATE = "it did not end with its time, and was broken off; raise --time-limit."
_WEIGHT_OF_OWN = 20  # of the family of transformers, where time is shared out
_MOST_WORDS = 160  # letters of a refusal in an explanation
_TELLING = 0.0005  # share of the best plan's objective that is told apart from nothing
_COMPUTATION = ("forward", "backward", "update", "compute", "optimizer")


@frozen
class Entry:
    """A family on a network; ``bound`` is what no plan of it can beat."""

    problem: Problem
    family: str
    bound: float
    is_changed: bool

    @property
    def words(self) -> str:
        """The family, and its network where that is a changed one."""
        taken = self.problem.taken if self.is_changed else ()
        return f"{self.family} with {', '.join(taken)}" if taken else self.family


@frozen
class Refusal:
    """Why there is no plan; ``is_open``: not because there is none, but because a limit struck.

    ``error``: what is wrong with the question, where that is the reason; ``enough_bytes``: as of
    :class:`planner.errors.InfeasibleError`.
    """

    entry: Entry
    reason: str
    is_open: bool = False
    error: SpecError | None = None
    enough_bytes: float = inf


class _Progress:
    """What nothing beats, and the best so far, over all families and networks, as one after the other is searched."""

    def __init__(self, bounds: Sequence[float], search: Search) -> None:
        self._bounds = list(bounds)  # of each entry: first that of its computation alone
        self._best = float("inf")
        self._search = search

    def update(self, index: int, bound: float, incumbent: float = float("inf")) -> None:
        """Take down an entry's bound, which only rises, and its incumbent; tell of both where there is a plan."""
        self._bounds[index] = max(self._bounds[index], bound)
        self._best = min(self._best, incumbent)
        if self._best < float("inf"):
            self._search.report(min(self._best, *self._bounds), self._best)


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
            progress.update(index, float("inf"))
            continue
        known = [one.objective for one in plans if not one.prediction.is_asynchronous]
        cutoff = min(known, default=search.cutoff)  # a family that loses is searched until that is proven
        on_progress = partial(progress.update, index) if search.on_progress is not None else None
        # More of the time for a family that knows transformers; what it leaves goes to the others.
        weights = [
            _WEIGHT_OF_OWN if one.family == OF_TRANSFORMERS and one.problem.dnn.transformer is not None else 1
            for one in entries[index:]
        ]
        part = search.part(search.left_s * weights[0] / sum(weights), cutoff=cutoff, on_progress=on_progress)
        last = len(plans)
        for answer in _answers(entry, part):
            if isinstance(answer, Plan):
                plans.append(answer)
            else:
                refusals.append(answer)
                if not answer.is_open:
                    progress.update(index, float("inf"))
        for one in plans[last : last + 1]:  # the first answer's bound covers a second one
            progress.update(index, one.bound, one.objective)
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
    found = []
    for network in [first, *sorted(others, key=computation_bound)]:
        # Of a transformer its own family is asked first: its answer tells which others are worth while.
        own = OF_TRANSFORMERS if network.dnn.transformer is not None else None
        for family in sorted(network.families, key=partial(ne, own)):
            if family in FAMILIES:
                bound = bound_of(family, network)
                found.append(Entry(problem=network, family=family, bound=bound, is_changed=network is not first))
    return found


def _answers(entry: Entry, part: Search) -> Iterator[Plan | Refusal]:
    """Yield a family's plan, or why there is none; after an asynchronous one its best synchronous one, too."""
    answer = _searched(entry, part)
    yield answer
    waiting = lockstep(entry.problem)
    if waiting is not None and isinstance(answer, Plan) and answer.prediction.is_asynchronous:
        second = _searched(replace(entry, problem=waiting), part.part(part.left_s))
        if isinstance(second, Plan) and not second.prediction.is_asynchronous:
            yield second  # the first answer's bound covers it


def _searched(entry: Entry, search: Search) -> Plan | Refusal:
    """Return what a family's search answers."""
    if entry.family != OF_TRANSFORMERS and (words := entry.problem.own_words):
        return Refusal(entry=entry, reason=f"{entry.family} does not count {words}: {OF_TRANSFORMERS} alone does.")
    if barred := [key for key in entry.problem.excluded if key not in excludable_keys(entry.family)]:
        reason = f"{entry.family} takes no exclusions, and constraints.exclude.{barred[0]} is given."
        return Refusal(entry=entry, reason=reason)
    known = {*pinnable_keys(entry.family), *getattr(FAMILIES[entry.family], "PINS", ())}
    fixed = entry.problem.fixed
    if strange := sorted(fixed.keys() - known, key=lambda key: (key in asked_by(fixed), key)):
        return Refusal(entry=entry, reason=f"{entry.family} does not decide fix.{strange[0]}, which is pinned.")
    is_begun = not search.is_late
    try:  # even where the time is over: a family that does not apply says so at once
        with search.ended():
            found = FAMILIES[entry.family].search(narrowed(entry.problem), search)
    except (LateError, MemoryError) as error:
        return _broken_off(entry, search, error)
    except InfeasibleError as error:
        return Refusal(entry=entry, reason=str(error), enough_bytes=error.enough_bytes)
    except PluginError:
        raise
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
    if not isinstance(why, NoAnswerError) or isinstance(why, MemoryLimitError):
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


def _ranked(problem: Problem, best: Plan, losers: Iterable[Plan], refusals: Sequence[Refusal]) -> Plan:
    """Return the best plan with the bound over all that was asked, and the losers as alternatives."""
    losers = sorted(losers, key=lambda one: one.objective)
    open_bounds = [one.entry.bound for one in refusals if one.is_open]
    bound = min([best.bound, *open_bounds, *(one.bound for one in losers)])
    status = proof_of(best.objective, bound)
    is_proven = status is Status.OPTIMAL
    own = [replace(one, substitutions=best.substitutions) for one in best.alternatives]
    others = [ranked_alternative(one, best) for one in losers]
    networks = about_networks(problem, best, losers, is_proven=is_proven)
    staleness, warnings = about_staleness([best, *losers])
    by_family: dict[str, float] = {}
    if not asked(problem).substitutions:
        by_family = {one.entry.family: one.entry.bound if one.is_open else float("inf") for one in refusals}
        for one in (best, *losers):
            by_family[one.family] = min(one.bound, by_family.get(one.family, float("inf")))
    beyond: dict[str, float] = {}
    for one in (best, *losers):
        for what, least in one.beyond.items():
            if least < best.objective * (1 - SAME):
                beyond[what] = min(least, beyond.get(what, least))
    return replace(
        best,
        status=status,
        bound=best.objective if is_proven else bound,
        alternatives=tuple(sorted([*own, *others], key=lambda one: one.objective)),
        explanation=(*best.explanation, *networks, *staleness, *refused_words(refusals)),
        warnings=(*best.warnings, *warnings, *about_overlap(problem, best, losers)),
        beyond=beyond,
        least_by_family=by_family,
        domain=(
            *(f"{name}: {FAMILIES[name].domain()}" for name in dict.fromkeys(one.family for one in (best, *losers))),
            *dict.fromkeys(line for one in (best, *losers) for line in one.domain),
        ),
    )


# --- Families that gave no plan: each with its reason, beside a plan or where there is none at all


def no_plan(refusals: Sequence[Refusal]) -> PlannerError:
    """Return why there is no plan at all: wrong input, a limit, or that nothing fits."""
    errors = [one.error for one in refusals if one.error is not None]
    if errors and len(errors) == len(refusals):  # every family refuses the question: for one field of it, the same?
        fields = {frozenset(fault.field for fault in error.faults) for error in errors}
        faults = dict.fromkeys(fault for error in errors for fault in error.faults)
        if len(fields) == 1 and faults:
            return SpecError.of(faults)
    unanswered = [one for one in refusals if one.is_open]
    closed = [one for one in refusals if not one.is_open]
    if not unanswered or not closed:
        reasons: dict[tuple[str, str], str] = {}  # a line for each family; for changed networks only what differs
        for one in refusals:
            reasons.setdefault((one.entry.family, one.reason), f"{one.entry.words}: {one.reason}")
        text = "\n".join(reasons.values()) if len(reasons) != 1 else refusals[0].reason
        if not unanswered:
            text = text or "No plan fits: none of the allowed families can be searched. Allow others."
            return InfeasibleError.of(text, enough_bytes=min((one.enough_bytes for one in refusals), default=inf))
        return NoAnswerError(text)

    def lines(refusals: Sequence[Refusal]) -> list[str]:
        texts = dict.fromkeys(f"{one.entry.words}: {one.reason}" for one in refusals)
        return [f"  {line}" for text in texts for line in text.splitlines()]

    begin = ["No plan was found, nor is it proven that there is none.", "Not known:"]
    return NoAnswerError("\n".join([*begin, *lines(unanswered), "Known to have no plan:", *lines(closed)]))


def refused_words(refusals: Iterable[Refusal]) -> list[str]:
    """Return the families that give no plan, each with its reason once: its first sentence or two."""
    lines: dict[tuple[str, str], str] = {}
    for one in refusals:
        text = " ".join(one.reason.split())
        if len(text) > _MOST_WORDS:
            cut = text.rfind(". ", 0, _MOST_WORDS)
            text = text[: cut + 1] if cut > 0 else clipped(text, _MOST_WORDS)
        lines.setdefault((one.entry.family, one.reason), f"{one.entry.words} gives no plan: {text}")
    return list(lines.values())


# --- What a ranking says: why the losers lost, what changed networks bring, and what stale gradients may cost


def ranked_alternative(one: Plan, best: Plan) -> Alternative:
    """Return a plan that lost: by what it spends most on beside computation, and how sure that is."""
    network = name_of(one.substitutions, best.substitutions)
    kind = ""
    if one.prediction.is_asynchronous != best.prediction.is_asynchronous:
        kind = " (asynchronous)" if one.prediction.is_asynchronous else " (synchronous)"
    total_s = one.prediction.iteration_time_s
    parts = {name: s for name, s in one.prediction.breakdown_s.items() if name not in _COMPUTATION}
    worst = max(parts, key=parts.__getitem__, default="")
    reason = "next to nothing but computation"
    if worst and total_s and parts[worst] >= 0.005 * total_s:
        reason = f"{parts[worst] / total_s:.0%} of its time is {part_words(worst)}"
    if one.status is not Status.OPTIMAL:  # it is not proven to be the best of its family
        least = one.bound / best.objective - 1 if best.objective else 0.0
        if least < -SAME:
            reason += "; not proven"
        else:
            no_less = f"the best of its family: {least:+.1%} or more"
            reason += f"; {no_less if least >= _TELLING else 'none of its family is faster'}"
    return Alternative(
        name=f"{network}{': ' if network else ''}{one.family}{kind}: {one.configuration.headline}",
        family=one.family,
        objective=one.objective,
        relative_loss=one.objective / best.objective - 1 if best.objective else 0.0,
        reason=reason,
        configuration=one.configuration,
        substitutions=one.substitutions,
    )


def about_networks(problem: Problem, best: Plan, losers: Sequence[Plan], *, is_proven: bool) -> list[str]:
    """Return which substitutions were taken, and what the network as given would cost."""
    allowed = asked(problem).substitutions
    if not best.substitutions:
        if not allowed or "substitutions" in problem.fixed:
            return []
        verdict = "would make it faster" if is_proven else "was found to make it faster"
        return [f"the network stays as given: no substitution ({', '.join(one.name for one in allowed)}) {verdict}"]
    lines = [
        f"{one.name}: {one.removed[0]} to {one.removed[-1]} ({len(one.removed)} layers) replaced by {one.by}"
        for one in allowed
        if one.name in best.substitutions
    ]
    if given := [one for one in losers if not one.substitutions]:
        plain = min(given, key=lambda one: one.objective)
        loss = plain.objective / best.objective - 1
        lines.append(f"{name_of((), best.substitutions)}: {loss:+.0%}, with {plain.family} as its best")
    return lines


def about_overlap(problem: Problem, best: Plan, losers: Sequence[Plan]) -> list[str]:
    """Return what the lead over the family that follows measurements of transformers may rest on alone.

    The others hide all communication that may run beside computing; measurements show more of it.
    """
    rivals = [one.objective for one in losers if one.family == OF_TRANSFORMERS]
    if problem.dnn.transformer is None or best.family == OF_TRANSFORMERS or problem.is_computation_measured:
        return []
    words = f"the family {best.family} assumes perfect overlap of communication with computing"
    if not rivals or not best.objective:
        return [f"{words}; measurements of transformers show less"]
    lead = percent_words(1 - best.objective / min(rivals))
    return [f"{words}. Its lead of {lead} over {OF_TRANSFORMERS} may come from that alone"]


def about_staleness(plans: Sequence[Plan]) -> tuple[list[str], list[str]]:
    """Return what to know where asynchronous and synchronous plans stand beside each other, and the warning.

    Stale gradients usually need more epochs, of which no cost model here knows; what can be said is how many more they
    may need until the best synchronous plan is as fast.
    """
    stale = [one for one in plans if one.prediction.is_asynchronous]
    if not stale:
        return [], []
    waiting = min((one for one in plans if one not in stale), key=lambda one: one.objective, default=None)
    warning = f"{stale[0].family} is asynchronous here: stale gradients may need more epochs, which is not modelled"
    if waiting is None:
        return ["no synchronous plan was found to compare with"], [warning]
    lines = []
    for one in dict.fromkeys(plan.family for plan in stale):
        fastest = min(plan.objective for plan in stale if plan.family == one)
        ratio = waiting.objective / fastest
        if ratio > 1:
            times = f"{ratio:.2f}" if ratio >= 1.05 else f"{ratio:.4f}"  # enough digits to tell it from 1
            lines.append(
                f"{one} is asynchronous: it wins as long as it needs less than {times} times the epochs of the "
                f"best synchronous plan ({waiting.family}, {time_words(waiting.objective)})"
            )
        else:
            lines.append(f"{one} is asynchronous and no faster than the best synchronous plan ({waiting.family})")
    return lines, [warning]
