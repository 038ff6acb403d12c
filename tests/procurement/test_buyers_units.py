"""A purchase in its buyer's units, and over the whole life of its machines."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from purchases import DNN, TODAY, loaded, row

import planner
from planner import zoo
from planner.cli.run import run
from planner.errors import InfeasibleError, SpecError
from planner.models.failures import LLAMA3_DEVICE_S
from planner.models.money import MachinePrices, Rates, cost_parts
from planner.procurement.answer import Procured
from planner.procurement.check import checked_procurement
from planner.procurement.fleet import Account
from planner.procurement.prices import in_force, read_price_list
from planner.procurement.question import load_procurement

H, D, YEAR = 3600.0, 86400.0, 8760 * 3600.0
BOUGHT = {"term": "bought", "purchase_usd": 8760, "useful_life_years": 1}


def list_of(folder: Path, *rows: dict[str, Any], name: str = "p.csv") -> str:
    """Return a price list with all columns that its rows have."""
    columns = list(dict.fromkeys(column for one in rows for column in one))
    lines = [",".join(columns), *(",".join(str(one.get(column, "")) for column in columns) for one in rows)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def question(folder: Path, *rows: dict[str, Any], dnn: dict[str, Any] | None = None, **block: Any) -> dict[str, Any]:
    return {"dnn": dnn or DNN, "procure": {"prices": list_of(folder, *rows), **block}, "families": ["all_reduce"]}


def procured(*given: Any, **block: Any) -> Procured:
    found = planner.procure(question(*given, **block), today=TODAY, time_limit_s=30, num_alternatives=0)
    report = checked_procurement(json.loads(json.dumps(found.to_dict())), Path("answer.json"))
    assert report.is_ok, [str(fault) for fault in report.faults]
    return found


# --- How long a training is


def test_tokens_are_whole_samples_of_the_sequence_length() -> None:
    plan = planner.load(
        {
            "dnn": {"zoo": "gpt3-13b", "sequence_length": 1000, "tokens": "2.5M", "global_batch": 8},
            "cluster": {"machines": [{"count": 1, "device": "a100", "devices": 1}]},
        }
    )
    assert (plan.training.dataset_samples, plan.training.epochs) == (2500, 1.0)
    assert plan.goal.name == "training_time"


def test_tokens_of_a_data_set_that_is_known_are_as_many_epochs() -> None:
    dnn = {"zoo": "gpt3-13b", "sequence_length": 1000, "tokens": "2.5M", "dataset_samples": 1000, "global_batch": 8}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": [{"count": 1, "device": "a100", "devices": 1}]}})
    assert problem.training.epochs == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("dnn", "words"),
    [
        ({"tokens": "2T"}, "reads no tokens"),
        ({"tokens": "2X"}, "no number of tokens"),
        ({"samples": "0"}, "too small"),
        ({"samples": "1.5"}, "not a whole number"),
        ({"samples": "9" * 15 + "T"}, "too large"),
        ({"samples": 100, "epochs": 2}, "both say how long"),
    ],
)
def test_lengths_that_mean_nothing_are_refused(dnn: dict[str, Any], words: str) -> None:
    machines = {"machines": [{"count": 1, "device": "a100", "devices": 1}]}
    with pytest.raises(SpecError, match=words):
        planner.load({"dnn": {"zoo": "alexnet", "global_batch": 8, **dnn}, "cluster": machines})


def test_samples_are_the_training_of_so_many(tmp_path: Path) -> None:
    dnn = {"zoo": "alexnet", "global_batch": 256}
    by_samples = procured(tmp_path, row("a", most=1), dnn={**dnn, "samples": "200k"}, machines=1)
    by_epochs = procured(tmp_path, row("a", most=1), dnn={**dnn, "epochs": 2, "dataset_samples": 100_000}, machines=1)
    assert by_samples.choice.total_wall_s == pytest.approx(by_epochs.choice.total_wall_s)


# --- Money


@pytest.mark.parametrize("rate", ["5 USD/h", "120 USD/day", "3650 USD/month", "43800 USD/year"])
def test_a_budget_for_a_time_limits_what_is_paid_while_the_machines_run(tmp_path: Path, rate: str) -> None:
    found = procured(tmp_path, row("a", usd_per_h=1), objective="time", budget=rate, most_devices=16)
    assert found.choice.fleet.num_machines <= 5
    more = procured(tmp_path, row("a", usd_per_h=1), objective="time", budget="1 USD/h", most_devices=16)
    assert more.choice.fleet.num_machines == 1


def test_a_purchase_is_no_part_of_what_is_paid_for_a_time(tmp_path: Path) -> None:
    machine = row("a", **BOUGHT, hosting_usd_per_month=730, power_w=1000)
    account = Account(loaded(question(tmp_path, machine, terms=["bought"], electricity={"usd_per_kwh": 0.5})), ())
    account = replace(account, offers=account.procurement.offers)
    assert account.spending_usd_per_s(np.array([[2.0]]))[0] * H == pytest.approx(2 * (1 + 0.5))


def test_budgets_in_all_and_for_a_time_stand_side_by_side(tmp_path: Path) -> None:
    both = loaded(question(tmp_path, row("a"), budget=["100 EUR", "24 EUR/day"], rates={"eur": 1.1})).asked
    assert both.budget == pytest.approx(110)
    assert both.budget_rate == pytest.approx(1.1 / H)


def test_a_budget_for_a_time_is_told_in_its_own_unit(tmp_path: Path) -> None:
    block = {"budget": ["99 USD", "24 kEUR/year"], "rates": {"eur": 1.1}, "objective": "time", "most_devices": 4}
    found = procured(tmp_path, row("a", usd_per_h=1), **block)
    assert "the budget rate holds: 17,520.00 USD/year of 26,400.00 USD/year" in found.explanation
    assert "1 EUR is 1.1 USD (procure.rates)" in found.assumptions


def test_what_interruptions_without_checkpoints_mean_is_told(tmp_path: Path) -> None:
    spot = row("a", term="spot", interruptions_per_h=0.1)
    found = procured(tmp_path, spot, terms=["spot"])
    assert any(line.startswith("no checkpoints: training begins anew") for line in found.assumptions)
    with pytest.raises(InfeasibleError, match="training begins anew after every failure"):
        procured(tmp_path, spot, terms=["spot"], deadline="1 s")
    kept = procured(tmp_path, spot, terms=["spot"], run={"checkpoint": "1 s"})
    assert not any("begins anew" in line for line in kept.assumptions)


def test_why_nothing_is_bought_is_said_where_no_machine_is_within_the_money(tmp_path: Path) -> None:
    rows = row("a"), row("b", **BOUGHT), row("c", **{**BOUGHT, "purchase_usd": 9000})
    for block, words in (
        ({"budget": "8000 USD"}, "no machine to buy is within the budget: the cheapest, b, costs 8,760.00 USD"),
        ({"capital": "1 USD"}, "no machine to buy is within the capital: the cheapest, b, costs 8,760.00 USD"),
    ):
        asked = {**block, "terms": ["on-demand", "bought"], "objective": "cost"}
        assert words in procured(tmp_path, *rows, **asked).explanation
        rented = procured(tmp_path, *rows, **{**asked, "terms": ["on-demand"]})
        assert "to buy" not in " ".join(rented.explanation)
    ample = procured(tmp_path, *rows, terms=["on-demand", "bought"], budget="9000 USD", objective="cost")
    assert "no machine to buy" not in " ".join(ample.explanation)


def test_commas_within_an_amount_part_no_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["procure", "--dnn", "resnet50", "--global-batch", "8", "--epochs", "1"]
    assert run([*flags, "--budget", "2,000,000 USD"]) == 2
    assert "'2,000,000 USD' is not an amount of money" in capsys.readouterr().err
    assert run([*flags, "--budget", "50 USD, 5 XYZ/day", "--rate", "EUR=1.08USD"]) == 2
    assert "no rate of XYZ is given; rates holds EUR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"budget": "100 EUR"}, "no rate of EUR"),
        ({"budget": ["1 USD", "2 USD"]}, "two budgets"),
        ({"budget": []}, "no budget"),
        ({"budget": 5}, "no unit"),
        ({"deadline": "0 h"}, "kept by no training"),
        ({"budget": "5 USD/fortnight"}, "fortnight"),
        ({"rates": {"EURO": 1}}, "no code"),
        ({"rates": {"USD": 2}}, "no code"),
        ({"as_of": "yesterday"}, "no day"),
        (
            {"carbon_intensity": "400"},
            r"^procure.carbon_intensity: .400. is no carbon intensity. Write e.g. .400 g/kWh..$",
        ),
        ({"carbon_intensity": {"eu-*": "400"}}, "no carbon intensity"),
        ({"racks": {"power": "0 W"}}, "feeds no machine"),
        ({"utilisation": 0}, "more than 0.0"),
        ({"run": {"checkpoint": "1 min", "storage_rate": "1 GB/s"}}, "Give one of them"),
        ({"run": {"checkpoint_size": "1 GB"}}, "needs storage_rate"),
        ({"run": {"mean_time_between_failures_of_device": "gpt5"}}, "llama3"),
        ({"run": {"mean_time_between_interruptions": {"*": "0 s"}}}, "is 0"),
    ],
)
def test_units_that_mean_nothing_are_refused(tmp_path: Path, block: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        loaded(question(tmp_path, row("a"), **block))


def test_a_price_list_in_another_currency_is_read_at_its_rate(tmp_path: Path) -> None:
    path = Path(list_of(tmp_path, row("a", usd_per_h=2, currency="EUR")))
    (offer,) = read_price_list(path, today=TODAY, rates={"EUR": 1.1}).offers
    assert offer.usd_per_h == pytest.approx(2.2)
    with pytest.raises(SpecError, match="Give its rate"):
        read_price_list(path, today=TODAY)


# --- Prices of a day


def test_prices_more_than_a_year_older_than_the_newest_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [row("new", date="2026-11-01"), row("old", date="2025-10-31"), row("edge", date="2025-11-01")]
    found = loaded(question(tmp_path, *rows))
    assert {offer.instance for offer in found.offers} == {"new", "edge"}
    assert any("more than a year before" in why and number == 1 for why, number in found.left_out.items())
    assert {one.instance for one in loaded(question(tmp_path, *rows, as_of="any")).offers} == {"new", "edge", "old"}
    assert {one.instance for one in loaded(question(tmp_path, *rows, as_of="2025-10-31")).offers} == {"old"}


def test_a_purchase_is_held_against_the_newest_purchase(tmp_path: Path) -> None:
    rows = [row("rent"), row("buy", **BOUGHT, date="2024-08-01"), row("older", **BOUGHT, date="2020-01-01")]
    kept = in_force(read_price_list(Path(list_of(tmp_path, *rows))))
    assert {offer.instance for offer in kept.offers} == {"rent", "buy"}


def test_the_same_list_gives_the_same_offers_on_any_day(tmp_path: Path) -> None:
    asked_for = question(tmp_path, row("new", date="2026-11-01"), row("old", date="2025-12-01"))
    on = [load_procurement(asked_for, today=day) for day in (TODAY, date(2031, 1, 1))]
    assert on[0].offers == on[1].offers


# --- Time until machines are there, racks, CO2


def test_delivery_is_part_of_the_time_and_misses_a_deadline_but_costs_nothing(tmp_path: Path) -> None:
    rows = [row("slow", usd_per_h=0.5, lead_time_days=10), row("there", usd_per_h=1)]
    late = procured(tmp_path, *rows, most_devices=4)
    assert late.choice.fleet.offers[0].instance == "slow"
    assert late.choice.run_s["delivery"] == pytest.approx(10 * D)
    assert late.choice.cost_usd < late.choice.total_wall_s / H * 0.5
    soon = procured(tmp_path, *rows, deadline="5 d", most_devices=4)
    assert soon.choice.fleet.offers[0].instance == "there"


def test_racks_hold_what_their_power_feeds(tmp_path: Path) -> None:
    machine = row("a", **BOUGHT, power_w=3000)
    block = {"terms": ["bought"], "objective": "time", "most_devices": 16}
    found = procured(tmp_path, machine, **block, racks={"power": "10 kW", "number": 2})
    assert found.choice.fleet.num_machines <= 6  # three in one rack
    with pytest.raises(InfeasibleError, match="more than a rack feeds"):
        procured(tmp_path, machine, **block, racks={"power": "2 kW"})


def test_carbon_is_energy_times_its_intensity_in_the_region(tmp_path: Path) -> None:
    machine = row("a", power_w=1000)
    found = procured(tmp_path, machine, carbon_intensity={"west": "1 g/kWh", "ea*": "400 g/kWh"}, machines=1)
    assert found.choice.energy_j is not None and found.choice.carbon_g is not None
    assert found.choice.carbon_g == pytest.approx(found.choice.energy_j / 3.6e6 * 400)


# --- The whole life of machines


def test_what_a_machine_is_sold_for_does_not_wear_off() -> None:
    prices = MachinePrices(is_bought=True, purchase_usd=1000, resale_usd=400, useful_life_s=YEAR)
    assert cost_parts([1], prices, YEAR / 2, Rates())["capital"] == pytest.approx(300)


def test_a_run_pays_for_its_share_of_what_bought_machines_idle(tmp_path: Path) -> None:
    machine = row("a", **BOUGHT, hosting_usd_per_month=100)
    whole, half = (procured(tmp_path, machine, terms=["bought"], machines=1, utilisation=u) for u in (1.0, 0.5))
    assert half.choice.money_usd["capital"] == pytest.approx(2 * whole.choice.money_usd["capital"])
    assert half.choice.money_usd["hosting"] == pytest.approx(2 * whole.choice.money_usd["hosting"])


def test_commitments_of_one_and_three_years_are_offers_side_by_side(tmp_path: Path) -> None:
    reserved = [
        {"discount": 0.3, "commitment": "8760 h"},
        {"discount": 0.5, "commitment": "26280 h", "upfront": 0.5},
    ]
    offers = {
        one.name: one for one in loaded(question(tmp_path, row("a"), terms=["reserved"], reserved=reserved)).offers
    }
    assert set(offers) == {"acme/a/east/reserved/8760 h", "acme/a/east/reserved/26280 h"}
    assert offers["acme/a/east/reserved/26280 h"].upfront_usd == pytest.approx(0.5 * 26280 * 0.5)


def test_failures_grow_with_devices_as_published_of_llama_3(tmp_path: Path) -> None:
    assert pytest.approx(50_677, rel=1e-3) == LLAMA3_DEVICE_S / H
    run_block = {"mean_time_between_failures_of_device": "llama3"}
    machine = row("a", devices=8, inside="pcie-3-x16")
    account = Account(loaded(question(tmp_path, machine, run=run_block)), ())
    account = replace(account, offers=account.procurement.offers)
    in_54_days = account.failures_per_h[0] * 2048 * 54 * 24
    assert in_54_days == pytest.approx(419)


def test_spot_machines_are_taken_away_as_often_as_their_kind_is(tmp_path: Path) -> None:
    rows = [row(name, term="spot", interruptions_per_h=0.5) for name in ("a1", "b1", "c1")]
    between = {"a1": "8 h", "b*": "20 h"}
    offers = loaded(question(tmp_path, *rows, terms=["spot"], run={"mean_time_between_interruptions": between})).offers
    assert {one.instance: one.interruptions_per_h for one in offers} == pytest.approx(
        {"a1": 0.125, "b1": 0.05, "c1": 0.5}
    )


def test_a_checkpoint_takes_its_bytes_over_the_rate_of_storage(tmp_path: Path) -> None:
    run_block = {"storage_rate": "1 GB/s", "mean_time_between_failures": "10 h"}
    found = loaded(question(tmp_path, row("a"), run=run_block))
    size = found.asked.run.checkpoint_size
    assert size == 14 * zoo.build("alexnet").num_trainable
    assert found.asked.run.checkpoint_s == pytest.approx(size / 1e9)
    procured(tmp_path, row("a"), run=run_block, machines=1)


def test_flags_ask_in_the_buyers_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = list_of(tmp_path, row("a", power_w=500))
    flags = ["--dnn", "alexnet", "--global-batch", "256", "--samples", "100k", "--prices", prices, "--top", "0"]
    flags += ["--budget", "500 EUR,200 EUR/day", "--rate", "EUR=1.1USD", "--carbon-intensity", "300 g/kWh"]
    assert run(["procure", *flags, "--families", "all_reduce", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["problem"]["procure"]["budget"] == ["500 EUR", "200 EUR/day"]
    assert document["choice"]["carbon_g"] > 0
