"""What is computed, on what shapes and with how many parameters: operators of a sample, their FLOP, and their shares.

A multiply-add counts 2 FLOP. Backward is twice forward: the gradients of the input and of the weights, or of both
factors where both are activations (D. Narayanan et al., SC21, arXiv 2104.04473, section 5.1).

**A transformer** is a list of operators in order of execution: the embedding, one block of each kind, and the head.
Operators read one another by name; what enters a part is called ``input``, what leaves a block is its last operator.
Causal attention counts half of each of its two GEMMs; that leaves out half a diagonal. All but the GEMMs (norms,
softmax, activations, residual additions, rotary positions) has no multiply-adds and moves memory: its elements are
given. Scores are in place: a fused kernel keeps none, and one that does keep them adds what ``attention.scores`` puts
out. Routed experts are taken to be evenly loaded, and to drop no token. Leaves out dropout, the optimiser, and what a
kernel computes twice (flash attention repeats the scores in backward). Sources: A. Vaswani et al., arXiv 1706.03762;
gated parts: N. Shazeer, arXiv 2002.05202; latent attention and shared experts: DeepSeek-AI, arXiv 2405.04434, section
2.

**On one device** of a tensor-parallel group GEMMs are split by columns or by rows as Megatron does (M. Shoeybi et al.,
arXiv 1909.08053, section 3): queries, keys, values and the first matrix of a feed-forward part by columns, with their
biases; the second matrices by rows, their biases whole on every device. Norms, routers, narrow layers of latent
attention and learned positions are whole. With fewer heads of keys than devices each device keeps a whole head. Experts
are spread over expert x tensor devices. The vocabulary is padded to a multiple of 128 x tensor, and split.

**Any network's layers** are also counted as the heterogeneous-PS model does, its equations 3, 4 and 20 to 27 (Y. Zeng
et al., Int. J. Intelligent Systems, 2023, doi:10.1155/2023/2663115): every activation is a sigmoid, evaluated as a
Taylor series. Leaves out biases in the forward pass, batch norm, and pooling unless a :class:`Counting` adds it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

import numpy as np

from planner.cost import Floats
from planner.dnn import Dnn, Layer, Tensor
from planner.errors import ModelError
from planner.models.layouts import Layouts
from planner.transformer import Experts, Image, LatentAttention, LayerKind, Transformer

FLOP_PER_MULTIPLY_ADD = 2
BACKWARD_PER_FORWARD = 2
INPUT = "input"  # what enters a list of operators


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """``count`` products of a ``rows x inner`` by an ``inner x columns`` matrix, for one sample.

    ``rows`` may be broken: the share of one sample's tokens that an expert gets.
    """

    rows: float
    inner: int
    columns: int
    count: int = 1

    def __str__(self) -> str:
        """Return ``96 x (2048 x 128 x 2048)``: rows, inner width and columns."""
        once = f"{self.rows:.12g} x {self.inner} x {self.columns}"
        return once if self.count == 1 else f"{self.count} x ({once})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator.

    Attributes
    ----------
    name
        Within its part of the network, e.g. ``attention.qkv``.
    kind
        input, embedding, matmul, router, attention (a product of two activations), softmax, norm, rotary, activation,
        dispatch, combine, residual, pooling or loss.
    inputs
        Names of the operators that it reads, or :data:`INPUT`.
    output_shape
        Of one sample: (features, tokens, 1), as an image of one column, so that all that is said of images holds.
    input_elements
        Numbers that it reads for one sample; weights are left out.
    num_multiply_adds
        Of one sample, forward. Half of the product's where attention is causal.
    tensors
        What is trained. Logits that share the embedding's matrix have none, though their product reads it.
    product
        The shape of its matrix product, where it is one.
    is_in_place
        Nothing more is kept for the backward pass: the output overwrites the input, or is computed again there.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    output_shape: tuple[int, ...]
    input_elements: int
    num_multiply_adds: int = 0
    tensors: tuple[Tensor, ...] = ()
    product: Product | None = None
    is_in_place: bool = False

    @property
    def output_elements(self) -> int:
        """Numbers that it puts out for one sample."""
        return prod(self.output_shape)

    @property
    def weight_elements(self) -> int:
        """Parameters, biases included."""
        return sum(tensor.num_elements for tensor in self.tensors)

    @property
    def forward_flop(self) -> int:
        """FLOP of one sample, forward."""
        return FLOP_PER_MULTIPLY_ADD * self.num_multiply_adds

    @property
    def backward_flop(self) -> int:
        """FLOP of one sample, backward."""
        return BACKWARD_PER_FORWARD * self.forward_flop


class OperatorList:
    """Operators in order of execution; each is appended with the names of those it reads, and gives back its own name.

    Parameters
    ----------
    width, num_tokens
        Of the stream that enters, one sample.
    has_scale, has_shift
        Whether norms have a scale, and a shift.
    """

    def __init__(self, *, width: int, num_tokens: int, has_shift: bool, has_scale: bool = True) -> None:
        self.width = width
        self.num_tokens = num_tokens
        self._has_scale = has_scale
        self._has_shift = has_shift
        self._found: dict[str, Operator] = {}

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All there are, in order."""
        return tuple(self._found.values())

    def elements_of(self, name: str) -> int:
        """Return what an operator, or the stream that enters, puts out for one sample."""
        return self._found[name].output_elements if name in self._found else self.width * self.num_tokens

    def append(self, operator: Operator) -> str:
        """Append an operator."""
        self._found[operator.name] = operator
        return operator.name

    def move(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        features: int | None = None,
        *,
        num_tokens: int | None = None,
        input_elements: int | None = None,
        tensors: tuple[Tensor, ...] = (),
        is_in_place: bool = False,
    ) -> str:
        """Append an operator without multiply-adds; by default of the stream's shape, reading its inputs whole."""
        read = sum(map(self.elements_of, inputs)) if input_elements is None else input_elements
        shape = (features or self.width, num_tokens or self.num_tokens, 1)
        return self.append(
            Operator(
                name=name,
                kind=kind,
                inputs=tuple(inputs),
                output_shape=shape,
                input_elements=read,
                tensors=tensors,
                is_in_place=is_in_place,
            )
        )

    def norm(self, name: str, source: str, features: int | None = None, *, num_scales: int | None = None) -> str:
        """Append a norm of the first ``features`` numbers of each token (by default all), with so many scales."""
        whole = self.elements_of(source) // self.num_tokens if features is None else features
        size = num_scales or whole
        shift = (Tensor(name="shift", num_elements=size, role="shift"),) if self._has_shift else ()
        scale = (Tensor(name="scale", num_elements=size, role="scale"),) if self._has_scale else ()
        read = whole * self.num_tokens
        return self.move(name, "norm", (source,), whole, input_elements=read, tensors=(*scale, *shift))

    def table(self, name: str, source: str, num_rows: int, *, is_in_place: bool = False) -> str:
        """Append a look-up in a table, added to the stream where it is in place."""
        weight = Tensor(name="weight", num_elements=num_rows * self.width)
        return self.move(name, "embedding", (source,), tensors=(weight,), is_in_place=is_in_place)

    def matmul(
        self,
        name: str,
        source: str,
        *,
        inner: int,
        columns: int,
        has_bias: bool,
        rows: int | None = None,
        kind: str = "matmul",
        has_weight: bool = True,
    ) -> str:
        """Append the product of ``rows`` tokens (by default all) with an ``inner x columns`` matrix of weights."""
        used = self.num_tokens if rows is None else rows
        weight = (Tensor(name="weight", num_elements=inner * columns),) if has_weight else ()
        bias = (Tensor(name="bias", num_elements=columns, role="bias"),) if has_bias else ()
        return self.append(
            Operator(
                name=name,
                kind=kind,
                inputs=(source,),
                output_shape=(columns, used, 1),
                input_elements=used * inner,
                num_multiply_adds=used * inner * columns,
                tensors=weight + bias,
                product=Product(rows=used, inner=inner, columns=columns),
            )
        )


