"""Public catalogues of prices; every sample is written by hand after the documentation that the reader names."""

import json
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from planner.cli.run import run
from planner.errors import SpecError
from planner.procurement.catalogue_join import PricesImport, import_prices
from planner.procurement.prices import Offer, read_price_list

TODAY = date(2026, 11, 21)
DAY = date(2026, 11, 2)
SKYPILOT = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
m5.large,,,2.0,8.0,,0.096,0.04,us-east-1,use1-az1,x86_64
p4d.24xlarge,A100,8.0,96.0,1152.0,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 40960}}]}",32.77,9.5,us-east-1,use1-az1,x86_64
p4d.24xlarge,A100,8.0,96.0,1152.0,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 40960}}]}",32.77,8.5,us-east-1,use1-az2,x86_64
g5g.xlarge,T4g,1.0,4.0,8.0,,0.42,,us-east-1,use1-az1,arm64
p9.48xlarge,A100,8.0,96.0,1152.0,,30,,us-east-1,use1-az1,x86_64
new.l40s,L40S,4.0,96.0,1152.0,,9.9,,eu-west-1,euw1-az1,x86_64
p5.48xlarge,H100,4.0,192.0,2048.0,,55.04,,us-east-1,use1-az1,x86_64
"""


def written(folder: Path, text: str | Mapping[str, Any], name: str = "catalogue.json") -> Path:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


def imported(*files: Path, **options: Any) -> PricesImport:
    return import_prices(files, **{"today": TODAY, "day": DAY, **options})


def offers_of(found: PricesImport, folder: Path) -> dict[str, Offer]:
    """Return the offers of the list that is written, as a purchase reads it."""
    prices = read_price_list(written(folder, found.to_csv(), "out.csv"), today=TODAY)
    return {offer.name: offer for offer in prices.offers}


def reasons(found: PricesImport) -> dict[str, int]:
    rows = [*found.not_joined.rows(), *found.catalogue.left_out.rows()]
    return {row["reason"]: row["rows"] for row in rows}


# --- SkyPilot


def test_a_skypilot_catalogue_becomes_offers_of_the_machines_that_are_known(tmp_path: Path) -> None:
    found = imported(written(tmp_path, SKYPILOT, "vms.csv"), provider="aws")
    offers = offers_of(found, tmp_path)
    assert set(offers) == {
        "aws/p4d.24xlarge/us-east-1/on-demand",
        "aws/p4d.24xlarge/us-east-1/spot",
        "aws/new.l40s/eu-west-1/on-demand",
    }
    machine = offers["aws/p4d.24xlarge/us-east-1/on-demand"]
    assert (machine.device, machine.devices_per_machine, machine.inside) == ("a100-sxm4-40gb", 8, "nvlink-3")
    assert machine.usd_per_h == pytest.approx(32.77)
    assert machine.date == DAY and "SkyPilot" in machine.source


def test_the_rate_of_a_network_is_the_machines_and_not_each_cards(tmp_path: Path) -> None:
    offers = offers_of(imported(written(tmp_path, SKYPILOT, "vms.csv"), provider="aws"), tmp_path)
    machine = offers["aws/p4d.24xlarge/us-east-1/on-demand"]
    assert machine.network_bytes_per_s == pytest.approx(400e9 / 8)  # four cards of 100 Gbit/s


def test_the_cheapest_zone_counts_and_the_dearest_is_told(tmp_path: Path) -> None:
    offers = offers_of(imported(written(tmp_path, SKYPILOT, "vms.csv"), provider="aws"), tmp_path)
    spot = offers["aws/p4d.24xlarge/us-east-1/spot"]
    assert spot.usd_per_h == pytest.approx(8.5)
    assert "up to 9.5 USD" in spot.note


def test_what_cannot_be_joined_is_counted_with_its_reason_and_kept_as_unusable(tmp_path: Path) -> None:
    found = imported(written(tmp_path, SKYPILOT, "vms.csv"), provider="aws")
    told = reasons(found)
    assert told["no accelerator"] == 1
    assert told["no rates of t4g in the device table"] == 1
    assert told["A100 is sold in several forms, and the tables do not hold this instance type"] == 1
    assert told["the catalogue has 4 accelerators, and the tables 8"] == 1
    listed = read_price_list(written(tmp_path, found.to_csv(), "out.csv"), today=TODAY)
    assert {row.name.split("/")[1] for row in listed.unusable} == {"g5g.xlarge", "p9.48xlarge", "p5.48xlarge"}


def test_on_google_cloud_accelerators_are_rows_of_their_own_and_are_added(tmp_path: Path) -> None:
    text = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
a2-highgpu-8g,96.0,680.0,,,,us-central1,us-central1-a,5.9,2.9
a2-highgpu-8g,96.0,680.0,,,,europe-west4,europe-west4-a,6.5,2.5
,,,A100,8.0,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 40960}}]}",us-central1,us-central1-a,23.5,11.7
,,,P4,1.0,,us-central1,us-central1-a,0.6,0.2
"""
    found = imported(written(tmp_path, text, "gcp.csv"))
    offers = offers_of(found, tmp_path)
    assert set(offers) == {f"gcp/a2-highgpu-8g/us-central1/{term}" for term in ("on-demand", "spot")}
    assert offers["gcp/a2-highgpu-8g/us-central1/on-demand"].usd_per_h == pytest.approx(29.4)
    assert reasons(found)["on-demand: no price of its 8 x A100 in the same zone"] == 1


