"""Convolutional networks as their papers have them: from AlexNet to DenseNets, a U-Net, and two of Adam's.

Those of depthwise convolutions stand in :mod:`planner.zoo.depthwise`. Local response normalisation, which has no
weights and which later work dropped, is left out everywhere.
"""

from typing import NamedTuple

from planner.dnn import Dnn
from planner.zoo.builder import Builder

# -- AlexNet and OverFeat --------------------------------------------------------------------------------------------


def alexnet() -> Dnn:
    """Return AlexNet without the split into two towers: 64-192-384-384-256 channels, 227 x 227 input.

    Notes
    -----
    61,838,248 parameters. The two-tower original has 96-256-384-384-256 channels in two groups (A. Krizhevsky,
    I. Sutskever, G. Hinton, NIPS 2012) and 60,965,224 parameters.
    """
    net = Builder((3, 227, 227))
    net.conv("conv1", 64, kernel=11, stride=4).relu("relu1").max_pool("pool1", kernel=3, stride=2)
    net.conv("conv2", 192, kernel=5, padding=2).relu("relu2").max_pool("pool2", kernel=3, stride=2)
    net.conv("conv3", 384, kernel=3, padding=1).relu("relu3")
    net.conv("conv4", 384, kernel=3, padding=1).relu("relu4")
    net.conv("conv5", 256, kernel=3, padding=1).relu("relu5").max_pool("pool5", kernel=3, stride=2)
    _classify(net, 4096, 4096)
    return net.build("alexnet", source="A. Krizhevsky, One weird trick, arXiv 1404.5997, 2014")


def overfeat() -> Dnn:
    """Return OverFeat's fast model: 96-256-512-1024-1024 channels, then 3072 and 4096, 231 x 231 input."""
    net = Builder((3, 231, 231))
    net.conv("conv1", 96, kernel=11, stride=4).relu("relu1").max_pool("pool1", kernel=2, stride=2)
    net.conv("conv2", 256, kernel=5).relu("relu2").max_pool("pool2", kernel=2, stride=2)
    net.conv("conv3", 512, kernel=3, padding=1).relu("relu3")
    net.conv("conv4", 1024, kernel=3, padding=1).relu("relu4")
    net.conv("conv5", 1024, kernel=3, padding=1).relu("relu5").max_pool("pool5", kernel=2, stride=2)
    _classify(net, 3072, 4096)
    return net.build("overfeat", source="P. Sermanet et al., OverFeat, ICLR 2014, arXiv 1312.6229, Table 1")


def _classify(net: Builder, num_features_6: int, num_features_7: int) -> None:
    net.flatten("flatten")
    net.fully_connected("fc6", num_features_6).relu("relu6").dropout("drop6")
    net.fully_connected("fc7", num_features_7).relu("relu7").dropout("drop7")
    net.fully_connected("fc8", 1000)


# -- VGG -------------------------------------------------------------------------------------------------------------

_VGG_SOURCE = "K. Simonyan and A. Zisserman, ICLR 2015, arXiv 1409.1556, Table 1"
_VGG_CHANNELS = (64, 128, 256, 512, 512)  # of blocks 1 to 5
# Per block, the kernel sizes of its convolutions, of configurations A, B, C, D (the VGG16 of common use) and E.
_VGG_KERNELS = {
    "vgg11": ((3,), (3,), (3, 3), (3, 3), (3, 3)),
    "vgg13": ((3, 3), (3, 3), (3, 3), (3, 3), (3, 3)),
    "vgg16c": ((3, 3), (3, 3), (3, 3, 1), (3, 3, 1), (3, 3, 1)),
    "vgg16": ((3, 3), (3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)),
    "vgg19": ((3, 3), (3, 3), (3, 3, 3, 3), (3, 3, 3, 3), (3, 3, 3, 3)),
}


def vgg(name: str) -> Dnn:
    """Return the VGG ``vgg11``, ``vgg13``, ``vgg16c``, ``vgg16`` or ``vgg19``."""
    net = _vgg_features(name)
    _classify(net, 4096, 4096)
    return net.build(name, source=_VGG_SOURCE)


