"""The recommended plan: of the configurations within the known error of the best one, that of least risk.

Two predictions that differ by less than they may be off say little of which one is faster. What then tells them apart
is how much each relies on that nobody tried. Risk counts in this order:

1. no target of `planner export` can launch it;
2. features of which no step was measured on its devices, nor with its program, one by one (``risks`` of the family);
3. less than a tenth of the memory of the fullest device stays free.

Among equal ones the fastest is recommended. Candidates are the alternatives of the plan, and what is found by planning
again without the features, with more free memory, or both, and without what no program launches: each the best such
configuration that a search of so many questions finds, unless time runs out, which is said.
"""

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from math import inf
from typing import Any, cast

from planner.constraints import allowed_memory_bytes, memory_limit_bytes
from planner.decisions import excludable_keys, pinnable_keys
from planner.errors import PlannerError
from planner.exporters.export import Job, refusal_of
from planner.families import FAMILIES, not_launched, risks_of
from planner.frozen import frozen
from planner.networks import asked, network_of
from planner.plan import Alternative, Configuration, Plan, Recommended, Unmeasured
from planner.problem import Problem
from planner.ranking import best_plan
from planner.relaxation import limited
from planner.search import Search
from planner.solution import SAME, proof_of
from planner.words import joined, percent_words, size_words

LATE = "plans of less risk were searched for in part only: no time left"
LITTLE_FREE = 0.1  # of a device's memory: predictions of memory are off by as much
_MOST_KNOWN = 30  # alternatives that are asked about
_MOST_ALONE = 2  # features that are left out one by one
_MOST_QUESTIONS = 300  # whether time is over, for each narrower question: half a second or so, the same everywhere


@frozen
class Refusals:
    """Why no target can launch plans of a question: each plan is asked about once."""

    problem: Problem
    _known: list[tuple[Configuration, tuple[str, ...], str | None]] = field(default_factory=list)

    def of(self, plan: Plan) -> str | None:
        """Return why no target can launch a plan; None where one can."""
        for configuration, substitutions, why in self._known:
            if (configuration, substitutions) == (plan.configuration, plan.substitutions):
                return why
        why = refusal_of(Job(problem=network_of(asked(self.problem), plan.substitutions), plan=plan))
        self._known.append((plan.configuration, plan.substitutions, why))
        return why


@frozen
class _Candidate:
    """A plan with its risk; ``free``: share of the fullest device's memory that is left, 1 where that is not known."""

    plan: Plan
    refusal: str | None
    features: tuple[Unmeasured, ...]
    free: float

    @property
    def taken(self) -> list[str]:
        """The features that it has and no measured step."""
        return [one.words for one in self.features if one.is_taken]

    @property
    def risk(self) -> tuple[bool, int, bool]:
        """What counts, the worst first."""
        return self.refusal is not None, len(self.taken), self.free < LITTLE_FREE


def with_recommended(problem: Problem, plan: Plan, search: Search, refusals: Refusals | None = None) -> Plan:
    """Return a plan with the recommended one beside it, where another one is safer and within the known error.

    In the time that the search has left, of which half is taken at most. A plan of a family without risks of its
    own stays as it is. ``refusals``: of the question, as far as they are known.
    """
    risks = risks_of(plan.family)
    if risks is None:
        return plan
    refusals = refusals or Refusals(problem=problem)
    network, own = network_of(asked(problem), plan.substitutions), _candidate(plan, refusals)
    error = risks.known_error(network, plan.configuration, plan.prediction)
    if not any(own.risk) or not error:
        return plan
    most = plan.objective * (1 + error)
    skipped = not_launched(plan.family) if own.refusal is not None else frozenset()
    part = search.part(search.left_s / 2, is_brief=True, skipped=skipped)
    is_late = list[bool]()
    found = [*_known(plan, most, refusals), *_searched(own, most, part, is_late, refusals)]
    late = (LATE,) * any(is_late)
    fastest = min(found, key=lambda one: one.plan.objective, default=own)
    if fastest.plan.objective < plan.objective * (1 - SAME):
        plan, own = _overtaken(problem, plan, fastest.plan), fastest
    plan = replace(plan, cautions=(*plan.cautions, *late))
    best = min(found, key=lambda one: (one.risk, one.plan.objective), default=own)
    if best.risk >= own.risk:
        return plan
    chosen = Recommended(
        family=best.plan.family,
        configuration=best.plan.configuration,
        prediction=best.plan.prediction,
        objective=best.plan.objective,
        relative_loss=best.plan.objective / plan.objective - 1,
        known_error=error,
        reasons=tuple(_reasons(own, best)),
        substitutions=best.plan.substitutions,
    )
    is_launched = own.refusal is not None and best.refusal is None
    return replace(plan, recommended=chosen, instead="" if is_launched else plan.instead)


