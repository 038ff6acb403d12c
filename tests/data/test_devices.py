import math
from collections import Counter
from dataclasses import dataclass

import pytest

from planner.data import device, device_names, device_rows, inside_link, inside_links, link_rows, machines_of, with_unit
from planner.errors import SpecError
from planner.names import fold

FIGURES = [
    column
    for column in device_rows()[0]
    if column.endswith(("_per_s", "_gib", "_mib", "_mhz", "_w", "_devices", "_multiprocessors"))
]
ROWS = [pytest.param(row, id=row["name"]) for row in device_rows()]
MEASURED = [pytest.param(row, id=row["name"]) for row in device_rows() if row["measured_matmul_bf16_tflop_per_s"]]
LINKED = [pytest.param(row, id=row["name"]) for row in device_rows() if row["link"] in inside_links()]


@pytest.mark.parametrize("row", ROWS)
def test_every_device_says_where_its_figures_stand(row: dict[str, str]) -> None:
    assert row["title"] and row["vendor"] and row["source"]
    assert row["kind"] in {"gpu", "tpu", "cpu", "accelerator"}
    assert device(row["name"]).source == row["source"]


@pytest.mark.parametrize("row", ROWS)
def test_no_device_has_a_figure_from_memory(row: dict[str, str]) -> None:
    said = " ".join(row.values())
    assert "memory, not" not in said and "from memory" not in said and "unverified" not in said


@pytest.mark.parametrize("row", ROWS)
def test_every_figure_is_finite_and_positive(row: dict[str, str]) -> None:
    figures = [float(row[column]) for column in FIGURES if row[column]]
    assert all(math.isfinite(figure) and figure > 0 for figure in figures)
    assert row["fp32_tflop_per_s"] or row["bf16_tflop_per_s"]
    assert bool(row["link"]) == bool(row["link_gb_per_s"])


@pytest.mark.parametrize("row", ROWS)
def test_a_narrower_data_type_is_never_slower(row: dict[str, str]) -> None:
    peaks = device(row["name"]).peak_flop_per_s
    for sixteen_bits in ("fp16", "bf16"):
        ordered = [peaks[one] for one in ("fp32", "tf32", sixteen_bits, "fp8", "fp4") if one in peaks]
        assert ordered == sorted(ordered)
    if row["vendor"] != "Intel":  # Gaudi 3 is a quarter as fast in fp16 as in bf16
        assert peaks.get("bf16", 0) in {0, peaks.get("fp16", peaks.get("bf16", 0))}


