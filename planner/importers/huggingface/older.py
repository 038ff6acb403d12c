"""Decoders that came before Llama or beside it: the GPTs, CodeGen, OPT, BLOOM, Falcon, MPT, the first StarCoder.

Sources as in :mod:`planner.importers.huggingface.llama`.
"""

from typing import Any

from planner.importers.huggingface.draft import Draft, Reader, longest, stream
from planner.importers.huggingface.fields import Fields
from planner.transformer_parts import MOST_HEADS, MOST_TOKENS, MOST_WIDTH

__all__ = ["READERS"]

_LAYERS, _HIDDEN, _HEADS = (
    ("n_layer", "num_hidden_layers"),
    ("n_embd", "hidden_size"),
    ("n_head", "num_attention_heads"),
)


def _no_cross_attention(fields: Fields) -> None:
    """Refuse a decoder that reads an encoder."""
    if fields.flag("add_cross_attention", False):
        fields.refuse("add_cross_attention", "attention to an encoder is not counted here.")


def _gpt(fields: Fields) -> dict[str, Any]:
    """Return the sizes under GPT-2's names."""
    sizes = stream(fields, layers=_LAYERS, hidden=_HIDDEN, heads=_HEADS)
    sizes["feed_forward_size"] = fields.count_or(4 * sizes["hidden_size"], "n_inner")
    return sizes


def _gpt2(fields: Fields) -> Draft:
    """Return GPT-2; also StarCoder, whose queries may share one key and value."""
    _no_cross_attention(fields)
    sizes = _gpt(fields)
    positions = fields.count("n_positions", "max_position_embeddings", "n_ctx", most=MOST_TOKENS)
    if fields.architecture == "gpt_bigcode" and fields.flag("multi_query", True):
        sizes["num_kv_heads"] = 1
    tied = fields.flag("tie_word_embeddings", True)
    return Draft(sizes={**sizes, "num_positions": positions, "has_tied_embeddings": tied}, longest=positions)


def _gpt_neo(fields: Fields) -> Draft:
    """Return GPT-Neo: no biases of queries, keys and values, and every other layer windowed."""
    sizes = stream(fields, layers=("num_layers", "num_hidden_layers"), heads=("num_heads", "num_attention_heads"))
    sizes["feed_forward_size"] = fields.count_or(4 * sizes["hidden_size"], "intermediate_size")
    positions = fields.count("max_position_embeddings", most=MOST_TOKENS)
    types = fields.words("attention_layers")
    return Draft(
        sizes={
            **sizes,
            "num_positions": positions,
            "has_qkv_biases": False,
            "has_tied_embeddings": fields.flag("tie_word_embeddings", True),
        },
        longest=positions,
        window=fields.count_or(256, "window_size", most=2**40),
        num_windowed=sum(one == "local" for one in types) if types else sizes["num_layers"] // 2,
    )


def _gpt_j(fields: Fields) -> Draft:
    """Return GPT-J or CodeGen: halves side by side, biases of the feed-forward part and of the logits alone."""
    sizes = {
        **_gpt(fields),
        "positions": "rotary",
        "norm_position": "shared",
        "has_qkv_biases": False,
        "has_output_bias": False,
        "has_head_bias": True,
        "has_tied_embeddings": fields.flag("tie_word_embeddings", False),
    }
    return Draft(sizes=sizes, longest=longest(fields, "n_positions", "max_position_embeddings", "n_ctx"))


def _gpt_neox(fields: Fields) -> Draft:
    """Return GPT-NeoX: halves side by side, each with its norm."""
    is_parallel = fields.flag("use_parallel_residual", True)
    has_biases = fields.flag("attention_bias", True)
    sizes = {
        **stream(fields),
        "feed_forward_size": fields.count("intermediate_size"),
        "positions": "rotary",
        "norm_position": "parallel" if is_parallel else "before",
        "has_qkv_biases": has_biases,
        "has_output_bias": has_biases,
        "has_tied_embeddings": fields.flag("tie_word_embeddings", False),
    }
    return Draft(sizes=sizes, longest=longest(fields, "max_position_embeddings"))


