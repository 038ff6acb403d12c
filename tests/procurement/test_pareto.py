"""The trade-off of time against money: its points, their order, and ties."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import purchases
import pytest
from answers import procured_text
from purchases import Machine, MadeUpTimes, row
from pytest import MonkeyPatch, TempPathFactory

from planner.procurement import procure
from planner.procurement.answer import Choice, ParetoSet
from planner.procurement.search import Fleets
from planner.search import Search
from planner.solution import Status
from planner.solvers.counts import TradeOffs

MACHINES = {"t4": Machine(1.0), "v100-sxm2-16g": Machine(2.7, useful=6)}
TIMES = MadeUpTimes(machines=MACHINES, work=50_000, serial_s=1234, loss=0.1)
ROWS = [row("small", usd_per_h=1), row("large", device="v100-sxm2-16g", usd_per_h=2.9)]


@pytest.fixture(scope="module")
def front(tmp_path_factory: TempPathFactory) -> ParetoSet:
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
        question = purchases.asked(tmp_path_factory.mktemp("front") / "list.csv", ROWS, most_devices=8, most_types=2)
        found = purchases.answered(purchases.loaded(question), has_pareto=True).pareto
    assert found is not None
    return found


def test_points_come_fastest_first_and_each_is_cheaper_than_all_faster_ones(front: ParetoSet) -> None:
    points = [(one.choice.total_wall_s, one.choice.cost_usd) for one in front.points]
    assert len(points) > 3
    assert front.status is Status.OPTIMAL
    assert all(one[0] < other[0] and one[1] > other[1] for one, other in pairwise(points))


def test_the_ends_are_the_fastest_and_the_cheapest_fleet(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    block: dict[str, Any] = {"most_devices": 8, "most_types": 2, "deadline": "9 h", "budget": "20 USD"}
    ends = []
    for objective in ("time", "cost"):
        question = purchases.asked(tmp_path / "list.csv", ROWS, **{**block, "objective": objective})
        found = purchases.answered(purchases.loaded(question), has_pareto=True)
        assert found.pareto is not None
        end = found.pareto.points[0 if objective == "time" else -1].choice
        ends.append((end.total_wall_s, end.cost_usd))
        assert getattr(end, "total_wall_s" if objective == "time" else "cost_usd") == pytest.approx(
            found.choice.objective
        )
        assert all(one.choice.total_wall_s <= 9 * 3600 and one.choice.cost_usd <= 20 for one in found.pareto.points)
    assert ends[0] != ends[1]


def test_points_closer_than_the_known_error_are_ties(front: ParetoSet) -> None:
    first = front.points[0].choice

    def made(times_s: list[float], error: tuple[float, float] | None) -> list[Choice]:
        return [replace(first, run_s={"training": seconds}, error=error) for seconds in times_s]

    def ties(choices: list[Choice]) -> list[bool]:
        return [one.is_tie for one in procure.with_ties(choices)]

    # 100 s may be 109 s, and 115 s may be 104 s, but 140 s is 127 s at least, and 115 s no more than 126 s
    assert ties(made([100, 115, 140], (-0.09, 0.09))) == [False, True, False]
    assert ties(made([100, 101], (0.0, 0.0))) == [False, False]
    assert ties(made([100, 101], None)) == [False, False]


def test_what_other_deadlines_cost_is_told_of_the_fleets_that_were_planned(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    question = purchases.asked(tmp_path / "list.csv", ROWS, most_devices=8, deadline="5 h", budget="16 USD")
    found = purchases.answered(purchases.loaded(question), search=Search(num_alternatives=1))
    points = [(one.total_wall_s, one.cost_usd) for one, _ in found.by_deadline]
    assert all(one[0] < other[0] and one[1] > other[1] for one, other in pairwise(points))
    assert found.choice in [one for one, missed in found.by_deadline if not missed]
    for one, missed in found.by_deadline:
        assert ("after the deadline" in missed) is (one.total_wall_s > 5 * 3600)
        assert ("over the budget" in missed) is (one.cost_usd > 16)
    text = procured_text(found)
    row = next(line for line in text.splitlines() if line.strip().startswith("sooner"))
    sooner = [one for one, _ in found.by_deadline if one.total_wall_s <= found.choice.total_wall_s * 0.6][-1]
    assert f"{sooner.cost_usd:,.2f} USD" in row and sooner.fleet.headline in row


def test_what_is_sooner_and_later_is_the_cheapest_in_its_time_whatever_was_planned(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    question = purchases.asked(tmp_path / "list.csv", ROWS, most_devices=8, deadline="9 h")
    procurement = purchases.loaded(question)
    bills = [purchases.bill_of(procurement, one, TIMES(one)) for one in purchases.every_fleet(procurement)]
    for has_pareto in (False, True):
        found = purchases.answered(procurement, search=Search(num_alternatives=1), has_pareto=has_pareto)
        whole_s, cost_usd = found.choice.total_wall_s, found.choice.cost_usd
        sooner = min((one.cost_usd for one in bills if one.time_s <= 0.6 * whole_s), default=None)
        assert (found.sooner and found.sooner[0].cost_usd) == pytest.approx(sooner)
        later = [one.cost_usd for one in bills if whole_s < one.time_s <= 2 * whole_s]
        later = [one for one in later if one < 0.99 * cost_usd]
        assert (found.later and found.later[0].cost_usd) == (pytest.approx(min(later)) if later else None)


@pytest.mark.parametrize("has_pareto", [False, True])
def test_what_is_left_of_the_time_goes_into_the_proof_of_the_answer(
    tmp_path: Path, monkeypatch: MonkeyPatch, has_pareto: bool
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    plain = Fleets.best

    def short_in_its_part(self: Fleets, markets: Any, search: Search, **kwargs: Any) -> Any:
        found = plain(self, markets, search, **kwargs)
        is_short = "told" in kwargs  # as the search of the answer is, before all else
        return (
            replace(found, solution=replace(found.solution, bound=0.0, status=Status.FEASIBLE)) if is_short else found
        )

    monkeypatch.setattr(Fleets, "best", short_in_its_part)
    question = purchases.asked(tmp_path / "list.csv", ROWS, most_devices=8, deadline="9 h")
    found = purchases.answered(purchases.loaded(question), has_pareto=has_pareto)
    assert found.certificate.status is Status.OPTIMAL


def test_an_unfinished_trade_off_has_what_other_deadlines_were_found_to_cost(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    nothing = TradeOffs(status=Status.FEASIBLE, points=(), gap=1.0, left=(), num_calls=0, num_boxes=0)
    monkeypatch.setattr(Fleets, "trade_offs", lambda *_: nothing)
    question = purchases.asked(tmp_path / "list.csv", ROWS, most_devices=8, deadline="9 h")
    found = purchases.answered(purchases.loaded(question), has_pareto=True)
    assert found.pareto is not None
    points = [(one.choice.total_wall_s, one.choice.cost_usd) for one in found.pareto.points]
    kept = [(one.total_wall_s, one.cost_usd) for one, missed in found.by_deadline if not missed]
    assert len(kept) > 1
    assert points == kept


def test_an_earlier_end_costs_no_more_than_twice_the_machines_of_the_answer_or_the_next_best(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    machines = {**MACHINES, "a10g": Machine(1.5)}
    times = replace(TIMES, machines=machines, serial_s=0.0)
    purchases.stub(monkeypatch, times, lambda offer: machines[offer.device].rate / times.work)
    rows = [row("small", usd_per_h=1), row("next", device="a10g", usd_per_h=1.6)]
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", rows, most_devices=64, deadline="5 h"))
    found = purchases.answered(procurement, search=Search(num_alternatives=1))
    sooner = [one for one, _ in found.by_deadline if one.total_wall_s < found.choice.total_wall_s * 0.99]
    for one in (found.choice, *(other for other, _ in found.alternatives)):
        fleet = replace(one.fleet, counts=tuple(2 * count for count in one.fleet.counts))
        assert sooner[-1].cost_usd <= purchases.bill_of(procurement, fleet, times(fleet)).cost_usd * (
            1 + 1e-4
        )  # but for seconds


def test_what_is_cheaper_and_sooner_beyond_a_limit_is_not_told_to_be_later(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    question = purchases.asked(tmp_path / "list.csv", ROWS, most_devices=8, deadline="5 h")
    found = purchases.answered(purchases.loaded(question))
    run_s, money_usd = {"training": found.choice.total_wall_s / 2}, {"rent": found.choice.cost_usd / 2}
    bought = replace(found.choice, run_s=run_s, money_usd=money_usd)  # at a price beyond the budget, and resold
    text = procured_text(replace(found, by_deadline=((bought, "over the budget"),)))
    names = [line.split()[0] for line in text.splitlines() if "over the budget" in line]
    assert names == ["sooner"]


def test_the_drawing_shows_every_point(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)
    question = purchases.asked(tmp_path / "list.csv", ROWS, most_devices=8)
    found = purchases.answered(purchases.loaded(question), has_pareto=True)
    assert found.pareto is not None
    text = procured_text(found)
    for one in found.pareto.points:
        assert f"{one.choice.cost_usd:,.2f} USD" in text
