"""Dominance, against comparing every pair."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.solvers.pareto import factors, front, front_factors

numbers = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, float("inf")])


def rows(width: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(numbers, min_size=width, max_size=width), max_size=12)


def dominates(one: list[float], other: list[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


@given(st.integers(1, 4).flatmap(lambda width: st.tuples(st.just(width), rows(width))))
def test_the_front_is_what_no_other_row_dominates(drawn: tuple[int, list[list[float]]]) -> None:
    width, points = drawn
    found = front(np.array(points).reshape(-1, width)).tolist()
    truth = {tuple(one) for one in points if not any(dominates(other, one) and other != one for other in points)}
    assert {tuple(points[index]) for index in found} == truth
    assert len(found) == len(truth)  # of equal rows one
    assert [points[index] for index in found] == sorted(points[index] for index in found)
    assert all(index == points.index(points[index]) for index in found)  # the first one


@given(rows(2), rows(2))
def test_a_point_over_its_factor_is_dominated_and_over_less_is_not(
    points: list[list[float]], archive: list[list[float]]
) -> None:
    found = factors(np.array(points).reshape(-1, 2), np.array(archive).reshape(-1, 2)).tolist()
    for point, factor in zip(points, found, strict=True):
        if 0 < factor < np.inf and np.isfinite(point).all():
            larger = [number * factor * (1 + 1e-12) for number in point]
            assert any(dominates(one, larger) for one in archive)
            smaller = [number * factor * (1 - 1e-6) for number in point]
            assert not any(dominates(one, smaller) for one in archive) or 0.0 in point
        assert (factor <= 1) == any(dominates(one, point) for one in archive)


@given(rows(2), rows(2))
def test_the_factors_of_a_front_are_those_of_all_its_points(
    points: list[list[float]], archive: list[list[float]]
) -> None:
    given_points, all_points = np.array(points).reshape(-1, 2), np.array(archive).reshape(-1, 2)
    staircase = all_points[front(all_points)]
    found = front_factors(given_points, staircase)
    assert found.tolist() == factors(given_points, staircase).tolist()


@given(st.lists(st.integers(1, 999), min_size=9, max_size=60, unique=True), st.randoms(use_true_random=False))
def test_a_long_front_is_bisected_to_the_same_factors(firsts: list[int], random: Random) -> None:
    seconds = random.sample(range(1, 1000), len(firsts))
    staircase = np.array(list(zip(sorted(firsts), sorted(seconds, reverse=True), strict=True)), dtype=float)
    points = np.array([[random.uniform(0.1, 2000), random.uniform(0.1, 2000)] for _ in range(20)] + staircase.tolist())
    assert front_factors(points, staircase).tolist() == factors(points, staircase).tolist()


def test_nothing_is_beaten_by_infinitely_much() -> None:
    assert factors(np.array([[1.0, 1.0]]), np.zeros((0, 2))).tolist() == [float("inf")]
    assert factors(np.array([[0.0, 1.0]]), np.array([[0.0, 2.0]])).tolist() == pytest.approx([2.0])
