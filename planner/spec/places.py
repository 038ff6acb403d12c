"""Where the parts of a file stand, so that a fault can name its line and column."""

import json
import re
from collections.abc import Iterator
from typing import Protocol

from planner.yaml_text import Place

__all__ = ["JsonPlaces", "Place", "Places"]


class Places(Protocol):
    """Line and column of the parts of a file, by their keys and indices from the outermost on."""

    def get(self, place: Place, /) -> tuple[int, int] | None:
        """Return those of a part, None where there is none."""

    def __getitem__(self, place: Place, /) -> tuple[int, int]: ...

    def __contains__(self, place: object, /) -> bool: ...


class JsonPlaces:
    """Lines and columns in JSON text, found where they are asked for: most files have no fault to place.

    The parts of a mapping or a list are found once, by the reader of the standard library, which is fast.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._inside: dict[Place, dict[str | int, tuple[int, int]]] = {}

    def get(self, place: Place, /) -> tuple[int, int] | None:
        """Return line and column of a part, None where there is none."""
        try:
            return self[place]
        except LookupError:
            return None

    def __getitem__(self, place: Place, /) -> tuple[int, int]:
        found = self._parts_of(place[:-1])[place[-1]]
        return self._text.count("\n", 0, found[0]) + 1, found[0] - self._text.rfind("\n", 0, found[0])

    def __contains__(self, place: object, /) -> bool:
        return isinstance(place, tuple) and bool(place) and place[-1] in self._parts_of(place[:-1])

    def _parts_of(self, place: Place) -> dict[str | int, tuple[int, int]]:
        """Return where each part of a mapping or a list begins, and its value; empty where it is neither."""
        if place not in self._inside:
            start = self._parts_of(place[:-1]).get(place[-1], (0, -1))[1] if place else _skipped(self._text, 0)
            self._inside[place] = {} if start < 0 else dict(self._parts(start))
        return self._inside[place]

    def _parts(self, at: int) -> Iterator[tuple[str | int, tuple[int, int]]]:
        """Yield every part's key or index, its place, and its value's place."""
        text, index = self._text, 0
        end = {"{": "}", "[": "]"}.get(text[at])
        at = _skipped(text, at + 1)
        while end and text[at] != end:
            key: str | int = index
            begin = at
            if end == "}":
                key, at = _DECODER.raw_decode(text, at)
                at = _skipped(text, _skipped(text, at) + 1)
            yield key, (begin, at)
            at = _skipped(text, _DECODER.raw_decode(text, at)[1])
            at, index = (_skipped(text, at + 1) if text[at] == "," else at), index + 1


_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")


def _skipped(text: str, at: int) -> int:
    """Return the place of the next character that is no blank."""
    found = _BLANKS.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()
