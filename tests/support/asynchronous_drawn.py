"""Drawn questions about training with parameter servers without a barrier, or with a looser one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from planner.models.asynchronous import (
    AsynchronousRun,
    Exchange,
    Synchronisation,
    WorkerKind,
    samples_per_s_bound,
    simulate,
)
from planner.models.servers import Links, iteration_time_s, pull_time_s

BSP, SSP, ASP, LOCAL = Synchronisation.BSP, Synchronisation.SSP, Synchronisation.ASP, Synchronisation.LOCAL_SGD
EVERY = [(BSP, 0), (SSP, 0), (SSP, 1), (SSP, 3), (ASP, 0), (LOCAL, 1), (LOCAL, 3)]
NUM_ITERATIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The network and the workers of a question."""

    kinds: tuple[WorkerKind, ...]
    push_bytes: tuple[float, ...] = (0.0,)
    pull_bytes: tuple[float, ...] = (0.0,)
    server_bytes_per_s: tuple[float, ...] = (1.0,)
    latency_s: float = 0.0
    home: tuple[int | None, ...] | None = None

    @property
    def question(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def num_workers(self) -> int:
        return sum(kind.count for kind in self.kinds)

    def run(self, synchronisation: Synchronisation, bound: int = 0, **options: Any) -> AsynchronousRun:
        options = {"num_iterations": NUM_ITERATIONS} | options
        exchange = Exchange.of(**self.question, synchronisation=synchronisation, bound=bound)
        return simulate(exchange, **options)

    def limit(self, synchronisation: Synchronisation, bound: int = 0) -> float:
        return samples_per_s_bound(Exchange.of(**self.question, synchronisation=synchronisation, bound=bound))

    def round_s(self, num_steps: int = 1) -> float:
        """A synchronous iteration by the model of servers' links: the gradient is one tensor on all servers."""
        workers = [kind for kind in self.kinds for _ in range(kind.count)]
        links = Links(
            server_bytes_per_s=self.server_bytes_per_s,
            worker_bytes_per_s=tuple(worker.link_bytes_per_s for worker in workers),
        )
        if not any(self.push_bytes):  # that model leaves computation out if nothing is pushed
            computed_s = num_steps * max(worker.compute_s for worker in workers)
            return computed_s + pull_time_s([self.pull_bytes], links) + self.latency_s * any(self.pull_bytes)
        ready = [[num_steps * worker.compute_s] for worker in workers]
        exchanged = iteration_time_s(ready, [self.push_bytes], links, parameters_bytes=[self.pull_bytes])
        return exchanged + self.latency_s * (1 + any(self.pull_bytes))

    @property
    def samples(self) -> int:
        return sum(kind.count * kind.samples for kind in self.kinds)


def worker(compute_s: float, *, count: int = 1, samples: int = 1, deviation_s: float = 0.0, link: float = math.inf) -> WorkerKind:  # fmt: skip
    return WorkerKind(count=count, compute_s=compute_s, samples=samples, deviation_s=deviation_s, link_bytes_per_s=link)


amounts = st.sampled_from([0.0, 0.5, 1.0, 3.0])


@st.composite
def instances(
    draw: st.DrawFn,
    links: Sequence[float] = (0.5, 1.0, 4.0, math.inf),
    deviations: Sequence[float] = (0.0,),
    at_home: bool = True,
) -> Instance:
    kinds = st.builds(
        worker,
        st.integers(1, 12).map(float),
        count=st.integers(1, 3),
        samples=st.integers(1, 4),
        deviation_s=st.sampled_from(deviations),
        link=st.sampled_from(links),
    )
    chosen = tuple(draw(st.lists(kinds, min_size=1, max_size=3)))
    if len(links) == 1 or draw(st.booleans()):
        chosen = tuple(replace(kind, link_bytes_per_s=chosen[0].link_bytes_per_s) for kind in chosen)
    size, num_servers = sum(kind.count for kind in chosen), draw(st.integers(1, 3))
    row = st.lists(amounts, min_size=num_servers, max_size=num_servers).map(tuple)
    homes = st.lists(st.none() | st.integers(0, num_servers - 1), min_size=size, max_size=size).map(tuple)
    return Instance(
        kinds=chosen,
        push_bytes=draw(row),
        pull_bytes=draw(row),
        server_bytes_per_s=tuple(draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=num_servers, max_size=num_servers))),
        latency_s=draw(st.sampled_from([0.0, 0.25])),
        home=draw(st.none() | homes) if at_home else None,
    )  # fmt: skip
