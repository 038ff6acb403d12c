"""Bytes that one layer of a transformer keeps for its backward pass, and needs while that runs.

What is kept follows from who reads it: the backward pass of a GEMM, a norm, an activation function or of attention
needs what the operator read, and so does the weighted sum of experts; that of an addition, of rotary positions or of a
permutation needs nothing. For a GPT that gives the published forms exactly (V. Korthikanti et
al., arXiv 2205.05198, section 4, [K]): s tokens, b samples, h hidden, a heads, t tensor-parallel devices, 2 bytes a
number, dropout included,

- tensor parallel ``s b h (10 + 24/t + 5 a s / h t)``; with sequence parallelism ``s b h / t (34 + 5 a s / h)``;
- selective recomputation: without the term of the scores; full: ``2 s b h``, with sequence parallelism a t-th of it.

Beyond [K]: grouped queries, gated parts, experts (what is sent to a device's experts is kept gathered, and divided by
nothing), latent attention, context parallelism (every term over its degree), kernels without dropout (2 instead of 5
bytes a score) and flash attention (no scores; 4 bytes a token and head of the softmax's logarithm instead: T. Dao et
al., arXiv 2205.14135). Left out: a norm's two statistics a token.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache

import numpy as np

from planner.cost import Floats
from planner.frozen import frozen
from planner.models import scans
from planner.models.layouts import ContextMethod, Layouts, Recompute
from planner.models.offload import offloaded_names
from planner.models.operators import INDEXER, INPUT, TransformerOperator, block_operators
from planner.models.parameters import COLUMN_SPLIT, vocabulary_rows
from planner.models.recomputation import MODULE_SETS, dropped_names
from planner.transformer import KINDS, LayerKind, Transformer

_REMADE = frozenset({scans.SCAN, scans.CONVOLUTION})  # whose output, where it is in place, backward makes anew
_PRODUCTS = frozenset({"matmul", "router", "logits"})
_NEED_INPUT = frozenset(
    {"norm", "activation", "attention", "index", "softmax", "combine", "multiply", *_PRODUCTS, *_REMADE}
)
_SCORES = frozenset({"attention.scores", "attention.softmax"})
_STATES = frozenset({"attention.qkv", "attention.query_key_norm", "attention.rotary"})
_TENSOR_SPLIT = (
    (COLUMN_SPLIT - {"mtp.projection"})  # which is gathered
    | _STATES
    | scans.BY_HEADS
    | {"attention.context", "attention.gated", "feed_forward.activation", "feed_forward.shared.activation"}
)
_ROUTED_SPLIT = frozenset({"feed_forward.experts.up", "feed_forward.experts.activation"})
_DISPATCHED = frozenset({"feed_forward.dispatch", "feed_forward.experts.down"})
_UNREAD_WHERE_WEIGHTED = frozenset({"feed_forward.experts.down"})
_LOG_SUM_BYTES = 4
LOSS_COPY_BYTES = 4


@frozen
class Kernels:
    """What the software keeps; the defaults are those of today's frameworks."""

    is_flash: bool = True  # whether attention keeps no scores
    # whether masks are kept: 1 byte a number, of both residual branches, of the scores and of the embedding
    has_dropout: bool = False
    # whether the loss overwrites the logits by their gradient, or is compiled into kernels that make no copies of them.
    # If not, it makes fp32 copies, one of which is kept for the backward pass
    is_loss_fused: bool = False
    # two; three at a time of PyTorch's own: the logarithm of the softmax, its gradient, and that of the logits
    num_loss_copies: int = 2
    # whether an empty gradient of every matrix of a block is held for good (Transformer Engine, where gradients are
    # summed in fp32 by the product itself: one for each shape)
    has_placeholders: bool = False
    # whether attention's output is kept twice where the context is spread: before and after an all-to-all exchange (S.
    # A. Jacobs et al., arXiv 2309.14509). A ring needs no second one
    copies_context: bool = False
    # buffers through which ranks that share out states exchange gradients and weights, where they are no views
    shard_buffers_bytes: float = 0.0
    # whether selective recomputation keeps what attention and every second matrix of a layer put out, the first, the
    # third and so on of queries, keys, values, and all that follow, and computes all else again
    keeps_second_products: bool = False
    # whether that includes the last matrix's, which no backward pass reads: nobody looks where nothing is compiled
    keeps_unread: bool = False
    # a number kept as input of GEMMs alone; by default that of activations (1: fp8 as Transformer Engine has it)
    product_input_bytes: float | None = None
    # whether routed experts' activations are weighted by the router's probabilities, before the second product, so that
    # the sum of experts needs nothing of what they put out (Megatron-Core from 0.12 on: ``permuted_probs`` of
    # ``transformer/moe/experts.py``)
    weighs_activations: bool = False
    # of a number in the copy of a layer's gradients from which ranks that share out states reduce theirs: FSDP2 holds
    # it until the layer before has its gradients (``reduce_scatter_input`` in ``reduce_dtype``, ``foreach_reduce`` of
    # ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``, PyTorch 2.11; torchtitan reduces in fp32)
    reduced_bytes: float = 0.0
    # of a number in the buffer to which all expert-parallel ranks may send all of their tokens, one for all layers, and
    # for both ways where NVLink joins the ranks: ``max_num_of_tokens_per_rank`` x ranks x width
    # (``HybridEPBuffer::allocate_buffer`` of DeepEP, branch ``hybrid-ep``, which sends two bytes). 0: none
    dispatch_bytes: float = 0.0


