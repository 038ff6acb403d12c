"""Real workers help with one search: the same answer, whatever dies."""

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from grids import Case, rows_of
from pool_tasks import double, variable

from planner.errors import NoAnswerError, SpecError
from planner.search import Search
from planner.solvers.grid import solve
from planner.worker_pool import FailedTask, Origin, packed
from planner.workers import dask_workers
from planner.workers.dask_workers import DaskWorkers, VersionError, _within
from planner.workers.pool import DaskPool, Result, Task, failed, work, work_all, worker_pool

distributed = pytest.importorskip("distributed", reason="distributed is not installed")
# The library's own threads and sockets, as they end, and a slow disk, which as an error would break a cluster off as it
# starts: nothing of ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore:Creating scratch directories:UserWarning",
)


def test_parts_come_back_once_whatever_dies_and_what_always_kills_its_worker_is_lost(tmp_path: Path) -> None:
    origin = Origin.of(partial(int, 2))
    assert origin is not None
    with worker_pool(2) as pool:
        assert pool is not None
        wanted = {pool.submit(double, origin, (number, str(tmp_path))): number for number in range(1, 12)}
        wanted[pool.submit(variable, origin, ("MALLOC_TRIM_THRESHOLD_",))] = 0
        found: dict[int, object] = {}
        for _ in range(600):  # looks of a second at most: a part that never comes back fails here, and hangs nobody
            found |= {wanted[key]: value for key, value in pool.poll(1.0, wanted)}
            if len(found) == len(wanted):
                break
        counts = pool.counts
    assert found.pop(0) == str(2**30)  # freed memory is kept: pages that come anew every time cost a third
    assert {number: value for number, value in found.items() if number not in (3, 7)} == {
        number: 2 * number for number in range(1, 12) if number not in (3, 7)
    }
    assert found[7] == FailedTask("ValueError: seven is a bug")
    three = found[3]
    assert isinstance(three, FailedTask)
    assert "every worker that took it died, KilledWorker" in three.why
    assert (counts.tasks, counts.failed) == (12, 2)


def test_nobody_is_started_where_nobody_is_asked_or_the_search_is_short() -> None:
    with worker_pool(1) as pool:
        assert pool is None
    case = Case(((2, 2),), {(a, b): float(a + b) for a in range(2) for b in range(2)}, frozenset(), 0.0)
    with worker_pool(2) as pool:
        answer = solve(case.grid(), case.cost, Search(pool=pool), maker=partial(_made, case))  # type: ignore[arg-type]
        assert pool is not None
        assert pool.counts.tasks == 0
    assert rows_of(answer, case) == [(0.0, (0, 0))]


def test_workers_are_started_for_a_long_search_or_where_one_short_search_follows_the_other() -> None:
    def start() -> DaskWorkers[Task, Result]:
        raise AssertionError("nobody asked for room")

    pool = DaskPool(start=start, num_workers=2)
    assert not pool.is_worth(4.0)
    assert pool.is_worth(60.0)
    pool._begin_s -= 20.0
    assert pool.is_worth(0.5)


def _made(case: Case) -> tuple[object, object]:
    return case.grid(), case.cost


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        worker_pool(2) as pool,
        pytest.raises(SpecError, match=re.escape("pip install 'training-planner[distributed]'")),
    ):
        assert pool is not None
        pool.room()


@dataclass(eq=False)
class Ended:
    """A batch that came to its end; what it answers cannot be read where that is an error."""

    answers: object
    status: str = "finished"

    def result(self, timeout: float) -> object:
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    def exception(self, timeout: float) -> object:
        return self.answers


@dataclass
class Client:
    """Gives out batches that have ended already."""

    batches: list[Ended]
    status: str = "running"

    def submit(self, *asked: object, **options: object) -> Ended:
        return self.batches.pop(0)


