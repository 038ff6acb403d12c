"""Answers on a terminal: the first lines stand out, and long ones are wrapped; anywhere else the text as it is.

Wrapping and colours are rich's, which knows ``NO_COLOR``, ``TERM=dumb`` and the width. Commands to copy are never
wrapped by us: a terminal folds them itself, and copies them whole.
"""

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["show"]

_PROVEN = re.compile(r"Proven\b")
_OPEN = re.compile(r"Best found, not proven\b")
_COLUMNS = re.compile(r"(?<=\S) {3,}")
_NOTE = re.compile(r"(?:Assumed|Mind|Not modelled|Searched|Prices): ")


def show(text: str, *, commands: Iterable[str] = ()) -> None:
    """Print an answer; ``commands``: lines of it that are to be copied as they are."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console

    console = Console(highlight=False, emoji=False, markup=False)
    kept = {line.strip() for line in commands}
    for index, line in enumerate(text.split("\n")):
        _print(console, line, style=_style(line, index), is_kept=line.strip() in kept)


def _style(line: str, index: int) -> str:
    """Return how a line is set: the answer and titles bold, what is proven green, what is not yellow."""
    if _PROVEN.match(line):
        return "green"
    if _OPEN.match(line):
        return "yellow"
    if line.startswith("Mind: "):
        return "yellow"
    if _NOTE.match(line):
        return "dim"
    return "bold" if line and (index == 0 or not line.startswith(" ")) else ""


def _print(console: "Console", line: str, *, style: str, is_kept: bool) -> None:
    """Print one line, what does not fit below it and further in."""
    from rich.cells import cell_len
    from rich.text import Text

    if is_kept or cell_len(line) <= console.width:
        console.print(Text(line, style=style), soft_wrap=True)
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
