"""The answer is the best of everything that was looked at, wherever a limit of time struck."""

import time
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import purchases
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from purchases import MadeUpTimes
from purchases_drawn import blocks, ideal, number_drawn, rows, times
from pytest import MonkeyPatch, TempPathFactory

from planner.errors import PlannerError
from planner.procurement.answer import Procured
from planner.procurement.fleet import Fleet
from planner.procurement.oracle import Oracle, Trained
from planner.procurement.procure import procure
from planner.procurement.question import Procurement
from planner.ranking import best_plan
from planner.search import Search
from planner.solution import Status


class Clock:
    """Seconds that pass only while a fleet is planned, one for each."""

    now = 0.0


def timed(patch: MonkeyPatch, clock: Clock) -> None:
    """Let made-up plans take a second of a clock that stands still otherwise."""
    plain = Oracle._planned

    def planned(self: Oracle, fleet: Fleet, search: Search, enough_s: float) -> Trained:
        clock.now += 1
        return plain(self, fleet, search, enough_s)

    patch.setattr(Oracle, "_planned", planned)
    patch.setattr(time, "monotonic", lambda: clock.now)


def listed(procurement: Procurement, found: Procured) -> list[Fleet]:
    """All fleets that an answer shows, on the offers of its question: a change may have changed their prices."""
    offers = {offer.name: offer for offer in procurement.offers}
    fleets = [other.fleet for other, _ in found.alternatives]
    fleets += [one.fleet for one, _ in found.by_deadline]
    fleets += [one.choice.fleet for one in (found.pareto.points if found.pareto is not None else ())]
    fleets += [one.fleet for one in found.what_if if one.fleet is not None]
    return [Fleet(offers=tuple(offers[one.name] for one in fleet.offers), counts=fleet.counts) for fleet in fleets]


@settings(max_examples=number_drawn(120, 500), deadline=None, suppress_health_check=list(HealthCheck))
@given(rows(), blocks(), times(), st.integers(1, 30), st.sampled_from([0.0, 0.2]), st.booleans(), st.data())
def test_nothing_that_an_answer_shows_keeps_the_limits_and_is_better(
    tmp_path_factory: TempPathFactory,
    given_rows: list[dict[str, Any]],
    block: dict[str, Any],
    given_times: MadeUpTimes,
    seconds: int,
    slack: float,
    is_robust: bool,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.getbasetemp() / "incumbent.csv"
    asked = {**block, "machines": block.get("machines", {"at_most": 4})} | ({"error": 0.25} if is_robust else {})
    try:
        procurement = purchases.loaded(purchases.asked(path, given_rows, **asked))
    except PlannerError:  # none of the offers may be had
        return
    shown = data.draw(st.sampled_from([{"has_what_if": True}, {"has_pareto": True}, {}]))
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, given_times, ideal(given_times), slack)
        timed(patch, Clock())
        search = Search(time_limit_s=seconds, num_alternatives=3)
        try:
            found = purchases.answered(procurement, search=search, is_robust=is_robust, **shown)
        except PlannerError:
            return
    assert found.certificate.bound <= found.choice.objective
    for fleet in listed(procurement, found):
        bill = purchases.bill_of(procurement, fleet, given_times(fleet), found.stretch)
        if purchases.keeps(procurement, bill):
            assert bill.objective >= found.choice.objective * (1 - 1e-8), (fleet, bill.objective, shown)
    best = min(bill.objective for bill in purchases.all_bills(procurement, given_times, found.stretch))
    assert found.certificate.bound <= best * (1 + 1e-8)


def with_moved_layers(tmp_path: Path, rows: list[purchases.Row], **block: Any) -> Procured:
    """A purchase for Llama 3.2 1B, of which single layers moved between chunks save 4 to 8 % of a step."""
    dnn = {"zoo": "llama3.2-1b", "global_batch": 8, "dataset_samples": 3200, "epochs": 1}
    question = purchases.asked(tmp_path / "list.csv", rows, dnn=dnn, objective="cost", **block)
    question["families"] = ["hybrid"]
    within = Search(time_limit_s=60)
    return procure(
        purchases.loaded(question), within, lambda problem, before: best_plan(problem, Search(time_limit_s=20))
    )


