"""Segments: every count against a loop over every neuron."""

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner import zoo
from planner.dnn import Dnn, Layer
from planner.errors import ModelError
from planner.models.replica_segments import Stage, chain_of, stripe_boundary
from planner.zoo.builder import Builder
from tests.referee.segments import Partition, count_boundary, remote_counts, stripes

Neuron = tuple[int, ...]


def inputs_of(stage: Stage, neuron: Neuron) -> list[tuple[Neuron, int]]:
    """Every input that a neuron reads, with its connections: one loop round of the canonical form for each."""
    if stage.kind == "fully_connected":
        return [(one, 1) for one in product(*map(range, stage.input_shape))]
    channel, *position = neuron
    channels, *sizes = stage.input_shape
    axes = []
    for at, size in zip(position, sizes, strict=True):
        if stage.window is None:
            axes.append(dict.fromkeys(range(size), 1))
            continue
        found: dict[int, int] = {}
        for offset in range(stage.window.kernel):
            place = at * stage.window.stride - stage.window.padding + offset
            if 0 <= place < size:
                found[place] = 1
        axes.append(found)
    which = range(channels) if stage.kind == "convolution" else [channel]
    return [((c, y, x), 1) for c in which for y in axes[0] for x in axes[1]]


def remote_by_hand(
    stage: Stage, before: NDArray[np.intp], after: NDArray[np.intp], workers: list[int], sources: list[int]
) -> tuple[list[int], list[int], int]:
    """Remote activations of each segment, remote error terms of each one before, and connections without padding."""
    received, returned, connections = defaultdict(set), defaultdict(set), 0
    for neuron in product(*map(range, stage.output_shape)):
        for source, number in inputs_of(stage, neuron):
            connections += number
            p, q = int(after[neuron]), int(before[source])
            if workers[p] != sources[q]:
                received[p].add(source)
                returned[q].add(neuron)
    return (
        [len(received[p]) for p in range(len(workers))],
        [len(returned[q]) for q in range(len(sources))],
        connections,
    )


@st.composite
def small_stacks(draw: st.DrawFn) -> Dnn:
    """A few convolutions and pools of random windows, and perhaps fully-connected layers after them."""
    net = Builder((draw(st.integers(1, 2)), draw(st.integers(3, 6)), draw(st.integers(3, 6))))
    for index in range(draw(st.integers(1, 3))):
        kernel = draw(st.integers(1, min(3, *net.shape[1:])))
        window = {"kernel": kernel, "stride": draw(st.integers(1, 3)), "padding": draw(st.integers(0, kernel - 1))}
        kind = draw(st.sampled_from(["conv", "max", "average", "global"]))
        if kind == "conv":
            net.conv(f"conv{index}", draw(st.integers(1, 3)), bias=draw(st.booleans()), **window)
            net.batch_norm(f"bn{index}").relu(f"relu{index}")
        elif kind == "max":
            net.max_pool(f"pool{index}", **window, ceil=draw(st.booleans()))
        elif kind == "average":
            net.average_pool(f"pool{index}", kernel=kernel, stride=window["stride"])
        else:
            net.global_average_pool(f"pool{index}")
    if draw(st.booleans()):
        net.flatten("flatten").fully_connected("fc0", draw(st.integers(1, 5))).fully_connected("fc1", 3)
    return net.build("small", source="drawn")


def drawn_partition(data: st.DataObject, shape: tuple[int, ...]) -> Partition:
    """Stripes, or any partition at all."""
    num_segments = data.draw(st.integers(1, 4))
    seed = data.draw(st.none() | st.integers(0, 99))
    if seed is None:
        return Partition.of(shape, num_segments)
    return Partition.of(shape, num_segments, lambda s, n: np.random.default_rng(seed).integers(0, n, s))


@settings(deadline=None, max_examples=60)
@given(small_stacks(), st.data())
def test_remote_activations_and_error_terms_are_those_of_a_loop_over_every_neuron(
    dnn: Dnn, data: st.DataObject
) -> None:
    for stage in chain_of(dnn):
        before, after = (drawn_partition(data, shape) for shape in (stage.input_shape, stage.output_shape))
        workers, sources = (
            data.draw(st.permutations(range(4))) for _ in range(2)
        )  # a segment may be anywhere: the layers' segments meet on few workers
        mine, theirs = workers[: after.num_segments], sources[: before.num_segments]
        boundary = count_boundary(stage, before, after)
        received, returned, connections = remote_by_hand(stage, before.of_neuron, after.of_neuron, mine, theirs)
        assert remote_counts(boundary.needed, mine, theirs).tolist() == received
        assert remote_counts(boundary.returned, theirs, mine).tolist() == returned
        if stage.window is None or stage.window.padding == 0:
            assert boundary.connections.sum() in (connections, 0 if stage.kind == "pooling" else connections)


