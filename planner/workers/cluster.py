"""Many workers: processes of this machine, or those of a Dask scheduler that is there already.

What is asked, *tasks*, travels in batches of at least a twentieth of a second, so that what a batch costs on its way
does not count. Nothing here blocks: a scheduler that dies is noticed at the next look. A worker that dies is replaced,
and its batches are asked again; the tasks of a batch that keeps killing workers are suspects, and are asked one at a
time at the end, with nothing beside them, so that whoever kills a worker then is the one.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, Self, TypeVar

from planner.errors import Fault, NoAnswerError, PlannerError, SpecError
from planner.workers.team import Answered, Asked
from planner.workers.version import VersionError, planner_version

__all__ = ["DaskWorkers"]

_BATCH_S = 0.1
_MOST_BATCH = 256
_PER_WORKER = 2  # batches: one at work, one on its way
_LOOK_S = 0.01
_RESULT_S = 5.0
_COUNT_S = 5.0  # between two counts of the workers of a scheduler
_CONNECT_S = 10.0
_ALLOWED_FAILURES = 1  # of a local cluster: workers that a batch may kill twice before it is suspected
# Dask has worker processes give freed memory back at once; searches ask for the same arrays of some megabytes over and
# over, and spent a third of their time in page faults.
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 1),
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), 2**30),
    "MALLOC_ARENA_MAX": 1,
}
_LOST_WORKER = "1 day"  # for which a worker is awaited that starts anew: Dask gives it up for good after 15 seconds
_GONE_S = 120.0  # without any worker of this machine, of which none will come back then
_LOST = "the scheduler is gone. All answers so far are kept."
_GONE = "all workers are gone, and none came back. All answers so far are kept."
_MOST_LOST = 3  # times that the answers of a batch may be lost
_OLD_S = 0.7  # share of the old in the mean time of a question: the first one of a worker pays for its imports


_Task = TypeVar("_Task", bound=Asked)
_Answer = TypeVar("_Answer", bound=Answered)


@dataclass(slots=True, kw_only=True)
class DaskWorkers(Generic[_Task, _Answer]):
    """The workers of a Dask client; made by :meth:`on_this_machine` or :meth:`at`.

    Attributes
    ----------
    local
        The cluster, where it was started here.
    ask
        What a worker is asked to do with a batch, by a process of the version given.
    fail
        The answer to a task, by its key, that could not be had, with the reason.
    """

    ask: Callable[[list[_Task], str], list[_Answer]]
    fail: Callable[[str, str], _Answer]
    client: Any
    local: Any = None
    num_workers: int = 1
    _waiting: deque[_Task] = field(default_factory=deque)
    _suspects: deque[_Task] = field(default_factory=deque)
    _batches: dict[Any, "_Batch[_Task]"] = field(default_factory=dict)
    _mean_s: float = 0.0
    _counted_s: float = field(default_factory=time.monotonic)
    _seen_s: float = field(default_factory=time.monotonic)  # since when there may be no worker of this machine
    _is_alone: bool = False
    _found: list[_Answer] = field(default_factory=list)  # answers that nobody has taken yet
    _error: NoAnswerError | SpecError | None = None  # to be raised when these are taken
    _undecoded: dict[Any, int] = field(default_factory=dict)  # how often a batch's answers could not be read

    @classmethod
    def on_this_machine(cls, num_workers: int) -> Self:
        """Start worker processes that listen on this machine only, and to this process only.

        Whoever may talk to a worker may run code in it, so they ask for a certificate that is made here, kept in memory
        and known to nobody else. Nothing is served by HTTP.

        Raises
        ------
        SpecError
            If a library is missing.
        """
        distributed = _library()
        import_module("dask").config.set(
            {
                "distributed.scheduler.allowed-failures": _ALLOWED_FAILURES,
                "distributed.deploy.lost-worker-timeout": _LOST_WORKER,
                "distributed.nanny.pre-spawn-environ": _ENVIRONMENT,
                "distributed.scheduler.http.routes": [],
                "distributed.worker.http.routes": [],
            }
        )
        cluster = distributed.LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            protocol="tls://",
            security=_security(distributed),
            dashboard_address="127.0.0.1:0",  # any port, so that two sweeps go together
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
            preload=["planner.workers.preload"],
        )
        return cls.of(client=distributed.Client(cluster), local=cluster, num_workers=num_workers)

    @classmethod
    def at(cls, address: str) -> Self:
        """Use the workers of a scheduler, which are left running.

        Raises
        ------
        SpecError
            If there is none at the address, or its versions differ from those of this process.
        """
        distributed = _library()
        try:
            client = distributed.Client(address, timeout=_CONNECT_S)
        except (OSError, ValueError, TypeError) as error:
            problem = f"no Dask scheduler answers there ({error or type(error).__name__})."
            raise _scheduler_fault(address, problem, "Start one with `dask scheduler`, or leave it out.") from None
        try:
            client.get_versions(check=True)
            found = client.run(planner_version)
        except Exception as error:
            client.close()
            text = " ".join(str(error).split())
            mend = "Install the same versions of Python, distributed and this program everywhere."
            raise _scheduler_fault(address, f"its versions do not go with ours ({text}).", mend) from None
        if others := sorted({one for one in found.values() if one != planner_version()}):
            client.close()
            problem = f"workers run planner {', '.join(others)}, and this is {planner_version()}."
            raise _scheduler_fault(address, problem, f"Install {planner_version()} on all workers.")
        return cls.of(client=client, local=None, num_workers=max(1, len(found)))

    @classmethod
    def of(cls, *, client: Any, local: Any, num_workers: int) -> Self:
        """Return the workers of a client; what they are asked is the subclass's."""
        raise NotImplementedError  # abstract: each subclass asks for something else

    def room(self) -> int:
        """Return how many more questions are wanted now."""
        if self._is_alone or self.client.status != "running":
            return 0
        self._count()
        wanted = self.num_workers * _PER_WORKER * self._batch_size()
        return max(0, wanted - sum(map(len, self._batches.values())) - len(self._waiting))

    def submit(self, tasks: Sequence[_Task]) -> None:
        """Send questions in batches."""
        self._waiting.extend(tasks)
        size = self._batch_size()
        while self._waiting:
            self._send([self._waiting.popleft() for _ in range(min(size, len(self._waiting)))])

    def poll(self, wait_s: float) -> list[_Answer]:
        """Return the answers that have come since.

        Raises
        ------
        NoAnswerError
            If the scheduler is gone.
        SpecError
            If a worker runs another version.
        """
        end_s = time.monotonic() + wait_s
        while True:
            self._look()
            if self._error is not None and not self._found:
                raise self._error
            if not self._batches and self._suspects and self._error is None:
                self._is_alone = True
                self._send([self._suspects.popleft()])
            if self._found or not self._batches or time.monotonic() >= end_s:
                self._is_alone = self._is_alone and bool(self._batches)
                return self._taken()
            time.sleep(_LOOK_S)

    def _look(self) -> None:
        """Take in the batches that have ended, up to an error: the answers before it are given first."""
        if self._error is not None:
            return
        try:
            if self.client.status != "running":
                raise NoAnswerError(_LOST)
            for future in list(self._batches):
                if future.status != "pending":
                    self._found += self._take(future)
            if self.local is None or self.local.scheduler.workers:
                self._seen_s = time.monotonic()
            elif time.monotonic() - self._seen_s > _GONE_S:
                raise NoAnswerError(_GONE)
        except (NoAnswerError, SpecError) as error:
            self._error = error

    def _taken(self) -> list[_Answer]:
        """Return the answers that nobody has taken yet."""
        found, self._found = self._found, []
        return found

    @property
    def num_asked(self) -> int:
        """How many questions are not answered yet."""
        return sum(map(len, self._batches.values())) + len(self._suspects) + len(self._waiting)

    def finish(self, grace_s: float) -> list[_Answer]:
        """Return what is answered within a while."""
        end_s = time.monotonic() + grace_s
        found = self._taken()
        while self._batches and self._error is None and (left_s := end_s - time.monotonic()) > 0:
            found += self.poll(left_s)
        return found

    def close(self) -> None:
        """Give up what is not answered; end the workers that were started here."""
        for future in list(self._batches):
            if self.client.status == "running":
                future.cancel()
        self._batches.clear()
        for one in (self.client, self.local):
            if one is not None:
                try:
                    one.close(timeout=_RESULT_S)
                except (OSError, TimeoutError):
                    logging.getLogger(__name__).debug("closing took too long", exc_info=True)

    def _batch_size(self) -> int:
        """Return how many questions take about a tenth of a second."""
        return max(1, min(_MOST_BATCH, round(_BATCH_S / self._mean_s))) if self._mean_s else 1

    def _count(self) -> None:
        """Count the workers of a scheduler now and then: some come, some go."""
        if self.local is not None or time.monotonic() - self._counted_s < _COUNT_S:
            return
        self._counted_s = time.monotonic()
        try:
            self.num_workers = max(1, sum(self.client.nthreads().values()))
        except Exception:  # the next look at the client's status says what it is
            logging.getLogger(__name__).debug("the workers could not be counted", exc_info=True)

    def _send(self, tasks: list[_Task], num_lost: int = 0) -> None:
        """Send one batch."""
        self._seen_s = time.monotonic()
        try:
            future = self.client.submit(self.ask, tasks, planner_version(), pure=False, retries=2)
        except Exception as error:
            raise NoAnswerError(f"{_LOST} ({_words(error)})") from None
        self._batches[future] = _Batch(tasks, num_lost)

    def _take(self, future: Any) -> list[_Answer]:
        """Return the answers of a batch that has ended, well or not."""
        if future.status == "finished":
            return self._answers(future)
        batch = self._batches.pop(future)
        if future.status != "error":  # its answers were lost with their worker, or the scheduler is gone
            if self.client.status != "running":
                raise NoAnswerError(_LOST)
            return self._again(batch)
        error = future.exception(timeout=_RESULT_S)
        if isinstance(error, VersionError):
            raise SpecError.of([Fault(field="--scheduler", problem=str(error))])
        if type(error).__name__ != "KilledWorker":
            return [self.fail(task.key, _words(error)) for task in batch.tasks]
        return self._suspected(batch, _words(error))

    def _again(self, batch: "_Batch[_Task]") -> list[_Answer]:
        """Ask a batch again that was lost, a few times."""
        if batch.num_lost >= _MOST_LOST:
            return self._suspected(batch, f"its answer was lost {batch.num_lost + 1} times")
        self._send(batch.tasks, batch.num_lost + 1)
        return []

    def _suspected(self, batch: "_Batch[_Task]", why: str) -> list[_Answer]:
        """Put the questions of a batch aside that kept killing workers; one that was alone then is the culprit."""
        if self._is_alone:
            return [self.fail(task.key, f"every worker that took it died, {why}") for task in batch.tasks]
        self._suspects.extend(batch.tasks)
        return []

    def _answers(self, future: Any) -> list[_Answer]:
        """Return the answers of a batch that went well; none where they were lost on the way and will come again."""
        try:
            found: list[_Answer] = future.result(timeout=_RESULT_S)
        except Exception as error:  # its worker died meanwhile, and the next look says so, or it cannot be read at all
            logging.getLogger(__name__).debug("answers were lost on their way", exc_info=True)
            self._undecoded[future] = self._undecoded.get(future, 0) + 1
            if self._undecoded[future] <= _MOST_LOST or self.client.status != "running":
                return []
            del self._undecoded[future]
            return [self.fail(task.key, _words(error)) for task in self._batches.pop(future).tasks]
        del self._batches[future]
        self._undecoded.pop(future, None)
        for one in found:
            self._mean_s = one.wall_s if not self._mean_s else _OLD_S * self._mean_s + (1 - _OLD_S) * one.wall_s
        return found


