"""Files that an answer is written to: refused before anything is searched for, and written whole or not at all."""

import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from planner.errors import Fault, SpecError

_PREFIX = ".planner."  # of a file that is not whole yet; short, so that a name of 255 bytes can be written, too
_OTHER = "Name another file."
_STREAMS = {1: "what is printed", 2: "what is said on stderr"}


def check_targets(targets: Mapping[str, Path | None], inputs: Iterable[tuple[str, Path | None]]) -> None:
    """Refuse files that could not be written at the end of a long search, or that hold something else.

    Parameters
    ----------
    targets
        What options name, by the options' names.
    inputs
        What is read, each by what it is called: none of it is ever overwritten.

    Raises
    ------
    SpecError
        With all that is wrong. What changes while a search runs is refused in the end.
    """
    named = {field: path for field, path in targets.items() if path is not None}
    read = [(words, path) for words, path in inputs if path is not None]
    faults, seen = [], dict[Path, str]()
    for field, path in named.items():
        problem, mend = _what_is_wrong(path, read)
        place = path if problem else path.resolve()
        if not problem and place in seen and not _is_special(path):
            problem, mend = f"{seen[place]} writes there, too.", _OTHER
        seen.setdefault(place, field)
        if problem:
            faults.append(Fault(file=str(path), field=field, value=str(path), problem=problem, mend=mend))
    if faults:
        raise SpecError.of(faults)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a new file that takes the place of another one when all is well, and is removed when it is not.

    What a link leads to is replaced, and the link stays. A device or a pipe is given as it is.

    Raises
    ------
    OSError
        If it cannot be made, or put in its place.
    """
    if _is_special(path):
        yield path
        return
    place = _place_of(path)
    with _new_file(place.parent) as new:
        yield new
        with suppress(FileNotFoundError):
            new.chmod(stat.S_IMODE(place.stat().st_mode))
        new.replace(place)


@contextmanager
def _new_file(folder: Path) -> Iterator[Path]:
    """Make an empty file; remove it in the end where it is still there, after a full disk or a Ctrl-C."""
    new = folder / f"{_PREFIX}{secrets.token_hex(8)}"  # known before it is made, so that it never stays
    try:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # less the umask
        yield new
    finally:
        new.unlink(missing_ok=True)


def reason_of(error: OSError) -> str:
    """Return why a file cannot be written, as a sentence."""
    return f"it cannot be written: {error.strerror or error}."


def _what_is_wrong(path: Path, inputs: Iterable[tuple[str, Path]]) -> tuple[str, str]:
    """Return problem and mend of a file to write."""
    try:
        if path.is_dir():
            return "this is a folder.", "Name a file in it."
        if str(path) == "-":
            return "this is no name of a file.", "Name one, or add --json, whose document is printed."
        if found := next((words for words, one in inputs if _is_same(path, one)), ""):
            return f"this is {found}, which would be overwritten.", _OTHER
        if words := _stream_of(path):
            return f"{words} goes there, too.", _OTHER
        if _is_special(path):
            return "", ""
        if path.exists() and not os.access(path, os.W_OK):
            return "it may not be written to.", "Name another file, or let it be written to."
        folder = _place_of(path).parent
        if not folder.is_dir():
            return f"it cannot be written: there is no folder {folder}.", "Make it, or name another file."
        with _new_file(folder):  # the one way to know, on any file system
            pass
    except OSError as error:
        return reason_of(error), _OTHER
    return "", ""


def _is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe or a socket: written to as it is, and never replaced."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _place_of(path: Path) -> Path:
    """Return the path that links lead to; raise OSError where they lead nowhere but to themselves."""
    with suppress(FileNotFoundError):
        path.stat()
    return path.resolve()


def _is_same(path: Path, other: Path) -> bool:
    """Whether two paths lead to one file that is there."""
    with suppress(OSError, ValueError):  # a name that no system has
        return path.samefile(other)
    return False


def _stream_of(path: Path) -> str:
    """Return which stream of this process goes into a plain file; nothing where none does."""
    with suppress(OSError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            for number, words in _STREAMS.items():
                with suppress(OSError):
                    if os.path.samestat(found, os.fstat(number)):
                        return words
    return ""
