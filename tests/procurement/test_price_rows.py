import csv
import json
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pytest import CaptureFixture

from planner import data
from planner.cli.run import run
from planner.errors import SpecError
from planner.procurement.prices import COLUMNS, PriceList, price_rows, price_totals, read_price_list

TODAY = date(2026, 11, 21)
SHIPPED = read_price_list(None, today=TODAY)


def names(rows: list[dict[str, Any]]) -> list[str]:
    return ["/".join([row["provider"], row["instance"], row["region"], row["term"]]) for row in rows]


def test_all_offers_are_shown_in_the_lists_order_and_the_unusable_rows_last() -> None:
    rows = price_rows(SHIPPED, unusable=True)
    assert names(rows) == [offer.name for offer in SHIPPED.offers] + [one.name for one in SHIPPED.unusable]
    assert price_rows(SHIPPED) == rows[: len(SHIPPED.offers)]
    assert [row["unusable"] for row in rows[len(SHIPPED.offers) :]] == [one.reason for one in SHIPPED.unusable]
    assert len({tuple(row) for row in rows}) == 1
    assert set(COLUMNS) <= set(rows[0])


@pytest.mark.parametrize(
    ("where", "keeps"),
    [
        ("provider=aws", lambda row: row["provider"] == "aws"),
        ("provider = AWS , term=spot", lambda row: (row["provider"], row["term"]) == ("aws", "spot")),
        ("device=a100*", lambda row: row["device"].startswith("a100")),
        ("Device!=*100*", lambda row: "100" not in row["device"]),
        ("usd_per_h<5", lambda row: row["usd_per_h"] is not None and row["usd_per_h"] < 5),
        ("usd_per_h>=5,devices>1", lambda row: (row["usd_per_h"] or 0) >= 5 and row["devices"] > 1),
        ("devices=8.0", lambda row: row["devices"] == 8),
        ("network_gbit_per_s!=400", lambda row: row["network_gbit_per_s"] != 400),
        ("date>2026-06-30", lambda row: row["date"] > "2026-06-30"),
        ("date=2026-*", lambda row: row["date"].startswith("2026")),
        ("instance=nothing", lambda row: False),
        (" , ", lambda row: True),
    ],
)
def test_conditions_keep_the_rows_that_hold_them_all(where: str, keeps: Callable[[dict[str, Any]], bool]) -> None:
    every = price_rows(SHIPPED)
    assert price_rows(SHIPPED, where=where) == [row for row in every if keeps(row)]


@pytest.mark.parametrize(
    "sort", ["usd_per_h", "-usd_per_h", "device", "-date", "purchase_usd", "usd_per_petaflop_hour"]
)
def test_rows_are_sorted_and_those_without_the_figure_stand_last(sort: str) -> None:
    key = sort.removeprefix("-")
    rows = price_rows(SHIPPED, sort=sort)
    assert sorted(names(rows)) == sorted(names(price_rows(SHIPPED)))
    figures = [row[key] for row in rows]
    known = [figure for figure in figures if figure is not None]
    assert figures[len(known) :] == [None] * (len(figures) - len(known))
    assert known == sorted(known, reverse=sort.startswith("-"))


def test_equal_rows_stay_in_the_lists_order() -> None:
    order = {name: index for index, name in enumerate(names(price_rows(SHIPPED)))}
    for sort in ("devices", "-devices"):
        rows = price_rows(SHIPPED, sort=sort)
        for row, after in pairwise(rows):
            if row["devices"] == after["devices"]:
                assert order[names([row])[0]] < order[names([after])[0]]


def test_a_petaflop_hour_is_the_price_over_the_peak() -> None:
    rows = dict(zip(names(price_rows(SHIPPED)), price_rows(SHIPPED), strict=True))
    h100 = rows["aws/p5.48xlarge/us-east-1/on-demand"]
    assert h100["dtype"] == "bf16"
    assert h100["usd_per_petaflop_hour"] == pytest.approx(55.04 / (8 * 0.989))
    bought = rows["purchase/h100-server/own/bought"]
    assert bought["usd_per_h"] is None
    assert bought["usd_per_petaflop_hour"] == pytest.approx((310000 / 43800 + 1667.09 / 730) / (8 * 0.989))
    old = rows["aws/p3.2xlarge/us-east-1/on-demand"]
    assert (old["dtype"], old["usd_per_petaflop_hour"]) == ("fp16", pytest.approx(3.06 / 0.125))


