r"""Text of others made harmless, in one place: letters that a terminal obeys or nobody sees, cells that a table runs.

Names are spelled out once, where they enter: in a spec (:data:`planner.question.values.Name`), in files of
other programs
(:mod:`planner.question.dnn`), in tables and plans. Behind that every name can be printed, and written into any file.
What is spelled out already stays as it is, so that a plan is read back with the names that it was written with. Names
that are equal only then are refused, as every name that stands twice.
"""

import json
import re
from typing import TypeVar, cast

T = TypeVar("T")

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


def visible(text: str, *, keep: str = "") -> str:
    r"""Return text whose letters can all be printed: controls, marks of direction and the like are spelled out.

    Parameters
    ----------
    keep
        Letters that stay: line feeds of a text of several lines.

    >>> visible("a\x1b[31m\u202eb\u2028\ud800"), visible("two\nlines", keep="\n"), visible("Größe")
    ('a\\x1b[31m\\u202eb\\u2028\\ud800', 'two\nlines', 'Größe')
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else ascii(one)[1:-1] for one in text)


def visible_data(data: T, *, but: str | None = None) -> T:
    r"""Return plain data with :func:`visible` texts, keys among them; what stands under a key ``but`` as it is.

    >>> visible_data({"a\x07": ["b\x07", 1]})
    {'a\\x07': ['b\\x07', 1]}
    """
    found: object = data
    if isinstance(data, str):
        found = visible(data, keep="\n")
    elif isinstance(data, dict):
        parts = data.items()
        found = {visible_data(key): part if key == but else visible_data(part, but=but) for key, part in parts}
    elif isinstance(data, list):
        found = [visible_data(one, but=but) for one in data]
    return cast("T", found)


def table_cell(value: object) -> object:
    """Return a cell of a table that no spreadsheet takes for a formula; numbers stay numbers, negative ones too.

    >>> table_cell("=1+1"), table_cell("-1.5"), table_cell(-1.5), table_cell("@x"), table_cell("name")
    ("'=1+1", '-1.5', -1.5, "'@x", 'name')
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def visible_json(text: str) -> str:
    r"""Return JSON that says the same, and in which every letter can be printed: by JSON's own escapes.

    >>> visible_json('{"a": "\u202e\x7f\U000e0001"}')
    '{"a": "\\u202e\\u007f\\udb40\\udc01"}'
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return _NOT_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)
