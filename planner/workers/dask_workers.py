"""Many workers: processes of this machine, or those of a Dask scheduler that is there already.

Tasks travel in batches of about a tenth of a second, so that what a batch costs on its way does not count. Nothing here
blocks: a scheduler that dies is noticed at the next look, and a call of the library that never ends is left to itself.
A worker that dies is replaced, and its batches are asked again; the tasks of a batch that keeps killing workers are
suspects, and are asked one at a time at the end, with nothing beside them, so that whoever kills a worker then is the
one.
"""

import logging
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar

from planner.errors import Fault, NoAnswerError, PlannerError, SpecError
from planner.frozen import frozen
from planner.plugins import planner_version

_BATCH_S = 0.1
_MOST_BATCH = 256
_PER_WORKER = 2  # batches: one at work, one on its way
_LOOK_S = 0.01
_RESULT_S = 5.0
_COUNT_S = 5.0  # between two counts of the workers of a scheduler
_CONNECT_S = 10.0
_START_S = 120.0  # for worker processes of this machine to come up: seconds, and a minute where it is busy
_VERSIONS_S = 60.0  # for all workers of a scheduler to tell their versions: one may be at its imports
_CLOSE_S = 15.0  # above what the library gives a worker at work to end before, and after, it is killed: 4 and 5 s
_ALLOWED_FAILURES = 1  # of a local cluster: workers that a batch may kill twice before it is suspected
# Dask has worker processes give freed memory back at once; searches ask for the same arrays of some megabytes over and
# over, and spent a third of their time in page faults.
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 1),
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), 2**30),
    "MALLOC_ARENA_MAX": 1,
}
_RESTART = "1 day"  # for which a worker is awaited that starts anew: Dask gives it up for good after 15 seconds
_GONE_S = 120.0  # without any worker of this machine, of which none will come back then
_SCHEDULER_GONE = "the scheduler is gone. All answers so far are kept."
_WORKERS_GONE = "all workers are gone, and none came back. All answers so far are kept."
_MOST_LOST = 3  # times that the answers of a batch may be lost
_OLD_S = 0.7  # share of the old in the mean time of a task: the first one of a worker pays for its imports


# -- what a worker process runs ----------------------------------------------------------------------------------------


class VersionError(PlannerError):
    """A worker runs another version of this program."""


def check_version(expected: str) -> None:
    """Refuse to work for another version than this process runs.

    Raises
    ------
    VersionError
        If it is another one.
    """
    if planner_version() != expected:
        raise VersionError(
            f"a worker runs planner {planner_version()}, and this is {expected}. Install {expected} on the workers."
        )


