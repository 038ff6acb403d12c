import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from quantities import is_quantity, leaves

from planner.answer.schemas import CaseDocument
from planner.case.run import CaseResult, case_names, format_table, run_case, run_folder, to_document
from planner.errors import Fault, SpecError
from planner.question.source import read_source

CASES = Path(__file__).parents[2] / "cases"
NAMES = case_names()
NEEDY = {name for name in NAMES if "\nneeds:" in (CASES / name / "case.yaml").read_text(encoding="utf-8")}
# Of every case one input: what stands in case.yaml, and another value.
PERTURBED = [
    ("osf-scaling-factor", "value: 1.25 h", "value: 1.5 h"),
    ("osf-table-2", "zoo: vgg16}", "zoo: vgg13}"),
    ("osf-table-2", "{zoo: vgg19}", "{layers: [{name: a, multiply_adds: 1e9, parameters: 4 MiB}]}"),
    ("osf-table-3", "layer.fc6", "layer.fc7"),
    (
        "osf-table-3",
        "{zoo: vgg16}",
        "{layers: [{name: fc6, multiply_adds: 1, parameters: 8 B}, {name: fc7}, {name: fc8}]}",
    ),
    ("osf-equation-7", "value: 25 Gbps", "value: 10 Gbps"),
    ("osf-equation-7", "zoo: vgg16", "zoo: resnet50"),
    ("osf-section-3-2", "value: 8.4", "value: 9.4"),
    ("osf-section-3-2", "zoo: vgg16", "zoo: alexnet"),
    ("osf-layer-replacement", "zoo: vgg16-replaced-head", "zoo: resnet50"),
    ("osf-layer-replacement", "value: 0.25", "value: 0.3"),
    ("osf-joint-fit", "batch_per_device: 32", "batch_per_device: 64"),
    ("osf-joint-fit", "network: 25 Gbps", "network: 10 Gbps"),
    ("osf-joint-fit", "wait: none", "wait: paper"),
    ("osf-qualitative", "network: 25 Gbps", "network: 1 Tbps"),
    ("osf-optimal-fusion", "overhead: 3.28 ms", "overhead: 0 s"),
    ("adam-arithmetic", "clock: 2.1 GHz", "clock: 2.2 GHz"),
    ("adam-arithmetic", "value: 129.80", "value: 130.80"),
    ("adam-arithmetic", "{dnn: adam-mnist}", "{dnn: adam-imagenet22k}"),
    ("adam-imagenet", "samples: 53490", "samples: 60000"),
    ("adam-imagenet", "4: 1.0", "4: 1.2"),
    ("adam-imagenet", "samples_per_read: 20", "samples_per_read: 30"),
    ("adam-mnist", "network: 10 Gbps", "network: 1 Gbps"),
    ("adam-mnist", "reading: printed", "reading: serialised"),
    ("adam-mnist", "machines: 20", "machines: 24"),
    ("het-table-1", "flop_per_weight: 85", "flop_per_weight: 89"),
    ("het-table-1", "unexplained_pushes: 3", "unexplained_pushes: 2"),
    ("het-table-1", "{conv2: 784}", "{conv2: 576}"),
    ("het-table-1", "dnn: resnet50", "dnn: resnet101"),
    ("het-table-2", "values_per_cycle: 2.6", "values_per_cycle: 2"),
    ("het-table-2", "computed_weights: 133e6", "computed_weights: 132851392"),
    ("het-table-3", "clock: 1.545 GHz", "clock: 1.506 GHz"),
    ("het-table-3", "device: RTX4000 1.545GHz x2304", "device: Xeon E5-2620 2.0GHz"),
    ("het-table-4", "link: 1 Gbps", "link: 10 Gbps"),
    ("het-table-4", "compute: 208 s", "compute: 208.75 s"),
    ("het-table-5", "count: 2", "count: 3"),
    ("het-table-5", "sent: weights", "sent: parameters"),
    ("het-table-6", "sent_scalars: 63380347", "sent_scalars: 61838248"),
    ("het-table-6", "flop_per_cycle: 1}", "flop_per_cycle: 2}"),
    ("het-table-7", "link: 10 Gbps", "link: 25 Gbps"),
    ("het-table-7", "overhead: 0.5 s", "overhead: 0 s"),
    ("gst-figure-alexnet-resnet", "batch_per_worker: 32", "batch_per_worker: 64"),
    ("gst-figure-alexnet-resnet", "piece: 4096 kB", "piece: 1 GB"),
    ("gst-identities", "num_workers: 2", "num_workers: 3"),
    ("gst-identities", "scale: 32 ms", "scale: 33 ms"),
    ("gst-identities", "switch: 2 Gbps", "switch: 3 Gbps"),
    ("dag-table-6", "num_devices: 2", "num_devices: 1"),
    ("dag-table-6", "t_u: 0 s", "t_u: 1 s"),
    ("dag-section-5-c", "all_reduce: 0.0797 s", "all_reduce: 0.09 s"),
    ("dag-section-5-c", "count: 50", "count: 5"),
    ("dag-input", "testbed: dag-v100", "testbed: dag-k80"),
    ("dag-input", "batch_per_device: 1024", "batch_per_device: 512"),
    ("procure-speed-up", "{zoo: vgg16,", "{zoo: vgg19,"),
    ("procure-mix", "deadline: 26850 s", "deadline: 27500 s"),
    ("procure-custom-hardware", "parameters: 400 MB", "parameters: 300 MB"),
    ("procure-scaling-factor", "overhead: 3.28 ms", "overhead: 0 s"),
    ("procure-resnet50", "epochs: 90", "epochs: 60"),
]