_MEGATRON_CORE = Kernels(
    is_loss_fused=True, has_placeholders=True, copies_context=True, weighs_activations=True, dispatch_bytes=2.0
)
KERNELS: Mapping[str, Kernels] = {
    "megatron-2021": Kernels(is_flash=False, has_dropout=True),
    "megatron-core": _MEGATRON_CORE,
    "megatron-core-fp8": replace(_MEGATRON_CORE, product_input_bytes=1.0),
    # DeepSpeed with ZeRO: 4.5 times both buckets of 5e8 numbers, 9 GB (Hugging Face, "DeepSpeed integration", of
    # overlapping communication; steps with pipelines, which do not overlap, were measured to hold as much).
    "megatron-deepspeed": Kernels(is_flash=False, has_dropout=True, shard_buffers_bytes=9e9),
    "composer-fsdp": Kernels(is_loss_fused=True),
    "torchtitan": Kernels(is_loss_fused=True, num_loss_copies=3, keeps_second_products=True, reduced_bytes=4.0),
    "nanotron": Kernels(num_loss_copies=3),
    "torchtitan-eager": Kernels(num_loss_copies=3, keeps_second_products=True, keeps_unread=True, reduced_bytes=4.0),
}


@frozen
class Kept:
    """Numbers of one sample, by how they are spread.

    ``stream``: by sequence parallelism alone. ``tensor``: over tensor-parallel devices. ``keys``: over these, as far as
    there are heads of keys. ``routed``: experts' columns. ``dispatched``: tokens on their way to experts and back.
    ``whole``: not at all.
    """

    stream: int = 0
    tensor: int = 0
    keys: int = 0
    routed: int = 0
    dispatched: int = 0
    whole: int = 0

    def on_device(self, transformer: Transformer, layouts: Layouts, expert_imbalance: float) -> Floats:
        """Return the numbers of one micro-batch on one device."""
        samples, tensor = layouts.microbatch / layouts.context, layouts.tensor
        found = self.stream / layouts.stream_split + self.whole
        if self.tensor:
            found = found + self.tensor / tensor
        if self.keys:
            found = found + self.keys / np.minimum(tensor, transformer.num_kv_heads)
        if self.dispatched or self.routed:
            routed = self.dispatched * (layouts.expert_tensor / tensor) + self.routed / tensor
            found = found + routed * expert_imbalance
        return np.asarray(samples * found)


