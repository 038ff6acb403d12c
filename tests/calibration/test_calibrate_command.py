"""``planner calibrate`` as its users meet it: measurements in, a calibration out that a spec names, faults with mends."""

import builtins
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch
from ruamel.yaml import YAML

import planner
from planner.answer.schemas import MODELS
from planner.calibration.benchmarks import Kind, kind_of_file, read_files
from planner.calibration.fits import Asked, Fitted, fit_all
from planner.calibration.report import block_of, calibration_text, residuals_of, text_plot, unmeasured
from planner.cli.run import run
from planner.cost import Floats
from planner.errors import SpecError
from planner.models.communication import ring_all_reduces

SPEC = """\
dnn: {zoo: resnet50, batch_per_device: 32}
cluster: {machines: [{count: 8, device: v100-sxm2-16g, network: 10 Gbit/s, latency: 10 us}]}
families: [all_reduce]
"""
SIZES: Floats = np.exp2(np.arange(8.0, 28.0))


def timings(tmp_path: Path, numbers: tuple[int, ...] = (2, 4, 8), *, noise: float = 0.02, name: str = "t.csv") -> Path:
    """A table of ring all-reduces at 60 % of 10 Gbit/s, with 50 us of overhead, and noise."""
    rng = np.random.default_rng(7)
    lines = ["collective,num_devices,size_bytes,time_s"]
    for number in numbers:
        cost = ring_all_reduces(num_devices=[number], bandwidth_bytes_per_s=0.75e9, latency_s=1e-5, overhead_s=5e-5).at(
            0
        )
        seconds = cost(SIZES) * np.exp(noise * rng.standard_normal(len(SIZES)))
        lines += [
            f"all_reduce,{number},{size:.0f},{time_s!r}" for size, time_s in zip(SIZES, seconds.tolist(), strict=True)
        ]
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def spec(tmp_path: Path, more: str = "") -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC + more)
    return path


def fitted(*paths: Path, **asked: Any) -> Fitted:
    return fit_all(read_files(list(paths)), Asked(**asked))


