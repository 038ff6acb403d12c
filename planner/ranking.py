"""One ranking over all networks and families: the same objective, one bound, and why the losers lost.

A question allows a network for every subset of its substitutions, and each family may answer on each. The bound of the
ranking is the least bound of any that may answer; one that found nothing before its limit leaves no more proven than
that the samples have to be computed, see :func:`planner.networks.computation_bound`. Changed networks that not even
computation alone would make faster than the best plan so far are not planned at all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import InfeasibleError, NoAnswerError, PlannerError, SpecError
from planner.families import FAMILIES
from planner.families.answer import SAME
from planner.families.searches import BOUNDS, DOMAINS, SEARCHES
from planner.networks import asked, computation_bound, name_of, networks_of
from planner.plan import Alternative, Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.solution import Status
from planner.units import Dimension, format_human

__all__ = ["best_plan"]

_CLOSE = 1.1  # a family that may come this close is searched on, so that the runner-up is its best
_MOST_QUESTIONS = 12_000  # of whether time is over, until a family that loses is searched no longer
_OWN_OF_TRANSFORMERS = "hybrid"  # the family that is asked first there: its answer tells which others are worth while
_WEIGHT_OF_OWN = 5
_MOST_WORDS = 160  # letters of a refusal in an explanation
_EXCLUDING = ("hybrid",)  # families that leave out excluded values
_COMPUTATION = ("forward", "backward", "update", "compute", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A family on a network; ``bound`` is what no plan of it can beat."""

    problem: Problem
    family: str
    bound: float
    is_changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Why there is no plan; ``is_open``: not because there is none, but because a limit struck.

    ``error``: what is wrong with the question, where that is the reason.
    """

    entry: _Entry
    reason: str
    is_open: bool = False
    error: SpecError | None = None


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
    refusals: list[_Refusal] = []
    entries = _entries(problem)
    for index, entry in enumerate(entries):
        least = min((one.objective for one in plans), default=float("inf"))
        if plans and least <= search.good_enough:
            refusals += [
                _Refusal(entry=one, reason="an answer was good enough.", is_open=True) for one in entries[index:]
            ]
            break
        if entry.is_changed and entry.bound >= least * (1 - SAME):
            continue
        known = [one.objective for one in plans if not _is_asynchronous(one.prediction)]
        cutoff = _CLOSE * min(known) if known else search.cutoff
        part = search.part(search.left_s * _share(entries[index:]), cutoff=cutoff)
        for answer in _answers(entry, part, is_known=bool(known)):
            if isinstance(answer, Plan):
                plans.append(answer)
            else:
                refusals.append(answer)
    if not plans:
        raise _no_plan(refusals)
    least = min(one.objective for one in plans)
    best = next(one for one in plans if one.objective <= least * (1 + SAME))  # of equals, the family asked first
    found = _ranked(problem, best, [one for one in plans if one is not best], refusals)
    _check_deadline(problem, found, search)
    return found


def _entries(problem: Problem) -> list[_Entry]:
    """Return every family on every network: the given network first, then the most promising ones.

    The families stand in the order in which they are asked: the first of equals is the answer.
    """
    first, *others = networks_of(problem)
    networks = [first, *sorted(others, key=computation_bound)]
    return [
        _Entry(
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
    own = _OWN_OF_TRANSFORMERS if network.dnn.transformer is not None else None
    return sorted(network.families, key=lambda one: one != own)


def _share(left: Sequence[_Entry]) -> float:
    """Return the share of the time that the first of the entries may take: more for a family that knows transformers.

    What it leaves goes to the others.
    """
    knows = (one.family == _OWN_OF_TRANSFORMERS and one.problem.dnn.transformer is not None for one in left)
    weights = [_WEIGHT_OF_OWN if it_does else 1 for it_does in knows]
    return weights[0] / sum(weights)


def _answers(entry: _Entry, part: Search, *, is_known: bool) -> Iterator[Plan | _Refusal]:
    """Yield a family's plan, or why there is none; after an asynchronous one its best synchronous one, too."""
    answer = _answer(entry, part, is_known=is_known)
    yield answer
    limits = entry.problem.limits
    is_pinned = "synchronisation" in entry.problem.fixed
    if limits.max_staleness and not is_pinned and isinstance(answer, Plan) and _is_asynchronous(answer.prediction):
        waiting = replace(entry.problem, limits=replace(limits, max_staleness=0.0))
        second = _answer(replace(entry, problem=waiting), part, is_known=is_known)
        if isinstance(second, Plan) and not _is_asynchronous(second.prediction):
            yield second  # the first answer's bound covers it