def test_memory_that_differs_is_another_device(tmp_path: Path) -> None:
    text = SKYPILOT.replace("40960", "81920")
    with pytest.raises(SpecError, match="none of its"):
        imported(written(tmp_path, text, "vms.csv"), provider="aws", regions=["us-*"])


# --- AWS


def product(sku: str, instance: str = "p4d.24xlarge", **changes: str) -> dict[str, Any]:
    attributes = {
        **{"servicecode": "AmazonEC2", "location": "US East (N. Virginia)", "regionCode": "us-east-1"},
        **{"instanceType": instance, "vcpu": "96", "memory": "1152 GiB", "gpu": "8", "tenancy": "Shared"},
        **{"operatingSystem": "Linux", "capacitystatus": "Used", "preInstalledSw": "NA", "operation": "RunInstances"},
    }
    return {sku: {"sku": sku, "productFamily": "Compute Instance", "attributes": attributes | changes}}


def offer(sku: str, code: str, prices: Mapping[str, str], **terms: str) -> dict[str, Any]:
    parts = {
        f"{sku}.{code}.{index}": {"unit": unit, "pricePerUnit": {"USD": price}}
        for index, (unit, price) in enumerate(prices.items())
    }
    return {f"{sku}.{code}": {"offerTermCode": code, "sku": sku, "priceDimensions": parts, "termAttributes": terms}}


def aws() -> dict[str, Any]:
    year = {"LeaseContractLength": "1yr", "OfferingClass": "standard"}
    three = {"LeaseContractLength": "3yr", "OfferingClass": "standard"}
    return {
        "formatVersion": "v1.0",
        "offerCode": "AmazonEC2",
        "version": "20261101000000",
        "publicationDate": "2026-11-01T00:00:00Z",
        "products": {
            **product("A"),
            **product("B", operatingSystem="Windows"),
            **product("C", tenancy="Dedicated"),
            **product("D", instance="m5.large", gpu=""),
        },
        "terms": {
            "OnDemand": {
                "A": offer("A", "J", {"Hrs": "21.957642"}),
                "B": offer("B", "J", {"Hrs": "40"}),
            },
            "Reserved": {
                "A": {
                    **offer("A", "K", {"Hrs": "13"}, PurchaseOption="No Upfront", **year),
                    **offer("A", "L", {"Hrs": "0", "Quantity": "105120"}, PurchaseOption="All Upfront", **year),
                    **offer("A", "M", {"Hrs": "9"}, PurchaseOption="No Upfront", **three),
                    **offer("A", "N", {"Hrs": "1"}, **{**year, "OfferingClass": "convertible"}),
                }
            },
        },
    }