def in_its_place(problem: Problem, plan: Plan) -> Plan:
    """Return the recommended plan in the place of the best one, whose bound holds for it; itself where there is none.

    What is faster stands in its explanation, not among the alternatives, which lost.
    """
    chosen = plan.recommended
    if chosen is None:
        return plan
    less = percent_words(1 - plan.objective / chosen.objective)
    line = f"the best plan found takes {less} less: {plan.configuration.headline}"
    found = _replaced(problem, plan, chosen)
    return replace(found, explanation=(line, *found.explanation), cautions=())


def _overtaken(problem: Problem, plan: Plan, faster: Plan) -> Plan:
    """Return the faster plan that a narrower question found in the place of the best one, which then lost.

    Layers of the best settings alone are moved: what another setting gains by that no bound of the search rules out.
    Whether a target can launch it is asked by whoever asked that of the former.
    """
    earlier, before = network_of(asked(problem), plan.substitutions), plan.configuration
    family: Any = FAMILIES[plan.family]
    risks = risks_of(plan.family)
    own = set(family.explain(earlier, before, plan.prediction))
    # Lines that hold what it lost by against the plan, or are of the plan alone; the answer tells of the former itself.
    stale = (*(f"{name}: none takes less" for name in plan.beyond), *(() if risks is None else risks.OF_LAYOUT))
    others = [one for one in plan.explanation if one not in own and not any(words in one for words in stale)]
    found = _replaced(problem, plan, faster)
    lost = Alternative(
        name=plan.configuration.headline,
        family=plan.family,
        objective=plan.objective,
        relative_loss=plan.objective / found.objective - 1,
        configuration=plan.configuration,
        substitutions=plan.substitutions,
    )
    return replace(
        found,
        bound=min(plan.bound, found.objective),
        explanation=(*found.explanation, *others),
        alternatives=(lost, *found.alternatives),
        beyond={name: least for name, least in plan.beyond.items() if least < found.objective},
        cautions=(),
        instead="",
    )


def _replaced(problem: Problem, plan: Plan, chosen: Plan | Recommended) -> Plan:
    """Return a plan with another configuration in its place; what a search says of the space stays."""
    network, risks = network_of(asked(problem), chosen.substitutions), risks_of(chosen.family)
    assert risks is not None, "a family without any recommends nothing"
    earlier, family = network_of(asked(problem), plan.substitutions), FAMILIES[chosen.family]
    before = risks.warnings(earlier, plan.configuration)
    others = [one for one in plan.alternatives if one.objective >= chosen.objective * (1 + SAME)]
    found: Any = chosen.configuration
    return replace(
        plan,
        status=proof_of(chosen.objective, plan.bound),
        objective=chosen.objective,
        configuration=found,
        prediction=chosen.prediction,
        explanation=tuple(family.explain(network, found, chosen.prediction)),
        alternatives=tuple(replace(one, relative_loss=one.objective / chosen.objective - 1) for one in others),
        warnings=(
            *(line for line in plan.warnings if line not in before),
            *risks.warnings(network, found),
        ),
        substitutions=chosen.substitutions,
    )


# --- Candidates


def _candidate(plan: Plan, refusals: Refusals) -> _Candidate:
    """Return a plan with its risk; a limit that the user sets below the device's memory leaves room by itself."""
    network, held = network_of(asked(refusals.problem), plan.substitutions), plan.prediction.memory_bytes
    risks = risks_of(plan.family)
    limit = held.get("limit", inf)
    is_known = 0 < limit < inf and allowed_memory_bytes(network) > limit
    return _Candidate(
        plan=plan,
        refusal=refusals.of(plan),
        features=() if risks is None else risks.unmeasured(network, plan.configuration),
        free=1 - held["total"] / limit if is_known else 1.0,
    )


def _known(plan: Plan, most: float, refusals: Refusals) -> Iterator[_Candidate]:
    """Yield the plan's alternatives of its family that cost no more than so much."""
    own = [one for one in plan.alternatives if one.family == plan.family and one.objective <= most]
    for one in own[:_MOST_KNOWN]:
        if one.configuration is not None:
            yield from _priced(plan, one.configuration, one.substitutions, refusals)


