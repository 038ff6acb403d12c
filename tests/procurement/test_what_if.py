"""Changes of a question, robust planning and margins, against fresh questions with the change made by hand."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import purchases
import pytest
from purchases import DNN, Machine, MadeUpTimes, row
from pytest import MonkeyPatch

import planner
from planner.answer.documents import dump
from planner.data.fits import seconds_band
from planner.plan import Plan
from planner.problem import Problem
from planner.procurement import procure as module
from planner.procurement import what_if
from planner.procurement.answer import Procured
from planner.procurement.check import check_file
from planner.procurement.procure import break_evens, procure
from planner.procurement.search import Fleets
from planner.search import Search
from planner.solution import Status
from planner.words import percent_words

MACHINES = {"t4": Machine(1.0), "v100-sxm2-16g": Machine(2.7, useful=6), "a10g": Machine(1.9)}
TIMES = MadeUpTimes(machines=MACHINES, work=50_000, serial_s=1234, loss=0.1)


def rows(chosen: float = 1.0, other: float = 1.0) -> list[dict[str, Any]]:
    """Return offers whose prices are changed: that of the one that is chosen at first, and the others'."""
    return [
        row("small", usd_per_h=0.7 * chosen),
        row("large", device="v100-sxm2-16g", usd_per_h=4.4 * other),
        row("own", device="a10g", term="bought", purchase_usd=40_000 * other, useful_life_years=3, power_w=300),
    ]


BLOCK: dict[str, Any] = {
    "most_devices": 64,
    "deadline": "3 h",
    "terms": ["on-demand", "bought"],
    "run": {"start_up": "5 min"},
}


@pytest.fixture
def stubbed(monkeypatch: MonkeyPatch) -> None:
    purchases.stub(monkeypatch, TIMES, lambda offer: MACHINES[offer.device].rate / TIMES.work)


def answer(folder: Path, given: list[dict[str, Any]], *, block: dict[str, Any] | None = None, **how: Any) -> Procured:
    return purchases.answered(purchases.loaded(purchases.asked(folder / "list.csv", given, **(block or BLOCK))), **how)


@pytest.mark.usefixtures("stubbed")
def test_changes_of_prices_and_deadlines_equal_fresh_questions(tmp_path: Path) -> None:
    found = answer(tmp_path, rows(), has_what_if=True)
    assert [offer.instance for offer in found.choice.fleet.offers] == ["small"]
    asked: dict[str, Procured] = {
        "the chosen machines -20% in price": answer(tmp_path, rows(0.8)),
        "the chosen machines +20% in price": answer(tmp_path, rows(1.2)),
        "all prices -20%": answer(tmp_path, rows(0.8, 0.8)),
        "all prices +20%": answer(tmp_path, rows(1.2, 1.2)),
        "deadline -20%": answer(tmp_path, rows(), block={**BLOCK, "deadline": "2.4 h"}),
        "deadline +20%": answer(tmp_path, rows(), block={**BLOCK, "deadline": "3.6 h"}),
    }
    told = {one.change: one for one in found.what_if}
    assert set(asked) <= set(told)
    for change, fresh in asked.items():
        one = told[change]
        assert one.fleet is not None
        assert one.objective == pytest.approx(fresh.choice.objective)
        assert one.fleet.counts == fresh.choice.fleet.counts
        names = [offer.name for offer in one.fleet.offers]
        assert names == [offer.name for offer in fresh.choice.fleet.offers]
        same = names == [offer.name for offer in found.choice.fleet.offers]
        assert one.changes_decision is not (same and one.fleet.counts == found.choice.fleet.counts)
    assert any(one.changes_decision for one in found.what_if)
    assert not all(one.changes_decision for one in found.what_if)


def test_other_hardware_is_planned_anew(tmp_path: Path) -> None:
    dnn = {**DNN, "epochs": 200}
    as_sold = {"calibration": {"bandwidth_efficiency": 1}}
    question = purchases.asked(tmp_path / "list.csv", rows()[:2], dnn=dnn, deadline="4 h") | as_sold
    found = planner.procure(question, today=purchases.TODAY, has_what_if=True)
    told = {one.change: one for one in found.what_if}
    wide = [row("small", usd_per_h=0.7, network_gbit_per_s=50)]
    wide.append(row("large", device="v100-sxm2-16g", usd_per_h=4.4, network_gbit_per_s=50))
    fresh = planner.procure(
        purchases.asked(tmp_path / "wide.csv", wide, dnn=dnn, deadline="4 h") | as_sold, today=purchases.TODAY
    )
    assert told["networks 2 times as wide"].objective == pytest.approx(fresh.choice.objective)
    assert told["devices +20% in speed"].objective < found.choice.objective < told["devices -20% in speed"].objective


