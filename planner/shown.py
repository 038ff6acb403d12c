"""What a notebook or a script asks of an object; who shows it is said by :mod:`planner`, which knows all rooms."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from planner.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd


def row_of(part: Mapping[str, object], before: str = "") -> dict[str, object]:
    """Return what has one value, by its column: that of a mapping within is ``name.key``; lists have no column.

    >>> row_of({"name": "a", "memory_bytes": {"total": 3.0}, "values": [1, 2]})
    {'name': 'a', 'memory_bytes.total': 3.0}
    """
    found: dict[str, Any] = {}
    for key, value in part.items():
        if isinstance(value, Mapping):
            found |= row_of(value, f"{before}{key}.")
        elif not isinstance(value, list | tuple):
            found[f"{before}{key}"] = value
    return found


def document_of(part: object, *names: str) -> dict[str, object]:
    """Return attributes by their names as plain data; none named: all fields of a dataclass, in their order.

    Tuples are lists, parts with a document of their own (``to_document``, ``to_dict``) that, other dataclasses the
    document of their fields.

    >>> document_of(2 + 1j, "real", "imag")
    {'real': 2.0, 'imag': 1.0}
    """
    if not names and is_dataclass(part):
        names = tuple(one.name for one in fields(part))
    return {name: _plain(getattr(part, name)) for name in names}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Enum):
        return value.value
    for own in ("to_document", "to_dict"):
        if hasattr(value, own):
            return getattr(value, own)()
    return document_of(value) if is_dataclass(value) else value


class Shown:
    """An object that a notebook shows as HTML."""

    __slots__ = ()
    renderer: ClassVar[Callable[[object], str]]

    def _repr_html_(self) -> str:
        """Return a title, some lines and some small tables."""
        return Shown.renderer(self)


class Recorded:
    """An answer as plain data: one document, or rows of a table.

    ``tables``: keys of the document whose lists are the rows, each of its kind; none: the document is one row.
    """

    __slots__ = ()
    tables: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the whole answer as its document, of numbers, texts, lists and mappings."""
        raise NotImplementedError  # each answer says it

    def to_records(self) -> list[dict[str, object]]:
        """Return the rows of a table; a row lacks the columns of which nothing is known."""
        document = self.to_dict()
        if not self.tables:
            return [row_of(document)]
        return [{"kind": table, **row_of(row)} for table in self.tables for row in document[table]]

    def to_frame(self) -> "pd.DataFrame":
        """Return the rows of :meth:`to_records` as a table of pandas.

        Raises
        ------
        SpecError
            If pandas is not installed: no part of this program needs it.
        """
        try:
            import pandas as pd  # noqa: PLC0415  # an optional part
        except ImportError:
            text = "to_frame needs pandas, which is not installed. Run `python -m pip install pandas`, or take "
            raise SpecError(f"{text}to_records(), which has the same rows.") from None
        return pd.DataFrame.from_records(self.to_records())
