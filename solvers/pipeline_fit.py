"""Whether a line of layers fits on devices at all, and on how few: stages, their devices, and nothing about time.

Sets and data: layers ``0..L-1`` in order, device types t with ``N_t`` devices. A stage of layers i to j that has k
stages from it to the last, itself included, needs at least ``r_t(k, i, j)`` devices of type t, or fits on none.

Variables: the number of stages n, the last layer of each, its type and its devices. Constraints: every layer in one
stage, stages in order; a stage has at least the devices that it needs; at most ``N_t`` of a type in all.

``D(k, i, w)`` is the fewest devices of the first type on which layers i to the last fit in exactly k stages, where
they may use ``w_t`` devices of each other type:

    ``D(0, L, w) = 0``; ``D(k, i, w) = min over j of  r_0(k, i, j) + D(k - 1, j + 1, w)
    and, for the other types, D(k - 1, j + 1, w - r_t(k, i, j) e_t)``.

As a stage may have more devices than it needs, any configuration gives one with the fewest of each stage, so this is
exact: n stages fit if and only if ``D(n, 0, N) <= N_0``. Work: ``O(n L^2 T prod over the other types of (N_t + 1))``.
"""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from planner.search import Search
from planner.solvers.pipeline_parts import Integers

__all__ = ["NONE", "FewestDevices"]

NONE = 2**40  # devices of a stage that fits on no number of them

_MOST_AT_ONCE = 2_000_000  # numbers in one pass
_MOST_KEPT = 1 << 26  # numbers in all tables: half a gibibyte

Needs = Callable[[int, Integers], Integers]


class FewestDevices:
    """The tables D, one number of stages after the other.

    Parameters
    ----------
    needs
        Given k and first layers, ``r_t(k, i, j)`` by type, first layer and last layer 0 to L - 1, ``NONE`` where no
        number will do; ends before the first layer are ignored.
    search
        Filling a table ends with it.

    Attributes
    ----------
    is_stopped
        Whether a table was not filled, as the search was over or all tables would be too large.
    """

    def __init__(self, num_layers: int, num_devices: Sequence[int], needs: Needs, search: Search | None = None) -> None:
        self.num_layers, self.num_devices, self.needs = num_layers, tuple(num_devices), needs
        self.is_stopped = False
        self._search = search
        self._grid = [number + 1 for number in num_devices[1:]]
        self._strides = [prod(self._grid[axis + 1 :]) for axis in range(len(self._grid))]
        self._budgets = np.indices(self._grid).reshape(len(self._grid), -1) if self._grid else np.zeros((0, 1), int)
        start = np.full((num_layers + 1, prod(self._grid)), NONE)
        start[-1] = 0
        self._tables = [start]

    def add(self) -> bool:
        """Fill the table of one stage more; return whether anything fits in so many stages, or may in still more.

        False, too, where it was not filled.
        """
        self.is_stopped = (len(self._tables) + 1) * self._tables[0].size > _MOST_KEPT
        if self.is_stopped:
            return False
        table = np.full_like(self._tables[-1], NONE)
        step = max(1, _MOST_AT_ONCE // (self.num_layers * table.shape[1]))
        for low in range(0, self.num_layers, step):
            if self._search is not None and self._search.is_over:
                self.is_stopped = True
                return False
            firsts = np.arange(low, min(low + step, self.num_layers))
            for axis, needed in enumerate(self.needs(len(self._tables), firsts)):
                fewest = self._through(len(self._tables), firsts, axis, needed).min(axis=1)
                table[firsts] = np.minimum(table[firsts], fewest)
        self._tables.append(table)
        return bool((table < NONE).any())

    def _through(self, k: int, firsts: Integers, axis: int, needed: Integers) -> Integers:
        """Return the fewest by first layer, last layer and budget, with a first stage of one type."""
        needed = needed[:, :, None]
        behind = self._tables[k - 1][None, 1:]
        if axis:
            left = self._budgets[axis - 1] - needed
            at = np.arange(behind.shape[2]) - np.where(left < 0, 0, needed) * self._strides[axis - 1]
            found = np.where(left < 0, NONE, np.take_along_axis(np.broadcast_to(behind, at.shape), at, axis=2))
        else:
            found = np.minimum(needed + behind, NONE)
        is_run = np.arange(self.num_layers)[None, :, None] >= firsts[:, None, None]
        is_few = found <= self.num_devices[0]
        return np.where(is_run & is_few, found, NONE)

    def fewest(self, num_stages: int) -> Integers:
        """Return ways to have so many stages fit, a row each: numbers of devices by type, none of which can be less.

        None of a type but the first counts what is left over: rows hold what may be used, and cover all ways.
        """
        table = self._tables[num_stages][0]
        fits = np.flatnonzero(table < NONE)
        return np.concatenate((table[None, fits], self._budgets[:, fits])).T

    def stages(self, num_stages: int, used: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """Return stages (first, last, type, devices) that fit within a row of :meth:`fewest`; the first such."""
        budget = int(sum(one * stride for one, stride in zip(used[1:], self._strides, strict=True)))
        first, found = 0, []
        for k in range(num_stages, 0, -1):
            firsts, target = np.array([first]), self._tables[k][first, budget]
            needs = self.needs(k, firsts)
            for axis, by_end in enumerate(needs):
                ends = np.flatnonzero(self._through(k, firsts, axis, by_end)[0, :, budget] == target)
                if len(ends):
                    break
            last = int(ends[0])
            needed = int(needs[axis, 0, last])
            found.append((first, last, axis, needed))
            budget -= needed * self._strides[axis - 1] if axis else 0
            first = last + 1
        return found
