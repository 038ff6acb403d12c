import csv
import io
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import data
from planner.data.presets import prices_text
from planner.errors import Fault, SpecError
from planner.procurement import prices as csv_table
from planner.procurement.prices import OLD_DAYS, OPTIONAL, REQUIRED, Offer, Term, age_days, merged, read_price_list
from planner.procurement.question import read_networks

TODAY = date(2026, 11, 21)
RENTED = {
    "provider": "mine",
    "instance": "big",
    "region": "here",
    "term": "on-demand",
    "device": "A100",
    "devices": "8",
    "inside": "NVLink_3",
    "date": "2026-10-01",
    "source": "an invoice",
    "usd_per_h": "12.5",
}
BOUGHT = {
    **{key: RENTED[key] for key in ("provider", "instance", "region", "device", "devices", "inside", "date", "source")},
    "term": "bought",
    "purchase_usd": "200000",
    "useful_life_years": "4",
}
SHIPPED = list(csv.DictReader(io.StringIO(prices_text())))


def table(rows: Sequence[Mapping[str, str]], delimiter: str = ",", line_end: str = "\n") -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", delimiter=delimiter, lineterminator=line_end)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def written(folder: Path, rows: Sequence[Mapping[str, str]], name: str = "mine.csv") -> Path:
    path = folder / name
    path.write_text(table(rows), encoding="utf-8")
    return path


def offer_of(folder: Path, row: Mapping[str, str]) -> Offer:
    (offer,) = read_price_list(written(folder, [row]), today=TODAY).offers
    return offer


def faults_of(path: Path) -> tuple[Fault, ...]:
    with pytest.raises(SpecError) as caught:
        read_price_list(path, today=TODAY)
    faults = caught.value.faults
    assert faults
    assert all(fault.file == str(path) and fault.problem and fault.mend for fault in faults)
    return faults


# The list that ships.


def test_every_shipped_row_is_usable_or_says_why_not() -> None:
    prices = read_price_list(None, today=TODAY)
    assert len(prices.offers) + len(prices.unusable) == len(SHIPPED)
    assert all(one.reason and one.line and one.row["source"] for one in prices.unusable)
    assert all(offer.source and offer.date <= TODAY for offer in prices.offers)
    assert set(SHIPPED[0]) <= {*REQUIRED, *OPTIONAL}


def test_the_reason_why_a_shipped_row_is_unusable_holds() -> None:
    devices, links = set(data.device_names()), set(data.inside_links())
    for one in read_price_list(None).unusable:
        row, reason = one.row, one.reason
        if reason.startswith("no rates of "):
            assert row["device"] not in devices and row["device"] in reason, one
        elif reason.startswith("no bandwidth of the link "):
            link = next(known["link"] for known in data.device_rows() if known["name"] == row["device"])
            assert link in reason and link not in links and int(row["devices"]) > 1, one
        elif reason.startswith("a fraction of a device"):
            assert row["devices"] == "0", one
        elif reason.startswith("no on-demand price"):
            assert not row["usd_per_h"] and row["term"] == "on-demand", one
        elif reason.startswith("the price is of one chip"):
            assert "(per chip)" in row["instance"], one
        else:
            assert "looks like one of a committed use" in reason or "of the accelerators alone" in reason, one


@pytest.mark.measured
def test_every_row_of_the_catalogue_is_in_the_list_at_its_price(data_folder: Path) -> None:
    with (data_folder / "catalog" / "gpu_instances.csv").open(encoding="utf-8") as file:
        catalogue = list(csv.DictReader(file))
    mine = {(row["provider"], row["instance"], row["region"], row["term"]): row for row in SHIPPED}
    for given_row in catalogue:
        region = "all" if "(" in given_row["region"] else given_row["region"]
        for term, price in (("on-demand", "price_usd_h"), ("spot", "spot_min_usd_h")):
            row = mine.get((given_row["provider"], given_row["instance"], region, term))
            if term == "spot" and not given_row[price]:
                assert row is None
                continue
            assert row is not None, given_row
            assert row["usd_per_h"] == given_row[price]
            assert row["devices"] == given_row["gpu_count"]
            assert row["network_gbit_per_s"] == given_row["network_gbps"].removesuffix(" IB")
            assert row["source"] == given_row["source"]
    assert len(catalogue) == 154


