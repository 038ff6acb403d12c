"""Cases of measured data: what they need, how they are judged, the page that they make, and the bands that are shipped."""

import shutil
from pathlib import Path
from statistics import geometric_mean

import pytest
from quantities import is_quantity, leaves

from planner import api
from planner.data.fits import error_band
from planner.errors import SpecError
from planner.question.source import read_source
from research.accuracy import accuracy_page, bands, bands_text, main
from research.links import links_text, sources
from research.measured import MeasuredRow, RowsFrom, throughput
from research.measured.cases import CASES, MeasuredCase, case_names, measured_cases, run_folder
from research.measured.throughput import Inputs, Predictor, Run, usual

ROOT = Path(__file__).parents[2]
NAMES = case_names()
# Of every case of measured data one input: what stands in case.yaml, and another value.
PERTURBED = [
    ("measured-hkbu-resnet50", "bandwidth: 10 Gbps", "bandwidth: 25 Gbps"),
    ("measured-hkbu-resnet50", "devices_per_machine: 4", "devices_per_machine: 8"),
    ("measured-hkbu-resnet50", "inside: 15.75 GB/s", "inside: 1 GB/s"),
    ("measured-hkbu-resnet50", "latency: 20 us", "latency: 90 us"),
    ("measured-hkbu-resnet50", "startup: 4.0429232363574746 ms", "startup: 0 s"),
    ("measured-b-caffe-googlenet", "2: allreduce2.log", "2: allreduce8.log"),
    ("measured-bps", "bandwidth: 10 Gbps", "bandwidth: 25 Gbps"),
]


@pytest.fixture(scope="module")
def results() -> tuple[MeasuredCase, ...]:
    return measured_cases()


