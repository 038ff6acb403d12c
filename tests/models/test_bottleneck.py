from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner import zoo
from planner.cases.forms import gst
from planner.cases.forms.gst import ServerNetwork, Workload, evaluate
from planner.errors import ModelError
from planner.models.compression import Compression
from planner.models.data_parallel import standard_maximum
from tests.referee.equations import evaluate_grid, expected_epoch_time_s
from tests.referee.gst import Steps, epoch_time_s, explicit_input_s

workloads = st.builds(
    lambda layers, forward_s, update_s, input_s: Workload(
        size_bytes=np.array([size for size, _ in layers]),
        backward_s=np.array([time for _, time in layers]),
        forward_s=forward_s,
        update_s=update_s,
        input_s=input_s,
    ),
    st.lists(st.tuples(st.floats(0, 1e8), st.floats(1e-3, 1)), min_size=1, max_size=5),
    st.floats(0, 1),
    st.floats(0, 0.1),
    st.floats(0, 4),
)
networks = st.builds(
    ServerNetwork,
    num_workers=st.integers(1, 16),
    num_servers=st.integers(1, 4),
    bandwidth_bytes_per_s=st.floats(1e7, 1e10),
    base_delay_s=st.floats(0, 1e-3),
    delay_mix=st.floats(0, 1),
)
TWO = Workload(size_bytes=np.array([3e6, 3e6]), backward_s=np.array([1.0, 1.0]), forward_s=1.0)
NET = ServerNetwork(num_workers=2, bandwidth_bytes_per_s=3e6, delay_mix=0.0)


def test_an_iteration_by_hand() -> None:
    # Backward ends at 1 and 2, pushes at 2 and 3, aggregations at 3 and 4, pulls at 4 and 5; forward before it.
    found = evaluate(TWO, NET)
    assert float(found.iteration_time_s) == pytest.approx(6)
    assert float(found.communication_to_computation) == pytest.approx(1)
    assert float(found.speed_up) == pytest.approx(1)  # two workers at half speed


@given(workloads, networks, st.floats(0, 0.5), st.integers(1, 6))
def test_a_steady_iteration_and_an_epoch_are_equations_1_to_9(
    work: Workload, net: ServerNetwork, sigma_s: float, num_iterations: int
) -> None:
    found = evaluate(work, net, sigma_s=sigma_s)
    rest_s = np.full(num_iterations, float(found.computation_s + found.exposed_s))
    input_s = explicit_input_s(np.full(num_iterations, work.input_s), rest_s)
    nothing = np.zeros((1, num_iterations))
    steps = Steps(
        input_s=input_s[None],
        forward_s=nothing + work.forward_s,
        backward_s=nothing + work.backward_s.sum(),
        push_s=nothing + float(found.exposed_s),  # its three parts need not be told apart here
        aggregate_s=nothing,
        pull_s=nothing,
        update_s=nothing + work.update_s,
    )
    slowest_s = num_iterations * sigma_s * standard_maximum(net.num_workers)
    assert float(found.epoch_time_s(num_iterations)) == pytest.approx(epoch_time_s(steps) + slowest_s)
    each_s = np.repeat((input_s + rest_s)[None], net.num_workers, axis=0)  # the update counted where it happens
    assert float(found.epoch_time_s(num_iterations)) == pytest.approx(expected_epoch_time_s(each_s, sigma_s))


@given(workloads, networks)
def test_the_speed_up_is_what_the_ratio_leaves_of_all_workers(work: Workload, net: ServerNetwork) -> None:
    found = evaluate(replace(work, input_s=0.0), net)
    expected = net.num_workers / (1 + float(found.communication_to_computation))
    assert float(found.speed_up) == pytest.approx(expected)
    assert 0 < float(evaluate(work, net, sigma_s=0.1).speed_up) <= net.num_workers + 1e-9


