"""An answer as text: its opening, then each section that a terminal shows; tables as text, and text on a terminal.

On a terminal the first lines stand out, and long ones are wrapped; anywhere else the text stands as it is. Wrapping and
colours are rich's, which knows ``NO_COLOR``, ``TERM=dumb`` and the width. Commands to copy are never wrapped by us: a
terminal folds them itself, and copies them whole.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import groupby
from typing import TYPE_CHECKING

from planner.sections import Answer

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2  # blanks between columns
_LEAST_COLUMN = 30  # letters of a last column that is worth hanging on
_PROVEN = re.compile(r"Proven\b")
_OPEN = re.compile(r"Best found, not proven\b")
_COLUMNS = re.compile(r"(?<=\S) {3,}")
_NOTE = re.compile(r"(?:Also assumed|Not modelled|Search space|Prices): ")


def text_of(answer: Answer) -> str:
    """Return an answer as text, without colour."""
    parts = [answer.opening, *(section.lines for section in answer.sections if section.lines)]
    return "\n\n".join("\n".join(lines) for lines in parts)


def bullets(title: str, lines: Iterable[str]) -> list[str]:
    """Return a title and its lines, indented; nothing where there are no lines."""
    listed = [f"  {line}" for line in lines]
    return [title, *listed] if listed else []


def note_lines(warnings: Sequence[str], parts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return warnings, a line each, and what else is to be known, a line for each part."""
    listed = bullets("Warnings", [f"{line}." for line in warnings])
    return listed + [f"{title}: {'; '.join(lines)}." for title, lines in parts.items() if lines]


def table(rows: Sequence[Mapping[str, object]], *, columns: Sequence[str] | None = None) -> str:
    """Return rows as columns of text, numbers to the right."""
    names = list(columns or (rows[0] if rows else []))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells), 0) for i, name in enumerate(names)]
    is_number = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]

    def line(texts: Iterable[str]) -> str:
        placed = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, is_number, strict=True)
        )
        return "  ".join(placed).rstrip()

    return "\n".join([line(names), line("-" * width for width in widths), *(line(texts) for texts in cells)])


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- On a terminal


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
