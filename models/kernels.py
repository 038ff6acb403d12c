"""Seconds of any network's layers on a device: its operators, the kernels that they become, and a roofline of each.

**Operators.** A layer computes what its ``operators`` say; where they were not seen they follow from its kind, its
multiply-adds and the shapes around it (:func:`operators_of`).

**Kernels.** An operator is one kernel forward, or a few. Backward follows by rule: a product has two, the gradients of
its two factors, of the same FLOP each (eqs. 4 to 6 of T. Liu et al., WWW '22, doi:10.1145/3485447.3511981); what moves
memory alone reads the gradient, and what it kept of forward, and writes a gradient (:data:`_MOVED`, counted for the
kernels of PyTorch 1.12 to 2.13, aten/src/ATen/native/cuda). A sum passes its gradient on as it is; where several layers
read one output, their gradients are added up. Weights that are kept in four bytes are copied to two before each use,
and their gradients back (automatic mixed precision).

**Seconds.** Of a kernel about the longer of its arithmetic and of moving its bytes (the roofline: S. Williams, A.
Waterman, D. Patterson, CACM 52(4), 2009, doi:10.1145/1498765.1498785). Products are computed in tiles, whole ones, in
waves over the device's multiprocessors (NVIDIA, Matrix Multiplication Background User's Guide, "Tile quantization",
"Wave quantization"). Large ones run no faster than the power of the board lets them: energy of a FLOP by the process
that the device is made in. A step takes no less than the host needs to launch its kernels.

Leaves out: caches beyond one kernel, clocks that vary between devices of a kind, and libraries' choice of algorithm but
for what the fitted shares hold of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Device
from planner.cost import Floats, Profile
from planner.dnn import OPERATOR_KINDS, Dnn, Layer, Operator, Product
from planner.models.compute import peak_flop_per_s

Ints = NDArray[np.int64]

# -- operators of a layer ----------------------------------------------------------------------------------------------

# Of the kinds of layers, in this project's words; what stands for no work is left out.
_OF_LAYERS = {
    "convolution": "convolution",
    **dict.fromkeys(("fully_connected", "matmul", "router"), "matmul"),
    "attention": "batched_matmul",
    "batch_norm": "batch_norm",
    "norm": "norm",
    **dict.fromkeys(("softmax", "loss"), "softmax"),
    **dict.fromkeys(("activation", "multiply", "dropout", "rotary", "operator"), "element_wise"),
    **dict.fromkeys(("add", "residual"), "addition"),
    "pooling": "pooling",
    "embedding": "embedding",
    **dict.fromkeys(("concatenate", "copy", "dispatch", "combine"), "copy"),
    "recurrent": "recurrent",
}
_FREE = ("input", "flatten")


def is_known(kind: str) -> bool:
    """Return whether what layers of a kind compute is known; others count as element by element."""
    return kind in _OF_LAYERS or kind in _FREE


def operators_of(layer: Layer, inputs: Sequence[Layer]) -> tuple[Operator, ...]:
    """Return what a layer computes for one sample: as it was seen, or by its kind and shapes.

    Parameters
    ----------
    layer, inputs
        The layer, and those that it reads.

    Notes
    -----
    What one number of a product's output reads is its multiply-adds over the numbers of its output. A convolution's
    groups follow from that and its window. A kind that nobody knows reads its inputs and writes its output once; its
    multiply-adds, if any, are those of a product.
    """
    if layer.operators or layer.kind in _FREE:
        return layer.operators
    written, read = layer.num_output_elements, sum(one.num_output_elements for one in inputs)
    kind = _OF_LAYERS.get(layer.kind, "element_wise")
    product = None
    if layer.num_multiply_adds:
        inner = max(1, round(layer.num_multiply_adds / written))
        places = prod(layer.output_shape[1:])
        groups = 1
        if kind == "convolution" and layer.window is not None and inputs:
            groups = max(1, round(inputs[0].output_shape[0] * layer.window.kernel**2 / inner))
        elif kind not in _PRODUCTS:
            kind = "matmul"
        product = Product(rows=places, inner=inner, columns=max(1, layer.output_shape[0] // groups), count=groups)
    elif kind in _PRODUCTS:
        kind = "element_wise"
    if kind == "embedding":
        read = 0
    return (
        Operator(
            kind=kind,
            num_multiply_adds=layer.num_multiply_adds,
            read_elements=read,
            written_elements=written,
            weight_elements=0 if kind == "embedding" else layer.num_trainable,
            product=product,
        ),
    )


# -- kernels of a network ----------------------------------------------------------------------------------------------

_PRODUCTS = ("convolution", "matmul", "batched_matmul", "attention", "recurrent")
# How often an operator moves what it reads and what it writes: forward, and backward.
_MOVED = {
    "convolution": ((1, 1), (1, 1)),  # of each of the two gradients
    "matmul": ((1, 1), (1, 1)),
    "batched_matmul": ((1, 1), (1, 1)),
    "recurrent": ((1, 1), (1, 1)),
    "attention": ((1, 1), (2, 2)),
    "batch_norm": ((2, 1), (3, 2)),  # statistics first
    "norm": ((1, 1), (2, 1)),
    "softmax": ((1, 1), (1, 2)),
    "element_wise": ((1, 1), (2, 1)),
    "addition": ((1, 1), (0, 0)),
    "pooling": ((1, 1), (1, 2)),  # with the places of maxima
    "reduction": ((1, 1), (1, 0)),
    "embedding": ((0, 2), (0, 3)),
    "copy": ((1, 1), (1, 1)),
}
_FUSED = ("batch_norm", "norm", "softmax", "element_wise", "addition", "reduction")
KINDS = (*OPERATOR_KINDS[:1], "grouped_convolution", "depthwise_convolution", *OPERATOR_KINDS[1:])
_INDEX = {kind: index for index, kind in enumerate(KINDS)}
_FEW_TILES = 0.5  # of one wave
_ROWS, _INNER, _COUNT = range(3)  # which side of a product grows with the batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels:
    """All kernels of a network's step but the optimiser's, arrays of one element a kernel.

    Attributes
    ----------
    layer, is_backward, kind
        Index of the layer; the pass; index into :data:`KINDS`.
    rows, inner, columns, count
        Of the product for one sample, ``rows`` 0 where nothing is multiplied. ``grows`` tells which of rows, inner
        width and count (0, 1, 2) a batch multiplies.
    sample_elements, weight_elements
        Numbers moved for each sample, and whatever the batch.
    launches
        How many kernels it really is.
    """

    layer: Ints
    is_backward: NDArray[np.bool_]
    kind: Ints
    rows: Floats
    inner: Floats
    columns: Floats
    count: Floats
    grows: Ints
    sample_elements: Floats
    weight_elements: Floats
    launches: Floats


def kernels_of(dnn: Dnn, *, is_fused: bool = False, is_mixed: bool = False) -> Kernels:
    """Return the kernels of a network's forward and backward pass.

    Parameters
    ----------
    dnn
        The network; nothing of its input's gradient is computed.
    is_fused
        Whether chains of operators that move memory alone are one kernel, as compilers have it: what passes between
        two of them, and is read by nobody else, is not written.
    is_mixed
        Whether types change as automatic mixed precision has it (PyTorch, "CUDA Ops that can autocast"): products are
        computed in the short type, norms and softmax in fp32, what reads both, or a weight, becomes fp32. A number of
        fp32 counts as two, and casts are kernels.
    """
    found: list[tuple[float, ...]] = []
    wide: set[str] = set()  # layers that put out fp32 where the rest is short
    layers = {layer.name: layer for layer in dnn.layers}
    inputs = {name: [layers[one] for one in dnn.inputs_of(name)] for name in layers}
    operators = {layer.name: operators_of(layer, inputs[layer.name]) for layer in dnn.layers}
    readers = dict.fromkeys(layers, 0)
    for names in inputs.values():
        for one in names:
            readers[one.name] += 1
    chained = {
        name: is_fused and bool(own) and all(one.kind in _FUSED for one in own) for name, own in operators.items()
    }
    joined = {  # with the chain of its only reader
        one.name
        for name, read in inputs.items()
        if chained[name]
        for one in read
        if chained[one.name] and readers[one.name] == 1
    }
    for index, layer in enumerate(dnn.layers):
        own = operators[layer.name]
        if chained[layer.name]:
            inside = sum(one.num_output_elements for one in inputs[layer.name] if one.name in joined)
            own = (_as_one(own, inside, is_read_on=layer.name in joined),)
        has_input_gradient = any(one.kind != "input" for one in inputs[layer.name])
        is_wide = is_mixed and any(one.name in wide for one in inputs[layer.name])
        for place, operator in enumerate(own):
            if is_mixed:
                rows, is_wide = _mixed(index, operator, is_wide=is_wide)
                found += rows
            seen = _widened(operator) if is_wide else operator
            found += _kernels_of(index, seen, has_input_gradient=has_input_gradient or place > 0)
        if is_wide:
            wide.add(layer.name)
        if (again := readers[layer.name] - 1) > 0 and layer.kind != "input":  # their gradients are added up
            moved = 3.0 * again * layer.num_output_elements
            found.append((index, 1, _INDEX["addition"], 0, 0, 0, 0, 0, moved, 0, again))
    table = np.array(found, dtype=float).reshape(-1, len(Kernels.__dataclass_fields__)).T
    whole = ("layer", "kind", "grows")
    columns = dict(zip(Kernels.__dataclass_fields__, table, strict=True))
    return Kernels(
        **{
            name: column.astype(int) if name in whole else column
            for name, column in columns.items()
            if name != "is_backward"
        },
        is_backward=columns["is_backward"].astype(bool),
    )


def _mixed(index: int, operator: Operator, *, is_wide: bool) -> tuple[list[tuple[float, ...]], bool]:
    """Return the casts before an operator, and whether it moves fp32; ``is_wide``: whether it reads fp32."""
    kind = operator.kind
    if kind in _PRODUCTS:
        is_cast, is_wide_then = is_wide, False
    elif kind in ("norm", "softmax"):
        is_cast, is_wide_then = not is_wide, True
    else:
        is_cast, is_wide_then = (
            False,
            is_wide or (kind in ("element_wise", "addition") and operator.weight_elements > 0),
        )
    moved = 3.0 * operator.read_elements
    casts = [(index, is_back, _INDEX["copy"], 0, 0, 0, 0, 0, moved, 0, 1) for is_back in (0, 1)]
    return (casts if is_cast else []), is_wide_then


def _widened(operator: Operator) -> Operator:
    """Return an operator that moves numbers twice as wide."""
    return replace(operator, read_elements=2 * operator.read_elements, written_elements=2 * operator.written_elements)


def _as_one(operators: Sequence[Operator], inside: int, *, is_read_on: bool) -> Operator:
    """Return operators of one layer as a part of a chain.

    Parameters
    ----------
    operators
        One after the other.
    inside
        Numbers that come from the chain before it: they are not read from memory.
    is_read_on
        Whether what it puts out stays in the chain: it is not written.
    """
    statistics = [one for one in operators if one.kind == "batch_norm"]
    read = max(0, max(one.read_elements for one in operators) - inside)
    written = 0 if is_read_on else operators[-1].written_elements
    kind = "batch_norm" if statistics else "addition" if inside and not read else operators[0].kind
    weights = sum(one.weight_elements for one in operators)
    launches = 1 if statistics or not inside else 0
    return Operator(
        kind=kind, read_elements=read, written_elements=written, weight_elements=weights, num_kernels=launches
    )


def _kernels_of(index: int, one: Operator, *, has_input_gradient: bool) -> list[tuple[float, ...]]:
    """Return the rows of one operator, in the order of the fields of :class:`Kernels`."""
    (read, written), (read_back, written_back) = _MOVED[one.kind]
    ahead = read * one.read_elements + written * one.written_elements
    back = read_back * one.read_elements + written_back * one.written_elements
    kind, weights, launches = one.kind, float(one.weight_elements), float(one.num_kernels)
    if one.product is None:
        rows = [(index, 0, _INDEX[kind], 0, 0, 0, 0, 0, ahead, weights, launches)]
        if back:
            rows.append((index, 1, _INDEX[kind], 0, 0, 0, 0, 0, back, weights, launches))
        return rows
    product = one.product
    if kind == "convolution" and product.count > 1:
        kind = "depthwise_convolution" if product.columns == 1 or product.inner == 1 else "grouped_convolution"
    code, r, k, n, c = _INDEX[kind], product.rows, product.inner, product.columns, product.count
    grows = _COUNT if kind in ("batched_matmul", "attention") else _ROWS
    if kind == "attention":  # two products alike, and five backward, which computes scores again
        k = 2 * k
        return [
            (index, 0, code, r, k, n, c, grows, ahead, 0, launches),
            (index, 1, code, r, 2.5 * k, n, c, grows, back, 0, launches),
        ]
    rows = [(index, 0, code, r, k, n, c, grows, ahead, weights, launches)]
    if has_input_gradient:
        rows.append((index, 1, code, r, n, k, c, grows, back, weights, launches))
    if grows == _COUNT:
        rows.append((index, 1, code, k, r, n, c, grows, back, 0, launches))
    else:
        rows.append((index, 1, code, k, r, n, c, _INNER, back, weights, launches))
    return rows


# -- seconds -----------------------------------------------------------------------------------------------------------

# Rows and columns of a tile, and its share of the largest one's rate.
_TILES = ((128, 128, 1.0), (128, 64, 0.85), (64, 64, 0.7), (128, 32, 0.55), (64, 32, 0.45))
_WIDE_GROUP, _WIDEST_GROUP = 48, 128  # channels: cuDNN 8 has no fast kernels of groups beyond, with channels last
_STEP = 32  # of the inner width
_SHARPNESS = 4.0  # of the change from one bound to the other: own choice, a kernel's loads hide behind its arithmetic
_WHOLE, _WHOLE_BYTES, _SHORT_BYTES = ("fp32", "tf32"), 4.0, 2.0
_CAST_BYTES = 6.0  # of a weight that is read as fp32 and written short, or of its gradient
_FEW = 8  # parts that a batch is cut into where few samples pass at a time, as in a pipeline
_SOME_WAVES = 8.0  # beyond so many the last one is taken to be half full
_REFERENCE_FLOP_PER_S = 312e12 / 108  # of one multiprocessor of the A100, which the start-up is stated for


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What is fitted, for all devices alike.

    Attributes
    ----------
    flop, moved
        Share of the peak, and of the memory's bandwidth, that large kernels reach; by kind of kernel.
    startup_width
        Inner width that a tile's start-up costs on an A100.
    wave_share
        How much of the waste of unfilled waves is paid.
    start_s
        What a kernel takes whatever its size.
    dispatch_s
        What the host takes to launch an operator.
    conversion
        What convolutions move besides to change the format of images, over what they move: where channels are not last.
    """

    flop: Mapping[str, float]
    moved: Mapping[str, float]
    startup_width: float
    wave_share: float
    start_s: float
    dispatch_s: float
    conversion: float
    wide_groups: float

    @classmethod
    def of(cls, rows: Mapping[str, Mapping[str, float]]) -> "Shares":
        """Return those of a table with ``flop``, ``moved`` and ``constants``."""
        return cls(flop=rows["flop"], moved=rows["moved"], **rows["constants"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """What is published of a device.

    Attributes
    ----------
    product_flop_per_s, vector_flop_per_s
        Peak of products in the type that is computed in, and of what is no product.
    bytes_per_s
        Of its memory.
    num_multiprocessors
        1 where it is not known: then no wave is unfilled.
    """

    product_flop_per_s: float
    vector_flop_per_s: float
    bytes_per_s: float
    num_multiprocessors: int

    @classmethod
    def of(cls, device: Device, dtype: str) -> "DeviceLimits":
        """Return those of a device of the table; raise ModelError if it has no rate of that type."""
        peak = peak_flop_per_s(device, dtype)
        return cls(
            product_flop_per_s=peak,
            vector_flop_per_s=device.peak_flop_per_s.get("fp32", peak),
            bytes_per_s=device.memory_bandwidth_bytes_per_s,
            num_multiprocessors=device.num_multiprocessors or 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a program runs a network.

    Attributes
    ----------
    is_fused
        Whether a compiler makes chains of operators that move memory one kernel.
    has_channels_last
        Whether images are stored so.
    is_mixed
        Whether weights are kept in fp32 and copied to the short type that is computed in.
    element_bytes
        Of an activation.
    """

    is_fused: bool
    has_channels_last: bool
    is_mixed: bool
    element_bytes: float

    @classmethod
    def of(cls, dtype: str, *, is_fused: bool, has_channels_last: bool) -> "Execution":
        """Return that of a type that is computed in."""
        is_short = dtype not in _WHOLE
        element_bytes = _SHORT_BYTES if is_short else _WHOLE_BYTES
        return cls(
            is_fused=is_fused, has_channels_last=has_channels_last, is_mixed=is_short, element_bytes=element_bytes
        )


def kernel_s(kernels: Kernels, batch: float, limits: DeviceLimits, shares: Shares, execution: Execution) -> Floats:
    """Return the seconds of every kernel, for so many samples at a time, in the shape of ``kernels.rows``."""
    flop_share, moved_share = (
        np.array([table.get(kind, 1.0) for kind in KINDS])[kernels.kind] for table in (shares.flop, shares.moved)
    )
    rows, inner, count = (
        size * np.where(kernels.grows == grows, batch, 1.0)
        for size, grows in ((kernels.rows, _ROWS), (np.maximum(kernels.inner, 1.0), _INNER), (kernels.count, _COUNT))
    )
    flop = 2 * rows * inner * kernels.columns * count
    is_product, is_vector = flop > 0, kernels.kind == _INDEX["depthwise_convolution"]
    best = np.full(rows.shape, np.inf)
    for tile_rows, tile_columns, share in _TILES:
        tiles = np.maximum(np.ceil(rows / tile_rows) * np.ceil(kernels.columns / tile_columns) * count, 1.0)
        waves = tiles / limits.num_multiprocessors
        whole = np.where(waves > _SOME_WAVES, waves + 0.5, np.ceil(waves)) * limits.num_multiprocessors
        whole = np.where(waves < _FEW_TILES, tiles, whole)  # the inner width is split among the idle ones
        paid = shares.wave_share * whole + (1 - shares.wave_share) * tiles
        best = np.minimum(best, 2 * paid * tile_rows * tile_columns * np.ceil(inner / _STEP) * _STEP / share)
    rate = limits.product_flop_per_s / limits.num_multiprocessors
    startup = shares.startup_width * rate / _REFERENCE_FLOP_PER_S if limits.num_multiprocessors > 1 else 0.0
    peak = np.where(is_vector, limits.vector_flop_per_s, limits.product_flop_per_s)
    work = np.where(is_vector, flop, best * (1 + startup / inner))
    arithmetic_s = np.where(is_product, work, 0.0) / (peak * flop_share)
    if execution.has_channels_last and not execution.is_fused:
        width = np.maximum(np.minimum(kernels.columns, kernels.inner), 1.0)
        slow_s = flop / (limits.product_flop_per_s * shares.wide_groups * np.minimum(width / _WIDEST_GROUP, 1.0))
        is_slow = (kernels.kind == _INDEX["grouped_convolution"]) & (width > _WIDE_GROUP)
        arithmetic_s = np.where(is_slow, slow_s, arithmetic_s)
    is_converted = is_product & (kernels.kind <= _INDEX["depthwise_convolution"]) & (not execution.has_channels_last)
    weight_bytes = execution.element_bytes + np.where(is_product & execution.is_mixed, _CAST_BYTES, 0.0)
    moved = kernels.sample_elements * execution.element_bytes * batch + kernels.weight_elements * weight_bytes
    moved_s = moved * np.where(is_converted, 1 + shares.conversion, 1.0) / (limits.bytes_per_s * moved_share)
    both_s = (arithmetic_s**_SHARPNESS + moved_s**_SHARPNESS) ** (1 / _SHARPNESS)
    return np.asarray(both_s + shares.start_s * kernels.launches, dtype=float)


@lru_cache(maxsize=8)
def _kernels(dnn: Dnn, *, is_fused: bool, is_mixed: bool) -> Kernels:
    """Return :func:`kernels_of`, which a purchase asks for again and again."""
    return kernels_of(dnn, is_fused=is_fused, is_mixed=is_mixed)


def layer_seconds(
    dnn: Dnn, batch: float, limits: DeviceLimits, shares: Shares, execution: Execution
) -> tuple[Floats, Floats]:
    """Return the seconds of every layer's forward and backward pass, of so many samples together.

    Notes
    -----
    Where the host takes longer to launch all kernels than the device to run them, each layer waits for its own.
    """
    # A compiler casts within its chains.
    is_mixed = execution.is_mixed and not execution.is_fused
    kernels = _kernels(dnn, is_fused=execution.is_fused, is_mixed=is_mixed)
    seconds = kernel_s(kernels, batch, limits, shares, execution)
    launched_s = kernels.launches * shares.dispatch_s
    seconds = seconds + launched_s * max(0.0, 1 - seconds.sum() / launched_s.sum())
    number, is_back = len(dnn.layers), kernels.is_backward
    forward_s = np.bincount(kernels.layer, np.where(is_back, 0.0, seconds), number)
    return forward_s, np.bincount(kernels.layer, np.where(is_back, seconds, 0.0), number)


def network_profile(
    dnn: Dnn, batch: int, limits: DeviceLimits, shares: Shares, execution: Execution, *, update_s: float, name: str
) -> Profile:
    """Return the seconds of every layer of one sample, where ``batch`` samples pass the network together.

    Parameters
    ----------
    dnn, batch, limits, shares, execution
        What is computed, on what, and how.
    update_s, name
        Of the optimiser's step, passed on; and of the device, for the reader.
    """
    forward_s, backward_s = layer_seconds(dnn, batch, limits, shares, execution)
    few, factor = max(1, batch // _FEW), 1.0
    if few < batch:
        sample_s = sum(float(both.sum()) for both in layer_seconds(dnn, few, limits, shares, execution)) / few
        factor = max(1.0, sample_s * batch / float(forward_s.sum() + backward_s.sum()))
    return Profile(
        forward_s=forward_s / batch,
        backward_s=backward_s / batch,
        update_s=update_s,
        few_samples_factor=factor,
        origin=f"rooflines of {name}'s kernels, {batch} samples at a time",
    )
