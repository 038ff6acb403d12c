"""Questions that are wrong: where, what, and how to mend it."""

import json
from pathlib import Path
from typing import Any

import purchases
import pytest
from purchases import DNN, row
from pytest import CaptureFixture

import planner
from planner.cli.run import run
from planner.errors import SpecError

ROWS = [row("small"), row("large", device="v100-sxm2-16g", usd_per_h=3)]
PROFILE = {"layers": [{"name": "a", "forward": "3 ms", "backward": "6 ms", "parameters": "4 MB"}], "profile_batch": 32}


def asked(folder: Path, change: dict[str, Any], **block: Any) -> dict[str, Any]:
    """Return a question with some blocks changed, or left out where they are None."""
    question = {**purchases.asked(folder / "list.csv", ROWS, **block), **change}
    return {key: value for key, value in question.items() if value is not None}


BLOCKS: list[tuple[dict[str, Any], str, str]] = [
    ({"quotas": {"smal": 2}}, "procure.quotas.smal", "Did you mean 'small'"),
    ({"providers": "acm"}, "procure.providers.0", "Did you mean 'acme'"),
    ({"devices": ["t4", "v10"]}, "procure.devices.1", "Known: t4, v100-sxm2-16g"),
    ({"regions": "west"}, "procure.regions.0", "east"),
    ({"instances": "huge*"}, "procure.instances.0", "no offer is meant"),
    ({"budget": "-5 USD"}, "procure.budget", "not negative"),
    ({"budget": 500}, "procure.budget", "has no unit"),
    ({"deadline": 24}, "procure.deadline", "has no unit"),
    ({"deadline": "24 USD"}, "procure.deadline", "24 USD"),
    ({"discounts": {"acmee": 0.1}}, "procure.discounts.acmee", "Did you mean 'acme'"),
    ({"discounts": {"acme": 1}}, "procure.discounts.acme", "it must be less than 1"),
    ({"objective": "value_of_time"}, "procure", "usd_per_hour_saved belong together"),
    ({"terms": ["on-demand", "reserved"]}, "procure", "reserved belong together"),
    ({"terms": []}, "procure.terms", ""),
    ({"most_types": 4}, "procure.most_types", "3"),
    ({"quotas": {"small": -1}}, "procure.quotas.small", "0"),
    ({"run": {"checkpoint_interval": "10 min"}}, "procure.run", "needs checkpoint"),
    ({"prices": "nothere.csv"}, "procure.prices.0", "there is no such file"),
]
WHOLE: list[tuple[dict[str, Any], str, str]] = [
    ({"dnn": None}, "", "either dnn or procure.jobs"),
    ({"cluster": {"preset": "dgx-a100"}}, "cluster", "the machines are what is asked"),
    ({"objective": "cost"}, "objective", "stands under procure"),
    ({"constraints": {"deadline": "2 h"}}, "constraints.deadline", "asked under procure"),
    ({"constraints": {"machines": 3}}, "constraints.machines", "asked under procure"),
    ({"dnn": {"zoo": "alexnet", "batch_per_device": 32, "epochs": 1}}, "dnn.batch_per_device", "dnn.global_batch"),
    ({"dnn": {"zoo": "alexnet", "epochs": 1}}, "dnn.global_batch", "must be given"),
    ({"dnn": {**DNN, "zoo": "alexnett"}}, "dnn.zoo", "Did you mean 'alexnet'"),
    ({"dnn": {"zoo": "alexnet", "global_batch": 256}}, "dnn", "epochs"),
    ({"dnn": {**PROFILE, "global_batch": 64, "epochs": 1, "dataset_samples": 9}}, "dnn.profile_device", "measured"),
    ({"dnn": {**PROFILE, "global_batch": 64, "epochs": 1, "profile_device": "t4"}}, "dnn", "samples"),
    ({"procure": {"nothing": 1}}, "procure.nothing", "unknown key"),
    ({"procure": "cheap"}, "procure", "mapping"),
]


