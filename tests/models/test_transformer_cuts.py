"""Layers of stages and micro-batches of replicas against trying all of them."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.models.balance import balanced_layers, share_microbatches, shared_bound_s


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.lists(st.sampled_from([0.5, 1.0, 1.7, 3.0]), min_size=3, max_size=3),
    st.lists(st.sampled_from([0.0, 0.3, 2.0]), min_size=4, max_size=4),
    st.lists(st.integers(0, 6), min_size=4, max_size=4),
    st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=4, max_size=4),
    st.integers(1, 8),
)
def test_no_layers_make_a_quicker_slowest_stage(
    kinds: list[int], seconds: list[float], fixed: list[float], most: list[int], fewest: list[int], layers: int
) -> None:
    number = len(kinds)
    layer_s = [seconds[kind] for kind in kinds]
    tried = [
        max(fixed[i] + n * layer_s[i] for i, n in enumerate(cut))
        for cut in product(*(range(fewest[i], most[i] + 1) for i in range(number)))
        if sum(cut) == layers
    ]
    column_s, rest_s = (np.array(one, dtype=float)[:number, None] for one in (layer_s, fixed))
    found, can = balanced_layers(
        column_s,
        rest_s,
        np.array(most)[:number, None],
        np.array(fewest)[:number, None],
        np.array(kinds)[:, None],
        layers,
    )
    assert bool(can[0]) == bool(tried)
    if tried:
        cut = found[:, 0]
        assert cut.sum() == layers and all(fewest[i] <= n <= most[i] for i, n in enumerate(cut))
        assert max(fixed[i] + n * layer_s[i] for i, n in enumerate(cut)) == pytest.approx(min(tried))


def test_layers_are_even_within_a_kind_and_fewer_on_the_slower_one() -> None:
    layer_s = np.array([[1.0], [1.0], [3.0], [3.0]])
    kinds = np.array([[0], [0], [1], [1]])
    shape = (4, 1)
    found, _ = balanced_layers(layer_s, np.zeros(shape), np.full(shape, 99), np.ones(shape, dtype=np.int64), kinds, 11)
    assert found[:, 0].tolist() == [5, 4, 1, 1]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.5]), st.sampled_from([0.5, 1.0, 2.2])), min_size=1,
             max_size=3),
    st.integers(1, 14),
)  # fmt: skip
def test_no_micro_batches_make_a_quicker_slowest_class(rows: list[tuple[int, float, float]], total: int) -> None:
    replicas, start, each = (list(column) for column in zip(*rows, strict=True))

    def slowest_s(numbers: "tuple[int, ...] | list[int]") -> float:
        return float(max(a + m * x for a, m, x in zip(start, numbers, each, strict=True)))

    tried = [
        slowest_s(numbers)
        for numbers in product(range(1, total + 1), repeat=len(rows))
        if sum(d * m for d, m in zip(replicas, numbers, strict=True)) == total
    ]
    found = share_microbatches(replicas, start, each, total)
    assert (found is None) == (not tried)
    if found is not None:
        assert sum(d * m for d, m in zip(replicas, found, strict=True)) == total
        assert slowest_s(found) == pytest.approx(min(tried))
        parts, starts, seconds = (np.array(one, dtype=float)[:, None] for one in (replicas, start, each))
        assert shared_bound_s(parts, starts, seconds, np.array([float(total)]))[0] <= min(tried) * (1 + 1e-12)
