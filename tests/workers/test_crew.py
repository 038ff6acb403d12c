"""Real workers help with one search: the same answer, whatever dies."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from crew_parts import double, variable
from grids import Case, rows_of

from planner.crew import Lost, Origin, packed
from planner.errors import NoAnswerError, SpecError
from planner.search import Search
from planner.solvers.grid import solve
from planner.workers import cluster
from planner.workers.crew import Done, Helpers, Part, Workers, crew_of, work

distributed = pytest.importorskip("distributed", reason="distributed is not installed")
# The library's own threads and sockets, as they end: nothing of ours.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def test_parts_come_back_once_whatever_dies_and_what_always_kills_its_worker_is_lost(tmp_path: Path) -> None:
    origin = Origin.of(partial(int, 2))
    assert origin is not None
    with crew_of(2) as crew:
        assert crew is not None
        wanted = {crew.submit(double, origin, (number, str(tmp_path))): number for number in range(1, 12)}
        wanted[crew.submit(variable, origin, ("MALLOC_TRIM_THRESHOLD_",))] = 0
        found: dict[int, object] = {}
        for _ in range(600):  # looks of a second at most: a part that never comes back fails here, and hangs nobody
            found |= {wanted[key]: value for key, value in crew.poll(1.0, wanted)}
            if len(found) == len(wanted):
                break
        counts = crew.counts
    assert found.pop(0) == str(2**30)  # freed memory is kept: pages that come anew every time cost a third
    assert {number: value for number, value in found.items() if number not in (3, 7)} == {
        number: 2 * number for number in range(1, 12) if number not in (3, 7)
    }
    assert found[7] == Lost("ValueError: seven is a bug")
    three = found[3]
    assert isinstance(three, Lost)
    assert "every worker that took it died, KilledWorker" in three.why
    assert (counts.parts, counts.lost) == (12, 2)


def test_nobody_is_started_where_nobody_is_asked_or_the_search_is_short() -> None:
    with crew_of(1) as crew:
        assert crew is None
    case = Case(((2, 2),), {(a, b): float(a + b) for a in range(2) for b in range(2)}, frozenset(), 0.0)
    with crew_of(2) as crew:
        answer = solve(case.grid(), case.cost, Search(crew=crew), maker=partial(_made, case))  # type: ignore[arg-type]
        assert crew is not None
        assert crew.counts.parts == 0
    assert rows_of(answer, case) == [(0.0, (0, 0))]


def _made(case: Case) -> tuple[object, object]:
    return case.grid(), case.cost


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with crew_of(2) as crew, pytest.raises(SpecError, match=re.escape("pip install 'training-planner[distributed]'")):
        assert crew is not None
        crew.room()


@dataclass(eq=False)
class Ended:
    """A batch that came to its end; what it answers cannot be read where that is an error."""

    answers: object
    status: str = "finished"

    def result(self, timeout: float) -> object:
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


@dataclass
class Client:
    """Gives out batches that have ended already."""

    batches: list[Ended]
    status: str = "running"

    def submit(self, *asked: object, **options: object) -> Ended:
        return self.batches.pop(0)


def fake(*batches: Ended) -> Workers:
    """Workers whose batches end so, each sent already."""
    workers = Workers.of(
        client=Client([*batches]),
        local=SimpleNamespace(scheduler=SimpleNamespace(workers={"one": None})),
        num_workers=1,
    )
    for number in range(len(batches)):
        workers.submit([Part(str(number), "", None, b"")])
    return workers


def test_answers_that_can_never_be_read_fail_their_tasks_and_nobody_waits_for_them() -> None:
    workers = fake(Ended(TypeError("cannot unpickle this")))
    found = [one for _ in range(cluster._MOST_LOST + 1) for one in workers.poll(0.0)]
    assert [(one.key, one.why) for one in found] == [("0", "TypeError: cannot unpickle this")]
    assert workers.num_asked == 0


@pytest.mark.parametrize("is_last", [False, True])
def test_answers_that_came_before_an_error_are_still_given(is_last: bool) -> None:
    workers = fake(Ended([Done("0", b"first")]), Ended(None, status="lost"))
    workers.client.submit = lambda *asked, **options: 1 / 0  # what is asked again goes nowhere
    assert (workers.finish(1.0) if is_last else workers.poll(0.0)) == [Done("0", b"first")]
    for _ in range(2):
        with pytest.raises(NoAnswerError, match="the scheduler is gone"):
            workers.poll(0.0)


class Team:
    """Workers within this process; after so many answers their scheduler is gone."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[Part] = []

    def room(self) -> int:
        return 4 - len(self.asked)

    def submit(self, tasks: list[Part]) -> None:
        self.asked += tasks

    def poll(self, wait_s: float) -> list[Done]:
        if self.most <= 0:
            raise NoAnswerError("the scheduler is gone. All answers so far are kept.")
        self.most -= 1
        return [work(self.asked.pop(0))] if self.asked else []

    @property
    def num_asked(self) -> int:
        return len(self.asked)

    def finish(self, grace_s: float) -> list[Done]:
        return []

    def close(self) -> None:
        self.asked.clear()


