"""The answer is the best of everything that was looked at, wherever a limit of time struck."""

import time
from typing import Any

import purchases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from purchases import MadeUpTimes
from purchases_drawn import blocks, ideal, number_drawn, rows, times
from pytest import MonkeyPatch, TempPathFactory

from planner.errors import PlannerError
from planner.procurement.answer import Procured
from planner.procurement.fleet import Fleet
from planner.procurement.oracle import Oracle, Trained
from planner.procurement.question import Procurement
from planner.search import Search


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
