"""What a page is made of: sections of text, tables, plots and drawings, as plain data. Nothing here knows HTML.

All text is plain: names from files come in as they are, and :mod:`planner.page.render` escapes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

__all__ = [
    "Block",
    "Bullets",
    "Code",
    "Details",
    "Figure",
    "Heading",
    "Page",
    "Section",
    "Table",
    "Text",
    "Tile",
    "Tiles",
    "few",
    "thinned",
]

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under a caption.

    ``numbers``: indices of the columns that are set to the right. ``marked``: indices of rows that stand out.
    """

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    marked: Sequence[int] = ()
    note: str = ""

    @property
    def lean(self) -> "Table":
        """The table without the columns that say nothing in any row; the first one stays."""
        kept = [
            index
            for index in range(len(self.columns))
            if not index or not self.rows or any(row[index] for row in self.rows)
        ]
        if len(kept) == len(self.columns):
            return self
        return replace(
            self,
            columns=[self.columns[index] for index in kept],
            rows=[[row[index] for index in kept] for row in self.rows],
            numbers=[place for place, index in enumerate(kept) if index in self.numbers],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot, as plotly's data and layout, with what it shows in words and the same numbers as a table.

    ``table`` is None where that table follows the plot.
    """

    kind: ClassVar[str] = "figure"
    caption: str
    alt: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    table: Table | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a part of a section."""

    kind: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """Lines of a list."""

    kind: ClassVar[str] = "bullets"
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Text to copy, as it is."""

    kind: ClassVar[str] = "code"
    caption: str
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A figure that is read first: ``479 ms``, an iteration."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The figures that are read first."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Blocks that are folded away until they are asked for."""

    kind: ClassVar[str] = "details"
    summary: str
    blocks: Sequence["Block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A device or a server of a machine: a short label, what it does in words, its colour (None: it does nothing)."""

    label: str
    words: str
    colour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine with what runs on it."""

    name: str
    cells: Sequence[Cell]
    note: str = ""

    @property
    def num_columns(self) -> int:
        """How many of its cells stand side by side."""
        longest = max((len(cell.label) for cell in self.cells), default=0)
        return min(len(self.cells), 8 if longest <= 3 else 4) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Machines of one kind; ``note`` says which of them are not drawn."""

    title: str
    words: str
    machines: Sequence[Machine]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a colour of a drawing means."""

    label: str
    words: str
    colour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Machines, and what runs where."""

    kind: ClassVar[str] = "drawing"
    caption: str
    groups: Sequence[Group]
    roles: Sequence[Role]
    note: str = ""


Block = Table | Figure | Text | Heading | Bullets | Code | Tiles | Details | Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page with its title; ``name`` is its address on the page, of letters and hyphens."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page: its title, the answer in one sentence, what is proven of it, and the sections.

    ``mark`` is one of ``proven``, ``open`` and ``plain``: how the line below the answer is set.
    """

    title: str
    answer: str
    verdict: str = ""
    mark: str = "plain"
    sections: Sequence[Section] = field(default_factory=tuple)


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many items, chosen evenly, the first and the last among them.

    >>> thinned("abcdefg", 4)
    ['a', 'c', 'e', 'g']
    """
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]


def few(number: int, shown: int, what: str, where: str) -> str:
    """Return the note of a list that is not shown whole, or nothing.

    >>> few(7000, 60, "layers", "--out plan.json holds all of them")
    '60 of 7,000 layers are shown; --out plan.json holds all of them.'
    """
    return "" if shown >= number else f"{shown:,} of {number:,} {what} are shown; {where}."
