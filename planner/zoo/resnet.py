"""ResNets of K. He, X. Zhang, S. Ren and J. Sun, CVPR 2016, arXiv 1512.03385, Table 1.

As printed there, a bottleneck halves the image in its *first* 1x1 convolution; many frameworks do so in the 3x3, which
costs more (ResNet50: 4.09 instead of 3.86 GMAC) for the same parameters. Where a block changes the shape, its shortcut
is a 1x1 convolution with batch norm (option B), named ``downsample``. Convolutions have no bias.
"""

from planner.dnn import Dnn
from planner.zoo.builder import Builder

__all__ = ["resnet"]

_SOURCE = "K. He, X. Zhang, S. Ren and J. Sun, CVPR 2016, arXiv 1512.03385, Table 1"
_CHANNELS = (64, 128, 256, 512)  # of layer1 to layer4, inside a block
_EXPANSION = 4  # a bottleneck gives back four times its inner channels

_NUM_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_FIRST_WITH_BOTTLENECKS = 50


def resnet(depth: int) -> Dnn:
    """Return the ResNet of ``depth`` 18, 34, 50, 101 or 152 weight layers, shortcuts not counted.

    Raises
    ------
    ValueError
        For another depth.
    """
    if depth not in _NUM_BLOCKS:
        raise ValueError(f"there is no ResNet of depth {depth}; choose one of {', '.join(map(str, _NUM_BLOCKS))}")
    append_block = _bottleneck if depth >= _FIRST_WITH_BOTTLENECKS else _basic_block
    net = Builder((3, 224, 224))
    net.conv("conv1", 64, kernel=7, stride=2, padding=3, bias=False).batch_norm("bn1").relu("relu")
    net.max_pool("maxpool", kernel=3, stride=2, padding=1)
    for stage, (num_blocks, num_channels) in enumerate(zip(_NUM_BLOCKS[depth], _CHANNELS, strict=True), start=1):
        for block in range(num_blocks):
            append_block(net, f"layer{stage}.{block}", num_channels, 2 if stage > 1 and block == 0 else 1)
    net.global_average_pool("avgpool").flatten("flatten").fully_connected("fc", 1000)
    return net.build(f"resnet{depth}", source=_SOURCE)


def _basic_block(net: Builder, block: str, num_channels: int, stride: int) -> None:
    entry = net.last
    net.conv(f"{block}.conv1", num_channels, kernel=3, stride=stride, padding=1, bias=False)
    net.batch_norm(f"{block}.bn1").relu(f"{block}.relu1")
    net.conv(f"{block}.conv2", num_channels, kernel=3, padding=1, bias=False).batch_norm(f"{block}.bn2")
    _join(net, block, entry, stride)


def _bottleneck(net: Builder, block: str, num_channels: int, stride: int) -> None:
    entry = net.last
    net.conv(f"{block}.conv1", num_channels, kernel=1, stride=stride, bias=False)
    net.batch_norm(f"{block}.bn1").relu(f"{block}.relu1")
    net.conv(f"{block}.conv2", num_channels, kernel=3, padding=1, bias=False)
    net.batch_norm(f"{block}.bn2").relu(f"{block}.relu2")
    net.conv(f"{block}.conv3", _EXPANSION * num_channels, kernel=1, bias=False).batch_norm(f"{block}.bn3")
    _join(net, block, entry, stride)


def _join(net: Builder, block: str, entry: str, stride: int) -> None:
    """Add the shortcut from ``entry``: as it is where the shape is kept, else through a 1x1 convolution."""
    main, shape = net.last, net.shape
    shortcut = entry
    if net.at(entry).shape != shape:
        net.conv(f"{block}.downsample.0", shape[0], kernel=1, stride=stride, bias=False)
        shortcut = net.batch_norm(f"{block}.downsample.1").last
    net.at(main).add(f"{block}.add", shortcut).relu(f"{block}.relu")