@frozen(eq=False)
class LayerBytes:
    """Bytes of one layer and one micro-batch on one device, one element a layout."""

    kept: Floats  # from the forward to the backward pass
    working: Floats  # more of it while its backward pass runs: what is computed again, and gradients of its widest part
    whole: Floats  # what it keeps where nothing of it is computed again
    away: Floats  # of what it keeps, what waits in host memory

    @classmethod
    def of_forward(cls, working: Floats) -> "LayerBytes":
        """Return those of a layer without a backward pass, which keeps nothing; ``working``: while it runs."""
        return cls(kept=0 * working, working=working, whole=0 * working, away=0 * working)


def layer_bytes(
    transformer: Transformer,
    kind: LayerKind,
    layouts: Layouts,
    *,
    activation_bytes: float,
    kernels: Kernels,
    expert_imbalance: float = 1.0,
) -> LayerBytes:
    """Return what a layer keeps, and what its backward pass needs beside it.

    Parameters
    ----------
    transformer, kind
        The network, and the kind of layer.
    layouts
        n of them; the result is of shape (n,).
    activation_bytes
        Of one number.
    kernels
        What the software keeps.
    expert_imbalance
        Tokens of the busiest device's experts over the mean; >= 1.
    """
    operators = block_operators(transformer, kind)

    def numbers(kept: Kept) -> Floats:
        return kept.on_device(transformer, layouts, expert_imbalance)

    def held_bytes(both: tuple[Kept, Kept]) -> Floats:
        return number_of[0] * numbers(both[0]) + number_of[1] * numbers(both[1])

    number_of = kernels.product_input_bytes or activation_bytes, activation_bytes
    products, others = _kept_of(transformer, kind, is_weighted=kernels.weighs_activations)
    stream = Kept(stream=transformer.hidden_size * transformer.sequence_length)
    plain = held_bytes((products, others))
    # Flash attention keeps the softmax's logarithm, others the softmax and, with dropout, its mask and what passes it.
    parts = KINDS[kind]
    heads = transformer.num_heads if parts.has_attention else 0
    rows = heads * transformer.sequence_length * layouts.microbatch / layouts.context / layouts.tensor
    plain = plain + rows * _LOG_SUM_BYTES * kernels.is_flash
    score_bytes = 0.0 if kernels.is_flash else activation_bytes + kernels.has_dropout * (1 + activation_bytes)
    scores = score_bytes * transformer.sequence_length * rows
    if kernels.copies_context:
        plain = plain + (layouts.context > 1) * rows * transformer.value_head_size * activation_bytes
    plain = plain + kernels.has_dropout * parts.number * numbers(stream)
    ranks = sum(rank for one in operators for rank, _ in one.adapters)  # numbers of a token between both matrices
    plain = plain + activation_bytes * ranks * transformer.sequence_length * layouts.microbatch / layouts.context
    only_input = activation_bytes * numbers(stream)
    widest: Floats = np.zeros(1)  # gradients of an activation function, at its input and its output
    for one in operators:
        if one.kind == "activation":
            way = "routed" if one.name in _ROUTED_SPLIT else "tensor"
            widest = np.maximum(widest, numbers(Kept(**{way: one.input_elements + one.output_elements})))
    remade = [one for one in operators if one.is_in_place and one.kind in _REMADE]
    if remade:  # and the gradient of what the convolution reads
        read = sum(one.input_elements for one in remade if one.kind == scans.CONVOLUTION)
        widest = np.maximum(widest, numbers(Kept(tensor=read + sum(one.output_elements for one in remade))))
    partly = plain
    if kernels.keeps_second_products:
        products = _second_products(transformer, kind, keeps_unread=kernels.keeps_unread)
        partly = np.minimum(only_input + activation_bytes * numbers(products) + rows * _LOG_SUM_BYTES, plain)
    for modules in np.unique(np.where(layouts.recompute == Recompute.SELECTIVE, layouts.recompute_modules, 0)).tolist():
        if modules:
            dropped = dropped_names(transformer, kind, modules)
            saved = held_bytes(_kept_of(transformer, kind, dropped, is_weighted=kernels.weighs_activations))
            held = plain - saved + scores * ("core_attn" not in MODULE_SETS[modules])
            partly = np.where(layouts.recompute_modules == modules, held, partly)
    # Keys and values of all tokens, and their gradients, where a rank gathers them.
    gathers = (layouts.context > 1) & (layouts.context_method == ContextMethod.ALL_GATHER)
    keys = np.maximum(transformer.num_kv_heads / layouts.tensor, 1.0) * layouts.microbatch
    keys = keys * transformer.sequence_length * (transformer.head_size + transformer.value_head_size)
    widest = widest + np.where(gathers, 2 * keys, 0.0) * parts.has_attention
    is_full, is_none = layouts.recompute == Recompute.FULL, layouts.recompute == Recompute.NONE
    kept = np.where(is_full, only_input, np.where(is_none, plain + scores, partly))
    if parts.is_prediction:  # its loss keeps logits, and makes copies of them, as that of the head does
        logits = vocabulary_rows(transformer, layouts) * transformer.sequence_length * layouts.microbatch
        logits = logits / layouts.context
        kept = kept + (activation_bytes if kernels.is_loss_fused else LOSS_COPY_BYTES) * logits
        plain = plain + (activation_bytes if kernels.is_loss_fused else LOSS_COPY_BYTES) * logits
        widest = widest + (0.0 if kernels.is_loss_fused else 1 + LOSS_COPY_BYTES / activation_bytes) * logits
    if transformer.learning_of(kind) == "front":  # keeps nothing; forward it needs what is about its widest part
        return LayerBytes.of_forward(activation_bytes * widest + 0 * kept)
    return LayerBytes(
        kept=kept,
        working=plain + scores - kept + activation_bytes * widest,
        whole=np.asarray(plain + scores),
        away=np.minimum(_away_bytes(transformer, kind, layouts, held_bytes), kept),
    )


