"""A search of a grid that is shared out finds what one walk finds, whoever works, in whatever order."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
from grids import Case, best_of, cases, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from shuffled_pool import ShuffledPool

from planner.cost import Floats
from planner.search import Search
from planner.solution import Status
from planner.solvers.grid import (
    Axis,
    Columns,
    Grid,
    GridAnswer,
    Level,
    Turn,
    Wanted,
    _Best,
    _Box,
    _Part,
    _Shares,
    _Walk,
    solve,
    solve_in_turn,
)
from planner.worker_pool import Origin

seeds = st.integers(0, 10_000)


def made(case: Case) -> tuple[Grid, object]:
    """The grid and the cost of a case, as a worker makes them."""
    return case.grid(), case.cost


def shared(case: Case, search: Search, **options: Any) -> GridAnswer:
    """What is found with the search's worker pool."""
    return solve(case.grid(), case.cost, search, Wanted(**options), maker=partial(made, case))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Several:
    """The grids and costs of cases, as a worker makes them."""

    cases: tuple[Case, ...]

    def __call__(self, index: int, search: Search) -> tuple[Grid, Any]:
        return made(self.cases[index])


@settings(deadline=None, max_examples=60)
@given(
    several=st.lists(cases(), min_size=1, max_size=4).map(tuple),
    number=st.integers(1, 3),
    known=st.lists(st.integers(-3, 9).map(float), min_size=1, max_size=4).map(sorted),
    most=st.sampled_from([1, 2, 10_000]),
    seed=seeds,
    workers=st.integers(1, 5),
    gone_after=st.one_of(st.none(), st.integers(0, 5)),
    limit=st.one_of(st.just(inf), st.integers(-3, 9).map(float)),
)
def test_grids_that_are_searched_at_once_give_what_they_give_in_turn(
    several: tuple[Case, ...],
    number: int,
    known: list[float],
    most: int,
    seed: int,
    workers: int,
    gone_after: int | None,
    limit: float,
) -> None:
    search = Search(pool=ShuffledPool(seed, workers, gone_after=gone_after))
    turns = [
        Turn(
            index=index,
            grid=case.grid(),
            cost=case.cost,
            search=search.part(inf, cutoff=limit),
            group_by=tuple(case.names),
        )
        for index, case in enumerate(several)
    ]
    origin = Origin.of(partial(Several, several))
    assert origin is not None
    asked: list[int] = []
    answers = solve_in_turn(
        turns, search, origin, known, num_answers=number, most_at_once=most, meanwhile=lambda: asked.append(1)
    )
    for case, found in zip(several, answers, strict=False):  # the last one's end is not waited for
        cutoff = min(limit, [*known, *[inf] * number][number - 1])
        options: dict[str, Any] = {"num_answers": number, "most_at_once": most, "is_strict": True}
        alone = case.solve(Search(cutoff=cutoff), group_by=list(case.names), **options)
        rows = rows_of(alone, case)
        assert rows_of(found, case) == rows
        assert found.solution.bound == alone.solution.bound
        # Whoever takes an answer may find a better one near its best.
        known += [cost - 0.5 * (place == 0) for place, (cost, _) in enumerate(rows)]
        known.sort()
    assert len(asked) <= 1


@settings(deadline=None, max_examples=40)
@given(
    case=cases(),
    number=st.integers(1, 4),
    num_axes=st.integers(0, 3),
    most=st.sampled_from([1, 2, 10_000]),
    seed=seeds,
    workers=st.integers(1, 5),
    cutoff=st.one_of(st.just(inf), st.integers(-3, 9).map(float)),
    is_strict=st.booleans(),
)
def test_any_crew_finds_the_same_points_and_the_same_bound(
    case: Case, number: int, num_axes: int, most: int, seed: int, workers: int, cutoff: float, is_strict: bool
) -> None:
    groups = tuple(range(min(num_axes, len(case.names)))) or tuple(range(len(case.names)))
    options: dict[str, Any] = {
        "num_answers": number,
        "group_by": [f"a{index}" for index in groups],
        "most_at_once": most,
        "is_strict": is_strict,
    }
    alone = case.solve(Search(cutoff=cutoff), **options)
    pool = ShuffledPool(seed, workers)
    found = shared(case, Search(cutoff=cutoff, pool=pool), **options)
    assert rows_of(found, case) == rows_of(alone, case)
    assert (found.solution, found.num_points) == (alone.solution, alone.num_points)
    if cutoff == inf:
        assert rows_of(found, case) == best_of(case, groups)[:number]


def test_what_a_walk_has_left_is_told_from_the_nodes_behind_it_and_a_short_one_is_not_shared() -> None:
    told: list[float] = []

    class Pool(ShuffledPool):
        alone_s, least_s = 5e-3, 60.0

        def is_worth(self, left_s: float) -> bool:
            told.append(left_s)
            return super().is_worth(left_s)

    axes = tuple(Axis(name=name, values=tuple(range(40))) for name in "ab")
    grid = Grid(levels=(Level(axes=axes[:1]), Level(axes=axes[1:])))

    def cost(points: Columns) -> Floats:
        end_s = time.thread_time() + 1e-3
        while time.thread_time() < end_s:
            pass
        return points["a"] + 0.5 * points["b"] + 1.0

    pool = Pool(0, 2)
    maker = partial(_pair, grid)
    wanted = Wanted(most_at_once=40)
    found = solve(grid, cost, Search(pool=pool), wanted, maker=maker)  # type: ignore[arg-type]
    assert (found.solution.objective, pool.num_parts) == (1.0, 0)
    assert 0.015 < told[0] < 0.2  # of 40 calls that take 1 ms
    assert told[-1] < told[0] / 3