def fake(*batches: Ended) -> DaskWorkers[Task, Result]:
    """Workers whose batches end so, each sent already."""
    workers = DaskWorkers(
        ask=work_all,
        fail=failed,
        client=Client([*batches]),
        local=SimpleNamespace(scheduler=SimpleNamespace(workers={"one": None})),
        num_workers=1,
    )
    for number in range(len(batches)):
        workers.submit([Task(str(number), "", None, b"")])
    return workers


def test_answers_that_can_never_be_read_fail_their_tasks_and_nobody_waits_for_them() -> None:
    workers = fake(Ended(TypeError("cannot unpickle this")))
    found = [one for _ in range(dask_workers._MOST_LOST + 1) for one in workers.poll(0.0)]
    assert [(one.key, one.why) for one in found] == [("0", "TypeError: cannot unpickle this")]
    assert workers.num_asked == 0


# As the library calls the error of a batch that keeps killing its workers.
KilledWorker = type("KilledWorker", (Exception,), {})


def test_nothing_is_asked_beside_a_suspect() -> None:
    """A worker that dies of the suspect would take the other with it, which would then be the culprit, too."""
    suspect, later = Ended(KilledWorker("at it"), status="pending"), Ended([Result("2", b"later")])
    workers = fake(Ended(KilledWorker("at it"), status="error"), Ended([Result("1", b"answer")]))
    workers.client.batches += [suspect, later]
    assert workers.poll(0.0) == [Result("1", b"answer")]  # and the suspect is asked alone now
    workers.submit([Task("2", "", None, b"")])
    assert workers.client.batches == [later]
    assert (workers.num_asked, workers.room()) == (2, 0)
    suspect.status = "error"
    (failure,) = workers.poll(0.0)
    assert (failure.key, "every worker that took it died" in failure.why) == ("0", True)
    assert workers.poll(0.0) == [Result("2", b"later")]
    assert workers.num_asked == 0


@pytest.mark.parametrize("is_last", [False, True])
def test_answers_that_came_before_an_error_are_still_given(is_last: bool) -> None:
    workers = fake(Ended([Result("0", b"first")]), Ended(None, status="lost"))
    workers.client.submit = lambda *asked, **options: 1 / 0  # what is asked again goes nowhere
    assert (workers.finish(1.0) if is_last else workers.poll(0.0)) == [Result("0", b"first")]
    for _ in range(2):
        with pytest.raises(NoAnswerError, match="the scheduler is gone"):
            workers.poll(0.0)


