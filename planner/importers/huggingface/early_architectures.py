"""Decoders of Hugging Face that came before Llama or beside it, and encoders: each is read by a function of its own.

Sources and tests: as those of :mod:`planner.importers.huggingface.architectures`.
"""

from dataclasses import replace
from typing import Any

from planner.importers.huggingface.configuration import Fields
from planner.importers.huggingface.drafts import Draft, Reader, is_tied, longest_of, stream_of
from planner.transformer_parts import (
    MOST_CHANNELS,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_PIXELS,
    MOST_TOKENS,
    MOST_WIDTH,
    MOST_WORDS,
    Image,
)
from planner.words import shown

# -- decoders before Llama, or beside it -------------------------------------------------------------------------------

_LAYERS, _HIDDEN, _HEADS = (
    ("n_layer", "num_hidden_layers"),
    ("n_embd", "hidden_size"),
    ("n_head", "num_attention_heads"),
)


def _gpt(fields: Fields) -> dict[str, Any]:
    """Return the sizes under GPT-2's names."""
    sizes = stream_of(fields, layers=_LAYERS, hidden=("n_embd", "hidden_size"), heads=_HEADS)
    sizes["feed_forward_size"] = fields.count_or(4 * sizes["hidden_size"], "n_inner")
    return sizes


def _gpt2(fields: Fields) -> Draft:
    """Return GPT-2; also StarCoder, whose queries may share one key and value."""
    _refuse_cross_attention(fields)
    sizes = _gpt(fields)
    positions = fields.count("n_positions", "max_position_embeddings", "n_ctx", most=MOST_TOKENS)
    if fields.architecture == "gpt_bigcode" and fields.flag("multi_query", True):
        sizes["num_kv_heads"] = 1
    sizes |= {"num_positions": positions, "has_tied_embeddings": is_tied(fields)}
    return Draft(sizes=sizes, longest=positions)


def _refuse_cross_attention(fields: Fields) -> None:
    """Refuse a network that reads an encoder."""
    if fields.flag("add_cross_attention", False):
        fields.refuse("add_cross_attention", "attention to an encoder is not counted here.")


def _gpt_neo(fields: Fields) -> Draft:
    """Return GPT-Neo: no biases of queries, keys and values, and every other layer windowed."""
    sizes = stream_of(fields, layers=("num_layers", "num_hidden_layers"), heads=("num_heads", "num_attention_heads"))
    sizes["feed_forward_size"] = fields.count_or(4 * sizes["hidden_size"], "intermediate_size")
    positions = fields.count("max_position_embeddings", most=MOST_TOKENS)
    number = sizes["num_layers"]
    types = fields.words("attention_layers") or tuple(("global", "local")[index % 2] for index in range(number))
    if len(types) != number:
        hint = "Give as many types as layers, or leave them out."
        fields.fault("attention_layers", f"these are {len(types)} types of {number} layers.", hint)
    sizes |= {"num_positions": positions, "has_qkv_biases": False, "has_tied_embeddings": is_tied(fields)}
    return Draft(
        sizes=sizes,
        longest=positions,
        window=fields.count_or(256, "window_size", most=2**40),
        mixers=tuple("window" if one == "local" else "attention" for one in types),
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
        "has_tied_embeddings": is_tied(fields, default=False),
    }
    return Draft(sizes=sizes, longest=longest_of(fields, "n_positions", "max_position_embeddings", "n_ctx"))


def _gpt_neox(fields: Fields) -> Draft:
    """Return GPT-NeoX: halves side by side, each with its norm."""
    is_parallel = fields.flag("use_parallel_residual", True)
    has_biases = fields.flag("attention_bias", True)
    sizes = {
        **stream_of(fields),
        "feed_forward_size": fields.count("intermediate_size"),
        "positions": "rotary",
        "norm_position": "parallel" if is_parallel else "before",
        "has_qkv_biases": has_biases,
        "has_output_bias": has_biases,
        "has_tied_embeddings": is_tied(fields, default=False),
    }
    return Draft(sizes=sizes, longest=longest_of(fields, "max_position_embeddings"))


def _opt(fields: Fields) -> Draft:
    """Return OPT: two rows of its table of positions stand before the first token's."""
    sizes = {**stream_of(fields), "feed_forward_size": fields.count("ffn_dim")}
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
        "has_tied_embeddings": is_tied(fields),
    }
    return Draft(sizes=sizes, longest=tokens)


def _bloom(fields: Fields) -> Draft:
    """Return BLOOM: ALiBi, and a norm behind the embedding."""
    sizes = stream_of(fields, layers=_LAYERS, hidden=("hidden_size", "n_embed"), heads=_HEADS)
    sizes |= {"positions": "alibi", "has_embedding_norm": True, "has_tied_embeddings": is_tied(fields)}
    return Draft(sizes=sizes, longest=longest_of(fields, "seq_length"))


def _falcon(fields: Fields) -> Draft:
    """Return Falcon: halves side by side with one norm or two, few keys and values; the first models otherwise."""
    sizes = stream_of(fields, layers=_LAYERS[::-1], hidden=("hidden_size", "n_embed"), heads=_HEADS[::-1])
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
        "has_tied_embeddings": is_tied(fields),
    }
    return Draft(sizes=sizes, longest=longest_of(fields, "max_position_embeddings"))


