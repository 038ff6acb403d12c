import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.models.communication import MeasuredCurve
from planner.models.ddp import per_byte_s, steadied

SIZES = [1e3, 1e5, 1e6, 1e7]
SECONDS = [0.001, 0.01, 0.09, 0.9]


def test_a_curve_without_repeats_is_the_isolated_one() -> None:
    assert steadied(SIZES, SECONDS, {}).seconds == pytest.approx(SECONDS)


def test_a_repeat_of_an_unknown_size_is_passed_over() -> None:
    assert steadied(SIZES, SECONDS, {5e4: [1.0], 1e5: []}).seconds == pytest.approx(SECONDS)


@given(st.floats(0.5, 2))
def test_one_repeat_sets_the_level_of_all_sizes(level: float) -> None:
    found = steadied(SIZES, SECONDS, {1e6: [0.09 * level]})
    assert found.seconds == pytest.approx([time * level for time in SECONDS])


def test_levels_are_interpolated_between_repeats_over_the_logarithm_of_the_size() -> None:
    found = steadied(SIZES, SECONDS, {1e5: [0.02], 1e7: [0.9]})
    assert found.seconds == pytest.approx([0.002, 0.02, 0.09 * 2**0.5, 0.9])


def test_the_level_is_the_median_of_the_repeats() -> None:
    assert float(steadied(SIZES, SECONDS, {1e6: [0.1, 9.0, 0.08]})(np.array(1e6))) == pytest.approx(0.1)


def test_a_byte_costs_what_large_sizes_say() -> None:
    curve = MeasuredCurve(size_bytes=(1e3, 4e6, 8e6), seconds=(1.0, 4.0, 16.0))
    assert per_byte_s(curve.size_bytes, curve) == pytest.approx(1.5e-6)
    assert per_byte_s([1e3], curve) == pytest.approx(1e-3)
