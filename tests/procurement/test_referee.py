"""Small markets whose limits are just around what the best fleet needs, against a referee that tries every fleet.

``REFEREE=all`` draws 2,000 questions in place of some.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import purchases
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from purchases import Bill, row
from purchases_drawn import DEVICES, ideal, number_drawn, times
from pytest import MonkeyPatch, TempPathFactory

from planner.errors import InfeasibleError
from planner.procurement.fleet import Fleet
from planner.procurement.question import Procurement
from planner.solution import Status
from planner.units import Dimension, parse

MOST = 6  # machines of a type
PLAIN: dict[str, Any] = {"machines": {"at_most": 3 * MOST}, "racks": {"power": "1.5 kW"}}


@st.composite
def markets(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw two to four offers of up to six machines each: on demand, spot, reserved and bought, some of equal hardware.

    What is bought comes late at times, and is sold at the end.
    """
    found = []
    for index in range(draw(st.integers(2, 4))):
        one, term = (
            draw(st.integers(0, 2)),
            draw(st.sampled_from(["on-demand", "on-demand", "spot", "reserved", "bought"])),
        )
        changed: dict[str, Any] = {
            "term": term,
            "device": DEVICES[one],
            "devices": one + 1,
            "inside": "" if one == 0 else "pcie-3-x16",
            "network_gbit_per_s": draw(st.sampled_from([25, 25, 25, ""])),
            "most": draw(st.sampled_from([2, 4, MOST, MOST])),
            "power_w": draw(st.sampled_from([210, 460, 980, 1500])),
            "lead_time_days": draw(st.sampled_from(["", "", 0.05, 2])),
        }
        if term == "bought":
            changed |= {"purchase_usd": draw(st.sampled_from([4100, 19000])), "useful_life_years": 3}
            changed |= {
                "resale_usd": draw(st.sampled_from(["", 900])),
                "hosting_usd_per_month": draw(st.sampled_from(["", 210])),
            }
        else:
            changed |= {"usd_per_h": draw(st.sampled_from([0.53, 1.07, 2.51, 4.03]))}
            changed |= {
                "billing_s": draw(st.sampled_from([1, 60, 3600])),
                "least_billed_s": draw(st.sampled_from(["", 7200])),
            }
        if term == "spot":
            changed["interruptions_per_h"] = draw(st.sampled_from(["", 0.11, 0.6]))
        if term == "reserved":
            changed["committed_h"] = draw(st.sampled_from([1, 9]))
        found.append(row(f"m{index}", **changed))
    return found


