"""The builder: shapes by counting windows one by one, and refusals."""

from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.dnn import Product
from planner.zoo.builder import Activation, Builder


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


@given(
    groups=st.integers(1, 4),
    inner=st.integers(1, 3),
    columns=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_a_group_of_channels_reads_its_part_through_a_window_of_any_shape(
    groups: int, inner: int, columns: int, kernel: tuple[int, int], padding: tuple[int, int]
) -> None:
    net = Builder((groups * inner, 6, 9))
    net.conv("conv", groups * columns, kernel=kernel, padding=padding, groups=groups, bias=False)
    layer, _ = net.layers[-1]
    height, width = (
        count_windows(size, one, 1, more, ceil=False) for size, one, more in zip((6, 9), kernel, padding, strict=True)
    )
    assert layer.output_shape == (groups * columns, height, width)
    assert layer.num_trainable == groups * inner * columns * kernel[0] * kernel[1]
    (operator,) = layer.operators
    assert str(operator.product) == str(
        Product(rows=height * width, inner=inner * kernel[0] * kernel[1], columns=columns, count=groups)
    )
    assert layer.num_multiply_adds == operator.num_multiply_adds == layer.num_trainable * height * width


def test_a_transposed_convolution_makes_a_square_of_every_position() -> None:
    layer, _ = Builder((6, 5, 7)).transposed_conv("up", 4, kernel=3).layers[-1]
    assert layer.output_shape == (4, 15, 21)
    assert layer.num_trainable == 6 * 4 * 9 + 4
    assert layer.num_multiply_adds == 6 * 4 * 9 * 35  # every weight once at each position of the input
    assert layer.window is None
    assert str(layer.operators[0].product) == "315 x 6 x 4"


def test_what_needs_its_input_for_its_gradient_is_not_in_place() -> None:
    net = Builder((3, 8, 8))
    for function in get_args(Activation):
        net.activation(function, function)
    kept = [layer.name for layer, _ in net.layers if layer.kind == "activation" and not layer.is_in_place]
    assert kept == ["silu", "hard_swish", "hard_sigmoid", "gelu"]


def test_squeeze_and_excitation_weighs_channels_by_their_means() -> None:
    net = Builder((8, 5, 5)).relu("relu").squeeze_excitation("se", 2)
    layers = {layer.name: (layer, inputs) for layer, inputs in net.layers}
    assert layers["se.multiply"][1] == ("relu", "se.gate")
    assert layers["se.gate"][0].output_shape == (8, 1, 1)
    assert sum(layer.num_trainable for layer, _ in net.layers) == (8 * 2 + 2) + (2 * 8 + 8)
    assert net.shape == (8, 5, 5)


@pytest.mark.parametrize("is_shifted", [False, True])
def test_attention_inside_of_windows_multiplies_each_window_by_itself(is_shifted: bool) -> None:
    net = Builder((12, 6, 9)).window_attention("attention", num_heads=2, window=3, is_shifted=is_shifted)
    layers = {layer.name.removeprefix("attention."): layer for layer, _ in net.layers}
    assert net.shape == (12, 6, 9)
    assert ("shift" in layers, "unshift" in layers) == (is_shifted, is_shifted)
    # Six windows of nine positions and two heads of six channels.
    assert layers["scores"].num_multiply_adds == layers["context"].num_multiply_adds == 6 * 2 * 9 * 9 * 6
    assert layers["scores"].num_output_elements == 6 * 2 * 9 * 9
    assert layers["position_bias"].num_trainable == 5 * 5 * 2
    assert layers["scores"].operators[0].read_elements == 2 * 12 * 54
    assert layers["context"].operators[0].read_elements == 6 * 2 * 9 * 9 + 12 * 54
    assert sum(layer.num_stored_elements for layer in layers.values() if layer.kind in ("add", "softmax", "copy")) == 0


def test_tokens_are_turned_and_turned_back() -> None:
    net = Builder((5, 4, 6)).tokens("tokens").transpose("turned").linear("mixed", 7)
    assert net.shape == (7, 5, 1)
    assert net.layers[-1][0].num_multiply_adds == 24 * 7 * 5
    assert Builder((5, 4, 6)).tokens("tokens").transpose("turned").transpose("back").shape == (5, 24, 1)
    assert Builder((5, 4, 6)).merge_patches("merged").shape == (20, 2, 3)


def test_an_lstm_has_four_gates_and_keeps_them() -> None:
    net = Builder((1, 7, 1)).embedding("embedding", 100, 6).lstm("lstm", 5)
    layers = {layer.name: layer for layer, _ in net.layers}
    assert layers["embedding"].num_trainable == 600
    assert layers["lstm.input"].num_trainable + layers["lstm"].num_trainable == 4 * 5 * (6 + 5 + 1)
    assert layers["lstm.input"].num_multiply_adds + layers["lstm"].num_multiply_adds == 7 * 4 * 5 * (6 + 5)
    assert (layers["lstm.input"].num_stored_elements, layers["lstm"].num_stored_elements) == (7 * 20, 7 * 5)


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


def test_blocks_next_to_each_other_that_are_copies_are_one_repeat() -> None:
    net = Builder((4, 8, 8))
    for index, channels in enumerate((4, 4, 6, 6, 6)):
        net.begin_block().conv(f"{index}.conv", channels, kernel=1).relu(f"{index}.relu").end_block()
    net.relu("between").begin_block().conv("last.conv", 6, kernel=1).relu("last.relu").end_block()
    repeats = net.build("blocks", source="").repeats
    # The third has fewer channels to read.
    assert [(one.first, one.num_layers, one.count) for one in repeats] == [(1, 2, 2), (5, 2, 1), (7, 2, 2), (12, 2, 1)]
    assert len({one.kind for one in repeats}) == 3


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
        (lambda: image().conv("c", 4, kernel=1, groups=2), "'c' has 2 groups, 3 channels in and 4 out"),
        (lambda: image().conv("c", 4, kernel=(1, 9)), r"kernel \(1, 9\) is larger than its input 8 x 8"),
        (lambda: image().activation("a", "swish"), "'swish' is no known activation; write one of relu, relu6"),  # type: ignore[arg-type]
        (lambda: image().relu("r").multiply("m", "input"), "give it one number for each channel"),
        (lambda: image().end_block(), "no block ends with 'input'; begin one"),
        (lambda: image().begin_block().relu("r").begin_block(), "begins behind 'r' inside of another"),
        (lambda: image().crop("c", 9, 8), "'c' crops 8 x 8 to 9 x 8; write a smaller size"),
        (lambda: image().merge_patches("m", size=3), "merges squares of 3 of 8 x 8; write a divisor"),
        (
            lambda: image().window_attention("a", num_heads=1, window=3),
            "windows of 3 do not divide 3 channels of 8 x 8",
        ),
        (lambda: image().flatten("f").linear("l", 4), r"'l' needs \(channels, height, width\)"),
        (lambda: image().relu("r").relu("r"), "'r' stands twice"),
        (lambda: image().at("nowhere"), "'nowhere' does not exist"),
        (lambda: Builder((3, 0, 8)), "every size is at least 1"),
        (lambda: Builder(()), "every size is at least 1"),
    ],
)
def test_an_impossible_layer_is_refused_with_its_reason(attempt: Callable[[], Builder], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attempt()
