"""The store: what is kept, what is refused, and what happens to a file that fails."""

import gc
import os
import sqlite3
import subprocess
import sys
import weakref
import zlib
from pathlib import Path
from typing import Any

import pytest
from guards import GUARD_S, guarded
from sweeps import TODAY, asked, batches, contents, left_over

from planner.errors import SpecError
from planner.sweep import store as stores
from planner.sweep.answers import Answer, Outcome, failed
from planner.sweep.engine import OneWorker, run
from planner.sweep.question import Sweep
from planner.sweep.store import RETRIED, VERSION, Store


def answered(path: Path, sweep: Sweep) -> None:
    with Store(path) as store:
        done = run(sweep, store, OneWorker(), today=TODAY)
    assert not done.is_stopped
    assert done.num_answered == done.number == len(sweep.grid)


def altered(path: Path, statement: str) -> None:
    """Change a store behind its back."""
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


def plan(key: str, objective: float = 1.0) -> Answer:
    return Answer(key=key, outcome=Outcome.OPTIMAL, document=zlib.compress(b"{}"), objective=objective)


def test_what_is_answered_stays_and_is_not_asked_again(tmp_path: Path) -> None:
    path, sweep = tmp_path / "s.sqlite", asked(batches(5))
    answered(path, sweep)
    before = contents(path)
    assert [len(before[name]) for name in ("results", "members", "sweeps")] == [5, 5, 1]
    with Store(path) as store:
        done = run(sweep, store, OneWorker(), today=TODAY)
        documents = [store.document(row.answer.key) for row in store.rows(sweep.identity)]
        assert {document["schema"] for document in documents} == {"planner.plan/1"}
        assert [document["problem"]["dnn"]["batch_per_device"] for document in documents] == [1, 2, 3, 4, 5]
    assert (done.num_answered, done.num_new) == (5, 0)
    assert contents(path) == before
    assert left_over(path) == (0, 0)


def test_the_same_sweep_gives_the_same_store_but_for_wall_times(tmp_path: Path) -> None:
    for name in ("a", "b"):
        answered(tmp_path / name, asked(batches(4)))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_another_sweep_takes_over_the_questions_that_it_shares(tmp_path: Path) -> None:
    path, longer = tmp_path / "s.sqlite", asked(batches(6))
    answered(path, asked(batches(4)))
    with Store(path) as store:
        done = run(longer, store, OneWorker(), today=TODAY)
    assert (done.num_answered, done.num_new) == (6, 2)
    assert len(contents(path)["results"]) == 6
    assert len(contents(path)["members"]) == 10


def test_a_question_that_stands_twice_in_a_sweep_is_asked_once(tmp_path: Path) -> None:
    path, sweep = tmp_path / "s.sqlite", asked({"vary": {"dnn.batch_per_device": [4, 4, 2, 4]}})
    answered(path, sweep)
    assert len(contents(path)["results"]) == 2
    assert len(contents(path)["members"]) == 4


def test_the_day_of_the_first_start_stays(tmp_path: Path) -> None:
    sweep = asked(batches(1))
    with Store(tmp_path / "s") as store:
        assert store.begin(sweep, TODAY) == TODAY
        assert store.begin(sweep, TODAY.replace(year=2030)) == TODAY


def test_only_what_failed_or_met_a_limit_is_asked_again(tmp_path: Path) -> None:
    path, sweep = tmp_path / "s.sqlite", asked(batches(3))
    answered(path, sweep)
    before = contents(path)
    altered(
        path,
        "UPDATE results SET outcome = 'failed', objective = NULL WHERE key IN (SELECT key FROM members WHERE position = 1)",
    )
    with Store(path) as store:
        assert run(sweep, store, OneWorker(), today=TODAY).num_new == 0
        assert store.counts(sweep.identity) == {Outcome.OPTIMAL: 2, Outcome.FAILED: 1}
        assert run(sweep, store, OneWorker(), today=TODAY, is_retried=True).num_new == 1
    assert contents(path) == before


