"""Repeated blocks of layers: what is found, and that it is one."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import zoo
from planner.dnn import Dnn, Layer, Repeat, Tensor
from planner.importers.imported import repeats_of

KINDS = st.sampled_from("abc")


def layer(name: str, kind: str = "a", size: int = 4) -> Any:
    return Layer(name=name, kind=kind, output_shape=(size,), tensors=(Tensor(name=f"{name}.w", num_elements=size),))


def chain(kinds: str) -> Any:
    """Return layers of these kinds, each reading the one before."""
    layers = [layer(f"l{index}", kind) for index, kind in enumerate(kinds)]
    inputs = [[layers[index - 1].name] if index else [] for index in range(len(layers))]
    return layers, inputs


def of(dnn: Dnn) -> Any:
    return repeats_of(dnn.layers, [dnn.inputs_of(layer.name) for layer in dnn.layers])


def test_a_chain_without_copies_repeats_nothing() -> None:
    assert repeats_of(*chain("abcd")) == ()
    assert repeats_of([], []) == ()
    assert repeats_of(*chain("a")) == ()


def test_copies_of_one_block_are_found_between_other_layers() -> None:
    (found,) = repeats_of(*chain("xy" + "abc" * 5 + "z"))
    assert (found.first, found.num_layers, found.count) == (2, 3, 5)


def test_the_shortest_block_is_taken_not_a_multiple_of_it() -> None:
    (found,) = repeats_of(*chain("i" + "ab" * 8))
    assert (found.num_layers, found.count) == (2, 8)


def test_two_kinds_of_blocks_are_told_apart_and_equal_ones_share_a_kind() -> None:
    first, second, third = repeats_of(*chain("i" + "abab" + "x" + "cdcdcd" + "y" + "abab"))
    assert (first.count, second.count, third.count) == (2, 3, 2)
    assert first.kind == third.kind != second.kind


def test_layers_of_another_size_are_no_copies() -> None:
    layers, inputs = chain("abab")
    layers[3] = replace(layers[3], output_shape=(9,))
    assert repeats_of(layers, inputs) == ()


def test_layers_that_read_other_places_are_no_copies() -> None:
    layers, inputs = chain("abcabcabc")
    inputs[5] = ["l3"]  # its copies read the layer before them
    found = repeats_of(layers, inputs)
    assert all(one.first > 3 or one.first + one.num_layers * one.count <= 5 for one in found)


def test_a_mask_that_every_block_reads_does_not_hide_the_blocks() -> None:
    layers, inputs = chain("mx" + "ab" * 6)
    for index in range(2, len(layers), 2):
        inputs[index].append("l0")
    (found,) = repeats_of(layers, inputs)
    assert (found.first, found.num_layers, found.count) == (2, 2, 6)


def test_the_first_block_may_be_entered_from_further_back() -> None:
    layers, inputs = chain("emab" + "ab" * 4)
    inputs[2] = ["l0"]
    (found,) = repeats_of(layers, inputs)
    assert (found.first, found.num_layers, found.count) == (2, 2, 5)


def test_blocks_without_work_are_not_counted() -> None:
    layers, inputs = chain("aaaa")
    assert repeats_of([replace(one, tensors=()) for one in layers], inputs) == ()


def test_a_layer_that_reads_a_later_one_is_refused() -> None:
    layers, inputs = chain("ab")
    inputs[0] = ["l1"]
    with pytest.raises(ValueError, match="'l0' reads 'l1', which does not stand before it"):
        repeats_of(layers, inputs)


@pytest.mark.parametrize("name", ["gpt3-13b", "bert-base"])
def test_the_blocks_of_transformers_are_those_that_the_zoo_built(name: str) -> None:
    dnn = zoo.build(name)
    (built,), found = dnn.repeats, of(dnn)
    longest = max(found, key=lambda one: one.count * one.num_layers)
    assert (longest.num_layers, longest.count) == (built.num_layers, built.count)


def test_the_stages_of_resnet152_are_found() -> None:
    counts = sorted((one.count for one in of(zoo.build("resnet152"))), reverse=True)
    assert counts[:2] == [35, 7]  # the first block of each stage changes the shape


def test_branches_side_by_side_are_no_copies_that_follow_each_other() -> None:
    layers, inputs = chain("ixy" + "ab" * 2 + "z")
    inputs[5] = ["l1"]  # the second branch enters where neither the first one does nor ends
    assert repeats_of(layers, inputs) == ()


@given(
    st.text("abc", max_size=4), st.text("abcd", min_size=1, max_size=5), st.integers(2, 6), st.text("abc", max_size=4)
)
def test_what_is_found_is_copies_apart_and_covers_at_least_the_block_put_in(
    before: str, block: str, count: int, after: str
) -> None:
    layers, inputs = chain("i" + before + block * count + after)
    found = repeats_of(layers, inputs)
    end = 0
    for one in found:
        assert isinstance(one, Repeat)
        assert one.first >= end and one.count >= 2
        kinds = [layers[one.first + index].kind for index in range(one.num_layers * one.count)]
        assert kinds == kinds[: one.num_layers] * one.count
        end = one.first + one.num_layers * one.count
    assert end <= len(layers)
    assert max(one.num_layers * one.count for one in found) >= len(block) * count


def test_a_network_of_many_layers_takes_memory_and_steps_in_proportion() -> None:
    layers, inputs = chain("x" + "abcde" * 4000)
    (found,) = repeats_of(layers, inputs)
    assert (found.first, found.num_layers, found.count) == (1, 5, 4000)
