"""What other hardware would bring: the same question asked again on each, and answered anew.

The plan in hand stays an answer wherever its configuration is one on the changed hardware; so a search that ends early
never makes better hardware look worse.
"""

from dataclasses import dataclass, replace

from planner.checks.carried import carried
from planner.cluster import MachineGroup
from planner.errors import InfeasibleError, NoAnswerError, PlannerError
from planner.explanations import perturb
from planner.plan import Plan
from planner.problem import Problem
from planner.ranking import best_plan
from planner.search import Search
from planner.solution import SAME, Status

__all__ = ["LEFT_OUT", "Perturbation", "Sensitivity", "headline", "perturbations", "sensitivities"]

LEFT_OUT = "left out: interrupted"  # how the note of a change begins that was not answered because of Ctrl-C
_MOST_WORDS = 110  # letters of a reason
_TOO_LATE = "not asked: the time limit came first"
_TOO_SHORT = "no answer within its part of the time limit"
_NOT_KNOWN = "not known in time: nothing that is no slower was found within its part of the time limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """One change of the hardware.

    Attributes
    ----------
    name
        For programs: ``network_bandwidth_x2``.
    words
        For readers: ``a network twice as wide``.
    problem
        The changed question; None where it cannot be asked.
    reason
        Why not, or what to know about it.
    can_hurt
        Whether it takes something away; better hardware can be left unused.
    """

    name: str
    words: str
    problem: Problem | None
    reason: str = ""
    can_hurt: bool = False


def perturbations(problem: Problem) -> list[Perturbation]:
    """Return the changes worth asking for: links, devices, start-ups, input, memory, and a machine more or less."""
    found = [
        _network(problem, 2.0),
        _inside(problem, 2.0),
        *_devices(problem, 2.0),
        _latency(problem, 0.5),
        _input(problem, 2.0),
        _memory(problem, 2.0),
        *(_machine(problem, group, change) for group in problem.cluster.machine_groups for change in (1, -1)),
    ]
    return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What one change of the hardware would bring.

    Attributes
    ----------
    objective, saving
        Of the best plan on the changed hardware, and the share of the objective that it saves; negative where it costs.
        None where there is no such plan, and ``note`` says why.
    is_proven
        Whether no plan there does better; else it saves at least so much, or costs at most so much.
    plan
        Family and headline of that plan.
    is_other_plan
        Whether that differs from the plan on the hardware as it is.
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

    Each question is given an equal part of the time that is left. After an interruption no more are asked: those are
    named, and said to be left out.
    """
    changes = perturbations(problem)
    found = [
        _sensitivity(one, plan, search.part(search.left_s / (len(changes) - index)))
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
        found, note = best_plan(change.problem, search), _NOT_KNOWN
    except NoAnswerError:
        note = f"{LEFT_OUT} before it was answered" if search.was_interrupted else _TOO_SHORT
    except InfeasibleError as error:
        note = f"no plan: {_short(str(error))}"
    except PlannerError as error:
        note = f"cannot be planned: {_short(str(error))}"
    if not note.startswith(LEFT_OUT):
        found = _no_worse(change.problem, plan, found)
    if found is None or (_costs(found, plan) and found.status is not Status.OPTIMAL and not change.can_hurt):
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


def _no_worse(problem: Problem, plan: Plan, found: Plan | None) -> Plan | None:
    """Return what was found on changed hardware, or the plan in hand there, where that is one and is better.

    The bound that was found holds for both.
    """
    if found is not None and found.status is Status.OPTIMAL:
        return found
    kept = carried(problem, plan)
    if kept is None or (found is not None and found.objective < kept.objective * (1 - SAME)):
        return found
    bound = 0.0 if found is None else found.bound
    is_proven = kept.objective - bound <= SAME * kept.objective
    return replace(kept, bound=bound, status=Status.OPTIMAL if is_proven else Status.FEASIBLE)


def _costs(found: Plan, plan: Plan) -> bool:
    """Whether a plan takes longer than the one in hand."""
    return found.objective > plan.objective * (1 + SAME)


def headline(plan: Plan) -> str:
    """Return a plan's decisions in a few words."""
    network = f", with {', '.join(plan.substitutions)}" if plan.substitutions else ""
    return f"{plan.family} on {plan.configuration.headline}{network}"


def _short(reason: str) -> str:
    """Return the beginning of a reason, on one line."""
    text = " ".join(reason.split())
    return text if len(text) <= _MOST_WORDS else f"{text[: _MOST_WORDS - 3].rsplit(' ', 1)[0]} ..."


# -- which of them are worth asking ----------------------------------------------------------------------------------


def _network(problem: Problem, factor: float) -> Perturbation | None:
    """Return a wider network; None without one."""
    if not problem.cluster.graph.number_of_edges():
        return None
    changed = perturb.wider_network(problem, factor)
    return Perturbation(name=f"network_bandwidth_x{factor:g}", words="a network twice as fast", problem=changed)


def _inside(problem: Problem, factor: float) -> Perturbation | None:
    """Return wider links inside machines; None where nothing is exchanged inside one."""
    if all(group.inside is None or group.devices_per_machine == 1 for group in problem.cluster.machine_groups):
        return None
    name, words = f"inside_bandwidth_x{factor:g}", "links inside machines twice as fast"
    if beyond := [number for number in problem.calibration.all_reduce_curves if number > perturb.most_inside(problem)]:
        reason = f"an all-reduce measured on {max(beyond)} devices does not tell the links inside machines apart"
        return Perturbation(name=name, words=words, problem=None, reason=reason)
    return Perturbation(name=name, words=words, problem=perturb.wider_inside(problem, factor))


def _devices(problem: Problem, factor: float) -> list[Perturbation]:
    """Return faster devices: of each type, and of all where there are several."""
    names = list(problem.profiles)
    found = [
        Perturbation(
            name=f"device_speed_x{factor:g}:{name}",
            words=f"{name} twice as fast",
            problem=perturb.faster_devices(problem, factor, [name]),
        )
        for name in names
    ]
    if len(names) > 1:
        whole = perturb.faster_devices(problem, factor, names)
        found.append(Perturbation(name=f"device_speed_x{factor:g}", words="all devices twice as fast", problem=whole))
    return found


def _latency(problem: Problem, factor: float) -> Perturbation | None:
    """Return shorter start-ups; None where nothing is exchanged."""
    if problem.cluster.num_devices == 1:
        return None
    words = "half the latency of links and start-up of transfers"
    return Perturbation(name=f"latency_x{factor:g}", words=words, problem=perturb.faster_start(problem, factor))


def _input(problem: Problem, factor: float) -> Perturbation | None:
    """Return faster input; None where it takes no time."""
    groups, profiles = problem.cluster.machine_groups, problem.profiles.values()
    rates = [rate for group in groups for rate in (group.host_link_bytes_per_s, group.decode_samples_per_s)]
    is_free = all(rate == float("inf") for rate in rates) and all(group.storage is None for group in groups)
    if is_free and all(one.read_s is None for one in profiles):
        return None
    return Perturbation(
        name=f"input_x{factor:g}",
        words="storage, decoding and copying twice as fast",
        problem=perturb.faster_input(problem, factor),
    )


def _memory(problem: Problem, factor: float) -> Perturbation | None:
    """Return more memory; None where none is known, nor limited."""
    is_known = any(group.device.memory_bytes < float("inf") for group in problem.cluster.machine_groups)
    if not is_known and problem.limits.memory_per_device_bytes is None:
        return None
    words = "twice the memory of a device"
    return Perturbation(name=f"memory_x{factor:g}", words=words, problem=perturb.more_memory(problem, factor))


def _machine(problem: Problem, group: MachineGroup, change: int) -> Perturbation | None:
    """Return a machine more or less in one group; None where it is the last machine."""
    if problem.cluster.num_machines + change == 0:
        return None
    more = "more" if change > 0 else "less"
    name, words = f"machines{change:+d}:{group.name}", f"one machine {more} of {group.name}"
    try:
        changed = perturb.other_machines(problem, group.name, change)
    except ValueError as error:
        return Perturbation(name=name, words=words, problem=None, reason=str(error))
    return Perturbation(name=name, words=words, problem=changed, can_hurt=change < 0)
