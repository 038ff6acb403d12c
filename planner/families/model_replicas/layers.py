"""The best choice for every layer, for any number of workers and any price of an exchange.

Per sample of one model replica a choice of all layers costs ``A + price V``: A seconds of computation and messages, V
bytes of weights that a replica reads (and of gradients that it writes: the price is for both). Neither depends on the
numbers of servers and replicas; these set the price, and the number of workers which states there are. One table of
costs thus serves all of them.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.models.replica_segments import LayerChoice, ReplicaConfiguration, num_stripes
from planner.models.replicas import ReplicaModel, ReplicaPairs, all_states, worthwhile_threads
from planner.solution import Solution, Status
from planner.solvers.chain import cheapest_chain
from planner.solvers.matching import two_phase_assignment

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


def of_each(columns: Sequence[Sequence[Any]], made_of: Callable[..., Any]) -> list[Any]:
    """Return what is made of the arrays of every layer, once where layers share all of them."""
    rows = list(zip(*columns, strict=True))
    made = {key: made_of(*arrays) for key, arrays in {tuple(map(id, arrays)): arrays for arrays in rows}.items()}
    return [made[tuple(map(id, arrays))] for arrays in rows]