@cache
def result_of(name: str) -> CaseResult:
    """Return a case as it is, computed once."""
    return run_case(name)


def needing(case: str, *values: str) -> Any:
    """Parameters of a test; those of a case that needs measured data are skipped where there are none."""
    marks = [pytest.mark.measured] if case in NEEDY else []
    if case in NEEDY and not os.environ.get("PLANNER_DATA"):
        marks.append(pytest.mark.skip(reason=result_of(case).skipped or ""))
    return pytest.param(case, *values, marks=marks)


def copy_of(name: str, folder: Path, **edits: tuple[str, str]) -> Path:
    """Return a copy of a case, with one text replaced in each of the files that ``edits`` names by their stems."""
    copy = folder / name
    shutil.copytree(CASES / name, copy)
    for stem, (old, new) in edits.items():
        path = next(copy.glob(f"{stem}.*"))
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return copy


def faults_of(folder: Path) -> tuple[Fault, ...]:
    """Return why a case is refused."""
    with pytest.raises(SpecError) as refusal:
        run_folder(folder)
    return refusal.value.faults


# -- the published figures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [needing(name) for name in NAMES])
def test_every_published_figure_is_met(name: str) -> None:
    missed = [row for row in result_of(name).rows if not row.ok]
    assert not missed, "; ".join(
        f"{row.quantity}: published {row.published:g} {row.unit}, ours {row.ours:.6g}, {row.tolerance}"
        for row in missed
    )


@pytest.mark.parametrize(
    ("case", "quantity", "ours"),
    [
        ("osf-joint-fit", "VGG16", 0.2508),
        ("osf-joint-fit", "VGG16 with replaced layers", 0.7160),
        ("osf-joint-fit", "VGG16, 1 GB buffer against no fusion", -8.91),
        ("osf-joint-fit", "ResNet101, 1 GB buffer against no fusion", 40.05),
        ("osf-layer-replacement", "VGG16 with replaced layers", 0.7078),
        ("osf-table-2", "VGG19 stored parameters", 143_667_240 * 4 / 2**20),
    ],
)
def test_our_own_figures_do_not_drift_inside_their_tolerances(case: str, quantity: str, ours: float) -> None:
    row = next(row for row in result_of(case).rows if row.quantity == quantity)
    assert row.ours == pytest.approx(ours, rel=5e-4)


@pytest.mark.parametrize(("name", "old", "new"), [needing(*row) for row in PERTURBED])
def test_ours_moves_with_an_input(name: str, old: str, new: str, tmp_path: Path) -> None:
    moved = run_folder(copy_of(name, tmp_path, case=(old, new)))
    pairs = zip(moved.rows, result_of(name).rows, strict=True)
    assert any(one.ours != pytest.approx(before.ours, rel=1e-6) for one, before in pairs)


def test_an_input_of_every_case_is_perturbed() -> None:
    assert {name for name, _, _ in PERTURBED} == set(NAMES)


# -- what a case looks like ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [needing(name) for name in NAMES])
def test_the_readme_holds_the_question_and_the_table_of_today(name: str) -> None:
    result = result_of(name)
    assert result.question.endswith("?")
    assert result.readme.endswith(f"\n\n{format_table(result)}")


@pytest.mark.parametrize("name", NAMES)
def test_a_case_is_three_files_of_data_and_a_list_of_prices_where_it_asks_what_to_buy(name: str) -> None:
    has_own_prices = "prices: prices.csv" in (CASES / name / "case.yaml").read_text(encoding="utf-8")
    files = {"case.yaml", "published.csv", "README.md"} | ({"prices.csv"} if has_own_prices else set())
    assert {path.name for path in (CASES / name).iterdir()} == files


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_case_stands_beside_its_source(name: str) -> None:
    source = read_source(CASES / name / "case.yaml")
    lines = Path(source.file).read_text(encoding="utf-8").splitlines()
    for path, value in leaves(source.data):
        if (isinstance(value, bool) or is_quantity(value)) and path[0] in ("shared", "questions", "fit"):
            line = lines[source.positions[path][0] - 1]
            assert "#" in line or "source:" in line, f"{'.'.join(map(str, path))}: {line}"


