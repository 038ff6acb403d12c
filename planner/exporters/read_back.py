"""Numbers of a file that is read back, checked: whole, and at least 1."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError

__all__ = ["count_of", "json_of", "rows_of"]

_MEND = "Give a file as `planner export` wrote it."


def json_of(path: Path, text: str) -> Mapping[str, Any]:
    """Return the object that a JSON file holds; raise SpecError where it holds none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError.of([Fault(file=str(path), problem=f"this is no JSON: {error}.", mend=_MEND)]) from None
    if not isinstance(found, Mapping):
        raise SpecError.of([Fault(file=str(path), problem="this is no object of JSON.", mend=_MEND)])
    return found


def count_of(path: Path, block: Mapping[str, Any], key: str) -> int:
    """Return a whole number of at least 1; raise SpecError where there is none."""
    value = block.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        problem = f"{value!r} is not a whole number of at least 1." if key in block else "this key is missing."
        shown = repr(value)[:60] if key in block else ""
        raise SpecError.of([Fault(file=str(path), field=key, value=shown, problem=problem, mend=_MEND)])
    return value


def rows_of(path: Path, block: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of objects that is not empty; raise SpecError where there is none."""
    rows = block.get(key)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise SpecError.of([Fault(file=str(path), field=key, problem="this is no list of objects.", mend=_MEND)])
    return rows
