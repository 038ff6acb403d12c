"""Places in a question, ``cluster.machines.0.network``: read, checked against what a question may say, and filled."""

import re
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

__all__ = ["FieldPath", "accepts", "field_path", "names_at", "path_text", "with_value"]

FieldPath = tuple[str | int, ...]

_PART = re.compile(r'"([^"]+)"|([^."\[\]]+)|\[(\d+)\]')
_MOST_PARTS = 32


def field_path(text: str) -> FieldPath:
    """Return the parts of a path: keys between dots, places in lists as numbers, odd keys in double quotes.

    Raises
    ------
    ValueError
        If it is none.

    >>> field_path('procure.quotas."p4d.*"'), field_path("cluster.machines[0].count")
    (('procure', 'quotas', 'p4d.*'), ('cluster', 'machines', 0, 'count'))
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at + (1 if parts and text[at] == "." else 0))
        is_joined = found is not None and (not parts or text[at] == "." or text[at] == "[")
        if found is None or not is_joined or len(parts) >= _MOST_PARTS:
            raise ValueError(
                f"{text!r} is no path. Write keys with dots between them, e.g. cluster.machines.0.network."
            )
        quoted, plain, place = found.groups()
        number = place if place is not None else plain if plain is not None and plain.isdecimal() else None
        parts.append(quoted or plain if number is None else int(number[:9]))
        at = found.end()
    if not parts or isinstance(parts[0], int):
        raise ValueError(f"{text!r} is no path. Write keys with dots between them, e.g. cluster.machines.0.network.")
    return tuple(parts)


def path_text(path: FieldPath) -> str:
    """Return a path as it is written."""
    return ".".join(f'"{part}"' if isinstance(part, str) and not part.isidentifier() else str(part) for part in path)


def with_value(data: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return data with a value at a path, sharing all that does not change; blocks on the way that lack are made.

    Raises
    ------
    ValueError
        If a part on the way is of the wrong kind, or a list has no such place.
    """
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(head, int):
        if not isinstance(data, list) or head >= len(data):
            size = f"a list of {len(data)}" if isinstance(data, list) else "no list"
            raise ValueError(f"place {head} is asked for, and there is {size}.")
        return [*data[:head], with_value(data[head], rest, value), *data[head + 1 :]]
    if data is not None and not isinstance(data, dict):
        raise ValueError(f"{head!r} is asked for, and there is no block of keys.")
    known = data or {}
    return {**known, head: with_value(known.get(head), rest, value)}


def accepts(kind: Any, path: Sequence[str | int]) -> bool:
    """Return whether a type of a question's model has a place for a path."""
    return any(True for _ in _kinds_at(kind, path))


def names_at(kind: Any, path: Sequence[str | int]) -> list[str]:
    """Return the keys that a block at a path may have."""
    found = _kinds_at(kind, path)
    return sorted({name for one in found if _is_model(one) for name in one.model_fields})


def _kinds_at(kind: Any, path: Sequence[str | int]) -> list[Any]:
    """Return all types that may stand at a path below a type, without unions and annotations."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _kinds_at(get_args(kind)[0], path)
    if origin in (Union, types.UnionType):
        return [found for part in get_args(kind) for found in _kinds_at(part, path)]
    if not path or kind is Any:
        return [kind]
    head, rest = path[0], path[1:]
    if origin in (list, tuple, Sequence):
        return _kinds_at(get_args(kind)[0], rest) if isinstance(head, int) else []
    if origin in (dict, Mapping):
        return _kinds_at(get_args(kind)[1], rest) if isinstance(head, str) else []
    if _is_model(kind) and head in kind.model_fields:
        return _kinds_at(kind.model_fields[head].annotation, rest)
    return []


def _is_model(kind: Any) -> bool:
    """Return whether a type is a block of keys."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)
