"""AlexNet on one tower, and OverFeat: five convolutions and three fully-connected layers.

Both leave out local response normalisation, which has no weights and which later work dropped.
"""

from planner.dnn import Dnn
from planner.zoo.builder import Builder

__all__ = ["alexnet", "overfeat"]


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
