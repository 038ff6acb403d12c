"""Changes to valid documents: of their structure and values, of tables, of text and of bytes.

Every change is drawn from a :class:`random.Random`, so that a seed gives the same input again, and hypothesis may draw it.
Nothing here knows what a document means: a value is replaced by another of the same key elsewhere, by one at the edge of
what numbers, texts and lists can be, or moved; so most changed documents still parse, and rules on their values speak.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

__all__ = ["Vocabulary", "changed", "changed_bytes", "changed_lines", "changed_table", "edge_value"]

_NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 64, 1000, 10**6, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**15, 10**16),
    *(10**30, -(10**30), 10**310, -0.0, 0.0, 0.5, -0.5, 1e-9, 1e-300, 5e-324, 1e18, 1e300, 1.7e308, 0.1, 1.5, 99.99),
    *(float("nan"), float("inf"), float("-inf"), True, False),
)
_TEXTS = (
    *("", " ", "0", "-1", "nan", "inf", "1e999", "null", "true", "a", "A" * 300, "x" * 70_000, "été", "\u202e\u200b"),
    *("\U0001f600", "\x1b[31mred", "a\nb", "a\tb", "\x00", "\ud800", "%s%n{0}", "<script>alert(1)</script>", "'; --"),
    *("a\x9b2J\u2066\u2029b", "{} {name} {0[a]}", "[bold]", "=1+1", "@x"),
    *("../../../etc/passwd", "/etc/passwd", "/dev/zero", "~/x", "file:///etc/passwd", r"\\host\share\x", "C:\\x", "."),
    *("1 GB", "1 MB/s", "25 Gbit", "25 Gbit/s", "1e400 s", "-1 s", "1e-320 s", "0 s", "0 B", "1e308 B", "5 USD/h"),
    *("1 GiB", "3 h", "1,5 s", "1 parsec", "0x10", "١٢ s", "20 us", "1e300 FLOP/s", "1 kW", "vgg16", "v100", "data"),
)
_QUANTITY = re.compile(r"([+-]?[\d.]+(?:[eE][+-]?\d+)?)(\s*)(\S.*)")
_FACTORS = ("0", "1e-12", "0.001", "0.5", "2", "3", "1000", "1e6", "1e12", "1e300", "-1", "1e999", "nan", "1_0", "")
_UNITS = ("s", "ms", "us", "GB", "GiB", "Gbit/s", "GB/s", "TFLOP/s", "USD", "USD/h", "kW", "samples/s", "Gbit", "x", "")

Vocabulary = Mapping[str, Sequence[Any]]  # values that stand under a key in any valid document of a kind
_Place = tuple[Any, Any]  # a mapping or a list, and a key or an index of it


def edge_value(draw: Random) -> Any:
    """A value at the edge of what can be written, of any type."""
    kind = draw.randrange(12)
    if kind < 5:
        return draw.choice(_NUMBERS)
    if kind < 9:
        return draw.choice(_TEXTS)
    return draw.choice((None, [], {}, [[]], {"": {}}, _nested(70), [0] * 3000, {str(key): key for key in range(300)}))


def _nested(depth: int) -> Any:
    """A list in a list, so many times."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def changed(document: Any, draw: Random, vocabulary: Vocabulary) -> Any:
    found = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 1, 1, 2, 2, 3, 6))):
        place = _place(found, draw)
        if place is None:
            return edge_value(draw)
        draw.choices(_CHANGES, _WEIGHTS)[0](found, place, draw, vocabulary)
    return found


def _place(document: Any, draw: Random) -> _Place | None:
    """Return a place below the root, by a walk that may stop at every level: long lists are not preferred."""
    here, place = document, None
    while isinstance(here, dict | list) and here:
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        place = (here, key)
        here = here[key]
        if draw.random() < 0.2:
            break
    return place