@contextmanager
def helpers(team: Team, num_workers: int = 1) -> Iterator[Helpers]:
    yield Helpers(start=lambda: team, num_workers=num_workers)  # type: ignore[arg-type,return-value]


def test_parts_come_back_to_whoever_waits_for_them_and_a_scheduler_that_is_gone_gives_them_back(tmp_path: Path) -> None:
    origin = Origin.of(partial(int, 3))
    assert origin is not None
    with helpers(Team(3)) as crew:
        numbers = [crew.submit(double, origin, (number, str(tmp_path))) for number in (1, 2, 4, 6)]
        assert crew.poll(0.0, numbers[1:2]) == []  # the first came back, for somebody else
        assert crew.poll(0.0, numbers[1:2]) == [(numbers[1], 6)]
        assert dict(crew.poll(0.0, numbers)) == {numbers[0]: 3, numbers[2]: 12}
        assert crew.room() > 0
        ((number, lost),) = crew.poll(0.0, numbers)
        assert (number, isinstance(lost, Lost) and lost.is_gone) == (numbers[3], True)
        assert crew.room() == 0
        assert crew.notes == ["the workers were lost on the way; the search went on without them"]


def test_a_part_is_sent_again_to_a_worker_that_lacks_what_it_rests_on(tmp_path: Path) -> None:
    origin = Origin.of(partial(int, 5))
    assert origin is not None
    team = Team(100)
    with helpers(team, num_workers=0) as crew:  # so that no part carries its origin at first
        number = crew.submit(double, origin, (2, str(tmp_path)))
        assert team.asked[0].content is None
        assert crew.poll(0.0, [number]) == []
        assert team.asked[0].content == origin.content
        assert crew.poll(0.0, [number]) == [(number, 10)]
        assert crew.counts.sent_again == 1


class Leaving(Team):
    """Workers that answer all at once, and whose scheduler takes nothing after the first parts."""

    def submit(self, tasks: list[Part]) -> None:
        if self.most <= 0:
            raise NoAnswerError("the scheduler is gone. All answers so far are kept.")
        super().submit(tasks)

    def poll(self, wait_s: float) -> list[Done]:
        self.most = 0
        answers, self.asked = [work(part) for part in self.asked], []
        return answers


def test_a_scheduler_that_is_gone_when_a_part_is_sent_again_loses_no_part_that_came_back_with_it(
    tmp_path: Path,
) -> None:
    kept, lacking = Origin.of(partial(int, 11)), Origin.of(partial(int, 13))
    assert kept is not None
    assert lacking is not None
    work(Part("0", kept.digest, kept.content, packed((double, (1, str(tmp_path))))))  # so that it is there
    with helpers(Leaving(1), num_workers=0) as crew:
        numbers = [crew.submit(double, origin, (2, str(tmp_path))) for origin in (lacking, kept)]
        found = dict(crew.poll(0.0, numbers))
        lost = found[numbers[0]]
        assert isinstance(lost, Lost)
        assert lost.is_gone
        assert found[numbers[1]] == 22
        assert crew.room() == 0


def test_a_part_whose_origin_cannot_be_made_is_told_and_those_beside_it_are_worked_on(tmp_path: Path) -> None:
    broken, sound = Origin.of(partial(int, "many")), Origin.of(partial(int, 17))
    assert broken is not None
    assert sound is not None
    with helpers(Leaving(1)) as crew:
        numbers = [crew.submit(double, origin, (2, str(tmp_path))) for origin in (broken, sound)]
        found = dict(crew.poll(0.0, numbers))
    lost = found[numbers[0]]
    assert isinstance(lost, Lost)
    assert lost.why.startswith("ValueError: invalid literal")
    assert found[numbers[1]] == 34


def test_workers_of_another_version_are_refused() -> None:
    from planner.workers.version import VersionError

    with pytest.raises(VersionError, match="a worker runs planner"):
        Workers.of(client=None, local=None, num_workers=1).ask([], "0.0.0 of another world")
