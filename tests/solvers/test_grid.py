"""Branch and bound over a grid, against trying every point in plain loops."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from math import inf

import numpy as np
import pytest
from grids import Case, best_of, cases, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.cost import Floats
from planner.search import Search
from planner.solution import Status
from planner.solvers.grid import Axis, Columns, Grid, Level, OverError, Rule, Wanted, distinct, solve


@settings(deadline=None)
@given(case=cases(), number=st.integers(1, 4), num_axes=st.integers(0, 3), most=st.sampled_from([1, 2, 7, 10_000]))
def test_the_best_points_of_groups_are_those_of_trying_every_point(
    case: Case, number: int, num_axes: int, most: int
) -> None:
    groups = tuple(range(min(num_axes, len(case.names)))) or tuple(range(len(case.names)))
    answer = case.solve(num_answers=number, group_by=[f"a{index}" for index in groups], most_at_once=most)
    assert rows_of(answer, case) == best_of(case, groups)[:number]
    found = answer.solution
    assert found.status is (Status.OPTIMAL if found.value is not None else Status.INFEASIBLE)
    assert found.bound == found.objective


@settings(deadline=None)
@given(case=cases())
def test_a_search_without_bounds_evaluates_every_point_and_finds_the_same(case: Case) -> None:
    with_bounds, without = case.solve(num_answers=2), case.solve(num_answers=2, uses_bounds=False)
    assert rows_of(with_bounds, case) == rows_of(without, case)
    assert without.num_evaluated == without.num_points == len(case.points())
    assert with_bounds.num_points == without.num_points >= with_bounds.num_evaluated


def test_a_bound_that_is_no_number_cuts_nothing() -> None:
    axes = Axis(name="a", values=(0, 1, 2)), Axis(name="b", values=(0, 1))
    levels = Level(axes=axes[:1], bound=lambda one: np.where(one["a"] == 1, np.nan, 5.0)), Level(axes=axes[1:])
    answer = solve(Grid(levels=levels), lambda one: np.abs(one["a"] - 1.0) + one["b"] + 4.0, Search())
    assert (answer.solution.value, answer.solution.objective) == ({"a": 1, "b": 0}, 4.0)
    assert answer.solution.status is Status.OPTIMAL


@settings(deadline=None)
@given(case=cases(), questions=st.integers(0, 6))
def test_a_search_that_is_stopped_keeps_a_true_bound(case: Case, questions: int) -> None:
    class Stopping(Search):
        @property
        def is_over(self) -> bool:
            nonlocal questions
            questions -= 1
            return questions < 0

    answer, truth = case.solve(Stopping(), most_at_once=1), best_of(case, tuple(range(len(case.names))))
    least = truth[0][0] if truth else inf
    assert answer.solution.bound <= least
    assert answer.solution.objective >= least
    if answer.solution.status is Status.OPTIMAL:
        assert answer.solution.objective == least
    if answer.solution.status is Status.INFEASIBLE:
        assert not truth


@settings(deadline=None)
@given(case=cases(), cutoff=st.integers(-3, 9), is_enough=st.booleans())
def test_a_known_answer_or_one_that_is_good_enough_ends_the_search_with_a_true_bound(
    case: Case, cutoff: int, is_enough: bool
) -> None:
    search = Search(good_enough=float(cutoff)) if is_enough else Search(cutoff=float(cutoff))
    answer, truth = case.solve(search, most_at_once=1), best_of(case, tuple(range(len(case.names))))
    least = truth[0][0] if truth else inf
    assert answer.solution.bound <= least
    assert (answer.solution.value is None) == (not truth)
    if not is_enough and least <= cutoff:
        assert answer.solution.objective == least
        assert answer.solution.status is Status.OPTIMAL


@settings(deadline=None)
@given(case=cases(), cutoff=st.integers(-3, 9), most=st.sampled_from([1, 7, 10_000]))
def test_a_strict_cutoff_finds_the_best_point_below_it_or_none_with_a_true_bound(
    case: Case, cutoff: int, most: int
) -> None:
    truth = best_of(case, tuple(range(len(case.names))))
    least = truth[0][0] if truth else inf
    answer = case.solve(Search(cutoff=float(cutoff)), most_at_once=most, is_strict=True)
    assert answer.solution.bound <= least
    if least <= cutoff:
        assert rows_of(answer, case)[0] == truth[0]
        assert answer.solution.status is Status.OPTIMAL
    else:
        assert answer.solution.value is None
        assert answer.solution.bound == cutoff
    if least - case.slack > cutoff:
        assert answer.num_evaluated == 0


def test_points_are_counted_without_listing_them() -> None:
    axes = tuple(Axis(name=f"a{index}", values=tuple(range(1, 41))) for index in range(8))

    def never_falls(index: int) -> Rule:
        one, other = f"a{index}", f"a{index + 1}"
        return Rule(names=(one, other), holds=lambda nodes: nodes[one] <= nodes[other])

    grid = Grid(levels=(Level(axes=axes),), rules=tuple(never_falls(index) for index in range(7)))
    assert grid.count() == 314_457_495  # 47 over 8: rows that never fall


def test_a_rule_is_asked_of_many_nodes_piece_by_piece_and_they_are_counted_as_ever() -> None:
    longest = 0

    def holds(nodes: Columns) -> NDArray[np.bool_]:
        nonlocal longest
        longest = max(longest, len(nodes["a"]))
        return np.asarray((nodes["a"] + nodes["b"] + nodes["c"]) % 7 == 0)

    axes = tuple(Axis(name=name, values=tuple(range(70))) for name in "abc")
    grid = Grid(levels=(Level(axes=axes),), rules=(Rule(names=("a", "b", "c"), holds=holds),))
    assert grid.count() == 70**3 // 7
    assert len(grid.expand({}, 0)["a"]) == 70**3 // 7
    assert longest <= 1 << 16


def test_a_grid_whose_rules_leave_nothing_has_no_points() -> None:
    rule = Rule(names=("a",), holds=lambda nodes: nodes["a"] > 5)
    grid = Grid(levels=(Level(axes=(Axis(name="a", values=(1, 2)), Axis(name="b", values=(1, 2)))),), rules=(rule,))
    answer = solve(grid, lambda nodes: nodes["a"].astype(np.float64), Search())
    assert (answer.num_points, answer.num_evaluated) == (0, 0)
    assert answer.solution.status is Status.INFEASIBLE


def test_values_below_zero_are_told_apart_by_rules_of_several_axes() -> None:
    values = (-1, 0, 1, 9)
    rule = Rule(names=("a", "b", "c"), holds=lambda nodes: nodes["a"] + 2 * nodes["b"] + nodes["c"] > 0)
    axes = tuple(Axis(name=name, values=values) for name in "abc")
    grid = Grid(levels=(Level(axes=axes[:2]), Level(axes=axes[2:])), rules=(rule,))
    assert grid.count() == sum(a + 2 * b + c > 0 for a, b, c in product(values, repeat=3))


def test_an_axis_without_values_leaves_no_points() -> None:
    axes = Axis(name="a", values=(1, 2)), Axis(name="b", values=())
    rule = Rule(names=("a", "b"), holds=lambda nodes: nodes["a"] > nodes["b"])
    grid = Grid(levels=(Level(axes=axes),), rules=(rule,))
    assert grid.count() == len(grid.expand({}, 0)["a"]) == 0


def test_a_chunk_holds_no_more_points_than_is_asked() -> None:
    longest = 0

    def cost(nodes: Columns) -> Floats:
        nonlocal longest
        longest = max(longest, len(nodes["a"]))
        return (nodes["a"] + nodes["b"]).astype(np.float64)

    axes = Axis(name="a", values=tuple(range(100))), Axis(name="b", values=tuple(range(20)))
    grid = Grid(levels=(Level(axes=axes[:1]), Level(axes=axes[1:])))
    answer = solve(grid, cost, Search(), Wanted(most_at_once=100))
    assert answer.solution.objective == pytest.approx(0.0)
    assert longest == 100


@settings(deadline=None)
@given(case=cases(), asked=st.integers(0, 8))
def test_what_is_broken_off_counts_in_the_bound(case: Case, asked: int) -> None:
    def broken(function: Callable[[Columns], Floats] | None) -> Callable[[Columns], Floats] | None:
        def bound(nodes: Columns) -> Floats:
            nonlocal asked
            asked -= 1
            if asked < 0:
                raise OverError
            assert function is not None
            return function(nodes)

        return None if function is None else bound

    grid = case.grid()
    levels = tuple(replace(level, bound=broken(level.bound)) for level in grid.levels)
    cost = broken(case.cost)
    assert cost is not None
    answer = solve(replace(grid, levels=levels), cost, Search(), Wanted(most_at_once=2))
    truth = best_of(case, tuple(range(len(case.names))))
    assert answer.solution.bound <= (truth[0][0] if truth else inf) <= answer.solution.objective


def test_points_are_not_counted_beyond_some_work_nor_once_the_search_is_over() -> None:
    axes = tuple(Axis(name=f"a{index}", values=tuple(range(1, 48))) for index in range(8))
    rules = tuple(
        Rule(names=(a.name, b.name), holds=lambda one, a=a.name, b=b.name: one[a] <= one[b])  # type: ignore[misc]
        for a, b in pairwise(axes)
    )
    grid = Grid(levels=(Level(axes=axes),), rules=rules)
    assert grid.count(10_000) is None
    small = Grid(levels=(Level(axes=axes[:1]),))
    assert solve(small, lambda one: one["a0"].astype(np.float64), Search()).num_points == 47
    answer = solve(small, lambda one: one["a0"].astype(np.float64), Search(time_limit_s=0.0))
    assert (answer.is_counted, answer.num_points) == (False, 0)


@given(st.data(), st.integers(2, 4), st.integers(2, 20), st.sampled_from([4, 2**40]))
def test_nodes_count_as_one_where_all_their_decisions_are_equal_and_only_there(
    data: st.DataObject, num_axes: int, num_nodes: int, most: int
) -> None:
    values = st.sampled_from([0, 1, 2, 3, most])
    columns = st.lists(values, min_size=num_nodes, max_size=num_nodes)
    nodes = {f"a{axis}": np.array(data.draw(columns)) for axis in range(num_axes)}
    names = list(nodes)[1:]
    first, back = distinct(nodes, names)
    assert len(first) == len(set(zip(*(nodes[name].tolist() for name in names), strict=True)))
    for name in names:
        assert (nodes[name][first][back] == nodes[name]).all()


def test_several_answers_are_known_before_all_is_looked_at() -> None:
    """A first look that stays in the best group leaves nothing to cut by: every node would be expanded."""
    expanded = 0

    def of_all(nodes: Columns) -> Floats:
        nonlocal expanded
        expanded += len(nodes["b"])
        return of_group(nodes) + nodes["b"] / 1e6

    def of_group(nodes: Columns) -> Floats:
        return nodes["a"].astype(np.float64)

    axes = Axis(name="a", values=tuple(range(1000))), Axis(name="b", values=tuple(range(100)))
    last = Axis(name="c", values=(0, 1))
    levels = (Level(axes=axes[:1], bound=of_group), Level(axes=axes[1:], bound=of_all), Level(axes=(last,)))
    answer = solve(Grid(levels=levels), of_all, Search(), Wanted(num_answers=3, group_by=["a"]))
    assert [answer.solution.objective, *(cost for cost, _ in answer.others)] == [0.0, 1.0, 2.0]
    assert expanded < 0.5 * 100_000


def test_a_strict_cutoff_below_every_point_of_a_grid_without_bounds_proves_no_more_than_itself() -> None:
    def seconds(nodes: Columns) -> Floats:
        return nodes["a"].astype(np.float64) + 4.0

    grid = Grid(levels=(Level(axes=(Axis(name="a", values=(0, 1, 2)),)),))
    answer = solve(grid, seconds, Search(cutoff=3.0), Wanted(is_strict=True))
    assert (answer.solution.value, answer.solution.bound) == (None, 3.0)
    assert answer.solution.status is not Status.INFEASIBLE


def test_what_bounds_pass_over_above_the_cutoff_is_no_runner_up() -> None:
    """The cutoff falls to the last of the answers, not to the best one, and is as before behind the search."""
    search, asked = Search(), list[float]()
    axes = [Axis(name=name, values=tuple(range(number))) for name, number in (("a", 5), ("b", 2), ("c", 2))]

    def cost(points: Columns) -> Floats:
        return np.asarray(1.0 + points["a"] + points["b"] + points["c"])

    def bound(nodes: Columns) -> Floats:
        asked.append(search.cutoff)
        least = 1.0 + nodes["a"] + nodes["b"]
        return np.where(least > search.cutoff, np.inf, least)

    grid = Grid(levels=tuple(Level(axes=(one,), bound=bound if one.name == "b" else None) for one in axes))
    answer = solve(grid, cost, search, Wanted(num_answers=2, group_by=("a",), most_at_once=1, dives=False))
    assert [answer.solution.objective, *(seconds for seconds, _ in answer.others)] == [1.0, 2.0]
    assert min(asked) == 2.0
    assert search.cutoff == np.inf
