"""Bands of errors, of sources that were left out."""

import numpy as np
import pytest

from research.bands import band, band_text, coverage


def test_a_band_holds_four_of_five_more_and_its_coverage_is_that_of_the_others() -> None:
    logs = np.random.default_rng(5).normal(0, 0.1, 400)
    low, high = band(logs.tolist())
    measured = np.exp(-logs) - 1
    assert [low, high] == pytest.approx(np.quantile(measured, (0.1, 0.9)).tolist(), abs=0.02)
    assert np.mean((low <= measured) & (measured <= high)) == pytest.approx(0.8, abs=0.03)
    assert coverage({"one": [0.0, 0.01], "two": [0.5], "three": [-0.01, 0.0]}) < 1


def test_few_errors_have_a_wider_band() -> None:
    few, many = band([-0.1, 0.1]), band([-0.1, 0.1] * 50)
    assert few[0] < many[0] < 0 < many[1] < few[1]
    assert band_text({"one": [0.0, 0.1], "two": [0.05, 0.02]}).keys() == {"low", "high", "coverage"}