# -- FLOP of one training iteration, counted from the layers of any network --------------------------------------------

_COUNTED_BY_WEIGHTS = ("convolution", "fully_connected")
Variant = Literal["corrected", "printed"]
BackwardCount = Literal["once", "per_sample"]


def flop_per_weight(num_taylor_terms: int = 20) -> int:
    """Return the backward FLOP of one weight (eqs. 23, 25 and 26).

    Notes
    -----
    ``6 + sig`` with ``sig = 2 + x`` for the sigmoid and ``x = 1 + 4 i`` for the exponential function's Taylor series.

    >>> flop_per_weight(), flop_per_weight(19)
    (89, 85)
    """
    if num_taylor_terms < 1:
        raise ModelError(f"a Taylor series has at least 1 term, not {num_taylor_terms}.")
    return 6 + 2 + 1 + 4 * num_taylor_terms


FLOP_PER_WEIGHT = flop_per_weight()  # 89: eq. 23, as the text has it
PUBLISHED_FLOP_PER_WEIGHT = flop_per_weight(19)  # 85: what Table 1 and every prediction of the paper use
FLOP_PER_BIAS = 2  # eq. 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How the published counts differ from the equations; by default, not at all.

    Attributes
    ----------
    ignored
        Layers whose names contain this text count nothing, e.g. the shortcuts of a ResNet; empty for none.
    flop_per_output
        Layer -> FLOP per output element that are counted beside the multiply-adds: max pooling.
    output_pixels
        Layer -> output height x width to count instead of the layer's own.
    layer_flop
        Layer -> FLOP that were typed instead of counted.
    input_channels
        Layer -> input channels (or features) to count its weights with, instead of its own.
    variant
        ``printed`` takes eq. 20 at its word, without the width of the output.
    """

    ignored: str = ""
    flop_per_output: Mapping[str, float] = field(default_factory=dict)
    output_pixels: Mapping[str, int] = field(default_factory=dict)
    layer_flop: Mapping[str, float] = field(default_factory=dict)
    input_channels: Mapping[str, int] = field(default_factory=dict)
    variant: Variant = "corrected"

    def layers_of(self, dnn: Dnn) -> tuple[Layer, ...]:
        """Return the layers that count; raise ModelError if a name is none of the network's."""
        named = {*self.flop_per_output, *self.output_pixels, *self.layer_flop, *self.input_channels}
        if unknown := named - {layer.name for layer in dnn.layers}:
            raise ModelError(f"{dnn.name} has no layer {sorted(unknown)[0]!r}, for which a counting is given.")
        return tuple(layer for layer in dnn.layers if not self.ignored or self.ignored not in layer.name)


