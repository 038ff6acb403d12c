"""Bounds of the levels of the grid: seconds that no layout below a node is under, by the cost model itself.

Each rests on one thing that can only make a step longer, and that is left out or set to its best. Here stands what all
share; even cuts are bounded in :mod:`planner.families.hybrid.even_bounds`, any cut on any groups in
:mod:`planner.families.hybrid.cut_bounds`.

Where a batch has too many divisors to look at all (:attr:`Space.is_split`), *peak* stands in place of both paces: the
FLOP of the network at the highest rate that was fitted. Tests hold every bound against every layout of small grids.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf
from typing import Self

import numpy as np

from planner.cost import Floats
from planner.errors import InfeasibleError
from planner.families.hybrid.configuration import COARSE
from planner.families.hybrid.cost import GroupCost, HybridCost, costs_of
from planner.families.hybrid.layer_table import LayerTable
from planner.families.hybrid.space import Bound, Space
from planner.models.layouts import (
    ANY_CONTEXT_METHOD,
    Ints,
    Recompute,
    Schedule,
)
from planner.models.operators import flop_per_sample
from planner.networks import samples_of
from planner.problem import Problem
from planner.search import Search
from planner.solution import BELOW
from planner.solvers.grid import MOST_AT_ONCE, Columns, Grid, Level, OverError
from planner.transformer import Transformer

BEST = {
    "zero": 0,
    "recompute": 0,
    "recompute_modules": 0,
    "recompute_layers": 0,
    "shard": 0,
    "offload_layers": 0,
    "offload_percent": 100,
    "offload_modules": 0,
    "sequence_parallel": 1,
    "schedule": int(Schedule.ONE_F_ONE_B),
    "interleave": 1,
    "offload_optimizer": 0,
    "overlap_data": 1,
    "overlap_tensor": 1,
    "overlap_expert": 1,
    "order": 0,
    "context_method": ANY_CONTEXT_METHOD,
}


# -- what no plan beats, without a search: all devices at the highest rate that was fitted -----------------------------


def lower_bound(problem: Problem) -> float:
    """Return an objective that no plan of the family beats, in the goal's unit; 0 where the family does not apply.

    The FLOP of the network's matrix multiplications at the device's rate of large ones or of attention, whichever is
    higher: none is timed below that (:mod:`planner.models.compute`). A layout may stand on all groups of machines.
    """
    try:
        costs = costs_of(problem)
    except InfeasibleError:
        return 0.0
    return _peak_s(costs, samples_of(problem))


def peak_step_s(costs: Sequence[GroupCost]) -> float:
    """Return seconds that no layout on some groups of machines takes a step less than."""
    return _peak_s(costs, costs[0].batch)


def _peak_s(costs: Sequence[GroupCost], samples: float) -> float:
    """Return seconds that so many samples take at least."""
    flop, rate = flop_per_sample(costs[0].transformer).total_flop, 0.0
    for cost in costs:
        rate += cost.rates.most_flop_per_s * cost.cluster.num_devices
    return samples * flop / rate * BELOW


def fullest_s(transformer: Transformer, layer_s: Floats, stages: Ints) -> Floats:
    """Return seconds of layers that some stage is not under, whatever the cut: shape (2, n).

    Where none has more than ``ceil(L / p)``, so many have as many, and one of these no more layers of the quickest kind
    than their mean. Else one has a layer more.

    Parameters
    ----------
    layer_s
        Of each kind, shape (kinds, n).
    stages
        p, shape (n,).
    """
    most = -(-transformer.num_layers // stages)
    quickest_s, *others = np.sort(layer_s, axis=0)
    second_s = others[0] if others else quickest_s
    number = np.array([*transformer.kind_counts.values()])[np.argmin(layer_s, axis=0)]
    fullest = transformer.num_layers - (most - 1) * stages
    quick = np.array([np.minimum(number // fullest, most), np.minimum(number, most + 1)])
    return np.asarray(quick * quickest_s + (np.array([most, most + 1]) - quick) * second_s)


@dataclass(frozen=True)
class Bounds(ABC):
    """Bounds on the machines of a cost; ``memory_limit_bytes`` in place of the devices' own where that is less.

    They raise :class:`OverError` where the search is over.
    """

    cost: HybridCost
    search: Search = field(default_factory=Search)
    memory_limit_bytes: float = inf

    @cached_property
    def space(self) -> Space:
        """What may be chosen."""
        return Space.of(self.cost)

    def of_space(self, space: Space) -> Self:
        """Return the same bounds where less, or something else, may be chosen."""
        found = replace(self)
        vars(found)["space"] = space
        return found

    def within(self, search: Search) -> Self:
        """Return the same bounds within another search, with what these have worked out, which depends on none."""
        found = replace(self, search=search)
        own = {one.name for one in fields(self)}
        vars(found).update({name: value for name, value in vars(self).items() if name not in own})
        return found

    @property
    @abstractmethod
    def all(self) -> Sequence[Bound | None]:
        """Those of all levels but the last; None where one has none."""

    @abstractmethod
    def seconds(self, nodes: Columns) -> Floats:
        """Return the seconds of points; infinite where they do not fit."""

    @cached_property
    def smallest_microbatch(self) -> int:
        """The fewest samples that a micro-batch may have; 1 where it may have none."""
        return min(self.space.axes["microbatch"].values, default=1)

    @property
    def microbatches(self) -> Sequence[int]:
        """Samples that a micro-batch may have."""
        return self.space.axes["microbatch"].values or (1,)

    @cached_property
    def by_work(self) -> Sequence[int]:
        """What may be computed again: the least work first, and the most memory; all of it last."""
        return sorted(self.space.axes["recompute"].values)

    @cached_property
    def _again(self) -> Sequence[Mapping[str, int]]:
        """What may be computed again: nothing, sets of modules, whole layers; how many of these is told apart."""
        sets = self.space.axes["recompute_modules"].values
        return [
            {"recompute": recompute, "recompute_modules": modules}
            for recompute in self.by_work
            for modules in (sets if recompute == Recompute.SELECTIVE else (0,))
        ]

    @property
    def _most_again(self) -> Sequence[Mapping[str, int]]:
        """What of it takes most work and, where all activations wait on the device, least memory: all, if allowed."""
        return [one for one in self._again if one["recompute"] == Recompute.FULL] or self._again

    @property
    def _context_method(self) -> int:
        """The only method of context parallelism that there may be, or whichever takes least."""
        values = self.space.axes["context_method"].values
        return values[0] if len(values) == 1 else ANY_CONTEXT_METHOD

    def layer_table(self, group: GroupCost, *, has_links: bool, best: Mapping[str, int]) -> LayerTable:
        """Return the least seconds of layers on a machine group, with the best values of decisions that are open."""
        if not has_links:  # nothing overlaps, so that all placements share one table
            best = BEST
        whole = {**dict.fromkeys(COARSE, 1), **best, "context_method": self._context_method}
        return LayerTable.kept(group, self.space.axes, has_links=has_links, best=whole, split=self._split)

    @cached_property
    def _split(self) -> tuple[int, ...]:
        """Tensor degrees, each with and without sequence parallelism where rules allow it: see :class:`LayerTable`."""
        axes = tuple(self.space.axes[name] for name in ("tensor", "sequence_parallel"))
        pairs = Grid(levels=(Level(axes=axes),), rules=self.space.rules).expand({}, 0)
        return tuple((2 * pairs["tensor"] + pairs["sequence_parallel"]).tolist())

    def grid(self, *, uses_bounds: bool = True) -> Grid:
        """Return the grid with these bounds, or without."""
        return self.space.grid(self.all if uses_bounds else None)

    def _ask(self) -> None:
        """Raise an error where the search is over."""
        if self.search.is_over:
            raise OverError

    def _ask_uncounted(self) -> None:
        """Do the same in what tables keep for all questions: how much of it is left to work out must not be counted."""
        if self.search.is_late:
            raise OverError

    def slices(self, length: int, most: int = MOST_AT_ONCE // 8) -> Iterator[slice]:
        """Yield slices of a range, each of at most so many; raise an error where the search is over."""
        for start in range(0, length, most):
            self._ask()
            yield slice(start, min(start + most, length))


def sharding_is_free(group: GroupCost) -> bool:
    """Whether ZeRO 1 never needs more memory than 0: it has no buffers, and of no weights a copy beside what is shared.

    Where experts' weights are gathered, a device may hold them twice: they may be its own alone.
    """
    has_copies = group.precision.gathers_weights and group.transformer.experts is not None
    return not (group.kernels.shard_buffers_bytes or group.kernels.reduced_bytes or has_copies)
