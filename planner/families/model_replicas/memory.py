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
  (Lagrangian relaxation). It rarely meets the incumbent.
* *Every one*: where layers have few choices, a search in depth over states and maps, layer after layer, closes the gap:
  it leaves a branch only where no completion fits, or none costs less than the incumbent. A larger question keeps
  the status FEASIBLE, with a gap.

Seconds alone decide for the relaxed search, so that it has the fastest numbers of threads. In all others a number of
threads is left out only for one that is no slower *and* needs no more bytes
(:func:`planner.models.replicas.worthwhile_threads`).

There is no answer, proven, if for every number of workers the least bytes of all layers together exceed ``N_wr M``, or
the smallest segment that some layer can be cut into exceeds M, or everything was tried.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.model_replicas.configuration import group_of
from planner.families.model_replicas.cost import memory_limit_bytes, memory_of
from planner.families.model_replicas.layers import Layers, of_each
from planner.models.replica_segments import LayerChoice
from planner.models.replicas import ReplicaModel, worthwhile_threads
from planner.problem import Problem
from planner.solution import Solution, Status
from planner.units import Dimension, format_human

__all__ = ["Fitting", "num_threads_of"]

_Chosen = tuple[LayerChoice, ...]
_PRICES = tuple(
    8.0**power for power in (*range(-4, 5), 12)
)  # times the relaxed cost for as many bytes as the whole network
_ROUNDING = 1e-12  # of large sums whose difference is a bound
_MOST_THREADS = 64  # numbers of them: up to here all are tried
_MOST_MAPS = 1e7  # choices and maps of all layers: up to here every one may be tried,
_MOST_TRIES = 30_000  # of which most are ruled out by those of earlier layers; this many are made for a question
_ROUNDED_UP = 1.001  # so that the printed figure is enough


