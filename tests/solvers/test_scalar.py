import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.models.compression import optimal_compression
from planner.search import Search
from planner.solution import Solution, Status
from planner.solvers.scalar import minimise

Curve = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Steps:
    """A function that is constant between its jumps; at a jump it has the value of the right side, or of the left."""

    jumps: tuple[float, ...]
    values: tuple[float, ...]  # one more than jumps
    is_right: bool = True

    def __call__(self, x: float) -> float:
        place = bisect_right(self.jumps, x) if self.is_right else sum(jump < x for jump in self.jumps)
        return self.values[place]


@st.composite
def steps(draw: st.DrawFn, sign: int) -> Steps:
    """Small whole numbers at sixteenths: ties, and jumps of both functions at one place, are common."""
    jumps = sorted(draw(st.sets(st.integers(1, 31), max_size=6)))
    heights = sorted(draw(st.lists(st.integers(0, 20), min_size=len(jumps) + 1, max_size=len(jumps) + 1)))
    values = tuple(float(height) for height in heights[::sign])
    return Steps(tuple(jump / 16 for jump in jumps), values, draw(st.booleans()))


def best_of(rising: Curve, falling: Curve, candidates: list[float]) -> float:
    return min(rising(x) + falling(x) for x in candidates)


def around(jumps: tuple[float, ...], low: float, high: float) -> list[float]:
    """Every jump and both its neighbours: where nothing else changes but a falling curve, the minimum is one of them."""
    near = [x for jump in jumps for x in (math.nextafter(jump, -9), jump, math.nextafter(jump, 9))]
    return [x for x in (low, *near, high) if low <= x <= high]


# -- against referees ------------------------------------------------------------------------------------------------


@given(steps(1), st.sampled_from([0.0, 0.1, 1.0, 7.0]), st.sampled_from([1e-3, 1e-6, 1e-9]))
@settings(max_examples=60)
def test_steps_and_an_inverse_square_are_solved_as_by_trying_the_end_of_every_step(
    rising: Steps, scale_s: float, tolerance: float
) -> None:
    def falling(x: float) -> float:
        return scale_s / x**2 if x else math.inf

    found = minimise(rising, falling, 0, 2, tolerance=tolerance)
    best = best_of(rising, falling, around(rising.jumps, 0, 2))
    assert found.status is Status.OPTIMAL
    assert found.bound <= best <= found.objective <= best + 2 * tolerance * best
    assert found.value is not None
    assert found.objective == rising(found.value) + falling(found.value)


@given(steps(1), steps(-1))
@settings(max_examples=60)
def test_two_step_functions_are_solved_exactly_wherever_they_jump(rising: Steps, falling: Steps) -> None:
    found = minimise(rising, falling, 0, 2, tolerance=0)
    best = best_of(rising, falling, around(rising.jumps + falling.jumps, 0, 2))
    assert (found.status, found.objective, found.bound) == (Status.OPTIMAL, best, best)


@given(st.floats(1e-3, 1e2), st.floats(1e-2, 1e3), st.floats(0.5, 3))
@settings(max_examples=30)
def test_no_point_of_a_fine_grid_is_below_the_bound(scale_s: float, slope: float, power: float) -> None:
    def rising(x: float) -> float:
        return float(slope * x**power)

    def falling(x: float) -> float:
        return scale_s / x**2

    found = minimise(rising, falling, 1e-3, 1, tolerance=1e-4)
    tried = [rising(x) + falling(x) for x in np.linspace(1e-3, 1, 2000).tolist()]
    assert found.status is Status.OPTIMAL
    assert found.bound <= min(tried) * (1 + 1e-12)
    assert found.objective <= min(tried) * (1 + 1e-4)


@given(st.floats(1e-3, 1e2), st.floats(1e-2, 1e3))
@settings(max_examples=30)
def test_the_best_compression_is_that_of_the_closed_form(scale_s: float, transfer_s: float) -> None:
    found = minimise(lambda x: transfer_s * x, lambda x: scale_s / x**2 if x else math.inf, 0, 1)
    closed = optimal_compression(scale_s=scale_s, transfer_s=transfer_s)
    assert found.status is Status.OPTIMAL
    assert found.bound <= closed.time_s * (1 + 1e-12)
    assert found.objective == pytest.approx(closed.time_s, rel=2e-6)
    assert found.value == pytest.approx(1 - closed.removed, rel=3e-3)


def test_six_tenths_are_removed_where_k_is_0_032_of_the_transfer() -> None:
    found = minimise(lambda x: 10 * x, lambda x: 0.32 / x**2 if x else math.inf, 0, 1, tolerance=1e-8)
    assert found.value == pytest.approx(0.4, abs=1e-4)


# -- edges -----------------------------------------------------------------------------------------------------------


def test_an_interval_of_one_number_has_its_sum() -> None:
    assert minimise(lambda x: x, lambda x: -x / 2, 3, 3) == Solution(
        status=Status.OPTIMAL, objective=1.5, bound=1.5, value=3.0
    )


def test_the_optimum_may_be_at_an_end() -> None:
    assert minimise(lambda x: x, lambda x: 0.0, 0, 2, tolerance=0).value == 0
    assert minimise(lambda x: 0.0, lambda x: -x, 0, 2, tolerance=0).value == 2