def _answer(entry: _Entry, search: Search, *, is_known: bool) -> Plan | _Refusal:
    """Return a family's plan, or why there is none.

    Where a plan of the question is known, a family that comes close to it is searched for its best, but only with
    counted work; if that does not prove that it loses, it is searched on until its bound does, or its share of the time
    is over.
    """
    if not is_known:
        return _searched(entry, search)
    counted = search.part(search.left_s, questions_left=_MOST_QUESTIONS)
    first = _searched(entry, counted)
    known = search.cutoff / _CLOSE
    has_lost = isinstance(first, Plan) and first.bound >= known * (1 - SAME)
    is_final = isinstance(first, Plan) and first.status is Status.OPTIMAL
    if has_lost or is_final or not counted.is_counted_out or search.is_over:
        return first
    second = _searched(entry, search.part(search.left_s, cutoff=known))
    plans = [one for one in (first, second) if isinstance(one, Plan)]
    if not plans:
        return second
    best, bound = min(plans, key=lambda one: one.objective), max(one.bound for one in plans)
    is_proven = best.objective - bound <= SAME * best.objective
    status = Status.OPTIMAL if is_proven else Status.FEASIBLE
    return replace(best, status=status, bound=best.objective if is_proven else bound)


def _searched(entry: _Entry, search: Search) -> Plan | _Refusal:
    """Return what a family's search answers."""
    if entry.problem.excluded and entry.family not in _EXCLUDING:
        key = next(iter(entry.problem.excluded))
        reason = f"{entry.family} takes no exclusions, and constraints.exclude.{key} is given."
        return _Refusal(entry=entry, reason=reason)
    if stranger := sorted(entry.problem.fixed.keys() - FAMILIES[entry.family].DECISIONS):
        return _Refusal(entry=entry, reason=f"{entry.family} does not decide fix.{stranger[0]}, which is pinned.")
    try:  # even where the time is over: a family that does not apply says so at once
        found = SEARCHES[entry.family](entry.problem, search)
    except InfeasibleError as error:
        return _Refusal(entry=entry, reason=str(error))
    except SpecError as error:
        return _Refusal(entry=entry, reason=str(error), error=error)
    except NoAnswerError as error:
        return _Refusal(entry=entry, reason=str(error), is_open=True)
    return replace(found, substitutions=entry.problem.taken)


def _no_plan(refusals: Sequence[_Refusal]) -> PlannerError:
    """Return why there is no plan at all: wrong input, a limit, or that nothing fits."""
    if wrong := _wrong_input(refusals):
        return wrong
    unanswered = [one for one in refusals if one.is_open]
    if not unanswered:
        return InfeasibleError(_reasons(refusals))
    closed = [one for one in refusals if not one.is_open]
    if not closed:
        return NoAnswerError(_reasons(refusals))
    lines = ["No plan was found, nor is it proven that there is none. Not known:", *_lines(unanswered)]
    return NoAnswerError("\n".join([*lines, "Known to have no plan:", *_lines(closed)]))


def _wrong_input(refusals: Sequence[_Refusal]) -> SpecError | None:
    """Return the error of a question that every family refuses for one field of it, the same for all."""
    errors = [one.error for one in refusals if one.error is not None]
    if not errors or len(errors) < len(refusals):
        return None
    fields = {frozenset(fault.field for fault in error.faults) for error in errors}
    faults = dict.fromkeys(fault for error in errors for fault in error.faults)
    return SpecError.of(faults) if len(fields) == 1 and faults else None


