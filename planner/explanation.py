"""Why a plan is as it is: what binds, where its time goes, what other hardware would bring, and the alternatives."""

from dataclasses import replace
from math import inf

from planner import perturb
from planner.answer.explanation import LEFT_OUT
from planner.checks import carried
from planner.constraints import allowed_memory_bytes, binding_words, more_memory
from planner.errors import InfeasibleError, NoAnswerError, PlannerError
from planner.families import FAMILIES, usage_of
from planner.frozen import frozen
from planner.networks import asked, network_of
from planner.plan import Alternative, Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.shown import Recorded, document_of
from planner.solution import SAME, Status, proof_of
from planner.words import beyond_words, clipped

# --- What other hardware would bring: the same question asked again on each, and answered anew
# The plan in hand stays an answer wherever its configuration is one on the changed hardware: so a search that ends
# early never makes better hardware look worse.

_MEMORY = "memory_x2"
_MOST_GROUPS = 4  # of machines, each of which is asked for
_PARTS = 3  # equal parts of the time that is left, for each change
_MOST_WORDS = 110  # letters of a reason
_TOO_LATE = "not asked: the time limit came first"
_TOO_SHORT = "no answer within its part of the time limit"
_NOT_KNOWN = "not known in time: nothing that is no slower was found within its part of the time limit"


@frozen
class Perturbation:
    """One change of the hardware."""

    name: str  # for programs: ``network_bandwidth_x2``
    words: str  # for readers: ``a network twice as wide``
    problem: Problem | None  # the changed question; None where it cannot be asked
    reason: str = ""  # why not, or what to know about it
    is_faster_only: bool = False  # whether all that differs is that something takes less time
    can_hurt: bool = False  # whether it takes something away; better hardware can be left unused


def perturbations(problem: Problem) -> list[Perturbation]:
    """Return the changes worth asking for: links, devices, start-ups, input, memory, and a machine more or less.

    Left out is what cannot matter: a network that is not there, input that takes no time, memory that nobody knows.
    """
    cluster, groups, profiles = problem.cluster, problem.cluster.machine_groups, problem.profiles
    found = []

    def add(name: str, words: str, changed: Problem | None, reason: str = "") -> None:
        is_faster_only = name != _MEMORY
        found.append(
            Perturbation(name=name, words=words, problem=changed, reason=reason, is_faster_only=is_faster_only)
        )

    if cluster.links:
        add("network_bandwidth_x2", "a network twice as fast", perturb.wider_network(problem, 2.0))
    if any(group.inside is not None and group.devices_per_machine > 1 for group in groups):
        name, words = "inside_bandwidth_x2", "links inside machines twice as fast"
        most = perturb.most_inside(problem)
        if beyond := [number for number in problem.calibration.all_reduce_curves if number > most]:
            measured = f"an all-reduce measured on {max(beyond)} devices"
            add(name, words, None, f"{measured} does not tell the links inside machines apart")
        else:
            add(name, words, perturb.wider_inside(problem, 2.0))
    for device in profiles:
        changed = perturb.faster_devices(problem, 2.0, [device])
        add(f"device_speed_x2:{device}", f"{device} twice as fast", changed)
    if len(profiles) > 1:
        add("device_speed_x2", "all devices twice as fast", perturb.faster_devices(problem, 2.0, list(profiles)))
    if cluster.num_devices > 1:
        words = "half the latency of links and start-up of transfers"
        add("latency_x0.5", words, perturb.faster_start(problem, 0.5))
    rates = [rate for group in groups for rate in (group.host_link_bytes_per_s, group.decode_samples_per_s)]
    is_free = all(rate == float("inf") for rate in rates) and all(group.storage is None for group in groups)
    if not is_free or any(one.read_s is not None for one in profiles.values()):
        add("input_x2", "storage, decoding and copying twice as fast", perturb.faster_input(problem, 2.0))
    is_known = any(group.device.memory_bytes < float("inf") for group in groups)
    if is_known or allowed_memory_bytes(problem) < float("inf"):
        add(_MEMORY, "twice the memory of a device", more_memory(problem, 2.0))
    is_last = cluster.num_machines == 1
    asked = groups
    if len(groups) > _MOST_GROUPS:  # such as the leaves of a fat tree: of those that are alike one is asked for all
        alike = {f"{replace(group, name='')} {cluster.own_link(group.name)}": group for group in reversed(groups)}
        asked = tuple(alike[key] for key in reversed(alike))
    more = [
        _other_machines(problem, group.name, change) for group in asked for change in ((1,) if is_last else (1, -1))
    ]
    return [*found, *{one.name: one for one in more}.values()]  # machines in use are of no group


