"""VGG: configurations A, B, C, D and E of K. Simonyan and A. Zisserman, ICLR 2015, arXiv 1409.1556, Table 1.

Also VGG16 with its fully-connected layers replaced by two 1x1 convolutions and global average pooling.
"""

from planner.dnn import Dnn
from planner.zoo.builder import Builder

__all__ = ["vgg11", "vgg13", "vgg16", "vgg16_replaced_head", "vgg16c", "vgg19"]

_SOURCE = "K. Simonyan and A. Zisserman, ICLR 2015, arXiv 1409.1556, Table 1"
_CHANNELS = (64, 128, 256, 512, 512)  # of blocks 1 to 5

# Per block, the kernel sizes of its convolutions.
_A = ((3,), (3,), (3, 3), (3, 3), (3, 3))
_B = ((3, 3), (3, 3), (3, 3), (3, 3), (3, 3))
_C = ((3, 3), (3, 3), (3, 3, 1), (3, 3, 1), (3, 3, 1))
_D = ((3, 3), (3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3))
_E = ((3, 3), (3, 3), (3, 3, 3, 3), (3, 3, 3, 3), (3, 3, 3, 3))


def vgg11() -> Dnn:
    """Return configuration A."""
    return _vgg("vgg11", _A)


def vgg13() -> Dnn:
    """Return configuration B."""
    return _vgg("vgg13", _B)


def vgg16c() -> Dnn:
    """Return configuration C: the third convolution of blocks 3 to 5 is 1x1."""
    return _vgg("vgg16c", _C)


def vgg16() -> Dnn:
    """Return configuration D, the VGG16 of common use."""
    return _vgg("vgg16", _D)


def vgg19() -> Dnn:
    """Return configuration E."""
    return _vgg("vgg19", _E)


def vgg16_replaced_head() -> Dnn:
    """Return VGG16 with 15.49 instead of 138.36 million parameters.

    Notes
    -----
    The layer replacement of T. Liu et al., WWW 2022, doi:10.1145/3485447.3511981, section 4.1 and Table 3: after
    ``pool5`` a 1x1 convolution to 512 channels, one to 1000, and an average over the 7x7 positions. They follow
    network in network (M. Lin, Q. Chen, S. Yan, arXiv 1312.4400), hence the ReLU after each 1x1 convolution.
    """
    net = _features(_D)
    net.conv("conv6", 512, kernel=1).relu("relu6")
    net.conv("conv7", 1000, kernel=1).relu("relu7")
    net.global_average_pool("pool7").flatten("flatten")
    return net.build(
        "vgg16-replaced-head", source=f"{_SOURCE}; head: T. Liu et al., WWW 2022, doi:10.1145/3485447.3511981, Table 3"
    )


def _vgg(name: str, blocks: tuple[tuple[int, ...], ...]) -> Dnn:
    net = _features(blocks).flatten("flatten")
    net.fully_connected("fc6", 4096).relu("relu6").dropout("drop6")
    net.fully_connected("fc7", 4096).relu("relu7").dropout("drop7")
    net.fully_connected("fc8", 1000)
    return net.build(name, source=_SOURCE)


def _features(blocks: tuple[tuple[int, ...], ...]) -> Builder:
    net = Builder((3, 224, 224))
    for block, (kernels, num_channels) in enumerate(zip(blocks, _CHANNELS, strict=True), start=1):
        for index, kernel in enumerate(kernels, start=1):
            net.conv(f"conv{block}_{index}", num_channels, kernel=kernel, padding=kernel // 2)
            net.relu(f"relu{block}_{index}")
        net.max_pool(f"pool{block}", kernel=2, stride=2)
    return net
