"""Searches in processes of their own, within limits of number, time and memory; and what is remembered of them.

A question waits until a process is free. A process that its user stops is interrupted first, and gives its best so far;
what does not end by itself is killed. Answers belong to a session, are bounded in number and in bytes, and are
forgotten with it.
"""

import asyncio
import gzip
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from planner.frozen import frozen
from planner.serve.form import UPLOADED
from planner.serve.worker import answer_task

_GRACE_S = 45.0  # beyond the time of a search, for reading the question, the report and what other hardware would bring
_STOP_S = 30.0  # for the best so far and its report, after an interruption
_MOST_ANSWER_BYTES = 64 * 2**20  # of an answer
_IS_FORKED = sys.platform == "linux"  # elsewhere a process imports all that it needs anew
_PROCESSES: Any = multiprocessing.get_context("forkserver" if _IS_FORKED else "spawn")
_ALONE = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # of libraries that have threads: none is forked
_STATES_OVER = ("done", "failed")
_OUT = "The search's process was killed"
_KILLED = f"{_OUT}: the memory was used up, or somebody ended it. Ask a smaller question, or ask again."
_LATE = f"{_OUT}: it did not end within its time. Ask a smaller question."
_STOPPED = "Stopped before any answer was found."
T = TypeVar("T")


class BusyError(Exception):
    """More is asked at once than is taken; its message says what to do."""


@frozen
class Limits:
    """Of searches at once, of a search, and of what is kept; ``most_s``: of a search's time."""

    num_processes: int = 2
    most_s: float = 60.0
    memory_bytes: float = 2 * 2.0**30
    num_waiting: int = 64
    num_of_session: int = 4  # waiting or searching at once
    num_sessions: int = 256
    idle_s: float = 2 * 3600.0  # after which a session is forgotten
    num_answers: int = 16  # that a session keeps
    answers_bytes: float = 256 * 2.0**20  # of all sessions
    upload_bytes: int = 256 * 2**20  # as the importers have it
    uploads_bytes: float = 2**30  # of all sessions
    num_uploads: int = 4  # that a session keeps


@dataclass(slots=True)
class Upload:
    """A file in a folder of its own, under a name of ours; ``name`` is only shown."""

    id: str
    name: str
    folder: Path
    num_bytes: int = 0

    @property
    def path(self) -> Path:
        """Where it lies: whatever it is called, this name tells nothing and leads nowhere."""
        return self.folder / UPLOADED


@dataclass(slots=True)
class Search:
    """One question: waiting, searching, done or failed."""

    id: str
    title: str
    task: Mapping[str, Any]
    upload_id: str | None = None
    state: str = "waiting"
    progress: str = ""
    error: Mapping[str, Any] | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)  # what the page shows of it
    kept: bytes = b""  # what it does not: document and questions, compressed
    report: bytes = b""
    report_key: str = ""
    note: str = ""  # what was changed
    is_stopped: bool = False
    begin_s: float = field(default_factory=time.monotonic)
    end_s: float | None = None
    process: BaseProcess | None = None
    work: "asyncio.Task[None] | None" = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in _STATES_OVER

    @property
    def num_bytes(self) -> int:
        """What it holds, about."""
        return len(self.kept) + len(self.report) + len(self.answer.get("spec", "")) + 10_000

    @property
    def seconds(self) -> float:
        """How long it has been searched for, or has waited."""
        return round((self.end_s or time.monotonic()) - self.begin_s, 1)

    def rest(self) -> dict[str, object]:
        """Return what the page does not show of an answer; raise LookupError where there is none."""
        if not self.kept:
            raise LookupError(self.id)
        return dict(json.loads(gzip.decompress(self.kept)))


@dataclass(slots=True)
class Session:
    """What one page may see: its searches and its files."""

    searches: dict[str, Search] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    seen_s: float = field(default_factory=time.monotonic)