def _away_bytes(
    transformer: Transformer, kind: LayerKind, layouts: Layouts, bytes_of: Callable[[tuple[Kept, Kept]], Floats]
) -> Floats:
    """Return what of a layer's activations waits in host memory, by modules; ``bytes_of`` counts what is kept."""
    if not layouts.offload_modules.any():
        return np.zeros(1)
    again = np.where(layouts.recompute == Recompute.SELECTIVE, layouts.recompute_modules, 0)
    found = np.zeros(len(layouts))
    for modules in np.unique(layouts.offload_modules).tolist():
        for recomputed in np.unique(again[np.broadcast_to(layouts.offload_modules == modules, len(again))]).tolist():
            names = offloaded_names(transformer, kind, modules, recomputed)
            at = (layouts.offload_modules == modules) & (again == recomputed)
            if names:
                found = np.where(at, bytes_of(_kept_of(transformer, kind, names)), found)
    return found


@lru_cache(maxsize=1_024)
def dropped_outputs(transformer: Transformer, modules: int, kernels: Kernels) -> frozenset[tuple[object, str]]:
    """Return what layers and those of an encoder do not keep where a set of modules is computed again, by their kind.

    What keeps more than another set in no layer drops all that this one does: sizes of what is dropped are added up.

    Parameters
    ----------
    transformer, modules
        The network, and the number of the set.
    kernels
        What the software keeps.
    """
    networks = [one for one in (transformer, transformer.encoder) if one is not None]
    found: set[tuple[object, str]] = {
        ((place, kind), name)
        for place, network in enumerate(networks)
        for kind in network.kind_counts
        for name in dropped_names(network, kind, modules)
    }
    if kernels.keeps_second_products and not modules:
        found.add(("every", "second product"))
    if "core_attn" in MODULE_SETS[modules] and not kernels.is_flash:
        found.add(("every", "scores"))
    return frozenset(found)


