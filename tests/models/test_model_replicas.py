"""The Adam model: each equation by hand, its properties, and the sums that the paper's text allows."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import zoo
from planner.errors import ModelError
from planner.models.replica_segments import (
    ByPartitions,
    ByThreads,
    ByWorkingSet,
    Connections,
    Constants,
    LayerChoice,
    ReplicaConfiguration,
    SegmentWork,
    Stage,
    chain_of,
)
from planner.models.replicas import EpochTime, Reading, ReplicaModel, Training, least_reading_s, most_reading_s
from planner.zoo.builder import Builder

MNIST, IMAGENET = (chain_of(zoo.build(name)) for name in ("adam-mnist", "adam-imagenet22k"))
CONSTANTS = Constants(
    multiply_add_s=lambda size, partitions: 2e-9,
    activation_s=3e-9,
    error_s=5e-9,
    bandwidth_bytes_per_s=1.25e9,
    latency_s=lambda threads: 50e-6,
)
MODEL = ReplicaModel(SegmentWork(MNIST, CONSTANTS))
TRAINING = Training(num_samples=60_000, samples_per_read=70, samples_per_write=40)
counts = st.integers(1, 4)


def uniform(workers: int, replicas: int, servers: int, *, threads: int = 16, layers: int = 7) -> ReplicaConfiguration:
    """<workers, replicas, servers>."""
    layer = LayerChoice.spread(workers, num_threads=threads)
    return ReplicaConfiguration(
        num_workers=workers, num_replicas=replicas, num_servers=servers, layers=(layer,) * layers
    )


def fully_connected(*sizes: int) -> tuple[Stage, ...]:
    net = Builder((sizes[0],))
    for index, size in enumerate(sizes[1:]):
        net.fully_connected(f"fc{index}", size, bias=False)
    return chain_of(net.build("fc", source="own"))


@st.composite
def configurations(draw: st.DrawFn) -> ReplicaConfiguration:
    """Any P, H, R and map of MNIST's layers on 4 workers."""
    layers = []
    for _ in MNIST:
        partitions = draw(st.integers(1, 4))
        replicas = draw(st.integers(1, 4 // partitions))
        places = draw(st.permutations(range(4)))
        rows = (tuple(places[r * partitions : (r + 1) * partitions]) for r in range(replicas))
        layers.append(LayerChoice(num_threads=draw(st.integers(1, 16)), workers=tuple(rows)))
    return ReplicaConfiguration(
        num_servers=draw(counts), num_replicas=draw(counts), num_workers=4, layers=tuple(layers)
    )


# -- equations by hand -----------------------------------------------------------------------------------------------


def test_equations_5_to_8_of_two_layers_by_hand() -> None:
    model = ReplicaModel(SegmentWork(fully_connected(6, 4, 2), CONSTANTS))
    two = LayerChoice.spread(2, num_threads=10)
    # A segment of the first layer: 2 neurons of 6 connections, and 2 from above; it gets one remote error term.
    assert model.forward(0, two, None).total_s == pytest.approx(2e-9 * 12 + 3e-9 * 2)
    message_s = 50e-6 + 1 * 4 * 10 / 1.25e9  # a thread has a tenth of the bandwidth
    assert model.backward(0, two, two).total_s == pytest.approx(2e-9 * 4 + 5e-9 * 2 + message_s)
    assert model.update(0, two).total_s == pytest.approx(2e-9 * 12)
    # One of the second: 1 neuron of 4 connections, of which 2 are remote; no error terms.
    assert model.forward(1, two, two).total_s == pytest.approx(2e-9 * 4 + 3e-9 + 50e-6 + 2 * 4 * 10 / 1.25e9)
    assert model.backward(1, two, None).total_s == pytest.approx(5e-9)


def test_equation_9_multiplies_computation_and_not_communication() -> None:
    slow = ReplicaModel(SegmentWork(MNIST, replace(CONSTANTS, interference=ByThreads(((1, 1.0), (16, 2.0))))))
    ours, theirs = (model.epoch(uniform(2, 9, 2), TRAINING).parts_s for model in (MODEL, slow))
    assert theirs["receive_activations"] == pytest.approx(ours["receive_activations"])
    assert theirs["update"] == pytest.approx(2 * ours["update"])


def test_equations_10_and_11_by_hand() -> None:
    configuration = uniform(2, 9, 3)
    transfer_s = 759_400 * 4 / 1.25e9
    assert most_reading_s(MNIST, configuration, CONSTANTS) == pytest.approx(5 * 50e-6 + 9 * transfer_s)
    assert least_reading_s(MNIST, configuration, CONSTANTS) == pytest.approx(5 * 50e-6 + transfer_s / 2)
    printed = MODEL.reading_s(configuration, TRAINING)
    assert printed == pytest.approx(60_000 / 70 * (5 * 50e-6 + transfer_s / 2))


def test_the_mix_places_reading_between_both() -> None:
    least_s, most_s = (MODEL.reading_s(uniform(2, 9, 2), replace(TRAINING, mix=mix)) for mix in (0.0, 1.0))
    assert MODEL.reading_s(uniform(2, 9, 2), replace(TRAINING, mix=0.25)) == pytest.approx(
        0.75 * least_s + 0.25 * most_s
    )
    with pytest.raises(ModelError, match=r"mix 1\.5: M_w lies between"):
        MODEL.reading_s(uniform(2, 9, 2), replace(TRAINING, mix=1.5))


# -- properties ------------------------------------------------------------------------------------------------------


@given(configurations())
@settings(deadline=None, max_examples=50)
def test_the_epoch_is_the_sum_of_its_parts_and_of_its_layers(configuration: ReplicaConfiguration) -> None:
    found = MODEL.epoch(configuration, TRAINING)
    layers_s = 60_000 * sum(layer.per_sample_s for layer in found.layers)
    assert found.epoch_time_s == pytest.approx(sum(found.parts_s.values()))
    assert found.epoch_time_s == pytest.approx(found.parts_s["read"] + layers_s)
    assert found.read_bytes * 70 == pytest.approx(found.written_bytes * 40)


@given(configurations())
@settings(deadline=None, max_examples=50)
def test_reading_is_bounded_and_the_modes_keep_their_order(configuration: ReplicaConfiguration) -> None:
    least_s, most_s = (bound(MNIST, configuration, CONSTANTS) for bound in (least_reading_s, most_reading_s))
    assert least_s <= most_s
    free = ReplicaModel(SegmentWork(MNIST, replace(CONSTANTS, latency_s=lambda threads: 0.0)))
    seconds = {mode: free.reading_s(configuration, replace(TRAINING, reading=mode)) for mode in Reading}
    slack = 1 + 1e-12
    assert seconds[Reading.REPLICA] <= seconds[Reading.SERIALISED] * slack
    assert seconds[Reading.SERIALISED] <= seconds[Reading.PRINTED] * slack


@given(configurations(), st.sampled_from(Reading), st.integers(2, 5))
@settings(deadline=None, max_examples=50)
def test_less_frequent_reads_shorten_the_epoch(
    configuration: ReplicaConfiguration, reading: Reading, factor: int
) -> None:
    training = replace(TRAINING, reading=reading)
    seldom = replace(training, samples_per_read=70 * factor)
    before, after = (MODEL.epoch(configuration, one) for one in (training, seldom))
    assert after.epoch_time_s < before.epoch_time_s
    assert after.parts_s["read"] * factor == pytest.approx(before.parts_s["read"])


@given(configurations(), st.permutations(range(4)))
@settings(deadline=None, max_examples=50)
def test_relabelling_the_workers_changes_nothing(configuration: ReplicaConfiguration, names: list[int]) -> None:
    layers = tuple(
        replace(one, workers=tuple(tuple(names[worker] for worker in row) for row in one.workers))
        for one in configuration.layers
    )
    renamed = MODEL.epoch(replace(configuration, layers=layers), TRAINING)
    assert renamed.epoch_time_s == pytest.approx(MODEL.epoch(configuration, TRAINING).epoch_time_s)


def remote(found: EpochTime) -> list[float]:
    """Remote activations and error terms of every layer."""
    return [phase.num_received for layer in found.layers for phase in (layer.forward, layer.backward)]


@given(counts, counts, st.integers(1, 16))
def test_one_worker_receives_nothing(replicas: int, servers: int, threads: int) -> None:
    found = MODEL.epoch(uniform(1, replicas, servers, threads=threads), TRAINING)
    assert not any(remote(found))
    assert found.parts_s["receive_activations"] == found.parts_s["receive_errors"] == 0


def test_the_first_layer_receives_no_activations_and_the_last_no_error_terms() -> None:
    found = MODEL.epoch(uniform(4, 4, 4), TRAINING)
    assert found.layers[0].forward.num_received == found.layers[-1].backward.num_received == 0
    assert all(found.layers[index].forward.num_received > 0 for index in (2, 4, 5, 6))  # pools fit their stripes


# -- layer replication (section 6.4) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_neurons", [8, 3000])
def test_partitioned_an_output_layer_receives_n_activations_of_a_sample_and_replicated_half(num_neurons: int) -> None:
    stages = fully_connected(10, num_neurons, 6)
    model = ReplicaModel(SegmentWork(stages, CONSTANTS))
    hidden, partitioned = LayerChoice.spread(2), LayerChoice.spread(2)
    replicated = LayerChoice.spread(1, num_replicas=2)
    assert model.forward(1, partitioned, hidden).num_received == num_neurons
    assert model.forward(1, replicated, hidden).num_received == num_neurons / 2


def test_a_replicated_layer_is_read_as_often_as_it_is_replicated() -> None:
    stages = fully_connected(10, 8, 6)
    once, twice = (
        ReplicaConfiguration(num_servers=1, num_replicas=1, num_workers=2, layers=(LayerChoice.spread(2), output))
        for output in (LayerChoice.spread(2), LayerChoice.spread(1, num_replicas=2))
    )
    model = ReplicaModel(SegmentWork(stages, replace(CONSTANTS, latency_s=lambda threads: 0.0)))
    sizes = [model.epoch(one, TRAINING).read_bytes * 70 / 60_000 / 4 for one in (once, twice)]
    assert sizes == [pytest.approx(80 + 48), pytest.approx(80 + 2 * 48)]
    assert model.reading_s(twice, TRAINING) / model.reading_s(once, TRAINING) == pytest.approx((80 + 96) / (80 + 48))


def test_samples_meet_the_replicas_of_neighbouring_layers_in_turn() -> None:
    # 2 replicas on workers 0 and 1, then 3 on 0, 1 and 2: of 6 samples in turn only k = 0 and 1 stay on their worker.
    model = ReplicaModel(SegmentWork(fully_connected(10, 9, 6), CONSTANTS))
    two, three = (LayerChoice.spread(1, num_replicas=number) for number in (2, 3))
    assert model.forward(1, three, two).num_received == pytest.approx(9 * 4 / 6)
    assert model.backward(0, two, three).num_received == pytest.approx(6 * 4 / 6)
    # Replica 2 receives something with each of its samples and so lasts longest; replica 0 with every other one.
    assert model.forward(1, three, two).receive_s == pytest.approx(50e-6 + 9 * 4 / 1.25e9)


def test_replication_multiplies_the_degree_of_data_parallelism() -> None:
    stages = fully_connected(10, 8)
    configuration = ReplicaConfiguration(
        num_servers=1, num_replicas=3, num_workers=2, layers=(LayerChoice.spread(1, num_threads=5, num_replicas=2),)
    )
    (layer,) = ReplicaModel(SegmentWork(stages, CONSTANTS)).layer_times(configuration)
    assert layer.parallelism == 5 * 2 * 3


# -- functions passed in ---------------------------------------------------------------------------------------------


def test_a_smaller_working_set_makes_model_parallelism_super_linear() -> None:
    cached = ByWorkingSet(((1e6, 1e-9), (1e8, 3e-9)))
    model = ReplicaModel(SegmentWork(fully_connected(3000, 3000), replace(CONSTANTS, multiply_add_s=cached)))
    one_s, four_s = (model.update(0, LayerChoice.spread(number)).total_s for number in (1, 4))
    assert one_s / four_s > 4


def test_a_number_of_partitions_or_threads_that_was_not_measured_is_refused() -> None:
    model = ReplicaModel(SegmentWork(MNIST, replace(CONSTANTS, multiply_add_s=ByPartitions({1: 1e-9, 2: 1e-9}))))
    with pytest.raises(ModelError, match="C_muladd is known for P = 1, 2, not for 4"):
        model.epoch(uniform(4, 1, 1), TRAINING)
    with pytest.raises(ModelError, match="32 threads: known for 1 to 16 only"):
        ByThreads(((1, 1.0), (16, 2.0)))(32)


def test_the_latency_may_grow_with_the_threads() -> None:
    slow = ReplicaModel(SegmentWork(MNIST, replace(CONSTANTS, latency_s=ByThreads(((1, 50e-6), (16, 200e-6))))))
    two = LayerChoice.spread(2, num_threads=16)
    ours, theirs = (model.forward(4, two, two).receive_s for model in (MODEL, slow))
    assert theirs - ours == pytest.approx(150e-6)


def test_an_unrolled_recurrent_layer_takes_a_step_after_the_other_and_reads_its_weights_once() -> None:
    step = Stage(
        name="rnn", kind="fully_connected", input_shape=(4,), output_shape=(4,), num_connections=32, num_weights=32
    )
    later = replace(step, num_weights=0)  # all steps share the weights, which are read once
    once, thrice = (ReplicaModel(SegmentWork(steps, CONSTANTS)) for steps in ((step,), (step, later, later)))
    one, three = (uniform(1, 1, 1, layers=number) for number in (1, 3))
    assert thrice.reading_s(three, TRAINING) == pytest.approx(once.reading_s(one, TRAINING))
    parts = [model.epoch(given, TRAINING).parts_s for model, given in ((once, one), (thrice, three))]
    assert parts[1]["forward"] == pytest.approx(3 * parts[0]["forward"])
    assert parts[1]["backward"] > 3 * parts[0]["backward"]  # each step but the last has connections above it


def test_even_connections_are_those_counted_where_every_row_has_as_many() -> None:
    counted, even = (
        ReplicaModel(SegmentWork(IMAGENET, CONSTANTS, connections=one)).epoch(uniform(4, 4, 4, layers=11), TRAINING)
        for one in Connections
    )
    assert counted.epoch_time_s == pytest.approx(even.epoch_time_s)
    counted, even = (
        ReplicaModel(SegmentWork(MNIST, CONSTANTS, connections=one)).epoch(uniform(4, 4, 4), TRAINING)
        for one in Connections
    )
    assert counted.parts_s["backward"] > even.parts_s["backward"]


# -- what the paper's text allows to check ---------------------------------------------------------------------------


def test_an_epoch_of_fifteen_million_images_cannot_take_12_minutes() -> None:
    connections = sum(stage.num_connections for stage in IMAGENET)
    peak_multiply_adds_per_s = 16 * 268.8e9 / 2
    assert 3 * connections * 15e6 / peak_multiply_adds_per_s / 60 == pytest.approx(705, rel=0.01)


def test_printed_reading_with_all_of_the_worst_case_counts_the_replicas_twice() -> None:
    # Section 6.2.2's order of <2,9,2> and <4,4,4> for MNIST holds with M_min only: a little of M_max turns it round.
    slow = replace(
        CONSTANTS, multiply_add_s=lambda size, partitions: 1 / (0.05 * 8.4e9), activation_s=1e-9, error_s=1e-9
    )
    model = ReplicaModel(SegmentWork(MNIST, slow, connections=Connections.EVEN))
    best, other = uniform(2, 9, 2), uniform(4, 4, 4)
    assert model.epoch(best, TRAINING).epoch_time_s < model.epoch(other, TRAINING).epoch_time_s
    mixed = replace(TRAINING, mix=0.05)
    assert model.epoch(best, mixed).epoch_time_s > model.epoch(other, mixed).epoch_time_s