def test_nobody_is_asked_for_help_before_any_node_is_behind_as_if_without_end() -> None:
    told: list[float] = []

    class Pool(ShuffledPool):
        alone_s = 0.0

        def is_worth(self, left_s: float) -> bool:
            told.append(left_s)
            return False

    axes = tuple(Axis(name=name, values=(0, 1)) for name in "ab")
    grid = Grid(levels=(Level(axes=axes[:1]), Level(axes=axes[1:])))
    search = Search(pool=Pool(0, 2))
    solve(grid, lambda points: (points["a"] + points["b"] + 1.0).astype(float), search, maker=partial(_pair, grid))  # type: ignore[arg-type]
    assert told
    assert max(told) < 1.0


def test_help_that_is_not_there_yet_is_asked_for_only_where_much_is_left_after_twice_as_long() -> None:
    seen: list[float] = []

    class Pool(ShuffledPool):
        alone_s = 0.0

        def is_worth(self, left_s: float) -> bool:
            if left_s and len(seen) < 2 and not self.num_parts:
                seen.append(left_s)
            return left_s > 0.0 and len(seen) < 2  # the second time it is not

    axes = tuple(Axis(name=name, values=(0, 1, 2)) for name in "ab")
    grid = Grid(levels=(Level(axes=axes[:1]), Level(axes=axes[1:])))
    pool, maker, wanted = Pool(0, 2), partial(_pair, grid), Wanted(most_at_once=1)
    solve(grid, lambda points: points["a"].astype(float), Search(pool=pool), wanted, maker=maker)  # type: ignore[arg-type]
    assert len(seen) == 2
    assert not pool.num_parts


def _pair(grid: Grid) -> tuple[Grid, object]:
    return grid, None


@settings(deadline=None, max_examples=40)
@given(case=cases(), seed=seeds, lost=st.sets(st.integers(1, 8), max_size=4))
def test_a_part_that_is_lost_counts_with_its_bound(case: Case, seed: int, lost: set[int]) -> None:
    pool = ShuffledPool(seed, 2, lost=tuple(lost))
    found = shared(case, Search(pool=pool), most_at_once=1).solution
    truth = best_of(case, tuple(range(len(case.names))))
    least = truth[0][0] if truth else inf
    assert found.bound <= least <= found.objective
    assert bool(pool.notes) is any(number <= pool.num_parts for number in lost)
    if found.status is Status.OPTIMAL:
        assert found.objective == least
    if not pool.notes:
        assert found.objective == least
    assert all("its worker died" in note for note in pool.notes)


@settings(deadline=None, max_examples=40)
@given(case=cases(), seed=seeds, after=st.integers(0, 4))
def test_a_search_whose_crew_is_gone_goes_on_alone(case: Case, seed: int, after: int) -> None:
    found = shared(case, Search(pool=ShuffledPool(seed, 2, gone_after=after)), most_at_once=1, num_answers=2)
    assert rows_of(found, case) == rows_of(case.solve(num_answers=2), case)
    assert found.solution.bound == found.solution.objective


@settings(deadline=None, max_examples=40)
@given(case=cases(), seed=seeds, is_short=st.booleans())
def test_what_workers_have_no_memory_for_is_looked_at_by_whoever_asks(case: Case, seed: int, is_short: bool) -> None:
    """Whether they are at the limit of the search, of which this process holds nothing, or the system refuses more."""
    pool = ShuffledPool(seed, 2)
    limit_bytes = inf if is_short else 1.0
    search = Search(pool=pool, memory_limit_bytes=limit_bytes, resident=lambda: 0)
    maker: Any = partial(made_short if is_short else made, case)
    found = solve(case.grid(), case.cost, search, Wanted(most_at_once=1, num_answers=2), maker=maker)
    alone = case.solve(num_answers=2, most_at_once=1)
    assert rows_of(found, case) == rows_of(alone, case)
    assert found.solution == alone.solution
    assert all("memory limit" in note for note in pool.notes)
    assert pool.num_back == 0 or pool.notes or is_short  # a piece may be ruled out before any memory is asked for


def made_short(case: Case) -> tuple[Grid, Callable[[Columns], Floats]]:
    """The grid of a case, and a cost that the system has no memory for."""

    def cost(nodes: Columns) -> Floats:
        raise MemoryError

    return case.grid(), cost


