"""GoogLeNet, Inception v1: C. Szegedy et al., CVPR 2015, arXiv 1409.4842, Table 1 and section 5.

Without local response normalisation (no weights) and without batch norm (that is Inception v2). Names are those of
Caffe's ``bvlc_googlenet``; its pools round up.

Layer sums: 6,998,552 parameters without the auxiliary classifiers, which is the published total, and 13,378,280 with
both, as trained: 53.5 MB as 32-bit numbers, published as 53. torchvision's 6,624,904 and 13,004,888 are another
network: 3x3 kernels in place of 5x5, and batch norm. The "1.5 billion multiply-adds" of section 1 are 1.583 here.
"""

# Sources: Netscope counts 6,998,552 for Caffe's network (BVLC/caffe, models/bvlc_googlenet, deploy.prototxt). The 53 is
# from S. Shi et al., arXiv 1805.03812, Table IV: "~53 millions", which fits only as megabytes of the trained network.

from typing import NamedTuple

from planner.dnn import Dnn
from planner.zoo.builder import Builder

__all__ = ["googlenet"]

_SOURCE = "C. Szegedy et al., CVPR 2015, arXiv 1409.4842, Table 1"


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
    """Return GoogLeNet, as it is used or, with both ``auxiliary`` classifiers, as it is trained.

    Notes
    -----
    6,998,552 parameters; 13,378,280 with the auxiliary classifiers, which end in outputs of their own.
    """
    net = _stem()
    for module, channels in _MODULES.items():
        _inception(net, f"inception_{module}", channels)
        if auxiliary and module in _AUXILIARY_AFTER:
            _auxiliary_classifier(net, _AUXILIARY_AFTER[module])
        if module in _POOL_AFTER:
            net.max_pool(_POOL_AFTER[module], kernel=3, stride=2, ceil=True)
    net.average_pool("pool5/7x7_s1", kernel=7, stride=1).dropout("pool5/drop_7x7_s1")
    net.flatten("loss3/flatten").fully_connected("loss3/classifier", 1000)
    return net.build("googlenet-aux" if auxiliary else "googlenet", source=_SOURCE)


def _stem() -> Builder:
    net = Builder((3, 224, 224))
    net.conv("conv1/7x7_s2", 64, kernel=7, stride=2, padding=3).relu("conv1/relu_7x7")
    net.max_pool("pool1/3x3_s2", kernel=3, stride=2, ceil=True)
    net.conv("conv2/3x3_reduce", 64, kernel=1).relu("conv2/relu_3x3_reduce")
    net.conv("conv2/3x3", 192, kernel=3, padding=1).relu("conv2/relu_3x3")
    return net.max_pool("pool2/3x3_s2", kernel=3, stride=2, ceil=True)


def _inception(net: Builder, module: str, channels: _Channels) -> None:
    """Append four branches from the last layer, stacked by channel."""
    entry = net.last
    ends = (
        _conv_relu(net, module, "1x1", channels.conv1).last,
        _reduced_conv(net.at(entry), module, "3x3", channels.reduce3, channels.conv3).last,
        _reduced_conv(net.at(entry), module, "5x5", channels.reduce5, channels.conv5).last,
        _pool_projection(net.at(entry), module, channels.pool_projection).last,
    )
    net.concatenate(f"{module}/output", *ends)


def _reduced_conv(net: Builder, module: str, size: str, num_reduced: int, num_channels: int) -> Builder:
    _conv_relu(net, module, f"{size}_reduce", num_reduced)
    return _conv_relu(net, module, size, num_channels, kernel=int(size[0]))


def _pool_projection(net: Builder, module: str, num_channels: int) -> Builder:
    net.max_pool(f"{module}/pool", kernel=3, stride=1, padding=1)
    return _conv_relu(net, module, "pool_proj", num_channels)


def _conv_relu(net: Builder, module: str, part: str, num_channels: int, *, kernel: int = 1) -> Builder:
    net.conv(f"{module}/{part}", num_channels, kernel=kernel, padding=kernel // 2)
    return net.relu(f"{module}/relu_{part}")


def _auxiliary_classifier(net: Builder, head: str) -> None:
    """Append a classifier beside the trunk, and go back to the trunk."""
    trunk = net.last
    net.average_pool(f"{head}/ave_pool", kernel=5, stride=3)
    net.conv(f"{head}/conv", 128, kernel=1).relu(f"{head}/relu_conv")
    net.flatten(f"{head}/flatten").fully_connected(f"{head}/fc", 1024).relu(f"{head}/relu_fc")
    net.dropout(f"{head}/drop_fc").fully_connected(f"{head}/classifier", 1000)
    net.at(trunk)