@pytest.mark.parametrize(
    ("change", "block", "field", "words"),
    [*(({}, block, field, words) for block, field, words in BLOCKS), *((one, {}, *rest) for one, *rest in WHOLE)],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, change: dict[str, Any], block: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        planner.procure(asked(tmp_path, change, **block), today=purchases.TODAY)
    assert any(fault.field.startswith(field) for fault in caught.value.faults)
    assert words in str(caught.value)
    assert all(fault.mend for fault in caught.value.faults)


def test_all_faults_are_told_in_one_pass(tmp_path: Path) -> None:
    question = asked(tmp_path, {"dnn": {"zoo": "alexnet", "epochs": 1}}, providers="acm", quotas={"smal": 1})
    with pytest.raises(SpecError) as caught:
        purchases.loaded(question)
    assert {fault.field for fault in caught.value.faults} == {
        "dnn.global_batch",
        "procure.providers.0",
        "procure.quotas.smal",
    }


def test_of_many_names_only_the_nearest_are_told(tmp_path: Path) -> None:
    rows = [row(f"{kind}{number}", region=f"r-{number}") for kind in ("big", "tiny") for number in range(9)]
    with pytest.raises(SpecError) as caught:
        purchases.loaded(purchases.asked(tmp_path / "many.csv", rows, instances="b9x7", regions="zone*"))
    mends = {fault.field: fault.mend for fault in caught.value.faults}
    assert set(mends) == {"procure.instances.0", "procure.regions.0"}
    assert mends["procure.instances.0"].startswith("The nearest of 18: big")
    assert all(mend.count(",") == 4 for mend in mends.values())


def test_dnn_and_jobs_exclude_each_other(tmp_path: Path) -> None:
    jobs = [{"name": "a", "dnn": dict(DNN), "runs_per_month": 3}]
    with pytest.raises(SpecError, match=r"either dnn or procure\.jobs"):
        purchases.loaded(asked(tmp_path, {}, jobs=jobs))


@pytest.mark.parametrize("block", [None, {}])
def test_an_empty_block_means_the_shipped_list_and_no_limits(block: dict[str, Any] | None) -> None:
    procurement = purchases.loaded({"dnn": dict(DNN), "procure": block})
    assert procurement.asked.objective == "cost"
    assert procurement.prices.files == ("the built-in price list",)
    assert all(limit is None for limit in (procurement.asked.deadline, procurement.asked.budget))


def test_discounts_and_quotas_change_the_offers_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    block = {"discounts": {"Acme": 0.25}, "quotas": {"small": 7, "large": 0}}
    procurement = purchases.loaded(asked(tmp_path, {}, **block))
    assert [(offer.instance, offer.usd_per_h, offer.most) for offer in procurement.offers] == [("small", 0.75, 7)]
    assert procurement.left_out == {"with a quota of 0": 1}


def test_reserved_machines_and_network_tiers_are_offers_of_their_own(tmp_path: Path) -> None:
    bought = row("own", term="bought", purchase_usd=5000, useful_life_years=3, network_gbit_per_s="")
    question = purchases.asked(
        tmp_path / "list.csv",
        [ROWS[0], bought],
        terms=["reserved", "bought"],
        reserved={"discount": 0.4, "commitment": "10 h"},
        networks=[
            {"name": "slow", "bandwidth": "10 Gbit/s", "usd_per_machine": "200 USD"},
            {"name": "fast", "bandwidth": "100 Gbit/s", "usd_per_machine": "1500 USD"},
        ],
    )
    offers = {offer.name: offer for offer in purchases.loaded(question).offers}
    assert set(offers) == {"acme/small/east/reserved", "acme/own/east/bought/slow", "acme/own/east/bought/fast"}
    reserved = offers["acme/small/east/reserved"]
    assert [reserved.usd_per_h, reserved.committed_s] == pytest.approx([0.6, 36_000])
    assert offers["acme/own/east/bought/fast"].purchase_usd == pytest.approx(6500)
    assert offers["acme/own/east/bought/slow"].network_bytes_per_s == pytest.approx(1.25e9)


@pytest.mark.parametrize(
    ("block", "code", "words"),
    [
        ({"providers": "acm"}, 2, "Did you mean 'acme'"),
        ({"budget": "0.001 USD"}, 1, "this settles it"),
        ({"deadline": "1 ms"}, 1, "deadline"),
    ],
)
def test_the_command_ends_with_the_code_of_what_is_wrong(
    tmp_path: Path, capsys: CaptureFixture[str], block: dict[str, Any], code: int, words: str
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(asked(tmp_path, {}, **block)))
    assert run(["procure", str(spec)]) == code
    told = capsys.readouterr()
    assert words in told.err
    assert "Traceback" not in told.err + told.out
