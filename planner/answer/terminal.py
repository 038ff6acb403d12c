"""Answers on a terminal: the first lines stand out, and long ones are wrapped; anywhere else the text as it is.

Wrapping and colours are rich's, which knows ``NO_COLOR``, ``TERM=dumb`` and the width. Commands to copy are never
wrapped by us: a terminal folds them itself, and copies them whole.
"""

import re
import sys
from collections.abc import Iterable, Sequence, Set
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["show"]

_GAP = 2  # blanks between columns
_LEAST_COLUMN = 30  # letters of a last column that is worth hanging on
_PROVEN = re.compile(r"Proven\b")
_OPEN = re.compile(r"Best found, not proven\b")
_COLUMNS = re.compile(r"(?<=\S) {3,}")
_NOTE = re.compile(r"(?:Also assumed|Not modelled|Search space|Prices): ")


def show(text: str, *, commands: Iterable[str] = ()) -> None:
    """Print an answer; ``commands``: lines of it that are to be copied as they are."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console  # noqa: PLC0415  # late: only a terminal pays for it

    console = Console(highlight=False, emoji=False, markup=False)
    kept = {line.strip() for line in commands}
    lines = text.split("\n")
    fitted = _fitted(lines, console.width, kept)
    for index, (line, (shown, hang)) in enumerate(zip(lines, fitted, strict=True)):
        _print(console, shown, style=_style(line, index), is_kept=line.strip() in kept, hang=hang)


def _fitted(lines: Sequence[str], width: int, kept: Set[str]) -> list[tuple[str, int | None]]:
    """Return lines, those of tables that are too wide with less room between columns, and where their rest hangs.

    A table is lines of one indentation that follow each other. Room that is blank in all of its lines is taken away.
    """

    def table(line: str) -> tuple[bool, bool, bool, int]:
        """Whether a line is a command, empty, or tells what a table leaves out; and its indentation."""
        text = line.strip()
        return text in kept, not text, text.startswith("... "), len(line) - len(line.lstrip())

    found: list[tuple[str, int | None]] = []
    for (is_kept, *_), run in groupby(lines, key=table):
        rows = list(run)
        if is_kept or max(map(len, rows)) <= width:
            found += [(row, None) for row in rows]
        else:
            found += _narrowed(rows, width)
    return found


def _narrowed(rows: list[str], width: int) -> list[tuple[str, int | None]]:
    """Return the rows of a table with two blanks between its columns, and where its last column begins.

    What does not fit there either is left as it is: its columns cannot stand below each other.
    """
    from rich.cells import cell_len  # noqa: PLC0415

    longest, indent = max(map(len, rows)), len(rows[0]) - len(rows[0].lstrip())
    blank = [all(len(row) <= place or row[place] == " " for row in rows) for place in range(longest)]
    gone = {place for place in range(indent + _GAP, longest) if all(blank[place - _GAP : place + 1])}
    texts = ["".join(letter for place, letter in enumerate(row) if place not in gone).rstrip() for row in rows]
    if max(map(cell_len, texts)) <= width:
        return [(text, None) for text in texts]
    left = [place for place in range(longest) if place not in gone]
    starts = [
        at
        for at, place in enumerate(left)
        if at >= indent + _GAP and all(blank[one] for one in left[at - _GAP : at]) and not blank[place]
    ]
    if len(rows) > 1 and starts and width - starts[-1] >= _LEAST_COLUMN:
        return [(text, starts[-1]) for text in texts]
    return [(row, None) for row in rows]


def _style(line: str, index: int) -> str:
    """Return how a line is set: the answer and titles bold, what is proven green, what is not yellow."""
    if _PROVEN.match(line):
        return "green"
    if _OPEN.match(line):
        return "yellow"
    if line.startswith(("Warning", "Mind: ")):
        return "yellow"
    if _NOTE.match(line):
        return "dim"
    return "bold" if line and (index == 0 or not line.startswith(" ")) else ""


def _print(console: "Console", line: str, *, style: str, is_kept: bool, hang: int | None) -> None:
    """Print one line, what does not fit below it and further in: below its last column, or a little."""
    from rich.cells import cell_len  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if is_kept or cell_len(line) <= console.width:
        console.print(Text(line, style=style), soft_wrap=True)
        return
    if hang is not None and cell_len(line[:hang]) == hang:
        begin, rest, room = line[:hang], line[hang:], console.width - hang
        for index, one in enumerate(Text(rest, style=style).wrap(console, room, overflow="fold")):
            one.rstrip()
            console.print(Text(begin if not index else " " * hang, style=style) + one, soft_wrap=True)
        return
    indent = len(line) - len(line.lstrip())
    text = _COLUMNS.sub("  ", line.strip())  # columns that cannot stand below each other need no room between them
    if cell_len(text) <= console.width - indent:
        console.print(Text(" " * indent + text, style=style), soft_wrap=True)
        return
    wrapped = Text(text, style=style).wrap(console, max(20, console.width - indent - 2), overflow="fold")
    for index, one in enumerate(wrapped):
        one.rstrip()
        console.print(Text(" " * (indent + 2 * (index > 0))) + one, soft_wrap=True)