def _priced(
    plan: Plan, configuration: Configuration, substitutions: tuple[str, ...], refusals: Refusals
) -> Iterator[_Candidate]:
    """Yield a configuration in a plan's place, predicted on the question itself, if it means something there."""
    problem, chosen = refusals.problem, cast(Any, configuration)
    try:
        prediction = FAMILIES[plan.family].predict(network_of(asked(problem), substitutions), chosen)
    except PlannerError:
        return
    found = replace(plan, configuration=configuration, prediction=prediction, substitutions=substitutions)
    yield _candidate(replace(found, objective=prediction.value_of(problem.goal)), refusals)


def _searched(
    own: _Candidate, most: float, search: Search, is_late: list[bool], refusals: Refusals
) -> Iterator[_Candidate]:
    """Yield the best configuration of the first narrower question that has one which costs no more than so much.

    The questions that leave out most come first: what they find has less risk than what any after them can find.
    ``is_late`` takes down each that the time limit cut off.
    """
    questions = list(_questions(refusals.problem, own))
    for number, question in enumerate(questions):
        share_s = search.left_s / (len(questions) - number)
        part = search.part(share_s, num_alternatives=0, cutoff=most, is_strict=True, questions_left=_MOST_QUESTIONS)
        try:
            found = best_plan(question, part)
        except PlannerError:
            continue
        finally:
            is_late.extend([True] * part.is_out_of_time)
        if found.objective <= most:
            yield from _priced(own.plan, found.configuration, found.substitutions, refusals)
            return


def _questions(problem: Problem, own: _Candidate) -> Iterator[Problem]:
    """Yield the questions without the risks of a plan: features and little memory, features, one, little memory.

    Where no target launches it, at last the question itself: the search leaves out what none launches.
    """
    taken = [one for one in own.features if one.is_taken]
    is_full, roomy = own.free < LITTLE_FREE, _with_room(problem)
    if roomy is not None and (taken or is_full):
        yield _without(roomy, own, own.features)
    if taken:
        yield _without(problem, own, own.features)
    for one in taken[:_MOST_ALONE] if len(taken) > 1 else ():
        yield _without(problem, own, [one])
    if taken and is_full and roomy is not None:
        yield _without(roomy, own, ())
    if own.refusal is not None:
        yield _without(problem, own, ())


def _without(problem: Problem, own: _Candidate, features: Iterable[Unmeasured]) -> Problem:
    """Return the question of a plan's family without some features, but for what the user pinned."""
    fixed: dict[str, Any] = {}
    excluded: dict[str, tuple[Any, ...]] = dict(problem.excluded)
    for one in features:
        for key, value in one.pins.items():
            if key not in problem.fixed and key in pinnable_keys(own.plan.family):
                fixed |= {key: value}
        for key, values in one.excluded.items():
            if key not in problem.fixed and key in excludable_keys(own.plan.family):
                excluded[key] = tuple(dict.fromkeys([*excluded.get(key, ()), *values]))
    return replace(problem, families=(own.plan.family,), fixed={**fixed, **problem.fixed}, excluded=excluded)


def _with_room(problem: Problem) -> Problem | None:
    """Return the question with a tenth of every device's memory kept free; None where they differ, or it is limited."""
    limits = {memory_limit_bytes(problem, group) for group in problem.cluster.machine_groups}
    if len(limits) > 1 or inf in limits or allowed_memory_bytes(problem) < inf:
        return None
    return limited(problem, memory_per_device_bytes=(1 - LITTLE_FREE) * limits.pop())


# --- In words


def _reasons(own: _Candidate, best: _Candidate) -> Iterator[str]:
    """Yield why a plan is safer than another one."""
    if own.refusal is not None and best.refusal is None:
        yield f"a target of `planner export` can launch it; of the best plan: {own.refusal}"
    if less := [one for one in own.taken if one not in best.taken]:
        yield f"it does without {joined(less)}: no step with that was measured on these devices or with this program"
    if own.free < LITTLE_FREE <= best.free:
        more, less_free = (size_words(one.free * one.plan.prediction.memory_bytes["limit"]) for one in (best, own))
        yield f"it leaves {more} free on the fullest device, the best plan {less_free}"
