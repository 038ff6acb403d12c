"""A small fluent builder: one method a layer, every shape and size derived from the layer before it.

Conventions of the whole zoo: activations, dropout, batch norm and softmax are layers of their own. In place, so that
nothing more of them is kept for the backward pass: activations whose gradient follows from what they put out (ReLU,
sigmoid), residual additions, flattening, softmax over the scores of attention, and copies that only change the order of
their input. Multiply-adds are those of convolutions, products with weights, and products of attention; none of biases,
norms, scalings and pools. Stochastic depth, which drops whole branches in training, is no layer.

Shapes are (channels, height, width), also where the numbers of a position lie side by side (channels last), and
(features, tokens, 1) of a sequence.
"""

from dataclasses import replace
from math import prod
from typing import Literal, Self, get_args

from planner.dnn import Dnn, Layer, Operator, Product, Repeat, Tensor, Window

Activation = Literal["relu", "relu6", "sigmoid", "silu", "hard_swish", "hard_sigmoid", "gelu"]
_IN_PLACE: tuple[Activation, ...] = ("relu", "relu6", "sigmoid")  # the others need their input for its gradient
_LSTM_GATES = 4  # of input, forgetting and output, and what is written into the cell

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
        self._blocks: list[tuple[int, int]] = []  # first layer, and the one behind the last
        self._block: int | None = None  # first layer of the one that is open
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
        return Dnn(name, self.layers, source=source, dataset_samples=dataset_samples, repeats=self._repeats())

    def begin_block(self) -> Self:
        """Begin a block, which ends with :meth:`end_block`: pipelines keep its layers together."""
        if self._block is not None:
            raise ValueError(f"a block begins behind {self._last!r} inside of another; end that one first")
        self._block = len(self._layers)
        return self

    def end_block(self) -> Self:
        """End the block that was begun."""
        if self._block is None or self._block == len(self._layers):
            raise ValueError(f"no block ends with {self._last!r}; begin one, and append layers")
        self._blocks.append((self._block, len(self._layers)))
        self._block = None
        return self

    def at(self, name: str) -> Self:
        """Go back to layer ``name``, so that the next layer reads it: this starts a branch."""
        self._last = self._known(name).name
        return self

    def conv(
        self,
        name: str,
        num_channels: int,
        *,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> Self:
        """Append a convolution with ``num_channels`` output channels.

        ``kernel`` and ``padding`` are one number, or height and width. Every group of output channels reads one of the
        ``groups`` equal parts of the input's: 1 is a dense convolution, as many as there are channels a depthwise one.
        """
        channels = self._image(name)[0]
        if groups < 1 or channels % groups or num_channels % groups:
            raise ValueError(
                f"layer {name!r} has {groups} groups, {channels} channels in and {num_channels} out; "
                "write a number of groups that divides both"
            )
        height, width = self._slide(name, kernel, stride, padding)
        inner = channels // groups * prod(_pair(kernel))
        tensors = _weight_and_bias(name, inner, num_channels, bias=bias)
        num_multiply_adds = tensors[0].num_elements * height * width
        window: Window | None = None
        operators: tuple[Operator, ...] = ()
        if isinstance(kernel, int) and isinstance(padding, int):
            window = Window(kernel=kernel, stride=stride, padding=padding)
        else:  # without a window, its groups could not be told
            operators = (
                Operator(
                    kind="convolution",
                    num_multiply_adds=num_multiply_adds,
                    read_elements=prod(self.shape),
                    written_elements=num_channels * height * width,
                    weight_elements=sum(tensor.num_elements for tensor in tensors),
                    product=Product(rows=height * width, inner=inner, columns=num_channels // groups, count=groups),
                ),
            )
        layer = Layer(
            name=name,
            kind="convolution",
            output_shape=(num_channels, height, width),
            num_multiply_adds=num_multiply_adds,
            tensors=tensors,
            window=window,
            operators=operators,
        )
        return self._append(layer, self._last)

    def transposed_conv(self, name: str, num_channels: int, *, kernel: int) -> Self:
        """Append a transposed convolution whose stride is its kernel: every position becomes a square of that size."""
        channels, height, width = self._image(name)
        shape = (num_channels, height * kernel, width * kernel)
        weight = Tensor(name=f"{name}.weight", num_elements=channels * num_channels * kernel * kernel)
        shift = Tensor(name=f"{name}.bias", num_elements=num_channels, role="bias")
        tensors = (weight, shift)
        # Squares do not overlap, so every number of the output reads the channels of one position.
        product = Product(rows=shape[1] * shape[2], inner=channels, columns=num_channels, count=1)
        operator = Operator(
            kind="convolution",
            num_multiply_adds=channels * prod(shape),
            read_elements=prod(self.shape),
            written_elements=prod(shape),
            weight_elements=sum(tensor.num_elements for tensor in tensors),
            product=product,
        )
        layer = Layer(
            name=name,
            kind="convolution",
            output_shape=shape,
            num_multiply_adds=operator.num_multiply_adds,
            tensors=tensors,
            operators=(operator,),
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

    def linear(self, name: str, num_features: int, *, bias: bool = True) -> Self:
        """Append the product of every position's, or token's, channels with one matrix."""
        features, height, width = self._image(name)
        tensors = _weight_and_bias(name, features, num_features, bias=bias)
        layer = Layer(
            name=name,
            kind="matmul",
            output_shape=(num_features, height, width),
            num_multiply_adds=tensors[0].num_elements * height * width,
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

    def layer_norm(self, name: str) -> Self:
        """Append a layer norm over every position's channels, with scale and shift."""
        channels = self._image(name)[0]
        tensors = tuple(Tensor(name=f"{name}.{role}", num_elements=channels, role=role) for role in ("scale", "shift"))
        return self._append(Layer(name=name, kind="norm", output_shape=self.shape, tensors=tensors), self._last)

    def max_pool(self, name: str, *, kernel: int, stride: int, padding: int = 0, ceil: bool = False) -> Self:
        """Append a max pool; with ``ceil`` a last window that overhangs the edge counts, too."""
        window = Window(kernel=kernel, stride=stride, padding=padding)
        return self._pool(name, self._slide(name, kernel, stride, padding, ceil=ceil), window)

    def average_pool(self, name: str, *, kernel: int, stride: int, padding: int = 0) -> Self:
        """Append an average pool."""
        window = Window(kernel=kernel, stride=stride, padding=padding)
        return self._pool(name, self._slide(name, kernel, stride, padding), window)

    def global_average_pool(self, name: str) -> Self:
        """Append an average over the whole image, or over all tokens: (channels, 1, 1)."""
        return self._pool(name, (1, 1))

    def relu(self, name: str) -> Self:
        """Append a ReLU, in place."""
        return self.activation(name, "relu")

    def activation(self, name: str, function: Activation) -> Self:
        """Append an activation, in place where its gradient follows from what it puts out."""
        if function not in get_args(Activation):
            raise ValueError(
                f"layer {name!r}: {function!r} is no known activation; write one of {', '.join(get_args(Activation))}"
            )
        return self._like(name, "activation", is_in_place=function in _IN_PLACE)

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

    def multiply(self, name: str, other: str) -> Self:
        """Append the product of the last layer and of layer ``other``, which has one number for each channel."""
        if self._known(other).output_shape != (self.shape[0], 1, 1):
            raise ValueError(
                f"layer {name!r} scales {self._last!r} of shape {self.shape} by {other!r} of shape "
                f"{self._known(other).output_shape}; give it one number for each channel"
            )
        return self._append(Layer(name=name, kind="multiply", output_shape=self.shape), self._last, other)

    def scale(self, name: str) -> Self:
        """Append a product with one trained number for each channel."""
        tensor = Tensor(name=f"{name}.scale", num_elements=self._image(name)[0], role="scale")
        layer = Layer(name=name, kind="multiply", output_shape=self.shape, tensors=(tensor,))
        return self._append(layer, self._last)

    def squeeze_excitation(
        self, name: str, num_squeezed: int, *, inner: Activation = "relu", gate: Activation = "sigmoid"
    ) -> Self:
        """Append squeeze-and-excitation: every channel is scaled by what two 1x1 convolutions make of all means."""
        entry, channels = self._last, self._image(name)[0]
        self.global_average_pool(f"{name}.pool")
        self.conv(f"{name}.reduce", num_squeezed, kernel=1).activation(f"{name}.activation", inner)
        self.conv(f"{name}.expand", channels, kernel=1)
        weight = self.activation(f"{name}.gate", gate).last
        return self.at(entry).multiply(f"{name}.multiply", weight)

    def concatenate(self, name: str, *branches: str) -> Self:
        """Append the layers ``branches`` stacked by channel."""
        shapes = [self._known(branch).output_shape for branch in branches]
        if len({shape[1:] for shape in shapes}) != 1:
            raise ValueError(f"layer {name!r} concatenates shapes {shapes}; give them one height and width")
        output_shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        return self._append(Layer(name=name, kind="concatenate", output_shape=output_shape), *branches)

    def crop(self, name: str, height: int, width: int) -> Self:
        """Append a copy of the middle of the image, kept only as what reads it has it."""
        channels, *sizes = self._image(name)
        if not (0 < height <= sizes[0] and 0 < width <= sizes[1]):
            raise ValueError(
                f"layer {name!r} crops {sizes[0]} x {sizes[1]} to {height} x {width}; write a smaller size"
            )
        return self._copy(name, (channels, height, width))

    # -- tokens ------------------------------------------------------------------------------------------------------

    def tokens(self, name: str) -> Self:
        """Append a change of shape: every position of an image is a token."""
        channels, height, width = self._image(name)
        layer = Layer(name=name, kind="flatten", output_shape=(channels, height * width, 1), is_in_place=True)
        return self._append(layer, self._last)

    def transpose(self, name: str) -> Self:
        """Append a copy in which tokens are features, and features tokens."""
        features, height, width = self._image(name)
        return self._copy(name, (height * width, features, 1))

    def merge_patches(self, name: str, *, size: int = 2) -> Self:
        """Append a copy in which squares of positions are one, with the channels of all of them."""
        channels, height, width = self._image(name)
        if height % size or width % size:
            raise ValueError(f"layer {name!r} merges squares of {size} of {height} x {width}; write a divisor of both")
        return self._copy(name, (channels * size * size, height // size, width // size))

    def embedding(self, name: str, num_rows: int, num_features: int) -> Self:
        """Append a look-up of every token in a table of ``num_rows``."""
        _, height, width = self._image(name)
        table = Tensor(name=f"{name}.weight", num_elements=num_rows * num_features)
        layer = Layer(name=name, kind="embedding", output_shape=(num_features, height, width), tensors=(table,))
        return self._append(layer, self._last)

    def window_attention(self, name: str, *, num_heads: int, window: int, is_shifted: bool = False) -> Self:
        """Append self-attention inside square windows, with a trained bias for every distance of two positions.

        Parameters
        ----------
        name
            Begins the names of its layers: ``NAME.qkv``, ``NAME.scores``, ...
        num_heads
            Equal parts of the channels.
        window
            Height and width of a window.
        is_shifted
            Whether windows begin in the middle of those of the block before: the image is turned by half a window
            before and after. The mask that this needs is no parameter.

        Notes
        -----
        Scores are written and read again, since the bias comes between: one array of them is kept, the softmax's.
        """
        channels, height, width = self._image(name)
        if channels % num_heads or height % window or width % window:
            raise ValueError(
                f"layer {name!r}: {num_heads} heads and windows of {window} do not divide {channels} channels of "
                f"{height} x {width}; write divisors"
            )
        positions, seen = height * width, window * window
        count, head_size = positions // seen * num_heads, channels // num_heads
        shape = (num_heads * seen, positions, 1)
        if is_shifted:
            self._copy(f"{name}.shift", self.shape)
        states = self._copy(f"{name}.windows", self.shape).linear(f"{name}.qkv", 3 * channels).last
        self._product(f"{name}.scores", shape, (seen, head_size, seen, count), 2 * channels * positions, states)
        table = Tensor(name=f"{name}.position_bias.weight", num_elements=(2 * window - 1) ** 2 * num_heads)
        added = Operator(
            kind="element_wise",
            read_elements=prod(shape),
            written_elements=prod(shape),
            weight_elements=table.num_elements,
        )
        bias = Layer(
            name=f"{name}.position_bias",
            kind="add",
            output_shape=shape,
            tensors=(table,),
            is_in_place=True,
            operators=(added,),
        )
        self._append(bias, self._last)._like(f"{name}.softmax", "softmax", is_in_place=True)
        values = prod(shape) + channels * positions
        whole = (channels, height, width)
        self._product(f"{name}.context", whole, (seen, seen, head_size, count), values, self._last, states)
        self.linear(f"{name}.output", channels)._copy(f"{name}.merge", whole)
        return self._copy(f"{name}.unshift", whole) if is_shifted else self

    def lstm(self, name: str, num_features: int) -> Self:
        """Append a layer of long short-term memory over the sequence, as two layers.

        Notes
        -----
        ``NAME.input`` is the product of all tokens with the weights of the gates, and keeps these; ``NAME`` is one
        product of the state with its weights for each token, one after the other, and keeps the states. The contents
        of the cells, a sixth of what is kept in all, are left out.
        """
        gates, steps = _LSTM_GATES * num_features, prod(self._image(name)[1:])
        self.linear(f"{name}.input", gates)
        weight = Tensor(name=f"{name}.weight", num_elements=num_features * gates)
        # A product adds to the gates; a second kernel reads these and the cell, and writes all of them and the state.
        operator = Operator(
            kind="recurrent",
            num_multiply_adds=steps * weight.num_elements,
            read_elements=steps * (num_features + 2 * gates + num_features),
            written_elements=steps * (2 * gates + 2 * num_features),
            weight_elements=weight.num_elements,
            product=Product(rows=1, inner=num_features, columns=gates, count=steps),
            num_kernels=2 * steps,
        )
        layer = Layer(
            name=name,
            kind="recurrent",
            output_shape=(num_features, *self.shape[1:]),
            num_multiply_adds=operator.num_multiply_adds,
            tensors=(weight,),
            operators=(operator,),
        )
        return self._append(layer, self._last)

    # -- what they share ---------------------------------------------------------------------------------------------

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

    def _repeats(self) -> list[Repeat]:
        """Return the blocks, those next to each other that are copies as one."""
        layers, position = list(self._layers.values()), {name: index for index, name in enumerate(self._layers)}
        kinds: dict[object, str] = {}
        found: list[Repeat] = []
        for first, end in self._blocks:
            content = tuple(
                (
                    layer.kind,
                    layer.output_shape,
                    layer.num_multiply_adds,
                    tuple((tensor.num_elements, tensor.role) for tensor in layer.tensors),
                    layer.is_in_place,
                    layer.window,
                    tuple(index - position[name] for name in self._inputs[layer.name]),
                )
                for index, layer in enumerate(layers[first:end], start=first)
            )
            kind = kinds.setdefault(content, f"block{len(kinds) + 1}")
            before = found[-1] if found else None
            if before and before.kind == kind and before.first + before.num_layers * before.count == first:
                found[-1] = replace(before, count=before.count + 1)
            else:
                found.append(Repeat(first=first, num_layers=end - first, count=1, kind=kind))
        return found

    def _known(self, name: str) -> Layer:
        if name not in self._layers:
            raise ValueError(f"layer {name!r} does not exist; define it before it is read")
        return self._layers[name]

    def _like(self, name: str, kind: str, *, is_in_place: bool = False) -> Self:
        """Append a layer that keeps the shape."""
        return self._append(Layer(name=name, kind=kind, output_shape=self.shape, is_in_place=is_in_place), self._last)

    def _copy(self, name: str, shape: tuple[int, ...]) -> Self:
        """Append a copy in another order, which takes the place of what it reads."""
        return self._append(Layer(name=name, kind="copy", output_shape=shape, is_in_place=True), self._last)

    def _product(
        self, name: str, shape: tuple[int, ...], sizes: tuple[int, int, int, int], num_read: int, *inputs: str
    ) -> Self:
        """Append a product of activations: ``sizes`` are rows, inner width, columns and count, of one sample."""
        rows, inner, columns, count = sizes
        operator = Operator(
            kind="batched_matmul",
            num_multiply_adds=prod(sizes),
            read_elements=num_read,
            written_elements=prod(shape),
            product=Product(rows=rows, inner=inner, columns=columns, count=count),
        )
        layer = Layer(
            name=name, kind="attention", output_shape=shape, num_multiply_adds=prod(sizes), operators=(operator,)
        )
        return self._append(layer, *inputs)

    def _pool(self, name: str, size: tuple[int, int], window: Window | None = None) -> Self:
        shape = (self._image(name)[0], *size)
        return self._append(Layer(name=name, kind="pooling", output_shape=shape, window=window), self._last)

    def _image(self, name: str) -> tuple[int, int, int]:
        """Return the last layer's shape if it is an image."""
        if len(self.shape) != 3:
            raise ValueError(f"layer {name!r} needs (channels, height, width) but {self._last!r} has {self.shape}")
        channels, height, width = self.shape
        return channels, height, width

    def _slide(
        self,
        name: str,
        kernel: int | tuple[int, int],
        stride: int,
        padding: int | tuple[int, int],
        *,
        ceil: bool = False,
    ) -> tuple[int, int]:
        """Return height and width of what a sliding window leaves."""
        kernels, paddings = _pair(kernel), _pair(padding)
        if min(kernels) < 1 or stride < 1 or min(paddings) < 0:
            raise ValueError(
                f"layer {name!r} has kernel {kernel}, stride {stride}, padding {padding}; "
                "kernel and stride are at least 1, padding at least 0"
            )
        _, *sizes = self._image(name)
        if any(one > size + 2 * more for one, size, more in zip(kernels, sizes, paddings, strict=True)):
            raise ValueError(
                f"layer {name!r}: kernel {kernel} is larger than its input {sizes[0]} x {sizes[1]} with padding "
                f"{padding}; use a smaller kernel or more padding"
            )
        height, width = (
            _num_windows(size, one, stride, more, ceil=ceil)
            for size, one, more in zip(sizes, kernels, paddings, strict=True)
        )
        return height, width


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _weight_and_bias(name: str, fan_in: int, num_outputs: int, *, bias: bool) -> tuple[Tensor, ...]:
    weight = Tensor(name=f"{name}.weight", num_elements=fan_in * num_outputs, role="weight")
    return (weight, Tensor(name=f"{name}.bias", num_elements=num_outputs, role="bias")) if bias else (weight,)


def _num_windows(size: int, kernel: int, stride: int, padding: int, *, ceil: bool) -> int:
    span = size + 2 * padding - kernel
    if not ceil:
        return span // stride + 1
    # Caffe's rule: an overhanging window counts only if it starts inside the image or its leading padding.
    return min(-(-span // stride), (size + padding - 1) // stride) + 1