@settings(deadline=None, max_examples=40)
@given(case=cases(), seed=seeds, polls=st.integers(0, 3))
def test_an_interruption_leaves_a_bound_that_holds(case: Case, seed: int, polls: int) -> None:
    pool = InterruptingPool(seed, polls)
    search = Search(pool=pool)
    pool.search = search
    found = shared(case, search, most_at_once=1).solution
    truth = best_of(case, tuple(range(len(case.names))))
    assert found.bound <= (truth[0][0] if truth else inf) <= found.objective


class InterruptingPool(ShuffledPool):
    """Interrupts the search after so many looks at what came back."""

    def __init__(self, seed: int, polls: int) -> None:
        super().__init__(seed, 2)
        self.search = Search()
        self._polls = polls

    def poll(self, wait_s: float, wanted: object) -> list[tuple[int, object]]:
        self._polls -= 1
        if self._polls < 0:
            self.search.interrupt()
        return super().poll(wait_s, wanted)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)), min_size=1), st.integers(1, 5))
def test_pieces_are_all_that_waits_each_in_the_order_of_bounds(nodes: list[tuple[int, int, int]], number: int) -> None:
    """Else a walk ends at the first bound above the limit, though nodes behind it may hold the answer."""
    levels = [Level(axes=(Axis(name=name, values=(0, 1, 2, 3)),)) for name in "ab"]
    grid = Grid(levels=tuple(levels))
    walk = _Walk(grid, lambda points: points["a"].astype(float), Search(), _Best(grid, ("a",), 1), 9)
    shares = _Shares(names=("a",), number=1, most_at_once=9, expanded={}, memory_limit_bytes=None)
    part, rows = _Part(walk=walk, shares=shares), np.array(sorted(nodes, key=lambda row: row[2]))
    part.put(_Box(level=1, nodes={"a": rows[:, 0], "b": rows[:, 1]}, least=rows[:, 2].astype(float)))
    pieces = part.pieces(number)
    assert not part.waiting
    assert all((np.diff(piece.least) >= 0).all() for piece in pieces)
    found = [row for one in pieces for row in zip(*one.nodes.values(), one.least, strict=True)]
    assert sorted(found) == sorted(nodes)


def test_whoever_has_nothing_to_look_at_waits_for_what_comes_back() -> None:
    """While whole grids wait for helpers, of which it looks at none."""
    waits: list[float] = []

    class Pool(ShuffledPool):
        def poll(self, wait_s: float, wanted: object) -> list[tuple[int, Any]]:
            waits.append(wait_s)
            return super().poll(wait_s, wanted)  # type: ignore[arg-type]

    case = Case(((3,), (3,)), {(a, b): float(a * b) for a in range(3) for b in range(3)}, frozenset(), 0.5)
    several, search = (case,) * 40, Search(pool=Pool(seed=1, num_workers=8))
    one = Turn(index=0, grid=case.grid(), cost=case.cost, search=search, group_by=tuple(case.names))
    turns = [replace(one, index=index, search=search.part(inf)) for index in range(len(several))]
    origin = Origin.of(partial(Several, several))
    assert origin is not None
    answers = [*solve_in_turn(turns, search, origin, [])]
    assert [rows_of(one, case) for one in answers] == [[(0.0, (0, 0))]] * len(several)
    assert waits[0] > 0


def test_values_below_zero_travel_as_they_are() -> None:
    costs = np.array([5.0, 4.0, 3.0, 1.0, 2.0])
    (grid, cost), pool = _below_zero(costs), ShuffledPool(3, 2)
    found = solve(grid, cost, Search(pool=pool), Wanted(most_at_once=1), maker=partial(_below_zero, costs))
    assert pool.num_parts > 0
    assert (found.solution.value, found.solution.objective) == ({"a": 300, "b": -200}, 1.0)


def _below_zero(costs: Floats) -> tuple[Grid, Callable[[Columns], Floats]]:
    """A grid of two axes with values below zero."""
    values = (-70_000, -129, -1, -200, 300)
    levels = (Level(axes=(Axis(name="a", values=(-1, 300)),)), Level(axes=(Axis(name="b", values=values),)))

    def cost(nodes: Columns) -> Floats:
        return np.array([costs[values.index(int(one))] for one in nodes["b"]]) + (nodes["a"] < 0)

    return Grid(levels=levels), cost


@dataclass(frozen=True)
class Stuck:
    """A maker that cannot travel."""

    case: Case

    def __call__(self) -> tuple[Grid, object]:
        """Make the grid."""
        return made(self.case)

    def __reduce__(self) -> str:
        raise TypeError("it stays here")


def test_searches_that_depend_on_the_order_or_cannot_travel_are_not_shared_out() -> None:
    case = Case(((3, 3),), {(a, b): float(a * b) for a in range(3) for b in range(3)}, frozenset(), 0.5)
    pool = ShuffledPool()
    for search in (Search(pool=pool, good_enough=5.0), Search(pool=pool, questions_left=100)):
        shared(case, search, most_at_once=1)
    solve(case.grid(), case.cost, Search(pool=pool), Wanted(most_at_once=1), maker=Stuck(case))  # type: ignore[arg-type]
    assert pool.num_parts == 0
    assert Origin.of(Stuck(case)) is None
    shared(case, Search(pool=pool), most_at_once=1)
    assert pool.num_parts > 0