def vgg16_replaced_head() -> Dnn:
    """Return VGG16 with 15.49 instead of 138.36 million parameters.

    Notes
    -----
    The layer replacement of T. Liu et al., WWW 2022, doi:10.1145/3485447.3511981, section 4.1 and Table 3: after
    ``pool5`` a 1x1 convolution to 512 channels, one to 1000, and an average over the 7x7 positions. They follow
    network in network (M. Lin, Q. Chen, S. Yan, arXiv 1312.4400), hence the ReLU after each 1x1 convolution.
    """
    net = _vgg_features("vgg16")
    net.conv("conv6", 512, kernel=1).relu("relu6")
    net.conv("conv7", 1000, kernel=1).relu("relu7")
    net.global_average_pool("pool7").flatten("flatten")
    source = f"{_VGG_SOURCE}; head: T. Liu et al., WWW 2022, doi:10.1145/3485447.3511981, Table 3"
    return net.build("vgg16-replaced-head", source=source)


def _vgg_features(name: str) -> Builder:
    net = Builder((3, 224, 224))
    for block, (kernels, num_channels) in enumerate(zip(_VGG_KERNELS[name], _VGG_CHANNELS, strict=True), start=1):
        for index, kernel in enumerate(kernels, start=1):
            net.conv(f"conv{block}_{index}", num_channels, kernel=kernel, padding=kernel // 2)
            net.relu(f"relu{block}_{index}")
        net.max_pool(f"pool{block}", kernel=2, stride=2)
    return net


# -- GoogLeNet -------------------------------------------------------------------------------------------------------


class _Channels(NamedTuple):
    """Channels of one inception module, in the order of the columns of Table 1."""

    conv1: int
    reduce3: int
    conv3: int
    reduce5: int
    conv5: int
    pool_projection: int


_MODULES = {
    "3a": _Channels(64, 96, 128, 16, 32, 32),
    "3b": _Channels(128, 128, 192, 32, 96, 64),
    "4a": _Channels(192, 96, 208, 16, 48, 64),
    "4b": _Channels(160, 112, 224, 24, 64, 64),
    "4c": _Channels(128, 128, 256, 24, 64, 64),
    "4d": _Channels(112, 144, 288, 32, 64, 64),
    "4e": _Channels(256, 160, 320, 32, 128, 128),
    "5a": _Channels(256, 160, 320, 32, 128, 128),
    "5b": _Channels(384, 192, 384, 48, 128, 128),
}
_POOL_AFTER = {"3b": "pool3/3x3_s2", "4e": "pool4/3x3_s2"}
_AUXILIARY_AFTER = {"4a": "loss1", "4d": "loss2"}


def googlenet(*, auxiliary: bool = False) -> Dnn:
    """Return GoogLeNet (Inception v1), as it is used or, with both ``auxiliary`` classifiers, as it is trained.

    Notes
    -----
    Without batch norm, which is Inception v2. Names are those of Caffe's ``bvlc_googlenet``; its pools round up.

    6,998,552 parameters without the auxiliary classifiers, which end in outputs of their own: Netscope counts as many
    for Caffe's network (BVLC/caffe, models/bvlc_googlenet, deploy.prototxt). 13,378,280 with both, as trained: 53.5 MB
    as 32-bit numbers, published as "~53 millions" (S. Shi et al., arXiv 1805.03812, Table IV). torchvision's 6,624,904
    and 13,004,888 are another network: 3x3 kernels in place of 5x5, and batch norm. The "1.5 billion multiply-adds" of
    section 1 are 1.583 here.
    """
    net = Builder((3, 224, 224))
    net.conv("conv1/7x7_s2", 64, kernel=7, stride=2, padding=3).relu("conv1/relu_7x7")
    net.max_pool("pool1/3x3_s2", kernel=3, stride=2, ceil=True)
    net.conv("conv2/3x3_reduce", 64, kernel=1).relu("conv2/relu_3x3_reduce")
    net.conv("conv2/3x3", 192, kernel=3, padding=1).relu("conv2/relu_3x3")
    net.max_pool("pool2/3x3_s2", kernel=3, stride=2, ceil=True)
    for module, channels in _MODULES.items():
        _inception(net, f"inception_{module}", channels)
        if auxiliary and module in _AUXILIARY_AFTER:
            _auxiliary_classifier(net, _AUXILIARY_AFTER[module])
        if module in _POOL_AFTER:
            net.max_pool(_POOL_AFTER[module], kernel=3, stride=2, ceil=True)
    net.average_pool("pool5/7x7_s1", kernel=7, stride=1).dropout("pool5/drop_7x7_s1")
    net.flatten("loss3/flatten").fully_connected("loss3/classifier", 1000)
    source = "C. Szegedy et al., CVPR 2015, arXiv 1409.4842, Table 1"
    return net.build("googlenet-aux" if auxiliary else "googlenet", source=source)


def _inception(net: Builder, module: str, channels: _Channels) -> None:
    """Append four branches from the last layer, stacked by channel."""

    def conv(part: str, num_channels: int, kernel: int = 1) -> str:
        net.conv(f"{module}/{part}", num_channels, kernel=kernel, padding=kernel // 2)
        return net.relu(f"{module}/relu_{part}").last

    entry = net.last
    ends = [conv("1x1", channels.conv1)]
    for size, num_reduced, num_channels in (
        (3, channels.reduce3, channels.conv3),
        (5, channels.reduce5, channels.conv5),
    ):
        net.at(entry)
        conv(f"{size}x{size}_reduce", num_reduced)
        ends.append(conv(f"{size}x{size}", num_channels, kernel=size))
    net.at(entry).max_pool(f"{module}/pool", kernel=3, stride=1, padding=1)
    net.concatenate(f"{module}/output", *ends, conv("pool_proj", channels.pool_projection))


def _auxiliary_classifier(net: Builder, head: str) -> None:
    """Append a classifier beside the trunk, and go back to the trunk."""
    trunk = net.last
    net.average_pool(f"{head}/ave_pool", kernel=5, stride=3)
    net.conv(f"{head}/conv", 128, kernel=1).relu(f"{head}/relu_conv")
    net.flatten(f"{head}/flatten").fully_connected(f"{head}/fc", 1024).relu(f"{head}/relu_fc")
    net.dropout(f"{head}/drop_fc").fully_connected(f"{head}/classifier", 1000)
    net.at(trunk)


# -- Inception v3 ----------------------------------------------------------------------------------------------------

_Step = tuple[str, int, int | tuple[int, int]]  # name, channels and kernel; "/2" in a name: stride 2, no padding
_ROW, _COLUMN = (1, 7), (7, 1)


def inception_v3(*, auxiliary: bool = False) -> Dnn:
    """Return Inception v3, 299 x 299 input, as it is used or, with the ``auxiliary`` classifier, as it is trained.

    Notes
    -----
    Kernels and channels are those of the authors' code and of torchvision, whose names it has: 23,834,568 parameters,
    27,161,264 with the auxiliary classifier. Every convolution has batch norm and no bias. Figures 5 to 7 of the paper
    are its modules 5b to 5d, 6b to 6e, and 7b and 7c. The paper's "5 billion multiply-adds" are 5.71 here and there.
    """
    net = Builder((3, 299, 299))
    _conv_bn(net, "Conv2d_1a_3x3", 32, 3, stride=2)
    _conv_bn(net, "Conv2d_2a_3x3", 32, 3)
    _conv_bn(net, "Conv2d_2b_3x3", 64, 3, padding=1)
    net.max_pool("maxpool1", kernel=3, stride=2)
    _conv_bn(net, "Conv2d_3b_1x1", 80, 1)
    _conv_bn(net, "Conv2d_4a_3x3", 192, 3)
    net.max_pool("maxpool2", kernel=3, stride=2)
    for module, num_pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        _branches(
            net,
            f"Mixed_{module}",
            [("branch1x1", 64, 1)],
            [("branch5x5_1", 48, 1), ("branch5x5_2", 64, 5)],
            [("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3), ("branch3x3dbl_3", 96, 3)],
            num_pooled=num_pooled,
        )
    _branches(
        net,
        "Mixed_6a",
        [("branch3x3/2", 384, 3)],
        [("branch3x3dbl_1", 64, 1), ("branch3x3dbl_2", 96, 3), ("branch3x3dbl_3/2", 96, 3)],
    )
    for module, inner in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        _branches(
            net,
            f"Mixed_{module}",
            [("branch1x1", 192, 1)],
            [("branch7x7_1", inner, 1), ("branch7x7_2", inner, _ROW), ("branch7x7_3", 192, _COLUMN)],
            [
                ("branch7x7dbl_1", inner, 1),
                ("branch7x7dbl_2", inner, _COLUMN),
                ("branch7x7dbl_3", inner, _ROW),
                ("branch7x7dbl_4", inner, _COLUMN),
                ("branch7x7dbl_5", 192, _ROW),
            ],
            num_pooled=192,
        )
    if auxiliary:
        trunk = net.last
        net.average_pool("AuxLogits.avgpool1", kernel=5, stride=3)
        _conv_bn(net, "AuxLogits.conv0", 128, 1)
        _conv_bn(net, "AuxLogits.conv1", 768, 5)
        net.global_average_pool("AuxLogits.avgpool2").flatten("AuxLogits.flatten").fully_connected("AuxLogits.fc", 1000)
        net.at(trunk)
    _branches(
        net,
        "Mixed_7a",
        [("branch3x3_1", 192, 1), ("branch3x3_2/2", 320, 3)],
        [
            ("branch7x7x3_1", 192, 1),
            ("branch7x7x3_2", 192, _ROW),
            ("branch7x7x3_3", 192, _COLUMN),
            ("branch7x7x3_4/2", 192, 3),
        ],
    )
    for module in ("7b", "7c"):
        _branches(
            net,
            f"Mixed_{module}",
            [("branch1x1", 320, 1)],
            [("branch3x3_1", 384, 1)],
            [("branch3x3dbl_1", 448, 1), ("branch3x3dbl_2", 384, 3)],
            num_pooled=192,
            is_split=True,
        )
    net.global_average_pool("avgpool").dropout("dropout").flatten("flatten").fully_connected("fc", 1000)
    source = "C. Szegedy et al., CVPR 2016, arXiv 1512.00567, Table 1; sizes of modules: torchvision inception_v3"
    return net.build("inception-v3-aux" if auxiliary else "inception-v3", source=source)


def _conv_bn(
    net: Builder, name: str, num_channels: int, kernel: int | tuple[int, int], *, stride: int = 1, padding: int = 0
) -> str:
    """Append a convolution without bias, its batch norm and a ReLU, and return the last one's name."""
    wide = padding if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    net.conv(f"{name}.conv", num_channels, kernel=kernel, stride=stride, padding=wide, bias=False)
    return net.batch_norm(f"{name}.bn").relu(f"{name}.relu").last


def _branches(
    net: Builder, module: str, *branches: list[_Step], num_pooled: int | None = None, is_split: bool = False
) -> None:
    """Append branches from the last layer and one of a pool, stacked by channel.

    The pool is an average and then a convolution to ``num_pooled`` channels, or a largest of stride 2 where that is
    None. ``is_split``: branches of more than 1x1 end in a 1x3 and a 3x1 convolution side by side (figure 7).
    """
    entry, ends = net.last, list[str]()
    net.begin_block()
    for branch in branches:
        net.at(entry)
        for step, num_channels, kernel in branch:
            name, _, is_halving = step.partition("/")
            stride, padding = (2, 0) if is_halving else (1, kernel // 2 if isinstance(kernel, int) else 0)
            last = _conv_bn(net, f"{module}.{name}", num_channels, kernel, stride=stride, padding=padding)
        if is_split and not branch[0][0].endswith("1x1"):
            stem = f"{module}.{name.rpartition('_')[0]}_{len(branch) + 1}"
            ends.append(_conv_bn(net, f"{stem}a", num_channels, (1, 3)))
            net.at(last)
            last = _conv_bn(net, f"{stem}b", num_channels, (3, 1))
        ends.append(last)
    net.at(entry)
    if num_pooled is None:
        ends.append(net.max_pool(f"{module}.pool", kernel=3, stride=2).last)
    else:
        net.average_pool(f"{module}.pool", kernel=3, stride=1, padding=1)
        ends.append(_conv_bn(net, f"{module}.branch_pool", num_pooled, 1))
    net.concatenate(f"{module}.concat", *ends).end_block()


# -- ResNets and ResNeXts --------------------------------------------------------------------------------------------

_NUM_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_RESNET_CHANNELS = (64, 128, 256, 512)  # of layer1 to layer4, inside a block
_EXPANSION = 4  # a bottleneck gives back four times its inner channels
_FIRST_WITH_BOTTLENECKS = 50


def resnet(depth: int) -> Dnn:
    """Return the ResNet of ``depth`` 18, 34, 50, 101 or 152 weight layers, shortcuts not counted.

    As printed in the paper, a bottleneck halves the image in its *first* 1x1 convolution; many frameworks do so in the
    3x3, which costs more (ResNet50: 4.09 instead of 3.86 GMAC) for the same parameters. Where a block changes the
    shape, its shortcut is a 1x1 convolution with batch norm (option B), named ``downsample``. Convolutions have no
    bias.

    Raises
    ------
    ValueError
        For another depth.
    """
    if depth not in _NUM_BLOCKS:
        raise ValueError(f"there is no ResNet of depth {depth}; choose one of {', '.join(map(str, _NUM_BLOCKS))}")
    net = _resnet(_NUM_BLOCKS[depth], is_bottleneck=depth >= _FIRST_WITH_BOTTLENECKS)
    return net.build(
        f"resnet{depth}", source="K. He, X. Zhang, S. Ren and J. Sun, CVPR 2016, arXiv 1512.03385, Table 1"
    )


def resnext50() -> Dnn:
    """Return ResNeXt-50 (32x4d): the inner convolution of a bottleneck is twice as wide and has 32 groups.

    The image is halved in that convolution, as in the authors' code. 25,028,904 parameters and 4.2 billion
    multiply-adds, as published (25.0 million, 4.2 billion).
    """
    net = _resnet(_NUM_BLOCKS[50], is_bottleneck=True, groups=32, widening=2)
    source = "S. Xie, R. Girshick, P. Dollár, Z. Tu and K. He, CVPR 2017, arXiv 1611.05431, Table 1"
    return net.build("resnext50-32x4d", source=source)


def _resnet(num_blocks: tuple[int, ...], *, is_bottleneck: bool, groups: int = 1, widening: int = 1) -> Builder:
    """Return the layers of a residual network; those with ``groups`` halve the image in the convolution of these."""
    net = Builder((3, 224, 224))
    net.conv("conv1", 64, kernel=7, stride=2, padding=3, bias=False).batch_norm("bn1").relu("relu")
    net.max_pool("maxpool", kernel=3, stride=2, padding=1)
    for stage, (number, num_channels) in enumerate(zip(num_blocks, _RESNET_CHANNELS, strict=True), start=1):
        for index in range(number):
            block, entry = f"layer{stage}.{index}", net.last
            stride = 2 if stage > 1 and index == 0 else 1
            inner, (first, second) = num_channels * widening, (stride, 1) if groups == 1 else (1, stride)
            kernel = 1 if is_bottleneck else 3
            net.conv(f"{block}.conv1", inner, kernel=kernel, stride=first, padding=kernel // 2, bias=False)
            net.batch_norm(f"{block}.bn1").relu(f"{block}.relu1")
            net.conv(f"{block}.conv2", inner, kernel=3, stride=second, padding=1, groups=groups, bias=False)
            net.batch_norm(f"{block}.bn2")
            if is_bottleneck:
                net.relu(f"{block}.relu2").conv(f"{block}.conv3", _EXPANSION * num_channels, kernel=1, bias=False)
                net.batch_norm(f"{block}.bn3")
            _join(net, block, entry, stride)
    return net.global_average_pool("avgpool").flatten("flatten").fully_connected("fc", 1000)


def _join(net: Builder, block: str, entry: str, stride: int) -> None:
    """Add a block's shortcut to it: as it is where the shape is kept, else through a 1x1 convolution."""
    main, shape, shortcut = net.last, net.shape, entry
    if net.at(entry).shape != shape:
        net.conv(f"{block}.downsample.0", shape[0], kernel=1, stride=stride, bias=False)
        shortcut = net.batch_norm(f"{block}.downsample.1").last
    net.at(main).add(f"{block}.add", shortcut).relu(f"{block}.relu")


# -- DenseNets -------------------------------------------------------------------------------------------------------

_DENSE_LAYERS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32)}
_GROWTH = 32  # channels that every layer adds
_DENSE_INNER = 4 * _GROWTH  # of the 1x1 convolution before each 3x3


def densenet(depth: int) -> Dnn:
    """Return the DenseNet-BC of ``depth`` 121 or 169, with 32 channels more after each layer.

    Notes
    -----
    Every layer reads what all layers of its block put out: the stack of these, written anew by each and kept, as the
    usual code has it. Code that computes the stacks again in the backward pass keeps far less.

    Raises
    ------
    ValueError
        For another depth.
    """
    if depth not in _DENSE_LAYERS:
        raise ValueError(f"there is no DenseNet of depth {depth}; choose one of {', '.join(map(str, _DENSE_LAYERS))}")
    net = Builder((3, 224, 224))
    net.conv("conv0", 64, kernel=7, stride=2, padding=3, bias=False).batch_norm("norm0").relu("relu0")
    net.max_pool("pool0", kernel=3, stride=2, padding=1)
    for block, num_layers in enumerate(_DENSE_LAYERS[depth], start=1):
        if block > 1:
            name = f"transition{block - 1}"
            net.batch_norm(f"{name}.norm").relu(f"{name}.relu")
            net.conv(f"{name}.conv", net.shape[0] // 2, kernel=1, bias=False)
            net.average_pool(f"{name}.pool", kernel=2, stride=2)
        for index in range(1, num_layers + 1):
            name, entry = f"denseblock{block}.denselayer{index}", net.last
            net.begin_block().batch_norm(f"{name}.norm1").relu(f"{name}.relu1")
            net.conv(f"{name}.conv1", _DENSE_INNER, kernel=1, bias=False)
            net.batch_norm(f"{name}.norm2").relu(f"{name}.relu2")
            net.conv(f"{name}.conv2", _GROWTH, kernel=3, padding=1, bias=False)
            net.concatenate(f"{name}.concat", entry, net.last).end_block()
    net.batch_norm("norm5").relu("relu5").global_average_pool("avgpool").flatten("flatten")
    net.fully_connected("classifier", 1000)
    source = "G. Huang, Z. Liu, L. van der Maaten and K. Q. Weinberger, CVPR 2017, arXiv 1608.06993, Table 1"
    return net.build(f"densenet{depth}", source=source)


# -- U-Net -----------------------------------------------------------------------------------------------------------

_UNET_CHANNELS = (64, 128, 256, 512, 1024)  # of the levels, from the full image down
_ISBI_SAMPLES = 30  # images of 512 x 512 of the challenge of electron microscopy, section 4


def unet() -> Dnn:
    """Return the U-Net of figure 1: a tile of 572 x 572, one channel, to 388 x 388 positions of two classes.

    Notes
    -----
    Convolutions are not padded, so that what passes across is cropped. 31,030,658 parameters. The dropout "at the end
    of the contracting path" stands before the last pool and in the lowest level, as in the authors' network.
    """
    net = Builder((1, 572, 572))
    passed: list[str] = []
    for level, num_channels in enumerate(_UNET_CHANNELS, start=1):
        if passed:
            net.max_pool(f"pool{level - 1}", kernel=2, stride=2)
        _two_convolutions(net, f"down{level}", num_channels)
        if level >= len(_UNET_CHANNELS) - 1:
            net.dropout(f"down{level}.dropout")
        passed.append(net.last)
    for level, num_channels in reversed(list(enumerate(_UNET_CHANNELS[:-1], start=1))):
        up = net.transposed_conv(f"up{level}.conv", num_channels, kernel=2).relu(f"up{level}.relu").last
        _, height, width = net.shape
        cropped = net.at(passed[level - 1]).crop(f"up{level}.crop", height, width).last
        net.concatenate(f"up{level}.concat", cropped, up)
        _two_convolutions(net, f"up{level}", num_channels)
    net.conv("classes", 2, kernel=1)
    source = "O. Ronneberger, P. Fischer and T. Brox, MICCAI 2015, arXiv 1505.04597, figure 1"
    return net.build("unet", source=source, dataset_samples=_ISBI_SAMPLES)


def _two_convolutions(net: Builder, level: str, num_channels: int) -> None:
    for index in (1, 2):
        net.conv(f"{level}.conv{index}", num_channels, kernel=3).relu(f"{level}.relu{index}")


# -- the networks of the Adam performance model ------------------------------------------------------------------------

# The two on which it was validated, reconstructed. The paper gives tasks, numbers of layers and rounded numbers of
# connections; widths and kernels here were chosen to meet these. Biases are left out, as the paper counts connections
# (our ``num_multiply_adds``) and stored weights only. For a convolution these two differ by the number of output
# positions.
_ADAM_SOURCE = "F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270; shapes reconstructed"
_MNIST_SAMPLES = 60_000
_IMAGENET22K_SAMPLES = 15_000_000  # "over 15 million images", section 6.1


def adam_mnist() -> Dnn:
    """Return the 5-layer network for MNIST: 2,501,400 connections, 759,400 stored weights."""
    net = Builder((1, 28, 28))
    net.conv("conv1", 16, kernel=5, bias=False).relu("relu1").max_pool("pool1", kernel=2, stride=2)
    net.conv("conv2", 60, kernel=5, bias=False).relu("relu2").max_pool("pool2", kernel=2, stride=2)
    net.flatten("flatten")
    net.fully_connected("fc3", 500, bias=False).relu("relu3")
    net.fully_connected("fc4", 500, bias=False).relu("relu4")
    net.fully_connected("fc5", 10, bias=False)
    return net.build("adam-mnist", source=_ADAM_SOURCE, dataset_samples=_MNIST_SAMPLES)


def adam_imagenet22k() -> Dnn:
    """Return the 8-layer network for ImageNet-22K: 2,021,858,400 connections, 148,311,648 stored weights.

    Notes
    -----
    The input is 227 x 227, which a stride of 4 takes to 55 x 55 without padding.
    """
    net = Builder((3, 227, 227))
    net.conv("conv1", 96, kernel=11, stride=4, bias=False).relu("relu1").max_pool("pool1", kernel=3, stride=2)
    net.conv("conv2", 256, kernel=5, padding=2, bias=False).relu("relu2").max_pool("pool2", kernel=3, stride=2)
    net.conv("conv3", 600, kernel=3, padding=1, bias=False).relu("relu3")
    net.conv("conv4", 600, kernel=3, padding=1, bias=False).relu("relu4")
    net.conv("conv5", 600, kernel=3, padding=1, bias=False).relu("relu5").max_pool("pool5", kernel=3, stride=2)
    net.flatten("flatten")
    net.fully_connected("fc6", 3000, bias=False).relu("relu6")
    net.fully_connected("fc7", 3000, bias=False).relu("relu7")
    net.fully_connected("fc8", 22000, bias=False)
    return net.build("adam-imagenet22k", source=_ADAM_SOURCE, dataset_samples=_IMAGENET22K_SAMPLES)
