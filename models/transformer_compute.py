"""Seconds that a transformer's layers, embedding and head compute on one device, for many layouts at once.

Every operator of :mod:`planner.models.transformer_operators` is timed by :mod:`planner.models.roofline`. Tensor
parallelism cuts the columns of a part's first product and the inner width of its last (M. Shoeybi et al., arXiv
1909.08053, section 3); context parallelism cuts the tokens; experts see the tokens of all ranks that share them.
Backward has two products for one of forward (section 5.1 of D. Narayanan et al., SC21, arXiv 2104.04473). Cost depends
on few decisions, so distinct ones are computed once; equal layers are one layer, times their number.

Leaves out exchange between devices and the floor that launching kernels sets: :mod:`planner.models.transformer_time`.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from planner.models.layouts import Ints, Layouts, Recompute
from planner.models.operators import Operator, Product
from planner.models.roofline import (
    Constants,
    DeviceRates,
    Floats,
    attention_s,
    misalignment,
    misalignments,
    move_s,
    product_s,
)
from planner.models.transformer_operators import block_operators, embedding_operators, head_operators
from planner.transformer import LayerKind, Transformer

__all__ = ["LayerSeconds", "Software", "Split", "embedding_s", "head_s", "layer_seconds"]

_BYTES = 2  # of an activation
SCORE_BACKWARD = 1.7  # bytes moved backward over forward, per score: counted below
ELEMENT_BACKWARD = 1.9  # the same of norms, activations and residual additions
FLASH_BACKWARD = 2.5  # five products for two: the scores are computed again (T. Dao, arXiv 2307.08691, section 3)
_LOSS_BYTES = 42.0  # of one logit both ways, not fused: in four bytes, read or written ten times, once in two
_DROPOUT_BYTES = 5  # read, write, and the mask
_ROUTED = "feed_forward.experts"  # what the operators of routed experts are called
_ROW_PARALLEL = ("attention.output", "feed_forward.down", "feed_forward.experts.down", "feed_forward.shared.down")
_LAST = ("feed_forward.down", "feed_forward.experts.down", "feed_forward.shared.down")
_ROUTERS = ("feed_forward.router", "feed_forward.shared.gate")
_REPLICATED = ("attention.query_down", "attention.key_value_down", *_ROUTERS)
_BETWEEN = ("norm", "residual")  # kinds that tensor parallelism does not split, but sequence parallelism does


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What a training program does; one figure of it is fitted, the launch floor.

    Attributes
    ----------
    name
        Of the program and its era.
    launch_s
        Floor of one layer's forward pass: the host's time to launch its kernels.
    has_flash_attention
        Whether attention is one kernel that skips masked scores; else scores are written to memory, all of them.
    has_dropout
        Whether residual additions drop out.
    has_fused_loss
        Whether the loss reads and writes the logits once each way.
    accumulation_bytes
        Moved per parameter and micro-batch to add up gradients.
    gradient_bytes
        Of a gradient, as it is exchanged.
    optimizer_bytes
        Moved per parameter by the optimiser's step.
    bucket_bytes
        Largest piece of gradients that is exchanged at once.
    reduces_every_microbatch
        Whether ZeRO-2 and 3 reduce the gradients of every micro-batch.
    shards_gradients
        Whether ZeRO-1 reduces gradients by a reduce-scatter; else by an all-reduce.
    attention_ratio
        How fast its flash attention is, over FlashAttention-2.
    pads_vocabulary
        Whether the vocabulary is filled up to a width that every rank's tensor cores like.
    selective_share
        How much of all but attention selective recomputation repeats, in attention's place; 0: attention alone.
    stops_early
        Whether recomputation of a layer stops where nothing more is read: its last products are left out.
    element_passes
        Bytes that norms, activations and the like move, over those of one kernel for each.
    """

    name: str
    launch_s: float
    has_flash_attention: bool
    has_dropout: bool
    has_fused_loss: bool
    accumulation_bytes: float
    gradient_bytes: float = 2.0
    optimizer_bytes: float = 30.0
    bucket_bytes: float = float("inf")
    reduces_every_microbatch: bool = False
    shards_gradients: bool = True
    attention_ratio: float = 1.0
    pads_vocabulary: bool = True
    selective_share: float = 0.0
    stops_early: bool = False
    element_passes: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The decisions that a layer's computation depends on, as arrays of floats."""

    tensor: Floats
    context: Floats
    expert: Floats
    microbatch: Floats
    is_sequence_parallel: Floats

    @classmethod
    def of(cls, layouts: Layouts) -> "Split":
        """Return the decisions of some layouts."""
        length = len(layouts)

        def floats(name: str) -> Floats:
            return np.broadcast_to(np.asarray(layouts.arrays()[name], dtype=float), length)

        return cls(**{name: floats(name) for name in cls.__slots__})

    @property
    def between(self) -> Floats:
        """Share of a micro-batch's tokens that a rank holds between the tensor-parallel products."""
        return np.where(self.is_sequence_parallel > 0, 1 / self.tensor, 1.0) / self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """Seconds of one layer and micro-batch on the device; ``attention_s`` and ``last_s`` are part of ``forward_s``.

    ``last_s``: of what no gradient of the layer reads: its last products, and the addition behind them.
    """

    forward_s: Floats
    backward_s: Floats
    attention_s: Floats
    last_s: Floats

    def again_s(self, recompute: Ints, software: Software) -> Floats:
        """Return what the backward pass computes again."""
        full = np.asarray(recompute) == Recompute.FULL
        selective = np.asarray(recompute) == Recompute.SELECTIVE
        whole = self.forward_s - self.last_s if software.stops_early else self.forward_s
        share = software.selective_share
        some = share * (self.forward_s - self.attention_s) if share else self.attention_s
        return np.where(full, whole, np.where(selective, some, 0.0))


