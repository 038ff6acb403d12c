import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models.money import (
    H_PER_MONTH,
    MachinePrices,
    Rates,
    break_even_h_per_month,
    capital_usd,
    cost_parts,
    energy_j,
    months_of_use,
    peak_power_w,
    total_usd,
)

YEAR_S = 8760 * 3600.0
Kind = dict[str, Any]
usd = st.just(0.0) | st.floats(0.01, 1e5)

on_demand = st.fixed_dictionaries(
    {"usd_per_h": usd, "billing_s": st.sampled_from([0.0, 1.0, 60.0, 3600.0]), "least_billed_s": st.sampled_from([0.0, 60.0, 3600.0])}
)  # fmt: skip
reserved = st.fixed_dictionaries(
    {"usd_per_h": usd, "committed_s": st.floats(1, 1e7), "discount": st.floats(0, 1), "billing_s": st.sampled_from([1.0, 3600.0])}
)  # fmt: skip
owned = st.fixed_dictionaries(
    {"is_bought": st.just(True), "purchase_usd": usd, "useful_life_s": st.floats(1e6, 1e9), "hosting_usd_per_month": usd, "power_w": st.floats(0, 1e4)}
)  # fmt: skip
kinds = st.lists(on_demand | reserved | owned, min_size=1, max_size=4)
rates = st.builds(
    Rates,
    electricity_usd_per_kwh=st.floats(0, 1),
    pue=st.floats(1, 2),
    storage_usd_per_gb_month=st.floats(0, 1),
    egress_usd_per_gb=st.floats(0, 1),
)
# Whole milliseconds, so that the referee counts granules in whole numbers; whole hours are common.
walls_s = (st.integers(0, 10**10) | st.integers(0, 100).map(lambda hours: hours * 3_600_000)).map(lambda ms: ms / 1000)


def prices_of(drawn: list[Kind]) -> MachinePrices:
    defaults = {field.name: field.default for field in fields(MachinePrices)}
    return MachinePrices(**{name: [kind.get(name, default) for kind in drawn] for name, default in defaults.items()})


def part(name: str, counts: Any, prices: MachinePrices, wall_s: Any, common: Rates | None = None, **sent: float) -> Any:
    return cost_parts(counts, prices, wall_s, common or Rates(), **sent)[name]


def one_machine_usd(kind: Kind, wall_s: float, common: Rates) -> float:
    """What one machine costs, by the words of the price list."""
    if kind.get("is_bought"):
        kwh = kind["power_w"] / 1000 * common.pue * wall_s / 3600
        worn = kind["purchase_usd"] * wall_s / kind["useful_life_s"]
        return float(worn + kind["hosting_usd_per_month"] * wall_s / 3600 / 730 + kwh * common.electricity_usd_per_kwh)
    granule_s = kind["billing_s"]
    billed_s = -(-round(wall_s * 1000) // round(granule_s * 1000)) * granule_s if granule_s else wall_s
    billed_s = max(billed_s, kind.get("least_billed_s", 0), kind.get("committed_s", 0))
    return float(billed_s / 3600 * kind["usd_per_h"] * (1 - kind.get("discount", 0)))


@given(kinds, st.data(), walls_s, rates, st.floats(0, 1e15), st.floats(0, 1e15))
def test_a_fleet_costs_what_its_machines_and_bytes_cost(
    drawn: list[Kind], data: st.DataObject, wall_s: float, common: Rates, stored: float, sent: float
) -> None:
    counts = data.draw(st.lists(st.integers(0, 600), min_size=len(drawn), max_size=len(drawn)))
    parts = cost_parts(counts, prices_of(drawn), wall_s, common, stored_bytes=stored, egress_bytes=sent)
    truth = sum(count * one_machine_usd(kind, wall_s, common) for count, kind in zip(counts, drawn, strict=True))
    truth += (
        stored / 1e9 * common.storage_usd_per_gb_month * wall_s / 3600 / 730 + sent / 1e9 * common.egress_usd_per_gb
    )
    assert float(total_usd(parts)) == pytest.approx(truth)
    assert all(float(part) >= 0 for part in parts.values())
    assert float(total_usd(parts)) == pytest.approx(sum(float(part) for part in parts.values()))


@settings(max_examples=200)
@given(kinds, st.data(), walls_s | st.floats(0, 1e7), rates)
def test_no_term_falls_when_a_count_or_the_wall_time_grows(
    drawn: list[Kind], data: st.DataObject, wall_s: float, common: Rates
) -> None:
    few = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(drawn), max_size=len(drawn))))
    more = few + np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(drawn), max_size=len(drawn))))
    longer_s = wall_s + data.draw(st.sampled_from([0, 1e-6, 1, 59, 3600, math.inf]) | st.floats(0, 1e5))
    counts = np.stack([few, more], axis=1)
    parts = cost_parts(counts, prices_of(drawn), [wall_s, longer_s], common, stored_bytes=1e12, egress_bytes=1e9)
    assert all(least <= most * (1 + 1e-15) for least, most in parts.values())


