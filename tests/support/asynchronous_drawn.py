"""Drawn questions about training with parameter servers without a barrier, or with a looser one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from planner.models.asynchronous import Pace, pace, samples_per_s_bound
from planner.models.exchange import Discipline, Exchange, Overlap, Servers, Worker
from planner.models.servers import Links, iteration_time_s, pull_time_s

BSP, SSP, ASP, LOCAL = "bsp", "ssp", "asp", "local_sgd"
EVERY = [(BSP, 0), (SSP, 0), (SSP, 1), (SSP, 3), (ASP, 0), (LOCAL, 1), (LOCAL, 3)]
NUM_ITERATIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The network and the workers of a question."""

    workers: tuple[Worker, ...]
    push_bytes: tuple[float, ...] = (0.0,)
    pull_bytes: tuple[float, ...] = (0.0,)
    server_bytes_per_s: tuple[float, ...] = (1.0,)
    latency_s: float = 0.0
    home: tuple[int | None, ...] | None = None
    discipline: Discipline = Discipline.FIFO

    def exchange(self, synchronisation: str, bound: int = 0) -> Exchange:
        homes = self.home or (None,) * len(self.workers)
        return Exchange(
            workers=tuple(replace(one, home=home) for one, home in zip(self.workers, homes, strict=True)),
            servers=tuple(Servers(bytes_per_s=rate) for rate in self.server_bytes_per_s),
            pushed_bytes=np.array([self.push_bytes], dtype=float),
            pulled_bytes=np.array([self.pull_bytes], dtype=float),
            key_layer=(0,),
            overlap=Overlap.NONE,
            slack={ASP: math.inf, SSP: bound}.get(synchronisation, 0),
            discipline=self.discipline,
            num_steps=bound if synchronisation == LOCAL else 1,
            latency_s=self.latency_s,
        )

    @property
    def num_workers(self) -> int:
        return len(self.workers)

    def run(self, synchronisation: str, bound: int = 0, **options: Any) -> Pace:
        return pace(self.exchange(synchronisation, bound), **({"num_iterations": NUM_ITERATIONS} | options))

    def limit(self, synchronisation: str, bound: int = 0) -> float:
        return samples_per_s_bound(self.exchange(synchronisation, bound))

    def round_s(self, num_steps: int = 1) -> float:
        """A synchronous iteration by the model of servers' links: the gradient is one tensor on all servers."""
        workers = self.workers
        links = Links(
            server_bytes_per_s=self.server_bytes_per_s,
            worker_bytes_per_s=tuple(worker.bytes_per_s for worker in workers),
        )
        if not any(self.push_bytes):  # that model leaves computation out if nothing is pushed
            computed_s = num_steps * max(worker.compute_s for worker in workers)
            return computed_s + pull_time_s([self.pull_bytes], links) + self.latency_s * any(self.pull_bytes)
        ready = [[num_steps * worker.compute_s] for worker in workers]
        exchanged = iteration_time_s(ready, [self.push_bytes], links, parameters_bytes=[self.pull_bytes])
        return exchanged + self.latency_s * (1 + any(self.pull_bytes))

    @property
    def samples(self) -> int:
        return sum(one.samples for one in self.workers)


def worker(compute_s: float, *, samples: int = 1, deviation_s: float = 0.0, link: float = math.inf) -> Worker:
    """A worker that computes for so long, and then pushes."""
    return Worker(
        forward_s=(compute_s,),
        backward_s=0.0,
        ready_s=(0.0,),
        bytes_per_s=link,
        deviation_s=deviation_s,
        samples=samples,
    )


amounts = st.sampled_from([0.0, 0.5, 1.0, 3.0])


@st.composite
def instances(
    draw: st.DrawFn,
    links: Sequence[float] = (0.5, 1.0, 4.0, math.inf),
    deviations: Sequence[float] = (0.0,),
    at_home: bool = True,
    disciplines: Sequence[Discipline] = (Discipline.FIFO,),
) -> Instance:
    kinds = st.builds(
        worker,
        st.integers(1, 12).map(float),
        samples=st.integers(1, 4),
        deviation_s=st.sampled_from(deviations),
        link=st.sampled_from(links),
    )
    drawn = draw(st.lists(st.tuples(kinds, st.integers(1, 3)), min_size=1, max_size=3))
    chosen = tuple(one for one, count in drawn for _ in range(count))
    if len(links) == 1 or draw(st.booleans()):
        chosen = tuple(replace(one, bytes_per_s=chosen[0].bytes_per_s) for one in chosen)
    num_servers = draw(st.integers(1, 3))
    row = st.lists(amounts, min_size=num_servers, max_size=num_servers).map(tuple)
    hosts = draw(st.permutations([*range(num_servers), *((None,) * len(chosen))]))[: len(chosen)]
    return Instance(
        workers=chosen,
        push_bytes=draw(row),
        pull_bytes=draw(row),
        server_bytes_per_s=tuple(draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=num_servers, max_size=num_servers))),
        latency_s=draw(st.sampled_from([0.0, 0.25])),
        home=draw(st.sampled_from([None, tuple(hosts)])) if at_home else None,
        discipline=draw(st.sampled_from(disciplines)),
    )  # fmt: skip