@cache
def _block(transformer: Transformer, kind: LayerKind) -> tuple[Operator, ...]:
    """Return the operators of one block, built once."""
    return block_operators(transformer, kind)


@cache
def _embedding(transformer: Transformer) -> tuple[Operator, ...]:
    """Return the operators of the embedding, built once."""
    return embedding_operators(transformer)


@cache
def _head(transformer: Transformer) -> tuple[Operator, ...]:
    """Return the operators of the head, built once."""
    return head_operators(transformer)


def layer_seconds(
    transformer: Transformer,
    kind: LayerKind,
    split: Split,
    *,
    rates: DeviceRates,
    software: Software,
    constants: Constants,
    expert_imbalance: float = 1.0,
) -> LayerSeconds:
    """Return the seconds of one layer of a kind, gradients' accumulation left out.

    ``expert_imbalance``: tokens of the fullest rank's experts, over the mean; >= 1.
    """
    forward, backward, last = (np.zeros(np.shape(split.tensor)) for _ in range(3))
    operators = _block(transformer, kind)
    for one in operators:
        if one.kind == "attention":
            continue
        fuller = expert_imbalance if one.name.startswith(_ROUTED) else 1.0
        if one.product is not None:
            ahead, back = _product_pair_s(one, split, rates=rates, constants=constants, tokens=fuller)
        elif one.kind == "softmax" and one.name.startswith("attention"):
            continue
        else:
            ahead = _element_s(one, split, rates=rates, software=software) * constants.element_ratio * fuller
            back = ELEMENT_BACKWARD * ahead
        forward, backward = forward + ahead, backward + back
        last = last + ahead if one.name in _LAST or one == operators[-1] else last
    attention, attention_back = _attention_pair_s(
        transformer, operators, split, rates=rates, software=software, constants=constants
    )
    return LayerSeconds(
        forward_s=forward + attention, backward_s=backward + attention_back, attention_s=attention, last_s=last
    )


def _shape(one: Operator, product: Product, split: Split) -> tuple[Floats, Floats, Floats, Floats]:
    """Return rows, inner width, columns and count of an operator's product on one rank."""
    rows = product.rows * split.microbatch / split.context
    inner, columns, count = (np.full(np.shape(rows), float(n)) for n in (product.inner, product.columns, product.count))
    if one.name.startswith(_ROUTED):
        rows, count = rows * split.expert, count / split.expert
    if one.name in _REPLICATED:
        rows = product.rows * split.microbatch * split.between
    elif one.name in _ROW_PARALLEL:
        inner = inner / split.tensor
    else:
        columns = columns / split.tensor
    return rows, inner, columns, count


