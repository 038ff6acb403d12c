"""Configurations of model replicas that fit: a search that minds the memory of workers, and its bounds.

A worker may hold M bytes (:mod:`planner.models.replica_memory`). Where the whole network, with all that its layers read
once more, fits on one worker with the most threads, every configuration fits, and nothing here is asked: the usual
case. Otherwise memory couples all layers and their maps, and this is what is done for one setting (S the states and
maps of all layers, ``cost(S)`` its seconds a sample, ``m(S, w)`` the bytes on worker w of N_wr):

* *Relaxed*: the best choice whatever its memory. If it fits, it is the best.
* *Priced*: for some prices of a byte, from next to nothing to more than any time, the best choice by
  ``cost(S) + price x sum over layers of bytes``, bytes being those of all segments of a layer over N_wr, or of its
  largest segment. Each comes with its best maps, and with maps that only level out memory. The cheapest that fits
  is the incumbent. The prices do not depend on M: what is found under one limit is found under any larger one.
* *Bound*: ``sum over w of m(S, w) <= N_wr M`` holds for whatever fits, hence for any price
  ``min over S of cost(S) + price (sum over w of m(S, w) / N_wr - M)`` is no more than the best that fits costs
  (Lagrangian relaxation). It rarely meets the incumbent: the status is then FEASIBLE, with a gap.

There is no answer, proven, if for every number of workers the least bytes of all layers together exceed ``N_wr M``, or
the smallest segment that some layer can be cut into exceeds M.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from planner.cost import Floats
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.model_replicas.cost import group_of, memory_limit_bytes, memory_of
from planner.families.model_replicas.layers import Layers
from planner.models.replica_configuration import LayerChoice
from planner.problem import Problem
from planner.solution import Solution, Status
from planner.units import Dimension, format_human

__all__ = ["Fitting"]

_Chosen = tuple[LayerChoice, ...]
_PRICES = tuple(
    8.0**power for power in (*range(-4, 5), 12)
)  # times the relaxed cost for as many bytes as the whole network
_ROUNDING = 1e-12  # of large sums whose difference is a bound
_ROUNDED_UP = 1.001  # so that the printed figure is enough


class Fitting:
    """The search over layers within the memory of a worker.

    Parameters
    ----------
    layers
        The search that does not mind it.
    threads
        Those that a machine may run.
    """

    def __init__(self, problem: Problem, layers: Layers, threads: Sequence[int]) -> None:
        self.layers = layers
        self.limit_bytes = memory_limit_bytes(problem)
        self.leanest_bytes = float("inf")  # of the fullest worker, in what was tried
        self._device = group_of(problem).device.name
        self._memory = memory_of(problem, layers.model)
        self._whole_bytes = self._memory.most_bytes(max(threads))

    @property
    def is_ample(self) -> bool:
        """Whether every configuration fits."""
        return self._whole_bytes <= self.limit_bytes

    def fits(self, chosen: _Chosen, num_workers: int) -> bool:
        """Whether the fullest worker holds what it must."""
        if self.is_ample:
            return True
        needed = self._memory.fullest(chosen, num_workers).total_bytes(1)
        self.leanest_bytes = min(self.leanest_bytes, needed)
        return needed <= self.limit_bytes

    # -- bounds

    @cached_property
    def _bytes(self) -> list[tuple[Floats, Floats]]:
        """Return, by layer, the bytes of every state: of all segments, and of the largest."""
        return [self._memory.of_states(index, states) for index, states in enumerate(self.layers.states)]

    @cached_property
    def _least(self) -> tuple[Floats, Floats]:
        """Return, by workers from 1, the least bytes of all layers together, and of the largest segment of any."""
        workers = np.arange(1, self.layers.most_workers + 1)
        together, largest = np.zeros((2, workers.size))
        for states, (every, one) in zip(self.layers.states, self._bytes, strict=True):
            last = np.searchsorted(states.workers, workers, side="right") - 1
            together += np.minimum.accumulate(every)[last]
            largest = np.maximum(largest, np.minimum.accumulate(one)[last])
        return together, largest

    def least_bytes(self, num_workers: int) -> float:
        """Return no more than the fullest of so many workers holds, whatever is chosen."""
        together, largest = (float(one[min(num_workers, one.size) - 1]) for one in self._least)
        return self._memory.reserve_bytes + max(together / num_workers, largest)

    def may_fit(self, num_workers: int) -> bool:
        """Whether it is not proven that nothing fits on so many workers."""
        return self.is_ample or self.least_bytes(num_workers) <= self.limit_bytes

    # -- search

    def best(
        self, num_workers: int, price_s_per_byte: float, *, enough: float, is_over: Callable[[], bool]
    ) -> Solution[_Chosen]:
        """Return the cheapest choice found that fits, with a bound; as :meth:`Layers.best` where all fit."""
        relaxed = self.layers.best(num_workers, price_s_per_byte, enough=enough, is_over=is_over)
        if relaxed.value is None or self.fits(relaxed.value, num_workers):
            return relaxed
        bound, objective, value = relaxed.bound, float("inf"), None
        unit = relaxed.objective / self._whole_bytes
        for chosen, least in self._priced(num_workers, price_s_per_byte, unit, is_over):
            bound = max(bound, least)
            for one in (chosen, self._memory.spread(chosen, num_workers)):
                cost = self.layers.cost_s(one, price_s_per_byte)
                if self.fits(one, num_workers) and cost < objective:
                    objective, value = cost, one
            if bound >= min(objective, enough):
                break
        status = Status.UNKNOWN if value is None else Status.OPTIMAL if bound >= objective else Status.FEASIBLE
        return Solution(status=status, objective=objective, bound=min(bound, objective), value=value)

    def _priced(
        self, num_workers: int, price_s_per_byte: float, unit_s_per_byte: float, is_over: Callable[[], bool]
    ) -> Iterator[tuple[_Chosen, float]]:
        """Yield what is best if a byte of memory has a price, with a bound on everything that fits."""
        room_bytes = self.limit_bytes - self._memory.reserve_bytes
        for factor in _PRICES:
            for is_bound, column, share in ((True, 0, 1 / num_workers), (False, 1, 1.0)):
                if is_over():
                    return
                price = factor * unit_s_per_byte
                extra = [price * share * one[column] for one in self._bytes]
                found = self.layers.best(num_workers, price_s_per_byte, extra=extra, is_over=is_over)
                assert found.value is not None  # no choice is forbidden, and the first one is always priced
                least = found.bound * (1 - _ROUNDING) - price * room_bytes * (1 + _ROUNDING)
                yield found.value, least if is_bound else 0.0

    # -- words

    def why_nothing_fits(
        self, num_workers: int, price_s_per_byte: float, is_over: Callable[[], bool]
    ) -> InfeasibleError:
        """Return what would have to give where it is proven that nothing fits on so many workers, or on fewer."""
        self.best(num_workers, price_s_per_byte, enough=float("inf"), is_over=is_over)  # finds the leanest one
        least, limit, enough = (
            _bytes_text(size)
            for size in (self.least_bytes(num_workers), self.limit_bytes, self.leanest_bytes * _ROUNDED_UP)
        )
        return InfeasibleError(
            f"No plan fits: the fullest of {num_workers} workers of a replica holds at least {least}, however the "
            f"layers are spread, and may hold {limit} ({self._device}). Raise memory_per_device to {enough}, with "
            f"which a plan is known to fit, or allow more machines."
        )

    def nothing_found(self, num_workers: Sequence[int]) -> NoAnswerError:
        """Return what is known where nothing was found to fit, and it is not proven that nothing does."""
        least, leanest, limit = (
            _bytes_text(size)
            for size in (min(map(self.least_bytes, num_workers)), self.leanest_bytes, self.limit_bytes)
        )
        return NoAnswerError(
            f"no configuration was found that fits: the leanest one has {leanest} on a worker, which may hold {limit} "
            f"({self._device}); that none has less than {least} is proven. Raise memory_per_device to "
            f"{_bytes_text(self.leanest_bytes * _ROUNDED_UP)}."
        )


def _bytes_text(size: float) -> str:
    """Return bytes for reading."""
    return format_human(size, Dimension.DATA, 4)
