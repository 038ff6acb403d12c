"""Why a layout uses fewer devices than it may, and which batch would use all: each answer is searched for."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from planner.errors import PlannerError
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.space import Space
from planner.models.layouts import Ints
from planner.search import Search
from planner.solvers.grid import GridAnswer, Point
from planner.units import Dimension, format_human

__all__ = ["idle_words"]

_MOST_BATCHES = 4  # that are tried: a number, not a time, so that the answer is the same on every machine

Searched = Callable[[HybridCost, Search], GridAnswer]


def idle_words(cost: HybridCost, chosen: HybridConfiguration, search: Search, searched: Searched) -> list[str]:
    """Return a line where devices that may train stay idle; none otherwise.

    Parameters
    ----------
    searched
        The search of the family; it is asked for the best layout of all devices, and with other batches.
    """
    space = Space.of(cost)
    most = _most_devices(space)
    if chosen.num_devices >= most or search.is_over:
        return []
    start = f"{most - chosen.num_devices:,} of {most:,} devices stay idle"
    part = search.part(search.left_s, num_alternatives=0, good_enough=float("-inf"), cutoff=float("inf"))
    limits = replace(space.problem.limits, devices=replace(space.problem.limits.devices, least=most))
    of_all = replace(cost, problem=replace(space.problem, limits=limits))
    why = f"no layout of all divides the layers, heads and batch of {space.batch:,}"
    if Space.of(of_all).grid().count() != 0:
        why = _of_all(of_all, part, searched)
    return [f"{start}: {'; '.join([why, *_batches(cost, space, most, part, searched)])}"]


def _most_devices(space: Space) -> int:
    """Return how many devices limits and pins allow."""
    devices, machines = space.device_limits
    there = min(space.num_machines, machines.most or space.num_machines) * space.devices_per_machine
    return min(there, devices.most or there)


def _of_all(cost: HybridCost, search: Search, searched: Searched) -> str:
    """Return what the best layout of all devices takes."""
    found = _best(cost, search, searched)
    if found is None:
        return "no layout of all fits, or none was found in time"
    seconds, point = found
    name = HybridConfiguration.of(point, batch=cost.batch, machines=cost.machines).headline
    return f"the best layout of all takes {format_human(seconds, Dimension.TIME)} ({name})"


def _best(cost: HybridCost, search: Search, searched: Searched) -> tuple[float, Point] | None:
    """Return the seconds of the best layout, and it; None where there is none, or it is not proven in time."""
    try:
        solution = searched(cost, search).solution
    except PlannerError:
        return None
    if solution.value is None or solution.objective > solution.bound:
        return None
    return solution.objective, solution.value


def _batches(cost: HybridCost, space: Space, number: int, search: Search, searched: Searched) -> Iterator[str]:
    """Yield batches, the nearest one below and above of those tried, whose best layout uses all devices."""
    sides: set[bool] = set()
    for batch in _near_batches(space, number):
        if search.is_over:
            return
        is_told = (batch > space.batch) in sides
        found = None if is_told else _best(replace(cost, given_batch=batch), search, searched)
        if found is None:
            continue
        seconds, point = found
        if point["tensor"] * point["context"] * point["pipeline"] * point["data"] == number:
            each = format_human(seconds / batch, Dimension.TIME)
            sides.add(batch > space.batch)
            yield f"a batch of {batch:,} would use all, at {each} a sample"


def _near_batches(space: Space, number: int) -> list[int]:
    """Return batches that divide by the data ranks of some layout of all devices, the nearest ones first."""
    degrees = replace(space, batch=number).grid().levels[0].axes  # any data degree divides such a batch
    values = {axis.name: np.array(axis.values, dtype=np.int64) for axis in degrees}
    others = _products(values["tensor"], values["context"], values["pipeline"])
    replicas = number // others[number % others == 0]
    multiples = {*(space.batch // replicas * replicas).tolist(), *(-(-space.batch // replicas) * replicas).tolist()}
    found = sorted(multiples - {0, space.batch}, key=lambda one: (abs(one - space.batch), one))
    return found[:_MOST_BATCHES]


def _products(*columns: Ints) -> Ints:
    """Return all products of one value of each column."""
    found = np.ones(1, dtype=np.int64)
    for column in columns:
        found = np.unique(np.multiply.outer(found, column))
    return found
