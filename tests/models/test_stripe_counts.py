"""Counts of stripes from rows alone, against the counts of any partition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import zoo
from planner.models.segments import Partition, Stage, chain_of, count_boundary
from planner.models.stripe_counts import num_stripes, stripe_boundary, stripe_channels, stripe_sizes
from planner.zoo.builder import Builder


@st.composite
def chains(draw: st.DrawFn) -> tuple[Stage, ...]:
    """An image, a convolution, a pool and a fully-connected layer, with windows that overlap, touch or leave gaps."""
    net = Builder((draw(st.integers(1, 2)), draw(st.integers(9, 13)), draw(st.integers(9, 13))))
    kernel = draw(st.integers(1, 4))
    net.conv(
        "conv",
        draw(st.integers(1, 3)),
        kernel=kernel,
        stride=draw(st.integers(1, 4)),
        padding=draw(st.integers(0, kernel)),
    )
    net.max_pool("pool", kernel=draw(st.integers(1, 2)), stride=draw(st.integers(1, 3)))
    net.flatten("flat").fully_connected("fc", draw(st.integers(1, 5)))
    return chain_of(net.build("drawn", source="own"))


def of_any(stages: tuple[Stage, ...], index: int, num_before: int, num_segments: int) -> tuple[list[list[int]], ...]:
    shape = stages[index - 1].output_shape if index else stages[0].input_shape
    found = count_boundary(
        stages[index], Partition.of(shape, num_before), Partition.of(stages[index].output_shape, num_segments)
    )
    return found.needed.tolist(), found.returned.tolist(), found.connections.tolist()


def of_stripes(
    stages: tuple[Stage, ...], index: int, num_before: int, num_segments: int
) -> tuple[list[list[int]], ...]:
    shape = stages[index - 1].output_shape if index else stages[0].input_shape
    found = stripe_boundary(stages[index], num_before, num_segments, shape)
    return found.needed.tolist(), found.returned.tolist(), found.connections.tolist()


@given(chains(), st.integers(1, 7), st.integers(1, 7))
@settings(deadline=None, max_examples=80)
def test_stripes_are_counted_as_any_partition_is(stages: tuple[Stage, ...], num_before: int, num_segments: int) -> None:
    for index in range(len(stages)):
        assert of_stripes(stages, index, num_before, num_segments) == of_any(stages, index, num_before, num_segments)


@pytest.mark.parametrize("pair", [(1, 1), (2, 4), (4, 2), (3, 5)])
def test_the_papers_networks_have_the_counts_of_any_partition(pair: tuple[int, int]) -> None:
    stages = chain_of(zoo.build("adam-mnist"))
    for index in range(len(stages)):
        assert of_stripes(stages, index, *pair) == of_any(stages, index, *pair)


@given(chains(), st.integers(1, 9))
@settings(deadline=None, max_examples=30)
def test_sizes_and_channels_are_those_of_the_partition(stages: tuple[Stage, ...], num_segments: int) -> None:
    for stage in stages:
        truth = Partition.of(stage.output_shape, num_segments)
        assert stripe_sizes(stage.output_shape, num_segments).tolist() == truth.num_neurons.tolist()
        assert stripe_channels(stage.output_shape, num_segments).tolist() == truth.num_channels.tolist()
        assert (np.count_nonzero(truth.num_neurons) == num_segments) == (
            num_segments <= num_stripes(stage.output_shape)
        )
