"""Events of a trace in Chrome's format, read one by one, so that a large file needs no memory of its own size.

Format: "Trace Event Format", Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU;
the categories and arguments are those that torch.profiler writes (torch 2.13). Times are microseconds there.
"""

import codecs
import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from planner.errors import Fault, SpecError
from planner.letters import visible

__all__ = ["MOST_EVENTS", "MOST_TRACE_BYTES", "Event", "Trace", "error_in", "read_events", "read_trace"]

MOST_TRACE_BYTES = 2**30  # of text, after decompression
MOST_EVENTS = 3_000_000  # that are kept
_MOST_EVENT = 4 * 2**20  # characters of one event, or of what stands beside the events
_MOST_FAULTS = 20
_CHUNK = 2**20
_US = 1e-6
_GZIP = b"\x1f\x8b"
_BLANKS = re.compile(r"[ \t\r\n]*")
_MOST_BLANKS = 2**20  # in a row
_MOST_ELEMENTS = 10_000_000  # of traceEvents, kept or not

# What is kept, by category. "operator" events carry what GPUs do, too.
_CATEGORIES = {
    "python_function": "python",
    "user_annotation": "annotation",
    "cpu_op": "operator",
    "operator": "operator",
    "kernel": "kernel",
    "gpu_memcpy": "kernel",
    "gpu_memset": "kernel",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
}
_MODULE = "nn.Module: "
_ARGUMENTS = (
    "Sequence number",
    "Fwd thread id",
    "External id",
    "correlation",
    "Input Dims",
    "Input type",
    "Concrete Inputs",
)


