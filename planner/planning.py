"""One question, one plan: the ranking's best with its provenance, its known error, or why there is none."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any, get_type_hints

from planner.cluster import MachineGroup
from planner.constraints import allowed_memory_bytes, binding_words
from planner.cost import Floats
from planner.data.devices import DEVICES
from planner.data.fits import with_known_error
from planner.decisions import pinnable_keys
from planner.errors import InfeasibleError, NoAnswerError, PlannerError, SpecError
from planner.families import FAMILIES, not_launched, usage_of
from planner.frozen import frozen
from planner.models.communication import ALL_REDUCES
from planner.names import FAMILY_NAMES, OF_TRANSFORMERS
from planner.networks import asked, network_of
from planner.perturb import with_counts
from planner.plan import Alternative, Configuration, Plan, Predicted, Prediction, Provenance
from planner.plugins import OWN, Registry, version_of
from planner.problem import Assumption, Problem
from planner.ranking import best_plan, ranked_alternative
from planner.recommendation import Refusals, in_its_place, with_recommended
from planner.search import Search
from planner.sections import PlanView
from planner.solution import SAME, Status, proof_of
from planner.words import percent_words, size_words, time_words

_LIBRARIES = (OWN, "numpy", "scipy", "networkx", "ortools")  # on whose versions an answer may depend
_WEIGHED_S = 10.0  # the most that the effects of a prediction's assumptions may take
OTHER_FLEETS = 4  # that stand beside the best one, where nobody says how many
_LEAST_S = 5.0  # for the plan of a fleet that was chosen, whatever time is left


def part_of(search: Search) -> Search:
    """Return a search for the plan of a fleet that was chosen: a few seconds even where the time is over by then."""
    if search.was_interrupted or search.left_s >= _LEAST_S:
        return search.part(search.left_s, num_alternatives=1)
    return Search(time_limit_s=_LEAST_S, memory_limit_bytes=search.memory_limit_bytes, num_alternatives=1)


def as_asked(problem: Problem, configuration: Configuration) -> tuple[str, Configuration]:
    """Return the family of a configuration, and it as its block means it: by the same rules as one of a spec."""
    from pydantic import ValidationError  # noqa: PLC0415 - takes a while

    kinds = ((name, get_type_hints(FAMILIES[name].predict)["configuration"]) for name in FAMILIES)
    family = next((name for name, kind in kinds if isinstance(configuration, kind)), None)
    if family is None:
        mend = "Give plan.configuration; a block of a spec stands in the question, under the key configuration"
        raise SpecError(f"configuration: {type(configuration).__name__} is no configuration of a family. {mend}.")
    try:
        return family, _again(problem, family, configuration)
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(f"configuration.{'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


def _load(question: Mapping[str, Any]) -> Problem:
    """Return the problem of a resolved question; what reads questions is imported when there is one."""
    from planner.question.build import load_resolved  # noqa: PLC0415 - takes a while

    return load_resolved(question)


def _again(problem: Problem, family: str, configuration: Configuration) -> Configuration:
    """Return what a configuration's block means on a problem; raise PlannerError or ValidationError for nothing."""
    from planner.question.spec import ConfigurationSpec  # noqa: PLC0415 - takes a while

    block = problem.cluster.with_names(configuration.to_document())
    _, given = ConfigurationSpec.model_validate({family: block}).block
    return FAMILIES[family].configuration_of(replace(problem, configuration=(family, given)), given)


def proof_warnings(objective: float, stated: Mapping[str, float], status: str) -> list[str]:
    """Return why a file's proof is not to be trusted: what contradicts the cost model, or itself."""
    value, bound, found = stated["value"], stated["bound"], []
    if abs(objective - value) > 1e-6 * objective:
        found.append(f"the file says {value:.6g} s; this version's cost model says {objective:.6g} s")
    if bound > value * (1 + 1e-6):
        found.append(f"the file's bound, {bound:.6g} s, is above its own {value:.6g} s")
    if status == Status.OPTIMAL and bound < value * (1 - 1e-6):
        found.append(f"the file says optimal, and its bound, {bound:.6g} s, is below its {value:.6g} s")
    return [f"{one}; what it says to be proven is not taken over" for one in found]