@pytest.mark.parametrize("name", NAMES)
def test_no_case_contains_our_answer(name: str) -> None:
    source = read_source(CASES / name / "case.yaml")
    assert not any("ours" in path for path, _ in leaves(source.data))
    numbers = {value for _, value in leaves(source.data) if isinstance(value, int | float)}
    assert not numbers & {row.ours for row in result_of(name).rows if row.class_ != "fitted" and row.ours not in (0, 1)}


def test_the_document_keeps_its_schema() -> None:
    results = {name: result_of(name) for name in NAMES}
    document = to_document(results.values())
    jsonschema.validate(json.loads(json.dumps(document)), CaseDocument.model_json_schema(by_alias=True))
    assert len(document["rows"]) == sum(len(result.rows) for result in results.values())
    assert document["skipped"] == {name: result.skipped for name, result in results.items() if result.skipped}


def test_a_case_is_found_whatever_its_spelling_and_else_the_nearest_is_named() -> None:
    assert run_case("OSF joint_fit").name == "osf-joint-fit"
    with pytest.raises(SpecError, match=r"'osf-tabel-2' is not a known case\. Did you mean 'osf-table-"):
        run_case("osf-tabel-2")


def test_a_case_whose_data_are_missing_is_skipped_with_the_reason(tmp_path: Path) -> None:
    folder = copy_of("osf-table-3", tmp_path, case=("\nshared:", "\nneeds: [traces/a.csv]\n\nshared:"))
    result = run_folder(folder)
    assert result.rows == ()
    assert "traces/a.csv" in to_document([result])["skipped"]["osf-table-3"]
    assert format_table(result).startswith("Skipped: traces/a.csv")
    (folder / "traces").mkdir()
    (folder / "traces" / "a.csv").touch()
    assert len(run_folder(folder).rows) == 5


def test_measured_data_that_a_case_needs_are_named_by_their_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = "\nneeds: [$PLANNER_DATA/traces/a.csv]\n\nshared:"
    folder = copy_of("osf-table-3", tmp_path, case=("\nshared:", needs))
    monkeypatch.delenv("PLANNER_DATA", raising=False)
    assert run_folder(folder).skipped == "$PLANNER_DATA/traces/a.csv: PLANNER_DATA is not set"
    monkeypatch.setenv("PLANNER_DATA", str(tmp_path / "data"))
    assert run_folder(folder).skipped == "$PLANNER_DATA/traces/a.csv: no such file"
    (tmp_path / "data" / "traces").mkdir(parents=True)
    (tmp_path / "data" / "traces" / "a.csv").touch()
    assert run_folder(folder).skipped is None


# -- bad cases -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "edit", "field", "problem"),
    [
        ("osf-table-3", ("\nshared:", "\nours: 1\nshared:"), "ours", "unknown key 'ours'"),
        ("osf-table-3", ("quantities:", "quantitys:"), "quantitys", "Did you mean 'quantities'?"),
        ("osf-joint-fit", ("formula: change", "formula: chagne"), "formula", "Did you mean 'change'?"),
        ("osf-joint-fit", ("    from:", "    form:"), "form", "Did you mean 'from'?"),
        ("osf-scaling-factor", ("value: 9 h, source: section 2", "value: 9 h"), "one_worker.source", "missing"),
        ("osf-scaling-factor", ("{value: 9 h, source: section 2}", "9 h"), "one_worker", "has no source"),
        ("osf-scaling-factor", ("9 h", "9 ours"), "one_worker.value", "no number with a known unit"),
        ("osf-scaling-factor", ("9 h", "9 MB"), "scaling factor.formula", "one_worker must be a time, and is a size"),
        ("osf-scaling-factor", ("value: 8,", "value: 0,"), "scaling factor.formula", "divides by zero"),
        (
            "osf-table-3",
            ("question: original, field", "question: orignal, field"),
            "question",
            "Did you mean 'original'?",
        ),
        ("osf-table-3", ("layer.fc6", "layer.fc66"), "fully-connected layer 1.field", "vgg16 has no layer 'fc66'"),
        ("osf-table-3", ("weight_bytes", "weight_byte"), "field", "Did you mean 'weight_bytes'?"),
        ("osf-joint-fit", ("field: scaling_factor", "field: scaling_facto"), "field", "Did you mean 'scaling_factor'?"),
        ("osf-joint-fit", ("field: scaling_factor", "field: details.schedule"), "field", "holds no number"),
        ("osf-table-3", ("field: dnn.layer.fc6.weight_bytes", "field: dnn"), "field", "holds no number"),
        ("osf-table-3", ("field: dnn.layer.fc6.weight_bytes", "field: dnn.layer"), "field", "has no layer ''"),
        ("osf-table-3", ("zoo: vgg16}", "zoo: vgg61}"), "questions.original.dnn.zoo", "'vgg61' is not a known"),
        ("osf-joint-fit", ("wait: none", "wiat: none"), "calibration.wiat", "Did you mean 'wait'?"),
        ("osf-layer-replacement", ("[0.1, 1]", "[0.9, 1]"), "fit.between", "same side"),
        ("osf-layer-replacement", ("quantity: VGG16", "quantity: VGG61"), "fit.quantity", "Did you mean 'VGG16'?"),
        (
            "osf-layer-replacement",
            ("bandwidth_efficiency", "bandwidth_eficiency"),
            "bandwidth_eficiency",
            "unknown key",
        ),
        ("procure-mix", ("most_types: 3", "most_typs: 3"), "questions.equal.procure.most_typs", "Did you mean"),
        (
            "procure-mix",
            ("deadline: 26850 s", "deadline: 100 s"),
            "questions.mixed.procure",
            "no fleet keeps the limits",
        ),
        ("procure-mix", ("field: machines.server", "field: machines.sever"), "servers.field", "no field 'sever'"),
        ("osf-table-3", ("questions:", "questions:\n  idle: {}"), "questions.idle", "no quantity asks it"),
        (
            "osf-table-3",
            ("quantities:", "quantities:\n  extra: {value: 1, source: us}"),
            "extra.value",
            "unknown key 'value'",
        ),
    ],
)
def test_a_bad_case_file_is_refused_with_its_place(
    name: str, edit: tuple[str, str], field: str, problem: str, tmp_path: Path
) -> None:
    fault, *_ = (fault for fault in faults_of(copy_of(name, tmp_path, case=edit)) if fault.field.endswith(field))
    assert problem in str(fault)
    assert fault.file.endswith("case.yaml")
    assert fault.line is not None


