"""Why a layout with unlike stages, or on several kinds of machines, leaves devices idle: the answer is searched for."""

from dataclasses import replace
from math import inf

from planner.errors import PlannerError
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.mixed_bounds import MixedBounds
from planner.families.hybrid.mixed_configuration import MixedConfiguration
from planner.families.hybrid.mixed_cost import MixedCost
from planner.families.hybrid.mixed_search import configuration_of_point, searched_team
from planner.families.hybrid.mixed_space import MixedSpace
from planner.search import Search
from planner.units import Dimension, format_human

__all__ = ["mixed_idle_words"]

_MOST_QUESTIONS = 2_000  # of whether time is over: counted, so that the answer is the same on every machine


def mixed_idle_words(mixed: MixedCost, chosen: HybridConfiguration, search: Search) -> list[str]:
    """Return a line where devices that may train stay idle, of the kinds that train; none otherwise."""
    space = MixedSpace(mixed)
    number, machines = space.even.device_limits
    there = sum(space.devices)
    if not isinstance(chosen, MixedConfiguration) or machines.most is not None or search.is_over:
        return []
    most = min(there, number.most or there)
    if chosen.num_devices >= most:
        return []
    if most < there:  # of which kind is open
        idle = f"{most - chosen.num_devices:,} of {most:,} devices"
    else:
        counts = [(name, devices, chosen.devices_of.get(name, 0)) for name, devices in _devices(space)]
        idle = ", ".join(_of_kind(*one) for one in counts if one[2] < one[1])
    return [f"{idle} stay idle: {_best_of_all(mixed, most, search)}"]


def _devices(space: MixedSpace) -> list[tuple[str | None, int]]:
    """Return the devices of each kind by name."""
    return list(zip(space.cost.names, space.devices, strict=True))


def _of_kind(name: str | None, devices: int, used: int) -> str:
    """Return how many devices of a kind are left."""
    where = "" if name is None else f" of {name}"
    return f"{devices - used:,} of {devices:,} devices{where}"


def _best_of_all(mixed: MixedCost, number: int, search: Search) -> str:
    """Return what the best such layout of all devices takes, or that there is none."""
    limits = mixed.problem.limits
    problem = replace(mixed.problem, limits=replace(limits, devices=replace(limits.devices, least=number)))
    of_all = MixedCost(tuple(replace(one, problem=problem) for one in mixed.costs), is_staged=mixed.is_staged)
    part = search.part(search.left_s, questions_left=_MOST_QUESTIONS, num_alternatives=0, good_enough=-inf, cutoff=inf)
    try:
        answer = searched_team(MixedBounds(of_all), part)
    except PlannerError:
        return "no such layout of all was found in time"
    if answer.is_counted and not answer.num_points:
        return "no such layout of all divides heads and batch"
    value, solution = answer.solution.value, answer.solution
    if value is None or solution.objective > solution.bound:
        return "no such layout of all fits, or none was proven the best in time"
    name = configuration_of_point(of_all, value).headline
    return f"the best such layout of all takes {format_human(solution.objective, Dimension.TIME)} ({name})"