def copy_of(name: str, folder: Path, old: str, new: str) -> Path:
    """Return a copy of a case, with one text replaced in its case.yaml."""
    copy = folder / name
    shutil.copytree(CASES / name, copy)
    text = (copy / "case.yaml").read_text(encoding="utf-8")
    assert old in text
    (copy / "case.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    return copy


# -- with the data ---------------------------------------------------------------------------------------------------


@pytest.mark.measured
@pytest.mark.parametrize("name", NAMES)
def test_every_measured_row_is_within_what_its_evaluation_allows(
    name: str, results: tuple[MeasuredCase, ...], data_folder: Path
) -> None:
    assert data_folder
    found = next(result for result in results if result.name == name)
    assert found.rows
    assert not [row.quantity for row in found.off]


@pytest.mark.measured
def test_the_page_is_that_of_today(results: tuple[MeasuredCase, ...], data_folder: Path) -> None:
    assert data_folder
    assert (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8") == accuracy_page(results, sources(results))


@pytest.mark.measured
def test_no_table_of_the_page_is_empty(results: tuple[MeasuredCase, ...], data_folder: Path) -> None:
    assert data_folder
    lines = accuracy_page(results, sources(results)).splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("| --- |")]
    assert heads
    assert all(lines[number + 1 :][:1] != [""] for number in heads)


@pytest.mark.measured
def test_the_bands_that_are_shipped_are_those_that_are_computed(
    results: tuple[MeasuredCase, ...], data_folder: Path
) -> None:
    assert data_folder
    assert (ROOT / "planner" / "data" / "accuracy.yaml").read_text(encoding="utf-8") == bands_text(results)
    for kind, rows in bands(results)["all_reduce"].items():
        for row in rows:
            transport = None if row["transport"] == "any" else row["transport"]
            found = error_band(
                "all_reduce",
                parameters=row["parameters"][1] if "bert" in row["from"] else row["parameters"][0],
                transport=transport,
                is_calibrated=kind == "calibrated",
            )
            assert found is not None
            assert {key: row[key] for key in found} == found


# Mean absolute errors of iterations on the testbed, from what was known to the prediction: see docs/accuracy.md.
ERRORS = {
    "measured-hkbu-resnet50": {"nominal": 0.076, "defaults": 0.050, "other sources": 0.057, "another DNN": 0.051},
    "measured-hkbu-bert-base": {"nominal": 0.304, "defaults": 0.126, "other sources": 0.217, "another DNN": 0.107},
}


@pytest.mark.measured
@pytest.mark.parametrize("name", ERRORS)
def test_what_links_are_taken_to_reach_is_nearer_than_what_they_are_sold_by(
    name: str, results: tuple[MeasuredCase, ...], data_folder: Path
) -> None:
    assert data_folder
    (case,) = (result for result in results if result.name == name)
    found = {}
    for evaluation in ERRORS[name]:
        sizes = [abs(row.predicted / row.measured - 1) for row in case.rows if row.evaluation == evaluation]
        found[evaluation] = sum(sizes) / len(sizes)
    assert found == pytest.approx(ERRORS[name], abs=0.005)
    assert max(found["defaults"], found["other sources"]) < found["nominal"]


@pytest.mark.measured
def test_what_links_reach_is_told_to_each_source_by_the_others(
    results: tuple[MeasuredCase, ...], data_folder: Path
) -> None:
    assert data_folder
    found = sources(results)
    assert links_text(found) == (ROOT / "planner" / "data" / "links_reached.yaml").read_text(encoding="utf-8")
    for name, most in {"tcp": 0.08, "pcie": 0.25}.items():
        for source, value in found[name].items():
            others = geometric_mean(one for other, one in found[name].items() if other != source)
            assert others == pytest.approx(value, rel=most)


@pytest.mark.measured
@pytest.mark.parametrize(("name", "old", "new"), PERTURBED)
def test_a_prediction_moves_with_an_input_and_no_measurement_does(
    name: str, old: str, new: str, tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is fitted beside: fits of the testbed, which take nearly all of the time, find what others do."""
    assert data_folder
    monkeypatch.setattr(throughput, "_fit", lambda *_, num_shares: (2e-5, 1.0, *[0.5] * num_shares))
    before, moved = (run_folder(one) for one in (CASES / name, copy_of(name, tmp_path, old, new)))
    pairs = list(zip(before.rows, moved.rows, strict=True))
    assert any(one.predicted != pytest.approx(other.predicted, rel=1e-6) for one, other in pairs)
    assert all(one.measured == other.measured for one, other in pairs)


@pytest.mark.measured
def test_no_fit_sees_the_group_that_it_predicts(tmp_path: Path, data_folder: Path) -> None:
    """Spoil all measurements of one group: its predictions stay, and only other groups' move."""
    name = "traces/hkbu_ddl_benchmarks/throughput_2020-05-29.csv"
    lines = (data_folder / name).read_text(encoding="utf-8").splitlines()
    spoiled = [",".join(_halved(line)) if ",MG-WFBP," in line and ",1,253.1," not in line else line for line in lines]
    (tmp_path / "spoiled.csv").write_text("\n".join(spoiled), encoding="utf-8")
    other = "throughput_bert_base_2020-05-29.csv"
    shutil.copy(data_folder / name.replace("throughput_2020-05-29.csv", other), tmp_path / other)
    before, after = (_predictions(path) for path in (data_folder / name, tmp_path / "spoiled.csv"))
    assert after["MG-WFBP"] == before["MG-WFBP"]
    assert after["BSP-A2A"] != before["BSP-A2A"]


def _halved(line: str) -> list[str]:
    """Return the cells of a line, with half the samples a second."""
    *cells, rate, deviation = line.split(",")
    return [*cells, str(float(rate) / 2), deviation]


def _predictions(path: Path) -> dict[str, list[float]]:
    """Return what is predicted for every method from the other methods."""
    from research.measured.throughput import measure

    found = measure(_inputs(), path)
    rows = [row for row in found.rows if row.evaluation == "other methods"]
    return {name: [row.predicted for row in rows if row.group == name] for name in {row.group for row in rows}}


def _inputs() -> Inputs:
    data = read_source(CASES / "measured-hkbu-resnet50" / "case.yaml").data
    return Inputs.model_validate(data["rows_from"]["inputs"])


@pytest.mark.measured
@pytest.mark.parametrize("name", NAMES)
def test_no_measured_number_is_copied_into_the_case(
    name: str, results: tuple[MeasuredCase, ...], data_folder: Path
) -> None:
    assert data_folder
    found = next(result for result in results if result.name == name)
    text = "".join(path.read_text(encoding="utf-8") for path in (CASES / name).iterdir())
    assert not [row.quantity for row in found.rows if f"{row.measured:.4g}" in text and row.measured % 1]


# -- without the data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_case_of_measured_data_is_skipped_with_the_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANNER_DATA", raising=False)
    found = run_folder(CASES / name)
    assert found.rows == ()
    assert "PLANNER_DATA is not set" in str(found.skipped)


def test_half_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANNER_DATA", raising=False)
    with pytest.raises(SpecError, match=r"PLANNER_DATA is not set(.|\n)*Set PLANNER_DATA"):
        accuracy_page(measured_cases(), {})
    assert main([]) == 2


def test_a_file_of_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    monkeypatch.setenv("PLANNER_DATA", str(tmp_path))
    old = "traces/hkbu_ddl_benchmarks/throughput_2020-05-29.csv"
    copy = copy_of("measured-hkbu-resnet50", tmp_path, old, "traces/a.csv")
    with pytest.raises(SpecError, match=r"a\.csv.*the case cannot read it.*Read Table of 2020-05-29"):
        run_folder(copy)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("path: $PLANNER_DATA/", "path: /", "rows_from.path"),
        ("evaluation: defaults", "evaluation: default", "no evaluation 'default'. Use one of no communication"),
        ("rows_from:", "shared: {dnn: {zoo: vgg16}}\nrows_from:", "unknown key 'shared'"),
        ("model: throughput", "model: throughputs", "Did you mean 'throughput'?"),
        ("tolerance: 25%", "tolerance: about 25%", "rows_from.evaluations.other sizes.tolerance"),
        ("latency: 20 us", "latency: 20", "rows_from.inputs.latency"),
    ],
)
def test_a_bad_case_is_refused_with_its_place(
    old: str, new: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "traces" / "hkbu_ddl_benchmarks").mkdir(parents=True)
    (tmp_path / "traces" / "hkbu_ddl_benchmarks" / "throughput_2020-05-29.csv").touch()
    monkeypatch.setenv("PLANNER_DATA", str(tmp_path))
    with pytest.raises(SpecError) as refusal:
        run_folder(copy_of("measured-hkbu-resnet50", tmp_path, old, new))
    assert problem in str(refusal.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_case_of_measured_data_holds_its_question_and_no_table(name: str) -> None:
    readme = (CASES / name / "README.md").read_text(encoding="utf-8")
    assert readme.split("\n\n")[1].endswith("?")
    assert "\n|" not in readme
    assert {path.name for path in (CASES / name).iterdir()} == {"case.yaml", "README.md"}


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_an_input_stands_beside_its_source(name: str) -> None:
    source = read_source(CASES / name / "case.yaml")
    lines = Path(source.file).read_text(encoding="utf-8").splitlines()
    for path, value in leaves(source.data["rows_from"]["inputs"], ("rows_from", "inputs")):
        if is_quantity(value):
            assert "#" in lines[source.positions[path][0] - 1], ".".join(map(str, path))


# -- what is predicted is what a plan predicts ------------------------------------------------------------------------


@pytest.mark.parametrize("is_cheapest", [True, False])
@pytest.mark.parametrize("method", ["BSP-A2A", "WFBP-A2A"])
@pytest.mark.parametrize("num_devices", [4, 8, 32])
def test_a_case_predicts_what_the_family_predicts(num_devices: int, method: str, is_cheapest: bool) -> None:
    run = Run(
        network="10GbE with TCP/IP",
        method=method,
        num_devices=num_devices,
        batch_per_device=64,
        measured_s=1.0,
        transport="tcp",
    )
    bed = Predictor(_inputs(), 64, 0.25, is_cheapest=is_cheapest)
    rate = 3 * 2 * 64 * 3_857_973_248 / 0.25  # multiply-adds of ResNet-50
    machine = {"count": 8, "devices": 4, "network": "10 Gbps", "latency": "20 us", "inside": "pcie-3-x16"}
    device = {"name": "as-measured", "fp32": f"{rate} FLOP/s", "memory": "1 TB"}
    question = {
        "dnn": {"zoo": "resnet50", "batch_per_device": 64},
        "cluster": {"machines": [machine | {"device": device}]},
        "calibration": {"utilisation": 1, "update": "0 s", "aggregation": False, "fusion_unit": "tensor"},
        "configuration": {
            "all_reduce": {"num_devices": num_devices, "fusion_groups": "one" if method == "BSP-A2A" else "none"}
        },
    }
    if not is_cheapest:
        question["calibration"]["algorithms"] = ["ring"]  # type: ignore[index]
    links = {"nominal": {"bandwidth_efficiency": 1}, "defaults": {"transport": "tcp"}}
    for name, parameters in {"nominal": (20e-6, 1.0, 1.0), "defaults": usual(_inputs(), run)}.items():
        asked = {**question, "calibration": {**question["calibration"], **links[name]}}  # type: ignore[dict-item]
        ours = bed.iteration_time_s(run, parameters)
        assert ours == pytest.approx(api.predict(api.load(asked)).iteration_time_s, rel=1e-6)


# -- figures ---------------------------------------------------------------------------------------------------------


def made(errors: dict[str, list[float]]) -> MeasuredCase:
    """Return a case with one row for each measured / predicted - 1, by group; a group is a setting."""
    text = {"about": "made up", "tolerance": "50%", "reason": "made up"}
    band = {"family": "all_reduce", "calibrated": False, "evaluation": "only", "conditions": "made up"}
    given = RowsFrom.model_validate(
        {"path": "$PLANNER_DATA/a", "model": "layers", "evaluations": {"only": text}, "bands": [band]}
    )
    rows = [
        MeasuredRow(
            evaluation="only",
            quantity=f"{group} {index}",
            group=group,
            unit="s",
            measured=(1 + value) * (1 + index),
            predicted=1.0 + index,
            setting=group,
            choice=str(index),
        )
        for group, values in errors.items()
        for index, value in enumerate(values)
    ]
    return MeasuredCase(name="made", readme="# Made\n\nUp?\n", given=given, rows=tuple(rows))


def test_a_band_spans_all_groups_and_its_coverage_is_of_groups_left_out() -> None:
    found = bands([made({"a": [-0.1, 0.2], "b": [0.0, 0.1], "c": [0.05, 0.31]})])
    (band,) = (one for one in found["all_reduce"]["uncalibrated"] if one["transport"] == "any")
    assert (band["low"], band["high"], band["from"]) == (-0.1, 0.31, "made")
    assert band["coverage"] == pytest.approx(4 / 6, abs=0.01)  # -0.1 and 0.31 lie outside the other groups' bands


def test_the_page_counts_pairs_in_order_and_the_regret_of_the_pick() -> None:
    result = made({"a": [0.0, 0.0], "b": [1.5, 0.0]})
    page = accuracy_page([result], {}, is_whole=True)
    assert "| only | 2 | 2 | 1 | 12.5% | 25.0% |" in page  # of b, 2.5 s are picked where 2 s were measured
    assert "| only | all | 4 | 15.0% | 60.0% | -60.0% | +0.0% | 1 of 2 | 12.5% |" in accuracy_page([result], {})


def test_a_family_or_a_size_that_nobody_measured_carries_no_band() -> None:
    assert error_band("hybrid", parameters=2.56e7) is None
    assert error_band("all_reduce", parameters=3.35e8) is None
    assert error_band("parameter_server", parameters=1.38e8) is None  # of communication alone


@pytest.mark.parametrize("is_calibrated", [True, False])
@pytest.mark.parametrize("parameters", [2.56e7, 1.1e8])
def test_a_shipped_band_names_its_case_and_is_the_wider_one_where_no_transport_is_said(
    parameters: float, is_calibrated: bool
) -> None:
    found = [
        error_band("all_reduce", parameters=parameters, transport=transport, is_calibrated=is_calibrated)
        for transport in ("tcp", "rdma", None)
    ]
    for band in found:
        assert band is not None
        assert band["low"] < band["high"]
        assert 0 < band["coverage"] <= 1
        assert band["from"] in NAMES
        assert band["conditions"]
        assert found[2] is not None
        assert found[2]["low"] <= band["low"] < band["high"] <= found[2]["high"]
