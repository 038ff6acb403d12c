"""What an optimiser of the Adam model chooses: servers, replicas, workers, and every layer's P, H, R and map.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, figure 7, whose constraints
C1 to C4 are checked here. (Footnote 5 and the text disagree on whether P, H and R are the same for all layers; they may
differ.) Everything is counted from 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from planner.errors import ModelError
from planner.models.segments import Stage

__all__ = ["LayerChoice", "Limits", "ReplicaConfiguration", "broken_constraints", "check", "segments_beside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """P, H, R and the map of one layer: ``workers[r][p]`` runs all threads of segment p of the layer's replica r."""

    num_threads: int
    workers: tuple[tuple[int, ...], ...]

    @classmethod
    def spread(cls, num_partitions: int, *, num_threads: int = 1, num_replicas: int = 1) -> Self:
        """Return the map of segments to workers in order, replica after replica."""
        rows = (range(r * num_partitions, (r + 1) * num_partitions) for r in range(num_replicas))
        return cls(num_threads=num_threads, workers=tuple(tuple(row) for row in rows))

    @classmethod
    def of_map(cls, entries: Iterable[tuple[int, int, int, int]]) -> Self:
        """Return the choice that a map ``f(p, h, r)`` makes: rows of partition, thread, replica (from 0) and worker.

        Raises
        ------
        ModelError
            For a segment that is mapped twice, threads of a segment on two workers (C4), or a segment left out.
        """
        at: dict[tuple[int, int, int], int] = {}
        home: dict[tuple[int, int], tuple[int, int]] = {}
        for p, h, r, worker in entries:
            if (p, h, r) in at:
                what = f"partition {p}, thread {h}, replica {r} is mapped twice"
                raise ModelError(f"C4: {what}, to workers {at[p, h, r]} and {worker}. Map it once.")
            at[p, h, r] = worker
            thread, place = home.setdefault((p, r), (h, worker))
            if place != worker:
                what = f"threads {thread} and {h} of partition {p}, replica {r} are on workers {place} and {worker}"
                raise ModelError(f"C4: {what}. All threads of a segment run on one worker.")
        if not at:
            raise ModelError("C4: the map is empty. Map every partition, thread and replica to a worker.")
        partitions, threads, replicas = (1 + max(key[axis] for key in at) for axis in range(3))
        if len(at) != partitions * threads * replicas:
            raise ModelError(
                f"the map has {len(at)} of {partitions} partitions x {threads} threads x {replicas} replicas = "
                f"{partitions * threads * replicas} entries. Map every one."
            )
        rows = (tuple(at[p, 0, r] for p in range(partitions)) for r in range(replicas))
        return cls(num_threads=threads, workers=tuple(rows))

    @property
    def num_partitions(self) -> int:
        """``P(l)``."""
        return len(self.workers[0])

    @property
    def num_replicas(self) -> int:
        """``R(l)``."""
        return len(self.workers)


def segments_beside(choice: LayerChoice, other: LayerChoice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the replica and the partition of another layer that share each segment's worker, [r, p]; -1 for none."""
    places = np.ravel(other.workers)
    order = np.argsort(places, kind="stable")
    workers = np.asarray(choice.workers)
    at = order[np.maximum(np.searchsorted(places[order], workers, side="right") - 1, 0)]
    is_shared = places[at] == workers
    replicas, partitions = np.divmod(at, other.num_partitions)
    return np.where(is_shared, replicas, -1), np.where(is_shared, partitions, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfiguration:
    """``N_ps`` servers, ``N_mr`` model replicas of ``N_wr`` workers each, and the choice of every layer."""

    num_servers: int
    num_replicas: int
    num_workers: int
    layers: tuple[LayerChoice, ...]

    @classmethod
    def uniform(
        cls, *, num_workers: int, num_replicas: int, num_servers: int, num_threads: int, num_layers: int
    ) -> Self:
        """Return <workers, replicas, servers> of the paper's section 6: every layer partitioned over all workers."""
        layer = LayerChoice.spread(num_workers, num_threads=num_threads)
        return cls(
            num_servers=num_servers, num_replicas=num_replicas, num_workers=num_workers, layers=(layer,) * num_layers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``N`` machines of ``K`` cores."""

    num_machines: int
    num_cores: int


def broken_constraints(configuration: ReplicaConfiguration, limits: Limits, stages: Sequence[Stage]) -> tuple[str, ...]:
    """Return which of C1 to C4 a configuration breaks, each with its numbers; nothing if it may run.

    C4 holds by the form of :class:`LayerChoice`; what remains of it is that a layer's replicas have equal segments.
    """
    servers, replicas, workers = configuration.num_servers, configuration.num_replicas, configuration.num_workers
    if min(servers, replicas, workers) < 1:
        return (f"C1: {servers} servers, {replicas} replicas and {workers} workers; each is at least 1.",)
    if len(configuration.layers) != len(stages):
        return (f"{len(configuration.layers)} layers are configured; the network has {len(stages)}.",)
    faults = []
    if (used := servers + replicas * workers) > limits.num_machines:
        faults.append(
            f"C1: {servers} servers + {replicas} replicas x {workers} workers = {used} machines; "
            f"there are {limits.num_machines}."
        )
    for stage, choice in zip(stages, configuration.layers, strict=True):
        faults += [f"{name}: layer {stage.name!r}: {what}" for name, what in _broken(choice, limits, workers)]
    return tuple(faults)


def _broken(choice: LayerChoice, limits: Limits, num_workers: int) -> Iterator[tuple[str, str]]:
    """Yield which constraint the choice of one layer breaks, and how."""
    if not 1 <= choice.num_threads <= limits.num_cores:
        yield "C2", f"{choice.num_threads} threads on machines of {limits.num_cores} cores."
    sizes = [len(row) for row in choice.workers] or [0]
    if min(sizes) < 1 or min(sizes) != max(sizes):
        yield "C4", f"its replicas have {sizes} segments; each needs as many as the others, at least 1."
        return
    if (needed := sum(sizes)) > num_workers:
        yield "C3", f"{sizes[0]} partitions x {len(sizes)} replicas = {needed} workers; a replica has {num_workers}."
    first: dict[int, str] = {}
    for r, row in enumerate(choice.workers):
        for p, worker in enumerate(row):
            segment = f"partition {p}, replica {r}"
            if not 0 <= worker < num_workers:
                yield "C3", f"{segment} is on worker {worker}; there are 0 to {num_workers - 1}."
            elif (other := first.setdefault(worker, segment)) != segment:
                yield "C3", f"{other} and {segment} are both on worker {worker}."


def check(configuration: ReplicaConfiguration, limits: Limits, stages: Sequence[Stage]) -> None:
    """Raise ModelError, with every constraint that a configuration breaks."""
    if faults := broken_constraints(configuration, limits, stages):
        raise ModelError("\n".join(faults))