@given(workloads, networks)
def test_an_iteration_is_no_shorter_than_its_busiest_resource(work: Workload, net: ServerNetwork) -> None:
    found = evaluate(work, net)
    assert float(found.iteration_time_s) >= max(work.input_s, work.compute_s) - 1e-9
    packets = np.ceil(work.size_bytes / net.packet_bytes).sum()
    assert float(found.iteration_time_s) >= packets * float(net.packet_time_s) - 1e-9  # one push of everything


@given(workloads, networks, st.floats(0, 1))
def test_more_of_anything_never_hurts_but_stragglers_do(work: Workload, net: ServerNetwork, sigma_s: float) -> None:
    grid = evaluate_grid(work, net, bandwidth_bytes_per_s=[1e7, 1e8, 1e9], compute_speed=[1, 2, 5, 50], sigma_s=sigma_s)
    assert (np.diff(grid.iteration_time_s, axis=0) <= 1e-9).all()
    assert (np.diff(grid.iteration_time_s, axis=1) <= 1e-9).all()
    calm = evaluate_grid(work, net, bandwidth_bytes_per_s=[1e7, 1e8, 1e9], compute_speed=[1, 2, 5, 50])
    assert (calm.iteration_time_s <= grid.iteration_time_s + 1e-9).all()


@given(workloads, networks)
def test_a_grid_is_its_configurations_one_by_one(work: Workload, net: ServerNetwork) -> None:
    rates, speeds = [1e7, 1e9], [0.5, 1, 4]
    grid = evaluate_grid(work, net, bandwidth_bytes_per_s=rates, compute_speed=speeds)
    assert grid.speed_up.shape == (2, 3)
    for row, column in np.ndindex(2, 3):
        alone = evaluate(work, replace(net, bandwidth_bytes_per_s=rates[row]), compute_speed=speeds[column])
        assert grid.iteration_time_s[row, column] == pytest.approx(float(alone.iteration_time_s))
        assert grid.communication_to_computation[row, column] == pytest.approx(
            float(alone.communication_to_computation)
        )


def test_with_next_to_no_bytes_all_workers_count_in_full() -> None:
    idle = evaluate(replace(TWO, size_bytes=np.zeros(2)), replace(NET, num_workers=8))
    assert float(idle.speed_up) == pytest.approx(8)
    assert float(idle.communication_to_computation) == 0


def test_faster_devices_scale_worse_behind_one_network() -> None:
    grid = evaluate_grid(TWO, NET, bandwidth_bytes_per_s=[1e5, 1e10], compute_speed=[1, 100])
    assert grid.speed_up[0, 1] < grid.speed_up[0, 0] < grid.speed_up[1, 0]  # faster devices scale worse


def test_compression_that_removes_and_takes_nothing_changes_nothing() -> None:
    plain = evaluate(TWO, NET)
    same = evaluate(TWO, NET, compression=Compression(removed=0.0, scale_s=0.0))
    half = evaluate(TWO, NET, compression=Compression(removed=0.5, scale_s=0.0))
    assert float(same.iteration_time_s) == pytest.approx(float(plain.iteration_time_s))
    # Pushes end at 1.5 and 2.5, aggregations at 2 and 3, pulls at 2.5 and 3.5.
    assert float(half.exposed_s) == pytest.approx(1.5)


def test_the_time_of_compressing_joins_the_push() -> None:
    # k / 0.25 = 1 s in all, half of it for each layer: pushes end at 2 and 3.
    half = evaluate(TWO, NET, compression=Compression(removed=0.5, scale_s=0.25))
    assert float(half.exposed_s) == pytest.approx(2)