def layer_forward_flop(layer: Layer, *, variant: Variant = "corrected", output_pixels: int | None = None) -> float:
    """Return the FLOP of one sample: ``2 inch kh kw outn outh outw`` (eqs. 3, 4 and 20), 0 without multiply-adds.

    Parameters
    ----------
    variant
        ``printed`` is eq. 20 as it stands, without ``outw``, which Table 1 does have.
    output_pixels
        ``outh outw``, if not the layer's own.

    Notes
    -----
    ``inch kh kw outn`` is the number of weights. Fully-connected layers have ``kh = kw = outh = outw = 1``. The paper
    knows no other layers with multiply-adds; those of a transformer count 2 FLOP each: attention multiplies without
    weights, and an embedding has weights that it does not multiply.
    """
    if layer.kind not in _COUNTED_BY_WEIGHTS:
        return 2.0 * layer.num_multiply_adds
    height, width = layer.output_shape[1:] if len(layer.output_shape) > 1 else (1, 1)
    pixels = height if variant == "printed" else height * width
    return 2.0 * layer.num_weights * (pixels if output_pixels is None else output_pixels)


def forward_flop(dnn: Dnn, counting: Counting | None = None) -> float:
    """Return the FLOP of one sample's forward pass (eq. 21)."""
    convention = counting or Counting()
    return sum(_counted_flop(layer, convention) for layer in convention.layers_of(dnn))


def _counted_flop(layer: Layer, counting: Counting) -> float:
    """Return one layer's forward FLOP under a convention."""
    if layer.name in counting.layer_flop:
        return counting.layer_flop[layer.name]
    pixels = counting.output_pixels.get(layer.name)
    beside = counting.flop_per_output.get(layer.name, 0.0) * layer.num_output_elements
    return layer_forward_flop(layer, variant=counting.variant, output_pixels=pixels) + beside


def counted_weights(dnn: Dnn, counting: Counting | None = None) -> int:
    """Return the number of weights, biases and batch norm left out, under a convention."""
    convention = counting or Counting()
    return sum(_weights_of(layer, dnn, convention) for layer in convention.layers_of(dnn))


