"""Every field that takes a path, given every odd path: it is told in words, at once, and no device or pipe is read.

A question is its user's: it may name any file that the user may read, in any folder. Nothing is expanded (``~``, ``$HOME``, URLs),
nothing but regular files is opened, nothing that a question names is written, and code runs only if the command line names it.
Files of other programs name no further file that would be opened.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto
from onnx_graphs import model_of, node, saved

import planner
from planner.cli.run import run
from planner.errors import SpecError
from planner.importers.onnx_model import read_onnx
from planner.importers.text import read_text
from planner.procurement.question import load_procurement
from planner.sweep.question import load_sweep

TODAY = date(2026, 11, 21)
CLUSTER = {"machines": [{"count": 2, "device": "v100", "network": "10 Gbit/s"}]}
PLAIN = {"dnn": {"zoo": "alexnet", "batch_per_device": 8}, "cluster": CLUSTER}
TRAINED = {"zoo": "alexnet", "global_batch": 256, "epochs": 1, "dataset_samples": 100_000}
SWEEP = {"vary": {"dnn.batch_per_device": [1, 2]}}


def network(key: str) -> Callable[[str], dict[str, Any]]:
    more = {"profile_batch": 8} if key in ("profile", "trace") else {}
    return lambda path: {"dnn": {key: path, "batch_per_device": 8, **more}, "cluster": CLUSTER}


def curve(path: str) -> dict[str, Any]:
    return {**PLAIN, "calibration": {"curves": [{"num_devices": 2, "file": path}]}}


def swept(make: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    return lambda path: {**make(path), "sweep": SWEEP}


QUESTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    **{f"dnn.{key}": network(key) for key in ("file", "onnx", "huggingface", "profile", "trace")},
    "calibration": lambda path: {**PLAIN, "calibration": path},
    "calibration.curves.file": curve,
    "procure.prices": lambda path: {"dnn": TRAINED, "procure": {"prices": path}},
    "procure.networks.file": lambda path: {
        "dnn": TRAINED,
        "procure": {"terms": ["bought"], "networks": [{"file": path}]},
    },
    "procure.jobs.dnn.file": lambda path: {
        "procure": {"jobs": [{"name": "a", "dnn": {"file": path}, "runs_per_month": 1}]}
    },
    "sweep of calibration": swept(lambda path: {**PLAIN, "calibration": path}),
    "sweep of dnn.file": swept(network("file")),
    "sweep of dnn.onnx": swept(network("onnx")),
    "sweep of a field": lambda path: {**PLAIN, "sweep": {"vary": {"calibration": [path]}}},
}


@contextmanager
def at_once() -> Iterator[None]:
    """Fail where a block waits: a pipe without a writer is waited for for ever."""

    def ring(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ask(question: dict[str, Any], folder: Path) -> None:
    """Read a question from a file, and what it names; of a sweep its first question, too."""
    import json

    file = folder / "spec.yaml"
    file.write_text(json.dumps(question), encoding="utf-8")
    if "sweep" in question:
        task = load_sweep(file, time_limit_s=1.0).task(0, TODAY)
        asked = getattr(task, "question", None)
        if asked is None:
            raise SpecError(str(getattr(task, "error", "")))
        planner.load(asked)
    elif "procure" in question:
        load_procurement(file, today=TODAY)
    else:
        planner.load(file)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Paths at which no file is that could be read, by what they are; the spec stands in a folder of its own."""
    inside = tmp_path / "inside"
    inside.mkdir()
    os.mkfifo(inside / "pipe")
    (inside / "loop").symlink_to("loop")
    (inside / "dangling").symlink_to(tmp_path / "nothing")
    (inside / "endless").symlink_to("/dev/zero")
    (inside / "folder").mkdir()
    return {
        "above": "../../../../../../nothing/here",
        "absolute": "/nothing/here",
        "home": "~/nothing",
        "variable": "$HOME/nothing",
        "address": "file:///etc/passwd",
        "web address": "https://localhost/spec.yaml",
        "share": r"\\host\share\file",
        "drive": r"C:\file",
        "device": "/dev/zero",
        "link to a device": "endless",
        "pipe": "pipe",
        "loop": "loop",
        "dangling link": "dangling",
        "folder": "folder",
        "long name": "x" * 5000,
        "zero byte": "a\0b",
        "many folders": "a/" * 3000,
        "memory of the process": "/proc/self/mem",
    }


