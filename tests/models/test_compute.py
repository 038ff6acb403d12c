import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import zoo
from planner.cluster import Device
from planner.dnn import Dnn, Layer
from planner.errors import ModelError
from planner.models.compute import optimizer_step_s, profile_from_flop
from planner.models.memory import Precision
from planner.models.roofline import peak_flop_per_s

GPU = Device(
    name="gpu", peak_flop_per_s={"fp32": 1e13, "bf16": 8e13}, memory_bandwidth_bytes_per_s=1e12, memory_bytes=2**34
)
LAYERS = Dnn(
    "two",
    [
        (Layer(name="conv", kind="convolution", output_shape=(1,), num_multiply_adds=3_000_000), ()),
        (Layer(name="relu", kind="activation", output_shape=(1,)), ("conv",)),
        (Layer(name="fc", kind="fully_connected", output_shape=(1,), num_multiply_adds=1_000_000), ("relu",)),
    ],
)


def test_a_multiply_add_is_two_flop_and_backward_is_twice_forward() -> None:
    found = profile_from_flop(LAYERS, GPU, dtype="fp32", utilisation=0.5)
    assert found.forward_s == pytest.approx(np.array([6e6, 0, 2e6]) / 5e12)
    assert found.backward_s == pytest.approx(2 * found.forward_s)
    assert not found.is_measured
    assert found.origin == "FLOP at 0.5 of the fp32 peak of gpu"


def test_a_utilisation_that_was_fitted_to_multiply_adds_is_used_with_them() -> None:
    found = profile_from_flop(LAYERS, GPU, dtype="fp32", utilisation=0.25, flop_per_multiply_add=1)
    assert found.forward_s.sum() == pytest.approx(4e6 / 2.5e12)


def test_kinds_of_layers_may_have_utilisations_of_their_own() -> None:
    by_kind = {"convolution": 1.0}
    found = profile_from_flop(LAYERS, GPU, dtype="fp32", utilisation=0.1, utilisation_by_kind=by_kind)
    assert found.forward_s == pytest.approx(np.array([6e6 / 1e13, 0, 2e6 / 1e12]))


@given(st.integers(1, 512), st.floats(0.01, 2), st.floats(0.1, 10))
def test_times_scale_with_batch_peak_and_utilisation(batch: int, utilisation: float, factor: float) -> None:
    def computation_s(batch: int, utilisation: float, peak: float) -> float:
        device = Device(name="any", peak_flop_per_s={"fp32": peak})
        found = profile_from_flop(LAYERS, device, dtype="fp32", utilisation=utilisation)
        return batch * float(found.forward_s.sum() + found.backward_s.sum())

    one_s = computation_s(1, utilisation, 1e13)
    assert one_s == pytest.approx(3 * 8e6 / (1e13 * utilisation))
    assert computation_s(batch, utilisation, 1e13) == pytest.approx(batch * one_s)
    assert computation_s(1, utilisation * factor, 1e13) == pytest.approx(one_s / factor)
    assert computation_s(1, utilisation, 1e13 * factor) == pytest.approx(one_s / factor)


def test_equations_4_to_6_for_vgg16() -> None:
    gpu = Device(name="v100-like", peak_flop_per_s={"fp32": 13.45e12})
    found = profile_from_flop(zoo.build("vgg16"), gpu, dtype="fp32", utilisation=0.62, flop_per_multiply_add=1)
    expected_s = 3 * 32 * 15.470e9 / (0.62 * 13.45e12)
    assert 32 * float(found.forward_s.sum() + found.backward_s.sum()) == pytest.approx(expected_s, rel=1e-4)


def test_a_data_type_without_a_rate_is_refused_with_those_there_are() -> None:
    assert peak_flop_per_s(GPU, "bf16") == 8e13
    with pytest.raises(
        ModelError, match=r"'gpu' has no fp8 rate \(known: bf16, fp32\)\. Set dnn\.dtype to one of them"
    ):
        profile_from_flop(LAYERS, GPU, dtype="fp8", utilisation=1)
    with pytest.raises(ModelError, match=r"'stone' has no fp32 rate \(known: none at all\)"):
        peak_flop_per_s(Device(name="stone"), "fp32")


@pytest.mark.parametrize(
    ("dtype", "optimizer", "touched"),
    [
        ("fp32", "sgd", 4 + 8),  # read the gradient; read and write the weight
        ("fp32", "adam", 4 + 16 + 8),
        ("bf16", "adam", 2 + 2 * 12 + 2),  # the weight itself is only written
        ("bf16", "momentum", 2 + 2 * 8 + 2),
    ],
)
def test_the_optimizers_step_is_what_it_moves(dtype: str, optimizer: str, touched: int) -> None:
    assert optimizer_step_s(10**9, GPU, Precision.of(dtype, optimizer)) == pytest.approx(touched * 1e9 / 1e12)
