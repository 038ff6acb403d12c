"""The text and the document of an answer: what they say is what was found, and sums add up."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import purchases
import pytest
from answers import procured_text
from purchases import DNN, Machine, MadeUpTimes, row
from pytest import CaptureFixture, MonkeyPatch

import planner
from planner import planning
from planner.cli.run import run
from planner.errors import NoAnswerError
from planner.plan import Plan
from planner.procurement.answer import ParetoSet, Procured
from planner.procurement.check import checked_procurement
from planner.search import Search
from planner.solution import Status
from planner.words import usd_words

ROWS = [
    row("small", usd_per_h=0.5, power_w=120),
    row("large", device="v100-sxm2-16g", usd_per_h=3, network_gbit_per_s=100, power_w=400),
    row("own", device="l40s", term="bought", purchase_usd=9000, useful_life_years=4, power_w=500),
    row("rented", device="l40s", usd_per_h=1.9, power_w=500),
]
BLOCK: dict[str, Any] = {
    "deadline": "200 h",
    "budget": "20000 USD",
    "terms": ["on-demand", "bought"],
    "electricity": {"usd_per_kwh": 0.2, "pue": 1.3},
    "storage": {"size": "200 GB", "usd_per_gb_month": 0.1},
    "run": {"start_up": "5 min", "mean_time_between_failures": "1000 h", "checkpoint": "20 s", "restart": "5 min"},
}


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Procured:
    path = tmp_path_factory.mktemp("report") / "list.csv"
    question = purchases.asked(path, ROWS, dnn={**DNN, "epochs": 900}, **BLOCK)
    return planner.procure(question, today=purchases.TODAY, has_pareto=True, has_what_if=True)


def choices(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [document["choice"], *document["alternatives"], *document["pareto"]["points"]]


def test_every_choice_sums_up(answer: Procured) -> None:
    document = json.loads(json.dumps(answer.to_dict()))
    for one in choices(document):
        assert sum(one["breakdown_usd"].values()) == pytest.approx(one["cost_usd"])
        assert sum(one["breakdown_s"].values()) == pytest.approx(one["wall_time_s"])
        bought = sum(row_["count"] * row_.get("purchase_usd", 0) for row_ in one["fleet"])
        assert one["capital_usd"] == pytest.approx(bought)
        assert one["spent_usd"] == pytest.approx(one["cost_usd"] - one["breakdown_usd"]["capital"] + bought)
        assert one["energy_j"] == pytest.approx(one["power_w"] * one["wall_time_s"])
    assert document["objective"]["value"] == pytest.approx(document["choice"]["cost_usd"])
    assert document["objective"]["bound"] <= document["objective"]["value"]


def test_a_fleet_that_costs_the_same_and_is_done_sooner_is_the_answer(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Whole hours are billed: two machines for 10 hours cost what one does for 20, and were planned on the way."""
    rows = [row("a", billing_s=3600), row("b", device="v100-sxm2-16g", usd_per_h=9)]
    made = MadeUpTimes({"t4": Machine(rate=1), "v100-sxm2-16g": Machine(rate=1)}, work=20 * 3600.0)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)
    asked = purchases.asked(tmp_path / "l.csv", rows, machines={"at_most": 2})
    found = purchases.answered(purchases.loaded(asked), search=Search(num_alternatives=3))
    assert (found.choice.fleet.counts, found.choice.cost_usd) == ((2,), 20)
    assert found.certificate.status is Status.OPTIMAL


