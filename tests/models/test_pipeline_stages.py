from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import Affine, Profile
from planner.dnn import Dnn, Layer, Tensor
from planner.models.activations import data_parallel_memory
from planner.models.communication import ring_all_reduces, two_level_all_reduces
from planner.models.memory import Precision
from planner.models.stages import LayerBytes, Place, PlaceError, Stage, StageCosts, StageMachines, places_of

ADAM = Precision.of("fp16", "adam")


def layer(name: str, size: int, parameters: int = 0, moving: int = 0, *, in_place: bool = False) -> Layer:
    tensors = (
        Tensor(name=f"{name}.w", num_elements=parameters),
        Tensor(name=f"{name}.m", num_elements=moving, role="moving"),
    )
    return Layer(name=name, kind="operator", output_shape=(size,), tensors=tensors, is_in_place=in_place)


DNN = Dnn(
    "branched",
    [
        (layer("a", 10, 3), []),
        (layer("b", 20, 0), ["a"]),
        (layer("c", 20, 5, 2, in_place=True), ["b"]),
        (layer("d", 4, 8), ["a", "c"]),
    ],
)
PROFILE = Profile(
    forward_s=np.array([1.0, 2.0, 4.0, 8.0]), backward_s=np.array([16.0, 32.0, 64.0, 128.0]), update_s=16.0
)
GROUP = StageMachines(
    name="g", num_machines=3, devices_per_machine=4, profile=PROFILE,
    network_bytes_per_s=10.0, network_latency_s=0.5, inside_bytes_per_s=40.0, inside_latency_s=0.25,
)  # fmt: skip
COSTS = StageCosts(
    layers=LayerBytes.of(DNN, ADAM), machines=(GROUP, GROUP), latency_s=np.array([[0.5, 0.75], [0.75, 0.5]])
)


def place(start: int, replicas: int, group: int = 0) -> Place:
    return Place(group=group, start=start, replicas=replicas, devices_per_machine=4)


@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5))
def test_a_stage_costs_what_its_layers_cost(first: int, last: int, samples: int) -> None:
    if last < first:
        return
    run = slice(first, last + 1)
    assert COSTS.forward_s(first, last, group=0, num_samples=samples) == pytest.approx(
        samples * PROFILE.forward_s[run].sum()
    )
    assert COSTS.backward_s(first, last, group=1, num_samples=samples) == pytest.approx(
        samples * PROFILE.backward_s[run].sum()
    )
    trainable = sum(one.num_trainable for one in DNN.layers[run])
    assert COSTS.update_s(first, last, group=0) == pytest.approx(16.0 * trainable / 16)
    assert COSTS.gradient_bytes(first, last) == pytest.approx(2 * trainable)
    memory = COSTS.memory(first, last, num_samples=samples)
    moving = sum(one.num_moving for one in DNN.layers[run])
    stored = sum(one.num_stored_elements for one in DNN.layers[run])
    received, sent = [0, 10, 30, 30, 0][first], [0, 10, 30, 30, 0][last + 1]
    assert memory.weights_bytes == pytest.approx(2 * trainable + 4 * moving)
    assert memory.gradients_bytes == pytest.approx(2 * trainable)
    assert memory.optimizer_bytes == pytest.approx((4 + 8) * trainable)
    assert memory.in_flight_bytes == pytest.approx(2 * samples * (stored + received))
    assert memory.error_bytes == pytest.approx(2 * samples * (received + sent))
    fixed = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes + memory.error_bytes
    assert memory.total_bytes(3) == pytest.approx(fixed + 3 * memory.in_flight_bytes)


def test_arrays_of_stages_are_answered_as_one_by_one() -> None:
    first, last = np.array([0, 1, 2]), np.array([3, 2, 3])
    pairs = list(zip(first.tolist(), last.tolist(), strict=True))
    for many, each in (
        (
            COSTS.forward_s(first, last, group=0, num_samples=2),
            [COSTS.forward_s(i, j, group=0, num_samples=2) for i, j in pairs],
        ),
        (
            COSTS.memory(first, last, num_samples=2).total_bytes(2),
            [COSTS.memory(i, j, num_samples=2).total_bytes(2) for i, j in pairs],
        ),
        (COSTS.gradient_bytes(first, last), [COSTS.gradient_bytes(i, j) for i, j in pairs]),
    ):
        assert np.asarray(many).tolist() == pytest.approx(each)


def test_the_whole_network_on_one_device_holds_what_data_parallelism_does() -> None:
    whole = COSTS.memory(0, 3, num_samples=5)
    assert whole.total_bytes(1) == pytest.approx(data_parallel_memory(DNN, ADAM).total_bytes(5))