def answer(capsys: CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run([str(one) for one in arguments])
    out, err = capsys.readouterr()
    assert "a bug of ours" not in err, err
    return code, out, err


# -- the whole round -------------------------------------------------------------------------------------------------


def test_timings_become_a_file_that_a_spec_names_and_a_plan_uses(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "calibration.yaml"
    code, text, err = answer(capsys, "calibrate", timings(tmp_path), "-o", out)
    assert (code, err) == (0, "")
    assert "the simplest within a standard error of the best is chosen" in text
    assert f"Written to {out}; name it in a spec: calibration: calibration.yaml" in text
    before, after = planner.load(spec(tmp_path)), planner.load(spec(tmp_path, "calibration: calibration.yaml\n"))
    assert not before.are_links_calibrated
    assert after.are_links_calibrated
    assert not any("links are uncalibrated" in one for one in after.warnings)
    assert any("known error of links, as calibrated: " in one for one in after.assumptions)
    made = fitted(timings(tmp_path))
    for curve in made.curves:
        read_back = after.calibration.all_reduce_curves[curve.group.num_devices]
        np.testing.assert_allclose(read_back(SIZES), curve.cost(SIZES), rtol=1e-4)
    slower, faster = (planner.plan(one).prediction.iteration_time_s for one in (after, before))
    assert slower > faster


def test_straight_lines_come_back_as_straight_lines(tmp_path: Path) -> None:
    (tmp_path / "calibration.yaml").write_text(calibration_text(fitted(timings(tmp_path), form="affine")))
    problem = planner.load(spec(tmp_path, "calibration: calibration.yaml\n"))
    assert {type(one).__name__ for one in problem.calibration.all_reduce_curves.values()} == {"Affine"}


@pytest.mark.parametrize("form", ["affine", "piecewise", "curve"])
def test_every_form_survives_writing_and_reading(tmp_path: Path, form: str) -> None:
    made = fitted(timings(tmp_path, noise=0.1), form=form)
    (tmp_path / "calibration.yaml").write_text(calibration_text(made))
    problem = planner.load(spec(tmp_path, "calibration: calibration.yaml\n"))
    for curve in made.curves:
        assert curve.form == form
        read_back = problem.calibration.all_reduce_curves[curve.group.num_devices]
        np.testing.assert_allclose(read_back(SIZES), curve.cost(SIZES), rtol=1e-3)


def test_with_a_cluster_numbers_of_devices_that_were_not_measured_get_a_figure(tmp_path: Path) -> None:
    ring = spec(tmp_path, "calibration: {algorithms: [ring], aggregation: false}\n")
    made = fitted(timings(tmp_path, (2, 4, 8), noise=0.01), spec=ring)
    assert unmeasured(made) == [3, 5, 6, 7]
    (tmp_path / "calibration.yaml").write_text(calibration_text(made))
    problem = planner.load(spec(tmp_path, "calibration: calibration.yaml\n"))
    assert sorted(problem.calibration.all_reduce_curves) == [2, 3, 4, 5, 6, 7, 8]
    assert problem.calibration.overhead_s == pytest.approx(5e-5, rel=0.1)
    assert problem.calibration.links.network_share == pytest.approx(0.6, rel=0.05)
    six = ring_all_reduces(num_devices=[6], bandwidth_bytes_per_s=0.75e9, latency_s=1e-5, overhead_s=5e-5).at(0)
    sizes = SIZES[::3]
    np.testing.assert_allclose(problem.calibration.all_reduce_curves[6](sizes), six(sizes), rtol=0.1)


def test_the_law_alone_leaves_all_numbers_of_devices_open(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "calibration.yaml"
    code, _, _ = answer(capsys, "calibrate", timings(tmp_path), "--spec", spec(tmp_path), "--law-only", "-o", out)
    assert code == 0
    block = YAML(typ="safe", pure=True).load(out.read_text())
    assert set(block) == {"overhead", "bandwidth_efficiency", "known_error", "source"}
    problem = planner.load(spec(tmp_path, "calibration: calibration.yaml\n"))
    assert problem.calibration.all_reduce_curves == {}
    assert problem.are_links_calibrated


def test_keys_of_the_spec_that_no_fit_replaces_stay(tmp_path: Path) -> None:
    given = spec(tmp_path, "calibration: {negotiate: 1 ms, overhead: 7 us, utilisation: 0.4, source: a guess}\n")
    block = block_of(fitted(timings(tmp_path), spec=given))
    assert block["negotiate"] == "1 ms"
    assert block["utilisation"] == 0.4
    assert block["overhead"] != "7 us"
    assert block["source"] == "planner calibrate: t.csv"


def test_profiles_and_iterations_become_calibrations_as_well(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    layers, iterations, out = tmp_path / "layers.csv", tmp_path / "rows.csv", tmp_path / "calibration.yaml"
    layers.write_text(
        "layer,kind,multiply_adds,batch,forward_ms,backward_ms\n"
        "conv1,convolution,118013952,32,1.2,2.4\nconv2,convolution,218013952,32,2.2,4.4\nfc,fully_connected,2048000,32,0.2,0.4\n"
    )
    iterations.write_text("num_devices,iteration_time_ms\n1,90\n2,120\n4,150\n8,170\n")
    code, text, err = answer(capsys, "calibrate", layers, "--spec", spec(tmp_path), "-o", out)
    assert (code, err) == (0, "")
    assert "Utilisation of v100-sxm2-16g" in text
    problem = planner.load(spec(tmp_path, "calibration: calibration.yaml\n"))
    assert problem.is_computation_measured
    assert any("known error of layers" in one for one in problem.assumptions)
    code, text, err = answer(capsys, "calibrate", iterations, "--spec", spec(tmp_path), "-o", out)
    assert (code, err) == (0, "")
    assert "Parameters of all_reduce; 95 % from the Jacobian" in text
    problem = planner.load(spec(tmp_path, "calibration: calibration.yaml\n"))
    assert any("known error of iterations" in one for one in problem.assumptions)


def test_a_table_of_layers_in_the_importers_format_brings_its_own_multiply_adds(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(
        "name,kind,forward_s,backward_s,output_bytes,parameter_bytes,multiply_adds\n"
        "conv1,convolution,0.001,0.002,4096,4096,3.2e9\nfc,fully_connected,0.0005,0.001,4096,4096,6.4e8\n"
    )
    found = fitted(path, device="v100-sxm2-16g", batch_size=32).utilisation
    assert found is not None
    peak = found.peak_flop_per_s
    assert found.by_kind == pytest.approx(
        {"convolution": 2 * 3.2e9 / 0.001 / peak, "fully_connected": 2 * 6.4e8 / 0.0005 / peak}
    )
    with pytest.raises(SpecError, match=r"the batch of the profile is missing. Add --batch N."):
        fitted(path, device="v100-sxm2-16g")


def test_equal_data_give_equal_bytes_and_the_date_is_the_users(tmp_path: Path) -> None:
    one, other = (calibration_text(fitted(timings(tmp_path), spec=spec(tmp_path))) for _ in range(2))
    assert one == other
    assert "2026-11-20" not in one
    assert "t.csv; 2026-11-20" in calibration_text(fitted(timings(tmp_path)), date="2026-11-20")


def test_json_is_one_document_that_keeps_to_its_schema(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = answer(capsys, "calibrate", timings(tmp_path), "--spec", spec(tmp_path), "--json")
    assert code == 0
    document = json.loads(out)
    jsonschema.validate(document, MODELS["fit"].model_json_schema(by_alias=True))
    assert [curve["num_devices"] for curve in document["curves"]] == [2, 4, 8]
    assert document["calibration"]["known_error"][0]["of"] == "links"


def test_collectives_that_no_plan_uses_are_fitted_and_not_written(tmp_path: Path) -> None:
    path = timings(tmp_path)
    path.write_text(path.read_text().replace("all_reduce,4", "all_gather,4"))
    made = fitted(path)
    assert {curve.group.collective for curve in made.curves} == {"all_reduce", "all_gather"}
    text = calibration_text(made)
    assert "Fitted, and not in this file, since a plan has no use for it: all_gather on 4 devices." in text
    rows = block_of(made)["piecewise"]
    assert isinstance(rows, list)
    assert [row["num_devices"] for row in rows] == [2, 8]


def test_gradients_larger_than_what_was_timed_are_warned_of(tmp_path: Path) -> None:
    path = timings(tmp_path)
    lines = [
        line
        for line in path.read_text().splitlines()
        if not line.split(",")[2].isdigit() or int(line.split(",")[2]) < 2**20
    ]
    path.write_text("\n".join(lines) + "\n")
    assert any(
        "come to 97.5 MiB, and sizes up to 512 KiB were timed" in note
        for note in fitted(path, spec=spec(tmp_path)).notes
    )


# -- pictures --------------------------------------------------------------------------------------------------------


def test_residuals_are_drawn_in_the_terminal_about_their_zero(tmp_path: Path) -> None:
    (found,) = residuals_of(fitted(timings(tmp_path, (4,))))
    lines = text_plot(found).splitlines()
    assert len(lines) <= 18
    assert all("o" in line for line in lines[2:])
    assert lines[0].endswith("predicted / measured - 1 against size")
    assert len({line.index("|") for line in lines[2:] if "|" in line}) <= 1


@pytest.mark.parametrize("name", ["r.svg", "r.png"])
def test_residuals_are_drawn_in_a_file(capsys: CaptureFixture[str], tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: extra plot")
    code, _, err = answer(capsys, "calibrate", timings(tmp_path), "--plot", tmp_path / name)
    assert (code, err) == (0, "")
    assert (tmp_path / name).read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")


def test_a_picture_without_matplotlib_or_of_no_known_kind_is_refused(
    capsys: CaptureFixture[str], tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    code, _, err = answer(capsys, "calibrate", timings(tmp_path), "--plot", tmp_path / "r.txt")
    assert code == 2
    assert "'.txt' is no kind of picture. Write .svg, .png, .pdf." in err
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    code, _, err = answer(capsys, "calibrate", timings(tmp_path), "--plot", tmp_path / "r.svg")
    assert code == 2
    assert "matplotlib is missing. Install it: pip install 'training-planner[plot]'." in err


# -- what is wrong ---------------------------------------------------------------------------------------------------

HEAD = "collective,num_devices,size_bytes,time_s\n"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "binary": (b"\x00\x01", "this is a binary file"),
    "no text": (b"\xff\xfe\xfa", "not UTF-8 text"),
    "prose": (b"all is well\n", "its content is of no kind that is known here. Give output of nccl-tests"),
    "two rows": ((HEAD + "all_reduce,4,8,0.1\nall_reduce,4,16,0.2\n").encode(), "2 sizes, too few. Measure at least 3"),
    "nan": ((HEAD + "all_reduce,4,8,nan\n").encode(), "x.csv:2: time_s: 'nan' is not a finite number"),
    "negative": ((HEAD + "all_reduce,4,8,-1\n").encode(), "x.csv:2: "),
    "two units": (b"collective,num_devices,size_bytes,time_s,time_us\nall_reduce,4,8,1,1\n", "time_s and time_us are given"),
    "header alone": (HEAD.encode(), "no row below a header"),
    "a plan's json": (b'{"schema": "planner.plan/1"}', "of no kind that is known"),
    "deep json": (b'{"inputs":' + b"[" * 50000, "of no kind that is known"),
    "iterations": (b"num_devices,iteration_time_s\n4,1\n8,2\n", "x.csv:2: these iterations have no question. Add --spec"),
    "layers": (b"layer,kind,multiply_adds,batch,forward_s\na,conv,1e6,32,1\n", "not known the device that was profiled. Add --device"),
    "graph": (b"node1 -- Linear -- forward_compute_time=1, backward_compute_time=2, activation_size=4, parameter_size=8\n", "Add --device"),
    "a network's configuration": (b'{"model_type": "llama", "hidden_size": 8, "architectures": ["X"]}', "of no kind that is known"),
    "osu of no ranks": (b"# OSU MPI Allreduce Latency Test v5.4.0\n# Size Avg Latency(us)\n4 1\n8 2\n16 3\n", "Give --devices N"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_read_is_refused_with_a_mend(capsys: CaptureFixture[str], tmp_path: Path, name: str) -> None:
    content, words = HOSTILE[name]
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    code, out, err = answer(capsys, "calibrate", path)
    assert (code, out) == (2, "")
    assert words in err
    code, out, _ = answer(capsys, "calibrate", path, "--json")
    assert code == 2
    assert json.loads(out)["schema"] == "planner.error/1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "there is nothing to calibrate from. Name files"),
        (("missing.csv",), "there is no such file"),
        (("{data}", "--measure"), "this measures here and now"),
        (("{data}", "--law-only"), "there is no law of a cluster. Add --spec"),
        (("{data}", "-o", "{data}"), "which would be overwritten"),
        (("{data}", "-o", "{folder}/no/where.yaml"), "it cannot be written"),
        (("{data}", "--form", "cubic"), "'cubic' is not one of"),
        (("{empty}",), "there is no file in this folder"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(
    capsys: CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"data": str(timings(tmp_path)), "folder": str(tmp_path), "empty": str(tmp_path / "empty")}
    code, _, err = answer(capsys, "calibrate", *(one.format(**places) for one in arguments))
    assert code == 2
    assert words in err


def test_all_faults_of_all_files_are_told_at_once(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(HEAD + "all_reduce,4,8,0\nall_reduce,4,16,x\n")
    code, _, err = answer(capsys, "calibrate", tmp_path)
    assert code == 2
    assert [line.split(":")[0].rsplit("/", 1)[1] for line in err.splitlines()] == ["a.csv"] * 2 + ["b.csv"] * 2


@pytest.mark.parametrize("kind", ["collectives", "layers", "iterations"])
def test_templates_print_what_is_told_apart_by_its_content(
    capsys: CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    code, out, _ = answer(capsys, "calibrate", "--template", kind)
    assert code == 0
    (tmp_path / "t").write_text(out)
    assert kind_of_file(tmp_path / "t")[0] is Kind(kind)


# -- real logs -------------------------------------------------------------------------------------------------------


@pytest.mark.measured
def test_the_measured_logs_of_one_cluster_become_a_calibration(data_folder: Path, tmp_path: Path) -> None:
    logs = [data_folder / "traces" / "b_caffe" / f"allreduce{number}.log" for number in (2, 4, 8)]
    made = fitted(*logs, spec=spec(tmp_path))
    assert [(curve.group.num_devices, len(curve.group.size_bytes)) for curve in made.curves] == [
        (2, 266),
        (4, 266),
        (8, 266),
    ]
    # Steps at 2, 8 and 512 KiB, where the library changes its algorithm: no smooth form follows them.
    assert {curve.form for curve in made.curves} == {"curve"}
    assert max(curve.score.mean for curve in made.curves) < 0.02
    assert all(curve.scores["piecewise"].mean < curve.scores["affine"].mean for curve in made.curves)
    (tmp_path / "calibration.yaml").write_text(calibration_text(made))
    problem = planner.load(spec(tmp_path, "calibration: calibration.yaml\n"))
    for curve in made.curves:
        np.testing.assert_allclose(
            problem.calibration.all_reduce_curves[curve.group.num_devices](curve.group.size_bytes),
            curve.cost(curve.group.size_bytes),
            rtol=1e-5,
        )
    assert planner.plan(problem).prediction.iteration_time_s > 0


@pytest.mark.measured
def test_measured_runs_are_compared_not_fitted(capsys: CaptureFixture[str], data_folder: Path, tmp_path: Path) -> None:
    runs = sorted((data_folder / "measurements").glob("open__ar-emu-n2-*.json"))[:2]
    code, out, err = answer(capsys, "calibrate", *runs)
    assert (code, err) == (0, "")
    assert "predicted" in out
    assert "measured" in out
    code, _, err = answer(capsys, "calibrate", *runs, timings(tmp_path))
    assert code == 2
    assert "measured runs are compared, other measurements are fitted" in err