def _product_pair_s(
    one: Operator, split: Split, *, rates: DeviceRates, constants: Constants, tokens: float = 1.0
) -> tuple[Floats, Floats]:
    """Return the seconds of a product, and of the two that give the gradients of its input and its weights.

    ``tokens``: how many there are, over those that the operator says.
    """
    if one.product is None:
        raise ValueError(f"the operator {one.name} is no product")
    rows, inner, columns, count = _shape(one, one.product, split)
    rows = rows * tokens
    forward = product_s(rows, inner, columns, count=count, rates=rates, constants=constants)
    input_gradient = product_s(rows, columns, inner, count=count, rates=rates, constants=constants)
    weight_gradient = product_s(inner, rows, columns, count=count, rates=rates, constants=constants)
    return forward, input_gradient + weight_gradient


def _element_s(one: Operator, split: Split, *, rates: DeviceRates, software: Software) -> Floats:
    """Return the seconds of an operator that moves memory: every number read or written once."""
    moved = _BYTES * (one.input_elements + one.output_elements)
    if one.kind == "residual" and software.has_dropout:
        moved += _DROPOUT_BYTES * one.output_elements
    is_between = one.kind in _BETWEEN
    share = split.between if is_between else 1 / (split.tensor * split.context)
    return move_s(moved * software.element_passes * split.microbatch * share, rates)


def _attention_pair_s(
    transformer: Transformer,
    operators: tuple[Operator, ...],
    split: Split,
    *,
    rates: DeviceRates,
    software: Software,
    constants: Constants,
) -> tuple[Floats, Floats]:
    """Return the seconds of scores, softmax and their product with the values, forward and backward.

    Unfused, each score is written by the first product, read and written by softmax and by dropout (with a mask of one
    byte), and read by the second product: 11 bytes. Backward moves 19: counted for the kernels of Megatron-LM.
    """
    pair = [one for one in operators if one.kind == "attention"]
    ranks = split.microbatch / (split.tensor * split.context)
    if software.has_flash_attention:
        forward = attention_s(sum(one.forward_flop for one in pair) * ranks / software.attention_ratio, rates)
        return forward, FLASH_BACKWARD * forward
    whole = 2 if transformer.is_causal else 1  # a masked score is computed all the same
    flop = sum(one.forward_flop for one in pair) * whole * ranks
    scores = transformer.num_heads * transformer.sequence_length**2 * ranks
    slow = 1 + constants.misaligned_head_cost * misalignment(transformer.head_size)
    products = flop / rates.multiplied_flop_per_s
    moved = move_s(scores * constants.score_bytes, rates)
    return slow * (products + moved), slow * (2 * products + SCORE_BACKWARD * moved)


def embedding_s(transformer: Transformer, split: Split, *, rates: DeviceRates, constants: Constants) -> Floats:
    """Return the seconds of the embedding of one micro-batch, both ways."""
    total = np.zeros(np.shape(split.tensor))
    for one in _embedding(transformer):
        if one.product is not None:
            total = total + sum(_product_pair_s(one, split, rates=rates, constants=constants))
        elif one.kind != "input":
            moved = _BYTES * 2 * one.output_elements * split.microbatch * split.between
            total = total + constants.element_ratio * (1 + ELEMENT_BACKWARD) * move_s(moved, rates)
    return total


def head_s(
    transformer: Transformer,
    split: Split,
    *,
    rates: DeviceRates,
    software: Software,
    constants: Constants,
) -> Floats:
    """Return the seconds of the head and the loss of one micro-batch, both ways; the vocabulary is split by tensor."""
    total = np.zeros(np.shape(split.tensor))
    for one in _head(transformer):
        if one.product is not None:
            slow: Floats | float = 1.0
            if not software.pads_vocabulary:
                slow = 1 + constants.misaligned_cost * misalignments(transformer.vocabulary_size // split.tensor)
            total = total + slow * sum(_product_pair_s(one, split, rates=rates, constants=constants))
        elif one.kind == "loss":
            moved_bytes = 4.0 * _BYTES if software.has_fused_loss else _LOSS_BYTES
            logits = one.input_elements * split.microbatch / (split.tensor * split.context)
            total = total + move_s(logits * moved_bytes, rates)
        else:
            ahead = _element_s(one, split, rates=rates, software=software) * constants.element_ratio
            total = total + (1 + ELEMENT_BACKWARD) * ahead
    return total