def _other_machines(problem: Problem, name: str, change: int) -> Perturbation:
    """Return a machine more or less in one group, or in use where fewer than there are may be."""
    of_them = f" of {name}" if len(problem.cluster.machine_groups) > 1 else ""
    words = f"one machine {'more' if change > 0 else 'less'}{of_them}"
    most, pinned = problem.limits.machines.most, problem.fixed.get("num_machines")
    if pinned is None and most is not None and most < problem.cluster.num_machines:
        words = (
            f"one machine {'more' if change > 0 else 'less'} in use, of {problem.cluster.num_machines} that there are"
        )
        asked = problem.limits.machines
        least = asked.least + change if asked.least == most else asked.least  # exactly so many: then exactly those
        limits = replace(problem.limits, machines=replace(asked, least=least, most=most + change))
        changed = replace(problem, limits=limits) if most + change > 0 else None
        reason = "" if changed is not None else "none would be left"
        return Perturbation(
            name=f"machines{change:+d}", words=words, problem=changed, reason=reason, can_hurt=change < 0
        )
    changed, reason = None, ""
    try:
        changed = perturb.other_machines(problem, name, change)
    except ValueError as error:
        reason = str(error)
    name = f"machines{change:+d}:{name}"
    return Perturbation(
        name=name, words=words, problem=changed, reason=reason, can_hurt=changed is not None and change < 0
    )


@frozen
class Sensitivity:
    """What one change of the hardware would bring.

    Attributes
    ----------
    name, words
        Of the change, for programs: ``network_bandwidth_x2``; and for readers: ``a network twice as wide``.
    objective, saving
        Of the best plan on the changed hardware, and the share of the objective that it saves; negative where it costs.
        None where there is no such plan, and ``note`` says why.
    is_proven
        Whether no plan there does better; else it saves at least so much, or costs at most so much.
    plan
        Family and headline of that plan.
    is_other_plan
        Whether that differs from the plan on the hardware as it is.
    note
        Why there is no such plan, or what to know about it.
    """

    name: str
    words: str
    objective: float | None = None
    saving: float | None = None
    is_proven: bool = False
    plan: str = ""
    is_other_plan: bool = False
    note: str = ""


def sensitivities(problem: Problem, plan: Plan, search: Search) -> tuple[Sensitivity, ...]:
    """Return what each change would bring to a plan's question, the largest saving first; what has no answer last.

    Each question is given three equal parts of the time that is left: few take one, and what takes one where nothing
    else runs is answered alike on a loaded machine. After an interruption no more are asked: those are named, and said
    to be left out.
    """
    changes = perturbations(problem)
    found = [
        _sensitivity(one, plan, search.part(search.left_s * min(_PARTS / (len(changes) - index), 1)))
        for index, one in enumerate(changes)
    ]
    return tuple(sorted(found, key=lambda one: (one.saving is None, -(one.saving or 0.0))))


def _sensitivity(change: Perturbation, plan: Plan, search: Search) -> Sensitivity:
    """Return what one change would bring."""
    if change.problem is None:
        return Sensitivity(name=change.name, words=change.words, note=f"not asked: {change.reason}")
    if search.is_over:
        note = f"{LEFT_OUT} before it was asked" if search.was_interrupted else _TOO_LATE
        return Sensitivity(name=change.name, words=change.words, note=note)
    found: Plan | None = None
    try:
        found, note = _answer(change, plan, search), _NOT_KNOWN
    except NoAnswerError:
        note = f"{LEFT_OUT} before it was answered" if search.was_interrupted else _TOO_SHORT
    except InfeasibleError as error:
        note = f"no plan: {clipped(' '.join(str(error).split()), _MOST_WORDS)}"
    except PlannerError as error:
        note = f"cannot be planned: {clipped(' '.join(str(error).split()), _MOST_WORDS)}"
    if not note.startswith(LEFT_OUT):
        found = _no_worse(change.problem, plan, found)
    if found is None or (
        found.objective > plan.objective * (1 + SAME) and found.status is not Status.OPTIMAL and not change.can_hurt
    ):
        return Sensitivity(name=change.name, words=change.words, note=note)
    return Sensitivity(
        name=change.name,
        words=change.words,
        objective=found.objective,
        saving=1 - found.objective / plan.objective if plan.objective else 0.0,
        is_proven=found.status is Status.OPTIMAL,
        plan=headline(found),
        is_other_plan=headline(found) != headline(plan),
    )


def _answer(change: Perturbation, plan: Plan, search: Search) -> Plan:
    """Return the best plan on changed hardware.

    Families that were proven to have none are not asked again where links, devices or input are faster and nothing else
    differs: what fits, and what limits and pins allow, is the same. A deadline alone may be met then, of which
    :func:`planner.ranking.best_plan` is told by all plans together. Why there is none is looked for where none is.
    """
    changed = change.problem
    assert changed is not None, "asked by the caller"
    problem = changed
    if change.is_faster_only:
        some = [one for one in problem.families if plan.least_by_family.get(one, 0.0) < inf]
        problem = replace(problem, families=tuple(some))
    try:
        return best_plan(problem, search.part(search.left_s, has_reasons=False))
    except InfeasibleError:
        return best_plan(changed, search)  # with its reasons


