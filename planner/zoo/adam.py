"""The two networks on which the Adam performance model was validated, reconstructed.

F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, section 6.1. The paper gives tasks,
numbers of layers and rounded numbers of connections; widths and kernels here were chosen to meet these. Biases are left
out, as the paper counts connections (our ``num_multiply_adds``) and stored weights only. For a convolution these two
differ by the number of output positions.
"""

from planner.dnn import Dnn
from planner.zoo.builder import Builder

__all__ = ["adam_imagenet22k", "adam_mnist"]

_SOURCE = "F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270; shapes reconstructed"
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
    return net.build("adam-mnist", source=_SOURCE, dataset_samples=_MNIST_SAMPLES)


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
    return net.build("adam-imagenet22k", source=_SOURCE, dataset_samples=_IMAGENET22K_SAMPLES)
