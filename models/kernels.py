"""Seconds of any network's layers on a device: its operators, the kernels that they become, and a roofline of each.

**Operators.** A layer computes what its ``operators`` say; where they were not seen they follow from its kind, its
multiply-adds and the shapes around it (:func:`planner.models.operators.operators_of`).

**Kernels.** An operator is one kernel forward, or a few. Backward follows by rule: a product has two, the gradients of
its two factors, of the same FLOP each (eqs. 4 to 6 of T. Liu et al., WWW '22, doi:10.1145/3485447.3511981); what moves
memory alone reads the gradient, and what it kept of forward, and writes a gradient
(:data:`planner.models.roofline.MOVED`). A sum passes its gradient on as it is; where several layers read one output,
their gradients are added up. Weights that are kept in four bytes are copied to two before each use, and their gradients
back (automatic mixed precision).

**Seconds.** Of a kernel about the longer of its arithmetic and of moving its bytes, by tiles and waves
(:mod:`planner.models.roofline`). Large products run no faster than the power of the board lets them: energy of a FLOP
by the process that the device is made in. A step takes no less than the host needs to launch its kernels.

Leaves out: caches beyond one kernel, clocks that vary between devices of a kind, and libraries' choice of algorithm but
for what the fitted shares hold of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats, Profile
from planner.dnn import OPERATOR_KINDS, PRODUCT_KINDS, Dnn, Operator
from planner.frozen import frozen
from planner.models.operators import operators_of
from planner.models.roofline import MOVED, USUAL_LOADS, WHOLE, DeviceLimits, Grid, least_of, startup_width

Ints = NDArray[np.int64]

# -- kernels of a network ----------------------------------------------------------------------------------------------

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


@frozen(eq=False)
class Kernels:
    """All kernels of a network's step but the optimiser's, arrays of one element a kernel."""

    # layer, is_backward, kind: index of the layer; the pass; index into :data:`KINDS`
    layer: Ints
    is_backward: NDArray[np.bool_]
    kind: Ints
    # rows, inner, columns, count: of the product for one sample, ``rows`` 0 where nothing is multiplied. ``grows``
    # tells which of rows, inner width and count (0, 1, 2) a batch multiplies
    rows: Floats
    inner: Floats
    columns: Floats
    count: Floats
    grows: Ints
    # sample_elements, weight_elements: numbers moved for each sample, and whatever the batch
    sample_elements: Floats
    weight_elements: Floats
    launches: Floats  # how many kernels it really is


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
    (read, written), (read_back, written_back) = MOVED[one.kind]
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
    if kind == "attention":
        # A tile is some queries, and goes over all keys for two products alike; backward for five, scores again.
        return [
            (index, 0, code, r, 2 * n, k, c, grows, ahead, 0, launches),
            (index, 1, code, r, 5 * n, k, c, grows, back, 0, launches),
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

_WINOGRAD = (6.0, 10.0)  # how often a 3 x 3 window of stride 1 reads a number of its input: 9 times less the edges
# Sides of the squares of outputs, and whether their transformations pass through memory: kernels that fuse them exist
# for the small one.
_WINOGRAD_TILES = ((2, 0), (4, 1))
_DEPTHWISE = _INDEX["depthwise_convolution"]  # and less: all convolutions
# With channels last cuDNN 8 has quick kernels for some groups of 3 x 3 convolutions alone, by their channels, as many
# out as in; of the wider ones for 32 groups or a multiple. Networks whose groups are all of one width get none of these
# (R. Wightman's measurements, github.com/pytorch/pytorch/issues/70954). Beyond 48 channels others do worse.
_QUICK_GROUPS, _QUICK_PLACES, _NARROW_GROUP, _QUICK_COUNT = (4, 8, 16, 32), 9, 16, 32
_WIDE_GROUP, _WIDEST_GROUP = 48, 128
_CAST_BYTES = 6.0  # of a weight that is read as fp32 and written short, or of its gradient
# Of a kernel's start, where a compiled program leaves no gaps: by runs of few samples in docs/accuracy_fused.md.
_FUSED_START = 0.5
_WHOLE_BYTES, _SHORT_BYTES = 4.0, 2.0
# Samples that pass together, for which a network's seconds are reckoned; in straight lines between them. Beyond the
# last even small layers fill a device.
TOGETHER = tuple(2**power for power in range(13))


@frozen
class Shares:
    """What is fitted, for all devices alike."""

    # flop, moved: share of the peak, and of the memory's bandwidth, that large kernels reach; by kind of kernel
    flop: Mapping[str, float]
    moved: Mapping[str, float]
    startup: Mapping[str, float]  # inner width that a tile's first loads and last stores cost; as the next two by kind
    waves: Mapping[str, float]  # how much of the last wave's idle multiprocessors counts, 0 to 1
    # what the loads of a tile of 64 x 64 cost more than those of 128 x 128, as a share of its arithmetic: a tile reads
    # its edges and computes its area
    loads: Mapping[str, float]
    start_s: float  # what a kernel takes whatever its size
    dispatch_s: float  # what the host takes to launch an operator
    # of the change from one bound to the other: n of the norm ``(x**n + y**n) ** (1/n)`` of arithmetic and of moving
    sharpness: float = 4.0
    # rate of one multiprocessor that ``startup`` is stated for: it is a time, in widths; 0: for any rate
    startup_flop_per_s: float = 0.0
    # what convolutions move besides to change the format of images, over what they move, where channels are not last;
    # where they are, norms of groups
    conversion: float = 0.0
    # share of the peak that groups of convolutions reach that no kernel is made for, where channels are last
    wide_groups: float = 1.0
    # what Winograd's algorithm reaches of ``flop`` in 3 x 3 convolutions of stride 1 (A. Lavin, S. Gray, CVPR 2016,
    # doi:10.1109/CVPR.2016.435), which computes outputs by squares of 2 or 4; 0 where the library does not use it
    winograd: float = 0.0

    @classmethod
    def of(cls, rows: Mapping[str, object]) -> "Shares":
        """Return those of a table, which may hold more.

        Parameters
        ----------
        rows
            By name; see :func:`planner.data.fits.kernel_shares`.
        """
        known: dict[str, Any] = {one.name: rows[one.name] for one in fields(cls) if one.name in rows}
        return cls(**known)


@frozen
class Execution:
    """How a program runs a network."""

    is_fused: bool  # whether a compiler makes chains of operators that move memory one kernel
    has_channels_last: bool  # whether images are stored so
    is_mixed: bool  # whether weights are kept in fp32 and copied to the short type that is computed in
    element_bytes: float  # of an activation

    @classmethod
    def of(cls, dtype: str, *, is_fused: bool, has_channels_last: bool) -> "Execution":
        """Return that of a type that is computed in.

        Parameters
        ----------
        dtype, is_fused, has_channels_last
            The type, in which activations are kept; the others as above.
        """
        is_short = dtype not in WHOLE
        element_bytes = _SHORT_BYTES if is_short else _WHOLE_BYTES
        return cls(
            is_fused=is_fused, has_channels_last=has_channels_last, is_mixed=is_short, element_bytes=element_bytes
        )


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
    sustained = least_of(full, limits.sustained_flop_per_s)
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

    grid = Grid(
        processors=limits.num_multiprocessors,
        is_split=kernels.kind > _DEPTHWISE,
        startup=startup_width(
            _by_kind(shares.startup, kernels, 0.0),
            limits.product_flop_per_s,
            limits.num_multiprocessors,
            stated_flop_per_s=shares.startup_flop_per_s,
        ),
        waves=_by_kind(shares.waves, kernels, 0.0),
        loads=_by_kind(shares.loads, kernels, USUAL_LOADS),
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
    return np.array([shares.get(kind, default) for kind in KINDS])[kernels.kind]


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


@lru_cache(maxsize=8)
def _distinct(dnn: Dnn, *, is_fused: bool, is_mixed: bool) -> tuple[Kernels, Ints]:
    """Return the first of all kernels that are equal but for their layer, and which of these each kernel is."""
    kernels = _kernels(dnn, is_fused=is_fused, is_mixed=is_mixed)
    columns = [getattr(kernels, one.name).tolist() for one in fields(Kernels) if one.name != "layer"]
    first: dict[tuple[float, ...], int] = {}  # of equal ones, in their order; a sort of rows takes six times as long
    which = [first.setdefault(row, index) for index, row in enumerate(zip(*columns, strict=True))]
    places, inverse = np.unique(np.array(which, dtype=int), return_inverse=True)
    return Kernels(**{one.name: getattr(kernels, one.name)[places] for one in fields(Kernels)}), inverse


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
    distinct, which = _distinct(dnn, is_fused=execution.is_fused, is_mixed=is_mixed)
    seconds = kernel_s(distinct, batch, limits, shares, execution)[which]
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
