"""What a reader did with one changed input: accepted it, refused it in words, or broke.

An input *reached validation* when it was parsed and its outermost form recognised, by a test of its own that shares no code
with the reader: whatever was said afterwards, a rule on keys, values or their relations said it.
"""

import faulthandler
import os
import re
import resource
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from time import process_time
from types import FrameType
from typing import Any

from planner.errors import InfeasibleError, NoAnswerError, PlannerError, SpecError

__all__ = ["MEMORY_BYTES", "READ_S", "Outcome", "Parser", "Verdict", "judged", "limited", "made"]

READ_S = 10.0  # of processor time for one input; what takes longer is a defect
MEMORY_BYTES = 2 * 2**30  # of address space of a whole process
_MOST_LETTERS = 40_000  # of a message
# A problem that itself says what to do instead.
_TELLS = re.compile(
    r"\b(give|leave|allow|must|may|write|keep|name|add|drop|raise|lower|need|needs|belong|belongs|ask|more than|known|remove|check)\b",
    re.I,
)
_FORM = ("unknown key", "this key is missing", "this must be a", "unknown column", "the column", "missing.")


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    FORM = "refused by its form"  # recognised; all that is said is of keys or types
    VALUES = "refused by its values"  # recognised; a rule on a value spoke
    UNREAD = "refused unread"
    DEFECT = "defect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How an input ended; ``signature`` says which defect, so that the same one counts once."""

    outcome: Outcome
    is_recognised: bool
    signature: str = ""
    detail: str = ""
    used_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    name: str
    make: Callable[[Random], Mapping[str, bytes]]  # draws the files of one input, by name
    recognises: Callable[[Path], bool]  # whether the files in a folder have the outermost form that the reader expects
    # reads them, raising what it raises; the random numbers decide what is done with what was read
    read: Callable[[Path, Random], object]
    share: float  # of all inputs


class _TooLongError(BaseException):
    """An input took too long; no handler of exceptions swallows it."""


def limited() -> None:
    """Limit this process's memory, and let nothing print."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise where a block takes longer."""

    def ring(signum: int, frame: FrameType | None) -> None:
        raise _TooLongError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def made(parser: Parser, seed: object, number: int) -> tuple[Mapping[str, bytes], Random]:
    """Return the files of an input, always the same ones, and the numbers that go on from there."""
    draw = Random(f"{seed}:{parser.name}:{number}")
    return parser.make(draw), draw


def judged(parser: Parser, files: Mapping[str, bytes], draw: Random, *, limit_s: float = READ_S) -> Verdict:
    """Return what a reader does with an input.

    A defect is: an exception that is none of ours, one of ours without words, a warning that Python would print, more time or
    memory than allowed.
    """
    with tempfile.TemporaryDirectory(dir=_scratch()) as name:
        folder = Path(name)
        for file, data in files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        is_recognised = _is_recognised(parser, folder)
        start_s = process_time()
        verdict = _tried(parser, folder, draw, is_recognised, limit_s)
        return Verdict(**{**verdict, "is_recognised": is_recognised, "used_s": process_time() - start_s})


def _scratch() -> str | None:
    """A folder in memory where there is one: the disk is not what is tested."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _is_recognised(parser: Parser, folder: Path) -> bool:
    """Whether an input has the outermost form of its kind."""
    try:
        return parser.recognises(folder)
    except Exception:
        return False


def _tried(parser: Parser, folder: Path, draw: Random, is_recognised: bool, limit_s: float) -> dict[str, Any]:
    """Return outcome, signature and detail."""
    here = Path.cwd()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            os.chdir(folder)
            with _alarm(limit_s):
                parser.read(folder, draw)
            found = {"outcome": Outcome.ACCEPTED}
        except PlannerError as error:
            found = _refused(error, is_recognised)
        except (Exception, _TooLongError, KeyboardInterrupt, SystemExit) as error:
            found = _defect(type(error).__name__, error)
        finally:
            os.chdir(here)
    shown = [one for one in seen if not issubclass(one.category, DeprecationWarning | ResourceWarning)]
    if shown and found["outcome"] is not Outcome.DEFECT:
        one = shown[0]
        where = f"{Path(one.filename).name}:{one.lineno}"
        return {"outcome": Outcome.DEFECT, "signature": f"{one.category.__name__} {where}", "detail": str(one.message)}
    return found


def _refused(error: PlannerError, is_recognised: bool) -> dict[str, Any]:
    """Return how one of our errors refuses an input: in words that say where, what and how to mend it?"""
    text = str(error)
    if isinstance(error, InfeasibleError | NoAnswerError) and text:
        return {"outcome": Outcome.VALUES, "detail": text}
    faults = error.faults if isinstance(error, SpecError) else ()
    wrong = ""
    if not text.strip() or any(not one.problem.strip(". ") for one in faults):
        wrong = "an empty message"
    elif len(text) > _MOST_LETTERS:
        wrong = f"a message of more than {_MOST_LETTERS} letters"
    elif any(not (letter.isprintable() or letter in "\n\t") for letter in text):
        wrong = "a message with letters that cannot be printed"
    elif faults and not all(one.file or one.field for one in faults):
        wrong = "a fault without a place"
    elif faults and not all(one.mend or _TELLS.search(one.problem) for one in faults):
        wrong = "a fault without a mend"
    if wrong:
        return _defect(wrong, error)
    if not is_recognised:
        return {"outcome": Outcome.UNREAD, "detail": text}
    is_form = bool(faults) and all(any(word in one.problem for word in _FORM) for one in faults)
    return {"outcome": Outcome.FORM if is_form else Outcome.VALUES, "detail": text}


def _defect(what: str, error: BaseException) -> dict[str, Any]:
    """Return a defect, by its kind and the place in our code where it was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "fuzz" not in Path(frame.filename).name]
    ours = [one for one in frames if any(f"/{room}/" in one.filename for room in ("planner", "models", "solvers"))]
    last = (ours or frames)[-1:]
    where = "".join(f" {Path(one.filename).name}:{one.lineno} {one.name}" for one in last)
    detail = "".join(traceback.format_exception(error))[-6000:]
    return {"outcome": Outcome.DEFECT, "signature": f"{what}{where}", "detail": detail}
