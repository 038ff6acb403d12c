"""The utilisation of devices by convolutional networks: the fit, the shipped table, and what a plan says of it."""

from pathlib import Path
from typing import Any

import pytest

import planner
from planner.data import device
from planner.data.fits import cnn_utilisation
from planner.problem import Problem
from research.cnn_fit import Run, left_out_errors, main, page, read_runs, table_text, utilisation_of

ROOT = Path(__file__).parents[2]


def run_of(samples_per_s: float, submitter: str = "one", **more: Any) -> Run:
    given: dict[str, Any] = {"device": "h100-sxm", "num_devices": 8, "batch_per_device": 400.0, "is_logged": True}
    return Run(submitter=submitter, samples_per_s=samples_per_s, **{**given, **more})


def question(device: str = "h100-sxm", *, batch: int = 3200, **dnn: Any) -> Problem:
    machines = [{"count": 1, "device": device, "devices": 8}]
    asked = {"zoo": "resnet50", "dtype": "bf16", "global_batch": batch, **dnn}
    return planner.load({"dnn": asked, "cluster": {"machines": machines}, "families": ["all_reduce"]})


def test_utilisation_is_the_network_s_work_over_the_peak() -> None:
    run = run_of(1000.0)
    multiply_adds = sum(layer.num_multiply_adds for layer in question().dnn.layers)
    assert run.utilisation == pytest.approx(6 * multiply_adds * 1000 / device("h100-sxm").peak_flop_per_s["bf16"])
    assert utilisation_of([run_of(100.0), run_of(400.0)]) == pytest.approx(run_of(200.0).utilisation)


def test_an_error_is_that_of_a_fit_without_the_submitter() -> None:
    runs = [run_of(1000.0), run_of(3000.0), run_of(2000.0, "two")]
    assert left_out_errors(runs) == pytest.approx([1000 / 2000 - 1, 3000 / 2000 - 1, 2000 / 3e6**0.5 - 1])
    assert left_out_errors([run_of(1.0), run_of(2.0)]) == []


def test_few_samples_and_many_devices_are_shown_but_not_fitted() -> None:
    runs = [run_of(1000.0), run_of(500.0, batch_per_device=16.0), run_of(400.0, num_devices=512)]
    assert [run.is_fitted for run in runs] == [True, False, False]
    assert "num_runs: 1," in table_text(runs)
    text = page(runs)
    assert "| `h100-sxm` | 8 | 16 | -50.0% |" in text
    assert "| `h100-sxm` | 512 | 400 | -60.0% |" in text


@pytest.mark.measured
def test_the_shipped_table_and_page_are_what_the_command_writes(data_folder: Path) -> None:
    runs = read_runs(data_folder)
    assert len(runs) > 40
    assert (ROOT / "planner/data/cnn_utilisation.yaml").read_text() == table_text(runs)
    assert (ROOT / "docs/accuracy_cnn.md").read_text() == page(runs)


def test_without_data_the_command_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "PLANNER_DATA" in capsys.readouterr().err


def test_a_network_in_short_numbers_takes_the_fitted_share_and_says_so() -> None:
    problem, row = question(), cnn_utilisation()["h100-sxm"]
    work = 6 * sum(layer.num_multiply_adds for layer in problem.dnn.layers)
    profile = problem.profiles["h100-sxm"]
    seconds = float(profile.forward_s.sum() + profile.backward_s.sum())
    assert seconds == pytest.approx(work / row["utilisation"] / device("h100-sxm").peak_flop_per_s["bf16"])
    assert any("fitted to" in one and "MLPerf" in one for one in problem.assumptions)
    assert not any("uncalibrated: give" in one for one in problem.warnings)


@pytest.mark.parametrize("asked", [{"dtype": "fp32"}, {"device": "b200-sxm"}], ids=["long numbers", "other device"])
def test_whatever_was_not_measured_is_said_to_be_uncalibrated(asked: dict[str, Any]) -> None:
    problem = question(asked.pop("device", "h100-sxm"), **asked)
    assert "efficiency: the devices at 50 % of the peak" in [one.text for one in problem.key_assumptions]
    assert any(one.startswith("the devices are uncalibrated") for one in problem.warnings)


def test_of_two_devices_the_one_without_a_figure_is_named() -> None:
    each = {"count": 1, "devices": 8, "network": "100 Gbit/s"}
    machines = [{**each, "name": name, "device": name} for name in ("h100-sxm", "b200-sxm")]
    dnn = {"zoo": "resnet50", "dtype": "bf16", "global_batch": 3200}
    problem = planner.load({"dnn": dnn, "cluster": {"machines": machines}})
    assert "efficiency: b200-sxm at 50 % of the peak" in [one.text for one in problem.key_assumptions]
    assert any(one.startswith("b200-sxm: uncalibrated") for one in problem.warnings)


def test_other_networks_and_fewer_samples_than_measured_are_warned_of() -> None:
    assert any("for vgg16 it is uncalibrated" in one for one in question(zoo="vgg16").warnings)
    assert any("16 samples on a device are fewer" in one for one in question(batch=128).warnings)
    assert not any("fewer than were measured" in one for one in question().warnings)


def test_a_share_that_is_given_counts_alone() -> None:
    machines = [{"count": 1, "device": "h100-sxm", "devices": 8}]
    spec = {
        "dnn": {"zoo": "resnet50", "dtype": "bf16", "global_batch": 3200},
        "cluster": {"machines": machines},
        "calibration": {"utilisation": 0.3},
    }
    problem = planner.load(spec)
    assert "0.3 of the bf16 peak" in problem.profiles["h100-sxm"].origin
    assert not any("MLPerf" in one for one in problem.assumptions)