@settings(deadline=None, max_examples=60)
@given(small_stacks(), st.data())
def test_segments_share_out_all_connections_and_neurons(dnn: Dnn, data: st.DataObject) -> None:
    for stage in chain_of(dnn):
        before, after = (drawn_partition(data, shape) for shape in (stage.input_shape, stage.output_shape))
        assert count_boundary(stage, before, after).connections.sum() == stage.num_connections
        assert after.num_neurons.sum() == stage.num_neurons


@given(st.integers(1, 40), st.integers(1, 12))
def test_stripes_are_those_of_the_floor_formula(num_rows: int, num_segments: int) -> None:
    found = stripes((2, num_rows, 3), num_segments)
    for p in range(num_segments):
        first, end = num_rows * p // num_segments, num_rows * (p + 1) // num_segments
        assert (found[:, first:end] == p).all()
        assert (found == p).sum() == 2 * 3 * (end - first)


def test_a_halo_by_hand() -> None:
    # 12 rows on 4 workers; a 5 x 5 convolution leaves 8: the second stripe, rows 2 and 3, reads rows 2 to 7 and has 3 to 5.
    pool, conv = chain_of(zoo.build("adam-mnist"))[1:3]
    boundary = count_boundary(conv, Partition.of(pool.output_shape, 4), Partition.of(conv.output_shape, 4))
    assert remote_counts(boundary.needed, range(4), range(4)).tolist() == [3 * 12 * 16] * 4
    assert remote_counts(boundary.returned, range(4), range(4)).tolist() == [480, 1920, 1920, 480]


def test_a_large_fully_connected_layer_is_counted_without_listing_its_connections() -> None:
    *_, last = chain_of(zoo.build("adam-imagenet22k"))
    boundary = count_boundary(last, Partition.of((3000,), 4), Partition.of((22000,), 4))
    assert boundary.connections.tolist() == [[750 * 5500] * 4] * 4
    assert remote_counts(boundary.needed, range(4), range(4)).tolist() == [2250] * 4


def test_layers_that_work_neuron_by_neuron_stay_with_the_one_before() -> None:
    names = [stage.name for stage in chain_of(zoo.build("adam-imagenet22k"))]
    assert names == ["conv1", "pool1", "conv2", "pool2", "conv3", "conv4", "conv5", "pool5", "fc6", "fc7", "fc8"]


def test_a_step_of_a_recurrent_layer_has_more_connections_than_pairs_of_neurons() -> None:
    step = Stage(name="rnn@2", kind="fully_connected", input_shape=(4,), output_shape=(4,), num_connections=40)
    truth = count_boundary(step, Partition.of((4,), 2), Partition.of((4,), 2))
    boundary = stripe_boundary(step, 2, 2, (4,))
    assert boundary.connections.tolist() == truth.connections.tolist() == [[10, 10], [10, 10]]
    assert remote_counts(boundary.needed, [0, 1], [0, 1]).tolist() == [2, 2]


def test_a_pool_cut_by_channels_reads_its_own_and_a_convolution_all_of_them() -> None:
    def by_channels(shape: tuple[int, ...], num_segments: int) -> NDArray[np.intp]:
        of_channel = np.arange(shape[0]) * num_segments // shape[0]
        return np.broadcast_to(of_channel.reshape(-1, *(1 for _ in shape[1:])), shape)

    stages = chain_of(zoo.build("adam-mnist"))
    first, pool, conv = (Partition.of(stage.output_shape, 2, by_channels) for stage in stages[:3])
    pooled, convolved = count_boundary(stages[1], first, pool), count_boundary(stages[2], pool, conv)
    assert remote_counts(pooled.needed, [0, 1], [0, 1]).sum() == 0
    assert remote_counts(convolved.needed, [0, 1], [0, 1]).sum() == 16 * 12 * 12


def test_a_network_that_is_no_chain_is_refused_with_the_layer() -> None:
    with pytest.raises(ModelError, match=r"resnet18 reads .*this model takes a chain"):
        chain_of(zoo.build("resnet18"))


def test_a_layer_of_unknown_connections_is_refused() -> None:
    image = Layer(name="image", kind="input", output_shape=(1, 2, 2))
    layer = Layer(name="blur", kind="convolution", output_shape=(1, 2, 2))
    with pytest.raises(ModelError, match="layer 'blur' is a 'convolution' whose connections are not known"):
        chain_of(Dnn("blurred", [(image, ()), (layer, ("image",))]))


def test_a_scheme_that_gives_no_partition_is_refused() -> None:
    with pytest.raises(ModelError, match=r"segments 7 to 7 in shape \(3,\); 2 segments of a layer \(3,\) need 0 to 1"):
        Partition.of((3,), 2, lambda shape, _: np.full(shape, 7))