def test_infinite_at_both_ends_it_is_found_in_between() -> None:
    found = minimise(
        lambda x: math.inf if x > 0.75 else x, lambda x: math.inf if x < 0.625 else 1 - x, 0, 1, most_evaluations=200
    )
    assert found.value is not None
    assert 0.625 <= found.value <= 0.75
    assert (found.objective, found.status) == (1.0, Status.FEASIBLE)
    assert 0.8 <= found.bound <= 1


def test_infinite_everywhere_is_proven_to_be_so() -> None:
    found = minimise(lambda x: math.inf if x > 0.3 else x, lambda x: math.inf if x < 0.4 else 1.0, 0, 1)
    assert (found.status, found.value, found.objective, found.bound) == (Status.INFEASIBLE, None, math.inf, math.inf)


def test_a_jump_of_both_functions_at_one_place_leaves_nothing_open() -> None:
    # Between 0 and the next number there is none: 1 everywhere, though 0 + 0 bounds every interval that begins at 0.
    found = minimise(lambda x: float(x > 0), lambda x: float(x == 0), 0, 1)
    assert (found.status, found.objective, found.bound, found.value) == (Status.OPTIMAL, 1.0, 1.0, 0.0)


def test_of_equal_numbers_the_least_is_taken() -> None:
    assert minimise(lambda x: 1.0, lambda x: 2.0, -1, 5).value == -1


def test_sums_below_zero_have_a_bound_too() -> None:
    found = minimise(lambda x: x**3 - 9, lambda x: -3 * x, 0, 3, tolerance=1e-4)
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(-11, rel=1e-4)
    assert found.bound <= -11


# -- limits ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counted:
    curve: Curve
    calls: int = 0

    def __call__(self, x: float) -> float:
        self.calls += 1
        return self.curve(x)


def test_a_flat_sum_of_steep_functions_ends_with_its_bound_after_so_many_evaluations() -> None:
    rising = Counted(lambda x: x)
    found = minimise(rising, lambda x: 1 - x, 0, 1, most_evaluations=129)
    assert rising.calls == 129
    assert (found.status, found.objective) == (Status.FEASIBLE, 1.0)
    assert found.bound == 1 - 1 / 128  # the widest of 128 equal intervals


def test_a_smooth_minimum_takes_about_the_square_root_of_the_tolerance() -> None:
    for tolerance, most in ((1e-2, 60), (1e-4, 600), (1e-6, 6000)):
        rising = Counted(lambda x: x)
        minimise(rising, lambda x: 0.032 / x**2 if x else math.inf, 0, 1, tolerance=tolerance)
        assert most / 20 < rising.calls < most


def test_a_search_that_is_over_still_gives_the_better_end_and_a_bound() -> None:
    search = Search()
    search.interrupt()
    found = minimise(lambda x: x, lambda x: 3 * (1 - x), 0, 1, search=search)
    assert (found.status, found.value, found.objective, found.bound) == (Status.FEASIBLE, 1.0, 1.0, 0.0)


def test_a_search_that_is_over_before_anything_finite_knows_nothing() -> None:
    search = Search()
    search.interrupt()
    found = minimise(lambda x: 0.0 if x < 1 else math.inf, lambda x: 1.0 if x > 0 else math.inf, 0, 1, search=search)
    assert (found.status, found.value, found.bound) == (Status.UNKNOWN, None, 1.0)


def test_an_answer_that_is_good_enough_ends_the_search_with_a_bound_that_holds() -> None:
    rising = Counted(lambda x: x)
    found = minimise(rising, lambda x: 0.032 / x**2 if x else math.inf, 0, 1, search=Search(good_enough=0.7))
    assert rising.calls < 10
    assert found.bound <= 0.6 <= found.objective <= 0.7


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minimise(float, float, 2, 1), r"\[2, 1\] must be finite, with low <= high"),
        (lambda: minimise(float, float, 0, math.inf), "must be finite"),
        (lambda: minimise(float, float, 0, 1, tolerance=-1), "tolerance is -1"),
        (lambda: minimise(float, float, 0, 1, most_evaluations=1), "most_evaluations is 1"),
        (lambda: minimise(lambda x: -x, lambda x: 0.0, 1, 2), "rising decreases from -1 at 1 to -2 at 2"),
        (lambda: minimise(lambda x: 0.0, float, 1, 2), "falling increases from 1 at 1 to 2 at 2"),
        (lambda: minimise(lambda x: abs(x - 1), lambda x: -x / 9, 0, 3), "rising decreases from 1 at 0 to 0.5 at 1.5"),
        (lambda: minimise(lambda x: math.inf if x < 1 else 2.0, lambda x: 0.0, 0, 2), "from inf at 0 to 2 at 2"),
        (lambda: minimise(lambda x: 0.0, lambda x: math.inf if x > 1 else 2.0, 0, 2), "from 2 at 0 to inf at 2"),
        (lambda: minimise(lambda x: math.nan, lambda x: 0.0, 0, 1), r"rising\(0\) is nan"),
        (lambda: minimise(lambda x: 0.0, lambda x: -math.inf, 0, 1), r"falling\(0\) is -inf"),
    ],
)
def test_what_would_prove_nothing_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