def test_a_wider_network_costs_no_more_than_the_answer_whose_plan_has_cuts_of_its_own(tmp_path: Path) -> None:
    """The answer's layers are moved near the best layouts of all degrees; the search of a change does less."""
    dnn = {"zoo": "llama3-8b", "global_batch": 512, "sequence_length": 8192, "tokens": "1B"}
    one = row("one", device="mi300x", devices=8, usd_per_h=48.0, inside="xgmi-mi300x", network_gbit_per_s=3200)
    question = purchases.asked(tmp_path / "list.csv", [one], dnn=dnn, most_devices=8) | {"families": ["hybrid"]}
    found = planner.procure(question, today=purchases.TODAY, has_what_if=True)
    told = {one.change: one.objective for one in found.what_if}
    assert told["networks 2 times as wide"] <= found.choice.objective * (1 + 1e-9)
    assert told["devices +20% in speed"] < found.choice.objective < told["devices -20% in speed"]


@pytest.mark.usefixtures("stubbed")
def test_what_nothing_beats_in_time_nothing_beats_in_less_time(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    plain = Fleets.best

    def unproven_if_sooner(self: Fleets, *args: Any, **kwargs: Any) -> Any:
        found = plain(self, *args, **kwargs)
        if self.procurement.jobs[0].deadline_s > 20 * 3600:
            return found
        return replace(found, solution=replace(found.solution, bound=0.0, status=Status.FEASIBLE))

    monkeypatch.setattr(Fleets, "best", unproven_if_sooner)
    found = answer(tmp_path, rows(), block={**BLOCK, "deadline": "24 h"}, has_what_if=True)
    told = {one.change: one for one in found.what_if}["deadline -20%"]
    assert found.certificate.status is Status.OPTIMAL
    assert told.objective == pytest.approx(found.choice.objective)
    assert not told.words


@pytest.mark.usefixtures("stubbed")
def test_without_time_higher_prices_cost_no_less_than_is_proven_and_no_gap_of_everything_is_told(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    plain, calls = Fleets.best, list[str]()

    def unproven(self: Fleets, *args: Any, **kwargs: Any) -> Any:
        found = plain(self, *args, **kwargs)
        return replace(found, solution=replace(found.solution, bound=0.0, status=Status.FEASIBLE)) if calls else found

    def what_ifs(*args: Any) -> Any:
        calls.append("what if")
        return asked(*args)

    asked = what_if.what_ifs
    monkeypatch.setattr(Fleets, "best", unproven)
    monkeypatch.setattr(module, "what_ifs", what_ifs)
    found = answer(tmp_path, rows(), has_what_if=True)
    told = {one.change: one for one in found.what_if}
    assert found.certificate.status is Status.OPTIMAL
    for change in ("the chosen machines +20% in price", "all prices +20%"):
        gap = 1 - found.choice.objective / told[change].objective
        assert told[change].words == f"not proven: gap {percent_words(gap)}"
    assert told["all prices -20%"].words == told["deadline +20%"].words == "not proven"


@pytest.mark.usefixtures("stubbed")
def test_robust_is_planning_with_longer_training(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    found = answer(tmp_path, rows(), block={**BLOCK, "error": 0.3}, is_robust=True)
    longer = MadeUpTimes(machines=MACHINES, work=50_000 * 1.3, serial_s=1234 * 1.3, loss=0.1)
    purchases.stub(monkeypatch, longer, lambda offer: MACHINES[offer.device].rate / longer.work)
    fresh = answer(tmp_path, rows())
    assert found.choice.objective == pytest.approx(fresh.choice.objective)
    assert found.choice.fleet.counts == fresh.choice.fleet.counts
    assert found.choice.run_s["training"] == pytest.approx(fresh.choice.run_s["training"])
    assert any("30 % longer" in one for one in found.assumptions)


def test_robust_takes_the_pessimistic_end_of_each_device_s_band(tmp_path: Path) -> None:
    """Eager steps in short numbers were measured on an RTX 3090: another device has the wider band."""
    found = {}
    for device in ("rtx-3090", "l4"):
        dnn = {"zoo": "resnet50", "dtype": "fp16", "global_batch": 64, "dataset_samples": 100_000, "epochs": 1}
        question = purchases.asked(tmp_path / f"{device}.csv", [row("one", device=device, usd_per_h=1.0)], dnn=dnn)
        usual, slow = (planner.procure(question, today=purchases.TODAY, is_robust=robust) for robust in (False, True))
        band = seconds_band("fp16", is_compiled=False, device=device)
        (training_s,), (slow_s,) = usual.choice.training_s.values(), slow.choice.training_s.values()
        assert slow_s / training_s == pytest.approx(1 + band.high, rel=0.02)
        assert band.is_device_measured == (device == "rtx-3090")
        assert any("was measured there" in one or "were measured there" in one for one in usual.warnings) == (
            device == "l4"
        )
        found[device] = band.high
    assert found["l4"] > found["rtx-3090"]


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize(
    "run", [{}, {"start_up": "10 min", "evaluation": "7 min"}, {"mean_time_between_failures": "90 h"}]
)
def test_at_the_margin_the_deadline_just_holds(tmp_path: Path, run: dict[str, Any]) -> None:
    block: dict[str, Any] = {**BLOCK, "deadline": "4 h", "run": run}
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", rows(), **block))
    found = purchases.answered(procurement)
    assert found.margin is not None and found.margin >= 0
    training_s = found.choice.training_s["training"]
    at, beyond = (
        purchases.bill_of(procurement, found.choice.fleet, training_s, 1 + found.margin + more).time_s
        for more in (-1e-9, 1e-6)
    )
    assert at <= 4 * 3600 < beyond
    assert at == pytest.approx(4 * 3600)


@pytest.mark.usefixtures("stubbed")
def test_without_a_deadline_there_is_no_margin(tmp_path: Path) -> None:
    assert answer(tmp_path, rows(), block={"terms": ["on-demand", "bought"]}).margin is None


@pytest.mark.parametrize("deadline", ["1e6 h", "1e9 h", "1e20 h"])
def test_a_margin_has_no_end_but_the_deadlines_own(tmp_path: Path, deadline: str) -> None:
    question = purchases.asked(tmp_path / "list.csv", rows(), **{**BLOCK, "deadline": deadline})
    found = planner.procure(question, today=purchases.TODAY)
    assert found.margin is not None
    longest_s = sum(found.choice.run_s.values()) + found.margin * found.choice.training_s["training"]
    assert longest_s == pytest.approx(float(deadline.removesuffix(" h")) * 3600)
    file = tmp_path / "answer.json"
    file.write_text(dump(found.to_dict()))
    assert check_file(file).faults == ()


@pytest.mark.parametrize("hosting", [0, 150])
def test_the_break_even_is_where_the_table_crosses(tmp_path: Path, hosting: int) -> None:
    pair = [
        row("rented", usd_per_h=2.0),
        row("own", term="bought", purchase_usd=10_000, useful_life_years=4, hosting_usd_per_month=hosting, power_w=400),
    ]
    block: dict[str, Any] = {"terms": ["on-demand", "bought"], "electricity": {"usd_per_kwh": 0.2, "pue": 1.2}}
    procurement = purchases.loaded(purchases.asked(tmp_path / "pair.csv", pair, **block))
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, TIMES, lambda offer: 1 / 50_000)
        found = purchases.answered(procurement)
        assert break_evens(Fleets(procurement=procurement), found.choice) == found.break_even
    (one,) = found.break_even
    fixed = 10_000 / 48 + hosting  # four years have 48 months
    running = 0.4 * 1.2 * 0.2
    assert one.hours_per_month is not None
    assert one.hours_per_month == pytest.approx(fixed / (2.0 - running))
    for hours, rent, buy in one.rows:
        assert [rent, buy] == pytest.approx([2.0 * hours, fixed + running * hours])
        assert (buy <= rent) is (hours >= one.hours_per_month)


def test_a_machine_that_is_never_worth_buying_says_so(tmp_path: Path) -> None:
    pair = [
        row("rented", usd_per_h=0.1),
        row("own", term="bought", purchase_usd=10_000, useful_life_years=4, power_w=400),
    ]
    procurement = purchases.loaded(purchases.asked(tmp_path / "pair.csv", pair, terms=["on-demand", "bought"]))
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, TIMES, lambda offer: 1 / 50_000)
        (one,) = purchases.answered(procurement).break_even
    assert one.hours_per_month is None
    assert all(rent < buy for _, rent, buy in one.rows)


def test_no_change_is_reckoned_with_a_worse_plan_of_the_chosen_fleet_than_the_answer(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """The search broke off early; `planner plan` then finds a plan that takes half the time."""
    slow = {name: Machine(one.rate / 2, useful=one.useful) for name, one in MACHINES.items()}
    times = MadeUpTimes(machines=slow, work=50_000)
    purchases.stub(monkeypatch, times, lambda offer: MACHINES[offer.device].rate / TIMES.work, slack=0.5)
    asked = purchases.loaded(
        purchases.asked(tmp_path / "list.csv", rows(), **{**BLOCK, "deadline": "30 h", "machines": {"at_most": 4}})
    )
    monkeypatch.setattr(what_if, "_learn_plans_of", lambda *_: None)  # the made-up plans cannot be predicted
    plans: list[float] = []

    def planned(problem: Problem, before: Plan | None) -> Any:
        (group,) = problem.cluster.machine_groups
        plans.append(25_000 / (slow[group.device.name].rate * group.count))
        return SimpleNamespace(
            objective=plans[-1],
            bound=0.0,
            family="all_reduce",
            configuration=SimpleNamespace(to_document=dict),
            prediction=SimpleNamespace(relative_error=None, iteration_time_s=1.0, breakdown_s={"compute": 1.0}),
            cautions=(),
            warnings=(),
        )

    found = procure(asked, Search(), planned, has_what_if=True)
    assert plans
    told = {one.change: one for one in found.what_if}
    for change in ("the chosen machines -20% in price", "all prices -20%", "deadline +20%"):
        assert told[change].objective <= found.choice.objective * (1 + 1e-8), change
    assert not any(
        one.fleet is not None and one.objective > found.choice.objective * 1.2001 for one in found.what_if[:4]
    )
