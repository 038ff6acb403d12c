"""Reading a text file that a user named: every way in which it can be no text file at all, each with its mend."""

import codecs
import csv
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from planner.errors import SpecError
from planner.letters import visible

STANDARD_INPUT = Path("-")
MOST_BYTES = 256 * 2**20
_BEGIN_BYTES = 4096  # of a file, which tell what it is
MOST_DOCUMENT_BYTES = 32 * 2**20  # of a document in JSON, which may take thirty times as much memory as text


def refuse(path: Path, problem: str, hint: str, *, field: str = "", value: str = "") -> SpecError:
    """Return the error for one fault of a file."""
    return SpecError.one(problem, hint, file=path, field=field, value=value[:80])


def read_cells(path: Path, *, most_rows: int) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV file with their line numbers, without blank lines and comments.

    Raises
    ------
    SpecError
        As :func:`read_text`; if a cell is larger than 128 KiB, or more than ``most_rows`` rows stand below the first.
    """
    rows: list[tuple[int, list[str]]] = []
    reader = csv.reader(read_text(path).splitlines())
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                rows.append((reader.line_num, [visible(cell, keep="\n") for cell in cells]))
    except csv.Error as error:
        mend = "Close its quotation marks."
        raise SpecError.one(f"this is no row of CSV: {error}.", mend, file=path, line=reader.line_num) from None
    if len(rows) > most_rows + 1:
        problem = f"it holds {len(rows) - 1} rows, more than {most_rows}."
        raise refuse(path, problem, "Leave out repetitions, or take their median.")
    return rows


def read_begin(path: Path) -> bytes:
    """Return how a file begins, which tells what it is."""
    with path.open("rb") as file:
        return file.read(_BEGIN_BYTES)


def is_there(path: Path) -> bool:
    """Whether a path names a regular file; not where no system takes such a path: it is too long, say."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _no_text(begin: bytes) -> tuple[str, str]:
    """Return what a file is that begins so and is no UTF-8 text, and how to mend it."""
    if begin.startswith((b"PK\x03\x04", b"\x1f\x8b")):
        return "this is a compressed file.", "Unpack it, and name the file in it."
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in begin:
        return "this is UTF-16 text.", "Save it as UTF-8."
    if b"\0" in begin:
        return "this is a binary file.", "Give a text file."
    return "this is not UTF-8 text.", "Give a text file, saved as UTF-8."


def read_text(path: Path, *, most_bytes: int = MOST_BYTES) -> str:
    """Return the file's text, its lines ended by a line feed whatever system wrote it; of ``-`` standard input's.

    Raises
    ------
    SpecError
        If it is missing, a folder, unreadable, empty, larger than ``most_bytes``, or not UTF-8 text.
    """
    is_stream = path == STANDARD_INPUT
    problem, mend = ("", "") if is_stream else _what_is_wrong(path, most_bytes)
    if not problem:
        try:
            data = _standard_input() if is_stream else path.read_bytes()
            if len(data) > most_bytes:
                problem, mend = f"it holds more than {most_bytes} bytes.", "Is it the right file?"
            if b"\0" in data:
                problem, mend = _no_text(data)
            text = data.decode("utf-8-sig")
            if "\r" in text:
                text = text.replace("\r\n", "\n").replace("\r", "\n")
            if not text.strip():
                problem, mend = "the file is empty.", "Fill it, or name another one."
        except UnicodeDecodeError:
            if not problem:
                problem, mend = _no_text(data)
        except OSError as error:
            problem, mend = f"it cannot be read: {error.strerror}.", "Check the path and its permissions."
    if problem:
        raise SpecError.one(problem, mend, file=path, value=str(path))
    return text


@cache
def _standard_input() -> bytes:
    """Return what standard input holds, at most so much that it is refused: it can be read once, and is asked twice."""
    stream = getattr(sys.stdin, "buffer", None)  # a notebook's has none, and a program may have no standard input
    if stream is None:
        raise SpecError.one("there is no standard input here.", "Name a file.", file=STANDARD_INPUT, value="-")
    return stream.read(MOST_BYTES + 1)  # type: ignore[no-any-return]


def read_lines(path: Path, *, most_bytes: int, most_letters: int = 2**20) -> Iterator[str]:
    """Yield the lines of a file that may be too large to be held, each ended by a line feed.

    Raises
    ------
    SpecError
        As :func:`read_text`, where it comes to it; and for a line of more than ``most_letters``.
    """

    def refusal(problem: str, mend: str, line: int | None = None) -> SpecError:
        return SpecError.one(problem, mend, file=path, line=line, value=str(path))

    problem, mend = _what_is_wrong(path, most_bytes)
    if problem:
        raise refusal(problem, mend)
    number, is_empty = 0, True
    try:
        with path.open(encoding="utf-8-sig") as file:
            while line := file.readline(most_letters + 1):
                number += 1
                if "\0" in line:
                    raise refusal(*_no_text(read_begin(path) + b"\0"), number)
                if len(line) > most_letters:
                    raise refusal(f"a line holds more than {most_letters} letters.", "Is it the right file?", number)
                is_empty = is_empty and not line.strip()
                yield line
    except UnicodeDecodeError:
        raise refusal(*_no_text(read_begin(path)), number + 1) from None
    except OSError as error:
        raise refusal(f"it cannot be read: {error.strerror}.", "Check the path and its permissions.") from None
    if is_empty:
        raise refusal("the file is empty.", "Fill it, or name another one.")


def _what_is_wrong(path: Path, most_bytes: int) -> tuple[str, str]:
    """Return problem and mend of a path that is not a readable file of reasonable size."""
    try:
        if path.is_dir():
            return "this is a folder, not a file.", "Name a file in it."
        if not path.exists():
            return "there is no such file.", "Check the path; paths inside a spec are relative to the spec."
        if not path.is_file():
            return "this is not a regular file.", "Name a regular file."
        size = path.stat().st_size
        if size > most_bytes:
            return f"it holds {size} bytes, more than {most_bytes}.", "Is it the right file?"
    except OSError as error:
        return f"it cannot be read: {error.strerror}.", "Check the path and its permissions."
    return "", ""