def _lines(refusals: Sequence[_Refusal]) -> list[str]:
    """Return the families with their reasons, an indented line or more for each."""
    found = dict.fromkeys(f"{_who(one)}: {one.reason}" for one in refusals)
    return [f"  {line}" for text in found for line in text.splitlines()]


def _reasons(refusals: Sequence[_Refusal]) -> str:
    """Return why there is no plan at all, a line for each family; for changed networks only what differs."""
    lines: dict[tuple[str, str], str] = {}
    for one in refusals:
        lines.setdefault((one.entry.family, one.reason), f"{_who(one)}: {one.reason}")
    if len(lines) == 1:
        return refusals[0].reason
    return "\n".join(lines.values()) or "No plan fits: none of the allowed families can be searched. Allow others."


def _who(refusal: _Refusal) -> str:
    """Return the family, and its network where that is a changed one."""
    taken = refusal.entry.problem.taken if refusal.entry.is_changed else ()
    return f"{refusal.entry.family} with {', '.join(taken)}" if taken else refusal.entry.family


# -- the ranking -----------------------------------------------------------------------------------------------------


def _ranked(problem: Problem, best: Plan, losers: Iterable[Plan], refusals: Sequence[_Refusal]) -> Plan:
    """Return the best plan with the bound over all that was asked, and the losers as alternatives."""
    losers = sorted(losers, key=lambda one: one.objective)
    open_bounds = [one.entry.bound for one in refusals if one.is_open]
    bound = min([best.bound, *open_bounds, *(one.bound for one in losers)])
    is_proven = best.objective - bound <= SAME * best.objective
    own = [replace(one, substitutions=best.substitutions) for one in best.alternatives]
    others = [_alternative(one, best) for one in losers]
    networks = _about_networks(problem, best, losers, is_proven=is_proven)
    staleness, warnings = _about_staleness([best, *losers])
    return replace(
        best,
        status=Status.OPTIMAL if is_proven else Status.FEASIBLE,
        bound=best.objective if is_proven else bound,
        alternatives=tuple(sorted([*own, *others], key=lambda one: one.objective)),
        explanation=(*best.explanation, *networks, *staleness, *_refused(refusals)),
        warnings=(*best.warnings, *warnings),
        domain=tuple(f"{name}: {DOMAINS[name]}" for name in dict.fromkeys(one.family for one in (best, *losers))),
    )


def _alternative(one: Plan, best: Plan) -> Alternative:
    """Return a plan that lost."""
    network = name_of(one.substitutions, best.substitutions)
    kind = " (asynchronous)" if _is_asynchronous(one.prediction) and not _is_asynchronous(best.prediction) else ""
    kind = " (synchronous)" if _is_asynchronous(best.prediction) and not _is_asynchronous(one.prediction) else kind
    return Alternative(
        name=f"{network}{': ' if network else ''}{one.family}{kind}: {one.configuration.headline}",
        family=one.family,
        objective=one.objective,
        relative_loss=one.objective / best.objective - 1 if best.objective else 0.0,
        reason=f"{_weakness(one.prediction)}{_how_sure(one, best)}",
        configuration=one.configuration,
        substitutions=one.substitutions,
    )


def _how_sure(one: Plan, best: Plan) -> str:
    """Return in words that a loser is not proven to be the best of its family, where that is so."""
    if one.status is Status.OPTIMAL:
        return ""
    least = one.bound / best.objective - 1 if best.objective else 0.0
    return f"; the best of its family: {least:+.1%} or more" if least >= -SAME else "; not proven"


def _weakness(prediction: Prediction) -> str:
    """Return what a plan spends most on beside computation, in a few words."""
    parts = {name: seconds for name, seconds in prediction.breakdown_s.items() if name not in _COMPUTATION}
    total_s = prediction.iteration_time_s
    worst = max(parts, key=parts.__getitem__, default="")
    if not worst or not total_s or parts[worst] < 0.005 * total_s:
        return "next to nothing but computation"
    return f"{parts[worst] / total_s:.0%} of its time is {worst.replace('all_reduce', 'all-reduce').replace('_', ' ')}"


def _about_networks(problem: Problem, best: Plan, losers: Sequence[Plan], *, is_proven: bool) -> list[str]:
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


