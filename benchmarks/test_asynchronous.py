"""One simulation of asynchronous training, and how it grows; and one minimisation of a number, at three tolerances.

The least of three calls in ms of CPU, on a shared server of two cores, CPython 3.11:

=========================================  ====  ====  =====
workers                                    4     32    1,000
=========================================  ====  ====  =====
BSP                                        60    341   794
SSP(4)                                     49    321   920
ASP                                        42    348   890
SSP(4), every worker's machine serves too  54    472   2,059
the bound of ASP, without simulation       0.1         6
=========================================  ====  ====  =====

Measured with ``python -m pytest benchmarks/test_asynchronous.py`` there; medians in ms:

=========================================  ====  ====  =====
tolerance                                  1e-2  1e-4  1e-6
=========================================  ====  ====  =====
``x + 0.032 / x**2``                       0.12  1.1   20
=========================================  ====  ====  =====

20,000 exchanges are simulated from 50 workers on, and 400 of each worker below. Where workers share machines with the
servers every link is followed on its own; else the busiest stands for all. The other core was busy.
"""

import math
from typing import Any

import numpy as np
import pytest

from planner.models.asynchronous import pace, samples_per_s_bound
from planner.models.exchange import Discipline, Exchange, Overlap, Servers, Worker
from planner.solvers.scalar import minimise

SIZE_BYTES, LINK_BYTES_PER_S = 1e8, 1.25e9


def question(num_workers: int, num_servers: int, slack: float, is_at_home: bool = False) -> Exchange:
    """Half of the workers are slower, by a half; all vary by a tenth."""
    seconds = np.repeat([0.8, 1.2], num_workers // 2).tolist()
    workers = [
        Worker(
            forward_s=(compute_s,),
            backward_s=0.0,
            ready_s=(0.0,),
            bytes_per_s=LINK_BYTES_PER_S,
            home=index if is_at_home else None,
            deviation_s=compute_s / 10,
            samples=32,
        )
        for index, compute_s in enumerate(seconds)
    ]
    return Exchange(
        workers=tuple(workers),
        servers=(Servers(bytes_per_s=LINK_BYTES_PER_S),) * num_servers,
        pushed_bytes=np.full((1, num_servers), SIZE_BYTES / num_servers),
        pulled_bytes=np.full((1, num_servers), SIZE_BYTES / num_servers),
        key_layer=(0,),
        overlap=Overlap.NONE,
        slack=slack,
        discipline=Discipline.FIFO,
    )


@pytest.mark.parametrize("slack", [0, 4, math.inf])
@pytest.mark.parametrize("num_workers", [4, 32, 1000])
def test_growth_with_workers(benchmark: Any, num_workers: int, slack: float) -> None:
    benchmark.pedantic(pace, (question(num_workers, max(1, num_workers // 4), slack),), rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("num_workers", [4, 32, 1000])
def test_growth_with_workers_that_serve(benchmark: Any, num_workers: int) -> None:
    benchmark.pedantic(pace, (question(num_workers, num_workers, 4, is_at_home=True),), rounds=3)


@pytest.mark.parametrize("num_workers", [4, 1000])
def test_the_bound_alone(benchmark: Any, num_workers: int) -> None:
    asked = question(num_workers, num_workers // 4, math.inf)
    benchmark(samples_per_s_bound, asked)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_one_number(benchmark: Any, tolerance: float) -> None:
    benchmark(minimise, lambda x: x, lambda x: 0.032 / x**2 if x else math.inf, 0, 1, tolerance=tolerance)
