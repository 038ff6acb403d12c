"""Seconds of any network's layers on a device: its operators, the kernels that they become, and a roofline of each.

**Operators.** A layer computes what its ``operators`` say; where they were not seen they follow from its kind, its
multiply-adds and the shapes around it (:func:`planner.models.operators.operators_of`).

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
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cluster import Device
from planner.cost import Floats, Profile
from planner.dnn import OPERATOR_KINDS, PRODUCT_KINDS, Dnn, Operator
from planner.models.compute import peak_flop_per_s
from planner.models.operators import operators_of

Ints = NDArray[np.int64]

# -- kernels of a network ----------------------------------------------------------------------------------------------

# How often an operator moves what it reads and what it writes: forward, and backward.
_MOVED = {
    "convolution": ((1, 1), (1, 1)),  # of each of the two gradients
    "matmul": ((1, 1), (1, 1)),
    "batched_matmul": ((1, 1), (1, 1)),
    "recurrent": ((1, 1), (1, 1)),
    "attention": ((1, 1), (2, 2)),
    "batch_norm": ((1, 1), (2, 1)),  # its second look at its input finds most in the cache
    "norm": ((1, 1), (2, 1)),
    "group_norm": ((1, 1), (4, 1)),  # gradients of scales, then of the input: two kernels that read the same
    "softmax": ((1, 1), (1, 2)),
    "element_wise": ((1, 1), (2, 1)),
    "scaling": ((1, 1), (1, 1)),
    "multiplication": ((1, 1), (1, 4)),  # a gradient of each factor: together two of each factor, two of the output
    "addition": ((1, 1), (0, 0)),
    "pooling": ((1, 1), (1, 2)),  # with the places of maxima
    "reduction": ((1, 1), (1, 0)),
    "embedding": ((0, 2), (0, 3)),
    "copy": ((1, 1), (1, 1)),
    "slice": ((0, 0), (1, 1)),
}
_TWO_BACK = ("norm", "group_norm", "multiplication")  # kernels of backward for one of forward
_FUSED = (
    "batch_norm",
    "norm",
    "group_norm",
    "softmax",
    "element_wise",
    "scaling",
    "multiplication",
    "addition",
    "reduction",
)
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
        is_cut = any(one.kind == "slice" for one in own)  # then parts are read, and their gradients put together
        if (again := readers[layer.name] - 1) > 0 and layer.kind != "input" and not is_cut:  # gradients are added up
            moved = 3.0 * again * layer.num_output_elements
            found.append((index, 1, _INDEX["addition"], 0, 0, 0, 0, 0, moved, 0, again))
    fields_of = [one.name for one in fields(Kernels)]
    table: NDArray[Any] = np.array(found, dtype=float).reshape(-1, len(fields_of)).T
    columns = dict(zip(fields_of, table, strict=True))
    whole = {key: columns[key].astype(int) for key in ("layer", "kind", "grows")}
    return Kernels(**{**columns, **whole, "is_backward": columns["is_backward"].astype(bool)})


def _mixed(index: int, operator: Operator, *, is_wide: bool) -> tuple[list[tuple[float, ...]], bool]:
    """Return the casts before an operator, and whether it moves fp32; ``is_wide``: whether it reads fp32."""
    kind = operator.kind
    if kind in PRODUCT_KINDS:
        is_cast, is_wide_then = is_wide, False
    elif kind == "softmax":  # its kernel reads short numbers and writes fp32
        is_cast, is_wide_then = False, True
    elif kind in ("norm", "group_norm"):
        is_cast, is_wide_then = not is_wide, True
    else:
        has_weight = kind in ("element_wise", "multiplication", "addition") and operator.weight_elements > 0
        is_cast, is_wide_then = False, is_wide or has_weight
    moved = 3.0 * operator.read_elements
    casts: list[tuple[float, ...]] = [
        (index, is_back, _INDEX["copy"], 0, 0, 0, 0, 0, moved, 0, 1) for is_back in (0, 1)
    ]
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
        rows: list[tuple[float, ...]] = []
        if ahead or weights:
            rows.append((index, 0, _INDEX[kind], 0, 0, 0, 0, 0, ahead, weights, launches))
        if back:
            both = launches * (1 + (kind in _TWO_BACK))
            rows.append((index, 1, _INDEX[kind], 0, 0, 0, 0, 0, back, weights, both))
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
_USUAL_LOADS = 0.25
_MOST_SHARE = 0.9  # of peak and bandwidth, on devices that nothing was fitted to: no GPUs, and AMD's
_DEPTHWISE = _INDEX["depthwise_convolution"]  # and less: all convolutions
# With channels last cuDNN 8 has quick kernels for some groups of 3 x 3 convolutions alone, by their channels, as many
# out as in; of the wider ones for 32 groups or a multiple. Networks whose groups are all of one width get none of these
# (R. Wightman's measurements, github.com/pytorch/pytorch/issues/70954). Beyond 48 channels others do worse.
_QUICK_GROUPS, _QUICK_PLACES, _NARROW_GROUP, _QUICK_COUNT = (4, 8, 16, 32), 9, 16, 32
_WIDE_GROUP, _WIDEST_GROUP = 48, 128
_USUAL_BANDWIDTH, _USUAL_PEAKS = 2.039e12, (312e12, 19.5e12)  # of an A100; in 16 bits, in fp32
_WHOLE, _WHOLE_BYTES, _SHORT_BYTES = ("fp32", "tf32"), 4.0, 2.0
_CAST_BYTES = 6.0  # of a weight that is read as fp32 and written short, or of its gradient
# Of a kernel's start, where a compiled program leaves no gaps: by runs of few samples in docs/accuracy_fused.md.
_FUSED_START = 0.5
# Samples that pass together, for which a network's seconds are reckoned; in straight lines between them. Beyond the
# last even small layers fill a device.
TOGETHER = tuple(2**power for power in range(13))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What is fitted, for all devices alike.

    Attributes
    ----------
    flop, moved
        Share of the peak, and of the memory's bandwidth, that large kernels reach; by kind of kernel.
    startup
        Inner width that a tile's first loads and last stores cost; as the next two by kind.
    waves
        How much of the last wave's idle multiprocessors counts, 0 to 1.
    loads
        What the loads of a tile of 64 x 64 cost more than those of 128 x 128, as a share of its arithmetic: a tile
        reads its edges and computes its area.
    start_s
        What a kernel takes whatever its size.
    dispatch_s
        What the host takes to launch an operator.
    sharpness
        Of the change from one bound to the other: n of the norm ``(x**n + y**n) ** (1/n)`` of arithmetic and of moving.
    startup_flop_per_s
        Rate of one multiprocessor that ``startup`` is stated for: it is a time, in widths; 0: for any rate.
    conversion
        What convolutions move besides to change the format of images, over what they move, where channels are not last;
        where they are, norms of groups.
    wide_groups
        Share of the peak that groups of convolutions reach that no kernel is made for, where channels are last.
    winograd
        What Winograd's algorithm reaches of ``flop`` in 3 x 3 convolutions of stride 1 (A. Lavin, S. Gray, CVPR 2016,
        doi:10.1109/CVPR.2016.435), which computes outputs by squares of 2 or 4; 0 where the library does not use it.
    """

    flop: Mapping[str, float]
    moved: Mapping[str, float]
    startup: Mapping[str, float]
    waves: Mapping[str, float]
    loads: Mapping[str, float]
    start_s: float
    dispatch_s: float
    sharpness: float = 4.0
    startup_flop_per_s: float = 0.0
    conversion: float = 0.0
    wide_groups: float = 1.0
    winograd: float = 0.0

    @classmethod
    def of(cls, rows: Mapping[str, Any]) -> "Shares":
        """Return those of a table, which may hold more.

        Parameters
        ----------
        rows
            By name; see :func:`planner.data.fits.kernel_shares`.
        """
        return cls(**{one.name: rows[one.name] for one in fields(cls) if one.name in rows})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """What is published of a device.

    Attributes
    ----------
    product_flop_per_s, vector_flop_per_s
        Peak of products in the type that is computed in, and of what is no product.
    bytes_per_s
        Of its memory: :data:`INLINE_ECC` of what is published where check bits lie among the data.
    num_multiprocessors
        1 where it is not known: then no wave is unfilled, and tiles start up as on the device that was fitted.
    sustained_flop_per_s
        The most that the board's power allows (:func:`power_flop_per_s`).
    most_share
        Of peak and bandwidth, whatever the shares say: those of GPUs hold clocks beyond the published ones.
    """

    product_flop_per_s: float
    bytes_per_s: float
    num_multiprocessors: int
    vector_flop_per_s: float = math.inf
    sustained_flop_per_s: float = math.inf
    most_share: float = math.inf

    @classmethod
    def of(cls, device: Device, dtype: str) -> "DeviceLimits":
        """Return those of a device.

        Parameters
        ----------
        device, dtype
            The device, and the type that is computed in.

        Raises
        ------
        ModelError
            If the device has no rate of that type.
        """
        peak = peak_flop_per_s(device, dtype)
        sustained = math.inf
        if dtype == "fp32" and device.power_w is not None and device.process_nm is not None:
            sustained = power_flop_per_s(device.power_w, device.process_nm, peak)
        return cls(
            product_flop_per_s=peak,
            vector_flop_per_s=device.peak_flop_per_s.get("fp32", peak),
            bytes_per_s=reached_bytes_per_s(device, peak, dtype),
            num_multiprocessors=device.num_multiprocessors or 1,
            sustained_flop_per_s=sustained,
            most_share=math.inf if device.kind == "gpu" and not device.name.startswith("mi") else _MOST_SHARE,
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
        """Return that of a type that is computed in.

        Parameters
        ----------
        dtype, is_fused, has_channels_last
            The type, in which activations are kept; the others as above.
        """
        is_short = dtype not in _WHOLE
        element_bytes = _SHORT_BYTES if is_short else _WHOLE_BYTES
        return cls(
            is_fused=is_fused, has_channels_last=has_channels_last, is_mixed=is_short, element_bytes=element_bytes
        )


def reached_bytes_per_s(device: Device, peak_flop_per_s: float, dtype: str) -> float:
    """Return the bandwidth of a device's memory, less check bits; where it is not known, an A100's for its peak.

    Parameters
    ----------
    device, peak_flop_per_s, dtype
        The device, and its peak in the type that is computed in.
    """
    if math.isinf(device.memory_bandwidth_bytes_per_s):
        return peak_flop_per_s * _USUAL_BANDWIDTH / _USUAL_PEAKS[dtype in _WHOLE]
    return device.memory_bandwidth_bytes_per_s * (INLINE_ECC if device.has_inline_ecc else 1.0)


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
    limits: DeviceLimits,
    shares: Shares,
    execution: Execution,
    *,
    burst_s: float = 0.0,
) -> Floats:
    """Return the seconds of every kernel, shape of ``kernels.rows``.

    Parameters
    ----------
    kernels, batch
        All kernels, and samples at a time: a number, or one for each kernel.
    limits, shares, execution
        What is published of the device, what is fitted, and how the network is run.
    burst_s
        How long a device that was idle runs at full clock until its power binds it; 0 in a step that follows others.
    """
    flop_share = np.minimum(_by_kind(shares.flop, kernels, 1.0), limits.most_share)
    moved_share = np.minimum(_by_kind(shares.moved, kernels, 1.0), limits.most_share)
    rows = kernels.rows * np.where(kernels.grows == _ROWS, batch, 1.0)
    inner = np.maximum(kernels.inner, 1.0) * np.where(kernels.grows == _INNER, batch, 1.0)
    count = kernels.count * np.where(kernels.grows == _COUNT, batch, 1.0)
    is_product = kernels.rows > 0
    is_image, is_depthwise = is_product & (kernels.kind <= _DEPTHWISE), kernels.kind == _DEPTHWISE
    full = np.where(is_depthwise, limits.vector_flop_per_s, limits.product_flop_per_s) * flop_share
    sustained = _least(full, limits.sustained_flop_per_s)
    # Kernels of norms of groups are there for images with channels first alone, those of products for the others.
    is_converted = kernels.kind == _INDEX["group_norm"] if execution.has_channels_last else is_image
    per_byte_s = np.where(is_converted, 1 + shares.conversion, 1.0) / (limits.bytes_per_s * moved_share)

    def both(work: Floats, moved_bytes: Floats) -> Floats:
        """Return about the longer of arithmetic and of moving bytes."""
        rate = sustained
        if burst_s > 0:
            rate = sustained + (full - sustained) / (1 + work / full / burst_s)
        sharpness = shares.sharpness
        seconds = ((work / rate) ** sharpness + (moved_bytes * per_byte_s) ** sharpness) ** (1 / sharpness)
        return np.asarray(seconds, dtype=float)

    stated = shares.startup_flop_per_s * limits.num_multiprocessors if limits.num_multiprocessors > 1 else 0.0
    grid = _Grid(
        processors=limits.num_multiprocessors,
        most_pieces=np.where(kernels.kind <= _DEPTHWISE, 1.0, np.maximum(inner // _LEAST_PIECE, 1)),
        startup=_by_kind(shares.startup, kernels, 0.0) * (limits.product_flop_per_s / stated if stated else 1.0),
        waves=_by_kind(shares.waves, kernels, 0.0),
        loads=_by_kind(shares.loads, kernels, _USUAL_LOADS),
    )
    flop = 2 * rows * inner * kernels.columns * count
    work = np.where(is_depthwise, flop, grid.padded_flop(rows, inner, kernels.columns, count))
    if execution.has_channels_last and not execution.is_fused:
        width, places = _width_of_groups(kernels)
        is_quick = np.isin(width, _QUICK_GROUPS) & (places == _QUICK_PLACES * width)
        is_quick &= (width < _NARROW_GROUP) | (kernels.count % _QUICK_COUNT == 0)
        reached = np.where(width > _WIDE_GROUP, np.minimum(width / _WIDEST_GROUP, 1.0), 1.0)
        slow = flop * flop_share / (shares.wide_groups * reached)
        work = np.where((kernels.kind == _INDEX["grouped_convolution"]) & ~is_quick, slow, work)
    samples = kernels.sample_elements * execution.element_bytes * batch
    cast_bytes = np.where(is_product & execution.is_mixed, _CAST_BYTES, 0.0)
    weights = kernels.weight_elements * (execution.element_bytes + cast_bytes)
    start_s = shares.start_s * (_FUSED_START if execution.is_fused else 1.0)
    seconds = both(work, samples + weights) + start_s * kernels.launches
    if shares.winograd > 0:
        places, inputs, outputs = _winograd_shapes(kernels)
        for side, moves in _WINOGRAD_TILES:
            window = (side + 2) ** 2
            tiles = np.ceil(np.sqrt(places) / side) ** 2 * batch
            inside, beside = (1, window) if moves else (window, 1)  # the fused kernel's loop goes over the window, too
            work = grid.padded_flop(tiles, inside * inputs, outputs, beside * kernels.count)
            again = 1 + moves * 2 * window / side**2  # transformed numbers are written and read
            through = both(work / shares.winograd, samples * again + weights * (1 + 2 * window / 9))
            through += start_s * (kernels.launches + 1 + 2 * moves)
            seconds = np.where(places > 0, np.minimum(seconds, through), seconds)
    return seconds


def _width_of_groups(kernels: Kernels) -> tuple[Floats, Floats]:
    """Return the channels of a group of convolutions, and what a number of its output, or of its input, reads."""
    inner = np.where(kernels.grows == _INNER, kernels.rows, kernels.inner)
    return np.minimum(kernels.columns, inner), np.maximum(kernels.columns, inner)


def _by_kind(shares: Mapping[str, float], kernels: Kernels, default: float) -> Floats:
    """Return the figure of each kernel."""
    return np.array([shares.get(kind, default) for kind in KINDS])[kernels.kind]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Grid:
    """How products are cut: multiprocessors, parts of an inner width at most, and the shares of each kernel."""

    processors: float
    most_pieces: Floats
    startup: Floats
    waves: Floats
    loads: Floats

    def padded_flop(self, rows: Floats, inner: Floats, columns: Floats, count: Floats) -> Floats:
        """Return the FLOP that take as long as the products, by the tile that does best: whole tiles, whole waves.

        Parameters
        ----------
        rows, inner, columns, count
            Of the products, of one shape.
        """
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


# -- a network's seconds -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _kernels(dnn: Dnn, *, is_fused: bool, is_mixed: bool) -> Kernels:
    """Return :func:`kernels_of`, which a purchase asks for again and again."""
    return kernels_of(dnn, is_fused=is_fused, is_mixed=is_mixed)


def work_by_layer(dnn: Dnn) -> tuple[Floats, Floats]:
    """Return the numbers that each layer moves for one sample, both ways, and its FLOP; both of shape (layers,).

    Parameters
    ----------
    dnn
        The network, run operator by operator.
    """
    kernels = _kernels(dnn, is_fused=False, is_mixed=False)
    moved, flop = np.zeros(len(dnn.layers)), np.zeros(len(dnn.layers))
    np.add.at(moved, kernels.layer, kernels.sample_elements)
    np.add.at(flop, kernels.layer, 2 * kernels.rows * kernels.inner * kernels.columns * kernels.count)
    return moved, flop


def layer_seconds(
    dnn: Dnn, batch: float, limits: DeviceLimits, shares: Shares, execution: Execution
) -> tuple[Floats, Floats]:
    """Return the seconds of every layer's forward and backward pass, of so many samples together; shape (layers,).

    Parameters
    ----------
    dnn, batch, limits, shares, execution
        What is computed, on what, and how.

    Notes
    -----
    Where the host takes longer to launch all kernels than the device to run them, each layer waits for its own.
    """
    # A compiler casts within its chains.
    is_mixed = execution.is_mixed and not execution.is_fused
    kernels = _kernels(dnn, is_fused=execution.is_fused, is_mixed=is_mixed)
    seconds = kernel_s(kernels, batch, limits, shares, execution)
    launched_s = kernels.launches * shares.dispatch_s
    if launched_s.sum() > seconds.sum():
        seconds = seconds + launched_s * (1 - seconds.sum() / launched_s.sum())
    forward_s, backward_s = np.zeros(len(dnn.layers)), np.zeros(len(dnn.layers))
    is_back = kernels.is_backward
    np.add.at(forward_s, kernels.layer[~is_back], seconds[~is_back])
    np.add.at(backward_s, kernels.layer[is_back], seconds[is_back])
    return forward_s, backward_s


def network_profile(dnn: Dnn, limits: DeviceLimits, shares: Shares, execution: Execution) -> Profile:
    """Return the seconds of every layer, by the samples that pass the network together.

    Parameters
    ----------
    dnn, limits, shares, execution
        What is computed, on what, and how.
    """
    passes = [layer_seconds(dnn, batch, limits, shares, execution) for batch in TOGETHER]
    forward_s, backward_s = (np.array(seconds) for seconds in zip(*passes, strict=True))
    return Profile.of_passes(TOGETHER, forward_s, backward_s)