def test_figures_are_those_of_the_file() -> None:
    mine = price_rows(SHIPPED, where="instance=p5.48xlarge,term=on-demand")[0]
    assert (mine["network_gbit_per_s"], mine["memory_gib"], mine["vcpus"]) == (3200, 2048, 192)
    assert data.device(mine["device"]).name == mine["device"]


@pytest.mark.parametrize(
    ("where", "sort", "words"),
    [
        ("provider", "", "'provider' is not a condition"),
        ("usd_per_h<cheap", "", "'cheap' cannot be compared"),
        ("provider<aws", "", "'aws' cannot be compared"),
        ("date<2026", "", "Write a day"),
        ("price=3", "", "'price' is not a known column"),
        ("", "usd_per_hour", "Did you mean 'usd_per_h'"),
        ("", "-", "'' is not a known column"),
    ],
)
def test_what_is_no_condition_or_no_column_is_refused(where: str, sort: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        price_rows(SHIPPED, where=where, sort=sort)
    assert caught.value.faults[0].field == ("--where" if where else "--sort")


def test_both_counts_are_told() -> None:
    totals = price_totals(SHIPPED, [], TODAY)
    assert totals["rows"] == totals["usable"] + totals["unusable"]
    assert (totals["usable"], totals["unusable"], totals["shown"]) == (len(SHIPPED.offers), len(SHIPPED.unusable), 0)


def test_a_device_of_the_question_has_no_peak(tmp_path: Path) -> None:
    text = "provider,instance,region,term,device,devices,date,source,usd_per_h\nme,a,x,spot,fpga,1,2026-01-01,s,3\n"
    (tmp_path / "mine.csv").write_text(text)
    prices: PriceList = read_price_list(tmp_path / "mine.csv", custom_devices=["fpga"])
    (row,) = price_rows(prices, sort="usd_per_petaflop_hour")
    assert (row["dtype"], row["usd_per_petaflop_hour"], row["power_w"]) == (None, None, None)


def answer(capsys: CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["show", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_show_prints_prices_filtered_and_sorted(capsys: CaptureFixture[str]) -> None:
    code, out, _ = answer(capsys, "prices", "--where", "provider=aws,term=spot,device=a100*", "--sort", "-usd_per_h")
    assert code == 0
    assert out.index("p4de.24xlarge") < out.index("p4d.24xlarge")
    assert "p5.48xlarge" not in out
    assert f"usable: {len(SHIPPED.offers)}" in out
    assert f"unusable: {len(SHIPPED.unusable)}" in out


def test_show_prints_why_rows_cannot_be_used(capsys: CaptureFixture[str]) -> None:
    _, out, _ = answer(capsys, "prices", "--where", "device=t4g", "--unusable")
    assert "no rates of t4g in the device table" in out


def test_show_prints_prices_as_one_document(capsys: CaptureFixture[str]) -> None:
    code, out, _ = answer(capsys, "prices", "--where", "instance=g5g*", "--unusable", "--json")
    document = json.loads(out)
    assert (code, document["schema"], document["what"]) == (0, "planner.show/1", "prices")
    assert document["totals"]["shown"] == len(document["rows"]) == 6
    assert all(row["unusable"] for row in document["rows"])


def test_show_reads_a_list_of_ones_own_and_tells_all_its_faults(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["provider", "instance", "region", "term", "device", "devices", "date", "source", "usd_per_h"])
        rows.writerow(["mine", "a", "x", "on-demand", "h100", "1", "2026-01-01", "me", "2"])
    code, out, _ = answer(capsys, "prices", str(path))
    assert code == 0
    assert "h100-sxm" in out
    with path.open("a") as file:
        file.write("mine,a,x,on-demand,h100,1,2999-01-01,me,0\n")
    code, out, err = answer(capsys, "prices", str(path), "--json")
    assert code == 2
    faults = json.loads(out)["faults"]
    assert [(fault["line"], fault["field"], fault["value"]) for fault in faults] == [
        (3, "instance", "a"),
        (3, "date", "2999-01-01"),
        (3, "usd_per_h", "0"),
    ]
    assert "Traceback" not in err


def test_options_of_prices_are_refused_elsewhere(capsys: CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, "devices", "--sort", "name")
    assert (code, out) == (2, "")
    assert "--sort" in err