def _opt(fields: Fields) -> Draft:
    """Return OPT: two rows of its table of positions stand before the first token's."""
    sizes = {**stream(fields), "feed_forward_size": fields.count("ffn_dim")}
    if fields.count_or(sizes["hidden_size"], "word_embed_proj_dim", most=MOST_WIDTH) != sizes["hidden_size"]:
        problem = "an embedding of another width than the stream's is not counted here."
        fields.refuse("word_embed_proj_dim", problem)
    tokens = fields.count("max_position_embeddings", most=MOST_TOKENS - 2)
    has_biases, is_before = fields.flag("enable_bias", True), fields.flag("do_layer_norm_before", True)
    has_scales = fields.flag("layer_norm_elementwise_affine", True)
    sizes |= {
        "num_positions": tokens + 2,
        "has_biases": has_biases,
        "has_norm_scales": has_scales,
        "has_norm_biases": has_scales,
        "norm_position": "before" if is_before else "after",
        "has_final_norm": is_before and not fields.flag("_remove_final_layer_norm", False),
        "has_tied_embeddings": fields.flag("tie_word_embeddings", True),
    }
    return Draft(sizes=sizes, longest=tokens)


def _bloom(fields: Fields) -> Draft:
    """Return BLOOM: ALiBi, and a norm behind the embedding."""
    sizes = {
        **stream(fields, layers=_LAYERS, hidden=("hidden_size", "n_embed"), heads=_HEADS),
        "positions": "alibi",
        "has_embedding_norm": True,
        "has_tied_embeddings": fields.flag("tie_word_embeddings", True),
    }
    return Draft(sizes=sizes, longest=longest(fields, "seq_length"))


def _falcon(fields: Fields) -> Draft:
    """Return Falcon: halves side by side with one norm or two, few keys and values; the first models otherwise."""
    sizes = stream(
        fields,
        layers=("num_hidden_layers", "n_layer"),
        hidden=("hidden_size", "n_embed"),
        heads=("num_attention_heads", "n_head"),
    )
    is_new = fields.flag("new_decoder_architecture", False)
    if is_new:
        sizes["num_kv_heads"] = fields.count_or(sizes["num_heads"], "num_kv_heads", "n_head_kv", most=MOST_HEADS)
    elif fields.flag("multi_query", True):
        sizes["num_kv_heads"] = 1
    num_norms = fields.count_or(2 if is_new else 1, "num_ln_in_parallel_attn", most=2)
    is_parallel = fields.flag("parallel_attn", True)
    sizes |= {
        "feed_forward_size": fields.count_or(4 * sizes["hidden_size"], "ffn_hidden_size"),
        "positions": "alibi" if fields.flag("alibi", False) else "rotary",
        "norm_position": ("before", "shared", "parallel")[num_norms if is_parallel else 0],
        "has_biases": fields.flag("bias", False),
        "has_norm_biases": True,
        "has_tied_embeddings": fields.flag("tie_word_embeddings", True),
    }
    return Draft(sizes=sizes, longest=longest(fields, "max_position_embeddings"))


def _mpt(fields: Fields) -> Draft:
    """Return MPT: ALiBi and no biases at all."""
    sizes = stream(
        fields, layers=("n_layers", "num_hidden_layers"), hidden=("d_model", "hidden_size"), heads=("n_heads",)
    )
    attention = fields.get("attn_config")
    kind = attention.get("attn_type") if isinstance(attention, dict) else None
    if kind not in (None, "multihead_attention"):
        fields.refuse("attn_config", "only attention with a key and value for each query is counted here.")
    if fields.count_or(4, "expansion_ratio") != 4:
        fields.refuse("expansion_ratio", "transformers builds a feed-forward part of 4 times the width, whatever this.")
    if not fields.flag("no_bias", True):
        fields.refuse("no_bias", "transformers builds this network without biases, whatever this says.")
    sizes |= {
        "positions": "alibi",
        "has_biases": False,
        "has_norm_biases": False,
        "has_tied_embeddings": fields.flag("tie_word_embeddings", True),
    }
    return Draft(sizes=sizes, longest=longest(fields, "max_seq_len"))


READERS: dict[str, Reader] = {
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt2,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gptj": _gpt_j,
    "codegen": _gpt_j,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": _falcon,
    "mpt": _mpt,
}
