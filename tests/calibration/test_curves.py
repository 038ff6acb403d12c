"""Forms of seconds against bytes: each is found again where it made the data, and the simplest that does is chosen."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration.curves import (
    FORMS,
    SEED,
    bootstrap,
    fit_curve,
    fold_of,
    interleaved,
    log_ratio,
    robust_fit,
    score_of,
    spread,
)
from planner.calibration.tables import Group
from planner.cost import Affine, Floats
from planner.models.communication import MeasuredCurve, PiecewiseLogLinear

SIZES: Floats = np.exp2(np.arange(8.0, 28.0))
MANY: Floats = np.exp2(np.linspace(8, 27, 60))


def group(seconds: Any, sizes: Any = SIZES) -> Group:
    return Group(collective="all_reduce", num_devices=4, size_bytes=np.asarray(sizes), time_s=np.asarray(seconds))


def noise(number: int, share: float, seed: int = 1) -> Any:
    return np.exp(share * np.random.default_rng(seed).standard_normal(number))


@settings(max_examples=6)
@given(startup_s=st.floats(1e-6, 1e-3), bandwidth=st.floats(1e8, 1e11))
def test_a_straight_line_is_found_again_whatever_its_size(startup_s: float, bandwidth: float) -> None:
    truth = Affine(startup_s=startup_s, per_byte_s=1 / bandwidth)
    found = fit_curve(group(truth(SIZES)), form="affine")
    sizes: Floats = np.exp2(np.linspace(8, 27, 7))
    np.testing.assert_allclose(found.cost(sizes), truth(sizes), rtol=1e-3)


def test_of_a_noisy_straight_line_the_straight_line_is_chosen_and_its_intervals_hold_the_truth() -> None:
    truth = Affine(startup_s=3e-5, per_byte_s=1e-9)
    found = fit_curve(group(truth(MANY) * noise(60, 0.03), MANY))
    assert found.form == "affine"
    for name, value in (("startup_s", 3e-5), ("per_byte_s", 1e-9)):
        low, high = found.intervals[name]
        assert low < value < high
        assert found.parameters[name] == pytest.approx(value, rel=0.03)


def test_disturbed_measurements_do_not_bend_the_fit() -> None:
    truth = Affine(startup_s=3e-5, per_byte_s=1e-9)
    seconds = truth(SIZES) * noise(20, 0.01)
    seconds[[4, 11]] *= 8
    found = fit_curve(group(seconds), form="affine")
    assert found.parameters["startup_s"] == pytest.approx(3e-5, rel=0.05)
    assert found.parameters["per_byte_s"] == pytest.approx(1e-9, rel=0.05)


def test_equation_18_is_found_again_with_its_threshold_and_chosen() -> None:
    truth = PiecewiseLogLinear(
        log_slope_s=4e-5, log_offset_s=-2e-4, per_byte_s=1e-9, offset_s=3e-4, threshold_bytes=2.0**18
    )
    sizes: Floats = np.exp2(np.linspace(10, 26, 65))
    found = fit_curve(group(truth(sizes) * noise(65, 0.01), sizes))
    assert found.form == "piecewise"
    assert found.parameters["threshold_bytes"] == pytest.approx(2.0**18, rel=0.2)
    assert found.parameters["log_slope_s"] == pytest.approx(4e-5, rel=0.1)
    assert found.parameters["per_byte_s"] == pytest.approx(1e-9, rel=0.05)
    assert found.scores["piecewise"].mean < 0.02 < found.scores["affine"].mean


def test_a_curve_of_neither_form_is_kept_as_it_was_measured() -> None:
    sizes: Floats = np.exp2(np.linspace(8, 27, 120))
    steps = Affine(startup_s=2e-5, per_byte_s=1e-9)(sizes) * np.where(np.sin(np.log2(sizes) * 2) > 0, 1.6, 1.0)
    found = fit_curve(group(steps, sizes))
    assert found.form == "curve"
    assert isinstance(found.cost, MeasuredCurve)
    assert found.parameters == {}


def test_the_simplest_within_a_standard_error_of_the_best_is_taken() -> None:
    truth = Affine(startup_s=3e-5, per_byte_s=1e-9)
    found = fit_curve(group(truth(MANY) * noise(60, 0.02, seed=4), MANY))
    best = min(found.scores.values(), key=lambda score: score.loss)
    within = [form for form in FORMS if found.scores[form].loss <= best.loss + best.standard_error]
    assert found.form == within[0]


@pytest.mark.parametrize(("number", "forms"), [(3, {"affine"}), (5, {"affine", "curve"}), (8, set(FORMS))])
def test_few_sizes_allow_few_forms(number: int, forms: set[str]) -> None:
    truth = Affine(startup_s=3e-5, per_byte_s=1e-9)
    assert set(fit_curve(group(truth(SIZES[:number]), SIZES[:number])).scores) == forms


def test_two_sizes_are_too_few_and_the_message_says_how_many_each_form_needs() -> None:
    words = r"2 sizes, too few. Measure at least 3 for a straight line .affine., 8 for equation 18 .piecewise., 5 for"
    with pytest.raises(ValueError, match=words):
        fit_curve(group([1e-5, 2e-5], SIZES[:2]))
    with pytest.raises(ValueError, match="too few for the form piecewise"):
        fit_curve(group([1e-5] * 5, SIZES[:5]), form="piecewise")


def test_what_does_not_show_is_said() -> None:
    flat = fit_curve(group(np.full(20, 3e-5)), form="affine")
    assert any("no bandwidth shows" in note for note in flat.notes)
    steep = fit_curve(group(SIZES * 1e-9), form="affine")
    assert any("no start-up shows" in note for note in steep.notes)


def test_every_inner_size_is_left_out_exactly_once() -> None:
    parts = interleaved(np.arange(1, 25), 10)
    assert sorted(index for part in parts for index in part.tolist()) == list(range(1, 25))
    assert fold_of(5, np.array([1, 3])).tolist() == [0, 2, 4]


def test_errors_of_what_was_left_out_are_those_of_a_fit_without_it() -> None:
    seconds = Affine(startup_s=3e-5, per_byte_s=1e-9)(SIZES) * noise(20, 0.05)
    found = fit_curve(group(seconds), form="curve")
    part = interleaved(np.arange(1, 19), 10)[0]
    kept = fold_of(20, part)
    own = MeasuredCurve(size_bytes=tuple(SIZES[kept].tolist()), seconds=tuple(seconds[kept].tolist()))
    np.testing.assert_allclose(found.left_out[part], own(SIZES[part]) / seconds[part] - 1)


def test_the_bootstrap_repeats_itself_and_narrows_with_more_rows() -> None:
    draws = np.random.default_rng(SEED).normal(5, 1, 400)

    def mean_of(number: int) -> Any:
        return bootstrap(lambda rows: [float(draws[:number][rows].mean())], number)[0]

    assert mean_of(40) == mean_of(40)
    assert mean_of(400)[1] - mean_of(400)[0] < mean_of(40)[1] - mean_of(40)[0]


def test_a_prediction_of_nothing_counts_as_very_wrong_and_stays_finite() -> None:
    logs = log_ratio(np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    assert np.isfinite(logs).all()
    assert logs[0] < -20
    score = score_of([0.0, np.log(2.0)])
    assert (score.mean, score.worst) == pytest.approx((0.5, 1.0))


def test_bounds_are_kept() -> None:
    found = robust_fit(lambda x: x - 5.0, [1.0], lower=[0.0], upper=[2.0])
    assert found[0] == pytest.approx(2.0, abs=1e-6)


def test_intervals_by_one_step_are_near_those_of_fits_from_scratch() -> None:
    seconds = Affine(startup_s=3e-5, per_byte_s=1e-9)(MANY) * noise(60, 0.05)

    def residuals(rows: Any) -> Any:
        return lambda x: log_ratio(x[0] * 1e-5 + x[1] * 1e-9 * MANY[rows], seconds[rows])

    every = np.arange(60)
    quick = spread(residuals(every), robust_fit(residuals(every), [1.0, 1.0]))
    slow = bootstrap(lambda rows: robust_fit(residuals(rows), [1.0, 1.0]).tolist(), 60, rounds=60)
    for (low, high), (least, most) in zip(quick, slow, strict=True):
        assert (high - low) == pytest.approx(most - least, rel=0.35)
        assert low < most
        assert least < high


def test_a_parameter_at_its_bound_stays_there_and_does_not_push_the_others() -> None:
    # Falling data: the slope wants to be negative.
    x = np.linspace(1, 10, 40)
    y = 5 - 0.1 * x + 0.05 * np.random.default_rng(2).standard_normal(40)

    def residuals(values: Any) -> Any:
        return log_ratio(values[0] * x + values[1], y)

    found = robust_fit(residuals, [1.0, 1.0])
    (low, high), (least, most) = spread(residuals, found)
    assert found[0] == pytest.approx(0.0, abs=1e-6)
    assert low == pytest.approx(0.0, abs=1e-6)
    assert high < 1e-3
    assert least < found[1] < most
