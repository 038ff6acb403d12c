"""Decoders written after Llama's: rotary positions, queries, keys and values projected apart; a row an architecture.

What differs is which biases and norms there are, and what a missing key means. Source of every row: the architecture's
``configuration_*.py`` and ``modeling_*.py`` in ``huggingface/transformers`` 5.23, against whose own counts of
parameters the rows are tested (``tests/heavy/test_huggingface.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.importers.huggingface.draft import Draft, Reader, longest, stream
from planner.importers.huggingface.fields import Fields, shown
from planner.transformer_parts import MOST_HEADS, MOST_WIDTH

__all__ = ["READERS", "Make", "attention_of", "draft_of"]

Flag = bool | tuple[str, bool]  # what is always so, or the key that says it and what it means if left out

_ATTENTION_BIAS: Flag = ("attention_bias", False)
_WINDOWED = frozenset({"sliding_attention", "chunked_attention", "local"})
_FULL = frozenset({"full_attention", "global"})
# Every so many layers one sees all, where no key names the layers: the architecture's configuration_*.py in
# huggingface/transformers 5.23; Gemma 3 and EXAONE 4 have a key for it.
_EVERY_FULL = {"gemma2": 2, "gemma3_text": 6, "olmo3": 4, "exaone4": 4}
_RMS = {"norm": "rms_norm", "is_gated": True}
_LAYER_NORM = {"norm": "layer_norm", "has_norm_biases": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """What an architecture has.

    Attributes
    ----------
    is_tied
        Whether logits use the embedding's matrix where ``tie_word_embeddings`` is left out.
    needs_kv_heads, needs_head_size
        Whether ``num_key_value_heads`` and ``head_dim`` must be given: ``transformers`` would take a fixed number.
        Where they need not, they follow from the heads.
    qkv, output, feed_forward, head
        Biases.
    query_key_norms
        Whether queries and keys pass norms.
    fixed
        Fields of the transformer that are always so.
    """

    is_tied: bool = False
    needs_kv_heads: bool = False
    needs_head_size: bool = False
    qkv: Flag = False
    output: Flag = False
    feed_forward: Flag = False
    head: Flag = False
    query_key_norms: Flag = False
    fixed: Mapping[str, Any] = field(default_factory=lambda: _RMS)


_LLAMA = Make(qkv=_ATTENTION_BIAS, output=_ATTENTION_BIAS, feed_forward=("mlp_bias", False))
_BIASED: dict[str, Any] = {"qkv": _ATTENTION_BIAS, "output": _ATTENTION_BIAS}
_OLMO_2 = Make(
    **_BIASED,
    query_key_norms=True,
    fixed={**_RMS, "norm_position": "output", "query_key_norm_span": "all_heads"},
)

_LLAMAS: dict[str, Make] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": Make(
        is_tied=True, needs_kv_heads=True, qkv=_ATTENTION_BIAS, output=_ATTENTION_BIAS, feed_forward=("mlp_bias", False)
    ),
    "arcee": Make(**_BIASED, feed_forward=("mlp_bias", False), fixed={"norm": "rms_norm"}),
    "mistral": Make(needs_kv_heads=True),
    "ministral": Make(needs_kv_heads=True),
    "phi3": Make(),
    "qwen2": Make(needs_kv_heads=True, qkv=True),
    "qwen3": Make(**_BIASED, needs_kv_heads=True, needs_head_size=True, query_key_norms=True),
    "hunyuan_v1_dense": Make(**_BIASED, query_key_norms=True),
    "exaone4": Make(needs_kv_heads=True, query_key_norms=True, fixed={**_RMS, "norm_position": "output"}),
    "ernie4_5": Make(
        is_tied=True,
        needs_kv_heads=True,
        needs_head_size=True,
        qkv=("use_bias", False),
        output=("use_bias", False),
        feed_forward=("use_bias", False),
    ),
    "seed_oss": Make(
        needs_kv_heads=True,
        needs_head_size=True,
        qkv=("attention_bias", True),
        output=("attention_out_bias", False),
        feed_forward=("mlp_bias", False),
    ),
    "glm": Make(needs_kv_heads=True, needs_head_size=True, qkv=("attention_bias", True)),
    "glm4": Make(
        needs_kv_heads=True,
        needs_head_size=True,
        qkv=("attention_bias", True),
        fixed={**_RMS, "norm_position": "both"},
    ),
    "gemma": Make(**_BIASED, is_tied=True, needs_kv_heads=True, needs_head_size=True),
    "gemma2": Make(
        **_BIASED,
        is_tied=True,
        needs_kv_heads=True,
        needs_head_size=True,
        fixed={**_RMS, "norm_position": "both"},
    ),
    "gemma3_text": Make(
        **_BIASED,
        is_tied=True,
        needs_kv_heads=True,
        needs_head_size=True,
        query_key_norms=True,
        fixed={**_RMS, "norm_position": "both"},
    ),
    "olmo": Make(
        **_BIASED,
        fixed={"norm": "layer_norm", "is_gated": True, "has_norm_scales": False, "has_norm_biases": False},
    ),
    "olmo2": _OLMO_2,
    "olmo3": _OLMO_2,
    "cohere": Make(
        **_BIASED,
        is_tied=True,
        query_key_norms=("use_qk_norm", False),
        fixed={
            "norm": "layer_norm",
            "has_norm_biases": False,
            "is_gated": True,
            "norm_position": "shared",
            "query_key_norm_span": "all_heads",
        },
    ),
    "nemotron": Make(**_BIASED, feed_forward=("mlp_bias", False), fixed=_LAYER_NORM),
    "starcoder2": Make(
        is_tied=True,
        needs_kv_heads=True,
        qkv=("use_bias", True),
        output=("use_bias", True),
        feed_forward=("use_bias", True),
        fixed=_LAYER_NORM,
    ),
    "stablelm": Make(needs_kv_heads=True, qkv=("use_qkv_bias", False), fixed={**_LAYER_NORM, "is_gated": True}),
    "phi": Make(
        qkv=True,
        output=True,
        feed_forward=True,
        head=True,
        query_key_norms=("qk_layernorm", False),
        fixed={**_LAYER_NORM, "norm_position": "shared"},
    ),
}


def attention_of(fields: Fields, make: Make) -> dict[str, Any]:
    """Return the sizes of a make but for its feed-forward part."""
    sizes = stream(fields)
    heads = sizes["num_heads"]
    if make.needs_kv_heads and "num_key_value_heads" not in fields.values:
        kv_heads = fields.count("num_key_value_heads", most=MOST_HEADS)
    else:
        kv_heads = fields.count_or(heads, "num_key_value_heads", most=MOST_HEADS)
    sizes["num_kv_heads"] = kv_heads
    if make.needs_head_size or fields.get("head_dim") is not None:
        sizes["head_size"] = fields.count("head_dim", most=MOST_WIDTH)
    head = {"has_head_bias": True} if _is(fields, make.head) else {}
    return {
        **sizes,
        "has_tied_embeddings": fields.flag("tie_word_embeddings", make.is_tied),
        "positions": "rotary",
        "has_biases": _is(fields, make.feed_forward),
        "has_norm_biases": False,
        "has_qkv_biases": _is(fields, make.qkv),
        "has_output_bias": _is(fields, make.output),
        "has_query_key_norms": _is(fields, make.query_key_norms),
        **head,
        **make.fixed,
    }


def draft_of(fields: Fields, sizes: Mapping[str, Any]) -> Draft:
    """Return the draft of a decoder with rotary positions."""
    window, number = _windows(fields, sizes["num_layers"])
    return Draft(
        sizes=dict(sizes), longest=longest(fields, "max_position_embeddings"), window=window, num_windowed=number
    )


def _windows(fields: Fields, num_layers: int) -> tuple[int | None, int]:
    """Return the tokens that a token sees in layers with windowed attention, and how many these are.

    Layers with another attention than full or windowed are refused.
    """
    types = fields.words("layer_types")
    unknown = sorted(set(types) - _WINDOWED - _FULL)
    if unknown:
        fields.refuse("layer_types", f"layers of the type {shown(unknown[0])} are not counted here.")
    if types and not unknown and len(types) != num_layers:
        mend = "Give as many types as layers, or leave them out."
        fields.fault("layer_types", f"these are {len(types)} types of {num_layers} layers.", mend)
    names = ("sliding_window", "attention_chunk_size")
    given = fields.get(*names)
    if given is None or given is False or given == 0 or not fields.flag("use_sliding_window", True):
        return None, 0
    window = fields.count(*names, most=2**40)
    if types:
        number = sum(one in _WINDOWED for one in types)
        return (window, number) if number else (None, 0)
    first = fields.count_or(0, "max_window_layers", least=0, most=2**40)
    if "use_sliding_window" in fields.values and first:  # Qwen2: the first layers see all
        return (window, num_layers - first) if first < num_layers else (None, 0)
    return window, num_layers - num_layers // _full_step(fields, num_layers)


def _full_step(fields: Fields, num_layers: int) -> int:
    """Return how often a layer sees all; more than the layers where none does."""
    usual = _EVERY_FULL.get(fields.architecture)
    if usual is None:
        return num_layers + 1
    given = fields.get("sliding_window_pattern")
    if isinstance(given, str) and given:  # EXAONE 4: LLLG is a step of 4
        return len(given)
    return fields.count_or(usual, "sliding_window_pattern")


def _is(fields: Fields, flag: Flag) -> bool:
    """Return what a flag says of these fields."""
    return flag if isinstance(flag, bool) else fields.flag(*flag)


def _reader(make: Make) -> Reader:
    """Return the reader of a make with one dense feed-forward part a layer."""

    def read(fields: Fields) -> Draft:
        sizes = attention_of(fields, make)
        return draft_of(fields, {**sizes, "feed_forward_size": fields.count("intermediate_size")})

    return read


def _stablelm(fields: Fields) -> Draft:
    """Return StableLM, whose halves may run side by side."""
    if fields.flag("qk_layernorm", False):
        refused = "every head has a norm of its own, without a shift, unlike the other norms; this is not counted here."
        fields.refuse("qk_layernorm", refused)
    draft = _reader(_LLAMAS["stablelm"])(fields)
    if fields.flag("use_parallel_residual", False):
        draft.sizes["norm_position"] = "shared"
    return draft


READERS: dict[str, Reader] = {name: _reader(make) for name, make in _LLAMAS.items()} | {"stablelm": _stablelm}
