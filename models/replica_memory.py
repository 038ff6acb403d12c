"""What the workers of a model replica keep in memory.

A worker holds, for every segment that is mapped to it (W weights, N neurons of layer l; ``w(l,p)`` the part of the
weights that segment p needs: all of a convolution's, its share of a fully-connected layer's):

* its weights and their gradients, ``w(l,p)`` times the bytes of each, once for all of its threads; batch-norm
  statistics in fp32;
* for H(l) samples at a time, one a thread, its outputs that the backward pass needs (of what follows the layer neuron
  by neuron, too), and what it reads of the layer before that its worker does not hold.

Of what a segment reads its worker holds a part if a segment of the layer before is there whose replica has the same
samples, all of them: ``R(l-1)`` divides ``R(l)``, and ``r' = r modulo R(l-1)``. Samples themselves are read from
outside. Parts of numbers are rounded up. The optimiser's state, and master copies in mixed precision, are the servers'.
Left out: error terms on their way, and workspaces; give them as a reserve. One worker with one thread thus holds what
a device of data-parallel training does with one sample (:mod:`planner.models.activations`), less the
optimiser's state. An assumption of ours: the paper (F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015,
doi:10.1145/2783258.2783270) has no model of memory.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from planner.cost import Floats
from planner.frozen import frozen
from planner.models.memory import STATISTIC_BYTES, MemoryUse, Precision
from planner.models.replica_segments import (
    Counts,
    LayerChoice,
    SegmentWork,
    StripeCut,
    read_of_layer,
    segments_beside,
    stripe_channels,
    stripe_sizes,
)
from planner.models.replicas import LayerStates


@frozen
class Kept:
    """What a layer keeps beside its trained weights: batch-norm statistics, and what backward reads of a sample.

    Both are numbers, those of a sample as wide as activations.
    """

    num_moving: int
    num_stored: int


@frozen(kw_only=False, eq=False)
class _Segments:
    """Bytes of every segment of a layer: weights, gradients, and its outputs of one sample."""

    weights: Counts
    gradients: Counts
    outputs: Counts


class ReplicaMemory:
    """Bytes on the workers of any configuration of a chain of layers, cut into stripes.

    Parameters
    ----------
    kept
        Of every layer.
    reserve_bytes
        On every worker, for what is not modelled.
    """

    def __init__(
        self, work: SegmentWork, kept: Sequence[Kept], precision: Precision, *, reserve_bytes: float = 0.0
    ) -> None:
        self.reserve_bytes = reserve_bytes
        self._work = work
        self._kept = tuple(kept)
        self._precision = precision
        first: dict[Hashable, int] = {}
        self._first_alike = [
            first.setdefault((work.alike(index), one, index == 0), index) for index, one in enumerate(self._kept)
        ]
        self._made: dict[tuple[int, int], _Segments] = {}
        self._tables: dict[tuple[int, int], tuple[LayerStates, Floats, Floats]] = {}

    # -- a configuration

    def fullest(self, layers: Sequence[LayerChoice], num_workers: int) -> MemoryUse:
        """Return what the fullest of the workers of a replica holds, with all threads of its segments busy.

        Parameters
        ----------
        layers, num_workers
            As for :meth:`by_worker`.
        """
        weights, gradients, activations = by_worker = self.by_worker(layers, num_workers)
        worker = int(by_worker.sum(axis=0).argmax())
        return MemoryUse(
            weights_bytes=int(weights[worker]),
            gradients_bytes=int(gradients[worker]),
            optimizer_bytes=0,
            activations_per_sample_bytes=int(activations[worker]),
            reserve_bytes=self.reserve_bytes,
        )

    def by_worker(self, layers: Sequence[LayerChoice], num_workers: int) -> Counts:
        """Return the bytes of weights, gradients and activations (row) on every worker (column).

        Parameters
        ----------
        layers
            What is chosen for each layer.
        num_workers
            Of one replica of the model.
        """
        used = np.zeros((3, num_workers), dtype=np.int64)
        made: dict[tuple[int, LayerChoice, LayerChoice | None], tuple[Counts, Counts]] = {}
        before = None
        for index, choice in enumerate(layers):
            key = (self._first_alike[index], choice, before)
            if key not in made:  # equal layers are counted once
                made[key] = np.ravel(choice.workers), self.of_layer(index, choice, before)
            workers, kept = made[key]
            used[:, workers] += kept  # segments of a layer are on different workers (C3)
            before = choice
        return used

    def of_layer(self, index: int, choice: LayerChoice, before: LayerChoice | None) -> Counts:
        """Return the bytes of weights, gradients and activations (row) of every segment, replica after replica.

        Parameters
        ----------
        index, choice
            Of the layer, from 0; and what is chosen for it.
        before
            What is chosen for the layer before; None for the first.
        """
        one = self._segments(index, choice.num_partitions)
        received = self._received(index, choice, before) * self._precision.activation_bytes
        rows = [np.tile(bytes_, choice.num_replicas) for bytes_ in (one.weights, one.gradients)]
        activations = (one.outputs[np.newaxis] + received) * choice.num_threads
        return np.stack([*rows, activations.ravel()])

    def _received(self, index: int, choice: LayerChoice, before: LayerChoice | None) -> Counts:
        """Return, for every replica and segment, what a sample brings that is not on the worker, at most."""
        p_before = 1 if before is None else before.num_partitions
        counts = self._work.boundary(index, p_before, choice.num_partitions).needed
        received = np.tile(counts.sum(axis=1), (choice.num_replicas, 1))
        if before is None or choice.num_replicas % before.num_replicas:
            return received
        if before.workers is choice.workers:  # every replica meets its like, with every segment on the same worker
            return received - counts.diagonal()
        r_before, q = segments_beside(choice, before)
        is_met = (q >= 0) & (np.arange(choice.num_replicas)[:, np.newaxis] % before.num_replicas == r_before)
        return np.asarray(received - is_met * counts[np.arange(choice.num_partitions), q])

    def _segments(self, index: int, num_segments: int) -> _Segments:
        """Return the bytes of every segment, made once for equal layers."""
        key = (self._first_alike[index], num_segments)
        if key not in self._made:
            shape = self._work.stages[index].output_shape
            channels, sizes = stripe_channels(shape, num_segments), stripe_sizes(shape, num_segments)
            self._made[key] = self._bytes(index, channels, sizes)
        return self._made[key]

    def _bytes(self, index: int, channels: Counts, sizes: Counts) -> _Segments:
        stage, kept, precision = self._work.stages[index], self._kept[index], self._precision
        numbers = (stage.num_weights, kept.num_moving)
        trained, moving = (-(-number * channels // stage.output_shape[0]) for number in numbers)
        outputs = -(-kept.num_stored * sizes // stage.num_neurons)
        return _Segments(
            weights=trained * precision.weight_bytes + moving * STATISTIC_BYTES,
            gradients=trained * precision.gradient_bytes,
            outputs=outputs * precision.activation_bytes,
        )

    # -- bounds, for a search

    def most_bytes(self, num_threads: int) -> float:
        """Return no less than any worker of any configuration holds: all layers, and all that they read once more.

        Parameters
        ----------
        num_threads
            The most of any segment.
        """
        total = self.reserve_bytes
        for index in range(len(self._kept)):
            one = self._segments(index, 1)
            read = self._work.boundary(index, 1, 1).needed.sum() * self._precision.activation_bytes
            total += float(one.weights[0] + one.gradients[0] + num_threads * (one.outputs[0] + read))
        return total

    def of_states(self, index: int, states: LayerStates) -> tuple[Floats, Floats]:
        """Return the bytes of a layer in each state: of all its segments in a replica, and of the largest one.

        No map has less: nothing is counted that another layer's segment may bring. No reserve.

        Parameters
        ----------
        index, states
            Of the layer, from 0; and n states of it. Both results are of shape (n,).
        """
        key = (self._first_alike[index], id(states))  # equal layers share their states, which are kept beside
        if key in self._tables:
            return self._tables[key][1:]
        partitions, place = np.unique(states.partitions, return_inverse=True)
        cut = StripeCut.of(self._work, index, partitions)
        one = self._bytes(index, cut.channels, cut.size)
        outputs = one.outputs
        if index == 0:  # samples come from outside, whatever the map
            stage = self._work.stages[0]
            outputs = outputs + read_of_layer(stage, stage.input_shape, cut)[0] * self._precision.activation_bytes
        every, largest = np.zeros((2, states.partitions.size))
        for h in np.unique(states.threads).tolist():
            segments, some = one.weights + one.gradients + h * outputs, states.threads == h
            every[some] = np.add.reduceat(segments * cut.number, cut.first)[place[some]] * states.replicas[some]
            largest[some] = np.maximum.reduceat(segments, cut.first)[place[some]]
        self._tables[key] = states, every, largest
        return every, largest

    # -- a map that saves memory

    def spread(self, layers: Sequence[LayerChoice], num_workers: int) -> tuple[LayerChoice, ...]:
        """Return the same layers, each segment on the worker that is least full, the largest segments first.

        It minds memory alone: what neighbours have to send each other is not asked. Ties go to the lower index.

        Parameters
        ----------
        layers, num_workers
            As for :meth:`by_worker`.
        """
        load = np.zeros(num_workers)
        placed: list[LayerChoice] = []
        for index, layer in enumerate(layers):
            one = self._segments(index, layer.num_partitions)
            outputs = one.outputs
            if index == 0:  # samples come from outside, whatever the map
                read = self._work.boundary(0, 1, layer.num_partitions).needed.sum(axis=1)
                outputs = outputs + read * self._precision.activation_bytes
            sizes = np.tile(one.weights + one.gradients + layer.num_threads * outputs, layer.num_replicas)
            order = np.argsort(-sizes, kind="stable")
            free = np.argsort(load, kind="stable")[: sizes.size]
            places = np.empty(sizes.size, dtype=np.int64)
            places[order] = free
            rows = places.reshape(layer.num_replicas, layer.num_partitions).tolist()
            placed.append(LayerChoice(num_threads=layer.num_threads, workers=tuple(map(tuple, rows))))
            added = self.of_layer(index, placed[-1], placed[-2] if index else None).sum(axis=0)
            load[places] += added
        return tuple(placed)
