"""Layers that are dealt out to stages and virtual stages as evenly as whole layers go."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.models.layouts import EvenCut, Layouts, dealt_layers


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """Layers, stages, and chunks that may leave the embedding and the head alone."""
    layers = draw(st.integers(1, 90))
    pipeline = draw(st.integers(1, min(layers, 20)))
    return layers, pipeline, draw(st.integers(1, (layers + 2) // pipeline)) if pipeline > 1 else 1


@given(sizes())
def test_layers_are_dealt_out_as_evenly_as_whole_layers_go(drawn: tuple[int, int, int]) -> None:
    layers, pipeline, interleave = drawn
    found = dealt_layers(layers, pipeline, interleave)
    chunks, devices = found.ravel(), found.sum(axis=0)
    assert chunks.sum() == layers
    assert chunks.max() - chunks.min() <= 1
    assert devices.max() - devices.min() <= 1
    assert devices.tolist() == dealt_layers(layers, pipeline)[0].tolist()  # whatever the chunks
    assert (chunks[1:-1] >= 1).all()  # none is empty but for embedding or head
    if devices.min() < devices.max():  # the ends have less first, that of the head before that of the embedding
        assert devices[-1] == devices.min()
        assert devices[0] == devices.min() or (devices == devices.max()).sum() == pipeline - 1
    assert chunks[-1] == chunks.min()


@given(sizes())
def test_what_counts_of_a_cut_is_what_its_table_says(drawn: tuple[int, int, int]) -> None:
    layers, pipeline, interleave = drawn
    assume(pipeline > 2)
    table = dealt_layers(layers, pipeline, interleave)
    devices, chunks = table.sum(axis=0), table.ravel()
    cut = EvenCut.of(layers, Layouts.one(pipeline=pipeline, interleave=interleave))
    fullest = max(index for index in range(1, pipeline - 1) if devices[index] == devices.max())
    expected = {
        "most": devices.max(),
        "first_less": devices.max() - devices[0],
        "last_less": devices.max() - devices[-1],
        "fullest": fullest,
        "first_chunk": table[0, 0],
        "to_fullest": table[0, :fullest].sum(),
        "to_last": table[0, :-1].sum(),
    }
    assert {name: int(np.broadcast_to(getattr(cut, name), 1)[0]) for name in expected} == expected
    is_alike = len({*chunks[1:-1].tolist()}) == 1 and {*chunks[[0, -1]].tolist()} <= {chunks[1], chunks[1] - 1}
    assert not cut.is_alike[0] or is_alike


@pytest.mark.parametrize(
    ("layers", "pipeline", "interleave", "expected"),
    [
        (61, 16, 1, [3, *[4] * 13, 3, 3]),
        (78, 12, 1, [6, *[7] * 6, *[6] * 5]),
        (28, 8, 1, [3, *[4] * 4, *[3] * 3]),
        (126, 16, 1, [7, *[8] * 14, 7]),  # Llama 3, arXiv 2407.21783, section 3.3.2
        (6, 2, 4, [0, 1, 1, 1, 1, 1, 1, 0]),
        (5, 2, 2, [1, 1, 2, 1]),
    ],
)
def test_ends_have_less_first(layers: int, pipeline: int, interleave: int, expected: list[int]) -> None:
    assert dealt_layers(layers, pipeline, interleave).ravel().tolist() == expected
