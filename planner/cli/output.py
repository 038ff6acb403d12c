"""What commands share: limits read, files written whole or not at all."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from planner.errors import Fault, InfeasibleError, NoAnswerError, SpecError
from planner.targets import check_targets, reason_of, whole
from planner.units import Dimension, format_human, parse
from planner.words import progress_words

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from planner.sections import Answer

_MOST_NAME = 1024  # letters of a file's name with its path


def _parsed(text: str, dimension: Dimension, field: str) -> float:
    """Return a quantity that an option gives."""
    try:
        return parse(text, dimension)
    except ValueError as error:
        raise SpecError.of_option(field, str(error), value=text) from None


def limit_s(text: str) -> float:
    """Return the seconds of ``--time-limit``."""
    return _parsed(text, Dimension.TIME, "--time-limit")


def left_s(seconds: float, begin_s: float) -> float:
    """Return what is left of a time limit after reading the question; a quarter of it at least, to search at all.

    ``begin_s``: when the command began, by ``time.monotonic``.
    """
    return max(seconds - (time.monotonic() - begin_s), seconds / 4)


def limit_bytes(text: str | None, num_processes: int = 1) -> float:
    """Return the bytes of ``--memory-limit``, or a share of what is left, and hold this process to them.

    Raises
    ------
    NoAnswerError
        If this process holds more already.
    """
    from planner.memory import default_limit_bytes, keep_freed, lower_ceiling, resident_bytes

    found = default_limit_bytes(num_processes) if text is None else _parsed(text, Dimension.DATA, "--memory-limit")
    if found <= (held := resident_bytes()):
        needed = format_human(held, Dimension.DATA, 3)
        raise NoAnswerError(f"--memory-limit: the program itself holds {needed}, more than {text}. Allow more.")
    lower_ceiling(found)
    keep_freed(found)
    return found


def check_outputs(
    targets: Mapping[str, Path | None], spec: Path | None = None, inputs: Mapping[str, Path | None] | None = None
) -> None:
    """Refuse at once what could not be written in the end: see :func:`planner.targets.check_targets`.

    Parameters
    ----------
    targets
        What options name, by the options' names.
    spec
        The question: it is read, and so is what it names.
    inputs
        Other files that the command reads, by what they are called.
    """
    is_there = any(path is not None and os.path.lexists(path) for path in targets.values())
    named = _named_by(spec) if spec is not None and is_there else []
    read = [
        ("the question itself", spec),
        *(inputs or {}).items(),
        *(("what the question names", one) for one in named),
    ]
    check_targets(targets, read)


def _named_by(spec: Path) -> list[Path]:
    """Return what may be files in the text of a spec; nothing where it cannot be read, which its reader says better."""
    from planner.question.source import read_source

    try:
        waiting: list[Any] = [read_source(spec).data]
    except SpecError:
        return []
    names: set[str] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping | list):
            waiting.extend(value.values() if isinstance(value, Mapping) else value)
        elif isinstance(value, str) and 0 < len(value) <= _MOST_NAME and "\0" not in value:
            names.add(value)
    folder = os.fspath(spec.parent)  # of 150,000 words a few are files
    return [spec.parent / name for name in sorted(names) if os.path.lexists(os.path.join(folder, name))]  # noqa: PTH118


def write_files(folder: Path, files: Mapping[str, str], *, is_forced: bool) -> None:
    """Write files into a folder, which is made if it is not there; none of them if one is there already.

    Raises
    ------
    SpecError
        If a file is there and ``is_forced`` is not, or one cannot be written.
    """
    paths = {folder / name: text for name, text in files.items()}
    assert all(path.name == name for path, name in zip(paths, files, strict=True))  # no exporter leaves the folder
    there = [] if is_forced else [path for path in paths if path.exists() or path.is_symlink()]
    if there:
        problem, mend = "this file is there already.", "Name another folder, or add --force."
        raise SpecError.of(
            [Fault(file=str(path), field="--out", value=str(path), problem=problem, mend=mend) for path in there]
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"this folder cannot be made: {error.strerror}."
        raise SpecError.one(problem, "Name another one.", file=folder, field="--out", value=str(folder)) from None
    for path, text in paths.items():
        write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a file whole: see :func:`write_bytes`."""
    # A name of the file system that is no text, in JSON as in a page, is written as its escape.
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole: a reader sees the old one or the new one, never a part.

    What a link leads to is written, and the link stays. A device or a pipe is written to as it is.

    Raises
    ------
    SpecError
        If the file cannot be written.
    """
    try:
        with whole(path) as new, new.open("wb") as file:
            file.write(content)
    except OSError as error:
        raise SpecError.one(reason_of(error), "Name another file.", file=path, value=str(path)) from None


# --- What commands that write a page check before they search for anything


def check_page(path: Path | None, question: Path | None = None) -> None:
    """Refuse what ``--html`` cannot do, at once and not after a search.

    Raises
    ------
    SpecError
        If the file cannot be written or is an input.
    """
    if path is None:
        return
    if path.exists() and not path.is_file() and not path.is_dir():
        problem, mend = "this is no plain file, and a page would take its place.", "Name another file."
        raise SpecError.one(problem, mend, file=path, field="--html", value=str(path))
    check_outputs({"--html": path}, question)


def write_page(path: Path, answer: "Answer") -> None:
    """Write an answer as a page."""
    from planner.answer.html import page_of

    write_text(path, page_of(answer))


def give(
    document: Callable[[], Mapping[str, object]],
    answer: Callable[[], "Answer"],
    *,
    json: bool,
    out: Path | None = None,
    launch: Iterable[str] = (),
) -> None:
    """Print an answer, as a document or as text, and write its document where that is asked for.

    ``launch``: lines of the text that are to be copied as they are.
    """
    if json or out:
        from planner.answer.documents import dump

        text = dump(document())
        if out:
            write_text(out, text + "\n")
        if json:
            print(text)
            return
    from planner.answer.text import show, text_of

    show(text_of(answer()), commands=launch)


# --- The page of a question that has no answer, where a page was asked for


@dataclass(slots=True)
class _Asked:
    """What was asked, as the page of a refusal tells it; ``document`` is called only there."""

    subject: str = ""
    command: Sequence[str] = ()
    document: Callable[[], Mapping[str, Any]] = dict

    def asks(self, subject: str, command: Sequence[str], document: Callable[[], Mapping[str, Any]]) -> None:
        """Take down what is asked."""
        self.subject, self.command, self.document = subject, command, document


@contextmanager
def write_refusal(path: Path | None) -> Iterator[_Asked]:
    """Write the page of a question that has no answer, or none in time, where a page is wanted; the error goes on."""
    asked = _Asked()
    try:
        yield asked
    except (InfeasibleError, NoAnswerError) as error:
        if path is not None:
            from planner.answer.refusal import refusal_answer

            commands = [asked.command] if asked.command else []
            write_page(path, refusal_answer(error, asked.document(), subject=asked.subject, commands=commands))
        raise


# --- What takes long, and how far it is: one line on stderr, where that is a terminal; else nothing

_FIRST_S = 0.5  # half a second after what a command imports
_EVERY_S = 0.5


class Progress:
    """Says what is done, for how long and how far it is, within the first second.

    As a context it takes its line away at the end, so that the answer does not begin behind it. Who is inside prints
    nothing.
    """

    def __init__(self, doing: str, what: str = "", said: Callable[[float], str] = str) -> None:
        """Count ``what`` was done, such as fleets planned; ``said`` puts a bound or an incumbent into words."""
        self._doing, self._what, self._said = doing, what, said
        self._begin_s = self._next_s = time.monotonic()
        self.history: list[tuple[float, float, int]] = []
        self._number = 0
        self._bar: Bar | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(_FIRST_S, self._show)
        self._timer.daemon = True

    def tell(self, bound: float, incumbent: float, number: int | None = None) -> None:
        """Say how far the search is, and keep it in ``history``; ``number``: done so far, else calls are counted."""
        self._number = self._number + 1 if number is None else number
        if not self.history or self.history[-1][:2] != (bound, incumbent):
            self.history.append((bound, incumbent, self._number))
        if self._bar is None or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        line = f"{self._what}: {self._number:,}; best: {progress_words(bound, incumbent, self._said)}"
        self._bar.update(self._bar.task_ids[0], description=line)

    def __enter__(self) -> "Progress":
        """Begin; the line itself comes from a thread, so that it is there however long one step takes."""
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the line away."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.stop()

    def _show(self) -> None:
        """Show the line; rich is loaded only here."""
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        with self._lock:
            if self._is_over:
                return
            console = Console(stderr=True)  # what else is printed is none of the line's business
            bar = Bar(
                SpinnerColumn("line"), words, TimeElapsedColumn(), console=console, transient=True,
                redirect_stdout=False, redirect_stderr=False, refresh_per_second=4,
            )  # fmt: skip
            bar.add_task(self._doing)
            bar.tasks[0].start_time = self._begin_s
            bar.start()
            self._bar = bar
