"""Faults on purpose: the command line run with broken folders, streams, limits and signals, and what it must still keep.

A :class:`Server` runs commands in processes that need no import (see ``faults_server.py``), so that a fault can be tried a
thousand times. :func:`wrong_of` says what is wrong with how a command ended; nothing, if it ended well.
"""

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVER = Path(__file__).parent / "faults_server.py"
READ = os.O_RDONLY
WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
CODES = (0, 1, 2, 3)
_ANSWER_S = 600.0  # a guard against what hangs, no assertion of speed: the server's first answer waits for its imports
_INTERNAL = ("Traceback", "a bug of ours", "Exception ignored", "Error in atexit", "Fatal Python error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended; ``code``: its exit code, or less the number of the signal that ended it."""

    code: int
    out: bytes
    err: str
    is_stuck: bool
    wall_s: float

    @property
    def words(self) -> str:
        """All that it said, for a message."""
        return f"exit code {self.code}\n{self.out[:400]!r}\n{self.err[-2000:]}"


def wrong_of(ended: Ended, codes: Sequence[int] = CODES) -> str:
    """What is wrong with the end of a command, in words; nothing if all is well."""
    if ended.is_stuck:
        return f"it hung: {ended.words}"
    if found := [word for word in _INTERNAL if word in ended.err]:
        return f"{found[0]}: {ended.words}"
    return "" if ended.code in codes else f"not one of {list(codes)}: {ended.words}"


def temporary_of(folder: Path) -> list[str]:
    """Files that no command leaves behind."""
    return sorted(os.fsdecode(path.name) for path in folder.rglob(".*") if path.name.startswith("."))


@dataclass(slots=True)
class Server:
    """Runs commands; close it.

    Parameters
    ----------
    folder
        Of its own files: what commands print.
    warm
        Commands that are run once, for their imports.
    """

    folder: Path
    warm: Sequence[Sequence[str]] = ()
    _process: Any = field(init=False)
    _requests: int = field(init=False)
    _answers: Any = field(init=False)

    def __post_init__(self) -> None:
        read, self._requests = os.pipe()
        found, write = os.pipe()
        words = [sys.executable, str(SERVER), str(read), str(write), *(json.dumps(list(one)) for one in self.warm)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(words, pass_fds=(read, write), env=environment)
        os.close(read)
        os.close(write)
        self._answers = os.fdopen(found)

    def close(self) -> None:
        os.close(self._requests)
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._answers.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        *arguments: str | bytes,
        folder: Path,
        signals: Sequence[tuple[float, int]] = (),
        limits: Mapping[str, int] | None = None,
        streams: Mapping[int, tuple[str, int]] | None = None,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        umask: int | None = None,
    ) -> Ended:
        """Run a command in a folder.

        Parameters
        ----------
        signals
            Which are sent: seconds after its beginning, and the signal's number.
        limits
            By names of the module ``resource``.
        streams
            Files in place of stdin (0), stdout (1) and stderr (2), and how they are opened.
        user
            Whose permissions it has.
        """
        own = {0: (os.devnull, READ), 1: (str(self.folder / "out"), WRITE), 2: (str(self.folder / "err"), WRITE)}
        used = {**own, **(streams or {})}
        for number in (1, 2):
            Path(own[number][0]).unlink(missing_ok=True)
        request = {
            "arguments": [os.fsencode(word).hex() for word in arguments],
            "folder": str(folder),
            "streams": [used[number] for number in range(3)],
            "signals": [list(one) for one in signals],
            "limits": dict(limits or {}),
            "environment": dict(environment or {}),
            "user": user,
            "umask": umask,
        }
        os.write(self._requests, (json.dumps(request) + "\n").encode())
        if not select.select([self._answers], [], [], _ANSWER_S)[0]:
            self._process.kill()
            raise AssertionError(f"the server of commands gives no answer in {_ANSWER_S:g} s")
        found = json.loads(self._answers.readline())
        out, err = (_bytes(Path(own[number][0])) for number in (1, 2))
        return Ended(
            code=found["code"],
            out=out,
            err=err.decode(errors="replace"),
            is_stuck=found["is_stuck"],
            wall_s=found["s"],
        )


def _bytes(path: Path) -> bytes:
    """What a file holds; nothing where it is not there."""
    return path.read_bytes() if path.exists() else b""


# -- file systems --------------------------------------------------------------------------------------------------


def can_mount() -> bool:
    """Whether this user may mount a file system: root, where the system lets root do so."""
    if os.name != "posix" or os.geteuid() or shutil.which("mount") is None:
        return False
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    return (
        shutil.which("unshare") is not None and not subprocess.run(probe, capture_output=True, check=False).returncode
    )


@contextmanager
def file_system(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own, of so many bytes, mounted at a folder as long as this lasts."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def make_read_only(folder: Path) -> None:
    """Let nothing be written to a mounted file system any more."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Write to a file system until it is full."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