# --- Peaks from multiprocessors and clock: FLOP of one multiprocessor in one cycle, by the vendors' white papers
# Dense and with fp32 accumulation; a multiply-add is two. Of GeForce, and of L20 and RTX 5090, tensor cores that
# accumulate in fp32 are half as fast as those of the same architecture in other products.


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOP per cycle and multiprocessor, by data type; ``devices`` have them."""

    devices: str
    fp32: int
    tf32: int = 0
    fp16: int = 0
    fp8: int = 0
    fp4: int = 0


ARCHITECTURES = {
    "Kepler GK210": Rates("k80", 384),
    "Pascal GP100": Rates("p100-sxm2", 128, fp16=256),
    "Pascal GP106": Rates("gtx-1060-6gb", 256),
    "Volta": Rates("v100-sxm2-16g v100-sxm2-32g v100-pcie-16gb", 128, fp16=1024),
    "Turing": Rates("t4 quadro-rtx-4000 quadro-rtx-6000", 128, fp16=1024),
    "Turing, GeForce": Rates("rtx-2080-ti", 128, fp16=512),
    "Ampere GA100": Rates("a30 a100-pcie-40gb a100-pcie-80gb a100-sxm4-40gb a100-sxm4-80gb", 128, 1024, 2048),
    "Ampere GA102": Rates("a10 rtx-a6000", 256, 512, 1024),
    "Ampere GA102, GeForce": Rates("rtx-3090", 256, 256, 512),
    "Ada": Rates("l4 l40s", 256, 512, 1024, 2048),
    "Ada, halved": Rates("rtx-4090 l20 l40", 256, 256, 512, 1024),
    "Hopper": Rates("h100-pcie h100-sxm h800-sxm h200-sxm gh200-96gb", 256, 2048, 4096, 8192),
    "Blackwell": Rates("b200-sxm gb200", 256, 4096, 8192, 16384, 32768),
    "RTX Blackwell": Rates("rtx-pro-6000-blackwell", 256, 512, 1024, 2048, 4096),
    "RTX Blackwell, GeForce": Rates("rtx-5090", 256, 256, 512, 1024, 4096),
    "CDNA 2": Rates("mi250x", 128, fp16=1024),
    "CDNA 3": Rates("mi300x mi325x", 256, 1024, 2048, 4096),
    "CDNA 4": Rates("mi355x", 256, fp16=4096, fp8=8192, fp4=16384),
}
WITH_RATES = {name: rates for rates in ARCHITECTURES.values() for name in rates.devices.split()}
NO_CLOCK = {"a10g", "h100-nvl", "h20", "b300-sxm", "gb300"}  # whose vendors print none at which their peaks hold


@pytest.mark.parametrize("name", WITH_RATES)
def test_a_peak_is_that_of_all_multiprocessors_at_the_boost_clock(name: str) -> None:
    found, rates = device(name), WITH_RATES[name]
    clock_hz = {row["name"]: float(row["clock_mhz"]) * 1e6 for row in device_rows() if row["clock_mhz"]}[name]
    assert found.num_multiprocessors is not None
    by_type = {one: getattr(rates, one) for one in ("fp32", "tf32", "fp16", "fp8", "fp4")}
    by_type["bf16"] = rates.fp16 if "bf16" in found.peak_flop_per_s else 0
    assert {one for one, flop in by_type.items() if flop} == set(found.peak_flop_per_s)
    for one, peak in found.peak_flop_per_s.items():
        assert found.num_multiprocessors * clock_hz * by_type[one] == pytest.approx(peak, rel=0.1), one


def test_every_gpu_has_multiprocessors_and_known_rates_or_says_that_it_has_no_clock() -> None:
    gpus = {row["name"]: row for row in device_rows() if row["kind"] == "gpu"}
    assert all(row["num_multiprocessors"] for row in gpus.values())
    assert set(gpus) == set(WITH_RATES) | NO_CLOCK
    assert all("clock" in gpus[name]["note"] and not gpus[name]["clock_mhz"] for name in NO_CLOCK)


@pytest.mark.parametrize("row", ROWS)
def test_a_scale_up_domain_has_as_many_devices_as_any_machine_of_the_vendor_s_links(row: dict[str, str]) -> None:
    found = device(row["name"])
    assert (row["scale_up_devices"] == "") == (found.scale_up_bytes_per_s is None)
    for machine in machines_of(found.name):
        if machine.inside is not None and not machine.is_pcie:
            assert machine.num_devices <= int(row["scale_up_devices"])
            assert inside_link(machine.inside).bandwidth_bytes_per_s <= (found.scale_up_bytes_per_s or 0)


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
        ("mi300x", {"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4, "fp8": 2614.9}, 192, 5300, 750),
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


def test_multiprocessors_and_the_rate_of_scale_up_links_come_in_si_units() -> None:
    found = device("gb200")
    assert (found.num_multiprocessors, found.scale_up_bytes_per_s) == (152, 900e9)
    assert (found.peak_flop_per_s["fp8"], found.peak_flop_per_s["fp4"]) == (5e15, 1e16)
    cpu = device("xeon-silver-4210")
    assert {cpu.num_multiprocessors, cpu.scale_up_bytes_per_s} == {None}


@pytest.mark.parametrize(
    ("column", "cell", "shown"),
    [
        ("fp8_tflop_per_s", "1979", "1979 TFLOP/s"),
        ("l2_mib", "50", "50 MiB"),
        ("clock_mhz", "1830", "1830 MHz"),
        ("num_multiprocessors", "132", "132"),
        ("power_w", "", ""),
    ],
)
def test_a_cell_is_shown_with_the_unit_of_its_column(column: str, cell: str, shown: str) -> None:
    assert with_unit(column, cell) == shown


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


def test_a_name_near_to_none_is_refused_with_what_lists_all_names() -> None:
    with pytest.raises(SpecError, match=r"See `planner show devices` for all \d+, such as 'k80'\. A spec may describe"):
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
    assert all(row["source"] and "from memory" not in row["source"] + row["note"] for row in link_rows())
    assert [row["name"] for row in link_rows()] == list(inside_links())


def test_an_unknown_link_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(SpecError, match=r"'pcie-3-x61' is not a known link.*Did you mean 'pcie-3-x16'"):
        inside_link("pcie-3-x61")
