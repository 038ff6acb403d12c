"""What may be chosen for a layer of the Adam model: partitions P, replicas R, threads H, less what is never best."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.models.model_replicas import ReplicaModel
from planner.models.stripe_counts import num_stripes

__all__ = ["Ints", "LayerStates", "all_states", "worthwhile_threads"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LayerStates:
    """What may be chosen for a layer, by index: P, R and H, in rising order of the workers that they need."""

    partitions: Ints
    replicas: Ints
    threads: Ints

    @property
    def workers(self) -> Ints:
        """``P R``."""
        return self.partitions * self.replicas

    def at(self, index: int) -> tuple[int, int, int]:
        """Return P, R and H of one state."""
        return int(self.partitions[index]), int(self.replicas[index]), int(self.threads[index])

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int]]) -> "LayerStates":
        """Return the states of rows (P, R, H)."""
        ordered = np.array(sorted(rows, key=lambda row: (row[0] * row[1], row)), dtype=np.int64)
        return cls(*ordered.T)


def all_states(shape: tuple[int, ...], num_workers: int, threads: Sequence[int]) -> LayerStates:
    """Return every P, R and H of a layer on so many workers.

    More partitions than rows (or neurons) are left out: the surplus segments are empty.
    """
    most = min(num_workers, num_stripes(shape))
    counts = num_workers // np.arange(1, most + 1)  # of replicas, by P
    partitions = np.repeat(np.arange(1, most + 1), counts)
    replicas = np.arange(1, partitions.size + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort((partitions, partitions * replicas))  # as LayerStates.of has them; R follows from P and P R
    rising = np.sort(np.asarray(threads, dtype=np.int64))
    return LayerStates(
        partitions=np.repeat(partitions[order], rising.size),
        replicas=np.repeat(replicas[order], rising.size),
        threads=np.tile(rising, order.size),
    )


def worthwhile_threads(model: ReplicaModel, threads: Sequence[int], *, is_memory_ample: bool = True) -> tuple[int, ...]:
    """Return the numbers of threads of which one is best for any layer, whatever its neighbours.

    A phase's share of H threads is ``(C_interf(H) U + C_ncost(H) share + A C_bits H / C_nbw) / (H R)``: the bytes cost
    the same for every H, and the rest falls with ``C_interf / H`` and ``C_ncost / H``. An H for which another one has
    both no larger is never needed (the larger H of two that are alike stays). A worker holds the outputs of H samples,
    so that where memory is not ample only a smaller H may take the place of another: a larger one is dearer.
    """
    constants = model.constants
    number = np.asarray(threads, dtype=np.int64)
    busy = np.array([constants.interference(h) / h for h in threads])
    waiting = np.array([constants.latency_s(h) / h for h in threads])
    is_as_fast = (busy[:, np.newaxis] >= busy) & (waiting[:, np.newaxis] >= waiting)  # [H, the other one]
    if is_memory_ample:
        is_alike = (busy[:, np.newaxis] == busy) & (waiting[:, np.newaxis] == waiting)
        is_beaten = is_as_fast & (~is_alike | (number > number[:, np.newaxis]))
    else:
        is_beaten = is_as_fast & (number < number[:, np.newaxis])
    return tuple(h for h, is_one in zip(threads, is_beaten.any(axis=1).tolist(), strict=True) if not is_one)
