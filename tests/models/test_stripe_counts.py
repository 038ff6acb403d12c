"""Counts of stripes from rows alone, against the counts of any partition."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import zoo
from planner.cost import Floats
from planner.models.replica_segments import (
    ByWorkingSet,
    Connections,
    Constants,
    Ints,
    LayerSeconds,
    SegmentWork,
    Stage,
    chain_of,
    num_stripes,
    stripe_boundary,
    stripe_channels,
    stripe_sizes,
)
from planner.models.replicas import LayerExtremes, LayerStates, PhaseExtremes, all_states
from planner.zoo.builder import Builder
from tests.referee.segments import Partition, count_boundary


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
    if draw(st.booleans()):
        net.max_pool("pool", kernel=draw(st.integers(1, 2)), stride=draw(st.integers(1, 3)))
    else:
        net.global_average_pool("pool")  # without a window: its one row reads all
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


# -- all numbers of partitions at once -------------------------------------------------------------------------------


def work_of(
    stages: tuple[Stage, ...], *, is_measured: bool, connections: Connections = Connections.COUNTED
) -> SegmentWork:
    """Work whose loops are the faster the smaller a segment, or whose seconds are measured."""
    constants = Constants(
        multiply_add_s=ByWorkingSet(((10.0, 1e-9), (1000.0, 3e-9))),
        activation_s=1e-7,
        error_s=2e-7,
        bandwidth_bytes_per_s=1e8,
        latency_s=lambda _threads: 0.0,
    )
    seconds = [LayerSeconds(forward_s=1.0 + k, error_s=2.0, update_s=0.5) for k in range(len(stages))]
    return SegmentWork(stages, constants, seconds=seconds if is_measured else None, connections=connections)


def numbers_of(phase: PhaseExtremes) -> np.ndarray:
    return np.vstack((phase.seconds, phase.numbers, phase.least_s, phase.least_numbers))


def phase_one_by_one(
    partitions: Ints, seconds: Callable[[int], Floats], numbers: Callable[[int], Ints]
) -> PhaseExtremes:
    """The segment that computes most, and that receives most, one number of partitions after the other."""
    found = np.zeros((6, int(partitions.max()) + 1))
    for p in partitions.tolist():
        busy_s, received = seconds(p), numbers(p)
        slow = int(np.lexsort((-received, -busy_s))[0])
        full = int(np.lexsort((-busy_s, -received))[0])
        found[:, p] = busy_s[slow], busy_s[full], received[slow], received[full], busy_s.min(), received.min()
    return PhaseExtremes(found[:2], found[2:4], found[4], found[5])


def one_by_one(work: SegmentWork, layer: int, partitions: Ints) -> LayerExtremes:
    def returned(p: int) -> Ints:
        is_last = layer == len(work.stages) - 1
        return np.zeros(p, dtype=np.int64) if is_last else work.boundary(layer + 1, p, 1).returned[:, 0]

    update_s, largest = np.zeros((2, int(partitions.max()) + 1))
    for p in partitions.tolist():
        update_s[p] = work.update_s(layer, p).max()
        largest[p] = stripe_sizes(work.stages[layer].output_shape, p).max()
    return LayerExtremes(
        forward=phase_one_by_one(
            partitions, lambda p: work.forward_s(layer, p), lambda p: work.boundary(layer, 1, p).needed[:, 0]
        ),
        backward=phase_one_by_one(partitions, lambda p: work.backward_s(layer, p), returned),
        update_s=update_s,
        largest=largest,
    )


def assert_extremes_agree(work: SegmentWork, layer: int, partitions: np.ndarray) -> None:
    found, truth = LayerExtremes.of(work, layer, partitions), one_by_one(work, layer, partitions)
    np.testing.assert_allclose(numbers_of(found.forward), numbers_of(truth.forward), rtol=1e-12)
    np.testing.assert_allclose(numbers_of(found.backward), numbers_of(truth.backward), rtol=1e-12)
    np.testing.assert_allclose(found.update_s, truth.update_s, rtol=1e-12)
    np.testing.assert_allclose(found.largest, truth.largest, rtol=1e-12)


@given(chains(), st.booleans(), st.sampled_from(Connections), st.sets(st.integers(1, 15), min_size=1))
@settings(deadline=None, max_examples=80)
def test_extreme_segments_of_all_partitions_at_once_are_those_of_one_after_the_other(
    stages: tuple[Stage, ...], is_measured: bool, connections: Connections, some: set[int]
) -> None:
    work = work_of(stages, is_measured=is_measured, connections=connections)
    for layer in range(len(stages)):
        assert_extremes_agree(work, layer, np.array(sorted(some)))


@pytest.mark.parametrize("is_measured", [False, True])
def test_extreme_segments_of_fully_connected_layers_are_those_of_one_after_the_other(is_measured: bool) -> None:
    net = Builder((7,)).fully_connected("a", 23).fully_connected("b", 10).fully_connected("c", 1)
    work = work_of(chain_of(net.build("n", source="own")), is_measured=is_measured)
    for layer in range(3):
        assert_extremes_agree(work, layer, np.arange(1, 30))


def test_extreme_segments_of_layers_amid_a_network_are_those_of_one_after_the_other() -> None:
    work = work_of(chain_of(zoo.build("adam-mnist")), is_measured=False)  # two convolutions with pools, and classifiers
    for layer in range(len(work.stages)):
        assert_extremes_agree(work, layer, np.array([1, 2, 3, 5, 9]))


@pytest.mark.parametrize(("rows", "num_workers", "threads"), [(5, 12, (2, 1, 4)), (9, 4, (1,)), (1, 1, (3,))])
def test_the_states_of_a_layer_are_all_of_them_in_order(rows: int, num_workers: int, threads: tuple[int, ...]) -> None:
    every = [(p, r, h) for p in range(1, rows + 1) for r in range(1, num_workers // p + 1) for h in threads]
    truth, found = LayerStates.of(every), all_states((rows,), num_workers, threads)
    assert [found.at(k) for k in range(found.workers.size)] == [truth.at(k) for k in range(truth.workers.size)]
