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
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.dnn import OPERATOR_KINDS, Dnn, Layer, Operator, Product

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
KINDS = (*OPERATOR_KINDS[:1], "grouped_convolution", "depthwise_convolution", *OPERATOR_KINDS[1:])
_INDEX = {kind: index for index, kind in enumerate(KINDS)}
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


def kernels_of(dnn: Dnn) -> Kernels:
    """Return the kernels of a network's forward and backward pass.

    Parameters
    ----------
    dnn
        The network; nothing of its input's gradient is computed.
    """
    found: list[tuple[float, ...]] = []
    by_name = {layer.name: layer for layer in dnn.layers}
    readers: dict[str, int] = {}
    for layer in dnn.layers:
        for name in dnn.inputs_of(layer.name):
            readers[name] = readers.get(name, 0) + 1
    for index, layer in enumerate(dnn.layers):
        inputs = [by_name[name] for name in dnn.inputs_of(layer.name)]
        has_input_gradient = any(one.kind != "input" for one in inputs)
        for place, operator in enumerate(operators_of(layer, inputs)):
            found += _kernels_of(index, operator, has_input_gradient=has_input_gradient or place > 0)
        if readers.get(layer.name, 0) > 1 and layer.kind != "input":
            again = readers[layer.name] - 1
            moved = 3.0 * again * layer.num_output_elements
            found.append((index, 1, _INDEX["addition"], 0, 0, 0, 0, 0, moved, 0, again))
    table = np.array(found, dtype=float).reshape(-1, 11).T
    return Kernels(
        layer=table[0].astype(int),
        is_backward=table[1].astype(bool),
        kind=table[2].astype(int),
        rows=table[3],
        inner=table[4],
        columns=table[5],
        count=table[6],
        grows=table[7].astype(int),
        sample_elements=table[8],
        weight_elements=table[9],
        launches=table[10],
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

_TILES = ((128, 128, 1.0), (128, 64, 0.9), (64, 64, 0.8), (32, 32, 0.55))  # rows, columns, share of the largest's rate
_SHARPNESS = 4.0  # of the change from one bound to the other: own choice, a kernel's loads hide behind its arithmetic
_SOME_WAVES = 8.0  # beyond so many the last one is taken to be half full


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What is fitted, for all devices alike: a share of the peak or of the bandwidth by kind of kernel.

    Attributes
    ----------
    flop, moved
        By kind.
    start_s
        What a kernel takes whatever its size.
    dispatch_s
        What the host needs to launch an operator.
    startup
        Inner width that a tile's first loads and last stores cost.
    """

    flop: Mapping[str, float]
    moved: Mapping[str, float]
    start_s: float
    dispatch_s: float
    startup: float
    waves: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """What is published of a device: peak of the products' type, of vectors (fp32), bandwidth, multiprocessors."""

    product_flop_per_s: float
    bytes_per_s: float
    num_multiprocessors: float


def kernel_s(
    kernels: Kernels, batch: float, device: DeviceLimits, shares: Shares, *, element_bytes: float, weight_bytes: float
) -> Floats:
    """Return the seconds of every kernel, for so many samples at a time, shape of ``kernels.rows``."""
    flop_share = np.array([shares.flop.get(kind, 1.0) for kind in KINDS])[kernels.kind]
    moved_share = np.array([shares.moved.get(kind, 1.0) for kind in KINDS])[kernels.kind]
    rows = kernels.rows * np.where(kernels.grows == _ROWS, batch, 1.0)
    inner = np.maximum(kernels.inner, 1.0) * np.where(kernels.grows == _INNER, batch, 1.0)
    count = kernels.count * np.where(kernels.grows == _COUNT, batch, 1.0)
    columns = kernels.columns
    ideal = 2 * rows * inner * columns * count
    best = np.full(rows.shape, np.inf)
    for tile_rows, tile_columns, share in _TILES:
        tiles = np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns) * count
        tiles = np.maximum(tiles, 1.0)
        waves = tiles / device.num_multiprocessors
        whole = np.where(waves > _SOME_WAVES, waves + 0.5, np.ceil(waves)) * device.num_multiprocessors
        # Few tiles: the inner width is split among the idle multiprocessors.
        whole = np.where(waves < 0.5, tiles, whole)
        took = 2 * (shares.waves * whole + (1 - shares.waves) * tiles) * tile_rows * tile_columns * inner / share
        best = np.minimum(best, took)
    arithmetic = np.where(ideal > 0, best, 0.0) * (1 + shares.startup / inner)
    arithmetic = arithmetic / (device.product_flop_per_s * flop_share)
    moved = (kernels.sample_elements * element_bytes * batch + kernels.weight_elements * weight_bytes) / (
        device.bytes_per_s * moved_share
    )
    both = (arithmetic**_SHARPNESS + moved**_SHARPNESS) ** (1 / _SHARPNESS)
    return np.asarray(both + shares.start_s * kernels.launches, dtype=float)
