"""A crew of worker processes: parts of one large search go to them, and come back in any order.

Workers are started when the first part is sent, so that a short search never pays for them. What all parts of a search
have in common travels with the first few parts only; a worker that lacks it says so, and the part is sent again with
it. A scheduler that is gone is no end: the parts that were at work come back as lost, nothing more is wanted, and the
search goes on alone.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from planner.crew import Lost, Origin, packed, unpacked
from planner.errors import NoAnswerError
from planner.workers.cluster import DaskWorkers
from planner.workers.team import Team
from planner.workers.version import check_version

__all__ = ["Counts", "Done", "Helpers", "Part", "crew_of", "work"]

_MOST_KEPT = 8  # origins that a worker keeps: the grids of a question's kinds of machines, or its jobs
_ALONE_S, _ALONE_THEN_S, _SHARE_S = 1.0, 0.1, 0.5
_PER_WORKER = 3  # parts that carry their origin

_made: "OrderedDict[str, Any]" = OrderedDict()  # of this worker process, by digest


@dataclass(frozen=True, slots=True)
class Part:
    """A part on its way.

    Attributes
    ----------
    digest, content
        Of its origin; no content where the worker should have it.
    call
        The function and its arguments after what the origin makes, pickled.
    """

    key: str
    digest: str
    content: bytes | None
    call: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """A part that came back: what its function returned, pickled; None: the worker lacks the origin.

    ``why``: the error instead.
    """

    key: str
    found: bytes | None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Counts:
    """What helping took."""

    parts: int = 0
    lost: int = 0
    sent_again: int = 0
    start_s: float = 0.0
    work_s: float = 0.0
    work_cpu_s: float = 0.0
    longest_s: float = 0.0
    sent_bytes: int = 0
    returned_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Workers(DaskWorkers[Part, Done]):
    """The workers of a Dask client, who work on parts."""

    ask: Callable[[list[Part], str], list[Done]]
    fail: Callable[[str, str], Done]

    @classmethod
    def of(cls, *, client: Any, local: Any, num_workers: int) -> Self:
        """Return the workers of a client."""
        return cls(ask=work_all, fail=_failed, client=client, local=local, num_workers=num_workers)


@dataclass(slots=True)
class Helpers:
    """A crew; see :class:`planner.crew.Crew`.

    Attributes
    ----------
    start
        Starts the workers.
    num_workers
        How many there will be.
    notes
        For whoever asked.
    """

    start: Callable[[], Team[Part, Done]]
    num_workers: int
    notes: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    _team: Team[Part, Done] | None = None
    _is_gone: bool = False
    _at_work: dict[str, tuple[Part, Origin]] = field(default_factory=dict)
    _back: dict[int, Any] = field(default_factory=dict)
    _carried: dict[str, int] = field(default_factory=dict)
    _number: int = 0

    @property
    def alone_s(self) -> float:
        """CPU seconds that a search works alone: most are over before the first workers would be there."""
        return _ALONE_S if self._team is None else _ALONE_THEN_S

    @property
    def share_s(self) -> float:
        """CPU seconds of a part: long beside its way, short beside a search."""
        return _SHARE_S

    def room(self) -> int:
        """Return how many more parts are wanted now."""
        if self._is_gone:
            return 0
        return self._started().room()

    def submit(self, function: Callable[..., Any], origin: Origin, arguments: Sequence[Any]) -> int:
        """Send a part; return its number."""
        self._number += 1
        carried = self._carried.get(origin.digest, 0)
        self._carried[origin.digest] = carried + 1
        content = origin.content if carried < _PER_WORKER * self.num_workers else None
        self.counts.parts += 1
        self._send(Part(str(self._number), origin.digest, content, packed((function, tuple(arguments)))), origin)
        return self._number

    def poll(self, wait_s: float, wanted: Container[int]) -> list[tuple[int, Any]]:
        """Return what has come back of what is wanted."""
        if self._team is not None and not self._is_gone and self._at_work:
            is_there = any(number in wanted for number in self._back)
            try:
                self._take_all(self._team.poll(0.0 if is_there else wait_s))
            except NoAnswerError as error:
                self._give_up(str(error))
        numbers = [number for number in self._back if number in wanted]
        return [(number, self._back.pop(number)) for number in numbers]

    def tell(self, note: str) -> None:
        """Keep a note once."""
        if note not in self.notes:
            self.notes.append(note)

    def close(self) -> None:
        """End the workers that were started."""
        if self._team is not None:
            self._team.close()

    def _started(self) -> Team[Part, Done]:
        """Return the workers, started."""
        if self._team is None:
            begin_s = time.perf_counter()
            self._team = self.start()
            self.counts.start_s = time.perf_counter() - begin_s
        return self._team

    def _send(self, part: Part, origin: Origin) -> None:
        """Send a part, or note that it is lost."""
        self._at_work[part.key] = (part, origin)
        self.counts.sent_bytes += len(part.call) + len(part.content or b"")
        try:
            self._started().submit([part])
        except NoAnswerError as error:
            self._give_up(str(error))

    def _take_all(self, answers: Sequence[Done]) -> None:
        """Keep what came back; only then send again where a worker lacked an origin: that may find the workers gone."""
        lacking = [one.key for one in answers if one.found is None and not one.why]
        for done in answers:
            if done.key not in lacking:
                self._keep(done)
        for key in lacking:
            if key in self._at_work:
                part, origin = self._at_work.pop(key)
                self.counts.sent_again += 1
                self._send(Part(part.key, part.digest, origin.content, part.call), origin)

    def _keep(self, done: Done) -> None:
        """Keep what came back of a part."""
        del self._at_work[done.key]
        self.counts.work_s += done.wall_s
        self.counts.work_cpu_s += done.cpu_s
        self.counts.longest_s = max(self.counts.longest_s, done.wall_s)
        if done.found is None:
            self.counts.lost += 1
            self._back[int(done.key)] = Lost(done.why)
            return
        self.counts.returned_bytes += len(done.found)
        self._back[int(done.key)] = unpacked(done.found)

    def _give_up(self, why: str) -> None:
        """Go on alone: the workers are gone, and with them what they were at."""
        self._is_gone = True
        self._back.update({int(key): Lost(why, is_gone=True) for key in self._at_work})
        self._at_work.clear()
        self.tell("the workers were lost on the way; the search went on without them")


@contextmanager
def crew_of(num_workers: int, scheduler: str | None = None) -> Iterator[Helpers | None]:
    """Give a crew of so many processes of this machine, or of a scheduler's; None where nobody is asked to help.

    Raises
    ------
    SpecError
        When the first part is sent, if the library is missing, or no scheduler answers.
    """
    if scheduler is None and num_workers == 1:
        yield None
        return
    helpers = Helpers(
        start=lambda: Workers.on_this_machine(num_workers) if scheduler is None else Workers.at(scheduler),
        num_workers=num_workers,
    )
    try:
        yield helpers
    finally:
        helpers.close()


def work_all(parts: Sequence[Part], expected: str) -> list[Done]:
    """Work on several parts, in a process elsewhere.

    Raises
    ------
    VersionError
        If this process runs another version than the one that asks.
    """
    check_version(expected)
    return [work(part) for part in parts]


def work(part: Part) -> Done:
    """Work on a part, whatever comes of it."""
    begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
    if part.digest not in _made and part.content is None:
        return Done(key=part.key, found=None)
    try:
        made = _made_of(part)
        function, arguments = unpacked(part.call)
        found = packed(function(made, *arguments))
    except Exception as error:  # the box or the fleet counts as not looked at, and the reason is told
        text = " ".join(str(error).split())[:500]
        return _failed(part.key, f"{type(error).__name__}: {text}")
    return Done(
        key=part.key,
        found=found,
        wall_s=time.perf_counter() - begin_s,
        cpu_s=time.thread_time() - begin_cpu_s,
    )


def _made_of(part: Part) -> Any:
    """Return what the origin of a part makes, kept for the next ones."""
    if part.digest not in _made:
        assert part.content is not None
        _made[part.digest] = Origin(digest=part.digest, content=part.content).made()
        while len(_made) > _MOST_KEPT:
            _made.popitem(last=False)
    _made.move_to_end(part.digest)
    return _made[part.digest]


def _failed(key: str, why: str) -> Done:
    """Return what is told of a part that could not be worked on."""
    return Done(key=key, found=None, why=why)
