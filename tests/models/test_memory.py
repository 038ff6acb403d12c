import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import zoo
from planner.dnn import Dnn, Layer, Tensor
from planner.models.activations import data_parallel_memory
from planner.models.memory import OPTIMIZER_BYTES, MemoryUse, Precision


@pytest.mark.parametrize(
    ("dtype", "optimizer", "bytes_per_parameter"),
    [
        ("bf16", "adam", 16),  # 2 + 2 + 4 + 8
        ("fp16", "adam", 16),
        ("fp32", "adam", 16),  # 4 + 4 + 8
        ("tf32", "adam", 16),
        ("fp32", "momentum", 12),
        ("bf16", "momentum", 12),
        ("fp32", "sgd", 8),
        ("fp16", "sgd", 8),
    ],
)
def test_bytes_a_parameter(dtype: str, optimizer: str, bytes_per_parameter: int) -> None:
    dnn = zoo.build("vgg16")
    use = data_parallel_memory(dnn, Precision.of(dtype, optimizer))
    assert use.fixed_bytes == bytes_per_parameter * 138_357_544


def test_every_optimizer_keeps_its_state() -> None:
    known = {name: Precision.of("fp32", name).optimizer_bytes for name in OPTIMIZER_BYTES}
    assert known | {"sgd": 0, "momentum": 4, "adam": 8, "adamw": 8, "adam_bf16": 4, "muon": 8} == known
    assert 2 < known["adam_8bit"] < 2.1
    assert known["adafactor"] < 0.01


def test_terms_by_hand() -> None:
    statistics = Tensor(name="mean", num_elements=2, role="moving")
    layers = [
        Layer(name="image", kind="input", output_shape=(6,)),
        Layer(name="fc", kind="fully_connected", output_shape=(5,), tensors=(Tensor(name="w", num_elements=30),)),
        Layer(name="norm", kind="batch_norm", output_shape=(5,), tensors=(statistics,)),
        Layer(name="relu", kind="activation", output_shape=(5,), is_in_place=True),
    ]
    dnn = Dnn("tiny", [(one, [layers[at - 1].name] if at else []) for at, one in enumerate(layers)])
    use = data_parallel_memory(dnn, Precision.of("bf16", "adam"), reserve_bytes=1000)
    assert (use.weights_bytes, use.gradients_bytes, use.optimizer_bytes) == (30 * 2 + 2 * 4, 60, 360)
    assert use.activations_per_sample_bytes == 2 * (6 + 5 + 5)
    assert use.total_bytes(10) == pytest.approx(68 + 60 + 360 + 1000 + 320)


uses = st.builds(
    MemoryUse,
    weights_bytes=st.integers(0, 10**12),
    gradients_bytes=st.integers(0, 10**12),
    optimizer_bytes=st.integers(0, 10**12),
    activations_per_sample_bytes=st.integers(1, 10**10),
    reserve_bytes=st.integers(0, 10**11).map(float),
)


@given(uses, st.integers(0, 2**45).map(float))
def test_as_many_samples_fit_as_total_bytes_allows_and_no_more(use: MemoryUse, limit_bytes: float) -> None:
    most = use.most_samples(limit_bytes)
    assert use.total_bytes(most + 1) > limit_bytes
    assert most == 0 or use.total_bytes(most) <= limit_bytes


@given(uses, st.integers(0, 10_000))
def test_every_sample_costs_the_same(use: MemoryUse, num_samples: int) -> None:
    grown = use.total_bytes(num_samples) - use.total_bytes(0)
    assert grown == pytest.approx(num_samples * use.activations_per_sample_bytes)
    assert use.total_bytes(0) == use.fixed_bytes


@pytest.mark.parametrize(("activations", "limit_bytes"), [(8, math.inf), (0, 100.0), (0, math.inf)])
def test_without_a_limit_or_activations_any_number_fits(activations: int, limit_bytes: float) -> None:
    use = MemoryUse(
        weights_bytes=40,
        gradients_bytes=40,
        optimizer_bytes=0,
        activations_per_sample_bytes=activations,
        reserve_bytes=0,
    )
    assert use.most_samples(limit_bytes) > 10**15
    assert use.most_samples(79) == 0
