"""Bytes on one device of data-parallel training, for any network; and what each of its layers keeps for backward.

**Data parallelism.** Every weight, its gradient, the optimiser's state, and what the layers keep of each sample.

**A layer** keeps its output from the forward to the backward pass, unless it overwrites its input or nobody reads it
again (``is_in_place``), and beside it what else its backward pass reads: copies of what it overwrites, indices of
maxima, masks (``kept_beside_bytes``). That is what automatic differentiation keeps: each array once, whoever reads it.
In fp32 every number takes four bytes, and for a module of PyTorch the sum is exactly what its autograd holds.

**Mixed precision** (fp16, bf16) halves most of it, not all: products (convolutions, matrix products) compute in the
short type, norms of single samples and softmax in fp32, and what reads both types, or a weight, puts out fp32 (PyTorch,
"Automatic Mixed Precision", "CUDA Ops that can autocast"; P. Micikevicius et al., ICLR 2018, arXiv 1710.03740,
section 3). With ``w`` the bytes of an output that is kept, 2 where it is short and 4 where it is fp32:

- whoever reads it in its own type and keeps it: w bytes a number, once for all of them;
- each product that reads fp32: 2 bytes more, a short copy of its own;
- each norm that reads a short number: 4 bytes more, an fp32 copy of its own;
- where products alone, or norms alone, read it in another type, the output itself is not kept.

Networks of group norms thus keep more than in fp32: 4, and 4 + 2, for a convolution's output and the norm's.

Additions, concatenations and means keep nothing. What layers keep beside outputs takes the width of their output;
indices and masks stay as they are. A network of :class:`planner.transformer.Transformer` sizes is taken to be trained
in the short type throughout, as its frameworks do (:mod:`planner.models.memory`).

Left out, so that nothing is refused that would run: gradients of activations while backward runs (of the layer at work,
and of branches that wait), workspaces of convolutions, pieces of the allocator, the device's context; give what is
known of them as a reserve. Measured: docs/accuracy_memory.md.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil

import numpy as np

from planner.cost import Floats
from planner.dnn import PRODUCT_KINDS, Dnn, Layer, Operator
from planner.models.memory import STATISTIC_BYTES, MemoryUse, Precision
from planner.models.operators import operators_of

_SHORT_BYTES, _WHOLE_BYTES = 2, 4
_ELEMENT_WISE = ("element_wise", "scaling", "multiplication", "addition")
_UNREAD = ("addition", "scaling", "copy", "reduction")  # operators whose backward pass reads nothing of what they read
_UNREAD_LAYERS = ("add", "residual", "concatenate", "flatten")
_PASSED_ON = ("activation", "add", "residual", "dropout", "flatten")  # in place, their output is their first input
_MOST_SIMPLE = 2  # operators of a layer: longer ones are norms of networks' own, which cast their weights
_UNSCALED = ("pooling", "dropout")  # keep indices and masks beside their outputs


def data_parallel_memory(dnn: Dnn, precision: Precision, *, reserve_bytes: float = 0.0) -> MemoryUse:
    """Return what one device holds: every weight, its gradient, the optimiser's state, and activations.

    Fusion buffers hold the gradients themselves.

    Parameters
    ----------
    dnn, precision
        The network, and the bytes of its numbers.
    reserve_bytes
        Workspaces and the framework's own context, which are left out otherwise.
    """
    return MemoryUse(
        weights_bytes=dnn.num_trainable * precision.weight_bytes + dnn.num_moving * STATISTIC_BYTES,
        gradients_bytes=dnn.num_trainable * precision.gradient_bytes,
        optimizer_bytes=dnn.num_trainable * precision.kept_bytes,
        activations_per_sample_bytes=ceil(kept_bytes(dnn, precision).sum()),
        reserve_bytes=reserve_bytes,
    )


@lru_cache(maxsize=16)  # families ask for it once for each group and range
def kept_bytes(dnn: Dnn, precision: Precision) -> Floats:
    """Return what each layer keeps of one sample, with the copies that are made of its output; of shape (layers,).

    Nobody may write into it.

    Parameters
    ----------
    dnn, precision
        The network, and the bytes of its numbers.
    """
    kept = _kept_bytes(dnn, precision)
    kept.flags.writeable = False
    return kept


def _kept_bytes(dnn: Dnn, precision: Precision) -> Floats:
    """Return :func:`kept_bytes`, counted."""
    size = precision.activation_bytes
    if size != _SHORT_BYTES or dnn.transformer is not None:
        own = [layer.num_stored_elements * size for layer in dnn.layers]
        beside = [_beside_bytes(layer, size) for layer in dnn.layers]
        return np.array(own, dtype=float) + beside
    readers: dict[str, list[Layer]] = {layer.name: [] for layer in dnn.layers}
    operators: dict[str, tuple[Operator, ...]] = {}
    wide: set[str] = set()
    overwritten: dict[str, str] = {}  # what a layer in place overwrites, if anything
    layers = {layer.name: layer for layer in dnn.layers}
    for layer in dnn.layers:
        inputs = [layers[name] for name in dnn.inputs_of(layer.name)]
        for one in inputs:
            readers[one.name].append(layer)
        operators[layer.name] = tuple(
            one
            for one in operators_of(layer, inputs)
            if (one.read_elements or one.written_elements) and one.kind != "slice"
        )
        reads_wide = any(one.name in wide for one in inputs)
        if _is_wide(operators[layer.name], is_wide=reads_wide, is_seen=bool(layer.operators)):
            wide.add(layer.name)
        if layer.is_in_place and layer.kind in _PASSED_ON and inputs:
            overwritten[layer.name] = inputs[0].name

    def all_readers(layer: Layer) -> Iterator[Layer]:
        for one in readers[layer.name]:
            yield one
            if overwritten.get(one.name) == layer.name:
                yield from all_readers(one)

    kept = []
    for layer in dnn.layers:
        is_wide = layer.name in wide
        own_bytes = 0
        if not layer.is_in_place:
            kinds = [_reads_as(one, operators[one.name]) for one in all_readers(layer)]
            is_output_read = any(one.kind == "softmax" for one in operators[layer.name][-1:])
            own_bytes = layer.num_output_elements * _bytes_of_one(kinds, is_wide=is_wide, is_output_read=is_output_read)
        kept.append(own_bytes + _beside_bytes(layer, _WHOLE_BYTES if is_wide else _SHORT_BYTES))
    return np.array(kept, dtype=float)


def _is_wide(operators: Sequence[Operator], *, is_wide: bool, is_seen: bool) -> bool:
    """Return whether some operators, one after the other, put out fp32; ``is_wide``: whether they read it.

    ``is_seen``: whether they were seen, and do not merely follow from the kind of a layer: a layer of unknown kind with
    weights may be a product.
    """
    is_product = not is_seen or len(operators) > _MOST_SIMPLE
    for one in operators:
        is_product = is_product or one.kind in PRODUCT_KINDS
        if one.kind in PRODUCT_KINDS:
            is_wide = False
        elif one.kind in ("norm", "group_norm", "softmax") or (
            one.kind in _ELEMENT_WISE and one.weight_elements and not is_product
        ):
            is_wide = True
    return is_wide


def _reads_as(layer: Layer, operators: Sequence[Operator]) -> str:
    """Return how a layer keeps what it reads: product, norm, as_is; nothing is an empty word."""
    first = operators[0].kind if operators else "copy"
    if first in PRODUCT_KINDS:
        return "product"
    if first in ("norm", "group_norm"):
        return "norm"
    return "" if first in _UNREAD or layer.kind in _UNREAD_LAYERS else "as_is"


def _bytes_of_one(kinds: Sequence[str], *, is_wide: bool, is_output_read: bool) -> int:
    """Return the bytes of a number that is kept, by who reads it."""
    copying = "product" if is_wide else "norm"
    number = kinds.count(copying)
    is_read_as_it_is = is_output_read or not number or any(kind not in ("", copying) for kind in kinds)
    own, copy = (_WHOLE_BYTES, _SHORT_BYTES) if is_wide else (_SHORT_BYTES, _WHOLE_BYTES)
    return own * is_read_as_it_is + copy * number


def _beside_bytes(layer: Layer, size: int) -> float:
    """Return what a layer keeps beside its output, where a number takes so many bytes."""
    return layer.kept_beside_bytes * (1.0 if layer.kind in _UNSCALED else size / _WHOLE_BYTES)