@lru_cache(maxsize=1_024)
def _second_products(transformer: Transformer, kind: LayerKind, *, keeps_unread: bool) -> Kept:
    """Return what attention and every second matrix of a layer put out, of one sample.

    Matrices of queries, keys and values count by themselves, as do both halves of a gated part; those of experts, which
    one product has all of, are none of them.
    """
    operators = block_operators(transformer, kind)
    ends = {one.name for one in operators}  # whose output leaves the layer through additions alone
    for one in reversed(operators):
        for name in one.inputs:
            if one.kind != "residual" or one.name not in ends:
                ends.discard(name)
    kept, number = {"tensor": 0, "keys": 0, "stream": 0, "whole": 0}, 0
    keys = transformer.num_kv_heads * transformer.head_size * transformer.sequence_length
    for one in operators:
        if one.name == "attention.context":
            kept["tensor"] += one.output_elements
        if one.kind not in _PRODUCTS or one.product is None or one.product.count > 1:
            continue
        halves = [one.output_elements]
        if one.name == "attention.qkv":
            halves = [one.output_elements - 2 * keys, keys, keys]
        elif one.name.endswith(".up") and transformer.is_gated:
            halves = [one.output_elements // 2] * 2
        for part, elements in enumerate(halves):
            number += 1
            if number % 2 and (keeps_unread or one.name not in ends):
                is_key = one.name == "attention.qkv" and part > 0
                way = "whole" if one.name.startswith(INDEXER) else "stream"
                kept["keys" if is_key else "tensor" if one.name in _TENSOR_SPLIT else way] += elements
    return Kept(**kept)


@lru_cache(maxsize=1_024)
def _kept_of(
    transformer: Transformer, kind: LayerKind, among: frozenset[str] | None = None, *, is_weighted: bool = False
) -> tuple[Kept, Kept]:
    """Return what :func:`kept_elements` does of a layer."""
    return kept_elements(transformer, block_operators(transformer, kind), among, is_weighted=is_weighted)


def kept_elements(
    transformer: Transformer,
    operators: Sequence[TransformerOperator],
    among: Set[str] | None = None,
    *,
    is_weighted: bool = False,
) -> tuple[Kept, Kept]:
    """Return the numbers of one sample that some backward pass reads: those that GEMMs alone read, and the others.

    Scores, and what leaves the last operator, are left out; logits too. ``among``: of the outputs of these operators.
    ``is_weighted``: routed experts' activations are, so that nothing reads what experts put out.
    """
    readers: dict[str, set[str]] = {}
    for operator in operators:
        # Without a gradient of its weights a product needs nothing but these to give that of its input.
        is_still = operator.is_frozen and operator.kind in _PRODUCTS and not operator.adapters
        for name in operator.inputs:  # attention's own backward pass reads what it puts out
            is_unread = is_still and name != "attention.context"
            readers.setdefault(name, set()).add("frozen" if is_unread else operator.kind)
    sizes = {INPUT: transformer.hidden_size * transformer.sequence_length}
    sizes.update({one.name: one.output_elements for one in operators})
    sums: tuple[dict[str, int], dict[str, int]] = ({}, {})
    left_out = (
        _SCORES
        | (_UNREAD_WHERE_WEIGHTED if is_weighted else frozenset())
        | {one.name for one in operators if one.is_in_place and one.kind in _REMADE}
    )
    for name, kinds in readers.items():
        if name in left_out or not kinds & _NEED_INPUT or (among is not None and name not in among):
            continue
        way, elements = "stream", sizes[name]
        total = sums[not ((kinds & _NEED_INPUT) <= _PRODUCTS and name != "attention.context")]
        if name in _STATES and transformer.latent is None:
            keys = 2 * transformer.num_kv_heads * transformer.head_size * transformer.sequence_length
            total["keys"] = total.get("keys", 0) + keys
            way, elements = "tensor", elements - keys
        elif name in _TENSOR_SPLIT:
            way = "tensor"
        elif name.startswith(INDEXER):
            way = "whole"
        elif name in _ROUTED_SPLIT:
            way = "routed"
        elif name in _DISPATCHED:
            way = "dispatched"
        total[way] = total.get(way, 0) + elements
    return Kept(**sums[0]), Kept(**sums[1])
