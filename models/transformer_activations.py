"""Bytes that one layer of a transformer keeps for its backward pass, on one device and for one micro-batch.

What is kept follows from who reads it: the backward pass of a product, a norm, an activation function or of attention
needs what the operator read, and so does the weighted sum of experts; that of an addition, of rotary positions or of a
permutation needs nothing. For a GPT that gives the published forms exactly (V. Korthikanti et al., arXiv 2205.05198,
section 4, [K]): s tokens, b samples, h hidden, a heads, t tensor-parallel devices, 2 bytes a number, dropout included,

* tensor parallel ``s b h (10 + 24/t + 5 a s / h t)``; with sequence parallelism ``s b h / t (34 + 5 a s / h)``;
* selective recomputation: without the term of the scores; full: ``2 s b h``, with sequence parallelism a t-th of it.

Ours, beyond [K]: grouped queries, gated parts, experts (what is sent to a device's experts is kept gathered, and
divided by nothing), latent attention, context parallelism (every term over its degree), kernels without
dropout (2 instead of 5 bytes a score) and flash attention (no scores; 4 bytes a token and head of the softmax's
logarithm instead: T. Dao et al., arXiv 2205.14135). Left out: a norm's two statistics a token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Layouts, Recompute
from planner.models.operators import INPUT, Operator
from planner.models.transformer_operators import block_operators, embedding_operators, head_operators
from planner.models.transformer_parameters import COLUMN_SPLIT
from planner.transformer import LayerKind, Transformer

__all__ = [
    "KERNELS",
    "Kept",
    "Kernels",
    "LayerBytes",
    "embedding_bytes",
    "head_bytes",
    "kept_elements",
    "layer_bytes",
    "stream_bytes",
]

_NEED_INPUT = frozenset({"matmul", "router", "norm", "activation", "attention", "softmax", "combine"})
_PRODUCTS = frozenset({"matmul", "router"})
_SCORES = frozenset({"attention.scores", "attention.softmax"})
_STATES = frozenset({"attention.qkv", "attention.query_key_norm", "attention.rotary"})
_TENSOR_SPLIT = (
    COLUMN_SPLIT | _STATES | {"attention.context", "feed_forward.activation", "feed_forward.shared.activation"}
)
_ROUTED_SPLIT = frozenset({"feed_forward.experts.up", "feed_forward.experts.activation"})
_DISPATCHED = frozenset({"feed_forward.dispatch", "feed_forward.experts.down"})
_LOG_SUM_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What the software keeps; the defaults are those of today's frameworks.

    Attributes
    ----------
    is_flash
        Whether attention keeps no scores.
    has_dropout
        Whether masks are kept: 1 byte a number, of both residual branches, of the scores and of the embedding.
    is_loss_fused
        Whether the loss overwrites the logits by their gradient. If not, it makes two fp32 copies of them, one of which
        is kept for the backward pass.
    has_placeholders
        Whether an empty gradient of every matrix of a block is held for good (Transformer Engine, where gradients are
        summed in fp32 by the product itself: one for each shape).
    copies_context
        Whether attention's output is kept twice where the context is spread: before and after an all-to-all exchange
        (S. A. Jacobs et al., arXiv 2309.14509). A ring needs no second one.
    product_input_bytes
        A number kept as input of products alone; by default that of activations (1: fp8 as Transformer Engine has it).
    """

    is_flash: bool = True
    has_dropout: bool = False
    is_loss_fused: bool = False
    has_placeholders: bool = False
    copies_context: bool = False
    product_input_bytes: float | None = None