@given(kinds, st.data(), rates)
def test_many_fleets_at_once_are_each_alone(drawn: list[Kind], data: st.DataObject, common: Rates) -> None:
    prices = prices_of(drawn)
    row = st.lists(st.integers(0, 9), min_size=6, max_size=6)
    counts = np.array([data.draw(row) for _ in drawn])
    wall_s = np.array(data.draw(st.lists(walls_s, min_size=6, max_size=6)))
    whole = total_usd(cost_parts(counts, prices, wall_s, common, stored_bytes=1e12))
    alone = [float(total_usd(cost_parts(counts[:, i], prices, wall_s[i], common, stored_bytes=1e12))) for i in range(6)]
    assert whole.tolist() == pytest.approx(alone)
    folded = cost_parts(counts.reshape(-1, 2, 3), prices, wall_s.reshape(2, 3), common, stored_bytes=1e12)
    assert total_usd(folded).tolist() == whole.reshape(2, 3).tolist()
    same = total_usd(cost_parts(counts[:, 0], prices, wall_s, common))
    assert same.shape == wall_s.shape
    assert float(same[0]) == pytest.approx(float(total_usd(cost_parts(counts[:, 0], prices, wall_s[0], common))))


@pytest.mark.parametrize(
    ("wall_s", "billing_s", "least_s", "billed_s"),
    [
        (30, 1, 60, 60),  # by the second, at least a minute
        (61.2, 1, 60, 62),
        (3600, 3600, 0, 3600),
        (3601, 3600, 0, 7200),
        (3 * 3600 * (1 + 1e-14), 3600, 0, 3 * 3600),  # rounding, not another hour
        (0.1 + 0.2, 0.1, 0, 0.3),  # in floating point more than three tenths
        (61.2, 0, 0, 61.2),
        (0, 3600, 0, 0),
    ],
)
def test_rent_is_for_whole_granules_and_a_least_time(
    wall_s: float, billing_s: float, least_s: float, billed_s: float
) -> None:
    prices = MachinePrices(usd_per_h=7.2, billing_s=billing_s, least_billed_s=least_s)
    assert float(part("rent", [5], prices, wall_s)) == pytest.approx(5 * 7.2 / 3600 * billed_s)


def test_reserved_machines_pay_their_commitment_with_the_discount_and_what_is_beyond() -> None:
    prices = MachinePrices(usd_per_h=10, committed_s=100 * 3600, discount=0.4, billing_s=3600)
    assert part("reserved", [[2, 2, 0]], prices, np.array([1, 150.5, 500]) * 3600).tolist() == pytest.approx(
        [1200, 1812, 0]
    )
    assert part("rent", [2], prices, 3600) == 0
    only_cheaper = MachinePrices(usd_per_h=10, discount=0.4)
    assert float(part("reserved", [1], only_cheaper, 3600)) == pytest.approx(6)