def dask_setup(worker: object) -> None:
    """Leave Ctrl-C to the process that asks, which ends the workers; import what everything needs.

    Dask calls it by its name in a worker process of this machine before its first task.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_module("planner.api")


# -- the workers -------------------------------------------------------------------------------------------------------


class _HasKey(Protocol):
    @property
    def key(self) -> str: ...


class _HasTime(Protocol):
    @property
    def wall_s(self) -> float: ...


_Task = TypeVar("_Task", bound=_HasKey)
_Answer = TypeVar("_Answer", bound=_HasTime)
_Made = TypeVar("_Made")


@frozen(kw_only=False)
class _Batch(Generic[_Task]):
    """Tasks that travel together; ``num_lost``: how often their answers were lost."""

    tasks: list[_Task]
    num_lost: int = 0


@dataclass(slots=True, kw_only=True)
class DaskWorkers(Generic[_Task, _Answer]):
    """The workers of a Dask client; made by :meth:`on_this_machine` or :meth:`at`. No method waits longer than told.

    Attributes
    ----------
    ask
        What a worker is asked to do with a batch, by a process of the version given.
    fail
        The answer to a task, by its key, that could not be had, with the reason.
    client, local
        Of Dask; the cluster, where it was started here.
    """

    ask: Callable[[list[_Task], str], list[_Answer]]
    fail: Callable[[str, str], _Answer]
    client: Any
    local: Any = None
    num_workers: int = 1
    _waiting: deque[_Task] = field(default_factory=deque)
    _suspects: deque[_Task] = field(default_factory=deque)
    _batches: dict[Any, _Batch[_Task]] = field(default_factory=dict)
    _mean_s: float = 0.0
    _counted_s: float = field(default_factory=time.monotonic)
    _seen_s: float = field(default_factory=time.monotonic)  # since when there may be no worker of this machine
    _is_alone: bool = False
    _answers: list[_Answer] = field(default_factory=list)  # that nobody has taken yet
    _error: NoAnswerError | SpecError | None = None  # to be raised when these are taken
    _unread: dict[Any, int] = field(default_factory=dict)  # how often a batch's answers could not be read

    @classmethod
    def on_this_machine(
        cls, num_workers: int, ask: Callable[[list[_Task], str], list[_Answer]], fail: Callable[[str, str], _Answer]
    ) -> "DaskWorkers[_Task, _Answer]":
        """Start worker processes that listen on this machine only, and to this process only.

        Whoever may talk to a worker may run code in it, so they ask for a certificate that is made here, kept in memory
        and known to nobody else. Nothing is served by HTTP.

        Raises
        ------
        SpecError
            If a library is missing.
        NoAnswerError
            If they do not come up.
        """
        distributed = _library()
        install = "pip install 'training-planner[distributed]', or leave out --workers."
        try:
            security = distributed.Security.temporary()
        except ImportError:
            problem = "worker processes of this machine talk over TLS, whose library cryptography is not installed."
            raise _fault("--workers", problem, install) from None
        import_module("dask").config.set(
            {
                "distributed.worker.multiprocessing-method": _start_method(),
                "distributed.scheduler.allowed-failures": _ALLOWED_FAILURES,
                "distributed.deploy.lost-worker-timeout": _RESTART,
                "distributed.nanny.pre-spawn-environ": _ENVIRONMENT,
                "distributed.scheduler.http.routes": [],
                "distributed.worker.http.routes": [],
                # Stacks sampled a hundred times a second and kept for an hour: up to a gigabyte in each worker.
                "distributed.worker.profile.enabled": False,
            }
        )

        def start() -> tuple[Any, Any]:
            cluster = distributed.LocalCluster(
                n_workers=num_workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                protocol="tls://",
                security=security,
                dashboard_address="127.0.0.1:0",  # any port, so that two sweeps go together
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
                preload=[__name__],
            )
            return distributed.Client(cluster), cluster

        try:
            client, cluster = _within(_START_S, start, undo=_close)
        except TimeoutError as error:
            problem = f"the worker processes of this machine do not start ({error})."
            raise NoAnswerError(f"{problem} Ask for fewer, or leave out --workers.") from None
        return DaskWorkers(ask=ask, fail=fail, client=client, local=cluster, num_workers=num_workers)

    @classmethod
    def at(
        cls, address: str, ask: Callable[[list[_Task], str], list[_Answer]], fail: Callable[[str, str], _Answer]
    ) -> "DaskWorkers[_Task, _Answer]":
        """Use the workers of a scheduler, which are left running.

        Raises
        ------
        SpecError
            If there is none at the address, or its versions differ from those of this process.
        """
        distributed = _library()

        def fault(problem: str, hint: str) -> SpecError:
            return _fault("--scheduler", f"{address}: {problem}", hint, address)

        def connect() -> Any:
            client = distributed.Client.__new__(distributed.Client)
            try:
                client.__init__(address, timeout=_CONNECT_S)
            except BaseException:
                # Half made, it would close itself wherever the garbage collection finds it: where workers are started
                # at that moment, it waits for a lock that its own thread holds, for good.
                with suppress(Exception):
                    client.close()
                raise
            return client

        try:
            client = _within(_START_S, connect, undo=lambda late: _close([late]))
        except (OSError, ValueError, TypeError) as error:
            problem = f"no Dask scheduler answers there ({error or type(error).__name__})."
            raise fault(problem, "Start one with `dask scheduler`, or leave it out.") from None
        try:
            _within(_VERSIONS_S, lambda: client.get_versions(check=True))
            versions = _within(_VERSIONS_S, lambda: client.run(planner_version))
        except Exception as error:
            client.close()
            problem = f"its versions do not go with ours ({' '.join(str(error).split())})."
            hint = "Install the same versions of Python, distributed and this program everywhere."
            raise fault(problem, hint) from None
        if others := sorted(set(versions.values()) - {planner_version()}):
            client.close()
            problem = f"workers run planner {', '.join(others)}, and this is {planner_version()}."
            raise fault(problem, f"Install {planner_version()} on all workers.")
        return DaskWorkers(ask=ask, fail=fail, client=client, num_workers=max(1, len(versions)))

    def room(self) -> int:
        """Return how many more tasks are wanted now."""
        if self._is_alone or self.client.status != "running":
            return 0
        if self.local is None and time.monotonic() - self._counted_s >= _COUNT_S:  # some come, some go
            self._counted_s = time.monotonic()
            try:
                self.num_workers = max(1, sum(self.client.nthreads(callback_timeout=_RESULT_S).values()))
            except Exception:  # the next look at the client's status says what it is
                logging.getLogger(__name__).debug("the workers could not be counted", exc_info=True)
        wanted = self.num_workers * _PER_WORKER * self._batch_size()
        return max(0, wanted - self._num_sent - len(self._waiting))

    def submit(self, tasks: Sequence[_Task]) -> None:
        """Send tasks in batches; each is answered once, in any order.

        Beside a suspect none is sent: it would die with the suspect's worker, and count as another culprit.
        """
        self._waiting.extend(tasks)
        size = self._batch_size()
        while self._waiting and not self._is_alone:
            self._send([self._waiting.popleft() for _ in range(min(size, len(self._waiting)))])

    def poll(self, wait_s: float) -> list[_Answer]:
        """Return the answers that have come since, waiting for the first a while.

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
            if self._error is not None and not self._answers:
                raise self._error
            if not self._batches and self._error is None:
                self._is_alone = False
                self.submit(())
                if self._suspects and not self._batches:
                    self._is_alone = True
                    self._send([self._suspects.popleft()])
            if self._answers or not self._batches or time.monotonic() >= end_s:
                answers, self._answers = self._answers, []
                return answers
            time.sleep(_LOOK_S)

    @property
    def num_asked(self) -> int:
        """How many tasks are not answered yet."""
        return self._num_sent + len(self._suspects) + len(self._waiting)

    def finish(self, grace_s: float) -> list[_Answer]:
        """Begin nothing more; return what is answered within a while, and give up the rest."""
        end_s = time.monotonic() + grace_s
        found, self._answers = self._answers, []
        while self._batches and self._error is None and (left_s := end_s - time.monotonic()) > 0:
            found += self.poll(left_s)
        return found

    def close(self) -> None:
        """Give up what is not answered; end the workers that were started here.

        What takes long goes on to its end beside: broken off, it would leave processes and threads behind.
        """
        given_up = list(self._batches) if self.client.status == "running" else []
        self._batches.clear()

        def end() -> None:
            for future in given_up:
                future.cancel()
            _close([part for part in (self.client, self.local) if part is not None])

        with suppress(TimeoutError):
            _within(_CLOSE_S, end)

    @property
    def _num_sent(self) -> int:
        """How many tasks are on their way or at work."""
        return sum(len(batch.tasks) for batch in self._batches.values())

    def _batch_size(self) -> int:
        """Return how many tasks take about a tenth of a second."""
        return max(1, min(_MOST_BATCH, round(_BATCH_S / self._mean_s))) if self._mean_s else 1

    def _send(self, tasks: list[_Task], num_lost: int = 0) -> None:
        """Send one batch."""
        self._seen_s = time.monotonic()
        try:
            future = self.client.submit(self.ask, tasks, planner_version(), pure=False, retries=2)
        except Exception as error:
            raise NoAnswerError(f"{_SCHEDULER_GONE} ({_words(error)})") from None
        self._batches[future] = _Batch(tasks, num_lost)

    def _look(self) -> None:
        """Take in the batches that have ended, up to an error: the answers before it are given first."""
        if self._error is not None:
            return
        try:
            if self.client.status != "running":
                raise NoAnswerError(_SCHEDULER_GONE)
            for future in list(self._batches):
                if future.status == "finished":
                    self._read(future)
                elif future.status != "pending":
                    self._answers += self._failed(future)
            if self.local is None or self.local.scheduler.workers:
                self._seen_s = time.monotonic()
            elif time.monotonic() - self._seen_s > _GONE_S:
                raise NoAnswerError(_WORKERS_GONE)
        except (NoAnswerError, SpecError) as error:
            self._error = error

    def _read(self, future: Any) -> None:
        """Take in the answers of a batch that went well; none where they were lost on the way and will come again."""
        try:
            answers: list[_Answer] = future.result(timeout=_RESULT_S)
        except Exception as error:  # its worker died meanwhile, and the next look says so, or it cannot be read at all
            logging.getLogger(__name__).debug("answers were lost on their way", exc_info=True)
            self._unread[future] = self._unread.get(future, 0) + 1
            if self._unread[future] <= _MOST_LOST or self.client.status != "running":
                return
            answers = [self.fail(task.key, _words(error)) for task in self._batches[future].tasks]
        else:
            for answer in answers:
                mean_s = self._mean_s or answer.wall_s
                self._mean_s = _OLD_S * mean_s + (1 - _OLD_S) * answer.wall_s
        del self._batches[future]
        self._unread.pop(future, None)
        self._answers += answers

    def _failed(self, future: Any) -> list[_Answer]:
        """Return the answers to a batch that failed; none where its tasks are asked again."""
        batch = self._batches.pop(future)
        if future.status != "error":  # its answers were lost with their worker, or the scheduler is gone
            if self.client.status != "running":
                raise NoAnswerError(_SCHEDULER_GONE)
            if batch.num_lost < _MOST_LOST:
                self._send(batch.tasks, batch.num_lost + 1)
                return []
            why = f"its answer was lost {batch.num_lost + 1} times"
        else:
            error = future.exception(timeout=_RESULT_S)
            why = _words(error)
            if isinstance(error, VersionError):
                raise SpecError.of([Fault(field="--scheduler", problem=str(error))])
            if type(error).__name__ != "KilledWorker":
                return [self.fail(task.key, why) for task in batch.tasks]
        if self._is_alone:  # a task that was alone then is the culprit
            return [self.fail(task.key, f"every worker that took it died, {why}") for task in batch.tasks]
        self._suspects.extend(batch.tasks)
        return []