KERNELS: Mapping[str, Kernels] = {
    "megatron-2021": Kernels(is_flash=False, has_dropout=True),
    "megatron-core": Kernels(is_loss_fused=True, has_placeholders=True, copies_context=True),
    "megatron-core-fp8": Kernels(
        is_loss_fused=True, has_placeholders=True, copies_context=True, product_input_bytes=1.0
    ),
    "fsdp": Kernels(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Numbers of one sample, by how they are spread.

    ``stream``: by sequence parallelism alone. ``tensor``: over tensor-parallel devices. ``keys``: over these, as far as
    there are heads of keys. ``routed``: experts' columns. ``dispatched``: tokens on their way to experts and back.
    """

    stream: int = 0
    tensor: int = 0
    keys: int = 0
    routed: int = 0
    dispatched: int = 0

    def on_device(self, transformer: Transformer, layouts: Layouts, expert_imbalance: float) -> Floats:
        """Return the numbers of one micro-batch on one device."""
        samples, tensor = layouts.microbatch / layouts.context, layouts.tensor
        sent = self.dispatched + self.routed / tensor
        return samples * (
            self.stream / stream_split(layouts)
            + self.tensor / tensor
            + self.keys / np.minimum(tensor, transformer.num_kv_heads)
            + sent * expert_imbalance
        )


def stream_split(layouts: Layouts) -> Floats:
    """Return over how many devices the stream between the tensor-parallel products is spread."""
    return np.where(layouts.is_sequence_parallel, layouts.tensor, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerBytes:
    """Bytes of one layer and one micro-batch on one device, one element a layout.

    Attributes
    ----------
    kept
        From the forward to the backward pass.
    working
        More of it while its backward pass runs: what is computed again, and gradients of its widest part.
    """

    kept: Floats
    working: Floats


def layer_bytes(
    transformer: Transformer,
    kind: LayerKind,
    layouts: Layouts,
    *,
    activation_bytes: float,
    kernels: Kernels,
    expert_imbalance: float = 1.0,
) -> LayerBytes:
    """Return what a layer keeps, and what its backward pass needs beside it."""
    operators = block_operators(transformer, kind)
    entry = transformer.hidden_size * transformer.sequence_length
    products, others = kept_elements(transformer, operators)
    size = kernels.product_input_bytes or activation_bytes
    plain = size * products.on_device(transformer, layouts, expert_imbalance)
    plain = plain + activation_bytes * others.on_device(transformer, layouts, expert_imbalance)
    plain = plain + _attention_bytes(transformer, layouts, activation_bytes, kernels)
    plain = plain + kernels.has_dropout * 2 * stream_bytes(entry, layouts, 1)
    scores = _score_bytes(transformer, layouts, activation_bytes, kernels)
    only_input = stream_bytes(entry, layouts, activation_bytes)
    is_full, is_none = layouts.recompute == Recompute.FULL, layouts.recompute == Recompute.NONE
    widest = activation_bytes * _widest(transformer, operators, layouts, expert_imbalance)
    again = np.where(is_full, plain + scores - only_input, np.where(is_none, 0.0, scores))
    return LayerBytes(
        kept=np.where(is_full, only_input, plain + np.where(is_none, scores, 0.0)), working=again + widest
    )


def stream_bytes(elements: float, layouts: Layouts, number_bytes: float) -> Floats:
    """Return the bytes of a micro-batch's numbers that lie between the tensor-parallel products, on one device."""
    return number_bytes * elements * layouts.microbatch / layouts.context / stream_split(layouts)


def kept_elements(transformer: Transformer, operators: Iterable[Operator]) -> tuple[Kept, Kept]:
    """Return the numbers of one sample that some backward pass reads: those that products alone read, and the others.

    Scores, and what leaves the last operator, are left out; logits too.
    """
    listed = tuple(operators)
    readers: dict[str, set[str]] = {}
    for operator in listed:
        for name in operator.inputs:
            readers.setdefault(name, set()).add(operator.kind)
    sizes = {one.name: one.output_elements for one in listed}
    sizes.setdefault(INPUT, transformer.hidden_size * transformer.sequence_length)
    sums: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for name, kinds in readers.items():
        if name in _SCORES or not kinds & _NEED_INPUT:
            continue
        is_product_input = (kinds & _NEED_INPUT) <= _PRODUCTS and name != "attention.context"
        found = sums[not is_product_input]
        for way, elements in _ways(transformer, name, sizes[name]).items():
            found[way] = found.get(way, 0) + elements
    return Kept(**sums[0]), Kept(**sums[1])


def _ways(transformer: Transformer, name: str, elements: int) -> Mapping[str, int]:
    """Return a tensor's numbers by how they are spread."""
    if name in _STATES and transformer.latent is None:
        keys = 2 * transformer.num_kv_heads * transformer.head_size * transformer.sequence_length
        return {"tensor": elements - keys, "keys": keys}
    if name in _TENSOR_SPLIT:
        return {"tensor": elements}
    if name in _ROUTED_SPLIT:
        return {"routed": elements}
    return {"dispatched" if name in _DISPATCHED else "stream": elements}


def _attention_bytes(
    transformer: Transformer, layouts: Layouts, activation_bytes: float, kernels: Kernels
) -> "Floats | float":
    """Return the logarithm of flash attention's softmax, and the second copy of its output."""
    rows = transformer.num_heads * transformer.sequence_length * layouts.microbatch / layouts.context / layouts.tensor
    found = rows * _LOG_SUM_BYTES * kernels.is_flash
    if kernels.copies_context:
        found = found + (layouts.context > 1) * rows * transformer.value_head_size * activation_bytes
    return found


def _score_bytes(transformer: Transformer, layouts: Layouts, activation_bytes: float, kernels: Kernels) -> Floats:
    """Return the softmax and, with dropout, its mask and what passes it: 0 for flash attention."""
    each = 0.0 if kernels.is_flash else activation_bytes + kernels.has_dropout * (1 + activation_bytes)
    number = transformer.num_heads * transformer.sequence_length**2
    return each * number * layouts.microbatch / layouts.context / layouts.tensor


def _widest(
    transformer: Transformer, operators: Iterable[Operator], layouts: Layouts, expert_imbalance: float
) -> Floats:
    """Return the numbers of the widest activation function's gradients, at its input and its output."""
    found: Floats = np.zeros(1)
    for one in operators:
        if one.kind == "activation":
            ways = {"routed" if one.name in _ROUTED_SPLIT else "tensor": one.input_elements + one.output_elements}
            found = np.maximum(found, Kept(**ways).on_device(transformer, layouts, expert_imbalance))
    return found


def embedding_bytes(transformer: Transformer, layouts: Layouts, activation_bytes: float, kernels: Kernels) -> Floats:
    """Return what the embedding keeps of one micro-batch: the input of its norm, patches, and the mask of dropout."""
    products, others = kept_elements(transformer, embedding_operators(transformer))
    mask = kernels.has_dropout * transformer.hidden_size * transformer.sequence_length
    return stream_bytes(products.stream + others.stream, layouts, activation_bytes) + stream_bytes(mask, layouts, 1)


def head_bytes(transformer: Transformer, layouts: Layouts, activation_bytes: float) -> Floats:
    """Return what stands behind the last block and before the logits keeps of one micro-batch."""
    products, others = kept_elements(transformer, head_operators(transformer))
    return stream_bytes(products.stream + others.stream, layouts, activation_bytes)
