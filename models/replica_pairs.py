"""Costs of the choices of one layer, and of two neighbouring layers under their best relative map.

A state of a layer is its partitions P, its replicas R and its threads H. Costs are seconds a sample of one model
replica, each phase divided by its own layer's parallelism ``H R``: N_mr divides all of them alike.

*Why two layers are enough.* What a segment receives depends on which segment of the neighbouring layer shares its
worker, and on nothing else of the map (:func:`planner.models.segments.remote_counts`). Two layers' maps are thus a
matching between their segments, the shared workers. Workers are equal, so any matchings between neighbours, made one
by one, are the matchings of a whole map: name the workers of the first layer as they come, and give each segment of
the next layer the name of its partner; those without a partner take free names, which exist since ``P R <= N_wr``. (A
free worker may hold a segment of the layer before: that adds a partner, which only takes messages away. For the same
reason a largest matching is among the best, and needs no more workers than the larger of both layers.) Hence the best
matching of a pair of states depends on neither earlier layers nor N_wr.

*Who may be partners.* Sample k is on replica ``k mod R`` of a layer, so that replicas r and r' of neighbours meet in
the same samples if ``r = r' modulo g``, ``g = gcd(R, R')``: then in ``g / R'`` of the samples of r, else never. A
partner that is never met saves nothing. The pair of layers falls apart into g equal problems, one for each remainder.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 5.3.
"""

from collections.abc import Callable, Hashable, Sequence
from math import gcd

import numpy as np

from planner.cost import Floats
from planner.errors import NoAnswerError
from planner.models.model_replicas import ReplicaModel
from planner.models.replica_configuration import LayerChoice
from planner.models.replica_phases import LayerExtremes, PhaseExtremes
from planner.models.replica_states import Ints, LayerStates
from planner.models.segments import Counts
from planner.models.stripe_counts import num_stripes, stripe_sizes

__all__ = ["Assign", "ReplicaPairs"]

_MOST_KEPT = 1_000_000  # pairs of states of two layers, whose bounds are kept
# Two matrices (seconds of the later layer's forward phase, of the earlier one's backward phase) by later segment (row)
# and earlier segment (column) -> the column of every row, and the least sum of the worst entries of both.
Assign = Callable[[Floats, Floats], tuple[tuple[int, ...], float]]