def _weights_of(layer: Layer, dnn: Dnn, counting: Counting) -> int:
    """Return one layer's weights, with as many input channels as the convention says."""
    channels = counting.input_channels.get(layer.name)
    if channels is None:
        return layer.num_weights
    (source,) = (one for one in dnn.layers if one.name == dnn.inputs_of(layer.name)[0])
    return layer.num_weights * channels // source.output_shape[0]


def num_biases(dnn: Dnn) -> int:
    """Return the number of biases: ``parab`` of eq. 22, which print calls the size of the output tensors."""
    return sum(one.num_elements for layer in dnn.layers for one in layer.tensors if one.role == "bias")


def num_pushes(dnn: Dnn, *, num_unexplained: int) -> int:
    """Return the pushes of an iteration (Table 1): variables, trained or moving, and a few more that the paper found.

    Notes
    -----
    TensorFlow sends every variable on its own. The rest was measured, not modelled: 2, but 3 for AlexNet and 4 for
    OverFeat.
    """
    return sum(len(layer.tensors) for layer in dnn.layers) + num_unexplained


def backward_flop(
    *, num_weights: float, num_biases: float, per_weight: float = FLOP_PER_WEIGHT, per_bias: float = FLOP_PER_BIAS
) -> float:
    """Return the FLOP of one backward pass, whatever the batch (eq. 22).

    Notes
    -----
    The text takes ``para`` now for all parameters and now for the weights; eqs. 23 and 24 make sense for weights and
    biases. Published figures leave the biases out (``num_biases=0``) and count 85 per weight.

    >>> backward_flop(num_weights=100, num_biases=10)
    8920
    """
    if min(num_weights, num_biases, per_weight, per_bias) < 0:
        raise ModelError(
            f"counts and FLOP must be >= 0, not {num_weights:g} weights of {per_weight:g} FLOP and {num_biases:g} "
            f"biases of {per_bias:g}."
        )
    return num_weights * per_weight + num_biases * per_bias


def iteration_flop(
    *, forward_flop: float, backward_flop: float, batch_size: float, backward: BackwardCount = "once"
) -> float:
    """Return the FLOP of one iteration (eq. 27): ``batch x forward + backward``.

    Parameters
    ----------
    batch_size
        The worker's own share of the batch; > 0.
    backward
        ``once`` an iteration is the paper's definition; ``per_sample`` is the physical one, since every sample has
        its own error to propagate.

    >>> iteration_flop(forward_flop=10, backward_flop=30, batch_size=4)
    70
    >>> iteration_flop(forward_flop=10, backward_flop=30, batch_size=4, backward="per_sample")
    160
    """
    if not (batch_size > 0 and math.isfinite(batch_size)):
        raise ModelError(f"a worker's share of the batch must be finite and > 0, not {batch_size:g} samples.")
    return batch_size * forward_flop + (batch_size if backward == "per_sample" else 1) * backward_flop


# -- one block of a transformer: attention, then a feed-forward part, dense or of experts ------------------------------


def list_for(transformer: Transformer) -> OperatorList:
    """Return an empty list of operators on the stream of a transformer."""
    has_shift = transformer.norm == "layer_norm" and transformer.has_norm_biases
    return OperatorList(
        width=transformer.hidden_size,
        num_tokens=transformer.sequence_length,
        has_scale=transformer.has_norm_scales,
        has_shift=has_shift,
    )


def block_operators(transformer: Transformer, kind: LayerKind) -> tuple[Operator, ...]:
    """Return one block of a kind; raise ValueError for experts where there are none."""
    part = list_for(transformer)

    def attend(source: str) -> str:
        return _attention(part, transformer, source)

    def feed_forward(source: str) -> str:
        if kind == "dense":
            return _feed_forward(part, transformer, source, "feed_forward", transformer.feed_forward_size)
        return _experts(part, transformer, source)

    if transformer.norm_position in ("shared", "parallel"):
        is_shared = transformer.norm_position == "shared"
        read = part.norm("norm" if is_shared else "attention.norm", INPUT)
        attended = attend(read)
        fed = feed_forward(read if is_shared else part.norm("feed_forward.norm", INPUT))
        part.move("add", "residual", (attended, fed, INPUT), is_in_place=True)
        return part.operators
    middle = _half(part, transformer, "attention", INPUT, attend)
    _half(part, transformer, "feed_forward", middle, feed_forward)
    return part.operators


