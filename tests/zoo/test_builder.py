"""The builder: shapes by counting windows one by one, and refusals."""

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.zoo.builder import Builder


def count_windows(size: int, kernel: int, stride: int, padding: int, *, ceil: bool) -> int:
    """Slide a window one position at a time."""
    starts = range(-padding, size + padding, stride)
    if ceil:  # the first that overhangs the end counts as well, if it starts before the trailing padding
        whole = [start for start in starts if start + kernel <= size + padding]
        following = whole[-1] + stride
        overhangs = whole[-1] + kernel < size + padding and following < size
        return len(whole) + overhangs
    return sum(start + kernel <= size + padding for start in starts)


@given(
    size=st.integers(1, 40),
    kernel=st.integers(1, 12),
    stride=st.integers(1, 5),
    padding=st.integers(0, 5),
    ceil=st.booleans(),
)
def test_a_pool_leaves_as_many_positions_as_windows_fit(
    size: int, kernel: int, stride: int, padding: int, ceil: bool
) -> None:
    assume(padding < kernel <= size + 2 * padding)
    net = Builder((3, size, size)).max_pool("pool", kernel=kernel, stride=stride, padding=padding, ceil=ceil)
    num_positions = count_windows(size, kernel, stride, padding, ceil=ceil)
    assert net.shape == (3, num_positions, num_positions)


@given(
    channels=st.integers(1, 8),
    num_channels=st.integers(1, 8),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    kernel=st.integers(1, 5),
)
def test_a_convolution_uses_each_weight_once_at_each_position(
    channels: int, num_channels: int, height: int, width: int, kernel: int
) -> None:
    assume(kernel <= min(height, width))
    net = Builder((channels, height, width)).conv("conv", num_channels, kernel=kernel)
    layer, _ = net.layers[-1]
    assert layer.output_shape == (num_channels, height - kernel + 1, width - kernel + 1)
    assert layer.num_trainable == num_channels * (channels * kernel**2 + 1)
    assert layer.num_multiply_adds == layer.num_output_elements * channels * kernel**2


def test_batch_norm_trains_scale_and_shift_and_only_stores_its_statistics() -> None:
    layer, _ = Builder((5, 4, 4)).batch_norm("bn").layers[-1]
    assert [(tensor.name, tensor.role) for tensor in layer.tensors] == [
        ("bn.scale", "scale"),
        ("bn.shift", "shift"),
        ("bn.moving_mean", "moving"),
        ("bn.moving_variance", "moving"),
    ]
    assert (layer.num_trainable, layer.num_moving, layer.num_weights) == (10, 10, 0)


def test_branches_are_edges_and_joins_stack_channels() -> None:
    net = Builder((4, 8, 8)).conv("left", 3, kernel=1).at("input").conv("right", 5, kernel=1)
    net.concatenate("join", "left", "right")
    assert net.shape == (8, 8, 8)
    assert [(layer.name, inputs) for layer, inputs in net.layers] == [
        ("input", ()),
        ("left", ("input",)),
        ("right", ("input",)),
        ("join", ("left", "right")),
    ]


def image() -> Builder:
    return Builder((3, 8, 8))


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: image().conv("c", 4, kernel=9), r"'c': kernel 9 is larger than its input 8 x 8 with padding 0"),
        (
            lambda: image().max_pool("p", kernel=11, stride=1, padding=1),
            "kernel 11 is larger.*padding 1; use a smaller",
        ),
        (lambda: image().conv("c", 4, kernel=3, stride=0), "stride 0.*at least 1"),
        (lambda: image().conv("c", 4, kernel=3, padding=-1), "padding -1.*at least 0"),
        (lambda: image().conv("c", 0, kernel=3), r"would have shape \(0, 6, 6\)"),
        (lambda: image().fully_connected("fc", 10), "'fc' reads 'input' of shape.*flatten it first"),
        (lambda: image().flatten("f").conv("c", 4, kernel=1), r"'c' needs \(channels, height, width\)"),
        (lambda: image().flatten("f").global_average_pool("p"), r"'p' needs \(channels, height, width\)"),
        (lambda: image().conv("c", 4, kernel=1).add("a", "input"), "give them one shape"),
        (lambda: image().conv("c", 4, kernel=3).concatenate("j", "c", "input"), "give them one height and width"),
        (lambda: image().add("a", "input"), "'a' reads one layer twice"),
        (lambda: image().relu("r").relu("r"), "'r' stands twice"),
        (lambda: image().at("nowhere"), "'nowhere' does not exist"),
        (lambda: Builder((3, 0, 8)), "every size is at least 1"),
        (lambda: Builder(()), "every size is at least 1"),
    ],
)
def test_an_impossible_layer_is_refused_with_its_reason(attempt: Callable[[], Builder], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attempt()