MACHINE = {"devices": 2, "network_gbit_per_s": 1, "inside": "pcie-3-x16", "billing_s": 1}
H100 = purchases.row("h100", device="h100-sxm", usd_per_h=8, **MACHINE)
A100 = purchases.row("a100", device="a100-sxm4-80gb", usd_per_h=3.9, **MACHINE)


def test_fleets_close_to_the_answer_are_planned_as_it_is(tmp_path: Path) -> None:
    alone = with_moved_layers(tmp_path, [A100], machines={"at_most": 1})
    assert with_moved_layers(tmp_path, [A100, H100], machines={"at_most": 1}).choice.objective == alone.choice.objective


def test_a_fleet_that_just_misses_a_limit_is_planned_as_the_answer_is(tmp_path: Path) -> None:
    free = with_moved_layers(tmp_path, [H100], machines={"at_most": 4}).choice
    tight = with_moved_layers(
        tmp_path, [H100], machines={"at_most": 4}, deadline=f"{free.total_wall_s / 3600 * 1.001:.9f} h"
    ).choice
    assert tight.total_wall_s <= free.total_wall_s * 1.001


def test_more_machines_of_two_kinds_never_train_slower(tmp_path: Path) -> None:
    """A layout on a few machines of each kind is one on more of them, too: what is proven of these holds for it."""
    rows = [
        purchases.row("v100", device="v100-sxm2-32gb", most=2, network_gbit_per_s=3),
        purchases.row("a10g", device="a10g", devices=2, inside="pcie-3-x16", most=3, network_gbit_per_s=3),
    ]
    dnn = {"zoo": "llama3.2-1b", "global_batch": 4, "dataset_samples": 32, "epochs": 1}
    question = purchases.asked(tmp_path / "list.csv", rows, dnn=dnn, most_types=2)
    procurement = purchases.loaded(question | {"families": ["hybrid"], "fix": {"schedule": "1f1b"}})
    oracle = Oracle(procurement, procurement.jobs[0])
    few, many = (
        oracle.planned(Fleet(offers=procurement.offers, counts=counts), Search(time_limit_s=60))
        for counts in ((1, 1), (2, 3))
    )
    assert few.used == many.used == (1, 1)
    assert many.seconds <= few.seconds * (1 + 1e-9)


@pytest.mark.parametrize(("num_rows", "needed_s"), [(2, 20.0), (1, 2.5)])
def test_a_fleet_that_a_part_of_the_time_cut_off_is_asked_again_with_what_is_left(
    tmp_path: Path, monkeypatch: MonkeyPatch, num_rows: int, needed_s: float
) -> None:
    """Alone it has half of the time from the beginning, a few seconds at least: a first answer is worth most."""
    clock, seconds = Clock(), {"t4": 7200.0, "a10g": 2000.0}

    def planned(self: Oracle, fleet: Fleet, search: Search) -> Trained:
        device = fleet.offers[0].device
        took_s = min(needed_s if device == "a10g" else 1.0, search.time_limit_s)
        clock.now += took_s
        found = Trained(seconds=seconds[device], bound=seconds[device], used=fleet.counts)
        is_late = device == "a10g" and took_s < needed_s
        return replace(found, seconds=inf, bound=900.0, late_s=took_s) if is_late else found

    monkeypatch.setattr(Oracle, "planned", planned)
    monkeypatch.setattr(Oracle, "by_count", lambda *_: None)
    monkeypatch.setattr(Oracle, "ideal_rate", lambda self, offer: 1 / 1800 if offer.device == "t4" else 1 / 900)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    rows = [purchases.row("hard", device="a10g", usd_per_h=2.5), purchases.row("easy", usd_per_h=1)][:num_rows]
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", rows, machines={"at_most": 1}))
    found = purchases.answered(procurement, search=Search(time_limit_s=60.0 if num_rows > 1 else 5.0))
    assert found.choice.fleet.headline == "1 x hard"
    assert found.certificate.status is Status.OPTIMAL
