"""Fleets planned before their turn: the same document byte for byte, and honest bounds where one could not be planned."""

import os
import signal
import threading
import time
from math import inf
from pathlib import Path
from typing import Any

import purchases
import pytest
from purchases import row
from shuffled_pool import ShuffledPool

from planner.answer.documents import dump
from planner.errors import NoAnswerError
from planner.plan import Plan
from planner.planning import planned
from planner.problem import Problem
from planner.procurement import search as procurement_search
from planner.procurement.answer import Procured
from planner.procurement.fleet import Fleet
from planner.procurement.oracle import Oracle
from planner.procurement.procure import procure
from planner.procurement.question import Procurement
from planner.procurement.search import Fleets
from planner.search import Search
from planner.solution import Status
from planner.worker_pool import WorkerPool
from planner.workers import pool as workers
from planner.workers import worker_pool

ROWS = [
    row("small", usd_per_h=0.5, power_w=120),
    row("twin", region="west", usd_per_h=0.5, power_w=120),
    row("large", device="v100-sxm2-16g", usd_per_h=3, network_gbit_per_s=100, power_w=400),
    row("pair", device="a10g", devices=2, inside="pcie-4-x16", usd_per_h=2.2, billing_s=3600, power_w=500),
    row("lone", device="l40s", usd_per_h=1.8, network_gbit_per_s="", power_w=450),
]
TRAINING = {**purchases.DNN, "epochs": 30, "dataset_samples": 1_281_167}


@pytest.fixture(autouse=True)
def _every_fleet_is_worth_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procurement_search, "_WORTH_S", 0.0)
    monkeypatch.setattr(
        procurement_search, "least_by_count_of", lambda family: None
    )  # fleets are planned one by one, as of several types


def answered(procurement: Procurement, pool: WorkerPool | None, **wanted: Any) -> Procured:
    search = Search(pool=pool, num_alternatives=2)
    return procure(procurement, search, lambda problem, before: planned(problem, search.part(search.left_s)), **wanted)


@pytest.mark.parametrize(
    ("block", "wanted", "num_workers"),
    [
        ({"deadline": "6 h"}, {"has_what_if": True}, 1),
        ({"deadline": "9 h", "most_types": 2}, {"has_pareto": True}, 2),
    ],
)
def test_any_crew_gives_the_same_document_byte_for_byte(
    tmp_path: Path, block: dict[str, Any], wanted: dict[str, Any], num_workers: int
) -> None:
    question = purchases.asked(tmp_path / "list.csv", ROWS, dnn=TRAINING, machines={"at_most": 6}, **block)
    alone = answered(purchases.loaded(question), None, **wanted)
    pool = ShuffledPool(num_workers, num_workers=num_workers)
    helped = answered(purchases.loaded(question), pool, **wanted)
    assert dump(helped.to_dict()) == dump(alone.to_dict())
    assert pool.num_back > 0


def test_a_fleet_that_cannot_be_planned_counts_with_its_bound(tmp_path: Path) -> None:
    question = purchases.asked(tmp_path / "list.csv", ROWS, dnn=TRAINING, deadline="6 h", machines={"at_most": 6})
    pool = ShuffledPool(3, lost=range(1, 100))
    alone = answered(purchases.loaded(question), None)
    helped = answered(purchases.loaded(question), pool)
    assert helped.certificate.bound <= alone.choice.objective <= helped.choice.objective
    if helped.certificate.status is Status.OPTIMAL:
        assert helped.choice.objective == pytest.approx(alone.choice.objective)
    assert pool.notes
    assert set(pool.notes) == {"a fleet could not be planned, and counts with its bound: its worker died"}


def test_a_fleet_that_was_lost_and_cannot_keep_a_pin_trains_nothing(tmp_path: Path) -> None:
    rows = [row("small"), row("large", device="v100-sxm2-16g")]
    question = purchases.asked(tmp_path / "list.csv", rows, dnn=TRAINING) | {"fix": {"device": "v100-sxm2-16g"}}
    procurement = purchases.loaded(question)
    oracle = Oracle(procurement, procurement.jobs[0])
    small, large = (
        oracle.not_planned(Fleet(offers=(offer,), counts=(1,)), "its worker died")
        for offer in sorted(Fleets(procurement=procurement).offers, key=lambda offer: offer.instance != "small")
    )
    assert (small.bound, small.reason) == (inf, "fix.device: the cluster has no v100-sxm2-16g. Write one of t4.")
    assert 0 < large.bound < inf
    assert large.reason == "its worker died"


def test_a_fleet_of_which_no_plan_was_found_in_time_is_not_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(problem: Problem, search: Search) -> Plan:
        raise NoAnswerError("too late")

    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", [row("small")], dnn=TRAINING))
    oracle = Oracle(procurement, procurement.jobs[0])
    fleet = Fleet(offers=Fleets(procurement=procurement).offers, counts=(1,))
    monkeypatch.setattr("planner.procurement.oracle.best_plan", late)
    found = oracle.trained(fleet, Search(), enough_s=10.0)
    assert (found.plan, found.seconds) == (None, inf)
    assert 0 < found.bound < inf
    assert oracle.known(fleet, 10.0, Search()) is found
    assert oracle.known(fleet, 20.0, Search()) is None


def test_a_search_whose_crew_is_gone_goes_on_alone(tmp_path: Path) -> None:
    question = purchases.asked(tmp_path / "list.csv", ROWS, dnn=TRAINING, deadline="6 h", machines={"at_most": 6})
    alone = answered(purchases.loaded(question), None)
    helped = answered(purchases.loaded(question), ShuffledPool(4, gone_after=2))
    assert dump(helped.to_dict()) == dump(alone.to_dict())


@pytest.mark.long  # helpers that are gone stand above, in this process; that of the pool kills processes in test_pool.py
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_trade_offs_are_the_same_byte_for_byte_though_all_worker_processes_are_killed_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    monkeypatch.setattr(workers, "_ALONE_S", 0.0)
    monkeypatch.setattr(workers, "_ALONE_THEN_S", 0.0)
    asked: dict[str, Any] = {"dnn": TRAINING, "machines": {"at_most": 6}, "deadline": "9 h", "most_types": 2}
    question = purchases.asked(tmp_path / "list.csv", ROWS, **asked)
    alone = answered(purchases.loaded(question), None, has_pareto=True)
    killed: list[int] = []
    with worker_pool(2) as pool:
        assert pool is not None
        there = pool._started().result()

        def kill() -> None:
            while not pool.counts.tasks:
                time.sleep(0.001)
            for process in there.local.workers.values():
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        helped = answered(purchases.loaded(question), pool, has_pareto=True)
        killer.join(timeout=60.0)
    assert len(killed) == 2
    assert pool.counts.work_cpu_s > 0  # of those that were started in their place
    assert dump(helped.to_dict()) == dump(alone.to_dict())
