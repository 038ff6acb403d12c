"""A small fluent builder: one method a layer, every shape and size derived from the layer before it.

Conventions of the whole zoo: ReLU, dropout and batch norm are layers of their own; ReLU, residual additions and
flattening work in place; only convolutions and fully-connected layers count multiply-adds.
"""

from math import prod
from typing import Self

from planner.dnn import Dnn, Layer, Tensor, Window

__all__ = ["IMAGENET_SAMPLES", "Builder"]

# Training images of ILSVRC-2012: O. Russakovsky et al., Int. J. Computer Vision 115(3), 2015, Table 2.
IMAGENET_SAMPLES = 1_281_167


class Builder:
    """Layers in order of definition, each reading the layer defined before it unless :meth:`at` says otherwise.

    Parameters
    ----------
    input_shape
        Of one sample: (channels, height, width) or (features,).

    Raises
    ------
    ValueError
        Every method: for a shape that cannot be, such as a kernel larger than its padded input.

    Examples
    --------
    >>> net = Builder((3, 227, 227)).conv("conv1", 64, kernel=11, stride=4).relu("relu1")
    >>> net.max_pool("pool1", kernel=3, stride=2).shape
    (64, 27, 27)
    """

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        self._layers: dict[str, Layer] = {}
        self._inputs: dict[str, tuple[str, ...]] = {}
        self._append(Layer(name="input", kind="input", output_shape=input_shape))

    @property
    def last(self) -> str:
        """Name of the layer that the next one will read."""
        return self._last

    @property
    def shape(self) -> tuple[int, ...]:
        """Output shape of that layer."""
        return self._layers[self._last].output_shape

    @property
    def layers(self) -> tuple[tuple[Layer, tuple[str, ...]], ...]:
        """Every layer with the names of those it reads, as :class:`planner.dnn.Dnn` takes them."""
        return tuple((layer, self._inputs[name]) for name, layer in self._layers.items())

    def build(self, name: str, *, source: str, dataset_samples: int | None = IMAGENET_SAMPLES) -> Dnn:
        """Return the network; ``source`` is the paper its shapes come from."""
        return Dnn(name, self.layers, source=source, dataset_samples=dataset_samples)

    def at(self, name: str) -> Self:
        """Go back to layer ``name``, so that the next layer reads it: this starts a branch."""
        self._last = self._known(name).name
        return self

    def conv(
        self, name: str, num_channels: int, *, kernel: int, stride: int = 1, padding: int = 0, bias: bool = True
    ) -> Self:
        """Append a convolution with square kernels and ``num_channels`` output channels."""
        channels = self._image(name)[0]
        height, width = self._slide(name, kernel, stride, padding)
        tensors = _weight_and_bias(name, channels * kernel * kernel, num_channels, bias=bias)
        layer = Layer(
            name=name,
            kind="convolution",
            output_shape=(num_channels, height, width),
            num_multiply_adds=tensors[0].num_elements * height * width,
            tensors=tensors,
            window=Window(kernel=kernel, stride=stride, padding=padding),
        )
        return self._append(layer, self._last)

    def fully_connected(self, name: str, num_features: int, *, bias: bool = True) -> Self:
        """Append a fully-connected layer; flatten before it."""
        if len(self.shape) != 1:
            raise ValueError(f"layer {name!r} reads {self._last!r} of shape {self.shape}; flatten it first")
        tensors = _weight_and_bias(name, self.shape[0], num_features, bias=bias)
        layer = Layer(
            name=name,
            kind="fully_connected",
            output_shape=(num_features,),
            num_multiply_adds=tensors[0].num_elements,
            tensors=tensors,
        )
        return self._append(layer, self._last)

    def batch_norm(self, name: str) -> Self:
        """Append batch normalisation: scale and shift are trained, moving mean and variance only stored."""
        channels = self._image(name)[0]
        roles = {"scale": "scale", "shift": "shift", "moving_mean": "moving", "moving_variance": "moving"}
        tensors = tuple(
            Tensor(name=f"{name}.{tensor}", num_elements=channels, role=role) for tensor, role in roles.items()
        )
        return self._append(Layer(name=name, kind="batch_norm", output_shape=self.shape, tensors=tensors), self._last)

    def max_pool(self, name: str, *, kernel: int, stride: int, padding: int = 0, ceil: bool = False) -> Self:
        """Append a max pool; with ``ceil`` a last window that overhangs the edge counts, too."""
        window = Window(kernel=kernel, stride=stride, padding=padding)
        return self._pool(name, self._slide(name, kernel, stride, padding, ceil=ceil), window)

    def average_pool(self, name: str, *, kernel: int, stride: int) -> Self:
        """Append an average pool without padding."""
        return self._pool(name, self._slide(name, kernel, stride, 0), Window(kernel=kernel, stride=stride))

    def global_average_pool(self, name: str) -> Self:
        """Append an average over the whole image: (channels, 1, 1)."""
        return self._pool(name, (1, 1))

    def relu(self, name: str) -> Self:
        """Append a ReLU, in place."""
        return self._like(name, "activation", is_in_place=True)

    def dropout(self, name: str) -> Self:
        """Append a dropout."""
        return self._like(name, "dropout")

    def flatten(self, name: str) -> Self:
        """Append a flattening, in place: (features,)."""
        layer = Layer(name=name, kind="flatten", output_shape=(prod(self.shape),), is_in_place=True)
        return self._append(layer, self._last)

    def add(self, name: str, other: str) -> Self:
        """Append the sum of the last layer, which it overwrites, and of layer ``other``."""
        if self._known(other).output_shape != self.shape:
            raise ValueError(
                f"layer {name!r} adds {other!r} of shape {self._known(other).output_shape} "
                f"to {self._last!r} of shape {self.shape}; give them one shape"
            )
        layer = Layer(name=name, kind="add", output_shape=self.shape, is_in_place=True)
        return self._append(layer, self._last, other)

    def concatenate(self, name: str, *branches: str) -> Self:
        """Append the layers ``branches`` stacked by channel."""
        shapes = [self._known(branch).output_shape for branch in branches]
        if len({shape[1:] for shape in shapes}) != 1:
            raise ValueError(f"layer {name!r} concatenates shapes {shapes}; give them one height and width")
        output_shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        return self._append(Layer(name=name, kind="concatenate", output_shape=output_shape), *branches)

    def _append(self, layer: Layer, *inputs: str) -> Self:
        if layer.name in self._layers:
            raise ValueError(f"layer {layer.name!r} stands twice; give every layer its own name")
        if len(set(inputs)) < len(inputs):
            raise ValueError(f"layer {layer.name!r} reads one layer twice ({', '.join(inputs)}); an edge counts once")
        if not layer.output_shape or min(layer.output_shape) < 1:
            raise ValueError(f"layer {layer.name!r} would have shape {layer.output_shape}; every size is at least 1")
        self._layers[layer.name] = layer
        self._inputs[layer.name] = inputs
        self._last = layer.name
        return self

    def _known(self, name: str) -> Layer:
        if name not in self._layers:
            raise ValueError(f"layer {name!r} does not exist; define it before it is read")
        return self._layers[name]

    def _like(self, name: str, kind: str, *, is_in_place: bool = False) -> Self:
        """Append a layer that keeps the shape."""
        return self._append(Layer(name=name, kind=kind, output_shape=self.shape, is_in_place=is_in_place), self._last)

    def _pool(self, name: str, size: tuple[int, int], window: Window | None = None) -> Self:
        shape = (self._image(name)[0], *size)
        return self._append(Layer(name=name, kind="pooling", output_shape=shape, window=window), self._last)

    def _image(self, name: str) -> tuple[int, int, int]:
        """Return the last layer's shape if it is an image."""
        if len(self.shape) != 3:
            raise ValueError(f"layer {name!r} needs (channels, height, width) but {self._last!r} has {self.shape}")
        channels, height, width = self.shape
        return channels, height, width

    def _slide(self, name: str, kernel: int, stride: int, padding: int, *, ceil: bool = False) -> tuple[int, int]:
        """Return height and width of what a sliding window leaves."""
        if kernel < 1 or stride < 1 or padding < 0:
            raise ValueError(
                f"layer {name!r} has kernel {kernel}, stride {stride}, padding {padding}; "
                "kernel and stride are at least 1, padding at least 0"
            )
        _, *sizes = self._image(name)
        if kernel > min(sizes) + 2 * padding:
            raise ValueError(
                f"layer {name!r}: kernel {kernel} is larger than its input {sizes[0]} x {sizes[1]} with padding "
                f"{padding}; use a smaller kernel or more padding"
            )
        height, width = (_num_windows(size, kernel, stride, padding, ceil=ceil) for size in sizes)
        return height, width


def _weight_and_bias(name: str, fan_in: int, num_outputs: int, *, bias: bool) -> tuple[Tensor, ...]:
    weight = Tensor(name=f"{name}.weight", num_elements=fan_in * num_outputs, role="weight")
    return (weight, Tensor(name=f"{name}.bias", num_elements=num_outputs, role="bias")) if bias else (weight,)


def _num_windows(size: int, kernel: int, stride: int, padding: int, *, ceil: bool) -> int:
    span = size + 2 * padding - kernel
    if not ceil:
        return span // stride + 1
    # Caffe's rule: an overhanging window counts only if it starts inside the image or its leading padding.
    return min(-(-span // stride), (size + padding - 1) // stride) + 1