def test_a_claim_of_a_living_process_holds_and_that_of_a_dead_one_ends(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as one, Store(path) as other:
        assert one.claim(["a", "b"]).mine == {"a", "b"}
        found = other.claim(["b", "c"])
        assert (set(found.mine), set(found.others)) == ({"c"}, {"b"})
        dead = subprocess.run(["true"], check=True)
        assert dead.returncode == 0
        altered(path, f"UPDATE owners SET process = 2147483646 WHERE name = '{one.owner}'")
        other.free_dead()
        assert other.claim(["b"]).mine == {"b"}
    assert left_over(path) == (0, 0)


def test_a_later_process_of_the_same_number_does_not_keep_a_claim(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as one, Store(path) as other:
        if not one.born:
            pytest.skip("this system does not tell when a process was started")
        assert one.claim(["a"]).mine
        altered(path, f"UPDATE owners SET born = 'before' WHERE name = '{one.owner}'")
        other.free_dead()
        assert other.claim(["a"]).mine == {"a"}


_CLAIM = """
import os
import signal
import sys
from pathlib import Path
from planner.sweep.store import Store

Store(Path(sys.argv[1])).claim(["a"])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs a process that is dead and not waited for")
def test_a_killed_process_that_nobody_waits_for_keeps_no_claim(tmp_path: Path) -> None:
    """In a container whose first process waits for nobody it stays for good, and another sweep would wait for it."""
    path = tmp_path / "s.sqlite"
    killed = subprocess.Popen([sys.executable, "-c", _CLAIM, str(path)], text=True)
    with guarded(killed):
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        with Store(path) as other:
            assert other.claim(["a"]).mine == {"a"}


def test_an_owner_elsewhere_is_dead_only_after_a_long_silence(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as one, Store(path) as other:
        assert one.claim(["a"]).mine
        altered(path, f"UPDATE owners SET host = 'elsewhere' WHERE name = '{one.owner}'")
        other.free_dead()
        assert other.claim(["a"]).others == {"a"}
        altered(path, f"UPDATE owners SET beat = beat - 1000 WHERE name = '{one.owner}'")
        other.free_dead()
        assert other.claim(["a"]).mine == {"a"}


def test_the_first_of_two_answers_to_a_question_stays_unless_it_failed(tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:
        assert store.put("sweep", 0, failed("a", "why"))
        assert store.put("sweep", 0, plan("a", 1.0))
        assert not store.put("sweep", 0, plan("a", 2.0))
        (row,) = store.rows("sweep")
        assert row.answer.objective == 1.0


def test_answered_positions_leave_out_the_outcomes_that_are_asked_again(tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:
        store.put("sweep", 3, plan("a"))
        store.put("sweep", 5, failed("b", "why"))
        assert store.answered("sweep", 0, 10) == {3, 5}
        assert store.answered("sweep", 0, 10, but=RETRIED) == {3}
        assert store.answered("sweep", 4, 5) == set()


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    Store(path).close()
    altered(path, f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(SpecError, match=r"newer version of this program wrote this store.*Upgrade"):
        Store(path)
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    altered(path, "CREATE TABLE notes (words TEXT)")
    before = path.read_bytes()
    with pytest.raises(SpecError, match=r"database of another program.*--store"):
        Store(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["start", "middle", "cut"])
def test_a_damaged_file_is_an_error_that_says_so(tmp_path: Path, place: str) -> None:
    path, sweep = tmp_path / "s.sqlite", asked(batches(8))
    answered(path, sweep)
    data = bytearray(path.read_bytes())
    if place == "cut":
        del data[len(data) // 2 :]
    else:
        first = 0 if place == "start" else 4096
        data[first:] = b"\x5a" * (len(data) - first)
    path.write_bytes(data)
    with pytest.raises(SpecError, match=f"{path.name}: .*damaged"), Store(path) as store:
        run(sweep, store, OneWorker(), today=TODAY)
        list(store.rows(sweep.identity))


@pytest.mark.parametrize(
    "document", [b"", b"no zlib", zlib.compress(b"no JSON"), zlib.compress(b"[" * 5000), zlib.compress(b"[]")]
)
def test_a_damaged_answer_is_an_error_that_says_so(tmp_path: Path, document: bytes) -> None:
    with Store(tmp_path / "s") as store:
        store.put("sweep", 0, Answer(key="a", outcome=Outcome.OPTIMAL, document=document))
        for key in ("a", "missing"):
            with pytest.raises(SpecError, match=f"this store is damaged .the answer {key}"):
                store.document(key)


def test_a_full_disk_is_told_and_what_was_answered_stays(tmp_path: Path) -> None:
    path, sweep = tmp_path / "s.sqlite", asked(batches(40))
    store = Store(path)
    store._db.execute("PRAGMA max_page_count = 25")  # what SQLite finds on a full disk
    with pytest.raises(SpecError, match=r"disk is full\. All answers so far are kept"):
        run(sweep, store, OneWorker(), today=TODAY)
    store.close()
    kept = len(contents(path)["results"])
    assert 0 < kept < 40
    answered(path, sweep)
    answered(tmp_path / "whole", sweep)
    assert contents(path) == contents(tmp_path / "whole")


@pytest.mark.parametrize("where", ["missing/s.sqlite", "."])
def test_a_store_where_none_can_be_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(SpecError, match="Name a file in a folder that can be written"):
        Store(tmp_path / where)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs another user, in a process of its own")
@pytest.mark.parametrize("is_there", [False, True])
def test_a_read_only_folder_is_refused_whether_or_not_the_store_is_there(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "s.sqlite"
    if is_there:
        Store(path).close()
        path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents[:3]):  # others may look in, and not write
        folder.chmod(0o555 if folder == tmp_path else folder.stat().st_mode | 0o055)
    # A process of its own, not a fork of this one: the locks that threads of other tests hold would never be released.
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(path)], capture_output=True, text=True, check=False, timeout=GUARD_S
    )
    tmp_path.chmod(0o755)
    assert "Name a file in a folder that can be written" in done.stdout, done.stderr


_AS_NOBODY = """
import os
import sys
from pathlib import Path
from planner.errors import SpecError
from planner.sweep.store import Store

if os.geteuid() == 0:
    os.setuid(65534)
try:
    Store(Path(sys.argv[1]))
except SpecError as error:
    print(error)
"""


def test_tables_made_between_two_looks_at_a_new_file_are_no_other_program_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers and tables are of one moment: another sweep that starts now may make them after the first look."""
    path = tmp_path / "store.sqlite"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode = WAL")
    look, looks = stores._pragma, []

    def look_while_another_starts(connection: sqlite3.Connection, name: str) -> int:
        found = look(connection, name)
        looks.append(name)
        if len(looks) == 1:
            stores.prepare(other, path)
        return found

    monkeypatch.setattr(stores, "_pragma", look_while_another_starts)
    Store(path).close()
    other.close()
    assert len(looks) > 2


_START = """
import sys
from pathlib import Path
from planner.errors import SpecError
from planner.sweep.store import Store

print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    sys.stdin.readline()
    try:
        Store(Path(sys.argv[1], f"{number}.sqlite")).close()
        print("opened", flush=True)
    except SpecError as error:
        print(error, flush=True)
"""


def test_sweeps_started_together_on_a_new_store_all_open_it(tmp_path: Path) -> None:
    rounds = 8
    command = [sys.executable, "-c", _START, str(tmp_path), str(rounds)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    with guarded(*started):
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for _ in range(rounds + 1):
            for one in started:
                assert one.stdin is not None
                one.stdin.write("go\n")
                one.stdin.flush()
        told = [one.communicate()[0].split("\n") for one in started]
    assert told == [["opened"] * rounds + [""]] * 3


class _Circle:
    """What only a collection of garbage frees."""

    def __init__(self) -> None:
        self.own = self


def test_what_questions_leave_behind_is_collected_though_the_program_collects_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[weakref.ref[_Circle]] = []
    monkeypatch.setattr(sys.modules[OneWorker.__module__], "answer", lambda task: left.append(weakref.ref(_Circle())))
    worker: Any = OneWorker()
    gc.disable()
    try:
        worker.submit(["a question"] * 100)
        while worker.num_asked:
            worker.poll(1.0)
        assert len(left) == 100
        assert sum(one() is not None for one in left) < 30
    finally:
        gc.enable()
        worker.close()
