"""Questions of a purchase on the list that ships: time to proof, gap after a minute, fleets planned.

Seconds until the proof on a busy server of two cores, ``pytest benchmarks/test_procure.py``, ResNet50 for 90 epochs:

==========================================================  =======  ======
question, 95 offers, up to 4,096 devices                    seconds  fleets
==========================================================  =======  ======
cost under a deadline of 1 h                                3.5      39
time under a budget of 500 USD                              11       17
value of time                                               6.3      26
Llama 2 7B, cost under a deadline of 48 h                   3.3      9
two types in a fleet, 1,355 sets of offers                  gap 29 % after 43 s
trade-off of time and money, 53 points                      gap 12 % after 60 s
time under a budget, up to 64 / 512 / 4,096 devices         1.3 / 1.1 / 23
the same, of the 16 / 52 / 95 offers of one / two / all     0.2 / 17 / 24
==========================================================  =======  ======

With a batch of 2,048 the trade-off of all 95 offers, 37 points, is proven after 206 plans, in 8 s of one core.

Almost all of it is the families' search on thousands of machines, about a second for each fleet.
"""

from datetime import date
from typing import Any

import pytest

import planner
from planner.procurement.answer import Procured

TODAY = date(2026, 11, 21)
RESNET50 = {"zoo": "resnet50", "global_batch": 8192, "dataset_samples": 1281167, "epochs": 90}
LLAMA = {"zoo": "llama2-7b", "global_batch": 1024, "dataset_samples": 500_000, "epochs": 1}
QUESTIONS: dict[str, dict[str, Any]] = {
    "cost under a deadline": {"deadline": "1 h"},
    "time under a budget": {"objective": "time", "budget": "500 USD"},
    "value of time": {"objective": "value_of_time", "usd_per_hour_saved": 50},
    "two types": {"deadline": "1 h", "most_types": 2},
}


def asked(block: dict[str, Any], dnn: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"dnn": dnn or RESNET50, "procure": block}


def answered(benchmark: Any, question: dict[str, Any], **wanted: Any) -> Procured:
    found: Procured = benchmark.pedantic(
        lambda: planner.procure(question, today=TODAY, time_limit_s=60, **wanted), rounds=1
    )
    one = found.certificate
    benchmark.extra_info.update(
        status=one.status.value, gap=one.gap, offers=one.num_offers, markets=one.num_markets, planned=one.num_planned
    )
    return found


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_whole_list(benchmark: Any, name: str) -> None:
    answered(benchmark, asked(QUESTIONS[name]), num_alternatives=0)


def test_the_whole_list_for_a_transformer(benchmark: Any) -> None:
    answered(benchmark, asked({"deadline": "48 h"}, LLAMA), num_alternatives=0)


def test_the_trade_off_of_the_whole_list(benchmark: Any) -> None:
    found = answered(benchmark, asked({"deadline": "24 h"}), num_alternatives=0, has_pareto=True)
    assert found.pareto is not None
    benchmark.extra_info.update(
        pareto=found.pareto.status.value, points=len(found.pareto.points), pareto_gap=found.pareto.gap
    )


@pytest.mark.parametrize("most", [64, 512, 4096])
def test_growth_with_devices(benchmark: Any, most: int) -> None:
    block = {"objective": "time", "budget": "500 USD", "most_devices": most}
    answered(benchmark, asked(block), num_alternatives=0)


@pytest.mark.parametrize("providers", [["lambda"], ["aws"], ["aws", "azure", "gcp", "lambda"]])
def test_growth_with_offers(benchmark: Any, providers: list[str]) -> None:
    answered(benchmark, asked({"objective": "time", "budget": "500 USD", "providers": providers}), num_alternatives=0)
