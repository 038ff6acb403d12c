"""What an asynchronous training is asked about: workers, servers' links, and when a worker may go on.

The words of :mod:`planner.models.asynchronous`, which simulates it, and the numbers that follow from one worker or one
link alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError

__all__ = ["Exchange", "Synchronisation", "WorkerKind"]


class Synchronisation(StrEnum):
    """When a worker that has pushed its update may pull parameters and go on."""

    BSP = "bsp"  # when all workers have pushed theirs of the same iteration
    SSP = "ssp"  # when no worker is more than s iterations behind: stale synchronous parallel
    ASP = "asp"  # at once
    LOCAL_SGD = "local_sgd"  # as BSP, but only every H iterations is anything pushed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """Workers that are alike.

    Attributes
    ----------
    count
        How many; >= 1.
    compute_s
        Forward, backward and update of one iteration: the mean; > 0.
    deviation_s
        Standard deviation of the normal distribution that an iteration's seconds are drawn from, anew and independently
        each time; draws below 0 are drawn again. 0 for none.
    samples
        In one worker's iteration; >= 1.
    link_bytes_per_s
        The worker's own link, per direction; > 0, ``inf`` where it is no bottleneck.
    """

    count: int
    compute_s: float
    deviation_s: float = 0.0
    samples: int
    link_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if self.count < 1 or self.samples < 1:
            raise ModelError(f"a kind of worker has count {self.count} and samples {self.samples}; both must be >= 1.")
        if not 0 < self.compute_s < math.inf:
            raise ModelError(f"compute_s is {self.compute_s}. It must be finite and > 0.")
        if not 0 <= self.deviation_s < math.inf:
            raise ModelError(f"deviation_s is {self.deviation_s}. It must be finite and >= 0.")
        if not self.link_bytes_per_s > 0:
            raise ModelError(f"link_bytes_per_s is {self.link_bytes_per_s}. It must be > 0; inf is allowed.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """One question, checked.

    Attributes
    ----------
    workers
        One kind per worker: kinds repeated as often as they count.
    push_bytes, pull_bytes, server_bytes_per_s
        Of each server.
    home
        The server on each worker's own machine, or None.
    """

    workers: tuple[WorkerKind, ...]
    push_bytes: Floats
    pull_bytes: Floats
    server_bytes_per_s: Floats
    latency_s: float
    synchronisation: Synchronisation
    bound: int
    home: tuple[int | None, ...]

    @classmethod
    def of(
        cls,
        kinds: Sequence[WorkerKind],
        *,
        push_bytes: Sequence[float],
        pull_bytes: Sequence[float],
        server_bytes_per_s: Sequence[float],
        latency_s: float = 0.0,
        synchronisation: Synchronisation,
        bound: int = 0,
        home: Sequence[int | None] | None = None,
    ) -> "Exchange":
        """Return the question, as :func:`planner.models.asynchronous.simulate` is asked it.

        Raises
        ------
        ModelError
            If a number is out of range.
        """
        workers = tuple(kind for kind in kinds for _ in range(kind.count))
        exchange = cls(
            workers=workers,
            push_bytes=np.asarray(push_bytes, dtype=np.float64),
            pull_bytes=np.asarray(pull_bytes, dtype=np.float64),
            server_bytes_per_s=np.asarray(server_bytes_per_s, dtype=np.float64),
            latency_s=latency_s,
            synchronisation=Synchronisation(synchronisation),
            bound=bound,
            home=tuple(home) if home is not None else (None,) * len(workers),
        )
        exchange._check_servers()
        exchange._check_workers()
        return exchange

    def _check_servers(self) -> None:
        rates = self.server_bytes_per_s
        if rates.ndim != 1 or not rates.size or not (np.isfinite(rates).all() and (rates > 0).all()):
            raise ModelError(f"server_bytes_per_s must be at least one finite number > 0, not {rates.tolist()}.")
        for name, sizes in (("push_bytes", self.push_bytes), ("pull_bytes", self.pull_bytes)):
            if sizes.shape != rates.shape or not (np.isfinite(sizes).all() and (sizes >= 0).all()):
                raise ModelError(f"{name} must be {len(rates)} finite numbers >= 0, one a server: {sizes.tolist()}.")
        if not 0 <= self.latency_s < math.inf:
            raise ModelError(f"latency_s is {self.latency_s}. It must be finite and >= 0.")

    def _check_workers(self) -> None:
        if not self.workers:
            raise ModelError("there is no worker. Give at least one kind.")
        if self.bound < (least := int(self.synchronisation is Synchronisation.LOCAL_SGD)):
            raise ModelError(f"bound is {self.bound} under {self.synchronisation}. It must be >= {least}.")
        if len(self.home) != len(self.workers):
            raise ModelError(f"home has {len(self.home)} entries for {len(self.workers)} workers. Give one for each.")
        for server in self.home:
            if server is not None and not 0 <= server < len(self.server_bytes_per_s):
                raise ModelError(f"home names server {server} of {len(self.server_bytes_per_s)}, counted from 0.")

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return len(self.workers)

    @property
    def slack(self) -> float:
        """How many iterations (exchanges of local SGD) a worker may be ahead of the slowest one; ``inf`` under ASP."""
        return {Synchronisation.ASP: math.inf, Synchronisation.SSP: float(self.bound)}.get(self.synchronisation, 0.0)

    @property
    def num_steps(self) -> int:
        """Iterations between two exchanges of a worker: H of local SGD, else 1."""
        return self.bound if self.synchronisation is Synchronisation.LOCAL_SGD else 1

    @property
    def has_homes(self) -> bool:
        """Whether a worker shares its machine with a server."""
        return any(server is not None for server in self.home)

    def directions(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield bytes and seconds on the server's idle link, of each server: first of a push, then of a pull."""
        for size_bytes in (self.push_bytes, self.pull_bytes):
            yield size_bytes, size_bytes / self.server_bytes_per_s

    def remote_bytes(self, size_bytes: Floats) -> list[float]:
        """Return what crosses the network for each worker: all but its own machine's share."""
        total, own = float(size_bytes.sum()), size_bytes.tolist()
        # All at home is exactly 0, whatever rounding says.
        alone = [not np.delete(size_bytes, server).any() for server in range(len(own))]
        return [total if server is None else 0.0 if alone[server] else total - own[server] for server in self.home]

    def own_s(self, size_bytes: Floats) -> list[float]:
        """Return the seconds of each worker's transfer on its own link, were servers' links unlimited."""
        remote = self.remote_bytes(size_bytes)
        return [size / worker.link_bytes_per_s for size, worker in zip(remote, self.workers, strict=True)]

    def delays_s(self, size_bytes: Floats) -> list[float]:
        """Return the latency that each worker's transfer pays: none where nothing crosses the network."""
        return [self.latency_s if size else 0.0 for size in self.remote_bytes(size_bytes)]

    def num_remote(self) -> Floats:
        """Return how many workers reach each server over the network."""
        homes = [server for server in self.home if server is not None]
        return self.num_workers - np.bincount(homes, minlength=len(self.server_bytes_per_s)).astype(np.float64)

    def alone_s(self) -> list[tuple[float, float]]:
        """Return the seconds of each worker's push and of its pull in an idle network, latency included."""
        both = [self._alone_s(size_bytes, server_s) for size_bytes, server_s in self.directions()]
        return list(zip(*both, strict=True))

    def cycles_s(self) -> list[float]:
        """Return the mean seconds of each worker from exchange to exchange, if it were alone."""
        computes_s = (self.num_steps * worker.compute_s for worker in self.workers)
        return [
            compute_s + push_s + pull_s for compute_s, (push_s, pull_s) in zip(computes_s, self.alone_s(), strict=True)
        ]

    def _alone_s(self, size_bytes: Floats, server_s: Floats) -> list[float]:
        slowest: dict[int | None, float] = {None: float(server_s.max())}
        for server in {server for server in self.home if server is not None}:
            slowest[server] = float(np.delete(server_s, server).max(initial=0.0))
        links = zip(self.delays_s(size_bytes), self.own_s(size_bytes), self.home, strict=True)
        return [delay_s + max(own_s, slowest[server]) for delay_s, own_s, server in links]
