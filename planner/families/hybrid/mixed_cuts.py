"""Other cuts of the layers than the one whose slowest stage is quickest: all of them where they are few, or near ones.

The cut whose slowest stage is quickest is the best of many micro-batches, and nearly so of few: there a longer first
stage may be worth its seconds. A setting is all decisions but the cut.

- **Few cuts** (:func:`has_few_cuts`): the exact seconds of every cut, but for those whose bound is above the best.
- **Many**: :func:`improved` moves one layer from one stage to another, the best of all pairs each time, as long as that
  makes the step shorter. What it ends with is no worse than any neighbour; it is not proven to be the best of all cuts.

A cut is written as columns ``layers_0 .. layers_(p-1)`` beside the other decisions.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations, permutations
from math import comb

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Ints
from planner.search import Search

__all__ = ["all_cuts", "cut_columns", "cut_of", "few_bounds_s", "few_cuts", "has_few_cuts", "improved"]

Columns = Mapping[str, Ints]
Seconds = Callable[[Columns], Floats]
_MOST_FEW = 2_000  # stages of all cuts of a setting together
_MOST_CELLS = 200_000  # stages in one array
_MOST_TASKS = 20_000_000  # stages times micro-batches that one improvement may evaluate: about a second
_MOST_NEIGHBOURS = 20_000_000  # stages of all near cuts of one setting
_AT_ONCE = 32  # cuts evaluated together, the most hopeful ones first
_GAIN = 1e-9  # relative; less is rounding


@lru_cache(maxsize=4_096)
def has_few_cuts(layers: int, stages: int) -> bool:
    """Whether all cuts of so many layers are tried."""
    if 1 < stages < layers and stages * (layers - 1) > _MOST_FEW:  # there is a cut for each place of one boundary
        return False
    return 1 < stages <= layers and stages * comb(layers - 1, stages - 1) <= _MOST_FEW


@lru_cache(maxsize=64)
def all_cuts(layers: int, stages: int) -> Ints:
    """Return all cuts of layers into stages of one or more, shape (stages, cuts)."""
    number = comb(layers - 1, stages - 1)
    ends = np.array(list(combinations(range(1, layers), stages - 1)), dtype=np.int64).reshape(number, stages - 1)
    return np.diff(ends, axis=1, prepend=0, append=layers).T


def cut_columns(layers: Ints) -> dict[str, Ints]:
    """Return cuts of shape (p, n) as columns."""
    return {f"layers_{stage}": row for stage, row in enumerate(layers)}


def cut_of(columns: Columns) -> Ints | None:
    """Return the cuts that columns hold, shape (p, n); None where they hold none."""
    names = [name for name in columns if name.startswith("layers_")]
    return np.array([columns[f"layers_{stage}"] for stage in range(len(names))]) if names else None


def few_bounds_s(columns: Columns, stages: Ints, layers: int, bound_s: Seconds) -> tuple[Ints, Floats]:
    """Return which layouts have few cuts, and the least bound of all cuts of each."""
    found = [
        (some, bound_s(each).reshape(len(some), -1).min(axis=1)) for some, _, each in _each(columns, stages, layers)
    ]
    if not found:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    return np.concatenate([one for one, _ in found]), np.concatenate([least for _, least in found])


def few_cuts(columns: Columns, stages: Ints, layers: int, bound_s: Seconds, seconds: Seconds) -> tuple[Ints, Ints]:
    """Return which layouts have few cuts, and the best cut of each, shape (p, number); of equal ones the first."""
    which, best = [], []
    for some, cuts, each in _each(columns, stages, layers):
        least = bound_s(each).reshape(len(some), -1)
        found = np.full(least.shape, np.inf)
        hopeful = np.isfinite(least) & (least == least.min(axis=1, keepdims=True))
        for _ in range(2):  # the most hopeful cut, and then those that may be better still
            at = np.flatnonzero(hopeful)
            if len(at):
                found.flat[at] = seconds({name: column[at] for name, column in each.items()})
            hopeful = (least < found.min(axis=1, keepdims=True)) & np.isinf(found)
        which.append(some)
        best.append(np.pad(cuts[:, found.argmin(axis=1)], ((0, int(stages.max()) - len(cuts)), (0, 0))))
    if not which:
        return np.zeros(0, dtype=np.int64), np.zeros((int(stages.max(initial=1)), 0), dtype=np.int64)
    return np.concatenate(which), np.concatenate(best, axis=1)


def _each(columns: Columns, stages: Ints, layers: int) -> Iterator[tuple[Ints, Ints, dict[str, Ints]]]:
    """Yield some layouts with few cuts, of as many stages each: their places, the cuts, and each with each cut."""
    for number in np.unique(stages).tolist():
        if not has_few_cuts(layers, number):
            continue
        cuts, places = all_cuts(layers, number), np.flatnonzero(stages == number)
        for some in np.array_split(places, -(-len(places) * cuts.size // _MOST_CELLS)):
            each = {name: np.repeat(column[some], cuts.shape[1]) for name, column in columns.items()}
            yield some, cuts, {**each, **cut_columns(np.tile(cuts, (1, len(some))))}


def improved(
    point: Mapping[str, int],
    layers: Ints,
    num_microbatches: int,
    bound_s: Seconds,
    seconds: Seconds,
    search: Search,
    cutoff_s: float = np.inf,
) -> tuple[float, Ints, int]:
    """Return the seconds of a cut after single layers were moved while that helps, the cut, and how many were asked.

    Parameters
    ----------
    point
        All decisions but the cut.
    layers
        The first cut, of shape (p,).
    bound_s, seconds
        Of columns with cuts; infinite where one does not fit.
    cutoff_s
        Of a cut that is known: a first move that is no better is not made.

    Stops early once it has evaluated ``_MOST_TASKS`` tasks: counted, so that the answer is the same on every machine;
    or when the search is over.
    """

    def told(cuts: Ints) -> dict[str, Ints]:
        return {**{name: np.full(cuts.shape[1], value) for name, value in point.items()}, **cut_columns(cuts)}

    best_s, asked = min(float(seconds(told(layers[:, None]))[0]), cutoff_s), 1
    left = _MOST_TASKS // (len(layers) * max(num_microbatches, 1))
    while asked < left and not search.is_over:
        if len(layers) ** 3 > _MOST_NEIGHBOURS:
            break
        cuts = _neighbours(layers)
        if not cuts.size:
            break
        least = np.concatenate([bound_s(told(cuts[:, some])) for some in _parts(cuts)])
        order = np.argsort(least, kind="stable")
        found_s, found = best_s, layers
        for start in range(0, len(order), _AT_ONCE):
            some = order[start : start + _AT_ONCE]
            some = some[least[some] < found_s * (1 - _GAIN)]
            if not len(some) or asked >= left or search.is_over:
                break
            exact = seconds(told(cuts[:, some]))
            asked += len(some)
            if exact.min() < found_s * (1 - _GAIN):
                found_s, found = float(exact.min()), cuts[:, some[exact.argmin()]]
        if found is layers:
            break
        best_s, layers = found_s, found
    return best_s, layers, asked


def _neighbours(layers: Ints) -> Ints:
    """Return all cuts with one layer moved from one stage to another, shape (p, number)."""
    pairs = [(one, other) for one, other in permutations(range(len(layers)), 2) if layers[one] > 1]
    found = np.repeat(layers[:, None], len(pairs), axis=1)
    for place, (one, other) in enumerate(pairs):
        found[one, place] -= 1
        found[other, place] += 1
    return found


def _parts(cuts: Ints) -> list[Ints]:
    """Return the places of cuts, some at a time."""
    return np.array_split(np.arange(cuts.shape[1]), -(-cuts.size // _MOST_CELLS))