def test_a_machine_used_for_all_its_life_costs_its_price() -> None:
    prices = MachinePrices(
        is_bought=[True, False], purchase_usd=[20_000, 7], useful_life_s=[4 * YEAR_S, 1], usd_per_h=0
    )
    assert float(part("capital", [3, 1], prices, 4 * YEAR_S)) == pytest.approx(60_000)
    assert float(part("capital", [3, 1], prices, YEAR_S)) == pytest.approx(15_000)
    assert capital_usd([[3, 0], [1, 1]], prices).tolist() == [60_000, 0]


def test_hosting_and_electricity_are_paid_for_bought_machines_alone() -> None:
    prices = MachinePrices(
        is_bought=[True, False], power_w=[1000, 5000], hosting_usd_per_month=[146, 9], usd_per_h=[0, 1]
    )
    common = Rates(electricity_usd_per_kwh=0.2, pue=1.5)
    assert float(part("hosting", [2, 4], prices, 73 * 3600)) == pytest.approx(2 * 14.6)
    assert float(part("electricity", [2, 4], prices, 10 * 3600, common)) == pytest.approx(2 * 10 * 1.5 * 0.2)
    rented = cost_parts([0, 4], prices, 10 * 3600, common)
    assert {name for name, part in rented.items() if part} == {"rent"}


def test_a_gigabyte_kept_for_a_month_costs_the_months_price() -> None:
    common = Rates(storage_usd_per_gb_month=0.08, egress_usd_per_gb=0.09)
    assert float(part("storage", [1], MachinePrices(), H_PER_MONTH * 3600, common, stored_bytes=50e9)) == pytest.approx(
        4
    )
    assert float(part("egress", [1], MachinePrices(), 1, common, egress_bytes=50e9)) == pytest.approx(4.5)


def test_energy_is_of_all_machines_and_peak_power_is_what_they_draw_together() -> None:
    prices = MachinePrices(power_w=[700, 300], is_bought=[True, False])
    assert peak_power_w([[2, 1], [1, 0]], prices, pue=1.1).tolist() == pytest.approx([1870, 770])
    assert energy_j([[2, 1], [1, 0]], prices, [10, 100], pue=1.1).tolist() == pytest.approx([18_700, 77_000])


def test_energy_is_unknown_where_a_machine_that_runs_has_unknown_power() -> None:
    prices = MachinePrices(power_w=[700, math.nan])
    assert np.isnan(peak_power_w([[1, 1], [0, 2]], prices)).tolist() == [False, True]


def test_electricity_of_a_machine_of_unknown_power_is_asked_for() -> None:
    prices, priced = MachinePrices(is_bought=[True, True], power_w=[700, math.nan]), Rates(electricity_usd_per_kwh=0.1)
    with pytest.raises(ModelError, match="power is unknown"):
        cost_parts([1, 1], prices, 3600, priced)
    assert float(cost_parts([1, 0], prices, 3600, priced)["electricity"]) == pytest.approx(0.07)
    assert float(cost_parts([1, 1], prices, 3600, Rates())["electricity"]) == 0
    assert float(cost_parts([1], MachinePrices(usd_per_h=1), 3600, priced)["electricity"]) == 0


@given(kinds, rates)
def test_kinds_without_machines_cost_nothing_even_if_they_never_end(drawn: list[Kind], common: Rates) -> None:
    parts = cost_parts([0] * len(drawn), prices_of(drawn), math.inf, common)
    assert float(total_usd(parts)) == 0


@given(on_demand, owned, rates, st.floats(0, H_PER_MONTH))
def test_buying_is_cheaper_exactly_beyond_the_break_even(
    hired: Kind, bought: Kind, common: Rates, use_h: float
) -> None:
    pair = MachinePrices(**hired), MachinePrices(**bought)
    least_h = float(break_even_h_per_month(*pair, common))
    (month,) = months_of_use([use_h], *pair, common)
    if use_h > least_h:
        assert month.buy_usd <= month.rent_usd * (1 + 1e-9)
    if use_h < least_h:
        assert month.buy_usd >= month.rent_usd * (1 - 1e-9)