def num_threads_of(problem: Problem, model: ReplicaModel, threads: Sequence[int]) -> int:
    """Return how many numbers of threads a search weighs for every layer."""
    fast = len(worthwhile_threads(model, threads))
    if memory_of(problem, model).most_bytes(max(threads)) <= memory_limit_bytes(problem):
        return fast
    return max(fast, min(_MOST_THREADS + 1, len(worthwhile_threads(model, threads, is_memory_ample=False))))


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
        self._threads = worthwhile_threads(layers.model, threads, is_memory_ample=False)
        self._tries_left = _MOST_TRIES
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

    @property
    def _has_all_threads(self) -> bool:
        """Whether no number of threads is left out that may be needed."""
        return len(self._threads) <= _MOST_THREADS

    @cached_property
    def _lean(self) -> Layers:
        """The choices of all layers of which each is the fastest for its bytes; of very many threads, some."""
        threads = self._threads
        if threads == self.layers.threads:
            return self.layers
        if not self._has_all_threads:  # the fewest are among them, so that the least bytes are, too
            wanted = {threads[len(threads) * part // _MOST_THREADS] for part in range(_MOST_THREADS)}
            threads = tuple(sorted({*wanted, threads[-1]}))
        return Layers(self.layers.model, threads, self.layers.most_workers, is_memory_ample=False)

    @cached_property
    def _bytes(self) -> list[tuple[Floats, Floats]]:
        """Return, by layer, the bytes of every state: of all segments, and of the largest."""
        return [self._memory.of_states(index, states) for index, states in enumerate(self._lean.states)]

    @cached_property
    def _least(self) -> tuple[Floats, Floats]:
        """Return, by workers from 1, the least bytes of all layers together, and of the largest segment of any."""
        workers = np.arange(1, self.layers.most_workers + 1)
        together, largest = np.zeros((2, workers.size))
        for states, (every, one) in zip(self._lean.states, self._bytes, strict=True):
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
        if bound < min(objective, enough) and not is_over():
            better, is_all = self._every_one(num_workers, price_s_per_byte, min(objective, enough), is_over)
            if better is not None:
                objective, value = self.layers.cost_s(better, price_s_per_byte), better
            if is_all:
                bound = max(bound, min(objective, enough))
        if value is None:
            status = Status.INFEASIBLE if bound == float("inf") else Status.UNKNOWN
        else:
            status = Status.OPTIMAL if bound >= objective else Status.FEASIBLE
        return Solution(status=status, objective=objective, bound=min(bound, objective), value=value)

    def _priced(
        self, num_workers: int, price_s_per_byte: float, unit_s_per_byte: float, is_over: Callable[[], bool]
    ) -> Iterator[tuple[_Chosen, float]]:
        """Yield what is best if a byte of memory has a price, with a bound on everything that fits."""
        room_bytes = self.limit_bytes - self._memory.reserve_bytes
        spaces = [(self._lean, self._bytes, self._has_all_threads)]
        if self._lean is not self.layers:
            fast = [self._memory.of_states(index, states) for index, states in enumerate(self.layers.states)]
            spaces.insert(0, (self.layers, fast, False))  # fewer states: a good answer is found sooner among them
        for factor in _PRICES:
            for is_bound, column, share in ((True, 0, 1 / num_workers), (False, 1, 1.0)):
                for layers, sizes, is_whole in spaces:
                    if is_over():
                        return
                    price = factor * unit_s_per_byte
                    weight = price * share
                    extra = of_each([[one[column] for one in sizes]], lambda one, weight=weight: weight * one)
                    found = layers.best(num_workers, price_s_per_byte, extra=extra, is_over=is_over)
                    assert found.value is not None  # no choice is forbidden, and the first one is always priced
                    least = found.bound * (1 - _ROUNDING) - price * room_bytes * (1 + _ROUNDING)
                    yield found.value, least if is_bound and is_whole else 0.0

    # -- every choice and map

    def _every_one(
        self, num_workers: int, price_s_per_byte: float, enough: float, is_over: Callable[[], bool]
    ) -> tuple[_Chosen | None, bool]:
        """Return what fits and costs least, less than ``enough``, and whether everything was tried.

        In depth: every state of a layer, every worker for each of its segments, then the next layer. The memory of the
        layers so far only grows, the rest of the layers needs no less than its least bytes together, and costs no less
        than the cheapest chain of lower bounds of neighbours.
        """
        layers, room_bytes = self._lean, self.limit_bytes - self._memory.reserve_bytes
        states = [range(int(np.searchsorted(one.workers, num_workers, side="right"))) for one in layers.states]
        if not self._has_all_threads or self._tries_left <= 0 or self._num_maps(num_workers) > _MOST_MAPS:
            return None, False
        nodes = [
            (own + price_s_per_byte * layers.read_bytes[index])[: len(some)]
            for index, (own, some) in enumerate(zip(layers.own_s, states, strict=True))
        ]
        pairs = layers.pairs_s(num_workers)
        if pairs is None:
            return None, False
        rest_s = [np.zeros(len(states[-1]))]  # of all later layers, by state
        rest_bytes = [0.0]
        for index in range(len(states) - 1, 0, -1):
            rest_s.append((pairs[index - 1] + nodes[index] + rest_s[-1]).min(axis=1))
            rest_bytes.append(rest_bytes[-1] + float(self._bytes[index][0][: len(states[index])].min()))
        rest_s.reverse()
        rest_bytes.reverse()

        @cache
        def step(index: int, choice: LayerChoice, before: LayerChoice | None) -> tuple[float, NDArray[np.int64]]:
            """Return what a choice adds beside the layer before: seconds of both phases between them, and bytes."""
            seconds, model = 0.0, layers.model
            if before is not None:
                forward_s = model.forward(index, choice, before).total_s
                backward_s = model.backward(index - 1, before, choice).total_s
                seconds = forward_s / (choice.num_threads * choice.num_replicas)
                seconds += backward_s / (before.num_threads * before.num_replicas)
            return seconds, self._memory.of_layer(index, choice, before).sum(axis=0)

        best: _Chosen | None = None
        stack: list[tuple[float, tuple[LayerChoice, ...], NDArray[np.int64]]] = [
            (0.0, (), np.zeros(num_workers, dtype=np.int64))
        ]
        while stack:
            cost_s, chosen, load = stack.pop()
            if is_over() or self._tries_left <= 0:
                return best, False
            index = len(chosen)
            if index == len(states):
                if cost_s < enough and self.fits(chosen, num_workers):
                    best, enough = chosen, cost_s
                continue
            every, largest = self._bytes[index]
            total_bytes = num_workers * room_bytes - float(load.sum()) - rest_bytes[index]
            found = []
            for state in states[index]:
                own_s = cost_s + float(nodes[index][state])
                is_too_much = largest[state] > room_bytes or every[state] > total_bytes
                if is_too_much or own_s + float(rest_s[index][state]) >= enough:
                    continue
                partitions, replicas, threads = layers.states[index].at(state)
                for rows in _maps(partitions, replicas, load, chosen[-1] if chosen else None):
                    self._tries_left -= 1
                    choice = LayerChoice(num_threads=threads, workers=rows)
                    step_s, added = step(index, choice, chosen[-1] if chosen else None)
                    then = load.copy()
                    then[np.ravel(rows)] += added
                    least_s = own_s + step_s + float(rest_s[index][state])
                    if least_s < enough and then.max() <= room_bytes:
                        found.append((least_s, own_s + step_s, choice, then))
                    if self._tries_left <= 0:
                        return best, False
            found.sort(key=lambda one: -one[0])  # the last one is tried first
            stack += [(seconds, (*chosen, choice), then) for _, seconds, choice, then in found]
        return best, True

    def _num_maps(self, num_workers: int) -> float:
        """Return how many choices and maps of all layers there are, up to the names of the workers of the first."""
        number = 1.0
        for index, states in enumerate(self._lean.states):
            taken = states.workers[states.workers <= num_workers]
            ways = (prod(range(num_workers - one + 1, num_workers + 1)) if index else 1 for one in taken.tolist())
            number *= float(sum(ways))
            if number > _MOST_MAPS:
                break
        return number

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

    def none_fits(self, num_workers: Sequence[int]) -> InfeasibleError:
        """Return what would have to give where everything was tried."""
        limit, enough = (_bytes_text(size) for size in (self.limit_bytes, self.leanest_bytes * _ROUNDED_UP))
        return InfeasibleError(
            f"No plan fits: of all ways to spread the layers over up to {max(num_workers)} workers of a replica none "
            f"leaves each of them with {limit} or less ({self._device}). Raise memory_per_device to {enough}, with "
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


def _maps(
    partitions: int, replicas: int, load: NDArray[np.int64], before: LayerChoice | None
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the workers of every segment, replica after replica.

    Of workers that are alike, holding as many bytes and no segment of the layer before, the first free one stands for
    all: to swap two of them in all later layers alters no load and no message.
    """
    held = {} if before is None else {worker: place for place, worker in enumerate(np.ravel(before.workers).tolist())}
    kinds = [(int(size), held.get(worker, -1)) for worker, size in enumerate(load.tolist())]
    places: list[int] = []

    def placed() -> Iterator[tuple[tuple[int, ...], ...]]:
        if len(places) == partitions * replicas:
            yield tuple(tuple(places[r * partitions : (r + 1) * partitions]) for r in range(replicas))
            return
        tried = set()
        for worker, kind in enumerate(kinds):
            if worker not in places and kind not in tried:
                tried.add(kind)
                places.append(worker)
                yield from placed()
                places.pop()

    return placed()


def _bytes_text(size: float) -> str:
    """Return bytes for reading."""
    return format_human(size, Dimension.DATA, 4)