def _mpt(fields: Fields) -> Draft:
    """Return MPT: ALiBi and no biases at all."""
    layers, hidden = ("n_layers", "num_hidden_layers"), ("d_model", "hidden_size")
    sizes = stream_of(fields, layers=layers, hidden=hidden, heads=("n_heads",))
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
        "has_tied_embeddings": is_tied(fields),
    }
    return Draft(sizes=sizes, longest=longest_of(fields, "max_seq_len"))


# -- encoders --------------------------------------------------------------------------------------------------------


def _bert(fields: Fields) -> Draft:
    """Return BERT: norms behind each half, segments."""
    _refuse_cross_attention(fields)
    if fields.word("position_embedding_type") not in ("", "absolute"):
        fields.refuse("position_embedding_type", "positions relative to each other are not counted here.")
    sizes = stream_of(fields)
    if fields.count_or(sizes["hidden_size"], "embedding_size", most=MOST_WIDTH) != sizes["hidden_size"]:
        fields.refuse("embedding_size", "an embedding of another width than the stream's is not counted here.")
    rows = fields.count("max_position_embeddings", most=MOST_TOKENS)
    is_decoder = fields.flag("is_decoder", False)
    sizes |= {
        "feed_forward_size": fields.count("intermediate_size"),
        "num_positions": rows,
        "num_token_types": fields.count("type_vocab_size", least=0, most=MOST_WORDS),
        "is_causal": is_decoder,
        "has_tied_embeddings": is_tied(fields),
        "norm_position": "after",
        "has_embedding_norm": True,
    }
    return Draft(sizes=sizes, longest=rows, kind="encoder", pools=True)


def _roberta(fields: Fields) -> Draft:
    """Return RoBERTa: its positions are counted from behind that of padding; its table has rows for those, too."""
    draft = _bert(fields)
    unused = fields.count_or(1, "pad_token_id", least=0, most=MOST_WORDS) + 1
    rows = draft.longest or 0
    if rows <= unused and not fields.faults:
        problem = f"the first {unused} of {rows} positions are never used."
        fields.fault("max_position_embeddings", problem, f"Write more than {unused}.")
    return replace(draft, longest=max(rows - unused, 1))


def _distilbert(fields: Fields) -> Draft:
    """Return DistilBERT: BERT without segments and pooler, under names of its own."""
    layers, hidden, heads = (
        ("n_layers", "num_hidden_layers"),
        ("dim", "hidden_size"),
        ("n_heads", "num_attention_heads"),
    )
    sizes = stream_of(fields, layers=layers, hidden=hidden, heads=heads)
    rows = fields.count("max_position_embeddings", most=MOST_TOKENS)
    sizes |= {
        "feed_forward_size": fields.count("hidden_dim"),
        "num_positions": rows,
        "is_causal": False,
        "has_tied_embeddings": is_tied(fields),
        "norm_position": "after",
        "has_embedding_norm": True,
    }
    return Draft(sizes=sizes, longest=rows, kind="encoder")


def _vit(fields: Fields) -> Draft:
    """Return the vision transformer: patches, a token of the class, learned positions."""
    hidden = fields.count("hidden_size", most=MOST_WIDTH)
    if fields.count_or(hidden, "pooler_output_size", most=MOST_WIDTH) != hidden:
        fields.refuse("pooler_output_size", "a pooler of another width than the stream's is not counted here.")
    pixels = fields.count("image_size", most=MOST_PIXELS)
    patch = fields.count("patch_size", most=MOST_PIXELS)
    if pixels % patch:
        fields.fault("patch_size", f"an image of {pixels} pixels has no whole number of these.", "Give a divisor.")
    channels = fields.count_or(3, "num_channels", most=MOST_CHANNELS)
    names = fields.get("id2label")
    if isinstance(names, dict) and names:
        num_classes = len(names)
    elif names is not None:
        num_classes = 0
        fields.fault("id2label", f"{shown(names)} is no table of names.", 'Write e.g. {"0": "cat"}.')
    else:  # two, as transformers has it
        num_classes = fields.count_or(2, "num_labels", "_num_labels", most=MOST_WORDS)
    sizes: dict[str, Any] = {
        "num_layers": fields.count("num_hidden_layers", most=MOST_LAYERS),
        "hidden_size": hidden,
        "num_heads": fields.count("num_attention_heads", most=MOST_HEADS),
        "feed_forward_size": fields.count("intermediate_size"),
        "has_qkv_biases": fields.flag("qkv_bias", True),
        "vocabulary_size": 0,
        "is_causal": False,
    }
    if not fields.faults:
        image = Image(image_size=pixels, patch_size=patch, num_channels=channels, num_classes=num_classes)
        sizes |= {"image": image, "sequence_length": image.num_tokens}
    return Draft(sizes=sizes, kind="image", pools=True)


EARLY_READERS: dict[str, Reader] = {
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
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "distilbert": _distilbert,
    "vit": _vit,
}