def refuse_variant(problem: Problem) -> None:
    """Refuse to plan by a paper's printed equations."""
    if problem.variant != "corrected":
        message = (
            f"variant: {problem.variant!r} is for `planner predict` and cases. Leave it out: a plan keeps "
            f"to the physics."
        )
        raise SpecError(message)


def planned(problem: Problem, search: Search) -> Plan:
    """Return the best plan within a search, with its provenance; why there is none where there is none."""
    try:
        best = best_plan(problem, search)
    except InfeasibleError as error:
        from planner.conflicts import diagnosed  # noqa: PLC0415  # late: only where nothing fits

        raise diagnosed(problem, error, best_plan, search) from None
    return _completed(problem, best)


def _completed(problem: Problem, best: Plan) -> Plan:
    """Return a plan that a search found with its known error, what binds it, and its provenance."""
    chosen = network_of(problem, best.substitutions)
    limits = binding_words(chosen, usage_of(chosen, best.family, best.configuration, best.prediction))
    known = with_known_error(chosen, best.family, best.configuration, best.prediction)
    computing = computing_lines(chosen, best.family, best.configuration, known)
    best = replace(best, prediction=known, explanation=(*best.explanation, *computing, *limits))
    digest = Provenance.digest_of(best.problem)
    plugins = _plugins_of(chosen, best.family)
    provenance = replace(
        best.provenance, plugins=plugins, versions={name: version_of(name) for name in _LIBRARIES}, input_digest=digest
    )
    return replace(best, provenance=provenance)


def _plugins_of(problem: Problem, family: str) -> dict[str, str]:
    """Return the plug-ins that a plan rests on: those of its family, its devices and the all-reduces it may use."""
    devices = {group.device.name: group.device for group in problem.cluster.machine_groups}
    algorithms = dict.fromkeys([*problem.calibration.algorithms, *filter(None, [problem.fixed.get("algorithm")])])
    named: list[tuple[Registry[Any], Iterable[str]]] = [
        (FAMILIES, [family]),
        (DEVICES, [name for name, one in devices.items() if name not in DEVICES.own and DEVICES.get(name) == one]),
        (ALL_REDUCES, algorithms),
    ]
    found = {f"{table.group}:{name}": table.origin(name) for table, names in named for name in names}
    return {key: origin for key, origin in found.items() if origin is not None}


# --- What was assumed for the user and may change the answer, each with its effect on the configuration that was found
# The configuration is predicted anew on the question with one assumption replaced by its likeliest other value. That is
# no new search: for the other value another configuration may be better.

MOST_ASSUMPTIONS = 5  # under a headline
_TELLING = 0.005  # relative change of the objective; what changes it less is a minor assumption
_IMPOSSIBLE = _TELLING  # what is not modelled at all comes after what changes the objective
_GRACE_S = 1.0  # for the effects, where the search took all of its time
_MOST_LAYERS = 5_000  # of a network that gets this grace
_NETWORK = ("nics", "network", "links")  # places of a spec that say what joins machines, but for its latency


@frozen
class WeighedAssumptions:
    """Those that change the answer, a line each with effect and flag, the most important first; and the minor ones.

    ``cautions``: that some effects were not computed, where a search had no time for them or was stopped.
    """

    key: tuple[str, ...]
    minor: tuple[str, ...]
    cautions: tuple[str, ...] = ()


