"""Networks of depthwise convolutions, each channel by itself, and of tokens that are no transformers of the table.

MobileNets, EfficientNets and ConvNeXts; Swin, MLP-Mixer, and a language model of LSTMs. Their papers count
multiply-adds, as we do. Stochastic depth, which drops whole blocks in training, is left out.
"""

from math import ceil
from typing import NamedTuple

from planner.dnn import Dnn
from planner.zoo.builder import Activation, Builder


def _conv_bn(
    net: Builder,
    name: str,
    num_channels: int,
    kernel: int,
    activation: Activation | None,
    *,
    stride: int = 1,
    groups: int = 1,
) -> None:
    """Append a convolution without bias that keeps the size of the image, its batch norm, and an activation."""
    net.conv(name, num_channels, kernel=kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    net.batch_norm(f"{name}.bn")
    if activation is not None:
        net.activation(f"{name}.{activation}", activation)


def _inverted_residual(
    net: Builder,
    block: str,
    num_inner: int,
    num_channels: int,
    *,
    kernel: int,
    stride: int,
    activation: Activation,
    squeezed: tuple[int, Activation, Activation] | None = None,
) -> None:
    """Append a wide depthwise convolution between two 1x1: the first where it widens, a shortcut where one fits.

    ``squeezed``: the wide part is scaled by squeeze-and-excitation of so many channels, its activation, and its gate.
    """
    entry, shape = net.last, net.shape
    net.begin_block()
    if num_inner != shape[0]:
        _conv_bn(net, f"{block}.expand", num_inner, 1, activation)
    _conv_bn(net, f"{block}.depthwise", num_inner, kernel, activation, stride=stride, groups=num_inner)
    if squeezed is not None:
        num_squeezed, inner, gate = squeezed
        net.squeeze_excitation(f"{block}.se", num_squeezed, inner=inner, gate=gate)
    _conv_bn(net, f"{block}.project", num_channels, 1, None)
    if net.shape == shape:
        net.add(f"{block}.add", entry)
    net.end_block()


def _multiple_of_8(num_channels: float) -> int:
    """Return the nearest multiple of 8 that is not more than a tenth below."""
    rounded = max(8, int(num_channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * num_channels else rounded


# -- MobileNets ------------------------------------------------------------------------------------------------------

# Table 2 of the paper: widening t, channels c, number of blocks n, stride s of the first.
_MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2() -> Dnn:
    """Return MobileNetV2 of width 1: 3,504,872 parameters, 300 million multiply-adds."""
    net = Builder((3, 224, 224))
    _conv_bn(net, "conv1", 32, 3, "relu6", stride=2)
    for group, (widening, num_channels, number, first_stride) in enumerate(_MOBILENET_V2, start=1):
        for index in range(number):
            _inverted_residual(
                net,
                f"block{group}.{index}",
                widening * net.shape[0],
                num_channels,
                kernel=3,
                stride=first_stride if index == 0 else 1,
                activation="relu6",
            )
    _conv_bn(net, "conv2", 1280, 1, "relu6")
    net.global_average_pool("avgpool").flatten("flatten").dropout("dropout").fully_connected("fc", 1000)
    source = "M. Sandler et al., CVPR 2018, arXiv 1801.04381, Table 2"
    return net.build("mobilenet-v2", source=source)


# Table 1 of the paper: kernel, inner channels, channels, whether squeezed, activation, stride.
_MOBILENET_V3_LARGE: tuple[tuple[int, int, int, bool, Activation, int], ...] = (
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hard_swish", 2),
    (3, 200, 80, False, "hard_swish", 1),
    (3, 184, 80, False, "hard_swish", 1),
    (3, 184, 80, False, "hard_swish", 1),
    (3, 480, 112, True, "hard_swish", 1),
    (3, 672, 112, True, "hard_swish", 1),
    (5, 672, 160, True, "hard_swish", 2),
    (5, 960, 160, True, "hard_swish", 1),
    (5, 960, 160, True, "hard_swish", 1),
)


def mobilenet_v3_large() -> Dnn:
    """Return MobileNetV3-Large of width 1: 5,483,032 parameters, 217 million multiply-adds (219 in the paper)."""
    net = Builder((3, 224, 224))
    _conv_bn(net, "conv1", 16, 3, "hard_swish", stride=2)
    for index, (kernel, num_inner, num_channels, is_squeezed, activation, stride) in enumerate(_MOBILENET_V3_LARGE):
        _inverted_residual(
            net,
            f"block{index}",
            num_inner,
            num_channels,
            kernel=kernel,
            stride=stride,
            activation=activation,
            squeezed=(_multiple_of_8(num_inner / 4), "relu", "hard_sigmoid") if is_squeezed else None,
        )
    _conv_bn(net, "conv2", 960, 1, "hard_swish")
    net.global_average_pool("avgpool").flatten("flatten").fully_connected("fc1", 1280)
    net.activation("fc1.hard_swish", "hard_swish").dropout("dropout").fully_connected("fc2", 1000)
    return net.build("mobilenet-v3-large", source="A. Howard et al., ICCV 2019, arXiv 1905.02244, Table 1")


# -- EfficientNets ---------------------------------------------------------------------------------------------------


class _Scaled(NamedTuple):
    """How an EfficientNet is larger than B0, by the authors' code, and the image that it reads."""

    width: float
    depth: float
    image_size: int


_EFFICIENTNETS = (
    _Scaled(1.0, 1.0, 224),
    _Scaled(1.0, 1.1, 240),
    _Scaled(1.1, 1.2, 260),
    _Scaled(1.2, 1.4, 300),
    _Scaled(1.4, 1.8, 380),
    _Scaled(1.6, 2.2, 456),
    _Scaled(1.8, 2.6, 528),
    _Scaled(2.0, 3.1, 600),
)
# Table 1 of the paper: widening, kernel, stride of the first block, channels, number of blocks.
_EFFICIENTNET_B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def efficientnet(number: int) -> Dnn:
    """Return EfficientNet-B0 to -B7, with the image of its paper: 224 x 224 to 600 x 600.

    Notes
    -----
    Multiply-adds are those that torchvision names: 4.39 billion of B4 and 10.27 of B5 where the paper's Table 2 has
    4.2 and 9.9.

    Raises
    ------
    ValueError
        For another number.
    """
    if number not in range(len(_EFFICIENTNETS)):
        raise ValueError(f"there is no EfficientNet-B{number}; choose one of 0 to {len(_EFFICIENTNETS) - 1}")
    width, depth, image_size = _EFFICIENTNETS[number]
    net = Builder((3, image_size, image_size))
    _conv_bn(net, "conv1", _multiple_of_8(32 * width), 3, "silu", stride=2)
    for stage, (widening, kernel, first_stride, num_channels, num_blocks) in enumerate(_EFFICIENTNET_B0, start=1):
        for index in range(ceil(num_blocks * depth)):
            _inverted_residual(
                net,
                f"block{stage}.{index}",
                widening * net.shape[0],
                _multiple_of_8(num_channels * width),
                kernel=kernel,
                stride=first_stride if index == 0 else 1,
                activation="silu",
                squeezed=(net.shape[0] // 4, "silu", "sigmoid"),
            )
    _conv_bn(net, "conv2", _multiple_of_8(1280 * width), 1, "silu")
    net.global_average_pool("avgpool").flatten("flatten").dropout("dropout").fully_connected("fc", 1000)
    source = "M. Tan and Q. V. Le, ICML 2019, arXiv 1905.11946, Table 1"
    return net.build(f"efficientnet-b{number}", source=source)


# -- ConvNeXts -------------------------------------------------------------------------------------------------------

# Section 3 of the paper: channels and number of blocks of the four stages.
_CONVNEXTS = {
    "tiny": ((96, 192, 384, 768), (3, 3, 9, 3)),
    "small": ((96, 192, 384, 768), (3, 3, 27, 3)),
    "base": ((128, 256, 512, 1024), (3, 3, 27, 3)),
}


def convnext(size: str) -> Dnn:
    """Return ConvNeXt ``tiny``, ``small`` or ``base``; channels lie side by side, so that nothing is transposed."""
    all_channels, all_numbers = _CONVNEXTS[size]
    net = Builder((3, 224, 224)).conv("stem", all_channels[0], kernel=4, stride=4).layer_norm("stem.norm")
    for stage, (num_channels, number) in enumerate(zip(all_channels, all_numbers, strict=True), start=1):
        if stage > 1:
            net.layer_norm(f"downsample{stage}.norm").conv(f"downsample{stage}.conv", num_channels, kernel=2, stride=2)
        for index in range(number):
            block, entry = f"stage{stage}.{index}", net.last
            net.begin_block().conv(f"{block}.depthwise", num_channels, kernel=7, padding=3, groups=num_channels)
            net.layer_norm(f"{block}.norm")
            net.linear(f"{block}.up", 4 * num_channels).activation(f"{block}.gelu", "gelu")
            net.linear(f"{block}.down", num_channels).scale(f"{block}.layer_scale")
            net.add(f"{block}.add", entry).end_block()
    net.global_average_pool("avgpool").layer_norm("norm").flatten("flatten").fully_connected("head", 1000)
    source = "Z. Liu et al., CVPR 2022, arXiv 2201.03545, section 3"
    return net.build(f"convnext-{size}", source=source)


def _feed_forward(net: Builder, name: str, num_inner: int) -> None:
    """Append two matrices with a GELU between them."""
    num_features = net.shape[0]
    net.linear(f"{name}.up", num_inner).activation(f"{name}.gelu", "gelu").linear(f"{name}.down", num_features)


# Section 3.3 of the paper: channels of the first stage and blocks of all four. A head has 32 channels.
_SWINS = {"t": (96, (2, 2, 6, 2)), "s": (96, (2, 2, 18, 2)), "b": (128, (2, 2, 18, 2))}
_HEAD_SIZE = 32
_WINDOW = 7


def swin(size: str) -> Dnn:
    """Return Swin ``t``, ``s`` or ``b``: 224 x 224 input, patches of 4 x 4, windows of 7 x 7.

    Every second block shifts its windows, but not in the last stage, where one window is the whole image.
    """
    num_channels, numbers = _SWINS[size]
    net = Builder((3, 224, 224)).conv("patches", num_channels, kernel=4, stride=4).layer_norm("patches.norm")
    for stage, number in enumerate(numbers, start=1):
        if stage > 1:
            net.merge_patches(f"merge{stage}.patches").layer_norm(f"merge{stage}.norm")
            net.linear(f"merge{stage}.reduction", net.shape[0] // 2, bias=False)
        channels, height, _ = net.shape
        for index in range(number):
            block, entry = f"stage{stage}.{index}", net.last
            net.begin_block().layer_norm(f"{block}.norm1").window_attention(
                f"{block}.attention",
                num_heads=channels // _HEAD_SIZE,
                window=_WINDOW,
                is_shifted=index % 2 == 1 and height > _WINDOW,
            )
            entry = net.add(f"{block}.add1", entry).last
            _feed_forward(net.layer_norm(f"{block}.norm2"), f"{block}.mlp", 4 * channels)
            net.add(f"{block}.add2", entry).end_block()
    net.layer_norm("norm").global_average_pool("avgpool").flatten("flatten").fully_connected("head", 1000)
    return net.build(f"swin-{size}", source="Z. Liu et al., ICCV 2021, arXiv 2103.14030, section 3.3")


def mixer_b16() -> Dnn:
    """Return Mixer-B/16: 196 patches of 16 x 16, mixed among each other and then by channel, twelve times."""
    net = Builder((3, 224, 224)).conv("patches", 768, kernel=16, stride=16).tokens("tokens")
    for index in range(12):
        block, entry = f"block{index}", net.last
        net.begin_block().layer_norm(f"{block}.norm1").transpose(f"{block}.transpose1")
        _feed_forward(net, f"{block}.tokens", 384)
        entry = net.transpose(f"{block}.transpose2").add(f"{block}.add1", entry).last
        _feed_forward(net.layer_norm(f"{block}.norm2"), f"{block}.channels", 3072)
        net.add(f"{block}.add2", entry).end_block()
    net.layer_norm("norm").global_average_pool("avgpool").flatten("flatten").fully_connected("head", 1000)
    return net.build("mixer-b16", source="I. Tolstikhin et al., NeurIPS 2021, arXiv 2105.01601, Table 1")


_VOCABULARY = 10_000
_STEPS = 35  # words of one sample
_PENN_TREEBANK_WORDS = 929_000  # "929k training words", section 4.1
_LSTM_FEATURES = {"medium": 650, "large": 1500}


def lstm_lm(size: str) -> Dnn:
    """Return the ``medium`` or the ``large`` regularised LSTM of the Penn Treebank: two layers, 35 words a sample.

    Notes
    -----
    Dropout on all but the recurrent connections. The embedding and the logits have matrices of their own: 19,775,200
    and 66,022,000 parameters, with one bias a gate; cuDNN's two biases would make them 0.03 and 0.02 % more.
    """
    num_features = _LSTM_FEATURES[size]
    net = Builder((1, _STEPS, 1)).embedding("embedding", _VOCABULARY, num_features).dropout("embedding.dropout")
    for name in ("lstm1", "lstm2"):
        net.begin_block().lstm(name, num_features).dropout(f"{name}.dropout").end_block()
    net.linear("logits", _VOCABULARY)
    return net.build(
        "lstm-lm" if size == "large" else f"lstm-lm-{size}",
        source=f"W. Zaremba, I. Sutskever and O. Vinyals, arXiv 1409.2329, section 4.1, the {size} LSTM",
        dataset_samples=_PENN_TREEBANK_WORDS // _STEPS,
    )
