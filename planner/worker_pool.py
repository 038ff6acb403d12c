"""A worker pool that helps with one large search: tasks are worked on elsewhere, and come back in any order.

A task is a pure function of what it is given, so that it does not matter who works on it, when, or whether twice. What
all tasks of a search have in common, its *origin*, is pickled once; a worker keeps what it makes. Searches know this
much alone; :mod:`planner.workers` has the pool of Dask's workers.
"""

import copyreg
import hashlib
import io
import pickle
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from planner.frozen import frozen

_LEVEL = 1  # of compression: an origin becomes a fifth, in milliseconds


@frozen(kw_only=False)
class FailedTask:
    """What comes back of a task that could not be worked on, with the reason.

    ``is_gone``: since no worker is left; whoever asked may do it instead.
    """

    why: str
    is_gone: bool = False


@frozen(kw_only=False)
class Origin:
    """What the tasks of a search have in common, as bytes: whatever the callable in it returns."""

    digest: str
    content: bytes

    @classmethod
    def of(cls, make: Callable[[], object]) -> "Origin | None":
        """Return the origin that makes something; None where it cannot travel, as with a function of the user's."""
        try:
            content = packed(make)
        except (pickle.PicklingError, AttributeError, TypeError):
            return None
        return cls(digest=hashlib.sha256(content).hexdigest(), content=content)

    def made(self) -> object:
        """Return what it makes."""
        return unpacked(self.content)()


class WorkerPool(Protocol):
    """Works on tasks. No method waits longer than it is told to."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for whoever asked."""
        ...

    @property
    def alone_s(self) -> float:
        """CPU seconds that a search should work alone before it asks: less once the workers are there."""
        ...

    def is_worth(self, left_s: float) -> bool:
        """Whether workers are wanted for so many CPU seconds of a search: to start them takes some, too."""
        ...

    @property
    def share_s(self) -> float:
        """CPU seconds after which a task gives back what is left of it, where it can."""
        ...

    def room(self) -> int:
        """Return how many more tasks are wanted now; 0 for good where no worker is left."""
        ...

    def submit(self, function: Callable[..., object], origin: Origin, arguments: Sequence[object]) -> int:
        """Take a task, ``function(made, *arguments)`` with what the origin makes; return its number."""
        ...

    def poll(self, wait_s: float, wanted: Container[int]) -> list[tuple[int, Any]]:
        """Return what has come back since of tasks that are wanted, by number, waiting for the first a while.

        :class:`FailedTask` for what never will. What others wait for is kept for them.
        """
        ...

    def tell(self, note: str) -> None:
        """Keep a note for whoever asked, once."""
        ...


def _proxy(content: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a mapping that cannot be changed: pickle does not know it, and makes it by this function."""
    return MappingProxyType(dict(content))


def packed(thing: object) -> bytes:
    """Return something as bytes, between processes that trust each other."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, MappingProxyType: lambda proxy: (_proxy, (dict(proxy),))}
    pickler.dump(thing)
    return zlib.compress(stream.getvalue(), _LEVEL)


def unpacked(content: bytes) -> Any:
    """Return what was packed."""
    return pickle.loads(zlib.decompress(content))  # our own bytes