def weigh_assumptions(
    problem: Problem, family: str, configuration: Configuration, objective: float, search: Search
) -> WeighedAssumptions:
    """Return the assumptions of a question, ordered by their effect on the objective of a configuration.

    Links that were left out come first, then the network's cards and rate, whatever their effect; what has no other
    value to compare with is a minor one. After an interruption, or once the time is over, no effect is computed, and
    a caution says so.

    Parameters
    ----------
    problem
        With the network that the configuration trains.
    search
        Whose time is left for this.
    """
    rest = search.part(inf)
    if not search.was_interrupted and search.left_s < _GRACE_S and len(problem.dnn.layers) <= _MOST_LAYERS:
        rest = Search(time_limit_s=_GRACE_S)
    rows: list[tuple[int, float, str]] = []
    minor: list[str] = []
    num_open = 0
    for one in problem.key_assumptions:
        effect = None
        if not rest.is_over:
            effect = search.bounded(partial(_effect, problem, family, configuration, objective, one), None)
        num_open += effect is None and one.other is not None and rest.is_over
        words, size = effect or ("", -1.0)  # what was not computed comes after all that was
        is_latency = one.flag == "--latency"
        is_network = not is_latency and any(part in _NETWORK for part in one.field)
        place = 0 if one.flag == "cluster.links" else 1 if is_network else 2
        has_little = size < _TELLING if effect is not None else one.other is None
        if has_little and place == 2:
            minor.append(f"{one.text} ({one.flag})")
        else:
            rows.append((place, size, f"{one.text}{words}   ({one.flag})"))
    rows.sort(key=lambda row: (row[0], -row[1]))  # stable: equals stay as they were noted
    texts = [text for *_, text in rows]
    told = {one.text for one in problem.key_assumptions}
    others = [one for one in problem.assumptions if one not in told]
    why = "the search was stopped" if search.was_interrupted else "no time left"
    return WeighedAssumptions(
        key=tuple(texts[:MOST_ASSUMPTIONS]),
        minor=(*texts[MOST_ASSUMPTIONS:], *minor, *others),
        cautions=(f"what {num_open} of the assumptions would change was not computed: {why}",) * bool(num_open),
    )