@pytest.mark.parametrize(
    ("old", "new", "field", "problem"),
    [
        ("quantity,unit,published,tolerance", "quantity,unit,published,tol", "tolerance", "this column is missing"),
        ("published", "publisht", "publisht", "unknown column. Did you mean 'published'?"),
        ("MiB,392", "MiB,many", "fully-connected layer 1.published", "must be a number"),
        ("MiB,392", "s,392", "fully-connected layer 1.unit", "'s' measures a time"),
        ("392,0,", "392,about,", "fully-connected layer 1.tolerance", "'about' is no tolerance"),
        ("392,0,", "392,11%,", "fully-connected layer 1", "above 10 %. Say why in the column reason."),
        ("exact", "certain", "fully-connected layer 1.class", "'certain'"),
        ("exact,Table 3", "exact,", "fully-connected layer 1.source", "this text is empty"),
        ("fully-connected layer 2", "fully-connected layer 1", "fully-connected layer 1", "stands twice"),
        ("fully-connected layer 3", "layer 9", "layer 9", "case.yaml defines no quantity 'layer 9'"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(old: str, new: str, field: str, problem: str, tmp_path: Path) -> None:
    faults = faults_of(copy_of("osf-table-3", tmp_path, published=(old, new)))
    fault = next(fault for fault in faults if problem in str(fault))
    assert fault.field == field
    assert fault.file.endswith("published.csv")
    assert fault.line is not None


def test_a_quantity_that_nobody_published_is_refused(tmp_path: Path) -> None:
    extra = "quantities:\n  extra: {question: original, field: dnn.weight_bytes}"
    fault, *_ = faults_of(copy_of("osf-table-3", tmp_path, case=("quantities:", extra)))
    assert (fault.field, fault.problem) == ("quantities.extra", "published.csv lacks it.")
    assert fault.line is not None


def test_several_faults_are_reported_at_once(tmp_path: Path) -> None:
    case = "source: x\nquantities:\n  a: {formula: ratoi}\n  b: {question: q}\n  c: 7\n"
    (tmp_path / "case.yaml").write_text(case, encoding="utf-8")
    assert {fault.line for fault in faults_of(tmp_path)} == {3, 4, 5}


def test_a_measured_profile_is_found_beside_the_case(tmp_path: Path) -> None:
    trace = "dnn: {trace: alexnet.csv, batch_per_device: 32}"
    folder = copy_of("osf-table-3", tmp_path, case=("dnn: {zoo: vgg16}", trace))
    fault, *_ = faults_of(folder)
    assert str(folder / "alexnet.csv") in str(fault)


def test_a_case_without_a_readme_is_refused(tmp_path: Path) -> None:
    folder = copy_of("osf-table-3", tmp_path)
    (folder / "README.md").unlink()
    assert [fault.file for fault in faults_of(folder)] == [str(folder / "README.md")]
