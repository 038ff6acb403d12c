"""On how few devices a line of layers fits, against every pipeline tried."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solvers.chain import NONE, FewestDevices
from tests.referee.exhaustive import all_pipelines


@st.composite
def questions(draw: st.DrawFn) -> tuple[tuple[int, ...], np.ndarray]:
    """Numbers of devices, and what every stage needs of each type by stages left, type, first and last layer."""
    num_devices = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    layers = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    needed = rng.integers(1, 5, (layers + 1, len(num_devices), layers, layers))
    return num_devices, np.where(needed > 3, NONE, needed)


def fewest_of(num_devices: tuple[int, ...], needed: np.ndarray, has_ahead: bool = True) -> FewestDevices:
    layers = needed.shape[-1]

    def needs(k: int, firsts: np.ndarray, width: int) -> np.ndarray:
        lasts = np.minimum(firsts[:, None] + np.arange(width), layers - 1)
        found: np.ndarray = needed[k][:, firsts[:, None], lasts]
        return found

    def most_layers(k: int) -> np.ndarray:
        ends = [np.flatnonzero((needed[k, :, first] < NONE).any(axis=0)) for first in range(layers)]
        return np.array([max([1, *(end - first + 1)]) for first, end in enumerate(ends)])

    def before(layer: int, k: int) -> int:
        """The fewest devices of the first type that hold the layers before one, with k stages behind them."""
        if layer == 0 or k == layers:
            return 0 if layer == 0 else NONE
        each = np.where(
            needed[k + 1, 1:, :, layer - 1].min(axis=0, initial=NONE) < NONE, 0, needed[k + 1, 0, :, layer - 1]
        )
        return min(NONE, *(before(first, k + 1) + int(each[first]) for first in range(layer)))

    def ahead(k: int) -> np.ndarray:
        return np.array([before(layer, k) for layer in range(layers)])

    return FewestDevices(layers, num_devices, needs, ahead=ahead if has_ahead else None, most_layers=most_layers)


def fits(stages: Any, needed: np.ndarray) -> bool:
    n = len(stages)
    return all(used >= needed[n - s, kind, i, j] for s, (i, j, kind, used) in enumerate(stages))


@settings(max_examples=200)
@given(questions(), st.booleans())
def test_the_fewest_devices_agree_with_every_pipeline_tried(
    question: tuple[tuple[int, ...], np.ndarray], has_ahead: bool
) -> None:
    num_devices, needed = question
    tables = fewest_of(num_devices, needed, has_ahead)
    truth: dict[int, set[tuple[int, ...]]] = {}
    for stages in all_pipelines(needed.shape[-1], num_devices):
        if fits(stages, needed):
            used = tuple(sum(r for _, _, kind, r in stages if kind == t) for t in range(len(num_devices)))
            truth.setdefault(len(stages), set()).add(used)
    for n in range(1, needed.shape[-1] + 1):
        may_go_on = tables.add()
        rows = tables.fewest(n)
        for enough in np.ndindex(*(number + 1 for number in num_devices)):
            has = any(all(a <= b for a, b in zip(used, enough, strict=True)) for used in truth.get(n, ()))
            assert bool((rows <= np.array(enough)).all(axis=1).any()) == has
        if not may_go_on:
            assert all(more <= n for more in truth)
            break


@settings(max_examples=100)
@given(questions())
def test_the_stages_given_back_use_no_more_than_their_row_and_fit(question: tuple[tuple[int, ...], np.ndarray]) -> None:
    num_devices, needed = question
    tables, others = fewest_of(num_devices, needed), fewest_of(num_devices, needed, has_ahead=False)
    for n in range(1, needed.shape[-1] + 1):
        assert tables.add() <= others.add()
        assert tables.fewest(n).tolist() == others.fewest(n).tolist()
        for row in tables.fewest(n).tolist():
            stages = tables.stages(n, row)
            assert stages == others.stages(n, row)
            assert len(stages) == n and fits(stages, needed)
            assert [one[0] for one in stages] == [0, *(one[1] + 1 for one in stages[:-1])]
            assert stages[-1][1] == needed.shape[-1] - 1
            for kind, most in enumerate(row):
                assert sum(used for _, _, at, used in stages if at == kind) <= most


def test_many_layers_are_taken_in_passes_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = np.ones((5, 2, 4, 4), dtype=int)
    whole, parts = fewest_of((2, 3), needed), fewest_of((2, 3), needed)
    whole.add()
    monkeypatch.setattr("planner.solvers.chain._MOST_AT_ONCE", 1)
    parts.add()
    assert parts.fewest(1).tolist() == whole.fewest(1).tolist() == [[1, 0], [0, 1], [0, 2], [0, 3]]
