"""Rent or buy: at which prices a machine's counterpart counts, and what is said of a machine that is used little."""

from pathlib import Path
from typing import Any

import purchases
import pytest
from answers import procured_text
from purchases import row
from pytest import MonkeyPatch

from planner.procurement.answer import BreakEven

WORK = 50_000.0
RENTED = row("rented", usd_per_h=2.0)
OWN = row("own", term="bought", purchase_usd=10_000, useful_life_years=4, power_w=400)
FIXED = 10_000 / 48
POWER: dict[str, Any] = {"electricity": {"usd_per_kwh": 0.2, "pue": 1.2}}


def evens(tmp_path: Path, rows: Any, **block: Any) -> tuple[tuple[BreakEven, ...], str]:
    """Return the break-evens of an answer, and its text."""
    procurement = purchases.loaded(purchases.asked(tmp_path / "list.csv", rows, **block))
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, lambda fleet: WORK / fleet.num_machines, lambda offer: 1 / WORK)
        found = purchases.answered(procurement)
    return found.break_even, procured_text(found)


@pytest.mark.parametrize("terms", [["on-demand"], ["bought"]])
def test_discounts_count_whichever_of_the_two_was_chosen(tmp_path: Path, terms: list[str]) -> None:
    ((one,), _) = evens(tmp_path, [RENTED, OWN], terms=terms, discounts={"acme": 0.1}, **POWER)
    assert one.hours_per_month == pytest.approx(FIXED / (1.8 - 0.4 * 1.2 * 0.2))


@pytest.mark.parametrize("terms", [["on-demand"], ["on-demand", "bought"]])
def test_a_machine_of_unknown_power_is_no_counterpart_where_electricity_is_paid(
    tmp_path: Path, terms: list[str]
) -> None:
    unknown = {**OWN, "power_w": "", "instance": "unknown", "purchase_usd": 10}
    assert evens(tmp_path, [RENTED, unknown], terms=terms, **POWER)[0] == ()
    ((one,), _) = evens(tmp_path, [RENTED, unknown, OWN], terms=["on-demand"], **POWER)
    assert one.bought == "acme/own/east/bought"
    ((one,), _) = evens(tmp_path, [RENTED, unknown], terms=["on-demand"])
    assert one.bought == "acme/unknown/east/bought"


def test_the_reserved_price_of_a_question_is_a_counterpart_with_its_commitment_told(tmp_path: Path) -> None:
    reserved = {"reserved": {"discount": 0.4, "commitment": "100 h"}, "terms": ["reserved", "bought"]}
    ((one,), text) = evens(tmp_path, [RENTED, OWN], **reserved)
    assert one.rented == "acme/rented/east/reserved"
    assert one.hours_per_month == pytest.approx(FIXED / 1.2)
    assert "the commitment to 100 h of rent is left out" in text


def test_who_commits_for_years_pays_whatever_the_use_and_is_compared_last(tmp_path: Path) -> None:
    reserved = {"reserved": {"discount": 0.6, "commitment": "8760 h"}, "terms": ["reserved", "bought", "on-demand"]}
    ((one,), _) = evens(tmp_path, [RENTED, OWN], **reserved, machines={"exactly": 1})
    assert "acme/rented/east/on-demand" in (one.rented, one.bought)
    assert one.hours_per_month == pytest.approx(FIXED / 2)


def test_the_curve_of_what_was_paid_crosses_where_the_purchase_has_paid_off(tmp_path: Path) -> None:
    ((one,), text) = evens(tmp_path, [RENTED, OWN], terms=["on-demand"], **POWER)
    months = 10_000 / (730 * (2 - 0.4 * 1.2 * 0.2))
    assert one.payback_months == pytest.approx(months)
    assert f"after {months:.1f} months" in text
    before = [month for month, rent, buy in one.curve if rent < buy]
    assert before and max(before) < months and one.curve[0] == (0, 0, 10_000) and one.curve[-1][0] == 48
    ((never,), text) = evens(tmp_path, [{**RENTED, "usd_per_h": 0.1}, OWN], terms=["on-demand"], **POWER)
    assert never.payback_months is None and "less than what buying takes" in text


def test_a_run_that_uses_a_bought_machine_too_little_says_so(tmp_path: Path) -> None:
    hours = WORK / 3600  # of one machine
    ((one,), text) = evens(tmp_path, [RENTED, OWN], terms=["bought"], machines={"exactly": 1})
    assert one.hours_per_month is not None
    assert hours < one.hours_per_month
    assert f"this run uses it {hours:.1f} h; its share of {hours:.1f} h is counted as if it were always in use" in text
    ((one,), _) = evens(tmp_path, [RENTED, OWN], terms=["on-demand"], machines={"exactly": 1})
    assert one.words == ""
    dear = {**RENTED, "usd_per_h": 20}  # worth buying from 10.4 h on
    ((one,), _) = evens(tmp_path, [dear, OWN], terms=["bought"], machines={"exactly": 1})
    assert one.words == ""


def test_a_month_that_uses_a_bought_machine_too_little_says_that_all_of_it_is_paid(tmp_path: Path) -> None:
    jobs = [{"name": "a", "dnn": dict(purchases.DNN), "runs_per_month": 2}]
    ((one,), _) = evens(tmp_path, [RENTED, OWN], terms=["bought"], machines={"exactly": 1}, dnn=None, jobs=jobs)
    assert one.words == f"this month uses it {2 * WORK / 3600:.1f} h; the whole month of it is counted"
