"""Files that questions name: found from the spec's folder, read once, told apart by what they hold."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sweeps import BASE, TODAY

import planner
from planner import network_import
from planner.sweep.answers import Outcome, Task, answer
from planner.sweep.files import Files
from planner.sweep.question import load_sweep

EXAMPLES = Path(planner.__file__).parent / "data/examples"
CLUSTER: dict[str, Any] = {"machines": [{"count": 2, "device": "v100", "network": "10 Gbit/s"}]}


def spec_of(folder: Path, base: dict[str, Any], vary: dict[str, Any]) -> Path:
    path = folder / "s.yaml"
    path.write_text(json.dumps({**base, "sweep": {"vary": vary}}))
    return path


def tasks_of(path: Path) -> list[Task]:
    sweep = load_sweep(path, time_limit_s=60.0)
    found = [sweep.task(position, TODAY) for position in range(len(sweep.grid))]
    assert all(isinstance(one, Task) for one in found), found
    return [one for one in found if isinstance(one, Task)]


@pytest.mark.parametrize(
    ("key", "name", "told"),
    [
        ("profile", "residual-mlp.graph.txt", {"profile_batch": 4, "profile_device": "v100"}),
        ("trace", "alexnet-k80.trace.txt", {"profile_batch": 32, "profile_device": "k80"}),
    ],
)
def test_a_measured_network_is_read_once_and_gives_the_plan_of_its_own_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, name: str, told: dict[str, Any]
) -> None:
    (tmp_path / name).write_bytes((EXAMPLES / name).read_bytes())
    reads: list[Path] = []
    genuine = network_import.import_file

    def noted(path: Path, **rest: Any) -> network_import.ImportedFile:
        reads.append(path)
        return genuine(path, **rest)

    monkeypatch.setattr(import_module("planner.sweep.files"), "import_file", noted)
    machines = [{**CLUSTER["machines"][0], "device": told["profile_device"]}]
    base: dict[str, Any] = {
        "dnn": {key: name, **told, "dataset_samples": 1000},
        "cluster": {"machines": machines},
        "families": ["all_reduce"],
    }
    tasks = tasks_of(spec_of(tmp_path, base, {"dnn.batch_per_device": [4, 8, 16]}))
    assert len(reads) == 1
    (tmp_path / name).unlink()  # a worker elsewhere has no such file
    found = answer(tasks[1])
    assert found.outcome is Outcome.OPTIMAL, found.error
    own = {**base, "dnn": {**base["dnn"], key: str(EXAMPLES / name), "batch_per_device": 8}}
    assert found.objective == pytest.approx(planner.plan(planner.load(own)).objective)


def test_a_profile_whose_batch_is_the_questions_own_is_read_by_each_question(tmp_path: Path) -> None:
    (tmp_path / "net.txt").write_bytes((EXAMPLES / "alexnet-k80.trace.txt").read_bytes())
    base = {"dnn": {"trace": "net.txt", "profile_device": "k80", "dataset_samples": 1000}, "cluster": CLUSTER}
    tasks = tasks_of(spec_of(tmp_path, base, {"dnn.batch_per_device": [32, 64]}))
    assert [task.question["dnn"]["trace"] for task in tasks] == [str(tmp_path / "net.txt")] * 2
    assert tasks[0].key != tasks[1].key


@pytest.mark.parametrize("key", ["calibration", "curves", "prices"])
def test_other_files_are_named_by_whole_paths_and_what_they_hold_is_part_of_the_key(tmp_path: Path, key: str) -> None:
    (tmp_path / "curve.csv").write_text("size_bytes,seconds\n1000,0.001\n1000000,0.01\n")
    (tmp_path / "fit.yaml").write_text("utilisation: 0.4\ncurves: [{num_devices: 2, file: curve.csv}]\n")
    curve = {"num_devices": 2, "file": "curve.csv"}
    blocks: dict[str, dict[str, Any]] = {
        "calibration": {**BASE, "calibration": "fit.yaml"},
        "curves": {**BASE, "calibration": {"curves": [curve]}},
        "prices": {
            "dnn": {"zoo": "vgg16", "global_batch": 64, "epochs": 1},
            "procure": {"prices": ["built-in", "curve.csv"]},
        },
    }
    path = spec_of(tmp_path, blocks[key], {"dnn.dataset_samples": [1000, 2000]})
    before = [task.key for task in tasks_of(path)]
    (task, _) = tasks_of(path)
    assert str(tmp_path) in json.dumps(task.question)
    assert [task.key for task in tasks_of(path)] == before
    (tmp_path / "curve.csv").write_text("size_bytes,seconds\n1000,0.002\n1000000,0.02\n")
    assert not set(before) & {task.key for task in tasks_of(path)}


def test_files_that_vary_are_each_read_and_a_missing_one_is_a_wrong_question(tmp_path: Path) -> None:
    for name, size in (("a.yaml", "4 MB"), ("b.yaml", "8 MB")):
        layers = [{**row, **({"parameters": size} if row["name"] == "b" else {})} for row in BASE["dnn"]["layers"]]
        (tmp_path / name).write_text(json.dumps({"layers": layers}))
    base = {**BASE, "dnn": {"file": "a.yaml", "dataset_samples": 1000}}
    sweep = load_sweep(spec_of(tmp_path, base, {"dnn.file": ["a.yaml", "b.yaml", "c.yaml"]}), time_limit_s=60.0)
    first, second, third = (sweep.task(position, TODAY) for position in range(3))
    assert isinstance(first, Task)
    assert isinstance(second, Task)
    assert first.key != second.key
    assert not isinstance(third, Task)
    assert third.outcome is Outcome.WRONG
    assert "c.yaml" in (third.error or "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"file": 3},
        {"file": "a", "zoo": "vgg16"},
        {"onnx": ""},
        {"onnx": "gone.onnx"},
        {"trace": ["a"], "profile_batch": 1},
    ],
)
def test_what_is_wrong_with_a_file_is_left_to_the_question_to_say(wrong: dict[str, Any]) -> None:
    question, _ = Files(Path()).resolved({**BASE, "dnn": wrong})
    found = answer(Task(key="a", question=question, time_limit_s=1.0, today=TODAY))
    assert found.outcome is Outcome.WRONG
    assert (found.error or "").startswith(("dnn", "/", str(Path.cwd())))