@pytest.mark.parametrize("field", QUESTIONS)
def test_a_path_at_which_there_is_no_regular_file_is_refused_in_words_and_at_once(
    tmp_path: Path, places: dict[str, str], field: str
) -> None:
    for name, path in places.items():
        with at_once(), pytest.raises(SpecError) as error:
            ask(QUESTIONS[field](path), tmp_path / "inside")
        text = str(error.value)
        assert text.strip(), name
        assert len(text) < 40_000, name
        assert all(letter.isprintable() or letter == "\n" for letter in text), name


@pytest.mark.parametrize("way", ["relative", "above", "absolute", "link"])
def test_a_question_may_name_a_file_in_any_folder_which_is_read_and_left_as_it_is(tmp_path: Path, way: str) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    target = inside / "known.yaml" if way == "relative" else outside / "known.yaml"
    target.write_text("utilisation: 0.4\n")
    before = target.stat()
    if way == "link":
        (inside / "link.yaml").symlink_to(target)
    path = {"relative": "known.yaml", "above": "../outside/known.yaml", "absolute": str(target), "link": "link.yaml"}[
        way
    ]
    ask({**PLAIN, "calibration": path}, inside)
    after = target.stat()
    assert (before.st_size, before.st_mtime_ns, before.st_mode) == (after.st_size, after.st_mtime_ns, after.st_mode)


def test_names_are_taken_as_they_are_written(tmp_path: Path) -> None:
    """A file whose name is ``~`` is that file, not the home folder."""
    (tmp_path / "~").mkdir()
    (tmp_path / "~" / "$HOME.yaml").write_text("utilisation: 0.4\n")
    ask({**PLAIN, "calibration": "~/$HOME.yaml"}, tmp_path)


@pytest.mark.parametrize(
    "location", ["../weights", "/etc/passwd", r"\\host\share", r"C:\weights", "a/../../weights", ""]
)
def test_data_of_an_onnx_graph_outside_of_its_folder_are_refused_and_those_inside_are_never_opened(
    tmp_path: Path, location: str
) -> None:
    def graph(where: str) -> Path:
        weight = TensorProto(name="w", dims=[16, 8], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        entry = weight.external_data.add()
        entry.key, entry.value = "location", where
        return saved(model_of([node("MatMul", "x w")], {"x": ["N", 16]}, [weight]), tmp_path)

    with pytest.raises(SpecError, match=r"outside of the model's folder|not in which"):
        read_onnx(graph(location))
    os.mkfifo(tmp_path / "weights")  # would be waited for if it were opened
    with at_once():
        assert read_onnx(graph("weights")).dnn.num_trainable == 128


def test_a_configuration_of_hugging_face_names_code_that_is_never_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModel": "evil.Model"}, '
        '"_name_or_path": "../../elsewhere", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, '
        '"intermediate_size": 128, "vocab_size": 100}'
    )
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
    found = planner.load(
        {"dnn": {"huggingface": str(tmp_path / "config.json"), "batch_per_device": 1}, "cluster": CLUSTER}
    )
    assert found.dnn.num_trainable > 0


def test_a_spec_alone_runs_no_code(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(SpecError, match="a spec alone must not"):
        ask({"dnn": {"torch": "evil:make", "batch_per_device": 1}, "cluster": CLUSTER}, tmp_path)
    text = "dnn: !!python/object/apply:os.system [touch ran]\ncluster: {preset: osf-testbed}\n"
    (tmp_path / "tag.yaml").write_text(text)
    with pytest.raises(SpecError):
        planner.load(tmp_path / "tag.yaml")
    assert not (tmp_path / "ran").exists()


def test_launch_files_stay_in_the_folder_that_the_command_line_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan names jobs, machines and devices; none of them becomes a path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(
        "dnn: {zoo: alexnet, batch_per_device: 8, name: ../../evil}\n"
        "cluster: {machines: [{name: ../evil, count: 2, device: v100, network: 10 Gbit/s}]}\n"
        "families: [all_reduce]\nfix: {num_devices: 2}\n"
    )
    assert run(["plan", "spec.yaml", "--out", "plan.json", "--json"]) == 0
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for target in ("ddp", "slurm", "pytorchjob"):
        run(
            [
                "export",
                "plan.json",
                "--to",
                target,
                "--script",
                "train.py",
                "--image",
                "i",
                "--out",
                f"out/{target}",
                "--json",
            ]
        )
    capsys.readouterr()
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert new
    assert all(path.is_relative_to(tmp_path / "out") for path in new)
    assert not list(tmp_path.parent.glob("evil*"))


def test_a_file_that_grows_without_end_is_told_by_its_size_and_not_read(tmp_path: Path) -> None:
    """A sparse file of a tebibyte takes no room on the disk; it would take it in memory."""
    path = tmp_path / "spec.yaml"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    with at_once(), pytest.raises(SpecError, match="it holds 1099511627776 bytes, more than"):
        read_text(path)
