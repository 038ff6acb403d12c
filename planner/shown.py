"""What a notebook asks of an object; who answers is said by :mod:`planner`, which knows all rooms."""

from collections.abc import Callable
from typing import ClassVar

__all__ = ["Shown"]


class Shown:
    """An object that a notebook shows as HTML."""

    __slots__ = ()
    renderer: ClassVar[Callable[[object], str]]

    def _repr_html_(self) -> str:
        """Return a title, some lines and some small tables."""
        return Shown.renderer(self)
