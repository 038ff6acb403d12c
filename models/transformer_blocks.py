"""One block of a transformer as operators: attention, then a feed-forward part, dense or of experts.

Causal attention counts half of each of its two products; that leaves out half a diagonal. All but the products (norms,
softmax, activations, residual additions, rotary positions) has no multiply-adds and moves memory: its elements are
given.

Leaves out dropout, the optimiser, and what a kernel computes twice (flash attention repeats the scores in backward).
Scores are in place: a fused kernel keeps none, and one that does keep them adds what ``attention.scores`` puts out.
Routed experts are taken to be evenly loaded, and to drop no token. Sources: A. Vaswani et al., arXiv 1706.03762; gated
parts: N. Shazeer, arXiv 2002.05202; latent attention and shared experts: DeepSeek-AI, arXiv 2405.04434, section 2.
"""

from collections.abc import Callable

from planner.dnn import Tensor
from planner.models.operators import INPUT, Operator, OperatorList, Product
from planner.transformer import Experts, LatentAttention, LayerKind, Transformer

__all__ = ["block_operators", "list_for"]


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