def aws_csv() -> str:
    """Return the same list as :func:`aws` in the form of CSV, but for its parts that are left out."""
    columns = "SKU,OfferTermCode,RateCode,TermType,PriceDescription,EffectiveDate,StartingRange,EndingRange,Unit"
    columns += ",PricePerUnit,Currency,RelatedTo,LeaseContractLength,PurchaseOption,OfferingClass,Product Family"
    columns += ",serviceCode,Location,Location Type,Instance Type,vCPU,Memory,Tenancy,Operating System,GPU"
    columns += ",CapacityStatus,operation,Pre Installed S/W,Region Code"
    machine = "Compute Instance,AmazonEC2,US East (N. Virginia),AWS Region,p4d.24xlarge,96,1152 GiB,Shared,Linux,8"
    machine += ",Used,RunInstances,NA,us-east-1"
    rows = [
        f"A,J,A.J.6,OnDemand,,2026-11-01,0,Inf,Hrs,21.957642,USD,,,,,{machine}",
        f"A,K,A.K.6,Reserved,,2026-11-01,0,Inf,Hrs,13,USD,,1yr,No Upfront,standard,{machine}",
        f"A,L,A.L.6,Reserved,,2026-11-01,0,Inf,Hrs,0,USD,,1yr,All Upfront,standard,{machine}",
        f"A,L,A.L.2,Reserved,,2026-11-01,,,Quantity,105120,USD,,1yr,All Upfront,standard,{machine}",
        f"A,M,A.M.6,Reserved,,2026-11-01,0,Inf,Hrs,9,USD,,3yr,No Upfront,standard,{machine}",
    ]
    about = ["FormatVersion,v1.0", 'Disclaimer,"a word"', "Publication Date,2026-11-01T00:00:00Z", "Version,1"]
    return "\n".join([*about, "OfferCode,AmazonEC2", columns, *rows]) + "\n"


@pytest.mark.parametrize("form", ["json", "csv"])
def test_an_aws_price_list_gives_machines_on_demand_and_reserved_for_one_and_three_years(
    tmp_path: Path, form: str
) -> None:
    file = written(tmp_path, aws()) if form == "json" else written(tmp_path, aws_csv(), "index.csv")
    found = imported(file, day=None)
    offers = offers_of(found, tmp_path)
    assert set(offers) == {
        f"aws/p4d.24xlarge/us-east-1/{term}" for term in ("on-demand", "reserved/8760 h", "reserved/26280 h")
    }
    assert {one.date for one in offers.values()} == {date(2026, 11, 1)}
    year = offers["aws/p4d.24xlarge/us-east-1/reserved/8760 h"]
    assert year.usd_per_h == pytest.approx(12.0)  # all of it at the start is cheaper than 13 an hour
    assert year.upfront_usd == pytest.approx(105120)
    assert year.committed_s == pytest.approx(8760 * 3600)


def test_windows_dedicated_and_convertible_are_left_out_and_counted(tmp_path: Path) -> None:
    told = reasons(imported(written(tmp_path, aws()), day=None))
    assert told["another operating system than Linux"] == 1
    assert told["another tenancy than shared"] == 1
    assert told["reserved: convertible"] == 1


# --- Azure


def azure_item(price: float, name: str = "ND96isr H100 v5", **changes: Any) -> dict[str, Any]:
    return {
        **{"currencyCode": "USD", "tierMinimumUnits": 0.0, "retailPrice": price, "unitPrice": price},
        **{"armRegionName": "eastus", "effectiveStartDate": "2023-11-01T00:00:00Z", "meterName": name},
        **{"productName": "Virtual Machines NDsrH100v5 Series", "skuName": name, "serviceName": "Virtual Machines"},
        **{"unitOfMeasure": "1 Hour", "type": "Consumption", "armSkuName": "Standard_ND96isr_H100_v5"},
    } | changes


def azure(items: list[dict[str, Any]], following: str | None = None) -> dict[str, Any]:
    return {"BillingCurrency": "USD", "Items": items, "NextPageLink": following, "Count": len(items)}


def test_azures_prices_of_reservations_are_those_of_the_whole_term(tmp_path: Path) -> None:
    items = [
        azure_item(98.32),
        azure_item(20.0, "ND96isr H100 v5 Spot"),
        azure_item(15.0, "ND96isr H100 v5 Low Priority"),
        azure_item(120.0, productName="Virtual Machines NDsrH100v5 Series Windows"),
        azure_item(8760 * 60.0, type="Reservation", reservationTerm="1 Year"),
        azure_item(26280 * 40.0, type="Reservation", reservationTerm="3 Years"),
        azure_item(0.1, armSkuName="Standard_D2s_v5"),
    ]
    offers = offers_of(imported(written(tmp_path, azure(items))), tmp_path)
    prices = {name.split("/", 3)[3]: one.usd_per_h for name, one in offers.items()}
    wanted = {"on-demand": 98.32, "spot": 20, "reserved/8760 h": 60, "reserved/26280 h": 40}
    assert prices == pytest.approx(wanted)