def _effect(
    problem: Problem, family: str, configuration: Configuration, objective: float, one: Assumption
) -> tuple[str, float] | None:
    """Return what the other value of an assumption does to a configuration, in words, and how much it matters.

    Infinitely, where devices lack the memory. None where it has no other value, or cannot be told.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - takes a while

    if one.other is None or not objective:
        return None
    begin = f"; with {_value_words(one.other)}: "
    question: dict[str, Any] = dict(problem.resolved)
    try:
        for place in (one.field, *one.also):
            question = with_value(question, place, one.other)
        question.pop("configuration", None)
        changed = network_of(asked(_load(question)), problem.taken)
        chosen: Any = _again(changed, family, configuration)
        found = FAMILIES[family].predict(changed, chosen)
    except LookupError:
        return None
    except (PlannerError, ValidationError):
        return f"{begin}another configuration is needed", _IMPOSSIBLE
    held = found.memory_bytes
    if "limit" in held and held["total"] > held["limit"]:
        return f"{begin}does not fit in memory", inf
    change = found.value_of(problem.goal) / objective - 1
    words = percent_words(change, is_signed=True) if abs(change) >= _TELLING / 10 else "no change"
    return f"{begin}{words}", abs(change)


def with_value(tree: Mapping[str, object], path: Sequence[str | int], value: object) -> dict[str, object]:
    """Return a question with another value at a place; raise LookupError where there is no such place.

    Only what stands on the way is copied. A block that is missing is added, a row of a list is not.
    """
    root: dict[str, Any] = dict(tree)
    current: Any = root
    for key, after in pairwise(path):
        inner = current.get(key, {} if isinstance(after, str) else None) if isinstance(current, dict) else current[key]
        if not isinstance(inner, list if isinstance(after, int) else dict):
            raise LookupError(key)
        current[key] = inner = inner.copy()
        current = inner
    current[path[-1]] = value
    return root


def _value_words(value: Any) -> str:
    """Return another value in a few words."""
    if isinstance(value, Mapping):
        value = value.get("bandwidth", ", ".join(f"{name} {part}" for name, part in value.items()))
    if isinstance(value, float) and 0 < value <= 1:
        return percent_words(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# --- What keeps a plan from being run as it is: no program that starts it, or memory that is all but full

_GIB = 2.0**30
_BY_HAND = "write a launch script by hand, or give other families or devices"
_MOST_TRIED = 30  # alternatives that are asked about
_MOST_LATE = 3  # of them, once the time is over
_MOST_PLANNED = 6  # questions that are planned for a plan that can be launched
_MOST_FIRST = 2  # of them with a pin, before other families
_MOST_OTHERS = 5_000  # questions whether time is over, for families that were not asked for: a few seconds
_MOST_KINDS = 5  # of layers, by the seconds of computing
_OF_JSON = "its configuration, which --json lists"
_NOTHING = frozenset[str]()
_SHARE_OF_MIXED = 0.8  # of the time: after so much of it a best plan that none launches is not the only one looked for
_SHARE_OF_LOOK = 0.75  # of what is left then, at most; the search goes on with the rest
_NOT_ASKED = "whether a target of `planner export` can launch this plan was not asked: no time left"


def little_memory(problem: Problem, prediction: Prediction) -> tuple[str, ...]:
    """Return a warning where the fullest accelerator has little memory left, less than predictions of memory are off.

    Little is less than 1 GiB or 3 % of its memory, whichever is more, as buffers of NCCL and pieces of free memory take
    that; of small devices a tenth. A limit that the user sets below the device's memory leaves room by itself.
    """
    held = prediction.memory_bytes
    limit = held.get("limit", float("inf"))
    kinds = {group.device.kind for group in problem.cluster.machine_groups}
    if limit == float("inf") or kinds <= {"cpu"} or allowed_memory_bytes(problem) <= limit:
        return ()
    left = limit - held["total"]
    if not 0 <= left < min(max(_GIB, 0.03 * limit), 0.1 * limit):
        return ()
    return (
        f"only {size_words(left)} of {size_words(limit)} stay free on the fullest device: training may run out of "
        f"memory. Set calibration.memory_reserve to keep more free",
    )


def launchable(
    problem: Problem,
    plan: Plan,
    search: Search,
    earlier: Sequence[tuple[Plan, str]] = (),
    refusals: Refusals | None = None,
) -> Plan:
    """Return a plan that some target of `planner export` can launch; else with the reason, and the best that one can.

    Looked for among the plan's alternatives, and, in the time that is left, by planning again without what no target
    runs. Where that answers the question and beats the plan itself, whose search was cut off, it takes its place.
    ``earlier``: some that were found before, with how they are asked for. ``refusals``: as far as they are known.
    """
    refusals = refusals or Refusals(problem=problem)
    why = refusals.of(plan)
    if why is None:
        return plan
    begin = f"no target of `planner export` can launch this plan: {why}"
    found, cut = _best_launchable(problem, plan, search, refusals)
    found = min([*earlier, *([] if found is None else [found])], key=lambda one: one[0].objective, default=None)
    if found is None:
        return replace(plan, cautions=(begin,), instead=f"no plan that one can launch was found: {_BY_HAND}{cut}")
    best, how = found
    is_asked = best.family in problem.families
    if is_asked and plan.bound <= best.objective < plan.objective * (1 - SAME):
        return _in_place_of(problem, plan, best)
    value = time_words(best.objective) if plan.goal.unit == "s" else f"{best.objective:.6g} {plan.goal.unit}"
    loss = percent_words(best.objective / plan.objective - 1 if plan.objective else 0.0, is_signed=True)
    what = f"{best.family} on {best.configuration.headline}, {plan.goal.name.replace('_', ' ')} {value} ({loss})"
    is_new = all((one.family, one.configuration) != (best.family, best.configuration) for one in plan.alternatives)
    more = [ranked_alternative(best, plan)] if is_new and is_asked else []
    return replace(
        plan,
        cautions=(begin,),
        instead=f"best plan found that can be launched: {what}; ask for it with {how}{cut}",
        alternatives=tuple(sorted([*plan.alternatives, *more], key=lambda one: one.objective)),
    )


def computing_lines(
    problem: Problem, family: str, configuration: Configuration, prediction: Prediction
) -> tuple[str, ...]:
    """Return where the seconds of the layers go, by kind, on each type of device that trains.

    In passes of as many samples as a device has; nothing where the family has seconds of its own, or layers no kinds.
    """
    samples, lines = float(prediction.details.get("batch_per_device", 0)), list[str]()
    devices = usage_of(problem, family, configuration, prediction).devices
    used = dict.fromkeys(one.device.name for one in problem.cluster.machine_groups if devices.get(one.name))
    for device in used if family != OF_TRANSFORMERS and samples else ():
        profile, by_kind = problem.profiles[device], dict[str, float]()
        both_s: Floats = profile.forward(samples) + profile.backward(samples)
        for layer, seconds in zip(problem.dnn.layers, both_s.tolist(), strict=True):
            by_kind[layer.kind] = by_kind.get(layer.kind, 0.0) + seconds
        shares = sorted(((seconds / both_s.sum(), kind) for kind, seconds in by_kind.items() if seconds), reverse=True)
        if len(shares) > 1:
            told = ", ".join(f"{kind.replace('_', ' ')} {share:.0%}" for share, kind in shares[:_MOST_KINDS])
            lines.append(f"computing{f' on {device}' * (len(used) > 1)}, by kind of layer: {told}")
    return tuple(lines)


def beside_measured(problem: Problem, plan: Plan, search: Search) -> Plan:
    """Return a plan that rests on devices of which no steps were measured, with the best of the measured ones beside.

    A cluster whose devices were all measured, or none of them, leaves no such choice.
    """
    chosen = network_of(problem, plan.substitutions)
    bands = {name: profile.band for name, profile in chosen.profiles.items()}
    unknown = {name for name, band in bands.items() if band is not None and not band.is_device_measured}
    usage = usage_of(chosen, plan.family, plan.configuration, plan.prediction)
    used = sorted({one.device.name for one in chosen.cluster.machine_groups if usage.devices.get(one.name)} & unknown)
    if not used or len(unknown) == len(bands):
        return plan
    groups = chosen.cluster.machine_groups
    measured = with_counts(problem, {one.name: 0 for one in groups if one.device.name in unknown})
    begin = f"the choice rests on {', '.join(used)}, where no training steps were measured"
    try:
        best = best_plan(measured, search.part(search.left_s / 2, num_alternatives=0, has_reasons=False))
    except PlannerError as error:
        why = "is possible" if isinstance(error, InfeasibleError) else "was found in time"
        return replace(plan, cautions=(*plan.cautions, f"{begin}; no plan on measured devices alone {why}"))
    value = time_words(best.objective) if plan.goal.unit == "s" else f"{best.objective:.6g} {plan.goal.unit}"
    loss = percent_words(best.objective / plan.objective - 1 if plan.objective else 0.0, is_signed=True)
    what = f"{best.family} on {best.configuration.headline}, {plan.goal.name.replace('_', ' ')} {value} ({loss})"
    return replace(plan, cautions=(*plan.cautions, f"{begin}; the best plan on measured ones alone: {what}"))


def _in_place_of(problem: Problem, plan: Plan, better: Plan) -> Plan:
    """Return the better plan of a narrower question as the answer in a plan's place: the plan's bound holds for it."""
    bound = min(plan.bound, better.objective)
    chosen = network_of(problem, better.substitutions)
    return replace(
        plan,
        status=proof_of(better.objective, bound),
        objective=better.objective,
        bound=bound,
        family=better.family,
        configuration=better.configuration,
        prediction=with_known_error(chosen, better.family, better.configuration, better.prediction),
        explanation=better.explanation,
        alternatives=(ranked_alternative(plan, better),),
        substitutions=better.substitutions,
        not_modelled=better.not_modelled,
    )


def _best_launchable(
    problem: Problem, plan: Plan, search: Search, refusals: Refusals
) -> tuple[tuple[Plan, str] | None, str]:
    """Return the best plan that a target can launch, and how it is asked for; and what was not searched to its end.

    Families that were not asked for have so many questions, not so many seconds: what is found is the same wherever the
    whole time does not end first.
    """
    is_whole = not search.was_cut_short
    is_late, is_cut_off, best = False, False, _best_alternative(problem, plan, search, refusals)
    waiting = _narrowed(problem, plan, _NOTHING, is_whole=is_whole)
    others, most = tuple(one for one in FAMILY_NAMES if one not in problem.families), None
    for tried in range(_MOST_PLANNED):
        is_last = not waiting or tried == _MOST_PLANNED - 1
        if is_last and best is None and others:  # families that were not asked for: before tries run out
            waiting, others, most = [(replace(problem, families=others), _NOTHING)], (), _MOST_OTHERS
        if not waiting or search.is_over:
            is_late |= bool(waiting)
            break
        question, skipped = waiting.pop(0)
        cutoff = inf if best is None else best[0].objective
        least = [plan.least_by_family.get(one, 0.0) for one in question.families]
        if question.fixed == problem.fixed and cutoff <= min(least):  # the families were searched with the plan's own
            continue
        share_s = search.left_s / (2 if skipped else min(len(waiting) + 1, _MOST_PLANNED - tried))
        part = search.part(
            share_s,
            num_alternatives=0,
            cutoff=cutoff,
            is_strict=cutoff < inf,
            questions_left=most,
            has_reasons=False,
            skipped=skipped,
        )
        try:
            found = best_plan(question, part)
        except PlannerError:
            continue
        finally:
            is_late |= part.is_out_of_time
            is_cut_off |= part.is_counted_out
        if found.objective >= cutoff:
            continue
        if Refusals(problem=question).of(found) is None:
            pins = [f"fix.{name}: {value}" for name, value in question.fixed.items() if name not in problem.fixed]
            is_listed = bool(skipped) and found.family in problem.families
            asked_by = [f"--families {found.family}", *pins, *[_OF_JSON] * bool(skipped)]
            best = found, _OF_JSON if is_listed else " and ".join(asked_by)
        else:
            waiting += _narrowed(question, found, skipped, is_whole=not search.was_cut_short)
    if is_late:
        return best, "; the time limit cut off the search for one"
    return best, "; families that were not asked for were searched in part only" * is_cut_off


def _best_alternative(problem: Problem, plan: Plan, search: Search, refusals: Refusals) -> tuple[Plan, str] | None:
    """Return the best of a plan's alternatives that a target can launch."""
    for number, one in enumerate(plan.alternatives[:_MOST_TRIED]):
        if search.is_over and number >= _MOST_LATE:
            break
        if one.configuration is None:
            continue
        network = network_of(asked(problem), one.substitutions)
        try:
            prediction = FAMILIES[one.family].predict(network, one.configuration)
        except PlannerError:
            continue
        found = replace(
            plan,
            family=one.family,
            configuration=one.configuration,
            prediction=prediction,
            objective=prediction.value_of(problem.goal),
            substitutions=one.substitutions,
        )
        if refusals.of(found) is None:
            is_other = one.family != plan.family
            return found, f"--families {one.family}" if is_other else _OF_JSON
    return None