def test_a_machine_of_several_devices_has_the_link_that_the_device_table_names() -> None:
    links = {row["name"]: row["link"] for row in data.device_rows()}
    for offer in read_price_list(None).offers:
        if offer.devices_per_machine == 1:
            assert offer.inside is None
        else:
            assert offer.inside == {"mi300x": "xgmi-mi300x"}.get(offer.device, links[offer.device]), offer


def test_a_clock_that_is_slow_does_not_spoil_the_list_that_ships() -> None:
    assert read_price_list(None, today=date(2020, 1, 1)).offers == read_price_list(None).offers


def test_the_list_holds_machines_of_every_kind() -> None:
    offers = read_price_list(None).offers
    assert {offer.term for offer in offers} == {Term.ON_DEMAND, Term.SPOT, Term.BOUGHT}
    assert any(data.device(offer.device).kind == "cpu" and offer.network_bytes_per_s for offer in offers)
    assert {"aws", "azure", "gcp", "lambda"} < {offer.provider for offer in offers}


def test_power_is_that_of_the_devices_and_of_the_host() -> None:
    offers = {offer.name: offer for offer in read_price_list(None).offers}
    h100 = offers["aws/p5.48xlarge/us-east-1/on-demand"]
    assert h100.power_w == pytest.approx(8 * 700 + 192 * 3.5 + 2048 * 2**30 / 1e9 * 0.392, abs=0.5)
    assert offers["gcp/tpu-v6e-1/us-central1/on-demand"].power_w is None  # the chip's is not published
    assert offers["purchase/h100-server/own/bought"].power_w == 10200


def test_a_shipped_server_with_a_network_costs_the_server_and_the_tier() -> None:
    offers = {offer.instance: offer for offer in read_price_list(None).offers}
    (tier,) = (one for one in read_networks(None, today=TODAY) if one.name == "infiniband-400g-one-layer")
    bare, joined = offers["h100-server"], offers["h100-server-infiniband"]
    assert joined.purchase_usd == pytest.approx(bare.purchase_usd + tier.usd)
    assert joined.network_bytes_per_s == tier.network_bytes_per_s == pytest.approx(4e11)
    assert (joined.most, bare.network_bytes_per_s) == (tier.most, None)


def test_the_page_on_prices_tells_the_counts_and_every_column_of_the_list_and_its_examples_are_read(
    tmp_path: Path,
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "prices.md").read_text(encoding="utf-8")
    prices, words = read_price_list(None), " ".join(page.split())
    assert f"{len(SHIPPED)} rows, {len(prices.offers)} of them usable." in words
    assert all(f"`{column}`" in page for column in (*REQUIRED, *OPTIONAL))
    lists = [block.split("```")[0] for block in page.split("```csv\n")[1:]]
    (tmp_path / "list.csv").write_text(lists[0])
    (tmp_path / "tiers.csv").write_text(lists[1])
    assert len(read_price_list(tmp_path / "list.csv", today=TODAY).offers) == 3
    assert len(read_networks(tmp_path / "tiers.csv", today=TODAY)) == 1


# A list of one's own.


def test_a_rented_machine_comes_in_si_units(tmp_path: Path) -> None:
    more = {"network_gbit_per_s": "400", "latency_us": "15", "memory_gib": "2", "vcpus": "96", "most": "4"}
    billed = {"billing_s": "60", "least_billed_s": "300", "host_power_w": "800", "currency": "USD", "note": "x"}
    offer = offer_of(tmp_path, RENTED | more | billed)
    assert offer.name == "mine/big/here/on-demand"
    assert (offer.device, offer.inside, offer.devices_per_machine) == ("a100-sxm4-80gb", "nvlink-3", 8)
    assert (offer.usd_per_h, offer.billing_s, offer.least_billed_s) == (12.5, 60, 300)
    assert offer.network_bytes_per_s == 5e10
    assert offer.latency_s == pytest.approx(15e-6)
    assert (offer.memory_bytes, offer.vcpus, offer.most) == (2 * 2**30, 96, 4)
    assert offer.power_w == 8 * 400 + 800
    assert (offer.date, offer.source, offer.note) == (date(2026, 10, 1), "an invoice", "x")


