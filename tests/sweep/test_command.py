"""``planner sweep`` as its users meet it: exit codes, messages, signals, two at once."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from guards import guarded
from pytest import CaptureFixture
from sweeps import BASE, SLOW, batches, contents, left_over, write_spec

from planner.cli.run import run
from planner.sweep.store import Store


def answer(capsys: CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which ends with the block."""
    command = [sys.executable, "-m", "planner", *(str(argument) for argument in arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with guarded(process):
        yield process


def wait_for_rows(store: Path, least: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many answers, or so many claims, are in a store."""
    while process.poll() is None:
        if store.exists():
            with sqlite3.connect(store, timeout=60) as db:
                tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
                names = {"results", "claims"} if least == 0 else {"results"}
                counts = [db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in sorted(names & tables)]
            db.close()
            if sum(counts) >= max(least, 1):
                return
        time.sleep(0.02)


def test_a_sweep_is_answered_told_and_exported_beside_its_spec(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    spec = write_spec(tmp_path / "my sweep ü.yaml", batches(3))
    code, out, err = answer(capsys, "sweep", spec, "--export", tmp_path / "rows.csv")
    assert (code, err) == (0, "")
    assert out.startswith("3 questions: 3 proven optimal\n")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 4
    assert len(contents(tmp_path / "my sweep ü.sqlite")["results"]) == 3
    before = contents(tmp_path / "my sweep ü.sqlite")
    assert answer(capsys, "sweep", spec, "--report") == (0, out, "")
    found = json.loads(answer(capsys, "sweep", spec, "--json")[1])
    assert (found["schema"], found["is_complete"], found["number"]) == ("planner.sweep/1", True, 3)
    assert contents(tmp_path / "my sweep ü.sqlite") == before


def test_a_report_of_what_is_not_answered_says_so(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    spec = write_spec(tmp_path / "s.yaml", batches(3))
    code, _, err = answer(capsys, "sweep", spec, "--report")
    assert code == 2
    assert "there is no store" in err
    Store(tmp_path / "s.sqlite").close()
    assert answer(capsys, "sweep", spec, "--report") == (0, "3 questions, none of them answered yet\n", "")


@pytest.mark.parametrize(
    ("block", "arguments", "words"),
    [
        ({"vary": {"dnn.batch": [1]}}, [], "unknown key 'batch' in dnn"),
        ({"vary": {"cluster.machines.0.device": ["x"]}}, [], "all 1 questions are wrong"),
        (batches(2), ["--export", "rows.xls"], "a file ends in one of"),
        (batches(2), ["--time-limit", "5"], "--time-limit"),
        (batches(2), ["--workers", "0"], "--workers"),
        (batches(2), ["--workers", "1000"], "--workers: 1000 are too many"),
        (batches(2), ["--store", "missing/s.sqlite"], "there is no folder"),
    ],
)
def test_what_is_wrong_ends_with_code_two_and_leaves_no_store_of_answers(
    tmp_path: Path,
    capsys: CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    block: Any,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = answer(capsys, "sweep", write_spec(tmp_path / "s.yaml", block), *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_the_store_and_the_export_are_never_the_question_nor_each_other(
    tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path / "s.json", batches(2))
    before = spec.read_bytes()
    assert "is the question itself" in answer(capsys, "sweep", spec, "--store", spec)[2]
    assert "is the question itself" in answer(capsys, "sweep", spec, "--export", spec)[2]
    both = tmp_path / "x.csv"
    assert "--store writes there, too" in answer(capsys, "sweep", spec, "--store", both, "--export", both)[2]
    assert spec.read_bytes() == before


def test_questions_that_are_wrong_or_impossible_are_rows_of_a_sweep_that_ends_well(
    tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    block = {
        "vary": {"cluster.machines.0.device": ["v100", "v1000"], "constraints.memory_per_device": ["16 GiB", "1 kB"]}
    }
    code, out, err = answer(capsys, "sweep", write_spec(tmp_path / "s.yaml", block))
    assert (code, err) == (0, "")
    assert out.startswith("4 questions: 1 proven optimal, 1 without any plan, proven, 2 wrong\n")
    assert "constraints.memory_per_device: 1 kB" in out
    assert "v1000" in out


@pytest.mark.parametrize("ending", [".csv", ".json", ".parquet"])
def test_half_characters_that_json_can_name_reach_no_file_and_stop_no_sweep(
    tmp_path: Path, capsys: CaptureFixture[str], ending: str
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    block = {
        "vary": {
            "dnn.name": ["half \ud800", "ü"],
            "cluster.machines.0.device": ["v100", "\udfff"],
        }
    }
    export = tmp_path / f"rows{ending}"
    code, out, err = answer(capsys, "sweep", write_spec(tmp_path / "s.yaml", block), "--export", export)
    assert (code, err) == (0, "")
    assert "1 proven optimal, 3 wrong" in out
    assert "half \\ud800" in out
    assert export.stat().st_size
    assert json.loads(answer(capsys, "sweep", tmp_path / "s.yaml", "--json")[1])["number"] == 4


def test_a_network_in_a_file_is_read_from_the_specs_folder(
    tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "net.yaml").write_text(json.dumps({"layers": BASE["dnn"]["layers"]}))
    base = {**BASE, "dnn": {"file": "net.yaml", "dataset_samples": 1000}}
    spec = write_spec(folder / "s.yaml", batches(3), base)
    monkeypatch.chdir(tmp_path)
    assert answer(capsys, "sweep", spec)[0] == 0
    spec.write_text(spec.read_text().replace('"net.yaml"', '"gone.yaml"'))
    code, _, err = answer(capsys, "sweep", spec)
    assert code == 2
    assert "gone.yaml" in err


def test_another_network_in_the_same_file_is_another_sweep(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    base = {**BASE, "dnn": {"file": "net.yaml", "dataset_samples": 1000}}
    spec = write_spec(tmp_path / "s.yaml", batches(2), base)
    for number in (2, 4):
        layers = [
            {**row, **({"parameters": f"{number} MB"} if row["name"] == "b" else {})} for row in BASE["dnn"]["layers"]
        ]
        (tmp_path / "net.yaml").write_text(json.dumps({"layers": layers}))
        assert answer(capsys, "sweep", spec)[0] == 0
    assert len(contents(tmp_path / "s.sqlite")["results"]) == 4
    assert len(contents(tmp_path / "s.sqlite")["sweeps"]) == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_sweep_in_order_and_the_same_command_goes_on(tmp_path: Path, number: int, code: int) -> None:
    spec, store = write_spec(tmp_path / "s.yaml", batches(2000)), tmp_path / "s.sqlite"
    with started("sweep", spec) as process:
        wait_for_rows(store, 3, process)
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out) == (code, "")
    assert f"of 2000 questions are answered. The same command goes on: planner sweep {spec}" in err
    assert "Traceback" not in err
    assert 3 <= len(contents(store)["results"]) < 2000
    assert left_over(store) == (0, 0)


def test_a_question_that_would_take_long_is_given_up_and_not_stored(tmp_path: Path) -> None:
    spec, store = (
        write_spec(tmp_path / "s.yaml", {"vary": {"dnn.global_batch": [61_440, 46_080]}}, SLOW),
        tmp_path / "s.sqlite",
    )
    with started("sweep", spec) as process:
        wait_for_rows(store, 0, process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 143
    assert "0 of 2 questions are answered" in err
    assert contents(store)["results"] == []
    assert left_over(store) == (0, 0)


def test_two_sweeps_at_once_on_one_store_share_the_work(tmp_path: Path) -> None:
    number = 60
    store = tmp_path / "s.sqlite"
    specs = [write_spec(tmp_path / f"{name}.yaml", batches(size)) for name, size in (("a", number), ("b", number + 20))]
    with ExitStack() as stack:
        processes = [stack.enter_context(started("sweep", spec, "--store", store, "--json")) for spec in specs]
        found = [(process.communicate(), process.returncode) for process in processes]
    assert [code for _, code in found] == [0, 0], found
    documents = [json.loads(out) for (out, _), _ in found]
    assert [(one["is_complete"], one["counts"]) for one in documents] == [
        (True, {"optimal": number}),
        (True, {"optimal": number + 20}),
    ]
    kept = contents(store)
    assert len(kept["results"]) == number + 20
    assert len(kept["members"]) == 2 * number + 20
    assert left_over(store) == (0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs signals between processes")
def test_a_killed_sweep_does_not_hold_up_another_that_runs(tmp_path: Path) -> None:
    store, spec = tmp_path / "s.sqlite", write_spec(tmp_path / "s.yaml", batches(60))
    with started("sweep", spec) as first:
        wait_for_rows(store, 3, first)
        first.kill()
        first.communicate()
    assert left_over(store)[1] == 1  # it had no time to take its leave
    with started("sweep", spec, "--json") as second:
        out, err = second.communicate()
    assert (second.returncode, json.loads(out)["counts"]) == (0, {"optimal": 60}), err
    assert left_over(store) == (0, 0)
