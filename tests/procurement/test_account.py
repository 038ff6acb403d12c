"""Every part of a fleet's time and cost against plain sums."""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import purchases
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from purchases import row
from purchases_drawn import blocks, rows

import planner
from planner.answer.documents import dump
from planner.procurement.check import check_file
from planner.procurement.fleet import CRITERIA, Account, Fleet


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows(), blocks(), st.lists(st.integers(0, 3), min_size=10, max_size=10), st.floats(1, 1e6), st.floats(1, 1.5))
def test_parts_and_sums_are_those_of_a_bill_written_by_hand(
    tmp_path_factory: pytest.TempPathFactory,
    given_rows: list[dict[str, Any]],
    block: dict[str, Any],
    counts: list[int],
    training_s: float,
    stretch: float,
) -> None:
    block = {key: value for key, value in block.items() if key != "quotas"}
    path = tmp_path_factory.getbasetemp() / "account.csv"
    procurement = purchases.loaded(purchases.asked(path, given_rows, **block))
    offers = procurement.offers
    account = Account(procurement, offers, stretch=stretch)
    number = np.array(counts[: len(offers)], dtype=float)[:, None]
    run = account.run(number, np.array([training_s]))
    parts = account.money(number, run.wall_s)
    criteria = account.criteria(number, np.array([training_s]))
    fleet = Fleet(offers=offers, counts=tuple(counts[: len(offers)]))
    bill = purchases.bill_of(procurement, fleet, training_s, stretch)
    assert run.wall_s[0] == pytest.approx(bill.time_s)
    if bill.time_s == inf:  # so many failures that it never ends
        assert criteria["cost"][0] == criteria["time"][0] == inf
        return
    assert sum(part[0] for part in run.parts_s.values()) == pytest.approx(bill.time_s)
    assert {name: part[0] for name, part in parts.items()} == pytest.approx(bill.parts_usd)
    expected = {
        "cost": bill.cost_usd,
        "spent": bill.spent_usd,
        "time": bill.time_s,
        "capital": bill.capital_usd,
        "power": bill.power_w,
        "energy": bill.energy_j,
        "machines": sum(fleet.counts),
        "spending": bill.spending_usd_per_s,
        "racks": 0,
    }
    assert {name: criteria[name][0] for name in CRITERIA} == pytest.approx(expected)
    assert criteria["objective"][0] == pytest.approx(bill.objective)


def test_a_limit_on_power_counts_what_cooling_adds(tmp_path: Path) -> None:
    rows_given = [row("m", power_w=500)]
    block: dict[str, Any] = {"objective": "time", "power": "2 kW", "electricity": {"usd_per_kwh": 0.2, "pue": 1.6}}
    found = planner.procure(purchases.asked(tmp_path / "list.csv", rows_given, **block), today=purchases.TODAY)
    assert found.choice.fleet.counts == (2,)  # of 800 W each; without cooling there would be room for 4
    assert found.choice.power_w == pytest.approx(1600)
    file = tmp_path / "answer.json"
    file.write_text(dump(found.to_dict()))
    assert check_file(file).faults == ()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows(), blocks(), st.lists(st.integers(0, 3), min_size=10, max_size=10), st.floats(1, 1e6), st.integers(0, 7))
def test_no_criterion_falls_when_a_count_or_the_time_grows(
    tmp_path_factory: pytest.TempPathFactory,
    given_rows: list[dict[str, Any]],
    block: dict[str, Any],
    counts: list[int],
    training_s: float,
    side: int,
) -> None:
    block = {key: value for key, value in block.items() if key != "quotas"}
    path = tmp_path_factory.getbasetemp() / "account.csv"
    account = Account(procurement := purchases.loaded(purchases.asked(path, given_rows, **block)), procurement.offers)
    number = np.array(counts[: len(procurement.offers)], dtype=float)
    more = number.copy()
    more[side % len(more)] += 1
    found = account.criteria(
        np.stack([number, more, number], axis=1), np.array([training_s, training_s, training_s * 1.5])
    )
    for name in CRITERIA:
        assert (found[name][1:] >= found[name][0] * (1 - 1e-12)).all()


def test_a_second_costs_at_least_what_the_bounds_count_with(tmp_path: Path) -> None:
    given_rows = [
        row("small", billing_s=3600),
        row("own", term="bought", purchase_usd=9000, useful_life_years=3, power_w=500, hosting_usd_per_month=100),
    ]
    question = purchases.asked(
        tmp_path / "list.csv",
        given_rows,
        terms=["on-demand", "bought", "reserved"],
        reserved={"discount": 0.5, "commitment": "1 h"},
        electricity={"usd_per_kwh": 0.3, "pue": 1.5},
    )
    procurement = purchases.loaded(question)
    account = Account(procurement, procurement.offers)
    for wall_s in (1.0, 3599.0, 3601.0, 1e6):
        paid = account.criteria(np.eye(3), np.full(3, wall_s))["cost"]
        assert (paid >= account.usd_per_s() * wall_s * (1 - 1e-12)).all()


def test_work_beyond_floating_point_is_infinite_without_a_warning(tmp_path: Path) -> None:
    own = row("own", term="bought", purchase_usd=9000, useful_life_years=3, power_w=500)
    question = purchases.asked(
        tmp_path / "list.csv",
        [row("small"), own],
        terms=["on-demand", "bought"],
        run={"mean_time_between_failures": "1 h"},
    )
    procurement = purchases.loaded(question)
    found = Account(procurement, procurement.offers).criteria(np.ones((2, 2)), np.array([1e12, np.inf]))
    for name in ("cost", "spent", "time", "energy"):
        assert (found[name] == np.inf).all()
    assert found["capital"].tolist() == [9000, 9000]


def test_a_time_whose_worth_is_beyond_floating_point_costs_without_end(tmp_path: Path) -> None:
    asked = purchases.asked(tmp_path / "list.csv", [row("box")], objective="value_of_time", usd_per_hour_saved=1e6)
    procurement = purchases.loaded(asked)
    account = Account(procurement, procurement.offers)
    assert account.criteria(np.ones((1, 1)), np.array([1e308]))["objective"].tolist() == [inf]
