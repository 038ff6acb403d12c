from pathlib import Path

import pytest
from run_files import run_document, write_run

import planner
from planner.calibration.run_files import read_run
from planner.calibration.runs import compare
from planner.models.ddp import DdpConstants
from research.runs.__main__ import FOLDERS, main
from research.runs.constants_fit import fit_copy_s_per_byte, fit_wake_s
from research.runs.evaluation import ordinary, without_parts
from research.runs.page import bands_text, page, runs_text
from research.runs.questions import to_spec

ROOT = Path(__file__).parents[2]


@pytest.mark.measured
def test_page_and_bands_are_those_of_today(data_folder: Path) -> None:
    found = compare(data_folder / name for name in FOLDERS)
    assert (ROOT / "docs" / "accuracy_runs.md").read_text(encoding="utf-8") == page(found)
    assert (ROOT / "planner" / "data" / "run_bands.yaml").read_text(encoding="utf-8") == bands_text(found)


@pytest.mark.measured
def test_a_run_as_an_ordinary_question_carries_the_band_of_runs_and_on_other_machines_none(data_folder: Path) -> None:
    found = compare(data_folder / name for name in FOLDERS)
    inside = []
    for row in found.rows:
        assert row.measured_s is not None
        spec = to_spec(row.run)
        predicted = planner.predict(planner.load(spec))
        assert predicted.relative_error is not None and predicted.relative_error["from"] == "measured-runs"
        low, high = (predicted.iteration_time_s * (1 + predicted.relative_error[end]) for end in ("low", "high"))
        inside.append(low <= row.measured_s <= high)
        for change in ({"network": "10 Gbit/s"}, {"device": "rtx-3090"}):
            machines = [{**machine, **change} for machine in spec["cluster"]["machines"]]
            other = planner.predict(planner.load({**spec, "cluster": {"machines": machines}}))
            assert other.relative_error is None
    assert sum(inside) / len(inside) >= 0.75


@pytest.mark.measured
def test_the_constants_that_are_shipped_are_those_that_are_fitted(data_folder: Path) -> None:
    runs = [read_run(path) for path in sorted((data_folder / "measurements").glob("open__ar*.json"))]
    copied, woken = fit_copy_s_per_byte(runs), fit_wake_s(runs)
    assert copied is not None and woken is not None
    assert (copied.num_runs, woken.num_runs) == (7, 15)
    assert DdpConstants().copy_s_per_byte == pytest.approx(copied.value, rel=0.02)
    assert DdpConstants().wake_s == pytest.approx(woken.value, rel=0.02)


def test_constants_are_found_again_in_traces_made_with_them(tmp_path: Path) -> None:
    document = run_document()
    # Layers: "last" by 0.05 s, "first" by 0.2 s; two workers; the second bucket comes 4 ms later than that.
    buckets = [{"ready_offset_s": 0.15, "end_offset_s": 0.3}, {"ready_offset_s": 0.304, "end_offset_s": 0.8}]
    document["results"]["traced_iterations_worker0"] = [{"backward_call_end_offset_s": 0.81, "buckets": buckets}]
    woken = fit_wake_s([read_run(write_run(tmp_path, document))])
    assert woken is not None and woken.value == pytest.approx(2e-3)
    assert fit_copy_s_per_byte([read_run(write_run(tmp_path, document))]) is None  # gradients are views
    document["inputs"]["allreduce"]["ddp_logging"]["gradient_as_bucket_view"] = 0
    copied = fit_copy_s_per_byte([read_run(write_run(tmp_path, document))])
    assert copied is not None and copied.value == pytest.approx(0.01 / 4e6)  # the last bucket's 4 MB in 10 ms


def test_without_any_disturbance_no_part_is_worth_anything(tmp_path: Path) -> None:
    document = run_document()
    document["results"]["iteration_time"]["median_s"] = 0.7
    found = without_parts([read_run(write_run(tmp_path, document))])
    assert found["all of these: the textbook's recursion"] == pytest.approx(0.0, abs=1e-4)
    for name in ("copies of buckets", "slowest of equal workers", "level of the curve by repeats"):
        assert found[name] == pytest.approx(found["nothing"])
    assert found["late waking"] == pytest.approx(found["all of these: the textbook's recursion"])


def test_best_groups_are_predicted_no_slower_than_the_buckets_that_formed(tmp_path: Path) -> None:
    found = ordinary(read_run(write_run(tmp_path, run_document())))
    assert found.num_buckets == 2
    assert found.planned_s <= found.given_s * (1 + 1e-9)


def test_the_page_has_every_family_and_the_command_every_run(tmp_path: Path) -> None:
    found = compare([write_run(tmp_path, run_document())])
    for part in ("all-reduce, emulated compute", "## All-reduce: where it fails", "Emulated runs: the family's"):
        assert part in page(found)
    assert runs_text(found).count("`made-up-cap1`") == 2  # as predicted, and as an ordinary question


def test_the_command_prints_the_page_or_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANNER_DATA", raising=False)
    assert main([]) == 2
    assert "PLANNER_DATA" in capsys.readouterr().err
    (tmp_path / "measurements").mkdir()
    assert main(["--data", str(tmp_path)]) == 2
    assert "no file of a run" in capsys.readouterr().err
    write_run(tmp_path / "measurements", run_document())
    assert main(["--data", str(tmp_path)]) == 0
    assert "# Accuracy: measured distributed runs" in capsys.readouterr().out
