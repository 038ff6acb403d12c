import math
from collections import Counter

import pytest

from planner.data import device, device_names, device_rows, inside_link, inside_links, link_rows
from planner.errors import SpecError
from planner.names import fold

FIGURES = [column for column in device_rows()[0] if column.endswith(("_per_s", "_gib", "_w"))]
ROWS = [pytest.param(row, id=row["name"]) for row in device_rows()]
MEASURED = [pytest.param(row, id=row["name"]) for row in device_rows() if row["measured_matmul_bf16_tflop_per_s"]]
LINKED = [pytest.param(row, id=row["name"]) for row in device_rows() if row["link"] in inside_links()]


@pytest.mark.parametrize("row", ROWS)
def test_every_device_says_where_its_figures_stand(row: dict[str, str]) -> None:
    assert row["title"] and row["vendor"] and row["source"]
    assert row["kind"] in {"gpu", "tpu", "cpu", "accelerator"}
    assert device(row["name"]).source == row["source"]


@pytest.mark.parametrize("row", ROWS)
def test_a_device_is_unverified_exactly_where_a_figure_is_from_memory(row: dict[str, str]) -> None:
    is_from_memory = "from memory" in row["source"] + row["note"]
    assert row["verified"] == ("no" if is_from_memory else "yes")
    assert device(row["name"]).is_verified is not is_from_memory


@pytest.mark.parametrize("row", ROWS)
def test_every_figure_is_finite_and_positive(row: dict[str, str]) -> None:
    figures = [float(row[column]) for column in FIGURES if row[column]]
    assert all(math.isfinite(figure) and figure > 0 for figure in figures)
    assert row["fp32_tflop_per_s"] or row["bf16_tflop_per_s"]
    assert bool(row["link"]) == bool(row["link_gb_per_s"])


@pytest.mark.parametrize("row", ROWS)
def test_a_narrower_data_type_is_never_slower(row: dict[str, str]) -> None:
    peaks = device(row["name"]).peak_flop_per_s
    ordered = [peaks[data_type] for data_type in ("fp32", "tf32", "fp16", "fp8") if data_type in peaks]
    assert ordered == sorted(ordered)
    assert peaks.get("bf16", 0) in {0, peaks.get("fp16", peaks.get("bf16", 0))}


@pytest.mark.parametrize("row", MEASURED)
def test_a_measured_speed_stays_below_the_peak(row: dict[str, str]) -> None:
    assert float(row["measured_matmul_bf16_tflop_per_s"]) < float(row["bf16_tflop_per_s"])


@pytest.mark.parametrize("row", LINKED)
def test_a_device_has_the_bandwidth_of_the_link_it_names(row: dict[str, str]) -> None:
    assert float(row["link_gb_per_s"]) * 1e9 == pytest.approx(inside_links()[row["link"]].bandwidth_bytes_per_s)


def test_there_are_devices_with_a_measured_speed_and_with_a_known_link() -> None:
    assert MEASURED and LINKED


@pytest.mark.parametrize(
    ("name", "peaks_tflop_per_s", "memory_gib", "bandwidth_gb_per_s", "power_w"),
    [
        ("rtx-2080-ti", {"fp32": 13.45, "fp16": 53.8}, 11, 616, 250),
        ("v100-sxm2-32g", {"fp32": 15.7, "fp16": 125}, 32, 900, 300),
        ("a100-sxm4-80gb", {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312}, 80, 2000, 400),
        ("h100-sxm", {"fp32": 67, "tf32": 494.5, "bf16": 989, "fp16": 989, "fp8": 1979}, 80, 3350, 700),
        ("mi300x", {"fp32": 163.4, "tf32": 653.7, "bf16": 1300, "fp16": 1300, "fp8": 2610}, 192, 5300, 750),
        ("tpu-v4", {"bf16": 275}, 32, 1200, 170),
        ("dual-xeon-e5-2450", {"fp32": 0.2688}, 64, math.inf, None),
    ],
)
def test_a_device_comes_in_si_units(
    name: str, peaks_tflop_per_s: dict[str, float], memory_gib: float, bandwidth_gb_per_s: float, power_w: float | None
) -> None:
    found = device(name)
    assert dict(found.peak_flop_per_s) == pytest.approx({key: peak * 1e12 for key, peak in peaks_tflop_per_s.items()})
    assert found.memory_bytes == memory_gib * 2**30
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(bandwidth_gb_per_s * 1e9)
    assert found.power_w == power_w