def test_a_bought_machine_comes_in_si_units(tmp_path: Path) -> None:
    offer = offer_of(tmp_path, BOUGHT | {"hosting_usd_per_month": "900", "power_w": "6500"})
    assert (offer.term, offer.usd_per_h, offer.purchase_usd) == (Term.BOUGHT, 0, 200000)
    assert offer.useful_life_s == 4 * 8760 * 3600
    assert (offer.hosting_usd_per_month, offer.power_w) == (900, 6500)


def test_what_only_some_terms_have_is_read_of_those(tmp_path: Path) -> None:
    spot = offer_of(tmp_path, RENTED | {"term": "Spot", "interruptions_per_h": "0.05"})
    assert (spot.term, spot.interruptions_per_h) == (Term.SPOT, 0.05)
    reserved = offer_of(tmp_path, RENTED | {"term": "reserved", "committed_h": "8760"})
    assert reserved.committed_s == 8760 * 3600


def test_what_is_not_given_is_not_known(tmp_path: Path) -> None:
    offer = offer_of(tmp_path, RENTED | {"devices": "1", "inside": ""})
    assert (offer.network_bytes_per_s, offer.power_w, offer.memory_bytes, offer.most) == (None, None, None, None)
    assert (offer.billing_s, offer.least_billed_s, offer.interruptions_per_h, offer.inside) == (1, 0, 0, None)


def test_a_device_of_the_question_may_stand_in_a_list(tmp_path: Path) -> None:
    path = written(tmp_path, [RENTED | {"device": "my fpga", "power_w": "100"}])
    (offer,) = read_price_list(path, custom_devices=["My-FPGA"]).offers
    assert (offer.device, offer.power_w) == ("My-FPGA", 100)


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_spreadsheets_habits_change_nothing(tmp_path: Path, delimiter: str, line_end: str, mark: bytes) -> None:
    rows = [RENTED | {"note": "a, b; c"}, RENTED | {"instance": "small", "note": 'so "called"'}]
    path = tmp_path / "mine.csv"
    text = table(rows, delimiter, line_end).replace(line_end, f"{line_end}{line_end}# a comment{line_end}", 1)
    path.write_bytes(mark + text.encode())
    found = read_price_list(path, today=TODAY)
    assert found.offers == read_price_list(written(tmp_path, rows, "plain.csv"), today=TODAY).offers
    assert len(found.offers) == 2


def test_a_row_that_says_why_it_is_unusable_may_lack_the_rest(tmp_path: Path) -> None:
    odd = RENTED | {"instance": "odd", "device": "crystal ball", "usd_per_h": "", "unusable": "no rates"}
    found = read_price_list(written(tmp_path, [RENTED, odd]), today=TODAY)
    assert [offer.instance for offer in found.offers] == ["big"]
    (one,) = found.unusable
    assert (one.line, one.name, one.reason) == (3, "mine/odd/here/on-demand", "no rates")
    assert one.row["device"] == "crystal ball"


