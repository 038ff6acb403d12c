"""Pages read back: their headings, tables, plots and links, by the standard library's parser."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

__all__ = ["Read", "read"]

_VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Read:
    """What a page holds.

    ``text``: of its body, scripts and styles left out; ``elements``: tags with attributes; ``tables``: the rows of each
    by its caption, that of the columns first.
    """

    title: str = ""
    text: str = ""
    headings: list[tuple[int, str]] = field(default_factory=list)
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    plots: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found = Read()
        self.open: list[str] = []
        self.held = ""
        self.is_plots = False
        self.cell = ""
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.elements.append((tag, dict(attrs)))
        self.is_plots = dict(attrs).get("id") == "plots"
        if tag not in _VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3", "title"):
            self.held = ""
        if tag in ("caption", "th", "td"):
            self.cell = ""
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()
        if tag == "caption":
            self.rows = self.found.tables[self.cell] = []
        if tag in ("th", "td"):
            self.rows[-1].append(self.cell)
        if tag == "title":
            self.found.title = self.held
        if tag in ("h1", "h2", "h3"):
            self.found.headings.append((int(tag[1]), self.held.strip()))

    def handle_data(self, data: str) -> None:
        if self.is_plots and self.open[-1:] == ["script"]:
            self.found.plots = json.loads(data)
        elif self.open[-1:] not in (["script"], ["style"]):
            self.held += data
            self.cell += data
            self.found.text += data


def read(page: str) -> Read:
    """Return what a page holds; fails where elements are not nested."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [], f"not closed: {reader.open}"
    return reader.found


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, as https://www.w3.org/TR/WCAG21/#dfn-relative-luminance has it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