def _drop(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    del place[0][place[1]]


def _double(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    parent, key = place
    if isinstance(parent, list):
        parent[key:key] = [copy.deepcopy(parent[key]) for _ in range(draw.choice((1, 1, 2, 12)))]
    else:
        parent[_name(key, draw, vocabulary)] = copy.deepcopy(parent[key])


def _rename(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    parent, key = place
    if isinstance(parent, list):
        draw.shuffle(parent)
        return
    value = parent.pop(key)
    parent[_name(key, draw, vocabulary)] = value


def _name(key: Any, draw: Random, vocabulary: Vocabulary) -> str:
    """Another name for a key: one of another place, or one with a slip."""
    name = str(key)
    if vocabulary and draw.random() < 0.6:
        return draw.choice(list(vocabulary))
    return draw.choice(
        (name[1:], f"{name}s", name.upper(), name.replace("_", "-"), f" {name}", "", draw.choice(_TEXTS))
    )


def _edge(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    place[0][place[1]] = edge_value(draw)


def _likely(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    """Give a key the value that it has in another document."""
    values = vocabulary.get(str(place[1]))
    if values:
        place[0][place[1]] = copy.deepcopy(draw.choice(values))
    else:
        _scale(document, place, draw, vocabulary)


def _graft(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    """Add a key with a value that another document has."""
    target = place[0] if isinstance(place[0], dict) else document
    if isinstance(target, dict) and vocabulary:
        key = draw.choice(list(vocabulary))
        target[key] = copy.deepcopy(draw.choice(vocabulary[key]))


def _scale(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    """Change the number of a quantity, or its unit."""
    parent, key = place
    value = parent[key]
    if isinstance(value, str) and (found := _QUANTITY.fullmatch(value)):
        number, blank, unit = found.groups()
        parent[key] = draw.choice((f"{draw.choice(_FACTORS)}{blank}{unit}", f"{number}{blank}{draw.choice(_UNITS)}"))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = draw.choice(
            (value + 1, value - 1, -value, value * 1000, value // 2 if value else 1, value * 10**12)
        )
    elif isinstance(value, bool):
        parent[key] = not value
    else:
        parent[key] = edge_value(draw)


def _retype(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    """Write a value as another type."""
    parent, key = place
    value = parent[key]
    if isinstance(value, dict):
        parent[key] = draw.choice((list(value.values()), list(value), [value], str(value)[:100]))
    elif isinstance(value, list):
        parent[key] = draw.choice((dict(enumerate(map(str, value))), value[0] if value else None, [value]))
        if isinstance(parent[key], dict):
            parent[key] = {str(name): part for name, part in parent[key].items()}
    else:
        parent[key] = draw.choice((str(value), [value], {"value": value}, None))


def _move(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    """Copy a value from another place of the same document: names that refer to themselves, doubled names."""
    other = _place(document, draw)
    if other is not None:
        place[0][place[1]] = copy.deepcopy(other[0][other[1]])


def _same_key(document: Any, place: _Place, draw: Random, vocabulary: Vocabulary) -> None:
    """Give a value the one that the same key has elsewhere in the document."""
    values = [value for key, value in _pairs(document) if key == place[1]]
    if values:
        place[0][place[1]] = copy.deepcopy(draw.choice(values))


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """All keys of a document with their values, at most some thousands."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < 3000:
        here = waiting.pop()
        parts = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        for key, part in parts:
            found.append((key, part))
            waiting.append(part)
    return found


_CHANGES: tuple[Callable[[Any, _Place, Random, Vocabulary], None], ...] = (
    *(_drop, _double, _rename, _edge, _likely, _graft, _scale, _retype, _move, _same_key),
)
_WEIGHTS = (8, 6, 5, 16, 16, 8, 22, 7, 6, 6)

# -- tables ----------------------------------------------------------------------------------------------------------


def changed_table(text: str, draw: Random, *, separator: str | None) -> str:
    """Return a table with changed cells, rows or columns; ``separator`` None: columns are parted by blanks."""
    lines = [line.split(separator) for line in text.splitlines()]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if lines:
            draw.choices((_cell, _row, _column), (7, 2, 2))[0](lines, draw)
    return "\n".join((separator or "  ").join(line) for line in lines) + "\n"


def _cell(lines: list[list[str]], draw: Random) -> None:
    line = draw.choice(lines)
    if not line:
        return
    index = draw.randrange(len(line))
    cell = line[index]
    other = draw.choice(draw.choice(lines) or [""])
    line[index] = draw.choice((other, cell[1:], f"-{cell}", f"{cell}0", f"{cell}e300", str(edge_value(draw))[:5000]))


def _row(lines: list[list[str]], draw: Random) -> None:
    index = draw.randrange(len(lines))
    kind = draw.randrange(5)
    if kind == 0:
        del lines[index]
    elif kind == 1:
        lines[index:index] = [list(lines[index]) for _ in range(draw.choice((1, 1, 50)))]
    elif kind == 2:
        lines[index] = lines[index][:-1] if draw.random() < 0.5 else [*lines[index], str(edge_value(draw))[:100]]
    elif kind == 3:
        other = draw.randrange(len(lines))
        lines[index], lines[other] = lines[other], lines[index]
    else:
        lines[index] = lines[index][1:] + lines[index][:1]


def _column(lines: list[list[str]], draw: Random) -> None:
    width = max(map(len, lines))
    index, other = draw.randrange(max(width, 1)), draw.randrange(max(width, 1))
    kind = draw.randrange(4)
    for line in lines:
        if index >= len(line) or other >= len(line):
            continue
        if kind == 0:
            del line[index]
        elif kind == 1:
            line.insert(other, line[index])
        elif kind == 2:
            line[index], line[other] = line[other], line[index]
        else:
            line[index] = str(draw.choice(_NUMBERS))


# -- text and bytes --------------------------------------------------------------------------------------------------


def changed_lines(text: str, draw: Random) -> str:
    """Return text with changed lines, words or numbers."""
    lines = text.split("\n")
    for _ in range(draw.choice((1, 1, 2, 4))):
        index = draw.randrange(len(lines))
        kind = draw.randrange(7)
        if kind == 0:
            lines[index : index + draw.choice((1, 1, 5))] = []
        elif kind == 1:
            lines[index:index] = [lines[index]] * draw.choice((1, 1, 30))
        elif kind == 2:
            lines[index] = re.sub(r"\d[\d.]*", lambda _: str(draw.choice(_NUMBERS)), lines[index], count=1)
        elif kind == 3:
            words = lines[index].split(" ")
            words[draw.randrange(len(words))] = draw.choice(_TEXTS)
            lines[index] = " ".join(words)
        elif kind == 4:
            lines[index] = draw.choice((" " * 3, "\t", "- ", "# ")) + lines[index]
        elif kind == 5:
            lines[index] = lines[index][: draw.randrange(len(lines[index]) + 1)]
        else:
            other = draw.randrange(len(lines))
            lines[index], lines[other] = lines[other], lines[index]
        if not lines:
            lines = [""]
    return "\n".join(lines)


def changed_bytes(data: bytes, draw: Random) -> bytes:
    """Return bytes with flips, cuts, insertions, or another encoding."""
    if not data:
        return bytes([draw.randrange(256)])
    found = bytearray(data)
    kind = draw.randrange(9)
    at = draw.randrange(len(found))
    if kind < 3:
        for _ in range(draw.choice((1, 1, 2, 8, 64))):
            found[draw.randrange(len(found))] = draw.randrange(256)
    elif kind == 3:
        del found[at:]
    elif kind == 4:
        del found[at : at + draw.randrange(1, 64)]
    elif kind == 5:
        found[at:at] = draw.choice((b"\0", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\r", b"\x1b[2J", b"\xe2\x80\xa8"))
    elif kind == 6:
        found[at:at] = found[max(0, at - draw.randrange(1, 2000)) : at]
    elif kind == 7:
        text = data.decode("utf-8", errors="replace")
        return draw.choice(
            (
                b"\xef\xbb\xbf" + data,
                text.replace("\n", "\r\n").encode("utf-8", errors="replace"),
                text.encode("utf-16", errors="replace"),
                text.encode("latin-1", errors="replace"),
                data + b"\n" * 1000,
            )
        )
    else:
        found += bytes(draw.randrange(256) for _ in range(40))
    return bytes(found)