def _half(part: OperatorList, transformer: Transformer, name: str, entry: str, inner: Callable[[str], str]) -> str:
    """Append one half of a block with its norms and its residual addition; return what leaves it."""
    position = transformer.norm_position
    read = part.norm(f"{name}.norm", entry) if position in ("before", "both") else entry
    last = inner(read)
    if position in ("both", "output"):
        last = part.norm(f"{name}.post_norm", last)
    last = part.move(f"{name}.add", "residual", (last, entry), is_in_place=True)
    return part.norm(f"{name}.norm", last) if position == "after" else last


def _attention(part: OperatorList, transformer: Transformer, source: str) -> str:
    """Append attention: projections, scores, softmax, their product with the values, and the output's projection."""
    tokens, heads = part.num_tokens, transformer.num_heads
    size, value_size = transformer.head_size, transformer.value_head_size
    latent = transformer.latent
    states = _queries(part, transformer, source) if latent is None else _latent(part, transformer, latent, source)
    states_read = (heads + transformer.num_kv_heads) * size * tokens
    done = tokens * tokens * heads // (2 if transformer.is_causal else 1)
    scores = part.append(
        Operator(
            name="attention.scores",
            kind="attention",
            inputs=(states,),
            output_shape=(heads * tokens, tokens, 1),
            input_elements=states_read,
            num_multiply_adds=done * size,
            product=Product(rows=tokens, inner=size, columns=tokens, count=heads),
            is_in_place=True,
        )
    )
    weights = part.move("attention.softmax", "softmax", (scores,), heads * tokens, is_in_place=True)
    context = part.append(
        Operator(
            name="attention.context",
            kind="attention",
            inputs=(weights, states),
            output_shape=(heads * value_size, tokens, 1),
            input_elements=heads * tokens * tokens + transformer.num_kv_heads * value_size * tokens,
            num_multiply_adds=done * value_size,
            product=Product(rows=tokens, inner=tokens, columns=value_size, count=heads),
        )
    )
    return part.matmul(
        "attention.output", context, inner=heads * value_size, columns=part.width, has_bias=transformer.has_output_bias
    )


def _queries(part: OperatorList, transformer: Transformer, source: str) -> str:
    """Append the projection to queries, keys and values, their norms, and rotary positions; return them all."""
    size, num_turned = transformer.head_size, transformer.num_heads + transformer.num_kv_heads
    columns = (num_turned + transformer.num_kv_heads) * size
    states = part.matmul(
        "attention.qkv", source, inner=part.width, columns=columns, has_bias=transformer.has_qkv_biases
    )
    if transformer.has_query_key_norms:
        states = part.norm("attention.query_key_norm", states, num_scales=transformer.query_key_norm_scales)
    if transformer.positions == "rotary":
        read = num_turned * size * part.num_tokens
        states = part.move("attention.rotary", "rotary", (states,), columns, input_elements=read, is_in_place=True)
    return states


def _latent(part: OperatorList, transformer: Transformer, latent: LatentAttention, source: str) -> str:
    """Append the narrow layers of latent attention; return queries, keys and values as every head reads them."""
    heads, has_bias = transformer.num_heads, transformer.has_qkv_biases
    rank, queries = latent.query_rank, heads * transformer.head_size
    query, inner = source, part.width
    if rank is not None:
        query = part.matmul("attention.query_down", source, inner=part.width, columns=rank, has_bias=has_bias)
        query, inner = part.norm("attention.query_norm", query), rank
    query = part.matmul("attention.query", query, inner=inner, columns=queries, has_bias=has_bias)
    narrow = latent.key_value_rank + latent.rope_size
    down = part.matmul("attention.key_value_down", source, inner=part.width, columns=narrow, has_bias=has_bias)
    normed = part.norm("attention.key_value_norm", down, latent.key_value_rank)
    columns = heads * (latent.nope_size + latent.value_size)
    key_value = part.matmul(
        "attention.key_value", normed, inner=latent.key_value_rank, columns=columns, has_bias=has_bias
    )
    # Every head gets a key of its own, of which the rotary part is copied: queries, keys and values are written anew.
    return part.move("attention.rotary", "rotary", (query, key_value, down), 2 * queries + heads * latent.value_size)


