"""Ways out where no layout fits in memory, each of them tried: more machines of a kind, another device, no pin."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

import numpy as np

from planner.families.hybrid.bounds import HybridBounds
from planner.families.hybrid.configuration import PINS, HybridConfiguration
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.space import Space
from planner.models.layouts import Ints
from planner.problem import Limits, Problem, Range
from planner.search import Search
from planner.solvers.grid import Axis, Level, OverError
from planner.units import Dimension, format_human

__all__ = ["least_memory", "ways_out"]

_AT_ONCE = 20_000
_MOST_DEVICES = 1 << 17
_MOST_MICROBATCHES = 64  # sizes, the smallest ones, where there are too many to look at each
_MOST_LISTED = 3
_TRIED_S = 6.0  # for all ways together
_ROUND_UP = 1.0006  # four digits that are printed may be rounded down by half of the last one
_MEMORY_PINS = ("recompute", "zero_stage", "offload_optimizer", "sequence_parallel", "microbatch_size", "schedule")


def ways_out(cost: HybridCost, needed_bytes: float, search: Search) -> list[str]:
    """Return what would let a layout fit, in the words of an order; nothing that was not tried, or has no time left.

    Parameters
    ----------
    needed_bytes
        Least bytes of a device in any layout that the question allows.
    """
    part = search.part(_TRIED_S)
    return [*_limits(cost, needed_bytes), *_pins(cost, part), *_machines(cost, part), *_devices(cost, needed_bytes)]


def _limits(cost: HybridCost, needed_bytes: float) -> Iterator[str]:
    """Yield the user's limit on memory, where the device itself has enough."""
    if needed_bytes * _ROUND_UP <= cost.group.device.memory_bytes:
        yield f"raise memory_per_device to {_size(needed_bytes * _ROUND_UP)}"


def _size(size_bytes: float) -> str:
    """Return bytes with the digits that a limit needs."""
    return format_human(size_bytes, Dimension.DATA, 4)


# -- pins and exclusions -----------------------------------------------------------------------------------------------


def _pins(cost: HybridCost, search: Search) -> Iterator[str]:
    """Yield a pin or an exclusion without which a layout fits; where none does alone, all that cost memory."""
    problem = cost.problem
    keys = [*PINS, "num_microbatches", "num_devices", "num_machines", "schedule"]
    alone = [("fix", key) for key in keys if key in problem.fixed]
    alone += [("constraints.exclude", key) for key in keys if key in problem.excluded]
    together = [one for one in alone if one[1] in _MEMORY_PINS]
    for tried in [*([one] for one in alone), together if len(together) > 1 else []]:
        if not tried or search.is_over:
            continue
        if least_memory(replace(cost, problem=_without(problem, tried)), search)[0] <= cost.memory_limit_bytes:
            yield f"leave out {' and '.join(f'{where}.{key}' for where, key in tried)}"
            return


def _without(problem: Problem, left_out: Iterable[tuple[str, str]]) -> Problem:
    """Return the question without some pins and exclusions."""
    pins = {key for where, key in left_out if where == "fix"}
    bans = {key for where, key in left_out if where == "constraints.exclude"}
    return replace(
        problem,
        fixed={key: value for key, value in problem.fixed.items() if key not in pins},
        excluded={key: value for key, value in problem.excluded.items() if key not in bans},
    )


# -- more machines -----------------------------------------------------------------------------------------------------


def _machines(cost: HybridCost, search: Search) -> Iterator[str]:
    """Yield the fewest machines of this kind that hold the network, all else as asked: memory alone is looked at.

    More machines allow all that fewer allow, so that the fewest are found by doubling and halving.
    """
    each = cost.group.devices_per_machine
    open_cost = replace(cost, problem=_without_numbers(cost.problem))
    low, high, found = cost.cluster.num_machines, 2 * cost.cluster.num_machines, None
    while found is None:
        if search.is_over or high * each > _MOST_DEVICES:
            return
        found = _fitting(open_cost, high, search)
        low, high = (low, high) if found else (high, 2 * high)
    while high - low > 1 and not search.is_over:
        middle = (low + high) // 2
        if better := _fitting(open_cost, middle, search):
            high, found = middle, better
        else:
            low = middle
    less = "" if high - low == 1 else " (whether fewer do was not found in time)"
    kind = f"{high} machines of {each}" if each > 1 else f"{high} machines"
    yield f"take {kind} {cost.group.device.name!r}{less}, e.g. {found.headline}"


