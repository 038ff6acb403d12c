"""Numbers that depend on a few whole numbers of a layout: worked out when they are asked for first, and kept.

A search asks for the same layers again and again: at several levels of its grid, in cuts beside even layouts, and in
the questions that a recommendation asks. What is kept changes no number, only how often it is worked out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.models.layouts import Ints

_LEFT_BITS = 17  # of each number before the last ones, which have:
_RIGHT_BITS = (17, 24, 1)
_MOST_LEFT = 1 << 20  # combinations of the first numbers
_MOST_KEPT = 1 << 18  # columns


class KnownColumns:
    """Columns of numbers, each of six whole numbers, the last one 0 or 1.

    Parameters
    ----------
    num_rows
        Numbers in a column.
    """

    def __init__(self, num_rows: int) -> None:
        self._left: dict[int, int] = {}
        self._codes, self._places = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._rows = np.zeros((num_rows, 0))

    def of(self, numbers: Sequence[NDArray[Any]], worked_out: Callable[[Ints], Floats]) -> Floats:
        """Return the column of each combination, shape (rows, n).

        Parameters
        ----------
        numbers
            Six arrays of shape (n,), no combination twice.
        worked_out
            Gives the columns of some of the combinations, by their places; asked for those that are missing.
        """
        codes = self._codes_of(numbers)
        if codes is None:
            return worked_out(np.arange(len(numbers[0])))
        found = np.searchsorted(self._codes, codes)
        is_new = np.ones(len(codes), dtype=bool)
        within = found < len(self._codes)
        is_new[within] = self._codes[found[within]] != codes[within]
        if is_new.any():
            new = np.flatnonzero(is_new)
            columns = worked_out(new)
            if len(self._codes) + len(new) > _MOST_KEPT:
                return columns if len(new) == len(codes) else worked_out(np.arange(len(codes)))
            self._add(codes[new], columns)
            found = np.searchsorted(self._codes, codes)
        return np.asarray(self._rows[:, self._places[found]])

    def _add(self, codes: Ints, columns: Floats) -> None:
        """Keep more columns."""
        places = np.arange(self._rows.shape[1], self._rows.shape[1] + len(codes))
        self._rows = np.concatenate([self._rows, columns], axis=1)
        codes, places = np.concatenate([self._codes, codes]), np.concatenate([self._places, places])
        order = np.argsort(codes, kind="stable")
        self._codes, self._places = codes[order], places[order]

    def _codes_of(self, numbers: Sequence[NDArray[Any]]) -> Ints | None:
        """Return one number of each combination; None where some are too large for that, or in fractions."""
        columns = [np.asarray(one).astype(np.int64) for one in numbers]
        if any((one != given).any() for one, given in zip(columns, numbers, strict=True)):
            return None
        left, right = columns[: -len(_RIGHT_BITS)], columns[-len(_RIGHT_BITS) :]
        limits = [1 << _LEFT_BITS] * len(left) + [1 << bits for bits in _RIGHT_BITS]
        if any(
            one.max(initial=0) >= limit or one.min(initial=0) < 0 for one, limit in zip(columns, limits, strict=True)
        ):
            return None
        first = np.zeros(len(columns[0]), dtype=np.int64)
        for one in left:
            first = first << _LEFT_BITS | one
        present, back = np.unique(first, return_inverse=True)
        code = np.array([self._left.setdefault(one, len(self._left)) for one in present.tolist()], dtype=np.int64)
        if len(self._left) >= _MOST_LEFT:
            return None
        code = code[back]
        for one, bits in zip(right, _RIGHT_BITS, strict=True):
            code = code << bits | one
        return code
