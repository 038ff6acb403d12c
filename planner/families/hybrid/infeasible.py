"""Why no layout of a question fits, and what would have to give."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from planner.families.hybrid.configuration import PINS
from planner.families.hybrid.cost import HybridCost
from planner.families.hybrid.space import Space
from planner.families.hybrid.ways import least_memory, ways_out
from planner.search import Search
from planner.units import Dimension, format_human

__all__ = ["why_nothing_fits"]

_MOST_VALUES = 12  # that are listed


def why_nothing_fits(costs: Sequence[HybridCost], search: Search) -> str:
    """Return how much memory the layout lacks that needs least, or that it is not memory which is missing.

    Where only asked whether anything fits, nothing else is tried.
    """
    if all(Space.of(cost).grid().count() == 0 for cost in costs):
        return _no_layout(costs)
    if search.good_enough == inf:
        return "No plan fits: no layout fits in the memory of a device."
    rows = [(*least_memory(cost, search), cost) for cost in costs]
    needed, chosen, cost = min(rows, key=lambda row: row[0] / row[2].memory_limit_bytes)
    if chosen is None:
        return "No plan fits: no layout fits in the memory of a device. Raise memory_per_device, or add devices."
    limit = cost.memory_limit_bytes
    texts = [format_human(one, Dimension.DATA, 4) for one in (needed, limit, needed - limit)]
    ways = ways_out(cost, needed, search)
    said = ", or ".join(ways) or "make the network or its sequence smaller: nothing else that was tried would do"
    return (
        f"No plan fits: the layout that needs least memory ({chosen.headline}) takes {texts[0]} on a device of "
        f"{cost.group.device.name!r}, which may use {texts[1]}: {texts[2]} are missing. "
        f"{said[:1].upper()}{said[1:]}."
    )


def _no_layout(costs: Sequence[HybridCost]) -> str:
    """Return which decision has no value left, or that they do not go together."""
    space = Space.of(costs[0])
    free = replace(space, problem=replace(space.problem, fixed={}, excluded={}))
    for key, name in PINS.items():
        if key in space.problem.fixed and not set(space.axes[name].values) & set(free.axes[name].values):
            listed = _listed(free.axes[name].values)
            return f"No plan fits: fix.{key} is {space.problem.fixed[key]}, and it can be {listed}. Change it."
    for key in space.problem.excluded:
        if not space.axes[PINS.get(key, key)].values:
            return f"No plan fits: constraints.exclude.{key} leaves no value. Allow one of them."
    problem = space.problem
    words = f", and {problem.devices_words}" if problem.devices_words else ""
    return (
        f"No plan fits: no layout of up to {space.num_devices:,} devices meets all limits and pins: degrees must "
        f"divide heads, layers and the batch of {space.batch:,}{words}. Drop or change one of them."
    )


def _listed(values: Sequence[int]) -> str:
    """Return some values, the first ones."""
    return ", ".join(map(str, values[:_MOST_VALUES])) + ", ..." * (len(values) > _MOST_VALUES)