def _feed_forward(part: OperatorList, transformer: Transformer, source: str, name: str, size: int) -> str:
    """Append two matrices with an activation between them; the first is twice as wide where it is gated."""
    wide, has_bias = (2 * size if transformer.is_gated else size), transformer.has_biases
    up = part.matmul(f"{name}.up", source, inner=part.width, columns=wide, has_bias=has_bias)
    active = part.move(f"{name}.activation", "activation", (up,), size)
    return part.matmul(f"{name}.down", active, inner=size, columns=part.width, has_bias=has_bias)


def _experts(part: OperatorList, transformer: Transformer, source: str) -> str:
    """Append router, dispatch, the routed experts, their weighted sum, and the shared experts; return the sum."""
    experts = transformer.experts
    if experts is None:
        raise ValueError("the network has no experts, so none of its layers is of the kind 'moe'.")
    chosen = part.num_tokens * experts.top_k
    router = part.matmul(
        "feed_forward.router",
        source,
        inner=part.width,
        columns=experts.num_experts,
        has_bias=experts.has_router_bias,
        kind="router",
    )
    gates = part.move("feed_forward.gates", "softmax", (router,), experts.top_k)
    sent = part.move(
        "feed_forward.dispatch", "dispatch", (source, gates), num_tokens=chosen, input_elements=chosen * part.width
    )
    wide = 2 * experts.expert_size if transformer.is_gated else experts.expert_size
    has_bias = transformer.has_biases
    up = _grouped(part, experts, "feed_forward.experts.up", sent, (part.width, wide), has_bias=has_bias)
    active = part.move("feed_forward.experts.activation", "activation", (up,), experts.expert_size, num_tokens=chosen)
    shape = (experts.expert_size, part.width)
    down = _grouped(part, experts, "feed_forward.experts.down", active, shape, has_bias=has_bias)
    ends = [part.move("feed_forward.combine", "combine", (down, gates))]
    if experts.num_shared:
        width = experts.num_shared * experts.shared_size
        ends.append(_feed_forward(part, transformer, source, "feed_forward.shared", width))
        if experts.has_shared_gate:
            gate = part.matmul(
                "feed_forward.shared.gate", source, inner=part.width, columns=1, has_bias=False, kind="router"
            )
            ends[1] = part.move("feed_forward.shared.weighed", "combine", (ends[1], gate), is_in_place=True)
        return part.move("feed_forward.sum", "residual", ends, is_in_place=True)
    return ends[0]


def _grouped(
    part: OperatorList, experts: Experts, name: str, source: str, shape: tuple[int, int], *, has_bias: bool
) -> str:
    """Append the product of every expert's matrix with the tokens that it got."""
    inner, columns = shape
    chosen, number = part.num_tokens * experts.top_k, experts.num_experts
    weight = Tensor(name="weight", num_elements=number * inner * columns)
    bias = (Tensor(name="bias", num_elements=number * columns, role="bias"),) if has_bias else ()
    return part.append(
        Operator(
            name=name,
            kind="matmul",
            inputs=(source,),
            output_shape=(columns, chosen, 1),
            input_elements=chosen * inner,
            num_multiply_adds=chosen * inner * columns,
            tensors=(weight, *bias),
            product=Product(rows=chosen / number, inner=inner, columns=columns, count=number),
        )
    )


# -- a whole transformer: embedding, one block of each kind, head ------------------------------------------------------

_LOGITS = "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Operators that stand ``count`` times in the network; ``kind`` is that of a block, else None."""

    name: str
    operators: tuple[Operator, ...]
    kind: LayerKind | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Flop:
    """FLOP of one sample."""

    forward_flop: int
    backward_flop: int

    @property
    def total_flop(self) -> int:
        """Both ways."""
        return self.forward_flop + self.backward_flop


def parts(transformer: Transformer) -> tuple[Part, ...]:
    """Return the embedding, one block of each kind with its count, and the head.

    The blocks stand in the order of ``Transformer.layer_kinds``, a head without operators is left out.
    """
    kinds = transformer.layer_kinds
    blocks = [
        Part(name=f"block ({kind})", kind=kind, count=kinds.count(kind), operators=block_operators(transformer, kind))
        for kind in dict.fromkeys(kinds)
    ]
    embedding = Part(name="embedding", operators=embedding_operators(transformer))
    head = Part(name="head", operators=head_operators(transformer))
    return (embedding, *blocks, head) if head.operators else (embedding, *blocks)


