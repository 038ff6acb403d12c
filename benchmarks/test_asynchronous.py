"""One simulation of asynchronous training, and how it grows; and one minimisation of a number, at three tolerances.

Measured with ``python -m pytest benchmarks/test_asynchronous.py`` on a shared server of two cores, CPython 3.11;
medians in ms:

=========================================  ====  ====  =====
workers                                    4     32    1,000
=========================================  ====  ====  =====
BSP                                        36    263   696
SSP(4)                                     33    262   724
ASP                                        32    267   675
SSP(4), every worker's machine serves too  120   936   2,129
the bound of ASP, without simulation       0.09        9
=========================================  ====  ====  =====

=========================================  ====  ====  =====
tolerance                                  1e-2  1e-4  1e-6
=========================================  ====  ====  =====
``x + 0.032 / x**2``                       0.12  1.1   20
=========================================  ====  ====  =====

20,000 exchanges are simulated from 50 workers on, and 400 of each worker below. Where workers share machines with the
servers every link is followed on its own; else the busiest stands for all. The other core was busy; a run beside
heavier work took up to 1.8 times as long.
"""

import math
from typing import Any

import pytest

from planner.models.asynchronous import (
    AsynchronousRun,
    Exchange,
    Synchronisation,
    WorkerKind,
    samples_per_s_bound,
    simulate,
)
from planner.solvers.scalar import minimise

SIZE_BYTES, LINK_BYTES_PER_S = 1e8, 1.25e9


def question(num_workers: int, num_servers: int, is_at_home: bool = False) -> dict[str, Any]:
    """Half of the workers are slower, by a half; all vary by a tenth."""
    shares = [SIZE_BYTES / num_servers] * num_servers
    return {
        "kinds": [
            WorkerKind(
                count=num_workers // 2,
                compute_s=compute_s,
                deviation_s=compute_s / 10,
                samples=32,
                link_bytes_per_s=LINK_BYTES_PER_S,
            )
            for compute_s in (0.8, 1.2)
        ],
        "push_bytes": shares,
        "pull_bytes": shares,
        "server_bytes_per_s": [LINK_BYTES_PER_S] * num_servers,
        "home": range(num_workers) if is_at_home else None,
    }


def run(asked: dict[str, Any], rule: str, bound: int) -> AsynchronousRun:
    return simulate(Exchange.of(**asked, synchronisation=Synchronisation(rule), bound=bound))


@pytest.mark.parametrize(("rule", "bound"), [("bsp", 0), ("ssp", 4), ("asp", 0)])
@pytest.mark.parametrize("num_workers", [4, 32, 1000])
def test_growth_with_workers(benchmark: Any, num_workers: int, rule: str, bound: int) -> None:
    benchmark.pedantic(run, (question(num_workers, max(1, num_workers // 4)), rule, bound), rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("num_workers", [4, 32, 1000])
def test_growth_with_workers_that_serve(benchmark: Any, num_workers: int) -> None:
    benchmark.pedantic(run, (question(num_workers, num_workers, is_at_home=True), "ssp", 4), rounds=3)


@pytest.mark.parametrize("num_workers", [4, 1000])
def test_the_bound_alone(benchmark: Any, num_workers: int) -> None:
    asked = question(num_workers, num_workers // 4)
    benchmark(lambda: samples_per_s_bound(Exchange.of(**asked, synchronisation=Synchronisation.ASP)))


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_one_number(benchmark: Any, tolerance: float) -> None:
    benchmark(minimise, lambda x: x, lambda x: 0.032 / x**2 if x else math.inf, 0, 1, tolerance=tolerance)