def _training_groups(problem: Problem) -> Sequence[MachineGroup]:
    """Return the groups of machines that may train."""
    return problem.cluster.training_groups(problem.fixed.get("device"))


def _narrowed(
    problem: Problem, plan: Plan, skipped: frozenset[str], *, is_whole: bool
) -> list[tuple[Problem, frozenset[str]]]:
    """Return the questions that leave out what a plan cannot be launched with: kinds, decisions of it, or its family.

    Where the plan is proven best, or no limit cut its search short (``is_whole``), no question that it answers itself:
    it would be the answer once more. ``skipped``: what it left out already.
    """
    families = tuple(one for one in problem.families if one != plan.family)
    found = [replace(problem, families=families)] if families else []
    kinds = {group.device.name: None for group in _training_groups(problem)}
    left_out = not_launched(plan.family)
    of_one = _NOTHING if plan.family == OF_TRANSFORMERS else left_out  # of one kind of machines its replicas do alike
    left_out = left_out if len(kinds) > 1 else of_one
    whole = [(replace(problem, families=(plan.family,)), left_out)] if left_out - skipped else []
    pins: Sequence[Mapping[str, str | int]] = [{"device": name} for name in kinds] if len(kinds) > 1 else []
    if plan.family == OF_TRANSFORMERS:  # DeepSpeed, which trains any network, splits no sequence beside other degrees
        pins = [*pins, {"context_parallel_size": 1}]
    own = [one for one in pins if not one.keys() & problem.fixed.keys() and one.keys() <= pinnable_keys(plan.family)]
    if plan.status is Status.OPTIMAL or is_whole:
        network = network_of(problem, plan.substitutions)
        decided = usage_of(network, plan.family, plan.configuration, plan.prediction).decisions
        own = [one for one in own if any(decided.get(key) != value for key, value in one.items())]
    pinned = [replace(problem, families=(plan.family,), fixed={**problem.fixed, **one}) for one in own]
    asked = [(one, of_one) for one in pinned]
    return [*whole, *asked[:_MOST_FIRST], *((one, _NOTHING) for one in found), *asked[_MOST_FIRST:]]