def flop_per_sample(
    transformer: Transformer,
    *,
    has_full_attention: bool = False,
    has_logits: bool = True,
    recomputes_blocks: bool = False,
) -> Flop:
    """Return the FLOP of one sample's forward and backward pass.

    Parameters
    ----------
    has_full_attention
        Count all scores although attention is causal: kernels without a mask compute them, and most papers count them.
    has_logits
        Whether the product with the vocabulary counts.
    recomputes_blocks
        Whether backward computes every block's forward pass again (full recomputation).

    Notes
    -----
    For a GPT with full attention the sum is ``72 s L h^2 (1 + s / 6h + V / 12Lh)``, with recomputation
    ``96 s L h^2 (1 + s / 6h + V / 16Lh)`` (D. Narayanan et al., SC21, arXiv 2104.04473, section 5.1): the six products
    of a block and the logits, nothing else.
    """
    counted = replace(transformer, is_causal=transformer.is_causal and not has_full_attention)
    blocks = others = 0
    for part in parts(counted):
        flop = part.count * sum(one.forward_flop for one in part.operators if has_logits or one.name != _LOGITS)
        blocks, others = (blocks, others + flop) if part.kind is None else (blocks + flop, others)
    forward = blocks + others
    again = blocks if recomputes_blocks else 0
    return Flop(forward_flop=forward, backward_flop=BACKWARD_PER_FORWARD * forward + again)


# -- before the blocks, and behind -------------------------------------------------------------------------------------


def embedding_operators(transformer: Transformer) -> tuple[Operator, ...]:
    """Return what stands before the first block; the first operator is the sample itself."""
    part = list_for(transformer)
    if transformer.image is None:
        last = part.move(INPUT, "input", (), 1)
        last = part.table("tokens", last, transformer.vocabulary_size)
    else:
        last = _patches(part, transformer.image)
    if transformer.positions == "learned":
        last = part.table("positions", last, transformer.num_positions, is_in_place=True)
    if transformer.num_token_types:
        last = part.table("token_types", last, transformer.num_token_types, is_in_place=True)
    if transformer.has_embedding_norm:
        part.norm("norm", last)
    return part.operators


def _patches(part: OperatorList, image: Image) -> str:
    """Append the image, its patches as tokens, and the token of the class."""
    shape = (image.num_channels, image.image_size, image.image_size)
    last = part.append(Operator(name=INPUT, kind="input", inputs=(), output_shape=shape, input_elements=0))
    last = part.matmul(
        "patches", last, inner=image.patch_elements, columns=part.width, has_bias=True, rows=image.num_patches
    )
    if not image.has_class_token:
        return last
    token = Tensor(name="weight", num_elements=part.width)
    return part.move("class_token", "embedding", (last,), tensors=(token,), is_in_place=True)


def head_operators(transformer: Transformer) -> tuple[Operator, ...]:
    """Return what stands behind the last block; nothing where that is the end."""
    part, image = list_for(transformer), transformer.image
    last = part.norm("norm", INPUT) if transformer.has_final_norm else INPUT
    ends = _logits(part, transformer, last)
    if image is not None:
        if not image.has_class_token:
            last = part.move("pooling", "pooling", (last,), num_tokens=1)
        if transformer.head == "classes":
            size = image.num_classes
            ends.append(part.matmul("classes", last, inner=part.width, columns=size, has_bias=True, rows=1))
    if transformer.has_pooler:
        pooled = part.matmul("pooler", last, inner=part.width, columns=part.width, has_bias=True, rows=1)
        pooled = part.move("pooler_activation", "activation", (pooled,), num_tokens=1)
        if transformer.head == "masked_language":
            ends.append(part.matmul("next_sentence", pooled, inner=part.width, columns=2, has_bias=True, rows=1))
    if ends:
        part.append(
            Operator(
                name="loss",
                kind="loss",
                inputs=tuple(ends),
                output_shape=(1,),
                input_elements=sum(map(part.elements_of, ends)),
            )
        )
    return part.operators