class Searches:
    """All sessions, and the processes that search for them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.sessions: dict[str, Session] = {}
        self._free = asyncio.Semaphore(limits.num_processes)
        self._threads = ThreadPoolExecutor(limits.num_processes, "searches")  # each waits for what a process says
        if _IS_FORKED:
            for name in _ALONE:
                os.environ.setdefault(name, "1")
            multiprocessing.set_forkserver_preload(["__main__", "planner.serve.warm"])
            forkserver.ensure_running()
        self._folder = Path(tempfile.mkdtemp(prefix="planner-serve-"))
        self._empty = self._folder / "none"
        self._empty.mkdir()

    # --- Sessions

    def session(self, name: str) -> Session:
        """Return a session by its name, a new one where it is not known; forget those that are idle."""
        now_s = time.monotonic()
        if name not in self.sessions:
            for other, one in list(self.sessions.items()):
                if now_s - one.seen_s > self.limits.idle_s:
                    self._forget(other)
            if len(self.sessions) >= self.limits.num_sessions:
                raise BusyError("Too many pages are open. Close some, or try again later.")
            self.sessions[name] = Session()
        self.sessions[name].seen_s = now_s
        return self.sessions[name]

    def _forget(self, name: str) -> None:
        """Stop what a session searches, and remove what it holds."""
        session = self.sessions.pop(name)
        for search in session.searches.values():
            self._kill(search)
        for upload in session.uploads.values():
            shutil.rmtree(upload.folder, ignore_errors=True)
        session.uploads.clear()

    def report(self, key: str) -> bytes | None:
        """Return a report, compressed, by the key that only its page was told."""
        found = (one for session in self.sessions.values() for one in session.searches.values())
        return next(
            (
                one.report
                for one in found
                if one.report and secrets.compare_digest(one.report_key.encode(), key.encode())
            ),
            None,
        )

    async def close(self) -> None:
        """Kill all processes, and remove all files."""
        works = [one.work for session in self.sessions.values() for one in session.searches.values() if one.work]
        for name in list(self.sessions):
            self._forget(name)
        await asyncio.gather(*works, return_exceptions=True)
        self._threads.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- Files

    def new_upload(self, session: Session, name: str) -> Upload:
        """Return a place for a file; the oldest of the session is forgotten."""
        while len(session.uploads) >= self.limits.num_uploads:
            oldest = session.uploads.pop(next(iter(session.uploads)))
            shutil.rmtree(oldest.folder, ignore_errors=True)
        found = Upload(id=secrets.token_urlsafe(18), name=name, folder=Path(tempfile.mkdtemp(dir=self._folder)))
        session.uploads[found.id] = found
        return found

    @property
    def has_room(self) -> bool:
        """Whether the files of all sessions are within their limit."""
        held = sum(one.num_bytes for session in self.sessions.values() for one in session.uploads.values())
        return held <= self.limits.uploads_bytes

    def drop_upload(self, session: Session, upload: Upload) -> None:
        """Remove a file."""
        session.uploads.pop(upload.id, None)
        shutil.rmtree(upload.folder, ignore_errors=True)

    # --- Questions

    def ask(
        self, session: Session, title: str, task: Mapping[str, object], upload: Upload | None, note: str = ""
    ) -> Search:
        """Begin to search, or wait for a process; forget the oldest answers beyond what is kept.

        Raises
        ------
        BusyError
            If the session, or all together, ask too much at once.
        """
        going = [one for one in session.searches.values() if not one.is_over]
        if len(going) >= self.limits.num_of_session:
            raise BusyError(f"{len(going)} questions of this page are not answered yet. Stop one, or wait.")
        waiting = sum(one.state == "waiting" for other in self.sessions.values() for one in other.searches.values())
        if waiting >= self.limits.num_waiting:
            raise BusyError("Too many questions wait here. Try again later.")
        upload_id = None if upload is None else upload.id
        search = Search(id=secrets.token_urlsafe(18), title=title, task=task, upload_id=upload_id, note=note)
        session.searches[search.id] = search
        self._trim(session)
        folder = self._empty if upload is None else upload.folder
        whole = {**task, "folder": str(folder), "memory_limit_bytes": self.limits.memory_bytes}
        search.work = asyncio.create_task(self._run(search, whole))
        return search

    def _trim(self, session: Session) -> None:
        """Forget answers beyond the limits: the oldest of the session, then the oldest of all."""
        over = [one for one in session.searches.values() if one.is_over]
        for search in over[: max(0, len(session.searches) - self.limits.num_answers)]:
            del session.searches[search.id]
        held = [
            (one.end_s or 0.0, one, other)
            for other in self.sessions.values()
            for one in other.searches.values()
            if one.is_over
        ]
        held.sort(key=lambda row: row[0])
        total = sum(one.num_bytes for _, one, _ in held)
        for _, search, other in held:
            if total <= self.limits.answers_bytes:
                break
            total -= search.num_bytes
            del other.searches[search.id]

    def place(self, search: Search) -> int:
        """Return how many questions wait before this one."""
        every = (one for session in self.sessions.values() for one in session.searches.values())
        return sum(one.state == "waiting" and one.begin_s < search.begin_s for one in every)

    def stop(self, search: Search) -> None:
        """End a search: with its best so far if there is one, or at once where that was asked before."""
        is_again, search.is_stopped = search.is_stopped, True
        if search.process is None or is_again or sys.platform == "win32":
            self._kill(search)
            return
        search.progress = "stopping; stop again to leave out the answer"
        with suppress(ProcessLookupError):
            os.kill(search.process.pid or 0, signal.SIGINT)
        asyncio.get_running_loop().call_later(_STOP_S, self._kill, search)

    def _kill(self, search: Search) -> None:
        """Kill a search's process and what it started."""
        if search.process is None:
            if not search.is_over:
                self._end(search, error=_error("stopped", _STOPPED))
            return
        with suppress(ProcessLookupError, AttributeError):  # it has no group yet; Windows has none
            os.killpg(search.process.pid or 0, signal.SIGKILL)
        search.process.kill()

    async def _run(self, search: Search, task: Mapping[str, Any]) -> None:
        """Wait for a process, and take what it says."""
        async with self._free:
            if search.is_over:
                return
            search.state, search.begin_s = "searching", time.monotonic()
            is_late = False
            pipe = None
            try:
                process, opened = await self._in_thread(self._begun, task)
                search.process, pipe = process, opened
                if search.is_over:  # stopped, or forgotten, while the process began
                    return
                async with asyncio.timeout(task["time_limit_s"] + _GRACE_S):
                    await self._listen(search, opened)
            except TimeoutError:
                is_late = True
            except (OSError, ValueError) as error:  # no process to be had; an answer that is none
                self._end(search, error=_error("bug", f"The search's process failed: {error}."))
            finally:
                self._kill(search)
                if search.process is not None and pipe is not None:
                    await self._in_thread(search.process.join)  # the thread that listened is free: its pipe has ended
                    pipe.close()
                    search.process = None
            if not search.is_over:
                kind, words = ("stopped", _STOPPED) if search.is_stopped else ("limit", _LATE if is_late else _KILLED)
                self._end(search, error=_error(kind, words))

    async def _in_thread(self, work: Callable[..., T], *parts: object) -> T:
        """Return what blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *parts)

    def _begun(self, task: Mapping[str, Any]) -> tuple[BaseProcess, Connection]:
        """Begin a process, and return it with the pipe through which it speaks."""
        pipe, its_end = _PROCESSES.Pipe(duplex=False)
        process = _PROCESSES.Process(target=answer_task, args=(task, its_end), daemon=True)
        process.start()
        its_end.close()
        return process, pipe

    async def _listen(self, search: Search, pipe: Connection) -> None:
        """Take a process's progress and its answer, until it ends."""
        with suppress(EOFError):
            while True:
                said = json.loads(await self._in_thread(pipe.recv_bytes, _MOST_ANSWER_BYTES))
                if "progress" in said:
                    search.progress = said["progress"]
                elif "error" in said:
                    self._end(search, error=said["error"])
                else:
                    await self._keep(search, said["answer"])

    async def _keep(self, search: Search, answer: dict[str, Any]) -> None:
        """Take an answer: what the page shows as it is, the rest compressed."""
        report = answer.pop("report").encode()
        rest = {key: answer.pop(key) for key in ("document", "question", "resolved") if key in answer}
        search.report, search.kept = await asyncio.gather(
            asyncio.to_thread(gzip.compress, report, 5), asyncio.to_thread(gzip.compress, json.dumps(rest).encode(), 5)
        )
        search.report_key = secrets.token_urlsafe(32)
        search.title = answer["title"]
        self._end(search, answer=answer)

    def _end(
        self, search: Search, *, answer: Mapping[str, Any] | None = None, error: Mapping[str, Any] | None = None
    ) -> None:
        """Take down how a search ended, for good."""
        if not search.is_over:
            search.state, search.end_s = "failed" if answer is None else "done", time.monotonic()
            search.answer, search.error = answer or {}, error


def _error(kind: str, message: str) -> dict[str, Any]:
    """Return an error of our own, as those of the worker."""
    return {"kind": kind, "message": message, "faults": []}