# --- A plan as an answer: with what stands under its headline


def answered(
    problem: Problem,
    plan: Plan,
    search: Search,
    *,
    prefers_safe: bool = False,
    earlier: Sequence[tuple[Plan, str]] = (),
) -> Plan:
    """Return a plan with what stands under its headline: assumptions with their effect, and what keeps it from running.

    The search is that of the plan, with the time that it left. ``prefers_safe``: the recommended plan is the answer.
    ``earlier``: as of :func:`launchable`.
    """
    late, refusals = replace(plan, cautions=(_NOT_ASKED,)), Refusals(problem=problem)
    launched = search.bounded(lambda: launchable(problem, plan, search, earlier, refusals), late)
    found = search.bounded(lambda: with_recommended(problem, launched, search, refusals), launched)
    if found.configuration != launched.configuration:  # a faster one was found on the way
        network = network_of(problem, found.substitutions)
        known = with_known_error(network, found.family, found.configuration, found.prediction)
        faster = replace(found, prediction=known)
        found = search.bounded(
            lambda: _asked_again(problem, faster, search, refusals), replace(faster, cautions=(_NOT_ASKED,))
        )
    if prefers_safe and found.recommended is not None:
        found = safest(problem, found)
    return weighed(problem, search.bounded(lambda: beside_measured(problem, found, search), found), search)