def _fitting(cost: HybridCost, num_machines: int, search: Search) -> HybridConfiguration | None:
    """Return a layout on so many machines that fits, if there is one."""
    needed, found = least_memory(cost, search, num_machines)
    return found if needed <= cost.memory_limit_bytes else None


def _without_numbers(problem: Problem) -> Problem:
    """Return the question without limits and pins on how many devices there are."""
    limits: Limits = replace(problem.limits, devices=Range(), machines=Range())
    free = _without(problem, [("fix", "num_devices"), ("fix", "num_machines")])
    return replace(free, limits=limits)


# -- other devices -----------------------------------------------------------------------------------------------------


def _devices(cost: HybridCost, needed_bytes: float) -> Iterator[str]:
    """Yield listed devices of enough memory, the smallest first: all terms but the reserve are the same on them."""
    limit = cost.problem.limits.memory_per_device_bytes
    if limit is not None and limit < needed_bytes:
        return
    listed = cost.problem.listed_memory_bytes
    least = _least_device_bytes(cost, needed_bytes)
    enough = sorted((size, name) for name, size in listed.items() if least <= size < inf)
    if enough:
        names = [f"{name!r} ({format_human(size, Dimension.DATA)})" for size, name in enough[:_MOST_LISTED]]
        yield f"take as many devices of {_size(least * _ROUND_UP)} or more, e.g. {', '.join(names)}"


def _least_device_bytes(cost: HybridCost, needed_bytes: float) -> float:
    """Return the memory of the smallest device that holds a layout, beside what that device keeps for itself."""
    held, kept = needed_bytes - cost.reserve_bytes, cost.problem.calibration
    if kept.transformer_reserve_share >= 1:
        return held + kept.transformer_reserve_bytes
    return min(held + kept.transformer_reserve_bytes, held / (1 - kept.transformer_reserve_share))


# -- the least memory --------------------------------------------------------------------------------------------------


def least_memory(
    cost: HybridCost, search: Search, num_machines: int | None = None
) -> tuple[float, HybridConfiguration | None]:
    """Return the least bytes of any layout, and that layout; none where time is over before the first.

    ``num_machines``: in place of those that there are.
    """
    bounds = HybridBounds(cost, inf, search)
    if num_machines is not None:
        vars(bounds)["space"] = replace(bounds.space, num_machines=num_machines)
    space = bounds.space
    nodes = _coarse(space)
    number, best, found = len(nodes["tensor"]), inf, None
    for start in range(0, number, _AT_ONCE):
        part = {name: column[start : start + _AT_ONCE] for name, column in nodes.items()}
        try:
            least = bounds.least_memory(part)
        except OverError:
            break
        at = int(np.argmin(least))
        if least[at] < best:
            best, found = float(least[at]), {name: column[at : at + 1] for name, column in part.items()}
        if search.is_over:
            break
    return (inf, None) if found is None else _smallest(cost, space, found)


def _coarse(space: Space) -> dict[str, Ints]:
    """Return the nodes of the first level: of each degrees the smallest micro-batch, which needs least memory.

    Where chunks are asked for, which may ask for a number of micro-batches, too, all of them.
    """
    values = space.axes["microbatch"].values
    least_chunks = min(space.axes["interleave"].values, default=1)
    if space.is_split:  # too many to list them all
        values = values[: 1 if least_chunks == 1 else _MOST_MICROBATCHES]
    narrow = replace(space)
    vars(narrow)["axes"] = {**space.axes, "microbatch": Axis(name="microbatch", values=values)}
    nodes = narrow.grid().expand({}, 0)
    if least_chunks > 1 or not len(nodes["tensor"]):
        return nodes
    kept = nodes["microbatch"] == nodes["microbatch"].min()
    return {name: column[kept] for name, column in nodes.items()}


def _smallest(cost: HybridCost, space: Space, node: dict[str, Ints]) -> tuple[float, HybridConfiguration | None]:
    """Return the layout below a node that needs least memory, and its bytes."""
    grid = space.grid()
    left = tuple(axis for axis in grid.axes if axis.name not in node)
    points = replace(grid, levels=(Level(axes=left),)).expand(node, 0)
    held = cost.memory(cost.layouts(points))["total"]
    if not len(held):
        return inf, None
    at = int(np.argmin(held))
    codes = {name: int(column[at]) for name, column in points.items()}
    return float(held[at]), HybridConfiguration.of(codes, batch=cost.batch, machines=cost.machines)
