"""Why no layout of a question fits, and what would have to give."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from planner.families.hybrid_bounds import HybridBounds
from planner.families.hybrid_configuration import PINS, HybridConfiguration
from planner.families.hybrid_cost import HybridCost
from planner.families.hybrid_space import Space
from planner.models.layouts import Ints
from planner.search import Search
from planner.units import Dimension, format_human

__all__ = ["why_nothing_fits"]

_ROUND_UP = 1.0006  # four digits that are printed may be rounded down by half of the last one
_AT_ONCE = 20_000
_MOST_VALUES = 12  # that are listed


def why_nothing_fits(costs: Sequence[HybridCost], search: Search) -> str:
    """Return how much memory the layout lacks that needs least, or that it is not memory which is missing."""
    if not any(Space.of(cost).grid().count() for cost in costs):
        return _no_layout(costs)
    rows = [(*_least(cost, search), cost) for cost in costs]
    needed, chosen, cost = min(rows, key=lambda row: row[0] / row[2].memory_limit_bytes)
    if chosen is None:
        return "No plan fits: no layout fits in the memory of a device. Raise memory_per_device, or add devices."
    limit = cost.memory_limit_bytes
    texts = [format_human(one, Dimension.DATA, 4) for one in (needed * _ROUND_UP, limit, needed * _ROUND_UP - limit)]
    return (
        f"No plan fits: the layout that needs least memory ({chosen.headline}) takes {texts[0]} on a device of "
        f"{cost.group.device.name!r}, which may use {texts[1]}: {texts[2]} are missing. Raise memory_per_device to "
        f"{texts[0]}{_or_pins(cost, search)}, or add devices."
    )


def _least(cost: HybridCost, search: Search) -> tuple[float, HybridConfiguration | None]:
    """Return the least bytes of any layout, and that layout; none where time is over before the first."""
    bounds = HybridBounds(cost, inf)
    nodes = bounds.space.grid().expand({}, 0)
    number, best, found = len(nodes["tensor"]), inf, None
    for start in range(0, number, _AT_ONCE):
        part = {name: column[start : start + _AT_ONCE] for name, column in nodes.items()}
        least = bounds.least_memory(part)
        at = int(np.argmin(least))
        if least[at] < best:
            best, found = float(least[at]), {name: column[at : at + 1] for name, column in part.items()}
        if search.is_over:
            break
    return (inf, None) if found is None else _smallest(cost, found)


def _smallest(cost: HybridCost, node: dict[str, Ints]) -> tuple[float, HybridConfiguration | None]:
    """Return the layout below a node that needs least memory, and its bytes."""
    points, grid = dict(node), Space.of(cost).grid()
    for level in range(1, len(grid.levels)):
        points = grid.expand(points, level)
    held = cost.memory(cost.layouts(points))["total"]
    if not len(held):
        return inf, None
    at = int(np.argmin(held))
    codes = {name: int(column[at]) for name, column in points.items()}
    return float(held[at]), HybridConfiguration.of(codes, batch=cost.batch, machines=cost.machines)


def _or_pins(cost: HybridCost, search: Search) -> str:
    """Return a pin without which a layout fits, as the middle of a sentence."""
    problem = cost.problem
    for key in [*PINS, "num_microbatches", "num_devices", "num_machines", "schedule"]:
        if key not in problem.fixed or search.is_over:
            continue
        free = replace(problem, fixed={name: value for name, value in problem.fixed.items() if name != key})
        needed, _ = _least(replace(cost, problem=free), search)
        if needed <= cost.memory_limit_bytes:
            return f", or leave out fix.{key}"
    return ""


def _no_layout(costs: Sequence[HybridCost]) -> str:
    """Return which decision has no value left, or that they do not go together."""
    space = Space.of(costs[0])
    for key, name in PINS.items():
        if key in space.problem.fixed:
            free = replace(space, problem=replace(space.problem, fixed={}))
            values = free.axes[name].values
            if space.axes[name].values[0] not in values:
                listed = ", ".join(map(str, values[:_MOST_VALUES])) + ", ..." * (len(values) > _MOST_VALUES)
                return f"No plan fits: fix.{key} is {space.problem.fixed[key]}, and it can be {listed}. Change it."
    return (
        f"No plan fits: no layout of up to {space.num_devices:,} devices meets all limits and pins: degrees must "
        f"divide heads, layers and the batch of {space.batch:,}. Drop or change one of them."
    )