def _no_worse(problem: Problem, plan: Plan, found: Plan | None) -> Plan | None:
    """Return what was found on changed hardware, or the plan in hand there, where that is one and is better.

    The bound that was found holds for both. The plan in hand may be better than what is proven best, whose layers are
    moved in the best settings alone.
    """
    kept = carried(problem, plan)
    slack = SAME if found is not None and found.status is Status.OPTIMAL else -SAME
    if kept is None or (found is not None and found.objective < kept.objective * (1 + slack)):
        return found
    bound = 0.0 if found is None else min(found.bound, kept.objective)
    return replace(kept, bound=bound, status=proof_of(kept.objective, bound))


def headline(plan: Plan) -> str:
    """Return a plan's decisions in a few words."""
    network = f", with {', '.join(plan.substitutions)}" if plan.substitutions else ""
    return f"{plan.family} on {plan.configuration.headline}{network}"


_TIE = 1e-6  # a relative loss below which an alternative says nothing new
_REFUSAL = " gives no plan: "  # as the ranking says it


@frozen
class Explanation(Recorded):
    """A plan explained.

    Attributes
    ----------
    title, plan
        Network and cluster; and what is explained.
    headline
        Family, devices and network of the plan.
    binding
        What its family says that binds.
    breakdown
        Terms of an iteration with their seconds and shares, the largest first.
    sensitivities
        The largest saving first.
    runners_up
        The best plan of each family on each network beside the chosen one, in order of objective.
    refusals
        Families that gave no plan, each with its reason.
    proof
        What is proven, in words.
    warnings
        What to know about it.
    """

    tables = ("sensitivities", "runners_up", "breakdown")
    title: str
    plan: Plan
    headline: str
    binding: tuple[str, ...]
    breakdown: tuple[tuple[str, float, float], ...]
    sensitivities: tuple[Sensitivity, ...]
    runners_up: tuple[Alternative, ...]
    refusals: tuple[str, ...]
    proof: str
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Return what a prompt shows; :meth:`to_dict` has all of it."""
        others = f"{len(self.sensitivities)} sensitivities, {len(self.runners_up)} runners-up"
        return f"<Explanation: {self.headline}, {others}>"

    def to_dict(self) -> dict[str, object]:
        """Return ``planner.explanation/1``."""
        plan = self.plan
        return {
            "schema": "planner.explanation/1",
            "status": plan.status.value,
            "objective": {"name": plan.goal.field, "value": plan.objective, "bound": plan.bound, "gap": plan.gap},
            **document_of(plan, "family"),
            **document_of(self, "headline"),
            **document_of(plan, "substitutions"),
            **document_of(self, "binding"),
            "breakdown": [
                {"name": name, "seconds": seconds, "share": share} for name, seconds, share in self.breakdown
            ],
            **document_of(self, "sensitivities", "runners_up", "refusals", "proof", "warnings"),
        }


def explain(problem: Problem, plan: Plan, search: Search) -> Explanation:
    """Return why a plan of a question is as it is; other hardware is planned anew within the search's limits."""
    question = asked(problem)
    network = network_of(question, plan.substitutions)
    terms, total_s = plan.prediction.breakdown_s, plan.prediction.iteration_time_s
    rows = [(name, seconds, seconds / total_s if total_s else 0.0) for name, seconds in terms.items()]
    usage = usage_of(network, plan.family, plan.configuration, plan.prediction)
    limits = binding_words(network, usage)
    return Explanation(
        title=f"{question.dnn.name} on {question.cluster.name}",
        plan=plan,
        headline=headline(plan),
        binding=(*FAMILIES[plan.family].explain(network, plan.configuration, plan.prediction), *limits),
        breakdown=tuple(sorted(rows, key=lambda row: -row[1])),
        sensitivities=sensitivities(question, plan, search),
        runners_up=_runners_up(plan),
        refusals=tuple(line for line in plan.explanation if _REFUSAL in line),
        proof=_proof(plan),
        warnings=plan.warnings,
    )


def _runners_up(plan: Plan) -> tuple[Alternative, ...]:
    """Return the best alternative of each family on each network; one that ties with the plan only where all do."""
    best: dict[tuple[str, tuple[str, ...]], Alternative] = {}
    for one in sorted(plan.alternatives, key=lambda one: (one.relative_loss <= _TIE, one.objective)):
        best.setdefault((one.family, one.substitutions), one)
    return tuple(sorted(best.values(), key=lambda one: one.objective))


def _proof(plan: Plan) -> str:
    """Return what is proven about a plan."""
    if plan.status is Status.OPTIMAL:
        return "; ".join(["no plan of the searched space is better, under this cost model", *beyond_words(plan)])
    if plan.bound <= 0:
        return "nothing is proven of how much better another plan may be"
    return f"no plan is better by more than {plan.gap:.1%}, under this cost model; this one is not proven best"
