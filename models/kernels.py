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

import math
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
        rows: list[tuple[float, ...]] = [(index, 0, _INDEX[kind], 0, 0, 0, 0, 0, ahead, weights, launches)]
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

_TILES = (
    (128, 128),
    (128, 64),
    (64, 128),
    (64, 64),
    (128, 32),
    (32, 128),
    (64, 32),
    (32, 64),
    (32, 32),
)  # rows, columns
_SHARPNESS = 4.0  # of the change from one bound to the other: own choice, a kernel's loads hide behind its arithmetic
_SOME_WAVES = 8.0  # beyond so many the last one is taken to be half full
# Of the inner width that one multiprocessor gets where it is split: own choice; convolutions do not split it.
_LEAST_PIECE = 512.0
# Energy of an fp32 FLOP in a large product at full clock, everything on the board included but what it draws at rest,
# by process. 16 and 12 nm: what P4 and P100, T4 and V100 reach; 7 nm: at most, for an A100 of 250 W is not
# bound; 5 nm: an RTX 4090 reaches 60 to 65 TFLOP/s at 450 W.
_FLOP_J = {16.0: 36e-12, 12.0: 16.5e-12, 7.0: 12.6e-12, 5.0: 7e-12}
# Of that energy what a lower clock does not save, and the rest falls by the square of the voltage, which follows the
# clock: by P4 and T4, which run at about half their clock.
_WHATEVER_CLOCK = 0.7
INLINE_ECC = 0.85  # of the published bandwidth, where check bits lie among the data: GDDR memory of boards for servers
_REST_W = 15.0  # memory and fans at rest
_POWER_SHARPNESS = 24.0  # of the change from the peak to what the power allows: own choice
_WINOGRAD = (6.0, 10.0)  # how often a 3 x 3 window of stride 1 reads a number of its input: 9 times less the edges
# Sides of the squares of outputs, and whether their transformations pass through memory: kernels that fuse them exist
# for the small one.
_WINOGRAD_TILES = ((2, 0), (4, 1))


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
        Inner width that a tile's first loads and last stores cost; as the next two a figure, or one by kind.
    waves
        How much of the last wave's idle multiprocessors counts, 0 to 1.
    loads
        What the loads of a tile of 64 x 64 cost more than those of 128 x 128, as a share of its arithmetic: a tile
        reads its edges and computes its area.
    winograd
        What Winograd's algorithm reaches of ``flop`` in 3 x 3 convolutions of stride 1 (A. Lavin, S. Gray, CVPR 2016,
        doi:10.1109/CVPR.2016.435), which computes outputs by squares of 2 or 4; 0 where the library does not use it.
    """

    flop: Mapping[str, float]
    moved: Mapping[str, float]
    start_s: float
    dispatch_s: float
    startup: float | Mapping[str, float]
    waves: float | Mapping[str, float]
    loads: float | Mapping[str, float] = 0.25
    winograd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """What is published of a device: peak of the products' type, bandwidth, multiprocessors.

    ``bytes_per_s`` is :data:`INLINE_ECC` of what is published for GDDR memory with error correction (P4, T4, L4);
    ``sustained_flop_per_s`` the most that the board's power allows (:func:`power_flop_per_s`).
    """

    product_flop_per_s: float
    bytes_per_s: float
    num_multiprocessors: float
    sustained_flop_per_s: float = math.inf


def power_flop_per_s(power_w: float, process_nm: float, peak_flop_per_s: float) -> float:
    """Return the fp32 FLOP a second that a board's power pays for, whatever its peak.

    Parameters
    ----------
    power_w
        The board's published limit.
    process_nm
        The process that the device is made in, as it is sold (NVIDIA: P 16, V and T 12, A100 7, L and H 5).
    peak_flop_per_s
        At full clock.

    Notes
    -----
    The ``r`` with ``r e (c + (1 - c) (r / peak)^2) = power``. Between processes that are known the energy ``e`` is a
    power law of the size; beyond them that of the nearest. Zeros cost less: their products are bound by the peak.
    """
    known = sorted(_FLOP_J)
    energies = [math.log(_FLOP_J[size]) for size in known]
    energy = math.exp(float(np.interp(math.log(process_nm), np.log(known), energies)))
    paid = max(power_w - _REST_W, 0.0) / energy
    least, most = 0.0, paid / _WHATEVER_CLOCK
    for _ in range(60):
        middle = (least + most) / 2
        saved = _WHATEVER_CLOCK + (1 - _WHATEVER_CLOCK) * (middle / peak_flop_per_s) ** 2
        least, most = (middle, most) if middle * saved < paid else (least, middle)
    return least


def kernel_s(
    kernels: Kernels,
    batch: float | Floats,
    device: DeviceLimits,
    shares: Shares,
    *,
    element_bytes: float,
    weight_bytes: float,
    burst_s: float = 0.0,
) -> Floats:
    """Return the seconds of every kernel, for so many samples at a time, shape of ``kernels.rows``.

    Parameters
    ----------
    kernels, batch
        All kernels, and samples at a time: a number, or one for each kernel.
    device, shares
        What is published of the device, and what is fitted.
    element_bytes, weight_bytes
        Of a number of an activation and of a weight.
    burst_s
        How long a device that was idle runs at full clock until its power binds it; 0 in a step that follows others.
    """
    flop_share = _by_kind(shares.flop, kernels, 1.0)
    moved_share = _by_kind(shares.moved, kernels, 1.0)
    rows = kernels.rows * np.where(kernels.grows == _ROWS, batch, 1.0)
    inner = np.maximum(kernels.inner, 1.0) * np.where(kernels.grows == _INNER, batch, 1.0)
    count = kernels.count * np.where(kernels.grows == _COUNT, batch, 1.0)
    full = device.product_flop_per_s * flop_share
    sustained = _least(full, device.sustained_flop_per_s)

    def both(work: Floats, moved_bytes: Floats) -> Floats:
        """Return about the longer of arithmetic and of moving bytes."""
        rate = sustained
        if burst_s > 0:
            rate = sustained + (full - sustained) / (1 + work / full / burst_s)
        moved = moved_bytes / (device.bytes_per_s * moved_share)
        return np.asarray(((work / rate) ** _SHARPNESS + moved**_SHARPNESS) ** (1 / _SHARPNESS), dtype=float)

    grid = _Grid(
        processors=device.num_multiprocessors,
        most_pieces=np.where(
            kernels.kind <= _INDEX["depthwise_convolution"], 1.0, np.maximum(inner // _LEAST_PIECE, 1)
        ),
        startup=_by_kind(shares.startup, kernels, 0.0),
        waves=_by_kind(shares.waves, kernels, 0.0),
        loads=_by_kind(shares.loads, kernels, 0.25),
    )
    work = grid.padded_flop(rows, inner, kernels.columns, count)
    samples, weights = kernels.sample_elements * element_bytes * batch, kernels.weight_elements * weight_bytes
    seconds = both(work, samples + weights) + shares.start_s * kernels.launches
    if shares.winograd > 0:
        places, inputs, outputs = _winograd_shapes(kernels)
        for side, moves in _WINOGRAD_TILES:
            window = (side + 2) ** 2
            tiles = np.ceil(np.sqrt(places) / side) ** 2 * batch
            inside, beside = (1, window) if moves else (window, 1)  # the fused kernel's loop goes over the window, too
            work = grid.padded_flop(tiles, inside * inputs, outputs, beside * kernels.count)
            again = 1 + moves * 2 * window / side**2  # transformed numbers are written and read
            through = both(work / shares.winograd, samples * again + weights * (1 + 2 * window / 9))
            through += shares.start_s * (kernels.launches + 1 + 2 * moves)
            seconds = np.where(places > 0, np.minimum(seconds, through), seconds)
    return seconds


def _by_kind(shares: float | Mapping[str, float], kernels: Kernels, default: float) -> Floats:
    """Return the figure of each kernel."""
    if isinstance(shares, Mapping):
        return np.array([shares.get(kind, default) for kind in KINDS])[kernels.kind]
    return np.full(len(kernels.kind), shares)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Grid:
    """How products are cut: multiprocessors, parts of an inner width at most, and the shares of each kernel."""

    processors: float
    most_pieces: Floats
    startup: Floats
    waves: Floats
    loads: Floats

    def padded_flop(self, rows: Floats, inner: Floats, columns: Floats, count: Floats) -> Floats:
        """Return the FLOP that take as long as the products, by the tile that does best: whole tiles, whole waves."""
        best = np.full(rows.shape, np.inf)
        for tile_rows, tile_columns in _TILES:
            tiles = np.maximum(np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns) * count, 1.0)
            waves = tiles / self.processors
            whole = np.where(waves > _SOME_WAVES, waves + 0.5, np.ceil(waves))
            slots = (self.waves * whole + (1 - self.waves) * np.maximum(waves, 1.0)) * self.processors
            # Few tiles: the inner width is split among the idle multiprocessors, as long as each gets some of it.
            pieces = np.clip(np.floor(1 / waves), 1.0, self.most_pieces)
            cost = 1 + self.loads * (64 / tile_rows + 64 / tile_columns - 1)
            best = np.minimum(best, 2 * slots * tile_rows * tile_columns * (inner / pieces + self.startup) * cost)
        return np.where(rows * columns * count > 0, best, 0.0)


def _least(rates: Floats, bound: float) -> Floats:
    """Return about the smaller of the two, where they are alike a little less: power binds some of the time."""
    return np.asarray(rates * (1 + (rates / bound) ** _POWER_SHARPNESS) ** (-1 / _POWER_SHARPNESS), dtype=float)


def _winograd_shapes(kernels: Kernels) -> tuple[Floats, Floats, Floats]:
    """Return places of a sample, input and output channels of 3 x 3 convolutions of stride 1; 0 of all else.

    They are known by how often they read a number of their input.
    """
    by_columns = kernels.is_backward & (kernels.grows == _ROWS)  # the gradient of the input
    by_rows = kernels.is_backward & (kernels.grows == _INNER)  # that of the weights
    places = np.where(by_rows, kernels.inner, kernels.rows)
    inner = np.where(by_columns, kernels.columns, np.where(by_rows, kernels.rows, kernels.inner))
    outputs = np.where(by_columns, kernels.inner, kernels.columns)
    read = kernels.sample_elements - places * outputs * kernels.count
    often = places * inner * kernels.count / np.where(read > 0, read, np.inf)
    fits = (kernels.kind == _INDEX["convolution"]) & (often >= _WINOGRAD[0]) & (often <= _WINOGRAD[1])
    return np.where(fits, places, 0.0), np.where(fits, inner / 9, 0.0), np.where(fits, outputs, 0.0)
