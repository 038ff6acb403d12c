import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import ModelError
from planner.models.data_parallel import expected_maximum_s, standard_maximum
from tests.referee.equations import expected_epoch_time_s, expected_maximum_of_equals_s, standard_maximum_closed

means = st.floats(0, 100)
sigmas = st.just(0.0) | st.floats(0.01, 20)
workers = st.lists(st.tuples(means, sigmas), min_size=1, max_size=5)


def slowest_s(drawn: list[tuple[float, float]]) -> float:
    return expected_maximum_s(*zip(*drawn, strict=True))


@pytest.mark.parametrize("num_workers", range(1, 6))
def test_quadrature_is_the_closed_form(num_workers: int) -> None:
    assert standard_maximum(num_workers) == pytest.approx(standard_maximum_closed(num_workers), abs=1e-12)


@pytest.mark.parametrize(("num_workers", "published"), [(8, 1.423600), (16, 1.765991), (32, 2.069669)])
def test_quadrature_is_the_tables_of_order_statistics(num_workers: int, published: float) -> None:
    assert standard_maximum(num_workers) == pytest.approx(published, abs=5e-7)


@pytest.mark.parametrize("num_workers", [2, 3, 8, 1000, 10**6, 10**9])
def test_quadrature_is_an_adaptive_integral_of_the_density(num_workers: int) -> None:
    # The mean of the density N f F^(N-1), as eq. 9 has it.
    from scipy.integrate import quad
    from scipy.special import log_ndtr

    def integrand(t: float) -> float:
        log_density = math.log(num_workers) - t * t / 2 + (num_workers - 1) * float(log_ndtr(t))
        return t * math.exp(log_density) / math.sqrt(2 * math.pi)

    mean, _ = quad(integrand, -12, 12, points=[0, 3, 6], epsabs=1e-12, limit=200)
    assert standard_maximum(num_workers) == pytest.approx(mean, abs=1e-9)


def test_bloms_approximation_errs_as_it_is_known_to() -> None:
    errors = {n: NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) / standard_maximum(n) - 1 for n in (2, 4, 8, 32, 1024)}
    assert errors.pop(2) == pytest.approx(0.045, abs=5e-4)
    assert max(map(abs, errors.values())) < 0.02


@pytest.mark.parametrize(
    ("mean_s", "sigma_s"),
    [([10] * 8, [2] * 8), ([10, 12, 9], [1, 0.5, 4]), ([10, 10.5], [0, 1]), ([1, 5, 5, 5], [30, 0.1, 0.1, 3])],
)
def test_the_expected_slowest_worker_is_that_of_drawn_workers(mean_s: list[float], sigma_s: list[float]) -> None:
    drawn = np.random.default_rng(7).normal(mean_s, sigma_s, (400_000, len(mean_s))).max(axis=1)
    error = 4 * drawn.std() / math.sqrt(len(drawn))
    assert expected_maximum_s(mean_s, sigma_s) == pytest.approx(drawn.mean(), abs=error)


@given(means, st.floats(0.01, 20), means, st.floats(0.01, 20))
def test_two_unequal_workers_are_clarks_formula(mean_1: float, sigma_1: float, mean_2: float, sigma_2: float) -> None:
    # C. E. Clark, Operations Research 9(2), 1961.
    spread, normal = math.hypot(sigma_1, sigma_2), NormalDist()
    z = (mean_1 - mean_2) / spread
    clark = mean_1 * normal.cdf(z) + mean_2 * normal.cdf(-z) + spread * normal.pdf(z)
    assert expected_maximum_s([mean_1, mean_2], [sigma_1, sigma_2]) == pytest.approx(clark, rel=1e-9)


@given(means, sigmas, st.integers(1, 40))
def test_equal_workers_are_one_formula_and_one_integral(mean_s: float, sigma_s: float, num_workers: int) -> None:
    formula = expected_maximum_of_equals_s(mean_s, sigma_s, num_workers=num_workers)
    assert expected_maximum_s([mean_s] * num_workers, sigma_s) == pytest.approx(float(formula), abs=1e-9)


@given(means, sigmas)
def test_one_worker_takes_its_mean(mean_s: float, sigma_s: float) -> None:
    assert expected_maximum_s(mean_s, sigma_s) == pytest.approx(mean_s, abs=1e-9)


@given(workers)
def test_workers_that_never_vary_take_the_largest_mean(drawn: list[tuple[float, float]]) -> None:
    mean_s = [mean for mean, _ in drawn]
    assert expected_maximum_s(mean_s, 0) == pytest.approx(max(mean_s))


@given(workers, means, sigmas)
def test_another_worker_never_helps_and_the_slowest_is_no_faster_than_any(
    drawn: list[tuple[float, float]], mean_s: float, sigma_s: float
) -> None:
    before = slowest_s(drawn)
    assert before >= max(mean for mean, _ in drawn) - 1e-9
    assert slowest_s([*drawn, (mean_s, sigma_s)]) >= before - 1e-9


@given(workers, st.floats(0.1, 10), st.floats(-50, 50))
def test_scaling_and_shifting_time_scales_and_shifts_the_slowest(
    drawn: list[tuple[float, float]], scale: float, shift_s: float
) -> None:
    moved = [(scale * mean + shift_s, scale * sigma) for mean, sigma in drawn]
    assert slowest_s(moved) == pytest.approx(scale * slowest_s(drawn) + shift_s, abs=1e-7)
    assert slowest_s(drawn[::-1]) == pytest.approx(slowest_s(drawn))


def test_an_epoch_sums_its_iterations_and_ends_with_the_tail() -> None:
    found = expected_epoch_time_s([[10, 20, 10], [10, 20, 10]], 1, tail_s=0.5)
    assert found == pytest.approx(40 + 3 / math.sqrt(math.pi) + 0.5)


def test_an_epoch_is_that_of_drawn_iterations() -> None:
    mean_s, sigma_s = np.array([[5.0, 8, 6], [7, 6, 6]]), np.array([[1.0], [2]])
    drawn = np.random.default_rng(3).normal(mean_s, sigma_s, (200_000, 2, 3)).max(axis=1).sum(axis=1)
    assert expected_epoch_time_s(mean_s, sigma_s) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / 200_000**0.5)


@pytest.mark.parametrize(("mean_s", "sigma_s"), [([], []), ([math.nan], [1]), ([1], [-1]), ([1], [math.inf])])
def test_workers_without_a_slowest_are_refused(mean_s: list[float], sigma_s: list[float]) -> None:
    with pytest.raises(ModelError, match="finite means, and finite sigmas of 0 or more"):
        expected_maximum_s(mean_s, sigma_s)


def test_no_workers_and_too_many_for_a_closed_form_are_refused() -> None:
    with pytest.raises(ModelError, match="slowest of 0 workers"):
        standard_maximum(0)
    with pytest.raises(ModelError, match="1 to 5 workers, not for 6"):
        standard_maximum_closed(6)
