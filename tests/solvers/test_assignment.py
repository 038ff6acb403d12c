"""Assignments against every permutation, against networkx, and the papers' rule where it fails."""

from collections.abc import Callable, Sequence

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solution import Solution, Status
from planner.solvers.matching import greedy_assignment, sum_assignment, two_phase_assignment
from tests.referee.exhaustive import best_assignment

Matrix = list[list[float]]
SPEC: Matrix = [[0, 3, 3], [2, 2, 4], [4, 0, 4]]


@st.composite
def pairs(draw: st.DrawFn, most: int = 5) -> tuple[Matrix, Matrix]:
    """Two square matrices of small whole numbers, so that ties and zeros are common."""
    size, top = draw(st.integers(1, most)), draw(st.sampled_from([1, 3, 9, 1000]))
    entry = st.integers(0, top).map(float)
    matrix = st.lists(st.lists(entry, min_size=size, max_size=size), min_size=size, max_size=size)
    return draw(matrix), draw(matrix)


def entries(matrix: Sequence[Sequence[float]], columns: tuple[int, ...]) -> list[float]:
    return [matrix[row][column] for row, column in enumerate(columns)]


def assert_best(found: Solution[tuple[int, ...]], cost: Callable[[tuple[int, ...]], float], size: int) -> None:
    truth = best_assignment(cost, size)
    assert found.status is truth.status is Status.OPTIMAL
    assert found.objective == found.bound == pytest.approx(truth.objective)
    assert found.value is not None
    assert sorted(found.value) == list(range(size))
    assert cost(found.value) == pytest.approx(truth.objective)


@given(pairs())
@settings(deadline=None, max_examples=100)
def test_the_least_sum_is_that_of_every_permutation_tried(drawn: tuple[Matrix, Matrix]) -> None:
    matrix, _ = drawn
    assert_best(sum_assignment(matrix), lambda columns: sum(entries(matrix, columns)), len(matrix))


@given(pairs())
@settings(deadline=None, max_examples=100)
def test_the_least_sum_of_two_worst_entries_is_that_of_every_permutation_tried(drawn: tuple[Matrix, Matrix]) -> None:
    one, two = drawn
    found = two_phase_assignment(one, two)
    assert_best(found, lambda columns: max(entries(one, columns)) + max(entries(two, columns)), len(one))


@given(pairs(most=7))
@settings(deadline=None, max_examples=40)
def test_a_second_phase_of_nothing_leaves_the_bottleneck_of_the_first(drawn: tuple[Matrix, Matrix]) -> None:
    matrix, _ = drawn
    nothing = np.zeros_like(np.array(matrix))
    assert_best(two_phase_assignment(matrix, nothing), lambda columns: max(entries(matrix, columns)), len(matrix))
    assert_best(two_phase_assignment(nothing, matrix), lambda columns: max(entries(matrix, columns)), len(matrix))


@given(pairs(most=7))
@settings(deadline=None, max_examples=40)
def test_the_hungarian_method_agrees_with_the_matching_of_networkx(drawn: tuple[Matrix, Matrix]) -> None:
    matrix, _ = drawn
    graph: nx.Graph[tuple[str, int]] = nx.Graph()
    for row, costs in enumerate(matrix):
        graph.add_weighted_edges_from((("row", row), ("column", column), -cost) for column, cost in enumerate(costs))
    matched = nx.max_weight_matching(graph, maxcardinality=True)
    total = sum(-graph.edges[edge]["weight"] for edge in matched)
    assert sum_assignment(matrix).objective == pytest.approx(total)


@given(pairs(most=7))
@settings(deadline=None, max_examples=100)
def test_greedy_without_a_conflict_has_the_least_sum_and_says_so_with_one(drawn: tuple[Matrix, Matrix]) -> None:
    matrix, _ = drawn
    greedy, least = greedy_assignment(matrix), sum_assignment(matrix)
    assert greedy.bound <= least.objective
    if greedy.value is None:
        assert greedy.status is Status.UNKNOWN
    else:
        assert greedy.status is Status.OPTIMAL
        assert greedy.objective == pytest.approx(least.objective)
        assert sum(entries(matrix, greedy.value)) == pytest.approx(least.objective)


def test_greedy_agrees_with_hungarian_and_matching_where_no_two_want_the_same() -> None:
    matrix: Matrix = [[0, 5, 6], [7, 8, 1], [9, 2, 4]]
    assert greedy_assignment(matrix).value == sum_assignment(matrix).value == (0, 2, 1)


@pytest.mark.parametrize("least", range(1, 10))
def test_two_rows_that_want_one_column_settle_on_the_right_level_of_many(least: int) -> None:
    # Rows and columns all have a 0, so that the bound says 0; the answer is where one of the first two rows gives way.
    matrix: Matrix = [
        [0, *[least] * 5],
        [0, *[10] * 5],
        [0] * 6,
        [0, 0, 1, 2, 3, 4],
        [0, 5, 0, 6, 7, 8],
        [0, 9, 0, 0, 0, 0],
    ]
    assert two_phase_assignment(matrix, np.zeros((6, 6))).objective == least
    assert two_phase_assignment(np.zeros((6, 6)), matrix).objective == least


def test_a_tie_of_two_by_two_where_giving_way_in_order_loses() -> None:
    tie: Matrix = [[0, 1], [0, 9]]
    assert greedy_assignment(tie).value is None  # both want the first: row 0 would keep it, for a sum of 9
    assert sum_assignment(tie).value == (1, 0)
    assert sum_assignment(tie).objective == 1


def test_the_least_sum_has_a_longer_worst_entry_than_the_bottleneck() -> None:
    by_sum, by_worst = sum_assignment(SPEC), two_phase_assignment(SPEC, np.zeros_like(SPEC))
    assert by_sum.value is not None
    assert max(entries(SPEC, by_sum.value)) == 4
    assert by_worst.objective == 3


def test_costs_of_zero_are_no_missing_entries() -> None:
    zeros = np.array([[0.0, 1], [1, 0]])
    assert sum_assignment(zeros).objective == 0
    assert two_phase_assignment(zeros, zeros).objective == 0


@pytest.mark.parametrize("solve", [sum_assignment, greedy_assignment])
@pytest.mark.parametrize(
    ("cost", "words"), [([[1, 2]], "no square matrix"), ([[np.inf]], "must be finite"), ([], "no square")]
)
def test_what_is_no_cost_matrix_is_refused(
    solve: Callable[[object], object], cost: list[list[float]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        solve(cost)
