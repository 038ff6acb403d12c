"""Branch and bound over boxes, against trying every vector."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import Floats
from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers.branch_and_bound import Box, Effort, best_vector

Table = dict[tuple[int, ...], float]


class TableCost:
    """Objectives from a table; a box is bounded by its least entry less some slack, which leaves have none of."""

    def __init__(self, table: Table, slack: float) -> None:
        self.table, self.slack = table, slack

    def bounds(self, boxes: Sequence[Box], limit: float, /) -> Floats:
        return np.array([self._least(box) - self.slack for box in boxes])

    def close_bounds(self, boxes: Sequence[Box], bounds: Floats, limit: float, /) -> Floats:
        return np.array([self._least(box) - self.slack / 2 for box in boxes])

    def probe(self, boxes: Sequence[Box], limit: float, /) -> Solution[tuple[int, ...]] | None:
        found = [self._solution(box.high) for box in boxes]
        best = min(found, key=lambda one: one.objective, default=None)
        return best if best is not None and best.objective < limit else None

    def solve(self, leaf: Box, bound: float, limit: float, /) -> Solution[tuple[int, ...]]:
        return self._solution(leaf.low)

    def _least(self, box: Box) -> float:
        sides = [range(low, high + 1) for low, high in zip(box.low, box.high, strict=True)]
        return min(self.table[vector] for vector in product(*sides))

    def _solution(self, vector: tuple[int, ...]) -> Solution[tuple[int, ...]]:
        seconds = self.table[vector]
        status = Status.INFEASIBLE if seconds == float("inf") else Status.OPTIMAL
        value = None if seconds == float("inf") else vector
        return Solution(status=status, objective=seconds, bound=seconds, value=value)


class RoughCost(TableCost):
    """The same, but a vector is found to cost more than it does at best: its bound is the table's."""

    def __init__(self, table: Table, slack: float, excess: float) -> None:
        super().__init__(table, slack)
        self.excess = excess

    def _solution(self, vector: tuple[int, ...]) -> Solution[tuple[int, ...]]:
        exact = super()._solution(vector)
        if exact.value is None:
            return exact
        return replace(exact, status=Status.FEASIBLE, objective=exact.objective + self.excess)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, Box]:
    sides = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    vectors = list(product(*(range(1, side + 1) for side in sides)))
    numbers = st.one_of(st.integers(1, 50).map(float), st.just(float("inf")))
    values = draw(st.lists(numbers, min_size=len(vectors), max_size=len(vectors)))
    return dict(zip(vectors, values, strict=True)), Box(0, (1,) * len(sides), tuple(sides))


@settings(max_examples=200)
@given(tables(), st.sampled_from([0.0, 3.0, 100.0]))
def test_the_best_vector_is_the_least_of_the_table(drawn: tuple[Table, Box], slack: float) -> None:
    table, root = drawn
    found = best_vector([root], TableCost(table, slack), Search()).solution
    truth = min(table.values())
    if truth == float("inf"):
        assert found.status is Status.INFEASIBLE
        return
    assert found.status is Status.OPTIMAL
    assert found.objective == truth
    assert found.bound == pytest.approx(truth)


@given(tables(), st.integers(1, 6))
def test_a_limit_on_boxes_leaves_a_true_bound(drawn: tuple[Table, Box], most_boxes: int) -> None:
    table, root = drawn
    found = best_vector([root], TableCost(table, 5.0), Search(), effort=Effort(most_boxes=most_boxes)).solution
    truth = min(table.values())
    assert found.bound <= truth
    assert found.objective >= truth


@given(tables(), st.integers(0, 3))
def test_a_limit_on_solved_leaves_is_kept_and_leaves_a_true_bound(drawn: tuple[Table, Box], most_solved: int) -> None:
    table, root = drawn
    found = best_vector([root], TableCost(table, 100.0), Search(), effort=Effort(most_solved=most_solved))
    assert found.num_solved <= most_solved
    assert found.solution.bound <= min(table.values()) <= found.solution.objective


@given(tables())
def test_a_search_that_is_over_leaves_a_true_bound(drawn: tuple[Table, Box]) -> None:
    table, root = drawn
    found = best_vector([root], TableCost(table, 5.0), Search(time_limit_s=0)).solution
    assert found.bound <= min(table.values())


@given(tables(), st.sampled_from([2.0, 7.5]), st.integers(1, 5))
def test_leaves_that_are_not_solved_to_the_end_leave_a_true_bound(
    drawn: tuple[Table, Box], excess: float, at_a_time: int
) -> None:
    table, root = drawn
    cost = RoughCost(table, 3.0, excess)
    found = best_vector([root], cost, Search(), effort=Effort(at_a_time=at_a_time)).solution
    assert found.bound <= min(table.values()) <= found.objective


@given(tables(), st.integers(0, 12), st.sampled_from([0.5, 3.0]))
def test_a_search_that_is_over_between_two_leaves_keeps_a_true_bound(
    drawn: tuple[Table, Box], num_questions: int, slack: float
) -> None:
    table, root = drawn
    found = best_vector([root], TableCost(table, slack), Search(questions_left=num_questions)).solution
    assert found.bound <= min(table.values()) <= found.objective


def test_halves_share_nothing_and_lose_nothing() -> None:
    below, above = Box(3, (1, 2), (9, 2)).halves()
    assert below == Box(3, (1, 2), (5, 2))
    assert above == Box(3, (6, 2), (9, 2))