# What is wrong.


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        (RENTED | {"usd_per_h": "0"}, "usd_per_h", "'0' is not more than 0"),
        (RENTED | {"usd_per_h": "-3"}, "usd_per_h", "'-3' is not more than 0"),
        (RENTED | {"usd_per_h": ""}, "usd_per_h", "a rented machine has no price"),
        (RENTED | {"usd_per_h": "three"}, "usd_per_h", "'three' is not a number"),
        (RENTED | {"usd_per_h": "3,06"}, "usd_per_h", "'3,06' is not a number"),
        (RENTED | {"usd_per_h": "1_000"}, "usd_per_h", "is not a number"),
        (RENTED | {"usd_per_h": "inf"}, "usd_per_h", "is not a number"),
        (RENTED | {"usd_per_h": "nan"}, "usd_per_h", "is not a number"),
        (RENTED | {"usd_per_h": "1e300"}, "usd_per_h", "is beyond"),
        (RENTED | {"usd_per_h": "1e-300"}, "usd_per_h", "is beyond"),
        (RENTED | {"currency": "EUR"}, "currency", "'EUR' is not USD"),
        (RENTED | {"device": "a1000"}, "device", "is not a known device"),
        (RENTED | {"device": ""}, "device", "the cell is empty"),
        (RENTED | {"devices": "0"}, "devices", "is not a whole number"),
        (RENTED | {"devices": "1.5"}, "devices", "is not a whole number"),
        (RENTED | {"devices": "9" * 30}, "devices", "is not a whole number"),
        (RENTED | {"inside": ""}, "inside", "8 devices in a machine, and no link"),
        (RENTED | {"inside": "wire"}, "inside", "is not a known link"),
        (RENTED | {"term": "rent"}, "term", "is not a known term"),
        (RENTED | {"date": "2026-11-22"}, "date", "is in the future: today is 2026-11-21"),
        (RENTED | {"date": "1.10.2026"}, "date", "is not a date"),
        (RENTED | {"date": "2026-02-30"}, "date", "is not a date"),
        (RENTED | {"date": "0026-02-03"}, "date", "is before"),
        (RENTED | {"source": ""}, "source", "the cell is empty"),
        (RENTED | {"provider": "a/b"}, "provider", "has a stroke in it"),
        (RENTED | {"instance": "a\nb"}, "instance", "cannot be printed"),
        (RENTED | {"note": "x" * 5000}, "note", "5000 characters"),
        (RENTED | {"purchase_usd": "5"}, "purchase_usd", "means nothing on the term 'on-demand'"),
        (RENTED | {"committed_h": "5"}, "committed_h", "means nothing on the term 'on-demand'"),
        (RENTED | {"interruptions_per_h": "5"}, "interruptions_per_h", "means nothing on the term 'on-demand'"),
        (RENTED | {"term": "reserved"}, "committed_h", "for how long the machine is reserved"),
        (BOUGHT | {"purchase_usd": "0"}, "purchase_usd", "'0' is not more than 0"),
        (BOUGHT | {"purchase_usd": ""}, "purchase_usd", "a bought machine has no price"),
        (BOUGHT | {"useful_life_years": ""}, "useful_life_years", "over how many years"),
        (BOUGHT | {"usd_per_h": "3"}, "usd_per_h", "means nothing on the term 'bought'"),
    ],
)  # fmt: skip
def test_a_fault_comes_with_line_column_value_and_mend(
    tmp_path: Path, row: dict[str, str], column: str, problem: str
) -> None:
    (fault,) = faults_of(written(tmp_path, [RENTED | {"instance": "right"}, row]))
    assert (fault.line, fault.field) == (3, column)
    assert problem in fault.problem
    assert fault.value in (row.get(column, ""), row.get(column, "")[:60] + "...")


def test_an_unknown_device_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (fault,) = faults_of(written(tmp_path, [RENTED | {"device": "h1000"}]))
    assert "'h100-sxm'" in fault.mend


def test_all_faults_come_in_one_pass_in_the_order_of_lines(tmp_path: Path) -> None:
    rows = [
        RENTED,
        RENTED | {"currency": "EUR", "usd_per_h": "0"},
        RENTED | {"instance": "c", "device": "x", "date": ""},
    ]
    path = written(tmp_path, rows)
    path.write_text(path.read_text() + "a,b\n" + '"open', encoding="utf-8")
    faults = faults_of(path)
    assert [fault.line for fault in faults] == [3, 3, 3, 4, 4, 5, 6]
    assert {fault.field for fault in faults} == {"instance", "usd_per_h", "currency", "device", "date", ""}


