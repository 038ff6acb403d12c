"""Which stages the tables of pipelines look at: what devices are left for, and what the cutoff leaves.

Devices whose speeds sum up to S do at most ``S T`` of work in an iteration below the cutoff T. So the layers before a
state fit the devices used, those behind it fit the others, and those of a stage fit its own; with T near the time that
all devices need together, few devices used are left for each layer, and few ends for each stage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from planner.cost import Floats
from planner.solvers.pipeline_parts import Integers, PipelineCosts, Stack

__all__ = ["Grid", "Moves", "Pairs", "joined"]

_MOST_PAIRS = 1_000_000  # moves times layers that are looked at together
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Grid:
    """States of one source: devices used of each type, by the units that are left of them.

    ``shape``: numbers of units that may be used, by type; ``strides``: between states that differ in one unit.
    """

    num_devices: tuple[int, ...]
    units: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, costs: PipelineCosts) -> "Grid":
        """Return the states of a question."""
        numbers, units = tuple(costs.num_devices), tuple(costs.units)
        shape = tuple(number // unit + 1 for number, unit in zip(numbers, units, strict=True))
        return cls(numbers, units, shape, tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))))

    @property
    def size(self) -> int:
        """Number of states."""
        return prod(self.shape)

    @property
    def used(self) -> Integers:
        """Units used by type and state."""
        return np.indices(self.shape).reshape(len(self.units), -1)

    @property
    def most_left(self) -> Integers:
        """Devices left by type and state, at most."""
        units = np.array(self.units)[:, None]
        left = (np.array(self.shape)[:, None] - 1 - self.used) * units + units - 1
        most: Integers = np.minimum(np.array(self.num_devices)[:, None], left)
        return most


@dataclass(frozen=True, slots=True)
class Pairs:
    """Moves with first layers: stages that start at ``first`` and end before ``begin``, ..., ``stop - 1``."""

    move: Integers
    first: Integers
    begin: Integers
    stop: Integers

    def part(self, low: int, high: int) -> "Pairs":
        """Return some of them."""
        return Pairs(self.move[low:high], self.first[low:high], self.begin[low:high], self.stop[low:high])

    @property
    def widths(self) -> Integers:
        """Return the numbers of ends."""
        return self.stop - self.begin


def joined(run: Sequence[Pairs]) -> Pairs:
    """Return the stages of several first layers together."""
    return Pairs(
        np.concatenate([one.move for one in run]),
        np.concatenate([one.first for one in run]),
        np.concatenate([one.begin for one in run]),
        np.concatenate([one.stop for one in run]),
    )


@dataclass(frozen=True, slots=True)
class Moves:
    """A state's devices used and a choice for the stage that starts there, of every source; ordered by state.

    ``furthest``, by choice and first layer: behind which layer a stage ends at most.
    """

    source: Integers
    state: Integers  # of all sources, those of the first one first
    choice: Integers
    place: Integers
    after: Integers  # the state behind the stage
    earliest: Integers  # the layer behind it, at least
    least: Integers  # its first layer, from
    most: Integers  # to
    furthest: Integers

    def __len__(self) -> int:
        return len(self.state)

    @classmethod
    def all(cls, costs: PipelineCosts, stack: Stack, grid: Grid, cutoff: float) -> "Moves":
        """Return all states with the choices that are left in them, and the layers that the cutoff leaves for both."""
        units, shape, used = np.array(grid.units), np.array(grid.shape), grid.used
        types = np.array([one.type_index for one in costs.choices])
        sizes = np.array([one.num_devices for one in costs.choices]) // units[types]
        state, choice = np.nonzero(used[types].T + sizes < shape[types])
        source = stack.sources[choice]
        if len(stack) > 1:
            order = np.argsort(source * grid.size + state, kind="stable")
            source, state, choice = source[order], state[order], choice[order]
        axis = types[choice]
        place = (used[axis, state] * units[axis]) % np.array(costs.num_places)[axis]
        after = state + sizes[choice] * np.array(grid.strides)[axis]
        first = source * grid.size
        least, most = _layers_left(costs, stack, grid, cutoff)
        return cls(
            source,
            first + state,
            choice,
            place,
            first + after,
            least[source, after],
            least[source, state],
            most[source, state],
            _furthest(costs, stack, cutoff),
        )

    def pairs(self, num_layers: int) -> Iterator[Pairs]:
        """Yield the stages that may start at each layer, last layers first."""
        together = max(1, _MOST_PAIRS // max(1, len(self)))
        for high in range(num_layers, 0, -together):
            yield from reversed(self._pairs(max(0, high - together), high))

    def _pairs(self, low: int, high: int) -> list[Pairs]:
        """Return the stages that may start at the layers from ``low`` to before ``high``, by layer."""
        firsts = np.arange(low, high)[:, None]
        begins = np.maximum(self.earliest, firsts + 1)
        stops = self.furthest[self.choice, firsts] + 1
        rows, move = np.nonzero((begins < stops) & (self.least <= firsts) & (firsts <= self.most))
        found = Pairs(move, rows + low, begins[rows, move], stops[rows, move])
        ends = np.searchsorted(rows, np.arange(high - low + 1)).tolist()
        return [found.part(begin, stop) for begin, stop in pairwise(ends)]


def _layers_left(costs: PipelineCosts, stack: Stack, grid: Grid, cutoff: float) -> tuple[Integers, Integers]:
    """Return, by source and state, the first layer of a stage that starts in it: from, and to."""
    num_layers, shape = costs.num_layers, (len(stack), grid.size)
    if cutoff == np.inf or costs.work_s is None:
        return np.zeros(shape, dtype=np.int64), np.full(shape, num_layers - 1)
    rest_s = _most_done_s(costs, grid.most_left, cutoff)
    works_s = _works_s(stack, costs.work_s)
    least = np.array([np.searchsorted(one, one[-1] - rest_s, side="left") for one in works_s])
    most = np.full(shape, num_layers - 1)
    if max(grid.units) == 1:  # else more may be used than this
        done_s = _most_done_s(costs, grid.used, cutoff)
        reached = np.array([np.searchsorted(one, done_s, side="right") for one in works_s])
        most = np.minimum(reached - 1, most)
    return least, most


def _works_s(stack: Stack, work_s: Floats) -> Floats:
    """Return, by source, the work of an iteration in front of every layer."""
    return np.array(stack.num_microbatches)[:, None] * np.atleast_2d(work_s)


def _most_done_s(costs: PipelineCosts, devices: Integers, cutoff: float) -> Floats:
    """Return the work that so many devices of every type, along the first axis, can do until the cutoff."""
    done_s: Floats = np.asarray(costs.speeds, dtype=np.float64) @ devices * (cutoff * (1 + _ROUNDING))
    return done_s


def _furthest(costs: PipelineCosts, stack: Stack, cutoff: float) -> Integers:
    """Return, by choice and first layer, behind which layer a stage ends at most."""
    if cutoff == np.inf or costs.work_s is None:
        return np.full((len(costs.choices), costs.num_layers), costs.num_layers)
    able = np.array([one.num_devices * costs.speeds[one.type_index] for one in costs.choices])
    most_s = able[:, None] * (cutoff * (1 + _ROUNDING))
    ends = np.cumsum((0, *stack.num_choices))
    found = [
        np.searchsorted(work_s, work_s[:-1] + most_s[low:high], side="right") - 1
        for work_s, (low, high) in zip(_works_s(stack, costs.work_s), pairwise(ends.tolist()), strict=True)
    ]
    return np.concatenate(found)
