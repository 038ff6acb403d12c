"""What stands in files of figures, each of which names its source."""

from typing import Any

from planner.units import Dimension, parse


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    """All that is no mapping or list, with its place."""
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else None
    return [(path, data)] if parts is None else [leaf for key, part in parts for leaf in leaves(part, (*path, key))]


def is_quantity(value: object) -> bool:
    """Whether it is a number, with a unit or without."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    return not isinstance(value, str) or any(_is_of(value, dimension) for dimension in Dimension)


def _is_of(text: str, dimension: Dimension) -> bool:
    try:
        parse(text, dimension)
    except ValueError:
        return False
    return True
