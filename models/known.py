"""Numbers that depend on a few whole numbers of a layout: worked out when they are asked for first, and kept.

A search asks for the same layers, and the bytes of the same layouts, again and again: at several levels of its grid, in
cuts beside even layouts, and in the questions that a recommendation asks. What is kept changes no number, only how
often it is worked out.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats

Ints = NDArray[np.int64]

_MOST_BYTES = 28 << 20  # that are kept
_BESIDE = 180  # bytes of a combination beside its key and its column: two objects, and their place
_NARROW = np.iinfo(np.int32)


class Known:
    """Columns of numbers by combinations of whole numbers."""

    def __init__(self) -> None:
        self._columns: dict[bytes, bytes] = {}  # of one combination each, so that threads may share them
        self._num_bytes = 0

    def of(self, numbers: Sequence[NDArray[np.generic]], worked_out: Callable[[Ints], Floats]) -> Floats:
        """Return the column of each combination, shape (rows, n).

        Parameters
        ----------
        numbers
            Arrays of shape (n,), as many each time.
        worked_out
            Gives the columns of some of the combinations, by their places; asked for those that are missing, once each.
        """
        if (keys := _keys_of(numbers)) is None:
            return worked_out(np.arange(len(numbers[0])))
        found = [*map(self._columns.get, keys)]
        if None in found:
            missing = [place for place, column in enumerate(found) if column is None]
            places = {keys[place]: place for place in reversed(missing)}  # the first of each
            columns = worked_out(np.array([*places.values()][::-1]))
            new = self._keep([*places][::-1], columns)
            if len(new) == len(keys):
                return columns
            found = [new[key] if column is None else column for key, column in zip(keys, found, strict=True)]
        rows = np.frombuffer(b"".join(cast("list[bytes]", found)))
        return rows.reshape(len(keys), -1).T.copy()

    def _keep(self, keys: Sequence[bytes], columns: Floats) -> dict[bytes, bytes]:
        """Keep columns of combinations, as far as there is room, and return them."""
        width, packed = columns.shape[0] * 8, np.ascontiguousarray(columns.T, dtype=np.float64).tobytes()
        new = dict(zip(keys, _pieces(packed, width), strict=True))
        more = len(new) * (len(keys[0]) + width + _BESIDE) if keys else 0
        if self._num_bytes + more <= _MOST_BYTES:
            self._columns.update(new)
            self._num_bytes += more
        return new


def _pieces(packed: bytes, width: int) -> list[bytes]:
    """Return bytes in pieces of one width."""
    return [packed[start : start + width] for start in range(0, len(packed), width)]


def _keys_of(numbers: Sequence[NDArray[Any]]) -> list[bytes] | None:
    """Return a key of each combination; None where some are in fractions."""
    table = np.empty((len(numbers[0]), len(numbers)), dtype=np.int64)
    for place, column in enumerate(numbers):
        table[:, place] = column
        if column.dtype.kind == "f" and (table[:, place] != column).any():
            return None
    is_narrow = not table.size or (table.min() >= _NARROW.min and table.max() <= _NARROW.max)
    packed = table.astype(np.int32) if is_narrow else table  # keys of both differ in length
    return _pieces(packed.tobytes(), packed.itemsize * len(numbers))