@pytest.fixture
def freed() -> Iterator[threading.Event]:
    """What calls that never end wait for: set when the test is over, so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


def test_what_never_ends_is_waited_for_no_longer_and_undone_where_it_ends_late(freed: threading.Event) -> None:
    undone: SimpleQueue[bool] = SimpleQueue()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.01 s"):
        _within(0.01, lambda: freed.wait(60), undo=undone.put)
    assert undone.empty()
    freed.set()
    assert undone.get(timeout=60)
    with pytest.raises(ZeroDivisionError):
        _within(60, lambda: 1 // 0)


def test_workers_that_never_start_leave_a_search_alone(monkeypatch: pytest.MonkeyPatch, freed: threading.Event) -> None:
    def wait(**options: object) -> None:
        freed.wait(60)
        raise OSError("too late")

    monkeypatch.setattr(dask_workers, "_START_S", 0.01)
    monkeypatch.setattr(distributed, "LocalCluster", wait)
    with pytest.raises(NoAnswerError, match=r"do not start .no answer in 0\.01 s.*leave out --workers"):
        DaskWorkers.on_this_machine(2, work_all, failed)
    with worker_pool(2) as pool:
        assert pool is not None
        while not pool.notes:  # they are started beside the search
            assert pool.room() == 0
        assert pool.notes == ["the workers are gone; the search went on without them"]


def test_a_search_goes_on_alone_while_workers_start(freed: threading.Event) -> None:
    def start() -> Any:
        freed.wait(60)
        return Workers(3)

    pool = DaskPool(start=start, num_workers=1)
    assert (pool.room(), pool.room()) == (0, 0)
    freed.set()
    while not pool.room():
        pass
    pool.close()


def test_workers_of_a_scheduler_that_never_tell_their_version_are_refused(
    monkeypatch: pytest.MonkeyPatch, freed: threading.Event
) -> None:
    class Silent:
        def __init__(self, address: str, timeout: float) -> None:
            self.get_versions = lambda check: None
            self.run = lambda asked: freed.wait(60)
            self.close = lambda: None

    monkeypatch.setattr(dask_workers, "_VERSIONS_S", 0.01)
    monkeypatch.setattr(distributed, "Client", Silent)
    with pytest.raises(SpecError, match=r"its versions do not go with ours .no answer in 0\.01 s"):
        DaskWorkers.at("tcp://127.0.0.1:9", work_all, failed)


@pytest.mark.parametrize("address", ["nowhere", "TCP://a..b:8786", "tls://127.0.0.1:9", "tcp://127.0.0.1:9"])
def test_an_address_that_is_refused_leaves_no_client_that_closes_itself_later(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """The garbage collection would close it, as workers are started, say, whose lock that asks for: nothing ends then."""
    clients: list[Any] = []
    begin = distributed.Client.__init__

    def noted(client: Any, *arguments: object, **options: object) -> None:
        clients.append(client)
        begin(client, *arguments, **options)

    monkeypatch.setattr(distributed.Client, "__init__", noted)
    monkeypatch.setattr(dask_workers, "_CONNECT_S", 0.5)
    with pytest.raises(SpecError, match="no Dask scheduler answers there"):
        DaskWorkers.at(address, work_all, failed)
    assert [client.status for client in clients] == ["closed"]


def test_a_worker_keeps_no_stacks_of_what_it_did() -> None:
    """An hour of them takes up to a gigabyte."""
    workers: DaskWorkers[Task, Result] = DaskWorkers.on_this_machine(1, work_all, failed)
    try:
        workers.client.wait_for_workers(1, timeout=120)
        kept = workers.client.run(lambda dask_worker: "profile" in dask_worker.periodic_callbacks)
        assert list(kept.values()) == [False]
    finally:
        workers.close()


def test_a_closing_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, freed: threading.Event) -> None:
    ended: list[bool] = []
    part = SimpleNamespace(status="running", close=lambda **options: ended.append(freed.wait(60)))
    monkeypatch.setattr(dask_workers, "_CLOSE_S", 0.01)
    DaskWorkers(ask=work_all, fail=failed, client=part, local=part).close()
    assert not ended


def test_a_closing_that_takes_long_goes_on_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken off, it would leave worker processes, a scheduler and its thread in this process for good."""
    monkeypatch.setattr(dask_workers, "_CLOSE_S", 0.0)
    workers: DaskWorkers[Task, Result] = DaskWorkers.on_this_machine(0, work_all, failed)
    workers.close()
    for _ in range(600):  # looks of a tenth of a second: what never ends fails here, and hangs nobody
        if workers.local.status.name == "closed":
            break
        time.sleep(0.1)
    assert workers.local.status.name == "closed"


