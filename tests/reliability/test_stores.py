"""The store of sweeps under faults: clocks that jump, two sweeps at once, a full disk that is freed, other files."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import Server, can_mount, file_system, fill, wrong_of
from guards import guarded
from sweeps import BASE, TODAY, asked, batches, contents, left_over

from planner.errors import SpecError
from planner.search import Search
from planner.sweep.engine import OneWorker, run
from planner.sweep.store import APPLICATION, Store

Fresh = Callable[[], Path]


def test_a_clock_that_jumps_by_hours_frees_no_claim_of_a_process_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, genuine = tmp_path / "s.sqlite", time.time
    with Store(path) as first, Store(path) as second:
        assert first.claim(["a"]).mine == {"a"}
        for jump_s in (-7 * 3600.0, 7 * 3600.0, 1e9):
            monkeypatch.setattr(time, "time", lambda by_s=jump_s: genuine() + by_s)
            second.free_dead()
            assert second.claim(["a"]).others == {"a"}
            first.beat()


def test_a_sweep_whose_clock_jumps_with_every_look_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 1e9 + (-1) ** next(looks) * 36_000.0)
    with Store(tmp_path / "jumping.sqlite") as store:
        run(asked(batches(5)), store, OneWorker(), today=TODAY)
    monkeypatch.undo()
    with Store(tmp_path / "still.sqlite") as store:
        run(asked(batches(5)), store, OneWorker(), today=TODAY)
    assert contents(tmp_path / "jumping.sqlite") == contents(tmp_path / "still.sqlite")


def test_a_time_limit_does_not_hear_the_clock_of_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(time_limit_s=3600.0)
    for jump_s in (1e6, -1e6):
        monkeypatch.setattr(time, "time", lambda by_s=jump_s: by_s)
        assert not search.is_over
        assert 3000.0 < search.left_s <= 3600.0


@pytest.mark.skipif(not can_mount(), reason="only root may mount a file system that is full")
def test_a_sweep_goes_on_when_a_full_disk_has_room_again(server: Server, fresh: Fresh, tmp_path: Path) -> None:
    folder = fresh()
    (folder / "s.yaml").write_text(json.dumps({**BASE, "sweep": batches(40)}))
    with file_system(folder / "disk", 2**21) as disk:
        for size in (0, 2**12, 2**14, 2**16):  # full before its tables are made, in the midst of them, and later
            fill(disk)
            os.truncate(disk / "filler", max(0, (disk / "filler").stat().st_size - size))
            ended = server.run("sweep", "s.yaml", "--store", "disk/s.sqlite", folder=folder)
            assert not wrong_of(ended, (2,)), size
            assert "disk" in ended.err
        (disk / "filler").unlink()
        assert not wrong_of(server.run("sweep", "s.yaml", "--store", "disk/s.sqlite", folder=folder), (0,))
        found = contents(disk / "s.sqlite")
        assert left_over(disk / "s.sqlite") == (0, 0)
    assert not wrong_of(server.run("sweep", "s.yaml", "--store", "whole.sqlite", folder=folder), (0,))
    assert found == contents(folder / "whole.sqlite")


def foreign(path: Path, kind: str) -> None:
    """Put a file at a store's place that is none, or none any more."""
    if kind in ("cut", "a header alone", "scrambled"):
        with Store(path) as store:
            run(asked(batches(3)), store, OneWorker(), today=TODAY)
        data = path.read_bytes()
        cut = {
            "cut": data[: len(data) // 2],
            "a header alone": data[:100],
            "scrambled": data[:4096] + bytes(len(data) - 4096),
        }
        path.write_bytes(cut[kind])
    elif kind == "text":
        path.write_text("position,outcome\n1,optimal\n")
    else:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE results (a)")
            if kind == "newer":
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                db.execute("PRAGMA user_version = 99")
        db.close()


@pytest.mark.parametrize("kind", ["cut", "a header alone", "scrambled", "text", "another program's", "newer"])
def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s.sqlite"
    foreign(path, kind)
    before = path.read_bytes()
    with pytest.raises(SpecError) as caught, Store(path) as store:
        run(asked(batches(3)), store, OneWorker(), today=TODAY)
    assert "s.sqlite" in str(caught.value)
    assert any(word in str(caught.value) for word in ("damaged", "another program", "newer version"))
    assert kind in ("cut", "scrambled") or path.read_bytes() == before


def test_a_lost_log_costs_answers_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        run(asked(batches(3)), store, OneWorker(), today=TODAY)
        for name in ("s.sqlite", "s.sqlite-wal", "s.sqlite-shm"):
            (tmp_path / "copy").mkdir(exist_ok=True)
            if name != "s.sqlite-wal":
                (tmp_path / "copy" / name).write_bytes((tmp_path / name).read_bytes())
        whole = contents(path)
    with Store(tmp_path / "copy/s.sqlite") as store:
        run(asked(batches(3)), store, OneWorker(), today=TODAY)
    assert contents(tmp_path / "copy/s.sqlite") == whole


def test_three_sweeps_at_once_on_one_store_answer_each_question_once(tmp_path: Path) -> None:
    specs = []
    for first, last in ((1, 12), (5, 16), (9, 20)):
        spec = tmp_path / f"{first}.yaml"
        block = {"vary": {"dnn.batch_per_device": {"from": first, "to": last, "step": 1}}}
        spec.write_text(json.dumps({**BASE, "sweep": block}))
        specs.append(spec)
    command = [sys.executable, "-m", "planner", "sweep", "--store", str(tmp_path / "s.sqlite")]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    at_work = [subprocess.Popen([*command, str(spec)], stdout=pipe, stderr=pipe, text=True) for spec in specs]
    with guarded(*at_work):
        time.sleep(0.5)
        killed = subprocess.Popen([*command, str(specs[0])], stdout=nothing, stderr=nothing, text=True)
        with guarded(killed):  # and killed in the middle, while the others go on
            time.sleep(1.0)
        ended: list[Any] = [(one.communicate(), one.returncode) for one in at_work]
    assert [code for _, code in ended] == [0, 0, 0], ended
    found = contents(tmp_path / "s.sqlite")
    assert len(found["results"]) == 20
    assert len({row[0] for row in found["results"]}) == 20
