"""Parameter servers without a barrier: from the seconds of a configuration to the simulation and its breakdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.cost import Floats
from planner.models.asynchronous import Synchronisation, WorkerKind, simulate
from planner.models.asynchronous_events import Log
from planner.models.server_links import Links

__all__ = ["Steady", "steady"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The steady state: samples a second, staleness in iterations, and where a worker's time goes (sums to 1)."""

    synchronisation: str
    samples_per_s: float
    mean_staleness: float
    most_staleness: float
    time_shares: Mapping[str, float]


def steady(
    *,
    seconds: Sequence[Mapping[str, float]],
    samples: Sequence[int],
    links: Links,
    pushed_bytes: Floats,
    pulled_bytes: Floats,
    latency_s: float,
    deviation_s: float,
    synchronisation: str,
    staleness: int,
    log: Log | None = None,
) -> Steady:
    """Return the steady state of workers that keep in step as ``synchronisation`` says.

    Parameters
    ----------
    seconds, samples
        Of one iteration of each entry of ``links``: where its own time goes, without any exchange.
    pushed_bytes, pulled_bytes
        Of one worker, to and from each server.
    log
        Where to put what every worker does, by number: those of an entry after those of the one before it.

    Notes
    -----
    Pushes begin when all is computed: the simulation does not overlap them with the backward pass, as BSP does.
    A worker is held back by what the synchronisation asks (``stragglers``) and by exchanges (``exposed_push``).
    """
    kinds = [
        WorkerKind(
            count=count,
            compute_s=sum(parts.values()),
            deviation_s=deviation_s,
            samples=number,
            link_bytes_per_s=rate,
        )
        for parts, number, count, rate in zip(seconds, samples, links.counts, links.worker_bytes_per_s, strict=True)
    ]
    homes = [home for home, count in zip(links.homes, links.counts, strict=True) for _ in range(count)]
    run = simulate(
        kinds,
        push_bytes=pushed_bytes.tolist(),
        pull_bytes=pulled_bytes.tolist(),
        server_bytes_per_s=links.server_bytes_per_s,
        latency_s=latency_s,
        synchronisation=Synchronisation(synchronisation),
        bound=staleness + (synchronisation == "local_sgd"),
        home=homes if any(home is not None for home in homes) else None,
        log=log,
    )
    return Steady(
        synchronisation=synchronisation,
        samples_per_s=run.samples_per_s,
        mean_staleness=run.mean_staleness,
        most_staleness=run.most_staleness,
        time_shares=_time_shares(kinds, seconds, run.samples_per_s, run.waiting_share),
    )


def _time_shares(
    kinds: Sequence[WorkerKind],
    seconds: Sequence[Mapping[str, float]],
    samples_per_s: float,
    waiting_share: float,
) -> dict[str, float]:
    """Return where the time of the mean worker goes: its own work, waiting for others, and the rest, exchanges."""
    num_workers = sum(kind.count for kind in kinds)
    names = tuple(seconds[0])
    batch = sum(kind.count * kind.samples for kind in kinds)
    rounds_s = batch / samples_per_s
    own = {
        name: sum(kind.count * parts[name] for kind, parts in zip(kinds, seconds, strict=True)) / num_workers / rounds_s
        for name in names
    }
    working = sum(own.values())
    scale = min(1.0, (1 - waiting_share) / working) if working else 1.0
    shares = {name: share * scale for name, share in own.items()}
    shares["stragglers"] = waiting_share
    shares["exposed_push"] += max(0.0, 1 - sum(shares.values()))
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}
