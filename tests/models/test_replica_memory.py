"""What workers of model replicas hold: by hand, beside data-parallel training, and bounds below and above it."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicas import models

from planner.dnn import Dnn
from planner.models.activations import data_parallel_memory
from planner.models.memory import Precision
from planner.models.replica_memory import Kept, ReplicaMemory
from planner.models.replica_segments import (
    Constants,
    LayerChoice,
    Limits,
    ReplicaConfiguration,
    SegmentWork,
    broken_constraints,
    chain_of,
)
from planner.models.replicas import ReplicaModel, all_states
from planner.zoo.builder import Builder

FP32 = Precision.of("fp32", "adam")
CONSTANTS = Constants(
    multiply_add_s=lambda size, partitions: 1e-9, activation_s=0, error_s=0, bandwidth_bytes_per_s=1e9, latency_s=lambda h: 0.0
)  # fmt: skip


def memory_of(net: Dnn, precision: Precision = FP32, reserve_bytes: float = 0.0) -> ReplicaMemory:
    """Of a network whose layers are all stages of their own."""
    model = ReplicaModel(SegmentWork(chain_of(net), CONSTANTS))
    kept = [Kept(num_moving=0, num_stored=stage.num_neurons) for stage in model.stages]
    return ReplicaMemory(model.work, kept, precision, reserve_bytes=reserve_bytes)


def two_layers() -> Dnn:
    """6 -> 4 -> 2 neurons, without biases."""
    net = Builder((6,)).fully_connected("a", 4, bias=False).fully_connected("b", 2, bias=False)
    return net.build("two", source="own")


def row(*workers: int, threads: int = 1) -> LayerChoice:
    return LayerChoice(num_threads=threads, workers=(workers,))


def test_fully_connected_segments_hold_their_share_and_what_others_send_them() -> None:
    # Worker 0: half of a (12 weights, 6 + 2 neurons) and of b (4 weights, 1 neuron, 2 of a's from worker 1).
    use = memory_of(two_layers()).fullest([row(0, 1), row(0, 1)], 2)
    assert use.weights_bytes == use.gradients_bytes == 4 * (12 + 4)
    assert use.activations_per_sample_bytes == 4 * (6 + 2 + 1 + 2)
    assert use.optimizer_bytes == 0


def test_statistics_of_a_segment_are_held_beside_its_weights_without_gradients_or_half_precision() -> None:
    model = ReplicaModel(SegmentWork(chain_of(two_layers()), CONSTANTS))
    kept = [Kept(num_moving=8, num_stored=4), Kept(num_moving=6, num_stored=2)]
    use = ReplicaMemory(model.work, kept, Precision.of("fp16", "adam")).fullest([row(0, 1), row(0, 1)], 2)
    assert use.weights_bytes == 2 * (12 + 4) + 4 * (4 + 3)
    assert use.gradients_bytes == 2 * (12 + 4)


def test_every_thread_has_a_sample_of_its_own_and_the_weights_are_shared() -> None:
    one, four = (memory_of(two_layers()).fullest([row(0, threads=h), row(0, threads=h)], 1) for h in (1, 4))
    assert four.activations_per_sample_bytes == 4 * one.activations_per_sample_bytes
    assert four.weights_bytes == one.weights_bytes


def test_stripes_of_a_convolution_hold_all_of_its_weights_and_some_of_its_rows() -> None:
    net = Builder((1, 4, 4)).conv("c", 2, kernel=3, padding=1, bias=False).build("n", source="own")
    use = memory_of(net, reserve_bytes=1000.0).fullest([row(0, 1)], 2)
    assert use.weights_bytes == 4 * 18
    assert use.activations_per_sample_bytes == 4 * (2 * 2 * 4 + 3 * 4)  # two rows out, three in
    assert use.total_bytes(1) == 1000 + 2 * 4 * 18 + 4 * 28


@pytest.mark.parametrize(
    ("before", "after", "received"),
    [
        (((0,),), ((0,), (1,)), [0, 4]),  # two replicas after one: the first has all of it at hand
        (((0,), (1,)), ((0,),), [4]),  # half of the samples come from worker 1, each of which needs its place
        (((0,), (1,)), ((1,), (0,)), [4, 4]),  # replicas that never have the same sample
        (((0,), (1,)), ((2,), (3,), (0,), (1,)), [4, 4, 0, 0]),  # the third has the samples of the first, and so on
        (((0,), (1,)), ((2,), (0,), (1,), (3,)), [4, 4, 4, 4]),  # and these stand beside the others' samples
    ],
)
def test_a_segment_has_at_hand_only_what_its_worker_holds_of_all_its_samples(
    before: tuple[tuple[int, ...], ...], after: tuple[tuple[int, ...], ...], received: list[int]
) -> None:
    first, second = (LayerChoice(num_threads=1, workers=workers) for workers in (before, after))
    found = memory_of(two_layers())._received(1, second, first)
    assert found.ravel().tolist() == received


@pytest.mark.parametrize(("dtype", "threads"), [("fp32", 1), ("fp16", 3)])
def test_one_worker_holds_what_a_device_of_data_parallel_training_does_but_the_optimisers_state(
    dtype: str, threads: int
) -> None:
    net = Builder((2, 8, 8)).conv("c", 3, kernel=3, padding=1).max_pool("p", kernel=2, stride=2).flatten("f")
    dnn = net.fully_connected("a", 5).build("n", source="own")
    precision = Precision.of(dtype, "adam")
    model = ReplicaModel(SegmentWork(chain_of(dnn), CONSTANTS))
    stored = [3 * 64, sum(one.num_stored_elements for one in dnn.layers if one.name in ("p", "f")), 5]
    memory = ReplicaMemory(model.work, [Kept(num_moving=0, num_stored=one) for one in stored], precision)
    ours = memory.fullest([LayerChoice.spread(1, num_threads=threads)] * 3, 1)
    theirs = data_parallel_memory(dnn, precision)
    assert ours.total_bytes(1) == theirs.total_bytes(threads) - theirs.optimizer_bytes


@given(models(), st.integers(1, 4), st.data())
@settings(deadline=None, max_examples=80)
def test_bounds_hold_for_any_states_and_maps(model: ReplicaModel, num_workers: int, data: Any) -> None:
    kept = [Kept(num_moving=0, num_stored=stage.num_neurons) for stage in model.stages]
    memory = ReplicaMemory(model.work, kept, FP32, reserve_bytes=10.0)
    layers, together, largest = [], 0.0, 0.0
    for index, stage in enumerate(model.stages):
        states = all_states(stage.output_shape, num_workers, (1, 2))
        state = data.draw(st.integers(0, states.workers.size - 1))
        p, r, h = states.at(state)
        places = data.draw(st.permutations(range(num_workers)))[: p * r]
        layers.append(LayerChoice(num_threads=h, workers=tuple(tuple(places[k * p : (k + 1) * p]) for k in range(r))))
        every, one = memory.of_states(index, states)
        together, largest = together + every[state], max(largest, one[state])
    used = memory.by_worker(layers, num_workers).sum(axis=0)
    fullest = memory.fullest(layers, num_workers).total_bytes(1)
    assert fullest == used.max() + 10.0
    assert together <= used.sum()
    assert largest <= used.max()
    assert fullest <= memory.most_bytes(2)
    spread = memory.spread(layers, num_workers)
    chosen = ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=num_workers, layers=spread)
    assert broken_constraints(chosen, Limits(num_machines=9, num_cores=2), model.stages) == ()
    for one_layer, other in zip(layers, spread, strict=True):
        assert (one_layer.num_threads, np.shape(one_layer.workers)) == (other.num_threads, np.shape(other.workers))


def test_levelled_maps_spread_layers_that_would_all_be_on_one_worker() -> None:
    net = Builder((8,))
    for index in range(4):
        net.fully_connected(f"l{index}", 8, bias=False)
    memory = memory_of(net.build("n", source="own"))
    together = [row(0)] * 4
    levelled = memory.spread(together, 4)
    assert sorted(layer.workers[0][0] for layer in levelled) == [0, 1, 2, 3]
    assert memory.fullest(levelled, 4).total_bytes(1) < memory.fullest(together, 4).total_bytes(1) / 3


def test_equal_layers_are_counted_like_any_others() -> None:
    net = Builder((8,))
    for index in range(5):
        net.fully_connected(f"l{index}", 8, bias=False)
    memory = memory_of(net.build("n", source="own"))
    for first, second in product((1, 2), repeat=2):
        layers = [LayerChoice.spread(first), *[LayerChoice.spread(second)] * 4]
        slow = sum(
            memory.of_layer(index, layer, layers[index - 1] if index else None).sum(axis=0)[0]
            for index, layer in enumerate(layers)
        )
        assert memory.by_worker(layers, 2).sum(axis=0)[0] == slow