def _refused(refusals: Iterable[_Refusal]) -> list[str]:
    """Return the families that give no plan, each with its reason in short, once."""
    lines: dict[tuple[str, str], str] = {}
    for one in refusals:
        lines.setdefault((one.entry.family, one.reason), f"{_who(one)} gives no plan: {_short(one.reason)}")
    return list(lines.values())


def _short(reason: str) -> str:
    """Return the first sentence or two of a reason, at most a line and a half."""
    text = " ".join(reason.split())
    if len(text) <= _MOST_WORDS:
        return text
    cut = text.rfind(". ", 0, _MOST_WORDS)
    return text[: cut + 1] if cut > 0 else f"{text[: _MOST_WORDS - 3].rsplit(' ', 1)[0]} ..."


# -- asynchronous plans ----------------------------------------------------------------------------------------------


def _is_asynchronous(prediction: Prediction) -> bool:
    """Whether gradients may be stale; ``most`` None means that nothing bounds it."""
    staleness = prediction.details.get("staleness", 0)
    most = staleness["most"] if isinstance(staleness, Mapping) else staleness
    return most is None or bool(most > 0)


def _about_staleness(plans: Sequence[Plan]) -> tuple[list[str], list[str]]:
    """Return what to know where asynchronous and synchronous plans stand beside each other, and the warning.

    Stale gradients usually need more epochs, of which no cost model here knows; what can be said is how many more they
    may need until the best synchronous plan is as fast.
    """
    stale = [one for one in plans if _is_asynchronous(one.prediction)]
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
            lines.append(
                f"{one} is asynchronous: it wins as long as it needs less than {_times(ratio)} times the epochs of the "
                f"best synchronous plan ({waiting.family}, {_time(waiting.objective)})"
            )
        else:
            lines.append(f"{one} is asynchronous and no faster than the best synchronous plan ({waiting.family})")
    return lines, [warning]


def _times(ratio: float) -> str:
    """Return a factor with enough digits to tell it from 1."""
    return f"{ratio:.2f}" if ratio >= 1.05 else f"{ratio:.4f}"


# -- the deadline ----------------------------------------------------------------------------------------------------


def _check_deadline(problem: Problem, best: Plan, search: Search) -> None:
    """Refuse a plan that misses the deadline; say by how much, if no plan meets it, or that none was found.

    How far it has to give is said here only where no time is left for the diagnosis, which says it otherwise.
    """
    deadline_s, prediction = problem.limits.deadline_s, best.prediction
    needed_s = prediction.epoch_time_s if prediction.training_time_s is None else prediction.training_time_s
    if deadline_s is None or needed_s is None or needed_s <= deadline_s:
        return
    least_s = needed_s * best.bound / best.objective
    what = "an epoch" if prediction.training_time_s is None else "the training"
    if least_s <= deadline_s:
        needed, limit = _apart(needed_s, deadline_s)
        raise NoAnswerError(
            f"No plan found: {what} takes {needed} with the best one, and constraints.deadline is {limit}: it is "
            f"missed by {_time(needed_s - deadline_s)}. It is only proven that none takes less than {_time(least_s)}. "
            f"Raise --time-limit."
        )
    least, limit = _apart(least_s, deadline_s)
    mend = f"Raise it to {format_human(needed_s * 1.001, Dimension.TIME, 4)}" if search.is_over else "Raise it"
    raise InfeasibleError(
        f"No plan fits: {what} takes at least {least}, and constraints.deadline is {limit}: it is missed by at least "
        f"{_time(least_s - deadline_s)}. {mend}, or add machines."
    )


def _apart(seconds: float, other_s: float) -> tuple[str, str]:
    """Return two different times with as many digits as it takes to tell them apart; :func:`format_human` has 3."""
    for digits in range(3, 17):
        one, other = (format_human(value, Dimension.TIME, digits) for value in (seconds, other_s))
        if one != other:
            return one, other
    return f"{seconds!r} s", f"{other_s!r} s"


def _time(seconds: float) -> str:
    """Return seconds for reading."""
    return format_human(seconds, Dimension.TIME)
