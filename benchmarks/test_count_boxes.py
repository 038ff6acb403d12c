"""Counts of machines by few calls of an oracle: 150 kinds, up to 512 of each, and growth with both.

Calls of the oracle until the gap was 1 %, 0.1 % and 0, and seconds without the oracle's own, of one run of
``python -m pytest benchmarks/test_count_boxes.py -p no:xdist --benchmark-json=FILE`` on a shared server of two cores,
CPython 3.11; 500 calls at most. "-": not reached.

=================================================  =====  ======  =====  =======  =========
cheapest within a deadline                         1 %    0.1 %   0      seconds  gap left
=================================================  =====  ======  =====  =======  =========
150 roots, one kind each, up to 512                62     67      68     0.6
the same, two kinds each                           -      -       -      8.2      1.3 %
the same, three kinds each                         -      -       -      7.5      1.1 %
15 roots, one kind                                 67     71      71     0.3
150 roots, up to 64                                19     19      19     0.1
150 roots, up to 4,096                             99     401     405    1.6
1,500 roots                                        320    -       -      1.5      0.5 %
10,000 roots                                       10     -       -      1.8      0.3 %
=================================================  =====  ======  =====  =======  =========

=================================================  =====  ======  =====  =======
fastest within a budget                            1 %    0.1 %   0      seconds
=================================================  =====  ======  =====  =======
150 roots, one kind each, up to 512                35     39      39     0.2
the same, two kinds each                           14     21      21     0.2
the same, three kinds each                         22     169     181    1.3
15 roots, one kind                                 1      1       1      0.0
150 roots, up to 64                                28     28      28     0.1
150 roots, up to 4,096                             38     50      53     0.3
1,500 roots                                        21     28      28     0.1
10,000 roots                                       65     86      87     0.5
=================================================  =====  ======  =====  =======

The front of time and money of 150 roots takes 70 calls (0.4 s) to be known within a factor of 1.1, 360 (1.8 s) within
1.03 and 711 (3.4 s) within 1.01.

Mixes of kinds that cost the same for the same speed are hard to prove: all of them are nearly as cheap, and a call at
one says little of another. The best one of 500 calls is found within the first six even so.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import pytest

from planner.cost import Floats
from planner.search import Search
from planner.solution import Status
from planner.solvers.counts import Candidate, best_counts, best_trade_offs
from planner.solvers.readings import Counts, Ints, Question, Reading

WORK = 1e4  # of which a machine does 1 to 10 a second


@dataclass
class Machines:
    """Roots of ``width`` kinds each; of all machines at once 2 % to 50 % of the speed are lost, as Amdahl has it."""

    num_roots: int
    most: int
    width: int = 1
    has_money_first: bool = True
    calls: list[tuple[int, Counts]] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = np.random.default_rng(0)
        shape = self.num_roots, self.width
        self.speeds = random.uniform(1, 10, shape)
        self.prices = self.speeds * random.uniform(0.7, 1.6, shape)
        self.losses = random.uniform(0.02, 0.5, self.num_roots)

    def question(self, *limits: float) -> Question:
        return Question(
            most=np.full((self.num_roots, self.width), self.most),
            oracle=self.oracle,
            criteria=self.criteria,
            limits=limits,
            floor=self.floor,
            size=lambda roots, counts: np.asarray((counts * self.speeds[roots]).sum(axis=1)),
        )

    def oracle(self, root: int, counts: Counts, enough: float) -> Reading:
        self.calls.append((root, counts))
        share = self.losses[root] / (1 - self.losses[root]) / max(1, self.most * self.width - 1)
        seconds = WORK / float(np.dot(counts, self.speeds[root])) * (1 + share * (sum(counts) - 1))
        return Reading(value=seconds, bound=seconds)

    def criteria(self, roots: Ints, counts: Ints, t: Floats) -> Floats:
        return self.in_order(t, (self.prices[roots] * counts).sum(axis=1) * t)

    def floor(self, roots: Ints, least: Ints, most: Ints) -> Floats:
        """No machine loses any speed; USD per unit of work are least with all of the cheap kinds and few others."""
        speeds, prices = self.speeds[roots], self.prices[roots]
        order = np.argsort(prices / speeds, axis=1, kind="stable")
        columns = [np.take_along_axis(one, order, axis=1) for one in (speeds, prices, least, most)]
        speed, price, low, high = columns
        usd = np.full(len(roots), inf)
        for number in range(self.width + 1):
            counts = np.where(np.arange(self.width) < number, high, low)
            usd = np.minimum(usd, WORK * (price * counts).sum(axis=1) / (speed * counts).sum(axis=1))
        return self.in_order(WORK / (speed * high).sum(axis=1), usd)

    def in_order(self, seconds: Floats, usd: Floats) -> Floats:
        return np.stack([usd, seconds] if self.has_money_first else [seconds, usd], axis=1)


def limits_of(machines: Machines) -> tuple[float, float]:
    """A deadline for the cheapest, a budget for the fastest."""
    return (inf, 20.0) if machines.has_money_first else (inf, 9000.0)


def calls_to_gaps(machines: Machines, most_calls: int) -> dict[str, Any]:
    """Return after how many calls the gap was no more than 1 % and 0.1 %, and in the end."""
    told: list[float] = []

    def tell(bound: float, best: Candidate | None, calls: int) -> None:
        told.append(inf if best is None else (best.criteria[0] - bound) / best.criteria[0])

    found = best_counts(machines.question(*limits_of(machines)), Search(), most_calls=most_calls, on_progress=tell)
    told.append(found.solution.gap)
    calls: dict[str, Any] = {
        f"calls to {gap:.1%}": next((min(at + 1, found.num_calls) for at, one in enumerate(told) if one <= gap), None)
        for gap in (0.01, 0.001)
    }
    return calls | {"calls": found.num_calls, "gap": found.solution.gap, "status": found.solution.status.value}


@pytest.mark.parametrize("has_money_first", [True, False])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_calls_to_a_gap(benchmark: Any, width: int, has_money_first: bool) -> None:
    def run() -> dict[str, Any]:
        return calls_to_gaps(Machines(150, 512, width, has_money_first), 500)

    benchmark.extra_info |= benchmark.pedantic(run, rounds=1)
    assert benchmark.extra_info["gap"] < 0.05


@pytest.mark.parametrize("has_money_first", [True, False])
@pytest.mark.parametrize(("num_roots", "most"), [(15, 512), (150, 64), (150, 4096), (1500, 512), (10_000, 512)])
def test_growth_with_roots_and_counts(benchmark: Any, num_roots: int, most: int, has_money_first: bool) -> None:
    def run() -> dict[str, Any]:
        return calls_to_gaps(Machines(num_roots, most, 1, has_money_first), 500)

    benchmark.extra_info |= benchmark.pedantic(run, rounds=1)


@pytest.mark.parametrize("tolerance", [0.1, 0.03, 0.01])
def test_the_front(benchmark: Any, tolerance: float) -> None:
    def run() -> dict[str, Any]:
        question = Machines(150, 512, 1, False).question(100.0, 12000.0)
        found = best_trade_offs(question, Search(), tolerance=tolerance, most_calls=1000)
        assert found.status is Status.OPTIMAL
        return {"calls": found.num_calls, "points": len(found.points), "gap": found.gap}

    benchmark.extra_info |= benchmark.pedantic(run, rounds=1)