@dataclass(frozen=True, slots=True)
class _Batch(Generic[_Task]):
    """Questions that travel together; ``num_lost``: how often their answers were lost."""

    tasks: list[_Task]
    num_lost: int = 0

    def __len__(self) -> int:
        return len(self.tasks)


def _library() -> Any:
    """Return the library, which is an optional part.

    Raises
    ------
    SpecError
        If it is not installed.
    """
    try:
        found = import_module("distributed")
        _silence()
        return found
    except ImportError:
        problem = "more than one worker needs the library distributed, which is not installed."
        mend = "pip install 'training-planner[distributed]', or leave out --workers and --scheduler."
        raise SpecError.of([Fault(file="command line", field="--workers", problem=problem, mend=mend)]) from None


def _security(distributed: Any) -> Any:
    """Return a certificate of its own for every start of workers.

    Raises
    ------
    SpecError
        If the library that makes it is not installed.
    """
    try:
        return distributed.Security.temporary()
    except ImportError:
        problem = "worker processes of this machine talk over TLS, whose library cryptography is not installed."
        mend = "pip install 'training-planner[distributed]', or leave out --workers."
        raise SpecError.of([Fault(file="command line", field="--workers", problem=problem, mend=mend)]) from None


def _silence() -> None:
    """Keep the library's log off the terminal: what it has to say of dying workers and schedulers is said here."""
    for name in ("asyncio", *logging.root.manager.loggerDict):
        if name.split(".")[0] in ("distributed", "asyncio"):  # the library has set the level of each by itself
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _scheduler_fault(address: str, problem: str, mend: str) -> SpecError:
    """Return the error of an address."""
    return SpecError.of(
        [Fault(file="command line", field="--scheduler", value=address, problem=f"{address}: {problem}", mend=mend)]
    )


def _words(error: BaseException) -> str:
    """Return an error in one line; of a planner's own its words alone."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, PlannerError) else f"{type(error).__name__}: {text}"
