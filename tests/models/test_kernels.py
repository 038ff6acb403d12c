"""Seconds of kernels: never below what the device allows, never less for more work, and whole waves."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import data, zoo
from planner.data.fits import kernel_shares
from planner.dnn import Dnn, Layer, Operator, Product, Window
from planner.models.kernels import KINDS, Execution, Shares, kernel_s, kernels_of, layer_seconds
from planner.models.operators import operators_of
from planner.models.roofline import DeviceLimits, power_flop_per_s


def of_all(figure: float) -> dict[str, float]:
    return dict.fromkeys(KINDS, figure)


EXECUTION = Execution.of("fp32", is_fused=False, has_channels_last=True)
DEVICE = DeviceLimits(product_flop_per_s=14e12, bytes_per_s=900e9, num_multiprocessors=80)
SHARES = Shares(
    flop={}, moved={}, start_s=0.0, dispatch_s=0.0, startup=of_all(20.0), waves=of_all(0.5), loads=of_all(0.5)
)
SIZES = st.integers(1, 3000)


def seconds(
    rows: float, inner: int, columns: int, count: int = 1, *, batch: float = 1, shares: Shares = SHARES, **more: Any
) -> float:
    """Seconds of the forward pass of one product."""
    product = Product(rows=rows, inner=inner, columns=columns, count=count)
    operator = Operator(
        kind="batched_matmul",
        read_elements=round(count * inner * (rows + columns)),
        written_elements=round(count * rows * columns),
        product=product,
    )
    layer = Layer(name="product", kind="operator", output_shape=(1,), operators=(operator,))
    kernels = kernels_of(Dnn("one", [(Layer(name="input", kind="input", output_shape=(1,)), ()), (layer, ("input",))]))
    device = replace(DEVICE, **more)
    return float(kernel_s(kernels, batch, device, shares, EXECUTION)[0])


@given(rows=SIZES, inner=SIZES, columns=SIZES, count=st.integers(1, 64))
def test_nothing_is_faster_than_the_peak_and_the_bandwidth(rows: int, inner: int, columns: int, count: int) -> None:
    took = seconds(rows, inner, columns, count)
    assert took >= 2 * rows * inner * columns * count / DEVICE.product_flop_per_s * (1 - 1e-9)
    assert took >= 4 * count * (inner * (rows + columns) + rows * columns) / DEVICE.bytes_per_s * (1 - 1e-9)


@given(rows=SIZES, inner=SIZES, columns=SIZES, batch=st.integers(1, 64), more=st.integers(1, 64))
def test_a_larger_batch_never_takes_less(rows: int, inner: int, columns: int, batch: int, more: int) -> None:
    less = seconds(rows, inner, columns, batch=batch)
    assert seconds(rows, inner, columns, batch=batch + more) >= less * (1 - 1e-9)


@given(rows=SIZES, inner=SIZES, columns=SIZES)
def test_a_faster_device_never_takes_longer(rows: int, inner: int, columns: int) -> None:
    took = seconds(rows, inner, columns)
    assert seconds(rows, inner, columns, product_flop_per_s=28e12) <= took * (1 + 1e-9)
    assert seconds(rows, inner, columns, bytes_per_s=2e12) <= took * (1 + 1e-9)
    assert seconds(rows, inner, columns, sustained_flop_per_s=7e12) >= took * (1 - 1e-9)


def test_a_tile_beyond_a_whole_wave_takes_another_wave() -> None:
    shares = replace(SHARES, waves=of_all(1.0))
    one, two = (seconds(128 * tiles, 4096, 128, shares=shares, bytes_per_s=1e15) for tiles in (80, 160))
    assert two == pytest.approx(2 * one)
    beyond = seconds(128 * 81, 4096, 128, shares=shares, bytes_per_s=1e15)
    assert one * 1.1 < beyond <= two


def test_power_binds_a_board_of_few_watts_only() -> None:
    assert power_flop_per_s(72, 5, 30.3e12) == pytest.approx(0.36 * 30.3e12, rel=0.05)
    assert power_flop_per_s(350, 5, 51e12) > 0.9 * 51e12
    assert power_flop_per_s(250, 7, 19.5e12) > 0.9 * 19.5e12
    assert power_flop_per_s(10, 7, 19.5e12) == 0
    powers = [power_flop_per_s(power, 12, 8.1e12) for power in (50, 70, 100, 200)]
    assert powers == sorted(powers)
    assert power_flop_per_s(70, 12, 8.1e12) > power_flop_per_s(70, 16, 8.1e12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e6])
def test_power_binds_large_devices_as_small_ones(scale: float) -> None:
    peak, power = 14e12 * scale, 10e12 * scale
    free, bound, wide = (
        seconds(4096, 4096, 4096, product_flop_per_s=peak, bytes_per_s=1e25, sustained_flop_per_s=most)
        for most in (float("inf"), power, 1e3 * peak)
    )
    assert bound == pytest.approx(1.4 * free, rel=0.01)
    assert wide == pytest.approx(free)


def test_a_rested_board_starts_at_full_clock() -> None:
    def of(burst_s: float) -> float:
        product = Product(rows=512, inner=512, columns=512, count=1)
        layer = Layer(
            name="product",
            kind="operator",
            output_shape=(1,),
            operators=(Operator(kind="batched_matmul", product=product),),
        )
        dnn = Dnn("one", [(Layer(name="input", kind="input", output_shape=(1,)), ()), (layer, ("input",))])
        device = replace(DEVICE, sustained_flop_per_s=3e12)
        return float(kernel_s(kernels_of(dnn), 1, device, SHARES, EXECUTION, burst_s=burst_s)[0])

    assert of(0.0) > of(1e-4) > of(1e-2)


def convolution(kernel: int, stride: int = 1) -> Dnn:
    """A convolution behind another, so that it has all three gradients."""
    side = 56 // stride
    first = Layer(name="first", kind="activation", output_shape=(128, 56, 56))
    layer = Layer(
        name="convolution",
        kind="convolution",
        output_shape=(256, side, side),
        num_multiply_adds=256 * side**2 * 128 * kernel**2,
        window=Window(kernel=kernel, stride=stride, padding=kernel // 2),
    )
    given = Layer(name="input", kind="input", output_shape=(128, 56, 56))
    return Dnn("convolution", [(given, ()), (first, ("input",)), (layer, ("first",))])


@pytest.mark.parametrize(("kernel", "stride", "is_faster"), [(3, 1, True), (3, 2, False), (1, 1, False), (5, 1, False)])
def test_winograd_is_for_three_by_three_windows_of_stride_one(kernel: int, stride: int, *, is_faster: bool) -> None:
    kernels = kernels_of(convolution(kernel, stride))
    plain, fast = (kernel_s(kernels, 16, DEVICE, replace(SHARES, winograd=share), EXECUTION) for share in (0.0, 0.9))
    mine = kernels.layer == 2
    assert np.all(fast[mine] < plain[mine]) == is_faster
    assert np.array_equal(fast[~mine], plain[~mine])
    assert is_faster or np.array_equal(fast, plain)


def test_backward_of_a_product_has_the_flop_of_its_two_gradients() -> None:
    kernels = kernels_of(convolution(3))
    flop = kernels.rows * kernels.inner * kernels.columns * kernels.count
    mine = kernels.layer == 2
    assert flop[mine & kernels.is_backward] == pytest.approx(2 * [flop[mine & ~kernels.is_backward][0]])


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("name", ["resnet50", "googlenet", "densenet121"])
def test_a_layer_takes_what_its_own_kernels_do_though_equal_ones_are_priced_once(name: str, is_fused: bool) -> None:
    dnn, execution = zoo.build(name), replace(EXECUTION, is_fused=is_fused)
    kernels = kernels_of(dnn, is_fused=is_fused)
    each_s = kernel_s(kernels, 8, DEVICE, SHARES, execution)
    for seconds_s, is_back in zip(layer_seconds(dnn, 8, DEVICE, SHARES, execution), (False, True), strict=True):
        own = kernels.is_backward == is_back
        by_layer = np.bincount(kernels.layer[own], weights=each_s[own], minlength=len(dnn.layers))
        assert seconds_s == pytest.approx(by_layer)


def test_a_layer_that_puts_out_nothing_still_multiplies() -> None:
    layer = Layer(name="layer", kind="operator", output_shape=(0,), num_multiply_adds=1000)
    (operator,) = operators_of(layer, ())
    product = operator.product
    assert operator.kind == "matmul"
    assert product is not None
    assert product.rows * product.inner * product.columns * product.count == 1000


OTHERS = [name for name in data.device_names() if data.device(name).kind != "gpu" or name.startswith("mi")]


@pytest.mark.parametrize("name", OTHERS)
def test_devices_that_nothing_was_fitted_to_stay_below_their_peak_and_bandwidth(name: str) -> None:
    device, size = data.device(name), 8192
    flop = Operator(kind="batched_matmul", product=Product(rows=size, inner=size, columns=size, count=8))
    moved = Operator(kind="element_wise", read_elements=2**30, written_elements=2**30)
    layers = [Layer(name=one.kind, kind="operator", output_shape=(1,), operators=(one,)) for one in (flop, moved)]
    dnn = Dnn("two", [(layer, ()) for layer in layers])
    for dtype in device.peak_flop_per_s.keys() & {"fp32", "bf16", "fp16"}:
        limits = DeviceLimits.of(device, dtype)
        execution = Execution.of(dtype, is_fused=False, has_channels_last=True)
        took = kernel_s(kernels_of(dnn), 1, limits, Shares.of(kernel_shares(dtype)), execution)
        assert took[0] >= 8 * 2 * size**3 / limits.product_flop_per_s / 0.9 * (1 - 1e-9)
        moved_bytes = 2**31 * execution.element_bytes
        assert took[-2] >= moved_bytes / limits.bytes_per_s / 0.9 * (1 - 1e-9)