@given(on_demand, owned, rates)
def test_at_the_break_even_both_cost_the_same(hired: Kind, bought: Kind, common: Rates) -> None:
    pair = MachinePrices(**hired), MachinePrices(**bought)
    least_h = float(break_even_h_per_month(*pair, common))
    assume(0 < least_h < math.inf)
    (month,) = months_of_use([least_h], *pair, common)
    assert month.buy_usd == pytest.approx(month.rent_usd)


@given(on_demand, owned, rates, st.integers(1, 730))
def test_the_table_is_the_cost_of_a_run_as_long_and_of_what_is_fixed(
    hired: Kind, bought: Kind, common: Rates, use_h: int
) -> None:
    (month,) = months_of_use([use_h], MachinePrices(**hired), MachinePrices(**bought), common)
    unused = {**bought, "power_w": 0.0}
    idle_usd = one_machine_usd(unused, (730 - use_h) * 3600, common)
    assert month.rent_usd == pytest.approx(one_machine_usd({**hired, "least_billed_s": 0}, use_h * 3600, common))
    assert month.buy_usd == pytest.approx(one_machine_usd(bought, use_h * 3600, common) + idle_usd)


def test_break_even_is_never_at_once_or_in_between() -> None:
    bought = MachinePrices(
        is_bought=True, purchase_usd=[43_800, 43_800, 43_800, 0, 0, 0], useful_life_s=5 * YEAR_S, power_w=1000
    )
    rented = MachinePrices(usd_per_h=[4, 0.3, 1.3, 4, 0.3, 0.35])
    hours = break_even_h_per_month(rented, bought, Rates(electricity_usd_per_kwh=0.35))
    # 730 USD a month and 0.35 USD an hour; the third would need 768 hours; the fourth and sixth cost nothing to own.
    assert hours.tolist() == pytest.approx([200, math.inf, math.inf, 0, math.inf, 0])


def test_discounted_rent_breaks_even_later() -> None:
    bought = MachinePrices(is_bought=True, purchase_usd=43_800, useful_life_s=5 * YEAR_S)
    hours = break_even_h_per_month(MachinePrices(usd_per_h=4, discount=[0, 0.5]), bought, Rates())
    assert hours.tolist() == pytest.approx([182.5, 365])


@pytest.mark.parametrize("use_h", [-1, 731, math.nan])
def test_a_month_has_730_hours(use_h: float) -> None:
    with pytest.raises(ModelError, match=r"hours of use. Give 0 to 730"):
        months_of_use([10, use_h], MachinePrices(usd_per_h=1), MachinePrices(is_bought=True), Rates())


def test_a_machine_to_buy_needs_a_power_where_electricity_is_priced() -> None:
    with pytest.raises(ModelError, match="power is unknown"):
        break_even_h_per_month(MachinePrices(usd_per_h=1), MachinePrices(is_bought=True), Rates(electricity_usd_per_kwh=1))  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("usd_per_h", -1),
        ("usd_per_h", [1, math.nan]),
        ("purchase_usd", math.inf),
        ("power_w", -5),
        ("discount", [0.1, 1.5]),
        ("useful_life_s", 0),
    ],
)
def test_impossible_prices_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ModelError, match=field):
        MachinePrices(**{field: value})


@pytest.mark.parametrize(("field", "value"), [("pue", 0.9), ("pue", math.nan), ("egress_usd_per_gb", -1), ("electricity_usd_per_kwh", math.inf)])  # fmt: skip
def test_impossible_rates_are_refused(field: str, value: float) -> None:
    with pytest.raises(ModelError, match=field):
        Rates(**{field: value})


@pytest.mark.parametrize(("counts", "wall_s", "name"), [([-1], 1, "counts"), ([1], math.nan, "wall_s")])
def test_impossible_fleets_are_refused(counts: list[float], wall_s: float, name: str) -> None:
    with pytest.raises(ModelError, match=name):
        cost_parts(counts, MachinePrices(usd_per_h=1), wall_s, Rates())
