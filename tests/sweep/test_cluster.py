"""Many workers: the same answers, whatever dies; the scheduler's own death ends a sweep that can go on."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from guards import GUARD_S, guarded
from sweep_workers import POISON, failing, outdated, poisoned, suicidal
from sweeps import TODAY, asked, batches, contents, left_over, num_answered, write_spec

from planner.errors import NoAnswerError, SpecError
from planner.sweep.answers import Answer, Outcome, Task
from planner.sweep.engine import Done, OneWorker, processes, run
from planner.sweep.question import Sweep
from planner.sweep.store import Store
from planner.workers import dask_workers
from planner.workers.dask_workers import DaskWorkers

dask = pytest.importorskip("dask", reason="dask is not installed")
distributed = pytest.importorskip("distributed", reason="distributed is not installed")
# The library's own threads and sockets, as they end, and a slow disk, which as an error would break a cluster off as it
# starts: nothing of ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore:Creating scratch directories:UserWarning",
)
HERE = Path(__file__).parents[1] / "support"


@contextmanager
def two_workers(ask: Callable[..., Any] | None = None) -> Iterator[DaskWorkers[Task, Answer]]:
    workers = processes(2)
    if ask is not None:
        workers.ask = ask
    try:
        yield workers
    finally:
        workers.close()


@pytest.fixture(scope="module")
def unhurt() -> Iterator[DaskWorkers[Task, Answer]]:
    """Two workers that no test kills: to start and end them takes seconds."""
    with two_workers() as workers:
        yield workers


def whole(folder: Path, sweep: Sweep) -> dict[str, Any]:
    """What an undisturbed run of one worker stores."""
    with Store(folder / "whole.sqlite") as store:
        run(sweep, store, OneWorker(), today=TODAY)
    return contents(folder / "whole.sqlite")


@pytest.mark.long  # the test below kills workers, too, and holds what is stored to one worker's
def test_two_workers_store_what_one_stores_though_one_of_them_is_killed(tmp_path: Path) -> None:
    sweep = asked(batches(40))
    with two_workers(partial(suicidal, flag=tmp_path / "flag")) as workers, Store(tmp_path / "s.sqlite") as store:
        done = run(sweep, store, workers, today=TODAY)
    assert (tmp_path / "flag").exists()
    assert (done.num_answered, done.num_new, done.is_stopped) == (40, 40, False)
    assert contents(tmp_path / "s.sqlite") == whole(tmp_path, sweep)
    assert left_over(tmp_path / "s.sqlite") == (0, 0)


def test_a_question_that_always_kills_its_worker_fails_and_the_others_do_not(tmp_path: Path) -> None:
    sweep = asked(batches(20))
    with two_workers(poisoned) as workers, Store(tmp_path / "s.sqlite") as store:
        run(sweep, store, workers, today=TODAY)
        rows = {row.position: row.answer for row in store.rows(sweep.identity)}
        assert store.counts(sweep.identity) == {Outcome.OPTIMAL: 19, Outcome.FAILED: 1}
    (bad,) = [position for position, one in rows.items() if one.outcome is Outcome.FAILED]
    assert sweep.grid.values(bad) == (POISON,)
    assert "every worker that took it died, KilledWorker" in (rows[bad].error or "")
    with Store(tmp_path / "s.sqlite") as store:  # one process is not killed: asked again, it is answered
        assert run(sweep, store, OneWorker(), today=TODAY, is_retried=True).num_new == 1
    assert contents(tmp_path / "s.sqlite") == whole(tmp_path, sweep)


def test_errors_of_the_machinery_are_told_of_their_questions_and_other_versions_end_the_sweep(
    tmp_path: Path, unhurt: DaskWorkers[Task, Answer]
) -> None:
    sweep = asked(batches(3))
    workers = DaskWorkers(ask=failing, fail=unhurt.fail, client=unhurt.client, local=unhurt.local, num_workers=2)
    with Store(tmp_path / "s.sqlite") as store:
        run(sweep, store, workers, today=TODAY)
        assert {row.answer.error for row in store.rows(sweep.identity)} == {"MemoryError: no room for a batch"}
        assert store.counts(sweep.identity) == {Outcome.FAILED: 3}
        workers.ask = outdated
        with pytest.raises(SpecError, match=r"a worker runs planner .* Install"):
            run(sweep, store, workers, today=TODAY, is_retried=True)


@contextmanager
def scheduler(*, num_workers: int = 1) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A scheduler of its own on this machine with its workers: its address and its process."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
    ]
    with ExitStack() as stack:
        # A file takes whatever is logged; a pipe that nobody reads from stops the scheduler once it is full.
        log = stack.enter_context(tempfile.NamedTemporaryFile("r"))
        master = subprocess.Popen(command, stderr=log.fileno(), text=True, env=environment)
        stack.enter_context(guarded(master))
        while not (found := re.search(r"tcp://127\.0\.0\.1:\d+", Path(log.name).read_text())):
            assert master.poll() is None, Path(log.name).read_text()
            time.sleep(0.05)
        worker = [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            found[0],
            "--no-nanny",
            "--nthreads",
            "1",
            "--no-dashboard",
            "--death-timeout",
            "5",
        ]
        nothing = subprocess.DEVNULL
        for _ in range(num_workers):
            made = subprocess.Popen(worker, stderr=nothing, stdout=nothing, text=True, env=environment)
            stack.enter_context(guarded(made))
        yield found[0], master


def test_a_scheduler_that_is_killed_ends_the_sweep_at_once_and_it_goes_on_elsewhere(tmp_path: Path) -> None:
    sweep = asked(batches(60))
    with scheduler() as (address, process), Store(tmp_path / "s.sqlite") as store:
        workers = processes(scheduler=address)
        killed_s: list[float] = []

        def kill_after_some(done: Done) -> None:
            if done.num_new >= 5 and not killed_s:
                process.send_signal(signal.SIGKILL)
                killed_s.append(time.monotonic())

        with pytest.raises(NoAnswerError, match="All answers so far are kept"):
            run(
                sweep,
                store,
                workers,
                today=TODAY,
                on_progress=kill_after_some,
                is_over=lambda: bool(killed_s) and time.monotonic() - killed_s[0] > 100,  # it must not come to that
            )
        workers.close()
    kept = contents(tmp_path / "s.sqlite")["results"]
    assert 5 <= len(kept) < 60
    with Store(tmp_path / "s.sqlite") as store:
        done = run(sweep, store, OneWorker(), today=TODAY)
    assert (done.num_answered, done.num_new) == (60, 60 - len(kept))


def test_the_command_ends_with_code_three_and_the_command_that_goes_on(tmp_path: Path) -> None:
    spec, store = write_spec(tmp_path / "s.yaml", batches(2000)), tmp_path / "s.sqlite"
    with scheduler() as (address, process):
        command = [sys.executable, "-m", "planner", "sweep", str(spec), "--scheduler", address]
        sweeping = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with guarded(sweeping):
            while sweeping.poll() is None and not num_answered(store):
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
            out, err = sweeping.communicate()
    assert (sweeping.returncode, out) == (3, "")
    first, second = err.splitlines()  # and nothing of the library's own log
    assert first == "the scheduler is gone. All answers so far are kept."
    assert second == f"The same command goes on: planner sweep {spec} --scheduler {address}"
    assert 0 < num_answered(store) < 2000
    assert left_over(store) == (0, 0)


def test_an_address_without_a_scheduler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "_CONNECT_S", 0.5)
    with pytest.raises(SpecError, match=r"tcp://127.0.0.1:9: no Dask scheduler answers there"):
        processes(scheduler="tcp://127.0.0.1:9")
    with pytest.raises(SpecError, match="no Dask scheduler answers there"):
        processes(scheduler="nowhere")


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SpecError, match=re.escape("pip install 'training-planner[distributed]'")):
        processes(2)


def test_workers_of_this_machine_take_no_code_from_others(unhurt: DaskWorkers[Task, Answer]) -> None:
    """Whoever may talk to a scheduler may run code in its workers: it asks for a certificate that nobody else has."""
    address = unhurt.client.scheduler.address
    assert address.startswith("tls://127.0.0.1:")
    assert all(one.startswith("tls://127.0.0.1:") for one in unhurt.client.scheduler_info()["workers"])
    for other in (None, distributed.Security.temporary()):
        place = address if other else address.replace("tls://", "tcp://")
        with pytest.raises((OSError, TypeError, RuntimeError)):
            distributed.Client(place, security=other, timeout=5, set_as_default=False)
    assert unhurt.client.submit(os.getpid).result(timeout=60) != os.getpid()


@pytest.mark.usefixtures("unhurt")
def test_a_worker_that_is_long_in_starting_anew_is_not_given_up() -> None:
    assert dask.utils.parse_timedelta(dask.config.get("distributed.deploy.lost-worker-timeout")) > 3600


def test_nobody_waits_for_ever_for_workers_that_do_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_workers, "_GONE_S", 0.0)
    with two_workers() as workers, Store(tmp_path / "s.sqlite") as store:
        workers.local.scale(0)
        workers.local.sync(workers.local._correct_state, callback_timeout=GUARD_S)
        assert not workers.local.scheduler.workers
        with pytest.raises(NoAnswerError, match="all workers are gone"):
            run(asked(batches(3)), store, workers, today=TODAY)


def test_without_what_makes_a_certificate_no_worker_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SpecError, match=re.escape("cryptography is not installed")):
        processes(2)
