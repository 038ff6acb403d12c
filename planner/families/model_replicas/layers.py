"""The best choice for every layer, for any number of workers and any price of an exchange; and the best one that fits.

Per sample of one model replica a choice of all layers costs ``A + price V``: A seconds of computation and messages, V
bytes of weights that a replica reads (and of gradients that it writes: the price is for both). Neither depends on the
numbers of servers and replicas; these set the price, and the number of workers which states there are. One table of
costs thus serves all of them.

*What fits.* A worker may hold M bytes (:mod:`planner.models.replica_memory`). Where the whole network, with all that
its layers read once more, fits on one worker with the most threads, every configuration fits, and nothing here is
asked: the usual case. Otherwise memory couples all layers and their maps, and this is what is done for one setting (S
the states and maps of all layers, ``cost(S)`` its seconds a sample, ``m(S, w)`` the bytes on worker w of N_wr):

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

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, cached_property
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import InfeasibleError, NoAnswerError
from planner.families.model_replicas.configuration import group_of
from planner.families.model_replicas.cost import memory_limit_bytes, memory_of
from planner.models.replica_segments import LayerChoice, ReplicaConfiguration, num_stripes
from planner.models.replicas import ReplicaModel, ReplicaPairs, all_states, worthwhile_threads
from planner.problem import Problem
from planner.solution import Solution, Status, T
from planner.solvers.chain import cheapest_chain
from planner.solvers.matching import two_phase_assignment
from planner.units import Dimension, format_human

Indices = NDArray[np.int64]
_FEW_PAIRS = 400_000  # of states of two neighbours: up to here all are compared at once
_MOST_ROUND = 632  # round states of a layer, which are compared first
_MOST_PAIRS = 3_000_000  # and up to here those that may belong to a better chain,
_MOST_PAIRS_TOGETHER = 12_000_000  # with those of all unlike layers
_MOST_TABLE_BYTES = 1 << 27
_MOST_SEGMENTS = 4_000_000  # of an answer
_MOST_PLACES = 1_024  # segments that are matched with segments of a neighbour: a pair with more is not asked for


def assign(first: Floats, second: Floats) -> tuple[tuple[int, ...], float]:
    """Return the matching that is best for both phases, and its cost."""
    found = two_phase_assignment(first, second)
    assert found.value is not None  # every square matrix has an assignment
    return found.value, found.objective


def table_bytes(model: ReplicaModel, num_threads: int, num_workers: int) -> float:
    """Return about how many bytes the tables of all layers take for so many workers, before any is made.

    Layers of a kind share theirs: what each state is and costs, with its memory (sixteen numbers), what a layer costs
    by its partitions (fifteen), pairs of states of neighbours; and a layer cut into stripes that are not all alike
    lists every stripe of every number of partitions (fifteen numbers, for one layer at a time).
    """
    replicas = np.cumsum(num_workers // np.arange(1, num_workers + 1))  # states, by the largest number of partitions
    first: dict[int, int] = {}
    kinds = [first.setdefault(model.work.alike(layer), layer) == layer for layer in range(len(model.stages))]
    rows = np.array([min(num_workers, num_stripes(stage.output_shape)) for stage in model.stages])
    is_image = np.array([stage.kind != "fully_connected" for stage in (*model.stages, model.stages[-1])])
    states = replicas[rows - 1].astype(np.float64) * num_threads
    numbers = 16 * states + 15.0 * rows + num_workers + np.minimum(states**2, _FEW_PAIRS)
    stripes = np.where(is_image[:-1] | is_image[1:], rows * (rows + 1.0) / 2, 2.0 * rows)
    return 8 * (float(numbers[kinds].sum()) + 15 * float(stripes.max()))


def can_be_listed(model: ReplicaModel, num_workers: int) -> bool:
    """Whether an answer is small enough, which names the worker of every segment of every layer."""
    return num_workers * len(model.stages) <= _MOST_SEGMENTS


def most_workers_of_tables(model: ReplicaModel, num_threads: int, most: int) -> int:
    """Return for how many workers, up to ``most``, the tables are small enough, and an answer can be listed."""
    number = most
    while number > 1 and not can_be_listed(model, number):
        number //= 2
    while number > 1 and table_bytes(model, num_threads, number) > _MOST_TABLE_BYTES:
        number //= 2
    return number


class Layers:
    """The choices of all layers of a question.

    Parameters
    ----------
    threads
        Those that a machine may run.
    most_workers
        The largest number of workers that will be asked for.
    is_memory_ample
        Whether every choice fits, so that only seconds count.
    is_over
        Whether to stop; asked before the tables of every layer are made.

    Raises
    ------
    NoAnswerError
        If the time was over before the tables were made.
    """

    def __init__(
        self,
        model: ReplicaModel,
        threads: Sequence[int],
        most_workers: int,
        *,
        is_memory_ample: bool = True,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model = model
        self.most_workers = most_workers
        self.threads = kept = worthwhile_threads(model, threads, is_memory_ample=is_memory_ample)
        made = {shape: all_states(shape, most_workers, kept) for shape in {one.output_shape for one in model.stages}}
        self.states = tuple(made[stage.output_shape] for stage in model.stages)  # what may be chosen for every layer
        self._pairs = ReplicaPairs(model, self.states, assign, is_over)
        first: dict[Hashable, int] = {}  # layers that are alike share what is made of them
        homes = [first.setdefault((model.work.alike(layer), layer == 0), layer) for layer in range(len(model.stages))]

        def of_every_layer(cost: Callable[[int], Floats]) -> list[Floats]:
            costs = {layer: cost(layer) for layer in first.values()}
            return [costs[home] for home in homes]

        self.own_s = of_every_layer(self._pairs.own_s)  # whatever the neighbours: the update, a phase without messages
        self._floor_s = of_every_layer(self._pairs.floor_s)
        self.read_bytes = of_every_layer(self._pairs.weight_bytes)  # what a replica reads of each layer in each state
        workers = {id(one): one.workers for one in self.states}
        self._workers = [workers[id(one)] for one in self.states]

    # -- bounds

    @cached_property
    def _kinds(self) -> tuple[list[int], Floats]:
        """Return the first layer of every kind, and how many there are: layers of a kind share their tables."""
        first: dict[int, int] = {}
        homes = [first.setdefault(id(floor_s), layer) for layer, floor_s in enumerate(self._floor_s)]
        kinds = list(first.values())
        return kinds, np.bincount(homes, minlength=len(homes))[kinds].astype(np.float64)

    @cached_property
    def _least_s(self) -> Floats:
        """Return the floor of each kind (row) if its replicas have at most so many segments (column), one replica."""
        kinds, _ = self._kinds
        found = np.full((len(kinds), self.most_workers + 1), np.inf)
        for row, layer in enumerate(kinds):
            states = self.states[layer]
            is_single = states.replicas == 1
            np.minimum.at(found[row], states.partitions[is_single], self._floor_s[layer][is_single])
        return np.asarray(np.minimum.accumulate(found, axis=1))

    @cached_property
    def _weight_bytes(self) -> Floats:
        """Return the weights of a layer of every kind."""
        stages, constants = self.model.stages, self.model.constants
        return np.array([stages[layer].num_weights * constants.number_bytes for layer in self._kinds[0]])

    def bound(self, num_workers: int, price_s_per_byte: float) -> float:
        """Return no more than any choice costs: every layer's best, whatever its neighbours.

        A state's floor falls as ``1 / R``, so that only the best P for each R is asked. As many segments fit for all R
        of a run, of which there are ``2 sqrt(N_wr)``: there ``a / R + c R`` is least next to ``sqrt(a / c)``.
        """
        replicas = np.arange(1, num_workers + 1)
        held = num_workers // replicas
        begins = np.flatnonzero(np.diff(held, prepend=0))
        first = replicas[begins]
        last = np.append(first[1:] - 1, num_workers)
        seconds, price_s = self._least_s[:, held[begins]], price_s_per_byte * self._weight_bytes[:, np.newaxis]
        ratio = np.divide(seconds, price_s, out=np.full_like(seconds, np.inf), where=price_s > 0)
        below = np.clip(np.floor(np.sqrt(ratio)), first, last)
        above = np.minimum(below + 1, last)
        least = np.minimum(seconds / below + price_s * below, seconds / above + price_s * above).min(axis=1)
        return float(least @ self._kinds[1])

    # -- search

    def pairs_s(self, num_workers: int) -> list[Floats] | None:
        """Return no more than every pair of states of neighbours that so many workers hold costs, layer by layer.

        None where there are too many to compare them all.
        """
        every = self._all(num_workers)
        return None if max(map(len, every)) ** 2 > _FEW_PAIRS else self._pairs.all_bounds_s(every)

    def cost_s(self, chosen: Sequence[LayerChoice], price_s_per_byte: float) -> float:
        """Return the seconds a sample of one replica, and what the exchange of its weights is priced at."""
        configuration = ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=1, layers=tuple(chosen))
        seconds = sum(layer.per_sample_s for layer in self.model.layer_times(configuration))
        read = sum(one.num_weights * layer.num_replicas for one, layer in zip(self.model.stages, chosen, strict=True))
        return seconds + price_s_per_byte * self.model.constants.number_bytes * read

    def best(
        self,
        num_workers: int,
        price_s_per_byte: float,
        *,
        extra: Sequence[Floats] | None = None,
        enough: float = np.inf,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Solution[tuple[LayerChoice, ...]]:
        """Return the cheapest choice of all layers on so many workers; its map is the best one.

        ``extra``: what every state of each layer costs beside, at least 0; it counts in objective and bound.
        OPTIMAL, or with a bound: UNKNOWN if nothing costs less than ``enough``, FEASIBLE if the search was over, or
        too many states were left to compare them all.
        """
        priced = of_each([self.read_bytes], lambda one: price_s_per_byte * one)
        if extra is not None:
            priced = of_each([priced, extra], lambda one, more: one + more)
        every = self._all(num_workers)
        if max(map(len, every)) ** 2 <= _FEW_PAIRS:
            return self._on(every, priced, enough, is_over)
        few = self._on(self._round_states(every, num_workers), priced, np.inf, is_over)

        def nothing_below(bound: float) -> Solution[tuple[LayerChoice, ...]]:
            """Return the best of the few states, with a bound on all others."""
            bound = min(few.objective, bound)
            status = Status.OPTIMAL if bound >= few.objective else Status.FEASIBLE
            return Solution(status=status, objective=few.objective, bound=bound, value=few.value)

        if is_over():
            return nothing_below(self.bound(num_workers, price_s_per_byte))
        # A chain costs at least the floor of its state, and the least floor of every other layer.
        floors = of_each([self._floor_s, priced, every], lambda floor, read, some: floor[some] + read[some])
        most = min(enough, few.objective)
        slack = most - sum(float(floor.min()) for floor in floors)
        if slack <= 0:
            return nothing_below(enough)
        kept = of_each([every, floors], lambda some, floor: some[floor - floor.min() < slack])
        sizes = {(id(one), id(two)): len(one) * len(two) for one, two in pairwise(kept)}
        is_too_many = max(sizes.values(), default=0) > _MOST_PAIRS or sum(sizes.values()) > _MOST_PAIRS_TOGETHER
        bounds = None if is_too_many else self._pairs.all_bounds_s(kept, is_over)
        if bounds is None:
            return nothing_below(self.bound(num_workers, price_s_per_byte))
        better = self._on(kept, priced, most, is_over, bounds)
        is_better = better.value is not None and better.objective < few.objective
        return better if is_better else nothing_below(better.bound)

    def _all(self, num_workers: int) -> list[Indices]:
        """Return every state that so many workers hold."""
        made = {id(workers): workers for workers in self._workers}  # equal layers share theirs
        every = {key: np.arange(np.searchsorted(workers, num_workers, side="right")) for key, workers in made.items()}
        return [every[id(workers)] for workers in self._workers]

    def _on(
        self,
        kept: Sequence[Indices],
        priced: Sequence[Floats],
        enough: float,
        is_over: Callable[[], bool],
        bounds: Sequence[Floats] | None = None,
    ) -> Solution[tuple[LayerChoice, ...]]:
        """Return the cheapest chain of some states; ``bounds`` of their pairs, where they have been made already.

        Pairs with too many segments to be matched are left out; the bound is of all.
        """
        nodes = of_each([self.own_s, priced, kept], lambda own, read, some: own[some] + read[some])
        if bounds is None:
            bounds = self._pairs.all_bounds_s(kept)
            assert bounds is not None  # nothing stops it
        allowed, least = bounds, np.inf
        if max(int(workers[some[-1]]) for workers, some in zip(self._workers, kept, strict=True)) > _MOST_PLACES:
            made: dict[int, Floats] = {}
            for layer, pairs in enumerate(bounds, start=1):
                if id(pairs) not in made:
                    places = self._pairs.num_places(layer, kept[layer - 1], kept[layer])
                    made[id(pairs)] = np.where(places > _MOST_PLACES, np.inf, pairs)
            allowed = [made[id(pairs)] for pairs in bounds]
            least = sum(float(costs.min()) for costs in nodes) + sum(float(pairs.min()) for pairs in bounds)

        def pair_s(layer: int, before: int, after: int) -> float:
            return self._pairs.pair_s(layer, int(kept[layer - 1][before]), int(kept[layer][after]))

        chain = cheapest_chain(nodes, allowed, pair_s, enough=enough, is_over=is_over)
        bound, status, value = min(chain.bound, least), chain.status, None
        if chain.value is not None:
            value = self._pairs.choices([int(some[state]) for some, state in zip(kept, chain.value, strict=True)])
        if least < np.inf:
            status = Status.UNKNOWN if value is None else Status.FEASIBLE
            if value is not None and bound >= chain.objective:
                status = Status.OPTIMAL
        return Solution(status=status, objective=chain.objective, bound=bound, value=value)

    def _round_states(self, every: Sequence[Indices], num_workers: int) -> list[Indices]:
        """Return a few states, where there are many: P a power of two, R a quotient of what is left."""
        first = {id(one): layer for layer, one in reversed(list(enumerate(self.states)))}
        homes = [first[id(one)] for one in self.states]
        made = {layer: every[layer][self._is_round(layer, every[layer], num_workers)] for layer in set(homes)}
        for layer, some in made.items():  # of many numbers of threads, some
            number = min(some.size, _MOST_ROUND)
            made[layer] = some[np.linspace(0, some.size - 1, number).astype(np.int64)]
        return [made[home] for home in homes]

    def _is_round(self, layer: int, some: Indices, num_workers: int) -> NDArray[np.bool_]:
        """Return which states are a power of two of partitions and, of replicas, half as often as would fit or less."""
        states = self.states[layer]
        partitions, replicas = states.partitions[some], states.replicas[some]
        wanted = [num_workers >> bit for bit in range(num_workers.bit_length())]  # its half, and so on to 1
        is_power = (partitions & (partitions - 1)) == 0
        rounded = np.isin(partitions * replicas, wanted) | np.isin(replicas, wanted)
        return np.asarray(is_power & rounded)


def of_each(columns: Sequence[Sequence[object]], made_of: Callable[..., T]) -> list[T]:
    """Return what is made of the arrays of every layer, once where layers share all of them."""
    rows = list(zip(*columns, strict=True))
    made = {key: made_of(*arrays) for key, arrays in {tuple(map(id, arrays)): arrays for arrays in rows}.items()}
    return [made[tuple(map(id, arrays))] for arrays in rows]


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
