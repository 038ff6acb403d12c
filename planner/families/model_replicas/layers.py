"""The best choice for every layer, for any number of workers and any price of an exchange.

Per sample of one model replica a choice of all layers costs ``A + price V``: A seconds of computation and messages, V
bytes of weights that a replica reads (and of gradients that it writes: the price is for both). Neither depends on the
numbers of servers and replicas; these set the price, and the number of workers which states there are. One table of
costs thus serves all of them.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.models.model_replicas import ReplicaModel
from planner.models.replica_configuration import LayerChoice, ReplicaConfiguration
from planner.models.replica_pairs import ReplicaPairs
from planner.models.replica_states import LayerStates, all_states, worthwhile_threads
from planner.solution import Solution, Status
from planner.solvers.assignment import two_phase_assignment
from planner.solvers.layer_chain import cheapest_chain

__all__ = ["Layers", "assign"]

Indices = NDArray[np.int64]
_FEW_PAIRS = 400_000  # of states of two neighbours: up to here all are compared at once
_MOST_PAIRS = 3_000_000  # and up to here those that may belong to a better chain


def assign(first: Floats, second: Floats) -> tuple[tuple[int, ...], float]:
    """Return the matching that is best for both phases, and its cost."""
    found = two_phase_assignment(first, second)
    assert found.value is not None  # every square matrix has an assignment
    return found.value, found.objective


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
    """

    def __init__(
        self, model: ReplicaModel, threads: Sequence[int], most_workers: int, *, is_memory_ample: bool = True
    ) -> None:
        self.model = model
        self.most_workers = most_workers
        self.threads = kept = worthwhile_threads(model, threads, is_memory_ample=is_memory_ample)
        made = {shape: all_states(shape, most_workers, kept) for shape in {one.output_shape for one in model.stages}}
        states = [made[stage.output_shape] for stage in model.stages]
        self._pairs = ReplicaPairs(model, states, assign)
        layers = range(len(states))
        self._own_s = self._of_every_layer(self._pairs.own_s)
        self._floor_s = self._of_every_layer(self._pairs.floor_s)
        self._read_bytes = [self._pairs.weight_bytes(layer) for layer in layers]
        workers = {id(one): one.workers for one in states}
        self._workers = [workers[id(one)] for one in states]

    def _of_every_layer(self, cost_s: Callable[[int], Floats]) -> list[Floats]:
        """Return what the states of every layer cost, made once for layers that are alike."""
        made: dict[Hashable, Floats] = {}
        found = []
        for layer in range(len(self.model.stages)):
            key = (self.model.work.alike(layer), layer == 0)
            if key not in made:
                made[key] = cost_s(layer)
            found.append(made[key])
        return found

    # -- bounds

    @cached_property
    def _least_s(self) -> Floats:
        """Return the floor of each layer (row) if its replicas have at most so many segments (column), one replica."""
        found = np.full((len(self._floor_s), self.most_workers + 1), np.inf)
        for layer, floor_s in enumerate(self._floor_s):
            states = self._pairs.states[layer]
            is_single = states.replicas == 1
            np.minimum.at(found[layer], states.partitions[is_single], floor_s[is_single])
        return np.asarray(np.minimum.accumulate(found, axis=1))

    @cached_property
    def _weight_bytes(self) -> Floats:
        """Return the weights of every layer."""
        stages, constants = self.model.stages, self.model.constants
        return np.array([stage.num_weights * constants.number_bytes for stage in stages])

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
        return float(np.minimum(seconds / below + price_s * below, seconds / above + price_s * above).min(axis=1).sum())

    # -- search

    @property
    def states(self) -> tuple[LayerStates, ...]:
        """What may be chosen for every layer."""
        return self._pairs.states

    @property
    def own_s(self) -> Sequence[Floats]:
        """What every state of each layer costs whatever the neighbours: the update, and a phase without messages."""
        return self._own_s

    def read_bytes(self, layer: int) -> Floats:
        """Return what a replica reads of a layer in each state."""
        return self._read_bytes[layer]

    def pairs_s(self, num_workers: int) -> list[Floats] | None:
        """Return no more than every pair of states of neighbours that so many workers hold costs, layer by layer.

        None where there are too many to compare them all.
        """
        every = self._all(num_workers)
        return None if max(map(len, every)) ** 2 > _FEW_PAIRS else self._pairs.all_bounds_s(every)

    def cost_s(self, chosen: Sequence[LayerChoice], price_s_per_byte: float) -> float:
        """Return the seconds a sample of one replica, and what the exchange of its weights is priced at."""
        configuration = ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=1, layers=tuple(chosen))
        replicas = np.array([layer.num_replicas for layer in chosen])
        seconds = sum(layer.per_sample_s for layer in self.model.layer_times(configuration))
        return seconds + price_s_per_byte * float(self._weight_bytes @ replicas)

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
        priced = [price_s_per_byte * one for one in self._read_bytes]
        if extra is not None:
            priced = [one + more for one, more in zip(priced, extra, strict=True)]
        found = self._on_few_states(num_workers, priced, is_over)
        if found is None:
            return self._on(self._all(num_workers), priced, enough, is_over)
        most = min(enough, found.objective)
        kept = None if is_over() else self._within(num_workers, priced, most)
        if kept is None and is_over():
            return self._stopped(found, num_workers, price_s_per_byte)
        if kept is None:  # nothing is left that could be better
            bound = min(found.objective, enough)
            status = Status.OPTIMAL if bound >= found.objective else Status.FEASIBLE
            return Solution(status=status, objective=found.objective, bound=bound, value=found.value)
        if max(len(one) * len(two) for one, two in zip(kept, [*kept[1:], kept[0]], strict=True)) > _MOST_PAIRS:
            return self._stopped(found, num_workers, price_s_per_byte)
        bounds = self._pairs.all_bounds_s(kept, is_over)
        if bounds is None:
            return self._stopped(found, num_workers, price_s_per_byte)
        better = self._on(kept, priced, most, is_over, bounds)
        if better.value is not None and better.objective < found.objective:
            return better
        bound = min(found.objective, better.bound)
        status = Status.OPTIMAL if bound >= found.objective else Status.FEASIBLE
        return Solution(status=status, objective=found.objective, bound=bound, value=found.value)

    def _stopped(
        self, found: Solution[tuple[LayerChoice, ...]], num_workers: int, price_s_per_byte: float
    ) -> Solution[tuple[LayerChoice, ...]]:
        """Return the best of a few states, where the others were not compared."""
        bound = min(found.objective, self.bound(num_workers, price_s_per_byte))
        return Solution(status=Status.FEASIBLE, objective=found.objective, bound=bound, value=found.value)

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
        """Return the cheapest chain of some states; ``bounds`` of their pairs, where they have been made already."""
        nodes = [own[some] + read[some] for own, read, some in zip(self._own_s, priced, kept, strict=True)]
        if bounds is None:
            bounds = self._pairs.all_bounds_s(kept)
            assert bounds is not None  # nothing stops it

        def pair_s(layer: int, before: int, after: int) -> float:
            return self._pairs.pair_s(layer, int(kept[layer - 1][before]), int(kept[layer][after]))

        found = cheapest_chain(nodes, bounds, pair_s, enough=enough, is_over=is_over)
        value = None
        if found.value is not None:
            value = self._pairs.choices([int(some[state]) for some, state in zip(kept, found.value, strict=True)])
        return Solution(status=found.status, objective=found.objective, bound=found.bound, value=value)

    # -- many workers

    def _on_few_states(
        self, num_workers: int, priced: Sequence[Floats], is_over: Callable[[], bool]
    ) -> Solution[tuple[LayerChoice, ...]] | None:
        """Return the best of a few states, where there are many: P a power of two, R a quotient of what is left."""
        every = self._all(num_workers)
        if max(map(len, every)) ** 2 <= _FEW_PAIRS:
            return None
        kept = [some[self._is_round(layer, some, num_workers)] for layer, some in enumerate(every)]
        return self._on(kept, priced, np.inf, is_over)

    def _is_round(self, layer: int, some: Indices, num_workers: int) -> NDArray[np.bool_]:
        """Return which states are a power of two of partitions and, of replicas, half as often as would fit or less."""
        states = self._pairs.states[layer]
        partitions, replicas = states.partitions[some], states.replicas[some]
        wanted = list(_halves(num_workers))
        is_power = (partitions & (partitions - 1)) == 0
        rounded = np.isin(partitions * replicas, wanted) | np.isin(replicas, wanted)
        return np.asarray(is_power & rounded)

    def _within(self, num_workers: int, priced: Sequence[Floats], most: float) -> list[Indices] | None:
        """Return the states that a chain of cost less than ``most`` may have; None if there is no such chain.

        A chain costs at least the floor of its state, and the least floor of every other layer.
        """
        every = self._all(num_workers)
        floors = [floor[some] + read[some] for floor, read, some in zip(self._floor_s, priced, every, strict=True)]
        least = [float(floor.min()) for floor in floors]
        slack = most - sum(least)
        if slack <= 0:
            return None
        return [some[floor - low < slack] for some, floor, low in zip(every, floors, least, strict=True)]


def _halves(number: int) -> Iterator[int]:
    """Yield a number, its half, and so on to 1, rounded down."""
    while number:
        yield number
        number //= 2
