"""Limits of a purchase: what does not end with its time is broken off, and claims nothing."""

import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import purchases
import pytest
from purchases import Machine, MadeUpTimes, row

from planner.errors import NoAnswerError
from planner.procurement.fleet import Fleet
from planner.procurement.oracle import Oracle, Trained
from planner.procurement.procure import procure
from planner.procurement.question import load_procurement
from planner.procurement.search import Fleets
from planner.search import Search
from planner.solution import Status

QUESTION: dict[str, Any] = {
    "dnn": {"zoo": "resnet50", "global_batch": 64, "dataset_samples": 1000, "epochs": 1},
    "procure": {"deadline": "1 d", "machines": {"at_most": 2}},
}


def test_a_price_list_whose_bounds_do_not_end_in_time_is_not_called_infeasible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "bounded", lambda search, make, instead: instead)
    asked = load_procurement(QUESTION, today=date(2026, 1, 1))
    with pytest.raises(NoAnswerError, match="before the first fleet was found; nothing is proven yet"):
        procure(asked, Search(time_limit_s=0.0), lambda problem, before: pytest.fail("nothing was found"))
    assert Fleets(procurement=asked).markets(1)


@pytest.mark.parametrize(("share", "slack", "is_told"), [(0.1, 0.2, True), (0.9, 0.2, False), (0.1, 0.0, False)])
def test_an_answer_without_proof_says_that_other_programs_had_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, slack: float, is_told: bool
) -> None:
    made = MadeUpTimes(machines={"t4": Machine(1.0)}, work=50_000, serial_s=1234)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work, slack)
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", [row("small", most=4)], objective="time"))
    now = iter(range(100_000))
    search = Search(clock=lambda: float(next(now)))
    monkeypatch.setattr(time, "process_time", lambda: share * search.clock())
    found = purchases.answered(procurement, search=search)
    assert any("of a processor in" in line for line in found.warnings) is is_told


@pytest.mark.parametrize("late_s", [0.0, 1.0])
def test_a_proven_answer_says_that_other_ends_are_the_best_so_far_where_a_limit_cut_off_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    made = MadeUpTimes(machines={"t4": Machine(1.0)}, work=50_000, serial_s=1234)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)
    plain = Oracle._planned

    def planned(self: Oracle, fleet: Fleet, search: Search, enough_s: float) -> Trained:
        found = plain(self, fleet, search, enough_s)
        return found if fleet.counts == (1,) else replace(found, late_s=late_s)

    monkeypatch.setattr(Oracle, "_planned", planned)
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", [row("small", most=4)], objective="cost"))
    found = purchases.answered(procurement, search=Search(num_alternatives=1))
    assert found.certificate.status is Status.OPTIMAL
    assert found.choice.fleet.counts == (1,)
    assert len(found.by_deadline) > 1
    assert any("sooner or later" in line for line in found.warnings) is (late_s > 0)


def test_other_ends_that_there_was_no_time_to_look_for_are_the_best_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, now = MadeUpTimes(machines={"t4": Machine(1.0)}, work=50_000, serial_s=1234), [0.0]
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)
    plain = Fleets.best

    def slow(self: Fleets, markets: Any, search: Search, **options: Any) -> Any:
        now[0] += 9.0 if "without" in options else 0.0
        return plain(self, markets, search, **options)

    monkeypatch.setattr(Fleets, "best", slow)
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", [row("small", most=4)], objective="cost"))
    for time_limit_s, is_told in ((20.0, True), (1_000.0, False)):
        search = Search(num_alternatives=1, time_limit_s=time_limit_s, clock=lambda: now[0])
        found = purchases.answered(procurement, search=search)
        assert any("sooner or later" in line for line in found.warnings) is is_told
    assert len(found.by_deadline) > 1


@pytest.mark.parametrize(
    ("usd_per_h", "limit", "objective"),
    [
        (0.1, {"budget_rate": "0.3 USD/h"}, "time"),  # 3 x 0.1 is more than 0.3, as numbers are rounded
        (1.1, {"budget": "33 USD"}, "time"),
        (1.0, {"deadline": "10.1 h", "run": {"start_up": "0.1 h"}}, "cost"),
    ],
)
def test_a_limit_that_is_met_exactly_is_kept_whatever_rounding_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usd_per_h: float, limit: dict[str, Any], objective: str
) -> None:
    made = MadeUpTimes({"t4": Machine(1)}, work=30 * 3600)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)
    block = {"machines": {"at_most": 3}, "objective": objective, **limit}
    found = purchases.answered(
        purchases.loaded(purchases.asked(tmp_path / "l.csv", [row("a", usd_per_h=usd_per_h)], **block))
    )
    assert found.choice.fleet.counts == (3,)
    assert found.margin is None or abs(found.margin) < 1e-9


def test_offers_that_another_one_replaces_are_not_searched_but_where_a_quota_tells_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 400 regions the cheapest alone is asked about; of one of which there are too few the next cheapest, too."""
    made = MadeUpTimes(machines={"t4": Machine(1.0)}, work=40_000, serial_s=100)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)
    rows = [row(f"r{index}", region=f"r{index}", usd_per_h=1 + (index * 7 % 400) / 100) for index in range(400)]
    asked: dict[str, Any] = {"deadline": "3 h", "most_devices": 8}
    plain = purchases.loaded(purchases.asked(tmp_path / "list.csv", rows, **asked))
    assert [one.offers[0].instance for one in Fleets(procurement=plain).markets(1)] == ["r0"]
    assert purchases.answered(plain).choice.fleet.headline == "4 x r0"
    limited = purchases.loaded(purchases.asked(tmp_path / "list.csv", rows, **asked, quotas={"r0": 3}))
    assert [one.offers[0].usd_per_h for one in Fleets(procurement=limited).markets(1)] == [1.0, 1.01]
    best = min(purchases.all_bills(limited, made), key=lambda bill: bill.objective)
    assert purchases.answered(limited).choice.objective == pytest.approx(best.objective)
    few = [{**one, "most": 3} if one["instance"] == "r0" else one for one in rows]
    scarce = purchases.loaded(purchases.asked(tmp_path / "list.csv", few, **asked))
    assert purchases.answered(scarce).choice.objective == pytest.approx(best.objective)