def _logits(part: OperatorList, transformer: Transformer, last: str) -> list[str]:
    """Append the logits of every token, if the network has any, and what stands before them alone."""
    is_masked = transformer.head == "masked_language"
    if not is_masked and transformer.head != "language":
        return []
    if is_masked:
        last = part.matmul("transform", last, inner=part.width, columns=part.width, has_bias=True)
        last = part.norm("transform_norm", part.move("transform_activation", "activation", (last,)))
    return [
        part.matmul(
            _LOGITS,
            last,
            inner=part.width,
            columns=transformer.vocabulary_size,
            has_bias=transformer.has_head_bias,
            has_weight=not transformer.has_tied_embeddings,
        )
    ]


# -- parameters on one device of a tensor-parallel group ---------------------------------------------------------------

PADDING = 128  # Megatron's --make-vocab-size-divisible-by
COLUMN_SPLIT = frozenset(
    {
        "attention.qkv",
        "attention.query",
        "attention.key_value",
        "feed_forward.up",
        "feed_forward.shared.up",
    }
)
_ROW_SPLIT = frozenset({"attention.output", "feed_forward.down", "feed_forward.shared.down"})
_ROUTED = "feed_forward.experts."


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters on one device, one element a layout.

    Attributes
    ----------
    shared
        Copied in every data-parallel and context-parallel rank.
    routed
        Of experts: copied in ``context x data / expert`` ranks.
    largest
        Of the largest matrix.
    matrices
        Of all matrices of a block, one expert counted.
    """

    shared: Floats
    routed: Floats
    largest: Floats
    matrices: Floats

    @property
    def all(self) -> Floats:
        """Both kinds."""
        return self.shared + self.routed


def block_parameters(transformer: Transformer, kind: LayerKind, layouts: Layouts) -> Parameters:
    """Return the parameters of one block on one device."""
    zero = np.zeros(1)
    shared, routed, largest, matrices = zero, zero, zero, zero
    for operator in block_operators(transformer, kind):
        is_routed = operator.name.startswith(_ROUTED)
        for tensor in operator.tensors:
            share = _share(transformer, operator, tensor.name, layouts)
            if is_routed:
                routed = routed + tensor.num_elements * share / layouts.expert
            else:
                shared = shared + tensor.num_elements * share
            if tensor.name == "weight":
                number = transformer.experts.num_experts if is_routed and transformer.experts else 1
                one = tensor.num_elements / number * share
                largest, matrices = np.maximum(largest, one), matrices + one
    return Parameters(shared=shared, routed=routed, largest=largest, matrices=matrices)


def _share(transformer: Transformer, operator: Operator, tensor: str, layouts: Layouts) -> Floats:
    """Return which part of a tensor lies on one device of a tensor-parallel group."""
    name, split = operator.name, 1 / layouts.tensor
    if name == "attention.qkv":
        heads, keys = transformer.num_heads, 2 * transformer.num_kv_heads
        return (heads * split + keys / np.minimum(layouts.tensor, transformer.num_kv_heads)) / (heads + keys)
    is_split = name in COLUMN_SPLIT or (name in _ROW_SPLIT and tensor == "weight")
    if name.startswith(_ROUTED):
        is_split = name.endswith(".up") or tensor == "weight"
    return split if is_split else np.ones(1)


def vocabulary_rows(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the rows of the padded vocabulary on one device."""
    rows = -(-transformer.vocabulary_size // (PADDING * layouts.tensor)) * PADDING
    return rows.astype(np.float64)


def embedding_parameters(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the parameters before the first block, on one device."""
    others = sum(one.weight_elements for one in embedding_operators(transformer) if one.name != "tokens")
    return vocabulary_rows(transformer, layouts) * transformer.hidden_size + others


def head_parameters(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the parameters behind the last block, on one device.

    Where the embedding's matrix gives the logits, a last stage that is not the first one holds a copy of it.
    """
    rows = vocabulary_rows(transformer, layouts)
    found = np.zeros(1)
    for operator in head_operators(transformer):
        if operator.name != "logits":
            found = found + operator.weight_elements
            continue
        is_copy = transformer.has_tied_embeddings * (layouts.pipeline == 1)
        has_bias = any(tensor.role == "bias" for tensor in operator.tensors)
        found = found + rows * (transformer.hidden_size * (1 - is_copy) + has_bias)
    return found