@pytest.mark.parametrize("name", ["v100-sxm2-16g", "p100-sxm2", "t4", "rtx-2080-ti", "quadro-rtx-4000", "gtx-1060-6gb"])
def test_gpus_before_ampere_have_no_bf16(name: str) -> None:
    assert "bf16" not in device(name).peak_flop_per_s


def test_memory_that_is_not_known_does_not_bind() -> None:
    assert device("xeon-e5-2620").memory_bytes == math.inf


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("rtx2080ti", "rtx-2080-ti"),
        ("2080ti", "rtx-2080-ti"),
        ("RTX 2080 Ti", "rtx-2080-ti"),
        ("a100", "a100-sxm4-80gb"),
        ("a100-80gb", "a100-sxm4-80gb"),
        ("A100_SXM4_40GB", "a100-sxm4-40gb"),
        ("H100", "h100-sxm"),
        ("v100", "v100-sxm2-16g"),
        ("TPU v4", "tpu-v4"),
    ],
)
def test_an_alias_in_any_case_and_spacing_resolves(alias: str, name: str) -> None:
    assert device(alias).name == name


def test_no_two_devices_share_a_name_or_an_alias() -> None:
    words = Counter(fold(word) for row in device_rows() for word in (row["name"], *row["aliases"].split()))
    assert max(words.values()) == 1
    assert device_names() == tuple(row["name"] for row in device_rows())


def test_an_unknown_device_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(SpecError, match=r"'rtx-2080-tii' is not a known device\. Did you mean 'rtx-2080-ti'") as caught:
        device("rtx-2080-tii")
    assert caught.value.faults[0].value == "rtx-2080-tii"


def test_a_name_near_to_none_is_refused_with_all_names() -> None:
    with pytest.raises(SpecError, match=r"Write one of 'k80', .*'xeon-e5-2620'\.$"):
        device("§§§")


def test_changing_the_rows_shown_leaves_the_table_alone() -> None:
    device_rows()[0]["name"] = "broken"
    assert device_rows()[0]["name"] == "k80"


@pytest.mark.parametrize(
    ("name", "bandwidth_gb_per_s"),
    [
        ("pcie-3-x16", 8 * 16 * 128 / 130 / 8),
        ("pcie-4-x16", 16 * 16 * 128 / 130 / 8),
        ("pcie-5-x16", 32 * 16 * 128 / 130 / 8),
        ("nvlink-1", 80),
        ("nvlink-2", 150),
        ("nvlink-3", 300),
        ("nvlink-4", 450),
        ("nvlink-5", 900),
    ],
)
def test_a_link_inside_a_machine_has_the_bandwidth_of_one_direction(name: str, bandwidth_gb_per_s: float) -> None:
    assert inside_links()[name].bandwidth_bytes_per_s == pytest.approx(bandwidth_gb_per_s * 1e9, rel=1e-3)
    assert inside_link(name.upper()) == inside_links()[name]


def test_every_link_says_where_its_figure_stands() -> None:
    assert all(row["source"] for row in link_rows())
    assert [row["name"] for row in link_rows()] == list(inside_links())


def test_an_unknown_link_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(SpecError, match=r"'pcie-3-x61' is not a known link.*Did you mean 'pcie-3-x16'"):
        inside_link("pcie-3-x61")
