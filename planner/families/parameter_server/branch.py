"""Branch and bound over boxes of parameter-server configurations, in the order of their lower bounds."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf

import numpy as np

from planner.errors import NoAnswerError
from planner.families.answer import TOO_SHORT
from planner.families.parameter_server.bounds import lower_bounds
from planner.families.parameter_server.boxes import Boxes, root, split, tightened
from planner.families.parameter_server.solve import Incumbents
from planner.families.parameter_server.space import Site, Space

__all__ = ["first_rows", "roots_of", "search_boxes"]

_MOST_BOXES = 60_000  # that are looked at
_MOST_SOLVED = 600  # configurations whose placement is solved
_AT_A_TIME = 48  # boxes split together
_FEW = 64  # configurations of which some one is given where the time was over before any was solved
_FIRST = 8  # configurations solved before any box is split


def roots_of(space: Space, num_servers: int | None = None) -> list[tuple[int, Boxes]]:
    """Return the boxes of all configurations, by site."""
    roots = [(index, tightened(space, site, root(space, site, num_servers))) for index, site in enumerate(space.sites)]
    return [(index, boxes) for index, boxes in roots if len(boxes)]


def search_boxes(
    incumbents: Incumbents,
    roots: Iterable[tuple[int, Boxes]],
    most_boxes: int = _MOST_BOXES,
    most_solved: int = _MOST_SOLVED,
    told: Callable[[float, float], None] | None = None,
) -> float:
    """Solve configurations until nothing is better than the incumbent, or a limit strikes; return the bound.

    ``told`` is called with bound and incumbent on the way.

    Raises
    ------
    NoAnswerError
        If the search is over before the first configuration was solved.
    """
    space, search = incumbents.space, incumbents.search
    roots = list(roots)
    heap: list[tuple[float, int, int, Boxes]] = []
    for index, boxes in roots:
        _push(incumbents, heap, index, boxes)
    _solve_first(incumbents, roots)
    first_boxes, first_solved = incumbents.num_boxes, len(incumbents.seen)
    while heap and not incumbents.useless(heap[0][0]):
        is_enough = incumbents.num_boxes - first_boxes > most_boxes or len(incumbents.seen) - first_solved > most_solved
        if search.is_over or incumbents.is_good_enough or is_enough:
            break
        if told is not None:
            told(min(heap[0][0], incumbents.open_bound, incumbents.least), incumbents.least)
        for index, boxes in _popped(incumbents, heap):
            points = boxes.are_points
            for row, bound in zip(
                boxes.low[points].tolist(),
                lower_bounds(space, space.sites[index], boxes.of(points)).tolist(),
                strict=True,
            ):
                if bound == inf:
                    continue
                if not incumbents.useless(bound) and not (search.is_over and incumbents.found):
                    incumbents.solve(index, row, bound)
                else:
                    incumbents.open_bound = min(incumbents.open_bound, bound)
            if not points.all():
                site = space.sites[index]
                _push(incumbents, heap, index, tightened(space, site, split(space, site, boxes.of(~points))))
    if not incumbents.found and (heap or roots) and search.is_over:
        raise NoAnswerError(TOO_SHORT)
    left = heap[0][0] if heap else float("inf")
    return min(left, incumbents.open_bound, incumbents.least)


def _push(incumbents: Incumbents, heap: list[tuple[float, int, int, Boxes]], index: int, boxes: Boxes) -> None:
    """Put boxes on the heap, each with its bound, but those that cannot hold anything better."""
    if not len(boxes):
        return
    bounds = lower_bounds(incumbents.space, incumbents.space.sites[index], boxes)
    for one, bound in enumerate(bounds.tolist()):
        incumbents.num_boxes += 1
        if bound == inf:  # nothing in it is possible: its servers saturate the switch
            continue
        if incumbents.useless(bound):
            incumbents.open_bound = min(incumbents.open_bound, bound)
        else:
            heapq.heappush(heap, (bound, incumbents.num_boxes, index, boxes.of(np.array([one]))))


def _popped(incumbents: Incumbents, heap: list[tuple[float, int, int, Boxes]]) -> list[tuple[int, Boxes]]:
    """Return the boxes of the least bounds, together by site; fewer where one of them is a single configuration."""
    taken: dict[int, list[Boxes]] = {}
    for _ in range(_AT_A_TIME):
        if not heap or incumbents.useless(heap[0][0]):
            break
        _, _, index, boxes = heapq.heappop(heap)
        taken.setdefault(index, []).append(boxes)
        if boxes.are_points.any():
            break
    return [(index, Boxes.together(parts)) for index, parts in taken.items()]


def _solve_first(incumbents: Incumbents, roots: Sequence[tuple[int, Boxes]]) -> None:
    """Solve the most promising of some configurations all over the boxes, so that boxes can be left out early."""
    space, search = incumbents.space, incumbents.search
    candidates: list[tuple[float, int, tuple[int, ...]]] = []
    for index, boxes in roots:
        if candidates and search.is_late:
            break
        candidates += _bounded(space, index, list(search.watch(_spread(space, space.sites[index], boxes))))
    for number, (bound, index, row) in enumerate(sorted(set(candidates))):
        is_over = incumbents.search.is_over or incumbents.is_good_enough or number >= _FIRST
        if incumbents.found and (is_over or incumbents.useless(bound)):
            break
        incumbents.solve(index, row, bound)


def first_rows(space: Space) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield a few configurations at once, each with its site, the most promising first."""
    found = []
    for index, boxes in roots_of(space):
        rows = list(islice(_spread(space, space.sites[index], boxes), max(4, _FEW // len(space.sites))))
        found += _bounded(space, index, rows)
    yield from ((index, row) for _, index, row in sorted(found))


def _bounded(space: Space, index: int, rows: Sequence[Sequence[int]]) -> list[tuple[float, int, tuple[int, ...]]]:
    """Return those of the configurations on a site that are possible, each after its bound and its site."""
    if not rows:
        return []
    low = np.array(rows, dtype=np.int64)
    points = tightened(space, space.sites[index], Boxes(low, low.copy()))
    points = points.of(points.are_points)
    bounds = lower_bounds(space, space.sites[index], points) if len(points) else np.zeros(0)
    rows_and_bounds = zip(bounds.tolist(), points.low.tolist(), strict=True)
    return [(bound, index, tuple(row)) for bound, row in rows_and_bounds if bound < inf]


def _spread(space: Space, site: Site, boxes: Boxes) -> Iterator[list[int]]:
    """Yield configurations with few and many servers and workers, on shares that are about as fast on every group."""
    k_low, k_high, w_low, w_high, _, _ = boxes.parts
    least, most = int(k_low.min()), int(k_high.max())
    servers = sorted({*(k for e in range(20) if least <= (k := 2**e) <= most), least, most, (least + most) // 2})
    low, high = w_low.min(axis=0), w_high.max(axis=0)
    sets = [np.ones(len(high), dtype=bool), *(np.arange(len(high)) == one for one in range(len(high)))]
    sets += [np.argsort(np.argsort(space.sample_s, kind="stable")) < size for size in range(2, len(high))]
    serving = space.index_of(site)
    for chosen in sets:
        for part in (1.0, 0.75, 0.5, 0.25, 0.1, 0.0):
            workers = np.maximum(np.where(chosen, np.ceil(high * part), 0).astype(np.int64), low)
            if part == 0.0:
                workers = np.maximum(np.where(chosen, np.minimum(high, 1), 0), low)
            for number in servers:
                own = workers.copy()
                if serving >= 0 and not site.co_located:
                    own[serving] = min(own[serving], site.servers.count - number)
                elif serving >= 0 and own[serving] < number:
                    continue
                shares = space.shares_of(own) if (own >= 0).all() else None
                if shares is not None:
                    yield [number, *own.tolist(), *shares.tolist()]
