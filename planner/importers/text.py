"""Reading a text file that a user named: every way in which it can be no text file at all, each with its mend."""

from pathlib import Path

from planner.errors import Fault, SpecError

__all__ = ["MOST_BYTES", "read_text"]

MOST_BYTES = 256 * 2**20


def read_text(path: Path) -> str:
    """Return the file's text.

    Raises
    ------
    SpecError
        If it is missing, a folder, unreadable, empty, larger than 256 MiB, or not UTF-8 text.
    """
    problem, mend = _what_is_wrong(path)
    if not problem:
        try:
            data = path.read_bytes()
            if b"\0" in data:
                problem, mend = "this is a binary file.", "Give a text file."
            text = data.decode("utf-8-sig")
            if not text.strip():
                problem, mend = "the file is empty.", "Fill it, or name another one."
        except UnicodeDecodeError:
            problem, mend = "this is not UTF-8 text.", "Give a text file, saved as UTF-8."
        except OSError as error:
            problem, mend = f"it cannot be read: {error.strerror}.", "Check the path and its permissions."
    if problem:
        raise SpecError.of([Fault(file=str(path), problem=problem, mend=mend, value=str(path))])
    return text


def _what_is_wrong(path: Path) -> tuple[str, str]:
    """Return problem and mend of a path that is not a readable file of reasonable size."""
    try:
        if path.is_dir():
            return "this is a folder, not a file.", "Name a file in it."
        if not path.exists():
            return "there is no such file.", "Check the path; paths inside a spec are relative to the spec."
        if not path.is_file():
            return "this is not a regular file.", "Name a regular file."
        if path.stat().st_size > MOST_BYTES:
            size = path.stat().st_size
            return f"it holds {size} bytes, more than {MOST_BYTES}.", "Is it the right file?"
    except OSError as error:
        return f"it cannot be read: {error.strerror}.", "Check the path and its permissions."
    return "", ""
