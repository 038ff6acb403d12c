"""Multiply-adds of the fused attention operators, of the whole batch.

Scores and their product with the values: for every head and every pair of a query and a key that it may look at, the
widths of a head's key and value. Where attention is causal, a query looks at the keys up to its own place, and the
queries are the last places. Definitions: onnx/onnx, docs/Operators.md (``Attention`` of operator set 23);
microsoft/onnxruntime, docs/ContribOperators.md.
"""

from collections.abc import Callable, Mapping

from planner.importers.onnx_model.view import UnknownShapeError, View, Work

__all__ = ["ATTENTION", "attention_of"]

_SOFTMAX_FLOP = 6  # a score: its scale, and five of the softmax


def _attend(
    *, num_samples: int, num_heads: int, num_queries: int, num_keys: int, key_size: int, value_size: int, causal: bool
) -> Work:
    """Return the work of one attention."""
    pairs = num_queries * num_keys
    if causal:
        if num_keys < num_queries:
            raise UnknownShapeError
        pairs -= num_queries * (num_queries - 1) // 2
    pairs *= num_samples * num_heads
    return Work(pairs * (key_size + value_size), pairs * _SOFTMAX_FLOP)


def _standard(view: View) -> Work:
    """``Attention`` of ONNX itself: states of three axes, with the heads side by side, or four."""
    query, key, value = view.input(0), view.input(1), view.input(2)
    past = view.input(4, rank=4)[2] if view.has(4) else 0
    num_heads, num_kv_heads = view.integer("q_num_heads"), view.integer("kv_num_heads")
    if len(query) == 4 and len(key) == 4 and len(value) == 4:
        num_samples, num_heads, num_queries, key_size = query
        num_keys, value_size = key[2], value[3]
    elif len(query) == 3 and len(value) == 3 and num_heads > 0 and num_kv_heads > 0:
        num_samples, num_queries, width = query
        num_keys, key_size, value_size = key[1], width // num_heads, value[2] // num_kv_heads
    else:
        raise UnknownShapeError
    return _attend(
        num_samples=num_samples,
        num_heads=num_heads,
        num_queries=num_queries,
        num_keys=num_keys + past,
        key_size=key_size,
        value_size=value_size,
        causal=bool(view.integer("is_causal")),
    )


def _packed(bias_at: int, past_at: int) -> Callable[[View], Work]:
    """``Attention`` of com.microsoft: it multiplies its input by the matrix of queries, keys and values first."""

    def rule(view: View) -> Work:
        num_samples, num_queries, width = view.input(0, rank=3)
        columns = view.input(1, rank=2)[1]
        num_heads = view.integer("num_heads")
        sizes = view.integers("qkv_hidden_sizes") or (columns // 3,) * 3
        if num_heads < 1 or len(sizes) != 3:
            raise UnknownShapeError
        past = view.input(past_at, rank=5)[3] if view.has(past_at) else 0
        projected = num_samples * num_queries * columns
        return Work(projected * width, projected if view.has(bias_at) else 0) + _attend(
            num_samples=num_samples,
            num_heads=num_heads,
            num_queries=num_queries,
            num_keys=num_queries + past,
            key_size=sizes[0] // num_heads,
            value_size=sizes[2] // num_heads,
            causal=bool(view.integer("unidirectional")),
        )

    return rule


def _multi_head(view: View) -> Work:
    """``MultiHeadAttention``: queries, keys and values apart, or packed along a fourth or fifth axis."""
    query, num_heads = view.input(0), view.integer("num_heads")
    if num_heads < 1 or len(query) not in (3, 5):
        raise UnknownShapeError
    num_samples, num_queries = query[:2]
    num_keys, key_size = num_queries, query[4] if len(query) == 5 else query[2] // num_heads
    value_size = key_size
    if view.has(1):
        key = view.input(1)
        num_keys = key[2] if len(key) == 4 else key[1]
    if view.has(2):
        value = view.input(2)
        value_size = value[3] if len(value) == 4 else value[-1] // num_heads
    if view.has(6):
        num_keys += view.input(6, rank=4)[2]
    return _attend(
        num_samples=num_samples,
        num_heads=num_heads,
        num_queries=num_queries,
        num_keys=num_keys,
        key_size=key_size,
        value_size=value_size,
        causal=bool(view.integer("unidirectional")),
    )


def _grouped(view: View) -> Work:
    """``GroupQueryAttention``, which is causal; without keys the queries hold all three."""
    num_samples, num_queries, width = view.input(0, rank=3)
    num_heads, num_kv_heads = view.integer("num_heads"), view.integer("kv_num_heads")
    if num_heads < 1 or num_kv_heads < 1:
        raise UnknownShapeError
    head_size = width // (num_heads if view.has(1) else num_heads + 2 * num_kv_heads)
    return _attend(
        num_samples=num_samples,
        num_heads=num_heads,
        num_queries=num_queries,
        num_keys=num_queries + (view.input(3, rank=4)[2] if view.has(3) else 0),
        key_size=head_size,
        value_size=head_size,
        causal=True,
    )


ATTENTION: Mapping[str, Callable[[View], Work]] = {
    "GroupQueryAttention": _grouped,
    "MultiHeadAttention": _multi_head,
    "QAttention": _packed(2, 8),
}


def attention_of(domain: str) -> Callable[[View], Work]:
    """Return the rule of ``Attention``, which is another operator in ONNX itself than in com.microsoft."""
    return _packed(2, 4) if domain else _standard