def _library() -> Any:
    """Return the library, which is an optional part.

    What it has to say of dying workers and schedulers is said here, so that its log is kept off the terminal.

    Raises
    ------
    SpecError
        If it is not installed.
    """
    try:
        library = import_module("distributed")
    except ImportError:
        problem = "more than one worker needs the library distributed, which is not installed."
        hint = "pip install 'training-planner[distributed]', or leave out --workers and --scheduler."
        raise _fault("--workers", problem, hint) from None
    for name in ("asyncio", *logging.root.manager.loggerDict):
        if name.split(".")[0] in ("distributed", "asyncio"):  # the library has set the level of each by itself
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return library


def _start_method() -> str:
    """Return how worker processes begin: forked from one that has imported what all need, where the system can.

    Each of its own took most of a second of a processor, beside the search.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    import_module("dask").config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    import_module("distributed.utils").get_mp_context()  # has it import the library; once, so that this comes after
    multiprocessing.set_forkserver_preload(["distributed", __name__, "planner.api", "planner.families.hybrid.search"])
    return "forkserver"


def _within(limit_s: float, work: Callable[[], _Made], *, undo: Callable[[_Made], object] = lambda made: None) -> _Made:
    """Return what a call of the library gives, which may wait without end: it is left to itself after this time.

    Parameters
    ----------
    undo
        Is given what comes too late, or after a Ctrl-C.

    Raises
    ------
    TimeoutError
        If it does not end in this time.
    """
    found: Future[_Made] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # raised again where it is awaited
            found.set_exception(error)

    threading.Thread(target=run, daemon=True, name="call of distributed").start()
    try:
        return found.result(limit_s)
    except BaseException as error:
        found.add_done_callback(lambda late: None if late.exception() else undo(late.result()))
        if isinstance(error, TimeoutError) and not found.done():
            raise TimeoutError(f"no answer in {limit_s:g} s") from None
        raise


def _close(parts: Iterable[Any]) -> None:
    """Close a client, and then its cluster."""
    for part in parts:
        try:
            part.close()
        except (OSError, TimeoutError):
            logging.getLogger(__name__).debug("closing took too long", exc_info=True)


def _fault(field_name: str, problem: str, hint: str, value: str = "") -> SpecError:
    """Return the error of an option of the command line."""
    return SpecError.of([Fault(file="command line", field=field_name, value=value, problem=problem, mend=hint)])


def _words(error: BaseException) -> str:
    """Return an error in one line; of a planner's own its words alone."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, PlannerError) else f"{type(error).__name__}: {text}"