@pytest.mark.parametrize("currency", ["usd", "Usd", "USD", ""])
def test_the_currency_is_known_in_any_case(tmp_path: Path, currency: str) -> None:
    assert offer_of(tmp_path, RENTED | {"currency": currency}).usd_per_h == 12.5


def test_a_duplicate_row_is_refused_whatever_its_case(tmp_path: Path) -> None:
    (fault,) = faults_of(written(tmp_path, [RENTED, RENTED | {"instance": "BIG"}]))
    assert (fault.line, fault.problem) == (3, "mine/BIG/here/on-demand stands in line 2, too.")


@pytest.mark.parametrize("column", REQUIRED)
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    (fault,) = faults_of(written(tmp_path, [{key: value for key, value in RENTED.items() if key != column}]))
    assert (fault.line, fault.field, fault.problem) == (1, column, "the column is missing.")


def test_an_unknown_column_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (fault,) = faults_of(written(tmp_path, [RENTED | {"usd_per_hour": "3"}]))
    assert (fault.line, fault.field) == (1, "usd_per_hour")
    assert "'usd_per_h'" in fault.mend


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"  \n\n", "the file is empty"),
        (b"GIF89a\r\n\0\0", "this is a binary file"),
        (b"\xff\xfe\x01", "this is not UTF-8 text"),
        (b"PK\x03\x04\x14\0\xff", "this is a compressed file"),
        (b"\x1f\x8b\x08\xff", "this is a compressed file"),
        (",".join(RENTED).encode(), "there is no row in it"),
        (f"{','.join(RENTED)},region\n".encode(), "the column 'region' stands twice"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    (fault,) = faults_of(path)
    assert problem in fault.problem


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in faults_of(tmp_path / "none.csv")[0].problem
    assert "a folder" in faults_of(tmp_path)[0].problem


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, [RENTED | {"instance": f"i{index}"} for index in range(20)])
    monkeypatch.setattr(csv_table, "MOST_ROWS", 19)
    assert "more than 19 rows" in faults_of(path)[0].problem
    monkeypatch.setattr(csv_table, "MOST_BYTES", 100)
    assert "bytes, more than 100" in faults_of(path)[0].problem


def test_of_very_many_faults_the_number_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, [RENTED | {"instance": f"i{index}", "usd_per_h": "0"} for index in range(150)])
    faults = faults_of(path)
    assert len(faults) == 101
    assert "there are 50 more faults" in faults[-1].problem


def test_a_list_of_unusable_rows_alone_is_refused(tmp_path: Path) -> None:
    (fault,) = faults_of(written(tmp_path, [RENTED | {"unusable": "no reason"}]))
    assert "no row of it can be used" in fault.problem


cells = st.text(alphabet='0123456789.-e,;"\n a\u00e9/#', max_size=8)


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys([*REQUIRED, *OPTIONAL], cells)), max_size=4))
def test_whatever_a_row_holds_each_row_is_an_offer_or_unusable_or_a_fault(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[dict[str, str]]
) -> None:
    rows = [RENTED | {"instance": f"i{index}"} | changes for index, changes in enumerate(drawn)]
    path = written(tmp_path_factory.getbasetemp(), [RENTED, *rows], "drawn.csv")
    try:
        found = read_price_list(path, today=TODAY)
    except SpecError as error:
        assert all(fault.file and fault.problem and fault.mend for fault in error.faults)
        assert any(fault.line for fault in error.faults)
    else:
        commented = sum(row["provider"].startswith("#") for row in rows)
        assert len(found.offers) + len(found.unusable) + commented == len(rows) + 1


