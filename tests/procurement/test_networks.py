"""Network tiers of bought machines: where they come from, what they cost, and that a fleet has one."""

from itertools import product
from pathlib import Path
from typing import Any

import purchases
import pytest
from purchases import Machine, MadeUpTimes, row
from pytest import MonkeyPatch

from planner.errors import SpecError
from planner.procurement.fleet import markets_of
from planner.procurement.prices import Offer
from planner.procurement.question import Procurement, read_networks
from planner.procurement.search import Fleets

OWN = row("own", term="bought", purchase_usd=5000, useful_life_years=3, network_gbit_per_s="", power_w=400)
OTHER = row(
    "other", term="bought", purchase_usd=9000, useful_life_years=3, network_gbit_per_s="", device="v100-sxm2-16g"
)
WIRED = row("wired", term="bought", purchase_usd=9500, useful_life_years=3, device="l40s")
MINE = """name,gbit_per_s_per_port,ports,usd_per_port,most,latency_us,power_w_per_port,date,source
ten,10,2,150,3,30,5,2026-01-02,quote
one,1,1,20,,,,2026-11-02,quote
"""


def asked(folder: Path, networks: object, rows: Any = (OWN,), **block: Any) -> Procurement:
    """Return a question with networks, and a table of tiers beside it."""
    (folder / "mine.csv").write_text(MINE)
    terms = {"terms": ["bought"], **block}
    return purchases.loaded(purchases.asked(folder / "list.csv", list(rows), networks=networks, **terms))


def by_tier(procurement: Procurement) -> dict[str | None, Offer]:
    return {offer.tier: offer for offer in procurement.offers}


def test_a_tier_of_a_file_brings_rate_price_power_latency_number_and_date(tmp_path: Path) -> None:
    offers = by_tier(asked(tmp_path, [{"file": str(tmp_path / "mine.csv")}]))
    assert set(offers) == {"ten", "one"}
    ten = offers["ten"]
    assert ten.name == "acme/own/east/bought/ten"
    assert [ten.network_bytes_per_s, ten.purchase_usd, ten.power_w] == pytest.approx([2.5e9, 5300, 410])
    assert ten.latency_s == pytest.approx(30e-6)
    assert (ten.most, ten.date.isoformat()) == (3, "2026-01-02")
    assert (offers["one"].most, offers["one"].date.isoformat()) == (None, "2026-11-01")


@pytest.mark.parametrize(
    ("networks", "number"),
    [
        ("infiniband-400g-direct", 1),
        (["InfiniBand_400G direct"], 1),
        ("infiniband-*", len(read_networks(None))),
        (["infiniband-400g-direct", {"name": "eth", "bandwidth": "1 Gbit/s", "usd_per_machine": "9 USD"}], 2),
    ],
)
def test_tiers_that_ship_are_asked_for_by_name(tmp_path: Path, networks: object, number: int) -> None:
    offers = by_tier(asked(tmp_path, networks))
    assert len(offers) == number
    direct = next(tier for tier in read_networks(None) if tier.name == "infiniband-400g-direct")
    found = offers["infiniband-400g-direct"]
    assert (found.network_bytes_per_s, found.most) == (direct.network_bytes_per_s, direct.most)
    assert found.purchase_usd == pytest.approx(5000 + direct.usd)


@pytest.mark.parametrize(
    ("networks", "field", "words"),
    [
        ("infiniband-400g-direkt", "procure.networks.0", "Did you mean 'infiniband-400g-direct'"),
        (["infiniband-*", "infiniband-400g-direct"], "procure.networks.1", "two tiers are called"),
        ([{"file": "nothere.csv"}], "procure.networks.0.file", "there is no such file"),
        ([{"file": "a.csv", "name": "x"}], "procure.networks.0.name", "unknown key"),
        ([{"name": "x", "bandwidth": "1 Gbit/s"}], "procure.networks.0.usd_per_machine", "is missing"),
    ],
)
def test_a_wrong_network_is_refused_with_its_place(tmp_path: Path, networks: object, field: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        asked(tmp_path, networks)
    assert words in str(caught.value)
    assert {fault.field for fault in caught.value.faults} == {field}
    assert all(fault.mend for fault in caught.value.faults)


def test_the_name_of_a_tier_works_in_quotas_and_exclude(tmp_path: Path) -> None:
    file = {"file": str(tmp_path / "mine.csv")}
    assert set(by_tier(asked(tmp_path, file, exclude=["ten"]))) == {"one"}
    assert by_tier(asked(tmp_path, file, quotas={"one": 2}))["one"].most == 2
    with pytest.raises(SpecError, match="no offer is meant by 'two'"):
        asked(tmp_path, file, quotas={"two": 2})


def test_all_bought_machines_of_a_fleet_have_one_tier(tmp_path: Path) -> None:
    procurement = asked(tmp_path, {"file": str(tmp_path / "mine.csv")}, (OWN, OTHER, WIRED), most_types=2)
    pairs = [market.offers for market in markets_of(procurement, procurement.offers, 2)]
    assert {frozenset(offer.tier for offer in pair) for pair in pairs} == {frozenset({"ten"}), frozenset({"one"})}
    assert all({offer.instance for offer in pair} == {"own", "other"} for pair in pairs)


def test_a_tier_joins_no_more_machines_than_it_can_of_all_types(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    machines = {"t4": Machine(1.0), "v100-sxm2-16g": Machine(1.7)}
    times = MadeUpTimes(machines=machines, work=50_000)
    purchases.stub(monkeypatch, times, lambda offer: machines[offer.device].rate / times.work)
    block: dict[str, Any] = {"most_types": 2, "objective": "time", "quotas": {"other": 2}, "exclude": ["one"]}
    procurement = asked(tmp_path, {"file": str(tmp_path / "mine.csv")}, (OWN, OTHER), **block)
    found = purchases.answered(procurement).choice
    offers = {offer.instance: offer for offer in Fleets(procurement=procurement).offers}
    rates = [machines[offers[name].device].rate for name in ("own", "other")]
    best = max(
        sum(count * rate for count, rate in zip(counts, rates, strict=True))
        for counts in product(range(4), range(3))
        if sum(counts) <= 3
    )
    assert found.total_wall_s == pytest.approx(times.work / best)
    assert found.fleet.num_machines == 3
    assert "(bought, ten)" in found.fleet.headline
