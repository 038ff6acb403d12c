import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.dnn import Dnn, Layer
from planner.models.stages import linearise


@st.composite
def graphs(draw: st.DrawFn, max_layers: int = 7) -> Dnn:
    """Any layer may read any earlier ones, and stand anywhere; sizes differ, so that a sum tells who crossed."""
    number = draw(st.integers(1, max_layers))
    layers = []
    for index in range(number):
        reads = draw(st.lists(st.integers(0, index - 1), unique=True, max_size=3)) if index else []
        layer = Layer(name=f"l{index}", kind="operator", output_shape=(draw(st.integers(0, 3)) * 7**index,))
        layers.append((layer, [f"l{source}" for source in reads]))
    return Dnn("random", draw(st.permutations(layers)))


def sizes_across(dnn: Dnn, cut: int) -> set[str]:
    """Distinct producers before the cut with a reader behind it, from the edges."""
    order = [layer.name for layer in dnn.layers]
    before = set(order[: cut + 1])
    return {source for source, target in dnn.graph.edges if source in before and target not in before}


@given(graphs())
def test_what_crosses_a_cut_is_every_producer_with_a_later_reader_once(dnn: Dnn) -> None:
    line = linearise(dnn)
    outputs = {layer.name: layer.num_output_elements for layer in dnn.layers}
    assert len(line.cut_elements) == len(dnn.layers) - 1
    for cut in range(len(dnn.layers) - 1):
        across = sizes_across(dnn, cut)
        assert {line.names[index] for index in line.relayed_by(cut + 1, cut)} == across
        assert line.cut_elements[cut] == sum(outputs[name] for name in across)


@given(graphs(), st.data())
def test_a_stage_relays_what_crosses_both_its_ends(dnn: Dnn, data: st.DataObject) -> None:
    line = linearise(dnn)
    first = data.draw(st.integers(0, len(line.names) - 1))
    last = data.draw(st.integers(first, len(line.names) - 1))
    relayed = {line.names[index] for index in line.relayed_by(first, last)}
    expected = sizes_across(dnn, first - 1) & sizes_across(dnn, last) if first else set()
    assert relayed == expected


@given(graphs())
def test_no_edge_leads_back(dnn: Dnn) -> None:
    position = {name: index for index, name in enumerate(linearise(dnn).names)}
    assert all(position[source] < position[target] for source, target in dnn.graph.edges)


def test_a_tensor_that_two_later_layers_read_crosses_once_and_a_skip_is_relayed() -> None:
    def layer(name: str, size: int) -> Layer:
        return Layer(name=name, kind="operator", output_shape=(size,))

    dnn = Dnn(
        "skip", [(layer("a", 5), []), (layer("b", 3), ["a"]), (layer("c", 2), ["a", "b"]), (layer("d", 1), ["a", "c"])]
    )
    line = linearise(dnn)
    assert line.cut_elements.tolist() == [5, 5 + 3, 5 + 2]
    assert line.relayed_by(1, 1) == (0,)
    assert line.relayed_by(1, 2) == (0,)
    assert line.relayed_by(0, 2) == ()
    assert line.relayed_by(2, 1) == (0, 1)


def test_a_long_chain_is_a_line_at_once() -> None:
    number = 2000
    layers = [
        (Layer(name=f"{k}", kind="operator", output_shape=(k + 1,)), [f"{k - 1}"] if k else []) for k in range(number)
    ]
    assert np.array_equal(linearise(Dnn("chain", layers)).cut_elements, np.arange(1, number))
    assert linearise(Dnn("one", layers[:1])).cut_elements.tolist() == pytest.approx([])