def _asked_again(problem: Problem, plan: Plan, search: Search, refusals: Refusals) -> Plan:
    """Return a plan that took another one's place as :func:`launchable` has it; a safer one beside it may be helped."""
    found = launchable(problem, plan, search, refusals=refusals)
    is_helped = found.recommended is not None and refusals.of(in_its_place(problem, found)) is None
    return replace(found, instead="") if is_helped else found


def safest(problem: Problem, plan: Plan) -> Plan:
    """Return the recommended plan in the place of the best one, with its known error and what binds it."""
    found = in_its_place(problem, plan)
    chosen, family, configuration = network_of(problem, found.substitutions), found.family, found.configuration
    limits = binding_words(chosen, usage_of(chosen, family, configuration, found.prediction))
    known = with_known_error(chosen, family, configuration, found.prediction)
    computing = computing_lines(chosen, family, configuration, known)
    return replace(found, prediction=known, explanation=(*found.explanation, *computing, *limits))


def plan_of(problem: Problem, search: Search, *, prefers_safe: bool = False) -> Plan:
    """Return the best plan within a search, with what stands under its headline: what `planner plan` answers."""
    refuse_variant(problem)
    with search.interruptible():
        given, known = asked(problem), list[tuple[Plan, str]]()
        refusals = Refusals(problem=given)

        def look(kept: Callable[[], Plan]) -> None:
            """Note the best so far where it can be launched; else look for one, in most of the time left."""
            with suppress(PlannerError, MemoryError):
                plan = kept()
                if refusals.of(plan) is None:
                    known.append((plan, _OF_JSON))
                elif best := _best_launchable(given, plan, search.part(search.left_s * _SHARE_OF_LOOK), refusals)[0]:
                    known.append(best)

        is_mixed = len({group.device.name for group in _training_groups(problem)}) > 1
        with search.aside(search.left_s * _SHARE_OF_MIXED if is_mixed else inf, look):
            plan = planned(given, search)
        return answered(given, plan, search, prefers_safe=prefers_safe, earlier=known)


def plan_of_fleet(problem: Problem, search: Search, before: Plan | None) -> Plan:
    """Return the plan of a training on a fleet that was chosen within a search, no worse than what it found before."""
    try:
        found = planned(problem, part_of(search))
    except NoAnswerError:  # interrupted, or out of time
        if before is None:
            raise
        found = _completed(problem, before)
    if before is not None and before.objective < found.objective:
        found = _completed(problem, before)
    return weighed(problem, found, search)


def weighed(problem: Problem, plan: Plan, search: Search) -> Plan:
    """Return a plan with the assumptions that change it, and a warning of memory that is all but full."""
    network = network_of(problem, plan.substitutions)
    found = weigh_assumptions(network, plan.family, plan.configuration, plan.objective, search)
    cautions = (*plan.cautions, *found.cautions, *little_memory(network, plan.prediction))
    return replace(plan, key_assumptions=found.key, assumptions=found.minor, cautions=cautions)


# --- What an answer shows of a plan


