from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformer_rates_drawn import CONSTANTS, RATES

from planner.models.compute import misalignment, move_s, product_s
from planner.models.roofline import longer_of

sizes = st.integers(1, 5000)
times_s = st.floats(0, 1e3)


@given(sizes, sizes, sizes, st.integers(1, 64))
def test_a_product_takes_at_least_its_multiplications_and_its_bytes(
    rows: int, inner: int, columns: int, count: int
) -> None:
    took = product_s(rows, inner, columns, count=count, rates=RATES, constants=CONSTANTS)
    flop = 2.0 * rows * inner * columns * count
    moved = 2.0 * (rows * inner + inner * columns + rows * columns) * count
    assert took >= flop / RATES.multiplied_flop_per_s * (1 - 1e-9)
    assert took >= moved / RATES.moved_bytes_per_s * (1 - 1e-9)


@given(sizes, sizes, sizes, st.integers(1, 64))
def test_more_products_of_a_kind_never_take_less(rows: int, inner: int, columns: int, count: int) -> None:
    one = product_s(rows, inner, columns, rates=RATES, constants=CONSTANTS)
    many = product_s(rows, inner, columns, count=count, rates=RATES, constants=CONSTANTS)
    assert many >= one * (1 - 1e-9)


def test_a_large_product_comes_near_the_fitted_share_of_the_peak() -> None:
    took = product_s(16384, 16384, 16384, rates=RATES, constants=CONSTANTS)
    assert 2 * 16384**3 / took / RATES.multiplied_flop_per_s == pytest.approx(0.97, abs=0.03)


def test_a_wave_that_is_not_full_costs_as_much_as_a_full_one_where_waves_are_paid_whole() -> None:
    paid = replace(CONSTANTS, wave_share=1.0, startup_width=0.0)
    few = replace(RATES, num_multiprocessors=8, memory_bandwidth_bytes_per_s=1e18)
    # 8 tiles of 128 x 128 fill the 8 multiprocessors; with 9 there are two waves (smaller tiles do no better here).
    full = product_s(128, 4096, 8 * 128, rates=few, constants=paid)
    over = product_s(128, 4096, 8 * 128 + 1, rates=few, constants=paid)
    assert full == pytest.approx(2 * 128 * 4096 * 1024 / few.multiplied_flop_per_s)
    assert over > 1.1 * full


@given(times_s, times_s)
def test_the_longer_of_two_times_is_never_undercut_and_little_exceeded(first: float, second: float) -> None:
    longer = longer_of(first, second)
    assert max(first, second) * (1 - 1e-12) <= longer <= max(first, second) * 2 ** (1 / 6) * (1 + 1e-12)


@given(st.integers(1, 10**6))
def test_misalignment_counts_the_halvings_of_a_load_of_eight(width: int) -> None:
    found = int(misalignment(width))
    assert width % (8 >> found) == 0
    assert found == 0 or width % (8 >> (found - 1)) != 0


def test_moving_is_a_share_of_what_is_published() -> None:
    assert move_s(RATES.memory_bandwidth_bytes_per_s, RATES) == pytest.approx(1 / RATES.memory_efficiency)
    assert np.shape(move_s(np.ones(3), RATES)) == (3,)


@pytest.mark.parametrize("quicker", [1, 3])
def test_a_tiles_start_up_costs_its_inner_width_on_an_a100_and_more_on_quicker_multiprocessors(quicker: int) -> None:
    ideal = replace(CONSTANTS, wave_share=0.0)
    a100 = replace(RATES, peak_flop_per_s=312e12 * quicker, num_multiprocessors=108, memory_bandwidth_bytes_per_s=1e30)
    took = product_s(4096, 500, 4096, rates=a100, constants=ideal)
    flop_s = 2 * 4096 * 500 * 4096 / a100.multiplied_flop_per_s
    assert took == pytest.approx(flop_s * (1 + quicker * CONSTANTS.startup_width / 500))