@dataclass(frozen=True, slots=True)
class Event:
    """A range of time on a thread.

    Attributes
    ----------
    kind
        module, annotation, operator, kernel or launch.
    start_s, duration_s
        Since the trace's own zero.
    thread
        Process and thread.
    args
        As in the file, those that matter.
    """

    kind: str
    name: str
    thread: tuple[str, str]
    start_s: float
    duration_s: float
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a trace says: its events, and the name of the GPU that was traced; empty where it names none."""

    events: list[Event]
    device: str


def read_events(path: Path) -> list[Event]:
    """Return the events of :func:`read_trace`."""
    return read_trace(path).events


def read_trace(path: Path) -> Trace:
    """Return the events of a trace that say something about modules, operators or kernels, in the file's order.

    Raises
    ------
    SpecError
        If the file cannot be read, is no trace, is cut off, holds more than 1 GiB of text or 3,000,000 such events, or
        has times that cannot be (up to 20 of them are told).
    """
    events: list[Event] = []
    faults: list[Fault] = []
    try:
        with _opened(path) as stream:
            reader = _Reader(path, stream)
            for number, found in enumerate(reader.events(), start=1):
                event = _event(path, number, found, faults)
                if event is not None:
                    events.append(event)
                if len(events) > MOST_EVENTS:
                    raise error_in(path, f"it holds more than {MOST_EVENTS:,} events.", "Profile fewer steps.")
                if len(faults) >= _MOST_FAULTS:
                    break
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise error_in(path, f"the compressed file is damaged or cut off: {error}.", "Export it again.") from None
    except UnicodeDecodeError:
        raise error_in(path, "this is not UTF-8 text.", "Give the file that export_chrome_trace wrote.") from None
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error}."
        raise error_in(path, problem, "Check the path and its permissions.") from None
    if faults:
        raise SpecError.of(faults)
    return Trace(events=events, device=reader.device)


def _opened(path: Path) -> gzip.GzipFile | IO[bytes]:
    """Return the file as a stream of bytes, decompressed."""
    if not path.is_file():
        problem = "this is not a regular file." if path.exists() else "there is no such file."
        raise error_in(path, problem, "Name the file that export_chrome_trace wrote.")
    with path.open("rb") as stream:
        is_compressed = stream.read(2) == _GZIP
    if (size := path.stat().st_size) > MOST_TRACE_BYTES:
        raise error_in(path, f"it holds {size} bytes, more than {MOST_TRACE_BYTES}.", "Profile fewer steps.")
    return gzip.open(path) if is_compressed else path.open("rb")


# -- one event -------------------------------------------------------------------------------------------------------


def _event(path: Path, number: int, found: Any, faults: list[Fault]) -> Event | None:
    """Return what an element of ``traceEvents`` is; None where it does not matter, or is wrong."""
    if not isinstance(found, dict) or found.get("ph") != "X":
        return None
    kind = _CATEGORIES.get(str(found.get("cat")))
    name = str(found.get("name"))
    if kind is None or (kind == "python" and not name.startswith(_MODULE)):
        return None
    if kind == "python":
        kind, name = "module", name.removeprefix(_MODULE)
    times = []
    for key in ("ts", "dur"):
        value: Any = found.get(key)
        # Sums of times stay exact to a nanosecond below 2**53 ns.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) < 2**53 or (key == "dur" and value < 0):  # NaN is not below anything
            mend = "Export the trace again, or remove the event."
            problem = f"event {number} ({name[:40]!r}): {value!r:.40} is no time" + (" >= 0." if key == "dur" else ".")
            faults.append(Fault(file=str(path), field=key, value=f"{value!r:.40}", problem=problem, mend=mend))
            return None
        times.append(float(value) * _US)
    given = found.get("args")
    args = {key: given[key] for key in _ARGUMENTS if key in given} if isinstance(given, dict) else {}
    thread = (sys.intern(str(found.get("pid"))), sys.intern(str(found.get("tid"))))
    return Event(kind, sys.intern(visible(name)), thread, times[0], times[1], args)


# -- the file --------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads JSON from a stream, an element of ``traceEvents`` at a time."""

    def __init__(self, path: Path, stream: gzip.GzipFile | IO[bytes]) -> None:
        self._path, self._stream = path, stream
        self._decoder, self._decode = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._num_bytes, self._is_end = "", 0, 0, False
        self.device = ""

    def events(self) -> Iterator[Any]:
        """Give the elements of ``traceEvents``, or of the list that is the whole file."""
        first = self._next()
        if first == "[":
            yield from self._elements()
            return
        if first != "{":
            raise self._no_trace("this is no JSON object")
        while self._next() != "}":
            self._at -= 1
            key = self._value()
            if not isinstance(key, str) or self._next() != ":":
                raise self._no_trace("this is no JSON object")
            if key == "traceEvents":
                if self._next() != "[":
                    raise self._no_trace("traceEvents is no list")
                yield from self._elements()
                return  # what torch writes behind them is of no use here
            value = self._value()
            if key == "deviceProperties" and isinstance(value, list) and value and isinstance(value[0], dict):
                self.device = visible(str(value[0].get("name", "")))[:80]
            if self._next() not in ("}", ","):
                raise self._no_trace("this is no JSON object")
            self._at -= self._text[self._at - 1] == "}"
        raise self._no_trace("there is no list traceEvents in it")

    def _elements(self) -> Iterator[Any]:
        """Give the elements of a list whose bracket was read."""
        count = 0
        if self._next() == "]":
            return
        self._at -= 1
        while True:
            yield self._value(count)
            count += 1
            if count > _MOST_ELEMENTS:
                raise error_in(self._path, f"it holds more than {_MOST_ELEMENTS:,} events.", "Profile fewer steps.")
            mark = self._next(count)
            if mark == "]":
                return
            if mark != ",":
                raise self._no_trace(f"event {count} is followed by {mark!r}")

    def _no_trace(self, problem: str) -> SpecError:
        return error_in(self._path, f"{problem}.", "Give the file that torch.profiler's export_chrome_trace wrote.")

    def _more(self) -> bool:
        """Read on; False at the end."""
        if self._is_end:
            return False
        data = self._stream.read(_CHUNK)
        self._num_bytes += len(data)
        if self._num_bytes > MOST_TRACE_BYTES:
            raise error_in(self._path, f"it holds more than {MOST_TRACE_BYTES} bytes of text.", "Profile fewer steps.")
        self._is_end = not data
        self._text = self._text[self._at :] + self._decode.decode(data, final=self._is_end)
        self._at = 0
        return True

    def _next(self, count: int = 0) -> str:
        """Return the next character that is no blank."""
        num_blanks = 0
        while True:
            begin, self._at = self._at, _end_of_blanks(self._text, self._at)
            num_blanks += self._at - begin
            if num_blanks > _MOST_BLANKS:
                problem = f"there are more than {_MOST_BLANKS} blanks in a row in it."
                raise error_in(self._path, problem, "Export it again.")
            if self._at < len(self._text):
                self._at += 1
                return self._text[self._at - 1]
            if not self._more():
                raise self._cut_off(count)

    def _value(self, count: int = 0) -> Any:
        """Return the next JSON value."""
        self._next(count)
        self._at -= 1
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._no_trace(f"event {count + 1} is nested too deeply") from None
            except ValueError as error:
                if len(self._text) - self._at > _MOST_EVENT:
                    raise self._no_trace(f"event {count + 1} is no JSON, or is longer than {_MOST_EVENT}") from None
                if self._more():
                    continue
                if "delimiter" in str(error) or "Expecting" in str(error) or "Unterminated" in str(error):
                    raise self._cut_off(count) from None
                raise self._no_trace(f"event {count + 1} is no JSON") from None
            if end < len(self._text) or not self._more():  # a number may go on in the next piece
                self._at = end
                return value

    def _cut_off(self, count: int) -> SpecError:
        return error_in(
            self._path, f"the file ends in the middle, behind {count} whole events, or is no JSON.", "Export it again."
        )


def _end_of_blanks(text: str, begin: int) -> int:
    """Return where blanks end that begin at a place."""
    found = _BLANKS.match(text, begin)
    return begin if found is None else found.end()


def error_in(path: Path, problem: str, mend: str) -> SpecError:
    """Return an error with one fault in this file."""
    return SpecError.of([Fault(file=str(path), problem=problem, mend=mend)])