@pytest.mark.parametrize(
    ("piece_bytes", "at_1_gbit", "at_100_gbit"), [(4_096_000, (1.9, 2.6), (0.4, 1.3)), (None, (3.1, 3.3), (0.4, 1.3))]
)
def test_alexnet_against_resnet50_with_assumed_seconds(
    piece_bytes: float | None, at_1_gbit: tuple[float, float], at_100_gbit: tuple[float, float]
) -> None:
    # 3 workers, 1 server; 0.06 s and 0.12 s of computation, by multiply-adds; whole layers let fc6 block the pipeline.
    net = ServerNetwork(num_workers=3, bandwidth_bytes_per_s=np.array([1.25e8, 1.25e10]))
    times_s = []
    for name, compute_s in (("alexnet", 0.06), ("resnet50", 0.12)):
        layers = zoo.build(name).layers[::-1]
        share = np.array([layer.num_multiply_adds for layer in layers]) / sum(one.num_multiply_adds for one in layers)
        sizes = np.array([4.0 * layer.num_trainable for layer in layers])
        work = Workload(size_bytes=sizes, backward_s=share * compute_s * 2 / 3, forward_s=compute_s / 3)
        times_s.append(evaluate(work.in_pieces(piece_bytes) if piece_bytes else work, net).iteration_time_s)
    slow, fast = times_s[0] / times_s[1]
    assert at_1_gbit[0] < slow < at_1_gbit[1]
    assert at_100_gbit[0] < fast < at_100_gbit[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size_bytes": np.array([-1.0, 0])}, "size_bytes is .* It must be finite and not negative"),
        ({"backward_s": np.array([np.nan, 0])}, "backward_s is"),
        ({"forward_s": 0.0, "backward_s": np.zeros(2)}, "take 0 s"),
    ],
)
def test_a_workload_without_ratios_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        replace(TWO, **changes)


@pytest.mark.parametrize(("compute_speed", "sigma_s"), [(0.0, 0.0), (1.0, -1.0)])
def test_no_speed_and_negative_sigma_are_refused(compute_speed: float, sigma_s: float) -> None:
    with pytest.raises(ModelError, match="compute_speed is"):
        evaluate(TWO, NET, compute_speed=compute_speed, sigma_s=sigma_s)


# -- the block of a case ---------------------------------------------------------------------------------------------

ITERATION = {
    "dnn": "alexnet",
    "batch_per_worker": 32,
    "device": "rtx-3090",
    "utilisation": 0.3,
    "num_workers": 3,
    "bandwidth": "10 Gbps",
    "packet": "1500 B",
}


def answer_of(**changes: object) -> dict[str, float]:
    return dict(gst.answer(gst.Inputs.model_validate({"iteration": ITERATION | changes}))["iteration"])


def test_every_input_of_a_case_moves_its_answer() -> None:
    plain = answer_of()
    changes: dict[str, object] = {
        "batch_per_worker": 64,
        "utilisation": 0.4,
        "num_workers": 4,
        "num_servers": 2,
        "bandwidth": "5 Gbps",
        "packet": "9 kB",
        "piece": "4 MB",
        "base_delay": "1 ms",
        "volume_factor": 1.1,
        "switch": "10.001 Gbps",
        "aggregation_startup": "1 ms",
        "aggregation": "5 GB/s",
        "granularity": "1 MB",
        "delay_mix": 0.9,
        "sigma": "10 ms",
        "input": "1 s",
        "update": "10 ms",
        "compression": {"removed": 0.5, "scale": "1 ms"},
        "iterations_per_epoch": 2,
    }
    for name, value in changes.items():
        assert answer_of(**{name: value}) != pytest.approx(plain, rel=1e-9), name


def test_unequal_workers_of_a_case() -> None:
    inputs = gst.Inputs.model_validate({"stragglers": {"means": ["10 s", "1 s"], "sigmas": ["0 s", "0 s"]}})
    assert gst.answer(inputs)["stragglers"]["slowest_s"] == pytest.approx(10)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"stragglers": {}},
        {"stragglers": {"means": ["1 s"]}},
        {"compression": {"transfer": "1 s"}},
        {"queue": {"bandwidth": "1 Gbps", "packet": 1500, "switch": "2 Gbps"}},
        {"iteration": ITERATION | {"delay_mix": 2}},
    ],
)
def test_a_block_that_says_too_little_or_too_much_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        gst.Inputs.model_validate(wrong)


def test_a_saturated_switch_of_a_case_is_refused_with_its_numbers() -> None:
    with pytest.raises(ModelError, match=r"saturated: 833333 packets/s of 1500 bytes arrive.* forwards 833333/s"):
        answer_of(switch="10 Gbps")
