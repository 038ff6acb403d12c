import math
from collections import Counter

import pytest

from planner.data import (
    device,
    device_rows,
    inside_link,
    inside_links,
    machine,
    machine_rows,
    machines_of,
    reference_machine,
)
from planner.errors import SpecError
from planner.names import fold

ROWS = [pytest.param(row, id=row["name"]) for row in machine_rows()]
ACCELERATORS = [pytest.param(row, id=row["name"]) for row in device_rows() if row["kind"] != "cpu"]


@pytest.mark.parametrize("row", ROWS)
def test_every_machine_says_where_its_figures_stand_and_none_is_from_memory(row: dict[str, str]) -> None:
    assert row["title"] and row["source"]
    assert machine(row["name"]).source == row["source"]
    said = row["source"] + row["note"]
    assert "memory, not" not in said and "from memory" not in said and "unverified" not in said


@pytest.mark.parametrize("row", ROWS)
def test_every_name_and_figure_of_a_machine_is_known(row: dict[str, str]) -> None:
    found = machine(row["name"])
    assert device(found.device).name == row["device"]
    assert (found.inside is None) == (found.num_devices == 1)
    assert found.inside is None or inside_link(found.inside) == inside_links()[row["inside"]]
    assert found.num_devices >= 1 and found.num_nics >= 1
    assert found.nic_bytes_per_s is None or (math.isfinite(found.nic_bytes_per_s) and found.nic_bytes_per_s > 0)


@pytest.mark.parametrize("row", ACCELERATORS)
def test_no_accelerator_lacks_a_reference_machine(row: dict[str, str]) -> None:
    first, *_ = machines_of(row["name"])
    assert reference_machine(row["name"], 1) == first
    assert first.nic_bytes_per_s is not None or "is to be said" in first.source + machine_note(first.name)


def machine_note(name: str) -> str:
    return next(row["note"] for row in machine_rows() if row["name"] == name)


@pytest.mark.parametrize("row", ACCELERATORS)
def test_a_reference_machine_has_the_link_of_its_device(row: dict[str, str]) -> None:
    first, *others = [one for one in machines_of(row["name"]) if one.inside is not None]
    rate = float(row["link_gb_per_s"]) * 1e9
    assert inside_link(first.inside or "").bandwidth_bytes_per_s == pytest.approx(rate)
    if row["name"] not in {"trainium1", "trainium2"}:  # trn1n has twice the links, and so has an UltraServer more
        assert all(inside_link(one.inside or "").bandwidth_bytes_per_s == pytest.approx(rate) for one in others)


def test_no_two_machines_share_a_name_and_none_has_a_device_s() -> None:
    words = Counter(fold(word) for row in machine_rows() for word in (row["name"], *row["aliases"].split()))
    assert max(words.values()) == 1
    devices = {fold(word) for row in device_rows() for word in (row["name"], *row["aliases"].split())}
    assert not devices & set(words)


@pytest.mark.parametrize(
    ("alias", "device_name", "devices", "nics", "gbit_per_s"),
    [
        ("dgx-a100", "a100-sxm4-80gb", 8, 8, 200),
        ("hgx-h100", "h100-sxm", 8, 8, 400),
        ("DGX H100", "h100-sxm", 8, 8, 400),
        ("hgx-h200", "h200-sxm", 8, 8, 400),
        ("dgx-b200", "b200-sxm", 8, 8, 400),
        ("dgx-b300", "b300-sxm", 8, 8, 800),
        ("p4d.24xlarge", "a100-sxm4-40gb", 8, 4, 100),
        ("p4de", "a100-sxm4-80gb", 8, 4, 100),
        ("p5.48xlarge", "h100-sxm", 8, 32, 100),
        ("p5e", "h200-sxm", 8, 32, 100),
        ("p5en", "h200-sxm", 8, 16, 200),
        ("p6-b200", "b200-sxm", 8, 8, 400),
        ("a2-ultragpu-8g", "a100-sxm4-80gb", 8, 1, 100),
        ("a3-high", "h100-sxm", 8, 4, 200),
        ("a3-mega", "h100-sxm", 8, 8, 200),
        ("a3-ultra", "h200-sxm", 8, 8, 400),
        ("ND_H100_v5", "h100-sxm", 8, 8, 400),
        ("ND_A100_v4", "a100-sxm4-40gb", 8, 8, 200),
        ("ND_MI300X_v5", "mi300x", 8, 8, 400),
        ("nvl72", "gb200", 72, 72, 400),
        ("GB300-NVL72", "gb300", 72, 72, 800),
        ("trn2.48xlarge", "trainium2", 16, 16, 200),
        ("trn2-ultraserver", "trainium2", 64, 64, 200),
        ("hls-3", "gaudi3", 8, 24, 200),
    ],
)
def test_the_names_that_people_say_resolve(
    alias: str, device_name: str, devices: int, nics: int, gbit_per_s: float
) -> None:
    found = machine(alias)
    assert (found.device, found.num_devices, found.num_nics) == (device_name, devices, nics)
    assert found.nic_bytes_per_s == gbit_per_s * 1e9 / 8


def test_a_share_of_a_machine_has_its_share_of_cards_and_more_devices_bring_none() -> None:
    hgx = machine("hgx-h100")
    assert [hgx.nics_of(number) for number in (1, 4, 8, 16)] == [1, 4, 8, 8]
    assert machine("p4d").nics_of(1) == 1


def test_an_nvlink_domain_does_not_grow() -> None:
    assert reference_machine("h100-sxm", 16) is None
    assert reference_machine("gb200", 72) == machine("nvl72")
    assert reference_machine("rtx-4090", 10) == machine("rtx-4090-server")


def test_an_unknown_machine_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(SpecError, match=r"'dgx-h1000' is not a known machine\. Did you mean .*hgx-h100"):
        machine("dgx-h1000")
