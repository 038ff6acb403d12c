"""Parameters of a family from whole iterations: found again, left out where the rows do not determine them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from planner.calibration.iterations import Iterations, fit_iterations
from planner.calibration.tables import IterationTime, read_iteration_document, read_iteration_table, template
from planner.errors import SpecError
from planner.families import FAMILIES

BASE: dict[str, Any] = {
    "dnn": {"zoo": "resnet50", "batch_per_device": 32},
    "cluster": {
        "machines": [
            {"count": 4, "device": "v100-sxm2-16g", "devices": 4, "inside": "nvlink-2", "network": "10 Gbit/s", "latency": "10 us"}
        ]
    },
    "families": ["all_reduce"],
}  # fmt: skip


def rows(
    truth: dict[str, Any], settings: list[tuple[int, int]], *, family: str = "all_reduce", **fix: Any
) -> list[IterationTime]:
    """Iterations as the planner itself predicts them with some calibration, configuration given."""
    found = []
    for number, batch in settings:
        asked = {
            **BASE,
            "dnn": {**BASE["dnn"], "batch_per_device": batch},
            "families": [family],
            "fix": {"num_devices": number, **fix} if family != "parameter_server" else fix,
            "calibration": truth,
        }
        plan = planner.plan(planner.load(asked))
        changes = {"dnn": {"batch_per_device": batch}, "configuration": {family: plan.configuration.to_document()}}
        found.append(IterationTime(changes=changes, time_s=plan.prediction.iteration_time_s, file="rows.yaml"))
    return found


def fit(measured: list[IterationTime], base: dict[str, Any] = BASE) -> Iterations:
    return fit_iterations(measured, planner.load(base).resolved)


SETTINGS = [(1, 32), (4, 8), (4, 32), (8, 8), (16, 8), (16, 32), (16, 64)]


def test_utilisation_and_the_share_of_the_links_are_found_again() -> None:
    found = fit(rows({"utilisation": 0.4, "bandwidth_efficiency": 0.6}, SETTINGS))
    assert found.family == "all_reduce"
    assert found.parameters["utilisation"] == pytest.approx(0.4, rel=1e-2)
    assert found.parameters["bandwidth_efficiency"] == pytest.approx(0.6, rel=2e-2)
    assert found.score is not None
    assert found.score.worst < 0.02 < found.default_score.mean


def test_the_predictions_of_the_fit_are_those_of_the_question_with_the_calibration_it_writes() -> None:
    measured = rows({"utilisation": 0.4, "bandwidth_efficiency": 0.6, "overhead": "300 us"}, SETTINGS[2:])
    found = fit(measured)
    for row, given in zip(found.rows, measured, strict=True):
        asked = {
            **BASE,
            "dnn": {**BASE["dnn"], **given.changes["dnn"]},
            "configuration": given.changes["configuration"],
            "calibration": {
                name: f"{value!r} s" if name == "overhead" else value for name, value in found.parameters.items()
            },
        }
        assert planner.predict(planner.load(asked)).iteration_time_s == pytest.approx(row.fitted_s, rel=1e-6)


def test_one_device_tells_nothing_of_links_and_the_report_says_so() -> None:
    found = fit(rows({"utilisation": 0.4, "bandwidth_efficiency": 0.6}, [(1, 8), (1, 16), (1, 32), (1, 64), (1, 48)]))
    assert set(found.parameters) == {"utilisation"}
    assert found.parameters["utilisation"] == pytest.approx(0.4, rel=1e-3)
    assert found.undetermined["bandwidth_efficiency"] == "no measured row depends on it"
    assert found.undetermined["overhead"] == "no measured row depends on it"


def test_fewer_rows_than_parameters_determine_fewer_parameters() -> None:
    found = fit(rows({"utilisation": 0.4, "bandwidth_efficiency": 0.6}, [(16, 8), (16, 32)]))
    assert len(found.parameters) <= 1
    assert any("too few" in why for why in found.undetermined.values())
    assert found.score is None


def test_noise_is_not_fitted_by_what_the_rows_leave_open() -> None:
    measured = rows({"utilisation": 0.4}, [(1, 8), (1, 16), (1, 32), (1, 64), (4, 64)])
    noisy = [
        IterationTime(changes=row.changes, time_s=row.time_s * factor, file=row.file)
        for row, factor in zip(measured, (1.03, 0.98, 1.02, 0.97, 1.01), strict=True)
    ]
    found = fit(noisy)
    for name, value in found.parameters.items():
        low, high = found.intervals[name]
        assert low <= value <= high <= 4 * value, name
    assert set(found.parameters) | set(found.undetermined) == set(FAMILIES["all_reduce"].FITTED)


def test_parameter_servers_have_their_own_fit() -> None:
    measured = rows(
        {"utilisation": 0.4, "bandwidth_efficiency": 0.6},
        [(16, 8), (16, 32), (16, 64)],
        family="parameter_server",
        num_parameter_servers=1,
    )
    measured += rows(
        {"utilisation": 0.4, "bandwidth_efficiency": 0.6},
        [(16, 8), (16, 32)],
        family="parameter_server",
        num_parameter_servers=2,
    )
    found = fit(measured)
    assert found.family == "parameter_server"
    assert found.parameters["bandwidth_efficiency"] == pytest.approx(0.6, rel=0.05)


def test_the_shares_of_hybrid_layouts_are_found_again() -> None:
    base: dict[str, Any] = {
        "dnn": {
            "transformer": {"layers": 8, "hidden": 2048, "heads": 16, "vocabulary": 32000, "sequence_length": 1024},
            "global_batch": 64,
            "dtype": "bf16",
            "optimizer": "adam",
        },
        "cluster": {
            "machines": [
                {"count": 4, "device": "a100-sxm4-80gb", "devices": 8, "inside": "nvlink-3", "network": "25 Gbit/s", "latency": "5 us"}
            ]
        },
        "families": ["hybrid"],
    }  # fmt: skip
    measured = []
    for tensor, pipeline, machines in ((1, 1, 4), (4, 1, 4), (8, 1, 1), (2, 2, 4)):
        fix = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "num_devices": machines * 8}
        truth = {"inside_efficiency": 0.5, "bandwidth_efficiency": 0.4}
        plan = planner.plan(planner.load({**base, "fix": fix, "calibration": truth}))
        changes = {"configuration": {"hybrid": plan.configuration.to_document()}}
        measured.append(IterationTime(changes=changes, time_s=plan.prediction.iteration_time_s, file="t.yaml"))
    found = fit(measured, base)
    assert found.family == "hybrid"
    assert found.parameters == pytest.approx({"inside_efficiency": 0.5, "bandwidth_efficiency": 0.4}, rel=0.02)


def test_rows_of_pins_are_planned_and_that_is_said() -> None:
    measured = [
        IterationTime(changes={"fix": {"num_devices": number}}, time_s=time_s, file="t.csv")
        for number, time_s in ((4, 0.1), (8, 0.11), (16, 0.13))
    ]
    found = fit(measured)
    assert "3 of the rows give no configuration" in found.notes[0]
    assert [row.name for row in found.rows] == ["num_devices 4", "num_devices 8", "num_devices 16"]


def test_measured_seconds_of_layers_leave_nothing_for_a_utilisation() -> None:
    layers = [{"name": "a", "forward": "1 ms", "backward": "2 ms", "parameters": "4 MB", "output": "1 kB"}]
    base = {**BASE, "dnn": {"layers": layers, "batch_per_device": 32, "dataset_samples": 1000}}
    measured = [
        IterationTime(
            changes={"fix": {"num_devices": number}}, time_s=0.004 + 0.001 * number, file="t.csv", line=number
        )
        for number in (2, 4, 8, 16)
    ]
    found = fit(measured, base)
    assert "utilisation" not in found.parameters
    assert "seconds of layers are measured" in found.undetermined["utilisation"]


def test_a_row_that_makes_no_question_is_named_by_its_line() -> None:
    wrong = [IterationTime(changes={"fix": {"num_devices": 4, "speed": 1}}, time_s=1.0, file="t.csv", line=7)]
    with pytest.raises(SpecError, match=r"t.csv:7: num_devices 4, speed 1: .*unknown key 'speed'"):
        fit(wrong)
    beyond = [IterationTime(changes={"fix": {"num_devices": 400}}, time_s=1.0, file="t.csv", line=8)]
    with pytest.raises(SpecError, match=r"t.csv:8: "):
        fit(beyond)


# -- files -----------------------------------------------------------------------------------------------------------


def test_the_template_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(template("iterations"))
    found = read_iteration_table(path)
    assert found[0].changes == {"fix": {"num_devices": 4}, "dnn": {"batch_per_device": 32}}
    assert found[3].time_s == pytest.approx(0.251)


def test_cells_are_numbers_truths_or_text_and_empty_ones_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("num_devices,algorithm,co_located,dnn.epochs,iteration_time_ms\n4,ring,true,1.5,20\n8,,,,30\n")
    one, other = read_iteration_table(path)
    assert one.changes == {"fix": {"num_devices": 4, "algorithm": "ring", "co_located": True}, "dnn": {"epochs": 1.5}}
    assert other.changes == {"fix": {"num_devices": 8}}
    assert other.time_s == pytest.approx(0.03)


def test_a_document_of_rows_holds_whole_configurations(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(
        "rows:\n- {fix: {num_devices: 4}, iteration_time: 20 ms}\n- {dnn: {batch_per_device: 8}, iteration_time: 1 s}\n"
    )
    found = read_iteration_document(path)
    assert [row.time_s for row in found] == [0.02, 1.0]
    assert found[1].changes == {"dnn": {"batch_per_device": 8}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rows: []\n", "no list of 1 to 1000 rows"),
        ("rows:\n- {fix: {num_devices: 4}}\n", "t.yaml:2.*iteration_time: None is no time"),
        ("rows:\n- {iteration_time: 20}\n", "no time of more than 0 with its unit"),
        ("rows:\n- {iteration_time: 20 MB}\n", "'20 MB' is not a time"),
        ("rows:\n- 4\n", "a row is a mapping"),
        ("rows:\n- {speed: 4, iteration_time: 1 s}\n", "'speed' is no mapping that a row may hold"),
    ],
)
def test_a_document_that_cannot_be_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_iteration_document(path)


def test_a_place_that_no_question_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("weather.wind,iteration_time_s\n4,1\n")
    with pytest.raises(SpecError, match=r"t.csv:2: weather.wind: 'weather.wind' is no place in a question"):
        read_iteration_table(path)


def test_at_a_kink_an_overhead_that_noise_hides_is_left_open_or_its_interval_holds_the_truth() -> None:
    truth = {"utilisation": 0.35, "bandwidth_efficiency": 0.55, "overhead": "400 us"}
    settings = [(number, batch) for number in (1, 4, 8, 16) for batch in (4, 32)]
    noise = np.exp(np.random.default_rng(0).normal(0, 0.02, len(settings))).tolist()
    found = fit(
        [
            IterationTime(changes=row.changes, time_s=row.time_s * factor, file=row.file)
            for row, factor in zip(rows(truth, settings), noise, strict=True)
        ]
    )
    low, high = found.intervals.get("overhead", (0.0, 1.0))
    assert low <= 4e-4 <= high
    assert found.parameters["utilisation"] == pytest.approx(0.35, rel=0.05)
