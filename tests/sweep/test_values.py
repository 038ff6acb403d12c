"""Values of a field: lists, ranges with units, and what is refused."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.sweep.question import MOST_VALUES, values_of
from planner.units import Dimension, parse

RATES = st.integers(min_value=1, max_value=10_000)


@given(st.integers(0, 1000), st.integers(1, 50), st.integers(0, 100))
def test_steps_of_whole_numbers_are_pythons_range(first: int, step: int, number: int) -> None:
    last = first + step * number
    assert values_of({"from": first, "to": last, "step": step}) == list(range(first, last + 1, step))


@given(RATES, RATES, st.integers(2, 40), st.sampled_from(["linear", "log"]))
def test_points_keep_their_unit_and_their_ends_and_rise(first: int, more: int, points: int, scale: str) -> None:
    given_range = {"from": f"{first} Gbit/s", "to": f"{first + more} Gbit/s", "points": points, "scale": scale}
    values = values_of(given_range)
    assert values[0] == given_range["from"]
    assert values[-1] == given_range["to"]
    rates = [parse(value, Dimension.RATE) for value in values]
    assert all(a < b for a, b in itertools.pairwise(rates))
    assert all(value.endswith(" Gbit/s") for value in values)
    assert len(values) <= points


@given(RATES, st.integers(3, 30))
def test_log_points_are_a_constant_factor_apart(first: int, points: int) -> None:
    values = values_of({"from": f"{first} ms", "to": f"{first * 1000} ms", "points": points, "scale": "log"})
    seconds = [parse(value, Dimension.TIME) for value in values]
    ratios = [b / a for a, b in itertools.pairwise(seconds)]
    assert ratios == pytest.approx([1000 ** (1 / (points - 1))] * (points - 1), rel=3e-5)


@given(st.integers(1, 1000), st.integers(2, 5), st.integers(0, 12))
def test_factors_of_whole_numbers_are_powers(first: int, factor: int, number: int) -> None:
    found = values_of({"from": first, "to": first * factor**number, "factor": factor})
    assert found == [first * factor**index for index in range(number + 1)]


@given(st.floats(0.001, 10), st.floats(0.001, 10), st.floats(0.001, 1))
def test_steps_stay_within_their_range(first: float, more: float, step: float) -> None:
    found = values_of({"from": first, "to": first + more, "step": step})
    assert found[0] == pytest.approx(first)
    assert all(value <= first + more for value in found)
    assert len(found) == pytest.approx(math.floor(more / step) + 1, abs=1)


def test_ends_in_other_units_are_converted_to_the_first() -> None:
    assert values_of({"from": "500 Mbit/s", "to": "2 Gbit/s", "factor": 2}) == [
        "500 Mbit/s",
        "1000 Mbit/s",
        "2000 Mbit/s",
    ]
    assert values_of({"from": "10 us", "to": "0.03 ms", "step": "10 us"}) == ["10 us", "20 us", "30 us"]


def test_whole_log_points_come_once_each() -> None:
    assert values_of({"from": 1, "to": 4, "points": 10, "scale": "log"}) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("given_value", "words"),
    [
        ([], "empty"),
        ("1..4", "neither a list nor a range"),
        ({"zoo": "vgg16"}, "neither a list nor a range"),
        ({"from": 1, "to": 4}, "one of step, factor and points"),
        ({"from": 1, "to": 4, "step": 1, "factor": 2}, "one of step, factor and points"),
        ({"from": 1, "to": 4, "points": 3}, "scale: log, or scale: linear"),
        ({"from": 1, "to": 4, "step": 1, "scale": "log"}, "scale belongs to points"),
        ({"from": 1, "to": 4, "steps": 1}, "unknown key 'steps'"),
        ({"from": 4, "to": 1, "step": 1}, "goes down"),
        ({"from": 1, "to": 4, "step": 0}, "leads nowhere"),
        ({"from": 1, "to": 4, "factor": 1}, "leads nowhere"),
        ({"from": 0, "to": 4, "factor": 2}, "cannot start at 0"),
        ({"from": "1 Gbit/s", "to": "2 s", "step": "1 Gbit/s"}, "measures a time"),
        ({"from": "1 Gbit/s", "to": 2, "factor": 2}, "has no unit"),
        ({"from": "1 furlong", "to": "2 furlong", "factor": 2}, "no quantity with a unit that is known"),
        ({"from": True, "to": 2, "factor": 2}, "is no number"),
        ({"from": 1, "to": float("nan"), "factor": 2}, "is no number"),
        ({"from": 0, "to": 1, "step": 1e-300}, f"{MOST_VALUES} is the most"),
        ({"from": 1, "to": 1e300, "points": 10**9, "scale": "log"}, f"{MOST_VALUES} is the most"),
        ({"from": 1, "to": 4, "points": True, "scale": "log"}, "whole number of 2 or more"),
    ],
)
def test_what_is_no_set_of_values_is_refused_with_how_to_mend_it(given_value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        values_of(given_value)