def test_what_is_proven_of_a_fleet_that_takes_the_place_of_an_equal_one_is_in_its_own_unit(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """By the hour a minute costs less than with a commitment, and takes as much energy; its bound was of seconds."""
    made = MadeUpTimes({"t4": Machine(rate=1)}, work=60.0)
    purchases.stub(monkeypatch, made, lambda offer: 1 / made.work)
    reserved = {"commitment": "2 h", "discount": 0.4}
    asked = purchases.asked(tmp_path / "l.csv", [row("a", power_w=100)], objective="energy", reserved=reserved)
    asked["procure"] |= {"terms": ["on-demand", "reserved"], "machines": {"at_most": 2}}
    found = purchases.answered(purchases.loaded(asked), search=Search(num_alternatives=3))
    assert found.choice.cost_usd < 1
    assert found.certificate.status is Status.OPTIMAL
    assert found.certificate.bound == found.choice.objective


def test_machines_of_one_name_are_told_apart_by_where_they_come_from(tmp_path: Path) -> None:
    rows = [row("a", usd_per_h=1), row("a", region="west", device="v100-sxm2-16g", usd_per_h=4)]
    text = procured_text(planner.procure(purchases.asked(tmp_path / "l.csv", rows), today=purchases.TODAY))
    (line,) = (line for line in text.splitlines() if line.startswith("  next best"))
    assert " x a from acme " in line and (" from acme east" in line) is not (" from acme west" in line)


def test_a_price_of_all_regions_comes_from_its_provider(answer: Procured) -> None:
    (offer,) = answer.choice.fleet.offers
    assert replace(offer, provider="lambda", region="all").seller == "lambda"
    assert replace(offer, provider="aws", region="us-east-1").seller == "aws us-east-1"
    assert offer.seller in procured_text(answer)


def test_a_plan_that_no_time_was_left_to_make_once_more_passes_its_check(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    def late(*_: object) -> Plan:
        raise NoAnswerError("out of time")

    monkeypatch.setattr(planning, "planned", late)
    question = purchases.asked(tmp_path / "l.csv", [row("a", device="v100-sxm2-16g")])
    found = planner.procure(question, today=purchases.TODAY, num_alternatives=0)
    assert checked_procurement(json.loads(json.dumps(found.to_dict())), Path("a.json")).is_ok


def test_the_worst_of_a_robust_answer_is_no_better_than_what_is_told_first(tmp_path: Path) -> None:
    machine = row("h100", device="h100-sxm", devices=8, inside="nvlink-4", usd_per_h=30, network_gbit_per_s=3200)
    dnn = {"zoo": "llama3.2-1b", "global_batch": 64, "tokens": "2B"}
    question = purchases.asked(tmp_path / "l.csv", [machine], dnn=dnn, most_devices=8) | {"families": ["hybrid"]}
    found = planner.procure(question, today=purchases.TODAY, is_robust=True)
    assert found.stretch > 1
    assert found.risk is not None
    assert found.risk.wall_s >= found.choice.total_wall_s * (1 - 1e-9)
    assert " longer than predicted\n" in procured_text(found)
    assert checked_procurement(json.loads(json.dumps(found.to_dict())), Path("a.json")).is_ok


def test_the_text_names_fleet_proof_sums_and_limits(answer: Procured) -> None:
    text, choice = procured_text(answer), answer.choice
    assert choice.fleet.headline in text.splitlines()[0]
    assert f"{choice.cost_usd:,.2f} USD" in text
    for words in (
        "Proven",
        "Where the money goes",
        "Where the time goes",
        "What if",
        "Search space",
        "Prices",
        "deadline",
    ):
        assert words in text
    for part, value in choice.money_usd.items():
        if value > 0.01 * choice.cost_usd and part not in ("capital",):
            assert part in text


@pytest.mark.parametrize(
    ("points", "gap", "words"),
    [
        (0, inf, "Time against money: none was found in time"),
        (1, 160.255, "1 fleet, not proven; what was left may be up to 161 times better in both"),
        (1, 0.25, "what was left may be better by 25 % in both at most"),
        (1, inf, "how much better what was left may be is not known"),
    ],
)
def test_a_trade_off_that_was_not_finished_says_what_is_known(
    answer: Procured, points: int, gap: float, words: str
) -> None:
    assert answer.pareto is not None
    cut = ParetoSet(points=answer.pareto.points[:points], status=Status.FEASIBLE, gap=gap)
    assert words in procured_text(replace(answer, pareto=cut))


def test_numbers_of_one_are_told_as_one_and_what_was_varied_is_named(tmp_path: Path, answer: Procured) -> None:
    assert "What if (fleets of up to 1 type)" in procured_text(answer)
    question = purchases.asked(tmp_path / "one.csv", ROWS[:1], machines={"exactly": 1})
    text = procured_text(planner.procure(question, today=purchases.TODAY))
    for words in ("or later, 1 offer (0 rows unusable)", "1 set of offers, 1 fleet planned"):
        assert words in text


def test_a_question_can_be_asked_again_from_its_answer(answer: Procured) -> None:
    document = json.loads(json.dumps(answer.to_dict()))
    again = planner.procure(document, today=purchases.TODAY)
    assert again.choice.fleet.counts == answer.choice.fleet.counts
    assert again.choice.objective == pytest.approx(answer.choice.objective)


def test_alternatives_are_of_other_devices_and_no_better(answer: Procured) -> None:
    devices = {offer.device for offer in answer.choice.fleet.offers}
    assert answer.alternatives
    for choice, _ in answer.alternatives:
        assert devices.isdisjoint(offer.device for offer in choice.fleet.offers)
        assert choice.objective >= answer.choice.objective
        assert choice.total_wall_s <= 200 * 3600


def test_an_old_price_is_told(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    question = purchases.asked(tmp_path / "old.csv", [row("small", date="2025-01-02")])
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(question))
    assert run(["procure", str(spec)]) == 0
    assert "a price is of 2025-01-02" in capsys.readouterr().out


def test_the_assumptions_that_change_a_purchase_stand_before_where_its_time_goes(answer: Procured) -> None:
    lines = procured_text(answer).splitlines()
    begin = lines.index("Assumptions") + 1
    told = lines[begin : lines.index("", begin)]
    assert begin < lines.index("Where the time goes")
    assert told
    assert [line.strip() for line in told] == answer.to_dict()["assumptions"][: len(told)]


def rows(answer: Procured) -> dict[str, str]:
    """Return the first screen: each figure by its name."""
    lines = procured_text(answer).splitlines()
    first = lines[: lines.index("Assumptions")]
    return {line[2:17].strip(): line[17:] for line in first if line.startswith("  ")}


def test_the_first_screen_has_money_time_margin_risk_and_the_next_best(answer: Procured) -> None:
    told, choice = rows(answer), answer.choice
    assert {"to pay", "cost", "time", "margin", "risk", "next best"} <= told.keys()
    assert usd_words(choice.capital_usd) in told["to pay"]
    assert usd_words(choice.capital_usd - choice.money_usd["capital"]) in told["cost"]
    assert "before the deadline of 8.33 d" in told["time"]
    assert answer.alternatives[0][0].fleet.headline in told["next best"]
    (break_even,) = answer.break_even
    assert break_even.hours_per_month is not None
    assert f"{break_even.hours_per_month:,.0f} h a month or more" in told["worth it"]
    assert break_even.rented in told["worth it"]


def test_the_risk_is_the_fleet_at_the_end_of_its_error(tmp_path: Path) -> None:
    question = purchases.asked(tmp_path / "list.csv", ROWS, error=0.25, **BLOCK)
    found = planner.procure(question, today=purchases.TODAY)
    risk, choice = found.risk, found.choice
    assert risk is not None
    assert risk.training_s == pytest.approx({name: 1.25 * one for name, one in choice.training_s.items()})
    robust = planner.procure(question, today=purchases.TODAY, is_robust=True)
    assert robust.choice.fleet == choice.fleet
    assert risk.wall_s == pytest.approx(robust.choice.total_wall_s)
    assert risk.cost_usd == pytest.approx(robust.choice.cost_usd)
    assert risk.wall_s > choice.total_wall_s


def test_a_limit_that_the_pessimistic_end_misses_is_named(tmp_path: Path) -> None:
    loose: dict[str, Any] = {**BLOCK, "error": 0.25}
    choice = planner.procure(purchases.asked(tmp_path / "a.csv", ROWS, **loose), today=purchases.TODAY).choice
    tight: dict[str, Any] = {**loose, "deadline": f"{1.01 * choice.total_wall_s} s"}
    found = planner.procure(purchases.asked(tmp_path / "b.csv", ROWS, **tight), today=purchases.TODAY)
    assert found.risk is not None
    assert [one for one in found.risk.missed if one.startswith("deadline")]
    assert "misses the deadline" in rows(found)["at worst"]


def test_the_terms_of_training_add_up_to_its_time(answer: Procured) -> None:
    parts = answer.choice.training_parts_s
    assert len(parts) > 1
    assert sum(parts.values()) == pytest.approx(answer.choice.run_s["training"])