@given(st.binary(max_size=300))
def test_whatever_a_file_holds_it_is_a_list_or_an_error_of_the_input(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn.bin"
    header = ",".join(RENTED).encode() if content[:1] > b"\x7f" else b""
    path.write_bytes(header + content)
    for read in (read_price_list, read_networks):
        with pytest.raises(SpecError):
            read(path, today=TODAY)


# Several lists, and their age.


def test_a_later_list_takes_the_place_of_an_earlier_ones_row_and_says_so(tmp_path: Path) -> None:
    mine = written(tmp_path, [RENTED | {"instance": name} for name in ("a", "b")])
    dearer = written(tmp_path, [RENTED | {"instance": "B", "usd_per_h": "20"}], "dearer.csv")
    first, second = (read_price_list(path, today=TODAY) for path in (mine, dearer))
    both = merged([first, None, second])
    assert [(offer.instance, offer.usd_per_h) for offer in both.offers] == [("a", 12.5), ("B", 20)]
    (one,) = both.unusable
    assert one.name == "mine/b/here/on-demand"
    assert one.reason == f"replaced by the row of the same name in {dearer}"
    assert both.files == (str(mine), str(dearer))


def test_merging_drops_nothing(tmp_path: Path) -> None:
    shipped, mine = read_price_list(None), read_price_list(written(tmp_path, [RENTED]))
    both = merged([shipped, mine, shipped])
    rows = [*shipped.offers, *shipped.unusable, *mine.offers]
    assert len(both.offers) == len(shipped.offers) + 1
    assert len(both.offers) + len(both.unusable) == len(rows) + len(shipped.offers) + len(shipped.unusable)


def test_a_list_is_as_old_as_its_oldest_price(tmp_path: Path) -> None:
    old = RENTED | {"instance": "old", "date": (TODAY - timedelta(days=OLD_DAYS + 1)).isoformat()}
    prices = read_price_list(written(tmp_path, [RENTED, old]), today=TODAY)
    assert age_days(prices, TODAY) == OLD_DAYS + 1
    assert prices.oldest == date(2026, 8, 22)


# Network tiers.

TIER = {
    "name": "ten",
    "gbit_per_s_per_port": "10",
    "ports": "2",
    "usd_per_port": "150",
    "date": "2026-01-01",
    "source": "s",
}


def test_a_tier_counts_all_ports_of_a_machine(tmp_path: Path) -> None:
    more = {"most": "48", "latency_us": "30", "power_w_per_port": "5"}
    (tier,) = read_networks(written(tmp_path, [TIER | more]), today=TODAY)
    assert (tier.network_bytes_per_s, tier.usd, tier.most) == (2.5e9, 300, 48)
    assert tier.latency_s == pytest.approx(30e-6)
    assert tier.power_w == 10


def test_a_larger_network_of_the_same_rate_costs_a_machine_more() -> None:
    tiers = read_networks(None, today=TODAY)
    assert len({tier.network_bytes_per_s for tier in tiers}) == 1
    assert [tier.usd for tier in tiers] == sorted(tier.usd for tier in tiers)
    assert [tier.most or 0 for tier in tiers] == sorted(tier.most or 0 for tier in tiers)


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        (TIER | {"usd_per_port": "-1"}, "usd_per_port", "is not 0 or more"),
        (TIER | {"usd_per_port": ""}, "usd_per_port", "the cell is empty"),
        (TIER | {"gbit_per_s_per_port": "0"}, "gbit_per_s_per_port", "is not more than 0"),
        (TIER | {"ports": "none"}, "ports", "is not a whole number"),
        (TIER | {"name": "t-e-n"}, "name", "stands in line 2, too"),
        (TIER | {"date": "2027-01-01"}, "date", "is in the future"),
    ],
)
def test_a_fault_of_a_tier_comes_with_line_and_column(
    tmp_path: Path, row: dict[str, str], column: str, problem: str
) -> None:
    path = written(tmp_path, [TIER, {**row, "name": "other" if row["name"] == "ten" else row["name"]}])
    with pytest.raises(SpecError) as caught:
        read_networks(path, today=TODAY)
    (fault,) = caught.value.faults
    assert (fault.file, fault.line, fault.field) == (str(path), 3, column)
    assert problem in fault.problem