SKUS_WITHOUT_MACHINES = {"description": "Licensing Fee", "category": {"resourceFamily": "License"}}


def test_pages_are_put_together_and_one_that_is_missing_is_told(tmp_path: Path) -> None:
    one = written(tmp_path, azure([azure_item(98.32)], "https://prices.azure.com/?$skip=100"), "1.json")
    two = written(tmp_path, azure([azure_item(97.0, armRegionName="westus")]), "2.json")
    assert len(imported(one, two).usable) == 2
    assert not imported(one, two).notes
    assert any("page follows" in note for note in imported(one).notes)


def test_a_page_that_is_missing_is_told_where_nothing_could_be_joined(tmp_path: Path) -> None:
    one = written(tmp_path, {"skus": [SKUS_WITHOUT_MACHINES], "nextPageToken": "more"})
    with pytest.raises(SpecError, match=r"A page follows that was not given \(nextPageToken\)"):
        imported(one)


@pytest.mark.parametrize("content", [{"skus": []}, {"Items": [], "NextPageLink": None}])
def test_a_catalogue_without_a_price_is_told_to_be_empty(tmp_path: Path, content: Mapping[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"of no price at all\. Get it again"):
        imported(written(tmp_path, content), day=None)


def test_another_currency_needs_a_rate(tmp_path: Path) -> None:
    file = written(tmp_path, azure([azure_item(90.0, currencyCode="EUR")]))
    with pytest.raises(SpecError, match="--rate EUR"):
        imported(file)
    (found,) = offers_of(imported(file, rates={"EUR": 1.1}), tmp_path).values()
    assert found.usd_per_h == pytest.approx(99.0)
    assert "90 EUR" in found.note


# --- Google Cloud


def sku(
    words: str, group: str, nanos: int, units: str = "0", unit: str = "h", usage: str = "OnDemand"
) -> dict[str, Any]:
    price = {"currencyCode": "USD", "units": units, "nanos": nanos}
    expression = {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]}
    return {
        "description": words,
        "category": {"resourceFamily": "Compute", "resourceGroup": group, "usageType": usage},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": expression, "effectiveTime": "2026-11-03T07:00:00Z"}],
    }


def test_google_clouds_parts_are_added_up_and_what_is_no_part_is_counted(tmp_path: Path) -> None:
    skus = [
        sku("A3 Instance Core running in Iowa", "CPU", 29_000_000),
        sku("A3 Instance Ram running in Iowa", "RAM", 2_500_000, unit="GiBy.h"),
        sku("Nvidia H100 80GB GPU running in Iowa", "GPU", 800_000_000, units="9"),
        sku("Nvidia Tesla T4 GPU running in Iowa", "GPU", 350_000_000),
        sku("Nvidia L4 GPU running in Iowa", "GPU", 560_000_000),
        sku("N1 Predefined Instance Core running in Iowa", "N1Standard", 31_000_000),
        sku("Cloud TPU v5e chip in Iowa", "TPU", 200_000_000, units="1"),
        sku("A3 Instance Core running in Iowa, reserved", "CPU", 1_000_000),
    ]
    found = imported(written(tmp_path, {"skus": skus, "nextPageToken": ""}), day=None)
    offers = offers_of(found, tmp_path)
    whole = offers["gcp/a3-highgpu-8g/us-central1/on-demand"]
    assert whole.usd_per_h == pytest.approx(208 * 0.029 + 1872 * 0.0025 + 8 * 9.8)
    assert whole.date == date(2026, 11, 3)
    told = reasons(found)
    assert told["an accelerator of Google Cloud without a machine of its own"] == 1  # T4
    assert told["a TPU is priced by the chip, and not as a machine"] == 1
    assert told["on-demand: no SKU of its cores or memory in the region"] == 8  # every G2 with L4


def test_commitments_of_google_cloud_are_reserved_offers(tmp_path: Path) -> None:
    skus = [
        sku("Commitment v1: A2 Cpu in Iowa for 1 Year", "CPU", 20_000_000, usage="Commit1Yr"),
        sku("Commitment v1: A2 Ram in Iowa for 1 Year", "RAM", 2_000_000, unit="GiBy.h", usage="Commit1Yr"),
        sku("Commitment v1: Nvidia Tesla A100 GPU running in Iowa for 1 Year", "GPU", 0, "2", usage="Commit1Yr"),
    ]
    offers = offers_of(imported(written(tmp_path, {"skus": skus}), day=None), tmp_path)
    assert offers["gcp/a2-highgpu-8g/us-central1/reserved/8760 h"].usd_per_h == pytest.approx(
        96 * 0.02 + 680 * 0.002 + 16
    )