def view_of(problem: Problem, found: Plan | Predicted) -> PlanView:
    """Return what the families show of a plan or a prediction; ``problem``: with the network that it trains."""
    family, configuration, prediction = FAMILIES[found.family], found.configuration, found.prediction

    def predict(other: Configuration) -> Prediction:
        name, chosen = as_asked(problem, other)
        return FAMILIES[name].predict(problem, chosen)

    return PlanView(
        problem=problem,
        words=family.WORDS,
        family=family.view(problem.cluster, configuration.to_document(), prediction),
        timeline=lambda: family.timeline(problem, configuration),
        predict=predict,
    )


def view_again(plan: Plan) -> PlanView | None:
    """Return what the families show of a plan whose question is read from itself; None where it is not whole."""
    try:
        return view_of(network_of(asked(_load(plan.problem)), plan.substitutions), plan)
    except PlannerError:
        return None


# --- A configuration that a question or a file holds, and what it costs


def configuration_of(problem: Problem) -> tuple[str, Configuration]:
    """Return the family and the configuration that the question holds."""
    if problem.configuration is None:
        message = "configuration: this key is missing. Add the block that `planner plan` prints, or ask `planner plan`."
        raise SpecError(message)
    family, given = problem.configuration
    return family, FAMILIES[family].configuration_of(problem, given)


def with_left_out(problem: Problem, configuration: Configuration) -> Problem:
    """Return a question whose assumptions say what its configuration has where the block says nothing."""
    assert problem.configuration is not None, "asked by configuration_of"
    family, given = problem.configuration
    words = (f"{family}.{line}" for line in FAMILIES[family].left_out(problem, given, configuration))
    return replace(problem, assumptions=tuple(dict.fromkeys((*problem.assumptions, *words))))


def prediction_of(problem: Problem, family: str, configuration: Configuration) -> Prediction:
    """Return what a configuration costs, with the known error of such predictions."""
    chosen: Any = configuration
    return with_known_error(problem, family, chosen, FAMILIES[family].predict(problem, chosen))


def predicted(problem: Problem) -> tuple[Problem, Predicted]:
    """Return the prediction of the configuration in a question, with what to know about it, and the question.

    The question then says, among its assumptions, what its configuration has where the block says nothing.
    """
    family, configuration = configuration_of(problem)
    problem = with_left_out(problem, configuration)
    prediction = prediction_of(problem, family, configuration)
    effects = weigh_assumptions(
        problem, family, configuration, prediction.value_of(problem.goal), Search(time_limit_s=_WEIGHED_S)
    )
    chosen: Any = configuration
    found = Predicted(
        family=family,
        configuration=configuration,
        prediction=prediction,
        explanation=(
            *FAMILIES[family].explain(problem, chosen, prediction),
            *computing_lines(problem, family, chosen, prediction),
        ),
        assumptions=effects.minor,
        warnings=problem.warnings,
        not_modelled=FAMILIES[family].NOT_MODELLED,
        key_assumptions=effects.key,
        cautions=(*effects.cautions, *little_memory(problem, prediction)),
    )
    return problem, found


def plan_of_document(document: Mapping[str, Any]) -> tuple[Problem, Plan]:
    """Return the question and the plan of a document."""
    from planner.question.build import load  # noqa: PLC0415 - takes a while

    problem = load(document)
    family, configuration = configuration_of(problem)
    prediction = prediction_of(problem, family, configuration)
    objective, stated = prediction.value_of(problem.goal), document["objective"]
    contradictions = proof_warnings(objective, stated, document["status"])
    found = Plan(
        goal=problem.goal,
        status=Status(document["status"]) if not contradictions else Status.FEASIBLE,
        objective=objective,
        bound=0.0 if contradictions else min(stated["bound"], objective),
        family=family,
        configuration=configuration,
        prediction=prediction,
        explanation=tuple(document["explanation"]),
        alternatives=tuple(
            Alternative(**{**row, "configuration": None, "substitutions": tuple(row["substitutions"])})
            for row in document["alternatives"]
        ),
        provenance=Provenance(**document["provenance"]),
        assumptions=problem.assumptions,
        warnings=(*contradictions, *problem.warnings),
        not_modelled=FAMILIES[family].NOT_MODELLED,
        problem=document["problem"],
        substitutions=problem.taken,
    )
    return asked(problem), found