# -- places ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 7)), min_size=1, max_size=5))
def test_stages_take_devices_one_after_another_and_fill_machines(taken: list[tuple[int, int]]) -> None:
    machines = (GROUP, StageMachines(name="h", num_machines=9, devices_per_machine=3, profile=PROFILE))
    stages = [Stage(first=0, last=0, group=group, replicas=replicas) for group, replicas in taken]
    needed = [sum(one.replicas for one in stages if one.group == group) for group in (0, 1)]
    if needed[0] > 12 or needed[1] > 27:
        with pytest.raises(PlaceError) as error:
            places_of(stages, machines)
        assert needed[error.value.group] == error.value.needed
        return
    free = {0: list(range(12)), 1: list(range(27))}
    for one in places_of(stages, machines):
        mine = [free[one.group].pop(0) for _ in range(one.replicas)]
        size = machines[one.group].devices_per_machine
        counts = [
            sum(device // size == machine for device in mine) for machine in sorted({device // size for device in mine})
        ]
        assert one.start == mine[0]
        assert one.first_machine == mine[0] // size
        assert one.num_machines == len(counts)
        assert one.most_per_machine == max(counts)
        assert one.is_even == (len(set(counts)) == 1)


# -- communication -----------------------------------------------------------------------------------------------------


def test_a_boundary_inside_a_machine_takes_its_link_and_any_other_the_network() -> None:
    size = 2 * 30 * 3  # bytes of cut 2, three samples of two bytes a number

    def seconds(before: Place, after: Place) -> float:
        return float(COSTS.transfer_s(2, before, after, microbatch_size=3))

    assert seconds(place(0, 1), place(1, 2)) == pytest.approx(0.25 + size / 40)
    assert seconds(place(0, 2), place(2, 2)) == pytest.approx(0.25 + size / 80)  # two links beside one another
    assert seconds(place(0, 2), place(2, 4)) == pytest.approx(0.5 + size / 10)  # partly on the next machine
    assert seconds(place(0, 4), place(4, 4)) == pytest.approx(0.5 + size / 10)
    assert seconds(place(0, 6), place(6, 6)) == pytest.approx(0.5 + size / 20)  # two machines each
    assert seconds(place(0, 4), place(0, 4, group=1)) == pytest.approx(0.75 + size / 10)
    assert seconds(place(0, 4), place(0, 4)) == 0  # chunks of one device
    assert COSTS.transfer_s(0, place(0, 4), place(4, 4), microbatch_size=3) == 0  # nothing crosses, no latency either


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (place(0, 1), 0.0),
        (place(0, 4), float(ring_all_reduces(num_devices=[4], bandwidth_bytes_per_s=40.0, latency_s=0.25, overhead_s=1.0).at(0)(np.array(32.0)))),
        (
            place(0, 8),
            float(
                two_level_all_reduces(
                    num_machines=[2], devices_per_machine=4, inside_bytes_per_s=40.0, network_bytes_per_s=10.0,
                    inside_latency_s=0.25, network_latency_s=0.5, overhead_s=1.0,
                ).at(0)(np.array(32.0))
            ),
        ),
        (place(2, 4), float(two_level_all_reduces(num_machines=[2], devices_per_machine=2, inside_bytes_per_s=40.0, network_bytes_per_s=10.0, inside_latency_s=0.25, network_latency_s=0.5, overhead_s=1.0).at(0)(np.array(32.0)))),
        (place(3, 6), float(ring_all_reduces(num_devices=[6], bandwidth_bytes_per_s=10.0, latency_s=0.5, overhead_s=1.0).at(0)(np.array(32.0)))),
    ],
)  # fmt: skip
def test_replicas_exchange_gradients_by_what_their_machines_allow(where: Place, expected: float) -> None:
    machines = StageMachines(
        name="g", num_machines=3, devices_per_machine=4, profile=PROFILE, network_bytes_per_s=10.0, network_latency_s=0.5,
        inside_bytes_per_s=40.0, inside_latency_s=0.25, overhead_s=1.0, algorithms=("ring", "two_level"),
    )  # fmt: skip
    costs = StageCosts(layers=COSTS.layers, machines=(machines,), latency_s=np.zeros((1, 1)))
    assert costs.sync_s(0, 3, where) == pytest.approx(expected)


def test_a_ring_of_one_device_in_each_machine_waits_for_the_network_alone() -> None:
    ring = replace(GROUP, algorithms=("ring",))
    costs = StageCosts(layers=COSTS.layers, machines=(ring,), latency_s=np.zeros((1, 1)))
    assert costs.sync_s(0, 3, place(3, 2)) == pytest.approx(2 * (0.5 + 32.0 / 2 / 10.0))


def test_a_measured_curve_goes_before_and_uneven_machines_fall_back_to_the_ring() -> None:
    curve = Affine(startup_s=3.0, per_byte_s=1.0)
    for algorithms, where, expected in (
        (("ring",), place(0, 6), 2.0 + 3.0 + 32.0),
        (
            ("two_level",),
            place(3, 7),
            float(ring_all_reduces(num_devices=[7], bandwidth_bytes_per_s=10.0).at(0)(np.array(32.0))) + 2.0,
        ),
    ):
        machines = StageMachines(
            name="g", num_machines=3, devices_per_machine=4, profile=PROFILE, network_bytes_per_s=10.0, delay_s=2.0,
            algorithms=algorithms, curves={6: curve},
        )  # fmt: skip
        costs = StageCosts(layers=COSTS.layers, machines=(machines,), latency_s=np.zeros((1, 1)))
        assert costs.sync_s(0, 3, where) == pytest.approx(expected)


def test_a_stage_without_parameters_exchanges_and_updates_nothing() -> None:
    assert COSTS.sync_s(1, 1, place(0, 8)) == 0
    assert COSTS.update_s(1, 1, group=0) == 0
    bare = Dnn("bare", [(layer("x", 3), [])])
    costs = StageCosts(layers=LayerBytes.of(bare, ADAM), machines=(GROUP,), latency_s=np.zeros((1, 1)))
    assert costs.update_s(0, 0, group=0) == 0