# --- What is wrong with a file is told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("{", "no JSON"),
        ("[]", "neither an object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"Items": []}', "of no price at all"),
        ('{"Items": [1, null, [], {"retailPrice": "NaN", "armSkuName": {}}]}', "none of its 4 rows"),
        ('{"skus": [{"category": 3, "pricingInfo": {}, "serviceRegions": 7}]}', "none of its 1 rows"),
        ('{"products": 3, "terms": []}', "of no price at all"),
        ('{"a": 1}', "no catalogue of prices"),
        ("a,b\n1,2\n", "no catalogue of prices"),
        ("InstanceType,AcceleratorName,Price\n", "AcceleratorCount"),
        ("FormatVersion,v1.0\n", "SKU"),
        (SKYPILOT.replace("x86_64", '"x'), "no row of CSV"),
    ],
)
def test_wrong_files_are_refused_with_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        imported(written(tmp_path, text, "vms.csv"), provider="aws" if text.startswith("Inst") else None)


@pytest.mark.parametrize("price", ["-1", "1e999", "nan", "inf", "x", "0", "9" * 400])
def test_a_price_that_is_none_is_counted_and_never_an_offer(tmp_path: Path, price: str) -> None:
    found = imported(written(tmp_path, SKYPILOT.replace("9.9", price), "vms.csv"), provider="aws")
    assert all(row["instance"] != "new.l40s" for row in found.usable)
    assert any("none" in row["reason"] for row in found.catalogue.left_out.rows())


def test_a_price_beyond_reason_is_no_offer_and_says_so(tmp_path: Path) -> None:
    found = imported(written(tmp_path, SKYPILOT.replace("9.9", "9e50"), "vms.csv"), provider="aws")
    (row,) = [row for row in found.rows if row["instance"] == "new.l40s"]
    assert "usd_per_h" in row["unusable"] and "is beyond" in row["unusable"]
    assert "new.l40s" not in {offer.instance for offer in offers_of(found, tmp_path).values()}


def test_names_of_others_stay_names(tmp_path: Path) -> None:
    text = SKYPILOT.replace("new.l40s", '"=cmd|\x1b[31m/x"').replace("eu-west-1", "=1+1")
    offers = offers_of(imported(written(tmp_path, text, "vms.csv"), provider="aws"), tmp_path)
    name = next(name for name in offers if "cmd" in name)
    assert name.isprintable() and name.startswith("aws/'=cmd")


def test_a_catalogue_without_a_day_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--date"):
        imported(written(tmp_path, SKYPILOT, "vms.csv"), provider="aws", day=None)
    with pytest.raises(SpecError, match="future"):
        imported(written(tmp_path, SKYPILOT, "vms.csv"), provider="aws", day=date(2027, 1, 1))


def test_the_command_writes_a_list_that_a_purchase_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "aws"
    folder.mkdir()
    file, out = written(folder, SKYPILOT, "vms.csv"), tmp_path / "aws.csv"
    assert run(["prices", "import", str(file), "--date", "2026-11-02", "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Joined: 3 prices of 2 machines in 2 regions (2 on-demand, 1 spot)" in said
    assert "no rates of t4g in the device table: g5g.xlarge" in said
    assert run(["show", "prices", str(out)]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--date", "yesterday"], "is not a date"),
        (["--rate", "EUR"], "no rate of a currency"),
        (["-o", "prices.yaml"], "Name a .csv file"),
        (["--provider", "a/b"], "no name of a provider"),
    ],
)
def test_flags_that_mean_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    file = written(tmp_path, SKYPILOT, "vms.csv")
    assert run(["prices", "import", str(file), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_same_catalogue_gives_the_same_list_on_any_day(tmp_path: Path) -> None:
    file = written(tmp_path, aws())
    make: Callable[[date], str] = lambda today: imported(file, day=None, today=today).to_csv()  # noqa: E731
    assert make(TODAY) == make(date(2031, 1, 1))