class ReplicaPairs:
    """What every state of a layer, and every pair of states of neighbours, costs.

    Parameters
    ----------
    states
        Of every layer.
    assign
        Finds the best matching, see :data:`Assign`.
    is_over
        Whether to stop, asked before every layer's tables are made.

    Raises
    ------
    NoAnswerError
        If the time was over before.
    """

    def __init__(
        self,
        model: ReplicaModel,
        states: Sequence[LayerStates],
        assign: Assign,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model = model
        self.states = tuple(states)
        self._assign = assign
        self._best: dict[tuple[int, int, int], tuple[float, tuple[int, ...]]] = {}
        self._tight: dict[int, Floats] = {}
        distinct = {id(one): one for one in self.states}  # equal layers share their states
        threads = {h for one in distinct.values() for h in np.unique(one.threads).tolist()}
        constants, size = model.constants, max(threads) + 1
        self._busy, self._waiting = np.zeros(size), np.zeros(size)  # C_interf / H and C_ncost / H, by H
        for h in sorted(threads):
            self._busy[h], self._waiting[h] = constants.interference(h) / h, constants.latency_s(h) / h
        self._number_s = constants.number_bytes / constants.bandwidth_bytes_per_s
        self._layers: list[LayerExtremes] = []
        made: dict[tuple[Hashable, int], LayerExtremes] = {}
        for layer, one in enumerate(self.states):
            key = (model.work.alike(layer), id(one))  # equal layers are made once
            if key not in made:
                if is_over():
                    raise NoAnswerError("the time limit came before the layers were costed; raise --time-limit.")
                made[key] = LayerExtremes.of(model.work, layer, np.unique(one.partitions))
            self._layers.append(made[key])
        first: dict[Hashable, int] = {}
        self._first_alike = [
            first.setdefault(
                (model.work.alike(layer - 1), model.work.alike(layer), *map(id, self.states[layer - 1 : layer + 1])),
                layer,
            )
            if layer
            else 0
            for layer in range(len(self.states))
        ]

    # -- one layer

    def weight_bytes(self, layer: int) -> Floats:
        """Return what a model replica reads of a layer in each state: its weights, once for each of its replicas."""
        size_bytes = self.model.stages[layer].num_weights * self.model.constants.number_bytes
        return np.asarray(self.states[layer].replicas * size_bytes, dtype=np.float64)

    def own_s(self, layer: int) -> Floats:
        """Return what each state costs whatever the neighbours: the update, and a phase without messages.

        The samples are at hand for the first layer; the last one receives no error terms.
        """
        states = self.states[layer]
        layer_of = self._layers[layer]
        seconds = layer_of.update_s[states.partitions]
        if layer == 0:
            seconds = seconds + layer_of.forward.seconds[0, states.partitions]
        if layer == len(self.states) - 1:
            seconds = seconds + layer_of.backward.seconds[0, states.partitions]
        return np.asarray(self._busy[states.threads] * seconds / states.replicas)

    def floor_s(self, layer: int) -> Floats:
        """Return no more than what each state costs with any neighbours: all phases, with messages that nothing saves.

        If a neighbour has fewer segments, ``P' R' < P R``, some segment has no partner and receives all it needs. Else
        a partner brings at most ``min(1, P' / P)`` of the neighbour's largest segment, since
        ``g / R' <= R / R' <= P' / P``: of n rows at most ``(n + P - 1) / P``. All of it falls as ``1 / R``.
        """
        states, last = self.states[layer], len(self.states) - 1
        floor_s = self.own_s(layer)
        if layer > 0:
            shape = self.model.work.shape_before(layer)
            floor_s = floor_s + self._floor_of_phase(self._layers[layer].forward, states, shape)
        if layer < last:
            shape = self.model.stages[layer + 1].output_shape
            floor_s = floor_s + self._floor_of_phase(self._layers[layer].backward, states, shape)
        return np.asarray(floor_s)

    def _floor_of_phase(self, phase: PhaseExtremes, states: LayerStates, neighbour: tuple[int, ...]) -> Floats:
        """Return the least seconds of a phase with any state of the neighbour, whose output has a shape."""
        p, rows = states.partitions, num_stripes(neighbour)
        partner = stripe_sizes(neighbour, 1)[0] / rows * (rows + p - 1) / p
        busy = self._busy[states.threads]
        kept = busy * phase.seconds[:, p] + self._number_s * np.maximum(phase.numbers[:, p] - partner, 0.0)
        alone = self._alone_s(phase, states)
        seconds = np.maximum(busy * phase.seconds[0, p], np.minimum(kept.max(axis=0), alone))
        return np.asarray(seconds / states.replicas)

    def _alone_s(self, phase: PhaseExtremes, states: LayerStates) -> Floats:
        """Return no more than the seconds of a segment without a partner."""
        p, h = states.partitions, states.threads
        receives = phase.least_numbers[p] > 0
        return np.asarray(
            self._busy[h] * phase.least_s[p] + self._waiting[h] * receives + self._number_s * phase.least_numbers[p]
        )

    # -- two neighbours

    def bound_s(self, layer: int, before: Ints, after: Ints) -> Floats:
        """Return no more than the cost of every pair of the given states of a layer and of the one before, [s', s]."""
        earlier, later = self._some(layer - 1, before), self._some(layer, after)
        shared = np.gcd(earlier.replicas[:, np.newaxis], later.replicas)
        forward_s = self._phase_bound_s(
            self._layers[layer].forward, later, earlier, shared.T, self._layers[layer - 1].largest
        ).T
        backward_s = self._phase_bound_s(
            self._layers[layer - 1].backward, earlier, later, shared, self._layers[layer].largest
        )
        return np.asarray(forward_s + backward_s)

    def _phase_bound_s(
        self, phase: PhaseExtremes, states: LayerStates, neighbours: LayerStates, shared: Ints, largest: Floats
    ) -> Floats:
        """Return the least seconds of a phase, by state (row) and the neighbour's state (column)."""
        p, h = states.partitions, states.threads
        met = shared / neighbours.replicas  # the share of a segment's samples in which it meets its partner
        partner = largest[neighbours.partitions]
        worst = np.zeros(met.shape)
        for seconds, numbers in zip(phase.seconds[:, p], phase.numbers[:, p], strict=True):
            needed = numbers[:, np.newaxis]
            is_spared = partner >= needed  # the partner may have all of it: then nothing comes, and no latency
            some = self._busy[h] * seconds
            late = (self._waiting[h] * (numbers > 0))[:, np.newaxis] * (1 - met * is_spared)
            one = some[:, np.newaxis] + late + self._number_s * (needed - met * np.minimum(needed, partner))
            np.maximum(worst, one, out=worst)
        has_singles = states.workers[:, np.newaxis] > neighbours.workers
        alone = self._alone_s(phase, states)[:, np.newaxis]
        np.maximum(worst, np.where(has_singles, alone, 0.0), out=worst)
        return np.asarray(worst / states.replicas[:, np.newaxis])

    def num_places(self, layer: int, before: Ints, after: Ints) -> Ints:
        """Return the rows of the matrices that :meth:`pair_s` makes of every pair of states, [s', s]."""
        earlier, later = self._some(layer - 1, before), self._some(layer, after)
        shared = np.gcd(earlier.replicas[:, np.newaxis], later.replicas)
        return np.asarray(np.maximum(earlier.workers[:, np.newaxis], later.workers) // shared)

    def all_bounds_s(self, kept: Sequence[Ints], is_over: Callable[[], bool] = lambda: False) -> list[Floats] | None:
        """Return :meth:`bounds_s` of every layer but the first for the states kept of each; equal layers share them.

        None if the search was over before.
        """
        made: dict[tuple[int, int, int], Floats] = {}
        found = []
        for layer in range(1, len(kept)):
            key = (self._first_alike[layer], id(kept[layer - 1]), id(kept[layer]))
            if key not in made:
                if is_over():
                    return None
                made[key] = self.bounds_s(layer, kept[layer - 1], kept[layer])
            found.append(made[key])
        return found

    def bounds_s(self, layer: int, before: Ints, after: Ints) -> Floats:
        """Return :meth:`bound_s`, and the exact cost of what :meth:`pair_s` was asked before."""
        layer = self._first_alike[layer]
        every = self.states[layer - 1].workers.size, self.states[layer].workers.size
        if every[0] * every[1] > _MOST_KEPT:
            bounds = self.bound_s(layer, before, after)
            place = {int(state): index for index, state in enumerate(before)}
            column = {int(state): index for index, state in enumerate(after)}
            for (at, one, other), (cost, _) in self._best.items():
                if at == layer and one in place and other in column:
                    bounds[place[one], column[other]] = cost
            return bounds
        if layer not in self._tight:
            self._tight[layer] = self.bound_s(layer, *(np.arange(number) for number in every))
        return self._tight[layer][np.ix_(before, after)]

    def pair_s(self, layer: int, before: int, after: int) -> float:
        """Return the exact cost of a pair of states: both phases between a layer and the one before, mapped best."""
        return self._pair(layer, before, after)[0]

    def _pair(self, layer: int, before: int, after: int) -> tuple[float, tuple[int, ...]]:
        """Return the cost of a pair and its matching, of one remainder of the replicas."""
        layer = self._first_alike[layer]
        key = (layer, before, after)
        if key not in self._best:
            columns, cost = self._assign(*self.phases_s(layer, before, after))
            self._best[key] = (cost, columns)
            if layer in self._tight:
                self._tight[layer][before, after] = cost
        return self._best[key]

    def phases_s(self, layer: int, before: int, after: int) -> tuple[Floats, Floats]:
        """Return the seconds of the forward phase of a layer and of the backward phase of the one before.

        By segment of the layer (row) and partner in the layer before (column), of replicas with one remainder; a row or
        a column beyond a layer's segments means no partner. Rows and columns are by partition, then by replica.
        """
        p_before, r_before, _ = earlier = self.states[layer - 1].at(before)
        p_after, r_after, _ = later = self.states[layer].at(after)
        shared = gcd(r_before, r_after)
        boundary = self.model.work.boundary(layer, p_before, p_after)
        copies, copies_before = r_after // shared, r_before // shared
        size = max(p_after * copies, p_before * copies_before)
        forward_s = self._with_partner_s(
            later, self.model.work.forward_s(layer, p_after), boundary.needed, shared / r_before
        )
        backward_s = self._with_partner_s(
            earlier, self.model.work.backward_s(layer - 1, p_before), boundary.returned, shared / r_after
        )
        return (
            _square(forward_s, copies, copies_before, size),
            _square(backward_s, copies_before, copies, size).T,
        )

    def _with_partner_s(self, state: tuple[int, int, int], seconds: Floats, counts: Counts, met: float) -> Floats:
        """Return the seconds of every segment (row) with every partner (column; the last column: none)."""
        _, replicas, threads = state
        needed = counts.sum(axis=1, keepdims=True)
        brought = np.hstack((counts, np.zeros_like(needed)))
        share = (needed > 0) * (1 - met * (brought == needed))
        numbers = needed - met * brought
        busy_s = self._busy[threads] * seconds[:, np.newaxis]
        return np.asarray((busy_s + self._waiting[threads] * share + self._number_s * numbers) / replicas)

    # -- a whole chain

    def choices(self, path: Sequence[int]) -> tuple[LayerChoice, ...]:
        """Return the choices of a chain of states, every segment on the worker of its partner in the layer before."""
        workers: list[Ints] = []  # by layer, [replica, partition]
        for layer, state in enumerate(path):
            p, r, _ = self.states[layer].at(state)
            placed = np.full((r, p), -1, dtype=np.int64)
            if layer:
                self._place(placed, workers[-1], self._pair(layer, path[layer - 1], state)[1])
            taken = set(placed[placed >= 0].tolist())
            free = iter(worker for worker in range(p * r + len(taken)) if worker not in taken)
            flat = placed.ravel()
            flat[flat < 0] = [next(free) for _ in range(int((flat < 0).sum()))]
            workers.append(placed)
        return tuple(
            LayerChoice(
                num_threads=self.states[layer].at(state)[2],
                workers=tuple(tuple(row) for row in workers[layer].tolist()),
            )
            for layer, state in enumerate(path)
        )

    @staticmethod
    def _place(placed: Ints, before: Ints, columns: Sequence[int]) -> None:
        """Put every segment that has a partner onto its worker, for every remainder of the replicas."""
        (r_after, p_after), (r_before, p_before) = placed.shape, before.shape
        shared = gcd(r_after, r_before)
        copies, copies_before = r_after // shared, r_before // shared
        for row, column in enumerate(columns[: p_after * copies]):
            if column < p_before * copies_before:
                (p, copy), (q, copy_before) = divmod(row, copies), divmod(column, copies_before)
                placed[copy * shared : (copy + 1) * shared, p] = before[
                    copy_before * shared : (copy_before + 1) * shared, q
                ]

    def _some(self, layer: int, indices: Ints) -> LayerStates:
        """Return some states of a layer."""
        states = self.states[layer]
        return LayerStates(states.partitions[indices], states.replicas[indices], states.threads[indices])


def _square(seconds: Floats, copies: int, copies_of_partner: int, size: int) -> Floats:
    """Return the seconds of every copy of a segment with every copy of a partner, filled up to a square.

    A partner beyond those that exist is none; a segment beyond them takes no time.
    """
    square = np.zeros((size, size))
    rows, columns = len(seconds) * copies, (seconds.shape[1] - 1) * copies_of_partner
    with_partner = square[:rows, :columns].reshape(len(seconds), copies, -1, copies_of_partner)  # a view: no copies of
    with_partner[...] = seconds[:, np.newaxis, :-1, np.newaxis]  # what may be thousands of rows and columns
    square[:rows, columns:] = np.repeat(seconds[:, -1:], copies, axis=0)
    return square