class Workers:
    """Workers within this process; after so many answers their scheduler is gone."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[Task] = []

    def room(self) -> int:
        return 4 - len(self.asked)

    def submit(self, tasks: list[Task]) -> None:
        self.asked += tasks

    def poll(self, wait_s: float) -> list[Result]:
        if self.most <= 0:
            raise NoAnswerError("the scheduler is gone. All answers so far are kept.")
        self.most -= 1
        return [work(self.asked.pop(0))] if self.asked else []

    @property
    def num_asked(self) -> int:
        return len(self.asked)

    def finish(self, grace_s: float) -> list[Result]:
        return []

    def close(self) -> None:
        self.asked.clear()


@contextmanager
def pool_of(workers: Workers, num_workers: int = 1) -> Iterator[DaskPool]:
    yield DaskPool(start=lambda: workers, num_workers=num_workers)  # type: ignore[arg-type,return-value]


def test_parts_come_back_to_whoever_waits_for_them_and_a_scheduler_that_is_gone_gives_them_back(tmp_path: Path) -> None:
    origin = Origin.of(partial(int, 3))
    assert origin is not None
    with pool_of(Workers(3)) as pool:
        numbers = [pool.submit(double, origin, (number, str(tmp_path))) for number in (1, 2, 4, 6)]
        assert pool.poll(0.0, numbers[1:2]) == []  # the first came back, for somebody else
        assert pool.poll(0.0, numbers[1:2]) == [(numbers[1], 6)]
        assert dict(pool.poll(0.0, numbers)) == {numbers[0]: 3, numbers[2]: 12}
        assert pool.room() > 0
        ((number, failure),) = pool.poll(0.0, numbers)
        assert (number, isinstance(failure, FailedTask) and failure.is_gone) == (numbers[3], True)
        assert pool.room() == 0
        assert pool.notes == ["the workers are gone; the search went on without them"]


def test_a_part_is_sent_again_to_a_worker_that_lacks_what_it_rests_on(tmp_path: Path) -> None:
    origin = Origin.of(partial(int, 5))
    assert origin is not None
    workers = Workers(100)
    with pool_of(workers, num_workers=0) as pool:  # so that no part carries its origin at first
        number = pool.submit(double, origin, (2, str(tmp_path)))
        assert workers.asked[0].content is None
        assert pool.poll(0.0, [number]) == []
        assert workers.asked[0].content == origin.content
        assert pool.poll(0.0, [number]) == [(number, 10)]
        assert pool.counts.sent_again == 1


class Leaving(Workers):
    """Workers that answer all at once, and whose scheduler takes nothing after the first parts."""

    def submit(self, tasks: list[Task]) -> None:
        if self.most <= 0:
            raise NoAnswerError("the scheduler is gone. All answers so far are kept.")
        super().submit(tasks)

    def poll(self, wait_s: float) -> list[Result]:
        self.most = 0
        answers, self.asked = [work(part) for part in self.asked], []
        return answers


def test_a_scheduler_that_is_gone_when_a_part_is_sent_again_loses_no_part_that_came_back_with_it(
    tmp_path: Path,
) -> None:
    kept, lacking = Origin.of(partial(int, 11)), Origin.of(partial(int, 13))
    assert kept is not None
    assert lacking is not None
    work(Task("0", kept.digest, kept.content, packed((double, (1, str(tmp_path))))))  # so that it is there
    with pool_of(Leaving(1), num_workers=0) as pool:
        numbers = [pool.submit(double, origin, (2, str(tmp_path))) for origin in (lacking, kept)]
        found = dict(pool.poll(0.0, numbers))
        failure = found[numbers[0]]
        assert isinstance(failure, FailedTask)
        assert failure.is_gone
        assert found[numbers[1]] == 22
        assert pool.room() == 0


def test_a_part_whose_origin_cannot_be_made_is_told_and_those_beside_it_are_worked_on(tmp_path: Path) -> None:
    broken, sound = Origin.of(partial(int, "many")), Origin.of(partial(int, 17))
    assert broken is not None
    assert sound is not None
    with pool_of(Leaving(1)) as pool:
        numbers = [pool.submit(double, origin, (2, str(tmp_path))) for origin in (broken, sound)]
        found = dict(pool.poll(0.0, numbers))
    failure = found[numbers[0]]
    assert isinstance(failure, FailedTask)
    assert failure.why.startswith("ValueError: invalid literal")
    assert found[numbers[1]] == 34


def test_workers_of_another_version_are_refused() -> None:
    with pytest.raises(VersionError, match="a worker runs planner"):
        work_all([], "0.0.0 of another world")


def test_more_workers_than_the_machine_has_cores_and_memory_for_are_refused_before_any_starts() -> None:
    with pytest.raises(SpecError, match="num_workers: 1000 are too many for this machine"), worker_pool(1000):
        pass