@st.composite
def goals(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an objective, and what a run needs besides; no limits."""
    block: dict[str, Any] = {**PLAIN, "most_types": draw(st.integers(1, 3))}
    block["objective"] = draw(st.sampled_from(["cost", "cost", "time", "energy", "value_of_time"]))
    if block["objective"] == "value_of_time":
        block["usd_per_hour_saved"] = draw(st.sampled_from([0.5, 5, 60]))
    others = {
        "utilisation": st.just(0.4),
        "electricity": st.just({"usd_per_kwh": 0.3, "pue": 1.3}),
        "storage": st.just({"size": "500 GB", "usd_per_gb_month": 0.1}),
        "run": st.sampled_from(
            [
                {"start_up": "5 min", "evaluation": "3 min"},
                {"mean_time_between_failures": "30 h", "restart": "4 min", "start_up": "2 min"},
            ]
        ),
    }
    return block | {name: draw(others[name]) for name in draw(st.lists(st.sampled_from(sorted(others)), unique=True))}


@dataclass(frozen=True)
class Limit:
    """A limit of a question: what it is of a bill, and how it is written."""

    used: Callable[[Bill], float]
    dimension: Dimension
    unit: str
    scale: float = 1.0


LIMITS = {
    "deadline": Limit(lambda bill: bill.time_s, Dimension.TIME, "s"),
    "budget": Limit(lambda bill: bill.spent_usd, Dimension.MONEY, "USD"),
    "capital": Limit(lambda bill: bill.capital_usd, Dimension.MONEY, "USD"),
    "power": Limit(lambda bill: bill.power_w, Dimension.POWER, "W"),
    "budget_rate": Limit(lambda bill: bill.spending_usd_per_s, Dimension.MONEY_RATE, "USD/h", 3600),
}
AROUND = (0.9, 1 - 1e-6, 1 - 1e-6, 1 + 1e-6, 1.1)  # of what the best fleet uses


def tightened(data: st.DataObject, block: dict[str, Any], bills: list[Bill]) -> dict[str, Any]:
    """Draw one to five limits, each at what the best fleet that the ones before leave uses, or just around it."""
    block = dict(block)
    for _ in range(data.draw(st.integers(1, 5))):
        if not bills:
            break
        best = min(bills, key=lambda bill: bill.objective)
        key = data.draw(st.sampled_from([*LIMITS, "machines", "quotas", "quotas", "racks"]))
        if key in LIMITS:
            limit = LIMITS[key]
            most = limit.used(best) * data.draw(st.sampled_from(AROUND))
            if key not in block and most > 0:
                block[key] = f"{most * limit.scale:.12f} {limit.unit}"
                bills = [bill for bill in bills if limit.used(bill) <= most]
            continue
        less = data.draw(st.integers(0, 1))
        if key == "machines":
            number = max(sum(count for _, count in best.fleet) - less, 1)
            block["machines"] = {"at_most": number}
            bills = [bill for bill in bills if sum(count for _, count in bill.fleet) <= number]
        elif key == "quotas":
            name, count = data.draw(st.sampled_from(best.fleet))
            block["quotas"] = {**block.get("quotas", {}), name.split("/")[1]: count - less}
            bills = [bill for bill in bills if dict(bill.fleet).get(name, 0) <= count - less]
        elif best.racks - less > 0:
            block["racks"] = {**PLAIN["racks"], "number": best.racks - less}
            bills = [bill for bill in bills if bill.racks <= best.racks - less]
    return block


def check_ways_out(procurement: Procurement, error: InfeasibleError, made: purchases.MadeUpTimes) -> None:
    """Check that every limit that is said to settle it alone does, and that a little less does not."""
    bills = [purchases.bill_of(procurement, one, made(one)) for one in purchases.every_fleet(procurement)]
    for relaxation in (one for conflict in error.conflicts for one in conflict.relaxations):
        name = relaxation.field.removeprefix("procure.")
        if not relaxation.is_enough or name not in LIMITS:
            continue
        limit, asked = LIMITS[name], procurement.asked
        others = [
            bill
            for bill in bills
            if bill.time_s < float("inf")
            and bill.racks <= (asked.racks.number if asked.racks and asked.racks.number else bill.racks)
            and all(
                one.used(bill) <= getattr(asked, key)
                for key, one in LIMITS.items()
                if key != name and getattr(asked, key)
            )
        ]
        least = min(limit.used(bill) for bill in others)
        (value,) = relaxation.values
        assert relaxation.is_exact
        assert (
            least * (1 - 1e-9) <= parse(value.replace(",", ""), limit.dimension) <= least * 1.011 + 0.01
        )  # three digits, rounded up


@pytest.mark.timeout(0)  # 2,000 questions take half an hour
@settings(
    max_examples=number_drawn(60, 2000),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
@given(markets(), goals(), times(), st.data())
def test_no_fleet_beats_the_answer_where_limits_are_tight(
    tmp_path_factory: TempPathFactory,
    given_rows: list[dict[str, Any]],
    block: dict[str, Any],
    made: purchases.MadeUpTimes,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.getbasetemp() / "tight.csv"
    block["terms"] = sorted({one["term"] for one in given_rows})
    free = purchases.loaded(purchases.asked(path, given_rows, **block))
    block = tightened(data, block, purchases.all_bills(free, made))
    try:
        procurement = purchases.loaded(purchases.asked(path, given_rows, **block))
    except InfeasibleError:  # a quota of 0 left nothing
        return
    bills = purchases.all_bills(procurement, made)
    event("some fleet keeps the limits" if bills else "no fleet keeps the limits")
    event(f"limits: {', '.join(sorted({*block} & {*LIMITS, 'quotas'})) or 'others'}")
    has_pareto = data.draw(st.booleans())
    with MonkeyPatch.context() as patch:
        purchases.stub(patch, made, ideal(made))
        if not bills:
            with pytest.raises(InfeasibleError) as caught:
                purchases.answered(procurement)
            check_ways_out(procurement, caught.value, made)
            return
        found = purchases.answered(procurement, has_pareto=has_pareto)
    best = min(bill.objective for bill in bills)
    assert found.certificate.status is Status.OPTIMAL
    assert found.certificate.objective == pytest.approx(best, rel=1e-8)
    assert found.certificate.bound <= best * (1 + 1e-9)
    own = purchases.bill_of(procurement, found.choice.fleet, made(found.choice.fleet))
    assert purchases.keeps(procurement, own)
    ours = (found.choice.total_wall_s, found.choice.cost_usd, found.choice.spent_usd, found.choice.capital_usd)
    assert ours == pytest.approx((own.time_s, own.cost_usd, own.spent_usd, own.capital_usd), rel=1e-8)
    for other, _ in found.alternatives:
        fleet = Fleet(offers=other.fleet.offers, counts=other.fleet.counts)
        assert purchases.bill_of(procurement, fleet, made(fleet)).objective >= best * (1 - 1e-8)
    if found.pareto is not None:
        assert found.pareto.status is Status.OPTIMAL
        points = [(one.choice.total_wall_s, one.choice.cost_usd) for one in found.pareto.points]
        assert points == [pytest.approx(point, rel=1e-8) for point in purchases.pareto_of(bills)]
